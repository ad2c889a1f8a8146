//! Pages that move from one node to another: two nodes, and the frames between them (PROTOCOL 7.37 to 7.41).

use super::verbs::Client;
use super::*;
use crate::PUSHED_MAX;
use farmem_machine::Duration;
use farmem_transport::rc;
use farmem_wire::message::{
    Access, DirectoryBody, DirectoryMessage, FetchId, HostSet, MoveBody, MoveMessage, PAGE_LEN, Page,
    PageBody, PageMessage, PageState, Part, Read, Seq, Sweep, UNKNOWN_MOVE,
};

const OLD: Port = Port::node(1);
const NEW: Port = Port::node(2);
/// The new node's own range.
const THERE: u64 = 0x2000_0000;
/// Offset of the pages in the new node's store.
const PLACE: u64 = 0x3000;
const PAGE: u64 = PAGE_LEN as u64;
const NUMBER: u64 = 77;

/// A node with the pages, and the node that they move to.
struct Pair {
    old: Bench,
    new: Bench,
    now: Instant,
    /// Number of frames between the two so far; every n-th is lost.
    carried: u32,
    lose_every: u32,
}

impl Pair {
    fn new(lose_every: u32) -> Self {
        let mut new = Bench::empty(Budget::default());
        let grants =
            |domain, at, perm| Update::Protect { domain, base: addr(at), len: 0x1000, perm, vma_log2: 64 };
        let updates = [
            peer(Port::SWITCH, 1),
            peer(Port::host(HOST.0), 3),
            Update::Range { base: VirtAddr(THERE), len: 0x7000, offset: 0 },
            grants(ALICE, 0, Perm::ReadWrite),
            grants(ALICE, 0x1000, Perm::Read),
            grants(BOB, 0x2000, Perm::ReadWrite),
        ];
        assert_eq!(new.update(&updates), (Status::Ok, 0));
        Self { old: Bench::ready(), new, now: Instant::ZERO, carried: 0, lose_every }
    }

    fn arrive(&mut self, size_log2: u8) {
        let ud::Endpoint { qpn, qkey } = HOME.endpoint;
        let gid = Gid::from_v4([10, 0, 0, 21]);
        let (base, offset, number, port) = (BASE, PLACE, NUMBER, OLD.0);
        let arrive = Update::Arrive { base, size_log2, offset, number, port, gid, qpn, qkey };
        assert_eq!(self.new.update(&[arrive]), (Status::Ok, 0));
        assert_eq!(self.new.peers.last(), Some(&PeerChange { port: OLD, gid: Some(gid) }));
    }

    /// Pushes the first pages until all are pushed.
    fn leave(&mut self, size_log2: u8) {
        let ud::Endpoint { qpn, qkey } = HOME.endpoint;
        let (gid, number, port) = (Gid::from_v4([10, 0, 0, 22]), NUMBER, NEW.0);
        let leave = Update::Leave { base: BASE, size_log2, number, port, gid, qpn, qkey };
        self.old.seq += 1;
        let frame = batch(self.old.seq, &[leave]);
        self.old.hear(Port::CONTROL, &frame);
        self.carry(1_000);
        assert_eq!(self.left(), 0, "all is pushed");
    }

    /// Carries frames between the two and advances time when there are none, until nothing is left to push or
    /// too many were lost.
    fn carry(&mut self, wakes_max: u32) {
        let mut wakes = 0;
        loop {
            let sent: Vec<_> = self.old.sent.iter().filter(|(port, _)| *port == NEW).cloned().collect();
            for (_, frame) in &sent {
                self.carried += 1;
                if self.lose_every > 0 && self.carried.is_multiple_of(self.lose_every) {
                    continue;
                }
                self.new.hear(OLD, frame);
                let answers: Vec<_> =
                    self.new.sent.iter().filter(|(port, _)| *port == OLD).cloned().collect();
                for (_, answer) in answers {
                    self.carried += 1;
                    if self.lose_every == 0 || !self.carried.is_multiple_of(self.lose_every) {
                        self.hear_at_old(&answer);
                    }
                }
            }
            if self.left() == 0 || wakes == wakes_max {
                return;
            }
            wakes += 1;
            self.now = self.now.max(self.old.node.next_wake().expect("what was not answered is sent again"));
            self.old.node.handle(self.now, Event::Wake, &mut self.old.out);
            self.old.node.check();
            self.old.drain();
        }
    }

    /// Delivers a frame of the new node to the old one, and carries its outputs at once.
    fn hear_at_old(&mut self, frame: &[u8]) {
        self.old.node.handle(self.now, Event::Frame { port: NEW, bytes: frame }, &mut self.old.out);
        self.old.node.check();
        self.old.drain();
        let sent: Vec<_> = self.old.sent.iter().filter(|(port, _)| *port == NEW).cloned().collect();
        for (_, frame) in sent {
            self.new.hear(OLD, &frame);
            let answers: Vec<_> = self.new.sent.iter().filter(|(port, _)| *port == OLD).cloned().collect();
            for (_, answer) in answers {
                self.hear_at_old(&answer);
            }
        }
    }

    /// Returns the remainder that the old node reports.
    fn left(&mut self) -> u32 {
        let question = DirectoryMessage { token: RequestId(5), body: DirectoryBody::Moving(NUMBER) };
        let mut bytes = vec![];
        question.emit(&mut bytes);
        let frame = raw(&bytes);
        self.old.node.handle(
            self.now,
            Event::Frame { port: Port::CONTROL, bytes: &frame },
            &mut self.old.out,
        );
        self.old.drain();
        let answer = &self.old.sent.last().expect("an answer").1;
        let message = DirectoryMessage::parse(Packet::parse(answer).unwrap().payload).unwrap();
        assert_eq!(message.token, RequestId(5));
        let DirectoryBody::Moved(NUMBER, left) = message.body else { panic!("{message:?}") };
        left
    }

    /// Assigns the addresses to the new node.
    fn settle(&mut self, size_log2: u8) {
        let place = Update::Place { base: BASE, size_log2, offset: PLACE };
        assert_eq!(self.new.update(&[place]), (Status::Ok, 0));
        assert_eq!(self.new.peers.last(), Some(&PeerChange { port: OLD, gid: None }));
        assert_eq!(self.old.update(&[Update::Away { base: BASE, size_log2 }]), (Status::Ok, 0));
        assert_eq!(self.old.peers.last(), Some(&PeerChange { port: NEW, gid: None }));
    }
}

fn raw(payload: &[u8]) -> Vec<u8> {
    let bth = Bth::new(Opcode::UdSendOnly, HOME.endpoint.qpn, Psn::new(0));
    let ext = Extension::Deth(Deth { qkey: HOME.endpoint.qkey, src_qp: Qpn::new(0x77) });
    let mut frame = vec![];
    Packet::emit_with(&bth, &ext, payload.len(), &mut frame, |bytes| bytes.extend_from_slice(payload));
    frame
}

fn pushed(body: MoveBody<'_>) -> Vec<u8> {
    let mut bytes = vec![];
    MoveMessage { number: NUMBER, body }.emit(&mut bytes);
    raw(&bytes)
}

pub(super) fn region_read(at: u64, len: u32) -> Body<'static> {
    Body::RegionRead { addr: addr(at), len, data: &[] }
}

fn status(bench: &mut Bench, counter: u32, body: Body<'_>) -> Status {
    bench.ask(header(ALICE, counter), body).header.status
}

/// Four pages move, despite lost frames. Meanwhile no access uses them at either node, and requests are
/// retried. Then the new node has them, with their bytes and states, and the old node does not (PROTOCOL
/// 7.38, 7.39, 7.40).
#[test]
fn pages_move_with_all_that_is_known_of_them() {
    for lose_every in [0, 3, 5, 7] {
        let mut pair = Pair::new(lose_every);
        let bytes: Vec<u8> = (0..=250).cycle().take(2 * PAGE_LEN).collect();
        pair.old.put(addr(0), &bytes);
        pair.new.node.store.write(PLACE, &vec![0xee; 4 * PAGE_LEN]);
        let page = Page::of(addr(PAGE));
        let (access, id) = (Access::Modified, FetchId(1));
        let read = Read {
            page,
            access,
            host: HOST,
            id,
            seq: Seq(9),
            clean: true,
            behind: false,
            granted: true,
            done_due: true,
        };
        let mut payload = vec![];
        PageMessage { domain: ALICE, origin: HOST, body: PageBody::Read(read) }.emit(&mut payload);
        pair.old.hear(Port::SWITCH, &raw(&payload));
        let (first, last) = (page, page);
        let sweep = Sweep { first, last, seq: Seq(12), fenced: HostSet::only(HOST), opens: false };
        let mut payload = vec![];
        DirectoryMessage { token: RequestId(1), body: DirectoryBody::Sweep(sweep) }.emit(&mut payload);
        pair.old.hear(Port::CONTROL, &raw(&payload));

        let lose = Update::Lose { base: addr(3 * PAGE), len: PAGE };
        assert_eq!(pair.old.update(&[lose]), (Status::Ok, 0));

        pair.arrive(14);
        assert_eq!(status(&mut pair.new, 1, region_read(0, 8)), Status::Lent, "it is not here yet");
        pair.leave(14);
        assert_eq!(status(&mut pair.old, 2, region_read(0, 8)), Status::Lent, "it is as good as there");
        assert_eq!(status(&mut pair.new, 3, region_read(0, 8)), Status::Lent);
        pair.settle(14);

        let there = |pair: &Pair, at, len| {
            let mut out = vec![];
            pair.new.node.store().read(PLACE + at, len, &mut out);
            out
        };
        assert!(there(&pair, 0, 0x2000) == bytes, "losing every {lose_every}");
        assert!(there(&pair, 2 * PAGE, 0x2000) == [0; 2 * PAGE_LEN], "zeros move too");
        let record = pair.new.node.page_states().state(page);
        let known = PageState { min_seq: Seq(12), lent: Seq(9), holder: HOST, lost: true, coherent: true };
        assert_eq!(record, known);
        // Bytes that an earlier incarnation of the old node lost are lost here too (PROTOCOL 7.44).
        assert!(pair.new.node.page_states().state(Page::of(addr(3 * PAGE))).lost);
        assert!(!pair.new.node.page_states().state(Page::of(addr(2 * PAGE))).lost);
        let record = pair.old.node.page_states();
        assert_eq!((record.iter().count(), record.lost().count()), (0, 0));
        assert_eq!(status(&mut pair.new, 4, region_read(0, 8)), Status::Ok);
        assert_eq!(status(&mut pair.new, 5, region_read(PAGE, 8)), Status::Lost);
        pair.old.not_here(header(ALICE, 6), region_read(0, 8));
        assert_eq!(pair.old.notes.contains(&Note::PushedAgain), lose_every > 0);
        assert_eq!(pair.left(), UNKNOWN_MOVE);
    }
}

/// More pages than may be pushed at once: the number in flight stays bounded.
#[test]
fn a_push_keeps_within_its_window() {
    let mut old = Bench::empty(Budget::default());
    let len = 64 * PAGE;
    old.node = MemNode::new(
        Config { home: HOME, pmtu: Pmtu::B4096, budget: Budget::default() },
        VecStore::new(64 * PAGE_LEN),
    );
    let ud::Endpoint { qpn, qkey } = HOME.endpoint;
    let leave = Update::Leave {
        base: BASE,
        size_log2: 18,
        number: NUMBER,
        port: NEW.0,
        gid: Gid([1; 16]),
        qpn,
        qkey,
    };
    old.seq = 1;
    old.hear(Port::CONTROL, &batch(1, &[Update::Range { base: BASE, len, offset: 0 }, leave]));
    let mut taken = 0;
    let mut open: Vec<Page> = (0..PUSHED_MAX as u64).map(|page| Page::of(addr(page * PAGE))).collect();
    assert_eq!(old.sent.iter().filter(|(port, _)| *port == NEW).count(), PUSHED_MAX);
    while let Some(page) = open.pop() {
        old.hear(NEW, &pushed(MoveBody::PageAck(page)));
        taken += 1;
        for (port, frame) in &old.sent {
            if *port != NEW {
                continue;
            }
            let message = MoveMessage::parse(Packet::parse(frame).unwrap().payload).unwrap();
            let MoveBody::Page(page, ..) = message.body else { panic!("{message:?}") };
            open.push(page);
        }
        assert!(open.len() < PUSHED_MAX + 1);
    }
    assert_eq!((taken, old.notes.last()), (64, Some(&Note::Pushed)));
    let told = DirectoryMessage::parse(Packet::parse(&old.sent[0].1).unwrap().payload).unwrap();
    assert_eq!((old.sent[0].0, told.body), (Port::CONTROL, DirectoryBody::Moved(NUMBER, 0)));
}

/// A region write was executed at the old node and its answer lost. Its copy reaches the new node, is
/// answered there, and not executed: a later write stands. A copy that arrives in between is neither executed
/// nor refused (PROTOCOL 7.38, 7.41).
#[test]
fn what_was_executed_is_not_executed_again_where_it_moved() {
    let mut pair = Pair::new(3);
    let write = |data| Body::RegionWrite { addr: addr(8), len: 1, data };
    assert_eq!(status(&mut pair.old, 1, write(&[1])), Status::Ok);
    assert_eq!(status(&mut pair.old, 2, write(&[2])), Status::Ok);
    pair.arrive(12);
    pair.leave(12);
    let late = datagram(&Message { header: header(ALICE, 3), body: write(&[3]) });
    pair.old.hear_nothing(Port::SWITCH, &late, DropReason::Moving);
    pair.new.hear_nothing(Port::SWITCH, &late, DropReason::Moving);
    pair.settle(12);
    assert_eq!(status(&mut pair.new, 1, write(&[1])), Status::Ok);
    assert_eq!(pair.new.notes.last(), Some(&Note::DuplicateWrite));
    let mut byte = vec![];
    pair.new.node.store().read(PLACE + 8, 1, &mut byte);
    assert_eq!(byte, [2]);
    assert_eq!(status(&mut pair.new, 3, write(&[3])), Status::Ok);
    byte.clear();
    pair.new.node.store().read(PLACE + 8, 1, &mut byte);
    assert_eq!(byte, [3]);
}

/// Verbs wait while their bytes leave, also a verb that only ends there. A READ that was executed before is
/// answered again from the bytes as they left; a new one is refused (PROTOCOL 4.21, 4.29).
#[test]
fn verbs_wait_while_their_bytes_leave() {
    let mut pair = Pair::new(0);
    pair.old.put(addr(0), b"as it was");
    pair.old.update(&[queue_pair(0x600, 100)]);
    let mut client = Client::new(0x600, 100, RKEY);
    assert_eq!(client.read(&mut pair.old, 0, 9).unwrap(), b"as it was");
    let port = Port::host(HOST.0);
    let verb = |opcode, psn: u32, ext, payload: &[u8]| {
        let mut frame = vec![];
        Packet { bth: Bth::new(opcode, Qpn::new(0x600), Psn::new(psn)), ext, payload }.emit(&mut frame);
        frame
    };
    let reth = |at, dma_len| Extension::Reth(farmem_wire::Reth { va: addr(at), rkey: RKEY, dma_len });
    let again = verb(Opcode::ReadRequest, 100, reth(0, 9), &[]);
    pair.arrive(12);
    pair.leave(12);
    for (opcode, ext, payload) in [
        (Opcode::WriteOnly, reth(8, 1), &b"x"[..]),
        (Opcode::ReadRequest, reth(0, 9), &[]),
        (Opcode::ReadRequest, reth(0, 0x1800), &[]),
    ] {
        pair.old.hear(port, &verb(opcode, 101, ext, payload));
        assert!(pair.old.notes.contains(&Note::Connection(rc::Note::NotReady)), "{opcode:?}");
        pair.old.notes.clear();
    }
    for _ in 0..2 {
        pair.old.hear(port, &again);
        assert_eq!(pair.old.notes.last(), Some(&Note::Connection(rc::Note::DuplicateRead)));
        let packet = Packet::parse(&pair.old.sent[0].1).unwrap();
        assert_eq!(packet.payload, b"as it was");
        if pair.left() != UNKNOWN_MOVE {
            pair.settle(12);
        }
    }
    assert_eq!(client.read(&mut pair.old, 0, 9), Err(rc::Failure::RemoteAccess));
}

/// Messages of a node that takes no part in a move, and messages about other pages, are ignored (PROTOCOL
/// 7.40).
#[test]
fn only_the_ends_of_a_move_are_heard() {
    let mut pair = Pair::new(0);
    pair.arrive(12);
    let state = PageState { min_seq: Seq(1), lent: Seq(0), holder: HostId(0), lost: false, coherent: false };
    let bytes = [7; PAGE_LEN];
    let page = |at| MoveBody::Page(Page::of(addr(at)), state, Some((Part::WHOLE, &bytes)));
    let wrong = [
        (Port::node(3), pushed(page(0))),
        (Port::SWITCH, pushed(page(0))),
        (Port::UNKNOWN, pushed(page(0))),
        (OLD, pushed(page(PAGE))),
        (OLD, {
            let mut bytes = vec![];
            MoveMessage { number: NUMBER + 1, body: page(0) }.emit(&mut bytes);
            raw(&bytes)
        }),
        (OLD, pushed(MoveBody::PageAck(Page::of(addr(0))))),
    ];
    for (port, frame) in wrong {
        pair.new.hear_nothing(port, &frame, DropReason::NoMove);
    }
    pair.new.hear_nothing(
        OLD,
        &pushed(MoveBody::Record(RequestId(1), 0, Some(b"nonsense"))),
        DropReason::Malformed,
    );
    pair.new.hear(OLD, &pushed(page(0)));
    assert_eq!(pair.new.notes.last(), Some(&Note::PageArrived));
    // A copy that arrives after the page became usable changes nothing.
    assert_eq!(
        pair.new.update(&[Update::Place { base: BASE, size_log2: 12, offset: PLACE }]),
        (Status::Ok, 0)
    );
    pair.new.hear_nothing(OLD, &pushed(page(0)), DropReason::NoMove);
}

/// An address has one offset, and an offset one address (PROTOCOL 7.37); removing an unknown outlier is no
/// error (PROTOCOL 7.39).
#[test]
fn outliers_share_no_address_and_no_place() {
    let mut node = Bench::ready();
    let place = |at, size_log2, offset| Update::Place { base: VirtAddr(at), size_log2, offset };
    let far = 0x9000_0000;
    assert_eq!(node.update(&[place(far, 13, 0x2000)]), (Status::Ok, 0));
    for (wrong, status) in [
        (place(far, 12, 0x6000), Status::Malformed),
        (place(far + PAGE, 12, 0x6000), Status::Malformed),
        (place(far + 0x10_0000, 12, 0x3000), Status::Malformed),
        (place(far + 0x10_0000, 12, STORE_LEN as u64), Status::OutOfBounds),
        (place(far + 0x10_0000, 12, 0x6004), Status::Malformed),
        (place(0, 12, 0x6000), Status::Malformed),
        (Update::Unplace { base: VirtAddr(far), size_log2: 12 }, Status::Malformed),
        (Update::Away { base: VirtAddr(far + PAGE), size_log2: 12 }, Status::Malformed),
        (Update::Drain { base: VirtAddr(far), size_log2: 13 }, Status::Unsupported),
    ] {
        assert_eq!(node.update(&[wrong]), (status, 0), "{wrong:?}");
    }
    // The outlier now uses the bytes of the range's second and third page: those pages map nowhere.
    assert_eq!(status(&mut node, 0, region_read(0, 8)), Status::Ok);
    node.not_here(header(ALICE, 0x1000), region_read(0x1000, 8));
    node.not_here(header(BOB, 0x2000), region_read(0x2000, 8));
    for _ in 0..2 {
        assert_eq!(node.update(&[Update::Unplace { base: VirtAddr(far), size_log2: 13 }]), (Status::Ok, 0));
    }
    assert_eq!(status(&mut node, 9, region_read(0x1000, 8)), Status::Ok);
    for _ in 0..2 {
        assert_eq!(node.update(&[Update::Away { base: BASE, size_log2: 12 }]), (Status::Ok, 0));
    }
    node.not_here(header(ALICE, 10), region_read(0, 8));
    node.not_here(header(ALICE, 11), region_read(0xff8, 16));
}

/// A push is abandoned: the old node and the states of its pages are as before.
#[test]
fn a_move_that_is_taken_back_leaves_no_trace() {
    let mut pair = Pair::new(0);
    pair.old.put(addr(0), b"here");
    pair.arrive(12);
    pair.leave(12);
    assert_eq!(pair.old.update(&[Update::Unplace { base: BASE, size_log2: 12 }]), (Status::Ok, 0));
    assert_eq!(pair.new.update(&[Update::Unplace { base: BASE, size_log2: 12 }]), (Status::Ok, 0));
    assert_eq!(status(&mut pair.old, 1, region_read(0, 4)), Status::Ok);
    pair.new.not_here(header(ALICE, 2), region_read(0, 4));
    assert_eq!(pair.old.node.next_wake(), None);
    assert!(pair.now <= Instant::ZERO + Duration::from_secs(1));
}
