//! The slot of a thread that waits for its page. No function here takes a lock or allocates, because signal handlers
//! use them.

use super::Touch;
use rustix::thread::futex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

/// A futex to sleep on. A waking thread counts up first, so that no thread misses a wake-up between its check and its
/// sleep.
#[derive(Default, Debug)]
pub(super) struct Sleep {
    stirs: AtomicU32,
    asleep: AtomicBool,
}

impl Sleep {
    /// Returns the count for [`Sleep::sleep`]. Read the count before you check for work.
    pub(super) fn seen(&self) -> u32 {
        self.stirs.load(Ordering::SeqCst)
    }

    /// Sleeps unless the count has changed; may also return without reason. One thread sleeps at a time.
    pub(super) fn sleep(&self, seen: u32) {
        self.asleep.store(true, Ordering::SeqCst);
        // Woken meanwhile, or by a signal: the caller checks again.
        let _again = futex::wait(&self.stirs, futex::Flags::PRIVATE, seen, None);
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Ends the sleep, or prevents it.
    pub(super) fn stir(&self) {
        self.stirs.fetch_add(1, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            let woken = futex::wake(&self.stirs, futex::Flags::PRIVATE, 1);
            woken.expect("a word of our own");
        }
    }
}

/// Progress of a touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum State {
    /// The slot is free.
    Free = 0,
    /// The touch is not reported yet.
    Fresh = 1,
    /// The touch is reported to the resolver.
    Reported = 2,
    /// The thread must try again.
    Done = 3,
}

/// A thread's touch, from its signal to its return.
#[derive(Default, Debug)]
pub(super) struct Slot {
    state: AtomicU8,
    may_lead: AtomicBool,
    told: AtomicBool,
    /// 0 read, 1 write, 2 unknown.
    write: AtomicU8,
    addr: AtomicUsize,
    thread: AtomicUsize,
    sleep: Sleep,
}

impl Slot {
    /// Begins a touch of this thread, which has just claimed the slot.
    pub(super) fn begin(&self, touch: Touch, thread: usize, may_lead: bool) {
        self.addr.store(touch.addr, Ordering::Relaxed);
        self.write.store(touch.write.map_or(2, u8::from), Ordering::Relaxed);
        self.thread.store(thread, Ordering::Relaxed);
        self.may_lead.store(may_lead, Ordering::Relaxed);
        self.told.store(false, Ordering::Relaxed);
        self.state.store(State::Fresh as u8, Ordering::SeqCst);
    }

    /// Frees the slot. Returns true if the touch was not reported.
    pub(super) fn free(&self) -> bool {
        self.thread.store(0, Ordering::Relaxed);
        self.state.swap(State::Free as u8, Ordering::SeqCst) == State::Fresh as u8
    }

    /// Takes the touch for a report; `None` if it is reported already, or there is none.
    pub(super) fn report(&self) -> Option<Touch> {
        let (fresh, reported) = (State::Fresh as u8, State::Reported as u8);
        self.state.compare_exchange(fresh, reported, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        let write = match self.write.load(Ordering::Relaxed) {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        Some(Touch { addr: self.addr(), write })
    }

    /// Makes the thread try again. Returns true if the touch was not reported.
    pub(super) fn end(&self) -> bool {
        let mut was = self.state.load(Ordering::SeqCst);
        while was == State::Fresh as u8 || was == State::Reported as u8 {
            match self.state.compare_exchange(was, State::Done as u8, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    self.stir();
                    return was == State::Fresh as u8;
                }
                Err(now) => was = now,
            }
        }
        false
    }

    pub(super) fn is_done(&self) -> bool {
        self.state.load(Ordering::SeqCst) == State::Done as u8
    }

    /// Returns the touched address.
    pub(super) fn addr(&self) -> usize {
        self.addr.load(Ordering::Relaxed)
    }

    pub(super) fn thread(&self) -> usize {
        self.thread.load(Ordering::Relaxed)
    }

    pub(super) fn is_of(&self, thread: usize) -> bool {
        self.thread() == thread
    }

    pub(super) fn may_lead(&self) -> bool {
        self.may_lead.load(Ordering::Relaxed)
    }

    /// Tells the thread to lead.
    pub(super) fn tell(&self) {
        self.told.store(true, Ordering::SeqCst);
        self.stir();
    }

    /// Returns true if the thread was told to lead since the last call.
    pub(super) fn was_told(&self) -> bool {
        self.told.swap(false, Ordering::SeqCst)
    }

    pub(super) fn seen(&self) -> u32 {
        self.sleep.seen()
    }

    pub(super) fn sleep(&self, seen: u32) {
        self.sleep.sleep(seen);
    }

    pub(super) fn stir(&self) {
        self.sleep.stir();
    }
}
