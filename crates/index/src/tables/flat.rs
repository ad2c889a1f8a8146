//! The tables of one tree as a switch walks them: laid out for a cache, built word by word as the section
//! arrives.
//!
//! Key types: [`TreeTables`], and [`TreeReader`], which builds them. Lookups agree with
//! [`crate::RangeTables`] and [`crate::NodeSet`], the tables of a pipeline; a test compares both.
//!
//! ```text
//!   firsts   first key of each range                     a search among at most 1,024
//!   slots    (child, link, counter) of each range, then of each child of each node
//!   pivots   of each node: (first slot, children), then its pivots
//! ```
//!
//! A slot's *link* is the index in `pivots` of the slot's child as a node of a later set. So a step is a
//! search among at most 15 adjacent pivots. A link is resolved when a descent first takes it
//! ([`TreeTables::count`]), because resolving all of them would take longer than the budget of a frame.

use super::{
    BASIS, PROGRAMS_MAX, SETS_MAX, SectionError, TreeSection, VERSION, address, count, fold, number,
};
use crate::{BRANCHES, Child, NodeSetError, RANGES_MAX, Range, RangeError, SET_NODES_MAX, SetNode};
use alloc::vec::Vec;
use core::ops;
use farmem_wire::{ProgramHash, VirtAddr};

/// A tree as a switch knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeTables {
    root: VirtAddr,
    edition: u64,
    /// Programs, ascending.
    programs: Vec<ProgramHash>,
    firsts: Vec<u64>,
    slots: Vec<Slot>,
    pivots: Vec<u64>,
    /// Addresses of the nodes, ascending in each set; and the index in `pivots` of each.
    addrs: Vec<VirtAddr>,
    heads: Vec<u32>,
    sets: Vec<Set>,
}

/// The target of a range or of a node's branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Slot {
    /// The address with the level in its lowest byte, as in a section.
    child: u64,
    link: u32,
    counter: u32,
}

/// The start of a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Set {
    node: u32,
    slot: u32,
}

/// A link that is not resolved yet.
const UNKNOWN: u32 = u32::MAX;
/// A link of a child that no later set has.
const LAST: u32 = u32::MAX - 1;

/// The slots on the path of a descent: one range, then at most one per set.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct DescentPath {
    slots: [u32; 1 + SETS_MAX],
    count: u8,
}

impl DescentPath {
    const fn push(&mut self, slot: u32) {
        self.slots[self.count as usize] = slot;
        self.count += 1;
    }

    fn slots(&self) -> &[u32] {
        &self.slots[..usize::from(self.count)]
    }
}

impl Walk {
    /// Removes the last step.
    pub(super) fn step_back(&mut self) -> bool {
        self.taken.count -= 1;
        match self.taken.slots().last() {
            Some(&slot) => self.slot = slot,
            None => return false,
        }
        true
    }
}

/// A descent in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    key: u64,
    slot: u32,
    link: u32,
    pub(super) taken: DescentPath,
}

impl Walk {
    /// A walk that is over before it begins.
    pub(super) const OVER: Self =
        Self { key: 0, slot: 0, link: LAST, taken: DescentPath { slots: [0; 1 + SETS_MAX], count: 0 } };

    const fn new(key: u64, slot: u32) -> Self {
        Self { key, slot, link: UNKNOWN, ..Self::OVER }
    }
}

impl TreeTables {
    /// Builds the tables of a section's bytes.
    ///
    /// # Errors
    /// [`SectionError`] if the section is invalid.
    pub fn parse(section: &[u8]) -> Result<Self, SectionError> {
        let (words, rest) = section.as_chunks::<8>();
        let mut reader = TreeReader::default();
        words.iter().try_for_each(|word| reader.take(u64::from_be_bytes(*word)))?;
        if rest.is_empty() { reader.finish() } else { Err(SectionError::Form) }
    }

    /// Returns the section that the tables were built from, with ascending programs.
    #[must_use]
    pub fn section(&self) -> TreeSection {
        let lasts = self.firsts.iter().skip(1).map(|&first| first - 1).chain([u64::MAX]);
        let bounds = self.firsts.iter().zip(lasts).zip(0..);
        let ranges = bounds.map(|((&first, last), slot)| Range { first, last, child: self.child(slot) });
        let node = |place: usize| {
            let at = self.heads[place] as usize;
            let (first, children) = head(self.pivots[at]);
            let pivots = self.pivots[at + 1..][..children as usize - 1].to_vec();
            let children = (first..first + children).map(|slot| self.child(slot)).collect();
            SetNode { addr: self.addrs[place], pivots, children }
        };
        TreeSection {
            root: self.root,
            programs: self.programs.clone(),
            ranges: ranges.collect(),
            sets: self.places().map(|places| places.map(node).collect()).collect(),
        }
    }

    /// Returns the indices of each set's nodes in `addrs` and `heads`.
    fn places(&self) -> impl Iterator<Item = ops::Range<usize>> + '_ {
        let ends = self.sets.iter().skip(1).map(|set| set.node as usize).chain([self.addrs.len()]);
        self.sets.iter().zip(ends).map(|(set, end)| set.node as usize..end)
    }

    /// Returns the node at which traversals of the tree begin.
    #[must_use]
    pub const fn root(&self) -> VirtAddr {
        self.root
    }

    /// Returns the edition of the section ([`super::edition`]).
    #[must_use]
    pub const fn edition(&self) -> u64 {
        self.edition
    }

    /// Returns the programs that the tables lead, ascending.
    #[must_use]
    pub fn programs(&self) -> &[ProgramHash] {
        &self.programs
    }

    pub(super) fn is_for(&self, program: ProgramHash) -> bool {
        self.programs.binary_search(&program).is_ok()
    }

    /// Returns the deepest known node for `key`: the fat root leads to one, and each set that has the node
    /// leads a step further.
    #[must_use]
    pub fn deepest(&self, key: u64) -> Child {
        let mut walk = [self.walk_from_top(key)];
        self.descend(&mut walk);
        self.child(walk[0].slot)
    }

    /// Starts a walk at the range of the key.
    pub(super) fn walk_from_top(&self, key: u64) -> Walk {
        // The first range begins at 0.
        Walk::new(key, number(self.firsts.partition_point(|&first| first <= key)) - 1)
    }

    /// Starts a walk at the key's branch of a node; none if no set has the node.
    pub(super) fn walk_from_node(&self, at: VirtAddr, key: u64) -> Option<Walk> {
        self.head_of(at, 0).map(|head| Walk::new(key, self.branch(head, key)))
    }

    /// Runs these walks to their ends, level by level, so that their memory accesses overlap.
    pub(super) fn descend(&self, walks: &mut [Walk]) {
        // A step leads to a later set, which bounds the steps.
        for _ in 0..=self.sets.len() {
            let mut goes_on = false;
            for walk in walks.iter_mut().filter(|walk| walk.link != LAST) {
                walk.taken.push(walk.slot);
                let link = self.slots[walk.slot as usize].link;
                walk.link = if link == UNKNOWN { self.link_of(walk.slot) } else { link };
                goes_on |= walk.link != LAST;
            }
            if !goes_on {
                return;
            }
            for walk in walks.iter_mut().filter(|walk| walk.link != LAST) {
                walk.slot = self.branch(walk.link, walk.key);
            }
        }
    }

    /// Returns the end of a walk.
    pub(super) fn end(&self, walk: &Walk) -> VirtAddr {
        self.child(walk.slot).addr
    }

    /// Returns the slot of the key's branch at the node with this index in `pivots`.
    fn branch(&self, head_at: u32, key: u64) -> u32 {
        let (first, children) = head(self.pivots[head_at as usize]);
        let pivots = &self.pivots[head_at as usize + 1..][..children as usize - 1];
        first + pivots.iter().map(|&pivot| u32::from(pivot <= key)).sum::<u32>()
    }

    fn child(&self, slot: u32) -> Child {
        let [.., level] = self.slots[slot as usize].child.to_be_bytes();
        Child { addr: VirtAddr(self.slots[slot as usize].child & !0xff), level }
    }

    /// Resolves the link of a slot's child, in the sets behind the slot's.
    fn link_of(&self, slot: u32) -> u32 {
        let behind = self.sets.partition_point(|set| set.slot <= slot);
        self.head_of(self.child(slot).addr, behind).unwrap_or(LAST)
    }

    /// Returns the index in `pivots` of the node at `at`, in the first set from `set` on that has it.
    fn head_of(&self, at: VirtAddr, set: usize) -> Option<u32> {
        self.places().skip(set).find_map(|places| {
            let place = self.addrs[places.clone()].binary_search(&at).ok()?;
            Some(self.heads[places.start + place])
        })
    }

    /// Counts a descent.
    pub(super) fn count(&mut self, taken: &DescentPath) {
        for &slot in taken.slots() {
            let there = &mut self.slots[slot as usize];
            there.counter = there.counter.wrapping_add(1);
            if there.link == UNKNOWN {
                let link = self.link_of(slot);
                self.slots[slot as usize].link = link;
            }
        }
    }

    /// Returns the bytes of memory of the tables, including spare capacity.
    #[must_use]
    pub fn memory(&self) -> usize {
        let Self { root: _, edition: _, programs, firsts, slots, pivots, addrs, heads, sets } = self;
        size_of::<Self>()
            + programs.capacity() * size_of::<ProgramHash>()
            + firsts.capacity() * size_of::<u64>()
            + slots.capacity() * size_of::<Slot>()
            + pivots.capacity() * size_of::<u64>()
            + addrs.capacity() * size_of::<VirtAddr>()
            + heads.capacity() * size_of::<u32>()
            + sets.capacity() * size_of::<Set>()
    }

    /// Returns the number of counters.
    #[must_use]
    pub const fn counters_len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the counters from number `from` on, in the order of [`super::TreeSection::branches`].
    pub fn counters(&self, from: usize) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().skip(from).map(|slot| slot.counter)
    }

    #[cfg(test)]
    pub(super) fn set_counter(&mut self, number: usize, counter: u32) {
        self.slots[number].counter = counter;
    }
}

/// Returns a node's first slot, and its number of children.
#[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
const fn head(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// Builds the tables from a section's words as they arrive. Each word takes bounded time, and memory is
/// proportional to the words received.
#[derive(Clone, Debug)]
pub struct TreeReader {
    expects: Expects,
    /// Number of ranges to come.
    ranges: usize,
    /// Number of sets to come.
    sets: usize,
    /// Number of nodes of the current set to come.
    nodes: usize,
    /// Half of a program's name, or the address of the current node.
    word: u64,
    tables: TreeTables,
}

/// The expected next word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expects {
    Version,
    Root,
    Programs,
    Ranges,
    Sets,
    /// The first half of a name, with the number of names to come.
    Name(usize),
    NameEnd(usize),
    First,
    Top,
    Nodes,
    Addr,
    Children,
    /// Pivots to come, and children to come behind them.
    Pivots(u32, u32),
    Branches(u32),
    End,
}

impl Default for TreeReader {
    fn default() -> Self {
        let tables = TreeTables {
            root: VirtAddr(0),
            edition: BASIS,
            programs: Vec::new(),
            firsts: Vec::new(),
            slots: Vec::new(),
            pivots: Vec::new(),
            addrs: Vec::new(),
            heads: Vec::new(),
            sets: Vec::new(),
        };
        Self { expects: Expects::Version, ranges: 0, sets: 0, nodes: 0, word: 0, tables }
    }
}

impl TreeReader {
    /// Handles the next word of the section.
    ///
    /// # Errors
    /// [`SectionError`] if the word is invalid here; then no further word may be passed.
    pub fn take(&mut self, word: u64) -> Result<(), SectionError> {
        self.tables.edition = fold(self.tables.edition, word);
        self.expects = match self.expects {
            Expects::Version if word == VERSION => Expects::Root,
            Expects::Version | Expects::End => return Err(SectionError::Form),
            Expects::Root => {
                self.tables.root = address(word)?;
                Expects::Programs
            }
            Expects::Programs => {
                // Stored here until the other counts have arrived.
                self.nodes = count("programs", word, PROGRAMS_MAX)?;
                Expects::Ranges
            }
            Expects::Ranges => {
                self.ranges = count("ranges", word, RANGES_MAX)?;
                Expects::Sets
            }
            Expects::Sets => {
                self.sets = count("node sets", word, SETS_MAX)?;
                let names = core::mem::take(&mut self.nodes);
                self.name_or_range(names)?
            }
            Expects::Name(left) => {
                self.word = word;
                Expects::NameEnd(left)
            }
            Expects::NameEnd(left) => {
                self.program(word)?;
                self.name_or_range(left - 1)?
            }
            Expects::First => {
                self.first(word)?;
                Expects::Top
            }
            Expects::Top => {
                self.slot(word)?;
                self.ranges -= 1;
                if self.ranges > 0 { Expects::First } else { self.set_or_end() }
            }
            Expects::Nodes => {
                self.nodes = count("nodes of a set", word, SET_NODES_MAX)?;
                let (node, slot) = (number(self.tables.addrs.len()), number(self.tables.slots.len()));
                self.tables.sets.push(Set { node, slot });
                self.sets -= 1;
                self.node_or_set()
            }
            Expects::Addr => {
                self.node(word)?;
                Expects::Children
            }
            Expects::Children => self.children(word)?,
            Expects::Pivots(left, children) => {
                self.pivot(word, children - 1 - left)?;
                if left > 1 { Expects::Pivots(left - 1, children) } else { Expects::Branches(children) }
            }
            Expects::Branches(left) => {
                self.slot(word)?;
                if left > 1 { Expects::Branches(left - 1) } else { self.node_or_set() }
            }
        };
        Ok(())
    }

    /// Returns the bytes of memory of the tables so far ([`TreeTables::memory`]).
    #[must_use]
    pub fn memory(&self) -> usize {
        self.tables.memory()
    }

    /// Returns the tables after the last word.
    ///
    /// # Errors
    /// [`SectionError::Form`] if words are missing.
    pub fn finish(mut self) -> Result<TreeTables, SectionError> {
        if self.expects != Expects::End {
            return Err(SectionError::Form);
        }
        self.tables.programs.sort_unstable();
        self.tables.edition = self.tables.edition.max(1);
        Ok(self.tables)
    }

    fn name_or_range(&self, names: usize) -> Result<Expects, SectionError> {
        match (names, self.ranges) {
            (0, 0) => Err(RangeError::Empty.into()),
            (0, _) => Ok(Expects::First),
            (left, _) => Ok(Expects::Name(left)),
        }
    }

    const fn set_or_end(&self) -> Expects {
        if self.sets > 0 { Expects::Nodes } else { Expects::End }
    }

    const fn node_or_set(&self) -> Expects {
        if self.nodes > 0 { Expects::Addr } else { self.set_or_end() }
    }

    fn program(&mut self, end: u64) -> Result<(), SectionError> {
        let name = u128::from(self.word) << 64 | u128::from(end);
        let program = ProgramHash(name.to_be_bytes());
        if program.stores() {
            return Err(SectionError::Stores(program));
        }
        self.tables.programs.push(program);
        Ok(())
    }

    fn first(&mut self, first: u64) -> Result<(), SectionError> {
        let firsts = &mut self.tables.firsts;
        match firsts.last() {
            None if first != 0 => return Err(RangeError::Gap { at: 0 }.into()),
            Some(&before) if first <= before => {
                return Err(RangeError::Inverted { at: firsts.len() - 1 }.into());
            }
            _ => firsts.push(first),
        }
        Ok(())
    }

    fn slot(&mut self, child: u64) -> Result<(), SectionError> {
        address(child & !0xff)?;
        // Behind the last set there is no link.
        let link = if self.sets > 0 { UNKNOWN } else { LAST };
        self.tables.slots.push(Slot { child, link, counter: 0 });
        Ok(())
    }

    fn node(&mut self, addr: u64) -> Result<(), SectionError> {
        let addr = address(addr)?;
        let begin = self.tables.sets.last().map_or(0, |set| set.node as usize);
        match self.tables.addrs[begin..].last() {
            Some(&before) if before == addr => return Err(NodeSetError::Twice { addr }.into()),
            Some(&before) if before > addr => return Err(SectionError::Order(addr)),
            _ => {}
        }
        self.tables.heads.push(number(self.tables.pivots.len()));
        self.tables.addrs.push(addr);
        self.word = addr.0;
        self.nodes -= 1;
        Ok(())
    }

    fn children(&mut self, word: u64) -> Result<Expects, SectionError> {
        let children = number(count("children of a node", word, BRANCHES)?);
        if children == 0 {
            let (addr, children, pivots) = (VirtAddr(self.word), 0, 0);
            return Err(NodeSetError::Children { addr, children, pivots }.into());
        }
        let first = self.tables.slots.len() as u64;
        self.tables.pivots.push(first << 32 | u64::from(children));
        Ok(if children > 1 { Expects::Pivots(children - 1, children) } else { Expects::Branches(1) })
    }

    /// Adds pivot number `at` of its node.
    fn pivot(&mut self, pivot: u64, at: u32) -> Result<(), SectionError> {
        let pivots = &mut self.tables.pivots;
        if at > 0 && pivots.last().is_some_and(|&before| before >= pivot) {
            return Err(NodeSetError::Pivots { addr: VirtAddr(self.word) }.into());
        }
        pivots.push(pivot);
        Ok(())
    }
}
