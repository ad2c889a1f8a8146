//! The host's requests through the switch: region reads and writes, traversals and their continuations.
//!
//! Key type: [`Requests`]. An answer is valid if its kind, address, lengths and program fit the outstanding request it names (PROTOCOL 5.1, 11.6).
//! Retransmission and expiry belong to [`ud::Requester`].

use crate::batches::{Batches, Open, Shared};
use crate::traversal::{ProgramForm, Traversal};
use crate::writes::Writes;
use crate::{Answer, Config, Done, Failure, Note, Op, Out, SetupFault, Sink, Traversed};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use farmem_machine::{Duration, Instant};
use farmem_transport::ud::{self, Expired};
use farmem_wire::{
    Body, Domain, Header, HostId, Message, NodeId, ProgramHash, Psn, Qpn, RequestId, Status, VirtAddr,
    message,
};
use message::{Pair, Traverse};

/// Maximum number of bytes of a region read or write, at a PMTU of 1024 or more. (PROTOCOL 7.19 would allow a few more.)
pub const REGION_DATA_MAX: usize = 1024 - message::OVERHEAD - message::REGION_LEN;

/// Maximum number of continuations of one traversal after a hop or iteration limit.
pub const TRAVERSALS_CONTINUED_MAX: u32 = 1 << 20;

/// Wait before a request is sent again that met a page whose latest bytes a host holds (PROTOCOL 12.29): some round trips.
const HELD_PAGE_WAIT: Duration = Duration::from_micros(200);
/// Maximum number of consecutive such waits. Together they exceed a lease, after which no host holds the bytes.
const HELD_PAGE_WAITS_MAX: u32 = 1 << 14;
/// Maximum number of consecutive retries of a traversal that a node returned at the hop limit without an iteration (PROTOCOL 11.5).
pub const HOP_RETRIES_MAX: u32 = 64;

/// The host's record of an outstanding request.
#[derive(Debug)]
struct Pending {
    ticket: u64,
    domain: Domain,
    kind: Kind,
    /// Number of consecutive answers that a host holds the latest bytes.
    waits: u32,
}

#[derive(Debug)]
enum Kind {
    Read {
        addr: VirtAddr,
        buf: Vec<u8>,
    },
    /// `number` is the request's place among the writes in flight, once sent.
    Write {
        addr: VirtAddr,
        buf: Vec<u8>,
        number: Option<u64>,
    },
    /// The second field is the request's place among the writes in flight, if the program stores.
    Traverse(Traversal, Option<u64>),
}

impl Kind {
    fn writes(&self) -> bool {
        match self {
            Self::Read { .. } => false,
            Self::Write { .. } => true,
            Self::Traverse(traversal, _) => traversal.program.stores(),
        }
    }
}

/// A request in flight.
#[derive(Debug)]
struct Sent {
    /// The request's session. Retransmissions use it even if the domain has a newer session.
    switch: ud::Peer,
    pending: Pending,
}

/// Outstanding requests and their sessions.
#[derive(Debug)]
pub(crate) struct Requests {
    id: HostId,
    generation: u16,
    /// Counter of the last id. The first id is 1, and after `ids_max` there is none (PROTOCOL 11.8).
    counter: u32,
    ids_max: u32,
    home: Qpn,
    hops_max: u8,
    /// The number of the switch's incarnation, as the switch last stated it (PROTOCOL 6.27); 0 if unknown.
    life: Domain,
    /// Maximum message length in bytes.
    message_max: usize,
    requests_max: usize,
    sessions_max: usize,
    sessions: BTreeMap<Domain, ud::Peer>,
    writes: Writes,
    batches: Batches,
    ud: ud::Requester<Sent>,
    /// Requests to be sent again, sorted by time: all wait equally long.
    later: VecDeque<(Instant, Pending)>,
}

impl Requests {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            id: config.id,
            generation: config.generation,
            counter: 0,
            ids_max: config.ids_max,
            home: config.home.qpn,
            hops_max: config.hops_max,
            life: Domain(0),
            message_max: config.pmtu.bytes(),
            requests_max: config.requests_max,
            sessions_max: config.connections_max,
            sessions: BTreeMap::new(),
            writes: Writes::default(),
            batches: Batches::new(config.pairs_max, config.pmtu),
            later: VecDeque::new(),
            ud: ud::Requester::new(config.requests_max, config.request_timeout, config.request_retries_max),
        }
    }

    pub(crate) fn session(&mut self, domain: Domain, switch: ud::Peer, out: &mut Sink) {
        if !self.sessions.contains_key(&domain) && self.sessions.len() >= self.sessions_max {
            return out.note(Note::Rejected(SetupFault::Full));
        }
        self.sessions.insert(domain, switch);
    }

    /// Begins an operation. A traversal whose pointer is at `node` may share a datagram with others.
    pub(crate) fn submit(
        &mut self,
        now: Instant,
        ticket: u64,
        domain: Domain,
        op: Op,
        node: Option<NodeId>,
        out: &mut Sink,
    ) {
        let kind = match op {
            Op::RegionRead { addr, buf } => Kind::Read { addr, buf },
            Op::RegionWrite { addr, buf } => Kind::Write { addr, buf, number: None },
            Op::Traverse { program, cur_ptr, scratch, limit } => {
                let (iterations, requests, form, in_batch) = (0, 0, ProgramForm::Name, false);
                let mut traversal =
                    Traversal { program, cur_ptr, scratch, iterations, limit, requests, form, in_batch };
                traversal.begin(self.traverse_room());
                Kind::Traverse(traversal, None)
            }
            Op::Read { .. }
            | Op::ReadTo { .. }
            | Op::WriteFrom { .. }
            | Op::Gather { .. }
            | Op::Write { .. }
            | Op::CompareSwap { .. }
            | Op::FetchAdd { .. }
            | Op::Through { .. } => {
                unreachable!("one-sided verbs go over connections")
            }
        };
        let pending = Pending { ticket, domain, kind, waits: 0 };
        match self.refusal(&pending.kind) {
            Some(failure) => self.end(pending, Err(failure), out),
            None => self.start_at(now, pending, node, out),
        }
    }

    /// Returns the reason for which no datagram can carry this operation, if any (PROTOCOL 11.4). The program's code must fit by itself, because some
    /// node does not know it yet.
    fn refusal(&self, kind: &Kind) -> Option<Failure> {
        match kind {
            Kind::Read { buf, .. } | Kind::Write { buf, .. } => {
                let max = REGION_DATA_MAX.min(self.message_max - Header::LEN - message::REGION_LEN);
                (buf.len() > max).then_some(Failure::TooLong { max })
            }
            Kind::Traverse(it, _) if it.scratch.len() != it.program.scratch_len() => {
                Some(Failure::ScratchLen { need: it.program.scratch_len() })
            }
            Kind::Traverse(traversal, _) => {
                let max = self.traverse_room();
                if traversal.scratch.len() > max {
                    return Some(Failure::ScratchTooLong { max });
                }
                (traversal.program.encoded().len() > max).then_some(Failure::TooLong { max })
            }
        }
    }

    /// Returns the bytes available for state and code in one datagram.
    pub(crate) const fn traverse_room(&self) -> usize {
        self.message_max - Header::LEN - Traverse::FIXED_LEN
    }

    /// Sends a request under a new id.
    fn start(&mut self, now: Instant, pending: Pending, out: &mut Sink) {
        self.start_at(now, pending, None, out);
    }

    /// Sends a request under a new id. A traversal whose pointer is at `node` leaves at the host's next wake, together with others.
    fn start_at(&mut self, now: Instant, mut pending: Pending, node: Option<NodeId>, out: &mut Sink) {
        let (request, switch) = match self.admit(&mut pending) {
            Ok(admitted) => admitted,
            Err(failure) => {
                let failure = match &pending.kind {
                    // Some iterations were executed already, so the caller gets the traversal's progress.
                    Kind::Traverse(it, _) if it.requests > 0 && failure == Failure::QueueFull => {
                        Failure::Stalled { addr: it.cur_ptr }
                    }
                    _ => failure,
                };
                return self.end(pending, Err(failure), out);
            }
        };
        let gathered = self.gather(now, request, switch, node, &mut pending, out);
        let sent = Sent { switch, pending };
        if !gathered {
            send(self.home, self.header(request), &sent, out);
        }
        let started = self.ud.start(now, request, sent);
        assert!(started.is_ok(), "an admitted request finds room");
    }

    /// Adds a traversal's request to a batch. Returns false if it must go alone: its node is unknown, or it fits no batch.
    fn gather(
        &mut self,
        now: Instant,
        request: RequestId,
        switch: ud::Peer,
        node: Option<NodeId>,
        pending: &mut Pending,
        out: &mut Sink,
    ) -> bool {
        let Kind::Traverse(traversal, _) = &mut pending.kind else { return false };
        traversal.in_batch = false;
        let Some(node) = node else { return false };
        let with_code = traversal.form == ProgramForm::Code;
        let shared = Shared { switch, node, program: &traversal.program, with_code };
        let pair = Pair::of(request, Status::Ok, &traversal.traverse());
        if !self.batches.are_enabled() || !self.batches.fits(&shared, &pair) {
            return false;
        }
        let leaves = self.batches.add(now, &shared, request, &pair);
        traversal.in_batch = true;
        if let Some(open) = leaves {
            self.leave(open, out);
        }
        true
    }

    /// Sends a batch. A batch of a single traversal goes out as that traversal.
    fn leave(&mut self, open: Open, out: &mut Sink) {
        if open.count() == 1 {
            // A request that is no longer outstanding is not sent.
            if let Some(sent) = self.ud.get(open.first) {
                send(self.home, self.header(open.first), sent, out);
            }
        } else {
            let (message, switch) = (open.message(self.header(open.first)), open.shared.switch);
            let psn = Psn::new(open.first.counter());
            ud::send(out, switch, self.home, psn, &message);
            out.note(Note::Batch(open.count()));
        }
        self.batches.left(open);
    }

    /// Returns the header of a request.
    const fn header(&self, request: RequestId) -> Header {
        Header { domain: self.life, ..Header::request(request, self.hops_max) }
    }

    /// Gives a request its id and, if it writes, its place among the writes. A refused request uses up neither.
    fn admit(&mut self, pending: &mut Pending) -> Result<(RequestId, ud::Peer), Failure> {
        let switch = *self.sessions.get(&pending.domain).ok_or(Failure::NoSession)?;
        if self.outstanding() >= self.requests_max {
            return Err(Failure::QueueFull);
        }
        if self.counter >= self.ids_max {
            return Err(Failure::IdsUsedUp);
        }
        let counter = self.counter + 1;
        match &mut pending.kind {
            Kind::Read { .. } => {}
            Kind::Write { number, .. } => *number = Some(self.writes.begin().ok_or(Failure::QueueFull)?),
            Kind::Traverse(traversal, number) => {
                if traversal.program.stores() {
                    *number = Some(self.writes.begin().ok_or(Failure::QueueFull)?);
                }
                traversal.requests += 1;
            }
        }
        self.counter = counter;
        Ok((RequestId::new(self.id, self.generation, counter), switch))
    }

    /// Handles the payload of a datagram that carries the host's key.
    pub(crate) fn answer(&mut self, now: Instant, payload: &[u8], out: &mut Sink) {
        let message = match Message::parse(payload) {
            Ok(message) => message,
            Err(error) => return out.note(Note::Malformed(error)),
        };
        if message.header.status == Status::OtherLife {
            return self.begin_life(now, &message, out);
        }
        match &message.body {
            Body::Traverse(state) => self.answer_traverse(now, &message.header, state, out),
            Body::Batch(batch) => {
                let batch = batch.without_code();
                for pair in batch.pairs() {
                    let status =
                        if message.header.status == Status::Ok { pair.status } else { message.header.status };
                    let request = message.header.request.with_counter(pair.counter);
                    let header = Header { status, request, ..message.header };
                    self.answer_traverse(now, &header, &batch.traverse(&pair), out);
                }
            }
            body => self.answer_region(now, &message.header, body, out),
        }
    }

    /// Records the number of the switch's new incarnation after a restart. The requests that the switch refused for this reason are sent again under
    /// their ids, each alone (PROTOCOL 6.27). If only the answer was lost, the node remembers it.
    fn begin_life(&mut self, now: Instant, message: &Message<'_>, out: &mut Sink) {
        let refused = message.header.request;
        let pairs = match &message.body {
            Body::Batch(batch) => Some(batch.without_code()),
            _ => None,
        };
        let of_batch = pairs.iter().flat_map(|batch| batch.pairs());
        let requests = of_batch.map(|pair| refused.with_counter(pair.counter));
        for request in requests.chain(pairs.is_none().then_some(refused)) {
            let Some(sent) = self.ud.get(request) else {
                out.note(Note::LateAnswer);
                continue;
            };
            if !message.header.response || !sent.pending.kind.writes() {
                out.note(Note::WrongAnswer);
                continue;
            }
            self.life = message.header.domain;
            send(self.home, Header { again: true, ..self.header(request) }, sent, out);
            self.ud.restart_timer(now, request);
        }
    }

    /// Removes the request that an answer is for. Returns `None` and adds a note if no request fits.
    fn take_pending(
        &mut self,
        header: &Header,
        fits: impl FnOnce(&Kind) -> bool,
        out: &mut Sink,
    ) -> Option<Pending> {
        let Some(sent) = self.ud.get(header.request) else {
            out.note(Note::LateAnswer);
            return None;
        };
        if !header.response || !fits(&sent.pending.kind) {
            out.note(Note::WrongAnswer);
            return None;
        }
        self.ud.finish(header.request).map(|sent| sent.pending)
    }

    /// Handles the answer to a region read or write.
    fn answer_region(&mut self, now: Instant, header: &Header, body: &Body<'_>, out: &mut Sink) {
        let unread = is_of_unread(header.status, body);
        let Some(mut pending) = self.take_pending(header, |kind| unread || fits(kind, body), out) else {
            return;
        };
        let status = header.status;
        match (&mut pending.kind, body) {
            _ if unread => self.refused(pending, status, out),
            (Kind::Read { .. }, _) if status == Status::Lent => self.wait(now, pending, out),
            (Kind::Read { buf, .. }, Body::RegionRead { data, .. }) if status == Status::Ok => {
                buf.copy_from_slice(data);
                self.end(pending, Ok(Answer::Done { old: 0 }), out);
            }
            (Kind::Write { .. }, Body::RegionWrite { .. }) if status == Status::Ok => {
                self.end(pending, Ok(Answer::Done { old: 0 }), out);
            }
            _ => self.refused(pending, status, out),
        }
    }

    /// Handles the answer to one traversal, whether it came alone or in a batch.
    fn answer_traverse(&mut self, now: Instant, header: &Header, state: &Traverse<'_>, out: &mut Sink) {
        let status = header.status;
        let unread = has_nothing(state) && means_unread(status);
        let fits = |kind: &Kind| unread || matches!(kind, Kind::Traverse(it, _) if it.is_answered_by(state));
        let Some(mut pending) = self.take_pending(header, fits, out) else { return };
        let Kind::Traverse(traversal, number) = &mut pending.kind else {
            return self.refused(pending, status, out);
        };
        if unread {
            return self.refused(pending, status, out);
        }
        // A continuation has a new id and is a new write.
        number.take().into_iter().for_each(|number| self.writes.end(number));
        if traversal.form == ProgramForm::Introduction && status == Status::IterationLimit {
            traversal.form = ProgramForm::NameIntroduced;
            return self.start(now, pending, out);
        }
        // Each continuation must consume an iteration of the limit, so that no node can make this host ask for ever.
        let progress = state.iterations > traversal.iterations;
        traversal.cur_ptr = state.cur_ptr;
        traversal.iterations = state.iterations;
        let (sent, zeros) = traversal.scratch.split_at_mut(state.scratch.len());
        if traversal.form != ProgramForm::Introduction {
            sent.copy_from_slice(state.scratch);
            zeros.fill(0);
        }
        self.continue_traversal(now, pending, status, progress, out);
    }

    /// Handles a returned traversal: ends it, continues it, or fails it (PROTOCOL 11.4, 11.5).
    fn continue_traversal(
        &mut self,
        now: Instant,
        mut pending: Pending,
        status: Status,
        progress: bool,
        out: &mut Sink,
    ) {
        let room = self.traverse_room();
        let Kind::Traverse(traversal, _) = &mut pending.kind else { unreachable!("called for traversals") };
        let (cur_ptr, iterations, requests) = (traversal.cur_ptr, traversal.iterations, traversal.requests);
        let over = Traversed { returned: status == Status::Ok, cur_ptr, iterations, requests };
        match status {
            Status::Ok => self.end(pending, Ok(Answer::Traversed(over)), out),
            Status::IterationLimit if iterations >= traversal.limit => {
                self.end(pending, Ok(Answer::Traversed(over)), out);
            }
            Status::IterationLimit | Status::HopLimit if progress && requests < TRAVERSALS_CONTINUED_MAX => {
                traversal.begin(room);
                pending.waits = 0;
                out.note(Note::Continued(status));
                self.start(now, pending, out);
            }
            // The traversal reached a node that the address had just left, and had no hop left to follow it (PROTOCOL 8.40).
            Status::HopLimit if !progress && pending.waits < HOP_RETRIES_MAX => self.wait(now, pending, out),
            Status::IterationLimit | Status::HopLimit => {
                self.end(pending, Err(Failure::Stalled { addr: cur_ptr }), out);
            }
            Status::Lent => {
                pending.waits = if progress { 0 } else { pending.waits };
                self.wait(now, pending, out);
            }
            // The node did not execute the batch, perhaps because of another traversal in it.
            Status::Apart if traversal.in_batch => self.start(now, pending, out),
            // A node asks for code once. Another node may ask if the traversal reached it without code.
            Status::UnknownProgram
                if traversal.form == ProgramForm::Name || progress && requests < TRAVERSALS_CONTINUED_MAX =>
            {
                traversal.introduce(room);
                out.note(Note::SentCode);
                self.start(now, pending, out);
            }
            _ => self.refused(pending, status, out),
        }
    }

    /// Sends the request again shortly: a host is writing the page back (PROTOCOL 12.29), or the memory is moving.
    fn wait(&mut self, now: Instant, mut pending: Pending, out: &mut Sink) {
        if pending.waits >= HELD_PAGE_WAITS_MAX {
            return self.refused(pending, Status::Lent, out);
        }
        pending.waits += 1;
        out.note(Note::Deferred);
        self.later.push_back((now + HELD_PAGE_WAIT, pending));
    }

    /// Gives up everything in flight.
    pub(crate) fn end_all(&mut self, out: &mut Sink) {
        while let Some(Expired { context, .. }) = self.ud.give_up() {
            out.note(Note::Abandoned);
            self.end(context.pending, Err(Failure::NoAnswer), out);
        }
        while let Some((_, pending)) = self.later.pop_front() {
            out.note(Note::Abandoned);
            self.end(pending, Err(Failure::NoAnswer), out);
        }
    }

    pub(crate) const fn ids_left(&self) -> u32 {
        self.ids_max - self.counter
    }

    pub(crate) fn wake(&mut self, now: Instant, out: &mut Sink) {
        while let Some(open) = self.batches.take(now) {
            self.leave(open, out);
        }
        while self.later.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, pending)) = self.later.pop_front()
        {
            self.start(now, pending, out);
        }
        let (home, hops_max, domain) = (self.home, self.hops_max, self.life);
        let again = |request| Header { again: true, domain, ..Header::request(request, hops_max) };
        while let Some(Expired { context, .. }) =
            self.ud.on_wake(now, |request, sent| send(home, again(request), sent, out))
        {
            out.note(Note::Abandoned);
            self.end(context.pending, Err(Failure::NoAnswer), out);
        }
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let later = self.later.front().map(|(at, _)| *at);
        self.ud.next_wake().into_iter().chain(later).chain(self.batches.next_wake()).min()
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.ud.len() + self.later.len()
    }

    /// Marks ids up to `counter` as used, for tests that cannot use up so many.
    #[cfg(test)]
    pub(crate) fn skip_ids_to(&mut self, counter: u32) {
        self.counter = counter;
    }

    pub(crate) fn check(&self) {
        self.ud.check();
        self.writes.check();
        self.batches.check();
        assert!(self.writes.outstanding() <= self.ud.len(), "a write under way is a request outstanding");
        assert!(self.counter <= self.ids_max, "no id beyond the last one");
        assert!(self.sessions.len() <= self.sessions_max, "more sessions than the bound");
    }

    fn refused(&mut self, pending: Pending, status: Status, out: &mut Sink) {
        let addr = match &pending.kind {
            Kind::Read { addr, .. } | Kind::Write { addr, .. } => *addr,
            Kind::Traverse(traversal, _) => traversal.cur_ptr,
        };
        self.end(pending, Err(Failure::Refused { status, addr }), out);
    }

    fn end(&mut self, pending: Pending, result: Result<Answer, Failure>, out: &mut Sink) {
        let buf = match pending.kind {
            Kind::Read { buf, .. } => buf,
            Kind::Write { buf, number, .. } => {
                number.into_iter().for_each(|number| self.writes.end(number));
                buf
            }
            Kind::Traverse(traversal, number) => {
                number.into_iter().for_each(|number| self.writes.end(number));
                traversal.scratch
            }
        };
        out.local(Out::Done(Done { ticket: pending.ticket, result, buf }));
    }
}

/// Sends a request alone. All transmissions have the same bytes, except for the retransmission flag and the switch's incarnation (PROTOCOL 5.2).
fn send(home: Qpn, header: Header, sent: &Sent, out: &mut Sink) {
    let body = match &sent.pending.kind {
        Kind::Read { addr, buf } => Body::RegionRead { addr: *addr, len: len32(buf), data: &[] },
        Kind::Write { addr, buf, .. } => Body::RegionWrite { addr: *addr, len: len32(buf), data: buf },
        Kind::Traverse(traversal, _) => Body::Traverse(traversal.traverse()),
    };
    ud::send(out, sent.switch, home, Psn::new(header.request.counter()), &Message { header, body });
}

/// Returns true if a region answer has the kind, the address and the lengths of its request.
fn fits(kind: &Kind, body: &Body<'_>) -> bool {
    match (kind, body) {
        (Kind::Read { addr, buf }, Body::RegionRead { addr: at, len, .. })
        | (Kind::Write { addr, buf, .. }, Body::RegionWrite { addr: at, len, .. }) => {
            at == addr && *len == len32(buf)
        }
        _ => false,
    }
}

/// Returns true for the answer to a request that could not be parsed. Such an answer has an empty body, and its kind may be lost (PROTOCOL 6.15).
fn is_of_unread(status: Status, body: &Body<'_>) -> bool {
    let nothing = match body {
        Body::RegionRead { addr, len, .. } | Body::RegionWrite { addr, len, .. } => {
            addr.is_null() && *len == 0
        }
        Body::Traverse(state) => has_nothing(state),
        Body::Batch(_) | Body::Update(_) => false,
    };
    nothing && means_unread(status)
}

/// Returns true if the body carries no traversal state.
fn has_nothing(state: &Traverse<'_>) -> bool {
    state.scratch.is_empty() && state.program == ProgramHash::default()
}

/// Returns true if the status means that the request could not be parsed.
const fn means_unread(status: Status) -> bool {
    matches!(status, Status::Malformed | Status::Version | Status::Unsupported)
}

/// Returns the length of a buffer that [`Requests::refusal`] accepted.
fn len32(buf: &[u8]) -> u32 {
    u32::try_from(buf.len()).expect("a region of one datagram")
}
