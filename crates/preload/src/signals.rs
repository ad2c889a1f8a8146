//! Signals are kept off where a handler would meet a process that is half of one thing and half of another: a call of the pager that is
//! half asked, a child that has no far memory yet.

use libc::sigset_t;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;

/// This thread's signals are blocked until this is dropped.
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

/// The signals that a thread had before it forked, from one handler to the next.
pub(crate) struct OverFork(UnsafeCell<MaybeUninit<sigset_t>>);

// SAFETY: used by the thread that forks alone, between the handlers, while it holds the heap's lock.
unsafe impl Sync for OverFork {}

impl OverFork {
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// Keeps what `blocked` would restore when dropped.
    ///
    /// # Safety
    /// The caller holds the heap's lock, until after [`OverFork::restore`].
    pub(crate) unsafe fn keep(&self, blocked: Blocked) {
        let before = blocked.0;
        std::mem::forget(blocked);
        // SAFETY: the caller's promise: no other thread is here.
        let kept = unsafe { &mut *self.0.get() };
        kept.write(before);
    }

    /// What was kept, which this thread's signals are when it is dropped.
    ///
    /// # Safety
    /// The caller has called [`OverFork::keep`], in this process or in its parent.
    pub(crate) unsafe fn restore(&self) -> Blocked {
        // SAFETY: the caller's promise: no other thread is here.
        let kept = unsafe { &*self.0.get() };
        // SAFETY: it was written.
        Blocked(unsafe { kept.assume_init() })
    }
}

fn block() -> sigset_t {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: it writes a set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the first set is filled, the second has room for one. It changes this thread alone.
    let done = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    assert_eq!(done, 0, "sets of signals");
    // SAFETY: written by the call.
    unsafe { before.assume_init() }
}

fn restore(before: &sigset_t) {
    // SAFETY: a set that this thread had before.
    let done = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
    assert_eq!(done, 0, "a set of signals");
}
