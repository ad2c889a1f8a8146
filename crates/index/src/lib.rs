//! The in-network index of Fat-B+Tree: the upper levels of a B+tree as tables that a switch can hold. Pure.
//!
//! A switch answers the top of a descent on the way: the *fat root* ([`RangeTables`]), made of nodes near the root, says which subtree a key is in;
//! then each *node set* ([`NodeSet`]) takes the descent one node down. What comes out is the address of the deepest node that is known here. The
//! switch puts it into the traversal in the root's place ([`IndexTables`]), and the memory node goes on from there. The publisher of the tables reads the tree
//! ([`TreeView`]) with how often its nodes are come by ([`Rates`]), merges the fat root ([`fat_root`]), selects the nodes of the sets ([`select_layers`]) and
//! accounts for it ([`Plan`]). The tree itself, its nodes and how it changes, is in [`blink`].
//!
//! ```text
//!           key              16 bits a stage               six stages a set
//!   host ---------> [ range table ] x 4 -> child -> [ one node ] -> child -> [ one node ] -> child ---> memory node
//! ```
//!
//! # Which child a key is in
//!
//! As in the trees of `crates/structures`, and unlike in the paper, a pivot is the smallest key of the child to its right: child i has the keys from
//! pivot i - 1 on and below pivot i. The paper compares by `key > pivot`; here a key goes right unless `pivot > key`, which is the same comparator
//! ([`greater`]) with its operands exchanged.
//!
//! A leaf (level 0) is where an index leads to and never a part of it: what it has are values, no addresses of nodes.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod blink;
mod compare;
mod extent;
mod fabric;
mod follow;
mod keys;
mod nodes;
mod plan;
mod ranges;
mod select;
mod tables;
mod tree;
mod ways;

pub use compare::{Compared, greater};
pub use extent::Extent;
pub use fabric::{FabricSwitch, divide};
pub use follow::{Hits, RATE_ONE, Rates, led_astray, visits_saved};
pub use keys::{KeyBytes, prefix};
pub use nodes::{NodeSet, NodeSetError, SetNode};
pub use plan::{ADDR_BITS, Budget, COUNTER_BITS, Excess, Memory, PART_STAGES, Part, Plan, StageUse, Step};
pub use ranges::{Entry, Next, RangeError, RangeTables, STAGES, StageCount};
pub use select::{accesses_left, fat_root, select_layers};
pub use tables::{
    Branch, Descent, IndexTables, NODE_ALIGN, PROGRAMS_MAX, SECTION_KIND, SETS_MAX, SectionError,
    TABLE_BYTES_PER_BYTE, TREE_BYTES, TREES_MAX, TreeId, TreeReader, TreeSection, TreeTables, edition,
};
pub use tree::{TreeError, TreeNode, TreeView};
pub use ways::{LedTree, SERVERS_MAX, WAYS_KIND, Way, Ways, WaysSection};

use farmem_wire::VirtAddr;

/// The most ranges of a fat root (Fat-B+Tree IV-A).
pub const RANGES_MAX: usize = 1024;
/// The ranges of a fat root when nothing else is said (Fat-B+Tree V-B).
pub const RANGES_DEFAULT: usize = 600;
/// The most nodes of a set (Fat-B+Tree IV-A).
pub const SET_NODES_MAX: usize = 4096;
/// The most children of a node.
pub const BRANCHES: usize = 16;
/// The most pivots of a node. The paper counts 16; a node of 16 children has one less.
pub const PIVOTS: usize = BRANCHES - 1;

/// A node of the tree that a key leads to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Child {
    /// Where it is.
    pub addr: VirtAddr,
    /// Its height above the leaves: 0 is a leaf.
    pub level: u8,
}

/// A range of the fat root: the keys `first..=last` lead to `child`.
///
/// The ranges of a fat root ascend, do not overlap, and leave no key of `0..=u64::MAX` out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The smallest key.
    pub first: u64,
    /// The largest key.
    pub last: u64,
    /// The node below which they are.
    pub child: Child,
}
