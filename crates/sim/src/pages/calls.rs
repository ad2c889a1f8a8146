//! Calls of the drivers to the control plane, and their answers: hosts renew their leases, owners accept
//! losses, pages move.

use super::rack::{Call, LEASE, NODES, PAGES, Rack, host_in};
use crate::sim_node::RoleId;
use farmem_control::api::{
    AcceptLost, Allocate, ApiError, CreateDomain, LeaseInfo, Locate, LocatedVma, Migrate, OpenSession,
    Recover, Renew, Request, Response,
};
use farmem_host::caching::CacheRequest;
use farmem_machine::{Duration, Instant};
use farmem_wire::message::{PAGE_LEN, Page};
use farmem_wire::{Domain, VirtAddr};

const DOMAIN: u32 = 1;

/// Time after which a call has surely ended, even if the control plane crashed meanwhile and recovered from
/// its log.
const LATE: Duration = Duration::from_millis(60);

impl Rack {
    /// Calls the control plane. If it is down, the call fails at once and the host repeats it in its next
    /// maintenance.
    pub(super) fn call(&mut self, call: Call) {
        let Some(request) = self.request(call) else { return };
        let by = match call {
            Call::Session(slot, _) | Call::Renew(slot, ..) | Call::Recover(slot, _) => slot,
            _ => 0,
        };
        let ticket = self.world.ask(RoleId::Host(host_in(by)), request);
        self.calls.insert(ticket, call);
        self.look();
    }

    fn request(&self, call: Call) -> Option<Request> {
        Some(match call {
            Call::Domain => CreateDomain { name: "d".into() }.into(),
            Call::Allocate => {
                Allocate { domain: DOMAIN, size: PAGES * PAGE_LEN as u64, node: Some(1), durable: false }
                    .into()
            }
            Call::Session(slot, _) => OpenSession { host: host_in(slot), domain: DOMAIN }.into(),
            Call::Renew(slot, ..) => {
                let config = self.host_machine(slot)?.host().config();
                let (generation, qkey, flushed) =
                    (config.generation, config.home.qkey.0, self.slots[slot].flushed);
                Renew { host: host_in(slot), generation, flushed, qkey }.into()
            }
            Call::AcceptLost(page) => {
                AcceptLost { domain: DOMAIN, base: page.addr().0, len: PAGE_LEN as u64 }.into()
            }
            Call::Recover(slot, page) => Recover { host: host_in(slot), page: page.addr().0 }.into(),
            Call::Migrate(block, node) => {
                let len = self.block * PAGE_LEN as u64;
                Migrate { domain: Some(DOMAIN), base: self.base.0 + block * len, len, node }.into()
            }
            Call::Locate => Locate { addr: self.base.0 }.into(),
        })
    }

    /// Runs the maintenance of every machine; hosts that are up renew their leases.
    pub(super) fn tend(&mut self) {
        if !self.world.is_up(RoleId::Control) {
            return;
        }
        self.move_pages();
        for slot in 0..self.slots.len() {
            self.tend_host(slot);
        }
        self.look_for_wiped();
        let now = self.now();
        let late = |entry: &mut (Instant, Page)| entry.0 <= now;
        for (_, page) in self.late_accepts.extract_if(.., late).collect::<Vec<_>>() {
            self.words.accept_loss(page);
        }
    }

    /// Moves a block of pages to another node from time to time, while programs use it.
    fn move_pages(&mut self) {
        let under_way = self.calls.values().any(|call| matches!(call, Call::Migrate(..)));
        if self.base.0 == 0 || self.ending || under_way || !self.rng.chance(1, 4) {
            return;
        }
        let blocks = u32::try_from(PAGES / self.block).expect("few");
        let block = self.rng.below(blocks).into();
        let node = 1 + u16::try_from(self.rng.below(NODES.into())).expect("few");
        self.call(Call::Migrate(block, node));
    }

    /// Handles the restart of a node: its pages are lost, whatever their address range.
    pub(super) fn node_began(&mut self, node: u16) {
        self.owners.clear();
        if self.base.0 > 0 {
            self.call(Call::Locate);
        }
        let owners = std::mem::take(&mut self.owners);
        for (index, _) in owners.iter().enumerate().filter(|&(_, &owner)| owner == node) {
            let page = self.page(u64::try_from(index).expect("few"));
            self.words.wipe(page);
        }
    }

    fn call_once(&mut self, call: Call) {
        if !self.calls.values().any(|&other| other == call) {
            self.call(call);
        }
    }

    fn tend_host(&mut self, slot: usize) {
        let now = self.now();
        let &super::rack::HostSlot { cut_until, starts, has_session, next_renew, .. } = &self.slots[slot];
        // Far memory exists before its users.
        if self.base.0 == 0 || cut_until > now || self.host_machine(slot).is_none() {
            return;
        }
        if !has_session {
            self.call_once(Call::Session(slot, starts));
        } else if next_renew <= now {
            self.slots[slot].next_renew = now + Duration::from_nanos(LEASE.as_nanos() / 4);
            self.call(Call::Renew(slot, starts, now));
        }
    }

    /// Lets the owner of a refused page accept its old bytes.
    pub(super) fn accept_lost(&mut self, page: Page) {
        if self.world.is_up(RoleId::Control) && self.accepting.insert(page) {
            self.words.begin_accepting(page);
            self.call(Call::AcceptLost(page));
        }
    }

    pub(super) fn take_answers(&mut self) {
        let open: Vec<u64> = self.calls.keys().copied().collect();
        for ticket in open {
            if let Some(result) = self.world.take_reply(ticket) {
                self.answer(ticket, result);
            }
        }
    }

    fn answer(&mut self, ticket: u64, result: Result<Response, ApiError>) {
        let Some(call) = self.calls.remove(&ticket) else { return };
        let Ok(response) = result else {
            if let Call::AcceptLost(page) = call {
                self.accepting.remove(&page);
                self.late_accepts.push((self.now() + LATE, page));
            }
            return;
        };
        match (call, response) {
            (Call::Allocate, Response::Vma(vma)) => self.base = VirtAddr(vma.base),
            (Call::Migrate(..), Response::Done {}) => self.note("control.migrated".to_owned()),
            (Call::Locate, Response::Located(LocatedVma { vma, moved, .. })) => {
                let owner = |page: u64| {
                    let at = vma.base + page * PAGE_LEN as u64;
                    let piece = moved.iter().find(|piece| at.wrapping_sub(piece.base) < piece.size);
                    piece.map_or(vma.node, |piece| piece.node)
                };
                self.owners = (0..PAGES).map(owner).collect();
            }
            // The world has told the host about the session.
            (Call::Session(slot, starts), Response::Session(_)) if self.is_in(slot, starts) => {
                self.slots[slot].has_session = true;
                let (base, len, domain) = (self.base, PAGES * PAGE_LEN as u64, Domain(DOMAIN));
                self.tell(slot, CacheRequest::Map { base, len, domain });
            }
            (Call::Renew(slot, starts, asked), Response::Lease(LeaseInfo { lease_ms, flush }))
                if self.is_in(slot, starts) && lease_ms > 0 =>
            {
                self.lease(slot, asked + Duration::from_millis(lease_ms), flush);
            }
            (Call::AcceptLost(page), _) => self.accepted(page),
            _ => {}
        }
    }

    fn is_in(&self, slot: usize, starts: u32) -> bool {
        self.host_machine(slot).is_some() && self.slots[slot].starts == starts
    }

    fn lease(&mut self, slot: usize, until: Instant, flush: u64) {
        let machine = &mut self.slots[slot];
        machine.lease_until = machine.lease_until.max(until);
        let order = Some(flush).filter(|&flush| flush > machine.flushed);
        self.tell(slot, CacheRequest::Lease { until });
        if let Some(order) = order {
            self.tell(slot, CacheRequest::Flush { order });
        }
    }

    fn accepted(&mut self, page: Page) {
        self.accepting.remove(&page);
        self.words.accept_loss(page);
        for slot in 0..self.slots.len() {
            if let Some(memory) = self.memory_mut(slot) {
                memory.forgive(page);
            }
        }
        self.note("control.accepted".to_owned());
    }

    /// Finds pages of a restarted node that no host holds any more: from now on the node's contents count.
    fn look_for_wiped(&mut self) {
        if (1..=NODES).any(|node| !self.world.is_up(RoleId::Node(node))) {
            return;
        }
        let wiped: Vec<Page> = self.words.wiped().collect();
        for page in wiped {
            let machines = (0..self.slots.len()).filter_map(|slot| self.host_machine(slot));
            let has = machines.map(|host_machine| host_machine.agent()).any(|agent| {
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
