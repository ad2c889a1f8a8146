//! The accesses that a parser said of a piece of a connection, packed: what goes from parsers to the prefetcher.
//!
//! Key types: [`Accesses`], which is filled and emptied again and again; [`Keys`], the packed keys of one message. Both are bounded.
//!
//! What it does not do: read bytes of clients ([`crate::parse`]), or decide ([`crate::prefetcher`]).

use crate::parse::{Access, Op};
use crate::view::{KeyId, KeySecret};
use alloc::vec::Vec;

/// Bytes of a key at most. Longer ones are not prefetched.
pub const KEY_LEN_MAX: usize = 1024;
/// Accesses that are gathered at most.
pub const ACCESSES_MAX: usize = 4096;
/// Bytes of their keys at most.
pub const ACCESS_BYTES_MAX: usize = 256 << 10;

/// A place in what a mirror handed over: pieces are numbered from 1, over all connections, in the order in which they came in. 0 where the mirror does not
/// number them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Position(pub u64);

impl Position {
    /// Of a mirror that does not number what it hands over.
    pub const UNKNOWN: Self = Self(0);

    /// The host carried this out already, when it says that it carried out everything up to `executed`. Never so of what has no number.
    #[must_use]
    pub const fn is_over(self, executed: Self) -> bool {
        self.0 != 0 && self.0 <= executed.0
    }
}

/// One access, as gathered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gathered<'a> {
    /// The key as the host view has it.
    pub id: KeyId,
    /// The key.
    pub key: &'a [u8],
    /// What is done to it.
    pub op: Op,
    /// Where the request is that does it.
    pub position: Position,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    end: u32,
    op: Op,
    position: Position,
}

/// Accesses in the order of the bytes.
#[derive(Debug)]
pub struct Accesses {
    secret: KeySecret,
    bytes: Vec<u8>,
    ids: Vec<KeyId>,
    entries: Vec<Entry>,
}

impl Accesses {
    /// None yet; keys get their [`KeyId`] with this secret.
    #[must_use]
    pub const fn new(secret: KeySecret) -> Self {
        Self { secret, bytes: Vec::new(), ids: Vec::new(), entries: Vec::new() }
    }

    /// What ids are made with.
    #[must_use]
    pub const fn secret(&self) -> KeySecret {
        self.secret
    }

    /// One more. False, and nothing changed, when the key is longer than [`KEY_LEN_MAX`] or there is no room: then the access is not seen.
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

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Gathered<'_>> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// The ids of their keys.
    #[must_use]
    pub fn ids(&self) -> &[KeyId] {
        &self.ids
    }

    /// One of them.
    ///
    /// # Panics
    /// When there are not so many.
    #[must_use]
    pub fn get(&self, index: usize) -> Gathered<'_> {
        let from = index.checked_sub(1).map_or(0, |before| self.entries[before].end as usize);
        let Entry { end, op, position } = self.entries[index];
        Gathered { id: self.ids[index], key: &self.bytes[from..end as usize], op, position }
    }

    /// How many.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets them; their room stays.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ids.clear();
        self.entries.clear();
    }
}

/// The keys of one message, one behind the other.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Keys {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Keys {
    /// One more, behind the others.
    ///
    /// # Panics
    /// When they have 4 GiB.
    pub fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push(u32::try_from(self.bytes.len()).expect("keys of a message"));
    }

    /// The keys.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// One of them, from 0 on.
    ///
    /// # Panics
    /// When there are not so many.
    #[must_use]
    pub fn get(&self, index: usize) -> &[u8] {
        let from = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.bytes[from..self.ends[index] as usize]
    }

    /// How many.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// True when there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Their bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets them; their room stays.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// What goes in comes out, in order; what is too long or too much is refused and changes nothing.
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

    /// What has no number is never over.
    #[test]
    fn unknown_positions_are_never_over() {
        assert!(!Position::UNKNOWN.is_over(Position(9)));
        assert!(Position(9).is_over(Position(9)));
        assert!(!Position(10).is_over(Position(9)));
    }
}
