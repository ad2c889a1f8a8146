//! A ring of words through which many threads hand records to one consumer in another process, without a lock (PD3 6.1).
//!
//! A thread reserves room by one compare-and-swap, writes its record there, and then adds its words to those that are written. The consumer takes all that there is when as
//! much was written as was reserved: then nobody is in the middle of a record (the progressive pointer of PD3's transfer engine). So threads wait for each other
//! nowhere, and what came together is read together.
//!
//! ```text
//!  word 0..16   identity (checked when it is mapped)
//!  word 16      reserved: words that producers have taken room for since the ring was made
//!  word 32      tail: words released by the consumer
//!  word 48      written: words of records that are whole
//!  word 64..    data, as of a ring with one producer
//! ```
//!
//! A consumer waits as long as a thread is between reserving and having written. One that stops there for ever stops the ring: it fills, and refuses; nothing is read torn.
//! The same file is compiled against loom's atomics by `tests/ring_loom.rs`.

use super::atomic::{AtomicU64, Ordering};
use super::ring::{Broken, WORD, data, load_at, record_len, record_word, store_at};

const RESERVED: usize = 16;
const TAIL: usize = 32;
const WRITTEN: usize = 48;

/// A thread writes a record; false when the ring has no room. The consumer sees it as soon as nobody else is writing.
pub(crate) fn push(ring: &[AtomicU64], bytes: &[u8]) -> Result<bool, Broken> {
    let data = data(ring);
    let (room, need) = (data.len() as u64, 1 + bytes.len().div_ceil(WORD) as u64);
    let mut reserved = ring[RESERVED].load(Ordering::Relaxed);
    loop {
        let used = reserved.wrapping_sub(ring[TAIL].load(Ordering::Acquire));
        if used.saturating_add(need) > room {
            // A tail that was read late, or one that no consumer writes.
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
    store_at(data, reserved, &record_word(bytes.len()).to_le_bytes());
    store_at(data, reserved.wrapping_add(1), bytes);
    ring[WRITTEN].fetch_add(need, Ordering::Release);
    Ok(true)
}

/// A record in the ring: it stays where it is until it is released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    at: u64,
    pub(crate) len: usize,
}

/// The end that reads.
#[derive(Debug)]
pub(crate) struct Consumer {
    /// Read so far; ahead of what is released.
    tail: u64,
    released: u64,
    /// The end of the batch that is being read.
    end: u64,
}

impl Consumer {
    /// Goes on where the last consumer of this ring stopped.
    pub(crate) fn attach(ring: &[AtomicU64]) -> Self {
        let tail = ring[TAIL].load(Ordering::Acquire);
        Self { tail, released: tail, end: tail }
    }

    /// True when records wait that nobody is writing any more, or the ring is broken and [`Consumer::next`] will say so.
    pub(crate) fn has_more(&self, ring: &[AtomicU64]) -> bool {
        self.tail != self.end || whole(ring).is_some_and(|end| end != self.tail)
    }

    /// The next record, where it lies; `most` bytes at most.
    pub(crate) fn next(&mut self, ring: &[AtomicU64], most: usize) -> Result<Option<Record>, Broken> {
        let data = data(ring);
        if self.tail == self.end {
            match whole(ring) {
                Some(end) if end != self.tail => self.end = end,
                _ => return Ok(None),
            }
        }
        let waiting = self.end.wrapping_sub(self.tail);
        if waiting > data.len() as u64 {
            return Err(Broken);
        }
        let mut word = [0; WORD];
        load_at(data, self.tail, &mut word);
        let len = record_len(u64::from_le_bytes(word), most, waiting)?;
        let record = Record { at: self.tail.wrapping_add(1), len };
        self.tail = self.tail.wrapping_add(1 + len.div_ceil(WORD) as u64);
        Ok(Some(record))
    }

    /// Gives the room of the records read back to the producers.
    pub(crate) fn release(&mut self, ring: &[AtomicU64]) {
        if self.released != self.tail {
            ring[TAIL].store(self.tail, Ordering::Release);
            self.released = self.tail;
        }
    }
}

/// Copies the first bytes of a record. The producers may write anything there meanwhile: who looks at them must have copied them.
pub(crate) fn copy(ring: &[AtomicU64], record: Record, into: &mut [u8]) {
    assert!(into.len() <= record.len, "bytes of the record");
    load_at(data(ring), record.at, into);
}

/// Words up to which all records are whole; `None` while somebody writes.
fn whole(ring: &[AtomicU64]) -> Option<u64> {
    // In this order: what was written when this was read had been reserved, and if nothing more is reserved now, nobody was writing then.
    let written = ring[WRITTEN].load(Ordering::Acquire);
    let reserved = ring[RESERVED].load(Ordering::Acquire);
    (written == reserved).then_some(written)
}
