//! A lock that a signal handler cannot wait for in vain: it knows its owner.
//!
//! A handler may interrupt a thread that holds the lock. The thread cannot let go before the handler returns, so the handler does not wait:
//! it is told that its own thread is [`Busy`]. The owner is named by its thread pointer, which is the same in a fork's child (its number
//! is another); it is the lock's word itself, so there is no moment at which the lock is held and its owner unknown.
//!
//! A process of one thread takes it without an atomic instruction, as libc's own `malloc` does: those are most of what a small block costs. libc says
//! so (`__libc_single_threaded`), and says otherwise before a second thread begins. A handler of the one thread may come between load and store; it lets
//! go of what it takes before it returns.
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
    /// Counts the times that the lock was released to threads that waited: what they sleep on.
    released: AtomicU32,
    /// The thread that forks held the lock already, as its handler interrupted it: it keeps it.
    interrupted: AtomicBool,
}

const FREE: usize = 0;
/// A thread waits.
const AWAITED: usize = 1;
/// The owner forks, and is not in what the lock protects: it may take it once more, as other libraries' handlers run between ours.
const FORKING: usize = 2;
const BITS: usize = AWAITED | FORKING;

/// The lock is held by a thread whose signal handler asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Busy;

/// Lets go when dropped.
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

    /// Waits until no other thread holds it.
    pub(crate) fn take(&self) -> Result<Guard<'_>, Busy> {
        let me = thread();
        let word = self.word.load(Ordering::Relaxed);
        if word & !BITS == me {
            // Only this thread takes the bit away, and handlers that meet it without are turned away.
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
            // Others may wait too, so it is taken as one that is awaited.
            let taken = self.word.compare_exchange(FREE, me | AWAITED, Ordering::Acquire, Ordering::Relaxed);
            let Err(word) = taken else { return };
            let marked = word | AWAITED;
            if self.word.compare_exchange(word, marked, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                // Woken, released meanwhile, or interrupted: it is looked at again.
                let _ = futex::wait(&self.released, futex::Flags::PRIVATE, released, None);
            }
        }
    }

    /// Takes it for a fork. The thread's signals are blocked.
    pub(crate) fn take_to_fork(&self) {
        let taken = self.take();
        self.interrupted.store(taken.is_err(), Ordering::Relaxed);
        if let Ok(held) = taken {
            std::mem::forget(held);
            self.word.fetch_or(FORKING, Ordering::Relaxed);
        }
    }

    /// The fork is over, here or in the child, where no other thread is. What a handler had interrupted goes on in both.
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

/// libc's word on whether this process has one thread; without it, that it has several.
static ALONE: AtomicPtr<AtomicU8> = AtomicPtr::new(ptr::from_ref(&NOT_KNOWN).cast_mut());
static NOT_KNOWN: AtomicU8 = AtomicU8::new(0);

/// Looks for libc's word: since 2.32 there is one.
pub(crate) fn begin() {
    // SAFETY: a text.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    if !found.is_null() {
        ALONE.store(found.cast(), Ordering::Relaxed);
    }
}

/// No other thread is there, nor begins before this one asks for it.
fn is_alone() -> bool {
    let place = ALONE.load(Ordering::Relaxed);
    // SAFETY: a byte of this library's or of libc's, which are there for good.
    unsafe { &*place }.load(Ordering::Relaxed) != 0
}

/// What names the calling thread, here and in a child that it forks: the address of libc's record of it, which is a multiple of 64.
#[cfg(target_arch = "x86_64")]
fn thread() -> usize {
    let me;
    // SAFETY: `fs` points to libc's record of the thread, whose third word is its own address: what `pthread_self` answers.
    unsafe { asm!("mov {}, fs:[16]", out(reg) me, options(nostack, pure, readonly, preserves_flags)) };
    me
}

#[cfg(not(target_arch = "x86_64"))]
fn thread() -> usize {
    // SAFETY: it reads a register.
    let me = unsafe { libc::pthread_self() };
    usize::try_from(me).expect("an address")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    struct Counter(UnsafeCell<u64>);

    // SAFETY: used under the test's lock alone.
    unsafe impl Sync for Counter {}

    /// Threads that add to a plain number under the lock lose nothing, and each of them is woken.
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

    /// A thread that asks for what it holds is a handler of its own that interrupted it: it is told so, and what it interrupted goes on.
    #[test]
    fn a_handler_does_not_wait_for_its_own_thread() {
        let lock = Lock::new();
        let held = lock.take();
        assert_eq!(lock.take().err(), Some(Busy));
        drop(held);
        assert!(lock.take().is_ok());
    }

    /// A thread that forks may take the lock between the handlers; one that held it already, interrupted by its handler, holds it afterwards.
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
