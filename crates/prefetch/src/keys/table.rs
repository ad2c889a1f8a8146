//! The slots of a set of keys: buckets of eight, a cache line each, in mapped memory.

use farmem_link::huge::{HugeMemory, PageSize};
use std::io;

/// Slots of a bucket: a line of 64 bytes.
pub(super) const SLOTS: usize = 8;
/// The value of a slot without a key. Fresh memory has nothing else.
pub(super) const EMPTY: u64 = 0;

/// A bucket.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Bucket(pub(super) [u64; SLOTS]);

/// All buckets.
#[derive(Debug)]
pub(super) struct Table {
    memory: HugeMemory,
    buckets: usize,
    pages: PageSize,
}

impl Table {
    /// Creates empty buckets.
    pub(super) fn new(buckets: usize, pages: PageSize) -> io::Result<Self> {
        let bytes = buckets.checked_mul(size_of::<Bucket>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory: HugeMemory::new(bytes, pages)?, buckets, pages })
    }

    pub(super) const fn bytes(&self) -> usize {
        self.buckets * size_of::<Bucket>()
    }

    pub(super) fn huge_len(&self) -> Option<u64> {
        self.memory.huge_bytes()
    }

    #[inline(always)]
    pub(super) const fn buckets(&self) -> &[Bucket] {
        let start = self.memory.start().cast::<Bucket>();
        // SAFETY: the mapping begins at a multiple of 2 MiB and has at least so many buckets, zero or written through
        // `set`, as long as `self`; writes need `&mut self`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.buckets) }
    }

    const fn buckets_mut(&mut self) -> &mut [Bucket] {
        let start = self.memory.start().cast::<Bucket>();
        // SAFETY: as in `buckets`; `&mut self` is the only access now.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.buckets) }
    }

    /// Returns the address of a bucket, for prefetch hints.
    #[inline(always)]
    pub(super) const fn line(&self, bucket: usize) -> *const u8 {
        (&raw const self.buckets()[bucket]).cast()
    }

    /// Returns the slot of a bucket that has a key.
    #[inline]
    pub(super) fn slot_of(&self, bucket: usize, key: u64) -> Option<usize> {
        self.buckets()[bucket].0.iter().position(|&slot| slot == key)
    }

    pub(super) const fn set(&mut self, bucket: usize, slot: usize, key: u64) {
        self.buckets_mut()[bucket].0[slot] = key;
    }

    /// Removes all keys, and returns the memory to the system if possible.
    pub(super) fn clear(&mut self) {
        if let Ok(memory) = HugeMemory::new(self.bytes(), self.pages) {
            self.memory = memory;
        } else {
            self.buckets_mut().fill(Bucket([EMPTY; SLOTS]));
        }
    }
}
