//! Several sets of keys, each for a core (PD3 5.2: "sharding the keys to scale to multiple DPU cores").

use super::hash::ShardHash;
use super::{HostKeys, KEYS_MAX, KeysConfig, Lookup};
use farmem_dpu::view::{HostView, KeyId};
use farmem_link::{OpenError, os_seed};
use farmem_machine::Rng;
use std::num::NonZeroUsize;

/// Maximum number of shards of a view.
pub const SHARDS_MAX: usize = 256;
/// Percentage of its share for which a shard has room, because shares are random; plus [`SHARE_MORE`] keys.
const SHARE_PERCENT: usize = 105;
/// As [`SHARE_PERCENT`], for small shares.
const SHARE_MORE: usize = 256;
/// Number of keys of a batch that are handled together.
const TOGETHER: usize = 128;

/// A set of keys in shards. Each shard has an owner of its own ([`KeyShards::shards_mut`]), and each key has a shard
/// ([`KeyShards::shard_of`]). As one [`HostView`], all shards are on one core.
#[derive(Debug)]
pub struct KeyShards {
    shards: Vec<HostKeys>,
    hash: ShardHash,
    keys_max: usize,
}

impl KeyShards {
    /// Creates empty shards; `config` is for all of them together.
    ///
    /// # Errors
    /// As [`HostKeys::new`].
    pub fn new(shards: NonZeroUsize, config: KeysConfig) -> Result<Self, OpenError> {
        let seed = os_seed().map_err(OpenError::system("get a seed for the host view"))?;
        Self::with(shards, config, &mut Rng::from_seed(seed))
    }

    /// Creates shards as [`KeyShards::new`] does, with hash functions from `rng`.
    ///
    /// # Errors
    /// As [`HostKeys::new`].
    pub fn with(shards: NonZeroUsize, config: KeysConfig, rng: &mut Rng) -> Result<Self, OpenError> {
        let count = shards.get();
        if count > SHARDS_MAX {
            return Err(OpenError::Setting {
                setting: "the shards of a host view",
                value: count.to_string(),
                remedy: format!("choose at most {SHARDS_MAX}"),
            });
        }
        let keys_max = if count == 1 || config.keys_max > KEYS_MAX {
            config.keys_max
        } else {
            config.keys_max.div_ceil(count) * SHARE_PERCENT / 100 + SHARE_MORE
        };
        let one = KeysConfig { keys_max, ..config };
        let hash = ShardHash::draw(rng);
        let shards = (0..count).map(|_| HostKeys::with(one, rng)).collect::<Result<_, _>>()?;
        Ok(Self { shards, hash, keys_max: config.keys_max })
    }

    /// Returns the shard of a key.
    #[must_use]
    #[inline]
    pub fn shard_of(&self, key: KeyId) -> usize {
        self.hash.shard(key.0, self.shards.len())
    }

    /// Returns the shards, one for each core. A shard accepts keys of other shards without a check.
    pub fn shards_mut(&mut self) -> &mut [HostKeys] {
        &mut self.shards
    }

    /// Sets the method of look-ups.
    ///
    /// # Errors
    /// As [`HostKeys::look_up_by`].
    pub fn look_up_by(&mut self, lookup: Lookup) -> Result<(), OpenError> {
        self.shards.iter_mut().try_for_each(|shard| shard.look_up_by(lookup))
    }
}

impl HostView for KeyShards {
    fn contains(&self, keys: &[KeyId], held: &mut [bool]) {
        assert_eq!(keys.len(), held.len(), "an answer for each key");
        for (keys, held) in keys.chunks(TOGETHER).zip(held.chunks_mut(TOGETHER)) {
            for (number, shard) in self.shards.iter().enumerate() {
                let (mut own, mut places, mut count) = ([KeyId(0); TOGETHER], [0; TOGETHER], 0);
                for (place, &key) in keys.iter().enumerate().filter(|(_, key)| self.shard_of(**key) == number)
                {
                    (own[count], places[count]) = (key, place);
                    count += 1;
                }
                let mut found = [false; TOGETHER];
                shard.contains(&own[..count], &mut found[..count]);
                for (&place, found) in places[..count].iter().zip(found) {
                    held[place] = found;
                }
            }
        }
    }

    fn insert(&mut self, key: KeyId) -> bool {
        let shard = self.shard_of(key);
        if self.len() < self.keys_max {
            return self.shards[shard].insert(key);
        }
        let mut held = [false];
        self.shards[shard].contains(&[key], &mut held);
        held[0]
    }

    fn remove(&mut self, key: KeyId) -> bool {
        let shard = self.shard_of(key);
        self.shards[shard].remove(key)
    }

    fn clear(&mut self) {
        self.shards.iter_mut().for_each(HostView::clear);
    }

    fn len(&self) -> usize {
        self.shards.iter().map(HostView::len).sum()
    }
}
