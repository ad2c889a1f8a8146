//! A whole rack: hosts, a switch, memory nodes and the control plane, in virtual time on a faulty network.
//!
//! The world simulates everything around the roles with one event queue: their drivers, the network, the
//! control plane's log on its disk, and restarts after crashes. Only the control API has no faults of its
//! own, as over HTTP: a call is answered once, or fails because the control plane is down.

use crate::describe::Describer;
use crate::sim_node::{RoleId, SimEnv, SimNode};
use crate::{HostMachine, Journal, Network, Plan};
use farmem_control::api::{ApiError, Call, ErrorCode, Request, Response};
use farmem_control::keys::{Credentials, Ring};
use farmem_control::{Config, Control, Out, Record};
use farmem_host::{Config as HostConfig, ControlRequest, Done, Host};
use farmem_machine::{Duration, Event, Instant, Machine as _, Port, Rng};
use farmem_memnode::{MemNode, Out as NodeOut, VecStore};
use farmem_switch::{Budgets, Switch};
use farmem_transport::PeerChange;
use farmem_wire::Pmtu;
use files::Disks;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

mod fabric;
mod files;
mod hosts;
mod joins;
#[cfg(test)]
mod tests;

/// The layout of a rack. Nodes and hosts are numbered from 1, as by the control plane.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Number of memory nodes.
    pub nodes: u16,
    /// Number of hosts.
    pub hosts: u16,
    /// Number of pods of a FatTree of index switches; 0 for no index.
    pub pods: u16,
    /// Number of edge switches of a pod. The nodes are divided among all edge switches, in order.
    pub edges: u16,
    /// Length in bytes of each memory node.
    pub capacity: u64,
    /// The switch's tables.
    pub budgets: Budgets,
    /// Maximum number of memory nodes that one request may cross.
    pub hops_max: u8,
    /// Maximum number of traversals of a host that share one datagram.
    pub pairs_max: u16,
    /// Maximum number of connections of a host's domain to a memory node. If there are several, each has a
    /// small window.
    pub connections_each: usize,
    /// The path MTU of all connections and of all memory nodes.
    pub pmtu: Pmtu,
    /// Time without an answer after which the control plane or a host retransmits.
    pub timeout: Duration,
    /// Maximum number of retransmissions.
    pub retries_max: u32,
    /// Time for which a host may use cached pages without contact.
    pub lease: Duration,
    /// Time for which a host, and a domain without users, stay without contact; `None` for ever.
    pub host_lease: Option<Duration>,
    /// Time between two listings of the directory.
    pub epoch: Duration,
    /// True if hosts number their queue pairs themselves, all of them from 2 on, as RoCE cards do (PROTOCOL
    /// 14.1).
    pub cards: bool,
}

impl Layout {
    /// Returns a layout of four nodes of 1 MiB and two hosts. Timeouts are long compared with the network's
    /// delays, and short compared with a campaign.
    #[must_use]
    pub fn small() -> Self {
        let Config { lease, epoch, .. } = Config::new(RoleId::Control.gid());
        Self {
            nodes: 4,
            hosts: 2,
            pods: 0,
            edges: 0,
            capacity: 1 << 20,
            budgets: Budgets::default(),
            hops_max: 64,
            pairs_max: 1,
            connections_each: 1,
            pmtu: Pmtu::B1024,
            timeout: Duration::from_millis(1),
            retries_max: 7,
            lease,
            host_lease: None,
            epoch,
            cards: false,
        }
    }
}

/// Time after which a refused join is repeated.
const JOIN_AGAIN: Duration = Duration::from_millis(1);
/// Maximum time for which an unavailable call is repeated.
const CALL_MAX: Duration = Duration::from_secs(1);

/// The constructor of the machine on a joined host.
type Make<H> = fn(HostConfig, &mut Rng) -> H;

/// The rack and its environment. Its hosts run `H`.
#[derive(Debug)]
pub struct World<H: HostMachine = Host> {
    layout: Layout,
    rng: Rng,
    env: SimEnv,
    control: SimNode<Control>,
    /// The control plane's disk.
    log: Vec<Record>,
    switch: SimNode<Switch>,
    nodes: BTreeMap<u16, SimNode<MemNode<VecStore>>>,
    /// The disks, which survive crashes of nodes.
    disks: Disks,
    hosts: BTreeMap<u16, SimNode<H>>,
    index: BTreeMap<u16, SimNode<Switch>>,
    make: Make<H>,
    /// The first address of each node's memory.
    bases: BTreeMap<u16, u64>,
    next_ticket: u64,
    /// The keys given to all callers, which trust each other.
    ring: Ring,
    pending: BTreeMap<u64, PendingRequest>,
    replies: BTreeMap<u64, Result<Response, ApiError>>,
    done: VecDeque<(u16, Done)>,
    /// Other outputs of hosts that are not taken yet.
    own: VecDeque<(u16, H::Own)>,
    /// Requests of hosts to the control plane that are not sent yet.
    control_requests: VecDeque<(u16, ControlRequest)>,
    /// Connections that were set up, by host, domain and node.
    connected: BTreeMap<(u16, u32, u16), Connected>,
    /// Scheduled starts of machines.
    starts: BTreeSet<(Instant, RoleId)>,
    /// Times at which the world's user wants control.
    alarms: BTreeSet<Instant>,
    crashes: u64,
}

/// A call that the control plane has not answered.
#[derive(Debug)]
struct PendingRequest {
    request: Request,
    by: RoleId,
    /// The start of `by` that made the call: answers to an earlier start are dropped.
    start: u32,
    /// The request of the host's role that the answer is for, if any.
    request_of_host: Option<ControlRequest>,
}

/// A host's connection in a domain to a node.
#[derive(Clone, Copy, Debug)]
struct Connected {
    /// Number of setups.
    count: u32,
    /// The start of the node that the connection belongs to.
    starts: u32,
}

impl World {
    /// Returns a rack of host roles in which no role runs yet. Keeps the last `lines_max` trace lines.
    #[must_use]
    pub fn new(layout: Layout, plan: Plan, seed: u64, lines_max: usize) -> Self {
        Self::of(layout, plan, seed, lines_max, |config, _| Host::new(config))
    }
}

impl<H: HostMachine> World<H> {
    /// Returns a rack whose joined hosts run the machine built by `make`.
    #[must_use]
    pub fn of(layout: Layout, plan: Plan, seed: u64, lines_max: usize, make: Make<H>) -> Self {
        let mut rng = Rng::from_number(seed);
        let env = SimEnv {
            now: Instant::ZERO,
            network: Network::new(plan, Rng::from_number(rng.next_u64())),
            journal: Journal::new(lines_max),
            describer: Describer::default(),
            unroutable: 0,
        };
        let table = |change: &PeerChange| Some(*change);
        let of_node = |out: &NodeOut| match out {
            NodeOut::Peer(change) => Some(*change),
            NodeOut::File(_) => None,
        };
        let visits: fn(&MemNode<VecStore>) -> u64 = |node| node.stats().iterations;
        let node = |n| (n, SimNode::new(RoleId::Node(n), of_node as fn(&NodeOut) -> _).visiting(visits));
        let host = |n| (n, SimNode::new(RoleId::Host(n), (|_| None) as fn(&H::Out) -> _));
        let control = SimNode::new(RoleId::Control, |out| match out {
            Out::Peer(change) => Some(*change),
            Out::Reply { .. } | Out::Persist(_) | Out::Challenge { .. } => None,
        });
        Self {
            layout,
            rng,
            env,
            control,
            log: Vec::new(),
            switch: SimNode::new(RoleId::Switch, table),
            nodes: (1..=layout.nodes).map(node).collect(),
            disks: Disks::default(),
            hosts: (1..=layout.hosts).map(host).collect(),
            index: (1..=layout.index_switches())
                .map(|n| (n, SimNode::new(RoleId::Index(n), table as fn(&PeerChange) -> _)))
                .collect(),
            make,
            bases: BTreeMap::new(),
            next_ticket: 0,
            ring: Ring::default(),
            pending: BTreeMap::new(),
            replies: BTreeMap::new(),
            done: VecDeque::new(),
            own: VecDeque::new(),
            control_requests: VecDeque::new(),
            connected: BTreeMap::new(),
            starts: BTreeSet::new(),
            alarms: BTreeSet::new(),
            crashes: 0,
        }
    }

    /// Starts every machine, in the order of a real rack: control plane, switch, nodes, hosts.
    pub fn start_all(&mut self) {
        let all = self.all_roles();
        all.into_iter().for_each(|role_id| self.start(role_id));
    }

    /// Ends all faults: heals the network, and starts every machine that is down.
    pub fn end_faults(&mut self) {
        self.network_mut().heal();
        self.start_all();
    }

    /// Starts every machine, and lets time pass until all are up.
    ///
    /// # Panics
    /// If they do not come up.
    pub fn bring_up(&mut self) {
        self.start_all();
        while !self.all_roles().into_iter().all(|role_id| self.is_up(role_id)) {
            assert!(self.step(), "the rack comes up");
        }
    }

    /// Makes a call for `by` and lets time pass until it is answered. An unavailable call is repeated for a
    /// second.
    ///
    /// # Errors
    /// The control plane's error.
    ///
    /// # Panics
    /// If the control plane answers another request.
    pub fn call<C: Call>(&mut self, by: RoleId, call: C) -> Result<C::Answer, ApiError> {
        let (request, end): (Request, _) = (call.into(), self.now() + CALL_MAX);
        loop {
            let ticket = self.ask(by, request.clone());
            let result = loop {
                match self.take_reply(ticket) {
                    Some(result) => break result,
                    None if self.step() => {}
                    None => break Err(unreachable_control()),
                }
            };
            let again = self.now() + JOIN_AGAIN;
            match result {
                Err(error) if error.code == ErrorCode::Unavailable && again < end => {
                    self.alarm(again);
                    while self.now() < again && self.step() {}
                }
                result => {
                    let typed = |response| C::Answer::try_from(response).ok().expect("its own answer");
                    return result.map(typed);
                }
            }
        }
    }

    /// Returns every machine, the control plane first.
    #[must_use]
    pub fn all_roles(&self) -> Vec<RoleId> {
        let nodes = self.nodes.keys().map(|&n| RoleId::Node(n));
        let hosts = self.hosts.keys().map(|&n| RoleId::Host(n));
        let index = self.index.keys().map(|&n| RoleId::Index(n));
        [RoleId::Control, RoleId::Switch].into_iter().chain(nodes).chain(index).chain(hosts).collect()
    }

    /// Calls the control plane on behalf of `by`. [`World::take_reply`] returns the answer.
    pub fn ask(&mut self, by: RoleId, request: impl Into<Request>) -> u64 {
        let ticket = self.ask_for(by, request.into(), None);
        self.carry_control_requests();
        ticket
    }

    fn ask_for(&mut self, by: RoleId, request: Request, request_of_host: Option<ControlRequest>) -> u64 {
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        if request_of_host.is_none() {
            self.env.journal.line(|| format!("{by:?} asks {ticket}: {request:?}"));
        }
        let start = self.starts_of(by);
        self.pending.insert(ticket, PendingRequest { request: request.clone(), by, start, request_of_host });
        if self.control.role.is_none() {
            self.answer(ticket, Err(unreachable_control()));
            return ticket;
        }
        let shown = Credentials { keys: self.ring.show(&request), ..Credentials::default() };
        self.ring.using(&request);
        let ask = farmem_control::Submitted { ticket, request, shown };
        self.control_event(Event::Local(ask));
        ticket
    }

    /// Takes the answer to a call, if it has arrived.
    pub fn take_reply(&mut self, ticket: u64) -> Option<Result<Response, ApiError>> {
        self.replies.remove(&ticket)
    }

    /// Returns the time of the next event.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let start = self.starts.first().map(|&(at, _)| at);
        let next = [self.env.network.next_due(), self.next_wake(), self.disks.next_due()];
        [start, self.alarms.first().copied()].into_iter().chain(next).flatten().min()
    }

    /// Returns the time of the next wake of a role.
    #[must_use]
    pub fn next_wake(&self) -> Option<Instant> {
        let nodes = self.nodes.values().filter_map(SimNode::next_wake);
        let hosts = self.hosts.values().filter_map(SimNode::next_wake);
        let rest = [self.control.next_wake(), self.switch.next_wake()].into_iter().flatten();
        nodes.chain(hosts).chain(rest).min()
    }

    /// Handles the next event. Returns false if there is none: the rack is at rest.
    pub fn step(&mut self) -> bool {
        let Some(due) = self.next_due() else { return false };
        self.env.now = self.env.now.max(due);
        let now = self.env.now;
        self.alarms = self.alarms.split_off(&(now + Duration::from_nanos(1)));
        if let Some(&(at, role_id)) = self.starts.first()
            && at <= now
        {
            self.starts.remove(&(at, role_id));
            self.start(role_id);
        } else if let Some(in_flight) = self.env.network.take_due(now) {
            self.deliver(in_flight);
        } else if !self.turn_disk() {
            self.wake();
        }
        true
    }

    /// Delivers one packet to its machine.
    pub(crate) fn deliver(&mut self, in_flight: crate::network::InFlight) {
        let SimEnv { now, network, journal, describer, .. } = &mut self.env;
        if let Some(frame) = network.open(&in_flight) {
            let (from, to) = (in_flight.from, in_flight.to);
            journal.event(*now, u64::from(to.0[13]) << 16 | u64::from(to.0[15]), frame);
            journal.line(|| {
                let (from_name, to_name) = (crate::sim_node::name(from), crate::sim_node::name(to));
                format!("{from_name} => {to_name}: {}", describer.frame(from, to, frame))
            });
            self.hand_over(from, to, frame);
        } else {
            let to = crate::sim_node::name(in_flight.to);
            journal.line(|| {
                format!("{} => {to}: damaged, dropped for its ICRC", crate::sim_node::name(in_flight.from))
            });
        }
        self.env.network.recycle(in_flight);
        self.carry_control_requests();
    }

    fn hand_over(&mut self, from: farmem_wire::Gid, to: farmem_wire::Gid, frame: &[u8]) {
        let role_id = RoleId::at(to);
        if let Some(down) = role_id.filter(|&role_id| !self.is_up(role_id)) {
            self.env.journal.line(|| format!("  {down:?} is down"));
        }
        let env = &mut self.env;
        match role_id {
            Some(RoleId::Control) => {
                let mut outs = Vec::new();
                self.control.frame(from, frame, env, |out| outs.push(out));
                self.control_outs(outs);
            }
            Some(RoleId::Switch) => self.switch.frame(from, frame, env, |_| {}),
            Some(RoleId::Node(n)) => {
                let mut outs = Vec::new();
                if let Some(sim_node) = self.nodes.get_mut(&n) {
                    sim_node.frame(from, frame, env, |out| outs.push(out));
                }
                self.node_outs(n, outs);
            }
            Some(RoleId::Index(n)) => {
                if let Some(sim_node) = self.index.get_mut(&n) {
                    sim_node.frame(from, frame, env, |_| {});
                }
            }
            Some(RoleId::Host(n)) => {
                let port = self.hosts.get(&n).map_or(Port::UNKNOWN, |sim_node| sim_node.port_of(from));
                self.host_event(n, Event::Frame { port, bytes: frame });
            }
            None => env.journal.line(|| "no role is there".to_owned()),
        }
    }

    /// Wakes every role that is due.
    pub(crate) fn wake(&mut self) {
        let now = self.env.now;
        let due = |wake: Option<Instant>| wake.is_some_and(|at| at <= now);
        if due(self.control.next_wake()) {
            self.control_event(Event::Wake);
        }
        let env = &mut self.env;
        if due(self.switch.next_wake()) {
            self.switch.event(Event::Wake, env, |_| {});
        }
        let nodes = self.nodes.iter().filter(|(_, sim_node)| due(sim_node.next_wake()));
        let nodes: Vec<u16> = nodes.map(|(&n, _)| n).collect();
        nodes.into_iter().for_each(|n| self.node_event(n, Event::Wake));
        let hosts = self.hosts.iter().filter(|(_, sim_node)| due(sim_node.next_wake()));
        let hosts: Vec<u16> = hosts.map(|(&n, _)| n).collect();
        hosts.into_iter().for_each(|n| self.host_event(n, Event::Wake));
        self.carry_control_requests();
    }

    /// Crashes a role at once: its state is lost, and its frames in flight still arrive. Has no effect on a
    /// role that is down.
    pub fn crash(&mut self, role_id: RoleId) {
        if !self.is_up(role_id) {
            return;
        }
        self.crashes += 1;
        self.env.journal.line(|| format!("{role_id:?} crashes"));
        match role_id {
            RoleId::Control => {
                self.control.stop();
                // A caller that waits for an answer notices that the connection is gone.
                let open: Vec<u64> = self.pending.keys().copied().collect();
                open.into_iter().for_each(|ticket| self.answer(ticket, Err(unreachable_control())));
            }
            RoleId::Switch => self.switch.stop(),
            RoleId::Node(n) => {
                self.nodes.entry(n).and_modify(SimNode::stop);
            }
            RoleId::Index(n) => {
                self.index.entry(n).and_modify(SimNode::stop);
            }
            RoleId::Host(n) => {
                self.hosts.entry(n).and_modify(SimNode::stop);
                self.done.retain(|(host, _)| *host != n);
                self.own.retain(|(host, _)| *host != n);
                self.control_requests.retain(|(host, _)| *host != n);
            }
        }
        self.carry_control_requests();
    }

    /// Crashes a role as [`World::crash`] does, and restarts it after `down`.
    pub fn crash_for(&mut self, role_id: RoleId, down: Duration) {
        self.crash(role_id);
        self.start_later(role_id, down);
    }

    /// Schedules the start of a machine, `after` from now.
    pub fn start_later(&mut self, role_id: RoleId, after: Duration) {
        self.starts.insert((self.env.now + after, role_id));
    }

    /// Returns the switch's table sizes, effective from its next start on.
    pub const fn budgets_mut(&mut self) -> &mut Budgets {
        &mut self.layout.budgets
    }

    /// Makes time stop at `at`, even without an event.
    pub fn alarm(&mut self, at: Instant) {
        self.alarms.insert(at);
    }

    /// Returns true while the role runs.
    #[must_use]
    pub fn is_up(&self, role_id: RoleId) -> bool {
        match role_id {
            RoleId::Control => self.control.role.is_some(),
            RoleId::Switch => self.switch.role.is_some(),
            RoleId::Node(n) => self.nodes.get(&n).is_some_and(|sim_node| sim_node.role.is_some()),
            RoleId::Index(n) => self.index.get(&n).is_some_and(|sim_node| sim_node.role.is_some()),
            RoleId::Host(n) => self.hosts.get(&n).is_some_and(|sim_node| sim_node.role.is_some()),
        }
    }

    /// Returns the number of starts of a machine.
    #[must_use]
    pub fn starts_of(&self, role_id: RoleId) -> u32 {
        match role_id {
            RoleId::Control => self.control.starts,
            RoleId::Switch => self.switch.starts,
            RoleId::Node(n) => self.nodes.get(&n).map_or(0, |sim_node| sim_node.starts),
            RoleId::Index(n) => self.index.get(&n).map_or(0, |sim_node| sim_node.starts),
            RoleId::Host(n) => self.hosts.get(&n).map_or(0, |sim_node| sim_node.starts),
        }
    }

    /// Returns the number of crashes so far.
    #[must_use]
    pub const fn crashes(&self) -> u64 {
        self.crashes
    }

    /// Returns the virtual time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.env.now
    }

    /// Advances time without an event.
    pub(crate) fn set_now(&mut self, now: Instant) {
        assert!(now >= self.env.now, "time does not go back");
        self.env.now = now;
    }

    /// Returns the network.
    #[must_use]
    pub const fn network(&self) -> &Network {
        &self.env.network
    }

    /// Returns the network, to interfere with.
    pub const fn network_mut(&mut self) -> &mut Network {
        &mut self.env.network
    }

    /// Returns the journal.
    #[must_use]
    pub const fn journal(&self) -> &Journal {
        &self.env.journal
    }

    /// Returns the journal, to add to it.
    pub const fn journal_mut(&mut self) -> &mut Journal {
        &mut self.env.journal
    }

    /// Describes the packets in flight, one line each, in the order of their due times.
    #[must_use]
    pub fn describe_network(&mut self) -> Vec<String> {
        let SimEnv { network, describer, .. } = &mut self.env;
        let name = crate::sim_node::name;
        let line = |(_, in_flight): (_, &crate::network::InFlight)| {
            let what = describer.frame(in_flight.from, in_flight.to, in_flight.frame());
            format!("{} -> {}: {what}", name(in_flight.from), name(in_flight.to))
        };
        network.on_the_way().map(line).collect()
    }

    /// Returns the length in bytes of each memory node.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.layout.capacity
    }

    /// Returns the first address of a memory node.
    #[must_use]
    pub fn node_base(&self, node: u16) -> Option<u64> {
        self.bases.get(&node).copied()
    }

    /// Returns the bytes of a memory node, while it is up.
    #[must_use]
    pub fn store(&self, node: u16) -> Option<&VecStore> {
        self.nodes.get(&node)?.role.as_ref().map(MemNode::store)
    }

    /// Returns the switch, while it is up.
    #[must_use]
    pub const fn switch(&self) -> Option<&Switch> {
        self.switch.role.as_ref()
    }

    /// Asserts every invariant of every role.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn check(&self) {
        self.control.role.iter().for_each(|role| role.check());
        self.switch.role.iter().for_each(|role| role.check());
        self.nodes.values().filter_map(|sim_node| sim_node.role.as_ref()).for_each(|role| role.check());
        self.index.values().filter_map(|sim_node| sim_node.role.as_ref()).for_each(|role| role.check());
        self.hosts.values().filter_map(|sim_node| sim_node.role.as_ref()).for_each(|role| role.check());
    }
}

/// Returns the error of a caller that cannot connect to the control plane.
fn unreachable_control() -> ApiError {
    ApiError {
        code: ErrorCode::Unavailable,
        message: "the control plane does not answer".to_owned(),
        remedy: "ask again when it is up".to_owned(),
    }
}
