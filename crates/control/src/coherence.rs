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
mod waits;

pub use recovery_limits::RECOVERS;
pub use waits::RESETS_MAX;

use crate::addresses::PAGE;
use crate::api::{ApiError, DirectoryInfo, ErrorCode, GIVEN_UP, LeaseInfo, Recover, Renew};
use crate::coherence::recovery_limits::Recovers;
use crate::coherence::waits::{Draining, Moving, Round, Running, Stalls, page_at};
use crate::decision::{Decided, Decision};
use crate::errors::{bad, error};
use crate::messages::Actions;
use crate::note::Note;
use crate::presence::{DRIFT, lease_end};
use crate::rack::Rack;
use crate::record::{Cache, ChangeKind, Role, Span};
use crate::splitting::Splitting;
use crate::state::claims::Claim;
use crate::state::tables::newest;
use crate::updates::Reach;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use core::mem;
use farmem_machine::{Duration, Instant};
use farmem_wire::HostId;
use farmem_wire::message::{CACHING_HOSTS_MAX, Page, Seq, Update};

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
    counts: DirectoryInfo,
}

impl Coherence {
    /// Extends all leases by a time in which the control plane itself stood still, before any counts as
    /// ended: hosts renewed in vain, as during a restart of the control plane (PROTOCOL 8.32).
    pub(crate) fn look_up(&mut self, rack: &mut Rack, before: Instant) {
        let lease = rack.config.lease.as_nanos();
        let gap = rack.now.since(before);
        if gap.as_nanos() > lease / DRIFT {
            self.ends.values_mut().for_each(|end| *end += gap);
        }
        self.look = Some(rack.now + Duration::from_nanos(lease / LOOKS));
    }

    /// Handles a host's renewal of its lease (PROTOCOL 12.35).
    pub(crate) fn renew(
        &mut self,
        rack: &mut Rack,
        &Renew { host, generation, flushed, qkey }: &Renew,
    ) -> Decided<Renew> {
        rack.host_present(host)?;
        if host >= CACHING_HOSTS_MAX {
            return Err(cannot_cache(host));
        }
        rack.in_generation(host, generation)?;
        let row = &rack.state.hosts[&host];
        // A holder of the token may call in a host's name, and only the host knows which pages it has given
        // up (PROTOCOL 12.48).
        if flushed != 0 && qkey != row.home.qkey {
            let message =
                format!("{qkey:#x} is not the key of host {host}, which alone can say what it has flushed");
            return Err(bad(message, "say the `qkey` of `home` in the host's answer to `join_host`"));
        }
        let gave_up = row.given_up == generation || self.given_up.get(&host) == Some(&generation);
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
            rack.heard_of(host);
        }
        match cache {
            Cache::Live { .. } if flushed == GIVEN_UP => {
                self.ends.insert(host, rack.now);
                self.given_up.insert(host, generation);
                Ok(Decision::Reply(none))
            }
            Cache::Live { .. } => {
                if let Some((region, span)) = self.held_up_by(rack, host) {
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
                let flushed = self.obeyed(rack, host, flushed)?;
                self.ends.insert(host, rack.now + lease_end(rack.config.lease));
                self.flushed.insert(host, flushed);
                rack.heard_of(host);
                let lease = rack.lease(host);
                self.ordered.insert(host, lease.flush);
                Ok(Decision::Reply(lease))
            }
            Cache::Empty if flushed == GIVEN_UP => Ok(Decision::Reply(none)),
            Cache::Empty => {
                rack.switch_joined()?;
                Ok(Decision::Begin(ChangeKind::Live { host, generation }))
            }
            Cache::Orphaned | Cache::Fenced => Ok(Decision::Reply(none)),
        }
    }

    /// Returns the flush order that counts as obeyed by a host: only orders that this control plane gave to
    /// the host's present lease count (PROTOCOL 12.48). A number that cannot have been given is refused.
    fn obeyed(&self, rack: &Rack, host: u16, flushed: u64) -> Result<u64, ApiError> {
        let present = rack.state.epoch;
        let epoch = Seq(flushed).epoch();
        if epoch > present || newest(epoch).0 != flushed {
            let message = format!(
                "host {host} reports order {flushed} as carried out, but the newest order is {}",
                newest(present).0
            );
            return Err(bad(message, "give the `flush` number of an earlier `renew` answer, or 0"));
        }
        let given = self.ordered.get(&host).copied().unwrap_or(0);
        Ok(if flushed <= given { flushed } else { 0 })
    }

    /// Handles a page request without an answer, reported by a host (PROTOCOL 12.33).
    pub(crate) fn recover(&mut self, rack: &mut Rack, host: u16, page: u64) -> Decided<Recover> {
        rack.host_present(host)?;
        if !matches!(rack.state.hosts[&host].cache, Cache::Live { .. }) {
            let message = format!("host {host} holds no lease");
            return Err(error(ErrorCode::Conflict, message, "renew it first"));
        }
        if !self.may_use(rack, host, page) {
            let message = format!("no domain that host {host} has a session in may use {page:#x}");
            let remedy =
                "ask for a page that the host may read: a session in its domain (`open_session`), or a grant";
            return Err(error(ErrorCode::NotOwner, message, remedy));
        }
        self.recovers.admit(host, rack.now)?;
        self.want_reset(rack, page_at(page));
        Ok(Decision::Reply(()))
    }

    /// Returns true if the host has a session in a domain that may read a part of the page.
    fn may_use(&self, rack: &Rack, host: u16, addr: u64) -> bool {
        let page = page_at(addr).addr().0;
        let Some((base, vma)) = rack.state.vmas.range(..=page).next_back() else { return false };
        let touches = |span: &Span| span.base < page + PAGE && page < span.base + span.len;
        let granted = |domain: u32| {
            let spans = vma.grants.iter().find(|(to, _)| *to == domain);
            spans.is_some_and(|(_, spans)| spans.iter().any(touches))
        };
        let sessions = rack.state.sessions.values().filter(|session| session.host == host);
        page - base < vma.size && sessions.map(|row| row.domain).any(|it| it == vma.domain || granted(it))
    }

    /// Returns the directory's state for the overview.
    pub(crate) fn directory_info(&self, rack: &Rack) -> DirectoryInfo {
        let threshold = self.splitting.as_ref().map_or(0, |(_, splitting)| splitting.threshold());
        DirectoryInfo { open: rack.state.directory, threshold, ..self.counts }
    }

    /// Handles the passing of time, and the consequences of the last event.
    pub(crate) fn update(&mut self, rack: &mut Rack, out: &mut Actions) {
        self.begin_epoch(rack);
        self.count_leases(rack);
        self.fence_ended(rack, out);
        self.open_directory(rack, out);
        self.count_fences(rack);
        self.send_rounds(rack, out);
        self.retransmit(rack, out);
        self.update_moves(rack, out);
        self.update_draining(rack, out);
    }

    /// Resets the state for a restarted switch, which knows no earlier order.
    fn begin_epoch(&mut self, rack: &mut Rack) {
        if self.epoch != rack.state.epoch {
            let old = mem::take(self);
            let Self { ends, look, flushed, ordered, given_up, rounds, counts, .. } = old;
            let epoch = rack.state.epoch;
            let kept = Self { ends, look, flushed, ordered, given_up, ..Self::default() };
            *self = Self { epoch, rounds, counts, ..kept };
        }
    }

    /// Finds the listing for each fence that the switch knows of: the fence is complete when a listing that
    /// begins later shows no reset.
    fn count_fences(&mut self, rack: &mut Rack) {
        let fenced = |host: &u16| rack.state.hosts.get(host).is_some_and(|row| row.cache == Cache::Fenced);
        self.fences.retain(|host, _| fenced(host));
        let next = self.rounds + 1;
        for (&host, row) in &rack.state.hosts {
            if row.cache == Cache::Fenced
                && !self.fences.contains_key(&host)
                && self.is_fence_known(rack, host)
            {
                self.fences.insert(host, next);
                self.next_round = Some(rack.now);
            }
        }
    }

    /// Returns true if the switch has acknowledged the fence, even after a silence, in which a listing would
    /// overtake the fence.
    fn is_fence_known(&self, rack: &Rack, host: u16) -> bool {
        let fence = Update::Fence { host: HostId(host) };
        let queue = rack.state.queues.get(&Role::Switch);
        !queue.is_some_and(|queue| queue.entries().any(|entry| entry.told.0 == fence))
    }

    /// Maintains the lease end of each host that may hold pages, and of no other.
    fn count_leases(&mut self, rack: &mut Rack) {
        let end = rack.now + lease_end(rack.config.lease);
        let holds = |cache: Cache| matches!(cache, Cache::Live { .. } | Cache::Orphaned);
        let hosts = &rack.state.hosts;
        let Self { ends, flushed, ordered, given_up, .. } = self;
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
    fn fence_ended(&mut self, rack: &mut Rack, out: &mut Actions) {
        let over = |(&host, &end): (&u16, &Instant)| {
            let gone = rack.state.hosts.get(&host).is_some_and(|row| !row.present);
            (end <= rack.now || gone) && !rack.state.claims().contains(&Claim::Cache(host))
        };
        let ended: Vec<u16> =
            self.ends.iter().filter(|&(host, end)| over((host, end))).map(|(&host, _)| host).collect();
        for host in ended {
            let given_up = self.given_up.get(&host).copied();
            if rack.begin(ChangeKind::Fence { host, given_up: given_up.unwrap_or(0) }, out).is_err() {
                return; // its lease has ended still
            }
            self.ends.remove(&host);
            self.given_up.remove(&host);
            let counts = &mut self.counts;
            counts.fences += 1;
            *(if given_up.is_some() { &mut counts.leaves } else { &mut counts.lapses }) += 1;
            out.note(Note::Fenced(host));
        }
    }

    /// Opens the directory once no host can hold a page that an earlier switch handed out.
    fn open_directory(&mut self, rack: &mut Rack, out: &mut Actions) {
        let joined = rack.state.switch.as_ref().is_some_and(|row| row.joining.is_none());
        let ready = joined && rack.state.reach(Role::Switch) == Some(Reach::Ready);
        if rack.state.directory || !ready || rack.state.claims().contains(&Claim::Directory) {
            return;
        }
        let epoch = rack.state.epoch;
        let holds = |(host, cache): (&u16, Cache)| match cache {
            // The sweeps of all nodes settle the pages of fenced hosts.
            Cache::Empty | Cache::Fenced => false,
            Cache::Live { since } if since == epoch => false,
            Cache::Live { .. } => self.flushed.get(host).is_none_or(|&flushed| flushed < newest(epoch).0),
            Cache::Orphaned => true,
        };
        let held = rack.state.hosts.iter().any(|(host, row)| holds((host, row.cache)));
        if !held {
            // On failure the directory stays closed, and the next event retries.
            let _stalled = rack.begin(ChangeKind::OpenDirectory { epoch }, out);
        }
    }
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
