//! Faults as signals: the faulting thread gets a SIGBUS, and serves its page itself.
//!
//! Key type: [`Signals`], of one window: the slots of the waiting threads ([`Slot`]), and the leading thread. A touch
//! needs no thread switch unless another thread leads already:
//!
//! ```text
//!   touch -> SIGBUS -> takes a slot -> leads: reports the faults of all slots, sends, receives, installs -> its slot is done -> touch
//!                           |                                                                         ^
//!                           '-> another one leads: sleeps at its slot ---------- wakes it ------------'
//! ```
//!
//! A thread may lead only where it can take locks and allocate: not inside a signal handler of the program, which may
//! have interrupted `malloc`. The interrupted code's signal mask shows this, because a handler's signal is blocked. A
//! thread with a blocked signal leaves its fault to the thread that serves the window ([`serve`](super::serve())). If
//! the resolver cannot move between threads, all threads do.
//!
//! The leader must not touch the window. Signals other than faults are blocked meanwhile, and system calls fill the
//! pages. If the leader touches the window, the handler prints a message and does not serve the touch.

mod handler;
mod slot;
#[cfg(test)]
mod tests;

use super::looking::{LOOK_NS_MAX, Looking};
use super::next::Next;
use super::state::{State, States};
use farmem_link::{Clock, OpenError, Stop, Waiting};
use farmem_wire::message::PAGE_LEN;
use handler::Registration;
use slot::{Sleep, Slot};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Maximum number of threads that wait for pages of one window; further threads wait for a slot.
const SLOTS: usize = 256;
/// Number of polls between two readings of the clock.
const SPINS_PER_CLOCK: u32 = 32;

/// A thread's touch of a page that is not accessible.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    /// The touched address.
    pub(super) addr: usize,
    /// True for a write; `None` if the machine does not report the kind of access.
    pub(super) write: Option<bool>,
}

/// The resolver of touches.
pub(super) trait Lead {
    /// Handles a touch, as [`Faults::fault`](super::Faults::fault) does.
    fn fault(&mut self, touch: Touch);
    /// Does pending work, as [`Faults::turn`](super::Faults::turn) does.
    fn turn(&mut self) -> Next;
    /// Polls, as [`Faults::look`](super::Faults::look) does.
    fn look(&mut self) -> bool;
    /// Ends polling, as [`Faults::rest`](super::Faults::rest) does.
    fn rest(&mut self);
}

/// A resolver that any thread may run, until it is revoked ([`Signals::attend_shared`]).
struct Lent(NonNull<dyn Lead + Send>);

// SAFETY: the type lets any thread use the leader, and the lock admits one at a time.
unsafe impl Send for Lent {}

/// The waiting threads of a window, and the leading one.
pub(super) struct Signals {
    addrs: Range<usize>,
    states: Arc<States>,
    /// The process that opened the window: a forked child does not have these addresses.
    process: u32,
    slots: Box<[Slot]>,
    used: [AtomicU64; SLOTS / 64],
    /// Number of slots without a report; briefly less, if a slot is reported before it is counted.
    fresh: AtomicI32,
    /// True while faulting threads may lead.
    is_lent: AtomicBool,
    leader: Mutex<Option<Lent>>,
    /// The leading thread; 0 for none.
    leads: AtomicUsize,
    /// The sleep of the thread that serves the window.
    door: Sleep,
    /// True if the serving thread must continue with touches that another thread left.
    passed: AtomicBool,
    closed: AtomicBool,
    looking: Looking,
    clock: Clock,
}

/// The entry of a window in the table of the process's SIGBUS handler.
#[derive(Debug)]
pub(super) struct Registered(Registration);

impl Registered {
    /// Registers the window: from here on, a touch in `addrs` that ends in SIGBUS is served.
    ///
    /// # Errors
    /// [`OpenError`] if the system accepts no handler, or there are too many such windows.
    pub(super) fn new(addrs: Range<usize>, states: Arc<States>) -> Result<Self, OpenError> {
        Ok(Self(Registration::new(Box::new(Signals::new(addrs, states)))?))
    }

    pub(super) fn signals(&self) -> &Signals {
        self.0.signals()
    }
}

impl std::fmt::Debug for Signals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signals({:#x?})", self.addrs)
    }
}

impl Signals {
    fn new(addrs: Range<usize>, states: Arc<States>) -> Self {
        Self {
            addrs,
            states,
            process: std::process::id(),
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            used: std::array::from_fn(|_| AtomicU64::new(0)),
            fresh: AtomicI32::new(0),
            is_lent: AtomicBool::new(false),
            leader: Mutex::new(None),
            leads: AtomicUsize::new(0),
            door: Sleep::default(),
            passed: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            looking: Looking::new(),
            clock: Clock::start(),
        }
    }

    /// Wakes the threads that wait for one of these addresses.
    pub(super) fn wake(&self, addrs: &Range<usize>) {
        for slot in self.used_slots() {
            if addrs.contains(&slot.addr()) && slot.end() {
                self.fresh.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Ends the service before the addresses go: waiting threads try again.
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.used_slots().for_each(Slot::stir);
    }

    /// Wakes the serving thread.
    pub(super) fn knock(&self) {
        self.door.stir();
    }

    /// Makes the serving thread lead once without a waiting thread.
    pub(super) fn nudge(&self) {
        self.passed.store(true, Ordering::SeqCst);
        self.door.stir();
    }

    /// Serves on this thread alone, until `stop` is set and the thread is woken.
    pub(super) fn attend(&self, waiting: Waiting, stop: &Stop, leader: &mut dyn Lead) {
        self.attend_by(waiting, stop, &mut || self.lead(leader, None));
    }

    /// Lends `leader` to the faulting threads until `stop` is set and the thread is woken. This thread does the work
    /// that they cannot do.
    pub(super) fn attend_shared(&self, waiting: Waiting, stop: &Stop, leader: &mut (dyn Lead + Send + '_)) {
        let pointer = std::ptr::from_mut(leader);
        // SAFETY: only the lifetime changes. The pointer is removed below before the lifetime ends, under the lock
        // that guards each use.
        let pointer: *mut (dyn Lead + Send + 'static) = unsafe { std::mem::transmute(pointer) };
        *self.lock() = NonNull::new(pointer).map(Lent);
        self.is_lent.store(true, Ordering::SeqCst);
        let lent = TakenBack(self);
        self.attend_by(waiting, stop, &mut || {
            let mut guard = self.lock();
            let Some(Lent(leader)) = guard.as_mut() else { return Next::Sleep };
            // SAFETY: lent above and not removed yet; the lock admits one thread at a time.
            self.lead(unsafe { leader.as_mut() }, None)
        });
        drop(lent);
    }

    fn attend_by(&self, waiting: Waiting, stop: &Stop, lead: &mut dyn FnMut() -> Next) {
        let (mut next, mut idle) = (Next::Sleep, 0_u32);
        loop {
            let seen = self.door.seen();
            let passed = self.passed.swap(false, Ordering::SeqCst);
            if passed || next == Next::Look || self.is_wanted() {
                next = lead();
                idle = 0;
            } else if stop.is_set() {
                return;
            } else if waiting == Waiting::Spin {
                idle = idle.wrapping_add(1);
                if idle.is_multiple_of(SPINS_TO_YIELD) {
                    std::thread::yield_now();
                }
            } else {
                self.door.sleep(seen);
            }
        }
    }

    /// Returns true if the page at this address is poisoned.
    fn is_poisoned(&self, addr: usize) -> bool {
        let state = self.states[(addr - self.addrs.start) / PAGE_LEN].load(Ordering::Acquire);
        State::decode(state) == State::Poisoned
    }

    /// Serves a thread's touch. Returns true when the thread must try again, and false if the touch must not be
    /// served.
    fn serve(&self, touch: Touch, thread: usize, may_lead: bool) -> bool {
        if self.leads.load(Ordering::Relaxed) == thread || self.used_slots().any(|slot| slot.is_of(thread)) {
            return false;
        }
        let (place, slot) = self.claim(touch, thread, may_lead);
        if !may_lead || !self.is_lent.load(Ordering::SeqCst) {
            self.knock();
        }
        let mut may_look = self.looking.is_worth_it();
        loop {
            let seen = slot.seen();
            let is_wanted = self.is_wanted() || slot.was_told();
            if slot.is_done() || self.closed.load(Ordering::SeqCst) {
                self.give_back(place);
                if is_wanted || self.is_wanted() {
                    self.pass_on();
                }
                return true;
            }
            if may_lead && is_wanted && self.lead_for(slot, &mut may_look) {
                continue;
            }
            if std::mem::take(&mut may_look) {
                self.spin(&mut || slot.is_done());
            } else {
                slot.sleep(seen);
            }
        }
    }

    /// Returns true if a waiting touch has not been reported.
    fn is_wanted(&self) -> bool {
        self.fresh.load(Ordering::SeqCst) > 0
    }

    /// Leads for a thread that waits at `own`, unless another thread leads. Returns true if this thread led. Also
    /// polls if `may_look` allows it.
    fn lead_for(&self, own: &Slot, may_look: &mut bool) -> bool {
        let mut guard = match self.leader.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let Some(Lent(leader)) = guard.as_mut() else { return false };
        // SAFETY: removed under this lock before the lifetime ends; the lock admits one thread at a time.
        let leader = unsafe { leader.as_mut() };
        let mut next = self.lead(leader, Some(own));
        if next == Next::Sleep && *may_look && !own.is_done() && leader.look() {
            *may_look = false;
            self.leads.store(own.thread(), Ordering::Relaxed);
            self.spin(&mut || {
                if self.is_wanted() {
                    next = self.lead(leader, Some(own));
                }
                leader.look();
                own.is_done()
            });
            leader.rest();
            self.leads.store(0, Ordering::Relaxed);
        }
        drop(guard);
        if next == Next::Look {
            self.pass_on();
        }
        true
    }

    /// Reports new touches and resolves them, until no work is left or `own` is done.
    fn lead(&self, leader: &mut dyn Lead, own: Option<&Slot>) -> Next {
        let before = self.leads.swap(handler::this_thread(), Ordering::Relaxed);
        let next = loop {
            for slot in self.used_slots() {
                if let Some(touch) = slot.report() {
                    self.fresh.fetch_sub(1, Ordering::SeqCst);
                    leader.fault(touch);
                }
            }
            let next = leader.turn();
            let is_done = own.is_some_and(Slot::is_done);
            if is_done || next == Next::Sleep && !self.is_wanted() {
                break next;
            }
        };
        self.leads.store(before, Ordering::Relaxed);
        next
    }

    /// Passes the lead to a waiting thread, or else to the serving thread.
    fn pass_on(&self) {
        match self.used_slots().find(|slot| slot.may_lead() && !slot.is_done()) {
            Some(slot) => slot.tell(),
            None => {
                self.passed.store(true, Ordering::SeqCst);
                self.knock();
            }
        }
    }

    fn claim(&self, touch: Touch, thread: usize, may_lead: bool) -> (usize, &Slot) {
        loop {
            for (group, used) in self.used.iter().enumerate() {
                let free = !used.load(Ordering::Relaxed);
                let bit = free & free.wrapping_neg();
                if bit != 0 && used.fetch_or(bit, Ordering::SeqCst) & bit == 0 {
                    let place = group * 64 + bit.trailing_zeros() as usize;
                    let slot = &self.slots[place];
                    slot.begin(touch, thread, may_lead);
                    self.fresh.fetch_add(1, Ordering::SeqCst);
                    return (place, slot);
                }
            }
            std::thread::yield_now();
        }
    }

    fn give_back(&self, place: usize) {
        if self.slots[place].free() {
            self.fresh.fetch_sub(1, Ordering::SeqCst);
        }
        self.used[place / 64].fetch_and(!(1 << (place % 64)), Ordering::SeqCst);
    }

    fn used_slots(&self) -> impl Iterator<Item = &Slot> {
        self.used.iter().zip(self.slots.chunks(64)).flat_map(|(used, slots)| {
            let bits = |used: u64| (used != 0).then_some(used);
            let used = bits(used.load(Ordering::SeqCst));
            std::iter::successors(used, move |&used| bits(used & (used - 1)))
                .map(|used| &slots[used.trailing_zeros() as usize])
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Lent>> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls for a while. A server on this CPU cannot run meanwhile, so after an empty poll the next ones are rarer.
    fn spin(&self, is_done: &mut dyn FnMut() -> bool) {
        let until = self.clock.now().as_nanos() + LOOK_NS_MAX;
        let mut looks = 0_u32;
        let came = loop {
            if is_done() {
                break true;
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(SPINS_PER_CLOCK) && self.clock.now().as_nanos() >= until {
                break false;
            }
            std::hint::spin_loop();
        };
        self.looking.ended(came);
    }
}

/// Number of empty polls after which a spinning thread yields.
const SPINS_TO_YIELD: u32 = 256;

/// Removes the lent resolver, also after a panic: no thread uses it from then on.
struct TakenBack<'a>(&'a Signals);

impl Drop for TakenBack<'_> {
    fn drop(&mut self) {
        self.0.is_lent.store(false, Ordering::SeqCst);
        *self.0.lock() = None;
    }
}
