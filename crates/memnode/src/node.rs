//! The role: dispatches events to the parts of the node.
//!
//! Circle of files: `answers`, `files`, `moves`, `pages` and `requests` define parts of the node, and also its methods
//! on their topics, which need the store and the connections here.

use crate::answers::Answers;
use crate::files::{FileReply, Files, Out};
use crate::moves::Moves;
use crate::note::{DropReason, Note, Stats};
use crate::pages::Pages;
use crate::peers::Peers;
use crate::programs::{Compile, Interpreted, Programs};
use crate::regions::{Regions, View};
use crate::requests::{DEDUP_DEPTH, DEDUP_HOSTS_MAX, DEDUP_ROOM};
use crate::store::Store;
use crate::workspaces::{BURST, WORKSPACES, Workspaces};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farmem_machine::{Event, Halt, Instant, Machine, Port};
use farmem_transport::{rc, ud};
use farmem_wire::message::{DirectoryMessage, FileMessage, Kind, MoveMessage, PageMessage};
use farmem_wire::{Body, Datagram, Message, Packet, Pmtu, Qpn, RawMessage};

/// The initial configuration of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Endpoints of the node and of the control plane.
    pub home: ud::RoleEndpoints,
    /// Path MTU of the node's datagrams: no message is longer.
    pub pmtu: Pmtu,
    /// Sizes of the tables.
    pub budget: Budget,
}

/// The sizes of a node's tables. An update that would exceed one is refused with `TableFull`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Ranges of addresses.
    pub ranges: usize,
    /// Grants of all domains, after equal neighbours were merged.
    pub grants: usize,
    /// Reliable connections.
    pub queue_pairs: usize,
    /// Peers, without the control plane.
    pub peers: usize,
    /// Prefixes outside the node's range: moved here from another node, or from here to one.
    pub outliers: usize,
    /// Traversals whose hops are interleaved, at least one; others wait. With one, each traversal runs to its
    /// end or the end of its turn before the next begins: a baseline for comparison.
    pub workspaces: usize,
    /// Workspaces whose windows are prefetched together, at least one. A driver finds the best value with a
    /// [`Trial`](crate::Trial).
    pub burst: usize,
}

impl Default for Budget {
    /// Returns sizes for a rack: 64 ranges, 65,536 grants, 4,096 connections, 8,192 peers (every node knows
    /// every host, up to 4,096), 65,536 outliers, [`WORKSPACES`] in bursts of [`BURST`].
    fn default() -> Self {
        Self {
            ranges: 64,
            grants: 65_536,
            queue_pairs: 4_096,
            peers: 8_192,
            outliers: 65_536,
            workspaces: WORKSPACES,
            burst: BURST,
        }
    }
}

/// The outbox of the role.
pub(crate) type Outbox = farmem_machine::Outbox<Out, Note>;

/// A memory node over the bytes of `S`, which runs programs as `C` compiles them.
///
/// The event that brings a traversal does not run it. The node asks to be woken at once, and one
/// [`Event::Wake`] runs all traversals that have arrived, interleaved. A driver that delivers frames in
/// batches and wakes after each batch lets them wait for memory together.
#[derive(Debug)]
pub struct MemNode<S, C: Compile = Interpreted> {
    pub(crate) config: Config,
    pub(crate) store: S,
    pub(crate) regions: Regions,
    pub(crate) queue_pairs: BTreeMap<Qpn, rc::Responder>,
    pub(crate) peers: Peers,
    pub(crate) inbox: ud::Inbox,
    pub(crate) dedup: ud::Dedup,
    pub(crate) programs: Programs<C>,
    pub(crate) workspaces: Workspaces<C::Logic>,
    /// Answers to pairs of batches, within the current event.
    pub(crate) answers: Answers,
    pub(crate) pages: Pages,
    pub(crate) moves: Moves,
    pub(crate) files: Files,
    /// When the traversals in progress want their next turn.
    pub(crate) turn_due: Instant,
    /// A buffer for answers; kept for its allocation.
    pub(crate) buffer: Vec<u8>,
    pub(crate) stats: Stats,
}

impl<S: Store> MemNode<S> {
    /// Creates a node with empty tables that interprets programs. It refuses every request until the control
    /// plane sends updates.
    pub fn new(config: Config, store: S) -> Self {
        Self::compiling(config, store, Interpreted)
    }
}

impl<S: Store, C: Compile> MemNode<S, C> {
    /// Creates a node with empty tables that runs programs as `compile` compiles them.
    pub fn compiling(config: Config, store: S, compile: C) -> Self {
        Self {
            config,
            regions: Regions::new(
                store.len(),
                config.budget.ranges,
                config.budget.grants,
                config.budget.outliers,
            ),
            store,
            queue_pairs: BTreeMap::new(),
            peers: Peers::new(&config.home, config.budget.peers),
            inbox: ud::Inbox::default(),
            dedup: ud::Dedup::new(DEDUP_HOSTS_MAX, DEDUP_DEPTH, DEDUP_ROOM),
            programs: Programs::new(compile),
            workspaces: Workspaces::new(config.budget.workspaces, config.budget.burst),
            answers: Answers::default(),
            pages: Pages::default(),
            moves: Moves::default(),
            files: Files::default(),
            turn_due: Instant::ZERO,
            buffer: Vec::new(),
            stats: Stats::default(),
        }
    }

    /// Returns the store, for checkers.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the store, for the node's successor.
    pub fn into_store(self) -> S {
        self.store
    }

    /// Returns the counts since the start.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    #[inline]
    fn on_frame(&mut self, now: Instant, port: Port, bytes: &[u8], out: &mut Outbox) {
        self.stats.frames = self.stats.frames.wrapping_add(1);
        if !Datagram::is(bytes) {
            return self.on_verb(port, bytes, out);
        }
        match Datagram::parse(bytes) {
            Ok(datagram) => self.on_datagram(now, port, &datagram, out),
            Err(_) => self.drop_frame(DropReason::Malformed, out),
        }
    }

    /// Handles a packet of a reliable connection (PROTOCOL 7.17).
    #[inline(never)]
    fn on_verb(&mut self, port: Port, bytes: &[u8], out: &mut Outbox) {
        let packet = match Packet::parse(bytes) {
            Ok(packet) if packet.bth.opcode.is_ud() => return self.drop_frame(DropReason::Opcode, out),
            Ok(packet) => packet,
            Err(_) => return self.drop_frame(DropReason::Malformed, out),
        };
        // Index switches send keyed READs for connections through the rack's switch. Only those that the
        // control plane named count (PROTOCOL 7.17, 16.14).
        let port = if self.is_index_switch(port) { Port::SWITCH } else { port };
        let Some(responder) = self.queue_pairs.get_mut(&packet.bth.dest_qp) else {
            return self.drop_frame(DropReason::NoQueuePair, out);
        };
        self.stats.verbs = self.stats.verbs.wrapping_add(1);
        let mut view = View::new(&self.regions, &mut self.store);
        responder.on_packet(port, &packet, &mut view, out);
        responder.flush(out);
        if let Some(page) = view.lent.get() {
            self.peers.visit(page, out);
        }
    }

    /// Handles a datagram. Its key must be right, and its port must be one that may send its kind (PROTOCOL
    /// 7.2, 7.3).
    #[inline]
    fn on_datagram(&mut self, now: Instant, port: Port, datagram: &Datagram<'_>, out: &mut Outbox) {
        let home = self.config.home.endpoint;
        if datagram.dest_qp != home.qpn {
            return self.drop_frame(DropReason::NoQueuePair, out);
        }
        if datagram.deth.qkey != home.qkey {
            return self.drop_frame(DropReason::WrongKey, out);
        }
        let payload = datagram.payload;
        match RawMessage::parse(payload) {
            // The common case.
            Ok(raw) if raw.kind == Kind::Traverse => match raw.traverse() {
                Ok(_) if raw.header.response => self.drop_frame(DropReason::Response, out),
                // Only index switches that the control plane named may lead traversals here (PROTOCOL 7.3).
                Ok(traverse) if port == Port::SWITCH || self.is_index_switch(port) => {
                    self.on_traverse_request(now, &raw.header, &traverse, out)
                }
                Ok(_) => self.drop_frame(DropReason::WrongPort, out),
                Err(_) => self.drop_frame(DropReason::Malformed, out),
            },
            Ok(raw) => self.on_message(now, port, &raw, out),
            Err(_) => self.on_numbered(now, port, payload, out),
        }
    }

    /// Returns true for an index switch that the control plane named.
    fn is_index_switch(&self, port: Port) -> bool {
        port.as_index().is_some() && self.peers.get(port).is_some()
    }

    /// Handles a message other than a traversal.
    #[inline(never)]
    fn on_message(&mut self, now: Instant, port: Port, raw: &RawMessage<'_>, out: &mut Outbox) {
        let (header, Ok(body)) = (raw.header, raw.body()) else {
            return self.drop_frame(DropReason::Malformed, out);
        };
        if header.response {
            return self.drop_frame(DropReason::Response, out);
        }
        match (port, body) {
            (Port::CONTROL, Body::Update(updates)) => self.on_updates(now, &header, &updates, out),
            (Port::SWITCH, Body::RegionRead { .. } | Body::RegionWrite { .. } | Body::Batch(_)) => {
                self.on_request(now, &Message { header, body }, out);
            }
            (port, Body::Batch(_)) if self.is_index_switch(port) => {
                self.on_request(now, &Message { header, body }, out);
            }
            _ => self.drop_frame(DropReason::WrongPort, out),
        }
    }

    /// Handles a message about directory, pages, moves or files; other payloads are malformed.
    #[inline(never)]
    fn on_numbered(&mut self, now: Instant, port: Port, payload: &[u8], out: &mut Outbox) {
        if DirectoryMessage::is(payload) {
            self.on_directory_message(port, payload, out);
        } else if PageMessage::is(payload) {
            self.on_page_message(port, payload, out);
        } else if MoveMessage::is(payload) {
            self.on_move_message(now, port, payload, out);
        } else if FileMessage::is(payload) {
            self.on_file_message(port, payload, out);
        } else {
            self.drop_frame(DropReason::Malformed, out);
        }
    }

    #[cold]
    pub(crate) fn drop_frame(&mut self, reason: DropReason, out: &mut Outbox) {
        self.stats.dropped = self.stats.dropped.wrapping_add(1);
        out.note(Note::Dropped(reason));
    }
}

impl<S: Store, C: Compile> Machine for MemNode<S, C> {
    type In = FileReply;
    type Out = Out;
    type Note = Note;

    fn handle(&mut self, now: Instant, event: Event<'_, FileReply>, out: &mut Outbox) {
        if self.halted().is_some() {
            return;
        }
        match event {
            Event::Frame { port, bytes } => self.on_frame(now, port, bytes, out),
            Event::Wake => {
                self.push_again(now, out);
                self.turn(out);
            }
            Event::Local(done) => self.on_file_done(done, out),
        }
    }

    /// Returns the time of the next turn of traversals, or of the next retransmission of a pushed page.
    fn next_wake(&self) -> Option<Instant> {
        if self.halted().is_some() {
            return None;
        }
        let turn = (!self.workspaces.is_empty()).then_some(self.turn_due);
        turn.into_iter().chain(self.moves.due()).min()
    }

    fn halted(&self) -> Option<Halt> {
        self.inbox.halted()
    }

    fn check(&self) {
        self.regions.check();
        self.peers.check();
        self.programs.check();
        self.workspaces.check();
        self.answers.check();
        self.pages.check();
        self.moves.check();
        self.files.check();
        assert!(self.queue_pairs.len() <= self.config.budget.queue_pairs, "more connections than the budget");
        assert!(
            !self.queue_pairs.contains_key(&self.config.home.endpoint.qpn),
            "the datagrams' queue pair is taken"
        );
        for responder in self.queue_pairs.values() {
            responder.check();
        }
    }
}
