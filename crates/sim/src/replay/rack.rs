//! The event queue of messages in flight, busy cores and epochs, and the handling of each event.

use super::cores::{Core, Wait};
use super::directory::Directory;
use super::hosts::{Host, NO_FRAME};
use super::links::{LinkEnd, Links, Load};
use super::workload::Step;
use super::{Outcome, Regions, Setup, System, Workload};
use farmem_control::reset;
use farmem_host::agent::{self, Action as HostAction};
use farmem_machine::{Backoff, Duration, Rng};
use farmem_memnode::page_states::{GrantReply, PageStates};
use farmem_switch::directory::{Action, Event, Phase};
use farmem_wire::message::{
    Access, Data, Done, Get, Grant, HostSet, PAGE_SHIFT, Page, Part, Read, Recall, RecallAck, Refusal,
    Region, Seq, WriteBack, WriteBackAck,
};
use farmem_wire::{HostId, Status, VirtAddr};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap};

/// Maximum number of doublings of the retry time.
const DOUBLINGS_MAX: u32 = 6;
/// Maximum number of victims tried to make room for one page.
const VICTIMS_MAX: usize = 64;
/// Number of events between two progress reports.
const PROGRESS_EVENTS: u64 = 1 << 16;

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RackEvent {
    /// A core continues.
    Core(usize),
    Epoch,
    /// At the directory.
    Get(HostId, Get),
    Done(HostId, Done),
    Ack(HostId, RecallAck),
    Swept(Region, Seq),
    /// At a blade.
    Host(HostId, agent::Event),
    Timeout(HostId, Page),
    /// A write-back passes the switch.
    Passing(HostId, WriteBack),
    /// At a memory node.
    Read(Read),
    WriteBack(HostId, WriteBack),
    /// A page was swapped in.
    Swapped(u32),
}

/// An event in the queue. Ordered by time, and for one time in the order of insertion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Due {
    at: u64,
    number: u64,
    event: RackEvent,
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

pub(super) struct Rack<'a> {
    workload: &'a Workload,
    setup: &'a Setup,
    agenda: BinaryHeap<Reverse<Due>>,
    number: u64,
    now: u64,
    links: Links,
    directory: Directory,
    page_states: Vec<PageStates>,
    hosts: Vec<Host>,
    cores: Vec<Core>,
    /// Number of cores that have not ended.
    working: usize,
    /// Pages being swapped in.
    swapping: BTreeSet<u32>,
    rng: Rng,
    outcome: Outcome,
}

impl<'a> Rack<'a> {
    pub(super) fn new(workload: &'a Workload, setup: &'a Setup) -> Self {
        let threads = usize::from(setup.threads);
        let dealt = workload.deal(setup.hosts, setup.threads);
        let cores: Vec<Core> = dealt
            .into_iter()
            .enumerate()
            .map(|(at, visits)| Core::new(u16::try_from(at / threads).expect("few hosts"), visits))
            .collect();
        let pages = workload.pages();
        let hosts =
            (0..usize::from(setup.hosts)).map(|at| Host::new(pages, at * threads..(at + 1) * threads));
        let live = (0..setup.hosts).map(HostId).fold(HostSet::EMPTY, HostSet::with);
        let mut rack = Self {
            workload,
            setup,
            agenda: BinaryHeap::new(),
            number: 0,
            now: 0,
            links: Links::new(setup.profile, setup.hosts),
            directory: Directory::new(setup.directory(), workload, live),
            page_states: vec![PageStates::default(); setup.profile.nodes.into()],
            hosts: hosts.collect(),
            working: cores.iter().filter(|core| !core.ended).count(),
            cores,
            swapping: BTreeSet::new(),
            rng: Rng::from_number(setup.seed),
            outcome: Outcome::default(),
        };
        for core in 0..rack.cores.len() {
            rack.put(0, RackEvent::Core(core));
        }
        rack.put_epoch();
        rack
    }

    pub(super) fn run(mut self, progress: &mut dyn FnMut(u64)) -> Outcome {
        while self.working > 0 {
            let Some(Reverse(due)) = self.agenda.pop() else {
                unreachable!("{} threads wait for what does not come", self.working)
            };
            self.now = due.at;
            self.handle(due.event);
            if due.number.is_multiple_of(PROGRESS_EVENTS) {
                progress(self.outcome.visits);
            }
        }
        progress(self.outcome.visits);
        self.outcome.bytes = self.links.bytes;
        self.outcome
    }

    fn put(&mut self, at: u64, event: RackEvent) {
        self.number += 1;
        self.agenda.push(Reverse(Due { at, number: self.number, event }));
    }

    fn put_epoch(&mut self) {
        if let Regions::Bounded { epoch, .. } = self.setup.directory() {
            self.put(self.now + epoch.as_nanos(), RackEvent::Epoch);
        }
    }

    /// Sends a message.
    fn send(&mut self, from: LinkEnd, to: LinkEnd, load: Load, event: RackEvent) {
        let at = self.links.travel(self.now, from, to, load);
        self.put(at, event);
    }

    fn handle(&mut self, event: RackEvent) {
        match event {
            RackEvent::Core(core) => self.run_core(core),
            RackEvent::Epoch => {
                self.directory.epoch(Duration::from_nanos(self.now), &mut self.outcome);
                self.put_epoch();
            }
            RackEvent::Get(host, get) => self.get(host, get),
            RackEvent::Done(host, done) => {
                self.direct(done.page, Event::Done(host, done));
            }
            RackEvent::Ack(host, ack) => {
                let phase = self.direct(ack.region.base(), Event::Ack(host, ack));
                if phase.is_some_and(|phase| !phase.is_passed()) {
                    self.outcome.false_invalidations += u64::from(ack.false_invalidations);
                }
            }
            RackEvent::Swept(region, seq) => {
                let node = self.node_of(region.base());
                let _ = self.page_states[usize::from(node)].sweep(region, seq, HostSet::EMPTY);
                self.reset(region, reset::Event::Swept(seq));
            }
            RackEvent::Host(host, event) => self.host(host, event),
            RackEvent::Timeout(host, page) => self.time_out(host, page),
            RackEvent::Passing(host, write_back) => {
                self.send_to_node(LinkEnd::Switch, host, write_back);
                self.pass(host, write_back);
            }
            RackEvent::Read(read) => self.read(read),
            RackEvent::WriteBack(host, write_back) => self.write_back(host, write_back),
            RackEvent::Swapped(page) => self.swapped(page),
        }
    }

    fn node_of(&self, page: Page) -> u16 {
        // In turn, as allocations of 2 MiB would lie.
        let part = page.number() >> farmem_wire::message::REGION_ORDER_MAX;
        u16::try_from(part % u64::from(self.setup.profile.nodes)).expect("below the nodes")
    }

    /// Returns the location of a page's directory entry.
    fn home_of(&self, page: Page) -> LinkEnd {
        match self.setup.system {
            System::Gam => LinkEnd::Host(
                u16::try_from(page.number() % u64::from(self.setup.hosts)).expect("below the hosts"),
            ),
            _ => LinkEnd::Switch,
        }
    }

    fn page(&self, place: u32) -> Page {
        Page::of(VirtAddr(self.workload.pages[place as usize] << PAGE_SHIFT))
    }

    fn place(&self, page: Page) -> u32 {
        let place = self.workload.pages.binary_search(&page.number()).expect("only these pages are used");
        u32::try_from(place).expect("there are fewer")
    }

    // The directory.

    fn get(&mut self, host: HostId, get: Get) {
        let mut actions = Vec::new();
        if self.directory.admit(get.page, &mut self.outcome, &mut actions) {
            self.outcome.slots_max = self.outcome.slots_max.max(self.directory.used());
            self.direct(get.page, Event::Get(host, get));
        } else {
            actions.push(Action::Busy(host, Refusal { page: get.page, id: get.id, status: Status::Busy }));
        }
        self.act_all(get.page, actions);
    }

    /// Runs one step of an entry. Returns the entry's previous phase, or `None` if the event was stale.
    fn direct(&mut self, page: Page, event: Event) -> Option<Phase> {
        let mut actions = Vec::new();
        let stepped = self.directory.step(page, event, &mut actions);
        self.act_all(page, actions);
        stepped
    }

    fn act_all(&mut self, page: Page, actions: Vec<Action>) {
        let from = self.home_of(page);
        for action in actions {
            match action {
                Action::Recall(hosts, recall) => {
                    for host in hosts.iter() {
                        self.tell(from, host, agent::Event::Recall(recall));
                    }
                }
                Action::Read(read) => {
                    let to = LinkEnd::Node(self.node_of(read.page));
                    self.send(from, to, Load::Small, RackEvent::Read(read));
                }
                Action::Grant(host, grant) => self.tell(from, host, agent::Event::Grant(grant)),
                Action::Busy(host, refusal) => {
                    self.outcome.busy += 1;
                    self.tell(from, host, agent::Event::Refusal(refusal));
                }
                Action::Report(region, seq) => self.reset(region, reset::Event::Report(seq)),
                Action::Resume(..) | Action::Delay(_) => unreachable!("there are no traversals here"),
            }
        }
    }

    /// Passes a write-back by the directory. Messages that the directory sends then follow on the same link.
    fn pass(&mut self, host: HostId, write_back: WriteBack) {
        if let WriteBack { page, ack: Some(ack), .. } = write_back
            && self.direct(page, Event::Passing(host, page, ack)).is_some()
        {
            self.outcome.false_invalidations += u64::from(ack.false_invalidations);
        }
    }

    fn reset(&mut self, region: Region, event: reset::Event) {
        let mut actions = Vec::new();
        let sweep = self.directory.reset(region, event, &mut actions);
        self.act_all(region.base(), actions);
        if let Some((region, seq)) = sweep {
            let node = LinkEnd::Node(self.node_of(region.base()));
            let there = self.links.travel(self.now, LinkEnd::Switch, node, Load::Small);
            let back = self.links.travel(there, node, LinkEnd::Switch, Load::Small);
            self.put(back, RackEvent::Swept(region, seq));
        }
    }

    fn tell(&mut self, from: LinkEnd, host: HostId, event: agent::Event) {
        self.send(from, LinkEnd::Host(host.0), Load::Small, RackEvent::Host(host, event));
    }

    // Memory nodes.

    fn read(&mut self, read: Read) {
        let Read { page, access, host, id, seq, granted, done_due, .. } = read;
        let node = self.node_of(page);
        if self.page_states[usize::from(node)].read(&read) != GrantReply::Bytes {
            // The write-back came first, in the order of the link, but the page is lent again: this read is a
            // repeat, or the owner had asked once more. The node does not answer; a host that still waits
            // asks again.
            assert!(read.behind, "nothing is lost here");
            return;
        }
        let data = Data { page, access, id, seq, granted, done_due, lost: false, part: Part::WHOLE };
        let data = RackEvent::Host(host, agent::Event::Data(data));
        self.send(LinkEnd::Node(node), LinkEnd::Host(host.0), Load::Page, data);
    }

    fn send_to_node(&mut self, from: LinkEnd, host: HostId, write_back: WriteBack) {
        let to = LinkEnd::Node(self.node_of(write_back.page));
        self.send(from, to, Load::Page, RackEvent::WriteBack(host, write_back));
    }

    fn write_back(&mut self, host: HostId, write_back: WriteBack) {
        let WriteBack { page, grant, ack } = write_back;
        let node = self.node_of(page);
        let _ = self.page_states[usize::from(node)].write_back(page, host, grant);
        let from = LinkEnd::Node(node);
        self.tell(from, host, agent::Event::WriteBackAck(WriteBackAck { page, grant, ack }));
        if let Some(ack) = ack {
            self.send(from, self.home_of(ack.region.base()), Load::Small, RackEvent::Ack(host, ack));
        }
    }

    // Blades.

    /// Runs one step of a blade's agent and carries out its actions.
    fn host(&mut self, id: HostId, event: agent::Event) {
        let mut actions = Vec::new();
        let outcome = self.hosts[usize::from(id.0)].agent.step(event, &mut actions);
        match (outcome, event) {
            (agent::Outcome::Busy, agent::Event::Refusal(Refusal { page, .. }))
            | (
                agent::Outcome::Void,
                agent::Event::Data(Data { page, .. }) | agent::Event::Grant(Grant { page, .. }),
            ) => {
                self.back_off(id, page);
            }
            (agent::Outcome::Full | agent::Outcome::IdsUsedUp, _) => {
                unreachable!("the agent is not what bounds this")
            }
            _ => {}
        }
        let recalled = matches!(event, agent::Event::Recall(Recall { .. }));
        for action in actions {
            let taken = matches!(action, HostAction::WriteProtect(_) | HostAction::Discard(_));
            self.outcome.invalidations += u64::from(recalled && taken);
            self.act(id, action);
        }
    }

    fn act(&mut self, id: HostId, action: HostAction) {
        let here = LinkEnd::Host(id.0);
        match action {
            HostAction::Keep(..) | HostAction::Release(_) | HostAction::Clean(_) => {}
            HostAction::Install(page, access) => {
                self.outcome.fetches += 1;
                let place = self.place(page);
                let host = &mut self.hosts[usize::from(id.0)];
                host.retry_timers.remove(&page);
                host.resident.put(place, access);
                // The waiting threads continue at once, before another blade can recall the page.
                self.retry(id, place);
                self.make_room(id);
            }
            HostAction::Wake(page) => self.retry(id, self.place(page)),
            HostAction::WriteProtect(page) => {
                let place = self.place(page);
                self.hosts[usize::from(id.0)].resident.write_protect(place);
            }
            HostAction::Unmap(page) | HostAction::Discard(page) => {
                let place = self.place(page);
                self.hosts[usize::from(id.0)].resident.take(place);
            }
            HostAction::Get(get) => {
                let due = self.now + self.setup.profile.timeout.as_nanos();
                self.hosts[usize::from(id.0)].retry_timers.entry(get.page).or_default().due = due;
                self.put(due, RackEvent::Timeout(id, get.page));
                self.send(here, self.home_of(get.page), Load::Small, RackEvent::Get(id, get));
            }
            HostAction::Done(done) => {
                self.send(here, self.home_of(done.page), Load::Small, RackEvent::Done(id, done))
            }
            HostAction::RecallAck(ack) => {
                self.send(here, self.home_of(ack.region.base()), Load::Small, RackEvent::Ack(id, ack));
            }
            HostAction::WriteBack(write_back) => {
                self.outcome.write_backs += 1;
                match self.home_of(write_back.page) {
                    LinkEnd::Switch => {
                        self.send(here, LinkEnd::Switch, Load::Page, RackEvent::Passing(id, write_back));
                    }
                    _ => self.send_to_node(here, id, write_back),
                }
            }
            HostAction::Poison(page) | HostAction::Refuse(page) => unreachable!("{page:?} is not refused"),
        }
    }

    /// Schedules a retry at a random time.
    fn back_off(&mut self, id: HostId, page: Page) {
        let pace = self.hosts[usize::from(id.0)].retry_timers.entry(page).or_default();
        let waits = Backoff::new(self.setup.profile.backoff, DOUBLINGS_MAX);
        let at = self.now + waits.jittered_after(pace.tries, &mut self.rng).as_nanos();
        pace.tries += 1;
        self.put(at, RackEvent::Host(id, agent::Event::Retry(page)));
    }

    /// Handles a timeout. No message is lost here, but a reset ends transactions, whose requests must be
    /// repeated.
    fn time_out(&mut self, id: HostId, page: Page) {
        let pace = self.hosts[usize::from(id.0)].retry_timers.get(&page);
        if pace.is_some_and(|pace| pace.due <= self.now) {
            self.host(id, agent::Event::Retry(page));
        }
    }

    /// Evicts pages until the blade's memory is within its limit. Requested pages stay.
    fn make_room(&mut self, id: HostId) {
        let at = usize::from(id.0);
        let mut victim = self.hosts[at].resident.oldest();
        for _ in 0..VICTIMS_MAX {
            if self.hosts[at].resident.len() <= self.setup.local_pages || victim == NO_FRAME {
                return;
            }
            let next = self.hosts[at].resident.newer(victim);
            if self.setup.system == System::Swap {
                self.swap_out(victim);
            } else {
                self.host(id, agent::Event::Evict(self.page(victim)));
            }
            victim = next;
        }
    }

    fn swap_out(&mut self, page: u32) {
        let resident = &mut self.hosts[0].resident;
        if resident.is_dirty(page) {
            self.outcome.write_backs += 1;
            let node = LinkEnd::Node(self.node_of(self.page(page)));
            self.links.travel(self.now, LinkEnd::Host(0), node, Load::Page);
        }
        self.hosts[0].resident.take(page);
    }

    fn swapped(&mut self, page: u32) {
        self.outcome.fetches += 1;
        self.swapping.remove(&page);
        self.hosts[0].resident.put(page, Access::Modified);
        self.retry(HostId(0), page);
        self.make_room(HostId(0));
    }

    fn fault(&mut self, id: HostId, place: u32, access: Access) {
        let page = self.page(place);
        if self.setup.system != System::Swap {
            return self.host(id, agent::Event::Fault(page, access));
        }
        if self.swapping.insert(place) {
            let (here, node) = (LinkEnd::Host(id.0), LinkEnd::Node(self.node_of(page)));
            let there = self.links.travel(self.now, here, node, Load::Small);
            let back = self.links.travel(there, node, here, Load::Page);
            self.put(back, RackEvent::Swapped(place));
        }
    }

    // Threads.

    /// Runs a core until another event is due, or the core has to wait.
    fn run_core(&mut self, at: usize) {
        let horizon = self.agenda.peek().map_or(u64::MAX, |Reverse(due)| due.at);
        loop {
            let core = &self.cores[at];
            let (host, clock) = (core.host, core.clock.max(self.now));
            self.cores[at].clock = clock;
            if self.cores[at].waits.is_some() {
                return;
            }
            let Some(next) = self.cores[at].next() else { return self.end(at) };
            if clock > horizon {
                return self.put(clock, RackEvent::Core(at));
            }
            let step = self.workload.steps[next as usize];
            if let Some((wait, access)) = self.visit(at, step) {
                self.cores[at].waits = wait;
                self.outcome.faults += u64::from(access.is_some());
                let now = std::mem::replace(&mut self.now, clock);
                if let Some(access) = access {
                    self.fault(HostId(host), step.page, access);
                }
                self.now = now;
                if wait.is_none() {
                    self.cores[at].stores.push(step.page);
                    self.made(at, step);
                    // A message sent just now may arrive before the old horizon.
                    self.put(self.cores[at].clock, RackEvent::Core(at));
                }
                return;
            }
            self.made(at, step);
        }
    }

    /// Returns what the visit has to wait for, and what it requests; `None` if it can be made now.
    fn visit(&self, at: usize, step: Step) -> Option<(Option<Wait>, Option<Access>)> {
        let core = &self.cores[at];
        let want = if step.write { Access::Modified } else { Access::Shared };
        let pending = core.stores.contains(&step.page);
        if pending {
            // A second store goes with the first.
            return if step.write { None } else { Some((Some(Wait::Store(step.page)), None)) };
        }
        if self.hosts[usize::from(core.host)].resident.access(step.page) >= Some(want) {
            return None;
        }
        if !step.write || !self.setup.system.is_pso() {
            return Some((Some(Wait::Page(step.page, want)), Some(want)));
        }
        if core.stores.len() == self.setup.profile.stores_max {
            return Some((Some(Wait::Room), None));
        }
        Some((None, Some(want)))
    }

    /// Records a visit and the time of its accesses.
    fn made(&mut self, at: usize, step: Step) {
        let core = &mut self.cores[at];
        let host = &mut self.hosts[usize::from(core.host)];
        if host.resident.access(step.page).is_some() {
            host.resident.touch(step.page, step.write);
        }
        let profile = &self.setup.profile;
        let local = profile.local.as_nanos() * step.accesses;
        if self.setup.system == System::Gam {
            host.lock_free = host.lock_free.max(core.clock) + profile.lock.as_nanos() * step.accesses;
            core.clock = host.lock_free.max(core.clock + local * profile.software);
        } else {
            core.clock += local;
        }
        core.advance();
        self.outcome.visits += 1;
        self.outcome.accesses += step.accesses;
    }

    /// Continues the blade's cores that wait for the page, or repeats their requests.
    fn retry(&mut self, id: HostId, page: u32) {
        for at in self.hosts[usize::from(id.0)].cores.clone() {
            let has = self.hosts[usize::from(id.0)].resident.access(page);
            if let Some(store) = self.cores[at].stores.iter().position(|&other| other == page) {
                if has == Some(Access::Modified) {
                    self.cores[at].stores.swap_remove(store);
                    let resident = &mut self.hosts[usize::from(id.0)].resident;
                    resident.touch(page, true);
                    self.stored(at, page);
                } else {
                    self.fault(id, page, Access::Modified);
                }
            }
            let Some(Wait::Page(wanted, access)) = self.cores[at].waits else { continue };
            if wanted == page && has >= Some(access) {
                let next = self.cores[at].next().expect("it waits for its next visit");
                self.resume(at);
                self.made(at, self.workload.steps[next as usize]);
                self.put(self.cores[at].clock, RackEvent::Core(at));
            } else if wanted == page {
                self.fault(id, page, access);
            }
        }
    }

    /// Records that a store of the core reached its page.
    fn stored(&mut self, at: usize, page: u32) {
        let waits = self.cores[at].waits;
        if waits == Some(Wait::Room) || waits == Some(Wait::Store(page)) {
            self.resume(at);
            self.put(self.now, RackEvent::Core(at));
        } else if waits.is_none() {
            self.end(at);
        }
    }

    fn resume(&mut self, at: usize) {
        let core = &mut self.cores[at];
        core.waits = None;
        core.clock = core.clock.max(self.now);
    }

    /// Records the end of a core.
    fn end(&mut self, at: usize) {
        let core = &mut self.cores[at];
        if core.is_through() && !core.ended {
            core.ended = true;
            let end = Duration::from_nanos(core.clock.max(self.now));
            self.outcome.runtime = self.outcome.runtime.max(end);
            self.working -= 1;
        }
    }
}
