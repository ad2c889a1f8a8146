//! Updates of the control plane: in order, repeated, beyond the budgets, and forged.

use super::*;
use crate::{Occupancy, Reason, Usage};
use farmem_machine::Halt;
use farmem_wire::{Pmtu, Rkey, Status, message};

/// Returns the response to a batch, from the switch to the control plane: status, number, and the index of
/// the refused update.
pub(super) fn answered(out: &[Out]) -> (Status, u64, u16) {
    let sent: Vec<_> = out
        .iter()
        .filter_map(|o| if let Out::Send(to, bytes) = o { Some((*to, bytes)) } else { None })
        .collect();
    let [(to, bytes)] = sent.as_slice() else { panic!("one answer was expected: {out:?}") };
    assert_eq!(*to, Port::CONTROL);
    let packet = Packet::parse(bytes).expect("a frame that parses");
    assert_eq!(packet.bth.dest_qp, CONTROL.endpoint.qpn);
    assert_eq!(packet.ext, Extension::Deth(Deth { qkey: CONTROL.endpoint.qkey, src_qp: HOME.qpn }));
    let message = Message::parse(packet.payload).expect("a message that parses");
    let Body::Update(updates) = message.body else { panic!("an answer to a batch: {message:?}") };
    assert!(message.header.response && updates.iter().next().is_none());
    (message.header.status, updates.seq, updates.refused)
}

fn used(scene: &Scene) -> [usize; 4] {
    let Occupancy { translation, protection, sessions, peers, .. } = scene.switch.occupancy();
    [translation.used, protection.used, sessions.used, peers.used]
}

/// PROTOCOL 6.18: a batch is applied and answered; the driver learns of every peer, in order, before the
/// response leaves.
#[test]
fn a_batch_is_applied_and_answered() {
    let mut scene = Scene::new(Budgets::default());
    let out = scene.update(&[add(HOST_1), translate(BASE_1, 40, 1), add(NODE_1)]);
    let gid = Some(GID);
    assert_eq!(out[0], Out::Peer(PeerChange { port: HOST_1.port, gid }));
    assert_eq!(out[1], Out::Peer(PeerChange { port: NODE_1.port, gid }));
    assert_eq!(answered(&out), (Status::Ok, 1, 0));
    assert_eq!(out[3..], [Out::Note(Note::Updated { seq: 1 })]);
    assert_eq!(used(&scene), [1, 0, 0, 2]);

    let out =
        scene.update(&[Update::PeerGone { port: HOST_1.port.0 }, Update::PeerGone { port: HOST_1.port.0 }]);
    assert_eq!(out[0], Out::Peer(PeerChange { port: HOST_1.port, gid: None }));
    assert_eq!(answered(&out), (Status::Ok, 2, 0));
    assert_eq!(out.len(), 3, "it left once");
    assert_eq!(used(&scene), [1, 0, 0, 1]);
}

/// PROTOCOL 6.16: the response to batch 1 is lost and the control plane repeats it; then an old batch and one
/// ahead arrive.
#[test]
fn a_batch_is_applied_once_and_in_order() {
    let mut scene = Scene::new(Budgets::default());
    scene.update(&[protect(1, 0x1000, 0x1000, Perm::Read)]);
    let out = scene.deliver(Port::CONTROL, &batch(1, &[protect(1, 0x1000, 0x1000, Perm::Read)]));
    assert_eq!(answered(&out), (Status::Ok, 1, 0));
    assert_eq!(out[1..], [Out::Note(Note::UpdateRepeated { seq: 1 })]);

    scene.update(&[protect(1, 0x1000, 0x1000, Perm::None)]);
    for seq in [0, 1, 4, u64::MAX] {
        let again = batch(seq, &[protect(1, 0x1000, 0x1000, Perm::ReadWrite)]);
        assert_eq!(scene.silent(Port::CONTROL, &again), Note::Dropped(Reason::Sequence), "{seq}");
    }
    assert_eq!(used(&scene), [0, 0, 0, 0]);
}

/// PROTOCOL 6.16: the third of four updates does not fit: the two before it stay, it and the last one do not,
/// and a repetition gets the same response.
#[test]
fn a_refused_update_ends_its_batch() {
    let mut scene = Scene::new(Budgets { protection_entries: 2, ..Budgets::default() });
    let updates = [
        protect(1, 0x1000, 0x1000, Perm::Read),
        protect(1, 0x4000, 0x1000, Perm::Read),
        protect(1, 0x8000, 0x1000, Perm::Read),
        translate(BASE_1, 40, 1),
    ];
    let out = scene.update(&updates);
    assert_eq!(answered(&out), (Status::TableFull, 1, 2));
    assert_eq!(out[1..], [Out::Note(Note::UpdateRefused { seq: 1, status: Status::TableFull })]);
    assert_eq!(used(&scene), [0, 2, 0, 0]);
    let again = scene.deliver(Port::CONTROL, &batch(1, &updates));
    assert_eq!(answered(&again), (Status::TableFull, 1, 2));
    assert_eq!(again[1..], [Out::Note(Note::UpdateRepeated { seq: 1 })]);
    assert_eq!(used(&scene), [0, 2, 0, 0]);
    assert_eq!(answered(&scene.update(&[translate(BASE_1, 40, 1)])), (Status::Ok, 2, 0), "and it goes on");
}

/// PROTOCOL 6.17: each table refuses when it is full; replacing and removing entries still works then.
#[test]
fn every_budget_is_kept() {
    let tight = Budgets {
        translation_entries: 1,
        protection_entries: 1,
        sessions: 1,
        peers: 1,
        ..Budgets::default()
    };
    let mut scene = Scene::new(tight);
    let first = [
        translate(BASE_1, 40, 1),
        protect(1, 0x1000, 0x1000, Perm::Read),
        session(SESSION_1_10, 1, 10),
        add(NODE_1),
    ];
    assert_eq!(answered(&scene.update(&first)).0, Status::Ok);
    let full = Usage { used: 1, budget: 1 };
    let occupancy = scene.switch.occupancy();
    let all_full =
        Occupancy { translation: full, protection: full, sessions: full, peers: full, ..occupancy };
    assert_eq!(occupancy, all_full);

    for more in [
        translate(BASE_2, 40, 2),
        protect(1, 0x4000, 1, Perm::Read),
        session(SESSION_2_10, 2, 10),
        add(NODE_2),
    ] {
        assert_eq!(answered(&scene.update(&[more])).0, Status::TableFull, "{more:?}");
    }
    assert_eq!(scene.switch.occupancy(), all_full);

    let replaced = [
        translate(BASE_1, 40, 2),
        protect(1, 0x1000, 0x1000, Perm::ReadWrite),
        session(SESSION_1_10, 2, 20),
        add(NODE_1),
    ];
    assert_eq!(answered(&scene.update(&replaced)).0, Status::Ok);
    assert_eq!(scene.switch.occupancy(), all_full);

    let removed = [
        Update::Untranslate { base: VirtAddr(BASE_1), size_log2: 40 },
        protect(1, 0x1000, 0x1000, Perm::None),
        Update::SessionGone { qpn: SESSION_1_10.qpn },
        Update::PeerGone { port: NODE_1.port.0 },
    ];
    assert_eq!(answered(&scene.update(&removed)).0, Status::Ok);
    assert_eq!(used(&scene), [0; 4]);
}

/// PROTOCOL 6.18 to 6.21: invalid numbers: reserved domains, queue pairs and ports, the switch's own queue
/// pair, a node without a port.
#[test]
fn an_update_that_makes_no_sense_is_malformed() {
    let mut scene = Scene::new(Budgets::default());
    let qkey = Qkey(1);
    let peer = |port: u32| Update::Peer { port, gid: GID, qpn: Qpn::new(99), qkey };
    for nonsense in [
        protect(0, 0x1000, 0x1000, Perm::Read),
        session(SESSION_1_10, 1, 0),
        session(HOME, 1, 10),
        session(endpoint(15, 1), 1, 10),
        translate(BASE_1, 40, 0xf000),
        translate(BASE_1, 40, u16::MAX),
        peer(Port::UNKNOWN.0),
        peer(0x7ff),
        peer(2),
        Update::PeerGone { port: Port::UNKNOWN.0 },
        Update::PeerGone { port: Port::CONTROL.0 },
    ] {
        assert_eq!(answered(&scene.update(&[nonsense])).0, Status::Malformed, "{nonsense:?}");
        assert_eq!(used(&scene), [0; 4]);
    }
}

/// PROTOCOL 6.18: the control plane restarted elsewhere: the batch that says so is answered there, and so are
/// later ones.
#[test]
fn the_control_plane_can_move() {
    let mut scene = Scene::new(Budgets { peers: 0, ..Budgets::default() });
    let moved = peer(Port::CONTROL, 0x555, 0x1234);
    let (frame, gid) = (batch(1, &[add(moved)]), Some(GID));
    let out = scene.deliver(Port::CONTROL, &frame);
    assert_eq!(out[0], Out::Peer(PeerChange { port: Port::CONTROL, gid }));
    let Out::Send(Port::CONTROL, answer) = &out[1] else { panic!("an answer to control: {out:?}") };
    let packet = Packet::parse(answer).expect("a frame that parses");
    assert_eq!(packet.bth.dest_qp, moved.endpoint.qpn);
    let (_, note) = scene.relayed(Port::CONTROL, &frame, moved);
    assert_eq!(note, Note::UpdateRepeated { seq: 1 });
}

/// PROTOCOL 6.23: updates of a node's tables are unsupported at a switch.
#[test]
fn an_update_for_a_node_is_unsupported() {
    let mut scene = Scene::new(Budgets::default());
    let base = VirtAddr(BASE_1);
    for foreign in [
        Update::Range { base, len: 4096, offset: 0 },
        Update::RangeGone { base, len: 4096 },
        Update::Clear { base, len: 4096 },
        Update::QueuePair {
            qpn: Qpn::new(0x100),
            peer_qpn: Qpn::new(0x200),
            peer_port: HOST_1.port.0,
            expected_psn: Psn::new(1),
            rkey: Rkey(2),
            domain: Domain(1),
            pmtu: Pmtu::B1024,
        },
        Update::QueuePairGone { qpn: Qpn::new(0x100) },
    ] {
        assert_eq!(answered(&scene.update(&[foreign])).0, Status::Unsupported, "{foreign:?}");
        assert_eq!(used(&scene), [0; 4]);
    }
}

/// PROTOCOL 6.2: a batch is accepted only from the control plane's port, with the switch's own key.
#[test]
fn only_the_control_plane_updates() {
    let mut scene = Scene::new(Budgets::default());
    let frame = batch(1, &[translate(BASE_1, 40, 1)]);
    for (port, reason) in [
        (Port::UNKNOWN, Reason::WrongPort),
        (Port::SWITCH, Reason::WrongPort),
        (HOST_1.port, Reason::WrongPort),
        (NODE_1.port, Reason::NotContinuation),
    ] {
        assert_eq!(scene.silent(port, &frame), Note::Dropped(reason));
    }
    let mut keyed = frame.clone();
    keyed[15] ^= 1;
    assert_eq!(scene.silent(Port::CONTROL, &keyed), Note::Dropped(Reason::WrongKey));
    assert_eq!(used(&scene), [0; 4]);
    assert_eq!(
        answered(&scene.deliver(Port::CONTROL, &frame)),
        (Status::Ok, 1, 0),
        "and batch 1 is still to come"
    );
}

/// PROTOCOL 6.15: a control plane of another version, an unknown kind, and a cut-off batch each get an
/// answer.
#[test]
fn a_batch_that_cannot_be_read_is_answered() {
    let mut scene = Scene::new(Budgets::default());
    let mut bytes = Vec::new();
    translate(BASE_1, 40, 1).emit(&mut bytes);
    let updates = Updates::request(1, 1, &bytes).expect("a batch that fits");
    let good = payload(&Message { header: Header::request(RequestId(1), 0), body: Body::Update(updates) });
    let mut newer = good.clone();
    newer[0] = message::VERSION + 1;
    let header = Header::request(RequestId(1), 0).answer(Status::Ok);
    let response = payload(&Message { header, body: Body::Update(Updates::response(1, 0)) });
    for (bytes, status) in [(&newer[..], Status::Version), (&good[..good.len() - 1], Status::Malformed)] {
        let out = scene.deliver(Port::CONTROL, &datagram(HOME, bytes));
        assert_eq!(answered(&out), (status, 0, 0));
        assert_eq!(out[1..], [Out::Note(Note::Refused(status))]);
    }
    let (answer, note) = scene.relayed(Port::CONTROL, &frame(HOME, &read(1, BASE_1, 8)), CONTROL);
    assert_eq!(note, Note::Refused(Status::Unsupported));
    assert_eq!(Message::parse(&answer).expect("an answer").header.status, Status::Unsupported);
    assert_eq!(scene.silent(Port::CONTROL, &datagram(HOME, &response)), Note::Dropped(Reason::Response));
    assert_eq!(scene.silent(Port::CONTROL, &datagram(HOME, &good[..9])), Note::Dropped(Reason::Message));
    assert_eq!(used(&scene), [0; 4]);
}

/// The defaults are those of MIND's switch: about 45,000 match-action rules (MIND 7.2).
#[test]
fn the_default_budgets_are_those_of_a_switch() {
    let budgets = Budgets::default();
    assert_eq!(budgets.translation_entries + budgets.protection_entries, 45_056);
}

/// PROTOCOL 5.11: the last batch's number is repeated with other bytes, with the control plane's key and from
/// its port: the switch stops and forwards nothing any more.
#[test]
fn a_batch_that_repeats_a_number_with_other_bytes_stops_the_switch() {
    let mut scene = Scene::rack();
    let forged = [protect(1, 0x1000, 0x1000, Perm::ReadWrite)];
    scene.update(&forged);
    let again = scene.deliver(Port::CONTROL, &batch(scene.seq, &forged));
    assert_eq!(
        again.last(),
        Some(&Out::Note(Note::UpdateRepeated { seq: scene.seq })),
        "the same bytes are answered"
    );
    assert_eq!(scene.switch.halted(), None);

    let tables = scene.switch.tables.clone();
    let seq = scene.seq;
    let own = batch(seq, &[protect(1, 0x1000, 0x1000, Perm::Read)]);
    assert_eq!(scene.silent(Port::CONTROL, &own), Note::UpdateChanged { seq });
    assert_eq!(scene.switch.halted(), Some(Halt::BatchChanged { seq }));
    assert_eq!(scene.deliver(Port::CONTROL, &batch(seq + 1, &forged)), []);
    assert_eq!(scene.deliver(Port::CONTROL, &own), [], "it said so once");
    assert!(scene.switch.tables == tables);
}
