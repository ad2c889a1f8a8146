//! Values of `rack.toml`: transport, waiting, placement, execution.

use serde::Deserialize;

/// The transport of frames between roles. A transport that is not available is an error; no other one
/// replaces it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// RoCEv2 over UDP port 4791.
    Udp,
    /// Shared-memory rings between processes of one machine.
    Shm,
}

impl Transport {
    /// Returns the transport's name in `rack.toml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Shm => "shm",
        }
    }
}

/// The way in which a role waits for frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Waiting {
    /// Sleeps in the kernel.
    #[default]
    Block,
    /// Keeps a CPU busy, for the lowest latency.
    Spin,
}

/// The placement of roles and clients on CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// All on the CPU named by `cpu`: a switch of threads on one CPU costs a third of a wake-up on another.
    #[default]
    SameCpu,
    /// On the CPUs that the kernel chooses.
    Free,
}

/// The way in which a memory node executes programs of traversals.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Execution {
    /// Machine code, compiled once for each program. Programs that the compiler cannot compile are
    /// interpreted.
    #[default]
    Jit,
    /// The interpreter, several times slower, for comparisons.
    Interpreter,
}

/// The way in which a memory node prefetches the cache lines that traversals need next.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prefetch {
    /// Measured on the node's own memory before it joins, if the node has at least 256 MiB. The measurement
    /// takes a tenth of a second of CPU time, and the time to touch this much memory. If that takes more than
    /// a second, the node uses bursts.
    #[default]
    Auto,
    /// Lines of several traversals together.
    Bursts,
    /// Each line as soon as its address is known.
    OneByOne,
}

/// The checks that a rack with RoCE cards or Soft-RoCE among its peers omits. A rack with cards accepts
/// packets from any UDP port (PROTOCOL 1.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardsConfig {
    /// True if the rack accepts packets with an IPv4 identification of the sender's choice, as Soft-RoCE
    /// sends them (PROTOCOL 2.10).
    #[serde(default)]
    pub unknown_ip_id: bool,
}

/// The use of a DPU's cache table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DpuCaching {
    /// Forwarding only: SODA's baseline.
    Off,
    /// Prefetching of all pages that the policy proposes: SODA's dynamic caching.
    Dynamic,
    /// Prefetching while it pays, with a limit of traffic.
    #[default]
    Adaptive,
}

/// The way in which a DPU forwards requests (SODA III).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DpuForward {
    /// The DPU takes the next requests of a process after it has answered the earlier ones: SODA's baseline.
    Blocking,
    /// The DPU takes more requests while others are pending: asynchronous request forwarding.
    #[default]
    Async,
}
