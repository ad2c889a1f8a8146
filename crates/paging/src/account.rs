//! The account of prefetches, whichever policy proposes them: pages, records, traversals.
//!
//! Key types: [`Account`]; [`Waste`] and [`Miss`], its causes. The page cache counts pages, the DPU counts
//! entries (SODA) and keys (PD3). The account only counts; it decides nothing.

/// Counts of prefetched items and their outcomes. An item that is neither used, late nor wasted is still
/// cached, or its use was not seen.
///
/// The page cache does not see accesses to a mapped page. A page counts as used when an event shows it: the
/// page is inactive and touched, is written, or the stream it was fetched for continues behind it. Until then
/// it counts as open.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Account {
    /// Items prefetched, or filled with zeros, before a thread waited.
    pub wanted: u64,
    /// Items that were used.
    pub used: u64,
    /// Items that a thread came to wait for while they were in flight.
    pub late: u64,
    /// Items that were dropped without a visible use.
    pub wasted: u64,
    wasted_by: [u64; Waste::ALL.len()],
    missed_by: [u64; Miss::ALL.len()],
}

/// The reason for which a prefetched item was not used, if more is known than that it was dropped
/// ([`Waste::Unread`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waste {
    /// The item arrived and was dropped unused.
    Unread,
    /// Far memory has no such item.
    Absent,
    /// The item changed after the request.
    Overtaken,
    /// The cache had no room for the item.
    Full,
    /// Far memory did not answer, or the bytes are lost.
    Failed,
    /// The requester restarted.
    Restarted,
}

impl Waste {
    /// All causes.
    pub const ALL: [Self; 6] =
        [Self::Unread, Self::Absent, Self::Overtaken, Self::Full, Self::Failed, Self::Restarted];

    /// Returns the name used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unread => "unread",
            Self::Absent => "absent",
            Self::Overtaken => "overtaken",
            Self::Full => "full",
            Self::Failed => "failed",
            Self::Restarted => "restarted",
        }
    }
}

/// The reason for which a thread waited for an item that could have been prefetched: a false negative (PD3
/// 5.2, table 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Miss {
    /// No request for the item was seen, or the record of it is gone.
    Unseen,
    /// The item was reported as cached: it was dropped, and the notice was not sent or had not arrived.
    Dropped,
    /// The item was in flight.
    Late,
    /// The item changed in flight, or was dropped before use.
    Overtaken,
    /// The item arrived and found no room.
    Full,
    /// The limit of prefetches in flight was reached.
    Bounded,
    /// Far memory did not answer.
    Failed,
    /// Far memory had no such item at the time of the request.
    Absent,
}

impl Miss {
    /// All causes.
    pub const ALL: [Self; 8] = [
        Self::Unseen,
        Self::Dropped,
        Self::Late,
        Self::Overtaken,
        Self::Full,
        Self::Bounded,
        Self::Failed,
        Self::Absent,
    ];

    /// Returns the name used in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unseen => "unseen",
            Self::Dropped => "dropped",
            Self::Late => "late",
            Self::Overtaken => "overtaken",
            Self::Full => "full",
            Self::Bounded => "bounded",
            Self::Failed => "failed",
            Self::Absent => "absent",
        }
    }
}

impl Account {
    /// Returns the number of items without an outcome yet.
    #[must_use]
    pub const fn open(&self) -> u64 {
        self.wanted.saturating_sub(self.used + self.late + self.wasted)
    }

    /// Counts `count` wasted items with this cause.
    pub const fn waste(&mut self, cause: Waste, count: u64) {
        self.wasted += count;
        self.wasted_by[cause as usize] += count;
    }

    /// Returns the number of items wasted for this cause. Items counted without a cause are unread.
    #[must_use]
    pub fn wasted_by(&self, cause: Waste) -> u64 {
        let known: u64 = self.wasted_by.iter().sum();
        let without = if cause == Waste::Unread { self.wasted.saturating_sub(known) } else { 0 };
        self.wasted_by[cause as usize] + without
    }

    /// Counts one miss with this cause.
    pub const fn miss(&mut self, cause: Miss) {
        self.missed_by[cause as usize] += 1;
    }

    /// Counts `count` misses with this cause.
    pub const fn misses(&mut self, cause: Miss, count: u64) {
        self.missed_by[cause as usize] += count;
    }

    /// Returns the number of misses with this cause.
    #[must_use]
    pub const fn missed_by(&self, cause: Miss) -> u64 {
        self.missed_by[cause as usize]
    }

    /// Returns the number of all misses.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed_by.iter().sum()
    }

    /// Returns an account of items counted without causes.
    #[must_use]
    pub const fn of(wanted: u64, used: u64, late: u64, wasted: u64) -> Self {
        let (wasted_by, missed_by) = ([0; Waste::ALL.len()], [0; Miss::ALL.len()]);
        Self { wanted, used, late, wasted, wasted_by, missed_by }
    }
}

#[cfg(test)]
mod tests {
    use super::{Account, Miss, Waste};

    /// Items counted without a cause are unread; each cause adds to the sum; nothing is counted twice.
    #[test]
    fn causes_add_up() {
        let mut account = Account { wanted: 10, wasted: 2, ..Account::default() };
        account.waste(Waste::Unread, 1);
        account.waste(Waste::Full, 4);
        assert_eq!(account.wasted, 7);
        assert_eq!(Waste::ALL.map(|cause| account.wasted_by(cause)), [3, 0, 0, 4, 0, 0]);
        assert_eq!(account.open(), 3);
        account.miss(Miss::Late);
        account.miss(Miss::Late);
        account.miss(Miss::Absent);
        assert_eq!((account.missed_by(Miss::Late), account.missed()), (2, 3));
    }

    /// The discriminants of causes index the account.
    #[test]
    fn every_cause_has_its_place() {
        for (place, cause) in Waste::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, place, "{}", cause.name());
        }
        for (place, cause) in Miss::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, place, "{}", cause.name());
        }
    }
}
