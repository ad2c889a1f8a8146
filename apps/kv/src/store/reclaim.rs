//! The keys of a database that was flushed: gone for clients at once, and freed in slices of bounded length.
//!
//! Key type: [`Flushed`], a table that gets no new entries. [`Store::clear`] puts an empty table in its place; [`Store::reclaim`] releases
//! the records and collections that the old one leads to, and frees it shard by shard.

use super::index::{Drained, Entry};
use super::place::Place;
use super::{Space, Store};

/// Entries that one slice releases.
pub(super) const SLICE_ENTRIES: usize = 1024;

/// The tables of a database that was flushed.
#[derive(Debug)]
pub(super) struct Flushed {
    /// The number of the space that the keys were in: their records have it.
    space: u8,
    keys: Drained,
    expiry: Drained,
}

impl Flushed {
    fn bytes(&self) -> usize {
        self.keys.bytes() + self.expiry.bytes()
    }

    /// Returns the entry that leads to a record of the read cache.
    pub(super) fn entry_of(&mut self, space: u8, name: super::Name, place: Place) -> Option<&mut Entry> {
        let entry = if space == self.space { self.keys.get_mut(name) } else { None };
        entry.filter(|entry| entry.place == place.0)
    }
}

impl Store {
    /// Removes all keys of a database. What they have is freed by [`Store::reclaim`], in slices.
    pub(crate) fn clear(&mut self, db: u8) {
        let number = self.spaces_of[usize::from(db)];
        let Space { index, ends } = std::mem::take(&mut self.spaces[usize::from(number)]);
        // The picture would have to take each key before it goes.
        self.drop_picture();
        self.dirty += 1 + index.len() as u64;
        for (_, live) in &mut self.live {
            live.flush(number);
        }
        let (keys, expiry) = (Drained::new(index), Drained::new(ends.into_table()));
        self.flushed.push_back(Flushed { space: number, keys, expiry });
        // Local memory that is full of what was flushed takes the next write all the same.
        while self.memory.is_full && self.reclaim() {
            self.memory.is_full = self.has_no_room();
        }
    }

    /// Returns whether keys of a flushed database are still to be freed.
    pub(crate) fn is_reclaiming(&self) -> bool {
        !self.flushed.is_empty()
    }

    /// Returns the bytes of tables that are still to be freed.
    pub(super) fn flushed_bytes(&self) -> usize {
        self.flushed.iter().map(Flushed::bytes).sum()
    }

    /// Frees a slice of what was flushed, and returns whether there was any.
    pub(crate) fn reclaim(&mut self) -> bool {
        let Some(flushed) = self.flushed.front_mut() else { return false };
        let entries = flushed.keys.take(SLICE_ENTRIES);
        let is_freed = entries.is_empty() && flushed.expiry.take(SLICE_ENTRIES).is_empty();
        for entry in &entries {
            self.release(entry);
        }
        if is_freed {
            self.flushed.pop_front();
        }
        true
    }
}
