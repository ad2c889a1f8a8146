//! Loss, silence, refusals, restarts, and their consequences (PROTOCOL 8.15 to 8.25).

use crate::rack::peer::Budget;
use crate::rack::{Faults, Rack, grant, text};
use farmem_control::api::*;
use farmem_control::{DropReason, MISSED_MAX, Note, Role};
use farmem_machine::{Duration, Port};
use farmem_wire::{Perm, Status};

const MIB: u64 = 1 << 20;
const NODE: Port = Port::node(1);

fn rack_of_one(seed: u64) -> (Rack, u32, u32) {
    let mut rack = Rack::new(seed);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let (owner, other) = (rack.domain("owner"), rack.domain("other"));
    (rack, owner, other)
}

fn tables_agree(rack: &Rack) {
    rack.check_log();
    for &port in rack.peers.keys() {
        rack.check_tables(port);
    }
}

/// Half of all frames are lost, many doubled and overtaken. Every request is answered once, and each update
/// is applied once.
#[test]
fn lost_and_doubled_frames_do_no_harm() {
    let (mut rack, owner, other) = rack_of_one(40);
    rack.faults = Faults { lose: 50, double: 30, delay_us: 90_000 };
    let mut live = Vec::new();
    for _ in 0..30 {
        let vma = rack.allocate(owner, 4096);
        rack.call(grant(&vma, 0, 1024, other, PermName::Read)).unwrap();
        live.push(vma);
    }
    for vma in live.drain(..20) {
        rack.call(Free { domain: owner, base: vma.base, id: vma.id }).unwrap();
    }
    assert!(rack.noted(Note::Retransmitted(Role::Switch)) > 10);
    assert!(rack.noted(Note::Dropped(DropReason::Stale)) > 10, "late and doubled answers came");
    rack.faults = Faults::default();
    tables_agree(&rack);
}

/// The switch's table is full. The node, which had agreed, rolls back. The caller is told which table is
/// full, and nothing has changed (PROTOCOL 8.15).
#[test]
fn a_full_table_leaves_everything_as_it_was() {
    let (mut rack, owner, other) = rack_of_one(41);
    let vma = rack.allocate(owner, 4096);
    let (rows, switch, node) =
        (rack.control.compact().len(), rack.tables(Port::SWITCH).clone(), rack.tables(NODE).clone());
    for (full, titled) in [(Port::SWITCH, "the switch"), (NODE, "node 1 (n1)")] {
        let allocate = Allocate { domain: owner, size: 1, node: None, durable: false };
        for request in [Request::from(allocate), grant(&vma, 0, 1024, other, PermName::Read).into()] {
            rack.peers.get_mut(&full).unwrap().budget = Budget { perms: 4, ..Budget::default() };
            let error = rack.refused(request);
            assert_eq!(error.code, ErrorCode::TableFull);
            assert!(error.message.contains(titled), "{}", error.message);
            assert_eq!((rack.tables(Port::SWITCH), rack.tables(NODE)), (&switch, &node));
            assert_eq!(rack.control.compact().len(), rows);
            rack.check_log();
        }
        rack.peers.get_mut(&full).unwrap().budget = Budget::default();
    }
    assert_eq!(rack.noted(Note::TakenBack), 4);
    assert_eq!(rack.vmas(), [vma]);
    rack.allocate(owner, 4096);
    tables_agree(&rack);
}

/// Full tables refuse sessions, connections and members in the same way: a change that cannot be told does
/// not happen.
#[test]
fn full_tables_refuse_members_sessions_and_connections() {
    let (mut rack, owner, _) = rack_of_one(42);
    let (host, _) = rack.join_host(1);
    let squeeze =
        |rack: &mut Rack, port: Port, budget: Budget| rack.peers.get_mut(&port).unwrap().budget = budget;
    squeeze(
        &mut rack,
        Port::SWITCH,
        Budget { sessions: 0, connections: 0, peers: 2, translations: 1, ..Budget::default() },
    );
    squeeze(&mut rack, NODE, Budget { queue_pairs: 0, ..Budget::default() });
    let new_node = JoinNode::new("n2".into(), text(12), MIB);
    for request in [
        Request::from(OpenSession { host, domain: owner }),
        Connect::new(host, 1, owner).into(),
        Connect { through: true, ..Connect::new(host, 1, owner) }.into(),
        JoinHost::new("h2".into(), text(102)).into(),
        new_node.clone().into(),
    ] {
        assert_eq!(rack.refused(request).code, ErrorCode::TableFull);
    }
    // The peer fits now, but the translation still does not: the peer is rolled back.
    squeeze(&mut rack, Port::SWITCH, Budget { translations: 1, ..Budget::default() });
    assert_eq!(rack.refused(new_node).code, ErrorCode::TableFull);
    assert!(
        !rack.tables(NODE).peers.contains_key(&Port::host(2).0),
        "the node had agreed to the second host"
    );
    assert!(!rack.known.contains(&Port::node(2)) && !rack.known.contains(&Port::host(2)));
    tables_agree(&rack);
}

/// One of two nodes refuses to know a joining host, and every other host. The node is gone until it rejoins,
/// since it lacks a required update, and the hosts are in. A switch that rejoins is not kept out either.
/// Requests that need that node are refused, while the other one has room.
#[test]
fn a_node_that_refuses_a_peer_keeps_nobody_out() {
    for status in [Status::TableFull, Status::Malformed] {
        let (mut rack, owner, _) = rack_of_one(46);
        rack.join_node(2, MIB);
        let refuse = |rack: &mut Rack| rack.peers.get_mut(&NODE).unwrap().refuse_next = Some(status);
        refuse(&mut rack);
        let (host, _) = rack.join_host(2);
        for port in [Port::SWITCH, Port::node(2)] {
            assert!(rack.tables(port).peers.contains_key(&Port::host(host).0), "{port:?}");
        }
        assert_eq!(
            (rack.noted(Note::Refused(Role::Node(1), status)), rack.noted(Note::MustRejoin(Role::Node(1)))),
            (1, 1)
        );
        let on = |node| Allocate { domain: owner, size: 1, node: Some(node), durable: false };
        assert_eq!(rack.refused(on(1)).code, ErrorCode::Unavailable);
        rack.call(on(2)).unwrap();

        rack.join_node(1, MIB);
        assert!(rack.tables(NODE).peers.contains_key(&Port::host(host).0));
        tables_agree(&rack);
        refuse(&mut rack);
        rack.join_switch().unwrap();
        rack.join_host(3);
        rack.call(on(2)).unwrap();
        rack.join_node(1, MIB);
        tables_agree(&rack);
        rack.check_log();
    }
}

/// A free can need more entries than it gives back. If one role refuses it, it is rolled back at the other,
/// content and all.
#[test]
fn a_refused_free_is_taken_back() {
    let (mut rack, owner, other) = rack_of_one(43);
    let vma = rack.allocate(owner, 4096);
    rack.call(grant(&vma, 1024, 1024, other, PermName::Read)).unwrap();
    rack.peers.get_mut(&Port::SWITCH).unwrap().refuse_next = Some(Status::TableFull);
    assert_eq!(rack.refused(Free { domain: owner, base: vma.base, id: vma.id }).code, ErrorCode::TableFull);
    for port in [Port::SWITCH, NODE] {
        assert_eq!(rack.peers[&port].may(owner, vma.base), Perm::ReadWrite);
        assert_eq!(rack.peers[&port].may(other, vma.base + 1024), Perm::Read);
    }
    tables_agree(&rack);
    rack.call(Free { domain: owner, base: vma.base, id: vma.id }).unwrap();
}

/// A refusal because of different versions does not count as a full table.
#[test]
fn another_refusal_says_its_status() {
    let (mut rack, owner, _) = rack_of_one(44);
    rack.peers.get_mut(&NODE).unwrap().refuse_next = Some(Status::Unsupported);
    let error = rack.refused(Allocate { domain: owner, size: 1, node: None, durable: false });
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.contains("Unsupported"), "{}", error.message);
    assert_eq!(rack.noted(Note::Refused(Role::Node(1), Status::Unsupported)), 1);
    tables_agree(&rack);
}

/// The node is cut off in the middle of an allocation. The caller is told so. When the node is back it is
/// first told to forget the allocation, and goes on with its memory as it was.
#[test]
fn a_silent_node_misses_nothing() {
    let (mut rack, owner, other) = rack_of_one(45);
    let kept = rack.allocate(owner, 4096);
    rack.cut.insert(NODE);
    let error = rack.refused(Allocate { domain: owner, size: 1, node: None, durable: false });
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.contains("node 1 (n1)"), "{}", error.message);
    assert_eq!(rack.noted(Note::Silent(Role::Node(1))), 1);
    assert!(rack.peers[&Port::SWITCH].tables.perms.len() == 4, "the switch has taken it back");

    // While the node is silent, changes that need it fail at once, hosts come and go, and freed memory stays
    // unused.
    let retransmitted = rack.noted(Note::Retransmitted(Role::Node(1)));
    for request in [
        Request::from(grant(&kept, 0, 1024, other, PermName::Read)),
        Allocate { domain: owner, size: 1, node: Some(1), durable: false }.into(),
        Allocate { domain: owner, size: 1, node: None, durable: false }.into(),
    ] {
        assert_eq!(rack.refused(request).code, ErrorCode::Unavailable);
    }
    rack.join_host(1);
    rack.call(Free { domain: owner, base: kept.base, id: kept.id }).unwrap();
    assert_eq!(rack.noted(Note::Retransmitted(Role::Node(1))), retransmitted);
    rack.check_log();

    rack.cut.clear();
    rack.settle();
    assert_eq!(rack.noted(Note::Back(Role::Node(1))), 1);
    assert!(rack.tables(NODE).perms.is_empty());
    assert!(rack.tables(NODE).peers.contains_key(&Port::host(1).0));
    assert_eq!(rack.allocate(other, 4096).base, kept.base);
    tables_agree(&rack);
}

/// The switch falls silent: requests that need its agreement are Unavailable, at once after the first time.
/// The switch recovers without a rejoin.
#[test]
fn a_silent_switch_makes_requests_unavailable() {
    let (mut rack, owner, _) = rack_of_one(46);
    let vma = rack.allocate(owner, 4096);
    rack.cut.insert(Port::SWITCH);
    let free = Free { domain: owner, base: vma.base, id: vma.id };
    assert_eq!(rack.refused(free.clone()).code, ErrorCode::Unavailable);
    assert_eq!(rack.refused(free.clone()).code, ErrorCode::Unavailable);
    assert_eq!(rack.noted(Note::Silent(Role::Switch)), 1);
    assert_eq!(rack.peers[&NODE].may(owner, vma.base), Perm::ReadWrite, "the node has taken it back");
    rack.cut.clear();
    rack.settle();
    rack.call(free).unwrap();
    tables_agree(&rack);
}

/// A node that is silent during very many changes must rejoin: what it missed is not kept for ever.
#[test]
fn a_role_that_misses_too_many_updates_must_rejoin() {
    let (mut rack, owner, _) = rack_of_one(47);
    rack.cut.insert(NODE);
    rack.refused(Allocate { domain: owner, size: 1, node: None, durable: false });
    for _ in 0..=MISSED_MAX {
        rack.join_host(1);
        if rack.noted(Note::MustRejoin(Role::Node(1))) > 0 {
            break;
        }
    }
    assert_eq!(rack.noted(Note::MustRejoin(Role::Node(1))), 1);
    rack.cut.clear();
    rack.settle();
    let error = rack.refused(Connect::new(1, 1, owner));
    assert!(error.message.contains("must join again"), "{}", error.message);
    rack.check_log();
    rack.join_node(1, MIB);
    rack.call(Connect::new(1, 1, owner)).unwrap();
    rack.check_tables(Port::SWITCH);
    rack.check_tables(NODE);
}

/// A switch that is too small for the rack refuses the tables of its join. It is not used half full: it must
/// rejoin with larger tables.
#[test]
fn a_switch_that_refuses_its_tables_is_gone() {
    let (mut rack, owner, _) = rack_of_one(48);
    let vma = rack.allocate(owner, 8192);
    rack.budget = Budget { perms: 3, ..Budget::default() };
    rack.join_switch().unwrap();
    assert_eq!(rack.noted(Note::MustRejoin(Role::Switch)), 1);
    let error = rack.refused(Free { domain: owner, base: vma.base, id: vma.id });
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.contains("refused its tables"), "{}", error.message);
    rack.check_log();
    rack.budget = Budget::default();
    rack.join_switch().unwrap();
    rack.call(Free { domain: owner, base: vma.base, id: vma.id }).unwrap();
    tables_agree(&rack);
}

/// A role rejoins while a request waits for it. The request goes on and the caller sees one answer: updates
/// about memory are sent again behind the role's tables, while sessions and connections restart with new
/// numbers.
#[test]
fn a_request_outlives_the_restart_of_a_role() {
    let (mut rack, owner, _) = rack_of_one(49);
    let (host, _) = rack.join_host(1);
    let node = || Request::from(JoinNode::new("n1".into(), text(11), MIB));
    let switch = || Request::from(JoinSwitch { gid: text(2) });
    let allocate = Request::from(Allocate { domain: owner, size: 4096, node: None, durable: false });
    for (cut, join, request) in [
        (NODE, node(), allocate.clone()),
        (Port::SWITCH, switch(), allocate),
        (NODE, node(), Connect::new(host, 1, owner).into()),
        (NODE, node(), Connect { through: true, ..Connect::new(host, 1, owner) }.into()),
        (Port::SWITCH, switch(), Connect { through: true, ..Connect::new(host, 1, owner) }.into()),
        (Port::SWITCH, switch(), OpenSession { host, domain: owner }.into()),
    ] {
        rack.cut.insert(cut);
        let ticket = rack.ask(request);
        rack.pass(Duration::from_millis(20));
        assert_eq!(rack.answer(ticket), None);
        rack.cut.clear();
        let join = rack.ask(join);
        rack.wait(join).unwrap();
        rack.wait(ticket).unwrap();
        rack.settle();
        tables_agree(&rack);
    }
    assert_eq!(rack.noted(Note::BegunAnew), 4);
    assert_eq!(rack.vmas().len(), 2);
}

/// A free is in flight, and the first role has given the room to another vma when the other role rejoins. The
/// free goes on: a rollback would need the room again, and a role without room for a required update is lost
/// (PROTOCOL 8.5, 8.17).
#[test]
fn a_free_outlives_the_join_of_a_role_though_its_room_is_taken() {
    for (late, first) in [(NODE, Port::SWITCH), (Port::SWITCH, NODE)] {
        let (mut rack, owner, other) = rack_of_one(55);
        let vma = rack.allocate(owner, 4096);
        let kept = rack.allocate(owner, 4096);
        rack.peers.get_mut(&first).unwrap().budget = Budget { perms: 8, ..Budget::default() };
        rack.cut.insert(late);
        let free = rack.ask(Free { domain: owner, base: vma.base, id: vma.id });
        rack.pass(Duration::from_millis(20));
        assert_eq!(rack.peers[&first].may(owner, vma.base), Perm::None, "{first:?} has done it");
        let taker = rack.ask(grant(&kept, 0, 4096, other, PermName::Read));
        rack.pass(Duration::from_millis(20));
        assert_eq!(rack.peers[&first].may(other, kept.base), Perm::Read, "the room is taken by another vma");
        rack.cut.clear();
        let join = match late {
            Port::SWITCH => rack.ask(JoinSwitch { gid: text(2) }),
            _ => rack.ask(JoinNode::new("n1".into(), text(11), MIB)),
        };
        for ticket in [join, free, taker] {
            rack.wait(ticket).unwrap();
        }
        rack.settle();
        for lost in [Role::Switch, Role::Node(1)] {
            assert_eq!(rack.noted(Note::MustRejoin(lost)), 0);
        }
        assert_eq!(rack.vmas(), [kept]);
        tables_agree(&rack);
    }
}

/// Frees and grants in flight are completed when the control plane restarts (PROTOCOL 8.25).
#[test]
fn a_restart_completes_what_was_being_freed() {
    let (mut rack, owner, other) = rack_of_one(56);
    let vma = rack.allocate(owner, 4096);
    let kept = rack.allocate(owner, 4096);
    rack.peers.get_mut(&Port::SWITCH).unwrap().budget = Budget { perms: 8, ..Budget::default() };
    rack.cut.insert(NODE);
    rack.ask(Free { domain: owner, base: vma.base, id: vma.id });
    rack.pass(Duration::from_millis(20));
    rack.ask(grant(&kept, 0, 4096, other, PermName::Read));
    rack.pass(Duration::from_millis(20));
    rack.restart();
    rack.cut.clear();
    rack.settle();
    assert_eq!(rack.noted(Note::MustRejoin(Role::Switch)), 0);
    assert_eq!(rack.vmas(), std::slice::from_ref(&kept));
    assert_eq!(rack.peers[&NODE].may(other, kept.base), Perm::Read);
    tables_agree(&rack);
}

/// A role that keeps restarting does not hold a request for ever.
#[test]
fn a_request_is_not_begun_anew_for_ever() {
    let (mut rack, owner, _) = rack_of_one(50);
    let (host, _) = rack.join_host(1);
    rack.cut.insert(NODE);
    let ticket = rack.ask(Connect::new(host, 1, owner));
    while rack.answer(ticket).is_none() {
        rack.call(JoinNode::new("n1".into(), text(11), MIB)).unwrap();
    }
    assert_eq!(rack.answer(ticket).unwrap().as_ref().unwrap_err().code, ErrorCode::Unavailable);
    assert_eq!(rack.noted(Note::BegunAnew), 3);
    rack.cut.clear();
    rack.settle();
    tables_agree(&rack);
}

/// An answer of the node's earlier incarnation to a batch with the same number arrives after the rejoin. It
/// must not count (PROTOCOL 8.20): the batch that has the number now was never applied.
#[test]
fn an_answer_from_before_the_join_does_not_count() {
    let (mut rack, owner, _) = rack_of_one(51);
    // The next batch of the old incarnation is answered, but the answer is held back.
    rack.join_node(1, MIB);
    let ticket = rack.ask(Allocate { domain: owner, size: 4096, node: Some(1), durable: false });
    let sent = rack.take_wires();
    let (_, batch) = sent.into_iter().find(|(port, _)| *port == NODE).expect("a batch for the node");
    let old_answer = rack.peers.get_mut(&NODE).unwrap().hear(&batch).expect("its answer");
    rack.cut.insert(NODE);
    rack.call(JoinNode::new("n1".into(), text(11), MIB)).unwrap();
    rack.cut.clear();
    // Batches 1 and 2 of the new incarnation are outstanding in turn. The old answer arrives at every moment.
    let mut tries = 0;
    while rack.answer(ticket).is_none() {
        rack.event(farmem_machine::Event::Frame { port: NODE, bytes: &old_answer });
        tries += 1;
        assert_eq!(rack.noted(Note::Dropped(DropReason::Stale)), tries);
        assert!(rack.step());
    }
    rack.wait(ticket).unwrap();
    rack.settle();
    tables_agree(&rack);
}

/// The control plane crashes while a batch is unanswered, and the role has applied it. After the restart the
/// same batch goes out with the same number, the role answers without applying it twice, and the request
/// without a caller is rolled back (PROTOCOL 8.19, 8.25).
#[test]
fn a_restart_sends_the_same_batch_again() {
    let (mut rack, owner, _) = rack_of_one(52);
    let (switch, node) = (rack.tables(Port::SWITCH).clone(), rack.tables(NODE).clone());
    let ticket = rack.ask(Allocate { domain: owner, size: 4096, node: None, durable: false });
    for (port, batch) in rack.take_wires() {
        rack.peers.get_mut(&port).unwrap().hear(&batch).expect("an answer, which is lost");
    }
    assert_ne!(*rack.tables(NODE), node);
    rack.restart();
    assert_eq!(rack.answer(ticket).unwrap().as_ref().unwrap_err().code, ErrorCode::Unavailable);
    let applied = rack.peers[&NODE].applied.len();
    rack.settle();
    assert_eq!((rack.tables(Port::SWITCH), rack.tables(NODE)), (&switch, &node));
    assert_eq!(rack.peers[&NODE].applied.len(), applied + 1, "one update more: the one that takes back");
    assert_eq!(rack.vmas(), []);
    tables_agree(&rack);
}

/// An allocation is in flight to the node when the control plane crashes. After the restart its place is
/// allocated anew at once, while it is unknown whether the first allocation was applied. It was, and it is
/// undone before the second is told, not after (PROTOCOL 8.16).
#[test]
fn a_late_rollback_spares_later_members() {
    let (mut rack, owner, _) = rack_of_one(54);
    rack.ask(Allocate { domain: owner, size: 16384, node: None, durable: false });
    rack.restart();
    let vma = rack.allocate(owner, 4096);
    for port in [Port::SWITCH, NODE] {
        assert_eq!(rack.peers[&port].may(owner, vma.base), Perm::ReadWrite, "{port:?}");
        assert_eq!(rack.peers[&port].may(owner, vma.base + 4096), Perm::None, "{port:?}");
    }
    tables_agree(&rack);
}

/// The control plane crashes at every action of a busy afternoon. In each case the log reads back, and the
/// tables come to agree.
#[test]
fn the_control_plane_may_die_at_every_action() {
    let mut die_at = 1;
    loop {
        let mut rack = Rack::new(53);
        rack.crash_in = Some(die_at);
        let afternoon = |rack: &mut Rack| -> Result<(), ApiError> {
            rack.call(JoinSwitch { gid: text(2) })?;
            rack.call(JoinNode::new("n1".into(), text(11), MIB))?;
            rack.call(JoinHost::new("h1".into(), text(101)))?;
            rack.call(CreateDomain { name: "owner".into() })?;
            rack.call(CreateDomain { name: "other".into() })?;
            let vma = rack.call(Allocate { domain: 1, size: 4096, node: None, durable: false })?;
            rack.call(grant(&vma, 0, 1024, 2, PermName::Read))?;
            rack.call(OpenSession { host: 1, domain: 1 })?;
            let qpn = rack.call(Connect::new(1, 1, 1))?.qpn;
            rack.call(Disconnect { host: 1, qpn })?;
            let through = Connect { through: true, root: Some(vma.base), ..Connect::new(1, 1, 1) };
            let qpn = rack.call(through.clone())?.qpn;
            rack.call(Disconnect { host: 1, qpn })?;
            rack.call(through)?;
            rack.call(Free { domain: 1, base: vma.base, id: vma.id })?;
            rack.call(Leave::new(Port::node(1).0))?;
            rack.call(Leave::new(Port::host(1).0)).map(drop)
        };
        let done = afternoon(&mut rack);
        rack.settle();
        rack.check_log();
        let survived = rack.crash_in.take().is_some();
        assert!(done.is_ok() || !survived, "{done:?}");
        // A role whose join was cut off has no process that listens, so it asks again.
        rack.call(JoinSwitch { gid: text(2) }).unwrap();
        rack.call(JoinNode::new("n1".into(), text(11), MIB)).unwrap();
        rack.settle();
        rack.check_tables(Port::SWITCH);
        rack.check_tables(NODE);
        if survived {
            break;
        }
        die_at += 1;
    }
    assert!(die_at > 60, "the afternoon was busy: {die_at} actions");
}
