//! Requests of a caching host's user, and the host's replies.

use crate::HostRequest;
use crate::agent::Outcome;
use farmem_machine::Instant;
use farmem_wire::message::{Access, Page};
use farmem_wire::{Domain, VirtAddr};

/// A request of the host's user.
#[derive(Debug)]
pub enum CacheRequest {
    /// A request to the host role.
    Host(HostRequest),
    /// Caches pages of these addresses for `domain`. At most [`RANGES_MAX`](super::RANGES_MAX) ranges, which
    /// share no page.
    Map {
        /// First byte, page-aligned.
        base: VirtAddr,
        /// Length in bytes, a multiple of the page length.
        len: u64,
        /// The domain that accesses the pages.
        domain: Domain,
    },
    /// A thread waits for the page.
    Fault(Page, Access),
    /// Evicts the page.
    Evict(Page),
    /// Allows the use of cached pages until `until`. A host that never had a lease still requests pages; the
    /// switch refuses them.
    Lease {
        /// End of the lease as the control plane granted it, counted from the time of the request.
        until: Instant,
    },
    /// Carries out the control plane's order to give everything up. [`CacheDone::Flushed`] follows (PROTOCOL
    /// 12.36).
    Flush {
        /// The order's number.
        order: u64,
    },
}

/// A report of the host to its user.
#[derive(PartialEq, Eq, Debug)]
pub enum CacheDone {
    /// A report of the host role.
    Host(crate::Out),
    /// No page from before this order is cached any more, and the memory nodes have all written bytes. The
    /// driver may report this to the control plane.
    Flushed {
        /// The order's number.
        order: u64,
    },
    /// The page's request has been open for longer than
    /// [`CacheConfig::patience`](super::CacheConfig::patience). The driver should ask the control plane to
    /// reset the page's region. The report repeats after the same time.
    Stuck {
        /// The page.
        page: Page,
    },
    /// The lease ended before another one was granted: all pages were unmapped, and faults wait for the next
    /// lease.
    LeaseEnded,
    /// The fault sent no request: there is no room for a request or for the page ([`Outcome::Full`]), no ids
    /// are left, or the page is outside of all ranges ([`Outcome::Stale`]).
    FaultRejected {
        /// The page.
        page: Page,
        /// The reason.
        reason: Outcome,
    },
    /// The page is not evicted now: a request for it is open ([`Outcome::Waits`]), or there is no room for
    /// another write-back ([`Outcome::Full`]).
    EvictionRejected {
        /// The page.
        page: Page,
        /// The reason.
        reason: Outcome,
    },
}
