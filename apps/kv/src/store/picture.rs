//! A snapshot beside commands: a picture of all keys as they were at one moment.
//!
//! Key type: [`Picture`]. The picture goes through the index in order, some keys at a time. A key that is
//! about to change and is not in the picture yet is taken first. One bit of each entry says whether: if it
//! equals the store's parity, the key is settled (taken, or made after the moment). A new picture inverts the
//! parity, so that no entry is settled; at its end all are.

use super::index::{Entry, Flag, Name};
use super::steps::Picture;
use super::{SPACES, Store, kind_of};
use crate::failure::Failure;

/// Appends a key to a snapshot: database, kind, expiry time, key, value.
pub(crate) fn emit(into: &mut Vec<u8>, db: u8, kind: u8, end: Option<i64>, key: &[u8], value: &[u8]) {
    into.push(db);
    into.push(kind);
    into.extend_from_slice(&end.unwrap_or(i64::MAX).to_le_bytes());
    for text in [key, value] {
        into.extend_from_slice(&(text.len() as u64).to_le_bytes());
        into.extend_from_slice(text);
    }
}

/// A key of a snapshot.
#[derive(Debug)]
pub(crate) struct SnapshotKey<'a> {
    pub(crate) db: u8,
    pub(crate) kind: u8,
    pub(crate) end: Option<i64>,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
}

/// Parses a key that [`emit`] appended; `None` if the bytes are damaged.
pub(crate) fn parse<'a>(bytes: &mut &'a [u8]) -> Option<SnapshotKey<'a>> {
    let (&[db, kind], rest) = bytes.split_first_chunk()?;
    let (end, rest) = rest.split_first_chunk()?;
    let end = Some(i64::from_le_bytes(*end)).filter(|&end| end != i64::MAX);
    let (key, rest) = text(rest)?;
    let (value, rest) = text(rest)?;
    *bytes = rest;
    (usize::from(db) < SPACES).then_some(SnapshotKey { db, kind, end, key, value })
}

fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)
}

/// The part of local memory for keys that are taken because they change, and not written yet. More than that
/// within a turn ends the picture.
const HERE_SHARE: usize = 8;
/// Bytes that such keys may take in any case.
const HERE_LEAST: usize = 1 << 20;

impl Store {
    /// Returns the bytes of keys that were taken and not written yet.
    pub(super) fn picture_bytes(&self) -> usize {
        self.picture.as_ref().map_or(0, |picture| picture.out.capacity())
    }

    /// Begins a picture of this moment.
    ///
    /// # Panics
    ///
    /// When one is under way.
    pub(crate) fn begin_picture(&mut self) {
        assert!(self.picture.is_none(), "one picture at a time");
        self.parity = !self.parity;
        self.pictured = 0;
        self.picture = Some(Picture::default());
    }

    /// Returns the number of keys in the last picture.
    pub(crate) const fn keys_taken(&self) -> u64 {
        self.pictured
    }

    pub(crate) const fn picture(&self) -> Option<&Picture> {
        self.picture.as_ref()
    }

    /// Gives the picture up, and settles all entries: the next picture would take the rest for settled.
    pub(crate) fn drop_picture(&mut self) {
        if self.picture.take().is_some() {
            let parity = self.parity;
            self.spaces
                .iter_mut()
                .for_each(|space| space.index.each(|entry| entry.set(Flag::PARITY, parity)));
        }
    }

    /// Takes keys until there are `bytes` of records. Returns the records, and whether they were the last.
    pub(crate) fn go_on_with_picture(&mut self, bytes: usize) -> Result<(Vec<u8>, bool), Failure> {
        loop {
            let Some(picture) = &mut self.picture else { return Ok((Vec::new(), true)) };
            if picture.out.len() >= bytes {
                return Ok((std::mem::take(&mut picture.out), false));
            }
            let (db, cursor) = (picture.db, picture.cursor);
            let next = self
                .space(db)
                .index
                .from(cursor)
                .find(|entry| entry.has(Flag::PARITY) != self.parity)
                .map(Entry::name);
            let picture = self.picture.as_mut().expect("it is under way");
            match next {
                Some(name) => {
                    picture.cursor = name.hash;
                    let key = self.key_of(db, name)?;
                    self.take(db, name, &key)?;
                }
                None if usize::from(db) + 1 < SPACES => (picture.db, picture.cursor) = (db + 1, 0),
                None => {
                    let out = std::mem::take(&mut picture.out);
                    self.picture = None;
                    return Ok((out, true));
                }
            }
        }
    }

    /// Takes a key into the picture under way, before the key changes.
    pub(super) fn before_change(&mut self, db: u8, name: Name, key: Option<&[u8]>) {
        if self.picture.is_none() {
            return;
        }
        let is_taken = |entry: &Entry| entry.has(Flag::PARITY) == self.parity;
        if self.space(db).index.get(name).is_none_or(is_taken) {
            return;
        }
        let taken = match key {
            Some(key) => self.take(db, name, key),
            None => self.key_of(db, name).and_then(|key| self.take(db, name, &key)),
        };
        // A snapshot needs every key, and must not be in memory as a whole. If that fails, the picture ends, and the
        // change continues.
        let len = self.picture.as_ref().map_or(0, |picture| picture.out.len());
        self.give_way(len);
        if taken.is_err() || len > HERE_LEAST.max(self.memory.local / HERE_SHARE) {
            self.drop_picture();
        }
    }

    fn take(&mut self, db: u8, name: Name, key: &[u8]) -> Result<(), Failure> {
        let entry = *self.space(db).index.get(name).expect("it is looked up before");
        let end = self.space(db).ends.get(name);
        let mut out = std::mem::take(&mut self.picture.as_mut().expect("it is under way").out);
        let read = self.bytes_of(db, key, name, entry).map(|value| {
            emit(&mut out, db, kind_of(&entry) as u8, end, key, value);
        });
        let picture = self.picture.as_mut().expect("it is under way");
        picture.out = out;
        read?;
        picture.keys += 1;
        self.pictured = picture.keys;
        let parity = self.parity;
        if let Some(entry) = self.space_mut(db).index.get_mut(name) {
            entry.set(Flag::PARITY, parity);
        }
        Ok(())
    }
}
