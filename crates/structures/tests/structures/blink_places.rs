//! Shrinking B-link trees: places of merged nodes are reused, and the tree becomes lower.

use farmem_client::{Client, NodeId, Policy, Rack, VirtAddr};
use farmem_index::blink::{ASIDE_MAX, NODE_LEN, Node, State};
use farmem_index::{Child, Range, TreeSection};
use farmem_machine::Rng;
use farmem_structures::blink_tree::{Extent, KEPT_MAX, publish};
use farmem_structures::{BLinkTree, Layout};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

use farmem_testkit::{Hooked, ended};

/// Nodes in the first piece of memory that a handle allocates.
const PIECE: u64 = (64 << 10) / NODE_LEN as u64;

fn embedded(nodes: u16) -> Client {
    Rack::embedded_with(nodes, 64 << 20).unwrap().client("places").unwrap()
}

/// Returns the places of the tree's nodes, level by level from the root down, read one by one. Asserts that
/// each level has each key once and that all nodes are live.
fn levels(client: &mut Client, tree: &BLinkTree) -> Vec<Vec<VirtAddr>> {
    let mut read = |at: VirtAddr| {
        let mut bytes = [0; NODE_LEN];
        client.read(at, &mut bytes).unwrap();
        let node = Node::parse(&bytes).unwrap();
        assert_eq!((node.state, node.tag), (State::Live, tree.tree().tag), "{at:?}");
        node
    };
    let mut levels = Vec::new();
    let mut leftmost = Some(tree.tree().root);
    while let Some(mut at) = leftmost.take() {
        let (mut level, mut next) = (Vec::new(), 0);
        loop {
            let node = read(at);
            assert_eq!(node.first, next);
            level.push(at);
            if node.level > 0 {
                leftmost = leftmost.or(Some(VirtAddr(node.entries[0].1)));
            }
            let Some(behind) = node.last.checked_add(1) else { break };
            (at, next) = (node.right, behind);
        }
        levels.push(level);
    }
    levels
}

/// Returns the largest node counts of the lower levels of a tree with this many keys, leaves first, with
/// `entries` per node. One of two neighbours has more than a quarter of its entries, and an inner node has at
/// least one. Levels that may have few nodes are left out.
fn levels_max(keys: usize, entries: usize) -> Vec<usize> {
    let mut most = vec![2 * keys / (entries / 4 + 1) + 2];
    while entries >= 4 && most.last().is_some_and(|last| *last > 6) {
        most.push(2 * most.last().unwrap() / (entries / 4 + 2) + 2);
    }
    most
}

/// All keys are inserted and removed a hundred times: from the second round on no place is allocated.
#[test]
fn places_after_a_hundred_rounds_are_those_of_one() {
    const KEYS: u64 = 300;
    for nodes in [1, 3] {
        let mut client = embedded(nodes);
        let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
        let mut made = Vec::new();
        for round in 0..100 {
            for key in 0..KEYS {
                assert_eq!(tree.insert(&mut client, key, round).unwrap(), None);
            }
            // In ascending order, in descending order, and mixed.
            for n in 0..KEYS {
                let key = [n, KEYS - 1 - n, n * 37 % KEYS][usize::try_from(round % 3).unwrap()];
                assert_eq!(tree.remove(&mut client, key).unwrap(), Some(round));
            }
            assert_eq!(tree.height(&mut client).unwrap(), 1, "round {round}");
            made.push(tree.places().made);
        }
        assert!(made[0] > KEYS / 14, "{made:?}");
        assert_eq!(made[99], made[0], "{made:?}");
        assert!(tree.places().again > 99 * KEYS / 14);
    }
}

/// One program inserts at the end, another removes at the beginning: free places pass from one to the other
/// through the tree.
#[test]
fn places_go_from_who_removes_to_who_inserts() {
    const WINDOW: u64 = 300;
    for layout in [Layout::Partitioned, Layout::Scattered { granularity: 4096 }] {
        let rack = Rack::embedded_with(2, 64 << 20).unwrap();
        let (mut one, mut two) = (rack.client("places").unwrap(), rack.client("places").unwrap());
        let mut inserts = BLinkTree::create_with(&mut one, layout, 4).unwrap();
        let mut removes = BLinkTree::open(&mut two, inserts.address(), layout).unwrap();
        for key in 0..20 * WINDOW {
            assert_eq!(inserts.insert(&mut one, key, key).unwrap(), None);
            if let Some(old) = key.checked_sub(WINDOW) {
                assert_eq!(removes.remove(&mut two, old).unwrap(), Some(old));
            }
        }
        let (one_has, two_has) = (inserts.places(), removes.places());
        // Leaves of two keys, half as many nodes above them, one or two initial pieces, and the other
        // handle's free places.
        let most = WINDOW + 2 * PIECE + KEPT_MAX as u64;
        assert!(one_has.made <= most, "{one_has:?} of at most {most}");
        assert!(one_has.again > 10 * WINDOW && two_has.kept <= KEPT_MAX + 2, "{one_has:?} {two_has:?}");
    }
}

/// Ten keys of a five-level tree remain, after removals in different orders: few nodes and levels remain. An
/// index from before leads to every key.
#[test]
fn a_tree_of_ten_keys_is_low_whatever_it_was() {
    const KEYS: u32 = 14 * 600;
    for order in 0..3_u32 {
        let mut client = embedded(1);
        let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
        tree.load(
            &mut client,
            (0..KEYS).map(|n| (u64::from(n), u64::from(n) + 1)),
            14 - 4 * (order as usize),
        )
        .unwrap();
        let before = tree.height(&mut client).unwrap();
        let section = tree.section(&mut client, Extent::default()).unwrap();
        publish(&mut client, &[section]).unwrap();
        for n in 0..KEYS {
            let n = [n, KEYS - 1 - n, n * 4_799 % KEYS][order as usize];
            if n % (KEYS / 10) != 7 {
                assert_eq!(tree.remove(&mut client, n.into()).unwrap(), Some(u64::from(n) + 1));
            }
        }
        let left = levels(&mut client, &tree);
        let counts: Vec<usize> = left.iter().rev().map(Vec::len).collect();
        let most = levels_max(10, 14);
        assert!(
            before >= 4 && counts.len() <= most.len() + 1,
            "{counts:?} of {most:?}, {before} levels before"
        );
        assert!(counts.iter().zip(&most).all(|(nodes, most)| nodes <= most), "{counts:?} of {most:?}");
        assert_eq!(tree.height(&mut client).unwrap() as usize, counts.len());
        for n in 0..KEYS {
            let expected = (n % (KEYS / 10) == 7).then(|| u64::from(n) + 1);
            assert_eq!(tree.get(&mut client, n.into()).unwrap(), expected);
        }
        // The tree's places are reused for other keys, and the index is older than all of them.
        let made = tree.places().made;
        let new: BTreeSet<u64> = (0..u64::from(KEYS) / 3).map(|n| 3 * n + u64::from(KEYS) / 2).collect();
        for &key in &new {
            tree.insert(&mut client, key, key + 1).unwrap();
        }
        assert_eq!(tree.places().made, made, "there were more places than that");
        for key in 0..2 * KEYS {
            let is_old = key < KEYS && key % (KEYS / 10) == 7;
            let expected = (is_old || new.contains(&key.into())).then(|| u64::from(key) + 1);
            let before = client.tally().requests;
            assert_eq!(tree.get(&mut client, key.into()).unwrap(), expected);
            assert_eq!(client.tally().requests - before, 1, "no look-up begins anew at the host");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Trees grow and shrink in waves through two handles. They match a `BTreeMap`, have no more nodes than
    /// their keys need, and no place holds two nodes.
    #[test]
    fn a_tree_in_waves_is_a_map_of_few_nodes(
        entries in 2..=14_usize,
        scattered: bool,
        waves in vec((1..240_u64, 0..4_u64, any::<u32>()), 1..7),
    ) {
        let layout = if scattered { Layout::Scattered { granularity: 4096 } } else { Layout::Partitioned };
        let rack = Rack::embedded_with(2, 32 << 20).unwrap();
        let mut clients = [rack.client("places").unwrap(), rack.client("places").unwrap()];
        let one = BLinkTree::create_with(&mut clients[0], layout, entries).unwrap();
        let two = BLinkTree::open(&mut clients[1], one.address(), layout).unwrap();
        let mut trees = [one, two];
        let mut model = BTreeMap::new();
        let mut peak = 0;
        for (grows, keeps, seed) in waves {
            let mut chance = Rng::from_number(seed.into());
            for n in 0..grows {
                let (by, key) = (usize::from(chance.chance(1, 2)), u64::from(chance.below(1_000)));
                prop_assert_eq!(trees[by].insert(&mut clients[by], key, n).unwrap(), model.insert(key, n));
            }
            peak = peak.max(model.len());
            let mut keys: Vec<u64> = model.keys().copied().collect();
            if seed % 3 == 0 { keys.reverse() }
            for key in keys {
                if seed % 3 == 1 || u64::from(chance.below(12)) >= keeps {
                    let by = usize::from(chance.chance(1, 2));
                    prop_assert_eq!(trees[by].remove(&mut clients[by], key).unwrap(), model.remove(&key));
                }
            }
            let all: Vec<(u64, u64)> = model.iter().map(|(&key, &value)| (key, value)).collect();
            prop_assert_eq!(trees[0].scan(&mut clients[0], .., usize::MAX).unwrap(), all);
            let left = levels(&mut clients[0], &trees[0]);
            let counts: Vec<usize> = left.iter().rev().map(Vec::len).collect();
            let most = levels_max(model.len(), entries);
            prop_assert!(counts.iter().zip(&most).all(|(nodes, most)| nodes <= most), "{:?} of {:?}, {} entries", counts, most, entries);
            let places: BTreeSet<VirtAddr> = left.iter().flatten().copied().collect();
            prop_assert_eq!(places.len(), counts.iter().sum::<usize>(), "no place is two nodes");
        }
    }
}

/// Nodes of two entries make a tree a level higher with nearly every ascending key. A tree of maximum height
/// refuses further keys with an error and keeps all its keys.
#[test]
fn a_tree_that_would_be_too_high_says_so() {
    let mut client = embedded(1);
    let mut tree = BLinkTree::create_with(&mut client, Layout::Partitioned, 2).unwrap();
    let taken = (0..400).find(|key| match tree.insert(&mut client, *key, key + 1) {
        Ok(old) => old.is_some(),
        Err(error) => {
            assert!(error.to_string().contains("as high as nodes can tell"), "{error}");
            true
        }
    });
    let taken = taken.expect("a tree of two entries a node becomes too high");
    assert_eq!(tree.height(&mut client).unwrap(), 32);
    for key in 0..taken {
        assert_eq!(tree.get(&mut client, key).unwrap(), Some(key + 1));
    }
}

/// A program that ends at any access of a merge, a split or a handover of places leaves a usable tree, and no
/// place holds two nodes.
#[test]
fn a_writer_that_ends_anywhere_leaves_no_place_twice() {
    let mut ends = 0;
    for last in (0..6_000).step_by(43) {
        let rack = Rack::embedded_with(1, 16 << 20).unwrap();
        let (mut one, mut two) = (rack.client("writers").unwrap(), rack.client("writers").unwrap());
        let mut mine = BLinkTree::create_with(&mut one, Layout::Partitioned, 4).unwrap();
        let mut yours = BLinkTree::open(&mut two, mine.address(), Layout::Partitioned).unwrap();
        let mut left = last;
        let mut before = || {
            left = i32::checked_sub(left, 1).filter(|left| *left >= 0).ok_or_else(ended)?;
            Ok(())
        };
        let mut memory = Hooked::new(&mut one, &mut before);
        // More places become free than a handle keeps.
        let acts = (0..90_u64).map(|key| (key, true)).chain((0..90).map(|key| (key, false)));
        let ended = acts.clone().any(|(key, insert)| {
            let done =
                if insert { mine.insert(&mut memory, key, key) } else { mine.remove(&mut memory, key) };
            done.is_err()
        });
        let mut model: BTreeMap<u64, u64> =
            yours.scan(&mut two, .., usize::MAX).unwrap().into_iter().collect();
        for (key, insert) in acts {
            let key = (key * 31 + 17) % 97;
            match insert {
                true => assert_eq!(yours.insert(&mut two, key, 1).unwrap(), model.insert(key, 1), "{last}"),
                false => assert_eq!(yours.remove(&mut two, key).unwrap(), model.remove(&key), "{last}"),
            }
        }
        let rest: Vec<(u64, u64)> = model.into_iter().collect();
        assert_eq!(yours.scan(&mut two, .., usize::MAX).unwrap(), rest);
        for (key, value) in rest {
            assert_eq!(yours.remove(&mut two, key).unwrap(), Some(value));
        }
        ends += u32::from(ended);
        if !ended {
            break;
        }
    }
    assert!(ends > 30, "{ends} ends");
}

/// A switch leads keys at the end of a tree to a place that is now reused for the first leaf, two thousand
/// leaves to the left. A traversal that arrives there takes a few steps to the right and restarts at the
/// root. It does not walk through the whole tree, for any operation.
#[test]
fn a_place_far_to_the_left_is_left_soon() {
    const KEYS: u64 = 7 * 2_401;
    let mut client = embedded(1);
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    tree.load(&mut client, (0..u32::try_from(KEYS).unwrap()).map(|n| (2 * u64::from(n), u64::from(n))), 7)
        .unwrap();
    let levels = levels(&mut client, &tree);
    let height = levels.len() as u64;
    let leaf = *levels.last().unwrap().first().unwrap();
    // The tables from when the tree began there.
    let range = Range { first: 0, last: u64::MAX, child: Child { addr: leaf, level: 0 } };
    let section = tree.section(&mut client, Extent::default()).unwrap();
    publish(&mut client, &[TreeSection { ranges: vec![range], sets: Vec::new(), ..section }]).unwrap();
    tree.set_policy(Policy::Offload);
    let last = KEYS - 1;
    let mut visits = |what: &mut dyn FnMut(&mut Client)| {
        let before = client.tally().iterations;
        what(&mut client);
        client.tally().iterations - before
    };
    assert_eq!(visits(&mut |client| assert_eq!(tree.get(client, 6).unwrap(), Some(3))), 1, "where it leads");
    // The leaf, the steps, and the descent from the root.
    let bound = 1 + u64::from(ASIDE_MAX) + height;
    assert_eq!(visits(&mut |client| assert_eq!(tree.get(client, 2 * last).unwrap(), Some(last))), bound);
    let range = 2 * last - 20..;
    let scanned = visits(&mut |client| assert_eq!(tree.scan(client, range.clone(), 100).unwrap().len(), 11));
    assert!(scanned <= bound + 2, "{scanned} visits");
    // As many steps at the host, over keyed READs, and with a handle's hint.
    let over = client.open_through(NodeId(1), Some(tree.tree().root)).unwrap();
    let before = client.packets().0;
    assert_eq!(tree.get_through(&mut client, over, 2 * last).unwrap(), Some(last));
    assert_eq!(client.packets().0 - before, bound, "a READ each");
}
