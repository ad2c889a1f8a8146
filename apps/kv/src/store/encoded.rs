//! Values as records: appends to the log and reads from it.

use super::far::is_withheld;
use super::index::{Entry, Flag, Name};
use super::item::Head;
use super::live::{Live, LiveValue};
use super::log::{CachedRecord, Full};
use super::place::{At, CHUNK, Class, HEADER_LEN, Header, LocationWord, RecordSpan};
use super::{Kind, NewExpiry, Store, kind_of};
use crate::failure::Failure;

/// Bytes of a record at most. A longer value lies in pieces.
const RECORD_MAX: usize = CHUNK / 2;

/// The minimum part of far memory that is live, in eighths; below it, chunks are compacted. A smaller part makes
/// compaction cheaper, because a chunk has fewer live records when its turn comes. If far memory is short, the part
/// is larger.
const WANTED: usize = 5;
const WANTED_WHEN_SHORT: usize = 6;
/// Chunks that are compacted together for a record that has no room.
const ROOM_CHUNKS: usize = 16;
/// Records that compaction looks up together.
const TOGETHER: usize = 256;

/// The kind, the bytes and the expiry time of a value.
type Dumped = (Kind, Vec<u8>, Option<i64>);

impl Store {
    /// Appends a value, and leads the key to it. Releases the key's old value.
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

    /// Leads a key to an appended value. Releases the key's old value.
    pub(super) fn lead_to(&mut self, db: u8, name: Name, kind: Kind, place: LocationWord) {
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

    /// Appends a value to the log, and returns its place.
    pub(super) fn append(
        &mut self,
        db: u8,
        key: &[u8],
        name: Name,
        kind: Kind,
        value: &[u8],
        room: usize,
    ) -> Result<LocationWord, Failure> {
        self.check_room()?;
        self.append_now(db, key, name, kind, value, room)
    }

    /// Appends a value even if local memory is full. If far memory has no room, compacts chunks that are
    /// mostly dead and tries again.
    pub(super) fn append_now(
        &mut self,
        db: u8,
        key: &[u8],
        name: Name,
        kind: Kind,
        value: &[u8],
        room: usize,
    ) -> Result<LocationWord, Failure> {
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
    ) -> Result<LocationWord, Failure> {
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

    fn append_pieces(
        &mut self,
        db: u8,
        key: &[u8],
        name: Name,
        value: &[u8],
    ) -> Result<LocationWord, Failure> {
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
        let value = LiveValue::Pieces(pieces, value.len());
        let space = self.spaces_of[usize::from(db)];
        Ok(LocationWord::live(self.keep_live(Live::new(value, key, space, name))))
    }

    /// Returns the bytes of a key's value as the log has them: in place if they are local, otherwise in
    /// `scratch`.
    pub(super) fn bytes_of(
        &mut self,
        db: u8,
        key: &[u8],
        name: Name,
        entry: Entry,
    ) -> Result<&[u8], Failure> {
        match LocationWord(entry.place).at() {
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
        let At::Log(spot) = LocationWord(entry.place).at() else {
            unreachable!("far records are of the log")
        };
        let record = self
            .log
            .fetch(spot)
            .map_err(|error| Failure::far("the value of this key cannot be read", &error))?;
        let before = std::mem::replace(&mut self.scratch, record);
        self.log.far().recycle(before);
        self.stats.fetched += 1;
        value_in(&self.scratch, key)?;
        // A record is cached at its second read, because most records are read only once.
        if entry.has(Flag::TOUCHED) {
            self.cache_scratch(db, name, LocationWord(entry.place));
        } else if let Some(entry) = self.space_mut(db).index.get_mut(name) {
            entry.set(Flag::TOUCHED, true);
        }
        value_in(&self.scratch, key)
    }

    fn cache_scratch(&mut self, db: u8, name: Name, from: LocationWord) {
        let mut copy = self.log.cache(from, &self.scratch);
        if copy.is_none() {
            // Without memory for the cache the value is not cached.
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

    /// Drops the oldest chunk of the cache. Its entries lead to the log again.
    pub(super) fn shrink_cache(&mut self) {
        let Some(oldest) = self.log.oldest_cached() else { return };
        for CachedRecord { cached, from, key, space } in self.log.cached_records(oldest) {
            let name = self.namer.name(&key);
            let entry = self.spaces[usize::from(space)].index.get_mut(name);
            if let Some(entry) = entry.filter(|entry| entry.place == cached.0) {
                entry.place = from.0;
            } else if let Some(entry) =
                self.flushed.iter_mut().find_map(|flushed| flushed.entry_of(space, name, cached))
            {
                entry.place = from.0;
            }
        }
        self.log.drop_cached();
    }

    /// Returns the kind, the bytes and the expiry time of a key's value.
    pub(crate) fn dump(&mut self, db: u8, key: &[u8]) -> Result<Option<Dumped>, Failure> {
        let Some((name, entry)) = self.find(db, key) else { return Ok(None) };
        let bytes = self.bytes_of(db, key, name, entry)?.to_vec();
        Ok(Some((kind_of(&entry), bytes, self.space(db).ends.get(name))))
    }

    /// Sets a key to a value that [`Store::dump`] returned.
    pub(crate) fn restore(
        &mut self,
        db: u8,
        key: &[u8],
        kind: Kind,
        bytes: &[u8],
        end: Option<i64>,
    ) -> Result<(), Failure> {
        super::check_key(key)?;
        self.check_end(db, key, end.map_or(NewExpiry::Never, NewExpiry::At))?;
        if let (Kind::Item, Some((head, _))) = (kind, Head::parse(bytes)) {
            self.note_cas(head.cas);
        }
        let name = self.namer.name(key);
        self.before_change(db, name, Some(key));
        self.put_encoded(db, key, name, kind, bytes, bytes.len())?;
        self.follow_ends(db, name, end.map_or(NewExpiry::Never, NewExpiry::At));
        self.touch(db, name);
        Ok(())
    }

    /// Compacts the emptiest far chunk: moves its live records to the tail. Returns false if none is mostly
    /// dead, or if `wanted` eighths of far memory are live.
    pub(crate) fn compact(&mut self, wanted: usize) -> Result<bool, Failure> {
        // Chunks become emptier as long as flushed keys are freed.
        if self.is_reclaiming() {
            return Ok(false);
        }
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

    /// Compacts some chunks while that helps, and returns whether any was compacted. A command waits for no
    /// more than these; the following turns compact the rest.
    fn compact_for_room(&mut self) -> bool {
        if self.reclaim() {
            return true;
        }
        let before = self.stats.compacted;
        for _ in 0..ROOM_CHUNKS {
            if !self.compact(WANTED_WHEN_SHORT).unwrap_or(false) {
                break;
            }
        }
        self.stats.compacted > before
    }

    /// Returns the minimum part of far memory that must be live now, in eighths.
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
                let old = LocationWord::log(number, offset, header.class);
                let Some((entry_place, is_live)) = self.leads_to(header.space, name, old) else { continue };
                let value = &bytes[offset + header.value_from()..offset + header.end()];
                let new = self.log.append(header, key, &[value]).map_err(|full| no_room(&full))?;
                self.moved(header.space, name, entry_place, is_live, new);
                self.log.forget(RecordSpan { chunk: number, offset, len: header.class.len() });
            }
        }
    }

    /// Touches the entries of names that are looked up next. Their lines are far apart, so touching many together
    /// waits for memory only once.
    pub(super) fn look_up_together(&self, names: impl Iterator<Item = (u8, Name)>) {
        let met = names.fold(0, |met, (space, name)| met ^ self.spaces[usize::from(space)].index.touch(name));
        std::hint::black_box(met);
    }

    /// Returns the place that a key's entry has if the record at `old` is live, and whether a collection in
    /// use leads there.
    fn leads_to(&self, space: u8, name: Name, old: LocationWord) -> Option<(LocationWord, bool)> {
        let place = LocationWord(self.spaces[usize::from(space)].index.get(name)?.place);
        match place.at() {
            At::Log(_) => (place == old).then_some((place, false)),
            At::Cache(spot) => (self.log.behind_cache(spot) == old).then_some((place, false)),
            At::Live(number) => (self.live[number].clean == Some(old)).then_some((place, true)),
        }
    }

    fn moved(&mut self, space: u8, name: Name, from: LocationWord, is_live: bool, to: LocationWord) {
        if let (true, At::Live(number)) = (is_live, from.at()) {
            self.live[number].clean = Some(to);
        } else if let Some(entry) = self.spaces[usize::from(space)].index.get_mut(name) {
            // The cached copy stays behind, and is dropped with its chunk.
            entry.place = to.0;
        }
    }
}

/// Returns the value of a record that must be `key`'s.
fn value_in<'a>(record: &'a [u8], key: &[u8]) -> Result<&'a [u8], Failure> {
    let header = Header::parse(record).filter(|header| header.end() <= record.len());
    let header = header
        .ok_or(Failure::text("FARMEMORY the record of this key is damaged: another program changed this server's far memory; write the key anew or delete it"))?;
    if record[HEADER_LEN..header.value_from()] != *key {
        return Err(Failure::text(
            "FARMEMORY the record of this key is another key's: another program changed this server's far memory; write the key anew or delete it",
        ));
    }
    Ok(&record[header.value_from()..header.end()])
}

/// Returns the error reply for a value that can be put nowhere.
pub(super) fn no_room(full: &Full) -> Failure {
    match full {
        Full::Far(error) if is_withheld(error) => Failure::said(format!(
            "FARMEMORY far memory cannot take this value: {error}; {}; then send the command again",
            error.remedy()
        )),
        Full::Far(error) => {
            Failure::said(format!("OOM far memory takes no more: {error}; {}", error.remedy()))
        }
        Full::System(error) => Failure::said(format!("OOM the system has no memory: {error}")),
    }
}
