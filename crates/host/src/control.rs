//! The host's requests to the control plane, and the answers.
//!
//! The host decides what to ask, in which order, and what follows (PROTOCOL 11.10). Its driver passes each
//! [`ControlRequest`] to the control plane's API and returns the result: the driver repeats and omits nothing. Each
//! request is answered exactly once, with [`crate::HostRequest::Reply`] or, for a connection, with
//! [`crate::HostRequest::Connect`] or [`crate::HostRequest::ConnectExtra`].

use alloc::vec::Vec;
use farmem_wire::{Domain, NodeId, Qpn, VirtAddr};

/// A numbered request to the control plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControlRequest {
    /// The number that the answer carries.
    pub number: u64,
    /// The request.
    pub kind: ControlRequestKind,
}

/// A request to the control plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlRequestKind {
    /// Asks for the allocation that holds an address, and its lost parts.
    Locate {
        /// The address.
        addr: VirtAddr,
    },
    /// Takes a broken connection down before another one replaces it (PROTOCOL 9.6).
    Disconnect {
        /// The host's queue pair.
        qpn: Qpn,
    },
    /// Takes an additional connection down. No operation waits for it.
    DisconnectExtra {
        /// The host's queue pair.
        qpn: Qpn,
    },
    /// Requests a connection to a node. The answer is the connection.
    Connect {
        /// The domain of the connection.
        domain: Domain,
        /// The node.
        node: NodeId,
    },
    /// Asks how often a node has joined. The node does not answer, and may have started again without its
    /// connections. No operation waits for the answer.
    NodeGeneration {
        /// The node.
        node: NodeId,
    },
    /// Requests an additional connection to a node. The answer is the connection, as
    /// [`crate::HostRequest::ConnectExtra`], and may come at any time: no operation waits for it, so the driver
    /// must not delay anything for it (PROTOCOL 11.16).
    ConnectExtra {
        /// The domain of the connection.
        domain: Domain,
        /// The node.
        node: NodeId,
    },
}

/// An answer of the control plane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The location of an allocation.
    Located(Located),
    /// The connection is taken down.
    Disconnected,
    /// How often the node has joined, modulo 2^16.
    NodeGeneration(u16),
    /// Not found: no allocation with this address, no such connection or node.
    NotFound,
    /// The control plane does not answer or cannot carry the request out now.
    Unavailable,
}

/// An allocation: its location and its lost parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Located {
    /// Its first byte.
    pub base: VirtAddr,
    /// Its bytes.
    pub len: u64,
    /// The parts that are not at the node of their addresses, ascending.
    pub pieces: Vec<Piece>,
    /// The ranges lost with an earlier incarnation of their node: first byte and length, ascending.
    pub lost: Vec<(VirtAddr, u64)>,
}

/// A part of an allocation that was moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Its first byte.
    pub base: VirtAddr,
    /// Its bytes.
    pub len: u64,
    /// The node that has it.
    pub node: NodeId,
}

impl Located {
    /// Returns true if `len` bytes from `addr` on lie in the allocation.
    #[must_use]
    pub const fn holds(&self, addr: VirtAddr, len: u64) -> bool {
        let skip = addr.0.wrapping_sub(self.base.0);
        skip < self.len && len <= self.len - skip
    }

    /// Returns the first contiguous lost range within `len` bytes from `addr` on.
    #[must_use]
    pub fn first_lost(&self, addr: VirtAddr, len: u64) -> Option<(VirtAddr, u64)> {
        let end = addr.0.saturating_add(len);
        self.lost.iter().find_map(|&(base, lost)| {
            let (from, to) = (base.0.max(addr.0), base.0.saturating_add(lost).min(end));
            (from < to).then(|| (VirtAddr(from), to - from))
        })
    }
}
