//! Far values that are read before their commands are carried out, many at once: of a pipeline, of several connections, of one command with many keys.
//!
//! Key calls: [`Store::want`] for each key that a command will ask for, then [`Store::fetch_wanted`], which waits once for all. What was read is found by whoever reads the
//! record, and by nobody else: commands are the same with and without it. It is forgotten at the end of the turn
//! that carries these commands out ([`Store::forget_ahead`]).

use super::place::{At, Place, Spot};
use super::{CHUNK, Name, Store};

/// Values that are read at once at most.
const AHEAD_MAX: usize = 256;
/// Entries that are touched together at most.
const ENTRIES_MAX: usize = 1024;
/// The part of local memory that they take at most, and a chunk at least.
const SHARE: usize = 64;

/// Far records that commands will ask for.
#[derive(Default, Debug)]
pub(super) struct Wanted {
    spots: Vec<Spot>,
    bytes: usize,
    /// Keys whose values will be replaced: their spaces and names.
    names: Vec<(u8, Name)>,
}

impl Store {
    /// True when some values are far: only then is it worth to look which ones are wanted.
    pub(crate) fn has_far(&self) -> bool {
        self.log.far_len() > 0
    }

    /// True when the value of a key has to be waited for.
    pub(crate) fn would_wait(&self, db: u8, key: &[u8]) -> bool {
        self.has_far() && self.spot_of(db, key).is_some_and(|spot| self.log.would_wait(spot))
    }

    pub(super) fn spot_of(&self, db: u8, key: &[u8]) -> Option<Spot> {
        let entry = self.space(db).index.get(self.namer.name(key))?;
        match Place(entry.place).at() {
            At::Log(spot) => Some(spot),
            At::Cache(_) | At::Live(_) => None,
        }
    }

    /// Notes that the value of a key will be asked for; false when no more are read at once.
    pub(crate) fn want(&mut self, db: u8, key: &[u8]) -> bool {
        self.spot_of(db, key).is_none_or(|spot| self.want_spot(spot))
    }

    /// Notes that a key will be written, whatever it has: its entry is touched together with others.
    pub(crate) fn want_entry(&mut self, db: u8, key: &[u8]) {
        if self.wanted.names.len() < ENTRIES_MAX {
            let name = self.namer.name(key);
            self.wanted.names.push((self.spaces_of[usize::from(db)], name));
        }
    }

    /// Bytes of what was noted.
    pub(crate) const fn wanted_bytes(&self) -> usize {
        self.wanted.bytes
    }

    /// Notes a record that will be asked for; false when no more are read at once.
    pub(super) fn want_spot(&mut self, spot: Spot) -> bool {
        if self.log.would_wait(spot) {
            self.wanted.spots.push(spot);
            self.wanted.bytes += spot.len;
        }
        self.wanted.spots.len() < AHEAD_MAX && self.wanted.bytes < (self.memory.local / SHARE).max(CHUNK)
    }

    /// Reads all that was noted.
    pub(crate) fn fetch_wanted(&mut self) {
        let mut names = std::mem::take(&mut self.wanted.names);
        self.look_up_together(names.drain(..));
        self.wanted.names = names;
        let mut spots = std::mem::take(&mut self.wanted.spots);
        self.wanted.bytes = 0;
        spots.sort_unstable();
        spots.dedup();
        // One is read as well when it is asked for.
        if spots.len() > 1 {
            self.log.fetch_ahead(&spots);
        }
        spots.clear();
        self.wanted.spots = spots;
    }

    /// True while something that is read ahead is not here yet.
    pub(crate) fn waits_for_ahead(&self) -> bool {
        self.log.far_ref().under_way > 0
    }

    /// What was noted is read while commands of the turn before are to be carried out.
    pub(crate) fn fetch_wanted_early(&mut self) {
        let before = self.log.counts.wanted;
        self.fetch_wanted();
        self.log.counts.early += self.log.counts.wanted - before;
    }

    /// What was read ahead and not asked for is forgotten: all of it, or but what is younger than this was called last.
    pub(crate) fn forget_ahead(&mut self, all: bool) {
        self.log.drop_ahead(all);
    }
}
