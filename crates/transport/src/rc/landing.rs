//! Where the bytes of a READ go straight from the packets that bring them.
//!
//! Key types: [`Landing`], memory that takes them; [`Spot`], the part of one that a READ fills. A READ with a spot has no buffer: nothing is copied between the buffer that the
//! link received a packet in and the memory that the bytes are for.

use alloc::sync::Arc;
use core::fmt::Debug;

/// Memory that takes bytes as they come.
pub trait Landing: Debug + Send + Sync {
    /// Takes bytes from the `offset`-th on. Those of a packet that was sent again may come twice, and those of a READ that fails may have come.
    fn put(&self, offset: u64, bytes: &[u8]);
}

/// A part of a [`Landing`].
#[derive(Clone, Debug)]
pub struct Spot {
    landing: Arc<dyn Landing>,
    from: u64,
    len: usize,
}

impl Spot {
    /// The first `len` bytes.
    #[must_use]
    pub fn new(landing: Arc<dyn Landing>, len: usize) -> Self {
        Self { landing, from: 0, len }
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
        Self { landing: Arc::clone(&self.landing), from: self.from + skip, len }
    }

    /// Puts bytes there, from its `offset`-th on.
    ///
    /// # Panics
    /// In a build with debug assertions, when they leave it.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        debug_assert!(offset + bytes.len() <= self.len, "{} bytes at {offset} of {}", bytes.len(), self.len);
        self.landing.put(self.from + offset as u64, bytes);
    }
}

/// The same bytes of the same memory.
impl PartialEq for Spot {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.landing, &other.landing) && (self.from, self.len) == (other.from, other.len)
    }
}

impl Eq for Spot {}
