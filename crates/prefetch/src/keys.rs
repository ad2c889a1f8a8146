//! The fast host view: a set of keys of eight bytes, with batched look-ups (PD3 5.2).
//!
//! Key types: [`HostKeys`], a bucketised cuckoo set with one owner; [`KeyShards`], several of them, one per core.
//! Both are a [`HostView`], and a test compares them with the pure one.
//!
//! A key has two buckets of eight slots, a cache line each. Look-ups read from memory, so the number of lines and of
//! concurrent reads decides the speed. A batch prefetches the first lines of its keys and compares all slots of a
//! line at once. The batch reads the second bucket only for keys that the first bucket lacks (PD3, figure 5). Keys
//! come from clients, so the two hash functions have a secret seed.
//!
//! There is one owner and no other reader: the thread of the DPU's prefetcher looks up and updates, and each core has
//! a shard of its own (docs/decisions/2026-11-24-host-view.md).
//!
//! The host view does not decide when a key is added or removed, and does not grow. Keys of other lengths are
//! represented by a keyed hash ([`KeyId`]).

mod hash;
mod look;
mod room;
mod shards;
mod table;
#[cfg(test)]
mod tests;

pub use look::{Compare, Lookup, Order};
pub use shards::{KeyShards, SHARDS_MAX};

use farmem_dpu::view::{HostView, KeyId};
use farmem_link::huge::{PageSize, prefetch};
use farmem_link::{OpenError, os_seed};
use farmem_machine::Rng;
use hash::Hashes;
use room::Search;
use table::{EMPTY, SLOTS, Table};

/// Maximum percentage of used slots, and the default: up to here a key finds room in a few moves.
pub const LOAD_PERCENT: u32 = 95;
/// Maximum number of keys of one set: their slots take 36 GiB.
pub const KEYS_MAX: usize = 1 << 32;
/// Number of keys whose buckets are prefetched during a bulk insert.
const INSERT_AHEAD: usize = 16;

/// The size and the memory of a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeysConfig {
    /// Maximum number of keys, up to [`KEYS_MAX`].
    pub keys_max: usize,
    /// Percentage of used slots with that number of keys, 1 to [`LOAD_PERCENT`].
    pub load_percent: u32,
    /// Size of the pages for the slots.
    pub pages: PageSize,
}

impl KeysConfig {
    /// Creates the configuration of a set for at most `keys_max` keys, as dense as possible, in huge pages.
    #[must_use]
    pub const fn new(keys_max: usize) -> Self {
        Self { keys_max, load_percent: LOAD_PERCENT, pages: PageSize::Huge }
    }
}

/// A set of keys of eight bytes, with one owner.
#[derive(Debug)]
pub struct HostKeys {
    table: Table,
    hashes: Hashes,
    keys: usize,
    keys_max: usize,
    /// True if the set has key 0, which has no slot, because 0 marks an empty one.
    holds_zero: bool,
    lookup: Lookup,
    search: Search,
}

impl HostKeys {
    /// Creates an empty set whose hash functions have a seed that only this process knows.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for an invalid size, [`OpenError::NoRoom`] if the system has no address space,
    /// [`OpenError::System`] if it has no seed.
    pub fn new(config: KeysConfig) -> Result<Self, OpenError> {
        let seed = os_seed().map_err(OpenError::system("get a seed for the host view"))?;
        Self::with(config, &mut Rng::from_seed(seed))
    }

    /// Creates a set as [`HostKeys::new`] does, with hash functions from `rng`.
    ///
    /// # Errors
    /// As [`HostKeys::new`].
    pub fn with(config: KeysConfig, rng: &mut Rng) -> Result<Self, OpenError> {
        let KeysConfig { keys_max, load_percent, pages } = config;
        if !(1..=LOAD_PERCENT).contains(&load_percent) {
            return Err(OpenError::Setting {
                setting: "the load of a host view",
                value: format!("{load_percent} %"),
                remedy: format!("choose 1 to {LOAD_PERCENT}"),
            });
        }
        if keys_max > KEYS_MAX {
            return Err(OpenError::Setting {
                setting: "the keys of a host view",
                value: keys_max.to_string(),
                remedy: format!("choose at most {KEYS_MAX}"),
            });
        }
        let slots = (keys_max as u64 * 100).div_ceil(load_percent.into());
        let buckets =
            usize::try_from(slots.div_ceil(SLOTS as u64)).expect("fewer than the bytes of the address space");
        // A few buckets fill unevenly; two more cost little.
        let buckets = buckets + 2;
        let table = Table::new(buckets, pages).map_err(|e| OpenError::NoRoom {
            doing: format!("hold {keys_max} keys of the host view: {e}"),
            remedy: "choose fewer keys".into(),
        })?;
        Ok(Self {
            table,
            hashes: Hashes::draw(rng),
            keys: 0,
            keys_max,
            holds_zero: false,
            lookup: Lookup::best(),
            search: Search::default(),
        })
    }

    /// Sets the method of look-ups. The results are the same.
    ///
    /// # Errors
    /// [`OpenError::Setting`] if this CPU lacks the instructions.
    pub fn look_up_by(&mut self, lookup: Lookup) -> Result<(), OpenError> {
        lookup.check()?;
        self.lookup = lookup;
        Ok(())
    }

    /// Returns the bytes of the slots.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Returns the bytes of the slots in huge pages, as the kernel reports them; `None` without a report.
    #[must_use]
    pub fn huge_len(&self) -> Option<u64> {
        self.table.huge_len()
    }

    /// Inserts many keys, and prefetches their buckets. Returns the number of keys without room.
    pub fn insert_all(&mut self, keys: &[KeyId]) -> usize {
        let mut refused = 0;
        for (n, key) in keys.iter().enumerate() {
            if let Some(ahead) = keys.get(n + INSERT_AHEAD) {
                for home in self.homes(ahead.0) {
                    prefetch(self.table.line(home));
                }
            }
            refused += usize::from(!self.insert(*key));
        }
        refused
    }

    /// Returns both buckets of a key.
    #[inline]
    fn homes(&self, key: u64) -> [usize; 2] {
        let buckets = self.table.buckets().len();
        [self.hashes.first(key, buckets), self.hashes.second(key, buckets)]
    }

    /// Returns bucket and slot of a key.
    fn find(&self, key: u64) -> Option<(usize, usize)> {
        self.homes(key).into_iter().find_map(|home| Some((home, self.table.slot_of(home, key)?)))
    }
}

impl HostView for HostKeys {
    fn contains(&self, keys: &[KeyId], held: &mut [bool]) {
        assert_eq!(keys.len(), held.len(), "an answer for each key");
        look::look(self, keys, held);
    }

    fn insert(&mut self, key: KeyId) -> bool {
        let key = key.0;
        let is_there = if key == EMPTY { self.holds_zero } else { self.find(key).is_some() };
        if is_there {
            return true;
        }
        if self.keys >= self.keys_max {
            return false;
        }
        if key == EMPTY {
            self.holds_zero = true;
        } else {
            let homes = self.homes(key);
            let Some((bucket, slot)) = self.search.make_room(&mut self.table, &self.hashes, homes) else {
                return false;
            };
            self.table.set(bucket, slot, key);
        }
        self.keys += 1;
        true
    }

    fn remove(&mut self, key: KeyId) -> bool {
        let was_there = if key.0 == EMPTY {
            std::mem::take(&mut self.holds_zero)
        } else if let Some((bucket, slot)) = self.find(key.0) {
            self.table.set(bucket, slot, EMPTY);
            true
        } else {
            false
        };
        self.keys -= usize::from(was_there);
        was_there
    }

    fn clear(&mut self) {
        self.table.clear();
        self.holds_zero = false;
        self.keys = 0;
    }

    fn len(&self) -> usize {
        self.keys
    }
}
