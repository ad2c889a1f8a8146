//! Hosts that share pages under faults: loads and stores of their programs, each of which must see the latest store of all.
//!
//! Around the roles stands no control plane here: the tables are filled once. Programs fault, the cache behind them asks the switch, the
//! switch's directory recalls and grants, the memory node serves and takes back, over links that lose, double, delay and
//! damage what they carry. The checker knows every word of far memory: a load that is allowed is compared with the last store that was, at any
//! host, at that very instant.

mod memory;

use crate::campaign::{self, Campaign, Outcome, Report, Verdict};
use crate::{Digest, Network, Plan};
use farmem_host::agent;
use farmem_host::caching::{CacheAsk, CacheConfig, CacheDone, CacheNote, CachingHost};
use farmem_host::{Ask, Config as HostConfig};
use farmem_machine::{Action, Duration, Event, Instant, Machine, Outbox, Port, Rng};
use farmem_memnode::{Config as NodeConfig, MemNode, VecStore};
use farmem_switch::{Budgets, Switch};
use farmem_transport::PeerChange;
use farmem_transport::ud::{Endpoint, Home, Peer};
use farmem_wire::message::{Access, PAGE_LEN, Page, Seq, Update, Updates};
use farmem_wire::{
    Body, Bth, Deth, Domain, Extension, Gid, Header, HostId, Message, NodeId, Opcode, Packet, Perm, Pmtu,
    Psn, Qkey, Qpn, RequestId, VirtAddr,
};
use memory::Memory;
use std::collections::BTreeMap;

/// Loads and stores of programs on several hosts, on the same pages.
pub fn campaign(campaign: &Campaign, progress: &mut dyn FnMut(u64)) -> Report {
    campaign::run("pages", campaign, world, progress)
}

const NODE: NodeId = NodeId(1);
const DOMAIN: Domain = Domain(1);
const BASE: VirtAddr = VirtAddr(0x1000_0000_0000);
/// Pages of far memory: eight regions as they begin.
const PAGES: u64 = 32;
/// Words of each page that programs use.
const WORDS: u32 = 4;
/// Threads of each program.
const THREADS: usize = 3;
/// Virtual time without an ended access after which a world is stuck.
const PATIENCE: Duration = Duration::from_secs(2);
/// Lines of trace kept.
const TRACE_MAX: usize = 400;

type End = (Verdict, String);

/// Runs one world.
fn world(seed: u64, operations: u64, plan: Plan, trace: bool) -> Outcome {
    let mut rack = Rack::new(seed, plan, trace);
    let result = rack.run(operations);
    let mut outcome = Outcome {
        operations: rack.ended,
        network: *rack.network.counters(),
        retransmissions: rack.count("Page(Retry") + rack.count("Page(RetryWriteBack"),
        naks: rack.count("Page(Refusal"),
        time: rack.now.since(Instant::ZERO),
        digest: rack.digest.get(),
        trace: std::mem::take(&mut rack.trace),
        notes: std::mem::take(&mut rack.notes),
        ..Outcome::default()
    };
    if let Err((verdict, why)) = result {
        (outcome.verdict, outcome.why) = (verdict, why);
    }
    outcome
}

/// What a thread is about to do.
#[derive(Clone, Copy, Debug)]
struct Step {
    page: Page,
    word: usize,
    access: Access,
    /// It faulted, and waits to be woken.
    waits: bool,
}

struct Seat {
    role: CachingHost<Memory>,
    out: Outbox<CacheDone, CacheNote>,
    threads: [Option<Step>; THREADS],
    /// Frames that its cache holds at most.
    limit: usize,
}

struct Rack {
    now: Instant,
    rng: Rng,
    network: Network,
    switch: Switch,
    node: MemNode<VecStore>,
    hosts: Vec<Seat>,
    /// The last value stored in each word.
    latest: BTreeMap<(Page, usize), u64>,
    stored: u64,
    /// Threads begin nothing new.
    ending: bool,
    ended: u64,
    progress: Instant,
    next_thread: Instant,
    keeps_trace: bool,
    trace: Vec<String>,
    notes: BTreeMap<String, u64>,
    digest: Digest,
}

const fn endpoint(number: u32) -> Endpoint {
    Endpoint { qpn: Qpn::new(0x1000 + number), qkey: Qkey(0xbeef_0000 + number) }
}

const SWITCH_HOME: Endpoint = endpoint(1);
const NODE_HOME: Endpoint = endpoint(2);

const fn host_home(host: HostId) -> Endpoint {
    endpoint(0x100 + host.0 as u32)
}

const fn session(host: HostId) -> Endpoint {
    endpoint(0x200 + host.0 as u32)
}

const fn home(endpoint_: Endpoint) -> Home {
    Home { endpoint: endpoint_, control: Peer { port: Port::CONTROL, endpoint: endpoint(0) } }
}

fn gid(port: Port) -> Gid {
    let [a, b, c, d] = port.0.to_be_bytes();
    Gid::from_v4([10 + a, b, c, d])
}

fn page(index: u64) -> Page {
    Page::of(VirtAddr(BASE.0 + index * PAGE_LEN as u64))
}

impl Rack {
    fn new(seed: u64, plan: Plan, keeps_trace: bool) -> Self {
        let mut rng = Rng::from_number(seed ^ 0x9a6e5);
        let pmtu = [Pmtu::B256, Pmtu::B1024, Pmtu::B4096][rng.below(3) as usize];
        let hosts = 2 + u16::try_from(rng.below(3)).expect("few");
        let len = PAGES * PAGE_LEN as u64;
        let store = VecStore::new(usize::try_from(len).expect("a small store"));
        let node = NodeConfig { home: home(NODE_HOME), pmtu, budget: farmem_memnode::Budget::default() };
        let mut switch = Switch::new(home(SWITCH_HOME), Budgets::default());
        switch.open_directory(Seq(u64::from(rng.next_u32())));
        let mut rack = Self {
            now: Instant::ZERO,
            network: Network::new(plan, Rng::from_number(rng.next_u64())),
            switch,
            node: MemNode::new(node, store),
            hosts: (1..=hosts).map(|host| seat(HostId(host), pmtu, &mut rng)).collect(),
            latest: BTreeMap::new(),
            stored: 0,
            ending: false,
            ended: 0,
            progress: Instant::ZERO,
            next_thread: Instant::ZERO,
            keeps_trace,
            trace: Vec::new(),
            notes: BTreeMap::new(),
            digest: Digest::default(),
            rng,
        };
        rack.fill_tables(len);
        rack
    }

    /// What the control plane would tell switch and node.
    fn fill_tables(&mut self, len: u64) {
        let peer = |port: Port, home: Endpoint| Update::Peer {
            port: port.0,
            gid: gid(port),
            qpn: home.qpn,
            qkey: home.qkey,
        };
        let ids: Vec<HostId> = (1..).map(HostId).take(self.hosts.len()).collect();
        let hosts: Vec<Update> = ids.iter().map(|&id| peer(Port::host(id.0), host_home(id))).collect();
        let mut switch = vec![
            peer(Port::node(NODE.0), NODE_HOME),
            Update::Translate {
                base: BASE,
                size_log2: u8::try_from(len.ilog2()).expect("small"),
                node: NODE,
            },
            Update::Protect { domain: DOMAIN, base: BASE, len, perm: Perm::ReadWrite },
        ];
        switch.extend(&hosts);
        switch.extend(ids.iter().map(|&host| {
            let Endpoint { qpn, qkey } = session(host);
            Update::Session { qpn, qkey, host, domain: DOMAIN }
        }));
        switch.extend(ids.iter().map(|&host| Update::Live { host, generation: 1 }));
        let mut node = vec![
            peer(Port::SWITCH, SWITCH_HOME),
            Update::Range { base: BASE, len, offset: 0 },
            Update::Protect { domain: DOMAIN, base: BASE, len, perm: Perm::ReadWrite },
        ];
        node.extend(&hosts);
        let (switch, node) = (batch(SWITCH_HOME, &switch), batch(NODE_HOME, &node));
        let mut out = Outbox::new();
        self.switch.handle(self.now, Event::Frame { port: Port::CONTROL, bytes: &switch }, &mut out);
        let mut out = Outbox::new();
        self.node.handle(self.now, Event::Frame { port: Port::CONTROL, bytes: &node }, &mut out);
    }

    fn run(&mut self, operations: u64) -> Result<(), End> {
        while self.ended < operations {
            self.step()?;
        }
        // Safety was shown; now everything must end, and memory be what the programs left.
        self.network.heal();
        self.ending = true;
        while self.is_busy() {
            self.step()?;
        }
        self.read_everything()
    }

    fn is_busy(&self) -> bool {
        let thread = self.hosts.iter().any(|seat| seat.threads.iter().any(Option::is_some));
        thread || !self.network.is_empty()
    }

    /// The first host reads every word there is, which takes all pages back from all others.
    fn read_everything(&mut self) -> Result<(), End> {
        let words: Vec<(Page, usize)> = self.latest.keys().copied().collect();
        for (page, word) in words {
            self.hosts[0].threads[0] = Some(Step { page, word, access: Access::Shared, waits: false });
            while self.is_busy() {
                self.step()?;
            }
        }
        Ok(())
    }

    /// The next thing that happens.
    fn step(&mut self) -> Result<(), End> {
        let wakes = self.hosts.iter().filter_map(|seat| seat.role.next_wake());
        let due = wakes.chain(self.network.next_due()).chain([self.next_thread]).min();
        self.now = self.now.max(due.expect("threads always come to their turn"));
        if self.now.since(self.progress) > PATIENCE {
            let open: Vec<_> = self.hosts.iter().map(|seat| seat.threads).collect();
            return Err((Verdict::Stuck, format!("no access ended for {PATIENCE:?}: {open:?}")));
        }
        if let Some(parcel) = self.network.take_due(self.now) {
            if let Some(frame) = self.network.open(&parcel) {
                self.digest.bytes(frame);
                self.deliver(parcel.from, parcel.to, frame);
            }
            self.network.recycle(parcel);
        } else if self.next_thread <= self.now {
            let pause = self.rng.below(20_000);
            self.next_thread = self.now + Duration::from_nanos(u64::from(1 + pause));
            let host = self.rng.below(u32::try_from(self.hosts.len()).expect("few")) as usize;
            self.turn(host)?;
        } else {
            for host in 0..self.hosts.len() {
                if self.hosts[host].role.next_wake().is_some_and(|at| at <= self.now) {
                    self.host(host, Event::Wake);
                }
            }
        }
        self.run_woken()?;
        self.check();
        Ok(())
    }

    fn check(&self) {
        self.switch.check();
        self.node.check();
        self.hosts.iter().for_each(|seat| seat.role.check());
    }

    fn deliver(&mut self, from: Gid, to: Gid, frame: &[u8]) {
        let hosts = (1..).take(self.hosts.len()).map(Port::host);
        let ports = [Port::SWITCH, Port::node(NODE.0)].into_iter().chain(hosts);
        let port = ports.clone().find(|&port| gid(port) == from).unwrap_or(Port::UNKNOWN);
        let event = Event::Frame { port, bytes: frame };
        if to == gid(Port::SWITCH) {
            let mut out: Outbox<PeerChange, farmem_switch::Note> = Outbox::new();
            self.switch.handle(self.now, event, &mut out);
            self.drain(Port::SWITCH, "switch", &mut out);
        } else if to == gid(Port::node(NODE.0)) {
            let mut out: Outbox<PeerChange, farmem_memnode::Note> = Outbox::new();
            self.node.handle(self.now, event, &mut out);
            self.drain(Port::node(NODE.0), "node", &mut out);
        } else if let Some(host) =
            (1..).map(Port::host).take(self.hosts.len()).position(|port| gid(port) == to)
        {
            let Event::Frame { port, bytes } = event else { return };
            self.host(host, Event::Frame { port, bytes });
        }
    }

    fn host(&mut self, host: usize, event: Event<'_, CacheAsk>) {
        let seat = &mut self.hosts[host];
        let mut out = std::mem::take(&mut seat.out);
        seat.role.handle(self.now, event, &mut out);
        let port = Port::host(u16::try_from(host + 1).expect("few"));
        self.drain(port, "host", &mut out);
        self.hosts[host].out = out;
    }

    fn drain<O, N: std::fmt::Debug>(&mut self, from: Port, name: &str, out: &mut Outbox<O, N>) {
        let (network, notes, trace) = (&mut self.network, &mut self.notes, &mut self.trace);
        let (now, keeps_trace) = (self.now, self.keeps_trace);
        out.drain(|action| match action {
            Action::Send { port, frame } => network.send(now, gid(from), gid(port), frame),
            Action::Note(note) => {
                let mark = format!("{name}.{note:?}");
                if keeps_trace && trace.len() < TRACE_MAX {
                    trace.push(format!("{now:?} {from:?} {mark}"));
                }
                *notes.entry(mark).or_default() += 1;
            }
            Action::Local(_) => {}
        });
    }

    /// A thread of this host has its turn: it begins an access, or tries again; or the host needs room.
    fn turn(&mut self, host: usize) -> Result<(), End> {
        let cached: Vec<Page> = self.hosts[host].role.agent().cached().map(|(page, _)| page).collect();
        let seat = &self.hosts[host];
        let full = seat.role.agent().frames() >= seat.limit;
        if !cached.is_empty() && (full || self.rng.chance(1, 50)) {
            let victim = cached[self.rng.below(u32::try_from(cached.len()).expect("few")) as usize];
            self.host(host, Event::Local(CacheAsk::Evict(victim)));
        }
        let thread = self.rng.below(u32::try_from(THREADS).expect("few")) as usize;
        if self.hosts[host].threads[thread].is_none() && !self.ending {
            // Half of all accesses go to few words, which all hosts want.
            let hot = self.rng.chance(1, 2);
            let pages = if hot { 3 } else { u32::try_from(PAGES).expect("few") };
            let writes = self.rng.chance(1, 3);
            let step = Step {
                page: page(self.rng.below(pages).into()),
                word: self.rng.below(if hot { 1 } else { WORDS }) as usize,
                access: if writes { Access::Modified } else { Access::Shared },
                waits: false,
            };
            self.hosts[host].threads[thread] = Some(step);
        }
        self.execute(host, thread)
    }

    /// Executes the thread's access if the host may, else faults.
    fn execute(&mut self, host: usize, thread: usize) -> Result<(), End> {
        let seat = &mut self.hosts[host];
        let Some(step) = seat.threads[thread] else { return Ok(()) };
        let memory = seat.role.pages_mut();
        if memory.is_poisoned(step.page) {
            return Err((Verdict::Unsafe, format!("{:?} is refused to host {}", step.page, host + 1)));
        }
        if memory.access(step.page) < Some(step.access) {
            if !step.waits {
                seat.threads[thread] = Some(Step { waits: true, ..step });
                self.host(host, Event::Local(CacheAsk::Fault(step.page, step.access)));
            }
            return Ok(());
        }
        let place = (step.page, step.word);
        if step.access == Access::Modified {
            self.stored += 1;
            memory.store(step.page, step.word, self.stored);
            self.latest.insert(place, self.stored);
        } else {
            let (seen, latest) =
                (memory.load(step.page, step.word), self.latest.get(&place).copied().unwrap_or(0));
            if seen != latest {
                let why =
                    format!("host {} reads {seen} at {place:?}, where {latest} is the latest", host + 1);
                return Err((Verdict::Unsafe, why));
            }
        }
        self.hosts[host].threads[thread] = None;
        self.ended += 1;
        self.progress = self.now;
        Ok(())
    }

    /// Threads whose page came go on at once, before anybody can take it away.
    fn run_woken(&mut self) -> Result<(), End> {
        for host in 0..self.hosts.len() {
            for page in self.hosts[host].role.pages_mut().take_woken() {
                for thread in 0..THREADS {
                    if let Some(step) = &mut self.hosts[host].threads[thread]
                        && step.page == page
                    {
                        step.waits = false;
                        self.execute(host, thread)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn count(&self, part: &str) -> u64 {
        self.notes.iter().filter(|(note, _)| note.contains(part)).map(|(_, n)| n).sum()
    }
}

fn seat(host: HostId, pmtu: Pmtu, rng: &mut Rng) -> Seat {
    let config = HostConfig { pmtu, ..HostConfig::new(host, 1, host_home(host)) };
    let limit = 4 + rng.below(12) as usize;
    let bounds = agent::Bounds { pages: limit + THREADS, requests: 8, evictions: 16, owed: 8 };
    let cache = CacheConfig { bounds, timeout: Duration::from_micros(200), ..CacheConfig::default() };
    let mut role = CachingHost::new(config, cache, Memory::default(), Rng::from_number(rng.next_u64()));
    let mut out = Outbox::new();
    let switch = Peer { port: Port::SWITCH, endpoint: session(host) };
    let len = PAGES * PAGE_LEN as u64;
    for ask in [
        CacheAsk::Host(Ask::Session { domain: DOMAIN, switch }),
        CacheAsk::Map { base: BASE, len, domain: DOMAIN },
    ] {
        role.handle(Instant::ZERO, Event::Local(ask), &mut out);
    }
    assert!(out.is_empty(), "the host takes its set-up");
    Seat { role, out, threads: [None; THREADS], limit }
}

/// The first batch of updates to a role.
fn batch(to: Endpoint, updates: &[Update]) -> Vec<u8> {
    let mut bytes = Vec::new();
    updates.iter().for_each(|update| update.emit(&mut bytes));
    let count = u16::try_from(updates.len()).expect("few updates");
    let updates = Updates::request(1, count, &bytes).expect("one batch");
    let message = Message { header: Header::request(RequestId(1), 0), body: Body::Update(updates) };
    let mut frame = Vec::new();
    let bth = Bth::new(Opcode::UdSendOnly, to.qpn, Psn::new(0));
    let ext = Extension::Deth(Deth { qkey: to.qkey, src_qp: Qpn::new(0x77) });
    Packet::emit_with(&bth, &ext, message.len(), &mut frame, |bytes| message.emit(bytes));
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    fn play(plan: &str, seeds: u64, operations: u64) -> Report {
        let plan = Plan::named(plan).expect("a plan of that name");
        campaign(&Campaign { operations, seeds, first_seed: 1, plan }, &mut |_| {})
    }

    /// Every load sees the latest store, and everything ends, whatever the network does.
    #[test]
    fn loads_see_the_latest_store() {
        for plan in ["calm", "storm"] {
            let report = play(plan, 12, 12_000);
            let failures: Vec<_> =
                report.failures.iter().map(|failure| (failure.seed, &failure.why)).collect();
            assert!(failures.is_empty(), "{plan}: {failures:?}");
            assert!(report.total.operations >= 12_000);
            let reached = |mark: &str| report.total.notes.keys().any(|note| note.contains(mark));
            for phase in ["Upgrading", "Taking", "Settling", "Downgrading"] {
                assert!(reached(phase), "{plan}: somebody was {phase}");
            }
            assert!(reached("PutOff") && reached("Busy") && reached("PageWritten(Yes)"), "{plan}");
        }
    }

    /// The same seed is the same world.
    #[test]
    fn a_world_is_repeatable() {
        let digest = |seeds| play("storm", seeds, 2_000).total.digest;
        assert_eq!(digest(2), digest(2));
        assert_ne!(digest(2), digest(3));
    }
}
