//! A reliable connection of a host, up or down, and what waits for it.

use crate::Connection;
use alloc::collections::VecDeque;
use farmem_transport::rc::{self, Requester, Work};
use farmem_wire::{Domain, NodeId, Qpn, VirtAddr};

/// Operations that wait for one connection at most, those not counted that were under way on one before.
pub const QUEUED_MAX: usize = 4096;

/// A connection of a domain to a memory node.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) domain: Domain,
    pub(crate) node: NodeId,
    /// First address of the node's range.
    pub(crate) base: VirtAddr,
    /// Bytes of the range; 0 while it is not known.
    pub(crate) len: u64,
    /// The host's queue pair, while the control plane may have it.
    pub(crate) qpn: Option<Qpn>,
    /// None before the first connection, and after the host joined again.
    pub(crate) requester: Option<Requester>,
    /// Its node takes gather READs.
    pub(crate) gathers: bool,
    pub(crate) recovery: Recovery,
    /// So many of the requests under way, the oldest, were sent before it was heard that memory had moved: their bytes may be elsewhere.
    pub(crate) astray: usize,
    /// What waits until it is up, or until there is room, in the order in which it is to be asked.
    pub(crate) queued: VecDeque<QueuedOp>,
}

/// What is being done about a connection that is down. With a question, its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Recovery {
    /// Nothing: it is up, or no operation wants it.
    Idle,
    /// The control plane is asked where the first of what is queued is, which failed so.
    Locating(u64, rc::Failure),
    /// The broken connection is being taken down.
    Disconnecting(u64),
    /// A new one is being set up.
    Connecting(u64),
}

impl Recovery {
    /// True when it waits for the answer of this number.
    pub(crate) const fn waits_for(self, number: u64) -> bool {
        match self {
            Self::Idle => false,
            Self::Locating(asked, _) | Self::Disconnecting(asked) | Self::Connecting(asked) => {
                asked == number
            }
        }
    }
}

/// An operation, or a segment of one, that is under way on no connection.
#[derive(Debug)]
pub(crate) struct QueuedOp {
    /// Its ticket, or the name of the segment.
    pub(crate) id: u64,
    pub(crate) work: Work,
    pub(crate) trail: Trail,
}

/// True when the two have a byte in common.
pub(crate) fn overlap(one: &Work, other: &Work) -> bool {
    one.places().any(|(first, len)| {
        let meets = |(second, other_len): (VirtAddr, u64)| {
            first.0.wrapping_sub(second.0) < other_len || second.0.wrapping_sub(first.0) < len
        };
        other.places().any(meets)
    })
}

/// Where an operation comes from that is sent on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum From {
    /// From its user: it may be refused for want of room.
    User,
    /// It waited for what came before it.
    Waiting,
    /// It was on a connection, or waited for one: what came later waits for it.
    Queued,
    /// It was taken before, and no node can tell better than the host whether it stays in its allocation.
    Proven,
}

impl From {
    /// True when it stays behind what came before it; what was taken before has its place among those already.
    pub(crate) const fn is_behind(self) -> bool {
        matches!(self, Self::User | Self::Waiting)
    }
}

/// What an operation has been through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Trail {
    /// Times it was asked again after a refusal of its own.
    pub(crate) moves: u8,
    /// It was asked again where it had been refused.
    pub(crate) insisted: bool,
}

impl Line {
    /// One that is down, to a node whose range is not known.
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
            astray: 0,
            queued: VecDeque::new(),
        }
    }

    pub(crate) fn new(setup: &Connection) -> Self {
        Self {
            base: setup.base,
            len: setup.len,
            qpn: Some(setup.rc.qpn),
            requester: Some(Requester::new(setup.rc)),
            gathers: setup.gathers,
            ..Self::down(setup.domain, setup.node)
        }
    }

    pub(crate) fn is(&self, domain: Domain, node: NodeId) -> bool {
        self.domain == domain && self.node == node
    }

    pub(crate) fn is_up(&self) -> bool {
        self.requester.as_ref().is_some_and(|requester| !requester.is_broken())
    }

    /// True when it is up, and nothing is under way on it or waits for it.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_up() && self.outstanding() == 0
    }

    pub(crate) fn holds(&self, addr: VirtAddr) -> bool {
        addr.0.wrapping_sub(self.base.0) < self.len
    }

    pub(crate) fn covers(&self, domain: Domain, addr: VirtAddr) -> bool {
        self.domain == domain && self.holds(addr)
    }

    /// True when `new` says something else of the same: of its node, or of an address.
    pub(crate) fn gives_way_to(&self, new: &Self) -> bool {
        let shared = self.len > 0 && new.len > 0 && (self.holds(new.base) || new.holds(self.base));
        self.domain == new.domain && (self.node == new.node || shared)
    }

    /// True when a gather READ may go over it at once: its node has all the pieces, and nothing is before it.
    pub(crate) fn may_gather(&self, work: &Work) -> bool {
        let holds = |(addr, len): (VirtAddr, u64)| {
            let skip = addr.0.wrapping_sub(self.base.0);
            skip < self.len && len <= self.len - skip
        };
        let carries = |it: &Requester| !it.is_broken() && it.carries(work);
        self.gathers && self.requester.as_ref().is_some_and(carries) && work.places().all(holds)
    }

    /// Takes the next request that has ended on it.
    pub(crate) fn pop_completion(&mut self) -> Option<rc::Completion> {
        let completion = self.requester.as_mut()?.pop_completion()?;
        // The oldest end first; one that no packet could carry was never under way.
        self.astray -= usize::from(completion.result.is_ok() && self.astray > 0);
        Some(completion)
    }

    /// True when what it has under way, or waits for it, has bytes of `work`.
    pub(crate) fn overlaps(&self, work: &Work) -> bool {
        let under_way = self.requester.iter().flat_map(|it| it.works().take(self.astray));
        let under_way = under_way.into_iter().any(|other| overlap(work, other));
        under_way || self.queued.iter().any(|item| overlap(work, &item.work))
    }

    /// The same of all that it has under way, wherever its bytes are.
    pub(crate) fn meets(&self, work: &Work) -> bool {
        let under_way = self.requester.iter().flat_map(Requester::works).any(|other| overlap(work, other));
        under_way || self.queued.iter().any(|item| overlap(work, &item.work))
    }

    /// Operations under way on it, and those that wait for it.
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
