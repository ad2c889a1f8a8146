//! Publication of a tree's index at switches: reads the inner nodes and selects the fat root and the node
//! sets (Fat-B+Tree II, III-B, III-C).

use super::BLinkTree;
use farmem_client::api::{Base64, SoftName, SoftSection};
use farmem_client::{Client, Error, FarMemory};
use farmem_index::blink::{NODE_LEN, Node};
use farmem_index::{
    Child, Extent, ExtentFault, Range, Rates, SECTION_KIND, TreeNode, TreeSection, TreeView, fat_root,
    select_layers,
};
use farmem_wire::VirtAddr;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Attempts to read the inner nodes while other writers change them.
const READS_MAX: u32 = 8;

/// Checks that the extent of a publication is valid.
///
/// # Errors
/// [`Error::Count`] for an extent that no switch takes.
pub(super) fn check(extent: &Extent) -> Result<(), Error> {
    match extent.fault() {
        Some(ExtentFault { what, have, least, most }) => Err(Error::Count { what, have, least, most }),
        None => Ok(()),
    }
}

/// Publishes these trees, at least one, for the traversals of this client's domain. Returns the epoch of the
/// image that then becomes active at the switch. Sections of other trees and of other domains stay. [`withdraw`] or
/// the end of the client removes the sections.
///
/// Published sections are in no log. A restarted switch receives them again. After a restart of the control
/// plane they are gone, and traversals enter the trees at their roots.
///
/// # Errors
/// [`Error::Refused`] when the switch has no room for the trees, or two trees have one root; [`Error::Api`]
/// when the control plane does not answer.
pub fn publish(client: &mut Client, trees: &[TreeSection]) -> Result<u64, Error> {
    client.load_soft_state(trees.iter().map(soft_section).collect())
}

/// Encodes a tree, or a part of one, for loading into a switch.
#[must_use]
pub fn soft_section(tree: &TreeSection) -> SoftSection {
    SoftSection { kind: SECTION_KIND, id: tree.root.0, bytes: Base64(tree.emit()) }
}

/// Withdraws the tree with this root: traversals of this client's domain start at the root again. Withdrawing
/// an unpublished tree succeeds.
///
/// # Errors
/// [`Error::Refused`] when the switch does not answer; [`Error::Api`] when the control plane does not.
pub fn withdraw(client: &mut Client, root: VirtAddr) -> Result<(), Error> {
    client.clear_soft_state(vec![name_of(root)])
}

/// Returns the name of a tree's section.
pub(super) const fn name_of(root: VirtAddr) -> SoftName {
    SoftName { kind: SECTION_KIND, id: root.0 }
}

impl BLinkTree {
    /// Selects a section of the tree's present state, for [`publish`]. Look-ups and scans then start at the
    /// deepest published node. The section stays valid when the tree changes; look-ups then take some extra
    /// steps.
    ///
    /// The selection assumes that look-ups are spread evenly over the children of each node.
    /// [`IndexAgent`](super::IndexAgent) uses measured rates.
    ///
    /// # Errors
    /// [`Error::Count`] when `extent` exceeds what a switch takes; [`Error::Contended`] when the tree changed
    /// during every read; [`Error::Broken`] when the tree is broken; [`Error`] when far memory does not
    /// answer.
    pub fn section(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        extent: Extent,
    ) -> Result<TreeSection, Error> {
        check(&extent)?;
        let view = self.view(memory, &Rates::default(), extent)?;
        Ok(self.select(&view, extent))
    }

    /// Returns the addresses of the tree's header and of all its nodes, whichever handle created them. No
    /// other program may change the tree during the call.
    ///
    /// # Errors
    /// [`Error::Broken`] when the tree is broken; [`Error`] when far memory does not answer or has lost a
    /// part of the tree.
    pub fn addresses(&self, memory: &mut (impl FarMemory + ?Sized)) -> Result<BTreeSet<VirtAddr>, Error> {
        let inner = self.inner_nodes(memory, &Rates::default(), usize::MAX)?;
        let nodes = inner.into_iter().flat_map(|(at, node)| node.children.into_iter().chain([at]));
        Ok(nodes.chain([self.at, self.tree.root]).collect())
    }

    /// Selects the contents of the switch tables from the nodes in `view`.
    pub(super) fn select(&self, view: &TreeView, extent: Extent) -> TreeSection {
        let mut ranges = fat_root(view, extent.ranges);
        if ranges.is_empty() {
            let child = Child { addr: self.tree.root, level: 0 };
            ranges = vec![Range { first: 0, last: u64::MAX, child }];
        }
        let sets = select_layers(view, &ranges, extent.sets, extent.nodes);
        let programs = vec![self.programs.get.hash(), self.programs.scan.hash()];
        TreeSection { root: self.tree.root, programs, ranges, sets }
    }

    /// Reads the current inner nodes, as many as a selection of this extent may use: of each level those with
    /// the highest rates.
    pub(super) fn view(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        rates: &Rates,
        extent: Extent,
    ) -> Result<TreeView, Error> {
        for _ in 0..READS_MAX {
            let nodes = self.inner_nodes(memory, rates, extent.ranges + extent.sets * extent.nodes)?;
            if nodes.is_empty() {
                return Ok(TreeView::default());
            }
            // During a split or merge the nodes form no tree: read again.
            if let Ok(view) = TreeView::partial(self.tree.root, nodes) {
                return Ok(view);
            }
        }
        Err(Error::Contended { what: "the inner nodes of a B-link tree".into(), tries: READS_MAX })
    }

    /// Reads the inner nodes that the root leads to, level by level, at most `most` of each.
    fn inner_nodes(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        rates: &Rates,
        most: usize,
    ) -> Result<BTreeMap<VirtAddr, TreeNode>, Error> {
        let mut found: BTreeMap<VirtAddr, TreeNode> = BTreeMap::new();
        let mut level = vec![Request { at: self.tree.root, first: 0, rate: rates.whole() }];
        while !level.is_empty() {
            // Most visited nodes first; among equals, smaller keys first.
            level.sort_unstable_by_key(|wanted| (Reverse(wanted.rate), wanted.first));
            level.truncate(most.max(1));
            let mut bytes = vec![[0; NODE_LEN]; level.len()];
            let mut reads: Vec<_> =
                level.iter().zip(&mut bytes).map(|(wanted, bytes)| (wanted.at, &mut bytes[..])).collect();
            memory.read_many(&mut reads)?;
            let mut nodes = Vec::with_capacity(bytes.len());
            for (wanted, bytes) in core::mem::take(&mut level).into_iter().zip(bytes) {
                let at = wanted.at;
                let node = Node::parse(&bytes).map_err(|error| Error::Broken { addr: at, what: error.0 })?;
                let is_inner = node.level > 0 && node.tag == self.tree.tag && node.state.is_readable();
                // A node whose first key differs from its parent's was merged into meanwhile, or has two
                // parents.
                if is_inner && node.first == wanted.first && !found.contains_key(&at) {
                    nodes.push((wanted, node));
                }
            }
            nodes.sort_unstable_by_key(|(wanted, _)| wanted.first);
            apart(&mut nodes);
            for (Request { at, rate, .. }, node) in nodes {
                let lasts = node.entries[1..].iter().map(|(first, _)| first - 1).chain([node.last]);
                let children: Vec<(VirtAddr, u64, u64)> = node
                    .entries
                    .iter()
                    .zip(lasts)
                    .map(|(&(first, at), last)| (VirtAddr(at), first, last))
                    .collect();
                if node.level > 1 {
                    let rates = rates.of_children(rate, &children);
                    let wanted = children.iter().zip(rates);
                    level.extend(wanted.map(|(&(at, first, _), rate)| Request { at, first, rate }));
                }
                let pivots = node.entries[1..].iter().map(|(first, _)| *first).collect();
                let children = children.into_iter().map(|(at, ..)| at).collect();
                found.insert(at, TreeNode { level: node.level, pivots, children, accesses: rate });
            }
        }
        Ok(found)
    }
}

/// Keeps a child with two parents only under the right parent. A merge into the right neighbour across a
/// border of parents leaves the left parent with a pointer to that neighbour. The neighbour then has two
/// parents, and a table allows one. Keys between reach the neighbour by a step to the right. `nodes` is in
/// key order.
fn apart(nodes: &mut Vec<(Request, Node)>) {
    let mut right = None;
    for (_, node) in nodes.iter_mut().rev() {
        let first_child = node.entries.first().map(|(_, child)| *child);
        // Two merged parents both point to one child.
        node.entries.dedup_by_key(|(_, child)| *child);
        // A neighbour that was split since is followed by its right half here.
        let shared = node.entries.iter().position(|(_, child)| right == Some(*child));
        node.entries.truncate(shared.unwrap_or(node.entries.len()));
        right = first_child;
    }
    nodes.retain(|(_, node)| !node.entries.is_empty());
}

/// A node to read: the first key that its parent has for it, and its visit rate.
struct Request {
    at: VirtAddr,
    first: u64,
    rate: u64,
}
