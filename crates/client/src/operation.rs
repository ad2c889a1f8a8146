//! Operations of a client: their tickets, their ends, and what allocations answer.

use crate::error::Error;
use crate::slots;
use farmem_host::{Answer, Traversed};
use farmem_wire::{NodeId, VirtAddr};

/// Bytes of RoCEv2's largest message: of one READ or WRITE at most.
pub const MESSAGE_MAX: usize = 1 << 31;

/// The name of an operation under way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub(crate) u64);

impl Ticket {
    /// The ticket of an operation that was carried out at once and never under way.
    pub const AT_ONCE: Self = Self(0);

    /// The ticket of the operation number `count`, from 1, of far memory that is not a client's ([`crate::task::Concurrent`]). While it is
    /// under way no other one has its `place`; places are small numbers.
    ///
    /// # Panics
    /// When `place` is 2^24 or more.
    #[must_use]
    pub fn at(count: u64, place: usize) -> Self {
        Self(slots::ticket(count, place))
    }
}

/// An operation that ended.
#[derive(Debug)]
pub struct Completed {
    /// Which one.
    pub ticket: Ticket,
    /// The outcome.
    pub result: Result<Answer, Error>,
    /// The buffer of a read or write, or the scratch pad of a traversal.
    pub buf: Vec<u8>,
}

/// The outcome of a traversal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traversal {
    /// Where it ended, and after how many iterations and requests.
    pub end: Traversed,
    /// The scratch pad.
    pub scratch: Vec<u8>,
}

/// An allocation in far memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vma {
    /// First byte.
    pub base: VirtAddr,
    /// Bytes: what was asked for, rounded up to a power of two of at least 4096.
    pub size: u64,
    /// The memory node it is on.
    pub node: NodeId,
}
