//! A simulated rack whose hosts cache pages, with the drivers' calls to the control plane.

use farmem_control::api::*;
use farmem_host::agent::Pages;
use farmem_host::caching::{CacheConfig, CacheDone, CacheRequest, CachingHost};
use farmem_host::{Config as HostConfig, Failure, HostRequest, Op};
use farmem_machine::{Duration, Instant, Rng};
use farmem_sim::{Layout, Network, Plan, RoleId, World};
use farmem_switch::Switch;
use farmem_switch::directory::Slots;
use farmem_traversal::Program;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use farmem_wire::{Domain, Pmtu, Status, VirtAddr};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The tests' lease, whatever the default.
const LEASE: Duration = Duration::from_secs(2);
/// Upper bound of every wait of a test.
const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const NODE_BYTES: u64 = 64 << 12;
/// Every frame takes ten microseconds.
const PLAN: Plan = Plan { latency: Duration::from_micros(10), ..Plan::CALM };
/// Maximum number of hosts in most racks.
const HOSTS: u16 = 3;

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
    fn write_protect(&mut self, page: Page) {
        self.frames.get_mut(&page).expect("a Modified page").1 = Some(Access::Shared);
    }
    fn read(&self, page: Page, range: Range<usize>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.frames[&page].0[range]);
    }
    fn unmap(&mut self, page: Page) {
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

type Caching = CachingHost<Memory>;

fn make(config: HostConfig, rng: &mut Rng) -> Caching {
    let cache = CacheConfig { timeout: Duration::from_micros(500), ..CacheConfig::default() };
    CachingHost::new(config, cache, Memory::default(), Rng::from_number(rng.next_u64()))
}

pub(crate) struct Rack {
    world: World<Caching>,
    /// Outputs of caches in their present incarnation, by host.
    told: BTreeMap<u16, Vec<CacheDone>>,
    seed: u64,
}

impl Rack {
    /// A switch, two nodes, and a domain.
    pub(crate) fn new(seed: u64) -> Self {
        Self::with_hosts(seed, HOSTS)
    }

    /// Returns a rack with room for this many hosts.
    pub(crate) fn with_hosts(seed: u64, hosts: u16) -> Self {
        let layout = Layout {
            nodes: 2,
            hosts,
            capacity: NODE_BYTES,
            pmtu: Pmtu::B4096,
            timeout: Duration::from_millis(50),
            retries_max: 10,
            lease: LEASE,
            ..Layout::small()
        };
        let mut rack = Self { world: World::of(layout, PLAN, seed, 0, make), told: BTreeMap::new(), seed };
        for role_id in [RoleId::Control, RoleId::Switch, RoleId::Node(1), RoleId::Node(2)] {
            rack.start(role_id);
        }
        rack.call(CreateDomain { name: "d".into() }).expect("a domain");
        rack
    }

    /// Starts a machine, or restarts it.
    fn start(&mut self, role_id: RoleId) {
        self.world.crash(role_id);
        self.world.start(role_id);
        self.until("a machine", |rack| rack.world.is_up(role_id));
    }

    pub(crate) fn start_switch(&mut self) {
        self.start(RoleId::Switch);
    }

    pub(crate) fn start_node(&mut self, node: u16) {
        self.start(RoleId::Node(node));
    }

    /// Restarts the control plane from its log.
    pub(crate) fn restart_control(&mut self) {
        self.start(RoleId::Control);
    }

    /// Starts a process that caches pages of all of far memory, with a lease.
    pub(crate) fn start_host(&mut self, host: u16) -> u16 {
        self.join_host(host);
        assert!(self.renew(host), "host {host} gets a lease at once");
        host
    }

    /// Joins a host without a lease or mapping.
    pub(crate) fn join_host_only(&mut self, host: u16) -> u16 {
        self.told.insert(host, Vec::new());
        self.start(RoleId::Host(host));
        host
    }

    pub(crate) fn join_host(&mut self, host: u16) -> u16 {
        self.join_host_only(host);
        self.call_by(RoleId::Host(host), OpenSession { host, domain: 1 }).expect("a session");
        host
    }

    /// Ends the process and its state.
    pub(crate) fn stop(&mut self, host: u16) {
        self.world.crash(RoleId::Host(host));
    }

    /// Drops all frames from and to this machine.
    pub(crate) fn cut_off(&mut self, role_id: RoleId) {
        for other in self.world.all_roles() {
            self.world.network_mut().cut(role_id.gid(), other.gid());
            self.world.network_mut().cut(other.gid(), role_id.gid());
        }
    }

    /// Ends all losses of frames.
    pub(crate) fn reconnect(&mut self) {
        self.world.network_mut().heal();
    }

    /// Loses frames from now on, at this rate per million.
    pub(crate) fn lose(&mut self, loss_ppm: u32) {
        let plan = Plan { loss_ppm, ..PLAN };
        *self.world.network_mut() = Network::new(plan, Rng::from_number(self.seed));
    }

    /// Sets the number of slots of the next started switch.
    pub(crate) fn set_slots(&mut self, slots: usize) {
        self.world.budgets_mut().directory_slots = slots;
    }

    pub(crate) fn now(&self) -> Instant {
        self.world.now()
    }

    fn role(&self, host: u16) -> &Caching {
        self.world.host_machine(host).expect("the host is up")
    }

    fn memory_mut(&mut self, host: u16) -> &mut Memory {
        self.world.host_machine_mut(host).expect("the host is up").pages_mut()
    }

    pub(crate) fn generation(&self, host: u16) -> u16 {
        self.role(host).host().config().generation
    }

    /// Returns the key of the host's own endpoint.
    pub(crate) fn qkey(&self, host: u16) -> u32 {
        self.role(host).host().config().home.qkey.0
    }

    /// Returns the outputs of the host's cache.
    pub(crate) fn told(&self, host: u16) -> &[CacheDone] {
        &self.told[&host]
    }

    pub(crate) fn allocate(&mut self, pages: u64, node: u16) -> VmaInfo {
        self.call(Allocate { domain: 1, size: pages << 12, node: Some(node), durable: false }).unwrap()
    }

    pub(crate) fn map(&mut self, host: u16, vma: &VmaInfo) {
        let (base, len, domain) = (VirtAddr(vma.base), vma.size, Domain(1));
        self.give(host, CacheRequest::Map { base, len, domain });
    }

    /// Renews a host's lease as its driver would. Returns false if none is available yet.
    pub(crate) fn renew(&mut self, host: u16) -> bool {
        let (generation, qkey) = (self.generation(host), self.qkey(host));
        let obeyed =
            |told: &CacheDone| if let CacheDone::Flushed { order } = told { Some(*order) } else { None };
        let flushed = self.told[&host].iter().filter_map(obeyed).next_back().unwrap_or(0);
        let asked = self.now();
        let LeaseInfo { lease_ms, flush } = self.call(Renew { host, generation, flushed, qkey }).unwrap();
        if lease_ms == 0 {
            return false;
        }
        self.give(host, CacheRequest::Lease { until: asked + Duration::from_millis(lease_ms) });
        if flush > flushed {
            self.give(host, CacheRequest::Flush { order: flush });
        }
        true
    }

    /// Requests a lease and ignores it. Returns true if there is one.
    pub(crate) fn renew_only(&mut self, host: u16) -> bool {
        let generation = self.generation(host);
        let renewed = self.call(Renew { host, generation, flushed: 0, qkey: 0 });
        renewed.is_ok_and(|lease| lease.lease_ms > 0)
    }

    /// Lets time pass, in which these hosts renew their leases.
    pub(crate) fn pass(&mut self, millis: u64, renewed: &[u16]) {
        let end = self.now() + Duration::from_millis(millis);
        while self.now() < end {
            let turn = (self.now() + Duration::from_millis(200)).min(end);
            self.world.alarm(turn);
            while self.now() < turn {
                self.step();
            }
            for &host in renewed {
                self.renew(host);
            }
        }
    }

    pub(crate) fn call<C: Call>(&mut self, call: C) -> Result<C::Answer, ApiError> {
        self.call_by(RoleId::Control, call)
    }

    fn call_by<C: Call>(&mut self, by: RoleId, call: C) -> Result<C::Answer, ApiError> {
        let ticket = self.world.ask(by, call);
        let mut answer = None;
        self.until("an answer", |rack| {
            answer = rack.world.take_reply(ticket);
            answer.is_some()
        });
        let typed = |response| C::Answer::try_from(response).ok().expect("the answer to this request");
        answer.expect("it was answered").map(typed)
    }

    /// Returns the id of the allocation that contains an address.
    pub(crate) fn id_at(&mut self, addr: u64) -> u64 {
        self.call(Locate { addr }).unwrap().vma.id
    }

    pub(crate) fn directory(&mut self) -> DirectoryInfo {
        self.call(Overview {}).unwrap().directory
    }

    /// Loads a word in the host's program. Returns `None` if the access ends in an error.
    pub(crate) fn load(&mut self, host: u16, addr: u64) -> Option<u64> {
        let (page, at) = self.access(host, addr, Access::Shared)?;
        let bytes = &self.role(host).pages().frames[&page].0[at..at + 8];
        Some(u64::from_le_bytes(bytes.try_into().expect("a word")))
    }

    /// Stores a word in the host's program. Returns false if the access ends in an error.
    pub(crate) fn store(&mut self, host: u16, addr: u64, value: u64) -> bool {
        let Some((page, at)) = self.access(host, addr, Access::Modified) else { return false };
        let frame = self.memory_mut(host).frames.get_mut(&page);
        let frame = frame.expect("a page that was just installed");
        frame.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
        true
    }

    /// Runs a traversal at the memory nodes in the name of the host. Returns the first word of its scratch
    /// pad, or the refusal.
    pub(crate) fn traverse(&mut self, host: u16, text: &str, start: u64) -> Result<u64, Status> {
        let program = Program::assemble(text).expect("a program");
        let (cur_ptr, scratch) = (VirtAddr(start), vec![0; program.scratch_len()]);
        let op = Op::Traverse { program, cur_ptr, scratch, limit: 100 };
        self.world.tell_host(host, HostRequest::Submit { ticket: 1, domain: Domain(1), op });
        let mut ended = None;
        self.until("a traversal", |rack| {
            ended = rack.world.take_done();
            ended.is_some()
        });
        let (_, done) = ended.expect("it ended");
        match done.result {
            Ok(_) => Ok(u64::from_le_bytes(done.buf[..8].try_into().expect("a word"))),
            Err(Failure::Refused { status, .. }) => Err(status),
            Err(other) => panic!("{other:?}"),
        }
    }

    fn access(&mut self, host: u16, addr: u64, access: Access) -> Option<(Page, usize)> {
        let page = Page::of(VirtAddr(addr));
        let may = |rack: &Self| {
            let memory = rack.role(host).pages();
            memory.frames.get(&page).is_some_and(|frame| frame.1 >= Some(access))
        };
        if !may(self) {
            self.memory_mut(host).poisoned.remove(&page);
            self.fault(host, addr, access);
            let mut again = self.now() + Duration::from_millis(5);
            self.until("an access", |rack| {
                // The thread was woken without its page, and faults again.
                if rack.now() > again {
                    again = rack.now() + Duration::from_millis(5);
                    rack.fault(host, addr, access);
                }
                may(rack) || rack.role(host).pages().poisoned.contains(&page)
            });
        }
        let at = usize::try_from(addr % PAGE_LEN as u64).expect("small");
        may(self).then_some((page, at))
    }

    pub(crate) fn fault(&mut self, host: u16, addr: u64, access: Access) {
        self.give(host, CacheRequest::Fault(Page::of(VirtAddr(addr)), access));
    }

    /// Returns the program's present access to the page.
    pub(crate) fn may(&self, host: u16, addr: u64) -> Option<Access> {
        self.role(host).agent().access(Page::of(VirtAddr(addr)))
    }

    /// Returns the hosts in the directory's entry for the page: its sharers, unless a host writes it.
    pub(crate) fn sharers(&self, addr: u64) -> Vec<u16> {
        let page = Page::of(VirtAddr(addr));
        let mut slots = self.world.switch().and_then(Switch::directory).into_iter().flat_map(Slots::iter);
        let entry = slots.find(|(region, _)| region.contains(page));
        entry.map_or_else(Vec::new, |(_, entry)| entry.set().iter().map(|host| host.0).collect())
    }

    pub(crate) fn regions(&self) -> Vec<(u64, u8)> {
        let slots = self.world.switch().and_then(Switch::directory).into_iter();
        slots
            .flat_map(|slots| slots.iter().map(|(region, _)| (region.base().addr().0, region.order())))
            .collect()
    }

    pub(crate) fn give(&mut self, host: u16, ask: CacheRequest) {
        self.world.tell_host_machine(host, ask);
        self.listen();
    }

    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.now() + PATIENCE;
        while !done(self) {
            assert!(self.now() < end, "waits for {what} in vain");
            self.step();
        }
    }

    /// Handles the next event.
    fn step(&mut self) {
        assert!(self.world.step(), "nothing more happens");
        self.listen();
    }

    fn listen(&mut self) {
        while let Some((host, said)) = self.world.take_own() {
            self.told.entry(host).or_default().push(said);
        }
    }
}
