//! The division of a tree among the switches of a FatTree (Fat-B+Tree IV-A). The core switch has the fat
//! root. Each switch below has two sets of the nodes at the servers it leads to.
//!
//! Data is ordered by key over the servers, and so are the nodes of the tree. A node with leaves of several
//! servers is a part of the super-root. The core merges such nodes first. Switches below have no node whose
//! children are at several servers, because a traversal there would already be at one server.

use crate::select::{fat_root_with, select_below};
use crate::{Child, Extent, Range, TreeSection, TreeView};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use farmem_wire::{NodeId, ProgramHash, VirtAddr};

/// A switch of a FatTree with the switches below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FabricSwitch {
    /// Number of the switch.
    pub index: u16,
    /// The servers that the switch leads to.
    pub servers: Vec<NodeId>,
    /// The switches below.
    pub below: Vec<Self>,
}

/// Returns the part of a tree for each switch, by its number, the core's last. Traversals of `programs` begin
/// at `root`, and `server_of` returns the server of a node.
///
/// # Panics
/// If the extent has a [fault](Extent::fault).
#[must_use]
pub fn divide(
    tree: &TreeView,
    (root, programs): (VirtAddr, &[ProgramHash]),
    core: &FabricSwitch,
    extent: Extent,
    server_of: &dyn Fn(VirtAddr) -> Option<NodeId>,
) -> Vec<(u16, TreeSection)> {
    assert_eq!(extent.fault(), None, "an extent that switches take");
    let section = |ranges, sets| TreeSection { root, programs: programs.to_vec(), ranges, sets };
    let level = tree.range_of(root).map_or(0, |range| range.child.level);
    // Switches below have no fat root: their tables begin with the node that a traversal arrives with.
    let whole = Vec::from([Range { first: 0, last: u64::MAX, child: Child { addr: root, level } }]);
    let super_root = super_root(tree, server_of);
    // An unmerged node of the super-root ends the path through the switches, at its level.
    let worth = |addr: VirtAddr| {
        tree.inner(addr).filter(|_| super_root.contains(&addr)).map_or(1, |node| node.level.into())
    };
    let mut ranges = fat_root_with(tree, extent.ranges, worth);
    if ranges.is_empty() {
        ranges.clone_from(&whole);
    }
    let mut entries: Vec<(&FabricSwitch, BTreeSet<VirtAddr>)> = Vec::new();
    let reached: BTreeSet<VirtAddr> = ranges.iter().map(|range| range.child.addr).collect();
    entries.extend(core.below.iter().map(|switch| (switch, reached.clone())));
    let mut parts = Vec::from([(core.index, section(ranges, Vec::new()))]);
    while let Some((switch, reached)) = entries.pop() {
        let is_here = |addr| server_of(addr).filter(|server| switch.servers.contains(server));
        let wanted = |addr: VirtAddr| {
            let Some(server) = is_here(addr) else { return false };
            let children = tree.inner(addr).map_or(&[][..], |node| &node.children);
            children.iter().all(|&child| server_of(child) == Some(server))
        };
        let sets = select_below(tree, reached.clone(), extent.sets, extent.nodes, wanted);
        let mut further = reached;
        for node in sets.iter().flatten() {
            further.remove(&node.addr);
            further.extend(node.children.iter().map(|child| child.addr));
        }
        entries.extend(switch.below.iter().map(|below| (below, further.clone())));
        parts.push((switch.index, section(whole.clone(), sets)));
    }
    parts.reverse();
    parts
}

/// Returns the nodes with leaves of several servers.
fn super_root(tree: &TreeView, server_of: &dyn Fn(VirtAddr) -> Option<NodeId>) -> BTreeSet<VirtAddr> {
    let mut inner: Vec<(u8, VirtAddr)> =
        tree.nodes().filter(|(_, node)| node.level > 0).map(|(addr, node)| (node.level, addr)).collect();
    inner.sort_unstable();
    let mut several = BTreeSet::new();
    for (_, addr) in inner {
        let children = tree.inner(addr).map_or(&[][..], |node| &node.children);
        let server = server_of(addr);
        if children.iter().any(|child| server_of(*child) != server || several.contains(child)) {
            several.insert(addr);
        }
    }
    several
}

#[cfg(test)]
mod tests;
