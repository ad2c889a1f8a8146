//! Pages, as the coherence messages name them (PROTOCOL 12.1).

use crate::VirtAddr;
use core::fmt;

/// Bytes of a page: what is cached, fetched and written back at once (MIND 4.3.1).
pub const PAGE_LEN: usize = 1 << PAGE_SHIFT;

/// Bits of an address below its page's number.
pub const PAGE_SHIFT: u32 = 12;

/// A page of far memory: its address divided by [`PAGE_LEN`]. Below 2^52.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Page(u64);

impl Page {
    /// The page that holds the byte at `addr`.
    #[must_use]
    pub const fn of(addr: VirtAddr) -> Self {
        Self(addr.0 >> PAGE_SHIFT)
    }

    /// Its first byte.
    #[must_use]
    pub const fn addr(self) -> VirtAddr {
        VirtAddr(self.0 << PAGE_SHIFT)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {:#x}", self.addr().0)
    }
}

/// What a host may do with a page it caches (MIND 2.2); one that it does not cache is Invalid.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Access {
    /// Read it; others may too.
    Shared = 1,
    /// Read and write it; nobody else may do either.
    Modified = 2,
}
