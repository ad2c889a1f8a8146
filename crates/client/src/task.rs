//! An application's operations as tasks: sequences of exchanges with far memory, many of which run
//! concurrently on one core.
//!
//! Key types: [`Task`], one operation. [`crate::Client::run_tasks`] runs many of them concurrently,
//! [`run_tasks`] does so on any [`Concurrent`] far memory, and [`run_one`] runs one on any [`FarMemory`]. A
//! task has no thread and no stack of its own: between two exchanges it is a value, as a role is.
//!
//! A task's traversal runs at the memory nodes or at this host, as the policy selects (PULSE 4.1). At the
//! host its iterations are ordinary READs, so those of many traversals are in flight at the same time.
//! Results are those of [`crate::Client::dispatch`].
//!
//! # Synchronization
//!
//! PULSE leaves synchronization to the host (PULSE 2.3). The tasks of one run have two means. A *turn* is a
//! keyed lock that this host holds for a task. A task that reads data and then writes them takes the turn of
//! these data. And a task that tolerates no concurrent tasks runs *alone*. Neither affects other hosts; for
//! them structures have lock words in far memory.

mod alone;
mod concurrent;
mod run;
pub use alone::{carry_out, run_one};
pub use concurrent::Concurrent;
pub use run::run_tasks;

use crate::error::Error;
use crate::far_memory::FarMemory;
use crate::operation::Completed;
use crate::policy::Site;
use farmem_host::{Op, Traversed};
use std::collections::VecDeque;
use std::time::Duration;

/// An operation of an application.
pub trait Task {
    /// Continues with the results of the last exchange, up to the next exchange.
    ///
    /// The run calls this method first with an empty queue. The run calls it again whenever all requested
    /// operations have completed, the task got its turn, or [`Task::alone`] has returned. After
    /// [`Next::Done`] there are no more calls.
    ///
    /// # Errors
    /// An error that ends the whole run. The task itself handles failures in `queue` that it tolerates.
    fn next(&mut self, queue: &mut OpQueue) -> Result<Next, Error>;

    /// Runs the part of the task for which it returned [`Next::Alone`].
    ///
    /// # Errors
    /// The errors of [`Task::next`].
    fn alone(&mut self, memory: &mut dyn FarMemory) -> Result<(), Error> {
        let _nothing_to_do_alone = memory;
        Ok(())
    }
}

/// The event for which a task waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The completion of the operations that the task put into the queue with [`OpQueue::need`], at least
    /// one. All run concurrently, in any order.
    Need,
    /// The turn with this key. One task of the run has a turn at a time, until the task ends or requests
    /// another turn. Waiting tasks get a turn in the order of their requests.
    ///
    /// Data that the task read before may have changed by then.
    Turn(u64),
    /// The moment when no other task of the run is between two exchanges; then the run calls [`Task::alone`].
    /// Tasks that wait for a turn or to be alone are not between two exchanges. Data that these tasks read
    /// before may have changed when they continue.
    Alone,
    /// Nothing, because the task has ended.
    Done,
}

/// The operations that a task needs next, and the completions of its previous ones.
#[derive(Debug, Default)]
pub struct OpQueue {
    /// Completions of the previous operations, in the order of the requests.
    got: VecDeque<Completed>,
    need: Vec<Op>,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
}

/// Maximum number of buffers that one queue keeps for reuse.
const SPARE_MAX: usize = 16;

impl OpQueue {
    /// Adds `op` to the operations of the next exchange.
    pub fn need(&mut self, op: Op) {
        self.need.push(op);
    }

    /// Takes the next completion, in the order of the requests; `None` after the last one. The next exchange
    /// drops completions that the task did not take.
    pub fn take(&mut self) -> Option<Completed> {
        self.got.pop_front()
    }

    /// Takes the completion of the only operation.
    ///
    /// # Panics
    /// Panics unless exactly one completion is left.
    pub fn one(&mut self) -> Completed {
        assert_eq!(self.got.len(), 1, "one operation was needed");
        self.got.pop_front().expect("there is one")
    }

    /// Returns an empty buffer; reuses one of an earlier operation if possible.
    pub fn buffer(&mut self) -> Vec<u8> {
        let mut buf = self.spare.pop().unwrap_or_default();
        buf.clear();
        buf
    }

    /// Returns a buffer to the queue for reuse.
    pub fn recycle(&mut self, buf: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && buf.capacity() > 0 {
            self.spare.push(buf);
        }
    }

    /// Clears the queue for another task.
    fn clear(&mut self) {
        self.need.clear();
        while let Some(completed) = self.got.pop_front() {
            self.recycle(completed.buf);
        }
    }
}

/// Costs of a task, in time and requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TaskStats {
    /// Time from the task's start to its end, including waits for turns.
    pub latency: Duration,
    /// Number of sequential round trips: concurrent operations count as the longest of them.
    pub round_trips: u64,
    /// Total number of requests: READs, WRITEs, atomics, and those of traversals.
    pub requests: u64,
    /// Number of traversals at the memory nodes.
    pub offloaded: u64,
    /// Number of traversals at this host; `requests` includes their READs.
    pub at_host: u64,
    /// Number of iterations of all traversals.
    pub iterations: u64,
}

impl TaskStats {
    /// Counts the traversal of an exchange, and returns its number of requests.
    fn traversal(&mut self, site: Site, end: &Traversed) -> u64 {
        match site {
            Site::MemoryNodes => self.offloaded += 1,
            Site::Host => self.at_host += 1,
        }
        self.iterations += u64::from(end.iterations);
        u64::from(end.requests)
    }
}
