//! Presence of hosts. Each host has a lease, whether it caches pages or not. A host that does not renew its
//! lease is removed from the rack with everything that ends with it (PROTOCOL 8.61).
//!
//! The end of a lease is not in the log: after a restart, and after a stop of the control plane itself, each
//! lease counts as just renewed.

use crate::api::{ApiError, ErrorCode, LeaseInfo, Stay};
use crate::claims::Claim;
use crate::coherence::lease_end;
use crate::errors::error;
use crate::log::STALL_RETRY;
use crate::record::{ChangeKind, HostRow};
use crate::requests::{Decided, Decision};
use crate::state::State;
use crate::{Actions, Control, Note};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use core::mem;
use farmem_machine::{Duration, Instant, Port};

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

impl Control {
    /// Renews the presence of a host. The host need not hold pages.
    pub(crate) fn stay(&mut self, &Stay { host, generation }: &Stay) -> Decided<Stay> {
        self.host_present(host)?;
        self.in_generation(host, generation)?;
        self.heard_of(host);
        let lease = self.config.host_lease.unwrap_or_default();
        Ok(Decision::Reply(LeaseInfo { lease_ms: lease.as_nanos() / 1_000_000, flush: 0 }))
    }

    /// Returns true if no host has had the number for long enough.
    pub(crate) fn has_rested(&self, host: u16) -> bool {
        let Some(lease) = self.config.host_lease else { return false };
        let rest = REST.max(Duration::from_nanos(lease.as_nanos().saturating_mul(4)));
        self.presence.resting.get(&host).is_some_and(|&since| self.now.since(since) >= rest)
    }

    /// Refuses a host that is in another generation.
    pub(crate) fn in_generation(&self, host: u16, generation: u16) -> Result<(), ApiError> {
        let has = self.state.hosts.get(&host).map_or(0, |row| row.generation);
        if has == generation {
            return Ok(());
        }
        let message = format!("host {host} is in generation {has}, not {generation}");
        Err(error(ErrorCode::Conflict, message, "give up what is cached, and join again"))
    }

    /// Restarts the lease of a host that was heard of.
    pub(crate) fn heard_of(&mut self, host: u16) {
        let Some(lease) = self.config.host_lease else { return };
        let end = self.now + lease_end(lease);
        self.presence.ends.entry(host).and_modify(|(_, its)| *its = end);
        self.presence.counted = false;
    }

    /// Removes the hosts whose leases have ended.
    pub(crate) fn remove_expired_hosts(&mut self, out: &mut Actions) {
        let Some(lease) = self.config.host_lease else { return };
        let late = Duration::from_nanos(lease.as_nanos() / LATE);
        let stood_still = self.presence.due.is_some_and(|due| self.now.since(due) > late);
        if !mem::replace(&mut self.presence.counted, true) {
            self.presence.count(&self.state, self.now, self.now + lease_end(lease));
        } else if self.presence.due.is_none_or(|due| due > self.now) {
            return;
        }
        if stood_still {
            let end = self.now + lease_end(lease);
            self.presence.ends.values_mut().for_each(|(_, its)| *its = end);
        }
        let claims = self.state.claims();
        let over = |(&host, &(_, end)): (&u16, &(u16, Instant))| {
            let settled = !claims.contains(&Claim::Member(Port::host(host).0));
            (end <= self.now && settled).then_some(host)
        };
        let over: Vec<u16> = self.presence.ends.iter().filter_map(over).collect();
        for host in over {
            if self.begin(ChangeKind::LeaveHost { host }, out).is_err() {
                self.presence.due = Some(self.now + STALL_RETRY);
                return;
            }
            self.presence.ends.remove(&host);
            out.note(Note::Lapsed(host));
        }
        // The end of a claim changes the state, so hosts kept by a claim are checked again then. The check
        // runs more often than leases end, so that a stop of the control plane is noticed before a lease
        // ends.
        let look = self.now + Duration::from_nanos(late.as_nanos() / 2);
        let next = self.presence.ends.values().map(|(_, end)| *end).filter(|&end| end > self.now).min();
        self.presence.due = next.map(|end| end.min(look));
    }
}

impl Presence {
    /// Gives each present host an end of its lease; a new incarnation has an end of its own. A number without
    /// further generations rests from when its last host has gone.
    fn count(&mut self, state: &State, now: Instant, end: Instant) {
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
