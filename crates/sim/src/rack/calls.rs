//! The programs' calls to the control plane: coming up, connections, memory, lending.

use super::moves::Piece;
use super::{DOMAINS, End, Rack};
use crate::campaign::Verdict;
use crate::checker::{Counter, Home, Place, Vma};
use crate::station::Who;
use farmem_control::api::{ApiError, ErrorCode, PermName, Request, Response, VmaInfo};
use farmem_machine::{Duration, Instant};

/// Time after which a refused call is made again.
const AGAIN: Duration = Duration::from_millis(1);
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
    lines: Vec<Line>,
    not_before: Instant,
}

/// Something a program has to ask for before it can use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    Down,
    Asked,
    Up,
}

/// A connection to one memory node.
#[derive(Debug)]
pub(super) struct Line {
    link: Link,
    /// The host's queue pair, when there is or was one.
    qpn: Option<u32>,
    /// How often it came up; ends of an earlier one say nothing about this one.
    pub(super) generation: u32,
    /// How often the node had lost its memory when it came up.
    pub(super) losses: u32,
    /// The node refused something on it, and so executed nothing behind that.
    refused: bool,
    /// Slots with a write of unknown end: a late packet of the old connection could still change them. They are free when
    /// the old connection is known to be gone.
    unsure: Vec<Place>,
}

/// A call under way.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Session,
    Connect {
        node: u16,
        losses: u32,
    },
    Disconnect {
        node: u16,
    },
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
    /// Where is what a node refused? `rests` when it had been elsewhere for long.
    Locate {
        addr: u64,
        rests: Option<Home>,
    },
}

impl Client {
    pub(super) fn new(host: u16, domain: usize, nodes: u16) -> Self {
        let line = || Line {
            link: Link::Down,
            qpn: None,
            generation: 0,
            losses: 0,
            refused: false,
            unsure: Vec::new(),
        };
        let lines = (0..nodes).map(|_| line()).collect();
        Self { host, domain, session: Link::Down, lines, not_before: Instant::ZERO }
    }

    /// True when its session and all its connections are up.
    pub(super) fn is_ready(&self) -> bool {
        self.session == Link::Up && self.lines.iter().all(|line| line.link == Link::Up)
    }

    pub(super) fn has_session(&self) -> bool {
        self.session == Link::Up
    }

    pub(super) fn is_connected(&self, node: u16) -> bool {
        self.line(node).link == Link::Up
    }

    /// Memory nodes, and so connections.
    pub(super) fn nodes(&self) -> u16 {
        u16::try_from(self.lines.len()).expect("few")
    }

    pub(super) fn line(&self, node: u16) -> &Line {
        &self.lines[usize::from(node) - 1]
    }

    fn line_mut(&mut self, node: u16) -> &mut Line {
        &mut self.lines[usize::from(node) - 1]
    }

    /// The host is gone, and all that it had.
    pub(super) fn reset(&mut self) {
        self.session = Link::Down;
        self.lines.iter_mut().for_each(|line| (line.link, line.qpn) = (Link::Down, None));
    }

    /// The connection broke, if it is still that one.
    pub(super) fn broke(&mut self, node: u16, generation: u32) {
        let line = self.line_mut(node);
        if line.generation == generation && line.link == Link::Up {
            line.link = Link::Down;
        }
    }

    /// The node refused something on the connection, if it is still that one.
    pub(super) fn refused(&mut self, node: u16, generation: u32) {
        let line = self.line_mut(node);
        line.refused |= line.generation == generation;
    }

    /// True when it did.
    pub(super) fn was_refused(&self, node: u16, generation: u32) -> bool {
        let line = self.line(node);
        line.refused && line.generation == generation
    }

    /// Keeps a slot from being used until the connection is set up anew.
    pub(super) fn hold(&mut self, node: u16, place: Place) {
        self.line_mut(node).unsure.push(place);
    }
}

impl Rack {
    /// Brings everything up: machines, domains, programs, counters.
    pub(super) fn set_up(&mut self) -> Result<(), End> {
        self.world.start_all();
        while !self.world.everybody().into_iter().all(|who| self.world.is_up(who)) {
            self.world.step();
        }
        for domain in 0..DOMAINS + usize::from(self.plan.rogue_ppm > 0) {
            let name = format!("domain{domain}");
            let response = self.call(Request::CreateDomain { name })?;
            let Response::Domain { domain } = response else { return Err(unexpected(&response)) };
            self.domains.push(domain);
        }
        if let Some(&domain) = self.domains.get(DOMAINS) {
            let response = self.call(Request::Allocate { domain, size: 4096, node: None })?;
            let Response::Vma(vma) = response else { return Err(unexpected(&response)) };
            self.rogue_vma = Some(vma.base);
        }
        for index in 0..DOMAINS {
            let domain = self.domains[index];
            for node in 1..=COUNTERS {
                let size = u64::from(super::COUNTER_VMA_LEN);
                let response = self.call(Request::Allocate { domain, size, node: Some(node) })?;
                let Response::Vma(vma) = response else { return Err(unexpected(&response)) };
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
    pub(super) fn call(&mut self, request: Request) -> Result<Response, End> {
        let end = self.world.now() + super::PATIENCE;
        while self.world.now() < end {
            let ticket = self.world.ask(Who::Host(1), request.clone());
            let result = loop {
                if let Some(result) = self.world.take_reply(ticket) {
                    break result;
                }
                if !self.world.step() {
                    return Err((Verdict::Stuck, format!("no answer to {request:?}")));
                }
            };
            match result {
                Ok(response) => return Ok(response),
                Err(error) if error.code == ErrorCode::Unavailable => self.wait(AGAIN),
                Err(error) => return Err((Verdict::Unsafe, format!("{request:?}: {error:?}"))),
            }
        }
        Err((Verdict::Stuck, format!("{request:?} is refused for {:?}", super::PATIENCE)))
    }

    fn wait(&mut self, span: Duration) {
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
                Call::Locate { addr, rests } => self.look_where(index, addr, rests),
                Call::AcceptLost { piece, .. } => self.accept_lost(piece),
                Call::Session | Call::Connect { .. } | Call::Disconnect { .. } | Call::Allocate { .. } => {}
            }
        }
        for index in 0..self.clients.len() {
            let client = &self.clients[index];
            if !self.world.is_up(Who::Host(client.host)) || self.world.now() < client.not_before {
                continue;
            }
            if client.session == Link::Down {
                let (host, domain) = (client.host, self.domains[client.domain]);
                self.clients[index].session = Link::Asked;
                self.ask(index, Request::OpenSession { host, domain }, Call::Session);
            }
            for node in 1..=self.clients[index].nodes() {
                if self.clients[index].line(node).link == Link::Down {
                    self.reconnect(index, node);
                }
            }
        }
    }

    /// Has the old connection taken down first, if there is one: its late packets must not meet the new one's (PROTOCOL 9.6).
    fn reconnect(&mut self, index: usize, node: u16) {
        let (host, domain) = (self.clients[index].host, self.domains[self.clients[index].domain]);
        let line = self.clients[index].line_mut(node);
        line.link = Link::Asked;
        match line.qpn {
            Some(qpn) => self.ask(index, Request::Disconnect { host, qpn }, Call::Disconnect { node }),
            None => {
                let losses = self.losses_of(node);
                self.ask(index, Request::Connect { host, node, domain }, Call::Connect { node, losses });
            }
        }
    }

    pub(super) fn ask(&mut self, index: usize, request: Request, call: Call) {
        let ticket = self.world.ask(Who::Host(self.clients[index].host), request);
        self.calls.insert(ticket, (index, call));
    }

    /// Asks for memory; more often for many short slots than for a few long ones.
    pub(super) fn allocate(&mut self, index: usize) {
        let (size, slot_len) =
            [(4096, 64), (4096, 64), (4096, 512), (16_384, 4096)][self.rng.below(4) as usize];
        self.allocations += 1;
        let domain = self.domains[self.clients[index].domain];
        self.ask(
            index,
            Request::Allocate { domain, size, node: None },
            Call::Allocate { slot_len, losses: self.losses.values().sum() },
        );
    }

    pub(super) fn free(&mut self, index: usize, base: u64, again: bool) {
        let vma = self.model.vmas.get_mut(&base).expect("the program's own");
        vma.changing = true;
        let (domain, id) = (vma.domain, vma.id);
        self.ask(index, Request::Free { domain, base, id }, Call::Free { base, again });
    }

    /// Lets the other domain read a vma, or no longer.
    pub(super) fn lend(&mut self, index: usize, base: u64, perm: PermName) {
        let vma = self.model.vmas.get_mut(&base).expect("the program's own");
        (vma.changing, vma.lent) = (true, false);
        let (domain, len) = (vma.domain, vma.size);
        let to = self.domains[1 - self.clients[index].domain];
        self.ask(index, Request::Grant { domain, base, len, to, perm }, Call::Lend { base, perm });
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
        // The host may have crashed since: then nobody has what was granted.
        let up = self.world.is_up(Who::Host(client.host));
        match (call, response) {
            (Call::Session, Response::Session { .. }) => {
                client.session = if up { Link::Up } else { Link::Down }
            }
            (Call::Connect { node, losses }, Response::Connection { qpn, .. }) => {
                let line = client.line_mut(*node);
                line.link = if up { Link::Up } else { Link::Down };
                line.qpn = up.then_some(qpn);
                line.generation += 1;
                line.losses = *losses;
                line.refused = false;
                let settled = std::mem::take(&mut line.unsure);
                settled.into_iter().for_each(|place| self.model.release(place));
            }
            (Call::Disconnect { node }, Response::Done {}) => self.disconnected(index, *node),
            (
                Call::Allocate { slot_len, losses },
                Response::Vma(VmaInfo { id, base, size, node, domain }),
            ) => {
                self.freed.retain(|&freed| freed + 4096 <= base || base + size <= freed);
                let mut vma = Vma::new(self.allocations, size, node, domain, index, *slot_len);
                vma.id = id;
                // As one or page by page, or not at all.
                let piece_len = [None, Some(4096), Some(size)][self.rng.below(3) as usize];
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
            (&Call::Locate { addr, rests }, Response::Located { vma, moved, .. }) => {
                self.located(index, addr, rests, &vma, &moved)?;
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
            (Call::Connect { node, .. }, ErrorCode::Unavailable | ErrorCode::NotFound) => {
                client.line_mut(*node).link = Link::Down;
            }
            (Call::Disconnect { node }, ErrorCode::NotFound) => self.disconnected(index, *node),
            (Call::Disconnect { node }, ErrorCode::Unavailable) => client.line_mut(*node).link = Link::Down,
            // It may have been begun: until the control plane is back to take it back, the memory may be somebody's.
            (Call::Allocate { .. }, ErrorCode::Unavailable) => self.unsure_allocation = true,
            (Call::Allocate { .. }, ErrorCode::TableFull | ErrorCode::OutOfMemory) => {}
            // What was begun must be brought to its end: until then nobody knows whether the vma may be used.
            (
                Call::Free { .. }
                | Call::Lend { .. }
                | Call::Migrate { .. }
                | Call::AcceptLost { .. }
                | Call::Locate { .. },
                ErrorCode::Unavailable,
            ) => self.again.push((index, call.clone())),
            // The control plane went on with it when it was back (PROTOCOL 8.25).
            (Call::Free { base, again: true }, ErrorCode::NotFound) => self.gone(*base),
            (Call::Migrate { piece, .. }, code) if self.moved(*piece, Some(code)) => {}
            (&Call::AcceptLost { piece, losses }, code) if self.accepted(piece, losses, Some(code)) => {}
            (Call::Locate { addr, .. }, ErrorCode::NotFound)
                if self
                    .model
                    .vmas
                    .range(..=addr)
                    .next_back()
                    .is_none_or(|(base, vma)| addr - base >= vma.size || vma.changing) => {}
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

    fn disconnected(&mut self, index: usize, node: u16) {
        let line = self.clients[index].line_mut(node);
        (line.qpn, line.link) = (None, Link::Down);
    }
}

fn unexpected(response: &Response) -> End {
    (Verdict::Unsafe, format!("the answer to something else: {response:?}"))
}
