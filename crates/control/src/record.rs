//! The log: what the control plane decides, line by line, in the order it decides it (PROTOCOL 8.23).
//!
//! State changes only by applying a line, live as after a restart; that is why the log rebuilds the state exactly. Two kinds of
//! lines: *events*, written as things happen, and *rows*, which [`Control::compact`](crate::Control::compact) writes instead of
//! the events that led to them.

mod files;
mod moves;

use crate::api::{CardMemory, OpenMode, PermName, Tier};
use crate::syscalls::Space;
use crate::updates::Queue;
use alloc::string::String;
use alloc::vec::Vec;
use farmem_machine::Port;
use farmem_transport::ud::Endpoint;
use farmem_wire::message::{Update, Updates};
use farmem_wire::{Gid, NodeId, Perm, Qkey, Qpn, Status};
pub(crate) use files::{FaultRow, FileEnd, FileRow, FileTurn};
pub(crate) use moves::{Migration, MigrationStep, Remap};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One line of the log. The driver keeps lines in the order it got them and gives them back at a restart; what is in one is ours.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Record(pub(crate) Line);

/// What a line says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Line {
    /// Row, and the first line of every log: the control plane's own endpoint.
    Home(Key),
    /// Row and event: a domain. No role needs to know.
    Domain { domain: u32, name: String },
    /// Event: a domain that nobody uses and that has nothing is gone (PROTOCOL 8.60).
    DomainGone { domain: u32 },
    /// Row: the number that the next domain gets, if it is free.
    NextDomain(u32),
    /// Row and event: a named object as it is from now on; none: it is gone.
    Object { object: u64, row: Option<ObjectRow> },
    /// Row: that an object is by file, and what it is.
    File { object: u64, row: FileRow },
    /// Event: a node said what came of a load or a save.
    FileEnded { object: u64, task: u64, end: FileEnd },
    /// Row and event: which build the member at a port said to be when it joined last; none: it did not say.
    Build { port: u32, build: Option<String> },
    /// Event: a change begins; its updates join the queues.
    Began { change: u64, what: What },
    /// Event: a role answered the batch at the head of its queue.
    Answered { role: Role, seq: u64, refusal: Option<Refusal> },
    /// Event: a role did not answer for so long that no change waits for it any more.
    Silent { role: Role },
    /// Event: the control plane started again; those who had asked for the changes in flight are gone.
    Restarted,
    /// Row: the counters that no other row shows.
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
    /// Event: a migration goes on with its next step.
    Advanced { change: u64 },
    /// Event: a change is taken back because nothing came of it.
    GivenUp { change: u64, why: Why },
    /// Row: a part of a vma that is not where its addresses are.
    Piece { base: u64, row: PieceRow },
    /// Row: addresses whose bytes were lost with an earlier incarnation of their node.
    Lost { base: u64, len: u64 },
    /// Event: a host carries out WRITEs of another's life from now on, or does not any more (PROTOCOL 8.59).
    Acts { host: u16, of: Life, begins: bool },
    /// Event: nothing of the host's earlier life is left anywhere; it may hold a lease again.
    Forgotten { host: u16 },
    /// Row: the address space of a domain, and its processes.
    Space { domain: u32, space: Space, processes: Vec<u32> },
    /// Row: the number of the next process.
    NextProcess(u32),
    /// Row: the switch.
    Switch(SwitchRow),
    /// Row: a memory node.
    Node { node: u16, row: NodeRow },
    /// Row: a switch of the index.
    Index { index: u16, row: IndexRow },
    /// Row: a host.
    Host { host: u16, row: HostRow },
    /// Row: a vma and who may use it.
    Vma { base: u64, row: VmaRow },
    /// Row: a session.
    Session(SessionRow),
    /// Row: a connection.
    Connection(ConnectionRow),
    /// Row: the updates a role has not answered.
    Queue { role: Role, queue: Queue },
    /// Row: a change that waits for answers.
    InFlight { change: u64, row: Change },
}

impl Line {
    /// True for a row that is written as things happen, too.
    pub(crate) const fn is_both(&self) -> bool {
        matches!(self, Self::Domain { .. } | Self::Object { .. } | Self::Build { .. })
    }

    /// True for what happened, as against a row that says how things are.
    pub(crate) const fn is_event(&self) -> bool {
        matches!(
            self,
            Self::Began { .. }
                | Self::Answered { .. }
                | Self::Silent { .. }
                | Self::Restarted
                | Self::Advanced { .. }
                | Self::GivenUp { .. }
                | Self::Acts { .. }
                | Self::Forgotten { .. }
                | Self::FileEnded { .. }
                | Self::DomainGone { .. }
        )
    }
}

/// A role that the control plane tells things.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Role {
    /// The switch.
    Switch,
    /// A memory node.
    Node(u16),
    /// A switch of the index (PROTOCOL 16.1).
    Index(u16),
}

impl Role {
    /// Its port.
    #[must_use]
    pub const fn port(self) -> Port {
        match self {
            Self::Switch => Port::SWITCH,
            Self::Node(node) => Port::node(node),
            Self::Index(index) => Port::index(index),
        }
    }

    /// The role behind a port, if it is one that gets updates.
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

/// A refused update: the status, and which of the batch.
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

/// A decided change, with every number and key it hands out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum What {
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
        /// The number that the host of this name had until now, which it gives up.
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
        /// It stays when its domain has no user. What was allocated by earlier versions does.
        #[serde(default = "always")]
        durable: bool,
        /// The named object whose memory it is, and the length that this has then.
        #[serde(default)]
        object: Option<(u64, u64)>,
        /// The file of the node whose bytes the object gets.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<String>,
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
    /// The directory opens under the numbers of an epoch.
    OpenDirectory {
        epoch: u64,
    },
    /// A host begins to cache pages.
    Live {
        host: u16,
        generation: u16,
    },
    /// What a host cached is taken back without it.
    Fence {
        host: u16,
        /// The generation in which it gave everything up for good; 0: it did not.
        #[serde(default)]
        given_up: u16,
    },
    AcceptLost {
        vma: u64,
        base: u64,
        len: u64,
    },
    Migrate(Migration),
    /// An object by file is to be written, loaded or saved.
    TurnFile {
        object: u64,
        /// Its vma.
        base: u64,
        turn: FileTurn,
    },
}

/// The switch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct SwitchRow {
    pub(crate) gid: [u8; 16],
    pub(crate) home: Key,
    /// The change that brings it in, until all roles know.
    pub(crate) joining: Option<u64>,
}

/// A switch of the index.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct IndexRow {
    pub(crate) name: String,
    pub(crate) gid: [u8; 16],
    pub(crate) home: Key,
    pub(crate) generation: u16,
    pub(crate) tier: Tier,
    /// The names of those that are below it: switches of the index, or memory nodes.
    pub(crate) below: Vec<String>,
    /// The change with which it joined first: what its key is made of.
    #[serde(default)]
    pub(crate) since: u64,
    /// The change that brings it in, until all roles know.
    pub(crate) joining: Option<u64>,
}

/// A memory node. One without a queue is *gone*: it must join again before it is told anything.
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
    /// It is memory that a card registered.
    #[serde(default)]
    pub(crate) card: Option<CardMemory>,
    /// The change with which it joined first: what its key is made of.
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
    /// The generation that its latest fence found to have given everything up for good: none of it gets a lease again, and nothing is lost with
    /// it. 0: that generation did not.
    #[serde(default)]
    pub(crate) given_up: u16,
    /// The change with which it joined first since it was not there: what its key is made of.
    #[serde(default)]
    pub(crate) since: u64,
    pub(crate) joining: Option<u64>,
    /// The lives of other hosts whose WRITEs it carries out, ascending (PROTOCOL 8.59).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) acts_for: Vec<Life>,
}

/// A host in one generation of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Life {
    pub(crate) host: u16,
    pub(crate) generation: u16,
}

/// Whether a host may hold pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) enum Cache {
    /// It does not.
    #[default]
    Empty,
    /// It may, since this epoch of the switch; its lease is renewed, or did not surely end.
    Live { since: u64 },
    /// It left or started again: no process renews the lease, which did not surely end.
    Orphaned,
    /// Its lease surely ended; what it had is being taken back.
    Fenced,
}

/// A vma.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct VmaRow {
    /// Which allocation it is: no other one ever has this number (PROTOCOL 8.47). 0 in logs from before there were any.
    #[serde(default)]
    pub(crate) id: u64,
    pub(crate) size: u64,
    pub(crate) node: u16,
    pub(crate) domain: u32,
    /// It stays when its domain has no user. What was allocated by earlier versions does.
    #[serde(default = "always")]
    pub(crate) durable: bool,
    /// The change that allocates it, until it is answered.
    pub(crate) pending: Option<u64>,
    /// What other domains may do, by domain.
    pub(crate) grants: Vec<(u32, Vec<Span>)>,
}

/// A named object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ObjectRow {
    pub(crate) domain: u32,
    /// None once it was unlinked.
    pub(crate) name: Option<String>,
    /// Bytes, as its users set it; 0 at first.
    pub(crate) length: u64,
    /// The first byte of its vma, once it has a length.
    pub(crate) base: Option<u64>,
    /// The hosts that have it open, ascending.
    pub(crate) hosts: Vec<u16>,
    /// How all of them have it open. Lines of earlier versions do not say: they know no other mode.
    #[serde(default, skip_serializing_if = "OpenMode::is_shared")]
    pub(crate) mode: OpenMode,
    /// The hosts that had it to write when they left or joined again, and that a node may still take WRITEs of, ascending (PROTOCOL 8.56).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ended: Vec<u16>,
}

/// A part of a vma that is not where its addresses are: at another node, or elsewhere in the memory of the same one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PieceRow {
    /// A power of two.
    pub(crate) size: u64,
    pub(crate) node: u16,
    /// Whose memory it has, as addresses of that node. No vma uses these otherwise.
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
    /// Of one that goes through the switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) through: Option<ThroughRow>,
}

/// How a connection goes through the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ThroughRow {
    /// The switch's queue pair that the host sends to.
    pub(crate) to_node: u32,
    /// The switch's queue pair that the node sends to.
    pub(crate) to_host: u32,
    /// The root of the tree that keyed READs mean; 0 for none.
    pub(crate) root: u64,
}

impl ConnectionRow {
    /// All queue pair numbers that it takes.
    pub(crate) fn qpns(&self) -> impl Iterator<Item = u32> + use<> {
        let virtual_ones = self.through.into_iter().flat_map(|through| [through.to_node, through.to_host]);
        [self.qpn, self.peer_qpn].into_iter().chain(virtual_ones)
    }

    /// What names it: the host, and the host's queue pair.
    pub(crate) const fn key(&self) -> (u16, u32) {
        (self.host, self.qpn)
    }
}

/// A change in flight.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) what: What,
    /// How many answers it waits for, by role. No zeros.
    pub(crate) waits: Vec<(Role, u32)>,
    /// What takes back the updates already applied, in the order they were applied.
    pub(crate) undo: Vec<(Role, Vec<LoggedUpdate>)>,
    /// First and last address of which it takes rights away, until no host has pages there that it got by them.
    #[serde(default, rename = "vacates")]
    pub(crate) drains: Option<(u64, u64)>,
    /// Set when it is being taken back.
    pub(crate) failed: Option<Why>,
}

/// Why a change was taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Why {
    /// The role refused an update, with this status.
    Refused { role: Role, status: u8 },
    /// The role does not answer.
    Silent { role: Role },
    /// The role joined (again) meanwhile, or its join failed; asking again may succeed.
    Joined { role: Role },
    /// The role refused what it has to know; it must join again.
    Gone { role: Role },
    /// The host or node with this port left or started again.
    Left { port: u32 },
    /// The control plane started again.
    Restarted,
    /// Hosts did not give up the pages that were to move.
    Held,
}

/// An update, kept as its bytes on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LoggedUpdate(pub(crate) Update);

impl Serialize for LoggedUpdate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        self.0.emit(&mut bytes);
        bytes.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LoggedUpdate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        let one = Updates::request(1, 1, &bytes).map_err(D::Error::custom)?;
        one.iter().next().map(Self).ok_or_else(|| D::Error::custom("an update"))
    }
}

/// The permission class of this name.
pub(crate) const fn perm(name: PermName) -> Perm {
    match name {
        PermName::None => Perm::None,
        PermName::Read => Perm::Read,
        PermName::ReadWrite => Perm::ReadWrite,
    }
}

/// The status with this number; one from a newer log counts as [`Status::Unsupported`].
pub(crate) fn status(bits: u8) -> Status {
    Status::from_bits(bits).unwrap_or(Status::Unsupported)
}

const fn always() -> bool {
    true
}

/// As it stands in an answer.
pub(crate) fn gid_text(gid: [u8; 16]) -> String {
    alloc::format!("{:?}", Gid(gid))
}

/// A node's number on the wire.
pub(crate) const fn node_id(node: u16) -> NodeId {
    NodeId(node)
}
