//! Surroundings of the host, and the list of its operations.

use super::STRANGER;
use crate::Run;
use crate::frames::{ReceivedFrame, datagram, each, enclosed, endpoint, heard, with_others};
use crate::input::Input;
use farmem_host::{
    Answer, Config, Connection, ControlRequest, ControlRequestKind, Done, Host, HostRequest, Located, Note,
    Op, Out, Piece, Reply,
};
use farmem_machine::{Action, Duration, Event, Instant, Machine as _, Outbox, Port};
use farmem_transport::{Access, AccessError, Memory, rc, ud};
use farmem_wire::message::Traverse;
use farmem_wire::{
    Body, Domain, Header, HostId, Message, NodeId, Packet, Perm, Pmtu, Psn, Qpn, RequestId, Rkey, Status,
    VirtAddr,
};
use std::collections::{BTreeMap, VecDeque};

pub(super) const DOMAINS: [Domain; 5] = [Domain(7), Domain(7), Domain(7), Domain(8), STRANGER];
/// First address of each node's range.
pub(super) const RANGES: [u64; 2] = [0x1000_0000, 0x2000_0000];
const RANGE_LEN: u64 = 0x1000;
const HOST: HostId = HostId(1);
const HOME: ud::Endpoint = endpoint(1);
/// Endpoints of the switch for the sessions of the domains.
const SESSIONS: [(Domain, ud::Endpoint); 2] = [(Domain(7), endpoint(7)), (Domain(8), endpoint(8))];
/// First queue pair of the host's connections. The nodes' queue pairs begin at 0x900.
const QPNS: u32 = 0x100;
const PEER: u32 = 0x800;
/// Maximum number of answers under way. Older ones are lost.
const UNDER_WAY_MAX: usize = 64;
/// Maximum number of timers that the host may set until all operations have ended.
const WAKES_MAX: u32 = 1_000;

/// Memory of a node. The second half is read-only.
#[derive(Debug)]
struct Bytes {
    base: u64,
    bytes: Vec<u8>,
}

impl Bytes {
    fn at(&self, addr: VirtAddr) -> usize {
        usize::try_from(addr.0 - self.base).expect("checked")
    }

    fn exchange(&mut self, addr: VirtAddr, change: impl FnOnce(u64) -> u64) -> u64 {
        let at = self.at(addr);
        let word = &mut self.bytes[at..at + 8];
        let old = u64::from_le_bytes((&*word).try_into().expect("8 bytes"));
        word.copy_from_slice(&change(old).to_le_bytes());
        old
    }
}

impl Memory for Bytes {
    fn check(&self, access: &Access) -> Result<(), AccessError> {
        let start = access.addr.0.checked_sub(self.base).ok_or(AccessError::NotMapped)?;
        let end = start.checked_add(access.len.into()).ok_or(AccessError::OutOfBounds)?;
        if end > self.bytes.len() as u64 {
            return Err(AccessError::OutOfBounds);
        }
        let read_only = access.perm == Perm::ReadWrite && end > RANGE_LEN / 2;
        if read_only { Err(AccessError::NoPermission) } else { Ok(()) }
    }

    fn read(&self, addr: VirtAddr, len: u32, out: &mut Vec<u8>) {
        let at = self.at(addr);
        out.extend_from_slice(&self.bytes[at..at + len as usize]);
    }

    fn load(&self, addr: VirtAddr, window: &mut [u8]) {
        let at = self.at(addr);
        window.copy_from_slice(&self.bytes[at..at + window.len()]);
    }

    fn write(&mut self, addr: VirtAddr, data: &[u8]) {
        let at = self.at(addr);
        self.bytes[at..at + data.len()].copy_from_slice(data);
    }

    fn cmp_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> u64 {
        self.exchange(addr, |old| if old == compare { swap } else { old })
    }

    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> u64 {
        self.exchange(addr, |old| old.wrapping_add(add))
    }
}

/// Properties that the returned buffer of an operation must have.
#[derive(Clone, Copy, Debug)]
struct Expectation {
    len: usize,
    traversal: bool,
}

pub(super) struct World {
    host: Host,
    now: Instant,
    out: Outbox<Out, Note>,
    /// Unanswered questions of the host to the control plane.
    control_requests: VecDeque<ControlRequest>,
    /// Operations that have not ended, by ticket.
    asked: BTreeMap<u64, Expectation>,
    tickets: u64,
    /// Every datagram that the host sent, by request id.
    requests: BTreeMap<RequestId, Vec<u8>>,
    /// Ids of the requests that may still be open.
    open: Vec<RequestId>,
    /// Ports of the connections' other ends, by the host's queue pair.
    lines: BTreeMap<Qpn, Port>,
    /// Responders of the nodes, by the nodes' queue pairs.
    responders: BTreeMap<Qpn, rc::Responder>,
    nodes: [Bytes; 2],
    node_out: Outbox<(), rc::Note>,
    /// Answers of the nodes that are not delivered yet.
    answers: VecDeque<ReceivedFrame>,
    connections: u32,
    /// True when the host refused the last setup request.
    refused: bool,
}

impl World {
    pub(super) fn new() -> Self {
        let config = Config {
            requests_max: 4,
            connections_max: 4,
            connections_each: 2,
            request_timeout: Duration::from_millis(1),
            request_retries_max: 3,
            pmtu: Pmtu::B1024,
            pairs_max: 3,
            ..Config::new(HOST, 1, HOME)
        };
        let bytes = |base| Bytes { base, bytes: vec![0x5a; 0x1000] };
        let mut world = Self {
            host: Host::new(config),
            now: Instant::ZERO,
            out: Outbox::new(),
            control_requests: VecDeque::new(),
            asked: BTreeMap::new(),
            tickets: 0,
            requests: BTreeMap::new(),
            open: Vec::new(),
            lines: BTreeMap::new(),
            responders: BTreeMap::new(),
            nodes: RANGES.map(bytes),
            node_out: Outbox::new(),
            answers: VecDeque::new(),
            connections: 0,
            refused: false,
        };
        let run = &mut Run::new();
        for (domain, endpoint) in SESSIONS {
            world
                .ask(HostRequest::Session { domain, switch: ud::Peer { port: Port::SWITCH, endpoint } }, run);
        }
        world.connect(&HostRequest::Connect, (Domain(7), 0), 0, run);
        world.connect(&HostRequest::Connect, (Domain(7), 1), 0, run);
        world
    }

    fn ask(&mut self, ask: HostRequest, run: &mut Run) {
        self.host.handle(self.now, Event::Local(ask), &mut self.out);
        self.look(true, run);
    }

    /// Performs a setup request of the control plane, sometimes an invalid one.
    pub(super) fn set_up(&mut self, input: &mut Input<'_>, run: &mut Run) {
        match input.below(4) {
            0 => {
                let (domain, endpoint) = input.pick(&SESSIONS);
                let domain = if input.one_in(4) { Domain(u32::from(input.u8())) } else { domain };
                self.ask(
                    HostRequest::Session { domain, switch: ud::Peer { port: Port::SWITCH, endpoint } },
                    run,
                );
            }
            kind => {
                let domain = input.pick(&[Domain(7), Domain(8), Domain(10)]);
                let taken = if kind == 3 { u32::from(input.u8()) } else { 0 };
                let as_what =
                    if taken % 8 == 7 { beside(taken.into()) } else { Box::new(HostRequest::Connect) };
                self.connect(&*as_what, (domain, usize::from(input.below(2))), taken, run);
            }
        }
    }

    /// Sets up a new connection to a node. Its queue pair lies `back` before the next free one.
    fn connect(
        &mut self,
        as_what: &dyn Fn(Connection) -> HostRequest,
        (domain, node): (Domain, usize),
        back: u32,
        run: &mut Run,
    ) {
        let qpn = QPNS + self.connections.saturating_sub(back);
        self.connections += 1;
        let number = u16::try_from(node + 1).expect("few nodes");
        let (qpn, peer_qpn, first_psn) = (Qpn::new(qpn), Qpn::new(qpn + PEER), Psn::new(Psn::MAX - 2));
        let (port, rkey, pmtu) = (Port::node(number), Rkey(qpn.get()), Pmtu::B256);
        let rc = rc::RequesterConfig {
            qpn,
            peer_qpn,
            port,
            first_psn,
            rkey,
            pmtu,
            window_psns: 16,
            depth: 4,
            queue_max: 4,
            timeout: Duration::from_micros(700),
            retries_max: 3,
            rnr_retries_max: 2,
        };
        let config = rc::ResponderConfig {
            qpn: peer_qpn,
            peer_qpn: qpn,
            port: Port::host(HOST.0),
            expected_psn: first_psn,
            rkey,
            domain,
            pmtu,
        };
        let base = VirtAddr(RANGES[node]);
        self.refused = false;
        // The host sends waiting operations at once.
        let before = self.responders.insert(peer_qpn, rc::Responder::new(config));
        self.ask(
            as_what(Connection {
                node: NodeId(number),
                domain,
                base,
                len: RANGE_LEN,
                gathers: true,
                generation: 1,
                rc,
            }),
            run,
        );
        if !self.refused {
            self.lines.insert(qpn, port);
        } else if let Some(before) = before {
            self.responders.insert(peer_qpn, before);
        } else {
            self.responders.remove(&peer_qpn);
        }
    }

    /// Returns true when the host has an open question to the control plane.
    pub(super) fn has_control_requests(&self) -> bool {
        !self.control_requests.is_empty()
    }

    /// Delivers an answer to the host's question, or an answer that the host did not request. The answer may
    /// be wrong in every field.
    pub(super) fn fulfil(&mut self, input: &mut Input<'_>, run: &mut Run) {
        let Some(ControlRequest { number, kind }) = self.control_requests.pop_front() else {
            let number = u64::from(input.u8());
            return self.ask(HostRequest::Reply { number, reply: located(input) }, run);
        };
        let reply = match input.below(8) {
            0 => Reply::Disconnected,
            1 => Reply::NotFound,
            2 => Reply::Unavailable,
            _ => match kind {
                ControlRequestKind::Connect { domain, node } if node.0 <= 2 => {
                    self.connect(&HostRequest::Connect, (domain, usize::from(node.0 - 1)), 0, run);
                    // The host may have refused the reply.
                    return self.ask(HostRequest::Reply { number, reply: Reply::Unavailable }, run);
                }
                ControlRequestKind::ConnectExtra { domain, node } if node.0 <= 2 => {
                    return self.connect(&*beside(number), (domain, usize::from(node.0 - 1)), 0, run);
                }
                ControlRequestKind::Connect { .. } | ControlRequestKind::ConnectExtra { .. } => {
                    Reply::NotFound
                }
                ControlRequestKind::Disconnect { .. } | ControlRequestKind::DisconnectExtra { .. } => {
                    Reply::Disconnected
                }
                ControlRequestKind::Locate { .. } => located(input),
                ControlRequestKind::NodeGeneration { .. } => Reply::NodeGeneration(1),
            },
        };
        self.ask(HostRequest::Reply { number, reply }, run);
    }

    pub(super) fn submit(&mut self, domain: Domain, op: Op, run: &mut Run) {
        self.tickets += 1;
        let (len, traversal) = match &op {
            Op::Read { buf, .. } | Op::Gather { buf, .. } | Op::Write { buf, .. } => (buf.len(), false),
            Op::RegionRead { buf, .. } | Op::RegionWrite { buf, .. } => (buf.len(), false),
            Op::ReadTo { .. } | Op::WriteFrom { .. } | Op::CompareSwap { .. } | Op::FetchAdd { .. } => {
                (0, false)
            }
            Op::Through { work, .. } => (work.buf().len(), false),
            Op::Traverse { scratch, .. } => (scratch.len(), true),
        };
        self.asked.insert(self.tickets, Expectation { len, traversal });
        self.ask(HostRequest::Submit { ticket: self.tickets, domain, op }, run);
    }

    /// Advances the time by `span` and wakes the host, whether or not it set a timer.
    pub(super) fn pass(&mut self, span: Duration, run: &mut Run) {
        self.now += span;
        self.host.handle(self.now, Event::Wake, &mut self.out);
        self.look(true, run);
        assert!(self.host.next_wake().is_none_or(|at| at > self.now), "what was due is done");
    }

    /// Delivers a frame to the host. A frame that answers no open request must change nothing. A packet from
    /// a port other than its connection's must change nothing either.
    pub(super) fn hear(&mut self, (port, frame): &ReceivedFrame, run: &mut Run) {
        run.cases += 1;
        let line =
            Packet::parse(frame).ok().and_then(|packet| self.lines.get(&packet.bth.dest_qp)) == Some(port);
        let answers = heard(frame).is_some_and(|(to, message)| {
            let serves = matches!(*port, Port::SWITCH | Port::UNKNOWN) || port.as_node().is_some();
            to == HOME && serves && message.header.response && self.open.contains(&message.header.request)
        });
        self.host.handle(self.now, Event::Frame { port: *port, bytes: frame }, &mut self.out);
        self.look(answers || line, run);
    }

    /// Returns a frame that a correct rack may send: the nodes' oldest answer, or an answer to a datagram.
    /// The input decides.
    pub(super) fn answer(&mut self, input: &mut Input<'_>) -> Option<ReceivedFrame> {
        let request = match input.below(4) {
            0..=1 if !self.answers.is_empty() => return self.answers.pop_front(),
            // The newest request, or any other.
            2 => self.requests.values().nth(usize::from(input.u8()) % self.requests.len().max(1)),
            _ => self.open.last().and_then(|id| self.requests.get(id)),
        };
        let Some(frame) = request else { return self.answers.pop_front() };
        let (_, message) = heard(frame).expect("what the host sends can be read");
        if input.one_in(16) {
            // Returns the host's own message.
            return Some((Port::SWITCH, datagram(HOME, &message)));
        }
        let choice = input.u8();
        let statuses = [
            Status::Ok,
            Status::HopLimit,
            Status::IterationLimit,
            Status::UnknownProgram,
            Status::NotMapped,
            Status::NoPermission,
            Status::Malformed,
            Status::Busy,
        ];
        let status = statuses[usize::from(choice) % statuses.len()];
        let state;
        let body = match message.body {
            Body::RegionRead { addr, len, .. } => Body::RegionRead {
                addr,
                len,
                data: if status == Status::Ok { &[7; 1024][..len as usize] } else { &[] },
            },
            Body::RegionWrite { addr, len, .. } => Body::RegionWrite { addr, len, data: &[] },
            Body::Traverse(traverse) => {
                let len = traverse.scratch.len() + usize::from(input.one_in(16));
                state = vec![input.u8(); len];
                let iterations = traverse.iterations + u32::from(input.below(4));
                let cur_ptr = VirtAddr(input.pick(&RANGES));
                Body::Traverse(Traverse { iterations, cur_ptr, scratch: &state, code: &[], ..traverse })
            }
            Body::Batch(_) | Body::Update(_) => {
                panic!("each traversal is kept apart, and a host sends no updates")
            }
        };
        let message = Message { header: message.header.answer(status), body };
        let together = matches!(body, Body::Traverse(_)) && choice / 8 % 4 == 3;
        let answer = if together {
            // The batch also holds ids that may be open or unknown.
            enclosed(HOME, &with_others(&message, choice / 32 % 3))
        } else {
            datagram(HOME, &message)
        };
        Some((input.pick(&[Port::node(1), Port::SWITCH, Port::UNKNOWN]), answer))
    }

    /// Ends the sequence without further answers: the host must give up every open operation exactly once.
    pub(super) fn end(mut self, run: &mut Run) {
        let mut wakes = 0;
        loop {
            while let Some(ControlRequest { number, .. }) = self.control_requests.pop_front() {
                self.ask(HostRequest::Reply { number, reply: Reply::Unavailable }, run);
            }
            let Some(at) = self.host.next_wake() else { break };
            wakes += 1;
            assert!(wakes < WAKES_MAX, "the host never gives up");
            self.now = self.now.max(at);
            self.pass(Duration::ZERO, run);
        }
        assert!(self.asked.is_empty(), "never ended: {:?}", self.asked);
        assert_eq!(self.host.outstanding(), 0);
    }

    /// Checks the output of an event. An operation may end only with `reason`.
    fn look(&mut self, reason: bool, run: &mut Run) {
        self.host.check();
        let mut out = core::mem::take(&mut self.out);
        out.drain(|action| match action {
            Action::Send { port, frame } => {
                assert!(reason, "no reason to send anything");
                self.sent(port, frame);
            }
            Action::Local(Out::Done(done)) => {
                assert!(reason, "no reason to end anything");
                self.ended(&done);
            }
            Action::Local(Out::Control(want)) => {
                assert!(reason, "no reason to want anything");
                self.control_requests.push_back(want);
            }
            Action::Note(note) => {
                run.mark(note);
                self.refused |= matches!(note, Note::Rejected(_) | Note::LateAnswer);
            }
        });
        self.out = out;
        assert!(
            self.host.outstanding() == 0 || !self.asked.is_empty(),
            "an operation under way has not ended"
        );
    }

    fn ended(&mut self, done: &Done) {
        let asked = self.asked.remove(&done.ticket);
        let Some(asked) = asked else { panic!("{done:?} ended, and was not under way") };
        assert_eq!(done.buf.len(), asked.len, "the buffer comes back");
        if let Ok(answer) = done.result {
            assert_eq!(matches!(answer, Answer::Traversed(_)), asked.traversal);
        }
    }

    fn sent(&mut self, port: Port, frame: &[u8]) {
        let packet = Packet::parse(frame).expect("a host sends frames");
        if packet.bth.opcode.is_ud() {
            return self.sent_request(port, frame);
        }
        let responder = self.responders.get_mut(&packet.bth.dest_qp).expect("a connection that was set up");
        let node = usize::from(port.as_node().expect("verbs go to nodes") - 1);
        responder.on_packet(Port::host(HOST.0), &packet, &mut self.nodes[node], &mut self.node_out);
        responder.flush(&mut self.node_out);
        let answers = &mut self.answers;
        self.node_out.drain(|action| {
            if let Action::Send { frame, .. } = action {
                answers.push_back((port, frame.to_vec()));
            }
        });
        while answers.len() > UNDER_WAY_MAX {
            answers.pop_front();
        }
    }

    /// Checks a sent datagram: it goes to the switch over a session, with a new id or as an exact repetition.
    fn sent_request(&mut self, port: Port, frame: &[u8]) {
        let (to, message) = heard(frame).expect("a host sends messages");
        assert!(port == Port::SWITCH && SESSIONS.iter().any(|session| session.1 == to));
        assert!(!message.header.response && message.len() <= Pmtu::B1024.bytes());
        for message in each(&message) {
            let id = message.header.request;
            assert_eq!(id.host(), HOST);
            // The host repeats the traversals of a batch as separate requests.
            let again = message.header.again;
            // A repetition sets the `again` flag and is otherwise identical (PROTOCOL 5.2).
            let message = Message { header: Header { again: false, ..message.header }, ..message };
            let frame = datagram(to, &message);
            match self.requests.get(&id) {
                Some(first) => assert!(again && *first == frame, "{id:?} is used again for something else"),
                None => {
                    assert!(!again, "{id:?} comes for the first time");
                    self.requests.insert(id, frame);
                    self.open.push(id);
                }
            }
        }
    }
}

/// Returns the location of an allocation, sensible or not.
fn located(input: &mut Input<'_>) -> Reply {
    let base = input.pick(&RANGES);
    let len = [RANGE_LEN, RANGE_LEN / 4, u64::MAX][usize::from(input.below(3))];
    let mut parts = || {
        let at = base.wrapping_add(u64::from(input.u8()) * 16);
        let len = if input.one_in(16) { u64::MAX } else { u64::from(input.u8()) * 8 };
        (VirtAddr(at), len, NodeId(1 + u16::from(input.below(3))))
    };
    let pieces: Vec<_> = (0..2).map(|_| parts()).collect();
    let lost: Vec<_> = (0..1).map(|_| parts()).collect();
    Reply::Located(Located {
        base: VirtAddr(base),
        len,
        pieces: pieces.into_iter().map(|(base, len, node)| Piece { base, len, node }).collect(),
        lost: lost.into_iter().filter(|&(_, len, _)| len < 512).map(|(base, len, _)| (base, len)).collect(),
    })
}

/// Returns a constructor for a second connection, which answers the question `number`.
fn beside(number: u64) -> Box<dyn Fn(Connection) -> HostRequest> {
    Box::new(move |connection| HostRequest::ConnectExtra { number, connection })
}
