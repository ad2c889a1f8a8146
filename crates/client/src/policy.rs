//! Policies that decide where a traversal runs (PULSE 4.1), and counts of where traversals ran.

use farmem_host::Traversed;
use farmem_traversal::{Accelerator, Eta, Program};

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
