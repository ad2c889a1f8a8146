//! One-sided verbs against real responders, and the connections that carry them.

use super::*;
use crate::{Located, Piece, Reply, SetupFault};
use farmem_transport::{Access, AccessError, Memory};
use farmem_wire::Perm;

/// A memory node as plain bytes from its base on, all of it Alice's.
pub(super) struct Bytes {
    pub(super) base: u64,
    pub(super) bytes: Vec<u8>,
}

impl Bytes {
    fn at(&self, addr: VirtAddr, len: usize) -> core::ops::Range<usize> {
        let start = usize::try_from(addr.0 - self.base).unwrap();
        start..start + len
    }

    fn exchange(&mut self, addr: VirtAddr, change: impl FnOnce(u64) -> u64) -> u64 {
        let at = self.at(addr, 8);
        let word = &mut self.bytes[at];
        let old = u64::from_le_bytes(word.try_into().unwrap());
        word.copy_from_slice(&change(old).to_le_bytes());
        old
    }
}

impl Memory for Bytes {
    fn check(&self, access: &Access) -> Result<(), AccessError> {
        let start = access.addr.0.checked_sub(self.base).ok_or(AccessError::NotMapped)?;
        let inside = start + u64::from(access.len) <= self.bytes.len() as u64;
        let read_only = access.perm == Perm::ReadWrite && start >= RANGE_LEN / 2;
        match (inside, read_only) {
            (false, _) => Err(AccessError::OutOfBounds),
            (true, true) => Err(AccessError::NoPermission),
            (true, false) => Ok(()),
        }
    }

    fn read(&self, addr: VirtAddr, len: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes[self.at(addr, len as usize)]);
    }

    fn load(&self, addr: VirtAddr, window: &mut [u8]) {
        window.copy_from_slice(&self.bytes[self.at(addr, window.len())]);
    }

    fn write(&mut self, addr: VirtAddr, data: &[u8]) {
        let at = self.at(addr, data.len());
        self.bytes[at].copy_from_slice(data);
    }

    fn cmp_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> u64 {
        self.exchange(addr, |old| if old == compare { swap } else { old })
    }

    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> u64 {
        self.exchange(addr, |old| old.wrapping_add(add))
    }
}

/// A memory node: its bytes and the responder half of one connection.
pub(super) struct Node {
    pub(super) port: Port,
    responder: rc::Responder,
    pub(super) memory: Bytes,
    out: Outbox<(), rc::Note>,
}

impl Node {
    pub(super) fn behind(connection: &Connection) -> Self {
        let rc = connection.rc;
        let config = rc::ResponderConfig {
            qpn: rc.peer_qpn,
            peer_qpn: rc.qpn,
            port: Port::host(HOST.0),
            expected_psn: rc.first_psn,
            rkey: rc.rkey,
            domain: connection.domain,
            pmtu: rc.pmtu,
        };
        let len = usize::try_from(RANGE_LEN).unwrap();
        let memory = Bytes { base: connection.base.0, bytes: vec![0; len] };
        Self { port: rc.port, responder: rc::Responder::new(config), memory, out: Outbox::new() }
    }
}

impl Node {
    /// Delivers the host's frames; none of the node's answers arrives.
    pub(super) fn deaf(&mut self, bench: &mut Bench) {
        for (_, frame) in take(&mut bench.sent) {
            self.hears(&frame);
        }
        self.out = Outbox::new();
    }

    /// Executes a request of the host.
    fn hears(&mut self, frame: &[u8]) {
        let packet = Packet::parse(frame).unwrap();
        self.responder.on_packet(Port::host(HOST.0), &packet, &mut self.memory, &mut self.out);
        self.responder.flush(&mut self.out);
    }

    /// Returns the answers since the last call.
    fn answers(&mut self) -> Vec<Vec<u8>> {
        let mut answers = vec![];
        self.out.drain(|action| {
            if let Action::Send { frame, .. } = action {
                answers.push(frame.to_vec());
            }
        });
        answers
    }
}

impl Bench {
    /// A host with a connection of Alice to node 1.
    pub(super) fn connected() -> (Self, Node) {
        let (mut bench, connection) = (Self::new(config()), connection(ALICE, 1, 1));
        bench.ask(HostRequest::Connect(connection));
        (bench, Node::behind(&connection))
    }

    /// Carries frames between host and node until neither has any.
    pub(super) fn talk(&mut self, node: &mut Node) {
        while !self.sent.is_empty() {
            for (port, frame) in take(&mut self.sent) {
                assert_eq!(port, node.port, "verbs go straight to the node");
                node.hears(&frame);
            }
            node.answers().iter().for_each(|answer| self.hear(node.port, answer));
        }
    }

    /// Submits an operation of Alice and runs it to its end.
    fn carry_out(&mut self, op: Op, node: &mut Node) -> Done {
        let ticket = self.submit(op);
        self.talk(node);
        let done = self.ended();
        assert_eq!(done.ticket, ticket);
        done
    }
}

pub(super) fn old(done: &Done) -> u64 {
    match done.result {
        Ok(Answer::Done { old }) => old,
        ref other => panic!("a verb that was carried out, not {other:?}"),
    }
}

/// Reads return written bytes, across packets and the PSN's wrap; atomics change words; buffers come back.
#[test]
fn reads_writes_and_atomics_reach_memory() {
    let (mut bench, mut node) = Bench::connected();
    let data: Vec<u8> = (0..3000_u32).map(|i| (i % 251).to_le_bytes()[0]).collect();
    let done = bench.carry_out(write(BASE_1 + 5, &data), &mut node);
    assert_eq!((old(&done), &done.buf), (0, &data), "the buffer is back for reuse");
    assert_eq!(node.memory.bytes[5..3005], data);
    assert_eq!(bench.carry_out(read(BASE_1 + 5, 3000), &mut node).buf, data);

    let addr = VirtAddr(BASE_1 + 0x1000);
    let add = |add| Op::FetchAdd { addr, add };
    assert_eq!(old(&bench.carry_out(add(41), &mut node)), 0);
    assert_eq!(old(&bench.carry_out(add(1), &mut node)), 41);
    let swap = |compare| Op::CompareSwap { addr, compare, swap: 7 };
    assert_eq!(old(&bench.carry_out(swap(9), &mut node)), 42, "no match, no swap");
    assert_eq!(old(&bench.carry_out(swap(42), &mut node)), 42);
    assert_eq!(node.memory.bytes[0x1000..0x1008], 7_u64.to_le_bytes());
    assert_eq!((bench.host.outstanding(), bench.took_notes()), (0, vec![]));
}

/// Two nodes, two domains: each operation uses the connection of its domain to the owner of its address, and
/// no other.
#[test]
pub(super) fn an_address_finds_its_connection() {
    let mut bench = Bench::new(config());
    let lines = [connection(ALICE, 1, 1), connection(ALICE, 2, 2), connection(BOB, 1, 3)];
    lines.iter().for_each(|line| bench.ask(HostRequest::Connect(*line)));
    let cases =
        [(ALICE, BASE_1, 0), (ALICE, BASE_2, 1), (BOB, BASE_1, 2), (ALICE, BASE_1 + RANGE_LEN - 8, 0)];
    for (domain, addr, line) in cases {
        bench.submit_as(domain, read(addr, 8));
        let [(port, frame)] = &take(&mut bench.sent)[..] else { panic!("one request") };
        let packet = Packet::parse(frame).unwrap();
        assert_eq!((*port, packet.bth.dest_qp), (lines[line].rc.port, lines[line].rc.peer_qpn));
    }
    assert_eq!(bench.host.outstanding(), 4);
    for (domain, addr) in
        [(BOB, BASE_2), (Domain(9), BASE_1), (ALICE, BASE_1 - 1), (ALICE, BASE_1 + RANGE_LEN)]
    {
        bench.submit_as(domain, read(addr, 8));
        assert_eq!(bench.refused(), Failure::NotConnected { addr: VirtAddr(addr) });
    }
}

/// An access beyond the end of a node's range is refused by the host itself.
#[test]
pub(super) fn a_range_that_leaves_its_node_is_refused_at_home() {
    let (mut bench, mut node) = Bench::connected();
    let last = BASE_1 + RANGE_LEN - 4;
    let addr = VirtAddr(last);
    let ops = [
        read(last, 5),
        write(last, &[1; 5]),
        Op::FetchAdd { addr, add: 1 },
        Op::CompareSwap { addr, compare: 0, swap: 1 },
    ];
    for op in ops {
        bench.submit(op);
        assert_eq!(bench.refused(), Failure::OutOfBounds { addr });
    }
    assert_eq!(bench.carry_out(read(last, 4), &mut node).buf, [0; 4], "up to the last byte all is well");
}

/// The host refuses an atomic on a word that is not 8-byte aligned. Operations in flight on the connection
/// proceed (PROTOCOL 11.2).
#[test]
pub(super) fn a_misaligned_atomic_is_refused_at_home() {
    let (mut bench, mut node) = Bench::connected();
    let under_way = bench.submit(read(BASE_1, 8));
    let request = take(&mut bench.sent);
    for addr in [BASE_1 + 1, BASE_1 + 4, BASE_1 + 7].map(VirtAddr) {
        for op in [Op::FetchAdd { addr, add: 1 }, Op::CompareSwap { addr, compare: 0, swap: 1 }] {
            bench.submit(op);
            assert_eq!(bench.refused(), Failure::Misaligned { addr });
        }
    }
    bench.sent = request;
    bench.talk(&mut node);
    let done = bench.ended();
    assert_eq!((done.ticket, done.result), (under_way, Ok(Answer::Done { old: 0 })));
    let aligned = Op::FetchAdd { addr: VirtAddr(BASE_1 + 8), add: 1 };
    assert_eq!(bench.carry_out(aligned, &mut node).result, Ok(Answer::Done { old: 0 }));
}

/// A range at the very end of the address space: no computation overflows.
#[test]
fn a_range_that_wraps_holds_no_surprise() {
    let mut bench = Bench::new(config());
    let line = Connection { base: VirtAddr(u64::MAX - 7), len: 16, ..connection(ALICE, 1, 1) };
    bench.ask(HostRequest::Connect(line));
    for (addr, len) in [(u64::MAX - 7, 17), (4, 5), (7, 2)] {
        bench.submit(read(addr, len));
        assert_eq!(bench.refused(), Failure::OutOfBounds { addr: VirtAddr(addr) });
    }
}

/// A connection holds as many operations as its window and queue. Beyond that the caller gets an error and
/// its buffer back, and nothing is lost.
#[test]
pub(super) fn a_full_queue_gives_the_operation_back() {
    let (mut bench, mut node) = Bench::connected();
    // Four READs are in flight (the depth), four wait (the queue).
    for i in 0..8 {
        bench.submit(read(BASE_1 + i, 1));
    }
    assert_eq!((bench.done.len(), bench.host.outstanding()), (0, 8));
    bench.submit(write(BASE_1, b"no room"));
    let done = bench.ended();
    assert_eq!((done.result, &done.buf[..]), (Err(Failure::QueueFull), &b"no room"[..]));
    bench.talk(&mut node);
    let tickets: Vec<u64> = take(&mut bench.done).iter().map(|done| done.ticket).collect();
    assert_eq!(tickets, [1, 2, 3, 4, 5, 6, 7, 8], "each ends once, in order");
}

/// A node's refusal breaks the connection: later operations wait until a new one replaces it.
#[test]
fn a_refusal_breaks_the_connection_and_a_new_one_mends_it() {
    let (mut bench, mut node) = Bench::connected();
    let read_only = BASE_1 + RANGE_LEN / 2;
    let refused = bench.submit(write(read_only, b"x"));
    bench.talk(&mut node);
    assert_eq!(bench.took_notes(), [Note::Rc(rc::Note::Broken(rc::Failure::RemoteAccess))]);
    bench.reply(ControlRequestKind::Locate { addr: VirtAddr(read_only) }, Reply::Unavailable);
    let done = bench.ended();
    assert_eq!((done.ticket, done.result), (refused, Err(Failure::Connection(rc::Failure::RemoteAccess))));
    assert!(bench.host.is_down(ALICE, NodeId(1)) && !bench.host.is_down(BOB, NodeId(1)));
    let waits = bench.submit(read(BASE_1, 8));
    assert!(bench.done.is_empty() && bench.sent.is_empty());
    bench.reply(ControlRequestKind::Disconnect { qpn: connection(ALICE, 1, 1).rc.qpn }, Reply::Disconnected);
    assert_eq!(bench.kind(), ControlRequestKind::Connect { domain: ALICE, node: NodeId(1) });

    let anew = connection(ALICE, 1, 2);
    bench.ask(HostRequest::Connect(anew));
    assert!(!bench.host.is_down(ALICE, NodeId(1)));
    bench.talk(&mut Node::behind(&anew));
    let done = bench.ended();
    assert_eq!((done.ticket, done.buf), (waits, vec![0; 8]));
}

/// The node restarted while operations were in flight. Each operation is flushed once, packets of the old
/// connection are ignored, and the new connection works.
#[test]
pub(super) fn a_new_connection_flushes_what_the_old_one_had() {
    let (mut bench, mut node) = Bench::connected();
    let tickets: Vec<u64> = (0..6).map(|i| bench.submit(read(BASE_1 + i, 1))).collect();
    let late = bench.sent[0].clone();
    let anew = connection(ALICE, 1, 2);
    bench.ask(HostRequest::Connect(anew));
    let flushed = take(&mut bench.done);
    assert_eq!(flushed.iter().map(|done| done.ticket).collect::<Vec<_>>(), tickets);
    assert!(
        flushed
            .iter()
            .all(|d| d.result == Err(Failure::Connection(rc::Failure::Flushed)) && d.buf.len() == 1)
    );
    assert_eq!(bench.took_notes(), [Note::Rc(rc::Note::Broken(rc::Failure::Flushed))]);

    bench.sent = vec![late];
    bench.talk(&mut node);
    assert_eq!((bench.took_notes(), bench.done.len()), (vec![Note::NotForUs], 0));
    assert_eq!(bench.carry_out(read(BASE_1, 8), &mut Node::behind(&anew)).buf, [0; 8]);
}

/// Node 1 left and node 2 has its addresses. The newer connection has them, whichever was used last.
#[test]
fn addresses_move_to_another_node() {
    let (mut bench, mut node) = Bench::connected();
    bench.carry_out(read(BASE_1, 8), &mut node);
    bench.submit(read(BASE_1, 8));
    let moved =
        Connection { base: VirtAddr(BASE_1 - RANGE_LEN), len: 2 * RANGE_LEN, ..connection(ALICE, 2, 2) };
    bench.ask(HostRequest::Connect(connection(BOB, 1, 3)));
    assert_eq!(bench.done.len(), 0, "another domain's connection is another matter");
    bench.ask(HostRequest::Connect(moved));
    assert_eq!(bench.ended().result, Err(Failure::Connection(rc::Failure::Flushed)));
    bench.sent.clear();
    bench.submit(read(BASE_1, 8));
    assert_eq!(bench.sent[0].0, Port::node(2));

    // Node 2 now has other addresses, and these no longer.
    bench.ask(HostRequest::Connect(Connection { base: VirtAddr(BASE_2), ..connection(ALICE, 2, 4) }));
    assert_eq!(bench.ended().result, Err(Failure::Connection(rc::Failure::Flushed)));
    bench.sent.clear();
    bench.submit(read(BASE_1, 8));
    assert_eq!(bench.refused(), Failure::NotConnected { addr: VirtAddr(BASE_1) });
}

/// The control plane hands out each queue pair number once and limits a host's connections. If it fails to,
/// the host's state is unchanged.
#[test]
pub(super) fn what_cannot_be_set_up_changes_nothing() {
    let mut bench = Bench::new(Config { connections_max: 2, ..config() });
    let (first, second) = (connection(ALICE, 1, 1), connection(BOB, 1, 2));
    bench.ask(HostRequest::Connect(first));
    bench.ask(HostRequest::Connect(second));
    bench.submit(read(BASE_1, 8));
    let mut own = connection(ALICE, 2, 3);
    own.rc.qpn = HOME.qpn;
    let cases = [
        (connection(ALICE, 2, 3), SetupFault::Full),
        (connection(ALICE, 2, 2), SetupFault::QueuePairTaken),
        (connection(ALICE, 1, 2), SetupFault::QueuePairTaken),
        (own, SetupFault::QueuePairTaken),
    ];
    for (connection, fault) in cases {
        bench.ask(HostRequest::Connect(connection));
        assert_eq!(bench.took_notes(), [Note::Rejected(fault)]);
    }
    assert_eq!((bench.done.len(), bench.host.outstanding()), (0, 1));
    let mut node = Node::behind(&first);
    bench.talk(&mut node);
    assert_eq!(bench.ended().buf, [0; 8]);
    // A replacement always has room, and the number of the replaced connection is free.
    bench.ask(HostRequest::Connect(first));
    assert_eq!(bench.took_notes(), [Note::Rc(rc::Note::Broken(rc::Failure::Flushed))]);

    bench.open(ALICE, ALICES);
    bench.open(BOB, BOBS);
    bench.open(Domain(9), ALICES);
    assert_eq!(bench.took_notes(), [Note::Rejected(SetupFault::Full)]);
    bench.open(ALICE, ALICES);
    assert_eq!(bench.took_notes(), [], "a session again is no further one");
    bench.submit_as(Domain(9), region_read(BASE_1, 8));
    assert_eq!(bench.refused(), Failure::NoSession);
}

/// The node is unreachable: the request is sent three times in all, then the connection breaks and flushes
/// all its requests.
#[test]
fn a_node_that_is_gone_costs_its_connection() {
    let (mut bench, _) = Bench::connected();
    bench.submit(read(BASE_1, 8));
    bench.submit(write(BASE_1 + 8, b"more"));
    let first = take(&mut bench.sent);
    for _ in 0..2 {
        bench.wake();
        assert_eq!(take(&mut bench.sent), first, "the same again");
        assert_eq!(bench.took_notes(), [Note::Rc(rc::Note::TimedOut)]);
    }
    bench.wake();
    bench.reply(ControlRequestKind::Locate { addr: VirtAddr(BASE_1) }, Reply::Unavailable);
    let results: Vec<_> = take(&mut bench.done).into_iter().map(|done| (done.ticket, done.result)).collect();
    let failed = |failure| Err(Failure::Connection(failure));
    assert_eq!(results, [(2, failed(rc::Failure::Flushed)), (1, failed(rc::Failure::RetriesExceeded))]);
    assert_eq!(bench.host.next_wake(), None);
}

/// An answer over a connection is valid only from the connection's node (PROTOCOL 4.1).
#[test]
fn a_stranger_cannot_answer_for_a_node() {
    let (mut bench, mut node) = Bench::connected();
    bench.submit(read(BASE_1, 8));
    node.port = Port::UNKNOWN;
    bench.sent.iter_mut().for_each(|(port, _)| *port = Port::UNKNOWN);
    bench.talk(&mut node);
    assert_eq!(bench.took_notes(), [Note::Rc(rc::Note::Dropped(rc::DropReason::WrongPort))]);
    assert_eq!((bench.done.len(), bench.host.outstanding()), (0, 1));
}

/// The node's answer arrives for another queue pair than the requester's: it is ignored, whether the host has
/// that queue pair or not. The unmodified answer ends the operation (PROTOCOL 4.1).
#[test]
fn an_answer_to_another_queue_pair_is_not_heard() {
    let (mut bench, mut node) = Bench::connected();
    let other = connection(ALICE, 2, 2);
    bench.ask(HostRequest::Connect(other));
    bench.submit(read(BASE_1, 8));
    let [(port, request)] = <[_; 1]>::try_from(take(&mut bench.sent)).expect("one request");
    node.hears(&request);
    let answers = node.answers();
    let [answer] = &answers[..] else { panic!("one answer") };
    let right = Packet::parse(answer).unwrap();
    let to = |dest_qp: Qpn| {
        let mut frame = vec![];
        Packet { bth: Bth { dest_qp, ..right.bth }, ..right }.emit(&mut frame);
        frame
    };
    bench.hear(port, &to(Qpn::new(0x7777)));
    assert_eq!(bench.took_notes(), [Note::NotForUs]);
    bench.hear(port, &to(other.rc.qpn));
    assert_eq!(bench.took_notes(), [Note::Rc(rc::Note::Dropped(rc::DropReason::WrongPort))]);
    assert_eq!((bench.done.len(), bench.host.outstanding()), (0, 1));
    bench.hear(port, &to(right.bth.dest_qp));
    assert_eq!((bench.ended().result.is_ok(), bench.host.outstanding()), (true, 0));
}

/// Carries frames between the host and several nodes until none has any.
pub(super) fn talk_to(bench: &mut Bench, nodes: &mut [Node]) {
    while !bench.sent.is_empty() {
        for (port, frame) in take(&mut bench.sent) {
            let node = nodes.iter_mut().find(|node| node.port == port).expect("one of the nodes");
            node.hears(&frame);
            node.answers().iter().for_each(|answer| bench.hear(port, answer));
        }
    }
}

/// A part of one node's range is at another node: reads and writes that cross the seams go to both in
/// segments, and end once, with all their bytes. An atomic goes to the node of its word. The latest route
/// counts (PROTOCOL 11.10).
#[test]
fn what_moved_is_asked_for_where_it_is() {
    let (mut bench, one) = Bench::connected();
    let second = connection(ALICE, 2, 2);
    bench.ask(HostRequest::Connect(second));
    let mut two = Node::behind(&second);
    two.memory.base = BASE_1;
    let mut nodes = [one, two];
    let route = |base: u64, len, node: Option<u16>| HostRequest::Route {
        base: VirtAddr(BASE_1 + base),
        len,
        node: node.map(NodeId),
    };
    let piece = Piece { base: VirtAddr(BASE_1 + 512), len: 512, node: NodeId(2) };
    let found = Located { base: VirtAddr(BASE_1), len: RANGE_LEN, pieces: vec![piece], lost: vec![] };
    bench.ask(route(512, 512, Some(2)));
    let data: Vec<u8> = (0..1200_u32).map(|i| (i % 251).to_le_bytes()[0]).collect();
    let ticket = bench.submit(write(BASE_1 + 100, &data));
    // No node sees the whole operation: the control plane says that it lies in one allocation (PROTOCOL
    // 7.45).
    assert!(bench.sent.is_empty());
    bench.reply(ControlRequestKind::Locate { addr: VirtAddr(BASE_1 + 100) }, Reply::Located(found));
    talk_to(&mut bench, &mut nodes);
    let done = bench.ended();
    assert_eq!((done.ticket, old(&done), &done.buf), (ticket, 0, &data));
    let [one, two] = &nodes;
    assert_eq!(one.memory.bytes[100..512], data[..412]);
    assert_eq!(two.memory.bytes[512..1024], data[412..924]);
    assert_eq!(one.memory.bytes[1024..1300], data[924..]);
    assert!(one.memory.bytes[512..1024].iter().all(|&byte| byte == 0), "nothing of it at the other node");

    let ticket = bench.submit(read(BASE_1 + 100, 1200));
    talk_to(&mut bench, &mut nodes);
    let done = bench.ended();
    assert!((done.ticket, old(&done)) == (ticket, 0) && done.buf == data);
    bench.submit(Op::FetchAdd { addr: VirtAddr(BASE_1 + 600), add: 0 });
    talk_to(&mut bench, &mut nodes);
    assert_eq!(old(&bench.ended()), u64::from_le_bytes(data[500..508].try_into().unwrap()));

    // A refused segment fails the whole operation, once all segments have ended.
    nodes[1].memory.base = 0;
    bench.submit(read(BASE_1 + 400, 300));
    talk_to(&mut bench, &mut nodes);
    bench.reply(ControlRequestKind::Locate { addr: VirtAddr(BASE_1 + 512) }, Reply::NotFound);
    assert_eq!(bench.ended().result, Err(Failure::Connection(rc::Failure::RemoteAccess)));
    assert!(bench.host.is_down(ALICE, NodeId(2)) && !bench.host.is_down(ALICE, NodeId(1)));

    // A new route of a part forgets the old route of the rest.
    bench.ask(route(600, 8, None));
    bench.submit(read(BASE_1 + 512, 512));
    talk_to(&mut bench, &mut nodes);
    assert_eq!(old(&bench.ended()), 0);
    bench.ask(route(0, 64, Some(3)));
    bench.submit(read(BASE_1, 8));
    bench.reply(ControlRequestKind::Connect { domain: ALICE, node: NodeId(3) }, Reply::NotFound);
    assert_eq!(bench.refused(), Failure::Unreachable { addr: VirtAddr(BASE_1) });
    let last = BASE_1 + RANGE_LEN - 4;
    bench.submit(read(last, 8));
    assert_eq!(
        bench.refused(),
        Failure::OutOfBounds { addr: VirtAddr(last) },
        "the range ends here all the same"
    );
}
