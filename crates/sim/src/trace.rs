//! Memory accesses of real programs, recorded once and replayed over simulated racks (MIND 7.1).
//!
//! Programs run under valgrind, whose tool `lackey` prints each access. [`lackey::Accesses`] parses the
//! output, [`Compactor`] keeps the accesses that a coherence protocol can observe, and [`Writer`] and
//! [`Reader`] store them in files. One [`Visit`] is a page that a thread turns to.
//!
//! valgrind runs one thread at a time, for a hundred thousand basic blocks or until the thread waits. So a
//! trace has the exact order of a thread's page visits, and only approximately the interleaving of threads; a
//! replay runs threads concurrently.

use std::collections::VecDeque;

mod file;
pub mod lackey;

pub use file::{Header, Reader, TraceError, Writer};

/// Length in bytes of a page.
pub const PAGE_LEN: u64 = 1 << farmem_wire::message::PAGE_SHIFT;
/// Number of recently used pages of a thread that count as at hand: a return to one of them is counted, and
/// is no new visit.
pub const AT_HAND: usize = 8;

/// An event of a recorded program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// This thread runs from here on.
    Thread(u16),
    /// An instruction was executed.
    Instruction,
    /// These bytes were read or written (or both).
    Access {
        /// The first byte.
        addr: u64,
        /// Number of bytes, at least one.
        len: u64,
        /// True for a write.
        write: bool,
    },
}

/// A page that a thread turns to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Visit {
    /// The thread, numbered from 0 in the order of first runs.
    pub thread: u16,
    /// The page's number: address / [`PAGE_LEN`].
    pub page: u64,
    /// True for a write. Pages that are first read and then written are visited twice.
    pub write: bool,
    /// Instructions of this thread between its last visit and this one.
    pub instructions: u64,
    /// Accesses of this thread in between, all to pages at hand.
    pub accesses: u64,
}

/// Turns events into visits. It omits accesses that a filled page table entry serves unnoticed: those to the
/// last [`AT_HAND`] pages of the running thread.
#[derive(Debug, Default)]
pub struct Compactor {
    /// The threads seen, in order.
    threads: Vec<u16>,
    running: u16,
    /// Pages at hand, and whether each was written, the last used first.
    at_hand: VecDeque<(u64, bool)>,
    instructions: u64,
    accesses: u64,
}

impl Compactor {
    /// Returns a compactor for a new program.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Handles an event. Calls `visit` for each page that the running thread turns to, which for one access
    /// may be several.
    ///
    /// # Errors
    ///
    /// The error of `visit`.
    pub fn take<E>(&mut self, event: Event, mut visit: impl FnMut(Visit) -> Result<(), E>) -> Result<(), E> {
        match event {
            Event::Thread(thread) => self.run(thread),
            Event::Instruction => self.instructions += 1,
            Event::Access { addr, len, write } => {
                let last = addr.saturating_add(len.saturating_sub(1)) / PAGE_LEN;
                for page in addr / PAGE_LEN..=last {
                    if self.has(page, write) {
                        self.accesses += 1;
                    } else {
                        visit(self.turn_to(page, write))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, thread: u16) {
        let number = self.threads.iter().position(|&known| known == thread).unwrap_or_else(|| {
            self.threads.push(thread);
            self.threads.len() - 1
        });
        let number = u16::try_from(number).expect("there are not more numbers than threads");
        if number != self.running {
            (self.running, self.instructions, self.accesses) = (number, 0, 0);
            self.at_hand.clear();
        }
    }

    /// Returns true if the page is at hand for this access; it then counts as last used.
    fn has(&mut self, page: u64, write: bool) -> bool {
        let Some(place) =
            self.at_hand.iter().position(|&(known, written)| known == page && (written || !write))
        else {
            return false;
        };
        let used = self.at_hand.remove(place).expect("it is at this place");
        self.at_hand.push_front(used);
        true
    }

    fn turn_to(&mut self, page: u64, write: bool) -> Visit {
        self.at_hand.retain(|&(known, _)| known != page);
        self.at_hand.push_front((page, write));
        self.at_hand.truncate(AT_HAND);
        let (instructions, accesses) =
            (std::mem::take(&mut self.instructions), std::mem::take(&mut self.accesses));
        Visit { thread: self.running, page, write, instructions, accesses }
    }
}

#[cfg(test)]
mod tests;
