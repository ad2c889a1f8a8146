//! The control plane's updates, rule by rule.

use super::*;
use crate::Budget;
use farmem_machine::Halt;

/// A node has just started, without any update: it serves no host (PROTOCOL 7.1).
#[test]
fn a_node_without_tables_refuses_everything() {
    let mut bench = Bench::empty(Budget::default());
    let body = Body::RegionWrite { addr: BASE, len: 1, data: b"x" };
    let frame = datagram(&Message { header: header(ALICE, 1), body });
    bench.hear_nothing(Port::SWITCH, &frame, DropReason::UnknownPeer);
    assert_eq!(bench.update(&[peer(Port::host(HOST.0), 3)]), (Status::Ok, 0));
    bench.not_here(header(ALICE, 1), body);
    assert_eq!(bench.update(&[Update::Range { base: BASE, len: LEN, offset: 0 }]), (Status::Ok, 0));
    assert_eq!(
        bench.ask(header(ALICE, 2), body).header.status,
        Status::NotMapped,
        "here, and granted to no domain"
    );
}

/// A batch is lost and repeated, an old one arrives late, a later one overtakes: each is applied once, in
/// order. Only batches whose answer may still be awaited are answered (PROTOCOL 7.5).
#[test]
fn a_batch_is_applied_once_and_in_order() {
    let mut bench = Bench::empty(Budget::default());
    let first = batch(1, &[Update::Range { base: BASE, len: LEN, offset: 0 }]);
    let second = batch(2, &[Update::RangeGone { base: BASE, len: LEN }]);

    bench.hear_nothing(Port::CONTROL, &second, DropReason::OutOfTurn);
    bench.hear(Port::CONTROL, &first);
    bench.seq = 1;
    assert_eq!(bench.response(), (Status::Ok, 0));
    bench.hear(Port::CONTROL, &first);
    assert_eq!(bench.response(), (Status::Ok, 0), "the answer was lost, so it is given again");
    assert_eq!(bench.notes.last(), Some(&Note::UpdateRepeated));
    bench.hear(Port::CONTROL, &second);
    bench.seq = 2;
    assert_eq!(bench.response(), (Status::Ok, 0));
    bench.hear_nothing(Port::CONTROL, &first, DropReason::OutOfTurn);
    assert_eq!(bench.node.stats().updates, 2, "each once");
}

/// The second of three updates is refused: the first stays, the third is not applied, and the answer has the
/// index (PROTOCOL 7.5).
#[test]
fn a_batch_stops_at_the_first_refusal() {
    let mut bench = Bench::empty(Budget::default());
    let range = |at, offset| Update::Range { base: addr(at), len: 0x1000, offset };
    let updates = [range(0, 0), range(0x1000, 0x7800), range(0x2000, 0x2000)];
    assert_eq!(bench.update(&updates), (Status::OutOfBounds, 1));
    assert_eq!(bench.notes.last(), Some(&Note::UpdateRefused(Status::OutOfBounds)));
    assert!(bench.node.regions.is_local(addr(0)));
    assert!(!bench.node.regions.is_local(addr(0x2000)));

    let again = batch(1, &updates);
    bench.hear(Port::CONTROL, &again);
    assert_eq!(
        bench.response(),
        (Status::OutOfBounds, 1),
        "the same answer, and the first is not applied twice"
    );
}

/// Only the control plane changes tables, whatever keys a sender knows (PROTOCOL 7.3).
#[test]
fn updates_count_only_from_the_control_plane() {
    let mut bench = Bench::ready();
    let everything =
        Update::Protect { domain: BOB, base: BASE, len: LEN, perm: Perm::ReadWrite, vma_log2: 64 };
    let frame = batch(2, &[everything]);
    for port in [Port::SWITCH, Port::host(HOST.0), Port::node(1), Port::UNKNOWN] {
        bench.hear_nothing(port, &frame, DropReason::WrongPort);
    }
    bench.hear(Port::CONTROL, &frame);
    bench.seq = 2;
    assert_eq!(bench.response(), (Status::Ok, 0), "the same frame from the right port");
}

/// A peer joins, moves and leaves; the driver learns of each change, and the control plane cannot be removed
/// (PROTOCOL 7.6, 7.12).
#[test]
fn peers_come_move_and_go() {
    let mut bench = Bench::empty(Budget::default());
    let port = Port::host(HOST.0);
    let gid = |octet| Some(Gid::from_v4([10, 0, 0, octet]));
    let gone = Update::PeerGone { port: port.0 };
    assert_eq!(bench.update(&[peer(port, 3), peer(port, 9), gone, gone]), (Status::Ok, 0));
    let told: Vec<_> = bench.peers.iter().map(|change| (change.port, change.gid)).collect();
    assert_eq!(told, [(port, gid(3)), (port, gid(9)), (port, None), (port, None)]);
    assert_eq!(bench.node.peers.get(port), None);

    assert_eq!(bench.update(&[Update::PeerGone { port: 0 }]), (Status::Malformed, 0));
    assert_eq!(bench.update(&[peer(Port::UNKNOWN, 5)]), (Status::Malformed, 0));
    assert_eq!(bench.peers.len(), 4, "a refused change is not told");

    bench.seq += 1;
    let moved = batch(bench.seq, &[peer(Port::CONTROL, 6)]);
    bench.hear(Port::CONTROL, &moved);
    let [(Port::CONTROL, frame)] = &bench.sent[..] else { panic!("one answer") };
    assert_eq!(parse(frame, endpoint(6)).header.status, Status::Ok, "the answer goes where it is now");
}

/// Each table has a size; an update beyond it is refused, and all earlier ones stay (PROTOCOL 7.1).
#[test]
fn full_tables_refuse() {
    let budget = Budget { ranges: 1, grants: 1, queue_pairs: 1, peers: 1, ..Budget::default() };
    let mut bench = Bench::empty(budget);
    let pairs = [
        (peer(Port::SWITCH, 1), peer(Port::host(3), 3)),
        (queue_pair(0x100, 0), queue_pair(0x101, 0)),
        (
            Update::Range { base: addr(0), len: 8, offset: 0 },
            Update::Range { base: addr(0x10), len: 8, offset: 0x10 },
        ),
        (
            Update::Protect { domain: ALICE, base: BASE, len: 8, perm: Perm::Read, vma_log2: 64 },
            Update::Protect { domain: BOB, base: BASE, len: 8, perm: Perm::Read, vma_log2: 64 },
        ),
    ];
    for (fits, does_not) in pairs {
        assert_eq!(bench.update(&[fits, fits, does_not]), (Status::TableFull, 2), "{does_not:?}");
    }
    let room = [
        Update::PeerGone { port: Port::SWITCH.0 },
        Update::QueuePairGone { qpn: Qpn::new(0x100) },
        Update::RangeGone { base: addr(0), len: 8 },
        Update::Protect { domain: ALICE, base: BASE, len: 8, perm: Perm::None, vma_log2: 64 },
    ];
    assert_eq!(bench.update(&room), (Status::Ok, 0));
    for (_, fits_now) in pairs {
        assert_eq!(bench.update(&[fits_now]), (Status::Ok, 0));
    }
}

/// A rack with as many hosts as a control plane accepts (PROTOCOL 8.8): a node knows all of them, and the
/// switch and the index switches.
#[test]
fn as_many_hosts_as_a_rack_takes_are_peers() {
    let mut bench = Bench::empty(Budget::default());
    let hosts = (1..=4096).map(Port::host);
    let ports: Vec<Port> = hosts.chain((0..0x800).map(Port::index)).chain([Port::SWITCH]).collect();
    for some in ports.chunks(8) {
        let updates: Vec<Update> = some.iter().map(|&port| peer(port, 3)).collect();
        assert_eq!(bench.update(&updates), (Status::Ok, 0), "{some:?}");
    }
    assert!(ports.iter().all(|&port| bench.node.peers.get(port).is_some()));
}

/// A connection that could never be used, or would hide the node's own endpoint, is refused (PROTOCOL 7.7).
#[test]
fn a_connection_that_must_not_be_is_refused() {
    let mut bench = Bench::empty(Budget::default());
    let Update::QueuePair { peer_qpn, peer_port, expected_psn, rkey, pmtu, domain, qpn } =
        queue_pair(0x100, 0)
    else {
        unreachable!()
    };
    let with = |qpn, domain, peer_port| Update::QueuePair {
        qpn,
        peer_qpn,
        peer_port,
        expected_psn,
        rkey,
        domain,
        pmtu,
    };
    let bad = [
        with(Qpn::new(1), domain, peer_port),
        with(Qpn::new(15), domain, peer_port),
        with(HOME.endpoint.qpn, domain, peer_port),
        with(qpn, Domain(0), peer_port),
        with(qpn, domain, Port::UNKNOWN.0),
    ];
    for update in bad {
        assert_eq!(bench.update(&[update]), (Status::Malformed, 0), "{update:?}");
    }
    assert!(bench.node.queue_pairs.is_empty());
    assert_eq!(
        bench.update(&[Update::QueuePairGone { qpn }]),
        (Status::Ok, 0),
        "never there (PROTOCOL 7.12)"
    );
}

/// Bytes become zero before they get another owner: exactly those, and only if all of them are here (PROTOCOL
/// 7.11).
#[test]
fn clear_really_clears() {
    let mut bench = Bench::ready();
    bench.put(addr(0), &[0xff; 0x100]);
    assert_eq!(bench.update(&[Update::Clear { base: addr(0x10), len: 0x20 }]), (Status::Ok, 0));
    assert_eq!(bench.bytes(addr(0), 0x10), [0xff; 0x10]);
    assert_eq!(bench.bytes(addr(0x10), 0x20), [0; 0x20]);
    assert_eq!(bench.bytes(addr(0x30), 0xd0), [0xff; 0xd0]);

    let before = bench.node.store().clone();
    assert_eq!(bench.update(&[Update::Clear { base: addr(0x3ff0), len: 0x11 }]), (Status::OutOfBounds, 0));
    assert_eq!(bench.update(&[Update::Clear { base: addr(LEN), len: 1 }]), (Status::NotMapped, 0));
    assert_eq!(*bench.node.store(), before);
}

/// Updates of the switch's tables are unsupported at a node (PROTOCOL 7.13).
#[test]
fn updates_for_another_role_are_unsupported() {
    let mut bench = Bench::empty(Budget::default());
    let others = [
        Update::Translate { base: BASE, size_log2: 12, node: farmem_wire::NodeId(1) },
        Update::Untranslate { base: BASE, size_log2: 12 },
        Update::Session { qpn: Qpn::new(99), qkey: Qkey(1), host: HOST, generation: 1, domain: ALICE },
        Update::SessionGone { qpn: Qpn::new(99) },
    ];
    for update in others {
        assert_eq!(bench.update(&[update]), (Status::Unsupported, 0), "{update:?}");
    }
}

/// An attacker with the control plane's keys is one batch ahead: the control plane's own batch is a
/// repetition with other bytes. The node stops, answers no host and changes nothing, because it cannot know
/// what its tables should be (PROTOCOL 5.11).
#[test]
fn a_batch_that_repeats_a_number_with_other_bytes_stops_the_node() {
    let mut bench = Bench::ready();
    let forged = Update::Protect { domain: BOB, base: BASE, len: LEN, perm: Perm::ReadWrite, vma_log2: 64 };
    assert_eq!(bench.update(&[forged]), (Status::Ok, 0));
    bench.hear(Port::CONTROL, &batch(bench.seq, &[forged]));
    assert_eq!(bench.notes.last(), Some(&Note::UpdateRepeated), "the same bytes are answered again");
    assert_eq!(bench.node.halted(), None);

    let own =
        Update::Protect { domain: BOB, base: addr(0x3000), len: 0x1000, perm: Perm::Read, vma_log2: 64 };
    bench.hear(Port::CONTROL, &batch(bench.seq, &[own]));
    assert_eq!((bench.sent.len(), bench.notes.last()), (0, Some(&Note::UpdateChanged)));
    assert_eq!(bench.node.halted(), Some(Halt::BatchChanged { seq: 2 }));

    let (noted, bytes) = (bench.notes.len(), bench.node.store().bytes().to_vec());
    bench.hear(Port::CONTROL, &batch(3, &[Update::Clear { base: BASE, len: LEN }]));
    let write = Body::RegionWrite { addr: BASE, len: 1, data: b"x" };
    bench.hear(Port::SWITCH, &datagram(&Message { header: header(ALICE, 1), body: write }));
    assert_eq!((bench.sent.len(), bench.notes.len()), (0, noted));
    assert!(bench.node.store().bytes() == bytes);
    assert_eq!(bench.node.next_wake(), None);
}
