//! The host's reliable connections: which one leads to an address, and what comes back over it.

use crate::{Answer, Connection, Done, Failure, Note, Out, SetupFault};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farmem_machine::{Instant, Port};
use farmem_transport::rc::{Completion, Requester, Work};
use farmem_wire::{Domain, Packet, Qpn, VirtAddr};

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
}

impl Connections {
    pub(crate) fn new(lines_max: usize) -> Self {
        Self { lines: Vec::new(), by_qpn: BTreeMap::new(), last: 0, lines_max }
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
            finish(&mut old.requester, out);
        }
        self.lines.push(Line { setup, requester: Requester::new(setup.rc) });
        self.by_qpn = self.lines.iter().enumerate().map(|(at, line)| (line.setup.rc.qpn, at)).collect();
        self.last = self.lines.len() - 1;
    }

    /// Takes all connections down; what is under way on them ends as flushed.
    pub(crate) fn end_all(&mut self, out: &mut Out) {
        for mut line in self.lines.drain(..) {
            line.requester.abandon(out);
            finish(&mut line.requester, out);
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
        let Some(place) = self.find(domain, addr) else {
            return refuse(ticket, work, Failure::NotConnected { addr }, out);
        };
        let line = &mut self.lines[place];
        let room = line.setup.len - addr.0.wrapping_sub(line.setup.base.0);
        if length(&work) > room {
            return refuse(ticket, work, Failure::OutOfBounds { addr }, out);
        }
        if is_atomic(&work) && !addr.0.is_multiple_of(8) {
            // The node would answer with a NAK, and the connection would be gone with all that is under way on it (PROTOCOL 11.2).
            return refuse(ticket, work, Failure::Misaligned { addr }, out);
        }
        if let Err(work) = line.requester.post(ticket, work) {
            return refuse(ticket, work, Failure::QueueFull, out);
        }
        line.requester.pump(now, out);
        finish(&mut line.requester, out);
    }

    pub(crate) fn packet(&mut self, now: Instant, port: Port, packet: &Packet<'_>, out: &mut Out) {
        let Some(&place) = self.by_qpn.get(&packet.bth.dest_qp) else {
            return out.note(Note::NotForUs);
        };
        let requester = &mut self.lines[place].requester;
        requester.on_packet(now, port, packet, out);
        finish(requester, out);
    }

    pub(crate) fn wake(&mut self, now: Instant, out: &mut Out) {
        for line in &mut self.lines {
            if line.requester.next_wake().is_some_and(|at| at <= now) {
                line.requester.on_wake(now, out);
                finish(&mut line.requester, out);
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
        self.lines.iter().any(|line| line.covers(domain, addr) && line.requester.is_broken())
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
    }

    fn find(&mut self, domain: Domain, addr: VirtAddr) -> Option<usize> {
        if self.lines.get(self.last).is_some_and(|line| line.covers(domain, addr)) {
            return Some(self.last);
        }
        self.last = self.lines.iter().position(|line| line.covers(domain, addr))?;
        Some(self.last)
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

fn finish(requester: &mut Requester, out: &mut Out) {
    while let Some(Completion { id, result, buf }) = requester.pop_completion() {
        let result = result.map(|old| Answer::Done { old }).map_err(Failure::Connection);
        out.local(Done { ticket: id, result, buf });
    }
}

fn refuse(ticket: u64, work: Work, failure: Failure, out: &mut Out) {
    let buf = match work {
        Work::Read { buf, .. } | Work::Write { buf, .. } => buf,
        Work::CmpSwap { .. } | Work::FetchAdd { .. } => Vec::new(),
    };
    out.local(Done { ticket, result: Err(failure), buf });
}
