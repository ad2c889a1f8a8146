//! The racks of benchmarks, which the `farmem` command starts or describes.

use farmem::{Error, LinkProfile, Placement, Rack, RackConfig, Transport, Waiting};
use std::fmt::Display;
use std::time::Duration;

/// The traversal executor of a memory node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum NodeKind {
    /// farmem's own engine.
    Offload,
    /// Native code in place of the programs: a server of remote procedure calls.
    Native {
        /// Traversals whose hops are interleaved.
        workspaces: usize,
        /// Extra time of each iteration.
        stretch: Duration,
    },
}

/// The properties of a rack whose roles run as threads of the benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of memory nodes.
    pub nodes: u8,
    /// Memory of each memory node, in bytes. Unused memory costs nothing.
    pub memory: u64,
    /// Transport of frames.
    pub transport: Transport,
    /// Waiting mode of the roles.
    pub waiting: Waiting,
    /// Placement of the roles on CPUs.
    pub placement: Placement,
}

/// A factory of racks with distinct addresses.
pub trait Racks {
    /// A description of a rack, valid while it exists.
    type Description: AsRef<RackConfig>;
    /// A rack of processes that runs until it is dropped.
    type Rack: AsRef<Rack> + 'static;
    /// The error when no rack starts or a measurement fails.
    type Failure: From<Error> + Display;

    /// Returns a description of a rack.
    ///
    /// # Errors
    /// An error when no addresses are free.
    fn describe(&mut self, shape: Shape) -> Result<Self::Description, Self::Failure>;

    /// Starts a rack of `nodes` memory nodes of `memory` bytes each.
    ///
    /// # Errors
    /// The reason why the rack does not start.
    fn start(&mut self, nodes: u8, kind: NodeKind, memory: u64) -> Result<Self::Rack, Self::Failure> {
        self.start_with(nodes, kind, memory, "")
    }

    /// Works as [`Racks::start`], with more lines in the rack's description.
    ///
    /// # Errors
    /// As [`Racks::start`].
    fn start_with(
        &mut self,
        nodes: u8,
        kind: NodeKind,
        memory: u64,
        more: &str,
    ) -> Result<Self::Rack, Self::Failure>;

    /// Works as [`Racks::start_with`], over links with a different profile.
    ///
    /// # Errors
    /// As [`Racks::start`].
    fn start_over(
        &mut self,
        link: LinkProfile,
        nodes: u8,
        memory: u64,
        more: &str,
    ) -> Result<Self::Rack, Self::Failure>;

    /// Returns the process of a role, by its name; `None` when none runs.
    fn role(&self, rack: &Self::Rack, name: &str) -> Option<u32>;

    /// Restarts a dead role, and waits until it serves.
    ///
    /// # Errors
    /// The reason why the role does not start.
    fn begin_again(&mut self, rack: &mut Self::Rack, name: &str) -> Result<(), Self::Failure>;

    /// Returns the processes of the rack's roles, whose CPU time counts with this process's.
    fn processes(&self, rack: &Self::Rack) -> Vec<u32>;
}
