//! Gather READs: one request if possible, otherwise a READ for each piece (PROTOCOL 11.15).

use super::verbs::{Node, old, talk_to};
use super::*;

const EACH: usize = 100;

fn gather(skips: &[u64]) -> Op {
    let addrs = skips.iter().map(|skip| VirtAddr(BASE_1 + skip)).collect();
    Op::Gather { addrs, buf: vec![0xee; EACH * skips.len()] }
}

/// Fills node 1's memory with bytes that depend on their offset.
fn numbered(node: &mut Node) {
    let bytes = (0_u32..).zip(&mut node.memory.bytes);
    bytes.for_each(|(at, byte)| *byte = (at % 251).to_le_bytes()[0]);
}

fn pieces(node: &Node, skips: &[u64]) -> Vec<u8> {
    let piece = |&skip: &u64| &node.memory.bytes[usize::try_from(skip).unwrap()..][..EACH];
    skips.iter().flat_map(piece).copied().collect()
}

/// Returns the opcodes of the sent packets.
fn opcodes(bench: &Bench) -> Vec<Opcode> {
    bench.sent.iter().map(|(_, frame)| Packet::parse(frame).unwrap().bth.opcode).collect()
}

/// PROTOCOL 11.15: one request brings scattered pieces in the requested order.
#[test]
fn one_request_brings_all_pieces() {
    let (mut bench, mut node) = Bench::connected();
    numbered(&mut node);
    let skips = [5000, 0, 9999, 300];
    let ticket = bench.submit(gather(&skips));
    assert_eq!(opcodes(&bench), [Opcode::GatherRequest]);
    bench.talk(&mut node);
    let done = bench.ended();
    assert_eq!((done.ticket, old(&done)), (ticket, 0));
    assert_eq!(done.buf, pieces(&node, &skips));
}

/// PROTOCOL 11.15: a card, which accepts no gather READ; memory with a moved part; pieces at two nodes; an
/// operation that waits. In each case every piece is a READ, and the result is the same.
#[test]
fn what_one_request_cannot_bring_reads_do() {
    let skips = [5000, 0, 700];
    // A card.
    let card = Connection { gathers: false, ..connection(ALICE, 1, 1) };
    let mut bench = Bench::new(config());
    bench.ask(HostRequest::Connect(card));
    let mut node = Node::behind(&card);
    numbered(&mut node);
    bench.submit(gather(&skips));
    assert_eq!(opcodes(&bench), [Opcode::ReadRequest; 3]);
    bench.talk(&mut node);
    assert_eq!(bench.ended().buf, pieces(&node, &skips));

    // Parts are at node 2, one of them in the middle of a piece.
    let (mut bench, one) = Bench::connected();
    let second = connection(ALICE, 2, 2);
    bench.ask(HostRequest::Connect(second));
    let mut two = Node::behind(&second);
    two.memory.base = BASE_1;
    let mut nodes = [one, two];
    nodes.iter_mut().for_each(numbered);
    nodes[0].memory.bytes[5000..5100].fill(1);
    bench.ask(HostRequest::Route { base: VirtAddr(BASE_1 + 5000), len: 8, node: Some(NodeId(2)) });
    bench.submit(gather(&[0, 5008, 4992 - EACH as u64]));
    talk_to(&mut bench, &mut nodes);
    assert_eq!(bench.ended().buf, pieces(&nodes[0], &[0, 5008, 4992 - EACH as u64]));
    bench.ask(HostRequest::Route { base: VirtAddr(BASE_1 + 5000), len: 100, node: Some(NodeId(2)) });
    bench.submit(gather(&skips));
    talk_to(&mut bench, &mut nodes);
    assert_eq!(bench.ended().buf, pieces(&nodes[1], &skips));

    // All memory is back at its node, but the pieces lie on two nodes.
    bench.ask(HostRequest::Route { base: VirtAddr(BASE_1), len: RANGE_LEN, node: None });
    nodes[1].memory.base = BASE_2;
    let addrs = vec![VirtAddr(BASE_2 + 64), VirtAddr(BASE_1 + 64)];
    bench.submit(Op::Gather { addrs, buf: vec![0; 16] });
    assert_eq!(opcodes(&bench), [Opcode::ReadRequest; 2]);
    talk_to(&mut bench, &mut nodes);
    let done = bench.ended();
    assert_eq!((&done.buf[..8], &done.buf[8..]), (&done.buf[8..], &nodes[0].memory.bytes[64..72]));
}

/// PROTOCOL 11.15: a gather READ is refused for one piece. The other pieces are read over the new connection,
/// and the result is the failure of that piece's own READ.
#[test]
fn a_refused_one_is_asked_for_piece_by_piece() {
    let (mut bench, mut node) = Bench::connected();
    numbered(&mut node);
    // The node's memory ends before its range, as if nothing were allocated there.
    node.memory.bytes.truncate(8192);
    let ticket = bench.submit(gather(&[0, 9000, 300]));
    let behind = bench.submit(gather(&[600]));
    bench.talk(&mut node);
    assert!(bench.done.is_empty(), "{:?}", bench.done);
    for number in [2, 3] {
        bench.reply(
            ControlRequestKind::Disconnect { qpn: connection(ALICE, 1, number - 1).rc.qpn },
            Reply::Disconnected,
        );
        assert_eq!(bench.kind(), ControlRequestKind::Connect { domain: ALICE, node: NodeId(1) });
        bench.control_requests.clear();
        let anew = connection(ALICE, 1, number);
        let mut fresh = Node::behind(&anew);
        core::mem::swap(&mut fresh.memory, &mut node.memory);
        node = fresh;
        bench.ask(HostRequest::Connect(anew));
        bench.talk(&mut node);
        if number == 2 {
            bench.reply(ControlRequestKind::Locate { addr: VirtAddr(BASE_1 + 9000) }, Reply::NotFound);
        }
    }
    let done: Vec<_> = take(&mut bench.done);
    let of = |ticket| done.iter().find(|done| done.ticket == ticket).expect("it ended");
    assert_eq!(of(ticket).result, Err(Failure::Connection(rc::Failure::RemoteAccess)));
    assert_eq!(of(ticket).buf[..EACH], pieces(&node, &[0]), "what was read is there");
    assert_eq!(of(behind).buf, pieces(&node, &[600]));
    assert_eq!((done.len(), bench.host.outstanding()), (2, 0));
}

/// No pieces, no bytes, pieces of unequal length, or too many pieces: the operation ends at once and sends
/// nothing.
#[test]
fn what_makes_no_sense_is_refused() {
    let (mut bench, _) = Bench::connected();
    let addrs = |pieces: usize| vec![VirtAddr(BASE_1); pieces];
    for (addrs, len) in [(addrs(0), 8), (addrs(2), 0), (addrs(2), 9), (addrs(65), 65)] {
        bench.submit(Op::Gather { addrs, buf: vec![0; len] });
        assert_eq!(bench.refused(), Failure::Connection(rc::Failure::InvalidRequest));
    }
    bench.submit(gather(&[0, RANGE_LEN]));
    bench.sent.clear();
    assert!(bench.done.is_empty(), "the first piece is under way");
}
