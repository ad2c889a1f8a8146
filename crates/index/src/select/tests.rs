//! The paper's figure, an exhaustive optimum, and the guarantees of a selection.

use super::*;
use crate::{Child, NodeSet, RangeTables, TreeNode};
use alloc::vec;
use proptest::prelude::*;

fn node(level: u8, accesses: u64, pivots: &[u64], children: &[u64]) -> TreeNode {
    TreeNode {
        level,
        accesses,
        pivots: pivots.to_vec(),
        children: children.iter().map(|&child| VirtAddr(child)).collect(),
    }
}

fn view(nodes: &[(u64, TreeNode)]) -> TreeView {
    TreeView::new(VirtAddr(1), nodes.iter().map(|(addr, node)| (VirtAddr(*addr), node.clone())).collect())
        .expect("a tree")
}

/// Figure 4 (i): of three levels the nodes {7}, {11, 13, 16}, {8, 9, 10} and {14, 15} have the most accesses,
/// and become a fat root of nine pivots. The text has the nodes and not the frequencies; the frequencies here
/// have that order.
#[test]
fn figure_4_i() {
    let tree = view(&[
        (1, node(3, 100, &[7], &[2, 3])),
        (2, node(2, 20, &[3, 5], &[4, 5, 6])),
        (3, node(2, 80, &[11, 13, 16], &[7, 8, 9, 10])),
        (4, node(1, 8, &[1, 2], &[41, 42, 43])),
        (5, node(1, 7, &[4], &[51, 52])),
        (6, node(1, 5, &[6], &[61, 62])),
        (7, node(1, 40, &[8, 9, 10], &[71, 72, 73, 74])),
        (8, node(1, 5, &[12], &[81, 82])),
        (9, node(1, 30, &[14, 15], &[91, 92, 93])),
        (10, node(1, 5, &[17, 18], &[101, 102, 103])),
    ]);
    let root = fat_root(&tree, 10);
    let pivots: Vec<u64> = root.iter().skip(1).map(|range| range.first).collect();
    assert_eq!(pivots, [7, 8, 9, 10, 11, 13, 14, 15, 16]);
    let children: Vec<(u64, u8)> = root.iter().map(|range| (range.child.addr.0, range.child.level)).collect();
    assert_eq!(
        children,
        [(2, 2), (71, 0), (72, 0), (73, 0), (74, 0), (8, 1), (91, 0), (92, 0), (93, 0), (10, 1)]
    );
    assert_eq!(accesses_left(&tree, &root, &[]), 20 + 8 + 7 + 5 + 5 + 5);
    // The rest of the descent: the sets begin with the fat root's children, whatever their levels.
    let sets = select_layers(&tree, &root, 2, 2);
    let addrs: Vec<Vec<u64>> = sets.iter().map(|set| set.iter().map(|node| node.addr.0).collect()).collect();
    assert_eq!(addrs, [vec![2, 8], vec![4, 5]]);
    assert_eq!(accesses_left(&tree, &root, &sets), 5 + 5);
}

/// Ranges from outside may lead to a node and to one below it: each counts once.
#[test]
fn a_node_counts_once() {
    let tree = view(&[(1, node(2, 10, &[], &[2])), (2, node(1, 10, &[5], &[21, 22]))]);
    let twice = [1, 2, 2].map(|addr| tree.range_of(VirtAddr(addr)).expect("a node"));
    assert_eq!(accesses_left(&tree, &twice, &[]), 20);
    let sets = select_layers(&tree, &twice, 2, 10);
    assert_eq!(sets.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(accesses_left(&tree, &twice, &sets), 0);
}

/// A node that does not fit is skipped, and a smaller one with fewer accesses is selected.
#[test]
fn what_does_not_fit_is_left() {
    let tree = view(&[
        (1, node(2, 10, &[50], &[2, 3])),
        (2, node(1, 9, &[10, 20, 30], &[21, 22, 23, 24])),
        (3, node(1, 1, &[60], &[31, 32])),
    ]);
    let children =
        |most| -> Vec<u64> { fat_root(&tree, most).iter().map(|range| range.child.addr.0).collect() };
    assert_eq!(children(5), [21, 22, 23, 24, 3]);
    assert_eq!(children(4), [2, 31, 32]);
    assert_eq!(children(1), [1]);
}

/// Among nodes with equally many accesses, the ones with the smaller keys are selected.
#[test]
fn equals_go_by_keys() {
    let tree = view(&[
        (1, node(2, 0, &[10, 20], &[9, 5, 7])),
        (5, node(1, 0, &[15], &[51, 52])),
        (7, node(1, 0, &[25], &[71, 72])),
        (9, node(1, 0, &[5], &[91, 92])),
    ]);
    let root = fat_root(&tree, 4);
    assert_eq!(root.iter().map(|range| range.child.addr.0).collect::<Vec<_>>(), [91, 92, 5, 7]);
    let sets = select_layers(&tree, &fat_root(&tree, 3), 1, 2);
    assert_eq!(sets[0].iter().map(|node| node.addr.0).collect::<Vec<_>>(), [9, 5]);
}

/// Returns a tree of `levels` levels of inner nodes, with random branches and accesses. A node's accesses are
/// the sum of its children's.
fn tree(levels: u8, branches: impl Fn(u64) -> usize, draw: impl Fn(u64) -> u64) -> TreeView {
    struct Growing<'a> {
        branches: &'a dyn Fn(u64) -> usize,
        draw: &'a dyn Fn(u64) -> u64,
        next: u64,
        nodes: BTreeMap<VirtAddr, TreeNode>,
    }
    impl Growing<'_> {
        /// Grows a node over the keys from `first` on, one per leaf. Returns its address and accesses.
        fn grow(&mut self, level: u8, keys: &mut u64) -> (VirtAddr, u64) {
            let number = self.next;
            self.next += 1;
            let addr = VirtAddr(number);
            if level == 0 {
                *keys += 10;
                return (addr, (self.draw)(number));
            }
            let mut node = TreeNode { level, accesses: 0, pivots: vec![], children: vec![] };
            for child in 0..(self.branches)(number) {
                if child > 0 {
                    node.pivots.push(*keys);
                }
                let (below, accesses) = self.grow(level - 1, keys);
                node.children.push(below);
                node.accesses += accesses;
            }
            let accesses = node.accesses;
            self.nodes.insert(addr, node);
            (addr, accesses)
        }
    }
    let mut growing = Growing { branches: &branches, draw: &draw, next: 1, nodes: BTreeMap::new() };
    growing.grow(levels, &mut 0);
    TreeView::new(VirtAddr(1), growing.nodes).expect("a tree")
}

/// Returns the most accesses that a set of merged nodes saves, over all sets that fit and have each node's
/// parent.
fn best(tree: &TreeView, ranges_max: usize) -> u64 {
    let nodes: Vec<(VirtAddr, &TreeNode)> = tree.nodes().collect();
    let parents: Vec<Option<usize>> = nodes
        .iter()
        .map(|(addr, _)| nodes.iter().position(|(_, parent)| parent.children.contains(addr)))
        .collect();
    (0..1_u32 << nodes.len())
        .filter(|set| {
            let has = |n: usize| set >> n & 1 == 1;
            let merged = (0..nodes.len()).filter(|&n| has(n));
            let ranges = 1 + merged.clone().map(|n| nodes[n].1.children.len() - 1).sum::<usize>();
            ranges <= ranges_max && merged.clone().all(|n| parents[n].is_none_or(has))
        })
        .map(|set| (0..nodes.len()).filter(|n| set >> n & 1 == 1).map(|n| nodes[n].1.accesses).sum())
        .max()
        .expect("the empty set fits")
}

/// Returns the accesses of all nodes.
fn all(tree: &TreeView) -> u64 {
    tree.nodes().map(|(_, node)| node.accesses).sum()
}

fn mix(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// "If each node is full, this algorithm can find the optimal node set" (III-B).
    #[test]
    fn greedy_is_best_where_nodes_are_full(seed in any::<u64>(), shape in 0..3_usize, ranges_max in 1..40_usize) {
        // 13, 15 and 6 inner nodes: all subsets are tried.
        let (levels, full) = [(3, 3), (4, 2), (2, 5)][shape];
        let tree = tree(levels, |_| full, |leaf| 1 << (mix(seed, leaf) % 12));
        let left = accesses_left(&tree, &fat_root(&tree, ranges_max), &[]);
        prop_assert_eq!(all(&tree) - left, best(&tree, ranges_max));
    }

    /// For any nodes: the ranges cover all keys, and a descent by fat root and sets ends at a node on the
    /// tree's own path.
    #[test]
    fn the_index_leads_where_the_tree_does(
        seed in any::<u64>(), levels in 1..4_u8, ranges_max in 1..60_usize, layers in 0..4_usize, nodes_max in 1..12_usize,
    ) {
        let tree = tree(levels, |n| 1 + (mix(seed, n) % 5) as usize, |n| mix(seed, n) % 100);
        let root = fat_root(&tree, ranges_max);
        prop_assert!(root.len() <= ranges_max);
        let tables = RangeTables::new(&root).expect("a fat root");
        let sets: Vec<NodeSet> = select_layers(&tree, &root, layers, nodes_max)
            .into_iter()
            .map(|set| NodeSet::new(set).expect("a set"))
            .collect();
        for key in (0..700).map(|n| n * 3).chain([u64::MAX]) {
            let mut at = tables.find(key);
            for set in &sets {
                at = set.step(at.addr, key).unwrap_or(at);
            }
            prop_assert!(path(&tree, key).contains(&at), "{key} at {at:?}");
        }
    }

    /// Each node of a set is reached through the previous set, and no skipped candidate has more accesses
    /// than a selected one.
    #[test]
    fn a_selection_has_the_most_accessed_candidates(
        seed in any::<u64>(), levels in 2..5_u8, ranges_max in 1..30_usize, layers in 1..5_usize, nodes_max in 1..12_usize,
    ) {
        let tree = tree(levels, |n| 1 + (mix(seed, n) % 4) as usize, |n| mix(seed, n) % 50);
        let root = fat_root(&tree, ranges_max);
        let sets = select_layers(&tree, &root, layers, nodes_max);
        prop_assert!(sets.len() <= layers);
        let mut candidates: BTreeSet<VirtAddr> = root.iter().map(|range| range.child.addr).collect();
        for set in &sets {
            candidates.retain(|&addr| tree.inner(addr).is_some());
            let taken: BTreeSet<VirtAddr> = set.iter().map(|node| node.addr).collect();
            prop_assert_eq!(taken.len(), set.len());
            prop_assert!(taken.is_subset(&candidates));
            prop_assert_eq!(taken.len(), nodes_max.min(candidates.len()));
            let accesses = |addr: &VirtAddr| tree.node(*addr).expect("a node").accesses;
            let least = taken.iter().map(accesses).min();
            prop_assert!(candidates.difference(&taken).all(|left| Some(accesses(left)) <= least));
            for node in set {
                let found = tree.node(node.addr).expect("a node");
                let children: Vec<VirtAddr> = node.children.iter().map(|child| child.addr).collect();
                prop_assert_eq!((&node.pivots, &children), (&found.pivots, &found.children));
            }
            candidates = set.iter().flat_map(|node| node.children.iter().map(|child| child.addr)).collect();
        }
        let more = candidates.iter().any(|&addr| tree.inner(addr).is_some());
        prop_assert!(sets.len() == layers || !more, "sets go on as long as there are candidates");
    }
}

/// Returns the nodes on the path of a descent in the tree.
fn path(tree: &TreeView, key: u64) -> Vec<Child> {
    let root = tree.root().and_then(|root| tree.node(root).map(|node| (root, node.level)));
    let mut at = root.map(|(addr, level)| Child { addr, level }).expect("a tree");
    let mut path = vec![at];
    while let Some(node) = tree.inner(at.addr) {
        let addr = node.children[node.pivots.partition_point(|&pivot| pivot <= key)];
        at = Child { addr, level: tree.node(addr).map_or(0, |node| node.level) };
        path.push(at);
    }
    path
}
