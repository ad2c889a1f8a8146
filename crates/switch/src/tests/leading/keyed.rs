//! Keyed READs through index switches: the first hop, those between, and the last hop, each a switch of its
//! own (PROTOCOL 16.10 to 16.13; Fat-B+Tree III-D).

use super::*;
use crate::keyed::KeyedRefusal;
use crate::protect::Denial;
use farmem_wire::message::Relayed;
use farmem_wire::{KeyedFrame, KeyedHeader, Perm, Pmtu, Reth, Rkey};

pub(super) const OVER: Relayed = Relayed {
    to_node: Qpn::new(0x4001),
    to_host: Qpn::new(0x4002),
    host: HostId(1),
    host_qpn: Qpn::new(0x501),
    node: NodeId(1),
    node_qpn: Qpn::new(0x601),
    rkey: Rkey(0x1234_5678),
    domain: Domain(10),
    pmtu: Pmtu::B1024,
    root: ROOT,
};

pub(super) fn reth(va: u64, rkey: u32) -> Reth {
    Reth { va: VirtAddr(va), rkey: Rkey(rkey), dma_len: 256 }
}

pub(super) fn read(qpn: Qpn, psn: u32, reth: Reth) -> Vec<u8> {
    let bth = Bth { ack_req: true, ..Bth::new(Opcode::ReadRequest, qpn, Psn::new(psn)) };
    let mut frame = Vec::new();
    Packet { bth, ext: Extension::Reth(reth), payload: &[] }.emit(&mut frame);
    frame
}

/// Returns the READ with the temporary header, as switches send it to one another.
pub(super) fn led(at: u64, keyed: &KeyedHeader) -> Vec<u8> {
    let mut frame = Vec::new();
    let read = read(OVER.to_node, 7, reth(at, 0));
    KeyedFrame::emit(read[..].try_into().expect("a READ REQUEST"), keyed, &mut frame);
    frame
}

pub(super) fn header(key: u64, passed: u8) -> KeyedHeader {
    let Relayed { domain, node, rkey, node_qpn, .. } = OVER;
    KeyedHeader { key, domain, node, hops: KeyedHeader::HOPS_MAX - passed, rkey, node_qpn }
}

pub(super) fn first_hop() -> Scene {
    let mut scene = rack_of(Some(CORE.port.0));
    scene.update(&[Update::Connection(OVER)]);
    scene
}

impl Scene {
    /// Delivers a frame that must be forwarded to `to` as one frame.
    fn on(&mut self, from: Port, frame: &[u8], to: Port) -> (Vec<u8>, Note) {
        match self.deliver(from, frame).as_slice() {
            [Out::Send(port, bytes), Out::Note(note)] if *port == to => (bytes.clone(), *note),
            other => panic!("one frame to {to:?} was expected: {other:?}"),
        }
    }
}

/// Key 55 from host to node through four switches, byte for byte: address and hops change on the path, and
/// the node gets an ordinary READ.
#[test]
fn a_keyed_read_is_led_from_the_core_to_its_node() {
    let (mut rack, mut core, mut pod, mut edge) = (first_hop(), core(), pod(), edge());
    let (up, note) = rack.on(HOST_1.port, &read(OVER.to_node, 7, reth(55, 0)), CORE.port);
    assert_eq!((up.clone(), note), (led(ROOT.0, &header(55, 0)), Note::KeyedUp { index: 1 }));
    let (down, note) = core.on(RACK.port, &up, POD.port);
    assert_eq!((down.clone(), note), (led(BASE_1 + 0x300, &header(55, 1)), Note::KeyedDown { index: 2 }));
    let (down, note) = pod.on(CORE.port, &down, EDGE.port);
    assert_eq!((down.clone(), note), (led(BASE_1 + 0x700, &header(55, 2)), Note::KeyedDown { index: 3 }));
    let (out, note) = edge.on(POD.port, &down, NODE_1.port);
    let expected = read(OVER.node_qpn, 7, reth(BASE_1 + 0xa00, OVER.rkey.0));
    assert_eq!((out, note), (expected, Note::KeyedOut { node: NodeId(1) }));
    let counted = |scene: &Scene| {
        let tables = scene.switch.soft().index().tables(Domain(10), ROOT).expect("the image is active");
        tables.counters(0).collect::<Vec<u32>>()
    };
    assert_eq!((counted(&core), counted(&pod)), ([1, 0].into(), [0, 1, 0, 0, 1].into()));
    assert_eq!(counted(&edge), [0, 1, 0, 1, 0]);
    // A key of another server than the connection's: on its path only the root is at the connection's node.
    let (up, _) = first_hop().on(HOST_1.port, &read(OVER.to_node, 7, reth(5_000, 0)), CORE.port);
    let (down, note) = core.on(RACK.port, &up, POD.port);
    assert_eq!((down, note), (led(ROOT.0, &header(5_000, 1)), Note::KeyedDown { index: 2 }));
    assert_eq!(counted(&core), [1, 0], "which is no step");
    // Ordinary verbs of the connection go straight to the node.
    let ordinary = reth(BASE_1, OVER.rkey.0);
    let (straight, note) = rack.on(HOST_1.port, &read(OVER.to_node, 8, ordinary), NODE_1.port);
    assert_eq!((straight, note), (read(OVER.node_qpn, 8, ordinary), Note::Relayed));
}

/// PROTOCOL 16.11, 15.6: refusals are the same as without a FatTree. The last switch also refuses a node that
/// is not the connection's.
#[test]
fn what_is_refused_the_responder_refuses() {
    let mut rack = first_hop();
    let long = Reth { dma_len: 1_025, ..reth(55, 0) };
    let (_, note) = rack.on(HOST_1.port, &read(OVER.to_node, 7, long), NODE_1.port);
    assert_eq!(note, Note::KeyedRefused(KeyedRefusal::TooLong));
    // A READ has no pad: a frame with one does not parse, so the header's offset is fixed.
    let mut padded = read(OVER.to_node, 7, reth(55, 0));
    padded[1] |= 0x10;
    padded.push(0);
    assert_eq!(rack.silent(HOST_1.port, &padded), Note::Dropped(Reason::Frame));
    rack.update(&[protect(10, ROOT.0, 0x100, Perm::None)]);
    let (_, note) = rack.on(HOST_1.port, &read(OVER.to_node, 7, reth(55, 0)), NODE_1.port);
    assert_eq!(note, Note::KeyedRefused(KeyedRefusal::Denied(Denial::NotMapped)));
    let mut edge = edge();
    for at in [BASE_2 + 0x300, BASE_1 - 0x100] {
        let (out, note) = edge.on(POD.port, &led(at, &header(5_000, 2)), NODE_1.port);
        let refused = read(OVER.node_qpn, 7, reth(at, 0));
        assert_eq!(
            (out, note),
            (refused, Note::KeyedRefused(KeyedRefusal::Elsewhere)),
            "with a key that no node takes"
        );
    }
}

/// PROTOCOL 16.13: accepted senders, and READs that return to the rack's switch, which sends them to their
/// node with all checks.
#[test]
fn what_cannot_be_led_on_goes_back() {
    let (mut core, frame) = (core(), led(ROOT.0, &header(55, 0)));
    for port in [HOST_1.port, NODE_1.port, Port::CONTROL, Port::index(9), Port::UNKNOWN] {
        assert_eq!(core.silent(port, &frame), Note::Dropped(Reason::WrongPort), "{port:?}");
        assert_eq!(first_hop().silent(port, &frame), Note::Dropped(Reason::WrongPort), "{port:?}");
    }
    let last = KeyedHeader { hops: 0, ..header(55, 0) };
    assert_eq!(core.silent(RACK.port, &led(ROOT.0, &last)), Note::Dropped(Reason::TooManySwitches));
    assert_eq!(core.silent(RACK.port, &led(ROOT.0, &header(55, 0))[..51]), Note::Dropped(Reason::Frame));
    // The next switch left; an unknown server.
    core.update(&[Update::PeerGone { port: POD.port.0 }]);
    let (back, note) = core.on(RACK.port, &frame, RACK.port);
    assert_eq!((back.clone(), note), (led(BASE_1 + 0x300, &header(55, 1)), Note::KeyedBack));
    let (_, note) =
        core.on(RACK.port, &led(ROOT.0, &KeyedHeader { node: NodeId(7), ..header(55, 0) }), RACK.port);
    assert_eq!(note, Note::KeyedBack);
    let mut rack = first_hop();
    let (out, note) = rack.on(CORE.port, &back, NODE_1.port);
    assert_eq!(out, read(OVER.node_qpn, 7, reth(BASE_1 + 0x300, OVER.rkey.0)));
    assert_eq!(note, Note::Keyed { node: NodeId(1), indexed: false });
    // A returned READ may not exceed a host's limits, and the connection may have been replaced.
    let (_, note) = rack.on(CORE.port, &led(BASE_2, &header(55, 1)), NODE_1.port);
    assert_eq!(note, Note::KeyedRefused(KeyedRefusal::Elsewhere));
    for other in [
        KeyedHeader { domain: Domain(20), ..header(55, 1) },
        KeyedHeader { node: NodeId(2), ..header(55, 1) },
    ] {
        let (out, note) = rack.on(CORE.port, &led(ROOT.0, &other), NODE_1.port);
        assert_eq!(
            (out, note),
            (read(OVER.node_qpn, 7, reth(55, 0)), Note::KeyedRefused(KeyedRefusal::Misdirected))
        );
    }
    // No next hop is left.
    core.update(&[Update::PeerGone { port: RACK.port.0 }]);
    assert_eq!(core.silent(EDGE.port, &frame), Note::Dropped(Reason::NoRoute));
}

/// PROTOCOL 16.12: a lost READ is repeated with its PSN and goes straight. After three losses the fabric is
/// bypassed; traversals still use it.
#[test]
fn what_is_lost_above_goes_straight() {
    let mut rack = first_hop();
    let mut at = Instant::ZERO;
    let mut send = |psn: u32| {
        at += Duration::from_millis(70);
        let bytes = &read(OVER.to_node, psn, reth(55, 0));
        rack.switch.handle(at, Event::Frame { port: HOST_1.port, bytes }, &mut rack.outbox);
        let mut notes = Vec::new();
        rack.outbox.drain(|action| {
            if let Action::Note(note) = action {
                notes.push(note)
            }
        });
        matches!(notes[..], [Note::KeyedUp { .. }])
    };
    let lost: Vec<bool> = (1..=3).flat_map(|psn| [send(psn), send(psn)]).collect();
    assert_eq!(lost, [true, false, true, false, true, false]);
    assert!(send(10), "one is still tried at a time");
    assert!(!send(11) && !send(12), "and no other");
    let pad = 55_u64.to_le_bytes();
    let (_, note) = rack.relayed(HOST_1.port, &frame(SESSION_1_10, &request(4, &pad, false)), CORE);
    assert_eq!(note, Note::RoutedUp { index: 1 });
}
