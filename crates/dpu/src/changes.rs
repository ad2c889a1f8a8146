//! Change numbers of a host, which prevent the use of stale prefetched items (PROTOCOL 19.1 to 19.5).
//!
//! Key type: [`Changes`], the host's, usable from many threads. Each flush and each removal of a record takes the
//! next number. Before the host gives up its own copy and sends the change, the *floor* of the record's key rises to
//! that number. A record in far memory carries the number of the change that wrote it, its *version*. A prefetched
//! item carries a *stamp*: the larger of the version and the last change before which all had been acknowledged at
//! the time of the request. The host accepts an item only if its stamp is at least the floor of its key.
//!
//! ```text
//!   host      change 7 of k: floor(k) = 7, send                look for k: stamp 5 < 7, not taken
//!   DPU    fetch k ---.            \--- pass 7 on ---.            ^
//!   node              '--> k, version 5 ------------- \ --------> '
//!                                                      '--> k has version 7 from here on
//! ```
//!
//! **Bounded, and never wrong.** Keys share floors: a floor is the latest change of any of its keys. An item that was
//! read before that change may be refused although only another key changed, which costs time only. Such a refusal is
//! temporary: an item requested after the acknowledgement of the change has a stamp at least as large.
//!
//! The module does not order the host's threads among themselves. A thread that takes an item and publishes it locks
//! the key meanwhile, as with any read of far memory.

use crate::view::KeyId;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::num::NonZeroU32;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU64, Ordering};

/// The number of a change; 0 is before all of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash, Debug)]
pub struct Change(pub u64);

/// Length in bytes of the version in front of an item.
pub const VERSION_LEN: usize = 8;

impl Change {
    /// Returns a record's value: the version, little-endian, followed by the item.
    #[must_use]
    pub fn onto(self, item: &[u8]) -> Vec<u8> {
        [&self.0.to_le_bytes(), item].concat()
    }

    /// Returns the version and the item of a record's value; `None` if the value is too short.
    #[must_use]
    pub fn of(value: &[u8]) -> Option<(Self, &[u8])> {
        let (version, item) = value.split_first_chunk::<VERSION_LEN>()?;
        Some((Self(u64::from_le_bytes(*version)), item))
    }
}

/// A set of changes, stored as ranges. Acknowledgements in any order take room only for each missing change
/// between them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ChangeSet {
    /// The last change of each range, by its first.
    ranges: BTreeMap<u64, u64>,
}

impl ChangeSet {
    /// Adds a change, if it is not in the set.
    pub fn add(&mut self, change: Change) {
        self.add_all(change..=change);
    }

    /// Adds all changes of a range.
    pub fn add_all(&mut self, changes: RangeInclusive<Change>) {
        let (mut first, mut last) = (changes.start().0, changes.end().0);
        if first > last {
            return;
        }
        // Ranges that overlap or touch this one are merged with it.
        while let Some((&from, &to)) = self.ranges.range(..=last.saturating_add(1)).next_back()
            && to.saturating_add(1) >= first
        {
            self.ranges.remove(&from);
            (first, last) = (first.min(from), last.max(to));
        }
        self.ranges.insert(first, last);
    }

    /// Removes the lowest range.
    pub fn pop_first(&mut self) -> Option<RangeInclusive<Change>> {
        self.ranges.pop_first().map(|(first, last)| Change(first)..=Change(last))
    }

    /// Returns the lowest change.
    #[must_use]
    pub fn first(&self) -> Option<Change> {
        self.ranges.keys().next().map(|&first| Change(first))
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of ranges.
    #[must_use]
    pub fn ranges(&self) -> usize {
        self.ranges.len()
    }
}

/// The host's changes.
#[derive(Debug)]
pub struct Changes {
    last: AtomicU64,
    /// The floors; their number is a power of two.
    floors: Box<[AtomicU64]>,
}

/// Number of floors for a host with one application: concurrent changes hardly ever share one.
pub const FLOORS: NonZeroU32 = NonZeroU32::new(1 << 16).unwrap();
/// Maximum number of floors: 2 GiB.
pub const FLOORS_MAX: u32 = 1 << 28;

impl Changes {
    /// Returns the changes of a host, with `floors` floors of eight bytes (rounded up to a power of two, and
    /// at most [`FLOORS_MAX`]). The first change has the number behind `after`: a host that restarts passes
    /// at least the last number that any of its records may carry.
    #[must_use]
    pub fn new(floors: NonZeroU32, after: Change) -> Self {
        let count = floors.get().min(FLOORS_MAX).next_power_of_two();
        Self { last: AtomicU64::new(after.0), floors: (0..count).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Assigns the number of a change or removal of a record, which the record will carry. The host calls
    /// this before it gives up its copy and before it sends the change.
    ///
    /// # Panics
    ///
    /// After 2^64 changes.
    pub fn change(&self, key: KeyId) -> Change {
        let number = self.last.fetch_add(1, Ordering::Relaxed).checked_add(1).expect("2^64 changes");
        self.floors[self.slot(key)].fetch_max(number, Ordering::Release);
        Change(number)
    }

    /// Returns the smallest valid stamp for an item of this key.
    #[must_use]
    pub fn floor(&self, key: KeyId) -> Change {
        Change(self.floors[self.slot(key)].load(Ordering::Acquire))
    }

    /// Returns the latest change.
    #[must_use]
    pub fn last(&self) -> Change {
        Change(self.last.load(Ordering::Relaxed))
    }

    fn slot(&self, key: KeyId) -> usize {
        let mixed = crate::view::mixed(key.0);
        usize::try_from(mixed & (self.floors.len() as u64 - 1)).expect("a place in memory")
    }
}

#[cfg(test)]
mod tests {
    use super::{Change, ChangeSet, Changes, FLOORS};
    use crate::view::KeyId;
    use core::num::NonZeroU32;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    /// An item that was read before a change of its key is refused, and one read after it is accepted. A key
    /// that never changed accepts any item.
    #[test]
    fn an_item_from_before_a_change_is_older_than_the_floor() {
        let changes = Changes::new(FLOORS, Change(0));
        let (one, other) = (KeyId(1), KeyId(2));
        let read_before = changes.last();
        let change = changes.change(one);
        assert!(read_before < changes.floor(one));
        assert!(change >= changes.floor(one));
        assert_eq!(changes.floor(other), Change(0));
    }

    /// All keys share one floor: an item refused for another key's change is accepted once it is read after
    /// that change.
    #[test]
    fn a_shared_floor_refuses_for_a_while_only() {
        let changes = Changes::new(NonZeroU32::MIN, Change(100));
        let version = changes.change(KeyId(1));
        let later = changes.change(KeyId(2));
        assert_eq!((version, later), (Change(101), Change(102)));
        assert!(version < changes.floor(KeyId(1)), "it is refused, though it is the latest");
        let read_after_the_change_was_acknowledged = version.max(later);
        assert!(read_after_the_change_was_acknowledged >= changes.floor(KeyId(1)));
    }

    /// Changes are added in any order, one by one and by ranges. The set equals a plain set, with the minimum
    /// number of ranges.
    #[test]
    fn a_set_of_changes_is_its_ranges() {
        let mut rng = farmem_machine::Rng::from_number(7);
        let (mut set, mut plain) = (ChangeSet::default(), BTreeSet::new());
        for _ in 0..400 {
            let first = u64::from(rng.below(300));
            let last = first + u64::from(rng.below(4));
            set.add_all(Change(first)..=Change(last));
            plain.extend(first..=last);
            let gaps = plain.iter().filter(|&&one| !plain.contains(&(one + 1))).count();
            assert_eq!((set.ranges(), set.first().map(|first| first.0)), (gaps, plain.first().copied()));
        }
        set.add(Change(u64::MAX));
        set.add(Change(u64::MAX - 1));
        plain.extend([u64::MAX - 1, u64::MAX]);
        let ranges = core::iter::from_fn(|| set.pop_first());
        let all: Vec<u64> = ranges.flat_map(|range| range.start().0..=range.end().0).collect();
        assert!(all.into_iter().eq(plain) && set.is_empty());
    }

    /// A value is the version and the item; a value that is too short is invalid.
    #[test]
    fn a_version_is_in_front_of_the_item() {
        let value = Change(7).onto(b"item");
        assert_eq!(Change::of(&value), Some((Change(7), &b"item"[..])));
        assert_eq!(Change::of(&value[..7]), None);
    }

    /// Concurrent changes of one key leave the floor at the latest number.
    #[test]
    fn threads_leave_the_highest_floor() {
        let changes = Changes::new(FLOORS, Change(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        changes.change(KeyId(7));
                    }
                });
            }
        });
        assert_eq!((changes.floor(KeyId(7)), changes.last()), (Change(4000), Change(4000)));
    }
}
