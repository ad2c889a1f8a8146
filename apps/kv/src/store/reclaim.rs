//! Removal of keys in slices of bounded length: expired keys that no command touches, and keys of a flushed database.
//!
//! A sweep through the tables of expiry times finds the expired keys. Flushed keys are invisible to clients at once:
//! [`Store::clear`] installs an empty table, and [`Store::reclaim`] frees the old one shard by shard, with all
//! values.

use super::expiry::time_of;
use super::index::Drained;
use super::steps::{Flushed, Sweep};
use super::{SPACES, Space, Store};

/// Entries that one slice of the sweep looks at.
const SLICE_LOOKS: usize = 4096;
/// Keys that one slice removes.
const SLICE_REMOVALS: usize = 512;
/// Keys that one slice removes while a snapshot is under way, which reads each of them from far memory first.
const SLICE_REMOVALS_IN_SNAPSHOT: usize = 32;
/// A slice follows at once if at least one of this many entries had expired.
const DENSE: usize = 8;

/// Entries that one slice releases.
pub(super) const SLICE_ENTRIES: usize = 1024;

impl Store {
    /// Removes all keys of a database. [`Store::reclaim`] frees their memory in slices.
    pub(crate) fn clear(&mut self, db: u8) {
        let number = self.spaces_of[usize::from(db)];
        let Space { index, ends } = std::mem::take(&mut self.spaces[usize::from(number)]);
        // The picture would have to take each key before its removal.
        self.drop_picture();
        self.dirty += 1 + index.len() as u64;
        for (_, live) in &mut self.live {
            live.flush(number);
        }
        let (keys, expiry) = (Drained::new(index), Drained::new(ends.into_table()));
        self.flushed.push_back(Flushed { space: number, keys, expiry });
        // If local memory is full of flushed data, the next write is accepted nevertheless.
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

    /// Frees a slice of flushed keys, and returns whether there was one.
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

    /// Removes some of the expired keys. Returns whether many of the examined keys had expired: then the next slice
    /// is worth its time at once.
    pub(crate) fn expire_slice(&mut self) -> bool {
        let removals_max = if self.picture().is_some() { SLICE_REMOVALS_IN_SNAPSHOT } else { SLICE_REMOVALS };
        let Sweep { mut db, mut cursor } = self.sweep;
        let (mut looks, mut expired) = (0, Vec::new());
        for _ in 0..SPACES {
            let mut next = None;
            for entry in self.space(db).ends.from(cursor) {
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
