//! What switches are told of a tree: its inner nodes are read, the fat root and the node sets selected (Fat-B+Tree II, III-B, III-C).

use super::BLinkTree;
use farmem_client::api::{Base64, SoftName, SoftSection};
use farmem_client::{Client, Error, FarMemory};
use farmem_index::blink::{NODE_LEN, Node, State};
use farmem_index::{
    Child, RANGES_DEFAULT, RANGES_MAX, Range, SECTION_KIND, SET_NODES_MAX, SETS_MAX, TreeNode, TreeSection,
    TreeView, fat_root, select_layers,
};
use farmem_wire::VirtAddr;
use std::collections::BTreeMap;

/// How often the inner nodes are read when others change them meanwhile.
const READS_MAX: u32 = 8;

/// How much of a tree goes into switches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Ranges of the fat root: 1 to [`RANGES_MAX`].
    pub ranges: usize,
    /// Node sets below it: at most [`SETS_MAX`].
    pub sets: usize,
    /// Nodes of each set: at most [`SET_NODES_MAX`].
    pub nodes: usize,
}

impl Default for Extent {
    /// The paper's: 600 ranges and three sets of 3,600 nodes (Fat-B+Tree V-B).
    fn default() -> Self {
        Self { ranges: RANGES_DEFAULT, sets: 3, nodes: 3_600 }
    }
}

impl Extent {
    fn check(&self) -> Result<(), Error> {
        for (what, have, least, most) in [
            ("ranges of a fat root", self.ranges, 1, RANGES_MAX),
            ("node sets of a tree", self.sets, 0, SETS_MAX),
            ("nodes of a set", self.nodes, 0, SET_NODES_MAX),
        ] {
            if !(least..=most).contains(&have) {
                return Err(Error::Count { what, have, least, most });
            }
        }
        Ok(())
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
    let section =
        |tree: &TreeSection| SoftSection { kind: SECTION_KIND, id: tree.root.0, bytes: Base64(tree.emit()) };
    client.load_soft_state(trees.iter().map(section).collect())
}

/// Withdraws the tree with this root: traversals of this client's domain begin there again. What is not published is withdrawn already.
///
/// # Errors
/// [`Error::Refused`] when the switch does not answer; [`Error::Api`] when nobody does.
pub fn withdraw(client: &mut Client, root: VirtAddr) -> Result<(), Error> {
    client.clear_soft_state(vec![SoftName { kind: SECTION_KIND, id: root.0 }])
}

impl BLinkTree {
    /// What a switch is told of the tree as it is now, for [`publish`]: look-ups and scans begin at the deepest node that it has of this. It holds however
    /// the tree changes later; look-ups then take some steps more.
    ///
    /// Reads every inner node, those of a level together. How often a node is on a way is taken to be how many leaves are below it.
    ///
    /// # Errors
    /// [`Error::Count`] when more is asked for than a switch takes; [`Error::Contended`] when the tree changed each time it was read; [`Error::Broken`] when
    /// it is broken; [`Error`] when far memory does not answer.
    pub fn section(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        extent: Extent,
    ) -> Result<TreeSection, Error> {
        extent.check()?;
        let view = self.view(memory)?;
        let mut ranges = fat_root(&view, extent.ranges);
        if ranges.is_empty() {
            let child = Child { addr: self.tree.root, level: 0 };
            ranges = vec![Range { first: 0, last: u64::MAX, child }];
        }
        let sets = select_layers(&view, &ranges, extent.sets, extent.nodes);
        let programs = vec![self.programs.get.hash(), self.programs.scan.hash()];
        Ok(TreeSection { root: self.tree.root, programs, ranges, sets })
    }

    /// The inner nodes as they are now.
    fn view(&self, memory: &mut (impl FarMemory + ?Sized)) -> Result<TreeView, Error> {
        for _ in 0..READS_MAX {
            let nodes = self.inner_nodes(memory)?;
            if nodes.is_empty() {
                return Ok(TreeView::default());
            }
            // Nodes of a split or merge under way make no tree: read again.
            if let Ok(view) = TreeView::new(self.tree.root, nodes) {
                return Ok(view);
            }
        }
        Err(Error::Contended { what: "the inner nodes of a B-link tree".into(), tries: READS_MAX })
    }

    /// The inner nodes that the root leads to, read level by level.
    fn inner_nodes(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
    ) -> Result<BTreeMap<VirtAddr, TreeNode>, Error> {
        let mut found: BTreeMap<VirtAddr, TreeNode> = BTreeMap::new();
        let mut order = Vec::new();
        let mut level = vec![self.tree.root];
        while !level.is_empty() {
            let mut bytes = vec![[0; NODE_LEN]; level.len()];
            let mut reads: Vec<_> =
                level.iter().zip(&mut bytes).map(|(&at, bytes)| (at, &mut bytes[..])).collect();
            memory.read_many(&mut reads)?;
            let mut below = Vec::new();
            for (at, bytes) in core::mem::take(&mut level).into_iter().zip(bytes) {
                let node = Node::parse(&bytes).map_err(|error| Error::Broken { addr: at, what: error.0 })?;
                let is_inner = node.level > 0 && node.tag == self.tree.tag && node.state != State::Dead;
                if !is_inner || found.contains_key(&at) {
                    continue;
                }
                let children: Vec<VirtAddr> =
                    node.entries.iter().map(|(_, child)| VirtAddr(*child)).collect();
                if node.level > 1 {
                    below.extend(&children);
                }
                let pivots = node.entries[1..].iter().map(|(first, _)| *first).collect();
                found.insert(at, TreeNode { level: node.level, pivots, children, accesses: 0 });
                order.push(at);
            }
            level = below;
        }
        // From the bottom up: a child that is not there is a leaf, or counts as one.
        for at in order.into_iter().rev() {
            let leaves = |child: &VirtAddr| found.get(child).map_or(1, |node| node.accesses.max(1));
            let accesses = found[&at].children.iter().map(leaves).sum();
            found.entry(at).and_modify(|node| node.accesses = accesses);
        }
        Ok(found)
    }
}
