//! A B+tree of records: 64-bit keys in order, values of 1 byte to 128 KiB, opened by name from any host.
//!
//! Key type: [`RecordTree`]. It is a [`BTree`] whose values are words that stand for records of a [`Heap`]. A value that is replaced is another record, so a reader
//! sees the old or the new one. One writer at a time, by a lock with a lease: one whose holder died is taken over. What readers may see beside a writer
//! is what [`crate::btree`] says of keys; a writer that died in the middle of a split has left a whole tree.

use crate::heap::{Heap, Locked, Record};
use crate::{BTree, Layout};
use farmem_client::{Error, FarMemory, Policy};
use farmem_wire::VirtAddr;
use std::ops::RangeBounds;

/// What a root says of a tree.
const ROOT_KIND: [u8; 8] = *b"farmemRT";
/// The kind of the record that describes it.
const KIND: u8 = 6;
/// Of the record whose lock its writers hold.
const LOCK: u8 = 7;
/// Of a value.
const VALUE: u8 = 8;

/// A program's hold of a tree.
#[derive(Debug)]
pub struct RecordTree {
    name: String,
    /// The record that describes it.
    at: Record,
    tree: BTree,
    lock: Record,
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
        let tree = BTree::create(memory, layout)?;
        let lock = heap.put(memory, LOCK, &[0])?;
        let content = [tree.address().0.to_le_bytes(), lock.at.0.to_le_bytes()].concat();
        let at = heap.put(memory, KIND, &content)?;
        match heap.set_root(memory, name, ROOT_KIND, at.at) {
            Ok(()) => Ok(Self { name: name.into(), at, tree, lock }),
            Err(error) => {
                tree.destroy(memory)?;
                heap.free(memory, lock)?;
                heap.free(memory, at)?;
                Err(error)
            }
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
        let at = heap.root(memory, name, ROOT_KIND)?;
        let (kind, content) = heap.read(memory, Record { at, len: 16 })?;
        let (KIND, &[tree, lock]) = (kind, crate::words(&content).as_slice()) else {
            return Err(Error::Broken { addr: at, what: "a tree of records" });
        };
        let tree = BTree::open(memory, VirtAddr(tree), layout)?;
        let (at, lock) = (Record { at, len: 16 }, Record { at: VirtAddr(lock), len: 1 });
        Ok(Self { name: name.into(), at, tree, lock })
    }

    /// Frees the tree: its values, its name, and the nodes that this handle made; those that other handles made are lost room. Nobody may use it meanwhile or
    /// afterwards.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized), heap: &mut Heap) -> Result<(), Error> {
        heap.remove_root(memory, &self.name)?;
        for (_, word) in self.tree.scan(memory, .., usize::MAX)? {
            heap.free(memory, Record::unpacked(word)?)?;
        }
        self.tree.destroy(memory)?;
        heap.free(memory, self.lock)?;
        heap.free(memory, self.at)
    }

    /// Says where this handle's traversals run.
    pub const fn set_policy(&mut self, policy: Policy) {
        self.tree.set_policy(policy);
    }

    /// The value of `key`: a traversal and a READ.
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
        let word = self.tree.find(memory, key);
        let value = word.and_then(|word| word.map(|word| value_of(memory, heap, word)).transpose());
        heap.unpin();
        value
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
    /// [`Error::Key`] for 2^64 - 1; [`Error::Empty`], [`Error::TooLong`] for a value that is none; [`Error::Locked`] when another writer does not let go in time;
    /// [`Error::Full`]; [`Error`] when far memory does not answer: then it is open whether the value is there.
    pub fn insert(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        heap: &mut Heap,
        key: u64,
        value: &[u8],
    ) -> Result<bool, Error> {
        let record = heap.put(memory, VALUE, value)?;
        let word = record.packed()?;
        let old = self.locked(memory, heap, |tree, memory| match tree.update(memory, key, word)? {
            Some(old) => Ok(Some(old)),
            None => tree.insert(memory, key, word),
        });
        match old {
            Ok(Some(old)) => heap.free(memory, Record::unpacked(old)?).map(|()| true),
            Ok(None) => Ok(false),
            // Nobody was told of it.
            Err(error @ (Error::Key { .. } | Error::Locked { .. })) => {
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
        match self.locked(memory, heap, |tree, memory| tree.remove(memory, key))? {
            Some(old) => heap.free(memory, Record::unpacked(old)?).map(|()| true),
            None => Ok(false),
        }
    }

    /// Changes the tree as its one writer.
    fn locked<M: FarMemory + ?Sized, T>(
        &mut self,
        memory: &mut M,
        heap: &mut Heap,
        change: impl FnOnce(&mut BTree, &mut M) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let locked: Locked = heap.lock(memory, self.lock)?;
        let changed = change(&mut self.tree, memory);
        let intact = heap.unlock(memory, locked)?;
        // Another writer took over, because this one was silent for too long.
        changed.and_then(|changed| if intact { Ok(changed) } else { Err(heap.evicted_error()) })
    }
}

fn value_of(memory: &mut (impl FarMemory + ?Sized), heap: &mut Heap, word: u64) -> Result<Vec<u8>, Error> {
    let record = Record::unpacked(word)?;
    match heap.read(memory, record)? {
        (VALUE, content) => Ok(content),
        _ => Err(Error::Broken { addr: record.at, what: "a tree's value" }),
    }
}
