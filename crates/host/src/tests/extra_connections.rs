//! Several connections of a domain to one memory node (PROTOCOL 11.16): which operations go over which, and
//! that the result does not depend on it.

use super::verbs::Bytes;
use super::*;
use alloc::collections::BTreeMap;
use farmem_machine::Rng;

/// Number of bytes that the programs use: so few that most operations overlap another.
const USED: u32 = 1500;
/// End of the allocated memory.
const ALLOCATED: usize = 4096;
const LEN_MAX: u32 = 700;
const UNDER_WAY_MAX: usize = 40;
/// Bytes that another host writes, all at once, with a larger value each time. These programs only read them.
const WATCHED: core::ops::Range<usize> = 3000..3600;
const ASKED: usize = 1500;

/// A host, a memory node with a responder for each connection, and a network between them that delays each
/// frame by its own time and loses some.
struct World {
    bench: Bench,
    memory: Bytes,
    responders: BTreeMap<Qpn, rc::Responder>,
    air: BTreeMap<(Instant, u64), Flying>,
    rng: Rng,
    /// Without loss the frames of a connection stay in order too: a READ that is sent again would find later
    /// bytes (PROTOCOL 4.21).
    loss_percent: u32,
    /// Arrival time of the last frame to each queue pair.
    last: BTreeMap<Qpn, Instant>,
    /// Number of frames so far, and of connections.
    frames: u64,
    connections: u32,
    /// Number of request packets over the first connection, and over others.
    over: [usize; 2],
    first: Qpn,
}

enum Flying {
    ToNode(Vec<u8>),
    ToHost(Vec<u8>),
}

fn responder(connection: &Connection) -> rc::Responder {
    let rc = connection.rc;
    rc::Responder::new(rc::ResponderConfig {
        qpn: rc.peer_qpn,
        peer_qpn: rc.qpn,
        port: Port::host(HOST.0),
        expected_psn: rc.first_psn,
        rkey: rc.rkey,
        domain: connection.domain,
        pmtu: rc.pmtu,
    })
}

impl World {
    fn new(seed: u64, each: usize, loss_percent: u32) -> Self {
        let config = Config { connections_each: each, ..config() };
        let mut world = Self {
            bench: Bench::new(config),
            memory: Bytes { base: BASE_1, bytes: vec![0; ALLOCATED] },
            responders: BTreeMap::new(),
            air: BTreeMap::new(),
            rng: Rng::from_number(seed),
            loss_percent,
            last: BTreeMap::new(),
            frames: 0,
            connections: 0,
            over: [0; 2],
            first: Qpn::new(0),
        };
        let first = world.connection();
        world.first = first.rc.peer_qpn;
        world.bench.ask(HostRequest::Connect(first));
        world
    }

    /// Returns a connection that the node knows, with a window of four packets.
    fn connection(&mut self) -> Connection {
        self.connections += 1;
        let mut connection = connection(ALICE, 1, self.connections);
        connection.rc =
            rc::RequesterConfig { window_psns: 4, queue_max: 64, retries_max: 1000, ..connection.rc };
        self.responders.insert(connection.rc.peer_qpn, responder(&connection));
        connection
    }

    /// Answers the host's requests to the control plane; some of them fail.
    fn answer_wants(&mut self) {
        for ControlRequest { number, kind } in take(&mut self.bench.control_requests) {
            let ask = match kind {
                ControlRequestKind::NodeGeneration { .. } => unreachable!("the host has no patience"),
                ControlRequestKind::Connect { .. } => {
                    let connection = self.connection();
                    self.first = connection.rc.peer_qpn;
                    HostRequest::Connect(connection)
                }
                ControlRequestKind::ConnectExtra { .. } if self.rng.chance(1, 4) => {
                    HostRequest::Reply { number, reply: Reply::Unavailable }
                }
                ControlRequestKind::ConnectExtra { .. } => {
                    HostRequest::ConnectExtra { number, connection: self.connection() }
                }
                ControlRequestKind::DisconnectExtra { .. } if self.rng.chance(1, 4) => {
                    HostRequest::Reply { number, reply: Reply::Unavailable }
                }
                ControlRequestKind::Disconnect { qpn } | ControlRequestKind::DisconnectExtra { qpn } => {
                    // The queue pair numbers of both ends derive from one number.
                    self.responders.remove(&Qpn::new(qpn.get() + 0x1000));
                    HostRequest::Reply { number, reply: Reply::Disconnected }
                }
                ControlRequestKind::Locate { .. } => HostRequest::Reply { number, reply: Reply::NotFound },
            };
            self.bench.ask(ask);
        }
    }

    /// Puts the host's frames on the network.
    fn send(&mut self) {
        for (_, frame) in take(&mut self.bench.sent) {
            let to = Packet::parse(&frame).unwrap().bth.dest_qp;
            self.over[usize::from(to != self.first)] += 1;
            self.fly(Flying::ToNode(frame));
        }
    }

    fn fly(&mut self, what: Flying) {
        self.frames += 1;
        if !self.rng.chance(self.loss_percent, 100) {
            let mut at = self.bench.now + Duration::from_micros(u64::from(self.rng.below(3000)));
            if self.loss_percent == 0 {
                let (Flying::ToNode(frame) | Flying::ToHost(frame)) = &what;
                let last = self.last.entry(Packet::parse(frame).unwrap().bth.dest_qp).or_insert(at);
                *last = at.max(*last);
                at = *last;
            }
            self.air.insert((at, self.frames), what);
        }
    }

    /// Advances to the next event. Returns false if there is none.
    fn step(&mut self) -> bool {
        while !self.bench.control_requests.is_empty() {
            self.answer_wants();
        }
        self.send();
        let due = self.air.first_key_value().map(|(&(at, _), _)| at);
        let wake = self.bench.host.next_wake();
        match (due, wake) {
            (None, None) => return !self.bench.done.is_empty(),
            (Some(at), wake) if wake.is_none_or(|wake| at <= wake) => {
                self.bench.now = self.bench.now.max(at);
                let (_, what) = self.air.pop_first().unwrap();
                self.arrive(what);
            }
            _ => self.bench.wake(),
        }
        true
    }

    fn arrive(&mut self, what: Flying) {
        let frame = match what {
            Flying::ToHost(frame) => return self.bench.hear(Port::node(1), &frame),
            Flying::ToNode(frame) => frame,
        };
        let packet = Packet::parse(&frame).unwrap();
        // A late request of a connection that was taken down finds no responder.
        let Some(responder) = self.responders.get_mut(&packet.bth.dest_qp) else { return };
        let mut out: Outbox<(), rc::Note> = Outbox::new();
        responder.on_packet(Port::host(HOST.0), &packet, &mut self.memory, &mut out);
        responder.flush(&mut out);
        let mut answers = vec![];
        out.drain(|action| {
            if let Action::Send { frame, .. } = action {
                answers.push(frame.to_vec());
            }
        });
        answers.into_iter().for_each(|answer| self.fly(Flying::ToHost(answer)));
    }

    /// Submits a random operation on the used bytes. Returns the expected result by a plain model that
    /// executes everything at once; `None` for operations that must fail.
    fn submit(&mut self, model: &mut [u8]) -> (u64, Option<Expected>) {
        let len = 1 + self.rng.below(LEN_MAX) as usize;
        let at = self.rng.below(USED) as usize;
        let addr = VirtAddr(BASE_1 + at as u64);
        let (op, expected) = match self.rng.below(100) {
            0 => (Op::Read { addr: VirtAddr(BASE_1 + ALLOCATED as u64), buf: vec![0; len] }, None),
            70..90 => {
                let at = WATCHED.start + self.rng.below(300) as usize;
                let addr = VirtAddr(BASE_1 + at as u64);
                let buf = vec![0; 1 + self.rng.below(300) as usize];
                (Op::Read { addr, buf }, Some(Expected::Later(at)))
            }
            1..=10 => {
                let word = at / 8 * 8;
                let addr = VirtAddr(BASE_1 + word as u64);
                let old = u64::from_le_bytes(model[word..word + 8].try_into().unwrap());
                model[word..word + 8].copy_from_slice(&old.wrapping_add(1).to_le_bytes());
                (Op::FetchAdd { addr, add: 1 }, Some(Expected::Old(old)))
            }
            11..=30 => {
                let value = self.rng.next_u32().to_le_bytes()[0];
                model[at..at + len].fill(value);
                (Op::Write { addr, buf: vec![value; len] }, Some(Expected::Done))
            }
            _ => {
                let there = model[at..at + len].to_vec();
                (Op::Read { addr, buf: vec![0; len] }, Some(Expected::Bytes(there)))
            }
        };
        (self.bench.submit(op), expected)
    }
}

#[derive(Debug)]
enum Expected {
    Bytes(Vec<u8>),
    Old(u64),
    Done,
    /// Bytes of [`WATCHED`], from this offset on.
    Later(usize),
}

/// Asserts that no READ sees an older value of a byte than an earlier READ. `found` has the first byte and
/// the bytes of each READ, by ticket.
fn check_watched(found: &BTreeMap<u64, (usize, Vec<u8>)>, seed: u64) {
    let mut last = [0; ALLOCATED];
    for (ticket, (at, bytes)) in found {
        for (last, byte) in last[*at..].iter_mut().zip(bytes) {
            assert!(byte >= last, "seed {seed}: READ {ticket} has {byte}, and one before it {last}");
            *last = *byte;
        }
    }
    assert!(last[WATCHED.start + 299] > 0 && found.len() > 100, "seed {seed}: they are read");
}

/// PROTOCOL 11.12 and 11.16: a program reads and writes the same few bytes, with many operations in flight,
/// over one or several connections. The network delays and loses frames, and now and then a READ is refused,
/// which breaks its connection. Each READ and atomic finds the state at its submission, and at the end the
/// memory has all writes. No READ sees an older value of another host's writes than an earlier READ.
#[test]
fn operations_with_a_byte_in_common_stay_in_order() {
    for seed in 0..24 {
        let each = [1, 2, 4][usize::try_from(seed % 3).unwrap()];
        let mut world = World::new(seed, each, u32::try_from(seed % 4).unwrap() * 4);
        let mut model = vec![0; ALLOCATED];
        let mut expected = BTreeMap::new();
        let (mut asked, mut refused) = (0, 0);
        let mut watched = BTreeMap::new();
        while asked < ASKED || !expected.is_empty() {
            let written = u8::try_from(asked * 255 / ASKED).unwrap();
            world.memory.bytes[WATCHED].fill(written);
            if asked < ASKED && expected.len() < UNDER_WAY_MAX && world.rng.chance(2, 3) {
                let (ticket, what) = world.submit(&mut model);
                expected.insert(ticket, what);
                asked += 1;
            } else {
                assert!(world.step() || expected.is_empty(), "{} operations never end", expected.len());
            }
            for done in take(&mut world.bench.done) {
                match (expected.remove(&done.ticket).expect("it ends once"), &done.result) {
                    (None, Err(Failure::Connection(rc::Failure::RemoteAccess))) => refused += 1,
                    (Some(Expected::Bytes(bytes)), Ok(_)) => {
                        assert!(done.buf == bytes, "seed {seed}: READ {}", done.ticket);
                    }
                    (Some(Expected::Later(at)), Ok(_)) => {
                        watched.insert(done.ticket, (at, done.buf));
                    }
                    (Some(Expected::Old(old)), &Ok(Answer::Done { old: found })) => {
                        assert_eq!(found, old, "seed {seed}: atomic {}", done.ticket);
                    }
                    (Some(Expected::Done), Ok(_)) => {}
                    (what, result) => panic!("seed {seed}: {what:?} ended as {result:?}"),
                }
            }
        }
        if world.loss_percent == 0 {
            check_watched(&watched, seed);
        }
        world.memory.bytes[WATCHED].fill(0);
        assert!(world.memory.bytes == model, "seed {seed}");
        assert_eq!(world.bench.host.outstanding(), 0);
        assert!(refused > 0, "seed {seed}: some READs are refused");
        assert_eq!(world.over[1] > 0, each > 1, "seed {seed}: {:?} of {each} connections", world.over);
    }
}

/// A read of `len` bytes.
fn read(skip: u64, len: usize) -> Op {
    Op::Read { addr: VirtAddr(BASE_1 + skip), buf: vec![0; len] }
}

fn write(skip: u64, len: usize) -> Op {
    Op::Write { addr: VirtAddr(BASE_1 + skip), buf: vec![9; len] }
}

/// Returns the number of request packets in flight, with none answered, over each connection in the order of
/// queue pairs.
fn under_way(bench: &mut Bench) -> Vec<usize> {
    let mut by_qpn = BTreeMap::new();
    for (_, frame) in take(&mut bench.sent) {
        *by_qpn.entry(Packet::parse(&frame).unwrap().bth.dest_qp).or_insert(0) += 1;
    }
    by_qpn.into_values().collect()
}

fn narrow(number: u32) -> Connection {
    let mut connection = connection(ALICE, 1, number);
    connection.rc = rc::RequesterConfig { window_psns: 4, queue_max: 64, ..connection.rc };
    connection
}

/// A host with three connections to node 1, the maximum.
fn three() -> Bench {
    let mut bench = Bench::new(Config { connections_each: 3, ..config() });
    bench.ask(HostRequest::Connect(narrow(1)));
    for at in 0..5 {
        bench.submit(read(at * 256, 256));
    }
    assert_eq!(under_way(&mut bench), [4], "one waits for the window of the first");
    give(&mut bench, 2);
    // The next connection is requested when there is need again.
    assert_eq!(bench.control_requests, []);
    bench.submit(read(5 * 256, 256));
    give(&mut bench, 3);
    assert_eq!((under_way(&mut bench), bench.host.extra_connections_up()), (vec![1], 2));
    bench
}

/// Submits more one-packet READs than a connection's window, of other bytes for each number.
fn fill(bench: &mut Bench, from: u64) {
    for at in from..from + 5 {
        bench.submit(read(at * 256, 256));
    }
}

const BESIDE: ControlRequestKind = ControlRequestKind::ConnectExtra { domain: ALICE, node: NodeId(1) };

/// The host requests an additional connection and nothing else, and gets it.
fn give(bench: &mut Bench, connection: u32) {
    let wishes: Vec<ControlRequestKind> = bench.control_requests.iter().map(|request| request.kind).collect();
    assert_eq!(wishes, [BESIDE], "one at a time, wanted when the first is full");
    let number = bench.control_requests.remove(0).number;
    bench.ask(HostRequest::ConnectExtra { number, connection: narrow(connection) });
}

/// PROTOCOL 11.16: if the first connection is full, READs go over others, so three have three times as many
/// in flight. Operations that change memory stay on the first. A READ of bytes being changed stays behind the
/// change; a change of bytes being read on another connection waits for the READ.
#[test]
fn reads_go_beside_a_connection_that_is_full() {
    let mut bench = three();
    for at in 6..13 {
        bench.submit(read(at * 256, 256));
    }
    assert_eq!(under_way(&mut bench), [3, 4], "and four are under way on the first");
    // A connection's window is four packets of 256 bytes, so the next ones wait.
    bench.submit(read(0x1800, 256));
    assert_eq!(under_way(&mut bench), Vec::<usize>::new());
    // Bytes being read over an additional connection are not written meanwhile.
    let before = bench.host.outstanding();
    bench.submit(write(6 * 256 + 255, 2));
    assert_eq!(bench.host.outstanding(), before + 1);
    let all_reads = |bench: &Bench| {
        bench.sent.iter().all(|(_, frame)| Packet::parse(frame).unwrap().bth.opcode == Opcode::ReadRequest)
    };
    // The write is not sent even though the first connection has room: all its requests are answered.
    for psn in [Psn::MAX - 1, Psn::MAX, 0, 1, 2] {
        let ext =
            Extension::Aeth(farmem_wire::Aeth { syndrome: farmem_wire::Syndrome::Ack, msn: Psn::new(1) });
        let bth = Bth::new(Opcode::ReadResponseOnly, narrow(1).rc.qpn, Psn::new(psn));
        let mut frame = vec![];
        Packet { bth, ext, payload: &[1; 256] }.emit(&mut frame);
        bench.hear(Port::node(1), &frame);
    }
    assert!(all_reads(&bench) && bench.done.len() == 5, "{} ended", bench.done.len());
    // A write of other bytes is sent.
    bench.sent.clear();
    bench.submit(write(0x1c00, 2));
    assert!(!all_reads(&bench), "nothing is before it");
}

/// An additional connection breaks and is taken down. Its READs are sent again over the first, and another
/// connection replaces it on demand. If the control plane refuses a connection or a take-down, the host asks
/// again after some seconds, for as long as needed.
#[test]
fn what_breaks_beside_is_asked_again() {
    let mut bench = three();
    for at in 6..13 {
        bench.submit(read(at * 256, 256));
    }
    bench.sent.clear();
    let bth = Bth::new(Opcode::Acknowledge, narrow(2).rc.qpn, Psn::new(Psn::MAX - 1));
    let syndrome = farmem_wire::Syndrome::Nak(farmem_wire::Nak::RemoteAccess);
    let ext = Extension::Aeth(farmem_wire::Aeth { syndrome, msn: Psn::new(0) });
    let mut nak = vec![];
    Packet { bth, ext, payload: &[] }.emit(&mut nak);
    bench.hear(Port::node(1), &nak);
    assert!(bench.done.is_empty(), "{:?}", bench.done);
    assert_eq!(bench.host.outstanding(), 13);
    let disconnected = ControlRequestKind::DisconnectExtra { qpn: narrow(2).rc.qpn };
    // No two READs overlap.
    let mut at = 0x2000;
    let mut more = || {
        at += 256;
        read(at, 256)
    };
    bench.reply(disconnected, Reply::Unavailable);
    assert_eq!(bench.host.extra_connections_up(), 1);
    for _ in 0..2 {
        bench.submit(more());
        assert_eq!(bench.control_requests, [], "not at once");
        bench.now += crate::extra_connections::PAUSE;
        bench.submit(more());
        bench.reply(disconnected, Reply::Unavailable);
    }
    bench.now += crate::extra_connections::PAUSE;
    bench.submit(more());
    bench.reply(disconnected, Reply::Disconnected);
    bench.submit(more());
    bench.reply(BESIDE, Reply::Unavailable);
    bench.submit(more());
    assert_eq!(bench.control_requests, [], "not at once");
    bench.now += crate::extra_connections::PAUSE;
    bench.submit(more());
    give(&mut bench, 4);
    assert_eq!((bench.host.extra_connections_up(), bench.host.outstanding()), (2, 21));
    // The host rejoins: all connections are gone, and each operation has ended.
    bench.ask(HostRequest::Joined { generation: GENERATION + 1, home: HOME });
    assert_eq!((bench.done.len(), bench.host.outstanding()), (21, 0));
    assert_eq!(bench.host.extra_connections_up(), 0);
}

/// A connection that is no longer wanted is taken down, and one with a queue pair of the host is rejected.
/// Both leave the host unchanged and able to request others.
#[test]
fn a_connection_that_is_not_taken_is_taken_down() {
    let mut bench = Bench::new(Config { connections_each: 2, ..config() });
    bench.ask(HostRequest::Connect(narrow(1)));
    fill(&mut bench, 0);
    let number = bench.control_requests.remove(0).number;
    // The host rejoins before the answer.
    bench.ask(HostRequest::Joined { generation: GENERATION + 1, home: HOME });
    bench.ask(HostRequest::ConnectExtra { number, connection: narrow(2) });
    assert_eq!(bench.host.extra_connections_up(), 0);
    bench.reply(ControlRequestKind::DisconnectExtra { qpn: narrow(2).rc.qpn }, Reply::Disconnected);
    bench.ask(HostRequest::Connect(narrow(1)));
    for (from, number_of) in [(0, narrow(1).rc.qpn), (5, HOME.qpn)] {
        fill(&mut bench, from);
        let number = bench.control_requests.remove(0).number;
        let mut taken = narrow(3);
        taken.rc.qpn = number_of;
        bench.ask(HostRequest::ConnectExtra { number, connection: taken });
        assert_eq!((bench.host.extra_connections_up(), bench.control_requests.len()), (0, 0));
        bench.now += crate::extra_connections::PAUSE;
    }
    bench.submit(read(0x2000, 256));
    give(&mut bench, 4);
    assert_eq!(bench.host.extra_connections_up(), 1);
}

/// A READ longer than a window fits no connection: the host requests none for it.
#[test]
fn a_long_read_alone_wants_no_connection() {
    let mut bench = Bench::new(Config { connections_each: 4, ..config() });
    bench.ask(HostRequest::Connect(narrow(1)));
    bench.submit(read(0, 16 * 256));
    assert_eq!((bench.control_requests.as_slice(), bench.host.outstanding()), ([].as_slice(), 1));
    bench.submit(read(0x2000, 256));
    give(&mut bench, 2);
}

/// Additional connections take at most half of a host's room, so nodes that join later have the other half.
#[test]
fn first_connections_find_room() {
    let mut bench = Bench::new(Config { connections_each: 8, connections_max: 4, ..config() });
    bench.ask(HostRequest::Connect(narrow(1)));
    for number in 2..8 {
        let from = u64::from(number) * 5;
        fill(&mut bench, from);
        if !bench.control_requests.is_empty() {
            give(&mut bench, number);
        }
    }
    assert_eq!(bench.host.extra_connections_up(), 2);
    bench.ask(HostRequest::Connect(connection(ALICE, 2, 9)));
    assert!(!bench.host.is_down(ALICE, NodeId(2)) && bench.host.node_of(ALICE, VirtAddr(BASE_2)).is_some());
}

/// A node is silent: a READ on an additional connection ends after the same timeout as any other, because the
/// idle first connection would reveal nothing more.
#[test]
fn a_silence_beside_is_a_silence() {
    let mut bench = three();
    for at in 6..10 {
        bench.submit(read(at * 256, 256));
    }
    answer(&mut bench, &narrow(1), 5);
    let ended = bench.done.len();
    assert!(bench.control_requests.is_empty() && ended >= 4, "{ended}");
    let mut timeouts = 0;
    while bench
        .control_requests
        .iter()
        .all(|request| !matches!(request.kind, ControlRequestKind::Locate { .. }))
    {
        bench.now = bench.host.next_wake().expect("a READ is under way");
        bench.wake();
        timeouts += 1;
        assert!(timeouts < 20);
    }
    assert!(bench.now.since(Instant::ZERO) <= TIMEOUT.times(3), "one silence: two retries of 10 ms");
    assert!(bench.host.is_down(ALICE, NodeId(1)));
}

/// The node answers the first `count` one-packet READs of a connection.
fn answer(bench: &mut Bench, connection: &Connection, count: u32) {
    for at in 0..count {
        let psn = connection.rc.first_psn.get().wrapping_add(at) & Psn::MAX;
        let ext =
            Extension::Aeth(farmem_wire::Aeth { syndrome: farmem_wire::Syndrome::Ack, msn: Psn::new(1) });
        let bth = Bth::new(Opcode::ReadResponseOnly, connection.rc.qpn, Psn::new(psn));
        let mut frame = vec![];
        Packet { bth, ext, payload: &[1; 256] }.emit(&mut frame);
        bench.hear(Port::node(1), &frame);
    }
}

/// READs that overlap stay on one connection: a READ that overlaps one on an additional connection follows it
/// there, even if the first has room. A READ that overlaps READs on two connections waits for both.
#[test]
fn reads_with_a_byte_in_common_are_on_one_connection() {
    let mut bench = three();
    // The first has [0, 5 packets); the second of the host's connections has the one at 5.
    bench.submit(read(6 * 256, 256));
    bench.sent.clear();
    answer(&mut bench, &narrow(1), 5);
    assert_eq!(bench.done.len(), 5, "the first has nothing under way");
    let beside = |bench: &mut Bench| -> Vec<Qpn> {
        let sent = take(&mut bench.sent);
        sent.iter().map(|(_, frame)| Packet::parse(frame).unwrap().bth.dest_qp).collect()
    };
    beside(&mut bench);
    bench.submit(read(5 * 256 + 255, 1));
    assert_eq!(beside(&mut bench), [narrow(2).rc.peer_qpn]);
    bench.submit(read(4 * 256, 256));
    assert_eq!(beside(&mut bench), [narrow(1).rc.peer_qpn], "one of other bytes goes over the first");
    bench.submit(read(4 * 256 + 255, 2));
    assert_eq!(beside(&mut bench), [], "it has bytes of READs on two");
    answer(&mut bench, &narrow(2), 1);
    assert_eq!(bench.host.outstanding(), 4);
}
