//! A ring of words through which one producer passes records to one consumer in another process.
//!
//! Both ends use only atomic words. So a malicious peer can make this end read invalid data, but not leave
//! the ring or use a value twice. This end checks all indexes and lengths before use, and copies a record
//! before anyone reads it. Each end keeps its own index, and publishes it once per batch. Of the other end's
//! index, it keeps the last value, and reads it again only when necessary.
//!
//! ```text
//!  word 0..16   magic, version, words in the file (checked at open)
//!  word 16      head: words published by the producer since the ring was made
//!  word 32      tail: words released by the consumer
//!  word 64..    data, a power of two of words: [ length | !length << 32 ][ bytes, padded to words ] ...
//! ```
//!
//! `tests/ring_loom.rs` compiles this file against loom's atomics.

use super::atomic::{AtomicU64, Ordering, load_words, store_words};

/// Number of words before the data.
pub(crate) const HEADER_WORDS: usize = 64;
/// Length of a word in bytes.
pub const WORD: usize = 8;

const HEAD: usize = 16;
const TAIL: usize = 32;

/// The error of a ring whose other end wrote invalid data: the ring cannot be used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Broken;

/// Returns the data words of a ring, whose number is a power of two.
pub(super) fn data(ring: &[AtomicU64]) -> &[AtomicU64] {
    let data = &ring[HEADER_WORDS..];
    debug_assert!(data.len().is_power_of_two());
    data
}

/// Returns the position of `index` in the data.
#[inline]
pub(super) fn place(index: u64, data: &[AtomicU64]) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "masked by the length of a slice")]
    let place = (index & (data.len() as u64 - 1)) as usize;
    place
}

/// Returns both published indexes, if they are consistent.
fn indices(ring: &[AtomicU64]) -> Result<(u64, u64), Broken> {
    let tail = ring[TAIL].load(Ordering::Acquire);
    let head = ring[HEAD].load(Ordering::Acquire);
    if head.wrapping_sub(tail) > data(ring).len() as u64 { Err(Broken) } else { Ok((head, tail)) }
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Producer {
    /// Index up to which records were written, ahead of `published`.
    head: u64,
    published: u64,
    /// The consumer's index when last read.
    tail: u64,
}

impl Producer {
    /// Continues where the last producer of this ring stopped.
    pub(crate) fn attach(ring: &[AtomicU64]) -> Result<Self, Broken> {
        let (head, tail) = indices(ring)?;
        Ok(Self { head, published: head, tail })
    }

    /// Writes a record; returns false if the ring is full. The consumer sees the record after
    /// [`Producer::publish`].
    pub(crate) fn push(&mut self, ring: &[AtomicU64], bytes: &[u8]) -> Result<bool, Broken> {
        let data = data(ring);
        let need = 1 + bytes.len().div_ceil(WORD) as u64;
        if self.head.wrapping_sub(self.tail) + need > data.len() as u64 {
            self.look(ring)?;
            if self.head.wrapping_sub(self.tail) + need > data.len() as u64 {
                return Ok(false);
            }
        }
        data[place(self.head, data)].store(record_word(bytes.len()), Ordering::Relaxed);
        store_at(data, self.head.wrapping_add(1), bytes);
        self.head = self.head.wrapping_add(need);
        Ok(true)
    }

    /// Publishes the written records; returns true if there were any.
    pub(crate) fn publish(&mut self, ring: &[AtomicU64]) -> bool {
        if self.published == self.head {
            return false;
        }
        ring[HEAD].store(self.head, Ordering::Release);
        self.published = self.head;
        true
    }

    /// Reads the consumer's index again. The index may only increase, up to the published index.
    fn look(&mut self, ring: &[AtomicU64]) -> Result<(), Broken> {
        let tail = ring[TAIL].load(Ordering::Acquire);
        if self.published.wrapping_sub(tail) > self.published.wrapping_sub(self.tail) {
            return Err(Broken);
        }
        self.tail = tail;
        Ok(())
    }
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Consumer {
    /// Index up to which records were read, ahead of `released`.
    tail: u64,
    released: u64,
    /// The producer's index when last read.
    head: u64,
}

impl Consumer {
    /// Continues where the last consumer of this ring stopped.
    pub(crate) fn attach(ring: &[AtomicU64]) -> Result<Self, Broken> {
        let (head, tail) = indices(ring)?;
        Ok(Self { tail, released: tail, head })
    }

    /// Returns true if a record is available, or if the ring is broken and [`Consumer::pop`] will report it.
    pub(crate) fn has_more(&self, ring: &[AtomicU64]) -> bool {
        self.tail != self.head || ring[HEAD].load(Ordering::Acquire) != self.tail
    }

    /// Copies the next record to the front of `buf`, and returns its length. The length of `buf` is a
    /// multiple of 8.
    pub(crate) fn pop(&mut self, ring: &[AtomicU64], buf: &mut [u8]) -> Result<Option<usize>, Broken> {
        let data = data(ring);
        if self.tail == self.head {
            self.head = ring[HEAD].load(Ordering::Acquire);
            if self.head == self.tail {
                return Ok(None);
            }
        }
        let waiting = self.head.wrapping_sub(self.tail);
        if waiting > data.len() as u64 {
            return Err(Broken);
        }
        let len = record_len(data[place(self.tail, data)].load(Ordering::Relaxed), buf.len(), waiting)?;
        let words = len.div_ceil(WORD);
        load_at(data, self.tail.wrapping_add(1), &mut buf[..words * WORD]);
        self.tail = self.tail.wrapping_add(1 + words as u64);
        Ok(Some(len))
    }

    /// Releases the space of the read records to the producer.
    pub(crate) fn release(&mut self, ring: &[AtomicU64]) {
        if self.released != self.tail {
            ring[TAIL].store(self.tail, Ordering::Release);
            self.released = self.tail;
        }
    }
}

/// Returns the first word of a record of `len` bytes.
pub(super) const fn record_word(len: usize) -> u64 {
    let len = len as u64;
    len | (!len & 0xffff_ffff) << 32
}

/// Returns the length in a record's first word, if the record fits into `room` bytes and into the `waiting`
/// words.
pub(super) fn record_len(word: u64, room: usize, waiting: u64) -> Result<usize, Broken> {
    let len = word & 0xffff_ffff;
    if word >> 32 != !len & 0xffff_ffff || len.div_ceil(WORD as u64) >= waiting {
        return Err(Broken);
    }
    match usize::try_from(len) {
        Ok(len) if len <= room => Ok(len),
        _ => Err(Broken),
    }
}

/// Stores `bytes` into the first words, and pads the last one with zeros.
#[inline]
pub(crate) fn store(words: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<WORD>();
    store_words(words, whole);
    if !rest.is_empty() {
        let mut last = [0; WORD];
        last[..rest.len()].copy_from_slice(rest);
        words[whole.len()].store(u64::from_le_bytes(last), Ordering::Relaxed);
    }
}

/// Stores `bytes` into words starting at `at`, and continues at the first word after the last.
#[inline]
pub fn store_at(words: &[AtomicU64], at: u64, bytes: &[u8]) {
    let start = place(at, words);
    let (first, second) = bytes.split_at(bytes.len().min((words.len() - start) * WORD));
    store(&words[start..], first);
    store(words, second);
}

/// Fills `bytes` from the first words, the last one in part.
#[inline]
pub(crate) fn load(words: &[AtomicU64], bytes: &mut [u8]) {
    let (whole, rest) = bytes.as_chunks_mut::<WORD>();
    load_words(words, whole);
    if let Some(last) = words.get(whole.len()).filter(|_| !rest.is_empty()) {
        rest.copy_from_slice(&last.load(Ordering::Relaxed).to_le_bytes()[..rest.len()]);
    }
}

/// Fills `bytes` from words starting at `at`, and continues at the first word after the last.
#[inline]
pub fn load_at(words: &[AtomicU64], at: u64, bytes: &mut [u8]) {
    let start = place(at, words);
    let (first, second) = bytes.split_at_mut(bytes.len().min((words.len() - start) * WORD));
    load(&words[start..], first);
    load(words, second);
}
