//! The times at which keys expire.
//!
//! Key type: [`Expiry`]. A key that expires has a second entry of 24 bytes, in a table like the index; the table
//! shrinks when entries go.

use super::index::{Entry, Index, Name};

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

    /// Returns the entries from a hash on.
    pub(super) fn from(&self, cursor: u64) -> impl Iterator<Item = &Entry> {
        self.0.from(cursor)
    }

    /// Returns the table, to be freed in slices.
    pub(super) fn into_table(self) -> Index {
        self.0
    }
}

pub(super) fn time_of(entry: &Entry) -> i64 {
    entry.place.cast_signed()
}
