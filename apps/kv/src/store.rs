//! All keys and values: the index, the records of the hybrid log, and the collections in use.
//!
//! Key type: [`Store`], which one thread has. A string is a record of the log. A collection is a structure in
//! local memory while it is used, and a record otherwise. A value that is longer than half a chunk lies in
//! pieces, each a chunk. One READ fetches a far record; its key is compared, and a record that is read a
//! second time is cached.
//!
//! Invariants: each index entry leads to one record of its key. A record that no entry leads to is dead, and
//! its chunk counts it so. An error of far memory is reported for each key whose record it concerns, and
//! never as "no such key".

mod ahead;
mod collections;
mod dead;
mod encoded;
mod expiry;
mod far;
mod frequency;
mod index;
pub(crate) mod item;
mod live;
mod log;
mod memory;
pub(crate) mod picture;
mod place;
mod ranked;
mod reclaim;
mod room;
mod scan;
mod steps;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use far::{Far, PATIENCE};
pub(crate) use index::Name;
pub(crate) use memory::Policy;
pub(crate) use place::CHUNK;
pub(crate) use ranked::Ranked;
pub(crate) use value::{ELEMENT, Kind, Text, Value};

use crate::failure::Failure;
use expiry::Expiry;
use farmem::Rng;
use index::{Entry, Flag, Index, Namer};
use live::Live;
use log::Log;
use place::{At, Header, LocationWord};
use slab::Slab;
use std::collections::VecDeque;
use steps::{FetchQueue, Flushed, Picture, Sweep};

/// Spaces of keys, which `SELECT` names.
pub(crate) const SPACES: usize = 16;
/// Bytes of a key at most.
pub(crate) const KEY_LEN_MAX: usize = u16::MAX as usize;

/// The expiry time of a key whose value is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NewExpiry {
    /// The time stays as it is.
    Keep,
    /// The key does not expire.
    Never,
    /// The key expires at this time, in milliseconds since 1970.
    At(i64),
}

/// The keys of one space.
#[derive(Default, Debug)]
pub(crate) struct Space {
    pub(crate) index: Index,
    /// The times at which keys expire.
    pub(crate) ends: Expiry,
}

/// Counts since the start.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Stats {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) expired: u64,
    pub(crate) evicted: u64,
    /// Values that were read from far memory.
    pub(crate) fetched: u64,
    /// Values that the read cache had.
    pub(crate) cache_hits: u64,
    /// Chunks that were compacted.
    pub(crate) compacted: u64,
    /// Keys that scans left out, because their records could not be read.
    pub(crate) unreadable: u64,
}

/// All keys and values.
#[derive(Debug)]
pub(crate) struct Store {
    spaces: Vec<Space>,
    /// The space of each database; `SWAPDB` changes it.
    spaces_of: [u8; SPACES],
    namer: Namer,
    log: Log,
    live: Slab<Live>,
    live_bytes: usize,
    /// The position of the search for collections that may leave local memory.
    hand: usize,
    /// The last value that was read from far memory.
    scratch: Vec<u8>,
    /// A buffer in which an item is put together.
    joined: Vec<u8>,
    /// The number of the last change of an item.
    cas: u64,
    /// The time of the current commands, in milliseconds since 1970.
    now: i64,
    pub(crate) rng: Rng,
    /// Keys that changed, while a client watches or waits.
    touched: Vec<(u8, Name)>,
    watching: bool,
    /// Changes so far.
    pub(crate) dirty: u64,
    /// Bytes that the current command may add to a collection.
    pub(crate) incoming: usize,
    /// The log is being replayed: commands that had room then are not refused for want of it.
    pub(crate) loading: bool,
    /// Databases that were flushed and are not freed yet.
    flushed: VecDeque<Flushed>,
    sweep: Sweep,
    /// WRITEs of far memory that compaction has counted, and the chunks that it owes for them.
    tidied: u64,
    compactions_owed: u64,
    pub(crate) stats: Stats,
    pub(crate) memory: memory::Memory,
    parity: bool,
    picture: Option<Picture>,
    pictured: u64,
    wanted: FetchQueue,
}

impl Store {
    /// Returns an empty store with `local` bytes of local memory and a log in `far`. Key names are hashed
    /// with `secret`, which clients must not guess; random decisions follow from `seed`.
    pub(crate) fn new(far: Far, local: usize, secret: (u64, u64), seed: u64) -> Self {
        let namer = Namer::new(secret);
        let memory = memory::Memory::new(local);
        Self {
            spaces: std::iter::repeat_with(Space::default).take(SPACES).collect(),
            spaces_of: std::array::from_fn(|number| u8::try_from(number).expect("few")),
            namer,
            log: Log::new(far, local / CHUNK / 2),
            live: Slab::new(),
            live_bytes: 0,
            hand: 0,
            scratch: Vec::new(),
            joined: Vec::new(),
            cas: 0,
            now: 0,
            rng: Rng::from_number(seed),
            touched: Vec::new(),
            watching: false,
            dirty: 0,
            incoming: 0,
            loading: false,
            flushed: VecDeque::new(),
            sweep: Sweep::default(),
            tidied: 0,
            compactions_owed: 0,
            stats: Stats::default(),
            memory,
            parity: false,
            picture: None,
            pictured: 0,
            wanted: FetchQueue::default(),
        }
    }

    /// Sets the time of the next commands, in milliseconds since 1970.
    pub(crate) fn set_now(&mut self, now: i64) {
        self.now = now;
    }

    pub(crate) const fn now(&self) -> i64 {
        self.now
    }

    pub(crate) const fn log_ref(&self) -> &Log {
        &self.log
    }

    pub(crate) fn space(&self, db: u8) -> &Space {
        &self.spaces[usize::from(self.spaces_of[usize::from(db)])]
    }

    fn space_mut(&mut self, db: u8) -> &mut Space {
        &mut self.spaces[usize::from(self.spaces_of[usize::from(db)])]
    }

    pub(crate) fn name(&self, key: &[u8]) -> Name {
        self.namer.name(key)
    }

    /// Sets whether changed keys are noted.
    pub(crate) fn set_watching(&mut self, is: bool) {
        self.watching = is;
        if !is {
            self.touched.clear();
        }
    }

    /// Takes the keys that have changed since the last call.
    pub(crate) fn take_touched(&mut self) -> Vec<(u8, Name)> {
        std::mem::take(&mut self.touched)
    }

    fn touch(&mut self, db: u8, name: Name) {
        self.dirty += 1;
        if self.watching {
            self.touched.push((db, name));
        }
    }

    /// Returns the number of keys in a database.
    pub(crate) fn len(&self, db: u8) -> usize {
        self.space(db).index.len()
    }

    /// Returns how many keys there are, in all databases.
    pub(crate) fn key_count(&self) -> usize {
        self.spaces.iter().map(|space| space.index.len()).sum()
    }

    /// Finds the entry of a key, and removes a key that has expired.
    fn find(&mut self, db: u8, key: &[u8]) -> Option<(Name, Entry)> {
        let name = self.namer.name(key);
        let (now, used) = (self.now, self.use_now());
        let space = self.space_mut(db);
        let entry = space.index.get_mut(name)?;
        entry.set_used(used.after(entry.used()));
        let entry = *entry;
        if entry.has(Flag::EXPIRES) && space.ends.get(name).is_some_and(|end| end <= now) {
            self.before_change(db, name, Some(key));
            self.take_out(db, name);
            self.touch(db, name);
            self.stats.expired += 1;
            return None;
        }
        Some((name, entry))
    }

    /// Returns the kind of a key's value.
    pub(crate) fn kind(&mut self, db: u8, key: &[u8]) -> Option<Kind> {
        self.find(db, key).map(|(_, entry)| kind_of(&entry).for_redis())
    }

    /// Returns when a key expires: `None` without such a key, `Some(None)` if it does not expire.
    pub(crate) fn end(&mut self, db: u8, key: &[u8]) -> Option<Option<i64>> {
        let (name, _) = self.find(db, key)?;
        Some(self.space(db).ends.get(name))
    }

    /// Sets or removes the expiry time of a key. Returns false if the key does not exist, or had no time to remove.
    ///
    /// # Errors
    /// An error if local memory has no room for one more time.
    pub(crate) fn set_end(&mut self, db: u8, key: &[u8], end: Option<i64>) -> Result<bool, Failure> {
        let Some((name, _)) = self.find(db, key) else { return Ok(false) };
        self.check_end(db, key, end.filter(|&end| end > self.now).map_or(NewExpiry::Never, NewExpiry::At))?;
        self.before_change(db, name, Some(key));
        if end.is_some_and(|end| end <= self.now) {
            self.take_out(db, name);
            self.touch(db, name);
            return Ok(true);
        }
        let had = self.place_end(db, name, end);
        self.touch(db, name);
        Ok(end.is_some() || had)
    }

    /// Refuses a time for a key that had none, if local memory has no room for it.
    fn check_end(&self, db: u8, key: &[u8], ends: NewExpiry) -> Result<(), Failure> {
        let is_new = matches!(ends, NewExpiry::At(_)) && self.space(db).ends.get(self.name(key)).is_none();
        if is_new { self.check_room() } else { Ok(()) }
    }

    /// Returns whether a key has expired and was not removed yet.
    pub(crate) fn has_ended(&self, db: u8, name: Name) -> bool {
        self.space(db).ends.get(name).is_some_and(|end| end <= self.now)
    }

    /// Removes a key that has expired. Clients that watch the key get no notice, because it did not exist any more.
    pub(crate) fn drop_expired(&mut self, db: u8, name: Name) {
        if self.has_ended(db, name) {
            self.before_change(db, name, None);
            self.take_out(db, name);
            self.stats.expired += 1;
        }
    }

    /// Sets an expiry time and nothing else. Returns whether there was one before.
    fn place_end(&mut self, db: u8, name: Name, end: Option<i64>) -> bool {
        // In a snapshot the last moment stands for no expiry.
        let end = end.map(|end| end.min(i64::MAX - 1));
        let space = self.space_mut(db);
        let had = match end {
            Some(end) => space.ends.insert(name, end),
            None => space.ends.remove(name),
        };
        if let Some(entry) = space.index.get_mut(name) {
            entry.set(Flag::EXPIRES, end.is_some());
        }
        had
    }

    /// Sets a key's value to a string.
    pub(crate) fn set(&mut self, db: u8, key: &[u8], value: &[u8], ends: NewExpiry) -> Result<(), Failure> {
        self.set_with_room(db, key, value, value.len(), ends)
    }

    /// Sets a key's value to a string that may grow to `room` bytes in place.
    pub(crate) fn set_with_room(
        &mut self,
        db: u8,
        key: &[u8],
        value: &[u8],
        room: usize,
        ends: NewExpiry,
    ) -> Result<(), Failure> {
        check_key(key)?;
        self.check_end(db, key, ends)?;
        let name = self.namer.name(key);
        self.before_change(db, name, Some(key));
        if !self.set_in_place(db, key, name, Kind::String, value) {
            self.put_encoded(db, key, name, Kind::String, value, room)?;
        }
        self.follow_ends(db, name, ends);
        self.touch(db, name);
        Ok(())
    }

    /// Sets the values of several keys to strings: all of them, or none. If a key occurs twice, its last value
    /// counts.
    ///
    /// Records are appended first, which may fail. Entries change when all records exist, which cannot fail.
    ///
    /// # Errors
    ///
    /// An error if one of them has no room. Then nothing has changed.
    pub(crate) fn set_all(&mut self, db: u8, pairs: &[(&[u8], &[u8])]) -> Result<(), Failure> {
        for (key, _) in pairs {
            check_key(key)?;
        }
        let names: Vec<Name> = pairs.iter().map(|(key, _)| self.namer.name(key)).collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        let twice = sorted.windows(2).any(|pair| pair[0] == pair[1]);
        let mut places: Vec<Option<LocationWord>> = vec![None; pairs.len()];
        // An append may move records out of local memory that were to be changed in place. So the search
        // repeats until none was.
        loop {
            let missing = (0..pairs.len())
                .filter(|&at| places[at].is_none())
                .filter(|&at| twice || !self.fits_in_place(db, pairs[at].0, names[at], pairs[at].1.len()))
                .collect::<Vec<_>>();
            if missing.is_empty() {
                break;
            }
            for at in missing {
                let (key, value) = pairs[at];
                match self.append(db, key, names[at], Kind::String, value, value.len()) {
                    Ok(place) => places[at] = Some(place),
                    Err(failure) => {
                        places.into_iter().flatten().for_each(|place| self.release_place(place));
                        return Err(failure);
                    }
                }
            }
        }
        for ((&(key, value), &name), place) in pairs.iter().zip(&names).zip(places) {
            self.before_change(db, name, Some(key));
            match place {
                Some(place) => self.lead_to(db, name, Kind::String, place),
                None => assert!(
                    self.set_in_place(db, key, name, Kind::String, value),
                    "it was looked at a moment ago"
                ),
            }
            self.follow_ends(db, name, NewExpiry::Never);
            self.touch(db, name);
        }
        Ok(())
    }

    fn follow_ends(&mut self, db: u8, name: Name, ends: NewExpiry) {
        match ends {
            NewExpiry::Keep => {}
            NewExpiry::Never => {
                let expires = self.space(db).index.get(name).is_some_and(|entry| entry.has(Flag::EXPIRES));
                if expires {
                    self.place_end(db, name, None);
                }
            }
            NewExpiry::At(end) => {
                self.place_end(db, name, Some(end));
            }
        }
    }

    /// Returns whether a string is in local memory and has room for `len` bytes.
    fn fits_in_place(&self, db: u8, key: &[u8], name: Name, len: usize) -> bool {
        let entry = self.space(db).index.get(name);
        let Some(At::Log(spot)) = entry.map(|entry| LocationWord(entry.place).at()) else { return false };
        self.log.here(spot).is_some_and(|record| room_for(record, spot, key, Kind::String, len).is_some())
    }

    /// Overwrites a string in local memory. Returns false if it is not there, or has no room, or is of
    /// another kind.
    fn set_in_place(&mut self, db: u8, key: &[u8], name: Name, kind: Kind, value: &[u8]) -> bool {
        let used = self.use_now();
        let space = self.spaces_of[usize::from(db)];
        let Some(entry) = self.spaces[usize::from(space)].index.get_mut(name) else { return false };
        let At::Log(spot) = LocationWord(entry.place).at() else { return false };
        let Some(record) = self.log.here_mut(spot) else { return false };
        let Some(header) = room_for(record, spot, key, kind, value.len()) else { return false };
        let from = header.value_from();
        let value_len = u32::try_from(value.len()).expect("a room is shorter than 4 GiB");
        record[..place::HEADER_LEN].copy_from_slice(&Header { value_len, ..header }.emit());
        record[from..from + value.len()].copy_from_slice(value);
        entry.set_used(used.after(entry.used()));
        true
    }

    /// Deletes a key, and returns whether it existed. Reads no far memory and cannot fail, so a command deletes all
    /// of its keys.
    pub(crate) fn remove(&mut self, db: u8, key: &[u8]) -> bool {
        let Some((name, _)) = self.find(db, key) else { return false };
        self.before_change(db, name, Some(key));
        self.take_out(db, name);
        self.touch(db, name);
        true
    }

    /// Removes an entry, and releases its value.
    fn take_out(&mut self, db: u8, name: Name) {
        let space = self.space_mut(db);
        space.ends.remove(name);
        if let Some(entry) = space.index.remove(name) {
            self.release(&entry);
        }
    }

    /// Releases the value that an entry led to.
    fn release(&mut self, entry: &Entry) {
        self.release_place(LocationWord(entry.place));
    }

    fn release_place(&mut self, place: LocationWord) {
        match place.at() {
            At::Log(spot) => self.log.forget(spot),
            At::Cache(spot) => {
                let At::Log(behind) = self.log.behind_cache(spot).at() else {
                    unreachable!("the cache has records of the log")
                };
                self.log.forget(behind);
            }
            At::Live(number) => self.release_live(number),
        }
    }

    /// Probes far memory without waiting for it, and returns lines for the operator about what changed.
    pub(crate) fn probe_far(&mut self) -> Vec<String> {
        self.log.far().probe();
        self.log.far().health.take_notices()
    }

    /// Frees all far memory, at the end of the server.
    pub(crate) fn free_far(&mut self) {
        self.log.far().free_all();
    }

    /// Exchanges two databases.
    pub(crate) fn swap(&mut self, one: u8, other: u8) -> Result<(), Failure> {
        if self.picture.is_some() {
            return Err(Failure::text("ERR a snapshot is under way; try again when it has ended"));
        }
        self.spaces_of.swap(usize::from(one), usize::from(other));
        self.dirty += 1;
        Ok(())
    }

    /// Returns whether a database has a key of this name.
    pub(crate) fn has(&self, db: u8, name: Name) -> bool {
        self.space(db).index.get(name).is_some()
    }

    /// Notes that a command changes a key together with all others of its database, and none of them separately.
    pub(crate) fn note_touched(&mut self, db: u8, name: Name) {
        if self.watching {
            self.touched.push((db, name));
        }
    }
}

/// Returns the header of a string of `key` that has room for `len` bytes. Returns `None` for any other
/// record, and if much room would be wasted.
fn room_for(record: &[u8], spot: place::RecordSpan, key: &[u8], kind: Kind, len: usize) -> Option<Header> {
    let header = Header::parse(record)?;
    let from = header.value_from();
    let fits = from + len <= spot.len && (from + len) * 2 >= spot.len;
    let is_it = header.kind == kind as u8 && record[place::HEADER_LEN..from] == *key;
    (fits && is_it).then_some(header)
}

/// Refuses a key that is too long.
fn check_key(key: &[u8]) -> Result<(), Failure> {
    if key.len() > KEY_LEN_MAX {
        return Err(Failure::said(format!(
            "ERR a key of {} bytes: keys have at most {KEY_LEN_MAX}",
            key.len()
        )));
    }
    Ok(())
}

fn kind_of(entry: &Entry) -> Kind {
    Kind::of(entry.kind()).expect("entries have kinds of values")
}
