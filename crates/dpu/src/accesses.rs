//! Parsed accesses of a piece of a connection, packed: the interface between parsers and the prefetcher.
//!
//! Key types: [`Accesses`], a reusable buffer; [`Keys`], the packed keys of one message. Both are bounded.
//! The module does not parse bytes of clients ([`crate::parse`]) and makes no decisions
//! ([`crate::prefetcher`]).

use crate::parse::{Access, Op};
use crate::view::{KeyId, KeySecret};
use alloc::vec::Vec;

/// Maximum key length in bytes. Longer keys are not prefetched.
pub const KEY_LEN_MAX: usize = 1024;
/// Maximum number of buffered accesses.
pub const ACCESSES_MAX: usize = 4096;
/// Maximum number of bytes of their keys.
pub const ACCESS_BYTES_MAX: usize = 256 << 10;

/// The position of a piece in the mirrored traffic. The mirror numbers pieces from 1 over all connections, in
/// order of arrival; 0 if it does not number them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Position(pub u64);

impl Position {
    /// The position in a mirror that does not number its pieces.
    pub const UNKNOWN: Self = Self(0);

    /// Returns true if the host has executed this request, given that it has executed everything up to
    /// `executed`. Always false for an unknown position.
    #[must_use]
    pub const fn is_over(self, executed: Self) -> bool {
        self.0 != 0 && self.0 <= executed.0
    }
}

/// One buffered access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gathered<'a> {
    /// The key's id in the host view.
    pub id: KeyId,
    /// The key.
    pub key: &'a [u8],
    /// The operation on the key.
    pub op: Op,
    /// The position of its request.
    pub position: Position,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    end: u32,
    op: Op,
    position: Position,
}

/// Accesses in the order of their bytes.
#[derive(Debug)]
pub struct Accesses {
    secret: KeySecret,
    bytes: Vec<u8>,
    ids: Vec<KeyId>,
    entries: Vec<Entry>,
}

impl Accesses {
    /// Returns an empty buffer. Keys get their [`KeyId`] with this secret.
    #[must_use]
    pub const fn new(secret: KeySecret) -> Self {
        Self { secret, bytes: Vec::new(), ids: Vec::new(), entries: Vec::new() }
    }

    /// Returns the secret of the key ids.
    #[must_use]
    pub const fn secret(&self) -> KeySecret {
        self.secret
    }

    /// Appends an access. Returns false without effect if the key is longer than [`KEY_LEN_MAX`] or there is
    /// no room: then the access is not seen.
    pub fn push(&mut self, access: Access<'_>, position: Position) -> bool {
        let fits = access.key.len() <= KEY_LEN_MAX
            && self.entries.len() < ACCESSES_MAX
            && self.bytes.len() + access.key.len() <= ACCESS_BYTES_MAX;
        if fits {
            self.bytes.extend_from_slice(access.key);
            let end = u32::try_from(self.bytes.len()).expect("a bounded number");
            self.ids.push(self.secret.id(access.key));
            self.entries.push(Entry { end, op: access.op, position });
        }
        fits
    }

    /// Returns all accesses.
    pub fn iter(&self) -> impl Iterator<Item = Gathered<'_>> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Returns the ids of the keys.
    #[must_use]
    pub fn ids(&self) -> &[KeyId] {
        &self.ids
    }

    /// Returns one access.
    ///
    /// # Panics
    ///
    /// If `index` is out of range.
    #[must_use]
    pub fn get(&self, index: usize) -> Gathered<'_> {
        let from = index.checked_sub(1).map_or(0, |before| self.entries[before].end as usize);
        let Entry { end, op, position } = self.entries[index];
        Gathered { id: self.ids[index], key: &self.bytes[from..end as usize], op, position }
    }

    /// Returns the number of accesses.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes all accesses; the memory is kept.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ids.clear();
        self.entries.clear();
    }
}

/// The concatenated keys of one message.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Keys {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Keys {
    /// Appends a key.
    ///
    /// # Panics
    ///
    /// If the keys exceed 4 GiB.
    pub fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(u32::try_from(self.bytes.len()).expect("keys of a message"));
    }

    /// Returns the keys.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Returns one key, counted from 0.
    ///
    /// # Panics
    ///
    /// If `index` is out of range.
    #[must_use]
    pub fn get(&self, index: usize) -> &[u8] {
        let from = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.bytes[from..self.ends[index] as usize]
    }

    /// Returns the number of keys.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the number of bytes of all keys.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// Accesses come out in order; one that is too long or exceeds the room is refused without effect.
    #[test]
    fn what_fits_is_kept_in_order() {
        let mut accesses = Accesses::new(KeySecret([1, 2]));
        let access = |key| Access { key, op: Op::Read };
        assert!(accesses.push(access(b"one"), Position(4)));
        assert!(accesses.push(Access { key: b"", op: Op::Delete }, Position(5)));
        assert!(!accesses.push(access(&[0; KEY_LEN_MAX + 1]), Position(6)));
        let seen: Vec<_> = accesses.iter().map(|one| (one.key, one.op, one.position.0)).collect();
        assert_eq!(seen, [(&b"one"[..], Op::Read, 4), (&b""[..], Op::Delete, 5)]);
        accesses.clear();
        assert!(accesses.is_empty());
        for _ in 0..ACCESSES_MAX {
            assert!(accesses.push(access(b"k"), Position(1)));
        }
        assert!(!accesses.push(access(b"k"), Position(1)));
        accesses.clear();
        let long = vec![7; KEY_LEN_MAX];
        let pushed = (0..ACCESSES_MAX).take_while(|_| accesses.push(access(&long), Position(1))).count();
        assert_eq!(pushed, ACCESS_BYTES_MAX / KEY_LEN_MAX);
    }

    #[test]
    fn keys_come_out_as_they_went_in() {
        let mut keys = Keys::default();
        ["a", "", "ccc"].iter().for_each(|key| keys.push(key.as_bytes()));
        assert_eq!(keys.iter().collect::<Vec<_>>(), [&b"a"[..], b"", b"ccc"]);
        assert_eq!((keys.len(), keys.bytes(), keys.get(2)), (3, 4, &b"ccc"[..]));
    }

    /// An unknown position is never over.
    #[test]
    fn unknown_positions_are_never_over() {
        assert!(!Position::UNKNOWN.is_over(Position(9)));
        assert!(Position(9).is_over(Position(9)));
        assert!(!Position(10).is_over(Position(9)));
    }
}
