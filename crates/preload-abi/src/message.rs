//! What a userfaultfd reports: faults, and what the program does to its mappings.
//!
//! Key types: [`Message`], and [`Messages`], which reads them in batches.

use crate::userfaultfd::Userfaultfd;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use std::fmt;
use std::io;

/// Why a thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// There is no page.
    Missing,
    /// The page is in the file, and not mapped.
    Minor,
    /// The page is there, and not to be written.
    WriteProtected,
}

/// A thread waits for a page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fault {
    /// The byte it touched.
    pub addr: usize,
    /// Why it waits.
    pub cause: Cause,
    /// True when it wants to write.
    pub write: bool,
    /// The thread, as the system numbers them; 0 without that feature.
    pub thread: u32,
}

/// A report.
#[derive(Debug)]
pub enum Message {
    /// A thread waits for a page.
    Fault(Fault),
    /// The process forked: what serves the child's copy of the ranges.
    Forked(Userfaultfd),
    /// Pages moved to another address.
    Moved {
        /// Where they were.
        from: usize,
        /// Where they are.
        to: usize,
        /// Bytes.
        len: usize,
    },
    /// Pages were given back (`madvise`): they are missing from now on.
    Removed(std::ops::Range<usize>),
    /// Addresses are no longer mapped.
    Unmapped(std::ops::Range<usize>),
}

/// How long to wait for a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// Not at all.
    None,
    /// Until there is one.
    Endless,
}

/// Messages read by one system call.
pub const BATCH: usize = 64;

/// Reads what a userfaultfd reports; one at a time does.
///
/// A sleep in the read itself costs one system call and one wake-up; a `poll` before it costs 2 us more. So the descriptor is switched
/// between blocking and not, which is cheap, and only when the patience changes. (The kernel refuses to `poll` one that blocks.)
pub struct Messages<'u> {
    uffd: &'u Userfaultfd,
    buffer: Box<[[u8; parse::LEN]; BATCH]>,
    patience: Patience,
}

impl<'u> Messages<'u> {
    pub(crate) fn new(uffd: &'u Userfaultfd) -> Self {
        Self { uffd, buffer: Box::new([[0; parse::LEN]; BATCH]), patience: Patience::Endless }
    }

    /// Hands over up to [`BATCH`] messages, and answers how many.
    ///
    /// # Errors
    /// When the system takes no more calls on the descriptor.
    pub fn read(&mut self, patience: Patience, each: &mut dyn FnMut(Message)) -> io::Result<usize> {
        if patience != self.patience {
            self.switch(patience)?;
        }
        let count = match self.uffd.read(&mut self.buffer[..]) {
            Ok(count) => count,
            Err(Errno::AGAIN) => 0,
            Err(e) => return Err(e.into()),
        };
        for bytes in &self.buffer[..count] {
            each(parse::message(bytes, self.uffd));
        }
        Ok(count)
    }

    fn switch(&mut self, patience: Patience) -> io::Result<()> {
        let flags = match patience {
            Patience::None => OFlags::NONBLOCK,
            Patience::Endless => OFlags::empty(),
        };
        fcntl_setfl(self.uffd, flags)?;
        self.patience = patience;
        Ok(())
    }
}

/// The next reader finds the descriptor as the first did: blocking.
impl Drop for Messages<'_> {
    fn drop(&mut self) {
        if self.patience != Patience::Endless {
            let _ = self.switch(Patience::Endless);
        }
    }
}

impl fmt::Debug for Messages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").field("uffd", &self.uffd).finish_non_exhaustive()
    }
}

/// `struct uffd_msg`, as the kernel lays it out: the event at 0, up to three words from 8.
pub mod parse {
    use super::{Cause, Fault, Message, Userfaultfd};
    use linux_raw_sys::general as raw;

    /// Bytes of a message.
    pub const LEN: usize = size_of::<raw::uffd_msg>();
    const _: () = assert!(LEN == 32 && cfg!(target_endian = "little"));

    /// What the message says.
    ///
    /// # Panics
    /// For an event that is of no feature which [`Features`](crate::userfaultfd::Features) can name.
    #[must_use]
    pub fn message(bytes: &[u8; LEN], uffd: &Userfaultfd) -> Message {
        let (words, _) = bytes.as_chunks::<8>();
        let arg = |n: usize| u64::from_le_bytes(words[1 + n]);
        let place = |n: usize| usize::try_from(arg(n)).expect("an address of this machine");
        match u32::from(bytes[0]) {
            raw::UFFD_EVENT_PAGEFAULT => Message::Fault(fault(arg(0), place(1), low(arg(2)))),
            raw::UFFD_EVENT_FORK => {
                Message::Forked(uffd.of_child(low(arg(0)).try_into().expect("a descriptor is not negative")))
            }
            raw::UFFD_EVENT_REMAP => Message::Moved { from: place(0), to: place(1), len: place(2) },
            raw::UFFD_EVENT_REMOVE => Message::Removed(place(0)..place(1)),
            raw::UFFD_EVENT_UNMAP => Message::Unmapped(place(0)..place(1)),
            other => unreachable!("the kernel reports event {other:#x}, which was not asked for"),
        }
    }

    fn fault(flags: u64, addr: usize, thread: u32) -> Fault {
        let is = |flag: u32| flags & u64::from(flag) != 0;
        let cause = if is(raw::UFFD_PAGEFAULT_FLAG_WP) {
            Cause::WriteProtected
        } else if is(raw::UFFD_PAGEFAULT_FLAG_MINOR) {
            Cause::Minor
        } else {
            Cause::Missing
        };
        // A write-protect fault is a write whether the kernel says so or not.
        let write = is(raw::UFFD_PAGEFAULT_FLAG_WRITE) || cause == Cause::WriteProtected;
        Fault { addr, cause, write, thread }
    }

    const fn low(word: u64) -> u32 {
        const MASK: u64 = u32::MAX as u64;
        let [a, b, c, d, ..] = (word & MASK).to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}
