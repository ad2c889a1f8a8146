//! Blocking of signals where a handler would find the process in an inconsistent state: a half-written call to
//! the pager, or a child without its far memory.

use libc::sigset_t;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;

/// A guard: this thread's signals are blocked until it is dropped.
pub(crate) struct Blocked(sigset_t);

impl Blocked {
    pub(crate) fn new() -> Self {
        Self(block())
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        restore(&self.0);
    }
}

/// The signal mask of a forking thread, stored between the fork handlers.
pub(crate) struct OverFork(UnsafeCell<MaybeUninit<sigset_t>>);

// SAFETY: only the forking thread uses it, between the handlers, while it holds the heap's lock.
unsafe impl Sync for OverFork {}

impl OverFork {
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// Stores the mask that `blocked` would restore on drop.
    ///
    /// # Safety
    /// The caller holds the heap's lock until after [`OverFork::restore`].
    pub(crate) unsafe fn keep(&self, blocked: Blocked) {
        let before = blocked.0;
        std::mem::forget(blocked);
        // SAFETY: guaranteed by the caller: no other thread is here.
        let kept = unsafe { &mut *self.0.get() };
        kept.write(before);
    }

    /// Returns a guard that restores the stored mask on drop.
    ///
    /// # Safety
    /// The caller has called [`OverFork::keep`], in this process or in its parent.
    pub(crate) unsafe fn restore(&self) -> Blocked {
        // SAFETY: guaranteed by the caller: no other thread is here.
        let kept = unsafe { &*self.0.get() };
        // SAFETY: `keep` wrote the mask.
        Blocked(unsafe { kept.assume_init() })
    }
}

fn block() -> sigset_t {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the function writes a set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the first set is filled, and the second is a buffer for one. The call changes only this thread's
    // mask.
    let done = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    assert_eq!(done, 0, "sets of signals");
    // SAFETY: the call wrote the set.
    unsafe { before.assume_init() }
}

fn restore(before: &sigset_t) {
    // SAFETY: the set is an earlier mask of this thread.
    let done = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
    assert_eq!(done, 0, "a set of signals");
}
