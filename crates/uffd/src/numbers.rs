//! Numbers in far memory that are read like a slice.
//!
//! Key type: [`Numbers`]. A plain `&[u32]` would promise that its bytes do not change while it lives. A window cannot
//! keep this promise: an evicted page is fetched again, and another host may have written it. So each element is
//! loaded as a relaxed atomic, which is the same instruction as a plain load on every machine with aligned loads.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A number that [`Numbers`] can hold: `u32` or `u64`.
pub trait Number: Copy + Debug + Send + Sync + sealed::Sealed {
    /// The atomic form, of equal size and alignment.
    #[doc(hidden)]
    type Atomic: Debug + Sync;

    /// Loads a number with relaxed ordering.
    #[doc(hidden)]
    fn load(from: &Self::Atomic) -> Self;
}

mod sealed {
    #[expect(unnameable_types, reason = "so that no other crate says which types these are")]
    /// Types that have an atomic of their own size, and for which every bit pattern is a value.
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

const _: () = {
    assert!(size_of::<AtomicU32>() == size_of::<u32>());
    assert!(size_of::<AtomicU64>() == size_of::<u64>());
};

impl Number for u32 {
    type Atomic = AtomicU32;

    #[inline]
    fn load(from: &AtomicU32) -> Self {
        from.load(Ordering::Relaxed)
    }
}

impl Number for u64 {
    type Atomic = AtomicU64;

    #[inline]
    fn load(from: &AtomicU64) -> Self {
        from.load(Ordering::Relaxed)
    }
}

/// Read-only numbers of a window ([`Memory::numbers`](super::Memory::numbers)): like `&[T]` of local memory. A touch
/// of a far page waits for the page. A touch of a lost page, or without an answer of the rack, is a SIGBUS.
#[derive(Debug)]
pub struct Numbers<'w, T: Number> {
    pub(crate) all: &'w [T::Atomic],
}

// A derived implementation would require `T::Atomic: Clone`.
impl<T: Number> Clone for Numbers<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Number> Copy for Numbers<'_, T> {}

impl<'w, T: Number> Numbers<'w, T> {
    /// Wraps numbers outside a window, for example in a mapped file.
    #[must_use]
    pub const fn of(all: &'w [T::Atomic]) -> Self {
        Self { all }
    }

    /// Returns the number of elements.
    #[must_use]
    pub const fn len(self) -> usize {
        self.all.len()
    }

    /// Returns true if there are no elements.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.all.is_empty()
    }

    /// Returns the number at `index`.
    ///
    /// # Panics
    /// Panics if `index` is out of range.
    #[must_use]
    #[inline]
    pub fn at(self, index: usize) -> T {
        T::load(&self.all[index])
    }

    /// Returns the numbers in `range`.
    ///
    /// # Panics
    /// Panics if the range is out of bounds.
    #[must_use]
    #[inline]
    pub fn part(self, range: Range<usize>) -> Self {
        Self { all: &self.all[range] }
    }

    /// Iterates over all numbers in order.
    #[inline]
    pub fn iter(self) -> impl DoubleEndedIterator<Item = T> + ExactSizeIterator + use<'w, T> {
        self.all.iter().map(T::load)
    }
}
