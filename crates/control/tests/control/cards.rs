//! Hosts whose queue pairs a RoCE card numbers (PROTOCOL section 14).

use crate::rack::{Rack, text};
use farmem_control::api::*;
use farmem_machine::Port;
use farmem_wire::message::Update;
use farmem_wire::{Perm, VirtAddr};

const MIB: u64 = 1 << 20;

fn by_card(host: u16, domain: u32, qpn: u32, first_psn: u32) -> Connect {
    Connect { qpn: Some(qpn), first_psn: Some(first_psn), ..Connect::new(host, 1, domain) }
}

/// A card's numbers are used as they are, told to the node, and unique at their host alone: two hosts with
/// the same card firmware have the same ones. Numbers that are not supplied are drawn. The log leads to the
/// same state (PROTOCOL 14.1).
#[test]
fn a_card_brings_its_own_queue_pairs() {
    let mut rack = Rack::new(71);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let domain = rack.domain("web");
    for (host, qpn) in [(1, 17), (2, 18)] {
        let (name, gid) = (format!("card{host}"), text(100 + host));
        let join = JoinHost { qpn: Some(qpn), qkey: Some(0x1111_1111), ..JoinHost::new(name, gid) };
        let joined = rack.call(join).unwrap();
        assert_eq!((joined.host, joined.home.qpn, joined.home.qkey), (host.into(), qpn, 0x1111_1111));
    }
    // Host 1's number for datagrams is also a connection of host 2.
    for (host, qpn, psn) in [(1, 2, 0), (1, 0xff_fffe, 0xff_ffff), (1, 18, 7), (2, 2, 0), (2, 17, 9)] {
        let told = rack.call(by_card(host, domain, qpn, psn)).unwrap();
        assert_eq!((told.qpn, told.first_psn), (qpn, psn));
        let row = rack.tables(Port::node(1)).queue_pairs[&told.peer_qpn];
        assert_eq!(row, (qpn, Port::host(host).0, psn, told.rkey, domain));
        assert!(told.peer_qpn >= 16);
    }
    let drawn = rack.call(Connect { first_psn: Some(5), ..Connect::new(1, 1, domain) }).unwrap();
    assert!(drawn.first_psn == 5 && ![2, 17, 18].contains(&drawn.qpn));
    // Each connection is removed by host and number. The other host's stays.
    rack.call(Disconnect { host: 1, qpn: 2 }).unwrap();
    assert_eq!(rack.refused(Disconnect { host: 1, qpn: 2 }).code, ErrorCode::NotFound);
    assert_eq!(rack.tables(Port::node(1)).queue_pairs.len(), 5);
    rack.call(by_card(1, domain, 2, 1)).unwrap();
    rack.call(Disconnect { host: 2, qpn: 2 }).unwrap();
    rack.check_tables(Port::node(1));
    rack.check_log();
}

/// Numbers that no card assigns, and those that the host uses already, are refused with the allowed values
/// (PROTOCOL 14.2, 14.4).
#[test]
fn numbers_that_cannot_be_are_refused() {
    let mut rack = Rack::new(72);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let domain = rack.domain("web");
    let join = |qpn, qkey| JoinHost { qpn, qkey, ..JoinHost::new("card".into(), text(101)) };
    let wrong = [
        (Some(1), Some(5), "qpn is 1"),
        (Some(0xff_ffff), Some(5), "qpn is 16777215"),
        (Some(1 << 24), Some(5), "qpn is 16777216"),
        (Some(17), Some(0), "qkey is 0"),
        (Some(17), Some(1 << 31), "qkey is 2147483648"),
        (Some(17), None, "qkey is not"),
        (None, Some(5), "qpn is not"),
    ];
    for (qpn, qkey, named) in wrong {
        let error = rack.refused(join(qpn, qkey));
        assert_eq!(error.code, ErrorCode::BadRequest, "{error:?}");
        assert!(error.message.contains(named) && error.remedy.contains("give"), "{error:?}");
    }
    rack.call(join(Some(17), Some(5))).unwrap();
    rack.call(by_card(1, domain, 18, 0)).unwrap();
    let wrong = [
        (0, 0, ErrorCode::BadRequest, "qpn is 0"),
        (1, 0, ErrorCode::BadRequest, "qpn is 1"),
        (0xff_ffff, 0, ErrorCode::BadRequest, "qpn is 16777215"),
        (u32::MAX, 0, ErrorCode::BadRequest, "qpn is 4294967295"),
        (19, 1 << 24, ErrorCode::BadRequest, "first_psn is 16777216"),
        (17, 0, ErrorCode::Conflict, "UD queue pair"),
        (18, 0, ErrorCode::Conflict, "queue pair 18"),
    ];
    for (qpn, psn, code, named) in wrong {
        let error = rack.refused(by_card(1, domain, qpn, psn));
        assert_eq!(error.code, code, "{error:?}");
        assert!(error.message.contains(named) && error.remedy.contains("give"), "{error:?}");
    }
    assert_eq!(rack.tables(Port::node(1)).queue_pairs.len(), 1);
    // Among two requests at the same moment, one gets the number.
    let pair = [20, 20].map(|qpn| rack.ask(by_card(1, domain, qpn, 0)));
    let got = pair.map(|ticket| rack.wait(ticket));
    assert_eq!(got.iter().filter(|answer| answer.is_ok()).count(), 1, "{got:?}");
    rack.check_log();
}

/// No Q_Key of a rack has the top bit: no card could send to it (PROTOCOL 14.4).
#[test]
fn every_queue_key_can_be_sent_by_a_card() {
    let mut rack = Rack::new(73);
    rack.join_host(1);
    let mut keys = Vec::new();
    let joined = rack.join_switch().unwrap();
    keys.extend([joined.home.qkey, joined.control.qkey]);
    for n in 1..=40 {
        let domain = rack.domain(&format!("d{n}"));
        keys.push(rack.call(OpenSession { host: 1, domain }).unwrap().switch.qkey);
    }
    for _ in 0..20 {
        let join = JoinHost::new("h2".into(), text(102));
        keys.push(rack.call(join).unwrap().home.qkey);
    }
    assert!(keys.iter().all(|&key| key != 0 && key < 1 << 31), "{keys:x?}");
    // The keys are drawn: this many are not all in the lower half by chance, and no two are equal.
    assert!(keys.iter().any(|&key| key >= 1 << 30));
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 62);
}

const BASE: u64 = 1 << 46;

/// Joins memory that a card registered, of `domain`, with queue pairs 20 and 21.
fn card_node(domain: u32) -> JoinNode {
    let card = CardMemory { domain, base: BASE, rkey: 0x4711, queue_pairs: vec![20, 21] };
    let join = JoinNode::new("card".into(), text(50), MIB);
    JoinNode { qpn: Some(17), qkey: Some(0x22), card: Some(card), ..join }
}

/// A card's memory is handed out on request by number, and its agent zeroes it first. Hosts get the card's
/// own queue pairs and key, as many as there are. The switch hears nothing of it (PROTOCOL 14.12 to 14.17).
#[test]
fn a_card_is_a_memory_node() {
    let mut rack = Rack::new(74);
    rack.join_switch().unwrap();
    rack.join_host(1);
    let domain = rack.domain("owner");
    let joined = rack.call(card_node(domain)).unwrap();
    assert_eq!((joined.base, joined.capacity, joined.home.qpn, joined.home.qkey), (BASE, MIB, 17, 0x22));
    let nodes = rack.call(Overview {}).unwrap().nodes;
    assert_eq!((nodes.len(), nodes[0].card, nodes[0].base), (1, domain, BASE));
    // A host that joins is told of the card apart from the nodes over which it may spread allocations.
    let host = rack.call(JoinHost::new("h2".into(), text(102))).unwrap();
    assert_eq!((host.nodes.len(), host.cards.len(), host.cards[0].card), (0, 1, domain));
    // An allocation without a node never lands there: traversals and cached pages do not work on a card.
    let error = rack.refused(Allocate { domain, size: 4096, node: None, durable: false });
    assert_eq!(error.code, ErrorCode::Unavailable, "{error:?}");
    rack.peers.get_mut(&Port::node(1)).unwrap().applied.clear();
    let vma = rack.call(Allocate { domain, size: 5000, node: Some(1), durable: false }).unwrap();
    assert_eq!((vma.base, vma.size, vma.node), (BASE, 8192, 1));
    let told = &rack.peers[&Port::node(1)].applied;
    assert_eq!(*told, [Update::Clear { base: VirtAddr(BASE), len: 8192 }]);
    assert_eq!(rack.peers[&Port::SWITCH].may(domain, vma.base), Perm::None);
    let first = rack.call(Connect::new(1, 1, domain)).unwrap();
    assert_eq!((first.peer_qpn, first.rkey, first.limits.read_len_max), (20, 0x4711, 1 << 31));
    let second = rack.call(by_card(1, domain, 99, 5)).unwrap();
    assert_eq!((second.peer_qpn, second.rkey, second.qpn, second.first_psn), (21, 0x4711, 99, 5));
    let row = rack.tables(Port::node(1)).queue_pairs[&21];
    assert_eq!(row, (99, Port::host(1).0, 5, 0x4711, domain));
    let error = rack.refused(Connect::new(1, 1, domain));
    assert_eq!(error.code, ErrorCode::TableFull);
    assert!(error.message.contains("all 2 queue pairs of node 1"), "{error:?}");
    rack.call(Disconnect { host: 1, qpn: first.qpn }).unwrap();
    assert_eq!(rack.call(Connect::new(1, 1, domain)).unwrap().peer_qpn, 20);
    rack.call(Free { domain, base: vma.base, id: vma.id }).unwrap();
    rack.check_log();
    // The switch was told nothing of the card, its addresses or its memory.
    let of_card = |update: &&Update| match update {
        Update::Peer { port, .. } => Port(*port).as_node().is_some(),
        update => matches!(update, Update::Translate { .. } | Update::Protect { .. }),
    };
    assert_eq!(rack.peers[&Port::SWITCH].applied.iter().find(of_card), None);
    // A switch that joins anew is not told either.
    rack.join_switch().unwrap();
    assert!(rack.tables(Port::SWITCH).translations.is_empty(), "{:?}", rack.tables(Port::SWITCH));
}

/// The control plane refuses what a card cannot do, with the name of the limit (PROTOCOL 14.16): other
/// domains, grants, migration to and from it. Allocations without a node do not come to it: objects and
/// address spaces.
#[test]
fn operations_beyond_a_card_are_refused() {
    let mut rack = Rack::new(75);
    rack.join_switch().unwrap();
    rack.join_host(1);
    let (domain, other) = (rack.domain("owner"), rack.domain("other"));
    rack.call(card_node(domain)).unwrap();
    let on_card = rack.call(Allocate { domain, size: 4096, node: Some(1), durable: false }).unwrap();
    let process = rack.call(ProcessStart { domain, heap: 0 }).unwrap().process;
    for addr in [0, BASE + 8192] {
        let flags = if addr > 0 { 0x32 } else { 0x22 };
        let returned = rack.call(Mmap { process, addr, len: 4096, prot: 3, flags }).unwrap();
        assert_eq!(returned.value, -12, "ENOMEM at {addr:#x}");
    }
    assert_eq!(rack.join_node(2, MIB), 2);
    let plain = rack.call(Allocate { domain, size: 4096, node: Some(2), durable: false }).unwrap();
    let cases: Vec<(Request, ErrorCode)> = vec![
        (Allocate { domain: other, size: 4096, node: Some(1), durable: false }.into(), ErrorCode::NotOwner),
        (Connect::new(1, 1, other).into(), ErrorCode::NotOwner),
        (
            Grant { domain, base: on_card.base, len: 4096, to: other, perm: PermName::Read }.into(),
            ErrorCode::Conflict,
        ),
        (Migrate { domain: None, base: on_card.base, len: 4096, node: 2 }.into(), ErrorCode::Conflict),
        (Migrate { domain: None, base: plain.base, len: 4096, node: 1 }.into(), ErrorCode::Conflict),
    ];
    for (request, code) in cases {
        let error = rack.refused(request.clone());
        assert_eq!(error.code, code, "{request:?}: {error:?}");
        assert!(error.message.contains("node 1 is a card's memory") && !error.remedy.is_empty(), "{error:?}");
    }
    for _ in 0..3 {
        assert_eq!(rack.allocate(domain, 4096).node, 2);
    }
    rack.check_log();
}

/// An invalid card is refused with the value that was wrong.
#[test]
fn a_card_that_cannot_be_is_refused() {
    let mut rack = Rack::new(76);
    rack.join_switch().unwrap();
    let domain = rack.domain("owner");
    let with = |change: &dyn Fn(&mut CardMemory)| {
        let mut join = card_node(domain);
        change(join.card.as_mut().unwrap());
        join
    };
    use ErrorCode as E;
    let cases = [
        (with(&|card| card.domain = 9), E::NotFound, "domain 9"),
        (with(&|card| card.rkey = 0), E::BadRequest, "rkey is 0"),
        (with(&|card| card.queue_pairs.clear()), E::BadRequest, "0 numbers"),
        (with(&|card| card.queue_pairs = (2..1027).collect()), E::BadRequest, "1025 numbers"),
        (with(&|card| card.queue_pairs = vec![20, 1]), E::BadRequest, "qpn is 1"),
        (with(&|card| card.queue_pairs = vec![20, 21, 20]), E::BadRequest, "20 is given twice"),
        (with(&|card| card.queue_pairs = vec![17]), E::BadRequest, "17 is given twice"),
        (with(&|card| card.base = 0), E::BadRequest, "base is 0x0"),
        (with(&|card| card.base = BASE + 4096), E::BadRequest, "base is 0x400000001000"),
        (with(&|card| card.base = 1 << 47), E::BadRequest, "base is 0x800000000000"),
        (with(&|card| card.base = u64::MAX - MIB + 1), E::BadRequest, "base is 0xfffffffffff00000"),
        (JoinNode { qpn: None, qkey: None, ..card_node(domain) }, E::BadRequest, "qpn is not"),
        (JoinNode { qkey: Some(1 << 31), ..card_node(domain) }, E::BadRequest, "qkey is"),
    ];
    for (join, code, named) in cases {
        let error = rack.refused(join);
        assert_eq!(error.code, code, "{error:?}");
        assert!(error.message.contains(named) && !error.remedy.is_empty(), "{named}: {error:?}");
    }
    let node = rack.join_node(1, MIB);
    let base = rack.call(Overview {}).unwrap().nodes[0].base;
    let error = rack.refused(with(&|card| card.base = base));
    assert!(error.code == E::Conflict && error.message.contains(&format!("node {node}")), "{error:?}");
    let mut plain = card_node(domain);
    plain.name = "n1".into();
    let error = rack.refused(plain);
    assert!(error.code == E::Conflict, "{error:?}");
    rack.call(card_node(domain)).unwrap();
    let error = rack.refused(JoinNode { card: None, ..card_node(domain) });
    assert!(error.code == E::Conflict && error.message.contains("was a card"), "{error:?}");
    rack.check_log();
}

/// A card whose agent restarts has zeros in place of its bytes, and cannot refuse access to them: no host
/// gets a connection before their owner has accepted them (PROTOCOL 14.18).
#[test]
fn a_card_that_lost_its_memory_says_so() {
    let mut rack = Rack::new(77);
    rack.join_switch().unwrap();
    rack.join_host(1);
    let domain = rack.domain("owner");
    rack.call(card_node(domain)).unwrap();
    let vma = rack.call(Allocate { domain, size: 8192, node: Some(1), durable: false }).unwrap();
    rack.call(Connect::new(1, 1, domain)).unwrap();
    rack.call(card_node(domain)).unwrap();
    assert_eq!(rack.call(Locate { addr: vma.base }).unwrap().lost, [LostInfo { base: vma.base, len: 8192 }]);
    let error = rack.refused(Connect::new(1, 1, domain));
    assert_eq!(error.code, ErrorCode::Conflict);
    assert!(error.message.contains("lost") && error.remedy.contains("accept_lost"), "{error:?}");
    rack.call(AcceptLost { domain, base: vma.base, len: 4096 }).unwrap();
    assert_eq!(rack.refused(Connect::new(1, 1, domain)).code, ErrorCode::Conflict);
    rack.call(AcceptLost { domain, base: vma.base + 4096, len: 4096 }).unwrap();
    assert_eq!(rack.call(Connect::new(1, 1, domain)).unwrap().peer_qpn, 20);
    rack.check_log();
}
