//! Operations whose memory moved or is lost, or whose connection broke. The tests play the control plane:
//! each request of the host is answered once.

use super::verbs::{Node, old, talk_to};
use super::*;
use crate::{Located, Piece, Reply};

/// An allocation that is the whole range of node 1, with these parts elsewhere.
fn located(pieces: &[(u64, u64, u16)], lost: &[(u64, u64)]) -> Reply {
    let piece = |&(skip, len, node): &(u64, u64, u16)| Piece {
        base: VirtAddr(BASE_1 + skip),
        len,
        node: NodeId(node),
    };
    Reply::Located(Located {
        base: VirtAddr(BASE_1),
        len: RANGE_LEN,
        pieces: pieces.iter().map(piece).collect(),
        lost: lost.iter().map(|&(skip, len)| (VirtAddr(BASE_1 + skip), len)).collect(),
    })
}

fn add(skip: u64) -> Op {
    Op::FetchAdd { addr: VirtAddr(BASE_1 + skip), add: 1 }
}

fn locate(skip: u64) -> ControlRequestKind {
    ControlRequestKind::Locate { addr: VirtAddr(BASE_1 + skip) }
}

impl Bench {
    /// Two nodes with a connection of Alice each. The second has the addresses of the first one too.
    fn with_two() -> (Self, [Node; 2]) {
        let (mut bench, one) = Self::connected();
        let second = connection(ALICE, 2, 2);
        bench.ask(HostRequest::Connect(second));
        let mut two = Node::behind(&second);
        two.memory.base = BASE_1;
        (bench, [one, two])
    }

    /// Takes the broken connection to a node down and sets connection `number` up in the place of `before`.
    fn reconnect(&mut self, node: u16, before: u32, number: u32, nodes: &mut [Node]) {
        self.reply(
            ControlRequestKind::Disconnect { qpn: connection(ALICE, node, before).rc.qpn },
            Reply::Disconnected,
        );
        assert_eq!(self.kind(), ControlRequestKind::Connect { domain: ALICE, node: NodeId(node) });
        self.control_requests.clear();
        let anew = connection(ALICE, node, number);
        let seat = nodes.iter_mut().find(|seat| seat.port == Port::node(node)).expect("one of the nodes");
        let mut fresh = Node::behind(&anew);
        core::mem::swap(&mut fresh.memory, &mut seat.memory);
        *seat = fresh;
        self.ask(HostRequest::Connect(anew));
    }

    /// Lets time pass without answers until the host gives up.
    fn silence(&mut self) {
        while let Some(at) = self.host.next_wake() {
            self.sent.clear();
            self.now = at;
            self.event(Event::Wake);
        }
        self.sent.clear();
    }

    fn results(&mut self) -> Vec<(u64, Result<Answer, Failure>)> {
        take(&mut self.done).into_iter().map(|done| (done.ticket, done.result)).collect()
    }
}

const fn did(old: u64) -> Result<Answer, Failure> {
    Ok(Answer::Done { old })
}

const fn failed(failure: rc::Failure) -> Result<Answer, Failure> {
    Err(Failure::Connection(failure))
}

/// A node refuses moved memory. The host asks for the location once, and sends the refused operation and
/// those flushed behind it to the new node, in order, each once. Operations that stay wait until the old
/// connection is down and a new one is up.
#[test]
pub(super) fn what_moved_is_followed_in_order() {
    let (mut bench, mut nodes) = Bench::with_two();
    nodes[0].memory.bytes.truncate(1024);
    let moved = [add(1024), write(BASE_1 + 1024, &[7; 4]), read(BASE_1 + 1024, 8)].map(|op| bench.submit(op));
    let stays = bench.submit(add(8));
    talk_to(&mut bench, &mut nodes);
    assert_eq!(bench.results(), []);
    let later = bench.submit(add(8));
    bench.reply(locate(1024), located(&[(1024, 1024, 2)], &[]));
    assert!(bench.took_notes().contains(&Note::Followed));
    talk_to(&mut bench, &mut nodes);
    let ends = take(&mut bench.done);
    assert_eq!(ends.iter().map(|done| done.ticket).collect::<Vec<_>>(), moved);
    assert_eq!(ends[2].buf, [7, 7, 7, 7, 0, 0, 0, 0], "in order");
    bench.reconnect(1, 1, 3, &mut nodes);
    talk_to(&mut bench, &mut nodes);
    assert_eq!(bench.results(), [(stays, did(0)), (later, did(1))]);
    assert!(bench.control_requests.is_empty());

    // An operation that learns the location from another one asks the control plane nothing.
    nodes[1].memory.base = 0;
    let ticket = bench.submit(add(1024));
    bench.ask(HostRequest::Route { base: VirtAddr(BASE_1), len: RANGE_LEN, node: None });
    nodes[0].memory.bytes.resize(2048, 0);
    talk_to(&mut bench, &mut nodes);
    assert_eq!((bench.results(), &bench.control_requests[..]), (vec![(ticket, did(0))], &[][..]));
}

/// A page moved away and came back before the refusal arrived: the operation is sent to the same node again,
/// and a second refusal is final.
#[test]
pub(super) fn what_is_back_is_retried_in_place_once() {
    let (mut bench, mut nodes) = Bench::with_two();
    let bytes = take(&mut nodes[0].memory.bytes);
    let ticket = bench.submit(add(0));
    talk_to(&mut bench, &mut nodes);
    nodes[0].memory.bytes = bytes;
    bench.reply(locate(0), located(&[], &[]));
    bench.reconnect(1, 1, 3, &mut nodes);
    talk_to(&mut bench, &mut nodes);
    assert_eq!(bench.results(), [(ticket, did(0))]);

    // A forbidden access is refused twice. The operations flushed behind it are not at fault.
    let wrong = bench.submit(write(BASE_1 + RANGE_LEN - 8, b"x"));
    let right = bench.submit(add(0));
    talk_to(&mut bench, &mut nodes);
    bench.reply(locate(RANGE_LEN - 8), located(&[], &[]));
    bench.reconnect(1, 3, 4, &mut nodes);
    talk_to(&mut bench, &mut nodes);
    assert_eq!(bench.results(), []);
    bench.reply(locate(RANGE_LEN - 8), located(&[], &[]));
    assert_eq!(bench.results(), [(wrong, failed(rc::Failure::RemoteAccess))]);
    bench.reconnect(1, 4, 5, &mut nodes);
    talk_to(&mut bench, &mut nodes);
    assert_eq!(bench.results(), [(right, did(1))]);
    let notes = bench.took_notes();
    let count = |note| notes.iter().filter(|&&other| other == note).count();
    assert_eq!((count(Note::RetriedInPlace), count(Note::RefusedAgain)), (2, 1));
}

/// The route of a former allocation, a part of which had moved, reaches into a smaller allocation that has
/// its addresses now.
#[test]
fn what_was_known_of_an_earlier_allocation_is_forgotten() {
    let (mut bench, mut nodes) = Bench::with_two();
    nodes[1].memory.bytes.clear();
    bench.ask(HostRequest::Route { base: VirtAddr(BASE_1), len: 4096, node: Some(NodeId(2)) });
    let ticket = bench.submit(add(1024));
    talk_to(&mut bench, &mut nodes);
    let small = Located { base: VirtAddr(BASE_1 + 1024), len: 1024, pieces: vec![], lost: vec![] };
    bench.reply(locate(1024), Reply::Located(small));
    assert!(bench.took_notes().contains(&Note::Followed));
    talk_to(&mut bench, &mut nodes);
    assert_eq!(bench.results(), [(ticket, did(0))]);
}

/// For lost bytes the host learns which ones, wherever they are in an operation over several nodes. Other
/// operations proceed.
#[test]
pub(super) fn lost_bytes_are_told_and_what_is_behind_goes_on() {
    let (mut bench, mut nodes) = Bench::with_two();
    let bytes = take(&mut nodes[0].memory.bytes);
    let lost = bench.submit(read(BASE_1 + 1000, 100));
    let right = bench.submit(add(4096));
    let leaves = bench.submit(read(BASE_1 + 4096, 64));
    talk_to(&mut bench, &mut nodes);
    nodes[0].memory.bytes = bytes;
    bench.reply(locate(1000), located(&[], &[(512, 512), (1024, 512)]));
    assert_eq!(bench.results(), [(lost, Err(Failure::Lost { addr: VirtAddr(BASE_1 + 1000), len: 24 }))]);
    bench.reconnect(1, 1, 3, &mut nodes);
    nodes[0].memory.bytes.truncate(4096 + 8);
    talk_to(&mut bench, &mut nodes);
    assert_eq!(bench.results(), [(right, did(0))]);
    let short = Located { base: VirtAddr(BASE_1 + 4096), len: 32, pieces: vec![], lost: vec![] };
    bench.reply(locate(4096), Reply::Located(short));
    assert_eq!(bench.results(), [(leaves, Err(Failure::OutOfBounds { addr: VirtAddr(BASE_1 + 4096) }))]);

    // A node that stops answering may have restarted: then its memory is lost.
    let ticket = bench.submit(add(0));
    bench.reconnect(1, 3, 4, &mut nodes);
    bench.silence();
    bench.reply(locate(0), located(&[], &[(0, 4096)]));
    assert_eq!(bench.results(), [(ticket, Err(Failure::Lost { addr: VirtAddr(BASE_1), len: 8 }))]);
}

/// Neither the control plane nor the node is reachable: waiting operations end as not executed; the next
/// operation tries again.
#[test]
pub(super) fn a_node_that_cannot_be_reached_ends_what_waits_for_it() {
    let (mut bench, mut nodes) = Bench::with_two();
    bench.submit(add(0));
    let flushed = bench.submit(add(0));
    let again = bench.submit(read(BASE_1, 8));
    bench.silence();
    bench.reply(locate(0), Reply::Unavailable);
    assert_eq!(
        bench.results(),
        [(flushed, failed(rc::Failure::Flushed)), (1, failed(rc::Failure::RetriesExceeded))]
    );
    bench.reply(ControlRequestKind::Disconnect { qpn: connection(ALICE, 1, 1).rc.qpn }, Reply::Unavailable);
    let unreachable = Err(Failure::Unreachable { addr: VirtAddr(BASE_1) });
    assert_eq!(bench.results(), [(again, unreachable)]);
    let next = bench.submit(add(0));
    bench.reply(ControlRequestKind::Disconnect { qpn: connection(ALICE, 1, 1).rc.qpn }, Reply::NotFound);
    bench.reply(ControlRequestKind::Connect { domain: ALICE, node: NodeId(1) }, Reply::Unavailable);
    assert_eq!(bench.results(), [(next, unreachable)]);
    // The old connection is gone: it is not taken down again.
    let last = bench.submit(add(0));
    assert_eq!(bench.kind(), ControlRequestKind::Connect { domain: ALICE, node: NodeId(1) });
    // A late or repeated answer changes nothing.
    bench.ask(HostRequest::Reply { number: 1, reply: Reply::Disconnected });
    assert!(bench.took_notes().contains(&Note::LateAnswer));
    bench.control_requests.clear();
    let anew = connection(ALICE, 1, 3);
    nodes[0] = Node::behind(&anew);
    bench.ask(HostRequest::Connect(anew));
    talk_to(&mut bench, &mut nodes);
    assert_eq!(bench.results(), [(last, did(0))]);
}

/// One node refuses its segment of a READ, because the bytes moved. The connection to the other node breaks
/// by itself, with an atomic on it that was executed. The refusal does not concern the atomic: it is not sent
/// again, and its user learns that the result is unknown.
#[test]
fn a_refusal_says_nothing_of_what_another_node_did() {
    let (mut bench, mut nodes) = Bench::with_two();
    bench.ask(HostRequest::Route { base: VirtAddr(BASE_1 + 512), len: 512, node: Some(NodeId(2)) });
    let both = bench.submit(read(BASE_1 + 504, 16));
    bench.reply(locate(504), located(&[(512, 512, 2)], &[]));
    let atomic = bench.submit(add(640));
    let beside = bench.submit(read(BASE_1 + 520, 8));
    // Node 1 does not have its part any more. Node 2 executes everything, and none of its answers arrives.
    nodes[0].memory.bytes.truncate(256);
    let (first, second): (Vec<_>, Vec<_>) =
        take(&mut bench.sent).into_iter().partition(|(port, _)| *port == Port::node(1));
    bench.sent = second;
    let [one, two] = &mut nodes;
    two.deaf(&mut bench);
    assert_eq!(two.memory.bytes[640], 1, "the atomic was executed");
    bench.sent = first;
    bench.talk(one);
    assert_eq!(bench.kind(), locate(504));
    bench.silence();
    // The READs are sent again and the atomic is not, whatever the refused operation's outcome.
    assert_eq!(bench.results(), [(atomic, failed(rc::Failure::Flushed))]);
    let [refused, gone] = bench.control_requests[..] else { panic!("two questions") };
    bench.control_requests.clear();
    bench.ask(HostRequest::Reply {
        number: refused.number,
        reply: located(&[(512, 512, 2), (256, 256, 2)], &[]),
    });
    bench.control_requests.clear();
    bench.ask(HostRequest::Reply { number: gone.number, reply: Reply::Unavailable });
    bench.reconnect(2, 2, 5, &mut nodes);
    talk_to(&mut bench, &mut nodes);
    let ends = bench.results();
    assert!(ends.contains(&(beside, did(0))), "{ends:?}");
    assert!(ends.contains(&(both, failed(rc::Failure::RetriesExceeded))), "{ends:?}");
    assert_eq!(nodes[1].memory.bytes[640], 1, "once");
}

/// An operation is in flight to the old location of its bytes when another operation learns the new one.
/// Later operations on the same bytes stay behind the first and execute after it.
#[test]
fn later_operations_stay_behind_earlier_ones() {
    let (mut bench, mut nodes) = Bench::with_two();
    let first = bench.submit(write(BASE_1 + 1024, &[1; 8]));
    let on_its_way = take(&mut bench.sent);
    bench.ask(HostRequest::Route { base: VirtAddr(BASE_1 + 1024), len: 1024, node: Some(NodeId(2)) });
    let second = bench.submit(write(BASE_1 + 1028, &[2; 8]));
    let beside = bench.submit(read(BASE_1 + 1024 + 64, 8));
    assert_eq!(
        bench.sent.iter().filter(|(port, _)| *port == Port::node(2)).count(),
        1,
        "only what is beside"
    );
    nodes[0].memory.bytes.truncate(1024);
    bench.sent.splice(0..0, on_its_way);
    talk_to(&mut bench, &mut nodes);
    assert_eq!(bench.results(), [(beside, did(0)), (first, did(0)), (second, did(0))]);
    assert_eq!(nodes[1].memory.bytes[1024..1036], [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
    assert!(bench.control_requests.is_empty(), "it was known where they are");
}

/// The host refuses an operation over several nodes that leaves its allocation. It asks where the allocation
/// ends; operations behind it wait for the answer (PROTOCOL 7.45).
#[test]
fn what_leaves_its_allocation_is_refused_where_no_node_sees_it() {
    let (mut bench, mut nodes) = Bench::with_two();
    bench.ask(HostRequest::Route { base: VirtAddr(BASE_1 + 512), len: 512, node: Some(NodeId(2)) });
    let leaves = bench.submit(write(BASE_1 + 1000, &[9; 100]));
    let behind = bench.submit(read(BASE_1 + 1016, 8));
    let found = Located {
        base: VirtAddr(BASE_1),
        len: 1024,
        pieces: vec![Piece { base: VirtAddr(BASE_1 + 512), len: 512, node: NodeId(2) }],
        lost: vec![],
    };
    bench.reply(locate(1000), Reply::Located(found));
    talk_to(&mut bench, &mut nodes);
    let ends = take(&mut bench.done);
    assert_eq!(ends[0].result, Err(Failure::OutOfBounds { addr: VirtAddr(BASE_1 + 1000) }));
    assert_eq!((ends[0].ticket, ends[1].ticket, old(&ends[1])), (leaves, behind, 0));
    assert_eq!(ends[1].buf, [0; 8]);
    // The host asks no more about operations that stay inside.
    bench.submit(read(BASE_1 + 500, 500));
    talk_to(&mut bench, &mut nodes);
    assert_eq!(old(&bench.ended()), 0);
}
