//! The two hash functions of a set of keys.
//!
//! Keys come from clients, which must not be able to choose colliding keys. So each function XORs the key with a
//! secret word, multiplies it with another one and folds the product. The hash must be cheap compared with reading
//! lines. The hash is a mixer, not a cipher. An attacker who breaks it can make a set refuse keys, which only costs
//! superfluous prefetches.

use crate::mix::fold;
use farmem_machine::Rng;

/// A hash function, made of two secret words.
#[derive(Clone, Copy, Debug)]
struct Function([u64; 2]);

impl Function {
    fn draw(rng: &mut Rng) -> Self {
        // Odd: a product with it loses no bit of the key.
        Self([rng.next_u64(), rng.next_u64() | 1])
    }

    #[inline(always)]
    const fn hash(self, key: u64) -> u64 {
        let Self([mask, factor]) = self;
        fold(key ^ mask, factor)
    }
}

/// Maps a hash to a number below `end`.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "below `end`, which is a usize")]
const fn below(hash: u64, end: usize) -> usize {
    ((hash as u128 * end as u128) >> 64) as usize
}

/// Both functions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hashes {
    first: Function,
    second: Function,
}

impl Hashes {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        Self { first: Function::draw(rng), second: Function::draw(rng) }
    }

    /// Returns the first bucket of a key.
    #[inline(always)]
    pub(super) const fn first(&self, key: u64, buckets: usize) -> usize {
        below(self.first.hash(key), buckets)
    }

    /// Returns the second bucket of a key, which may be the first one.
    #[inline(always)]
    pub(super) const fn second(&self, key: u64, buckets: usize) -> usize {
        below(self.second.hash(key), buckets)
    }
}

/// The hash function that selects the shard of a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardHash(Function);

impl ShardHash {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        Self(Function::draw(rng))
    }

    #[inline(always)]
    pub(super) const fn shard(&self, key: u64, shards: usize) -> usize {
        below(self.0.hash(key), shards)
    }
}
