//! Fuzz target of a memory node with three connections, two domains and a linked list. Every role around the
//! node may send arbitrary frames (PROTOCOL 7.4).
//!
//! After each frame, the target compares the store with a [`Model`] that changes only by authorised requests.
//! The target also compares READ responses, region reads and traversals with the bytes that their domain may
//! read.

mod model;

use crate::Run;
use crate::frames::{self, FaultyLink, ReceivedFrame, batch, datagram, endpoint, noise, packet};
use crate::input::Input;
use farmem_machine::{Action, Event, Instant, Machine as _, Outbox, Port};
use farmem_memnode::{Budget, Config, FileReply, MemNode, Note, Out, Store as _, VecStore};
use farmem_transport::{PeerChange, ud};
use farmem_traversal::Program;
use farmem_wire::message::{Traverse, Update};
use farmem_wire::{
    Aeth, AtomicEth, Body, Bth, Domain, Extension, Gather, Gid, Header, HostId, Message, Nak, Opcode, Packet,
    Perm, Pmtu, Psn, Qpn, RequestId, Reth, Rkey, Syndrome, VirtAddr,
};
use model::Model;
use std::collections::VecDeque;
use std::sync::LazyLock;

const HOME: ud::RoleEndpoints = ud::RoleEndpoints {
    endpoint: endpoint(1),
    control: ud::Peer { port: Port::CONTROL, endpoint: endpoint(2) },
};
/// First address of the node's range. `OFFSET` is the range's place in the store.
const BASE: u64 = 0x1000_0000;
const LEN: u64 = 0x800;
const OFFSET: u64 = 0x400;
const STORE_LEN: usize = 0x1000;
/// Domain that may read and write the first 0x300 bytes, and read the next 0x100.
const ALICE: Domain = Domain(7);
/// Domain that may read and write the addresses after `ALICE`'s, including addresses outside this node.
const BOB: Domain = Domain(8);
const HOST: HostId = HostId(1);
const OTHER: HostId = HostId(2);
const PMTU: usize = 256;
/// Difference between a node's queue pair and its host's.
const PEER: u32 = 0x800;
const PERMS: [Perm; 3] = [Perm::ReadWrite, Perm::Read, Perm::None];
/// Maximum number of consecutive wakes of the node: more than all open traversals can need.
const TURNS_MAX: u32 = 100_000;
/// Sizes of the node's tables, small enough to become full.
const BUDGET: Budget =
    Budget { ranges: 2, grants: 6, queue_pairs: 4, peers: 5, outliers: 3, workspaces: 4, burst: 2 };

/// Connections: queue pair, host, domain, key.
const PAIRS: [(u32, HostId, Domain, Rkey); 3] =
    [(0x100, HOST, ALICE, Rkey(0x11)), (0x101, OTHER, BOB, Rkey(0x22)), (0x102, HOST, BOB, Rkey(0x33))];

/// Programs that hosts send: a walk along a linked list, and a walk that also faults when it reads a zero.
static PROGRAMS: LazyLock<[Program; 2]> = LazyLock::new(|| {
    let walk = ".scratch 16\n ld8 r2, window[0]\n ld8 r3, scratch[0]\n add r3, r2\n st8 scratch[0], r3\n \
                ld8 r4, window[8]\n jeq r4, 0, end\n next r4\n end: ret";
    let fault =
        ".scratch 8\n ld8 r2, window[8]\n jne r2, 0, on\n mov r3, 99\n ld8 r4, scratch[r3]\n on: next r2";
    [walk, fault].map(|text| Program::assemble(text).expect("it assembles"))
});

/// Output of one event.
#[derive(Debug, Default)]
struct Outcome {
    sent: Vec<ReceivedFrame>,
    peers: Vec<PeerChange>,
    notes: Vec<Note>,
}

struct Bench {
    node: MemNode<VecStore>,
    out: Outbox<Out, Note>,
    model: Model,
    link: FaultyLink,
    counter: u32,
    /// Connection that the node broke with a refusal. The host sets it up again before its next request.
    broken: Option<usize>,
    /// Remaining packets of a WRITE that has begun.
    rest: VecDeque<ReceivedFrame>,
}

/// Runs `data` as a sequence of frames for a memory node.
///
/// # Panics
/// Panics when a byte of the store changes without an authorised request, or when the node sends a byte to a
/// peer that may not read it.
pub fn memnode_events(data: &[u8], run: &mut Run) {
    let mut bench = Bench::new();
    bench.open();
    let mut input = Input::new(data);
    while let Some(event) = input.event(16) {
        let arrival = match event {
            0 => {
                bench.turns(run);
                continue;
            }
            1 => noise(&mut input),
            2 => bench.link.again(&mut input),
            3 => bench.arrival(Bench::updates, &mut input),
            4..=8 => bench.arrival(Bench::request, &mut input),
            9 => bench.turn_of_grants(&mut input),
            _ => bench.arrival(Bench::verb, &mut input),
        };
        run.cases += 1;
        bench.hear(&arrival, run);
        // A batch with other bytes under the last number halted the node. The node starts again (PROTOCOL
        // 5.11).
        if bench.node.halted().is_some() {
            bench = Bench::new();
            bench.open();
        }
        // Usually the node's timer fires at once. Sometimes other frames come first.
        if !input.one_in(8) {
            bench.turns(run);
        }
    }
    bench.turns(run);
}

impl Bench {
    fn new() -> Self {
        let mut store = VecStore::new(STORE_LEN);
        // A linked list of four elements: three in `ALICE`'s bytes, the last in `BOB`'s. The pointer after it
        // leads outside the node.
        for (at, next) in [(0, 0x20), (0x20, 0x40), (0x40, 0x2f0), (0x2f0, 0x400), (0x400, LEN)] {
            store.write(OFFSET + at, &(at + 1).to_le_bytes());
            store.write(OFFSET + at + 8, &(BASE + next).to_le_bytes());
        }
        let model = Model::new(store.bytes());
        Self {
            node: MemNode::new(Config { home: HOME, pmtu: Pmtu::B1024, budget: BUDGET }, store),
            out: Outbox::new(),
            model,
            link: FaultyLink::default(),
            counter: 0,
            broken: None,
            rest: VecDeque::new(),
        }
    }

    /// Applies the updates of the control plane before the sequence begins.
    fn open(&mut self) {
        let grant = |domain, from, len, perm| Update::Protect {
            domain,
            base: VirtAddr(BASE + from),
            len,
            perm,
            vma_log2: 64,
        };
        let mut updates = vec![
            add(Port::SWITCH),
            add(Port::host(HOST.0)),
            add(Port::host(OTHER.0)),
            Update::Range { base: VirtAddr(BASE), len: LEN, offset: OFFSET },
            grant(ALICE, 0, 0x300, Perm::ReadWrite),
            grant(ALICE, 0x300, 0x100, Perm::Read),
            grant(BOB, 0x400, LEN, Perm::ReadWrite),
        ];
        updates.extend((0..PAIRS.len()).map(|pair| connection(pair, Psn::new(Psn::MAX))));
        self.hear(&(Port::CONTROL, batch(HOME.endpoint, 1, &updates)), &mut Run::new());
        assert_eq!(self.model.next_seq, 2, "the node is set up");
    }

    fn hear(&mut self, (port, frame): &ReceivedFrame, run: &mut Run) {
        if !Model::plays(*port, frame) {
            return;
        }
        let (outcome, walks) = self.event(Event::Frame { port: *port, bytes: frame }, run);
        self.model.judge(*port, frame, &outcome, self.node.store().bytes());
        self.model.walked(&walks);
        self.listen(&outcome.sent);
    }

    /// Wakes the node until it sets no timer. A wake runs traversals, and does nothing else.
    fn turns(&mut self, run: &mut Run) {
        let mut turns = 0;
        while self.node.next_wake().is_some() {
            let (outcome, walks) = self.event(Event::Wake, run);
            assert!(outcome.sent.is_empty() && outcome.peers.is_empty(), "a wake answers traversals alone");
            self.model.walked(&walks);
            self.model.unchanged(self.node.store().bytes());
            turns += 1;
            assert!(turns < TURNS_MAX, "the node never comes to rest");
        }
        self.model.all_walked();
    }

    /// Delivers an event and returns its output: the ends of traversals, and everything else.
    fn event(&mut self, event: Event<'_, FileReply>, run: &mut Run) -> (Outcome, Vec<ReceivedFrame>) {
        self.node.handle(Instant::ZERO, event, &mut self.out);
        self.node.check();
        let (mut outcome, mut walks) = (Outcome::default(), Vec::new());
        self.out.drain(|action| match action {
            Action::Send { port, frame } if is_walk(frame) => walks.push((port, frame.to_vec())),
            Action::Send { port, frame } => outcome.sent.push((port, frame.to_vec())),
            Action::Local(Out::Peer(change)) => outcome.peers.push(change),
            Action::Local(Out::File(ask)) => unreachable!("a node without files asks for {ask:?}"),
            Action::Note(note) => {
                run.mark(note);
                outcome.notes.push(note);
            }
        });
        (outcome, walks)
    }

    fn arrival(
        &mut self,
        sender: fn(&mut Self, &mut Input<'_>) -> ReceivedFrame,
        input: &mut Input<'_>,
    ) -> ReceivedFrame {
        let sent = sender(self, input);
        self.link.arrival(sent, input)
    }

    /// Learns each connection's expected PSN from the answers, as the host does.
    fn listen(&mut self, sent: &[ReceivedFrame]) {
        for (_, frame) in sent {
            let packet = Packet::parse(frame).expect("a node sends frames");
            let pair = PAIRS.iter().position(|pair| pair.0 + PEER == packet.bth.dest_qp.get());
            let Some(pair) = pair else { continue };
            let next = match packet.ext {
                Extension::Aeth(Aeth { syndrome: Syndrome::Nak(Nak::PsnSequence), .. }) => packet.bth.psn,
                Extension::Aeth(Aeth { syndrome: Syndrome::Nak(_), .. }) => {
                    self.broken = Some(pair);
                    continue;
                }
                _ => packet.bth.psn.plus(1),
            };
            self.model.psns.insert(Qpn::new(PAIRS[pair].0), next);
        }
    }

    /// Returns a batch of the control plane, usually the next one.
    fn updates(&mut self, input: &mut Input<'_>) -> ReceivedFrame {
        let seq = match input.below(8) {
            6 => self.model.next_seq.wrapping_sub(1),
            7 => self.model.next_seq.wrapping_add(u64::from(input.u8())),
            _ => self.model.next_seq,
        };
        let updates: Vec<Update> = (0..=input.below(3)).map(|_| update(input)).collect();
        (Port::CONTROL, batch(HOME.endpoint, seq, &updates))
    }

    /// Returns an update that changes a domain's permission for the whole range. The update comes between a
    /// frame and its repetition, and is not repeated itself.
    fn turn_of_grants(&self, input: &mut Input<'_>) -> ReceivedFrame {
        let (domain, perm) = (input.pick(&[ALICE, BOB]), input.pick(&PERMS));
        let update = Update::Protect { domain, base: VirtAddr(BASE), len: LEN, perm, vma_log2: 64 };
        (Port::CONTROL, batch(HOME.endpoint, self.model.next_seq, &[update]))
    }

    /// Returns a request as the switch forwards it.
    fn request(&mut self, input: &mut Input<'_>) -> ReceivedFrame {
        // Leaves room for the ids of a datagram with several traversals.
        self.counter += 4;
        let origin = input.pick(&[HOST, HOST, OTHER]);
        let host = if input.one_in(16) { HostId(5) } else { origin };
        let generation = if input.one_in(16) { 0 } else { 1 };
        let request = RequestId::new(host, generation, self.counter);
        let domain = input.pick(&[ALICE, BOB]);
        let header = Header { domain, origin, ..Header::request(request, input.pick(&[3, 1, 0])) };
        let addr = addr(input);
        let body = match input.below(8) {
            0..=1 => Body::RegionRead { addr, len: u32::from(input.u16() % 1100), data: &[] },
            2..=4 => {
                let data = input.bytes();
                Body::RegionWrite { addr, len: u32::try_from(data.len()).expect("few bytes"), data }
            }
            _ => return (Port::SWITCH, traversal(header, addr, input)),
        };
        (Port::SWITCH, datagram(HOME.endpoint, &Message { header, body }))
    }

    /// Returns one request on one of the connections. The remaining packets of a long WRITE follow in later
    /// calls.
    fn verb(&mut self, input: &mut Input<'_>) -> ReceivedFrame {
        if let Some(next) = self.rest.pop_front() {
            return next;
        }
        if let Some(pair) = self.broken.take() {
            let update = connection(pair, Psn::new(input.u32()));
            return (Port::CONTROL, batch(HOME.endpoint, self.model.next_seq, &[update]));
        }
        let (qpn, host, domain, rkey) = input.pick(&PAIRS);
        let skip = if input.one_in(8) { u32::from(input.u8()).wrapping_sub(0x80) } else { 0 };
        let psn = self.model.psns.get(&Qpn::new(qpn)).copied().unwrap_or_default().plus(skip);
        let va = near(domain, input);
        let rkey = if input.one_in(32) { Rkey(input.u32()) } else { rkey };
        let to = |opcode| Bth { ack_req: true, ..Bth::new(opcode, Qpn::new(qpn), psn) };
        let reth = |dma_len| Extension::Reth(Reth { va, rkey, dma_len });
        let port = Port::host(host.0);
        let frame = match input.below(9) {
            8 => {
                // Some pieces belong to another domain, and some requests make no sense.
                let (each, skip) = (1 + u32::from(input.u16() % 300), u32::from(input.u8() % 8));
                let others: Vec<VirtAddr> = (0..input.below(5)).map(|_| near(domain, input)).collect();
                let pieces = u32::try_from(1 + others.len()).expect("few");
                let mut payload = Vec::new();
                Gather::emit(each, skip, &others, &mut payload);
                let asked = (each * pieces).saturating_sub(skip + u32::from(input.u8() % 16));
                packet(to(Opcode::GatherRequest), reth(asked), &payload)
            }
            0 => packet(to(Opcode::ReadRequest), reth(u32::from(input.u16() % 700)), &[]),
            kind @ 1..=2 => {
                let opcode = if kind == 1 { Opcode::FetchAdd } else { Opcode::CmpSwap };
                let va = VirtAddr(va.0 & !u64::from(7 * input.below(2)));
                let (swap_or_add, compare) = (input.u64(), if input.one_in(4) { input.u64() } else { 0 });
                packet(to(opcode), Extension::AtomicEth(AtomicEth { va, rkey, swap_or_add, compare }), &[])
            }
            3..=4 => {
                let data = input.bytes();
                packet(to(Opcode::WriteOnly), reth(u32::try_from(data.len()).expect("few bytes")), data)
            }
            _ => {
                let data = vec![input.u8(); PMTU + 1 + usize::from(input.u16() % 500)];
                self.long_write(
                    port,
                    to(Opcode::WriteFirst),
                    reth(u32::try_from(data.len()).expect("short")),
                    &data,
                )
            }
        };
        (port, frame)
    }

    fn long_write(&mut self, port: Port, first: Bth, reth: Extension, data: &[u8]) -> Vec<u8> {
        let chunks: Vec<&[u8]> = data.chunks(PMTU).collect();
        for (index, chunk) in (1..).zip(&chunks[1..]) {
            let opcode = if index + 1 == chunks.len() { Opcode::WriteLast } else { Opcode::WriteMiddle };
            let psn = first.psn.plus(u32::try_from(index).expect("few packets"));
            self.rest.push_back((port, packet(Bth { opcode, psn, ..first }, Extension::None, chunk)));
        }
        packet(first, reth, chunks[0])
    }
}

/// Returns an address that the domain may usually use.
fn near(domain: Domain, input: &mut Input<'_>) -> VirtAddr {
    let own = BASE + if domain == ALICE { 0 } else { 0x400 } + u64::from(input.u8()) * 4;
    if input.one_in(8) { addr(input) } else { VirtAddr(own) }
}

fn add(port: Port) -> Update {
    let endpoint = endpoint(port.0);
    Update::Peer { port: port.0, gid: Gid([7; 16]), qpn: endpoint.qpn, qkey: endpoint.qkey }
}

/// Returns an update that sets up a connection, or sets it up again.
fn connection(pair: usize, expected_psn: Psn) -> Update {
    let (qpn, host, domain, rkey) = PAIRS[pair];
    let (qpn, peer_qpn, peer_port) = (Qpn::new(qpn), Qpn::new(qpn + PEER), Port::host(host.0).0);
    Update::QueuePair { qpn, peer_qpn, peer_port, expected_psn, rkey, domain, pmtu: Pmtu::B256 }
}

fn update(input: &mut Input<'_>) -> Update {
    let (base, len) = (addr(input), u64::from(input.u16() % 0x180));
    let whole = (VirtAddr(BASE), LEN);
    let domain = input.pick(&[ALICE, BOB, ALICE, BOB, Domain(0), Domain(9)]);
    match input.below(16) {
        0 => Update::Range { base: VirtAddr(BASE + LEN), len: 0x400, offset: input.pick(&[0xc00, 0, 0x800]) },
        1 => Update::Range { base: whole.0, len: whole.1, offset: input.pick(&[OFFSET, 0x300]) },
        2 => Update::RangeGone { base: whole.0, len: input.pick(&[0x400, whole.1]) },
        3 => add(Port(input.pick(&[Port::host(OTHER.0).0, Port::node(2).0, Port::UNKNOWN.0, 0x500]))),
        4 => Update::PeerGone { port: input.pick(&[Port::host(OTHER.0).0, Port::SWITCH.0, Port::CONTROL.0]) },
        5 => connection(input.below(3).into(), Psn::new(input.u32())),
        6 => Update::QueuePairGone { qpn: Qpn::new(input.pick(&PAIRS).0) },
        7..=8 => Update::Clear { base, len },
        9 => {
            Update::Protect { domain, base: VirtAddr(BASE), len: LEN, perm: input.pick(&PERMS), vma_log2: 64 }
        }
        10 => Update::SessionGone { qpn: Qpn::new(3) },
        11 if len.is_multiple_of(4) => Update::Lose { base: whole.0, len: 0x1000 },
        11 => Update::AcceptLost { base: whole.0, len: 1 },
        _ => Update::Protect { domain, base, len, perm: input.pick(&PERMS), vma_log2: 64 },
    }
}

/// Returns an address in or near the range.
fn addr(input: &mut Input<'_>) -> VirtAddr {
    match input.below(32) {
        30 => VirtAddr(input.u64()),
        31 => VirtAddr(BASE - u64::from(input.u8())),
        n if n >= 24 => {
            VirtAddr(BASE + [0, 0x20, 0x40, 0x2f0, 0x300, 0x400, LEN - 8, LEN][usize::from(n - 24) % 8])
        }
        _ => VirtAddr(BASE + u64::from(input.u16() % 0x880)),
    }
}

/// Returns a traversal, with its program or without.
fn traversal(header: Header, cur_ptr: VirtAddr, input: &mut Input<'_>) -> Vec<u8> {
    let program = &PROGRAMS[usize::from(input.below(2))];
    let mut scratch = vec![input.u8(); program.scratch_len()];
    if input.one_in(16) {
        scratch.truncate(usize::from(input.u8()));
    }
    let (iterations, limit) = (u32::from(input.below(4)), u32::from(input.u8()));
    let choice = input.u8();
    let code = match choice % 8 {
        7 => input.bytes(),
        4..=6 => &[],
        _ => program.encoded(),
    };
    let state = Traverse { program: program.hash(), cur_ptr, iterations, limit, scratch: &scratch, code };
    let message = Message { header, body: Body::Traverse(state) };
    if choice / 8 % 4 == 3 {
        return frames::enclosed(HOME.endpoint, &frames::with_others(&message, choice / 32 % 4));
    }
    datagram(HOME.endpoint, &message)
}

fn is_walk(frame: &[u8]) -> bool {
    let is = |body| matches!(body, Body::Traverse(_) | Body::Batch(_));
    frames::heard(frame).is_some_and(|(_, message)| is(message.body))
}

/// Returns the only datagram of the output, and its receiver.
fn only(outcome: &Outcome) -> (ud::Peer, Message<'_>) {
    let [(port, frame)] = &outcome.sent[..] else { panic!("one frame, not {:?}", outcome.sent) };
    let (endpoint, message) = frames::sent(frame);
    (ud::Peer { port: *port, endpoint }, message)
}
