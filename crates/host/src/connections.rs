//! The host's reliable connections: which connection leads to an address, and which completions come back.
//!
//! A node owns the addresses of its range, except those that moved to another node ([`Routes`]). A READ or
//! WRITE that spans several nodes goes out in segments, and ends when all segments have ended. The module
//! [`crate::following`] handles operations whose connection is broken or down.
//!
//! Circle of files: `extra_connections` and `following` define methods of [`Connections`] on their topics, and the
//! completion of an operation here continues there.

use crate::control::{ControlRequest, ControlRequestKind};
use crate::extra_connections::ExtraConnections;
use crate::node_connection::{NodeConnection, QUEUED_MAX, QueuedOp, Recovery, RetryHistory, Source, overlap};
use crate::routes::Routes;
use crate::split_ops::{Segment, SplitOps};
use crate::{Answer, Connection, Done, Failure, Note, Out, Reply, SetupFault, Sink};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use farmem_machine::{Duration, Instant, Port};
use farmem_transport::rc::{self, Arrivals, Requester, Work};
use farmem_wire::gather::PIECES_MAX;
use farmem_wire::{Domain, NodeId, Packet, Qpn, VirtAddr};

/// Connections of all domains. A rack has few nodes, so a scan from the last hit finds the owner of an
/// address.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) first: Vec<NodeConnection>,
    by_qpn: BTreeMap<Qpn, usize>,
    last: usize,
    pub(crate) connections_max: usize,
    /// Additional connections to a node beside the first.
    pub(crate) extra: ExtraConnections,
    pub(crate) routes: Routes,
    /// Operations that went out in segments.
    split_ops: SplitOps,
    /// The retry history of each operation that was sent again, by operation id.
    pub(crate) histories: BTreeMap<u64, RetryHistory>,
    /// Operations that go out in segments once they are known to stay in their allocation, by the number of
    /// the question. Behind each stand the operations that were queued with it and overlap it.
    pub(crate) unproven: BTreeMap<u64, (Domain, Vec<QueuedOp>)>,
    /// Operations that overlap an earlier operation on another path, in order of arrival.
    waiting: VecDeque<(Domain, QueuedOp)>,
    /// True if a waiting operation may be able to proceed.
    pub(crate) may_dispatch: bool,
    /// The number of the last question to the control plane.
    last_question: u64,
    /// How long operations wait for a connection that cannot be set up.
    pub(crate) patience: Duration,
}

/// Retries without an answer after which the control plane is asked whether the node started again, and
/// between two such questions.
pub(crate) const DOUBT_RETRIES: u32 = 60;

impl Connections {
    pub(crate) fn new(connections_max: usize, each: usize, patience: Duration) -> Self {
        Self {
            first: Vec::new(),
            by_qpn: BTreeMap::new(),
            last: 0,
            connections_max,
            extra: ExtraConnections::new(each),
            routes: Routes::default(),
            split_ops: SplitOps::default(),
            histories: BTreeMap::new(),
            unproven: BTreeMap::new(),
            waiting: VecDeque::new(),
            may_dispatch: false,
            last_question: 0,
            patience,
        }
    }

    /// Routes these addresses to a node, or with `None` back to the node of their range.
    pub(crate) fn route(&mut self, base: VirtAddr, len: u64, node: Option<NodeId>, out: &mut Sink) {
        self.may_dispatch = true;
        let was_empty = self.routes.is_empty();
        if !self.routes.set(base.0, len, node) {
            out.note(Note::Rejected(SetupFault::Full));
        }
        if !(was_empty && self.routes.is_empty()) {
            self.mark_misdirected();
        }
    }

    /// Marks the requests in flight as possibly misdirected because memory has moved. Later operations stay
    /// behind them.
    pub(crate) fn mark_misdirected(&mut self) {
        for line in &mut self.first {
            line.misdirected = line.requester.as_ref().map_or(0, Requester::outstanding);
        }
    }

    /// Adds a connection. Connections of the same domain to the same node, or to one of its addresses, make
    /// room and their requests are flushed, because the control plane's latest word holds (PROTOCOL 11.3,
    /// 11.9). Operations that waited for it proceed.
    pub(crate) fn add(&mut self, now: Instant, setup: &Connection, out: &mut Sink) {
        self.may_dispatch = true;
        let new = NodeConnection::new(setup);
        let taken = self.extra.has(setup.rc.qpn)
            || self.by_qpn.get(&setup.rc.qpn).is_some_and(|&at| !self.first[at].gives_way_to(&new));
        let staying = self.first.iter().filter(|line| !line.gives_way_to(&new)).count() + self.extra.count();
        if taken || staying >= self.connections_max {
            return self.reject(
                now,
                setup,
                if taken { SetupFault::QueuePairTaken } else { SetupFault::Full },
                out,
            );
        }
        self.extra.forget_ending(setup.rc.qpn);
        let old: Vec<NodeConnection> = self.first.extract_if(.., |line| line.gives_way_to(&new)).collect();
        self.first.push(new);
        self.index();
        let mut queued = Vec::new();
        for line in old {
            let (domain, node) = (line.domain, line.node);
            queued.extend(self.flush(line, out));
            self.renew_extra(now, domain, node, out);
        }
        for item in queued {
            self.dispatch(now, setup.domain, item, Source::Queued, out);
        }
    }

    /// Records that a node has these addresses. Existing connections take precedence.
    pub(crate) fn know(&mut self, domain: Domain, node: NodeId, base: VirtAddr, len: u64, out: &mut Sink) {
        self.may_dispatch = true;
        let new = NodeConnection { base, len, ..NodeConnection::down(domain, node) };
        if self.first.iter().any(|line| line.node != node && line.gives_way_to(&new)) {
            return;
        }
        let has_room = self.first.len() + self.extra.count() < self.connections_max;
        match self.first.iter_mut().find(|line| line.is(domain, node)) {
            Some(line) if line.len == 0 => (line.base, line.len) = (base, len),
            Some(_) => {}
            None if has_room => self.first.push(new),
            None => out.note(Note::Rejected(SetupFault::Full)),
        }
    }

    /// Rejects a connection. The state changes only for operations that waited for it.
    pub(crate) fn reject(&mut self, now: Instant, setup: &Connection, fault: SetupFault, out: &mut Sink) {
        out.note(Note::Rejected(fault));
        let waits = |line: &NodeConnection| {
            line.is(setup.domain, setup.node) && matches!(line.recovery, Recovery::Connecting(_))
        };
        if let Some(place) = self.first.iter().position(waits) {
            self.reconnect_failed(now, place, out);
        }
    }

    /// Takes all connections down. Operations in flight or queued end as flushed.
    pub(crate) fn end_all(&mut self, out: &mut Sink) {
        let flushed = Err(Failure::Connection(rc::Failure::Flushed));
        for line in core::mem::take(&mut self.first) {
            let (domain, node, base, len) = (line.domain, line.node, line.base, line.len);
            for item in self.flush(line, out) {
                self.end(item.id, flushed, item.work, out);
            }
            self.first.push(NodeConnection { base, len, ..NodeConnection::down(domain, node) });
        }
        let unproven = core::mem::take(&mut self.unproven).into_values().flat_map(|(_, items)| items);
        let waiting = core::mem::take(&mut self.waiting).into_iter().map(|(_, item)| item);
        for item in unproven.chain(waiting) {
            self.end(item.id, flushed, item.work, out);
        }
        self.end_extra(out);
        self.index();
    }

    /// Abandons a connection and returns the operations that were queued for it.
    fn flush(&mut self, mut line: NodeConnection, out: &mut Sink) -> VecDeque<QueuedOp> {
        if let Some(requester) = &mut line.requester {
            requester.abandon(out);
            while let Some(rc::Completion { id, result, work }) = requester.pop_completion() {
                self.histories.remove(&id);
                let result = result.map(|old| Answer::Done { old }).map_err(Failure::Connection);
                self.end(id, result, work, out);
            }
        }
        line.queued
    }

    fn index(&mut self) {
        let up = self.first.iter().enumerate().filter(|(_, line)| line.requester.is_some());
        self.by_qpn = up.filter_map(|(at, line)| Some((line.qpn?, at))).collect();
        self.last = self.first.len().saturating_sub(1);
    }

    /// Submits a user's operation.
    pub(crate) fn post(&mut self, now: Instant, ticket: u64, domain: Domain, work: Work, out: &mut Sink) {
        self.dispatch(
            now,
            domain,
            QueuedOp { id: ticket, work, history: RetryHistory::default() },
            Source::User,
            out,
        );
    }

    /// Submits a gather READ: as one request if one node has all the pieces and no earlier operation is in
    /// the way, otherwise as a READ for each piece (PROTOCOL 11.15).
    pub(crate) fn gather(
        &mut self,
        now: Instant,
        ticket: u64,
        domain: Domain,
        addrs: Vec<VirtAddr>,
        buf: Vec<u8>,
        out: &mut Sink,
    ) {
        let pieces = addrs.len();
        let is_right =
            (1..=PIECES_MAX).contains(&pieces) && !buf.is_empty() && buf.len().is_multiple_of(pieces);
        let mut work = Work::Gather { addrs, buf };
        if !is_right {
            return self.end(ticket, Err(Failure::Connection(rc::Failure::InvalidRequest)), work, out);
        }
        let is_calm = |line: &NodeConnection| line.misdirected == 0 && line.queued.is_empty();
        let may = self.routes.is_empty()
            && self.unproven.is_empty()
            && self.waiting.is_empty()
            && !self.extra.overlaps(domain, &work)
            && self.first.iter().all(is_calm);
        if let Some(place) = self.home_of(domain, work.addr()).filter(|_| may)
            && self.first[place].may_gather(&work)
            && let Some(requester) = &mut self.first[place].requester
        {
            self.last = place;
            match requester.post(ticket, work) {
                Ok(()) => {
                    requester.pump(now, out);
                    return self.finish(now, place, out);
                }
                Err(refused) => work = refused,
            }
        }
        for item in self.split_gather(QueuedOp { id: ticket, work, history: RetryHistory::default() }) {
            self.dispatch(now, domain, item, Source::User, out);
        }
    }

    /// Splits a gather READ into a READ for each piece. Returns any other operation unchanged.
    pub(crate) fn split_gather(&mut self, item: QueuedOp) -> Vec<QueuedOp> {
        let QueuedOp { id, work, history } = item;
        match work {
            Work::Gather { addrs, buf } => {
                let pieces = self.split_ops.gather(id, &addrs, buf);
                pieces.into_iter().map(|(id, work)| QueuedOp { id, work, history }).collect()
            }
            work => vec![QueuedOp { id, work, history }],
        }
    }

    /// Sends an operation to the node that holds its bytes.
    pub(crate) fn dispatch(
        &mut self,
        now: Instant,
        domain: Domain,
        item: QueuedOp,
        from: Source,
        out: &mut Sink,
    ) {
        if from == Source::Queued && !self.unproven.is_empty() {
            let over = |(of, items): &&mut (Domain, Vec<QueuedOp>)| {
                *of == domain && items.iter().any(|other| overlap(&item.work, &other.work))
            };
            if let Some((_, items)) = self.unproven.values_mut().find(over) {
                return items.push(item);
            }
        }
        let addr = item.work.addr();
        let Some((place, room)) = self.find(domain, addr) else {
            return self.end(item.id, Err(Failure::NotConnected { addr }), item.work, out);
        };
        if item.work.span() > room {
            return self.dispatch_segments(now, domain, item, from, out);
        }
        self.give_to(now, place, item, from, out);
    }

    /// Sends an operation that spans nodes, as one segment for each node.
    fn dispatch_segments(
        &mut self,
        now: Instant,
        domain: Domain,
        item: QueuedOp,
        from: Source,
        out: &mut Sink,
    ) {
        let (addr, len) = (item.work.addr(), item.work.span());
        // Even if several nodes have parts of an operation, it must stay in the range of its addresses.
        let home = self.home_of(domain, addr).map(|at| &self.first[at]);
        let leaves = home.is_some_and(|home| len > home.len - addr.0.wrapping_sub(home.base.0));
        let (mut places, mut segments, mut skip) = (Vec::new(), Vec::new(), 0);
        while !leaves && skip < len && !self.routes.is_empty() {
            let Some(at) = addr.0.checked_add(skip) else { break };
            let Some((place, room)) = self.find(domain, VirtAddr(at)) else { break };
            let segment = room.min(len - skip);
            places.push(place);
            segments.push(Segment { skip, len: segment });
            skip += segment;
        }
        if skip < len || item.work.is_atomic() {
            return self.end(item.id, Err(Failure::OutOfBounds { addr }), item.work, out);
        }
        if from != Source::Proven && !self.routes.is_of_one(addr, len) {
            // No node sees the whole operation, so none can detect that the operation leaves its allocation
            // (PROTOCOL 7.45).
            if from.is_behind()
                && (self.overlaps_undispatched(domain, &item.work)
                    || self.overlaps_dispatched(domain, &item.work))
            {
                return self.wait(domain, item, from, out);
            }
            let number = self.request_control(ControlRequestKind::Locate { addr }, out);
            self.unproven.insert(number, (domain, vec![item]));
            return;
        }
        let QueuedOp { id, work, history } = item;
        for (place, (id, work)) in places.into_iter().zip(self.split_ops.split(id, work, &segments)) {
            self.give_to(now, place, QueuedOp { id, work, history }, from, out);
        }
    }

    /// Returns true if an earlier operation overlaps `work` and takes another path than the connection at
    /// `place`.
    ///
    /// Operations of one domain with a byte in common execute in the order of submission, as on one
    /// connection (PROTOCOL 4.16, 11.12).
    fn must_wait(&self, domain: Domain, place: usize, work: &Work) -> bool {
        let other = |(at, line): (usize, &NodeConnection)| {
            let busy = line.misdirected > 0 || !line.queued.is_empty();
            busy && at != place && line.domain == domain && line.overlaps_unsettled(work)
        };
        let changes = !matches!(work, Work::Read { .. } | Work::ReadTo { .. });
        self.first.iter().enumerate().any(other)
            || self.overlaps_undispatched(domain, work)
            || changes && self.extra.overlaps(domain, work)
    }

    /// Returns true if an operation that overlaps `work` is neither on a connection nor queued for one.
    fn overlaps_undispatched(&self, domain: Domain, work: &Work) -> bool {
        if self.unproven.is_empty() && self.waiting.is_empty() {
            return false;
        }
        let over = |of: Domain, item: &QueuedOp| of == domain && overlap(&item.work, work);
        self.unproven.values().any(|(of, items)| items.iter().any(|item| over(*of, item)))
            || self.waiting.iter().any(|(of, item)| over(*of, item))
    }

    /// Returns true if an operation that overlaps `work` is on a connection or queued for one.
    fn overlaps_dispatched(&self, domain: Domain, work: &Work) -> bool {
        self.first.iter().any(|line| line.domain == domain && line.overlaps(work))
            || self.extra.overlaps(domain, work)
    }

    pub(crate) fn wait(&mut self, domain: Domain, item: QueuedOp, from: Source, out: &mut Sink) {
        if from == Source::User && self.waiting.len() >= QUEUED_MAX {
            return self.end(item.id, Err(Failure::QueueFull), item.work, out);
        }
        self.waiting.push_back((domain, item));
    }

    /// Dispatches waiting operations that nothing blocks any more.
    pub(crate) fn dispatch_waiting(&mut self, now: Instant, out: &mut Sink) {
        let may = core::mem::take(&mut self.may_dispatch) | core::mem::take(&mut self.extra.has_ended);
        if self.waiting.is_empty() || !may {
            return;
        }
        for (domain, item) in core::mem::take(&mut self.waiting) {
            // Operations that still wait are in the list again, before this one.
            self.dispatch(now, domain, item, Source::Waiting, out);
        }
    }

    /// Gives an operation to a connection, which may need setting up first.
    fn give_to(&mut self, now: Instant, place: usize, item: QueuedOp, from: Source, out: &mut Sink) {
        let addr = item.work.addr();
        if item.work.is_misaligned() {
            return self.end(item.id, Err(Failure::Misaligned { addr }), item.work, out);
        }
        let domain = self.first[place].domain;
        if from.is_behind() && self.must_wait(domain, place, &item.work) {
            return self.wait(domain, item, from, out);
        }
        let item = if self.may_use_extra(&item, from) {
            let Some(item) = self.post_extra(now, place, item, from, out) else { return };
            item
        } else {
            item
        };
        let line = &mut self.first[place];
        let up = line.requester.as_mut().filter(|requester| !requester.is_broken());
        let QueuedOp { id, work, history } = item;
        let refused = match up {
            Some(requester) if line.queued.is_empty() => match requester.post(id, work) {
                Ok(()) => {
                    if history != RetryHistory::default() {
                        self.histories.insert(id, history);
                    }
                    requester.pump(now, out);
                    return self.finish(now, place, out);
                }
                Err(work) => work,
            },
            Some(_) => work,
            None if from == Source::User && line.queued.len() >= QUEUED_MAX => work,
            None => {
                line.queued.push_back(QueuedOp { id, work, history });
                if line.recovery == Recovery::Idle {
                    self.reconnect(place, out);
                }
                return;
            }
        };
        if from == Source::User {
            return self.end(id, Err(Failure::QueueFull), refused, out);
        }
        line.queued.push_back(QueuedOp { id, work: refused, history });
    }

    pub(crate) fn has(&self, qpn: Qpn) -> bool {
        self.by_qpn.contains_key(&qpn) || self.extra.has(qpn)
    }

    pub(crate) fn packet<'p>(
        &mut self,
        now: Instant,
        port: Port,
        packet: &Packet<'p>,
        arrivals: &mut Arrivals<'p>,
        out: &mut Sink,
    ) {
        let found = self.by_qpn.get(&packet.bth.dest_qp).copied();
        let Some((place, requester)) = found.zip(found.and_then(|at| self.first[at].requester.as_mut()))
        else {
            return self.packet_extra(now, port, packet, arrivals, out);
        };
        requester.on_packet_among(now, port, packet, arrivals, out);
        self.finish(now, place, out);
    }

    pub(crate) fn wake(&mut self, now: Instant, out: &mut Sink) {
        for place in 0..self.first.len() {
            if let Some(requester) = &mut self.first[place].requester
                && requester.next_wake().is_some_and(|at| at <= now)
            {
                requester.on_wake(now, out);
                if requester.is_broken() {
                    self.first[place].patient_until = Some(now);
                }
                self.doubt(place, out);
                self.finish(now, place, out);
            }
            if matches!(self.first[place].recovery, Recovery::Pausing(until) if until <= now) {
                self.reconnect(place, out);
            }
        }
        self.wake_extra(now, out);
    }

    /// Asks whether the node of a connection started again, once the node has been silent for long. If so, the
    /// connection is lost, and the node's memory may be.
    fn doubt(&mut self, place: usize, out: &mut Sink) {
        let line = &self.first[place];
        let up = line.requester.as_ref().filter(|requester| !requester.is_broken());
        let retries = up.map_or(0, Requester::retries);
        let is_due = retries > 0 && retries.is_multiple_of(DOUBT_RETRIES) && line.doubted.is_none();
        if is_due && self.patience > Duration::from_nanos(0) {
            let kind = ControlRequestKind::NodeGeneration { node: line.node };
            self.first[place].doubted = Some(self.request_control(kind, out));
        }
    }

    /// Handles the answer to such a question. Returns false if none has this number.
    pub(crate) fn undoubt(&mut self, now: Instant, number: u64, reply: &Reply, out: &mut Sink) -> bool {
        let Some(place) = self.first.iter().position(|line| line.doubted == Some(number)) else {
            return false;
        };
        let line = &mut self.first[place];
        line.doubted = None;
        if let (Reply::NodeGeneration(generation), Some(requester)) = (reply, &mut line.requester)
            && *generation != line.generation
        {
            requester.give_up(out);
            self.finish(now, place, out);
        }
        true
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let lines = self.first.iter().filter_map(|line| line.requester.as_ref()?.next_wake());
        let pauses = self.first.iter().filter_map(|line| match line.recovery {
            Recovery::Pausing(until) => Some(until),
            _ => None,
        });
        lines.chain(pauses).chain(self.extra.next_wake()).min()
    }

    pub(crate) fn outstanding(&self) -> usize {
        let aside = self.unproven.values().map(|(_, items)| items.len()).sum::<usize>() + self.waiting.len();
        self.first.iter().map(NodeConnection::outstanding).sum::<usize>() + self.extra.outstanding() + aside
    }

    pub(crate) fn is_down(&self, domain: Domain, node: NodeId) -> bool {
        self.first.iter().any(|line| line.is(domain, node) && !line.is_up())
    }

    /// Returns the node that holds an address, as far as the host knows.
    pub(crate) fn node_of(&self, domain: Domain, addr: VirtAddr) -> Option<NodeId> {
        let home = || self.home_of(domain, addr).map(|at| self.first[at].node);
        // On most hosts nothing has moved.
        let moved = if self.routes.is_empty() { None } else { self.routes.find(addr.0) };
        moved.map(|(node, _)| node).or_else(home)
    }

    pub(crate) fn check(&self) {
        assert!(
            self.first.len() + self.extra.count() <= self.connections_max,
            "more connections than the bound"
        );
        self.extra.check();
        for line in &self.first {
            line.check();
            let same = self.first.iter().filter(|other| other.gives_way_to(line)).count();
            assert_eq!(same, 1, "one connection for each address of a domain");
        }
        for (qpn, &place) in &self.by_qpn {
            assert_eq!(self.first[place].qpn, Some(*qpn), "the queue pair index names its connection");
        }
        assert!(self.histories.len() <= self.outstanding(), "what was asked again is under way");
        self.routes.check();
        self.split_ops.check(self.outstanding());
    }

    /// Returns the connection that leads to an address, and the number of bytes that it covers from there on.
    /// If the memory moved to a node without a connection, a new one is added.
    fn find(&mut self, domain: Domain, addr: VirtAddr) -> Option<(usize, u64)> {
        // On most hosts nothing has moved.
        let mut next = u64::MAX;
        if !self.routes.is_empty() {
            if let Some((node, room)) = self.routes.find(addr.0) {
                let place = self.first.iter().position(|line| line.is(domain, node));
                return Some((place.or_else(|| self.new_connection(domain, node))?, room));
            }
            next = self.routes.next(addr.0);
        }
        self.last = self.home_of(domain, addr)?;
        let line = &self.first[self.last];
        let room = line.len - addr.0.wrapping_sub(line.base.0);
        Some((self.last, room.min(next - addr.0)))
    }

    /// Returns the connection to the node whose range contains an address.
    fn home_of(&self, domain: Domain, addr: VirtAddr) -> Option<usize> {
        let covers = |line: &NodeConnection| line.covers(domain, addr);
        let hit = self.first.get(self.last).is_some_and(covers).then_some(self.last);
        hit.or_else(|| self.first.iter().position(covers))
    }

    fn new_connection(&mut self, domain: Domain, node: NodeId) -> Option<usize> {
        let room = self.first.len() + self.extra.count() < self.connections_max;
        room.then(|| {
            self.first.push(NodeConnection::down(domain, node));
            self.first.len() - 1
        })
    }

    /// Asks the control plane a question and returns the question's number.
    pub(crate) fn request_control(&mut self, kind: ControlRequestKind, out: &mut Sink) -> u64 {
        self.last_question += 1;
        out.local(Out::Control(ControlRequest { number: self.last_question, kind }));
        self.last_question
    }

    /// Records that the queue pair of a connection is destroyed.
    pub(crate) fn disconnected(&mut self, place: usize) {
        if let Some(qpn) = self.first[place].qpn.take() {
            self.by_qpn.remove(&qpn);
        }
    }

    /// Ends an operation or a segment of one.
    pub(crate) fn end(&mut self, id: u64, result: Result<Answer, Failure>, work: Work, out: &mut Sink) {
        if SplitOps::is_segment(id) {
            self.split_ops.ended(id, result, work.into_buf(), out);
        } else {
            out.local(Out::Done(Done { ticket: id, result, buf: work.into_buf() }));
        }
    }
}
