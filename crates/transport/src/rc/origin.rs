//! Where the bytes of a WRITE are taken from as the packets that carry them are made.
//!
//! Key types: [`Origin`], memory that gives them; [`Stretch`], the part of one that a WRITE carries. A WRITE with a stretch has no buffer: a packet that is lost is made again from there, so whoever posts one leaves
//! the bytes where they are until it has ended. What changes there meanwhile may be written or not, packet by packet.

use alloc::sync::Arc;
use core::fmt::Debug;

/// Memory that gives bytes when they leave.
pub trait Origin: Debug + Send + Sync {
    /// Fills `pieces`, one behind the other, with the bytes from the `offset`-th on: those of packets in a row. False when it cannot.
    fn take(&self, offset: u64, pieces: &mut [&mut [u8]]) -> bool;
}

/// A part of an [`Origin`].
#[derive(Clone, Debug)]
pub struct Stretch {
    origin: Arc<dyn Origin>,
    from: u64,
    len: usize,
}

impl Stretch {
    /// The first `len` bytes.
    #[must_use]
    pub fn new(origin: Arc<dyn Origin>, len: usize) -> Self {
        Self { origin, from: 0, len }
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
        Self { origin: Arc::clone(&self.origin), from: self.from + skip, len }
    }

    /// Fills `pieces`, one behind the other, with its bytes from the `offset`-th on; false when they cannot be had.
    ///
    /// # Panics
    /// In a build with debug assertions, when it has fewer.
    pub fn take(&self, offset: usize, pieces: &mut [&mut [u8]]) -> bool {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        debug_assert!(offset + len <= self.len, "{len} bytes at {offset} of {}", self.len);
        self.origin.take(self.from + offset as u64, pieces)
    }
}

/// The same bytes of the same memory.
impl PartialEq for Stretch {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.origin, &other.origin) && (self.from, self.len) == (other.from, other.len)
    }
}

impl Eq for Stretch {}
