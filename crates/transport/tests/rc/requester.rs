//! The requester alone; the test plays the responder, packet by packet. `support::line` describes the
//! notation of packets.

use crate::support::{
    HOST, HOST_QPN, Host, NODE, NODE_QPN, aeth, dropped, fetch_add, numbered, payloads, read,
    requester_config, va, write,
};
use farmem_machine::Duration;
use farmem_transport::rc::{DropReason, Failure, Note, RequesterConfig, Work};
use farmem_wire::{Aeth, Bth, Extension, Nak, Opcode, Packet, Pmtu, Psn, Syndrome, VirtAddr};

use Opcode::{
    AtomicAck, ReadResponseFirst as First, ReadResponseLast as Last, ReadResponseMiddle as Middle,
    ReadResponseOnly as Only,
};

fn original(value: u64) -> Extension {
    Extension::AtomicAck(Aeth { syndrome: Syndrome::Ack, msn: Psn::new(1) }, value)
}

/// The smallest exchange: one READ of one packet, one response, one completion with the bytes in the posted
/// buffer. No timer is left. PROTOCOL 4.3, 4.6, 4.11.
#[test]
fn a_small_read_is_one_packet_each_way() {
    let mut host = Host::new(requester_config());
    assert_eq!(host.post([read(8, 5)]).lines(), ["ReadRequest 100 A @8+5"]);
    assert_eq!(host.requester.outstanding(), 1);
    assert!(host.read_response(Only, 100, b"hello").lines().is_empty());
    let done = host.completions();
    assert_eq!((done[0].id, done[0].result, done[0].work.buf()), (0, Ok(0), b"hello".as_slice()));
    assert_eq!((done.len(), host.requester.outstanding(), host.requester.next_wake()), (1, 0, None));
}

/// A READ takes as many PSNs as its response has packets; without bytes, one. PROTOCOL 4.3, IBA 9.7.2.
#[test]
fn a_read_takes_the_psns_of_its_response() {
    let mut host = Host::new(requester_config());
    let sent = host.post([read(0, 0), read(0, 256), read(0, 257), read(0, 1024), write(4096, 1)]);
    assert_eq!(
        sent.lines(),
        [
            "ReadRequest 100 A @0+0",
            "ReadRequest 101 A @0+256",
            "ReadRequest 102 A @0+257",
            "ReadRequest 104 A @0+1024",
            "WriteOnly 108 A @4096+1 [1]",
        ]
    );
}

/// A READ of 10,000 bytes would take 40 PSNs of a window of 64 at once. It is sent as requests of a quarter
/// of the window, whose PSNs together are those of one READ. With a PMTU of 4096 the limit is 64 KiB.
/// PROTOCOL 4.8.
#[test]
fn a_long_read_is_split_into_requests() {
    let mut host = Host::new(requester_config());
    assert_eq!(
        host.post([read(0, 10_000)]).lines(),
        ["ReadRequest 100 A @0+4096", "ReadRequest 116 A @4096+4096", "ReadRequest 132 A @8192+1808",]
    );
    let mut host = Host::new(RequesterConfig { pmtu: Pmtu::B4096, window_psns: 128, ..requester_config() });
    assert_eq!(
        host.post([read(0, 100_000)]).lines(),
        ["ReadRequest 100 A @0+65536", "ReadRequest 116 A @65536+34464"]
    );
}

/// A WRITE of 600 bytes: FIRST with the address and the whole length, MIDDLE, LAST with the rest; only the last one
/// asks for an acknowledgement. One packet's worth is an ONLY, and so are no bytes. PROTOCOL 4.5, 4.6.
#[test]
fn a_write_is_cut_at_the_pmtu() {
    let mut host = Host::new(requester_config());
    let sent = host.post([write(0, 600), write(0, 256), write(0, 0)]);
    assert_eq!(
        sent.lines(),
        [
            "WriteFirst 100 @0+600 [256]",
            "WriteMiddle 101 [256]",
            "WriteLast 102 A [88]",
            "WriteOnly 103 A @0+256 [256]",
            "WriteOnly 104 A @0+0",
        ]
    );
    assert_eq!(payloads(&sent.frames[..3]), numbered(0, 600));
}

/// A WRITE longer than the window would stall for ever if only its last packet asked for an acknowledgement. With
/// windows of 128 and more one in 64 asks, with smaller ones one in half a window. PROTOCOL 4.6.
#[test]
fn a_long_write_asks_in_between() {
    for (window_psns, every) in [(128, 64), (64, 32), (5, 2), (1, 1)] {
        let mut host = Host::new(RequesterConfig { window_psns, ..requester_config() });
        let sent = host.post([write(0, 256 * 200)]);
        assert_eq!(sent.frames.len(), window_psns as usize, "no more than the window");
        for (packet, line) in (1..).zip(sent.lines()) {
            assert_eq!(
                line.contains(" A"),
                packet % every == 0,
                "window {window_psns}, packet {packet}: {line}"
            );
        }
    }
}

/// The window counts PSNs, including those a READ reserves. Requests beyond it wait for progress, in order.
/// PROTOCOL 4.7.
#[test]
fn the_window_holds() {
    let mut host = Host::new(RequesterConfig { window_psns: 4, ..requester_config() });
    let sent = host.post([write(0, 700), write(0, 10), read(4096, 256), write(0, 20)]);
    assert_eq!(sent.frames.len(), 4, "three packets and one");
    assert_eq!(
        host.ack(101, Syndrome::Ack).lines(),
        ["ReadRequest 104 A @4096+256", "WriteOnly 105 A @0+20 [20]"]
    );
}

/// The responder remembers a bounded number of READs and atomics, so no more may be outstanding. WRITEs
/// behind them wait too: requests go in order. PROTOCOL 4.7.
#[test]
fn the_depth_holds() {
    let mut host = Host::new(RequesterConfig { depth: 2, ..requester_config() });
    let sent = host.post([read(0, 1), fetch_add(512), read(0, 2), write(1024, 1)]);
    assert_eq!(sent.lines(), ["ReadRequest 100 A @0+1", "FetchAdd 101 A @512 0x5 if 0x0"]);
    assert_eq!(
        host.read_response(Only, 100, &[1]).lines(),
        ["ReadRequest 102 A @0+2", "WriteOnly 103 A @1024+1 [1]"]
    );
}

/// The queue in front of the window is bounded; beyond it, a request comes back unchanged. PROTOCOL 4.7.
#[test]
fn the_queue_is_bounded() {
    let mut host = Host::new(RequesterConfig { queue_max: 2, window_psns: 1, ..requester_config() });
    assert_eq!(host.post([write(0, 1)]).frames.len(), 1, "sent, so it does not wait");
    assert_eq!(host.requester.post(1, write(0, 2)), Ok(()));
    assert_eq!(host.requester.post(2, write(0, 3)), Ok(()));
    assert_eq!(host.requester.post(3, write(0, 4)), Err(write(0, 4)));
    host.ack(100, Syndrome::Ack);
    assert_eq!(
        host.requester.post(3, write(0, 4)),
        Err(write(0, 4)),
        "a completion that is not taken counts too"
    );
    assert_eq!(host.results(), [(0, Ok(0))]);
    assert_eq!(host.requester.post(3, write(0, 4)), Ok(()));
}

/// The responder answers three WRITEs with one ACK: all are done, in order. PROTOCOL 4.9, IBA 9.7.5.1.2.
#[test]
fn one_ack_ends_many_writes() {
    let mut host = Host::new(requester_config());
    host.post([write(0, 600), write(0, 1), write(0, 1), write(0, 1)]);
    host.ack(104, Syndrome::Ack);
    assert_eq!(host.results(), [(0, Ok(0)), (1, Ok(0)), (2, Ok(0))]);
    assert_eq!(host.requester.outstanding(), 1);
}

/// An atomic's response carries the old value and also acknowledges the WRITE before it. PROTOCOL 4.9.
#[test]
fn a_response_acknowledges_what_is_before_it() {
    let mut host = Host::new(requester_config());
    let swap = Work::CmpSwap { addr: va(8), compare: 1, swap: 2 };
    let sent = host.post([write(0, 1), swap, write(0, 1), read(0, 3)]);
    assert_eq!(sent.lines()[1], "CmpSwap 101 A @8 0x2 if 0x1");
    host.take(AtomicAck, 101, original(77), &[]);
    assert_eq!(host.results(), [(0, Ok(0)), (1, Ok(77))]);
    host.read_response(Only, 103, &[1, 2, 3]);
    assert_eq!(host.results(), [(2, Ok(0)), (3, Ok(0))]);
}

/// Answers to completed requests, to requests never sent, and from half a PSN space away: nothing changes,
/// and no request completes twice. PROTOCOL 4.9, 4.17.
#[test]
fn answers_out_of_place_are_dropped() {
    let mut host = Host::new(requester_config());
    host.post([write(0, 1), read(0, 1)]);
    host.ack(100, Syndrome::Ack);
    assert_eq!(host.results().len(), 1);
    for psn in [100, 99, 102, 100 + 0x7f_ffff, 100 + 0x80_0000] {
        for syndrome in [
            Syndrome::Ack,
            Syndrome::Rnr(1),
            Syndrome::Nak(Nak::PsnSequence),
            Syndrome::Nak(Nak::RemoteAccess),
        ] {
            let sent = host.ack(psn, syndrome);
            assert_eq!(
                (sent.frames.len(), sent.notes),
                (0, dropped(DropReason::Unexpected)),
                "{psn} {syndrome:?}"
            );
        }
        assert_eq!(host.read_response(Only, psn, &[1]).notes, dropped(DropReason::Unexpected));
        assert_eq!(host.take(AtomicAck, psn, original(1), &[]).notes, dropped(DropReason::Unexpected));
    }
    assert!(host.results().is_empty() && !host.requester.is_broken());
}

/// Frames that are not the peer's answers: from another port, a request, a datagram. PROTOCOL 4.1.
#[test]
fn strangers_are_not_heard() {
    let mut host = Host::new(requester_config());
    host.post([write(0, 1)]);
    let bth = Bth::new(Opcode::Acknowledge, HOST_QPN, Psn::new(100));
    let ack = Packet { bth, ext: aeth(Syndrome::Ack), payload: &[] };
    assert_eq!(host.take_from(HOST, &ack).notes, dropped(DropReason::WrongPort));
    let request = Packet {
        bth: Bth::new(Opcode::SendOnly, NODE_QPN, Psn::new(100)),
        ext: Extension::None,
        payload: &[],
    };
    assert_eq!(host.take_from(NODE, &request).notes, dropped(DropReason::Opcode));
    assert_eq!(host.requester.outstanding(), 1);
}

/// The READ's response was lost; the ACK for the WRITE after it arrives. A READ never ends by an ACK, so it must be
/// asked for again, with all that follows. PROTOCOL 4.9, 4.10, IBA 9.9.2.3.
///
/// ```text
///   host                 node
///    READ 100 ----------> executes
///    WRITE 101 ---------> executes
///           x------------ READ RESPONSE 100 (lost)
///    <------------------- ACK 101
///    READ 100, WRITE 101 -> a duplicate of each
/// ```
#[test]
fn an_overtaken_response_is_asked_for_again() {
    let mut host = Host::new(requester_config());
    let first = host.post([read(0, 4), write(512, 1)]).lines();
    let sent = host.ack(101, Syndrome::Ack);
    assert_eq!((sent.lines(), sent.notes), (first, vec![Note::ImpliedNak]));
    assert!(host.results().is_empty());
    host.read_response(Only, 100, b"late");
    host.ack(101, Syndrome::Ack);
    assert_eq!(host.results(), [(0, Ok(0)), (1, Ok(0))]);
}

/// The first response of sixteen is lost, the other fifteen arrive. If each of them caused a repetition, one
/// loss would cost fifteen windows. PROTOCOL 4.10.
#[test]
fn one_gap_is_asked_for_once() {
    let mut host = Host::new(requester_config());
    host.post([read(0, 4096)]);
    assert_eq!(host.read_response(Middle, 101, &[0; 256]).lines(), ["ReadRequest 100 A @0+4096"]);
    for psn in 102..115 {
        assert_eq!(host.read_response(Middle, psn, &[0; 256]).notes, dropped(DropReason::Unexpected));
    }
}

/// A READ of four packets; the third response is lost. The requester asks from there: PSN + 2, VA + 2 PMTU,
/// the remaining length. The answer may start with FIRST, as the specification says, or continue with MIDDLE,
/// as Soft-RoCE does. PROTOCOL 4.11.
#[test]
fn a_read_is_continued_from_the_first_missing_packet() {
    let bytes = numbered(0, 1000);
    let part = |i: usize| &bytes[i * 256..1000.min(i * 256 + 256)];
    for restart in [First, Middle] {
        let mut host = Host::new(requester_config());
        host.post([read(0, 1000)]);
        host.read_response(First, 100, part(0));
        host.read_response(Middle, 101, part(1));
        let sent = host.read_response(Last, 103, part(3));
        assert_eq!(
            (sent.lines(), sent.notes),
            (vec!["ReadRequest 102 A @512+488".into()], vec![Note::ImpliedNak])
        );
        assert!(host.read_response(restart, 102, part(2)).notes.is_empty());
        assert!(host.read_response(Last, 103, part(3)).notes.is_empty());
        assert_eq!(host.completions()[0].work.buf(), bytes);
    }
    // Only the last one is missing: ONLY, or LAST.
    for restart in [Only, Last] {
        let mut host = Host::new(requester_config());
        host.post([read(0, 1000)]);
        for (psn, opcode) in [(100, First), (101, Middle), (102, Middle)] {
            host.read_response(opcode, psn, part(psn as usize - 100));
        }
        assert_eq!(host.wake().lines(), ["ReadRequest 103 A @768+232"]);
        host.read_response(restart, 103, part(3));
        assert_eq!(host.completions()[0].work.buf(), bytes);
    }
}

/// A repeated part ends where its READ request ended: the responder remembers requests, and accepts only
/// parts of them. PROTOCOL 4.8, 4.11, 4.21.
#[test]
fn a_continued_read_stays_within_its_request() {
    let mut host = Host::new(requester_config());
    host.post([read(0, 10_000)]);
    host.read_response(First, 100, &[0; 256]);
    assert_eq!(
        host.wake().lines(),
        ["ReadRequest 101 A @256+3840", "ReadRequest 116 A @4096+4096", "ReadRequest 132 A @8192+1808",]
    );
}

/// Responses with a wrong shape: too short, too long, ending early, not ending, refusing, or for a request of
/// another kind. Each is dropped, and the buffer stays as it is. PROTOCOL 4.11.
#[test]
fn misshapen_responses_are_dropped() {
    let mut host = Host::new(requester_config());
    host.post([read(0, 300), write(512, 1), fetch_add(1024)]);
    let cases: [(Opcode, u32, usize); 9] = [
        (First, 100, 255),
        (First, 100, 300),
        (First, 100, 0),
        (Only, 100, 256),
        (Last, 100, 256),
        (First, 101, 44),
        (Middle, 101, 44),
        (Only, 102, 1),
        (Only, 103, 8),
    ];
    for (opcode, psn, len) in cases {
        let sent = host.read_response(opcode, psn, &vec![0xff; len]);
        assert_eq!(
            (sent.frames.len(), sent.notes),
            (0, dropped(DropReason::Misshapen)),
            "{opcode:?} {psn} {len}"
        );
    }
    for psn in [100, 101, 102] {
        assert_eq!(
            host.take(AtomicAck, psn, original(1), &[]).notes,
            dropped(DropReason::Misshapen),
            "{psn}"
        );
    }
    let refusing = aeth(Syndrome::Nak(Nak::RemoteAccess));
    assert_eq!(host.take(First, 100, refusing, &[0; 256]).notes, dropped(DropReason::Misshapen));
    host.read_response(First, 100, &[1; 256]);
    host.read_response(Last, 101, &[2; 44]);
    assert_eq!(host.completions()[0].work.buf(), [vec![1; 256], vec![2; 44]].concat());
}

/// Packet 102 of a WRITE was lost, and the responder reports it. Earlier packets are acknowledged, and the
/// WRITE continues in its middle: MIDDLE and LAST, without an address. PROTOCOL 4.12, IBA 9.7.5.2.2.
#[test]
fn a_write_goes_on_in_its_middle() {
    let mut host = Host::new(requester_config());
    host.post([write(0, 1), write(0, 1000), write(0, 2)]);
    let sent = host.ack(102, Syndrome::Nak(Nak::PsnSequence));
    assert_eq!(
        sent.lines(),
        [
            "WriteMiddle 102 [256]",
            "WriteMiddle 103 [256]",
            "WriteLast 104 A [232]",
            "WriteOnly 105 A @0+2 [2]"
        ]
    );
    assert_eq!(payloads(&sent.frames[..3]), numbered(256, 744));
    assert_eq!((host.results(), sent.notes), (vec![(0, Ok(0))], vec![Note::WentBack]));
    // The network duplicates the NAK: a second retransmission would not help.
    let again = host.ack(102, Syndrome::Nak(Nak::PsnSequence));
    assert_eq!((again.frames.len(), again.notes), (0, dropped(DropReason::Unexpected)));
    // Another gap is handled on its own.
    assert_eq!(host.ack(104, Syndrome::Nak(Nak::PsnSequence)).frames.len(), 2);
}

/// An ACK arrives after everything was retransmitted: the packets crossed. Acknowledged packets are not sent
/// a third time. PROTOCOL 4.9, 4.14.
#[test]
fn a_late_ack_counts() {
    let mut host = Host::new(RequesterConfig { window_psns: 2, ..requester_config() });
    host.post([write(0, 1), write(0, 2), write(0, 3)]);
    assert_eq!(host.wake().frames.len(), 2);
    assert_eq!(host.ack(101, Syndrome::Ack).lines(), ["WriteOnly 102 A @0+3 [3]"]);
    assert_eq!(host.results().len(), 2);
}

/// READ, then WRITE of the same bytes, and the READ's response is lost. If the WRITE were in flight already,
/// the repeated READ would return bytes from the future. So an overlapping WRITE or atomic waits for the
/// READ; another one does not. PROTOCOL 4.16.
#[test]
fn a_write_waits_for_a_read_of_the_same_bytes() {
    let cases = [
        (write(299, 1), true),
        (write(300, 9), false),
        (write(90, 10), false),
        (write(90, 11), true),
        (write(0, 1000), true),
        (fetch_add(296), true),
        (fetch_add(304), false),
        (read(100, 200), false),
    ];
    for (second, waits) in cases {
        let mut host = Host::new(requester_config());
        let sent = host.post([read(100, 200), second.clone(), write(8192, 1)]);
        assert_eq!(sent.frames.len() == 1, waits, "{second:?}: {:?}", sent.lines());
        assert_eq!(host.read_response(Only, 100, &[0; 200]).frames.is_empty(), !waits, "{second:?}");
    }
}

/// Requests that no packet can carry fail at once and do not affect others. PROTOCOL 4.17.
#[test]
fn impossible_requests_end_at_once() {
    let mut host = Host::new(requester_config());
    let long = Work::Read { addr: va(0), buf: vec![0; (1 << 31) + 1] };
    let beyond = Work::Write { addr: VirtAddr(u64::MAX - 2), buf: vec![0; 4] };
    let atomic = Work::FetchAdd { addr: VirtAddr(u64::MAX - 6), add: 1 };
    let fits = Work::Write { addr: VirtAddr(u64::MAX - 2), buf: vec![0; 3] };
    assert_eq!(host.post([long, beyond, atomic, fits]).frames.len(), 1);
    assert!(host.ack(100, Syndrome::Ack).notes.is_empty());
    let results = [
        (0, Err(Failure::InvalidRequest)),
        (1, Err(Failure::RemoteAccess)),
        (2, Err(Failure::RemoteAccess)),
        (3, Ok(0)),
    ];
    assert_eq!(host.results(), results);
}

/// PSNs wrap within a WRITE, within a READ, and between an ACK and the packets that it acknowledges. PROTOCOL
/// 4.2.
#[test]
fn psns_wrap() {
    let mut host = Host::new(RequesterConfig { first_psn: Psn::new(0xff_fffe), ..requester_config() });
    let sent = host.post([write(0, 700), read(8192, 700)]);
    assert_eq!(
        sent.lines(),
        [
            "WriteFirst 16777214 @0+700 [256]",
            "WriteMiddle 16777215 [256]",
            "WriteLast 0 A [188]",
            "ReadRequest 1 A @8192+700",
        ]
    );
    assert_eq!(host.ack(0xff_ffff, Syndrome::Nak(Nak::PsnSequence)).frames.len(), 3);
    host.ack(0, Syndrome::Ack);
    host.read_response(First, 1, &[0; 256]);
    assert_eq!(host.wake().lines(), ["ReadRequest 2 A @8448+444"]);
    assert_eq!(host.results(), [(0, Ok(0))]);
}

/// A configuration with a useless window or a timer that never runs is a bug of the owner, not a fault of a
/// peer. PROTOCOL 4.7, 4.14.
#[test]
fn impossible_connections_are_refused() {
    let good = requester_config();
    let bad = [
        RequesterConfig { window_psns: 0, ..good },
        RequesterConfig { window_psns: 129, ..good },
        RequesterConfig { depth: 0, ..good },
        RequesterConfig { depth: 17, ..good },
        RequesterConfig { timeout: Duration::ZERO, ..good },
    ];
    for config in bad {
        assert!(std::panic::catch_unwind(|| Host::new(config)).is_err(), "{config:?}");
    }
}
