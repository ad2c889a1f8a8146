//! What answers the requests, and the parts of answers.

use super::Base64;
#[cfg(doc)]
use super::GIVEN_UP;
use crate::keys::Key;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A memory node has joined.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeJoined {
    /// Its number.
    pub node: u16,
    /// Its own endpoint.
    pub home: Endpoint,
    /// The control plane's.
    pub control: Endpoint,
    /// First address of its range.
    pub base: u64,
    /// Bytes of its range that have memory behind them.
    pub capacity: u64,
    /// Its key, which requests about it show (PROTOCOL 8.66); none of a control plane that wants none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
}

/// A host has joined.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostJoined {
    /// Its number.
    pub host: u16,
    /// How often it started; part of its request ids.
    pub generation: u16,
    /// Its own endpoint.
    pub home: Endpoint,
    /// The memory nodes of farmem.
    pub nodes: Vec<NodeInfo>,
    /// Memory that cards registered, each of one domain (PROTOCOL 14.16).
    #[serde(default)]
    pub cards: Vec<NodeInfo>,
    /// Its key, which requests about it show (PROTOCOL 8.66); none of a control plane that wants none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
}

/// A switch of the index has joined.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IndexJoined {
    /// Its number.
    pub index: u16,
    /// Its own endpoint.
    pub home: Endpoint,
    /// The control plane's.
    pub control: Endpoint,
    /// Its key, which requests about it show (PROTOCOL 8.66); none of a control plane that wants none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
}

/// The switch has joined.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SwitchJoined {
    /// Its own endpoint.
    pub home: Endpoint,
    /// The control plane's.
    pub control: Endpoint,
    /// Its key, which requests about it show (PROTOCOL 8.66); none of a control plane that wants none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
}

/// A session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionInfo {
    /// The switch's endpoint for it.
    pub switch: Endpoint,
    /// The domain its requests are in.
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
    /// The key its requests show.
    pub rkey: u32,
    /// Path MTU in bytes.
    pub pmtu: u16,
    /// What the node takes, and how long a requester should wait for it: what a card is to be set to.
    pub limits: ConnectionLimits,
    /// Of a connection through the switch: where its packets go, and come from, at the host. The queue pair there is `peer_qpn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<Place>,
}

/// Where a role is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// Its port.
    pub port: u32,
    /// Its address.
    pub gid: String,
}

/// What the node at the other end of a connection takes, and what its requester is advised to (PROTOCOL 14.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectionLimits {
    /// Most bytes of one READ request; a longer one is refused with NAK 0x61.
    pub read_len_max: u32,
    /// Most bytes of one WRITE.
    pub write_len_max: u32,
    /// READ requests and atomics that may be unanswered at once: `max_rd_atomic` of verbs.
    pub depth: u32,
    /// How long to wait for an acknowledgement before asking again, as verbs have it: 4.096 us times two to the power of this.
    pub timeout: u8,
    /// Times without an answer before the connection is given up: `retry_cnt` of verbs. Not 7, which Soft-RoCE takes for "for ever".
    pub retries: u8,
    /// The same for "not ready"; 7 is for ever, as `rnr_retry` of verbs has it. A part that migrates says so for a while (PROTOCOL 4.29).
    pub rnr_retries: u8,
}

/// Where a vma is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LocatedVma {
    /// The vma, with the node that its addresses belong to.
    pub vma: VmaInfo,
    /// Parts of it that are at other nodes.
    pub moved: Vec<MovedInfo>,
    /// Parts of it whose bytes were lost with an earlier incarnation of their node, and not accepted since.
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
    /// Parts of them that were moved to other nodes.
    #[serde(default)]
    pub moved: Vec<MovedInfo>,
    /// Domains, by number and name.
    pub domains: Vec<(u32, String)>,
    /// How evenly the nodes are allocated: Jain's index in millionths.
    pub balance_ppm: u32,
    /// The switches of the index.
    #[serde(default)]
    pub index: Vec<IndexInfo>,
    /// True when the switch has joined.
    pub switch: bool,
    /// The switch's directory of pages that hosts cache.
    #[serde(default)]
    pub directory: DirectoryInfo,
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its number.
    pub process: u32,
    /// Where the heap of its address space begins; 0 when it has none.
    pub heap: u64,
}

/// What a memory system call returns, as from the kernel: a value, or a negative error number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Returned {
    /// The value.
    pub value: i64,
}

/// A lease.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeaseInfo {
    /// For so long, from when the request was sent, the host may use what it caches. 0: not yet, ask again in a moment.
    pub lease_ms: u64,
    /// The newest order to give everything up; 0 when none was given. A host that has obeyed less writes back what is Modified, takes
    /// all pages from its programs, and says so with its next renewal.
    pub flush: u64,
}

/// A named object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectInfo {
    /// Its number.
    pub object: u64,
    /// Bytes, as its users set it; 0 at first.
    pub length: u64,
    /// The first byte of its vma; 0 when it has none yet.
    pub base: u64,
    /// Bytes of its vma.
    pub size: u64,
}

/// Who has a named object open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectShown {
    /// Its number.
    pub object: u64,
    /// How all of them have it open; of an object that no host has open, shared.
    pub mode: OpenMode,
    /// The hosts that have it open, each in the life that has it.
    pub hosts: Vec<HostInfo>,
}

/// A domain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DomainInfo {
    /// Its number.
    pub domain: u32,
    /// Its key, which requests about it show (PROTOCOL 8.66); none of a control plane that wants none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
}

/// A permission class by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermName {
    /// Nothing.
    None,
    /// Loads.
    Read,
    /// Loads, stores, atomics.
    ReadWrite,
}

/// How a host has an object open (PROTOCOL 8.53).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpenMode {
    /// With other hosts that have it so: the switch keeps its pages coherent, or its users do.
    #[default]
    Shared,
    /// With other hosts that only read.
    Read,
    /// Alone in the rack (SODA III).
    Write,
}

impl OpenMode {
    /// True for what is meant when nothing is said.
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

/// How long a file of a memory node is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileLooked {
    /// Bytes.
    pub length: u64,
}

/// The named objects.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectsListed {
    /// By number.
    pub objects: Vec<ObjectListed>,
}

/// A named object, and who has it open.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectListed {
    /// Its number.
    pub object: u64,
    /// The domain that it is of.
    pub domain: u32,
    /// Its name; none once it was unlinked.
    pub name: Option<String>,
    /// Bytes, as its users set it; 0 at first.
    pub length: u64,
    /// The first byte of its vma; 0 when it has none yet.
    pub base: u64,
    /// Bytes of its vma.
    pub size: u64,
    /// The node of its vma; 0 when it has none yet.
    pub node: u16,
    /// How the hosts have it open.
    pub mode: OpenMode,
    /// The hosts that have it open.
    pub hosts: Vec<u16>,
    /// Its file, if it is by file.
    pub file: Option<FileInfo>,
}

/// The file of an object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileInfo {
    /// Its name at the node.
    pub file: String,
    /// What the object's bytes are.
    pub stage: FileStage,
    /// They may be other than the file's, and not saved.
    pub unsaved: bool,
    /// Bytes that were loaded, or saved while the object is being saved.
    pub done: u64,
    /// Why the latest load or save failed; none when it did not.
    pub error: Option<String>,
}

/// What the bytes of an object by file are (PROTOCOL 20.14).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileStage {
    /// Lost, and on their way from the file.
    Loading,
    /// Those of the file.
    Loaded,
    /// A host has it open to write.
    Writing,
    /// They may be other than those of the file, and no host may write them.
    Unsaved,
    /// On their way to the file.
    Saving,
    /// Lost: the file could not be loaded.
    Failed,
    /// Lost, with what was written and not saved.
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

/// A UD endpoint and where it is.
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

/// A memory node as a host needs to know it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its number.
    pub node: u16,
    /// Its name.
    pub name: String,
    /// Port number.
    pub port: u32,
    /// Address.
    pub gid: String,
    /// First address of its range.
    pub base: u64,
    /// Bytes of its range that have memory behind them.
    pub capacity: u64,
    /// Bytes allocated.
    pub allocated: u64,
    /// The domain whose memory it has, where it is a card: READ, WRITE and atomics only (PROTOCOL 14.16). 0: a memory node of farmem.
    #[serde(default)]
    pub card: u32,
}

/// Where in a FatTree a switch of the index is (Fat-B+Tree IV-A).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// The one that leads to all servers: the fat root.
    Core,
    /// One for each pod: node sets of what lies there.
    Aggregation,
    /// One for each group of servers: node sets of what lies at them.
    Edge,
}

impl Tier {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Aggregation => "aggregation",
            Self::Edge => "edge",
        }
    }
}

/// A switch of the index, for the overview.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IndexInfo {
    /// Its number.
    pub index: u16,
    /// Its name.
    pub name: String,
    /// Address.
    pub gid: String,
    /// Where in the FatTree it is.
    pub tier: Tier,
    /// The names of the switches of the index, or of the memory nodes, that are below it.
    pub below: Vec<String>,
    /// The memory nodes that it leads to.
    pub servers: Vec<u16>,
    /// True when it has joined and answers.
    pub answers: bool,
    /// The epoch of the image that stands there; 0 when none is known to.
    pub epoch: u64,
}

/// A host, for the overview.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostInfo {
    /// Its number.
    pub host: u16,
    /// Its name.
    pub name: String,
    /// Address.
    pub gid: String,
    /// How often it started.
    pub generation: u16,
    /// The hosts whose WRITEs it carries out, by number and generation (PROTOCOL 8.59).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acts_for: Vec<(u16, u16)>,
}

/// A vma, for the overview.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VmaInfo {
    /// Which allocation it is: no other one of the rack ever has this number. (Those of one memory system call have one number together.)
    pub id: u64,
    /// First byte.
    pub base: u64,
    /// Bytes, a power of two.
    pub size: u64,
    /// The node that its addresses belong to: it is there, but for parts that were moved.
    pub node: u16,
    /// Its owner.
    pub domain: u32,
}

/// A part of a vma that is not at the node its addresses belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MovedInfo {
    /// First byte.
    pub base: u64,
    /// Bytes, a power of two.
    pub size: u64,
    /// The node it is on.
    pub node: u16,
}

/// A part of a vma whose bytes were lost: the node that had them started again without its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LostInfo {
    /// First byte, at a page.
    pub base: u64,
    /// Bytes: whole pages.
    pub len: u64,
}

/// The directory, for the overview. Counts are since the control plane started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DirectoryInfo {
    /// Pages are served. Not so while hosts may still have some that an earlier switch handed out.
    pub open: bool,
    /// Slots there are; 0 when no host has cached pages yet.
    pub slots: u32,
    /// Slots that had a region when the directory was last listed.
    pub used: u32,
    /// Regions split.
    pub splits: u64,
    /// Pairs of regions merged.
    pub merges: u64,
    /// Regions reset, for whatever reason.
    pub resets: u64,
    /// Of these, to make room for others.
    pub evictions: u64,
    /// Hosts fenced, or gone: `lapses` and `leaves` together.
    pub fences: u64,
    /// Leases that ended without being given up: the host died, left or joined again with pages, or did not renew in time.
    pub lapses: u64,
    /// Leases that hosts gave up before they left, with everything that they had ([`GIVEN_UP`]).
    pub leaves: u64,
    /// Pages that hosts gave up although no host had asked for them.
    pub false_invalidations: u64,
    /// False invalidations of a region in an epoch above which it is split.
    pub threshold: u64,
    /// Pages whose latest bytes died with a host.
    pub lost_pages: u64,
}

/// An image stands at the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SoftLoaded {
    /// Its epoch. A later image has a greater one.
    pub epoch: u64,
}

/// What the tables of a section counted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SoftCounted {
    /// The epoch of the image that stands.
    pub epoch: u64,
    /// In which life of the switch: an image that is loaded again, under its epoch, begins to count anew.
    pub life: u16,
    /// Tells the section's bytes from others: for a tree `farmem_index::edition`.
    pub edition: u64,
    /// The counters, of four bytes each, big-endian, in the order of the section's branches. They wrap: who reads them takes differences.
    pub counts: Base64,
}

/// What the switch has of images.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SoftShown {
    /// The epoch of the image that stands; 0 when none does.
    pub epoch: u64,
    /// Its bytes.
    pub bytes: u32,
    /// The first 128 bits of the SHA-256 of its bytes, in hexadecimal; empty when none stands.
    pub digest: String,
    /// The epoch of the image that is loading; 0 when none is.
    pub loading_epoch: u64,
    /// Its bytes.
    pub loading_bytes: u32,
    /// Of these, so many have come.
    pub loaded: u32,
}
