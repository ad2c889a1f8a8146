//! The reports of a userfaultfd: faults, and changes of the program's mappings.
//!
//! Key types: [`Message`], and [`Messages`], which reads them in batches.

use crate::userfaultfd::{MESSAGE_LEN, Userfaultfd};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use std::fmt;
use std::io;

/// The cause of a page fault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// No page is there.
    Missing,
    /// The page is in the file but not mapped.
    Minor,
    /// The page is write-protected.
    WriteProtected,
}

/// A page fault, whose thread waits for the page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fault {
    /// Address of the byte that the thread accessed.
    pub addr: usize,
    /// Cause of the fault.
    pub cause: Cause,
    /// True for a write access.
    pub write: bool,
    /// Thread id of the faulting thread; 0 without that userfaultfd feature.
    pub thread: u32,
}

/// A report of a userfaultfd.
#[derive(Debug)]
pub enum Message {
    /// A thread waits for a page.
    Fault(Fault),
    /// The process forked. The userfaultfd serves the child's copy of the ranges.
    Forked(Userfaultfd),
    /// Pages moved to another address (`mremap`).
    Moved {
        /// Old address.
        from: usize,
        /// New address.
        to: usize,
        /// Length in bytes.
        len: usize,
    },
    /// The program gave pages back (`madvise`); they are missing from now on.
    Removed(std::ops::Range<usize>),
    /// The program unmapped addresses.
    Unmapped(std::ops::Range<usize>),
}

/// The time that a read waits for a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// The read does not wait.
    None,
    /// The read waits until there is a report.
    Endless,
}

/// Maximum number of messages that one system call reads.
pub const BATCH: usize = 64;

/// A reader of a userfaultfd's reports. One userfaultfd has at most one reader at a time.
///
/// A sleep in the read itself costs one system call and one wake-up; a `poll` before it costs 2 us more. So
/// the reader switches the descriptor between blocking and non-blocking mode, and only when the patience
/// changes. (The kernel refuses to `poll` a blocking userfaultfd.)
pub struct Messages<'u> {
    uffd: &'u Userfaultfd,
    buffer: Box<[[u8; MESSAGE_LEN]; BATCH]>,
    patience: Patience,
}

impl<'u> Messages<'u> {
    /// Returns a reader of `uffd`, which is in blocking mode.
    #[must_use]
    pub fn new(uffd: &'u Userfaultfd) -> Self {
        Self { uffd, buffer: Box::new([[0; MESSAGE_LEN]; BATCH]), patience: Patience::Endless }
    }

    /// Passes up to [`BATCH`] messages to `each` and returns their number.
    ///
    /// # Errors
    /// The descriptor's error, when the system cannot read from it or change its mode.
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

/// Restores blocking mode, which the next reader expects.
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

/// Decoding of the kernel's `struct uffd_msg`: the event at offset 0, up to three words from offset 8.
pub mod parse {
    use super::{Cause, Fault, MESSAGE_LEN, Message, Userfaultfd};
    use linux_raw_sys::general as raw;

    /// Decodes a message.
    ///
    /// # Panics
    /// Panics on an event that no [`Features`](crate::userfaultfd::Features) constant enables.
    #[must_use]
    pub fn message(bytes: &[u8; MESSAGE_LEN], uffd: &Userfaultfd) -> Message {
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
        // A write-protect fault is always a write, also when the kernel does not set the flag.
        let write = is(raw::UFFD_PAGEFAULT_FLAG_WRITE) || cause == Cause::WriteProtected;
        Fault { addr, cause, write, thread }
    }

    const fn low(word: u64) -> u32 {
        const MASK: u64 = u32::MAX as u64;
        let [a, b, c, d, ..] = (word & MASK).to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}
