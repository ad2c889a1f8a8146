//! A B-link tree of records: all 64-bit keys in order, values of 1 byte to 128 KiB, opened by name from any host, and any number of writers at once.
//!
//! Key type: [`RecordTree`]. It is a [`BLinkTree`] whose values are words that stand for records of a [`Heap`]. A value that is replaced is another record, so a reader
//! sees the old or the new one, whole. A look-up goes on from the leaf to the record at the memory nodes and brings it along: one round trip, as far as a
//! datagram has room; what is longer takes a READ more. No locks: a writer that dies leaves a whole tree, and at most a record that nothing leads to.

use crate::blink_tree::{Extent, record_program};
use crate::heap::{Decoded, Fresh, Heap, Record, decode, write_all};
use crate::{BLinkTree, Layout};
use farmem_client::{Client, Completed, Error, FarMemory, NodeId, Op, Policy, Site, Through};
use farmem_index::TreeSection;
use farmem_traversal::Program;
use farmem_wire::VirtAddr;
use std::ops::RangeBounds;

/// What a root says of a tree.
const ROOT_KIND: [u8; 8] = *b"farmemRT";
/// The kind of the record that describes it.
const KIND: u8 = 9;
/// The kind of a value's record.
const VALUE: u8 = 8;
/// Records that a bulk load writes together.
const WRITES: usize = 256;

/// A program's hold of a tree.
#[derive(Debug)]
pub struct RecordTree {
    /// Its name, and the record that describes it.
    named: Option<(String, Record)>,
    tree: BLinkTree,
    /// Looks a key up and brings its record.
    get: Program,
}

impl RecordTree {
    /// Makes a tree called `name` in a heap.
    ///
    /// # Errors
    /// [`Error::Exists`] when the heap has something of this name; [`Error::Full`], [`Error::Refused`] when there is no room.
    pub fn create(
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        name: &str,
        layout: Layout,
    ) -> Result<Self, Error> {
        let tree = BLinkTree::create(memory, layout)?;
        let described = heap.put(memory, KIND, &tree.address().0.to_le_bytes());
        let named = described.and_then(|at| match heap.set_root(memory, name, ROOT_KIND, at.at) {
            Ok(()) => Ok(at),
            Err(error) => heap.free(memory, at).and(Err(error)),
        });
        match named {
            Ok(at) => Ok(Self::new(memory, Some((name.into(), at)), tree)),
            Err(error) => tree.destroy(memory).and(Err(error)),
        }
    }

    /// Opens the tree called `name` of a heap. Nodes that this handle makes are laid out as `layout` says.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is none; [`Error::Broken`] when the name is another kind of structure's.
    pub fn open(
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        name: &str,
        layout: Layout,
    ) -> Result<Self, Error> {
        let at = Record { at: heap.root(memory, name, ROOT_KIND)?, len: 8 };
        let (kind, content) = heap.read(memory, at)?;
        let (KIND, &[tree]) = (kind, crate::words(&content).as_slice()) else {
            return Err(Error::Broken { addr: at.at, what: "a tree of records" });
        };
        let tree = BLinkTree::open(memory, VirtAddr(tree), layout)?;
        Ok(Self::new(memory, Some((name.into(), at)), tree))
    }

    /// Makes a tree without a name. Whoever has its address ([`BLinkTree::address`] of [`RecordTree::tree`]) opens it; its records are of any one heap.
    ///
    /// # Errors
    /// [`Error::Refused`] when there is no room.
    pub fn create_unnamed(memory: &mut (impl FarMemory + ?Sized), layout: Layout) -> Result<Self, Error> {
        let tree = BLinkTree::create(memory, layout)?;
        Ok(Self::new(memory, None, tree))
    }

    /// Opens the tree at this address.
    ///
    /// # Errors
    /// [`Error::Broken`] when there is none.
    pub fn open_unnamed(
        memory: &mut (impl FarMemory + ?Sized),
        address: VirtAddr,
        layout: Layout,
    ) -> Result<Self, Error> {
        let tree = BLinkTree::open(memory, address, layout)?;
        Ok(Self::new(memory, None, tree))
    }

    fn new(memory: &(impl FarMemory + ?Sized), named: Option<(String, Record)>, tree: BLinkTree) -> Self {
        Self { named, tree, get: record_program(memory.scratch_len_max()) }
    }

    /// Frees the tree: its values, its name, and the nodes that this handle made; those that other handles made are lost room. No other handle may use it
    /// meanwhile or afterwards.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized), heap: &mut Heap) -> Result<(), Error> {
        if let Some((name, _)) = &self.named {
            heap.remove_root(memory, name)?;
        }
        for (_, word) in self.tree.scan(memory, .., usize::MAX)? {
            heap.free(memory, Record::unpacked(word)?)?;
        }
        self.tree.destroy(memory)?;
        self.named.map_or(Ok(()), |(_, at)| heap.free(memory, at))
    }

    /// The tree of words: its address, and what an index of it is made from.
    #[must_use]
    pub const fn tree(&self) -> &BLinkTree {
        &self.tree
    }

    /// Says where this handle's look-ups and scans run.
    pub const fn set_policy(&mut self, policy: Policy) {
        self.tree.set_policy(policy);
    }

    /// What a switch is told of the tree, as [`BLinkTree::section`] has it, with this handle's look-ups.
    ///
    /// # Errors
    /// As [`BLinkTree::section`].
    pub fn section(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        extent: Extent,
    ) -> Result<TreeSection, Error> {
        let mut section = self.tree.section(memory, extent)?;
        section.programs.push(self.get.hash());
        Ok(section)
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn get(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        key: u64,
    ) -> Result<Option<Vec<u8>>, Error> {
        heap.pin(memory)?;
        let value = self.get_pinned(memory, heap, key);
        heap.unpin();
        value
    }

    fn get_pinned(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        key: u64,
    ) -> Result<Option<Vec<u8>>, Error> {
        let found = match self.tree.policy().verdict(&self.get) {
            Site::MemoryNodes => self.tree.get_record(memory, &self.get, key)?,
            // A READ of the whole record is less than one of each line.
            Site::Host => self.tree.get(memory, key)?.map(|word| (word, Vec::new())),
        };
        heap.still(memory)?;
        let Some((word, lines)) = found else { return Ok(None) };
        if lines.is_empty() {
            return self.value_of(memory, heap, word).map(Some);
        }
        let record = Record::unpacked(word)?;
        let content = heap.brought(memory, record.at, &lines)?;
        memory.recycle(lines);
        value(record.at, content).map(Some)
    }

    /// The value that a word of [`RecordTree::tree`] stands for, by a READ: for a program that finds leaves its own way.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or the word stands for no value. A word that was read before another program replaced the value may stand for
    /// another one by now, unless the caller holds a [`Heap::pin`] from before it was read.
    pub fn value_of(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        word: u64,
    ) -> Result<Vec<u8>, Error> {
        let record = Record::unpacked(word)?;
        value(record.at, heap.read(memory, record)?)
    }

    /// The value of `key`, by a keyed READ over a connection through the switch that was opened with this tree's root, by READs from the node that it brings on, and a
    /// READ of the record ([`BLinkTree::get_through`]).
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn get_through(
        &self,
        client: &mut Client,
        heap: &mut Heap,
        over: Through,
        key: u64,
    ) -> Result<Option<Vec<u8>>, Error> {
        heap.pin(client)?;
        let word = self.tree.get_through(client, over, key);
        let value = word.and_then(|word| {
            heap.still(client)?;
            word.map(|word| self.value_of(&mut client.through(over), heap, word)).transpose()
        });
        heap.unpin();
        value
    }

    /// Where its root is: what [`Client::open_through`] takes for keyed READs of this tree.
    #[must_use]
    pub const fn root(&self) -> VirtAddr {
        self.tree.tree().root
    }

    /// The traversal that looks `key` up and brings its value; `scratch` is any buffer, its content is replaced. Its caller holds a [`Heap::pin`] from before it
    /// is submitted until its answer was looked at.
    #[must_use]
    pub fn get_op(&self, key: u64, scratch: Vec<u8>) -> Op {
        self.tree.record_op(&self.get, key, scratch)
    }

    /// The value that a finished [`RecordTree::get_op`] brought along. `None` when the key is missing, when its value is longer than what comes along or was being
    /// written, and when the operation failed: [`RecordTree::get`] tells which.
    #[must_use]
    pub fn brought(completed: &Completed) -> Option<Vec<u8>> {
        let lines = BLinkTree::lines_brought(completed)?;
        match decode(lines) {
            Decoded::Whole { kind: VALUE, content } => Some(content),
            _ => None,
        }
    }

    /// The first `most` keys of `range` with their values, in ascending order. The values are read side by side.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn scan(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        range: impl RangeBounds<u64>,
        most: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        heap.pin(memory)?;
        let pairs = self.tree.scan(memory, range, most).and_then(|pairs| {
            let records = pairs.iter().map(|(_, word)| Record::unpacked(*word));
            let records = records.collect::<Result<Vec<Record>, Error>>()?;
            let values = heap.read_all(memory, &records)?.into_iter().map(|(_, value)| value);
            Ok(pairs.into_iter().map(|(key, _)| key).zip(values).collect())
        });
        heap.unpin();
        pairs
    }

    /// Puts `value` under `key`; true when there was one.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::TooLong`] for a value that is none; [`Error::Full`]; [`Error`] when far memory does not answer: then it is open whether the value
    /// is there.
    pub fn insert(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        key: u64,
        value: &[u8],
    ) -> Result<bool, Error> {
        let record = heap.put(memory, VALUE, value)?;
        match self.tree.insert(memory, key, record.packed()?) {
            Ok(Some(old)) => heap.free(memory, Record::unpacked(old)?).map(|()| true),
            Ok(None) => Ok(false),
            // There was no room for a node: no node leads to the record.
            Err(error @ (Error::Full { .. } | Error::Contended { .. })) => {
                heap.free(memory, record).and(Err(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Takes `key` out; true when it was there.
    ///
    /// # Errors
    /// As [`RecordTree::insert`].
    pub fn remove(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        key: u64,
    ) -> Result<bool, Error> {
        match self.tree.remove(memory, key)? {
            Some(old) => heap.free(memory, Record::unpacked(old)?).map(|()| true),
            None => Ok(false),
        }
    }

    /// Fills an empty tree from pairs in ascending order of keys, `fill` to a leaf, as [`BLinkTree::load`] does. A partitioned tree has the values of a leaf on
    /// the leaf's memory node, so that a look-up crosses no further.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::TooLong`] for a value that is none, and as [`BLinkTree::load`]. The tree is then empty as before; records that were written are lost
    /// room until the heap is destroyed.
    ///
    /// # Panics
    /// When `pairs` has fewer items than it says.
    pub fn load<V: AsRef<[u8]>>(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        pairs: impl ExactSizeIterator<Item = (u64, V)>,
        fill: usize,
    ) -> Result<(), Error> {
        let count = pairs.len();
        let homes: Vec<NodeId> = memory.nodes().iter().map(|node| NodeId(node.node)).collect();
        let mut words = Vec::with_capacity(count);
        let mut fresh: Vec<Fresh> = Vec::with_capacity(WRITES);
        for (number, (key, value)) in pairs.enumerate() {
            let home = homes[(number * homes.len() / count).min(homes.len() - 1)];
            heap.enter(memory)?;
            let record = heap.prepare(memory, home, VALUE, value.as_ref())?;
            words.push((key, record.record.packed()?));
            fresh.push(record);
            if fresh.len() == WRITES || words.len() == count {
                write_all(memory, &fresh)?;
                heap.still(memory)?;
                fresh.clear();
            }
        }
        self.tree.load(memory, words.into_iter(), fill)
    }
}

/// The content of a value's record.
fn value(at: VirtAddr, (kind, content): (u8, Vec<u8>)) -> Result<Vec<u8>, Error> {
    if kind == VALUE { Ok(content) } else { Err(Error::Broken { addr: at, what: "a tree's value" }) }
}
