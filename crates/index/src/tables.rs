//! What a switch knows of trees: of each a fat root and node sets, and which traversals they are for. As a section of its soft state, and as tables.
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
//! A child is an address, which is a multiple of 256, and in its lowest byte the level.
//!
//! # What is counted
//!
//! Each range counts the descents that went by it, and so does each child of each node of a set: a counter an entry of the table that names the child,
//! as the direct counters of match-action tables. They say how often each node was come by that the tables lead to, held or not: whatever may be
//! selected next, since only children of held nodes are candidates (Fat-B+Tree III-C).

mod flat;

pub use flat::{TreeReader, TreeTables};

use crate::{Child, NodeSetError, Range, RangeError, SetNode};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use farmem_wire::{Domain, ProgramHash, VirtAddr};
use flat::{Taken, Walk};

/// The kind of a section that has a tree's tables.
pub const SECTION_KIND: u16 = 0x0d13;
/// Node sets of a tree at most: two in each of the layers below the core switch (Fat-B+Tree IV-A), and room for more.
pub const SETS_MAX: usize = 8;
/// Programs that a tree's tables are for at most.
pub const PROGRAMS_MAX: usize = 64;
/// Bytes that a tree's tables take beside [`TABLE_BYTES_PER_BYTE`], at most.
pub const TREE_BYTES: usize = 1 << 10;
/// Bytes that tables take for each byte of the sections that they are made of, at most: a slot is two words where a section has one, and a list that grows has room for
/// twice as much as came.
pub const TABLE_BYTES_PER_BYTE: usize = 4;
/// Trees that a switch has tables of at most.
pub const TREES_MAX: usize = 1024;

/// A node's address is a multiple of this: so a level fits beside it.
pub const NODE_ALIGN: u64 = 256;

const VERSION: u64 = 1;

/// What is published of a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeSection {
    /// Where traversals of the tree begin.
    pub root: VirtAddr,
    /// The traversals that may begin further down: those that go to the key that the first eight bytes of their pad are, little-endian.
    pub programs: Vec<ProgramHash>,
    /// The fat root (Fat-B+Tree III-B).
    pub ranges: Vec<Range>,
    /// The node sets, each of one layer below the one before (Fat-B+Tree III-C).
    pub sets: Vec<Vec<SetNode>>,
}

/// Why a section is no tree's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SectionError {
    /// It ends too early, goes on behind its end, or is of another version.
    Form,
    /// It says that there are more of something than there may be: of what, and how many.
    TooMany(&'static str, u64),
    /// This address is no node's: null, or no multiple of 256.
    Address(u64),
    /// The fat root.
    Ranges(RangeError),
    /// A node set.
    Nodes(NodeSetError),
    /// Two trees of a domain have this root, it is not the one that the section is found by, or there are more than [`TREES_MAX`].
    Root(VirtAddr),
    /// The nodes of a set are not in the order of their addresses: this one comes too late.
    Order(VirtAddr),
    /// A program that stores: a request of it that comes again must take the way that it took (PROTOCOL 13.14).
    Stores(ProgramHash),
}

impl fmt::Display for SectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form => f.write_str("a section that is cut off, too long, or of another version"),
            Self::TooMany(what, have) => write!(f, "{have} {what} are too many"),
            Self::Address(addr) => write!(f, "{addr:#x} is no node's address"),
            Self::Ranges(error) => write!(f, "the fat root: {error}"),
            Self::Nodes(error) => write!(f, "a node set: {error}"),
            Self::Order(addr) => write!(f, "the node at {addr} does not come in the order of addresses"),
            Self::Stores(_) => f.write_str("a program that stores begins at the root"),
            Self::Root(root) => {
                write!(f, "a tree too many, or under a number that is not its root's, {:#x}", root.0)
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
    /// The section as bytes: nodes of a set in the order of their addresses.
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

/// The name of a program as words.
pub(crate) fn name_words(name: &ProgramHash) -> [u64; 2] {
    let (high, low) = name.0.split_at(8);
    [high, low].map(|half| u64::from_be_bytes(half.try_into().expect("half of 16 bytes")))
}

/// The words of a section that are still to be read.
pub(crate) struct Words<'a>(core::slice::Iter<'a, [u8; 8]>);

impl<'a> Words<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Result<Self, SectionError> {
        let (words, rest) = bytes.as_chunks::<8>();
        if rest.is_empty() { Ok(Self(words.iter())) } else { Err(SectionError::Form) }
    }

    /// There is no further word.
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

/// Tells the bytes of a section from others: FNV-1a of its words (Fowler, Noll, Vo). Who publishes may make two that it does not tell apart, and
/// misleads nobody but itself.
#[must_use]
pub fn edition(section: &[u8]) -> u64 {
    let words = section.as_chunks().0.iter().map(|word| u64::from_be_bytes(*word));
    // 0 says that there is none.
    words.fold(BASIS, fold).max(1)
}

const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

const fn fold(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0100_0000_01b3)
}

/// A tree that is known, and whose tables lead the program that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeId(u32);

/// A traversal that begins further down, until it is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descent {
    /// Where it begins.
    pub at: VirtAddr,
    tree: TreeId,
    taken: Taken,
}

/// The nodes of a set in the order in which a section has them, and a switch counts.
fn by_address(set: &[SetNode]) -> Vec<&SetNode> {
    let mut nodes: Vec<&SetNode> = set.iter().collect();
    nodes.sort_unstable_by_key(|node| node.addr);
    nodes
}

/// A number of things of a section, of which there are less than 2^20.
fn number(count: usize) -> u32 {
    u32::try_from(count).expect("a section has few")
}

/// What a counter of a section counts: descents that took this branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Branch {
    /// The set that led there; none for the fat root.
    pub set: Option<usize>,
    /// The node that led there: of a range the child itself.
    pub from: VirtAddr,
    /// Where it led.
    pub child: Child,
}

impl TreeSection {
    /// What the counters of the section's tables count, in their order.
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

/// Descents that go on at the same time: what one waits for from memory, the others wait for with it.
const WALKS: usize = 16;

/// The key of a traversal: the first eight bytes of its pad, little-endian (PROTOCOL 13.14).
fn key_of(pad: &[u8]) -> u64 {
    let mut key = [0; 8];
    match pad.first_chunk() {
        Some(whole) => key = *whole,
        None => key[..pad.len()].copy_from_slice(pad),
    }
    u64::from_le_bytes(key)
}

/// All trees that a switch knows, each for the traversals of one domain: what a domain publishes leads nobody else.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct IndexTables {
    trees: Vec<TreeTables>,
    /// By whose it is and its root: the place in `trees`.
    found: BTreeMap<(Domain, VirtAddr), TreeId>,
}

impl IndexTables {
    /// Takes the tables of one section more, of a domain, which is found by `id`: its root.
    ///
    /// # Errors
    /// [`SectionError::Root`]; the other trees are as they were.
    pub fn put(&mut self, domain: Domain, id: u64, tree: TreeTables) -> Result<(), SectionError> {
        let key = (domain, tree.root());
        if self.trees.len() >= TREES_MAX || tree.root().0 != id || self.found.contains_key(&key) {
            return Err(SectionError::Root(tree.root()));
        }
        self.found.insert(key, TreeId(number(self.trees.len())));
        self.trees.push(tree);
        Ok(())
    }

    /// The tree whose traversals of a domain begin at `at`: none when that is no root of a tree that the domain published, or when the program is none that
    /// goes to the key in its pad.
    #[must_use]
    pub fn tree(&self, domain: Domain, at: VirtAddr, program: ProgramHash) -> Option<TreeId> {
        let &id = self.found.get(&(domain, at))?;
        self.trees[id.0 as usize].is_for(program).then_some(id)
    }

    /// Where traversals of a tree may begin in place of the root, one for each pad, behind `descents`. A pad may be without the zeros at its end.
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

    /// Where a traversal of a domain may begin in place of `at`: that of [`IndexTables::tree`] and [`IndexTables::descend`].
    #[must_use]
    pub fn start(&self, domain: Domain, at: VirtAddr, program: ProgramHash, pad: &[u8]) -> Option<Descent> {
        let tree = self.tree(domain, at, program)?;
        let (tables, walk) = self.walked(tree, |tables| Some(tables.walk_from_top(key_of(pad))))?;
        Some(Descent { at: tables.end(&walk), tree, taken: walk.taken })
    }

    /// Takes a walk in a tree's tables to its end.
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

    /// The deepest node that is known on the way from the root of a tree that the domain published to `key`, of those that may be taken: none when no such node
    /// is known (PROTOCOL 15.5).
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

    /// The same from any node that a set of a tree of the domain has (PROTOCOL 16.13: what a switch behind another one does).
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

    /// Walks to the end, and back to the last node that may be taken.
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

    /// Where a traversal of a domain's tree that another switch led to `at` may go on: none when the sets of the tree's tables do not have that node
    /// (Fat-B+Tree IV-A: the switches below the core have node sets).
    #[must_use]
    pub fn below(&self, domain: Domain, root: VirtAddr, at: VirtAddr, pad: &[u8]) -> Option<Descent> {
        let &tree = self.found.get(&(domain, root))?;
        let (tables, walk) = self.walked(tree, |tables| tables.walk_from_node(at, key_of(pad)))?;
        Some(Descent { at: tables.end(&walk), tree, taken: walk.taken })
    }

    /// Counts a descent that began. The tables are those that the descent went by.
    pub fn count(&mut self, descent: &Descent) {
        self.trees[descent.tree.0 as usize].count(&descent.taken);
    }

    /// The tables of a tree: [`TreeTables::counters`] is what they have counted, in the order of [`TreeSection::branches`].
    #[must_use]
    pub fn tables(&self, domain: Domain, root: VirtAddr) -> Option<&TreeTables> {
        self.found.get(&(domain, root)).map(|id| &self.trees[id.0 as usize])
    }

    /// Bytes of memory that the tables of all trees take, with room that is kept for more; of the map by which they are found its entries.
    #[must_use]
    pub fn memory(&self) -> usize {
        let found = self.found.len() * size_of::<((Domain, VirtAddr), TreeId)>();
        let room = (self.trees.capacity() - self.trees.len()) * size_of::<TreeTables>();
        self.trees.iter().map(TreeTables::memory).sum::<usize>() + room + found
    }

    /// How many trees there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.trees.len()
    }

    /// True when no tree is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }
}

#[cfg(test)]
mod tests;
