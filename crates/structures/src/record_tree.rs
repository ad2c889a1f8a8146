//! A B-link tree of records: 64-bit keys in order, values of 1 byte to 128 KiB, opened by name from any host,
//! with any number of concurrent writers.
//!
//! Key type: [`RecordTree`], a [`BLinkTree`] whose values are words for records of a [`Heap`]. Replacing a
//! value creates a new record, so a reader sees the old or the new value, whole. A look-up continues from the
//! leaf to the record at the memory nodes and copies the record: one round trip, as far as a datagram has
//! room. A longer record takes one more READ. There are no locks: a writer that dies leaves a whole tree and
//! at most one unreachable record.

use crate::blink_tree::{Extent, record_program};
use crate::heap::{Decoded, Fresh, Heap, Record, decode, write_all};
use crate::{BLinkTree, Layout};
use farmem_client::{Client, Completed, Error, FarMemory, NodeId, Op, Policy, Site, Through};
use farmem_index::TreeSection;
use farmem_traversal::Program;
use farmem_wire::VirtAddr;
use std::ops::RangeBounds;

/// The structure kind in the root of a tree.
const ROOT_KIND: [u8; 8] = *b"farmemRT";
/// The kind of the record that describes a tree.
const KIND: u8 = 9;
/// The kind of a value's record.
const VALUE: u8 = 8;
/// Records that a bulk load writes together.
const WRITES: usize = 256;

/// A program's handle of a tree.
#[derive(Debug)]
pub struct RecordTree {
    /// The tree's name, and the record that describes the tree.
    named: Option<(String, Record)>,
    tree: BLinkTree,
    /// The program that looks up a key and copies its record.
    get: Program,
}

impl RecordTree {
    /// Creates a tree called `name` in a heap.
    ///
    /// # Errors
    /// [`Error::Exists`] when the heap has another root of this name; [`Error::Full`], [`Error::Refused`]
    /// when there is no room.
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

    /// Opens the tree called `name` of a heap. `layout` places the nodes that this handle creates.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is no such tree; [`Error::Broken`] when the name belongs to another kind
    /// of structure.
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

    /// Creates a tree without a name. Any program with the tree's address ([`BLinkTree::address`] of
    /// [`RecordTree::tree`]) can open the tree. The records belong to any one heap.
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
    /// [`Error::Broken`] when there is no tree.
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

    /// Frees the tree: its values, its name, and the nodes that this handle created. Nodes of other handles
    /// are lost room. No other handle may use the tree during or after this call.
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

    /// Returns the tree of words: its address, and the base of an index.
    #[must_use]
    pub const fn tree(&self) -> &BLinkTree {
        &self.tree
    }

    /// Sets where this handle's look-ups and scans run.
    pub const fn set_policy(&mut self, policy: Policy) {
        self.tree.set_policy(policy);
    }

    /// Selects a section of the tree for a switch, as [`BLinkTree::section`], with this handle's look-ups.
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

    /// Returns the value of `key`.
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
            // One READ of the whole record costs less than one per line.
            Site::Host => self.tree.get(memory, key)?.map(|word| (word, Vec::new())),
        };
        heap.confirm_membership(memory)?;
        let Some((word, lines)) = found else { return Ok(None) };
        if lines.is_empty() {
            return self.value_of(memory, heap, word).map(Some);
        }
        let record = Record::unpacked(word)?;
        let content = heap.fetched(memory, record.at, &lines)?;
        memory.recycle(lines);
        value(record.at, content).map(Some)
    }

    /// Reads the value that a word of [`RecordTree::tree`] stands for, for programs that find leaves in
    /// another way.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer, or the word does not stand for a value. If another program
    /// replaced the value after the word was read, the word may stand for another value. A [`Heap::pin`]
    /// taken before that read prevents this.
    pub fn value_of(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        word: u64,
    ) -> Result<Vec<u8>, Error> {
        let record = Record::unpacked(word)?;
        value(record.at, heap.read(memory, record)?)
    }

    /// Returns the value of `key` by a keyed READ, READs from the returned node on, and a READ of the record
    /// ([`BLinkTree::get_through`]). The connection through the switch was opened with this tree's root.
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
            heap.confirm_membership(client)?;
            word.map(|word| self.value_of(&mut client.through(over), heap, word)).transpose()
        });
        heap.unpin();
        value
    }

    /// Returns the address of the root, which [`Client::open_through`] takes for keyed READs of this tree.
    #[must_use]
    pub const fn root(&self) -> VirtAddr {
        self.tree.tree().root
    }

    /// Returns the traversal that looks up `key` and copies its value. `scratch` is any buffer; its contents
    /// are replaced. The caller holds a [`Heap::pin`] from before submission until it has examined the reply.
    #[must_use]
    pub fn get_op(&self, key: u64, scratch: Vec<u8>) -> Op {
        self.tree.record_op(&self.get, key, scratch)
    }

    /// Returns the value that a finished [`RecordTree::get_op`] copied. Returns `None` when the key is
    /// missing, when its value was too long or was being written, and when the operation failed;
    /// [`RecordTree::get`] tells these cases apart.
    #[must_use]
    pub fn fetched(completed: &Completed) -> Option<Vec<u8>> {
        let lines = BLinkTree::fetched_lines(completed)?;
        match decode(lines) {
            Decoded::Whole { kind: VALUE, content } => Some(content),
            _ => None,
        }
    }

    /// Returns the first `most` keys of `range` with their values, in ascending order. The values are read in
    /// parallel.
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

    /// Stores `value` under `key`. Returns true when the key existed.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::TooLong`] for an invalid value; [`Error::Full`]; [`Error`] when far memory
    /// does not answer. Then it is unknown whether the value was stored.
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
            // There was no room for a node, so no node leads to the record.
            Err(error @ (Error::Full { .. } | Error::Contended { .. })) => {
                heap.free(memory, record).and(Err(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Removes `key`. Returns true when the key existed.
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

    /// Fills an empty tree from pairs in ascending order of keys, with `fill` entries per leaf, as
    /// [`BLinkTree::load`]. A partitioned tree keeps the values of a leaf on the leaf's memory node, so a
    /// look-up does not cross memory nodes again.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::TooLong`] for an invalid value, and as [`BLinkTree::load`]. The tree then
    /// stays empty. Records already written are lost room until the heap is destroyed.
    ///
    /// # Panics
    /// Panics when `pairs` yields fewer items than its length says.
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
                heap.confirm_membership(memory)?;
                fresh.clear();
            }
        }
        self.tree.load(memory, words.into_iter(), fill)
    }
}

/// Returns the content of a value's record.
fn value(at: VirtAddr, (kind, content): (u8, Vec<u8>)) -> Result<Vec<u8>, Error> {
    if kind == VALUE { Ok(content) } else { Err(Error::Broken { addr: at, what: "a tree's value" }) }
}
