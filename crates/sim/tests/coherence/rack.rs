//! A whole rack in virtual time, whose hosts cache pages: control plane, switch, nodes, hosts. A frame takes ten microseconds.

use farmem_control::api::{ApiError, DirectoryInfo, Endpoint as Named, Request, Response, VmaInfo};
use farmem_control::{Ask, Config, Control, Note as ControlNote, Out, Record};
use farmem_host::agent::Pages;
use farmem_host::caching::{CacheAsk, CacheConfig, CacheDone, CachingHost};
use farmem_host::{Ask as HostAsk, Config as HostConfig, Failure, Op, Out as HostOut};
use farmem_machine::{Action, Duration, Event, Instant, Machine, Outbox, Port, Rng};
use farmem_memnode::{Budget, Config as NodeConfig, MemNode, VecStore};
use farmem_switch::{Budgets, Switch};
use farmem_transport::ud::{Endpoint, Home, Peer};
use farmem_traversal::Program;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use farmem_wire::{Domain, Gid, HostId, Pmtu, Qkey, Qpn, Status, VirtAddr};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// What the tests count in, whatever racks have by default.
const LEASE: Duration = Duration::from_secs(2);
const FLIGHT: Duration = Duration::from_micros(10);
/// Nothing a test waits for takes so long.
const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const NODE_BYTES: u64 = 64 << 12;

/// The pages of a host's program.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    frames: BTreeMap<Page, (Vec<u8>, Option<Access>)>,
    poisoned: BTreeSet<Page>,
}

impl Pages for Memory {
    fn install(&mut self, page: Page, bytes: &[u8; PAGE_LEN], access: Access) {
        self.poisoned.remove(&page);
        let frame = self.frames.entry(page).or_insert_with(|| (bytes.to_vec(), None));
        frame.1 = Some(access);
    }
    fn freeze(&mut self, page: Page) {
        self.frames.get_mut(&page).expect("a Modified page").1 = Some(Access::Shared);
    }
    fn read(&self, page: Page, range: Range<usize>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.frames[&page].0[range]);
    }
    fn zap(&mut self, page: Page) {
        self.frames.get_mut(&page).expect("a page that is here").1 = None;
    }
    fn release(&mut self, page: Page) {
        self.frames.remove(&page);
    }
    fn wake(&mut self, _: Page) {}
    fn poison(&mut self, page: Page) {
        assert!(self.frames.get(&page).is_none_or(|frame| frame.1.is_none()), "{page:?} is Invalid");
        self.poisoned.insert(page);
    }
}

/// A process that caches pages.
pub(crate) struct Seat {
    pub(crate) generation: u16,
    pub(crate) role: CachingHost<Memory>,
    flushed: u64,
    pub(crate) qkey: u32,
    pub(crate) told: Vec<CacheDone>,
}

struct Flying {
    due: Instant,
    from: Port,
    to: Port,
    bytes: Vec<u8>,
}

pub(crate) struct Rack {
    pub(crate) now: Instant,
    config: Config,
    control: Control,
    log: Vec<Record>,
    pub(crate) notes: Vec<ControlNote>,
    switch: Option<Switch>,
    /// Of a switch that starts.
    pub(crate) slots: usize,
    pub(crate) nodes: BTreeMap<u16, MemNode<VecStore>>,
    /// By port: a process that stopped is not here.
    pub(crate) seats: BTreeMap<u16, Seat>,
    flying: VecDeque<Flying>,
    /// Frames from or to these are lost.
    pub(crate) cut: BTreeSet<Port>,
    /// One frame in so many is lost, of those that are not of RC.
    pub(crate) lose_one_in: Option<u32>,
    rng: Rng,
    answers: BTreeMap<u64, Result<Response, ApiError>>,
    tickets: u64,
}

fn endpoint(named: &Named) -> Endpoint {
    Endpoint { qpn: Qpn::new(named.qpn), qkey: Qkey(named.qkey) }
}

fn home(own: &Named, control: &Named) -> Home {
    Home { endpoint: endpoint(own), control: Peer { port: Port::CONTROL, endpoint: endpoint(control) } }
}

impl Rack {
    /// A switch, two nodes, and a domain.
    pub(crate) fn new(seed: u64) -> Self {
        let config = Config { lease: LEASE, ..Config::new(Gid::from_v4([10, 0, 0, 1])) };
        let mut rack = Self {
            now: Instant::ZERO,
            control: Control::new(config.clone(), Rng::from_number(seed)),
            config,
            log: Vec::new(),
            notes: Vec::new(),
            switch: None,
            slots: Budgets::default().directory_slots,
            nodes: BTreeMap::new(),
            seats: BTreeMap::new(),
            flying: VecDeque::new(),
            cut: BTreeSet::new(),
            lose_one_in: None,
            rng: Rng::from_number(seed ^ 0xc0e),
            answers: BTreeMap::new(),
            tickets: 0,
        };
        rack.start_switch();
        rack.start_node(1);
        rack.start_node(2);
        rack.call(Request::CreateDomain { name: "d".into() }).expect("a domain");
        rack
    }

    pub(crate) fn start_switch(&mut self) {
        self.switch = None;
        let joined = self.call(Request::JoinSwitch { gid: "10.0.0.2".into() });
        let Ok(Response::Joined { home: own, control }) = joined else { panic!("{joined:?}") };
        self.switch = Some(Switch::new(
            home(&own, &control),
            Budgets { directory_slots: self.slots, ..Budgets::default() },
        ));
    }

    pub(crate) fn start_node(&mut self, node: u16) {
        self.nodes.remove(&node);
        let (name, gid) = (format!("n{node}"), format!("10.0.1.{node}"));
        let joined = self.call(Request::JoinNode { name, gid, capacity: NODE_BYTES });
        let Ok(Response::NodeJoined { home: own, control, .. }) = joined else { panic!("{joined:?}") };
        let config = NodeConfig { home: home(&own, &control), pmtu: Pmtu::B4096, budget: Budget::default() };
        let store = VecStore::new(usize::try_from(NODE_BYTES).expect("small"));
        self.nodes.insert(node, MemNode::new(config, store));
    }

    /// A process that caches pages of all of far memory starts, and holds a lease.
    pub(crate) fn start_host(&mut self, number: u8) -> u16 {
        let host = self.join_host(number);
        assert!(self.renew(host), "host {host} gets a lease at once");
        host
    }

    /// Joins as a host, and does no more.
    pub(crate) fn join_host_only(&mut self, number: u8) -> (u16, u16) {
        let request = Request::JoinHost { name: format!("h{number}"), gid: format!("10.0.2.{number}") };
        let Ok(Response::HostJoined { host, generation, .. }) = self.call(request) else { panic!() };
        (host, generation)
    }

    /// Asks for a lease; true when there is one.
    pub(crate) fn renew_only(&mut self, (host, generation): (u16, u16)) -> bool {
        let answer = self.call(Request::Renew { host, generation, flushed: 0, qkey: 0 });
        matches!(answer, Ok(Response::Lease { lease_ms, .. }) if lease_ms > 0)
    }

    pub(crate) fn join_host(&mut self, number: u8) -> u16 {
        let request = Request::JoinHost { name: format!("h{number}"), gid: format!("10.0.2.{number}") };
        let Ok(Response::HostJoined { host, generation, home: own, .. }) = self.call(request) else {
            panic!()
        };
        let Ok(Response::Session { switch, .. }) = self.call(Request::OpenSession { host, domain: 1 }) else {
            panic!("a session")
        };
        let config = HostConfig::new(HostId(host), generation, endpoint(&own));
        let cache = CacheConfig { timeout: Duration::from_micros(500), ..CacheConfig::default() };
        let role = CachingHost::new(config, cache, Memory::default(), Rng::from_number(number.into()));
        self.seats.insert(host, Seat { generation, role, flushed: 0, qkey: own.qkey, told: Vec::new() });
        let switch = Peer { port: Port::SWITCH, endpoint: endpoint(&switch) };
        self.give(host, CacheAsk::Host(HostAsk::Session { domain: Domain(1), switch }));
        host
    }

    pub(crate) fn allocate(&mut self, pages: u64, node: u16) -> VmaInfo {
        let request = Request::Allocate { domain: 1, size: pages << 12, node: Some(node) };
        let Ok(Response::Vma(vma)) = self.call(request) else { panic!("a vma") };
        vma
    }

    pub(crate) fn map(&mut self, host: u16, vma: &VmaInfo) {
        let (base, len, domain) = (VirtAddr(vma.base), vma.size, Domain(1));
        self.give(host, CacheAsk::Map { base, len, domain });
    }

    /// Renews a host's lease as its driver would; false when there is none to be had yet.
    pub(crate) fn renew(&mut self, host: u16) -> bool {
        let Seat { generation, flushed, qkey, .. } = self.seats[&host];
        let asked = self.now;
        let answer = self.call(Request::Renew { host, generation, flushed, qkey });
        let Ok(Response::Lease { lease_ms, flush }) = answer else { panic!("{answer:?}") };
        if lease_ms == 0 {
            return false;
        }
        self.give(host, CacheAsk::Lease { until: asked + Duration::from_millis(lease_ms) });
        if flush > flushed {
            self.give(host, CacheAsk::Flush { order: flush });
        }
        true
    }

    /// Lets time pass, in which these hosts renew their leases.
    pub(crate) fn pass(&mut self, millis: u64, renewed: &[u16]) {
        let end = self.now + Duration::from_millis(millis);
        while self.now < end {
            let turn = (self.now + Duration::from_millis(200)).min(end);
            self.run_until(turn);
            for &host in renewed {
                self.renew(host);
            }
        }
    }

    pub(crate) fn call(&mut self, request: Request) -> Result<Response, ApiError> {
        self.tickets += 1;
        let ticket = self.tickets;
        self.control_event(Event::Local(Ask { ticket, request }));
        let answered = |rack: &mut Self| rack.answers.contains_key(&ticket);
        self.until("an answer", answered);
        self.answers.remove(&ticket).expect("it was answered")
    }

    /// Which allocation an address is of.
    pub(crate) fn id_at(&mut self, addr: u64) -> u64 {
        let Ok(Response::Located { vma, .. }) = self.call(Request::Locate { addr }) else { panic!() };
        vma.id
    }

    pub(crate) fn directory(&mut self) -> DirectoryInfo {
        let Ok(Response::Overview { directory, .. }) = self.call(Request::Overview) else { panic!() };
        directory
    }

    /// The control plane stops and starts again from its log.
    pub(crate) fn restart_control(&mut self) {
        let log = self.log.clone();
        let rng = Rng::from_number(self.rng.next_u64());
        self.control = Control::restore(self.config.clone(), rng, log).expect("its own log");
    }

    /// A word as the host's program reads it; none when the access ends in an error.
    pub(crate) fn load(&mut self, host: u16, addr: u64) -> Option<u64> {
        let (page, at) = self.access(host, addr, Access::Shared)?;
        let bytes = &self.seats[&host].role.pages().frames[&page].0[at..at + 8];
        Some(u64::from_le_bytes(bytes.try_into().expect("a word")))
    }

    /// The host's program stores a word; false when the access ends in an error.
    pub(crate) fn store(&mut self, host: u16, addr: u64, value: u64) -> bool {
        let Some((page, at)) = self.access(host, addr, Access::Modified) else { return false };
        let role = &mut self.seats.get_mut(&host).expect("a host").role;
        let frame = role.pages_mut().frames.get_mut(&page).expect("a page that was just installed");
        frame.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
        true
    }

    /// Runs a traversal beside the memory, in the name of the host; answers the first word of its scratch pad, or why it was refused.
    pub(crate) fn traverse(&mut self, host: u16, text: &str, start: u64) -> Result<u64, Status> {
        let program = Program::assemble(text).expect("a program");
        let (cur_ptr, scratch) = (VirtAddr(start), vec![0; program.scratch_len()]);
        let op = Op::Traverse { program, cur_ptr, scratch, limit: 100 };
        self.give(host, CacheAsk::Host(HostAsk::Submit { ticket: 1, domain: Domain(1), op }));
        let ended = |done: &CacheDone| matches!(done, CacheDone::Host(HostOut::Done(_)));
        self.until("a traversal", |rack| rack.seats[&host].told.iter().any(ended));
        let told = std::mem::take(&mut self.seats.get_mut(&host).expect("a host").told);
        let Some(CacheDone::Host(HostOut::Done(done))) = told.into_iter().find(ended) else {
            panic!("it ended")
        };
        match done.result {
            Ok(_) => Ok(u64::from_le_bytes(done.buf[..8].try_into().expect("a word"))),
            Err(Failure::Refused { status, .. }) => Err(status),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn access(&mut self, host: u16, addr: u64, access: Access) -> Option<(Page, usize)> {
        let page = Page::of(VirtAddr(addr));
        let may = |rack: &Self| {
            let memory = rack.seats[&host].role.pages();
            memory.frames.get(&page).is_some_and(|frame| frame.1 >= Some(access))
        };
        if !may(self) {
            self.seats.get_mut(&host).expect("a host").role.pages_mut().poisoned.remove(&page);
            self.fault(host, addr, access);
            let mut again = self.now + Duration::from_millis(5);
            self.until("an access", |rack| {
                // The thread was woken for nothing, and faults again.
                if rack.now > again {
                    again = rack.now + Duration::from_millis(5);
                    rack.fault(host, addr, access);
                }
                may(rack) || rack.seats[&host].role.pages().poisoned.contains(&page)
            });
        }
        let at = usize::try_from(addr % PAGE_LEN as u64).expect("small");
        may(self).then_some((page, at))
    }

    pub(crate) fn fault(&mut self, host: u16, addr: u64, access: Access) {
        self.give(host, CacheAsk::Fault(Page::of(VirtAddr(addr)), access));
    }

    /// What the program may do with the page now.
    pub(crate) fn may(&self, host: u16, addr: u64) -> Option<Access> {
        self.seats[&host].role.agent().access(Page::of(VirtAddr(addr)))
    }

    pub(crate) fn regions(&self) -> Vec<(u64, u8)> {
        let slots = self.switch.as_ref().and_then(Switch::directory).into_iter();
        slots
            .flat_map(|slots| slots.iter().map(|(region, _)| (region.base().addr().0, region.order())))
            .collect()
    }

    pub(crate) fn give(&mut self, host: u16, ask: CacheAsk) {
        self.host_event(host, Event::Local(ask));
    }

    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.now + PATIENCE;
        while !done(self) {
            assert!(self.now < end, "waits for {what} in vain");
            assert!(self.step(end), "nothing more happens, and {what} is not there");
        }
    }

    fn run_until(&mut self, end: Instant) {
        while self.step(end) {}
        self.now = self.now.max(end);
    }

    /// The next thing that happens, if it does by then.
    fn step(&mut self, end: Instant) -> bool {
        let wakes = self.seats.values().filter_map(|seat| seat.role.next_wake());
        let wakes = wakes.chain(self.nodes.values().filter_map(Machine::next_wake));
        let due = wakes.chain(self.control.next_wake()).chain(self.flying.front().map(|f| f.due)).min();
        let Some(due) = due.filter(|&due| due <= end) else { return false };
        self.now = self.now.max(due);
        if self.flying.front().is_some_and(|flying| flying.due <= self.now) {
            let flying = self.flying.pop_front().expect("it is there");
            self.deliver(&flying);
            return true;
        }
        let late = |at: Option<Instant>| at.is_some_and(|at| at <= self.now);
        let hosts: Vec<u16> =
            self.seats.iter().filter(|(_, seat)| late(seat.role.next_wake())).map(|(&h, _)| h).collect();
        let nodes: Vec<u16> =
            self.nodes.iter().filter(|(_, node)| late(node.next_wake())).map(|(&n, _)| n).collect();
        if late(self.control.next_wake()) {
            self.control_event(Event::Wake);
        }
        hosts.into_iter().for_each(|host| self.host_event(host, Event::Wake));
        nodes.into_iter().for_each(|node| self.node_event(node, Event::Wake));
        true
    }

    fn deliver(&mut self, flying: &Flying) {
        let lost = self.lose_one_in.is_some_and(|n| self.rng.chance(1, n));
        if lost || self.cut.contains(&flying.from) || self.cut.contains(&flying.to) {
            return;
        }
        let (port, bytes) = (flying.from, &flying.bytes[..]);
        if flying.to == Port::CONTROL {
            self.control_event(Event::Frame { port, bytes });
        } else if flying.to == Port::SWITCH {
            let Some(switch) = self.switch.as_mut() else { return };
            let mut out = Outbox::new();
            switch.handle(self.now, Event::Frame { port, bytes }, &mut out);
            switch.check();
            self.drain(Port::SWITCH, &mut out, |_, _| {});
        } else if let Some(node) = flying.to.as_node() {
            self.node_event(node, Event::Frame { port, bytes });
        } else if let Some(host) = flying.to.as_host() {
            self.host_event(host, Event::Frame { port, bytes });
        }
    }

    fn node_event(&mut self, node: u16, event: Event<'_, core::convert::Infallible>) {
        let Some(role) = self.nodes.get_mut(&node) else { return };
        let mut out = Outbox::new();
        role.handle(self.now, event, &mut out);
        role.check();
        self.drain(Port::node(node), &mut out, |_, _| {});
    }

    fn host_event(&mut self, host: u16, event: Event<'_, CacheAsk>) {
        let Some(seat) = self.seats.get_mut(&host) else { return };
        let mut out = Outbox::new();
        seat.role.handle(self.now, event, &mut out);
        seat.role.check();
        self.drain(Port::host(host), &mut out, |rack, done| {
            let seat = rack.seats.get_mut(&host).expect("it spoke");
            if let CacheDone::Flushed { order } = done {
                seat.flushed = order;
            }
            seat.told.push(done);
        });
    }

    fn control_event(&mut self, event: Event<'_, Ask>) {
        let mut out = Outbox::new();
        self.control.handle(self.now, event, &mut out);
        self.control.check();
        let mut notes = Vec::new();
        let mut locals = Vec::new();
        let (now, flying) = (self.now, &mut self.flying);
        out.drain(|action| match action {
            Action::Send { port, frame } => {
                flying.push_back(Flying {
                    due: now + FLIGHT,
                    from: Port::CONTROL,
                    to: port,
                    bytes: frame.to_vec(),
                });
            }
            Action::Local(local) => locals.push(local),
            Action::Note(note) => notes.push(note),
        });
        self.notes.extend(notes);
        for local in locals {
            match local {
                Out::Persist(record) => self.log.push(record),
                Out::Reply { ticket, result } => _ = self.answers.insert(ticket, result),
                Out::Peer(_) => {}
            }
        }
    }

    fn drain<O, N>(&mut self, from: Port, out: &mut Outbox<O, N>, mut take: impl FnMut(&mut Self, O)) {
        let mut locals = Vec::new();
        let (now, flying) = (self.now, &mut self.flying);
        out.drain(|action| match action {
            Action::Send { port, frame } => {
                flying.push_back(Flying { due: now + FLIGHT, from, to: port, bytes: frame.to_vec() });
            }
            Action::Local(local) => locals.push(local),
            Action::Note(_) => {}
        });
        locals.into_iter().for_each(|local| take(self, local));
    }
}
