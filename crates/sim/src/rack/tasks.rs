//! The programs' operations: each step of the seed starts one operation of one program.

use super::Rack;
use super::calls::{Call, VMAS_MAX};
use crate::checker::{SlotId, Version, Vma};
use crate::sim_node::RoleId;
use farmem_control::api::PermName;
use farmem_host::{HostRequest, Op, REGION_DATA_MAX};
use farmem_machine::Instant;
use farmem_wire::{Domain, Status, VirtAddr};

/// Maximum number of concurrent operations of one program.
const TASKS_MAX: usize = 8;

/// A page without an owner.
pub(super) const NOWHERE: u64 = 0x00de_ad00_0000;

/// An operation in flight.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) client: usize,
    pub(super) since: Instant,
    pub(super) what: Operation,
}

/// An operation, with the facts that the checker needs to judge its end.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    /// Fills a slot; `list` is set if the slot is a list node.
    Write { place: SlotId, version: Version, path: Path, losses: u32, list: Option<usize> },
    /// Reads a slot.
    Read { place: SlotId, path: Path, losses: u32, last: bool },
    /// Increments; `compare` is set for CMP_SWAP.
    Count { counter: usize, floor: u64, compare: Option<u64>, losses: u32 },
    /// Reads a counter at the end.
    ReadCounter { counter: usize },
    /// Looks a key up in a list.
    Find { list: usize, expected: Found },
    /// Adds along counters, by a traversal that stores.
    Add { way: Vec<Stop>, limit: u32 },
    /// A rogue's operation; `place` is set if it targets another domain's memory.
    Rogue { place: Option<SlotId> },
    /// Reads no bytes from a node, so that the connection to it is set up.
    Ping { node: u16 },
    /// A forbidden operation.
    Forbidden { place: Option<SlotId>, expected: ExpectedFailure },
}

/// The path of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Path {
    /// Through the switch.
    Switch,
    /// Over connections, wherever its bytes are.
    Line,
}

/// The required end of a forbidden operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ExpectedFailure {
    /// Refused by switch or node.
    Refused(Status),
    /// Refused, unless the freed memory was allocated again since this number of allocations.
    Freed { base: u64, allocations: u64 },
    /// NAK 0x62, also for the retry.
    BrokenByAccess,
    /// NAK 0x61, which breaks the connection.
    BrokenByRequest,
    /// Refused by the host itself, which sends nothing.
    RefusedLocally,
}

impl Task {
    pub(super) const fn new(client: usize, since: Instant, what: Operation) -> Self {
        Self { client, since, what }
    }

    /// Returns a write that may execute after a restart of its node: the switch finds the node anew, and a
    /// host keeps operations that wait for a connection.
    pub(super) fn still_to_come(&self) -> Option<(SlotId, Version)> {
        match self.what {
            Operation::Write { place, version, .. } => Some((place, version)),
            _ => None,
        }
    }

    /// Returns a counter that the operation may still increment then.
    pub(super) fn still_counts(&self) -> Option<usize> {
        match self.what {
            Operation::Count { counter, .. } => Some(counter),
            _ => None,
        }
    }
}

/// A counter on the path of a traversal that adds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    pub(super) counter: usize,
    /// Number of additions to it that had ended at the start of this one.
    pub(super) floor: u64,
    /// Number of its losses at that time.
    pub(super) losses: u32,
}

/// The expected result of a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// Returns this value after this number of iterations.
    Value(u64, u32),
    /// Returns nothing after this number of iterations.
    Nothing(u32),
    /// Stops at its limit, at this pointer.
    Limit(u64),
    /// Meets a dangling pointer.
    Dangling,
}

impl Rack {
    /// Starts an operation of a program, if possible.
    pub(super) fn start_task(&mut self) {
        if self.rng.chance(1, 2) {
            return;
        }
        let programs = u32::from(super::HOSTS) * u32::try_from(super::DOMAINS).expect("few");
        let index = self.rng.below(programs) as usize;
        if self.open_of(index) >= TASKS_MAX || !self.world.is_up(RoleId::Host(self.clients[index].host)) {
            return;
        }
        match self.rng.below(100) {
            0..=3 => self.more_memory(index),
            4..=5 => self.less_memory(index),
            6..=30 => self.start_random_write(index),
            31..=55 => self.start_random_read(index),
            56..=66 => self.start_count(index),
            67..=70 => self.start_together(index, Self::start_adding),
            71..=84 => self.start_together(index, Self::start_find),
            85..=87 => self.build_list(index),
            88..=90 => self.start_lending(index),
            91..=94 => self.start_foreign_read(index),
            _ => self.start_forbidden(index),
        }
    }

    fn open_of(&self, index: usize) -> usize {
        self.tasks.values().filter(|task| task.client == index).count()
    }

    /// Starts a traversal and, if hosts send batches, others with it.
    fn start_together(&mut self, index: usize, begin: fn(&mut Self, usize)) {
        begin(self, index);
        while self.in_batches && self.open_of(index) < TASKS_MAX && self.rng.chance(2, 3) {
            begin(self, index);
        }
    }

    /// Submits an operation to its host.
    pub(super) fn submit(&mut self, task: Task, op: Op) {
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        let client = &self.clients[task.client];
        let (host, domain) = (client.host, Domain(self.domains[client.domain]));
        self.world.journal_mut().line(|| format!("host {host} begins {ticket}: {:?}", task.what));
        self.tasks.insert(ticket, task);
        self.started += 1;
        assert!(
            self.world.tell_host(host, HostRequest::Submit { ticket, domain, op }),
            "only hosts that are up begin anything"
        );
    }

    fn more_memory(&mut self, index: usize) {
        // Memory that may be freed already could go to another program before the free is repeated.
        let frees_again = |call: &Call| matches!(call, Call::Free { again: true, .. });
        if self.again.iter().any(|(_, call)| matches!(call, Call::Free { .. }))
            || self.calls.values().any(|(_, call)| frees_again(call))
        {
            return;
        }
        let asks = |call: &Call| matches!(call, Call::Allocate { .. });
        let asking = self.calls.values().any(|(by, call)| *by == index && asks(call));
        if !asking && self.model.vmas.values().filter(|vma| vma.owner == index).count() < VMAS_MAX {
            self.started += 1;
            self.allocate(index);
        }
    }

    fn less_memory(&mut self, index: usize) {
        let idle = self.model.vmas.iter().find(|(_, vma)| vma.owner == index && vma.is_idle());
        if let Some((&base, _)) = idle {
            self.started += 1;
            self.free(index, base, false);
        }
    }

    fn start_lending(&mut self, index: usize) {
        let idle = self.model.vmas.iter().find(|(_, vma)| vma.owner == index && vma.is_idle());
        if let Some((&base, vma)) = idle {
            let perm = if vma.lent { PermName::None } else { PermName::Read };
            self.started += 1;
            self.lend(index, base, perm);
        }
    }

    fn start_random_write(&mut self, index: usize) {
        let Some(place) = self.place_of(index, |_| true) else { return self.more_memory(index) };
        let (_, len) = self.model.span(place);
        if self.is_writable(place) {
            let (version, _) = self.model.fresh(len);
            let region = self.rng.chance(1, 2);
            self.start_write(index, place, version, region, None);
        }
    }

    /// Writes a version into a slot: through the switch if `region` and it fits, otherwise over the
    /// connection.
    pub(super) fn start_write(
        &mut self,
        index: usize,
        place: SlotId,
        version: Version,
        region: bool,
        list: Option<usize>,
    ) {
        let (addr, len) = self.model.span(place);
        let Some(path) = self.path(index, place, region) else {
            list.into_iter().for_each(|list| self.list_written(list, false));
            return;
        };
        self.model.take(place);
        self.model.may_hold(place, version);
        let buf = self.model.bytes(version, len);
        let losses = self.model.home(place).losses;
        let task =
            Task::new(index, self.world.now(), Operation::Write { place, version, path, losses, list });
        let addr = VirtAddr(addr);
        self.submit(
            task,
            if path == Path::Switch { Op::RegionWrite { addr, buf } } else { Op::Write { addr, buf } },
        );
    }

    fn start_random_read(&mut self, index: usize) {
        let Some(place) = self.place_of(index, |_| true) else { return self.more_memory(index) };
        let region = self.rng.chance(1, 3);
        if self.model.is_free(place) {
            self.start_read(index, place, region, false);
        }
    }

    /// Reads a whole slot. Returns false if there is no path to it now.
    pub(super) fn start_read(&mut self, index: usize, place: SlotId, region: bool, last: bool) -> bool {
        let (addr, len) = self.model.span(place);
        let Some(path) = self.path(index, place, region) else { return false };
        self.model.take(place);
        let (addr, buf) = (VirtAddr(addr), vec![0xa5; len]);
        let losses = self.model.home(place).losses;
        let task = Task::new(index, self.world.now(), Operation::Read { place, path, losses, last });
        self.submit(
            task,
            if path == Path::Switch { Op::RegionRead { addr, buf } } else { Op::Read { addr, buf } },
        );
        true
    }

    /// Reads memory that another domain has granted.
    fn start_foreign_read(&mut self, index: usize) {
        let domain = self.domains[self.clients[index].domain];
        let Some(place) = self.place_where(|vma| vma.lent && vma.domain != domain) else { return };
        let region = self.rng.chance(1, 2);
        if self.model.is_free(place) {
            self.start_read(index, place, region, false);
        }
    }

    fn start_count(&mut self, index: usize) {
        let domain = self.clients[index].domain;
        let each = self.counters.len() / super::DOMAINS;
        let counter = domain * each + self.rng.below(u32::try_from(each).expect("few")) as usize;
        let addr = VirtAddr(self.counters[counter].addr);
        if !self.has_line(index, addr.0) {
            return;
        }
        let floor = self.counters[counter].floor();
        let compare = self.rng.chance(1, 3).then_some(floor);
        self.counters[counter].begin();
        let losses = self.counters[counter].home.losses;
        let task = Task::new(index, self.world.now(), Operation::Count { counter, floor, compare, losses });
        let op = match compare {
            Some(compare) => Op::CompareSwap { addr, compare, swap: compare + 1 },
            None => Op::FetchAdd { addr, add: 1 },
        };
        self.submit(task, op);
    }

    /// Reads a counter for the last time.
    pub(super) fn start_read_counter(&mut self, index: usize, counter: usize) -> bool {
        let addr = self.counters[counter].addr;
        if !self.has_line(index, addr) {
            return false;
        }
        let task = Task::new(index, self.world.now(), Operation::ReadCounter { counter });
        self.submit(task, Op::Read { addr: VirtAddr(addr), buf: vec![0xa5; 8] });
        true
    }

    /// Reads no bytes from a node.
    pub(super) fn start_ping(&mut self, index: usize, node: u16) {
        // The last addresses of a node are the last to be allocated, so they do not move.
        let Some(base) = self.world.node_base(node) else { return };
        let addr = VirtAddr(base + self.world.capacity() - 1);
        self.submit(
            Task::new(index, self.world.now(), Operation::Ping { node }),
            Op::Read { addr, buf: Vec::new() },
        );
        // The operation does not count towards the campaign.
        self.started -= 1;
    }

    /// Starts a forbidden operation.
    fn start_forbidden(&mut self, index: usize) {
        let domain = self.domains[self.clients[index].domain];
        let short = |buf_len: usize| buf_len <= REGION_DATA_MAX;
        match self.rng.below(9) {
            0..=2 => {
                let found =
                    self.place_where(|vma| vma.domain != domain && !vma.changing && short(vma.slot_len));
                let Some(place) = found.filter(|&place| self.model.is_free(place)) else { return };
                let lent = self.model.vmas[&place.base].lent;
                let status = if lent { Status::NoPermission } else { Status::NotMapped };
                let (addr, len) = self.model.span(place);
                let op = Op::RegionWrite { addr: VirtAddr(addr), buf: vec![0xbb; len] };
                self.forbid(index, Some(place), ExpectedFailure::Refused(status), op);
            }
            3 => {
                let addr = VirtAddr(NOWHERE);
                self.forbid(
                    index,
                    None,
                    ExpectedFailure::Refused(Status::NotMapped),
                    Op::RegionRead { addr, buf: vec![0; 8] },
                );
            }
            4 => {
                let asking = self.calls.values().any(|(_, call)| matches!(call, Call::Allocate { .. }));
                let Some(&base) = self.freed.last().filter(|_| !asking) else { return };
                let expected = ExpectedFailure::Freed { base, allocations: self.allocations };
                self.forbid(index, None, expected, Op::RegionRead { addr: VirtAddr(base), buf: vec![0; 8] });
            }
            5 => {
                let buf = vec![0; REGION_DATA_MAX + 1];
                self.forbid(
                    index,
                    None,
                    ExpectedFailure::RefusedLocally,
                    Op::RegionRead { addr: VirtAddr(NOWHERE), buf },
                );
            }
            6 => self.forbid(
                index,
                None,
                ExpectedFailure::RefusedLocally,
                Op::Read { addr: VirtAddr(NOWHERE), buf: vec![0; 8] },
            ),
            7 => {
                let Some(place) = self.place_of(index, |_| true) else { return };
                let addr = self.model.span(place).0;
                if self.has_line(index, addr) {
                    let op = Op::FetchAdd { addr: VirtAddr(addr + 4), add: 1 };
                    self.forbid(index, None, ExpectedFailure::RefusedLocally, op);
                }
            }
            _ => self.start_breaking(index, domain),
        }
    }

    /// Starts an operation that breaks the program's connection; seldom, because all other operations on it
    /// end too.
    fn start_breaking(&mut self, index: usize, domain: u32) {
        if !self.rng.chance(1, 4) {
            return;
        }
        // Memory that has moved is refused as well, but for another reason.
        let stays = |vma: &Vma| vma.piece_len.is_none();
        let found = self.place_where(|vma| vma.domain != domain && !vma.changing && !vma.lent && stays(vma));
        let Some(place) = found.filter(|&place| self.model.is_free(place)) else { return };
        let addr = self.model.span(place).0;
        if !self.has_line(index, addr) {
            return;
        }
        if self.rng.chance(1, 2) {
            let op = Op::Write { addr: VirtAddr(addr), buf: vec![0xbb; 8] };
            self.forbid(index, Some(place), ExpectedFailure::BrokenByAccess, op);
        } else {
            // The host refuses to send such an atomic (PROTOCOL 11.2), so the network stack corrupts a valid
            // one.
            self.world.network_mut().skew(addr);
            let op = Op::FetchAdd { addr: VirtAddr(addr), add: 1 };
            self.forbid(index, Some(place), ExpectedFailure::BrokenByRequest, op);
        }
    }

    fn forbid(&mut self, index: usize, place: Option<SlotId>, expected: ExpectedFailure, op: Op) {
        let through_switch = matches!(op, Op::RegionRead { .. } | Op::RegionWrite { .. });
        if through_switch && !self.clients[index].has_session() {
            return;
        }
        place.into_iter().for_each(|place| self.model.take(place));
        self.submit(Task::new(index, self.world.now(), Operation::Forbidden { place, expected }), op);
    }

    /// Returns a path to a slot, if there is one now.
    fn path(&self, index: usize, place: SlotId, region: bool) -> Option<Path> {
        if region && self.clients[index].has_session() && self.model.span(place).1 <= REGION_DATA_MAX {
            return Some(Path::Switch);
        }
        self.has_line(index, self.model.span(place).0).then_some(Path::Line)
    }

    /// Returns true if the connection to an address is up or can be set up.
    pub(super) fn has_line(&self, index: usize, addr: u64) -> bool {
        let client = &self.clients[index];
        let (host, domain) = (client.host, self.domain_of(index));
        let Some(node) = self.world.node_of(host, domain, addr).filter(|_| client.has_session()) else {
            return false;
        };
        let later = self.world.now() < client.not_before || !self.world.is_up(RoleId::Control);
        !later || !self.world.is_down(host, domain, node)
    }

    pub(super) fn is_writable(&self, place: SlotId) -> bool {
        self.model.is_free(place) && !self.model.is_pinned(place)
    }

    /// Returns a random slot of a program.
    pub(super) fn place_of(&mut self, index: usize, kind: impl Fn(&Vma) -> bool) -> Option<SlotId> {
        self.place_where(|vma| vma.owner == index && !vma.changing && kind(vma))
    }

    pub(super) fn place_where(&mut self, kind: impl Fn(&Vma) -> bool) -> Option<SlotId> {
        let fit: Vec<(u64, usize)> = self
            .model
            .vmas
            .iter()
            .filter(|(_, vma)| kind(vma))
            .map(|(&base, vma)| (base, vma.slots()))
            .collect();
        if fit.is_empty() {
            return None;
        }
        let (base, slots) = fit[self.rng.below(u32::try_from(fit.len()).expect("few")) as usize];
        Some(SlotId { base, slot: self.rng.below(u32::try_from(slots).expect("few")) as usize })
    }
}
