//! What a caching host's user asks, and is told.

use crate::HostRequest;
use crate::agent::Outcome;
use farmem_machine::Instant;
use farmem_wire::message::{Access, Page};
use farmem_wire::{Domain, VirtAddr};

/// What the host's user asks.
#[derive(Debug)]
pub enum CacheRequest {
    /// Anything that a host is asked.
    Host(HostRequest),
    /// Pages of these addresses are cached in the name of `domain`. At most [`RANGES_MAX`](super::RANGES_MAX) ranges; they share no page.
    Map {
        /// First byte; at a page.
        base: VirtAddr,
        /// Bytes; pages.
        len: u64,
        /// In whose name.
        domain: Domain,
    },
    /// A thread waits for the page.
    Fault(Page, Access),
    /// The page is to make room.
    Evict(Page),
    /// What is cached may be used until then. A host that was never given a lease asks for pages all the same; the switch refuses them.
    Lease {
        /// The end: what the control plane gave, counted from when it was asked.
        until: Instant,
    },
    /// The control plane's order to give everything up; [`CacheDone::Flushed`] follows (PROTOCOL 12.36).
    Flush {
        /// Its number.
        order: u64,
    },
}

/// What the host tells its user.
#[derive(PartialEq, Eq, Debug)]
pub enum CacheDone {
    /// What a host tells.
    Host(crate::Out),
    /// Nothing from before this order is cached any more, and the memory nodes have all that was written: the control plane may be told.
    Flushed {
        /// The order's number.
        order: u64,
    },
    /// The page's request is under way for longer than [`CacheConfig::patience`](super::CacheConfig::patience): the control plane is to be asked to reset its region. Notice
    /// again after as long.
    Stuck {
        /// The page.
        page: Page,
    },
    /// The lease ended before another was given: all pages were taken from the program, and faults wait for the next one.
    LeaseEnded,
    /// The page was not asked for by this fault, and nothing will come of it: there is no room for another request, or for the page
    /// ([`Outcome::Full`]); no ids are left; or it is outside of all ranges ([`Outcome::Stale`]).
    NotAsked {
        /// The page.
        page: Page,
        /// Why.
        why: Outcome,
    },
    /// The page does not make room now: it is asked for ([`Outcome::Waits`]), or there is no room for another write-back ([`Outcome::Full`]).
    NotEvicted {
        /// The page.
        page: Page,
        /// Why.
        why: Outcome,
    },
}
