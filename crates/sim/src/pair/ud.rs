//! Requests in datagrams under faults: several clients, one server that de-duplicates writes.

use super::work::noise;
use super::{requester_gid, responder_gid};
use crate::campaign::{Outcome, Verdict};
use crate::{Digest, Network, Plan};
use farmem_machine::{Action, Duration, Instant, Outbox, Port, Rng};
use farmem_transport::ud::{AnswerBudget, Dedup, RequestState, Requester};
use farmem_wire::{
    Body, Bth, Deth, Extension, Gid, Header, HostId, Message, Opcode, Packet, Psn, Qkey, Qpn, RequestId,
    Status, VirtAddr,
};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

const CLIENTS: u16 = 3;
const SERVER: Port = Port::node(0);
const SERVER_QPN: Qpn = Qpn::new(0x99);
const SERVER_QKEY: Qkey = Qkey(0x5151_5151);
/// Slots that each client writes and reads, with at most one request in flight for each.
const SLOTS: usize = 24;
const SLOT_LEN: u32 = 512;
const SLOT_BYTES: usize = SLOT_LEN as usize;
/// Maximum number of concurrent requests of a client.
const OUTSTANDING_MAX: usize = 16;
/// Number of writes that the server remembers for each client. A client starts no write if this many would be
/// in flight or newer than one in flight: the server could not tell the oldest from an executed one (PROTOCOL
/// 5.5 to 5.8).
const DEPTH: usize = 32;
/// Virtual time without a completed request after which a world is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs one world.
pub(super) fn world(seed: u64, operations: u64, plan: Plan, trace: bool) -> Outcome {
    let mut world = World::new(seed, plan, trace);
    let result = world.run(operations);
    let mut outcome = Outcome {
        operations: world.ended,
        network: *world.network.counters(),
        retransmissions: world.sent - world.posted,
        notes: world.notes,
        time: world.now.since(Instant::ZERO),
        digest: world.digest.get(),
        trace: world.trace.unwrap_or_default(),
        ..Outcome::default()
    };
    if let Err((verdict, why)) = result {
        (outcome.verdict, outcome.why) = (verdict, why);
    }
    outcome
}

type End = (Verdict, String);

/// An open request of a client.
#[derive(Clone, Debug)]
enum Operation {
    Read { slot: usize },
    Write { slot: usize, nth: usize },
}

struct Client {
    host: HostId,
    /// Holds each request's frame.
    requester: Requester<(Operation, Vec<u8>)>,
    counter: u32,
    /// The contents of each slot after its request in flight.
    model: Vec<u8>,
    busy: [bool; SLOTS],
    /// Number of writes started.
    writes: usize,
    /// The writes in flight.
    writing: BTreeSet<usize>,
}

impl Client {
    /// Returns true if one more write leaves the server able to recognise every write in flight.
    fn may_write(&self) -> bool {
        self.writing.first().is_none_or(|oldest| self.writes - oldest < DEPTH)
    }
}

struct World {
    now: Instant,
    network: Network,
    rng: Rng,
    clients: Vec<Client>,
    dedup: Dedup,
    memory: Vec<u8>,
    executed: BTreeMap<RequestId, u32>,
    out: Outbox<Infallible, Infallible>,
    posted: u64,
    sent: u64,
    ended: u64,
    progress: Instant,
    notes: BTreeMap<String, u64>,
    digest: Digest,
    trace: Option<Vec<String>>,
}

impl World {
    fn new(seed: u64, plan: Plan, trace: bool) -> Self {
        let mut rng = Rng::from_number(seed);
        let timeout = Duration::from_micros(u64::from(100 + rng.below(1000)));
        let client = |host| Client {
            host: HostId(host),
            requester: Requester::new(OUTSTANDING_MAX, timeout, 1000),
            // Close to the end of the counter's 32 bits: ids are compared, not assumed to be small.
            counter: u32::MAX - 1_000_000,
            model: vec![0; SLOTS * SLOT_BYTES],
            busy: [false; SLOTS],
            writes: 0,
            writing: BTreeSet::new(),
        };
        Self {
            now: Instant::ZERO,
            network: Network::new(plan, Rng::from_number(rng.next_u64())),
            clients: (0..CLIENTS).map(client).collect(),
            dedup: Dedup::new(usize::from(CLIENTS), DEPTH, AnswerBudget::UNBOUNDED),
            memory: vec![0; usize::from(CLIENTS) * SLOTS * SLOT_BYTES],
            executed: BTreeMap::new(),
            out: Outbox::new(),
            posted: 0,
            sent: 0,
            ended: 0,
            progress: Instant::ZERO,
            notes: BTreeMap::new(),
            digest: Digest::default(),
            trace: trace.then(Vec::new),
            rng,
        }
    }

    fn run(&mut self, operations: u64) -> Result<(), End> {
        while self.ended < operations {
            for _ in 0..self.rng.below(8) {
                if self.posted < operations {
                    self.post();
                }
            }
            self.step()?;
        }
        while !self.network.is_empty() {
            self.step()?;
        }
        self.settle()
    }

    /// Posts one request of a random client, if its slot is free.
    fn post(&mut self) {
        let index = self.rng.below(u32::from(CLIENTS)) as usize;
        let slot = self.rng.below(u32::try_from(SLOTS).expect("few")) as usize;
        let client = &mut self.clients[index];
        if client.busy[slot] || client.requester.len() == OUTSTANDING_MAX {
            return;
        }
        client.counter += 1;
        let request = RequestId::new(client.host, 1, client.counter);
        let header = Header::request(request, 1);
        let place = slot_addr(client.host, slot);
        let data;
        let (asked, body) = if client.may_write() && self.rng.chance(1, 2) {
            let len = 1 + self.rng.below(SLOT_LEN);
            data = noise(&mut self.rng, len as usize);
            client.model[slot * SLOT_BYTES..][..data.len()].copy_from_slice(&data);
            client.writing.insert(client.writes);
            client.writes += 1;
            (
                Operation::Write { slot, nth: client.writes - 1 },
                Body::RegionWrite { addr: place, len, data: &data },
            )
        } else {
            (Operation::Read { slot }, Body::RegionRead { addr: place, len: SLOT_LEN, data: &[] })
        };
        client.busy[slot] = true;
        let message = Message { header, body };
        let frame = frame(SERVER_QPN, SERVER_QKEY, client_qpn(client.host), &message);
        self.out.send(SERVER, &frame);
        let started = client.requester.start(self.now, request, (asked, frame));
        assert!(started.is_ok(), "there was room");
        self.posted += 1;
        self.tell(|| format!("post {request:?} slot {slot}"));
        self.drain_client(index);
    }

    fn step(&mut self) -> Result<(), End> {
        let wakes = self.clients.iter().filter_map(|client| client.requester.next_wake());
        let Some(due) = wakes.chain(self.network.next_due()).min() else {
            let left = self.posted - self.ended;
            return if left == 0 {
                Ok(())
            } else {
                Err((Verdict::Stuck, format!("{left} requests, no timer")))
            };
        };
        self.now = self.now.max(due);
        if self.now.since(self.progress) > PATIENCE {
            return Err((Verdict::Stuck, format!("nothing ended for {PATIENCE:?}")));
        }
        if let Some(in_flight) = self.network.take_due(self.now) {
            if let Some(frame) = self.network.open(&in_flight) {
                self.digest.bytes(frame);
                self.deliver(in_flight.from, in_flight.to, frame)?;
            }
            self.network.recycle(in_flight);
        } else {
            for index in 0..self.clients.len() {
                let out = &mut self.out;
                let send = |_, (_, frame): &(Operation, Vec<u8>)| out.send(SERVER, frame);
                if let Some(expired) = self.clients[index].requester.on_wake(self.now, send) {
                    return Err((Verdict::Stuck, format!("{:?} was given up", expired.request)));
                }
                self.drain_client(index);
            }
        }
        self.clients.iter().for_each(|client| client.requester.check());
        Ok(())
    }

    fn deliver(&mut self, from: Gid, to: Gid, frame: &[u8]) -> Result<(), End> {
        let what = |e| (Verdict::Unsafe, format!("sent what is no message: {e}"));
        let packet = Packet::parse(frame).map_err(what)?;
        let message = Message::parse(packet.payload).map_err(what)?;
        if to == responder_gid() {
            self.serve(from, &message)
        } else {
            let index = usize::from(message.header.request.host().0);
            self.answer(index, &message)
        }
    }

    /// Serves a message: each write executes once, whatever arrives.
    fn serve(&mut self, from: Gid, message: &Message<'_>) -> Result<(), End> {
        let request = message.header.request;
        let mut answer = Vec::new();
        match message.body {
            Body::RegionRead { addr, len, .. } => {
                let at = offset(addr);
                let data = &self.memory[at..at + len as usize];
                let body = Body::RegionRead { addr, len, data };
                answer = reply(&message.header, body);
            }
            Body::RegionWrite { addr, len, data } => match self.dedup.lookup(request) {
                RequestState::New => {
                    let times = self.executed.entry(request).or_default();
                    *times += 1;
                    if *times > 1 {
                        return Err((Verdict::Unsafe, format!("{request:?} was executed {times} times")));
                    }
                    self.memory[offset(addr)..][..data.len()].copy_from_slice(data);
                    answer = reply(&message.header, Body::RegionWrite { addr, len, data: &[] });
                    self.dedup.remember(request, 0, &answer);
                    self.note("Executed");
                }
                RequestState::Answered(frame) => {
                    answer.extend_from_slice(frame);
                    self.note("AnsweredAgain");
                }
                RequestState::UnderWay => unreachable!("these requests are answered at once"),
                RequestState::Forgotten => {
                    self.note("Forgotten");
                    return Ok(());
                }
            },
            Body::Traverse(_) | Body::Batch(_) | Body::Update(_) => {
                return Err((Verdict::Unsafe, "a kind that was not sent".to_owned()));
            }
        }
        self.network.send(self.now, responder_gid(), from, &answer);
        Ok(())
    }

    fn answer(&mut self, index: usize, message: &Message<'_>) -> Result<(), End> {
        let request = message.header.request;
        let Some(client) = self.clients.get_mut(index) else {
            return Err((Verdict::Unsafe, format!("an answer to {request:?}, which is not here")));
        };
        let Some((asked, _)) = client.requester.finish(request) else {
            self.note("LateAnswer");
            return Ok(());
        };
        let slot = match asked {
            Operation::Read { slot } => slot,
            Operation::Write { slot, nth } => {
                client.writing.remove(&nth);
                slot
            }
        };
        client.busy[slot] = false;
        let want = &client.model[slot * SLOT_BYTES..][..SLOT_BYTES];
        let right = match (asked, message.body) {
            (Operation::Read { .. }, Body::RegionRead { data, .. }) => data == want,
            (Operation::Write { .. }, Body::RegionWrite { .. }) => self.executed.get(&request) == Some(&1),
            _ => false,
        };
        self.ended += 1;
        self.progress = self.now;
        self.tell(|| format!("end {request:?}"));
        if right && message.header.status == Status::Ok {
            return Ok(());
        }
        Err((Verdict::Unsafe, format!("{request:?} ended with what the model does not say")))
    }

    fn settle(&self) -> Result<(), End> {
        let model = self.clients.iter().flat_map(|client| &client.model);
        if self.network.counters().undetected > 0 {
            return Err((Verdict::Unsafe, "a damaged packet was accepted".to_owned()));
        }
        match self.memory.iter().zip(model).position(|(a, b)| a != b) {
            Some(at) => Err((Verdict::Unsafe, format!("memory differs from the model at {at}"))),
            None => Ok(()),
        }
    }

    fn drain_client(&mut self, index: usize) {
        let from = client_gid(self.clients[index].host);
        let (now, network, sent) = (self.now, &mut self.network, &mut self.sent);
        self.out.drain(|action| match action {
            Action::Send { frame, .. } => {
                *sent += 1;
                network.send(now, from, responder_gid(), frame);
            }
            Action::Local(never) | Action::Note(never) => match never {},
        });
    }

    fn note(&mut self, name: &str) {
        self.digest.bytes(name.as_bytes());
        *self.notes.entry(format!("ud.{name}")).or_default() += 1;
        self.tell(|| format!("note {name}"));
    }

    fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:?} {}", self.now, line()));
        }
    }
}

fn frame(qpn: Qpn, qkey: Qkey, src_qp: Qpn, message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let bth = Bth::new(Opcode::UdSendOnly, qpn, Psn::new(0));
    let ext = Extension::Deth(Deth { qkey, src_qp });
    Packet::emit_with(&bth, &ext, message.len(), &mut bytes, |payload| message.emit(payload));
    bytes
}

fn reply(header: &Header, body: Body<'_>) -> Vec<u8> {
    let message = Message { header: header.answer(Status::Ok), body };
    frame(client_qpn(header.request.host()), Qkey(0x1234), SERVER_QPN, &message)
}

fn client_qpn(host: HostId) -> Qpn {
    Qpn::new(0x100 + u32::from(host.0))
}

fn client_gid(host: HostId) -> Gid {
    let [a, b, c, _] = requester_gid().as_v4().expect("an IPv4 address");
    Gid::from_v4([a, b, c, 100 + u8::try_from(host.0).expect("few clients")])
}

fn slot_addr(host: HostId, slot: usize) -> VirtAddr {
    VirtAddr(((usize::from(host.0) * SLOTS + slot) * SLOT_BYTES) as u64)
}

fn offset(addr: VirtAddr) -> usize {
    usize::try_from(addr.0).expect("inside")
}

#[cfg(test)]
mod tests {
    use super::world;
    use crate::Plan;
    use crate::campaign::Verdict;

    /// In a storm writes arrive twice, and late: the server must have answered some from its memory of
    /// answers.
    #[test]
    fn duplicates_are_answered_not_executed() {
        let outcome = world(1, 2000, Plan::STORM, false);
        assert_eq!(outcome.verdict, Verdict::Fine, "{}", outcome.why);
        assert!(outcome.notes["ud.AnsweredAgain"] > 10, "{:?}", outcome.notes);
        assert_eq!(outcome.operations, 2000);
    }

    /// A seed always gives the same run.
    #[test]
    fn the_same_seed_gives_the_same_digest() {
        let [one, again, other] = [4, 4, 5].map(|seed| world(seed, 500, Plan::STORM, false).digest);
        assert_eq!(one, again);
        assert_ne!(one, other);
    }
}
