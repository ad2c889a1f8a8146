//! Bulk load: creates leaves and inner nodes from left to right, level by level, and writes them in large
//! pieces.

use super::BLinkTree;
use crate::btree::{Pieces, ascending};
use farmem_client::{Error, FarMemory};
use farmem_index::blink::{Node, Nodes as _, State};
use farmem_wire::VirtAddr;

/// A key and its value, or a child after its smallest key.
type Entry = (u64, u64);

impl BLinkTree {
    /// Fills an empty tree from pairs in ascending order of keys, with `fill` entries per node: at least two,
    /// at most the tree's maximum. Readers see either the empty tree or the whole one.
    ///
    /// A partitioned tree gives each memory node an equal share of the leaves. An inner node lies on the
    /// memory node of its first child.
    ///
    /// # Errors
    /// [`Error::Key`] for the first key that does not ascend; [`Error`] when far memory has no room or does
    /// not answer. The tree then stays empty. [`Error::Broken`] when the tree is not empty, or another writer
    /// changed it meanwhile.
    ///
    /// # Panics
    /// Panics when `pairs` yields fewer items than its length says.
    pub fn load(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        pairs: impl ExactSizeIterator<Item = (u64, u64)>,
        fill: usize,
    ) -> Result<(), Error> {
        let broken = Error::Broken { addr: self.tree.root, what: "an empty tree" };
        let at = self.tree.root;
        let old = self.writer(memory).read(at)?;
        if old.level > 0 || !old.entries.is_empty() {
            return Err(broken);
        }
        let fill = fill.clamp(2, self.tree.entries);
        let mut pieces = Pieces::default();
        let built = self.build(memory, pairs, fill, &mut pieces);
        let finished = pieces.send(memory);
        let (level, entries) = built?;
        finished?;
        // All nodes below the root are written: replacing the root publishes them.
        let root = Node { level, entries, version: old.version + 1, ..old.clone() };
        if self.writer(memory).replace(at, old.head(), &root)? { Ok(()) } else { Err(broken) }
    }

    /// Creates everything below the root. Returns the root's level and entries.
    fn build(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        pairs: impl ExactSizeIterator<Item = Entry>,
        fill: usize,
        pieces: &mut Pieces,
    ) -> Result<(u8, Vec<Entry>), Error> {
        let count = pairs.len();
        let mut pairs = ascending(pairs, None);
        if count <= fill {
            return Ok((0, pairs.collect::<Result<_, _>>()?));
        }
        let mut entries = self.level(memory, (0, count.div_ceil(fill)), pieces, || {
            let leaf: Result<Vec<Entry>, Error> = pairs.by_ref().take(fill).collect();
            leaf.inspect(|leaf| {
                assert!(!leaf.is_empty(), "an ExactSizeIterator has as many items as it says")
            })
        })?;
        let mut level = 1;
        while entries.len() > fill {
            let mut chunks = entries.chunks(fill);
            let count = chunks.len();
            entries = self.level(memory, (level, count), pieces, || {
                Ok(chunks.next().expect("as many as were counted").to_vec())
            })?;
            level += 1;
        }
        Ok((level, entries))
    }

    /// Creates the `count` nodes of a level from the entries of `next`. Returns their entries in the level
    /// above.
    fn level(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        (level, count): (u8, usize),
        pieces: &mut Pieces,
        mut next: impl FnMut() -> Result<Vec<Entry>, Error>,
    ) -> Result<Vec<Entry>, Error> {
        let mut above = Vec::with_capacity(count);
        let mut entries = next()?;
        let mut at = self.place(memory, level, (0, count), &entries)?;
        let mut first = 0;
        for number in 1..=count {
            let (mut right, mut behind) = (VirtAddr(0), Vec::new());
            if number < count {
                behind = next()?;
                right = self.place(memory, level, (number, count), &behind)?;
            }
            let last = behind.first().map_or(u64::MAX, |(key, _)| key - 1);
            let (tag, state, taken) = (self.tree.tag, State::Live, VirtAddr::NULL);
            let node = Node { version: 0, tag, level, state, right, taken, first, last, entries };
            above.push((first, at.0));
            pieces.put(memory, &self.places.arena, at, &node.emit())?;
            (at, entries) = (right, behind);
            first = last.wrapping_add(1);
        }
        Ok(above)
    }

    /// Allocates a place for node number `number` of `count` on its level.
    fn place(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        level: u8,
        (number, count): (usize, usize),
        entries: &[Entry],
    ) -> Result<VirtAddr, Error> {
        let home = match level {
            0 => number * self.places.arena.homes() / count,
            _ => self.places.arena.home_of(memory, VirtAddr(entries[0].1)),
        };
        // No pointer leads to a fresh place, so nodes may be live before the tree leads to them.
        self.places.fresh(memory, home)
    }
}
