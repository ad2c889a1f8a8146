//! A rack around one switch: two nodes, two hosts, three sessions; frames in, and all outputs.

use crate::{Budgets, Note, Switch};
use alloc::vec::Vec;
use farmem_machine::{Action, Event, Instant, Machine, Port};
use farmem_transport::PeerChange;
use farmem_transport::ud::{Endpoint, Peer, RoleEndpoints};
use farmem_wire::message::{Traverse, Update, Updates};
use farmem_wire::{
    Body, Bth, Deth, Domain, Extension, Gid, Header, HostId, Message, NodeId, Opcode, Packet, Perm,
    ProgramHash, Psn, Qkey, Qpn, RequestId, VirtAddr,
};

mod batches;
mod continuations;
mod index;
mod leading;
mod orders;
mod outdated;
mod pages;
mod relay;
mod requests;
mod soft;
mod updates;
mod vmas;

const CONTROL: Peer = peer(Port::CONTROL, 0x101, 0xc0c0_c0c0);
const HOME: Endpoint = endpoint(0x5317c, 0x5e5e_5e5e);
const NODE_1: Peer = peer(Port::node(1), 0x1001, 0x1111_1111);
const NODE_2: Peer = peer(Port::node(2), 0x1002, 0x2222_2222);
const HOST_1: Peer = peer(Port::host(1), 0x2001, 0xaaaa_0001);
const HOST_2: Peer = peer(Port::host(2), 0x2002, 0xaaaa_0002);

/// Host 1 in domain 10, host 2 in the same domain, host 1 in domain 20.
const SESSION_1_10: Endpoint = endpoint(0xabc_101, 0x7001_0010);
const SESSION_2_10: Endpoint = endpoint(0xabc_102, 0x7002_0010);
const SESSION_1_20: Endpoint = endpoint(0xabc_103, 0x7001_0020);

/// The nodes' ranges, 2^40 bytes each, and a vma of 64 KiB in each for domain 10; its second half is
/// read-only.
const BASE_1: u64 = 1 << 40;
const BASE_2: u64 = 2 << 40;
const VMA_LEN: u64 = 0x1_0000;

const GID: Gid = Gid([7; 16]);
/// The generation of all hosts.
const GENERATION: u16 = 3;

const fn endpoint(qpn: u32, qkey: u32) -> Endpoint {
    Endpoint { qpn: Qpn::new(qpn), qkey: Qkey(qkey) }
}

const fn peer(port: Port, qpn: u32, qkey: u32) -> Peer {
    Peer { port, endpoint: endpoint(qpn, qkey) }
}

fn add(peer: Peer) -> Update {
    Update::Peer { port: peer.port.0, gid: GID, qpn: peer.endpoint.qpn, qkey: peer.endpoint.qkey }
}

fn session(endpoint: Endpoint, host: u16, domain: u32) -> Update {
    Update::Session {
        qpn: endpoint.qpn,
        qkey: endpoint.qkey,
        host: HostId(host),
        generation: GENERATION,
        domain: Domain(domain),
    }
}

fn protect(domain: u32, base: u64, len: u64, perm: Perm) -> Update {
    Update::Protect { domain: Domain(domain), base: VirtAddr(base), len, perm, vma_log2: 64 }
}

fn translate(base: u64, size_log2: u8, node: u16) -> Update {
    Update::Translate { base: VirtAddr(base), size_log2, node: NodeId(node) }
}

/// Returns the updates that set the rack up.
fn rack() -> Vec<Update> {
    Vec::from([
        add(NODE_1),
        add(NODE_2),
        add(HOST_1),
        add(HOST_2),
        translate(BASE_1, 40, 1),
        translate(BASE_2, 40, 2),
        session(SESSION_1_10, 1, 10),
        session(SESSION_2_10, 2, 10),
        session(SESSION_1_20, 1, 20),
        protect(10, BASE_1, VMA_LEN, Perm::ReadWrite),
        protect(10, BASE_1 + VMA_LEN / 2, VMA_LEN / 2, Perm::Read),
        protect(10, BASE_2, VMA_LEN, Perm::ReadWrite),
    ])
}

/// An output of the switch.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Out {
    Send(Port, Vec<u8>),
    Peer(PeerChange),
    Note(Note),
}

struct Scene {
    switch: Switch,
    outbox: farmem_machine::Outbox<PeerChange, Note>,
    seq: u64,
}

impl Scene {
    /// Creates an empty switch.
    fn new(budgets: Budgets) -> Self {
        let home = RoleEndpoints { endpoint: HOME, control: CONTROL };
        Self { switch: Switch::new(home, budgets), outbox: farmem_machine::Outbox::new(), seq: 0 }
    }

    /// Creates the rack described at the top of this file.
    fn rack() -> Self {
        let mut scene = Self::new(Budgets::default());
        let out = scene.update(&rack());
        assert_eq!(out.last(), Some(&Out::Note(Note::Updated { seq: 1 })));
        scene
    }

    /// Delivers one frame and checks every invariant afterwards.
    fn deliver(&mut self, port: Port, frame: &[u8]) -> Vec<Out> {
        self.switch.handle(Instant::ZERO, Event::Frame { port, bytes: frame }, &mut self.outbox);
        self.switch.check();
        assert_eq!(self.switch.next_wake(), None);
        let mut all = Vec::new();
        self.outbox.drain(|action| {
            all.push(match action {
                Action::Send { port, frame } => Out::Send(port, frame.to_vec()),
                Action::Local(change) => Out::Peer(change),
                Action::Note(note) => Out::Note(note),
            });
        });
        all
    }

    /// Delivers the next batch of updates from the control plane.
    fn update(&mut self, updates: &[Update]) -> Vec<Out> {
        self.seq += 1;
        self.deliver(Port::CONTROL, &batch(self.seq, updates))
    }

    /// Delivers a frame that must be dropped; returns its note.
    fn silent(&mut self, port: Port, frame: &[u8]) -> Note {
        match self.deliver(port, frame).as_slice() {
            [Out::Note(note)] => *note,
            other => panic!("nothing but a note was expected: {other:?}"),
        }
    }

    /// Delivers a frame that must cause exactly one frame to `receiver`, from the switch's own endpoint;
    /// returns its payload and the note.
    fn relayed(&mut self, port: Port, frame: &[u8], receiver: Peer) -> (Vec<u8>, Note) {
        let out = self.deliver(port, frame);
        let [Out::Send(to, bytes), Out::Note(note)] = out.as_slice() else {
            panic!("one frame and one note were expected: {out:?}");
        };
        assert_eq!(*to, receiver.port);
        let packet = Packet::parse(bytes).expect("the switch emits frames that parse");
        assert_eq!(packet.bth.opcode, Opcode::UdSendOnly);
        assert_eq!(packet.bth.dest_qp, receiver.endpoint.qpn);
        assert_eq!(packet.ext, Extension::Deth(Deth { qkey: receiver.endpoint.qkey, src_qp: HOME.qpn }));
        (packet.payload.to_vec(), *note)
    }
}

/// Returns a datagram to `receiver` with this payload.
fn datagram(receiver: Endpoint, payload: &[u8]) -> Vec<u8> {
    let bth = Bth::new(Opcode::UdSendOnly, receiver.qpn, Psn::new(9));
    let ext = Extension::Deth(Deth { qkey: receiver.qkey, src_qp: Qpn::new(0x77) });
    let mut frame = Vec::new();
    Packet { bth, ext, payload }.emit(&mut frame);
    frame
}

fn payload(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.emit(&mut bytes);
    bytes
}

fn frame(receiver: Endpoint, message: &Message<'_>) -> Vec<u8> {
    datagram(receiver, &payload(message))
}

fn batch(seq: u64, updates: &[Update]) -> Vec<u8> {
    let mut bytes = Vec::new();
    updates.iter().for_each(|update| update.emit(&mut bytes));
    let count = u16::try_from(updates.len()).expect("a short batch");
    let updates = Updates::request(seq, count, &bytes).expect("a batch that fits");
    let header = Header::request(RequestId(seq), 0);
    frame(HOME, &Message { header, body: Body::Update(updates) })
}

fn id(host: u16, counter: u32) -> RequestId {
    RequestId::new(HostId(host), GENERATION, counter)
}

fn read(host: u16, addr: u64, len: u32) -> Message<'static> {
    let body = Body::RegionRead { addr: VirtAddr(addr), len, data: &[] };
    Message { header: Header::request(id(host, 1), 4), body }
}

fn write(host: u16, addr: u64, data: &[u8]) -> Message<'_> {
    let len = u32::try_from(data.len()).expect("a small region");
    Message {
        header: Header::request(id(host, 2), 4),
        body: Body::RegionWrite { addr: VirtAddr(addr), len, data },
    }
}

fn traverse(host: u16, cur_ptr: u64, hops: u8) -> Message<'static> {
    let state = Traverse {
        program: ProgramHash([0x5a; 16]),
        cur_ptr: VirtAddr(cur_ptr),
        iterations: 17,
        limit: 64,
        scratch: b"scratch pad",
        code: b"code of the program",
    };
    Message { header: Header::request(id(host, 3), hops), body: Body::Traverse(state) }
}

/// Returns `message` as the switch must forward it: stamped, with one hop less.
fn stamped<'a>(message: &Message<'a>, domain: u32, origin: u16) -> Message<'a> {
    let (domain, origin) = (Domain(domain), HostId(origin));
    Message { header: Header { domain, origin, hops: message.header.hops - 1, ..message.header }, ..*message }
}
