//! Room within the limits ([`super::memory`]): use of keys, eviction, compaction, and chunks that go to far memory.

use super::encoded::no_room;
use super::frequency::{Use, clock};
use super::index::{Entry, Name};
use super::log::{Full, HERE_MIN};
use super::memory::Policy;
use super::{CHUNK, Space, Store};
use crate::failure::Failure;

/// A function that gets the database and the name of each key before it is evicted.
type OnEvict<'a> = dyn FnMut(u8, &[u8]) -> Result<(), Failure> + 'a;

/// The share of collections in use: this many of `SHARES` of what the index leaves.
const LIVE_SHARES: usize = 1;
const SHARES: usize = 2;
/// The part of local memory that is free between turns.
const RESERVE_SHARE: usize = 64;
/// Chunks that one turn compacts, besides an eighth of those that are owed: the longest wait of other
/// clients.
const TURN_COMPACTIONS: u64 = 4;
/// Keys that one call of [`Store::evict`] removes at most, because a command waits for it.
const EVICT_MAX: usize = 16_384;

impl Store {
    /// Returns a use of a key at the present time.
    pub(super) fn use_now(&mut self) -> Use {
        let chance = |store: &mut Self| f64::from(store.rng.below(u32::MAX)) / f64::from(u32::MAX);
        let lfu = self.memory.policy.is_lfu().then(|| (self.memory.lfu, chance(self)));
        Use { now: self.now, lfu }
    }

    /// Asks something about a key without using the key: eviction takes it as soon as before.
    pub(crate) fn without_use<R>(&mut self, db: u8, key: &[u8], ask: impl FnOnce(&mut Self) -> R) -> R {
        let name = self.name(key);
        let used = self.space(db).index.get(name).map(Entry::used);
        let answer = ask(self);
        if let (Some(used), Some(entry)) = (used, self.space_mut(db).index.get_mut(name)) {
            entry.set_used(used);
        }
        answer
    }

    /// Returns the seconds since a key was used, and its frequency, without counting as a use; `None` if the key does
    /// not exist.
    pub(crate) fn last_use(&self, db: u8, key: &[u8]) -> Option<(u32, u32)> {
        let name = self.name(key);
        let used = self.space(db).index.get(name).filter(|_| !self.has_ended(db, name))?.used();
        Some((clock(self.now).saturating_sub(used), self.memory.lfu.frequency(used, self.now)))
    }

    /// Returns the bytes of all tables: entries, expiry times, and the tables of flushed databases that are
    /// not freed yet.
    pub(crate) fn index_bytes(&self) -> usize {
        let tables = |space: &Space| space.index.bytes() + space.ends.bytes();
        self.spaces.iter().map(tables).sum::<usize>() + self.flushed_bytes()
    }

    /// Returns the bytes of local memory that the store accounts for.
    pub(crate) fn here_bytes(&self) -> usize {
        self.index_bytes()
            + self.live_bytes
            + self.log.here_bytes()
            + self.scratch.capacity()
            + self.joined.capacity()
            + self.picture_bytes()
    }

    /// Returns the bytes of all data: `used_memory`. The index counts by its entries and not by its tables,
    /// because an evicted key frees its entry, though its table stays.
    pub(crate) fn data_bytes(&self) -> usize {
        let entries = |space: &Space| (space.index.len() + space.ends.len()) * size_of::<Entry>();
        self.spaces.iter().map(entries).sum::<usize>() + self.live_bytes + self.log.live()
    }

    /// Keeps local memory within the limit; called between commands. If something cannot be moved away, the
    /// store refuses new data until it can.
    pub(crate) fn settle(&mut self) {
        self.reclaim();
        self.log.far().free_one();
        self.shrink_live_places();
        let left = self.left();
        let live_max = self.live_max();
        let mut is_full = self.has_no_room();
        let mut withheld = None;
        if self.live_bytes > live_max {
            let shrunk = self.shrink_live(live_max - live_max / 8);
            is_full |= shrunk.is_err() || self.has_no_room();
            let reply = shrunk.err().map(|failure| failure.reply().to_owned());
            withheld = reply.filter(|reply| reply.starts_with("FARMEMORY"));
        }
        let chunks = left.saturating_sub(self.live_bytes + self.scratch.capacity()) / CHUNK;
        if chunks != self.log.here_max() {
            let bounded = self.bound_here(chunks);
            is_full |= bounded.is_err();
            let failure = bounded.err().map(|full| no_room(&full).reply().to_owned());
            withheld = failure.filter(|reply| reply.starts_with("FARMEMORY")).or(withheld);
        }
        if self.scratch.capacity() > left / 16 {
            self.scratch = Vec::new();
        }
        (self.memory.is_full, self.memory.withheld) = (is_full, withheld);
        // `tidy` reports a chunk that cannot be compacted.
        let _told_of_there = self.compact_some(0);
    }

    /// Returns whether local memory has no room for new data.
    pub(super) fn has_no_room(&self) -> bool {
        let left = self.left();
        left < (HERE_MIN + 1) * CHUNK || self.live_bytes > left
    }

    /// Returns the minimum of local memory in bytes with which new data have room, with the present keys.
    pub(crate) fn least_local(&self) -> usize {
        let fixed = self.memory.overhead + self.index_bytes() + (HERE_MIN + 2) * CHUNK;
        fixed + fixed / (RESERVE_SHARE - 1)
    }

    /// Returns the local memory that is left for collections in use and the log. Growth within a turn is not
    /// counted yet.
    pub(super) fn left(&self) -> usize {
        let fixed = self.memory.overhead + self.index_bytes() + self.memory.local / RESERVE_SHARE;
        self.memory.local.saturating_sub(fixed)
    }

    /// Returns the bytes that collections in use may take.
    pub(super) fn live_max(&self) -> usize {
        self.left() * LIVE_SHARES / SHARES
    }

    fn bound_here(&mut self, chunks: usize) -> Result<(), Full> {
        while self.log.here_len().1 * 2 > chunks.max(HERE_MIN) {
            self.shrink_cache();
        }
        self.log.set_here_max(chunks)
    }

    /// Makes room for bytes that one command needs in local memory, such as a long value: chunks go to far
    /// memory first. After the turn there is as much room as before.
    pub(crate) fn give_way(&mut self, bytes: usize) {
        if bytes < self.memory.local / RESERVE_SHARE {
            return;
        }
        let chunks = self.left().saturating_sub(self.live_bytes + bytes) / CHUNK;
        if chunks < self.log.here_max() {
            // A chunk that cannot be moved stays, and the end of the turn reports it.
            let _told_of_there = self.bound_here(chunks);
        }
    }

    /// Refuses new data when local memory is full.
    pub(crate) fn check_room(&self) -> Result<(), Failure> {
        if self.memory.is_full && !self.loading { Err(self.local_is_full()) } else { Ok(()) }
    }

    fn local_is_full(&self) -> Failure {
        if let Some(reply) = &self.memory.withheld {
            return Failure::said(reply.clone());
        }
        Failure::said(format!(
            "OOM local memory is full: the index of {} keys, collections in use and this process take {} of {} bytes; start with a larger --local",
            self.key_count(),
            self.index_bytes() + self.live_bytes + self.memory.overhead,
            self.memory.local
        ))
    }

    /// Evicts keys by the policy while there are more data than `maxmemory`. `on_evict` gets each key before its
    /// removal, for the append log.
    ///
    /// # Errors
    ///
    /// An error if no key may be evicted, and errors of `on_evict`.
    pub(crate) fn evict(&mut self, on_evict: &mut OnEvict<'_>) -> Result<(), Failure> {
        if self.memory.data_max == 0 {
            return Ok(());
        }
        for _ in 0..EVICT_MAX {
            if self.data_bytes() <= self.memory.data_max {
                return Ok(());
            }
            if self.reclaim() {
                continue;
            }
            let Some((db, name)) = self.choose() else { return Err(Failure::OUT_OF_MEMORY) };
            // A key that cannot be read is lost with its memory node, so another one is chosen.
            let Ok(key) = self.key_of(db, name) else { continue };
            on_evict(db, &key)?;
            self.before_change(db, name, Some(&key));
            self.take_out(db, name);
            self.touch(db, name);
            self.stats.evicted += 1;
        }
        if self.data_bytes() <= self.memory.data_max { Ok(()) } else { Err(Failure::OUT_OF_MEMORY) }
    }

    /// Chooses the next key among random ones.
    fn choose(&mut self) -> Option<(u8, Name)> {
        let policy = self.memory.policy;
        let volatile = !matches!(policy, Policy::AllLru | Policy::AllRandom | Policy::AllLfu);
        let samples = if matches!(policy, Policy::AllRandom | Policy::VolatileRandom) {
            1
        } else {
            self.memory.samples
        };
        let mut best: Option<(i64, u8, Name)> = None;
        if policy == Policy::NoEviction {
            return None;
        }
        for db in 0..u8::try_from(super::SPACES).expect("few") {
            for _ in 0..samples {
                let chance = self.rng.next_u64();
                let space = self.space(db);
                let entry: &Entry = if volatile {
                    let Some((name, _)) = space.ends.near(chance) else { break };
                    space.index.get(name).expect("what ends is there")
                } else {
                    let Some(entry) = space.index.near(chance) else { break };
                    entry
                };
                let name = entry.name();
                let rank = match policy {
                    Policy::VolatileTtl => space.ends.get(name).expect("volatile keys end"),
                    _ if policy.is_lfu() => i64::from(self.memory.lfu.frequency(entry.used(), self.now)),
                    _ => i64::from(entry.used()),
                };
                if best.is_none_or(|(least, ..)| rank < least) {
                    best = Some((rank, db, name));
                }
            }
        }
        best.map(|(_, db, name)| (db, name))
    }

    /// Compacts some chunks of the log, and some of those that are owed.
    pub(crate) fn tidy(&mut self) -> Result<(), Failure> {
        const TOGETHER: u64 = 4;
        self.compact_some(TOGETHER)
    }

    /// Returns whether a turn has work here without a client: tables to free, or chunks to compact.
    pub(crate) fn has_chores(&self) -> bool {
        self.is_reclaiming() || self.compactions_owed > 0 || self.log.far_ref().has_unwanted()
    }

    /// Compacts `more` chunks, and as many of those that are owed as one turn takes. Each WRITE of a chunk
    /// owes two, so a write pays for the records that it kills.
    fn compact_some(&mut self, more: u64) -> Result<(), Failure> {
        let written = self.log.far_ref().writes;
        self.compactions_owed += 2 * (written - self.tidied);
        let most = more + self.compactions_owed.min(TURN_COMPACTIONS + self.compactions_owed / 8);
        let mut done = Ok(true);
        for _ in 0..most {
            done = self.compact(self.wanted_eighths());
            if !matches!(done, Ok(true)) {
                self.compactions_owed = 0;
                break;
            }
            self.compactions_owed = self.compactions_owed.saturating_sub(1);
        }
        // The WRITEs of compaction itself owe nothing.
        self.tidied = self.log.far_ref().writes;
        done.map(drop)
    }
}

const _: () = assert!(LIVE_SHARES < SHARES, "the log has a share too");
