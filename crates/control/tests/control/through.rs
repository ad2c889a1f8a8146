//! Connections through the switch: what node, switch and host are told, and how they end (PROTOCOL 15.12,
//! 15.13).

use crate::rack::{Rack, text};
use farmem_control::api::{
    ApiError, Connect, ConnectionInfo, Disconnect, ErrorCode, JoinNode, JoinSwitch, Leave, RoleAddress,
};
use farmem_machine::{Duration, Port};
use farmem_wire::message::Relayed;
use farmem_wire::{Domain, HostId, NodeId, Pmtu, Qpn, Rkey, VirtAddr};

const MIB: u64 = 1 << 20;
const NODE: Port = Port::node(1);

/// Creates a rack of a switch, two nodes and host 1. Returns it with the number of its domain.
fn rack(seed: u64) -> (Rack, u32) {
    let mut rack = Rack::new(seed);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    rack.join_node(2, MIB);
    rack.join_host(1);
    let domain = rack.domain("web");
    (rack, domain)
}

fn through(domain: u32, node: u16, root: Option<u64>) -> Connect {
    Connect { through: true, root, ..Connect::new(1, node, domain) }
}

fn check(rack: &Rack) {
    rack.check_log();
    rack.peers.keys().for_each(|&port| rack.check_tables(port));
}

/// PROTOCOL 15.12: node and switch are told numbers that match, the host is told where the switch is, and all
/// four queue pairs belong to one connection.
#[test]
fn both_ends_and_the_switch_agree() {
    let (mut rack, domain) = rack(70);
    let mut seen = Vec::new();
    for round in 0..40 {
        let root = [None, Some(0x1000_0000_0200)][round % 2];
        let ConnectionInfo { node, qpn, peer_qpn, first_psn, rkey, pmtu, through: place, .. } =
            rack.call(through(domain, 1, root)).unwrap();
        assert_eq!(place, Some(RoleAddress { port: Port::SWITCH.0, gid: text(2) }));
        let entry = rack.tables(Port::SWITCH).connections[&peer_qpn];
        let Relayed { to_host, node_qpn, .. } = entry;
        let expected = Relayed {
            to_node: Qpn::new(peer_qpn),
            to_host,
            host: HostId(1),
            host_qpn: Qpn::new(qpn),
            node: NodeId(1),
            node_qpn,
            rkey: Rkey(rkey),
            domain: Domain(domain),
            pmtu: Pmtu::B1024,
            root: VirtAddr(root.unwrap_or(0)),
        };
        assert_eq!((entry, node.node, pmtu), (expected, 1, 1024));
        let row = rack.tables(NODE).queue_pairs[&node_qpn.get()];
        assert_eq!(row, (to_host.get(), Port::SWITCH.0, first_psn, rkey, domain));
        seen.extend([qpn, peer_qpn, to_host.get(), node_qpn.get()]);
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count, "no queue pair number has two uses");
    assert!(seen[0] >= 16);
    assert_eq!(rack.call(Connect::new(1, 1, domain)).unwrap().through, None, "others are as they were");
    assert_eq!(rack.tables(Port::SWITCH).connections.len(), 40);
    check(&rack);
}

/// PROTOCOL 15.12: a root for a direct connection, an invalid root, and a rack whose switch has not joined or
/// does not answer.
#[test]
fn impossible_connections_are_refused_with_a_reason() {
    let (mut rack, domain) = rack(71);
    let refused = |rack: &mut Rack, call: Connect| {
        let ApiError { code, message, remedy } = rack.refused(call);
        assert!(!remedy.is_empty());
        (code, message)
    };
    let direct = Connect { root: Some(0x1000), ..Connect::new(1, 1, domain) };
    let (code, message) = refused(&mut rack, direct);
    assert_eq!(code, ErrorCode::BadRequest);
    assert!(message.contains("does not go through the switch"), "{message}");
    for root in [0, 1, 255, 0x1000_0000_0080, u64::MAX] {
        let (code, message) = refused(&mut rack, through(domain, 1, Some(root)));
        assert_eq!(code, ErrorCode::BadRequest);
        assert!(message.contains(&format!("{root:#x} is no root")), "{message}");
    }
    assert_eq!(refused(&mut rack, through(domain, 9, None)).0, ErrorCode::NotFound);
    assert_eq!(refused(&mut rack, through(99, 1, None)).0, ErrorCode::NotFound);
    let mut bare = Rack::new(72);
    bare.join_node(1, MIB);
    bare.join_host(1);
    let domain = bare.domain("web");
    let (code, message) = refused(&mut bare, through(domain, 1, None));
    assert_eq!(code, ErrorCode::Unavailable);
    assert!(message.contains("the switch"), "{message}");
    bare.call(Connect::new(1, 1, domain)).unwrap();
}

/// PROTOCOL 15.13: a connection is ended by the host's user, by a host that leaves or rejoins, or by a node
/// that leaves or rejoins. The switch and the other end forget it.
#[test]
fn a_connection_ends_at_all_that_know_it() {
    for end in 0..4 {
        let (mut rack, domain) = rack(73 + end);
        let qpn = rack.call(through(domain, 1, None)).unwrap().qpn;
        let other = rack.call(through(domain, 2, Some(0x1000_0000_0000))).unwrap();
        let kept = end != 1 && end != 2;
        match end {
            0 => rack.call(Disconnect { host: 1, qpn }).unwrap(),
            1 => rack.call(Leave::new(Port::host(1).0)).unwrap(),
            2 => _ = rack.join_host(1),
            _ => _ = rack.join_node(1, MIB),
        }
        rack.settle();
        let left: Vec<u32> = rack.tables(Port::SWITCH).connections.keys().copied().collect();
        assert_eq!(left, if kept { vec![other.peer_qpn] } else { vec![] }, "end {end}");
        assert!(rack.tables(NODE).queue_pairs.is_empty(), "end {end}");
        assert_eq!(rack.tables(Port::node(2)).queue_pairs.len(), usize::from(kept));
        check(&rack);
    }
    let (mut rack, domain) = rack(80);
    rack.call(through(domain, 2, None)).unwrap();
    rack.call(Leave::new(Port::node(2).0)).unwrap();
    assert!(rack.tables(Port::SWITCH).connections.is_empty());
    rack.check_log();
    rack.check_tables(Port::SWITCH);
}

/// PROTOCOL 8.7, 15.13: a switch that joins is told all connections as they were. Their ends are told
/// nothing.
#[test]
fn a_switch_that_joins_again_is_told_its_connections() {
    let (mut rack, domain) = rack(81);
    for node in [1, 2, 1] {
        rack.call(through(domain, node, Some(0x1000_0000_0100))).unwrap();
    }
    let before = rack.tables(Port::SWITCH).connections.clone();
    let told = rack.peers[&NODE].applied.len();
    rack.call(JoinSwitch { gid: text(2) }).unwrap();
    rack.settle();
    assert_eq!((rack.tables(Port::SWITCH).connections.clone(), before.len()), (before, 3));
    let peers_alone = &rack.peers[&NODE].applied[told..];
    assert!(
        peers_alone.iter().all(|update| matches!(
            update,
            farmem_wire::message::Update::Peer { .. } | farmem_wire::message::Update::PeerGone { .. }
        )),
        "{peers_alone:?}"
    );
    check(&rack);
    // A switch that joins after the control plane restarted is told them too.
    rack.restart();
    rack.call(JoinSwitch { gid: text(2) }).unwrap();
    rack.settle();
    assert_eq!(rack.tables(Port::SWITCH).connections.len(), 3);
    check(&rack);
}

/// PROTOCOL 8.15, 8.21: if the switch does not answer, the node, which had agreed, rolls back. The end of a
/// connection does not wait for its answer.
#[test]
fn a_silent_switch_holds_nothing_up_that_ends() {
    let (mut rack, domain) = rack(82);
    let qpn = rack.call(through(domain, 1, None)).unwrap().qpn;
    rack.cut.insert(Port::SWITCH);
    let error = rack.refused(through(domain, 1, None));
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert_eq!(rack.tables(NODE).queue_pairs.len(), 1, "the node took the second one back");
    rack.call(Disconnect { host: 1, qpn }).unwrap();
    assert!(rack.tables(NODE).queue_pairs.is_empty());
    rack.cut.clear();
    rack.pass(Duration::from_millis(10_000));
    rack.settle();
    assert!(rack.tables(Port::SWITCH).connections.is_empty(), "it is told when it answers again");
    rack.call(JoinNode::new("n1".into(), text(11), MIB)).unwrap();
    check(&rack);
}
