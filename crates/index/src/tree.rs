//! The input of an index: inner nodes of a B+tree with pivots, children and accesses. Plain data, validated
//! once.

mod bulk;

use crate::nodes::{self, NodeSetError, SetNode};
use crate::{Child, Range};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use farmem_wire::VirtAddr;

/// A node of a tree as read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeNode {
    /// Height above the leaves: 0 is a leaf.
    pub level: u8,
    /// Pivots, ascending; at most [`crate::PIVOTS`]. Pivot i is the smallest key that child i + 1 may have.
    /// None in a leaf.
    pub pivots: Vec<u64>,
    /// Children, one more than pivots; none in a leaf.
    pub children: Vec<VirtAddr>,
    /// Descents through the node, counted in any period.
    pub accesses: u64,
}

/// A tree to be indexed: every inner node, and any of the leaves.
///
/// A missing child of a node of level 1 is a leaf. A root that is a leaf must be present.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TreeView {
    root: Option<VirtAddr>,
    nodes: BTreeMap<VirtAddr, NodeSpan>,
}

/// A node with the range of its keys.
#[derive(Clone, PartialEq, Eq, Debug)]
struct NodeSpan {
    node: TreeNode,
    first: u64,
    last: u64,
}

/// The reason why nodes are not a valid tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeError {
    /// The root is not among the nodes.
    NoRoot {
        /// Address of the root.
        addr: VirtAddr,
    },
    /// An inner node has a wrong number of children or pivots, or its pivots do not ascend.
    Node(NodeSetError),
    /// A leaf has children or pivots.
    Leaf {
        /// Address of the leaf.
        addr: VirtAddr,
    },
    /// A node leads to a missing one, or a child is the null pointer.
    Dangling {
        /// Address of the node.
        addr: VirtAddr,
        /// Address of the child.
        child: VirtAddr,
    },
    /// A child is not on a level below its parent.
    Level {
        /// Address of the parent.
        addr: VirtAddr,
        /// Address of the child.
        child: VirtAddr,
    },
    /// A node has two parents, or is twice a child of one.
    Shared {
        /// Address of the node.
        addr: VirtAddr,
    },
    /// A pivot lies outside the keys of its node, so that a child could have no key.
    Outside {
        /// Address of the node.
        addr: VirtAddr,
        /// The pivot.
        pivot: u64,
    },
    /// A key is not greater than the keys before it.
    Unsorted {
        /// The key.
        key: u64,
    },
    /// No path leads from the root to a node.
    Unreached {
        /// Address of the node.
        addr: VirtAddr,
    },
}

impl TreeView {
    /// Creates a tree of these nodes. [`TreeView::default`] is a tree without nodes; an empty tree of
    /// `crates/structures` has one leaf.
    ///
    /// # Errors
    /// [`TreeError`] if the nodes are not a valid tree. A tree read beside a writer may be inconsistent; then
    /// reading again helps.
    pub fn new(root: VirtAddr, nodes: BTreeMap<VirtAddr, TreeNode>) -> Result<Self, TreeError> {
        Self::partial(root, nodes).and_then(|view| view.is_whole().map(|()| view))
    }

    /// Creates a part of a tree: the root and some of its inner nodes, each with its parent. A missing node
    /// is no candidate of an index, but may be a target; its level is assumed to be one below its parent's.
    ///
    /// # Errors
    /// [`TreeError`] if the nodes are not a part of a tree.
    pub fn partial(root: VirtAddr, nodes: BTreeMap<VirtAddr, TreeNode>) -> Result<Self, TreeError> {
        if !nodes.contains_key(&root) {
            return Err(TreeError::NoRoot { addr: root });
        }
        let mut view = Self { root: Some(root), nodes: BTreeMap::new() };
        let mut unplaced = nodes;
        let mut waiting = vec![(root, 0, u64::MAX)];
        // Terminates: each iteration takes a node from `unplaced`, or a leaf of one of them.
        while let Some((addr, first, last)) = waiting.pop() {
            let Some(node) = unplaced.remove(&addr) else {
                // A leaf that is not there, or a node that was there before.
                if view.nodes.contains_key(&addr) {
                    return Err(TreeError::Shared { addr });
                }
                continue;
            };
            check(addr, &node, first, last)?;
            for &child in &node.children {
                check_child(addr, &node, child, unplaced.get(&child).or_else(|| view.node(child)))?;
            }
            waiting
                .extend(spans(&node.pivots, first, last).zip(&node.children).map(|((a, z), &c)| (c, a, z)));
            view.nodes.insert(addr, NodeSpan { node, first, last });
        }
        match unplaced.keys().next() {
            Some(&addr) => Err(TreeError::Unreached { addr }),
            None => view.leaves_are_apart().map(|()| view),
        }
    }

    /// Checks that every missing node is a leaf.
    fn is_whole(&self) -> Result<(), TreeError> {
        let above = self.nodes().filter(|(_, node)| node.level > 1);
        let mut children =
            above.flat_map(|(addr, node)| node.children.iter().map(move |&child| (addr, child)));
        match children.find(|(_, child)| !self.nodes.contains_key(child)) {
            Some((addr, child)) => Err(TreeError::Dangling { addr, child }),
            None => Ok(()),
        }
    }

    /// Checks that no missing node is a child twice, or a node's address.
    fn leaves_are_apart(&self) -> Result<(), TreeError> {
        let mut leaves: Vec<VirtAddr> = self
            .nodes
            .values()
            .flat_map(|span| &span.node.children)
            .filter(|child| !self.nodes.contains_key(child))
            .copied()
            .collect();
        leaves.sort_unstable();
        match leaves.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(TreeError::Shared { addr: pair[0] }),
            None => Ok(()),
        }
    }

    /// Returns the address of the root; `None` for a tree without nodes.
    #[must_use]
    pub const fn root(&self) -> Option<VirtAddr> {
        self.root
    }

    /// Returns the node at `addr`, if it is present.
    #[must_use]
    pub fn node(&self, addr: VirtAddr) -> Option<&TreeNode> {
        self.nodes.get(&addr).map(|span| &span.node)
    }

    /// Returns all nodes, in order of their addresses.
    pub fn nodes(&self) -> impl Iterator<Item = (VirtAddr, &TreeNode)> {
        self.nodes.iter().map(|(&addr, span)| (addr, &span.node))
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns true if there are no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the inner node at `addr`, a candidate of an index.
    pub(crate) fn inner(&self, addr: VirtAddr) -> Option<&TreeNode> {
        self.node(addr).filter(|node| node.level > 0)
    }

    /// Returns the range of all keys that lead to the node at `addr`.
    pub(crate) fn range_of(&self, addr: VirtAddr) -> Option<Range> {
        let NodeSpan { node, first, last } = self.nodes.get(&addr)?;
        Some(Range { first: *first, last: *last, child: Child { addr, level: node.level } })
    }

    /// Returns the ranges of the children of the inner node at `addr`.
    pub(crate) fn ranges_below(&self, addr: VirtAddr) -> Vec<Range> {
        let Some(NodeSpan { node, first, last }) = self.nodes.get(&addr) else { return Vec::new() };
        let children = node.children.iter().map(|&child| self.child(node, child));
        let spans = spans(&node.pivots, *first, *last);
        spans.zip(children).map(|((first, last), child)| Range { first, last, child }).collect()
    }

    /// Returns the inner node at `addr` in the form of a set's node.
    pub(crate) fn set_node(&self, addr: VirtAddr) -> Option<SetNode> {
        let node = self.inner(addr)?;
        let children = node.children.iter().map(|&child| self.child(node, child)).collect();
        Some(SetNode { addr, pivots: node.pivots.clone(), children })
    }

    fn child(&self, parent: &TreeNode, addr: VirtAddr) -> Child {
        let below = parent.level.saturating_sub(1);
        Child { addr, level: self.node(addr).map_or(below, |node| node.level) }
    }
}

/// Returns the key range of each child of a node with the keys `first..=last`.
fn spans(pivots: &[u64], first: u64, last: u64) -> impl Iterator<Item = (u64, u64)> {
    let firsts = [first].into_iter().chain(pivots.iter().copied());
    let lasts = pivots.iter().map(|pivot| pivot - 1).chain([last]);
    firsts.zip(lasts)
}

fn check(addr: VirtAddr, node: &TreeNode, first: u64, last: u64) -> Result<(), TreeError> {
    if node.level == 0 {
        let empty = node.pivots.is_empty() && node.children.is_empty();
        return if empty { Ok(()) } else { Err(TreeError::Leaf { addr }) };
    }
    nodes::check(addr, &node.pivots, node.children.len()).map_err(TreeError::Node)?;
    match node.pivots.iter().find(|&&pivot| pivot <= first || pivot > last) {
        Some(&pivot) => Err(TreeError::Outside { addr, pivot }),
        None => Ok(()),
    }
}

fn check_child(
    addr: VirtAddr,
    node: &TreeNode,
    child: VirtAddr,
    found: Option<&TreeNode>,
) -> Result<(), TreeError> {
    match found {
        _ if child.is_null() => Err(TreeError::Dangling { addr, child }),
        Some(below) if below.level >= node.level => Err(TreeError::Level { addr, child }),
        None if child == addr => Err(TreeError::Level { addr, child }),
        _ => Ok(()),
    }
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoRoot { addr } => write!(f, "the root at {addr} is not among the nodes"),
            Self::Node(error) => error.fmt(f),
            Self::Leaf { addr } => write!(f, "the leaf at {addr} has children or pivots"),
            Self::Dangling { addr, child } => {
                write!(f, "the node at {addr} has a child at {child}, but there is no node")
            }
            Self::Level { addr, child } => write!(f, "the child at {child} is not below its node at {addr}"),
            Self::Shared { addr } => write!(f, "the node at {addr} is a child more than once"),
            Self::Outside { addr, pivot } => {
                write!(f, "the pivot {pivot} of the node at {addr} is outside the node's keys")
            }
            Self::Unsorted { key } => {
                write!(f, "the key {key} is not greater than the previous one; sort the keys")
            }
            Self::Unreached { addr } => write!(f, "no path leads from the root to the node at {addr}"),
        }
    }
}

impl core::error::Error for TreeError {}

#[cfg(test)]
mod tests;
