//! A B-link tree in far memory: 64-bit keys, all of them, with 64-bit values (numbers, or addresses of records), and any number of writers at once.
//!
//! Key type: [`BLinkTree`]. A look-up, an insertion and a removal are one traversal each, which goes down the tree at the memory nodes and does its work
//! at the leaf in one step: one round trip, no lock. A change of a key whose leaf the handle was at last begins there, and needs no way down. Where a leaf is full or nearly empty the host goes on: it splits and merges by READs and by
//! traversals that replace a node if it is still the one that was read ([`farmem_index::blink`] says in which order, and why readers and other writers
//! always find a whole tree). Beside any writers a look-up finds what is there; a scan finds each key that stands still while it runs, once, and may or
//! may not find one that comes or goes meanwhile.
//!
//! Changes need a path MTU of 1024 or more: a request that stores has its program with it. Scans need 4096 to run at the memory nodes, and run at the
//! host where there is less.
//!
//! The place of a node that was merged away is used again by this handle, or by any other: whoever is led there by an old pointer notices. A root that has one
//! child left takes that one's entries, and the tree is a level lower. What it does not do: it gives memory back only when it is destroyed.

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
use part::{Part, Took};
use places::Places;

pub use agent::{GAIN_MIN, IndexAgent, IndexWatch, Layer, Stepped, Target};
pub use cursor::Cursor;
pub use fabric::{publish_fabric, withdraw_fabric};
pub use farmem_index::Extent;
/// Bytes of all that is published in a rack at most.
pub use farmem_wire::message::SOFT_IMAGE_MAX;
pub use keyed::KeyedServers;
pub use places::{KEPT_MAX, PlacesUsed};
pub use publish::{publish, soft_section, withdraw};
pub use ranges::{AHEAD_DEFAULT, PARTS_MAX, RangeQuery, Separators};

/// "farmemB2": the first word of a tree's header. Behind it are the tag, the entries of a node, a word that is 0, and the free places ([`places`]).
const MAGIC: u64 = u64::from_le_bytes(*b"farmemB2");
/// Bytes from the header to the root; both are in one allocation of their own.
const ROOT: u64 = NODE_LEN as u64;
/// Nodes that one traversal visits at most: levels, and steps to the right through splits under way. More are asked for again.
const VISITS_MAX: u32 = 1 << 10;
/// How often a change is tried at the memory nodes before the host does all of it.
const TRIES_MAX: u32 = 64;

/// A program's hold of a tree. The tree itself is in far memory, and can be opened by others at [`BLinkTree::address`].
#[derive(Debug)]
pub struct BLinkTree {
    at: VirtAddr,
    tree: Tree,
    places: Places,
    programs: Programs,
    policy: Policy,
    writes: Writes,
    /// The leaf that this handle was at last.
    last: Cell<Option<Leaf>>,
}

/// How a change comes to its leaf when the handle was at another one last.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Writes {
    /// By itself, from the root: one round trip.
    #[default]
    Descend,
    /// By a look-up before it, which switches may have begin further down (PROTOCOL 13.14): two round trips of few visits. Better where the tree is deep and scattered over
    /// memory nodes.
    Find,
}

/// A leaf as a look-up or a change found it. Changes of its keys begin there: if it has given keys away since, they are to its right.
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
    /// An empty tree.
    ///
    /// # Errors
    /// [`Error`] when the rack has no room for it.
    pub fn create(memory: &mut (impl FarMemory + ?Sized), layout: Layout) -> Result<Self, Error> {
        Self::create_with(memory, layout, ENTRIES_MAX)
    }

    /// An empty tree whose nodes have room for `entries`, 2 to [`ENTRIES_MAX`]: small ones make small trees deep.
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
        // The first word comes last: a client that finds it finds a whole tree.
        let rest = [u64::from(tag.get()), entries as u64].map(u64::to_le_bytes).concat();
        memory.write(VirtAddr(base.0 + 8), &rest)?;
        memory.write(base, &MAGIC.to_le_bytes())?;
        Ok(Self::at(memory, base, tree, layout))
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

    /// Frees header, root and the nodes that this handle made; other handles free those that they made. No other handle may use the tree meanwhile or
    /// afterwards.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    pub fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        memory.free(self.at)?;
        self.places.destroy(memory)
    }

    /// Frees the nodes that this handle made, when no handle uses the tree any more; [`BLinkTree::destroy`] of another handle frees header and root.
    ///
    /// # Errors
    /// [`Error`] when the control plane does not answer.
    pub fn destroy_nodes(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.places.destroy(memory)
    }

    /// Where others open it.
    #[must_use]
    pub const fn address(&self) -> VirtAddr {
        self.at
    }

    /// Root, tag and entries of a node: what an index of it is made from.
    #[must_use]
    pub const fn tree(&self) -> Tree {
        self.tree
    }

    /// How high the tree is now: 1 when its root is a leaf.
    ///
    /// # Errors
    /// [`Error`] when far memory does not answer or the tree is broken.
    pub fn height(&self, memory: &mut (impl FarMemory + ?Sized)) -> Result<u8, Error> {
        let root = self.reader(memory).read(self.tree.root)?;
        Ok(root.level + 1)
    }

    /// Places of nodes that this handle has taken from the rack so far, and free ones that it keeps.
    #[must_use]
    pub const fn places(&self) -> PlacesUsed {
        self.places.used()
    }

    /// Says where this handle's look-ups and scans run. What changes the tree runs at the memory nodes, whatever is said.
    pub const fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Says how this handle's changes come to their leaves.
    pub const fn set_writes(&mut self, writes: Writes) {
        self.writes = writes;
    }

    /// Where they run.
    pub(crate) const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The value of `key`.
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

    /// The traversal of [`BLinkTree::get`], for who has several under way.
    #[must_use]
    pub fn get_op(&self, key: u64) -> Op {
        self.key_op(&self.programs.get, key, 0)
    }

    /// The traversal of [`BLinkTree::insert`] for a key that is there: its value is another one behind that.
    #[must_use]
    pub fn replace_op(&self, key: u64, value: u64) -> Op {
        self.key_op(&self.programs.insert, key, value)
    }

    /// The value that a finished [`BLinkTree::get_op`] found, or that a finished [`BLinkTree::replace_op`] replaced; none when there was none, or the tree was in between two
    /// forms: then [`BLinkTree::get`] tells.
    #[must_use]
    pub fn value_in(scratch: &[u8]) -> Option<u64> {
        let words = words(scratch);
        (words.get(programs::STATUS / 8) == Some(&programs::FOUND)).then(|| words[programs::VALUE / 8])
    }

    fn key_op(&self, program: &Program, key: u64, value: u64) -> Op {
        let scratch = start_pad(program, &self.pad(key, value), Vec::new());
        Op::Traverse { program: program.clone(), cur_ptr: self.tree.root, scratch, limit: VISITS_MAX }
    }

    /// As [`BLinkTree::get`] for a tree whose values are words that stand for records, with a program of [`record_program`]: the word, and the lines of the record
    /// that came along.
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

    /// The traversal of [`BLinkTree::get_record`].
    pub(crate) fn record_op(&self, program: &Program, key: u64, scratch: Vec<u8>) -> Op {
        let scratch = start_pad(program, &self.pad(key, 0), scratch);
        Op::Traverse { program: program.clone(), cur_ptr: self.tree.root, scratch, limit: VISITS_MAX }
    }

    /// The lines that a finished [`BLinkTree::record_op`] brought; none when it found no key, or failed.
    pub(crate) fn lines_brought(completed: &Completed) -> Option<&[u8]> {
        let Ok(Answer::Traversed(Traversed { returned: true, .. })) = completed.result else { return None };
        let found =
            completed.buf.get(programs::STATUS..programs::STATUS + 8)? == programs::FOUND.to_le_bytes();
        completed.buf.get(programs::LINES..).filter(|_| found)
    }

    /// Puts `value` under `key`; answers the one there was.
    ///
    /// # Errors
    /// [`Error`] when far memory has no room or does not answer, or the tree is broken. The tree is whole in any case; whether the key is in it is
    /// open when a request was not answered. [`Error::Traversal`] where memory runs no programs that store.
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

    /// Takes `key` out; answers the value that it had.
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

    /// Merges the leaf that a key was taken out of, as far as that succeeds. The key is out, and its caller is to know what value it had, whatever becomes of this: what is left of
    /// a merge the next writer there carries on, and who cannot be reached the next request tells.
    fn merge_behind(&mut self, memory: &mut (impl FarMemory + ?Sized), key: u64) {
        let tree = self.tree;
        let _left_to_others = tree.merge_sparse(&mut self.writer(memory), key);
    }

    /// The first `most` pairs of `range`, in ascending order, with a request for every 43 to 56 of them. Only the first one goes down the tree: each other
    /// begins at the leaf that the one before had come to. [`Cursor`] is for scans in pieces, [`RangeQuery`] for scans side by side.
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
            if took == Took::Lost {
                part.leaf_at_host(self, memory)?;
            }
        }
        let mut pairs: Vec<(u64, u64)> = part.pairs.into();
        pairs.truncate(most);
        Ok(pairs)
    }

    /// The words that the programs of one key begin with.
    fn pad(&self, key: u64, value: u64) -> [u64; programs::PAD_LEN / 8] {
        [key, self.tree.tag.get().into(), 0, value, self.tree.entries as u64, self.tree.root.0]
    }

    /// Where a change of `key` begins: at its leaf when that is known, or worth to be found first; else at the root. A copy of the request takes the same way,
    /// whatever the switch knows meanwhile (PROTOCOL 7.36).
    fn begin(&self, memory: &mut (impl FarMemory + ?Sized), key: u64) -> Result<VirtAddr, Error> {
        let known = || self.last.get().filter(|leaf| (leaf.first..=leaf.last).contains(&key));
        if known().is_none() && self.writes == Writes::Find {
            self.descend(memory, &self.programs.get, self.tree.root, key, 0, Policy::Offload)?;
        }
        Ok(known().map_or(self.tree.root, |leaf| leaf.at))
    }

    /// Runs a program that goes down to the leaf of `key`; answers where it ended, and the words of its pad.
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

    /// Runs a program from a node on; answers where it ended, and its pad.
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

    /// Hands free places over to all handles when this one keeps many.
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

/// A program's pad that begins with these words.
fn start_pad(program: &Program, words: &[u64], mut scratch: Vec<u8>) -> Vec<u8> {
    scratch.clear();
    scratch.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    scratch.resize(program.scratch_len(), 0);
    scratch
}

/// A look-up that brings the record that a key's word stands for, in a pad of `room` bytes at most.
pub(crate) fn record_program(room: usize) -> Program {
    assembled(&programs::get_record(lines_in(room, programs::LINES)))
}

/// The tag of a tree with its header there: another one for each page of 2^40 bytes.
fn tag_of(header: VirtAddr) -> Tag {
    #[expect(clippy::cast_possible_truncation, reason = "a tag has 28 bits")]
    let number = (header.0 / farmem_wire::message::PAGE_LEN as u64) as u32;
    Tag::new(number)
}

/// The first and the last key of a range; none when it has no key.
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
