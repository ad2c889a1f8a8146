//! The doorbell of an endpoint: says whether it sleeps, and that a new peer writes to it.
//!
//! A sender must not make a system call for a receiver that is awake, and must never miss one that goes to sleep:
//!
//! ```text
//!   receiver                         sender
//!   sleeping = 1                     ring.head = ...
//!   ------ fence ------              ------ fence ------
//!   rings empty? -> futex wait       sleeping == 1? -> sleeping = 0, futex wake
//! ```
//!
//! With both fences sequentially consistent, at least one of the two sees the other's store. The same file is compiled
//! against loom's atomics by `tests/ring_loom.rs`.

use super::atomic::{AtomicU64, Ordering, fence};

/// Words of a doorbell.
pub(crate) const BELL_WORDS: usize = 64;
/// The word a receiver sleeps on: 1 while it sleeps or is about to.
pub(crate) const SLEEPING: usize = 16;
/// Records that must have been sent since the ring was made before the receiver is to be woken, where it says so.
const WANTED: usize = 17;
/// Rings to this endpoint that were made so far.
const ARRIVALS: usize = 32;
/// How often something else than a frame was to end the receiver's wait.
const CALLS: usize = 48;

/// The receiver: from here on every sender rings. It must look at its rings once more before it sleeps.
pub(crate) fn fall_asleep(doorbell: &[AtomicU64]) {
    doorbell[SLEEPING].store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// As [`fall_asleep`], of a receiver that has nothing to do before so many records have been sent since the ring was made.
pub(crate) fn fall_asleep_until(doorbell: &[AtomicU64], sent: u64) {
    doorbell[WANTED].store(sent, Ordering::Relaxed);
    // A sender that sees that it sleeps sees until when.
    fence(Ordering::Release);
    fall_asleep(doorbell);
}

/// The receiver: awake again, senders need not ring.
pub(crate) fn wake_up(doorbell: &[AtomicU64]) {
    doorbell[SLEEPING].store(0, Ordering::Relaxed);
}

/// The receiver: true when senders ring at this moment.
pub(crate) fn may_ring(doorbell: &[AtomicU64]) -> bool {
    doorbell[SLEEPING].load(Ordering::Relaxed) == 1
}

/// A sender, after it published: true when it must wake the receiver. True for one sender only.
pub(crate) fn must_wake(doorbell: &[AtomicU64]) -> bool {
    fence(Ordering::SeqCst);
    doorbell[SLEEPING].load(Ordering::Relaxed) == 1 && doorbell[SLEEPING].swap(0, Ordering::Relaxed) == 1
}

/// As [`must_wake`], by the only sender, which has sent so many records since the ring was made, to a receiver that says how many it wants.
pub(crate) fn must_wake_at(doorbell: &[AtomicU64], sent: u64) -> bool {
    fence(Ordering::SeqCst);
    if doorbell[SLEEPING].load(Ordering::Relaxed) != 1 {
        return false;
    }
    fence(Ordering::Acquire);
    sent >= doorbell[WANTED].load(Ordering::Relaxed) && doorbell[SLEEPING].swap(0, Ordering::Relaxed) == 1
}

/// A sender made a ring to this endpoint.
pub(crate) fn announce(doorbell: &[AtomicU64]) {
    doorbell[ARRIVALS].fetch_add(1, Ordering::Release);
}

/// How many rings were announced.
pub(crate) fn arrivals(doorbell: &[AtomicU64]) -> u64 {
    doorbell[ARRIVALS].load(Ordering::Acquire)
}

/// Anybody: the receiver's wait is to end, though nothing is sent.
pub(crate) fn call(doorbell: &[AtomicU64]) {
    doorbell[CALLS].fetch_add(1, Ordering::Release);
}

/// How often that was said.
pub(crate) fn calls(doorbell: &[AtomicU64]) -> u64 {
    doorbell[CALLS].load(Ordering::Acquire)
}
