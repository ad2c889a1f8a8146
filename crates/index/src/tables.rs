//! The index tables of a switch: for each tree a fat root, node sets, and the traversals they apply to. As a
//! section of the soft state, and as tables.
//!
//! A section is words of eight bytes, big-endian:
//!
//! ```text
//!   version  root  programs  ranges  sets
//!   programs x (name, 2 words)                                           the traversals whose pad begins with the key
//!   ranges   x (first key, child)                                        ascending, the first from 0 on
//!   sets     x (nodes, nodes x (address, children, children - 1 pivots, children)), the nodes by address
//! ```
//!
//! A child is an address, which is a multiple of 256, with the level in its lowest byte.
//!
//! # Counters
//!
//! Each range counts the descents that took it, and so does each child of each node of a set: one counter per
//! table entry that names a child, as the direct counters of match-action tables. The counters give the
//! accesses of every node that the tables lead to. These are all candidates of the next selection, since only
//! children of held nodes are candidates (Fat-B+Tree III-C).

mod flat;

pub use flat::{TreeReader, TreeTables};

use crate::{Child, NodeSetError, Range, RangeError, SetNode};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use farmem_wire::{Domain, ProgramHash, VirtAddr};
use flat::{DescentPath, Walk};

/// The kind of a section with a tree's tables.
pub const SECTION_KIND: u16 = 0x0d13;
/// Most node sets of a tree: two in each of the layers below the core switch (Fat-B+Tree IV-A), and a
/// reserve.
pub const SETS_MAX: usize = 8;
/// Most programs of a tree's tables.
pub const PROGRAMS_MAX: usize = 64;
/// Most bytes of a tree's tables in addition to [`TABLE_BYTES_PER_BYTE`].
pub const TREE_BYTES: usize = 1 << 10;
/// Most bytes of tables per byte of their sections: a slot is two words where a section has one, and a
/// growing list may have twice the capacity.
pub const TABLE_BYTES_PER_BYTE: usize = 4;
/// Most trees of a switch.
pub const TREES_MAX: usize = 1024;

/// Alignment of a node's address, so that a level fits into the low bits.
pub const NODE_ALIGN: u64 = 256;

const VERSION: u64 = 1;

/// The published part of a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeSection {
    /// The node at which traversals of the tree begin.
    pub root: VirtAddr,
    /// The traversals that may begin further down: those that search for the key in the first eight bytes of
    /// their pad, little-endian.
    pub programs: Vec<ProgramHash>,
    /// The fat root (Fat-B+Tree III-B).
    pub ranges: Vec<Range>,
    /// The node sets, each one layer below the previous (Fat-B+Tree III-C).
    pub sets: Vec<Vec<SetNode>>,
}

/// The reason why a section is not a valid tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SectionError {
    /// The section ends early, has extra bytes, or is of another version.
    Form,
    /// The section has too many elements: the kind and the number.
    TooMany(&'static str, u64),
    /// The address is not a node's: null, or no multiple of 256.
    Address(u64),
    /// The fat root is invalid.
    Ranges(RangeError),
    /// A node set is invalid.
    Nodes(NodeSetError),
    /// Another tree of the domain has this root, the section's id is another root, or there are more than
    /// [`TREES_MAX`].
    Root(VirtAddr),
    /// The nodes of a set are not in the order of their addresses: this one comes too late.
    Order(VirtAddr),
    /// A program that stores: a repeated request of it must take the same path (PROTOCOL 13.14).
    Stores(ProgramHash),
}

impl fmt::Display for SectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form => write!(
                f,
                "the section is cut off, has extra bytes, or is not of version {VERSION}; publish the tree again"
            ),
            Self::TooMany(what, have) => write!(f, "the section has {have} {what}, more than a switch holds"),
            Self::Address(addr) => {
                write!(f, "{addr:#x} is not a node address: null, or not a multiple of {NODE_ALIGN}")
            }
            Self::Ranges(error) => write!(f, "the fat root: {error}"),
            Self::Nodes(error) => write!(f, "a node set: {error}"),
            Self::Order(addr) => {
                write!(f, "the node at {addr} is out of order: the nodes of a set ascend by address")
            }
            Self::Stores(_) => f.write_str(
                "the section lists a program that stores; a storing traversal must begin at the root",
            ),
            Self::Root(root) => {
                write!(
                    f,
                    "the tree with root {:#x} is a duplicate, has another id than its root, or exceeds {TREES_MAX} trees",
                    root.0
                )
            }
        }
    }
}

impl core::error::Error for SectionError {}

impl From<RangeError> for SectionError {
    fn from(error: RangeError) -> Self {
        Self::Ranges(error)
    }
}

impl From<NodeSetError> for SectionError {
    fn from(error: NodeSetError) -> Self {
        Self::Nodes(error)
    }
}

impl TreeSection {
    /// Returns the section as bytes, with the nodes of a set in the order of their addresses.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let child = |child: Child| child.addr.0 | u64::from(child.level);
        let counts = [self.programs.len(), self.ranges.len(), self.sets.len()].map(|count| count as u64);
        let mut words = Vec::from([VERSION, self.root.0]);
        words.extend(counts);
        words.extend(self.programs.iter().flat_map(name_words));
        words.extend(self.ranges.iter().flat_map(|range| [range.first, child(range.child)]));
        for set in &self.sets {
            words.push(set.len() as u64);
            for node in by_address(set) {
                words.extend([node.addr.0, node.children.len() as u64]);
                words.extend(&node.pivots);
                words.extend(node.children.iter().map(|&at| child(at)));
            }
        }
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }
}

/// Returns the name of a program as words.
pub(crate) fn name_words(name: &ProgramHash) -> [u64; 2] {
    let (high, low) = name.0.split_at(8);
    [high, low].map(|half| u64::from_be_bytes(half.try_into().expect("half of 16 bytes")))
}

/// The unread words of a section.
pub(crate) struct Words<'a>(core::slice::Iter<'a, [u8; 8]>);

impl<'a> Words<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Result<Self, SectionError> {
        let (words, rest) = bytes.as_chunks::<8>();
        if rest.is_empty() { Ok(Self(words.iter())) } else { Err(SectionError::Form) }
    }

    /// Checks that no word remains.
    pub(crate) fn end(mut self) -> Result<(), SectionError> {
        if self.0.next().is_some() { Err(SectionError::Form) } else { Ok(()) }
    }

    pub(crate) fn next(&mut self) -> Result<u64, SectionError> {
        self.0.next().map(|word| u64::from_be_bytes(*word)).ok_or(SectionError::Form)
    }

    pub(crate) fn count(&mut self, what: &'static str, most: usize) -> Result<usize, SectionError> {
        count(what, self.next()?, most)
    }

    pub(crate) fn name(&mut self) -> Result<ProgramHash, SectionError> {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&self.next()?.to_be_bytes());
        name[8..].copy_from_slice(&self.next()?.to_be_bytes());
        Ok(ProgramHash(name))
    }
}

fn count(what: &'static str, have: u64, most: usize) -> Result<usize, SectionError> {
    usize::try_from(have).ok().filter(|&count| count <= most).ok_or(SectionError::TooMany(what, have))
}

fn address(word: u64) -> Result<VirtAddr, SectionError> {
    if word == 0 || !word.is_multiple_of(NODE_ALIGN) {
        Err(SectionError::Address(word))
    } else {
        Ok(VirtAddr(word))
    }
}

/// Returns a hash that distinguishes sections: FNV-1a of the words (Fowler, Noll, Vo). A publisher that
/// constructs a collision misleads only itself.
#[must_use]
pub fn edition(section: &[u8]) -> u64 {
    let words = section.as_chunks().0.iter().map(|word| u64::from_be_bytes(*word));
    // 0 stands for no section.
    words.fold(BASIS, fold).max(1)
}

const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

const fn fold(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0100_0000_01b3)
}

/// A known tree whose tables lead the requested program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeId(u32);

/// A traversal that begins further down, to be counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descent {
    /// The node at which it begins.
    pub at: VirtAddr,
    tree: TreeId,
    taken: DescentPath,
}

/// Returns the nodes of a set in the order of a section and of the counters.
fn by_address(set: &[SetNode]) -> Vec<&SetNode> {
    let mut nodes: Vec<&SetNode> = set.iter().collect();
    nodes.sort_unstable_by_key(|node| node.addr);
    nodes
}

/// Converts a count of elements of a section, which is less than 2^20.
fn number(count: usize) -> u32 {
    u32::try_from(count).expect("a section has few")
}

/// The branch that a counter counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Branch {
    /// The set of the branch; none for the fat root.
    pub set: Option<usize>,
    /// The node that the branch starts from; for a range, the child itself.
    pub from: VirtAddr,
    /// The node that the branch leads to.
    pub child: Child,
}

impl TreeSection {
    /// Returns the branches in the order of the counters.
    pub fn branches(&self) -> impl Iterator<Item = Branch> {
        let ranges =
            self.ranges.iter().map(|range| Branch { set: None, from: range.child.addr, child: range.child });
        let sets = self.sets.iter().enumerate().flat_map(|(number, set)| {
            by_address(set).into_iter().flat_map(move |node| {
                node.children.iter().map(move |&child| Branch { set: Some(number), from: node.addr, child })
            })
        });
        ranges.chain(sets)
    }
}

/// Number of descents that run at the same time, to overlap their memory accesses.
const WALKS: usize = 16;

/// Returns the key of a traversal: the first eight bytes of its pad, little-endian (PROTOCOL 13.14).
fn key_of(pad: &[u8]) -> u64 {
    let mut key = [0; 8];
    match pad.first_chunk() {
        Some(whole) => key = *whole,
        None => key[..pad.len()].copy_from_slice(pad),
    }
    u64::from_le_bytes(key)
}

/// All trees of a switch. Each leads only the traversals of the domain that published it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct IndexTables {
    trees: Vec<TreeTables>,
    /// Index in `trees` by domain and root.
    found: BTreeMap<(Domain, VirtAddr), TreeId>,
}

impl IndexTables {
    /// Adds the tables of a domain's section, whose `id` must be its root.
    ///
    /// # Errors
    /// [`SectionError::Root`]; the other trees are unchanged.
    pub fn put(&mut self, domain: Domain, id: u64, tree: TreeTables) -> Result<(), SectionError> {
        let key = (domain, tree.root());
        if self.trees.len() >= TREES_MAX || tree.root().0 != id || self.found.contains_key(&key) {
            return Err(SectionError::Root(tree.root()));
        }
        self.found.insert(key, TreeId(number(self.trees.len())));
        self.trees.push(tree);
        Ok(())
    }

    /// Returns the tree whose traversals begin at `at`. None if the domain published no tree with this root,
    /// or if the program does not search for the key in its pad.
    #[must_use]
    pub fn tree(&self, domain: Domain, at: VirtAddr, program: ProgramHash) -> Option<TreeId> {
        let &id = self.found.get(&(domain, at))?;
        self.trees[id.0 as usize].is_for(program).then_some(id)
    }

    /// Appends to `descents` the start of a traversal of the tree for each pad. A pad may lack the zeros at
    /// its end.
    pub fn descend<'a>(
        &self,
        tree: TreeId,
        pads: impl IntoIterator<Item = &'a [u8]>,
        descents: &mut Vec<Descent>,
    ) {
        let tables = &self.trees[tree.0 as usize];
        let mut pads = pads.into_iter();
        loop {
            let mut walks = [Walk::OVER; WALKS];
            let mut count = 0;
            for (walk, pad) in walks.iter_mut().zip(pads.by_ref()) {
                *walk = tables.walk_from_top(key_of(pad));
                count += 1;
            }
            let walks = &mut walks[..count];
            tables.descend(walks);
            descents.extend(walks.iter().map(|walk| Descent {
                at: tables.end(walk),
                tree,
                taken: walk.taken,
            }));
            if count < WALKS {
                return;
            }
        }
    }

    /// Returns the start of a domain's traversal in place of `at`, as [`IndexTables::tree`] and
    /// [`IndexTables::descend`].
    #[must_use]
    pub fn start(&self, domain: Domain, at: VirtAddr, program: ProgramHash, pad: &[u8]) -> Option<Descent> {
        let tree = self.tree(domain, at, program)?;
        let (tables, walk) = self.walked(tree, |tables| Some(tables.walk_from_top(key_of(pad))))?;
        Some(Descent { at: tables.end(&walk), tree, taken: walk.taken })
    }

    /// Runs a walk in a tree's tables to its end.
    fn walked(
        &self,
        tree: TreeId,
        begin: impl FnOnce(&TreeTables) -> Option<Walk>,
    ) -> Option<(&TreeTables, Walk)> {
        let tables = &self.trees[tree.0 as usize];
        let mut walks = [begin(tables)?];
        tables.descend(&mut walks);
        let [walk] = walks;
        Some((tables, walk))
    }

    /// Returns the deepest known node from a domain's root to `key`, among those that `may_take` accepts;
    /// none if no such node is known (PROTOCOL 15.5).
    #[must_use]
    pub fn lead(
        &self,
        domain: Domain,
        root: VirtAddr,
        key: u64,
        may_take: impl FnMut(VirtAddr) -> bool,
    ) -> Option<Descent> {
        let &tree = self.found.get(&(domain, root))?;
        self.deepest(tree, |tables| Some(tables.walk_from_top(key)), may_take)
    }

    /// Returns the deepest known node from any node in a set of the domain's trees (PROTOCOL 16.13: at a
    /// switch behind another one).
    #[must_use]
    pub fn lead_on(
        &self,
        domain: Domain,
        from: VirtAddr,
        key: u64,
        may_take: impl FnMut(VirtAddr) -> bool,
    ) -> Option<Descent> {
        let trees = self.found.range((domain, VirtAddr(0))..=(domain, VirtAddr(u64::MAX)));
        let has = |tree: &TreeId| self.trees[tree.0 as usize].walk_from_node(from, key).is_some();
        let tree = trees.map(|(_, &tree)| tree).find(has)?;
        self.deepest(tree, |tables| tables.walk_from_node(from, key), may_take)
    }

    /// Walks to the end, and back to the last acceptable node.
    fn deepest(
        &self,
        tree: TreeId,
        begin: impl FnOnce(&TreeTables) -> Option<Walk>,
        mut may_take: impl FnMut(VirtAddr) -> bool,
    ) -> Option<Descent> {
        let (tables, mut walk) = self.walked(tree, begin)?;
        while !may_take(tables.end(&walk)) {
            if !walk.step_back() {
                return None;
            }
        }
        Some(Descent { at: tables.end(&walk), tree, taken: walk.taken })
    }

    /// Returns the continuation of a domain's traversal that another switch led to `at`; none if no set of
    /// the tree has that node (Fat-B+Tree IV-A: switches below the core have node sets).
    #[must_use]
    pub fn below(&self, domain: Domain, root: VirtAddr, at: VirtAddr, pad: &[u8]) -> Option<Descent> {
        let &tree = self.found.get(&(domain, root))?;
        let (tables, walk) = self.walked(tree, |tables| tables.walk_from_node(at, key_of(pad)))?;
        Some(Descent { at: tables.end(&walk), tree, taken: walk.taken })
    }

    /// Counts a descent, in the tables that led it.
    pub fn count(&mut self, descent: &Descent) {
        self.trees[descent.tree.0 as usize].count(&descent.taken);
    }

    /// Returns the tables of a tree. [`TreeTables::counters`] are in the order of [`TreeSection::branches`].
    #[must_use]
    pub fn tables(&self, domain: Domain, root: VirtAddr) -> Option<&TreeTables> {
        self.found.get(&(domain, root)).map(|id| &self.trees[id.0 as usize])
    }

    /// Returns the bytes of memory of all tables including spare capacity, and of the entries of the map.
    #[must_use]
    pub fn memory(&self) -> usize {
        let found = self.found.len() * size_of::<((Domain, VirtAddr), TreeId)>();
        let room = (self.trees.capacity() - self.trees.len()) * size_of::<TreeTables>();
        self.trees.iter().map(TreeTables::memory).sum::<usize>() + room + found
    }

    /// Returns the number of trees.
    #[must_use]
    pub fn len(&self) -> usize {
        self.trees.len()
    }

    /// Returns true if there is no tree.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }
}

#[cfg(test)]
mod tests;
