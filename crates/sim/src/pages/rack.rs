//! The rack: its roles, the links between them, and the machines that die and start again.

use super::calls::{Call, LATE};
use super::memory::Memory;
use super::words::Words;
use super::{Step, THREADS};
use crate::network::Counters;
use crate::{Digest, Network, Plan};
use farmem_control::{Ask, Config as ControlConfig, Control, Out, Record};
use farmem_host::caching::{CacheAsk, CacheDone, CacheNote, CachingHost};
use farmem_machine::{Action, Duration, Event, Instant, Machine, Outbox, Port, Rng};
use farmem_memnode::{MemNode, VecStore};
use farmem_switch::Switch;
use farmem_wire::message::{PAGE_LEN, Page, PageBody, PageMessage};
use farmem_wire::{Gid, Packet, Pmtu, VirtAddr};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;

/// Pages of far memory: eight regions as they begin.
pub(super) const PAGES: u64 = 32;
/// How long what is cached may be used without a word from the control plane.
pub(super) const LEASE: Duration = Duration::from_millis(20);
/// The control plane's patience with a role, and its epoch.
const TIMEOUT: Duration = Duration::from_millis(1);
const EPOCH: Duration = Duration::from_millis(5);
/// How often drivers look after their roles.
const TEND: Duration = Duration::from_micros(500);
/// Roles die so much more rarely than the plan's machines do: a lease is to end now and then.
const CRASH_TIMES: u64 = 12;
/// Longest time that a machine stays down, in nanoseconds.
const DOWN_MAX: u32 = 6_000_000;
/// Lines of trace kept.
const TRACE_MAX: usize = 400;

/// A host while it is up.
pub(super) struct Life {
    pub(super) role: CachingHost<Memory>,
    pub(super) out: Outbox<CacheDone, CacheNote>,
    pub(super) generation: u16,
    pub(super) flushed: u64,
    /// Of its endpoint.
    pub(super) qkey: u32,
    /// Frames that its cache holds at most.
    pub(super) limit: usize,
    pub(super) has_session: bool,
    pub(super) lease_until: Instant,
    pub(super) next_renew: Instant,
}

/// A machine that runs programs, up or down.
#[derive(Default)]
pub(super) struct Seat {
    /// Its number in the rack, once it has one.
    pub(super) host: Option<u16>,
    pub(super) life: Option<Life>,
    pub(super) threads: [Option<Step>; THREADS],
    /// Down until then.
    pub(super) down_until: Instant,
    /// Its calls do not reach the control plane until then.
    pub(super) cut_until: Instant,
}

pub(super) struct Rack {
    pub(super) now: Instant,
    pub(super) rng: Rng,
    pub(super) plan: Plan,
    network: Network,
    pub(super) control: Option<Control>,
    pub(super) log: Vec<Record>,
    pub(super) switch: Option<Switch>,
    pub(super) nodes: [Option<MemNode<VecStore>>; NODES],
    /// Until when control plane, switch and each node are down.
    pub(super) down: [Instant; 2 + NODES],
    pub(super) seats: Vec<Seat>,
    pub(super) pmtu: Pmtu,
    /// Slots of the switch's directory.
    pub(super) slots: usize,
    /// Pages that move from node to node together.
    pub(super) block: u64,
    /// The node that has each block, when that was last asked.
    pub(super) owners: Vec<u16>,
    /// The first byte of far memory.
    pub(super) base: VirtAddr,
    pub(super) calls: BTreeMap<u64, Call>,
    pub(super) tickets: u64,
    /// Pages whose old bytes are asked for.
    pub(super) accepting: BTreeSet<Page>,
    /// Those of whose calls nobody will tell how they ended, and by when they did.
    pub(super) late_accepts: Vec<(Instant, Page)>,
    pub(super) words: Words,
    /// Something died, or a lease ended.
    pub(super) has_lost: bool,
    pub(super) crashes: u64,
    /// Threads begin nothing new, and machines stay up.
    pub(super) ending: bool,
    pub(super) ended: u64,
    pub(super) progress: Instant,
    pub(super) next_thread: Instant,
    next_tend: Instant,
    next_crash: Instant,
    keeps_trace: bool,
    pub(super) trace: VecDeque<String>,
    pub(super) notes: BTreeMap<String, u64>,
    pub(super) digest: Digest,
}

const CONTROL_GID: Gid = Gid::from_v4([10, 0, 0, 1]);
pub(super) const SWITCH_GID: Gid = Gid::from_v4([10, 0, 0, 2]);

/// Memory nodes. All pages are on the first at the beginning.
pub(super) const NODES: usize = 2;

/// The address of a memory node, counted from 0.
pub(super) fn node_gid(node: usize) -> Gid {
    Gid::from_v4([10, 0, 1, u8::try_from(node + 1).expect("few nodes")])
}

/// Its port: nodes join in order.
fn node_port(node: usize) -> Port {
    Port::node(u16::try_from(node + 1).expect("few nodes"))
}

pub(super) fn seat_gid(seat: usize) -> Gid {
    Gid::from_v4([10, 0, 2, u8::try_from(seat + 1).expect("few hosts")])
}

/// A frame in a line of the trace.
fn describe(frame: &[u8]) -> String {
    let payload = Packet::parse(frame).map(|packet| packet.payload);
    match payload.map(PageMessage::parse) {
        Ok(Ok(PageMessage { body: PageBody::Data(data, _), .. })) => format!("{data:?}"),
        Ok(Ok(PageMessage { body: PageBody::WriteBack(write_back, part, _), .. })) => {
            format!("{write_back:?} {part:?}")
        }
        Ok(Ok(message)) => format!("{:?}", message.body),
        _ => format!("{} bytes", frame.len()),
    }
}

/// What may die.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Control,
    Switch,
    Node(usize),
    Host(usize),
}

impl Rack {
    /// A rack in which all is up, and every host holds a lease.
    pub(super) fn new(seed: u64, plan: Plan, keeps_trace: bool) -> Self {
        let mut rng = Rng::from_number(seed ^ 0x9a6e5);
        let pmtu = [Pmtu::B256, Pmtu::B1024, Pmtu::B4096][rng.below(3) as usize];
        let seats = 2 + rng.below(3);
        let never = Instant::from_nanos(u64::MAX);
        let mut rack = Self {
            now: Instant::ZERO,
            plan,
            network: Network::new(Plan::CALM, Rng::from_number(rng.next_u64())),
            control: None,
            log: Vec::new(),
            switch: None,
            nodes: [const { None }; NODES],
            down: [Instant::ZERO; 2 + NODES],
            seats: (0..seats).map(|_| Seat::default()).collect(),
            pmtu,
            slots: 4 + rng.below(40) as usize,
            block: [1, 2, 4, 8][rng.below(4) as usize],
            owners: Vec::new(),
            base: VirtAddr(0),
            calls: BTreeMap::new(),
            tickets: 0,
            accepting: BTreeSet::new(),
            late_accepts: Vec::new(),
            words: Words::new(Page::FIRST, 0),
            has_lost: false,
            crashes: 0,
            ending: false,
            ended: 0,
            progress: Instant::ZERO,
            next_thread: never,
            next_tend: never,
            next_crash: never,
            keeps_trace,
            trace: VecDeque::new(),
            notes: BTreeMap::new(),
            digest: Digest::default(),
            rng,
        };
        rack.set_up();
        let pages = usize::try_from(PAGES).expect("few pages");
        rack.words = Words::new(Page::of(rack.base), pages);
        rack.network = Network::new(plan, Rng::from_number(rack.rng.next_u64()));
        (rack.next_thread, rack.progress) = (rack.now, rack.now);
        rack.plan_crash();
        rack
    }

    fn set_up(&mut self) {
        self.start_control();
        self.call(Call::Domain);
        self.until(|rack| rack.calls.is_empty());
        self.next_tend = self.now;
        let up = |rack: &Self| rack.switch.is_some() && rack.nodes.iter().all(Option::is_some);
        self.until(|rack| up(rack) && rack.calls.is_empty());
        self.call(Call::Allocate);
        self.until(|rack| rack.base.0 > 0 && (0..rack.seats.len()).all(|seat| rack.is_leased(seat)));
    }

    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let end = self.now + Duration::from_secs(10);
        while !done(self) {
            assert!(self.now < end, "the rack comes up");
            self.advance();
        }
    }

    pub(super) fn start_control(&mut self) {
        let config = ControlConfig {
            timeout: TIMEOUT,
            lease: LEASE,
            epoch: EPOCH,
            pmtu: self.pmtu,
            ..ControlConfig::new(CONTROL_GID)
        };
        let rng = Rng::from_number(self.rng.next_u64());
        let role = Control::restore(config, rng, self.log.iter().cloned());
        self.control = Some(role.expect("the log is the control plane's own"));
    }

    /// No more faults.
    pub(super) fn heal(&mut self) {
        self.network.heal();
        self.ending = true;
        self.seats.iter_mut().for_each(|seat| seat.cut_until = self.now);
    }

    /// True while something is down, or a host without a lease, or an answer under way.
    pub(super) fn is_recovering(&self) -> bool {
        let nodes = self.nodes.iter().all(Option::is_some);
        let up = self.control.is_some() && self.switch.is_some() && nodes;
        let leased = (0..self.seats.len()).all(|seat| self.is_leased(seat));
        !up || !leased || self.words.wiped().next().is_some()
    }

    pub(super) fn is_leased(&self, seat: usize) -> bool {
        self.seats[seat].life.as_ref().is_some_and(|life| life.lease_until > self.now)
    }

    pub(super) fn life(&self, seat: usize) -> &Life {
        self.seats[seat].life.as_ref().expect("the host is up")
    }

    pub(super) fn life_mut(&mut self, seat: usize) -> &mut Life {
        self.seats[seat].life.as_mut().expect("the host is up")
    }

    pub(super) fn page(&self, index: u64) -> Page {
        Page::of(VirtAddr(self.base.0 + index * PAGE_LEN as u64))
    }

    pub(super) fn counters(&self) -> Counters {
        *self.network.counters()
    }

    pub(super) fn count(&self, part: &str) -> u64 {
        self.notes.iter().filter(|(note, _)| note.contains(part)).map(|(_, n)| n).sum()
    }

    pub(super) fn note(&mut self, mark: String) {
        self.line(|| mark.clone());
        *self.notes.entry(mark).or_default() += 1;
    }

    /// A line of the trace, of which the last [`TRACE_MAX`] are kept.
    pub(super) fn line(&mut self, what: impl FnOnce() -> String) {
        if self.keeps_trace {
            if self.trace.len() == TRACE_MAX {
                self.trace.pop_front();
            }
            self.trace.push_back(format!("{:?} {}", self.now, what()));
        }
    }

    /// The next thing that happens; true when it is a thread's turn.
    pub(super) fn advance(&mut self) -> bool {
        let lives = self.seats.iter().filter_map(|seat| seat.life.as_ref());
        let wakes = lives.filter_map(|life| life.role.next_wake());
        let wakes = wakes.chain(self.control.as_ref().and_then(Machine::next_wake));
        let wakes = wakes.chain(self.nodes.iter().flatten().filter_map(Machine::next_wake));
        let due = wakes.chain(self.network.next_due()).chain([self.next_thread, self.next_tend]).min();
        self.now = self.now.max(due.expect("there are drivers"));
        if let Some(parcel) = self.network.take_due(self.now) {
            if let Some(frame) = self.network.open(&parcel) {
                self.digest.bytes(frame);
                self.deliver(parcel.from, parcel.to, frame);
            }
            self.network.recycle(parcel);
        } else if self.next_tend <= self.now {
            self.next_tend = self.now + TEND;
            self.crash();
            self.tend();
        } else if self.next_thread <= self.now {
            return true;
        } else {
            self.wake();
        }
        false
    }

    fn wake(&mut self) {
        let now = self.now;
        let late = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if late(self.control.as_ref().and_then(Machine::next_wake)) {
            self.control_event(Event::Wake);
        }
        for node in 0..NODES {
            if late(self.nodes[node].as_ref().and_then(Machine::next_wake)) {
                self.node_event(node, Event::Wake);
            }
        }
        for seat in 0..self.seats.len() {
            if late(self.seats[seat].life.as_ref().and_then(|life| life.role.next_wake())) {
                self.host(seat, Event::Wake);
            }
        }
    }

    fn plan_crash(&mut self) {
        let every = self.plan.crash_every.times(CRASH_TIMES);
        if every > Duration::ZERO {
            let spread = u32::try_from(every.as_nanos() * 2).expect("short");
            self.next_crash = self.now + Duration::from_nanos(u64::from(self.rng.below(spread)));
        }
    }

    /// Now and then a machine dies, or a host hears no more of the control plane.
    fn crash(&mut self) {
        if self.ending || self.next_crash > self.now {
            let partitions =
                self.plan.partition_every > Duration::ZERO && self.next_thread <= self.now + TEND;
            if partitions && !self.ending && self.rng.chance(1, 400) {
                let seat = self.rng.below(u32::try_from(self.seats.len()).expect("few")) as usize;
                self.seats[seat].cut_until = self.now + LEASE.times(u64::from(1 + self.rng.below(3)));
            }
            return;
        }
        self.plan_crash();
        let until = self.now + Duration::from_nanos(u64::from(self.rng.below(DOWN_MAX)));
        let victim = match self.rng.below(8) {
            0 | 1 => Victim::Control,
            2 | 3 => Victim::Switch,
            4 => Victim::Node(self.rng.below(u32::try_from(NODES).expect("few")) as usize),
            _ => Victim::Host(self.rng.below(u32::try_from(self.seats.len()).expect("few")) as usize),
        };
        match victim {
            Victim::Control => {
                self.control = None;
                self.calls.clear();
                let accepting = std::mem::take(&mut self.accepting).into_iter();
                self.late_accepts.extend(accepting.map(|page| (until + LATE, page)));
                self.down[0] = until;
            }
            Victim::Switch => (self.switch, self.down[1]) = (None, until),
            Victim::Node(node) => {
                (self.nodes[node], self.down[2 + node], self.has_lost) = (None, until, true);
            }
            Victim::Host(seat) => {
                self.has_lost = true;
                let seat = &mut self.seats[seat];
                (seat.life, seat.threads, seat.down_until) = (None, Default::default(), until);
            }
        }
        self.crashes += 1;
        self.note(format!("crash.{victim:?}"));
    }

    fn gid_of(&self, port: Port) -> Option<Gid> {
        match port {
            Port::CONTROL => Some(CONTROL_GID),
            Port::SWITCH => Some(SWITCH_GID),
            _ if port.as_node().is_some() => (0..NODES).find(|&node| node_port(node) == port).map(node_gid),
            _ => {
                let host = port.as_host()?;
                self.seats.iter().position(|seat| seat.host == Some(host)).map(seat_gid)
            }
        }
    }

    fn port_of(&self, gid: Gid) -> Port {
        match gid {
            CONTROL_GID => Port::CONTROL,
            SWITCH_GID => Port::SWITCH,
            _ if (0..NODES).any(|node| node_gid(node) == gid) => {
                let node = (0..NODES).find(|&node| node_gid(node) == gid);
                node.map_or(Port::UNKNOWN, node_port)
            }
            _ => {
                let seat = (0..self.seats.len()).find(|&seat| seat_gid(seat) == gid);
                seat.and_then(|seat| self.seats[seat].host).map_or(Port::UNKNOWN, Port::host)
            }
        }
    }

    fn deliver(&mut self, from: Gid, to: Gid, bytes: &[u8]) {
        let port = self.port_of(from);
        self.line(|| format!("{from:?} -> {to:?}: {}", describe(bytes)));
        match to {
            CONTROL_GID => self.control_event(Event::Frame { port, bytes }),
            SWITCH_GID => {
                let Some(switch) = &mut self.switch else { return };
                let mut out = Outbox::new();
                switch.handle(self.now, Event::Frame { port, bytes }, &mut out);
                switch.check();
                self.drain(SWITCH_GID, "switch", &mut out);
            }
            _ if (0..NODES).any(|node| node_gid(node) == to) => {
                if let Some(node) = (0..NODES).find(|&node| node_gid(node) == to) {
                    self.node_event(node, Event::Frame { port, bytes });
                }
            }
            _ => {
                if let Some(seat) = (0..self.seats.len()).find(|&seat| seat_gid(seat) == to) {
                    self.host(seat, Event::Frame { port, bytes });
                }
            }
        }
    }

    fn node_event(&mut self, node: usize, event: Event<'_, core::convert::Infallible>) {
        let Some(role) = &mut self.nodes[node] else { return };
        let mut out = Outbox::new();
        role.handle(self.now, event, &mut out);
        role.check();
        self.drain(node_gid(node), "node", &mut out);
    }

    pub(super) fn host(&mut self, seat: usize, event: Event<'_, CacheAsk>) {
        let now = self.now;
        let Some(life) = &mut self.seats[seat].life else { return };
        let mut out = std::mem::take(&mut life.out);
        life.role.handle(now, event, &mut out);
        life.role.check();
        let told = self.drain(seat_gid(seat), "host", &mut out);
        self.life_mut(seat).out = out;
        for done in told {
            match done {
                CacheDone::Flushed { order } => self.life_mut(seat).flushed = order,
                CacheDone::LeaseEnded => {
                    self.has_lost = true;
                    self.seats[seat].threads.iter_mut().flatten().for_each(|step| step.waits = false);
                }
                CacheDone::Stuck { page } => self.call(Call::Recover(seat, page)),
                CacheDone::Host(_) => {}
            }
        }
    }

    pub(super) fn control_event(&mut self, event: Event<'_, Ask>) {
        let Some(control) = &mut self.control else { return };
        let mut out = Outbox::new();
        control.handle(self.now, event, &mut out);
        control.check();
        for told in self.drain(CONTROL_GID, "control", &mut out) {
            match told {
                Out::Persist(record) => self.log.push(record),
                Out::Reply { ticket, result } => self.answer(ticket, result),
                Out::Peer(_) => {}
            }
        }
    }

    fn drain<O, N: Debug>(&mut self, from: Gid, name: &str, out: &mut Outbox<O, N>) -> Vec<O> {
        let mut told = Vec::new();
        let mut marks = Vec::new();
        out.drain(|action| match action {
            Action::Send { port, frame } => {
                if let Some(to) = self.gid_of(port) {
                    self.network.send(self.now, from, to, frame);
                }
            }
            Action::Note(note) => marks.push(format!("{name}.{note:?}")),
            Action::Local(local) => told.push(local),
        });
        marks.into_iter().for_each(|mark| self.note(mark));
        told
    }
}
