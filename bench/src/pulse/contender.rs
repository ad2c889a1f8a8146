//! The compared systems: a kind of memory node, a client, and a site for traversals.

use crate::{CpuMeter, CpuTime, NodeKind, Paged, Samples, to_f64};
use farmem::task::{run_one, run_tasks};
use farmem::{Client, ClientOptions, Error, Policy, Rack, Task};
use std::cell::RefCell;
use std::iter::from_fn;
use std::num::NonZero;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// An application to be measured on its data: a sequence of operations with checkable answers.
pub trait App {
    /// An operation.
    type Task: Task;

    /// Returns the bytes of far memory that the application uses.
    fn working_set(&self) -> u64;

    /// Returns the next operation.
    fn next(&mut self) -> Self::Task;

    /// Checks a completed operation.
    fn ended(&mut self, task: Self::Task);

    /// Returns the number of wrong answers so far.
    fn wrong(&self) -> u64;

    /// Returns the application's own processing time of an average operation, if measured.
    fn own_time(&self) -> Option<Duration> {
        None
    }

    /// Frees the application's data.
    ///
    /// # Errors
    /// [`Error`] when the rack does not answer.
    fn destroy(self, client: &mut Client) -> Result<(), Error>;
}

/// The site of traversals, and the access to memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum How {
    /// At the host, through a page cache with this share of the working set.
    Cached { percent: f64 },
    /// At the host, by one-sided READs of load windows.
    Reads,
    /// At the memory nodes; the switch forwards to the next node.
    Offloaded,
    /// At the memory nodes; a crossing returns to the host first (PULSE-ACC; a plain RPC server).
    Returning,
}

/// A compared system.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct System {
    /// The system's part of ids.
    pub(super) name: &'static str,
    pub(super) node: NodeKind,
    pub(super) how: How,
}

/// An application on which contenders alternate.
pub(super) type Shared<A> = Rc<RefCell<A>>;

/// The protection domain of all systems.
const DOMAIN: &str = "bench";

/// A system running an application.
pub(super) struct Contender<A> {
    pub(super) system: System,
    memory: Memory,
    /// Systems with the same view of memory may share an application, because they alternate.
    app: Shared<A>,
    /// This process, and the processes of the rack's roles.
    cpu: CpuMeter,
    pub(super) figures: Figures,
}

enum Memory {
    Cached(Box<Paged>),
    Direct(Box<Client>, Policy),
}

/// The measurements of a system.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// One operation at a time.
    pub(super) latency: Samples,
    /// Operations per second by round, one at a time.
    pub(super) alone: Vec<f64>,
    pub(super) many: Vec<f64>,
    /// CPU time of the parallel operations.
    pub(super) many_cpu: CpuTime,
    /// All operations.
    pub(super) operations: u64,
    pub(super) wrong: u64,
    /// Sequential round trips of operations run one at a time.
    pub(super) round_trips: u64,
    /// Pages fetched in measured rounds.
    pub(super) pages: u64,
    /// The application's own processing time per operation; set for one of the systems that share it.
    pub(super) own_time: Option<Duration>,
}

impl System {
    /// Returns true when traversals run at the memory nodes. Such systems depend on the data's placement, so
    /// they are compared on the same data.
    pub(super) const fn offloads(&self) -> bool {
        matches!(self.how, How::Offloaded | How::Returning)
    }
}

impl<A: App> Contender<A> {
    /// Creates a client of `rack` that runs on data laid out by `lay`, for it or for another system. `cpu`
    /// knows the rack's processes.
    pub(super) fn new(
        system: System,
        rack: &Rack,
        cpu: CpuMeter,
        lay: impl FnOnce(&mut Client) -> Result<Shared<A>, Error>,
    ) -> Result<Self, Error> {
        let hops_max = match system.how {
            How::Returning => NonZero::<u8>::MIN,
            How::Cached { .. } | How::Reads | How::Offloaded => ClientOptions::default().hops_max,
        };
        let mut client = rack.client_with(DOMAIN, ClientOptions { hops_max, ..ClientOptions::default() })?;
        let app = lay(&mut client)?;
        let memory = match system.how {
            How::Cached { percent } => {
                Memory::Cached(Box::new(Paged::new(client, share(app.borrow().working_set(), percent))))
            }
            How::Reads => Memory::Direct(Box::new(client), Policy::Host),
            How::Offloaded | How::Returning => Memory::Direct(Box::new(client), Policy::Offload),
        };
        Ok(Self { system, memory, app, cpu, figures: Figures::default() })
    }

    /// Runs parallel operations until a cache has turned over twice, and for at least `least`. Nothing is
    /// recorded.
    pub(super) fn warm(&mut self, depth: usize, least: Duration, most: Duration) -> Result<(), Error> {
        let begin = Instant::now();
        let recorded = core::mem::take(&mut self.figures);
        let is_cold = |memory: &Memory| match memory {
            Memory::Cached(paged) => paged.counts().fetched < 2 * paged.capacity() as u64,
            Memory::Direct(..) => false,
        };
        while begin.elapsed() < least || (is_cold(&self.memory) && begin.elapsed() < most) {
            self.many(depth, least)?;
        }
        self.figures = recorded;
        Ok(())
    }

    /// Runs operations one after the other for `slice`.
    pub(super) fn one_at_a_time(&mut self, slice: Duration) -> Result<(), Error> {
        let before = self.fetched();
        let (mut busy, mut operations) = (Duration::ZERO, 0);
        let cpu = self.cpu.begin();
        while busy < slice {
            let mut task = self.app.borrow_mut().next();
            let took = match &mut self.memory {
                Memory::Cached(paged) => run_one(&mut **paged, &mut task, &Policy::Host)?,
                Memory::Direct(client, policy) => run_one(&mut **client, &mut task, policy)?,
            };
            self.figures.latency.record(took.latency);
            busy += took.latency;
            operations += 1;
            self.figures.round_trips += took.round_trips;
            self.app.borrow_mut().ended(task);
        }
        self.figures.latency.spent(cpu.end(), operations);
        self.figures.alone.push(to_f64(operations) / busy.as_secs_f64());
        self.figures.operations += operations;
        self.figures.pages += self.fetched() - before;
        Ok(())
    }

    /// Runs operations with up to `depth` in flight for `slice`.
    pub(super) fn many(&mut self, depth: usize, slice: Duration) -> Result<(), Error> {
        let before = self.fetched();
        let mut operations = 0;
        let cpu = self.cpu.begin();
        let begin = Instant::now();
        let app = &self.app;
        let tasks = from_fn(|| (begin.elapsed() < slice).then(|| app.borrow_mut().next()));
        let done = |task, _| {
            operations += 1;
            app.borrow_mut().ended(task);
        };
        match &mut self.memory {
            // The cache runs offloaded traversals itself, without a return to the task for every window.
            Memory::Cached(paged) => run_tasks(&mut **paged, tasks, depth, &Policy::Offload, done)?,
            Memory::Direct(client, policy) => client.run_tasks(tasks, depth, policy, done)?,
        }
        self.figures.many_cpu.add(cpu.end(), operations);
        self.figures.many.push(to_f64(operations) / begin.elapsed().as_secs_f64());
        self.figures.operations += operations;
        self.figures.pages += self.fetched() - before;
        Ok(())
    }

    /// Leaves the rack. The last system with the data frees it, and receives all its wrong answers.
    pub(super) fn leave(mut self) -> Result<Figures, Error> {
        let mut client = match self.memory {
            Memory::Cached(mut paged) => {
                paged.flush()?;
                paged.into_client()
            }
            Memory::Direct(client, _) => *client,
        };
        if let Some(app) = Rc::into_inner(self.app) {
            let app = app.into_inner();
            (self.figures.wrong, self.figures.own_time) = (app.wrong(), app.own_time());
            app.destroy(&mut client)?;
        }
        Ok(self.figures)
    }

    fn fetched(&self) -> u64 {
        match &self.memory {
            Memory::Cached(paged) => paged.counts().fetched,
            Memory::Direct(..) => 0,
        }
    }
}

/// Returns a share of some bytes, at least a page.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of bytes is a number of bytes, far below 2^52"
)]
fn share(bytes: u64, percent: f64) -> u64 {
    ((bytes as f64 * percent / 100.0) as u64).max(farmem::PAGE_LEN as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares are exact to the byte, and at least the one page that is always needed.
    #[test]
    fn shares_are_of_bytes() {
        assert_eq!(share(1 << 20, 6.25), 65_536);
        assert_eq!(share(1 << 20, 100.0), 1 << 20);
        assert_eq!(share(1000, 25.0), 4096);
    }
}
