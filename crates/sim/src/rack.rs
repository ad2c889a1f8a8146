//! A rack at work under faults. Programs of two domains on every host allocate, free, read, write, count,
//! traverse, grant, and try forbidden accesses. Meanwhile the network loses packets, machines crash and, in
//! every second world, memory moves between nodes.
//!
//! Phases, as in TigerBeetle's VOPR: first *safety*, with faults. Then the faults end, every machine
//! restarts, and everything in flight must end (*liveness*). At last every byte is read once more and
//! compared with the model, and the control plane's list of vmas with the clients'.

mod calls;
mod chains;
mod completions;
mod lists;
mod moves;
mod rogue;
mod stranger;
mod tasks;

use crate::campaign::{self, Campaign, Outcome, Report, Verdict};
use crate::checker::{Counter, Model, SlotId};
use crate::sim_node::RoleId;
use crate::{Layout, Plan, World};
use calls::{Call, Client};
use farmem_machine::{Duration, Instant, Rng};
use farmem_switch::Budgets;
use farmem_traversal::Program;
use farmem_wire::message::{PAGE_SHIFT, PAIRS_MAX};
use lists::{List, Programs};
use std::collections::{BTreeMap, BTreeSet};
use tasks::Task;

/// Runs random programs on a whole rack, with all operations and all faults.
pub fn campaign(campaign: &Campaign, progress: &mut dyn FnMut(u64)) -> Report {
    campaign::run("rack", campaign, world, progress)
}

/// Number of domains, and so of programs on each host.
const DOMAINS: usize = 2;
/// Number of hosts with well-behaved programs. A rogue is one more, with a domain of its own.
const HOSTS: u16 = 2;
/// Length in bytes of a counter's vma.
const COUNTER_VMA_LEN: u32 = 1 << PAGE_SHIFT;
/// Virtual time without a completed operation after which a rack is stuck.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time after a restart in which requests may still be refused because tables are being filled.
const SETTLING: Duration = Duration::from_millis(10);
/// The note for operations that failed because their memory was lost with a node.
const TOLD_LOST: &str = "rack.ToldLost";
/// Maximum number of trace lines.
const TRACE_MAX: usize = 400;

/// Runs one world.
pub(crate) fn world(seed: u64, operations: u64, plan: Plan, trace: bool) -> Outcome {
    let mut rack = Rack::new(seed, plan, trace);
    let result = rack.run(operations);
    let notes = rack.world.journal().notes();
    let sum = |part: &str| notes.iter().filter(|(note, _)| note.contains(part)).map(|(_, n)| n).sum();
    let mut outcome = Outcome {
        operations: rack.ended,
        network: *rack.world.network().counters(),
        retransmissions: rack.retransmissions(),
        naks: sum("Refused"),
        crashes: rack.world.crashes(),
        notes: notes.clone(),
        time: rack.world.now().since(Instant::ZERO),
        digest: rack.world.journal().digest(),
        ..Outcome::default()
    };
    if rack.told_lost > 0 {
        outcome.notes.insert(TOLD_LOST.to_owned(), rack.told_lost);
    }
    outcome.trace = rack.world.journal_mut().take_lines();
    if let Err((verdict, why)) = result {
        (outcome.verdict, outcome.why) = (verdict, why);
    }
    outcome
}

type End = (Verdict, String);

/// The rack, its programs, and the expected state.
struct Rack {
    world: World,
    rng: Rng,
    plan: Plan,
    /// The time at which the faults ended.
    healed: Option<Instant>,
    clients: Vec<Client>,
    /// The ids of the domains at the control plane.
    domains: Vec<u32>,
    model: Model,
    /// True if memory moves.
    moves: bool,
    /// True if hosts send traversals in batches.
    in_batches: bool,
    counters: Vec<Counter>,
    /// The rogue's own memory.
    rogue_vma: Option<u64>,
    lists: Vec<List>,
    /// The program that adds to a chain of counters.
    adding: Program,
    programs: Programs,
    /// Freed addresses that are not allocated again yet.
    freed: Vec<u64>,
    /// Number of requested allocations, to judge forbidden accesses.
    allocations: u64,
    /// Slots, each with its owner, and counters that must still be read at the end.
    unread: BTreeSet<(usize, SlotId)>,
    uncounted: BTreeSet<usize>,
    /// True if an allocation failed with unknown outcome.
    unsure_allocation: bool,
    /// Number of operations that failed with lost memory.
    told_lost: u64,
    tasks: BTreeMap<u64, Task>,
    calls: BTreeMap<u64, (usize, Call)>,
    /// Calls to repeat.
    again: Vec<(usize, Call)>,
    next_ticket: u64,
    started: u64,
    ended: u64,
    progress: Instant,
    /// Number of memory losses of each node.
    losses: BTreeMap<u16, u32>,
    /// Number of times each role was noted as gone.
    gone: BTreeMap<RoleId, u64>,
    /// The time since which the switch and all nodes are up.
    settled: Instant,
    /// The time since which the control plane is up.
    controlled: Instant,
    next_crash: Instant,
}

impl Rack {
    fn new(seed: u64, plan: Plan, trace: bool) -> Self {
        let mut rng = Rng::from_number(seed ^ 0x7ac4);
        let mut layout = Layout::small();
        // Some worlds have a switch with small tables, and a small hop limit.
        if rng.chance(1, 6) {
            layout.budgets =
                Budgets { protection_entries: 12 + rng.below(12) as usize, ..Budgets::default() };
        }
        if plan.rogue_ppm > 0 {
            layout.hosts = HOSTS + 1;
        }
        layout.hops_max = [1, 2, 64][rng.below(3) as usize];
        // In most worlds traversals that begin together share a datagram.
        layout.pairs_max = [1, 3, PAIRS_MAX][usize::try_from(seed % 3).expect("small")];
        // In some worlds domains have several connections to a node, with small windows.
        layout.connections_each = if seed % 5 == 4 { 3 } else { 1 };
        // In every other world hosts number their queue pairs themselves, all of them alike.
        layout.cards = seed % 2 == 1;
        let slow = RoleId::Node(1 + u16::try_from(rng.below(u32::from(layout.nodes))).expect("few"));
        let mut world = World::new(layout, plan, seed, if trace { TRACE_MAX } else { 0 });
        world.network_mut().set_slow(slow.gid());
        world.network_mut().set_rogue(RoleId::Host(HOSTS + 1).gid());
        let programs = Programs::new(if rng.chance(1, 8) { 200 } else { 3 });
        let clients = (0..HOSTS).flat_map(|host| (0..DOMAINS).map(move |domain| (host + 1, domain)));
        let rogue = (plan.rogue_ppm > 0).then_some((HOSTS + 1, DOMAINS));
        Self {
            clients: clients.chain(rogue).map(|(host, domain)| Client::new(host, domain)).collect(),
            world,
            rng,
            plan,
            healed: None,
            domains: Vec::new(),
            model: Model::default(),
            moves: seed.is_multiple_of(2),
            in_batches: layout.pairs_max > 1,
            counters: Vec::new(),
            rogue_vma: None,
            lists: Vec::new(),
            adding: chains::program(),
            programs,
            freed: Vec::new(),
            allocations: 0,
            unread: BTreeSet::new(),
            uncounted: BTreeSet::new(),
            unsure_allocation: false,
            told_lost: 0,
            tasks: BTreeMap::new(),
            calls: BTreeMap::new(),
            again: Vec::new(),
            next_ticket: 0,
            started: 0,
            ended: 0,
            progress: Instant::ZERO,
            losses: BTreeMap::new(),
            gone: BTreeMap::new(),
            settled: Instant::ZERO,
            controlled: Instant::ZERO,
            next_crash: Instant::ZERO,
        }
    }

    fn run(&mut self, operations: u64) -> Result<(), End> {
        self.set_up()?;
        self.next_crash = self.world.now() + self.plan.crash_every;
        // Safety: whatever happens, no wrong answer.
        while self.started < operations {
            self.crash_a_role();
            self.disturb();
            self.start_rogue();
            self.move_something();
            self.start_task();
            self.step()?;
        }
        // Liveness: without faults everything ends.
        self.world.end_faults();
        self.healed = Some(self.world.now());
        while !self.is_at_rest() {
            self.step()?;
        }
        self.read_everything()?;
        self.compare_vmas()
    }

    /// Returns true if everything ended, and every machine and connection is up.
    fn is_at_rest(&self) -> bool {
        let up = self.world.all_roles().into_iter().all(|role_id| self.world.is_up(role_id));
        let idle = self.tasks.is_empty() && self.calls.is_empty() && self.again.is_empty();
        up && idle && self.clients.iter().all(Client::is_ready)
    }

    /// Handles one event and its consequences.
    fn step(&mut self) -> Result<(), End> {
        let ended = self.ended;
        let moved = self.world.step();
        let now = self.world.now();
        let steady = |role_id: &RoleId| matches!(role_id, RoleId::Switch | RoleId::Node(_));
        if !self
            .world
            .all_roles()
            .iter()
            .filter(|role_id| steady(role_id))
            .all(|&role_id| self.world.is_up(role_id))
        {
            self.settled = now;
        }
        if !self.world.is_up(RoleId::Control) {
            self.controlled = now;
        }
        if now.since(self.progress) > PATIENCE {
            return Err((Verdict::Stuck, self.describe_stuck()));
        }
        self.take_replies()?;
        self.take_completions()?;
        self.keep_connected();
        if !moved && ended == self.ended && self.world.next_due().is_none() {
            let (tasks, calls) = (self.tasks.len(), self.calls.len());
            if tasks + calls > 0 {
                return Err((
                    Verdict::Stuck,
                    format!("nothing happens, {tasks} operations and {calls} calls are open"),
                ));
            }
        }
        Ok(())
    }

    fn describe_stuck(&self) -> String {
        let open: Vec<_> = self.tasks.values().take(3).collect();
        let lines: Vec<_> = self.clients.iter().filter(|client| !client.is_ready()).take(2).collect();
        format!("nothing ended for {PATIENCE:?}: {} operations {open:?}, clients {lines:?}", self.tasks.len())
    }

    /// Crashes a machine, now and then two at once, under a plan with crashes, when all have been up for a
    /// while.
    fn crash_a_role(&mut self) {
        let now = self.world.now();
        if self.plan.crash_every == Duration::ZERO {
            return;
        }
        let all = self.world.all_roles();
        if !all.iter().all(|&role_id| self.world.is_up(role_id)) {
            let mean = u32::try_from(self.plan.crash_every.as_nanos()).unwrap_or(u32::MAX);
            self.next_crash = now + Duration::from_nanos(u64::from(self.rng.below(2 * mean)));
        } else if now >= self.next_crash {
            for _ in 0..=u32::from(self.rng.chance(1, 3)) {
                let role_id = all[self.rng.below(u32::try_from(all.len()).expect("few")) as usize];
                self.crash(role_id);
            }
        }
    }

    /// Acts as the operator: makes a role that is gone rejoin (PROTOCOL 8.17), and gives a switch larger
    /// tables (PROTOCOL 9.11).
    fn replace_gone(&mut self) {
        for role_id in self.world.all_roles() {
            let mark = match role_id {
                RoleId::Switch => "control.MustRejoin(Switch)".to_owned(),
                RoleId::Node(node) => format!("control.MustRejoin(Node({node}))"),
                RoleId::Index(index) => format!("control.MustRejoin(Index({index}))"),
                RoleId::Control | RoleId::Host(_) => continue,
            };
            let noted = self.world.journal().notes().get(&mark).copied().unwrap_or(0);
            let known = self.gone.insert(role_id, noted).unwrap_or(0);
            if noted > known {
                self.world.budgets_mut().protection_entries *= 2;
                self.crash(role_id);
            }
        }
    }

    fn crash(&mut self, role_id: RoleId) {
        if !self.world.is_up(role_id) {
            return;
        }
        // Longer than any packet is held (PROTOCOL 9.2); now and then longer than any host waits.
        let most = if self.rng.chance(1, 3) { 150_000 } else { 20_000 };
        let down = Duration::from_millis(2) + Duration::from_micros(u64::from(self.rng.below(most)));
        self.world.crash_for(role_id, down);
        match role_id {
            RoleId::Node(node) => self.node_lost(node),
            RoleId::Host(host) => self.host_lost(host),
            RoleId::Control | RoleId::Switch | RoleId::Index(_) => {}
        }
    }

    /// Records the loss of a node's memory (PROTOCOL 9.8). An operation in flight through the switch may
    /// still execute when the loss is accepted.
    fn node_lost(&mut self, node: u16) {
        *self.losses.entry(node).or_default() += 1;
        let still: BTreeMap<SlotId, u64> = self.tasks.values().filter_map(Task::still_to_come).collect();
        self.model.node_lost(node, &still);
        self.counters_lost(node);
        self.lists_lost(node);
    }

    /// Ends every operation of a crashed host without an answer.
    fn host_lost(&mut self, host: u16) {
        let clients = &self.clients;
        let gone: Vec<u64> = self
            .tasks
            .iter()
            .filter(|(_, task)| clients[task.client].host == host)
            .map(|(&ticket, _)| ticket)
            .collect();
        for ticket in gone {
            let task = self.tasks.remove(&ticket).expect("just found");
            self.abandon(&task);
        }
        self.clients.iter_mut().filter(|client| client.host == host).for_each(Client::reset);
    }

    /// Returns true if a role's tables may have been empty at some time since `since`.
    fn was_disturbed(&self, since: Instant) -> bool {
        since < self.settled + SETTLING
    }

    /// Returns true if the control plane may have been down at some time since `since`, or busy with
    /// rejoining machines.
    fn was_out_of_control(&self, since: Instant) -> bool {
        since < self.controlled + SETTLING || self.was_disturbed(since)
    }

    /// Returns true if lost packets can explain that an operation which began at `since` got no answer.
    fn may_go_unanswered(&self, since: Instant) -> bool {
        let calm = self.plan.healed() == self.plan;
        !calm && self.healed.is_none_or(|healed| since < healed) || self.was_disturbed(since)
    }

    fn retransmissions(&self) -> u64 {
        let notes = self.world.journal().notes();
        let resent =
            ["host.Rc(TimedOut)", "host.Rc(WentBack)", "host.Rc(ImpliedNak)", "control.Retransmitted"];
        notes
            .iter()
            .filter(|(note, _)| resent.iter().any(|kind| note.starts_with(kind)))
            .map(|(_, n)| n)
            .sum()
    }
}
