//! Presence of hosts. Each host has a lease, whether it caches pages or not. A host that does not renew its
//! lease is removed from the rack with everything that ends with it (PROTOCOL 8.61).
//!
//! The end of a lease is not in the log: after a restart, and after a stop of the control plane itself, each
//! lease counts as just renewed.

mod expiry;

use crate::record::HostRow;
use crate::state::State;
use alloc::collections::BTreeMap;
use farmem_machine::{Duration, Instant};

/// Fraction of a host's lease: a timer that fires later than this part of the lease shows that the control
/// plane itself stood still.
const LATE: u64 = 8;

/// How long a number whose generations are used up must be unused before they begin anew, and at least four
/// leases: no message of such a host is in flight any more, and no process believes to be one.
const REST: Duration = Duration::from_secs(3600);

/// Times at which the leases of all hosts surely end. A restart need not know them.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    /// By host: its generation, and when the lease of that incarnation ends.
    ends: BTreeMap<u16, (u16, Instant)>,
    /// Numbers whose generations are used up, and since when no host has them.
    resting: BTreeMap<u16, Instant>,
    due: Option<Instant>,
    /// True if the hosts are those that were counted.
    counted: bool,
}

impl Presence {
    /// Returns when the next lease ends.
    pub(crate) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns how much of a host's lease is left.
    pub(crate) fn left(&self, host: u16, now: Instant) -> Option<Duration> {
        self.ends.get(&host).map(|(_, end)| end.since(now))
    }

    /// Marks the state as changed since hosts were counted.
    pub(crate) const fn changed(&mut self) {
        self.counted = false;
    }
}

impl Presence {
    /// Gives each present host an end of its lease; a new incarnation has an end of its own. A number without
    /// further generations rests from when its last host has gone.
    pub(crate) fn count(&mut self, state: &State, now: Instant, end: Instant) {
        let rests = |row: &HostRow| !row.present && row.generation == u16::MAX;
        self.resting.retain(|host, _| state.hosts.get(host).is_some_and(rests));
        for (&host, _) in state.hosts.iter().filter(|(_, row)| rests(row)) {
            self.resting.entry(host).or_insert(now);
        }
        let is = |host: &u16, generation: u16| {
            state.hosts.get(host).is_some_and(|row| row.present && row.generation == generation)
        };
        self.ends.retain(|host, (generation, _)| is(host, *generation));
        for (&host, row) in state.hosts.iter().filter(|(_, row)| row.present) {
            self.ends.entry(host).or_insert((row.generation, end));
        }
    }
}

/// Divisor: a lease has surely ended even if the host's clock is slow by one part in this many.
pub(crate) const DRIFT: u64 = 8;

/// Returns the time after a renewal for which the host may still use cached pages.
pub(crate) fn lease_end(lease: Duration) -> Duration {
    Duration::from_nanos(lease.as_nanos() + lease.as_nanos() / DRIFT)
}
