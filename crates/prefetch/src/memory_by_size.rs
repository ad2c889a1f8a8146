//! The memory of many connections, in order of size: if the sum is too large, the largest connection gives its memory
//! back.
//!
//! Key type: [`MemoryBySize`].

use std::collections::BTreeSet;

/// The memory of each connection that keeps any, in bytes.
#[derive(Debug)]
pub(super) struct MemoryBySize<K> {
    by_bytes: BTreeSet<(usize, K)>,
    sum: usize,
}

impl<K> Default for MemoryBySize<K> {
    fn default() -> Self {
        Self { by_bytes: BTreeSet::new(), sum: 0 }
    }
}

impl<K: Ord + Copy> MemoryBySize<K> {
    /// Returns the sum in bytes.
    pub(super) const fn sum(&self) -> usize {
        self.sum
    }

    /// Returns the connections that keep memory, the largest last.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = (usize, K)> {
        self.by_bytes.iter().copied()
    }

    /// Returns the largest connection and its bytes.
    pub(super) fn most(&self) -> Option<(usize, K)> {
        self.by_bytes.last().copied()
    }

    /// Changes the bytes of a connection from `before` to `now`.
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
