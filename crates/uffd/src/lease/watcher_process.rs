//! A watcher that does not stand still with the process whose pages it takes: a process of its own in the same memory.
//!
//! Key type: [`Apart`]. A thread is stopped with its process (SIGSTOP, a debugger), and when both go on it is a matter of luck whether it takes the
//! pages first. So the watcher is a process beside, made by `clone` with the memory of this one and nothing else of it: no descriptors but its
//! own, no signals, no place among its children or in its process group. It ends with this process.
//!
//! ```text
//!   process --clone(VM)--> watcher: close the other descriptors, sleep until the end, the doorbell, or the end of the process, take pages
//! ```
//!
//! The watcher runs on a small stack and borrows the thread-local memory of the thread that made it, so it must not allocate, lock, panic or look at `errno`:
//! it makes calls of the system (`rustix`, which goes to the kernel directly) and nothing else.

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

/// Bytes of its stack.
const STACK: usize = 256 << 10;
/// The message before it ends this process.
const LAST_WORDS: &[u8] =
    b"farmem: shared memory: pages whose lease has ended cannot be taken from this program, which is killed: it must not read them\n";

/// A watcher beside this process. Dropped, it has ended.
#[derive(Debug)]
pub struct Apart {
    /// Its end; readable when it is gone.
    process: OwnedFd,
    stack: Stack,
    /// The watcher's state.
    work: NonNull<Work>,
}

// SAFETY: what is behind the pointer is the watcher's alone until it has ended, and is then dropped by the owner of this.
unsafe impl Send for Apart {}
// SAFETY: as above; nothing is reached through a shared reference.
unsafe impl Sync for Apart {}

#[derive(Debug)]
struct Work {
    watcher: Watcher,
    /// The process: readable when it is gone; to be killed when its pages cannot be taken.
    watched: OwnedFd,
    /// Descriptors that it needs, ascending.
    keeps: Vec<RawFd>,
}

impl Apart {
    /// Starts it.
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
        // SAFETY: the entry keeps to its own stack and to `work`, which live until it has ended; no exit signal: it is no child that anybody waits for
        // by accident.
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
        // SAFETY: a descriptor that the system has just made for us.
        let process = unsafe { OwnedFd::from_raw_fd(process) };
        Ok(Self { process, stack, work })
    }

    /// Readable when the watcher is gone.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}

/// Stops the watch, which ends the watcher; one that does not end is killed.
impl Drop for Apart {
    fn drop(&mut self) {
        // One that has ended, or is about to, minds no signal.
        let _gone = pidfd_send_signal(&self.process, Signal::KILL);
        let (which, how) = (WaitId::PidFd(self.process.as_fd()), WaitIdOptions::EXITED);
        // rustix has no name for this one.
        let how = how | WaitIdOptions::from_bits_retain(WAIT_FOR_ANY);
        while matches!(waitid(which.clone(), how), Err(Errno::INTR)) {}
        // SAFETY: made by a box in `start`; the watcher, the only other one to have it, is gone.
        drop(unsafe { Box::from_raw(self.work.as_ptr()) });
        self.stack.forget();
    }
}

/// `__WALL`: also those without an exit signal.
const WAIT_FOR_ANY: u32 = 0x4000_0000;

/// The watcher's life.
extern "C" fn entry(work: *mut c_void) -> c_int {
    // SAFETY: what `start` handed over; nothing else touches it while this runs.
    let work = unsafe { &mut *work.cast::<Work>() };
    // Where a terminal's signals do not come; it has no group to lead yet, so it is not refused.
    let _alone = rustix::process::setsid();
    run_anywhere();
    close_others(&work.keeps);
    match work.watcher.watch(Some(work.watched.as_fd())) {
        Ok(Woken::Stopped | Woken::Other) => 0,
        Err(_) => {
            // SAFETY: kept open; if it is none, the call fails.
            let stderr = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
            let _unsaid = rustix::io::write(stderr, LAST_WORDS);
            let _gone = pidfd_send_signal(&work.watched, Signal::KILL);
            1
        }
    }
}

/// Not only where the process may be bound to, with all of a rack's roles and clients: it must be in time.
fn run_anywhere() {
    let mut cpus = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| cpus.set(cpu));
    // The system takes those that there are.
    let _where_it_was = sched_setaffinity(None, &cpus);
}

/// Closes what the process had open when this one was made: its pipes and sockets are to hang up with it.
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
        // SAFETY: descriptors of this process alone, which does not use them. It cannot fail with these arguments, so `errno` stays as it is.
        let _done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: a set of signals is plain bits, of which the next call makes a set.
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
    // SAFETY: the set that was there.
    let _always = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
}

/// A stack; it is given back when no process runs on it.
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
