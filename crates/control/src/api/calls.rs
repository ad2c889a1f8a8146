//! The requests, one type each. [`Call::Answer`](super::Call::Answer) is what answers one.

use super::PermName;
#[cfg(doc)]
use super::{ErrorCode, GIVEN_UP, VmaInfo};
use alloc::string::String;
use serde::{Deserialize, Serialize};

/// The switch starts, or starts again with empty tables.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinSwitch {
    /// Its address.
    pub gid: String,
}

/// A memory node starts, with empty memory. The same name again is the same node started again: what it held is lost.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinNode {
    /// Its name, unique in the rack.
    pub name: String,
    /// Its address.
    pub gid: String,
    /// Bytes of memory it has; a multiple of 4096.
    pub capacity: u64,
}

/// A host starts. The same name again is the same host with the next generation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinHost {
    /// Its name, unique in the rack.
    pub name: String,
    /// Its address.
    pub gid: String,
}

/// A node or host leaves: its sessions, connections and, for a node, its memory go with it. A node with allocations is refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leave {
    /// Its port.
    pub port: u32,
}

/// Makes a protection domain, or finds the one of this name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateDomain {
    /// Its name.
    pub name: String,
}

/// Opens a session: UD messages of `host` through the switch, in `domain`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenSession {
    /// The host.
    pub host: u16,
    /// The domain.
    pub domain: u32,
}

/// Sets up an RC connection from `host` to `node`, in `domain`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connect {
    /// The host.
    pub host: u16,
    /// The memory node.
    pub node: u16,
    /// The domain.
    pub domain: u32,
}

/// Takes a connection down (the host's queue pair number names it).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disconnect {
    /// The host.
    pub host: u16,
    /// The host's queue pair.
    pub qpn: u32,
}

/// Allocates a vma: at least `size` bytes, rounded up to a power of two of at least 4096 and aligned to it, zeroed, on the node with
/// the least allocated, first fit (MIND 4.1); the domain may read and write it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocate {
    /// Its owner.
    pub domain: u32,
    /// Bytes, at least 1.
    pub size: u64,
    /// On this node and no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u16>,
}

/// Frees a vma. May be repeated when the answer did not come: [`ErrorCode::NotFound`] says that this allocation
/// is no more, whatever has its addresses by then.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Free {
    /// Its owner.
    pub domain: u32,
    /// Its first byte.
    pub base: u64,
    /// Which allocation it is: [`VmaInfo::id`].
    pub id: u64,
}

/// The owner lets another domain use a part of a vma.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// The owner.
    pub domain: u32,
    /// First byte, in one vma of the owner.
    pub base: u64,
    /// Bytes, at least 1, in the same vma.
    pub len: u64,
    /// Who may use it.
    pub to: u32,
    /// `none` (takes a grant back), `read` or `read_write`.
    pub perm: PermName,
}

/// A process begins. All processes of a domain, on whatever hosts, have one address space, which begins with the first of them and
/// is given back with the last.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessStart {
    /// Its protection domain.
    pub domain: u32,
    /// Most bytes of the heap that `brk` moves in; only the first process of a domain is asked.
    #[serde(default)]
    pub heap: u64,
}

/// A process ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessExit {
    /// The process.
    pub process: u32,
}

/// As mmap(2), anonymous: zeroed memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mmap {
    /// The process.
    pub process: u32,
    /// Where; a wish without MAP_FIXED (0x10) or MAP_FIXED_NOREPLACE (0x100000).
    #[serde(default)]
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// PROT_READ 1, PROT_WRITE 2.
    pub prot: u32,
    /// As Linux has them on x86-64.
    #[serde(default)]
    pub flags: u32,
}

/// As munmap(2).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Munmap {
    /// The process.
    pub process: u32,
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

/// As mprotect(2).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mprotect {
    /// The process.
    pub process: u32,
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// PROT_READ 1, PROT_WRITE 2.
    pub prot: u32,
}

/// As the system call brk(2): answers where the heap ends afterwards, moved or not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Brk {
    /// The process.
    pub process: u32,
    /// Where it shall end.
    pub addr: u64,
}

/// A host that caches pages begins its lease, or renews it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// The host.
    pub host: u16,
    /// How often it started.
    pub generation: u16,
    /// The largest order to give everything up that it has obeyed; 0 when none came yet. A number that was never given is refused.
    /// [`GIVEN_UP`] when it has given everything up for good, because it is about to leave: its lease ends at once, no page counts as lost
    /// with it, and it gets no other one before it joins again.
    #[serde(default)]
    pub flushed: u64,
    /// The UD queue key of the host's endpoint, from the answer to `join_host`: that it was the host who flushed. Looked at when `flushed` is not 0.
    #[serde(default)]
    pub qkey: u32,
}

/// Takes a region back from all hosts and begins it anew, because a page request of `host` was not answered for long (MIND 4.4). The answer
/// comes as soon as that has begun.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recover {
    /// The host that waits.
    pub host: u16,
    /// First byte of the page.
    pub page: u64,
}

/// The owner takes pages whose bytes were lost as they are now: the old bytes of those whose latest ones died with a host, zeros of those
/// whose node started again. Whatever else was lost of them by then is accepted too.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptLost {
    /// The owner.
    pub domain: u32,
    /// First byte, in one vma of the owner; at a page.
    pub base: u64,
    /// Bytes, at least 1, in the same vma.
    pub len: u64,
}

/// Opens a named object of a domain: memory that hosts find by a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenObject {
    /// The host, which has it open from now on.
    pub host: u16,
    /// The domain whose names these are.
    pub domain: u32,
    /// 1 to 255 bytes without `/` and control characters.
    pub name: String,
    /// Makes it when there is none, with no memory.
    #[serde(default)]
    pub create: bool,
    /// With `create`: refuses one that is there.
    #[serde(default)]
    pub exclusive: bool,
}

/// Opens an object by its number, whether or not it still has a name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldObject {
    /// The host.
    pub host: u16,
    /// The object.
    pub object: u64,
}

/// Sets an object's length. At first that allocates its vma; later it may grow within it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeObject {
    /// The host, which has it open.
    pub host: u16,
    /// The object.
    pub object: u64,
    /// Bytes, at least 1.
    pub length: u64,
}

/// Takes an object's name away. Hosts that have it open keep it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnlinkObject {
    /// The domain.
    pub domain: u32,
    /// The name.
    pub name: String,
}

/// Closes an object for a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropObject {
    /// The host.
    pub host: u16,
    /// The object.
    pub object: u64,
}

/// Moves a part of a vma to another node while it is used (MIND 4.1). The answer comes when it is there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Migrate {
    /// Its owner; without one, ownership is not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<u32>,
    /// First byte; a multiple of `len`.
    pub base: u64,
    /// Bytes: a power of two of at least 4096, in one vma.
    pub len: u64,
    /// Where to.
    pub node: u16,
}

/// Asks which node has what of the vma that holds an address.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Locate {
    /// The address.
    pub addr: u64,
}

/// Asks for the members of the rack and its allocations.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overview {}
