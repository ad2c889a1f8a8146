//! Policies that select the site of a traversal (PULSE 4.1), and counts of the sites.

use farmem_host::Traversed;
use farmem_traversal::{Accelerator, Eta, Program};

/// The executor of traversals at the memory nodes, as far as the verdict needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Name for display.
    pub name: &'static str,
    /// Times of the executor.
    pub accelerator: Accelerator,
    /// The fraction of a load's time that the logic may take.
    pub eta: Eta,
}

impl Profile {
    /// One core of a memory node with compiled programs: 0.95 ns per instruction of the longest path, and 371
    /// ns for the first line. Further lines load in parallel, in 4.2 ns each.
    ///
    /// These values are the rows `pulse.node.core.*` of `farmem bench pulse`, on one core of a busy server
    /// (Sapphire Rapids, a virtual machine, huge pages). Each value is the median of seven rounds, of a
    /// B+tree's program in the cache or of dependent random reads. The same core loads and computes, so the
    /// logic may take as long as the load.
    pub const CORE: Self = Self {
        name: "core",
        accelerator: Accelerator { instruction_ps: 950, load_ps: 371_000, line_ps: 4_200 },
        eta: Eta::new(1, 1).expect("one is a fraction of at most one"),
    };

    /// The paper's board, with three logic and four memory pipelines: one instruction per cycle of 250 MHz
    /// (PULSE 4.2). Translation and load take 132 ns (PULSE, figure 10), and a further line its time at 6.25
    /// GB/s of a memory channel.
    pub const PULSE_BOARD: Self = Self {
        name: "pulse-board",
        accelerator: Accelerator { instruction_ps: 4_000, load_ps: 132_000, line_ps: 10_000 },
        eta: Eta::PULSE,
    };
}

/// The policy that selects the site of a traversal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// The cost on this profile decides. But a program too large for a datagram runs at the host, and one
    /// that stores at the memory nodes.
    Auto(Profile),
    /// All traversals run at the memory nodes.
    Offload,
    /// All traversals run at this host. A program that stores is refused, because its iterations would not be
    /// atomic there.
    Host,
}

impl Default for Policy {
    fn default() -> Self {
        Self::Auto(Profile::CORE)
    }
}

impl Policy {
    /// Returns the site at which `program` runs.
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

/// The site of a traversal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Site {
    /// The memory nodes.
    MemoryNodes,
    /// This host, over READs.
    Host,
}

/// The outcome of a dispatched traversal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dispatched {
    /// The site of the traversal.
    pub site: Site,
    /// The end of the traversal, and its costs. At the host, `requests` counts READs.
    pub end: Traversed,
    /// The scratch pad.
    pub scratch: Vec<u8>,
}

/// Total costs of the traversals that one client dispatched, without failed ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Number of traversals at the memory nodes.
    pub offloaded: u64,
    /// Number of traversals at the host.
    pub at_host: u64,
    /// Number of requests, including READs of traversals at the host.
    pub requests: u64,
    /// Number of iterations.
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
