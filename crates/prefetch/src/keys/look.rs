//! Look-ups of many keys: the order in which lines are prefetched and read (PD3, figure 5), and the instructions that
//! compare a line.

use super::HostKeys;
use super::table::{Bucket, EMPTY};
use farmem_dpu::view::KeyId;
use farmem_link::OpenError;
use farmem_link::huge::prefetch;

/// Number of keys whose first buckets are prefetched while as many others are compared.
const BLOCK: usize = 64;
/// Number of first buckets prefetched at a time in [`Order::InBetween`].
const BURST: usize = 4;
/// Fewer keys are looked up one by one, because there is nothing to overlap.
const FEW: usize = 4;
/// Number of keys of which both buckets are prefetched together.
const TOGETHER: usize = 128;

/// The method of look-ups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// The order of prefetches and comparisons.
    pub order: Order,
    /// The instructions that compare.
    pub compare: Compare,
}

/// The order in which buckets are prefetched and compared. One of the last two is the best, depending on the
/// processor; the others are for comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// A key at a time.
    OneByOne,
    /// The lines of both buckets of all keys of a batch, then the comparisons.
    Both,
    /// The first buckets of a batch, in bursts of a block, and the second ones only of keys that were not found.
    Delayed,
    /// As [`Order::Delayed`], but four first buckets are prefetched after each four comparisons.
    InBetween,
}

impl Order {
    /// Returns the best order on this processor: Intel's read a tenth more lines with few prefetches at a time; on
    /// AMD's a burst is faster.
    #[must_use]
    pub fn best() -> Self {
        if is_intel() { Self::InBetween } else { Self::Delayed }
    }
}

/// Returns true on a processor by Intel.
fn is_intel() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let said = std::arch::x86_64::__cpuid(0);
        [said.ebx, said.edx, said.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The instructions that compare the slots of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compare {
    /// One after the other.
    Scalar,
    /// The compiler's code for eight words of an array, for processors other than x86.
    Array,
    /// Four at once.
    Avx2,
    /// All eight at once.
    Avx512,
}

impl Compare {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Array, Self::Avx2, Self::Avx512];

    /// Returns the best that this CPU has.
    #[must_use]
    pub fn best() -> Self {
        [Self::Avx512, Self::Avx2].into_iter().find(|compare| compare.is_there()).unwrap_or(Self::Array)
    }

    /// Returns true if this CPU has the instructions.
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
    /// Returns the best method on this CPU.
    #[must_use]
    pub fn best() -> Self {
        Self { order: Order::best(), compare: Compare::best() }
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

/// Sets `held` for each key that is in the set.
pub(super) fn look(set: &HostKeys, keys: &[KeyId], held: &mut [bool]) {
    match set.lookup.compare {
        Compare::Scalar => ordered(set, keys, held, |bucket, key| bucket.0.contains(&key)),
        Compare::Array => ordered(set, keys, held, |bucket, key| {
            bucket.0.iter().fold(false, |found, &slot| found | (slot == key))
        }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `look_up_by` and `Compare::best` allow this only if the CPU has AVX2.
        Compare::Avx2 => unsafe { x86::look_avx2(set, keys, held) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `look_up_by` and `Compare::best` allow this only if the CPU has AVX-512F.
        Compare::Avx512 => unsafe { x86::look_avx512(set, keys, held) },
        #[cfg(not(target_arch = "x86_64"))]
        Compare::Avx2 | Compare::Avx512 => unreachable!("`look_up_by` refuses what the CPU does not have"),
    }
}

/// Looks keys up in the set's order; `has` returns true if a bucket has a key other than [`EMPTY`].
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
        Order::Delayed => delayed(set, keys, held, has, BLOCK),
        Order::InBetween => delayed(set, keys, held, has, BURST),
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

/// Prefetches a block's first lines while the block before is compared, a burst at a time. The second lines of keys
/// that were not found are read a block later.
#[inline(always)]
fn delayed(
    set: &HostKeys,
    keys: &[KeyId],
    held: &mut [bool],
    has: impl Fn(&Bucket, u64) -> bool,
    burst: usize,
) {
    if keys.len() < FEW {
        return one_by_one(set, keys, held, has);
    }
    let buckets = set.table.buckets();
    let ask = |keys: &[KeyId], homes: &mut [usize]| {
        for (&KeyId(key), home) in keys.iter().zip(homes) {
            *home = set.hashes.first(key, buckets.len());
            prefetch(set.table.line(*home));
        }
    };
    let second = |held: &mut [bool], missed: &[(usize, usize)]| {
        for &(n, home) in missed {
            held[n] = has(&buckets[home], keys[n].0);
        }
    };
    // For two blocks each: the first buckets, and index and second bucket of the keys that were not found.
    let (mut homes, mut missed) = ([[0; BLOCK]; 2], [[(0, 0); BLOCK]; 2]);
    let mut before = 0;
    ask(&keys[..keys.len().min(BLOCK)], &mut homes[0]);
    for (number, start) in (0..keys.len()).step_by(BLOCK).enumerate() {
        let turned = !number.is_multiple_of(2);
        let ([now, next], [misses, older]) = (&mut homes, &mut missed);
        let (now, next) = if turned { (next, now) } else { (now, next) };
        let (misses, older) = if turned { (older, misses) } else { (misses, older) };
        let block = start..keys.len().min(start + BLOCK);
        let mut count = 0;
        for from in block.clone().step_by(burst) {
            let part = from..block.end.min(from + burst);
            let [ahead, end] = [part.start, part.end].map(|at| keys.len().min(at + BLOCK));
            ask(&keys[ahead..end], &mut next[from - start..]);
            let its = keys[part.clone()].iter().zip(&now[from - start..]).zip(&mut held[part.clone()]);
            for (n, ((&KeyId(key), &home), held)) in part.zip(its) {
                *held = has(&buckets[home], key);
                // Each key is noted, and the count grows only for those that were not found: there is no branch to
                // mispredict.
                misses[count].0 = n;
                count += usize::from(!*held);
            }
        }
        for (n, home) in &mut misses[..count] {
            *home = set.hashes.second(keys[*n].0, buckets.len());
            prefetch(set.table.line(*home));
        }
        second(held, &older[..before]);
        before = count;
    }
    let blocks = keys.len().div_ceil(BLOCK);
    second(held, &missed[(blocks - 1) % 2][..before]);
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
