//! A range of memory that a READ fills or a WRITE carries without a buffer.
//!
//! Key type: [`Part`]. A READ fills a [`SinkPart`](super::SinkPart); a WRITE carries a [`SourcePart`](super::SourcePart).

use alloc::sync::Arc;
use core::fmt::{self, Debug, Formatter};

/// A range of a memory `M`.
pub struct Part<M: ?Sized> {
    pub(super) memory: Arc<M>,
    pub(super) from: u64,
    len: usize,
}

impl<M: ?Sized> Part<M> {
    /// Creates a range of the first `len` bytes.
    #[must_use]
    pub fn new(memory: Arc<M>, len: usize) -> Self {
        Self { memory, from: 0, len }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the length is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the sub-range of `len` bytes from `skip` on.
    ///
    /// # Panics
    /// If the range has fewer bytes.
    #[must_use]
    pub fn part(&self, skip: u64, len: usize) -> Self {
        let end = skip.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= self.len as u64), "a part of {} bytes", self.len);
        Self { memory: Arc::clone(&self.memory), from: self.from + skip, len }
    }

    /// Returns the position in the memory of `len` bytes at `offset` of the range.
    pub(super) fn place(&self, offset: usize, len: usize) -> u64 {
        debug_assert!(offset + len <= self.len, "{len} bytes at {offset} of {}", self.len);
        self.from + offset as u64
    }
}

impl<M: ?Sized> Clone for Part<M> {
    fn clone(&self) -> Self {
        Self { memory: Arc::clone(&self.memory), ..*self }
    }
}

impl<M: ?Sized + Debug> Debug for Part<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { memory, from, len } = self;
        f.debug_struct("Part").field("memory", memory).field("from", from).field("len", len).finish()
    }
}

/// Compares memory, offset and length, not the bytes.
impl<M: ?Sized> PartialEq for Part<M> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory) && (self.from, self.len) == (other.from, other.len)
    }
}

impl<M: ?Sized> Eq for Part<M> {}
