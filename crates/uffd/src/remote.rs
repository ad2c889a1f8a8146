//! Far memory of a program in another process: its memfd and its userfaultfd, which it sent here.
//!
//! Key types: [`Remote`], the mechanism of one process; [`Acceptor`], where processes come in and where all that is to be known of them is
//! waited for. As a [`Window`](super::Window) it decides nothing and keeps no state of pages. Other than a window's program, this one
//! may end at any moment, run another program, or unmap its memory: then a call answers [`Lost`], and nothing is asserted.
//!
//! Two things a window does cannot be done from outside: the mapping of a page that stays cannot be taken away
//! (`process_madvise` refuses), so pages do not rest in place; and there is no doorbell, as one thread waits for many processes.

mod acceptor;
mod address_space;
mod guard;
mod plain;
pub mod raw;
mod socket_file;
#[cfg(test)]
mod tests;

pub use acceptor::{Accepted, Acceptor, Event, Watch, is_readable, kill};
pub use address_space::AddressSpace;
pub use farmem_preload_abi::{Advised, advised, advised_shared, call, place};
pub use guard::{Guard, guard};
pub use plain::pages_come_singly;
pub use socket_file::remove;

use super::state::mapping;
use super::{BATCH, Fault, Message, Reach};
use address_space::FileId;
use call::{
    CALL_WORDS, CONTROL_PAGES, Call, LocalReason, MAILBOX_WORDS, MAILBOXES, TEXT_MAX, TEXTS, VALUES,
    WORD_CALL, WORD_LOCAL, WORD_NUMBER, WORD_STATUS,
};
use farmem_preload_abi::message::parse;
use farmem_preload_abi::userfaultfd::{Mapping, Stopped, Userfaultfd};
use farmem_wire::message::{Access, PAGE_LEN};
use rustix::fs::{
    FallocateFlags, OFlags, fallocate, fcntl_get_seals, fcntl_getfl, fcntl_setfl, fstat, ftruncate,
};
use rustix::io::{Errno, ReadWriteFlags, preadv2, retry_on_intr};
use std::fs;
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why nothing can be done to a process's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Lost {
    /// The process has ended, or runs another program.
    #[error("the process has ended, or runs another program")]
    Gone,
    /// Not its pages: it has mapped something else there.
    #[error("the process has mapped something else there ({0})")]
    Remapped(Errno),
}

/// A process's far memory. Pages are numbered by their place in its memfd; the first [`CONTROL_PAGES`] are no far memory.
#[derive(Debug)]
pub struct Remote {
    uffd: Userfaultfd,
    file: OwnedFd,
    /// The memfd, as lists of mappings name it.
    id: FileId,
    base: usize,
    pages: u64,
    /// The file did not do what a memfd does.
    spoiled: AtomicBool,
}

/// Faults of one read.
pub type Buffer = Box<[[u8; parse::LEN]; BATCH]>;

/// Room for the faults of one read.
#[must_use]
pub fn buffer() -> Buffer {
    Box::new([[0; parse::LEN]; BATCH])
}

/// In the place of a position in a file (`preadv2`).
const AS_A_STREAM: u64 = u64::MAX;

/// Reads the messages that are there, and does not wait, whatever flags the description has. [`Errno::AGAIN`] when none is there; [`Errno::OPNOTSUPP`]
/// where the system only goes by the flags (before Linux 6.10).
fn read_at_once(uffd: &Userfaultfd, buffer: &mut Buffer) -> Result<usize, Errno> {
    let mut parts = [IoSliceMut::new(buffer.as_flattened_mut())];
    let read = || preadv2(uffd, &mut parts, AS_A_STREAM, ReadWriteFlags::NOWAIT);
    let bytes = retry_on_intr(read)?;
    assert!(bytes.is_multiple_of(parse::LEN), "the kernel hands over whole messages");
    Ok(bytes / parse::LEN)
}

/// The system's name for a userfaultfd. No file has such a name: theirs begin with a slash.
const USERFAULTFD: &str = "anon_inode:[userfaultfd]";
/// Where it says so, of this process's descriptors.
const DESCRIPTORS: &str = "/proc/self/fd";

/// Whether a descriptor is a userfaultfd's, as the system names it, which asks no file system. Where that cannot be seen it is taken for one.
fn is_userfaultfd(fd: &OwnedFd) -> bool {
    let of = Path::new(DESCRIPTORS).join(fd.as_raw_fd().to_string());
    match fs::read_link(of) {
        Ok(name) => name == Path::new(USERFAULTFD),
        Err(_) => !Path::new(DESCRIPTORS).exists(),
    }
}

impl Remote {
    /// Accepts a greeting's descriptors. An empty file gets the length of the greeting: the process's own limit of file sizes may forbid it that. `None`
    /// when the file is no memory file (another one may have a file system behind it that never answers), has another length, or not whole pages, or more than is
    /// ever reserved; and when the other descriptor is no userfaultfd's, for the same reason.
    pub(super) fn new(uffd: OwnedFd, file: OwnedFd, hello: &call::Hello) -> Option<Self> {
        let len = usize::try_from(hello.len).ok()?;
        let base = usize::try_from(hello.base).ok()?;
        let whole = len.is_multiple_of(PAGE_LEN) && base.is_multiple_of(PAGE_LEN) && len <= place::LEN_MAX;
        // Only files in memory have seals, and it asks no file system.
        fcntl_get_seals(&file).ok()?;
        let size = fstat(&file).ok()?.st_size;
        let size = if size == 0 && whole && ftruncate(&file, hello.len).is_ok() {
            hello.len
        } else {
            u64::try_from(size).ok()?
        };
        if !whole || len <= CONTROL_PAGES * PAGE_LEN || size != hello.len {
            return None;
        }
        base.checked_add(len)?;
        if !is_userfaultfd(&uffd) {
            return None;
        }
        fcntl_setfl(&uffd, OFlags::NONBLOCK).ok()?;
        let reach = if hello.full { Reach::Full } else { Reach::UserMode };
        let pages = hello.len / PAGE_LEN as u64;
        let spoiled = AtomicBool::new(false);
        let id = FileId::of(&file).ok()?;
        Some(Self { uffd: Userfaultfd::received(uffd, reach), file, id, base, pages, spoiled })
    }

    /// Pages, with those before far memory.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// The page at an address of the program's, and of bytes from there on; `None` when they leave its memory.
    #[must_use]
    pub fn range(&self, start: u64, len: u64) -> Option<Range<u64>> {
        let first = start.checked_sub(self.base as u64)?;
        let end = first.checked_add(len)?.checked_next_multiple_of(PAGE_LEN as u64)? / PAGE_LEN as u64;
        let first = first / PAGE_LEN as u64;
        (first >= CONTROL_PAGES as u64 && end <= self.pages).then_some(first..end)
    }

    /// Where the program has a page.
    #[must_use]
    pub const fn address(&self, page: u64) -> u64 {
        self.base as u64 + page * PAGE_LEN as u64
    }

    /// Its userfaultfd once more, for what else is served by it.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn userfaultfd(&self) -> std::io::Result<Userfaultfd> {
        self.uffd.again()
    }

    /// Hands over what was reported, up to the buffer's room: faults of its far memory, and of what else it had served. Answers whether the
    /// buffer was full.
    ///
    /// # Errors
    /// [`Lost::Gone`] when nothing will be reported any more.
    pub fn faults(
        &self,
        buffer: &mut Buffer,
        mut each: impl FnMut(u64, Fault),
        mut elsewhere: impl FnMut(Fault),
    ) -> Result<bool, Lost> {
        let count = match self.messages(buffer) {
            Ok(count) => count,
            Err(Errno::AGAIN) => 0,
            Err(_) => return Err(Lost::Gone),
        };
        for bytes in &buffer[..count] {
            let Message::Fault(fault) = parse::message(bytes, &self.uffd) else { continue };
            let page = fault.addr.checked_sub(self.base).map(|offset| (offset / PAGE_LEN) as u64);
            match page.filter(|&page| page < self.pages) {
                Some(page) => each(page, fault),
                None => elsewhere(fault),
            }
        }
        Ok(count == BATCH)
    }

    /// Reads reported faults without waiting: a pager that waited here would serve no other process.
    fn messages(&self, buffer: &mut Buffer) -> Result<usize, Errno> {
        match read_at_once(&self.uffd, buffer) {
            Err(Errno::AGAIN) => {
                self.keep_from_waiting()?;
                Err(Errno::AGAIN)
            }
            // The system goes by the flag alone. One that a program takes away from here to the read has the pager wait (docs/security.md).
            Err(Errno::OPNOTSUPP) => {
                self.keep_from_waiting()?;
                self.uffd.read(&mut buffer[..])
            }
            read => read,
        }
    }

    /// The program has the same description, so it can take the flag away: then it seems to have something to say all the time.
    fn keep_from_waiting(&self) -> Result<(), Errno> {
        let flags = fcntl_getfl(&self.uffd)?;
        if flags.contains(OFlags::NONBLOCK) {
            Ok(())
        } else {
            fcntl_setfl(&self.uffd, flags | OFlags::NONBLOCK)
        }
    }

    /// Puts pages in place that are not there, and wakes the threads that wait for them.
    ///
    /// # Errors
    /// [`Lost`], also when a page is there already: only the program itself can have put it there.
    pub fn install(&self, first: u64, bytes: &[u8], access: Access) -> Result<(), Lost> {
        // SAFETY: addresses of another process, which sent the descriptor to have them filled.
        unsafe { self.uffd.copy_all(self.place(first), bytes, mapping(access)) }.map_err(lost)
    }

    /// A thread faulted at a page that is there: maps it as it is to be, and lets the thread try again.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn remap(&self, page: u64, access: Access) -> Result<(), Lost> {
        let start = self.place(page);
        // SAFETY: addresses of another process, which sent the descriptor to have them served.
        match unsafe { self.uffd.map(start, PAGE_LEN, mapping(access)) } {
            Ok(()) => Ok(()),
            Err(Stopped { errno: Errno::EXIST, .. }) => match access {
                Access::Modified => self.allow(page..page + 1),
                Access::Shared => self.wake(page..page + 1),
            },
            Err(Stopped { errno, .. }) => Err(lost(errno)),
        }
    }

    /// Makes present pages writable; waiting threads try again.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn allow(&self, pages: Range<u64>) -> Result<(), Lost> {
        self.protect(pages, Mapping::Writable)
    }

    /// The next write to each page is reported. When it returns, no store from before is on its way.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn write_protect(&self, pages: Range<u64>) -> Result<(), Lost> {
        self.protect(pages, Mapping::ReadOnly)
    }

    /// True when the program has put something else in the place of its memfd, or has sealed or cut it: no byte of it is what it seems, and the
    /// program is best ended.
    #[must_use]
    pub fn is_spoiled(&self) -> bool {
        self.spoiled.load(Ordering::Relaxed)
    }

    fn spoil(&self) {
        self.spoiled.store(true, Ordering::Relaxed);
    }

    /// Copies the bytes of a page and of those behind it, as many as there is room for. Those of a page that is not there are zeros, as are
    /// all that a file does not give which [is none any more](Remote::is_spoiled).
    pub fn read(&self, page: u64, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let place = page * PAGE_LEN as u64 + done as u64;
            let count = retry_on_intr(|| rustix::io::pread(&self.file, &mut into[done..], place));
            match count {
                Ok(count) if count > 0 => done += count,
                // The program has cut its own file, or it never was a memfd.
                Ok(_) | Err(_) => {
                    self.spoil();
                    return into[done..].fill(0);
                }
            }
        }
    }

    /// Puts a page's bytes where the program finds them by a fault that [`Remote::remap`] serves, whatever it has mapped there now. False when it has sealed
    /// its own file.
    #[must_use]
    pub fn keep(&self, page: u64, bytes: &[u8]) -> bool {
        let place = page * PAGE_LEN as u64;
        retry_on_intr(|| rustix::io::pwrite(&self.file, bytes, place)) == Ok(bytes.len())
    }

    /// Gives pages' memory back to the system; threads that touch them wait again. Where the system refuses, the file [is none any
    /// more](Remote::is_spoiled).
    pub fn discard(&self, pages: Range<u64>) {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (start, len) = (pages.start * PAGE_LEN as u64, (pages.end - pages.start) * PAGE_LEN as u64);
        retry_on_intr(|| fallocate(&self.file, mode, start, len)).unwrap_or_else(|_| self.spoil());
    }

    /// Has threads that wait for one of the pages try again.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn wake(&self, pages: Range<u64>) -> Result<(), Lost> {
        let len = usize::try_from(pages.end - pages.start).expect("pages of one address space") * PAGE_LEN;
        self.uffd.wake(self.place(pages.start), len).map_err(lost)
    }

    /// Every access to the page ends in SIGBUS until something else is put there.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn poison(&self, page: u64) -> Result<(), Lost> {
        // SAFETY: addresses of another process, which is to be told so.
        match unsafe { self.uffd.poison_page(self.place(page)) } {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(lost(errno)),
        }
    }

    /// True when the process has ended, or runs another program.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        // SAFETY: the first page is mapped and not registered, so this does nothing but look for the process's memory.
        matches!(unsafe { self.uffd.zero(self.base, PAGE_LEN) }, Err(Stopped { errno: Errno::SRCH, .. }))
    }

    /// Bytes of memory its pages take, as the system counts them, with those before far memory.
    #[must_use]
    pub fn bytes_taken(&self) -> u64 {
        const BLOCK: u64 = 512;
        fstat(&self.file).map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK)
    }

    /// The call in a mailbox and its number; 0 when there was none yet.
    #[must_use]
    pub fn call(&self, mailbox: usize) -> (u64, Option<Call>) {
        let mut bytes = [0; MAILBOX_WORDS * 8];
        let place = (mailbox * bytes.len()) as u64;
        if !matches!(rustix::io::pread(&self.file, &mut bytes, place), Ok(count) if count == MAILBOX_WORDS * 8)
        {
            return (0, None);
        }
        let (words, _) = bytes.as_chunks::<8>();
        let word = |n: usize| u64::from_le_bytes(words[n]);
        let call: [u64; CALL_WORDS] = std::array::from_fn(|n| word(WORD_CALL + n));
        (word(WORD_NUMBER), Call::of(call))
    }

    /// Bytes of its mappings of memory that stayed local, by reason, as the process says itself.
    #[must_use]
    pub fn mapped_local(&self) -> [u64; LocalReason::ALL.len()] {
        let mut bytes = [0; LocalReason::ALL.len() * 8];
        let read = rustix::io::pread(&self.file, &mut bytes, WORD_LOCAL as u64 * 8);
        if read != Ok(bytes.len()) {
            return [0; _];
        }
        let (words, _) = bytes.as_chunks::<8>();
        std::array::from_fn(|n| u64::from_le_bytes(words[n]))
    }

    /// The text that goes with the call in a mailbox: so many bytes of UTF-8. `None` when it is none.
    #[must_use]
    pub fn text(&self, mailbox: usize, len: u64) -> Option<String> {
        let len = usize::try_from(len).ok().filter(|&len| len <= TEXT_MAX && mailbox < MAILBOXES)?;
        let mut bytes = vec![0; len];
        let place = (TEXTS + mailbox * TEXT_MAX) as u64;
        let count = rustix::io::pread(&self.file, &mut bytes, place).ok()?;
        String::from_utf8(bytes).ok().filter(|_| count == len)
    }

    /// Puts the answer to a call into its mailbox.
    ///
    /// # Panics
    /// When there is no such mailbox.
    pub fn answer(&self, mailbox: usize, status: u64, values: [u64; VALUES]) {
        assert!(mailbox < MAILBOXES, "a mailbox");
        let mut bytes = [0; (1 + VALUES) * 8];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([status].iter().chain(&values)) {
            *to = word.to_le_bytes();
        }
        let place = (mailbox * MAILBOX_WORDS + WORD_STATUS) as u64 * 8;
        // A file that cannot be written has been sealed by its program, which then reads what it wrote itself.
        let _ = rustix::io::pwrite(&self.file, &bytes, place);
    }

    fn protect(&self, pages: Range<u64>, mapping: Mapping) -> Result<(), Lost> {
        let len = usize::try_from(pages.end - pages.start).expect("pages of one address space") * PAGE_LEN;
        // SAFETY: addresses of another process, which sent the descriptor to have them served.
        unsafe { self.uffd.protect(self.place(pages.start), len, mapping) }.map_err(lost)
    }

    fn place(&self, page: u64) -> usize {
        assert!(page < self.pages, "a page of this process");
        self.base + usize::try_from(page).expect("a page of one address space") * PAGE_LEN
    }
}

impl AsFd for Remote {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.uffd.as_fd()
    }
}

const fn lost(errno: Errno) -> Lost {
    match errno {
        Errno::SRCH => Lost::Gone,
        other => Lost::Remapped(other),
    }
}
