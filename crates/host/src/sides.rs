//! Connections of a domain to a memory node beside the first (SODA IV-B: "multiple independent QPs"). They carry READs, and only where many requests are under way (PROTOCOL 11.16).
//!
//! A connection has a window: what is posted beyond it waits for answers, however long the way is. Where the first one's is full, READs go over others. Everything that changes memory goes over the first, so
//! what it has of order it keeps; and between the two that order is kept by where an operation may be:
//!
//! ```text
//!   a READ                                                       a WRITE or atomic
//!     a byte in common with a change under way ── the first        a READ with a byte of it is on another ── waits
//!     the first has room ─────────────────────── the first        else ──────────────────────────────────── the first
//!     else ───────────────────────────────────── another
//! ```
//!
//! They are set up when they are wanted first. One that breaks is taken down, and its READs are asked again over the first, which finds out what there is to find out.

use crate::connections::Connections;
use crate::lines::{From, QueuedOp, Trail, overlap};
use crate::wants::{Reply, Wish};
use crate::{Answer, Connection, Failure, Note, SetupFault, Sink};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;
use farmem_machine::{Instant, Port};
use farmem_transport::rc::{Arrivals, Completion, Requester, Work};
use farmem_wire::{Domain, NodeId, Packet, Qpn};

/// The connections beside the first ones.
#[derive(Debug)]
pub(crate) struct Sides {
    /// Connections of a domain to a node, the first included.
    each: usize,
    all: Vec<Side>,
    /// Where none could be set up: it is tried again when the first one was set up anew.
    refused: Vec<(Domain, NodeId)>,
}

#[derive(Debug)]
struct Side {
    domain: Domain,
    node: NodeId,
    state: State,
}

#[derive(Debug)]
enum State {
    /// It is being set up; with the number of the question.
    Wanted(u64),
    Up(Qpn, Box<Requester>),
    /// It broke, and is being taken down; with the number of the question.
    Ending(u64),
}

impl Sides {
    pub(crate) const fn new(each: usize) -> Self {
        Self { each, all: Vec::new(), refused: Vec::new() }
    }

    /// True when the queue pair is one of theirs.
    pub(crate) fn has(&self, qpn: Qpn) -> bool {
        self.place_of(qpn).is_some()
    }

    /// True when something with bytes of `work` is under way on one of them.
    pub(crate) fn meet(&self, domain: Domain, work: &Work) -> bool {
        let of = self.all.iter().filter(|side| side.domain == domain);
        of.filter_map(Side::requester).flat_map(Requester::works).any(|other| overlap(work, other))
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.all.iter().filter_map(Side::requester).map(Requester::outstanding).sum()
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.all.iter().filter_map(|side| side.requester()?.next_wake()).min()
    }

    /// How many there are, whatever is done about them.
    pub(crate) const fn count(&self) -> usize {
        self.all.len()
    }

    fn place_of(&self, qpn: Qpn) -> Option<usize> {
        self.all.iter().position(|side| matches!(side.state, State::Up(its, _) if its == qpn))
    }

    fn count_of(&self, domain: Domain, node: NodeId) -> usize {
        self.all.iter().filter(|side| side.is(domain, node)).count()
    }

    /// The one that has room for so many bytes; else the one with the least under way, where that is less than `most`.
    fn choose(&self, domain: Domain, node: NodeId, len: u64, most: u64) -> Option<usize> {
        let of = || self.all.iter().enumerate().filter(|(_, side)| side.is(domain, node));
        let up = || of().filter_map(|(at, side)| Some((at, side.requester()?)));
        let idle = up().find(|(_, it)| it.has_room_for(len)).map(|(at, _)| at);
        let least = || up().map(|(at, it)| (it.load(), at)).min().filter(|(load, _)| *load < most);
        idle.or_else(|| least().map(|(_, at)| at))
    }

    pub(crate) fn check(&self) {
        for side in &self.all {
            assert!(self.count_of(side.domain, side.node) < self.each, "no more connections than are wanted");
            if let State::Up(qpn, requester) = &side.state {
                requester.check();
                assert!(!requester.is_broken(), "one that broke is taken down");
                let same = self.all.iter().filter(|it| matches!(it.state, State::Up(its, _) if its == *qpn));
                assert_eq!(same.count(), 1, "a queue pair is one connection's");
                assert!(requester.works().all(is_read), "READs go beside the first connection");
            }
        }
    }
}

impl Side {
    fn is(&self, domain: Domain, node: NodeId) -> bool {
        self.domain == domain && self.node == node
    }

    const fn requester(&self) -> Option<&Requester> {
        match &self.state {
            State::Up(_, requester) => Some(requester),
            State::Wanted(_) | State::Ending(_) => None,
        }
    }
}

/// True for what may go beside the first connection.
const fn is_read(work: &Work) -> bool {
    matches!(work, Work::Read { .. } | Work::ReadTo { .. })
}

impl Connections {
    /// Gives a READ to a connection beside the first, at `place`, when that has no room for it; gives it back when it is for the first.
    pub(crate) fn post_beside(
        &mut self,
        now: Instant,
        place: usize,
        item: QueuedOp,
        from: From,
        out: &mut Sink,
    ) -> Option<QueuedOp> {
        if self.sides.each < 2 || !from.is_behind() || !is_read(&item.work) || item.trail != Trail::default()
        {
            return Some(item);
        }
        let (line, len) = (&self.lines[place], item.work.span());
        let (domain, node) = (line.domain, line.node);
        // A card has few queue pairs.
        let is_calm = line.gathers && line.queued.is_empty() && line.astray == 0;
        let up = line.requester.as_ref().filter(|it| is_calm && !it.is_broken() && !it.has_room_for(len));
        let Some(first) = up else { return Some(item) };
        if first.works().any(|other| !is_read(other) && overlap(other, &item.work)) {
            return Some(item);
        }
        let load = first.load();
        self.widen(domain, node, out);
        let Some(at) = self.sides.choose(domain, node, len, load) else { return Some(item) };
        let State::Up(_, requester) = &mut self.sides.all[at].state else {
            unreachable!("one that is up was chosen")
        };
        let QueuedOp { id, work, trail } = item;
        if let Err(work) = requester.post(id, work) {
            return Some(QueuedOp { id, work, trail });
        }
        requester.pump(now, out);
        self.finish_side(now, at, out);
        None
    }

    /// Has as many set up as there are to be.
    fn widen(&mut self, domain: Domain, node: NodeId, out: &mut Sink) {
        while self.sides.count_of(domain, node) + 1 < self.sides.each
            && self.lines.len() + self.sides.count() < self.lines_max
            && !self.sides.refused.contains(&(domain, node))
        {
            let state = State::Wanted(self.want(Wish::Beside { domain, node }, out));
            self.sides.all.push(Side { domain, node, state });
        }
    }

    /// Takes one in.
    pub(crate) fn add_beside(&mut self, setup: &Connection, out: &mut Sink) {
        let Connection { domain, node, ref rc, .. } = *setup;
        let wanted = |side: &Side| side.is(domain, node) && matches!(side.state, State::Wanted(_));
        let Some(at) = self.sides.all.iter().position(wanted) else {
            return out.note(Note::LateAnswer);
        };
        if self.has(rc.qpn) {
            self.sides.all.swap_remove(at);
            return out.note(Note::NotTaken(SetupFault::QueuePairTaken));
        }
        self.sides.all[at].state = State::Up(rc.qpn, Box::new(Requester::new(*rc)));
    }

    /// The control plane's answer about one of them; false when the question was none of theirs.
    pub(crate) fn reply_beside(&mut self, number: u64, reply: &Reply, out: &mut Sink) -> bool {
        let asks = |side: &Side| match side.state {
            State::Wanted(its) | State::Ending(its) => its == number,
            State::Up(..) => false,
        };
        let Some(at) = self.sides.all.iter().position(asks) else { return false };
        let side = self.sides.all.swap_remove(at);
        if matches!(side.state, State::Wanted(_)) || matches!(reply, Reply::Unavailable) {
            out.note(Note::Unmended);
            self.sides.refused.push((side.domain, side.node));
        }
        true
    }

    pub(crate) fn packet_beside<'p>(
        &mut self,
        now: Instant,
        port: Port,
        packet: &Packet<'p>,
        arrivals: &mut Arrivals<'p>,
        out: &mut Sink,
    ) {
        let Some(at) = self.sides.place_of(packet.bth.dest_qp) else { return out.note(Note::NotForUs) };
        if let State::Up(_, requester) = &mut self.sides.all[at].state {
            requester.on_packet_among(now, port, packet, arrivals, out);
        }
        self.finish_side(now, at, out);
    }

    pub(crate) fn wake_beside(&mut self, now: Instant, out: &mut Sink) {
        for at in 0..self.sides.count() {
            if let State::Up(_, requester) = &mut self.sides.all[at].state
                && requester.next_wake().is_some_and(|due| due <= now)
            {
                requester.on_wake(now, out);
                self.finish_side(now, at, out);
            }
        }
    }

    /// The first connection to a node is another one: those beside it may be gone as well. Their READs are asked again.
    pub(crate) fn renew_beside(&mut self, now: Instant, domain: Domain, node: NodeId, out: &mut Sink) {
        self.sides.refused.retain(|refused| *refused != (domain, node));
        for at in 0..self.sides.count() {
            let side = &mut self.sides.all[at];
            if side.is(domain, node)
                && let State::Up(_, requester) = &mut side.state
            {
                requester.abandon(out);
                self.finish_side(now, at, out);
            }
        }
    }

    /// All of them are gone; what is under way on them ends as flushed.
    pub(crate) fn end_beside(&mut self, out: &mut Sink) {
        self.sides.refused.clear();
        for side in mem::take(&mut self.sides.all) {
            let State::Up(_, mut requester) = side.state else { continue };
            requester.abandon(out);
            while let Some(Completion { id, result, work }) = requester.pop_completion() {
                let result = result.map(|old| Answer::Done { old }).map_err(Failure::Connection);
                self.end(id, result, work, out);
            }
        }
    }

    /// Takes what ended on one of them. When it broke, its READs are asked again over the first.
    fn finish_side(&mut self, now: Instant, at: usize, out: &mut Sink) {
        let domain = self.sides.all[at].domain;
        let mut again = Vec::new();
        while let State::Up(qpn, requester) = &mut self.sides.all[at].state {
            let (qpn, is_broken) = (*qpn, requester.is_broken());
            match requester.pop_completion() {
                Some(Completion { id, result: Err(_), work }) if is_broken => {
                    again.push(QueuedOp { id, work, trail: Trail::default() });
                }
                Some(Completion { id, result, work }) => {
                    let result = result.map(|old| Answer::Done { old }).map_err(Failure::Connection);
                    self.end(id, result, work, out);
                }
                None if is_broken => {
                    self.sides.all[at].state = State::Ending(self.want(Wish::Disconnect { qpn }, out));
                }
                None => break,
            }
        }
        for item in again {
            self.dispatch(now, domain, item, From::Queued, out);
        }
    }
}
