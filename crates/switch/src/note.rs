//! Observations of the switch: one note per received frame.

use crate::directory::Outcome;
use crate::keyed::KeyedRefusal;
use farmem_transport::PeerChange;
use farmem_wire::message::Verdict;
use farmem_wire::{NodeId, Status};

/// The outbox of the switch.
pub(crate) type Outbox = farmem_machine::Outbox<PeerChange, Note>;

/// The outcome of a frame. Every frame causes exactly one note.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Note {
    /// A host's request went to this node.
    Forwarded {
        /// The node that owns the address.
        node: NodeId,
    },
    /// A host's traversal went to its node, with a deeper first node than requested (PROTOCOL 13.14).
    Indexed {
        /// The node.
        node: NodeId,
    },
    /// A host's traversal went up to this index switch (PROTOCOL 16.6).
    RoutedUp {
        /// Number of the index switch.
        index: u16,
    },
    /// A traversal from another switch went on to this one.
    RoutedDown {
        /// Number of the index switch.
        index: u16,
    },
    /// A traversal from another switch went to its node.
    RoutedOut {
        /// The node.
        node: NodeId,
    },
    /// The traversals of a batch from another switch were split into this many parts, each forwarded as one
    /// of these.
    BatchSplit {
        /// Number of parts.
        parts: u16,
    },
    /// A traversal from another switch returned to the rack's switch: there is no next hop.
    RoutedBack,
    /// A traversal that left one node was forwarded to this one.
    Continued {
        /// The node that owns the next pointer.
        node: NodeId,
    },
    /// A request was answered by the switch itself, with this status.
    Refused(Status),
    /// A batch of table updates was applied.
    Updated {
        /// Number of the batch.
        seq: u64,
    },
    /// A batch was applied up to a refused update.
    UpdateRefused {
        /// Number of the batch.
        seq: u64,
        /// Status of the refused update.
        status: Status,
    },
    /// A batch was repeated with other bytes: the switch has stopped (PROTOCOL 5.11).
    UpdateChanged {
        /// Number of the batch.
        seq: u64,
    },
    /// A repeated batch was answered again.
    UpdateRepeated {
        /// Number of the batch.
        seq: u64,
    },
    /// A page message reached its region's entry, or found none.
    Page(Outcome),
    /// A page was refused, or a write-back was void.
    PageRefused(Status),
    /// A write-back went to this node.
    PageForwarded {
        /// The node that owns the page.
        node: NodeId,
    },
    /// A part of the directory was listed.
    Listed,
    /// Regions were split and merged.
    Resized {
        /// Number of changed regions.
        done: u32,
        /// Number of regions that had changed, or were not idle, and stayed.
        refused: u32,
    },
    /// A part of an image was accepted.
    SoftLoaded,
    /// A part that was too old or out of order, or a flip of an incomplete image, was answered with the
    /// present state.
    SoftNotTaken,
    /// Another image is active.
    SoftFlipped,
    /// An image was refused.
    SoftRefused(Verdict),
    /// The control plane got the state of the images.
    SoftShown,
    /// The control plane got the counters of a section.
    SoftCounted,
    /// A packet of a relayed connection was forwarded to the other end.
    Relayed,
    /// A keyed READ went to this node.
    Keyed {
        /// The node.
        node: NodeId,
        /// True if tables led it to a node; false if it went to the root, because the tree is unknown.
        indexed: bool,
    },
    /// A keyed READ went up to this index switch (PROTOCOL 16.11).
    KeyedUp {
        /// Number of the index switch.
        index: u16,
    },
    /// A keyed READ from another switch went on to this one.
    KeyedDown {
        /// Number of the index switch.
        index: u16,
    },
    /// A keyed READ from another switch went to its node.
    KeyedOut {
        /// The node.
        node: NodeId,
    },
    /// A keyed READ from another switch returned to the rack's switch: there is no next hop.
    KeyedBack,
    /// A keyed READ was forwarded to its node to be refused there.
    KeyedRefused(KeyedRefusal),
    /// A frame was dropped without an answer.
    Dropped(Reason),
}

/// The reason why a frame was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// The bytes are not a frame.
    Frame,
    /// A packet of a reliable connection to an unknown queue pair.
    NoConnection,
    /// A packet of a relayed connection from another port than the end that sends to this queue pair.
    NotItsEnd,
    /// A datagram with immediate data.
    Immediate,
    /// The queue pair is neither a session's nor the switch's own.
    UnknownQueuePair,
    /// The Q_Key is not the endpoint's.
    WrongKey,
    /// The endpoint belongs to another port than the one the frame came from.
    WrongPort,
    /// Not a message, and without the fields for an answer.
    Message,
    /// A response: the switch sends no requests.
    Response,
    /// A node sent another message than a traversal to be continued.
    NotContinuation,
    /// The host to be answered is unknown.
    UnknownOrigin,
    /// The node of the address, or the other end of the connection, left and is to join again.
    NodeGone,
    /// A writing request that was sent before its node joined: an earlier incarnation may have executed it
    /// (PROTOCOL 6.26).
    Outdated,
    /// A page message from a host without a lease.
    NoLease,
    /// A traversal from another switch without a next hop, and without a path back to the rack's switch
    /// (PROTOCOL 16.7).
    NoRoute,
    /// The message passed too many switches.
    TooManySwitches,
    /// A batch of updates older than the last one, or ahead of the next one.
    Sequence,
}
