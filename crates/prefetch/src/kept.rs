//! Memory of each of many connections, in order of size: where all together keep too much, the largest gives its memory back.
//!
//! Key type: [`Kept`].

use std::collections::BTreeSet;

/// Bytes that each keeps, of those that keep any.
#[derive(Debug)]
pub(super) struct Kept<K> {
    by_bytes: BTreeSet<(usize, K)>,
    sum: usize,
}

impl<K> Default for Kept<K> {
    fn default() -> Self {
        Self { by_bytes: BTreeSet::new(), sum: 0 }
    }
}

impl<K: Ord + Copy> Kept<K> {
    /// Bytes of all.
    pub(super) const fn sum(&self) -> usize {
        self.sum
    }

    /// Connections that keep any memory, the largest last.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = (usize, K)> {
        self.by_bytes.iter().copied()
    }

    /// The one that keeps most, and how much.
    pub(super) fn most(&self) -> Option<(usize, K)> {
        self.by_bytes.last().copied()
    }

    /// One kept so many bytes before, and so many now.
    pub(super) fn weigh(&mut self, key: K, before: usize, now: usize) {
        if before != now {
            self.by_bytes.remove(&(before, key));
            if now > 0 {
                self.by_bytes.insert((now, key));
            }
            self.sum = self.sum - before + now;
        }
    }
}
