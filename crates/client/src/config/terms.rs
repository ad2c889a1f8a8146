//! Words of `rack.toml`: how frames travel, how roles wait, where they run.

use serde::Deserialize;

/// How frames travel between the roles. Always as written: asking for one never gives another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// RoCEv2 over UDP port 4791.
    Udp,
    /// Shared-memory rings between processes of one machine.
    Shm,
}

impl Transport {
    /// As written in `rack.toml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Shm => "shm",
        }
    }
}

/// How a role waits for frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Waiting {
    /// Sleep in the kernel.
    #[default]
    Block,
    /// Keep a CPU busy for the lowest latency.
    Spin,
}

/// Where roles and clients run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// All on the CPU named by `cpu`: handing work over on one CPU costs a third of waking another.
    #[default]
    SameCpu,
    /// Wherever the kernel puts them.
    Free,
}

/// How a memory node executes traversals' programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Execution {
    /// Machine code, compiled once for each program. What cannot be compiled is interpreted.
    #[default]
    Jit,
    /// The interpreter, several times slower: for comparing.
    Interpreter,
}

/// How a memory node asks the caches for the lines that traversals need next.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Prefetch {
    /// Found out on the node's own memory before it joins, where that has 256 MiB or more: a tenth of a second of CPU time, and as long as it takes to
    /// touch that much memory; a machine on which that is more than a second has bursts.
    #[default]
    Auto,
    /// Lines of several traversals together.
    Bursts,
    /// Each as soon as it is known.
    OneByOne,
}

/// Features that a rack with RoCE cards or Soft-RoCE among its peers takes from the network, and then goes without. A card among the peers lets packets come
/// from any UDP port (PROTOCOL 1.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardsConfig {
    /// Packets are taken whose sender puts an IPv4 identification of its own into them, as Soft-RoCE does (PROTOCOL 2.10).
    #[serde(default)]
    pub unknown_ip_id: bool,
}

/// Use of a DPU's cache table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DpuCaching {
    /// Forwarding only: SODA's base.
    Off,
    /// Prefetching of all that the policy proposes: SODA's dynamic caching.
    Dynamic,
    /// Prefetching while that pays, within a bound of traffic.
    #[default]
    Adaptive,
}

/// How a DPU forwards requests (SODA III).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DpuForward {
    /// The next ones of a process are taken when those before have been answered: SODA's base.
    Blocking,
    /// More are taken while others are under way: asynchronous request forwarding.
    #[default]
    Async,
}
