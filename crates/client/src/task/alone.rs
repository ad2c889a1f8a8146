//! One task at a time, on any far memory: what a host that caches pages does, and a program that has one thing to do.

use super::{Exchange, Next, Task, Took};
use crate::dispatch::{Dispatched, Policy};
use crate::{Answer, Completed, Error, FarMemory, NodeId, Op, Program, Ticket, VirtAddr, Vma, api};
use std::time::Instant;

/// Carries `task` out from its start to its end; it has every turn and is always alone.
///
/// # Errors
/// What the task's own methods say.
pub fn run_one(memory: &mut dyn FarMemory, task: &mut dyn Task, policy: &Policy) -> Result<Took, Error> {
    let started = Instant::now();
    let mut took = Took::default();
    let mut exchange = Exchange::default();
    loop {
        match task.next(&mut exchange)? {
            Next::Need => {
                assert!(!exchange.need.is_empty(), "who waits for operations has asked for some");
                while let Some(completed) = exchange.take() {
                    exchange.recycle(completed.buf); // what the task did not take
                }
                let mut longest = 0;
                for op in exchange.need.drain(..) {
                    let (completed, requests) = count(&mut took, memory, op, policy);
                    longest = longest.max(requests);
                    exchange.got.push_back(completed);
                }
                took.round_trips += longest;
            }
            Next::Turn(_) => {}
            Next::Alone => alone(memory, task, &mut took)?,
            Next::Done => {
                took.latency = started.elapsed();
                return Ok(took);
            }
        }
    }
}

/// Lets `task` do what it must be alone for, and counts what it took.
pub(super) fn alone<T: Task + ?Sized>(
    memory: &mut dyn FarMemory,
    task: &mut T,
    took: &mut Took,
) -> Result<(), Error> {
    task.alone(&mut Counted { memory, took })
}

/// Carries `op` out, and says how it ended as [`Client::wait`](crate::Client::wait) does. Its ticket is [`Ticket::AT_ONCE`].
#[must_use]
pub fn carry_out(memory: &mut dyn FarMemory, op: Op, policy: &Policy) -> Completed {
    count(&mut Took::default(), memory, op, policy).0
}

/// Carries `op` out; answers its end and its requests.
fn count(took: &mut Took, memory: &mut dyn FarMemory, op: Op, policy: &Policy) -> (Completed, u64) {
    let done = Answer::Done { old: 0 };
    let (result, buf) = match op {
        Op::Read { addr, mut buf } | Op::RegionRead { addr, mut buf } => {
            (memory.read(addr, &mut buf).map(|()| done), buf)
        }
        Op::Write { addr, buf } | Op::RegionWrite { addr, buf } => {
            (memory.write(addr, &buf).map(|()| done), buf)
        }
        Op::CompareSwap { addr, compare, swap } => {
            (memory.compare_swap(addr, compare, swap).map(|old| Answer::Done { old }), Vec::new())
        }
        Op::FetchAdd { addr, add } => {
            (memory.fetch_add(addr, add).map(|old| Answer::Done { old }), Vec::new())
        }
        Op::Traverse { program, cur_ptr, scratch, limit } => {
            return match memory.dispatch(&program, cur_ptr, scratch, limit, policy) {
                Ok(Dispatched { way, end, scratch: buf }) => {
                    let requests = took.traversal(way, &end);
                    took.requests += requests;
                    (Completed { ticket: Ticket::AT_ONCE, result: Ok(Answer::Traversed(end)), buf }, requests)
                }
                Err(error) => (Completed { ticket: Ticket::AT_ONCE, result: Err(error), buf: Vec::new() }, 0),
            };
        }
    };
    took.requests += 1;
    (Completed { ticket: Ticket::AT_ONCE, result, buf }, 1)
}

/// Far memory that counts what is asked of it.
struct Counted<'a> {
    memory: &'a mut dyn FarMemory,
    took: &'a mut Took,
}

impl Counted<'_> {
    const fn count(&mut self, requests: u64) {
        self.took.requests += requests;
        self.took.round_trips += requests;
    }
}

impl FarMemory for Counted<'_> {
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
        let requests = self.took.traversal(dispatched.way, &dispatched.end);
        self.count(requests);
        Ok(dispatched)
    }

    fn allocate(&mut self, size: u64) -> Result<Vma, Error> {
        self.memory.allocate(size)
    }

    fn allocate_on(&mut self, size: u64, node: NodeId) -> Result<Vma, Error> {
        self.memory.allocate_on(size, node)
    }

    fn free(&mut self, base: VirtAddr) -> Result<(), Error> {
        self.memory.free(base)
    }

    fn nodes(&self) -> &[api::NodeInfo] {
        self.memory.nodes()
    }

    fn scratch_len_max(&self) -> usize {
        self.memory.scratch_len_max()
    }

    /// They are under way together: one round trip.
    fn write_many(&mut self, writes: &[(VirtAddr, &[u8])]) -> Result<(), Error> {
        self.took.requests += writes.len() as u64;
        self.took.round_trips += u64::from(!writes.is_empty());
        self.memory.write_many(writes)
    }

    /// They are under way together, too.
    fn read_many(&mut self, reads: &mut [(VirtAddr, &mut [u8])]) -> Result<(), Error> {
        self.took.requests += reads.len() as u64;
        self.took.round_trips += u64::from(!reads.is_empty());
        self.memory.read_many(reads)
    }

    fn buffer(&mut self, len: usize) -> Vec<u8> {
        self.memory.buffer(len)
    }

    fn recycle(&mut self, buf: Vec<u8>) {
        self.memory.recycle(buf);
    }
}
