//! Collections that are in use, and large values: what the log has no record of, or one that is not looked at.

use super::index::{Entry, Flag, Name};
use super::place::{At, Place};
use super::value::Value;
use super::{Kind, Store, Text, kind_of};
use crate::failure::Failure;
use std::collections::BTreeSet;

/// What an entry leads to that is no record.
#[derive(Debug)]
pub(super) enum What {
    Collection(Value),
    /// The numbers of a long value's pieces, and its bytes.
    Pieces(Vec<usize>, usize),
}

/// Something in use.
#[derive(Debug)]
pub(super) struct Live {
    what: What,
    key: Text,
    space: u8,
    name: Name,
    /// Bytes that it takes here, as counted last.
    bytes: usize,
    /// Bytes that it took when its elements were looked at last, and how many these were; since then what was added is added.
    counted: (usize, usize),
    /// Where the log has the same, if it does.
    pub(super) clean: Option<Place>,
    /// It was used since the search for what may go came by.
    used: bool,
}

impl Live {
    pub(super) fn new(what: What, key: &[u8], space: u8, name: Name) -> Self {
        let mut live =
            Self { what, key: key.into(), space, name, bytes: 0, counted: (0, 0), clean: None, used: true };
        live.count();
        live
    }

    fn count(&mut self) {
        let (bytes, len) = match &self.what {
            What::Collection(value) => (value.bytes(), value.len()),
            What::Pieces(pieces, _) => (pieces.len() * 8, 0),
        };
        self.bytes = bytes + self.key.len() + 96;
        self.counted = (self.bytes, len);
    }

    /// Counts a change that added so many bytes at most. All elements are looked at when they are few, or when what was added is much beside what there was; so the count is
    /// never too small, but for what went.
    fn count_change(&mut self, added: usize) {
        let What::Collection(value) = &self.what else { return };
        self.bytes += added;
        let (bytes, len) = self.counted;
        if value.len() <= 16 || self.bytes > bytes + bytes / 4 || value.len().abs_diff(len) > len / 4 {
            self.count();
        }
    }
}

impl Store {
    pub(super) fn keep_live(&mut self, live: Live) -> usize {
        self.live_bytes += live.bytes;
        self.live.insert(live)
    }

    pub(super) fn live_key(&self, number: usize) -> &[u8] {
        &self.live[number].key
    }

    /// Bytes that collections in use take here.
    pub(crate) const fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    pub(super) fn release_live(&mut self, number: usize) {
        let live = self.live.remove(number);
        self.live_bytes -= live.bytes;
        if let What::Pieces(pieces, _) = live.what {
            pieces.into_iter().for_each(|piece| self.log.forget_piece(piece));
        }
        self.release_clean(live.clean);
    }

    /// Bytes of a value that is in use or in pieces, as the log would have them, nearly.
    pub(super) fn live_len(&self, number: usize) -> usize {
        match &self.live[number].what {
            What::Collection(_) => self.live[number].bytes,
            What::Pieces(_, len) => *len,
        }
    }

    /// True of a long value of which a piece is in a lost chunk.
    pub(super) fn is_lost(&self, number: usize, lost: &BTreeSet<usize>) -> bool {
        match &self.live[number].what {
            What::Collection(_) => false,
            What::Pieces(pieces, _) => pieces.iter().any(|piece| lost.contains(piece)),
        }
    }

    fn release_clean(&mut self, clean: Option<Place>) {
        if let Some(At::Log(spot)) = clean.map(Place::at) {
            self.log.forget(spot);
        }
    }

    /// Appends the bytes of a value in use, as the log would have them.
    pub(super) fn encode_live(&mut self, number: usize, into: &mut Vec<u8>) -> Result<(), Failure> {
        let pieces = match &self.live[number].what {
            What::Collection(value) => {
                value.encode(into);
                return Ok(());
            }
            What::Pieces(pieces, len) => {
                into.reserve(*len);
                pieces.clone()
            }
        };
        let read = self.log.read_pieces(&pieces, into);
        read.map_err(|error| Failure::far("a piece of this value cannot be read", &error))
    }

    /// The collection of a key, brought here when it was not; `None` without such a key.
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
        match &self.live[number].what {
            What::Collection(value) => value,
            What::Pieces(..) => unreachable!("a collection was brought here"),
        }
    }

    /// Changes the collection of a key, which is made when it is not there and `make` says so. One that is empty afterwards goes. `None` without such a key.
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
            // It may have become shorter since it was counted.
            self.live_bytes -= self.live[number].bytes;
            self.live[number].count();
            self.live_bytes += self.live[number].bytes;
            self.check_len(number, added)?;
        }
        let live = &mut self.live[number];
        let What::Collection(value) = &mut live.what else { unreachable!("a collection was brought here") };
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

    /// Refuses a key when there is no room for a collection of so many bytes. A command that changes one key before another asks first, so that it does both or nothing.
    pub(crate) fn check_makes(&self, key: &[u8], bytes: usize) -> Result<(), Failure> {
        super::check_key(key)?;
        self.check_room()?;
        if bytes > self.memory.local / BRING_SHARE { Err(self.too_long(bytes)) } else { Ok(()) }
    }

    /// Refuses what would add [`Store::incoming`] bytes to the collection of a key, when that is too much.
    pub(crate) fn check_grows(&self, db: u8, key: &[u8]) -> Result<(), Failure> {
        let entry = self.space(db).index.get(self.namer.name(key));
        match entry.map(|entry| Place(entry.place).at()) {
            Some(At::Live(number)) => self.check_len(number, self.incoming),
            _ => Ok(()),
        }
    }

    /// Refuses a collection that would take more than its part of local memory: one that is let grow so far could not be brought here again.
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
        let number = self.keep_live(Live::new(What::Collection(Value::new(kind)), key, space, name));
        let mut entry = Entry::new(name, Place::live(number).0, kind as u8);
        entry.set(Flag::PARITY, self.parity);
        entry.set_used(self.use_now().first());
        self.space_mut(db).index.put(entry);
        Ok(number)
    }

    /// Makes a structure of a collection's bytes, unless it is one.
    fn bring(&mut self, db: u8, key: &[u8], name: Name, entry: Entry) -> Result<usize, Failure> {
        let place = Place(entry.place);
        if let At::Live(number) = place.at()
            && matches!(self.live[number].what, What::Collection(_))
        {
            self.live[number].used = true;
            return Ok(number);
        }
        let kind = kind_of(&entry);
        if let At::Live(number) = place.at() {
            // Its bytes, and what is made of them.
            self.give_way(BROUGHT_TIMES * self.live_len(number));
        }
        let (bytes, most) = (self.bytes_of(db, key, name, entry)?, BRING_SHARE);
        let (len, value) = (bytes.len(), Value::decode(kind, bytes));
        let value = value.ok_or(Failure::text(
            "FARMEMORY what is there is no collection: far memory was changed by others",
        ))?;
        let space = self.spaces_of[usize::from(db)];
        let mut live = Live::new(What::Collection(value), key, space, name);
        if live.bytes > self.memory.local / most + BRING_SLACK {
            return Err(Failure::said(format!(
                "OOM the collection of this key has {len} bytes and takes {} of local memory; --local must be {most} times that",
                live.bytes
            )));
        }
        // Many may be asked for in one turn: others go before this one is here.
        let live_max = self.live_max();
        if self.live_bytes + live.bytes > live_max {
            let shrunk = self.shrink_live(live_max.saturating_sub(live.bytes));
            if self.live_bytes + live.bytes > self.left() {
                shrunk?;
            }
        }
        // Reading may have put a copy into the cache, and what went may have moved it.
        let now = self.space(db).index.get(name).expect("it was found a moment ago").place;
        live.clean = match Place(now).at() {
            At::Log(_) => Some(Place(now)),
            At::Cache(spot) => Some(self.log.behind_cache(spot)),
            At::Live(_) => None,
        };
        let number = self.keep_live(live);
        if let At::Live(pieces) = Place(now).at() {
            self.release_live(pieces);
        }
        if let Some(entry) = self.space_mut(db).index.get_mut(name) {
            entry.place = Place::live(number).0;
        }
        Ok(number)
    }

    /// Puts collections that were not used of late back into the log, until those that are in use take at most `most` bytes.
    pub(crate) fn shrink_live(&mut self, most: usize) -> Result<(), Failure> {
        let mut looked_at = 0;
        while self.live_bytes > most && looked_at < 2 * self.live.capacity() {
            looked_at += 1;
            self.hand = if self.hand >= self.live.capacity() { 0 } else { self.hand };
            let number = self.hand;
            self.hand += 1;
            let Some(live) = self.live.get_mut(number) else { continue };
            if matches!(live.what, What::Pieces(..)) || std::mem::take(&mut live.used) {
                continue;
            }
            self.put_back(number)?;
        }
        Ok(())
    }

    /// A collection in use becomes bytes in the log again.
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
                // Also when local memory is full: that is what frees some.
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

/// Bytes of a collection's key and its head, which are not looked at before it grows.
const BRING_SLACK: usize = super::KEY_LEN_MAX + 1024;
/// As many bytes are here at most for each of a collection that is made of its bytes.
const BROUGHT_TIMES: usize = 4;
/// A collection takes at most this part of local memory.
const BRING_SHARE: usize = 4;
