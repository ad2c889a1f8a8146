//! Where each key's record is: a hash table in order of hashes.
//!
//! Key type: [`Index`]. An entry has 24 bytes and no key: a key is known by 88 bits of a keyed hash ([`Name`]), and whoever reads a record compares the key that
//! is in it. The table is cut into shards by the topmost bits, and in each shard entries lie in order of their hashes (linear probing with ordered entries), so the whole table is
//! ordered: `SCAN`'s cursor is a hash, and no key that stays is left out or comes twice, however the table grows meanwhile. A shard grows by an eighth at a
//! time, so that nine tenths of the memory are used and no growth takes long.

use siphasher::sip128::{Hasher128 as _, SipHasher13};
use std::hash::Hasher as _;

/// A key's name: 64 bits by which the index is ordered, and 24 more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Name {
    /// The bits by which it is ordered; never 0.
    pub(crate) hash: u64,
    more: u32,
}

/// Bits of [`Name::more`].
const MORE_BITS: u32 = 24;

/// The secret that keys are hashed with, so that no client can make two names alike.
#[derive(Clone, Debug)]
pub(crate) struct Namer(SipHasher13);

impl Namer {
    pub(crate) fn new(secret: (u64, u64)) -> Self {
        Self(SipHasher13::new_with_keys(secret.0, secret.1))
    }

    pub(crate) fn name(&self, key: &[u8]) -> Name {
        let mut hasher = self.0;
        hasher.write(key);
        let hash = hasher.finish128();
        Name { hash: hash.h1.max(1), more: low(hash.h2, MORE_BITS) }
    }
}

/// The low bits of a word.
fn low(word: u64, bits: u32) -> u32 {
    u32::try_from(word & ((1 << bits) - 1)).expect("fewer than 32 bits")
}

/// What the index knows of a key.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Entry {
    /// 0: no entry.
    hash: u64,
    /// Where the record is, as the log understands it.
    pub(crate) place: u64,
    /// 24 bits of the name, 8 of flags, 32 of when it was used.
    word: u64,
}

/// A bit of an entry's flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Flag(u64);

impl Flag {
    /// The key has a time when it ends.
    pub(crate) const EXPIRES: Self = Self(1 << 3);
    /// What the snapshot under way has of the key, or will never have, is settled: equal to the index's own parity.
    pub(crate) const PARITY: Self = Self(1 << 4);
    /// It was read from far memory once.
    pub(crate) const TOUCHED: Self = Self(1 << 5);
    /// A memcached client has asked for it.
    pub(crate) const FETCHED: Self = Self(1 << 6);
}

const FLAGS_AT: u32 = 24;
const KIND_MASK: u64 = 7;
const USED_AT: u32 = 32;

impl Entry {
    pub(crate) fn new(name: Name, place: u64, kind: u8) -> Self {
        let word = u64::from(name.more) | (u64::from(kind) & KIND_MASK) << FLAGS_AT;
        Self { hash: name.hash, place, word }
    }

    pub(crate) fn name(&self) -> Name {
        Name { hash: self.hash, more: low(self.word, MORE_BITS) }
    }

    /// The kind of its value.
    pub(crate) fn kind(&self) -> u8 {
        u8::try_from(self.word >> FLAGS_AT & KIND_MASK).expect("three bits")
    }

    pub(crate) fn has(&self, flag: Flag) -> bool {
        self.word >> FLAGS_AT & flag.0 != 0
    }

    pub(crate) fn set(&mut self, flag: Flag, is: bool) {
        let bit = flag.0 << FLAGS_AT;
        self.word = if is { self.word | bit } else { self.word & !bit };
    }

    /// When it was used, in whatever unit the store counts.
    pub(crate) fn used(&self) -> u32 {
        u32::try_from(self.word >> USED_AT).expect("32 bits")
    }

    pub(crate) fn set_used(&mut self, used: u32) {
        self.word = self.word & ((1 << USED_AT) - 1) | u64::from(used) << USED_AT;
    }
}

/// Shards: of the topmost bits of hashes.
const SHARD_BITS: u32 = 10;
/// Entries of a shard that was just made.
const SHARD_LEN_MIN: usize = 8;

/// Entries in order of their hashes; between them places without one.
#[derive(Clone, Default, Debug)]
struct Shard {
    entries: Vec<Entry>,
    used: usize,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Index {
    shards: Vec<Shard>,
    len: usize,
    bytes: usize,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            shards: vec![Shard::default(); 1 << SHARD_BITS],
            len: 0,
            bytes: size_of::<Shard>() << SHARD_BITS,
        }
    }
}

fn shard_of(hash: u64) -> usize {
    usize::try_from(hash >> (u64::BITS - SHARD_BITS)).expect("a few bits")
}

impl Index {
    /// Entries.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it takes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The entry of a key.
    pub(crate) fn get(&self, name: Name) -> Option<&Entry> {
        let shard = &self.shards[shard_of(name.hash)];
        shard.find(name).ok().map(|at| &shard.entries[at])
    }

    /// Reads where an entry would be, and no further; what is met there means nothing.
    pub(crate) fn touch(&self, name: Name) -> u64 {
        let shard = &self.shards[shard_of(name.hash)];
        let at = shard.home(name.hash).and_then(|home| shard.entries.get(home));
        at.map_or(0, |entry| entry.place)
    }

    /// The same, to change all of it but the name.
    pub(crate) fn get_mut(&mut self, name: Name) -> Option<&mut Entry> {
        let shard = &mut self.shards[shard_of(name.hash)];
        shard.find(name).ok().map(|at| &mut shard.entries[at])
    }

    /// Puts an entry in, in the place of an older one of the same name; answers that.
    pub(crate) fn put(&mut self, entry: Entry) -> Option<Entry> {
        let shard = &mut self.shards[shard_of(entry.hash)];
        match shard.find(entry.name()) {
            Ok(at) => Some(std::mem::replace(&mut shard.entries[at], entry)),
            Err(_) => {
                let before = shard.entries.capacity();
                shard.insert(entry);
                self.bytes += (shard.entries.capacity() - before) * size_of::<Entry>();
                self.len += 1;
                None
            }
        }
    }

    /// Takes an entry out.
    pub(crate) fn remove(&mut self, name: Name) -> Option<Entry> {
        let shard = &mut self.shards[shard_of(name.hash)];
        let at = shard.find(name).ok()?;
        let removed = shard.remove(at);
        self.len -= 1;
        let before = shard.entries.capacity();
        if shard.used * 4 < shard.entries.len() && shard.entries.len() > 4 * SHARD_LEN_MIN {
            shard.resize((shard.used * 2).max(SHARD_LEN_MIN));
            self.bytes =
                self.bytes + shard.entries.capacity() * size_of::<Entry>() - before * size_of::<Entry>();
        }
        Some(removed)
    }

    /// The entries from `hash` on, in order. All entries of one hash follow each other.
    pub(crate) fn from(&self, hash: u64) -> impl Iterator<Item = &Entry> {
        let (first, least) = (shard_of(hash), hash.max(1));
        let shard = &self.shards[first];
        // No entry lies in front of its home.
        let here = shard.entries.get(shard.home(hash).unwrap_or(0)..).unwrap_or(&[]);
        let rest = self.shards[first + 1..].iter().flat_map(|shard| &shard.entries);
        here.iter().chain(rest).filter(move |entry| entry.hash >= least)
    }

    /// Calls `each` for every entry.
    pub(crate) fn each(&mut self, mut each: impl FnMut(&mut Entry)) {
        let entries = self.shards.iter_mut().flat_map(|shard| &mut shard.entries);
        entries.filter(|entry| entry.hash != 0).for_each(&mut each);
    }

    /// The entry at or behind a random hash, around the end.
    pub(crate) fn near(&self, hash: u64) -> Option<&Entry> {
        // Not from the shard's first entry on, which would be looked at in vain.
        let first = shard_of(hash);
        let shard = &self.shards[first];
        let from = shard.home(hash).unwrap_or(0);
        let here = shard.entries.get(from..).unwrap_or(&[]).iter();
        let rest =
            self.shards[first + 1..].iter().chain(&self.shards[..=first]).flat_map(|shard| &shard.entries);
        here.chain(rest).find(|entry| entry.hash != 0)
    }
}

impl Shard {
    /// Where a hash would be if nothing were in its way. Monotone in the hash.
    fn home(&self, hash: u64) -> Option<usize> {
        let within = hash << SHARD_BITS;
        // The last eighth is room for what is pushed on; nothing is pushed around the end.
        let homes = self.homes();
        (homes > 0).then(|| {
            usize::try_from((u128::from(within) * homes as u128) >> u64::BITS)
                .expect("less than the shard's length")
        })
    }

    fn homes(&self) -> usize {
        self.entries.len().saturating_sub(spill(self.entries.len()))
    }

    /// Where the entry is, or where it would go in.
    fn find(&self, name: Name) -> Result<usize, usize> {
        let mut at = self.home(name.hash).ok_or(0_usize)?;
        loop {
            match self.entries.get(at) {
                Some(entry) if entry.hash == 0 || entry.hash > name.hash => return Err(at),
                Some(entry) if entry.name() == name => return Ok(at),
                Some(_) => at += 1,
                None => return Err(at),
            }
        }
    }

    fn insert(&mut self, entry: Entry) {
        if (self.used + 1) * 8 > self.homes() * 7 {
            let len = self.entries.len();
            self.resize((len + len / 8).max(len + 2).max(SHARD_LEN_MIN));
        }
        loop {
            let (Ok(at) | Err(at)) = self.find(entry.name());
            let free = self.entries.get(at..).and_then(|rest| rest.iter().position(|other| other.hash == 0));
            let Some(free) = free else {
                // The last places are full: by chance many hashes are high.
                self.resize(self.entries.len() + self.entries.len() / 8 + 2);
                continue;
            };
            self.entries.copy_within(at..at + free, at + 1);
            self.entries[at] = entry;
            self.used += 1;
            return;
        }
    }

    fn remove(&mut self, at: usize) -> Entry {
        let removed = self.entries[at];
        let mut gap = at;
        // What is not at home moves one towards it.
        while let Some(&next) = self.entries.get(gap + 1)
            && next.hash != 0
            && self.home(next.hash).is_some_and(|home| home <= gap)
        {
            self.entries[gap] = next;
            gap += 1;
        }
        self.entries[gap] = Entry::default();
        self.used -= 1;
        removed
    }

    fn resize(&mut self, mut len: usize) {
        loop {
            let old = self.clone_to(len);
            match old {
                Some(shard) => return *self = shard,
                None => len += len / 8 + 2,
            }
        }
    }

    /// The same entries in a table of another length; `None` when they do not fit in order.
    fn clone_to(&self, len: usize) -> Option<Self> {
        let mut entries = Vec::new();
        entries.reserve_exact(len);
        entries.resize(len, Entry::default());
        let mut new = Self { entries, used: self.used };
        let mut next = 0;
        for entry in self.entries.iter().filter(|entry| entry.hash != 0) {
            let at = new.home(entry.hash)?.max(next);
            *new.entries.get_mut(at)? = *entry;
            next = at + 1;
        }
        Some(new)
    }
}

/// Places behind the last home.
const fn spill(len: usize) -> usize {
    len / 16 + 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn name(hash: u64, more: u32) -> Name {
        Name { hash: hash.max(1), more }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        /// Whatever goes in and out, the table has what a map has, in the map's order; hashes lie close together, or are the same.
        #[test]
        fn it_is_an_ordered_map(steps in proptest::collection::vec((0_u64..64, 0_u32..3, any::<bool>(), 0_u32..3), 1..600)) {
            let (mut index, mut model) = (Index::default(), BTreeMap::new());
            for (number, &(hash, more, put, spread)) in steps.iter().enumerate() {
                let hash = match spread { 0 => hash, 1 => hash << 58 | 5, _ => u64::MAX - hash };
                let name = name(hash, more);
                if put {
                    let new = Entry::new(name, number as u64, 1);
                    prop_assert_eq!(index.put(new), model.insert(name, new));
                } else {
                    prop_assert_eq!(index.remove(name), model.remove(&name));
                }
                prop_assert_eq!(index.len(), model.len());
                prop_assert_eq!(index.get(name), model.get(&name));
            }
            let mut all: Vec<Entry> = index.from(0).copied().collect();
            prop_assert!(all.is_sorted_by_key(|entry| entry.hash));
            all.sort_by_key(Entry::name);
            prop_assert_eq!(all, model.values().copied().collect::<Vec<_>>());
            let bytes: usize = index.shards.iter().map(|shard| shard.entries.capacity() * 24 + 32).sum();
            prop_assert_eq!(index.bytes(), bytes);
            prop_assert_eq!(index.near(u64::MAX).is_some(), !model.is_empty());
        }
    }

    /// A hundred thousand keys take at most 34 bytes each, and 24 at least: shards are short, and the room behind their last homes counts.
    #[test]
    fn it_is_dense() {
        let (mut index, namer) = (Index::default(), Namer::new((1, 2)));
        for key in 0..100_000_u32 {
            index.put(Entry::new(namer.name(&key.to_le_bytes()), u64::from(key), 0));
        }
        assert!((24 * 100_000..34 * 100_000).contains(&index.bytes()), "{}", index.bytes());
        let found = (0..100_000_u32)
            .all(|key| index.get(namer.name(&key.to_le_bytes())).unwrap().place == u64::from(key));
        assert!(found);
    }

    #[test]
    fn an_entry_keeps_its_parts_apart() {
        let mut entry = Entry::new(name(7, 0xff_ffff), u64::MAX, 7);
        entry.set_used(u32::MAX);
        entry.set(Flag::PARITY, true);
        entry.set_used(5);
        entry.set(Flag::TOUCHED, true);
        entry.set(Flag::PARITY, false);
        assert_eq!((entry.name(), entry.kind(), entry.used()), (name(7, 0xff_ffff), 7, 5));
        assert!(entry.has(Flag::TOUCHED) && !entry.has(Flag::PARITY) && !entry.has(Flag::EXPIRES));
    }
}
