//! Far memory of a program in another process, which has sent its memfd and its userfaultfd.
//!
//! Key types: [`Remote`], the mechanism of one process; [`Acceptor`], which admits processes and waits for their
//! events. Like a [`Window`](super::Window), this module has no policy and keeps no state of pages. Unlike a window's
//! program, this one may end at any moment, run another program, or unmap its memory. Then a call returns [`Lost`].
//!
//! Two operations of a window are impossible from outside. A present page cannot be unmapped (`process_madvise`
//! refuses), so pages cannot be inactive. There is no doorbell, because one thread waits for many processes.

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
use farmem_preload_abi::userfaultfd::MESSAGE_LEN;
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

/// Why an operation on a process's memory is impossible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Lost {
    /// The process has ended, or runs another program.
    #[error("the process has ended, or runs another program")]
    Exited,
    /// The process has mapped something else at the address.
    #[error("the process has mapped something else there ({0})")]
    Remapped(Errno),
}

/// A process's far memory. Pages are numbered by their position in the memfd; the first [`CONTROL_PAGES`] are not far
/// memory.
#[derive(Debug)]
pub struct Remote {
    uffd: Userfaultfd,
    file: OwnedFd,
    /// The identity of the memfd in lists of mappings.
    id: FileId,
    base: usize,
    pages: u64,
    /// True if the file does not behave as a memfd.
    spoiled: AtomicBool,
}

/// Buffer for the faults of one read.
pub type Buffer = Box<[[u8; MESSAGE_LEN]; BATCH]>;

/// Creates a buffer for the faults of one read.
#[must_use]
pub fn buffer() -> Buffer {
    Box::new([[0; MESSAGE_LEN]; BATCH])
}

/// The offset that makes `preadv2` read a stream.
const AS_A_STREAM: u64 = u64::MAX;

/// Reads the waiting messages without blocking, whatever flags the description has.
///
/// Returns [`Errno::AGAIN`] if there are none, and [`Errno::OPNOTSUPP`] if the kernel obeys only the flags (before
/// Linux 6.10).
fn read_at_once(uffd: &Userfaultfd, buffer: &mut Buffer) -> Result<usize, Errno> {
    let mut parts = [IoSliceMut::new(buffer.as_flattened_mut())];
    let read = || preadv2(uffd, &mut parts, AS_A_STREAM, ReadWriteFlags::NOWAIT);
    let bytes = retry_on_intr(read)?;
    assert!(bytes.is_multiple_of(MESSAGE_LEN), "the kernel hands over whole messages");
    Ok(bytes / MESSAGE_LEN)
}

/// The kernel's name for a userfaultfd. Names of files begin with a slash.
const USERFAULTFD: &str = "anon_inode:[userfaultfd]";
/// The directory that shows the names of this process's descriptors.
const DESCRIPTORS: &str = "/proc/self/fd";

/// Returns true if a descriptor is a userfaultfd, by the kernel's name for it, without a call to a file system. If
/// that name is not visible, the descriptor counts as one.
fn is_userfaultfd(fd: &OwnedFd) -> bool {
    let of = Path::new(DESCRIPTORS).join(fd.as_raw_fd().to_string());
    match fs::read_link(of) {
        Ok(name) => name == Path::new(USERFAULTFD),
        Err(_) => !Path::new(DESCRIPTORS).exists(),
    }
}

impl Remote {
    /// Accepts a greeting's descriptors. Sets the length of an empty file, because the process's own file size limit
    /// may forbid that.
    ///
    /// Returns `None` if the file is not a memfd, or if its length differs from the greeting or is not a valid number
    /// of pages. Also returns `None` if the other descriptor is no userfaultfd. Another file may have a file system
    /// that never answers.
    pub(super) fn new(uffd: OwnedFd, file: OwnedFd, hello: &call::Hello) -> Option<Self> {
        let len = usize::try_from(hello.len).ok()?;
        let base = usize::try_from(hello.base).ok()?;
        let whole = len.is_multiple_of(PAGE_LEN) && base.is_multiple_of(PAGE_LEN) && len <= place::LEN_MAX;
        // Only files in memory have seals, and this call asks no file system.
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

    /// Returns the number of pages, with those before far memory.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the pages of `len` bytes from the program's address `start` on; `None` if they leave its far memory.
    #[must_use]
    pub fn range(&self, start: u64, len: u64) -> Option<Range<u64>> {
        let first = start.checked_sub(self.base as u64)?;
        let end = first.checked_add(len)?.checked_next_multiple_of(PAGE_LEN as u64)? / PAGE_LEN as u64;
        let first = first / PAGE_LEN as u64;
        (first >= CONTROL_PAGES as u64 && end <= self.pages).then_some(first..end)
    }

    /// Returns the program's address of a page.
    #[must_use]
    pub const fn address(&self, page: u64) -> u64 {
        self.base as u64 + page * PAGE_LEN as u64
    }

    /// Duplicates the userfaultfd, for other memory that it serves.
    ///
    /// # Errors
    /// The system's error if no descriptors are left.
    pub(super) fn userfaultfd(&self) -> std::io::Result<Userfaultfd> {
        self.uffd.again()
    }

    /// Passes reported faults to `each`, up to the buffer's capacity; faults outside far memory go to `elsewhere`.
    /// Returns true if the buffer was full.
    ///
    /// # Errors
    /// [`Lost::Exited`] if nothing will be reported any more.
    pub fn faults(
        &self,
        buffer: &mut Buffer,
        mut each: impl FnMut(u64, Fault),
        mut elsewhere: impl FnMut(Fault),
    ) -> Result<bool, Lost> {
        let count = match self.messages(buffer) {
            Ok(count) => count,
            Err(Errno::AGAIN) => 0,
            Err(_) => return Err(Lost::Exited),
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

    /// Reads reported faults without blocking: a pager that blocked here would serve no other process.
    fn messages(&self, buffer: &mut Buffer) -> Result<usize, Errno> {
        match read_at_once(&self.uffd, buffer) {
            Err(Errno::AGAIN) => {
                self.keep_from_waiting()?;
                Err(Errno::AGAIN)
            }
            // The kernel obeys only the flag. If a program clears the flag before the read, the pager blocks
            // (docs/security.md).
            Err(Errno::OPNOTSUPP) => {
                self.keep_from_waiting()?;
                self.uffd.read(&mut buffer[..])
            }
            read => read,
        }
    }

    /// Sets the non-blocking flag again. The program shares the description and can clear the flag, which makes it
    /// permanently readable.
    fn keep_from_waiting(&self) -> Result<(), Errno> {
        let flags = fcntl_getfl(&self.uffd)?;
        if flags.contains(OFlags::NONBLOCK) {
            Ok(())
        } else {
            fcntl_setfl(&self.uffd, flags | OFlags::NONBLOCK)
        }
    }

    /// Installs absent pages, and wakes the threads that wait for them.
    ///
    /// # Errors
    /// [`Lost`], also if a page is present: only the program itself can have put it there.
    pub fn install(&self, first: u64, bytes: &[u8], access: Access) -> Result<(), Lost> {
        // SAFETY: addresses of another process, which sent the descriptor so that they are filled.
        unsafe { self.uffd.copy_all(self.place(first), bytes, mapping(access)) }.map_err(lost)
    }

    /// Serves a fault on a present page: maps the page with these rights, and wakes the thread.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn remap(&self, page: u64, access: Access) -> Result<(), Lost> {
        let start = self.place(page);
        // SAFETY: addresses of another process, which sent the descriptor so that they are served.
        match unsafe { self.uffd.map(start, PAGE_LEN, mapping(access)) } {
            Ok(()) => Ok(()),
            Err(Stopped { errno: Errno::EXIST, .. }) => match access {
                Access::Modified => self.allow(page..page + 1),
                Access::Shared => self.wake(page..page + 1),
            },
            Err(Stopped { errno, .. }) => Err(lost(errno)),
        }
    }

    /// Makes present pages writable, and wakes waiting threads.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn allow(&self, pages: Range<u64>) -> Result<(), Lost> {
        self.protect(pages, Mapping::Writable)
    }

    /// Write-protects pages: the next write to each is reported. When this returns, no earlier store is in flight.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn write_protect(&self, pages: Range<u64>) -> Result<(), Lost> {
        self.protect(pages, Mapping::ReadOnly)
    }

    /// Returns true if the program has replaced, sealed or shrunk its memfd. Its bytes are then unreliable, and the
    /// program should be ended.
    #[must_use]
    pub fn is_spoiled(&self) -> bool {
        self.spoiled.load(Ordering::Relaxed)
    }

    fn spoil(&self) {
        self.spoiled.store(true, Ordering::Relaxed);
    }

    /// Copies bytes from the start of a page on. Absent pages read as zeros, as does a file that [is
    /// spoiled](Remote::is_spoiled).
    pub fn read(&self, page: u64, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let place = page * PAGE_LEN as u64 + done as u64;
            let count = retry_on_intr(|| rustix::io::pread(&self.file, &mut into[done..], place));
            match count {
                Ok(count) if count > 0 => done += count,
                // The program has shrunk its file, or the file never was a memfd.
                Ok(_) | Err(_) => {
                    self.spoil();
                    return into[done..].fill(0);
                }
            }
        }
    }

    /// Writes a page's bytes to the file; a fault that [`Remote::remap`] serves then shows them to the program.
    /// Returns false if the program has sealed its file.
    #[must_use]
    pub fn keep(&self, page: u64, bytes: &[u8]) -> bool {
        let place = page * PAGE_LEN as u64;
        retry_on_intr(|| rustix::io::pwrite(&self.file, bytes, place)) == Ok(bytes.len())
    }

    /// Frees pages; threads that touch them wait again. If the kernel refuses, the file [is
    /// spoiled](Remote::is_spoiled).
    pub fn discard(&self, pages: Range<u64>) {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (start, len) = (pages.start * PAGE_LEN as u64, (pages.end - pages.start) * PAGE_LEN as u64);
        retry_on_intr(|| fallocate(&self.file, mode, start, len)).unwrap_or_else(|_| self.spoil());
    }

    /// Wakes threads that wait for one of the pages.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn wake(&self, pages: Range<u64>) -> Result<(), Lost> {
        let len = usize::try_from(pages.end - pages.start).expect("pages of one address space") * PAGE_LEN;
        self.uffd.wake(self.place(pages.start), len).map_err(lost)
    }

    /// Makes every access to the page end in SIGBUS, until other bytes are installed.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn poison(&self, page: u64) -> Result<(), Lost> {
        // SAFETY: addresses of another process, which learns of the loss in this way.
        match unsafe { self.uffd.poison_page(self.place(page)) } {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(lost(errno)),
        }
    }

    /// Returns true if the process has ended, or runs another program.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        // SAFETY: the first page is mapped and not registered, so this only checks for the process's memory.
        matches!(unsafe { self.uffd.zero(self.base, PAGE_LEN) }, Err(Stopped { errno: Errno::SRCH, .. }))
    }

    /// Returns the memory of the pages in bytes, as the kernel counts it, with those before far memory.
    #[must_use]
    pub fn bytes_taken(&self) -> u64 {
        const BLOCK: u64 = 512;
        fstat(&self.file).map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK)
    }

    /// Returns the call in a mailbox and its number, which is 0 before the first call.
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

    /// Returns the bytes of mappings that stayed local, by reason, as the process reports them.
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

    /// Returns the text of `len` bytes that belongs to the call in a mailbox; `None` if it is not UTF-8 or too long.
    #[must_use]
    pub fn text(&self, mailbox: usize, len: u64) -> Option<String> {
        let len = usize::try_from(len).ok().filter(|&len| len <= TEXT_MAX && mailbox < MAILBOXES)?;
        let mut bytes = vec![0; len];
        let place = (TEXTS + mailbox * TEXT_MAX) as u64;
        let count = rustix::io::pread(&self.file, &mut bytes, place).ok()?;
        String::from_utf8(bytes).ok().filter(|_| count == len)
    }

    /// Writes the answer to a call into its mailbox.
    ///
    /// # Panics
    /// Panics if there is no such mailbox.
    pub fn answer(&self, mailbox: usize, status: u64, values: [u64; VALUES]) {
        assert!(mailbox < MAILBOXES, "a mailbox");
        let mut bytes = [0; (1 + VALUES) * 8];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([status].iter().chain(&values)) {
            *to = word.to_le_bytes();
        }
        let place = (mailbox * MAILBOX_WORDS + WORD_STATUS) as u64 * 8;
        // If the file cannot be written, its program has sealed it, and then reads its own bytes.
        let _ = rustix::io::pwrite(&self.file, &bytes, place);
    }

    fn protect(&self, pages: Range<u64>, mapping: Mapping) -> Result<(), Lost> {
        let len = usize::try_from(pages.end - pages.start).expect("pages of one address space") * PAGE_LEN;
        // SAFETY: addresses of another process, which sent the descriptor so that they are served.
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
        Errno::SRCH => Lost::Exited,
        other => Lost::Remapped(other),
    }
}
