//! Gather READs at both halves: one request for scattered pieces, answered as one READ of all their bytes.

use crate::support::{
    Host, Node, RKEY, fetch_add, numbered, payloads, read, requester_config, reth, va, write,
};
use farmem_transport::AccessError;
use farmem_transport::rc::{Failure, Note, READ_LEN_MAX, RequesterConfig, Work};
use farmem_wire::gather::PIECES_MAX;
use farmem_wire::{Extension, Gather, Opcode, Packet, Psn, Reth, Rkey, VirtAddr};

use Opcode::{
    GatherRequest, ReadResponseFirst as First, ReadResponseLast as Last, ReadResponseMiddle as Middle,
};

fn gather(offsets: &[u64], each: usize) -> Work {
    let addrs = offsets.iter().map(|offset| va(*offset)).collect();
    Work::Gather { addrs, buf: vec![0; each * offsets.len()] }
}

/// Returns the bytes of these pieces of [`Node::usual`].
fn bytes(offsets: &[u64], each: usize) -> Vec<u8> {
    let piece = |offset: &u64| numbered(usize::try_from(*offset).unwrap(), each);
    offsets.iter().flat_map(piece).collect()
}

fn payload(each: u32, skip: u32, others: &[u64]) -> Vec<u8> {
    let mut payload = Vec::new();
    let others: Vec<VirtAddr> = others.iter().map(|offset| va(*offset)).collect();
    Gather::emit(each, skip, &others, &mut payload);
    payload
}

/// Returns the ranges that a request asks for: offset and length of each.
fn places(frame: &[u8]) -> Vec<(u64, u32)> {
    let packet = Packet::parse(frame).unwrap();
    let Extension::Reth(reth) = packet.ext else { panic!("a request: {packet:?}") };
    assert_eq!((packet.bth.opcode, reth.rkey), (GatherRequest, RKEY));
    let gather = Gather::parse(&reth, packet.payload).unwrap();
    gather.places(0, reth.dma_len).map(|(addr, len)| (addr.0 - va(0).0, len)).collect()
}

/// PROTOCOL 4.30, 4.31, 4.32: three pieces of 300 bytes arrive in four packets of 256, in the order of the
/// request.
#[test]
fn pieces_come_one_behind_the_other() {
    let offsets = [1000, 0, 3000];
    let (mut host, mut node) = (Host::new(requester_config()), Node::usual());
    let sent = host.post([gather(&offsets, 300)]);
    assert_eq!(sent.lines(), ["GatherRequest 100 A @1000+900 [24]"]);
    let request = Packet::parse(&sent.frames[0]).unwrap();
    let answer = node.take(GatherRequest, 100, request.ext, request.payload);
    assert_eq!(
        answer.lines(),
        [
            "ReadResponseFirst 100 msn=1 [256]",
            "ReadResponseMiddle 101 [256]",
            "ReadResponseMiddle 102 [256]",
            "ReadResponseLast 103 msn=1 [132]"
        ]
    );
    for (psn, frame) in (100..).zip(&answer.frames) {
        let packet = Packet::parse(frame).unwrap();
        assert_eq!(host.read_response(packet.bth.opcode, psn, packet.payload).frames.len(), 0);
    }
    let done = host.completions();
    assert_eq!((done[0].result, done[0].work.buf()), (Ok(0), &bytes(&offsets, 300)[..]));
    // The next request has the PSN behind all of them.
    assert_eq!(node.read(104, 0, 8).lines(), ["ReadResponseOnly 104 msn=2 [8]"]);
}

/// PROTOCOL 4.8, 4.11, 4.30: a long gather READ is split into several requests, and a request is repeated
/// from its first missing packet. Each names only the pieces of which it has bytes.
#[test]
fn each_request_names_its_own_pieces() {
    let config = RequesterConfig { window_psns: 16, ..requester_config() };
    let mut host = Host::new(config);
    // Four packets a request: 1,024 bytes.
    let sent = host.post([gather(&[0, 500, 1000, 1500], 400)]);
    let named: Vec<_> = sent.frames.iter().map(|frame| places(frame)).collect();
    assert_eq!(named, [vec![(0, 400), (500, 400), (1000, 224)], vec![(1224, 176), (1500, 400)]]);
    host.read_response(First, 100, &numbered(0, 256));
    host.read_response(Middle, 101, &numbered(0, 256));
    let again = host.wake();
    let named: Vec<_> = again.frames.iter().map(|frame| places(frame)).collect();
    assert_eq!(named, [vec![(612, 288), (1000, 224)], vec![(1224, 176), (1500, 400)]]);
    assert_eq!(again.lines()[0], "GatherRequest 102 A @612+512 [16]");
}

/// PROTOCOL 4.31: no packet can carry the request. Nothing is sent, and the connection stays intact.
#[test]
fn what_no_packet_carries_ends_at_once() {
    let most: Vec<u64> = (0..PIECES_MAX as u64).map(|n| n * 8).collect();
    let mut uneven = gather(&[0, 8], 8);
    if let Work::Gather { buf, .. } = &mut uneven {
        buf.push(0);
    }
    let mut leaves = gather(&[0, 8], 8);
    if let Work::Gather { addrs, .. } = &mut leaves {
        addrs[1] = VirtAddr(u64::MAX - 6);
    }
    let mut host = Host::new(requester_config());
    let sent = host.post([
        gather(&[], 8),
        gather(&[0], 0),
        uneven,
        leaves,
        gather(&most[..33], 8),
        gather(&most[..32], 8),
        gather(&[most, vec![0]].concat(), 8),
    ]);
    assert_eq!(sent.frames.len(), 1, "32 pieces take all of 256 bytes");
    let invalid = Err(Failure::InvalidRequest);
    assert_eq!(
        host.results(),
        [
            (0, invalid),
            (1, invalid),
            (2, invalid),
            (3, Err(Failure::RemoteAccess)),
            (4, invalid),
            (6, invalid)
        ]
    );
}

/// PROTOCOL 4.31, 4.16: requests that change memory wait for its answer; requests that read do not.
#[test]
fn what_changes_memory_waits_for_a_gather_read() {
    for (second, waits) in
        [(write(8192, 1), true), (fetch_add(4096), true), (read(0, 8), false), (gather(&[9], 8), false)]
    {
        let mut host = Host::new(requester_config());
        let sent = host.post([gather(&[0, 64], 8), second.clone()]);
        assert_eq!(sent.frames.len() == 1, waits, "{second:?}");
        let answered = host.read_response(Opcode::ReadResponseOnly, 100, &[0; 16]);
        assert_eq!(answered.frames.is_empty(), !waits, "{second:?}");
    }
}

/// PROTOCOL 4.32: a forbidden piece, a wrong key and a malformed request each refuse the whole request, and
/// no byte is sent.
#[test]
fn a_gather_read_is_refused_as_a_whole() {
    let key = |va: u64, dma_len| Extension::Reth(Reth { va: VirtAddr(va), rkey: Rkey(1), dma_len });
    let long = READ_LEN_MAX + 1;
    let crowd = payload(8, 0, &[0; PIECES_MAX]);
    let cases = [
        (reth(0, 300), payload(100, 0, &[200, 4000]), "RemoteAccess"),
        (reth(4000, 300), payload(100, 0, &[200, 300]), "RemoteAccess"),
        (key(va(0).0, 300), payload(100, 0, &[200, 300]), "RemoteAccess"),
        (reth(0, 301), payload(100, 0, &[200, 300]), "InvalidRequest"),
        (reth(0, 200), payload(100, 0, &[200, 300]), "InvalidRequest"),
        (reth(0, 100), payload(100, 100, &[]), "InvalidRequest"),
        (reth(0, 0), payload(100, 0, &[]), "InvalidRequest"),
        (reth(0, 100), vec![0, 0, 0, 100], "InvalidRequest"),
        (reth(0, long), payload(long, 0, &[]), "InvalidRequest"),
        (reth(0, 8 * 65), crowd, "InvalidRequest"),
        // Sixty-four pieces are allowed, but no packet of this connection carries them.
        (reth(0, 8 * 64), payload(8, 0, &[0; PIECES_MAX - 1]), "InvalidRequest"),
    ];
    for (ext, payload, nak) in cases {
        let mut node = Node::usual();
        let sent = node.take(GatherRequest, 100, ext, &payload);
        assert_eq!(sent.lines(), [format!("Acknowledge 100 Nak({nak}) msn=0")], "{ext:?}");
    }
}

/// PROTOCOL 4.33: a repeated gather READ, or its rest from a packet on, is checked as a new one. Access that
/// is no longer allowed costs a NAK 0x63. A request that is no part of an executed one is not answered.
#[test]
fn a_gather_read_that_comes_again_is_executed_again() {
    let mut node = Node::usual();
    let whole = payload(300, 0, &[0, 3000]);
    node.take(GatherRequest, 100, reth(1000, 900), &whole);
    node.read(104, 0, 300);
    let again = node.take(GatherRequest, 100, reth(1000, 900), &whole);
    assert_eq!(payloads(&again.frames), bytes(&[1000, 0, 3000], 300));
    assert_eq!(again.notes, [Note::DuplicateElsewhere]);
    // From the third packet on: 512 bytes in, 212 into the second piece.
    let part = node.take(GatherRequest, 102, reth(212, 388), &payload(300, 212, &[3000]));
    assert_eq!(part.lines(), ["ReadResponseFirst 102 msn=2 [256]", "ReadResponseLast 103 msn=2 [132]"]);
    assert_eq!(payloads(&part.frames), bytes(&[1000, 0, 3000], 300)[512..]);
    let forgotten = [
        (100, reth(1000, 901), payload(301, 0, &[0, 3000])),
        (102, reth(212, 400), payload(400, 0, &[])),
        // PSN 104 belonged to a READ.
        (104, reth(0, 300), payload(300, 0, &[])),
        (99, reth(1000, 900), whole.clone()),
        (100, reth(1000, 900), vec![0; 3]),
    ];
    for (psn, ext, payload) in forgotten {
        let sent = node.take(GatherRequest, psn, ext, &payload);
        assert_eq!((sent.frames.len(), sent.notes), (0, vec![Note::DuplicateForgotten]), "{psn} {ext:?}");
    }
    node.memory.moving = true;
    let waits = node.take(GatherRequest, 100, reth(1000, 900), &whole);
    assert_eq!(waits.notes, [Note::NotReady]);
    node.memory.moving = false;
    node.memory.bytes.truncate(2000);
    let refused = node.take(GatherRequest, 100, reth(1000, 900), &whole);
    assert_eq!(refused.lines(), ["Acknowledge 100 Nak(RemoteOperational) msn=2"]);
    assert_eq!(refused.notes, [Note::Refused(AccessError::NotMapped)]);
    // The connection goes on.
    assert_eq!(node.read(106, 8, 8).lines(), ["ReadResponseOnly 106 msn=3 [8]"]);
}

/// PROTOCOL 4.29, 4.32: a gather READ of memory that moves is not executed, and is retried.
#[test]
fn a_gather_read_waits_for_memory_that_moves() {
    let mut node = Node::usual();
    node.memory.moving = true;
    let whole = payload(300, 0, &[0]);
    let sent = node.take(GatherRequest, 100, reth(1000, 600), &whole);
    assert_eq!((sent.lines().len(), sent.notes), (1, vec![Note::NotReady]));
    node.memory.moving = false;
    let sent = node.take(GatherRequest, 100, reth(1000, 600), &whole);
    assert_eq!(payloads(&sent.frames), bytes(&[1000, 0], 300));
    let last = Packet::parse(sent.frames.last().unwrap()).unwrap();
    assert_eq!((last.bth.opcode, last.bth.psn), (Last, Psn::new(102)));
}
