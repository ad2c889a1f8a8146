//! Where the arrays of a graph lie: in local memory, or in a window on far memory.
//!
//! Key types: [`Array`], what both are read by; [`Store`], which of them a [`Graph`](crate::Graph) is made of.

use farmem::window::{Number, Numbers};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::Range;

/// Numbers that are read by their place.
pub trait Array: Copy + Debug + Send + Sync {
    /// What they are.
    type Item: Copy + Debug + Send + Sync;

    /// How many there are.
    fn len(self) -> usize;

    /// Whether there is none.
    fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The number at `index`.
    ///
    /// # Panics
    /// When there is none.
    fn at(self, index: usize) -> Self::Item;

    /// Those in `range`.
    ///
    /// # Panics
    /// When the range leaves them.
    #[must_use]
    fn part(self, range: Range<usize>) -> Self;

    /// All of them, in order.
    fn iter(self) -> impl Iterator<Item = Self::Item>;
}

impl<T: Copy + Debug + Send + Sync> Array for &[T] {
    type Item = T;

    #[inline]
    fn len(self) -> usize {
        <[T]>::len(self)
    }

    #[inline]
    fn at(self, index: usize) -> T {
        self[index]
    }

    #[inline]
    fn part(self, range: Range<usize>) -> Self {
        &self[range]
    }

    #[inline]
    fn iter(self) -> impl Iterator<Item = T> {
        <[T]>::iter(self).copied()
    }
}

impl<T: Number> Array for Numbers<'_, T> {
    type Item = T;

    #[inline]
    fn len(self) -> usize {
        Numbers::len(self)
    }

    #[inline]
    fn at(self, index: usize) -> T {
        Numbers::at(self, index)
    }

    #[inline]
    fn part(self, range: Range<usize>) -> Self {
        Numbers::part(self, range)
    }

    #[inline]
    fn iter(self) -> impl Iterator<Item = T> {
        Numbers::iter(self)
    }
}

/// Where the arrays of a graph lie.
pub trait Store: Copy + Debug + Send + Sync {
    /// What says where each vertex's edges begin.
    type Offsets: Array<Item = u64>;
    /// Ends of edges, and weights.
    type Targets: Array<Item = u32>;
}

/// In local memory.
#[derive(Clone, Copy, Debug)]
pub struct Local<'a>(PhantomData<&'a ()>);

impl<'a> Store for Local<'a> {
    type Offsets = &'a [u64];
    type Targets = &'a [u32];
}

/// In a window on far memory.
#[derive(Clone, Copy, Debug)]
pub struct Far<'w>(PhantomData<&'w ()>);

impl<'w> Store for Far<'w> {
    type Offsets = Numbers<'w, u64>;
    type Targets = Numbers<'w, u32>;
}
