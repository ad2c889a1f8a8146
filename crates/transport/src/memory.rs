//! The memory behind a responder.

use alloc::vec::Vec;
use farmem_wire::message::Page;
use farmem_wire::{Domain, Perm, Rkey, VirtAddr};

/// A memory access that a peer requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Domain of the connection.
    pub domain: Domain,
    /// Address of the first byte.
    pub addr: VirtAddr,
    /// Length in bytes.
    pub len: u32,
    /// Permission that the access requires.
    pub perm: Perm,
}

/// The reason why memory refuses an access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessError {
    /// No region here holds the first byte, or no allocation of the domain does.
    NotMapped,
    /// The domain lacks the permission.
    NoPermission,
    /// The access starts inside and leaves the region, the allocation or the address space.
    OutOfBounds,
    /// An atomic's address is not a multiple of 8.
    Misaligned,
    /// A host may have later bytes of this page. The requester retries (PROTOCOL 12.28).
    Lent(Page),
    /// The addresses are moving to or from another node. The requester retries, and soon reaches the right
    /// node (PROTOCOL 7.38).
    Moving,
    /// The latest bytes were lost with a host (PROTOCOL 12.31).
    Lost,
    /// Hosts cache the page coherently: no other access may write it (PROTOCOL 12.46).
    Coherent,
    /// The request has another key than the [`Rkey`] of its connection.
    WrongKey(Rkey),
}

/// Memory for responders and traversals: an access is checked first, then executed.
///
/// Two implementations: the memory node's regions, and the plain model of the tests.
pub trait Memory {
    /// Checks whether the access is allowed.
    ///
    /// # Errors
    /// [`AccessError`] with the reason.
    fn check(&self, access: &Access) -> Result<(), AccessError>;

    /// Checks a READ that was executed before and is repeated (PROTOCOL 4.21). Bytes that left this memory
    /// since may still be read.
    ///
    /// # Errors
    /// [`AccessError`] with the reason.
    fn check_again(&self, access: &Access) -> Result<(), AccessError> {
        self.check(access)
    }

    /// Appends `len` bytes from `addr` to `out`.
    ///
    /// # Panics
    /// If the range was not checked.
    fn read(&self, addr: VirtAddr, len: u32, out: &mut Vec<u8>);

    /// Fills `window` from `addr`: the LOAD of a traversal's iteration.
    ///
    /// # Panics
    /// If the range was not checked.
    fn load(&self, addr: VirtAddr, window: &mut [u8]);

    /// Writes `data` at `addr`.
    ///
    /// # Panics
    /// If the range was not checked.
    fn write(&mut self, addr: VirtAddr, data: &[u8]);

    /// Replaces the word at `addr` by `swap` if it equals `compare`, atomically and in host byte order
    /// (little-endian). Returns the old value.
    ///
    /// # Panics
    /// If the range was not checked or is not aligned.
    fn cmp_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> u64;

    /// Adds to the word at `addr`, atomically, wrapping, and in host byte order (little-endian). Returns the
    /// old value.
    ///
    /// # Panics
    /// If the range was not checked or is not aligned.
    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> u64;
}
