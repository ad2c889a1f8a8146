//! The requests: for each its name in the path, its type, its answer, and its fields.

use super::{
    Base64, Call, ConnectionInfo, DomainInfo, FileLooked, HostJoined, IndexJoined, LeaseInfo, LocatedVma,
    NodeJoined, ObjectInfo, ObjectListed, ObjectShown, ObjectsListed, OpenMode, PermName, ProcessInfo,
    RackOverview, RackUsage, Returned, SessionInfo, SoftCounted, SoftLoaded, SoftShown, SwitchJoined, Tier,
    VmaInfo,
};
#[cfg(doc)]
use super::{ErrorCode, GIVEN_UP};
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// Defines a type for each request, and an enum of all: a request without a name, an answer or a handler does
/// not compile.
macro_rules! calls {
    ($($(#[$about:meta])* $name:literal $call:ident -> $answer:ty {
        $($(#[$field_about:meta])* $field:ident: $type:ty,)*
    })*) => {
        $($(#[$about])*
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $call {
            $($(#[$field_about])* pub $field: $type,)*
        }

        impl From<$call> for Request {
            fn from(call: $call) -> Self {
                Self::$call(call)
            }
        }

        impl Call for $call {
            type Answer = $answer;
        })*

        /// Any request.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[serde(tag = "op")]
        pub enum Request {
            $(#[doc = concat!("`", $name, "`")] #[serde(rename = $name)] $call($call),)*
        }

        impl Request {
            /// The names that `POST /v1/NAME` accepts, in the order of PROTOCOL 8.51.
            pub const NAMES: &[&str] = &[$($name),*];

            /// Returns the request's name in the path.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$call(_) => $name,)* }
            }
        }
    };
}

calls! {
    /// Joins the switch at its start, or at a restart with empty tables.
    "join_switch" JoinSwitch -> SwitchJoined {
        /// The switch's address.
        gid: String,
    }

    /// Joins a memory node at its start, with empty memory. A known name means a restart of that node: its
    /// contents are lost.
    "join_node" JoinNode -> NodeJoined {
        /// The node's name, unique in the rack.
        name: String,
        /// The node's address.
        gid: String,
        /// Length of its memory in bytes, a multiple of 4096.
        capacity: u64,
        /// The number of its UD queue pair, if a card assigned it: 2 to 2^24 - 2, together with `qkey`.
        /// Otherwise the control plane assigns one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        qpn: Option<u32>,
        /// The Q_Key of that queue pair: not 0, and below 2^31.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        qkey: Option<u32>,
        /// Memory that a card registered, with an agent that receives updates; requires `qpn` and `qkey`
        /// (PROTOCOL 14.12).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        card: Option<CardMemory>,
    }

    /// Joins an index switch at its start, or at a restart with empty tables. A known name means a restart.
    "join_index" JoinIndex -> IndexJoined {
        /// The switch's name, unique in the rack.
        name: String,
        /// The switch's address.
        gid: String,
        /// The switch's tier in the FatTree.
        tier: Tier,
        /// The names of the members below it, which may join later: for the core the aggregation switches,
        /// for these their edge switches, for an edge switch memory nodes. No member is below two switches.
        below: Vec<String>,
    }

    /// Joins a host at its start. A known name means the next generation of that host.
    "join_host" JoinHost -> HostJoined {
        /// The host's name, unique in the rack.
        name: String,
        /// The host's address.
        gid: String,
        /// The number of its UD queue pair, if a card assigned it: 2 to 2^24 - 2, together with `qkey`.
        /// Otherwise the control plane assigns one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        qpn: Option<u32>,
        /// The Q_Key of that queue pair: not 0, and below 2^31, because verbs reserve the others (PROTOCOL
        /// 14.4).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        qkey: Option<u32>,
        /// True for a host that will cache pages and needs a number below 256 (PROTOCOL 12.3). False for one
        /// that will not and leaves these numbers to others. Without it the host gets the lowest free number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        caches: Option<bool>,
    }

    /// Reports that a host is alive, whether it caches pages or not. A host that does not report is removed
    /// from the rack (PROTOCOL 8.61). [`Renew`] reports it too.
    "stay" Stay -> LeaseInfo {
        /// The host.
        host: u16,
        /// Number of its current start.
        generation: u16,
    }

    /// Removes a node or host from the rack, with its sessions, connections and, for a node, its memory. A
    /// node with allocations is refused.
    "leave" Leave -> () {
        /// The member's port.
        port: u32,
        /// For a host: the only generation to remove. This protects a new incarnation when a hanging host is
        /// removed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<u16>,
    }

    /// Records that a host begins or ends to execute WRITEs of another one: the DPU beside a host. A removal
    /// of that host must remove the hosts that act for it as well (PROTOCOL 8.59).
    "act_for" ActFor -> () {
        /// The host that executes them.
        host: u16,
        /// Number of its current start.
        generation: u16,
        /// The host whose WRITEs they are.
        of_host: u16,
        /// Number of that host's start.
        of_generation: u16,
        /// True for the begin, false for the end, when nothing of it is in flight any more.
        begins: bool,
    }

    /// Creates a protection domain, or finds the one with this name.
    "create_domain" CreateDomain -> DomainInfo {
        /// The domain's name.
        name: String,
    }

    /// Opens a session for the UD messages of `host` through the switch, in `domain`.
    "open_session" OpenSession -> SessionInfo {
        /// The host.
        host: u16,
        /// The domain.
        domain: u32,
    }

    /// Sets up an RC connection from `host` to `node`, in `domain`.
    "connect" Connect -> ConnectionInfo {
        /// The host.
        host: u16,
        /// The memory node.
        node: u16,
        /// The domain.
        domain: u32,
        /// The host's queue pair, if a card assigned the number: 2 to 2^24 - 2, unique at this host.
        /// Otherwise the control plane assigns one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        qpn: Option<u32>,
        /// The PSN of the host's first request, if the host has chosen one; below 2^24. Otherwise the control
        /// plane chooses.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first_psn: Option<u32>,
        /// True for a connection whose packets go through the switch (PROTOCOL 15.1).
        #[serde(default)]
        through: bool,
        /// For one through the switch: the root of the tree that keyed READs search. Without it they search
        /// none (PROTOCOL 15.5).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        root: Option<u64>,
    }

    /// Destroys a connection, named by the host's queue pair.
    "disconnect" Disconnect -> () {
        /// The host.
        host: u16,
        /// The host's queue pair.
        qpn: u32,
    }

    /// Allocates a zeroed vma of at least `size` bytes, rounded up to a power of two of at least 4096 and
    /// aligned to it. The vma is placed on the node with the least allocated bytes, first fit (MIND 4.1). The
    /// domain may read and write it.
    "allocate" Allocate -> VmaInfo {
        /// The owner's domain.
        domain: u32,
        /// Length in bytes, at least 1.
        size: u64,
        /// Restricts the allocation to this node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<u16>,
        /// True if the vma outlives the domain's last session and connection; otherwise it is freed then
        /// (PROTOCOL 8.62).
        #[serde(default, skip_serializing_if = "is_false")]
        durable: bool,
    }

    /// Frees a vma. May be repeated if the answer did not arrive: [`ErrorCode::NotFound`] means that this
    /// allocation no longer exists, whatever has its addresses by then.
    "free" Free -> () {
        /// The owner's domain.
        domain: u32,
        /// First byte.
        base: u64,
        /// The allocation's number: [`VmaInfo::id`].
        id: u64,
    }

    /// Grants another domain access to a part of a vma.
    "grant" Grant -> () {
        /// The owner's domain.
        domain: u32,
        /// First byte, in one vma of the owner.
        base: u64,
        /// Length in bytes, at least 1, in the same vma.
        len: u64,
        /// The domain that gets access.
        to: u32,
        /// `none` (revokes a grant), `read` or `read_write`.
        perm: PermName,
    }

    /// Starts a process. All processes of a domain, on any host, share one address space, which exists from
    /// the first to the last of them.
    "process_start" ProcessStart -> ProcessInfo {
        /// The process's protection domain.
        domain: u32,
        /// Maximum heap length in bytes for `brk`; only the first process of a domain sets it.
        #[serde(default)]
        heap: u64,
    }

    /// Ends a process.
    "process_exit" ProcessExit -> () {
        /// The process.
        process: u32,
    }

    /// Maps zeroed anonymous memory, as mmap(2).
    "mmap" Mmap -> Returned {
        /// The process.
        process: u32,
        /// The address; a hint without MAP_FIXED (0x10) or MAP_FIXED_NOREPLACE (0x100000).
        #[serde(default)]
        addr: u64,
        /// Length in bytes.
        len: u64,
        /// PROT_READ 1, PROT_WRITE 2.
        prot: u32,
        /// Flags as in Linux on x86-64.
        #[serde(default)]
        flags: u32,
    }

    /// Unmaps memory, as munmap(2).
    "munmap" Munmap -> Returned {
        /// The process.
        process: u32,
        /// First byte.
        addr: u64,
        /// Length in bytes.
        len: u64,
    }

    /// Changes the protection of memory, as mprotect(2).
    "mprotect" Mprotect -> Returned {
        /// The process.
        process: u32,
        /// First byte.
        addr: u64,
        /// Length in bytes.
        len: u64,
        /// PROT_READ 1, PROT_WRITE 2.
        prot: u32,
    }

    /// Moves the end of the heap, as the system call brk(2). Returns the end of the heap, moved or not.
    "brk" Brk -> Returned {
        /// The process.
        process: u32,
        /// The requested end.
        addr: u64,
    }

    /// Begins or renews the lease of a host that caches pages.
    "renew" Renew -> LeaseInfo {
        /// The host.
        host: u16,
        /// Number of its current start.
        generation: u16,
        /// The largest flush order that the host has obeyed; 0 if none came yet. A number that was never
        /// given is refused. [`GIVEN_UP`] means that the host has given everything up for good because it is
        /// about to leave: its lease ends at once, no page counts as lost, and it gets no other lease before
        /// it rejoins.
        #[serde(default)]
        flushed: u64,
        /// The UD queue key of the host's endpoint, from the answer to `join_host`, as proof that the host
        /// itself flushed. Checked if `flushed` is not 0.
        #[serde(default)]
        qkey: u32,
    }

    /// Resets a region, taking it from all hosts, because a page request of `host` had no answer for long
    /// (MIND 4.4). The answer comes as soon as the reset has begun.
    "recover" Recover -> () {
        /// The host that waits.
        host: u16,
        /// First byte of the page.
        page: u64,
    }

    /// Accepts lost pages as they are now: the old bytes of pages whose latest ones died with a host, and
    /// zeros in pages whose node restarted. Everything else of them that was lost by then is accepted too.
    "accept_lost" AcceptLost -> () {
        /// The owner's domain.
        domain: u32,
        /// First byte, page-aligned, in one vma of the owner.
        base: u64,
        /// Length in bytes, at least 1, in the same vma.
        len: u64,
    }

    /// Opens a named object of a domain: memory that hosts find by a name.
    "open_object" OpenObject -> ObjectInfo {
        /// The host that opens the object.
        host: u16,
        /// The domain of the name.
        domain: u32,
        /// The name: 1 to 255 bytes without `/` and control characters.
        name: String,
        /// True to create the object, without memory, if it does not exist.
        #[serde(default)]
        create: bool,
        /// With `create`: true to fail if the object exists.
        #[serde(default)]
        exclusive: bool,
        /// The mode (PROTOCOL 8.53).
        #[serde(default, skip_serializing_if = "OpenMode::is_shared")]
        mode: OpenMode,
    }

    /// Opens an object by its number, with or without a name.
    "hold_object" HoldObject -> ObjectInfo {
        /// The host.
        host: u16,
        /// The object.
        object: u64,
        /// The mode (PROTOCOL 8.53).
        #[serde(default, skip_serializing_if = "OpenMode::is_shared")]
        mode: OpenMode,
    }

    /// Sets an object's length. The first call allocates its vma; later the length may grow within it.
    "resize_object" ResizeObject -> ObjectInfo {
        /// A host that has the object open.
        host: u16,
        /// The object.
        object: u64,
        /// Length in bytes, at least 1.
        length: u64,
    }

    /// Removes an object's name. Hosts that have the object open keep it.
    "unlink_object" UnlinkObject -> () {
        /// The domain.
        domain: u32,
        /// The name.
        name: String,
    }

    /// Closes an object for a host.
    "drop_object" DropObject -> () {
        /// The host.
        host: u16,
        /// The object.
        object: u64,
    }

    /// Returns the hosts that have a named object open, and the mode. A host that replaces an exclusive user
    /// identifies that user's incarnation this way (PROTOCOL 8.58).
    "show_object" ShowObject -> ObjectShown {
        /// The domain of the name.
        domain: u32,
        /// The name.
        name: String,
    }

    /// Returns the length of a file of a memory node.
    "look_file" LookFile -> FileLooked {
        /// The node.
        node: u16,
        /// The file's name: a path relative to the node's directory of files (PROTOCOL 20.1).
        file: String,
    }

    /// Gives an object without memory the bytes of a file, which its node loads. The answer comes when the
    /// load has begun. A failed load is repeated.
    "load_object" LoadObject -> ObjectListed {
        /// A host that has the object open to read or to write.
        host: u16,
        /// The object.
        object: u64,
        /// The node.
        node: u16,
        /// The file.
        file: String,
        /// Length of the file in bytes, from the answer to `look_file`.
        length: u64,
        /// True to accept the file's bytes in place of written bytes that were lost before they were saved.
        #[serde(default)]
        accept: bool,
    }

    /// Saves the bytes of an object to its file. The answer comes when the save has begun. From then on its
    /// host may only read it.
    "save_object" SaveObject -> ObjectListed {
        /// A host that has the object open.
        host: u16,
        /// The object.
        object: u64,
    }

    /// Returns the named objects, and the progress of nodes on those in files.
    "list_objects" ListObjects -> ObjectsListed {
        /// Only objects of this domain; without it all objects.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        domain: Option<u32>,
    }

    /// Moves a part of a vma to another node while in use (MIND 4.1). The answer comes when the move is
    /// complete.
    "migrate" Migrate -> () {
        /// The owner's domain; without it, ownership is not checked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        domain: Option<u32>,
        /// First byte; a multiple of `len`.
        base: u64,
        /// Length in bytes: a power of two of at least 4096, in one vma.
        len: u64,
        /// The target node.
        node: u16,
    }

    /// Returns the vma that holds an address, and the nodes that hold its parts.
    "locate" Locate -> LocatedVma {
        /// The address.
        addr: u64,
    }

    /// Publishes sections of a domain: they become active at the switch beside those of other domains, and
    /// replace those of the same kind and id. The answer comes when they are active. May be repeated if the
    /// answer did not arrive: active sections are not loaded again (PROTOCOL 13.10).
    "soft_load" SoftLoad -> SoftLoaded {
        /// The host that publishes, with a session in the domain; its sections are withdrawn with the
        /// session.
        host: u16,
        /// The domain of the sections: a tree's sections serve the traversals of this domain.
        domain: u32,
        /// At least one section, in any order.
        sections: Vec<SoftSection>,
        /// The index switch for the sections; without it the rack's switch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        switch: Option<u16>,
    }

    /// Returns the switch's active image, and the image being loaded.
    "soft_show" SoftShow -> SoftShown {
        /// An index switch; without it the rack's switch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        switch: Option<u16>,
    }

    /// Withdraws sections of a domain. Those of other domains stay. The answer comes when they are not active
    /// any more.
    "soft_clear" SoftClear -> () {
        /// The domain of the sections.
        domain: u32,
        /// The sections; all of the domain if empty. Unpublished ones count as withdrawn.
        #[serde(default)]
        sections: Vec<SoftName>,
        /// The index switch; without it the rack's switch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        switch: Option<u16>,
    }

    /// Returns a published section of a domain, active or not.
    "soft_read" SoftRead -> SoftSection {
        /// The domain of the section.
        domain: u32,
        /// Its kind.
        kind: u16,
        /// The id within the kind.
        id: u64,
        /// The index switch; without it the rack's switch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        switch: Option<u16>,
    }

    /// Returns the counters of a section's branches since its image is active (PROTOCOL 13.17).
    "soft_counts" SoftCounts -> SoftCounted {
        /// The domain of the section.
        domain: u32,
        /// Its kind.
        kind: u16,
        /// The id within the kind.
        id: u64,
        /// The index switch; without it the rack's switch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        switch: Option<u16>,
    }

    /// Returns the resources of hosts and domains, with the time left to each.
    "usage" Usage -> RackUsage {
    }

    /// Returns the members of the rack and its allocations.
    "overview" Overview -> RackOverview {
    }
}

/// Memory that a card registered, of one domain: only verbs reach it (PROTOCOL 14.12 to 14.19).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardMemory {
    /// The domain that owns all of the memory.
    pub domain: u32,
    /// First address, as registered: a multiple of the capacity rounded up to a power of two, outside of all
    /// other nodes' ranges.
    pub base: u64,
    /// The card's key for the memory; not 0.
    pub rkey: u32,
    /// The numbers of the RC queue pairs that the agent has prepared, one for each connection: 1 to 1024.
    pub queue_pairs: Vec<u32>,
}

/// The key of a section within a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoftName {
    /// The kind of its bytes.
    pub kind: u16,
    /// The id within the kind; for a tree its root.
    pub id: u64,
}

/// A section of an image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoftSection {
    /// The kind of its bytes.
    pub kind: u16,
    /// The id within the kind, unique within the domain; for a tree its root.
    pub id: u64,
    /// Its bytes.
    pub bytes: Base64,
}
