//! A cache of address translations for windows: the checked span around each window, kept until the tables
//! change.
//!
//! A hop looks up its window here first. A hit takes a few instructions without an unpredictable branch,
//! because a pointer may lead into any of the spans. After a miss the caller uses the tables.

use crate::regions::Regions;
use alloc::vec::Vec;
use core::hint::select_unpredictable;
use farmem_wire::{Domain, Perm, VirtAddr};

/// Most spans of one domain; one more drops all of them. A power of two.
const SPANS_MAX: usize = 64;
/// Domains whose spans are kept from one turn to the next.
const SETS_KEPT: usize = 16;

/// The spans of all domains with traversals in progress.
#[derive(Debug, Default)]
pub(crate) struct Spans {
    /// Version of the tables that all spans come from.
    version: u64,
    sets: Vec<Set>,
}

/// The set of spans of one domain. Valid until the next [`Spans::renew`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SetId(usize);

#[derive(Debug)]
struct Set {
    domain: Domain,
    perm: Perm,
    count: usize,
    /// Half of the first power of two that is not less than the count: the first step of a search.
    half: usize,
    /// Bases in order, followed by an address at which no span begins.
    bases: [u64; SPANS_MAX],
    /// Length and offset of each span.
    rows: [(u64, u64); SPANS_MAX],
}

impl Spans {
    /// Drops all spans if the tables have changed (PROTOCOL 7.15).
    pub(crate) fn renew(&mut self, regions: &Regions) {
        if self.version != regions.version() || self.sets.len() > SETS_KEPT {
            self.version = regions.version();
            self.sets.clear();
        }
    }

    /// Returns the set of spans in which `domain` has this access.
    pub(crate) fn set(&mut self, domain: Domain, perm: Perm) -> SetId {
        let of = |set: &Set| set.domain == domain && set.perm == perm;
        SetId(self.sets.iter().position(of).unwrap_or_else(|| {
            self.sets.push(Set {
                domain,
                perm,
                count: 0,
                half: 0,
                bases: [u64::MAX; SPANS_MAX],
                rows: [(0, 0); SPANS_MAX],
            });
            self.sets.len() - 1
        }))
    }

    /// Returns the offset in the store of `len` bytes at `addr`, if one cached span holds all of them.
    #[inline]
    pub(crate) fn place(&self, SetId(set): SetId, addr: VirtAddr, len: u32) -> Option<u64> {
        let set = &self.sets[set];
        let (mut at, mut half) = (0, set.half);
        while half > 0 {
            // Finds the last span that begins at or below the address. The mask removes the bounds check.
            let probe = (at + half) % SPANS_MAX;
            at = select_unpredictable(set.bases[probe] <= addr.0, probe, at);
            half /= 2;
        }
        let (span, offset) = set.rows[at];
        // Below the base this wraps to more than any length.
        let skip = addr.0.wrapping_sub(set.bases[at]);
        let inside = (skip < span) & (span.wrapping_sub(skip) >= u64::from(len));
        inside.then(|| offset + skip)
    }

    /// Caches the span around `addr`, at which a window was allowed.
    pub(crate) fn learn(&mut self, SetId(set): SetId, addr: VirtAddr, regions: &Regions) {
        assert_eq!(self.version, regions.version(), "all spans are from the same tables");
        let set = &mut self.sets[set];
        let span = regions.span(set.domain, addr, set.perm);
        let mut at = set.bases[..set.count].partition_point(|base| *base < span.base);
        if set.bases[..set.count].get(at) != Some(&span.base) {
            if set.count == SPANS_MAX {
                set.bases = [u64::MAX; SPANS_MAX];
                (set.count, at) = (0, 0);
            }
            set.bases.copy_within(at..SPANS_MAX - 1, at + 1);
            set.rows.copy_within(at..SPANS_MAX - 1, at + 1);
            set.count += 1;
            set.half = set.count.next_power_of_two() / 2;
        }
        set.bases[at] = span.base;
        set.rows[at] = (span.len, span.offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const ALICE: Domain = Domain(7);
    const BOB: Domain = Domain(8);
    const LEN: u64 = 0x1000;

    /// Grants that overflow the cache twice: every second page, in reverse order in the store.
    fn tables(grants: u64) -> Regions {
        let budget = usize::try_from(grants).unwrap();
        let mut regions = Regions::new(grants * LEN, budget, budget, 0);
        for n in 0..grants {
            regions.add_range(base(n), LEN, (grants - 1 - n) * LEN).unwrap();
            regions.protect(ALICE, base(n), LEN, Perm::Read, 64).unwrap();
        }
        regions
    }

    fn base(n: u64) -> VirtAddr {
        VirtAddr((n + 1) * 2 * LEN)
    }

    /// Every cached span is found for its whole length and no byte beyond. Misses: addresses outside, another
    /// domain, another access.
    #[test]
    fn what_was_learned_is_answered_to_the_byte() {
        for count in [1, 2, 3, 5, 8, 31, SPANS_MAX as u64] {
            let regions = tables(count);
            let mut spans = Spans::default();
            spans.renew(&regions);
            let (set, other) = (spans.set(ALICE, Perm::Read), spans.set(BOB, Perm::Read));
            assert_ne!(set, spans.set(ALICE, Perm::ReadWrite));
            for n in (0..count).rev() {
                assert_eq!(spans.place(set, base(n), 8), None, "not yet");
                spans.learn(set, VirtAddr(base(n).0 + 8), &regions);
                spans.learn(set, base(n), &regions);
                assert_eq!(spans.sets[0].count as u64, count - n, "once");
            }
            for n in 0..count {
                let (first, offset) = (base(n).0, (count - 1 - n) * LEN);
                let at = |addr, len| spans.place(set, VirtAddr(addr), len);
                assert_eq!(at(first, 64), Some(offset), "{n} of {count}");
                assert_eq!(at(first + LEN - 64, 64), Some(offset + LEN - 64));
                assert_eq!(at(first + LEN - 64, 65), None, "its last byte is in the gap");
                assert_eq!((at(first - 1, 1), at(first + LEN, 1)), (None, None));
                assert_eq!(spans.place(other, VirtAddr(first), 64), None);
            }
            assert_eq!(spans.place(set, VirtAddr(0), 1), None);
            assert_eq!(spans.place(set, VirtAddr(u64::MAX), 1), None);
        }
    }

    /// One span more than the bound: the others are dropped, and no lookup is wrong.
    #[test]
    fn there_is_a_bound() {
        let regions = tables(2 * SPANS_MAX as u64);
        let mut spans = Spans::default();
        spans.renew(&regions);
        let set = spans.set(ALICE, Perm::Read);
        (0..=SPANS_MAX as u64).for_each(|n| spans.learn(set, base(n), &regions));
        let known = |n| spans.place(set, base(n), 64).is_some();
        let known: Vec<_> = (0..2 * SPANS_MAX as u64).filter(|&n| known(n)).collect();
        assert_eq!(known, vec![SPANS_MAX as u64]);
    }

    /// Every change of the tables changes their version, and the cached spans are dropped.
    #[test]
    fn what_changed_is_asked_for_again() {
        let mut regions = tables(1);
        let mut spans = Spans::default();
        spans.renew(&regions);
        let set = spans.set(ALICE, Perm::Read);
        spans.learn(set, base(0), &regions);
        spans.renew(&regions);
        assert_eq!(spans.set(ALICE, Perm::Read), set);
        assert_eq!(spans.place(set, base(0), 64), Some(0), "nothing changed");
        regions.protect(ALICE, base(0), LEN, Perm::None, 64).unwrap();
        spans.renew(&regions);
        let set = spans.set(ALICE, Perm::Read);
        assert_eq!(spans.place(set, base(0), 64), None);
    }
}
