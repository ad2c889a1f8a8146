//! The state of work that continues in steps between commands.

use super::index::{Drained, Entry, Name};
use super::place::{LocationWord, RecordSpan};

/// Far records that commands will read.
#[derive(Default, Debug)]
pub(super) struct FetchQueue {
    pub(super) spots: Vec<RecordSpan>,
    pub(super) bytes: usize,
    /// The spaces and names of keys whose values will be replaced.
    pub(super) names: Vec<(u8, Name)>,
}

/// The position of the sweep for expired keys.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Sweep {
    pub(super) db: u8,
    /// The hash that the next slice begins at.
    pub(super) cursor: u64,
}

/// A picture under way.
#[derive(Debug, Default)]
pub(crate) struct Picture {
    pub(super) db: u8,
    pub(super) cursor: u64,
    /// Keys that were taken and not written yet, as records of a snapshot.
    pub(super) out: Vec<u8>,
    /// Keys that were taken.
    pub(super) keys: u64,
}

/// The tables of a database that was flushed.
#[derive(Debug)]
pub(super) struct Flushed {
    /// The number of the space that the keys were in: their records have it.
    pub(super) space: u8,
    pub(super) keys: Drained,
    pub(super) expiry: Drained,
}

impl Flushed {
    pub(super) fn bytes(&self) -> usize {
        self.keys.bytes() + self.expiry.bytes()
    }

    /// Returns the entry that leads to a record of the read cache.
    pub(super) fn entry_of(&mut self, space: u8, name: Name, place: LocationWord) -> Option<&mut Entry> {
        let entry = if space == self.space { self.keys.get_mut(name) } else { None };
        entry.filter(|entry| entry.place == place.0)
    }
}
