//! What drivers ask the control plane, and do with its answers: machines join, hosts renew their leases, owners accept losses.

use super::memory::Memory;
use super::rack::{LEASE, Life, NODES, PAGES, Rack, SWITCH_GID, node_gid, seat_gid};
use farmem_control::Ask;
use farmem_control::api::{ApiError, Endpoint as Named, Request, Response};
use farmem_host::agent;
use farmem_host::caching::{CacheAsk, CacheConfig, CachingHost};
use farmem_host::{Ask as HostAsk, Config as HostConfig};
use farmem_machine::{Duration, Event, Instant, Outbox, Port, Rng};
use farmem_memnode::{Budget, Config as NodeConfig, MemNode, VecStore};
use farmem_switch::{Budgets, Switch};
use farmem_transport::ud::{Endpoint, Home, Peer};
use farmem_wire::message::{PAGE_LEN, Page};
use farmem_wire::{Domain, HostId, Qkey, Qpn, VirtAddr};

const DOMAIN: u32 = 1;
/// Bytes of each memory node: twice as many as are allocated in all.
const NODE_LEN: u64 = 2 * PAGES * PAGE_LEN as u64;

/// What was begun is over by then, also when the control plane died in between and went on from its log.
pub(super) const LATE: Duration = Duration::from_millis(50);

/// A call that is not answered yet: who made it, and in which life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Domain,
    Allocate,
    JoinSwitch,
    JoinNode(usize),
    JoinHost(usize),
    Session(usize, u16),
    Renew(usize, u16, Instant),
    AcceptLost(Page),
    Recover(usize, Page),
    /// A block of pages moves to a node.
    Migrate(u64, u16),
    Locate,
}

fn endpoint(named: &Named) -> Endpoint {
    Endpoint { qpn: Qpn::new(named.qpn), qkey: Qkey(named.qkey) }
}

fn home(own: &Named, control: &Named) -> Home {
    Home { endpoint: endpoint(own), control: Peer { port: Port::CONTROL, endpoint: endpoint(control) } }
}

impl Rack {
    /// Asks the control plane. One that is down answers nothing: whoever asks does so again when he looks after things next.
    pub(super) fn call(&mut self, call: Call) {
        let Some(request) = self.request(call).filter(|_| self.control.is_some()) else { return };
        self.tickets += 1;
        self.calls.insert(self.tickets, call);
        self.control_event(Event::Local(Ask { ticket: self.tickets, request }));
    }

    fn request(&self, call: Call) -> Option<Request> {
        let host = |seat: usize| self.seats[seat].host;
        Some(match call {
            Call::Domain => Request::CreateDomain { name: "d".into() },
            Call::Allocate => {
                Request::Allocate { domain: DOMAIN, size: PAGES * PAGE_LEN as u64, node: Some(1) }
            }
            Call::JoinSwitch => Request::JoinSwitch { gid: format!("{SWITCH_GID:?}") },
            Call::JoinNode(node) => Request::JoinNode {
                name: format!("n{node}"),
                gid: format!("{:?}", node_gid(node)),
                capacity: NODE_LEN,
            },
            Call::JoinHost(seat) => {
                Request::JoinHost { name: format!("h{seat}"), gid: format!("{:?}", seat_gid(seat)) }
            }
            Call::Session(seat, _) => Request::OpenSession { host: host(seat)?, domain: DOMAIN },
            Call::Renew(seat, generation, _) => {
                let Life { flushed, qkey, .. } = *self.life(seat);
                Request::Renew { host: host(seat)?, generation, flushed, qkey }
            }
            Call::AcceptLost(page) => {
                Request::AcceptLost { domain: DOMAIN, base: page.addr().0, len: PAGE_LEN as u64 }
            }
            Call::Recover(seat, page) => Request::Recover { host: host(seat)?, page: page.addr().0 },
            Call::Migrate(block, node) => {
                let len = self.block * PAGE_LEN as u64;
                Request::Migrate { domain: Some(DOMAIN), base: self.base.0 + block * len, len, node }
            }
            Call::Locate => Request::Locate { addr: self.base.0 },
        })
    }

    /// Looks after every machine: those that are down start again, those that are up keep their leases.
    pub(super) fn tend(&mut self) {
        let [control, switch, nodes @ ..] = self.down.map(|until| until <= self.now);
        if self.control.is_none() {
            if !control {
                return;
            }
            self.start_control();
            self.control_event(Event::Wake);
        }
        if self.switch.is_none() && switch {
            self.call_once(Call::JoinSwitch);
        }
        for (node, up) in nodes.into_iter().enumerate() {
            // In order, so that they are numbered in order.
            if self.nodes[node].is_none() && up && (node == 0 || self.base.0 > 0 || self.nodes[0].is_some()) {
                self.call_once(Call::JoinNode(node));
            }
        }
        self.move_pages();
        for seat in 0..self.seats.len() {
            self.tend_host(seat);
        }
        self.look_for_wiped();
        let now = self.now;
        let late = |entry: &mut (Instant, Page)| entry.0 <= now;
        for (_, page) in self.late_accepts.extract_if(.., late).collect::<Vec<_>>() {
            self.words.accept_loss(page);
        }
    }

    /// Now and then a block of pages goes to another node, while programs use it.
    fn move_pages(&mut self) {
        let under_way = self.calls.values().any(|call| matches!(call, Call::Migrate(..)));
        if self.base.0 == 0 || self.ending || under_way || !self.rng.chance(1, 4) {
            return;
        }
        let blocks = u32::try_from(PAGES / self.block).expect("few");
        let block = self.rng.below(blocks).into();
        let node = 1 + u16::try_from(self.rng.below(u32::try_from(NODES).expect("few"))).expect("few");
        self.call(Call::Migrate(block, node));
    }

    /// The pages of a node that starts again are lost, wherever their addresses are from.
    fn node_began(&mut self, node: usize) {
        self.owners.clear();
        if self.base.0 > 0 {
            self.call(Call::Locate);
        }
        let number = u16::try_from(node + 1).expect("few");
        let owners = std::mem::take(&mut self.owners);
        for (index, _) in owners.iter().enumerate().filter(|&(_, &owner)| owner == number) {
            let page = self.page(u64::try_from(index).expect("few"));
            self.words.wipe(page);
        }
    }

    fn call_once(&mut self, call: Call) {
        if !self.calls.values().any(|&other| other == call) {
            self.call(call);
        }
    }

    fn tend_host(&mut self, seat: usize) {
        let now = self.now;
        let machine = &self.seats[seat];
        // Far memory is there before those who use it.
        if self.base.0 == 0 || machine.cut_until > now {
            return;
        }
        match &machine.life {
            None if machine.down_until <= now => self.call_once(Call::JoinHost(seat)),
            None => {}
            Some(life) if !life.has_session => self.call_once(Call::Session(seat, life.generation)),
            Some(life) if life.next_renew <= now => {
                let call = Call::Renew(seat, life.generation, now);
                self.life_mut(seat).next_renew = now + Duration::from_nanos(LEASE.as_nanos() / 4);
                self.call(call);
            }
            Some(_) => {}
        }
    }

    /// The owner of a page that was refused takes its old bytes.
    pub(super) fn accept_lost(&mut self, page: Page) {
        if self.control.is_some() && self.accepting.insert(page) {
            self.words.begin_accepting(page);
            self.call(Call::AcceptLost(page));
        }
    }

    pub(super) fn answer(&mut self, ticket: u64, result: Result<Response, ApiError>) {
        let Some(call) = self.calls.remove(&ticket) else { return };
        let Ok(response) = result else {
            if let Call::AcceptLost(page) = call {
                self.accepting.remove(&page);
                self.late_accepts.push((self.now + LATE, page));
            }
            return;
        };
        match (call, response) {
            (Call::Allocate, Response::Vma(vma)) => self.base = VirtAddr(vma.base),
            (Call::JoinSwitch, Response::Joined { home: own, control }) => {
                let budgets = Budgets { directory_slots: self.slots, ..Budgets::default() };
                self.switch = Some(Switch::new(home(&own, &control), budgets));
            }
            (Call::Migrate(..), Response::Done {}) => self.note("control.migrated".to_owned()),
            (Call::Locate, Response::Located { vma, moved, .. }) => {
                let owner = |page: u64| {
                    let at = vma.base + page * PAGE_LEN as u64;
                    let piece = moved.iter().find(|piece| at.wrapping_sub(piece.base) < piece.size);
                    piece.map_or(vma.node, |piece| piece.node)
                };
                self.owners = (0..PAGES).map(owner).collect();
            }
            (Call::JoinNode(number), Response::NodeJoined { home: own, control, .. }) => {
                let config =
                    NodeConfig { home: home(&own, &control), pmtu: self.pmtu, budget: Budget::default() };
                let store = VecStore::new(usize::try_from(NODE_LEN).expect("small"));
                self.nodes[number] = Some(MemNode::new(config, store));
                self.node_began(number);
            }
            (Call::JoinHost(seat), Response::HostJoined { host, generation, home: own, .. }) => {
                self.seats[seat].host = Some(host);
                self.begin_life(seat, HostConfig::new(HostId(host), generation, endpoint(&own)));
            }
            (Call::Session(seat, generation), Response::Session { switch, .. })
                if self.is_in(seat, generation) =>
            {
                let switch = Peer { port: Port::SWITCH, endpoint: endpoint(&switch) };
                self.open_session(seat, switch);
            }
            (Call::Renew(seat, generation, asked), Response::Lease { lease_ms, flush })
                if self.is_in(seat, generation) && lease_ms > 0 =>
            {
                self.lease(seat, asked + Duration::from_millis(lease_ms), flush);
            }
            (Call::AcceptLost(page), _) => self.accepted(page),
            _ => {}
        }
    }

    fn is_in(&self, seat: usize, generation: u16) -> bool {
        self.seats[seat].life.as_ref().is_some_and(|life| life.generation == generation)
    }

    fn begin_life(&mut self, seat: usize, config: HostConfig) {
        let config = HostConfig { pmtu: self.pmtu, ..config };
        let limit = 4 + self.rng.below(12) as usize;
        // With little room beyond the limit a fault finds none now and then.
        let spare = 1 + self.rng.below(2) as usize;
        let bounds = agent::Bounds { pages: limit + spare, requests: 8, evictions: 16, owed: 8 };
        let cache = CacheConfig {
            bounds,
            timeout: Duration::from_micros(200),
            patience: Duration::from_millis(100),
            ..CacheConfig::default()
        };
        let rng = Rng::from_number(self.rng.next_u64());
        self.seats[seat].life = Some(Life {
            generation: config.generation,
            role: CachingHost::new(config, cache, Memory::default(), rng),
            out: Outbox::new(),
            flushed: 0,
            qkey: config.home.qkey.0,
            limit,
            has_session: false,
            lease_until: Instant::ZERO,
            next_renew: Instant::ZERO,
        });
    }

    fn open_session(&mut self, seat: usize, switch: Peer) {
        let (domain, len) = (Domain(DOMAIN), PAGES * PAGE_LEN as u64);
        let map = CacheAsk::Map { base: self.base, len, domain };
        self.host(seat, Event::Local(CacheAsk::Host(HostAsk::Session { domain, switch })));
        self.host(seat, Event::Local(map));
        self.life_mut(seat).has_session = true;
    }

    fn lease(&mut self, seat: usize, until: Instant, flush: u64) {
        let life = self.life_mut(seat);
        life.lease_until = life.lease_until.max(until);
        let order = Some(flush).filter(|&flush| flush > life.flushed);
        self.host(seat, Event::Local(CacheAsk::Lease { until }));
        if let Some(order) = order {
            self.host(seat, Event::Local(CacheAsk::Flush { order }));
        }
    }

    fn accepted(&mut self, page: Page) {
        self.accepting.remove(&page);
        self.words.accept_loss(page);
        self.seats.iter_mut().filter_map(|seat| seat.life.as_mut()).for_each(|life| {
            life.role.pages_mut().forgive(page);
        });
        self.note("control.accepted".to_owned());
    }

    /// Pages of a node that started again of which no host has anything any more are what that node has from now on.
    fn look_for_wiped(&mut self) {
        if self.nodes.iter().any(Option::is_none) {
            return;
        }
        let wiped: Vec<Page> = self.words.wiped().collect();
        for page in wiped {
            let lives = self.seats.iter().filter_map(|seat| seat.life.as_ref());
            let has = lives.map(|life| life.role.agent()).any(|agent| {
                agent.access(page).is_some()
                    || agent.requests().any(|(other, _)| other == page)
                    || agent.writing().any(|(other, _)| other == page)
            });
            if !has {
                self.words.reopen(page);
            }
        }
    }
}
