//! The requests: for each its name in the path, its type, what answers it, and its fields.

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

/// Makes a type of each request, and one of all: a request without a name, an answer or a handler does not compile.
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
            /// The names that `POST /v1/NAME` knows, in the order of PROTOCOL 8.51.
            pub const NAMES: &[&str] = &[$($name),*];

            /// Its name in the path.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$call(_) => $name,)* }
            }
        }
    };
}

calls! {
    /// The switch starts, or starts again with empty tables.
    "join_switch" JoinSwitch -> SwitchJoined {
        /// Its address.
        gid: String,
    }

    /// A memory node starts, with empty memory. The same name again is the same node started again: what it held is lost.
    "join_node" JoinNode -> NodeJoined {
        /// Its name, unique in the rack.
        name: String,
        /// Its address.
        gid: String,
        /// Bytes of memory it has; a multiple of 4096.
        capacity: u64,
        /// The number of its UD queue pair, where a card gave it: 2 to 2^24 - 2, and `qkey` with it. Drawn for it otherwise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        qpn: Option<u32>,
        /// The Q_Key of that queue pair: not 0, and below 2^31.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        qkey: Option<u32>,
        /// It is memory that a card registered, with an agent that is told of it; needs `qpn` and `qkey` (PROTOCOL 14.12).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        card: Option<CardMemory>,
    }

    /// A switch of the index starts, or starts again with empty tables: the same name is the same switch.
    "join_index" JoinIndex -> IndexJoined {
        /// Its name, unique in the rack.
        name: String,
        /// Its address.
        gid: String,
        /// Where in the FatTree it is.
        tier: Tier,
        /// The names of those below it, which may join later: of the core the aggregation switches, of one of these its edge switches, of an edge
        /// switch memory nodes. None is below two.
        below: Vec<String>,
    }

    /// A host starts. The same name again is the same host with the next generation.
    "join_host" JoinHost -> HostJoined {
        /// Its name, unique in the rack.
        name: String,
        /// Its address.
        gid: String,
        /// The number of its UD queue pair, where a card gave it: 2 to 2^24 - 2, and `qkey` with it. Drawn for it otherwise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        qpn: Option<u32>,
        /// The Q_Key of that queue pair: not 0, and below 2^31, as verbs let no user have others (PROTOCOL 14.4).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        qkey: Option<u32>,
        /// True: it is going to cache pages, and has one of the numbers below 256 (PROTOCOL 12.3). False: it is not, and leaves these to others.
        /// Without it, the lowest number that is free.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        caches: Option<bool>,
    }

    /// A host says that it is there, whether it caches pages or not: one that is not heard of is taken out of the rack (PROTOCOL 8.61). [`Renew`]
    /// says so too.
    "stay" Stay -> LeaseInfo {
        /// The host.
        host: u16,
        /// How often it started.
        generation: u16,
    }

    /// A node or host leaves: its sessions, connections and, for a node, its memory go with it. A node with allocations is refused.
    "leave" Leave -> () {
        /// Its port.
        port: u32,
        /// Of a host: only when it is in this generation. Whoever takes a host that hangs out of the rack does not hit its next life so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<u16>,
    }

    /// A host carries out WRITEs of another one from now on, or does not any more: the DPU beside a host. Whoever takes that host out of the rack has to take out those that
    /// act for it as well (PROTOCOL 8.59).
    "act_for" ActFor -> () {
        /// Who carries them out.
        host: u16,
        /// How often that host started.
        generation: u16,
        /// Whose WRITEs they are.
        of_host: u16,
        /// How often that one started.
        of_generation: u16,
        /// It begins, or it has ended: nothing of it is under way any more.
        begins: bool,
    }

    /// Makes a protection domain, or finds the one of this name.
    "create_domain" CreateDomain -> DomainInfo {
        /// Its name.
        name: String,
    }

    /// Opens a session: UD messages of `host` through the switch, in `domain`.
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
        /// The host's queue pair, where a card gave it its number: 2 to 2^24 - 2, no other of this host. Drawn for it otherwise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        qpn: Option<u32>,
        /// The PSN of the host's first request, where the host has one already; below 2^24. Drawn for it otherwise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first_psn: Option<u32>,
        /// True for a connection whose packets go through the switch (PROTOCOL 15.1).
        #[serde(default)]
        through: bool,
        /// Of one through the switch: the root of the tree that keyed READs mean; without it they mean none (PROTOCOL 15.5).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        root: Option<u64>,
    }

    /// Takes a connection down (the host's queue pair number names it).
    "disconnect" Disconnect -> () {
        /// The host.
        host: u16,
        /// The host's queue pair.
        qpn: u32,
    }

    /// Allocates a vma: at least `size` bytes, rounded up to a power of two of at least 4096 and aligned to it, zeroed, on the node with
    /// the least allocated, first fit (MIND 4.1); the domain may read and write it.
    "allocate" Allocate -> VmaInfo {
        /// Its owner.
        domain: u32,
        /// Bytes, at least 1.
        size: u64,
        /// On this node and no other.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<u16>,
        /// It stays when no host has a session or a connection in the domain any more; otherwise it is freed then (PROTOCOL 8.62).
        #[serde(default, skip_serializing_if = "is_false")]
        durable: bool,
    }

    /// Frees a vma. May be repeated when the answer did not come: [`ErrorCode::NotFound`] says that this allocation
    /// is no more, whatever has its addresses by then.
    "free" Free -> () {
        /// Its owner.
        domain: u32,
        /// Its first byte.
        base: u64,
        /// Which allocation it is: [`VmaInfo::id`].
        id: u64,
    }

    /// The owner lets another domain use a part of a vma.
    "grant" Grant -> () {
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
    }

    /// A process begins. All processes of a domain, on whatever hosts, have one address space, which begins with the first of them and
    /// is given back with the last.
    "process_start" ProcessStart -> ProcessInfo {
        /// Its protection domain.
        domain: u32,
        /// Most bytes of the heap that `brk` moves in; only the first process of a domain is asked.
        #[serde(default)]
        heap: u64,
    }

    /// A process ends.
    "process_exit" ProcessExit -> () {
        /// The process.
        process: u32,
    }

    /// As mmap(2), anonymous: zeroed memory.
    "mmap" Mmap -> Returned {
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
    }

    /// As munmap(2).
    "munmap" Munmap -> Returned {
        /// The process.
        process: u32,
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
    }

    /// As mprotect(2).
    "mprotect" Mprotect -> Returned {
        /// The process.
        process: u32,
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u64,
        /// PROT_READ 1, PROT_WRITE 2.
        prot: u32,
    }

    /// As the system call brk(2): answers where the heap ends afterwards, moved or not.
    "brk" Brk -> Returned {
        /// The process.
        process: u32,
        /// Where it shall end.
        addr: u64,
    }

    /// A host that caches pages begins its lease, or renews it.
    "renew" Renew -> LeaseInfo {
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
    }

    /// Takes a region back from all hosts and begins it anew, because a page request of `host` was not answered for long (MIND 4.4). The answer
    /// comes as soon as that has begun.
    "recover" Recover -> () {
        /// The host that waits.
        host: u16,
        /// First byte of the page.
        page: u64,
    }

    /// The owner takes pages whose bytes were lost as they are now: the old bytes of those whose latest ones died with a host, zeros of those
    /// whose node started again. Whatever else was lost of them by then is accepted too.
    "accept_lost" AcceptLost -> () {
        /// The owner.
        domain: u32,
        /// First byte, in one vma of the owner; at a page.
        base: u64,
        /// Bytes, at least 1, in the same vma.
        len: u64,
    }

    /// Opens a named object of a domain: memory that hosts find by a name.
    "open_object" OpenObject -> ObjectInfo {
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
        /// How the host has it open (PROTOCOL 8.53).
        #[serde(default, skip_serializing_if = "OpenMode::is_shared")]
        mode: OpenMode,
    }

    /// Opens an object by its number, whether or not it still has a name.
    "hold_object" HoldObject -> ObjectInfo {
        /// The host.
        host: u16,
        /// The object.
        object: u64,
        /// How the host has it open (PROTOCOL 8.53).
        #[serde(default, skip_serializing_if = "OpenMode::is_shared")]
        mode: OpenMode,
    }

    /// Sets an object's length. At first that allocates its vma; later it may grow within it.
    "resize_object" ResizeObject -> ObjectInfo {
        /// The host, which has it open.
        host: u16,
        /// The object.
        object: u64,
        /// Bytes, at least 1.
        length: u64,
    }

    /// Takes an object's name away. Hosts that have it open keep it.
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

    /// Asks who has a named object open, and how. Whoever takes the place of a host that has one to itself names that host's life so (PROTOCOL 8.58).
    "show_object" ShowObject -> ObjectShown {
        /// The domain whose names these are.
        domain: u32,
        /// The name.
        name: String,
    }

    /// Asks how long a file of a memory node is.
    "look_file" LookFile -> FileLooked {
        /// The node.
        node: u16,
        /// Its name: a path from the node's directory of files on (PROTOCOL 20.1).
        file: String,
    }

    /// Gives an object without memory the bytes of a file, which its node loads; the answer comes when that has begun. One that could not be loaded is
    /// loaded anew.
    "load_object" LoadObject -> ObjectListed {
        /// The host, which has it open to read or to write.
        host: u16,
        /// The object.
        object: u64,
        /// The node.
        node: u16,
        /// The file.
        file: String,
        /// Bytes of the file, as the answer to `look_file` has them.
        length: u64,
        /// The file's bytes are taken for what was written and lost before it was saved.
        #[serde(default)]
        accept: bool,
    }

    /// Has the bytes of an object by file written to its file; the answer comes when that has begun. Its host may only read it from then on.
    "save_object" SaveObject -> ObjectListed {
        /// The host, which has it open.
        host: u16,
        /// The object.
        object: u64,
    }

    /// Asks what the named objects are, and how far nodes are with those by file.
    "list_objects" ListObjects -> ObjectsListed {
        /// Of this domain; without one, of all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        domain: Option<u32>,
    }

    /// Moves a part of a vma to another node while it is used (MIND 4.1). The answer comes when it is there.
    "migrate" Migrate -> () {
        /// Its owner; without one, ownership is not checked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        domain: Option<u32>,
        /// First byte; a multiple of `len`.
        base: u64,
        /// Bytes: a power of two of at least 4096, in one vma.
        len: u64,
        /// Where to.
        node: u16,
    }

    /// Asks which node has what of the vma that holds an address.
    "locate" Locate -> LocatedVma {
        /// The address.
        addr: u64,
    }

    /// Publishes sections of a domain: they stand at the switch beside those of others, and in the place of those of the same kind and id. The answer
    /// comes when they do. May be repeated when the answer did not come: what stands is not loaded again (PROTOCOL 13.10).
    "soft_load" SoftLoad -> SoftLoaded {
        /// The host that publishes; it has a session in the domain, and what it published goes with that.
        host: u16,
        /// Whose they are: a tree's are for the traversals of this domain.
        domain: u32,
        /// In any order; at least one.
        sections: Vec<SoftSection>,
        /// The switch of the index that they are for; none: the rack's switch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        switch: Option<u16>,
    }

    /// Asks the switch which image stands, and what is loading.
    "soft_show" SoftShow -> SoftShown {
        /// A switch of the index; none: the rack's switch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        switch: Option<u16>,
    }

    /// Withdraws sections of a domain. Those of others stay. The answer comes when they do not stand any more.
    "soft_clear" SoftClear -> () {
        /// Whose they are.
        domain: u32,
        /// Which; all of the domain when none is named. What is not published is withdrawn already.
        #[serde(default)]
        sections: Vec<SoftName>,
        /// From which switch of the index; none: from the rack's switch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        switch: Option<u16>,
    }

    /// Asks for a section that a domain has published, whether or not it stands.
    "soft_read" SoftRead -> SoftSection {
        /// Whose it is.
        domain: u32,
        /// Its kind.
        kind: u16,
        /// Which one of that kind.
        id: u64,
        /// For which switch of the index; none: for the rack's switch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        switch: Option<u16>,
    }

    /// Asks the switch how often the branches of a section's tables were taken, since its image stands (PROTOCOL 13.17).
    "soft_counts" SoftCounts -> SoftCounted {
        /// Whose it is.
        domain: u32,
        /// Its kind.
        kind: u16,
        /// Which one of that kind.
        id: u64,
        /// For which switch of the index; none: for the rack's switch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        switch: Option<u16>,
    }

    /// Asks who has what: hosts, domains, allocations, and the time that is left to each.
    "usage" Usage -> RackUsage {
    }

    /// Asks for the members of the rack and its allocations.
    "overview" Overview -> RackOverview {
    }
}

/// Memory that a card registered, of one domain: verbs alone reach it (PROTOCOL 14.12 to 14.19).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardMemory {
    /// The domain whose memory it is, all of it.
    pub domain: u32,
    /// Its first address, as registered: a multiple of the capacity, rounded up to a power of two; where no other node's range is.
    pub base: u64,
    /// The key that the card gave for it; not 0.
    pub rkey: u32,
    /// The numbers of the RC queue pairs that the agent has ready, one for each connection: 1 to 1024.
    pub queue_pairs: Vec<u32>,
}

/// What a section of a domain is found by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoftName {
    /// What its bytes are.
    pub kind: u16,
    /// Which one of that kind; that of a tree is its root.
    pub id: u64,
}

/// A section of an image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoftSection {
    /// What its bytes are.
    pub kind: u16,
    /// Which one of that kind; no two sections of a domain have the same kind and id. That of a tree is its root.
    pub id: u64,
    /// Its bytes.
    pub bytes: Base64,
}
