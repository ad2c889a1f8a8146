//! A small role over real sockets: inputs, effects of time, and outputs with their order.

use super::*;
use crate::{UdpConfig, UdpLink};
use farmem_machine::Port;
use farmem_wire::Gid;
use std::sync::mpsc;

const PEER: Port = Port(7);
/// A wait that is longer than any test, and would therefore be noticed.
const FOR_EVER: Wait = Wait::AtMost(Duration::from_secs(1_000_000));

/// A role that returns every frame with its first byte incremented, reports it to its user, and sets an alarm
/// on request.
#[derive(Debug, Default)]
struct Echo {
    alarm: Option<Instant>,
    woken: u32,
}

#[derive(Debug)]
enum In {
    /// Sends a frame that begins with this byte, reports to the user, and sends another that begins with the
    /// next.
    Say(u8),
    /// Wakes at this time.
    Alarm(Instant),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heard {
    Heard(u8),
    Said(u8),
}

fn frame(first: u8) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0] = first;
    bytes
}

impl Machine for Echo {
    type In = In;
    type Out = Heard;
    type Note = Port;

    fn handle(&mut self, now: Instant, event: Event<'_, In>, out: &mut Outbox<Heard, Port>) {
        match event {
            Event::Frame { port, bytes } => {
                out.note(port);
                out.local(Heard::Heard(bytes[0]));
                out.send(port, &frame(bytes[0] + 1));
            }
            Event::Wake => {
                self.woken += u32::from(self.alarm.take_if(|at| *at <= now).is_some());
            }
            Event::Local(In::Say(first)) => {
                out.send(PEER, &frame(first));
                out.local(Heard::Said(first));
                out.send(PEER, &frame(first + 1));
            }
            Event::Local(In::Alarm(at)) => self.alarm = Some(at),
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.alarm
    }

    fn check(&self) {}
}

/// Creates a driven echo at 127.71.`test`.1 and a bare link at 127.71.`test`.2, which are peers.
fn driven(test: u8) -> (Driver<Echo, UdpLink>, UdpLink) {
    let gid = |n| Gid::from_v4([127, 71, test, n]);
    let open = |n| UdpLink::open(&UdpConfig::new(gid(n))).unwrap();
    let (mut ours, mut theirs) = (open(1), open(2));
    ours.set_peer(PEER, Some(gid(2))).unwrap();
    theirs.set_peer(PEER, Some(gid(1))).unwrap();
    (Driver::new(Echo::default(), ours, Clock::start()), theirs)
}

/// Returns the first bytes of the waiting frames. Loopback delivers before a send returns.
fn heard(link: &mut UdpLink) -> Vec<u8> {
    let mut got = Vec::new();
    while link.receive(Wait::No, &mut |_, bytes| got.push(bytes[0])).unwrap() > 0 {}
    got
}

/// One turn, without an explicit flush, receives frames, reports to the user, sends the answers, and passes
/// notes to the observer.
#[test]
fn one_turn_carries_a_batch_there_and_back() {
    let (mut driver, mut peer) = driven(60);
    let (notes, noted) = mpsc::channel();
    driver.watch_notes(move |_, note| notes.send(note).unwrap());
    for n in [10, 20, 30] {
        peer.send(PEER, &frame(n));
    }
    peer.flush().unwrap();
    let mut told = Vec::new();
    let mut turns = 0;
    while told.len() < 3 {
        assert!(driver.turn(FOR_EVER, &mut |out, _| told.push(out)).unwrap() > 0);
        turns += 1;
    }
    assert_eq!(turns, 1, "the three arrived before the turn began");
    assert_eq!(told, [10, 20, 30].map(Heard::Heard));
    assert_eq!(heard(&mut peer), [11, 21, 31]);
    assert_eq!(noted.try_iter().collect::<Vec<_>>(), [PEER; 3]);
}

/// A request's frames wait for the flush, so that several requests share a batch.
#[test]
fn requests_share_a_batch() {
    let (mut driver, mut peer) = driven(61);
    let mut told = Vec::new();
    driver.submit(In::Say(1), &mut |out, _| told.push(out));
    driver.submit(In::Say(5), &mut |out, _| told.push(out));
    assert_eq!((told, heard(&mut peer)), (vec![Heard::Said(1), Heard::Said(5)], vec![]));
    driver.flush().unwrap();
    assert_eq!(heard(&mut peer), [1, 2, 5, 6]);
}

/// A role with a due wake-up is woken although no frame arrives, and the wait is not longer.
#[test]
fn a_role_is_woken_when_it_asked_for_it() {
    let (mut driver, _peer) = driven(62);
    let soon = driver.clock().after(Duration::from_millis(2));
    driver.submit(In::Alarm(soon), &mut |_, _| ());
    while driver.machine().woken == 0 {
        assert_eq!(driver.turn(FOR_EVER, &mut |_, _| ()).unwrap(), 0);
    }
    assert!(driver.clock().now() >= soon, "not before its time");
}

/// A user cannot execute the role's output, such as to store a line of a log. The role's later actions are
/// not executed, and no frame leaves that confirms them.
#[test]
fn nothing_is_done_behind_a_failure() {
    let (mut driver, mut peer) = driven(63);
    let disk_full = |_, _: &mut UdpLink| Err(io::Error::from(io::ErrorKind::StorageFull));
    let failure = driver.try_submit(In::Say(1), &mut { disk_full }).unwrap_err();
    assert_eq!(failure.kind(), io::ErrorKind::StorageFull);
    driver.flush().unwrap();
    assert_eq!(heard(&mut peer), [1], "what came before it may leave");
    peer.send(PEER, &frame(40));
    peer.flush().unwrap();
    assert_eq!(driver.try_turn(FOR_EVER, &mut { disk_full }).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(heard(&mut peer), [] as [u8; 0]);
    assert_eq!(driver.link().counters().frames_out, 1);
}

/// A role is driven until any holder of the flag stops it.
#[test]
fn a_role_runs_until_it_is_stopped() {
    let (mut driver, mut peer) = driven(64);
    let stop = Stop::new();
    let theirs = stop.clone();
    peer.send(PEER, &frame(9));
    peer.flush().unwrap();
    run(&mut driver, &stop, &mut |out, _| {
        assert_eq!(out, Heard::Heard(9));
        theirs.set();
    })
    .unwrap();
    assert_eq!(heard(&mut peer), [10]);
}
