//! The driver: from the accesses of a tap to traversals, and from their results to items of a zone (PD3 6.2).
//!
//! Key type: [`Driver`]. All keys of a message are submitted together. The structure looks up the keys of one place
//! in as few operations as possible ([`LookUp::op_for`]). If the rack's link has batches, operations that begin at
//! one node and have small pads share a datagram.
//!
//! The buffers of pending operations have a common bound ([`ANSWERS_BYTES_MAX`](super::ANSWERS_BYTES_MAX)).
//! Operations without room wait in order.
//!
//! A driver does not wait, and does not retry: a failed message only costs speed.

use super::account::Prefetched;
use super::answers::{Answers, room_of};
use super::reporter::{Hearing, Reporter, Reports};
use super::ring::Report;
use super::tap::{TapStats, Watch};
use super::zone::{Placing, Zone};
use farmem_client::{Client, Completed, Error, LookUp, LookedUp, Op, Ticket};
use farmem_dpu::accesses::Keys;
use farmem_dpu::changes::Change;
use farmem_dpu::prefetcher::{Action, Config, Fetched, Prefetcher};
use farmem_dpu::view::HostView;
use farmem_link::dpu::Broken;
use farmem_machine::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Number of messages after which all pending operations must end before more begin, so that a structure can free
/// what it keeps for readers.
pub const MESSAGES_HELD_MAX: u64 = 256;
/// Number of items whose lines in the zone are prefetched together: twice the number of lines that a core waits for
/// at once.
const LOOK_AHEAD: usize = 16;

/// Maximum sleep between two checks for reports.
const REST: Duration = Duration::from_millis(1);

/// Maximum number of key lists kept for reuse.
const SPARE_MAX: usize = 64;

/// A message with pending operations.
#[derive(Debug)]
struct Message {
    keys: Keys,
    /// The results of its operations so far, with the indices of their keys.
    ended: Vec<(Vec<usize>, Completed)>,
    /// Number of operations that have not ended, or wait for room.
    left: usize,
    /// Bytes of the buffers of submitted operations.
    bytes: usize,
}

/// The keys of a message that one operation looks up.
#[derive(Debug)]
struct Group {
    op: u64,
    ats: Vec<usize>,
}

/// Buffers for a message's results, reused by the next message.
#[derive(Debug, Default)]
struct Brought {
    /// The result of each key.
    each: Vec<Fetched>,
    /// Where each value is: in the buffer of the operation with this index, or in `values`.
    spans: Vec<(Option<usize>, Range<usize>)>,
    values: Vec<u8>,
    /// Number of items whose value was copied to `values`.
    copied: u64,
    actions: Vec<Action>,
}

/// The DPU of one program, in its process or beside it.
#[derive(Debug)]
pub struct Driver<V, L, Z> {
    prefetcher: Prefetcher<V>,
    watch: Watch,
    hearing: Hearing,
    /// The last change up to which far memory has all, as reported.
    through: Change,
    client: Client,
    look_up: L,
    zone: Z,
    /// Pending operations, with the message and keys of each.
    under_way: BTreeMap<Ticket, Group>,
    answers: Answers,
    /// Operations to submit, in order; the first one may be built already.
    waiting: VecDeque<Group>,
    made: Option<Op>,
    messages: BTreeMap<u64, Message>,
    /// Number of messages since none was pending.
    held: u64,
    told: Reports,
    actions: Vec<Action>,
    brought: Brought,
    /// The keys of a message, sorted by place, while its operations are built.
    places: Vec<(usize, usize)>,
    spare: Vec<Vec<usize>>,
    unheard: u64,
    /// Numbers of operations that far memory executed, and that failed or could not be submitted. A turn without
    /// access to the structure counts as one failure.
    came: (u64, u64),
    /// True if its client can sleep until a frame arrives.
    sleeps: bool,
}

impl<V: HostView, L: LookUp, Z: Zone> Driver<V, L, Z> {
    /// Creates a driver for a program that starts now, or whose changes up to `through` are all acknowledged.
    ///
    /// # Errors
    /// [`Error::Open`] if the DPU of another process prefetches for the program (`farmem_dpu_server::AtDpu`), because
    /// this driver would get no reports.
    pub fn new(
        config: Config,
        view: V,
        (watch, beside, through): (Watch, &Reporter, Change),
        client: Client,
        look_up: L,
        zone: Z,
    ) -> Result<Self, Error> {
        Ok(Self::of(config, view, (watch, beside.hearing()?, through), client, look_up, zone))
    }

    /// Creates a driver as [`Driver::new`] does, wherever the program is.
    pub fn of(
        config: Config,
        view: V,
        (watch, hearing, through): (Watch, Hearing, Change),
        client: Client,
        look_up: L,
        zone: Z,
    ) -> Self {
        // Within one process no frame arrives by itself.
        let sleeps = client.wakers().is_ok();
        Self {
            prefetcher: Prefetcher::new(Config { secret: watch.secret(), ..config }, view, through),
            watch,
            hearing,
            through,
            client,
            look_up,
            zone,
            under_way: BTreeMap::new(),
            answers: Answers::default(),
            waiting: VecDeque::new(),
            made: None,
            messages: BTreeMap::new(),
            held: 0,
            told: Reports::default(),
            actions: Vec::new(),
            brought: Brought::default(),
            places: Vec::new(),
            spare: Vec::new(),
            unheard: 0,
            came: (0, 0),
            sleeps,
        }
    }

    /// Does all work that is possible now. Returns false if there was none.
    ///
    /// A turn waits only if the structure must ask far memory at its begin or end ([`LookUp::begin`],
    /// [`LookUp::end`]), for example to renew a lease. If far memory does not answer, a turn waits for at most one
    /// such request of each kind.
    ///
    /// # Errors
    /// [`Error::System`] if the link failed, or another process wrote invalid data: nothing is prefetched any more,
    /// and the program continues without.
    pub fn turn(&mut self) -> Result<bool, Error> {
        self.watch.beat();
        let mut worked = self.hear()?;
        if self.held < MESSAGES_HELD_MAX {
            let (prefetcher, actions) = (&mut self.prefetcher, &mut self.actions);
            let drained = self.watch.drain(&mut |accesses, executed| {
                prefetcher.executed(executed);
                prefetcher.accesses(accesses, actions);
            });
            worked |= drained.map_err(nonsense)?;
            self.act()?;
        }
        let mut goes_on = true;
        while goes_on && let Some(completed) = self.client.poll()? {
            worked = true;
            goes_on = self.looked_up(completed)?;
        }
        // Otherwise further operations wait for the next turn, because each may ask far memory again, which does not
        // answer.
        if goes_on {
            worked |= !self.submit_waiting()?;
        }
        let prefetcher = &mut self.prefetcher;
        self.zone.clean(&mut |item, used| prefetcher.cleaned(item, used));
        Ok(worked)
    }

    /// Takes turns until only the program can cause further work. While nothing arrives, the driver sleeps, or yields
    /// the CPU in the process of its rack.
    ///
    /// # Errors
    /// As [`Driver::turn`].
    pub fn settle(&mut self) -> Result<(), Error> {
        loop {
            if self.turn()? {
                continue;
            }
            if self.messages.is_empty() {
                return Ok(());
            }
            if self.sleeps {
                self.client.rest(REST)?;
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Sleeps until another process hands something over, far memory answers, or `most` has passed. Call this if
    /// [`Driver::turn`] had no work. If a hand-over waits, this returns at once.
    ///
    /// # Errors
    /// As [`Driver::turn`].
    pub fn rest(&mut self, most: Duration) -> Result<(), Error> {
        let may_sleep = self.watch.may_sleep() || self.held >= MESSAGES_HELD_MAX;
        let rested = self.client.rest(if may_sleep { most } else { Duration::ZERO });
        self.watch.stays_awake();
        rested
    }

    /// Leaves the structure after the program has ended, so that its other readers and writers need not wait. Pending
    /// results are dropped.
    pub fn leave(&mut self) {
        // Without an answer, the lease ends as after a crash.
        let _its_lease_ends = self.look_up.leave(&mut self.client);
    }

    /// Returns the numbers of operations that far memory executed, and that failed or could not be submitted. A turn
    /// without access to the structure counts as one failure.
    pub const fn came(&self) -> (u64, u64) {
        self.came
    }

    /// Returns true while operations are pending.
    pub fn is_waiting(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Returns false if the client's host was fenced: nothing is fetched any more. If the control plane does not
    /// answer, the host counts as a member.
    pub fn is_member(&mut self) -> bool {
        self.client.is_member().unwrap_or(true)
    }

    /// Adopts a program that has restarted without items, and numbers its changes from `through` on. No write of the
    /// earlier run is in flight.
    ///
    /// # Errors
    /// As [`Driver::new`]; nothing has changed then.
    pub fn restarted(&mut self, beside: &Reporter, watch: Watch, through: Change) -> Result<(), Error> {
        (self.hearing, self.watch, self.through) = (beside.hearing()?, watch, through);
        self.zone.empty();
        self.prefetcher.host_restarted(through);
        Ok(())
    }

    /// Returns the prefetcher, with its account.
    #[must_use]
    pub const fn prefetcher(&self) -> &Prefetcher<V> {
        &self.prefetcher
    }

    /// Returns the counts of the tap.
    #[must_use]
    pub const fn seen(&self) -> TapStats {
        self.watch.stats()
    }

    /// Returns the DPU's end of the tap, for a second tap.
    pub const fn watch(&mut self) -> &mut Watch {
        &mut self.watch
    }

    /// Returns all counts together.
    #[must_use]
    pub fn prefetched(&self) -> Prefetched {
        let (account, stats) = (*self.prefetcher.account(), *self.prefetcher.stats());
        let (seen, flying) = (self.watch.stats(), self.prefetcher.flying().into());
        Prefetched { account, stats, seen, flying, ..Prefetched::default() }
    }

    /// Returns the bytes of the buffers for answers of far memory: the present sum, and the maximum so far.
    #[must_use]
    pub const fn answers(&self) -> (usize, usize) {
        self.answers.bytes()
    }

    /// Returns the number of items whose value was copied between its buffer and the zone, because it arrived in
    /// several pieces.
    #[must_use]
    pub const fn copied(&self) -> u64 {
        self.brought.copied
    }

    /// Returns the number of the program's reports without room.
    #[must_use]
    pub const fn unheard(&self) -> u64 {
        self.unheard
    }

    /// Returns client, structure and zone.
    #[must_use]
    pub fn into_parts(self) -> (Client, L, Z) {
        (self.client, self.look_up, self.zone)
    }

    /// Takes the program's reports. The program itself writes its changes to far memory.
    fn hear(&mut self) -> Result<bool, Error> {
        // First, because changes that are acknowledged later may also be reported later.
        let through = self.hearing.through();
        self.unheard = self.hearing.take(&mut self.told).map_err(nonsense)?;
        let worked = !self.told.said.is_empty();
        let (mut passed, mut dropped) = (Vec::new(), 0);
        for told in self.told.said.drain(..) {
            match told {
                Report::Asks(key) => self.prefetcher.host_asks(key),
                Report::Reads { key, found } => self.prefetcher.host_reads(key, found),
                Report::Changes { key, copy, seen } => {
                    self.prefetcher.host_writes(0, &[key], copy, seen, &mut passed);
                }
                Report::Drops { count, seen } => {
                    let keys = &self.told.dropped[dropped..][..count];
                    dropped += count;
                    self.prefetcher.host_drops(keys, seen);
                }
            }
        }
        self.told.dropped.clear();
        let worked = worked || through > self.through;
        if through > self.through {
            self.through = through;
            self.prefetcher.all_acknowledged(Change(0)..=through);
        }
        Ok(worked)
    }

    /// Submits the messages that the prefetcher requests. If one cannot begin, the later ones fail, too, and none is
    /// tried before the next turn: a missing answer takes seconds, and meanwhile the driver takes no reports.
    fn act(&mut self) -> Result<(), Error> {
        let mut actions = std::mem::take(&mut self.actions);
        let mut is_open = true;
        for action in actions.drain(..) {
            if let Action::Fetch { op, keys } = action {
                if is_open {
                    is_open = self.submit(op, keys)?;
                } else {
                    self.prefetcher.failed(op);
                }
            }
        }
        self.actions = actions;
        Ok(())
    }

    /// Submits the look-ups of a message's keys, together for keys of one place if the structure can. Returns false
    /// if the structure could not be entered or left.
    fn submit(&mut self, op: u64, keys: Keys) -> Result<bool, Error> {
        if self.look_up.begin(&mut self.client).is_err() {
            self.came.1 += 1;
            self.prefetcher.failed(op);
            return Ok(false);
        }
        self.held += 1;
        let mut places = std::mem::take(&mut self.places);
        places.extend(keys.iter().enumerate().filter_map(|(at, key)| Some((self.look_up.place(key)?, at))));
        places.sort_unstable();
        let before = self.waiting.len();
        for of_place in places.chunk_by(|(one, _), (other, _)| one == other) {
            for group in of_place.chunks(self.look_up.together().max(1)) {
                let mut ats = self.spare.pop().unwrap_or_default();
                ats.extend(group.iter().map(|(_, at)| *at));
                self.waiting.push_back(Group { op, ats });
            }
        }
        places.clear();
        self.places = places;
        let left = self.waiting.len() - before;
        self.messages.insert(op, Message { keys, ended: Vec::with_capacity(left), left, bytes: 0 });
        if left == 0 { self.ended(op) } else { self.submit_waiting() }
    }

    /// Submits waiting operations while there is room for their answers. Returns false if the structure could not be
    /// left.
    fn submit_waiting(&mut self) -> Result<bool, Error> {
        while let Some(Group { op, ats }) = self.waiting.front() {
            let op = *op;
            let message = self.messages.get(&op).expect("its look-ups have not all ended");
            let made = self.made.take().or_else(|| {
                let mut keys = ats.iter().map(|at| message.keys.get(*at));
                // The buffer is not zeroed first: a structure that looks several keys up fills what it uses.
                self.look_up.op_for(&mut keys, self.answers.buffer())
            });
            if let Some(made) = made {
                let bytes = room_of(&made);
                let is_oldest = self.messages.first_key_value().is_some_and(|(first, _)| *first == op);
                if !self.answers.may_go(bytes, is_oldest) {
                    self.made = Some(made);
                    break;
                }
                let Some(group) = self.waiting.pop_front() else { break };
                match self.client.submit(made) {
                    Ok(ticket) => {
                        self.under_way.insert(ticket, group);
                        self.messages.get_mut(&op).expect("it has one more under way").bytes += bytes;
                        continue;
                    }
                    Err(_) => {
                        // An operation that cannot be submitted has failed.
                        self.came.1 += 1;
                        self.answers.ended(bytes);
                    }
                }
            } else {
                // A key that no record can have is absent.
                self.waiting.pop_front();
            }
            if !self.one_ended(op)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Records the end of an operation. Returns false if it was its message's last and the structure could not be
    /// left.
    fn looked_up(&mut self, completed: Completed) -> Result<bool, Error> {
        let Some(Group { op, ats }) = self.under_way.remove(&completed.ticket) else { return Ok(true) };
        let is_good = u64::from(completed.result.is_ok());
        self.came = (self.came.0 + is_good, self.came.1 + 1 - is_good);
        let message = self.messages.get_mut(&op).expect("its look-ups have not all ended");
        message.ended.push((ats, completed));
        self.one_ended(op)
    }

    /// Counts one operation of a message as ended. Returns false if it was the last and the structure could not be
    /// left.
    fn one_ended(&mut self, op: u64) -> Result<bool, Error> {
        let message = self.messages.get_mut(&op).expect("its look-ups have not all ended");
        message.left -= 1;
        if message.left == 0 { self.ended(op) } else { Ok(true) }
    }

    /// Ends a message. Returns false if its results must not be used.
    fn ended(&mut self, op: u64) -> Result<bool, Error> {
        let message = self.messages.remove(&op).expect("a message under way");
        let is_good = self.look_up.end(&mut self.client).is_ok();
        if self.messages.is_empty() {
            self.held = 0;
        }
        // Reports that arrived meanwhile count first.
        self.hear()?;
        let mut brought = std::mem::take(&mut self.brought);
        brought.take(&message, &self.look_up, is_good);
        let Brought { each, spans, values, actions, .. } = &mut brought;
        self.prefetcher.fetched(op, each, actions);
        let placed = |action: &Action| match action {
            Action::Place { at, .. } => Some(message.keys.get(*at as usize)),
            _ => None,
        };
        for (n, action) in actions.iter().enumerate() {
            if n % LOOK_AHEAD == 0 {
                self.zone.look_ahead(actions[n..].iter().take(LOOK_AHEAD).filter_map(placed));
            }
            if let &Action::Place { at, item, stamp, .. } = action {
                let at = at as usize;
                let (of, span) = &spans[at];
                let bytes = of.map_or(&*values, |of| &message.ended[of].1.buf);
                let value = &bytes[span.clone()];
                let lines = of.and_then(|_| self.look_up.lines());
                let placing = Placing { item, key: message.keys.get(at), stamp, value, lines };
                let prefetcher = &mut self.prefetcher;
                if !self.zone.put(&placing, &mut |item, used| prefetcher.cleaned(item, used)) {
                    self.prefetcher.zone_full(item);
                }
            }
        }
        actions.clear();
        self.zone.publish();
        self.brought = brought;
        self.answers.ended(message.bytes);
        for (mut ats, completed) in message.ended {
            self.answers.keep(completed.buf);
            if self.spare.len() < SPARE_MAX {
                ats.clear();
                self.spare.push(ats);
            }
        }
        Ok(is_good)
    }
}

/// Returns the error for a process that wrote invalid data into its rings.
fn nonsense(broken: Broken) -> Error {
    Error::System { what: "the program's messages to its DPU".into(), source: std::io::Error::other(broken) }
}

impl Brought {
    /// Collects the result of each key of a message whose operations have all ended. A key that no operation looked
    /// up has no record, or its operation failed.
    fn take(&mut self, message: &Message, look_up: &impl LookUp, is_good: bool) {
        let Self { each, spans, values, copied, .. } = self;
        each.clear();
        each.extend(message.keys.iter().map(|key| match look_up.place(key) {
            None => Fetched::Absent,
            Some(_) => Fetched::Failed,
        }));
        spans.clear();
        spans.resize(message.keys.len(), (None, 0..0));
        values.clear();
        let looked_up = message.ended.iter().enumerate().flat_map(|(of, (ats, completed))| {
            ats.iter().enumerate().map(move |(number, at)| (of, number, *at, completed))
        });
        for (of, number, at, completed) in looked_up.filter(|_| is_good) {
            let key = message.keys.get(at);
            if let Some((version, value)) = look_up.in_place(number, key, completed) {
                spans[at] = (Some(of), value);
                each[at] = Fetched::Item { version: Change(version) };
                continue;
            }
            let from = values.len();
            each[at] = match look_up.looked_up(number, key, completed, values) {
                LookedUp::Absent if completed.result.is_ok() => Fetched::Absent,
                LookedUp::Absent | LookedUp::Elsewhere => Fetched::Failed,
                LookedUp::Value => match Change::of(&values[from..]) {
                    None => Fetched::Failed,
                    Some((version, item)) => {
                        spans[at] = (None, values.len() - item.len()..values.len());
                        *copied += 1;
                        Fetched::Item { version }
                    }
                },
            };
        }
    }
}
