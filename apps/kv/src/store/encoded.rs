//! Values as bytes: how they come into the log and out of it.

use super::index::{Entry, Flag, Name};
use super::live::{Live, What};
use super::log::Full;
use super::place::{At, CHUNK, Class, HEADER_LEN, Header, Place, Spot};
use super::{Ends, Kind, Store, kind_of};
use crate::failure::Failure;

/// Bytes of a record at most; a longer value lies in pieces.
const RECORD_MAX: usize = CHUNK / 2;

/// The part of far memory that is wanted, in eighths: with less, chunks are compacted. The less, the more of a chunk is dead when its turn comes, and the less is moved for each byte that is written;
/// and more is to be wanted where there is no more far memory to be had.
const WANTED: usize = 5;
const WANTED_WHEN_SHORT: usize = 6;
/// Chunks that are compacted at once for a record that has no room.
const ROOM_CHUNKS: usize = 16;
/// Records that are looked up together when a chunk is compacted.
const TOGETHER: usize = 256;

/// The kind, the bytes and the end of a value.
type Dumped = (Kind, Vec<u8>, Option<i64>);

impl Store {
    /// Appends a value as a record, or as pieces, and leads the key there. What the key had goes.
    pub(super) fn put_encoded(
        &mut self,
        db: u8,
        key: &[u8],
        name: Name,
        kind: Kind,
        value: &[u8],
        room: usize,
    ) -> Result<(), Failure> {
        let place = self.append(db, key, name, kind, value, room)?;
        self.lead_to(db, name, kind, place);
        Ok(())
    }

    /// Leads a key to a value that was appended. What the key had goes.
    pub(super) fn lead_to(&mut self, db: u8, name: Name, kind: Kind, place: Place) {
        let mut entry = Entry::new(name, place.0, kind as u8);
        entry.set(Flag::PARITY, self.parity);
        let used = self.use_now();
        let space = self.space_mut(db);
        let before = space.index.get(name).copied();
        entry.set_used(before.map_or_else(|| used.first(), |before| used.after(before.used())));
        entry.set(Flag::EXPIRES, before.is_some_and(|before| before.has(Flag::EXPIRES)));
        space.index.put(entry);
        if let Some(before) = before {
            self.release(&before);
        }
    }

    /// Puts a value into the log; where it is.
    pub(super) fn append(
        &mut self,
        db: u8,
        key: &[u8],
        name: Name,
        kind: Kind,
        value: &[u8],
        room: usize,
    ) -> Result<Place, Failure> {
        self.check_room()?;
        self.append_now(db, key, name, kind, value, room)
    }

    /// The same, whether local memory is full or not. What far memory has no room for has some when chunks that are mostly dead have gone.
    pub(super) fn append_now(
        &mut self,
        db: u8,
        key: &[u8],
        name: Name,
        kind: Kind,
        value: &[u8],
        room: usize,
    ) -> Result<Place, Failure> {
        let appended = self.try_append(db, key, name, kind, value, room);
        let Err(failure) = appended else { return appended };
        while self.compact_for_room() {
            if let Ok(place) = self.try_append(db, key, name, kind, value, room) {
                return Ok(place);
            }
        }
        Err(failure)
    }

    fn try_append(
        &mut self,
        db: u8,
        key: &[u8],
        name: Name,
        kind: Kind,
        value: &[u8],
        room: usize,
    ) -> Result<Place, Failure> {
        let least = HEADER_LEN + key.len() + value.len();
        if least > RECORD_MAX {
            return self.append_pieces(db, key, name, value);
        }
        let class = Class::of(least.max((HEADER_LEN + key.len() + room).min(RECORD_MAX)));
        let header = Header {
            kind: kind as u8,
            large: false,
            space: self.spaces_of[usize::from(db)],
            class,
            key_len: u16::try_from(key.len()).expect("keys are bounded"),
            value_len: u32::try_from(value.len()).expect("a record is shorter than a chunk"),
        };
        self.log.append(header, key, &[value]).map_err(|full| no_room(&full))
    }

    fn append_pieces(&mut self, db: u8, key: &[u8], name: Name, value: &[u8]) -> Result<Place, Failure> {
        let mut pieces = Vec::new();
        for piece in value.chunks(CHUNK) {
            match self.log.put_piece(piece) {
                Ok(number) => pieces.push(number),
                Err(full) => {
                    pieces.into_iter().for_each(|number| self.log.forget_piece(number));
                    return Err(no_room(&full));
                }
            }
        }
        let what = What::Pieces(pieces, value.len());
        let space = self.spaces_of[usize::from(db)];
        Ok(Place::live(self.keep_live(Live::new(what, key, space, name))))
    }

    /// The bytes of a key's value, as the log has them: in place where they are here, in `scratch` where they are not.
    pub(super) fn bytes_of(
        &mut self,
        db: u8,
        key: &[u8],
        name: Name,
        entry: Entry,
    ) -> Result<&[u8], Failure> {
        match Place(entry.place).at() {
            At::Log(spot) if self.log.here(spot).is_some() => {
                value_in(self.log.here(spot).expect("it was found a moment ago"), key)
            }
            At::Log(_) => self.fetch(db, key, name, entry),
            At::Cache(spot) => {
                self.stats.cache_hits += 1;
                value_in(self.log.here(spot).expect("the cache is here"), key)
            }
            At::Live(number) => {
                // The value, its copy in a reply, and the pieces that are read together.
                self.give_way(2 * self.live_len(number) + super::log::PIECES_TOGETHER * CHUNK);
                let mut bytes = std::mem::take(&mut self.scratch);
                bytes.clear();
                let read = self.encode_live(number, &mut bytes);
                self.scratch = bytes;
                read?;
                Ok(&self.scratch)
            }
        }
    }

    /// Reads a far record.
    fn fetch(&mut self, db: u8, key: &[u8], name: Name, entry: Entry) -> Result<&[u8], Failure> {
        let At::Log(spot) = Place(entry.place).at() else { unreachable!("far records are of the log") };
        let record = self
            .log
            .fetch(spot)
            .map_err(|error| Failure::far("the value of this key cannot be read", &error))?;
        let before = std::mem::replace(&mut self.scratch, record);
        self.log.far().recycle(before);
        self.stats.fetched += 1;
        value_in(&self.scratch, key)?;
        // What is read a second time is cached: most of what is read once is not read again.
        if entry.has(Flag::TOUCHED) {
            self.cache_scratch(db, name, Place(entry.place));
        } else if let Some(entry) = self.space_mut(db).index.get_mut(name) {
            entry.set(Flag::TOUCHED, true);
        }
        value_in(&self.scratch, key)
    }

    fn cache_scratch(&mut self, db: u8, name: Name, from: Place) {
        let mut copy = self.log.cache(from, &self.scratch);
        if copy.is_none() {
            // No memory for it is no reason to fail: the value is there.
            if !self.log.grow_cache().unwrap_or(false) {
                if self.log.here_len().1 < 2 {
                    return;
                }
                self.shrink_cache();
                if !self.log.grow_cache().unwrap_or(false) {
                    return;
                }
            }
            copy = self.log.cache(from, &self.scratch);
        }
        if let (Some(copy), Some(entry)) = (copy, self.space_mut(db).index.get_mut(name)) {
            entry.place = copy.0;
            entry.set(Flag::TOUCHED, false);
        }
    }

    /// The oldest chunk of the cache goes: entries that lead there lead to the log again.
    pub(super) fn shrink_cache(&mut self) {
        let Some(oldest) = self.log.oldest_cached() else { return };
        for (cached, from, key, space) in self.log.cached_records(oldest) {
            let name = self.namer.name(&key);
            if let Some(entry) = self.spaces[usize::from(space)].index.get_mut(name)
                && entry.place == cached.0
            {
                entry.place = from.0;
            }
        }
        self.log.drop_cached();
    }

    /// The kind, the bytes and the end of a key's value.
    pub(crate) fn dump(&mut self, db: u8, key: &[u8]) -> Result<Option<Dumped>, Failure> {
        let Some((name, entry)) = self.find(db, key) else { return Ok(None) };
        let bytes = self.bytes_of(db, key, name, entry)?.to_vec();
        Ok(Some((kind_of(&entry), bytes, self.space(db).ends.get(&name).copied())))
    }

    /// Puts what [`Store::dump`] gave in the place of whatever the key had.
    pub(crate) fn restore(
        &mut self,
        db: u8,
        key: &[u8],
        kind: Kind,
        bytes: &[u8],
        end: Option<i64>,
    ) -> Result<(), Failure> {
        super::check_key(key)?;
        if let (Kind::Item, Some((head, _))) = (kind, super::Head::parse(bytes)) {
            self.note_cas(head.cas);
        }
        let name = self.namer.name(key);
        self.before_change(db, name, Some(key));
        self.put_encoded(db, key, name, kind, bytes, bytes.len())?;
        self.follow_ends(db, name, end.map_or(Ends::Never, Ends::At));
        self.touch(db, name);
        Ok(())
    }

    /// Moves what is wanted out of a far chunk that is mostly dead; false when there is none, or so much of far memory is wanted, in eighths.
    pub(crate) fn compact(&mut self, wanted: usize) -> Result<bool, Failure> {
        let Some(number) = self.log.worth_compaction(wanted) else { return Ok(false) };
        let bytes = self
            .log
            .fetch_chunk(number)
            .map_err(|error| Failure::far("a chunk cannot be compacted", &error))?;
        self.log.far().use_reserve(true);
        let moved = self.move_out(number, &bytes);
        self.log.far().use_reserve(false);
        self.log.far().keep_chunk(bytes);
        moved?;
        self.stats.compacted += 1;
        Ok(true)
    }

    /// Compacts some chunks, as far as they are worth it and far memory takes anything at all; whether any was. A command waits for no more than that at a time: what is left is compacted from turn
    /// to turn.
    fn compact_for_room(&mut self) -> bool {
        let before = self.stats.compacted;
        for _ in 0..ROOM_CHUNKS {
            if !self.compact(WANTED_WHEN_SHORT).unwrap_or(false) {
                break;
            }
        }
        self.stats.compacted > before
    }

    /// The part of far memory that is to be wanted now, in eighths.
    pub(super) const fn wanted_eighths(&self) -> usize {
        if self.log.far_ref().is_short { WANTED_WHEN_SHORT } else { WANTED }
    }

    fn move_out(&mut self, number: usize, bytes: &[u8]) -> Result<(), Failure> {
        let (mut records, mut some) = (super::log::records(bytes), Vec::with_capacity(TOGETHER));
        loop {
            some.clear();
            let wanted = records.by_ref().filter(|(offset, _)| self.log.may_be_wanted(number, *offset));
            some.extend(wanted.take(TOGETHER).map(|(offset, header)| {
                let key = &bytes[offset + HEADER_LEN..offset + header.value_from()];
                (offset, header, key, self.namer.name(key))
            }));
            if some.is_empty() {
                return Ok(());
            }
            self.look_up_together(some.iter().map(|&(_, header, _, name)| (header.space, name)));
            for &(offset, header, key, name) in &some {
                let old = Place::log(number, offset, header.class);
                let Some((entry_place, is_live)) = self.leads_to(header.space, name, old) else { continue };
                let value = &bytes[offset + header.value_from()..offset + header.end()];
                let new = self.log.append(header, key, &[value]).map_err(|full| no_room(&full))?;
                self.moved(header.space, name, entry_place, is_live, new);
                self.log.forget(Spot { chunk: number, offset, len: header.class.len() });
            }
        }
    }

    /// Touches the entries of names that are looked up next. They lie far apart: one look-up waits for memory, many at once wait once.
    pub(super) fn look_up_together(&self, names: impl Iterator<Item = (u8, Name)>) {
        let met = names.fold(0, |met, (space, name)| met ^ self.spaces[usize::from(space)].index.touch(name));
        std::hint::black_box(met);
    }

    /// Where a key's entry leads when the record at `old` is wanted, and whether by way of a collection in use.
    fn leads_to(&self, space: u8, name: Name, old: Place) -> Option<(Place, bool)> {
        let place = Place(self.spaces[usize::from(space)].index.get(name)?.place);
        match place.at() {
            At::Log(_) => (place == old).then_some((place, false)),
            At::Cache(spot) => (self.log.behind_cache(spot) == old).then_some((place, false)),
            At::Live(number) => (self.live[number].clean == Some(old)).then_some((place, true)),
        }
    }

    fn moved(&mut self, space: u8, name: Name, from: Place, is_live: bool, to: Place) {
        if let (true, At::Live(number)) = (is_live, from.at()) {
            self.live[number].clean = Some(to);
        } else if let Some(entry) = self.spaces[usize::from(space)].index.get_mut(name) {
            // A cached copy is left behind: it is found to be nobody's when its chunk goes.
            entry.place = to.0;
        }
    }
}

/// The value of a record that is `key`'s.
fn value_in<'a>(record: &'a [u8], key: &[u8]) -> Result<&'a [u8], Failure> {
    let header = Header::parse(record).filter(|header| header.end() <= record.len());
    let header = header
        .ok_or(Failure::text("FARMEMORY what is there is no record: far memory was changed by others"))?;
    if record[HEADER_LEN..header.value_from()] != *key {
        return Err(Failure::text("FARMEMORY the record is another key's: far memory was changed by others"));
    }
    Ok(&record[header.value_from()..header.end()])
}

/// What a client is told when nothing can be put anywhere.
pub(super) fn no_room(full: &Full) -> Failure {
    match full {
        Full::Far(error) => {
            Failure::said(format!("OOM far memory takes no more: {error}; {}", error.remedy()))
        }
        Full::System(error) => Failure::said(format!("OOM the system has no memory: {error}")),
    }
}
