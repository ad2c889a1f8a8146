//! Up to which change all have been acknowledged.

use crate::changes::Change;
use alloc::collections::BTreeSet;

/// Changes beyond the first that is missing, which are remembered at most. One beyond that is never known to be acknowledged, which costs speed: items look older than they are.
pub(super) const BEYOND_MAX: usize = 1 << 16;

/// Acknowledged changes.
#[derive(Debug)]
pub(super) struct Acked {
    through: u64,
    beyond: BTreeSet<u64>,
}

impl Acked {
    pub(super) const fn new(through: Change) -> Self {
        Self { through: through.0, beyond: BTreeSet::new() }
    }

    pub(super) fn add(&mut self, Change(change): Change) {
        // The one that is missing is taken however many wait for it.
        if change == self.through + 1 || change > self.through && self.beyond.len() < BEYOND_MAX {
            self.beyond.insert(change);
        }
        while self.beyond.first() == Some(&(self.through + 1)) {
            self.beyond.pop_first();
            self.through += 1;
        }
    }

    pub(super) const fn through(&self) -> Change {
        Change(self.through)
    }
}

#[cfg(test)]
mod tests {
    use super::{Acked, BEYOND_MAX};
    use crate::changes::Change;

    /// Answers come in any order and twice; what counts ends at the first that is missing.
    #[test]
    fn what_is_acknowledged_ends_at_the_first_gap() {
        let mut acked = Acked::new(Change(10));
        let mut through = |change| {
            acked.add(Change(change));
            acked.through().0
        };
        assert_eq!([12, 14, 12, 3, 11, 13, 16].map(&mut through), [10, 10, 10, 10, 12, 14, 14]);
    }

    /// A change that is never acknowledged does not fill memory.
    #[test]
    fn a_change_that_is_missing_costs_a_bounded_memory() {
        let mut acked = Acked::new(Change(0));
        (2..2 * BEYOND_MAX as u64).for_each(|change| acked.add(Change(change)));
        assert_eq!((acked.beyond.len(), acked.through()), (BEYOND_MAX, Change(0)));
        // It comes after all: those that were remembered count, and one that was not is the next that is missing.
        acked.add(Change(1));
        let through = BEYOND_MAX as u64 + 1;
        assert_eq!((acked.beyond.len(), acked.through()), (0, Change(through)));
        acked.add(Change(through + 1));
        assert_eq!(acked.through(), Change(through + 1));
    }
}
