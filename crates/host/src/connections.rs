//! The host's reliable connections: which one leads to an address, and what comes back over it.
//!
//! A node owns the addresses of its range, but for those that moved to another one: of these it is told by [`crate::Ask::Route`]. A READ or
//! WRITE that goes on where another node owns goes out in parts, and ends when all of them have ended.

use crate::routes::Routes;
use crate::wholes::{Part, Wholes};
use crate::{Answer, Connection, Done, Failure, Note, Out, SetupFault};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farmem_machine::{Instant, Port};
use farmem_transport::rc::{Completion, Requester, Work};
use farmem_wire::{Domain, NodeId, Packet, Qpn, VirtAddr};

#[derive(Debug)]
struct Line {
    setup: Connection,
    requester: Requester,
}

impl Line {
    fn covers(&self, domain: Domain, addr: VirtAddr) -> bool {
        self.setup.domain == domain && holds(&self.setup, addr)
    }

    /// True when `new` says something else of the same: of its node, or of an address.
    fn gives_way_to(&self, new: &Connection) -> bool {
        let old = &self.setup;
        let shared = old.len > 0 && new.len > 0 && (holds(old, new.base) || holds(new, old.base));
        old.domain == new.domain && (old.node == new.node || shared)
    }
}

fn holds(setup: &Connection, addr: VirtAddr) -> bool {
    addr.0.wrapping_sub(setup.base.0) < setup.len
}

/// Connections of all domains. A rack has few nodes, so the owner of an address is found by a scan from the last hit.
#[derive(Debug)]
pub(crate) struct Connections {
    lines: Vec<Line>,
    by_qpn: BTreeMap<Qpn, usize>,
    last: usize,
    lines_max: usize,
    routes: Routes,
    /// What went out in parts.
    wholes: Wholes,
}

impl Connections {
    pub(crate) fn new(lines_max: usize) -> Self {
        let (routes, wholes) = (Routes::default(), Wholes::default());
        Self { lines: Vec::new(), by_qpn: BTreeMap::new(), last: 0, lines_max, routes, wholes }
    }

    /// These addresses are at a node, or where the ranges have them.
    pub(crate) fn route(&mut self, base: VirtAddr, len: u64, node: Option<NodeId>, out: &mut Out) {
        if !self.routes.set(base.0, len, node) {
            out.note(Note::NotTaken(SetupFault::Full));
        }
    }

    /// Takes a connection in. Those of its domain to its node, or to one of its addresses, make room, with their requests flushed:
    /// what the control plane said last is so (PROTOCOL 11.3, 11.9).
    pub(crate) fn add(&mut self, setup: Connection, out: &mut Out) {
        let taken = self.by_qpn.get(&setup.rc.qpn).is_some_and(|&at| !self.lines[at].gives_way_to(&setup));
        let staying = self.lines.iter().filter(|line| !line.gives_way_to(&setup)).count();
        if taken || staying >= self.lines_max {
            let fault = if taken { SetupFault::QueuePairTaken } else { SetupFault::Full };
            return out.note(Note::NotTaken(fault));
        }
        for mut old in self.lines.extract_if(.., |line| line.gives_way_to(&setup)) {
            old.requester.abandon(out);
            finish(&mut old.requester, &mut self.wholes, out);
        }
        self.lines.push(Line { setup, requester: Requester::new(setup.rc) });
        self.by_qpn = self.lines.iter().enumerate().map(|(at, line)| (line.setup.rc.qpn, at)).collect();
        self.last = self.lines.len() - 1;
    }

    /// Takes all connections down; what is under way on them ends as flushed.
    pub(crate) fn end_all(&mut self, out: &mut Out) {
        for mut line in self.lines.drain(..) {
            line.requester.abandon(out);
            finish(&mut line.requester, &mut self.wholes, out);
        }
        self.by_qpn.clear();
        self.last = 0;
    }

    pub(crate) fn post(
        &mut self,
        now: Instant,
        ticket: u64,
        domain: Domain,
        addr: VirtAddr,
        work: Work,
        out: &mut Out,
    ) {
        let Some((place, room)) = self.find(domain, addr) else {
            return refuse(ticket, work, Failure::NotConnected { addr }, out);
        };
        if length(&work) > room {
            return self.post_parts(now, ticket, domain, work, out);
        }
        let line = &mut self.lines[place];
        if is_atomic(&work) && !addr.0.is_multiple_of(8) {
            // The node would answer with a NAK, and the connection would be gone with all that is under way on it (PROTOCOL 11.2).
            return refuse(ticket, work, Failure::Misaligned { addr }, out);
        }
        if let Err(work) = line.requester.post(ticket, work) {
            return refuse(ticket, work, Failure::QueueFull, out);
        }
        line.requester.pump(now, out);
        finish(&mut line.requester, &mut self.wholes, out);
    }

    /// What goes on at another node: a part to each, when it goes on at all and every one has room.
    fn post_parts(&mut self, now: Instant, ticket: u64, domain: Domain, work: Work, out: &mut Out) {
        let (addr, len) = (address(&work), length(&work));
        let mut parts = Vec::new();
        let mut skip = 0;
        // Also where several nodes have its parts, it stays in the range that its addresses are of.
        let home = self.lines.iter().find(|line| line.covers(domain, addr)).map(|line| line.setup);
        if home.is_some_and(|home| len > home.len - addr.0.wrapping_sub(home.base.0)) {
            return refuse(ticket, work, Failure::OutOfBounds { addr }, out);
        }
        while skip < len && !self.routes.is_empty() {
            let Some(at) = addr.0.checked_add(skip) else { break };
            let Some((place, room)) = self.find(domain, VirtAddr(at)) else { break };
            let part = room.min(len - skip);
            parts.push((place, skip, part));
            skip += part;
        }
        if skip < len || is_atomic(&work) {
            return refuse(ticket, work, Failure::OutOfBounds { addr }, out);
        }
        let (write, buf) = match work {
            Work::Read { buf, .. } => (false, buf),
            Work::Write { buf, .. } => (true, buf),
            Work::CmpSwap { .. } | Work::FetchAdd { .. } => unreachable!("an atomic has one place"),
        };
        let whole = self.wholes.begin(ticket, write, buf, parts.len());
        for (place, skip, len) in parts {
            let (id, buf) = self.wholes.part(whole, Part { skip, len });
            let addr = VirtAddr(addr.0 + skip);
            let work = if write { Work::Write { addr, buf } } else { Work::Read { addr, buf } };
            let line = &mut self.lines[place];
            match line.requester.post(id, work) {
                Ok(()) => {
                    line.requester.pump(now, out);
                    finish(&mut line.requester, &mut self.wholes, out);
                }
                Err(Work::Read { buf, .. } | Work::Write { buf, .. }) => {
                    self.wholes.ended(id, Err(Failure::QueueFull), buf, out);
                }
                Err(_) => unreachable!("a part reads or writes"),
            }
        }
    }

    pub(crate) fn packet(&mut self, now: Instant, port: Port, packet: &Packet<'_>, out: &mut Out) {
        let Some(&place) = self.by_qpn.get(&packet.bth.dest_qp) else {
            return out.note(Note::NotForUs);
        };
        let requester = &mut self.lines[place].requester;
        requester.on_packet(now, port, packet, out);
        finish(requester, &mut self.wholes, out);
    }

    pub(crate) fn wake(&mut self, now: Instant, out: &mut Out) {
        for line in &mut self.lines {
            if line.requester.next_wake().is_some_and(|at| at <= now) {
                line.requester.on_wake(now, out);
                finish(&mut line.requester, &mut self.wholes, out);
            }
        }
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.lines.iter().filter_map(|line| line.requester.next_wake()).min()
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.lines.iter().map(|line| line.requester.outstanding()).sum()
    }

    pub(crate) fn is_broken(&self, domain: Domain, addr: VirtAddr) -> bool {
        let node = self.routes.find(addr.0).map(|(node, _)| node);
        let leads = |line: &Line| match node {
            Some(node) => line.setup.domain == domain && line.setup.node == node,
            None => line.covers(domain, addr),
        };
        self.lines.iter().any(|line| leads(line) && line.requester.is_broken())
    }

    pub(crate) fn is_node_broken(&self, domain: Domain, node: NodeId) -> bool {
        let leads = |line: &Line| line.setup.domain == domain && line.setup.node == node;
        self.lines.iter().any(|line| leads(line) && line.requester.is_broken())
    }

    pub(crate) fn check(&self) {
        assert!(self.lines.len() <= self.lines_max, "more connections than the bound");
        for line in &self.lines {
            line.requester.check();
            let same = self.lines.iter().filter(|other| other.gives_way_to(&line.setup)).count();
            assert_eq!(same, 1, "one connection for each address of a domain");
        }
        assert_eq!(self.by_qpn.len(), self.lines.len(), "each connection is found by its own queue pair");
        for (qpn, &place) in &self.by_qpn {
            assert_eq!(self.lines[place].setup.rc.qpn, *qpn, "the queue pair index names its connection");
        }
        self.routes.check();
        self.wholes.check(self.outstanding());
    }

    /// The connection that leads to an address, and for how many bytes from there on.
    fn find(&mut self, domain: Domain, addr: VirtAddr) -> Option<(usize, u64)> {
        // Most hosts know of nothing that moved.
        let mut next = u64::MAX;
        if !self.routes.is_empty() {
            if let Some((node, room)) = self.routes.find(addr.0) {
                let leads = |line: &Line| line.setup.domain == domain && line.setup.node == node;
                return Some((self.lines.iter().position(leads)?, room));
            }
            next = self.routes.next(addr.0);
        }
        if !self.lines.get(self.last).is_some_and(|line| line.covers(domain, addr)) {
            self.last = self.lines.iter().position(|line| line.covers(domain, addr))?;
        }
        let setup = &self.lines[self.last].setup;
        let room = setup.len - addr.0.wrapping_sub(setup.base.0);
        Some((self.last, room.min(next - addr.0)))
    }
}

fn address(work: &Work) -> VirtAddr {
    match work {
        Work::Read { addr, .. }
        | Work::Write { addr, .. }
        | Work::CmpSwap { addr, .. }
        | Work::FetchAdd { addr, .. } => *addr,
    }
}

fn length(work: &Work) -> u64 {
    match work {
        Work::Read { buf, .. } | Work::Write { buf, .. } => buf.len() as u64,
        Work::CmpSwap { .. } | Work::FetchAdd { .. } => 8,
    }
}

const fn is_atomic(work: &Work) -> bool {
    matches!(work, Work::CmpSwap { .. } | Work::FetchAdd { .. })
}

fn finish(requester: &mut Requester, wholes: &mut Wholes, out: &mut Out) {
    while let Some(Completion { id, result, buf }) = requester.pop_completion() {
        let result = result.map(|old| Answer::Done { old }).map_err(Failure::Connection);
        if Wholes::is_part(id) {
            wholes.ended(id, result, buf, out);
        } else {
            out.local(Done { ticket: id, result, buf });
        }
    }
}

fn refuse(ticket: u64, work: Work, failure: Failure, out: &mut Out) {
    let buf = match work {
        Work::Read { buf, .. } | Work::Write { buf, .. } => buf,
        Work::CmpSwap { .. } | Work::FetchAdd { .. } => Vec::new(),
    };
    out.local(Done { ticket, result: Err(failure), buf });
}
