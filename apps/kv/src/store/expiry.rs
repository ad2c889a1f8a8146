//! The times at which keys expire, and the removal of keys that have expired.
//!
//! Key type: [`Expiry`]. A key that expires has a second entry of 24 bytes, in a table like the index; the table shrinks when entries go. Keys
//! that no command touches are found by a sweep through the table, in slices of bounded length.

use super::index::{Entry, Index, Name};
use super::{SPACES, Store};

/// Entries that one slice of the sweep looks at.
const SLICE_LOOKS: usize = 4096;
/// Keys that one slice removes.
const SLICE_REMOVALS: usize = 512;
/// Keys that one slice removes while a snapshot is under way, which reads each of them from far memory first.
const SLICE_REMOVALS_IN_SNAPSHOT: usize = 32;
/// A slice follows at once when at least one of so many entries had expired.
const DENSE: usize = 8;

/// Expiry times of the keys of one space, in milliseconds since 1970.
#[derive(Default, Debug)]
pub(crate) struct Expiry(Index);

impl Expiry {
    /// Returns how many keys expire.
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the bytes that the table takes.
    pub(super) const fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Returns when a key expires, if it does.
    pub(super) fn get(&self, name: Name) -> Option<i64> {
        self.0.get(name).map(time_of)
    }

    /// Sets when a key expires, and returns whether it did before.
    pub(super) fn insert(&mut self, name: Name, time: i64) -> bool {
        self.0.put(Entry::new(name, time.cast_unsigned(), 0)).is_some()
    }

    /// Removes a key's time, and returns whether there was one.
    pub(super) fn remove(&mut self, name: Name) -> bool {
        self.0.remove(name).is_some()
    }

    /// Returns a key that expires, and when, near a random hash.
    pub(super) fn near(&self, hash: u64) -> Option<(Name, i64)> {
        self.0.near(hash).map(|entry| (entry.name(), time_of(entry)))
    }

    /// Returns the table, to be freed in slices.
    pub(super) fn into_table(self) -> Index {
        self.0
    }
}

fn time_of(entry: &Entry) -> i64 {
    entry.place.cast_signed()
}

/// The position of the sweep for expired keys.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Sweep {
    db: u8,
    /// The hash that the next slice begins at.
    cursor: u64,
}

impl Store {
    /// Removes some of the keys that have expired, and returns whether many of those it looked at had: then the next slice is worth its time
    /// at once.
    pub(crate) fn expire_slice(&mut self) -> bool {
        let removals_max = if self.picture().is_some() { SLICE_REMOVALS_IN_SNAPSHOT } else { SLICE_REMOVALS };
        let Sweep { mut db, mut cursor } = self.sweep;
        let (mut looks, mut expired) = (0, Vec::new());
        for _ in 0..SPACES {
            let mut next = None;
            for entry in self.space(db).ends.0.from(cursor) {
                if looks >= SLICE_LOOKS || expired.len() >= removals_max {
                    next = Some(entry.name().hash);
                    break;
                }
                looks += 1;
                if time_of(entry) <= self.now {
                    expired.push((db, entry.name()));
                }
            }
            match next {
                Some(hash) => {
                    cursor = hash;
                    break;
                }
                None => (db, cursor) = ((db + 1) % SPACES_LEN, 0),
            }
        }
        self.sweep = Sweep { db, cursor };
        for &(db, name) in &expired {
            self.before_change(db, name, None);
            self.take_out(db, name);
            self.touch(db, name);
        }
        self.stats.expired += expired.len() as u64;
        !expired.is_empty() && expired.len() * DENSE >= looks
    }
}

/// The count of spaces, as databases are numbered.
#[expect(clippy::cast_possible_truncation, reason = "there are few databases")]
const SPACES_LEN: u8 = SPACES as u8;
