//! The acknowledgement watermark: the last change before which all are acknowledged.

use crate::changes::{Change, ChangeSet};
use core::ops::RangeInclusive;

/// Acknowledged changes. None is ever forgotten: a forgotten one would hold the watermark back for ever. The
/// memory grows with the missing changes, which the host has in flight.
#[derive(Debug)]
pub struct Acked {
    through: u64,
    beyond: ChangeSet,
}

impl Acked {
    /// Returns a state in which all changes up to `through` are acknowledged.
    #[must_use]
    pub fn new(through: Change) -> Self {
        Self { through: through.0, beyond: ChangeSet::default() }
    }

    /// Adds a range of acknowledged changes.
    pub fn add_all(&mut self, changes: RangeInclusive<Change>) {
        if changes.end().0 > self.through {
            self.beyond.add_all(changes);
        }
        while self.beyond.first().is_some_and(|Change(first)| first <= self.through.saturating_add(1))
            && let Some(range) = self.beyond.pop_first()
        {
            self.through = self.through.max(range.end().0);
        }
    }

    /// Returns the watermark.
    #[must_use]
    pub const fn through(&self) -> Change {
        Change(self.through)
    }
}

#[cfg(test)]
mod tests {
    use super::Acked;
    use crate::changes::Change;

    /// Acknowledgements come in any order and twice; the watermark stops at the first gap.
    #[test]
    fn what_is_acknowledged_ends_at_the_first_gap() {
        let mut acked = Acked::new(Change(10));
        let mut through = |change| {
            acked.add_all(Change(change)..=Change(change));
            acked.through().0
        };
        assert_eq!([12, 14, 12, 3, 11, 13, 16].map(&mut through), [10, 10, 10, 10, 12, 14, 14]);
    }

    /// A late acknowledgement holds back a hundred thousand others, which take room for one range; when it
    /// comes, all count. Regression: changes beyond some number were forgotten, so the watermark stopped and
    /// no item was taken any more.
    #[test]
    fn a_change_that_is_late_costs_none_of_the_others() {
        let mut acked = Acked::new(Change(0));
        (2..=100_000).for_each(|change| acked.add_all(Change(change)..=Change(change)));
        assert_eq!((acked.beyond.ranges(), acked.through()), (1, Change(0)));
        acked.add_all(Change(1)..=Change(1));
        assert_eq!((acked.beyond.ranges(), acked.through()), (0, Change(100_000)));
        acked.add_all(Change(u64::MAX)..=Change(u64::MAX));
        assert_eq!(acked.through(), Change(100_000));
    }
}
