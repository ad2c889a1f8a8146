//! Storage of a graph's arrays: local memory, or a window on far memory.
//!
//! Key types: [`Array`], the common read interface; [`Store`], the storage of a [`Graph`](crate::Graph).

use farmem::window::{Number, Numbers};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::Range;

/// A read-only array of numbers.
pub trait Array: Copy + Debug + Send + Sync {
    /// The number type.
    type Item: Copy + Debug + Send + Sync;

    /// Returns the number of elements.
    fn len(self) -> usize;

    /// Returns true when the array is empty.
    fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the number at `index`.
    ///
    /// # Panics
    /// Panics when `index` is out of range.
    fn at(self, index: usize) -> Self::Item;

    /// Returns the sub-array in `range`.
    ///
    /// # Panics
    /// Panics when the range is out of bounds.
    #[must_use]
    fn part(self, range: Range<usize>) -> Self;

    /// Returns all numbers, in order.
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

/// The storage of a graph's arrays.
pub trait Store: Copy + Debug + Send + Sync {
    /// The start offsets of each vertex's edges.
    type Offsets: Array<Item = u64>;
    /// Targets of edges, and weights.
    type Targets: Array<Item = u32>;
}

/// Storage in local memory.
#[derive(Clone, Copy, Debug)]
pub struct Local<'a>(PhantomData<&'a ()>);

impl<'a> Store for Local<'a> {
    type Offsets = &'a [u64];
    type Targets = &'a [u32];
}

/// Storage in a window on far memory.
#[derive(Clone, Copy, Debug)]
pub struct Far<'w>(PhantomData<&'w ()>);

impl<'w> Store for Far<'w> {
    type Offsets = Numbers<'w, u64>;
    type Targets = Numbers<'w, u32>;
}
