//! What people, programs and roles ask of the control plane, in the form that travels as JSON.
//!
//! `POST /v1/NAME` with the fields of a request as its body; the answer is the fields of the response, or an [`ApiError`].
//! Addresses (`gid`) are text: `127.0.0.11` or an IPv6 address. Sizes are bytes. Numbers of ports, queue pairs and keys are decimal.

use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The switch starts, or starts again with empty tables. Answer: [`Response::Joined`].
    JoinSwitch {
        /// Its address.
        gid: String,
    },
    /// A memory node starts, with empty memory. The same name again is the same node started again: what it held is lost.
    /// Answer: [`Response::NodeJoined`].
    JoinNode {
        /// Its name, unique in the rack.
        name: String,
        /// Its address.
        gid: String,
        /// Bytes of memory it has; a multiple of 4096.
        capacity: u64,
    },
    /// A host starts. The same name again is the same host with the next generation. Answer: [`Response::HostJoined`].
    JoinHost {
        /// Its name, unique in the rack.
        name: String,
        /// Its address.
        gid: String,
    },
    /// A node or host leaves: its sessions, connections and, for a node, its memory go with it. A node with allocations is refused.
    /// Answer: [`Response::Done`].
    Leave {
        /// Its port.
        port: u32,
    },
    /// Makes a protection domain, or finds the one of this name. Answer: [`Response::Domain`].
    CreateDomain {
        /// Its name.
        name: String,
    },
    /// Opens a session: UD messages of `host` through the switch, in `domain`. Answer: [`Response::Session`].
    OpenSession {
        /// The host.
        host: u16,
        /// The domain.
        domain: u32,
    },
    /// Sets up an RC connection from `host` to `node`, in `domain`. Answer: [`Response::Connection`].
    Connect {
        /// The host.
        host: u16,
        /// The memory node.
        node: u16,
        /// The domain.
        domain: u32,
    },
    /// Takes a connection down (the host's queue pair number names it). Answer: [`Response::Done`].
    Disconnect {
        /// The host.
        host: u16,
        /// The host's queue pair.
        qpn: u32,
    },
    /// Allocates a vma: at least `size` bytes, rounded up to a power of two of at least 4096 and aligned to it, zeroed, on the node with
    /// the least allocated, first fit (MIND 4.1); the domain may read and write it. Answer: [`Response::Vma`].
    Allocate {
        /// Its owner.
        domain: u32,
        /// Bytes, at least 1.
        size: u64,
        /// On this node and no other.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<u16>,
    },
    /// Frees a vma. Answer: [`Response::Done`]. May be repeated when the answer did not come: [`ErrorCode::NotFound`] says that this allocation
    /// is no more, whatever has its addresses by then.
    Free {
        /// Its owner.
        domain: u32,
        /// Its first byte.
        base: u64,
        /// Which allocation it is: [`VmaInfo::id`].
        id: u64,
    },
    /// The owner lets another domain use a part of a vma. Answer: [`Response::Done`].
    Grant {
        /// The owner.
        domain: u32,
        /// First byte, in one vma of the owner.
        base: u64,
        /// Bytes, at least 1, in the same vma.
        len: u64,
        /// Who may use it.
        to: u32,
        /// `none` (takes a grant back), `read` or `read_write`.
        perm: PermName,
    },
    /// A process begins. All processes of a domain, on whatever hosts, have one address space, which begins with the first of them and
    /// is given back with the last. Answer: [`Response::Process`].
    ProcessStart {
        /// Its protection domain.
        domain: u32,
        /// Most bytes of the heap that `brk` moves in; only the first process of a domain is asked.
        #[serde(default)]
        heap: u64,
    },
    /// A process ends. Answer: [`Response::Done`].
    ProcessExit {
        /// The process.
        process: u32,
    },
    /// As mmap(2), anonymous: zeroed memory. Answer: [`Response::Returned`].
    Mmap {
        /// The process.
        process: u32,
        /// Where; a wish without MAP_FIXED (0x10) or MAP_FIXED_NOREPLACE (0x100000).
        #[serde(default)]
        addr: u64,
        /// Bytes.
        len: u64,
        /// PROT_READ 1, PROT_WRITE 2.
        prot: u32,
        /// As Linux has them on x86-64.
        #[serde(default)]
        flags: u32,
    },
    /// As munmap(2). Answer: [`Response::Returned`].
    Munmap {
        /// The process.
        process: u32,
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// As mprotect(2). Answer: [`Response::Returned`].
    Mprotect {
        /// The process.
        process: u32,
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
        /// PROT_READ 1, PROT_WRITE 2.
        prot: u32,
    },
    /// As the system call brk(2): answers where the heap ends afterwards, moved or not. Answer: [`Response::Returned`].
    Brk {
        /// The process.
        process: u32,
        /// Where it shall end.
        addr: u64,
    },
    /// A host that caches pages is there, and goes on: its lease begins, or begins anew. Answer: [`Response::Lease`].
    Renew {
        /// The host.
        host: u16,
        /// How often it started.
        generation: u16,
        /// The largest order to give everything up that it has obeyed; 0 when none came yet. A number that was never given is refused.
        /// [`GIVEN_UP`] when it has given everything up for good, because it is about to leave: its lease ends at once, no page counts as lost
        /// with it, and it gets no other one before it joins again.
        #[serde(default)]
        flushed: u64,
        /// The UD queue key of the host's endpoint, from the answer to `join_host`: that it was the host who flushed. Looked at when `flushed` is not 0.
        #[serde(default)]
        qkey: u32,
    },
    /// A page request of a host is not answered for long: the region is taken back from everybody, and begins anew (MIND 4.4). Answer:
    /// [`Response::Done`], as soon as that has begun.
    Recover {
        /// The host that waits.
        host: u16,
        /// First byte of the page.
        page: u64,
    },
    /// The owner takes pages whose bytes were lost as they are now: the old bytes of those whose latest ones died with a host, zeros of those
    /// whose node started again. Whatever else was lost of them by then is accepted too. Answer: [`Response::Done`].
    AcceptLost {
        /// The owner.
        domain: u32,
        /// First byte, in one vma of the owner; at a page.
        base: u64,
        /// Bytes, at least 1, in the same vma.
        len: u64,
    },
    /// Opens a named object of a domain: memory that hosts find by a name. Answer: [`Response::Object`].
    OpenObject {
        /// The host, which has it open from now on.
        host: u16,
        /// The domain whose names these are.
        domain: u32,
        /// 1 to 255 bytes without `/` and control characters.
        name: String,
        /// Makes it when there is none, with no memory.
        #[serde(default)]
        create: bool,
        /// With `create`: refuses one that is there.
        #[serde(default)]
        exclusive: bool,
    },
    /// Opens an object by its number, whether or not it still has a name. Answer: [`Response::Object`].
    HoldObject {
        /// The host.
        host: u16,
        /// The object.
        object: u64,
    },
    /// Sets an object's length. At first that allocates its vma; later it may grow within it. Answer: [`Response::Object`].
    ResizeObject {
        /// The host, which has it open.
        host: u16,
        /// The object.
        object: u64,
        /// Bytes, at least 1.
        length: u64,
    },
    /// Takes an object's name away. Who has it open keeps it. Answer: [`Response::Done`].
    UnlinkObject {
        /// The domain.
        domain: u32,
        /// The name.
        name: String,
    },
    /// The host has an object open no more. Answer: [`Response::Done`].
    DropObject {
        /// The host.
        host: u16,
        /// The object.
        object: u64,
    },
    /// Moves a part of a vma to another node while it is used (MIND 4.1). Answer: [`Response::Done`], when it is there.
    Migrate {
        /// Its owner; without one nobody is asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        domain: Option<u32>,
        /// First byte; a multiple of `len`.
        base: u64,
        /// Bytes: a power of two of at least 4096, in one vma.
        len: u64,
        /// Where to.
        node: u16,
    },
    /// Which node has what of the vma that holds an address. Answer: [`Response::Located`].
    Locate {
        /// The address.
        addr: u64,
    },
    /// Who is there and what is allocated. Answer: [`Response::Overview`].
    Overview,
}

/// Says with [`Request::Renew`] that a host holds nothing any more, and asks for nothing any more.
pub const GIVEN_UP: u64 = u64::MAX;

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
    /// Slots there are; 0 when nobody has cached pages yet.
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
    /// Leases that ended without being given up: the host died, left or joined again with pages, or was not heard of for too long.
    pub lapses: u64,
    /// Leases that hosts gave up before they left, with everything that they had ([`GIVEN_UP`]).
    pub leaves: u64,
    /// Pages that hosts gave up although nobody had asked for them.
    pub false_invalidations: u64,
    /// False invalidations of a region in an epoch above which it is split.
    pub threshold: u64,
    /// Pages whose latest bytes died with a host.
    pub lost_pages: u64,
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Response {
    /// To a node's join.
    NodeJoined {
        /// Its number.
        node: u16,
        /// Its own endpoint.
        home: Endpoint,
        /// The control plane's.
        control: Endpoint,
        /// First address of its range.
        base: u64,
        /// Bytes of its range that have memory behind them.
        capacity: u64,
    },
    /// To a host's join.
    HostJoined {
        /// Its number.
        host: u16,
        /// How often it started; part of its request ids.
        generation: u16,
        /// Its own endpoint.
        home: Endpoint,
        /// The nodes of the rack.
        nodes: Vec<NodeInfo>,
    },
    /// To the switch's join.
    Joined {
        /// Its own endpoint.
        home: Endpoint,
        /// The control plane's.
        control: Endpoint,
    },
    /// A session.
    Session {
        /// The switch's endpoint for it.
        switch: Endpoint,
        /// The domain its requests are in.
        domain: u32,
    },
    /// A connection.
    Connection {
        /// The node.
        node: NodeInfo,
        /// The host's queue pair.
        qpn: u32,
        /// The node's queue pair.
        peer_qpn: u32,
        /// The PSN of the host's first request.
        first_psn: u32,
        /// The key its requests show.
        rkey: u32,
        /// Path MTU in bytes.
        pmtu: u16,
    },
    /// A vma.
    Vma(VmaInfo),
    /// Where a vma is.
    Located {
        /// The vma, with the node that its addresses belong to.
        vma: VmaInfo,
        /// Parts of it that are at other nodes.
        moved: Vec<MovedInfo>,
        /// Parts of it whose bytes were lost with an earlier incarnation of their node, and not accepted since.
        #[serde(default)]
        lost: Vec<LostInfo>,
    },
    /// Who is there and what is allocated.
    Overview {
        /// Memory nodes.
        nodes: Vec<NodeInfo>,
        /// Hosts.
        hosts: Vec<HostInfo>,
        /// Allocations.
        vmas: Vec<VmaInfo>,
        /// Parts of them that were moved to other nodes.
        #[serde(default)]
        moved: Vec<MovedInfo>,
        /// Domains, by number and name.
        domains: Vec<(u32, String)>,
        /// How evenly the nodes are allocated: Jain's index in millionths.
        balance_ppm: u32,
        /// True when the switch has joined.
        switch: bool,
        /// The switch's directory of pages that hosts cache.
        #[serde(default)]
        directory: DirectoryInfo,
    },
    /// A process.
    Process {
        /// Its number.
        process: u32,
        /// Where the heap of its address space begins; 0 when it has none.
        heap: u64,
    },
    /// What a memory system call returns, as from the kernel: a value, or a negative error number.
    Returned {
        /// The value.
        value: i64,
    },
    /// A lease.
    Lease {
        /// For so long, from when the request was sent, the host may use what it caches. 0: not yet, ask again in a moment.
        lease_ms: u64,
        /// The newest order to give everything up; 0 when none was given. A host that has obeyed less writes back what is Modified, takes
        /// all pages from its programs, and says so with its next renewal.
        flush: u64,
    },
    /// A named object.
    Object {
        /// Its number.
        object: u64,
        /// Bytes, as its users set it; 0 at first.
        length: u64,
        /// The first byte of its vma; 0 when it has none yet.
        base: u64,
        /// Bytes of its vma.
        size: u64,
    },
    /// A domain.
    Domain {
        /// Its number.
        domain: u32,
    },
    /// Done, nothing to tell.
    Done {},
}

/// Why a request was refused: a code for programs, a message and a remedy for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApiError {
    /// For programs; frozen.
    pub code: ErrorCode,
    /// What was wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

/// The kinds of refusal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// A field has a value that means nothing, or is missing.
    BadRequest,
    /// No such request.
    UnknownRequest,
    /// No such node, host, domain, connection, vma or object.
    NotFound,
    /// The name or address is taken by something else.
    Conflict,
    /// The domain does not own it.
    NotOwner,
    /// No node has that much memory free in one piece.
    OutOfMemory,
    /// A table of the switch or a node is full; nothing was changed.
    TableFull,
    /// A role that is needed has not joined, or does not answer.
    Unavailable,
    /// The request did not arrive as a whole in the time there is for it.
    TooSlow,
    /// The caller did not show the rack's token.
    Unauthorized,
    /// The log does not take the change now; the message says what becomes of it.
    Storage,
}
