//! Ranges under a userfaultfd, threads that touch them, and children.

use farmem_uffd::{
    Cause, Fault, Faulting, Features, Mapping, Message, Messages, Patience, Reach, Userfaultfd,
};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

pub(crate) const PAGE: usize = 4096;
/// Pages of a range.
pub(crate) const PAGES: usize = 32;

/// Skips the test with a line in the log if the system denies the descriptor.
macro_rules! or_skip {
    ($opened:expr) => {
        match $opened {
            Ok(opened) => opened,
            Err(refused) => {
                eprintln!("skipped: {refused}");
                return;
            }
        }
    };
}
pub(crate) use or_skip;

/// Serialises tests that fork: a fork copies the ranges of all tests, and one that requests events of forks gets all
/// of them.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mapped range, which a drop unmaps.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) start: usize,
    len: usize,
}

impl Range {
    pub(crate) fn of_file(file: &OwnedFd) -> Self {
        let (len, protection) = (PAGES * PAGE, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) };
        Self { start: start.unwrap().expose_provenance(), len }
    }

    pub(crate) fn anonymous() -> Self {
        let (len, protection) = (PAGES * PAGE, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE) };
        let range = Self { start: start.unwrap().expose_provenance(), len };
        range.advise(0, PAGES, Advice::LinuxNoHugepage).unwrap();
        range
    }

    /// Returns the address of a page.
    pub(crate) fn at(&self, page: usize) -> usize {
        assert!(page < self.len / PAGE);
        self.start + page * PAGE
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn advise(&self, page: usize, pages: usize, advice: Advice) -> Result<(), Errno> {
        assert!((page + pages) * PAGE <= self.len);
        // SAFETY: pages of a range that is ours; tests expect what the advice does.
        unsafe { madvise(ptr::with_exposed_provenance_mut(self.start + page * PAGE), pages * PAGE, advice) }
    }

    /// Loads the first byte of a page.
    pub(crate) fn read(&self, page: usize) -> u8 {
        load(self.at(page))
    }

    pub(crate) fn write(&self, page: usize, value: u8) {
        store(self.at(page), value);
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the range of `of_file` or `anonymous`, whose owner goes.
        let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(self.start), self.len) };
    }
}

pub(crate) fn load(at: usize) -> u8 {
    // SAFETY: tests pass addresses that are mapped and readable.
    unsafe { ptr::with_exposed_provenance::<u8>(at).read_volatile() }
}

pub(crate) fn store(at: usize, value: u8) {
    // SAFETY: tests pass addresses that are mapped and writable, of memory that only they use.
    unsafe { ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(value) }
}

/// A memfd in two mappings, the first under a userfaultfd, as in a window.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) uffd: Userfaultfd,
    pub(crate) app: Range,
    pub(crate) own: Range,
    pub(crate) file: OwnedFd,
}

pub(crate) fn all_faults() -> Faulting {
    Faulting::MISSING.and(Faulting::MINOR).and(Faulting::WRITE_PROTECTED)
}

impl Rig {
    pub(crate) fn new(uffd: Userfaultfd) -> Self {
        let file = memfd_create("farmem-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, (PAGES * PAGE) as u64).unwrap();
        let (app, own) = (Range::of_file(&file), Range::of_file(&file));
        // SAFETY: a range of ours, that the test serves.
        unsafe { uffd.register(app.start, app.len, all_faults()) }.unwrap();
        Self { uffd, app, own, file }
    }

    /// Opens a rig with the features of a window, and `more`.
    pub(crate) fn open(more: Features) -> Result<Self, farmem_link::OpenError> {
        Userfaultfd::open(Reach::Full, Features::WINDOW.and(more)).map(Self::new).map_err(Into::into)
    }

    /// Installs a page of `value`s, by COPY.
    pub(crate) fn copy(&self, page: usize, value: u8, mapping: Mapping) -> Result<(), Errno> {
        // SAFETY: pages of the rig's range, which expects any bytes.
        unsafe { self.uffd.copy(self.app.at(page), &[value; PAGE], mapping) }.map_err(|stopped| stopped.errno)
    }

    /// Maps the page of the file, by CONTINUE.
    pub(crate) fn map(&self, page: usize, mapping: Mapping) -> Result<(), Errno> {
        // SAFETY: as in `copy`.
        unsafe { self.uffd.map(self.app.at(page), PAGE, mapping) }.map_err(|stopped| stopped.errno)
    }

    pub(crate) fn protect(&self, page: usize, mapping: Mapping) {
        // SAFETY: as in `copy`.
        unsafe { self.uffd.protect(self.app.at(page), PAGE, mapping) }.unwrap();
    }

    pub(crate) fn punch(&self, page: usize) {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, mode, (page * PAGE) as u64, PAGE as u64).unwrap();
    }

    pub(crate) fn unmap(&self, page: usize) {
        self.app.advise(page, 1, Advice::LinuxDontNeed).unwrap();
    }

    /// Waits for the next fault.
    pub(crate) fn fault(&self) -> Fault {
        match next(&self.uffd) {
            Message::Fault(fault) => fault,
            other => panic!("{other:?} where a fault was expected"),
        }
    }

    /// Runs `act` on another thread.
    pub(crate) fn spawn<R: Send + 'static>(act: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
        std::thread::spawn(act)
    }

    pub(crate) fn reader(&self, page: usize) -> JoinHandle<u8> {
        let at = self.app.at(page);
        Self::spawn(move || load(at))
    }

    pub(crate) fn writer(&self, page: usize, value: u8) -> JoinHandle<()> {
        let at = self.app.at(page);
        Self::spawn(move || store(at, value))
    }

    /// Resolves all faults, missing pages with pages of `value`, until the thread ends.
    pub(crate) fn serve<R>(&self, thread: JoinHandle<R>, value: u8) -> R {
        let mut messages = Messages::new(&self.uffd);
        while !thread.is_finished() {
            let mut resolve = |message| {
                let Message::Fault(fault) = message else { panic!("{message:?} was not asked for") };
                let page = (fault.addr - self.app.start) / PAGE;
                match fault.cause {
                    Cause::Missing => match self.copy(page, value, Mapping::Writable) {
                        Err(Errno::EXIST) => self.uffd.wake(self.app.at(page), PAGE).unwrap(),
                        result => result.unwrap(),
                    },
                    Cause::Minor => self.map(page, Mapping::Writable).unwrap(),
                    Cause::WriteProtected => self.protect(page, Mapping::Writable),
                }
            };
            messages.read(Patience::None, &mut resolve).unwrap();
            std::thread::yield_now();
        }
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Waits for the next message.
pub(crate) fn next(uffd: &Userfaultfd) -> Message {
    let mut got = None;
    while got.is_none() {
        Messages::new(uffd)
            .read(Patience::Endless, &mut |message| assert!(got.replace(message).is_none(), "one at a time"))
            .unwrap();
    }
    got.unwrap()
}

/// The end of a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    Exit(i32),
    Signal(i32),
}

/// A child of this process.
pub(crate) struct Child(libc::pid_t);

/// Forks; the child runs `act` and exits with its result, or with 101 after a panic.
pub(crate) fn fork(act: impl FnOnce() -> i32) -> Child {
    // SAFETY: the child only calls what `act` does: system calls, and the allocator, which glibc keeps usable across
    // a fork.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no child: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let code = catch_unwind(AssertUnwindSafe(act)).unwrap_or(101);
        // SAFETY: ends the child without destructors of the parent's values.
        unsafe { libc::_exit(code) };
    }
    Child(pid)
}

impl Child {
    pub(crate) fn id(&self) -> libc::pid_t {
        self.0
    }

    pub(crate) fn wait(self) -> Ended {
        let mut status = 0;
        // SAFETY: a child of ours, and room for its status.
        let pid = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!(pid, self.0);
        match (libc::WIFEXITED(status), libc::WTERMSIG(status)) {
            (true, _) => Ended::Exit(libc::WEXITSTATUS(status)),
            (false, signal) => Ended::Signal(signal),
        }
    }
}

/// Makes the process exit with the code of its next SIGBUS.
pub(crate) fn exit_with_code_of_sigbus() {
    extern "C" fn handler(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel passes the signal's facts.
        let code = unsafe { (*info).si_code };
        // SAFETY: ends the process at once, as a handler may.
        unsafe { libc::_exit(code) };
    }
    // SAFETY: an all-zero sigaction has no flags and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: a complete action whose handler lives as long as the program.
    let result = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
    assert_eq!(result, 0);
}
