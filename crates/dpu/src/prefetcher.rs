//! The prefetcher: fetches items that clients request before the host asks for them (PD3 5 and 6.2). Pure.
//!
//! Key type: [`Prefetcher`]. The driver reports the parsed requests ([`Prefetcher::accesses`]), the host's reads and
//! write-backs, the ends of messages, and the use of items. The prefetcher returns actions ([`Action`]), in order.
//!
//! ```text
//!   client's bytes --parser--> accesses --> held by the host? on its way? --no--> Fetch, many keys in a message --> node
//!   host's flush or removal ------------------------------------------------> Pass, in order with those            --> node
//!   node's answer: an item and its version --> overtaken meanwhile? late? --no--> Place, with the item's stamp     --> loading zone
//! ```
//!
//! The rules of PD3's tables 1 and 2 are tests, one for each row (`prefetcher/tests.rs`). This implementation adds
//! (PROTOCOL 19):
//!
//! - *Stamps.* An item carries the later of its record's version and the last change that was acknowledged at the
//!   request, and the host compares ([`crate::changes`]). So order and bookkeeping here save fetches; correctness
//!   depends on neither.
//! - *Positions.* If the mirror numbers its pieces and the host reports its position, a request that the host has
//!   executed fetches nothing, and a removal is compared with the writes that arrived after it. PD3 has no such
//!   numbers: a late copy of a request may fetch an item without a reader.
//! - *Drops.* A host may report items that it drops unchanged. PD3 omits that (table 1, the last row), and each drop
//!   is a false negative later.
//!
//! The prefetcher does not parse, know addresses, move bytes, wait or retry.

mod acked;
mod flight;
mod history;
mod placed;
#[cfg(test)]
mod tests;

use crate::accesses::{Accesses, Gathered, Keys, Position};
use crate::changes::Change;
use crate::parse::Op;
use crate::view::{HostView, KeyId, KeySecret};
pub use acked::Acked;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use core::ops::RangeInclusive;
use farmem_paging::{Account, Miss, Waste};
use flight::{Fate, Flight};
use history::{History, KeyEvent};
use placed::Placed;

/// Maximum number of remembered keys that a host is reading itself: threads of a program read a few each.
pub const ASKED_MAX: usize = 1 << 16;

/// Number of keys of one query to the host view (PD3, figure 5).
pub const LOOKUP_KEYS: usize = 64;

/// The configuration of a prefetcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Maximum number of keys of a message.
    pub batch_keys_max: NonZeroU32,
    /// Maximum number of bytes of a message's keys; a longer key goes alone.
    pub batch_bytes_max: u32,
    /// Maximum number of keys in flight. PD3 has 16 thousand (6.1).
    pub flying_keys_max: u32,
    /// Number of keys whose latest event is remembered, for causes and crossing events.
    pub recent_keys: NonZeroU32,
    /// True if the host keeps items that it takes from the loading zone. If false, a taken item is gone.
    pub keeps: bool,
    /// The secret that spreads keys in flight over a table, so that clients cannot choose many colliding
    /// keys.
    pub secret: KeySecret,
}

impl Config {
    /// Messages of 32 keys that fit a datagram of 4,096 bytes, and the paper's limit. The secret is zero: a
    /// program with clients sets one.
    pub const DEFAULT: Self = Self {
        batch_keys_max: NonZeroU32::new(32).unwrap(),
        batch_bytes_max: 2048,
        flying_keys_max: 16 << 10,
        recent_keys: NonZeroU32::new(1 << 16).unwrap(),
        keeps: true,
        secret: KeySecret([0, 0]),
    };
}

/// An action for the driver, carried out in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Requests the items of these keys from far memory in one message. [`Prefetcher::fetched`] reports the
    /// end.
    Fetch {
        /// The message.
        op: u64,
        /// The keys, each once.
        keys: Keys,
    },
    /// Forwards the host's change, behind earlier messages and in front of later ones (PD3 6.1:
    /// "read-after-write consistency").
    Pass {
        /// The driver's id of the change.
        ticket: u64,
    },
    /// Puts an item into the loading zone. [`Prefetcher::cleaned`] or [`Prefetcher::zone_full`] reports the
    /// result.
    Place {
        /// The message that fetched it.
        op: u64,
        /// Index of its key in the message.
        at: u32,
        /// The item's number, unique.
        item: u64,
        /// The item's stamp: the host takes the item only if the stamp is at least the key's floor.
        stamp: Change,
    },
}

/// The result for one key of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fetched {
    /// The driver has the item.
    Item {
        /// The record's version: the change that wrote it.
        version: Change,
    },
    /// Far memory has no such record.
    Absent,
    /// Far memory did not answer, or the record is lost.
    Failed,
}

/// The fate of the host's own copy when it changes a record in far memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copy {
    /// The host gives its copy up: a flush at eviction, or a removal.
    Dropped,
    /// The host keeps its copy: a write-back before eviction.
    Retained,
}

/// Counters of a prefetcher, beside its account.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Reads and deletes that parsers reported.
    pub reads: u64,
    /// Writes that parsers reported.
    pub writes: u64,
    /// Reads whose item the host held.
    pub held: u64,
    /// Reads whose item was in flight or in the zone for another read.
    pub shared: u64,
    /// Reads seen after the host had executed them.
    pub over: u64,
    /// Reads behind a request that deletes the key.
    pub deleted: u64,
    /// Reads dropped because too many keys were in flight.
    pub bounded: u64,
    /// Messages.
    pub messages: u64,
    /// Keys for which the host view had no room.
    pub view_full: u64,
}

/// The DPU's knowledge of one host, and the fetches for it.
#[derive(Debug)]
pub struct Prefetcher<V> {
    config: Config,
    view: V,
    flight: Flight,
    /// Keys that the host is reading itself.
    asked: BTreeMap<KeyId, u32>,
    placed: Placed,
    /// Keys with an item in the zone, for a host that does not keep taken items.
    waiting: BTreeMap<KeyId, u64>,
    recent: History,
    acked: Acked,
    executed: Position,
    account: Account,
    stats: Stats,
}

impl<V: HostView> Prefetcher<V> {
    /// Returns a prefetcher for a host that holds the keys of `view`, and whose changes up to `through` are
    /// acknowledged. A DPU that starts has an empty view: each item that the host holds may be prefetched
    /// once.
    #[must_use]
    pub fn new(config: Config, view: V, through: Change) -> Self {
        Self {
            config,
            view,
            flight: Flight::new(config.secret),
            asked: BTreeMap::new(),
            placed: Placed::default(),
            waiting: BTreeMap::new(),
            recent: History::new(config.recent_keys),
            acked: Acked::new(through),
            executed: Position::UNKNOWN,
            account: Account::default(),
            stats: Stats::default(),
        }
    }

    /// Handles parsed accesses, in order.
    pub fn accesses(&mut self, accesses: &Accesses, out: &mut Vec<Action>) {
        for (chunk, ids) in accesses.ids().chunks(LOOKUP_KEYS).enumerate() {
            let mut held = [false; LOOKUP_KEYS];
            self.view.contains(ids, &mut held[..ids.len()]);
            self.recent.look_ahead(ids.iter().copied());
            // An access changes the answers for later ones.
            let mut changed = false;
            for (index, mut held) in (chunk * LOOKUP_KEYS..).zip(held).take(ids.len()) {
                let one = accesses.get(index);
                if changed {
                    held = self.holds(one.id);
                }
                changed |= one.op != Op::Read;
                match one.op {
                    Op::Read => self.read(&one, held, out),
                    Op::Write => self.write(&one),
                    Op::Delete => self.delete(&one, held, out),
                }
            }
        }
        self.send(out);
    }

    /// Records that the host has executed all requests up to `position`.
    pub fn executed(&mut self, position: Position) {
        self.executed = self.executed.max(position);
    }

    /// Records that the host reads an item from far memory itself, because it was not prefetched in time.
    pub fn host_asks(&mut self, key: KeyId) {
        if self.asked.len() >= ASKED_MAX {
            // For most of them the end of the read was never reported. A forgotten key may be fetched in
            // parallel to the host's own read.
            self.asked.clear();
        }
        let count = self.asked.entry(key).or_insert(0);
        *count = count.saturating_add(1);
        if self.flight.spoil(key, Fate::Late) {
            self.account.late += 1;
        }
        self.missed(key);
    }

    /// Records that the host is about to receive an item that it read itself; called before the response is
    /// written (PD3, table 2). `found` is false if far memory has no such item.
    pub fn host_reads(&mut self, key: KeyId, found: bool) {
        match self.asked.get_mut(&key) {
            Some(1) => {
                self.asked.remove(&key);
            }
            Some(count) => *count -= 1,
            // The beginning of this read was not reported.
            None => self.missed(key),
        }
        if found {
            self.add(key);
            self.recent.note(key, KeyEvent::Held);
        }
    }

    /// Records changes of records by the host, after its request was taken from the ring (PD3, table 2). The
    /// host has executed all requests up to `seen`.
    pub fn host_writes(
        &mut self,
        ticket: u64,
        keys: &[KeyId],
        copy: Copy,
        seen: Position,
        out: &mut Vec<Action>,
    ) {
        for &key in keys {
            self.flight.spoil(key, Fate::Overtaken);
            match copy {
                Copy::Dropped => self.gives_up(key, seen),
                // The host may have created the item itself; far memory has it from now on.
                Copy::Retained => self.add(key),
            }
        }
        out.push(Action::Pass { ticket });
    }

    /// Records that far memory has acknowledged a change.
    pub fn acknowledged(&mut self, change: Change) {
        self.all_acknowledged(change..=change);
    }

    /// Records that far memory has acknowledged a range of changes.
    pub fn all_acknowledged(&mut self, changes: RangeInclusive<Change>) {
        self.acked.add_all(changes);
    }

    /// Records that the host dropped unchanged items. The host has executed all requests up to `seen`.
    pub fn host_drops(&mut self, keys: &[KeyId], seen: Position) {
        self.recent.look_ahead(keys.iter().copied());
        for &key in keys {
            if self.recent.dropped(key, seen) {
                self.view.remove(key);
            }
        }
    }

    /// Handles the end of a message, with a result for each of its keys, in order.
    ///
    /// # Panics
    ///
    /// If there is no such message, or its number of keys differs.
    pub fn fetched(&mut self, op: u64, each: &[Fetched], out: &mut Vec<Action>) {
        let message = self.flight.ended(op);
        assert_eq!(message.keys.len(), each.len(), "an answer for each key");
        self.recent.look_ahead(message.keys.iter().map(|sent| sent.key));
        for (at, (sent, &fetched)) in (0..).zip(message.keys.iter().zip(each)) {
            let late = sent.position.is_over(self.executed);
            match (sent.fate, fetched) {
                (Fate::Late, _) => {}
                (Fate::Overtaken, _) => self.account.waste(Waste::Overtaken, 1),
                (Fate::Restarted, _) => self.account.waste(Waste::Restarted, 1),
                (_, Fetched::Absent) => self.wasted(sent.key, Waste::Absent, KeyEvent::Absent),
                (_, Fetched::Failed) => self.wasted(sent.key, Waste::Failed, KeyEvent::Failed),
                // All reads of the item have ended and had to do without.
                (_, Fetched::Item { .. }) if late => self.account.late += 1,
                (fate, Fetched::Item { version }) => {
                    let stamp = version.max(message.after);
                    out.push(self.place(op, at, sent.key, fate, stamp));
                }
            }
        }
        self.flight.give_back(message);
    }

    /// Handles the loss of a message as a failure of all its keys.
    ///
    /// # Panics
    ///
    /// If there is no such message.
    pub fn failed(&mut self, op: u64) {
        let each = alloc::vec![Fetched::Failed; self.flight.keys_of(op)];
        self.fetched(op, &each, &mut Vec::new());
    }

    /// Records that the zone had no room for an item.
    ///
    /// # Panics
    ///
    /// If there is no such item.
    pub fn zone_full(&mut self, item: u64) {
        let key = self.leaves(item, true);
        self.wasted(key, Waste::Full, KeyEvent::Full);
    }

    /// Records that an item left the zone, `used` if the host took it.
    ///
    /// # Panics
    ///
    /// If there is no such item.
    pub fn cleaned(&mut self, item: u64, used: bool) {
        let key = self.leaves(item, false);
        if used {
            self.account.used += 1;
        } else {
            self.wasted(key, Waste::Unread, KeyEvent::Unread);
        }
    }

    /// Records that the host restarted with an empty cache, and numbers its changes from `through` on. The
    /// driver has emptied the zone, and sends none of the old host's changes any more.
    pub fn host_restarted(&mut self, through: Change) {
        self.view.clear();
        self.flight.spoil_all();
        self.asked.clear();
        self.account.waste(Waste::Restarted, self.placed.len());
        self.placed.clear();
        self.waiting.clear();
        self.recent.clear();
        self.acked = Acked::new(through);
        self.executed = Position::UNKNOWN;
    }

    /// Returns the number of keys in flight.
    #[must_use]
    pub const fn flying(&self) -> u32 {
        self.flight.keys()
    }

    /// Returns the account of all fetches.
    #[must_use]
    pub const fn account(&self) -> &Account {
        &self.account
    }

    /// Returns the counters.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns the host view.
    #[must_use]
    pub const fn view(&self) -> &V {
        &self.view
    }

    /// Returns true if no message is in flight and no item is in the zone.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.flight.is_empty() && self.placed.is_empty()
    }

    /// Asserts every invariant; O(everything).
    ///
    /// # Panics
    ///
    /// If an invariant is broken.
    pub fn check(&self) {
        self.flight.check();
        assert!(self.flight.keys() <= self.config.flying_keys_max, "more keys are on their way than may be");
        let open = self.flight.open() + self.placed.len();
        assert_eq!(self.account.open(), open, "each key is counted once: {:?}", self.account);
        let here = |(key, item): (&KeyId, &u64)| self.placed.get(*item).is_some_and(|(of, _)| of == *key);
        assert!(self.waiting.iter().all(here), "what waits is in the zone");
    }

    fn holds(&self, key: KeyId) -> bool {
        let mut held = [false];
        self.view.contains(&[key], &mut held);
        held[0]
    }

    fn add(&mut self, key: KeyId) {
        self.stats.view_full += u64::from(!self.view.insert(key));
    }

    /// Handles a request that needs the item.
    fn read(&mut self, one: &Gathered<'_>, held: bool, out: &mut Vec<Action>) {
        self.stats.reads += 1;
        let key = one.id;
        if one.position.is_over(self.executed) {
            self.stats.over += 1;
        } else if held {
            self.stats.held += 1;
            self.recent.note(key, KeyEvent::Held);
        } else if self.recent.latest(key) == KeyEvent::Deleted {
            self.stats.deleted += 1;
        } else if self.flight.join_flight(key, one.position) {
            self.stats.shared += 1;
        } else if self.asked.contains_key(&key) {
            self.stats.shared += 1;
            self.recent.note(key, KeyEvent::Held);
        } else if self.waiting.contains_key(&key) {
            self.stats.shared += 1;
            self.recent.note(key, KeyEvent::Placed);
        } else if self.flight.keys() >= self.config.flying_keys_max {
            self.stats.bounded += 1;
            self.recent.note(key, KeyEvent::Bounded);
        } else {
            let Config { batch_keys_max, batch_bytes_max, .. } = self.config;
            if !self.flight.has_room(one.key.len(), batch_keys_max.get(), batch_bytes_max) {
                self.send(out);
            }
            self.flight.add(key, one.key, one.position);
            self.account.wanted += 1;
            self.recent.note(key, KeyEvent::Sent);
        }
    }

    /// Handles a blind write: the host will hold the item (PD3, table 1).
    fn write(&mut self, one: &Gathered<'_>) {
        self.stats.writes += 1;
        // Otherwise the host has executed the write and has given the item up since.
        if self.recent.written(one.id, one.position) {
            self.add(one.id);
        }
    }

    /// Handles a request that removes the item, and needs it for that.
    fn delete(&mut self, one: &Gathered<'_>, held: bool, out: &mut Vec<Action>) {
        self.read(one, held, out);
        self.view.remove(one.id);
        self.flight.deleted(one.id);
        self.recent.deleted(one.id, one.position);
    }

    /// Sends the message being filled.
    fn send(&mut self, out: &mut Vec<Action>) {
        if let Some((op, keys)) = self.flight.send(self.acked.through()) {
            self.stats.messages += 1;
            out.push(Action::Fetch { op, keys });
        }
    }

    /// Removes the key from the view, unless a request that the host has not executed yet writes it.
    fn gives_up(&mut self, key: KeyId, seen: Position) {
        if self.recent.given_up(key, seen) {
            self.view.remove(key);
        }
    }

    /// Counts the cause for which the host had to read a key itself.
    fn missed(&mut self, key: KeyId) {
        self.account.miss(match self.recent.latest(key) {
            KeyEvent::Nothing => Miss::Unseen,
            KeyEvent::Held | KeyEvent::Written | KeyEvent::GivenUp => Miss::Dropped,
            KeyEvent::Sent => Miss::Late,
            KeyEvent::Placed | KeyEvent::Unread | KeyEvent::Overtaken => Miss::Overtaken,
            KeyEvent::Full => Miss::Full,
            KeyEvent::Bounded => Miss::Bounded,
            KeyEvent::Failed => Miss::Failed,
            KeyEvent::Absent | KeyEvent::Deleted => Miss::Absent,
        });
    }

    fn wasted(&mut self, key: KeyId, cause: Waste, event: KeyEvent) {
        self.account.waste(cause, 1);
        self.recent.note_unless_changed(key, event);
    }

    /// Puts an item into the zone. The key enters the view before the host can take the item (PD3, table 2),
    /// unless a request deletes it.
    fn place(&mut self, op: u64, at: u32, key: KeyId, fate: Fate, stamp: Change) -> Action {
        let before = self.view.len();
        if self.config.keeps && fate == Fate::Expected {
            self.add(key);
        }
        let item = self.placed.push(key, self.view.len() > before);
        if !self.config.keeps {
            self.waiting.insert(key, item);
        }
        self.recent.note_unless_changed(key, KeyEvent::Placed);
        Action::Place { op, at, item, stamp }
    }

    /// Removes an item from the zone and returns its key.
    fn leaves(&mut self, item: u64, never_was: bool) -> KeyId {
        let (key, kept) = self.placed.remove(item).expect("an item that was placed");
        if self.waiting.get(&key) == Some(&item) {
            self.waiting.remove(&key);
        }
        if never_was && kept && self.recent.latest(key) != KeyEvent::Written {
            self.view.remove(key);
        }
        key
    }
}
