//! The control role: membership, allocation, domains, connection set-up, table updates (MIND 4.1, 4.2, 6).
//!
//! One logical controller that knows the whole rack. People, programs and roles ask it things ([`api`]); it decides, tells the
//! switch and the memory nodes what they must know, keeps a log of all it decided ([`Record`]), and answers when the tables are in
//! place. It is not on the data path: no READ, WRITE or traversal passes here.
//!
//! The state changes only by applying lines of the log, so that a restart rebuilds it exactly (docs/protocol/08-the-control-plane.md).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod acts;
mod allocate;
pub mod api;
mod builds;
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
mod lost;
mod members;
mod migrate;
mod names;
mod note;
mod own_numbers;
mod pieces;
mod presence;
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

pub use acts::ACTS_MAX;
pub use allocate::{PAGE, VA_END};
pub use builds::{BUILD_LEN_MAX, is_build};
pub use change::MISSED_MAX;
pub use coherence::{RECOVERS, RESETS_MAX};
pub use fabric::{BELOW_MAX, INDEX_MAX};
pub use log::{COMPACT_LINES_MIN, COMPACT_RATIO, Log, NotKept, STALL_RETRY};
pub use migrate::MIGRATE_LEN_MAX;
pub use names::OBJECT_NAME_MAX;
pub use note::{DropReason, Note};
pub use record::{Record, Role};
pub use soft::{COUNTS_ANEW_MAX, DAMAGED_MAX, SOFT_BURST, SOFT_PACE, SOFT_WINDOW};

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use api::{ApiError, ErrorCode, Request, Response};
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
use record::{Line, What, Why};
use replies::reply;
use requests::Decision;
use soft::{Counting, Soft};
use state::{Effect, State};

/// Most characters of a name.
pub const NAME_LEN_MAX: usize = 64;
/// For how long a host may use what it caches after it was heard of, unless the control plane is set up otherwise: a host on a busy machine asks
/// three times in that, and waits for a CPU for seconds at worst; so long, and an eighth more, others wait for the pages of one that died.
pub const LEASE: Duration = Duration::from_secs(10);
/// The same of what a host has in the rack at all, and of a domain without users: six leases, so that a host which lost its pages because it stood still
/// may go on.
pub const HOST_LEASE: Duration = Duration::from_secs(60);
/// Times a request is begun anew because a role it needs joined meanwhile.
pub const RESTARTS_MAX: u32 = 3;

/// How the control plane is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its own address.
    pub gid: Gid,
    /// The first address of far memory; a multiple of [`PAGE`], not 0, below [`VA_END`].
    pub va_base: u64,
    /// The path MTU of the connections it sets up.
    pub pmtu: Pmtu,
    /// Time without an answer after which a batch of updates is sent again; doubles up to 8 times it.
    pub timeout: Duration,
    /// Times a batch is sent again before no change waits for the role any more. It is then sent on at 8 times `timeout`.
    pub retries_max: u32,
    /// For how long a host that caches pages may go on without being heard of.
    pub lease: Duration,
    /// For how long a host stays that is not heard of, and a domain that no host has a session or a connection in; at least `lease`. `None`: for
    /// good, as in a rack that ends with its only program.
    pub host_lease: Option<Duration>,
    /// Time between two listings of the directory, after each of which regions are split and merged.
    pub epoch: Duration,
    /// How much of everything.
    pub bounds: Bounds,
    /// What the keys of hosts, nodes, switches and domains are made of. None: whoever asks may do all, as in a rack inside one process.
    pub secret: Option<Secret>,
    /// Which build of farmem this is; none: it does not say (PROTOCOL 8.71).
    pub build: Option<String>,
}

impl Config {
    /// The usual set-up of a rack whose control plane is at `gid`.
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
        }
    }
}

/// How much of everything the control plane keeps.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each bounds what its name says")]
pub struct Bounds {
    pub nodes_max: u16,
    pub hosts_max: u16,
    pub domains_max: usize,
    /// Bytes of allocations that one domain may have (PROTOCOL 8.72).
    pub domain_memory_max: u64,
    pub vmas_max: usize,
    /// Parts of vmas that were moved.
    pub pieces_max: usize,
    /// Spans of all grants of all vmas.
    pub grants_max: usize,
    pub sessions_max: usize,
    pub connections_max: usize,
    pub processes_max: usize,
    pub objects_max: usize,
    /// Ranges of lost addresses beyond which none is accepted in its midst.
    pub lost_max: usize,
    /// Requests that are not answered yet.
    pub pending_max: usize,
}

/// Memory nodes of a rack.
pub const NODES_MAX: u16 = 1024;
/// Most hosts: memory nodes remember the answers to writing requests of so many (PROTOCOL 5.8).
pub const HOSTS_MAX: u16 = 4096;
/// Protection domains of a rack.
pub const DOMAINS_MAX: usize = 65_536;
/// Vmas of a rack.
pub const VMAS_MAX: usize = 65_536;
/// Parts of vmas that were moved: what a switch has room for beside its nodes.
pub const PIECES_MAX: usize = 4096;
/// Spans of all grants of a rack.
pub const GRANTS_MAX: usize = 65_536;
/// Sessions of a rack.
pub const SESSIONS_MAX: usize = 65_536;
/// RC connections of a rack.
pub const CONNECTIONS_MAX: usize = 65_536;
/// Processes of a rack that have an address space.
pub const PROCESSES_MAX: usize = 65_536;
/// Named objects of a rack.
pub const OBJECTS_MAX: usize = 65_536;
/// Ranges of lost addresses that a rack has because parts of them were accepted.
pub const LOST_MAX: usize = 262_144;
/// Requests that are not answered yet.
pub const PENDING_MAX: usize = 1024;

impl Default for Bounds {
    fn default() -> Self {
        Self {
            nodes_max: NODES_MAX,
            hosts_max: HOSTS_MAX,
            domains_max: DOMAINS_MAX,
            domain_memory_max: u64::MAX,
            vmas_max: VMAS_MAX,
            pieces_max: PIECES_MAX,
            grants_max: GRANTS_MAX,
            sessions_max: SESSIONS_MAX,
            connections_max: CONNECTIONS_MAX,
            processes_max: PROCESSES_MAX,
            objects_max: OBJECTS_MAX,
            lost_max: LOST_MAX,
            pending_max: PENDING_MAX,
        }
    }
}

/// A request with the number its answer will have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Submitted {
    /// The driver's; comes back in [`Out::Reply`], exactly once.
    pub ticket: u64,
    /// What is asked.
    pub request: Request,
    /// What the asker has shown.
    pub shown: Shown,
}

impl Submitted {
    /// A request with which nothing is shown.
    #[must_use]
    pub fn new(ticket: u64, request: Request) -> Self {
        Self { ticket, request, shown: Shown::default() }
    }
}

/// What the control plane tells its driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Out {
    /// A request was answered.
    Reply {
        /// The request's.
        ticket: u64,
        /// The answer.
        result: Result<Response, ApiError>,
    },
    /// Keep this line before anything behind it is done. A driver that cannot must stop: no role and no caller was told yet. A role that was lent a
    /// log ([`Control::with_log`]) keeps its lines there, and never says this.
    Persist(Record),
    /// Where a member is, before the first frame to it.
    Peer(PeerChange),
}

/// Why a log was not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestoreError {
    /// The line, from 0; the number of lines when all fit but lead to nonsense.
    pub line: usize,
    /// What does not hold.
    pub what: &'static str,
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the log: {}", self.line, self.what)
    }
}

impl core::error::Error for RestoreError {}

/// A request that is not answered yet.
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
    /// False until the first event: what a start has to say waits for an outbox.
    started: bool,
    /// Requests whose change is in flight, by change.
    asked: BTreeMap<u64, Pending>,
    /// Requests that wait for another about the same thing, in order.
    waiting: VecDeque<Pending>,
    retry_timers: BTreeMap<Role, RetryTimer>,
    coherence: Coherence,
    soft: Soft,
    counting: Counting,
    files: Files,
    idle: Idle,
    presence: Presence,
    /// The same of the switches of the index.
    index_soft: BTreeMap<u16, (Soft, Counting)>,
    /// What switches are told of each other may have changed.
    ways_due: bool,
    /// The state is another one than when images were looked at last.
    state_changed: bool,
    /// In which life each switch was when this control plane started: what such a one has stands there until something is published (PROTOCOL 16.4).
    restored: BTreeMap<Role, u16>,
    /// Of the event at hand.
    now: Instant,
    /// Of the next frame; only for those who read traces.
    psn: Psn,
}

/// Where this role writes.
type Actions = Outbox<Out, Note>;

impl Control {
    /// The control plane of a new rack.
    ///
    /// # Panics
    /// When `config` has values its fields rule out.
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
            coherence: Coherence::default(),
            soft: Soft::default(),
            counting: Counting::default(),
            files: Files::default(),
            idle: Idle::default(),
            presence: Presence::default(),
            index_soft: BTreeMap::new(),
            ways_due: false,
            state_changed: true,
            restored: BTreeMap::new(),
            now: Instant::ZERO,
            psn: Psn::new(0),
        }
    }

    /// The control plane as a log says it was; with no lines, a new one. What it has to say about that, it says at its first event.
    ///
    /// # Errors
    /// [`RestoreError`] when a line does not fit those before it. A log cut off after any line fits, except inside what
    /// [`Control::compact`] gave, which is to be kept as a whole.
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

    /// The shortest log that leads to the present state: one line for each thing there is. A driver may put it in the place of all
    /// lines it kept so far, in one transaction.
    #[must_use]
    pub fn compact(&self) -> Vec<Record> {
        self.state.rows()
    }

    /// What the first event after a start sets off.
    fn start(&mut self, out: &mut Actions) {
        self.started = true;
        for change in self.state.peers() {
            out.local(Out::Peer(change));
        }
        self.log.abandoned = !self.state.changes.is_empty();
    }

    /// The control plane's own endpoint is the first line of its log.
    fn settle_in(&mut self, out: &mut Actions) {
        let home = self.draw_key();
        // Without it nothing can be decided; the next event tries again.
        let _stalled = self.keep(Line::Home(home), out);
    }

    /// Takes a request.
    fn ask(&mut self, ask: Submitted, out: &mut Actions) {
        let most = self.config.bounds.pending_max;
        if self.waiting.len() + self.asked.len() + self.elsewhere() >= most {
            let message = format!("{most} requests wait already");
            let result = Err(errors::error(ErrorCode::Unavailable, message, "ask again in a moment"));
            out.local(Out::Reply { ticket: ask.ticket, result });
            return;
        }
        // A stranger's request stands in nobody's way.
        if let Err(error) = self.keys_fit(&ask) {
            return out.local(Out::Reply { ticket: ask.ticket, result: Err(error) });
        }
        self.waiting.push_back(Pending { ask, restarts: 0 });
    }

    /// Requests that wait for what a switch says of its soft state, or a node of its files.
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
            // Who is meant may be another one than when it was asked. A join that is begun anew has brought in itself whom it is about.
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
                Ok(Decision::Begin(what)) => self.begin_asked(pending, what, out),
                Err(error) => reply(pending.ask.ticket, Err(error), out),
            }
        }
    }

    /// Keeps a line, applies it, and does what follows. The only way the state changes. A line that is not kept changes nothing, and what
    /// wanted it comes again.
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
        self.ways_due |= effects.iter().any(is_of_members) || matches!(record.0, Line::Silent { .. });
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
                    let Some(pending) = self.asked.remove(&change) else { continue };
                    match result {
                        Ok(()) => reply(pending.ask.ticket, Ok(self.success(&what)), out),
                        // An owner who accepts a loss has not heard of the one that this join brings.
                        Err(Why::Joined { .. })
                            if pending.restarts < RESTARTS_MAX
                                && !matches!(what, What::AcceptLost { .. }) =>
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
        self.see_to_files(out);
        self.see_to_hosts(out);
        self.see_to_domains(out);
        // What it ended others may have waited for.
        self.admit(out);
        self.refuse_stalled(out);
        self.see_to_images(out);
        if self.waiting.len() > waiting {
            out.note(Note::Waits);
        }
        self.shorten(out);
        self.flush(now, out);
    }

    fn next_wake(&self) -> Option<Instant> {
        if !self.started && self.state != State::default() {
            return Some(Instant::ZERO);
        }
        // What is due already and was not done waits for the log.
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
            "who is paced has a queue"
        );
        if self.started {
            let outstanding =
                self.state.queues.values().filter(|queue| queue.outstanding().is_some()).count();
            assert_eq!(outstanding, self.retry_timers.len(), "every batch that was sent has its timer");
        }
    }
}
