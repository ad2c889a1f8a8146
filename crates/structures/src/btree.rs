//! A B+tree in far memory: 64-bit keys, 64-bit values (numbers or addresses of larger values), and nodes of
//! 256 bytes with up to 16 children. Each leaf links to the next.
//!
//! Traversals read the tree, at the memory nodes or at the host, as [`BTree::set_policy`] says: [`BTree::find`],
//! [`BTree::lower_bound`], [`BTree::scan`], [`BTree::aggregate`]. The host writes, with READs and WRITEs.
//! Deletion is lazy: a key leaves its leaf, an empty leaf stays for later keys of its range, and nodes are
//! never merged.
//!
//! # Concurrent readers
//!
//! PULSE leaves synchronisation to the host (PULSE 2.3), and so does this tree: one writer at a time, by
//! agreement or with [`BTree::lock`]. One WRITE of one packet writes a node, and a memory node executes the
//! WRITE between two loads. One WRITE of eight bytes replaces a value. A split writes the new nodes first,
//! then the node above that links them, then the shortened nodes from the top down. The root never moves. A
//! reader during a write therefore
//!
//! - never meets a broken pointer or half a node, and never sees a key or value that was not in the tree;
//! - sees each stable key, if its traversal starts after a split finished or meets no split;
//! - may miss stable keys when a split falls between its visits of a cut node and of the node above: a
//!   look-up answers "missing", a scan or aggregate lacks keys. No key appears twice;
//! - sees any subset of several keys written one after the other, not always the older ones.
//!
//! A reader that cannot tolerate the last two cases reads between two equal even [`LockWord::version`]s. All
//! writers must then take the lock.

use crate::arena::{Arena, Layout};
use crate::{assembled, words};
use farmem_client::{
    Answer, Completed, Dispatched, Error, FarMemory, LockWord, Op, Policy, TraversalStop, Vma,
};
use farmem_traversal::Program;
use farmem_wire::VirtAddr;
use node::{Node, SLOTS, UNUSED};
use std::ops::{Bound, RangeBounds};

mod load;
mod node;
mod records;

pub(crate) use load::{Pieces, ascending};
pub use node::{KEYS_MAX, NODE_LEN};
pub use records::{Bring, RECORD_LEN_MAX, RECORD_ROOM, RecordScan, Records, records_program};

/// The largest key; 2^64 - 1 marks unused positions.
pub const KEY_MAX: u64 = UNUSED - 1;
/// Bound on the pairs of one scan request.
pub const SCAN_PAIRS_MAX: usize = 122;

/// The program that looks up a key, in text form.
pub const FIND_PROGRAM: &str = include_str!("../../../testdata/programs/btree_find.pulse");
/// The program for range scans and lower bounds, in text form.
pub const SCAN_PROGRAM: &str = include_str!("../../../testdata/programs/btree_scan.pulse");
/// The program for sum, smallest, largest and count, in text form.
pub const AGGREGATE_PROGRAM: &str = include_str!("../../../testdata/programs/btree_aggregate.pulse");

const UNUSED_REASON: &str = "2^64 - 1 is no key, it marks unused places";
/// "farmemBT": the first word of a tree's header.
const MAGIC: u64 = u64::from_le_bytes(*b"farmemBT");
/// Offset of the lock word in the header.
const LOCK: u64 = 16;
/// Bytes from the header to the root; both are in one allocation of their own.
const ROOT: u64 = NODE_LEN as u64;
/// Depth bound of a descent: a deeper one is in a cycle (16^16 leaves).
const DEPTH_MAX: u32 = 17;
/// Iteration bound of a walk along the leaves: a longer one is in a cycle.
const LEAVES_MAX: u32 = 1 << 28;

/// Sum, minimum, maximum and count of the values of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aggregate {
    /// The exact sum.
    pub sum: u128,
    /// The smallest value.
    pub min: u64,
    /// The largest value.
    pub max: u64,
    /// The number of values.
    pub count: u64,
}

/// The result of one scan request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scanned {
    /// Pairs in ascending order of keys.
    pub pairs: Vec<(u64, u64)>,
    /// The position where the scan continues; `None` when the range is exhausted.
    pub next: Option<Cursor>,
}

/// A position in the leaves where a scan continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The node where the traversal starts: the root, or a leaf with smaller keys.
    at: VirtAddr,
    /// The smallest key wanted.
    from: u64,
}

/// The contents of a tree's header.
#[derive(Clone, Copy, Debug)]
struct Header {
    at: VirtAddr,
    root: VirtAddr,
    /// Largest number of keys in a leaf.
    leaf_max: usize,
}

/// A program's handle of a tree. The tree lies in far memory; other programs can open the tree at
/// [`BTree::address`].
#[derive(Debug)]
pub struct BTree {
    header: Header,
    arena: Arena,
    find: Program,
    scan: Program,
    aggregate: Program,
    policy: Policy,
    lock: LockWord,
}

impl BTree {
    /// Creates an empty tree.
    ///
    /// # Errors
    /// [`Error`] when the rack has no room for it.
    pub fn create(memory: &mut (impl FarMemory + ?Sized), layout: Layout) -> Result<Self, Error> {
        Self::create_with(memory, layout, KEYS_MAX)
    }

    pub(crate) fn create_with(
        memory: &mut (impl FarMemory + ?Sized),
        layout: Layout,
        leaf_max: usize,
    ) -> Result<Self, Error> {
        let Vma { base, .. } = memory.allocate(ROOT + NODE_LEN as u64)?;
        let header = Header { at: base, root: VirtAddr(base.0 + ROOT), leaf_max };
        memory.write(header.root, &Node::leaf(&[], 0).emit())?;
        // The first word is written last: a client that finds the magic finds a whole tree.
        let rest = [header.root.0, 0, leaf_max as u64].map(u64::to_le_bytes).concat();
        memory.write(VirtAddr(base.0 + 8), &rest)?;
        memory.write(base, &MAGIC.to_le_bytes())?;
        Ok(Self::at(memory, header, layout))
    }

    /// Opens the tree at `address`. `layout` places the new nodes that this handle creates.
    ///
    /// # Errors
    /// [`Error::Broken`] when there is no tree at `address`; [`Error`] when far memory does not answer.
    pub fn open(
        memory: &mut (impl FarMemory + ?Sized),
        address: VirtAddr,
        layout: Layout,
    ) -> Result<Self, Error> {
        let mut bytes = [0; 32];
        memory.read(address, &mut bytes)?;
        let words = words(&bytes);
        let leaf_max = usize::try_from(words[3]).unwrap_or(usize::MAX);
        if words[0] != MAGIC || !(2..=KEYS_MAX).contains(&leaf_max) {
            return Err(Error::Broken { addr: address, what: "a B+tree's header" });
        }
        Ok(Self::at(memory, Header { at: address, root: VirtAddr(words[1]), leaf_max }, layout))
    }

    fn at(memory: &(impl FarMemory + ?Sized), header: Header, layout: Layout) -> Self {
        Self {
            header,
            arena: Arena::new(memory, layout, NODE_LEN),
            find: assembled(FIND_PROGRAM),
            scan: assembled(SCAN_PROGRAM),
            aggregate: assembled(AGGREGATE_PROGRAM),
            policy: Policy::default(),
            lock: LockWord::new(VirtAddr(header.at.0 + LOCK)),
        }
    }

    /// Frees the header, the root and the nodes that this handle created. Other handles free their own nodes.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        memory.free(self.header.at)?;
        self.arena.destroy(memory)
    }

    /// Adds places that another owner allocated; new nodes take these first.
    pub(crate) fn reserve(&mut self, nodes: Vec<VirtAddr>) {
        self.arena.reserve(nodes);
    }

    /// Returns the address at which other programs open the tree.
    #[must_use]
    pub const fn address(&self) -> VirtAddr {
        self.header.at
    }

    /// Returns the root, where traversals start. The root never moves.
    #[must_use]
    pub const fn root(&self) -> VirtAddr {
        self.header.root
    }

    /// Returns the largest number of keys in a leaf.
    pub(crate) const fn leaf_max(&self) -> usize {
        self.header.leaf_max
    }

    /// Returns the lock that every writer takes.
    pub const fn lock(&mut self) -> &mut LockWord {
        &mut self.lock
    }

    /// Sets where this handle's traversals run.
    pub const fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn find(&self, memory: &mut (impl FarMemory + ?Sized), key: u64) -> Result<Option<u64>, Error> {
        let scratch = memory.buffer(0);
        let done = self.dispatch(memory, self.find_op(key, scratch))?;
        let found = found_in(&done.scratch);
        memory.recycle(done.scratch);
        Ok(found)
    }

    /// Returns the traversal that looks up `key`. `scratch` is any buffer; its contents are replaced.
    #[must_use]
    pub fn find_op(&self, key: u64, scratch: Vec<u8>) -> Op {
        let scratch = pad(scratch, &[key, 0, 0], self.find.scratch_len());
        Op::Traverse { program: self.find.clone(), cur_ptr: self.header.root, scratch, limit: DEPTH_MAX }
    }

    /// Returns the leaf where a finished [`BTree::find_op`] ended, which has the key or would have it; `None`
    /// when the operation failed.
    #[must_use]
    pub fn leaf_found(completed: &Completed) -> Option<VirtAddr> {
        match completed.result {
            Ok(Answer::Traversed(end)) if end.returned => Some(end.cur_ptr),
            _ => None,
        }
    }

    /// Returns the READ of a leaf. `buf` is any buffer.
    #[must_use]
    pub fn leaf_op(leaf: VirtAddr, mut buf: Vec<u8>) -> Op {
        buf.resize(NODE_LEN, 0);
        Op::Read { addr: leaf, buf }
    }

    /// Returns the WRITE that stores a pair in the leaf `at`, whose contents are `bytes`, replacing a pair of
    /// the same key. Returns `None` when the leaf is full; [`BTree::insert`] then splits the leaf. `buf` is
    /// any buffer.
    ///
    /// The caller must be the only writer from its look-up of the leaf on.
    ///
    /// # Errors
    /// [`Error::Key`] for 2^64 - 1; [`Error::Broken`] when `bytes` is not a leaf.
    pub fn put_op(
        &self,
        at: VirtAddr,
        bytes: &[u8],
        (key, value): (u64, u64),
        mut buf: Vec<u8>,
    ) -> Result<Option<Op>, Error> {
        if key == UNUSED {
            return Err(Error::Key { key, reason: UNUSED_REASON });
        }
        let broken = Error::Broken { addr: at, what: "a leaf of a B+tree" };
        let Ok(bytes) = <&[u8; NODE_LEN]>::try_from(bytes) else { return Err(broken) };
        let mut leaf = Node::parse(bytes, at)?;
        if !leaf.leaf {
            return Err(broken);
        }
        match leaf.keys.binary_search(&key) {
            Ok(place) => leaf.slots[place] = value,
            Err(_) if leaf.keys.len() == self.header.leaf_max => return Ok(None),
            Err(_) => leaf.insert(key, value),
        }
        buf.clear();
        buf.extend_from_slice(&leaf.emit());
        Ok(Some(Op::Write { addr: at, buf }))
    }

    /// Returns the first pair whose key is at least `key`.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn lower_bound(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        key: u64,
    ) -> Result<Option<(u64, u64)>, Error> {
        Ok(self.scan(memory, key.., 1)?.pop())
    }

    /// Returns the first `most` pairs of `range`, in ascending order, with one request for every
    /// [`SCAN_PAIRS_MAX`] pairs.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn scan(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        range: impl RangeBounds<u64>,
        most: usize,
    ) -> Result<Vec<(u64, u64)>, Error> {
        let (from, to) = half_open(&range);
        let mut pairs = Vec::new();
        let mut cursor = (from < to && most > 0).then(|| self.cursor(from));
        while let Some(at) = cursor {
            let scratch = memory.buffer(0);
            let done = self.dispatch(memory, self.scan_op(at, to, most - pairs.len(), scratch))?;
            let mut scanned = scanned_in(&done.scratch, done.end.cur_ptr);
            memory.recycle(done.scratch);
            pairs.append(&mut scanned.pairs);
            cursor = scanned.next.filter(|_| pairs.len() < most);
        }
        Ok(pairs)
    }

    /// Returns the start of a scan of the keys from `from` on.
    #[must_use]
    pub const fn cursor(&self, from: u64) -> Cursor {
        Cursor { at: self.header.root, from }
    }

    /// Returns the traversal that reads up to `most` pairs below `to` (2^64 - 1 for all), and at most
    /// [`SCAN_PAIRS_MAX`].
    #[must_use]
    pub fn scan_op(&self, cursor: Cursor, to: u64, most: usize, scratch: Vec<u8>) -> Op {
        let room = most.min(SCAN_PAIRS_MAX) as u64 * 16;
        let scratch = pad(scratch, &[cursor.from, to, room, 0], self.scan.scratch_len());
        Op::Traverse { program: self.scan.clone(), cur_ptr: cursor.at, scratch, limit: LEAVES_MAX }
    }

    /// Returns sum, minimum, maximum and count of the values of `range`, by one traversal; `None` when the
    /// range has no keys.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or a pointer is broken.
    pub fn aggregate(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        range: impl RangeBounds<u64>,
    ) -> Result<Option<Aggregate>, Error> {
        let (from, to) = half_open(&range);
        if from >= to {
            return Ok(None);
        }
        let pad = [from, to, 0, 0, u64::MAX, 0, 0];
        let w = self.aggregate_by(memory, &self.aggregate, &pad)?;
        let sum = u128::from(w[3]) << 64 | u128::from(w[2]);
        Ok((w[6] > 0).then_some(Aggregate { sum, min: w[4], max: w[5], count: w[6] }))
    }

    /// Runs another program along the leaves. Returns the words of its scratch pad.
    pub(crate) fn aggregate_by(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        program: &Program,
        start: &[u64],
    ) -> Result<Vec<u64>, Error> {
        let op = self.aggregate_op(program, start, memory.buffer(0));
        let done = self.dispatch(memory, op)?;
        let words = words(&done.scratch);
        memory.recycle(done.scratch);
        Ok(words)
    }

    /// Returns the traversal that runs another program along the leaves.
    pub(crate) fn aggregate_op(&self, program: &Program, start: &[u64], scratch: Vec<u8>) -> Op {
        let scratch = pad(scratch, start, program.scratch_len());
        let cur_ptr = self.header.root;
        Op::Traverse { program: program.clone(), cur_ptr, scratch, limit: LEAVES_MAX }
    }

    /// Stores `value` under `key` and returns the previous value.
    ///
    /// # Errors
    /// [`Error::Key`] for 2^64 - 1; [`Error`] when far memory has no room or does not answer. The tree is
    /// whole in any case. Whether the key is in the tree is unknown when a write was not answered.
    pub fn insert(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, Error> {
        if key == UNUSED {
            return Err(Error::Key { key, reason: UNUSED_REASON });
        }
        let mut path = self.descend(memory, key)?;
        let (addr, mut leaf) = path.pop().expect("a path ends at a leaf");
        if let Ok(place) = leaf.keys.binary_search(&key) {
            memory.write(VirtAddr(addr.0 + (SLOTS + 8 * place) as u64), &value.to_le_bytes())?;
            return Ok(Some(leaf.slots[place]));
        }
        let ordered = leaf.rank(key) == leaf.keys.len();
        leaf.insert(key, value);
        for (addr, node) in self.writes(memory, path, (addr, leaf), ordered)? {
            memory.write(addr, &node.emit())?;
        }
        Ok(None)
    }

    /// Replaces the value of `key` by one atomic write of eight bytes and returns the previous value. Writes
    /// nothing and returns `None` when the key is missing.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn update(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, Error> {
        let (addr, leaf) = self.leaf_of(memory, key)?;
        let Ok(place) = leaf.keys.binary_search(&key) else { return Ok(None) };
        memory.write(VirtAddr(addr.0 + (SLOTS + 8 * place) as u64), &value.to_le_bytes())?;
        Ok(Some(leaf.slots[place]))
    }

    /// Removes `key` and returns its value.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer.
    pub fn remove(&mut self, memory: &mut (impl FarMemory + ?Sized), key: u64) -> Result<Option<u64>, Error> {
        let (addr, mut leaf) = self.leaf_of(memory, key)?;
        let Ok(place) = leaf.keys.binary_search(&key) else { return Ok(None) };
        leaf.keys.remove(place);
        let value = leaf.slots.remove(place);
        memory.write(addr, &leaf.emit())?;
        Ok(Some(value))
    }

    /// Returns the writes, in order, for a node that gained a key: the node itself, and the nodes above as
    /// far as they overflow.
    fn writes(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        mut path: Vec<(VirtAddr, Node)>,
        (mut addr, mut node): (VirtAddr, Node),
        ordered: bool,
    ) -> Result<Vec<(VirtAddr, Node)>, Error> {
        let mut fresh = Vec::new();
        let mut cut = Vec::new();
        while node.keys.len() > if node.leaf { self.header.leaf_max } else { KEYS_MAX } {
            let home = self.arena.home_of(memory, addr);
            let (between, right) = node.split(ordered && (node.link == 0));
            let right_addr = self.arena.take(memory, home)?;
            if node.leaf {
                node.link = right_addr.0;
            }
            fresh.push((right_addr, right));
            let Some((above, mut parent)) = path.pop() else {
                // The root keeps its place and takes the two halves as its children.
                let left_addr = self.arena.take(memory, home)?;
                fresh.push((left_addr, node));
                node = Node::inner(vec![between], vec![left_addr.0, right_addr.0]);
                break;
            };
            cut.push((addr, node));
            parent.insert(between, right_addr.0);
            (addr, node) = (above, parent);
        }
        // Order: new nodes; the one node that makes them reachable; the shortened nodes, from the top down.
        Ok(fresh.into_iter().chain([(addr, node)]).chain(cut.into_iter().rev()).collect())
    }

    /// Returns the nodes from the root to the leaf of `key`.
    fn descend(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        key: u64,
    ) -> Result<Vec<(VirtAddr, Node)>, Error> {
        let mut addr = self.header.root;
        let mut path = Vec::new();
        for _ in 0..DEPTH_MAX {
            let node = self.read_node(memory, addr)?;
            let child = if node.leaf { None } else { Some(VirtAddr(node.slots[node.rank(key)])) };
            path.push((addr, node));
            match child {
                Some(child) => addr = child,
                None => return Ok(path),
            }
        }
        Err(Error::Traversal { addr, reason: TraversalStop::Stalled })
    }

    fn leaf_of(&self, memory: &mut (impl FarMemory + ?Sized), key: u64) -> Result<(VirtAddr, Node), Error> {
        Ok(self.descend(memory, key)?.pop().expect("a path ends at a leaf"))
    }

    fn read_node(&self, memory: &mut (impl FarMemory + ?Sized), addr: VirtAddr) -> Result<Node, Error> {
        let mut bytes = [0; NODE_LEN];
        memory.read(addr, &mut bytes)?;
        Node::parse(&bytes, addr)
    }

    fn dispatch(&self, memory: &mut (impl FarMemory + ?Sized), op: Op) -> Result<Dispatched, Error> {
        let Op::Traverse { program, cur_ptr, scratch, limit } = op else {
            unreachable!("made by one of the functions above");
        };
        let done = memory.dispatch(&program, cur_ptr, scratch, limit, &self.policy)?;
        if !done.end.returned {
            return Err(Error::Traversal { addr: done.end.cur_ptr, reason: TraversalStop::Stalled });
        }
        Ok(done)
    }
}

/// Fills a scratch pad that begins with `words`.
fn pad(mut scratch: Vec<u8>, words: &[u64], len: usize) -> Vec<u8> {
    scratch.clear();
    scratch.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    scratch.resize(len, 0);
    scratch
}

fn found_in(scratch: &[u8]) -> Option<u64> {
    match *words(scratch) {
        [_, 1, value] => Some(value),
        _ => None,
    }
}

fn scanned_in(scratch: &[u8], leaf: VirtAddr) -> Scanned {
    let words = words(scratch);
    let (room, fill) = (words[2], words[3]);
    let taken = words[4..].chunks_exact(2).take(usize::try_from(fill / 16).unwrap_or(usize::MAX));
    let pairs: Vec<(u64, u64)> = taken.map(|pair| (pair[0], pair[1])).collect();
    let next = match pairs.last() {
        Some(&(last, _)) if fill == room && last < KEY_MAX => Some(Cursor { at: leaf, from: last + 1 }),
        _ => None,
    };
    Scanned { pairs, next }
}

/// Converts a range to the programs' form: the first key, and the first key after the range.
pub(crate) fn half_open(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(&key) => key,
        Bound::Excluded(&key) => key.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(&key) => key.saturating_add(1),
        Bound::Excluded(&key) => key,
        Bound::Unbounded => UNUSED,
    };
    (from, to)
}

#[cfg(test)]
mod tests;
