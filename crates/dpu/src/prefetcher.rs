//! The prefetcher: from what clients ask of the host to what is fetched before the host asks for it (PD3 5 and 6.2). Pure.
//!
//! Key type: [`Prefetcher`]. Its driver tells it what requests will do ([`Prefetcher::accesses`]), what the host reads and writes back, what came of a message, and what
//! became of an item. It says what to do ([`Action`]), in order.
//!
//! ```text
//!   client's bytes --parser--> accesses --> held by the host? on its way? --no--> Fetch, many keys in a message --> node
//!   host's flush or removal ------------------------------------------------> Pass, in order with those            --> node
//!   node's answer: an item and its version --> overtaken meanwhile? late? --no--> Place, with the item's stamp     --> loading zone
//! ```
//!
//! The rules of PD3's tables 1 and 2 are tests, one for each row (`prefetcher/tests.rs`). What is added to them (PROTOCOL 19):
//!
//! - *Stamps.* An item carries the later of its record's version and the last change that was acknowledged when it was asked for, and the host compares ([`crate::changes`]).
//!   So order and bookkeeping here save fetches; that nothing stale is taken rests on neither.
//! - *Positions.* Where the mirror numbers what it hands over, and the host says how far it is, a request that the host has carried out brings nothing, and
//!   a removal is held against the writes that came in behind it. PD3 has no such numbers: a late copy of a request may bring an item that nothing asks for.
//! - *Drops.* A host may say what it drops unchanged. PD3 leaves that out (table 1, the last row), and each drop is a false negative later.
//!
//! What it does not do: parse, know addresses, move bytes, wait, retry.

mod acked;
mod flight;
mod placed;
mod recent;
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
use placed::Placed;
use recent::{Recent, What};

/// Keys that a host reads itself at once, as far as they are remembered: threads of a program read a few each.
pub const ASKED_MAX: usize = 1 << 16;

/// Keys that the host view is asked for at once (PD3, figure 5).
pub const LOOKUP_KEYS: usize = 64;

/// How a prefetcher works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Keys of a message at most.
    pub batch_keys_max: NonZeroU32,
    /// Bytes of a message's keys at most; a key that is longer goes alone.
    pub batch_bytes_max: u32,
    /// Keys on their way at most. PD3 has 16 thousand (6.1).
    pub flying_keys_max: u32,
    /// Keys whose latest story is remembered, for causes and crossings.
    pub recent_keys: NonZeroU32,
    /// The host keeps what it takes from the loading zone; else a taken item is gone.
    pub keeps: bool,
    /// What keys on their way are spread by, so that clients cannot choose many that fall together.
    pub secret: KeySecret,
}

impl Config {
    /// Messages of 32 keys that fit a datagram of 4,096 bytes, and the paper's bound. Its secret is none: who has clients sets one.
    pub const DEFAULT: Self = Self {
        batch_keys_max: NonZeroU32::new(32).unwrap(),
        batch_bytes_max: 2048,
        flying_keys_max: 16 << 10,
        recent_keys: NonZeroU32::new(1 << 16).unwrap(),
        keeps: true,
        secret: KeySecret([0, 0]),
    };
}

/// What the driver is to do, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Ask far memory for the items of these keys in one message; [`Prefetcher::fetched`] tells what came of it.
    Fetch {
        /// The message.
        op: u64,
        /// The keys, each once.
        keys: Keys,
    },
    /// Send the host's change on, behind the messages before this and in front of those after it (PD3 6.1: "read-after-write consistency").
    Pass {
        /// The driver's name for it.
        ticket: u64,
    },
    /// Put an item into the loading zone; [`Prefetcher::cleaned`] tells what became of it, or [`Prefetcher::zone_full`].
    Place {
        /// The message that brought it.
        op: u64,
        /// Its place among the message's keys.
        at: u32,
        /// Its number, never used twice.
        item: u64,
        /// What it carries: the host takes it only while this is not before the key's floor.
        stamp: Change,
    },
}

/// What came of one key of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fetched {
    /// The driver has the item.
    Item {
        /// The record's version: the change that wrote it.
        version: Change,
    },
    /// Far memory has no such record.
    Absent,
    /// It did not answer, or the record is lost.
    Failed,
}

/// What the host does with its own copy when it changes a record in far memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copy {
    /// It gives it up: a flush of what is evicted, a removal.
    Gone,
    /// It keeps it: a write-back before it is evicted. So the host holds it.
    Kept,
}

/// What a prefetcher did, beside its account.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Reads and deletes that parsers said.
    pub reads: u64,
    /// Writes that parsers said.
    pub writes: u64,
    /// Of the reads, those whose item the host had.
    pub held: u64,
    /// Of the reads, those whose item was on its way or in the zone for another one.
    pub shared: u64,
    /// Of the reads, those that were seen after the host had carried them out.
    pub over: u64,
    /// Of the reads, those behind a request that deletes the key.
    pub deleted: u64,
    /// Of the reads, those that found too many keys on their way.
    pub bounded: u64,
    /// Messages.
    pub messages: u64,
    /// Keys that the host view had no room for.
    pub view_full: u64,
}

/// What the DPU knows of one host, and what it fetches for it.
#[derive(Debug)]
pub struct Prefetcher<V> {
    config: Config,
    view: V,
    flight: Flight,
    /// Keys that the host reads itself at present.
    asked: BTreeMap<KeyId, u32>,
    placed: Placed,
    /// Of a host that does not keep what it takes: keys with an item in the zone.
    waiting: BTreeMap<KeyId, u64>,
    recent: Recent,
    acked: Acked,
    executed: Position,
    account: Account,
    stats: Stats,
}

impl<V: HostView> Prefetcher<V> {
    /// A prefetcher of a host that holds what `view` says, and whose changes up to `through` have all been acknowledged. A DPU that starts has an empty view: each item
    /// that the host holds may be prefetched once.
    #[must_use]
    pub fn new(config: Config, view: V, through: Change) -> Self {
        Self {
            config,
            view,
            flight: Flight::new(config.secret),
            asked: BTreeMap::new(),
            placed: Placed::default(),
            waiting: BTreeMap::new(),
            recent: Recent::new(config.recent_keys),
            acked: Acked::new(through),
            executed: Position::UNKNOWN,
            account: Account::default(),
            stats: Stats::default(),
        }
    }

    /// Requests will do this, in this order.
    pub fn accesses(&mut self, accesses: &Accesses, out: &mut Vec<Action>) {
        for (chunk, ids) in accesses.ids().chunks(LOOKUP_KEYS).enumerate() {
            let mut held = [false; LOOKUP_KEYS];
            self.view.contains(ids, &mut held[..ids.len()]);
            self.recent.look_ahead(ids.iter().copied());
            // An access changes what the answers say of those behind it.
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

    /// The host has carried out all requests up to here.
    pub fn executed(&mut self, position: Position) {
        self.executed = self.executed.max(position);
    }

    /// The host asks far memory for an item itself: it was not fetched in time.
    pub fn host_asks(&mut self, key: KeyId) {
        if self.asked.len() >= ASKED_MAX {
            // Of most of them it was never said, or not heard, that they were read. What is forgotten may be fetched beside the host's own read.
            self.asked.clear();
        }
        let count = self.asked.entry(key).or_insert(0);
        *count = count.saturating_add(1);
        if self.flight.spoil(key, Fate::Late) {
            self.account.late += 1;
        }
        self.missed(key);
    }

    /// The host is about to get what it asked for: before its response is written to it (PD3, table 2). `found` is false when far memory had nothing.
    pub fn host_reads(&mut self, key: KeyId, found: bool) {
        match self.asked.get_mut(&key) {
            Some(1) => {
                self.asked.remove(&key);
            }
            Some(count) => *count -= 1,
            // Known by what came only.
            None => self.missed(key),
        }
        if found {
            self.add(key);
            self.recent.note(key, What::Held);
        }
    }

    /// The host changes records of far memory: after its request was taken from the ring (PD3, table 2). It has carried out all requests up to `seen`.
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
                Copy::Gone => self.gives_up(key, seen),
                // It may be one that the host made itself, and that far memory has from now on.
                Copy::Kept => self.add(key),
            }
        }
        out.push(Action::Pass { ticket });
    }

    /// Far memory has a change of the host.
    pub fn acknowledged(&mut self, change: Change) {
        self.all_acknowledged(change..=change);
    }

    /// Far memory has a range of changes of the host.
    pub fn all_acknowledged(&mut self, changes: RangeInclusive<Change>) {
        self.acked.add_all(changes);
    }

    /// The host dropped items that far memory has as they are. It has carried out all requests up to `seen`.
    pub fn host_drops(&mut self, keys: &[KeyId], seen: Position) {
        self.recent.look_ahead(keys.iter().copied());
        for &key in keys {
            if self.recent.dropped(key, seen) {
                self.view.remove(key);
            }
        }
    }

    /// What came of a message; for each of its keys, in order.
    ///
    /// # Panics
    /// When there is no such message, or it has another number of keys.
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
                (_, Fetched::Absent) => self.wasted(sent.key, Waste::Absent, What::Absent),
                (_, Fetched::Failed) => self.wasted(sent.key, Waste::Failed, What::Failed),
                // All that wanted it are over, and had to do without.
                (_, Fetched::Item { .. }) if late => self.account.late += 1,
                (fate, Fetched::Item { version }) => {
                    let stamp = version.max(message.after);
                    out.push(self.place(op, at, sent.key, fate, stamp));
                }
            }
        }
        self.flight.give_back(message);
    }

    /// A message was lost with whoever had it: as if all its keys had failed.
    ///
    /// # Panics
    /// When there is no such message.
    pub fn failed(&mut self, op: u64) {
        let each = alloc::vec![Fetched::Failed; self.flight.keys_of(op)];
        self.fetched(op, &each, &mut Vec::new());
    }

    /// The zone had no room for an item.
    ///
    /// # Panics
    /// When there is no such item.
    pub fn zone_full(&mut self, item: u64) {
        let key = self.leaves(item, true);
        self.wasted(key, Waste::Full, What::Full);
    }

    /// An item left the zone: taken by the host, or not.
    ///
    /// # Panics
    /// When there is no such item.
    pub fn cleaned(&mut self, item: u64, used: bool) {
        let key = self.leaves(item, false);
        if used {
            self.account.used += 1;
        } else {
            self.wasted(key, Waste::Unread, What::Unread);
        }
    }

    /// The host started again, with nothing, and numbers its changes from `through` on. The driver has emptied the zone, and sends none of the old host's changes any more.
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

    /// Keys on their way.
    #[must_use]
    pub const fn flying(&self) -> u32 {
        self.flight.keys()
    }

    /// The account of all that was fetched.
    #[must_use]
    pub const fn account(&self) -> &Account {
        &self.account
    }

    /// What it did.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The host view.
    #[must_use]
    pub const fn view(&self) -> &V {
        &self.view
    }

    /// True when no message is on its way and no item in the zone.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.flight.is_empty() && self.placed.is_empty()
    }

    /// Every invariant; O(everything).
    ///
    /// # Panics
    /// When one is broken.
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

    /// A request needs the item.
    fn read(&mut self, one: &Gathered<'_>, held: bool, out: &mut Vec<Action>) {
        self.stats.reads += 1;
        let key = one.id;
        if one.position.is_over(self.executed) {
            self.stats.over += 1;
        } else if held {
            self.stats.held += 1;
            self.recent.note(key, What::Held);
        } else if self.recent.what(key) == What::Deleted {
            self.stats.deleted += 1;
        } else if self.flight.wanted_too(key, one.position) {
            self.stats.shared += 1;
        } else if self.asked.contains_key(&key) {
            self.stats.shared += 1;
            self.recent.note(key, What::Held);
        } else if self.waiting.contains_key(&key) {
            self.stats.shared += 1;
            self.recent.note(key, What::Placed);
        } else if self.flight.keys() >= self.config.flying_keys_max {
            self.stats.bounded += 1;
            self.recent.note(key, What::Bounded);
        } else {
            let Config { batch_keys_max, batch_bytes_max, .. } = self.config;
            if !self.flight.has_room(one.key.len(), batch_keys_max.get(), batch_bytes_max) {
                self.send(out);
            }
            self.flight.add(key, one.key, one.position);
            self.account.wanted += 1;
            self.recent.note(key, What::Sent);
        }
    }

    /// A request puts a new item in its place: the host will hold it (PD3, table 1).
    fn write(&mut self, one: &Gathered<'_>) {
        self.stats.writes += 1;
        // Else the host carried it out, and gave it up since.
        if self.recent.written(one.id, one.position) {
            self.add(one.id);
        }
    }

    /// A request takes the item away, and needs it for that.
    fn delete(&mut self, one: &Gathered<'_>, held: bool, out: &mut Vec<Action>) {
        self.read(one, held, out);
        self.view.remove(one.id);
        self.flight.deleted(one.id);
        self.recent.deleted(one.id, one.position);
    }

    /// Sends the message that is being filled.
    fn send(&mut self, out: &mut Vec<Action>) {
        if let Some((op, keys)) = self.flight.send(self.acked.through()) {
            self.stats.messages += 1;
            out.push(Action::Fetch { op, keys });
        }
    }

    /// The host does not hold the key, unless a request behind those that it has carried out writes it.
    fn gives_up(&mut self, key: KeyId, seen: Position) {
        if self.recent.given_up(key, seen) {
            self.view.remove(key);
        }
    }

    /// Why the host had to ask for a key.
    fn missed(&mut self, key: KeyId) {
        self.account.miss(match self.recent.what(key) {
            What::Nothing => Miss::Unseen,
            What::Held | What::Written | What::Left => Miss::Dropped,
            What::Sent => Miss::Late,
            What::Placed | What::Unread | What::Overtaken => Miss::Overtaken,
            What::Full => Miss::Full,
            What::Bounded => Miss::Bounded,
            What::Failed => Miss::Failed,
            What::Absent | What::Deleted => Miss::Absent,
        });
    }

    fn wasted(&mut self, key: KeyId, cause: Waste, what: What) {
        self.account.waste(cause, 1);
        self.recent.note_unless_changed(key, what);
    }

    /// An item goes into the zone. The view has it before the host can (PD3, table 2); but not what a request deletes.
    fn place(&mut self, op: u64, at: u32, key: KeyId, fate: Fate, stamp: Change) -> Action {
        let before = self.view.len();
        if self.config.keeps && fate == Fate::Wanted {
            self.add(key);
        }
        let item = self.placed.push(key, self.view.len() > before);
        if !self.config.keeps {
            self.waiting.insert(key, item);
        }
        self.recent.note_unless_changed(key, What::Placed);
        Action::Place { op, at, item, stamp }
    }

    /// An item is not in the zone any more; its key.
    fn leaves(&mut self, item: u64, never_was: bool) -> KeyId {
        let (key, kept) = self.placed.remove(item).expect("an item that was placed");
        if self.waiting.get(&key) == Some(&item) {
            self.waiting.remove(&key);
        }
        if never_was && kept && self.recent.what(key) != What::Written {
            self.view.remove(key);
        }
        key
    }
}
