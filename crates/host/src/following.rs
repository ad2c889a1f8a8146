//! Recovery of operations whose connection breaks or is down: memory that moves while in use, lost memory,
//! and nodes that were unreachable (PROTOCOL 11.10).
//!
//! ```text
//!                      NAK 0x62, 0x63                    found elsewhere, or retried once
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
//! How the operation's own connection broke decides, not any other connection.
//!
//! - After NAK 0x62 nothing behind the refused request was executed (PROTOCOL 4.27), so all of it is sent
//!   again.
//! - If a connection broke by itself, the host cannot know which requests were executed. READs are sent
//!   again; operations that change memory end as flushed.
//! - An operation over several nodes is one segment on each node, so a refusal at one node says nothing about
//!   segments flushed at another.
//! - Requests through the switch, including traversals that store, are never sent again here: each has an id
//!   under which it executes once.

use crate::connections::Connections;
use crate::control::{ControlRequestKind, Located, Reply};
use crate::node_connection::{QueuedOp, Recovery, Source};
use crate::{Answer, Failure, Note, SetupFault, Sink};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farmem_machine::{Duration, Instant};
use farmem_transport::rc::{self, Completion, Work};
use farmem_wire::Domain;

/// Time between two attempts to set up a connection.
const PAUSE: Duration = Duration::from_millis(500);

/// Maximum number of times that one operation follows its bytes. No rack moves memory so often during one
/// operation.
pub const MOVES_MAX: u8 = 64;

impl Connections {
    /// Handles the completions of a connection. If it broke, operations to be sent again are queued.
    pub(crate) fn finish(&mut self, now: Instant, place: usize, out: &mut Sink) {
        let line = &self.first[place];
        // Other operations wait only for misdirected or queued operations of a connection that is up
        // (`must_wait`).
        self.may_dispatch |= !line.is_up() || line.misdirected > 0 || !line.queued.is_empty();
        if !line.is_up() {
            return self.finish_broken(now, place, out);
        }
        while let Some(Completion { id, result, work }) = self.first[place].pop_completion() {
            if !self.histories.is_empty() {
                self.histories.remove(&id);
            }
            self.end_done(id, result, work, out);
        }
        if !self.first[place].queued.is_empty() {
            // There may be room for queued operations now.
            self.release(now, place, out);
        }
    }

    /// Handles completions as [`Connections::finish`] does, on a connection that is not up.
    fn finish_broken(&mut self, now: Instant, place: usize, out: &mut Sink) {
        let mut broke = None;
        let mut again = VecDeque::new();
        let mut leads = false;
        while let Some(Completion { id, result, work }) = self.first[place].pop_completion() {
            let history = self.histories.remove(&id);
            match result {
                Err(failure) => {
                    let cause = *broke.get_or_insert(failure);
                    if is_recoverable(cause, failure, &work) {
                        // The refused piece of a gather READ is unknown, so each piece is sent by itself.
                        leads |= failure != rc::Failure::Flushed && !matches!(work, Work::Gather { .. });
                        let item = QueuedOp { id, work, history: history.unwrap_or_default() };
                        again.extend(self.split_gather(item));
                    } else {
                        self.end(id, Err(Failure::Connection(failure)), work, out);
                    }
                }
                done => self.end_done(id, done, work, out),
            }
        }
        if let Some(cause) = broke {
            let line = &mut self.first[place];
            line.misdirected = 0;
            again.append(&mut line.queued);
            line.queued = again;
            self.settle(now, place, cause, leads, out);
        }
    }

    fn end_done(&mut self, id: u64, result: Result<u64, rc::Failure>, work: Work, out: &mut Sink) {
        let result = result.map(|old| Answer::Done { old }).map_err(Failure::Connection);
        self.end(id, result, work, out);
    }

    /// Takes down an idle connection because another connection to its node broke for `cause` with these
    /// READs on it.
    pub(crate) fn give_up(
        &mut self,
        now: Instant,
        place: usize,
        reads: VecDeque<QueuedOp>,
        cause: rc::Failure,
        out: &mut Sink,
    ) {
        let line = &mut self.first[place];
        if let Some(requester) = &mut line.requester {
            requester.abandon(out);
        }
        line.queued = reads;
        self.settle(now, place, cause, true, out);
    }

    /// Starts recovery of a broken connection. `leads` is true if the first queued operation caused the
    /// break.
    fn settle(&mut self, now: Instant, place: usize, cause: rc::Failure, leads: bool, out: &mut Sink) {
        let Some(head) = self.first[place].queued.front().filter(|_| leads) else {
            return self.release(now, place, out);
        };
        let (addr, len) = (head.work.addr(), head.work.span());
        let gone = is_gone(cause);
        if !gone && head.history.moves >= MOVES_MAX {
            self.end_head(place, Failure::Connection(cause), out);
            return self.release(now, place, out);
        }
        let line = &self.first[place];
        if !gone && !self.routes.are_at(addr, len, line.node, line.holds(addr)) {
            // Another operation has learnt the new location since this one was sent.
            self.follow(place, true, out);
            return self.release(now, place, out);
        }
        let number = self.request_control(ControlRequestKind::Locate { addr }, out);
        self.first[place].recovery = Recovery::Locating(number, cause);
    }

    /// Handles the control plane's answer. An answer that no connection waits for changes nothing.
    pub(crate) fn reply(&mut self, now: Instant, number: u64, reply: &Reply, out: &mut Sink) {
        self.may_dispatch = true;
        if let Some(unproven) = self.unproven.remove(&number) {
            return self.proven(now, unproven, reply, out);
        }
        if self.reply_extra(now, number, reply, out) || self.undoubt(now, number, reply, out) {
            return;
        }
        let Some(place) = self.first.iter().position(|line| line.recovery.waits_for(number)) else {
            return out.note(Note::LateAnswer);
        };
        match (self.first[place].recovery, reply) {
            (Recovery::Locating(_, cause), _) => {
                self.located(place, cause, reply, out);
                self.release(now, place, out);
            }
            (Recovery::Disconnecting(_), Reply::Disconnected | Reply::NotFound) => {
                self.disconnected(place);
                self.reconnect(place, out);
            }
            (Recovery::Connecting(_), Reply::NotFound) => self.fail_queued(place, out),
            (Recovery::Disconnecting(_) | Recovery::Connecting(_), _) => {
                self.reconnect_failed(now, place, out);
            }
            (Recovery::Idle | Recovery::Pausing(_), _) => unreachable!("it waits for nothing"),
        }
    }

    /// Handles the answer to whether an operation over several nodes stays in its allocation (PROTOCOL 7.45).
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
            // The node will report what is wrong.
            Reply::NotFound => None,
            _ => Some(Failure::Unreachable { addr }),
        };
        match failure {
            Some(failure) => self.end(item.id, Err(failure), item.work, out),
            None => self.dispatch(now, domain, item, Source::Proven, out),
        }
        for item in items {
            self.dispatch(now, domain, item, Source::Queued, out);
        }
    }

    /// Handles the location of the first queued operation: sends the operation again, or ends it.
    fn located(&mut self, place: usize, cause: rc::Failure, reply: &Reply, out: &mut Sink) {
        let line = &self.first[place];
        let head = line.queued.front().expect("what was refused is queued");
        let (addr, len, retried_in_place) =
            (head.work.addr(), head.work.span(), head.history.retried_in_place);
        let Reply::Located(found) = reply else {
            return self.end_head(place, Failure::Connection(cause), out);
        };
        let gone = is_gone(cause);
        // A READ does no harm when it is carried out twice; whether its node is back only another connection shows.
        let again = gone
            && !retried_in_place
            && line.patient_until.is_none()
            && self.patience > Duration::from_nanos(0)
            && is_read(&head.work);
        let learned = self.learn(found, out);
        if !gone && !found.holds(addr, len) {
            self.end_head(place, Failure::OutOfBounds { addr }, out);
        } else if let Some((addr, len)) = found.first_lost(addr, len) {
            self.end_head(place, Failure::Lost { addr, len }, out);
        } else if again || !gone && (learned || !retried_in_place) {
            // If the location is unchanged, the memory may have moved away and come back before the refusal
            // arrived.
            self.follow(place, learned, out);
        } else {
            if !gone {
                out.note(Note::RefusedAgain);
            }
            self.end_head(place, Failure::Connection(cause), out);
        }
    }

    fn learn(&mut self, found: &Located, out: &mut Sink) -> bool {
        let learned = self.routes.learn(found);
        if learned.is_none() {
            out.note(Note::Rejected(SetupFault::Full));
        }
        if learned != Some(false) {
            self.mark_misdirected();
        }
        learned.unwrap_or(true)
    }

    /// Records that the first queued operation is sent again, elsewhere or to the node that refused it.
    fn follow(&mut self, place: usize, moved: bool, out: &mut Sink) {
        let head = self.first[place].queued.front_mut().expect("what was refused is queued");
        head.history.moves += 1;
        head.history.retried_in_place = !moved;
        out.note(if moved { Note::Followed } else { Note::RetriedInPlace });
    }

    /// Ends the first queued operation. The operations behind it were not executed and are not at fault.
    fn end_head(&mut self, place: usize, failure: Failure, out: &mut Sink) {
        let head = self.first[place].queued.pop_front().expect("what was refused is queued");
        self.end(head.id, Err(failure), head.work, out);
    }

    /// Dispatches all queued operations in order: over other connections, or over this one once it is up
    /// again.
    fn release(&mut self, now: Instant, place: usize, out: &mut Sink) {
        self.may_dispatch = true;
        let line = &mut self.first[place];
        line.recovery = Recovery::Idle;
        let domain = line.domain;
        for item in core::mem::take(&mut line.queued) {
            self.dispatch(now, domain, item, Source::Queued, out);
        }
    }

    /// Sets up a connection that is down. The old queue pair is destroyed first: a late request of it must
    /// find no responder, or it would execute after newer ones (PROTOCOL 9.6).
    pub(crate) fn reconnect(&mut self, place: usize, out: &mut Sink) {
        let (domain, node) = (self.first[place].domain, self.first[place].node);
        self.first[place].recovery = match self.first[place].qpn {
            Some(qpn) => {
                Recovery::Disconnecting(self.request_control(ControlRequestKind::Disconnect { qpn }, out))
            }
            None => {
                Recovery::Connecting(self.request_control(ControlRequestKind::Connect { domain, node }, out))
            }
        };
    }

    /// Handles a failed connection setup. It is tried again while the host has patience. After that, each
    /// operation tries once.
    pub(crate) fn reconnect_failed(&mut self, now: Instant, place: usize, out: &mut Sink) {
        let until = *self.first[place].patient_until.get_or_insert(now + self.patience);
        if now < until {
            out.note(Note::ReconnectFailed);
            self.first[place].recovery = Recovery::Pausing(now + PAUSE);
            return;
        }
        self.fail_queued(place, out);
    }

    /// Fails the operations that wait for a connection.
    fn fail_queued(&mut self, place: usize, out: &mut Sink) {
        out.note(Note::ReconnectFailed);
        let line = &mut self.first[place];
        line.recovery = Recovery::Idle;
        for QueuedOp { id, work, .. } in core::mem::take(&mut line.queued) {
            self.end(id, Err(Failure::Unreachable { addr: work.addr() }), work, out);
        }
    }
}

/// Returns true if the operation changes nothing.
const fn is_read(work: &Work) -> bool {
    matches!(work, Work::Read { .. } | Work::ReadTo { .. } | Work::Gather { .. })
}

/// Returns true if an operation that failed this way on a connection that broke for `cause` is queued for
/// recovery.
const fn is_recoverable(cause: rc::Failure, failure: rc::Failure, work: &Work) -> bool {
    match (cause, failure) {
        // No request behind the refused one was executed.
        (rc::Failure::RemoteAccess, _) => true,
        // The control plane knows whether the node lost the memory.
        (_, failure) if is_gone(failure) => true,
        (_, rc::Failure::RemoteOperational | rc::Failure::Flushed) => is_read(work),
        _ => false,
    }
}

/// Returns true if the node did not answer, or answered RNR for too long.
pub(crate) const fn is_gone(cause: rc::Failure) -> bool {
    matches!(cause, rc::Failure::RetriesExceeded | rc::Failure::RnrRetriesExceeded)
}
