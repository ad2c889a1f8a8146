//! The responder alone; the test plays the requester, packet by packet. `support::line` describes the
//! notation of packets.

use crate::support::{
    DOMAIN, HOST, HOST_QPN, ModelMemory, NODE_QPN, Node, RKEY, Sent, aeth, dropped, le, numbered, payloads,
    responder_config, reth, va,
};
use farmem_machine::Port;
use farmem_transport::rc::{DropReason, Note, READ_LEN_MAX, RESPONDER_DEPTH, ResponderConfig};
use farmem_transport::{Access, AccessError, Memory};
use farmem_wire::{AtomicEth, Bth, Extension, Opcode, Packet, Perm, Psn, Reth, Rkey, Syndrome};

use Opcode::{ReadRequest, WriteFirst, WriteLast, WriteMiddle, WriteOnly};

/// Delivers a packet of a WRITE of `total` bytes at 0.
fn part(node: &mut Node, opcode: Opcode, psn: u32, total: u32, data: &[u8]) -> Sent {
    let ext = if matches!(opcode, WriteFirst | WriteOnly) { reth(0, total) } else { Extension::None };
    node.take(opcode, psn, ext, data)
}

/// A WRITE of 600 bytes arrives in three packets. Each goes to memory on arrival, and one ACK with the last
/// PSN answers the message. PROTOCOL 4.18, 4.23.
#[test]
fn a_write_is_placed_packet_by_packet() {
    let mut node = Node::new(responder_config(), ModelMemory::new(1000));
    let bytes = numbered(7, 600);
    part(&mut node, WriteFirst, 100, 600, &bytes[..256]);
    assert_eq!(node.memory.bytes[..256], bytes[..256]);
    part(&mut node, WriteMiddle, 101, 600, &bytes[256..512]);
    part(&mut node, WriteLast, 102, 600, &bytes[512..]);
    assert_eq!(node.memory.bytes[..600], bytes);
    assert_eq!(node.memory.bytes[600..], [0; 400]);
    assert_eq!(node.flush().lines(), ["Acknowledge 102 msn=1"]);
    assert!(node.flush().lines().is_empty());
}

/// Three WRITEs in one batch of the driver: one ACK for all of them, with the PSN of the last and the count of
/// messages. A packet that does not ask is not answered. PROTOCOL 4.23, IBA 9.7.5.1.2.
#[test]
fn acks_are_coalesced() {
    let mut node = Node::usual();
    for psn in 100..103 {
        assert!(node.write(psn, 0, &[1]).lines().is_empty());
    }
    assert_eq!(node.flush().lines(), ["Acknowledge 102 msn=3"]);
    let bth = Bth::new(WriteOnly, NODE_QPN, Psn::new(103));
    node.take_from(HOST, &Packet { bth, ext: reth(0, 1), payload: &[2] });
    assert!(node.flush().lines().is_empty(), "nothing was asked");
}

/// A pending ACK must not follow the response to a later READ. The response acknowledges the same, so the ACK
/// is not sent at all. PROTOCOL 4.9, 4.23.
#[test]
fn a_response_takes_the_place_of_a_held_ack() {
    let mut node = Node::usual();
    node.write(100, 0, b"x");
    assert_eq!(node.read(101, 0, 1).lines(), ["ReadResponseOnly 101 msn=2 [1]"]);
    assert!(node.flush().lines().is_empty());
    node.write(102, 0, b"y");
    assert_eq!(node.fetch_add(103, 8, 0).lines().len(), 1);
    assert!(node.flush().lines().is_empty());
}

/// Credits belong to a flow control that farmem does not have: the byte on the wire is 0x1f. PROTOCOL 4.28.
#[test]
fn no_credits_are_given() {
    let mut node = Node::usual();
    node.write(100, 0, b"x");
    let frames =
        [node.flush().frames, node.read(101, 0, 1).frames, node.fetch_add(102, 8, 0).frames].concat();
    assert_eq!(frames.iter().map(|frame| frame[12]).collect::<Vec<_>>(), [0x1f; 3]);
}

/// A READ of 600 bytes: three responses with the request's PSN and the two after it, AETH on the first and the last.
/// The next request has the PSN after those. PROTOCOL 4.3, 4.24.
#[test]
fn a_read_is_answered_in_packets_of_the_pmtu() {
    let mut node = Node::usual();
    let sent = node.read(100, 3, 600);
    assert_eq!(
        sent.lines(),
        [
            "ReadResponseFirst 100 msn=1 [256]",
            "ReadResponseMiddle 101 [256]",
            "ReadResponseLast 102 msn=1 [88]",
        ]
    );
    assert_eq!(payloads(&sent.frames), numbered(3, 600));
    assert_eq!(
        node.read(103, 0, 512).lines(),
        ["ReadResponseFirst 103 msn=2 [256]", "ReadResponseLast 104 msn=2 [256]"]
    );
    assert_eq!(node.read(105, 0, 256).lines(), ["ReadResponseOnly 105 msn=3 [256]"]);
}

/// Messages without bytes access no memory, so neither key nor address matters. PROTOCOL 4.3, 4.25, IBA
/// 9.7.4.1.
#[test]
fn no_bytes_need_no_key() {
    let mut node = Node::usual();
    let nowhere = Extension::Reth(Reth { va: va(1 << 40), rkey: Rkey(1), dma_len: 0 });
    assert_eq!(node.take(ReadRequest, 100, nowhere, &[]).lines(), ["ReadResponseOnly 100 msn=1"]);
    assert_eq!(node.take(ReadRequest, 100, nowhere, &[]).notes, [Note::DuplicateRead]);
    assert!(node.take(WriteOnly, 101, nowhere, &[]).notes.is_empty());
    assert_eq!((node.flush().lines(), node.memory.changes), (vec!["Acknowledge 101 msn=2".into()], 0));
}

/// Atomics return the old value. The word is little-endian in memory and big-endian on the wire; addition
/// wraps. PROTOCOL 4.26.
#[test]
fn atomics_work_on_little_endian_words() {
    let mut node = Node::new(responder_config(), ModelMemory::new(64));
    node.memory.bytes[8..16].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    let sent = node.fetch_add(100, 8, 0x0102);
    assert_eq!(sent.lines(), ["AtomicAck 100 msn=1 was 0xffffffffffffffff"]);
    assert_eq!(node.memory.bytes[8..16], [0x01, 0x01, 0, 0, 0, 0, 0, 0]);
    let swap = |compare, swap_or_add| {
        Extension::AtomicEth(AtomicEth { va: va(8), rkey: RKEY, swap_or_add, compare })
    };
    let sent = node.take(Opcode::CmpSwap, 101, swap(0x999, 5), &[]);
    assert_eq!(sent.lines(), ["AtomicAck 101 msn=2 was 0x101"]);
    assert_eq!(sent.frames[0][16..], [0, 0, 0, 0, 0, 0, 1, 1]);
    assert_eq!(le(&node.memory.bytes[8..16]), 0x101, "not equal, not swapped");
    node.take(Opcode::CmpSwap, 102, swap(0x101, 0x0a0b), &[]);
    assert_eq!(node.memory.bytes[8..10], [0x0b, 0x0a]);
}

/// A packet is lost. The first one behind the gap causes a NAK 0x60 with the missing PSN; the others only
/// cause notes. When the missing packet has arrived, the next gap causes a NAK again. PROTOCOL 4.19, IBA
/// 9.7.5.2.2.
#[test]
fn a_gap_is_told_once() {
    let mut node = Node::usual();
    node.write(100, 0, b"a");
    let sent = node.write(102, 0, b"c");
    assert_eq!(
        (sent.lines(), sent.notes),
        (vec!["Acknowledge 101 Nak(PsnSequence) msn=1".into()], vec![Note::NakSequence])
    );
    assert!(node.flush().lines().is_empty(), "the NAK acknowledged the first one");
    let sent = node.read(103, 0, 9);
    assert_eq!((sent.frames.len(), sent.notes), (0, dropped(DropReason::AfterGap)));
    assert_eq!(node.memory.bytes[0], b'a', "what is behind a gap is not executed");
    node.write(101, 0, b"b");
    assert_eq!(node.flush().lines(), ["Acknowledge 101 msn=2"]);
    assert_eq!(node.write(103, 0, b"d").notes, [Note::NakSequence]);
}

/// The ACK was lost and the WRITE is repeated, after another WRITE to the same address. Executing it would
/// restore the old bytes. PROTOCOL 4.18, 4.20, IBA 9.7.5.1.4.
#[test]
fn a_repeated_write_is_acknowledged_not_executed() {
    let mut node = Node::usual();
    node.write(100, 0, b"old");
    node.write(101, 0, b"new");
    node.flush();
    assert_eq!(node.write(100, 0, b"old").notes, [Note::DuplicateWrite]);
    assert_eq!(
        (node.flush().lines(), &node.memory.bytes[..3]),
        (vec!["Acknowledge 101 msn=2".into()], &b"new"[..])
    );
}

/// A duplicate of the FIRST of a WRITE in progress is acknowledged, and the WRITE continues. PROTOCOL 4.20.
#[test]
fn a_repeated_first_does_not_start_over() {
    let mut node = Node::usual();
    part(&mut node, WriteFirst, 100, 300, &[1; 256]);
    part(&mut node, WriteFirst, 100, 300, &[2; 256]);
    assert_eq!(node.flush().lines(), ["Acknowledge 100 msn=0"]);
    assert!(part(&mut node, WriteLast, 101, 300, &[3; 44]).notes.is_empty());
    assert_eq!(node.memory.bytes[..300], [vec![1; 256], vec![3; 44]].concat());
}

/// A READ is repeated because its response was lost: the present bytes answer it, from the start or from one
/// of its packets on. A request that is not part of it gets no answer: another address, one byte too many, a
/// start between packets. PROTOCOL 4.21.
#[test]
fn a_repeated_read_is_executed_again() {
    let mut node = Node::usual();
    node.read(100, 0, 1000);
    node.write(104, 512, b"now");
    let whole = node.read(100, 0, 1000);
    assert_eq!((whole.frames.len(), whole.notes), (4, vec![Note::DuplicateRead]));
    let tail = node.read(102, 512, 488);
    assert_eq!(tail.lines(), ["ReadResponseFirst 102 msn=2 [256]", "ReadResponseLast 103 msn=2 [232]"]);
    assert_eq!(&payloads(&tail.frames)[..3], b"now");
    assert_eq!(node.read(101, 256, 10).lines(), ["ReadResponseOnly 101 msn=2 [10]"]);
    for (psn, offset, len) in [(100, 8, 10), (102, 512, 489), (102, 500, 10), (99, 0, 10), (103, 1024, 0)] {
        let sent = node.read(psn, offset, len);
        assert_eq!(
            (sent.frames.len(), sent.notes),
            (0, vec![Note::DuplicateForgotten]),
            "{psn} {offset} {len}"
        );
    }
    assert_eq!(node.flush().lines(), ["Acknowledge 104 msn=2"], "the held ACK is not lost");
}

/// An atomic is repeated because its response was lost. It must not be executed twice: the saved result is
/// sent. The last sixteen are saved, older ones get no answer. PROTOCOL 4.22, IBA 9.7.5.1.5.
#[test]
fn a_repeated_atomic_is_answered_from_memory() {
    let mut node = Node::new(responder_config(), ModelMemory::new(64));
    for psn in 100..=100 + RESPONDER_DEPTH {
        node.fetch_add(psn, 0, 1);
    }
    for psn in 101..=100 + RESPONDER_DEPTH {
        let sent = node.fetch_add(psn, 0, 1);
        assert!(sent.lines()[0].ends_with(&format!("was {:#x}", psn - 100)), "{:?}", sent.lines());
        assert_eq!(sent.notes, [Note::DuplicateAtomic]);
    }
    let sent = node.fetch_add(100, 0, 1);
    assert_eq!((sent.frames.len(), sent.notes), (0, vec![Note::DuplicateForgotten]));
    assert_eq!(le(&node.memory.bytes[..8]), u64::from(RESPONDER_DEPTH) + 1, "each was executed once");
}

/// PSNs wrap completely: 2^24 packets later an atomic has the PSN of an old one that is still saved, because
/// only WRITEs came in between. Its duplicate must get its own result, not the old one's. PROTOCOL 4.2, 4.22.
#[test]
fn a_result_from_the_last_round_is_not_mixed_up() {
    let mut node = Node::new(responder_config(), ModelMemory::new(64));
    node.fetch_add(100, 0, 1);
    let mut out = farmem_machine::Outbox::<(), Note>::new();
    for n in 1..1 << 24 {
        let bth = Bth::new(WriteOnly, NODE_QPN, Psn::new(100).plus(n));
        let packet = Packet { bth, ext: reth(0, 0), payload: &[] };
        node.responder.on_packet(HOST, &packet, &mut node.memory, &mut out);
    }
    assert!(out.is_empty(), "nothing was asked, nothing was wrong");
    assert_eq!(node.fetch_add(100, 0, 1).lines(), ["AtomicAck 100 msn=1 was 0x1"]);
    let again = node.fetch_add(100, 0, 1);
    assert_eq!(
        (again.lines(), again.notes),
        (vec!["AtomicAck 100 msn=1 was 0x1".into()], vec![Note::DuplicateAtomic])
    );
}

/// Packets out of order: a message's middle without its start, another opcode in its middle. Each is refused
/// with NAK 0x61 and changes nothing. PROTOCOL 4.18, IBA 9.7.4.1.2.
#[test]
fn opcodes_out_of_order_are_refused() {
    let full: &[u8] = &[9; 256];
    let cases: [(bool, Opcode, Extension, &[u8]); 9] = [
        (false, WriteMiddle, Extension::None, full),
        (false, WriteLast, Extension::None, full),
        (true, WriteFirst, reth(0, 600), full),
        (true, WriteOnly, reth(0, 256), full),
        (true, ReadRequest, reth(0, 256), &[]),
        (
            true,
            Opcode::FetchAdd,
            Extension::AtomicEth(AtomicEth { va: va(0), rkey: RKEY, swap_or_add: 1, compare: 0 }),
            &[],
        ),
        (true, Opcode::SendOnly, Extension::None, &[]),
        (true, Opcode::SendMiddle, Extension::None, full),
        (true, Opcode::WriteLastImm, Extension::Imm(1), full),
    ];
    for (within, opcode, ext, payload) in cases {
        let mut node = Node::usual();
        if within {
            part(&mut node, WriteFirst, 100, 600, &numbered(0, 256));
        }
        let psn = if within { 101 } else { 100 };
        let sent = node.take(opcode, psn, ext, payload);
        assert_eq!(sent.lines(), [format!("Acknowledge {psn} Nak(InvalidRequest) msn=0")], "{opcode:?}");
        assert_eq!(sent.notes, [Note::InvalidRequest]);
        assert_eq!(node.memory.bytes, numbered(0, 4096), "{opcode:?} changed nothing");
    }
}

/// A memory node posts no receives: SENDs, and WRITEs with immediate, are refused. PROTOCOL 4.4.
#[test]
fn sends_are_refused() {
    let reth_imm = |len| Extension::RethImm(Reth { va: va(0), rkey: RKEY, dma_len: len }, 1);
    let cases = [
        (Opcode::SendFirst, Extension::None),
        (Opcode::SendOnly, Extension::None),
        (Opcode::SendOnlyImm, Extension::Imm(1)),
        (Opcode::WriteOnlyImm, reth_imm(0)),
    ];
    for (opcode, ext) in cases {
        let mut node = Node::usual();
        assert_eq!(
            node.take(opcode, 100, ext, &[]).lines(),
            ["Acknowledge 100 Nak(InvalidRequest) msn=0"],
            "{opcode:?}"
        );
    }
}

/// Every length that a WRITE packet must not have. PROTOCOL 4.5, IBA 9.7.4.1.6.
#[test]
fn wrong_lengths_are_refused() {
    // Opcode, DMALen, bytes of the packet; those of a middle one follow a proper FIRST.
    let starts = [
        (WriteFirst, 600, 255),
        (WriteFirst, 600, 257),
        (WriteFirst, 600, 0),
        (WriteFirst, 256, 256),
        (WriteFirst, 10, 256),
        (WriteFirst, 0, 256),
        (WriteOnly, 10, 9),
        (WriteOnly, 10, 11),
        (WriteOnly, 300, 300),
        (WriteOnly, 0, 4),
    ];
    let rest =
        [(WriteMiddle, 600, 255), (WriteMiddle, 600, 257), (WriteMiddle, 512, 256), (WriteLast, 600, 256)];
    let ends = [
        (WriteLast, 300, 43),
        (WriteLast, 300, 45),
        (WriteLast, 300, 0),
        (WriteLast, 600, 88),
        (WriteLast, 513, 257),
    ];
    for (opcode, total, len) in starts {
        let mut node = Node::usual();
        let sent = part(&mut node, opcode, 100, total, &vec![9; len]);
        assert_eq!(sent.notes, [Note::InvalidRequest], "{opcode:?} {total} {len}");
        assert_eq!(node.memory.changes, 0);
    }
    for (opcode, total, len) in rest.into_iter().chain(ends) {
        let mut node = Node::usual();
        part(&mut node, WriteFirst, 100, total, &[9; 256]);
        let sent = part(&mut node, opcode, 101, total, &vec![9; len]);
        assert_eq!(sent.notes, [Note::InvalidRequest], "{opcode:?} {total} {len}");
        assert_eq!(node.memory.changes, 1, "only the FIRST");
    }
}

/// Wrong key, unknown address, beyond the end, no permission: NAK 0x62 with the PSN of the packet, a note with the
/// reason, and memory as it was. PROTOCOL 4.25, 4.27, IBA 9.7.4.1.5.
#[test]
fn memory_that_is_not_granted_is_refused() {
    let eth =
        |offset, rkey| Extension::AtomicEth(AtomicEth { va: va(offset), rkey, swap_or_add: 1, compare: 0 });
    let key = Rkey(1);
    let foreign = Extension::Reth(Reth { va: va(0), rkey: key, dma_len: 1 });
    let cases: [(Opcode, Extension, &[u8], AccessError); 9] = [
        (ReadRequest, foreign, &[], AccessError::WrongKey(key)),
        (WriteOnly, foreign, &[1], AccessError::WrongKey(key)),
        (Opcode::FetchAdd, eth(0, key), &[], AccessError::WrongKey(key)),
        (ReadRequest, reth(4096, 1), &[], AccessError::NotMapped),
        (ReadRequest, reth(4000, 97), &[], AccessError::OutOfBounds),
        (WriteOnly, reth(4095, 2), &[1, 2], AccessError::OutOfBounds),
        (WriteFirst, reth(0, 1 << 31), &[1; 256], AccessError::OutOfBounds),
        (WriteOnly, reth(2048, 1), &[1], AccessError::NoPermission),
        (Opcode::FetchAdd, eth(2048, RKEY), &[], AccessError::NoPermission),
    ];
    for (opcode, ext, payload, refusal) in cases {
        let mut node = Node::usual();
        node.memory.writable = 2048;
        let sent = node.take(opcode, 100, ext, payload);
        assert_eq!(sent.lines(), ["Acknowledge 100 Nak(RemoteAccess) msn=0"], "{opcode:?} {refusal:?}");
        assert_eq!((sent.notes, node.memory.changes), (vec![Note::Refused(refusal)], 0));
    }
}

/// A WRITE that starts inside and ends outside: its first packet alone would be allowed, and must not be
/// written. PROTOCOL 4.25.
#[test]
fn a_write_is_checked_whole_before_its_first_byte() {
    let mut node = Node::new(responder_config(), ModelMemory::new(512));
    let sent = part(&mut node, WriteFirst, 100, 513, &[1; 256]);
    assert_eq!((sent.notes, node.memory.changes), (vec![Note::Refused(AccessError::OutOfBounds)], 0));
}

/// The grant is revoked between two packets of a WRITE, or between a READ and its repetition. Memory would
/// rightly panic at an unchecked access; the request is refused instead. PROTOCOL 4.21, 4.25.
#[test]
fn a_grant_taken_away_stops_at_once() {
    let mut node = Node::usual();
    part(&mut node, WriteFirst, 100, 600, &[1; 256]);
    node.memory.perm = Perm::Read;
    let sent = part(&mut node, WriteMiddle, 101, 600, &[1; 256]);
    assert_eq!(sent.lines(), ["Acknowledge 101 Nak(RemoteAccess) msn=0"]);
    assert_eq!(node.memory.changes, 1);

    let mut node = Node::usual();
    node.read(100, 0, 600);
    node.memory.perm = Perm::None;
    let sent = node.read(101, 256, 344);
    assert_eq!(sent.lines(), ["Acknowledge 101 Nak(RemoteOperational) msn=1"]);
    assert_eq!(sent.notes, [Note::Refused(AccessError::NoPermission)]);
}

/// An atomic between two words. PROTOCOL 4.26.
#[test]
fn a_misaligned_atomic_is_an_invalid_request() {
    for offset in 1..8 {
        let mut node = Node::usual();
        let sent = node.fetch_add(100, offset, 1);
        assert_eq!(sent.lines(), ["Acknowledge 100 Nak(InvalidRequest) msn=0"]);
        assert_eq!((sent.notes, node.memory.changes), (vec![Note::Refused(AccessError::Misaligned)], 0));
    }
}

/// After a refusal no new request is executed. The refused packet gets its NAK again, because the first may
/// have been lost, and duplicates get their answers; later packets are dropped. PROTOCOL 4.15, 4.27.
#[test]
fn after_a_refusal_nothing_new_is_executed() {
    let mut node = Node::usual();
    node.fetch_add(100, 0, 1);
    let nak = node.write(101, 5000, b"x").lines();
    assert_eq!(nak, ["Acknowledge 101 Nak(RemoteAccess) msn=1"]);
    let sent = node.write(102, 0, b"y");
    assert_eq!((sent.frames.len(), sent.notes), (0, dropped(DropReason::Broken)));
    // Even if the next request would be allowed.
    let sent = node.write(101, 0, b"x");
    assert_eq!((sent.lines(), sent.notes), (nak, dropped(DropReason::Broken)));
    assert_eq!(node.fetch_add(100, 0, 1).notes, [Note::DuplicateAtomic]);
    assert!(node.flush().lines().is_empty());
    assert_eq!(node.memory.changes, 1);
}

/// Memory that moves defers new requests, and a repeated READ that was answered before. The repeated READ is
/// no gap: a real gap behind it still causes a NAK, and a connection in error has none. PROTOCOL 4.19, 4.21,
/// 4.29.
#[test]
fn memory_that_leaves_is_no_gap() {
    let mut node = Node::usual();
    node.read(100, 0, 8);
    node.memory.moving = true;
    let sent = node.write(101, 0, b"x");
    assert_eq!(
        (sent.lines(), sent.notes),
        (vec!["Acknowledge 101 Rnr(8) msn=1".into()], vec![Note::NotReady])
    );
    assert_eq!(
        node.write(102, 0, b"y").notes,
        dropped(DropReason::AfterGap),
        "it comes again with the other"
    );
    node.memory.moving = false;
    node.write(101, 0, b"x");
    node.memory.moving = true;
    let sent = node.read(100, 0, 8);
    assert_eq!(
        (sent.lines(), sent.notes),
        (vec!["Acknowledge 100 Rnr(8) msn=2".into()], vec![Note::NotReady])
    );
    assert_eq!(node.write(103, 0, b"z").notes, [Note::NakSequence], "102 is missing");
    node.memory.moving = false;
    node.write(102, 5000, b"nowhere");
    node.memory.moving = true;
    assert_eq!(node.read(100, 0, 8).notes, [Note::NotReady], "also of a connection in error");
    assert_eq!(node.memory.changes, 1);
}

/// One small packet must not cause gigabytes of responses: a READ has a bound, checked before memory is.
/// PROTOCOL 4.24.
#[test]
fn a_huge_read_is_refused() {
    let mut node = Node::new(responder_config(), ModelMemory::new(READ_LEN_MAX as usize * 2));
    assert_eq!(node.read(100, 0, READ_LEN_MAX).frames.len(), 4096);
    let sent = node.read(100 + 4096, 0, READ_LEN_MAX + 1);
    assert_eq!(sent.lines(), ["Acknowledge 4196 Nak(InvalidRequest) msn=1"]);
}

/// Packets that are not the requester's: from another port, responses, datagrams. PROTOCOL 4.1.
#[test]
fn strangers_are_not_heard() {
    let mut node = Node::usual();
    let bth = Bth::new(WriteOnly, NODE_QPN, Psn::new(100));
    let write = Packet { bth, ext: reth(0, 1), payload: &[9] };
    for port in [Port::UNKNOWN, Port::SWITCH, Port::host(2)] {
        assert_eq!(node.take_from(port, &write).notes, dropped(DropReason::WrongPort));
    }
    for (opcode, ext) in
        [(Opcode::Acknowledge, aeth(Syndrome::Ack)), (Opcode::ReadResponseMiddle, Extension::None)]
    {
        assert_eq!(node.take(opcode, 100, ext, &[]).notes, dropped(DropReason::Opcode), "{opcode:?}");
    }
    assert_eq!(node.memory.changes, 0);
    assert!(node.take_from(HOST, &write).notes.is_empty(), "and the connection is as it was");
}

/// The expected PSN wraps inside a READ; both sides still agree on before and after. PROTOCOL 4.2.
#[test]
fn psns_wrap() {
    let config = ResponderConfig { expected_psn: Psn::new(0xff_ffff), ..responder_config() };
    let mut node = Node::new(config, ModelMemory::numbered(4096));
    assert_eq!(
        node.read(0xff_ffff, 0, 600).lines(),
        [
            "ReadResponseFirst 16777215 msn=1 [256]",
            "ReadResponseMiddle 0 [256]",
            "ReadResponseLast 1 msn=1 [88]",
        ]
    );
    assert_eq!(node.read(0, 256, 344).notes, [Note::DuplicateRead]);
    assert_eq!(node.write(4, 0, b"x").lines(), ["Acknowledge 2 Nak(PsnSequence) msn=1"]);
    node.write(2, 0, b"x");
    assert_eq!(node.write(0xff_ffff, 0, b"x").notes, [Note::DuplicateWrite]);
    assert_eq!(node.flush().lines(), ["Acknowledge 2 msn=2"]);
}

/// Answers go to the requester's queue pair, and memory is accessed in the connection's domain, whatever a
/// packet contains. PROTOCOL 4.1.
#[test]
fn a_connection_has_one_peer_and_one_domain() {
    let mut node = Node::usual();
    let sent = node.read(100, 0, 1);
    assert_eq!(Packet::parse(&sent.frames[0]).expect("readable").bth.dest_qp, HOST_QPN);
    // The model memory panics if it is accessed in any other domain.
    let access = Access { domain: DOMAIN, addr: va(0), len: 1, perm: Perm::Read };
    assert_eq!(node.memory.check(&access), Ok(()));
}
