//! The host's reliable connections: which one leads to an address, and what comes back over it.
//!
//! A node owns the addresses of its range, but for those that moved to another one ([`Routes`]). A READ or WRITE that goes on where another node
//! owns goes out in segments, and ends when all of them have ended. What becomes of operations whose connection breaks, or is not up, is said in
//! [`crate::following`].

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

/// Connections of all domains. A rack has few nodes, so the owner of an address is found by a scan from the last hit.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) lines: Vec<Line>,
    by_qpn: BTreeMap<Qpn, usize>,
    last: usize,
    pub(crate) lines_max: usize,
    /// Connections beside the first to a node.
    pub(crate) sides: Sides,
    pub(crate) routes: Routes,
    /// What went out in segments.
    split_ops: SplitOps,
    /// What operations that were asked again have been through, by name.
    pub(crate) trails: BTreeMap<u64, Trail>,
    /// By the number of the question what goes out in segments when it is known to stay in its allocation.
    /// Behind it what was queued with it and has bytes of it.
    pub(crate) unproven: BTreeMap<u64, (Domain, Vec<QueuedOp>)>,
    /// What came later than something with bytes of it that is not where those bytes are, in the order in which it came.
    waiting: VecDeque<(Domain, QueuedOp)>,
    /// Something is different that what waits may have waited for.
    pub(crate) may_go_on: bool,
    /// Of the last thing wanted.
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

    /// These addresses are at a node, or where the ranges have them.
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

    /// Memory is not where it was thought to be. Later operations stay behind those that went to where it was.
    pub(crate) fn look_for_strays(&mut self) {
        for line in &mut self.lines {
            line.astray = line.requester.as_ref().map_or(0, Requester::outstanding);
        }
    }

    /// Takes a connection in. Those of its domain to its node, or to one of its addresses, make room, with their requests flushed:
    /// what the control plane said last is so (PROTOCOL 11.3, 11.9). What waited for it goes on.
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

    /// A node has these addresses. What connections say of them stays so.
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

    /// A connection is not taken; nothing changes but for what waited for it.
    pub(crate) fn not_taken(&mut self, setup: &Connection, fault: SetupFault, out: &mut Sink) {
        out.note(Note::NotTaken(fault));
        let waits = |line: &Line| {
            line.is(setup.domain, setup.node) && matches!(line.recovery, Recovery::Connecting(_))
        };
        if let Some(place) = self.lines.iter().position(waits) {
            self.reconnect_failed(place, out);
        }
    }

    /// Takes all connections down; what is under way on them, or waits for them, ends as flushed.
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

    /// Gives a connection up; answers what waited for it.
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

    /// An operation that its user asks for.
    pub(crate) fn post(&mut self, now: Instant, ticket: u64, domain: Domain, work: Work, out: &mut Sink) {
        self.dispatch(now, domain, QueuedOp { id: ticket, work, trail: Trail::default() }, From::User, out);
    }

    /// A gather READ: by one request where one node has all the pieces and nothing is in the way; else a READ for each (PROTOCOL 11.15).
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

    /// A READ for each piece of a gather READ; anything else as it is.
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

    /// Sends an operation on its way to where its bytes are.
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

    /// What goes on at another node: a segment to each, when it goes on at all.
    fn dispatch_segments(
        &mut self,
        now: Instant,
        domain: Domain,
        item: QueuedOp,
        from: From,
        out: &mut Sink,
    ) {
        let (addr, len) = (item.work.addr(), item.work.span());
        // Also where several nodes have parts of it, it stays in the range that its addresses are of.
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
            // No node sees the whole of it, so none could tell that it leaves its allocation (PROTOCOL 7.45).
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

    /// True when something that came earlier has bytes of `work` and is not on its way to where `work` goes, the connection at `place`. Operations of one
    /// domain with a byte in common are executed in the order in which they came, as on one connection (PROTOCOL 4.16, 11.12).
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

    /// True when something with bytes of `work` is on no connection, and waits for none.
    fn is_aside(&self, domain: Domain, work: &Work) -> bool {
        if self.unproven.is_empty() && self.waiting.is_empty() {
            return false;
        }
        let over = |of: Domain, item: &QueuedOp| of == domain && overlap(&item.work, work);
        self.unproven.values().any(|(of, items)| items.iter().any(|item| over(*of, item)))
            || self.waiting.iter().any(|(of, item)| over(*of, item))
    }

    /// True when something with bytes of `work` is on a connection, or waits for one.
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

    /// Sends what waits on its way when nothing is before it any more.
    pub(crate) fn look_again(&mut self, now: Instant, out: &mut Sink) {
        let may = core::mem::take(&mut self.may_go_on) | core::mem::take(&mut self.sides.has_ended);
        if self.waiting.is_empty() || !may {
            return;
        }
        for (domain, item) in core::mem::take(&mut self.waiting) {
            // Those that still wait are in the list again, before it.
            self.dispatch(now, domain, item, From::Waiting, out);
        }
    }

    /// Gives an operation to a connection, which may have to be set up first.
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

    /// The node that has an address, as far as is known here.
    pub(crate) fn node_of(&self, domain: Domain, addr: VirtAddr) -> Option<NodeId> {
        let home = || self.home_of(domain, addr).map(|at| self.lines[at].node);
        // Most hosts know of nothing that moved.
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

    /// The connection that leads to an address, and for how many bytes from there on. One to a node that has something that moved there may
    /// have to be set up.
    fn find(&mut self, domain: Domain, addr: VirtAddr) -> Option<(usize, u64)> {
        // Most hosts know of nothing that moved.
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

    /// The connection to the node whose range has an address.
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

    /// Asks the control plane for something; answers the number of the question.
    pub(crate) fn want(&mut self, wish: Wish, out: &mut Sink) -> u64 {
        self.wanted += 1;
        out.local(Out::Want(Want { number: self.wanted, wish }));
        self.wanted
    }

    /// The queue pair of a connection is no more.
    pub(crate) fn taken_down(&mut self, place: usize) {
        if let Some(qpn) = self.lines[place].qpn.take() {
            self.by_qpn.remove(&qpn);
        }
    }

    /// An operation, or a segment of one, is over.
    pub(crate) fn end(&mut self, id: u64, result: Result<Answer, Failure>, work: Work, out: &mut Sink) {
        if SplitOps::is_segment(id) {
            self.split_ops.ended(id, result, work.into_buf(), out);
        } else {
            out.local(Out::Done(Done { ticket: id, result, buf: work.into_buf() }));
        }
    }
}
