//! Resource usage, for the operators of a rack (PROTOCOL 8.63).

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The resources of all hosts and domains.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RackUsage {
    /// The hosts.
    pub hosts: Vec<HostUse>,
    /// The domains.
    pub domains: Vec<DomainUse>,
    /// Allocations that are not the memory of an object or of a process.
    pub vmas: Vec<VmaUse>,
    /// Processes.
    pub processes: Vec<ProcessUse>,
    /// The builds of farmem that members reported when they joined (PROTOCOL 8.71).
    #[serde(default)]
    pub builds: Vec<BuildUse>,
    /// Failures since the control plane started.
    #[serde(default)]
    pub losses: LossCounts,
    /// Proofs of addresses since the control plane started.
    #[serde(default)]
    pub proofs: ProofCounts,
}

/// Proofs of the addresses of joining members, since the control plane started (PROTOCOL 8.74).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ProofCounts {
    /// Joins that were refused because the address was not proven; a cookie was sent for each.
    pub cookies: u64,
    /// Joins among them that showed a wrong cookie.
    pub wrong: u64,
    /// Joins that showed the right cookie.
    pub proven: u64,
}

/// Failures since the control plane started.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct LossCounts {
    /// Memory nodes that did not answer any more.
    pub nodes_silent: u64,
    /// Joins of memory nodes that had been there before, with empty memory.
    pub nodes_emptied: u64,
    /// Bytes that were lost at these, each time that a node joined.
    pub bytes_lost: u64,
}

/// A build and its members.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BuildUse {
    /// The build.
    pub build: String,
    /// The members with this build, by kind and name.
    pub members: Vec<String>,
}

/// The resources of a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostUse {
    /// The host's number.
    pub host: u16,
    /// The host's name.
    pub name: String,
    /// Number of its current start.
    pub generation: u16,
    /// True if it may hold pages: its lease is renewed, or has not surely ended.
    pub caches: bool,
    /// Milliseconds until the host is removed without a report; `None` if hosts stay for ever.
    pub lease_left_ms: Option<u64>,
    /// The domains of its sessions.
    pub domains: Vec<u32>,
    /// Number of its connections to memory nodes.
    pub connections: u64,
    /// Number of its open objects.
    pub objects: u64,
}

/// The resources of a domain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DomainUse {
    /// The domain's number.
    pub domain: u32,
    /// The domain's name.
    pub name: String,
    /// The users of the domain: hosts with a session, a connection or an open object.
    pub hosts: Vec<u16>,
    /// Milliseconds until its temporary resources are reclaimed without a new user; `None` while it has a
    /// user, or if domains stay for ever.
    pub idle_left_ms: Option<u64>,
    /// Number of its processes.
    pub processes: u64,
    /// Number of its allocations, including those of objects and processes.
    pub vmas: u64,
    /// Bytes of these allocations.
    pub bytes: u64,
    /// Bytes that outlive the last user: durable allocations, and the memory of objects.
    pub durable_bytes: u64,
    /// Number of its objects, with and without a name.
    pub objects: u64,
    /// Number of allocations of other domains that it may access.
    pub granted: u64,
    /// Bytes of its allocations that were lost with a memory node, and that it did not accept since.
    #[serde(default)]
    pub lost: u64,
}

/// An allocation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmaUse {
    /// The allocation's number (PROTOCOL 8.47).
    pub id: u64,
    /// First byte.
    pub base: u64,
    /// Length in bytes.
    pub size: u64,
    /// The owner's domain.
    pub domain: u32,
    /// True if it outlives the last user.
    pub durable: bool,
    /// The other domains with access.
    pub granted_to: Vec<u32>,
}

/// A process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessUse {
    /// The process's number.
    pub process: u32,
    /// The process's domain.
    pub domain: u32,
}
