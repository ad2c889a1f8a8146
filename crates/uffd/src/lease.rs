//! The lease on a page file, shared by the pager and its watcher. When the lease expires, the watcher revokes all
//! pages, because other hosts may write them from then on (PROTOCOL 12.49).
//!
//! Key types: [`Lease`], a word in shared memory with the end of the lease; [`Watcher`], which sleeps until then and
//! revokes the pages if the pager has not extended the lease. The watcher is a separate thread or process and needs
//! no help from the pager. The pager may be stopped at any instruction (by a signal, a freezer or a debugger) while
//! the program runs on.
//!
//! ```text
//!                    extend                        the word: 0, an end, or one of the two last numbers
//!                   ,------.
//!   0 ---begin---> end <---'
//!                   |  ^-----begin, when the host has given everything up-----.
//!                   '---watcher, at the end---> TAKING ---all is taken---> TAKEN
//! ```
//!
//! To revoke a page, the watcher punches a hole in the page file, which removes the page from every mapping. The
//! watcher keeps the bytes in a second file, because they may not be written back yet. At each instant one of the two
//! files has them. No store between the copy and the hole is lost: a pipe holds the page itself (`splice`), and the
//! watcher copies it once more when no mapping reaches it.
//!
//! ```text
//!   pager:    fill the file --> look at the word --> map the page
//!   watcher:  set the word  --> look at the file --> make holes
//! ```
//!
//! The later look sees the first step of the other side: the pager does not map, or the watcher punches the mapped
//! page.
//!
//! This module has no policy: the control plane sets the end of leases, and the host role decides what happens to
//! revoked pages.

mod watcher_process;

pub use watcher_process::WatcherProcess;

use farmem_link::shm::Mapping;
use farmem_link::{Clock, OpenError};
use farmem_machine::Instant;
use farmem_wire::message::PAGE_LEN;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, SeekFrom, fallocate, fcntl_add_seals, fstat, ftruncate,
    memfd_create, seek,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice, tee};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Bytes that one `splice` moves out of the file: the default capacity of a pipe.
const TAKE_MAX: usize = 64 << 10;
/// Polling interval of a pager that waits until the watcher has revoked its pages.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_micros(200);

/// Words of the shared file: the end of the lease or the state of its revocation, the number of revocations, and the
/// stop flag.
const WORDS: usize = 3;
const WORD: usize = 0;
const TAKES: usize = 1;
const STOPPED: usize = 2;

/// There is no lease.
const NONE: u64 = 0;
/// The lease has expired, and pages are being revoked.
const TAKING: u64 = u64::MAX - 1;
/// The pages are revoked. No page is mapped before the next lease.
const TAKEN: u64 = u64::MAX;

/// A lease on the pages of one file.
#[derive(Debug)]
pub struct Lease {
    words: Mapping,
    words_file: OwnedFd,
    /// Rung when the watcher must wait for another event than the known end.
    doorbell: OwnedFd,
    /// Bytes of revoked pages, at their offsets in the page file.
    kept: OwnedFd,
    /// Readable when a watcher in another process has ended.
    watcher: OnceLock<OwnedFd>,
}

/// Number of descriptors for a watcher in another process: the words, the doorbell, the second file and the page
/// file.
pub(super) const DESCRIPTORS: usize = 4;

impl Lease {
    /// Opens a lease that has not begun, on pages of a file of `len` bytes.
    pub(super) fn open(len: u64) -> Result<Self, OpenError> {
        let system = |e: Errno| OpenError::System { doing: "watch over a lease".into(), source: e.into() };
        let words_len = (WORDS * size_of::<u64>()) as u64;
        let words_file = sealed("farmem-lease", words_len).map_err(system)?;
        let words = Mapping::of(&words_file, WORDS)
            .map_err(|source| OpenError::System { doing: "watch over a lease".into(), source })?;
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system)?;
        let kept = sealed("farmem-taken", len).map_err(system)?;
        small_pages(&kept, len).map_err(system)?.then_some(()).ok_or_else(huge_pages)?;
        Ok(Self { words, words_file, doorbell, kept, watcher: OnceLock::new() })
    }

    /// Extends the lease. Returns false if the lease has expired, and pages are revoked or being revoked.
    pub fn extend(&self, clock: &Clock, until: Instant) -> bool {
        let until = at_word(clock, until);
        let mut was = self.word().load(Ordering::SeqCst);
        while was != NONE && was < TAKING {
            match self.word().compare_exchange(was, until, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(now) => was = now,
            }
        }
        false
    }

    /// Begins a lease; no page of an earlier lease is mapped. Returns false while pages are being revoked.
    pub fn begin(&self, clock: &Clock, until: Instant) -> bool {
        let until = at_word(clock, until);
        let mut was = self.word().load(Ordering::SeqCst);
        while was != TAKING {
            match self.word().compare_exchange(was, until, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    self.ring();
                    return true;
                }
                Err(now) => was = now,
            }
        }
        false
    }

    /// Returns true if pages are revoked or being revoked, and no other lease has begun. If this returns false, the
    /// watcher sees everything that was written to the file before the call.
    pub(super) fn is_over(&self) -> bool {
        fence(Ordering::SeqCst);
        self.word().load(Ordering::SeqCst) >= TAKING
    }

    /// Returns the number of revocations.
    #[must_use]
    pub fn takes(&self) -> u64 {
        self.words.words()[TAKES].load(Ordering::SeqCst)
    }

    /// Waits until all pages are removed from `file`. If the watcher died while it removed them, the caller continues
    /// its work.
    pub(super) fn wait_taken(&self, file: BorrowedFd<'_>) {
        while self.word().load(Ordering::SeqCst) == TAKING {
            // A watcher in this process cannot die alone, so there is only the wait.
            let mut ends: Vec<PollFd<'_>> =
                self.watcher.get().map(|fd| in_of(fd.as_fd())).into_iter().collect();
            let patience = Timespec::try_from(LOOK_EVERY).expect("a short time");
            if matches!(retry_on_intr(|| poll(&mut ends, Some(&patience))), Ok(1..)) {
                let taken = Taker::open().and_then(|mut taker| taker.take_all(file, self.kept.as_fd()));
                taken.expect("holes in a memfd, and memory for what was in them");
                taken_word(&self.words);
            }
        }
    }

    /// Passes the revoked pages to `each`, with their offsets in the file, and forgets them.
    pub(super) fn give_back(&self, mut each: impl FnMut(usize, &[u8])) {
        let mut bytes = vec![0; TAKE_MAX];
        for_each_part(self.kept.as_fd(), |part| {
            let bytes = &mut bytes[..part.len()];
            read_at(self.kept.as_fd(), part.start, bytes)?;
            each(part.start, bytes);
            Ok(())
        })
        .expect("bytes of a memfd of our own");
        let len = fstat(&self.kept).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
        punch(self.kept.as_fd(), 0, len).expect("a hole in a memfd of our own");
    }

    /// Returns the bytes of revoked pages that were not given back.
    pub(super) fn bytes_kept(&self) -> u64 {
        const BLOCK: u64 = 512;
        fstat(&self.kept).map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK)
    }

    /// Ends the watch, in this process or another one.
    pub fn stop(&self) {
        self.words.words()[STOPPED].store(1, Ordering::SeqCst);
        self.ring();
    }

    /// Returns the descriptors that a watcher in another process needs in addition to the page file.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; DESCRIPTORS - 1] {
        [self.words_file.as_fd(), self.doorbell.as_fd(), self.kept.as_fd()]
    }

    /// Records that another process watches; `other` is readable when it has ended.
    pub(super) fn watched_by(&self, other: OwnedFd) {
        // The first record stays.
        let _again = self.watcher.set(other);
    }

    fn ring(&self) {
        // A full doorbell is already rung.
        let _full = rustix::io::write(&self.doorbell, &1_u64.to_le_bytes());
    }

    fn word(&self) -> &AtomicU64 {
        &self.words.words()[WORD]
    }
}

/// The side that sleeps until a lease ends, and revokes its pages.
#[derive(Debug)]
pub struct Watcher {
    words: Mapping,
    doorbell: OwnedFd,
    kept: OwnedFd,
    file: OwnedFd,
    timer: OwnedFd,
    taker: Taker,
}

/// The reason why [`Watcher::watch`] returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// The other descriptor is readable.
    Other,
    /// The watch is over.
    Stopped,
}

impl Watcher {
    /// Creates a watcher of the lease on `file`, in this process.
    pub(super) fn of(lease: &Lease, file: BorrowedFd<'_>) -> io::Result<Self> {
        let again = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
        let [words, doorbell, kept] = lease.descriptors();
        Self::received([again(words)?, again(doorbell)?, again(kept)?, again(file)?])
    }

    /// Creates a watcher in another process than the pager, from received descriptors.
    pub(super) fn received(descriptors: [OwnedFd; DESCRIPTORS]) -> io::Result<Self> {
        let [words, doorbell, kept, file] = descriptors;
        let words = Mapping::of(&words, WORDS)?;
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Self { words, doorbell, kept, file, timer, taker: Taker::open()? })
    }

    /// Watches until `other` is readable, or the watch is stopped.
    ///
    /// # Errors
    /// The system's error if pages of an ended lease cannot be revoked: the program must not continue.
    pub fn watch(&mut self, other: Option<BorrowedFd<'_>>) -> io::Result<Woken> {
        loop {
            self.look()?;
            if self.words.words()[STOPPED].load(Ordering::SeqCst) != 0 {
                return Ok(Woken::Stopped);
            }
            let (doorbell, timer) = (self.doorbell.as_fd(), self.timer.as_fd());
            let mut ends = [doorbell, timer, other.unwrap_or(doorbell)].map(in_of);
            retry_on_intr(|| poll(&mut ends, None))?;
            let is_other = other.is_some() && !ends[2].revents().is_empty();
            let mut bytes = [0; 8];
            // Empty if the other descriptor was ready.
            let _empty = rustix::io::read(&self.doorbell, &mut bytes);
            let _empty = rustix::io::read(&self.timer, &mut bytes);
            if is_other {
                self.look()?;
                return Ok(Woken::Other);
            }
        }
    }

    /// Returns the descriptors of the watcher.
    fn descriptors(&self) -> Vec<RawFd> {
        let pipes = self.taker.pipes.iter().flat_map(|(read, write)| [read, write]);
        let others = [&self.doorbell, &self.kept, &self.file, &self.timer];
        others.into_iter().chain(pipes).map(AsRawFd::as_raw_fd).collect()
    }

    /// Revokes the pages of a lease that has ended; otherwise sets the timer.
    fn look(&mut self) -> io::Result<()> {
        loop {
            let until = self.words.words()[WORD].load(Ordering::SeqCst);
            if until == NONE || until >= TAKING {
                return Ok(()); // the doorbell rings for the next lease
            }
            if until > Clock::boot_time_ns() {
                return self.set_timer(until);
            }
            let word = &self.words.words()[WORD];
            if word.compare_exchange(until, TAKING, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                self.taker.take_all(self.file.as_fd(), self.kept.as_fd())?;
                taken_word(&self.words);
            }
        }
    }

    fn set_timer(&self, until: u64) -> io::Result<()> {
        let (nanos, never) = (std::time::Duration::from_nanos(until), std::time::Duration::ZERO);
        let time = |duration| Timespec::try_from(duration).map_err(|_| io::Error::from(Errno::INVAL));
        let value = Itimerspec { it_interval: time(never)?, it_value: time(nanos)? };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &value)?;
        Ok(())
    }
}

/// The removal of pages from a file.
#[derive(Debug)]
struct Taker {
    /// Pipes that hold pages without a mapping; both ends of each.
    pipes: [(OwnedFd, OwnedFd); 2],
    bytes: Vec<u8>,
    last: Vec<u8>,
}

impl Taker {
    fn open() -> io::Result<Self> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC);
        Ok(Self { pipes: [pipe()?, pipe()?], bytes: vec![0; TAKE_MAX], last: vec![0; TAKE_MAX] })
    }

    /// Removes all pages from `file`, and writes their bytes to `kept`, over earlier bytes there.
    fn take_all(&mut self, file: BorrowedFd<'_>, kept: BorrowedFd<'_>) -> io::Result<()> {
        for_each_part(file, |part| {
            let mut start = part.start;
            while start < part.end {
                start += self.take(file, kept, start..part.end)?;
            }
            Ok(())
        })
    }

    /// Removes as many of these bytes as the pipes hold. Returns their number.
    fn take(&mut self, file: BorrowedFd<'_>, kept: BorrowedFd<'_>, part: Range<usize>) -> io::Result<usize> {
        let [(read_end, write_end), (copy_read, copy_write)] = &self.pipes;
        let mut offset = part.start as u64;
        let flags = SpliceFlags::empty();
        let held = retry_on_intr(|| splice(file, Some(&mut offset), write_end, None, part.len(), flags))?;
        if held == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // The copy is complete before the hole is made: if this watcher dies, its successor finds the bytes in one of
        // the files.
        let copied = retry_on_intr(|| tee(read_end, copy_write, held, flags))?;
        if copied != held {
            return Err(io::ErrorKind::WriteZero.into());
        }
        read_pipe(copy_read, &mut self.bytes[..held])?;
        write_at(kept, part.start, &self.bytes[..held])?;
        punch(file, part.start as u64, held as u64)?;
        // From here on no thread stores to these pages.
        read_pipe(read_end, &mut self.last[..held])?;
        if self.last[..held] != self.bytes[..held] {
            write_at(kept, part.start, &self.last[..held])?;
        }
        Ok(held)
    }
}

/// Returns the end of a lease in the form of the word.
fn at_word(clock: &Clock, until: Instant) -> u64 {
    clock.boot_time_at(until).clamp(1, TAKING - 1)
}

fn taken_word(words: &Mapping) {
    words.words()[TAKES].fetch_add(1, Ordering::SeqCst);
    words.words()[WORD].store(TAKEN, Ordering::SeqCst);
}

fn in_of(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

fn sealed(name: &str, len: u64) -> Result<OwnedFd, Errno> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, len)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Returns true if the kernel allocates shared memory in single pages. A hole in a huge page would not remove its
/// bytes but zero them, also in the pipe.
fn small_pages(file: &OwnedFd, len: u64) -> Result<bool, Errno> {
    let page = [1; PAGE_LEN];
    let count = retry_on_intr(|| rustix::io::pwrite(file, &page, 0))?;
    let bytes = fstat(file)?.st_blocks * 512;
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    retry_on_intr(|| fallocate(file, mode, 0, len))?;
    Ok(usize::try_from(bytes) == Ok(count))
}

fn huge_pages() -> OpenError {
    OpenError::Setting {
        setting: "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        value: "huge pages for all shared memory".into(),
        remedy: "set it to `advise` or `never`: far memory is fetched and given back by 4 KiB".into(),
    }
}

/// Calls `each` for the parts of a file that have memory, at most [`TAKE_MAX`] bytes at a time.
fn for_each_part(
    file: BorrowedFd<'_>,
    mut each: impl FnMut(Range<usize>) -> io::Result<()>,
) -> io::Result<()> {
    let mut at = 0;
    loop {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        // A hole that was made meanwhile: no byte is left.
        let end = seek(file, SeekFrom::Hole(start))?;
        at = end.max(start + 1);
        let place = |at: u64| usize::try_from(at).expect("a file that is mapped");
        for first in (place(start)..place(end)).step_by(TAKE_MAX) {
            each(first..place(end).min(first + TAKE_MAX))?;
        }
    }
}

fn punch(file: BorrowedFd<'_>, start: u64, len: u64) -> io::Result<()> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    retry_on_intr(|| fallocate(file, mode, start, len)).map_err(io::Error::from)
}

fn read_at(file: BorrowedFd<'_>, start: usize, into: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        let count = retry_on_intr(|| rustix::io::pread(file, &mut into[done..], (start + done) as u64))?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        done += count;
    }
    Ok(())
}

fn write_at(file: BorrowedFd<'_>, start: usize, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        done += retry_on_intr(|| rustix::io::pwrite(file, &bytes[done..], (start + done) as u64))?;
    }
    Ok(())
}

fn read_pipe(pipe: &OwnedFd, into: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        let count = retry_on_intr(|| rustix::io::read(pipe, &mut into[done..]))?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        done += count;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
