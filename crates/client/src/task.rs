//! An application's operations as tasks: one exchange with far memory after another, so that many can be under way on one core.
//!
//! Key types: [`Task`] is an operation; [`crate::Client::run_tasks`] keeps many under way, [`run_tasks`] on any
//! [`Concurrent`] far memory; [`run_one`] carries one out on any
//! [`FarMemory`]. A task has no thread and no stack of its own: between two exchanges it is a value, as a role is.
//!
//! A traversal that a task needs runs at the memory nodes or at this host, as the policy says (PULSE 4.1). At the host its iterations are
//! READs like any others, so those of many traversals are under way at once. Results are those of [`crate::Client::dispatch`].
//!
//! # Synchronisation
//!
//! PULSE leaves it to the host (PULSE 2.3). Between the tasks of one run there are two means. A *turn* is a lock by name that this host
//! holds for a task: a task that changes something by reading and then writing it takes the turn of what it changes. And a task that cannot
//! bear others runs *alone*. Neither says anything to other hosts: for them structures have lock words in far memory.

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
    /// Goes on with what the last exchange brought, up to the next one.
    ///
    /// The run calls this first with an empty queue; then again each time that all of what it needed has ended, that its turn came, or
    /// that it was alone; and not after [`Next::Done`].
    ///
    /// # Errors
    /// A reason to end the whole run. A failure in `queue` that the task can live with is its own matter.
    fn next(&mut self, queue: &mut OpQueue) -> Result<Next, Error>;

    /// Does what it asked to be [`Next::Alone`] for.
    ///
    /// # Errors
    /// As [`Task::next`].
    fn alone(&mut self, memory: &mut dyn FarMemory) -> Result<(), Error> {
        let _nothing_to_do_alone = memory;
        Ok(())
    }
}

/// A task's wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The operations that it put into the queue with [`OpQueue::need`], at least one. All are under way at once, in any order.
    Need,
    /// The turn of this name, which one task of the run has at a time, from then on until it ends or asks for another turn. Those
    /// that wait get it in the order in which they asked.
    ///
    /// Data read before may have changed by then.
    Turn(u64),
    /// Waits until no other task of the run is between two exchanges: [`Task::alone`] is called then. Tasks that wait for a turn or to be alone
    /// themselves are not between two exchanges; what they read before may have changed when they go on.
    Alone,
    /// Nothing: it is finished.
    Done,
}

/// The operations that a task needs next, and the ends of those that it needed last.
#[derive(Debug, Default)]
pub struct OpQueue {
    /// The ends of what was needed, in the order in which it was asked for.
    got: VecDeque<Completed>,
    need: Vec<Op>,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
}

/// Buffers that one queue keeps for reuse.
const SPARE_MAX: usize = 16;

impl OpQueue {
    /// Asks for `op`, together with what else is asked for before the task waits.
    pub fn need(&mut self, op: Op) {
        self.need.push(op);
    }

    /// Takes the next of the ends of what was needed, in the order in which it was asked for; `None` when all are taken. What is not taken
    /// is gone with the next exchange.
    pub fn take(&mut self) -> Option<Completed> {
        self.got.pop_front()
    }

    /// Takes the end of the one operation that was needed.
    ///
    /// # Panics
    /// When not exactly one has ended.
    pub fn one(&mut self) -> Completed {
        assert_eq!(self.got.len(), 1, "one operation was needed");
        self.got.pop_front().expect("there is one")
    }

    /// An empty buffer, from an earlier operation when there is one.
    pub fn buffer(&mut self) -> Vec<u8> {
        let mut buf = self.spare.pop().unwrap_or_default();
        buf.clear();
        buf
    }

    /// Gives a buffer back for reuse.
    pub fn recycle(&mut self, buf: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && buf.capacity() > 0 {
            self.spare.push(buf);
        }
    }

    /// Makes it ready for another task.
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
    /// From its start to its end, waiting for turns included.
    pub latency: Duration,
    /// Round trips one after the other: what was under way at once counts as its longest.
    pub round_trips: u64,
    /// Requests in all: READs, WRITEs, atomics, and those of traversals.
    pub requests: u64,
    /// Traversals that ran at the memory nodes.
    pub offloaded: u64,
    /// Traversals that ran at this host; `requests` has their READs.
    pub at_host: u64,
    /// Iterations of traversals, wherever they ran.
    pub iterations: u64,
}

impl TaskStats {
    /// Counts the traversal of an exchange, and answers its requests.
    fn traversal(&mut self, site: Site, end: &Traversed) -> u64 {
        match site {
            Site::MemoryNodes => self.offloaded += 1,
            Site::Host => self.at_host += 1,
        }
        self.iterations += u64::from(end.iterations);
        u64::from(end.requests)
    }
}
