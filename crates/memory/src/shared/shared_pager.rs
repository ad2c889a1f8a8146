//! A pager shared between threads: two threads run it in turns, and all other threads leave requests in the
//! [`Inbox`].
//!
//! Key type: [`SharedPager`]. Two threads receive events for the pager: one sleeps at the link, the other at
//! the userfaultfd. Handing an event to the other thread would cost a wake-up for each fault and each page.
//! So a thread that receives an event runs the pager itself. If the pager is running, the thread leaves its
//! request, and the running thread serves it next.
//!
//! The program's threads only leave requests. A thread that runs the pager must not fault, but a program's
//! thread may, in a signal handler.
//!
//! Circle of files: the pager, the thread that keeps the lease and the thread that joins the rack again start each
//! other and send each other messages.

use super::ShareStats;
use super::pager::{Next, Pager};
use farmem_client::Error;
use farmem_link::{Link, Parcel, Sleeper, Waker};
use farmem_machine::Instant;
use farmem_uffd::Mapped;
use farmem_wire::message::{Access, Page};
use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration as StdDuration;

/// A request to the pager.
pub(super) enum PagerRequest {
    /// A thread of the program waits for the page.
    Fault(Page, Access),
    /// Cached pages may be used until this time.
    Lease(Instant),
    /// The control plane orders the host to give up all pages.
    GiveUp(u64),
    /// Far memory is lost, for this reason.
    Fail(String),
    /// Write all changed pages back to the memory nodes, then answer.
    WriteBack(Sender<Result<(), Error>>),
    /// Answer with the counters.
    Stats(Sender<ShareStats>),
    /// The program has ended: write everything back, then end.
    End,
}

/// Requests that no thread has served yet. The number of threads limits them: each thread waits for its fault
/// or its answer.
#[derive(Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
    /// Signals that the pager is free, or that a thread which sleeps here has work.
    change: Condvar,
    waker: OnceLock<Waker>,
}

#[derive(Default)]
struct State {
    requests: VecDeque<PagerRequest>,
    /// True while a thread runs the pager; that thread checks the requests once more before it stops.
    at_work: bool,
    /// True while a thread sleeps here. A wake-up costs a system call, so it is made only then; such sleeps
    /// are rare.
    sleeps: bool,
}

impl Inbox {
    /// Sets the waker by which [`Inbox::put`] wakes the thread that sleeps at the link.
    pub(super) fn set_waker(&self, waker: Waker) {
        let again = self.waker.set(waker);
        assert!(again.is_ok(), "a space has one link");
    }

    /// Adds requests, and wakes the pager's threads.
    pub(super) fn put(&self, requests: impl IntoIterator<Item = PagerRequest>) {
        let mut state = lock(&self.state);
        state.requests.extend(requests);
        self.notify(state);
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// Adds requests. Returns true if the caller must run the pager from now on; false if another thread runs
    /// it and will serve the requests.
    fn begin_with(&self, requests: impl IntoIterator<Item = PagerRequest>) -> bool {
        let mut state = lock(&self.state);
        state.requests.extend(requests);
        !std::mem::replace(&mut state.at_work, true)
    }

    /// Waits until no thread runs the pager; from then on the caller does.
    fn begin(&self) {
        let mut state = lock(&self.state);
        while state.at_work {
            state = self.sleep(state, None);
        }
        state.at_work = true;
    }

    fn take(&self, into: &mut VecDeque<PagerRequest>) {
        into.append(&mut lock(&self.state).requests);
    }

    /// Ends the caller's run of the pager. Returns false if another thread added a request meanwhile; the
    /// caller then still runs the pager.
    fn leave(&self) -> bool {
        let mut state = lock(&self.state);
        state.at_work = !state.requests.is_empty();
        let is_free = !state.at_work;
        if is_free {
            self.notify(state);
        }
        is_free
    }

    /// Wakes the threads that sleep here. The lock is released first, so that a woken thread does not have to
    /// wait for it.
    fn notify(&self, state: MutexGuard<'_, State>) {
        let sleeps = state.sleeps;
        drop(state);
        if sleeps {
            self.change.notify_all();
        }
    }

    /// Waits until there is a request, at most for `most`.
    fn wait(&self, most: StdDuration) {
        let state = lock(&self.state);
        if state.requests.is_empty() {
            drop(self.sleep(state, Some(most)));
        }
    }

    fn sleep<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        most: Option<StdDuration>,
    ) -> MutexGuard<'a, State> {
        state.sleeps = true;
        let mut state = match most {
            None => self.change.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(most) => self.change.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner).0,
        };
        state.sleeps = false;
        state
    }
}

/// Locks a mutex, even a poisoned one: a panic leaves none of these values inconsistent.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pager and its inbox.
pub(super) struct SharedPager<W: Mapped, L: Link> {
    inbox: Arc<Inbox>,
    /// Only the thread that runs the pager takes this lock, so no thread waits for it.
    pager: Mutex<Pager<W, L>>,
}

impl<W: Mapped, L: Link> SharedPager<W, L> {
    /// Creates the shared pager of `pager`, which gets requests through `inbox`.
    pub(super) fn new(pager: Pager<W, L>, inbox: Arc<Inbox>) -> Self {
        Self { inbox, pager: Mutex::new(pager) }
    }

    /// Serves requests on this thread, or leaves them to the thread that runs the pager. `parcel` belongs to
    /// the caller.
    ///
    /// The frames leave after the pager is free again. A thread that they wake may take this CPU, and the
    /// answer may arrive before this thread continues.
    pub(super) fn serve(&self, requests: impl IntoIterator<Item = PagerRequest>, parcel: &mut L::Parcel) {
        let mut at_work = self.inbox.begin_with(requests);
        while at_work {
            let mut pager = lock(&self.pager);
            self.inbox.take(pager.requests());
            pager.begin(parcel);
            drop(pager);
            at_work = !self.inbox.leave();
        }
        parcel.hand_over();
    }

    /// Receives frames if any have arrived and no other thread runs the pager. Returns false for a link at
    /// which only its sleeper notices frames. Arriving frames wake no sleeper until [`SharedPager::rest`].
    pub(super) fn look(&self) -> bool {
        let mut can_look = true;
        self.work(|pager| can_look = pager.look());
        can_look
    }

    /// Makes later requests wake the sleeper.
    pub(super) fn rest(&self) {
        self.work(Pager::rest);
    }

    /// Runs the pager. If another thread runs it, that thread serves the requests.
    fn work(&self, mut work: impl FnMut(&mut Pager<W, L>)) {
        let mut at_work = self.inbox.begin_with([]);
        while at_work {
            let mut pager = lock(&self.pager);
            self.inbox.take(pager.requests());
            work(&mut pager);
            drop(pager);
            at_work = !self.inbox.leave();
        }
    }

    /// Leaves requests to the thread that serves the link.
    pub(super) fn leave(&self, requests: impl IntoIterator<Item = PagerRequest>) {
        self.inbox.put(requests);
    }

    /// Serves the link until the pager was told to end and everything is written back or cannot be. Returns
    /// true if everything was written back.
    pub(super) fn run(&self, mut sleeper: Sleeper) -> bool {
        loop {
            self.inbox.begin();
            let next = loop {
                let mut pager = lock(&self.pager);
                self.inbox.take(pager.requests());
                let next = pager.turn();
                drop(pager);
                // After the end, no thread may run the pager.
                if matches!(next, Next::End { .. }) || self.inbox.leave() {
                    break next;
                }
            };
            match next {
                Next::End { all_written } => return all_written,
                Next::Look => {}
                Next::Sleep(most) => {
                    if let Err(error) = sleeper.sleep(most) {
                        self.leave([PagerRequest::Fail(format!("the link to the rack failed: {error}"))]);
                    }
                }
                Next::Wait(most) => self.inbox.wait(most),
            }
        }
    }
}
