//! What the switch tells whoever watches: one note per frame it was given.

use crate::directory::Outcome;
use crate::keyed::Refused;
use farmem_wire::message::Verdict;
use farmem_wire::{NodeId, Status};

/// What became of a frame. Every frame ends in exactly one note.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Note {
    /// A host's request went to this node.
    Forwarded {
        /// The node that owns the address.
        node: NodeId,
    },
    /// A traversal of a host went to its node, from further down than where it would have begun (PROTOCOL 13.14).
    Indexed {
        /// The node.
        node: NodeId,
    },
    /// A traversal of a host went up to this switch of the index (PROTOCOL 16.6).
    LedUp {
        /// Its number.
        index: u16,
    },
    /// A traversal from another switch went on to this one.
    LedDown {
        /// Its number.
        index: u16,
    },
    /// A traversal from another switch went to its node.
    LedOut {
        /// The node.
        node: NodeId,
    },
    /// Traversals of a batch from another switch went on in so many parts, each as one of these.
    LedApart {
        /// How many.
        parts: u16,
    },
    /// A traversal from another switch went back to the rack's switch: no way leads on from here.
    LedBack,
    /// A traversal that left one node went on to this one.
    Continued {
        /// The node that owns the next pointer.
        node: NodeId,
    },
    /// A request was answered by the switch itself, with this status.
    Refused(Status),
    /// A batch of table updates was applied.
    Updated {
        /// Its number.
        seq: u64,
    },
    /// A batch was applied only up to an update that was refused.
    UpdateRefused {
        /// Its number.
        seq: u64,
        /// Why.
        status: Status,
    },
    /// A batch came again with other bytes: the switch has stopped (PROTOCOL 5.11).
    UpdateChanged {
        /// Its number.
        seq: u64,
    },
    /// A batch that was applied before was answered again.
    UpdateRepeated {
        /// Its number.
        seq: u64,
    },
    /// A page message reached its region's entry, or would have.
    Page(Outcome),
    /// A page was refused, or a write-back was not wanted.
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
        /// So many.
        done: u32,
        /// So many were not as thought, or not idle, and stayed.
        refused: u32,
    },
    /// A part of an image was taken.
    SoftLoaded,
    /// One that is too old, or out of order, was answered with what is there; so was a flip of what is not there.
    SoftNotTaken,
    /// An image stands that did not before.
    SoftFlipped,
    /// An image was refused.
    SoftRefused(Verdict),
    /// The control plane was told what stands.
    SoftShown,
    /// The control plane was told what the tables of a section counted.
    SoftCounted,
    /// A packet of a connection through the switch went on to the other end.
    Relayed,
    /// A keyed READ went to this node.
    Keyed {
        /// The node.
        node: NodeId,
        /// True when tables led it to a node; false when it went to the root, as to a tree that is not known.
        indexed: bool,
    },
    /// A keyed READ went up to this switch of the index (PROTOCOL 16.11).
    KeyedUp {
        /// Its number.
        index: u16,
    },
    /// A keyed READ from another switch went on to this one.
    KeyedDown {
        /// Its number.
        index: u16,
    },
    /// A keyed READ from another switch went to its node.
    KeyedOut {
        /// The node.
        node: NodeId,
    },
    /// A keyed READ from another switch went back to the rack's switch: no way leads on from here.
    KeyedBack,
    /// A keyed READ went to its node to be refused there.
    KeyedRefused(Refused),
    /// A frame went nowhere and was not answered.
    Dropped(Reason),
}

/// Why a frame was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// The bytes are not a frame.
    Frame,
    /// A packet of a reliable connection, to a queue pair that is no connection's through the switch.
    NoConnection,
    /// A packet of a connection through the switch, from a port that is not the end that sends to this queue pair.
    NotItsEnd,
    /// A datagram with immediate data, which means nothing here.
    Immediate,
    /// No session and not our own endpoint.
    UnknownQueuePair,
    /// The Q_Key is not the endpoint's.
    WrongKey,
    /// The endpoint belongs to another port than the one the frame came from.
    WrongPort,
    /// Not a message, and nothing of it can be answered.
    Message,
    /// A response: nobody owes the switch one.
    Response,
    /// A node sent something else than a traversal to be continued.
    NotContinuation,
    /// The host to be answered is in no table.
    UnknownOrigin,
    /// The node that has the address, or the other end of the connection, is to join again.
    NodeGone,
    /// It writes, and was sent before its node joined: an earlier incarnation may have executed it (PROTOCOL 6.26).
    Outdated,
    /// About pages, from a host that has no lease.
    NoLease,
    /// A traversal from another switch, which no way leads on from here, also not back to the rack's switch (PROTOCOL 16.7).
    NoWay,
    /// It passed too many switches.
    Astray,
    /// A batch of updates that is older than the last one, or ahead of the next one.
    Sequence,
}
