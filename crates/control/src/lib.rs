//! The control role: membership, allocation, domains, connection set-up, table updates (MIND 4.1, 4.2, 6).
//!
//! One logical controller knows the whole rack. People, programs and roles send it requests ([`api`]). It decides, updates the switch and the memory nodes,
//! records each decision in a log ([`Record`]), and answers when the tables are in place. It is not on the data path: no READ, WRITE or traversal passes here.
//!
//! The state changes only by applying lines of the log, so that a restart rebuilds it exactly (docs/protocol/08-the-control-plane.md).
//!
//! Modules in layers, from the bottom up. A module uses those of lower layers only:
//!
//! 1. Formats and plain rules: `addresses`, `bounds`, `keys`, [`api`], `errors`, `syscalls`, [`splitting`], [`reset`], `builds`.
//! 2. Rows of the log: `updates`, `record`, `note`, and the driver's `config` and `messages`.
//! 3. `state`: all rows. Each module below it owns one kind of row: its lines, its changes, its invariants and its updates.
//! 4. What a restart forgets: `log`, `link`, `probes`, `presence`, `idle`, `files`; and `decision`.
//! 5. `rack`: state, log and waiting requests together, and the only way to change them.
//! 6. Modules inside those of layer 4 that act on the rack, and `requests`: a request becomes a decision, and a decision a change.
//! 7. Machines of their own beside the rack: `coherence` and `soft`.
//! 8. [`Control`], which takes events apart and passes them down.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod addresses;
pub mod api;
mod bounds;
mod builds;
mod coherence;
mod config;
mod decision;
mod errors;
mod files;
mod idle;
pub mod keys;
mod link;
mod log;
mod member_address;
mod messages;
mod note;
mod presence;
mod probes;
mod rack;
mod record;
mod requests;
pub mod reset;
mod soft;
pub mod splitting;
mod state;
mod syscalls;
mod updates;

pub use addresses::{MIGRATE_LEN_MAX, PAGE, VA_END};
pub use bounds::{
    BELOW_MAX, Bounds, CONNECTIONS_MAX, DOMAINS_MAX, GRANTS_MAX, HOSTS_MAX, INDEX_MAX, LOST_MAX, MISSED_MAX,
    NAME_LEN_MAX, NODES_MAX, OBJECTS_MAX, PENDING_MAX, PIECES_MAX, PROCESSES_MAX, SESSIONS_MAX, VMAS_MAX,
};
pub use builds::{BUILD_LEN_MAX, is_build};
pub use coherence::{RECOVERS, RESETS_MAX};
pub use config::{Config, HOST_LEASE, LEASE};
pub use keys::{AddressClaim, AddressProof, COOKIE_LIFE};
pub use log::{COMPACT_LINES_MIN, COMPACT_RATIO, Log, NotKept, STALL_RETRY};
pub use messages::{Held, Out, RestoreError, Submitted};
pub use note::{DropReason, Note};
pub use rack::RESTARTS_MAX;
pub use record::{Record, Role};
pub use requests::{ACTS_MAX, OBJECT_NAME_MAX};
pub use soft::{COUNTS_ANEW_MAX, DAMAGED_MAX, SOFT_BURST, SOFT_PACE, SOFT_WINDOW};

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use api::ErrorCode;
use bounds::NODE_END;
use coherence::Coherence;
use decision::Decision;
use farmem_machine::{Event, Instant, Machine, Port, Rng};
use farmem_wire::message::{DirectoryMessage, FileMessage, SoftMessage};
use link::RetryTimer;
use log::Stalled;
use messages::{Actions, reply};
use rack::{Pending, Rack};
use record::Line;
use requests::decide;
use soft::Images;
use state::State;
use state::claims::Need;

/// The control plane.
#[derive(Debug)]
pub struct Control {
    rack: Rack,
    coherence: Coherence,
    images: Images,
    /// False until the first event: outputs of the start wait for an outbox.
    started: bool,
}

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
        assert!(longer, "a host is not fenced while it may use pages");
        assert!(config.bounds.nodes_max < NODE_END, "every node has a port");
        Self {
            rack: Rack::new(config, rng),
            coherence: Coherence::default(),
            images: Images::default(),
            started: false,
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
                control.rack.state.sound().map_err(|error| RestoreError { line, what: error.0 })?;
                rows = false;
            }
            if !rows && !event && !record.is_both() {
                return Err(RestoreError { line, what: "a row behind an event" });
            }
            control
                .rack
                .state
                .apply(&record, &mut effects)
                .map_err(|error| RestoreError { line, what: error.0 })?;
            effects.clear();
        }
        control.rack.state.sound().map_err(|error| RestoreError { line: count, what: error.0 })?;
        control.images.restored = control.rack.state.switch_lives();
        Ok(control)
    }

    /// Returns the shortest log that leads to the present state: one line for each thing. A driver may replace all stored lines by it, in one transaction.
    #[must_use]
    pub fn compact(&self) -> Vec<Record> {
        self.rack.state.rows()
    }

    /// Returns the role with `log` as its store. The earlier lines must be in it.
    #[must_use]
    pub fn with_log(mut self, log: Box<dyn Log>) -> Self {
        self.rack.log.lend(log);
        self
    }

    /// Returns the name of the member at a port, also of a host that has left.
    #[must_use]
    pub fn name_of(&self, port: Port) -> String {
        self.rack.name_of(port)
    }

    /// Returns the bytes allocated at a node, by domain.
    #[must_use]
    pub fn held_by(&self, node: u16) -> Held {
        self.rack.held_by(node)
    }

    /// Returns the bytes lost with earlier incarnations of a node and not accepted since.
    #[must_use]
    pub fn lost_with(&self, node: u16) -> Held {
        self.rack.lost_with(node)
    }

    /// Handles the first event after a start.
    fn start(&mut self, out: &mut Actions) {
        self.started = true;
        for change in self.rack.state.peers() {
            out.local(Out::Peer(change));
        }
        self.rack.log.abandoned = !self.rack.state.changes.is_empty();
    }

    /// Writes the first line of the log: the control plane's own endpoint.
    fn settle_in(&mut self, out: &mut Actions) {
        let home = self.rack.draw_key();
        // Without it no request can be decided; the next event retries.
        let _stalled = self.rack.keep(Line::Home(home), out);
    }

    /// Accepts a request.
    fn ask(&mut self, ask: Submitted, out: &mut Actions) {
        let most = self.rack.config.bounds.pending_max;
        if self.rack.waiting.len() + self.rack.asked.len() + self.elsewhere() >= most {
            let message = format!("{most} requests wait already");
            let result = Err(errors::error(ErrorCode::Unavailable, message, "ask again in a moment"));
            out.local(Out::Reply { ticket: ask.ticket, result });
            return;
        }
        // A request without the needed keys must not block others.
        if let Err(error) = self.rack.keys_fit(&ask) {
            return out.local(Out::Reply { ticket: ask.ticket, result: Err(error) });
        }
        self.rack.waiting.push_back(Pending { ask, restarts: 0 });
    }

    /// Returns the number of requests that wait for a switch's soft state, or a node's files.
    fn elsewhere(&self) -> usize {
        let soft = self.images.all_soft().map(|(soft, counting)| soft.waiting() + counting.waiting());
        soft.sum::<usize>() + self.rack.files.waiting()
    }

    /// Begins every waiting request that has nothing to wait for, in order.
    fn admit(&mut self, out: &mut Actions) {
        loop {
            let mut blocked = self.rack.state.claims();
            let next = self.rack.waiting.iter().position(|pending| {
                let needs = self.rack.state.needs(&pending.ask.request);
                let free = needs.iter().all(|need| !blocked.contains(&need.claim()));
                let changes = |need: &Need| matches!(need, Need::Changes(_));
                blocked.extend(needs.iter().filter(|need| changes(need)).map(|need| need.claim()));
                free
            });
            let Some(pending) = next.and_then(|index| self.rack.waiting.remove(index)) else { return };
            // The named owner may have changed since the request arrived. A restarted join has itself created its subject.
            let decided = match self.rack.keys_fit(&pending.ask) {
                Err(error) if pending.restarts == 0 || !keys::brings_in(&pending.ask.request) => Err(error),
                _ => decide(&mut self.rack, &mut self.coherence, &mut self.images, &pending.ask.request),
            };
            let decided = decided.and_then(|decision| match decision {
                Decision::Begin(what) => {
                    self.rack.prove_address(&pending, &what, out).map(|()| Decision::Begin(what))
                }
                other => Ok(other),
            });
            match decided {
                Ok(Decision::Reply(response)) => reply(pending.ask.ticket, Ok(response), out),
                Ok(Decision::Keep(line, response)) => {
                    let kept = self.rack.keep(line, out);
                    let result = kept.map(|()| response);
                    let result = result.map_err(|Stalled| self.rack.stall_error("nothing was changed"));
                    reply(pending.ask.ticket, result, out);
                }
                Ok(Decision::Soft(role, want)) => {
                    self.images.on_target(role, |images| images.soft_wait(pending.ask.ticket, want, out));
                }
                Ok(Decision::Look { node, file }) => self.rack.look_wait(pending.ask.ticket, node, file),
                Ok(Decision::Begin(what)) => self.rack.begin_request(pending, what, out),
                Err(error) => reply(pending.ask.ticket, Err(error), out),
            }
        }
    }

    /// Handles a frame: an answer to a question or to the outstanding batch of its sender, or nothing.
    fn on_frame(&mut self, port: Port, bytes: &[u8], out: &mut Actions) {
        let Self { rack, coherence, images, .. } = self;
        match rack.open_frame(port, bytes) {
            Ok((role, payload)) if DirectoryMessage::is(payload) => {
                coherence.on_report(rack, role, payload, out)
            }
            Ok((role, payload)) if SoftMessage::is(payload) => {
                images.on_target(role, |images| images.on_soft(rack, role, payload, out));
            }
            Ok((role, payload)) if FileMessage::is(payload) => rack.on_file_said(role, payload, out),
            Ok((role, payload)) if rack.probe_answered(role, payload) => {}
            Ok((role, payload)) => rack.on_answer(role, payload, out),
            Err(reason) => out.note(Note::Dropped(reason)),
        }
    }
}

impl Machine for Control {
    type In = Submitted;
    type Out = Out;
    type Note = Note;

    fn handle(&mut self, now: Instant, event: Event<'_, Submitted>, out: &mut Actions) {
        let before = core::mem::replace(&mut self.rack.now, now);
        self.coherence.look_up(&mut self.rack, before);
        if !self.started {
            self.start(out);
        }
        if self.rack.state.home.is_none() {
            self.settle_in(out);
        }
        self.rack.abandon(out);
        let waiting = self.rack.waiting.len();
        let at_leisure = !matches!(event, Event::Frame { .. });
        match event {
            Event::Frame { port, bytes } => self.on_frame(port, bytes, out),
            Event::Wake => self.rack.on_wake(now, out),
            Event::Local(ask) => self.ask(ask, out),
        }
        self.admit(out);
        if at_leisure {
            self.rack.free_objects(out);
        }
        self.coherence.update(&mut self.rack, out);
        self.rack.update_files(out);
        self.rack.remove_expired_hosts(out);
        self.rack.reclaim_domains(out);
        // Other requests may have waited for what it ended.
        self.admit(out);
        self.rack.refuse_stalled(out);
        self.images.update_images(&mut self.rack, out);
        if self.rack.waiting.len() > waiting {
            out.note(Note::Waits);
        }
        self.rack.shorten(out);
        self.rack.probe_roles(now, out);
        self.rack.flush(now, out);
    }

    fn next_wake(&self) -> Option<Instant> {
        if !self.started && self.rack.state != State::default() {
            return Some(Instant::ZERO);
        }
        // Work that was due and not done waits for the log.
        let coherence = self
            .coherence
            .due()
            .map(|due| self.rack.log.due().filter(|_| due <= self.rack.now).unwrap_or(due));
        let log = self.rack.log.due().filter(|_| self.rack.log.abandoned);
        self.rack
            .retry_timers
            .values()
            .map(RetryTimer::due)
            .chain(coherence)
            .chain(self.rack.files.due())
            .chain(self.rack.idle.due())
            .chain(self.rack.presence.due())
            .chain(
                self.rack
                    .probes
                    .iter()
                    .filter(|(role, _)| !self.rack.retry_timers.contains_key(role))
                    .map(|(_, probe)| probe.due()),
            )
            .chain(log)
            .chain(
                self.images
                    .all_soft()
                    .flat_map(|(soft, counting)| soft.due().into_iter().chain(counting.due())),
            )
            .min()
    }

    fn check(&self) {
        assert_eq!(self.rack.state.sound(), Ok(()));
        self.coherence.check();
        self.images.all_soft().for_each(|(soft, counting)| {
            soft.check();
            counting.check();
        });
        assert!(
            self.rack.asked.keys().all(|id| self.rack.state.changes.contains_key(id)),
            "a request's change is in flight"
        );
        let open = self.rack.waiting.len() + self.rack.asked.len() + self.elsewhere();
        assert!(open <= self.rack.config.bounds.pending_max);
        assert!(
            self.rack.retry_timers.keys().all(|role| self.rack.state.queues.contains_key(role)),
            "a paced role has a queue"
        );
        if self.started {
            let outstanding =
                self.rack.state.queues.values().filter(|queue| queue.outstanding().is_some()).count();
            assert_eq!(outstanding, self.rack.retry_timers.len(), "every batch that was sent has its timer");
        }
    }
}
