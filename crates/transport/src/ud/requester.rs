//! The requester's side: outstanding requests by id, each with a timer and a bounded number of retransmissions.
//!
//! Key type: [`Requester`]. It says when a request is sent again. Its owner sends the request, unchanged (PROTOCOL 5.2), matches an answer
//! to its request, and checks the sender.

use super::table::Table;
use alloc::collections::VecDeque;
use farmem_machine::{Duration, Instant};
use farmem_wire::RequestId;

/// How often the wait doubles: 1, 2, 4 and then 8 times the timeout (PROTOCOL 5.2).
const DOUBLINGS_MAX: u32 = 3;
const WAITS: usize = DOUBLINGS_MAX as usize + 1;

/// Outstanding requests; `T` is what the owner keeps for each, so that it can send it again.
#[derive(Debug)]
pub struct Requester<T> {
    outstanding_max: usize,
    timeout: Duration,
    retries_max: u32,
    requests: Table<Outstanding<T>>,
    /// One queue per length of wait, so that each is in order of time without sorting. Rows of finished requests stay
    /// until they come to the front or are swept; the front row of each is always alive.
    queues: [VecDeque<Row>; WAITS],
}

#[derive(Debug)]
struct Outstanding<T> {
    context: T,
    /// Times it was sent again.
    retries: u32,
    due: Instant,
}

/// A timer: alive while the request is outstanding and due at this moment.
#[derive(Clone, Copy, Debug)]
struct Row {
    due: Instant,
    request: RequestId,
}

/// A request that was given up.
#[derive(Debug)]
pub struct Expired<T> {
    /// Its id.
    pub request: RequestId,
    /// What the owner kept.
    pub context: T,
}

impl<T> Requester<T> {
    /// At most `outstanding_max` requests at once; each is sent again every `timeout` (doubling up to 8 times it), at
    /// most `retries_max` times.
    ///
    /// # Panics
    /// When `timeout` is zero.
    #[must_use]
    pub fn new(outstanding_max: usize, timeout: Duration, retries_max: u32) -> Self {
        assert!(timeout.as_nanos() > 0, "a timeout that lets time pass");
        Self { outstanding_max, timeout, retries_max, requests: Table::default(), queues: Default::default() }
    }

    /// Takes in a request that its owner sends now, alone or together with others. It is outstanding until [`Requester::finish`].
    ///
    /// # Errors
    /// The context, when too many requests are outstanding.
    ///
    /// # Panics
    /// When `request` is outstanding already: ids are used once.
    #[inline]
    pub fn start(&mut self, now: Instant, request: RequestId, context: T) -> Result<(), T> {
        if self.requests.len() >= self.outstanding_max {
            return Err(context);
        }
        let due = now + wait(self.timeout, 0);
        let is_new = self.requests.insert(request, Outstanding { context, retries: 0, due });
        assert!(is_new, "{request:?} is used once");
        self.enqueue(0, Row { due, request });
        Ok(())
    }

    /// The context of an outstanding request.
    #[must_use]
    pub fn get(&self, request: RequestId) -> Option<&T> {
        self.requests.get(request).map(|outstanding| &outstanding.context)
    }

    /// Ends a request: its answer came. `None` for one that is not outstanding (a late or repeated answer).
    #[inline]
    pub fn finish(&mut self, request: RequestId) -> Option<T> {
        let Outstanding { context, retries, .. } = self.requests.remove(request)?;
        let queue = queue_of(retries);
        // The row in front is another one's, and alive as before; or this one's, as when answers come in the order of their requests.
        if self.queues[queue].front().is_some_and(|row| row.request == request) {
            self.queues[queue].pop_front();
            self.clean_front(queue);
        }
        Some(context)
    }

    /// Gives a request up, whatever its timer says: the oldest id first. `None` when none is outstanding.
    pub fn give_up(&mut self) -> Option<Expired<T>> {
        let request = self.requests.lowest()?;
        self.finish(request).map(|context| Expired { request, context })
    }

    /// Has `send` send again what is due; answers one given-up request per call, `None` when there is no more to do.
    pub fn on_wake(&mut self, now: Instant, mut send: impl FnMut(RequestId, &T)) -> Option<Expired<T>> {
        // Longest wait first: what is sent again goes into a queue that was looked at already, or to the end of its own
        // with a time that has not come.
        for queue in (0..WAITS).rev() {
            while let Some(&Row { due, request }) = self.queues[queue].front()
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

    /// A request was sent again for another reason than its timer: it waits anew, as long as it has waited since that sent it last. So what is given up was sent a whole wait before.
    pub fn wait_anew(&mut self, now: Instant, request: RequestId) {
        let Some(outstanding) = self.requests.get_mut(request) else { return };
        let retries = outstanding.retries;
        let due = now + wait(self.timeout, retries);
        if due == outstanding.due {
            return; // sent at this moment
        }
        outstanding.due = due;
        self.enqueue(queue_of(retries), Row { due, request });
        self.clean_front(queue_of(retries));
    }

    /// When [`Requester::on_wake`] is due.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        self.queues.iter().filter_map(|queue| queue.front()).map(|row| row.due).min()
    }

    /// Requests outstanding.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// True when none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.len() == 0
    }

    /// Asserts every invariant.
    ///
    /// # Panics
    /// When one is broken.
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
    /// Sends a due request again, or takes it out when it was sent often enough.
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
        self.enqueue(queue_of(retries), Row { due, request });
        None
    }

    fn enqueue(&mut self, queue: usize, row: Row) {
        if self.queues[queue].len() == self.rows_max() {
            let requests = &self.requests;
            self.queues[queue].retain(|row| is_alive(requests, *row));
        }
        self.queues[queue].push_back(row);
    }

    /// Rows a queue may have: twice the requests, so that a sweep frees at least half and costs little per request.
    fn rows_max(&self) -> usize {
        self.outstanding_max.saturating_mul(2)
    }

    fn clean_front(&mut self, queue: usize) {
        while self.queues[queue].front().is_some_and(|&row| !self.is_alive(row)) {
            self.queues[queue].pop_front();
        }
    }

    fn is_alive(&self, row: Row) -> bool {
        is_alive(&self.requests, row)
    }
}

fn is_alive<T>(requests: &Table<Outstanding<T>>, row: Row) -> bool {
    requests.get(row.request).is_some_and(|request| request.due == row.due)
}

/// How often a request is to be sent again so that it is given up when nothing came for `silence`, and not before (PROTOCOL 5.2, 5.3).
///
/// # Panics
/// When `timeout` is zero.
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

/// How long to wait for an answer to a request that was sent again so often.
fn wait(timeout: Duration, retries: u32) -> Duration {
    timeout.times(1 << retries.min(DOUBLINGS_MAX))
}

/// The queue of those that were sent again so often.
fn queue_of(retries: u32) -> usize {
    retries.min(DOUBLINGS_MAX) as usize
}
