//! Index switches that come and go (PROTOCOL 16.1 to 16.4). `crates/sim` tests look-ups through them.

use crate::rack::{Rack, text};
use farmem_control::api::{ErrorCode, IndexInfo, IndexJoined, JoinIndex, Leave, Overview, Response, Tier};
use farmem_machine::{Duration, Port};

const MIB: u64 = 1 << 20;

/// Joins an edge switch above a node.
fn edge(number: u8, node: u8) -> JoinIndex {
    let below = vec![format!("n{node}")];
    JoinIndex { name: format!("edge{number}"), gid: text(30 + number), tier: Tier::Edge, below }
}

/// Creates a rack of a switch, two nodes, and an edge switch above each.
fn rack(seed: u64) -> Rack {
    let mut rack = Rack::new(seed);
    rack.join_switch().unwrap();
    for number in 1..=2 {
        rack.join_node(number, MIB);
    }
    for number in 1..=2 {
        assert_eq!(rack.call(edge(number, number)).unwrap().index, u16::from(number));
    }
    rack
}

fn joined(rack: &Rack, ticket: u64) -> IndexJoined {
    match rack.answer(ticket) {
        Some(Ok(Response::IndexJoined(joined))) => joined.clone(),
        other => panic!("it joined, not {other:?}"),
    }
}

/// Checks that every live role knows each member by its present endpoint.
fn check(rack: &Rack) {
    rack.check_log();
    rack.peers.keys().for_each(|&port| rack.check_tables(port));
}

/// An index switch leaves while a node is silent, and rejoins before the node was told. Its number is given
/// to no member before the leave has ended, not even to itself, and the node, once it answers, knows the new
/// endpoint and nothing of the old one.
#[test]
fn an_index_switch_joins_again_behind_its_leave() {
    let mut rack = rack(140);
    let (silent, edge1) = (Port::node(2), Port::index(1));
    let before = rack.tables(silent).peers[&edge1.0];
    rack.cut.insert(silent);
    let leave = rack.ask(Leave { port: edge1.0, generation: None });
    let again = rack.ask(edge(1, 1));
    let other = rack.ask(JoinIndex { below: vec!["later".into()], ..edge(3, 1) });
    rack.pass(Duration::from_millis(60));
    assert_eq!([leave, again].map(|ticket| rack.answer(ticket).is_some()), [false; 2], "a node was not told");
    // Wait until the node counts as silent.
    for ticket in [leave, again, other] {
        assert!(rack.wait(ticket).is_ok());
    }
    let order: Vec<u64> = rack.answered.iter().copied().filter(|&t| t == leave || t == again).collect();
    assert_eq!(order, [leave, again]);
    let (again, other) = (joined(&rack, again), joined(&rack, other));
    assert_eq!((again.index, other.index), (3, 4), "the number of a switch that is leaving is not free");
    assert_eq!(rack.tables(silent).peers.get(&edge1.0), Some(&before), "the node could not be told");
    rack.cut.clear();
    rack.settle();
    let known = |rack: &Rack, index| rack.tables(silent).peers.get(&Port::index(index).0).copied();
    assert_eq!(known(&rack, 1), None);
    assert_eq!(known(&rack, 3), Some((again.home.qpn, again.home.qkey)));
    rack.peers.remove(&edge1);
    check(&rack);
    let third =
        rack.call(JoinIndex { name: "edge9".into(), below: vec!["n9".into()], ..edge(9, 1) }).unwrap();
    assert_eq!(third.index, 1, "it is free when its switch has left");
    assert_eq!(known(&rack, 1), Some((third.home.qpn, third.home.qkey)));
    // A restart leads to the same state.
    rack.restart();
    rack.settle();
    check(&rack);
}

/// An index switch rejoins, and the rack's switch has no room for it: the join is rolled back. The index
/// switch remains a member by its name and number, and answers no request. The members below it stay its own,
/// and when there is room it joins in its next incarnation.
#[test]
fn an_index_switch_that_joins_again_in_vain_is_still_a_member() {
    let mut rack = rack(604);
    let peers = rack.tables(Port::SWITCH).peers.len();
    let squeeze = |rack: &mut Rack, peers| rack.peers.get_mut(&Port::SWITCH).unwrap().budget.peers = peers;
    let before = rack.call(Overview {}).unwrap().index;
    squeeze(&mut rack, peers - 1);
    assert_eq!(rack.refused(edge(1, 1)).code, ErrorCode::TableFull);
    rack.peers.remove(&Port::index(1));
    let seen = rack.call(Overview {}).unwrap().index;
    let names = |infos: &[IndexInfo]| -> Vec<(u16, String, Vec<String>)> {
        infos.iter().map(|info| (info.index, info.name.clone(), info.below.clone())).collect()
    };
    assert_eq!(names(&seen), names(&before));
    assert_eq!(seen.iter().map(|info| info.answers).collect::<Vec<_>>(), [false, true]);
    assert_eq!(rack.refused(edge(3, 1)).code, ErrorCode::Conflict);
    check(&rack);

    squeeze(&mut rack, peers);
    assert_eq!(rack.call(edge(1, 1)).unwrap().index, 1);
    assert_eq!(rack.call(Overview {}).unwrap().index, before);
    check(&rack);
}

/// A member below one index switch is below no other, even while one of them leaves. After the leave it may
/// be.
#[test]
fn members_below_a_departed_switch_may_move() {
    let mut rack = rack(141);
    let taken = rack.refused(edge(3, 2));
    assert_eq!(taken.code, ErrorCode::Conflict);
    assert!(taken.message.contains("edge2"), "{}", taken.message);
    rack.call(Leave { port: Port::index(2).0, generation: None }).unwrap();
    rack.peers.remove(&Port::index(2));
    assert_eq!(rack.call(edge(3, 2)).unwrap().index, 2);
    check(&rack);
}

/// A name belongs to one member, whatever its kind. The member with the name rejoins.
#[test]
fn a_name_is_one_members() {
    let mut rack = rack(142);
    rack.join_host(1);
    let node = |name: &str| farmem_control::api::JoinNode::new(name.into(), text(90), MIB);
    let host = |name: &str| farmem_control::api::JoinHost::new(name.into(), text(91));
    let index = |name: &str| JoinIndex { name: name.into(), below: vec!["later".into()], ..edge(3, 1) };
    let taken = [
        (rack.refused(node("edge1")), "switch of the index"),
        (rack.refused(node("h1")), "host"),
        (rack.refused(host("n1")), "memory node"),
        (rack.refused(host("edge2")), "switch of the index"),
        (rack.refused(index("n2")), "memory node"),
        (rack.refused(index("h1")), "host"),
    ];
    for (error, by) in taken {
        assert_eq!(error.code, ErrorCode::Conflict);
        assert!(error.message.ends_with(&format!("is taken by a {by}")), "{}", error.message);
    }
    assert_eq!(rack.call(edge(1, 1)).unwrap().index, 1);
    // The name of a host that left is free.
    rack.call(Leave { port: Port::host(1).0, generation: None }).unwrap();
    assert_eq!(rack.call(index("h1")).unwrap().index, 3);
    assert_eq!(rack.refused(host("h1")).code, ErrorCode::Conflict);
    check(&rack);
}
