use super::*;
use crate::{Gid, NodeId, Perm, Pmtu, ProgramHash, Psn, Qkey, Qpn, Rkey};
use alloc::vec;
use proptest::prelude::*;

const REQUEST: Header = Header {
    status: Status::Ok,
    response: false,
    again: false,
    domain: Domain(0x0a0b_0c0d),
    request: RequestId(0x0102_0304_0506_0708),
    origin: HostId(0x1112),
    hops: 9,
};
const TRAVERSE: Traverse<'static> = Traverse {
    program: ProgramHash([0xaa; 16]),
    cur_ptr: VirtAddr(0x2122_2324_2526_2728),
    iterations: 5,
    limit: 100,
    scratch: b"scratch",
    code: b"code",
};
const ADDR: VirtAddr = VirtAddr(0x3132_3334_3536_3738);

fn emitted(message: &Message<'_>) -> Vec<u8> {
    let mut out = vec![];
    message.emit(&mut out);
    out
}

/// One update of each kind; the numbers are the tags.
fn updates() -> [Update; 26] {
    let (qpn, qkey, rkey, domain) = (Qpn::new(0x10), Qkey(0x1234), Rkey(0x5678), Domain(3));
    let (base, len) = (VirtAddr(0x1_0000), 0x1000);
    [
        Update::Peer { port: 0x1000, gid: Gid::from_v4([127, 0, 0, 2]), qpn, qkey },
        Update::PeerGone { port: 0x1000 },
        Update::Translate { base, size_log2: 16, node: NodeId(2) },
        Update::Untranslate { base, size_log2: 16 },
        Update::Protect { domain, base, len, perm: Perm::Read, vma_log2: 16 },
        Update::Session { qpn, qkey, host: HostId(4), generation: 2, domain },
        Update::SessionGone { qpn },
        Update::Range { base, len, offset: 0x40 },
        Update::RangeGone { base, len },
        Update::Clear { base, len },
        Update::QueuePair {
            qpn,
            peer_qpn: Qpn::new(0x11),
            peer_port: 0x1_0000,
            expected_psn: Psn::new(0xff_ffff),
            rkey,
            domain,
            pmtu: Pmtu::B4096,
        },
        Update::QueuePairGone { qpn },
        Update::Directory { newest: Seq(9 << 40) },
        Update::Live { host: HostId(63), generation: 2 },
        Update::Fence { host: HostId(0) },
        Update::AcceptLost { base, len },
        Update::Arrive {
            base,
            size_log2: 16,
            offset: 0x2000,
            number: 7,
            port: 0x1001,
            gid: Gid::from_v4([127, 0, 0, 3]),
            qpn,
            qkey,
        },
        Update::Leave {
            base,
            size_log2: 16,
            number: 7,
            port: 0x1002,
            gid: Gid::from_v4([127, 0, 0, 4]),
            qpn,
            qkey,
        },
        Update::Place { base, size_log2: 12, offset: 0x2000 },
        Update::Away { base, size_log2: 12 },
        Update::Unplace { base, size_log2: 12 },
        Update::Drain { base, size_log2: 12 },
        Update::Lose { base, len: 0x3000 },
        Update::Connection(Relayed {
            to_node: qpn,
            to_host: Qpn::new(0x12),
            host: HostId(4),
            host_qpn: Qpn::new(0x13),
            node: NodeId(2),
            node_qpn: Qpn::new(0x14),
            rkey,
            domain,
            pmtu: Pmtu::B256,
            root: base,
        }),
        Update::ConnectionGone { to_node: qpn },
        Update::Anew { host: HostId(0x0102) },
    ]
}

fn encoded(updates: &[Update]) -> Vec<u8> {
    let mut bytes = vec![];
    updates.iter().for_each(|update| update.emit(&mut bytes));
    bytes
}

/// Every form of a message, with a name.
fn samples(bytes: &[u8]) -> Vec<(&'static str, Message<'_>)> {
    let (good, bad) = (REQUEST.answer(Status::Ok), REQUEST.answer(Status::TableFull));
    let batch = Updates::request(7, 26, bytes).unwrap();
    let of = |header, body| Message { header, body };
    vec![
        ("read request", of(REQUEST, Body::RegionRead { addr: ADDR, len: 512, data: &[] })),
        ("read response", of(good, Body::RegionRead { addr: ADDR, len: 3, data: b"abc" })),
        ("read refused", of(bad, Body::RegionRead { addr: ADDR, len: 3, data: &[] })),
        ("write request", of(REQUEST, Body::RegionWrite { addr: ADDR, len: 3, data: b"abc" })),
        ("write response", of(good, Body::RegionWrite { addr: ADDR, len: 3, data: &[] })),
        ("traverse request", of(REQUEST, Body::Traverse(TRAVERSE))),
        ("traverse response", of(good, Body::Traverse(Traverse { code: &[], ..TRAVERSE }))),
        ("updates", of(REQUEST, Body::Update(batch))),
        ("updates applied", of(good, Body::Update(Updates::response(7, 0)))),
        ("update refused", of(bad, Body::Update(Updates::response(7, 3)))),
    ]
}

/// PROTOCOL 3.2, byte by byte.
#[test]
fn the_header_stands_where_the_protocol_says() {
    let message = Message {
        header: REQUEST.answer(Status::NoPermission),
        body: Body::RegionRead { addr: ADDR, len: 3, data: &[] },
    };
    let bytes = [
        1, 0x01, 6, 1, 0x0a, 0x0b, 0x0c, 0x0d, 1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 9, 0, 0, 0, 0, 0, //
        0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38, 0, 0, 0, 3,
    ];
    assert_eq!(emitted(&message), bytes);
    assert_eq!(Message::parse(&bytes), Ok(message));
}

/// PROTOCOL 3.8, byte by byte.
#[test]
fn a_traversal_stands_where_the_protocol_says() {
    let bytes = emitted(&Message { header: REQUEST, body: Body::Traverse(TRAVERSE) });
    let body = &bytes[Header::LEN..];
    assert_eq!(body[..16], [0xaa; 16]);
    assert_eq!(body[16..24], [0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28]);
    assert_eq!(body[24..40], [0, 0, 0, 5, 0, 0, 0, 100, 0, 7, 0, 4, 0, 0, 0, 0]);
    assert_eq!(body[40..], *b"scratchcode");
}

#[test]
fn every_form_comes_back_and_has_its_length() {
    let bytes = encoded(&updates());
    for (name, message) in samples(&bytes) {
        let payload = emitted(&message);
        assert_eq!(payload.len(), message.len(), "{name}");
        assert_eq!(Message::parse(&payload), Ok(message), "{name}");
        assert!(!message.is_empty());
    }
}

/// PROTOCOL 3.3: a message with a byte less or a byte more is refused.
#[test]
fn every_truncation_and_every_extra_byte_is_refused() {
    let bytes = encoded(&updates());
    for (name, message) in samples(&bytes) {
        let mut payload = emitted(&message);
        for have in 0..payload.len() {
            let result = Message::parse(&payload[..have]);
            assert!(matches!(result, Err(WireError::Short { .. })), "{name} of {have} bytes: {result:?}");
        }
        payload.push(0);
        assert!(matches!(Message::parse(&payload), Err(WireError::Long { .. })), "{name} and one byte");
    }
}

/// PROTOCOL 3.4, 3.5.
#[test]
fn numbers_are_frozen_and_all_others_are_refused() {
    let statuses = "Ok IterationLimit HopLimit UnknownProgram BadProgram NotMapped NoPermission OutOfBounds Misaligned \
                    Malformed Busy ProgramFault TableFull Version Unsupported Lent Lost Coherent Apart OtherLife";
    for (bits, name) in (0..=u8::MAX).zip(statuses.split_whitespace()) {
        let status = Status::from_bits(bits).unwrap();
        assert_eq!((status as u8, alloc::format!("{status:?}").as_str()), (bits, name));
    }
    assert!((20..=u8::MAX).all(|bits| Status::from_bits(bits).is_none()));
    let kinds: Vec<u8> = (0..=u8::MAX).filter(|&bits| Kind::from_bits(bits).is_some()).collect();
    assert_eq!(kinds, [0x01, 0x02, 0x10, 0x11, 0x20]);
    assert!(kinds.into_iter().all(|bits| Kind::from_bits(bits).unwrap() as u8 == bits));
}

#[test]
fn version_kind_and_status_outside_the_tables_are_refused_by_name() {
    let good = emitted(&Message {
        header: REQUEST.answer(Status::Busy),
        body: Body::Traverse(Traverse { code: &[], ..TRAVERSE }),
    });
    for (at, what) in [(0, "message.version"), (1, "message.kind"), (2, "message.status")] {
        let mut bytes = good.clone();
        bytes[at] = 0x77;
        assert_eq!(Message::parse(&bytes), Err(WireError::Unknown { what, value: 0x77 }));
    }
    let mut request = good;
    request[3] = 0;
    let refused = Err(WireError::Unknown { what: "message.status of a request", value: 10 });
    assert_eq!(Message::parse(&request), refused);
}

/// PROTOCOL 3.1, 3.3.
#[test]
fn each_reserved_bit_is_refused() {
    let good = emitted(&Message { header: REQUEST, body: Body::Traverse(TRAVERSE) });
    let reserved = [
        (3..4, 2..8, "message.flags"),
        (19..24, 0..8, "message.reserved"),
        (60..64, 0..8, "traverse.reserved"),
    ];
    for (bytes, bits, what) in reserved {
        for at in bytes {
            for bit in bits.clone() {
                let mut payload = good.clone();
                payload[at] |= 1 << bit;
                assert_eq!(
                    Message::parse(&payload),
                    Err(WireError::Reserved { what }),
                    "byte {at} bit {bit}"
                );
            }
        }
    }
}

/// PROTOCOL 7.24: omitted bytes are zeros, and bytes other than zero are sent.
#[test]
fn zeros_at_the_end_of_a_scratch_pad_need_not_be_sent() {
    let mut pad = [0; 200];
    let sent = |pad: &[u8]| Traverse::without_zeros(pad).len();
    assert_eq!([sent(&[]), sent(&pad[..63]), sent(&pad[..64]), sent(&pad)], [0, 63, 0, 8]);
    for (last, len) in [(7, 8), (8, 72), (71, 72), (72, 136), (135, 136), (136, 200), (199, 200)] {
        pad[last] = 1;
        assert_eq!(sent(&pad), len, "the last byte that is not zero is {last}");
    }
}

/// PROTOCOL 3.8, 3.12: the bounds are checked before any byte is read.
#[test]
fn a_scratch_pad_or_program_above_its_bound_is_refused() {
    let long = vec![0; CODE_LEN_MAX];
    let message = |scratch, code| Message {
        header: REQUEST,
        body: Body::Traverse(Traverse { scratch, code, ..TRAVERSE }),
    };
    let largest = message(&long[..SCRATCH_LEN_MAX], &long);
    let mut payload = emitted(&largest);
    assert_eq!(Message::parse(&payload), Ok(largest));
    let mut refused = |at: usize, what, most: usize| {
        let length = u16::try_from(most + 1).unwrap();
        payload[Header::LEN + at..][..2].copy_from_slice(&length.to_be_bytes());
        assert_eq!(Message::parse(&payload), Err(WireError::Long { what, most, have: most + 1 }));
    };
    refused(34, "traverse.code", CODE_LEN_MAX);
    refused(32, "traverse.scratch", SCRATCH_LEN_MAX);
}

/// PROTOCOL 3.6 to 3.9: a contradictory message is refused: data where none may be, code or updates in a
/// response, a refused update without a refusal.
#[test]
fn a_body_that_contradicts_its_header_is_refused() {
    let bytes = encoded(&updates());
    let as_response = |message: &Message<'_>, status: Status| {
        let mut payload = emitted(message);
        (payload[2], payload[3]) = (status as u8, 1);
        Message::parse(&payload).map(drop)
    };
    let code = Message { header: REQUEST, body: Body::Traverse(TRAVERSE) };
    assert_eq!(
        as_response(&code, Status::Ok),
        Err(WireError::Long { what: "traverse.code", most: 0, have: 4 })
    );
    let write = Message { header: REQUEST, body: Body::RegionWrite { addr: ADDR, len: 3, data: b"abc" } };
    assert_eq!(as_response(&write, Status::Ok), Err(WireError::Long { what: "message", most: 36, have: 39 }));
    let batch = Message { header: REQUEST, body: Body::Update(Updates::request(7, 26, &bytes).unwrap()) };
    let count = Err(WireError::Unknown { what: "update.count of a response", value: 26 });
    assert_eq!(as_response(&batch, Status::Ok), count);

    let refused =
        Message { header: REQUEST.answer(Status::TableFull), body: Body::Update(Updates::response(7, 3)) };
    let named = Err(WireError::Unknown { what: "update.refused", value: 3 });
    assert_eq!(as_response(&refused, Status::TableFull), Ok(()));
    assert_eq!(as_response(&refused, Status::Ok), named);
    let mut request = emitted(&refused);
    (request[2], request[3]) = (0, 0);
    assert_eq!(Message::parse(&request).map(drop), named);
}

#[test]
fn each_update_has_its_tag_and_its_length() {
    let lengths =
        [29, 5, 12, 10, 23, 17, 5, 25, 17, 17, 27, 5, 9, 5, 3, 17, 54, 46, 18, 10, 10, 10, 17, 39, 5, 3];
    for ((tag, update), len) in (1..).zip(updates()).zip(lengths) {
        let bytes = encoded(&[update]);
        assert_eq!((bytes[0], bytes.len()), (tag, len), "{update:?}");
        assert!(len <= Update::LEN_MAX);
        let batch = Updates::request(1, 1, &bytes).unwrap();
        assert_eq!(batch.iter().collect::<Vec<_>>(), [update]);
        for have in 0..len {
            assert!(Updates::request(1, 1, &bytes[..have]).is_err(), "{update:?} of {have} bytes");
        }
    }
    for tag in (27..=u8::MAX).chain([0]) {
        let unknown = Err(WireError::Unknown { what: "update.tag", value: u64::from(tag) });
        assert_eq!(Updates::request(1, 1, &[tag; 60]), unknown);
    }
}

/// PROTOCOL 3.9, 3.10: an invalid update is refused with its batch, by its sender and by its receiver.
#[test]
fn updates_that_make_no_sense_are_refused() {
    let (domain, base, perm) = (Domain(1), VirtAddr(0x1000), Perm::Read);
    let node = NodeId(0);
    let wrong = [
        ("update.size_log2", Update::Translate { base: VirtAddr(0), size_log2: 64, node }),
        ("update.base, not a multiple of its size", Update::Translate { base, size_log2: 13, node }),
        ("update.base, not a multiple of its size", Update::Untranslate { base, size_log2: 63 }),
        ("update.len", Update::Protect { domain, base, len: 0, perm, vma_log2: 64 }),
        ("update.len", Update::Protect { domain, base, len: u64::MAX - 0xfff, perm, vma_log2: 64 }),
        ("update.len", Update::Clear { base, len: 0 }),
        ("update.len", Update::RangeGone { base: VirtAddr(u64::MAX), len: 1 }),
        ("update.offset", Update::Range { base, len: 0x1000, offset: u64::MAX - 0xfff }),
        // A grant covers a part of one vma.
        ("update.vma_log2", Update::Protect { domain, base, len: 0x1001, perm, vma_log2: 12 }),
        ("update.vma_log2", Update::Protect { domain, base, len: 0x1000, perm, vma_log2: 11 }),
        (
            "update.vma_log2",
            Update::Protect { domain, base: VirtAddr(0x1800), len: 0x1000, perm, vma_log2: 12 },
        ),
        ("update.vma_log2", Update::Protect { domain, base, len: 1, perm, vma_log2: 65 }),
        ("update.len of whole pages", Update::Lose { base, len: 0x1800 }),
        ("update.len of whole pages", Update::Lose { base: VirtAddr(0x1800), len: 0x1000 }),
    ];
    for (name, update) in wrong {
        let result = Updates::request(1, 1, &encoded(&[update])).map(drop);
        assert!(
            matches!(result, Err(WireError::Unknown { what, .. }) if what == name),
            "{update:?}: {result:?}"
        );
    }
    let right = [
        Update::Translate { base: VirtAddr(1 << 63), size_log2: 63, node },
        Update::Protect { domain, base, len: u64::MAX - 0x1000, perm, vma_log2: 64 },
        Update::Range { base, len: 0x1000, offset: u64::MAX - 0x1000 },
        Update::Protect { domain, base, len: 0x1000, perm, vma_log2: 12 },
    ];
    assert!(Updates::request(1, 4, &encoded(&right)).is_ok());
    // Bytes that no `Update` can hold: a permission class, a QPN above 24 bits, a PMTU.
    let mut protect = encoded(&[Update::Protect { domain, base, len: 1, perm, vma_log2: 64 }]);
    protect[21] = 3;
    assert_eq!(Updates::request(1, 1, &protect), Err(WireError::Unknown { what: "update.perm", value: 3 }));
    let qpn = Err(WireError::Unknown { what: "update: a 24-bit number", value: 0x0100_0000 });
    assert_eq!(Updates::request(1, 1, &[7, 1, 0, 0, 0]), qpn);
    let mut pair = encoded(&updates()[10..11]);
    pair[25] = 0x0f;
    assert_eq!(Updates::request(1, 1, &pair), Err(WireError::Unknown { what: "update.pmtu", value: 0x0f00 }));
}

#[test]
fn a_batch_has_a_bound_and_its_count() {
    let one = encoded(&updates()[1..2]);
    let most = Updates::BYTES_MAX / one.len();
    let full = one.repeat(most);
    let count = u16::try_from(most).unwrap();
    assert_eq!(Updates::request(1, count, &full).unwrap().iter().count(), most);
    let over = one.repeat(most + 1);
    let (bound, have) = (Updates::BYTES_MAX, over.len());
    let too_long = Err(WireError::Long { what: "updates", most: bound, have });
    assert_eq!(Updates::request(1, count + 1, &over), too_long);
    assert!(matches!(Updates::request(1, count + 1, &full), Err(WireError::Short { .. })));
    assert!(matches!(Updates::request(1, count - 1, &full), Err(WireError::Long { .. })));
    let largest = Message { header: REQUEST, body: Body::Update(Updates::request(1, count, &full).unwrap()) };
    assert!(largest.len() <= Pmtu::B1024.bytes(), "a full batch fits the smaller link");
}

fn emit_panics(message: &Message<'_>) -> bool {
    extern crate std;
    std::panic::catch_unwind(|| emitted(message)).is_err()
}

/// The other half of the panic contract: to emit what a type forbids breaks an invariant of the sender.
#[test]
fn emitting_what_a_type_forbids_is_a_broken_invariant() {
    let long = vec![0; CODE_LEN_MAX + 1];
    let good = REQUEST.answer(Status::Ok);
    let traverse = |header, scratch, code| (header, Body::Traverse(Traverse { scratch, code, ..TRAVERSE }));
    let wrong = [
        (Header { status: Status::Busy, ..REQUEST }, Body::Traverse(TRAVERSE)),
        (REQUEST, Body::RegionRead { addr: ADDR, len: 3, data: b"abc" }),
        (good, Body::RegionRead { addr: ADDR, len: 4, data: b"abc" }),
        (REQUEST, Body::RegionWrite { addr: ADDR, len: 4, data: b"abc" }),
        traverse(good, &[], &[1]),
        traverse(REQUEST, &long[..=SCRATCH_LEN_MAX], &[]),
        traverse(REQUEST, &[], &long),
        (REQUEST, Body::Update(Updates::response(1, 1))),
        (good, Body::Update(Updates::response(1, 1))),
    ];
    for (header, body) in wrong {
        assert!(emit_panics(&Message { header, body }), "{header:?} {body:?}");
    }
}

fn update() -> impl Strategy<Value = Update> {
    let port = any::<u32>();
    let qpn = || any::<u32>().prop_map(Qpn::new);
    let span = || {
        (any::<u64>(), 1..=u64::MAX)
            .prop_filter("inside the space", |(base, len)| base.checked_add(*len).is_some())
    };
    let prefix = || {
        (any::<u64>(), 0..64_u8)
            .prop_map(|(base, size_log2)| (VirtAddr(base >> size_log2 << size_log2), size_log2))
    };
    let perm = prop::sample::select(vec![Perm::None, Perm::Read, Perm::ReadWrite]);
    let pmtu = prop::sample::select(vec![Pmtu::B256, Pmtu::B512, Pmtu::B1024, Pmtu::B2048, Pmtu::B4096]);
    prop_oneof![
        (port, any::<[u8; 16]>(), qpn(), any::<u32>()).prop_map(|(port, gid, qpn, qkey)| Update::Peer {
            port,
            gid: Gid(gid),
            qpn,
            qkey: Qkey(qkey)
        }),
        port.prop_map(|port| Update::PeerGone { port }),
        (prefix(), any::<u16>()).prop_map(|((base, size_log2), node)| Update::Translate {
            base,
            size_log2,
            node: NodeId(node)
        }),
        prefix().prop_map(|(base, size_log2)| Update::Untranslate { base, size_log2 }),
        (any::<u32>(), span(), perm).prop_map(|(domain, (base, len), perm)| Update::Protect {
            domain: Domain(domain),
            base: VirtAddr(base),
            len,
            perm,
            vma_log2: 64,
        }),
        (qpn(), any::<(u32, u16, u16, u32)>()).prop_map(|(qpn, (qkey, host, generation, domain))| {
            Update::Session { qpn, qkey: Qkey(qkey), host: HostId(host), generation, domain: Domain(domain) }
        }),
        qpn().prop_map(|qpn| Update::SessionGone { qpn }),
        (span(), any::<u64>()).prop_map(|((base, len), offset)| Update::Range {
            base: VirtAddr(base),
            len,
            offset: offset.min(u64::MAX - len)
        }),
        span().prop_map(|(base, len)| Update::RangeGone { base: VirtAddr(base), len }),
        span().prop_map(|(base, len)| Update::Clear { base: VirtAddr(base), len }),
        (qpn(), qpn(), any::<(u32, u32, u32, u32)>(), pmtu).prop_map(
            |(qpn, peer_qpn, (peer_port, psn, rkey, domain), pmtu)| Update::QueuePair {
                qpn,
                peer_qpn,
                peer_port,
                expected_psn: Psn::new(psn),
                rkey: Rkey(rkey),
                domain: Domain(domain),
                pmtu
            }
        ),
        qpn().prop_map(|qpn| Update::QueuePairGone { qpn }),
        qpn().prop_map(|to_node| Update::ConnectionGone { to_node }),
        any::<u16>().prop_map(|host| Update::Anew { host: HostId(host) }),
        ([qpn(), qpn(), qpn(), qpn()], any::<(u16, u16, u32, u32, u64)>()).prop_map(
            |([to_node, to_host, host_qpn, node_qpn], (host, node, rkey, domain, root))| {
                let (host, node, rkey, domain) = (HostId(host), NodeId(node), Rkey(rkey), Domain(domain));
                let (root, pmtu) = (VirtAddr(root), Pmtu::B2048);
                Update::Connection(Relayed {
                    to_node,
                    to_host,
                    host,
                    host_qpn,
                    node,
                    node_qpn,
                    rkey,
                    domain,
                    pmtu,
                    root,
                })
            }
        ),
        (1..1_u64 << 51, 1..1_u64 << 51)
            .prop_map(|(page, pages)| Update::Lose { base: VirtAddr(page << 12), len: pages << 12 }),
    ]
}

fn header(response: bool) -> impl Strategy<Value = Header> {
    let status = if response { (0..15_u8).boxed() } else { Just(0).boxed() };
    let rest = any::<(bool, u32, u64, u16, u8)>();
    (status, rest).prop_map(move |(status, (again, domain, request, origin, hops))| Header {
        status: Status::from_bits(status).unwrap(),
        response,
        again: again && !response,
        domain: Domain(domain),
        request: RequestId(request),
        origin: HostId(origin),
        hops,
    })
}

proptest! {
    #[test]
    fn updates_come_back_in_order(list in prop::collection::vec(update(), 0..30), seq: u64, header in header(false)) {
        let bytes = encoded(&list);
        let batch = Updates::request(seq, u16::try_from(list.len()).unwrap(), &bytes).unwrap();
        prop_assert_eq!(batch.iter().collect::<Vec<_>>(), list);
        let message = Message { header, body: Body::Update(batch) };
        let payload = emitted(&message);
        prop_assert_eq!(Message::parse(&payload), Ok(message));
    }

    #[test]
    fn parse_undoes_emit(
        header in any::<bool>().prop_flat_map(header),
        kind in 0..4, addr: u64, free_len: u32, refused: u16, fixed: ([u8; 16], u64, u32, u32),
        data in prop::collection::vec(any::<u8>(), 0..SCRATCH_LEN_MAX), code in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let addr = VirtAddr(addr);
        let region = |due: bool| if due { (u32::try_from(data.len()).unwrap(), &data[..]) } else { (free_len, &[][..]) };
        let body = match kind {
            0 => {
                let (len, data) = region(header.response && header.status == Status::Ok);
                Body::RegionRead { addr, len, data }
            }
            1 => {
                let (len, data) = region(!header.response);
                Body::RegionWrite { addr, len, data }
            }
            2 => Body::Traverse(Traverse {
                program: ProgramHash(fixed.0),
                cur_ptr: VirtAddr(fixed.1),
                iterations: fixed.2,
                limit: fixed.3,
                scratch: &data,
                code: if header.response { &[] } else { &code },
            }),
            _ => Body::Update(Updates::response(fixed.1, if header.status == Status::Ok { 0 } else { refused })),
        };
        let message = Message { header, body };
        let payload = emitted(&message);
        prop_assert_eq!(payload.len(), message.len());
        prop_assert_eq!(Message::parse(&payload), Ok(message));
    }

    /// The format has no ignored bits: whatever parses emits the same bytes.
    #[test]
    fn emit_undoes_parse(mut payload in prop::collection::vec(any::<u8>(), 24..120), kind in 0..5_usize, response: bool) {
        payload[..4].copy_from_slice(&[VERSION, [0x01, 0x02, 0x10, 0x11, 0x20][kind], 0, u8::from(response)]);
        payload[19..24].fill(0);
        if let Ok(message) = Message::parse(&payload) {
            prop_assert_eq!(emitted(&message), payload);
        }
    }

    #[test]
    fn no_bytes_make_parse_panic(payload in prop::collection::vec(any::<u8>(), 0..120)) {
        let _ = Message::parse(&payload);
    }
}
