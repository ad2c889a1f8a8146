//! A B-link tree with many writers. Pure.
//!
//! The only way to change a node is to *replace* it ([`Nodes::replace`]): its memory node does so in one
//! step, if the node's head is still the one that was read. There are no locks; a writer whose node was
//! replaced meanwhile reads it again. A change of several nodes happens in an order in which every
//! intermediate state is a valid tree, and any writer can complete it.
//!
//! ```text
//!   split   1  right half into a new node: New; no node leads there    merge   1  left: Closing. Readable, no longer writable
//!           2  left half in place, with a link to the right one                2  right: Taking. Has the entries of both, is not writable
//!           3  right half: Young. Readable and writable                        3  left: Dead, leads to the right one
//!           4  the level above gets a pointer to the right half                4  the level above, then the left neighbour, drop the left one
//!           5  right half: Live. From now on it may split and close            5  right: Live. The left one's place is free
//!
//!   The root never moves. A full root gets two new nodes as children, each from 3 on as above. A root with a single child takes the child's
//!   entries: a merge of the child into the root, which is then a level lower.
//! ```
//!
//! A node gives keys only to the right: by a split to its new right neighbour, by a merge to the old one. So
//! a descent by an old pointer finds its key at the node or to the right, however old the pointer is; a
//! switch may have held it for long. (Lehman and Yao, 1981, for links and splits; Fat-B+Tree IV-B keeps nodes
//! that switches know in place for the same reason.)
//!
//! *Places are reused* at once, without a grace period for descents that are on the way there. Two rules make
//! this correct.
//!
//! - Only a node that the tree leads to is readable. A descent by an old pointer to a reused place finds a
//!   node of the tree, and continues there. Or it finds no readable node, one to the right of the key
//!   ([`NextStep::Stale`]), or one of another tree: then it restarts at the root. A new node is marked
//!   ([`State::New`]), because its entries may be old before it is linked. A descent that arrives from a node
//!   that led there all the time may read it.
//! - A place becomes free when no node leads there, and none will. A writer links a node only while it is
//!   `Young` or `Taking`, which the writer checks after it read the parent. The node keeps this state until
//!   all its parents lead to it. So a slow writer finds the parent changed.
//!
//! `tests/blink` explores the possible interleavings of writers.

mod merge;
mod node;
mod write;

pub use node::{ENTRIES_MAX, Head, LEVELS_MAX, NODE_LEN, NextStep, Node, NodeError, State, Tag};

use farmem_wire::VirtAddr;

/// Most nodes that one descent visits: far more than the levels of a tree, because splits in progress lead it
/// to the right.
pub const VISITS_MAX: u32 = 1 << 16;
/// Most steps to the right before a descent has visited the root; then it restarts there. A reused place may
/// be any number of nodes to the left of the keys that an old pointer led there for, and the path from the
/// root is short.
pub const ASIDE_MAX: u32 = 16;
/// Most restarts of one operation because other writers were faster.
pub const TRIES_MAX: u32 = 1 << 12;

/// The storage of a tree's nodes.
pub trait Nodes {
    /// The error of an access.
    type Error: From<Fault>;

    /// Reads the node at an address.
    ///
    /// # Errors
    /// If the node cannot be read or is invalid ([`Fault::Broken`]).
    fn read(&mut self, at: VirtAddr) -> Result<Node, Self::Error>;

    /// Replaces the node at `at` by `node` in one step, if it still has this head; returns whether it had.
    ///
    /// # Errors
    /// If the outcome is unknown.
    fn replace(&mut self, at: VirtAddr, head: Head, node: &Node) -> Result<bool, Self::Error>;

    /// Writes a node that no other node leads to into an empty place, if possible on the memory node of
    /// `near`. Returns the place and the head there. If the place had a node before, the version continues
    /// from that node's.
    ///
    /// # Errors
    /// If there is no room.
    fn create(&mut self, node: &Node, near: VirtAddr) -> Result<(VirtAddr, Head), Self::Error>;

    /// Frees a place: its node was created and never linked, or it is dead and no node leads to it any more.
    fn retire(&mut self, at: VirtAddr);
}

/// A fault of a tree, or of its use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The place has no node of this tree, or its node leads nowhere.
    Broken {
        /// Address of the place.
        at: VirtAddr,
        /// Description of the fault.
        what: &'static str,
    },
    /// Other writers changed the tree faster than this operation, [`TRIES_MAX`] times in a row.
    Busy,
}

/// A tree: its root, the tag of its nodes, and their capacity. The root never moves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tree {
    /// Address of the root.
    pub root: VirtAddr,
    /// The tag of all its nodes.
    pub tag: Tag,
    /// Most entries of a node: 2 to [`ENTRIES_MAX`].
    pub entries: usize,
}

impl Tree {
    /// Returns the value of `key`, by a descent from `from`: the root, or any place that ever had a node of
    /// the tree.
    ///
    /// # Errors
    /// The error of `nodes`; [`Fault`].
    pub fn get<N: Nodes>(&self, nodes: &mut N, from: VirtAddr, key: u64) -> Result<Option<u64>, N::Error> {
        Ok(self.leaf_from(nodes, from, key)?.value(key))
    }

    /// Returns the leaf for `key`, by a descent from the root.
    ///
    /// # Errors
    /// The error of `nodes`; [`Fault`].
    pub fn leaf<N: Nodes>(&self, nodes: &mut N, key: u64) -> Result<Node, N::Error> {
        self.leaf_from(nodes, self.root, key)
    }

    fn leaf_from<N: Nodes>(&self, nodes: &mut N, from: VirtAddr, key: u64) -> Result<Node, N::Error> {
        let found = self.descend(nodes, from, 0, key)?;
        Ok(found.expect("every tree has leaves").1)
    }

    /// Returns the node of this level for `key`, by a descent from `from`. None if the tree is lower.
    pub(crate) fn descend<N: Nodes>(
        &self,
        nodes: &mut N,
        from: VirtAddr,
        level: u8,
        key: u64,
    ) -> Result<Option<Found>, N::Error> {
        let mut at = from;
        // The last node of the tree, which led here.
        let mut led: Option<(VirtAddr, Head)> = None;
        // Remaining steps to the right, until the descent visits the root.
        let mut aside = Some(ASIDE_MAX);
        for _ in 0..VISITS_MAX {
            let node = nodes.read(at)?;
            if at == self.root {
                aside = None;
                if node.tag != self.tag || !node.state.is_readable() || key < node.first {
                    return Err(Fault::Broken { at, what: "the root of another tree, or none" }.into());
                }
                if node.level < level {
                    return Ok(None);
                }
            }
            let is_linked = match node.state {
                _ if node.tag != self.tag => false,
                State::New => self.leads_still(nodes, led)?,
                state => state.is_readable(),
            };
            let turn =
                if is_linked && node.level >= level { node.next_step_by_keys(key) } else { NextStep::Stale };
            let is_dead = node.state == State::Dead && node.tag == self.tag;
            let is_aside = is_dead || turn == NextStep::To(node.right) && key > node.last;
            match turn {
                _ if is_aside && aside == Some(0) => (at, led) = (self.root, None),
                _ if is_dead => {
                    (at, led) = (node.right, None);
                    aside = aside.map(|left| left - 1);
                }
                NextStep::Stale => (at, led) = (self.root, None),
                NextStep::To(child) if node.level > level || key > node.last => {
                    (at, led) = (child, Some((at, node.head())));
                    aside = aside.map(|left| left - u32::from(is_aside));
                }
                NextStep::Leaf | NextStep::To(_) => return Ok(Some((at, node))),
            }
        }
        Err(Fault::Broken { at, what: "descents go in a circle" }.into())
    }

    /// Returns true if the node that led to a new one is unchanged: it led there all the time, so the new
    /// node is linked.
    fn leads_still<N: Nodes>(&self, nodes: &mut N, led: Option<(VirtAddr, Head)>) -> Result<bool, N::Error> {
        let Some((at, head)) = led else { return Ok(false) };
        Ok(nodes.read(at)?.head() == head)
    }
}

/// A node with its address.
type Found = (VirtAddr, Node);
