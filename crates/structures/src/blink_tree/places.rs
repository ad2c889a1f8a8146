//! Places for nodes: fresh memory, and places of merged nodes.
//!
//! Key type: [`Places`], one per handle. A handle keeps at most [`KEPT_MAX`] free places for its next nodes
//! and shares the rest with all handles. The tree's header has lists of free places, one for the memory nodes
//! of a number modulo [`LISTS`]. Each free place links to the next one ([`State::Free`]). A list's word
//! counts its changes, so a slow writer with an old word changes nothing. Handles look at the lists before
//! they allocate more memory.
//!
//! Limits: free places that a program keeps when it ends are lost until the tree is destroyed. So is a place
//! that the program was taking or giving at that moment.

use super::programs;
use crate::arena::{Arena, Layout};
use crate::words;
use farmem_client::{Error, FarMemory, Policy};
use farmem_index::blink::{Head, NODE_LEN, Node, State, Tag};
use farmem_traversal::Program;
use farmem_wire::VirtAddr;

/// Bound on the free places that a handle keeps when an operation begins.
pub const KEPT_MAX: usize = 64;
/// Lists of free places in a tree's header.
const LISTS: usize = 28;
/// Offset of the lists in the header.
const LISTS_AT: u64 = 32;
/// Bound on the re-reads of a list that other handles change.
const TRIES_MAX: u32 = 1 << 10;

const _: () = assert!(LISTS_AT + 8 * LISTS as u64 <= NODE_LEN as u64, "the root is behind the header");

/// A handle's counts of node places.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PlacesUsed {
    /// Places that the handle has allocated since it was opened, bulk-loaded nodes included.
    pub made: u64,
    /// Nodes that the handle placed where another node had been.
    pub again: u64,
    /// Free places that the handle keeps.
    pub kept: usize,
}

/// A handle's stock of places for new nodes.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) arena: Arena,
    /// Free places, whichever handle allocated them.
    kept: Vec<VirtAddr>,
    made: u64,
    again: u64,
    /// True when the lists may hold places that this handle gave.
    gave: bool,
    header: VirtAddr,
    tag: Tag,
    layout: Layout,
}

/// A list's word: the first place, and the list's change count modulo 2^24.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ListWord(u64);

impl ListWord {
    const PLACE_BITS: u32 = 40;

    const fn first(self) -> VirtAddr {
        VirtAddr((self.0 & ((1 << Self::PLACE_BITS) - 1)) * NODE_LEN as u64)
    }

    /// Returns the next word of this list, with `first` as the first place.
    const fn next(self, first: VirtAddr) -> Self {
        let changes = (self.0 >> Self::PLACE_BITS).wrapping_add(1) << Self::PLACE_BITS;
        Self(changes | (first.0 / NODE_LEN as u64))
    }
}

impl Places {
    pub(super) fn new(
        memory: &(impl FarMemory + ?Sized),
        layout: Layout,
        header: VirtAddr,
        tag: Tag,
    ) -> Self {
        let arena = Arena::new(memory, layout, NODE_LEN);
        Self { arena, kept: Vec::new(), made: 0, again: 0, gave: false, header, tag, layout }
    }

    pub(super) const fn used(&self) -> PlacesUsed {
        PlacesUsed { made: self.made, again: self.again, kept: self.kept.len() }
    }

    /// Frees the memory that this handle has allocated.
    pub(super) fn destroy(self, memory: &mut (impl FarMemory + ?Sized)) -> Result<(), Error> {
        self.arena.destroy(memory)
    }

    /// Adds a free place.
    pub(super) fn keep(&mut self, at: VirtAddr) {
        self.kept.push(at);
    }

    /// Allocates a place that never held a node, on memory node number `home` of a partitioned tree.
    pub(super) fn fresh(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        home: usize,
    ) -> Result<VirtAddr, Error> {
        let at = self.arena.take(memory, home)?;
        self.made += 1;
        Ok(at)
    }

    /// Writes an unlinked node to a place, if possible near `near`. Returns the place and the node's head
    /// there.
    pub(super) fn create(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        program: &Program,
        node: &Node,
        near: VirtAddr,
    ) -> Result<(VirtAddr, Head), Error> {
        let home = self.arena.home_of(memory, near);
        while let Some(at) = self.free_place(memory, home)? {
            let head = match self.free_head(memory, at) {
                Ok(head) => head,
                // The place was lost with its memory node.
                Err(Error::MemoryLost { .. }) => continue,
                Err(error) => return Err(error),
            };
            let node = Node { version: head.next(), ..node.clone() };
            if !replace(memory, program, (at, head), &node)? {
                return Err(not_free(at));
            }
            self.again += 1;
            return Ok((at, node.head()));
        }
        let at = self.fresh(memory, home)?;
        memory.write(at, &node.emit())?;
        Ok((at, node.head()))
    }

    /// Returns a place that held a node before, if one on this memory node is available. The shared lists are
    /// searched when this handle gave places, or when no fresh place is left.
    fn free_place(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        home: usize,
    ) -> Result<Option<VirtAddr>, Error> {
        let anywhere = self.layout != Layout::Partitioned;
        let at_hand = self.kept.iter().rposition(|at| anywhere || self.arena.home_of(memory, *at) == home);
        if let Some(place) = at_hand {
            return Ok(Some(self.kept.swap_remove(place)));
        }
        if !self.gave && self.arena.has_room(home) {
            return Ok(None);
        }
        let mut bytes = [0; 8 * LISTS];
        memory.read(VirtAddr(self.header.0 + LISTS_AT), &mut bytes)?;
        let words = words(&bytes);
        let mut lists = (0..LISTS).filter(|list| !ListWord(words[*list]).first().is_null());
        self.gave &= lists.clone().next().is_some();
        match lists.find(|list| anywhere || *list == self.list_of(home)) {
            Some(list) => self.pop(memory, list),
            None => Ok(None),
        }
    }

    /// Returns the head of the node at a free place.
    fn free_head(&self, memory: &mut (impl FarMemory + ?Sized), at: VirtAddr) -> Result<Head, Error> {
        let mut word = [0; 8];
        memory.read(at, &mut word)?;
        let is_free = |head: &Head| {
            head.tag == self.tag && matches!(head.state, State::Dead | State::New | State::Free)
        };
        Head::parse(u64::from_le_bytes(word)).ok().filter(is_free).ok_or_else(|| not_free(at))
    }

    /// Returns the list of the free places on a memory node.
    fn list_of(&self, home: usize) -> usize {
        usize::from(self.arena.node(home).0) % LISTS
    }

    const fn list_at(&self, list: usize) -> VirtAddr {
        VirtAddr(self.header.0 + LISTS_AT + 8 * list as u64)
    }

    fn list_word(&self, memory: &mut (impl FarMemory + ?Sized), list: usize) -> Result<ListWord, Error> {
        let mut word = [0; 8];
        memory.read(self.list_at(list), &mut word)?;
        Ok(ListWord(u64::from_le_bytes(word)))
    }

    /// Changes a list if its word is still the old one. Returns whether it was.
    fn change(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        list: usize,
        (old, first): (ListWord, VirtAddr),
    ) -> Result<bool, Error> {
        Ok(memory.compare_swap(self.list_at(list), old.0, old.next(first).0)? == old.0)
    }

    /// Removes the first place from a list.
    fn pop(&self, memory: &mut (impl FarMemory + ?Sized), list: usize) -> Result<Option<VirtAddr>, Error> {
        for _ in 0..TRIES_MAX {
            let word = self.list_word(memory, list)?;
            let at = word.first();
            if at.is_null() {
                return Ok(None);
            }
            let mut bytes = [0; 16];
            let next = match memory.read(at, &mut bytes) {
                Ok(()) => VirtAddr(words(&bytes)[1]),
                // The places after this one are no longer known.
                Err(Error::MemoryLost { .. }) => VirtAddr::NULL,
                Err(error) => return Err(error),
            };
            // If the place is no longer the first, the compare-and-swap fails and `next` is discarded.
            if self.change(memory, list, (word, next))? {
                return Ok(Some(at));
            }
        }
        Err(Error::Contended { what: "a B-link tree's free places".into(), tries: TRIES_MAX })
    }

    /// Hands half of the free places over to all handles when there are more than [`KEPT_MAX`].
    pub(super) fn share(
        &mut self,
        memory: &mut (impl FarMemory + ?Sized),
        program: &Program,
    ) -> Result<(), Error> {
        if self.kept.len() <= KEPT_MAX {
            return Ok(());
        }
        self.gave = true;
        while self.kept.len() > KEPT_MAX / 2 {
            let at = self.kept.swap_remove(0);
            match self.push(memory, program, at) {
                // The place was lost with its memory node.
                Ok(()) | Err(Error::MemoryLost { .. }) => {}
                Err(error) => {
                    self.kept.push(at);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Prepends a place to the list of its memory node.
    fn push(
        &self,
        memory: &mut (impl FarMemory + ?Sized),
        program: &Program,
        at: VirtAddr,
    ) -> Result<(), Error> {
        let list = self.list_of(self.arena.home_of(memory, at));
        let mut head = self.free_head(memory, at)?;
        for _ in 0..TRIES_MAX {
            let word = self.list_word(memory, list)?;
            let free = Node::free(self.tag, head.next(), word.first());
            if !replace(memory, program, (at, head), &free)? {
                return Err(not_free(at));
            }
            if self.change(memory, list, (word, at))? {
                return Ok(());
            }
            head = free.head();
        }
        Err(Error::Contended { what: "a B-link tree's free places".into(), tries: TRIES_MAX })
    }
}

/// Replaces the node at a place in one step if the node still has this head. Returns whether it had.
pub(super) fn replace(
    memory: &mut (impl FarMemory + ?Sized),
    program: &Program,
    (at, head): (VirtAddr, Head),
    node: &Node,
) -> Result<bool, Error> {
    let pad = [&head.word().to_le_bytes()[..], &node.emit(), &[0; 8]].concat();
    let done = memory.dispatch(program, at, pad, 1, &Policy::Offload)?;
    let replaced = done.scratch[programs::REPLACED] == 1;
    memory.recycle(done.scratch);
    Ok(replaced)
}

/// Returns the error for a free place that something else has written to.
const fn not_free(at: VirtAddr) -> Error {
    Error::Broken { addr: at, what: "a free place of a B-link tree" }
}
