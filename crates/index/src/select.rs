//! The selection of nodes for an index: the greedy merge of the fat root (Fat-B+Tree III-B), and the nodes of
//! the sets, layer by layer (III-C).
//!
//! Both maximize accesses. Ties go to the smaller keys, so the index of a tree is unique.

use crate::{RANGES_MAX, Range, SET_NODES_MAX, SetNode, TreeView};
use alloc::collections::{BTreeMap, BTreeSet, BinaryHeap};
use alloc::vec::Vec;
use core::cmp::Reverse;
use farmem_wire::VirtAddr;

/// A candidate inner node. The greatest is selected first: the most accesses, then the smallest keys.
type Candidate = (u64, Reverse<u64>, VirtAddr);

/// Returns the fat root of a tree, of at most `ranges_max` ranges (clamped to 1 to [`RANGES_MAX`]).
///
/// Starting with the root, the most accessed child of the merged nodes is merged if it fits. A node that does
/// not fit is skipped. If all nodes are full, and no node has more accesses than its parent, no other choice
/// saves more visits.
///
/// A tree whose root does not fit, or is a leaf, has one range that leads to the root. A view without nodes
/// has no ranges.
#[must_use]
pub fn fat_root(tree: &TreeView, ranges_max: usize) -> Vec<Range> {
    fat_root_with(tree, ranges_max, |_| 1)
}

/// Returns the fat root if an access of a node saves `worth` visits.
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

/// Returns the nodes of up to `layers` sets behind a fat root, each of at most `nodes_max` (and
/// [`SET_NODES_MAX`]), the most accessed first.
///
/// Candidates of the first set are the nodes that `root` leads to; candidates of each further set are the
/// children of the previous set's nodes, because a node is only reached through its parent. Leaves and nodes
/// outside the view are no candidates. If candidates run out, there are fewer sets; none is empty.
#[must_use]
pub fn select_layers(tree: &TreeView, root: &[Range], layers: usize, nodes_max: usize) -> Vec<Vec<SetNode>> {
    // Ranges from outside may name a node twice.
    let addrs = root.iter().map(|range| range.child.addr).collect();
    select_below(tree, addrs, layers, nodes_max, |_| true)
}

/// Selects layers from the nodes `addrs` on; only nodes that are `wanted` are candidates.
pub(crate) fn select_below(
    tree: &TreeView,
    mut addrs: BTreeSet<VirtAddr>,
    layers: usize,
    nodes_max: usize,
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

/// Returns the accesses of inner nodes that hosts still make: nodes neither merged into the fat root nor in a
/// set.
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
