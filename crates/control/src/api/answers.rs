//! The answers to requests, and their parts.

use super::Base64;
#[cfg(doc)]
use super::GIVEN_UP;
use crate::keys::Key;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The answer to a memory node's join.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeJoined {
    /// The node's number.
    pub node: u16,
    /// The node's own endpoint.
    pub home: Endpoint,
    /// The control plane's endpoint.
    pub control: Endpoint,
    /// First address of the node's range.
    pub base: u64,
    /// Bytes of the range that are backed by memory.
    pub capacity: u64,
    /// The node's key, required in requests about the node (PROTOCOL 8.66); `None` if the control plane
    /// requires none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
}

/// The answer to a host's join.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostJoined {
    /// The host's number.
    pub host: u16,
    /// Number of the host's current start; part of its request ids.
    pub generation: u16,
    /// The host's own endpoint.
    pub home: Endpoint,
    /// The memory nodes of farmem.
    pub nodes: Vec<NodeInfo>,
    /// Memory registered by cards, each of one domain (PROTOCOL 14.16).
    #[serde(default)]
    pub cards: Vec<NodeInfo>,
    /// The host's key, required in requests about the host (PROTOCOL 8.66); `None` if the control plane
    /// requires none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
}

/// The answer to an index switch's join.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IndexJoined {
    /// The index switch's number.
    pub index: u16,
    /// The index switch's own endpoint.
    pub home: Endpoint,
    /// The control plane's endpoint.
    pub control: Endpoint,
    /// The index switch's key, required in requests about it (PROTOCOL 8.66); `None` if the control plane
    /// requires none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
}

/// The answer to the switch's join.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SwitchJoined {
    /// The switch's own endpoint.
    pub home: Endpoint,
    /// The control plane's endpoint.
    pub control: Endpoint,
    /// The switch's key, required in requests about it (PROTOCOL 8.66); `None` if the control plane requires
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
}

/// A session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionInfo {
    /// The switch's endpoint for the session.
    pub switch: Endpoint,
    /// The domain of the session's requests.
    pub domain: u32,
}

/// A connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectionInfo {
    /// The node.
    pub node: NodeInfo,
    /// The host's queue pair.
    pub qpn: u32,
    /// The node's queue pair.
    pub peer_qpn: u32,
    /// The PSN of the host's first request.
    pub first_psn: u32,
    /// The key that requests carry.
    pub rkey: u32,
    /// Path MTU in bytes.
    pub pmtu: u16,
    /// The node's limits and the recommended timeouts, to configure a card with.
    pub limits: ConnectionLimits,
    /// The host's peer, for a connection through the switch: the source and destination of its packets. The
    /// queue pair there is `peer_qpn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<RoleAddress>,
}

/// The address of a role.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RoleAddress {
    /// The role's port.
    pub port: u32,
    /// The role's address.
    pub gid: String,
}

/// The limits of a connection's node, and recommendations for its requester (PROTOCOL 14.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectionLimits {
    /// Maximum length in bytes of one READ request; a longer one is refused with NAK 0x61.
    pub read_len_max: u32,
    /// Maximum length in bytes of one WRITE.
    pub write_len_max: u32,
    /// Maximum number of unanswered READ requests and atomics: `max_rd_atomic` of verbs.
    pub depth: u32,
    /// Acknowledgement timeout in the encoding of verbs: 4.096 us times two to the power of this.
    pub timeout: u8,
    /// Number of retries without an answer before the connection breaks: `retry_cnt` of verbs. Not 7, which
    /// Soft-RoCE treats as infinite.
    pub retries: u8,
    /// Number of RNR retries; 7 is infinite, as in `rnr_retry` of verbs. Memory that migrates answers RNR for
    /// a while (PROTOCOL 4.29).
    pub rnr_retries: u8,
}

/// The location of a vma.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LocatedVma {
    /// The vma, with the node of its address range.
    pub vma: VmaInfo,
    /// Parts of the vma that are at other nodes.
    pub moved: Vec<MovedInfo>,
    /// Parts of the vma whose bytes were lost with an earlier incarnation of their node, and not accepted
    /// since.
    #[serde(default)]
    pub lost: Vec<LostInfo>,
}

/// The members of the rack and its allocations.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RackOverview {
    /// Memory nodes.
    pub nodes: Vec<NodeInfo>,
    /// Hosts.
    pub hosts: Vec<HostInfo>,
    /// Allocations.
    pub vmas: Vec<VmaInfo>,
    /// Parts of allocations that were moved to other nodes.
    #[serde(default)]
    pub moved: Vec<MovedInfo>,
    /// Domains, by number and name.
    pub domains: Vec<(u32, String)>,
    /// Balance of the allocation among nodes: Jain's index in millionths.
    pub balance_ppm: u32,
    /// The index switches.
    #[serde(default)]
    pub index: Vec<IndexInfo>,
    /// True if the switch has joined.
    pub switch: bool,
    /// True if the switch has joined and answers, as far as the control plane knows.
    #[serde(default)]
    pub switch_answers: bool,
    /// The switch's directory of cached pages.
    #[serde(default)]
    pub directory: DirectoryInfo,
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// The process's number.
    pub process: u32,
    /// Start of the heap in its address space; 0 if it has none.
    pub heap: u64,
}

/// The result of a memory system call, as from the kernel: a value, or a negative error number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Returned {
    /// The value.
    pub value: i64,
}

/// A lease.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeaseInfo {
    /// Time for which the host may use cached pages, counted from the time of the request. 0: not yet, retry
    /// shortly.
    pub lease_ms: u64,
    /// The newest flush order; 0 if none was given. A host that has not obeyed it writes Modified pages back,
    /// takes all pages from its programs, and reports that with its next renewal.
    pub flush: u64,
}

/// A named object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectInfo {
    /// The object's number.
    pub object: u64,
    /// Length in bytes, as set by its users; 0 at first.
    pub length: u64,
    /// First byte of its vma; 0 if it has none yet.
    pub base: u64,
    /// Length in bytes of its vma.
    pub size: u64,
}

/// The hosts that have a named object open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectShown {
    /// The object's number.
    pub object: u64,
    /// The mode in which all of them have it open; shared if no host has it open.
    pub mode: OpenMode,
    /// The hosts that have it open, each in the incarnation that opened it.
    pub hosts: Vec<HostInfo>,
}

/// A domain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DomainInfo {
    /// The domain's number.
    pub domain: u32,
    /// The domain's key, required in requests about it (PROTOCOL 8.66); `None` if the control plane requires
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
}

/// A permission class by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermName {
    /// No access.
    None,
    /// Loads.
    Read,
    /// Loads, stores, atomics.
    ReadWrite,
}

/// The mode in which a host has an object open (PROTOCOL 8.53).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpenMode {
    /// Shared with other hosts in this mode: the switch, or the users, keep its pages coherent.
    #[default]
    Shared,
    /// Read-only, together with other readers.
    Read,
    /// Exclusive in the rack (SODA III).
    Write,
}

impl OpenMode {
    /// Returns true for the default mode.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Shared)
    }
}

impl core::fmt::Display for OpenMode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Shared => "shared",
            Self::Read => "to read",
            Self::Write => "to write",
        })
    }
}

/// The length of a file of a memory node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileLooked {
    /// Length in bytes.
    pub length: u64,
}

/// The list of named objects.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectsListed {
    /// The objects by number.
    pub objects: Vec<ObjectListed>,
}

/// A named object, and the hosts that have it open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectListed {
    /// The object's number.
    pub object: u64,
    /// The object's domain.
    pub domain: u32,
    /// The object's name; `None` once it was unlinked.
    pub name: Option<String>,
    /// Length in bytes, as set by its users; 0 at first.
    pub length: u64,
    /// First byte of its vma; 0 if it has none yet.
    pub base: u64,
    /// Length in bytes of its vma.
    pub size: u64,
    /// The node of its vma; 0 if it has none yet.
    pub node: u16,
    /// The mode in which hosts have it open.
    pub mode: OpenMode,
    /// The hosts that have it open.
    pub hosts: Vec<u16>,
    /// Its file, if it has one.
    pub file: Option<FileInfo>,
}

/// The file of an object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileInfo {
    /// The file's name at the node.
    pub file: String,
    /// The state of the object's bytes.
    pub stage: FileStage,
    /// True if the bytes may differ from the file's and are not saved.
    pub unsaved: bool,
    /// Bytes loaded so far, or saved so far while the object is being saved.
    pub done: u64,
    /// The error of the latest load or save, if it failed.
    pub error: Option<String>,
}

/// The state of the bytes of an object in a file (PROTOCOL 20.14).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileStage {
    /// Lost, and being loaded from the file.
    Loading,
    /// Equal to the file's.
    Loaded,
    /// Open for writing by a host.
    Writing,
    /// Possibly different from the file's, and open for writing by no host.
    Unsaved,
    /// Being saved to the file.
    Saving,
    /// Lost: the file could not be loaded.
    Failed,
    /// Lost, including written bytes that were not saved.
    Lost,
}

impl core::fmt::Display for FileStage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Loading => "loading",
            Self::Loaded => "loaded",
            Self::Writing => "writing",
            Self::Unsaved => "unsaved",
            Self::Saving => "saving",
            Self::Failed => "failed",
            Self::Lost => "lost",
        })
    }
}

/// A UD endpoint and its address.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Endpoint {
    /// Port number.
    pub port: u32,
    /// Address.
    pub gid: String,
    /// UD queue pair.
    pub qpn: u32,
    /// UD queue key.
    pub qkey: u32,
}

/// A memory node, as hosts need it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeInfo {
    /// The node's number.
    pub node: u16,
    /// The node's name.
    pub name: String,
    /// Port number.
    pub port: u32,
    /// Address.
    pub gid: String,
    /// First address of its range.
    pub base: u64,
    /// Bytes of its range that are backed by memory.
    pub capacity: u64,
    /// Bytes allocated.
    pub allocated: u64,
    /// How often the node has joined, modulo 2^16. With each join its memory and its connections begin anew.
    #[serde(default)]
    pub generation: u16,
    /// True when it has joined and answers, as far as the control plane knows.
    #[serde(default)]
    pub answers: bool,
    /// Bytes at it that were lost with its earlier lives, and that their owners did not accept since.
    #[serde(default)]
    pub lost: u64,
    /// The domain that owns its memory, for a card: READ, WRITE and atomics only (PROTOCOL 14.16). 0 for a
    /// memory node of farmem.
    #[serde(default)]
    pub card: u32,
}

/// The tier of an index switch in a FatTree (Fat-B+Tree IV-A).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// The switch above all servers, with the fat root.
    Core,
    /// One switch for each pod, with node sets of the pod.
    Aggregation,
    /// One switch for each group of servers, with node sets of these servers.
    Edge,
}

impl Tier {
    /// Returns the tier's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Aggregation => "aggregation",
            Self::Edge => "edge",
        }
    }
}

/// An index switch, for the overview.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IndexInfo {
    /// The switch's number.
    pub index: u16,
    /// The switch's name.
    pub name: String,
    /// Address.
    pub gid: String,
    /// The switch's tier in the FatTree.
    pub tier: Tier,
    /// The names of the index switches or memory nodes below it.
    pub below: Vec<String>,
    /// The memory nodes that it leads to.
    pub servers: Vec<u16>,
    /// True if it has joined and answers.
    pub answers: bool,
    /// The epoch of its active image; 0 if none is known.
    pub epoch: u64,
}

/// A host, for the overview.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostInfo {
    /// The host's number.
    pub host: u16,
    /// The host's name.
    pub name: String,
    /// Address.
    pub gid: String,
    /// Number of its current start.
    pub generation: u16,
    /// The hosts whose WRITEs it executes, by number and generation (PROTOCOL 8.59).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acts_for: Vec<(u16, u16)>,
}

/// A vma, for the overview.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmaInfo {
    /// The allocation's number, unique in the rack. (The allocations of one memory system call share a
    /// number.)
    pub id: u64,
    /// First byte.
    pub base: u64,
    /// Length in bytes, a power of two.
    pub size: u64,
    /// The node of its address range, which holds it except for moved parts.
    pub node: u16,
    /// The owner's domain.
    pub domain: u32,
}

/// A part of a vma that is not at the node of its address range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MovedInfo {
    /// First byte.
    pub base: u64,
    /// Length in bytes, a power of two.
    pub size: u64,
    /// The node that holds it.
    pub node: u16,
}

/// A part of a vma whose bytes were lost: its node restarted without its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LostInfo {
    /// First byte, page-aligned.
    pub base: u64,
    /// Length in bytes, a multiple of the page length.
    pub len: u64,
}

/// The directory, for the overview. Counts begin at the start of the control plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DirectoryInfo {
    /// True if pages are served. False while hosts may still hold pages that an earlier switch handed out.
    pub open: bool,
    /// Number of slots; 0 if no host has cached pages yet.
    pub slots: u32,
    /// Number of slots with a region at the last listing.
    pub used: u32,
    /// Region splits.
    pub splits: u64,
    /// Region merges.
    pub merges: u64,
    /// Region resets, for any reason.
    pub resets: u64,
    /// Resets that made room for other regions.
    pub evictions: u64,
    /// Fences of hosts: the sum of `lapses` and `leaves`.
    pub fences: u64,
    /// Leases that ended without being given up: the host died, left or rejoined with pages, or did not renew
    /// in time.
    pub lapses: u64,
    /// Leases that hosts gave up, with all pages, before they left ([`GIVEN_UP`]).
    pub leaves: u64,
    /// Pages that hosts gave up although no host had requested them.
    pub false_invalidations: u64,
    /// Number of false invalidations of a region in an epoch above which it is split.
    pub threshold: u64,
    /// Pages whose latest bytes died with a host.
    pub lost_pages: u64,
}

/// The answer to a publication: the image is active.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SoftLoaded {
    /// The image's epoch. A later image has a greater one.
    pub epoch: u64,
}

/// The counters of a section's tables.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SoftCounted {
    /// The epoch of the active image.
    pub epoch: u64,
    /// The switch's incarnation: an image that is loaded again under its epoch restarts its counters.
    pub life: u16,
    /// A digest of the section's bytes: for a tree `farmem_index::edition`.
    pub edition: u64,
    /// The counters, of four bytes each, big-endian, in the order of the section's branches. They wrap, so
    /// readers take differences.
    pub counts: Base64,
}

/// The images of the switch.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SoftShown {
    /// The epoch of the active image; 0 if there is none.
    pub epoch: u64,
    /// Its length in bytes.
    pub bytes: u32,
    /// The first 128 bits of the SHA-256 of its bytes, in hexadecimal; empty if there is none.
    pub digest: String,
    /// The epoch of the image being loaded; 0 if there is none.
    pub loading_epoch: u64,
    /// Its length in bytes.
    pub loading_bytes: u32,
    /// Number of its bytes that have arrived.
    pub loaded: u32,
}
