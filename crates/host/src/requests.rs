//! The host's requests through the switch: region reads and writes, traversals and their continuations.
//!
//! Key type: [`Requests`]. An answer counts when it fits the outstanding request it names (PROTOCOL 5.1, 11.6): kind, place,
//! lengths, program. Retransmission and giving up are [`ud::Requester`]'s.

use crate::batches::{Batches, Open, Shared};
use crate::walk::{Carries, Walk};
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

/// The most bytes of a region read or write, at a PMTU of 1024 or more. (PROTOCOL 7.19 would allow a few more.)
pub const REGION_DATA_MAX: usize = 1024 - message::OVERHEAD - message::REGION_LEN;

/// How often one traversal is continued after a hop or visit limit before it is given up.
pub const TRAVERSALS_CONTINUED_MAX: u32 = 1 << 20;

/// How long a request waits that met a page whose latest bytes a host had (PROTOCOL 12.29): some round trips.
const LENT_WAIT: Duration = Duration::from_micros(200);
/// And how often in a row, before it is refused: together longer than a lease, after which no host has them.
const LENT_WAITS_MAX: u32 = 1 << 14;
/// How often in a row a traversal is sent again that came back from a node for want of hops, without an iteration (PROTOCOL 11.5).
pub const ASTRAY_MAX: u32 = 64;

/// What the host keeps of an outstanding request.
#[derive(Debug)]
struct Pending {
    ticket: u64,
    domain: Domain,
    kind: Kind,
    /// Times in a row that it met a page whose latest bytes a host had.
    waits: u32,
}

#[derive(Debug)]
enum Kind {
    Read {
        addr: VirtAddr,
        buf: Vec<u8>,
    },
    /// With its place among the writes under way, once it is under way.
    Write {
        addr: VirtAddr,
        buf: Vec<u8>,
        number: Option<u64>,
    },
    /// With its request's place among the writes under way, when the program stores.
    Traverse(Walk, Option<u64>),
}

impl Kind {
    fn writes(&self) -> bool {
        match self {
            Self::Read { .. } => false,
            Self::Write { .. } => true,
            Self::Traverse(walk, _) => walk.program.stores(),
        }
    }
}

/// A request under way.
#[derive(Debug)]
struct Sent {
    /// The session that it went over: it is sent again as it was, also when there is a new one by then.
    switch: ud::Peer,
    pending: Pending,
}

/// Outstanding requests and the sessions they go over.
#[derive(Debug)]
pub(crate) struct Requests {
    id: HostId,
    generation: u16,
    /// Of the last id; the first is 1, and after `ids_max` there is none (PROTOCOL 11.8).
    counter: u32,
    ids_max: u32,
    home: Qpn,
    hops_max: u8,
    /// The number of the switch's life, as far as the switch has said (PROTOCOL 6.27); 0 before.
    life: Domain,
    /// Bytes of the longest message.
    message_max: usize,
    requests_max: usize,
    sessions_max: usize,
    sessions: BTreeMap<Domain, ud::Peer>,
    writes: Writes,
    batches: Batches,
    ud: ud::Requester<Sent>,
    /// Those that are asked again, in the order of when: each waits as long.
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
            return out.note(Note::NotTaken(SetupFault::Full));
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
                let (iterations, requests, carries, in_batch) = (0, 0, Carries::Name, false);
                let mut walk =
                    Walk { program, cur_ptr, scratch, iterations, limit, requests, carries, in_batch };
                walk.begin(self.traverse_room());
                Kind::Traverse(walk, None)
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

    /// Why no datagram of ours could carry this, if none could (PROTOCOL 11.4). A program's code counts, by itself: some node does not know it yet.
    fn refusal(&self, kind: &Kind) -> Option<Failure> {
        match kind {
            Kind::Read { buf, .. } | Kind::Write { buf, .. } => {
                let max = REGION_DATA_MAX.min(self.message_max - Header::LEN - message::REGION_LEN);
                (buf.len() > max).then_some(Failure::TooLong { max })
            }
            Kind::Traverse(walk, _) if walk.scratch.len() != walk.program.scratch_len() => {
                Some(Failure::ScratchLen { need: walk.program.scratch_len() })
            }
            Kind::Traverse(walk, _) => {
                let max = self.traverse_room();
                if walk.scratch.len() > max {
                    return Some(Failure::ScratchTooLong { max });
                }
                (walk.program.encoded().len() > max).then_some(Failure::TooLong { max })
            }
        }
    }

    /// Bytes of state and code in one datagram.
    pub(crate) const fn traverse_room(&self) -> usize {
        self.message_max - Header::LEN - Traverse::FIXED_LEN
    }

    /// Sends a request under a new id.
    fn start(&mut self, now: Instant, pending: Pending, out: &mut Sink) {
        self.start_at(now, pending, None, out);
    }

    /// Sends a request under a new id; a traversal whose pointer is at `node` when the host is woken, with others.
    fn start_at(&mut self, now: Instant, mut pending: Pending, node: Option<NodeId>, out: &mut Sink) {
        let (request, switch) = match self.admit(&mut pending) {
            Ok(admitted) => admitted,
            Err(failure) => {
                let failure = match &pending.kind {
                    // Something was done already, and how far it got is all that can be said.
                    Kind::Traverse(walk, _) if walk.requests > 0 && failure == Failure::QueueFull => {
                        Failure::Stalled { addr: walk.cur_ptr }
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

    /// Puts a traversal's request into a batch. False when it goes alone: its node is not known, or it fits no batch.
    fn gather(
        &mut self,
        now: Instant,
        request: RequestId,
        switch: ud::Peer,
        node: Option<NodeId>,
        pending: &mut Pending,
        out: &mut Sink,
    ) -> bool {
        let Kind::Traverse(walk, _) = &mut pending.kind else { return false };
        walk.in_batch = false;
        let Some(node) = node else { return false };
        let with_code = walk.carries == Carries::Code;
        let shared = Shared { switch, node, program: &walk.program, with_code };
        let pair = Pair::of(request, Status::Ok, &walk.traverse());
        if !self.batches.are_wanted() || !self.batches.fits(&shared, &pair) {
            return false;
        }
        let leaves = self.batches.add(now, &shared, request, &pair);
        walk.in_batch = true;
        if let Some(open) = leaves {
            self.leave(open, out);
        }
        true
    }

    /// Sends a batch; one of a single traversal as that traversal.
    fn leave(&mut self, open: Open, out: &mut Sink) {
        if open.count() == 1 {
            // Nothing when it is not outstanding any more.
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

    /// The header of a request of ours.
    const fn header(&self, request: RequestId) -> Header {
        Header { domain: self.life, ..Header::request(request, self.hops_max) }
    }

    /// Gives a request its id and, when it writes, its place among the writes. One that is refused uses up neither.
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
            Kind::Traverse(walk, number) => {
                if walk.program.stores() {
                    *number = Some(self.writes.begin().ok_or(Failure::QueueFull)?);
                }
                walk.requests += 1;
            }
        }
        self.counter = counter;
        Ok((RequestId::new(self.id, self.generation, counter), switch))
    }

    /// Takes the payload of a datagram that showed the host's key.
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

    /// The switch has started, and says the number of its life: what it refused for that goes again, under the id that it has, each alone (PROTOCOL 6.27). Its answer may
    /// only have been lost: then its node remembers it.
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
            self.ud.wait_anew(now, request);
        }
    }

    /// Takes a request out that an answer is for. None, and a note of why, when it is for none.
    fn asked_for(
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

    /// Takes an answer of a region.
    fn answer_region(&mut self, now: Instant, header: &Header, body: &Body<'_>, out: &mut Sink) {
        let unread = is_of_unread(header.status, body);
        let Some(mut pending) = self.asked_for(header, |kind| unread || fits(kind, body), out) else {
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

    /// Takes the answer to one traversal, which came alone or with others.
    fn answer_traverse(&mut self, now: Instant, header: &Header, state: &Traverse<'_>, out: &mut Sink) {
        let status = header.status;
        let unread = has_nothing(state) && says_unread(status);
        let fits =
            |kind: &Kind| unread || matches!(kind, Kind::Traverse(walk, _) if walk.is_answered_by(state));
        let Some(mut pending) = self.asked_for(header, fits, out) else { return };
        let Kind::Traverse(walk, number) = &mut pending.kind else {
            return self.refused(pending, status, out);
        };
        if unread {
            return self.refused(pending, status, out);
        }
        // What goes on does so under a new id, and is a new write.
        number.take().into_iter().for_each(|number| self.writes.end(number));
        if walk.carries == Carries::Introduction && status == Status::IterationLimit {
            walk.carries = Carries::NameIntroduced;
            return self.start(now, pending, out);
        }
        // Each continuation costs an iteration of the limit, so that no node can have this host ask for ever.
        let progress = state.iterations > walk.iterations;
        walk.cur_ptr = state.cur_ptr;
        walk.iterations = state.iterations;
        let (sent, zeros) = walk.scratch.split_at_mut(state.scratch.len());
        if walk.carries != Carries::Introduction {
            sent.copy_from_slice(state.scratch);
            zeros.fill(0);
        }
        self.walk_on(now, pending, status, progress, out);
    }

    /// A traversal came back: it ended, goes on, or failed (PROTOCOL 11.4, 11.5).
    fn walk_on(
        &mut self,
        now: Instant,
        mut pending: Pending,
        status: Status,
        progress: bool,
        out: &mut Sink,
    ) {
        let room = self.traverse_room();
        let Kind::Traverse(walk, _) = &mut pending.kind else { unreachable!("called for traversals") };
        let (cur_ptr, iterations, requests) = (walk.cur_ptr, walk.iterations, walk.requests);
        let over = Traversed { returned: status == Status::Ok, cur_ptr, iterations, requests };
        match status {
            Status::Ok => self.end(pending, Ok(Answer::Traversed(over)), out),
            Status::IterationLimit if iterations >= walk.limit => {
                self.end(pending, Ok(Answer::Traversed(over)), out);
            }
            Status::IterationLimit | Status::HopLimit if progress && requests < TRAVERSALS_CONTINUED_MAX => {
                walk.begin(room);
                pending.waits = 0;
                out.note(Note::Continued(status));
                self.start(now, pending, out);
            }
            // It came to a node that the address had just left, and had no hop to follow it (PROTOCOL 8.40).
            Status::HopLimit if !progress && pending.waits < ASTRAY_MAX => self.wait(now, pending, out),
            Status::IterationLimit | Status::HopLimit => {
                self.end(pending, Err(Failure::Stalled { addr: cur_ptr }), out);
            }
            Status::Lent => {
                pending.waits = if progress { 0 } else { pending.waits };
                self.wait(now, pending, out);
            }
            // Nothing was done with the whole batch, perhaps for the sake of another one in it.
            Status::Apart if walk.in_batch => self.start(now, pending, out),
            // A node asks once. When it got the code, another one asks, which the traversal reached without it.
            Status::UnknownProgram
                if walk.carries == Carries::Name || progress && requests < TRAVERSALS_CONTINUED_MAX =>
            {
                walk.introduce(room);
                out.note(Note::SentCode);
                self.start(now, pending, out);
            }
            _ => self.refused(pending, status, out),
        }
    }

    /// Asks again in a moment: a host is writing back what would be read (PROTOCOL 12.29), or it is moving.
    fn wait(&mut self, now: Instant, mut pending: Pending, out: &mut Sink) {
        if pending.waits >= LENT_WAITS_MAX {
            return self.refused(pending, Status::Lent, out);
        }
        pending.waits += 1;
        out.note(Note::Waits);
        self.later.push_back((now + LENT_WAIT, pending));
    }

    /// Gives everything under way up.
    pub(crate) fn end_all(&mut self, out: &mut Sink) {
        while let Some(Expired { context, .. }) = self.ud.give_up() {
            out.note(Note::GivenUp);
            self.end(context.pending, Err(Failure::NoAnswer), out);
        }
        while let Some((_, pending)) = self.later.pop_front() {
            out.note(Note::GivenUp);
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
            out.note(Note::GivenUp);
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

    /// As if so many ids were used up, for tests that have not the time.
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
            Kind::Traverse(walk, _) => walk.cur_ptr,
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
            Kind::Traverse(walk, number) => {
                number.into_iter().for_each(|number| self.writes.end(number));
                walk.scratch
            }
        };
        out.local(Out::Done(Done { ticket: pending.ticket, result, buf }));
    }
}

/// Sends a request alone, with the same bytes each time but for the flag of those that go again and the switch's life (PROTOCOL 5.2).
fn send(home: Qpn, header: Header, sent: &Sent, out: &mut Sink) {
    let body = match &sent.pending.kind {
        Kind::Read { addr, buf } => Body::RegionRead { addr: *addr, len: len32(buf), data: &[] },
        Kind::Write { addr, buf, .. } => Body::RegionWrite { addr: *addr, len: len32(buf), data: buf },
        Kind::Traverse(walk, _) => Body::Traverse(walk.traverse()),
    };
    ud::send(out, sent.switch, home, Psn::new(header.request.counter()), &Message { header, body });
}

/// True when the answer of a region has the kind, the place and the lengths that its request asked for.
fn fits(kind: &Kind, body: &Body<'_>) -> bool {
    match (kind, body) {
        (Kind::Read { addr, buf }, Body::RegionRead { addr: at, len, .. })
        | (Kind::Write { addr, buf, .. }, Body::RegionWrite { addr: at, len, .. }) => {
            at == addr && *len == len32(buf)
        }
        _ => false,
    }
}

/// True for the answer to a request that could not be read: of its body nothing is left, and its kind may be lost (PROTOCOL 6.15).
fn is_of_unread(status: Status, body: &Body<'_>) -> bool {
    let nothing = match body {
        Body::RegionRead { addr, len, .. } | Body::RegionWrite { addr, len, .. } => {
            addr.is_null() && *len == 0
        }
        Body::Traverse(state) => has_nothing(state),
        Body::Batch(_) | Body::Update(_) => false,
    };
    nothing && says_unread(status)
}

/// True when nothing is left of a traversal.
fn has_nothing(state: &Traverse<'_>) -> bool {
    state.scratch.is_empty() && state.program == ProgramHash::default()
}

/// True when a request that could not be read ends so.
const fn says_unread(status: Status) -> bool {
    matches!(status, Status::Malformed | Status::Version | Status::Unsupported)
}

/// The length of what [`Requests::refusal`] let through.
fn len32(buf: &[u8]) -> u32 {
    u32::try_from(buf.len()).expect("a region of one datagram")
}
