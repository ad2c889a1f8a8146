//! A ring of words through which many threads pass records to one consumer in another process, without a lock
//! (PD3 6.1).
//!
//! A thread reserves space by one compare-and-swap, and writes its record's bytes there. Then it writes the
//! record's first word, which is not 0; from then on the record is complete. The consumer reads records in
//! the order of their reservations, up to the first whose first word is still 0. Before the consumer releases
//! space, it sets all words to zero. So a thread waits for no other thread, and the consumer for at most one.
//!
//! In PD3, threads count the complete records, and the transfer engine waits for a moment in which no thread
//! writes (6.1). With several threads, or one fast thread, such a moment is rare.
//!
//! ```text
//!  word 0..16   identity (checked when it is mapped)
//!  word 16      reserved: words that producers have taken room for since the ring was made
//!  word 32      tail: words released by the consumer
//!  word 64..    data, as of a ring with one producer; 0 from `reserved` to `tail` and the ring's length
//! ```
//!
//! A thread that stops between reservation and completion blocks the ring permanently. The ring fills up and
//! refuses records, but no reader gets a partial record. A consumer that stops while it sets words to zero
//! leaves a ring that no other consumer can continue. `tests/ring_loom.rs` compiles this file against loom's
//! atomics.

use super::atomic::{AtomicU64, Ordering};
use super::ring::{Broken, WORD, data, load_at, place, record_len, record_word, store_at};

const RESERVED: usize = 16;
const TAIL: usize = 32;
/// The first word of an incomplete record.
const UNWRITTEN: u64 = 0;

/// Writes a record of one thread; returns false if the ring is full. The consumer sees it after all earlier
/// records are complete, too.
pub(crate) fn push(ring: &[AtomicU64], bytes: &[u8]) -> Result<bool, Broken> {
    let data = data(ring);
    let (room, need) = (data.len() as u64, 1 + bytes.len().div_ceil(WORD) as u64);
    let mut reserved = ring[RESERVED].load(Ordering::Relaxed);
    loop {
        let used = reserved.wrapping_sub(ring[TAIL].load(Ordering::Acquire));
        if used.saturating_add(need) > room {
            // The tail was read late, or no consumer writes it.
            let now = ring[RESERVED].load(Ordering::Relaxed);
            if now == reserved {
                return if used > room { Err(Broken) } else { Ok(false) };
            }
            reserved = now;
            continue;
        }
        let next = reserved.wrapping_add(need);
        match ring[RESERVED].compare_exchange_weak(reserved, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => reserved = now,
        }
    }
    store_at(data, reserved.wrapping_add(1), bytes);
    data[place(reserved, data)].store(record_word(bytes.len()), Ordering::Release);
    Ok(true)
}

/// A record in the ring, which stays in place until its release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    at: u64,
    pub(crate) len: usize,
}

/// The reading end.
#[derive(Debug)]
pub(crate) struct Consumer {
    /// Index up to which records were read, ahead of `released`.
    tail: u64,
    released: u64,
}

impl Consumer {
    /// Continues where the last consumer of this ring stopped.
    pub(crate) fn attach(ring: &[AtomicU64]) -> Self {
        let tail = ring[TAIL].load(Ordering::Acquire);
        Self { tail, released: tail }
    }

    /// Returns true if a complete record is available, or if the ring is broken and [`Consumer::next`] will
    /// report it.
    pub(crate) fn has_more(&self, ring: &[AtomicU64]) -> bool {
        self.first_word(ring).is_some()
    }

    /// Returns the next record in place, of at most `most` bytes.
    pub(crate) fn next(&mut self, ring: &[AtomicU64], most: usize) -> Result<Option<Record>, Broken> {
        let Some(word) = self.first_word(ring) else { return Ok(None) };
        let free = data(ring).len() as u64 - self.unreleased();
        let len = record_len(word, most, free)?;
        let record = Record { at: self.tail.wrapping_add(1), len };
        self.tail = self.tail.wrapping_add(1 + len.div_ceil(WORD) as u64);
        Ok(Some(record))
    }

    /// Releases the space of the read records to the producers, set to zero.
    pub(crate) fn release(&mut self, ring: &[AtomicU64]) {
        let count = usize::try_from(self.unreleased()).expect("words of the ring");
        if count == 0 {
            return;
        }
        let data = data(ring);
        let (before, behind) = data.split_at(place(self.released, data));
        let first = count.min(behind.len());
        for word in behind[..first].iter().chain(&before[..count - first]) {
            word.store(UNWRITTEN, Ordering::Relaxed);
        }
        ring[TAIL].store(self.tail, Ordering::Release);
        self.released = self.tail;
    }

    /// Returns the first word of the next record, if that is complete. If the whole ring was read and not
    /// released, its words belong to records that were read.
    fn first_word(&self, ring: &[AtomicU64]) -> Option<u64> {
        let data = data(ring);
        if self.unreleased() == data.len() as u64 {
            return None;
        }
        let word = data[place(self.tail, data)].load(Ordering::Acquire);
        (word != UNWRITTEN).then_some(word)
    }

    const fn unreleased(&self) -> u64 {
        self.tail.wrapping_sub(self.released)
    }
}

/// Copies bytes of a record, starting at `from`. The producers may write there concurrently, so callers must
/// check the copy.
pub(crate) fn copy(ring: &[AtomicU64], record: Record, from: usize, into: &mut [u8]) {
    assert!(from.checked_add(into.len()).is_some_and(|end| end <= record.len), "bytes of the record");
    let (data, at) = (data(ring), record.at.wrapping_add((from / WORD) as u64));
    let within = from % WORD;
    if within == 0 {
        return load_at(data, at, into);
    }
    let (first, rest) = into.split_at_mut(into.len().min(WORD - within));
    let word = data[place(at, data)].load(Ordering::Relaxed).to_le_bytes();
    first.copy_from_slice(&word[within..within + first.len()]);
    load_at(data, at.wrapping_add(1), rest);
}
