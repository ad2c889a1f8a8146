//! Requests of hosts, honest and otherwise.

use super::*;
use crate::answer::refusal;
use crate::{REGION_BYTES_MAX, Reason};
use farmem_wire::message::Kind;
use farmem_wire::{Status, message};

/// Sends a request over `session` from `host`'s port, and expects a refusal with `status` and this body at
/// `host` (PROTOCOL 6.14).
fn refused(
    scene: &mut Scene,
    session: Endpoint,
    domain: u32,
    host: Peer,
    message: &Message<'_>,
    status: Status,
) {
    let (answer, note) = scene.relayed(host.port, &frame(session, message), host);
    assert_eq!(note, Note::Refused(status));
    let body = match message.body {
        Body::RegionRead { addr, len, .. } => Body::RegionRead { addr, len, data: &[] },
        Body::RegionWrite { addr, len, .. } => Body::RegionWrite { addr, len, data: &[] },
        Body::Traverse(state) => Body::Traverse(Traverse { code: &[], ..state }),
        Body::Batch(batch) => Body::Batch(batch.without_code()),
        Body::Update(updates) => Body::Update(Updates::response(updates.seq, 0)),
    };
    let origin = HostId(host.port.as_host().expect("a host"));
    let header =
        Header { status, response: true, again: false, domain: Domain(domain), origin, ..message.header };
    assert_eq!(Message::parse(&answer), Ok(Message { header, body }));
}

/// PROTOCOL 6.11. Host 1 reads from node 1, writes to node 2 and sends a traversal. Each goes to the owner of
/// the address with domain and origin of the session and one hop less, otherwise unchanged.
#[test]
fn a_request_goes_to_the_owner_of_its_address() {
    let mut scene = Scene::rack();
    let data = [0xd7; 300];
    for (message, node) in [
        (read(1, BASE_1 + 0x100, 64), NODE_1),
        (write(1, BASE_2 + 0x101, &data), NODE_2),
        (traverse(1, BASE_2 + 0x208, 1), NODE_2),
    ] {
        let (forwarded, note) = scene.relayed(HOST_1.port, &frame(SESSION_1_10, &message), node);
        assert_eq!(note, Note::Forwarded { node: NodeId(node.port.as_node().expect("a node")) });
        assert_eq!(Message::parse(&forwarded), Ok(stamped(&message, 10, 1)));
    }
}

/// PROTOCOL 6.4: whatever domain and origin a host writes into its header, the session's replace them.
#[test]
fn a_spoofed_domain_and_origin_are_overwritten() {
    let mut scene = Scene::rack();
    let mut message = read(2, BASE_1, 8);
    message.header.domain = Domain(20);
    message.header.origin = HostId(1);
    let (forwarded, _) = scene.relayed(HOST_2.port, &frame(SESSION_2_10, &message), NODE_1);
    assert_eq!(Message::parse(&forwarded), Ok(stamped(&message, 10, 2)));

    let mut message = read(1, BASE_1, 8);
    message.header.domain = Domain(10);
    message.header.origin = HostId(2);
    refused(&mut scene, SESSION_1_20, 20, HOST_1, &message, Status::NotMapped);
}

/// PROTOCOL 6.2: a session accepts only its key and its host's port. Probing reveals nothing else.
#[test]
fn a_stranger_is_not_heard() {
    let mut scene = Scene::rack();
    let message = read(1, BASE_1, 8);
    let wrong_key = endpoint(SESSION_1_10.qpn.get(), SESSION_1_10.qkey.0 ^ 1);
    let no_session = endpoint(0xabc_199, SESSION_1_10.qkey.0);
    let cases = [
        (HOST_1.port, wrong_key, Reason::WrongKey),
        (HOST_1.port, no_session, Reason::UnknownQueuePair),
        (HOST_2.port, SESSION_1_10, Reason::WrongPort),
        (NODE_1.port, SESSION_1_10, Reason::WrongPort),
        (Port::CONTROL, SESSION_1_10, Reason::WrongPort),
        (Port::SWITCH, SESSION_1_10, Reason::WrongPort),
        (Port::UNKNOWN, SESSION_1_10, Reason::WrongPort),
        (Port::UNKNOWN, wrong_key, Reason::WrongKey),
        (HOST_1.port, HOME, Reason::WrongPort),
        (Port::UNKNOWN, HOME, Reason::WrongPort),
    ];
    for (port, receiver, reason) in cases {
        assert_eq!(scene.silent(port, &frame(receiver, &message)), Note::Dropped(reason), "{port:?}");
    }
}

/// PROTOCOL 6.5: servers remember answers by request id, so a host with another's ids could suppress its
/// writes.
#[test]
fn a_host_cannot_use_another_hosts_request_ids() {
    let mut scene = Scene::rack();
    refused(&mut scene, SESSION_2_10, 10, HOST_2, &write(1, BASE_1, b"mine"), Status::Malformed);
}

/// PROTOCOL 6.5: a host claims a generation far above its own. Servers forget the answers of lower ones, so
/// the next host with this number would be ignored until its generation caught up. An older generation is as
/// wrong.
#[test]
fn a_forged_generation_goes_nowhere() {
    let mut scene = Scene::rack();
    for generation in [GENERATION + 1, GENERATION - 1, u16::MAX, 0] {
        let mut message = write(1, BASE_1, b"mine");
        message.header.request = RequestId::new(HostId(1), generation, 1);
        refused(&mut scene, SESSION_1_10, 10, HOST_1, &message, Status::Malformed);
    }
}

/// PROTOCOL 6.6: a message without a hop left is answered with its state, and not forwarded.
#[test]
fn no_hops_left() {
    let mut scene = Scene::rack();
    refused(&mut scene, SESSION_1_10, 10, HOST_1, &traverse(1, BASE_1, 0), Status::HopLimit);
    let mut message = read(1, BASE_1, 8);
    message.header.hops = 0;
    refused(&mut scene, SESSION_1_10, 10, HOST_1, &message, Status::HopLimit);
}

/// PROTOCOL 6.7: unknown address, another domain's memory, read-only half, the end of the vma, the end of the space.
#[test]
fn protection_is_checked_for_every_byte() {
    let mut scene = Scene::rack();
    let half = BASE_1 + VMA_LEN / 2;
    let end = BASE_1 + VMA_LEN;
    for (message, status) in [
        (read(1, 0, 8), Status::NotMapped),
        (read(1, end, 1), Status::NotMapped),
        (read(1, BASE_1 - 1, 2), Status::NotMapped),
        (read(1, end - 8, 9), Status::OutOfBounds),
        (read(1, u64::MAX, 2), Status::NotMapped),
        (write(1, half, b"x"), Status::NoPermission),
        (write(1, half - 1, b"xy"), Status::NoPermission),
        (write(1, end, b"x"), Status::NotMapped),
        (traverse(1, 0, 9), Status::NotMapped),
        (traverse(1, end, 9), Status::NotMapped),
    ] {
        refused(&mut scene, SESSION_1_10, 10, HOST_1, &message, status);
    }
    refused(&mut scene, SESSION_1_20, 20, HOST_1, &traverse(1, BASE_1, 9), Status::NotMapped);
    for message in
        [read(1, end - 8, 8), read(1, half - 4, 8), write(1, half - 2, b"xy"), traverse(1, end - 1, 9)]
    {
        let (_, note) = scene.relayed(HOST_1.port, &frame(SESSION_1_10, &message), NODE_1);
        assert_eq!(note, Note::Forwarded { node: NodeId(1) });
    }
}

/// An address plus length beyond 2^64 does not wrap into other memory.
#[test]
fn an_address_that_overflows_is_out_of_bounds() {
    let mut scene = Scene::rack();
    let top = u64::MAX - 0xffff;
    scene.update(&[protect(10, top, 0xffff, Perm::ReadWrite), translate(top, 16, 2)]);
    refused(&mut scene, SESSION_1_10, 10, HOST_1, &read(1, u64::MAX - 2, 4), Status::OutOfBounds);
    refused(&mut scene, SESSION_1_10, 10, HOST_1, &write(1, u64::MAX - 1, b"xy"), Status::OutOfBounds);
    let (_, note) = scene.relayed(HOST_1.port, &frame(SESSION_1_10, &read(1, u64::MAX - 2, 2)), NODE_2);
    assert_eq!(note, Note::Forwarded { node: NodeId(2) });
}

/// PROTOCOL 6.9: a length that no datagram can carry, or zero, is refused before any table lookup.
#[test]
fn a_region_of_a_senseless_length_is_malformed() {
    let mut scene = Scene::rack();
    refused(&mut scene, SESSION_1_10, 10, HOST_1, &read(1, BASE_1, 0), Status::Malformed);
    refused(&mut scene, SESSION_1_10, 10, HOST_1, &write(1, BASE_1, b""), Status::Malformed);
    refused(&mut scene, SESSION_1_10, 10, HOST_1, &read(1, BASE_1, REGION_BYTES_MAX + 1), Status::Malformed);
    refused(&mut scene, SESSION_1_10, 10, HOST_1, &read(1, BASE_1, u32::MAX), Status::Malformed);
    let (_, note) =
        scene.relayed(HOST_1.port, &frame(SESSION_1_10, &read(1, BASE_1, REGION_BYTES_MAX)), NODE_1);
    assert_eq!(note, Note::Forwarded { node: NodeId(1) });
}

/// PROTOCOL 6.8: a granted address without a node is refused. If its node left and is to join again, the host
/// retries.
#[test]
fn an_address_without_a_node_is_not_mapped() {
    let mut scene = Scene::rack();
    scene.update(&[protect(10, 9 << 40, 4096, Perm::Read)]);
    refused(&mut scene, SESSION_1_10, 10, HOST_1, &read(1, 9 << 40, 8), Status::NotMapped);
    scene.update(&[translate(9 << 40, 12, 5), Update::PeerGone { port: NODE_1.port.0 }]);
    for message in [read(1, 9 << 40, 8), traverse(1, BASE_1, 9)] {
        let note = scene.silent(HOST_1.port, &frame(SESSION_1_10, &message));
        assert_eq!(note, Note::Dropped(Reason::NodeGone));
    }
}

/// A migrated page: its outlier sends the request to the other node (MIND 4.1).
#[test]
fn an_outlier_redirects_a_page() {
    let mut scene = Scene::rack();
    scene.update(&[translate(BASE_1 + 0x1000, 12, 2)]);
    for (addr, node) in [(BASE_1 + 0xfff, NODE_1), (BASE_1 + 0x1000, NODE_2), (BASE_1 + 0x2000, NODE_1)] {
        scene.relayed(HOST_1.port, &frame(SESSION_1_10, &read(1, addr, 1)), node);
    }
}

/// The control plane closed the session, or freed the vma: the same request is no longer served.
#[test]
fn what_was_taken_back_is_gone() {
    let mut scene = Scene::rack();
    let request = frame(SESSION_1_10, &read(1, BASE_1, 8));
    scene.relayed(HOST_1.port, &request, NODE_1);
    scene.update(&[protect(10, BASE_1, VMA_LEN, Perm::None)]);
    refused(&mut scene, SESSION_1_10, 10, HOST_1, &read(1, BASE_1, 8), Status::NotMapped);
    scene.update(&[Update::SessionGone { qpn: SESSION_1_10.qpn }]);
    assert_eq!(scene.silent(HOST_1.port, &request), Note::Dropped(Reason::UnknownQueuePair));
}

/// PROTOCOL 6.12: a refusal needs a known receiver.
#[test]
fn a_refusal_to_a_host_that_left_is_dropped() {
    let mut scene = Scene::rack();
    scene.update(&[Update::PeerGone { port: HOST_1.port.0 }]);
    let note = scene.silent(HOST_1.port, &frame(SESSION_1_10, &read(1, 0, 8)));
    assert_eq!(note, Note::Dropped(Reason::UnknownOrigin));
}

/// PROTOCOL 6.13: a host may not send table updates, even with a valid session.
#[test]
fn a_host_cannot_update_tables() {
    let mut scene = Scene::rack();
    let before = scene.switch.protection().clone();
    let mut bytes = Vec::new();
    protect(20, BASE_1, VMA_LEN, Perm::ReadWrite).emit(&mut bytes);
    let updates = Updates::request(2, 1, &bytes).expect("a batch that fits");
    let message = Message { header: Header::request(id(1, 5), 4), body: Body::Update(updates) };
    refused(&mut scene, SESSION_1_10, 10, HOST_1, &message, Status::Unsupported);
    assert_eq!(scene.silent(HOST_1.port, &frame(HOME, &message)), Note::Dropped(Reason::WrongPort));
    assert_eq!(*scene.switch.protection(), before);
}

/// PROTOCOL 6.3: two switches that answer each other's answers would never stop: a response is never
/// answered.
#[test]
fn a_response_is_dropped() {
    let mut scene = Scene::rack();
    let message = refusal(&traverse(1, BASE_1, 4), Status::NotMapped);
    assert_eq!(scene.silent(HOST_1.port, &frame(SESSION_1_10, &message)), Note::Dropped(Reason::Response));
    let mut bytes = payload(&message);
    bytes[0] = 9;
    assert_eq!(scene.silent(HOST_1.port, &datagram(SESSION_1_10, &bytes)), Note::Dropped(Reason::Message));
}

/// PROTOCOL 6.15: an unreadable message is still answered if its request id can be read: for its version, its
/// kind, or as malformed.
#[test]
fn an_unreadable_message_is_answered_by_its_envelope() {
    let mut scene = Scene::rack();
    let good = payload(&traverse(1, BASE_1, 4));
    let broken = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let traverse = Kind::Traverse;
    let cases = [
        (broken(0, message::VERSION + 1), Status::Version, traverse),
        (broken(1, 0x7f), Status::Unsupported, Kind::RegionRead),
        (broken(2, Status::Busy as u8), Status::Malformed, traverse),
        (broken(3, 0x80), Status::Malformed, traverse),
        (broken(23, 1), Status::Malformed, traverse),
        (broken(24 + 32, 0xff), Status::Malformed, traverse),
        (good[..40].to_vec(), Status::Malformed, traverse),
        (good[..16].to_vec(), Status::Malformed, traverse),
        (broken(1, Kind::Update as u8), Status::Malformed, Kind::Update),
        (broken(1, Kind::RegionWrite as u8)[..30].to_vec(), Status::Malformed, Kind::RegionWrite),
    ];
    for (bytes, status, kind) in cases {
        let (answer, note) = scene.relayed(HOST_1.port, &datagram(SESSION_1_10, &bytes), HOST_1);
        assert_eq!(note, Note::Refused(status));
        let answer = Message::parse(&answer).expect("an answer that parses");
        let domain = Domain(10);
        let header =
            Header { status, domain, origin: HostId(1), ..Header::request(id(1, 3), 0).answer(status) };
        assert_eq!((answer.header, answer.body.kind()), (header, kind));
    }
    for len in 0..16 {
        let note = scene.silent(HOST_1.port, &datagram(SESSION_1_10, &good[..len]));
        assert_eq!(note, Note::Dropped(Reason::Message));
    }
}

/// PROTOCOL 6.3: a session is no connection; datagrams with immediate data and bytes that are no frame are
/// dropped.
#[test]
fn frames_that_are_not_for_a_switch() {
    let mut scene = Scene::rack();
    let mut rc = Vec::new();
    let bth = Bth::new(Opcode::SendOnly, SESSION_1_10.qpn, Psn::new(0));
    Packet { bth, ext: Extension::None, payload: b"data" }.emit(&mut rc);
    assert_eq!(scene.silent(HOST_1.port, &rc), Note::Dropped(Reason::NoConnection));

    let mut imm = Vec::new();
    let bth = Bth::new(Opcode::UdSendOnlyImm, SESSION_1_10.qpn, Psn::new(0));
    let deth = Deth { qkey: SESSION_1_10.qkey, src_qp: Qpn::new(1) };
    Packet { bth, ext: Extension::DethImm(deth, 5), payload: b"data" }.emit(&mut imm);
    assert_eq!(scene.silent(HOST_1.port, &imm), Note::Dropped(Reason::Immediate));

    let good = frame(SESSION_1_10, &read(1, BASE_1, 8));
    for len in 0..20 {
        assert_eq!(scene.silent(HOST_1.port, &good[..len]), Note::Dropped(Reason::Frame));
    }
}

/// Every frame sent has the next PSN, so that a trace shows losses behind the switch.
#[test]
fn datagrams_are_numbered() {
    let mut scene = Scene::rack();
    let request = frame(SESSION_1_10, &read(1, BASE_1, 8));
    let psns: Vec<u32> = (0..3)
        .map(|_| match &scene.deliver(HOST_1.port, &request)[0] {
            Out::Send(_, frame) => Packet::parse(frame).expect("a frame").bth.psn.get(),
            other => panic!("a frame was expected: {other:?}"),
        })
        .collect();
    assert_eq!(psns, [1, 2, 3], "0 was the answer to the control plane");
}

/// A switch has no timers: a wake changes nothing.
#[test]
fn a_wake_is_harmless() {
    let mut scene = Scene::rack();
    scene.switch.handle(Instant::from_nanos(5), Event::Wake, &mut scene.outbox);
    assert!(scene.outbox.is_empty());
}
