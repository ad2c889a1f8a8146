//! Several sets of keys, each for a core (PD3 5.2: "sharding the keys to scale to multiple DPU cores").

use super::hash::ShardHash;
use super::{HostKeys, KEYS_MAX, KeysConfig, Lookup};
use farmem_dpu::view::{HostView, KeyId};
use farmem_link::{OpenError, os_seed};
use farmem_machine::Rng;
use std::num::NonZeroUsize;

/// Most shards of a view.
pub const SHARDS_MAX: usize = 256;
/// A shard has room for so many percent of its share, since shares are drawn by chance; and for [`SHARE_MORE`] keys more.
const SHARE_PERCENT: usize = 105;
/// As [`SHARE_PERCENT`], of small shares.
const SHARE_MORE: usize = 256;
/// Keys of a batch that are looked at together.
const TOGETHER: usize = 128;

/// A set of keys in shards. Each has an owner of its own ([`KeyShards::shards_mut`]), and each key its shard ([`KeyShards::shard_of`]); as one
/// [`HostView`] it is all of them on one core.
#[derive(Debug)]
pub struct KeyShards {
    shards: Vec<HostKeys>,
    hash: ShardHash,
    keys_max: usize,
}

impl KeyShards {
    /// So many empty shards; `config` is of all of them together.
    ///
    /// # Errors
    /// As [`HostKeys::new`].
    pub fn new(shards: NonZeroUsize, config: KeysConfig) -> Result<Self, OpenError> {
        let seed = os_seed().map_err(OpenError::system("get a seed for the host view"))?;
        Self::with(shards, config, &mut Rng::from_seed(seed))
    }

    /// As [`KeyShards::new`], with hash functions that `rng` draws.
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

    /// The shard that a key belongs to.
    #[must_use]
    #[inline]
    pub fn shard_of(&self, key: KeyId) -> usize {
        self.hash.shard(key.0, self.shards.len())
    }

    /// The shards, to give each to a core. A shard takes keys of its own only; it does not check that.
    pub fn shards_mut(&mut self) -> &mut [HostKeys] {
        &mut self.shards
    }

    /// How keys are looked up from now on.
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
