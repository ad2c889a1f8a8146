//! The node as its peers see it: frames in, frames out, and the resulting store.

mod batches;
mod compiling;
mod files;
mod incarnation;
mod interleaving;
mod moves;
mod pages;
mod requests;
mod stores;
mod traversals;
mod updates;
mod verbs;

use crate::{Budget, Config, DropReason, FileRequest, MemNode, Note, Out, Store, VecStore};
use alloc::vec;
use alloc::vec::Vec;
use farmem_machine::{Action, Event, Instant, Machine, Outbox, Port};
use farmem_transport::{PeerChange, ud};
use farmem_wire::message::{Update, Updates};
use farmem_wire::{
    Body, Bth, Deth, Domain, Extension, Gid, Header, HostId, Message, Opcode, Packet, Perm, Pmtu, Psn, Qkey,
    Qpn, RequestId, Rkey, Status, VirtAddr,
};

/// First address of the node's one range, which starts at [`OFFSET`] of the store.
const BASE: VirtAddr = VirtAddr(0x1000_0000);
const LEN: u64 = 0x4000;
const OFFSET: u64 = 0x1000;
const STORE_LEN: usize = 0x8000;

/// A domain that may read and write the first 0x1000 bytes, and read the next 0x1000.
const ALICE: Domain = Domain(7);
/// A domain that may read and write the 0x1000 bytes behind those.
const BOB: Domain = Domain(8);

const HOST: HostId = HostId(3);
const OTHER_HOST: HostId = HostId(4);

const HOME: ud::RoleEndpoints = ud::RoleEndpoints {
    endpoint: ud::Endpoint { qpn: Qpn::new(0x500), qkey: Qkey(0x5eed_0001) },
    control: ud::Peer { port: Port::CONTROL, endpoint: endpoint(0x10) },
};

/// Returns the UD endpoint of a peer, derived from one number.
const fn endpoint(number: u32) -> ud::Endpoint {
    ud::Endpoint { qpn: Qpn::new(0x1000 + number), qkey: Qkey(0xbeef_0000 + number) }
}

fn addr(offset: u64) -> VirtAddr {
    VirtAddr(BASE.0 + offset)
}

/// A node, the frames it sent last, and all its notes.
struct Bench {
    node: MemNode<VecStore>,
    out: Outbox<Out, Note>,
    seq: u64,
    sent: Vec<(Port, Vec<u8>)>,
    peers: Vec<PeerChange>,
    /// The last requests for files.
    asked: Vec<FileRequest>,
    notes: Vec<Note>,
}

impl Bench {
    /// Creates a node without any update of the control plane.
    fn empty(budget: Budget) -> Self {
        let config = Config { home: HOME, pmtu: Pmtu::B1024, budget };
        let node = MemNode::new(config, VecStore::new(STORE_LEN));
        Self { node, out: Outbox::new(), seq: 0, sent: vec![], peers: vec![], asked: vec![], notes: vec![] }
    }

    /// Creates a node with the switch, two hosts, one range, and grants for two domains.
    fn ready() -> Self {
        Self::ready_with(Budget::default())
    }

    fn ready_with(budget: Budget) -> Self {
        let mut bench = Self::empty(budget);
        let updates = [
            peer(Port::SWITCH, 1),
            peer(Port::host(HOST.0), 3),
            peer(Port::host(OTHER_HOST.0), 4),
            Update::Range { base: BASE, len: LEN, offset: OFFSET },
            Update::Protect {
                domain: ALICE,
                base: addr(0),
                len: 0x1000,
                perm: Perm::ReadWrite,
                vma_log2: 64,
            },
            Update::Protect {
                domain: ALICE,
                base: addr(0x1000),
                len: 0x1000,
                perm: Perm::Read,
                vma_log2: 64,
            },
            Update::Protect {
                domain: BOB,
                base: addr(0x2000),
                len: 0x1000,
                perm: Perm::ReadWrite,
                vma_log2: 64,
            },
        ];
        assert_eq!(bench.update(&updates), (Status::Ok, 0));
        bench
    }

    /// Delivers a frame and collects the outputs.
    fn hear(&mut self, port: Port, bytes: &[u8]) {
        self.node.handle(Instant::ZERO, Event::Frame { port, bytes }, &mut self.out);
        self.node.check();
        self.collect();
    }

    /// Wakes the node as long as it is due now, and collects the outputs.
    fn collect(&mut self) {
        while self.node.next_wake().is_some_and(|at| at <= Instant::ZERO) {
            self.node.handle(Instant::ZERO, Event::Wake, &mut self.out);
            self.node.check();
        }
        self.drain();
    }

    /// Moves the node's outputs into the bench.
    fn drain(&mut self) {
        self.sent.clear();
        self.asked.clear();
        let Self { sent, peers, asked, notes, out, .. } = self;
        out.drain(|action| match action {
            Action::Send { port, frame } => sent.push((port, frame.to_vec())),
            Action::Local(Out::Peer(change)) => peers.push(change),
            Action::Local(Out::File(ask)) => asked.push(ask),
            Action::Note(note) => notes.push(note),
        });
    }

    /// Checks that the node drops the frame for this reason, without an answer and without a change.
    fn hear_nothing(&mut self, port: Port, bytes: &[u8], reason: DropReason) {
        let before = self.node.store().clone();
        self.hear(port, bytes);
        assert_eq!(self.notes.last(), Some(&Note::Dropped(reason)));
        assert_eq!(self.sent, [], "no answer");
        assert_eq!(*self.node.store(), before, "no change");
    }

    /// Checks that a request outside the node's ranges gets no answer: the host asks the switch again
    /// (PROTOCOL 7.18).
    fn not_here(&mut self, header: Header, body: Body<'_>) {
        self.hear_nothing(Port::SWITCH, &datagram(&Message { header, body }), DropReason::NotHere);
    }

    /// Applies the control plane's next batch; returns the response's status and index.
    fn update(&mut self, updates: &[Update]) -> (Status, u16) {
        self.seq += 1;
        let frame = batch(self.seq, updates);
        self.hear(Port::CONTROL, &frame);
        self.response()
    }

    /// Returns the response to the last batch.
    fn response(&self) -> (Status, u16) {
        let [(Port::CONTROL, frame)] = &self.sent[..] else {
            panic!("one answer to control, not {:?}", self.sent)
        };
        let message = parse(frame, HOME.control.endpoint);
        let Body::Update(updates) = message.body else { panic!("an answer to updates, not {message:?}") };
        assert!(message.header.response);
        assert_eq!(updates.seq, self.seq);
        (message.header.status, updates.refused)
    }

    /// Forwards a request as the switch does; returns the node's message to the host.
    fn ask(&mut self, header: Header, body: Body<'_>) -> Message<'_> {
        self.hear(Port::SWITCH, &datagram(&Message { header, body }));
        let port = Port::host(header.origin.0);
        let [(to, frame)] = &self.sent[..] else { panic!("one answer, not {:?}", self.sent) };
        assert_eq!(*to, port, "the answer goes straight to the host");
        let message = parse(frame, endpoint(u32::from(header.origin.0)));
        assert!(message.header.response);
        assert_eq!((message.header.request, message.header.domain), (header.request, header.domain));
        assert_eq!(message.body.kind(), body.kind());
        message
    }

    /// Returns the store's bytes at an address.
    fn bytes(&self, at: VirtAddr, len: u32) -> Vec<u8> {
        let mut out = vec![];
        self.node.store().read(at.0 - BASE.0 + OFFSET, len, &mut out);
        out
    }

    /// Writes bytes at an address, past all checks.
    fn put(&mut self, at: VirtAddr, data: &[u8]) {
        self.node.store.write(at.0 - BASE.0 + OFFSET, data);
    }
}

fn peer(port: Port, number: u32) -> Update {
    let ud::Endpoint { qpn, qkey } = endpoint(number);
    let octet = u8::try_from(number).unwrap();
    Update::Peer { port: port.0, gid: Gid::from_v4([10, 0, 0, octet]), qpn, qkey }
}

/// Returns a connection of `HOST` in Alice's domain.
fn queue_pair(qpn: u32, first_psn: u32) -> Update {
    Update::QueuePair {
        qpn: Qpn::new(qpn),
        peer_qpn: Qpn::new(0x900),
        peer_port: Port::host(HOST.0).0,
        expected_psn: Psn::new(first_psn),
        rkey: RKEY,
        domain: ALICE,
        pmtu: Pmtu::B1024,
    }
}

const RKEY: Rkey = Rkey(0x0bad_cafe);

/// Returns a request's header as the switch forwards it.
fn header(domain: Domain, counter: u32) -> Header {
    Header { domain, origin: HOST, ..Header::request(RequestId::new(HOST, 1, counter), 4) }
}

fn batch(seq: u64, updates: &[Update]) -> Vec<u8> {
    let mut bytes = vec![];
    updates.iter().for_each(|update| update.emit(&mut bytes));
    let body = Body::Update(Updates::request(seq, u16::try_from(updates.len()).unwrap(), &bytes).unwrap());
    datagram(&Message { header: Header::request(RequestId(seq), 0), body })
}

/// Returns a datagram to the node's endpoint.
fn datagram(message: &Message<'_>) -> Vec<u8> {
    datagram_to(HOME.endpoint, message)
}

fn datagram_to(to: ud::Endpoint, message: &Message<'_>) -> Vec<u8> {
    let bth = Bth::new(Opcode::UdSendOnly, to.qpn, Psn::new(0));
    let ext = Extension::Deth(Deth { qkey: to.qkey, src_qp: Qpn::new(0x77) });
    let mut frame = vec![];
    Packet::emit_with(&bth, &ext, message.len(), &mut frame, |bytes| message.emit(bytes));
    frame
}

/// Parses a datagram, which must be for this endpoint and from the node's own.
fn parse(frame: &[u8], to: ud::Endpoint) -> Message<'_> {
    let packet = Packet::parse(frame).unwrap();
    assert_eq!(packet.bth.dest_qp, to.qpn);
    assert_eq!(packet.ext, Extension::Deth(Deth { qkey: to.qkey, src_qp: HOME.endpoint.qpn }));
    Message::parse(packet.payload).unwrap()
}
