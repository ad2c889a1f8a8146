//! The rack as the control plane knows it: the state, its log, and the requests that wait for changes.
//!
//! [`Rack::keep`] is the only way to change the state. Modules above decide requests and carry out what time and messages require.

mod builds;
mod losses;
mod proofs;
mod replies;
mod usage;

use crate::api::LossCounts;
use crate::config::Config;
use crate::files::Files;
use crate::idle::Idle;
use crate::link::RetryTimer;
use crate::log::{LogState, Stalled};
use crate::messages::{Actions, Out, Submitted, reply};
use crate::note::Note;
use crate::presence::Presence;
use crate::probes::Probe;
use crate::record::{ChangeKind, Line, Record, Role, RollbackReason};
use crate::state::{Effect, State};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use farmem_machine::{Instant, Rng};
use farmem_wire::Psn;
use proofs::Proofs;

/// Maximum number of times that a request is restarted. A request restarts if a role that it needs joins again
/// while the request is pending.
pub const RESTARTS_MAX: u32 = 3;

/// An unanswered request.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) ask: Submitted,
    pub(crate) restarts: u32,
}

/// The rack: the state and everything that decisions about it need.
#[derive(Debug)]
pub(crate) struct Rack {
    pub(crate) config: Config,
    pub(crate) rng: Rng,
    pub(crate) state: State,
    pub(crate) log: LogState,
    /// Requests whose change is in flight, by change.
    pub(crate) asked: BTreeMap<u64, Pending>,
    /// Requests that wait for another one with the same resource, in order.
    pub(crate) waiting: VecDeque<Pending>,
    pub(crate) retry_timers: BTreeMap<Role, RetryTimer>,
    pub(crate) probes: BTreeMap<Role, Probe>,
    pub(crate) losses: LossCounts,
    pub(crate) proofs: Proofs,
    pub(crate) files: Files,
    pub(crate) idle: Idle,
    pub(crate) presence: Presence,
    /// True if the routes of switches may have changed.
    pub(crate) routes_due: bool,
    /// True if the state has changed since images were last checked.
    pub(crate) state_changed: bool,
    /// Number of questions so far, to match answers.
    pub(crate) questions: u32,
    /// The time of the current event.
    pub(crate) now: Instant,
    /// The PSN of the next frame; only for readers of traces.
    pub(crate) psn: Psn,
}

impl Rack {
    /// Returns a new rack, without members.
    pub(crate) fn new(config: Config, rng: Rng) -> Self {
        Self {
            config,
            rng,
            state: State::default(),
            log: LogState::default(),
            asked: BTreeMap::new(),
            waiting: VecDeque::new(),
            retry_timers: BTreeMap::new(),
            probes: BTreeMap::new(),
            losses: LossCounts::default(),
            proofs: Proofs::default(),
            files: Files::default(),
            idle: Idle::default(),
            presence: Presence::default(),
            routes_due: false,
            state_changed: true,
            questions: 0,
            now: Instant::ZERO,
            psn: Psn::new(0),
        }
    }

    /// Stores a line, applies it, and carries out the effects. The state changes only here. A line that is not stored changes nothing, and its cause comes
    /// again.
    pub(crate) fn keep(&mut self, line: Line, out: &mut Actions) -> Result<(), Stalled> {
        let record = Record(line);
        self.append(&record, out)?;
        let mut effects = Vec::new();
        let fits = self.state.apply(&record.0, &mut effects);
        assert_eq!(fits, Ok(()), "a line of our own fits our own state");
        let is_of_members = |effect: &Effect| match effect {
            Effect::Ended { what, .. } => what.is_membership(),
            Effect::Peer(_) | Effect::MustRejoin(_) => true,
        };
        self.state_changed = true;
        self.idle.changed();
        self.presence.changed();
        self.routes_due |= effects.iter().any(is_of_members) || matches!(record.0, Line::Silent { .. });
        if !self.has_log() {
            out.local(Out::Persist(record));
        }
        for effect in effects {
            match effect {
                Effect::Peer(change) => out.local(Out::Peer(change)),
                Effect::MustRejoin(role) => out.note(Note::MustRejoin(role)),
                Effect::Ended { change, what, result } => {
                    if result.is_err() {
                        out.note(Note::TakenBack);
                    }
                    if let (ChangeKind::JoinNode { node, again: true, .. }, Ok(())) = (&what, &result) {
                        self.count_rejoin(*node);
                    }
                    let Some(pending) = self.asked.remove(&change) else { continue };
                    match result {
                        Ok(()) => reply(pending.ask.ticket, Ok(self.success(&what)), out),
                        // An owner that accepts a loss does not know of the loss by this join.
                        Err(RollbackReason::Joined { .. })
                            if pending.restarts < RESTARTS_MAX
                                && !matches!(what, ChangeKind::AcceptLost { .. }) =>
                        {
                            out.note(Note::BegunAnew);
                            let restarts = pending.restarts + 1;
                            self.waiting.push_front(Pending { restarts, ..pending });
                        }
                        Err(why) => reply(pending.ask.ticket, Err(self.state.explain(why)), out),
                    }
                }
            }
        }
        Ok(())
    }

    /// Begins a change that no caller requested.
    pub(crate) fn begin(&mut self, what: ChangeKind, out: &mut Actions) -> Result<(), Stalled> {
        let change = self.state.next_change;
        self.keep(Line::Began { change, what }, out)
    }
}
