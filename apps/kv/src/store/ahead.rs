//! Reading ahead: far values are read together before their commands run, for a pipeline, several
//! connections, or a command with many keys.
//!
//! Key functions: [`Store::want`] for each key that a command will read, then [`Store::fetch_wanted`]. Only a
//! later read of the record finds the bytes, so commands behave the same with and without reading ahead. The
//! bytes are dropped at the end of the turn that runs these commands ([`Store::forget_ahead`]).

use super::place::{At, LocationWord, RecordSpan};
use super::{CHUNK, Store};

/// Values that are read together at most.
const AHEAD_MAX: usize = 256;
/// Index entries that are touched together at most.
const ENTRIES_MAX: usize = 1024;
/// The part of local memory that the values take at most; they may take one chunk in any case.
const SHARE: usize = 64;

impl Store {
    /// Returns whether some values are far: otherwise there is nothing to read ahead.
    pub(crate) fn has_far(&self) -> bool {
        self.log.far_len() > 0
    }

    /// Returns whether reading a key's value would wait for far memory.
    pub(crate) fn would_wait(&self, db: u8, key: &[u8]) -> bool {
        self.has_far() && self.spot_of(db, key).is_some_and(|spot| self.log.would_wait(spot))
    }

    pub(super) fn spot_of(&self, db: u8, key: &[u8]) -> Option<RecordSpan> {
        let entry = self.space(db).index.get(self.namer.name(key))?;
        match LocationWord(entry.place).at() {
            At::Log(spot) => Some(spot),
            At::Cache(_) | At::Live(_) => None,
        }
    }

    /// Notes that a command will read a key's value. Returns false when the round is full.
    pub(crate) fn want(&mut self, db: u8, key: &[u8]) -> bool {
        self.spot_of(db, key).is_none_or(|spot| self.want_spot(spot))
    }

    /// Notes that a command will write a key, so that its entry is touched together with others.
    pub(crate) fn want_entry(&mut self, db: u8, key: &[u8]) {
        if self.wanted.names.len() < ENTRIES_MAX {
            let name = self.namer.name(key);
            self.wanted.names.push((self.spaces_of[usize::from(db)], name));
        }
    }

    /// Returns the bytes of the noted records.
    pub(crate) const fn wanted_bytes(&self) -> usize {
        self.wanted.bytes
    }

    /// Notes a record that a command will read. Returns false when the round is full.
    pub(super) fn want_spot(&mut self, spot: RecordSpan) -> bool {
        if self.log.would_wait(spot) {
            self.wanted.spots.push(spot);
            self.wanted.bytes += spot.len;
        }
        self.wanted.spots.len() < AHEAD_MAX && self.wanted.bytes < (self.memory.local / SHARE).max(CHUNK)
    }

    /// Reads all noted records.
    pub(crate) fn fetch_wanted(&mut self) {
        let mut names = std::mem::take(&mut self.wanted.names);
        self.look_up_together(names.drain(..));
        self.wanted.names = names;
        let mut spots = std::mem::take(&mut self.wanted.spots);
        self.wanted.bytes = 0;
        spots.sort_unstable();
        spots.dedup();
        // A single record is read when its command asks for it.
        if spots.len() > 1 {
            self.log.fetch_ahead(&spots);
        }
        spots.clear();
        self.wanted.spots = spots;
    }

    /// Returns whether a READ of the current round has not ended.
    pub(crate) fn waits_for_ahead(&self) -> bool {
        self.log.far_ref().under_way > 0
    }

    /// Reads the noted records, while the commands of the last turn are still to run.
    pub(crate) fn fetch_wanted_early(&mut self) {
        let before = self.log.counts.wanted;
        self.fetch_wanted();
        self.log.counts.early += self.log.counts.wanted - before;
    }

    /// Drops unused values that were read ahead. With `all` false, keeps those that were read since the last call.
    pub(crate) fn forget_ahead(&mut self, all: bool) {
        self.log.drop_ahead(all);
    }
}
