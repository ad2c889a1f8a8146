//! What the store may have: local memory, which is a hard limit, and all data, which Redis calls `maxmemory`.

use super::index::{Entry, Name};
use super::log::{Full, HERE_MIN};
use super::{CHUNK, Store};
use crate::failure::Failure;

/// Which keys go when there are too many (`maxmemory-policy`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Policy {
    NoEviction,
    AllLru,
    AllRandom,
    AllLfu,
    VolatileLru,
    VolatileRandom,
    VolatileLfu,
    VolatileTtl,
}

impl Policy {
    pub(crate) const ALL: [(&str, Self); 8] = [
        ("noeviction", Self::NoEviction),
        ("allkeys-lru", Self::AllLru),
        ("allkeys-random", Self::AllRandom),
        ("allkeys-lfu", Self::AllLfu),
        ("volatile-lru", Self::VolatileLru),
        ("volatile-random", Self::VolatileRandom),
        ("volatile-lfu", Self::VolatileLfu),
        ("volatile-ttl", Self::VolatileTtl),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, policy)| *policy == self).expect("all have names").0
    }

    /// Whether entries count how often their keys are used, not when they were used last.
    pub(crate) const fn is_lfu(self) -> bool {
        matches!(self, Self::AllLfu | Self::VolatileLfu)
    }
}

/// Is told of a key that goes: its database and its name.
type Goes<'a> = dyn FnMut(u8, &[u8]) -> Result<(), Failure> + 'a;

/// Bounds, and what is known of what is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Bytes of local memory.
    pub(crate) local: usize,
    /// Bytes of all data, here and far; 0 for as much as there is room.
    pub(crate) data_max: usize,
    pub(crate) policy: Policy,
    /// Keys that are looked at for one that goes (`maxmemory-samples`).
    pub(crate) samples: usize,
    pub(crate) lfu: super::frequency::Settings,
    /// Bytes that this process takes beside what the store counts.
    pub(crate) overhead: usize,
    /// Local memory has no room for the index and a tail.
    pub(crate) is_full: bool,
}

impl Memory {
    pub(crate) const fn new(local: usize) -> Self {
        Self {
            local,
            data_max: 0,
            policy: Policy::NoEviction,
            samples: 5,
            lfu: super::frequency::Settings::DEFAULT,
            overhead: 0,
            is_full: false,
        }
    }
}

/// Bytes of an entry of a key's end.
const END_BYTES: usize = 48;
/// Parts of what is left of local memory that collections in use may have: this many of `SHARES`.
const LIVE_SHARES: usize = 1;
const SHARES: usize = 2;
/// The part of local memory that is left free between turns.
const RESERVE_SHARE: usize = 64;
/// Keys that one call of [`Store::evict`] takes out at most: a command does not wait for more, some ten milliseconds.
const EVICT_MAX: usize = 16_384;

impl Store {
    /// Bytes of what finds keys: entries, and when keys end.
    pub(crate) fn index_bytes(&self) -> usize {
        self.spaces.iter().map(|space| space.index.bytes() + space.ends.capacity() * END_BYTES).sum()
    }

    /// Bytes of local memory that the store knows of.
    pub(crate) fn here_bytes(&self) -> usize {
        self.index_bytes()
            + self.live_bytes
            + self.log.here_bytes()
            + self.scratch.capacity()
            + self.joined.capacity()
            + self.picture_bytes()
    }

    /// Bytes of all data: `used_memory`. The index counts by its entries, not by its tables: what a key takes is free when it is
    /// evicted, though its table stays.
    pub(crate) fn data_bytes(&self) -> usize {
        let entries = |space: &super::Space| (space.index.len() + space.ends.len()) * size_of::<Entry>();
        self.spaces.iter().map(entries).sum::<usize>() + self.live_bytes + self.log.live()
    }

    /// Keeps what is here within the limit; to be called between commands. What cannot be moved away closes the store for new data, and only that.
    pub(crate) fn settle(&mut self) {
        let left = self.left();
        let live_max = self.live_max();
        let mut is_full = left < (HERE_MIN + 1) * CHUNK;
        if self.live_bytes > live_max {
            is_full |= self.shrink_live(live_max - live_max / 8).is_err() || self.live_bytes > left;
        }
        let chunks = left.saturating_sub(self.live_bytes + self.scratch.capacity()) / CHUNK;
        if chunks != self.log.here_max() {
            is_full |= self.bound_here(chunks).is_err();
        }
        if self.scratch.capacity() > left / 16 {
            self.scratch = Vec::new();
        }
        self.memory.is_full = is_full;
        // A chunk that cannot be compacted is told of by `tidy`.
        let _told_of_there = self.compact_some(0);
    }

    /// What is left of local memory for collections in use and the log. What grows within a turn, and what is read ahead in one, is not here yet.
    pub(super) fn left(&self) -> usize {
        let fixed = self.memory.overhead + self.index_bytes() + self.memory.local / RESERVE_SHARE;
        self.memory.local.saturating_sub(fixed)
    }

    /// Bytes that collections in use may take.
    pub(super) fn live_max(&self) -> usize {
        self.left() * LIVE_SHARES / SHARES
    }

    fn bound_here(&mut self, chunks: usize) -> Result<(), Full> {
        while self.log.here_len().1 * 2 > chunks.max(HERE_MIN) {
            self.shrink_cache();
        }
        self.log.set_here_max(chunks)
    }

    /// Makes room for bytes that are here within one command, as those of a long value: chunks go to far memory before they are here, and not behind the turn. At its end there is as much
    /// room as before.
    pub(crate) fn give_way(&mut self, bytes: usize) {
        if bytes < self.memory.local / RESERVE_SHARE {
            return;
        }
        let chunks = self.left().saturating_sub(self.live_bytes + bytes) / CHUNK;
        if chunks < self.log.here_max() {
            // A chunk that cannot go stays, and is told of at the end of the turn.
            let _told_of_there = self.bound_here(chunks);
        }
    }

    /// Refuses what needs room in local memory when there is none.
    pub(crate) fn check_room(&self) -> Result<(), Failure> {
        if self.memory.is_full && !self.loading { Err(self.local_is_full()) } else { Ok(()) }
    }

    fn local_is_full(&self) -> Failure {
        Failure::said(format!(
            "OOM local memory is full: the index of {} keys, collections in use and this process take {} of {} bytes; start with a larger --local",
            self.spaces.iter().map(|space| space.index.len()).sum::<usize>(),
            self.index_bytes() + self.live_bytes + self.memory.overhead,
            self.memory.local
        ))
    }

    /// Takes keys out as the policy says while there is more data than may be; `goes` is told of each before it goes, for the append log.
    ///
    /// # Errors
    /// When there is too much and nothing may go, and what `goes` says.
    pub(crate) fn evict(&mut self, goes: &mut Goes<'_>) -> Result<(), Failure> {
        if self.memory.data_max == 0 {
            return Ok(());
        }
        for _ in 0..EVICT_MAX {
            if self.data_bytes() <= self.memory.data_max {
                return Ok(());
            }
            let Some((db, name)) = self.choose() else { return Err(Failure::OUT_OF_MEMORY) };
            // A key that cannot be read is lost with its memory node: another one goes.
            let Ok(key) = self.key_of(db, name) else { continue };
            goes(db, &key)?;
            self.before_change(db, name, Some(&key));
            self.take_out(db, name);
            self.touch(db, name);
            self.stats.evicted += 1;
        }
        if self.data_bytes() <= self.memory.data_max { Ok(()) } else { Err(Failure::OUT_OF_MEMORY) }
    }

    /// The key that goes next, among some that chance names.
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
                    if space.ends.is_empty() {
                        break;
                    }
                    let at = usize::try_from(chance % space.ends.len() as u64).expect("an index");
                    let (name, _) = space.ends.get_index(at).expect("it is below the length");
                    space.index.get(*name).expect("what ends is there")
                } else {
                    let Some(entry) = space.index.near(chance) else { break };
                    entry
                };
                let name = entry.name();
                let rank = match policy {
                    Policy::VolatileTtl => *space.ends.get(&name).expect("volatile keys end"),
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

    /// Takes out keys that have ended, of some that chance names; the part of those that had, in hundredths.
    pub(crate) fn expire_some(&mut self, db: u8, samples: usize) -> usize {
        let mut ended = 0;
        for _ in 0..samples {
            let chance = self.rng.next_u64();
            let now = self.now;
            let ends = &self.space(db).ends;
            if ends.is_empty() {
                break;
            }
            let at = usize::try_from(chance % ends.len() as u64).expect("an index");
            let (&name, &end) = ends.get_index(at).expect("it is below the length");
            if end <= now {
                self.before_change(db, name, None);
                self.take_out(db, name);
                self.touch(db, name);
                self.stats.expired += 1;
                ended += 1;
            }
        }
        ended * 100 / samples.max(1)
    }

    /// The log's compaction, as far as it is worth it now: some chunks, and two for each that went to far memory since. Who writes pays for what that leaves dead.
    pub(crate) fn tidy(&mut self) -> Result<(), Failure> {
        const TOGETHER: u64 = 4;
        self.compact_some(TOGETHER)
    }

    fn compact_some(&mut self, more: u64) -> Result<(), Failure> {
        let written = self.log.far_ref().writes;
        let most = more + 2 * (written - std::mem::replace(&mut self.tidied, written));
        for _ in 0..most {
            if !self.compact(self.wanted_eighths())? {
                break;
            }
        }
        // What compaction itself wrote is no new debt.
        self.tidied = self.log.far_ref().writes;
        Ok(())
    }
}

const _: () = assert!(LIVE_SHARES < SHARES, "the log has a share too");
