//! Faults as signals: the thread that faults gets a SIGBUS, and serves its page itself.
//!
//! Key type: [`Signals`], of one window: which thread waits for which page ([`Slot`]), and which one works. Between a touch and its page there is no hand-over to
//! another thread unless one works already:
//!
//! ```text
//!   touch -> SIGBUS -> takes a slot -> leads: reports the faults of all slots, sends, receives, installs -> its slot is done -> touch
//!                           |                                                                         ^
//!                           '-> another one leads: sleeps at its slot ---------- wakes it ------------'
//! ```
//!
//! A thread may lead only where it can take locks and memory: not from within a signal handler of the program, which may have interrupted `malloc`.
//! The mask of the interrupted code tells: in a handler its signal is blocked. Threads that have a signal blocked leave their faults to the
//! thread that serves the window ([`serve`](super::serve())), and so do all where what serves cannot move between threads.
//!
//! The leader must not touch the window: all signals but those of faults are blocked meanwhile, and pages are filled by the system's calls. A thread that does
//! so all the same is refused with a message, and not served.

mod handler;
mod slot;
#[cfg(test)]
mod tests;

use super::Next;
use super::looking::{LOOK_NS_MAX, Looking};
use super::state::{State, States};
use farmem_link::{Clock, OpenError, Stop, Waiting};
use farmem_wire::message::PAGE_LEN;
use handler::Registration;
use slot::{Sleep, Slot};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Threads that wait for pages of one window at once; of more, the last wait for a slot.
const SLOTS: usize = 256;
/// Looks between two looks at the clock.
const SPINS_PER_CLOCK: u32 = 32;

/// A thread's touch of a page that it cannot have yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    /// The byte.
    pub(super) addr: usize,
    /// True when it wants to write; `None` where the machine does not say.
    pub(super) write: Option<bool>,
}

/// The server of touches.
pub(super) trait Lead {
    /// As [`Faults::fault`](super::Faults::fault).
    fn fault(&mut self, touch: Touch);
    /// As [`Faults::turn`](super::Faults::turn).
    fn turn(&mut self) -> Next;
    /// As [`Faults::look`](super::Faults::look).
    fn look(&mut self) -> bool;
    /// As [`Faults::rest`](super::Faults::rest).
    fn rest(&mut self);
}

/// A server that any thread may run, for as long as it is lent ([`Signals::attend_shared`]).
struct Lent(NonNull<dyn Lead + Send>);

// SAFETY: the leader may be used by any thread, by its type, and the lock around it lets one in at a time.
unsafe impl Send for Lent {}

/// The threads that wait for pages of a window, and the one that serves.
pub(super) struct Signals {
    addrs: Range<usize>,
    states: Arc<States>,
    /// The process that opened it: a forked child has these addresses no more.
    process: u32,
    slots: Box<[Slot]>,
    used: [AtomicU64; SLOTS / 64],
    /// Slots that were not reported; for a moment less, when one is reported before it is counted.
    fresh: AtomicI32,
    /// Threads that fault may lead.
    is_lent: AtomicBool,
    leader: Mutex<Option<Lent>>,
    /// The thread that leads; 0 for none.
    leads: AtomicUsize,
    /// Where the thread that serves the window sleeps.
    door: Sleep,
    /// The thread is to go on with touches that another one left.
    passed: AtomicBool,
    closed: AtomicBool,
    looking: Looking,
    clock: Clock,
}

/// A window's, known to the process's SIGBUS handler.
#[derive(Debug)]
pub(super) struct Registered(Registration);

impl Registered {
    /// From here on a touch in `addrs` that ends in SIGBUS is served.
    ///
    /// # Errors
    /// [`OpenError`] when the system takes no handler, or there are too many such windows.
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

    /// Pages were put in place, or their threads are to try again: those of these addresses go on.
    pub(super) fn wake(&self, addrs: &Range<usize>) {
        for slot in self.used_slots() {
            if addrs.contains(&slot.addr()) && slot.end() {
                self.fresh.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// The window is not served any more, and the addresses go: threads that wait try again.
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.used_slots().for_each(Slot::stir);
    }

    /// Has the thread that serves look again.
    pub(super) fn knock(&self) {
        self.door.stir();
    }

    /// Has the thread that serves lead once, though no thread waits.
    pub(super) fn nudge(&self) {
        self.passed.store(true, Ordering::SeqCst);
        self.door.stir();
    }

    /// Serves on this thread alone, until `stop` is set and knocked for.
    pub(super) fn attend(&self, waiting: Waiting, stop: &Stop, leader: &mut dyn Lead) {
        self.attend_by(waiting, stop, &mut || self.lead(leader, None));
    }

    /// Lends `leader` to the threads that fault until `stop` is set and knocked for; what they cannot do this one does.
    pub(super) fn attend_shared(&self, waiting: Waiting, stop: &Stop, leader: &mut (dyn Lead + Send + '_)) {
        let pointer = std::ptr::from_mut(leader);
        // SAFETY: only the lifetime changes. It is taken back below, under the lock under which it is used, before it ends.
        let pointer: *mut (dyn Lead + Send + 'static) = unsafe { std::mem::transmute(pointer) };
        *self.lock() = NonNull::new(pointer).map(Lent);
        self.is_lent.store(true, Ordering::SeqCst);
        let lent = TakenBack(self);
        self.attend_by(waiting, stop, &mut || {
            let mut guard = self.lock();
            let Some(Lent(leader)) = guard.as_mut() else { return Next::Sleep };
            // SAFETY: lent above and not taken back yet; the lock lets one in at a time.
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

    /// The page at this address cannot be had.
    fn is_poisoned(&self, addr: usize) -> bool {
        let state = self.states[(addr - self.addrs.start) / PAGE_LEN].load(Ordering::Acquire);
        State::decode(state) == State::Poisoned
    }

    /// A thread's touch: returns when it is to try again. False when it may not be served.
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

    /// A thread waits whose touch was not reported.
    fn is_wanted(&self) -> bool {
        self.fresh.load(Ordering::SeqCst) > 0
    }

    /// Leads for a thread that waits at `own`, unless another one does; true when it led. Looks for what comes as well when it may.
    fn lead_for(&self, own: &Slot, may_look: &mut bool) -> bool {
        let mut guard = match self.leader.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let Some(Lent(leader)) = guard.as_mut() else { return false };
        // SAFETY: it is taken back under this lock before it ends; the lock lets one in at a time.
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

    /// Reports what is fresh and has it served, until nothing is to be done, or `own` is done.
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

    /// Has another one lead: a thread that waits, or the one that serves the window.
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

    /// Looks again and again, for a while. What serves on this CPU cannot while this thread looks: in vain, it sleeps sooner next time.
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

/// Looks in vain after which a spinning thread lets others run.
const SPINS_TO_YIELD: u32 = 256;

/// Takes back what was lent, also when a panic ends the service: no thread uses it from then on.
struct TakenBack<'a>(&'a Signals);

impl Drop for TakenBack<'_> {
    fn drop(&mut self) {
        self.0.is_lent.store(false, Ordering::SeqCst);
        *self.0.lock() = None;
    }
}
