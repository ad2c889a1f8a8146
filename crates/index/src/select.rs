//! Which nodes go into an index: the greedy merge of the fat root (Fat-B+Tree III-B), and the nodes of the sets behind it, layer by layer (III-C).
//!
//! Both go by accesses. Of nodes with equally many the one with the smaller keys comes first, so that a tree has one index.

use crate::{RANGES_MAX, Range, SET_NODES_MAX, SetNode, TreeView};
use alloc::collections::{BTreeMap, BTreeSet, BinaryHeap};
use alloc::vec::Vec;
use core::cmp::Reverse;
use farmem_wire::VirtAddr;

/// An inner node that may be taken. The greatest is taken first: the one with the most accesses, then the one with the smallest keys.
type Candidate = (u64, Reverse<u64>, VirtAddr);

/// The fat root of a tree, of at most `ranges_max` ranges (of 0 it is 1, of more than [`RANGES_MAX`] that).
///
/// Beginning with the root, the node with the most accesses among the children of merged nodes is merged, as long as it fits; one that does not is
/// left, and the next is tried. Where all nodes are full, and no node has more accesses than the one above it, no other choice saves more visits.
///
/// A tree whose root does not fit, and one that is a leaf, have one range that leads to the root. A view without nodes has none: it has no fat root.
#[must_use]
pub fn fat_root(tree: &TreeView, ranges_max: usize) -> Vec<Range> {
    fat_root_with(tree, ranges_max, |_| 1)
}

/// The same, where an access of a node saves as many visits as `worth` says of it.
pub(crate) fn fat_root_with(
    tree: &TreeView,
    ranges_max: usize,
    worth: impl Fn(VirtAddr) -> u64,
) -> Vec<Range> {
    let candidate = |tree, range: &Range| {
        let (accesses, key, addr) = candidate(tree, range)?;
        Some((accesses.saturating_mul(worth(addr)), key, addr))
    };
    let ranges_max = ranges_max.clamp(1, RANGES_MAX);
    let root = tree.root().and_then(|root| tree.range_of(root));
    let mut ranges: BTreeMap<u64, Range> = root.iter().map(|&range| (range.first, range)).collect();
    let mut queue: BinaryHeap<Candidate> = root.iter().filter_map(|range| candidate(tree, range)).collect();
    while let Some((_, Reverse(key), addr)) = queue.pop() {
        let below = tree.ranges_below(addr);
        if ranges.len() - 1 + below.len() > ranges_max {
            continue;
        }
        queue.extend(below.iter().filter_map(|range| candidate(tree, range)));
        ranges.remove(&key);
        ranges.extend(below.into_iter().map(|range| (range.first, range)));
    }
    ranges.into_values().collect()
}

/// The nodes of up to `layers` sets behind a fat root, each of at most `nodes_max` (and [`SET_NODES_MAX`]) and those with the most accesses first.
///
/// Candidates for the first are the nodes that `root` leads to, for each further one the children of the nodes of the set before: a node can only be
/// come to by way of its parent. Leaves are no candidates, nor is what the tree does not have. There are fewer sets when candidates run out; none is
/// empty.
#[must_use]
pub fn select_layers(tree: &TreeView, root: &[Range], layers: usize, nodes_max: usize) -> Vec<Vec<SetNode>> {
    // Ranges from outside may name a node twice.
    let addrs = root.iter().map(|range| range.child.addr).collect();
    select_below(tree, addrs, (layers, nodes_max), |_| true)
}

/// The same of the nodes `addrs`, and of them and those below only what is `wanted`.
pub(crate) fn select_below(
    tree: &TreeView,
    mut addrs: BTreeSet<VirtAddr>,
    (layers, nodes_max): (usize, usize),
    wanted: impl Fn(VirtAddr) -> bool,
) -> Vec<Vec<SetNode>> {
    let nodes_max = nodes_max.min(SET_NODES_MAX);
    let mut sets = Vec::new();
    while sets.len() < layers {
        let ranges = addrs.iter().filter(|addr| wanted(**addr)).filter_map(|&addr| tree.range_of(addr));
        let mut candidates: Vec<Candidate> = ranges.filter_map(|range| candidate(tree, &range)).collect();
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        candidates.truncate(nodes_max);
        let set: Vec<SetNode> = candidates.iter().filter_map(|&(.., addr)| tree.set_node(addr)).collect();
        if set.is_empty() {
            break;
        }
        addrs = set.iter().flat_map(|node| node.children.iter().map(|child| child.addr)).collect();
        sets.push(set);
    }
    sets
}

/// Accesses of inner nodes that are left to the hosts when an index answers the others: those that the fat root has not merged and no set has.
#[must_use]
pub fn accesses_left(tree: &TreeView, root: &[Range], sets: &[Vec<SetNode>]) -> u64 {
    let held: BTreeSet<VirtAddr> = sets.iter().flatten().map(|node| node.addr).collect();
    let mut seen = BTreeSet::new();
    let mut below: Vec<VirtAddr> = root.iter().map(|range| range.child.addr).collect();
    let mut left: u64 = 0;
    while let Some(addr) = below.pop() {
        let Some(node) = tree.inner(addr) else { continue };
        // Ranges from outside may lead to a node and to one below it.
        if seen.insert(addr) {
            left = left.saturating_add(if held.contains(&addr) { 0 } else { node.accesses });
            below.extend(&node.children);
        }
    }
    left
}

fn candidate(tree: &TreeView, range: &Range) -> Option<Candidate> {
    let node = tree.inner(range.child.addr)?;
    Some((node.accesses, Reverse(range.first), range.child.addr))
}

#[cfg(test)]
mod tests;
