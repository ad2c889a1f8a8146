//! A ring of words through which one producer hands records to one consumer in another process.
//!
//! Both ends only ever use atomic words, so a peer that writes what it likes can make this end read nonsense, never leave the
//! ring or touch memory twice: all that is read here (indices, lengths) is checked before use, and a record is copied out before
//! anyone looks at it. Each end keeps its own index to itself and publishes it once per batch; of the other's it keeps the last
//! value seen, and looks again only when that does not suffice.
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

/// Words before the data.
pub(crate) const HEADER_WORDS: usize = 64;
/// Bytes of a word.
pub const WORD: usize = 8;

const HEAD: usize = 16;
const TAIL: usize = 32;

/// The other end wrote invalid data: the ring cannot be used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Broken;

/// The data words of a ring, when they are a power of two.
pub(super) fn data(ring: &[AtomicU64]) -> &[AtomicU64] {
    let data = &ring[HEADER_WORDS..];
    debug_assert!(data.len().is_power_of_two());
    data
}

/// The place of `index` in the data.
#[inline]
pub(super) fn place(index: u64, data: &[AtomicU64]) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "masked by the length of a slice")]
    let place = (index & (data.len() as u64 - 1)) as usize;
    place
}

/// Both indices as they are published, when they belong together.
fn indices(ring: &[AtomicU64]) -> Result<(u64, u64), Broken> {
    let tail = ring[TAIL].load(Ordering::Acquire);
    let head = ring[HEAD].load(Ordering::Acquire);
    if head.wrapping_sub(tail) > data(ring).len() as u64 { Err(Broken) } else { Ok((head, tail)) }
}

/// The end that writes.
#[derive(Debug)]
pub(crate) struct Producer {
    /// Written so far; ahead of what is published.
    head: u64,
    published: u64,
    /// The consumer's index when last looked at.
    tail: u64,
}

impl Producer {
    /// Goes on where the last producer of this ring stopped.
    pub(crate) fn attach(ring: &[AtomicU64]) -> Result<Self, Broken> {
        let (head, tail) = indices(ring)?;
        Ok(Self { head, published: head, tail })
    }

    /// Writes a record; false when there is no room. The consumer sees it after [`Producer::publish`].
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

    /// Lets the consumer see what was written; answers whether there was anything.
    pub(crate) fn publish(&mut self, ring: &[AtomicU64]) -> bool {
        if self.published == self.head {
            return false;
        }
        ring[HEAD].store(self.head, Ordering::Release);
        self.published = self.head;
        true
    }

    /// Looks at the consumer's index again. It may only have moved on, and not past what was published.
    fn look(&mut self, ring: &[AtomicU64]) -> Result<(), Broken> {
        let tail = ring[TAIL].load(Ordering::Acquire);
        if self.published.wrapping_sub(tail) > self.published.wrapping_sub(self.tail) {
            return Err(Broken);
        }
        self.tail = tail;
        Ok(())
    }
}

/// The end that reads.
#[derive(Debug)]
pub(crate) struct Consumer {
    /// Read so far; ahead of what is released.
    tail: u64,
    released: u64,
    /// The producer's index when last looked at.
    head: u64,
}

impl Consumer {
    /// Goes on where the last consumer of this ring stopped.
    pub(crate) fn attach(ring: &[AtomicU64]) -> Result<Self, Broken> {
        let (head, tail) = indices(ring)?;
        Ok(Self { tail, released: tail, head })
    }

    /// True when a record waits, or the ring is broken and [`Consumer::pop`] will say so.
    pub(crate) fn has_more(&self, ring: &[AtomicU64]) -> bool {
        self.tail != self.head || ring[HEAD].load(Ordering::Acquire) != self.tail
    }

    /// Copies the next record to the front of `buf`, a whole number of words, and answers its length.
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

    /// Gives the room of the records read back to the producer.
    pub(crate) fn release(&mut self, ring: &[AtomicU64]) {
        if self.released != self.tail {
            ring[TAIL].store(self.tail, Ordering::Release);
            self.released = self.tail;
        }
    }
}

/// The first word of a record of so many bytes.
pub(super) const fn record_word(len: usize) -> u64 {
    let len = len as u64;
    len | (!len & 0xffff_ffff) << 32
}

/// The length that a record's first word says, when the record fits into `room` bytes and into the `waiting` words.
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

/// Stores `bytes` into the first words, the last one padded with zeros.
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

/// Stores `bytes` into words from `at` on, and goes on at the first where they end.
#[inline]
pub fn store_at(words: &[AtomicU64], at: u64, bytes: &[u8]) {
    let start = place(at, words);
    let (first, second) = bytes.split_at(bytes.len().min((words.len() - start) * WORD));
    store(&words[start..], first);
    store(words, second);
}

/// Fills `bytes` from the first words; of the last one only what is wanted.
#[inline]
pub(crate) fn load(words: &[AtomicU64], bytes: &mut [u8]) {
    let (whole, rest) = bytes.as_chunks_mut::<WORD>();
    load_words(words, whole);
    if let Some(last) = words.get(whole.len()).filter(|_| !rest.is_empty()) {
        rest.copy_from_slice(&last.load(Ordering::Relaxed).to_le_bytes()[..rest.len()]);
    }
}

/// Fills `bytes` from words from `at` on, and goes on at the first where they end.
#[inline]
pub fn load_at(words: &[AtomicU64], at: u64, bytes: &mut [u8]) {
    let start = place(at, words);
    let (first, second) = bytes.split_at_mut(bytes.len().min((words.len() - start) * WORD));
    load(&words[start..], first);
    load(words, second);
}
