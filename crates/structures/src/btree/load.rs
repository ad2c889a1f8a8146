//! Bulk load: creates leaves and inner nodes from left to right, level by level, and writes them in large
//! pieces.

use super::node::{NODE_LEN, Node, UNUSED};
use super::{BTree, KEYS_MAX};
use crate::arena::Arena;
use farmem_client::{Error, FarMemory};
use farmem_wire::VirtAddr;

/// Bytes of one WRITE of a bulk load.
const WRITE_LEN: usize = 64 << 10;
/// Bound on the WRITEs sent together.
const PIECES_MAX: usize = 32;
/// Children of an inner node.
const CHILDREN_MAX: usize = KEYS_MAX + 1;

/// A key and its value.
type Pair = (u64, u64);

/// A node of the level below: its smallest key and its address.
type Child = (u64, u64);

impl BTree {
    /// Fills an empty tree from pairs in ascending order of keys, with `fill` keys per leaf: at least one, at
    /// most the tree's maximum.
    ///
    /// A partitioned tree gives each memory node an equal share of the leaves. An inner node lies on the
    /// memory node of its first child.
    ///
    /// # Errors
    /// [`Error::Key`] for the first key that does not ascend; [`Error`] when far memory has no room or does
    /// not answer. The tree then stays empty. [`Error::Broken`] when the tree is not empty.
    ///
    /// # Panics
    /// Panics when `pairs` yields fewer items than its length says.
    pub fn load(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        pairs: impl ExactSizeIterator<Item = (u64, u64)>,
        fill: usize,
    ) -> Result<(), Error> {
        if self.read_node(memory, self.header.root)? != Node::leaf(&[], 0) {
            return Err(Error::Broken { addr: self.header.root, what: "an empty tree" });
        }
        let mut pieces = Pieces::default();
        let built = self.build(memory, pairs, fill.clamp(1, self.header.leaf_max), &mut pieces);
        let finished = pieces.send(memory);
        let root = built?;
        finished?;
        // All nodes below the root are written: one write publishes them.
        memory.write(self.header.root, &root.emit())
    }

    /// Creates everything below the root. Returns the root.
    fn build(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        pairs: impl ExactSizeIterator<Item = (u64, u64)>,
        fill: usize,
        pieces: &mut Pieces,
    ) -> Result<Node, Error> {
        let leaves = pairs.len().div_ceil(fill);
        let mut pairs = ascending(pairs, Some(UNUSED));
        if leaves <= 1 {
            let all: Vec<Pair> = pairs.collect::<Result<_, _>>()?;
            assert!(all.len() <= fill, "an ExactSizeIterator has as many items as it says");
            return Ok(Node::leaf(&all, 0));
        }
        let mut level: Vec<Child> = Vec::with_capacity(leaves);
        let mut next = self.arena.take(memory, 0)?;
        for number in 0..leaves {
            let leaf: Vec<Pair> = pairs.by_ref().take(fill).collect::<Result<_, _>>()?;
            let (addr, mut link) = (next, 0);
            if number + 1 < leaves {
                next = self.arena.take(memory, (number + 1) * self.arena.homes() / leaves)?;
                link = next.0;
            }
            let first = leaf.first().expect("an ExactSizeIterator has as many items as it says");
            level.push((first.0, addr.0));
            pieces.put(memory, &self.arena, addr, &Node::leaf(&leaf, link).emit())?;
        }
        while level.len() > CHILDREN_MAX {
            level = self.level_above(memory, &level, pieces)?;
        }
        Ok(inner(&level))
    }

    fn level_above(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        level: &[Child],
        pieces: &mut Pieces,
    ) -> Result<Vec<Child>, Error> {
        let mut above = Vec::with_capacity(level.len().div_ceil(CHILDREN_MAX));
        for children in level.chunks(CHILDREN_MAX) {
            let home = self.arena.home_of(memory, VirtAddr(children[0].1));
            let addr = self.arena.take(memory, home)?;
            above.push((children[0].0, addr.0));
            pieces.put(memory, &self.arena, addr, &inner(children).emit())?;
        }
        Ok(above)
    }
}

fn inner(children: &[Child]) -> Node {
    let keys = children[1..].iter().map(|child| child.0).collect();
    Node::inner(keys, children.iter().map(|child| child.1).collect())
}

/// Returns the pairs as long as their keys ascend and no key is `refused`.
pub(crate) fn ascending(
    pairs: impl Iterator<Item = (u64, u64)>,
    refused: Option<u64>,
) -> impl Iterator<Item = Result<(u64, u64), Error>> {
    let mut last = None;
    pairs.map(move |(key, value)| {
        let ascends = last.is_none_or(|last| last < key);
        last = Some(key);
        if refused == Some(key) {
            return Err(Error::Key { key, reason: super::UNUSED_REASON });
        }
        if !ascends {
            return Err(Error::Key { key, reason: "the keys of a bulk load ascend, each is there once" });
        }
        Ok((key, value))
    })
}

/// Pending node writes. Nodes adjacent in one allocation share one WRITE, and several WRITEs go together.
#[derive(Default)]
pub(crate) struct Pieces {
    pieces: Vec<Piece>,
}

struct Piece {
    start: VirtAddr,
    bytes: Vec<u8>,
}

impl Pieces {
    pub(crate) fn put(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        arena: &Arena,
        addr: VirtAddr,
        node: &[u8; NODE_LEN],
    ) -> Result<(), Error> {
        if let Some(last) = self.pieces.last_mut()
            && last.start.0 + last.bytes.len() as u64 == addr.0
            && last.bytes.len() < WRITE_LEN
            && arena.goes_on_at(addr)
        {
            last.bytes.extend_from_slice(node);
            return Ok(());
        }
        if self.pieces.len() == PIECES_MAX {
            self.send(memory)?;
        }
        let mut bytes = memory.buffer(0);
        bytes.extend_from_slice(node);
        self.pieces.push(Piece { start: addr, bytes });
        Ok(())
    }

    pub(crate) fn send(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        let writes: Vec<(VirtAddr, &[u8])> =
            self.pieces.iter().map(|piece| (piece.start, piece.bytes.as_slice())).collect();
        let written = memory.write_many(&writes);
        for piece in self.pieces.drain(..) {
            memory.recycle(piece.bytes);
        }
        written
    }
}
