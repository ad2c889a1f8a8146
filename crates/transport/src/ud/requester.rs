//! The requester's side: outstanding requests by id, each with a timer and a bounded number of
//! retransmissions.
//!
//! Key type: [`Requester`]. It decides when a request is retransmitted. Its owner sends the request,
//! unchanged (PROTOCOL 5.2), matches responses to requests, and checks the sender.

use super::table::Table;
use alloc::collections::VecDeque;
use farmem_machine::{Backoff, Duration, Instant};
use farmem_wire::RequestId;

/// Number of times that the wait doubles: 1, 2, 4 and then 8 times the timeout (PROTOCOL 5.2).
const DOUBLINGS_MAX: u32 = 3;
const WAITS: usize = DOUBLINGS_MAX as usize + 1;

/// The outstanding requests; `T` is the owner's context, from which it can send a request again.
#[derive(Debug)]
pub struct Requester<T> {
    outstanding_max: usize,
    timeout: Duration,
    retries_max: u32,
    requests: Table<Outstanding<T>>,
    /// One queue per length of wait, so that each is ordered by time without sorting. Rows of finished
    /// requests stay until they reach the front or are swept. The front row of each queue is always alive.
    queues: [VecDeque<Timer>; WAITS],
}

#[derive(Debug)]
struct Outstanding<T> {
    context: T,
    /// Number of retransmissions.
    retries: u32,
    due: Instant,
}

/// A timer: alive if the request is outstanding and due at this time.
#[derive(Clone, Copy, Debug)]
struct Timer {
    due: Instant,
    request: RequestId,
}

/// A request whose retransmissions are exhausted.
#[derive(Debug)]
pub struct Expired<T> {
    /// Id of the request.
    pub request: RequestId,
    /// Context of the request.
    pub context: T,
}

impl<T> Requester<T> {
    /// Creates a table of at most `outstanding_max` requests. Each is retransmitted every `timeout` (doubling
    /// up to 8 times it), at most `retries_max` times.
    ///
    /// # Panics
    /// If `timeout` is zero.
    #[must_use]
    pub fn new(outstanding_max: usize, timeout: Duration, retries_max: u32) -> Self {
        assert!(timeout.as_nanos() > 0, "a timeout that lets time pass");
        Self { outstanding_max, timeout, retries_max, requests: Table::default(), queues: Default::default() }
    }

    /// Adds a request that its owner sends now, alone or with others. The request is outstanding until
    /// [`Requester::finish`].
    ///
    /// # Errors
    /// The context, if too many requests are outstanding.
    ///
    /// # Panics
    /// If `request` is outstanding already: ids are used once.
    #[inline]
    pub fn start(&mut self, now: Instant, request: RequestId, context: T) -> Result<(), T> {
        if self.requests.len() >= self.outstanding_max {
            return Err(context);
        }
        let due = now + wait(self.timeout, 0);
        let is_new = self.requests.insert(request, Outstanding { context, retries: 0, due });
        assert!(is_new, "{request:?} is used once");
        self.enqueue(0, Timer { due, request });
        Ok(())
    }

    /// Returns the context of an outstanding request.
    #[must_use]
    pub fn get(&self, request: RequestId) -> Option<&T> {
        self.requests.get(request).map(|outstanding| &outstanding.context)
    }

    /// Removes a request whose response arrived. Returns `None` for a request that is not outstanding (a late
    /// or repeated response).
    #[inline]
    pub fn finish(&mut self, request: RequestId) -> Option<T> {
        let Outstanding { context, retries, .. } = self.requests.remove(request)?;
        let queue = queue_of(retries);
        // The front row belongs to another request and stays alive; or to this one, if responses arrive in
        // order.
        if self.queues[queue].front().is_some_and(|row| row.request == request) {
            self.queues[queue].pop_front();
            self.clean_front(queue);
        }
        Some(context)
    }

    /// Removes the request with the lowest id, whatever its timer. Returns `None` if none is outstanding.
    pub fn give_up(&mut self) -> Option<Expired<T>> {
        let request = self.requests.lowest()?;
        self.finish(request).map(|context| Expired { request, context })
    }

    /// Calls `send` for each due request. Returns one exhausted request per call, and `None` when there are
    /// no more.
    pub fn on_wake(&mut self, now: Instant, mut send: impl FnMut(RequestId, &T)) -> Option<Expired<T>> {
        // Longest wait first: a retransmitted request enters a queue that was already processed, or the end
        // of its own with a later time.
        for queue in (0..WAITS).rev() {
            while let Some(&Timer { due, request }) = self.queues[queue].front()
                && due <= now
            {
                self.queues[queue].pop_front();
                let expired = self.send_again(now, request, &mut send);
                self.clean_front(queue);
                if expired.is_some() {
                    return expired;
                }
            }
        }
        None
    }

    /// Restarts the wait of a request that was retransmitted for another reason than its timer. The length of
    /// the wait stays, so that a request is sent a whole wait before it expires.
    pub fn restart_timer(&mut self, now: Instant, request: RequestId) {
        let Some(outstanding) = self.requests.get_mut(request) else { return };
        let retries = outstanding.retries;
        let due = now + wait(self.timeout, retries);
        if due == outstanding.due {
            return; // sent at this moment
        }
        outstanding.due = due;
        self.enqueue(queue_of(retries), Timer { due, request });
        self.clean_front(queue_of(retries));
    }

    /// Returns the time at which [`Requester::on_wake`] is due.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        self.queues.iter().filter_map(|queue| queue.front()).map(|row| row.due).min()
    }

    /// Returns the number of outstanding requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns true if no request is outstanding.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.len() == 0
    }

    /// Asserts every invariant.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn check(&self) {
        assert!(self.requests.len() <= self.outstanding_max);
        for queue in &self.queues {
            assert!(queue.front().is_none_or(|&row| self.is_alive(row)), "the front row is alive");
            assert!(queue.len() <= self.rows_max(), "dead rows are swept");
        }
        let alive = self.queues.iter().flatten().filter(|&&row| self.is_alive(row)).count();
        assert_eq!(alive, self.requests.len(), "each request has one timer");
        assert!(self.requests.used().all(|(_, request)| request.retries <= self.retries_max));
    }
}

impl<T> Requester<T> {
    /// Retransmits a due request, or removes it if its retransmissions are exhausted.
    fn send_again(
        &mut self,
        now: Instant,
        request: RequestId,
        send: &mut impl FnMut(RequestId, &T),
    ) -> Option<Expired<T>> {
        let outstanding = self.requests.get_mut(request)?;
        if outstanding.retries == self.retries_max {
            return self.finish(request).map(|context| Expired { request, context });
        }
        outstanding.retries += 1;
        send(request, &outstanding.context);
        let retries = outstanding.retries;
        let due = now + wait(self.timeout, retries);
        outstanding.due = due;
        self.enqueue(queue_of(retries), Timer { due, request });
        None
    }

    fn enqueue(&mut self, queue: usize, row: Timer) {
        if self.queues[queue].len() == self.rows_max() {
            let requests = &self.requests;
            self.queues[queue].retain(|row| is_alive(requests, *row));
        }
        self.queues[queue].push_back(row);
    }

    /// Returns the most rows of a queue: twice the requests, so that a sweep frees at least half and costs
    /// little per request.
    fn rows_max(&self) -> usize {
        self.outstanding_max.saturating_mul(2)
    }

    fn clean_front(&mut self, queue: usize) {
        while self.queues[queue].front().is_some_and(|&row| !self.is_alive(row)) {
            self.queues[queue].pop_front();
        }
    }

    fn is_alive(&self, row: Timer) -> bool {
        is_alive(&self.requests, row)
    }
}

fn is_alive<T>(requests: &Table<Outstanding<T>>, row: Timer) -> bool {
    requests.get(row.request).is_some_and(|request| request.due == row.due)
}

/// Returns the number of retransmissions after which a request expires `silence` after it was sent, and not
/// before (PROTOCOL 5.2, 5.3).
///
/// # Panics
/// If `timeout` is zero.
#[must_use]
pub fn retries_in(silence: Duration, timeout: Duration) -> u32 {
    assert!(timeout > Duration::ZERO, "a timeout takes time");
    let (mut retries, mut silent) = (0, wait(timeout, 0));
    while silent < silence {
        retries += 1;
        silent = silent + wait(timeout, retries);
    }
    retries
}

/// Returns the wait after this number of retransmissions.
fn wait(timeout: Duration, retries: u32) -> Duration {
    Backoff::new(timeout, DOUBLINGS_MAX).after(retries)
}

/// Returns the queue for this number of retransmissions.
fn queue_of(retries: u32) -> usize {
    retries.min(DOUBLINGS_MAX) as usize
}
