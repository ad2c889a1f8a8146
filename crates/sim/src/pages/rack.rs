//! The rack: a [`World`] whose hosts cache pages, the threads of its programs, and machines that crash and
//! restart.

use super::memory::Memory;
use super::word_checker::WordChecker;
use super::{Step, THREADS};
use crate::network::Counters;
use crate::sim_node::RoleId;
use crate::{Layout, Network, Plan, World};
use farmem_host::Config as HostConfig;
use farmem_host::agent::Bounds;
use farmem_host::caching::{CacheConfig, CacheDone, CacheRequest, CachingHost};
use farmem_machine::{Duration, Instant, Rng};
use farmem_switch::Budgets;
use farmem_wire::message::{PAGE_LEN, Page};
use farmem_wire::{Pmtu, VirtAddr};
use std::collections::{BTreeMap, BTreeSet};

/// Number of pages of far memory: eight regions at the beginning.
pub(super) const PAGES: u64 = 32;
/// Length in bytes of each memory node: twice the total allocation.
const NODE_LEN: u64 = 2 * PAGES * PAGE_LEN as u64;
/// Length of a lease on cached pages.
pub(super) const LEASE: Duration = Duration::from_millis(20);
/// The control plane's epoch.
const EPOCH: Duration = Duration::from_millis(5);
/// Interval of the drivers' maintenance.
const TEND: Duration = Duration::from_micros(500);
/// Factor by which roles crash more rarely than the plan's machines: leases should end only now and then.
const CRASH_TIMES: u64 = 12;
/// Maximum downtime of a machine in nanoseconds.
const DOWN_MAX: u32 = 6_000_000;
/// Maximum number of trace lines.
const TRACE_MAX: usize = 400;
/// Number of memory nodes. All pages begin on the first.
pub(super) const NODES: u16 = 2;

type Caching = CachingHost<Memory>;

/// An unanswered call: its purpose, and the start of its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Domain,
    Allocate,
    Session(usize, u32),
    Renew(usize, u32, Instant),
    AcceptLost(Page),
    Recover(usize, Page),
    /// A block of pages moves to a node.
    Migrate(u64, u16),
    Locate,
}

/// A machine that runs programs, up or down. The first one is host 1.
#[derive(Default)]
pub(super) struct HostSlot {
    pub(super) threads: [Option<Step>; THREADS],
    /// The end of a partition from the control plane.
    pub(super) cut_until: Instant,
    /// The start of the host that the other fields are about.
    pub(super) starts: u32,
    /// The last flush order that the host obeyed.
    pub(super) flushed: u64,
    /// Maximum number of frames of its cache.
    pub(super) limit: usize,
    pub(super) has_session: bool,
    pub(super) lease_until: Instant,
    pub(super) next_renew: Instant,
}

pub(super) struct Rack {
    pub(super) world: World<Caching>,
    pub(super) rng: Rng,
    pub(super) plan: Plan,
    pub(super) slots: Vec<HostSlot>,
    /// Number of starts of each node, as last seen.
    nodes_started: [u32; NODES as usize],
    /// Number of pages that move together.
    pub(super) block: u64,
    /// The node of each page, as last queried.
    pub(super) owners: Vec<u16>,
    /// The first byte of far memory.
    pub(super) base: VirtAddr,
    pub(super) calls: BTreeMap<u64, Call>,
    /// Pages whose loss is being accepted.
    pub(super) accepting: BTreeSet<Page>,
    /// Acceptances whose calls get no answer, with the time by which they have ended.
    pub(super) late_accepts: Vec<(Instant, Page)>,
    pub(super) words: WordChecker,
    /// True once a machine crashed or a lease ended.
    pub(super) has_lost: bool,
    /// True once threads begin nothing new and machines stay up.
    pub(super) ending: bool,
    pub(super) ended: u64,
    pub(super) progress: Instant,
    pub(super) next_thread: Instant,
    next_tend: Instant,
    next_crash: Instant,
    /// Counts of events that no role notes.
    notes: BTreeMap<String, u64>,
}

/// Returns the number of the host in a slot.
pub(super) fn host_in(slot: usize) -> u16 {
    u16::try_from(slot + 1).expect("few hosts")
}

fn slot_of(host: u16) -> usize {
    usize::from(host) - 1
}

/// Builds the machine of a joined host. The cache has little room beyond its limit, so some faults find none.
fn make(config: HostConfig, rng: &mut Rng) -> Caching {
    let bounds = Bounds { pages: 5 + rng.below(13) as usize, requests: 8, evictions: 16, pending_acks: 8 };
    let cache = CacheConfig {
        bounds,
        timeout: Duration::from_micros(200),
        patience: Duration::from_millis(100),
        ..CacheConfig::default()
    };
    CachingHost::new(config, cache, Memory::default(), Rng::from_number(rng.next_u64()))
}

impl Rack {
    /// Returns a rack in which all machines are up, and every host holds a lease.
    pub(super) fn new(seed: u64, plan: Plan, keeps_trace: bool) -> Self {
        let mut rng = Rng::from_number(seed ^ 0x9a6e5);
        let pmtu = [Pmtu::B256, Pmtu::B1024, Pmtu::B4096][rng.below(3) as usize];
        let hosts = 2 + u16::try_from(rng.below(3)).expect("few");
        let directory_slots = 4 + rng.below(40) as usize;
        let layout = Layout {
            nodes: NODES,
            hosts,
            capacity: NODE_LEN,
            budgets: Budgets { directory_slots, ..Budgets::default() },
            pmtu,
            retries_max: 10,
            lease: LEASE,
            epoch: EPOCH,
            ..Layout::small()
        };
        let lines_max = if keeps_trace { TRACE_MAX } else { 0 };
        let never = Instant::from_nanos(u64::MAX);
        let mut rack = Self {
            world: World::of(layout, Plan::CALM, rng.next_u64(), lines_max, make),
            plan,
            slots: (0..hosts).map(|_| HostSlot::default()).collect(),
            nodes_started: [0; NODES as usize],
            block: [1, 2, 4, 8][rng.below(4) as usize],
            owners: Vec::new(),
            base: VirtAddr(0),
            calls: BTreeMap::new(),
            accepting: BTreeSet::new(),
            late_accepts: Vec::new(),
            words: WordChecker::new(Page::FIRST, 0),
            has_lost: false,
            ending: false,
            ended: 0,
            progress: Instant::ZERO,
            next_thread: never,
            next_tend: never,
            next_crash: never,
            notes: BTreeMap::new(),
            rng,
        };
        rack.set_up();
        let pages = usize::try_from(PAGES).expect("few pages");
        rack.words = WordChecker::new(Page::of(rack.base), pages);
        *rack.world.network_mut() = Network::new(plan, Rng::from_number(rack.rng.next_u64()));
        (rack.next_thread, rack.progress) = (rack.now(), rack.now());
        rack.plan_crash();
        rack
    }

    fn set_up(&mut self) {
        self.world.bring_up();
        self.look();
        self.call(Call::Domain);
        self.until(|rack| rack.calls.is_empty());
        self.call(Call::Allocate);
        self.next_tend = self.now();
        self.until(|rack| rack.base.0 > 0 && (0..rack.slots.len()).all(|slot| rack.is_leased(slot)));
    }

    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let end = self.now() + Duration::from_secs(10);
        while !done(self) {
            assert!(self.now() < end, "the rack comes up");
            self.advance();
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.world.now()
    }

    fn is_up(&self) -> bool {
        self.world.all_roles().into_iter().all(|role_id| self.world.is_up(role_id))
    }

    /// Ends all faults.
    pub(super) fn heal(&mut self) {
        self.world.network_mut().heal();
        self.ending = true;
        let now = self.now();
        self.slots.iter_mut().for_each(|slot| slot.cut_until = now);
    }

    /// Returns true while a machine is down, a host has no lease, or a wiped page is unsettled.
    pub(super) fn is_recovering(&self) -> bool {
        let leased = (0..self.slots.len()).all(|slot| self.is_leased(slot));
        !self.is_up() || !leased || self.words.wiped().next().is_some()
    }

    pub(super) fn is_leased(&self, slot: usize) -> bool {
        self.host_machine(slot).is_some() && self.slots[slot].lease_until > self.now()
    }

    /// Returns the machine in a slot, while it is up.
    pub(super) fn host_machine(&self, slot: usize) -> Option<&Caching> {
        self.world.host_machine(host_in(slot))
    }

    pub(super) fn role(&self, slot: usize) -> &Caching {
        self.host_machine(slot).expect("the host is up")
    }

    pub(super) fn memory_mut(&mut self, slot: usize) -> Option<&mut Memory> {
        self.world.host_machine_mut(host_in(slot)).map(Caching::pages_mut)
    }

    pub(super) fn page(&self, index: u64) -> Page {
        Page::of(VirtAddr(self.base.0 + index * PAGE_LEN as u64))
    }

    pub(super) fn counters(&self) -> Counters {
        *self.world.network().counters()
    }

    /// Returns the counts of events, by name.
    pub(super) fn notes(&self) -> BTreeMap<String, u64> {
        let all = self.world.journal().notes().iter().chain(&self.notes);
        all.map(|(name, &count)| (name.clone(), count)).collect()
    }

    pub(super) fn note(&mut self, mark: String) {
        self.line(|| mark.clone());
        *self.notes.entry(mark).or_default() += 1;
    }

    /// Writes a trace line; the last [`TRACE_MAX`] are kept.
    pub(super) fn line(&mut self, what: impl FnOnce() -> String) {
        let now = self.now();
        self.world.journal_mut().line(|| format!("{now:?} {}", what()));
    }

    /// Advances to the next event. Returns true if it is a thread's turn.
    pub(super) fn advance(&mut self) -> bool {
        let own = self.next_tend.min(self.next_thread);
        if self.world.next_due().is_some_and(|due| due <= own) {
            self.world.step();
            self.look();
            return false;
        }
        self.world.set_now(own.max(self.now()));
        if self.next_tend > self.now() {
            return true;
        }
        self.next_tend = self.now() + TEND;
        self.crash();
        self.tend();
        false
    }

    /// Sends a request to the cache of a host.
    pub(super) fn tell(&mut self, slot: usize, ask: CacheRequest) {
        self.world.tell_host_machine(host_in(slot), ask);
        self.look();
    }

    /// Collects new events of the rack: restarts, outputs of hosts, and answers of the control plane.
    pub(super) fn look(&mut self) {
        for node in 1..=NODES {
            let starts = self.world.starts_of(RoleId::Node(node));
            let known = &mut self.nodes_started[usize::from(node) - 1];
            if core::mem::replace(known, starts) != starts {
                self.node_began(node);
            }
        }
        for slot in 0..self.slots.len() {
            let starts = self.world.starts_of(RoleId::Host(host_in(slot)));
            if self.slots[slot].starts != starts
                && let Some(host_machine) = self.host_machine(slot)
            {
                let room = host_machine.agent().bounds().pages;
                let limit = room - 1 - self.rng.below(2) as usize;
                let cut_until = self.slots[slot].cut_until;
                self.slots[slot] = HostSlot { starts, limit, cut_until, ..HostSlot::default() };
            }
        }
        while let Some((host, said)) = self.world.take_own() {
            let slot = slot_of(host);
            match said {
                CacheDone::Flushed { order } => self.slots[slot].flushed = order,
                CacheDone::LeaseEnded => {
                    self.has_lost = true;
                    self.slots[slot].threads.iter_mut().flatten().for_each(|step| step.waits = false);
                }
                CacheDone::Stuck { page } => self.call(Call::Recover(slot, page)),
                CacheDone::Host(_) | CacheDone::FaultRejected { .. } | CacheDone::EvictionRejected { .. } => {
                }
            }
        }
        self.take_answers();
    }

    fn plan_crash(&mut self) {
        let every = self.plan.crash_every.times(CRASH_TIMES);
        if every > Duration::ZERO {
            let spread = u32::try_from(every.as_nanos() * 2).expect("short");
            self.next_crash = self.now() + Duration::from_nanos(u64::from(self.rng.below(spread)));
        }
    }

    /// Crashes a machine or partitions a host from the control plane from time to time.
    fn crash(&mut self) {
        let now = self.now();
        let hosts = u32::try_from(self.slots.len()).expect("few");
        if self.ending || self.next_crash > now {
            let partitions = self.plan.partition_every > Duration::ZERO && self.next_thread <= now + TEND;
            if partitions && !self.ending && self.rng.chance(1, 400) {
                let slot = self.rng.below(hosts) as usize;
                self.slots[slot].cut_until = now + LEASE.times(u64::from(1 + self.rng.below(3)));
            }
            return;
        }
        self.plan_crash();
        let down = Duration::from_nanos(u64::from(self.rng.below(DOWN_MAX)));
        let one_of = |count: u32, rng: &mut Rng| 1 + u16::try_from(rng.below(count)).expect("few");
        let role_id = match self.rng.below(8) {
            0 | 1 => RoleId::Control,
            2 | 3 => RoleId::Switch,
            4 => RoleId::Node(one_of(NODES.into(), &mut self.rng)),
            _ => RoleId::Host(one_of(hosts, &mut self.rng)),
        };
        if !self.world.is_up(role_id) {
            return;
        }
        self.world.crash_for(role_id, down);
        self.has_lost |= matches!(role_id, RoleId::Node(_) | RoleId::Host(_));
        if let RoleId::Host(host) = role_id {
            let slot = &mut self.slots[slot_of(host)];
            (slot.threads, slot.lease_until) = (Default::default(), Instant::ZERO);
        }
        self.note(format!("crash.{}", role_id.kind()));
        self.look();
    }
}
