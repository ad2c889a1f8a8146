//! A reliable connection of a host, up or down, and the operations queued for it.

use crate::Connection;
use alloc::collections::VecDeque;
use farmem_machine::Instant;
use farmem_transport::rc::{self, Requester, Work};
use farmem_wire::{Domain, NodeId, Qpn, VirtAddr};

/// Maximum number of operations queued for one connection, not counting those that were in flight on one
/// before.
pub const QUEUED_MAX: usize = 4096;

/// A connection of a domain to a memory node.
#[derive(Debug)]
pub(crate) struct NodeConnection {
    pub(crate) domain: Domain,
    pub(crate) node: NodeId,
    /// First address of the node's range.
    pub(crate) base: VirtAddr,
    /// Bytes of the range; 0 if unknown.
    pub(crate) len: u64,
    /// The host's queue pair, while the control plane may still have it.
    pub(crate) qpn: Option<Qpn>,
    /// `None` before the first connection, and after the host rejoined.
    pub(crate) requester: Option<Requester>,
    /// True if the node accepts gather READs.
    pub(crate) gathers: bool,
    pub(crate) recovery: Recovery,
    /// The number of oldest requests in flight that were sent before the host learnt that memory had moved.
    /// Their bytes may be elsewhere.
    pub(crate) misdirected: usize,
    /// Operations that wait until the connection is up or has room, in the order of sending.
    pub(crate) queued: VecDeque<QueuedOp>,
    /// The generation of the node that the connection was set up with.
    pub(crate) generation: u16,
    /// The number of the pending question about the node's generation.
    pub(crate) doubted: Option<u64>,
    /// Until when queued operations wait although no connection can be set up. None before the first
    /// failure.
    pub(crate) patient_until: Option<Instant>,
}

/// The recovery state of a connection, with the number of the question to the control plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Recovery {
    /// No recovery: the connection is up, or no operation needs it.
    Idle,
    /// The host asked for the location of the first queued operation, which failed with this cause.
    Locating(u64, rc::Failure),
    /// The broken connection is being taken down.
    Disconnecting(u64),
    /// A new connection is being set up.
    Connecting(u64),
    /// No connection could be set up. The next attempt is due then.
    Pausing(Instant),
}

impl Recovery {
    /// Returns true if the state waits for the answer with this number.
    pub(crate) const fn waits_for(self, number: u64) -> bool {
        match self {
            Self::Idle | Self::Pausing(_) => false,
            Self::Locating(asked, _) | Self::Disconnecting(asked) | Self::Connecting(asked) => {
                asked == number
            }
        }
    }
}

/// An operation, or a segment of one, that is not in flight on any connection.
#[derive(Debug)]
pub(crate) struct QueuedOp {
    /// The operation's ticket, or the id of the segment.
    pub(crate) id: u64,
    pub(crate) work: Work,
    pub(crate) history: RetryHistory,
}

/// Returns true if the two operations have a byte in common.
pub(crate) fn overlap(one: &Work, other: &Work) -> bool {
    one.places().any(|(first, len)| {
        let overlaps = |(second, other_len): (VirtAddr, u64)| {
            first.0.wrapping_sub(second.0) < other_len || second.0.wrapping_sub(first.0) < len
        };
        other.places().any(overlaps)
    })
}

/// The source of an operation that is dispatched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// The user submitted it. It may be refused for lack of room.
    User,
    /// The operation waited for earlier operations.
    Waiting,
    /// The operation was on a connection or queued for one. Later operations wait for it.
    Queued,
    /// The operation was accepted before, and the control plane confirmed that it stays in its allocation.
    Proven,
}

impl Source {
    /// Returns true if the operation must stay behind earlier ones. An operation that was accepted before has
    /// its place already.
    pub(crate) const fn is_behind(self) -> bool {
        matches!(self, Self::User | Self::Waiting)
    }
}

/// The retry history of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RetryHistory {
    /// Number of retries after a refusal of this operation.
    pub(crate) moves: u8,
    /// True if the operation was sent again to the node that had refused it.
    pub(crate) retried_in_place: bool,
}

impl NodeConnection {
    /// Returns a connection that is down, to a node whose range is unknown.
    pub(crate) const fn down(domain: Domain, node: NodeId) -> Self {
        Self {
            domain,
            node,
            base: VirtAddr(0),
            len: 0,
            qpn: None,
            requester: None,
            gathers: false,
            recovery: Recovery::Idle,
            misdirected: 0,
            queued: VecDeque::new(),
            generation: 0,
            doubted: None,
            patient_until: None,
        }
    }

    pub(crate) fn new(setup: &Connection) -> Self {
        Self {
            base: setup.base,
            len: setup.len,
            qpn: Some(setup.rc.qpn),
            requester: Some(Requester::new(setup.rc)),
            gathers: setup.gathers,
            generation: setup.generation,
            ..Self::down(setup.domain, setup.node)
        }
    }

    pub(crate) fn is(&self, domain: Domain, node: NodeId) -> bool {
        self.domain == domain && self.node == node
    }

    pub(crate) fn is_up(&self) -> bool {
        self.requester.as_ref().is_some_and(|requester| !requester.is_broken())
    }

    /// Returns true if the connection is up with nothing in flight or queued.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_up() && self.outstanding() == 0
    }

    pub(crate) fn holds(&self, addr: VirtAddr) -> bool {
        addr.0.wrapping_sub(self.base.0) < self.len
    }

    pub(crate) fn covers(&self, domain: Domain, addr: VirtAddr) -> bool {
        self.domain == domain && self.holds(addr)
    }

    /// Returns true if `new` replaces this connection: it has the same domain, and the same node or a shared
    /// address.
    pub(crate) fn gives_way_to(&self, new: &Self) -> bool {
        let shared = self.len > 0 && new.len > 0 && (self.holds(new.base) || new.holds(self.base));
        self.domain == new.domain && (self.node == new.node || shared)
    }

    /// Returns true if a gather READ may go over this connection at once: its node has all the pieces, and
    /// nothing is queued.
    pub(crate) fn may_gather(&self, work: &Work) -> bool {
        let holds = |(addr, len): (VirtAddr, u64)| {
            let skip = addr.0.wrapping_sub(self.base.0);
            skip < self.len && len <= self.len - skip
        };
        let carries = |it: &Requester| !it.is_broken() && it.carries(work);
        self.gathers && self.requester.as_ref().is_some_and(carries) && work.places().all(holds)
    }

    /// Removes the next completion.
    pub(crate) fn pop_completion(&mut self) -> Option<rc::Completion> {
        let completion = self.requester.as_mut()?.pop_completion()?;
        // The oldest requests end first. A request that no packet could carry was never in flight.
        self.misdirected -= usize::from(completion.result.is_ok() && self.misdirected > 0);
        Some(completion)
    }

    /// Returns true if a misdirected or queued operation overlaps `work`.
    pub(crate) fn overlaps_unsettled(&self, work: &Work) -> bool {
        let under_way = self.requester.iter().flat_map(|it| it.works().take(self.misdirected));
        let under_way = under_way.into_iter().any(|other| overlap(work, other));
        under_way || self.queued.iter().any(|item| overlap(work, &item.work))
    }

    /// Returns true if any operation in flight or queued overlaps `work`.
    pub(crate) fn overlaps(&self, work: &Work) -> bool {
        let under_way = self.requester.iter().flat_map(Requester::works).any(|other| overlap(work, other));
        under_way || self.queued.iter().any(|item| overlap(work, &item.work))
    }

    /// Returns the number of operations in flight and queued.
    pub(crate) fn outstanding(&self) -> usize {
        self.requester.as_ref().map_or(0, Requester::outstanding) + self.queued.len()
    }

    pub(crate) fn check(&self) {
        if let Some(requester) = &self.requester {
            requester.check();
        }
        assert!(
            !self.is_up() || self.recovery == Recovery::Idle,
            "nothing is done about a connection that is up"
        );
        let waits = self.is_up() || self.recovery != Recovery::Idle;
        assert!(waits || self.queued.is_empty(), "what is queued waits for something");
    }
}
