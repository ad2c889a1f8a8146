//! Additional connections of a domain to a memory node (SODA IV-B: "multiple independent QPs"). They carry
//! READs, and only under high load (PROTOCOL 11.16).
//!
//! A connection has a window: requests beyond it wait for answers, however long the path is. If the first connection's window is
//! full, READs go over others. Operations that change memory always go over the first connection, which keeps their order.
//! Between the connections, the following placement keeps the order:
//!
//! ```text
//!   a READ                                                       a WRITE or atomic
//!     a byte in common with what is on one ─────── that one         a READ with a byte of it is on another ── waits
//!     with what is on several ──────────────────── waits            else ──────────────────────────────────── the first
//!     else: the first has room, or nothing to do ─ the first
//!     else ─────────────────────────────────────── another
//! ```
//!
//! The host sets additional connections up on first need, one at a time; no operation waits for the setup. A broken one is taken
//! down, and its READs are sent again over the first connection, which finds the cause. If the node did not answer, and the
//! first connection is idle, the cause is known already.
//!
//! Key types: [`ExtraConnections`]; [`ExtraConnection`], one connection. The module does not take unused connections down.

use crate::connections::Connections;
use crate::control::{ControlRequestKind, Reply};
use crate::following::is_gone;
use crate::node_connection::{QueuedOp, RetryHistory, Source, overlap};
use crate::{Answer, Connection, Failure, Note, SetupFault, Sink};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;
use farmem_machine::{Duration, Instant, Port};
use farmem_transport::rc::{Arrivals, Completion, Requester, Work};
use farmem_wire::{Domain, NodeId, Packet, Qpn};

/// The additional connections of a host.
#[derive(Debug)]
pub(crate) struct ExtraConnections {
    /// Connections of a domain to a node, including the first.
    each: usize,
    all: Vec<ExtraConnection>,
    /// Pairs for which the control plane refused a connection. The host asks again later, or after the first
    /// connection was set up anew.
    paused: Vec<Pause>,
    /// True if a request on one of them ended; other operations may wait for it.
    pub(crate) has_ended: bool,
}

#[derive(Debug)]
struct Pause {
    domain: Domain,
    node: NodeId,
    until: Instant,
}

/// Time for which the host asks the control plane nothing after a refusal.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct ExtraConnection {
    domain: Domain,
    node: NodeId,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Being set up; with the number of the question.
    Requested(u64),
    Up(Qpn, Box<Requester>),
    /// Broken or rejected, and to be taken down; with the number of the question while one is open.
    Ending(Qpn, Option<u64>),
}

/// The placement of a READ that may overlap operations in flight.
enum Overlap {
    Nothing,
    /// On this connection, which carries all overlapping operations.
    One(usize),
    /// Behind all of them.
    Several,
}

impl ExtraConnections {
    pub(crate) const fn new(each: usize) -> Self {
        Self { each, all: Vec::new(), paused: Vec::new(), has_ended: false }
    }

    /// Returns true if one of these connections has the queue pair.
    pub(crate) fn has(&self, qpn: Qpn) -> bool {
        self.index_of(qpn).is_some()
    }

    /// Returns true if an operation that overlaps `work` is in flight on one of them.
    pub(crate) fn overlaps(&self, domain: Domain, work: &Work) -> bool {
        let of = self.all.iter().filter(|extra| extra.domain == domain);
        of.filter_map(ExtraConnection::requester).flat_map(Requester::works).any(|other| overlap(work, other))
    }

    /// Returns the place of the operations in flight that overlap a READ of this node.
    fn overlap_with(&self, domain: Domain, node: NodeId, work: &Work) -> Overlap {
        let mut met = Overlap::Nothing;
        for (at, extra) in self.all.iter().enumerate().filter(|(_, extra)| extra.domain == domain) {
            let works = extra.requester().into_iter().flat_map(Requester::works);
            if works.into_iter().any(|other| overlap(work, other)) {
                met = match met {
                    Overlap::Nothing if extra.node == node => Overlap::One(at),
                    _ => return Overlap::Several,
                };
            }
        }
        met
    }

    /// Returns the number of connections that are up.
    pub(crate) fn up(&self) -> usize {
        self.all.iter().filter(|extra| extra.requester().is_some()).count()
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.all.iter().filter_map(ExtraConnection::requester).map(Requester::outstanding).sum()
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.all.iter().filter_map(|extra| extra.requester()?.next_wake()).min()
    }

    /// Returns the number of connections that are up or being set up.
    pub(crate) fn count(&self) -> usize {
        self.all.iter().filter(|extra| !extra.is_ending()).count()
    }

    /// Forgets a connection with this queue pair that was to be taken down: the control plane has given the
    /// number to another.
    pub(crate) fn forget_ending(&mut self, qpn: Qpn) {
        self.all.retain(|extra| !matches!(extra.state, State::Ending(its, _) if its == qpn));
    }

    /// Records that the control plane refused.
    fn pause(&mut self, now: Instant, domain: Domain, node: NodeId) {
        self.paused.retain(|it| (it.domain, it.node) != (domain, node));
        self.paused.push(Pause { domain, node, until: now + PAUSE });
    }

    fn is_paused(&self, now: Instant, domain: Domain, node: NodeId) -> bool {
        self.paused.iter().any(|it| (it.domain, it.node) == (domain, node) && now < it.until)
    }

    fn index_of(&self, qpn: Qpn) -> Option<usize> {
        self.all.iter().position(|extra| matches!(extra.state, State::Up(its, _) if its == qpn))
    }

    fn count_of(&self, domain: Domain, node: NodeId) -> usize {
        self.all.iter().filter(|extra| extra.is(domain, node)).count()
    }

    /// Returns a connection that has room for `len` bytes; otherwise the one with the least in flight, if
    /// that is less than `most`.
    fn choose(&self, domain: Domain, node: NodeId, len: u64, most: u64) -> Option<usize> {
        let of = || self.all.iter().enumerate().filter(|(_, extra)| extra.is(domain, node));
        let up = || of().filter_map(|(at, extra)| Some((at, extra.requester()?)));
        let idle = up().find(|(_, it)| it.has_room_for(len)).map(|(at, _)| at);
        let least = || up().map(|(at, it)| (it.load(), at)).min().filter(|(load, _)| *load < most);
        idle.or_else(|| least().map(|(_, at)| at))
    }

    pub(crate) fn check(&self) {
        for extra in &self.all {
            let of = self.all.iter().filter(|it| it.is(extra.domain, extra.node) && !it.is_ending());
            assert!(of.count() < self.each, "no more connections than are wanted");
            if let State::Up(qpn, requester) = &extra.state {
                requester.check();
                assert!(!requester.is_broken(), "one that broke is taken down");
                let same = self.all.iter().filter(|it| matches!(it.state, State::Up(its, _) if its == *qpn));
                assert_eq!(same.count(), 1, "a queue pair is one connection's");
                assert!(requester.works().all(is_read), "READs go beside the first connection");
            }
        }
    }
}

impl ExtraConnection {
    fn is(&self, domain: Domain, node: NodeId) -> bool {
        self.domain == domain && self.node == node
    }

    const fn requester(&self) -> Option<&Requester> {
        match &self.state {
            State::Up(_, requester) => Some(requester),
            State::Requested(_) | State::Ending(..) => None,
        }
    }

    const fn is_ending(&self) -> bool {
        matches!(self.state, State::Ending(..))
    }
}

/// Returns true for operations that may use an additional connection.
const fn is_read(work: &Work) -> bool {
    matches!(work, Work::Read { .. } | Work::ReadTo { .. })
}

impl Connections {
    /// Returns true for a READ if a domain may have several connections to a node. Most hosts have one, and
    /// every operation asks.
    pub(crate) fn may_use_extra(&self, item: &QueuedOp, from: Source) -> bool {
        self.extra.each >= 2
            && from.is_behind()
            && is_read(&item.work)
            && item.history == RetryHistory::default()
    }

    /// Posts an operation that [may](Connections::may_go_beside) use an additional connection, if the first
    /// one, at `place`, has no room or an overlapping operation is there. Returns the operation if it belongs
    /// on the first.
    pub(crate) fn post_extra(
        &mut self,
        now: Instant,
        place: usize,
        item: QueuedOp,
        from: Source,
        out: &mut Sink,
    ) -> Option<QueuedOp> {
        let (line, len) = (&self.first[place], item.work.span());
        let (domain, node) = (line.domain, line.node);
        let at = match self.extra.overlap_with(domain, node, &item.work) {
            Overlap::One(at) if !line.overlaps(&item.work) => at,
            Overlap::One(_) | Overlap::Several => {
                self.wait(domain, item, from, out);
                return None;
            }
            Overlap::Nothing => {
                // A card has few queue pairs.
                let is_calm = line.gathers && line.queued.is_empty() && line.misdirected == 0;
                let up = line.requester.as_ref().filter(|it| is_calm && !it.is_broken());
                // An operation longer than a window has room nowhere.
                let full = up.filter(|it| it.load() > 0 && !it.has_room_for(len));
                let Some(load) = full.map(Requester::load) else { return Some(item) };
                if line.overlaps(&item.work) {
                    return Some(item);
                }
                self.widen(now, domain, node, out);
                let Some(at) = self.extra.choose(domain, node, len, load) else { return Some(item) };
                at
            }
        };
        let State::Up(_, requester) = &mut self.extra.all[at].state else {
            unreachable!("one that is up was chosen")
        };
        let QueuedOp { id, work, history } = item;
        if let Err(work) = requester.post(id, work) {
            // The connection has no room for more.
            self.wait(domain, QueuedOp { id, work, history }, from, out);
            return None;
        }
        requester.pump(now, out);
        self.finish_extra(now, at, out);
        None
    }

    /// Requests another connection if the limit allows one, and retries failed take-downs. One setup at a
    /// time; the next one is requested when it is up.
    fn widen(&mut self, now: Instant, domain: Domain, node: NodeId, out: &mut Sink) {
        if self.extra.is_paused(now, domain, node) {
            return;
        }
        let left =
            |extra: &ExtraConnection| extra.is(domain, node) && matches!(extra.state, State::Ending(_, None));
        for at in 0..self.extra.all.len() {
            if left(&self.extra.all[at])
                && let State::Ending(qpn, None) = self.extra.all[at].state
            {
                self.extra.all[at].state = State::Ending(
                    qpn,
                    Some(self.request_control(ControlRequestKind::DisconnectExtra { qpn }, out)),
                );
            }
        }
        let asks =
            |extra: &ExtraConnection| extra.is(domain, node) && matches!(extra.state, State::Requested(_));
        // First connections to other nodes keep half of the room.
        let count = self.extra.count();
        if self.extra.count_of(domain, node) + 1 < self.extra.each
            && count < self.connections_max / 2
            && self.first.len() + count < self.connections_max
            && !self.extra.all.iter().any(asks)
        {
            let state = State::Requested(
                self.request_control(ControlRequestKind::ConnectExtra { domain, node }, out),
            );
            self.extra.all.push(ExtraConnection { domain, node, state });
        }
    }

    /// Adds a connection that answers the question with this number. A connection that is no longer wanted is
    /// taken down, so that the host asks again later for a usable one.
    pub(crate) fn add_extra(
        &mut self,
        now: Instant,
        number: u64,
        setup: &Connection,
        is_taken: bool,
        out: &mut Sink,
    ) {
        let Connection { domain, node, ref rc, .. } = *setup;
        let asks = |extra: &ExtraConnection| matches!(extra.state, State::Requested(its) if its == number);
        let requested = self.extra.all.iter().position(asks).map(|at| self.extra.all.swap_remove(at));
        let is_right = requested.as_ref().is_some_and(|extra| extra.is(domain, node));
        if let Some(ExtraConnection { domain, node, .. }) = requested.filter(|_| is_taken || !is_right) {
            self.extra.pause(now, domain, node);
        }
        if is_taken || self.has(rc.qpn) {
            // The connection that has this number takes it down in its time.
            self.extra.pause(now, domain, node);
            return out.note(Note::Rejected(SetupFault::QueuePairTaken));
        }
        self.extra.forget_ending(rc.qpn);
        let state = if is_right {
            State::Up(rc.qpn, Box::new(Requester::new(*rc)))
        } else {
            out.note(Note::LateAnswer);
            State::Ending(
                rc.qpn,
                Some(self.request_control(ControlRequestKind::DisconnectExtra { qpn: rc.qpn }, out)),
            )
        };
        if is_right || self.extra.all.len() < self.connections_max {
            self.extra.all.push(ExtraConnection { domain, node, state });
        }
    }

    /// Handles the control plane's answer about an additional connection. Returns false if the question is
    /// not one of theirs.
    pub(crate) fn reply_extra(&mut self, now: Instant, number: u64, reply: &Reply, out: &mut Sink) -> bool {
        let asks = |extra: &ExtraConnection| match extra.state {
            State::Requested(its) | State::Ending(_, Some(its)) => its == number,
            State::Ending(_, None) | State::Up(..) => false,
        };
        let Some(at) = self.extra.all.iter().position(asks) else { return false };
        let extra = &mut self.extra.all[at];
        let (domain, node) = (extra.domain, extra.node);
        let failed = match (&mut extra.state, reply) {
            (State::Ending(..), Reply::Disconnected | Reply::NotFound) => false,
            (State::Ending(_, asked), _) => {
                *asked = None;
                true
            }
            _ => true,
        };
        if !(failed && extra.is_ending()) {
            self.extra.all.swap_remove(at);
        }
        if failed {
            out.note(Note::ReconnectFailed);
            self.extra.pause(now, domain, node);
        }
        true
    }

    pub(crate) fn packet_extra<'p>(
        &mut self,
        now: Instant,
        port: Port,
        packet: &Packet<'p>,
        arrivals: &mut Arrivals<'p>,
        out: &mut Sink,
    ) {
        let Some(at) = self.extra.index_of(packet.bth.dest_qp) else { return out.note(Note::NotForUs) };
        if let State::Up(_, requester) = &mut self.extra.all[at].state {
            requester.on_packet_among(now, port, packet, arrivals, out);
        }
        self.finish_extra(now, at, out);
    }

    pub(crate) fn wake_extra(&mut self, now: Instant, out: &mut Sink) {
        for at in 0..self.extra.all.len() {
            if let State::Up(_, requester) = &mut self.extra.all[at].state
                && requester.next_wake().is_some_and(|due| due <= now)
            {
                requester.on_wake(now, out);
                self.finish_extra(now, at, out);
            }
        }
    }

    /// Ends the additional connections to a node because its first connection was replaced. Their READs are
    /// sent again.
    pub(crate) fn renew_extra(&mut self, now: Instant, domain: Domain, node: NodeId, out: &mut Sink) {
        self.extra.paused.retain(|it| (it.domain, it.node) != (domain, node));
        for at in 0..self.extra.all.len() {
            let extra = &mut self.extra.all[at];
            if extra.is(domain, node)
                && let State::Up(_, requester) = &mut extra.state
            {
                requester.abandon(out);
                self.finish_extra(now, at, out);
            }
        }
    }

    /// Ends all additional connections. Operations in flight on them end as flushed.
    pub(crate) fn end_extra(&mut self, out: &mut Sink) {
        self.extra.paused.clear();
        for extra in mem::take(&mut self.extra.all) {
            let State::Up(_, mut requester) = extra.state else { continue };
            requester.abandon(out);
            while let Some(Completion { id, result, work }) = requester.pop_completion() {
                let result = result.map(|old| Answer::Done { old }).map_err(Failure::Connection);
                self.end(id, result, work, out);
            }
        }
    }

    /// Handles the completions of one connection. If it broke, its READs are sent again over the first.
    fn finish_extra(&mut self, now: Instant, at: usize, out: &mut Sink) {
        let (domain, node) = (self.extra.all[at].domain, self.extra.all[at].node);
        let (mut again, mut cause) = (VecDeque::new(), None);
        while let State::Up(qpn, requester) = &mut self.extra.all[at].state {
            let (qpn, is_broken) = (*qpn, requester.is_broken());
            let ended = requester.pop_completion();
            self.extra.has_ended |= ended.is_some();
            match ended {
                Some(Completion { id, result: Err(failure), work }) if is_broken => {
                    cause.get_or_insert(failure);
                    again.push_back(QueuedOp { id, work, history: RetryHistory::default() });
                }
                Some(Completion { id, result, work }) => {
                    let result = result.map(|old| Answer::Done { old }).map_err(Failure::Connection);
                    self.end(id, result, work, out);
                }
                None if is_broken => {
                    self.extra.all[at].state = State::Ending(
                        qpn,
                        Some(self.request_control(ControlRequestKind::DisconnectExtra { qpn }, out)),
                    );
                }
                None => break,
            }
        }
        let first = self.first.iter().position(|line| line.is(domain, node) && line.is_idle());
        match (cause, first) {
            // The node was silent for a full timeout: another wait would give the same result.
            (Some(cause), Some(place)) if is_gone(cause) => self.give_up(now, place, again, cause, out),
            _ => again.into_iter().for_each(|item| self.dispatch(now, domain, item, Source::Queued, out)),
        }
    }
}
