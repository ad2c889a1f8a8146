//! Baseline rings for the loading zone (PD3 7.2, figures 7a and 8): consumers share one head, protected by a
//! spinlock or advanced by compare-and-swap.
//!
//! Key type: [`SharedHead`], items with keys and values of eight bytes. A consumer searches from the head,
//! copies and marks the item it finds, and moves the head past all marked items.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The synchronisation of a ring's consumers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Guard {
    /// One consumer at a time.
    Spinlock,
    /// Concurrent consumers with compare-and-swap on the head and on each item's state.
    LockFree,
}

#[derive(Debug, Default)]
struct Slot {
    key: AtomicU64,
    value: AtomicU64,
    consumed: AtomicBool,
}

/// A ring that is filled while no consumer searches it.
#[derive(Debug)]
pub(super) struct SharedHead {
    guard: Guard,
    lock: AtomicBool,
    head: AtomicUsize,
    slots: Vec<Slot>,
}

impl SharedHead {
    pub(super) fn new(guard: Guard, slots: usize) -> Self {
        let slots = (0..slots).map(|_| Slot::default()).collect();
        Self { guard, lock: AtomicBool::new(false), head: AtomicUsize::new(0), slots }
    }

    /// Fills all slots: slot n with the result of `item`.
    pub(super) fn fill(&mut self, item: impl Fn(u64) -> (u64, u64)) {
        for (n, slot) in (0..).zip(&mut self.slots) {
            let (key, value) = item(n);
            *slot = Slot { key: key.into(), value: value.into(), consumed: false.into() };
        }
        *self.head.get_mut() = 0;
    }

    /// Takes the item of a key.
    pub(super) fn check_and_return(&self, key: u64) -> Option<u64> {
        if self.guard == Guard::LockFree {
            return self.search(key);
        }
        while self.lock.swap(true, Ordering::Acquire) {
            while self.lock.load(Ordering::Relaxed) {
                spin_loop();
            }
        }
        let found = self.search(key);
        self.lock.store(false, Ordering::Release);
        found
    }

    fn search(&self, key: u64) -> Option<u64> {
        let from = self.head.load(Ordering::Acquire);
        let found = self.slots[from..].iter().find(|slot| slot.key.load(Ordering::Relaxed) == key)?;
        let value = found.value.load(Ordering::Relaxed);
        found.consumed.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        // Every consumer advances the head past consumed items.
        let mut head = self.head.load(Ordering::Acquire);
        while self.slots.get(head).is_some_and(|slot| slot.consumed.load(Ordering::Acquire)) {
            head = match self.head.compare_exchange(head, head + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => head + 1,
                Err(moved) => moved,
            };
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads that request all keys, in different orders, get each key once between them.
    #[test]
    fn each_item_is_taken_once() {
        for guard in [Guard::Spinlock, Guard::LockFree] {
            let mut ring = SharedHead::new(guard, 500);
            ring.fill(|n| (n, n * 3));
            let take = |reverse: bool| {
                let keys = (0..500_u64).map(|n| if reverse { 499 - n } else { n });
                keys.filter_map(|key| Some((key, ring.check_and_return(key)?))).collect::<Vec<_>>()
            };
            let mut all = std::thread::scope(|threads| {
                let both = [false, true].map(|reverse| threads.spawn(move || take(reverse)));
                both.map(|one| one.join().expect("it takes")).concat()
            });
            all.sort_unstable();
            assert_eq!(all, (0..500).map(|n| (n, n * 3)).collect::<Vec<_>>(), "{guard:?}");
            assert_eq!(ring.head.load(Ordering::Relaxed), 500);
        }
    }
}
