//! The programs' calls to the control plane: setup, connections, memory, grants.

use super::{DOMAINS, End, Rack};
use crate::campaign::Verdict;
use crate::checker::{Counter, SlotId, Vma};
use crate::sim_node::RoleId;
use core::fmt::Debug;
use farmem_control::PAGE;
use farmem_control::api::{
    self, Allocate, ApiError, CreateDomain, ErrorCode, Free, Grant, OpenSession, PermName, Request, Response,
    VmaInfo,
};
use farmem_machine::{Duration, Instant};
use farmem_wire::message::PAGE_SHIFT;
use std::collections::BTreeSet;

/// Time after which a refused call is repeated.
pub(super) const AGAIN: Duration = Duration::from_millis(1);
/// Counters in each domain: one on each of the first nodes.
const COUNTERS: u16 = 2;
/// Maximum number of vmas of one program.
pub(super) const VMAS_MAX: usize = 4;

/// A piece of memory that moves as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Piece {
    /// A piece of an allocation: its number, its address, and the offset of the piece.
    Vma { number: u64, base: u64, offset: u64 },
    /// The vma of a counter.
    Counter(usize),
}

/// A program: one domain on one host.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) host: u16,
    /// Index of its domain.
    pub(super) domain: usize,
    session: Link,
    pub(super) not_before: Instant,
    /// Slots with a write of unknown outcome: a late packet of its connection could still change them.
    unsure: Vec<(SlotId, Until)>,
    /// Nodes that were pinged, so that their connections are set up and such slots can be used again.
    pub(super) pinged: BTreeSet<u16>,
    /// The time since which the program has done nothing that breaks a connection.
    pub(super) orderly: Instant,
}

/// The condition after which an abandoned write can no longer execute (PROTOCOL 9.6).
#[derive(Debug)]
enum Until {
    /// Each of these connections was set up again, or is no longer down; with the count of setups.
    Connected(Vec<(u16, u32)>),
    /// The host restarted, so its earlier connections are gone; with the count of starts.
    Started(u32),
}

/// The state of a resource that a program must request before use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    Down,
    Requested,
    Up,
}

/// An open call.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Session,
    /// `losses` of all nodes at the time of the call.
    Allocate {
        slot_len: usize,
        losses: u32,
    },
    /// `again` is true if an earlier call may have begun it.
    Free {
        base: u64,
        again: bool,
    },
    Lend {
        base: u64,
        perm: PermName,
    },
    Migrate {
        piece: Piece,
        node: u16,
    },
    /// `losses` at the time of the call.
    AcceptLost {
        piece: Piece,
        losses: u32,
    },
}

impl Client {
    pub(super) const fn new(host: u16, domain: usize) -> Self {
        let (session, not_before, orderly) = (Link::Down, Instant::ZERO, Instant::ZERO);
        Self { host, domain, session, not_before, unsure: Vec::new(), pinged: BTreeSet::new(), orderly }
    }

    /// Returns true if the session is up and no abandoned write may still execute.
    pub(super) fn is_ready(&self) -> bool {
        self.session == Link::Up && self.unsure.is_empty()
    }

    pub(super) fn has_session(&self) -> bool {
        self.session == Link::Up
    }

    /// Resets the program after a crash of its host.
    pub(super) fn reset(&mut self) {
        self.session = Link::Down;
        self.pinged.clear();
    }
}

impl Rack {
    /// Sets up machines, domains, programs and counters.
    pub(super) fn set_up(&mut self) -> Result<(), End> {
        self.world.bring_up();
        for domain in 0..DOMAINS + usize::from(self.plan.rogue_ppm > 0) {
            let name = format!("domain{domain}");
            let created = self.call(CreateDomain { name })?;
            self.domains.push(created.domain);
        }
        if let Some(&domain) = self.domains.get(DOMAINS) {
            let vma = self.call(Allocate { domain, size: PAGE, node: None, durable: false })?;
            self.rogue_vma = Some(vma.base);
        }
        for index in 0..DOMAINS {
            let domain = self.domains[index];
            for node in 1..=COUNTERS {
                let size = u64::from(super::COUNTER_VMA_LEN);
                let vma = self.call(Allocate { domain, size, node: Some(node), durable: false })?;
                self.counters.push(Counter::new(vma.base, vma.node));
            }
        }
        self.progress = self.world.now();
        while !self.clients.iter().all(Client::is_ready) {
            self.step()?;
        }
        Ok(())
    }

    /// Makes one call and waits for the answer. Only used while nothing else happens.
    pub(super) fn call<C: api::Call + Debug>(&mut self, call: C) -> Result<C::Answer, End> {
        let asked = format!("{call:?}");
        self.world.call(RoleId::Host(1), call).map_err(|error| match error.code {
            ErrorCode::Unavailable => (Verdict::Stuck, format!("{asked} is refused for long")),
            _ => (Verdict::Unsafe, format!("{asked}: {error:?}")),
        })
    }

    /// Lets time pass. Only used while nothing else happens.
    pub(super) fn wait(&mut self, span: Duration) {
        let until = self.world.now() + span;
        self.world.alarm(until);
        while self.world.now() < until && self.world.step() {}
    }

    /// Requests the resources that programs lack.
    pub(super) fn keep_connected(&mut self) {
        let now = self.world.now();
        let clients = &self.clients;
        let due: Vec<(usize, Call)> =
            self.again.extract_if(.., |(index, _)| now >= clients[*index].not_before).collect();
        for (index, call) in due {
            match call {
                Call::Free { base, .. } => self.free(index, base, true),
                Call::Lend { base, perm } => self.lend(index, base, perm),
                Call::Migrate { piece, node } => self.migrate(piece, node),
                Call::AcceptLost { piece, .. } => self.accept_lost(piece),
                Call::Session | Call::Allocate { .. } => {}
            }
        }
        for index in 0..self.clients.len() {
            let client = &self.clients[index];
            if !self.world.is_up(RoleId::Host(client.host)) || self.world.now() < client.not_before {
                continue;
            }
            if client.session == Link::Down {
                let (host, domain) = (client.host, self.domains[client.domain]);
                self.clients[index].session = Link::Requested;
                self.ask(index, OpenSession { host, domain }, Call::Session);
            }
            self.settle_unsure(index);
        }
    }

    /// Reserves a slot whose abandoned write was on a connection that is down now.
    pub(super) fn hold(&mut self, index: usize, place: SlotId) {
        let (host, domain) = (self.clients[index].host, self.domain_of(index));
        let until = if self.world.is_up(RoleId::Host(host)) {
            let down = self.nodes().filter(|&node| self.world.is_down(host, domain, node));
            Until::Connected(down.map(|node| (node, self.world.connects(host, domain, node))).collect())
        } else {
            Until::Started(self.world.starts_of(RoleId::Host(host)))
        };
        self.clients[index].unsure.push((place, until));
    }

    /// Releases slots whose writes can no longer execute; sets up the connections needed for that.
    fn settle_unsure(&mut self, index: usize) {
        if self.clients[index].unsure.is_empty() {
            return;
        }
        let (host, domain) = (self.clients[index].host, self.domain_of(index));
        let world = &self.world;
        let settled = |(_, until): &mut (SlotId, Until)| match until {
            Until::Started(starts) => world.starts_of(RoleId::Host(host)) > *starts,
            Until::Connected(open) => {
                open.retain(|&(node, count)| world.connects(host, domain, node) == count);
                open.is_empty()
            }
        };
        let settled: Vec<_> = self.clients[index].unsure.extract_if(.., settled).collect();
        settled.into_iter().for_each(|(place, _)| self.model.release(place));
        let open = self.clients[index].unsure.iter().filter_map(|(_, until)| match until {
            Until::Connected(open) => Some(open.iter().map(|&(node, _)| node)),
            Until::Started(_) => None,
        });
        let open: BTreeSet<u16> = open.flatten().collect();
        for node in open {
            if self.clients[index].has_session() && self.clients[index].pinged.insert(node) {
                self.start_ping(index, node);
            }
        }
    }

    /// Returns the id of a program's domain at the control plane.
    pub(super) fn domain_of(&self, index: usize) -> u32 {
        self.domains[self.clients[index].domain]
    }

    /// Returns the memory nodes.
    pub(super) fn nodes(&self) -> impl Iterator<Item = u16> + use<> {
        let all = self.world.all_roles().into_iter();
        all.filter_map(|role_id| if let RoleId::Node(node) = role_id { Some(node) } else { None })
    }

    pub(super) fn ask(&mut self, index: usize, request: impl Into<Request>, call: Call) {
        let ticket = self.world.ask(RoleId::Host(self.clients[index].host), request);
        self.calls.insert(ticket, (index, call));
    }

    /// Allocates memory; more often many short slots than a few long ones.
    pub(super) fn allocate(&mut self, index: usize) {
        let (size, slot_len) =
            [(PAGE, 64), (PAGE, 64), (PAGE, 512), (4 * PAGE, 1 << PAGE_SHIFT)][self.rng.below(4) as usize];
        self.allocations += 1;
        let domain = self.domains[self.clients[index].domain];
        self.ask(
            index,
            Allocate { domain, size, node: None, durable: false },
            Call::Allocate { slot_len, losses: self.losses.values().sum() },
        );
    }

    pub(super) fn free(&mut self, index: usize, base: u64, again: bool) {
        let vma = self.model.vmas.get_mut(&base).expect("the program's own");
        vma.changing = true;
        let (domain, id) = (vma.domain, vma.id);
        self.ask(index, Free { domain, base, id }, Call::Free { base, again });
    }

    /// Grants the other domain read access to a vma, or revokes it.
    pub(super) fn lend(&mut self, index: usize, base: u64, perm: PermName) {
        let vma = self.model.vmas.get_mut(&base).expect("the program's own");
        (vma.changing, vma.lent) = (true, false);
        let (domain, len) = (vma.domain, vma.size);
        let to = self.domains[1 - self.clients[index].domain];
        self.ask(index, Grant { domain, base, len, to, perm }, Call::Lend { base, perm });
    }

    /// Handles the answers that have arrived.
    pub(super) fn take_replies(&mut self) -> Result<(), End> {
        let open: Vec<u64> = self.calls.keys().copied().collect();
        for ticket in open {
            let Some(result) = self.world.take_reply(ticket) else { continue };
            let Some((index, call)) = self.calls.remove(&ticket) else { continue };
            let outcome = match result {
                Ok(response) => {
                    self.progress = self.world.now();
                    self.granted(index, &call, response)
                }
                Err(error) => self.refused(index, &call, &error),
            };
            outcome.map_err(|why| (Verdict::Unsafe, format!("{call:?}: {why}")))?;
        }
        Ok(())
    }

    fn granted(&mut self, index: usize, call: &Call, response: Response) -> Result<(), String> {
        let client = &mut self.clients[index];
        // The host may have crashed since: then no host has the granted resource.
        let up = self.world.is_up(RoleId::Host(client.host));
        match (call, response) {
            (Call::Session, Response::Session(_)) => client.session = if up { Link::Up } else { Link::Down },
            (
                Call::Allocate { slot_len, losses },
                Response::Vma(VmaInfo { id, base, size, node, domain }),
            ) => {
                self.freed.retain(|&freed| freed + PAGE <= base || base + size <= freed);
                let mut vma = Vma::new(self.allocations, size, node, domain, index, *slot_len);
                vma.id = id;
                // The vma moves as a whole, page by page, or not at all.
                let piece_len = [None, Some(PAGE), Some(size)][self.rng.below(3) as usize];
                if let Some(len) = piece_len.filter(|_| self.moves) {
                    vma = vma.in_pieces(len);
                }
                if self.losses.values().sum::<u32>() != *losses {
                    vma.lost_perhaps();
                }
                self.model.add(base, vma);
                self.ended += 1;
            }
            (Call::Free { base, .. }, Response::Done {}) => self.gone(*base),
            (Call::Lend { base, perm }, Response::Done {}) => {
                let vma = self.model.vmas.get_mut(base).expect("it is not freed while it is lent");
                (vma.changing, vma.lent) = (false, *perm == PermName::Read);
                self.ended += 1;
            }
            (Call::Migrate { piece, .. }, Response::Done {}) => {
                self.moved(*piece, None);
                self.ended += 1;
            }
            (&Call::AcceptLost { piece, losses }, Response::Done {}) => {
                self.accepted(piece, losses, None);
                self.ended += 1;
            }
            (_, other) => return Err(format!("the answer to something else: {other:?}")),
        }
        Ok(())
    }

    fn refused(&mut self, index: usize, call: &Call, error: &ApiError) -> Result<(), String> {
        let client = &mut self.clients[index];
        client.not_before = self.world.now() + AGAIN;
        self.world.alarm(client.not_before);
        if error.code == ErrorCode::Unavailable {
            self.replace_gone();
        }
        let client = &mut self.clients[index];
        match (call, error.code) {
            (Call::Session, ErrorCode::Unavailable | ErrorCode::NotFound) => client.session = Link::Down,
            // The allocation may have begun: until the control plane has rolled it back, the memory may have
            // an owner.
            (Call::Allocate { .. }, ErrorCode::Unavailable) => self.unsure_allocation = true,
            (Call::Allocate { .. }, ErrorCode::TableFull | ErrorCode::OutOfMemory) => {}
            // A begun change must be completed: until then the vma's state is unknown.
            (
                Call::Free { .. } | Call::Lend { .. } | Call::Migrate { .. } | Call::AcceptLost { .. },
                ErrorCode::Unavailable,
            ) => self.again.push((index, call.clone())),
            // The control plane completed it after its restart (PROTOCOL 8.25).
            (Call::Free { base, again: true }, ErrorCode::NotFound) => self.gone(*base),
            (Call::Migrate { piece, .. }, code) if self.moved(*piece, Some(code)) => {}
            (&Call::AcceptLost { piece, losses }, code) if self.accepted(piece, losses, Some(code)) => {}
            // Removing a part of a table entry can need more entries (PROTOCOL 6.22): then nothing changes.
            (Call::Lend { base, .. } | Call::Free { base, .. }, ErrorCode::TableFull) => {
                self.model.vmas.entry(*base).and_modify(|vma| vma.changing = false);
            }
            _ => return Err(format!("{error:?}")),
        }
        Ok(())
    }

    /// Removes a freed vma.
    fn gone(&mut self, base: u64) {
        self.model.vmas.remove(&base);
        self.freed.push(base);
        self.ended += 1;
    }
}
