//! Reclaims what idle domains have left (PROTOCOL 8.60, 8.62).

use crate::api::{Free, ProcessExit, Request};
use crate::decision::Decision;
use crate::idle::Reclaiming;
use crate::log::{STALL_RETRY, Stalled};
use crate::messages::Actions;
use crate::note::Note;
use crate::rack::Rack;
use crate::record::{ChangeKind, Line};
use crate::state::domains::Resources;
use alloc::vec::Vec;
use core::mem;
use farmem_machine::Duration;

/// Divisor: if a timer fires later than one part in this many of a host's lease, the control plane itself
/// stood still.
const LATE: u64 = 8;

/// Maximum number of allocations of idle domains that are freed at once: each takes updates of the switch and
/// its nodes.
const FREED_AT_ONCE: usize = 64;

/// Divisor: a free that failed because a role does not answer is retried after one part in this many of a
/// host's lease.
const TRIES: u64 = 32;

impl Rack {
    /// Reclaims the resources of domains that were idle for the length of a host's lease.
    pub(crate) fn reclaim_domains(&mut self, out: &mut Actions) {
        let Some(stay) = self.config.host_lease else { return };
        let is_due = self.idle.due.is_some_and(|due| due <= self.now);
        if mem::replace(&mut self.idle.counted, true) && !is_due {
            return;
        }
        let left = self.state.left_behind();
        let Self { idle, now, .. } = self;
        idle.begun.retain(|_, &mut begun| begun + part(stay, TRIES) > *now);
        idle.since.retain(|domain, _| left.contains_key(domain));
        for &domain in left.keys() {
            idle.since.entry(domain).or_insert(*now);
        }
        if idle.due.is_some_and(|due| now.since(due) > part(stay, LATE)) {
            // Callers that were about to use them called in vain meanwhile.
            idle.since.values_mut().for_each(|since| *since = *now);
        }
        let goes = |(_, left): &(&u32, &Resources)| left.goes();
        let over = |domain: &u32| self.idle.has_been(*domain, stay, self.now);
        let (due, later): (Vec<u32>, Vec<u32>) =
            left.iter().filter(goes).map(|(&domain, _)| domain).partition(over);
        let next = later.iter().filter_map(|domain| self.idle.since.get(domain)).min();
        let again = (!due.is_empty()).then(|| self.now + part(stay, TRIES));
        // Wakes more often, so that a standstill of the control plane falls before one of these wakes.
        let look = self.now + part(part(stay, LATE), 2);
        self.idle.due = next.map(|&since| (since + stay).min(look)).into_iter().chain(again).min();
        for domain in due {
            if self.roll_back(domain, &left[&domain], out).is_err() {
                self.idle.due = Some(self.now + STALL_RETRY);
                return;
            }
        }
    }

    /// Reclaims the resources of an idle domain, as far as that can begin now. Each end of a change triggers
    /// another check.
    fn roll_back(&mut self, domain: u32, left: &Resources, out: &mut Actions) -> Result<(), Stalled> {
        if left.is_nothing() {
            for &object in &left.locks {
                self.keep(Line::Object { object, row: None }, out)?;
            }
            self.keep(Line::DomainGone { domain }, out)?;
            self.idle.since.remove(&domain);
            out.note(Note::DomainGone(domain));
            return Ok(());
        }
        let is_new = |&&process: &&u32| !self.idle.begun.contains_key(&Reclaiming::Process(process));
        if let Some(&process) = left.processes.iter().find(is_new)
            && self.nothing_in_the_way(&ProcessExit { process }.into())
            && let Ok(Decision::Begin(what)) = self.process_exit(process)
        {
            self.begin(what, out)?;
            self.idle.begun.insert(Reclaiming::Process(process), self.now);
        }
        for &base in &left.vmas {
            let under_way = self.in_flight(|what| matches!(what, ChangeKind::Free { .. }));
            if under_way >= FREED_AT_ONCE {
                break;
            }
            let Some(id) = self.state.vmas.get(&base).map(|vma| vma.id) else { continue };
            let call = Free { domain, base, id };
            if self.idle.begun.contains_key(&Reclaiming::Vma(id))
                || !self.nothing_in_the_way(&Request::from(call.clone()))
            {
                continue;
            }
            if let Ok(Decision::Begin(what)) = self.free(call.domain, call.base, call.id) {
                self.begin(what, out)?;
                self.idle.begun.insert(Reclaiming::Vma(id), self.now);
                out.note(Note::Reclaimed);
            }
        }
        Ok(())
    }

    /// Returns true if a request could begin now: no change in flight claims its resources, as for a caller's
    /// request (PROTOCOL 8.18).
    fn nothing_in_the_way(&self, request: &Request) -> bool {
        let claims = self.state.claims();
        !self.state.needs(request).iter().any(|need| claims.contains(&need.claim()))
    }
}

const fn part(stay: Duration, of: u64) -> Duration {
    Duration::from_nanos(stay.as_nanos() / of)
}
