//! Connections through the switch (PROTOCOL 11.14): each operation names one, which leads to one node and
//! stays open until closed.

use super::*;
use crate::SetupFault;
use farmem_transport::rc::Work;
use farmem_wire::{Aeth, Extension, Nak, Syndrome};

/// A connection of Alice, with the switch as its peer.
fn through(number: u32) -> rc::RequesterConfig {
    rc::RequesterConfig { port: Port::SWITCH, ..connection(ALICE, 1, number).rc }
}

fn opened(number: u32) -> (Bench, Qpn) {
    let mut bench = Bench::with_sessions();
    let rc = through(number);
    bench.ask(HostRequest::Open { domain: ALICE, rc });
    assert!(bench.host.is_open(rc.qpn) && bench.notes.is_empty());
    (bench, rc.qpn)
}

fn keyed(over: Qpn, key: u64) -> Op {
    Op::Through { over, work: Work::KeyedRead { key, buf: vec![0; 8] } }
}

fn aeth(syndrome: Syndrome) -> Extension {
    Extension::Aeth(Aeth { syndrome, msn: Psn::new(0) })
}

impl Bench {
    /// Delivers a packet of the peer, from a port.
    fn responds(&mut self, port: Port, qpn: Qpn, opcode: Opcode, psn: u32, ext: Extension, payload: &[u8]) {
        let mut frame = vec![];
        let bth = Bth::new(opcode, qpn, Psn::new(Psn::MAX - 1).plus(psn));
        Packet { bth, ext, payload }.emit(&mut frame);
        self.hear(port, &frame);
    }

    fn ends(&mut self) -> Vec<(u64, Result<Answer, Failure>)> {
        take(&mut self.done).into_iter().map(|done| (done.ticket, done.result)).collect()
    }
}

/// Requests go to the switch, and only answers from the switch end them, not those from the node itself.
#[test]
fn its_packets_go_to_the_switch_and_come_from_it() {
    let (mut bench, over) = opened(1);
    let ticket = bench.submit(keyed(over, 77));
    let [(port, frame)] = &take(&mut bench.sent)[..] else { panic!("one frame") };
    let packet = Packet::parse(frame).unwrap();
    let Extension::Reth(reth) = packet.ext else { panic!("a READ REQUEST") };
    assert_eq!((*port, packet.bth.dest_qp.get(), reth.va.0, reth.rkey.0), (Port::SWITCH, 0x2001, 77, 0));
    let only = Opcode::ReadResponseOnly;
    bench.responds(Port::node(1), over, only, 0, aeth(Syndrome::Ack), b"from nde");
    assert!(bench.done.is_empty());
    bench.responds(Port::SWITCH, over, only, 0, aeth(Syndrome::Ack), b"bytes!!!");
    let [Done { ticket: ended, result, buf }] = &take(&mut bench.done)[..] else { panic!("one end") };
    assert_eq!((*ended, *result, &buf[..]), (ticket, Ok(Answer::Done { old: 0 }), &b"bytes!!!"[..]));
    assert_eq!((bench.host.outstanding(), bench.control_requests.len()), (0, 0));
}

/// Another domain cannot use the connection by its number, nor can an operation by an address.
#[test]
fn it_is_one_domain_s_and_is_named() {
    let (mut bench, over) = opened(1);
    let ticket = bench.submit_as(BOB, keyed(over, 77));
    let addr = VirtAddr(77);
    assert_eq!(bench.ends(), [(ticket, Err(Failure::NotConnected { addr }))]);
    let ticket = bench.submit(keyed(Qpn::new(0x1002), 77));
    assert_eq!(bench.ends(), [(ticket, Err(Failure::NotConnected { addr }))]);
    let addr = VirtAddr(BASE_1);
    let ticket = bench.submit(Op::Read { addr, buf: vec![0; 8] });
    assert_eq!(bench.ends(), [(ticket, Err(Failure::NotConnected { addr }))], "it leads to no address");
    let misaligned = Op::Through { over, work: Work::FetchAdd { addr: VirtAddr(BASE_1 + 4), add: 1 } };
    let ticket = bench.submit(misaligned);
    let addr = VirtAddr(BASE_1 + 4);
    assert_eq!(bench.ends(), [(ticket, Err(Failure::Misaligned { addr }))]);
    assert!(bench.sent.is_empty() && bench.host.is_open(over));
}

/// A refusal breaks the connection for good: the host requests no repair, and later operations are flushed
/// until it is closed.
#[test]
fn what_broke_stays_broken_until_it_is_closed() {
    let (mut bench, over) = opened(1);
    let tickets: Vec<u64> = (0..3).map(|key| bench.submit(keyed(over, key))).collect();
    bench.responds(Port::SWITCH, over, Opcode::Acknowledge, 0, aeth(Syndrome::Nak(Nak::RemoteAccess)), b"");
    let flushed = Err(Failure::Connection(rc::Failure::Flushed));
    let refused = Err(Failure::Connection(rc::Failure::RemoteAccess));
    assert_eq!(bench.ends(), [(tickets[0], refused), (tickets[1], flushed), (tickets[2], flushed)]);
    assert!(!bench.host.is_open(over) && bench.control_requests.is_empty());
    let later = bench.submit(keyed(over, 9));
    assert_eq!(bench.ends(), [(later, flushed)]);
    bench.ask(HostRequest::Close { qpn: over });
    bench.ask(HostRequest::Open { domain: ALICE, rc: through(2) });
    bench.sent.clear();
    bench.submit(keyed(Qpn::new(0x1002), 9));
    assert_eq!(bench.sent.len(), 1);
    // Closed with an operation in flight, closed twice, and never opened.
    for _ in 0..2 {
        bench.ask(HostRequest::Close { qpn: Qpn::new(0x1002) });
    }
    bench.ask(HostRequest::Close { qpn: Qpn::new(0x1fff) });
    assert_eq!(bench.ends(), [(later + 1, flushed)]);
    assert_eq!(bench.host.outstanding(), 0);
}

/// Without an answer the same packet is sent again, then the connection breaks.
#[test]
fn silence_ends_it() {
    let (mut bench, over) = opened(1);
    let ticket = bench.submit(keyed(over, 5));
    let first = take(&mut bench.sent);
    for _ in 0..2 {
        bench.wake();
        assert_eq!(take(&mut bench.sent), first);
    }
    bench.wake();
    assert_eq!(bench.ends(), [(ticket, Err(Failure::Connection(rc::Failure::RetriesExceeded)))]);
    assert_eq!(bench.host.next_wake(), None);
}

/// PROTOCOL 11.9: a queue pair belongs to one connection of either kind, and their number is limited. A
/// connection that replaces another flushes it.
#[test]
fn queue_pairs_have_one_use() {
    let mut bench = Bench::new(Config { connections_max: 2, ..config() });
    let open = |rc| HostRequest::Open { domain: ALICE, rc };
    bench.ask(HostRequest::Connect(connection(ALICE, 1, 1)));
    let taken = [Note::Rejected(SetupFault::QueuePairTaken)];
    bench.ask(open(through(1)));
    assert_eq!(take(&mut bench.notes), taken);
    bench.ask(open(rc::RequesterConfig { qpn: HOME.qpn, ..through(2) }));
    assert_eq!(take(&mut bench.notes), taken);
    bench.ask(open(through(2)));
    bench.ask(open(through(3)));
    bench.ask(open(through(4)));
    assert_eq!(take(&mut bench.notes), [Note::Rejected(SetupFault::Full)]);
    bench.ask(HostRequest::Connect(connection(ALICE, 2, 2)));
    assert_eq!(take(&mut bench.notes), taken);
    let over = Qpn::new(0x1002);
    let ticket = bench.submit(keyed(over, 1));
    bench.ask(open(through(2)));
    assert_eq!(bench.ends(), [(ticket, Err(Failure::Connection(rc::Failure::Flushed)))]);
    assert!(bench.host.is_open(over));
    // PROTOCOL 8.8: a host that rejoined has none.
    bench.ask(HostRequest::Joined { generation: 3, home: HOME });
    assert!(!bench.host.is_open(over) && !bench.host.is_open(Qpn::new(0x1003)));
    bench.notes.clear();
    bench.responds(Port::SWITCH, over, Opcode::Acknowledge, 0, aeth(Syndrome::Ack), b"");
    assert_eq!(take(&mut bench.notes), [Note::NotForUs]);
}
