//! The host's hot path does not allocate once warm: verbs over a connection, and requests through the switch,
//! eight at a time.
//!
//! Buffers are reused: the buffer of an ended operation serves the next.

use farmem_host::{Config, Connection, Host, HostRequest, Note, Op, Out};
use farmem_machine::{Action, Duration, Event, Instant, Machine as _, Outbox, Port};
use farmem_transport::{Access, AccessError, Memory, rc, ud};
use farmem_traversal::Program;
use farmem_wire::message::Traverse;
use farmem_wire::{
    Body, Domain, HostId, Message, NodeId, Packet, Pmtu, Psn, Qkey, Qpn, Rkey, Status, VirtAddr,
};

const HOME: ud::Endpoint = ud::Endpoint { qpn: Qpn::new(100), qkey: Qkey(1) };
const SESSION: ud::Endpoint = ud::Endpoint { qpn: Qpn::new(101), qkey: Qkey(2) };
const HOST: Port = Port::host(1);
const NODE: Port = Port::node(1);
const DOMAIN: Domain = Domain(1);
const BASE: VirtAddr = VirtAddr(0x1000);
const PROGRAM: &str = include_str!("../../../testdata/programs/list_sum.pulse");

/// Memory that holds the same byte everywhere.
struct Same;

impl Memory for Same {
    fn check(&self, _: &Access) -> Result<(), AccessError> {
        Ok(())
    }
    fn read(&self, _: VirtAddr, len: u32, out: &mut Vec<u8>) {
        out.resize(out.len() + len as usize, 0x5a);
    }
    fn load(&self, _: VirtAddr, window: &mut [u8]) {
        window.fill(0x5a);
    }
    fn write(&mut self, _: VirtAddr, _: &[u8]) {}
    fn cmp_swap(&mut self, _: VirtAddr, compare: u64, _: u64) -> u64 {
        compare
    }
    fn fetch_add(&mut self, _: VirtAddr, _: u64) -> u64 {
        0
    }
}

/// The host and the rest of its rack.
struct Rack {
    host: Host,
    responder: rc::Responder,
    out: Outbox<Out, Note>,
    node_out: Outbox<(), rc::Note>,
    frames: Outbox<(), ()>,
    buffers: Vec<Vec<u8>>,
    program: Program,
    well: u64,
}

impl Rack {
    fn new() -> Self {
        let first_psn = Psn::new(0);
        let (qpn, peer_qpn, rkey, pmtu) = (Qpn::new(20), Qpn::new(21), Rkey(9), Pmtu::B1024);
        let timeout = Duration::from_millis(50);
        let rc = rc::RequesterConfig {
            qpn,
            peer_qpn,
            port: NODE,
            first_psn,
            rkey,
            pmtu,
            window_psns: 64,
            depth: 16,
            queue_max: 64,
            timeout,
            retries_max: 7,
            rnr_retries_max: 7,
        };
        let config = rc::ResponderConfig {
            qpn: peer_qpn,
            peer_qpn: qpn,
            port: HOST,
            expected_psn: first_psn,
            rkey,
            domain: DOMAIN,
            pmtu,
        };
        let mut rack = Self {
            host: Host::new(Config::new(HostId(1), 1, HOME)),
            responder: rc::Responder::new(config),
            out: Outbox::new(),
            node_out: Outbox::new(),
            frames: Outbox::new(),
            buffers: (0..8).map(|_| Vec::with_capacity(64)).collect(),
            program: Program::assemble(PROGRAM).expect("it assembles"),
            well: 0,
        };
        let connection = Connection {
            node: NodeId(1),
            domain: DOMAIN,
            base: BASE,
            len: 0x1000,
            gathers: true,
            generation: 1,
            rc,
        };
        rack.ask(HostRequest::Connect(connection));
        rack.ask(HostRequest::Session {
            domain: DOMAIN,
            switch: ud::Peer { port: Port::SWITCH, endpoint: SESSION },
        });
        rack
    }

    fn ask(&mut self, ask: HostRequest) {
        self.host.handle(Instant::ZERO, Event::Local(ask), &mut self.out);
    }

    fn buffer(&mut self, len: usize) -> Vec<u8> {
        let mut buf = self.buffers.pop().expect("a buffer came back");
        buf.resize(len, 0);
        buf
    }

    /// Runs eight concurrent operations of a kind to their end.
    fn round(&mut self, kind: u64) {
        for ticket in 0..8 {
            let addr = BASE;
            let op = match kind {
                0 => Op::Read { addr, buf: self.buffer(64) },
                1 => Op::Write { addr, buf: self.buffer(64) },
                2 => Op::RegionRead { addr, buf: self.buffer(64) },
                3 => Op::RegionWrite { addr, buf: self.buffer(64) },
                _ => {
                    let (program, scratch) = (self.program.clone(), self.buffer(16));
                    Op::Traverse { program, cur_ptr: addr, scratch, limit: 100 }
                }
            };
            self.ask(HostRequest::Submit { ticket, domain: DOMAIN, op });
        }
        while !self.out.is_empty() {
            self.pass();
        }
    }

    /// Answers the host's requests, counts ended operations, and delivers the answers.
    fn pass(&mut self) {
        let Self { host, responder, out, node_out, frames, buffers, well, .. } = self;
        out.drain(|action| match action {
            Action::Send { frame, .. } => {
                let packet = Packet::parse(frame).expect("a frame");
                if packet.bth.opcode.is_ud() {
                    answer(packet.payload, frames);
                } else {
                    responder.on_packet(HOST, &packet, &mut Same, node_out);
                    responder.flush(node_out);
                }
            }
            Action::Local(Out::Control(request)) => panic!("nothing breaks, and it wants {request:?}"),
            Action::Local(Out::Done(done)) => {
                *well += u64::from(done.result.is_ok());
                buffers.push(done.buf);
            }
            Action::Note(_) => {}
        });
        let mut hear = |bytes: &[u8]| host.handle(Instant::ZERO, Event::Frame { port: NODE, bytes }, out);
        node_out.drain(|action| {
            if let Action::Send { frame, .. } = action {
                hear(frame);
            }
        });
        frames.drain(|action| {
            if let Action::Send { frame, .. } = action {
                hear(frame);
            }
        });
    }
}

/// The successful answer to a request; the first visit of a traversal ends at a limit.
fn answer(payload: &[u8], frames: &mut Outbox<(), ()>) {
    let request = Message::parse(payload).expect("a message");
    let mut status = Status::Ok;
    let body = match request.body {
        Body::RegionRead { addr, len, .. } => {
            Body::RegionRead { addr, len, data: &[0x5a; 64][..len as usize] }
        }
        Body::RegionWrite { addr, len, .. } => Body::RegionWrite { addr, len, data: &[] },
        Body::Traverse(state) => {
            if state.iterations == 0 {
                status = Status::HopLimit;
            }
            Body::Traverse(Traverse { iterations: state.iterations + 1, code: &[], ..state })
        }
        Body::Batch(_) | Body::Update(_) => unreachable!("this host sends no batches and no updates"),
    };
    let message = Message { header: request.header.answer(status), body };
    ud::send(frames, ud::Peer { port: HOST, endpoint: HOME }, Qpn::new(7), Psn::new(0), &message);
}

#[test]
fn a_warm_host_does_not_allocate() {
    let mut rack = Rack::new();
    for kind in (0..5).cycle().take(200 * 5) {
        rack.round(kind);
    }
    for kind in 0..5 {
        rack.well = 0;
        let heap = allocation_counter::measure(|| (0..1_000).for_each(|_| rack.round(kind)));
        assert_eq!(rack.well, 8_000);
        assert_eq!(heap.count_total, 0, "operation {kind}: {heap:?}");
    }
}
