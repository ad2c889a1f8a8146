//! A rack at work under faults: programs of two domains on every host allocate, free, read, write, count, traverse, lend and do
//! what they may not, while the network loses packets, machines crash and, in every second world, memory moves from node to node.
//!
//! Phases, as in TigerBeetle's VOPR: first *safety*, with faults; then the faults end, every machine comes up again, and everything under
//! way must end (*liveness*); then every byte is read once more and compared with the model, and the control
//! plane's list of vmas with the clients'.

mod calls;
mod chains;
mod ends;
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

/// Random programs on a whole rack, with everything it can do and everything that can happen to it.
pub fn campaign(campaign: &Campaign, progress: &mut dyn FnMut(u64)) -> Report {
    campaign::run("rack", campaign, world, progress)
}

/// Domains, and so programs on each host.
const DOMAINS: usize = 2;
/// Hosts with programs that behave. A rogue is one more, with a domain of its own.
const HOSTS: u16 = 2;
/// Bytes of the vma that a counter is in.
const COUNTER_VMA_LEN: u32 = 1 << PAGE_SHIFT;
/// Virtual time without an ended operation after which a rack is stuck.
const PATIENCE: Duration = Duration::from_secs(1);
/// After a machine came up, time in which requests may still be refused for tables that are being filled.
const SETTLING: Duration = Duration::from_millis(10);
/// The note for operations that were refused because what they asked for went with a memory node.
const TOLD_LOST: &str = "rack.ToldLost";
/// Lines of trace kept.
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

/// The rack, its programs, and what they should see.
struct Rack {
    world: World,
    rng: Rng,
    plan: Plan,
    /// Since when there are no faults any more.
    healed: Option<Instant>,
    clients: Vec<Client>,
    /// The control plane's numbers of the domains.
    domains: Vec<u32>,
    model: Model,
    /// Memory moves.
    moves: bool,
    /// Hosts send traversals that begin together in batches.
    in_batches: bool,
    counters: Vec<Counter>,
    /// The rogue's own memory.
    rogue_vma: Option<u64>,
    lists: Vec<List>,
    /// What adds along counters.
    adding: Program,
    programs: Programs,
    /// Freed, and not handed out again.
    freed: Vec<u64>,
    /// Vmas that were asked for, ever: what a forbidden access is judged by.
    allocations: u64,
    /// Slots, each with its owner, and counters that have still to be read at the end.
    unread: BTreeSet<(usize, SlotId)>,
    uncounted: BTreeSet<usize>,
    /// An allocation failed in a way that does not say whether it was begun.
    unsure_allocation: bool,
    /// Operations that were told that memory is lost.
    told_lost: u64,
    tasks: BTreeMap<u64, Task>,
    calls: BTreeMap<u64, (usize, Call)>,
    /// Calls to be made again.
    again: Vec<(usize, Call)>,
    next_ticket: u64,
    started: u64,
    ended: u64,
    progress: Instant,
    /// How often each node lost its memory.
    losses: BTreeMap<u16, u32>,
    /// How often each role was noted to be gone.
    gone: BTreeMap<RoleId, u64>,
    /// Since when the switch and all nodes have been up.
    settled: Instant,
    /// And the control plane.
    controlled: Instant,
    next_crash: Instant,
}

impl Rack {
    fn new(seed: u64, plan: Plan, trace: bool) -> Self {
        let mut rng = Rng::from_number(seed ^ 0x7ac4);
        let mut layout = Layout::small();
        // Now and then a switch so small that not everything fits, and requests that may cross few nodes at once.
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
        // In some, domains have several connections to a node, each of which is soon full.
        layout.connections_each = if seed % 5 == 4 { 3 } else { 1 };
        // In every other one hosts number their queue pairs themselves, all of them alike.
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

    /// Everything under way ended, and every machine and connection is up.
    fn is_at_rest(&self) -> bool {
        let up = self.world.everybody().into_iter().all(|role_id| self.world.is_up(role_id));
        let idle = self.tasks.is_empty() && self.calls.is_empty() && self.again.is_empty();
        up && idle && self.clients.iter().all(Client::is_ready)
    }

    /// One event, and what follows from it.
    fn step(&mut self) -> Result<(), End> {
        let ended = self.ended;
        let moved = self.world.step();
        let now = self.world.now();
        let steady = |role_id: &RoleId| matches!(role_id, RoleId::Switch | RoleId::Node(_));
        if !self
            .world
            .everybody()
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
        self.take_ends()?;
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

    /// Under a plan with crashes: takes a machine down, now and then two at once, when all have been up for a while.
    fn crash_a_role(&mut self) {
        let now = self.world.now();
        if self.plan.crash_every == Duration::ZERO {
            return;
        }
        let all = self.world.everybody();
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

    /// The operator's part: a role that is gone must join again (PROTOCOL 8.17), a switch with larger tables (PROTOCOL 9.11).
    fn replace_gone(&mut self) {
        for role_id in self.world.everybody() {
            let mark = match role_id {
                RoleId::Switch => "control.Gone(Switch)".to_owned(),
                RoleId::Node(node) => format!("control.Gone(Node({node}))"),
                RoleId::Index(index) => format!("control.Gone(Index({index}))"),
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
        // Longer than any packet is held (PROTOCOL 9.2); now and then so long that no host waits any more.
        let most = if self.rng.chance(1, 3) { 150_000 } else { 20_000 };
        let down = Duration::from_millis(2) + Duration::from_micros(u64::from(self.rng.below(most)));
        self.world.crash_for(role_id, down);
        match role_id {
            RoleId::Node(node) => self.node_lost(node),
            RoleId::Host(host) => self.host_lost(host),
            RoleId::Control | RoleId::Switch | RoleId::Index(_) => {}
        }
    }

    /// The node's memory is gone (PROTOCOL 9.8). An operation that was under way there may still be executed when the loss is accepted, if it
    /// goes through the switch.
    fn node_lost(&mut self, node: u16) {
        *self.losses.entry(node).or_default() += 1;
        let still: BTreeMap<SlotId, u64> = self.tasks.values().filter_map(Task::still_to_come).collect();
        self.model.node_lost(node, &still);
        self.counters_lost(node);
        self.lists_lost(node);
    }

    /// Every operation of the host ended without an answer.
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

    /// True when a role's tables may have been empty at some time since `since`.
    fn was_disturbed(&self, since: Instant) -> bool {
        since < self.settled + SETTLING
    }

    /// True when the control plane may have been away at some time since `since`, or busy with machines that had to join again.
    fn was_out_of_control(&self, since: Instant) -> bool {
        since < self.controlled + SETTLING || self.was_disturbed(since)
    }

    /// True when lost packets can explain that an operation which began at `since` got no answer.
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
