//! Range tables against the paper's figure, a plain comparison, and algorithm 1 as printed; and their sizes.

use super::*;
use alloc::vec;
use farmem_wire::VirtAddr;
use proptest::collection::{btree_set, vec as vec_of};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Returns ranges that begin at 0 and at `firsts`; range n leads to address n.
fn ranges(firsts: &BTreeSet<u64>) -> Vec<Range> {
    let mut firsts: Vec<u64> = firsts.iter().copied().filter(|&first| first > 0).collect();
    firsts.insert(0, 0);
    let lasts = firsts.iter().skip(1).map(|first| first - 1).chain([u64::MAX]);
    let child = |n: usize| Child { addr: VirtAddr(n as u64), level: 1 };
    firsts
        .iter()
        .zip(lasts)
        .enumerate()
        .map(|(n, (&first, last))| Range { first, last, child: child(n) })
        .collect()
}

fn plain(ranges: &[Range], key: u64) -> Child {
    ranges
        .iter()
        .find(|range| (range.first..=range.last).contains(&key))
        .expect("every key is in a range")
        .child
}

/// Figure 4 (ii): five ranges of 6-bit keys by tables of 2 bits.
const FIGURE: ([u64; 5], Shape) = ([10, 14, 37, 56, 63], Shape { stages: 3, bits: 2 });

#[test]
fn figure_4_ii() {
    let (lasts, shape) = FIGURE;
    for encode in [encode::encode, printed::encode] {
        let stages = encode(&lasts, shape);
        let counts: Vec<(usize, usize)> =
            stages.iter().map(Stage::count).map(|count| (count.tables, count.entries)).collect();
        assert_eq!(counts, [(1, 4), (3, 9), (4, 8)]);
        for key in 0..64 {
            let range = lasts.iter().position(|&last| key <= last).unwrap();
            assert_eq!(usize::from(encode::find(&stages, shape, key)), range, "{key}");
        }
        // The first stage: 0..=15 holds R1, R2, R3; 16..=31 is R3; 32..=47 R3 and R4; 48..=63 R4 and R5.
        let next: Vec<Next> = stages[0].entries().iter().map(|entry| entry.next).collect();
        assert_eq!(next, [Next::Table(0), Next::Range(2), Next::Table(1), Next::Table(2)]);
    }
}

/// The figure's tables with default results: one entry less per table, the same lookups.
#[test]
fn figure_4_ii_with_default_results() {
    let (lasts, shape) = FIGURE;
    let mut stages = encode::encode(&lasts, shape);
    stages.iter_mut().for_each(Stage::take_defaults);
    let counts: Vec<(usize, usize)> =
        stages.iter().map(Stage::count).map(|count| (count.tables, count.entries)).collect();
    assert_eq!(counts, [(1, 3), (3, 6), (4, 4)]);
    for key in 0..64 {
        let range = lasts.iter().position(|&last| key <= last).unwrap();
        assert_eq!(usize::from(encode::find(&stages, shape, key)), range, "{key}");
    }
}

/// One range: one entry for all keys.
#[test]
fn one_range() {
    let tables = RangeTables::new(&ranges(&BTreeSet::new())).unwrap();
    let counts = |entries| {
        [
            StageCount { tables: 1, entries },
            StageCount::default(),
            StageCount::default(),
            StageCount::default(),
        ]
    };
    assert_eq!(tables.stages(), counts(1));
    assert_eq!(tables.entries(0), [Entry { table: 0, first: 0, last: 0xffff, next: Next::Range(0) }]);
    assert!(tables.entries(4).is_empty());
    let defaults = tables.clone().with_default_results();
    assert_eq!(defaults.stages(), counts(0));
    assert_eq!(defaults.default_result(0, 0), Some(Next::Range(0)));
    assert_eq!((defaults.default_result(0, 1), defaults.default_result(4, 0)), (None, None));
    for tables in [tables, defaults] {
        assert_eq!([0, 1 << 63, u64::MAX].map(|key| tables.find(key).addr.0), [0; 3]);
    }
}

#[test]
fn what_is_no_fat_root_is_refused() {
    let new = |spans: &[(u64, u64)]| {
        let child = Child { addr: VirtAddr(1), level: 0 };
        let ranges: Vec<Range> = spans.iter().map(|&(first, last)| Range { first, last, child }).collect();
        let (new, printed) = (RangeTables::new(&ranges), RangeTables::as_printed(&ranges));
        assert_eq!(new, printed);
        new.map(|tables| tables.stages()[0].entries)
    };
    assert_eq!(new(&[]), Err(RangeError::Empty));
    assert_eq!(new(&[(1, u64::MAX)]), Err(RangeError::Gap { at: 0 }));
    assert_eq!(new(&[(0, 5)]), Err(RangeError::Gap { at: 1 }));
    assert_eq!(new(&[(0, 5), (7, u64::MAX)]), Err(RangeError::Gap { at: 1 }));
    assert_eq!(new(&[(0, 5), (5, u64::MAX)]), Err(RangeError::Overlap { at: 1 }));
    assert_eq!(new(&[(0, u64::MAX), (0, u64::MAX)]), Err(RangeError::Overlap { at: 1 }));
    assert_eq!(new(&[(6, u64::MAX), (0, 5)]), Err(RangeError::Gap { at: 0 }));
    assert_eq!(new(&[(0, 5), (9, 6), (10, u64::MAX)]), Err(RangeError::Inverted { at: 1 }));
    assert_eq!(new(&vec![(0, 0); 1025]), Err(RangeError::TooMany { have: 1025 }));
    assert_eq!(new(&[(0, u64::MAX - 1), (u64::MAX, u64::MAX)]), Ok(2));
}

/// Returns ranges with a boundary in the middle of every table's slot: the most entries that algorithm 1 can
/// make.
fn worst(count: u64) -> Vec<Range> {
    let piece = |n: u64, shift: u32| n << shift;
    // Slots of their own in the first stage, and boundaries inside a slot in every further one.
    let middle = piece(0x8000, 32) | piece(0x8000, 16) | 0x8000;
    ranges(&(1..count).map(|n| piece(2 * n, 48) | middle).collect())
}

/// 1,024 ranges: without default results stages 2 and 3 have 3 (n - 1) entries, which is more than the 2n of the paper; with them 2 (n - 1).
#[test]
fn the_paper_s_bound_needs_default_results() {
    let ranges = worst(1024);
    let tables = RangeTables::new(&ranges).unwrap();
    let counts = tables.stages().map(|count| (count.tables, count.entries));
    assert_eq!(counts, [(1, 2047), (1023, 3069), (1023, 3069), (1023, 2046)]);
    assert!(counts[1].1 > 2 * ranges.len());
    let counts = tables.with_default_results().stages().map(|count| (count.tables, count.entries));
    assert_eq!(counts, [(1, 2046), (1023, 2046), (1023, 2046), (1023, 1023)]);
}

/// The largest fat root, by both algorithms.
#[test]
fn as_many_ranges_as_there_can_be() {
    let ranges = worst(1024);
    let tables = RangeTables::new(&ranges).unwrap();
    assert_eq!(tables, RangeTables::as_printed(&ranges).unwrap());
    for range in &ranges {
        assert_eq!([range.first, range.last].map(|key| tables.find(key)), [range.child; 2]);
    }
}

/// Every range of two nibbles, against a plain count, and the worst case of four.
#[test]
fn words_of_a_range() {
    for first in 0..=255_u16 {
        for last in first..=255 {
            let words = range_words(first, last, 2);
            let (low, high) = (first >> 4, last >> 4);
            let left = first & 15 != 0;
            let right = last & 15 != 15;
            let plain = if low == high {
                1
            } else {
                let inner = high + 1 - low - u16::from(left) - u16::from(right);
                usize::from(left) + usize::from(right) + usize::from(inner > 0)
            };
            assert_eq!(words, plain, "{first:#x} to {last:#x}");
        }
    }
    let words =
        [(0, 0xffff), (5, 5), (0x8000, 0xffff), (1, 0xfffe), (0x1234, 0x1fff), (0x10, 0x1f), (0xf, 0x10)];
    assert_eq!(words.map(|(first, last)| range_words(first, last, 4)), [1, 1, 1, 7, 3, 1, 2]);
}

/// Generates keys whose pieces are often 0, the largest, or those of another key.
fn key() -> impl Strategy<Value = u64> {
    let piece = || prop_oneof![3 => Just(0_u64), 2 => Just(0xffff), 3 => 0..4_u64, 1 => 0..0x1_0000_u64];
    (piece(), piece(), piece(), piece()).prop_map(|(a, b, c, d)| a << 48 | b << 32 | c << 16 | d)
}

/// Checks the most entries of a stage for n ranges, with and without default results.
fn check_bounds(tables: &RangeTables, n: usize) {
    let defaults = tables.clone().with_default_results();
    for (stage, (count, less)) in tables.stages().into_iter().zip(defaults.stages()).enumerate() {
        assert!(count.tables <= (n - 1).max(usize::from(stage == 0)), "{count:?}");
        assert_eq!(less, StageCount { entries: count.entries - count.tables, ..count });
        assert!(less.entries <= 2 * (n - 1), "{less:?}");
        let most = [2 * n - 1, 3 * (n - 1), 3 * (n - 1), 2 * (n - 1)][stage];
        assert!(count.entries <= most, "{count:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn encoding_is_a_plain_comparison(
        firsts in prop_oneof![btree_set(key(), 0..40), btree_set(any::<u64>(), 0..40)],
        keys in vec_of(prop_oneof![key(), any::<u64>()], 50),
    ) {
        let ranges = ranges(&firsts);
        let tables = RangeTables::new(&ranges).unwrap();
        let defaults = tables.clone().with_default_results();
        prop_assert_eq!(&defaults, &defaults.clone().with_default_results());
        let edges = ranges.iter().flat_map(|range| [range.first, range.last]);
        for key in edges.chain(keys).chain([0, u64::MAX]) {
            prop_assert_eq!(tables.find(key), plain(&ranges, key));
            prop_assert_eq!(defaults.find(key), plain(&ranges, key));
        }
        check_bounds(&tables, ranges.len());
    }

    /// Every key of small key spaces, divided in all possible ways; both algorithms agree.
    #[test]
    fn every_key_of_small_spaces(stages in 1..5_usize, bits in 1..4_u32, firsts in btree_set(1..4096_u64, 0..30)) {
        let shape = Shape { stages, bits };
        let end = (1_u64 << (u32::try_from(stages).unwrap() * bits)) - 1;
        let firsts: Vec<u64> = firsts.into_iter().filter(|&first| first <= end).collect();
        let lasts: Vec<u64> = firsts.iter().map(|first| first - 1).chain([end]).collect();
        let mut built = encode::encode(&lasts, shape);
        prop_assert_eq!(&built, &printed::encode(&lasts, shape));
        for default_results in [false, true] {
            if default_results {
                built.iter_mut().for_each(Stage::take_defaults);
            }
            for key in 0..=end {
                let range = lasts.iter().position(|&last| key <= last).unwrap();
                prop_assert_eq!(usize::from(encode::find(&built, shape, key)), range);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn both_ways_of_building_are_one(
        firsts in prop_oneof![btree_set(key(), 0..60), btree_set(any::<u64>(), 0..60)],
    ) {
        let ranges = ranges(&firsts);
        prop_assert_eq!(RangeTables::new(&ranges).unwrap(), RangeTables::as_printed(&ranges).unwrap());
    }

    /// Any ranges give tables, or an error.
    #[test]
    fn no_ranges_break_it(spans in vec_of((key(), key()), 0..6)) {
        let child = Child { addr: VirtAddr::NULL, level: 255 };
        let ranges: Vec<Range> = spans.iter().map(|&(first, last)| Range { first, last, child }).collect();
        if let Ok(tables) = RangeTables::new(&ranges) {
            prop_assert_eq!(tables.find(0), child);
        }
    }
}
