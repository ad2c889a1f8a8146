//! The B+tree against `BTreeMap`, over racks of 1, 2 and 4 memory nodes, with traversals at the memory and at the host.

use farmem_client::{Client, ClientOptions, Error, Policy, Program, Rack};
use farmem_structures::Layout;
use farmem_structures::btree::{Aggregate, BTree, KEY_MAX, SCAN_PAIRS_MAX};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::ops::Range;

#[derive(Clone, Debug)]
enum Act {
    Insert(u64, u64),
    Update(u64, u64),
    Remove(u64),
    RemoveRange(Range<u64>),
    Find(u64),
    LowerBound(u64),
    Scan(Range<u64>, usize),
    Aggregate(Range<u64>),
}

/// Keys collide often in a small space, with a few at the edges of the key space.
fn key() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..600_u64, 1 => any::<u64>().prop_map(|k| k.min(KEY_MAX)), 1 => KEY_MAX - 3..=KEY_MAX]
}

fn range() -> impl Strategy<Value = Range<u64>> {
    prop_oneof![
        4 => (0..600_u64, 0..200_u64).prop_map(|(from, len)| from..from + len),
        1 => (key(), key()).prop_map(|(a, b)| a.min(b)..a.max(b)),
        1 => Just(0..u64::MAX),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (key(), any::<u64>()).prop_map(|(k, v)| Act::Insert(k, v)),
        2 => (key(), any::<u64>()).prop_map(|(k, v)| Act::Update(k, v)),
        3 => key().prop_map(Act::Remove),
        1 => (0..600_u64, 0..60_u64).prop_map(|(from, len)| Act::RemoveRange(from..from + len)),
        2 => key().prop_map(Act::Find),
        2 => key().prop_map(Act::LowerBound),
        2 => (range(), 0..60_usize).prop_map(|(r, most)| Act::Scan(r, most)),
        2 => range().prop_map(Act::Aggregate),
    ]
}

fn layout() -> impl Strategy<Value = Layout> {
    prop_oneof![Just(Layout::Partitioned), Just(Layout::Scattered { granularity: 4096 })]
}

fn summary(values: impl Iterator<Item = u64>) -> Option<Aggregate> {
    let values: Vec<u64> = values.collect();
    let sum = values.iter().map(|&v| u128::from(v)).sum();
    let (min, max) = (*values.iter().min()?, *values.iter().max()?);
    Some(Aggregate { sum, min, max, count: values.len() as u64 })
}

fn play(client: &mut Client, tree: &mut BTree, model: &mut BTreeMap<u64, u64>, act: &Act) {
    match act.clone() {
        Act::Insert(k, v) => assert_eq!(tree.insert(client, k, v).unwrap(), model.insert(k, v)),
        Act::Update(k, v) => {
            let old = tree.update(client, k, v).unwrap();
            assert_eq!(old, model.get_mut(&k).map(|value| std::mem::replace(value, v)));
        }
        Act::Remove(k) => assert_eq!(tree.remove(client, k).unwrap(), model.remove(&k)),
        Act::RemoveRange(range) => {
            for k in range {
                assert_eq!(tree.remove(client, k).unwrap(), model.remove(&k));
            }
        }
        Act::Find(k) => assert_eq!(tree.find(client, k).unwrap(), model.get(&k).copied()),
        Act::LowerBound(k) => {
            let expected = model.range(k..).next().map(|(&k, &v)| (k, v));
            assert_eq!(tree.lower_bound(client, k).unwrap(), expected);
        }
        Act::Scan(range, most) => {
            let expected: Vec<_> = model.range(range.clone()).take(most).map(|(&k, &v)| (k, v)).collect();
            assert_eq!(tree.scan(client, range, most).unwrap(), expected);
        }
        Act::Aggregate(range) => {
            let expected = summary(model.range(range.clone()).map(|(_, &v)| v));
            assert_eq!(tree.aggregate(client, range).unwrap(), expected);
        }
    }
}

fn check_all(client: &mut Client, tree: &BTree, model: &BTreeMap<u64, u64>) {
    let all: Vec<(u64, u64)> = model.iter().map(|(&k, &v)| (k, v)).collect();
    assert_eq!(tree.scan(client, .., usize::MAX).unwrap(), all);
    assert_eq!(tree.aggregate(client, ..).unwrap(), summary(model.values().copied()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// All operations match a `BTreeMap`: on 1, 2 and 4 memory nodes, in both layouts, at the memory nodes
    /// and at the host.
    #[test]
    fn the_tree_is_a_map(
        nodes in prop_oneof![Just(1_u16), Just(2), Just(4)],
        layout in layout(),
        at_host: bool,
        loaded in proptest::collection::btree_map(key(), any::<u64>(), 0..400),
        fill in 1..=15_usize,
        acts in vec(act(), 1..250),
    ) {
        let rack = Rack::embedded_with(nodes, 16 << 20).unwrap();
        let mut client = rack.client("map").unwrap();
        let mut tree = BTree::create(&mut client, layout).unwrap();
        tree.set_policy(if at_host { Policy::Host } else { Policy::Offload });
        tree.load(&mut client, loaded.iter().map(|(&k, &v)| (k, v)), fill).unwrap();
        let mut model = loaded;
        check_all(&mut client, &tree, &model);
        for act in &acts {
            play(&mut client, &mut tree, &mut model, act);
        }
        check_all(&mut client, &tree, &model);
        let mut other = rack.client("map").unwrap();
        let opened = BTree::open(&mut other, tree.address(), layout).unwrap();
        check_all(&mut other, &opened, &model);
        tree.destroy(&mut client).unwrap();
        prop_assert!(opened.find(&mut other, 0).is_err(), "freed");
    }
}

fn embedded(nodes: u16) -> Client {
    Rack::embedded_with(nodes, 64 << 20).unwrap().client("tree").unwrap()
}

/// Four levels, in order and shuffled, by inserts alone: every level splits, the root three times.
#[test]
fn many_inserts_split_every_level() {
    let count = 6_000_u64;
    for layout in [Layout::Partitioned, Layout::Scattered { granularity: 4096 }] {
        for step in [1, 2_654_435_761] {
            let mut client = embedded(2);
            let mut tree = BTree::create(&mut client, layout).unwrap();
            for n in 0..count {
                assert_eq!(tree.insert(&mut client, n * step % 6_007, n).unwrap(), None);
            }
            let pairs = tree.scan(&mut client, .., usize::MAX).unwrap();
            assert_eq!(pairs.len() as u64, count);
            assert!(pairs.is_sorted_by(|a, b| a.0 < b.0));
            assert!(pairs.iter().all(|&(key, n)| key == n * step % 6_007));
        }
    }
}

/// The cost of each kind of look-up, on a tree of three levels: requests, and iterations (nodes visited).
#[test]
fn requests_and_iterations_of_look_ups() {
    let mut client = embedded(1);
    let mut tree = BTree::create(&mut client, Layout::Partitioned).unwrap();
    tree.load(&mut client, (0..15 * 16 * 16_u32).map(|n| (n.into(), n.into())), 15).unwrap();
    tree.find(&mut client, 0).unwrap();
    tree.scan(&mut client, .., 1).unwrap();
    tree.aggregate(&mut client, ..1).unwrap();
    let mut took = |policy, look: &dyn Fn(&BTree, &mut Client)| {
        tree.set_policy(policy);
        let before = client.tally();
        look(&tree, &mut client);
        let after = client.tally();
        (after.requests - before.requests, after.iterations - before.iterations)
    };
    let mut table = Vec::new();
    for policy in [Policy::Offload, Policy::Host] {
        table.push(took(policy, &|t, c| assert_eq!(t.find(c, 77).unwrap(), Some(77))));
        table.push(took(policy, &|t, c| assert_eq!(t.lower_bound(c, 77).unwrap(), Some((77, 77)))));
        table.push(took(policy, &|t, c| assert_eq!(t.scan(c, 30.., 14).unwrap().len(), 14)));
        table.push(took(policy, &|t, c| assert_eq!(t.scan(c, 30.., 100).unwrap().len(), 100)));
        table.push(took(policy, &|t, c| assert_eq!(t.scan(c, 30.., 300).unwrap().len(), 300)));
        table.push(took(policy, &|t, c| assert_eq!(t.aggregate(c, 0..1500).unwrap().unwrap().count, 1500)));
    }
    // A scan of 100 is one request. A scan of 300 is three, and each continues at the leaf where the previous
    // one ended.
    let offloaded = [(1, 3), (1, 3), (1, 3), (1, 9), (3, 24), (1, 103)];
    let at_host = [(3, 3), (3, 3), (3, 3), (9, 9), (24, 24), (103, 103)];
    assert_eq!(table, [offloaded, at_host].concat());
    assert_eq!(SCAN_PAIRS_MAX, 122);
}

/// A partitioned tree crosses memory nodes at the borders of key ranges, a scattered one at the borders of
/// its pieces. The results are the same.
#[test]
fn layouts_differ_in_crossings_only() {
    let crossings = |layout| {
        let rack = Rack::embedded_with(4, 16 << 20).unwrap();
        let mut writer = rack.client("layout").unwrap();
        let mut tree = BTree::create(&mut writer, layout).unwrap();
        tree.load(&mut writer, (0..15 * 256_u32).map(|n| (n.into(), 1)), 15).unwrap();
        let mut acc = rack
            .client_with(
                "layout",
                ClientOptions { hops_max: NonZero::new(1).unwrap(), ..ClientOptions::default() },
            )
            .unwrap();
        let sum = |client: &mut Client| {
            let before = client.tally().requests;
            assert_eq!(tree.aggregate(client, ..).unwrap().unwrap().sum, 15 * 256);
            client.tally().requests - before
        };
        while sum(&mut writer) > 1 {}
        for _ in 0..4 {
            sum(&mut acc);
        }
        sum(&mut acc) - 1
    };
    // 256 leaves: three borders of four shares; or 16 pieces of 16 leaves, so 15 borders. The root lies on
    // the first memory node.
    assert_eq!(crossings(Layout::Partitioned), 3);
    assert_eq!(crossings(Layout::Scattered { granularity: 4096 }), 15);
}

/// The lock excludes a second writer, counts versions, and can be taken from a dead holder.
#[test]
fn the_lock_is_a_version() {
    let rack = Rack::embedded_with(1, 16 << 20).unwrap();
    let (mut one, mut two) = (rack.client("lock").unwrap(), rack.client("lock").unwrap());
    let mut mine = BTree::create(&mut one, Layout::Partitioned).unwrap();
    let mut yours = BTree::open(&mut two, mine.address(), Layout::Partitioned).unwrap();
    assert_eq!(mine.lock().version(&mut one).unwrap(), 0);
    assert!(mine.lock().try_lock(&mut one).unwrap());
    assert!(!yours.lock().try_lock(&mut two).unwrap(), "held");
    for key in 0..100 {
        mine.insert(&mut one, key, key).unwrap();
    }
    assert!(mine.lock().unlock(&mut one).unwrap());
    assert_eq!(yours.lock().version(&mut two).unwrap(), 2, "a reader sees that another program wrote");
    assert!(yours.lock().try_lock(&mut two).unwrap());
    yours.insert(&mut two, 1000, 7).unwrap();
    assert!(!mine.lock().break_lock(&mut one, 2).unwrap(), "an even word is no lock");
    assert!(mine.lock().break_lock(&mut one, 3).unwrap());
    assert!(mine.lock().try_lock(&mut one).unwrap());
    assert!(!yours.lock().unlock(&mut two).unwrap(), "it was broken");
    assert_eq!(mine.find(&mut one, 1000).unwrap(), Some(7));
    assert_eq!(mine.scan(&mut one, .., 200).unwrap().len(), 101);
}

/// Invalid requests fail with a specific error and leave the tree unchanged.
#[test]
fn wrong_requests_are_named() {
    let mut client = embedded(1);
    let mut tree = BTree::create(&mut client, Layout::Partitioned).unwrap();
    let key_of = |error| match error {
        Error::Key { key, .. } => key,
        other => panic!("{other}"),
    };
    assert_eq!(key_of(tree.insert(&mut client, u64::MAX, 0).unwrap_err()), u64::MAX);
    for bad in [[(0, 0), (5, 0), (5, 1)], [(0, 0), (9, 0), (4, 0)]] {
        assert_eq!(key_of(tree.load(&mut client, bad.into_iter(), 1).unwrap_err()), bad[2].0);
    }
    assert_eq!(tree.find(&mut client, u64::MAX).unwrap(), None);
    assert_eq!(tree.scan(&mut client, .., 10).unwrap(), []);
    tree.insert(&mut client, 3, 4).unwrap();
    let twice = tree.load(&mut client, [(1, 1)].into_iter(), 1).unwrap_err();
    assert!(matches!(twice, Error::Broken { .. }), "not empty: {twice}");
    let nothing = client.allocate(4096).unwrap().base;
    let error = BTree::open(&mut client, nothing, Layout::Partitioned).unwrap_err();
    assert!(matches!(error, Error::Broken { addr, .. } if addr == nothing), "{error}");
    assert_eq!(tree.find(&mut client, 3).unwrap(), Some(4));
}

/// The programs' cost per iteration, as the dispatch engine sees it: the profile of one core offloads all of
/// them.
#[test]
fn the_programs_are_worth_taking_to_the_memory() {
    for text in [
        farmem_structures::btree::FIND_PROGRAM,
        farmem_structures::btree::SCAN_PROGRAM,
        farmem_structures::btree::AGGREGATE_PROGRAM,
    ] {
        let program = Program::assemble(text).unwrap();
        assert_eq!(Policy::default().verdict(&program), farmem_client::Site::MemoryNodes);
    }
}
