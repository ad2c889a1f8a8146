//! The control role: membership, allocation, domains, connection set-up, table updates (MIND 4.1, 4.2, 6).
//!
//! One logical controller knows the whole rack. People, programs and roles send it requests ([`api`]). It decides, updates the switch and the memory nodes,
//! records each decision in a log ([`Record`]), and answers when the tables are in place. It is not on the data path: no READ, WRITE or traversal passes here.
//!
//! The state changes only by applying lines of the log, so that a restart rebuilds it exactly (docs/protocol/08-the-control-plane.md).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod acting_hosts;
mod allocate;
pub mod api;
mod bounds;
mod builds;
mod card_numbers;
mod cards;
mod change;
mod claims;
mod coherence;
mod errors;
mod fabric;
mod files;
mod grants;
mod idle;
mod invariants;
pub mod keys;
mod link;
mod log;
mod losses;
mod lost_memory;
mod members;
mod migrate;
mod names;
mod note;
mod pieces;
mod presence;
mod probes;
mod processes;
mod record;
mod replies;
mod requests;
pub mod reset;
mod soft;
pub mod splitting;
mod state;
mod syscalls;
mod tables;
mod updates;
mod usage;

pub use acting_hosts::ACTS_MAX;
pub use allocate::{PAGE, VA_END};
pub use bounds::{
    Bounds, CONNECTIONS_MAX, DOMAINS_MAX, GRANTS_MAX, HOSTS_MAX, LOST_MAX, NODES_MAX, OBJECTS_MAX,
    PENDING_MAX, PIECES_MAX, PROCESSES_MAX, SESSIONS_MAX, VMAS_MAX,
};
pub use builds::{BUILD_LEN_MAX, is_build};
pub use change::MISSED_MAX;
pub use coherence::{RECOVERS, RESETS_MAX};
pub use fabric::{BELOW_MAX, INDEX_MAX};
pub use log::{COMPACT_LINES_MIN, COMPACT_RATIO, Log, NotKept, STALL_RETRY};
pub use losses::Held;
pub use migrate::MIGRATE_LEN_MAX;
pub use names::OBJECT_NAME_MAX;
pub use note::{DropReason, Note};
pub use record::{Record, Role};
pub use soft::{COUNTS_ANEW_MAX, DAMAGED_MAX, SOFT_BURST, SOFT_PACE, SOFT_WINDOW};

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use api::{ApiError, ErrorCode, LossCounts, Request, Response};
use claims::Need;
use coherence::Coherence;
use core::fmt;
use farmem_machine::{Duration, Event, Instant, Machine, Outbox, Rng};
use farmem_transport::PeerChange;
use farmem_wire::{Gid, Pmtu, Psn};
use files::Files;
use idle::Idle;
use keys::{Secret, Shown};
use link::RetryTimer;
use log::{LogState, Stalled};
use presence::Presence;
use probes::Probe;
use record::{ChangeKind, Line, RollbackReason};
use replies::reply;
use requests::Decision;
use soft::{Counting, Soft};
use state::{Effect, State};

/// Maximum length of a name in characters.
pub const NAME_LEN_MAX: usize = 64;
/// Default time for which a host may use cached pages after its last renewal. A host on a busy machine renews three times in it, and waits for a CPU for
/// seconds at worst. Others wait for the pages of a dead host for this time and an eighth more.
pub const LEASE: Duration = Duration::from_secs(10);
/// Default time for which a host's resources, and a domain without users, stay: six leases, so that a host which lost its pages because it stood still may
/// continue.
pub const HOST_LEASE: Duration = Duration::from_secs(60);
/// Maximum number of restarts of a request because a role it needs joined meanwhile.
pub const RESTARTS_MAX: u32 = 3;

/// The configuration of the control plane.
#[derive(Clone, Debug)]
pub struct Config {
    /// The control plane's address.
    pub gid: Gid,
    /// The first address of far memory; a multiple of [`PAGE`], not 0, below [`VA_END`].
    pub va_base: u64,
    /// The path MTU of the connections it sets up.
    pub pmtu: Pmtu,
    /// Time without an answer after which a batch of updates is sent again; doubles up to 8 times.
    pub timeout: Duration,
    /// Number of retransmissions of a batch before no change waits for the role any more. They continue at 8 times `timeout`.
    pub retries_max: u32,
    /// Time for which a host that caches pages may continue without contact.
    pub lease: Duration,
    /// Time for which a host without contact, and a domain without sessions and connections, stay; at least `lease`. `None`: for ever, as in a rack that ends
    /// with its only program.
    pub host_lease: Option<Duration>,
    /// Time between two listings of the directory; after each, regions are split and merged.
    pub epoch: Duration,
    /// The limits.
    pub bounds: Bounds,
    /// The secret of the keys of hosts, nodes, switches and domains. `None`: every caller may do everything, as in a rack inside one process.
    pub secret: Option<Secret>,
    /// The control plane's build of farmem, if reported (PROTOCOL 8.71).
    pub build: Option<String>,
    /// Time after which an idle role is probed. `None`: idle roles are not probed.
    pub probe: Option<Duration>,
    /// The names of the memory nodes that the rack is described with. A node of this list gets its place in
    /// it, from 1 on, as its number.
    pub node_names: Vec<String>,
}

impl Config {
    /// Returns the default configuration of a rack whose control plane is at `gid`.
    #[must_use]
    pub fn new(gid: Gid) -> Self {
        Self {
            gid,
            va_base: 0x1000_0000_0000,
            pmtu: Pmtu::B1024,
            timeout: Duration::from_millis(50),
            retries_max: 10,
            lease: LEASE,
            host_lease: Some(HOST_LEASE),
            epoch: splitting::EPOCH,
            bounds: Bounds::default(),
            secret: None,
            build: None,
            probe: None,
            node_names: Vec::new(),
        }
    }
}

/// A request with its ticket and credentials.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Submitted {
    /// The driver's ticket; [`Out::Reply`] returns it exactly once.
    pub ticket: u64,
    /// The request.
    pub request: Request,
    /// The caller's credentials.
    pub shown: Shown,
}

impl Submitted {
    /// Returns a request without credentials.
    #[must_use]
    pub fn new(ticket: u64, request: Request) -> Self {
        Self { ticket, request, shown: Shown::default() }
    }
}

/// An output of the control plane to its driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Out {
    /// A request was answered.
    Reply {
        /// The request's ticket.
        ticket: u64,
        /// The answer.
        result: Result<Response, ApiError>,
    },
    /// A line to store before any later output is carried out. A driver that cannot store it must stop: no role and no caller knows of it yet. A role with a
    /// log of its own ([`Control::with_log`]) stores its lines there, and never emits this.
    Persist(Record),
    /// The address of a member, before the first frame to it.
    Peer(PeerChange),
}

/// The error for a log that is not valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestoreError {
    /// The line, from 0; the number of lines if all fit but lead to an invalid state.
    pub line: usize,
    /// The violated condition.
    pub what: &'static str,
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the log: {}", self.line, self.what)
    }
}

impl core::error::Error for RestoreError {}

/// An unanswered request.
#[derive(Debug)]
struct Pending {
    ask: Submitted,
    restarts: u32,
}

/// The control plane.
#[derive(Debug)]
pub struct Control {
    config: Config,
    rng: Rng,
    state: State,
    log: LogState,
    /// False until the first event: outputs of the start wait for an outbox.
    started: bool,
    /// Requests whose change is in flight, by change.
    asked: BTreeMap<u64, Pending>,
    /// Requests that wait for another one with the same resource, in order.
    waiting: VecDeque<Pending>,
    retry_timers: BTreeMap<Role, RetryTimer>,
    probes: BTreeMap<Role, Probe>,
    losses: LossCounts,
    coherence: Coherence,
    soft: Soft,
    counting: Counting,
    files: Files,
    idle: Idle,
    presence: Presence,
    /// Soft state of the index switches.
    index_soft: BTreeMap<u16, (Soft, Counting)>,
    /// True if the routes of switches may have changed.
    routes_due: bool,
    /// True if the state has changed since images were last checked.
    state_changed: bool,
    /// The incarnation of each switch at the start of this control plane: the image of such a switch stays active until the next publication (PROTOCOL 16.4).
    restored: BTreeMap<Role, u16>,
    /// The time of the current event.
    now: Instant,
    /// The PSN of the next frame; only for readers of traces.
    psn: Psn,
}

/// The outbox of this role.
type Actions = Outbox<Out, Note>;

impl Control {
    /// Returns the control plane of a new rack.
    ///
    /// # Panics
    /// If `config` has values that its fields rule out.
    #[must_use]
    pub fn new(config: Config, rng: Rng) -> Self {
        let base_fits = config.va_base > 0 && config.va_base < VA_END && config.va_base.is_multiple_of(PAGE);
        assert!(base_fits, "far memory begins at a page that is not null");
        let longer = config.host_lease.is_none_or(|host_lease| host_lease >= config.lease);
        assert!(longer, "a host is not taken out while it may use pages");
        assert!(config.bounds.nodes_max < invariants::NODE_END, "every node has a port");
        Self {
            config,
            rng,
            state: State::default(),
            log: LogState::default(),
            started: false,
            asked: BTreeMap::new(),
            waiting: VecDeque::new(),
            retry_timers: BTreeMap::new(),
            probes: BTreeMap::new(),
            losses: LossCounts::default(),
            coherence: Coherence::default(),
            soft: Soft::default(),
            counting: Counting::default(),
            files: Files::default(),
            idle: Idle::default(),
            presence: Presence::default(),
            index_soft: BTreeMap::new(),
            routes_due: false,
            state_changed: true,
            restored: BTreeMap::new(),
            now: Instant::ZERO,
            psn: Psn::new(0),
        }
    }

    /// Returns the control plane in the state of a log; without lines, a new one. The resulting outputs come with its first event.
    ///
    /// # Errors
    /// [`RestoreError`] if a line does not fit those before it. A log that ends after any line is valid, except inside the lines of [`Control::compact`], which
    /// must be stored as a whole.
    ///
    /// # Panics
    /// As [`Control::new`].
    pub fn restore(
        config: Config,
        rng: Rng,
        records: impl IntoIterator<Item = Record>,
    ) -> Result<Self, RestoreError> {
        let mut control = Self::new(config, rng);
        let mut effects = Vec::new();
        let mut count = 0;
        let mut rows = true;
        for (line, Record(record)) in records.into_iter().enumerate() {
            count = line + 1;
            let event = record.is_event();
            if rows && event {
                control.state.sound().map_err(|error| RestoreError { line, what: error.0 })?;
                rows = false;
            }
            if !rows && !event && !record.is_both() {
                return Err(RestoreError { line, what: "a row behind an event" });
            }
            control
                .state
                .apply(&record, &mut effects)
                .map_err(|error| RestoreError { line, what: error.0 })?;
            effects.clear();
        }
        control.state.sound().map_err(|error| RestoreError { line: count, what: error.0 })?;
        control.restored = control.state.switch_lives();
        Ok(control)
    }

    /// Returns the shortest log that leads to the present state: one line for each thing. A driver may replace all stored lines by it, in one transaction.
    #[must_use]
    pub fn compact(&self) -> Vec<Record> {
        self.state.rows()
    }

    /// Handles the first event after a start.
    fn start(&mut self, out: &mut Actions) {
        self.started = true;
        for change in self.state.peers() {
            out.local(Out::Peer(change));
        }
        self.log.abandoned = !self.state.changes.is_empty();
    }

    /// Writes the first line of the log: the control plane's own endpoint.
    fn settle_in(&mut self, out: &mut Actions) {
        let home = self.draw_key();
        // Without it no request can be decided; the next event retries.
        let _stalled = self.keep(Line::Home(home), out);
    }

    /// Accepts a request.
    fn ask(&mut self, ask: Submitted, out: &mut Actions) {
        let most = self.config.bounds.pending_max;
        if self.waiting.len() + self.asked.len() + self.elsewhere() >= most {
            let message = format!("{most} requests wait already");
            let result = Err(errors::error(ErrorCode::Unavailable, message, "ask again in a moment"));
            out.local(Out::Reply { ticket: ask.ticket, result });
            return;
        }
        // A request without the needed keys must not block others.
        if let Err(error) = self.keys_fit(&ask) {
            return out.local(Out::Reply { ticket: ask.ticket, result: Err(error) });
        }
        self.waiting.push_back(Pending { ask, restarts: 0 });
    }

    /// Returns the number of requests that wait for a switch's soft state, or a node's files.
    fn elsewhere(&self) -> usize {
        let soft = self.all_soft().map(|(soft, counting)| soft.waiting() + counting.waiting());
        soft.sum::<usize>() + self.files.waiting()
    }

    /// Begins every waiting request that has nothing to wait for, in order.
    fn admit(&mut self, out: &mut Actions) {
        loop {
            let mut blocked = self.state.claims();
            let next = self.waiting.iter().position(|pending| {
                let needs = self.state.needs(&pending.ask.request);
                let free = needs.iter().all(|need| !blocked.contains(&need.claim()));
                let changes = |need: &Need| matches!(need, Need::Changes(_));
                blocked.extend(needs.iter().filter(|need| changes(need)).map(|need| need.claim()));
                free
            });
            let Some(pending) = next.and_then(|index| self.waiting.remove(index)) else { return };
            // The named owner may have changed since the request arrived. A restarted join has itself created its subject.
            let decided = match self.keys_fit(&pending.ask) {
                Err(error) if pending.restarts == 0 || !keys::brings_in(&pending.ask.request) => Err(error),
                _ => self.decide(&pending.ask.request),
            };
            match decided {
                Ok(Decision::Reply(response)) => reply(pending.ask.ticket, Ok(response), out),
                Ok(Decision::Keep(line, response)) => {
                    let kept = self.keep(line, out);
                    let result = kept.map(|()| response);
                    let result = result.map_err(|Stalled| self.stall_error("nothing was changed"));
                    reply(pending.ask.ticket, result, out);
                }
                Ok(Decision::Soft(role, want)) => {
                    self.on_target(role, |control| control.soft_wait(pending.ask.ticket, want, out));
                }
                Ok(Decision::Look { node, file }) => self.look_wait(pending.ask.ticket, node, file),
                Ok(Decision::Begin(what)) => self.begin_request(pending, what, out),
                Err(error) => reply(pending.ask.ticket, Err(error), out),
            }
        }
    }

    /// Stores a line, applies it, and carries out the effects. The state changes only here. A line that is not stored changes nothing, and its cause comes
    /// again.
    fn keep(&mut self, line: Line, out: &mut Actions) -> Result<(), Stalled> {
        let record = Record(line);
        self.append(&record, out)?;
        let mut effects = Vec::new();
        let fits = self.state.apply(&record.0, &mut effects);
        assert_eq!(fits, Ok(()), "a line of our own fits our own state");
        let is_of_members = |effect: &Effect| match effect {
            Effect::Ended { what, .. } => what.is_membership(),
            Effect::Peer(_) | Effect::Gone(_) => true,
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
                Effect::Gone(role) => out.note(Note::Gone(role)),
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
}

impl Machine for Control {
    type In = Submitted;
    type Out = Out;
    type Note = Note;

    fn handle(&mut self, now: Instant, event: Event<'_, Submitted>, out: &mut Actions) {
        let before = core::mem::replace(&mut self.now, now);
        self.look_up(before);
        if !self.started {
            self.start(out);
        }
        if self.state.home.is_none() {
            self.settle_in(out);
        }
        self.abandon(out);
        let waiting = self.waiting.len();
        let at_leisure = !matches!(event, Event::Frame { .. });
        match event {
            Event::Frame { port, bytes } => self.on_frame(port, bytes, out),
            Event::Wake => self.on_wake(now, out),
            Event::Local(ask) => self.ask(ask, out),
        }
        self.admit(out);
        if at_leisure {
            self.free_objects(out);
        }
        self.coherence(out);
        self.update_files(out);
        self.remove_expired_hosts(out);
        self.reclaim_domains(out);
        // Other requests may have waited for what it ended.
        self.admit(out);
        self.refuse_stalled(out);
        self.update_images(out);
        if self.waiting.len() > waiting {
            out.note(Note::Waits);
        }
        self.shorten(out);
        self.probe_roles(now, out);
        self.flush(now, out);
    }

    fn next_wake(&self) -> Option<Instant> {
        if !self.started && self.state != State::default() {
            return Some(Instant::ZERO);
        }
        // Work that was due and not done waits for the log.
        let coherence =
            self.coherence.due().map(|due| self.log.due().filter(|_| due <= self.now).unwrap_or(due));
        let log = self.log.due().filter(|_| self.log.abandoned);
        self.retry_timers
            .values()
            .map(RetryTimer::due)
            .chain(coherence)
            .chain(self.files.due())
            .chain(self.idle.due())
            .chain(self.presence.due())
            .chain(
                self.probes
                    .iter()
                    .filter(|(role, _)| !self.retry_timers.contains_key(role))
                    .map(|(_, probe)| probe.due()),
            )
            .chain(log)
            .chain(self.all_soft().flat_map(|(soft, counting)| soft.due().into_iter().chain(counting.due())))
            .min()
    }

    fn check(&self) {
        assert_eq!(self.state.sound(), Ok(()));
        self.coherence.check();
        self.all_soft().for_each(|(soft, counting)| {
            soft.check();
            counting.check();
        });
        assert!(
            self.asked.keys().all(|id| self.state.changes.contains_key(id)),
            "a request's change is in flight"
        );
        let open = self.waiting.len() + self.asked.len() + self.elsewhere();
        assert!(open <= self.config.bounds.pending_max);
        assert!(
            self.retry_timers.keys().all(|role| self.state.queues.contains_key(role)),
            "a paced role has a queue"
        );
        if self.started {
            let outstanding =
                self.state.queues.values().filter(|queue| queue.outstanding().is_some()).count();
            assert_eq!(outstanding, self.retry_timers.len(), "every batch that was sent has its timer");
        }
    }
}
