//! Leases of hosts: renewed, and ended by the removal of the host (PROTOCOL 8.61).

use crate::api::{ApiError, ErrorCode, LeaseInfo, Stay};
use crate::decision::{Decided, Decision};
use crate::errors::error;
use crate::log::STALL_RETRY;
use crate::messages::Actions;
use crate::note::Note;
use crate::presence::{LATE, REST, lease_end};
use crate::rack::Rack;
use crate::record::{Cache, ChangeKind};
use crate::state::claims::Claim;
use crate::state::tables::newest;
use alloc::format;
use alloc::vec::Vec;
use core::mem;
use farmem_machine::{Duration, Instant, Port};

impl Rack {
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

    /// Returns the lease of a host that may hold pages.
    pub(crate) fn lease(&self, host: u16) -> LeaseInfo {
        let since = match self.state.hosts.get(&host).map(|row| row.cache) {
            Some(Cache::Live { since }) => since,
            _ => self.state.epoch,
        };
        let flush = if since < self.state.epoch { newest(self.state.epoch).0 } else { 0 };
        LeaseInfo { lease_ms: self.config.lease.as_nanos() / 1_000_000, flush }
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
