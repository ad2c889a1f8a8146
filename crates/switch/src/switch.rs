//! The role: identifies the sender of a frame, checks its access, and forwards it.
//!
//! A frame is parsed once, decided about, and emitted again with the fields that the switch sets: domain,
//! origin, hops, and the node's endpoint. Each rule cites docs/protocol/06-the-switch.md.
//!
//! Circle of files: `tables`, `pages`, `leading` and `soft` define parts of [`Switch`], and also its methods on their
//! topics, which need several parts.

use crate::answer::{Envelope, refusal};
use crate::directory::Phase;
use crate::index_start::IndexStart;
use crate::leading::{Fabric, Parts};
use crate::note::Outbox;
use crate::outdated::{WriteHistory, writes};
use crate::pages::Directory;
use crate::tables::{Session, Tables};
use crate::{Budgets, Note, Occupancy, Reason, Soft};
use alloc::vec::Vec;
use core::convert::Infallible;
use core::num::NonZero;
use farmem_machine::{Event, Halt, Instant, Machine, Port};
use farmem_transport::PeerChange;
use farmem_transport::ud::{self, BatchAction, Endpoint, Inbox, Peer, RoleEndpoints};
use farmem_wire::message::{DirectoryMessage, Lead, PageMessage, REGION_LEN, SoftMessage, Updates};
use farmem_wire::{
    Body, Datagram, Domain, Extension, Header, HostId, KeyedFrame, Message, NodeId, Packet, Perm, Pmtu, Psn,
    Qpn, RequestId, Status, VirtAddr,
};

/// Most bytes of a region read or write: those that fit one datagram of the largest PMTU.
pub const REGION_BYTES_MAX: u32 = {
    let room = Pmtu::B4096.bytes() - Header::LEN - REGION_LEN;
    assert!(room < 4096);
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    let room = room as u32;
    room
};

/// The switch.
#[derive(Debug)]
pub struct Switch {
    home: Endpoint,
    /// The number of this life; hosts show it with writing requests.
    life: Option<NonZero<u32>>,
    pub(crate) tables: Tables,
    inbox: Inbox,
    pub(crate) outdated: WriteHistory,
    pub(crate) directory: Directory,
    pub(crate) soft: Soft,
    index_start: IndexStart,
    /// Estimate whether the fabric above is alive, for traversals.
    pub(crate) fabric: Fabric<RequestId>,
    /// Estimate for keyed READs, by queue pair and PSN.
    pub(crate) keyed_fabric: Fabric<(Qpn, Psn)>,
    pub(crate) parts: Parts,
    /// PSN of the next datagram. UD receivers ignore it; it helps readers of traces.
    psn: Psn,
}

impl Switch {
    /// Creates a switch with empty tables, which forwards nothing until the control plane fills them.
    #[must_use]
    pub fn new(home: RoleEndpoints, budgets: Budgets) -> Self {
        Self {
            home: home.endpoint,
            life: None,
            tables: Tables::new(&home, &budgets),
            inbox: Inbox::default(),
            outdated: WriteHistory::default(),
            directory: Directory::new(budgets.directory_slots),
            soft: Soft::new(budgets.soft_bytes),
            index_start: IndexStart::default(),
            fabric: Fabric::of_traversals(),
            keyed_fabric: Fabric::of_keyed_reads(),
            parts: Parts::default(),
            psn: Psn::default(),
        }
    }

    /// Sets the number of this life, which no earlier life had. Writing requests MUST show it; those sent to
    /// an earlier life do not (PROTOCOL 6.27). Without a number, requests need not show one.
    #[must_use]
    pub fn in_life(self, life: NonZero<u32>) -> Self {
        Self { life: Some(life), ..self }
    }

    /// Returns the occupancy of the tables.
    #[must_use]
    pub fn occupancy(&self) -> Occupancy {
        self.tables.occupancy(&self.soft)
    }

    /// Returns the translation table, for observers and for copies in hardware.
    #[must_use]
    pub const fn translation(&self) -> &crate::Translation {
        &self.tables.translation
    }

    /// Returns the protection table, for observers and for copies in hardware.
    #[must_use]
    pub const fn protection(&self) -> &crate::Protection {
        &self.tables.protection
    }

    /// Handles one frame.
    fn receive(&mut self, now: Instant, port: Port, bytes: &[u8], out: &mut Outbox) -> Note {
        if KeyedFrame::is(bytes) {
            return self.keyed(port, bytes, out);
        }
        if !Datagram::is(bytes) {
            let Ok(packet) = Packet::parse(bytes) else { return Note::Dropped(Reason::Frame) };
            return match packet.ext {
                Extension::DethImm(..) => Note::Dropped(Reason::Immediate),
                _ => self.relay(now, port, bytes, &packet, out),
            };
        }
        let Ok(datagram) = Datagram::parse(bytes) else { return Note::Dropped(Reason::Frame) };
        match self.sender(port, &datagram) {
            Ok(Sender::Control) if DirectoryMessage::is(datagram.payload) => {
                self.order(datagram.payload, out)
            }
            Ok(Sender::Control) if SoftMessage::is(datagram.payload) => {
                self.soft_message(datagram.payload, out)
            }
            Ok(Sender::Node) if DirectoryMessage::is(datagram.payload) => self.visit(datagram.payload, out),
            Ok(Sender::Control) => self.update(datagram.payload, out),
            Ok(Sender::Host(session)) if PageMessage::is(datagram.payload) => {
                self.page_of_host(session, datagram.payload, out)
            }
            Ok(Sender::Node) if PageMessage::is(datagram.payload) => self.page_of_node(datagram.payload, out),
            Ok(Sender::Host(session)) => self.request(now, session, datagram.payload, out),
            Ok(Sender::Switch) if Lead::is(datagram.payload) => self.lead(datagram.payload, out),
            Ok(sender @ (Sender::Node | Sender::Switch)) => self.continuation(&sender, datagram.payload, out),
            Err(reason) => Note::Dropped(reason),
        }
    }

    /// Identifies the sender by queue pair, key and port, never by the message's contents (PROTOCOL 6.2).
    fn sender(&self, port: Port, datagram: &Datagram<'_>) -> Result<Sender, Reason> {
        let at_home = datagram.dest_qp == self.home.qpn;
        let (qkey, sender) = if at_home {
            let sender = match port.as_node() {
                Some(_) => Some(Sender::Node),
                None if port.is_switch() => self.tables.peer(port).map(|_| Sender::Switch),
                None => (port == Port::CONTROL).then_some(Sender::Control),
            };
            (self.home.qkey, sender)
        } else {
            let session = self.tables.session(datagram.dest_qp).ok_or(Reason::UnknownQueuePair)?;
            (session.qkey, (port == Port::host(session.host.0)).then_some(Sender::Host(session)))
        };
        if datagram.deth.qkey != qkey {
            return Err(Reason::WrongKey);
        }
        sender.ok_or(Reason::WrongPort)
    }

    /// Handles a host's request (PROTOCOL 6.4 to 6.9).
    fn request(&mut self, now: Instant, session: Session, payload: &[u8], out: &mut Outbox) -> Note {
        let Session { host, generation, domain, .. } = session;
        let Ok(mut message) = Message::parse(payload) else {
            return match Envelope::read(payload) {
                Some(envelope) if !envelope.response => {
                    self.answer(host, &envelope.refusal(domain, host), out)
                }
                _ => Note::Dropped(Reason::Message),
            };
        };
        if message.header.response {
            return Note::Dropped(Reason::Response);
        }
        let shown = core::mem::replace(&mut message.header.domain, domain);
        message.header.origin = host;
        // Servers remember answers by request id: a host must not use up the ids of another host, or of the
        // next host with its number (PROTOCOL 6.5).
        let request = message.header.request;
        if request.host() != host || request.generation() != generation {
            return self.answer(host, &refusal(&message, Status::Malformed), out);
        }
        // A copy from before this switch started may have been executed by a node that restarted as well and
        // forgot it (PROTOCOL 6.27).
        if let Some(life) = self.life.filter(|life| life.get() != shown.0 && writes(&message)) {
            message.header.domain = Domain(life.get());
            return self.answer(host, &refusal(&message, Status::OtherLife), out);
        }
        if let Some(note) = self.lead_up(now, &message, out) {
            return note;
        }
        let mut further = core::mem::take(&mut self.index_start);
        further.start_at_index(self.soft.index(), &mut message);
        let note = match self.route(&message) {
            Ok(Some((node, _))) if self.outdated.is_outdated(node, &message) => {
                Note::Dropped(Reason::Outdated)
            }
            Ok(Some((node, peer))) => {
                self.outdated.sent(&message);
                self.forward(peer, message, out);
                further.descents().iter().for_each(|descent| self.soft.count(descent));
                if further.descents().is_empty() { Note::Forwarded { node } } else { Note::Indexed { node } }
            }
            Ok(None) => Note::Dropped(Reason::NodeGone),
            Err(status) => self.answer(host, &refusal(&message, status), out),
        };
        self.index_start = further;
        note
    }

    /// Handles a traversal whose next pointer is not at its last node (PROTOCOL 6.10, PULSE 5), or that no
    /// index switch leads on (16.7). Node and switch got domain and origin from a switch and are trusted. If
    /// the node has the address by now, the traversal returns to it.
    fn continuation(&mut self, sender: &Sender, payload: &[u8], out: &mut Outbox) -> Note {
        let Ok(message) = Message::parse(payload) else {
            return Note::Dropped(Reason::Message);
        };
        if message.header.response {
            return Note::Dropped(Reason::Response);
        }
        // A node continues one traversal at a time; an index switch returns what it got.
        let is_one = matches!(message.body, Body::Traverse(_));
        if !is_one && !matches!((sender, &message.body), (Sender::Switch, Body::Batch(_))) {
            return Note::Dropped(Reason::NotContinuation);
        }
        match self.route(&message) {
            Ok(Some((node, _))) if self.outdated.is_outdated(node, &message) => {
                Note::Dropped(Reason::Outdated)
            }
            Ok(Some((node, peer))) => {
                self.forward(peer, message, out);
                Note::Continued { node }
            }
            Ok(None) => Note::Dropped(Reason::NodeGone),
            Err(status) => self.answer(message.header.origin, &refusal(&message, status), out),
        }
    }

    /// Routes a request: hops, then protection, then translation (PROTOCOL 6.6 to 6.8). None if its node left
    /// and is to join again.
    pub(crate) fn route(&self, message: &Message<'_>) -> Result<Option<(NodeId, Peer)>, Status> {
        let wanted = RequiredAccess::of(&message.body)?;
        if message.header.hops == 0 {
            return Err(Status::HopLimit);
        }
        let domain = message.header.domain;
        let allowed = self.tables.protection.check(domain, wanted.addr, wanted.len, wanted.perm);
        let owner = || self.tables.translation.lookup(wanted.addr).ok_or(Status::NotMapped);
        let node = allowed.map_err(Status::from).and_then(|()| owner());
        // The first pair's fault says nothing about the other pairs (PROTOCOL 6.25).
        let of_all = |status| if matches!(message.body, Body::Batch(_)) { Status::Apart } else { status };
        let node = node.map_err(of_all)?;
        Ok(self.tables.node(node).map(|peer| (node, peer)))
    }

    /// Sends a routed request to its node, with one hop less.
    pub(crate) fn forward(&mut self, node: Peer, mut message: Message<'_>, out: &mut Outbox) {
        assert!(message.header.hops > 0, "a routed message has a hop left");
        message.header.hops -= 1;
        self.send(node, &message, out);
    }

    /// Sends a refusal to its host (PROTOCOL 6.12).
    fn answer(&mut self, host: HostId, message: &Message<'_>, out: &mut Outbox) -> Note {
        let Some(peer) = self.tables.host(host) else {
            return Note::Dropped(Reason::UnknownOrigin);
        };
        self.send(peer, message, out);
        Note::Refused(message.header.status)
    }

    /// Handles the control plane's table updates (PROTOCOL 6.16).
    fn update(&mut self, payload: &[u8], out: &mut Outbox) -> Note {
        let Ok(message) = Message::parse(payload) else {
            return match Envelope::read(payload) {
                Some(envelope) if !envelope.response => {
                    let answer = envelope.refusal(Domain::default(), HostId::default());
                    self.answer_control(&answer, out);
                    Note::Refused(answer.header.status)
                }
                _ => Note::Dropped(Reason::Message),
            };
        };
        if message.header.response {
            return Note::Dropped(Reason::Response);
        }
        let Body::Update(batch) = message.body else {
            self.answer_control(&refusal(&message, Status::Unsupported), out);
            return Note::Refused(Status::Unsupported);
        };
        let seq = batch.seq;
        let (status, refused, note) = match self.inbox.decide(&batch) {
            BatchAction::Ignore => return Note::Dropped(Reason::Sequence),
            BatchAction::Halt => return Note::UpdateChanged { seq },
            BatchAction::Again(status, refused) => (status, refused, Note::UpdateRepeated { seq }),
            BatchAction::Apply => {
                let (status, refused) = self.apply(&batch, out);
                self.inbox.applied(&batch, status, refused);
                let good = status == Status::Ok;
                let note = if good { Note::Updated { seq } } else { Note::UpdateRefused { seq, status } };
                (status, refused, note)
            }
        };
        let body = Body::Update(Updates::response(seq, refused));
        self.answer_control(&Message { header: message.header.answer(status), body }, out);
        note
    }

    /// Applies a batch up to the first refused update; returns status and index.
    fn apply(&mut self, batch: &Updates<'_>, out: &mut Outbox) -> (Status, u16) {
        for (update, index) in batch.iter().zip(0..) {
            self.before_update(&update, out);
            match self.tables.apply(update) {
                Ok(change) => change.into_iter().for_each(|change| out.local(change)),
                Err(error) => return (error.into(), index),
            }
            self.after_update(&update, out);
        }
        (Status::Ok, 0)
    }

    fn answer_control(&mut self, message: &Message<'_>, out: &mut Outbox) {
        let control = Peer { port: Port::CONTROL, endpoint: self.tables.control };
        self.send(control, message, out);
    }

    pub(crate) fn send(&mut self, peer: Peer, message: &Message<'_>, out: &mut Outbox) {
        self.send_bytes(peer, message.len(), |bytes| message.emit(bytes), out);
    }

    pub(crate) fn send_bytes(
        &mut self,
        peer: Peer,
        len: usize,
        emit: impl FnOnce(&mut Vec<u8>),
        out: &mut Outbox,
    ) {
        ud::send_bytes(out, peer, self.home.qpn, self.psn, len, emit);
        self.psn = self.psn.plus(1);
    }
}

impl Machine for Switch {
    type In = Infallible;
    type Out = PeerChange;
    type Note = Note;

    fn handle(&mut self, now: Instant, event: Event<'_, Infallible>, out: &mut Outbox) {
        if self.halted().is_some() {
            return;
        }
        match event {
            Event::Frame { port, bytes } => {
                let note = self.receive(now, port, bytes, out);
                out.note(note);
            }
            Event::Wake => {}
            Event::Local(never) => match never {},
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        None
    }

    fn halted(&self) -> Option<Halt> {
        self.inbox.halted()
    }

    fn check(&self) {
        self.tables.assert_invariants();
        self.directory.assert_invariants();
        let regions = self.directory.slots.iter().flat_map(|slots| slots.iter());
        for (region, entry) in regions {
            let goes = matches!(entry.phase(), Phase::Resetting | Phase::Collected);
            assert!(goes || self.tables.vmas.hold(region), "{region:?} lies in one vma");
        }
        self.soft.assert_invariants();
        self.fabric.assert_invariants();
        self.keyed_fabric.assert_invariants();
    }
}

/// The sender of a datagram.
enum Sender {
    Control,
    Host(Session),
    Node,
    /// Another switch that the control plane named.
    Switch,
}

/// The access that a request needs before it is forwarded.
struct RequiredAccess {
    addr: VirtAddr,
    len: u32,
    perm: Perm,
}

impl RequiredAccess {
    fn of(body: &Body<'_>) -> Result<Self, Status> {
        match *body {
            Body::RegionRead { len, .. } | Body::RegionWrite { len, .. }
                if len == 0 || len > REGION_BYTES_MAX =>
            {
                Err(Status::Malformed)
            }
            Body::RegionRead { addr, len, .. } => Ok(Self { addr, len, perm: Perm::Read }),
            Body::RegionWrite { addr, len, .. } => Ok(Self { addr, len, perm: Perm::ReadWrite }),
            // Only the node knows the window's length; it checks the window (PROTOCOL 6.7).
            Body::Traverse(traverse) => {
                let perm = if traverse.program.stores() { Perm::ReadWrite } else { Perm::Read };
                Ok(Self { addr: traverse.cur_ptr, len: 1, perm })
            }
            // The node checks the windows of all pairs (PROTOCOL 6.25).
            Body::Batch(batch) => {
                let perm = if batch.program().stores() { Perm::ReadWrite } else { Perm::Read };
                Ok(Self { addr: batch.first().cur_ptr, len: 1, perm })
            }
            Body::Update(_) => Err(Status::Unsupported),
        }
    }
}
