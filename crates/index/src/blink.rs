//! A B-link tree of many writers: which nodes are read, and which are replaced when they are still as they were read. Pure.
//!
//! The only way to change a node is to *replace* it, by one step of its memory node, if its head is still the one that was read
//! ([`Nodes::replace`]). There are no locks: a writer whose node was replaced meanwhile reads it again. A change of several nodes goes in an order
//! in which every state between two steps is a right tree, and any writer can carry it on.
//!
//! ```text
//!   split   1  right half into a new node: New; no node leads there    merge   1  left: Closing. It is still read, and written no more
//!           2  left half in place, with a link to the right one                2  right: Taking. It has the entries of both, and is not written
//!           3  right half: Young. It is read and written                       3  left: Dead, leads to the right one
//!           4  the level above learns of the right half                        4  the level above, then the left neighbour, forget it
//!           5  right half: Live. It may split and close from now on            5  right: Live. The left one's place is free
//!
//!   The root never moves. A full one gets two new nodes as children, each from 3 on as above. One with a single child takes that one's entries: as a merge of
//!   the child into the root, which is then a level lower.
//! ```
//!
//! A node only ever gives keys to the right: by a split to its new right neighbour, by a merge to the old one. So a descent that comes to a node by an
//! old pointer finds its key there or to the right, and it makes no difference how old the pointer is: a switch may have had it for long. (Lehman and Yao,
//! 1981, for links and splits; Fat-B+Tree IV-B keeps nodes that the switches know in their place for the same reason.)
//!
//! *Places are used again*, at once: nobody waits for who may still be on the way there. Two rules make that right.
//!
//! - A node that can be read is one that the tree leads to. Who comes by an old pointer to a place that was used again finds a node of the tree, and goes on from
//!   there, or it is not one, is to the right of the key ([`Turn::Left`]), or of another tree: then the descent begins anew at the root. A new node says so
//!   ([`State::New`]), as its entries may be old before it is linked; who comes there from a node that has led there all the time knows better.
//! - A place becomes free when no node leads there, and none will. A writer has a node lead somewhere only while what is there is `Young` or `Taking`, which it looks at
//!   after it has read the node; and what is there stays so until all nodes that are to lead there do. So a writer that was slow finds the node changed.
//!
//! `tests/blink` explores what writers may do in which order.

mod merge;
mod node;
mod write;

pub use node::{ENTRIES_MAX, Head, LEVELS_MAX, NODE_LEN, Node, NodeError, State, Tag, Turn};

use farmem_wire::VirtAddr;

/// Nodes that one descent visits at most: far more than a tree has levels, as splits under way lead it to the right.
pub const VISITS_MAX: u32 = 1 << 16;
/// Steps to the right that a descent takes before it has come by the root: then it begins anew there. A place that is used again may be any number of nodes to the left of the keys
/// that an old pointer led there for, and the way from the root is short.
pub const ASIDE_MAX: u32 = 16;
/// How often one operation begins anew at most, because others were faster.
pub const TRIES_MAX: u32 = 1 << 12;

/// Where nodes are.
pub trait Nodes {
    /// What can go wrong there.
    type Error: From<Fault>;

    /// The node at an address.
    ///
    /// # Errors
    /// When it cannot be read or is none ([`Fault::Broken`]).
    fn read(&mut self, at: VirtAddr) -> Result<Node, Self::Error>;

    /// Has `node` take the place of the node at `at` if that still has this head, in one step; answers whether it had.
    ///
    /// # Errors
    /// When that is not known.
    fn replace(&mut self, at: VirtAddr, head: Head, node: &Node) -> Result<bool, Self::Error>;

    /// Puts a node that no other node leads to into a place that has none, if possible on the memory node of `near`; answers where, and the head that it has there. If
    /// the place had a node before, the version goes on from that one's.
    ///
    /// # Errors
    /// When there is no room.
    fn create(&mut self, node: &Node, near: VirtAddr) -> Result<(VirtAddr, Head), Self::Error>;

    /// This place is free: the node there was created and never linked, or it is dead and no node leads to it any more.
    fn retire(&mut self, at: VirtAddr);
}

/// What is wrong with a tree, or with the way it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// There is no node of this tree, or it leads nowhere.
    Broken {
        /// Where.
        at: VirtAddr,
        /// What is wrong.
        what: &'static str,
    },
    /// Others changed the tree faster than this operation could for [`TRIES_MAX`] times.
    Busy,
}

/// A tree: where its root is, what its nodes are known by, how many entries they take. The root never moves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tree {
    /// The root.
    pub root: VirtAddr,
    /// The tag of all its nodes.
    pub tag: Tag,
    /// Entries of a node: 2 to [`ENTRIES_MAX`].
    pub entries: usize,
}

impl Tree {
    /// The value of `key`, by a descent from `from`: the root, or any place that a node was at once.
    ///
    /// # Errors
    /// The error of `nodes`; [`Fault`].
    pub fn get<N: Nodes>(&self, nodes: &mut N, from: VirtAddr, key: u64) -> Result<Option<u64>, N::Error> {
        Ok(self.leaf_from(nodes, from, key)?.value(key))
    }

    /// The leaf that has `key` or would have it, by a descent from the root.
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

    /// The node of this level that has `key` or would have it, by a descent from `from`. None when the tree is lower.
    pub(crate) fn descend<N: Nodes>(
        &self,
        nodes: &mut N,
        from: VirtAddr,
        level: u8,
        key: u64,
    ) -> Result<Option<Found>, N::Error> {
        let mut at = from;
        // The node of the tree that led here.
        let mut led: Option<(VirtAddr, Head)> = None;
        // Steps to the right that are left, until the descent comes by the root.
        let mut aside = Some(ASIDE_MAX);
        for _ in 0..VISITS_MAX {
            let node = nodes.read(at)?;
            if at == self.root {
                aside = None;
                if node.tag != self.tag || !node.state.is_read() || key < node.first {
                    return Err(Fault::Broken { at, what: "the root of another tree, or none" }.into());
                }
                if node.level < level {
                    return Ok(None);
                }
            }
            let is_linked = match node.state {
                _ if node.tag != self.tag => false,
                State::New => self.leads_still(nodes, led)?,
                state => state.is_read(),
            };
            let turn = if is_linked && node.level >= level { node.turn_of_keys(key) } else { Turn::Left };
            let is_dead = node.state == State::Dead && node.tag == self.tag;
            let is_aside = is_dead || turn == Turn::To(node.right) && key > node.last;
            match turn {
                _ if is_aside && aside == Some(0) => (at, led) = (self.root, None),
                _ if is_dead => {
                    (at, led) = (node.right, None);
                    aside = aside.map(|left| left - 1);
                }
                Turn::Left => (at, led) = (self.root, None),
                Turn::To(child) if node.level > level || key > node.last => {
                    (at, led) = (child, Some((at, node.head())));
                    aside = aside.map(|left| left - u32::from(is_aside));
                }
                Turn::Here | Turn::To(_) => return Ok(Some((at, node))),
            }
        }
        Err(Fault::Broken { at, what: "descents go in a circle" }.into())
    }

    /// True when a node that led to a new one leads there still: it has all the time, so the new one is linked.
    fn leads_still<N: Nodes>(&self, nodes: &mut N, led: Option<(VirtAddr, Head)>) -> Result<bool, N::Error> {
        let Some((at, head)) = led else { return Ok(false) };
        Ok(nodes.read(at)?.head() == head)
    }
}

/// A node where it was read.
type Found = (VirtAddr, Node);
