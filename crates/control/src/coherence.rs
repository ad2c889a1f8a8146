//! Leases of hosts that cache pages, and the conditions for opening the switch's directory (PROTOCOL 12.35,
//! 12.36).
//!
//! ```text
//!   Empty ---renew---> Live ---- left, or joined again ----> Orphaned
//!     ^                  | lease ended        gone, or lease ended |
//!     |                  `-----------> Fenced <-------------------'
//!     `---- nothing of it is left anywhere --'
//! ```
//!
//! The log records which hosts may hold pages ([`Cache`]), and whether the directory is open. Lease ends are not in the log: after a
//! restart every lease counts as renewed just then, which is later than any host assumes.

mod draining;
mod epochs;
mod moves;
mod pending;
mod recovery_limits;
mod stalls;

pub use pending::RESETS_MAX;
pub use recovery_limits::RECOVERS;

use crate::api::{AcceptLost, ApiError, DirectoryInfo, ErrorCode, GIVEN_UP, LeaseInfo, Recover, Renew};
use crate::claims::Claim;
use crate::errors::{bad, bound, error};
use crate::log::Stalled;
use crate::record::{Cache, ChangeKind, Line, Role, Span};
use crate::requests::{Decided, Decision};
use crate::splitting::Splitting;
pub(crate) use crate::tables::newest;
use crate::updates::Reach;
use crate::{Actions, Control, Note, PAGE};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use core::mem;
use draining::Draining;
use epochs::Round;
use farmem_machine::{Duration, Instant};
use farmem_wire::HostId;
use farmem_wire::message::{CACHING_HOSTS_MAX, Page, Seq, Update};
use moves::Moving;
use pending::{Running, page_at};
use recovery_limits::Recovers;
use stalls::Stalls;

/// Divisor: a lease has surely ended even if the host's clock is slow by one part in this many.
const DRIFT: u64 = 8;
/// The control plane checks its clock at least this often per lease. A gap of more than one part in [`DRIFT`]
/// means that it stood still.
const LOOKS: u64 = 16;

/// Volatile state about hosts that cache pages.
#[derive(Debug, Default)]
pub(crate) struct Coherence {
    /// The time at which the lease of each host that may hold pages surely ends.
    ends: BTreeMap<u16, Instant>,
    /// The time at which the control plane must wake without an event, while a host has a lease.
    look: Option<Instant>,
    /// The largest flush order that each host reported as obeyed, of those that it was given.
    flushed: BTreeMap<u16, u64>,
    /// The newest order that an answer gave to each host. After a restart each is given once more before it
    /// counts.
    ordered: BTreeMap<u16, u64>,
    /// Hosts that gave everything up for good and will be fenced, with the generation of that report.
    given_up: BTreeMap<u16, u16>,
    /// The epoch of the following fields.
    epoch: u64,
    /// Pages whose region is to be reset, and the time of the next message to the switch.
    wanted: BTreeMap<Page, Instant>,
    /// Recent reset requests of hosts.
    recovers: Recovers,
    /// Resets whose hosts have given up the region, by first page.
    resets: BTreeMap<Page, Running>,
    /// Resets that wait for hosts, and since when.
    stalls: Stalls,
    /// Nodes being swept as a whole, and the time of the next message.
    sweeps: BTreeMap<u16, Instant>,
    /// Nodes that were swept, with their incarnation and epoch.
    swept: BTreeMap<u16, (u16, u64)>,
    /// Fenced hosts, and the first listing that can show that nothing is left of them.
    fences: BTreeMap<u16, u64>,
    round: Option<Round>,
    /// Number of listings so far.
    rounds: u64,
    next_round: Option<Instant>,
    /// The planned regions of the directory, and the number of slots they were planned for.
    splitting: Option<(usize, Splitting)>,
    /// The pending conditions of migrations, by change.
    moves: BTreeMap<u64, Moving>,
    /// The pending conditions of changes that revoked rights, by change.
    draining: BTreeMap<u64, Draining>,
    /// Number of questions so far, to match answers.
    questions: u32,
    counts: DirectoryInfo,
}

impl Coherence {
    /// Returns the time of the next action.
    pub(crate) fn due(&self) -> Option<Instant> {
        let ends = self.ends.values().copied();
        let messages = self.wanted.values().copied().chain(self.resets.values().map(Running::due));
        let round = self.round.as_ref().map_or(self.next_round, |round| Some(round.due()));
        let moves = self.moves.values().map(Moving::due).chain(self.draining.values().map(Draining::due));
        let ends = ends.chain(self.look.filter(|_| !self.ends.is_empty()));
        ends.chain(messages).chain(self.sweeps.values().copied()).chain(round).chain(moves).min()
    }

    /// Asserts all limits.
    pub(crate) fn check(&self) {
        assert!(
            self.wanted.len() <= RESETS_MAX
                && self.resets.len() <= RESETS_MAX
                && self.stalls.len() <= self.wanted.len(),
            "resets within their bound"
        );
        if let Some((_, splitting)) = &self.splitting {
            splitting.check();
        }
    }
}

impl Control {
    /// Extends all leases by a time in which the control plane itself stood still, before any counts as
    /// ended: hosts renewed in vain, as during a restart of the control plane (PROTOCOL 8.32).
    pub(crate) fn look_up(&mut self, before: Instant) {
        let lease = self.config.lease.as_nanos();
        let gap = self.now.since(before);
        if gap.as_nanos() > lease / DRIFT {
            self.coherence.ends.values_mut().for_each(|end| *end += gap);
        }
        self.coherence.look = Some(self.now + Duration::from_nanos(lease / LOOKS));
    }

    /// Handles a host's renewal of its lease (PROTOCOL 12.35).
    pub(crate) fn renew(
        &mut self,
        host: u16,
        generation: u16,
        (flushed, qkey): (u64, u32),
    ) -> Decided<Renew> {
        self.host_present(host)?;
        if host >= CACHING_HOSTS_MAX {
            return Err(cannot_cache(host));
        }
        self.in_generation(host, generation)?;
        let row = &self.state.hosts[&host];
        // A holder of the token may call in a host's name, and only the host knows which pages it has given
        // up (PROTOCOL 12.48).
        if flushed != 0 && qkey != row.home.qkey {
            let message =
                format!("{qkey:#x} is not the key of host {host}, which alone can say what it has flushed");
            return Err(bad(message, "say the `qkey` of `home` in the host's answer to `join_host`"));
        }
        let gave_up = row.given_up == generation || self.coherence.given_up.get(&host) == Some(&generation);
        let none = LeaseInfo { lease_ms: 0, flush: 0 };
        if gave_up {
            if flushed == GIVEN_UP {
                return Ok(Decision::Reply(none));
            }
            let message = format!("host {host} gave everything up for good in generation {generation}");
            return Err(error(ErrorCode::Conflict, message, "touch no page any more, and join again"));
        }
        let cache = row.cache;
        if !matches!(cache, Cache::Live { .. }) {
            self.heard_of(host);
        }
        match cache {
            Cache::Live { .. } if flushed == GIVEN_UP => {
                self.coherence.ends.insert(host, self.now);
                self.coherence.given_up.insert(host, generation);
                Ok(Decision::Reply(none))
            }
            Cache::Live { .. } => {
                if let Some((region, span)) = self.held_up_by(host) {
                    let message = format!(
                        "host {host} has not given back the pages from {:#x} for {} ms, although it was asked for them: its lease ends",
                        region.base().addr().0,
                        span.as_nanos() / 1_000_000
                    );
                    return Err(error(
                        ErrorCode::Conflict,
                        message,
                        "does the thread that serves its pages run? end its process",
                    ));
                }
                let flushed = self.obeyed(host, flushed)?;
                self.coherence.ends.insert(host, self.now + lease_end(self.config.lease));
                self.coherence.flushed.insert(host, flushed);
                self.heard_of(host);
                let lease = self.lease(host);
                self.coherence.ordered.insert(host, lease.flush);
                Ok(Decision::Reply(lease))
            }
            Cache::Empty if flushed == GIVEN_UP => Ok(Decision::Reply(none)),
            Cache::Empty => {
                self.switch_joined()?;
                Ok(Decision::Begin(ChangeKind::Live { host, generation }))
            }
            Cache::Orphaned | Cache::Fenced => Ok(Decision::Reply(none)),
        }
    }

    /// Returns the flush order that counts as obeyed by a host: only orders that this control plane gave to
    /// the host's present lease count (PROTOCOL 12.48). A number that cannot have been given is refused.
    fn obeyed(&self, host: u16, flushed: u64) -> Result<u64, ApiError> {
        let present = self.state.epoch;
        let epoch = Seq(flushed).epoch();
        if epoch > present || newest(epoch).0 != flushed {
            let message = format!(
                "host {host} reports order {flushed} as carried out, but the newest order is {}",
                newest(present).0
            );
            return Err(bad(message, "give the `flush` number of an earlier `renew` answer, or 0"));
        }
        let given = self.coherence.ordered.get(&host).copied().unwrap_or(0);
        Ok(if flushed <= given { flushed } else { 0 })
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

    /// Handles a page request without an answer, reported by a host (PROTOCOL 12.33).
    pub(crate) fn recover(&mut self, host: u16, page: u64) -> Decided<Recover> {
        self.host_present(host)?;
        if !matches!(self.state.hosts[&host].cache, Cache::Live { .. }) {
            let message = format!("host {host} holds no lease");
            return Err(error(ErrorCode::Conflict, message, "renew it first"));
        }
        if !self.may_use(host, page) {
            let message = format!("no domain that host {host} has a session in may use {page:#x}");
            let remedy =
                "ask for a page that the host may read: a session in its domain (`open_session`), or a grant";
            return Err(error(ErrorCode::NotOwner, message, remedy));
        }
        self.coherence.recovers.admit(host, self.now)?;
        self.want_reset(page_at(page));
        Ok(Decision::Reply(()))
    }

    /// Returns true if the host has a session in a domain that may read a part of the page.
    fn may_use(&self, host: u16, addr: u64) -> bool {
        let page = page_at(addr).addr().0;
        let Some((base, vma)) = self.state.vmas.range(..=page).next_back() else { return false };
        let touches = |span: &Span| span.base < page + PAGE && page < span.base + span.len;
        let granted = |domain: u32| {
            let spans = vma.grants.iter().find(|(to, _)| *to == domain);
            spans.is_some_and(|(_, spans)| spans.iter().any(touches))
        };
        let sessions = self.state.sessions.values().filter(|session| session.host == host);
        page - base < vma.size && sessions.map(|row| row.domain).any(|it| it == vma.domain || granted(it))
    }

    /// Returns the directory's state for the overview.
    pub(crate) fn directory_info(&self) -> DirectoryInfo {
        let threshold = self.coherence.splitting.as_ref().map_or(0, |(_, splitting)| splitting.threshold());
        DirectoryInfo { open: self.state.directory, threshold, ..self.coherence.counts }
    }

    pub(crate) fn accept_lost(&self, domain: u32, base: u64, len: u64) -> Decided<AcceptLost> {
        self.domain_known(domain)?;
        let (vma, row) = self.owned(domain, base)?;
        self.no_file(vma, "taken as it is")?;
        let end = vma + row.size;
        if !base.is_multiple_of(PAGE) || len == 0 || base.checked_add(len).is_none_or(|last| last > end) {
            let message = format!("{len} bytes from {base:#x} are no pages of the vma {vma:#x}..{end:#x}");
            return Err(bad(message, format!("give a page's address, and 1 to {} bytes", end - base)));
        }
        // Each node with a part of it must be reachable: one that learns of it later could have lost its
        // memory anew by then.
        self.state.nodes_of_vma(vma).into_iter().try_for_each(|node| self.node_answers(node))?;
        let most = self.config.bounds.lost_max;
        if self.state.lost.len() >= most && self.state.is_amid_lost(base, len) {
            return Err(bound("ranges of lost addresses", most));
        }
        Ok(Decision::Begin(ChangeKind::AcceptLost { vma, base, len }))
    }

    /// Handles the passing of time, and the consequences of the last event.
    pub(crate) fn coherence(&mut self, out: &mut Actions) {
        self.begin_epoch();
        self.count_leases();
        self.fence_ended(out);
        self.open_directory(out);
        self.count_fences();
        self.send_rounds(out);
        self.retransmit(out);
        self.update_moves(out);
        self.update_draining(out);
    }

    /// Resets the state for a restarted switch, which knows no earlier order.
    fn begin_epoch(&mut self) {
        if self.coherence.epoch != self.state.epoch {
            let old = mem::take(&mut self.coherence);
            let Coherence { ends, look, flushed, ordered, given_up, rounds, questions, counts, .. } = old;
            let epoch = self.state.epoch;
            let kept = Coherence { ends, look, flushed, ordered, given_up, ..Coherence::default() };
            self.coherence = Coherence { epoch, rounds, questions, counts, ..kept };
        }
    }

    /// Finds the listing for each fence that the switch knows of: the fence is complete when a listing that
    /// begins later shows no reset.
    fn count_fences(&mut self) {
        let fenced = |host: &u16| self.state.hosts.get(host).is_some_and(|row| row.cache == Cache::Fenced);
        self.coherence.fences.retain(|host, _| fenced(host));
        let next = self.coherence.rounds + 1;
        for (&host, row) in &self.state.hosts {
            if row.cache == Cache::Fenced
                && !self.coherence.fences.contains_key(&host)
                && self.is_fence_known(host)
            {
                self.coherence.fences.insert(host, next);
                self.coherence.next_round = Some(self.now);
            }
        }
    }

    /// Returns true if the switch has acknowledged the fence, even after a silence, in which a listing would
    /// overtake the fence.
    fn is_fence_known(&self, host: u16) -> bool {
        let fence = Update::Fence { host: HostId(host) };
        let queue = self.state.queues.get(&Role::Switch);
        !queue.is_some_and(|queue| queue.entries().any(|entry| entry.told.0 == fence))
    }

    /// Maintains the lease end of each host that may hold pages, and of no other.
    fn count_leases(&mut self) {
        let end = self.now + lease_end(self.config.lease);
        let holds = |cache: Cache| matches!(cache, Cache::Live { .. } | Cache::Orphaned);
        let hosts = &self.state.hosts;
        let Coherence { ends, flushed, ordered, given_up, .. } = &mut self.coherence;
        let is = |host: &u16, of: &dyn Fn(Cache) -> bool| hosts.get(host).is_some_and(|row| of(row.cache));
        let is_live = |cache: Cache| matches!(cache, Cache::Live { .. });
        given_up.retain(|host, _| is(host, &holds));
        ends.retain(|host, _| is(host, &holds));
        flushed.retain(|host, _| is(host, &is_live));
        ordered.retain(|host, _| is(host, &is_live));
        for (&host, _) in hosts.iter().filter(|(_, row)| holds(row.cache)) {
            ends.entry(host).or_insert(end);
        }
    }

    /// Fences hosts whose lease ended. A host that left has given everything up before; for all others only
    /// the end of the lease is certain.
    fn fence_ended(&mut self, out: &mut Actions) {
        let over = |(&host, &end): (&u16, &Instant)| {
            let gone = self.state.hosts.get(&host).is_some_and(|row| !row.present);
            (end <= self.now || gone) && !self.state.claims().contains(&Claim::Cache(host))
        };
        let ended: Vec<u16> = self
            .coherence
            .ends
            .iter()
            .filter(|&(host, end)| over((host, end)))
            .map(|(&host, _)| host)
            .collect();
        for host in ended {
            let given_up = self.coherence.given_up.get(&host).copied();
            if self.begin(ChangeKind::Fence { host, given_up: given_up.unwrap_or(0) }, out).is_err() {
                return; // its lease has ended still
            }
            self.coherence.ends.remove(&host);
            self.coherence.given_up.remove(&host);
            let counts = &mut self.coherence.counts;
            counts.fences += 1;
            *(if given_up.is_some() { &mut counts.leaves } else { &mut counts.lapses }) += 1;
            out.note(Note::Fenced(host));
        }
    }

    /// Opens the directory once no host can hold a page that an earlier switch handed out.
    fn open_directory(&mut self, out: &mut Actions) {
        let joined = self.state.switch.as_ref().is_some_and(|row| row.joining.is_none());
        let ready = joined && self.state.reach(Role::Switch) == Some(Reach::Ready);
        if self.state.directory || !ready || self.state.claims().contains(&Claim::Directory) {
            return;
        }
        let epoch = self.state.epoch;
        let holds = |(host, cache): (&u16, Cache)| match cache {
            // The sweeps of all nodes settle the pages of fenced hosts.
            Cache::Empty | Cache::Fenced => false,
            Cache::Live { since } if since == epoch => false,
            Cache::Live { .. } => {
                self.coherence.flushed.get(host).is_none_or(|&flushed| flushed < newest(epoch).0)
            }
            Cache::Orphaned => true,
        };
        let held = self.state.hosts.iter().any(|(host, row)| holds((host, row.cache)));
        if !held {
            // On failure the directory stays closed, and the next event retries.
            let _stalled = self.begin(ChangeKind::OpenDirectory { epoch }, out);
        }
    }

    /// Begins a change that no caller requested.
    pub(crate) fn begin(&mut self, what: ChangeKind, out: &mut Actions) -> Result<(), Stalled> {
        let change = self.state.next_change;
        self.keep(Line::Began { change, what }, out)
    }
}

/// Returns the error for a host that cannot cache pages: the switch records the sharers of a page by one bit
/// each (PROTOCOL 12.3).
pub(crate) fn cannot_cache(host: u16) -> ApiError {
    let most = CACHING_HOSTS_MAX - 1;
    let message = format!("host {host} cannot cache pages: those that do have the numbers 1 to {most}");
    error(
        ErrorCode::TableFull,
        message,
        "join with `caches`; have hosts leave that share memory and are no longer used",
    )
}

/// Returns the time after a renewal for which the host may still use cached pages.
pub(crate) fn lease_end(lease: Duration) -> Duration {
    Duration::from_nanos(lease.as_nanos() + lease.as_nanos() / DRIFT)
}
