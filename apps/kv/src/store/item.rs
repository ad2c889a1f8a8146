//! Strings as memcached has them: with flags, a number that each change gives anew, and marks.
//!
//! Key types: [`Head`], the bytes in front of such a string; [`Item`], a string as a memcached client sees it. A string that a Redis client wrote has no head: its flags are 0, and its number
//! follows from its bytes. A Redis client reads an item's bytes, and makes a plain string of what it writes.

use super::index::Flag;
use super::{Ends, Kind, Store, check_key, kind_of};
use crate::failure::Failure;
use siphasher::sip::SipHasher13;
use std::hash::Hasher as _;

/// Bytes of a head.
pub(super) const HEAD_LEN: usize = 13;

/// What stands in front of an item's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Head {
    /// What the client keeps beside the value.
    pub(crate) flags: u32,
    /// The number of the change that wrote it; no other change of any item has it.
    pub(crate) cas: u64,
    /// [`Head::STALE`] and its like.
    pub(crate) marks: u8,
}

impl Head {
    /// It was marked as out of date, and is answered until somebody writes it anew.
    pub(crate) const STALE: u8 = 1;
    /// A client was told to write it anew.
    pub(crate) const TOKEN_SENT: u8 = 2;
    /// Its key came in base64.
    pub(crate) const BINARY_KEY: u8 = 4;
    /// It had been asked for when it was written.
    pub(crate) const FETCHED: u8 = 8;

    pub(crate) const fn has(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    pub(crate) fn emit(self) -> [u8; HEAD_LEN] {
        let mut bytes = [0; HEAD_LEN];
        bytes[..4].copy_from_slice(&self.flags.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.cas.to_le_bytes());
        bytes[12] = self.marks;
        bytes
    }

    /// The head that bytes begin with, and what stands behind it; `None` when they are too few.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_LEN>()?;
        let (flags, cas) = (head.first_chunk()?, head[4..].first_chunk()?);
        Some((
            Self { flags: u32::from_le_bytes(*flags), cas: u64::from_le_bytes(*cas), marks: head[12] },
            rest,
        ))
    }
}

/// A string as a memcached client sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<'a> {
    pub(crate) head: Head,
    /// When it ends, in milliseconds since 1970.
    pub(crate) end: Option<i64>,
    /// It was asked for before.
    pub(crate) fetched: bool,
    /// Seconds since it was used.
    pub(crate) idle: u32,
    pub(crate) data: &'a [u8],
}

impl Item<'_> {
    /// When it is to end, written anew: as it does. Not [`Ends::Keep`], for the write may evict the item itself, and nothing would be left to keep.
    pub(crate) fn kept(&self) -> Ends {
        self.end.map_or(Ends::Never, Ends::At)
    }
}

/// The bytes of a string behind its head, if its kind has one.
pub(super) fn without_head(kind: Kind, bytes: &[u8]) -> Result<&[u8], Failure> {
    if kind != Kind::Item {
        return Ok(bytes);
    }
    Head::parse(bytes)
        .map(|(_, data)| data)
        .ok_or(Failure::text("FARMEMORY what is there is no item: far memory was changed by others"))
}

impl Store {
    /// The number of the next change of an item. None is behind the clock's: over a restart none comes twice, also where the item that had it is gone.
    pub(crate) fn next_cas(&mut self) -> u64 {
        let least = u64::try_from(self.now).unwrap_or(0).saturating_mul(1000);
        self.cas = (self.cas + 1).max(least);
        self.cas
    }

    /// Numbers up to this one are taken.
    pub(super) fn note_cas(&mut self, cas: u64) {
        self.cas = self.cas.max(cas);
    }

    /// The string of a key with what memcached's clients ask of it; `touches` when it counts as used.
    ///
    /// # Errors
    /// [`Failure::WrongType`] of a collection, and what far memory says.
    pub(crate) fn item(&mut self, db: u8, key: &[u8], touches: bool) -> Result<Option<Item<'_>>, Failure> {
        let used = self.space(db).index.get(self.name(key)).map(super::Entry::used);
        let Some((name, entry)) = self.find_string(db, key)? else { return Ok(None) };
        let fetched = entry.has(Flag::FETCHED);
        let idle = super::clock(self.now).saturating_sub(used.unwrap_or(0));
        if let Some(entry) = self.space_mut(db).index.get_mut(name) {
            if touches {
                entry.set(Flag::FETCHED, true);
            } else {
                entry.set_used(used.unwrap_or(0));
            }
        }
        let end = self.space(db).ends.get(&name).copied();
        let bytes = self.bytes_of(db, key, name, entry)?;
        let (head, data) = if kind_of(&entry) == Kind::Item {
            Head::parse(bytes).ok_or(Failure::text(
                "FARMEMORY what is there is no item: far memory was changed by others",
            ))?
        } else {
            (Head { cas: number_of(bytes), ..Head::default() }, bytes)
        };
        let fetched = fetched || head.has(Head::FETCHED);
        Ok(Some(Item { head, end, fetched, idle, data }))
    }

    /// The item counts as asked for; its value is not looked at.
    pub(crate) fn note_fetched(&mut self, db: u8, key: &[u8]) {
        let name = self.namer.name(key);
        if let Some(entry) = self.space_mut(db).index.get_mut(name) {
            entry.set(Flag::FETCHED, true);
        }
    }

    /// Puts an item in the place of whatever the key had.
    pub(crate) fn set_item(
        &mut self,
        db: u8,
        key: &[u8],
        head: Head,
        data: &[u8],
        ends: Ends,
    ) -> Result<(), Failure> {
        check_key(key)?;
        self.note_cas(head.cas);
        let name = self.namer.name(key);
        self.before_change(db, name, Some(key));
        let mut whole = std::mem::take(&mut self.joined);
        whole.clear();
        whole.extend_from_slice(&head.emit());
        whole.extend_from_slice(data);
        let put = if self.set_in_place(db, key, name, Kind::Item, &whole) {
            Ok(())
        } else {
            self.put_encoded(db, key, name, Kind::Item, &whole, whole.len())
        };
        whole.shrink_to(super::CHUNK);
        self.joined = whole;
        put?;
        if let Some(entry) = self.space_mut(db).index.get_mut(name) {
            entry.set(Flag::FETCHED, false);
        }
        self.follow_ends(db, name, ends);
        self.touch(db, name);
        Ok(())
    }
}

/// A number that follows from a plain string's bytes: it changes when they do.
fn number_of(bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(bytes);
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_back() {
        let head = Head { flags: 7, cas: u64::MAX - 1, marks: Head::STALE | Head::BINARY_KEY };
        let bytes = [&head.emit()[..], b"data"].concat();
        assert_eq!(Head::parse(&bytes), Some((head, &b"data"[..])));
        assert_eq!(Head::parse(&bytes[..HEAD_LEN - 1]), None);
    }
}
