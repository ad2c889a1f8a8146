//! Paced links over rings and over sockets: sent frames arrive, in order, and never before their time.

use super::*;
use crate::{ShmConfig, ShmLink, UdpConfig, UdpLink};
use farmem_machine::{Event, Machine, Outbox};
use std::path::PathBuf;

const FROM: Port = Port(10);
const TO: Port = Port(20);
const FOR_EVER: Duration = Duration::from_secs(1_000_000);
/// Timeout for a link that no longer holds frames, and waits for the other end.
const LONG: Duration = Duration::from_secs(1);

/// A directory of rings that the test removes.
struct TestDir(PathBuf);

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn gid(test: u8, n: u8) -> Gid {
    Gid::from_v4([127, 70, test, n])
}

fn paced<L: Link>(link: L, waiting: Waiting, profile: &str) -> PacedLink<L> {
    PacedLink::new(link, waiting, profile.parse().unwrap(), [7; 32]).unwrap()
}

/// Returns the paced end and the plain end of a pair of peers.
fn joined<L: Link>((mut a, mut b): (L, L), waiting: Waiting, profile: &str, test: u8) -> (PacedLink<L>, L) {
    a.set_peer(TO, Some(gid(test, 2))).unwrap();
    b.set_peer(FROM, Some(gid(test, 1))).unwrap();
    (paced(a, waiting, profile), b)
}

fn rings(test: u8, waiting: Waiting, profile: &str) -> (TestDir, PacedLink<ShmLink>, ShmLink) {
    let dir = TestDir(format!("/dev/shm/farmem-paced-{}-{test}", std::process::id()).into());
    let open =
        |n| ShmLink::open(&ShmConfig { waiting, ..ShmConfig::new(dir.0.clone(), gid(test, n)) }).unwrap();
    let (a, b) = joined((open(1), open(2)), waiting, profile, test);
    (dir, a, b)
}

fn sockets(test: u8, waiting: Waiting, profile: &str) -> (PacedLink<UdpLink>, UdpLink) {
    let open = |n| UdpLink::open(&UdpConfig { waiting, ..UdpConfig::new(gid(test, n)) }).unwrap();
    joined((open(1), open(2)), waiting, profile, test)
}

fn frame(n: u8) -> Vec<u8> {
    let mut frame = vec![n; 130];
    frame[1] = 0xaa;
    frame
}

/// A link on which forty frames of 200 bytes take 800 us at 80 Mbit/s, and 1 ms from end to end.
const SLOW: &str = "rate=80Mbit/s,delay=200us";
const COUNT: u8 = 40;

/// Sends all frames at once, then only waits; the other end records arrivals and their times.
fn goes_through<L: Link>(mut a: PacedLink<L>, mut b: L) {
    let clock = Clock::start();
    for n in 0..COUNT {
        a.send(TO, &frame(n));
    }
    assert_eq!(a.counters().frames_out, 0, "nothing has left before its time");
    let mut came: Vec<(Port, Vec<u8>, Instant)> = Vec::new();
    let mut silent = 0;
    while came.len() < COUNT.into() {
        if a.next_wake().is_some() {
            silent += a.receive(Wait::AtMost(LONG), &mut |_, _| ()).unwrap();
        }
        // Sent frames may still be on their way through the system.
        let wait = if a.next_wake().is_some() { Wait::No } else { Wait::AtMost(FOR_EVER) };
        let now = clock.now();
        b.receive(wait, &mut |port, bytes| came.push((port, bytes.to_vec(), now))).unwrap();
    }
    assert_eq!(silent, 0);
    for (n, (port, bytes, at)) in (0..).zip(&came) {
        assert_eq!((*port, bytes), (FROM, &frame(n)), "in order");
        let due = Duration::from_micros(20).times(u64::from(n) + 1) + Duration::from_micros(200);
        assert!(at.since(Instant::ZERO) >= due, "{n} came at {at:?}, before {due:?}");
    }
    let counters = a.counters();
    assert_eq!((counters.paced, counters.frames_out, counters.lost()), (40, 40, 0));
    let (frames, late) = held_back();
    assert!(frames >= 40 && late >= counters.late_ns, "of all links of this process");
    assert_eq!(a.next_wake(), None, "nothing is held");
}

/// Rings and sockets share one implementation, so frames leave at their rate over both, sleeping and polling.
#[test]
fn frames_leave_at_their_rate_over_either_link() {
    for (test, waiting) in [(1, Waiting::Block), (2, Waiting::Precise), (3, Waiting::Spin)] {
        let (_dir, a, b) = rings(test, waiting, SLOW);
        goes_through(a, b);
        let (a, b) = sockets(test, waiting, SLOW);
        goes_through(a, b);
    }
}

/// While a thread sleeps at the link, another one sends. The first thread wakes, and held frames leave when
/// they are due.
#[test]
fn a_sleeper_hears_that_something_is_held() {
    for (test, waiting) in [(4, Waiting::Precise), (5, Waiting::Spin)] {
        let (mut a, mut b) = sockets(test, waiting, SLOW);
        let mut sleeper = a.sleeper().unwrap();
        assert!(a.may_sleep());
        let mut parcel = PacedParcel::default();
        a.send(TO, &frame(1));
        a.flush_into(&mut parcel);
        let other = std::thread::spawn(move || parcel.hand_over());
        sleeper.sleep(FOR_EVER).unwrap();
        other.join().unwrap();
        while a.next_wake().is_some() {
            a.receive(Wait::AtMost(LONG), &mut |_, _| ()).unwrap();
        }
        assert_eq!(b.receive(Wait::AtMost(FOR_EVER), &mut |_, _| ()).unwrap(), 1);
    }
}

/// Frames beyond the queue, frames that the profile drops, and invalid frames are counted; frames held at the
/// end leave.
#[test]
fn what_is_lost_is_counted_and_the_rest_arrives() {
    let (mut a, mut b) = sockets(6, Waiting::Precise, "rate=1Mbit/s,loss=50%");
    for n in 0..100 {
        a.send(TO, &frame(n));
    }
    a.send(TO, &[1; 3]);
    a.send(TO, &vec![0; FRAME_MAX + 1]);
    let counters = a.counters();
    assert_eq!((counters.short, counters.long, counters.frames_out), (1, 1, 0));
    let lost = counters.lost_by_profile;
    assert!((20..80).contains(&lost), "{lost} of 100");
    assert_eq!(counters.lost(), lost + 2);
    drop(a);
    let mut came = 0;
    while b.receive(Wait::No, &mut |_, _| came += 1).unwrap() > 0 {}
    assert_eq!(came, 100 - lost);
}

/// A role that answers each frame once.
#[derive(Debug)]
struct Echo;

impl Machine for Echo {
    type In = ();
    type Out = ();
    type Note = ();
    fn handle(&mut self, _: Instant, event: Event<'_, ()>, out: &mut Outbox<(), ()>) {
        if let Event::Frame { port, bytes } = event {
            out.send(port, bytes);
        }
    }
    fn next_wake(&self) -> Option<Instant> {
        None
    }
    fn check(&self) {}
}

/// A driver whose role is idle wakes for its link: the answer leaves although no frame arrives, and a sleep
/// ends in time for it.
#[test]
fn a_driver_wakes_for_its_link() {
    let (a, mut b) = sockets(7, Waiting::Precise, "delay=300us");
    let mut driver = crate::Driver::new(Echo, a, Clock::start());
    driver.link_mut().set_peer(FROM, Some(gid(7, 2))).unwrap();
    b.send(FROM, &frame(3));
    b.flush().unwrap();
    assert_eq!(driver.turn(Wait::AtMost(FOR_EVER), &mut |(), _| ()).unwrap(), 1);
    if let Some(sleep) = driver.may_sleep(FOR_EVER) {
        assert!(sleep <= Duration::from_micros(300), "{sleep:?}");
    }
    let mut came = Vec::new();
    while driver.link_mut().next_wake().is_some() {
        assert_eq!(driver.turn(Wait::AtMost(LONG), &mut |(), _| ()).unwrap(), 0);
    }
    b.receive(Wait::AtMost(FOR_EVER), &mut |_, bytes| came.push(bytes.to_vec())).unwrap();
    assert_eq!(came, [frame(3)]);
}
