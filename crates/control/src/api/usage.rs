//! Who has what, for people who look after a rack (PROTOCOL 8.63).

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Who has what.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RackUsage {
    /// The hosts there are.
    pub hosts: Vec<HostUse>,
    /// The domains there are.
    pub domains: Vec<DomainUse>,
    /// Allocations, but for those that are the memory of an object or of a process.
    pub vmas: Vec<VmaUse>,
    /// Processes.
    pub processes: Vec<ProcessUse>,
    /// The builds of farmem that members are, as they said when they joined (PROTOCOL 8.71).
    #[serde(default)]
    pub builds: Vec<BuildUse>,
}

/// A build, and who is of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BuildUse {
    /// The build.
    pub build: String,
    /// The members that are of it, by kind and name.
    pub members: Vec<String>,
}

/// What a host has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostUse {
    /// Its number.
    pub host: u16,
    /// Its name.
    pub name: String,
    /// How often it started.
    pub generation: u16,
    /// It may hold pages: its lease of them is renewed, or did not surely end.
    pub caches: bool,
    /// Milliseconds until it is taken out, unless it is heard of; none where hosts stay for good.
    pub lease_left_ms: Option<u64>,
    /// The domains that it has sessions in.
    pub domains: Vec<u32>,
    /// Its connections to memory nodes.
    pub connections: u64,
    /// The objects that it has open.
    pub objects: u64,
}

/// What a domain has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DomainUse {
    /// Its number.
    pub domain: u32,
    /// Its name.
    pub name: String,
    /// The hosts that have a session, a connection or an object of it open: its users.
    pub hosts: Vec<u16>,
    /// Milliseconds until what does not stay of it is taken back, unless a user comes; none while it has one, or where domains stay for good.
    pub idle_left_ms: Option<u64>,
    /// Its processes.
    pub processes: u64,
    /// Its allocations, also those of objects and processes.
    pub vmas: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of those that stay without a user: durable ones, and the memory of objects.
    pub durable_bytes: u64,
    /// Its objects, with and without a name.
    pub objects: u64,
    /// Allocations of other domains that it may use.
    pub granted: u64,
}

/// An allocation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmaUse {
    /// Which one it is (PROTOCOL 8.47).
    pub id: u64,
    /// First byte.
    pub base: u64,
    /// Bytes.
    pub size: u64,
    /// Its owner.
    pub domain: u32,
    /// It stays without a user.
    pub durable: bool,
    /// The other domains that may use it.
    pub granted_to: Vec<u32>,
}

/// A process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessUse {
    /// Its number.
    pub process: u32,
    /// Its domain.
    pub domain: u32,
}
