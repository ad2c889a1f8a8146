//! The account of all that is fetched before a thread waits for it, whoever proposes it: pages, records, traversals.
//!
//! Key types: [`Account`]; [`Waste`] and [`Miss`], its causes. The page cache counts pages, the DPU entries (SODA) and keys (PD3).
//!
//! What it does not do: decide anything.

/// What was fetched ahead, and what became of it. What is neither used, late nor wasted is still here, or went unseen.
///
/// The page cache does not see how a mapped page is used: it counts as used when
/// something shows it (it is inactive and touched, is written, or the stream it was fetched for goes on behind it), and as nothing before.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Account {
    /// Fetched, or made of zeros, before a thread waited.
    pub wanted: u64,
    /// Of those, what was used.
    pub used: u64,
    /// Of those, what a thread came to wait for while it was on its way.
    pub late: u64,
    /// Of those, what went and nothing showed to be used.
    pub wasted: u64,
    wasted_by: [u64; Waste::ALL.len()],
    missed_by: [u64; Miss::ALL.len()],
}

/// Why something that was fetched ahead was not used, where more is known than that it went ([`Waste::Unread`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waste {
    /// It came, lay there, and went.
    Unread,
    /// Far memory has nothing there.
    Absent,
    /// It changed after it was asked for.
    Overtaken,
    /// There was no room for it.
    Full,
    /// Far memory did not answer, or the bytes are lost.
    Failed,
    /// Whoever wanted it is gone.
    Restarted,
}

impl Waste {
    /// All causes.
    pub const ALL: [Self; 6] =
        [Self::Unread, Self::Absent, Self::Overtaken, Self::Full, Self::Failed, Self::Restarted];

    /// The name that reports have.
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

/// Why a thread waited for something that might have been fetched ahead: a false negative (PD3 5.2, table 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Miss {
    /// No request for it was seen, or that is forgotten.
    Unseen,
    /// It was said to be here: it was dropped and that was not told, or had not come through.
    Dropped,
    /// It was on its way.
    Late,
    /// It came and changed meanwhile, or went before it was used.
    Overtaken,
    /// It came, and there was no room.
    Full,
    /// As many were on their way as may be.
    Bounded,
    /// Far memory did not answer.
    Failed,
    /// Far memory had nothing there when it was asked.
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

    /// The name that reports have.
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
    /// What became of nothing yet.
    #[must_use]
    pub const fn open(&self) -> u64 {
        self.wanted.saturating_sub(self.used + self.late + self.wasted)
    }

    /// So many were wasted, for this cause.
    pub const fn waste(&mut self, cause: Waste, count: u64) {
        self.wasted += count;
        self.wasted_by[cause as usize] += count;
    }

    /// How many were wasted for this cause. What was counted without one went unread.
    #[must_use]
    pub fn wasted_by(&self, cause: Waste) -> u64 {
        let known: u64 = self.wasted_by.iter().sum();
        let without = if cause == Waste::Unread { self.wasted.saturating_sub(known) } else { 0 };
        self.wasted_by[cause as usize] + without
    }

    /// A thread waited for something that might have been here, for this cause.
    pub const fn miss(&mut self, cause: Miss) {
        self.missed_by[cause as usize] += 1;
    }

    /// So many times.
    pub const fn misses(&mut self, cause: Miss, count: u64) {
        self.missed_by[cause as usize] += count;
    }

    /// How often a thread waited for this cause.
    #[must_use]
    pub const fn missed_by(&self, cause: Miss) -> u64 {
        self.missed_by[cause as usize]
    }

    /// How often a thread waited for any cause.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed_by.iter().sum()
    }

    /// An account of what was counted without causes.
    #[must_use]
    pub const fn of(wanted: u64, used: u64, late: u64, wasted: u64) -> Self {
        let (wasted_by, missed_by) = ([0; Waste::ALL.len()], [0; Miss::ALL.len()]);
        Self { wanted, used, late, wasted, wasted_by, missed_by }
    }
}

#[cfg(test)]
mod tests {
    use super::{Account, Miss, Waste};

    /// What is counted without a cause went unread; a cause counts into the sum; nothing is counted twice.
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

    /// The numbers of causes index the account.
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
