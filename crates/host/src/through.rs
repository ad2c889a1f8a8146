//! Connections through the switch: queue pairs that the user opens and closes, and operations that name one
//! (PROTOCOL 11.14).
//!
//! Unlike the connections of [`crate::connections`], such a connection leads to one node only. The host does
//! not follow moved memory, does not split operations, and does not repair a broken connection: the user
//! closes it. They exist for the keyed READ, whose address only the switch knows.

use crate::{Answer, Done, Failure, Note, Out, SetupFault, Sink};
use alloc::collections::BTreeMap;
use farmem_machine::{Instant, Port};
use farmem_transport::rc::{self, Requester, Work};
use farmem_wire::{Domain, Packet, Qpn};

/// The connections through the switch of all domains.
#[derive(Debug)]
pub(crate) struct Through {
    connections: BTreeMap<Qpn, (Domain, Requester)>,
    connections_max: usize,
}

impl Through {
    pub(crate) const fn new(connections_max: usize) -> Self {
        Self { connections: BTreeMap::new(), connections_max }
    }

    pub(crate) fn has(&self, qpn: Qpn) -> bool {
        self.connections.contains_key(&qpn)
    }

    /// Adds a connection. Replaces one with the same queue pair, whose operations are flushed.
    pub(crate) fn open(&mut self, domain: Domain, config: &rc::RequesterConfig, out: &mut Sink) {
        if !self.has(config.qpn) && self.connections.len() >= self.connections_max {
            return out.note(Note::Rejected(SetupFault::Full));
        }
        self.close(config.qpn, out);
        self.connections.insert(config.qpn, (domain, Requester::new(*config)));
    }

    /// Closes a connection. Operations in flight on it end as flushed.
    pub(crate) fn close(&mut self, qpn: Qpn, out: &mut Sink) {
        if let Some((_, mut requester)) = self.connections.remove(&qpn) {
            requester.abandon(out);
            finish(&mut requester, out);
        }
    }

    pub(crate) fn end_all(&mut self, out: &mut Sink) {
        while let Some(&qpn) = self.connections.keys().next() {
            self.close(qpn, out);
        }
    }

    /// Returns true if the connection is open and not broken.
    pub(crate) fn is_up(&self, qpn: Qpn) -> bool {
        self.connections.get(&qpn).is_some_and(|(_, requester)| !requester.is_broken())
    }

    pub(crate) fn post(
        &mut self,
        now: Instant,
        ticket: u64,
        domain: Domain,
        over: Qpn,
        work: Work,
        out: &mut Sink,
    ) {
        let addr = work.addr();
        let line = self.connections.get_mut(&over).filter(|(of, _)| *of == domain);
        let Some((_, requester)) = line else {
            return end(ticket, Err(Failure::NotConnected { addr }), work, out);
        };
        if work.is_misaligned() {
            return end(ticket, Err(Failure::Misaligned { addr }), work, out);
        }
        match requester.post(ticket, work) {
            Ok(()) => requester.pump(now, out),
            Err(work) => return end(ticket, Err(Failure::QueueFull), work, out),
        }
        finish(requester, out);
    }

    /// Handles a packet for one of these connections, or for no queue pair of this host.
    pub(crate) fn packet(&mut self, now: Instant, port: Port, packet: &Packet<'_>, out: &mut Sink) {
        let Some((_, requester)) = self.connections.get_mut(&packet.bth.dest_qp) else {
            return out.note(Note::NotForUs);
        };
        requester.on_packet(now, port, packet, out);
        finish(requester, out);
    }

    pub(crate) fn wake(&mut self, now: Instant, out: &mut Sink) {
        for (_, requester) in self.connections.values_mut() {
            if requester.next_wake().is_some_and(|at| at <= now) {
                requester.on_wake(now, out);
                finish(requester, out);
            }
        }
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.connections.values().filter_map(|(_, requester)| requester.next_wake()).min()
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.connections.values().map(|(_, requester)| requester.outstanding()).sum()
    }

    pub(crate) fn check(&self) {
        assert!(self.connections.len() <= self.connections_max, "more connections than the bound");
        self.connections.values().for_each(|(_, requester)| requester.check());
    }
}

/// Emits the completions.
fn finish(requester: &mut Requester, out: &mut Sink) {
    while let Some(rc::Completion { id, result, work }) = requester.pop_completion() {
        let result = result.map(|old| Answer::Done { old }).map_err(Failure::Connection);
        end(id, result, work, out);
    }
}

fn end(ticket: u64, result: Result<Answer, Failure>, work: Work, out: &mut Sink) {
    out.local(Out::Done(Done { ticket, result, buf: work.into_buf() }));
}
