//! The host's reliable connections: which connection leads to an address, and which completions come back.
//!
//! A node owns the addresses of its range, except those that moved to another node ([`Routes`]). A READ or
//! WRITE that spans several nodes goes out in segments, and ends when all segments have ended. The module
//! [`crate::following`] handles operations whose connection is broken or down.

use crate::lines::{From, Line, QUEUED_MAX, QueuedOp, Recovery, Trail, overlap};
use crate::routes::Routes;
use crate::sides::Sides;
use crate::split_ops::{Segment, SplitOps};
use crate::wants::{Want, Wish};
use crate::{Answer, Connection, Done, Failure, Note, Out, SetupFault, Sink};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use farmem_machine::{Instant, Port};
use farmem_transport::rc::{self, Arrivals, Requester, Work};
use farmem_wire::gather::PIECES_MAX;
use farmem_wire::{Domain, NodeId, Packet, Qpn, VirtAddr};

/// Connections of all domains. A rack has few nodes, so a scan from the last hit finds the owner of an
/// address.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) lines: Vec<Line>,
    by_qpn: BTreeMap<Qpn, usize>,
    last: usize,
    pub(crate) lines_max: usize,
    /// Additional connections to a node beside the first.
    pub(crate) sides: Sides,
    pub(crate) routes: Routes,
    /// Operations that went out in segments.
    split_ops: SplitOps,
    /// The retry history of each operation that was sent again, by operation id.
    pub(crate) trails: BTreeMap<u64, Trail>,
    /// Operations that go out in segments once they are known to stay in their allocation, by the number of
    /// the question. Behind each stand the operations that were queued with it and overlap it.
    pub(crate) unproven: BTreeMap<u64, (Domain, Vec<QueuedOp>)>,
    /// Operations that overlap an earlier operation on another path, in order of arrival.
    waiting: VecDeque<(Domain, QueuedOp)>,
    /// True if a waiting operation may be able to proceed.
    pub(crate) may_go_on: bool,
    /// The number of the last question to the control plane.
    wanted: u64,
}

impl Connections {
    pub(crate) fn new(lines_max: usize, each: usize) -> Self {
        Self {
            lines: Vec::new(),
            by_qpn: BTreeMap::new(),
            last: 0,
            lines_max,
            sides: Sides::new(each),
            routes: Routes::default(),
            split_ops: SplitOps::default(),
            trails: BTreeMap::new(),
            unproven: BTreeMap::new(),
            waiting: VecDeque::new(),
            may_go_on: false,
            wanted: 0,
        }
    }

    /// Routes these addresses to a node, or with `None` back to the node of their range.
    pub(crate) fn route(&mut self, base: VirtAddr, len: u64, node: Option<NodeId>, out: &mut Sink) {
        self.may_go_on = true;
        let was_empty = self.routes.is_empty();
        if !self.routes.set(base.0, len, node) {
            out.note(Note::NotTaken(SetupFault::Full));
        }
        if !(was_empty && self.routes.is_empty()) {
            self.look_for_strays();
        }
    }

    /// Marks the requests in flight as possibly misdirected because memory has moved. Later operations stay
    /// behind them.
    pub(crate) fn look_for_strays(&mut self) {
        for line in &mut self.lines {
            line.astray = line.requester.as_ref().map_or(0, Requester::outstanding);
        }
    }

    /// Adds a connection. Connections of the same domain to the same node, or to one of its addresses, make
    /// room and their requests are flushed, because the control plane's latest word holds (PROTOCOL 11.3,
    /// 11.9). Operations that waited for it proceed.
    pub(crate) fn add(&mut self, now: Instant, setup: &Connection, out: &mut Sink) {
        self.may_go_on = true;
        let new = Line::new(setup);
        let taken = self.sides.has(setup.rc.qpn)
            || self.by_qpn.get(&setup.rc.qpn).is_some_and(|&at| !self.lines[at].gives_way_to(&new));
        let staying = self.lines.iter().filter(|line| !line.gives_way_to(&new)).count() + self.sides.count();
        if taken || staying >= self.lines_max {
            return self.not_taken(
                setup,
                if taken { SetupFault::QueuePairTaken } else { SetupFault::Full },
                out,
            );
        }
        self.sides.is_given(setup.rc.qpn);
        let old: Vec<Line> = self.lines.extract_if(.., |line| line.gives_way_to(&new)).collect();
        self.lines.push(new);
        self.index();
        let mut queued = Vec::new();
        for line in old {
            let (domain, node) = (line.domain, line.node);
            queued.extend(self.flush(line, out));
            self.renew_beside(now, domain, node, out);
        }
        for item in queued {
            self.dispatch(now, setup.domain, item, From::Queued, out);
        }
    }

    /// Records that a node has these addresses. Existing connections take precedence.
    pub(crate) fn know(&mut self, domain: Domain, node: NodeId, base: VirtAddr, len: u64, out: &mut Sink) {
        self.may_go_on = true;
        let new = Line { base, len, ..Line::down(domain, node) };
        if self.lines.iter().any(|line| line.node != node && line.gives_way_to(&new)) {
            return;
        }
        let has_room = self.lines.len() + self.sides.count() < self.lines_max;
        match self.lines.iter_mut().find(|line| line.is(domain, node)) {
            Some(line) if line.len == 0 => (line.base, line.len) = (base, len),
            Some(_) => {}
            None if has_room => self.lines.push(new),
            None => out.note(Note::NotTaken(SetupFault::Full)),
        }
    }

    /// Rejects a connection. The state changes only for operations that waited for it.
    pub(crate) fn not_taken(&mut self, setup: &Connection, fault: SetupFault, out: &mut Sink) {
        out.note(Note::NotTaken(fault));
        let waits = |line: &Line| {
            line.is(setup.domain, setup.node) && matches!(line.recovery, Recovery::Connecting(_))
        };
        if let Some(place) = self.lines.iter().position(waits) {
            self.reconnect_failed(place, out);
        }
    }

    /// Takes all connections down. Operations in flight or queued end as flushed.
    pub(crate) fn end_all(&mut self, out: &mut Sink) {
        let flushed = Err(Failure::Connection(rc::Failure::Flushed));
        for line in core::mem::take(&mut self.lines) {
            let (domain, node, base, len) = (line.domain, line.node, line.base, line.len);
            for item in self.flush(line, out) {
                self.end(item.id, flushed, item.work, out);
            }
            self.lines.push(Line { base, len, ..Line::down(domain, node) });
        }
        let unproven = core::mem::take(&mut self.unproven).into_values().flat_map(|(_, items)| items);
        let waiting = core::mem::take(&mut self.waiting).into_iter().map(|(_, item)| item);
        for item in unproven.chain(waiting) {
            self.end(item.id, flushed, item.work, out);
        }
        self.end_beside(out);
        self.index();
    }

    /// Abandons a connection and returns the operations that were queued for it.
    fn flush(&mut self, mut line: Line, out: &mut Sink) -> VecDeque<QueuedOp> {
        if let Some(requester) = &mut line.requester {
            requester.abandon(out);
            while let Some(rc::Completion { id, result, work }) = requester.pop_completion() {
                self.trails.remove(&id);
                let result = result.map(|old| Answer::Done { old }).map_err(Failure::Connection);
                self.end(id, result, work, out);
            }
        }
        line.queued
    }

    fn index(&mut self) {
        let up = self.lines.iter().enumerate().filter(|(_, line)| line.requester.is_some());
        self.by_qpn = up.filter_map(|(at, line)| Some((line.qpn?, at))).collect();
        self.last = self.lines.len().saturating_sub(1);
    }

    /// Submits a user's operation.
    pub(crate) fn post(&mut self, now: Instant, ticket: u64, domain: Domain, work: Work, out: &mut Sink) {
        self.dispatch(now, domain, QueuedOp { id: ticket, work, trail: Trail::default() }, From::User, out);
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
        let is_calm = |line: &Line| line.astray == 0 && line.queued.is_empty();
        let may = self.routes.is_empty()
            && self.unproven.is_empty()
            && self.waiting.is_empty()
            && !self.sides.meet(domain, &work)
            && self.lines.iter().all(is_calm);
        if let Some(place) = self.home_of(domain, work.addr()).filter(|_| may)
            && self.lines[place].may_gather(&work)
            && let Some(requester) = &mut self.lines[place].requester
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
        for item in self.apart(QueuedOp { id: ticket, work, trail: Trail::default() }) {
            self.dispatch(now, domain, item, From::User, out);
        }
    }

    /// Splits a gather READ into a READ for each piece. Returns any other operation unchanged.
    pub(crate) fn apart(&mut self, item: QueuedOp) -> Vec<QueuedOp> {
        let QueuedOp { id, work, trail } = item;
        match work {
            Work::Gather { addrs, buf } => {
                let pieces = self.split_ops.gather(id, &addrs, buf);
                pieces.into_iter().map(|(id, work)| QueuedOp { id, work, trail }).collect()
            }
            work => vec![QueuedOp { id, work, trail }],
        }
    }

    /// Sends an operation to the node that holds its bytes.
    pub(crate) fn dispatch(
        &mut self,
        now: Instant,
        domain: Domain,
        item: QueuedOp,
        from: From,
        out: &mut Sink,
    ) {
        if from == From::Queued && !self.unproven.is_empty() {
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
        self.hand_over(now, place, item, from, out);
    }

    /// Sends an operation that spans nodes, as one segment for each node.
    fn dispatch_segments(
        &mut self,
        now: Instant,
        domain: Domain,
        item: QueuedOp,
        from: From,
        out: &mut Sink,
    ) {
        let (addr, len) = (item.work.addr(), item.work.span());
        // Even if several nodes have parts of an operation, it must stay in the range of its addresses.
        let home = self.home_of(domain, addr).map(|at| &self.lines[at]);
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
        if from != From::Proven && !self.routes.is_of_one(addr, len) {
            // No node sees the whole operation, so none can detect that the operation leaves its allocation
            // (PROTOCOL 7.45).
            if from.is_behind() && (self.is_aside(domain, &item.work) || self.is_met(domain, &item.work)) {
                return self.wait(domain, item, from, out);
            }
            let number = self.want(Wish::Locate { addr }, out);
            self.unproven.insert(number, (domain, vec![item]));
            return;
        }
        let QueuedOp { id, work, trail } = item;
        for (place, (id, work)) in places.into_iter().zip(self.split_ops.split(id, work, &segments)) {
            self.hand_over(now, place, QueuedOp { id, work, trail }, from, out);
        }
    }

    /// Returns true if an earlier operation overlaps `work` and takes another path than the connection at
    /// `place`.
    ///
    /// Operations of one domain with a byte in common execute in the order of submission, as on one
    /// connection (PROTOCOL 4.16, 11.12).
    fn must_wait(&self, domain: Domain, place: usize, work: &Work) -> bool {
        let other = |(at, line): (usize, &Line)| {
            let busy = line.astray > 0 || !line.queued.is_empty();
            busy && at != place && line.domain == domain && line.overlaps(work)
        };
        let changes = !matches!(work, Work::Read { .. } | Work::ReadTo { .. });
        self.lines.iter().enumerate().any(other)
            || self.is_aside(domain, work)
            || changes && self.sides.meet(domain, work)
    }

    /// Returns true if an operation that overlaps `work` is neither on a connection nor queued for one.
    fn is_aside(&self, domain: Domain, work: &Work) -> bool {
        if self.unproven.is_empty() && self.waiting.is_empty() {
            return false;
        }
        let over = |of: Domain, item: &QueuedOp| of == domain && overlap(&item.work, work);
        self.unproven.values().any(|(of, items)| items.iter().any(|item| over(*of, item)))
            || self.waiting.iter().any(|(of, item)| over(*of, item))
    }

    /// Returns true if an operation that overlaps `work` is on a connection or queued for one.
    fn is_met(&self, domain: Domain, work: &Work) -> bool {
        self.lines.iter().any(|line| line.domain == domain && line.meets(work))
            || self.sides.meet(domain, work)
    }

    pub(crate) fn wait(&mut self, domain: Domain, item: QueuedOp, from: From, out: &mut Sink) {
        if from == From::User && self.waiting.len() >= QUEUED_MAX {
            return self.end(item.id, Err(Failure::QueueFull), item.work, out);
        }
        self.waiting.push_back((domain, item));
    }

    /// Dispatches waiting operations that nothing blocks any more.
    pub(crate) fn look_again(&mut self, now: Instant, out: &mut Sink) {
        let may = core::mem::take(&mut self.may_go_on) | core::mem::take(&mut self.sides.has_ended);
        if self.waiting.is_empty() || !may {
            return;
        }
        for (domain, item) in core::mem::take(&mut self.waiting) {
            // Operations that still wait are in the list again, before this one.
            self.dispatch(now, domain, item, From::Waiting, out);
        }
    }

    /// Gives an operation to a connection, which may need setting up first.
    fn hand_over(&mut self, now: Instant, place: usize, item: QueuedOp, from: From, out: &mut Sink) {
        let addr = item.work.addr();
        if item.work.is_misaligned() {
            return self.end(item.id, Err(Failure::Misaligned { addr }), item.work, out);
        }
        let domain = self.lines[place].domain;
        if from.is_behind() && self.must_wait(domain, place, &item.work) {
            return self.wait(domain, item, from, out);
        }
        let item = if self.may_go_beside(&item, from) {
            let Some(item) = self.post_beside(now, place, item, from, out) else { return };
            item
        } else {
            item
        };
        let line = &mut self.lines[place];
        let up = line.requester.as_mut().filter(|requester| !requester.is_broken());
        let QueuedOp { id, work, trail } = item;
        let refused = match up {
            Some(requester) if line.queued.is_empty() => match requester.post(id, work) {
                Ok(()) => {
                    if trail != Trail::default() {
                        self.trails.insert(id, trail);
                    }
                    requester.pump(now, out);
                    return self.finish(now, place, out);
                }
                Err(work) => work,
            },
            Some(_) => work,
            None if from == From::User && line.queued.len() >= QUEUED_MAX => work,
            None => {
                line.queued.push_back(QueuedOp { id, work, trail });
                if line.recovery == Recovery::Idle {
                    self.reconnect(place, out);
                }
                return;
            }
        };
        if from == From::User {
            return self.end(id, Err(Failure::QueueFull), refused, out);
        }
        line.queued.push_back(QueuedOp { id, work: refused, trail });
    }

    pub(crate) fn has(&self, qpn: Qpn) -> bool {
        self.by_qpn.contains_key(&qpn) || self.sides.has(qpn)
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
        let Some((place, requester)) = found.zip(found.and_then(|at| self.lines[at].requester.as_mut()))
        else {
            return self.packet_beside(now, port, packet, arrivals, out);
        };
        requester.on_packet_among(now, port, packet, arrivals, out);
        self.finish(now, place, out);
    }

    pub(crate) fn wake(&mut self, now: Instant, out: &mut Sink) {
        for place in 0..self.lines.len() {
            if let Some(requester) = &mut self.lines[place].requester
                && requester.next_wake().is_some_and(|at| at <= now)
            {
                requester.on_wake(now, out);
                self.finish(now, place, out);
            }
        }
        self.wake_beside(now, out);
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let lines = self.lines.iter().filter_map(|line| line.requester.as_ref()?.next_wake());
        lines.chain(self.sides.next_wake()).min()
    }

    pub(crate) fn outstanding(&self) -> usize {
        let aside = self.unproven.values().map(|(_, items)| items.len()).sum::<usize>() + self.waiting.len();
        self.lines.iter().map(Line::outstanding).sum::<usize>() + self.sides.outstanding() + aside
    }

    pub(crate) fn is_down(&self, domain: Domain, node: NodeId) -> bool {
        self.lines.iter().any(|line| line.is(domain, node) && !line.is_up())
    }

    /// Returns the node that holds an address, as far as the host knows.
    pub(crate) fn node_of(&self, domain: Domain, addr: VirtAddr) -> Option<NodeId> {
        let home = || self.home_of(domain, addr).map(|at| self.lines[at].node);
        // On most hosts nothing has moved.
        let moved = if self.routes.is_empty() { None } else { self.routes.find(addr.0) };
        moved.map(|(node, _)| node).or_else(home)
    }

    pub(crate) fn check(&self) {
        assert!(self.lines.len() + self.sides.count() <= self.lines_max, "more connections than the bound");
        self.sides.check();
        for line in &self.lines {
            line.check();
            let same = self.lines.iter().filter(|other| other.gives_way_to(line)).count();
            assert_eq!(same, 1, "one connection for each address of a domain");
        }
        for (qpn, &place) in &self.by_qpn {
            assert_eq!(self.lines[place].qpn, Some(*qpn), "the queue pair index names its connection");
        }
        assert!(self.trails.len() <= self.outstanding(), "what was asked again is under way");
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
                let place = self.lines.iter().position(|line| line.is(domain, node));
                return Some((place.or_else(|| self.new_line(domain, node))?, room));
            }
            next = self.routes.next(addr.0);
        }
        self.last = self.home_of(domain, addr)?;
        let line = &self.lines[self.last];
        let room = line.len - addr.0.wrapping_sub(line.base.0);
        Some((self.last, room.min(next - addr.0)))
    }

    /// Returns the connection to the node whose range contains an address.
    fn home_of(&self, domain: Domain, addr: VirtAddr) -> Option<usize> {
        let covers = |line: &Line| line.covers(domain, addr);
        let hit = self.lines.get(self.last).is_some_and(covers).then_some(self.last);
        hit.or_else(|| self.lines.iter().position(covers))
    }

    fn new_line(&mut self, domain: Domain, node: NodeId) -> Option<usize> {
        let room = self.lines.len() + self.sides.count() < self.lines_max;
        room.then(|| {
            self.lines.push(Line::down(domain, node));
            self.lines.len() - 1
        })
    }

    /// Asks the control plane a question and returns the question's number.
    pub(crate) fn want(&mut self, wish: Wish, out: &mut Sink) -> u64 {
        self.wanted += 1;
        out.local(Out::Want(Want { number: self.wanted, wish }));
        self.wanted
    }

    /// Records that the queue pair of a connection is destroyed.
    pub(crate) fn taken_down(&mut self, place: usize) {
        if let Some(qpn) = self.lines[place].qpn.take() {
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
