//! The dispatch engine: where a traversal runs (PULSE 4.1).
//!
//! [`Client::dispatch`] takes a program to the memory when one iteration computes for at most eta times as long as its load
//! takes, and otherwise runs the same program here, over one-sided READs. Results are the same either way; [`Dispatched`] says
//! where it ran, and what it took. Request ids, timers and sending again are the host role's.

mod window;

use crate::{Client, Error, FarMemory, Op, TraversalStop};
use farmem_host::{Answer, Traversed};
use farmem_traversal::{Accelerator, Eta, Program, Step, WINDOW_LEN_MAX};
use farmem_wire::VirtAddr;
pub(crate) use window::Window;

/// The executor of traversals at the memory, as far as the verdict needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Its name for people.
    pub name: &'static str,
    /// Its times.
    pub accelerator: Accelerator,
    /// How much of a load's time the logic may take.
    pub eta: Eta,
}

impl Profile {
    /// One core of a memory node with compiled programs: 0.95 ns an instruction of the longest path, 371 ns for the first line, 4.2 ns
    /// for each further one, which comes beside it. These are the rows
    /// `pulse.node.core.*` of `farmem bench pulse`, on one core of a busy server (Sapphire Rapids, a virtual machine,
    /// huge pages): medians of seven rounds of a B+tree's program in the cache, and of random reads that wait for each other. The same core
    /// loads and computes, so logic may take as long as the load.
    pub const CORE: Self = Self {
        name: "core",
        accelerator: Accelerator { instruction_ps: 950, load_ps: 371_000, line_ps: 4_200 },
        eta: Eta::new(1, 1).expect("one is a fraction of at most one"),
    };

    /// The paper's board: an instruction per cycle of 250 MHz (PULSE 4.2), 132 ns for translation and load (PULSE, figure 10), a
    /// further line at 6.25 GB/s of a memory channel, three logic and four memory pipelines.
    pub const PULSE_BOARD: Self = Self {
        name: "pulse-board",
        accelerator: Accelerator { instruction_ps: 4_000, load_ps: 132_000, line_ps: 10_000 },
        eta: Eta::PULSE,
    };
}

/// The policy that decides where a traversal runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// The cost on this profile. A program too large for a datagram runs at the host, one that stores at the memory nodes, whatever it costs.
    Auto(Profile),
    /// The caller: at the memory nodes.
    Offload,
    /// The caller: at this host. A program that stores is refused: there it would not be one step.
    Host,
}

impl Default for Policy {
    fn default() -> Self {
        Self::Auto(Profile::CORE)
    }
}

impl Policy {
    /// Where `program` is to run.
    #[must_use]
    pub fn verdict(&self, program: &Program) -> Site {
        match self {
            Self::Auto(profile) if program.cost(&profile.accelerator).offload(profile.eta) => {
                Site::MemoryNodes
            }
            Self::Auto(_) if program.stores() => Site::MemoryNodes,
            Self::Offload => Site::MemoryNodes,
            Self::Auto(_) | Self::Host => Site::Host,
        }
    }
}

/// Where a traversal ran.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Site {
    /// At the memory nodes.
    MemoryNodes,
    /// At this host, over READs.
    Host,
}

/// The outcome of a dispatched traversal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dispatched {
    /// Where it ran.
    pub site: Site,
    /// Where it ended and what it took. At the host, `requests` counts READs.
    pub end: Traversed,
    /// The scratch pad.
    pub scratch: Vec<u8>,
}

/// Costs of the traversals that one client dispatched, failed ones not counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Traversals that ran at the memory nodes.
    pub offloaded: u64,
    /// Traversals that ran at the host.
    pub at_host: u64,
    /// Requests they took, READs of those at the host included.
    pub requests: u64,
    /// Their iterations.
    pub iterations: u64,
}

impl Client {
    /// Runs `program` from `start` on for at most `limit` iterations, where `policy` says.
    ///
    /// # Errors
    /// Either way: [`Error::Traversal`] with the pointer it stopped at, [`Error::ScratchLen`], or [`Error::Unreachable`]. At the
    /// host, a program that wants bytes of its window behind the end of the allocation is [`TraversalStop::OutOfBounds`] as it is at a memory node.
    pub fn dispatch(
        &mut self,
        program: &Program,
        start: VirtAddr,
        scratch: Vec<u8>,
        limit: u32,
        policy: &Policy,
    ) -> Result<Dispatched, Error> {
        let dispatched = match policy.verdict(program) {
            Site::MemoryNodes => self.offload(program, start, scratch, limit, policy)?,
            Site::Host => run_over_reads(self, program, start, scratch, limit)?,
        };
        self.count(dispatched.site, &dispatched.end);
        Ok(dispatched)
    }

    fn offload(
        &mut self,
        program: &Program,
        start: VirtAddr,
        scratch: Vec<u8>,
        limit: u32,
        policy: &Policy,
    ) -> Result<Dispatched, Error> {
        let op = Op::Traverse { program: program.clone(), cur_ptr: start, scratch, limit };
        let ticket = self.submit(op)?;
        let completed = self.wait(ticket)?;
        match (completed.result, policy) {
            (Ok(Answer::Traversed(end)), _) => {
                Ok(Dispatched { site: Site::MemoryNodes, end, scratch: completed.buf })
            }
            (Ok(other @ Answer::Done { .. }), _) => unreachable!("a traversal does not answer {other:?}"),
            (Err(Error::Traversal { reason, .. }), Policy::Auto(_)) if reason.is_of_size() => {
                run_over_reads(self, program, start, completed.buf, limit)
            }
            (Err(error), _) => Err(error),
        }
    }
}

/// Runs `program` here, with a [`FarMemory::read`] of its window for each iteration: the other half of [`Client::dispatch`], and all of it
/// for far memory that runs no programs.
///
/// # Errors
/// As [`Client::dispatch`].
pub fn run_over_reads(
    memory: &mut (impl FarMemory + ?Sized),
    program: &Program,
    start: VirtAddr,
    scratch: Vec<u8>,
    limit: u32,
) -> Result<Dispatched, Error> {
    let (have, need) = (scratch.len(), program.scratch_len());
    if have != need {
        return Err(Error::ScratchLen { have, need });
    }
    if program.stores() {
        return Err(Error::Traversal { addr: start, reason: TraversalStop::StoresAtHost });
    }
    let (mut cur_ptr, mut scratch, mut buffer) = (start, scratch, [0; WINDOW_LEN_MAX]);
    let (mut iterations, mut requests, mut returned) = (0, 0_u32, false);
    while iterations < limit && !returned {
        let mut window = Window::new(program);
        let step = loop {
            let bytes = &mut buffer[..window.len(cur_ptr, program)?];
            let read = memory.read(cur_ptr, bytes);
            requests = requests.saturating_add(1);
            if let Some(step) = window.step(program, bytes, read, &mut cur_ptr, &mut scratch)? {
                break step;
            }
        };
        iterations += 1;
        if step == Step::Fault {
            return Err(Error::Traversal { addr: cur_ptr, reason: TraversalStop::ProgramFault });
        }
        returned = step == Step::Return;
    }
    let end = Traversed { returned, cur_ptr, iterations, requests };
    Ok(Dispatched { site: Site::Host, end, scratch })
}

/// A READ's refusal in the words of a traversal.
pub(crate) fn stopped(error: Error, addr: VirtAddr) -> Error {
    let reason = match error {
        Error::NotMapped { .. } => TraversalStop::NotMapped,
        Error::NoPermission { .. } => TraversalStop::NoPermission,
        Error::OutOfBounds { .. } => TraversalStop::OutOfBounds,
        other => return other,
    };
    Error::Traversal { addr, reason }
}

impl Tally {
    pub(crate) fn count(&mut self, site: Site, end: &Traversed) {
        match site {
            Site::MemoryNodes => self.offloaded += 1,
            Site::Host => self.at_host += 1,
        }
        self.requests += u64::from(end.requests);
        self.iterations += u64::from(end.iterations);
    }
}
