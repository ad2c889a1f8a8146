//! All keys and values: the index here, records in the hybrid log, collections that are in use.
//!
//! Key type: [`Store`]. One thread has it. Strings lie in the log; a collection is a structure here while it is used, and bytes in the log when it is not. A value that is longer
//! than half a chunk lies in pieces, each a chunk. What is read of far memory is read by one READ, its key is compared, and what is read a second time is cached here.
//!
//! What must hold: each index entry leads to one record of its key; a record that no entry leads to is dead, and counted so in its chunk. An error of far memory
//! is told for the key whose record is there; it is never taken for "no such key".

mod ahead;
mod dead;
mod encoded;
mod far;
mod frequency;
mod index;
mod item;
mod live;
mod log;
mod memory;
mod picture;
mod place;
mod ranked;
mod scan;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use far::Far;
pub(crate) use index::Name;
pub(crate) use item::{Head, Item};
pub(crate) use memory::Policy;
pub(crate) use picture::{Picture, parse as parse_picture};
pub(crate) use place::CHUNK;
pub(crate) use ranked::Ranked;
pub(crate) use value::{ELEMENT, Kind, Text, Value};

use crate::failure::Failure;
use farmem::Rng;
use index::{Entry, Flag, Index, Namer};
use indexmap::IndexMap;
use live::Live;
use log::Log;
use place::{At, Header, Place};
use slab::Slab;

/// Spaces of keys, which `SELECT` names.
pub(crate) const SPACES: usize = 16;
/// Keys whose names are here at once when all of them go.
const CLEARED_TOGETHER: usize = 4096;
/// Bytes of a key at most.
pub(crate) const KEY_LEN_MAX: usize = u16::MAX as usize;

/// What becomes of a key's end when its value is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ends {
    /// It stays as it is.
    Keep,
    /// It has none.
    Never,
    /// At this time, in milliseconds since 1970.
    At(i64),
}

/// Keys of one space.
#[derive(Default, Debug)]
pub(crate) struct Space {
    pub(crate) index: Index,
    /// When keys end that do.
    pub(crate) ends: IndexMap<Name, i64>,
}

/// What was counted.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Stats {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) expired: u64,
    pub(crate) evicted: u64,
    /// Values that were read of far memory.
    pub(crate) fetched: u64,
    /// Those that were found in the read cache.
    pub(crate) cache_hits: u64,
    /// Chunks that were compacted.
    pub(crate) compacted: u64,
    /// Times that a scan left out a key whose record could not be read.
    pub(crate) unreadable: u64,
}

/// All keys and values.
#[derive(Debug)]
pub(crate) struct Store {
    spaces: Vec<Space>,
    /// The space of each database: `SWAPDB` changes it.
    spaces_of: [u8; SPACES],
    namer: Namer,
    log: Log,
    live: Slab<Live>,
    live_bytes: usize,
    /// Where the search for collections that may go stands.
    hand: usize,
    /// The value that was read last, when it is not in place.
    scratch: Vec<u8>,
    /// An item that is put together.
    joined: Vec<u8>,
    /// The number of the last change of an item.
    cas: u64,
    /// Milliseconds since 1970, as of the commands under way.
    now: i64,
    pub(crate) rng: Rng,
    /// Keys that were changed, while somebody watches.
    touched: Vec<(u8, Name)>,
    watching: bool,
    /// Changes so far.
    pub(crate) dirty: u64,
    /// Bytes that the command under way may add to a collection.
    pub(crate) incoming: usize,
    /// What is carried out was carried out before: nothing is refused for want of room that was there then.
    pub(crate) loading: bool,
    /// WRITEs of far memory up to which compaction has kept pace.
    tidied: u64,
    pub(crate) stats: Stats,
    pub(crate) memory: memory::Memory,
    parity: bool,
    picture: Option<Picture>,
    pictured: u64,
    wanted: ahead::Wanted,
}

impl Store {
    /// An empty store, whose log uses `far`; `local` is what it may have here.
    /// Names are made with `secret`, which no client may guess; what chance decides follows from `seed`.
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
            tidied: 0,
            stats: Stats::default(),
            memory,
            parity: false,
            picture: None,
            pictured: 0,
            wanted: ahead::Wanted::default(),
        }
    }

    /// The time of the commands that follow, in milliseconds since 1970.
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

    /// Whether anybody wants to know which keys change.
    pub(crate) fn set_watching(&mut self, is: bool) {
        self.watching = is;
        if !is {
            self.touched.clear();
        }
    }

    /// The keys that were changed since this was asked last.
    pub(crate) fn take_touched(&mut self) -> Vec<(u8, Name)> {
        std::mem::take(&mut self.touched)
    }

    fn touch(&mut self, db: u8, name: Name) {
        self.dirty += 1;
        if self.watching {
            self.touched.push((db, name));
        }
    }

    /// Keys of a database.
    pub(crate) fn len(&self, db: u8) -> usize {
        self.space(db).index.len()
    }

    /// The entry of a key that has not ended. One that has is taken out.
    fn find(&mut self, db: u8, key: &[u8]) -> Option<(Name, Entry)> {
        let name = self.namer.name(key);
        let (now, used) = (self.now, self.use_now());
        let space = self.space_mut(db);
        let entry = space.index.get_mut(name)?;
        entry.set_used(used.after(entry.used()));
        let entry = *entry;
        if entry.has(Flag::EXPIRES) && space.ends.get(&name).is_some_and(|&end| end <= now) {
            self.before_change(db, name, Some(key));
            self.take_out(db, name);
            self.touch(db, name);
            self.stats.expired += 1;
            return None;
        }
        Some((name, entry))
    }

    /// The kind of a key's value.
    pub(crate) fn kind(&mut self, db: u8, key: &[u8]) -> Option<Kind> {
        self.find(db, key).map(|(_, entry)| kind_of(&entry).for_redis())
    }

    /// The entry of a key whose value is a string; it counts as found, or as missed.
    fn find_string(&mut self, db: u8, key: &[u8]) -> Result<Option<(Name, Entry)>, Failure> {
        let Some(found) = self.find(db, key) else {
            self.stats.misses += 1;
            return Ok(None);
        };
        self.stats.hits += 1;
        if kind_of(&found.1).is_string() { Ok(Some(found)) } else { Err(Failure::WrongType) }
    }

    /// The string of a key.
    pub(crate) fn string(&mut self, db: u8, key: &[u8]) -> Result<Option<&[u8]>, Failure> {
        let Some((name, entry)) = self.find_string(db, key)? else { return Ok(None) };
        item::without_head(kind_of(&entry), self.bytes_of(db, key, name, entry)?).map(Some)
    }

    /// When a key ends: `None` without such a key, `Some(None)` when it does not end.
    pub(crate) fn end(&mut self, db: u8, key: &[u8]) -> Option<Option<i64>> {
        let (name, _) = self.find(db, key)?;
        Some(self.space(db).ends.get(&name).copied())
    }

    /// Gives a key an end, or takes it away; false without such a key, and when there was none to take away.
    pub(crate) fn set_end(&mut self, db: u8, key: &[u8], end: Option<i64>) -> bool {
        let Some((name, _)) = self.find(db, key) else { return false };
        self.before_change(db, name, Some(key));
        if end.is_some_and(|end| end <= self.now) {
            self.take_out(db, name);
            self.touch(db, name);
            return true;
        }
        let had = self.place_end(db, name, end);
        self.touch(db, name);
        end.is_some() || had
    }

    /// True of a key that has ended and was not taken out yet.
    pub(crate) fn has_ended(&self, db: u8, name: Name) -> bool {
        self.space(db).ends.get(&name).is_some_and(|&end| end <= self.now)
    }

    /// Notes an end, without anything else; true when there was one before.
    fn place_end(&mut self, db: u8, name: Name, end: Option<i64>) -> bool {
        // The last moment of all is a snapshot's word for none.
        let end = end.map(|end| end.min(i64::MAX - 1));
        let space = self.space_mut(db);
        let had = match end {
            Some(end) => space.ends.insert(name, end).is_some(),
            None => space.ends.swap_remove(&name).is_some(),
        };
        if let Some(entry) = space.index.get_mut(name) {
            entry.set(Flag::EXPIRES, end.is_some());
        }
        had
    }

    /// Puts a string in the place of whatever the key had.
    pub(crate) fn set(&mut self, db: u8, key: &[u8], value: &[u8], ends: Ends) -> Result<(), Failure> {
        self.set_with_room(db, key, value, value.len(), ends)
    }

    /// The same, with room for it to grow to `room` bytes in place.
    pub(crate) fn set_with_room(
        &mut self,
        db: u8,
        key: &[u8],
        value: &[u8],
        room: usize,
        ends: Ends,
    ) -> Result<(), Failure> {
        check_key(key)?;
        let name = self.namer.name(key);
        self.before_change(db, name, Some(key));
        if !self.set_in_place(db, key, name, Kind::String, value) {
            self.put_encoded(db, key, name, Kind::String, value, room)?;
        }
        self.follow_ends(db, name, ends);
        self.touch(db, name);
        Ok(())
    }

    /// Puts strings in the place of whatever their keys had: all of them, or none. Of a key that comes twice the last value counts.
    ///
    /// Records are appended first, which may fail; what leads to them is changed when all of them are there, which cannot.
    ///
    /// # Errors
    /// When one of them has no room: then nothing has changed.
    pub(crate) fn set_all(&mut self, db: u8, pairs: &[(&[u8], &[u8])]) -> Result<(), Failure> {
        for (key, _) in pairs {
            check_key(key)?;
        }
        let names: Vec<Name> = pairs.iter().map(|(key, _)| self.namer.name(key)).collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        let twice = sorted.windows(2).any(|pair| pair[0] == pair[1]);
        let mut places: Vec<Option<Place>> = vec![None; pairs.len()];
        // What is appended may push records out of local memory that were to be changed in place: they are looked at until none was.
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
            self.follow_ends(db, name, Ends::Never);
            self.touch(db, name);
        }
        Ok(())
    }

    fn follow_ends(&mut self, db: u8, name: Name, ends: Ends) {
        match ends {
            Ends::Keep => {}
            Ends::Never => {
                let expires = self.space(db).index.get(name).is_some_and(|entry| entry.has(Flag::EXPIRES));
                if expires {
                    self.place_end(db, name, None);
                }
            }
            Ends::At(end) => {
                self.place_end(db, name, Some(end));
            }
        }
    }

    /// True when a string is here and has room for one of `len` bytes.
    fn fits_in_place(&self, db: u8, key: &[u8], name: Name, len: usize) -> bool {
        let entry = self.space(db).index.get(name);
        let Some(At::Log(spot)) = entry.map(|entry| Place(entry.place).at()) else { return false };
        self.log.here(spot).is_some_and(|record| room_for(record, spot, key, Kind::String, len).is_some())
    }

    /// Writes over a string of this kind that is here and has room; false when it is not, or has not.
    fn set_in_place(&mut self, db: u8, key: &[u8], name: Name, kind: Kind, value: &[u8]) -> bool {
        let used = self.use_now();
        let space = self.spaces_of[usize::from(db)];
        let Some(entry) = self.spaces[usize::from(space)].index.get_mut(name) else { return false };
        let At::Log(spot) = Place(entry.place).at() else { return false };
        let Some(record) = self.log.here_mut(spot) else { return false };
        let Some(header) = room_for(record, spot, key, kind, value.len()) else { return false };
        let from = header.value_from();
        let value_len = u32::try_from(value.len()).expect("a room is shorter than 4 GiB");
        record[..place::HEADER_LEN].copy_from_slice(&Header { value_len, ..header }.emit());
        record[from..from + value.len()].copy_from_slice(value);
        entry.set_used(used.after(entry.used()));
        true
    }

    /// Takes a key out; whether it was there. It reads nothing of far memory and cannot fail, wherever the value is: a command takes out all of its keys.
    pub(crate) fn remove(&mut self, db: u8, key: &[u8]) -> bool {
        let Some((name, _)) = self.find(db, key) else { return false };
        self.before_change(db, name, Some(key));
        self.take_out(db, name);
        self.touch(db, name);
        true
    }

    /// Takes an entry out, and what it leads to.
    fn take_out(&mut self, db: u8, name: Name) {
        let space = self.space_mut(db);
        space.ends.swap_remove(&name);
        if let Some(entry) = space.index.remove(name) {
            self.release(&entry);
        }
    }

    /// What an entry led to is not wanted any more.
    fn release(&mut self, entry: &Entry) {
        self.release_place(Place(entry.place));
    }

    fn release_place(&mut self, place: Place) {
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

    /// Gives back all far memory, at the end of the server.
    pub(crate) fn free_far(&mut self) {
        self.log.far().free_all();
    }

    /// All keys of a database go.
    pub(crate) fn clear(&mut self, db: u8) {
        // All keys at once would be in memory for it.
        self.drop_picture();
        let mut cursor = 0;
        loop {
            let some = self.space(db).index.from(cursor).take(CLEARED_TOGETHER).map(Entry::name);
            let names: Vec<Name> = some.collect();
            let Some(last) = names.last() else { break };
            cursor = last.hash;
            for name in names {
                self.take_out(db, name);
                self.touch(db, name);
            }
        }
        self.dirty += 1;
    }

    /// Two databases change places.
    pub(crate) fn swap(&mut self, one: u8, other: u8) -> Result<(), Failure> {
        if self.picture.is_some() {
            return Err(Failure::text("ERR a snapshot is under way; try again when it has ended"));
        }
        self.spaces_of.swap(usize::from(one), usize::from(other));
        self.dirty += 1;
        if self.watching {
            for db in [one, other] {
                let names: Vec<Name> = self.space(db).index.from(0).map(Entry::name).collect();
                self.touched.extend(names.iter().flat_map(|&name| [(one, name), (other, name)]));
            }
        }
        Ok(())
    }
}

/// The header of a string of `key`, of this kind, that has room for `len` bytes; `None` where much room would be lost, and of any other record.
fn room_for(record: &[u8], spot: place::Spot, key: &[u8], kind: Kind, len: usize) -> Option<Header> {
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

/// Seconds, as entries count them.
fn clock(now: i64) -> u32 {
    u32::try_from((now / 1000) & 0xffff_ffff).unwrap_or(0)
}
