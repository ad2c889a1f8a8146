//! Numbers in far memory that are read as a slice is.
//!
//! Key type: [`Numbers`]. A plain `&[u32]` would promise that nothing changes the bytes while it lives, and a window cannot keep that
//! promise: a page that went comes again from far memory, and another host may have written it. So each element is loaded as an atomic,
//! relaxed: on every machine with aligned loads the same instruction as from a slice.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A number that [`Numbers`] can hold: `u32` or `u64`.
pub trait Number: Copy + Debug + Send + Sync + sealed::Sealed {
    /// Its atomic form, of the same size and alignment.
    #[doc(hidden)]
    type Atomic: Debug + Sync;

    /// Loads one, relaxed.
    #[doc(hidden)]
    fn load(from: &Self::Atomic) -> Self;
}

mod sealed {
    #[expect(unnameable_types, reason = "so that no other crate says which types these are")]
    /// Types that have an atomic of their own size, each of whose patterns of bits is a value.
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

/// Numbers of a window ([`Memory::numbers`](super::Memory::numbers)): what `&[T]` is to local memory, read only. A touch of a page that is
/// far waits for it; of one that is lost, or that the rack no longer answers for, it is a SIGBUS.
#[derive(Debug)]
pub struct Numbers<'w, T: Number> {
    pub(crate) all: &'w [T::Atomic],
}

// Derived, it would ask the same of `T::Atomic`.
impl<T: Number> Clone for Numbers<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Number> Copy for Numbers<'_, T> {}

impl<'w, T: Number> Numbers<'w, T> {
    /// Numbers that lie elsewhere, such as in a mapped file.
    #[must_use]
    pub const fn of(all: &'w [T::Atomic]) -> Self {
        Self { all }
    }

    /// How many there are.
    #[must_use]
    pub const fn len(self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.all.is_empty()
    }

    /// The number at `index`.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    #[inline]
    pub fn at(self, index: usize) -> T {
        T::load(&self.all[index])
    }

    /// The numbers in `range`.
    ///
    /// # Panics
    /// When the range leaves them.
    #[must_use]
    #[inline]
    pub fn part(self, range: Range<usize>) -> Self {
        Self { all: &self.all[range] }
    }

    /// All of them, in order.
    #[inline]
    pub fn iter(self) -> impl DoubleEndedIterator<Item = T> + ExactSizeIterator + use<'w, T> {
        self.all.iter().map(T::load)
    }
}
