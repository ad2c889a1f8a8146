//! The wire side: batches out, answers in, timers (PROTOCOL 8.19 to 8.21).

use crate::link::RetryTimer;
use crate::messages::Actions;
use crate::note::{DropReason, Note};
use crate::rack::Rack;
use crate::record::{Line, Refusal, Role, status};
use crate::updates::Reach;
use alloc::vec::Vec;
use farmem_machine::{Backoff, Duration, Instant, Port};
use farmem_transport::ud;
use farmem_transport::ud::Peer;
use farmem_wire::message::Updates;
use farmem_wire::{Body, Extension, Header, HostId, Message, Packet, RequestId, Status};

/// Number of times that the wait between transmissions doubles: 8 timeouts at most.
const DOUBLINGS_MAX: u32 = 3;

impl Rack {
    /// Handles the answer of a role to its outstanding batch.
    pub(crate) fn on_answer(&mut self, role: Role, payload: &[u8], out: &mut Actions) {
        match self.read_answer(role, payload) {
            Ok((seq, refusal)) => {
                let silent = self.state.reach(role) == Some(Reach::Silent);
                if self.keep(Line::Answered { role, seq, refusal }, out).is_err() {
                    // The role answers again after a retransmission; it must not count as silent meanwhile.
                    self.retry_timers.entry(role).and_modify(|pace| pace.resent = 0);
                    return out.note(Note::Dropped(DropReason::NotKept));
                }
                if silent {
                    self.routes_due = true;
                    out.note(Note::Back(role));
                }
                if let Some(refusal) = refusal {
                    out.note(Note::Refused(role, status(refusal.status)));
                }
            }
            Err(reason) => out.note(Note::Dropped(reason)),
        }
    }

    /// Returns the sender and the payload of a frame to this role.
    pub(crate) fn open_frame<'a>(&self, port: Port, bytes: &'a [u8]) -> Result<(Role, &'a [u8]), DropReason> {
        let role = Role::of(port).ok_or(DropReason::Port)?;
        let packet = Packet::parse(bytes).map_err(|_| DropReason::Malformed)?;
        let Extension::Deth(deth) = packet.ext else { return Err(DropReason::Kind) };
        let ours = self.state.home.ok_or(DropReason::Endpoint)?.endpoint();
        if packet.bth.dest_qp != ours.qpn || deth.qkey != ours.qkey {
            return Err(DropReason::Endpoint);
        }
        Ok((role, packet.payload))
    }

    fn read_answer(&self, role: Role, payload: &[u8]) -> Result<(u64, Option<Refusal>), DropReason> {
        let message = Message::parse(payload).map_err(|_| DropReason::Malformed)?;
        let Body::Update(updates) = message.body else { return Err(DropReason::Kind) };
        if !message.header.response {
            return Err(DropReason::Kind);
        }
        let queue = self.state.queues.get(&role).ok_or(DropReason::Stale)?;
        let head = queue.outstanding().ok_or(DropReason::Stale)?;
        if updates.seq != queue.seq || message.header.request != self.request_id(role, queue.seq) {
            return Err(DropReason::Stale);
        }
        if message.header.status == Status::Ok {
            return Ok((queue.seq, None));
        }
        if usize::from(updates.refused) >= head.entries.len() {
            return Err(DropReason::Malformed);
        }
        let refusal = Refusal { status: message.header.status as u8, index: updates.refused };
        Ok((queue.seq, Some(refusal)))
    }

    /// Retransmits the batches that are due.
    pub(crate) fn on_wake(&mut self, now: Instant, out: &mut Actions) {
        let due: Vec<Role> =
            self.retry_timers.iter().filter(|(_, pace)| pace.due <= now).map(|(&role, _)| role).collect();
        for role in due {
            let Some(pace) = self.retry_timers.get(&role).copied() else { continue };
            let silent =
                pace.resent >= self.config.retries_max && self.state.reach(role) == Some(Reach::Ready);
            if silent && self.keep(Line::Silent { role }, out).is_ok() {
                self.count_silence(role);
                out.note(Note::Silent(role));
            }
            // The consequences may have ended the queue, or even begun another.
            if self.outstanding(role) != Some(pace.request) {
                continue;
            }
            let resent = pace.resent.saturating_add(1);
            out.note(Note::Retransmitted(role));
            self.send_head(role, out);
            self.retry_timers.insert(role, RetryTimer { resent, due: now + self.wait(resent), ..pace });
        }
    }

    /// Sends every new head, and drops the timers of those that are gone.
    pub(crate) fn flush(&mut self, now: Instant, out: &mut Actions) {
        let heads: Vec<(Role, Option<RequestId>)> =
            self.state.queues.keys().map(|&role| (role, self.outstanding(role))).collect();
        self.retry_timers.retain(|role, _| self.state.queues.contains_key(role));
        for (role, head) in heads {
            match head {
                None => {
                    self.retry_timers.remove(&role);
                }
                Some(request) if self.retry_timers.get(&role).is_some_and(|pace| pace.request == request) => {
                }
                Some(request) => {
                    self.send_head(role, out);
                    self.retry_timers
                        .insert(role, RetryTimer { request, resent: 0, due: now + self.wait(0) });
                }
            }
        }
    }

    /// Returns the time until the next retransmission, after this many.
    pub(crate) fn wait(&self, resent: u32) -> Duration {
        Backoff::new(self.config.timeout, DOUBLINGS_MAX).after(resent)
    }

    /// Returns the id of the outstanding batch of `role`.
    pub(crate) fn outstanding(&self, role: Role) -> Option<RequestId> {
        let queue = self.state.queues.get(&role)?;
        queue.outstanding().map(|_| self.request_id(role, queue.seq))
    }

    /// Returns the request id of a batch. No host has the number 0; the generation of the role separates
    /// answers of an earlier join (PROTOCOL 8.20).
    pub(crate) fn request_id(&self, role: Role, seq: u64) -> RequestId {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the message has all of it; the id needs the low half"
        )]
        let low = seq as u32;
        RequestId::new(HostId(0), self.state.generation(role), low)
    }

    fn send_head(&mut self, role: Role, out: &mut Actions) {
        let Some(queue) = self.state.queues.get(&role) else { return };
        let (Some(head), Some(key), Some(own)) =
            (queue.outstanding(), self.state.home_of(role), self.state.home)
        else {
            return;
        };
        let mut bytes = Vec::with_capacity(head.len);
        let count = head.emit(&mut bytes);
        let Ok(updates) = Updates::request(queue.seq, count, &bytes) else {
            unreachable!("a queue makes only batches that fit")
        };
        let header = Header::request(self.request_id(role, queue.seq), 0);
        let peer = Peer { port: role.port(), endpoint: key.endpoint() };
        let message = Message { header, body: Body::Update(updates) };
        ud::send(out, peer, own.endpoint().qpn, self.psn, &message);
        self.psn = self.psn.plus(1);
        let seq = queue.seq;
        self.sent(role, seq, count, &bytes);
    }
}
