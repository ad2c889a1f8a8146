//! The B-link tree against `BTreeMap`, with several writers at once, and the cost of its operations.

use farmem_client::api::{Base64, ErrorCode, SoftSection};
use farmem_client::{Client, Error, Policy, Rack, VirtAddr};
use farmem_machine::Rng;
use farmem_structures::blink_tree::{Cursor, Extent, Writes, publish, withdraw};
use farmem_structures::{BLinkTree, Layout};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::collections::BTreeMap;

use farmem_testkit::{Hooked, ended};

#[derive(Clone, Debug)]
enum Act {
    Insert(u64, u64),
    Remove(u64),
    Get(u64),
    Scan(u64, u64, usize),
}

/// Keys collide often in a small space, and some lie at the ends of the key space.
fn key() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..300_u64, 1 => any::<u64>(), 1 => u64::MAX - 3..=u64::MAX]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (key(), any::<u64>()).prop_map(|(key, value)| Act::Insert(key, value)),
        5 => key().prop_map(Act::Remove),
        3 => key().prop_map(Act::Get),
        2 => (key(), key(), 0..150_usize).prop_map(|(a, b, most)| Act::Scan(a.min(b), a.max(b), most)),
    ]
}

fn check_all(client: &mut Client, tree: &BLinkTree, model: &BTreeMap<u64, u64>) {
    let all: Vec<(u64, u64)> = model.iter().map(|(&key, &value)| (key, value)).collect();
    assert_eq!(tree.scan(client, .., usize::MAX).unwrap(), all);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// All operations through two handles match a `BTreeMap`: at the memory nodes and at the host, with nodes
    /// of 2 to 14 entries, on 1 and 3 memory nodes.
    #[test]
    fn the_tree_is_a_map(
        nodes in prop_oneof![Just(1_u16), Just(3)],
        layout in prop_oneof![Just(Layout::Partitioned), Just(Layout::Scattered { granularity: 4096 })],
        at_host: bool,
        entries in 2..=14_usize,
        loaded in btree_map(key(), any::<u64>(), 0..200),
        fill in 1..=20_usize,
        acts in vec((act(), any::<bool>()), 1..250),
    ) {
        let rack = Rack::embedded_with(nodes, 16 << 20).unwrap();
        let mut clients = [rack.client("map").unwrap(), rack.client("map").unwrap()];
        let mut tree = BLinkTree::create_with(&mut clients[0], layout, entries).unwrap();
        tree.load(&mut clients[0], loaded.iter().map(|(&key, &value)| (key, value)), fill).unwrap();
        let other = BLinkTree::open(&mut clients[1], tree.address(), layout).unwrap();
        let mut trees = [tree, other];
        trees[0].set_policy(if at_host { Policy::Host } else { Policy::Offload });
        let mut model = loaded;
        check_all(&mut clients[0], &trees[0], &model);
        for (act, second) in acts {
            let (client, tree) = (&mut clients[usize::from(second)], &mut trees[usize::from(second)]);
            match act {
                Act::Insert(key, value) => {
                    prop_assert_eq!(tree.insert(client, key, value).unwrap(), model.insert(key, value));
                }
                Act::Remove(key) => prop_assert_eq!(tree.remove(client, key).unwrap(), model.remove(&key)),
                Act::Get(key) => prop_assert_eq!(tree.get(client, key).unwrap(), model.get(&key).copied()),
                Act::Scan(first, last, most) => {
                    let expected: Vec<_> = model.range(first..=last).take(most).map(|(&k, &v)| (k, v)).collect();
                    prop_assert_eq!(tree.scan(client, first..=last, most).unwrap(), expected);
                }
            }
        }
        check_all(&mut clients[1], &trees[1], &model);
        for key in model.keys().copied().collect::<Vec<_>>() {
            prop_assert_eq!(trees[0].remove(&mut clients[0], key).unwrap(), model.remove(&key));
        }
        check_all(&mut clients[1], &trees[1], &model);
        let [tree, other] = trees;
        other.destroy_nodes(&mut clients[1]).unwrap();
        tree.destroy(&mut clients[0]).unwrap();
    }
}

fn embedded(nodes: u16) -> Client {
    Rack::embedded_with(nodes, 64 << 20).unwrap().client("tree").unwrap()
}

/// A look-up, an insertion and a removal are one request each. If the leaf has no room, the host splits it.
#[test]
fn requests_of_each_operation() {
    let mut client = embedded(1);
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    tree.load(&mut client, (0..14 * 14 * 7_u32).map(|n| (2 * u64::from(n), u64::from(n))), 7).unwrap();
    // The memory node learns the programs.
    tree.get(&mut client, 0).unwrap();
    tree.insert(&mut client, 1, 1).unwrap();
    tree.remove(&mut client, 1).unwrap();
    tree.scan(&mut client, .., 1).unwrap();
    let mut took = |work: &mut dyn FnMut(&mut BLinkTree, &mut Client)| {
        let before = client.tally();
        work(&mut tree, &mut client);
        let after = client.tally();
        (after.requests - before.requests, after.iterations - before.iterations)
    };
    assert_eq!(took(&mut |tree, client| assert_eq!(tree.get(client, 700).unwrap(), Some(350))), (1, 4));
    assert_eq!(took(&mut |tree, client| assert_eq!(tree.get(client, 701).unwrap(), None)), (1, 4));
    // A change begins at the handle's last leaf.
    assert_eq!(took(&mut |tree, client| assert_eq!(tree.insert(client, 701, 9).unwrap(), None)), (1, 1));
    assert_eq!(took(&mut |tree, client| assert_eq!(tree.insert(client, 901, 9).unwrap(), None)), (1, 4));
    assert_eq!(took(&mut |tree, client| assert_eq!(tree.insert(client, 701, 8).unwrap(), Some(9))), (1, 4));
    assert_eq!(took(&mut |tree, client| assert_eq!(tree.remove(client, 701).unwrap(), Some(8))), (1, 1));
    assert_eq!(took(&mut |tree, client| assert_eq!(tree.remove(client, 901).unwrap(), Some(9))), (1, 4));
    assert_eq!(took(&mut |tree, client| assert_eq!(tree.scan(client, 700.., 40).unwrap().len(), 40)), (1, 9));
}

/// Changes all over a tree of three memory nodes, directly and after a look-up, with the tree in the switch
/// and without: round trips, visits, crossings.
#[test]
fn where_changes_begin() {
    const KEYS: u32 = 14 * 14 * 14 * 7;
    let rack = Rack::embedded_with(3, 64 << 20).unwrap();
    let mut client = rack.client("tree").unwrap();
    let layout = Layout::Scattered { granularity: 4096 };
    let mut tree = BLinkTree::create(&mut client, layout).unwrap();
    tree.load(&mut client, (0..KEYS).map(|n| (2 * u64::from(n), 1)), 7).unwrap();
    let mut took = |published: bool, writes: Writes| {
        if published {
            let section = tree.section(&mut client, Extent::default()).unwrap();
            publish(&mut client, &[section]).unwrap();
        } else {
            withdraw(&mut client, tree.tree().root).unwrap();
        }
        tree.set_writes(writes);
        let mut before = (client.tally(), 0);
        for round in 0..600 {
            // The nodes learn the programs first.
            if round == 100 {
                before = (client.tally(), rack.frames().unwrap());
            }
            let key = 2 * (round * 7_919 % u64::from(KEYS));
            assert!(tree.insert(&mut client, key, round).unwrap().is_some());
        }
        let after = (client.tally(), rack.frames().unwrap());
        let (requests, visits) =
            (after.0.requests - before.0.requests, after.0.iterations - before.0.iterations);
        (requests, visits, after.1 - before.1)
    };
    let counts = [
        took(false, Writes::Descend),
        took(true, Writes::Descend),
        took(false, Writes::Find),
        took(true, Writes::Find),
    ];
    let [descends, beside_index, finds, found] = counts;
    assert_eq!((descends.0, descends.1), (500, 500 * 6), "from the root to the leaf");
    assert_eq!(descends, beside_index, "what stores is not led by the switch");
    assert_eq!((finds.0, finds.1), (1_000, 500 * 7), "down by a look-up, and the leaf again");
    assert_eq!((found.0, found.1), (1_000, 500 * 2), "the leaf twice");
    assert!(found.2 < descends.2, "fewer packets than the way down: {counts:?}");
}

/// The last leaf of a handle splits, merges into its neighbour, or dies: the next change still finds the key.
#[test]
fn a_leaf_that_changed_leads_on() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let (mut one, mut two) = (rack.client("tree").unwrap(), rack.client("tree").unwrap());
    let mut mine = BLinkTree::create_with(&mut one, Layout::Partitioned, 4).unwrap();
    let mut model: BTreeMap<u64, u64> = (0..400).map(|n| (4 * n, n)).collect();
    mine.load(&mut one, model.clone().into_iter(), 3).unwrap();
    let mut yours = BLinkTree::open(&mut two, mine.address(), Layout::Partitioned).unwrap();
    for round in 0..200 {
        let key = 4 * (round * 37 % 400);
        assert_eq!(mine.get(&mut one, key).unwrap(), model.get(&key).copied());
        // Between the look-up and the change, another handle fills the leaf, or empties it and its
        // neighbours.
        for near in 0..12 {
            let key = (key + near).saturating_sub(near * 8 * (round % 2));
            if round % 3 == 0 {
                assert_eq!(yours.insert(&mut two, key, round).unwrap(), model.insert(key, round));
            } else {
                assert_eq!(yours.remove(&mut two, key).unwrap(), model.remove(&key));
            }
        }
        if round % 4 == 0 {
            assert_eq!(mine.remove(&mut one, key).unwrap(), model.remove(&key));
        } else {
            assert_eq!(mine.insert(&mut one, key, round).unwrap(), model.insert(key, round));
        }
    }
    check_all(&mut one, &mine, &model);
}

/// A second writer performs a whole operation before any access of the first. Both always find their own
/// keys, and nothing is lost.
#[test]
fn a_writer_between_any_two_accesses_of_another_loses_nothing() {
    const ROUNDS: u64 = 1_500;
    for entries in [2, 4, 14] {
        let rack = Rack::embedded_with(2, 64 << 20).unwrap();
        let (mut one, mut two) = (rack.client("writers").unwrap(), rack.client("writers").unwrap());
        let mut mine = BLinkTree::create_with(&mut one, Layout::Partitioned, entries).unwrap();
        let mut yours = BLinkTree::open(&mut two, mine.address(), Layout::Partitioned).unwrap();
        let mut chance = Rng::from_number(12_301 + entries as u64);
        // The first writer owns the even keys, the second the odd ones; they alternate in the leaves.
        let (mut model, mut other) = (BTreeMap::new(), BTreeMap::new());
        for round in 0..ROUNDS {
            let (key, remove) = (2 * u64::from(chance.below(120)), chance.chance(1, 2));
            let mut between = || {
                if chance.chance(2, 5) {
                    let key = 2 * u64::from(chance.below(120)) + 1;
                    match chance.below(5) {
                        0 | 1 => assert_eq!(yours.insert(&mut two, key, round)?, other.insert(key, round)),
                        2 | 3 => assert_eq!(yours.remove(&mut two, key)?, other.remove(&key)),
                        _ => assert_eq!(yours.get(&mut two, key)?, other.get(&key).copied()),
                    }
                }
                Ok(())
            };
            let mut memory = Hooked::new(&mut one, &mut between);
            if remove {
                assert_eq!(mine.remove(&mut memory, key).unwrap(), model.remove(&key));
            } else {
                assert_eq!(mine.insert(&mut memory, key, round).unwrap(), model.insert(key, round));
            }
            assert_eq!(mine.get(&mut memory, key).unwrap(), model.get(&key).copied());
        }
        model.append(&mut other);
        check_all(&mut one, &mine, &model);
    }
}

/// A writer that ends between any two of its accesses leaves a tree with everything else, which others can
/// use.
#[test]
fn a_writer_that_ends_anywhere_leaves_a_whole_tree() {
    for last in 0..900 {
        let rack = Rack::embedded_with(1, 16 << 20).unwrap();
        let (mut one, mut two) = (rack.client("writers").unwrap(), rack.client("writers").unwrap());
        let mut mine = BLinkTree::create_with(&mut one, Layout::Partitioned, 2).unwrap();
        let mut left = last;
        let mut before = || {
            left = i32::checked_sub(left, 1).filter(|left| *left >= 0).ok_or_else(ended)?;
            Ok(())
        };
        let mut memory = Hooked::new(&mut one, &mut before);
        // Splits of leaves and of inner nodes, then merges.
        let mut model = BTreeMap::new();
        let acts = (0..12_u64).map(|n| (n * 5 % 12, true)).chain((0..12).map(|n| (n * 7 % 12, false)));
        let mut open = None;
        for (key, insert) in acts {
            let done = match insert {
                true => mine.insert(&mut memory, key, key + 50),
                false => mine.remove(&mut memory, key),
            };
            if done.is_err() {
                open = Some(key);
                break;
            }
            if insert {
                model.insert(key, key + 50)
            } else {
                model.remove(&key)
            };
        }
        let mut yours = BLinkTree::open(&mut two, mine.address(), Layout::Partitioned).unwrap();
        // The outcome of the last change is unknown.
        if let Some(key) = open {
            match yours.get(&mut two, key).unwrap() {
                Some(value) => model.insert(key, value),
                None => model.remove(&key),
            };
        }
        check_all(&mut two, &yours, &model);
        for key in 0..24 {
            assert_eq!(yours.insert(&mut two, key, key).unwrap(), model.insert(key, key));
        }
        for key in 0..24 {
            assert_eq!(yours.remove(&mut two, key).unwrap(), model.remove(&key));
        }
        check_all(&mut two, &yours, &model);
        if open.is_none() {
            return;
        }
    }
    panic!("the acts have more accesses than were looked at");
}

/// A writer ends between any two accesses of a merge. Another handle, whose last leaf is the right neighbour,
/// changes a key that was the left leaf's. A look-up from the root finds the new value, not the copy in the
/// left node.
#[test]
fn keys_that_a_neighbour_takes_are_written_in_one_place() {
    for last in 0..60 {
        let rack = Rack::embedded_with(1, 16 << 20).unwrap();
        let mut clients = [0; 3].map(|_| rack.client("writers").unwrap());
        let [one, two, three] = &mut clients;
        let mut mine = BLinkTree::create_with(one, Layout::Partitioned, 4).unwrap();
        mine.load(one, (0..8_u32).map(|key| (key.into(), key.into())), 4).unwrap();
        for key in [4, 5, 0, 1] {
            assert_eq!(mine.remove(one, key).unwrap(), Some(key));
        }
        let (mut left, mut has_ended) = (last, false);
        let mut before = || {
            has_ended |= left == 0;
            left = i32::checked_sub(left, 1).filter(|left| *left >= 0).ok_or_else(ended)?;
            Ok(())
        };
        let removed = mine.remove(&mut Hooked::new(one, &mut before), 2);
        // An unfinished merge does not affect the result: the key is removed, and its value is returned.
        assert_eq!(removed.ok(), (last > 0).then_some(Some(2)), "the merge ended before access {last}");
        let mut yours = BLinkTree::open(two, mine.address(), Layout::Partitioned).unwrap();
        let theirs = BLinkTree::open(three, mine.address(), Layout::Partitioned).unwrap();
        assert_eq!(yours.get(two, 6).unwrap(), Some(6));
        assert_eq!(yours.insert(two, 3, 99).unwrap(), Some(3));
        assert_eq!(theirs.get(three, 3).unwrap(), Some(99), "the merge ended before access {last}");
        if !has_ended {
            return;
        }
    }
    panic!("a merge has more accesses than were looked at");
}

/// Fat-B+Tree II: look-ups begin at the deepest node in the switch and visit fewer nodes; the results are the
/// same.
#[test]
fn a_published_tree_is_entered_further_down() {
    let mut client = embedded(2);
    let mut tree = BLinkTree::create(&mut client, Layout::Scattered { granularity: 4096 }).unwrap();
    // 7 of 14 entries: 2,401 leaves below four levels of inner nodes.
    tree.load(&mut client, (0..7 * 2_401_u32).map(|n| (3 * u64::from(n), u64::from(n))), 7).unwrap();
    tree.set_policy(Policy::Offload);
    // Both memory nodes learn the program.
    (0..16_807).step_by(97).for_each(|n| _ = tree.get(&mut client, 3 * n).unwrap());
    let visits = |tree: &BLinkTree, client: &mut Client| {
        let before = client.tally();
        for n in (0..16_800).step_by(97) {
            assert_eq!(tree.get(client, 3 * n).unwrap(), Some(n));
            assert_eq!(tree.get(client, 3 * n + 1).unwrap(), None);
        }
        let after = client.tally();
        assert_eq!(after.requests - before.requests, 348, "one each");
        (after.iterations - before.iterations) / 348
    };
    assert_eq!(visits(&tree, &mut client), 5, "from the root");
    let mut epochs = Vec::new();
    for (ranges, sets, expected) in
        [(1, 0, 5), (7, 0, 4), (49, 0, 3), (343, 0, 2), (343, 1, 1), (600, 3, 1), (7, 3, 1)]
    {
        let section = tree.section(&mut client, Extent { ranges, sets, nodes: 4096 }).unwrap();
        epochs.push(publish(&mut client, &[section]).unwrap());
        assert_eq!(visits(&tree, &mut client), expected, "{ranges} ranges and {sets} sets");
    }
    assert!(epochs.is_sorted_by(|a, b| a < b), "{epochs:?}");
    withdraw(&mut client, tree.tree().root).unwrap();
    assert_eq!(visits(&tree, &mut client), 5, "from the root again");
    let section = tree.section(&mut client, Extent::default()).unwrap();
    publish(&mut client, &[section]).unwrap();
    // A scan begins there too: 6 leaves of 7 pairs, none above them.
    let before = client.tally().iterations;
    assert_eq!(tree.scan(&mut client, 3_000..3_126, 100).unwrap().len(), 42);
    assert_eq!(client.tally().iterations - before, 7);
}

/// The published index grows old: the tree splits and merges below it, and one request still finds each key.
#[test]
fn an_old_index_leads_to_every_key() {
    for entries in [2, 14] {
        let mut client = embedded(2);
        let mut tree = BLinkTree::create_with(&mut client, Layout::Partitioned, entries).unwrap();
        tree.load(&mut client, (0..600_u32).map(|n| (100 * u64::from(n), u64::from(n))), entries).unwrap();
        let section = tree.section(&mut client, Extent { ranges: 100, sets: 2, nodes: 100 }).unwrap();
        publish(&mut client, &[section]).unwrap();
        let mut model: BTreeMap<u64, u64> = (0..600).map(|n| (100 * n, n)).collect();
        let mut chance = Rng::from_number(12_306);
        let mut index_age = |client: &mut Client, tree: &mut BLinkTree, inserts: u32, rounds: u32| {
            for _ in 0..rounds {
                let key = 10 * u64::from(chance.below(6_000));
                if chance.chance(inserts, 4) {
                    assert_eq!(tree.insert(client, key, key).unwrap(), model.insert(key, key));
                } else {
                    assert_eq!(tree.remove(client, key).unwrap(), model.remove(&key));
                }
                let key = 10 * u64::from(chance.below(6_000));
                let before = client.tally().requests;
                assert_eq!(tree.get(client, key).unwrap(), model.get(&key).copied());
                assert_eq!(client.tally().requests - before, 1, "no look-up begins anew");
            }
            for (&key, &value) in &model {
                assert_eq!(tree.get(client, key).unwrap(), Some(value));
            }
            check_all(client, tree, &model);
        };
        // Both memory nodes learn the program.
        (0..60_000).step_by(100).for_each(|key| _ = tree.get(&mut client, key).unwrap());
        index_age(&mut client, &mut tree, 3, 3_000);
        index_age(&mut client, &mut tree, 1, 4_000);
    }
}

/// A scan in pieces finds each stable key once, in order, regardless of splits and merges between two pieces.
#[test]
fn a_cursor_goes_on_beside_splits_and_merges() {
    let mut client = embedded(2);
    let mut tree = BLinkTree::create_with(&mut client, Layout::Partitioned, 4).unwrap();
    let stays: Vec<(u64, u64)> = (0..300).map(|n| (10 * n, n)).chain([(u64::MAX, 7)]).collect();
    tree.load(&mut client, stays.iter().copied(), 4).unwrap();
    for piece in [1, 3, 7, 64, 1_000] {
        let mut cursor = Cursor::new(..);
        let (mut found, mut round) = (Vec::new(), 0);
        while !cursor.is_at_end() {
            let pairs = cursor.next(&tree, &mut client, piece).unwrap();
            found.extend(pairs.into_iter().filter(|(key, _)| key % 10 == 0 || *key == u64::MAX));
            // Keys before and after the cursor are inserted and removed.
            for key in (round % 3..3_000).step_by(29).filter(|key| key % 10 > 0) {
                match round % 2 {
                    0 => tree.insert(&mut client, key, 0).unwrap(),
                    _ => tree.remove(&mut client, key).unwrap(),
                };
            }
            round += 1;
        }
        assert_eq!(found, stays, "pieces of {piece}");
        assert_eq!(cursor.next(&tree, &mut client, piece).unwrap(), []);
    }
    let mut some = Cursor::new(15..=40);
    assert_eq!(some.next(&tree, &mut client, 0).unwrap(), []);
    assert!(!some.is_at_end());
    assert!(Cursor::new(5..5).is_at_end());
}

/// An extent beyond a switch's capacity is refused before anything is read or published.
#[test]
fn more_than_a_switch_takes_is_refused() {
    let mut client = embedded(1);
    let tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    let fits = Extent::default();
    for wrong in [
        Extent { ranges: 0, ..fits },
        Extent { ranges: 1_025, ..fits },
        Extent { sets: 9, ..fits },
        Extent { nodes: 4_097, ..fits },
    ] {
        assert!(matches!(tree.section(&mut client, wrong), Err(Error::Count { .. })), "{wrong:?}");
    }
    let section = tree.section(&mut client, fits).unwrap();
    let twice = [section.clone(), section];
    let error = publish(&mut client, &twice).unwrap_err();
    assert!(error.to_string().contains("two sections"), "{error}");
    assert!(error.remedy().contains("that of a tree is its root"), "{}", error.remedy());
}

/// Each domain publishes its own trees, and only they lead its traversals. A domain that withdraws or leaves
/// trees behind does not affect the other.
#[test]
fn domains_publish_beside_each_other() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let mut clients = ["one", "two"].map(|domain| rack.client(domain).unwrap());
    let mut trees: Vec<[BLinkTree; 2]> = Vec::new();
    for client in &mut clients {
        trees.push([0, 1].map(|_| {
            let mut tree = BLinkTree::create(client, Layout::Partitioned).unwrap();
            tree.load(client, (0..7 * 343_u32).map(|n| (u64::from(n), u64::from(n) + 1)), 7).unwrap();
            (0..2_401).step_by(97).for_each(|n| _ = tree.get(client, n).unwrap());
            tree
        }));
    }
    let visits = |clients: &mut [Client; 2]| -> Vec<u64> {
        let mut all = Vec::new();
        for (client, trees) in clients.iter_mut().zip(&trees) {
            for tree in trees {
                let before = client.tally().iterations;
                assert_eq!(tree.get(client, 1_000).unwrap(), Some(1_001));
                all.push(client.tally().iterations - before);
            }
        }
        all
    };
    assert_eq!(visits(&mut clients), [4; 4]);
    let mut epochs = Vec::new();
    for (of, tree, expected) in [(0, 0, [1, 4, 4, 4]), (1, 1, [1, 4, 4, 1]), (0, 1, [1, 1, 4, 1])] {
        let section = trees[of][tree].section(&mut clients[of], Extent::default()).unwrap();
        epochs.push(publish(&mut clients[of], &[section]).unwrap());
        assert_eq!(visits(&mut clients), expected);
    }
    assert!(epochs.is_sorted_by(|a, b| a < b), "{epochs:?}");
    withdraw(&mut clients[0], trees[0][0].tree().root).unwrap();
    assert_eq!(visits(&mut clients), [4, 1, 4, 1]);
    // Withdrawing an unpublished tree succeeds; another domain's tree stays published.
    withdraw(&mut clients[0], trees[1][1].tree().root).unwrap();
    assert_eq!(visits(&mut clients), [4, 1, 4, 1]);
    clients[0].clear_soft_state(vec![]).unwrap();
    assert_eq!(visits(&mut clients), [4, 4, 4, 1]);
    // A domain can publish a tree of another domain. The section leads only its publisher, whose access
    // rights stay the same.
    let section = trees[0][0].section(&mut clients[0], Extent::default()).unwrap();
    publish(&mut clients[1], &[section]).unwrap();
    assert_eq!(visits(&mut clients), [4, 4, 4, 1]);
}

/// The sections of all domains share the room of one image. The error of a refused domain names the domain
/// that holds the room.
#[test]
fn what_has_no_room_is_refused_and_leaves_the_rest() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let (mut one, mut two) = (rack.client("one").unwrap(), rack.client("two").unwrap());
    let section = |id, mib: usize| SoftSection { kind: 7, id, bytes: Base64(vec![1; mib << 20]) };
    one.load_soft_state(vec![section(1, 4)]).unwrap();
    two.load_soft_state(vec![section(1, 3)]).unwrap();
    let error = two.load_soft_state(vec![section(2, 1)]).unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::TableFull), "{error}");
    for what in ["room for one of 8388608", "have 4194304 bytes of sections, all others have 4194304"] {
        assert!(error.to_string().contains(what), "{error}");
    }
    one.clear_soft_state(vec![]).unwrap();
    two.load_soft_state(vec![section(2, 1)]).unwrap();
}

/// Opening other memory as a tree fails with its address.
#[test]
fn what_is_no_tree_is_refused() {
    let mut client = embedded(1);
    let vma = client.allocate(4096).unwrap();
    let error = BLinkTree::open(&mut client, vma.base, Layout::Partitioned).unwrap_err();
    assert!(matches!(error, Error::Broken { addr, .. } if addr == vma.base), "{error}");
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    let error = tree.load(&mut client, [(3, 1), (3, 2)].into_iter(), 14).unwrap_err();
    assert!(matches!(error, Error::Key { key: 3, .. }), "{error}");
    tree.insert(&mut client, 5, 6).unwrap();
    assert!(matches!(tree.load(&mut client, [(3, 1)].into_iter(), 14), Err(Error::Broken { .. })));
    // A stray write overwrites the root.
    client.write(VirtAddr(tree.tree().root.0), &[0xff; 256]).unwrap();
    assert!(matches!(tree.get(&mut client, 5), Err(Error::Broken { .. })));
    assert!(matches!(tree.insert(&mut client, 5, 7), Err(Error::Broken { .. })));
    assert!(matches!(tree.scan(&mut client, .., 9), Err(Error::Broken { .. })));
}
