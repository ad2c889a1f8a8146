//! Shares a pager between threads: its own threads run it by turns, and all other threads leave a request in the [`Inbox`].
//!
//! Key type: [`SharedPager`]. Two threads receive events for the pager: one sleeps at the link, the other one at the userfaultfd. Neither hands its
//! events over to the other, which would cost a wake-up of a thread for each fault and for each page: it runs the pager itself, and
//! the other one has to wait until it is done. A thread that finds the pager running leaves its request; the running thread serves it next.
//!
//! The program's threads only ever leave requests. A thread that runs the pager must not fault, and a program's thread may: in a signal handler.

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
    /// Cached pages may be used until then.
    Lease(Instant),
    /// The control plane's order to give everything up.
    GiveUp(u64),
    /// Nothing can be had any more, for this reason.
    Fail(String),
    /// Everything written so far is to be at the memory nodes; then an answer.
    WriteBack(Sender<Result<(), Error>>),
    /// How much was done.
    Stats(Sender<ShareStats>),
    /// The program is done: write everything back and end.
    End,
}

/// Requests that no thread has served yet. The number of threads bounds them: each waits for its fault, or for its answer.
#[derive(Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
    /// The pager is free, or there is something for one that sleeps here.
    change: Condvar,
    waker: OnceLock<Waker>,
}

#[derive(Default)]
struct State {
    requests: VecDeque<PagerRequest>,
    /// A thread runs the pager, and looks here once more before it stops.
    at_work: bool,
    /// A thread sleeps here, so waking it takes a system call. That is rare.
    sleeps: bool,
}

impl Inbox {
    /// From here on [`Inbox::put`] wakes the thread that sleeps at the link.
    pub(super) fn set_waker(&self, waker: Waker) {
        let again = self.waker.set(waker);
        assert!(again.is_ok(), "a space has one link");
    }

    /// Leaves all of them, and wakes the pager's threads.
    pub(super) fn put(&self, requests: impl IntoIterator<Item = PagerRequest>) {
        let mut state = lock(&self.state);
        state.requests.extend(requests);
        self.notify(state);
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// Adds them. False when another thread runs the pager: it will see them. True when the caller runs the pager from now on.
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

    /// Ends the caller's run of the pager; false when another thread left something meanwhile: then the caller still runs it.
    fn leave(&self) -> bool {
        let mut state = lock(&self.state);
        state.at_work = !state.requests.is_empty();
        let is_free = !state.at_work;
        if is_free {
            self.notify(state);
        }
        is_free
    }

    /// Wakes the threads that sleep here. The lock is released first, so that none of them finds it taken.
    fn notify(&self, state: MutexGuard<'_, State>) {
        let sleeps = state.sleeps;
        drop(state);
        if sleeps {
            self.change.notify_all();
        }
    }

    /// Waits until there is something, for `most` at the longest.
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

/// Nothing that is locked here is left half done by a panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pager, and its turns.
pub(super) struct SharedPager<W: Mapped, L: Link> {
    inbox: Arc<Inbox>,
    /// Only the thread that runs the pager takes this lock, so no thread waits for it.
    pager: Mutex<Pager<W, L>>,
}

impl<W: Mapped, L: Link> SharedPager<W, L> {
    /// The shared pager of `pager`, to which others speak through `inbox`.
    pub(super) fn new(pager: Pager<W, L>, inbox: Arc<Inbox>) -> Self {
        Self { inbox, pager: Mutex::new(pager) }
    }

    /// Does what is asked on this thread, or leaves it to the thread that runs the pager. `parcel` is the caller's own.
    ///
    /// The frames leave when the pager is free again: a thread that they wake may take this CPU, and the answer may be here before this
    /// thread goes on.
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

    /// Takes what has come over the link, if no thread runs the pager; false for a link at which only its sleeper hears something. What comes
    /// wakes no sleeper until [`SharedPager::rest`].
    pub(super) fn look(&self) -> bool {
        let mut can_look = true;
        self.work(|pager| can_look = pager.look());
        can_look
    }

    /// Has later requests wake the sleeper.
    pub(super) fn rest(&self) {
        self.work(Pager::rest);
    }

    /// Runs the pager, unless another thread does: then that one does what is asked.
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

    /// Leaves these to the thread that serves the link.
    pub(super) fn leave(&self, requests: impl IntoIterator<Item = PagerRequest>) {
        self.inbox.put(requests);
    }

    /// Serves what comes over the link, until the pager was told to end and everything is written back or cannot be; true when it was.
    pub(super) fn run(&self, mut sleeper: Sleeper) -> bool {
        loop {
            self.inbox.begin();
            let next = loop {
                let mut pager = lock(&self.pager);
                self.inbox.take(pager.requests());
                let next = pager.turn();
                drop(pager);
                // No thread runs the pager after the end.
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
