//! Concurrent execution of many tasks on one core.
//!
//! A task has a slot. Each operation that the task needs is a flight, found by its ticket in constant time. A
//! traversal at this host is a sequence of flights, each a READ of a load window. Slots, queues and flights
//! are reused, so a run does not allocate memory after its first operations.

use crate::client::Client;
use crate::error::{Error, TraversalStop};
use crate::operation::{Completed, Ticket};
use crate::policy::{Policy, Site};
use crate::slots::place;
use crate::task::alone::alone;
use crate::task::concurrent::Concurrent;
use crate::task::{Next, OpQueue, Task, TaskStats};
use crate::window::Window;
use farmem_host::{Answer, Op, Traversed};
use farmem_traversal::{Program, Step};
use farmem_wire::VirtAddr;
use std::collections::VecDeque;
use std::time::Instant;

impl Client {
    /// Runs `tasks` with up to `in_flight` of them at a time. `done` receives each finished task with its
    /// costs. Tasks start in the order of the iterator, and end in any order.
    ///
    /// Operations that were pending before stay pending; their completions are kept for [`Client::poll`].
    ///
    /// # Errors
    /// The first error of a task's own methods, after all pending operations have completed;
    /// [`Error::System`] if the link failed.
    ///
    /// # Panics
    /// Panics if `in_flight` is zero, or if a task violates the rules of [`Task::next`].
    pub fn run_tasks<T: Task>(
        &mut self,
        tasks: impl Iterator<Item = T>,
        in_flight: usize,
        policy: &Policy,
        done: impl FnMut(T, TaskStats),
    ) -> Result<(), Error> {
        run_tasks(self, tasks, in_flight, policy, done)
    }
}

/// Runs `tasks` on any far memory that keeps many operations in flight, as [`Client::run_tasks`] does on a
/// client.
///
/// # Errors
/// The errors of [`Client::run_tasks`].
///
/// # Panics
/// Panics as [`Client::run_tasks`] does.
pub fn run_tasks<T: Task>(
    memory: &mut impl Concurrent,
    tasks: impl Iterator<Item = T>,
    in_flight: usize,
    policy: &Policy,
    done: impl FnMut(T, TaskStats),
) -> Result<(), Error> {
    assert!(in_flight > 0, "a run of tasks keeps at least one under way");
    let others = memory.take_ready();
    let mut run = Run::new(in_flight, *policy, done, others);
    let ended = run.carry_out(memory, tasks);
    memory.put_ready(run.others);
    ended
}

/// The state of a slot's task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TaskState {
    /// The slot has no task.
    Empty,
    /// The task can continue, or waits for this number of operations.
    UnderWay { flights: usize },
    /// The task waits for the turn with this key, since this moment of the run.
    ForTurn { name: u64, since: u64 },
    /// The task waits to be alone, since this moment of the run.
    ForAlone { since: u64 },
}

struct Slot<T> {
    state: TaskState,
    task: Option<T>,
    queue: OpQueue,
    /// Completions so far, in the order of the requests.
    ends: Vec<Option<Completed>>,
    /// The turn that the task has.
    turn: Option<u64>,
    started: Instant,
    stats: TaskStats,
    /// Number of requests of the longest operation of this exchange.
    longest: u64,
}

/// A traversal in flight.
struct Walk {
    program: Program,
    limit: u32,
    /// The scratch pad while the window is read, if the traversal runs at this host.
    scratch: Vec<u8>,
    cur_ptr: VirtAddr,
    iterations: u32,
    /// Number of READs at this host.
    reads: u32,
    window: Window,
    site: Site,
}

/// An operation in flight.
struct Flight {
    ticket: Ticket,
    slot: usize,
    /// Index among the slot's operations.
    number: usize,
    walk: Option<Walk>,
}

/// Maximum number of operations that a run has in flight. A client accepts 1024 requests to nodes at a time,
/// and its caller may have some pending.
const FLIGHTS_MAX: usize = 960;

struct Run<T, D> {
    policy: Policy,
    done: D,
    slots: Vec<Slot<T>>,
    empty: Vec<usize>,
    /// Slots whose tasks can continue.
    ready: VecDeque<usize>,
    /// Flights, indexed by the place of their tickets.
    flights: Vec<Option<Flight>>,
    flying: usize,
    /// Operations that wait until others have completed.
    queue: VecDeque<(Flight, Op)>,
    /// Completions of operations that do not belong to this run.
    others: VecDeque<Completed>,
    /// Number of tasks that wait to be alone.
    for_alone: usize,
    /// Counter of events, which orders the waiting tasks.
    moment: u64,
    failed: Option<Error>,
    /// The last reading of the clock since the last wait. A task that replaces a finished one starts at that
    /// one's end.
    clock: Option<Instant>,
}

impl<T: Task, D: FnMut(T, TaskStats)> Run<T, D> {
    fn new(in_flight: usize, policy: Policy, done: D, others: VecDeque<Completed>) -> Self {
        let slot = |_| Slot {
            state: TaskState::Empty,
            task: None,
            queue: OpQueue::default(),
            ends: Vec::new(),
            turn: None,
            started: Instant::now(),
            stats: TaskStats::default(),
            longest: 0,
        };
        Self {
            policy,
            done,
            slots: (0..in_flight).map(slot).collect(),
            empty: (0..in_flight).rev().collect(),
            ready: VecDeque::with_capacity(in_flight),
            flights: Vec::new(),
            flying: 0,
            queue: VecDeque::new(),
            others,
            for_alone: 0,
            moment: 0,
            failed: None,
            clock: None,
        }
    }

    fn carry_out(
        &mut self,
        client: &mut impl Concurrent,
        mut tasks: impl Iterator<Item = T>,
    ) -> Result<(), Error> {
        loop {
            while let Some(slot) = self.ready.pop_front() {
                self.go_on(client, slot)?;
            }
            // Tasks that arrive later must not delay a task that waits to be alone.
            while self.for_alone == 0
                && self.failed.is_none()
                && let Some(slot) = self.empty.pop()
            {
                let Some(task) = tasks.next() else {
                    self.empty.push(slot);
                    break;
                };
                self.begin(slot, task);
                self.go_on(client, slot)?;
            }
            if !self.ready.is_empty() {
                continue;
            }
            if self.flying > 0 {
                let completed = client.next_completed()?.expect("an operation under way ends");
                self.clock = None;
                self.ended(client, completed)?;
                while let Some(completed) = client.poll_ended() {
                    self.ended(client, completed)?;
                }
            } else if let Some(error) = self.failed.take() {
                return Err(error);
            } else if self.for_alone > 0 {
                self.let_alone(client);
            } else if self.empty.len() == self.slots.len() {
                return Ok(());
            }
        }
    }

    fn begin(&mut self, slot: usize, task: T) {
        let slot = &mut self.slots[slot];
        slot.queue.clear();
        slot.task = Some(task);
        slot.state = TaskState::UnderWay { flights: 0 };
        slot.started = *self.clock.get_or_insert_with(Instant::now);
        slot.stats = TaskStats::default();
    }

    /// Continues the task of a slot until it waits or ends.
    fn go_on(&mut self, client: &mut impl Concurrent, number: usize) -> Result<(), Error> {
        if self.failed.is_some() {
            self.leave(number);
            return Ok(());
        }
        let slot = &mut self.slots[number];
        let task = slot.task.as_mut().expect("what goes on is in its slot");
        match task.next(&mut slot.queue) {
            Ok(Next::Need) => self.take_off(client, number)?,
            Ok(Next::Turn(name)) => self.ask_for_turn(number, name),
            Ok(Next::Alone) => {
                self.moment += 1;
                self.for_alone += 1;
                self.slots[number].state = TaskState::ForAlone { since: self.moment };
            }
            Ok(Next::Done) => {
                let mut stats = slot.stats;
                stats.latency = self.clock.insert(Instant::now()).duration_since(slot.started);
                let task = slot.task.take().expect("it is there, it has just said that it is done");
                (self.done)(task, stats);
                self.leave(number);
            }
            Err(error) => self.fail(number, error),
        }
        Ok(())
    }

    /// Ends the run because a task failed: no operation starts any more, and pending ones complete.
    fn fail(&mut self, number: usize, error: Error) {
        self.failed.get_or_insert(error);
        self.leave(number);
    }

    fn leave(&mut self, number: usize) {
        self.give_turn_back(number);
        self.slots[number].task = None;
        self.slots[number].state = TaskState::Empty;
        self.empty.push(number);
    }

    fn ask_for_turn(&mut self, number: usize, name: u64) {
        self.give_turn_back(number);
        let taken = self.slots.iter().any(|slot| slot.turn == Some(name));
        self.moment += 1;
        if taken {
            self.slots[number].state = TaskState::ForTurn { name, since: self.moment };
        } else {
            self.slots[number].turn = Some(name);
            self.ready.push_back(number);
        }
    }

    /// Passes the slot's turn to the task that has waited longest for it.
    fn give_turn_back(&mut self, number: usize) {
        let Some(name) = self.slots[number].turn.take() else { return };
        let waiting = self.slots.iter().enumerate().filter_map(|(number, slot)| match slot.state {
            TaskState::ForTurn { name: wanted, since } if wanted == name => Some((since, number)),
            _ => None,
        });
        if let Some((_, next)) = waiting.min() {
            self.slots[next].turn = Some(name);
            self.slots[next].state = TaskState::UnderWay { flights: 0 };
            self.ready.push_back(next);
        }
    }

    /// Runs the task that has waited longest to be alone, while no operation is in flight.
    fn let_alone(&mut self, client: &mut impl Concurrent) {
        let waiting = self.slots.iter().enumerate().filter_map(|(number, slot)| match slot.state {
            TaskState::ForAlone { since } => Some((since, number)),
            _ => None,
        });
        let (_, number) = waiting.min().expect("a task waits to be alone");
        self.for_alone -= 1;
        self.clock = None;
        let slot = &mut self.slots[number];
        slot.state = TaskState::UnderWay { flights: 0 };
        let task = slot.task.as_mut().expect("what waits is in its slot");
        match alone(client, task, &mut slot.stats) {
            Ok(()) => self.ready.push_back(number),
            Err(error) => self.fail(number, error),
        }
    }

    /// Submits the operations that the task of a slot needs.
    fn take_off(&mut self, client: &mut impl Concurrent, number: usize) -> Result<(), Error> {
        let slot = &mut self.slots[number];
        let mut need = core::mem::take(&mut slot.queue.need);
        assert!(!need.is_empty(), "a task that waits for operations has asked for some");
        slot.state = TaskState::UnderWay { flights: need.len() };
        slot.longest = 0;
        slot.ends.clear();
        slot.ends.resize_with(need.len(), || None);
        for (which, op) in need.drain(..).enumerate() {
            self.submit(client, number, which, op)?;
        }
        self.slots[number].queue.need = need;
        Ok(())
    }

    fn submit(
        &mut self,
        client: &mut impl Concurrent,
        slot: usize,
        number: usize,
        op: Op,
    ) -> Result<(), Error> {
        let Op::Traverse { program, cur_ptr, scratch, limit } = op else {
            return self.fly(client, Flight { ticket: Ticket::AT_ONCE, slot, number, walk: None }, op);
        };
        let site = self.policy.verdict(&program);
        let (scratch_here, window) = (Vec::new(), Window::new(&program));
        let mut walk =
            Walk { program, limit, scratch: scratch_here, cur_ptr, iterations: 0, reads: 0, window, site };
        if site == Site::MemoryNodes {
            let op = Op::Traverse { program: walk.program.clone(), cur_ptr, scratch, limit };
            return self.fly(client, Flight { ticket: Ticket::AT_ONCE, slot, number, walk: Some(walk) }, op);
        }
        walk.scratch = scratch;
        self.walk_here(client, slot, number, walk)
    }

    /// Starts an operation, or queues it if too many are in flight.
    fn fly(&mut self, client: &mut impl Concurrent, flight: Flight, op: Op) -> Result<(), Error> {
        if self.flying == FLIGHTS_MAX {
            self.queue.push_back((flight, op));
            return Ok(());
        }
        let ticket = client.submit(op)?;
        let at = place(ticket.0);
        if self.flights.len() <= at {
            self.flights.resize_with(at + 1, || None);
        }
        self.flights[at] = Some(Flight { ticket, ..flight });
        self.flying += 1;
        Ok(())
    }

    /// Starts the first iteration of a traversal at this host.
    fn walk_here(
        &mut self,
        client: &mut impl Concurrent,
        slot: usize,
        number: usize,
        walk: Walk,
    ) -> Result<(), Error> {
        let (have, need) = (walk.scratch.len(), walk.program.scratch_len());
        if have != need {
            self.landed(slot, number, Err(Error::ScratchLen { have, need }), walk.scratch, 0);
            return Ok(());
        }
        // At this host the iterations would not be atomic, as in `run_over_reads`.
        if walk.program.stores() {
            let error = Error::Traversal { addr: walk.cur_ptr, reason: TraversalStop::StoresAtHost };
            self.landed(slot, number, Err(error), walk.scratch, 0);
            return Ok(());
        }
        self.iterate(client, slot, number, walk)
    }

    /// Reads the window of the next iteration, unless the limit is reached.
    fn iterate(
        &mut self,
        client: &mut impl Concurrent,
        slot: usize,
        number: usize,
        mut walk: Walk,
    ) -> Result<(), Error> {
        if walk.iterations == walk.limit {
            self.walked(client, slot, number, walk, false);
            return Ok(());
        }
        walk.window = Window::new(&walk.program);
        self.read_window(client, slot, number, walk)
    }

    /// Reads the window, or the part of it that may exist.
    fn read_window(
        &mut self,
        client: &mut impl Concurrent,
        slot: usize,
        number: usize,
        mut walk: Walk,
    ) -> Result<(), Error> {
        let len = match walk.window.len(walk.cur_ptr, &walk.program) {
            Ok(len) => len,
            Err(error) => {
                self.landed(slot, number, Err(error), walk.scratch, 0);
                return Ok(());
            }
        };
        walk.reads = walk.reads.saturating_add(1);
        let buf = client.buffer(len);
        let op = Op::Read { addr: walk.cur_ptr, buf };
        self.fly(client, Flight { ticket: Ticket::AT_ONCE, slot, number, walk: Some(walk) }, op)
    }

    /// Handles a completed operation, of this run or of its caller.
    fn ended(&mut self, client: &mut impl Concurrent, completed: Completed) -> Result<(), Error> {
        let at = place(completed.ticket.0);
        let mine = self
            .flights
            .get_mut(at)
            .and_then(|flight| flight.take_if(|flight| flight.ticket == completed.ticket));
        let Some(Flight { slot, number, walk, .. }) = mine else {
            self.others.push_back(completed);
            return Ok(());
        };
        self.flying -= 1;
        if let Some((next, op)) = self.queue.pop_front() {
            self.fly(client, next, op)?;
        }
        match walk {
            None => self.landed(slot, number, completed.result, completed.buf, 1),
            Some(walk) if walk.site == Site::Host => self.step(client, slot, number, walk, completed)?,
            Some(walk) => self.returned(client, slot, number, walk, completed)?,
        }
        Ok(())
    }

    /// Handles a traversal that returned from the memory nodes.
    fn returned(
        &mut self,
        client: &mut impl Concurrent,
        slot: usize,
        number: usize,
        walk: Walk,
        completed: Completed,
    ) -> Result<(), Error> {
        match (completed.result, self.policy) {
            (Ok(Answer::Traversed(end)), _) => {
                client.count(Site::MemoryNodes, &end);
                let requests = self.slots[slot].stats.traversal(Site::MemoryNodes, &end);
                self.landed(slot, number, Ok(Answer::Traversed(end)), completed.buf, requests);
                Ok(())
            }
            // The traversal does not fit a datagram, so it runs at this host, as in Client::dispatch.
            (Err(Error::Traversal { reason, .. }), Policy::Auto(_)) if reason.is_of_size() => {
                let walk = Walk { site: Site::Host, scratch: completed.buf, ..walk };
                self.walk_here(client, slot, number, walk)
            }
            (result, _) => {
                self.landed(slot, number, result, completed.buf, 0);
                Ok(())
            }
        }
    }

    /// Runs an iteration at this host after its window was read.
    fn step(
        &mut self,
        client: &mut impl Concurrent,
        slot: usize,
        number: usize,
        mut walk: Walk,
        completed: Completed,
    ) -> Result<(), Error> {
        let Walk { program, window, cur_ptr, scratch, .. } = &mut walk;
        let read = completed.result.map(drop);
        let stepped = window.step(program, &completed.buf, read, cur_ptr, scratch);
        client.recycle(completed.buf);
        let step = match stepped {
            Ok(Some(step)) => step,
            Ok(None) => return self.read_window(client, slot, number, walk),
            Err(error) => {
                self.landed(slot, number, Err(error), walk.scratch, 0);
                return Ok(());
            }
        };
        walk.iterations += 1;
        match step {
            Step::Next => self.iterate(client, slot, number, walk),
            Step::Return => {
                self.walked(client, slot, number, walk, true);
                Ok(())
            }
            Step::Fault => {
                let error = Error::Traversal { addr: walk.cur_ptr, reason: TraversalStop::ProgramFault };
                self.landed(slot, number, Err(error), walk.scratch, 0);
                Ok(())
            }
        }
    }

    /// Ends a traversal at this host.
    fn walked(
        &mut self,
        client: &mut impl Concurrent,
        slot: usize,
        number: usize,
        walk: Walk,
        returned: bool,
    ) {
        let Walk { cur_ptr, iterations, reads, scratch, .. } = walk;
        let end = Traversed { returned, cur_ptr, iterations, requests: reads };
        client.count(Site::Host, &end);
        let requests = self.slots[slot].stats.traversal(Site::Host, &end);
        self.landed(slot, number, Ok(Answer::Traversed(end)), scratch, requests);
    }

    /// Records the completion of an operation that a task needs. After the last one, the task can continue.
    fn landed(
        &mut self,
        slot_number: usize,
        number: usize,
        result: Result<Answer, Error>,
        buf: Vec<u8>,
        requests: u64,
    ) {
        let slot = &mut self.slots[slot_number];
        slot.stats.requests += requests;
        slot.longest = slot.longest.max(requests);
        slot.ends[number] = Some(Completed { ticket: Ticket::AT_ONCE, result, buf });
        let TaskState::UnderWay { flights } = &mut slot.state else {
            unreachable!("a task that waits for something else needs no operations")
        };
        *flights -= 1;
        if *flights == 0 {
            slot.stats.round_trips += slot.longest;
            let Slot { queue, ends, .. } = slot;
            while let Some(completed) = queue.got.pop_front() {
                queue.recycle(completed.buf); // a completion that the task did not take
            }
            queue.got.extend(ends.drain(..).map(|end| end.expect("all of them have ended")));
            self.ready.push_back(slot_number);
        }
    }
}
