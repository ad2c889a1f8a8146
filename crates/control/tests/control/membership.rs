//! Membership: the members, what they are told, and when they are answered (PROTOCOL 8.2 to 8.9).

use crate::rack::{Rack, Step, text};
use farmem_control::api::*;
use farmem_control::{LEASE, Note, RECOVERS};
use farmem_machine::{Duration, Event, Port};
use farmem_wire::message::{HostSet, Page, Region, Seq, Update};
use farmem_wire::{HostId, Perm, VirtAddr};

const MIB: u64 = 1 << 20;

/// A rack comes up: switch, two nodes, two hosts. Each is answered when the others know it, and is then told
/// all it must know.
#[test]
fn a_rack_comes_up() {
    let mut rack = Rack::new(1);
    let SwitchJoined { home, control, .. } = rack.join_switch().unwrap();
    assert_eq!((home.port, home.gid.as_str()), (1, "127.0.0.2"));
    assert_eq!((control.port, control.gid.as_str()), (0, "127.0.0.1"));
    assert!(rack.tables(Port::SWITCH).peers.is_empty(), "no member has joined yet");

    assert_eq!((rack.join_node(1, 3 * MIB), rack.join_node(2, MIB)), (1, 2));
    assert_eq!((rack.join_host(1), rack.join_host(2)), ((1, 1), (2, 1)));

    let switch = rack.tables(Port::SWITCH);
    let ports: Vec<u32> = switch.peers.keys().copied().collect();
    assert_eq!(ports, [Port::node(1).0, Port::node(2).0, Port::host(1).0, Port::host(2).0]);
    let (base1, base2) = (0x1000_0000_0000, 0x1000_0000_0000 + 4 * MIB);
    let translations: Vec<_> = switch.translations.iter().map(|(&key, &node)| (key, node)).collect();
    assert_eq!(
        translations,
        [((base1, 22), 1), ((base2, 20), 2)],
        "powers of two, aligned, one after the other"
    );

    for (node, base, capacity) in [(1, base1, 3 * MIB), (2, base2, MIB)] {
        let tables = rack.tables(Port::node(node));
        let ports: Vec<u32> = tables.peers.keys().copied().collect();
        assert_eq!(ports, [1, Port::host(1).0, Port::host(2).0]);
        assert_eq!(tables.ranges.iter().collect::<Vec<_>>(), [(&(base, capacity), &0)]);
        assert_eq!(tables.peers[&1], (home.qpn, home.qkey), "nodes answer to the switch's endpoint");
    }
    let RackOverview { nodes, hosts, switch, .. } = rack.call(Overview {}).unwrap();
    assert!(switch, "it has joined");
    assert_eq!(
        nodes.iter().map(|node| (node.name.as_str(), node.gid.as_str())).collect::<Vec<_>>(),
        [("n1", "127.0.0.11"), ("n2", "127.0.0.12")]
    );
    assert_eq!(hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>(), ["h1", "h2"]);
    rack.check_log();
}

/// A host is answered only when the switch and every node know it: its first request may come at once.
#[test]
fn a_host_is_answered_when_all_know_it() {
    let mut rack = Rack::new(2);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    rack.join_node(2, MIB);
    let ticket = rack.ask(JoinHost::new("h1".into(), text(101)));
    while rack.answer(ticket).is_none() {
        assert!(rack.step());
    }
    for port in [Port::SWITCH, Port::node(1), Port::node(2)] {
        assert!(rack.tables(port).peers.contains_key(&Port::host(1).0), "{port:?} knows the host");
    }
}

/// A node that rejoins learns its peers last of all: it answers no request before its tables
/// are whole (PROTOCOL 8.3).
#[test]
fn a_node_hears_of_the_switch_last() {
    let mut rack = Rack::new(8);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    rack.join_host(1);
    let (owner, other) = (rack.domain("owner"), rack.domain("other"));
    // There is more than one batch, and requests arrive between two of them.
    for _ in 0..60 {
        let vma = rack.allocate(owner, 4096);
        rack.call(crate::rack::grant(&vma, 0, 1024, other, PermName::Read)).unwrap();
    }
    rack.join_node(1, MIB);
    let peer = &rack.peers[&Port::node(1)];
    assert!(peer.batches > 1, "{} batches", peer.batches);
    let is_peer = |update: &Update| matches!(update, Update::Peer { .. });
    let first = peer.applied.iter().position(is_peer).expect("the node knows a peer");
    assert!(peer.applied[first..].iter().all(is_peer), "tables come behind peers");
    assert!(matches!(peer.applied.last(), Some(Update::Peer { port: 1, .. })), "the switch is not the last");
}

/// A line is kept before the frame or the answer that depends on it (PROTOCOL 8.23). A joining role is
/// answered before its first frame, since only the answer tells it where to listen.
#[test]
fn first_kept_then_answered_then_sent() {
    let mut rack = Rack::new(3);
    rack.join_switch().unwrap();
    rack.trace.clear();
    let ticket = rack.ask(JoinNode::new("n1".into(), text(11), MIB));
    rack.wait(ticket).unwrap();
    rack.settle();
    let sent = |port| move |step: &Step| *step == Step::Sent(port);
    let at = |wanted: &dyn Fn(&Step) -> bool| rack.trace.iter().position(wanted).expect("it happened");
    let (kept, told) = (at(&|step| *step == Step::Kept), at(&sent(Port::SWITCH)));
    let (answered, first) = (at(&|step| *step == Step::Replied(ticket)), at(&sent(Port::node(1))));
    assert!(kept < told && told < answered && answered < first, "{:?}", rack.trace);
}

/// The first line of a log is the control plane's own endpoint: without it no role's answer would reach a
/// restarted one.
#[test]
fn the_own_endpoint_outlives_a_restart() {
    let mut rack = Rack::new(4);
    let control = rack.join_switch().unwrap().control;
    rack.restart();
    let again = rack.join_switch().unwrap().control;
    assert_eq!(control, again);
}

/// A host restarts: its sessions end at the switch and its connections at the nodes, while its generation
/// advances (PROTOCOL 8.8).
#[test]
fn a_host_that_joins_again_is_the_next_generation() {
    let mut rack = Rack::new(5);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let (host, _) = rack.join_host(1);
    let domain = rack.domain("web");
    rack.call(OpenSession { host, domain }).unwrap();
    rack.call(Connect::new(host, 1, domain)).unwrap();
    assert_eq!(rack.tables(Port::SWITCH).sessions.len(), 1);
    assert_eq!(rack.tables(Port::node(1)).queue_pairs.len(), 1);
    let before = rack.tables(Port::node(1)).peers[&Port::host(1).0];

    assert_eq!(rack.join_host(1), (host, 2));
    assert!(rack.tables(Port::SWITCH).sessions.is_empty());
    assert!(rack.tables(Port::node(1)).queue_pairs.is_empty());
    assert_ne!(rack.tables(Port::node(1)).peers[&Port::host(1).0], before, "the endpoint is a new one");
    rack.check_log();
}

/// A host leaves and its name comes back: its generation advances, so that no request id is used twice.
#[test]
fn a_host_that_left_keeps_its_number_and_generation() {
    let mut rack = Rack::new(6);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let (host, _) = rack.join_host(1);
    rack.call(Leave::new(Port::host(host).0)).unwrap();
    for port in [Port::SWITCH, Port::node(1)] {
        assert!(!rack.tables(port).peers.contains_key(&Port::host(host).0));
    }
    assert_eq!(rack.refused(Leave::new(Port::host(host).0)).code, ErrorCode::NotFound);
    rack.restart();
    assert_eq!(rack.join_host(1), (host, 2));
}

/// The control plane itself stands still for longer than a lease (stopped, in a debugger, without a CPU), and
/// hosts ask in vain meanwhile. None of them is fenced for it, whatever it does first when it goes on. A host
/// that is then not heard of for a lease is fenced (PROTOCOL 8.32, 12.35).
#[test]
fn a_control_plane_that_stood_still_fences_nobody() {
    let mut rack = Rack::new(11);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let hosts = [rack.join_host(1), rack.join_host(2)];
    let renew = |rack: &mut Rack, (host, generation)| {
        let ticket = rack.ask(Renew { host, generation, flushed: 0, qkey: 0 });
        let lease = LeaseInfo::try_from(rack.wait(ticket).unwrap()).unwrap();
        assert!(lease.lease_ms > 0, "host {host}: {lease:?}");
    };
    hosts.iter().for_each(|&host| renew(&mut rack, host));
    for _ in 0..3 {
        rack.stand_still(LEASE.times(2));
        rack.event(Event::Wake);
        hosts.iter().for_each(|&host| renew(&mut rack, host));
    }
    // The part of the lease before the stop counts as well.
    let half = Duration::from_nanos(LEASE.as_nanos() / 2);
    rack.pass(half);
    rack.stand_still(LEASE);
    rack.pass(half);
    renew(&mut rack, hosts[0]);
    let fenced = |rack: &Rack| hosts.map(|(host, _)| rack.noted(Note::Fenced(host)));
    assert_eq!(fenced(&rack), [0, 0]);

    rack.pass(half);
    assert_eq!(fenced(&rack), [0, 1], "only the one that was not heard of while the control plane ran");
    rack.check_log();
}

/// A host renews its lease and gives back no page that it is asked for. It gets no renewal when it has held
/// up a reset for two leases, and is fenced when its lease has surely ended. A host that only waits for it is
/// not fenced (PROTOCOL 12.51). While the node of the pages does not answer no host is to blame: a write-back
/// has to arrive there before a host may give a page up.
#[test]
fn a_host_that_gives_nothing_back_is_fenced() {
    let mut rack = Rack::new(12);
    rack.join_switch().unwrap();
    let node = rack.join_node(1, MIB);
    let [holds, waits] = [rack.join_host(1), rack.join_host(2)];
    let domain = rack.domain("d");
    let vma = rack.allocate(domain, 8192);
    rack.call(OpenSession { host: waits.0, domain }).unwrap();
    let region = Region::around(Page::of(VirtAddr(vma.base)), 1);
    let renew = |rack: &mut Rack, (host, generation)| {
        let ticket = rack.ask(Renew { host, generation, flushed: 0, qkey: 0 });
        rack.wait(ticket).map(|answer| LeaseInfo::try_from(answer).unwrap().lease_ms)
    };
    for host in [holds, waits] {
        assert!(renew(&mut rack, host).unwrap() > 0);
    }
    // The switch has joined once.
    let awaited = (region, Seq::of_epoch(1).next(), HostSet::only(HostId(holds.0)));
    rack.peers.get_mut(&Port::SWITCH).unwrap().awaits = Some(awaited);
    let asked = rack.ask(Recover { host: waits.0, page: vma.base });
    rack.wait(asked).unwrap();
    let quarter = Duration::from_nanos(LEASE.as_nanos() / 4);
    // For six leases nothing reaches the node, and no host is refused.
    rack.cut.insert(Port::node(node));
    for _ in 0..24 {
        rack.pass(quarter);
        for host in [holds, waits] {
            assert!(renew(&mut rack, host).unwrap() > 0);
        }
    }
    rack.cut.clear();
    let renewed = (0..40).take_while(|_| {
        rack.pass(quarter);
        assert!(renew(&mut rack, waits).unwrap() > 0);
        renew(&mut rack, holds).is_ok()
    });
    let renewed = renewed.count();
    assert!((7..=9).contains(&renewed), "two leases are eight quarters, and {renewed} were given");
    let refused = renew(&mut rack, holds).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    assert!(refused.message.contains(&format!("{:#x}", region.base().addr().0)), "{}", refused.message);
    let fenced = |rack: &Rack| [holds, waits].map(|(host, _)| rack.noted(Note::Fenced(host)));
    assert_eq!(fenced(&rack), [0, 0], "its lease has not ended");
    for _ in 0..5 {
        rack.pass(quarter);
        assert!(renew(&mut rack, waits).unwrap() > 0);
    }
    assert_eq!(fenced(&rack), [1, 0]);
    rack.check_log();
}

/// Hosts come and go under other names, many more than may cache pages: the next one may still cache pages.
#[test]
fn numbers_do_not_climb_with_hosts_that_come_and_go() {
    let mut rack = Rack::new(9);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let (stays, _) = rack.join_host(1);
    for name in 2..=100_u8 {
        let (host, generation) = rack.join_host(name);
        assert_eq!((host, generation), (stays + 1, u16::from(name) - 1));
        let lease = rack.call(Renew { host, generation, flushed: 0, qkey: 0 }).unwrap();
        assert!(lease.lease_ms > 0, "{lease:?}");
        let flushed = GIVEN_UP;
        let qkey = rack.qkeys[&host];
        rack.call(Renew { host, generation, flushed, qkey }).unwrap();
        rack.call(Leave::new(Port::host(host).0)).unwrap();
    }
    rack.check_log();
}

/// With no number left, a new host gets that of one that left, as its next generation.
#[test]
fn numbers_of_hosts_that_left_are_used_again() {
    let mut config = crate::rack::config();
    config.bounds.hosts_max = 2;
    let mut rack = Rack::with(7, config);
    assert_eq!((rack.join_host(1), rack.join_host(2)), ((1, 1), (2, 1)));
    let error = rack.refused(JoinHost::new("h3".into(), text(103)));
    assert_eq!(error.code, ErrorCode::TableFull);
    rack.call(Leave::new(Port::host(1).0)).unwrap();
    assert_eq!(rack.join_host(3), (1, 2));
    rack.check_log();
}

/// A node restarts with empty memory: its vmas stay allocated and are granted anew, its connections are gone,
/// its range is the same, and hosts connect again (PROTOCOL 8.6).
#[test]
fn a_node_that_joins_again_keeps_its_vmas_and_loses_its_connections() {
    let mut rack = Rack::new(8);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let (host, _) = rack.join_host(1);
    let (owner, reader) = (rack.domain("web"), rack.domain("log"));
    let vma = rack.allocate(owner, 8192);
    rack.call(crate::rack::grant(&vma, 4096, 4096, reader, PermName::Read)).unwrap();
    let qpn = rack.call(Connect::new(host, 1, owner)).unwrap().qpn;
    let translations = rack.tables(Port::SWITCH).translations.clone();

    rack.join_node(1, MIB);
    let node = &rack.peers[&Port::node(1)];
    assert_eq!((node.may(owner, vma.base), node.may(reader, vma.base)), (Perm::ReadWrite, Perm::None));
    assert_eq!(node.may(reader, vma.base + 4096), Perm::Read);
    assert!(node.tables.queue_pairs.is_empty());
    assert_eq!(rack.tables(Port::SWITCH).translations, translations);
    assert_eq!(rack.vmas(), [vma]);
    assert_eq!(rack.refused(Disconnect { host, qpn }).code, ErrorCode::NotFound);
    rack.call(Connect::new(host, 1, owner)).unwrap();
    rack.check_log();
}

/// A node may come back with more or less memory, as long as its range and its vmas allow it.
#[test]
fn a_node_may_come_back_with_another_capacity() {
    let mut rack = Rack::new(15);
    rack.join_node(1, 3 * 4096);
    let domain = rack.domain("web");
    let vma = rack.allocate(domain, 4096);
    for (pages, fits) in [(4, true), (5, false), (1, true)] {
        let join = JoinNode::new("n1".into(), text(11), pages * 4096);
        match rack.call(join) {
            Ok(NodeJoined { base, capacity, .. }) => {
                assert!(fits && base == vma.base && capacity == pages * 4096)
            }
            Err(error) => assert!(!fits && error.code == ErrorCode::Conflict),
        }
    }
    assert_eq!(rack.tables(Port::node(1)).ranges.keys().next(), Some(&(vma.base, 4096)));
    assert_eq!(
        rack.refused(Allocate { domain, size: 1, node: None, durable: false }).code,
        ErrorCode::OutOfMemory
    );
}

/// The switch moves to another address: sessions stay, and opening one again returns the new address
/// (PROTOCOL 8.7).
#[test]
fn a_switch_may_move() {
    let mut rack = Rack::new(16);
    rack.join_switch().unwrap();
    rack.join_host(1);
    let domain = rack.domain("web");
    let session = |rack: &mut Rack| rack.call(OpenSession { host: 1, domain }).unwrap().switch;
    let before = session(&mut rack);
    rack.call(JoinSwitch { gid: text(3) }).unwrap();
    let after = session(&mut rack);
    assert_eq!((before.gid.as_str(), after.gid.as_str()), ("127.0.0.2", "127.0.0.3"));
    assert_eq!((before.qpn, before.qkey), (after.qpn, after.qkey));
}

/// A node with vmas does not leave. Without vmas it does, and its range is free for another.
#[test]
fn a_node_leaves_when_nothing_is_allocated_on_it() {
    let mut rack = Rack::new(9);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let domain = rack.domain("web");
    let vma = rack.allocate(domain, 1);
    let leave = Leave::new(Port::node(1).0);
    let error = rack.refused(leave.clone());
    assert_eq!(error.code, ErrorCode::Conflict);
    assert!(error.message.contains("1 vmas") && error.message.contains("n1"), "{}", error.message);
    rack.call(Free { domain, base: vma.base, id: vma.id }).unwrap();
    rack.call(leave).unwrap();
    let switch = rack.tables(Port::SWITCH);
    assert!(switch.peers.is_empty() && switch.translations.is_empty());
    assert_eq!(rack.join_node(2, MIB), 1, "the number is free again");
    rack.check_tables(Port::SWITCH);
    rack.check_log();
}

/// The switch restarts with empty tables: it gets all of them, sessions included, and other members only
/// notice its new endpoint (PROTOCOL 8.7).
#[test]
fn a_switch_that_joins_again_gets_everything() {
    let mut rack = Rack::new(10);
    rack.join_switch().unwrap();
    for number in 1..=3 {
        rack.join_node(number, MIB);
        rack.join_host(number);
    }
    let domain = rack.domain("web");
    rack.call(OpenSession { host: 2, domain }).unwrap();
    for _ in 0..40 {
        rack.allocate(domain, 4096);
    }
    let before = rack.tables(Port::SWITCH).clone();
    let home = rack.join_switch().unwrap().home;
    assert_eq!(*rack.tables(Port::SWITCH), before);
    assert!(rack.peers[&Port::SWITCH].batches > 1, "so many updates take more than one batch");
    for node in 1..=3 {
        assert_eq!(rack.tables(Port::node(node)).peers[&1], (home.qpn, home.qkey));
    }
    rack.check_log();
}

/// Memory can be allocated before there is a switch, but a session cannot be opened. The switch learns of the
/// memory when it joins.
#[test]
fn without_a_switch_there_is_memory_and_no_session() {
    let mut rack = Rack::new(11);
    rack.join_node(1, MIB);
    let (host, _) = rack.join_host(1);
    let domain = rack.domain("web");
    let vma = rack.allocate(domain, 4096);
    let error = rack.refused(OpenSession { host, domain });
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.contains("the switch has not joined"), "{}", error.message);
    rack.join_switch().unwrap();
    assert_eq!(rack.peers[&Port::SWITCH].may(domain, vma.base), Perm::ReadWrite);
    rack.call(OpenSession { host, domain }).unwrap();
    rack.check_tables(Port::node(1));
}

/// Opening a session twice gives one session. Two hosts or two domains have their own.
#[test]
fn a_session_is_opened_once() {
    let mut rack = Rack::new(12);
    rack.join_switch().unwrap();
    rack.join_host(1);
    rack.join_host(2);
    let (one, two) = (rack.domain("one"), rack.domain("two"));
    let first = rack.call(OpenSession { host: 1, domain: one }).unwrap();
    assert_eq!(rack.call(OpenSession { host: 1, domain: one }).unwrap(), first);
    // Among two requests at the same moment, the second waits and finds the first session.
    let pair = [1, 2].map(|_| rack.ask(OpenSession { host: 2, domain: two }));
    let [left, right] = pair.map(|ticket| SessionInfo::try_from(rack.wait(ticket).unwrap()).unwrap());
    assert_eq!(left, right);
    assert_ne!(left, first);
    let SessionInfo { switch, domain } = left;
    assert_eq!(rack.tables(Port::SWITCH).sessions[&switch.qpn], (switch.qkey, (2, 1), domain));
    assert_eq!(rack.tables(Port::SWITCH).sessions.len(), 2);
}

/// Both ends of a connection are told the same numbers, and no two connections share any (PROTOCOL 8.2).
#[test]
fn both_ends_of_a_connection_agree() {
    let mut rack = Rack::new(13);
    rack.join_node(1, MIB);
    rack.join_host(1);
    let domain = rack.domain("web");
    let mut seen = Vec::new();
    for _ in 0..50 {
        let ConnectionInfo { node, qpn, peer_qpn, first_psn, rkey, pmtu, limits, .. } =
            rack.call(Connect::new(1, 1, domain)).unwrap();
        assert_eq!((node.node, pmtu), (1, 1024));
        let most = (limits.read_len_max, limits.write_len_max, limits.depth);
        assert_eq!(most, (1 << 20, 1 << 31, 16));
        assert_eq!((limits.timeout, limits.retries, limits.rnr_retries), (14, 6, 7));
        assert!(qpn >= 16 && peer_qpn >= 16 && qpn < 1 << 24 && peer_qpn < 1 << 24 && rkey != 0);
        let row = rack.tables(Port::node(1)).queue_pairs[&peer_qpn];
        assert_eq!(row, (qpn, Port::host(1).0, first_psn, rkey, domain));
        seen.extend([qpn, peer_qpn]);
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count);
    assert_eq!(rack.tables(Port::node(1)).queue_pairs.len(), 50);
    let qpn = rack.call(Connect::new(1, 1, domain)).unwrap().qpn;
    rack.call(Disconnect { host: 1, qpn }).unwrap();
    assert_eq!(rack.tables(Port::node(1)).queue_pairs.len(), 50);
    rack.check_log();
}

/// A vma is cleared at its node before its new owner may touch it (PROTOCOL 8.11).
#[test]
fn memory_is_cleared_before_it_is_handed_out() {
    let mut rack = Rack::new(14);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let domain = rack.domain("web");
    rack.peers.get_mut(&Port::node(1)).unwrap().applied.clear();
    let vma = rack.allocate(domain, 5000);
    assert_eq!((vma.size, vma.node), (8192, 1));
    let told = &rack.peers[&Port::node(1)].applied;
    assert_eq!(told[0], Update::Clear { base: VirtAddr(vma.base), len: 8192 });
    assert!(matches!(told[1], Update::Protect { perm: Perm::ReadWrite, len: 8192, .. }));
    assert_eq!(told.len(), 2);
}

/// A host may only have regions reset that contain pages of a domain in which it has a session, and no more
/// at a time than its own threads can wait for. Without these limits any page would do, as often as the host
/// liked, and a reset takes the region from all its users (PROTOCOL 12.33).
#[test]
fn recover_wants_access_and_is_limited() {
    let mut rack = Rack::new(14);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let (host, generation) = rack.join_host(1);
    let [mine, other] = ["mine", "other"].map(|name| rack.domain(name));
    let [vma, theirs] = [mine, other].map(|domain| rack.allocate(domain, 8192));
    rack.call(OpenSession { host, domain: mine }).unwrap();
    let grant = Grant { domain: other, base: theirs.base + 4096, len: 1024, to: mine, perm: PermName::Read };
    rack.call(grant).unwrap();
    let renewed = rack.ask(Renew { host, generation, flushed: 0, qkey: 0 });
    rack.wait(renewed).unwrap();
    let recover = |rack: &mut Rack, page| {
        let asked = rack.ask(Recover { host, page });
        rack.wait(asked).map(drop).map_err(|error| error.code)
    };
    assert_eq!(recover(&mut rack, theirs.base), Err(ErrorCode::NotOwner), "the grant is for the page behind");
    assert_eq!(recover(&mut rack, 1 << 50), Err(ErrorCode::NotOwner), "an address of no vma");
    assert_eq!(recover(&mut rack, theirs.base + 4096), Ok(()));

    let at_once = (0..1000).take_while(|_| recover(&mut rack, vma.base).is_ok()).count() as u64;
    // Answers take no time but that of messages, and resets need none here.
    assert_eq!(at_once, RECOVERS.at_once - 1);
    assert_eq!(recover(&mut rack, vma.base), Err(ErrorCode::Unavailable));
    rack.pass(RECOVERS.every.times(3));
    let then = (0..1000).take_while(|_| recover(&mut rack, vma.base).is_ok()).count();
    assert_eq!(then, 3);
}
