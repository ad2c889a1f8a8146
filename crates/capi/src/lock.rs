//! The heap's lock. It is the system's futex and nothing else, and a thread that forks can hold it from one handler to the next.

use rustix::thread::futex;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Free, held, or held with somebody who waits.
#[derive(Debug)]
pub(crate) struct Lock {
    state: AtomicU32,
    /// The thread that forks while it holds the lock. It may take it once more: handlers of others run between ours.
    forker: AtomicI32,
}

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

/// Lets go when dropped.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    lock: &'a Lock,
    again: bool,
}

impl Lock {
    pub(crate) const fn new() -> Self {
        Self { state: AtomicU32::new(FREE), forker: AtomicI32::new(0) }
    }

    pub(crate) fn take(&self) -> Held<'_> {
        let forker = self.forker.load(Ordering::Relaxed);
        if forker != 0 && forker == thread() {
            return Held { lock: self, again: true };
        }
        if self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.state.swap(AWAITED, Ordering::Acquire) != FREE {
                // Woken, changed meanwhile, or interrupted: it is looked at again.
                let _ = futex::wait(&self.state, futex::Flags::PRIVATE, AWAITED, None);
            }
        }
        Held { lock: self, again: false }
    }

    /// Takes it for a fork.
    pub(crate) fn take_to_fork(&self) {
        std::mem::forget(self.take());
        self.forker.store(thread(), Ordering::Relaxed);
    }

    /// The fork is over, here or in the child, where no other thread is.
    pub(crate) fn forked(&self) {
        self.forker.store(0, Ordering::Relaxed);
        self.release();
    }

    fn release(&self) {
        if self.state.swap(FREE, Ordering::Release) == AWAITED {
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.again {
            self.lock.release();
        }
    }
}

fn thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}
