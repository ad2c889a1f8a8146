//! A watcher that runs on while the process with the pages is stopped: a process of its own that shares its memory.
//!
//! Key type: [`WatcherProcess`]. A thread is stopped with its process (by SIGSTOP or a debugger), and may be late when both
//! continue. So the watcher is a process, made by `clone` with the memory of this one. The watcher has only its own
//! descriptors and no signals. The watcher is not among the process's children or in its process group, and ends with
//! the process.
//!
//! ```text
//!   process --clone(VM)--> watcher: close the other descriptors, sleep until the end, the doorbell, or the end of the process, take pages
//! ```
//!
//! The watcher runs on a small stack and uses the thread-local memory of the thread that created it. So it must not
//! allocate, lock, panic or read `errno`: it only makes system calls (`rustix` calls the kernel directly).

use super::{Watcher, Woken};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::ptr::{self, NonNull};

/// Size of the watcher's stack in bytes.
const STACK: usize = 256 << 10;
/// The message before the watcher kills this process.
const LAST_WORDS: &[u8] =
    b"farmem: shared memory: pages whose lease has ended cannot be taken from this program, which is killed: it must not read them\n";

/// A watcher process. A drop ends it.
#[derive(Debug)]
pub struct WatcherProcess {
    /// The watcher's pidfd; readable when it has ended.
    process: OwnedFd,
    stack: Stack,
    /// The watcher's state.
    work: NonNull<Work>,
}

// SAFETY: only the watcher uses what is behind the pointer until it has ended; then this owner drops it.
unsafe impl Send for WatcherProcess {}
// SAFETY: as above; a shared reference gives no access to it.
unsafe impl Sync for WatcherProcess {}

#[derive(Debug)]
struct Work {
    watcher: Watcher,
    /// The pidfd of the process with the pages: readable when it has ended, and killed if its pages cannot be
    /// revoked.
    watched: OwnedFd,
    /// Descriptors that the watcher needs, ascending.
    keeps: Vec<RawFd>,
}

impl WatcherProcess {
    /// Starts the watcher.
    ///
    /// # Errors
    /// The system's error: it may allow no more processes, or none of this kind.
    pub(in super::super) fn start(watcher: Watcher) -> io::Result<Self> {
        let itself = Pid::from_raw(std::process::id().try_into().expect("processes have positive numbers"));
        let watched = pidfd_open(itself.expect("not 0"), PidfdFlags::empty())?;
        let mut keeps = watcher.descriptors();
        keeps.extend([watched.as_raw_fd(), libc::STDERR_FILENO]);
        keeps.sort_unstable();
        let stack = Stack::new()?;
        let work = NonNull::from(Box::leak(Box::new(Work { watcher, watched, keeps })));
        let mut process: c_int = -1;
        let before = block_signals();
        // SAFETY: the entry uses only its own stack and `work`, which live until it has ended. Without an exit
        // signal, no `wait` of this process returns the watcher by accident.
        let pid = unsafe {
            libc::clone(
                entry,
                stack.top(),
                libc::CLONE_VM | libc::CLONE_PIDFD,
                work.as_ptr().cast::<c_void>(),
                &raw mut process,
            )
        };
        let refused = io::Error::last_os_error();
        restore_signals(&before);
        if pid < 0 {
            // SAFETY: no other thread has it.
            drop(unsafe { Box::from_raw(work.as_ptr()) });
            return Err(refused);
        }
        // SAFETY: a descriptor that the kernel has just created.
        let process = unsafe { OwnedFd::from_raw_fd(process) };
        Ok(Self { process, stack, work })
    }

    /// Returns a descriptor that is readable when the watcher has ended.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}

/// Kills the watcher and waits for its end.
impl Drop for WatcherProcess {
    fn drop(&mut self) {
        // A watcher that has ended ignores the signal.
        let _gone = pidfd_send_signal(&self.process, Signal::KILL);
        let (which, how) = (WaitId::PidFd(self.process.as_fd()), WaitIdOptions::EXITED);
        // rustix has no name for this flag.
        let how = how | WaitIdOptions::from_bits_retain(WAIT_FOR_ANY);
        while matches!(waitid(which.clone(), how), Err(Errno::INTR)) {}
        // SAFETY: made by a box in `start`; the watcher, the only other user, has ended.
        drop(unsafe { Box::from_raw(self.work.as_ptr()) });
        self.stack.forget();
    }
}

/// `__WALL`: also children without an exit signal.
const WAIT_FOR_ANY: u32 = 0x4000_0000;

/// Runs the watcher.
extern "C" fn entry(work: *mut c_void) -> c_int {
    // SAFETY: the pointer that `start` passed; nothing else uses it while this runs.
    let work = unsafe { &mut *work.cast::<Work>() };
    // A new session receives no signals of a terminal. The call succeeds, because the process leads no group yet.
    let _alone = rustix::process::setsid();
    run_anywhere();
    close_others(&work.keeps);
    match work.watcher.watch(Some(work.watched.as_fd())) {
        Ok(Woken::Stopped | Woken::Other) => 0,
        Err(_) => {
            // SAFETY: kept open; if there is none, the call fails.
            let stderr = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
            let _unsaid = rustix::io::write(stderr, LAST_WORDS);
            let _gone = pidfd_send_signal(&work.watched, Signal::KILL);
            1
        }
    }
}

/// Allows all CPUs, because the process may be bound to one CPU with all roles of a rack, and the watcher must be in
/// time.
fn run_anywhere() {
    let mut cpus = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| cpus.set(cpu));
    // The kernel ignores CPUs that do not exist.
    let _where_it_was = sched_setaffinity(None, &cpus);
}

/// Closes the descriptors of the process: its pipes and sockets must close with it.
fn close_others(keeps: &[RawFd]) {
    let mut first: RawFd = 0;
    for &kept in keeps {
        close_range(first, kept - 1);
        first = kept + 1;
    }
    close_range(first, RawFd::MAX);
}

fn close_range(first: RawFd, last: RawFd) {
    if first <= last {
        // SAFETY: descriptors of this process alone, which does not use them. The call cannot fail with these
        // arguments, so `errno` is unchanged.
        let _done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: a signal set is plain bits; the next call fills it.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set of ours.
    let _always = unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: two sets of ours; of this thread alone.
    let _always = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    before
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: the set of before.
    let _always = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
}

/// A stack. `forget` unmaps it when no process runs on it.
#[derive(Debug)]
struct Stack(NonNull<c_void>);

impl Stack {
    fn new() -> io::Result<Self> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which replaces nothing.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), STACK, rights, MapFlags::PRIVATE | MapFlags::STACK) }?;
        Ok(Self(NonNull::new(start).ok_or(Errno::NOMEM)?))
    }

    const fn top(&self) -> *mut c_void {
        // SAFETY: the end of the mapping.
        unsafe { self.0.as_ptr().byte_add(STACK) }
    }

    fn forget(&self) {
        // SAFETY: exactly what `new` mapped, and no process runs on it any more.
        let _gone = unsafe { munmap(self.0.as_ptr(), STACK) };
    }
}
