//! Leases of hosts that cache pages, and what must be over before the switch's directory opens (PROTOCOL 12.35, 12.36).
//!
//! ```text
//!   Empty ---renew---> Live ---- left, or joined again ----> Orphaned
//!     ^                  | lease ended        gone, or lease ended |
//!     |                  `-----------> Fenced <-------------------'
//!     `---- nothing of it is left anywhere --'
//! ```
//!
//! What is kept over a restart stands in the log: who may hold pages ([`Cache`]), and whether the directory is open. When a lease ends
//! is not: after a restart every lease counts as renewed just then, which is later than any host can think.

mod draining;
mod epochs;
mod moves;
mod pending;
mod recovers;
mod stalls;

pub use pending::RESETS_MAX;
pub use recovers::RECOVERS;

use crate::api::{AcceptLost, ApiError, DirectoryInfo, ErrorCode, GIVEN_UP, LeaseInfo, Recover, Renew};
use crate::claims::Claim;
use crate::errors::{bad, bound, error};
use crate::log::Stalled;
use crate::record::{Cache, Line, Role, Span, What};
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
use recovers::Recovers;
use stalls::Stalls;

/// A lease surely ended when the host's clock may have been slow by one part in so many.
const DRIFT: u64 = 8;
/// The control plane looks up at least so often in the length of a lease; when it looked up less often than in one part in [`DRIFT`], it stood still.
const LOOKS: u64 = 16;

/// What a restart need not know of those who cache.
#[derive(Debug, Default)]
pub(crate) struct Coherence {
    /// When the lease of a host surely ends, of all that may hold pages.
    ends: BTreeMap<u16, Instant>,
    /// When the control plane has to look up although nothing happens, while a host has a lease.
    look: Option<Instant>,
    /// The largest order to give everything up that a host said it had obeyed, of those that it was given.
    flushed: BTreeMap<u16, u64>,
    /// The newest order that an answer gave to a host. After a restart each is given once more before it counts.
    ordered: BTreeMap<u16, u64>,
    /// Hosts that gave everything up for good and are about to be fenced, and in which generation they said so.
    given_up: BTreeMap<u16, u16>,
    /// The epoch that what follows is of.
    epoch: u64,
    /// Pages whose region is to be reset, and when the switch is told again.
    wanted: BTreeMap<Page, Instant>,
    /// What hosts asked for of late.
    recovers: Recovers,
    /// Resets whose hosts have given up, by first page.
    resets: BTreeMap<Page, Running>,
    /// Resets that wait for hosts, and since when.
    stalls: Stalls,
    /// Nodes that are being swept as a whole, and when they are told again.
    sweeps: BTreeMap<u16, Instant>,
    /// Nodes that were, in which life and epoch.
    swept: BTreeMap<u16, (u16, u64)>,
    /// Hosts that are fenced, and the first listing that can show that nothing is left of them.
    fences: BTreeMap<u16, u64>,
    round: Option<Round>,
    /// Listings so far.
    rounds: u64,
    next_round: Option<Instant>,
    /// What the directory's regions are to be, and the slots it was made for.
    splitting: Option<(usize, Splitting)>,
    /// What is waited for of migrations, by change.
    moves: BTreeMap<u64, Moving>,
    /// What is waited for of changes that took rights away, by change.
    draining: BTreeMap<u64, Draining>,
    /// Questions so far: what tells their answers apart.
    questions: u32,
    counts: DirectoryInfo,
}

impl Coherence {
    /// When something is to be done next.
    pub(crate) fn due(&self) -> Option<Instant> {
        let ends = self.ends.values().copied();
        let messages = self.wanted.values().copied().chain(self.resets.values().map(Running::due));
        let round = self.round.as_ref().map_or(self.next_round, |round| Some(round.due()));
        let moves = self.moves.values().map(Moving::due).chain(self.draining.values().map(Draining::due));
        let ends = ends.chain(self.look.filter(|_| !self.ends.is_empty()));
        ends.chain(messages).chain(self.sweeps.values().copied()).chain(round).chain(moves).min()
    }

    /// Asserts that everything is within its bounds.
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
    /// Moves the ends of all leases on by the time in which nothing was heard because the control plane itself stood still, before any is found to
    /// have passed: hosts asked in vain, as they do while it is killed and started again (PROTOCOL 8.32).
    pub(crate) fn look_up(&mut self, before: Instant) {
        let lease = self.config.lease.as_nanos();
        let gap = self.now.since(before);
        if gap.as_nanos() > lease / DRIFT {
            self.coherence.ends.values_mut().for_each(|end| *end += gap);
        }
        self.coherence.look = Some(self.now + Duration::from_nanos(lease / LOOKS));
    }

    /// A host says that it is there (PROTOCOL 12.35).
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
        // A holder of the token may ask in a host's name, and none but the host knows what it has given up (PROTOCOL 12.48).
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
                Ok(Decision::Begin(What::Live { host, generation }))
            }
            Cache::Orphaned | Cache::Fenced => Ok(Decision::Reply(none)),
        }
    }

    /// The order that a host says it has obeyed, as far as that counts: none is taken for obeyed that this control plane did not give to the
    /// host's present lease (PROTOCOL 12.48). One that it cannot have given is refused.
    fn obeyed(&self, host: u16, flushed: u64) -> Result<u64, ApiError> {
        let present = self.state.epoch;
        let epoch = Seq(flushed).epoch();
        if epoch > present || newest(epoch).0 != flushed {
            let message = format!(
                "host {host} says that it obeyed order {flushed}, and none of that number was given; the newest is {}",
                newest(present).0
            );
            return Err(bad(
                message,
                "say the number that the answer to an earlier `renew` had as `flush`, or 0",
            ));
        }
        let given = self.coherence.ordered.get(&host).copied().unwrap_or(0);
        Ok(if flushed <= given { flushed } else { 0 })
    }

    /// The answer to a host that may hold pages.
    pub(crate) fn lease(&self, host: u16) -> LeaseInfo {
        let since = match self.state.hosts.get(&host).map(|row| row.cache) {
            Some(Cache::Live { since }) => since,
            _ => self.state.epoch,
        };
        let flush = if since < self.state.epoch { newest(self.state.epoch).0 } else { 0 };
        LeaseInfo { lease_ms: self.config.lease.as_nanos() / 1_000_000, flush }
    }

    /// A page request of a host gets no answer (PROTOCOL 12.33).
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

    /// Whether the host has a session in a domain that may read something of the page.
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

    /// What people see of the directory.
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
        // Each node that has a part of it must take it back: one that is told later could have lost it anew by then.
        self.state.nodes_of_vma(vma).into_iter().try_for_each(|node| self.node_answers(node))?;
        let most = self.config.bounds.lost_max;
        if self.state.lost.len() >= most && self.state.is_amid_lost(base, len) {
            return Err(bound("ranges of lost addresses", most));
        }
        Ok(Decision::Begin(What::AcceptLost { vma, base, len }))
    }

    /// What time has done, and what the last event made possible.
    pub(crate) fn coherence(&mut self, out: &mut Actions) {
        self.begin_epoch();
        self.count_leases();
        self.fence_ended(out);
        self.open_directory(out);
        self.count_fences();
        self.send_rounds(out);
        self.retransmit(out);
        self.see_to_moves(out);
        self.see_to_draining(out);
    }

    /// A switch that starts knows nothing of what was ordered before.
    fn begin_epoch(&mut self) {
        if self.coherence.epoch != self.state.epoch {
            let old = mem::take(&mut self.coherence);
            let Coherence { ends, look, flushed, ordered, given_up, rounds, questions, counts, .. } = old;
            let epoch = self.state.epoch;
            let kept = Coherence { ends, look, flushed, ordered, given_up, ..Coherence::default() };
            self.coherence = Coherence { epoch, rounds, questions, counts, ..kept };
        }
    }

    /// A fence that the switch knows of is over when a listing that begins later shows no reset.
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

    /// The switch has answered the fence: also one that was silent, which a listing would overtake.
    fn is_fence_known(&self, host: u16) -> bool {
        let fence = Update::Fence { host: HostId(host) };
        let queue = self.state.queues.get(&Role::Switch);
        !queue.is_some_and(|queue| queue.entries().any(|entry| entry.told.0 == fence))
    }

    /// Each host that may hold pages has an end, and no other host.
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

    /// A host that left has given everything up before it did; of all others only the end of the lease is sure.
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
            if self.begin(What::Fence { host, given_up: given_up.unwrap_or(0) }, out).is_err() {
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

    /// Once no host can have a page that an earlier switch handed out.
    fn open_directory(&mut self, out: &mut Actions) {
        let joined = self.state.switch.as_ref().is_some_and(|row| row.joining.is_none());
        let ready = joined && self.state.reach(Role::Switch) == Some(Reach::Ready);
        if self.state.directory || !ready || self.state.claims().contains(&Claim::Directory) {
            return;
        }
        let epoch = self.state.epoch;
        let holds = |(host, cache): (&u16, Cache)| match cache {
            // What a fenced host had the sweeps of all nodes settle.
            Cache::Empty | Cache::Fenced => false,
            Cache::Live { since } if since == epoch => false,
            Cache::Live { .. } => {
                self.coherence.flushed.get(host).is_none_or(|&flushed| flushed < newest(epoch).0)
            }
            Cache::Orphaned => true,
        };
        let held = self.state.hosts.iter().any(|(host, row)| holds((host, row.cache)));
        if !held {
            // Else it stays closed, and the next event tries again.
            let _stalled = self.begin(What::OpenDirectory { epoch }, out);
        }
    }

    /// Begins a change that no caller asked for.
    pub(crate) fn begin(&mut self, what: What, out: &mut Actions) -> Result<(), Stalled> {
        let change = self.state.next_change;
        self.keep(Line::Began { change, what }, out)
    }
}

/// The switch remembers who caches a page by one bit each (PROTOCOL 12.3).
pub(crate) fn cannot_cache(host: u16) -> ApiError {
    let most = CACHING_HOSTS_MAX - 1;
    let message = format!("host {host} cannot cache pages: those that do have the numbers 1 to {most}");
    error(
        ErrorCode::TableFull,
        message,
        "join with `caches`; have hosts leave that share memory and are no longer used",
    )
}

/// For how long after a renewal the host may still use what it caches.
pub(crate) fn lease_end(lease: Duration) -> Duration {
    Duration::from_nanos(lease.as_nanos() + lease.as_nanos() / DRIFT)
}
