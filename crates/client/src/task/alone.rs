//! Sequential execution of tasks on any far memory, for hosts that cache pages and for programs with a single
//! task.

use crate::error::Error;
use crate::far_memory::FarMemory;
use crate::forward_far_memory;
use crate::operation::{Completed, Ticket};
use crate::policy::{Dispatched, Policy};
use crate::task::{Next, OpQueue, Task, TaskStats};
use farmem_host::{Answer, Op};
use farmem_machine::NoLender;
use farmem_traversal::Program;
use farmem_wire::VirtAddr;
use std::time::Instant;

/// Runs `task` from start to end; the task has every turn and is always alone.
///
/// # Errors
/// The errors of the task's own methods.
pub fn run_one(memory: &mut dyn FarMemory, task: &mut dyn Task, policy: &Policy) -> Result<TaskStats, Error> {
    let started = Instant::now();
    let mut stats = TaskStats::default();
    let mut queue = OpQueue::default();
    loop {
        match task.next(&mut queue)? {
            Next::Need => {
                assert!(!queue.need.is_empty(), "a task that waits for operations has asked for some");
                while let Some(completed) = queue.take() {
                    queue.recycle(completed.buf); // a completion that the task did not take
                }
                let mut longest = 0;
                for op in queue.need.drain(..) {
                    let (completed, requests) = count(&mut stats, memory, op, policy);
                    longest = longest.max(requests);
                    queue.got.push_back(completed);
                }
                stats.round_trips += longest;
            }
            Next::Turn(_) => {}
            Next::Alone => alone(memory, task, &mut stats)?,
            Next::Done => {
                stats.latency = started.elapsed();
                return Ok(stats);
            }
        }
    }
}

/// Calls the task's `alone` method, and counts its costs.
pub(super) fn alone<T: Task + ?Sized>(
    memory: &mut dyn FarMemory,
    task: &mut T,
    stats: &mut TaskStats,
) -> Result<(), Error> {
    task.alone(&mut Counted { memory, stats })
}

/// Executes `op`, and returns its completion as [`Client::wait`](crate::Client::wait) does. The ticket is
/// [`Ticket::AT_ONCE`].
#[must_use]
pub fn carry_out(memory: &mut dyn FarMemory, op: Op, policy: &Policy) -> Completed {
    count(&mut TaskStats::default(), memory, op, policy).0
}

/// Executes `op`; returns its completion and its number of requests.
fn count(stats: &mut TaskStats, memory: &mut dyn FarMemory, op: Op, policy: &Policy) -> (Completed, u64) {
    let done = Answer::Done { old: 0 };
    let (result, buf) = match op {
        Op::Read { addr, mut buf } | Op::RegionRead { addr, mut buf } => {
            (memory.read(addr, &mut buf).map(|()| done), buf)
        }
        Op::ReadTo { addr, to } => {
            let mut buf = vec![0; to.len()];
            (memory.read(addr, &mut buf).map(|()| to.put(0, &[&buf], &NoLender)).map(|()| done), Vec::new())
        }
        Op::Gather { addrs, mut buf } => {
            let each = buf.len().div_ceil(addrs.len().max(1)).max(1);
            let mut pieces = addrs.iter().zip(buf.chunks_mut(each));
            (pieces.try_for_each(|(addr, piece)| memory.read(*addr, piece)).map(|()| done), buf)
        }
        Op::Write { addr, buf } | Op::RegionWrite { addr, buf } => {
            (memory.write(addr, &buf).map(|()| done), buf)
        }
        Op::WriteFrom { addr, from } => {
            let mut buf = vec![0; from.len()];
            let written = if from.fill(0, &mut [&mut buf]) {
                memory.write(addr, &buf).map(|()| done)
            } else {
                Err(Error::Missing { what: "bytes at the source of a WRITE".into() })
            };
            (written, Vec::new())
        }
        Op::CompareSwap { addr, compare, swap } => {
            (memory.compare_swap(addr, compare, swap).map(|old| Answer::Done { old }), Vec::new())
        }
        Op::FetchAdd { addr, add } => {
            (memory.fetch_add(addr, add).map(|old| Answer::Done { old }), Vec::new())
        }
        Op::Through { work, .. } => {
            let what =
                "connection through the switch of this far memory: only clients have such connections".into();
            (Err(Error::Missing { what }), work.into_buf())
        }
        Op::Traverse { program, cur_ptr, scratch, limit } => {
            return match memory.dispatch(&program, cur_ptr, scratch, limit, policy) {
                Ok(Dispatched { site, end, scratch: buf }) => {
                    let requests = stats.traversal(site, &end);
                    stats.requests += requests;
                    (Completed { ticket: Ticket::AT_ONCE, result: Ok(Answer::Traversed(end)), buf }, requests)
                }
                Err(error) => (Completed { ticket: Ticket::AT_ONCE, result: Err(error), buf: Vec::new() }, 0),
            };
        }
    };
    stats.requests += 1;
    (Completed { ticket: Ticket::AT_ONCE, result, buf }, 1)
}

/// Far memory that counts its requests.
struct Counted<'a> {
    memory: &'a mut dyn FarMemory,
    stats: &'a mut TaskStats,
}

impl Counted<'_> {
    const fn count(&mut self, requests: u64) {
        self.stats.requests += requests;
        self.stats.round_trips += requests;
    }
}

impl FarMemory for Counted<'_> {
    forward_far_memory!(memory: allocate, allocate_on, free, nodes, scratch_len_max, buffer, recycle);

    fn read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error> {
        self.count(1);
        self.memory.read(addr, into)
    }

    fn write(&mut self, addr: VirtAddr, data: &[u8]) -> Result<(), Error> {
        self.count(1);
        self.memory.write(addr, data)
    }

    fn compare_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> Result<u64, Error> {
        self.count(1);
        self.memory.compare_swap(addr, compare, swap)
    }

    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> Result<u64, Error> {
        self.count(1);
        self.memory.fetch_add(addr, add)
    }

    fn dispatch(
        &mut self,
        program: &Program,
        start: VirtAddr,
        scratch: Vec<u8>,
        limit: u32,
        policy: &Policy,
    ) -> Result<Dispatched, Error> {
        let dispatched = self.memory.dispatch(program, start, scratch, limit, policy)?;
        let requests = self.stats.traversal(dispatched.site, &dispatched.end);
        self.count(requests);
        Ok(dispatched)
    }

    /// Counts concurrent writes as one round trip.
    fn write_many(&mut self, writes: &[(VirtAddr, &[u8])]) -> Result<(), Error> {
        self.stats.requests += writes.len() as u64;
        self.stats.round_trips += u64::from(!writes.is_empty());
        self.memory.write_many(writes)
    }

    /// Counts concurrent reads as one round trip.
    fn read_many(&mut self, reads: &mut [(VirtAddr, &mut [u8])]) -> Result<(), Error> {
        self.stats.requests += reads.len() as u64;
        self.stats.round_trips += u64::from(!reads.is_empty());
        self.memory.read_many(reads)
    }
}
