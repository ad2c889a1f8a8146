//! Layout of a heap's root: named memory of [`ROOT_LEN`] bytes. Every word is little-endian and changed by
//! compare-and-swap.
//!
//! | byte | what |
//! |---|---|
//! | 0 | "farmemHP", written last: a program that finds it finds a whole heap |
//! | 8 | version of the layout |
//! | 16 | the lease in nanoseconds |
//! | 24 | its identity: drawn at random when it is made, never 0 |
//! | 32 | the epoch, from 1, and whether a member closes the heap or has destroyed it ([`super::epoch::EpochWord`]) |
//! | 40 | 64 words of members |
//! | 1024 | 64 named roots: addresses of records |
//! | 2048 | 512 rows of chunks, 24 bytes each: owner, first byte and log2 of the size, records that others freed |

use super::epoch::MEMBERS_MAX;
use crate::words;
use farmem_client::Error;
use farmem_wire::VirtAddr;

/// Bytes of the root.
pub(crate) const ROOT_LEN: u64 = 16 << 10;
/// The first word.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"farmemHP");
/// The version of this layout.
pub(crate) const VERSION: u64 = 2;
/// Named roots of a heap.
pub const ROOTS_MAX: usize = 64;
/// Bound on the chunks of a heap.
pub const CHUNKS_MAX: usize = 512;

pub(crate) const VERSION_AT: u64 = 8;
pub(crate) const LEASE_AT: u64 = 16;
pub(crate) const IDENTITY_AT: u64 = 24;
const EPOCH_AT: u64 = 32;
/// Words before the members' words.
pub(crate) const HEAD_WORDS: usize = 5;
const MEMBERS_AT: u64 = 8 * HEAD_WORDS as u64;
pub(crate) const ROOTS_AT: u64 = 1024;
pub(crate) const CHUNKS_AT: u64 = 2048;
/// Bytes of a chunk's row.
pub(crate) const ROW_LEN: usize = 24;
/// Offset in a row of the chunk's address word.
pub(crate) const ROW_BASE: u64 = 8;
/// Offset in a row of the newest record that other members freed in the chunk.
pub(crate) const ROW_FREED: u64 = 16;

const _: () = assert!(MEMBERS_AT + 8 * MEMBERS_MAX as u64 <= ROOTS_AT);
const _: () = assert!(ROOTS_AT + 8 * ROOTS_MAX as u64 <= CHUNKS_AT);
const _: () = assert!(CHUNKS_AT + (ROW_LEN * CHUNKS_MAX) as u64 <= ROOT_LEN);

/// Bytes from the first word to the last member's. The identity and the epoch are in one packet of a READ.
pub(crate) const STANDING_LEN: usize = 8 * (HEAD_WORDS + MEMBERS_MAX);

/// Returns the address of the epoch word.
pub(crate) const fn epoch_at(base: VirtAddr) -> VirtAddr {
    VirtAddr(base.0 + EPOCH_AT)
}

/// The identity of a heap. A root is freed with its heap, and its memory may then become another heap's root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Root {
    pub(crate) base: VirtAddr,
    pub(crate) identity: u64,
}

impl Root {
    /// Returns the error for a program that uses a destroyed heap.
    pub(crate) fn gone(self) -> Error {
        Error::Missing { what: format!("heap at {} any more: it was destroyed", self.base) }
    }
}

pub(crate) const fn member_at(base: VirtAddr, slot: usize) -> VirtAddr {
    VirtAddr(base.0 + MEMBERS_AT + 8 * slot as u64)
}

pub(crate) const fn row_at(base: VirtAddr, row: usize) -> VirtAddr {
    VirtAddr(base.0 + CHUNKS_AT + (ROW_LEN * row) as u64)
}

pub(crate) const fn root_at(base: VirtAddr, number: usize) -> VirtAddr {
    VirtAddr(base.0 + ROOTS_AT + 8 * number as u64)
}

/// The owner of a chunk: a member's slot and generation. 0 means no owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner(pub(crate) u64);

impl Owner {
    pub(crate) fn new(slot: usize, generation: u16) -> Self {
        Self(1 << 32 | (slot as u64) << 16 | u64::from(generation))
    }

    /// Returns the owner's slot and generation.
    pub(crate) fn member(self) -> Option<(usize, u16)> {
        let slot = usize::try_from(self.0 >> 16 & 0xffff).ok()?;
        let generation = u16::try_from(self.0 & 0xffff).ok()?;
        (self.0 >> 32 == 1 && slot < MEMBERS_MAX).then_some((slot, generation))
    }
}

/// A chunk's row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChunkRow {
    pub(crate) owner: Owner,
    /// Address of the chunk; 0 until its owner has written it.
    pub(crate) base: u64,
    pub(crate) size: u64,
}

impl ChunkRow {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let words = words(bytes);
        let (base, log2) = (words[1] & !0xfff, words[1] & 0x3f);
        Self { owner: Owner(words[0]), base, size: if base == 0 { 0 } else { 1 << log2 } }
    }

    /// Encodes address and size of a chunk. The size is a power of two, and the address is page-aligned.
    pub(crate) const fn base_word(base: u64, size: u64) -> u64 {
        base | size.trailing_zeros() as u64
    }

    pub(crate) const fn has(&self, addr: VirtAddr) -> bool {
        self.base != 0 && addr.0.wrapping_sub(self.base) < self.size
    }
}
