//! The index: a hash table, in order of hashes, from keys to the places of their values.
//!
//! Key type: [`Index`]. An entry has 24 bytes and no key: 88 bits of a keyed hash identify the key
//! ([`Name`]), and a reader of the record compares the key in it. The topmost bits select a shard, and within
//! a shard entries lie in order of their hashes (linear probing with ordered entries). So the whole table is
//! ordered: `SCAN`'s cursor is a hash, and a key that stays is returned once, however the table grows
//! meanwhile. A shard grows by an eighth at a time, so that nine tenths of the memory are used and no growth
//! takes long.

use siphasher::sip128::{Hasher128 as _, SipHasher13};
use std::hash::Hasher as _;

/// The name of a key: the 64 bits that order the index, and 24 more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Name {
    /// The bits that order the index; never 0.
    pub(crate) hash: u64,
    more: u32,
}

/// Bits of [`Name::more`].
const MORE_BITS: u32 = 24;

/// The secret of the hash, without which no client can give two keys the same name.
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

/// Returns the low bits of a word.
fn low(word: u64, bits: u32) -> u32 {
    u32::try_from(word & ((1 << bits) - 1)).expect("fewer than 32 bits")
}

/// The entry of a key.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Entry {
    /// The hash; 0 for no entry.
    hash: u64,
    /// The place of the value, as the log understands it.
    pub(crate) place: u64,
    /// The name (24 bits), flags (8), and the use of the key (32).
    word: u64,
}

/// A bit of an entry's flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Flag(u64);

impl Flag {
    /// The key expires.
    pub(crate) const EXPIRES: Self = Self(1 << 3);
    /// Equal to the store's parity: the snapshot under way has the key, or will not have it.
    pub(crate) const PARITY: Self = Self(1 << 4);
    /// The record was read from far memory once.
    pub(crate) const TOUCHED: Self = Self(1 << 5);
    /// A memcached client has read the item.
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

    /// Returns the kind of the value.
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

    /// Returns the use of the key, as the store counts it.
    pub(crate) fn used(&self) -> u32 {
        u32::try_from(self.word >> USED_AT).expect("32 bits")
    }

    pub(crate) fn set_used(&mut self, used: u32) {
        self.word = self.word & ((1 << USED_AT) - 1) | u64::from(used) << USED_AT;
    }
}

/// The topmost bits of a hash, which select a shard.
const SHARD_BITS: u32 = 10;
/// Entries of a new shard.
const SHARD_LEN_MIN: usize = 8;

/// Entries in order of their hashes, with free places between them.
#[derive(Clone, Default, Debug)]
struct Shard {
    entries: Vec<Entry>,
    used: usize,
}

/// The table. An empty one takes no memory.
#[derive(Default, Debug)]
pub(crate) struct Index {
    /// All shards, or none while the table is empty.
    shards: Vec<Shard>,
    len: usize,
    bytes: usize,
}

fn shard_of(hash: u64) -> usize {
    usize::try_from(hash >> (u64::BITS - SHARD_BITS)).expect("a few bits")
}

impl Index {
    /// Returns the number of entries.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes that the table takes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the entry of a key.
    pub(crate) fn get(&self, name: Name) -> Option<&Entry> {
        let shard = self.shards.get(shard_of(name.hash))?;
        shard.find(name).ok().map(|at| &shard.entries[at])
    }

    /// Touches the memory at which a lookup begins. The returned word has no meaning.
    pub(crate) fn touch(&self, name: Name) -> u64 {
        let shard = self.shards.get(shard_of(name.hash));
        let at = shard.and_then(|shard| shard.entries.get(shard.home(name.hash)?));
        at.map_or(0, |entry| entry.place)
    }

    /// Returns the entry of a key, to change all of it but the name.
    pub(crate) fn get_mut(&mut self, name: Name) -> Option<&mut Entry> {
        let shard = self.shards.get_mut(shard_of(name.hash))?;
        shard.find(name).ok().map(|at| &mut shard.entries[at])
    }

    /// Inserts an entry, and returns the older one of the same name.
    pub(crate) fn put(&mut self, entry: Entry) -> Option<Entry> {
        if self.shards.is_empty() {
            self.shards = vec![Shard::default(); 1 << SHARD_BITS];
            self.bytes = size_of::<Shard>() << SHARD_BITS;
        }
        let shard = &mut self.shards[shard_of(entry.hash)];
        match shard.find(entry.name()) {
            Ok(at) => Some(std::mem::replace(&mut shard.entries[at], entry)),
            Err(_) => {
                let before = shard.bytes();
                shard.insert(entry);
                self.bytes += shard.bytes() - before;
                self.len += 1;
                None
            }
        }
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, name: Name) -> Option<Entry> {
        let shard = self.shards.get_mut(shard_of(name.hash))?;
        let at = shard.find(name).ok()?;
        let removed = shard.remove(at);
        self.len -= 1;
        let before = shard.bytes();
        if shard.used == 0 {
            shard.entries = Vec::new();
        } else if shard.used * 2 < shard.entries.len() && shard.entries.len() > 2 * SHARD_LEN_MIN {
            shard.resize((shard.used * 3 / 2).max(SHARD_LEN_MIN));
        }
        self.bytes = self.bytes + shard.bytes() - before;
        if self.len == 0 {
            *self = Self::default();
        }
        Some(removed)
    }

    /// Returns the entries from `hash` on, in order.
    pub(crate) fn from(&self, hash: u64) -> impl Iterator<Item = &Entry> {
        let (first, least) = (shard_of(hash), hash.max(1));
        // No entry lies in front of its home.
        let at_home = |shard: &'_ Shard| shard.home(hash).unwrap_or(0);
        let here =
            self.shards.get(first).and_then(|shard| shard.entries.get(at_home(shard)..)).unwrap_or(&[]);
        let rest = self.shards.get(first + 1..).unwrap_or(&[]).iter().flat_map(|shard| &shard.entries);
        here.iter().chain(rest).filter(move |entry| entry.hash >= least)
    }

    /// Calls `each` for every entry.
    pub(crate) fn each(&mut self, mut each: impl FnMut(&mut Entry)) {
        let entries = self.shards.iter_mut().flat_map(|shard| &mut shard.entries);
        entries.filter(|entry| entry.hash != 0).for_each(&mut each);
    }

    /// Returns the first entry at or after a random hash, around the end.
    pub(crate) fn near(&self, hash: u64) -> Option<&Entry> {
        // A search from the shard's first entry on would look at many in vain.
        let first = shard_of(hash);
        let shard = self.shards.get(first)?;
        let from = shard.home(hash).unwrap_or(0);
        let here = shard.entries.get(from..).unwrap_or(&[]).iter();
        let rest =
            self.shards[first + 1..].iter().chain(&self.shards[..=first]).flat_map(|shard| &shard.entries);
        here.chain(rest).find(|entry| entry.hash != 0)
    }
}

/// A table that gets no new entries, and whose entries are taken out from the last one on.
#[derive(Debug)]
pub(crate) struct Drained {
    index: Index,
    /// Places of the last shard that are left.
    left: usize,
}

impl Drained {
    pub(crate) fn new(index: Index) -> Self {
        let left = index.shards.last().map_or(0, |shard| shard.entries.len());
        Self { index, left }
    }

    /// Returns the bytes of the rest.
    pub(crate) const fn bytes(&self) -> usize {
        self.index.bytes
    }

    /// Returns the entry of a key, if it was not taken out.
    pub(crate) fn get_mut(&mut self, name: Name) -> Option<&mut Entry> {
        // A lookup begins at the entry's home, and the entries between are taken out later.
        let shard = self.index.shards.get_mut(shard_of(name.hash))?;
        shard.find(name).ok().map(|at| &mut shard.entries[at])
    }

    /// Takes up to `most` of the last entries out, and frees each shard that is empty. Returns none when none
    /// are left.
    pub(crate) fn take(&mut self, most: usize) -> Vec<Entry> {
        let mut taken = Vec::new();
        while let Some(shard) = self.index.shards.last_mut() {
            while self.left > 0 && taken.len() < most {
                self.left -= 1;
                let entry = std::mem::take(&mut shard.entries[self.left]);
                if entry.hash != 0 {
                    taken.push(entry);
                }
            }
            if taken.len() == most {
                break;
            }
            self.index.bytes -= shard.bytes() + size_of::<Shard>();
            self.index.shards.pop();
            self.left = self.index.shards.last().map_or(0, |shard| shard.entries.len());
        }
        self.index.len -= taken.len();
        taken
    }
}

impl Shard {
    /// Returns the bytes of entries and free places.
    const fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// Returns the place where a hash lies if nothing is in its way. Monotone in the hash.
    fn home(&self, hash: u64) -> Option<usize> {
        let within = hash << SHARD_BITS;
        // The last places have no homes: they take entries that are pushed on, because nothing is pushed
        // around the end.
        let homes = self.homes();
        (homes > 0).then(|| {
            usize::try_from((u128::from(within) * homes as u128) >> u64::BITS)
                .expect("less than the shard's length")
        })
    }

    fn homes(&self) -> usize {
        self.entries.len().saturating_sub(spill(self.entries.len()))
    }

    /// Returns the place of an entry, or the place where it would be inserted.
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
                // The last places are full, because many hashes are high by chance.
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
        // Entries behind the gap that are not at home move one place back.
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

    /// Returns a table of another length with the same entries; `None` if they do not fit in order.
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

/// Returns the number of places behind the last home.
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
        /// After any inserts and removals the table has the entries of a map, in the map's order. Hashes lie
        /// close together, or are equal.
        #[test]
        fn the_index_is_an_ordered_map(steps in proptest::collection::vec((0_u64..64, 0_u32..3, any::<bool>(), 0_u32..3), 1..600)) {
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

    /// Draining takes entries out in slices, from the last entry on, until none is left. Between slices the remaining
    /// entries are found, and the bytes shrink.
    #[test]
    fn the_index_is_drained_in_slices() {
        let (mut index, namer) = (Index::default(), Namer::new((1, 2)));
        let names: Vec<Name> = (0..20_000_u32).map(|key| namer.name(&key.to_le_bytes())).collect();
        for (place, &name) in (0..).zip(&names) {
            index.put(Entry::new(name, place, 0));
        }
        let all: Vec<Entry> = index.from(0).copied().collect();
        let (mut drained, mut taken) = (Drained::new(index), Vec::new());
        loop {
            let some = drained.take(1_000);
            if some.is_empty() {
                break;
            }
            assert!(some.len() <= 1_000);
            taken.extend(some);
            let left = &all[..all.len() - taken.len()];
            assert!(
                left.iter()
                    .step_by(97)
                    .all(|entry| drained.get_mut(entry.name()) == Some(&mut entry.clone()))
            );
            assert!(taken.iter().step_by(97).all(|entry| drained.get_mut(entry.name()).is_none()));
        }
        taken.reverse();
        assert!(taken.iter().map(Entry::name).eq(all.iter().map(Entry::name)), "in order, and each once");
        assert_eq!((drained.bytes(), drained.index.len()), (0, 0));
    }

    /// A table whose keys are removed shrinks with them, and an empty one takes nothing.
    #[test]
    fn the_index_shrinks_as_keys_go() {
        let (mut index, namer) = (Index::default(), Namer::new((1, 2)));
        let name = |key: u32| namer.name(&key.to_le_bytes());
        (0..100_000).for_each(|key| _ = index.put(Entry::new(name(key), 0, 0)));
        for key in 0..100_000 {
            index.remove(name(key));
            // Short shards do not shrink.
            let most = index.len() * 24 * 5 / 2 + ((18 * 24) << SHARD_BITS);
            assert!(index.bytes() <= most, "{} keys, {} bytes", index.len(), index.bytes());
        }
        assert_eq!(index.bytes(), 0);
    }

    /// A hundred thousand keys take 24 to 34 bytes each. Shards are short here, and the places behind their
    /// last homes count.
    #[test]
    fn the_index_is_dense() {
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
