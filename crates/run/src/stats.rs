//! The counters of a pager.

use super::far::bytes;
use super::{POOL_SHARE, Pager};
use farmem_paging::Account;
use farmem_uffd::remote::call::LocalReason;

/// Counters of a pager.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PagerStats {
    /// Processes that attached: one for each started program, and each child of a fork.
    pub processes: u64,
    /// The children of forks among them.
    pub forks: u64,
    /// Calls of the processes.
    pub calls: u64,
    /// System calls past the preload library that the filter asked about.
    pub past_libc: u64,
    /// Reported faults.
    pub faults: u64,
    /// Faults that were served on the CPU of the faulting thread ([`CpuPlacement`](super::CpuPlacement)).
    pub beside: u64,
    /// Faults at pages of zeros.
    pub zeros: u64,
    /// Faults at far pages.
    pub missing: u64,
    /// Faults at pages that were in the pool, or in another process.
    pub near: u64,
    /// First writes to a page.
    pub upgrades: u64,
    /// Pages left to the kernel without a fault, because they fit the limit; accessed or not.
    pub plain: u64,
    /// Pages among `plain` that were resident when the pager needed frames, or at a fork or a move.
    pub taken_over: u64,
    /// READs sent.
    pub fetches: u64,
    /// Pages that were fetched, or made of zeros, before a thread waited for them, and their fate.
    pub ahead: Account,
    /// Bytes that READs fetched.
    pub bytes_fetched: u64,
    /// Fetched pages that came back soon after their eviction ([`Refaults`](farmem_paging::Refaults)).
    pub refaults: u64,
    /// If the program thrashed, the local limit in bytes that would have kept three of four refaulted pages.
    pub local_wanted: Option<u64>,
    /// Pages taken from a program to make room.
    pub evictions: u64,
    /// WRITEs sent, each of one page or of adjacent ones.
    pub write_backs: u64,
    /// Bytes in WRITEs, including those without a reply when the last process ended.
    pub bytes_written_back: u64,
    /// Maximum number of bytes on this host at once.
    pub bytes_here_max: u64,
    /// Allocated bytes of far memory: 0 until the first eviction.
    pub bytes_far: u64,
    /// Pages that a program accessed after their loss with a memory node ([`farmem_client::Error::MemoryLost`]).
    pub lost: u64,
    /// Maximum sampled number of bytes of memory that one process had in RAM outside far memory: private anonymous
    /// memory, and shared mappings. A page with several mappings counts several times.
    pub local_resident: u64,
    /// The bytes of shared mappings among them.
    pub local_shared: u64,
    /// Bytes of mappings of memory that stayed local, by [`LocalReason`]. Each mapping counts when it is made, for
    /// all processes that ended.
    pub mapped_local: [u64; LocalReason::ALL.len()],
}

impl Pager {
    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> PagerStats {
        let cache = self.private.stats();
        PagerStats {
            zeros: cache.zeros,
            missing: cache.missing,
            near: cache.near + cache.reactivated,
            upgrades: cache.upgrades,
            plain: self.private.plain().handed_over,
            taken_over: self.private.plain().taken_over,
            fetches: cache.fetches,
            ahead: cache.ahead,
            bytes_fetched: bytes(cache.pages_fetched),
            refaults: self.private.refaults().count(),
            // Pages in the pool are on this host but still cost a fault, so the programs' share of the limit
            // must reach that size.
            local_wanted: self
                .private
                .refaults()
                .frames_wanted()
                .map(|frames| bytes((frames * POOL_SHARE as u64).div_ceil(POOL_SHARE as u64 - 1))),
            evictions: self.private.evictions(),
            write_backs: cache.write_backs,
            bytes_written_back: bytes(cache.pages_sent),
            bytes_here_max: bytes(cache.frames_max),
            bytes_far: self.private.bytes_far(),
            lost: self.far.pages_lost,
            ..self.stats
        }
    }
}
