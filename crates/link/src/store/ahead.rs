//! Allocation of a store's memory a little ahead of the writes, by a thread of its own.
//!
//! Key type: [`Ahead`]. The first write to a huge page waits until the system has cleared it. That takes a
//! tenth of a millisecond if memory is available, and some milliseconds in a guest whose host must find
//! memory first. With this thread, sequential writes to a memory node do not wait.

use super::Mapping;
use crate::huge::HUGE;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

/// Number of huge pages that are allocated ahead of a written one.
const PIECES: usize = 2;

/// Requests of pages to touch.
pub(super) struct Ahead {
    /// For each huge page, true if it was written or requested.
    asked: Box<[bool]>,
    thread: Option<(Sender<usize>, Option<JoinHandle<()>>)>,
}

impl Ahead {
    /// Creates the state. The thread starts with the first request, and ends with the store.
    pub(super) fn new(len: usize) -> Self {
        Self { asked: vec![false; len / HUGE].into(), thread: None }
    }

    /// Requests the pages after `end`, up to which bytes are about to be written.
    pub(super) fn writes(&mut self, mapping: &Arc<Mapping>, end: usize) {
        let piece = end / HUGE;
        if self.asked.get(piece + 1).is_none_or(|asked| *asked) {
            return;
        }
        self.asked[piece] = true;
        for next in piece + 1..(piece + 1 + PIECES).min(self.asked.len()) {
            if !std::mem::replace(&mut self.asked[next], true) {
                self.ask(mapping, next);
            }
        }
    }

    /// Requests a huge page. If the thread or the system cannot allocate it, the first write does.
    fn ask(&mut self, mapping: &Arc<Mapping>, piece: usize) {
        let (wanted, _) = self.thread.get_or_insert_with(|| {
            let (wanted, hears) = channel();
            let mapping = Arc::clone(mapping);
            let begun = Builder::new().name("farmem-store".into()).spawn(move || take(&mapping, &hears));
            (wanted, begun.ok())
        });
        let _heard = wanted.send(piece);
    }

    /// Waits until all requested pages are allocated.
    #[cfg(test)]
    fn finish(&mut self) {
        let (wanted, thread) = self.thread.take().expect("something was asked for");
        drop(wanted);
        thread.expect("a thread").join().expect("it ends");
    }
}

fn take(mapping: &Mapping, wanted: &Receiver<usize>) {
    while let Ok(piece) = wanted.recv() {
        let start = mapping.start().as_ptr().wrapping_add(piece * HUGE);
        // SAFETY: whole pages inside the mapping, whose bytes do not change.
        if unsafe { libc::madvise(start.cast(), HUGE, libc::MADV_POPULATE_WRITE) } != 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::MappedStore;
    use super::*;
    use farmem_memnode::Store as _;

    /// Pages ahead of a write are allocated before they are written, and written bytes do not change.
    #[test]
    fn memory_is_there_before_it_is_written() {
        const LEN: u64 = 16 * HUGE as u64;
        let mut store = MappedStore::new(LEN).unwrap().populated_ahead();
        let is_there = |store: &MappedStore, piece: usize| {
            let mut resident = 0_u8;
            let start = store.0.start().as_ptr().wrapping_add(piece * HUGE);
            // SAFETY: a page inside the mapping, and space for one byte.
            let result = unsafe { libc::mincore(start.cast(), 1, &raw mut resident) };
            result == 0 && resident & 1 == 1
        };
        assert!(!is_there(&store, 0));
        store.write(5, &[7; 100]);
        store.1.as_mut().unwrap().finish();
        assert!(is_there(&store, 1) && is_there(&store, 2));
        assert!(!is_there(&store, 1 + PIECES), "no more than was asked for");
        store.write(LEN - 8, &[9; 8]);
        store.write(HUGE as u64 - 4, &[3; 8]);
        let read = |store: &MappedStore, at: u64, len: u32| {
            let mut out = Vec::new();
            store.read(at, len, &mut out);
            out
        };
        assert_eq!(read(&store, 5, 100), [7; 100]);
        assert_eq!(read(&store, LEN - 8, 8), [9; 8]);
        assert_eq!(read(&store, HUGE as u64 - 4, 8), [3; 8]);
    }
}
