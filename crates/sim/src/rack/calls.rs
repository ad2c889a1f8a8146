//! The programs' calls to the control plane: coming up, connections, memory, lending.

use super::moves::Piece;
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

/// Time after which a refused call is made again.
pub(super) const AGAIN: Duration = Duration::from_millis(1);
/// Counters in each domain: one on each of the first nodes.
const COUNTERS: u16 = 2;
/// Vmas of one program at once.
pub(super) const VMAS_MAX: usize = 4;

/// A program: one domain on one host.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) host: u16,
    /// Index of its domain.
    pub(super) domain: usize,
    session: Link,
    pub(super) not_before: Instant,
    /// Slots with a write of unknown end: a late packet of the connection it was on could still change them.
    unsure: Vec<(SlotId, Until)>,
    /// Connections that are asked whether they are there, so that such slots can be used again.
    pub(super) pinged: BTreeSet<u16>,
    /// Since when it does nothing that spoils a connection.
    pub(super) orderly: Instant,
}

/// When it is known that a write which was given up will not be executed any more (PROTOCOL 9.6).
#[derive(Debug)]
enum Until {
    /// Each of these connections was set up so often, or it is down no longer.
    Connected(Vec<(u16, u32)>),
    /// The host was started so often: its connections of before are gone.
    Started(u32),
}

/// What a program has to ask for before it can use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    Down,
    Asked,
    Up,
}

/// A call under way.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Session,
    /// `losses` of all nodes until it was asked for.
    Allocate {
        slot_len: usize,
        losses: u32,
    },
    /// `again` when it may have been begun before.
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
    /// `losses` as they were when it was asked for.
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

    /// True when its session is up, and nothing that it gave up may still come.
    pub(super) fn is_ready(&self) -> bool {
        self.session == Link::Up && self.unsure.is_empty()
    }

    pub(super) fn has_session(&self) -> bool {
        self.session == Link::Up
    }

    /// The host is gone, and all that it had.
    pub(super) fn reset(&mut self) {
        self.session = Link::Down;
        self.pinged.clear();
    }
}

impl Rack {
    /// Brings everything up: machines, domains, programs, counters.
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

    /// Makes one call and waits; only while nothing else happens.
    pub(super) fn call<C: api::Call + Debug>(&mut self, call: C) -> Result<C::Answer, End> {
        let asked = format!("{call:?}");
        self.world.call(RoleId::Host(1), call).map_err(|error| match error.code {
            ErrorCode::Unavailable => (Verdict::Stuck, format!("{asked} is refused for long")),
            _ => (Verdict::Unsafe, format!("{asked}: {error:?}")),
        })
    }

    /// Lets time pass; only while nothing else happens.
    pub(super) fn wait(&mut self, span: Duration) {
        let until = self.world.now() + span;
        self.world.alarm(until);
        while self.world.now() < until && self.world.step() {}
    }

    /// Asks for whatever a program needs and does not have.
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
                self.clients[index].session = Link::Asked;
                self.ask(index, OpenSession { host, domain }, Call::Session);
            }
            self.settle_unsure(index);
        }
    }

    /// Keeps a slot from being used: a write of it was given up, on a connection that is down now.
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

    /// Frees slots whose writes cannot come any more; has connections set up that have to be for that.
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

    /// The control plane's number of a program's domain.
    pub(super) fn domain_of(&self, index: usize) -> u32 {
        self.domains[self.clients[index].domain]
    }

    /// The memory nodes.
    pub(super) fn nodes(&self) -> impl Iterator<Item = u16> + use<> {
        let all = self.world.everybody().into_iter();
        all.filter_map(|role_id| if let RoleId::Node(node) = role_id { Some(node) } else { None })
    }

    pub(super) fn ask(&mut self, index: usize, request: impl Into<Request>, call: Call) {
        let ticket = self.world.ask(RoleId::Host(self.clients[index].host), request);
        self.calls.insert(ticket, (index, call));
    }

    /// Asks for memory; more often for many short slots than for a few long ones.
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

    /// Lets the other domain read a vma, or no longer.
    pub(super) fn lend(&mut self, index: usize, base: u64, perm: PermName) {
        let vma = self.model.vmas.get_mut(&base).expect("the program's own");
        (vma.changing, vma.lent) = (true, false);
        let (domain, len) = (vma.domain, vma.size);
        let to = self.domains[1 - self.clients[index].domain];
        self.ask(index, Grant { domain, base, len, to, perm }, Call::Lend { base, perm });
    }

    /// Takes the answers that have come.
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
        // The host may have crashed since: then no host has what was granted.
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
                // As one or page by page, or not at all.
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
            // It may have been begun: until the control plane is back to take it back, the memory may have an owner.
            (Call::Allocate { .. }, ErrorCode::Unavailable) => self.unsure_allocation = true,
            (Call::Allocate { .. }, ErrorCode::TableFull | ErrorCode::OutOfMemory) => {}
            // What was begun must be brought to its end: until then it is not known whether the vma may be used.
            (
                Call::Free { .. } | Call::Lend { .. } | Call::Migrate { .. } | Call::AcceptLost { .. },
                ErrorCode::Unavailable,
            ) => self.again.push((index, call.clone())),
            // The control plane went on with it when it was back (PROTOCOL 8.25).
            (Call::Free { base, again: true }, ErrorCode::NotFound) => self.gone(*base),
            (Call::Migrate { piece, .. }, code) if self.moved(*piece, Some(code)) => {}
            (&Call::AcceptLost { piece, losses }, code) if self.accepted(piece, losses, Some(code)) => {}
            // Taking a part of a table's entry away can need more entries (PROTOCOL 6.22): then nothing is changed.
            (Call::Lend { base, .. } | Call::Free { base, .. }, ErrorCode::TableFull) => {
                self.model.vmas.entry(*base).and_modify(|vma| vma.changing = false);
            }
            _ => return Err(format!("{error:?}")),
        }
        Ok(())
    }

    /// A vma is freed.
    fn gone(&mut self, base: u64) {
        self.model.vmas.remove(&base);
        self.freed.push(base);
        self.ended += 1;
    }
}
