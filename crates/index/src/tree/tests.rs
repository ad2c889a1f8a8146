//! Valid and invalid trees.

use super::*;
use crate::{RangeTables, accesses_left, fat_root, select_layers};
use proptest::collection::vec as vec_of;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use std::borrow::ToOwned as _;
use std::collections::BTreeSet;

fn node(level: u8, pivots: &[u64], children: &[u64]) -> TreeNode {
    TreeNode {
        level,
        pivots: pivots.to_vec(),
        children: children.iter().map(|&child| VirtAddr(child)).collect(),
        accesses: 1,
    }
}

fn view(nodes: &[(u64, TreeNode)]) -> Result<TreeView, TreeError> {
    TreeView::new(VirtAddr(1), nodes.iter().map(|(addr, node)| (VirtAddr(*addr), node.clone())).collect())
}

#[test]
fn a_tree_says_which_keys_lead_where() {
    let view = view(&[
        (1, node(2, &[10], &[2, 3])),
        (2, node(1, &[4, 7], &[20, 21, 22])),
        (3, node(1, &[u64::MAX], &[30, 31])),
    ])
    .unwrap();
    let spans: Vec<(u64, u64, u64, u8)> = [1, 2, 3]
        .iter()
        .flat_map(|&addr| view.ranges_below(VirtAddr(addr)))
        .map(|range| (range.first, range.last, range.child.addr.0, range.child.level))
        .collect();
    let end = u64::MAX;
    assert_eq!(
        spans,
        [
            (0, 9, 2, 1),
            (10, end, 3, 1),
            (0, 3, 20, 0),
            (4, 6, 21, 0),
            (7, 9, 22, 0),
            (10, end - 1, 30, 0),
            (end, end, 31, 0)
        ]
    );
    assert_eq!((view.len(), view.is_empty(), view.root()), (3, false, Some(VirtAddr(1))));
    assert!(view.ranges_below(VirtAddr(20)).is_empty());
}

#[test]
fn what_is_no_tree_is_refused() {
    let (one, two, three) = (VirtAddr(1), VirtAddr(2), VirtAddr(3));
    let full: Vec<u64> = (1..=17).collect();
    let cases = [
        (vec![(2, node(0, &[], &[]))], TreeError::NoRoot { addr: one }),
        (vec![(1, node(0, &[], &[2]))], TreeError::Leaf { addr: one }),
        (vec![(1, node(0, &[1], &[]))], TreeError::Leaf { addr: one }),
        (vec![(1, node(1, &[], &[0]))], TreeError::Dangling { addr: one, child: VirtAddr::NULL }),
        (vec![(1, node(2, &[], &[2]))], TreeError::Dangling { addr: one, child: two }),
        // Cycles: of one node, of two.
        (vec![(1, node(1, &[], &[1]))], TreeError::Level { addr: one, child: one }),
        (vec![(1, node(2, &[], &[2])), (2, node(1, &[], &[1]))], TreeError::Level { addr: two, child: one }),
        (vec![(1, node(2, &[], &[2])), (2, node(2, &[], &[3]))], TreeError::Level { addr: one, child: two }),
        // Shared nodes: twice a child of one, children of two, a missing leaf.
        (vec![(1, node(2, &[5], &[2, 2])), (2, node(1, &[], &[3]))], TreeError::Shared { addr: two }),
        (
            vec![(1, node(3, &[5], &[2, 3])), (2, node(2, &[], &[3])), (3, node(1, &[], &[9]))],
            TreeError::Shared { addr: three },
        ),
        (vec![(1, node(1, &[5], &[2, 2]))], TreeError::Shared { addr: two }),
        (vec![(1, node(1, &[5, 5], &[2, 3, 4]))], TreeError::Node(NodeSetError::Pivots { addr: one })),
        (vec![(1, node(1, &[5, 4], &[2, 3, 4]))], TreeError::Node(NodeSetError::Pivots { addr: one })),
        (
            vec![(1, node(1, &full[..16], &full))],
            TreeError::Node(NodeSetError::Children { addr: one, children: 17, pivots: 16 }),
        ),
        (
            vec![(1, node(1, &[], &[]))],
            TreeError::Node(NodeSetError::Children { addr: one, children: 0, pivots: 0 }),
        ),
        (vec![(1, node(1, &[0], &[2, 3]))], TreeError::Outside { addr: one, pivot: 0 }),
        (
            vec![(1, node(2, &[9], &[2, 3])), (2, node(1, &[9], &[4, 5])), (3, node(1, &[], &[6]))],
            TreeError::Outside { addr: two, pivot: 9 },
        ),
        (vec![(1, node(1, &[], &[2])), (3, node(0, &[], &[]))], TreeError::Unreached { addr: three }),
    ];
    for (nodes, why) in cases {
        assert_eq!(view(&nodes), Err(why), "{nodes:?}");
    }
}

/// A leaf as the root; no node at all; a tree of one inner node.
#[test]
fn small_trees_have_an_index() {
    let leaf = view(&[(1, node(0, &[], &[]))]).unwrap();
    let root = fat_root(&leaf, 600);
    let child = Child { addr: VirtAddr(1), level: 0 };
    assert_eq!(root, [Range { first: 0, last: u64::MAX, child }]);
    assert_eq!(RangeTables::new(&root).unwrap().find(7), child);
    assert!(select_layers(&leaf, &root, 3, 100).is_empty());

    assert!(fat_root(&TreeView::default(), 600).is_empty());
    assert!(select_layers(&TreeView::default(), &[], 3, 100).is_empty());

    let one = view(&[(1, node(1, &[8], &[2, 3]))]).unwrap();
    assert_eq!(fat_root(&one, 600).len(), 2);
    let root = fat_root(&one, 1);
    assert_eq!((root.len(), root[0].child.level), (1, 1), "the root does not fit");
    assert_eq!(root, fat_root(&one, 0));
    assert_eq!(select_layers(&one, &root, 3, 100).len(), 1);
    assert!(select_layers(&one, &root, 3, 0).is_empty());
    assert!(select_layers(&one, &root, 0, 100).is_empty());
}

/// A change of a node of a valid tree.
#[derive(Clone, Debug)]
enum Change {
    Level(u8),
    Pivot(usize, u64),
    NoPivot,
    Child(usize, usize),
    NoChild,
    MoreChildren(u64),
    Gone,
    Another(u8),
}

fn change() -> impl Strategy<Value = Change> {
    let pivot = prop_oneof![0..40_u64, Just(u64::MAX), any::<u64>()];
    prop_oneof![
        (0..5_u8).prop_map(Change::Level),
        (0..16_usize, pivot).prop_map(|(at, pivot)| Change::Pivot(at, pivot)),
        Just(Change::NoPivot),
        (0..16_usize, 0..40_usize).prop_map(|(at, node)| Change::Child(at, node)),
        Just(Change::NoChild),
        (1..20_u64).prop_map(Change::MoreChildren),
        Just(Change::Gone),
        (0..3_u8).prop_map(Change::Another),
    ]
}

/// Generates a valid tree of up to three levels with a few changes.
fn nodes() -> impl Strategy<Value = (VirtAddr, BTreeMap<VirtAddr, TreeNode>)> {
    let keys = proptest::collection::btree_map(prop_oneof![0..200_u64, any::<u64>()], any::<u64>(), 0..150);
    (keys, 1..3_usize, vec_of((0..40_usize, change()), 0..4)).prop_map(|(keys, fill, changes)| {
        let tree = TreeView::bulk_loaded(keys, fill).expect("keys of a map ascend");
        let root = tree.root().expect("a root");
        let mut nodes: BTreeMap<VirtAddr, TreeNode> =
            tree.nodes().map(|(a, node)| (a, node.clone())).collect();
        for (at, change) in changes {
            let addrs: Vec<VirtAddr> = nodes.keys().copied().collect();
            let Some(&addr) = addrs.get(at % addrs.len().max(1)) else { continue };
            apply(&mut nodes, addr, &addrs, &change);
        }
        (root, nodes)
    })
}

fn apply(nodes: &mut BTreeMap<VirtAddr, TreeNode>, addr: VirtAddr, addrs: &[VirtAddr], change: &Change) {
    let node = nodes.get_mut(&addr).expect("one of them");
    match *change {
        Change::Level(level) => node.level = level,
        Change::Pivot(at, pivot) => node.pivots.iter_mut().skip(at).take(1).for_each(|old| *old = pivot),
        Change::NoPivot => drop(node.pivots.pop()),
        Change::Child(at, other) => {
            let other = addrs.get(other % (addrs.len() + 1)).copied().unwrap_or(VirtAddr::NULL);
            node.children.iter_mut().skip(at).take(1).for_each(|child| *child = other);
        }
        Change::NoChild => drop(node.children.pop()),
        Change::MoreChildren(count) => {
            let last = node.pivots.last().copied().unwrap_or(0);
            node.pivots.extend((1..=count).map(|n| last.saturating_add(n)));
            node.children.extend((1..=count).map(|n| VirtAddr(1 << 32 | n)));
        }
        Change::Gone => drop(nodes.remove(&addr)),
        Change::Another(level) => {
            let children = if level > 0 { vec![VirtAddr(1 << 40)] } else { vec![] };
            let pivots = vec![];
            nodes.insert(VirtAddr(1 << 48), TreeNode { level, pivots, children, accesses: 0 });
        }
    }
}

/// Checks the bounds of an index of a tree, and that it leads somewhere.
fn check_index(tree: &TreeView, ranges_max: usize, layers: usize, nodes_max: usize) {
    let root = fat_root(tree, ranges_max);
    assert!((1..=ranges_max.max(1)).contains(&root.len()));
    let tables = RangeTables::new(&root).expect("a fat root");
    for range in &root {
        assert_eq!([tables.find(range.first), tables.find(range.last)], [range.child; 2]);
    }
    for set in select_layers(tree, &root, layers, nodes_max) {
        assert!(!set.is_empty() && set.len() <= nodes_max);
        crate::NodeSet::new(set).expect("a set");
    }
}

/// The property below covers trees of several levels, and every error.
#[test]
fn changed_trees_are_refused_in_every_way() {
    let mut runner = TestRunner::deterministic();
    let (mut large, mut refused) = (0, BTreeSet::new());
    for _ in 0..10_000 {
        let (root, nodes) = nodes().new_tree(&mut runner).expect("a tree").current();
        match TreeView::new(root, nodes) {
            Ok(tree) if tree.len() > 3 => large += 1,
            Ok(_) => {}
            Err(error) => {
                let name = std::format!("{error:?}");
                refused.insert(name.split([' ', '{']).next().expect("a name").to_owned());
            }
        }
    }
    let all = [
        "Dangling",
        "Leaf",
        "Level",
        "NoRoot",
        "Node(Children",
        "Node(Pivots",
        "Outside",
        "Shared",
        "Unreached",
    ];
    assert_eq!(refused.into_iter().collect::<Vec<_>>(), all);
    assert!(large > 1000, "{large} trees of four nodes and more");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    /// Any nodes give a tree that can be indexed, or an error.
    #[test]
    fn no_nodes_break_it(
        (root, nodes) in nodes(),
        ranges_max in 0..40_usize,
        layers in prop_oneof![0..4_usize, Just(usize::MAX)],
        nodes_max in prop_oneof![0..4_usize, Just(usize::MAX)],
    ) {
        match TreeView::new(root, nodes) {
            Ok(tree) => check_index(&tree, ranges_max, layers, nodes_max),
            Err(error) => prop_assert!(!std::string::ToString::to_string(&error).is_empty()),
        }
    }

    /// Fat roots from outside, whose ranges lead anywhere.
    #[test]
    fn no_fat_root_breaks_a_selection(
        (root, nodes) in nodes(),
        ranges in vec_of((any::<u64>(), any::<u64>(), 0..60_000_u64, 0..4_u8), 0..30),
        layers in 0..4_usize,
    ) {
        let Ok(tree) = TreeView::new(root, nodes) else { return Ok(()) };
        let ranges: Vec<Range> = ranges
            .into_iter()
            .map(|(first, last, addr, level)| Range { first, last, child: Child { addr: VirtAddr(addr / 256 * 256), level } })
            .collect();
        let sets = select_layers(&tree, &ranges, layers, 4096);
        let accesses = |node: &TreeNode| if node.level > 0 { u128::from(node.accesses) } else { 0 };
        let all: u128 = tree.nodes().map(|(_, node)| accesses(node)).sum();
        prop_assert!(u128::from(accesses_left(&tree, &ranges, &sets)) <= all, "a node counts once");
        for set in sets {
            crate::NodeSet::new(set).expect("a set");
        }
    }
}

/// 16 leaves to a node, 15 keys to a leaf; the counts add up.
#[test]
fn a_bulk_load_is_laid_out() {
    let view = TreeView::bulk_loaded((0..15 * 33).map(|key| (key * 2, 1)), 15).unwrap();
    // 33 leaves, three nodes above them, a root.
    assert_eq!(view.len(), 4);
    let root = view.node(view.root().unwrap()).unwrap();
    assert_eq!((root.level, root.accesses, &root.pivots), (2, 15 * 33, &vec![16 * 30, 32 * 30]));
    let below: Vec<&TreeNode> = root.children.iter().map(|&child| view.node(child).unwrap()).collect();
    assert_eq!(below.iter().map(|node| node.children.len()).collect::<Vec<_>>(), [16, 16, 1]);
    assert_eq!(below.iter().map(|node| node.accesses).collect::<Vec<_>>(), [240, 240, 15]);
    assert_eq!(below[1].pivots, (17..32).map(|leaf| leaf * 30).collect::<Vec<u64>>());
}

#[test]
fn small_bulk_loads() {
    for keys in [vec![], vec![(7, 3)], vec![(0, 1), (u64::MAX, 2)]] {
        let accesses = keys.iter().map(|(_, accesses)| accesses).sum::<u64>();
        let view = TreeView::bulk_loaded(keys, 15).unwrap();
        let root = view.node(view.root().unwrap()).unwrap();
        assert_eq!((view.len(), root.level, root.accesses), (1, 0, accesses));
        assert_eq!(fat_root(&view, 600).len(), 1);
    }
    assert_eq!(
        TreeView::bulk_loaded([(0, 1), (u64::MAX, u64::MAX), (5, 0)], 1),
        Err(TreeError::Unsorted { key: 5 })
    );
    assert_eq!(TreeView::bulk_loaded([(5, 1), (5, 1)], 1), Err(TreeError::Unsorted { key: 5 }));
    let two = TreeView::bulk_loaded([(0, 1), (u64::MAX, u64::MAX)], 0).unwrap();
    assert_eq!(two.node(two.root().unwrap()).unwrap().pivots, [u64::MAX]);
    assert_eq!(two.node(two.root().unwrap()).unwrap().accesses, u64::MAX);
}
