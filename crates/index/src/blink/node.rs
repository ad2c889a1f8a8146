//! A node of the tree: 256 bytes, which a memory node reads and replaces as a whole.
//!
//! ```text
//!     0  u64       head: compared by a replacement (see [`Head`])
//!     8  u64       right neighbour on the same level, 0 at the end; in a dead node: the node that has its keys now
//!    16  u64       the smallest key that the node may have
//!    24  u64       the largest
//!    32  14 x u64  leaf: keys, in no order; inner node: the smallest key of each child, ascending, the first as at 16, unused ones 2^64 - 1
//!   144  14 x u64  leaf: their values; inner node: their children. The last one of a taking node, which has at most 13 entries: the place it takes
//! ```
//!
//! All numbers are little-endian, as in the programs of traversals. A tree can have every key.

use alloc::vec::Vec;
use core::fmt;
use farmem_wire::VirtAddr;

/// Bytes of a node, and the alignment of its address: the largest window of a traversal.
pub const NODE_LEN: usize = 256;
/// Most pairs of a leaf, and most children of an inner node.
pub const ENTRIES_MAX: usize = 14;
/// The highest level of a node, limited by its head.
pub const LEVELS_MAX: u8 = 31;

const RIGHT: usize = 8;
const FIRST: usize = 16;
const LAST: usize = 24;
const KEYS: usize = 32;
const VALUES: usize = KEYS + 8 * ENTRIES_MAX;
const TAKEN: usize = VALUES + 8 * (ENTRIES_MAX - 1);
/// Most entries of a taking node.
pub(super) const TAKING_MAX: usize = ENTRIES_MAX - 1;

const _: () = assert!(VALUES + 8 * ENTRIES_MAX == NODE_LEN, "a node is full of entries");

/// The state of a node. Only a node that another node leads to is live, young, taking or closing. A descent
/// that arrives at such a node, by however old a pointer, is in the tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// The node is readable and writable.
    Live,
    /// The node is readable and writable. Nodes above may not lead to it yet; before they do, it neither
    /// closes nor splits.
    Young,
    /// The node is readable. It has the entries of another node, whose place is not free before all pointers
    /// there are gone.
    Taking,
    /// The node is readable. Its entries move to another node; an operation that wants to write them
    /// completes the move first.
    Closing,
    /// The node's entries are elsewhere.
    Dead,
    /// No node led here until a moment ago, or none does yet: a descent by an older pointer must not read the
    /// node.
    New,
    /// A place without a node.
    Free,
}

impl State {
    /// Returns true if the node has its keys: a descent may go on from there, or end.
    #[must_use]
    pub const fn is_readable(self) -> bool {
        matches!(self, Self::Live | Self::Young | Self::Taking | Self::Closing)
    }

    /// Returns true if a leaf's entries may be changed in place.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        matches!(self, Self::Live | Self::Young)
    }
}

/// The first word of a node: it is another one after every replacement.
///
/// From the lowest bit: 24 bits of version, 28 of the tree's tag, 5 of level, 4 of entries, 3 of state. No node has the word 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Head {
    /// Replacements so far at this address, modulo 2^24, whatever node it was.
    pub version: u32,
    /// The tag of its tree: never 0.
    pub tag: Tag,
    /// Height above the leaves.
    pub level: u8,
    /// How many entries it has.
    pub entries: u8,
    /// State of the node.
    pub state: State,
}

/// A tag that distinguishes the nodes of different trees: 28 bits, not all 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Tag(u32);

impl Tag {
    /// Bits of a tag.
    pub const BITS: u32 = 28;

    /// Returns the tag that is made of the lowest bits of `number`.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        let tag = number & ((1 << Self::BITS) - 1);
        Self(if tag == 0 { 1 } else { tag })
    }

    /// Returns the tag as a number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Head {
    const VERSION: u32 = (1 << 24) - 1;

    /// Returns the head as its word.
    #[must_use]
    pub const fn word(self) -> u64 {
        (self.version & Self::VERSION) as u64
            | (self.tag.0 as u64) << 24
            | (self.level as u64 & 31) << 52
            | (self.entries as u64 & 15) << 57
            | (self.state as u64) << 61
    }

    /// Parses a head.
    ///
    /// # Errors
    /// [`NodeError`] if the word is no head.
    pub const fn parse(word: u64) -> Result<Self, NodeError> {
        let state = match word >> 61 {
            0 => State::Live,
            1 => State::Young,
            2 => State::Taking,
            3 => State::Closing,
            4 => State::Dead,
            5 => State::New,
            6 => State::Free,
            _ => return Err(NodeError("a state that there is not")),
        };
        #[expect(clippy::cast_possible_truncation, reason = "masked to fewer bits")]
        let (version, tag, level, entries) = (
            word as u32 & Self::VERSION,
            (word >> 24) as u32 & ((1 << Tag::BITS) - 1),
            (word >> 52) as u8 & 31,
            (word >> 57) as u8 & 15,
        );
        if tag == 0 {
            return Err(NodeError("no tree's tag"));
        }
        if entries as usize > ENTRIES_MAX {
            return Err(NodeError("more entries than a node has room for"));
        }
        Ok(Self { version, tag: Tag(tag), level, entries, state })
    }

    /// Returns the version behind this one, of the same address: what a node that takes this one's place has.
    #[must_use]
    pub const fn next(self) -> u32 {
        (self.version + 1) & Self::VERSION
    }
}

/// The reason why bytes are not a valid node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeError(pub &'static str);

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a valid tree node: {}", self.0)
    }
}

impl core::error::Error for NodeError {}

/// A node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Node {
    /// Replacements so far at its address.
    pub version: u32,
    /// The tag of its tree.
    pub tag: Tag,
    /// Height above the leaves: 0 is a leaf.
    pub level: u8,
    /// State of the node.
    pub state: State,
    /// The right neighbour on the same level, null at the end. In a dead node: the node that has its keys. In
    /// a free place: the next free one.
    pub right: VirtAddr,
    /// The place of the node whose entries a taking node has; null in all others.
    pub taken: VirtAddr,
    /// The smallest key that the node may have.
    pub first: u64,
    /// The largest key that the node may have.
    pub last: u64,
    /// A leaf's keys with their values, ascending (in the node's bytes they have no order); an inner node's
    /// children with the smallest key of each. At most [`ENTRIES_MAX`].
    pub entries: Vec<(u64, u64)>,
}

/// The next step of a descent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextStep {
    /// The key is in this leaf, or nowhere.
    Leaf,
    /// The descent continues at this node: a child, the right neighbour, or the node that has the keys of a
    /// dead one.
    To(VirtAddr),
    /// The key is to the left: the pointer that led here comes from an older state of the tree.
    Stale,
}

impl Node {
    /// Returns an empty leaf for all keys: a tree begins with it.
    #[must_use]
    pub const fn root(tag: Tag) -> Self {
        Self {
            version: 0,
            tag,
            level: 0,
            state: State::Live,
            right: VirtAddr(0),
            taken: VirtAddr(0),
            first: 0,
            last: u64::MAX,
            entries: Vec::new(),
        }
    }

    /// Returns the contents of a free place, with the next free one.
    #[must_use]
    pub fn free(tag: Tag, version: u32, next: VirtAddr) -> Self {
        Self { version, state: State::Free, right: next, ..Self::root(tag) }
    }

    /// Returns the node's first word.
    #[must_use]
    pub fn head(&self) -> Head {
        let entries = u8::try_from(self.entries.len()).expect("a node has at most 14 entries");
        Head { version: self.version, tag: self.tag, level: self.level, entries, state: self.state }
    }

    /// Returns the next step of a descent to `key`. An inner node has at least one child.
    #[must_use]
    pub fn next_step(&self, key: u64) -> NextStep {
        match self.state {
            State::Dead => NextStep::To(self.right),
            State::New | State::Free => NextStep::Stale,
            _ => self.next_step_by_keys(key),
        }
    }

    /// Returns the next step, as [`Node::next_step`], of a node that another node leads to.
    pub(super) fn next_step_by_keys(&self, key: u64) -> NextStep {
        match () {
            () if key < self.first => NextStep::Stale,
            () if key > self.last => NextStep::To(self.right),
            () if self.level == 0 => NextStep::Leaf,
            () => NextStep::To(VirtAddr(self.entries[self.child_of(key)].1)),
        }
    }

    /// Returns the index of the child for `key`, which is not below the node's first key.
    pub(super) fn child_of(&self, key: u64) -> usize {
        self.entries.partition_point(|&(first, _)| first <= key).saturating_sub(1)
    }

    /// Returns the value of a leaf's key.
    #[must_use]
    pub fn value(&self, key: u64) -> Option<u64> {
        self.entries.binary_search_by_key(&key, |&(key, _)| key).ok().map(|at| self.entries[at].1)
    }

    /// Returns the node as bytes.
    ///
    /// # Panics
    /// If the node has more than [`ENTRIES_MAX`] entries, or, while taking, that many.
    #[must_use]
    pub fn emit(&self) -> [u8; NODE_LEN] {
        let mut bytes = [0; NODE_LEN];
        let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        put(0, self.head().word());
        put(RIGHT, self.right.0);
        put(FIRST, self.first);
        put(LAST, self.last);
        let unused = (u64::MAX, 0);
        let entries = self.entries.iter().copied().chain(core::iter::repeat(unused)).take(ENTRIES_MAX);
        for (i, (key, value)) in entries.enumerate() {
            put(KEYS + 8 * i, key);
            put(VALUES + 8 * i, value);
        }
        if self.state == State::Taking {
            assert!(self.entries.len() <= TAKING_MAX, "a node that takes has room for what it takes");
            put(TAKEN, self.taken.0);
        }
        bytes
    }

    /// Parses a node.
    ///
    /// # Errors
    /// [`NodeError`] if the bytes are invalid: keys out of range or duplicate, children that do not ascend, a
    /// dead node without a link.
    pub fn parse(bytes: &[u8; NODE_LEN]) -> Result<Self, NodeError> {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        let Head { version, tag, level, entries, state } = Head::parse(word(0))?;
        let (right, first, last) = (VirtAddr(word(RIGHT)), word(FIRST), word(LAST));
        let pairs = (0..usize::from(entries)).map(|i| (word(KEYS + 8 * i), word(VALUES + 8 * i)));
        let mut entries: Vec<(u64, u64)> = pairs.collect();
        if level == 0 {
            entries.sort_unstable();
        }
        let taken = VirtAddr(if state == State::Taking { word(TAKEN) } else { 0 });
        let node = Self { version, tag, level, state, right, taken, first, last, entries };
        node.fault().map_or(Ok(node), |what| Err(NodeError(what)))
    }

    /// Returns the fault of the node, if it has one.
    fn fault(&self) -> Option<&'static str> {
        let keys = || self.entries.iter().map(|&(key, _)| key);
        let links = self.right.0.is_multiple_of(NODE_LEN as u64);
        let leads = self.state == State::Dead || self.last != u64::MAX;
        match () {
            () if !links => Some("its right neighbour is at no node's address"),
            () if self.state == State::Free => None,
            () if self.first > self.last => Some("its last key is below its first"),
            () if leads == self.right.is_null() => Some("a right neighbour that it cannot have, or none"),
            () if self.state == State::Dead => None,
            () if (self.state == State::Taking) != is_place(self.taken.0) => {
                Some("what it takes is at no node's address")
            }
            () if self.state == State::Taking && self.entries.len() > TAKING_MAX => {
                Some("no room for what it takes")
            }
            () if !keys().all(|key| (self.first..=self.last).contains(&key)) => {
                Some("a key outside of its keys")
            }
            () if !keys().is_sorted_by(|a, b| a < b) => Some("keys that do not ascend"),
            () if self.level == 0 => None,
            () if keys().next() != Some(self.first) => Some("no child for its first key"),
            () if !self.entries.iter().all(|&(_, child)| is_place(child)) => {
                Some("a child at no node's address")
            }
            () => None,
        }
    }
}

const fn is_place(address: u64) -> bool {
    address != 0 && address.is_multiple_of(NODE_LEN as u64)
}
