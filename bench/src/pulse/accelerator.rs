//! A timing model of PULSE's accelerator: pipelines, workspaces, and their scheduler (PULSE 4.2).
//!
//! [`Design::run`] executes real programs over real memory and computes when each pipeline is busy. The
//! result predicts *m* logic and *n* memory pipelines, compared with as many cores that hold one of each
//! (PULSE 6.2, table 4). The model serves simulations and decisions; a node itself has one core and
//! [`farmem_memnode::WORKSPACES`]. Time is counted in picoseconds and never read from a clock.
//!
//! Not modelled: the network stack, and memory channels that slow each other down.

use farmem_traversal::{Accelerator, Cost, End, LINE_LEN, Outcome, Program, State, Step, WINDOW_LEN_MAX};
use farmem_wire::VirtAddr;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The number of pipelines of each kind, and their coupling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Design {
    /// Cores of one memory and one logic pipeline, each with one traversal at a time (PULSE figure 4, top).
    Coupled {
        /// The number of cores.
        cores: usize,
    },
    /// Separate pipelines, with one workspace for each of them (PULSE figure 4, bottom).
    Disaggregated {
        /// m: logic pipelines. Each has its share of the workspaces.
        logic: usize,
        /// n: memory pipelines, for any workspace.
        memory: usize,
    },
}

/// The times of the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Costs {
    /// The pipelines: t_d by lines, t_c by the instructions on the program's longest path.
    pub(super) pipelines: Accelerator,
    /// One signal of the scheduler of a disaggregated design, in picoseconds. A signal delays only its own
    /// traversal.
    pub(super) dispatch_ps: u64,
}

/// A traversal to run.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// Arrival time.
    pub(super) arrives_ps: u64,
    /// The traversal's program.
    pub(super) program: Program,
    /// The initial state.
    pub(super) state: State,
    /// Bound on the iterations.
    pub(super) limit: u32,
}

/// A completed traversal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ended<E> {
    /// The final state.
    pub(super) state: State,
    /// The outcome: equal to that of [`farmem_traversal::run`].
    pub(super) outcome: Outcome<E>,
    /// Time from arrival to end, including the wait for a workspace.
    pub(super) latency_ps: u64,
}

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Account<E> {
    /// The jobs, in the given order.
    pub(super) ended: Vec<Ended<E>>,
    /// From time 0 to the end of the last job.
    pub(super) span_ps: u64,
    /// Total busy time of the logic pipelines.
    pub(super) logic_ps: u64,
    /// Total busy time of the memory pipelines.
    pub(super) memory_ps: u64,
    /// Lines of memory loaded.
    pub(super) lines: u64,
    /// Signals of the scheduler.
    pub(super) dispatches: u64,
}

impl Design {
    /// Returns the bound on traversals in flight: m + n, or one per core.
    #[must_use]
    pub(super) const fn workspaces(self) -> usize {
        match self {
            Self::Coupled { cores } => cores,
            Self::Disaggregated { logic, memory } => logic + memory,
        }
    }

    /// Runs all jobs to their ends. Loads each window through `fetch(cur_ptr, window)`.
    ///
    /// # Panics
    /// Panics when the design lacks a kind of pipeline, a scratch pad does not have its program's length, or
    /// a program stores: the model changes no memory.
    pub(super) fn run<E>(
        self,
        costs: &Costs,
        jobs: Vec<Job>,
        fetch: &mut impl FnMut(VirtAddr, &mut [u8]) -> Result<(), E>,
    ) -> Account<E> {
        let mut scheduler = Scheduler::new(self, *costs, jobs);
        while let Some(Reverse(event)) = scheduler.events.pop() {
            scheduler.now = event.at_ps;
            match event.kind {
                EventKind::Arrived(job) => scheduler.on_request(job),
                EventKind::Fetch(workspace) => scheduler.start_fetch(workspace),
                EventKind::Fetched(workspace, pipeline) => scheduler.on_fetched(workspace, pipeline, fetch),
                EventKind::Compute(workspace) => scheduler.start_logic(workspace),
                EventKind::Computed(workspace) => scheduler.on_computed(workspace),
            }
        }
        scheduler.account()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Event {
    at_ps: u64,
    /// Orders simultaneous events by creation.
    number: u64,
    kind: EventKind,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum EventKind {
    /// The network stack has a job.
    Arrived(usize),
    /// The memory pipelines are notified of a workspace.
    Fetch(usize),
    /// A memory pipeline signals the end of a workspace's load.
    Fetched(usize, usize),
    /// A workspace's logic pipeline is notified of it.
    Compute(usize),
    /// A logic pipeline signals the end of a workspace's iteration.
    Computed(usize),
}

/// The cur_ptr, scratch pad and data of one traversal (PULSE 4.2).
struct Workspace {
    /// The job that owns the workspace; the state is the job's.
    job: Option<usize>,
    data: [u8; WINDOW_LEN_MAX],
    iterations: u32,
}

/// A logic pipeline, and its waiting workspaces.
#[derive(Default)]
struct Logic {
    busy: bool,
    waiting: VecDeque<usize>,
}

struct Scheduler<E> {
    design: Design,
    costs: Costs,
    now: u64,
    events: BinaryHeap<Reverse<Event>>,
    events_made: u64,
    jobs: Vec<Job>,
    /// Jobs without a workspace.
    arrived: VecDeque<usize>,
    workspaces: Vec<Workspace>,
    logic: Vec<Logic>,
    /// Busy flags of the memory pipelines.
    memory: Vec<bool>,
    /// Workspaces that wait for a free memory pipeline.
    loads: VecDeque<usize>,
    ended: Vec<Option<Ended<E>>>,
    logic_ps: u64,
    memory_ps: u64,
    lines: u64,
    dispatches: u64,
}

impl<E> Scheduler<E> {
    fn new(design: Design, costs: Costs, jobs: Vec<Job>) -> Self {
        let (logic, memory) = match design {
            Design::Coupled { cores } => (cores, cores),
            Design::Disaggregated { logic, memory } => (logic, memory),
        };
        assert!(logic > 0 && memory > 0, "{design:?} lacks a kind of pipeline");
        let workspace = |_| Workspace { job: None, data: [0; WINDOW_LEN_MAX], iterations: 0 };
        let mut scheduler = Self {
            design,
            costs,
            now: 0,
            events: BinaryHeap::new(),
            events_made: 0,
            arrived: VecDeque::new(),
            workspaces: (0..design.workspaces()).map(workspace).collect(),
            logic: (0..logic).map(|_| Logic::default()).collect(),
            memory: vec![false; memory],
            loads: VecDeque::new(),
            ended: jobs.iter().map(|_| None).collect(),
            logic_ps: 0,
            memory_ps: 0,
            lines: 0,
            dispatches: 0,
            jobs,
        };
        for job in 0..scheduler.jobs.len() {
            scheduler.at(scheduler.jobs[job].arrives_ps, EventKind::Arrived(job));
        }
        scheduler
    }

    fn at(&mut self, at_ps: u64, kind: EventKind) {
        self.events_made += 1;
        self.events.push(Reverse(Event { at_ps, number: self.events_made, kind }));
    }

    /// Emits a signal of the scheduler. A core needs none between its memory pipeline and its logic pipeline.
    fn signal(&mut self, kind: EventKind) {
        let delay = match self.design {
            Design::Coupled { .. } => 0,
            Design::Disaggregated { .. } => {
                self.dispatches += 1;
                self.costs.dispatch_ps
            }
        };
        self.at(self.now + delay, kind);
    }

    /// Applies rule 1: a new request gets an empty workspace, and a memory pipeline is notified. Without a
    /// workspace the request waits.
    fn on_request(&mut self, job: usize) {
        self.arrived.push_back(job);
        self.assign();
    }

    fn assign(&mut self) {
        while let Some(empty) = self.workspaces.iter().position(|w| w.job.is_none()) {
            let Some(job) = self.arrived.pop_front() else { return };
            let workspace = &mut self.workspaces[empty];
            workspace.job = Some(job);
            workspace.iterations = 0;
            self.next_iteration(empty, job);
        }
    }

    /// Rules 1 and 3: the next iteration begins with a load, unless the limit is reached.
    fn next_iteration(&mut self, workspace: usize, job: usize) {
        if self.workspaces[workspace].iterations == self.jobs[job].limit {
            return self.end(workspace, End::IterationLimit);
        }
        self.signal(EventKind::Fetch(workspace));
    }

    fn start_fetch(&mut self, workspace: usize) {
        let free = match self.design {
            Design::Coupled { .. } => Some(workspace),
            Design::Disaggregated { .. } => self.memory.iter().position(|busy| !busy),
        };
        let Some(pipeline) = free else { return self.loads.push_back(workspace) };
        assert!(!self.memory[pipeline], "a core has one traversal at a time");
        self.memory[pipeline] = true;
        let job = &self.jobs[self.job(workspace)];
        let lines = lines(job.state.cur_ptr, job.program.window_len());
        let load_ps = Cost::new(0, lines, &self.costs.pipelines).load_ps;
        self.lines += lines;
        self.memory_ps += load_ps;
        self.at(self.now + load_ps, EventKind::Fetched(workspace, pipeline));
    }

    /// Applies rule 2: after a load, the workspace's logic pipeline continues. Rule 4: after a refused load, the
    /// traversal ends.
    fn on_fetched(
        &mut self,
        workspace: usize,
        pipeline: usize,
        fetch: &mut impl FnMut(VirtAddr, &mut [u8]) -> Result<(), E>,
    ) {
        self.memory[pipeline] = false;
        if let Some(next) = self.loads.pop_front() {
            self.start_fetch(next);
        }
        let job = &self.jobs[self.job(workspace)];
        let window = &mut self.workspaces[workspace].data[..job.program.window_len()];
        match fetch(job.state.cur_ptr, window) {
            Ok(()) => self.signal(EventKind::Compute(workspace)),
            Err(why) => self.end(workspace, End::Fetch(why)),
        }
    }

    fn start_logic(&mut self, workspace: usize) {
        let home = workspace % self.logic.len();
        let pipeline = &mut self.logic[home];
        if pipeline.busy {
            return pipeline.waiting.push_back(workspace);
        }
        pipeline.busy = true;
        let logic_ps = self.jobs[self.job(workspace)].program.cost(&self.costs.pipelines).logic_ps;
        self.logic_ps += logic_ps;
        self.at(self.now + logic_ps, EventKind::Computed(workspace));
    }

    /// Applies rule 3: after NEXT_ITER, a memory pipeline is notified of the workspace. Rule 4: after RETURN, the
    /// traversal ends.
    fn on_computed(&mut self, workspace: usize) {
        let home = workspace % self.logic.len();
        self.logic[home].busy = false;
        if let Some(next) = self.logic[home].waiting.pop_front() {
            self.start_logic(next);
        }
        let number = self.job(workspace);
        let Job { program, state, .. } = &mut self.jobs[number];
        let place = &mut self.workspaces[workspace];
        place.iterations += 1;
        match program.step(&place.data[..program.window_len()], &mut state.cur_ptr, &mut state.scratch) {
            Step::Next => self.next_iteration(workspace, number),
            Step::Return => self.end(workspace, End::Return),
            Step::Fault => self.end(workspace, End::Fault),
        }
    }

    /// Applies rule 4: the network stack gets the traversal, and its workspace becomes empty.
    fn end(&mut self, workspace: usize, end: End<E>) {
        let number = self.job(workspace);
        let place = &mut self.workspaces[workspace];
        place.job = None;
        let job = &self.jobs[number];
        self.ended[number] = Some(Ended {
            state: job.state.clone(),
            outcome: Outcome { iterations: place.iterations, end },
            latency_ps: self.now - job.arrives_ps,
        });
        self.assign();
    }

    fn job(&self, workspace: usize) -> usize {
        self.workspaces[workspace].job.expect("a workspace that is signalled of has a traversal")
    }

    fn account(self) -> Account<E> {
        let ended = self.ended.into_iter().map(|ended| ended.expect("every job ends")).collect();
        assert!(self.logic.iter().all(|pipeline| !pipeline.busy), "a logic pipeline works for no traversal");
        assert!(self.memory.iter().all(|busy| !busy), "a memory pipeline works for no traversal");
        assert!(self.memory_ps <= self.now * self.memory.len() as u64, "more work than time");
        let Self { now, logic_ps, memory_ps, lines, dispatches, .. } = self;
        Account { ended, span_ps: now, logic_ps, memory_ps, lines, dispatches }
    }
}

impl<E> Account<E> {
    /// Returns the jobs per second over the whole run.
    #[must_use]
    pub(super) fn jobs_per_s(&self) -> f64 {
        const PS: f64 = 1e12;
        self.ended.len() as f64 * PS / self.span_ps.max(1) as f64
    }

    /// Returns the mean latency in picoseconds; 0 without jobs.
    #[must_use]
    pub(super) fn latency_ps(&self) -> u64 {
        let sum: u64 = self.ended.iter().map(|ended| ended.latency_ps).sum();
        sum.checked_div(self.ended.len() as u64).unwrap_or(0)
    }
}

/// Returns the number of lines that `len` bytes at `addr` touch.
fn lines(addr: VirtAddr, len: usize) -> u64 {
    let line = LINE_LEN as u64;
    (addr.0 % line + len as u64).div_ceil(line)
}

#[cfg(test)]
mod tests;
