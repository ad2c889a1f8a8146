//! Region reads and writes, and the conditions under which a datagram is accepted.

use super::*;
use crate::{DEDUP_DEPTH, region_read_len_max};
use farmem_wire::message::Kind;

fn read(at: u64, len: u32) -> Body<'static> {
    Body::RegionRead { addr: addr(at), len, data: &[] }
}

fn write(at: u64, data: &[u8]) -> Body<'_> {
    Body::RegionWrite { addr: addr(at), len: u32::try_from(data.len()).unwrap(), data }
}

/// A host writes and reads back. The switch forwards the request, and the answer goes to the host (PROTOCOL
/// 7.18).
#[test]
fn a_write_is_read_back() {
    let mut bench = Bench::ready();
    let answer = bench.ask(header(ALICE, 1), write(0x10, b"far memory"));
    assert_eq!(answer.header.status, Status::Ok);
    assert_eq!(answer.body, Body::RegionWrite { addr: addr(0x10), len: 10, data: &[] });

    let answer = bench.ask(header(ALICE, 2), read(0x0e, 14));
    assert_eq!(answer.header.status, Status::Ok);
    assert_eq!(answer.body, Body::RegionRead { addr: addr(0x0e), len: 14, data: b"\0\0far memory\0\0" });
    assert_eq!(bench.bytes(addr(0x10), 10), b"far memory");
}

/// A host writes in the last generation of its number and leaves. A later host of the first generation is
/// ignored, because its writes may be old copies. After the control plane restarts the number's generations,
/// its write is executed once (PROTOCOL 5.7). Restarting the number of a present host is refused.
#[test]
fn a_number_that_begins_anew_is_heard() {
    let mut bench = Bench::ready();
    let port = Port::host(HOST.0);
    let of = |generation| Header { request: RequestId::new(HOST, generation, 1), ..header(ALICE, 1) };
    assert_eq!(bench.ask(of(u16::MAX), write(0x10, b"last")).header.status, Status::Ok);
    bench.update(&[Update::PeerGone { port: port.0 }]);
    bench.update(&[peer(port, 3)]);
    let first = datagram(&Message { header: of(1), body: write(0x10, b"anew") });
    bench.hear(Port::SWITCH, &first);
    assert_eq!((bench.sent.len(), bench.bytes(addr(0x10), 4)), (0, b"last".to_vec()));
    assert!(bench.notes.contains(&Note::Dropped(DropReason::Forgotten)));

    assert_eq!(bench.update(&[Update::Anew { host: HOST }]), (Status::Malformed, 0));
    let again = [Update::PeerGone { port: port.0 }, Update::Anew { host: HOST }, peer(port, 3)];
    assert_eq!(bench.update(&again), (Status::Ok, 0));
    assert_eq!(bench.ask(of(1), write(0x10, b"anew")).header.status, Status::Ok);
    bench.put(addr(0x10), b"then");
    assert_eq!(bench.ask(of(1), write(0x10, b"anew")).header.status, Status::Ok, "the answer is sent again");
    assert_eq!(bench.bytes(addr(0x10), 4), b"then");
}

/// Every bad request gets its own answer, and no byte changes (PROTOCOL 7.14, 7.19, 7.20).
#[test]
fn a_refusal_says_why() {
    let mut bench = Bench::ready();
    let before = bench.node.store().clone();
    let most = u32::try_from(region_read_len_max(Pmtu::B1024)).unwrap();
    assert_eq!(most, 1024 - 36);
    let cases: [(Domain, Body<'_>, Status, &str); 13] = [
        (ALICE, read(0x0, most), Status::Ok, "the longest read"),
        (ALICE, read(0x0, most + 1), Status::Malformed, "its answer does not fit a datagram"),
        (ALICE, read(0x0, u32::MAX), Status::Malformed, "nor does this one"),
        (ALICE, read(0x0, 0), Status::Malformed, "a read of nothing"),
        (ALICE, write(0x0, b""), Status::Malformed, "a write of nothing"),
        (ALICE, read(0x1ffe, 2), Status::Ok, "the last two bytes of the grant"),
        (ALICE, read(0x1ffe, 3), Status::OutOfBounds, "and one more"),
        (ALICE, read(0x0fff, 2), Status::Ok, "from one grant into the next"),
        (ALICE, write(0x0fff, b"ab"), Status::NoPermission, "which is read only"),
        (ALICE, write(0x1000, b"a"), Status::NoPermission, "read only"),
        (ALICE, read(0x2000, 1), Status::NotMapped, "the memory of another domain"),
        (BOB, read(0x0, 1), Status::NotMapped, "and the other way round"),
        (Domain(0), read(0x0, 1), Status::NotMapped, "no domain at all"),
    ];
    for (counter, (domain, body, status, why)) in (0..).zip(cases) {
        let answer = bench.ask(header(domain, counter), body);
        assert_eq!(answer.header.status, status, "{why}");
        if status != Status::Ok {
            let (Body::RegionRead { data, .. } | Body::RegionWrite { data, .. }) = answer.body else {
                panic!("a region's answer")
            };
            assert!(data.is_empty(), "{why}");
        }
    }
    let wraps = Body::RegionRead { addr: VirtAddr(u64::MAX), len: 2, data: &[] };
    bench.not_here(header(ALICE, 99), wraps);
    bench.not_here(header(ALICE, 98), read(LEN, 1));
    bench.not_here(header(ALICE, 97), write(LEN, b"lost"));
    assert_eq!(*bench.node.store(), before);
}

/// A vma is freed: a request that was valid before is refused (PROTOCOL 7.15).
#[test]
fn a_freed_vma_is_refused() {
    let mut bench = Bench::ready();
    assert_eq!(bench.ask(header(ALICE, 1), read(0, 8)).header.status, Status::Ok);
    bench.update(&[Update::Protect {
        domain: ALICE,
        base: BASE,
        len: 0x1000,
        perm: Perm::None,
        vma_log2: 64,
    }]);
    assert_eq!(bench.ask(header(ALICE, 2), read(0, 8)).header.status, Status::NotMapped);
    assert_eq!(bench.ask(header(ALICE, 3), write(0, b"late")).header.status, Status::NotMapped);
    bench.update(&[Update::RangeGone { base: BASE, len: LEN }]);
    bench.not_here(header(ALICE, 4), read(0x1000, 8));
}

/// The answer to a write is lost and the host repeats the request; meanwhile another host wrote the same
/// bytes. The copy is answered and must not overwrite them (PROTOCOL 7.20).
#[test]
fn a_repeated_write_is_executed_once() {
    let mut bench = Bench::ready();
    let request = header(ALICE, 1);
    let first = bench.ask(request, write(0, b"one")).header;
    bench.ask(header(ALICE, 2), write(0, b"two"));
    let again = bench.ask(request, write(0, b"one"));
    assert_eq!((again.header, again.body.kind()), (first, Kind::RegionWrite), "the same answer");
    assert_eq!(bench.notes.last(), Some(&Note::DuplicateWrite));
    assert_eq!(bench.bytes(addr(0), 3), b"two");
    assert_eq!(bench.node.stats().region_writes, 2);
}

/// A copy of a write arrives after so many later ones that its answer is forgotten. The node cannot tell
/// whether it was executed, so it must not be (PROTOCOL 7.20).
#[test]
fn a_forgotten_write_is_dropped() {
    let mut bench = Bench::ready();
    for counter in 0..=u32::try_from(DEDUP_DEPTH).unwrap() {
        let data = counter.to_le_bytes();
        assert_eq!(bench.ask(header(ALICE, counter), write(0, &data)).header.status, Status::Ok);
    }
    let oldest = datagram(&Message { header: header(ALICE, 0), body: write(0, b"old!") });
    bench.hear_nothing(Port::SWITCH, &oldest, DropReason::Forgotten);
    bench.ask(header(ALICE, 1), write(0, b"old!"));
    assert_eq!(bench.notes.last(), Some(&Note::DuplicateWrite), "the next one is still remembered");
}

/// A write is refused, then the domain gets a grant, then a late copy of the write arrives. The host believes
/// the write refused, so it must not be executed (PROTOCOL 7.20).
#[test]
fn a_refused_write_stays_refused() {
    let mut bench = Bench::ready();
    let request = header(ALICE, 1);
    assert_eq!(bench.ask(request, write(0x1000, b"no")).header.status, Status::NoPermission);
    bench.update(&[Update::Protect {
        domain: ALICE,
        base: BASE,
        len: LEN,
        perm: Perm::ReadWrite,
        vma_log2: 64,
    }]);
    assert_eq!(bench.ask(request, write(0x1000, b"no")).header.status, Status::NoPermission);
    assert_eq!(bench.bytes(addr(0x1000), 2), [0, 0]);
    assert_eq!(
        bench.ask(header(ALICE, 2), write(0x1000, b"ok")).header.status,
        Status::Ok,
        "a new request may"
    );
}

/// A host writes under an id of another host, so that the other one's request with this id would look
/// repeated (PROTOCOL 7.21).
#[test]
fn a_host_cannot_use_up_the_ids_of_another() {
    let mut bench = Bench::ready();
    let stolen = Header { origin: OTHER_HOST, ..header(ALICE, 1) };
    assert_eq!(bench.ask(stolen, write(0, b"evil")).header.status, Status::Malformed);
    assert_eq!(bench.bytes(addr(0), 4), [0; 4]);
    assert_eq!(bench.ask(header(ALICE, 1), write(0, b"good")).header.status, Status::Ok);
    assert_eq!(bench.bytes(addr(0), 4), b"good");
}

/// The node does not know the host of a request: it could not answer, so it does not execute the request
/// (PROTOCOL 7.18).
#[test]
fn a_request_of_an_unknown_host_is_dropped() {
    let mut bench = Bench::ready();
    let stranger = HostId(99);
    let header =
        Header { domain: ALICE, origin: stranger, ..Header::request(RequestId::new(stranger, 1, 1), 4) };
    let frame = datagram(&Message { header, body: write(0, b"hello") });
    bench.hear_nothing(Port::SWITCH, &frame, DropReason::UnknownPeer);
}

/// A host knows the node's queue pair and key and sends a request directly, with a domain of its choice in
/// the header. Only the switch is trusted (PROTOCOL 7.3).
#[test]
fn a_host_cannot_claim_a_domain() {
    let mut bench = Bench::ready();
    bench.put(addr(0x2000), b"secret");
    for body in [read(0x2000, 6), write(0x2000, b"forged")] {
        let frame = datagram(&Message { header: header(BOB, 1), body });
        for port in [Port::host(HOST.0), Port::node(2), Port::CONTROL, Port::UNKNOWN] {
            bench.hear_nothing(port, &frame, DropReason::WrongPort);
        }
    }
}

/// The right port and a wrong endpoint: a datagram must show the endpoint's key and number, and be a plain UD
/// SEND (PROTOCOL 7.2).
#[test]
fn a_datagram_needs_the_right_queue_pair_key_and_opcode() {
    let mut bench = Bench::ready();
    let message = Message { header: header(ALICE, 1), body: write(0, b"hello") };
    let ud::Endpoint { qpn, qkey } = HOME.endpoint;
    let wrong_key = ud::Endpoint { qpn, qkey: Qkey(qkey.0 ^ 1) };
    bench.hear_nothing(Port::SWITCH, &datagram_to(wrong_key, &message), DropReason::WrongKey);
    let wrong_qpn = ud::Endpoint { qpn: Qpn::new(qpn.get() ^ 1), qkey };
    bench.hear_nothing(Port::SWITCH, &datagram_to(wrong_qpn, &message), DropReason::NoQueuePair);

    let (mut payload, mut frame) = (vec![], vec![]);
    message.emit(&mut payload);
    let bth = Bth::new(Opcode::UdSendOnlyImm, qpn, Psn::new(0));
    let ext = Extension::DethImm(Deth { qkey, src_qp: Qpn::new(0x77) }, 5);
    Packet { bth, ext, payload: &payload }.emit(&mut frame);
    bench.hear_nothing(Port::SWITCH, &frame, DropReason::Opcode);

    let answer = Message { header: message.header.answer(Status::Ok), body: read(0, 0) };
    bench.hear_nothing(Port::SWITCH, &datagram(&answer), DropReason::Response);
}

/// Frames cut short at every length, and a message of another version, are dropped (PROTOCOL 7.4).
#[test]
fn what_cannot_be_parsed_is_dropped() {
    let mut bench = Bench::ready();
    let frame = datagram(&Message { header: header(ALICE, 1), body: write(0, b"hello") });
    for len in 0..frame.len() {
        bench.hear_nothing(Port::SWITCH, &frame[..len], DropReason::Malformed);
    }
    let mut other_version = frame.clone();
    other_version[20] += 1;
    bench.hear_nothing(Port::SWITCH, &other_version, DropReason::Malformed);
    assert_eq!(bench.node.stats().dropped, frame.len() as u64 + 1);
}
