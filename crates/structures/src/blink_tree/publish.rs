//! What switches are told of a tree: its inner nodes are read, the fat root and the node sets selected (Fat-B+Tree II, III-B, III-C).

use super::BLinkTree;
use farmem_client::api::{Base64, SoftName, SoftSection};
use farmem_client::{Client, Error, FarMemory};
use farmem_index::blink::{NODE_LEN, Node};
use farmem_index::{
    Child, Extent, Range, Rates, SECTION_KIND, TreeNode, TreeSection, TreeView, fat_root, select_layers,
};
use farmem_wire::VirtAddr;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// How often the inner nodes are read when others change them meanwhile.
const READS_MAX: u32 = 8;

/// # Errors
/// [`Error::Count`] for an extent that no switch takes.
pub(super) fn check(extent: &Extent) -> Result<(), Error> {
    match extent.fault() {
        Some((what, have, least, most)) => Err(Error::Count { what, have, least, most }),
        None => Ok(()),
    }
}

/// Publishes these trees, at least one, for the traversals of this client's domain; answers the epoch of what stands at the switch then. What the domain
/// published of other trees stays, and so does what other domains published. It goes with [`withdraw`], and when the client leaves.
///
/// It is in no log: a switch that starts again is given it again, a control plane that starts again is not, and the trees are entered at their roots.
///
/// # Errors
/// [`Error::Refused`] when the switch has no room for them, or two have one root; [`Error::Api`] when nobody answers.
pub fn publish(client: &mut Client, trees: &[TreeSection]) -> Result<u64, Error> {
    client.load_soft_state(trees.iter().map(soft_section).collect())
}

/// A tree, or a part of one, as it is loaded.
#[must_use]
pub fn soft_section(tree: &TreeSection) -> SoftSection {
    SoftSection { kind: SECTION_KIND, id: tree.root.0, bytes: Base64(tree.emit()) }
}

/// Withdraws the tree with this root: traversals of this client's domain begin there again. What is not published is withdrawn already.
///
/// # Errors
/// [`Error::Refused`] when the switch does not answer; [`Error::Api`] when nobody does.
pub fn withdraw(client: &mut Client, root: VirtAddr) -> Result<(), Error> {
    client.clear_soft_state(vec![name_of(root)])
}

/// What the section of a tree is found by.
pub(super) const fn name_of(root: VirtAddr) -> SoftName {
    SoftName { kind: SECTION_KIND, id: root.0 }
}

impl BLinkTree {
    /// What a switch is told of the tree as it is now, for [`publish`]: look-ups and scans begin at the deepest node that it has of this. It holds however
    /// the tree changes later; look-ups then take some steps more.
    ///
    /// Look-ups are taken to be divided evenly among the children of each node. [`IndexAgent`](super::IndexAgent) goes by how often they were come by.
    ///
    /// # Errors
    /// [`Error::Count`] when more is asked for than a switch takes; [`Error::Contended`] when the tree changed each time it was read; [`Error::Broken`] when
    /// it is broken; [`Error`] when far memory does not answer.
    pub fn section(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        extent: Extent,
    ) -> Result<TreeSection, Error> {
        check(&extent)?;
        let view = self.view(memory, &Rates::default(), extent)?;
        Ok(self.select(&view, extent))
    }

    /// Where the tree's header and its nodes are, whoever made them. No other program may change it meanwhile.
    ///
    /// # Errors
    /// [`Error::Broken`] when it is broken; [`Error`] when far memory does not answer, or lost some of it.
    pub fn addresses(&self, memory: &mut (impl FarMemory + ?Sized)) -> Result<BTreeSet<VirtAddr>, Error> {
        let inner = self.inner_nodes(memory, &Rates::default(), usize::MAX)?;
        let nodes = inner.into_iter().flat_map(|(at, node)| node.children.into_iter().chain([at]));
        Ok(nodes.chain([self.at, self.tree.root]).collect())
    }

    /// What goes into the tables, of what was read of the tree.
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

    /// The inner nodes as they are now, as many as a selection of this extent may be of: of each level those with the highest rates.
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
            // Nodes of a split or merge under way make no tree: read again.
            if let Ok(view) = TreeView::partial(self.tree.root, nodes) {
                return Ok(view);
            }
        }
        Err(Error::Contended { what: "the inner nodes of a B-link tree".into(), tries: READS_MAX })
    }

    /// The inner nodes that the root leads to, read level by level: of each `most`.
    fn inner_nodes(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        rates: &Rates,
        most: usize,
    ) -> Result<BTreeMap<VirtAddr, TreeNode>, Error> {
        let mut found: BTreeMap<VirtAddr, TreeNode> = BTreeMap::new();
        let mut level = vec![Wanted { at: self.tree.root, first: 0, rate: rates.whole() }];
        while !level.is_empty() {
            // The most often come by; of equals those with the smaller keys.
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
                let is_inner = node.level > 0 && node.tag == self.tree.tag && node.state.is_read();
                // One that has other keys than its parent knew was merged into meanwhile, or has two parents.
                if is_inner && node.first == wanted.first && !found.contains_key(&at) {
                    nodes.push((wanted, node));
                }
            }
            nodes.sort_unstable_by_key(|(wanted, _)| wanted.first);
            apart(&mut nodes);
            for (Wanted { at, rate, .. }, node) in nodes {
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
                    level.extend(wanted.map(|(&(at, first, _), rate)| Wanted { at, first, rate }));
                }
                let pivots = node.entries[1..].iter().map(|(first, _)| *first).collect();
                let children = children.into_iter().map(|(at, ..)| at).collect();
                found.insert(at, TreeNode { level: node.level, pivots, children, accesses: rate });
            }
        }
        Ok(found)
    }
}

/// Leaves of two parents of a child the right one. A node that was merged into its right neighbour across a border of parents leaves its own parent with a way to
/// that neighbour, which has two parents then; tables have one. Keys between come there by a step to the right. Nodes are in the order of their keys.
fn apart(nodes: &mut Vec<(Wanted, Node)>) {
    let mut right = None;
    for (_, node) in nodes.iter_mut().rev() {
        let first_child = node.entries.first().map(|(_, child)| *child);
        // Two parents that were merged have both of their ways to one child.
        node.entries.dedup_by_key(|(_, child)| *child);
        // A neighbour that was split since has its right half behind it here.
        let shared = node.entries.iter().position(|(_, child)| right == Some(*child));
        node.entries.truncate(shared.unwrap_or(node.entries.len()));
        right = first_child;
    }
    nodes.retain(|(_, node)| !node.entries.is_empty());
}

/// A node that is to be read: the first key that its parent has for it, and how often it is come by.
struct Wanted {
    at: VirtAddr,
    first: u64,
    rate: u64,
}
