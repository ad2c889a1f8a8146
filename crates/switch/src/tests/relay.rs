//! Relayed connections: the receiver of a packet, its rewritten fields, and the lookup of keys.

use super::index::{self, ROOT};
use super::*;
use crate::keyed::{self, KeyedRead, KeyedRefusal};
use crate::protect::Denial;
use crate::{Reason, Usage};
use farmem_index::{IndexTables, TreeTables};
use farmem_wire::headers::DMA_LEN_MAX;
use farmem_wire::message::{Relayed, Update};
use farmem_wire::{Aeth, AtomicEth, KeyedHeader, Perm, Pmtu, Reth, Rkey, Status, Syndrome};

/// Host 1 in domain 10, to node 1 and to node 2.
const TO_NODE_1: Relayed = Relayed {
    to_node: Qpn::new(0x4001),
    to_host: Qpn::new(0x4002),
    host: HostId(1),
    host_qpn: Qpn::new(0x501),
    node: NodeId(1),
    node_qpn: Qpn::new(0x601),
    rkey: Rkey(0x1234_5678),
    domain: Domain(10),
    pmtu: Pmtu::B256,
    root: ROOT,
};
const TO_NODE_2: Relayed = Relayed {
    to_node: Qpn::new(0x4003),
    to_host: Qpn::new(0x4004),
    node: NodeId(2),
    node_qpn: Qpn::new(0x602),
    ..TO_NODE_1
};

fn scene() -> Scene {
    let mut scene = Scene::rack();
    let out = scene.update(&[Update::Connection(TO_NODE_1), Update::Connection(TO_NODE_2)]);
    assert_eq!(out.last(), Some(&Out::Note(Note::Updated { seq: 2 })));
    scene
}

/// Returns a packet with every bit set that a sender and the network may set.
fn packet(dest_qp: Qpn, opcode: Opcode, ext: Extension, payload: &[u8]) -> Vec<u8> {
    let bth = Bth { solicited: true, ack_req: true, ..Bth::new(opcode, dest_qp, Psn::new(0xff_fffe)) };
    let mut frame = Vec::new();
    Packet { bth, ext, payload }.emit(&mut frame);
    frame[4] = 0xff;
    frame
}

fn reth(va: u64, rkey: u32, dma_len: u32) -> Reth {
    Reth { va: VirtAddr(va), rkey: Rkey(rkey), dma_len }
}

fn read_request(of: &Relayed, reth: Reth) -> Vec<u8> {
    packet(of.to_node, Opcode::ReadRequest, Extension::Reth(reth), &[])
}

impl Scene {
    /// Delivers a packet that must be forwarded to `to`; returns it as it arrives, and the note.
    fn onward(&mut self, from: Port, frame: &[u8], to: Port) -> (Vec<u8>, Note) {
        match self.deliver(from, frame).as_slice() {
            [Out::Send(port, bytes), Out::Note(note)] if *port == to => (bytes.clone(), *note),
            other => panic!("one frame to {to:?} was expected: {other:?}"),
        }
    }

    /// Returns the response to one update: status and index.
    fn answer_of(&mut self, update: Update) -> (Status, u16) {
        let (status, _, refused) = updates::answered(&self.update(&[update]));
        (status, refused)
    }

    /// Returns the counters of domain 10's tree.
    fn counters(&self) -> Vec<u32> {
        let tables = self.switch.soft().index().tables(Domain(10), ROOT);
        tables.map_or_else(Vec::new, |tables| tables.counters(0).collect())
    }

    /// Returns the RETH that the node gets of a keyed READ; all other bytes but the destination must be
    /// unchanged.
    fn led(&mut self, of: &Relayed, asked: Reth) -> (Reth, Note) {
        let frame = read_request(of, asked);
        let (sent, note) = self.onward(HOST_1.port, &frame, Port::node(of.node.0));
        let Extension::Reth(found) = Packet::parse(&sent).expect("a frame").ext else { panic!("a RETH") };
        let qpn = of.node_qpn.get().to_be_bytes();
        assert_eq!(sent[..12], [&frame[..5], &qpn[1..], &frame[8..12]].concat(), "the BTH is the host's");
        (found, note)
    }
}

/// PROTOCOL 15.2: every opcode is forwarded in both directions, unchanged but for the destination.
#[test]
fn packets_go_on_to_the_other_end_as_they_came() {
    let mut scene = scene();
    let aeth = Aeth { syndrome: Syndrome::Ack, msn: Psn::new(3) };
    let word = AtomicEth { va: VirtAddr(8), rkey: Rkey(7), swap_or_add: 1, compare: 2 };
    let memory = reth(BASE_1, 0x1234_5678, 700);
    let extensions = [
        Extension::None,
        Extension::Imm(5),
        Extension::Reth(memory),
        Extension::RethImm(memory, 5),
        Extension::AtomicEth(word),
        Extension::Aeth(aeth),
        Extension::AtomicAck(aeth, 9),
    ];
    let directions = [
        (HOST_1.port, TO_NODE_1.to_node, NODE_1.port, TO_NODE_1.node_qpn),
        (NODE_1.port, TO_NODE_1.to_host, HOST_1.port, TO_NODE_1.host_qpn),
        (NODE_2.port, TO_NODE_2.to_host, HOST_1.port, TO_NODE_2.host_qpn),
    ];
    for opcode in (0..=0xff).filter(|bits| !(0x60..0x80).contains(bits)).filter_map(Opcode::from_bits) {
        let ext = extensions.into_iter().find(|ext| ext.fits(opcode)).expect("each has its headers");
        let payload: &[u8] = if matches!(opcode as u8, 0x0c | 0x11..=0x14) { &[] } else { b"seven b" };
        for (from, to_qpn, to, qpn) in directions {
            let frame = packet(to_qpn, opcode, ext, payload);
            let (sent, note) = scene.onward(from, &frame, to);
            let expected = [&frame[..5], &qpn.get().to_be_bytes()[1..], &frame[8..]].concat();
            assert_eq!((sent, note), (expected, Note::Relayed), "{opcode:?} from {from:?}");
        }
    }
}

/// PROTOCOL 15.2: only the end itself sends to its queue pair; not another host, not a node to the host's,
/// not the control plane.
#[test]
fn a_virtual_queue_pair_is_one_end_s() {
    let mut scene = scene();
    let frame = |qpn| packet(qpn, Opcode::WriteOnly, Extension::Reth(reth(BASE_1, 1, 4)), b"data");
    for port in [HOST_2.port, NODE_1.port, NODE_2.port, Port::CONTROL, Port::SWITCH, Port::UNKNOWN] {
        let note = scene.silent(port, &frame(TO_NODE_1.to_node));
        assert_eq!(note, Note::Dropped(Reason::NotItsEnd), "{port:?}");
    }
    for port in [HOST_1.port, NODE_2.port, HOST_2.port] {
        let note = scene.silent(port, &frame(TO_NODE_1.to_host));
        assert_eq!(note, Note::Dropped(Reason::NotItsEnd), "{port:?}");
    }
    // Neither a session's queue pair nor one of the ends is a virtual one.
    for qpn in [SESSION_1_10.qpn, HOME.qpn, TO_NODE_1.node_qpn, TO_NODE_1.host_qpn, Qpn::new(0)] {
        assert_eq!(scene.silent(HOST_1.port, &frame(qpn)), Note::Dropped(Reason::NoConnection));
    }
    // A datagram to a virtual queue pair is dropped.
    let datagram = datagram(Endpoint { qpn: TO_NODE_1.to_node, qkey: Qkey(0) }, b"data");
    assert_eq!(scene.silent(HOST_1.port, &datagram), Note::Dropped(Reason::UnknownQueuePair));
}

/// PROTOCOL 15.2, 15.3: a removed connection is unknown, and a node that is to join again gets nothing.
#[test]
fn a_connection_ends() {
    let mut scene = scene();
    let frame = packet(
        TO_NODE_1.to_node,
        Opcode::Acknowledge,
        Extension::Aeth(Aeth { syndrome: Syndrome::Ack, msn: Psn::new(0) }),
        &[],
    );
    scene.update(&[Update::PeerGone { port: NODE_1.port.0 }]);
    assert_eq!(scene.silent(HOST_1.port, &frame), Note::Dropped(Reason::NodeGone));
    scene.update(&[add(NODE_1)]);
    assert_eq!(scene.onward(HOST_1.port, &frame, NODE_1.port).1, Note::Relayed);
    scene.update(&[Update::ConnectionGone { to_node: TO_NODE_1.to_node }]);
    assert_eq!(scene.silent(HOST_1.port, &frame), Note::Dropped(Reason::NoConnection));
    let back = packet(
        TO_NODE_1.to_host,
        Opcode::Acknowledge,
        Extension::Aeth(Aeth { syndrome: Syndrome::Ack, msn: Psn::new(0) }),
        &[],
    );
    assert_eq!(scene.silent(NODE_1.port, &back), Note::Dropped(Reason::NoConnection));
    assert_eq!(scene.switch.occupancy().connections.used, 1);
}

/// PROTOCOL 15.3, 6.17.
#[test]
fn an_entry_that_makes_no_sense_is_refused() {
    let mut scene = scene();
    let with = |to_node: u32, to_host: u32| Relayed {
        to_node: Qpn::new(to_node),
        to_host: Qpn::new(to_host),
        ..TO_NODE_1
    };
    let wrong = [
        with(15, 0x5001),
        with(0x5001, 15),
        with(HOME.qpn.get(), 0x5001),
        with(0x5001, SESSION_1_10.qpn.get()),
        with(0x5001, 0x5001),
        with(0x5001, 0x4002),
        with(0x5001, 0x4001),
        with(0x4002, 0x5001),
        Relayed { node: NodeId(0xf000), ..with(0x5001, 0x5002) },
        Relayed { rkey: Rkey(0), ..with(0x5001, 0x5002) },
        Relayed { domain: Domain(0), ..with(0x5001, 0x5002) },
        Relayed { root: VirtAddr(BASE_1 + 128), ..with(0x5001, 0x5002) },
    ];
    let tables = scene.switch.tables.clone();
    for entry in wrong {
        let (answer, _) = scene.answer_of(Update::Connection(entry));
        assert_eq!(answer, Status::Malformed, "{entry:?}");
        assert!(scene.switch.tables == tables, "{entry:?} changed something");
    }
    let taken = Endpoint { qpn: TO_NODE_1.to_host, qkey: Qkey(1) };
    assert_eq!(scene.answer_of(session(taken, 1, 10)).0, Status::Malformed);
    // Replacing a connection takes no further entry; a third one does.
    let mut tight = Scene::new(Budgets { connections: 1, ..Budgets::default() });
    assert_eq!(tight.answer_of(Update::Connection(TO_NODE_1)).0, Status::Ok);
    assert_eq!(tight.answer_of(Update::Connection(TO_NODE_1)).0, Status::Ok);
    assert_eq!(tight.answer_of(Update::Connection(TO_NODE_2)).0, Status::TableFull);
    assert_eq!(tight.switch.occupancy().connections, Usage { used: 1, budget: 1 });
    // With another number for the reverse direction, the old one is free.
    let moved = Relayed { to_host: Qpn::new(0x5002), ..TO_NODE_1 };
    assert_eq!(tight.answer_of(Update::Connection(moved)).0, Status::Ok);
    let back = packet(TO_NODE_1.to_host, Opcode::ReadResponseMiddle, Extension::None, b"");
    assert_eq!(tight.silent(NODE_1.port, &back), Note::Dropped(Reason::NoConnection));
}

/// PROTOCOL 15.5: a key leads to the deepest known node at the connection's memory node; else to one above
/// it; else to the root.
#[test]
fn a_key_leads_to_the_deepest_node_at_the_connection_s_node() {
    let mut scene = scene();
    let keyed = |key: u64| reth(key, 0, 256);
    let found = |va: u64| reth(va, 0x1234_5678, 256);
    let note = |node, indexed| Note::Keyed { node: NodeId(node), indexed };
    // Nothing is published: the root, which is at node 1.
    assert_eq!(scene.led(&TO_NODE_1, keyed(5)), (found(ROOT.0), note(1, false)));
    assert_eq!(
        scene.led(&TO_NODE_2, keyed(5)),
        (keyed(5), Note::KeyedRefused(KeyedRefusal::Elsewhere)),
        "the request goes on with a key that no node takes"
    );
    scene.activate(5, &index::image(&[index::section()]));
    for (key, at) in [(0, 0x300), (999, 0x300), (2000, 0x500), (u64::MAX, 0x500)] {
        assert_eq!(scene.led(&TO_NODE_1, keyed(key)), (found(BASE_1 + at), note(1, true)), "{key}");
    }
    // From 1000 to 1999 both nodes of the path are at node 2; from 2000 on only the upper one.
    assert_eq!(scene.led(&TO_NODE_1, keyed(1000)), (found(ROOT.0), note(1, false)));
    assert_eq!(scene.led(&TO_NODE_2, keyed(1000)), (found(BASE_2 + 0x400), note(2, true)));
    assert_eq!(scene.led(&TO_NODE_2, keyed(2000)), (found(BASE_2 + 0x300), note(2, true)));
    // PROTOCOL 15.7: each entry that led is counted, as far as it led: ranges 0 and 1, then the children of
    // the one node.
    assert_eq!(scene.counters(), [2, 4, 1, 2]);
    // The trees of another domain do not affect this one.
    let mut other = Scene::rack();
    other.update(&[Update::Connection(Relayed { domain: Domain(20), ..TO_NODE_1 })]);
    other.activate(5, &index::image(&[index::section()]));
    assert_eq!(
        other.led(&TO_NODE_1, keyed(0)),
        (keyed(0), Note::KeyedRefused(KeyedRefusal::Denied(Denial::NotMapped))),
        "and its domain may not even read the root"
    );
    assert_eq!(other.counters(), [0; 4]);
}

/// PROTOCOL 15.4, 15.6: a refused READ is forwarded so that the responder refuses it in order.
#[test]
fn what_is_refused_the_responder_refuses() {
    let mut scene = scene();
    scene.activate(5, &index::image(&[index::section()]));
    for len in [257, 1 << 20, DMA_LEN_MAX - 1, DMA_LEN_MAX] {
        let refused = (reth(7, 0, DMA_LEN_MAX), Note::KeyedRefused(KeyedRefusal::TooLong));
        assert_eq!(scene.led(&TO_NODE_1, reth(7, 0, len)), refused, "{len} bytes");
    }
    // A frame of more than 2^31 bytes does not parse.
    let mut longer = read_request(&TO_NODE_1, reth(7, 0, DMA_LEN_MAX));
    longer[24..28].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(scene.silent(HOST_1.port, &longer), Note::Dropped(Reason::Frame));
    // No bytes, or an rkey: an ordinary READ, whatever its address is.
    for ordinary in [reth(7, 0, 0), reth(7, 1, 256), reth(u64::MAX, u32::MAX, 1)] {
        assert_eq!(scene.led(&TO_NODE_1, ordinary), (ordinary, Note::Relayed));
    }
    // Protection: forbidden bytes, and bytes beyond the grant.
    scene.update(&[protect(10, BASE_1, 0x1000, Perm::None)]);
    let denied = Note::KeyedRefused(KeyedRefusal::Denied(Denial::NotMapped));
    assert_eq!(scene.led(&TO_NODE_1, reth(7, 0, 256)), (reth(7, 0, 256), denied));
    let bare = Relayed { root: VirtAddr::NULL, ..TO_NODE_1 };
    scene.update(&[Update::Connection(bare)]);
    let no_root = Note::KeyedRefused(KeyedRefusal::NoRoot);
    assert_eq!(scene.led(&TO_NODE_1, reth(7, 0, 256)), (reth(7, 0, 256), no_root));
    assert_eq!(scene.led(&TO_NODE_1, reth(7, 0, 300)).1, Note::KeyedRefused(KeyedRefusal::TooLong));
}

/// PROTOCOL 16.13: a key through three switches, each with a part of the tables, is led as by one switch; and
/// hops are bounded.
#[test]
fn several_switches_lead_as_one() {
    let scene = scene();
    let (translation, protection) = (&scene.switch.tables.translation, &scene.switch.tables.protection);
    let owner = |at| translation.lookup(at);
    let whole = index::section();
    let tables = |tree: &farmem_index::TreeSection| {
        let mut tables = IndexTables::default();
        let parsed = TreeTables::parse(&tree.emit()).expect("a section");
        tables.put(Domain(10), tree.root.0, parsed).expect("the only tree");
        tables
    };
    let top = tables(&farmem_index::TreeSection { sets: Vec::new(), ..whole.clone() });
    let all = tables(&whole);
    for key in [0, 999, 1000, 1500, 2000, u64::MAX] {
        for of in [TO_NODE_1, TO_NODE_2] {
            let asked = reth(key, 0, 256);
            let mut alone = keyed::begin(&of, &asked).expect("it may be led");
            alone.lead_on(&all, owner);
            let mut read = keyed::begin(&of, &asked).expect("it may be led");
            read.lead_on(&top, owner);
            for switch in [&IndexTables::default(), &all] {
                let keyed = read.onward().expect("hops are left");
                assert_eq!(keyed.hops + 1, read.keyed.hops);
                let on_the_wire = Reth { va: read.at, rkey: Rkey(0), dma_len: read.len };
                read = KeyedRead::arrived(keyed, &on_the_wire);
                read.lead_on(switch, owner);
            }
            let finish = |read: &KeyedRead| read.finish(&of, translation, protection);
            assert_eq!(finish(&read), finish(&alone), "key {key} to {:?}", of.node);
            assert_eq!(read.leave(owner), finish(&read), "and a last switch that has no connection");
        }
    }
    let Relayed { domain, node, rkey, node_qpn, .. } = TO_NODE_1;
    let stale = KeyedHeader { key: 0, domain, node, hops: 0, rkey, node_qpn };
    assert_eq!(KeyedRead::arrived(stale, &reth(ROOT.0, 0, 256)).onward(), None);
    for wrong in [KeyedHeader { domain: Domain(20), ..stale }, KeyedHeader { node: NodeId(2), ..stale }] {
        let read = KeyedRead::arrived(wrong, &reth(ROOT.0, 0, 256));
        assert_eq!(read.finish(&TO_NODE_1, translation, protection), Err(KeyedRefusal::Misdirected));
    }
}
