//! Fuzz target of the switch, with two nodes, two hosts and three sessions. Every role may send arbitrary
//! frames (PROTOCOL 6.1).
//!
//! For each frame, a [`Model`] of plain lists predicts the forwarded bytes, their receiver, and the changes
//! of the tables. The switch must answer every other frame to one receiver, or drop it.

mod model;
mod relay;
mod soft;

use crate::Run;
use crate::frames::{
    self, FaultyLink, ReceivedFrame, batch, datagram, enclosed, endpoint, noise, with_others,
};
use crate::input::Input;
use farmem_machine::{Action, Event, Instant, Machine as _, Outbox, Port};
use farmem_switch::{Budgets, Note, Switch};
use farmem_transport::PeerChange;
use farmem_transport::ud::{Endpoint, Peer, RoleEndpoints};
use farmem_wire::message::{Traverse, Update};
use farmem_wire::{
    Body, Domain, Gid, Header, HostId, Message, NodeId, Perm, ProgramHash, RequestId, VirtAddr,
};
use model::Model;

const HOME: Endpoint = endpoint(1);
/// Generation of all hosts.
const GENERATION: u16 = 3;
const CONTROL: Peer = Peer { port: Port::CONTROL, endpoint: endpoint(2) };
/// Endpoint, host and domain of each session.
const SESSIONS: [(Endpoint, u16, u32); 4] =
    [(endpoint(0x31), 1, 10), (endpoint(0x32), 2, 10), (endpoint(0x33), 1, 20), (endpoint(0x34), 2, 20)];
const PEERS: [Port; 5] = [Port::node(1), Port::node(2), Port::host(1), Port::host(2), Port::node(3)];
/// Base of each node's range of 2^40 bytes. Each range has a vma of 64 KiB.
const BASES: [u64; 2] = [1 << 40, 2 << 40];
const VMA_LEN: u64 = 0x1_0000;
/// Sizes of the switch's tables, small enough to become full.
const BUDGETS: Budgets = Budgets {
    translation_entries: 6,
    protection_entries: 16,
    vmas: 4,
    sessions: 5,
    connections: 3,
    peers: 6,
    directory_slots: 3,
    soft_bytes: soft::ROOM,
};

/// Output of one event.
#[derive(Debug, Default)]
struct Outcome {
    sent: Vec<ReceivedFrame>,
    peers: Vec<PeerChange>,
    notes: Vec<Note>,
}

struct Bench {
    switch: Switch,
    out: Outbox<PeerChange, Note>,
    model: Model,
    link: FaultyLink,
    counter: u32,
}

/// Runs `data` as a sequence of frames for a switch.
///
/// # Panics
/// Panics when the switch forwards a frame without permission, does not forward a permitted frame, or changes
/// a table without an authorised update.
pub fn switch_events(data: &[u8], run: &mut Run) {
    let mut bench = Bench::new();
    bench.open();
    let mut input = Input::new(data);
    while let Some(event) = input.event(16) {
        let arrival = match event {
            0 => {
                bench.wake();
                continue;
            }
            1 => noise(&mut input),
            2 => bench.link.again(&mut input),
            3..=5 => {
                let sent = bench.updates(&mut input);
                bench.link.arrival(sent, &mut input)
            }
            6..=8 => {
                let sent = bench.continuation(&mut input);
                bench.link.arrival(sent, &mut input)
            }
            14 => {
                let sent = relay::sent(&mut input);
                bench.link.arrival(sent, &mut input)
            }
            15 => {
                let sent = soft::told(&bench.model.soft, &mut input);
                bench.link.arrival(sent, &mut input)
            }
            _ => {
                let sent = bench.request(&mut input);
                bench.link.arrival(sent, &mut input)
            }
        };
        run.cases += 1;
        bench.hear(&arrival, run);
        // A batch with other bytes under the last number halted the switch. The switch starts again (PROTOCOL
        // 5.11).
        if bench.switch.halted().is_some() {
            bench = Bench::new();
            bench.open();
        }
    }
}

impl Bench {
    fn new() -> Self {
        let switch = Switch::new(RoleEndpoints { endpoint: HOME, control: CONTROL }, BUDGETS);
        Self { switch, out: Outbox::new(), model: Model::new(), link: FaultyLink::default(), counter: 0 }
    }

    /// Applies the updates of the control plane before the sequence begins.
    fn open(&mut self) {
        let mut updates: Vec<Update> = PEERS[..4].iter().map(|&port| add(port)).collect();
        updates.extend([1, 2].map(|node| Update::Translate {
            base: VirtAddr(BASES[usize::from(node) - 1]),
            size_log2: 40,
            node: NodeId(node),
        }));
        updates.extend(SESSIONS[..3].iter().map(|session| open(*session)));
        let protect = |domain, base, len, perm| Update::Protect {
            domain: Domain(domain),
            base: VirtAddr(base),
            len,
            perm,
            vma_log2: 64,
        };
        updates.extend([
            protect(10, BASES[0], VMA_LEN, Perm::ReadWrite),
            protect(10, BASES[0] + VMA_LEN / 2, VMA_LEN / 2, Perm::Read),
            protect(10, BASES[1], VMA_LEN, Perm::ReadWrite),
            protect(20, BASES[1] + VMA_LEN, VMA_LEN, Perm::ReadWrite),
        ]);
        updates.extend(relay::first());
        let first = (Port::CONTROL, batch(HOME, 1, &updates));
        self.hear(&first, &mut Run::new());
        assert_eq!(self.model.next_seq, 2, "the rack is set up");
    }

    fn hear(&mut self, (port, frame): &ReceivedFrame, run: &mut Run) {
        let expected = self.model.expect(*port, frame);
        self.switch.handle(Instant::ZERO, Event::Frame { port: *port, bytes: frame }, &mut self.out);
        self.switch.check();
        let mut outcome = Outcome::default();
        self.out.drain(|action| {
            assert!(outcome.notes.is_empty(), "the note is the last word about a frame");
            match action {
                Action::Send { port, frame } => outcome.sent.push((port, frame.to_vec())),
                Action::Local(change) => outcome.peers.push(change),
                Action::Note(note) => outcome.notes.push(note),
            }
        });
        outcome.notes.iter().for_each(|note| run.mark(note));
        self.model.judge(expected, &self.switch, &outcome);
    }

    fn wake(&mut self) {
        self.switch.handle(Instant::ZERO, Event::Wake, &mut self.out);
        assert!(self.out.is_empty() && self.switch.next_wake().is_none(), "a switch waits for nothing");
    }

    /// Returns a request of a host over one of the sessions.
    fn request(&mut self, input: &mut Input<'_>) -> ReceivedFrame {
        let (session, host, _) = input.pick(&SESSIONS);
        let namesake = if input.one_in(16) { 9 } else { host };
        self.counter += 1;
        let generation = if self.counter.is_multiple_of(16) { GENERATION + 1 } else { GENERATION };
        let id = RequestId::new(HostId(namesake), generation, self.counter);
        let choice = input.u8();
        let hops = [4, 1, 255, 0][usize::from(choice % 4)];
        let message = turned(Message { header: Header::request(id, hops), body: body(input) }, input);
        let together = choice / 4 % 4 == 3 && matches!(message.body, Body::Traverse(_));
        let frame = if together {
            enclosed(session, &with_others(&message, choice / 16 % 4))
        } else {
            datagram(session, &message)
        };
        (Port::host(host), frame)
    }

    /// Returns a traversal that a node sends back, with an arbitrary domain and host.
    fn continuation(&mut self, input: &mut Input<'_>) -> ReceivedFrame {
        let node = input.pick(&[1, 2, 3]);
        let (_, host, domain) = input.pick(&SESSIONS);
        self.counter += 1;
        let request =
            Header::request(RequestId::new(HostId(host), GENERATION, self.counter), input.pick(&[3, 1, 0]));
        let header = Header { domain: Domain(domain), origin: HostId(host), ..request };
        let body = if input.one_in(16) { body(input) } else { Body::Traverse(state(input)) };
        (Port::node(node), datagram(HOME, &turned(Message { header, body }, input)))
    }

    /// Returns a batch of the control plane, usually the next one.
    fn updates(&mut self, input: &mut Input<'_>) -> ReceivedFrame {
        let seq = match input.below(8) {
            6 => self.model.next_seq.wrapping_sub(1),
            7 => self.model.next_seq.wrapping_add(u64::from(input.u8())),
            _ => self.model.next_seq,
        };
        let updates: Vec<Update> = (0..=input.below(3)).map(|_| update(input)).collect();
        (Port::CONTROL, batch(HOME, seq, &updates))
    }
}

fn add(port: Port) -> Update {
    let endpoint = endpoint(port.0);
    Update::Peer { port: port.0, gid: Gid([7; 16]), qpn: endpoint.qpn, qkey: endpoint.qkey }
}

fn open((endpoint, host, domain): (Endpoint, u16, u32)) -> Update {
    let (host, domain) = (HostId(host), Domain(domain));
    Update::Session { qpn: endpoint.qpn, qkey: endpoint.qkey, host, generation: GENERATION, domain }
}

/// Returns the message, sometimes as a response. No peer owes the switch a response.
fn turned<'a>(message: Message<'a>, input: &mut Input<'_>) -> Message<'a> {
    if !input.one_in(32) {
        return message;
    }
    let header = message.header.answer(farmem_wire::Status::Ok);
    let body = match message.body {
        Body::RegionRead { addr, .. } => Body::RegionRead { addr, len: 0, data: &[] },
        Body::RegionWrite { addr, len, .. } => Body::RegionWrite { addr, len, data: &[] },
        Body::Traverse(state) => Body::Traverse(Traverse { code: &[], ..state }),
        Body::Batch(batch) => Body::Batch(batch.without_code()),
        Body::Update(updates) => Body::Update(farmem_wire::message::Updates::response(updates.seq, 0)),
    };
    Message { header, body }
}

/// Returns an address in or near the allocated ranges.
fn addr(input: &mut Input<'_>) -> VirtAddr {
    let base =
        input.pick(&[BASES[0], BASES[1], BASES[1] + VMA_LEN, BASES[0] + VMA_LEN / 2, BASES[0] + 2 * VMA_LEN]);
    match input.below(16) {
        14 => VirtAddr(input.u64()),
        15 => VirtAddr(base - u64::from(input.u8())),
        _ => VirtAddr(base + u64::from(input.u16())),
    }
}

fn body<'a>(input: &mut Input<'a>) -> Body<'a> {
    let addr = addr(input);
    match input.below(8) {
        0..=1 => Body::RegionRead { addr, len: u32::from(input.u16() % 4100), data: &[] },
        2..=3 => {
            let data = input.bytes();
            Body::RegionWrite { addr, len: u32::try_from(data.len()).expect("few bytes"), data }
        }
        4 => Body::Update(farmem_wire::message::Updates::request(1, 0, &[]).expect("an empty batch")),
        _ => Body::Traverse(state(input)),
    }
}

fn state<'a>(input: &mut Input<'a>) -> Traverse<'a> {
    let cur_ptr = addr(input);
    let (iterations, limit) = (input.u8().into(), input.u8().into());
    Traverse {
        program: ProgramHash([0x5a; 16]),
        cur_ptr,
        iterations,
        limit,
        scratch: input.bytes(),
        code: input.bytes(),
    }
}

fn update(input: &mut Input<'_>) -> Update {
    let size_log2 = input.pick(&[12, 16, 40, 0]);
    let base = VirtAddr(input.pick(&BASES) + (u64::from(input.u8()) << size_log2) % (1 << 40));
    let len = input.pick(&[0x1000, 0x8000, 1, 0x1_0000, 0x3000]) + u64::from(input.below(4)) * 0x1000;
    let domain = Domain(input.pick(&[10, 20, 30, 0]));
    match input.below(16) {
        0 => Update::Translate { base, size_log2, node: NodeId(input.pick(&[1, 2, 3, 0xf000])) },
        1 => Update::Untranslate { base, size_log2 },
        2 => add(input.pick(&PEERS)),
        3 => add(Port(input.pick(&[Port::CONTROL.0, Port::SWITCH.0, Port::UNKNOWN.0, 0x500]))),
        4 => Update::PeerGone { port: input.pick(&PEERS).0 },
        5 => open(input.pick(&SESSIONS)),
        6 => open((endpoint(u32::from(input.u8())), 1, domain.0)),
        7 => Update::SessionGone { qpn: input.pick(&SESSIONS).0.qpn },
        8 => Update::Range { base, len, offset: 0 },
        13..=15 => relay::update(input),
        _ => Update::Protect {
            domain,
            base,
            len,
            perm: input.pick(&[Perm::ReadWrite, Perm::Read, Perm::None]),
            vma_log2: 64,
        },
    }
}

/// Returns the only receiver of the output, and its message.
fn only(outcome: &Outcome) -> (Peer, Message<'_>) {
    let [(port, frame)] = &outcome.sent[..] else { panic!("one frame, not {:?}", outcome.sent) };
    let (endpoint, message) = frames::sent(frame);
    (Peer { port: *port, endpoint }, message)
}
