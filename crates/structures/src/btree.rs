//! A B+tree in far memory: 64-bit keys, 64-bit values (numbers, or addresses of larger ones), nodes of 256 bytes with up to 16
//! children; a leaf links to the next.
//!
//! Traversals look, at the memory nodes or at the host as [`BTree::policy`] says: [`BTree::find`],
//! [`BTree::lower_bound`], [`BTree::scan`], [`BTree::aggregate`]. The host writes, with READs and WRITEs. Deletion is
//! lazy: a key leaves its leaf, and a leaf that is empty stays until keys of its range come again; nodes are never merged.
//!
//! # Beside a writer
//!
//! PULSE leaves synchronisation to the host (PULSE 2.3), and so does this tree: one writer at a time, by agreement or with
//! [`BTree::lock`]. A node is written by one WRITE of one packet, which a memory node carries out between two loads; a value
//! that is replaced, by one of eight bytes. A split writes the new nodes first, then the node above that links them, then what
//! stays of the nodes that were cut, from the top down. The root never moves. So a reader beside a writer
//!
//! - never meets a broken pointer or half a node, and never sees a key that was not there or a value that was not its key's;
//! - sees each key that stands still while it looks, if its traversal starts after a split was finished or sees none;
//! - may miss keys that stand still when a split falls between its visits of a node that is cut and of the node above: a look-up
//!   answers "missing", a scan or aggregate lacks keys. It never sees one twice;
//! - sees of several keys written one after the other any part, not always the older part.
//!
//! A reader that cannot bear the last two looks between two equal even [`LockWord::version`]s, when all writers take the lock.

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

/// The largest key; 2^64 - 1 marks unused places.
pub const KEY_MAX: u64 = UNUSED - 1;
/// The most pairs that one request of a scan brings.
pub const SCAN_PAIRS_MAX: usize = 122;

/// The programs of a tree, in their text form.
pub const FIND_PROGRAM: &str = include_str!("../../../testdata/programs/btree_find.pulse");
/// Range scan and lower bound.
pub const SCAN_PROGRAM: &str = include_str!("../../../testdata/programs/btree_scan.pulse");
/// Sum, smallest, largest, number.
pub const AGGREGATE_PROGRAM: &str = include_str!("../../../testdata/programs/btree_aggregate.pulse");

const UNUSED_REASON: &str = "2^64 - 1 is no key, it marks unused places";
/// "farmemBT": the first word of a tree's header.
const MAGIC: u64 = u64::from_le_bytes(*b"farmemBT");
/// Offset of the lock word in the header.
const LOCK: u64 = 16;
/// Bytes from the header to the root; both are in one allocation of their own.
const ROOT: u64 = NODE_LEN as u64;
/// Levels after which a descent is in a cycle: 16^16 leaves.
const DEPTH_MAX: u32 = 17;
/// Iterations after which a walk along the leaves is in a cycle.
const LEAVES_MAX: u32 = 1 << 28;

/// Sum, smallest, largest and number of the values of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aggregate {
    /// Their sum, exactly.
    pub sum: u128,
    /// The smallest.
    pub min: u64,
    /// The largest.
    pub max: u64,
    /// How many there are.
    pub count: u64,
}

/// What one request of a scan brought.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scanned {
    /// Pairs in ascending order of keys.
    pub pairs: Vec<(u64, u64)>,
    /// Where the scan goes on; `None` when the range is exhausted.
    pub next: Option<Cursor>,
}

/// A place in the leaves where a scan goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// The node where the traversal starts: the root, or a leaf with smaller keys.
    at: VirtAddr,
    /// The smallest key wanted.
    from: u64,
}

/// What the header says.
#[derive(Clone, Copy, Debug)]
struct Header {
    at: VirtAddr,
    root: VirtAddr,
    /// Keys of a leaf at most.
    leaf_max: usize,
}

/// A program's hold of a tree. The tree itself is in far memory, and can be opened by others at [`BTree::address`].
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
    /// An empty tree.
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
        // The first word comes last: a client that finds it finds a whole tree.
        let rest = [header.root.0, 0, leaf_max as u64].map(u64::to_le_bytes).concat();
        memory.write(VirtAddr(base.0 + 8), &rest)?;
        memory.write(base, &MAGIC.to_le_bytes())?;
        Ok(Self::at(memory, header, layout))
    }

    /// The tree at `address`. New nodes that this handle makes are laid out as `layout` says.
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

    /// Frees header, root and the nodes that this handle made; those that other handles made are theirs to free.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        memory.free(self.header.at)?;
        self.arena.destroy(memory)
    }

    /// Makes new nodes take these places first, which belong to another owner.
    pub(crate) fn reserve(&mut self, nodes: Vec<VirtAddr>) {
        self.arena.reserve(nodes);
    }

    /// Where others open it.
    #[must_use]
    pub const fn address(&self) -> VirtAddr {
        self.header.at
    }

    /// The root, where traversals start. It never moves.
    #[must_use]
    pub const fn root(&self) -> VirtAddr {
        self.header.root
    }

    /// Keys of a leaf at most.
    pub(crate) const fn leaf_max(&self) -> usize {
        self.header.leaf_max
    }

    /// The lock that every writer takes.
    pub const fn lock(&mut self) -> &mut LockWord {
        &mut self.lock
    }

    /// Where this handle's traversals run.
    #[must_use]
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// Says where this handle's traversals run.
    pub const fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// The value of `key`.
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

    /// The traversal that looks `key` up; `scratch` is any buffer, its content is replaced.
    #[must_use]
    pub fn find_op(&self, key: u64, scratch: Vec<u8>) -> Op {
        let scratch = pad(scratch, &[key, 0, 0], self.find.scratch_len());
        Op::Traverse { program: self.find.clone(), cur_ptr: self.header.root, scratch, limit: DEPTH_MAX }
    }

    /// What a finished [`BTree::find_op`] found; `None` when the key is missing or the operation failed.
    #[must_use]
    pub fn found(completed: &Completed) -> Option<u64> {
        completed.result.as_ref().ok().and_then(|_| found_in(&completed.buf))
    }

    /// The leaf that a finished [`BTree::find_op`] ended at, which has the key or would have it; `None` when the operation failed.
    #[must_use]
    pub fn leaf_found(completed: &Completed) -> Option<VirtAddr> {
        match completed.result {
            Ok(Answer::Traversed(end)) if end.returned => Some(end.cur_ptr),
            _ => None,
        }
    }

    /// The READ of a leaf; `buf` is any buffer.
    #[must_use]
    pub fn leaf_op(leaf: VirtAddr, mut buf: Vec<u8>) -> Op {
        buf.resize(NODE_LEN, 0);
        Op::Read { addr: leaf, buf }
    }

    /// The WRITE that puts a pair into the leaf `at`, which was read as `bytes`, in place of the one of this key if there is one. `None`
    /// when the leaf is full: then [`BTree::insert`] is needed, which cuts it. `buf` is any buffer.
    ///
    /// A caller that writes this way must be the one writer from its look-up of the leaf on.
    ///
    /// # Errors
    /// [`Error::Key`] for 2^64 - 1; [`Error::Broken`] when `bytes` are no leaf.
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

    /// The first pair whose key is not less than `key`.
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

    /// The first `most` pairs of `range`, in ascending order, with a request for every [`SCAN_PAIRS_MAX`] of them.
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

    /// Where a scan of the keys from `from` on begins.
    #[must_use]
    pub const fn cursor(&self, from: u64) -> Cursor {
        Cursor { at: self.header.root, from }
    }

    /// The traversal that takes up to `most` pairs below `to` (2^64 - 1 for all), and up to [`SCAN_PAIRS_MAX`].
    #[must_use]
    pub fn scan_op(&self, cursor: Cursor, to: u64, most: usize, scratch: Vec<u8>) -> Op {
        let room = most.min(SCAN_PAIRS_MAX) as u64 * 16;
        let scratch = pad(scratch, &[cursor.from, to, room, 0], self.scan.scratch_len());
        Op::Traverse { program: self.scan.clone(), cur_ptr: cursor.at, scratch, limit: LEAVES_MAX }
    }

    /// What a finished [`BTree::scan_op`] brought; `None` when it failed.
    #[must_use]
    pub fn scanned(completed: &Completed) -> Option<Scanned> {
        match completed.result {
            Ok(Answer::Traversed(end)) if end.returned => Some(scanned_in(&completed.buf, end.cur_ptr)),
            _ => None,
        }
    }

    /// Sum, smallest, largest and number of the values of `range`, by one traversal; `None` when it has no keys.
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

    /// Runs another program along the leaves; answers the words of its scratch pad.
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

    /// The traversal that runs another program along the leaves.
    pub(crate) fn aggregate_op(&self, program: &Program, start: &[u64], scratch: Vec<u8>) -> Op {
        let scratch = pad(scratch, start, program.scratch_len());
        let cur_ptr = self.header.root;
        Op::Traverse { program: program.clone(), cur_ptr, scratch, limit: LEAVES_MAX }
    }

    /// Puts `value` under `key`; answers the one there was.
    ///
    /// # Errors
    /// [`Error::Key`] for 2^64 - 1; [`Error`] when far memory has no room or does not answer. The tree is whole in any case; whether
    /// the key is in it is open when a write was not answered.
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

    /// Replaces the value of `key`, by one atomic write of eight bytes; answers the one there was, or `None` and writes nothing when the
    /// key is missing.
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

    /// Takes `key` out; answers its value.
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

    /// What to write, in this order, for a node to which a key was added: it, and those above as far as they are too full.
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
                // The root stays where it is, and gets the two halves as its children.
                let left_addr = self.arena.take(memory, home)?;
                fresh.push((left_addr, node));
                node = Node::inner(vec![between], vec![left_addr.0, right_addr.0]);
                break;
            };
            cut.push((addr, node));
            parent.insert(between, right_addr.0);
            (addr, node) = (above, parent);
        }
        // New nodes; the one node that makes them reachable; what stays of the others, from the top down.
        Ok(fresh.into_iter().chain([(addr, node)]).chain(cut.into_iter().rev()).collect())
    }

    /// The nodes from the root to the leaf of `key`.
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

/// A scratch pad that begins with `words`.
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

/// The range as the programs take it: first key, and first key behind.
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
