//! Memory accesses of real programs, recorded once and replayed over simulated racks (MIND 7.1).
//!
//! Programs run under valgrind, whose tool `lackey` prints each access; [`lackey::Accesses`] reads that, [`Compactor`] keeps what a
//! coherence protocol can notice, and [`Writer`] and [`Reader`] keep it in files. One [`Visit`] is a page that a thread turns to.
//!
//! valgrind runs one thread at a time, for a hundred thousand basic blocks or until it waits. So a trace says in which order a
//! thread touched pages, and only roughly how the threads' accesses lay between each other's; a replay runs its threads side by side.

use std::collections::VecDeque;

mod file;
pub mod lackey;

pub use file::{Header, Reader, TraceError, Writer};

/// Bytes of a page.
pub const PAGE_LEN: u64 = 1 << farmem_wire::message::PAGE_SHIFT;
/// Pages that a thread is taken to have at hand: coming back to one of them is counted, and is no new visit.
pub const AT_HAND: usize = 8;

/// What a program did, one thing after another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// From here on this thread runs.
    Thread(u16),
    /// An instruction was executed.
    Instruction,
    /// These bytes were read, or written (or both).
    Access {
        /// The first one's address.
        addr: u64,
        /// How many; at least one.
        len: u64,
        /// True when they were written.
        write: bool,
    },
}

/// A page that a thread turns to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Visit {
    /// The thread, numbered from 0 in the order in which threads ran first.
    pub thread: u16,
    /// The page's number: address / [`PAGE_LEN`].
    pub page: u64,
    /// True when it writes there. Pages that are first read and then written are visited twice.
    pub write: bool,
    /// Instructions of this thread between its last visit and this one.
    pub instructions: u64,
    /// Accesses of this thread in them, all to pages it had at hand.
    pub accesses: u64,
}

/// Turns events into visits. It leaves out accesses that a page table entry, once filled, serves unnoticed:
/// those to the last [`AT_HAND`] pages of the running thread.
#[derive(Debug, Default)]
pub struct Compactor {
    /// The numbers of the threads seen, in order.
    threads: Vec<u16>,
    running: u16,
    /// The page, and whether it was written; the one used last comes first.
    at_hand: VecDeque<(u64, bool)>,
    instructions: u64,
    accesses: u64,
}

impl Compactor {
    /// A program that has done nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes an event; calls `visit` for each page that the running thread turns to, which for one access may be several.
    ///
    /// # Errors
    /// What `visit` answers.
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

    /// True when the page is at hand for this; it is then the one used last.
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
