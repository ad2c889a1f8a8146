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

use crate::api::{Free, ProcessExit, Request};
use crate::log::{STALL_RETRY, Stalled};
use crate::record::{ChangeKind, Line};
use crate::requests::Decision;
use crate::state::State;
use crate::{Actions, Control, Note};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::mem;
use farmem_machine::{Duration, Instant};

/// Divisor: if a timer fires later than one part in this many of a host's lease, the control plane itself
/// stood still.
const LATE: u64 = 8;
/// Maximum number of allocations of idle domains that are freed at once: each takes updates of the switch and
/// its nodes.
const FREED_AT_ONCE: usize = 64;
/// Divisor: a free that failed because a role does not answer is retried after one part in this many of a
/// host's lease.
const TRIES: u64 = 32;

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

/// The resources of a domain without users.
#[derive(Debug, Default)]
struct Resources {
    /// True if it has durable memory, memory of named objects or of a card, or memory granted by other
    /// domains.
    stays: bool,
    processes: Vec<u32>,
    /// Temporary allocations, by first byte.
    vmas: Vec<u64>,
    /// Names without memory.
    locks: Vec<u64>,
}

impl Resources {
    const fn is_nothing(&self) -> bool {
        self.processes.is_empty() && self.vmas.is_empty() && !self.stays
    }

    /// Returns true if something can be reclaimed.
    const fn goes(&self) -> bool {
        !self.stays || !self.processes.is_empty() || !self.vmas.is_empty()
    }
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

impl Control {
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

impl State {
    /// Returns a number for the next domain: the first free one, in a cycle of all numbers but 0.
    pub(crate) fn free_domain(&self) -> u32 {
        let mut domain = self.next_domain.max(1);
        while self.domains.contains_key(&domain) {
            domain = domain.checked_add(1).unwrap_or(1);
        }
        domain
    }

    /// Returns the domains without users, and their resources.
    fn left_behind(&self) -> BTreeMap<u32, Resources> {
        let mut used: BTreeSet<u32> = self.sessions.values().map(|row| row.domain).collect();
        used.extend(self.connections.values().map(|row| row.domain));
        let open = self.objects.values().filter(|row| !row.hosts.is_empty());
        used.extend(open.map(|row| row.domain));
        used.extend(self.changes.values().filter_map(|change| about(&change.what)));
        let idle = self.domains.keys().filter(|domain| !used.contains(domain));
        let mut left: BTreeMap<u32, Resources> = idle.map(|&domain| (domain, Resources::default())).collect();
        let of_objects: BTreeSet<u64> = self.objects.values().filter_map(|row| row.base).collect();
        for (&base, vma) in &self.vmas {
            for (to, _) in &vma.grants {
                left.entry(*to).and_modify(|left| left.stays = true);
            }
            let Some(left) = left.get_mut(&vma.domain) else { continue };
            match self.space_of(base) {
                Some(_) => {} // goes with the last process
                None if vma.durable || of_objects.contains(&base) => left.stays = true,
                None => left.vmas.push(base),
            }
        }
        for (&object, row) in &self.objects {
            let Some(left) = left.get_mut(&row.domain) else { continue };
            let is_lock = row.base.is_none() && row.ended.is_empty() && row.name.is_some();
            if is_lock { left.locks.push(object) } else { left.stays = true }
        }
        for (&process, domain) in &self.processes {
            left.entry(*domain).and_modify(|left| left.processes.push(process));
        }
        for card in self.nodes.values().filter_map(|row| row.card.as_ref()) {
            left.entry(card.domain).and_modify(|left| left.stays = true);
        }
        left
    }
}

/// Returns the domain that a change brings a user or memory to.
fn about(what: &ChangeKind) -> Option<u32> {
    match what {
        ChangeKind::OpenSession(row) => Some(row.domain),
        ChangeKind::Connect(row) | ChangeKind::Disconnect(row) => Some(row.domain),
        ChangeKind::Allocate { domain, .. } => Some(*domain),
        ChangeKind::Grant { to, .. } => Some(*to),
        ChangeKind::Remap(remap) => remap.starts.map(|_| remap.domain),
        ChangeKind::JoinNode { card, .. } => card.as_ref().map(|card| card.domain),
        ChangeKind::JoinSwitch { .. }
        | ChangeKind::JoinHost { .. }
        | ChangeKind::JoinIndex { .. }
        | ChangeKind::LeaveIndex { .. }
        | ChangeKind::LeaveNode { .. }
        | ChangeKind::LeaveHost { .. }
        | ChangeKind::Free { .. }
        | ChangeKind::OpenDirectory { .. }
        | ChangeKind::Live { .. }
        | ChangeKind::Fence { .. }
        | ChangeKind::AcceptLost { .. }
        | ChangeKind::Migrate(_)
        | ChangeKind::TurnFile { .. } => None,
    }
}

const fn part(stay: Duration, of: u64) -> Duration {
    Duration::from_nanos(stay.as_nanos() / of)
}
