//! Operations of a client: tickets, completions and allocations.

use crate::error::Error;
use crate::slots;
use farmem_host::{Answer, Traversed};
use farmem_wire::{NodeId, VirtAddr};

/// Length of RoCEv2's longest message in bytes: the maximum of one READ or WRITE.
pub const MESSAGE_MAX: usize = 1 << 31;

/// The identifier of a pending operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// The ticket of an operation that completed at once and was never pending.
    pub const AT_ONCE: Self = Self(0);

    /// Returns the ticket of operation number `count`, from 1, of far memory other than a client's
    /// ([`crate::task::Concurrent`]). While the operation is pending, no other one has its `place`. Places
    /// are small numbers.
    ///
    /// # Panics
    /// Panics if `place` is 2^24 or more.
    #[must_use]
    pub fn at(count: u64, place: usize) -> Self {
        Self(slots::ticket(count, place))
    }
}

/// A completed operation.
#[derive(Debug)]
pub struct Completed {
    /// The operation's ticket.
    pub ticket: Ticket,
    /// The outcome.
    pub result: Result<Answer, Error>,
    /// The buffer of a read or write, or the scratch pad of a traversal.
    pub buf: Vec<u8>,
}

/// The outcome of a traversal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traversal {
    /// The end of the traversal, with its numbers of iterations and requests.
    pub end: Traversed,
    /// The scratch pad.
    pub scratch: Vec<u8>,
}

/// An allocation in far memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vma {
    /// Address of the first byte.
    pub base: VirtAddr,
    /// Length in bytes: the requested length, rounded up to a power of two of at least 4096.
    pub size: u64,
    /// The memory node of the allocation.
    pub node: NodeId,
}
