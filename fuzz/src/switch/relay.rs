//! Slow model of connections through the switch (PROTOCOL 15): a list of connections, and frames as bytes at
//! fixed offsets.

use super::{BASES, Outcome, PEERS, VMA_LEN, addr};
use crate::frames::{ReceivedFrame, packet};
use crate::input::Input;
use farmem_machine::Port;
use farmem_switch::Note;
use farmem_wire::message::{Relayed, Update};
use farmem_wire::{
    Aeth, AtomicEth, Bth, Deth, Domain, Extension, HostId, NodeId, Opcode, Pmtu, Psn, Qkey, Qpn, Reth, Rkey,
    Syndrome, VirtAddr,
};

/// Virtual queue pairs of the target, and the queue pair of a session.
const VIRTUAL: [u32; 5] = [0x4001, 0x4002, 0x4003, 0x4004, 0x31];

/// Returns the initial connections: one with a tree, and one without.
pub(super) fn first() -> [Update; 2] {
    let of = |numbers: (usize, usize), node, root| {
        Update::Connection(Relayed {
            to_node: Qpn::new(VIRTUAL[numbers.0]),
            to_host: Qpn::new(VIRTUAL[numbers.1]),
            host: HostId(1),
            host_qpn: Qpn::new(0x501),
            node: NodeId(node),
            node_qpn: Qpn::new(0x502),
            rkey: Rkey(7),
            domain: Domain(10),
            pmtu: Pmtu::B4096,
            root: VirtAddr(root),
        })
    };
    [of((0, 1), 1, BASES[0]), of((2, 3), 2, 0)]
}

/// Returns an update of the control plane about a connection.
pub(super) fn update(input: &mut Input<'_>) -> Update {
    let numbers = input.pick(&[(0, 1), (2, 3), (0, 3), (1, 2), (0, 0), (0, 4)]);
    let (to_node, to_host) = (Qpn::new(VIRTUAL[numbers.0]), Qpn::new(VIRTUAL[numbers.1]));
    if input.one_in(4) {
        return Update::ConnectionGone { to_node };
    }
    let inside = VirtAddr(BASES[1] + VMA_LEN);
    let roots = [VirtAddr(BASES[0]), VirtAddr(BASES[1]), inside, VirtAddr(0), VirtAddr(BASES[0] + 1)];
    Update::Connection(Relayed {
        to_node,
        to_host,
        host: HostId(input.pick(&[1, 2, 9])),
        host_qpn: Qpn::new(0x501),
        node: NodeId(input.pick(&[1, 2, 1, 2, 3, 0xf000])),
        node_qpn: Qpn::new(0x502),
        rkey: Rkey(input.pick(&[7, 7, 7, 0])),
        domain: Domain(input.pick(&[10, 20, 10, 0])),
        pmtu: input.pick(&[Pmtu::B256, Pmtu::B4096]),
        root: input.pick(&roots),
    })
}

/// Returns a packet of a reliable connection, with any opcode, from any port.
pub(super) fn sent(input: &mut Input<'_>) -> ReceivedFrame {
    let port = input.pick(&PEERS);
    let opcode = match input.below(4) {
        0 => Opcode::from_bits(input.u8()).unwrap_or(Opcode::Acknowledge),
        1 => Opcode::ReadResponseOnly,
        _ => Opcode::ReadRequest,
    };
    let lengths = [0, 1, 256, 257, 4096, 4097, 1 << 31, 64];
    let reth =
        Reth { va: addr(input), rkey: Rkey(input.pick(&[0, 0, 0, 7, 8])), dma_len: input.pick(&lengths) };
    let aeth = Aeth { syndrome: Syndrome::Ack, msn: Psn::new(1) };
    let atomic = AtomicEth { va: reth.va, rkey: reth.rkey, swap_or_add: 1, compare: 2 };
    let deth = Deth { qkey: Qkey(1), src_qp: Qpn::new(1) };
    let every = [
        Extension::None,
        Extension::Imm(5),
        Extension::Reth(reth),
        Extension::RethImm(reth, 5),
        Extension::AtomicEth(atomic),
        Extension::Aeth(aeth),
        Extension::AtomicAck(aeth, 9),
        Extension::Deth(deth),
        Extension::DethImm(deth, 5),
    ];
    let ext = every.into_iter().find(|ext| ext.fits(opcode)).expect("each opcode has its headers");
    let bth = Bth::new(opcode, Qpn::new(input.pick(&VIRTUAL)), Psn::new(input.u16().into()));
    let silent = matches!(opcode as u8, 0x0c | 0x11..=0x14);
    let mut frame = packet(bth, ext, if silent { &[] } else { input.bytes() });
    // The switch keeps fields that the network may change.
    frame[4] = input.u8();
    (port, frame)
}

/// Required reaction to a packet of a reliable connection. Other frames have no such value.
#[derive(Debug)]
pub(super) enum RelayExpectation {
    /// The switch sends these bytes to this port.
    Forwarded(Port, Vec<u8>),
    /// The switch drops the packet.
    Dropped,
}

/// Returns the required reaction to a packet. `may` tells whether a domain may read these bytes, `owner`
/// which node holds an address.
pub(super) fn expect(
    connections: &[Relayed],
    port: Port,
    frame: &[u8],
    peers: &impl Fn(Port) -> bool,
    may: &impl Fn(Domain, u64, u32) -> bool,
    owner: &impl Fn(u64) -> Option<NodeId>,
) -> Option<RelayExpectation> {
    let parsed = farmem_wire::Packet::parse(frame).ok()?;
    if parsed.bth.opcode.is_ud() {
        return None;
    }
    let dest = Qpn::new(u32::from_be_bytes([0, frame[5], frame[6], frame[7]]));
    for of in connections {
        let (host, node) = (Port::host(of.host.0), Port::node(of.node.0));
        let (to, qpn) = if dest == of.to_node && port == host {
            (node, of.node_qpn)
        } else if dest == of.to_host && port == node {
            (host, of.host_qpn)
        } else {
            continue;
        };
        if !peers(to) {
            return Some(RelayExpectation::Dropped);
        }
        let mut sent = frame.to_vec();
        sent[5..8].copy_from_slice(&qpn.get().to_be_bytes()[1..]);
        if to == node && frame[0] == 0x0c && frame[20..24] == [0; 4] && frame[24..28] != [0; 4] {
            let len = u32::from_be_bytes([frame[24], frame[25], frame[26], frame[27]]);
            let root = of.root.0;
            if len > of.pmtu as u32 {
                sent[24..28].copy_from_slice(&(1_u32 << 31).to_be_bytes());
            } else if root != 0 && owner(root) == Some(of.node) && may(of.domain, root, len) {
                sent[12..20].copy_from_slice(&root.to_be_bytes());
                sent[20..24].copy_from_slice(&of.rkey.0.to_be_bytes());
            }
        }
        return Some(RelayExpectation::Forwarded(to, sent));
    }
    Some(RelayExpectation::Dropped)
}

/// Checks the switch's reaction to a packet.
pub(super) fn judge(expected: &RelayExpectation, note: Note, outcome: &Outcome) {
    match (expected, &outcome.sent[..]) {
        (RelayExpectation::Dropped, []) => assert!(matches!(note, Note::Dropped(_)), "{note:?}"),
        (RelayExpectation::Forwarded(port, frame), [sent]) => {
            assert_eq!(*sent, (*port, frame.clone()));
            assert!(
                matches!(note, Note::Relayed | Note::Keyed { indexed: false, .. } | Note::KeyedRefused(_)),
                "{note:?}"
            );
        }
        (expected, sent) => panic!("{expected:?}, not {sent:?}"),
    }
}
