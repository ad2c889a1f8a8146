//! The table against a plain search, and each way to compare against the others.

use super::*;
use proptest::prelude::*;

fn table(ranges: &[(u64, u64, u64)]) -> Result<Ranges, RangeError> {
    let ranges: Vec<_> = ranges.iter().map(|&(base, len, offset)| Range { base, len, offset }).collect();
    Ranges::new(&ranges)
}

/// A node with two ranges that touch: a window may lie in either, at its very edge, and not over both, as their bytes are apart.
#[test]
fn a_window_lies_in_one_range() {
    let ranges = table(&[(0x1000, 0x100, 0), (0x1100, 0x80, 0x4000)]).unwrap();
    for search in Search::all() {
        let at = |addr, len| search.translate(&ranges, addr, len);
        assert_eq!(at(0x1000, 64), Ok(0), "{search:?}");
        assert_eq!(at(0x10c0, 64), Ok(0xc0), "the last whole window");
        assert_eq!(at(0x10c1, 64), Err(Miss::Straddles), "its last byte is in the next range");
        assert_eq!(at(0x1100, 64), Ok(0x4000));
        assert_eq!(at(0x1140, 65), Err(Miss::Straddles), "its last byte is nowhere");
        assert_eq!(at(0x1180, 1), Err(Miss::Elsewhere));
        assert_eq!(at(0xfff, 1), Err(Miss::Elsewhere));
        assert_eq!(at(0, 64), Err(Miss::Elsewhere), "the null pointer");
        assert_eq!(at(u64::MAX, 256), Err(Miss::Elsewhere));
    }
}

/// The ends of the address space are where a distance wraps and a signed comparison would turn round.
#[test]
fn ranges_lie_anywhere_in_the_address_space() {
    let ranges = table(&[(0, 16, 100), (1 << 63, 1 << 62, 200), (u64::MAX - 16, 16, 300)]).unwrap();
    for search in Search::all() {
        let at = |addr, len| search.translate(&ranges, addr, len);
        assert_eq!(at(0, 16), Ok(100), "{search:?}");
        assert_eq!(at((1 << 63) - 1, 1), Err(Miss::Elsewhere));
        assert_eq!(at((1 << 63) + (1 << 62) - 8, 8), Ok((1 << 62) + 192));
        assert_eq!(at(u64::MAX - 16, 16), Ok(300));
        assert_eq!(at(u64::MAX - 8, 16), Err(Miss::Straddles));
        assert_eq!(at(u64::MAX, 1), Err(Miss::Elsewhere), "the address behind the last");
    }
}

#[test]
fn an_empty_table_holds_nothing() {
    for search in Search::all() {
        assert_eq!(search.translate(&Ranges::default(), 0, 1), Err(Miss::Elsewhere));
    }
}

#[test]
fn what_is_no_table_is_refused() {
    let range = |base, len, offset| Range { base, len, offset };
    let refused = |ranges: &[Range]| Ranges::new(ranges).map(|_| ()).unwrap_err();
    let (empty, wraps, far) = (range(8, 0, 0), range(u64::MAX, 2, 0), range(0, 2, u64::MAX));
    for bad in [empty, wraps, far] {
        assert_eq!(refused(&[range(0, 1, 0), bad]), RangeError::Bounds(bad));
    }
    let (a, b) = (range(0, 9, 0), range(8, 8, 16));
    assert_eq!(refused(&[a, b]), RangeError::Order(a, b), "they share a byte");
    assert_eq!(refused(&[b, range(0, 8, 0)]), RangeError::Order(b, range(0, 8, 0)), "not in order");
    assert!(!refused(&[a, b]).to_string().is_empty());
}

/// Up to 40 ranges: gaps and lengths, from a start anywhere.
fn ranges() -> impl Strategy<Value = Vec<Range>> {
    let gap = prop_oneof![Just(0), 1..300_u64, any::<u64>().prop_map(|n| n >> 6)];
    let len = prop_oneof![1..300_u64, any::<u64>().prop_map(|n| (n >> 7) + 1)];
    let start = prop_oneof![Just(0), any::<u64>()];
    (start, proptest::collection::vec((gap, len, 0..1_u64 << 60), 0..40)).prop_map(|(start, parts)| {
        let mut at = Some(start);
        let mut ranges = Vec::new();
        for (gap, len, offset) in parts {
            let Some(base) = at.and_then(|at: u64| at.checked_add(gap)) else { break };
            let Some(end) = base.checked_add(len) else { break };
            ranges.push(Range { base, len, offset });
            at = Some(end);
        }
        ranges
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Every way to compare finds what a plain search finds, near every edge and anywhere.
    #[test]
    fn all_ways_agree_with_a_plain_search(ranges in ranges(), anywhere in any::<u64>(), len in 1..=256_usize, near in -260..260_i64) {
        let table = Ranges::new(&ranges).unwrap();
        let edges = ranges.iter().flat_map(|range| [range.base, range.base + range.len]);
        for addr in edges.map(|edge| edge.wrapping_add_signed(near)).chain([anywhere]) {
            let holding = ranges.iter().find(|range| range.base <= addr && addr - range.base < range.len);
            let expected = match holding {
                None => Err(Miss::Elsewhere),
                Some(range) if range.len - (addr - range.base) < len as u64 => Err(Miss::Straddles),
                Some(range) => Ok(range.offset + (addr - range.base)),
            };
            for search in Search::all() {
                prop_assert_eq!(search.translate(&table, addr, len), expected, "{:?} at {:#x}", search, addr);
            }
        }
    }
}
