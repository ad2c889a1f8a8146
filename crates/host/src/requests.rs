//! The host's requests through the switch: region reads and writes, traversals and their continuations.

use crate::{Answer, Config, Done, Failure, Note, Op, Out, Traversed};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farmem_machine::Instant;
use farmem_transport::ud::{self, Expired};
use farmem_traversal::Program;
use farmem_wire::{
    Body, Bth, Deth, Domain, Extension, Header, HostId, Message, Opcode, Packet, Psn, Qpn, RequestId, Status,
    VirtAddr, message,
};

/// The most bytes of a region read or write: what fits one datagram at a PMTU of 1024.
pub const REGION_DATA_MAX: usize = 1024 - message::OVERHEAD - message::REGION_LEN;

/// How often one traversal is continued after a hop or visit limit before it is given up.
pub const TRAVERSALS_CONTINUED_MAX: u32 = 1 << 20;

/// What the host keeps of an outstanding request.
#[derive(Debug)]
struct Pending {
    ticket: u64,
    domain: Domain,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Read { addr: VirtAddr, buf: Vec<u8> },
    Write { addr: VirtAddr, buf: Vec<u8> },
    Traverse(Walk),
}

/// A traversal between requests.
#[derive(Debug)]
struct Walk {
    program: Program,
    cur_ptr: VirtAddr,
    scratch: Vec<u8>,
    iterations: u32,
    limit: u32,
    requests: u32,
    /// The last request carried the code.
    with_code: bool,
}

/// Outstanding requests and the sessions they go over.
#[derive(Debug)]
pub(crate) struct Requests {
    id: HostId,
    generation: u16,
    counter: u32,
    home: Qpn,
    hops_max: u8,
    sessions: BTreeMap<Domain, ud::Peer>,
    ud: ud::Requester<Pending>,
    /// The frame being built; kept for its memory.
    frame: Vec<u8>,
}

impl Requests {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            id: config.id,
            generation: config.generation,
            counter: 0,
            home: config.home.qpn,
            hops_max: config.hops_max,
            sessions: BTreeMap::new(),
            ud: ud::Requester::new(config.requests_max, config.request_timeout, config.request_retries_max),
            frame: Vec::new(),
        }
    }

    pub(crate) fn session(&mut self, domain: Domain, switch: ud::Peer) {
        self.sessions.insert(domain, switch);
    }

    pub(crate) fn submit(&mut self, now: Instant, ticket: u64, domain: Domain, op: Op, out: &mut Out) {
        let kind = match op {
            Op::RegionRead { addr, buf } => Kind::Read { addr, buf },
            Op::RegionWrite { addr, buf } => Kind::Write { addr, buf },
            Op::Traverse { program, cur_ptr, scratch, limit } => Kind::Traverse(Walk {
                program,
                cur_ptr,
                scratch,
                iterations: 0,
                limit,
                requests: 0,
                with_code: false,
            }),
            Op::Read { .. } | Op::Write { .. } | Op::CompareSwap { .. } | Op::FetchAdd { .. } => {
                unreachable!("one-sided verbs go over connections")
            }
        };
        let refusal = match &kind {
            Kind::Read { buf, .. } | Kind::Write { buf, .. } if buf.len() > REGION_DATA_MAX => {
                Some(Failure::TooLong { max: REGION_DATA_MAX })
            }
            Kind::Traverse(walk) if walk.scratch.len() != walk.program.scratch_len() => {
                Some(Failure::ScratchLen { need: walk.program.scratch_len() })
            }
            Kind::Read { .. } | Kind::Write { .. } | Kind::Traverse(_) => None,
        };
        let pending = Pending { ticket, domain, kind };
        match refusal {
            Some(failure) => end(pending, Err(failure), out),
            None => self.start(now, pending, out),
        }
    }

    /// Sends a request under a new id.
    fn start(&mut self, now: Instant, mut pending: Pending, out: &mut Out) {
        let Some(&switch) = self.sessions.get(&pending.domain) else {
            return end(pending, Err(Failure::NoSession), out);
        };
        self.counter = self.counter.wrapping_add(1);
        let request = RequestId::new(self.id, self.generation, self.counter);
        if let Kind::Traverse(walk) = &mut pending.kind {
            walk.requests += 1;
        }
        self.build(&switch, request, &pending);
        let frame = core::mem::take(&mut self.frame);
        if let Err(pending) = self.ud.start(now, request, switch.port, &frame, pending, out) {
            end(pending, Err(Failure::QueueFull), out);
        }
        self.frame = frame;
    }

    fn build(&mut self, switch: &ud::Peer, request: RequestId, pending: &Pending) {
        let body = match &pending.kind {
            Kind::Read { addr, buf } => Body::RegionRead { addr: *addr, len: len32(buf), data: &[] },
            Kind::Write { addr, buf } => Body::RegionWrite { addr: *addr, len: len32(buf), data: buf },
            Kind::Traverse(walk) => Body::Traverse(message::Traverse {
                program: walk.program.hash(),
                cur_ptr: walk.cur_ptr,
                iterations: walk.iterations,
                limit: walk.limit,
                scratch: &walk.scratch,
                code: if walk.with_code { walk.program.encoded() } else { &[] },
            }),
        };
        let message = Message { header: Header::request(request, self.hops_max), body };
        let bth = Bth::new(Opcode::UdSendOnly, switch.endpoint.qpn, Psn::new(self.counter));
        let ext = Extension::Deth(Deth { qkey: switch.endpoint.qkey, src_qp: self.home });
        self.frame.clear();
        Packet::emit_with(&bth, &ext, message.len(), &mut self.frame, |bytes| message.emit(bytes));
    }

    /// Takes the payload of a datagram that showed the host's key.
    pub(crate) fn answer(&mut self, now: Instant, payload: &[u8], out: &mut Out) {
        let message = match Message::parse(payload) {
            Ok(message) => message,
            Err(error) => return out.note(Note::Malformed(error)),
        };
        let Some(pending) = self.ud.get_mut(message.header.request) else {
            return out.note(Note::LateAnswer);
        };
        if !message.header.response || !fits(&pending.kind, &message) {
            return out.note(Note::WrongAnswer);
        }
        let Some(mut pending) = self.ud.finish(message.header.request) else {
            unreachable!("the request was outstanding a moment ago");
        };
        let status = message.header.status;
        match (&mut pending.kind, message.body) {
            (Kind::Read { buf, .. }, Body::RegionRead { addr, data, .. }) => {
                if status == Status::Ok {
                    buf.copy_from_slice(data);
                }
                end(pending, region_result(status, addr), out);
            }
            (Kind::Write { .. }, Body::RegionWrite { addr, .. }) => {
                end(pending, region_result(status, addr), out)
            }
            (Kind::Traverse(walk), Body::Traverse(state)) => {
                let progress = state.iterations > walk.iterations || state.cur_ptr != walk.cur_ptr;
                walk.cur_ptr = state.cur_ptr;
                walk.iterations = state.iterations;
                walk.scratch.copy_from_slice(state.scratch);
                self.walk_on(now, pending, status, progress, out);
            }
            _ => unreachable!("fits() compared the kinds"),
        }
    }

    /// A traversal came back: it ended, goes on, or failed.
    fn walk_on(&mut self, now: Instant, mut pending: Pending, status: Status, progress: bool, out: &mut Out) {
        let Kind::Traverse(walk) = &mut pending.kind else { unreachable!("called for traversals") };
        let (cur_ptr, iterations, requests) = (walk.cur_ptr, walk.iterations, walk.requests);
        let over = Traversed { returned: status == Status::Ok, cur_ptr, iterations, requests };
        match status {
            Status::Ok => end(pending, Ok(Answer::Traversed(over)), out),
            Status::IterationLimit if iterations >= walk.limit => {
                end(pending, Ok(Answer::Traversed(over)), out)
            }
            Status::IterationLimit | Status::HopLimit if progress && requests < TRAVERSALS_CONTINUED_MAX => {
                walk.with_code = false;
                out.note(Note::Continued(status));
                self.start(now, pending, out);
            }
            Status::IterationLimit | Status::HopLimit => {
                end(pending, Err(Failure::Stalled { addr: cur_ptr }), out)
            }
            Status::UnknownProgram if !walk.with_code => {
                walk.with_code = true;
                out.note(Note::SentCode);
                self.start(now, pending, out);
            }
            _ => end(pending, Err(Failure::Refused { status, addr: cur_ptr }), out),
        }
    }

    pub(crate) fn wake(&mut self, now: Instant, out: &mut Out) {
        while let Some(Expired { context, .. }) = self.ud.on_wake(now, out) {
            out.note(Note::GivenUp);
            end(context, Err(Failure::NoAnswer), out);
        }
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.ud.next_wake()
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.ud.len()
    }

    pub(crate) fn check(&self) {
        self.ud.check();
    }
}

/// True when the answer has the kind and the lengths that its request asked for.
fn fits(kind: &Kind, message: &Message<'_>) -> bool {
    match (kind, &message.body) {
        (Kind::Read { buf, .. }, Body::RegionRead { data, .. }) => {
            message.header.status != Status::Ok || data.len() == buf.len()
        }
        (Kind::Write { .. }, Body::RegionWrite { .. }) => true,
        (Kind::Traverse(walk), Body::Traverse(state)) => {
            state.program == walk.program.hash()
                && state.scratch.len() == walk.scratch.len()
                && state.iterations >= walk.iterations
        }
        _ => false,
    }
}

fn region_result(status: Status, addr: VirtAddr) -> Result<Answer, Failure> {
    match status {
        Status::Ok => Ok(Answer::Done { old: 0 }),
        _ => Err(Failure::Refused { status, addr }),
    }
}

fn end(pending: Pending, result: Result<Answer, Failure>, out: &mut Out) {
    let buf = match pending.kind {
        Kind::Read { buf, .. } | Kind::Write { buf, .. } => buf,
        Kind::Traverse(walk) => walk.scratch,
    };
    out.local(Done { ticket: pending.ticket, result, buf });
}

fn len32(buf: &[u8]) -> u32 {
    u32::try_from(buf.len()).unwrap_or(u32::MAX)
}
