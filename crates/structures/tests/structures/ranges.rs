//! Parallel range queries (Fat-B+Tree IV-C): the paper's figures as visits of a real tree, the answers
//! against a `BTreeMap` beside writers, and the bounds on buffered pairs.

use farmem_client::{Client, Error, Policy, Rack};
use farmem_machine::Rng;
use farmem_structures::blink_tree::{Extent, PARTS_MAX, RangeQuery, Separators, publish};
use farmem_structures::heap::{Clock, Heap, HeapOptions};
use farmem_structures::{BLinkTree, Layout, RecordTree};
use farmem_testkit::{Hooked, ended};
use proptest::collection::{btree_map, btree_set};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

fn embedded(nodes: u16) -> Client {
    Rack::embedded_with(nodes, 64 << 20).unwrap().client("ranges").unwrap()
}

fn numbers(count: u32) -> impl ExactSizeIterator<Item = u64> {
    (0..count).map(u64::from)
}

/// Returns all pairs of a query, requested `most` at a time.
fn all(
    query: &mut RangeQuery,
    tree: &BLinkTree,
    memory: &mut impl farmem_client::task::Concurrent,
    most: usize,
) -> Result<Vec<(u64, u64)>, Error> {
    let mut pairs = Vec::new();
    while !query.is_at_end() {
        pairs.extend(query.next(tree, memory, most)?);
    }
    Ok(pairs)
}

/// Builds the paper's model: each key is an access, and an index of seven levels adds seven to each
/// sub-range. The tree has 128 leaves of one key and seven levels of inner nodes.
fn a_key_to_a_leaf(client: &mut Client) -> BLinkTree {
    let mut tree = BLinkTree::create_with(client, Layout::Partitioned, 2).unwrap();
    tree.load(client, numbers(256).map(|n| (10 * n, n)), 2).unwrap();
    (1..256).step_by(2).for_each(|n| assert_eq!(tree.remove(client, 10 * n).unwrap(), Some(n)));
    tree.set_policy(Policy::Offload);
    tree
}

/// 100 keys take 107 accesses in one piece and 170 in ten, 59 % more. With five of the seven levels in the
/// switch they take 102 and 120, 18 % more (Fat-B+Tree IV-C).
#[test]
fn accesses_of_ten_sub_ranges_are_the_papers() {
    let mut client = embedded(1);
    let tree = a_key_to_a_leaf(&mut client);
    // Leaves 10 to 109.
    let (range, expected): (_, Vec<_>) = (200..2200, (10..110).map(|n| (20 * n, 2 * n)).collect());
    // A host that keeps separators reads them once: the root, its children, and so on.
    let separators = tree.separators(&mut client, range.clone(), usize::MAX).unwrap();
    assert_eq!(separators.len(), 99, "each leaf of the range but the first begins at one");
    let visits = |client: &mut Client, n: usize| {
        let mut query = tree.range(range.clone()).parallel_at(n, &separators).unwrap();
        assert_eq!(query.parts().count(), n);
        let before = client.tally().iterations;
        assert_eq!(query.next(&tree, client, usize::MAX).unwrap(), expected);
        assert!(query.is_at_end());
        client.tally().iterations - before
    };
    assert_eq!((visits(&mut client, 1), visits(&mut client, 10)), (107, 170));
    assert_eq!(170 * 100 / 107, 158, "158.9 %: the paper's 59 % more");
    // The five upper levels become one fat root of 32 ranges: level 2 has 32 nodes.
    let section = tree.section(&mut client, Extent { ranges: 32, sets: 0, nodes: 0 }).unwrap();
    assert!(section.ranges.len() == 32 && section.ranges.iter().all(|range| range.child.level == 2));
    publish(&mut client, &[section]).unwrap();
    assert_eq!((visits(&mut client, 1), visits(&mut client, 10)), (102, 120));
    assert_eq!(120 * 100 / 102, 117, "117.6 %: the paper's 18 % more");
}

/// A sequential scan descends the tree once, for any number of requests.
#[test]
fn a_long_scan_goes_down_once() {
    let mut client = embedded(1);
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    tree.set_policy(Policy::Offload);
    tree.load(&mut client, numbers(14 * 14 * 14).map(|n| (n, n)), 14).unwrap();
    tree.scan(&mut client, .., 1).unwrap();
    let before = client.tally();
    assert_eq!(tree.scan(&mut client, .., usize::MAX).unwrap().len(), 14 * 14 * 14);
    let after = client.tally();
    // 196 leaves, four per request, and two levels above them.
    assert_eq!((after.requests - before.requests, after.iterations - before.iterations), (49, 196 + 2));
}

/// Empty ranges, ranges at both ends of the key space, and invalid numbers of sub-ranges.
#[test]
fn ranges_at_the_ends() {
    let mut client = embedded(2);
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    let every = |client: &mut Client, tree: &BLinkTree, query: RangeQuery| {
        let mut query = query.parallel(7).unwrap();
        all(&mut query, tree, client, 3).unwrap()
    };
    assert_eq!(every(&mut client, &tree, tree.range(..)), [], "an empty tree");
    let before = client.tally();
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is tried")]
    let (turned, none) = (tree.range(9..=3), tree.range(5..5));
    assert!(turned.is_at_end() && none.is_at_end());
    assert_eq!(every(&mut client, &tree, turned), [], "l > r has no keys");
    assert_eq!(every(&mut client, &tree, none), []);
    assert_eq!(client.tally(), before, "and takes no request");
    for key in [0, 7, u64::MAX] {
        tree.insert(&mut client, key, !key).unwrap();
    }
    let pairs = [(0, u64::MAX), (7, !7), (u64::MAX, 0)];
    assert_eq!(every(&mut client, &tree, tree.range(..)), pairs);
    assert_eq!(every(&mut client, &tree, tree.range(7..=7)), pairs[1..2]);
    assert_eq!(every(&mut client, &tree, tree.range(u64::MAX..)), pairs[2..]);
    assert_eq!(every(&mut client, &tree, tree.range(..u64::MAX)), pairs[..2]);
    // At most as many parts as keys.
    assert_eq!(tree.range(5..=7).parallel(9).unwrap().parts().collect::<Vec<_>>(), [5..=5, 6..=6, 7..=7]);
    for n in [0, PARTS_MAX + 1] {
        let refused = tree.range(..).parallel(n).unwrap_err();
        assert!(
            matches!(refused, Error::Count { have, least: 1, most: PARTS_MAX, .. } if have == n),
            "{refused}"
        );
    }
    assert_eq!(
        tree.range(..).parallel(PARTS_MAX).unwrap().next(&tree, &mut client, usize::MAX).unwrap(),
        pairs
    );
}

/// The buffered pairs of a much longer range are bounded, and sub-ranges run in parallel to its end, in
/// order.
#[test]
fn what_is_kept_is_bounded() {
    const AHEAD: usize = 1_200;
    let mut client = embedded(1);
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    tree.set_policy(Policy::Offload);
    let keys = 40_000;
    // Most keys are close together, at the beginning.
    let key = |n: u64| if n < keys - 100 { n } else { n << 40 };
    tree.load(&mut client, numbers(40_000).map(|n| (key(n), n)), 14).unwrap();
    let separators = tree.separators(&mut client, .., 64).unwrap();
    for separators in [Separators::default(), separators] {
        let mut query = tree.range(..).parallel_at(10, &separators).unwrap().ahead(AHEAD);
        let mut next = 0;
        let mut side_by_side = 0;
        while !query.is_at_end() {
            for (found, n) in query.next(&tree, &mut client, 500).unwrap() {
                assert_eq!((found, n), (key(next), next));
                next += 1;
            }
            // Each request in flight may bring up to 56 pairs where fewer were wanted.
            assert!(query.waiting() <= AHEAD + 10 * 56, "{} pairs are kept", query.waiting());
            side_by_side = side_by_side.max(query.parts().count());
        }
        assert_eq!(next, keys);
        assert!(side_by_side >= 10);
    }
}

/// Ranges cut at separators have about equal numbers of leaves per part, also for dense keys.
#[test]
fn separators_balance() {
    let mut client = embedded(1);
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    // Ten keys per power of two: most of the range is empty.
    let keys: Vec<u64> = (10..60).flat_map(|bit| (0..10).map(move |n| (1 << bit) + n)).collect();
    tree.load(&mut client, keys.iter().map(|key| (*key, *key)), 7).unwrap();
    let section = tree.section(&mut client, Extent { ranges: 40, sets: 1, nodes: 100 }).unwrap();
    let read = tree.separators(&mut client, .., 10).unwrap();
    assert!((10..40).contains(&read.len()), "the levels that have ten: {}", read.len());
    let most_of = |query: RangeQuery| {
        let parts: Vec<_> = query.parts().collect();
        assert_eq!(parts.len(), 5);
        assert!(parts.iter().zip(&parts[1..]).all(|(a, b)| *b.start() == a.end() + 1), "{parts:?}");
        parts.iter().map(|part| keys.iter().filter(|key| part.contains(key)).count()).max().unwrap()
    };
    assert_eq!(most_of(tree.range(..).parallel(5).unwrap()), 500, "evenly by keys all are in one part");
    for separators in [Separators::published(&section), read] {
        let most = most_of(tree.range(..).parallel_at(5, &separators).unwrap());
        assert!((100..=200).contains(&most), "{most} of 500 in one of five parts");
    }
    // One separator, five parts: the pieces between are cut evenly.
    let one = tree.range(0..100).parallel_at(5, &Separators::of([50, 200])).unwrap();
    assert_eq!(one.parts().collect::<Vec<_>>(), [0..=24, 25..=49, 50..=65, 66..=82, 83..=99]);
}

/// A scan that fails continues where it was: nothing is left out, and nothing comes twice.
#[test]
fn a_query_goes_on_after_an_error() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let mut client = rack.client("broken").unwrap();
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    tree.set_policy(Policy::Offload);
    tree.load(&mut client, numbers(3_000).map(|n| (n, n)), 14).unwrap();
    let mut query = tree.range(..).parallel(6).unwrap().ahead(900);
    let (mut requests, mut errors, mut next) = (0, 0, 0);
    while !query.is_at_end() {
        let mut before = || {
            requests += 1;
            if requests % 17 == 0 { Err(ended()) } else { Ok(()) }
        };
        match query.next(&tree, &mut Hooked::new(&mut client, &mut before), 400) {
            Ok(pairs) => pairs.into_iter().for_each(|pair| {
                assert_eq!(pair, (next, next));
                next += 1;
            }),
            Err(_) => errors += 1,
        }
    }
    assert_eq!(next, 3_000);
    assert!(errors > 5, "{errors} errors");
}

fn key() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..3_000_u64, 1 => any::<u64>(), 1 => u64::MAX - 3..=u64::MAX]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A second program inserts and removes before every request: each stable key is found once, in order;
    /// other keys may appear.
    #[test]
    fn what_stands_still_is_found_beside_writers(
        nodes in 1..4_u16,
        entries in 2..=14_usize,
        at_host: bool,
        published: bool,
        still in btree_set(key(), 0..400),
        bounds in (key(), key()),
        n in 1..12_usize,
        with_separators: bool,
        ahead in prop_oneof![Just(1_usize), 50..2_000_usize],
        most in prop_oneof![Just(usize::MAX), 1..200_usize],
        seed: u64,
    ) {
        let rack = Rack::embedded_with(nodes, 16 << 20).unwrap();
        let (mut one, mut two) = (rack.client("map").unwrap(), rack.client("map").unwrap());
        let mut tree = BLinkTree::create_with(&mut one, Layout::Partitioned, entries).unwrap();
        // The stable keys are even.
        let still: Vec<u64> = still.iter().map(|key| key & !1).collect::<std::collections::BTreeSet<_>>().into_iter().collect();
        tree.load(&mut one, still.iter().map(|key| (*key, !key)), entries).unwrap();
        let mut yours = BLinkTree::open(&mut two, tree.address(), Layout::Partitioned).unwrap();
        tree.set_policy(if at_host { Policy::Host } else { Policy::Offload });
        if published {
            let section = tree.section(&mut one, Extent { ranges: 20, sets: 1, nodes: 50 }).unwrap();
            publish(&mut one, &[section]).unwrap();
        }
        let separators = if with_separators { tree.separators(&mut one, .., 30).unwrap() } else { Separators::default() };
        let range = bounds.0..=bounds.1;
        let mut query = tree.range(range.clone()).parallel_at(n, &separators).unwrap().ahead(ahead);
        let mut rng = Rng::from_number(seed);
        let mut between = || {
            for _ in 0..rng.below(4) {
                let key = 2 * u64::from(rng.below(1_500)) + 1;
                if rng.chance(1, 2) { yours.insert(&mut two, key, !key)?; } else { yours.remove(&mut two, key)?; }
            }
            Ok(())
        };
        let found = all(&mut query, &tree, &mut Hooked::new(&mut one, &mut between), most).unwrap();
        prop_assert!(found.is_sorted_by(|(a, _), (b, _)| a < b), "each key once, in order");
        prop_assert!(found.iter().all(|(key, value)| range.contains(key) && *value == !key));
        let evens: Vec<u64> = found.iter().map(|(key, _)| *key).filter(|key| key % 2 == 0).collect();
        let expected: Vec<u64> = still.into_iter().filter(|key| range.contains(key)).collect();
        prop_assert_eq!(evens, expected);
    }

    /// A tree of records: keys with their values, beside a program that replaces them, so that records are
    /// freed and reused.
    #[test]
    fn records_have_their_own_values(
        loaded in btree_map(0..600_u64, 1..700_usize, 0..200),
        bounds in (0..600_u64, 0..600_u64),
        n in 1..8_usize,
        most in 1..120_usize,
        seed: u64,
    ) {
        let rack = Rack::embedded_with(2, 64 << 20).unwrap();
        let options = || HeapOptions { clock: Clock::new(|| Duration::ZERO), ..HeapOptions::default() };
        let (mut one, mut two) = (rack.client("map").unwrap(), rack.client("map").unwrap());
        let mut heap = Heap::create(&mut one, "heap", options()).unwrap();
        let mut tree = RecordTree::create(&mut one, &mut heap, "tree", Layout::Partitioned).unwrap();
        let value = |key: u64, len: usize| vec![u8::try_from(key % 251).unwrap(); len];
        let model: BTreeMap<u64, Vec<u8>> = loaded.into_iter().map(|(key, len)| (key, value(key, len))).collect();
        tree.load(&mut one, &mut heap, model.iter().map(|(key, value)| (*key, value)), 9).unwrap();
        let mut other = Heap::open(&mut two, "heap", options()).unwrap();
        let mut yours = RecordTree::open(&mut two, &mut other, "tree", Layout::Partitioned).unwrap();
        let keys: Vec<u64> = model.keys().copied().collect();
        let mut rng = Rng::from_number(seed);
        let mut between = || {
            if let Some(&key) = keys.get(rng.below(1 + u32::try_from(keys.len()).unwrap()) as usize) {
                let len = 1 + rng.below(700) as usize;
                yours.insert(&mut two, &mut other, key, &value(key, len))?;
            }
            Ok(())
        };
        let range = bounds.0..=bounds.1;
        let mut query = tree.range(range.clone()).parallel(n).unwrap();
        let mut found = Vec::new();
        while !query.is_at_end() {
            let mut memory = Hooked::new(&mut one, &mut between);
            found.extend(query.next_records(&tree, &mut memory, &mut heap, most).unwrap());
            prop_assert_eq!(query.waiting(), 0, "words that lead to records are not kept");
        }
        let wanted: Vec<u64> = model.keys().copied().filter(|key| range.contains(key)).collect();
        prop_assert_eq!(found.iter().map(|(key, _)| *key).collect::<Vec<_>>(), wanted);
        prop_assert!(found.iter().all(|(key, found)| *found == value(*key, found.len())));
    }
}
