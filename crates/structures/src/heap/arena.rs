//! Block allocation for records: free blocks of a member's chunks, freed blocks that may still be read, and
//! the source of more room.
//!
//! Key type: [`Arena`], what a member owns of the heap. A *chunk* is an allocation on one memory node, owned
//! by one member at a time. A *slab* is a run of its pages, cut into blocks of one class. A chunk's bytes
//! alone describe its contents. The map at its start lists the slab that begins at each page, and each
//! block's header says whether the block is in use. A dead member therefore loses only what it had not marked
//! yet.
//!
//! This module decides and remembers; [`super::room`] accesses far memory.

use super::layout::ChunkRow;
use super::record::Class;
use farmem_client::NodeId;
use farmem_wire::VirtAddr;
use farmem_wire::message::PAGE_LEN;
use std::collections::BTreeMap;

/// Bytes of the smallest chunk: room for its map and the largest slab.
pub(crate) const CHUNK_MIN: u64 = 256 << 10;
/// Bytes of the largest chunk.
pub(crate) const CHUNK_MAX: u64 = 64 << 20;
const _: () = assert!(CHUNK_MIN.is_power_of_two() && CHUNK_MAX.is_power_of_two());

const PAGE: u64 = PAGE_LEN as u64;

/// A chunk of this member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) row: usize,
    pub(crate) node: NodeId,
    pub(crate) base: u64,
    pub(crate) size: u64,
    /// The first page outside all slabs.
    pub(crate) next_page: u64,
}

impl Chunk {
    /// Creates a chunk without slabs.
    pub(crate) const fn fresh(row: usize, node: NodeId, base: u64, size: u64) -> Self {
        Self { row, node, base, size, next_page: map_pages(size) }
    }

    pub(crate) const fn page_at(&self, page: u64) -> VirtAddr {
        VirtAddr(self.base + page * PAGE)
    }

    /// Returns the map's address for a page.
    pub(crate) const fn map_at(&self, page: u64) -> VirtAddr {
        VirtAddr(self.base + page)
    }

    const fn pages(&self) -> u64 {
        self.size / PAGE
    }

    /// Parses the chunk's map: the start and the class of each slab.
    pub(crate) fn slabs(&mut self, map: &[u8]) -> Vec<(VirtAddr, Class)> {
        let mut slabs = Vec::new();
        self.next_page = map_pages(self.size);
        while let Some(byte) = usize::try_from(self.next_page).ok().and_then(|page| map.get(page)) {
            // 0: no slab from here on.
            let Some(class) = byte.checked_sub(1).and_then(Class::numbered) else { break };
            slabs.push((self.page_at(self.next_page), class));
            self.next_page += class.slab_pages() as u64;
        }
        slabs
    }
}

/// Returns the pages of a chunk's map, which has one byte for each page of the chunk.
const fn map_pages(size: u64) -> u64 {
    (size / PAGE).div_ceil(PAGE)
}

/// A freed record that may still be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Freed {
    pub(crate) at: VirtAddr,
    pub(crate) class: Class,
}

#[derive(Debug, Default)]
pub(crate) struct Arena {
    pub(crate) own: Vec<Chunk>,
    /// Free blocks, by memory node and class.
    free: BTreeMap<(u16, Class), Vec<VirtAddr>>,
    /// Retired blocks, by the epoch from which on they are free.
    retired: BTreeMap<u32, Vec<Freed>>,
    /// Freed records of any owner, not yet marked as freed in far memory.
    pub(crate) unmarked: Vec<Freed>,
    /// The rows of all chunks, as read last.
    pub(crate) rows: Vec<ChunkRow>,
}

impl Arena {
    /// Removes and returns a free block, if there is one.
    pub(crate) fn pop(&mut self, node: NodeId, class: Class) -> Option<VirtAddr> {
        self.free.get_mut(&(node.0, class))?.pop()
    }

    /// Adds a free block: no other program knows its address, or no member can hold a pointer to it any more.
    pub(crate) fn push(&mut self, node: NodeId, class: Class, at: VirtAddr) {
        self.free.entry((node.0, class)).or_default().push(at);
    }

    /// Returns the chunk of this member that contains the address.
    pub(crate) fn own_at(&self, at: VirtAddr) -> Option<&Chunk> {
        self.own.iter().find(|chunk| at.0.wrapping_sub(chunk.base) < chunk.size)
    }

    /// Keeps a freed block of this member until the heap's epoch is `stamp`.
    pub(crate) fn retire(&mut self, stamp: u32, freed: Freed) {
        self.retired.entry(stamp).or_default().push(freed);
    }

    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Returns the number of freed blocks that are not available yet.
    pub(crate) fn retired(&self) -> usize {
        self.retired.values().map(Vec::len).sum()
    }

    /// Returns true when some retired blocks are free in `epoch`.
    pub(crate) fn is_ripe(&self, epoch: u32) -> bool {
        self.retired.first_key_value().is_some_and(|(&stamp, _)| stamp <= epoch)
    }

    /// Frees the retired blocks to which no member can hold a pointer in `epoch`.
    pub(crate) fn collect(&mut self, epoch: u32) {
        let later = self.retired.split_off(&epoch.saturating_add(1));
        for freed in core::mem::replace(&mut self.retired, later).into_values().flatten() {
            // If this member lost the chunk meanwhile, its next owner finds the freed blocks.
            if let Some(&Chunk { node, .. }) = self.own_at(freed.at) {
                self.push(node, freed.class, freed.at);
            }
        }
    }

    /// Cuts a slab for blocks of `class` in a chunk on `node`. Returns the chunk and the page. The map must
    /// record the slab before a block is used.
    pub(crate) fn cut(&mut self, node: NodeId, class: Class) -> Option<(Chunk, u64)> {
        let pages = class.slab_pages() as u64;
        let has_room = |chunk: &&mut Chunk| chunk.node == node && chunk.next_page + pages <= chunk.pages();
        let chunk = self.own.iter_mut().find(has_room)?;
        let page = chunk.next_page;
        chunk.next_page += pages;
        Some((*chunk, page))
    }

    /// Returns the size of the next chunk on `node`: as much as the member has there, within bounds.
    pub(crate) fn next_size(&self, node: NodeId) -> u64 {
        let have: u64 = self.own.iter().filter(|chunk| chunk.node == node).map(|chunk| chunk.size).sum();
        have.next_power_of_two().clamp(CHUNK_MIN, CHUNK_MAX)
    }
}
