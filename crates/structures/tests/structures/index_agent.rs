//! An agent adapts the index of a tree to its look-ups: its selections are compared with the best possible
//! ones, by counts of visits.

use farmem_client::{Client, Error, Policy, Rack, Rng, VirtAddr};
use farmem_index::blink::{NODE_LEN, Node};
use farmem_index::{
    Child, Range, SetNode, TreeNode, TreeSection, TreeView, accesses_left, fat_root, select_layers,
};
use farmem_structures::blink_tree::{Extent, IndexAgent, IndexWatch, publish, withdraw};
use farmem_structures::{BLinkTree, Layout};
use std::collections::{BTreeMap, BTreeSet};

/// Keys per leaf and children per inner node.
const FILL: usize = 7;
/// Look-ups per epoch.
const LOOK_UPS: u32 = 10_000;
/// Bound on the epochs until a selection follows the look-ups.
const EPOCHS_MAX: u32 = 10;
/// The saving required then, relative to the best selection.
const SHARE: f64 = 0.95;

/// Creates a tree of keys 0, 2, 4 and so on, each with half of itself as its value.
fn tree_of(client: &mut Client, keys: u32) -> BLinkTree {
    let mut tree = BLinkTree::create(client, Layout::Partitioned).unwrap();
    tree.load(client, (0..keys).map(|n| (2 * u64::from(n), u64::from(n))), FILL).unwrap();
    tree.set_policy(Policy::Offload);
    // The memory nodes learn the program.
    (0..keys).step_by(97).for_each(|n| _ = tree.get(client, 2 * u64::from(n)).unwrap());
    tree
}

/// Models the same tree as a plain list of nodes, with their visit counts.
fn model(keys: u32, accesses: &[u64]) -> TreeView {
    let mut nodes = BTreeMap::new();
    let mut next = 0;
    // For each node of a level: its first key, its address, its accesses.
    let leaves = (0..keys as usize).step_by(FILL);
    let mut level: Vec<(u64, VirtAddr, u64)> = leaves
        .map(|at| {
            next += 256;
            let end = (at + FILL).min(keys as usize);
            (2 * at as u64, VirtAddr(next), accesses[at..end].iter().sum())
        })
        .collect();
    let mut height = 0;
    while level.len() > 1 {
        height += 1;
        level = level
            .chunks(FILL)
            .map(|below| {
                next += 256;
                let accesses = below.iter().map(|child| child.2).sum();
                let pivots = below[1..].iter().map(|child| child.0).collect();
                let children = below.iter().map(|child| child.1).collect();
                nodes.insert(VirtAddr(next), TreeNode { level: height, pivots, children, accesses });
                (below[0].0, VirtAddr(next), accesses)
            })
            .collect();
    }
    TreeView::new(level[0].1, nodes).unwrap()
}

/// The effect of a selection: the share of all visits of inner nodes that it saves, and the share of look-ups
/// that begin at their leaf.
#[derive(Clone, Copy, Debug)]
struct Found {
    saved: f64,
    at_leaf: f64,
}

/// Computes the effect of the best selection.
fn oracle(keys: u32, accesses: &[u64], extent: Extent) -> Found {
    let view = model(keys, accesses);
    let ranges = fat_root(&view, extent.ranges);
    let sets = select_layers(&view, &ranges, extent.sets, extent.nodes);
    let saved = |from: u8| {
        let counted = |(addr, node): (VirtAddr, &TreeNode)| {
            let accesses = if node.level <= from { node.accesses } else { 0 };
            (addr, TreeNode { accesses, ..node.clone() })
        };
        let view = TreeView::new(view.root().unwrap(), view.nodes().map(counted).collect()).unwrap();
        let all: u64 = view.nodes().map(|(_, node)| node.accesses).sum();
        1.0 - accesses_left(&view, &ranges, &sets) as f64 / all as f64
    };
    Found { saved: saved(u8::MAX), at_leaf: saved(1) }
}

/// The distribution of look-ups: three in four from a hundred clusters of leaves, the first ones most often,
/// and others from anywhere.
struct Popularity {
    keys: u32,
    clusters: Vec<u32>,
}

impl Popularity {
    fn new(keys: u32, rng: &mut Rng) -> Self {
        Self { keys, clusters: (0..100).map(|_| rng.below(keys / 20) * 20).collect() }
    }

    /// Draws the number of a key.
    fn draw(&self, rng: &mut Rng) -> u32 {
        if rng.chance(1, 4) {
            return rng.below(self.keys);
        }
        let within = 1 + rng.below(100);
        let cluster = self.clusters[rng.below(within) as usize];
        (cluster + rng.below(20)).min(self.keys - 1)
    }

    /// Counts the look-ups of each key over many epochs.
    fn accesses(&self, rng: &mut Rng) -> Vec<u64> {
        let mut accesses = vec![0; self.keys as usize];
        (0..40 * LOOK_UPS).for_each(|_| accesses[self.draw(rng) as usize] += 1);
        accesses
    }
}

/// Runs an epoch of look-ups.
fn epoch(
    client: &mut Client,
    tree: &BLinkTree,
    popularity: &Popularity,
    levels: u64,
    rng: &mut Rng,
) -> Found {
    let before = client.tally();
    let mut at_leaf = 0;
    for _ in 0..LOOK_UPS {
        let n = popularity.draw(rng);
        let before = client.tally().iterations;
        assert_eq!(tree.get(client, 2 * u64::from(n)).unwrap(), Some(n.into()));
        at_leaf += u32::from(client.tally().iterations - before == 1);
    }
    let after = client.tally();
    let look_ups = u64::from(LOOK_UPS);
    assert_eq!(after.requests - before.requests, look_ups, "one request each");
    let visits = after.iterations - before.iterations - look_ups;
    let saved = 1.0 - visits as f64 / (levels * look_ups) as f64;
    Found { saved, at_leaf: f64::from(at_leaf) / f64::from(LOOK_UPS) }
}

/// The popular keys change at once. Within ten epochs the tables save 95 % of the visits that the best
/// selection for the new ones does, and 95 % as many look-ups begin at their leaf. From then on both hold.
/// The tables have fewer ranges and nodes than the tree has on any lower level, so a wrong selection shows.
#[test]
fn a_selection_comes_after_the_look_ups() {
    const KEYS: u32 = 7 * 2_401;
    const LEVELS: u64 = 4;
    for (seed, extent) in [
        (1, Extent { ranges: 30, sets: 2, nodes: 40 }),
        (2, Extent { ranges: 30, sets: 3, nodes: 30 }),
        (3, Extent { ranges: 8, sets: 3, nodes: 50 }),
    ] {
        let mut rng = Rng::from_number(seed);
        let mut client = Rack::embedded_with(2, 64 << 20).unwrap().client("tree").unwrap();
        let tree = tree_of(&mut client, KEYS);
        let address = tree.address();
        let mut agent =
            IndexAgent::new(BLinkTree::open(&mut client, address, Layout::Partitioned).unwrap(), extent)
                .unwrap();
        assert!(agent.step(&mut client).unwrap().published, "the first step publishes");
        for turn in 0..3 {
            let popularity = Popularity::new(KEYS, &mut rng);
            let best = oracle(KEYS, &popularity.accesses(&mut rng), extent);
            let shares: Vec<Found> = (0..EPOCHS_MAX + 5)
                .map(|_| {
                    let found = epoch(&mut client, &tree, &popularity, LEVELS, &mut rng);
                    let stepped = agent.step(&mut client).unwrap();
                    assert_eq!(stepped.hits.queries, u64::from(LOOK_UPS), "each look-up is counted once");
                    Found { saved: found.saved / best.saved, at_leaf: found.at_leaf / best.at_leaf }
                })
                .collect();
            eprintln!("extent {extent:?}, turn {turn}: best {best:.3?}, of it {shares:.3?}");
            assert!(turn == 0 || shares[0].at_leaf < SHARE, "the look-ups are others: {shares:.3?}");
            let settled = &shares[EPOCHS_MAX as usize..];
            assert!(
                settled.iter().all(|share| share.saved >= SHARE),
                "seed {seed}, turn {turn}: {shares:.3?}"
            );
            // With few look-ups, chance makes a difference of some hundredths per epoch.
            let at_leaf = settled.iter().map(|share| share.at_leaf).sum::<f64>() / settled.len() as f64;
            assert!(at_leaf >= SHARE, "seed {seed}, turn {turn}: {at_leaf:.3} of {shares:.3?}");
        }
        agent.withdraw(&mut client).unwrap();
        let before = client.tally().iterations;
        tree.get(&mut client, 0).unwrap();
        assert_eq!(client.tally().iterations - before, LEVELS + 1, "from the root again");
    }
}

/// With stable look-ups, most epochs after the first few publish nothing.
#[test]
fn what_saves_little_is_not_published() {
    const KEYS: u32 = 7 * 343;
    let mut rng = Rng::from_number(5);
    let mut client = Rack::embedded_with(1, 64 << 20).unwrap().client("tree").unwrap();
    let tree = tree_of(&mut client, KEYS);
    let opened = BLinkTree::open(&mut client, tree.address(), Layout::Partitioned).unwrap();
    let mut agent = IndexAgent::new(opened, Extent { ranges: 20, sets: 1, nodes: 20 }).unwrap();
    let popularity = Popularity::new(KEYS, &mut rng);
    let published: Vec<bool> = (0..30)
        .map(|_| {
            epoch(&mut client, &tree, &popularity, 3, &mut rng);
            agent.step(&mut client).unwrap().published
        })
        .collect();
    assert!(published[0], "{published:?}");
    // Chance now and then makes one of several equally visited nodes look better.
    let again = published[10..].iter().filter(|&&published| published).count();
    assert!(again <= 7, "{published:?}");
    // An epoch without look-ups gives no information.
    let before = agent.section().cloned();
    for _ in 0..5 {
        let stepped = agent.step(&mut client).unwrap();
        assert!(!stepped.published && stepped.hits.queries == 0, "{stepped:?}");
    }
    assert_eq!(agent.section().cloned(), before);
}

/// Sections that other publishers withdrew or replaced are published again; so is a grown tree.
#[test]
fn what_is_gone_is_published_again() {
    let mut client = Rack::embedded_with(1, 64 << 20).unwrap().client("tree").unwrap();
    let mut tree = tree_of(&mut client, 7 * 49);
    let opened = BLinkTree::open(&mut client, tree.address(), Layout::Partitioned).unwrap();
    let mut agent = IndexAgent::new(opened, Extent::default()).unwrap();
    let first = agent.step(&mut client).unwrap();
    assert!(first.published && first.ranges == 49, "{first:?}");
    assert!(!agent.step(&mut client).unwrap().published);
    withdraw(&mut client, tree.tree().root).unwrap();
    let second = agent.step(&mut client).unwrap();
    assert!(second.published && second.epoch > first.epoch, "{second:?}");
    let other = tree.section(&mut client, Extent { ranges: 7, sets: 0, nodes: 0 }).unwrap();
    publish(&mut client, &[other]).unwrap();
    assert!(agent.step(&mut client).unwrap().published);
    assert!(!agent.step(&mut client).unwrap().published);
    // New keys in one place: look-ups go there, and step to the right where the switch's section is old.
    for n in 0..3_000 {
        tree.insert(&mut client, 10_001 + 2 * n, n).unwrap();
    }
    let mut last = None;
    for _ in 0..10 {
        for n in 0..1_000 {
            assert_eq!(tree.get(&mut client, 10_001 + 6 * n).unwrap(), Some(3 * n));
        }
        last = Some(agent.step(&mut client).unwrap());
    }
    assert!(last.is_some_and(|last| last.ranges > 49), "{:?}", agent.section().map(|s| s.ranges.len()));
    let before = client.tally().iterations;
    for n in 0..1_000 {
        assert_eq!(tree.get(&mut client, 10_001 + 6 * n).unwrap(), Some(3 * n));
    }
    assert_eq!(client.tally().iterations - before, 1_000, "each begins at its leaf");
}

/// A watch sees the agent's published state and the best possible one, and changes nothing.
#[test]
fn a_watch_sees_what_stands() {
    const KEYS: u32 = 7 * 343;
    let mut rng = Rng::from_number(6);
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let (mut client, mut other) = (rack.client("tree").unwrap(), rack.client("tree").unwrap());
    let tree = tree_of(&mut client, KEYS);
    let extent = Extent { ranges: 20, sets: 2, nodes: 20 };
    let open = |client: &mut Client| BLinkTree::open(client, tree.address(), Layout::Partitioned).unwrap();
    let mut agent = IndexAgent::new(open(&mut client), extent).unwrap();
    let mut watch = IndexWatch::new(open(&mut other), extent).unwrap();
    let error = watch.look(&mut other).unwrap_err();
    assert!(error.to_string().contains("published no section"), "{error}");
    let published = agent.step(&mut client).unwrap();
    let popularity = Popularity::new(KEYS, &mut rng);
    epoch(&mut client, &tree, &popularity, 3, &mut rng);
    let seen = watch.look(&mut other).unwrap();
    assert_eq!((seen.epoch, seen.published, seen.hits.queries), (published.epoch, false, LOOK_UPS.into()));
    assert_eq!((seen.ranges, &seen.sets), (published.ranges, &published.sets));
    assert!(seen.saved_ppm <= seen.best_ppm && seen.best_ppm < seen.visits_ppm, "{seen:?}");
    assert_eq!(seen.visits_ppm, 3_000_000, "three levels of inner nodes");
    assert_eq!(watch.look(&mut other).unwrap().hits.queries, 0, "since the look before");
    // Another domain sees nothing of the tree.
    let mut stranger = rack.client("stranger").unwrap();
    assert!(matches!(watch.look(&mut stranger), Err(Error::Refused { .. })));
    withdraw(&mut client, tree.tree().root).unwrap();
    assert!(watch.look(&mut other).is_err());
}

/// 600 ranges and three sets of 3,600 nodes of 16 children (Fat-B+Tree V-B) are published, and each of their
/// counters is read.
#[test]
fn the_papers_index_is_published_and_counted() {
    let mut client = Rack::embedded_with(1, 64 << 20).unwrap().client("tree").unwrap();
    let tree = tree_of(&mut client, 7);
    let root = tree.tree().root;
    let node = |n: u64| VirtAddr(root.0 + 256 * n);
    let leaf = |level| Child { addr: root, level };
    let first = |n: u64| n << 54;
    let ranges = (0..600).map(|n| Range {
        first: first(n),
        last: if n == 599 { u64::MAX } else { first(n + 1) - 1 },
        child: Child { addr: if n == 0 { root } else { node(n) }, level: 3 },
    });
    let set = |set: u64| -> Vec<SetNode> {
        let addr = |n| node(1 + 10_000 * set + n);
        (0..3_600)
            .map(|n| SetNode { addr: addr(n), pivots: (1..16).collect(), children: vec![leaf(0); 16] })
            .collect()
    };
    let programs = tree.section(&mut client, Extent::default()).unwrap().programs;
    let section = TreeSection { root, programs, ranges: ranges.collect(), sets: (1..4).map(set).collect() };
    let epoch = publish(&mut client, std::slice::from_ref(&section)).unwrap();
    for n in 0..7 {
        assert_eq!(tree.get(&mut client, 2 * n).unwrap(), Some(n));
    }
    let name = farmem_client::api::SoftName { kind: farmem_index::SECTION_KIND, id: root.0 };
    let counted = client.soft_counts(None, name).unwrap();
    assert_eq!((counted.epoch, counted.counts.0.len()), (epoch, 4 * (600 + 3 * 3_600 * 16)));
    assert_eq!(counted.counts.0[..8], [0, 0, 0, 7, 0, 0, 0, 0]);
    assert!(counted.counts.0[8..].iter().all(|&byte| byte == 0));
    assert_eq!(client.soft_section(None, name).unwrap(), section.emit());
}

/// Counts the children that two inner nodes lead to.
fn with_two_parents(client: &mut Client, tree: &BLinkTree) -> usize {
    let (mut level, mut seen, mut twice) = (vec![tree.tree().root], BTreeSet::new(), 0);
    while let Some(at) = level.pop() {
        let mut bytes = [0; NODE_LEN];
        client.read(at, &mut bytes).unwrap();
        let node = Node::parse(&bytes).unwrap();
        for (_, child) in node.entries.iter().filter(|_| node.level > 0) {
            twice += usize::from(!seen.insert(*child));
            level.extend((node.level > 1).then_some(VirtAddr(*child)));
        }
    }
    twice
}

/// A sparse leaf, the last of its parent, is merged into the first leaf of the next parent, and then both
/// parents lead to that leaf. Such a tree is published like any other, and every key is found through the
/// published section.
#[test]
fn a_child_of_two_parents_is_published() {
    let mut client = Rack::embedded_with(2, 64 << 20).unwrap().client("merged").unwrap();
    let mut rng = Rng::from_number(71);
    for entries in [4, 8] {
        let mut tree = BLinkTree::create_with(&mut client, Layout::Partitioned, entries).unwrap();
        let mut keys: Vec<u64> = (0..600).collect();
        tree.load(&mut client, (0..600_u32).map(|n| (n.into(), n.into())), entries).unwrap();
        tree.set_policy(Policy::Offload);
        let mut most = 0;
        while keys.len() > 20 {
            for _ in 0..10 {
                let key = keys.swap_remove(rng.below(u32::try_from(keys.len()).unwrap()) as usize);
                assert_eq!(tree.remove(&mut client, key).unwrap(), Some(key));
            }
            most = most.max(with_two_parents(&mut client, &tree));
            let section = tree.section(&mut client, Extent { ranges: 40, sets: 2, nodes: 40 }).unwrap();
            publish(&mut client, &[section]).unwrap();
            keys.iter().for_each(|key| assert_eq!(tree.get(&mut client, *key).unwrap(), Some(*key)));
        }
        assert!(most > 0, "no merge went across a border of parents");
        withdraw(&mut client, tree.tree().root).unwrap();
    }
}
