//! A hash table in far memory that workers of all hosts read and write, without ownership.
//!
//! Key type: [`Table`]. Each record has a sequence lock beside it in far memory. A writer makes the lock word
//! odd, and even again when done. A reader checks the word before and after, so readers do not disturb each
//! other. A worker that dies during a write leaves its record locked.

use farmem::window::Memory;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Words of a value; the first one counts its updates.
pub const VALUE_WORDS: usize = 126;
/// A record: lock, key and value.
const RECORD_WORDS: usize = VALUE_WORDS + 2;
const WORD: usize = 8;
/// Bytes of a record: four per page.
pub const RECORD_LEN: usize = RECORD_WORDS * WORD;
/// The mark of an empty position.
const NONE: u64 = u64::MAX;

/// A table of record positions.
#[derive(Clone, Copy, Debug)]
pub struct Table<'m> {
    memory: Memory<'m>,
    places: usize,
}

/// The result of reading a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadResult {
    /// The key does not exist.
    Nothing,
    /// The whole value after this many updates.
    Value(u64),
    /// Words that belong to no single update: a wrong answer.
    Torn,
}

impl<'m> Table<'m> {
    /// Returns the bytes of a table for this many records, with room for half as many again.
    #[must_use]
    pub const fn bytes(records: u64) -> u64 {
        (records + records / 2 + 1) * RECORD_LEN as u64
    }

    /// Opens the table in `memory`. Zeroed memory is an empty table.
    ///
    /// # Panics
    /// Panics when there is no room for a record.
    #[must_use]
    pub fn new(memory: Memory<'m>) -> Self {
        let places = memory.len() / RECORD_LEN;
        assert!(places > 0, "a table has a place");
        Self { memory, places }
    }

    /// Adds a new key with its first value. Returns false when the table is full.
    #[must_use]
    pub fn insert(&self, key: u64) -> bool {
        for place in self.probe(key) {
            if self.key(place).load(Ordering::Acquire) != 0 {
                continue;
            }
            let lock = self.lock(place);
            let free = self.key(place).load(Ordering::Relaxed) == 0;
            if free {
                self.key(place).store(stored(key), Ordering::Relaxed);
                self.store(place, key, 0);
            }
            self.unlock(place, lock);
            if free {
                return true;
            }
        }
        false
    }

    /// Writes the next value of a key. Returns false when the key does not exist.
    #[must_use]
    pub fn update(&self, key: u64) -> bool {
        let Some(place) = self.find(key) else { return false };
        let lock = self.lock(place);
        let updates = self.word(place, 2).load(Ordering::Relaxed);
        self.store(place, key, updates + 1);
        self.unlock(place, lock);
        true
    }

    /// Reads all of a key's value.
    #[must_use]
    pub fn read(&self, key: u64) -> ReadResult {
        let Some(place) = self.find(key) else { return ReadResult::Nothing };
        loop {
            let before = self.word(place, 0).load(Ordering::Acquire);
            if before % 2 == 1 {
                std::thread::yield_now();
                continue;
            }
            let updates = self.word(place, 2).load(Ordering::Relaxed);
            let whole = (1..VALUE_WORDS)
                .all(|n| self.word(place, 2 + n).load(Ordering::Relaxed) == content(key, updates, n));
            fence(Ordering::Acquire);
            if self.word(place, 0).load(Ordering::Relaxed) == before {
                return if whole { ReadResult::Value(updates) } else { ReadResult::Torn };
            }
        }
    }

    fn find(&self, key: u64) -> Option<usize> {
        for place in self.probe(key) {
            match self.key(place).load(Ordering::Acquire) {
                0 => return None,
                found if found == stored(key) => return Some(place),
                _ => {}
            }
        }
        None
    }

    /// Returns the probe sequence of a key.
    fn probe(&self, key: u64) -> impl Iterator<Item = usize> {
        let (places, first) = (self.places as u64, mixed(key));
        (0..places)
            .map(move |n| usize::try_from(first.wrapping_add(n) % places).expect("a place is in memory"))
    }

    fn lock(&self, place: usize) -> u64 {
        let lock = self.word(place, 0);
        loop {
            let free = lock.load(Ordering::Relaxed) & !1;
            if lock.compare_exchange(free, free + 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return free;
            }
            std::thread::yield_now();
        }
    }

    fn unlock(&self, place: usize, lock: u64) {
        self.word(place, 0).store(lock + 2, Ordering::Release);
    }

    fn store(&self, place: usize, key: u64, updates: u64) {
        // A reader that sees any of these words also sees the odd lock word.
        fence(Ordering::Release);
        self.word(place, 2).store(updates, Ordering::Relaxed);
        for n in 1..VALUE_WORDS {
            self.word(place, 2 + n).store(content(key, updates, n), Ordering::Relaxed);
        }
    }

    fn key(&self, place: usize) -> &'m AtomicU64 {
        self.word(place, 1)
    }

    fn word(&self, place: usize, n: usize) -> &'m AtomicU64 {
        self.memory.word(place * RECORD_LEN + n * WORD)
    }
}

/// Encodes a key for the table, where 0 means empty.
const fn stored(key: u64) -> u64 {
    assert!(key != NONE, "one key is no key");
    key + 1
}

/// Returns the `n`th word of a key's value after this many updates, so that a reader can detect mixed words.
const fn content(key: u64, updates: u64, n: usize) -> u64 {
    mixed(key ^ updates.rotate_left(32) ^ (n as u64).rotate_left(56))
}

/// Mixes a number by the finalizer of `SplitMix64`.
const fn mixed(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
