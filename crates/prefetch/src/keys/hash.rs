//! The two hash functions of a set of keys.
//!
//! Keys come from clients, which must not be able to choose many of one bucket: each function multiplies the key, hidden by a secret word, with another one and folds the
//! product. The hash must be cheap beside reading lines. It is a mixer and no cipher. Breaking it could make a set refuse keys, which costs prefetches that were not needed, and nothing else.

use crate::mix::fold;
use farmem_machine::Rng;

/// Two secret words make one function.
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

/// A hash as a number below `end`.
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

    /// The first bucket of a key.
    #[inline(always)]
    pub(super) const fn first(&self, key: u64, buckets: usize) -> usize {
        below(self.first.hash(key), buckets)
    }

    /// The second one, which may be the same.
    #[inline(always)]
    pub(super) const fn second(&self, key: u64, buckets: usize) -> usize {
        below(self.second.hash(key), buckets)
    }
}

/// Which shard has a key.
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
