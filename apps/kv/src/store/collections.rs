//! Collections and long values in use: loaded into local memory, changed there, and written back into the log.

use super::index::{Entry, Flag, Name};
use super::live::{Live, LiveValue};
use super::place::{At, LocationWord};
use super::value::Value;
use super::{Kind, Store, kind_of};
use crate::failure::Failure;
use std::collections::BTreeSet;

impl Store {
    pub(super) fn keep_live(&mut self, live: Live) -> usize {
        self.live_bytes += live.bytes;
        self.live.insert(live)
    }

    pub(super) fn live_key(&self, number: usize) -> &[u8] {
        &self.live[number].key
    }

    /// Returns the bytes of collections in use.
    pub(crate) const fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    pub(super) fn release_live(&mut self, number: usize) {
        let live = self.live.remove(number);
        self.live_bytes -= live.bytes;
        if let LiveValue::Pieces(pieces, _) = live.value {
            pieces.into_iter().for_each(|piece| self.log.forget_piece(piece));
        }
        self.release_clean(live.clean);
    }

    /// Returns the length of a value in use as a record, approximately.
    pub(super) fn live_len(&self, number: usize) -> usize {
        match &self.live[number].value {
            LiveValue::Collection(_) => self.live[number].bytes,
            LiveValue::Pieces(_, len) => *len,
        }
    }

    /// Returns whether a piece of a long value is in a lost chunk.
    pub(super) fn is_lost(&self, number: usize, lost: &BTreeSet<usize>) -> bool {
        match &self.live[number].value {
            LiveValue::Collection(_) => false,
            LiveValue::Pieces(pieces, _) => pieces.iter().any(|piece| lost.contains(piece)),
        }
    }

    fn release_clean(&mut self, clean: Option<LocationWord>) {
        if let Some(At::Log(spot)) = clean.map(LocationWord::at) {
            self.log.forget(spot);
        }
    }

    /// Appends the bytes of a value in use, as a record has them.
    pub(super) fn encode_live(&mut self, number: usize, into: &mut Vec<u8>) -> Result<(), Failure> {
        let pieces = match &self.live[number].value {
            LiveValue::Collection(value) => {
                value.encode(into);
                return Ok(());
            }
            LiveValue::Pieces(pieces, len) => {
                into.reserve(*len);
                pieces.clone()
            }
        };
        let read = self.log.read_pieces(&pieces, into);
        read.map_err(|error| Failure::far("a piece of this value cannot be read", &error))
    }

    /// Returns the collection of a key, and loads it if it is not in use; `None` without such a key.
    pub(crate) fn collection(
        &mut self,
        db: u8,
        key: &[u8],
        kind: Option<Kind>,
    ) -> Result<Option<&Value>, Failure> {
        let Some((name, entry)) = self.find(db, key) else {
            self.stats.misses += 1;
            return Ok(None);
        };
        self.stats.hits += 1;
        let has = kind_of(&entry);
        if has.is_string() || kind.is_some_and(|kind| kind != has) {
            return Err(Failure::WrongType);
        }
        let number = self.bring(db, key, name, entry)?;
        Ok(Some(self.value_at(number)))
    }

    fn value_at(&self, number: usize) -> &Value {
        match &self.live[number].value {
            LiveValue::Collection(value) => value,
            LiveValue::Pieces(..) => unreachable!("a collection was brought here"),
        }
    }

    /// Changes the collection of a key. Creates a missing one if `make` is true, and removes one that becomes
    /// empty. Returns `None` without such a key.
    pub(crate) fn change<R>(
        &mut self,
        db: u8,
        key: &[u8],
        kind: Kind,
        make: bool,
        change: impl FnOnce(&mut Value) -> (R, bool),
    ) -> Result<Option<R>, Failure> {
        let number = match self.find(db, key) {
            Some((_, entry)) if kind_of(&entry) != kind => return Err(Failure::WrongType),
            Some((name, entry)) => {
                self.before_change(db, name, Some(key));
                self.bring(db, key, name, entry)?
            }
            None if !make => return Ok(None),
            None => self.make(db, key, kind)?,
        };
        let added = std::mem::take(&mut self.incoming);
        if self.check_len(number, added).is_err() {
            // The collection may be smaller than the last count.
            self.live_bytes -= self.live[number].bytes;
            self.live[number].count();
            self.live_bytes += self.live[number].bytes;
            self.check_len(number, added)?;
        }
        let live = &mut self.live[number];
        let LiveValue::Collection(value) = &mut live.value else {
            unreachable!("a collection was brought here")
        };
        let (result, changed) = change(value);
        let (is_empty, name) = (value.len() == 0, live.name);
        if changed {
            self.live_bytes -= live.bytes;
            live.count_change(added);
            self.live_bytes += live.bytes;
            let clean = live.clean.take();
            self.release_clean(clean);
            self.touch(db, name);
        }
        if is_empty {
            self.take_out(db, name);
        }
        Ok(Some(result))
    }

    /// Refuses a new collection of this many bytes if there is no room. A command that changes two keys calls this
    /// first, so that it changes both or none.
    pub(crate) fn check_makes(&self, key: &[u8], bytes: usize) -> Result<(), Failure> {
        super::check_key(key)?;
        self.check_room()?;
        if bytes > self.memory.local / BRING_SHARE { Err(self.too_long(bytes)) } else { Ok(()) }
    }

    /// Refuses [`Store::incoming`] more bytes for the collection of a key, when that is too much.
    pub(crate) fn check_grows(&self, db: u8, key: &[u8]) -> Result<(), Failure> {
        let entry = self.space(db).index.get(self.namer.name(key));
        match entry.map(|entry| LocationWord(entry.place).at()) {
            Some(At::Live(number)) => self.check_len(number, self.incoming),
            _ => Ok(()),
        }
    }

    /// Refuses a collection that would take more than its part of local memory, because it could not be
    /// loaded again.
    fn check_len(&self, number: usize, added: usize) -> Result<(), Failure> {
        let bytes = self.live[number].bytes + added;
        if added > 0 && !self.loading && bytes > self.memory.local / BRING_SHARE {
            Err(self.too_long(bytes))
        } else {
            Ok(())
        }
    }

    fn too_long(&self, bytes: usize) -> Failure {
        Failure::said(format!(
            "OOM the collection of this key would take {bytes} bytes of local memory, and one may take {}: a {BRING_SHARE}th of --local; start with a larger --local",
            self.memory.local / BRING_SHARE
        ))
    }

    fn make(&mut self, db: u8, key: &[u8], kind: Kind) -> Result<usize, Failure> {
        self.check_makes(key, self.incoming)?;
        let (name, space) = (self.namer.name(key), self.spaces_of[usize::from(db)]);
        let number = self.keep_live(Live::new(LiveValue::Collection(Value::new(kind)), key, space, name));
        let mut entry = Entry::new(name, LocationWord::live(number).0, kind as u8);
        entry.set(Flag::PARITY, self.parity);
        entry.set_used(self.use_now().first());
        self.space_mut(db).index.put(entry);
        Ok(number)
    }

    /// Loads a collection, if it is not in use.
    fn bring(&mut self, db: u8, key: &[u8], name: Name, entry: Entry) -> Result<usize, Failure> {
        let place = LocationWord(entry.place);
        if let At::Live(number) = place.at()
            && matches!(self.live[number].value, LiveValue::Collection(_))
        {
            self.live[number].used = true;
            return Ok(number);
        }
        let kind = kind_of(&entry);
        if let At::Live(number) = place.at() {
            // The collection's bytes, and the structure that they become.
            self.give_way(BROUGHT_TIMES * self.live_len(number));
        }
        let (bytes, most) = (self.bytes_of(db, key, name, entry)?, BRING_SHARE);
        let (len, value) = (bytes.len(), Value::decode(kind, bytes));
        let value = value.ok_or(Failure::text(
            "FARMEMORY the collection of this key is damaged: another program changed this server's far memory; write the key anew or delete it",
        ))?;
        let space = self.spaces_of[usize::from(db)];
        let mut live = Live::new(LiveValue::Collection(value), key, space, name);
        if live.bytes > self.memory.local / most + BRING_SLACK {
            return Err(Failure::said(format!(
                "OOM the collection of this key has {len} bytes and takes {} of local memory; --local must be {most} times that",
                live.bytes
            )));
        }
        // Commands of one turn may use many collections, so others leave before this one is counted.
        let live_max = self.live_max();
        if self.live_bytes + live.bytes > live_max {
            let shrunk = self.shrink_live(live_max.saturating_sub(live.bytes));
            if self.live_bytes + live.bytes > self.left() {
                shrunk?;
            }
        }
        // The read may have cached a copy, and compaction may have moved the record.
        let now = self.space(db).index.get(name).expect("it was found a moment ago").place;
        live.clean = match LocationWord(now).at() {
            At::Log(_) => Some(LocationWord(now)),
            At::Cache(spot) => Some(self.log.behind_cache(spot)),
            At::Live(_) => None,
        };
        let number = self.keep_live(live);
        if let At::Live(pieces) = LocationWord(now).at() {
            self.release_live(pieces);
        }
        if let Some(entry) = self.space_mut(db).index.get_mut(name) {
            entry.place = LocationWord::live(number).0;
        }
        Ok(number)
    }

    /// Moves idle collections into the log, until those in use take at most `most` bytes.
    pub(crate) fn shrink_live(&mut self, most: usize) -> Result<(), Failure> {
        let mut looked_at = 0;
        while self.live_bytes > most && looked_at < 2 * self.live.capacity() {
            looked_at += 1;
            self.hand = if self.hand >= self.live.capacity() { 0 } else { self.hand };
            let number = self.hand;
            self.hand += 1;
            let Some(live) = self.live.get_mut(number) else { continue };
            if live.is_flushed
                || matches!(live.value, LiveValue::Pieces(..))
                || std::mem::take(&mut live.used)
            {
                continue;
            }
            self.put_back(number)?;
        }
        Ok(())
    }

    /// Frees unused places of collections, if most places are unused.
    pub(super) fn shrink_live_places(&mut self) {
        let Self { live, spaces, flushed, .. } = self;
        // Flushed entries lead to their collections by number.
        if live.capacity() <= PLACES_MIN || live.len() * 4 > live.capacity() || !flushed.is_empty() {
            return;
        }
        live.compact(|live, _, to| {
            if let Some(entry) = spaces[usize::from(live.space)].index.get_mut(live.name) {
                entry.place = LocationWord::live(to).0;
            }
            true
        });
    }

    /// Moves a collection in use into the log.
    fn put_back(&mut self, number: usize) -> Result<(), Failure> {
        let live = &self.live[number];
        let (name, space) = (live.name, live.space);
        let db = self.spaces_of.iter().position(|&other| other == space).expect("each space has a database");
        let db = u8::try_from(db).expect("few databases");
        let place = match live.clean {
            Some(place) => place,
            None => {
                let (key, mut bytes) = (live.key.clone(), Vec::new());
                self.give_way(self.live_len(number));
                self.encode_live(number, &mut bytes)?;
                let kind = Kind::of(self.space(db).index.get(name).expect("it is in use").kind());
                // This is allowed when local memory is full, because it frees some.
                self.append_now(
                    db,
                    &key,
                    name,
                    kind.expect("entries have kinds of values"),
                    &bytes,
                    bytes.len(),
                )?
            }
        };
        self.live[number].clean = None;
        self.release_live(number);
        if let Some(entry) = self.space_mut(db).index.get_mut(name) {
            entry.place = place.0;
        }
        Ok(())
    }
}

/// Places of collections that are always kept.
const PLACES_MIN: usize = 1024;
/// Bytes of a collection's key and head, which are not checked before it grows.
const BRING_SLACK: usize = super::KEY_LEN_MAX + 1024;
/// Bytes of local memory that loading takes, for each byte of a collection.
const BROUGHT_TIMES: usize = 4;
/// The part of local memory that one collection may take.
const BRING_SHARE: usize = 4;
