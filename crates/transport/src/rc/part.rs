//! A part of memory that bytes of a READ or WRITE go to or come from without a buffer.
//!
//! Key type: [`Part`]; [`Spot`](super::Spot) and [`Stretch`](super::Stretch) are what a READ fills and what a WRITE carries.

use alloc::sync::Arc;
use core::fmt::{self, Debug, Formatter};

/// A part of `M`, counted from where it begins.
pub struct Part<M: ?Sized> {
    pub(super) memory: Arc<M>,
    pub(super) from: u64,
    len: usize,
}

impl<M: ?Sized> Part<M> {
    /// The first `len` bytes.
    #[must_use]
    pub fn new(memory: Arc<M>, len: usize) -> Self {
        Self { memory, from: 0, len }
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True of no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` bytes of it, from the `skip`-th on.
    ///
    /// # Panics
    /// When it has fewer.
    #[must_use]
    pub fn part(&self, skip: u64, len: usize) -> Self {
        let end = skip.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= self.len as u64), "a part of {} bytes", self.len);
        Self { memory: Arc::clone(&self.memory), from: self.from + skip, len }
    }

    /// Where the `offset`-th of `len` bytes is in the memory.
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

/// The same bytes of the same memory.
impl<M: ?Sized> PartialEq for Part<M> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory) && (self.from, self.len) == (other.from, other.len)
    }
}

impl<M: ?Sized> Eq for Part<M> {}
