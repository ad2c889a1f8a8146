//! A host and its whole environment, played by the tests: its program, the switch, memory nodes, and
//! strangers.

mod answers;
mod batches;
mod coverage;
mod extra_connections;
mod following;
mod gather;
mod incarnations;
mod patience;
mod requests;
mod through;
mod times;
mod traversals;
mod verbs;

use crate::{
    Answer, Config, Connection, ControlRequest, ControlRequestKind, Done, Failure, Host, HostRequest, Note,
    Op, Out, Reply,
};
use alloc::vec;
use alloc::vec::Vec;
use core::mem::take;
use farmem_machine::{Action, Duration, Event, Instant, Machine as _, Outbox, Port};
use farmem_transport::{rc, ud};
use farmem_wire::message::{Traverse, Updates};
use farmem_wire::{
    Body, Bth, Deth, Domain, Extension, HostId, Message, NodeId, Opcode, Packet, Pmtu, Psn, Qkey, Qpn,
    RequestId, Rkey, Status, VirtAddr,
};

const HOST: HostId = HostId(3);
const GENERATION: u16 = 2;
const HOME: ud::Endpoint = endpoint(0x300);
const ALICE: Domain = Domain(7);
const BOB: Domain = Domain(8);

/// The switch's endpoints for the sessions of the two domains.
const ALICES: ud::Endpoint = endpoint(0x107);
const BOBS: ud::Endpoint = endpoint(0x108);

/// First addresses and length of the ranges of nodes 1 and 2.
const BASE_1: u64 = 0x1000_0000;
const BASE_2: u64 = 0x2000_0000;
const RANGE_LEN: u64 = 0x4000;

const TIMEOUT: Duration = Duration::from_millis(10);
const RETRIES_MAX: u32 = 5;

/// A UD endpoint derived from one number.
const fn endpoint(number: u32) -> ud::Endpoint {
    ud::Endpoint { qpn: Qpn::new(number), qkey: Qkey(0xbeef_0000 + number) }
}

fn config() -> Config {
    Config {
        request_timeout: TIMEOUT,
        request_retries_max: RETRIES_MAX,
        ..Config::new(HOST, GENERATION, HOME)
    }
}

/// A connection of `domain` to `node`; the queue pairs are derived from `number`.
fn connection(domain: Domain, node: u16, number: u32) -> Connection {
    let rc = rc::RequesterConfig {
        qpn: Qpn::new(0x1000 + number),
        peer_qpn: Qpn::new(0x2000 + number),
        port: Port::node(node),
        first_psn: Psn::new(Psn::MAX - 1),
        rkey: Rkey(0x5eed_0000 + number),
        pmtu: Pmtu::B256,
        window_psns: 64,
        depth: 4,
        queue_max: 4,
        timeout: TIMEOUT,
        retries_max: 2,
        rnr_retries_max: 2,
    };
    let base = VirtAddr(if node == 1 { BASE_1 } else { BASE_2 });
    Connection { node: NodeId(node), domain, base, len: RANGE_LEN, gathers: true, generation: 1, rc }
}

/// A host and its outputs that the test has not examined yet.
struct Bench {
    host: Host,
    now: Instant,
    out: Outbox<Out, Note>,
    sent: Vec<(Port, Vec<u8>)>,
    done: Vec<Done>,
    /// Requests to the control plane that are not answered yet.
    control_requests: Vec<ControlRequest>,
    notes: Vec<Note>,
    /// The ticket of the last operation.
    ticket: u64,
}

impl Bench {
    /// A host that just joined.
    fn new(config: Config) -> Self {
        Self {
            host: Host::new(config),
            now: Instant::ZERO,
            out: Outbox::new(),
            sent: vec![],
            done: vec![],
            control_requests: vec![],
            notes: vec![],
            ticket: 0,
        }
    }

    /// A host with a session in each domain.
    fn with_sessions() -> Self {
        let mut bench = Self::new(config());
        bench.open(ALICE, ALICES);
        bench.open(BOB, BOBS);
        bench
    }

    fn open(&mut self, domain: Domain, endpoint: ud::Endpoint) {
        self.ask(HostRequest::Session { domain, switch: ud::Peer { port: Port::SWITCH, endpoint } });
    }

    /// Submits an operation of Alice and returns its ticket.
    fn submit(&mut self, op: Op) -> u64 {
        self.submit_as(ALICE, op)
    }

    fn submit_as(&mut self, domain: Domain, op: Op) -> u64 {
        self.ticket += 1;
        self.ask(HostRequest::Submit { ticket: self.ticket, domain, op });
        self.ticket
    }

    fn ask(&mut self, ask: HostRequest) {
        self.event(Event::Local(ask));
    }

    fn hear(&mut self, port: Port, bytes: &[u8]) {
        self.event(Event::Frame { port, bytes });
    }

    /// Advances time to the host's next wake, and wakes it.
    fn wake(&mut self) {
        self.now = self.host.next_wake().expect("a timer runs");
        self.event(Event::Wake);
    }

    fn event(&mut self, event: Event<'_, HostRequest>) {
        self.host.handle(self.now, event, &mut self.out);
        self.host.check();
        let Self { out, sent, done, control_requests, notes, .. } = self;
        out.drain(|action| match action {
            Action::Send { port, frame } => sent.push((port, frame.to_vec())),
            Action::Local(Out::Done(end)) => done.push(end),
            Action::Local(Out::Control(request)) => control_requests.push(request),
            Action::Note(note) => notes.push(note),
        });
        coverage::saw(&self.done, &self.notes);
    }

    /// Returns the one operation that ended since the last call.
    fn ended(&mut self) -> Done {
        match <[Done; 1]>::try_from(take(&mut self.done)) {
            Ok([done]) => done,
            Err(other) => panic!("one operation ends, not {other:?}"),
        }
    }

    /// Returns the failure of the operation submitted last, which sent nothing.
    fn refused(&mut self) -> Failure {
        assert_eq!(self.sent, [], "nothing is sent");
        let done = self.ended();
        assert_eq!(done.ticket, self.ticket);
        done.result.expect_err("a failure")
    }

    /// Returns the one pending request to the control plane.
    fn kind(&mut self) -> ControlRequestKind {
        let [request] = self.control_requests[..] else {
            panic!("one request, not {:?}", self.control_requests)
        };
        request.kind
    }

    /// Answers the one pending request to the control plane, which is `kind`.
    fn reply(&mut self, kind: ControlRequestKind, reply: Reply) {
        assert_eq!(self.kind(), kind);
        let ControlRequest { number, .. } = self.control_requests.remove(0);
        self.ask(HostRequest::Reply { number, reply });
    }

    fn took_notes(&mut self) -> Vec<Note> {
        take(&mut self.notes)
    }

    /// Returns the one frame sent since the last call: a request over Alice's session.
    fn request(&mut self) -> Request {
        match <[(Port, Vec<u8>); 1]>::try_from(take(&mut self.sent)) {
            Ok([(Port::SWITCH, frame)]) => Request { frame },
            other => panic!("one frame to the switch, not {other:?}"),
        }
    }
}

/// A request as it reached the switch.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Request {
    frame: Vec<u8>,
}

impl Request {
    /// Returns the expected retransmission: only the retransmission flag differs (PROTOCOL 3.2, 5.2).
    fn again(&self) -> Self {
        const FLAGS: usize = farmem_wire::bth::LEN + Deth::LEN + 3;
        let mut frame = self.frame.clone();
        frame[FLAGS] |= 2;
        Self { frame }
    }

    /// Returns the message, and checks the session's keys and the host's own endpoint.
    fn message(&self) -> Message<'_> {
        let packet = Packet::parse(&self.frame).unwrap();
        assert_eq!(packet.bth.opcode, Opcode::UdSendOnly);
        assert_eq!(packet.bth.dest_qp, ALICES.qpn);
        assert_eq!(packet.ext, Extension::Deth(Deth { qkey: ALICES.qkey, src_qp: HOME.qpn }));
        let message = Message::parse(packet.payload).unwrap();
        assert!(!message.header.response);
        // The switch knows which host asks (PROTOCOL 6.4).
        assert_eq!(message.header.origin, HostId(0));
        message
    }

    fn id(&self) -> RequestId {
        self.message().header.request
    }

    fn traverse(&self) -> Traverse<'_> {
        let Body::Traverse(traverse) = self.message().body else { panic!("a traversal") };
        traverse
    }

    /// Returns the answer with this status: a region's data on success, a traversal's state as sent.
    fn answer(&self, status: Status, data: &[u8]) -> Vec<u8> {
        self.answer_with(status, |body| match body {
            Body::RegionRead { addr, len, .. } if status == Status::Ok => {
                Body::RegionRead { addr, len, data }
            }
            other => other,
        })
    }

    /// Returns the answer to a traversal with its state changed.
    fn state<'a>(&'a self, status: Status, change: impl FnOnce(Traverse<'a>) -> Traverse<'a>) -> Vec<u8> {
        self.answer_with(status, |body| match body {
            Body::Traverse(state) => Body::Traverse(change(state)),
            other => other,
        })
    }

    fn answer_with<'a>(&'a self, status: Status, change: impl FnOnce(Body<'a>) -> Body<'a>) -> Vec<u8> {
        let request = self.message();
        let body = match request.body {
            Body::RegionWrite { addr, len, .. } => Body::RegionWrite { addr, len, data: &[] },
            Body::Traverse(state) => Body::Traverse(Traverse { code: &[], ..state }),
            other => other,
        };
        datagram(HOME, &Message { header: request.header.answer(status), body: change(body) })
    }
}

/// Returns a datagram with this message.
fn datagram(to: ud::Endpoint, message: &Message<'_>) -> Vec<u8> {
    let mut payload = vec![];
    message.emit(&mut payload);
    sealed(to, &payload)
}

/// Returns a datagram with this payload.
fn sealed(to: ud::Endpoint, payload: &[u8]) -> Vec<u8> {
    let bth = Bth::new(Opcode::UdSendOnly, to.qpn, Psn::new(9));
    let ext = Extension::Deth(Deth { qkey: to.qkey, src_qp: Qpn::new(0x77) });
    let mut frame = vec![];
    Packet { bth, ext, payload }.emit(&mut frame);
    frame
}

fn read(addr: u64, len: usize) -> Op {
    Op::Read { addr: VirtAddr(addr), buf: vec![0; len] }
}

fn write(addr: u64, buf: &[u8]) -> Op {
    Op::Write { addr: VirtAddr(addr), buf: buf.to_vec() }
}

fn region_read(addr: u64, len: usize) -> Op {
    Op::RegionRead { addr: VirtAddr(addr), buf: vec![0; len] }
}

fn region_write(addr: u64, buf: &[u8]) -> Op {
    Op::RegionWrite { addr: VirtAddr(addr), buf: buf.to_vec() }
}
