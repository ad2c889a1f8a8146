//! The host: executes requests in the order of the pieces, caches a few items, and looks into the zone before
//! it reads far memory.

use super::clients::{Ask, Request};
use super::{Key, Shape, Value, World};
use farmem_dpu::changes::{Change, Changes};
use farmem_dpu::prefetcher::Copy;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;

#[derive(Clone, Copy, Debug)]
pub(super) struct Cached {
    pub(super) value: Value,
    /// True if far memory does not have it.
    pub(super) dirty: bool,
}

/// A request of the host to its DPU.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ringed {
    /// A record changes; `None` for a removal.
    Write { change: Change, key: Key, value: Option<Value>, copy: Copy, seen: u64 },
    /// A record is read.
    Ask { key: Key },
    /// An item was dropped.
    Drop { key: Key, seen: u64 },
}

/// An item in the zone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) item: u64,
    pub(super) key: Key,
    pub(super) stamp: Change,
    pub(super) value: Value,
    pub(super) taken: bool,
    /// True if the host held the item on arrival.
    pub(super) doubled: bool,
    /// True if the DPU could not know that, or the item came beside such an item.
    pub(super) excused: bool,
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) cache: BTreeMap<Key, Cached>,
    pub(super) ring: VecDeque<Ringed>,
    /// Changes that are not acknowledged.
    pub(super) pending: BTreeMap<u64, (Key, Option<Value>)>,
    pub(super) changes: Changes,
    pub(super) zone: VecDeque<Item>,
    /// Remaining requests of the piece being executed.
    pub(super) at_hand: VecDeque<Request>,
    pub(super) current: Option<u64>,
    /// The last piece up to which all are executed.
    pub(super) executed: u64,
    /// The request that waits for far memory.
    pub(super) waiting: Option<Request>,
    pub(super) operations: u64,
    /// Cached items that the DPU cannot know of.
    pub(super) excused: BTreeSet<Key>,
    /// Cached items that are in the zone too.
    pub(super) doubled: BTreeSet<Key>,
}

impl Host {
    pub(super) fn new(shape: &Shape, after: u64) -> Self {
        let floors = NonZeroU32::new(shape.floors).expect("some");
        Self {
            cache: BTreeMap::new(),
            ring: VecDeque::new(),
            pending: BTreeMap::new(),
            changes: Changes::new(floors, Change(after)),
            zone: VecDeque::new(),
            at_hand: VecDeque::new(),
            current: None,
            executed: 0,
            waiting: None,
            operations: 0,
            excused: BTreeSet::new(),
            doubled: BTreeSet::new(),
        }
    }

    pub(super) const fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.at_hand.is_empty() && self.waiting.is_none() && self.ring.is_empty() && self.pending.is_empty()
    }

    /// Returns the last change before which all are acknowledged.
    pub(super) fn through(&self) -> Change {
        match self.pending.first_key_value() {
            Some((&first, _)) => Change(first - 1),
            None => self.changes.last(),
        }
    }
}

impl World {
    /// Executes a request, or waits for far memory.
    pub(super) fn carry_out(&mut self, request: Request) {
        let key = request.key;
        if let Some(&Cached { value, .. }) = self.host.cache.get(&key) {
            if self.host.doubled.remove(&key) {
                self.false_positive(key);
            }
            self.is_right(key, Some(value), "its cache");
            return self.finish(request, Some(value), true);
        }
        if request.ask == Ask::Write {
            return self.finish(request, None, true);
        }
        let floor = self.host.changes.floor(self.id(key));
        let mut items = self.host.zone.iter_mut().filter(|item| item.key == key && !item.taken);
        if let Some(item) = items.find(|item| item.stamp >= floor) {
            item.taken = true;
            let (value, excused) = (item.value, item.excused);
            if excused {
                // The DPU has seen a drop of the earlier copy, and cannot tell it from a drop of this one.
                self.host.excused.insert(key);
            }
            self.event("taken", key, value);
            self.note("taken");
            self.is_right(key, Some(value), "the zone");
            return self.finish(request, Some(value), self.shape.keeps);
        }
        if items_left(&self.host.zone, key) {
            self.note("too_old");
        }
        self.event("ask", key, 0);
        self.host.ring.push_back(Ringed::Ask { key });
        self.host.waiting = Some(request);
    }

    /// Handles far memory's answer for the waiting request.
    pub(super) fn answered(&mut self, key: Key, value: Option<Value>) {
        let Some(request) = self.host.waiting.take_if(|request| request.key == key) else { return };
        self.is_right(key, value, "far memory");
        if self.dpu.is_none() {
            self.host.excused.insert(key);
        }
        self.finish(request, value, true);
    }

    /// Completes a request.
    fn finish(&mut self, request: Request, item: Option<Value>, keeps: bool) {
        self.host.operations += 1;
        let Request { ask, key, torn, unseen } = request;
        self.event("does", key, ask as u64);
        match ask {
            Ask::Read => {
                if let Some(value) = item.filter(|_| keeps && !self.host.cache.contains_key(&key)) {
                    self.cache(key, value, self.lost.contains_key(&key));
                    self.lost.remove(&key);
                }
            }
            Ask::Write | Ask::Change => {
                let created = ask == Ask::Change && (item.is_none() || !keeps);
                self.values += 1;
                self.truth.insert(key, self.values);
                self.lost.remove(&key);
                self.cache(key, self.values, true);
                if torn || unseen || created || self.dpu.is_none() {
                    self.host.excused.insert(key);
                }
            }
            Ask::Delete => {
                self.forget(key);
                self.truth.remove(&key);
                self.lost.remove(&key);
                self.change(key, None, Copy::Dropped);
            }
        }
    }

    /// Compares an item that was read with the last one written.
    fn is_right(&mut self, key: Key, value: Option<Value>, from: &str) {
        let truth = self.truth.get(&key).copied();
        let lost = self.lost.get(&key).copied();
        if let (Some(value), Some(was)) = (value, lost)
            && value == was
        {
            // The host still held the item that the node lost.
            self.truth.insert(key, value);
            return;
        }
        let right = value == truth || (value.is_none() && lost.is_some());
        self.hold(right, || format!("{from} says {value:?} of {key}, and {truth:?} was written last"));
    }

    fn false_positive(&mut self, key: Key) {
        let strict = self.shape.numbered && self.shape.ring_first;
        let excused = self.host.excused.contains(&key);
        if excused || !strict {
            return self.note(if excused { "false_positives.excused" } else { "false_positives.crossed" });
        }
        self.hold(false, || format!("{key} was fetched, and the host had it"));
    }

    /// Adds an item to the host's cache.
    fn cache(&mut self, key: Key, value: Value, dirty: bool) {
        while self.host.cache.len() >= self.shape.cache && !self.host.cache.contains_key(&key) {
            let which = self.rng.below(u32::try_from(self.host.cache.len()).expect("a few")) as usize;
            let victim = *self.host.cache.keys().nth(which).expect("one of them");
            self.evict(victim);
        }
        self.host.cache.insert(key, Cached { value, dirty });
    }

    fn evict(&mut self, key: Key) {
        let Some(Cached { value, dirty }) = self.forget(key) else { return };
        let seen = self.host.executed;
        self.event("evict", key, value);
        if dirty {
            self.change(key, Some(value), Copy::Dropped);
        } else if self.shape.says_drops {
            self.host.ring.push_back(Ringed::Drop { key, seen });
        }
    }

    fn forget(&mut self, key: Key) -> Option<Cached> {
        self.host.excused.remove(&key);
        self.host.doubled.remove(&key);
        self.host.cache.remove(&key)
    }

    /// Changes a record in far memory.
    fn change(&mut self, key: Key, value: Option<Value>, copy: Copy) {
        let change = self.host.changes.change(self.id(key));
        let seen = self.host.executed;
        self.event("change", key, change.0);
        self.host.pending.insert(change.0, (key, value));
        self.host.ring.push_back(Ringed::Write { change, key, value, copy, seen });
    }

    /// Lets the host create an item of its own.
    pub(super) fn host_generates(&mut self) {
        let key = self.rng.below(super::KEYS);
        let known = self.truth.contains_key(&key) || self.lost.contains_key(&key);
        if known || self.silent || self.host.is_waiting() {
            return;
        }
        self.values += 1;
        self.truth.insert(key, self.values);
        self.cache(key, self.values, true);
        self.host.excused.insert(key);
        self.note("generated");
    }

    /// Lets the host write an item back and keep it.
    pub(super) fn host_writes_back(&mut self) {
        let dirty = self.host.cache.iter().find(|(_, cached)| cached.dirty);
        let Some((&key, &Cached { value, .. })) = dirty else { return };
        self.host.cache.get_mut(&key).expect("it is here").dirty = false;
        self.change(key, Some(value), Copy::Retained);
        self.note("kept");
    }

    /// Crashes the host: its cache is lost, and changes in flight may or may not arrive.
    pub(super) fn host_dies(&mut self) {
        self.event("host dies", 0, 0);
        self.note("crashes.host");
        self.arrive_in_part();
        let after = self.host.changes.last().0 + 1_000;
        let (executed, operations) = (self.pieces, self.host.operations);
        self.host = Host { executed, operations, ..Host::new(&self.shape, after) };
        self.to_host.clear();
        self.mirror.clear();
        self.connections.iter_mut().for_each(super::clients::Connection::reconnect);
        self.truth = self.node.records.iter().map(|(key, (_, value))| (*key, *value)).collect();
        self.lost.clear();
        if let Some(dpu) = &mut self.dpu {
            dpu.prefetcher.host_restarted(Change(after));
            dpu.wanted.clear();
        }
    }
}

fn items_left(zone: &VecDeque<Item>, key: Key) -> bool {
    zone.iter().any(|item| item.key == key && !item.taken)
}
