//! What each of many connections keeps, and who keeps most: where all together keep too much, that one gives it back.
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

    /// Those that keep any, the one that keeps most last.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = (usize, K)> {
        self.by_bytes.iter().copied()
    }

    /// The one that keeps most, and how much.
    pub(super) fn most(&self) -> Option<(usize, K)> {
        self.by_bytes.last().copied()
    }

    /// One kept so many bytes before, and so many now.
    pub(super) fn weigh(&mut self, who: K, before: usize, now: usize) {
        if before != now {
            self.by_bytes.remove(&(before, who));
            if now > 0 {
                self.by_bytes.insert((now, who));
            }
            self.sum = self.sum - before + now;
        }
    }
}
