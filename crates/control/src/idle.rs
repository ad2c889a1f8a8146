//! Domains without users, and their resources: temporary memory is freed, processes end, and empty domains
//! are removed (PROTOCOL 8.60, 8.62).
//!
//! ```text
//!   used ---the last session or connection ended---> idle ---unused for a host's lease---> non-durable memory is freed ---> gone
//!     ^                                               |
//!     `----- open_session, connect, create_domain ----'
//! ```
//!
//! Idle times are not in the log: after a restart each domain counts as idle since then. Numbers use all 32 bits before one is reused, so
//! no number of an earlier domain in a request, a table or a log is mistaken for a later one's.

mod reclaim;

use alloc::collections::BTreeMap;
use farmem_machine::{Duration, Instant};

/// The idle times of domains. Volatile.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    since: BTreeMap<u32, Instant>,
    /// The time of each last attempt: a refused one is not repeated with each answer.
    begun: BTreeMap<Reclaiming, Instant>,
    due: Option<Instant>,
    /// True if the state is unchanged since users were counted.
    counted: bool,
}

/// A resource that is reclaimed from a domain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Reclaiming {
    Process(u32),
    /// An allocation, by its number.
    Vma(u64),
}

impl Idle {
    /// Returns the time at which the next domain has been idle for long enough.
    pub(crate) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Records that the state has changed since users were counted.
    pub(crate) const fn changed(&mut self) {
        self.counted = false;
    }

    /// Records that a caller learnt the number of a domain, and is about to use it.
    pub(crate) fn named(&mut self, domain: u32, now: Instant) {
        self.since.entry(domain).and_modify(|since| *since = now);
        self.counted = false;
    }

    /// Returns the time until an idle domain is reclaimed; `None` while it has a user.
    pub(crate) fn left(&self, domain: u32, stay: Option<Duration>, now: Instant) -> Option<Duration> {
        let since = self.since.get(&domain)?;
        Some((*since + stay?).since(now))
    }

    /// Returns true if a domain has had no user for long enough.
    fn has_been(&self, domain: u32, stay: Duration, now: Instant) -> bool {
        self.since.get(&domain).is_some_and(|&since| since + stay <= now)
    }
}
