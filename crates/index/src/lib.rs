//! The in-network index of Fat-B+Tree: the upper levels of a B+tree as tables for a switch. Pure.
//!
//! A switch answers the top of a descent. The *fat root* ([`RangeTables`]), merged from nodes near the root,
//! finds the subtree of a key. Then each *node set* ([`NodeSet`]) descends by one node. The result is the
//! address of the deepest known node. The switch replaces the traversal's root by it ([`IndexTables`]), and
//! the memory node continues from there.
//!
//! The publisher of the tables reads the tree ([`TreeView`]) with the access rates of its nodes ([`Rates`]).
//! Then it merges the fat root ([`fat_root`]), selects the nodes of the sets ([`select_layers`]) and accounts
//! for their cost ([`Plan`]). [`blink`] is the tree itself: its nodes and their changes.
//!
//! ```text
//!           key              16 bits a stage               six stages a set
//!   host ---------> [ range table ] x 4 -> child -> [ one node ] -> child -> [ one node ] -> child ---> memory node
//! ```
//!
//! # The child of a key
//!
//! As in the trees of `crates/structures`, and unlike in the paper, a pivot is the smallest key of the child
//! to its right. Child i has the keys from pivot i - 1 on and below pivot i. The paper compares by `key >
//! pivot`. Here a key goes right unless `pivot > key`, which is the same comparator ([`greater`]) with
//! exchanged operands.
//!
//! An index leads to leaves (level 0) but never holds them: leaves have values, not addresses of nodes.
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
mod routes;
mod select;
mod tables;
mod tree;

pub use compare::{Compared, greater};
pub use extent::{Extent, ExtentFault};
pub use fabric::{FabricSwitch, divide};
pub use follow::{Hits, RATE_ONE, Rates, stale_steps, visits_saved};
pub use keys::{KeyBytes, prefix};
pub use nodes::{NodeSet, NodeSetError, SetNode};
pub use plan::{ADDR_BITS, Budget, COUNTER_BITS, Excess, Memory, PART_STAGES, Part, Plan, StageUse, Step};
pub use ranges::{Entry, Next, RangeError, RangeTables, STAGES, StageCount};
pub use routes::{ROUTES_KIND, RouteSection, RoutedTree, Routes, SERVERS_MAX, ServerRoute};
pub use select::{accesses_left, fat_root, select_layers};
pub use tables::{
    Branch, Descent, IndexTables, NODE_ALIGN, PROGRAMS_MAX, SECTION_KIND, SETS_MAX, SectionError,
    TABLE_BYTES_PER_BYTE, TREE_BYTES, TREES_MAX, TreeId, TreeReader, TreeSection, TreeTables, edition,
};
pub use tree::{TreeError, TreeNode, TreeView};

use farmem_wire::VirtAddr;

/// Most ranges of a fat root (Fat-B+Tree IV-A).
pub const RANGES_MAX: usize = 1024;
/// Default number of ranges of a fat root (Fat-B+Tree V-B).
pub const RANGES_DEFAULT: usize = 600;
/// Most nodes of a set (Fat-B+Tree IV-A).
pub const SET_NODES_MAX: usize = 4096;
/// Most children of a node.
pub const BRANCHES: usize = 16;
/// Most pivots of a node. The paper counts 16; a node of 16 children has one less.
pub const PIVOTS: usize = BRANCHES - 1;

/// A node of the tree that a key leads to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Child {
    /// Address of the node.
    pub addr: VirtAddr,
    /// Height above the leaves: 0 is a leaf.
    pub level: u8,
}

/// A range of the fat root: the keys `first..=last` lead to `child`.
///
/// The ranges of a fat root ascend, do not overlap, and cover all keys of `0..=u64::MAX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The smallest key.
    pub first: u64,
    /// The largest key.
    pub last: u64,
    /// The root of their subtree.
    pub child: Child,
}
