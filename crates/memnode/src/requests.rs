//! The hosts' requests, forwarded by the switch: region reads and writes, and traversals.
//!
//! The switch wrote domain and origin into the header. The node checks the access again with its own tables
//! and answers the host directly (PULSE 5).

use crate::answers::{AnswerSink, Answers};
use crate::node::{MemNode, Outbox};
use crate::note::{DropReason, Note};
use crate::peers::Peers;
use crate::programs::{CacheLookup, Compile, Logic};
use crate::regions::View;
use crate::store::Store;
use crate::workspaces::{Delivery, Stop, Workspace};
use alloc::vec::Vec;
use farmem_machine::{Instant, Port};
use farmem_transport::ud::{self, RequestState};
use farmem_transport::{Access, AccessError, Memory};
use farmem_traversal::End;
use farmem_wire::message::{REGION_LEN, Traverse};
use farmem_wire::{Body, Header, Message, Perm, Pmtu, Status, VirtAddr};

/// Most hosts whose writing requests are remembered; one more replaces the host that was silent longest.
pub const DEDUP_HOSTS_MAX: usize = 4096;
/// Writing requests (region writes and storing traversals) that are remembered for each host. A request that
/// this many later ones overtook is dropped when a copy arrives. Its host gives it up, so it is not executed
/// twice.
pub const DEDUP_DEPTH: usize = 1024;
/// Memory for the remembered answers: 256 MiB in all, and 128 KiB guaranteed for each host. This holds 1024
/// answers to region writes, or to traversals with small scratch pads. Large pads take 4 MiB per host.
pub const DEDUP_ROOM: ud::AnswerBudget = ud::AnswerBudget { all: 256 << 20, share: 128 << 10 };

/// Returns the most bytes of a region read whose answer fits a datagram of `pmtu` bytes.
#[must_use]
pub const fn region_read_len_max(pmtu: Pmtu) -> usize {
    pmtu.bytes() - Header::LEN - REGION_LEN
}

impl<S: Store, C: Compile> MemNode<S, C> {
    /// Serves a region request or a batch for the host that the switch named (PROTOCOL 7.18).
    ///
    /// # Panics
    /// If the message is another one.
    pub(crate) fn on_request(&mut self, now: Instant, message: &Message<'_>, out: &mut Outbox) {
        let header = &message.header;
        let Some(origin) = self.peers.host(header.origin) else {
            return self.drop_frame(DropReason::UnknownPeer, out);
        };
        match message.body {
            Body::RegionRead { addr, len, .. } => self.on_region_read(origin, header, addr, len, out),
            Body::RegionWrite { addr, data, .. } => self.on_region_write(origin, header, addr, data, out),
            Body::Batch(batch) => {
                for pair in batch.pairs() {
                    let header = Header { request: header.request.with_counter(pair.counter), ..*header };
                    self.on_traverse(now, origin, &header, &batch.traverse(&pair), Delivery::InBatch, out);
                }
                self.answers.flush(&mut self.peers, out);
            }
            Body::Traverse(_) | Body::Update(_) => unreachable!("neither is served here"),
        }
    }

    /// Serves a traversal that arrived in a message of its own.
    #[inline]
    pub(crate) fn on_traverse_request(
        &mut self,
        now: Instant,
        header: &Header,
        request: &Traverse<'_>,
        out: &mut Outbox,
    ) {
        let Some(origin) = self.peers.host(header.origin) else {
            return self.drop_frame(DropReason::UnknownPeer, out);
        };
        self.on_traverse(now, origin, header, request, Delivery::Single, out);
    }

    fn on_region_read(
        &mut self,
        origin: ud::Peer,
        header: &Header,
        addr: VirtAddr,
        len: u32,
        out: &mut Outbox,
    ) {
        self.stats.region_reads = self.stats.region_reads.wrapping_add(1);
        let view = View::new(&self.regions, &mut self.store);
        self.buffer.clear();
        let allowed = if len as usize > region_read_len_max(self.config.pmtu) {
            Err(Status::Malformed)
        } else {
            check(&view, header, addr, len, Perm::Read)
        };
        if allowed == Err(Status::NotMapped) && !self.regions.is_local(addr) {
            return self.drop_frame(DropReason::NotHere, out);
        }
        if allowed.is_ok() {
            view.read(addr, len, &mut self.buffer);
        }
        if let Some(page) = view.lent.get() {
            self.peers.visit(page, out);
        }
        let status = allowed.err().unwrap_or(Status::Ok);
        let body = Body::RegionRead { addr, len, data: &self.buffer };
        let answer = Message { header: header.answer(status), body };
        out.note(Note::Answered(body.kind(), status));
        self.peers.send(origin, &answer, out);
    }

    /// Executes a region write once, however often it arrives (PROTOCOL 7.20).
    fn on_region_write(
        &mut self,
        origin: ud::Peer,
        header: &Header,
        addr: VirtAddr,
        data: &[u8],
        out: &mut Outbox,
    ) {
        // Requests are remembered by the host in their ids: one host must not use up the ids of another.
        let foreign = header.request.host() != header.origin;
        if !foreign {
            match self.dedup.lookup(header.request) {
                RequestState::New => {}
                RequestState::Answered(answer) => {
                    out.note(Note::DuplicateWrite);
                    return self.peers.send_kept(origin, answer, out);
                }
                RequestState::UnderWay => return self.drop_frame(DropReason::UnderWay, out),
                RequestState::Forgotten => return self.drop_frame(DropReason::Forgotten, out),
            }
        }
        if self.regions.is_moving(addr) {
            return self.drop_frame(DropReason::Moving, out);
        }
        self.stats.region_writes = self.stats.region_writes.wrapping_add(1);
        let mut view = View::new(&self.regions, &mut self.store);
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let allowed =
            if foreign { Err(Status::Malformed) } else { check(&view, header, addr, len, Perm::ReadWrite) };
        // The switch routed the request here, so the address moved away a moment ago. A refusal would be
        // final, although a copy may be executed at the new node.
        if allowed == Err(Status::NotMapped) && !self.regions.is_local(addr) {
            return self.drop_frame(DropReason::NotHere, out);
        }
        if allowed.is_ok() {
            view.write(addr, data);
        }
        let status = allowed.err().unwrap_or(Status::Ok);
        let body = Body::RegionWrite { addr, len, data: &[] };
        self.buffer.clear();
        Message { header: header.answer(status), body }.emit(&mut self.buffer);
        if !foreign {
            // Refusals are remembered too: a late copy, after a grant, must not write although the host
            // believes the write refused.
            self.dedup.remember(header.request, addr.0, &self.buffer);
        }
        out.note(Note::Answered(body.kind(), status));
        self.peers.send_kept(origin, &self.buffer, out);
    }

    /// Admits a traversal; the next turn runs it. One that cannot run is answered in its present state.
    #[inline(always)]
    fn on_traverse(
        &mut self,
        now: Instant,
        origin: ud::Peer,
        header: &Header,
        request: &Traverse<'_>,
        delivery: Delivery,
        out: &mut Outbox,
    ) {
        let stores = request.program.stores();
        // As for region writes: one host must not use up the ids of another.
        let foreign = stores && header.request.host() != header.origin;
        if stores && !foreign && self.is_repeated(origin, header, request, out) {
            return;
        }
        self.stats.visits = self.stats.visits.wrapping_add(1);
        let was_empty = self.workspaces.is_empty();
        let admitted =
            if foreign { Err(Status::Malformed) } else { self.admit(now, header, request, delivery, out) };
        match admitted {
            // The turn that is already due takes this traversal along.
            Ok(()) if was_empty => self.turn_due = now,
            Ok(()) => {}
            Err(status) => self.answer_refused(status, origin, header, request, delivery, out),
        }
    }

    /// Answers a traversal that cannot run.
    #[cold]
    fn answer_refused(
        &mut self,
        status: Status,
        origin: ud::Peer,
        header: &Header,
        request: &Traverse<'_>,
        delivery: Delivery,
        out: &mut Outbox,
    ) {
        let body = Body::Traverse(Traverse { code: &[], ..*request });
        let answer = Message { header: header.answer(status), body };
        if request.program.stores() && header.request.host() == header.origin {
            // A copy that arrives when the program is known, or when there is room, must not run beside the
            // host's next request.
            keep(&mut self.dedup, &mut self.buffer, header, &answer);
        }
        out.note(Note::Answered(delivery.kind(), status));
        match delivery {
            Delivery::Single => self.peers.send(origin, &answer, out),
            Delivery::InBatch => {
                let sink = AnswerSink { pmtu: self.config.pmtu, peers: &mut self.peers, out };
                self.answers.add(origin, header, status, request, sink);
            }
        }
    }

    /// Returns true if a copy of this storing traversal was here before, in this visit or before a later one.
    /// The outcome of the last visit is then sent again to its receiver (PROTOCOL 7.36). A new traversal is
    /// recorded as in progress.
    #[inline(never)]
    fn is_repeated(
        &mut self,
        origin: ud::Peer,
        header: &Header,
        request: &Traverse<'_>,
        out: &mut Outbox,
    ) -> bool {
        let Traverse { cur_ptr, code, .. } = *request;
        match self.dedup.lookup_visit(header.request, header.hops) {
            // Copies will go to the node that gets the bytes, which would not know a record made here.
            RequestState::New if self.regions.is_moving(cur_ptr) => self.drop_frame(DropReason::Moving, out),
            // The switch routed it here, so its bytes moved away a moment ago. Forwarding it would be a later
            // visit to the node that has them now, which may have executed this one.
            RequestState::New if !self.regions.is_local(cur_ptr) => self.drop_frame(DropReason::NotHere, out),
            RequestState::New => {
                self.dedup.begin(header.request, header.hops, cur_ptr.0);
                return false;
            }
            RequestState::Answered(kept) => {
                let mut message = Message::parse(kept).expect("what the node sent is a message");
                let to = if message.header.response { Some(origin) } else { self.peers.get(Port::SWITCH) };
                let Some(to) = to else {
                    self.drop_frame(DropReason::UnknownPeer, out);
                    return true;
                };
                if let Body::Traverse(state) = &mut message.body
                    && !message.header.response
                    && kept.len() + code.len() <= self.config.pmtu.bytes()
                {
                    // This copy's code: the next node may lack the program, if the first copy was lost there.
                    state.code = code;
                }
                out.note(Note::DuplicateTraversal);
                self.peers.send(to, &message, out);
            }
            RequestState::UnderWay => self.drop_frame(DropReason::UnderWay, out),
            RequestState::Forgotten => self.drop_frame(DropReason::Forgotten, out),
        }
        true
    }

    /// Finds the program, and a workspace or a place in the queue (PULSE 4.2, scheduler, rule 1).
    #[inline(always)]
    fn admit(
        &mut self,
        now: Instant,
        header: &Header,
        request: &Traverse<'_>,
        delivery: Delivery,
        out: &mut Outbox,
    ) -> Result<(), Status> {
        if self.workspaces.is_full() {
            return Err(Status::Busy);
        }
        let (known, lookup) = self.programs.find(now, header.domain, request.program, request.code)?;
        if lookup != CacheLookup::Hit {
            if lookup == CacheLookup::Replaced {
                self.workspaces.release_program(known);
                out.note(Note::ProgramForgotten);
            }
            out.note(Note::ProgramLearned);
            if known.logic.fell_back() {
                out.note(Note::ProgramInterpreted);
            }
        }
        if self.workspaces.take(known, header, request, delivery) { Ok(()) } else { Err(Status::Malformed) }
    }

    /// Gives the traversals in progress a turn. Each one that ends is answered, or continues elsewhere
    /// through the switch.
    pub(crate) fn turn(&mut self, out: &mut Outbox) {
        let Self { config, regions, store, peers, dedup, buffer, workspaces, answers, stats, .. } = self;
        let (continued, dropped) = (0, 0);
        let mut exit = Exit { pmtu: config.pmtu, peers, dedup, buffer, answers, out, continued, dropped };
        let iterations = workspaces.turn(regions, store, |workspace, end| exit.ended(workspace, end));
        exit.answers.flush(exit.peers, exit.out);
        stats.iterations = stats.iterations.wrapping_add(iterations);
        stats.continued = stats.continued.wrapping_add(exit.continued);
        stats.dropped = stats.dropped.wrapping_add(exit.dropped);
    }
}

/// The exit of traversals that end in one turn.
struct Exit<'a> {
    pmtu: Pmtu,
    peers: &'a mut Peers,
    dedup: &'a mut ud::Dedup,
    buffer: &'a mut Vec<u8>,
    answers: &'a mut Answers,
    out: &'a mut Outbox,
    continued: u64,
    dropped: u64,
}

impl Exit<'_> {
    #[inline(always)]
    fn ended<L: Logic>(&mut self, workspace: &Workspace<L>, end: End<Stop>) {
        match end {
            End::Fetch(stop) => self.stopped(workspace, stop),
            End::Return => self.answer(workspace, Status::Ok),
            End::IterationLimit => self.answer(workspace, Status::IterationLimit),
            End::Fault => self.answer(workspace, Status::ProgramFault),
        }
    }

    /// Handles a next pointer whose window cannot be loaded here.
    #[cold]
    fn stopped<L: Logic>(&mut self, workspace: &Workspace<L>, stop: Stop) {
        match stop {
            Stop::Elsewhere if workspace.header().hops > 0 => self.leave(workspace),
            Stop::Elsewhere => self.answer(workspace, Status::HopLimit),
            Stop::Refused(refusal) => {
                let known = self.peers.host(workspace.header().origin).is_some();
                if let AccessError::Lent(page) = refusal
                    && known
                {
                    self.peers.visit(page, self.out);
                }
                self.answer(workspace, status_of(refusal));
            }
        }
    }

    /// Sends the outcome to the host.
    #[inline(always)]
    fn answer<L: Logic>(&mut self, workspace: &Workspace<L>, status: Status) {
        let header = workspace.header();
        let Some(origin) = self.peers.host(header.origin) else { return self.drop_traversal() };
        let (state, delivery) = (workspace.traverse(), workspace.delivery());
        let answer = header.answer(status);
        if workspace.stores() {
            self.remember(workspace, &Message { header: answer, body: Body::Traverse(state) });
        }
        self.out.note(Note::Answered(delivery.kind(), status));
        match delivery {
            Delivery::Single => self.peers.send_traverse(origin, &answer, &state, self.out),
            Delivery::InBatch => {
                let sink = AnswerSink { pmtu: self.pmtu, peers: self.peers, out: self.out };
                self.answers.add(origin, header, status, &state, sink);
            }
        }
    }

    /// Sends the traversal back to the switch, which routes it by its next pointer (PROTOCOL 7.26).
    fn leave<L: Logic>(&mut self, workspace: &Workspace<L>) {
        let Some(switch) = self.peers.get(Port::SWITCH) else { return self.drop_traversal() };
        let state = workspace.traverse();
        if workspace.stores() {
            // Stored without the code: a copy brings its own.
            self.remember(workspace, &Message { header: *workspace.header(), body: Body::Traverse(state) });
        }
        let body = Body::Traverse(Traverse { code: workspace.code(), ..state });
        let mut message = Message { header: *workspace.header(), body };
        if message.len() > self.pmtu.bytes() {
            // The next node may know the program; if not, the host sends the code there.
            message.body = Body::Traverse(state);
        }
        self.continued += 1;
        self.out.note(Note::Continued);
        self.peers.send(switch, &message, self.out);
    }

    /// Stores the outcome of a storing visit for its copies.
    #[cold]
    fn remember<L: Logic>(&mut self, workspace: &Workspace<L>, message: &Message<'_>) {
        keep(self.dedup, self.buffer, workspace.header(), message);
    }

    /// Counts a traversal whose receiver is unknown: the host, or the switch, is no longer in the tables or
    /// never was.
    #[cold]
    fn drop_traversal(&mut self) {
        self.dropped += 1;
        self.out.note(Note::Dropped(DropReason::UnknownPeer));
    }
}

/// Stores the outcome of a visit.
fn keep(dedup: &mut ud::Dedup, buffer: &mut Vec<u8>, visit: &Header, message: &Message<'_>) {
    buffer.clear();
    message.emit(buffer);
    dedup.finish(visit.request, visit.hops, buffer);
}

/// Checks a region request. A request of no bytes is malformed, because its address could not be checked.
fn check<S: Store>(
    view: &View<'_, S>,
    header: &Header,
    addr: VirtAddr,
    len: u32,
    perm: Perm,
) -> Result<(), Status> {
    if len == 0 {
        return Err(Status::Malformed);
    }
    view.check(&Access { domain: header.domain, addr, len, perm }).map_err(status_of)
}

const fn status_of(refusal: AccessError) -> Status {
    match refusal {
        AccessError::NotMapped => Status::NotMapped,
        AccessError::NoPermission | AccessError::WrongKey(_) => Status::NoPermission,
        AccessError::OutOfBounds => Status::OutOfBounds,
        AccessError::Misaligned => Status::Misaligned,
        AccessError::Lent(_) | AccessError::Moving => Status::Lent,
        AccessError::Lost => Status::Lost,
        AccessError::Coherent => Status::Coherent,
    }
}
