//! A rack within one process: all roles run to completion on the caller's thread, without sockets, privileges
//! and ICRC.
//!
//! Frames pass from a role's outbox to the next role's `handle` by port number. No frame is lost, so time
//! advances only if all roles are idle. Then time jumps to the next timer, as in a simulation.

use crate::answers::answer_to;
use crate::error::Error;
use farmem_control::api::{ApiError, Call, Request, Response};
use farmem_control::{Config, Control, Out as ControlOut, Submitted};
use farmem_host::{Host, HostRequest, Out as HostOut};
use farmem_link::{Compiler, MappedStore};
use farmem_machine::{Action, Event, Instant, Machine, Outbox, Port, Rng};
use farmem_memnode::MemNode;
use farmem_switch::Switch;
use std::collections::{BTreeMap, VecDeque};

/// A role with its outboxes.
struct EmbeddedRole<M: Machine> {
    machine: M,
    outbox: Outbox<M::Out, M::Note>,
    /// The other outbox, so that one is drained while the role fills the next.
    spare: Outbox<M::Out, M::Note>,
    queued: bool,
}

impl<M: Machine> EmbeddedRole<M> {
    fn new(machine: M) -> Self {
        Self { machine, outbox: Outbox::new(), spare: Outbox::new(), queued: false }
    }

    /// Passes an event to the role. Returns true if the caller must queue the role to drain its outbox.
    fn give(&mut self, now: Instant, event: Event<'_, M::In>) -> bool {
        self.machine.handle(now, event, &mut self.outbox);
        !self.outbox.is_empty() && !core::mem::replace(&mut self.queued, true)
    }

    /// Passes a frame to a role that collects frames and acts on a wake-up. Returns true as
    /// [`EmbeddedRole::give`] does, and also if the role needs a wake-up now.
    fn gather(&mut self, now: Instant, event: Event<'_, M::In>) -> bool {
        self.machine.handle(now, event, &mut self.outbox);
        let acts = !self.outbox.is_empty() || self.is_due(now);
        acts && !core::mem::replace(&mut self.queued, true)
    }

    fn is_due(&self, now: Instant) -> bool {
        self.machine.next_wake().is_some_and(|at| at <= now)
    }

    /// Lets the role process all frames that it has collected.
    fn wake_while_due(&mut self, now: Instant) {
        while self.is_due(now) {
            self.machine.handle(now, Event::Wake, &mut self.outbox);
        }
    }

    /// Takes the role's outbox; the caller returns it by [`EmbeddedRole::put_back`].
    fn take(&mut self) -> Outbox<M::Out, M::Note> {
        self.queued = false;
        core::mem::replace(&mut self.outbox, core::mem::take(&mut self.spare))
    }

    fn put_back(&mut self, emptied: Outbox<M::Out, M::Note>) {
        self.spare = emptied;
    }
}

/// The roles of a rack within one process.
pub(crate) struct World {
    now: Instant,
    control: EmbeddedRole<Control>,
    switch: Option<EmbeddedRole<Switch>>,
    nodes: Vec<Option<EmbeddedRole<MemNode<MappedStore, Compiler>>>>,
    hosts: Vec<Option<EmbeddedRole<Host>>>,
    /// The switches of the index.
    index: Vec<Option<EmbeddedRole<Switch>>>,
    /// Outputs of each host that its client has not taken yet.
    said: Vec<VecDeque<HostOut>>,
    replies: BTreeMap<u64, Result<Response, ApiError>>,
    tickets: u64,
    clients: u32,
    /// Roles with a non-empty outbox, in order.
    queue: VecDeque<Port>,
    /// Number of frames between roles.
    frames: u64,
    /// Numbers of frames that each host sent and received.
    host_frames: Vec<(u64, u64)>,
}

/// Maximum number of timer jumps until a request is answered; more are a bug, because no frame is lost. The
/// longest image of the switch's soft state takes 2,185 jumps, one for each burst (PROTOCOL 13.8).
const JUMPS_MAX: u32 = 8192;

impl World {
    pub(crate) fn new(config: Config, rng: Rng) -> Self {
        Self {
            now: Instant::ZERO,
            control: EmbeddedRole::new(Control::new(config, rng)),
            switch: None,
            nodes: Vec::new(),
            hosts: Vec::new(),
            index: Vec::new(),
            said: Vec::new(),
            replies: BTreeMap::new(),
            tickets: 0,
            clients: 0,
            queue: VecDeque::new(),
            frames: 0,
            host_frames: Vec::new(),
        }
    }

    /// Calls the control plane and runs the roles until it answers.
    pub(crate) fn call<C: Call>(&mut self, call: C) -> Result<C::Answer, Error> {
        answer_to(call, |request| self.ask(request))
    }

    fn ask(&mut self, request: Request) -> Result<Response, Error> {
        self.tickets += 1;
        let ticket = self.tickets;
        let event = Event::Local(Submitted::new(ticket, request));
        if self.control.give(self.now, event) {
            self.queue.push_back(Port::CONTROL);
        }
        for _ in 0..JUMPS_MAX {
            self.run();
            if let Some(reply) = self.replies.remove(&ticket) {
                return reply.map_err(Error::from);
            }
            self.jump();
        }
        panic!("the control plane owes an answer to ticket {ticket}");
    }

    pub(crate) fn add_switch(&mut self, switch: Switch) {
        self.switch = Some(EmbeddedRole::new(switch));
    }

    pub(crate) fn add_index(&mut self, index: u16, switch: Switch) {
        put(&mut self.index, index, EmbeddedRole::new(switch));
    }

    pub(crate) fn add_node(&mut self, node: u16, role: MemNode<MappedStore, Compiler>) {
        put(&mut self.nodes, node, EmbeddedRole::new(role));
    }

    /// Removes the node's role; later frames to the node are lost.
    pub(crate) fn remove_node(&mut self, node: u16) {
        if let Some(role) = self.nodes.get_mut(usize::from(node)) {
            *role = None;
        }
    }

    pub(crate) fn add_host(&mut self, host: u16, role: Host) {
        put(&mut self.hosts, host, EmbeddedRole::new(role));
        self.said.resize_with(self.hosts.len(), VecDeque::new);
        self.host_frames.resize(self.hosts.len(), (0, 0));
    }

    /// Passes a host's request to its role and runs the roles until all are idle.
    pub(crate) fn submit(&mut self, host: u16, ask: HostRequest) {
        self.now += farmem_machine::Duration::from_nanos(1);
        let role =
            self.hosts[usize::from(host)].as_mut().expect("the host was added when its client was made");
        if role.give(self.now, Event::Local(ask)) {
            self.queue.push_back(Port::host(host));
        }
        self.run();
    }

    /// Returns the number of the next client, from 1.
    pub(crate) fn next_client(&mut self) -> u32 {
        self.clients += 1;
        self.clients
    }

    /// Returns a host's role.
    pub(crate) fn host(&self, host: u16) -> &Host {
        &self.hosts[usize::from(host)].as_ref().expect("the host was added when its client was made").machine
    }

    /// Returns a host's next output.
    pub(crate) fn pop(&mut self, host: u16) -> Option<HostOut> {
        self.said[usize::from(host)].pop_front()
    }

    /// Returns the number of frames that roles have sent so far.
    pub(crate) const fn frames(&self) -> u64 {
        self.frames
    }

    /// Returns the numbers of frames that a host has sent and received so far.
    pub(crate) fn host_frames(&self, host: u16) -> (u64, u64) {
        self.host_frames[usize::from(host)]
    }

    /// Advances the time to the next timer and runs the roles. Returns false if no timer runs.
    pub(crate) fn jump(&mut self) -> bool {
        let timers =
            [self.control.machine.next_wake(), self.switch.as_ref().and_then(|s| s.machine.next_wake())];
        let nodes = self.nodes.iter().flatten().filter_map(|s| s.machine.next_wake());
        let hosts = self.hosts.iter().flatten().filter_map(|s| s.machine.next_wake());
        let Some(next) = timers.into_iter().flatten().chain(nodes).chain(hosts).min() else { return false };
        self.now = self.now.max(next);
        let now = self.now;
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.control.machine.next_wake()) && self.control.give(now, Event::Wake) {
            self.queue.push_back(Port::CONTROL);
        }
        if let Some(role) = &mut self.switch
            && due(role.machine.next_wake())
            && role.give(now, Event::Wake)
        {
            self.queue.push_back(Port::SWITCH);
        }
        for (node, role) in roles(&mut self.nodes) {
            if due(role.machine.next_wake()) && role.give(now, Event::Wake) {
                self.queue.push_back(Port::node(node));
            }
        }
        for (host, role) in roles(&mut self.hosts) {
            if due(role.machine.next_wake()) && role.give(now, Event::Wake) {
                self.queue.push_back(Port::host(host));
            }
        }
        self.run();
        true
    }

    /// Drains outboxes until all are empty.
    fn run(&mut self) {
        while let Some(port) = self.queue.pop_front() {
            if port == Port::CONTROL {
                self.run_control();
            } else if port.is_switch() {
                self.run_switch(port);
            } else if let Some(node) = port.as_node() {
                self.run_node(node);
            } else if let Some(host) = port.as_host() {
                self.run_host(host);
            }
        }
    }

    fn run_control(&mut self) {
        let mut outbox = self.control.take();
        outbox.drain(|action| match action {
            Action::Send { port, frame } => self.deliver(Port::CONTROL, port, frame),
            Action::Local(ControlOut::Reply { ticket, result }) => {
                self.replies.insert(ticket, result);
            }
            // A rack within one process ends with the process, so its log is not kept, and ports need no
            // addresses.
            Action::Local(ControlOut::Persist(_) | ControlOut::Peer(_) | ControlOut::Challenge { .. })
            | Action::Note(_) => {}
        });
        self.control.put_back(outbox);
    }

    fn run_switch(&mut self, at: Port) {
        let Some(mut outbox) = self.switch_at(at).map(EmbeddedRole::take) else { return };
        outbox.drain(|action| {
            if let Action::Send { port, frame } = action {
                self.deliver(at, port, frame);
            }
        });
        if let Some(role) = self.switch_at(at) {
            role.put_back(outbox);
        }
    }

    /// Returns the rack's switch, or an index switch.
    fn switch_at(&mut self, port: Port) -> Option<&mut EmbeddedRole<Switch>> {
        match port.as_index() {
            Some(index) => role_mut(&mut self.index, index),
            None => self.switch.as_mut().filter(|_| port == Port::SWITCH),
        }
    }

    fn run_node(&mut self, node: u16) {
        let place = usize::from(node);
        let Some(role) = &mut self.nodes[place] else { return };
        role.wake_while_due(self.now);
        let mut outbox = role.take();
        outbox.drain(|action| {
            if let Action::Send { port, frame } = action {
                self.deliver(Port::node(node), port, frame);
            }
        });
        if let Some(role) = &mut self.nodes[place] {
            role.put_back(outbox);
        }
    }

    fn run_host(&mut self, host: u16) {
        let place = usize::from(host);
        let Some(mut outbox) = self.hosts[place].as_mut().map(EmbeddedRole::take) else { return };
        outbox.drain(|action| match action {
            Action::Send { port, frame } => self.deliver(Port::host(host), port, frame),
            Action::Local(out) => self.said[place].push_back(out),
            Action::Note(_) => {}
        });
        if let Some(role) = &mut self.hosts[place] {
            role.put_back(outbox);
        }
    }

    fn count(&mut self, from: Port, to: Port) {
        self.frames += 1;
        let of = |port: Port| port.as_host().map(usize::from);
        if let Some(host) = of(from).and_then(|host| self.host_frames.get_mut(host)) {
            host.0 += 1;
        }
        if let Some(host) = of(to).and_then(|host| self.host_frames.get_mut(host)) {
            host.1 += 1;
        }
    }

    /// Delivers a frame. A frame to a port without a role is lost, as on a network; the sender's timer
    /// repairs the loss.
    fn deliver(&mut self, from: Port, to: Port, bytes: &[u8]) {
        self.count(from, to);
        let queue = if to == Port::CONTROL {
            self.control.give(self.now, Event::Frame { port: from, bytes })
        } else if to.is_switch() {
            let now = self.now;
            self.switch_at(to).is_some_and(|role| role.give(now, Event::Frame { port: from, bytes }))
        } else if let Some(node) = to.as_node() {
            role_mut(&mut self.nodes, node)
                .is_some_and(|role| role.gather(self.now, Event::Frame { port: from, bytes }))
        } else if let Some(host) = to.as_host() {
            role_mut(&mut self.hosts, host)
                .is_some_and(|role| role.give(self.now, Event::Frame { port: from, bytes }))
        } else {
            false
        };
        if queue {
            self.queue.push_back(to);
        }
    }
}

fn role_mut<M: Machine>(roles: &mut [Option<EmbeddedRole<M>>], number: u16) -> Option<&mut EmbeddedRole<M>> {
    roles.get_mut(usize::from(number))?.as_mut()
}

fn put<M: Machine>(roles: &mut Vec<Option<EmbeddedRole<M>>>, number: u16, role: EmbeddedRole<M>) {
    let place = usize::from(number);
    if roles.len() <= place {
        roles.resize_with(place + 1, || None);
    }
    roles[place] = Some(role);
}

fn roles<M: Machine>(
    roles: &mut [Option<EmbeddedRole<M>>],
) -> impl Iterator<Item = (u16, &mut EmbeddedRole<M>)> {
    (0..=u16::MAX).zip(roles.iter_mut()).filter_map(|(number, role)| Some((number, role.as_mut()?)))
}
