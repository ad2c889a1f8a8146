//! A B-link tree of many writers: which nodes are read, and which are replaced when they are still as they were read. Pure.
//!
//! The only way to change a node is to *replace* it, by one step of its memory node, if its head is still the one that was read
//! ([`Nodes::replace`]). There are no locks: a writer whose node was replaced meanwhile reads it again. A change of several nodes goes in an order
//! in which every state between two steps is a right tree, and any writer can carry it on.
//!
//! ```text
//!   split   1  right half into a new node; no node leads there       merge   1  left: Closing. It is still read, and written no more
//!           2  left half in place, with a link to the right one              2  right: takes the entries of both
//!           3  the parent learns of the right half                           3  left: Dead, leads to the right one
//!                                                                            4  the parent, then the left neighbour, forget it
//! ```
//!
//! A node only ever gives keys to the right: by a split to its new right neighbour, by a merge to the old one. So a descent that comes to a node by an
//! old pointer finds its key there or to the right, and it makes no difference how old the pointer is: a switch may have had it for long. Only a node
//! that was used again for other keys can lie to the right of the key. It says so by its first key ([`Turn::Left`]), or by its tag, and the descent
//! begins anew at the root, which never moves. (Lehman and Yao, 1981, for links and splits; Fat-B+Tree IV-B keeps nodes that the switches know in
//! their place for the same reason.)
//!
//! `tests/blink.rs` explores exhaustively what writers may do in which order.

mod node;
mod write;

pub use node::{ENTRIES_MAX, Head, LEVELS_MAX, NODE_LEN, Node, NodeError, State, Tag, Turn};

use farmem_wire::VirtAddr;

/// Nodes that one descent visits at most: far more than a tree has levels, as splits under way lead it to the right.
pub const VISITS_MAX: u32 = 1 << 16;
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

    /// Writes a node that no other node leads to, if possible on the memory node of `near`. If the place had a node before, the version goes on from that one's.
    ///
    /// # Errors
    /// When there is no room.
    fn create(&mut self, node: &Node, near: VirtAddr) -> Result<VirtAddr, Self::Error>;

    /// Takes back a node that was created and that no other node leads to.
    fn discard(&mut self, at: VirtAddr);

    /// A dead node that no other node leads to. Its place may be used again when every operation that has begun by now is over; what only reads may
    /// come later and is not misled.
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
    /// The value of `key`, by a descent from `from`: the root, or a node that led to the key once.
    ///
    /// # Errors
    /// The error of `nodes`; [`Fault`].
    pub fn get<N: Nodes>(&self, nodes: &mut N, from: VirtAddr, key: u64) -> Result<Option<u64>, N::Error> {
        let (_, leaf) = self.descend(nodes, from, 0, key)?;
        Ok(leaf.value(key))
    }

    /// The leaf that has `key` or would have it, by a descent from the root.
    ///
    /// # Errors
    /// The error of `nodes`; [`Fault`].
    pub fn leaf<N: Nodes>(&self, nodes: &mut N, key: u64) -> Result<Node, N::Error> {
        self.descend(nodes, self.root, 0, key).map(|(_, leaf)| leaf)
    }

    /// The node of this level that has `key` or would have it, by a descent from `from`.
    pub(crate) fn descend<N: Nodes>(
        &self,
        nodes: &mut N,
        from: VirtAddr,
        level: u8,
        key: u64,
    ) -> Result<(VirtAddr, Node), N::Error> {
        let mut at = from;
        for _ in 0..VISITS_MAX {
            let node = nodes.read(at)?;
            let ours = node.tag == self.tag && (node.level >= level || node.state == State::Dead);
            match node.turn(key) {
                _ if !ours && at == self.root => {
                    return Err(
                        Fault::Broken { at, what: "the root of another tree, or too low a tree" }.into()
                    );
                }
                Turn::Left if at == self.root => {
                    return Err(Fault::Broken { at, what: "a root that has not all keys" }.into());
                }
                _ if !ours => at = self.root,
                Turn::Left => at = self.root,
                Turn::To(to) if node.level > level || to == node.right => at = to,
                Turn::Here | Turn::To(_) => return Ok((at, node)),
            }
        }
        Err(Fault::Broken { at, what: "descents go in a circle" }.into())
    }
}
