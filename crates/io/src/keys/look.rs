//! Looking up many keys: in which order lines are asked for and read (PD3, figure 5), and with which instructions a line is compared.

use super::HostKeys;
use super::table::{Bucket, EMPTY};
use crate::OpenError;
use crate::huge::prefetch;
use farmem_dpu::view::KeyId;

/// Keys whose first bucket is asked for ahead of the one that is compared.
const AHEAD: usize = 64;
/// Keys that are compared before the second buckets of those that were not found are asked for.
const GROUP: usize = 16;
/// Keys whose second bucket is on its way, at most.
const MISSED: usize = 4 * GROUP + 1;
/// Keys of which both buckets are asked for together.
const TOGETHER: usize = 128;

/// How keys are looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// In which order.
    pub order: Order,
    /// With which instructions.
    pub compare: Compare,
}

/// In which order buckets are asked for and compared. The last is the best; the others are there to compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// A key at a time.
    OneByOne,
    /// The lines of both buckets of all keys of a batch, then the comparisons.
    Both,
    /// The first buckets of a batch, and the second ones only of keys that were not found.
    Delayed,
}

/// With which instructions the slots of a bucket are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compare {
    /// One after the other.
    Scalar,
    /// As the compiler compares eight words of an array at once: what there is on processors that are not x86.
    Array,
    /// Four at once.
    Avx2,
    /// All eight at once.
    Avx512,
}

impl Compare {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Array, Self::Avx2, Self::Avx512];

    /// The best that this CPU has.
    #[must_use]
    pub fn best() -> Self {
        [Self::Avx512, Self::Avx2].into_iter().find(|compare| compare.is_there()).unwrap_or(Self::Array)
    }

    /// Whether this CPU has it.
    #[must_use]
    pub fn is_there(self) -> bool {
        match self {
            Self::Scalar | Self::Array => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => std::arch::is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => std::arch::is_x86_feature_detected!("avx512f"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }
}

impl Lookup {
    /// The best that this CPU has.
    #[must_use]
    pub fn best() -> Self {
        Self { order: Order::Delayed, compare: Compare::best() }
    }

    pub(super) fn check(self) -> Result<(), OpenError> {
        if self.compare.is_there() {
            return Ok(());
        }
        Err(OpenError::Setting {
            setting: "the comparison of keys",
            value: format!("{:?}", self.compare),
            remedy: format!("this CPU has {:?}", Compare::best()),
        })
    }
}

/// Says of each key whether it is in the set.
pub(super) fn look(set: &HostKeys, keys: &[KeyId], held: &mut [bool]) {
    match set.lookup.compare {
        Compare::Scalar => ordered(set, keys, held, |bucket, key| bucket.0.contains(&key)),
        Compare::Array => ordered(set, keys, held, |bucket, key| {
            bucket.0.iter().fold(false, |found, &slot| found | (slot == key))
        }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `look_up_by` and `Compare::best` let it in only where the CPU has AVX2.
        Compare::Avx2 => unsafe { x86::look_avx2(set, keys, held) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `look_up_by` and `Compare::best` let it in only where the CPU has AVX-512F.
        Compare::Avx512 => unsafe { x86::look_avx512(set, keys, held) },
        #[cfg(not(target_arch = "x86_64"))]
        Compare::Avx2 | Compare::Avx512 => unreachable!("`look_up_by` refuses what the CPU does not have"),
    }
}

/// In the set's order; `has` says whether a bucket has a key that is not [`EMPTY`].
#[inline(always)]
fn ordered(set: &HostKeys, keys: &[KeyId], held: &mut [bool], has: impl Fn(&Bucket, u64) -> bool) {
    let has = |bucket: &Bucket, key: u64| if key == EMPTY { set.holds_zero } else { has(bucket, key) };
    match set.lookup.order {
        Order::OneByOne => one_by_one(set, keys, held, has),
        Order::Both => {
            for (keys, held) in keys.chunks(TOGETHER).zip(held.chunks_mut(TOGETHER)) {
                both(set, keys, held, has);
            }
        }
        Order::Delayed => delayed(set, keys, held, has),
    }
}

#[inline(always)]
fn one_by_one(set: &HostKeys, keys: &[KeyId], held: &mut [bool], has: impl Fn(&Bucket, u64) -> bool) {
    let buckets = set.table.buckets();
    for (&KeyId(key), held) in keys.iter().zip(held) {
        let [first, second] = set.homes(key);
        *held = has(&buckets[first], key) || has(&buckets[second], key);
    }
}

#[inline(always)]
fn both(set: &HostKeys, keys: &[KeyId], held: &mut [bool], has: impl Fn(&Bucket, u64) -> bool) {
    let buckets = set.table.buckets();
    let mut homes = [[0; 2]; TOGETHER];
    for (&KeyId(key), homes) in keys.iter().zip(&mut homes) {
        *homes = set.homes(key);
        homes.iter().for_each(|&home| prefetch(set.table.line(home)));
    }
    for ((&KeyId(key), held), [first, second]) in keys.iter().zip(held).zip(homes) {
        *held = has(&buckets[first], key) | has(&buckets[second], key);
    }
}

#[inline(always)]
fn delayed(set: &HostKeys, keys: &[KeyId], held: &mut [bool], has: impl Fn(&Bucket, u64) -> bool) {
    let buckets = set.table.buckets();
    let first = |key: u64| {
        let home = set.hashes.first(key, buckets.len());
        prefetch(set.table.line(home));
        home
    };
    let mut coming = [0; AHEAD];
    for (&KeyId(key), home) in keys.iter().zip(&mut coming) {
        *home = first(key);
    }
    // Keys that were not in their first bucket, by number and second bucket, whose line is on its way.
    let (mut missed, mut misses) = ([(0, 0); MISSED], 0);
    let second = |held: &mut [bool], missed: &[(usize, usize)]| {
        for &(n, home) in missed {
            held[n] = has(&buckets[home], keys[n].0);
        }
    };
    for start in (0..keys.len()).step_by(GROUP) {
        let known = misses;
        for (n, &KeyId(key)) in keys.iter().enumerate().skip(start).take(GROUP) {
            let place = &mut coming[n % AHEAD];
            let home = *place;
            if let Some(&KeyId(ahead)) = keys.get(n + AHEAD) {
                *place = first(ahead);
            }
            let found = has(&buckets[home], key);
            held[n] = found;
            // Each is noted, and the count goes on only past those that were not found: there is no branch to mispredict.
            missed[misses].0 = n;
            misses += usize::from(!found);
        }
        for (n, home) in &mut missed[known..misses] {
            *home = set.hashes.second(keys[*n].0, buckets.len());
            prefetch(set.table.line(*home));
        }
        if misses > MISSED - GROUP - 1 {
            // Those of this group have only just been asked for.
            second(held, &missed[..known]);
            missed.copy_within(known..misses, 0);
            misses -= known;
        }
    }
    second(held, &missed[..misses]);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Bucket, HostKeys, KeyId, ordered};
    use std::arch::x86_64::{
        _mm256_cmpeq_epi64, _mm256_load_si256, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi64x,
        _mm512_cmpeq_epi64_mask, _mm512_load_si512, _mm512_set1_epi64,
    };

    #[target_feature(enable = "avx2")]
    pub(super) fn look_avx2(set: &HostKeys, keys: &[KeyId], held: &mut [bool]) {
        ordered(set, keys, held, |bucket: &Bucket, key: u64| {
            let wanted = _mm256_set1_epi64x(key.cast_signed());
            let (low, high) = bucket.0.split_at(4);
            // SAFETY: four words of a bucket, which begins at a multiple of 64.
            let low = unsafe { _mm256_load_si256(low.as_ptr().cast()) };
            // SAFETY: the other four, 32 bytes on.
            let high = unsafe { _mm256_load_si256(high.as_ptr().cast()) };
            let found = _mm256_or_si256(_mm256_cmpeq_epi64(low, wanted), _mm256_cmpeq_epi64(high, wanted));
            _mm256_movemask_epi8(found) != 0
        });
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn look_avx512(set: &HostKeys, keys: &[KeyId], held: &mut [bool]) {
        ordered(set, keys, held, |bucket: &Bucket, key: u64| {
            // SAFETY: eight words of a bucket, which begins at a multiple of 64.
            let slots = unsafe { _mm512_load_si512(bucket.0.as_ptr().cast()) };
            _mm512_cmpeq_epi64_mask(slots, _mm512_set1_epi64(key.cast_signed())) != 0
        });
    }
}
