//! Strings as memcached has them: with flags, a number that each change replaces, and marks.
//!
//! Key types: [`Head`], the bytes in front of such a string; [`Item`], a string as a memcached client sees
//! it. A string that a Redis client wrote has no head: its flags are 0, and its number is a hash of its
//! bytes. A Redis client reads an item's bytes, and writes plain strings.

use super::frequency::clock;
use super::index::{Entry, Flag, Name};
use super::{Kind, NewExpiry, Store, check_key, kind_of};
use crate::failure::Failure;
use siphasher::sip::SipHasher13;
use std::hash::Hasher as _;

/// Bytes of a head.
pub(super) const HEAD_LEN: usize = 13;

/// The head in front of an item's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Head {
    /// The client's flags.
    pub(crate) flags: u32,
    /// The number of the change that wrote the item, unique among all changes.
    pub(crate) cas: u64,
    /// The marks: [`Head::STALE`] and its like.
    pub(crate) marks: u8,
}

impl Head {
    /// The item is stale, and stays until a client writes it again.
    pub(crate) const STALE: u8 = 1;
    /// A client must write the item again.
    pub(crate) const TOKEN_SENT: u8 = 2;
    /// The key came in base64.
    pub(crate) const BINARY_KEY: u8 = 4;
    /// The item had been read when it was written.
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

    /// Splits bytes into the head and the data behind it; `None` if they are too short.
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
    /// The expiry time, in milliseconds since 1970.
    pub(crate) end: Option<i64>,
    /// A client has read the item.
    pub(crate) fetched: bool,
    /// Seconds since the last use.
    pub(crate) idle: u32,
    pub(crate) data: &'a [u8],
}

impl Item<'_> {
    /// Returns the expiry time for writing the item again. Not [`NewExpiry::Keep`], because the write may evict
    /// the item, and its time with it.
    pub(crate) fn kept(&self) -> NewExpiry {
        self.end.map_or(NewExpiry::Never, NewExpiry::At)
    }
}

/// Returns the bytes of a string behind its head, if its kind has one.
pub(super) fn without_head(kind: Kind, bytes: &[u8]) -> Result<&[u8], Failure> {
    if kind != Kind::Item {
        return Ok(bytes);
    }
    Head::parse(bytes)
        .map(|(_, data)| data)
        .ok_or(Failure::text("FARMEMORY the item of this key is damaged: another program changed this server's far memory; write the key anew or delete it"))
}

impl Store {
    /// Finds the entry of a string, and counts a hit or a miss.
    fn find_string(&mut self, db: u8, key: &[u8]) -> Result<Option<(Name, Entry)>, Failure> {
        let Some(found) = self.find(db, key) else {
            self.stats.misses += 1;
            return Ok(None);
        };
        self.stats.hits += 1;
        if kind_of(&found.1).is_string() { Ok(Some(found)) } else { Err(Failure::WrongType) }
    }

    /// Returns the string of a key.
    pub(crate) fn string(&mut self, db: u8, key: &[u8]) -> Result<Option<&[u8]>, Failure> {
        let Some((name, entry)) = self.find_string(db, key)? else { return Ok(None) };
        without_head(kind_of(&entry), self.bytes_of(db, key, name, entry)?).map(Some)
    }

    /// Returns the number of the next change. Numbers begin at the clock's time, so none comes twice over a
    /// restart, even if the item with the last one is gone.
    pub(crate) fn next_cas(&mut self) -> u64 {
        let least = u64::try_from(self.now).unwrap_or(0).saturating_mul(1000);
        self.cas = (self.cas + 1).max(least);
        self.cas
    }

    /// Notes a number that is in use.
    pub(super) fn note_cas(&mut self, cas: u64) {
        self.cas = self.cas.max(cas);
    }

    /// Returns the item of a key. With `touches`, the read counts as a use.
    ///
    /// # Errors
    ///
    /// [`Failure::WrongType`] for a collection, and errors of far memory.
    pub(crate) fn item(&mut self, db: u8, key: &[u8], touches: bool) -> Result<Option<Item<'_>>, Failure> {
        let used = self.space(db).index.get(self.name(key)).map(Entry::used);
        let Some((name, entry)) = self.find_string(db, key)? else { return Ok(None) };
        let fetched = entry.has(Flag::FETCHED);
        let idle = clock(self.now).saturating_sub(used.unwrap_or(0));
        if let Some(entry) = self.space_mut(db).index.get_mut(name) {
            if touches {
                entry.set(Flag::FETCHED, true);
            } else {
                entry.set_used(used.unwrap_or(0));
            }
        }
        let end = self.space(db).ends.get(name);
        let bytes = self.bytes_of(db, key, name, entry)?;
        let (head, data) = if kind_of(&entry) == Kind::Item {
            Head::parse(bytes).ok_or(Failure::text(
                "FARMEMORY the item of this key is damaged: another program changed this server's far memory; write the key anew or delete it",
            ))?
        } else {
            (Head { cas: number_of(bytes), ..Head::default() }, bytes)
        };
        let fetched = fetched || head.has(Head::FETCHED);
        Ok(Some(Item { head, end, fetched, idle, data }))
    }

    /// Marks an item as read, without reading it.
    pub(crate) fn note_fetched(&mut self, db: u8, key: &[u8]) {
        let name = self.namer.name(key);
        if let Some(entry) = self.space_mut(db).index.get_mut(name) {
            entry.set(Flag::FETCHED, true);
        }
    }

    /// Sets a key's value to an item.
    pub(crate) fn set_item(
        &mut self,
        db: u8,
        key: &[u8],
        head: Head,
        data: &[u8],
        ends: NewExpiry,
    ) -> Result<(), Failure> {
        check_key(key)?;
        self.check_end(db, key, ends)?;
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

/// Returns a number that follows from a plain string's bytes, and changes with them.
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
