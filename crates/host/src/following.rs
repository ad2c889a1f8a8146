//! What becomes of operations whose connection breaks, or is not up: memory that moves to another node while it is used, memory that is lost, and
//! nodes that were gone (PROTOCOL 11.10).
//!
//! ```text
//!                      NAK 0x62, 0x63                    found elsewhere, or insisted once
//!   on a connection ────────────────────> Locating ──────────────────────────────────────┐
//!        ^     │       no answer             │ lost, believed, not known: it ends         │
//!        │     │                             │ and what is queued behind it goes on       │
//!        │     │ flushed, and surely         v                                            v
//!        │     └────────────────────> queued, in order <──────────────────────────────────┘
//!        │       not executed                │ its connection is down
//!        │                                   v
//!        └── up ── Connecting <── Disconnecting
//! ```
//!
//! What counts is how its own connection broke, and no other one. After NAK 0x62 nothing behind the refused request was executed (PROTOCOL 4.27):
//! all of it is asked again. When a connection broke by itself the host cannot know what was executed: READs are asked again, and what changes memory ends
//! as flushed. An operation of several nodes is one segment on each, so a refusal at one node says nothing of what was flushed at another. What goes
//! through the switch, traversals that store among it, is never asked again here: it has an id under which it is executed once.

use crate::connections::Connections;
use crate::lines::{From, QueuedOp, Recovery};
use crate::wants::{Located, Reply, Wish};
use crate::{Answer, Failure, Note, SetupFault, Sink};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farmem_machine::Instant;
use farmem_transport::rc::{self, Completion, Work};
use farmem_wire::Domain;

/// Times that one operation follows its bytes before it is given up: no rack moves them so often while it is under way.
pub const MOVES_MAX: u8 = 64;

impl Connections {
    /// Takes what ended on a connection. When it broke, what is asked again is queued from here on.
    pub(crate) fn finish(&mut self, now: Instant, place: usize, out: &mut Sink) {
        let line = &self.lines[place];
        // Others wait for what is astray or queued, and for no more of a connection that is up (`must_wait`).
        self.may_go_on |= !line.is_up() || line.astray > 0 || !line.queued.is_empty();
        if !line.is_up() {
            return self.finish_broken(now, place, out);
        }
        while let Some(Completion { id, result, work }) = self.lines[place].pop_completion() {
            if !self.trails.is_empty() {
                self.trails.remove(&id);
            }
            self.end_done(id, result, work, out);
        }
        if !self.lines[place].queued.is_empty() {
            // There may be room for what waited for it.
            self.release(now, place, out);
        }
    }

    /// As [`Connections::finish`] on a connection that is not up.
    fn finish_broken(&mut self, now: Instant, place: usize, out: &mut Sink) {
        let mut broke = None;
        let mut again = VecDeque::new();
        let mut leads = false;
        while let Some(Completion { id, result, work }) = self.lines[place].pop_completion() {
            let trail = self.trails.remove(&id);
            match result {
                Err(failure) => {
                    let cause = *broke.get_or_insert(failure);
                    if goes_on(cause, failure, &work) {
                        // Which piece of a gather READ was refused is not known: each is asked for by itself.
                        leads |= failure != rc::Failure::Flushed && !matches!(work, Work::Gather { .. });
                        let item = QueuedOp { id, work, trail: trail.unwrap_or_default() };
                        again.extend(self.apart(item));
                    } else {
                        self.end(id, Err(Failure::Connection(failure)), work, out);
                    }
                }
                done => self.end_done(id, done, work, out),
            }
        }
        if let Some(cause) = broke {
            let line = &mut self.lines[place];
            line.astray = 0;
            again.append(&mut line.queued);
            line.queued = again;
            self.settle(now, place, cause, leads, out);
        }
    }

    fn end_done(&mut self, id: u64, result: Result<u64, rc::Failure>, work: Work, out: &mut Sink) {
        let result = result.map(|old| Answer::Done { old }).map_err(Failure::Connection);
        self.end(id, result, work, out);
    }

    /// A connection with nothing under way is down as well as another one to its node, which broke for `cause` with these READs on it.
    pub(crate) fn give_up(
        &mut self,
        now: Instant,
        place: usize,
        reads: VecDeque<QueuedOp>,
        cause: rc::Failure,
        out: &mut Sink,
    ) {
        let line = &mut self.lines[place];
        if let Some(requester) = &mut line.requester {
            requester.abandon(out);
        }
        line.queued = reads;
        self.settle(now, place, cause, true, out);
    }

    /// A connection broke; `leads` when the first of what is queued is what broke it.
    fn settle(&mut self, now: Instant, place: usize, cause: rc::Failure, leads: bool, out: &mut Sink) {
        let Some(head) = self.lines[place].queued.front().filter(|_| leads) else {
            return self.release(now, place, out);
        };
        let (addr, len) = (head.work.addr(), head.work.span());
        let gone = is_gone(cause);
        if !gone && head.trail.moves >= MOVES_MAX {
            self.end_head(place, Failure::Connection(cause), out);
            return self.release(now, place, out);
        }
        let line = &self.lines[place];
        if !gone && !self.routes.are_at(addr, len, line.node, line.holds(addr)) {
            // Another operation has found out since this one was sent.
            self.follow(place, true, out);
            return self.release(now, place, out);
        }
        let number = self.want(Wish::Locate { addr }, out);
        self.lines[place].recovery = Recovery::Locating(number, cause);
    }

    /// The control plane's answer. One that no connection waits for changes nothing.
    pub(crate) fn reply(&mut self, now: Instant, number: u64, reply: &Reply, out: &mut Sink) {
        self.may_go_on = true;
        if let Some(unproven) = self.unproven.remove(&number) {
            return self.proven(now, unproven, reply, out);
        }
        if self.reply_beside(now, number, reply, out) {
            return;
        }
        let Some(place) = self.lines.iter().position(|line| line.recovery.waits_for(number)) else {
            return out.note(Note::LateAnswer);
        };
        match (self.lines[place].recovery, reply) {
            (Recovery::Locating(_, cause), _) => {
                self.located(place, cause, reply, out);
                self.release(now, place, out);
            }
            (Recovery::Disconnecting(_), Reply::Gone | Reply::NotFound) => {
                self.taken_down(place);
                self.reconnect(place, out);
            }
            (Recovery::Disconnecting(_) | Recovery::Connecting(_), _) => self.reconnect_failed(place, out),
            (Recovery::Idle, _) => unreachable!("it waits for nothing"),
        }
    }

    /// Whether an operation of several nodes stays in its allocation (PROTOCOL 7.45).
    fn proven(&mut self, now: Instant, unproven: (Domain, Vec<QueuedOp>), reply: &Reply, out: &mut Sink) {
        let (domain, items) = unproven;
        let mut items = items.into_iter();
        let item = items.next().expect("there is one that is asked about");
        let (addr, len) = (item.work.addr(), item.work.span());
        let failure = match reply {
            Reply::Located(found) if found.holds(addr, 1) => {
                self.learn(found, out);
                (!found.holds(addr, len)).then_some(Failure::OutOfBounds { addr })
            }
            // The node says what is wrong.
            Reply::NotFound => None,
            _ => Some(Failure::Unreachable { addr }),
        };
        match failure {
            Some(failure) => self.end(item.id, Err(failure), item.work, out),
            None => self.dispatch(now, domain, item, From::Proven, out),
        }
        for item in items {
            self.dispatch(now, domain, item, From::Queued, out);
        }
    }

    /// Where the first of what is queued is: whether it is asked again, or has its answer.
    fn located(&mut self, place: usize, cause: rc::Failure, reply: &Reply, out: &mut Sink) {
        let line = &self.lines[place];
        let head = line.queued.front().expect("what was refused is queued");
        let (addr, len, insisted) = (head.work.addr(), head.work.span(), head.trail.insisted);
        let Reply::Located(found) = reply else {
            return self.end_head(place, Failure::Connection(cause), out);
        };
        let gone = is_gone(cause);
        let learned = self.learn(found, out);
        if !gone && !found.holds(addr, len) {
            self.end_head(place, Failure::OutOfBounds { addr }, out);
        } else if let Some((addr, len)) = found.first_lost(addr, len) {
            self.end_head(place, Failure::Lost { addr, len }, out);
        } else if !gone && (learned || !insisted) {
            // When it is where it was thought to be it may have gone, and come back before the refusal was here.
            self.follow(place, learned, out);
        } else {
            if !gone {
                out.note(Note::Believed);
            }
            self.end_head(place, Failure::Connection(cause), out);
        }
    }

    fn learn(&mut self, found: &Located, out: &mut Sink) -> bool {
        let learned = self.routes.learn(found);
        if learned.is_none() {
            out.note(Note::NotTaken(SetupFault::Full));
        }
        if learned != Some(false) {
            self.look_for_strays();
        }
        learned.unwrap_or(true)
    }

    /// The first of what is queued is to be asked again: elsewhere, or where it was refused.
    fn follow(&mut self, place: usize, moved: bool, out: &mut Sink) {
        let head = self.lines[place].queued.front_mut().expect("what was refused is queued");
        head.trail.moves += 1;
        head.trail.insisted = !moved;
        out.note(if moved { Note::Followed } else { Note::Insisted });
    }

    /// The first of what is queued has its answer. What is behind it was not executed, and has done nothing wrong.
    fn end_head(&mut self, place: usize, failure: Failure, out: &mut Sink) {
        let head = self.lines[place].queued.pop_front().expect("what was refused is queued");
        self.end(head.id, Err(failure), head.work, out);
    }

    /// Sends all that is queued on its way, in order: over other connections, or over this one when it is up again.
    fn release(&mut self, now: Instant, place: usize, out: &mut Sink) {
        self.may_go_on = true;
        let line = &mut self.lines[place];
        line.recovery = Recovery::Idle;
        let domain = line.domain;
        for item in core::mem::take(&mut line.queued) {
            self.dispatch(now, domain, item, From::Queued, out);
        }
    }

    /// Has a connection set up that is down. A late request of the old one must find no responder, or it would be carried out after newer ones
    /// (PROTOCOL 9.6).
    pub(crate) fn reconnect(&mut self, place: usize, out: &mut Sink) {
        let (domain, node) = (self.lines[place].domain, self.lines[place].node);
        self.lines[place].recovery = match self.lines[place].qpn {
            Some(qpn) => Recovery::Disconnecting(self.want(Wish::Disconnect { qpn }, out)),
            None => Recovery::Connecting(self.want(Wish::Connect { domain, node }, out)),
        };
    }

    /// A connection cannot be set up now. The next operation tries again.
    pub(crate) fn reconnect_failed(&mut self, place: usize, out: &mut Sink) {
        out.note(Note::Unmended);
        let line = &mut self.lines[place];
        line.recovery = Recovery::Idle;
        for QueuedOp { id, work, .. } in core::mem::take(&mut line.queued) {
            self.end(id, Err(Failure::Unreachable { addr: work.addr() }), work, out);
        }
    }
}

/// Whether what failed so on a connection that broke for `cause` is queued, to be asked again or to be looked at.
const fn goes_on(cause: rc::Failure, failure: rc::Failure, work: &Work) -> bool {
    match (cause, failure) {
        // Nothing of it was executed.
        (rc::Failure::RemoteAccess, _) => true,
        // Whether its node lost it is asked.
        (_, failure) if is_gone(failure) => true,
        (_, rc::Failure::RemoteOperational | rc::Failure::Flushed) => {
            matches!(work, Work::Read { .. } | Work::ReadTo { .. } | Work::Gather { .. })
        }
        _ => false,
    }
}

/// True when the node did not answer, or put everything off for too long.
pub(crate) const fn is_gone(cause: rc::Failure) -> bool {
    matches!(cause, rc::Failure::RetriesExceeded | rc::Failure::RnrRetriesExceeded)
}
