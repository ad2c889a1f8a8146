//! The log: the decisions of the control plane, line by line, in order (PROTOCOL 8.23).
//!
//! State changes only by applying a line, both live and after a restart, so the log rebuilds the state
//! exactly. There are two kinds of lines: *events*, written as things happen, and *rows*, which
//! [`Control::compact`](crate::Control::compact) writes in place of the events that led to them.

mod files;
mod moves;

pub(crate) use files::{FaultRow, FileEnd, FileRow, FileTurn};
pub(crate) use moves::{Migration, MigrationStep, Remap};

use crate::api::{CardMemory, OpenMode, PermName, Tier};
use crate::syscalls::Space;
use crate::updates::{LoggedUpdate, Queue};
use alloc::string::String;
use alloc::vec::Vec;
use farmem_machine::Port;
use farmem_transport::ud::Endpoint;
use farmem_wire::{Gid, NodeId, Perm, Qkey, Qpn, Status};
use serde::{Deserialize, Serialize};

/// One line of the log. The driver keeps lines in the order it got them and returns them at a restart. The
/// content of a line is private to this crate.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Record(pub(crate) Line);

/// The content of a line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Line {
    /// Row, and the first line of every log: the control plane's own endpoint.
    Home(Key),
    /// Row and event: a domain. No role needs to know it.
    Domain { domain: u32, name: String },
    /// Event: a domain without users and without resources is removed (PROTOCOL 8.60).
    DomainGone { domain: u32 },
    /// Row: the number of the next domain, if it is free.
    NextDomain(u32),
    /// Row and event: a named object as it is from now on, or none if it is removed.
    Object { object: u64, row: Option<ObjectRow> },
    /// Row: marks an object as one by file, and describes it.
    File { object: u64, row: FileRow },
    /// Event: a node reported the end of a load or a save.
    FileEnded { object: u64, task: u64, end: FileEnd },
    /// Row and event: the build that the member at a port named in its last join, or none if it named none.
    Build { port: u32, build: Option<String> },
    /// Event: a change begins, and its updates join the queues.
    Began { change: u64, what: ChangeKind },
    /// Event: a role answered the batch at the head of its queue.
    Answered { role: Role, seq: u64, refusal: Option<Refusal> },
    /// Event: a role did not answer for so long that no change waits for it any more.
    Silent { role: Role },
    /// Event: an idle role is sent a harmless update, to see whether it answers.
    Probed { role: Role },
    /// Event: the control plane restarted. The callers of the changes in flight are gone.
    Restarted,
    /// Row: the counters that no other row contains.
    Counters {
        next_change: u64,
        switch_generation: u16,
        #[serde(default)]
        epoch: u64,
        #[serde(default)]
        directory: bool,
        #[serde(default)]
        switch_joined: bool,
    },
    /// Event: a migration enters its next step.
    Advanced { change: u64 },
    /// Event: a change is rolled back.
    GivenUp { change: u64, why: RollbackReason },
    /// Row: a part of a vma that is not where its addresses are.
    Piece { base: u64, row: PieceRow },
    /// Row: addresses whose bytes were lost with an earlier incarnation of their node.
    Lost { base: u64, len: u64 },
    /// Event: a host begins or stops to carry out WRITEs of another host's incarnation (PROTOCOL 8.59).
    Acts { host: u16, of: Incarnation, begins: bool },
    /// Event: nothing of the host's earlier incarnation is left anywhere, so the host may hold a lease again.
    Forgotten { host: u16 },
    /// Row: the address space of a domain, and its processes.
    Space { domain: u32, space: Space, processes: Vec<u32> },
    /// Row: the number of the next process.
    NextProcess(u32),
    /// Row: the switch.
    Switch(SwitchRow),
    /// Row: a memory node.
    Node { node: u16, row: NodeRow },
    /// Row: an index switch.
    Index { index: u16, row: IndexRow },
    /// Row: a host.
    Host { host: u16, row: HostRow },
    /// Row: a vma and its grants.
    Vma { base: u64, row: VmaRow },
    /// Row: a session.
    Session(SessionRow),
    /// Row: a connection.
    Connection(ConnectionRow),
    /// Row: the updates that a role has not answered.
    Queue { role: Role, queue: Queue },
    /// Row: a change that waits for answers.
    InFlight { change: u64, row: Change },
}

impl Line {
    /// Returns true for a row that is also written as an event.
    pub(crate) const fn is_both(&self) -> bool {
        matches!(self, Self::Domain { .. } | Self::Object { .. } | Self::Build { .. })
    }

    /// Returns true for an event, as opposed to a row.
    pub(crate) const fn is_event(&self) -> bool {
        matches!(
            self,
            Self::Began { .. }
                | Self::Answered { .. }
                | Self::Silent { .. }
                | Self::Probed { .. }
                | Self::Restarted
                | Self::Advanced { .. }
                | Self::GivenUp { .. }
                | Self::Acts { .. }
                | Self::Forgotten { .. }
                | Self::FileEnded { .. }
                | Self::DomainGone { .. }
        )
    }

    /// Returns true for an event in the life of a change, after which queues go on and changes may end.
    pub(crate) const fn settles(&self) -> bool {
        matches!(
            self,
            Self::Began { .. }
                | Self::Answered { .. }
                | Self::Silent { .. }
                | Self::Probed { .. }
                | Self::Restarted
                | Self::Advanced { .. }
                | Self::GivenUp { .. }
        )
    }
}

/// A role that gets updates from the control plane.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Role {
    /// The switch.
    Switch,
    /// A memory node.
    Node(u16),
    /// An index switch (PROTOCOL 16.1).
    Index(u16),
}

impl Role {
    /// Returns the port of the role.
    #[must_use]
    pub const fn port(self) -> Port {
        match self {
            Self::Switch => Port::SWITCH,
            Self::Node(node) => Port::node(node),
            Self::Index(index) => Port::index(index),
        }
    }

    /// Returns the role behind a port, if that role gets updates.
    #[must_use]
    pub const fn of(port: Port) -> Option<Self> {
        if port.0 == Port::SWITCH.0 {
            return Some(Self::Switch);
        }
        match (port.as_node(), port.as_index()) {
            (Some(node), _) => Some(Self::Node(node)),
            (None, Some(index)) => Some(Self::Index(index)),
            (None, None) => None,
        }
    }
}

/// A refused update: the status, and its index in the batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Refusal {
    /// A [`Status`] other than `Ok`.
    pub(crate) status: u8,
    /// Index in the batch.
    pub(crate) index: u16,
}

/// A UD endpoint, as a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Key {
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
}

impl Key {
    pub(crate) const fn endpoint(self) -> Endpoint {
        Endpoint { qpn: Qpn::new(self.qpn), qkey: Qkey(self.qkey) }
    }
}

/// A decided change, with every number and key that it assigns.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum ChangeKind {
    JoinSwitch {
        gid: [u8; 16],
        home: Key,
    },
    JoinNode {
        node: u16,
        name: String,
        gid: [u8; 16],
        home: Key,
        base: u64,
        size_log2: u8,
        capacity: u64,
        again: bool,
        #[serde(default)]
        card: Option<CardMemory>,
    },
    JoinHost {
        host: u16,
        name: String,
        gid: [u8; 16],
        home: Key,
        /// The number that the host of this name had until now, and gives up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<u16>,
    },
    JoinIndex {
        index: u16,
        row: IndexRow,
    },
    LeaveIndex {
        index: u16,
    },
    LeaveNode {
        node: u16,
        base: u64,
        size_log2: u8,
    },
    LeaveHost {
        host: u16,
    },
    OpenSession(SessionRow),
    Connect(ConnectionRow),
    Disconnect(ConnectionRow),
    Allocate {
        base: u64,
        size: u64,
        node: u16,
        domain: u32,
        /// Keep the allocation when its domain has no user. Allocations by earlier versions are kept.
        #[serde(default = "always")]
        durable: bool,
        /// Id of the named object that owns this memory, and its length after the change; `None` for unnamed memory.
        #[serde(default)]
        object: Option<(u64, u64)>,
        /// The file of the node whose bytes the object gets.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<String>,
        /// The parts whose memory is not behind their addresses, by first byte.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pieces: Vec<(u64, PieceRow)>,
    },
    Free {
        base: u64,
    },
    Grant {
        vma: u64,
        base: u64,
        len: u64,
        to: u32,
        perm: PermName,
    },
    Remap(Remap),
    /// Opens the directory under the numbers of an epoch.
    OpenDirectory {
        epoch: u64,
    },
    /// A host begins to cache pages.
    Live {
        host: u16,
        generation: u16,
    },
    /// Takes back what a host cached, without the host.
    Fence {
        host: u16,
        /// The generation in which the host gave up everything for good, or 0 if it did not.
        #[serde(default)]
        given_up: u16,
    },
    AcceptLost {
        vma: u64,
        base: u64,
        len: u64,
    },
    Migrate(Migration),
    /// Opens an object by file to write, or loads or saves it.
    TurnFile {
        object: u64,
        /// First byte of the object's vma.
        base: u64,
        turn: FileTurn,
    },
}

/// The switch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SwitchRow {
    pub(crate) gid: [u8; 16],
    pub(crate) home: Key,
    /// The change that joins the switch, until all roles know it.
    pub(crate) joining: Option<u64>,
}

/// An index switch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct IndexRow {
    pub(crate) name: String,
    pub(crate) gid: [u8; 16],
    pub(crate) home: Key,
    pub(crate) generation: u16,
    pub(crate) tier: Tier,
    /// The names of the members below: index switches or memory nodes.
    pub(crate) below: Vec<String>,
    /// The change of the first join, from which the key is derived.
    #[serde(default)]
    pub(crate) since: u64,
    /// The change that joins the index switch, until all roles know it.
    pub(crate) joining: Option<u64>,
}

/// A memory node. A node without a queue is *gone*: it must rejoin before it is told anything.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct NodeRow {
    pub(crate) name: String,
    pub(crate) gid: [u8; 16],
    pub(crate) home: Key,
    pub(crate) generation: u16,
    pub(crate) base: u64,
    pub(crate) size_log2: u8,
    pub(crate) capacity: u64,
    pub(crate) joining: Option<u64>,
    /// Set if the memory is registered by a card.
    #[serde(default)]
    pub(crate) card: Option<CardMemory>,
    /// The change of the first join, from which the key is derived.
    #[serde(default)]
    pub(crate) since: u64,
}

/// A host. The row stays when the host leaves, so that its number never names the same generation twice.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct HostRow {
    pub(crate) name: String,
    pub(crate) gid: [u8; 16],
    pub(crate) home: Key,
    pub(crate) generation: u16,
    pub(crate) present: bool,
    #[serde(default)]
    pub(crate) cache: Cache,
    /// The generation that the latest fence found to have given up everything for good, or 0 if it did not.
    /// None of that generation gets a lease again, and nothing is lost with it.
    #[serde(default)]
    pub(crate) given_up: u16,
    /// The change of the first join after an absence, from which the key is derived.
    #[serde(default)]
    pub(crate) since: u64,
    pub(crate) joining: Option<u64>,
    /// The incarnations of other hosts whose WRITEs this host carries out, ascending (PROTOCOL 8.59).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) acts_for: Vec<Incarnation>,
}

/// A host in one of its generations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Incarnation {
    pub(crate) host: u16,
    pub(crate) generation: u16,
}

/// Whether a host may hold pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) enum Cache {
    /// The host holds none.
    #[default]
    Empty,
    /// The host may, since this epoch of the switch. Its lease is renewed, or did not surely end.
    Live { since: u64 },
    /// The host left or restarted: no process renews the lease, which did not surely end.
    Orphaned,
    /// The lease surely ended, and the pages of the host are being taken back.
    Fenced,
}

/// A vma.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct VmaRow {
    /// Number of the allocation, which is never reused (PROTOCOL 8.47). 0 in logs from before these numbers.
    #[serde(default)]
    pub(crate) id: u64,
    pub(crate) size: u64,
    pub(crate) node: u16,
    pub(crate) domain: u32,
    /// Keep the allocation when its domain has no user. Allocations by earlier versions are kept.
    #[serde(default = "always")]
    pub(crate) durable: bool,
    /// The change that allocates the vma, until it is answered.
    pub(crate) pending: Option<u64>,
    /// Permissions of other domains, by domain.
    pub(crate) grants: Vec<(u32, Vec<Span>)>,
}

/// A named object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ObjectRow {
    pub(crate) domain: u32,
    /// The name, or none once the object was unlinked.
    pub(crate) name: Option<String>,
    /// Length in bytes, as its users set it, and 0 at first.
    pub(crate) length: u64,
    /// The first byte of the object's vma, once it has a length.
    pub(crate) base: Option<u64>,
    /// The hosts that have the object open, ascending.
    pub(crate) hosts: Vec<u16>,
    /// The mode in which all of them have it open. Lines of earlier versions have no mode and mean shared.
    #[serde(default, skip_serializing_if = "OpenMode::is_shared")]
    pub(crate) mode: OpenMode,
    /// The hosts that had the object open to write when they left or rejoined, and whose WRITEs a node may
    /// still accept, ascending (PROTOCOL 8.56).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ended: Vec<u16>,
}

/// A part of a vma that is not where its addresses are: at another node, or elsewhere in the memory of the
/// same node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PieceRow {
    /// Size in bytes, a power of two.
    pub(crate) size: u64,
    pub(crate) node: u16,
    /// The memory that the piece occupies, as addresses of its node. No vma uses these otherwise.
    pub(crate) place: u64,
}

/// A part of a vma that another domain may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Span {
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) perm: PermName,
}

/// A session: the switch's endpoint for a host and a domain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SessionRow {
    pub(crate) key: Key,
    pub(crate) host: u16,
    pub(crate) domain: u32,
}

/// An RC connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ConnectionRow {
    pub(crate) host: u16,
    pub(crate) node: u16,
    pub(crate) domain: u32,
    /// The host's queue pair.
    pub(crate) qpn: u32,
    /// The node's queue pair.
    pub(crate) peer_qpn: u32,
    pub(crate) first_psn: u32,
    pub(crate) rkey: u32,
    pub(crate) pmtu: u16,
    /// Set if the connection goes through the switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) through: Option<ThroughRow>,
}

/// Route of a connection through the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ThroughRow {
    /// The switch's queue pair to which the host sends.
    pub(crate) to_node: u32,
    /// The switch's queue pair to which the node sends.
    pub(crate) to_host: u32,
    /// The root of the tree that keyed READs mean, or 0 for none.
    pub(crate) root: u64,
}

impl ConnectionRow {
    /// Iterates over all queue pair numbers of the connection.
    pub(crate) fn qpns(&self) -> impl Iterator<Item = u32> + use<> {
        let virtual_ones = self.through.into_iter().flat_map(|through| [through.to_node, through.to_host]);
        [self.qpn, self.peer_qpn].into_iter().chain(virtual_ones)
    }

    /// Returns the key of the row: the host, and the host's queue pair.
    pub(crate) const fn key(&self) -> (u16, u32) {
        (self.host, self.qpn)
    }
}

/// A change in flight.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) what: ChangeKind,
    /// How many answers the change waits for, by role. There are no zeros.
    pub(crate) waits: Vec<(Role, u32)>,
    /// Updates that roll back those already applied, in the order in which they were applied.
    pub(crate) undo: Vec<(Role, Vec<LoggedUpdate>)>,
    /// First and last address of which the change takes rights away, until no host has pages there that it
    /// got by these rights.
    #[serde(default, rename = "vacates")]
    pub(crate) drains: Option<(u64, u64)>,
    /// Set when the change is being rolled back.
    pub(crate) failed: Option<RollbackReason>,
}

/// Why a change was rolled back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum RollbackReason {
    /// The role refused an update with this status.
    Refused { role: Role, status: u8 },
    /// The role does not answer.
    Silent { role: Role },
    /// The role joined or rejoined meanwhile, or its join failed. A retry may succeed.
    Joined { role: Role },
    /// The role refused a required update and must rejoin.
    Gone { role: Role },
    /// The host or node with this port left or restarted.
    Left { port: u32 },
    /// The control plane restarted.
    Restarted,
    /// Hosts did not give up the pages that were to move.
    Held,
}

/// Returns the permission class of this name.
pub(crate) const fn perm(name: PermName) -> Perm {
    match name {
        PermName::None => Perm::None,
        PermName::Read => Perm::Read,
        PermName::ReadWrite => Perm::ReadWrite,
    }
}

/// Returns the status with this number. An unknown one from a newer log counts as [`Status::Unsupported`].
pub(crate) fn status(bits: u8) -> Status {
    Status::from_bits(bits).unwrap_or(Status::Unsupported)
}

const fn always() -> bool {
    true
}

/// Formats a GID as answers show it.
pub(crate) fn gid_text(gid: [u8; 16]) -> String {
    alloc::format!("{:?}", Gid(gid))
}

/// Returns a node's number on the wire.
pub(crate) const fn node_id(node: u16) -> NodeId {
    NodeId(node)
}
