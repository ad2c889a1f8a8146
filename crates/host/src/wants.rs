//! What a host wants of the control plane to go on with an operation, and what it is answered.
//!
//! The host decides what is asked, in which order, and what follows (PROTOCOL 11.10). Its driver carries each [`Want`] to the control plane's API
//! and what comes back to the host: nothing is repeated or left out there. Each is answered exactly once, with [`crate::HostRequest::Reply`] or, when it
//! was a connection, with [`crate::HostRequest::Connect`] or [`crate::HostRequest::Beside`].

use alloc::vec::Vec;
use farmem_wire::{Domain, NodeId, Qpn, VirtAddr};

/// Something that the host wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want {
    /// Its name, in the answer.
    pub number: u64,
    /// What.
    pub wish: Wish,
}

/// What a host can want.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// Where the allocation is that holds an address, and what of it is lost.
    Locate {
        /// The address.
        addr: VirtAddr,
    },
    /// That a broken connection is taken down, before another one takes its place (PROTOCOL 9.6).
    Disconnect {
        /// The host's queue pair.
        qpn: Qpn,
    },
    /// The same of a connection beside the first. No operation waits for it.
    TakeDown {
        /// The host's queue pair.
        qpn: Qpn,
    },
    /// A connection to a node. The answer is the connection.
    Connect {
        /// The domain it is for.
        domain: Domain,
        /// The node.
        node: NodeId,
    },
    /// Another connection to a node, beside the one that there is. The answer is the connection, as [`crate::HostRequest::Beside`]. It may come at any time: no operation waits for it, so its
    /// driver must not hold anything up for it either (PROTOCOL 11.16).
    Beside {
        /// The domain it is for.
        domain: Domain,
        /// The node.
        node: NodeId,
    },
}

/// What the control plane says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Where an allocation is.
    Located(Located),
    /// The connection is taken down.
    Gone,
    /// There is none: no allocation with this address, no such connection or node.
    NotFound,
    /// The control plane does not answer, or it cannot be done now.
    Unavailable,
}

/// An allocation: where it is, and what of it is lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Located {
    /// Its first byte.
    pub base: VirtAddr,
    /// Its bytes.
    pub len: u64,
    /// What of it is not at the node of its addresses, ascending.
    pub pieces: Vec<Piece>,
    /// What of it was lost with an earlier incarnation of its node: first byte and bytes, ascending.
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
    /// True when `len` bytes from `addr` on are in it.
    #[must_use]
    pub const fn holds(&self, addr: VirtAddr, len: u64) -> bool {
        let skip = addr.0.wrapping_sub(self.base.0);
        skip < self.len && len <= self.len - skip
    }

    /// The first lost bytes among `len` from `addr` on, as far as they go together.
    #[must_use]
    pub fn first_lost(&self, addr: VirtAddr, len: u64) -> Option<(VirtAddr, u64)> {
        let end = addr.0.saturating_add(len);
        self.lost.iter().find_map(|&(base, lost)| {
            let (from, to) = (base.0.max(addr.0), base.0.saturating_add(lost).min(end));
            (from < to).then(|| (VirtAddr(from), to - from))
        })
    }
}
