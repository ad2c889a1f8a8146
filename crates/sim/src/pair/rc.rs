//! One reliable connection under faults.

use super::work::{BASE, Client, LEN, WRITABLE};
use super::{requester_gid, responder_gid};
use crate::campaign::{Outcome, Verdict};
use crate::{Digest, ModelMemory, Network, Plan};
use farmem_machine::{Action, Duration, Instant, Outbox, Port, Rng};
use farmem_transport::rc::{Note, RESPONDER_DEPTH, Requester, RequesterConfig, Responder, ResponderConfig};
use farmem_wire::{Aeth, Bth, Domain, Extension, Opcode, Packet, Pmtu, Psn, Qpn, Rkey, Syndrome, VirtAddr};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::fmt::Debug;

const DOMAIN: Domain = Domain(3);
const REQUESTER: Port = Port::host(0);
const RESPONDER: Port = Port::node(0);
/// Virtual time without a completed operation after which a world is stuck.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum length of a partition: less than half of a requester's shortest timeout times its retries.
const PARTITION_MAX: Duration = Duration::from_millis(2);
/// Maximum number of trace lines.
const TRACE_MAX: usize = 200;
/// One in this many worlds ends with a request that must be refused.
const BAD_END_EVERY: u32 = 8;
/// One in this many worlds has a responder that is not ready for one request in [`NOT_READY_EVERY`]. farmem's
/// responder always is; hardware is not.
const UNREADY_EVERY: u32 = 4;
const NOT_READY_EVERY: u32 = 50;

/// Runs one world.
pub(super) fn world(seed: u64, operations: u64, plan: Plan, trace: bool) -> Outcome {
    let mut pair = Pair::new(seed, plan.with_short_partitions(PARTITION_MAX), trace);
    let result = pair.run(operations);
    let mut outcome = Outcome {
        operations: pair.client.ended(),
        network: *pair.network.counters(),
        retransmissions: pair.retransmissions,
        naks: pair.naks,
        notes: pair.notes,
        time: pair.now.since(Instant::ZERO),
        digest: pair.digest.get(),
        trace: pair.trace.into_iter().flatten().collect(),
        ..Outcome::default()
    };
    if let Err((verdict, why)) = result {
        outcome.verdict = verdict;
        outcome.why = why;
    }
    outcome
}

type End = (Verdict, String);

struct Pair {
    now: Instant,
    network: Network,
    rng: Rng,
    client: Client,
    requester: Requester,
    responder: Responder,
    memory: ModelMemory,
    out: Outbox<Infallible, Note>,
    config: RequesterConfig,
    bad_end: bool,
    /// True if the responder is not always ready.
    unready: bool,
    /// The PSN that the responder expects.
    expected: Psn,
    /// The end of the last operation.
    progress: Instant,
    /// The PSN after the latest request packet.
    next_psn: Psn,
    retransmissions: u64,
    naks: u64,
    notes: BTreeMap<String, u64>,
    digest: Digest,
    trace: Option<VecDeque<String>>,
}

impl Pair {
    fn new(seed: u64, plan: Plan, trace: bool) -> Self {
        let mut rng = Rng::from_number(seed);
        let pmtu = [Pmtu::B256, Pmtu::B512, Pmtu::B1024, Pmtu::B2048, Pmtu::B4096][rng.below(5) as usize];
        // Within 100 of the wrap, on either side of it.
        let first_psn = Psn::new(0).minus(100).plus(rng.below(200));
        let config = RequesterConfig {
            qpn: Qpn::new(0x11),
            peer_qpn: Qpn::new(0x22),
            port: RESPONDER,
            first_psn,
            rkey: Rkey(rng.next_u32()),
            pmtu,
            window_psns: [1, 4, 16, 64, 128][rng.below(5) as usize],
            depth: 1 + rng.below(RESPONDER_DEPTH),
            queue_max: 1 + rng.below(64) as usize,
            timeout: Duration::from_micros(u64::from(50 + rng.below(1000))),
            retries_max: 100,
            rnr_retries_max: 7,
        };
        let responder = ResponderConfig {
            qpn: config.peer_qpn,
            peer_qpn: config.qpn,
            port: REQUESTER,
            expected_psn: first_psn,
            rkey: config.rkey,
            domain: DOMAIN,
            pmtu,
        };
        let bad_end = rng.chance(1, BAD_END_EVERY);
        let unready = rng.chance(1, UNREADY_EVERY);
        Self {
            now: Instant::ZERO,
            network: Network::new(plan, Rng::from_number(rng.next_u64())),
            client: Client::new(Rng::from_number(rng.next_u64()), pmtu),
            rng,
            requester: Requester::new(config),
            responder: Responder::new(responder),
            memory: ModelMemory::new(DOMAIN, VirtAddr(BASE), LEN, WRITABLE),
            out: Outbox::new(),
            config,
            bad_end,
            unready,
            expected: first_psn,
            progress: Instant::ZERO,
            next_psn: first_psn,
            retransmissions: 0,
            naks: 0,
            notes: BTreeMap::new(),
            digest: Digest::default(),
            trace: trace.then(VecDeque::new),
        }
    }

    fn run(&mut self, operations: u64) -> Result<(), End> {
        while self.client.ended() < operations {
            self.post(operations)?;
            self.step()?;
        }
        if self.bad_end {
            self.end_badly()?;
        }
        self.settle()
    }

    /// Posts a random number of operations, as far as the queue has room.
    fn post(&mut self, operations: u64) -> Result<(), End> {
        let burst = u64::from(self.rng.below(8));
        let room = (self.config.queue_max - self.requester.outstanding().min(self.config.queue_max)) as u64;
        for _ in 0..burst.min(room).min(operations - self.client.posted()) {
            let (id, work) = self.client.next();
            self.tell(|| format!("post {id}: {}", brief(&work)));
            if self.requester.post(id, work).is_err() {
                return Err((
                    Verdict::Unsafe,
                    format!("operation {id} was refused though the queue had room"),
                ));
            }
        }
        self.requester.pump(self.now, &mut self.out);
        self.drain_requester()
    }

    /// Handles the next event: a packet, or a timer.
    fn step(&mut self) -> Result<(), End> {
        let due = [self.network.next_due(), self.requester.next_wake()].into_iter().flatten().min();
        let Some(due) = due else {
            // Nothing in flight and no timer: fine only if nothing is outstanding; then the next post
            // continues.
            let left = self.client.outstanding();
            return if left == 0 {
                Ok(())
            } else {
                Err((Verdict::Stuck, format!("{left} operations, no timer")))
            };
        };
        self.now = self.now.max(due);
        if self.now.since(self.progress) > PATIENCE {
            let left = self.client.outstanding();
            return Err((Verdict::Stuck, format!("{left} operations, and none ended for {PATIENCE:?}")));
        }
        match self.network.take_due(self.now) {
            Some(in_flight) => {
                if let Some(frame) = self.network.open(&in_flight) {
                    self.digest.bytes(frame);
                    self.deliver(in_flight.to == responder_gid(), frame)?;
                }
                self.network.recycle(in_flight);
            }
            None => {
                self.requester.on_wake(self.now, &mut self.out);
                self.drain_requester()?;
            }
        }
        // A batch of events ends when nothing more is due now; within one the ACK may be delayed.
        if self.network.next_due() != Some(self.now) || self.rng.chance(1, 2) {
            self.responder.flush(&mut self.out);
            self.drain_responder();
        }
        self.requester.check();
        self.responder.check();
        Ok(())
    }

    fn deliver(&mut self, to_responder: bool, frame: &[u8]) -> Result<(), End> {
        let packet = Packet::parse(frame)
            .map_err(|e| (Verdict::Unsafe, format!("a half sent what is no packet: {e}")))?;
        self.tell(|| format!("{} {}", if to_responder { "->" } else { "<-" }, describe(&packet)));
        if to_responder {
            if self.expected == packet.bth.psn {
                if self.unready && self.rng.chance(1, NOT_READY_EVERY) {
                    self.not_ready();
                    return Ok(());
                }
                self.expected = self.expected.plus(psns(&packet, self.config.pmtu));
            }
            self.responder.on_packet(REQUESTER, &packet, &mut self.memory, &mut self.out);
            self.drain_responder();
            Ok(())
        } else {
            self.requester.on_packet(self.now, RESPONDER, &packet, &mut self.out);
            self.drain_requester()
        }
    }

    /// Answers RNR as the responder, with a timer of 10 to 240 us (IBA 9.7.5.2.8).
    fn not_ready(&mut self) {
        let code = 1 + u8::try_from(self.rng.below(9)).expect("small");
        let bth = Bth::new(Opcode::Acknowledge, self.config.qpn, self.expected);
        let ext = Extension::Aeth(Aeth { syndrome: Syndrome::Rnr(code), msn: Psn::new(0) });
        Packet { bth, ext, payload: &[] }.emit(self.out.frame(REQUESTER).bytes());
        self.drain_responder();
    }

    fn drain_requester(&mut self) -> Result<(), End> {
        let mut out = std::mem::take(&mut self.out);
        out.drain(|action| match action {
            Action::Send { frame, .. } => {
                self.count_request(frame);
                self.network.send(self.now, requester_gid(), responder_gid(), frame);
            }
            Action::Note(note) => self.note(note),
            Action::Local(never) => match never {},
        });
        self.out = out;
        while let Some(completion) = self.requester.pop_completion() {
            self.progress = self.now;
            self.digest.number(completion.id);
            self.tell(|| format!("end {}: {:?}", completion.id, completion.result));
            self.client.end(&completion).map_err(|why| (Verdict::Unsafe, why))?;
        }
        Ok(())
    }

    fn drain_responder(&mut self) {
        let mut out = std::mem::take(&mut self.out);
        out.drain(|action| match action {
            Action::Send { frame, .. } => {
                self.network.send(self.now, responder_gid(), requester_gid(), frame)
            }
            Action::Note(note) => self.note(note),
            Action::Local(never) => match never {},
        });
        self.out = out;
    }

    /// Sends one request that must be refused, and three behind it that must be flushed and not executed
    /// (roce.md 7.4).
    fn end_badly(&mut self) -> Result<(), End> {
        let mut bad = VecDeque::from([self.client.bad()]);
        bad.extend((0..3).map(|_| self.client.flushed()));
        while let Some((id, work)) = bad.pop_front() {
            self.tell(|| format!("post {id}: {}", brief(&work)));
            if let Err(work) = self.requester.post(id, work) {
                bad.push_front((id, work));
                self.step()?;
            }
            self.requester.pump(self.now, &mut self.out);
            self.drain_requester()?;
        }
        while self.client.outstanding() > 0 {
            self.step()?;
        }
        if self.requester.is_broken() {
            Ok(())
        } else {
            Err((Verdict::Unsafe, "refused, but not broken".to_owned()))
        }
    }

    /// Lets all packets in flight arrive, then compares memory.
    fn settle(&mut self) -> Result<(), End> {
        while !self.network.is_empty() {
            self.step()?;
        }
        if self.network.counters().undetected > 0 {
            return Err((Verdict::Unsafe, "a damaged packet was accepted".to_owned()));
        }
        match self.memory.bytes().iter().zip(self.client.model()).position(|(a, b)| a != b) {
            Some(at) => {
                Err((Verdict::Unsafe, format!("memory differs from the model at {:#x}", BASE + at as u64)))
            }
            None => Ok(()),
        }
    }

    /// Counts retransmitted request packets.
    fn count_request(&mut self, frame: &[u8]) {
        let Ok(packet) = Packet::parse(frame) else { return };
        let behind = packet.bth.psn.plus(psns(&packet, self.config.pmtu));
        if behind.distance(self.next_psn) > 0 {
            self.next_psn = behind;
        } else {
            self.retransmissions += 1;
        }
    }

    fn note(&mut self, note: Note) {
        let name = format!("rc.{note:?}");
        self.digest.bytes(name.as_bytes());
        self.tell(|| format!("note {name}"));
        if matches!(note, Note::NakSequence | Note::Refused(_) | Note::InvalidRequest) {
            self.naks += 1;
        }
        *self.notes.entry(name).or_default() += 1;
    }

    fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            if trace.len() == TRACE_MAX {
                trace.pop_front();
            }
            trace.push_back(format!("{:?} {}", self.now, line()));
        }
    }
}

/// Returns the number of PSNs of a request packet.
fn psns(request: &Packet<'_>, pmtu: Pmtu) -> u32 {
    match (request.bth.opcode, request.ext) {
        (Opcode::ReadRequest, Extension::Reth(reth)) => pmtu.packets(reth.dma_len),
        _ => 1,
    }
}

/// Describes a packet in a line.
fn describe(packet: &Packet<'_>) -> String {
    let Bth { opcode, psn, ack_req, .. } = packet.bth;
    let ask = if ack_req { " A" } else { "" };
    format!("{opcode:?} psn {:#08x}{ask} {:?} + {}", psn.get(), packet.ext, packet.payload.len())
}

/// Describes an operation in a line, without its bytes.
fn brief(work: &impl Debug) -> String {
    const LINE_MAX: usize = 120;
    let mut text = format!("{work:?}");
    if let Some((end, _)) = text.char_indices().nth(LINE_MAX) {
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::world;
    use crate::Plan;
    use crate::campaign::Verdict;

    /// A seed always gives the same run, to the last event; another seed gives another one.
    #[test]
    fn the_same_seed_gives_the_same_digest() {
        let [one, again, other] = [7, 7, 8].map(|seed| world(seed, 200, Plan::STORM, false));
        assert_eq!(one.verdict, Verdict::Fine, "{}", one.why);
        assert_eq!((one.digest, one.network), (again.digest, again.network));
        assert_ne!(one.digest, other.digest);
    }

    /// On a calm link a requester repeats only requests answered with RNR, no timer fires, and a responder
    /// refuses only bad requests.
    #[test]
    fn a_calm_link_repeats_nothing() {
        let mut unready = 0;
        for seed in 0..20 {
            let outcome = world(seed, 200, Plan::CALM, false);
            assert_eq!(outcome.verdict, Verdict::Fine, "seed {seed}: {}", outcome.why);
            assert!(!outcome.notes.contains_key("rc.TimedOut"));
            if outcome.notes.contains_key("rc.RnrWait") {
                unready += 1;
            } else {
                assert_eq!(outcome.retransmissions, 0, "seed {seed}");
                assert!(outcome.naks <= 1);
            }
        }
        assert!((1..19).contains(&unready), "some responders are not always ready: {unready}");
    }
}
