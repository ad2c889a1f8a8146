//! What a responder needs of the memory behind it.

use alloc::vec::Vec;
use farmem_wire::message::Page;
use farmem_wire::{Domain, Perm, Rkey, VirtAddr};

/// One access a peer asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The domain of the connection it came over.
    pub domain: Domain,
    /// First byte.
    pub addr: VirtAddr,
    /// Bytes.
    pub len: u32,
    /// What the access needs.
    pub perm: Perm,
}

/// Why memory refuses an access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessError {
    /// No region here holds the first byte, or no allocation of the domain does.
    NotMapped,
    /// The domain may not do this.
    NoPermission,
    /// The access starts inside and leaves the region, the allocation or the address space.
    OutOfBounds,
    /// An atomic's address is not a multiple of 8.
    Misaligned,
    /// A host may have later bytes of this page: it will not do now, and soon may (PROTOCOL 12.28).
    Lent(Page),
    /// It is about to be at another node, or about to be here: it will not do now, and soon will there (PROTOCOL 7.38).
    Moving,
    /// The latest bytes died with a host (PROTOCOL 12.31).
    Lost,
    /// Hosts cache it: nothing else may write it (PROTOCOL 12.46).
    Coherent,
    /// The request showed a key other than [`Rkey`] of its connection.
    WrongKey(Rkey),
}

/// Memory as responders and traversals see it: checked first, then touched.
///
/// Two implementers: the memory node's regions, and the plain model of the tests.
pub trait Memory {
    /// Answers whether the access is allowed.
    ///
    /// # Errors
    /// [`AccessError`] with the reason.
    fn check(&self, access: &Access) -> Result<(), AccessError>;

    /// The same for a READ that was executed before and is asked for again (PROTOCOL 4.21): what left this memory since may still be read.
    ///
    /// # Errors
    /// [`AccessError`] with the reason.
    fn check_again(&self, access: &Access) -> Result<(), AccessError> {
        self.check(access)
    }

    /// Appends `len` bytes from `addr` to `out`.
    ///
    /// # Panics
    /// When the range was not checked.
    fn read(&self, addr: VirtAddr, len: u32, out: &mut Vec<u8>);

    /// Fills `window` from `addr`: the traversal's one LOAD.
    ///
    /// # Panics
    /// When the range was not checked.
    fn load(&self, addr: VirtAddr, window: &mut [u8]);

    /// Writes `data` at `addr`.
    ///
    /// # Panics
    /// When the range was not checked.
    fn write(&mut self, addr: VirtAddr, data: &[u8]);

    /// Atomically replaces the word at `addr` (host byte order: little-endian) by `swap` if it equals `compare`; answers what was there.
    ///
    /// # Panics
    /// When the range was not checked or is not aligned.
    fn cmp_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> u64;

    /// Atomically adds to the word at `addr` (host byte order: little-endian), wrapping; answers what was there.
    ///
    /// # Panics
    /// When the range was not checked or is not aligned.
    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> u64;
}
