//! The hosts' requests, as the switch passes them on: region reads and writes, and traversals.
//!
//! The switch wrote domain and origin into the header; the node checks the access once more against its own tables and answers
//! the host itself (PULSE 5).

use crate::answers::Answers;
use crate::node::{MemNode, Outbox};
use crate::note::{DropReason, Note};
use crate::peers::Peers;
use crate::programs::{Compile, Learned, Logic};
use crate::regions::View;
use crate::store::Store;
use crate::workspaces::{Delivery, Stop, Workspace};
use alloc::vec::Vec;
use farmem_machine::{Instant, Port};
use farmem_transport::ud::{self, Seen};
use farmem_transport::{Access, AccessError, Memory};
use farmem_traversal::End;
use farmem_wire::message::{REGION_LEN, Traverse};
use farmem_wire::{Body, Header, Message, Perm, Pmtu, Status, VirtAddr};

/// Hosts whose requests that write are remembered; beyond that the one silent longest is forgotten.
pub const DEDUP_HOSTS_MAX: usize = 4096;
/// Requests that write (region writes, and traversals of programs that store) remembered for each host. One that this many later ones
/// have overtaken is dropped when it comes (again): its host gives it up rather than have it executed twice.
pub const DEDUP_DEPTH: usize = 1024;
/// Memory for those answers: 256 MiB, and 128 KiB for each host in any case, which is enough for 1024 answers to region writes, or to traversals with small
/// scratch pads. A large pad in each makes 4 MiB a host.
pub const DEDUP_ROOM: ud::Room = ud::Room { all: 256 << 20, share: 128 << 10 };

/// The most bytes one region read may ask for: its answer fits one datagram of `pmtu` bytes.
#[must_use]
pub const fn region_read_len_max(pmtu: Pmtu) -> usize {
    pmtu.bytes() - Header::LEN - REGION_LEN
}

impl<S: Store, C: Compile> MemNode<S, C> {
    /// Serves a request for the host that the switch named (PROTOCOL 7.18): a region's, or a batch.
    ///
    /// # Panics
    /// For another one.
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

    /// Takes a traversal in that came by itself.
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

    /// Executes a write once, however often it comes (PROTOCOL 7.20).
    fn on_region_write(
        &mut self,
        origin: ud::Peer,
        header: &Header,
        addr: VirtAddr,
        data: &[u8],
        out: &mut Outbox,
    ) {
        // Ids are remembered by the host in them: one host must not answer or use up the ids of another.
        let foreign = header.request.host() != header.origin;
        if !foreign {
            match self.dedup.look(header.request) {
                Seen::New => {}
                Seen::Answered(answer) => {
                    out.note(Note::DuplicateWrite);
                    return self.peers.send_kept(origin, answer, out);
                }
                Seen::UnderWay => return self.drop_frame(DropReason::UnderWay, out),
                Seen::Forgotten => return self.drop_frame(DropReason::Forgotten, out),
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
        // The switch sent it here, so the address was here until a moment ago. A refusal would be the last word of it, and a copy may be executed
        // where the bytes are now.
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
            // A refusal too: a copy of it that comes late, after a grant, must not write what the host believes refused.
            self.dedup.remember(header.request, addr.0, &self.buffer);
        }
        out.note(Note::Answered(body.kind(), status));
        self.peers.send_kept(origin, &self.buffer, out);
    }

    /// Takes a traversal in: the next turn runs it. One that cannot be run is answered as it came.
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
        // As for region writes: one host must not answer or use up the ids of another.
        let foreign = stores && header.request.host() != header.origin;
        if stores && !foreign && self.came_before(origin, header, request, out) {
            return;
        }
        self.stats.visits = self.stats.visits.wrapping_add(1);
        let was_empty = self.workspaces.is_empty();
        let admitted =
            if foreign { Err(Status::Malformed) } else { self.admit(now, header, request, delivery, out) };
        match admitted {
            // The turn that is due already takes this one along.
            Ok(()) if was_empty => self.turn_due = now,
            Ok(()) => {}
            Err(status) => self.not_admitted(status, origin, header, request, delivery, out),
        }
    }

    /// Answers a traversal that cannot be run.
    #[cold]
    fn not_admitted(
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
            // A copy that comes when the program is known, or there is room, must not run what the host goes on with.
            keep(&mut self.dedup, &mut self.buffer, header, &answer);
        }
        out.note(Note::Answered(delivery.kind(), status));
        match delivery {
            Delivery::Single => self.peers.send(origin, &answer, out),
            Delivery::InBatch => {
                let way = (self.config.pmtu, &mut self.peers, out);
                self.answers.add(origin, header, status, request, way);
            }
        }
    }

    /// True for a traversal that stores and was here before, in this visit or, as a copy, before a later one: what came of the last visit is
    /// sent again, to whom it was sent (PROTOCOL 7.36). One that was not is remembered as under way.
    #[inline(never)]
    fn came_before(
        &mut self,
        origin: ud::Peer,
        header: &Header,
        request: &Traverse<'_>,
        out: &mut Outbox,
    ) -> bool {
        let Traverse { cur_ptr, code, .. } = *request;
        match self.dedup.look_visit(header.request, header.hops) {
            // Its copies will go to where the bytes are by then; what was remembered of it here would not be known there.
            Seen::New if self.regions.is_moving(cur_ptr) => self.drop_frame(DropReason::Moving, out),
            // The switch sent it here, so its bytes were here until a moment ago. Sent on it would be a later visit to the node that has them now, and
            // perhaps has executed this one.
            Seen::New if !self.regions.is_local(cur_ptr) => self.drop_frame(DropReason::NotHere, out),
            Seen::New => {
                self.dedup.begin(header.request, header.hops, cur_ptr.0);
                return false;
            }
            Seen::Answered(kept) => {
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
                    // The code that this copy brought: perhaps the node where the first one was lost has not seen it.
                    state.code = code;
                }
                out.note(Note::DuplicateTraversal);
                self.peers.send(to, &message, out);
            }
            Seen::UnderWay => self.drop_frame(DropReason::UnderWay, out),
            Seen::Forgotten => self.drop_frame(DropReason::Forgotten, out),
        }
        true
    }

    /// Finds the program and a workspace, or a place to wait for one (PULSE 4.2, scheduler, rule 1).
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
        let (known, learned) = self.programs.find(now, header.domain, request.program, request.code)?;
        if learned != Learned::Known {
            if learned == Learned::Replaced {
                self.workspaces.let_go(known);
                out.note(Note::ProgramForgotten);
            }
            out.note(Note::ProgramLearned);
            if known.logic.fell_back() {
                out.note(Note::ProgramInterpreted);
            }
        }
        if self.workspaces.take(known, header, request, delivery) { Ok(()) } else { Err(Status::Malformed) }
    }

    /// Gives the traversals that are under way a turn. Each that ends is answered, or goes on elsewhere by way of the switch.
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

/// The way out for the traversals that end in one turn.
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

    /// The next pointer's window cannot be loaded here.
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

    /// Tells the host how it ended here.
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
                self.answers.add(origin, header, status, &state, (self.pmtu, self.peers, self.out));
            }
        }
    }

    /// Sends the traversal back to the switch, which routes it by its next pointer (PROTOCOL 7.26).
    fn leave<L: Logic>(&mut self, workspace: &Workspace<L>) {
        let Some(switch) = self.peers.get(Port::SWITCH) else { return self.drop_traversal() };
        let state = workspace.traverse();
        if workspace.stores() {
            // Without the code: a copy brings its own.
            self.remember(workspace, &Message { header: *workspace.header(), body: Body::Traverse(state) });
        }
        let body = Body::Traverse(Traverse { code: workspace.code(), ..state });
        let mut message = Message { header: *workspace.header(), body };
        if message.len() > self.pmtu.bytes() {
            // The next node may know the program; if it does not, the host sends the code there.
            message.body = Body::Traverse(state);
        }
        self.continued += 1;
        self.out.note(Note::Continued);
        self.peers.send(switch, &message, self.out);
    }

    /// What came of a visit that stores is kept for its copies.
    #[cold]
    fn remember<L: Logic>(&mut self, workspace: &Workspace<L>, message: &Message<'_>) {
        keep(self.dedup, self.buffer, workspace.header(), message);
    }

    /// Whom to answer, or where to go on, was known when the traversal came or never was; now it is in no table.
    #[cold]
    fn drop_traversal(&mut self) {
        self.dropped += 1;
        self.out.note(Note::Dropped(DropReason::UnknownPeer));
    }
}

/// Remembers what came of a visit.
fn keep(dedup: &mut ud::Dedup, buffer: &mut Vec<u8>, visit: &Header, message: &Message<'_>) {
    buffer.clear();
    message.emit(buffer);
    dedup.finish(visit.request, visit.hops, buffer);
}

/// Whether a region request may be served. One of no bytes is no request: its address could not be checked.
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
