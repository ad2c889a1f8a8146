//! The cost of a section that is older than its tree: steps to the right (Fat-B+Tree IV-B).
//!
//! A node that was split keeps its place and links to the right. So an old section leads to it for keys of
//! its right neighbour, which cost a step each. The saved visits of inner nodes do not show this.

use crate::{Child, TreeSection, TreeView};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farmem_wire::VirtAddr;

/// Returns the accesses of nodes that the section reaches through a left neighbour, in the accesses of
/// `tree`. Accesses of an inner node are divided evenly among its children. A neighbour several nodes to the
/// right counts once.
#[must_use]
pub fn stale_steps(tree: &TreeView, section: &TreeSection) -> u64 {
    let ends = ends(section);
    let end_of =
        |key: u64| ends.partition_point(|(first, _)| *first <= key).checked_sub(1).map(|at| ends[at].1);
    let mut astray = 0_u64;
    for (addr, node) in tree.nodes().filter(|(_, node)| node.level > 0) {
        let Some(keys) = tree.range_of(addr) else { continue };
        let firsts = core::iter::once(keys.first).chain(node.pivots.iter().copied());
        let others = node.children.iter().zip(firsts).filter(|(child, first)| {
            // If the section leads to another level, another node's children are accessed.
            end_of(*first).is_some_and(|end| end.level + 1 == node.level && end.addr != **child)
        });
        let each = node.accesses / node.children.len().max(1) as u64;
        astray = astray.saturating_add(each.saturating_mul(others.count() as u64));
    }
    astray
}

/// Returns the children that the section leads to, with the first key of each, ascending.
fn ends(section: &TreeSection) -> Vec<(u64, Child)> {
    let sets: Vec<BTreeMap<VirtAddr, _>> =
        section.sets.iter().map(|set| set.iter().map(|node| (node.addr, node)).collect()).collect();
    let mut ends: Vec<(u64, Child)> = section.ranges.iter().map(|range| (range.first, range.child)).collect();
    for set in &sets {
        let mut further = Vec::with_capacity(ends.len());
        for (at, &(first, child)) in ends.iter().enumerate() {
            let Some(node) = set.get(&child.addr) else {
                further.push((first, child));
                continue;
            };
            // The children for the keys that lead here: the first of them, and those that begin behind it.
            let last = ends.get(at + 1).map_or(u64::MAX, |(next, _)| next - 1);
            let begin = node.pivots.partition_point(|pivot| *pivot <= first);
            let end = node.pivots.partition_point(|pivot| *pivot <= last);
            further.push((first, node.children[begin]));
            further.extend((begin..end).map(|pivot| (node.pivots[pivot], node.children[pivot + 1])));
        }
        ends = further;
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Range, SetNode, TreeNode};
    use std::vec;

    fn child(addr: u64, level: u8) -> Child {
        Child { addr: VirtAddr(addr), level }
    }

    /// Returns a tree with a root and two inner nodes of two and of `right` leaves, with ten accesses per
    /// leaf.
    fn tree(right: &[(u64, u64)]) -> TreeView {
        let node = |level, children: &[(u64, u64)]| TreeNode {
            level,
            pivots: children[1..].iter().map(|(first, _)| *first).collect(),
            children: children.iter().map(|(_, at)| VirtAddr(*at)).collect(),
            accesses: 10 * children.len() as u64,
        };
        let nodes = BTreeMap::from([
            (VirtAddr(0x100), TreeNode { accesses: 40, ..node(2, &[(0, 0x200), (100, 0x300)]) }),
            (VirtAddr(0x200), node(1, &[(0, 0x400), (50, 0x500)])),
            (VirtAddr(0x300), node(1, right)),
        ]);
        TreeView::new(VirtAddr(0x100), nodes).unwrap()
    }

    fn section(sets: Vec<Vec<SetNode>>) -> TreeSection {
        let ranges = vec![
            Range { first: 0, last: 49, child: child(0x400, 0) },
            Range { first: 50, last: 99, child: child(0x500, 0) },
            Range { first: 100, last: u64::MAX, child: child(0x300, 1) },
        ];
        TreeSection { root: VirtAddr(0x100), programs: vec![], ranges, sets }
    }

    /// A leaf that was split after the section was made is reached through its left half. If the section
    /// leads to its parent, it is not.
    #[test]
    fn a_new_leaf_is_a_step_away() {
        let held = SetNode {
            addr: VirtAddr(0x300),
            pivots: vec![150],
            children: vec![child(0x600, 0), child(0x700, 0)],
        };
        let as_published = [(100, 0x600), (150, 0x700)];
        let split = [(100, 0x600), (150, 0x700), (170, 0x800)];
        let merged = [(100, 0x700), (150, 0x800)];
        let with_set = section(vec![vec![held]]);
        assert_eq!(stale_steps(&tree(&as_published), &with_set), 0);
        assert_eq!(stale_steps(&tree(&split), &with_set), 10);
        assert_eq!(
            stale_steps(&tree(&merged), &with_set),
            20,
            "what was merged into the right neighbour is one step away"
        );
        assert_eq!(stale_steps(&tree(&split), &section(vec![])), 0, "the parent knows its new child");
        let nothing = TreeSection { ranges: vec![], sets: vec![], ..with_set };
        assert_eq!(stale_steps(&tree(&split), &nothing), 0, "from the root nothing is old");
    }
}
