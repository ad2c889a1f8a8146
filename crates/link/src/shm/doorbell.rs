//! The doorbell of an endpoint: it shows whether the endpoint sleeps, and notifies the endpoint of new peers.
//!
//! A sender must not make a system call for a receiver that is awake, and must never miss one that goes to
//! sleep:
//!
//! ```text
//!   receiver                         sender
//!   sleeping = 1                     ring.head = ...
//!   ------ fence ------              ------ fence ------
//!   rings empty? -> futex wait       sleeping == 1? -> sleeping = 0, futex wake
//! ```
//!
//! Both fences are sequentially consistent, so at least one of the two sees the other's store.
//! `tests/ring_loom.rs` compiles this file against loom's atomics.

use super::atomic::{AtomicU64, Ordering, fence};

/// Number of words of a doorbell.
pub(crate) const BELL_WORDS: usize = 64;
/// Index of the word on which a receiver sleeps: 1 while it sleeps or is about to.
pub(crate) const SLEEPING: usize = 16;
/// Index of the number of records, since the ring was created, after which the receiver must be woken, if the
/// receiver set it.
const WANTED: usize = 17;
/// Index of the number of rings created to this endpoint.
const ARRIVALS: usize = 32;
/// Index of the number of calls that ended the receiver's wait without a frame.
const CALLS: usize = 48;

/// Announces that the receiver goes to sleep: from here on, senders ring. The receiver must check its rings
/// once more before it sleeps.
pub(crate) fn fall_asleep(doorbell: &[AtomicU64]) {
    doorbell[SLEEPING].store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// Announces sleep as [`fall_asleep`] does, until `sent` records have been sent since the ring was created.
pub(crate) fn fall_asleep_until(doorbell: &[AtomicU64], sent: u64) {
    doorbell[WANTED].store(sent, Ordering::Relaxed);
    // A sender that sees the sleep also sees the number.
    fence(Ordering::Release);
    fall_asleep(doorbell);
}

/// Marks the receiver as awake: senders need not ring.
pub(crate) fn wake_up(doorbell: &[AtomicU64]) {
    doorbell[SLEEPING].store(0, Ordering::Relaxed);
}

/// Returns true while the receiver's sleep is announced, so senders ring.
pub(crate) fn is_announced(doorbell: &[AtomicU64]) -> bool {
    doorbell[SLEEPING].load(Ordering::Relaxed) == 1
}

/// Returns true if the sender, which has published a record, must wake the receiver. Only one sender gets
/// true.
pub(crate) fn must_wake(doorbell: &[AtomicU64]) -> bool {
    fence(Ordering::SeqCst);
    doorbell[SLEEPING].load(Ordering::Relaxed) == 1 && doorbell[SLEEPING].swap(0, Ordering::Relaxed) == 1
}

/// Returns true as [`must_wake`] does, for the only sender, which has sent `sent` records since the ring was
/// created. The receiver must have announced at most this number.
pub(crate) fn must_wake_at(doorbell: &[AtomicU64], sent: u64) -> bool {
    fence(Ordering::SeqCst);
    if doorbell[SLEEPING].load(Ordering::Relaxed) != 1 {
        return false;
    }
    fence(Ordering::Acquire);
    sent >= doorbell[WANTED].load(Ordering::Relaxed) && doorbell[SLEEPING].swap(0, Ordering::Relaxed) == 1
}

/// Announces a new ring to this endpoint.
pub(crate) fn announce(doorbell: &[AtomicU64]) {
    doorbell[ARRIVALS].fetch_add(1, Ordering::Release);
}

/// Returns the number of announced rings.
pub(crate) fn arrivals(doorbell: &[AtomicU64]) -> u64 {
    doorbell[ARRIVALS].load(Ordering::Acquire)
}

/// Ends the receiver's wait without a frame; any process may call this function.
pub(crate) fn call(doorbell: &[AtomicU64]) {
    doorbell[CALLS].fetch_add(1, Ordering::Release);
}

/// Returns the number of such calls.
pub(crate) fn calls(doorbell: &[AtomicU64]) -> u64 {
    doorbell[CALLS].load(Ordering::Acquire)
}
