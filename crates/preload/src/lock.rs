//! A lock that knows its owner, so that a signal handler never waits for its own thread.
//!
//! A handler may interrupt a thread that holds the lock. The thread cannot release the lock before the handler
//! returns, so the handler does not wait: `take` returns [`Busy`]. The owner's thread pointer is the owner's
//! name, because a fork's child keeps it (a thread id changes). The pointer is the lock's word itself, so the
//! lock is never held without a known owner.
//!
//! A process of one thread takes the lock without an atomic instruction, as libc's own `malloc` does. Atomic
//! instructions are most of the cost of a small block. libc's `__libc_single_threaded` tells, and changes
//! before a second thread begins. A handler of the only thread may run between load and store; it releases what
//! it takes before it returns.
//!
//! ```text
//!   word:   | thread pointer | FORKING | AWAITED |      0 when it is free
//! ```

use rustix::thread::futex;
#[cfg(target_arch = "x86_64")]
use std::arch::asm;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering, compiler_fence};

#[derive(Debug)]
pub(crate) struct Lock {
    word: AtomicUsize,
    /// Number of releases that had waiting threads; the futex that waiting threads sleep on.
    released: AtomicU32,
    /// True when the forking thread already held the lock, because its signal handler forks. It keeps the lock.
    interrupted: AtomicBool,
}

const FREE: usize = 0;
/// A thread waits for the lock.
const AWAITED: usize = 1;
/// The owner forks, and is not in the protected code. It may take the lock once more, for handlers of other
/// libraries that run between the fork handlers of this one.
const FORKING: usize = 2;
const BITS: usize = AWAITED | FORKING;

/// The error of a signal handler whose own thread holds the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Busy;

/// A guard, which releases the lock on drop.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    lock: &'a Lock,
    again: bool,
}

impl Lock {
    pub(crate) const fn new() -> Self {
        let released = AtomicU32::new(0);
        Self { word: AtomicUsize::new(FREE), released, interrupted: AtomicBool::new(false) }
    }

    /// Waits until no other thread holds the lock, and takes it.
    pub(crate) fn take(&self) -> Result<Guard<'_>, Busy> {
        let me = thread();
        let word = self.word.load(Ordering::Relaxed);
        if word & !BITS == me {
            // Only this thread clears the bit, and handlers that find it clear get `Busy`.
            if word & FORKING == 0 {
                return Err(Busy);
            }
            self.word.fetch_and(!FORKING, Ordering::Relaxed);
            return Ok(Guard { lock: self, again: true });
        }
        if word == FREE && is_alone() {
            self.word.store(me, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
        } else if self.word.compare_exchange(FREE, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait(me);
        }
        Ok(Guard { lock: self, again: false })
    }

    fn wait(&self, me: usize) {
        loop {
            let released = self.released.load(Ordering::Acquire);
            // Further threads may wait, so the new owner keeps the mark.
            let taken = self.word.compare_exchange(FREE, me | AWAITED, Ordering::Acquire, Ordering::Relaxed);
            let Err(word) = taken else { return };
            let marked = word | AWAITED;
            if self.word.compare_exchange(word, marked, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                // After a wake-up, a release meanwhile, or a signal, the loop checks the lock again.
                let _ = futex::wait(&self.released, futex::Flags::PRIVATE, released, None);
            }
        }
    }

    /// Takes the lock for a fork. The thread's signals are blocked.
    pub(crate) fn take_to_fork(&self) {
        let taken = self.take();
        self.interrupted.store(taken.is_err(), Ordering::Relaxed);
        if let Ok(held) = taken {
            std::mem::forget(held);
            self.word.fetch_or(FORKING, Ordering::Relaxed);
        }
    }

    /// Ends the fork, in the parent and in the child, which has no other thread. Code that a handler
    /// interrupted continues in both.
    pub(crate) fn forked(&self) {
        if !self.interrupted.swap(false, Ordering::Relaxed) {
            self.release();
        }
    }

    fn release(&self) {
        if is_alone() && self.word.load(Ordering::Relaxed) & AWAITED == 0 {
            compiler_fence(Ordering::SeqCst);
            return self.word.store(FREE, Ordering::Relaxed);
        }
        if self.word.swap(FREE, Ordering::Release) & AWAITED != 0 {
            self.released.fetch_add(1, Ordering::Release);
            let _ = futex::wake(&self.released, futex::Flags::PRIVATE, 1);
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.again {
            self.lock.word.fetch_or(FORKING, Ordering::Relaxed);
        } else {
            self.lock.release();
        }
    }
}

/// libc's flag that this process has one thread. Without the flag, the process counts as multi-threaded.
static ALONE: AtomicPtr<AtomicU8> = AtomicPtr::new(ptr::from_ref(&NOT_KNOWN).cast_mut());
static NOT_KNOWN: AtomicU8 = AtomicU8::new(0);

/// Looks up libc's flag, which exists since glibc 2.32.
pub(crate) fn begin() {
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    if !found.is_null() {
        ALONE.store(found.cast(), Ordering::Relaxed);
    }
}

/// Returns true when this thread is the only one. Another one cannot begin unless this thread creates it.
fn is_alone() -> bool {
    let place = ALONE.load(Ordering::Relaxed);
    // SAFETY: a byte of this library or of libc, which exists for good.
    unsafe { &*place }.load(Ordering::Relaxed) != 0
}

/// Returns the identity of the calling thread, in this process and in its forked children: the address of
/// libc's thread control block, a multiple of 64.
#[cfg(target_arch = "x86_64")]
fn thread() -> usize {
    let me;
    // SAFETY: `fs` points to libc's thread control block, whose third word is its own address, the result of
    // `pthread_self`.
    unsafe { asm!("mov {}, fs:[16]", out(reg) me, options(nostack, pure, readonly, preserves_flags)) };
    me
}

#[cfg(not(target_arch = "x86_64"))]
fn thread() -> usize {
    // SAFETY: the function reads a register.
    let me = unsafe { libc::pthread_self() };
    usize::try_from(me).expect("an address")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    struct Counter(UnsafeCell<u64>);

    // SAFETY: used only under the test's lock.
    unsafe impl Sync for Counter {}

    /// Threads that increment a plain counter under the lock lose no increment, and every waiting thread wakes.
    #[test]
    fn it_excludes_threads() {
        const TIMES: u64 = 200_000;
        let (lock, counter) = (Lock::new(), Counter(UnsafeCell::new(0)));
        let add = |counter: &Counter| {
            for _ in 0..TIMES {
                let held = lock.take();
                // SAFETY: the lock is held.
                unsafe { *counter.0.get() += 1 };
                drop(held);
            }
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| add(&counter))));
        });
        assert_eq!(counter.0.into_inner(), 4 * TIMES);
        assert_eq!(lock.word.into_inner() & !BITS, FREE);
    }

    /// `take` by the owner comes from a signal handler: it returns `Busy`, and the interrupted code keeps the
    /// lock.
    #[test]
    fn a_handler_does_not_wait_for_its_own_thread() {
        let lock = Lock::new();
        let held = lock.take();
        assert_eq!(lock.take().err(), Some(Busy));
        drop(held);
        assert!(lock.take().is_ok());
    }

    /// A forking thread may take the lock between the handlers. A thread that held it before the fork,
    /// interrupted by its signal handler, holds it afterwards.
    #[test]
    fn a_fork_leaves_it_as_it_was() {
        let lock = Lock::new();
        lock.take_to_fork();
        let again = lock.take();
        assert_eq!(lock.take().err(), Some(Busy));
        drop(again);
        assert!(lock.take().is_ok());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| lock.take().map(drop));
            lock.forked();
            assert_eq!(other.join().expect("it does not panic"), Ok(()));
        });

        let held = lock.take();
        lock.take_to_fork();
        lock.forked();
        assert_eq!(lock.take().err(), Some(Busy), "it is held by what was interrupted");
        drop(held);
        assert_eq!(lock.word.load(Ordering::Relaxed), FREE);
    }
}
