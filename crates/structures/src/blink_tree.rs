//! A B-link tree in far memory: 64-bit keys (the full range), 64-bit values (numbers or record addresses),
//! and any number of concurrent writers.
//!
//! Key type: [`BLinkTree`]. A look-up, an insertion and a removal are one traversal each: one round trip, no
//! lock. The traversal descends at the memory nodes and finishes at the leaf in one step. A change of a key
//! in the leaf that the handle visited last starts at that leaf and skips the descent.
//!
//! If a leaf is full or nearly empty, the host takes over. The host splits and merges by READs and by
//! traversals that replace a node only if the node is unchanged. [`farmem_index::blink`] gives the order of
//! these steps, and explains why readers and other writers always find a whole tree.
//!
//! Concurrent writers do not disturb a look-up. A scan finds each key that is stable during the scan exactly
//! once. Keys inserted or removed during the scan may or may not appear.
//!
//! Changes need a path MTU of 1024 or more, because a request that stores carries its program. Scans run at
//! the memory nodes if the path MTU is 4096, and at the host otherwise.
//!
//! The place of a merged node is reused by this handle or by any other. A reader led there by an old pointer
//! notices the reuse. A root with one remaining child absorbs the child's entries, and the tree becomes one
//! level lower. Memory returns to the rack only when the tree is destroyed.

use crate::arena::Layout;
use crate::heap::lines_in;
use crate::{assembled, words};
use farmem_client::{
    Answer, Completed, Dispatched, Error, FarMemory, Op, Policy, TraversalStop, Traversed, Vma,
};
use farmem_index::blink::{ENTRIES_MAX, NODE_LEN, Node, Nodes as _, Tag, Tree};
use farmem_traversal::Program;
use farmem_wire::VirtAddr;
use std::cell::Cell;
use std::ops::{Bound, RangeBounds};

mod agent;
mod cursor;
mod fabric;
mod far;
mod keyed;
mod load;
mod part;
mod places;
mod programs;
mod publish;
mod ranges;

use far::{FarNodes, Stop};
use part::{PadOutcome, Part};
use places::Places;

pub use agent::{EpochReport, GAIN_MIN, IndexAgent, IndexWatch, Layer, Target};
pub use cursor::Cursor;
pub use fabric::{publish_fabric, withdraw_fabric};
pub use farmem_index::Extent;
/// The largest total size, in bytes, of all soft state published in a rack.
pub use farmem_wire::message::SOFT_IMAGE_MAX;
pub use keyed::KeyedServers;
pub use places::{KEPT_MAX, PlacesUsed};
pub use publish::{publish, soft_section, withdraw};
pub use ranges::{AHEAD_DEFAULT, PARTS_MAX, RangeQuery, Separators};

/// "farmemB2": the first word of a tree's header. The tag, the entries of a node, a zero word and the lists
/// of free places ([`places`]) follow.
const MAGIC: u64 = u64::from_le_bytes(*b"farmemB2");
/// Bytes from the header to the root. Both lie in one allocation.
const ROOT: u64 = NODE_LEN as u64;
/// Bound on the nodes that one traversal visits: levels, plus steps to the right through splits in progress.
/// A longer visit continues with another request.
const VISITS_MAX: u32 = 1 << 10;
/// Attempts of a change at the memory nodes before the host does all of the change.
const TRIES_MAX: u32 = 64;

/// A program's handle of a tree. The tree lies in far memory; other programs can open the tree at
/// [`BLinkTree::address`].
#[derive(Debug)]
pub struct BLinkTree {
    at: VirtAddr,
    tree: Tree,
    places: Places,
    programs: Programs,
    policy: Policy,
    writes: Writes,
    /// The leaf that this handle visited last.
    last: Cell<Option<Leaf>>,
}

/// The way a change reaches its leaf when the handle visited another leaf last.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Writes {
    /// The change itself descends from the root: one round trip.
    #[default]
    Descend,
    /// A look-up finds the leaf first; switches may start the look-up further down (PROTOCOL 13.14). Two
    /// round trips with few visits. This is better where the tree is deep and scattered over memory nodes.
    Find,
}

/// A leaf as a look-up or a change found it. Changes of the leaf's keys start here. Keys that the leaf has
/// given away since are to its right.
#[derive(Clone, Copy, Debug)]
struct Leaf {
    at: VirtAddr,
    first: u64,
    last: u64,
}

#[derive(Debug)]
struct Programs {
    get: Program,
    insert: Program,
    remove: Program,
    scan: Program,
    replace: Program,
}

impl Programs {
    fn new() -> Self {
        Self {
            get: assembled(&programs::get()),
            insert: assembled(&programs::insert()),
            remove: assembled(&programs::remove()),
            scan: assembled(&programs::scan()),
            replace: assembled(&programs::replace()),
        }
    }
}

impl BLinkTree {
    /// Creates an empty tree.
    ///
    /// # Errors
    /// [`Error`] when the rack has no room for it.
    pub fn create(memory: &mut (impl FarMemory + ?Sized), layout: Layout) -> Result<Self, Error> {
        Self::create_with(memory, layout, ENTRIES_MAX)
    }

    /// Creates an empty tree whose nodes hold `entries`, 2 to [`ENTRIES_MAX`]. Small nodes make small trees
    /// deep.
    ///
    /// # Errors
    /// [`Error`] when the rack has no room for it.
    pub fn create_with(
        memory: &mut (impl FarMemory + ?Sized),
        layout: Layout,
        entries: usize,
    ) -> Result<Self, Error> {
        let entries = entries.clamp(2, ENTRIES_MAX);
        let Vma { base, .. } = memory.allocate(ROOT + NODE_LEN as u64)?;
        let tag = tag_of(base);
        let tree = Tree { root: VirtAddr(base.0 + ROOT), tag, entries };
        memory.write(tree.root, &Node::root(tag).emit())?;
        // The first word is written last: a client that finds the magic finds a whole tree.
        let rest = [u64::from(tag.get()), entries as u64].map(u64::to_le_bytes).concat();
        memory.write(VirtAddr(base.0 + 8), &rest)?;
        memory.write(base, &MAGIC.to_le_bytes())?;
        Ok(Self::at(memory, base, tree, layout))
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
        let mut bytes = [0; 24];
        memory.read(address, &mut bytes)?;
        let words = words(&bytes);
        let entries = usize::try_from(words[2]).unwrap_or(usize::MAX);
        let tag = tag_of(address);
        if words[0] != MAGIC || words[1] != u64::from(tag.get()) || !(2..=ENTRIES_MAX).contains(&entries) {
            return Err(Error::Broken { addr: address, what: "a B-link tree's header" });
        }
        Ok(Self::at(memory, address, Tree { root: VirtAddr(address.0 + ROOT), tag, entries }, layout))
    }

    fn at(memory: &(impl FarMemory + ?Sized), at: VirtAddr, tree: Tree, layout: Layout) -> Self {
        let places = Places::new(memory, layout, at, tree.tag);
        let (policy, writes, last) = (Policy::default(), Writes::default(), Cell::new(None));
        Self { at, tree, places, programs: Programs::new(), policy, writes, last }
    }

    /// Frees the header, the root and the nodes that this handle created. Other handles free the nodes that
    /// they created. No other handle may use the tree during or after this call.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        memory.free(self.at)?;
        self.places.destroy(memory)
    }

    /// Frees the nodes that this handle created. No handle may use the tree any more. [`BLinkTree::destroy`]
    /// of another handle frees the header and the root.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    pub fn destroy_nodes(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.places.destroy(memory)
    }

    /// Returns the address at which other programs open the tree.
    #[must_use]
    pub const fn address(&self) -> VirtAddr {
        self.at
    }

    /// Returns the root, the tag and the entries per node: the base of an index of the tree.
    #[must_use]
    pub const fn tree(&self) -> Tree {
        self.tree
    }

    /// Returns the current height of the tree: 1 when the root is a leaf.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or the tree is broken.
    pub fn height(&self, memory: &mut (impl FarMemory + ?Sized)) -> Result<u8, Error> {
        let root = self.reader(memory).read(self.tree.root)?;
        Ok(root.level + 1)
    }

    /// Returns how many node places this handle has allocated so far, and how many free places it keeps.
    #[must_use]
    pub const fn places(&self) -> PlacesUsed {
        self.places.used()
    }

    /// Sets where this handle's look-ups and scans run. Changes always run at the memory nodes.
    pub const fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Sets how this handle's changes reach their leaves.
    pub const fn set_writes(&mut self, writes: Writes) {
        self.writes = writes;
    }

    /// Returns where this handle's look-ups and scans run.
    pub(crate) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the value of `key`.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or the tree is broken.
    pub fn get(&self, memory: &mut (impl FarMemory + ?Sized), key: u64) -> Result<Option<u64>, Error> {
        let words = self.descend(memory, &self.programs.get, self.tree.root, key, 0, self.policy)?.1;
        match words[programs::STATUS / 8] {
            programs::FOUND => Ok(Some(words[programs::VALUE / 8])),
            programs::MISSING => Ok(None),
            _ => self.tree.get(&mut self.reader(memory), self.tree.root, key).map_err(Error::from),
        }
    }

    /// Returns the traversal of [`BLinkTree::get`], for callers with several operations in flight.
    #[must_use]
    pub fn get_op(&self, key: u64) -> Op {
        self.key_op(&self.programs.get, key, 0)
    }

    /// Returns the traversal of [`BLinkTree::insert`] for a key that exists. The operation replaces the
    /// value.
    #[must_use]
    pub fn replace_op(&self, key: u64, value: u64) -> Op {
        self.key_op(&self.programs.insert, key, value)
    }

    /// Returns the value that a finished [`BLinkTree::get_op`] found, or that a finished
    /// [`BLinkTree::replace_op`] replaced. Returns `None` when the key has no value, or when the tree was
    /// changing; [`BLinkTree::get`] tells these cases apart.
    #[must_use]
    pub fn value_in(scratch: &[u8]) -> Option<u64> {
        let words = words(scratch);
        (words.get(programs::STATUS / 8) == Some(&programs::FOUND)).then(|| words[programs::VALUE / 8])
    }

    fn key_op(&self, program: &Program, key: u64, value: u64) -> Op {
        let scratch = start_pad(program, &self.pad(key, value), Vec::new());
        Op::Traverse { program: program.clone(), cur_ptr: self.tree.root, scratch, limit: VISITS_MAX }
    }

    /// Works as [`BLinkTree::get`], for a tree whose values are record words, with a program of
    /// [`record_program`]. Returns the word and the record lines that the traversal copied.
    pub(crate) fn get_record(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        program: &Program,
        key: u64,
    ) -> Result<Option<(u64, Vec<u8>)>, Error> {
        let pad = self.pad(key, 0);
        let mut scratch = self.traverse(memory, program, self.tree.root, &pad, self.policy)?.1;
        let word = |at: usize| u64::from_le_bytes(scratch[at..at + 8].try_into().expect("8 bytes"));
        match word(programs::STATUS) {
            programs::FOUND => {
                let word = word(programs::VALUE);
                Ok(Some((word, scratch.split_off(programs::LINES))))
            }
            programs::MISSING => Ok(None),
            _ => {
                let word = self.tree.get(&mut self.reader(memory), self.tree.root, key)?;
                Ok(word.map(|word| (word, Vec::new())))
            }
        }
    }

    /// Returns the traversal of [`BLinkTree::get_record`].
    pub(crate) fn record_op(&self, program: &Program, key: u64, scratch: Vec<u8>) -> Op {
        let scratch = start_pad(program, &self.pad(key, 0), scratch);
        Op::Traverse { program: program.clone(), cur_ptr: self.tree.root, scratch, limit: VISITS_MAX }
    }

    /// Returns the lines that a finished [`BLinkTree::record_op`] copied; `None` when the operation found no
    /// key or failed.
    pub(crate) fn fetched_lines(completed: &Completed) -> Option<&[u8]> {
        let Ok(Answer::Traversed(Traversed { returned: true, .. })) = completed.result else { return None };
        let found =
            completed.buf.get(programs::STATUS..programs::STATUS + 8)? == programs::FOUND.to_le_bytes();
        completed.buf.get(programs::LINES..).filter(|_| found)
    }

    /// Stores `value` under `key` and returns the previous value.
    ///
    /// # Errors
    /// [`Error`] when far memory has no room or does not answer, or the tree is broken. The tree is whole in
    /// any case. Whether the key is in the tree is unknown when a request was not answered.
    /// [`Error::Traversal`] where the memory does not run programs that store.
    pub fn insert(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        key: u64,
        value: u64,
    ) -> Result<Option<u64>, Error> {
        self.share_places(memory)?;
        for _ in 0..TRIES_MAX {
            let from = self.begin(memory, key)?;
            let (at, words) =
                self.descend(memory, &self.programs.insert, from, key, value, Policy::Offload)?;
            match words[programs::STATUS / 8] {
                programs::FOUND => return Ok(Some(words[programs::VALUE / 8])),
                programs::MISSING => return Ok(None),
                programs::FULL | programs::CLOSING => {
                    let tree = self.tree;
                    tree.make_room(&mut self.writer(memory), at)?;
                }
                programs::LOST if from != self.tree.root => self.last.set(None),
                _ => break,
            }
        }
        let tree = self.tree;
        tree.insert(&mut self.writer(memory), key, value).map_err(Error::from)
    }

    /// Removes `key` and returns its value.
    ///
    /// # Errors
    /// As [`BLinkTree::insert`].
    pub fn remove(&mut self, memory: &mut (impl FarMemory + ?Sized), key: u64) -> Result<Option<u64>, Error> {
        let tree = self.tree;
        self.share_places(memory)?;
        for _ in 0..TRIES_MAX {
            let from = self.begin(memory, key)?;
            let (at, words) = self.descend(memory, &self.programs.remove, from, key, 0, Policy::Offload)?;
            match words[programs::STATUS / 8] {
                programs::FOUND => {
                    let left = usize::try_from(words[programs::ENTRIES / 8]).unwrap_or(usize::MAX);
                    if tree.is_sparse(left) {
                        self.merge_behind(memory, key);
                    }
                    return Ok(Some(words[programs::VALUE / 8]));
                }
                programs::MISSING => return Ok(None),
                programs::CLOSING => tree.make_room(&mut self.writer(memory), at)?,
                programs::LOST if from != self.tree.root => self.last.set(None),
                _ => break,
            }
        }
        let Some((old, is_sparse)) = tree.take_out(&mut self.writer(memory), key)? else { return Ok(None) };
        if is_sparse {
            self.merge_behind(memory, key);
        }
        Ok(Some(old))
    }

    /// Merges the leaf from which a key was removed, as far as possible. The key is gone and the caller must
    /// learn its value, whatever this merge does. The next writer there continues an unfinished merge, and
    /// the next request reports an unreachable node.
    fn merge_behind(&mut self, memory: &mut (impl FarMemory + ?Sized), key: u64) {
        let tree = self.tree;
        let _left_to_others = tree.merge_sparse(&mut self.writer(memory), key);
    }

    /// Returns the first `most` pairs of `range`, in ascending order, with one request for every 43 to 56
    /// pairs. Only the first request descends the tree. Each further request starts at the leaf where the
    /// previous one ended. [`Cursor`] is for scans in pieces, [`RangeQuery`] for parallel scans.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or the tree is broken.
    pub fn scan(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        range: impl RangeBounds<u64>,
        most: usize,
    ) -> Result<Vec<(u64, u64)>, Error> {
        let mut part = Part::new(ends(&range));
        while part.wants(most) {
            let (at, scratch) = part.request(self, most, memory.buffer(0));
            let done = memory.dispatch(&self.programs.scan, at, scratch, VISITS_MAX, &self.policy)?;
            let took = part.ended(&done.end, &done.scratch)?;
            memory.recycle(done.scratch);
            if took == PadOutcome::Lost {
                part.leaf_at_host(self, memory)?;
            }
        }
        let mut pairs: Vec<(u64, u64)> = part.pairs.into();
        pairs.truncate(most);
        Ok(pairs)
    }

    /// Returns the words that start the pad of every single-key program.
    fn pad(&self, key: u64, value: u64) -> [u64; programs::PAD_LEN / 8] {
        [key, self.tree.tag.get().into(), 0, value, self.tree.entries as u64, self.tree.root.0]
    }

    /// Returns the node where a change of `key` starts: the key's leaf when the leaf is known or worth
    /// finding first, else the root. A retransmitted request takes the same path, whatever the switch learns
    /// meanwhile (PROTOCOL 7.36).
    fn begin(&self, memory: &mut (impl FarMemory + ?Sized), key: u64) -> Result<VirtAddr, Error> {
        let known = || self.last.get().filter(|leaf| (leaf.first..=leaf.last).contains(&key));
        if known().is_none() && self.writes == Writes::Find {
            self.descend(memory, &self.programs.get, self.tree.root, key, 0, Policy::Offload)?;
        }
        Ok(known().map_or(self.tree.root, |leaf| leaf.at))
    }

    /// Runs a program that descends to the leaf of `key`. Returns the node where the program ended, and the
    /// words of its pad.
    fn descend(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        program: &Program,
        from: VirtAddr,
        key: u64,
        value: u64,
        policy: Policy,
    ) -> Result<(VirtAddr, Vec<u64>), Error> {
        let (at, words) = self.run(memory, program, from, &self.pad(key, value), policy)?;
        if matches!(words[programs::STATUS / 8], programs::FOUND | programs::MISSING) {
            let (first, last) = (words[programs::TAG / 8], words[programs::KEY / 8]);
            self.last.set(Some(Leaf { at, first, last }));
        }
        Ok((at, words))
    }

    fn run(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        program: &Program,
        from: VirtAddr,
        pad: &[u64],
        policy: Policy,
    ) -> Result<(VirtAddr, Vec<u64>), Error> {
        let (at, scratch) = self.traverse(memory, program, from, pad, policy)?;
        let words = words(&scratch);
        memory.recycle(scratch);
        Ok((at, words))
    }

    /// Runs a program from a node on. Returns the node where the program ended, and its pad.
    fn traverse(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        program: &Program,
        from: VirtAddr,
        pad: &[u64],
        policy: Policy,
    ) -> Result<(VirtAddr, Vec<u8>), Error> {
        let scratch = start_pad(program, pad, memory.buffer(0));
        let done = memory.dispatch(program, from, scratch, VISITS_MAX, &policy)?;
        let Dispatched { end, scratch, .. } = done;
        if !end.returned {
            return Err(Error::Traversal { addr: end.cur_ptr, reason: TraversalStop::Stalled });
        }
        Ok((end.cur_ptr, scratch))
    }

    /// Hands free places over to all handles when this handle keeps many.
    fn share_places(&mut self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.places.share(memory, &self.programs.replace)
    }

    const fn reader<'a, M: FarMemory + ?Sized>(&'a self, memory: &'a mut M) -> FarNodes<'a, M> {
        FarNodes { memory, replace: &self.programs.replace, places: None }
    }

    const fn writer<'a, M: FarMemory + ?Sized>(&'a mut self, memory: &'a mut M) -> FarNodes<'a, M> {
        FarNodes { memory, replace: &self.programs.replace, places: Some(&mut self.places) }
    }
}

/// Fills `scratch` as a pad of `program` that begins with these words.
fn start_pad(program: &Program, words: &[u64], mut scratch: Vec<u8>) -> Vec<u8> {
    scratch.clear();
    scratch.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    scratch.resize(program.scratch_len(), 0);
    scratch
}

/// Assembles a look-up that also copies the record that a key's word stands for, into a pad of at most `room`
/// bytes.
pub(crate) fn record_program(room: usize) -> Program {
    assembled(&programs::get_record(lines_in(room, programs::LINES)))
}

/// Returns the tag of the tree whose header is at `header`. Tags differ for all pages within 2^40 bytes.
fn tag_of(header: VirtAddr) -> Tag {
    #[expect(clippy::cast_possible_truncation, reason = "a tag has 28 bits")]
    let number = (header.0 / farmem_wire::message::PAGE_LEN as u64) as u32;
    Tag::new(number)
}

/// Returns the first and the last key of a range; `None` when the range has no key.
fn ends(range: &impl RangeBounds<u64>) -> Option<(u64, u64)> {
    let first = match range.start_bound() {
        Bound::Included(&first) => first,
        Bound::Excluded(&before) => before.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let last = match range.end_bound() {
        Bound::Included(&last) => last,
        Bound::Excluded(&behind) => behind.checked_sub(1)?,
        Bound::Unbounded => u64::MAX,
    };
    (first <= last).then_some((first, last))
}
