//! The requester's side: outstanding requests by id, each with a timer and a bounded number of retransmissions.
//!
//! Key type: [`Requester`]. It keeps frames as they were sent and does not look into them; matching an answer to its
//! request, and checking who sent it, is the owner's.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use farmem_machine::{Duration, Instant, Outbox, Port};
use farmem_wire::RequestId;

/// How often the wait doubles: 1, 2, 4 and then 8 times the timeout (PROTOCOL 5.2).
const DOUBLINGS_MAX: u32 = 3;
const WAITS: usize = DOUBLINGS_MAX as usize + 1;

/// Outstanding requests; `T` is what the owner keeps for each.
#[derive(Debug)]
pub struct Requester<T> {
    outstanding_max: usize,
    timeout: Duration,
    retries_max: u32,
    requests: BTreeMap<RequestId, Outstanding<T>>,
    /// One queue per length of wait, so that each is in order of time without sorting. Rows of finished requests stay
    /// until they come to the front or are swept; the front row of each is always alive.
    queues: [VecDeque<Row>; WAITS],
    /// Memory of finished frames, to be used again.
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Outstanding<T> {
    port: Port,
    frame: Vec<u8>,
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
        Self {
            outstanding_max,
            timeout,
            retries_max,
            requests: BTreeMap::new(),
            queues: Default::default(),
            spare: Vec::new(),
        }
    }

    /// Sends `frame` to `port` and keeps it until [`Requester::finish`].
    ///
    /// # Errors
    /// The context, when too many requests are outstanding.
    ///
    /// # Panics
    /// When `request` is outstanding already: ids are used once.
    pub fn start<O, N>(
        &mut self,
        now: Instant,
        request: RequestId,
        port: Port,
        frame: &[u8],
        context: T,
        out: &mut Outbox<O, N>,
    ) -> Result<(), T> {
        self.hold(now, request, port, frame, context)?;
        out.send(port, frame);
        Ok(())
    }

    /// As [`Requester::start`], but the owner sends it: together with others, or by [`Requester::send`]. Its timer runs from now on, and what is
    /// sent again is `frame`.
    ///
    /// # Errors
    /// As [`Requester::start`].
    ///
    /// # Panics
    /// As [`Requester::start`].
    pub fn hold(
        &mut self,
        now: Instant,
        request: RequestId,
        port: Port,
        frame: &[u8],
        context: T,
    ) -> Result<(), T> {
        if self.requests.len() >= self.outstanding_max {
            return Err(context);
        }
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.extend_from_slice(frame);
        let due = now + wait(self.timeout, 0);
        let previous =
            self.requests.insert(request, Outstanding { port, frame: kept, context, retries: 0, due });
        assert!(previous.is_none(), "{request:?} is used once");
        self.enqueue(0, Row { due, request });
        Ok(())
    }

    /// Sends a request that was held, as it is kept; nothing when it is not outstanding any more.
    pub fn send<O, N>(&self, request: RequestId, out: &mut Outbox<O, N>) {
        if let Some(outstanding) = self.requests.get(&request) {
            out.send(outstanding.port, &outstanding.frame);
        }
    }

    /// The context of an outstanding request.
    pub fn get_mut(&mut self, request: RequestId) -> Option<&mut T> {
        self.requests.get_mut(&request).map(|outstanding| &mut outstanding.context)
    }

    /// Ends a request: its answer came. `None` for one that is not outstanding (a late or repeated answer).
    pub fn finish(&mut self, request: RequestId) -> Option<T> {
        let Outstanding { mut frame, context, retries, .. } = self.requests.remove(&request)?;
        frame.clear();
        self.spare.push(frame);
        self.clean_front(queue_of(retries));
        Some(context)
    }

    /// Gives a request up, whatever its timer says: the oldest id first. `None` when none is outstanding.
    pub fn give_up(&mut self) -> Option<Expired<T>> {
        let (&request, _) = self.requests.first_key_value()?;
        self.finish(request).map(|context| Expired { request, context })
    }

    /// Sends again what is due; answers one given-up request per call, `None` when there is no more to do.
    pub fn on_wake<O, N>(&mut self, now: Instant, out: &mut Outbox<O, N>) -> Option<Expired<T>> {
        // Longest wait first: what is sent again goes into a queue that was looked at already, or to the end of its own
        // with a time that has not come.
        for queue in (0..WAITS).rev() {
            while let Some(&Row { due, request }) = self.queues[queue].front()
                && due <= now
            {
                self.queues[queue].pop_front();
                let expired = self.send_again(now, request, out);
                self.clean_front(queue);
                if expired.is_some() {
                    return expired;
                }
            }
        }
        None
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
        self.requests.is_empty()
    }

    /// Asserts every invariant.
    ///
    /// # Panics
    /// When one is broken.
    pub fn check(&self) {
        assert!(self.requests.len() <= self.outstanding_max);
        assert!(self.requests.len() + self.spare.len() <= self.outstanding_max, "frames are used again");
        for queue in &self.queues {
            assert!(queue.front().is_none_or(|&row| self.is_alive(row)), "the front row is alive");
            assert!(queue.len() <= self.rows_max(), "dead rows are swept");
        }
        let alive = self.queues.iter().flatten().filter(|&&row| self.is_alive(row)).count();
        assert_eq!(alive, self.requests.len(), "each request has one timer");
        assert!(self.requests.values().all(|request| request.retries <= self.retries_max));
    }
}

impl<T> Requester<T> {
    /// Sends a due request again, or takes it out when it was sent often enough.
    fn send_again<O, N>(
        &mut self,
        now: Instant,
        request: RequestId,
        out: &mut Outbox<O, N>,
    ) -> Option<Expired<T>> {
        let outstanding = self.requests.get_mut(&request)?;
        if outstanding.retries == self.retries_max {
            return self.finish(request).map(|context| Expired { request, context });
        }
        outstanding.retries += 1;
        out.send(outstanding.port, &outstanding.frame);
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

fn is_alive<T>(requests: &BTreeMap<RequestId, Outstanding<T>>, row: Row) -> bool {
    requests.get(&row.request).is_some_and(|request| request.due == row.due)
}

/// How long to wait for an answer to a frame that was sent again so often.
fn wait(timeout: Duration, retries: u32) -> Duration {
    timeout.times(1 << retries.min(DOUBLINGS_MAX))
}

/// The queue of those that were sent again so often.
fn queue_of(retries: u32) -> usize {
    retries.min(DOUBLINGS_MAX) as usize
}
