//! Sends the probes that are due, and recognizes their answers (PROTOCOL 8.73).

use crate::messages::Actions;
use crate::probes::Probe;
use crate::rack::Rack;
use crate::record::{Line, Role};
use crate::updates::Reach;
use alloc::vec::Vec;
use farmem_machine::{Duration, Instant};
use farmem_transport::ud;
use farmem_transport::ud::Peer;
use farmem_wire::message::Updates;
use farmem_wire::{Body, Header, Message};

/// Questions without an answer after which a role is told something.
const UNANSWERED_MAX: u32 = 3;

/// Questions without an answer are asked again after this part of the time between two.
const AGAIN: u64 = 4;

impl Rack {
    /// Notes that a batch was sent: the next probe asks the role about it.
    pub(crate) fn sent(&mut self, role: Role, seq: u64, count: u16, bytes: &[u8]) {
        let Some(every) = self.config.probe else { return };
        let due = self.now + every;
        let probe = self.probes.entry(role).or_insert_with(|| Probe::new(due));
        if probe.seq != seq {
            *probe = Probe { seq, count, bytes: bytes.to_vec(), ..Probe::new(due) };
        }
    }

    /// Returns true if a frame answers a probe.
    pub(crate) fn probe_answered(&mut self, role: Role, payload: &[u8]) -> bool {
        let (Some(every), Ok(message)) = (self.config.probe, Message::parse(payload)) else { return false };
        let Body::Update(updates) = message.body else { return false };
        let is_idle = self.state.queues.get(&role).is_some_and(|queue| queue.outstanding().is_none());
        let request = self.request_id(role, updates.seq);
        let now = self.now;
        match self.probes.get_mut(&role) {
            Some(probe) if is_idle && probe.seq == updates.seq && message.header.request == request => {
                (probe.unanswered, probe.due) = (0, now + every);
                true
            }
            _ => false,
        }
    }

    /// Asks those roles whose time has come.
    pub(crate) fn probe_roles(&mut self, now: Instant, out: &mut Actions) {
        let Some(every) = self.config.probe else { return };
        let idle: Vec<Role> = self
            .state
            .queues
            .iter()
            .filter(|(_, queue)| queue.reach == Reach::Ready && queue.outstanding().is_none())
            .map(|(&role, _)| role)
            .collect();
        self.probes.retain(|role, _| self.state.queues.contains_key(role));
        for role in idle {
            let probe = self.probes.entry(role).or_insert_with(|| Probe::new(now + every));
            if probe.due > now {
                continue;
            }
            if probe.seq == 0 || probe.unanswered >= UNANSWERED_MAX {
                // A log that takes no line now takes one later.
                probe.due = now + every;
                let _stalled = self.keep(Line::Probed { role }, out);
                continue;
            }
            probe.unanswered += 1;
            probe.due = now + Duration::from_nanos(every.as_nanos() / AGAIN);
            self.send_probe(role, out);
        }
    }

    fn send_probe(&mut self, role: Role, out: &mut Actions) {
        let (Some(key), Some(own)) = (self.state.home_of(role), self.state.home) else { return };
        let Some(probe) = self.probes.get(&role) else { return };
        let Ok(updates) = Updates::request(probe.seq, probe.count, &probe.bytes) else {
            unreachable!("it was sent before")
        };
        let header = Header::request(self.request_id(role, probe.seq), 0);
        let peer = Peer { port: role.port(), endpoint: key.endpoint() };
        ud::send(out, peer, own.endpoint().qpn, self.psn, &Message { header, body: Body::Update(updates) });
        self.psn = self.psn.plus(1);
    }
}
