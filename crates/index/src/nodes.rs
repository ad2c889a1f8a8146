//! Regular nodes of the index: sets of 16-branch nodes, of which a key visits one (Fat-B+Tree III-A, C).
//!
//! A switch holds a set in three kinds of tables, which [`NodeSet::step`] looks up in this order:
//!
//! - `get_pivot`: one table per pivot, an entry per node.
//! - `cal_result`: the comparator, one per pivot.
//! - `get_child_address`: an entry per child.
//!
//! The results of the comparison are ones followed by zeros, which identifies the child.

use crate::{BRANCHES, Child, SET_NODES_MAX, greater};
use alloc::vec::Vec;
use core::fmt;
use farmem_wire::VirtAddr;

/// A node of a set. Child i has the keys from pivot i - 1 on and below pivot i.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SetNode {
    /// Address in far memory.
    pub addr: VirtAddr,
    /// Pivots, ascending; at most [`PIVOTS`](crate::PIVOTS).
    pub pivots: Vec<u64>,
    /// Children, one more than pivots.
    pub children: Vec<Child>,
}

/// The reason why nodes are not a valid set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeSetError {
    /// There are more nodes than [`SET_NODES_MAX`].
    TooMany {
        /// Number of nodes.
        have: usize,
    },
    /// Two nodes have the same address.
    Twice {
        /// Address of both.
        addr: VirtAddr,
    },
    /// A node has more than [`BRANCHES`] children, none, or not one more than pivots.
    Children {
        /// Address of the node.
        addr: VirtAddr,
        /// Number of children.
        children: usize,
        /// Number of pivots.
        pivots: usize,
    },
    /// The pivots of a node do not ascend.
    Pivots {
        /// Address of the node.
        addr: VirtAddr,
    },
}

/// A set of nodes of which a key visits at most one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeSet {
    /// Nodes in order of their addresses.
    nodes: Vec<SetNode>,
}

/// The bits `result[14:0]`: bit i is set if the key is not below pivot i.
type Results = u16;

impl NodeSet {
    /// Creates a set of these nodes, in any order; it may be empty.
    ///
    /// # Errors
    /// [`NodeSetError`] if there are too many nodes, two have the same address, or one is invalid.
    pub fn new(mut nodes: Vec<SetNode>) -> Result<Self, NodeSetError> {
        if nodes.len() > SET_NODES_MAX {
            return Err(NodeSetError::TooMany { have: nodes.len() });
        }
        for SetNode { addr, pivots, children } in &nodes {
            check(*addr, pivots, children.len())?;
        }
        nodes.sort_unstable_by_key(|node| node.addr);
        match nodes.windows(2).find(|pair| pair[0].addr == pair[1].addr) {
            Some(pair) => Err(NodeSetError::Twice { addr: pair[0].addr }),
            None => Ok(Self { nodes }),
        }
    }

    /// Returns the child of the node `at` for `key`; `None` if the node is not in this set.
    #[must_use]
    pub fn step(&self, at: VirtAddr, key: u64) -> Option<Child> {
        self.branch(at, key).map(|(.., child)| child)
    }

    /// Returns the child of [`NodeSet::step`] with its branch: the index of the node in the set, and of the
    /// child in the node.
    #[must_use]
    pub fn branch(&self, at: VirtAddr, key: u64) -> Option<(usize, usize, Child)> {
        let place = self.nodes.binary_search_by_key(&at, |node| node.addr).ok()?;
        let node = &self.nodes[place];
        let results = (0..node.pivots.len()).fold(0, |results, i| match node.get_pivot(i) {
            Some(pivot) => results | cal_result(key, pivot) << i,
            None => results,
        });
        let rank = usize::try_from(results.trailing_ones()).ok()?;
        Some((place, rank, *node.children.get(rank)?))
    }

    /// Returns the nodes, in order of their addresses.
    #[must_use]
    pub fn nodes(&self) -> &[SetNode] {
        &self.nodes
    }

    /// Returns the number of nodes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns true if the set has no nodes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

impl SetNode {
    /// Returns pivot i; a node with fewer pivots has no entry in that table.
    fn get_pivot(&self, i: usize) -> Option<u64> {
        self.pivots.get(i).copied()
    }
}

/// Returns 1 if the key is not below the pivot. The comparator's operands are exchanged, so that a key equal
/// to the pivot goes right.
fn cal_result(key: u64, pivot: u64) -> Results {
    Results::from(!greater(pivot, key))
}

/// Checks that a node has 1 to 16 children, with ascending pivots between them.
pub(crate) fn check(addr: VirtAddr, pivots: &[u64], children: usize) -> Result<(), NodeSetError> {
    if children > BRANCHES || children != pivots.len() + 1 {
        return Err(NodeSetError::Children { addr, children, pivots: pivots.len() });
    }
    if !pivots.is_sorted_by(|a, b| a < b) {
        return Err(NodeSetError::Pivots { addr });
    }
    Ok(())
}

impl fmt::Display for NodeSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooMany { have } => {
                write!(f, "the set has {have} nodes, more than {SET_NODES_MAX}")
            }
            Self::Twice { addr } => write!(f, "two nodes of the set are at {addr}"),
            Self::Children { addr, children, pivots } => write!(
                f,
                "the node at {addr} has {children} children and {pivots} pivots; expected 1 to {BRANCHES} children and one pivot less"
            ),
            Self::Pivots { addr } => write!(f, "the pivots of the node at {addr} do not ascend"),
        }
    }
}

impl core::error::Error for NodeSetError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PIVOTS;
    use alloc::vec;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn leaf(addr: u64) -> Child {
        Child { addr: VirtAddr(addr), level: 0 }
    }

    fn node(addr: u64, pivots: &[u64]) -> SetNode {
        let children = (0..=pivots.len() as u64).map(|n| leaf(addr * 1000 + n)).collect();
        SetNode { addr: VirtAddr(addr), pivots: pivots.to_vec(), children }
    }

    /// A full node, one with one child, one with one pivot; the smallest and the largest key.
    #[test]
    fn a_key_goes_to_the_child_that_has_it() {
        let full: Vec<u64> = (1..=15).map(|n| n * 10).collect();
        let set = NodeSet::new(vec![node(3, &full), node(1, &[]), node(2, &[u64::MAX])]).unwrap();
        let step = |at, key| set.step(VirtAddr(at), key).map(|child| child.addr.0);
        assert_eq!(
            [0, 9, 10, 19, 149, 150, u64::MAX].map(|key| step(3, key).unwrap() - 3000),
            [0, 0, 1, 1, 14, 15, 15]
        );
        assert_eq!([0, u64::MAX].map(|key| step(1, key)), [Some(1000); 2]);
        assert_eq!([0, u64::MAX - 1, u64::MAX].map(|key| step(2, key).unwrap() - 2000), [0, 0, 1]);
        assert_eq!(step(4, 7), None);
        assert_eq!((set.len(), NodeSet::new(vec![]).unwrap().step(VirtAddr(0), 0)), (3, None));
    }

    #[test]
    fn what_is_no_set_is_refused() {
        let (addr, pivots) = (VirtAddr(7), 15);
        let sixteen: Vec<u64> = (0..16).collect();
        assert_eq!(
            NodeSet::new(vec![node(7, &sixteen)]),
            Err(NodeSetError::Children { addr, children: 17, pivots: 16 })
        );
        let mut short = node(7, &sixteen[..15]);
        short.children.pop();
        assert_eq!(NodeSet::new(vec![short]), Err(NodeSetError::Children { addr, children: 15, pivots }));
        let none = SetNode { addr, pivots: vec![], children: vec![] };
        assert_eq!(NodeSet::new(vec![none]), Err(NodeSetError::Children { addr, children: 0, pivots: 0 }));
        for pivots in [[2, 1], [1, 1]] {
            assert_eq!(NodeSet::new(vec![node(7, &pivots)]), Err(NodeSetError::Pivots { addr }));
        }
        assert_eq!(NodeSet::new(vec![node(7, &[1]), node(7, &[2])]), Err(NodeSetError::Twice { addr }));
        let many = |count| NodeSet::new((0..count).map(|addr| node(addr, &[])).collect());
        assert_eq!(many(4097), Err(NodeSetError::TooMany { have: 4097 }));
        assert_eq!(many(4096).map(|set| set.len()), Ok(4096));
    }

    proptest! {
        /// Compares a step with the plain search of the trees in `crates/structures`.
        #[test]
        fn a_step_is_a_plain_search(
            pivots in proptest::collection::btree_set(any::<u64>(), 0..=PIVOTS),
            keys in proptest::collection::vec(any::<u64>(), 20),
        ) {
            let all: BTreeSet<u64> = pivots.iter().flat_map(|&p| [p.saturating_sub(1), p, p.saturating_add(1)]).chain(keys).collect();
            let pivots: Vec<u64> = pivots.into_iter().collect();
            let set = NodeSet::new(vec![node(5, &pivots)]).unwrap();
            for key in all {
                let rank = pivots.partition_point(|&pivot| pivot <= key);
                prop_assert_eq!(set.step(VirtAddr(5), key), Some(leaf(5000 + rank as u64)));
            }
        }
    }
}
