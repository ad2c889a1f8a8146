//! A set of vertices as in Ligra: a list while small, a bit set when large.

use rayon::iter::Either;
use rayon::prelude::*;
use std::borrow::Cow;

/// A subset of a graph's vertices.
#[derive(Clone, Debug)]
pub struct VertexSubset {
    vertices: u32,
    count: usize,
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    /// Ascending, without duplicates.
    Sparse(Vec<u32>),
    Dense(Vec<u64>),
}

pub(crate) const WORD: usize = u64::BITS as usize;

impl VertexSubset {
    /// Creates the subset of all vertices.
    #[must_use]
    pub fn all(vertices: u32) -> Self {
        let mut bits = vec![u64::MAX; (vertices as usize).div_ceil(WORD)];
        if let Some(last) = bits.last_mut()
            && !(vertices as usize).is_multiple_of(WORD)
        {
            *last = (1 << (vertices as usize % WORD)) - 1;
        }
        Self { vertices, count: vertices as usize, form: Form::Dense(bits) }
    }

    /// Creates a subset from a list in any order, with or without duplicates.
    ///
    /// # Panics
    /// Panics when an element is not a vertex.
    #[must_use]
    pub fn of(vertices: u32, mut list: Vec<u32>) -> Self {
        list.par_sort_unstable();
        list.dedup();
        assert!(list.last().is_none_or(|&last| last < vertices), "vertices of this graph");
        Self { vertices, count: list.len(), form: Form::Sparse(list) }
    }

    /// Returns the vertices for which `wanted` returns true, in the same representation.
    pub(crate) fn keep(&self, wanted: impl Fn(u32) -> bool + Sync) -> Self {
        match &self.form {
            Form::Sparse(list) => {
                let list: Vec<u32> = list.par_iter().copied().filter(|&vertex| wanted(vertex)).collect();
                Self { vertices: self.vertices, count: list.len(), form: Form::Sparse(list) }
            }
            Form::Dense(bits) => {
                let kept = |(first, &word): (u32, &u64)| {
                    let kept = set_in(first, word).filter(|&vertex| wanted(vertex));
                    kept.fold(0, |word, vertex| word | 1 << (vertex as usize % WORD))
                };
                let words = (0..self.vertices).into_par_iter().step_by(WORD).zip(bits);
                Self::of_bits(self.vertices, words.map(kept).collect())
            }
        }
    }

    /// Returns a parallel iterator over the vertices.
    pub(crate) fn par_iter(&self) -> impl ParallelIterator<Item = u32> {
        match &self.form {
            Form::Sparse(list) => Either::Left(list.par_iter().copied()),
            Form::Dense(bits) => {
                let words = (0..self.vertices).into_par_iter().step_by(WORD).zip(bits);
                Either::Right(words.flat_map_iter(|(first, &word)| set_in(first, word)))
            }
        }
    }

    /// Creates a subset from a bit set.
    ///
    /// # Panics
    /// Panics when the number of words is wrong, or a bit beyond the vertices is set.
    #[must_use]
    pub fn of_bits(vertices: u32, bits: Vec<u64>) -> Self {
        assert_eq!(bits.len(), (vertices as usize).div_ceil(WORD), "a bit for each vertex");
        let used = vertices as usize % WORD;
        assert!(bits.last().is_none_or(|last| used == 0 || last >> used == 0), "vertices of this graph");
        let count = bits.par_iter().map(|word| word.count_ones() as usize).sum();
        Self { vertices, count, form: Form::Dense(bits) }
    }

    /// Returns the number of vertices of the graph.
    #[must_use]
    pub const fn vertices(&self) -> u32 {
        self.vertices
    }

    /// Returns the number of vertices in the subset.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Returns true when the subset is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns true when the subset is stored as bits.
    #[must_use]
    pub const fn is_dense(&self) -> bool {
        matches!(self.form, Form::Dense(_))
    }

    /// Returns true when `vertex` is in the subset.
    #[must_use]
    pub fn contains(&self, vertex: u32) -> bool {
        match &self.form {
            Form::Sparse(list) => list.binary_search(&vertex).is_ok(),
            Form::Dense(bits) => vertex < self.vertices && is_set(bits, vertex),
        }
    }

    /// Returns the subset as an ascending list.
    #[must_use]
    pub fn list(&self) -> Cow<'_, [u32]> {
        match &self.form {
            Form::Sparse(list) => list.into(),
            Form::Dense(bits) => {
                let words = (0_u32..).step_by(WORD).zip(bits);
                words.flat_map(|(first, &word)| set_in(first, word)).collect::<Vec<_>>().into()
            }
        }
    }

    /// Returns the subset as bits.
    #[must_use]
    pub fn bits(&self) -> Cow<'_, [u64]> {
        match &self.form {
            Form::Dense(bits) => bits.into(),
            Form::Sparse(list) => {
                let mut bits = vec![0; (self.vertices as usize).div_ceil(WORD)];
                for &vertex in list {
                    bits[vertex as usize / WORD] |= 1 << (vertex as usize % WORD);
                }
                bits.into()
            }
        }
    }

    /// Returns the union of two subsets.
    ///
    /// # Panics
    /// Panics when the subsets belong to different graphs.
    #[must_use]
    pub fn union(self, other: &Self) -> Self {
        assert_eq!(self.vertices, other.vertices, "subsets of one graph");
        if self.is_dense() || other.is_dense() {
            let mut bits = self.bits().into_owned();
            bits.iter_mut().zip(other.bits().iter()).for_each(|(bits, other)| *bits |= other);
            return Self::of_bits(self.vertices, bits);
        }
        let mut list = self.list().into_owned();
        list.extend_from_slice(&other.list());
        Self::of(self.vertices, list)
    }
}

pub(crate) fn is_set(bits: &[u64], vertex: u32) -> bool {
    bits[vertex as usize / WORD] >> (vertex as usize % WORD) & 1 == 1
}

/// Returns the vertices of the set bits of a word whose first vertex is `first`, ascending.
fn set_in(first: u32, word: u64) -> impl Iterator<Item = u32> {
    let rest = std::iter::successors(Some(word), |rest| Some(rest & (rest.wrapping_sub(1))));
    rest.take_while(|&rest| rest != 0).map(move |rest| first + rest.trailing_zeros())
}
