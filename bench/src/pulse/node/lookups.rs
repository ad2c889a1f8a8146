//! Look-ups at a memory node: request frames in, reply frames out.

use super::structures::{Btree, Hash, Query, Range};
use super::{Chance, Measured, Subject, cpu_time};
use farmem_link::{Compiler, MappedStore};
use farmem_machine::{Action, Event, Instant, Machine as _, Outbox, Port};
use farmem_memnode::{BURST, Budget, Config, MemNode, Note, Out};
use farmem_transport::ud;
use farmem_traversal::Program;
use farmem_wire::message::{self as wire, Pair, Traverse, Update, Updates};
use farmem_wire::{
    Body, Bth, Deth, Domain, Extension, Gid, Header, HostId, Message, Opcode, Packet, Perm, Pmtu, Psn, Qkey,
    Qpn, RequestId, Status, VirtAddr,
};
use std::time::Duration;

pub(super) const HASH_FIND: &str = include_str!("../../../../testdata/programs/hash_find.pulse");
pub(super) const BTREE_FIND: &str = include_str!("../../../../testdata/programs/btree_find.pulse");
/// The B+tree look-up with RANK in place of four halvings.
const BTREE_FIND_RANK: &str = include_str!("../../../../testdata/programs/btree_find_rank.pulse");

/// Look-ups between two clock readings.
const BATCH: usize = 512;

const HOST: HostId = HostId(3);
const DOMAIN: Domain = Domain(7);
const ENDPOINT: ud::Endpoint = ud::Endpoint { qpn: Qpn::new(0x500), qkey: Qkey(0x5eed_0001) };

type Node = MemNode<MappedStore, Compiler>;

/// The parameters of a look-up measurement.
#[derive(Clone, Copy)]
pub(super) struct How {
    /// Look-ups per measurement.
    pub(super) count: usize,
    /// Look-ups before the node is woken.
    pub(super) at_once: usize,
    /// Look-ups per frame.
    pub(super) pairs: usize,
    /// Windows prefetched together.
    pub(super) burst: usize,
    /// The node's compiler.
    pub(super) compiler: fn() -> Compiler,
}

impl How {
    /// The parameters of a real link and node; for about a tenth of a second.
    pub(super) const USUAL: Self =
        Self { count: 1 << 18, at_once: 64, pairs: 1, burst: BURST, compiler: Compiler::jit_at_once };
    /// The parameters for look-ups that take several times as long.
    pub(super) const FEW: Self = Self { count: 1 << 15, ..Self::USUAL };
}

/// A structure in a store, and its look-up program.
pub(super) struct Lookups<'a> {
    program: Program,
    ranges: [Range; 8],
    make: Box<dyn Fn(&mut Chance) -> Query + 'a>,
    /// The scratch-pad word for the found flag.
    found: usize,
    value: usize,
    /// True when hops are counted instead of look-ups.
    hops: bool,
    /// True when the structure is in the small store.
    small: bool,
}

impl<'a> Lookups<'a> {
    /// Creates look-ups of keys among the first `depth` of their chains.
    pub(super) fn hash(hash: &'a Hash, depth: u64) -> Self {
        let make = Box::new(move |chance: &mut Chance| hash.query(depth, chance));
        Self::new(HASH_FIND, hash.layout.ranges(), make, [0, 2], true)
    }

    pub(super) fn btree(btree: &'a Btree) -> Self {
        let make = Box::new(|chance: &mut Chance| btree.query(chance));
        Self::new(BTREE_FIND, btree.layout.ranges(), make, [1, 2], false)
    }

    pub(super) fn btree_rank(btree: &'a Btree) -> Self {
        let make = Box::new(|chance: &mut Chance| btree.query(chance));
        Self::new(BTREE_FIND_RANK, btree.layout.ranges(), make, [1, 2], false)
    }

    fn new(
        text: &str,
        ranges: [Range; 8],
        make: Box<dyn Fn(&mut Chance) -> Query + 'a>,
        [found, value]: [usize; 2],
        hops: bool,
    ) -> Self {
        let program = Program::assemble(text).expect("assembles");
        Self { program, ranges, make, found, value, hops, small: false }
    }

    pub(super) fn in_small(self) -> Self {
        Self { small: true, ..self }
    }

    /// Measures the node from the first request to the last reply. Answers are checked outside the timed
    /// section.
    pub(super) fn measure(&self, how: How, subject: &mut Subject, chance: &mut Chance) -> Measured {
        let store = if self.small { &mut subject.small } else { &mut subject.large };
        let mut node = self.node(store.take().expect("it was given back"), how);
        let mut out = Outbox::new();
        let mut measured = Measured { units: 0, time: Duration::ZERO };
        let mut batch = Batch::default();
        for n in 0..=how.count / BATCH {
            // The first batch brings the program, and is not counted.
            self.ask(&mut batch, chance, n == 0, how.pairs);
            let start = cpu_time();
            for frames in batch.frames.chunks((how.at_once / how.pairs).max(1)) {
                for (start, end) in frames {
                    let bytes = &batch.bytes[*start..*end];
                    node.handle(Instant::ZERO, Event::Frame { port: Port::SWITCH, bytes }, &mut out);
                }
                while node.next_wake().is_some() {
                    node.handle(Instant::ZERO, Event::Wake, &mut out);
                }
            }
            let time = cpu_time() - start;
            let units = self.check(&batch.queries, &mut out);
            if n > 0 {
                measured.time += time;
                measured.units += units;
            }
        }
        *store = Some(node.into_store());
        measured
    }

    fn ask(&self, batch: &mut Batch, chance: &mut Chance, with_code: bool, pairs: usize) {
        let Batch { queries, bytes, frames } = batch;
        queries.clear();
        bytes.clear();
        frames.clear();
        let code = if with_code { self.program.encoded() } else { &[] };
        for first in (0..BATCH).step_by(pairs) {
            let mut together = Vec::new();
            let id = |n: usize| RequestId::new(HOST, 1, u32::try_from(n).expect("a batch is short"));
            let header = Header { domain: DOMAIN, origin: HOST, ..Header::request(id(first), 1) };
            let start = bytes.len();
            for n in first..first + pairs {
                let query = (self.make)(chance);
                let mut scratch = vec![0; self.program.scratch_len()];
                scratch[..8].copy_from_slice(&query.wanted[0].to_le_bytes());
                scratch[8..16].copy_from_slice(&query.wanted[1].to_le_bytes());
                let (program, cur_ptr) = (self.program.hash(), VirtAddr(query.cur_ptr));
                let traverse =
                    Traverse { program, cur_ptr, iterations: 0, limit: 4096, scratch: &scratch, code };
                if pairs == 1 {
                    datagram(&Message { header, body: Body::Traverse(traverse) }, bytes);
                } else {
                    Pair::of(id(n), Status::Ok, &traverse).emit(&mut together);
                }
                queries.push(query);
            }
            if pairs > 1 {
                let count = u16::try_from(pairs).expect("few");
                let body = wire::Batch::new(&header, self.program.hash(), code, count, &together);
                datagram(&Message { header, body: Body::Batch(body.expect("it fits")) }, bytes);
            }
            frames.push((start, bytes.len()));
        }
    }

    /// Checks every answer. Returns the counted units.
    fn check(&self, queries: &[Query], out: &mut Outbox<Out, Note>) -> u64 {
        let (mut answers, mut hops) = (0, 0);
        out.drain(|action| {
            let Action::Send { frame, .. } = action else { return };
            let message = Message::parse(Packet::parse(frame).expect("a packet").payload).expect("a message");
            let mut one = |counter: u32, status, answer: &Traverse<'_>| {
                let query = &queries[counter as usize];
                assert_eq!((status, answer.iterations), (Status::Ok, query.iterations));
                let word = |n: usize| u64::from_le_bytes(answer.scratch.as_chunks().0[n]);
                assert_eq!((word(self.found), word(self.value)), (1, query.value), "the key was found");
                answers += 1;
                hops += u64::from(answer.iterations);
            };
            match message.body {
                Body::Traverse(answer) => {
                    one(message.header.request.counter(), message.header.status, &answer)
                }
                Body::Batch(batch) => {
                    batch.pairs().for_each(|pair| one(pair.counter, pair.status, &batch.traverse(&pair)));
                }
                other => panic!("a traversal's answer, not {other:?}"),
            }
        });
        assert_eq!(answers, queries.len() as u64, "every request is answered");
        if self.hops { hops } else { answers }
    }

    /// Creates a node over the store, with the switch, a host and permission to read everything.
    fn node(&self, store: MappedStore, how: How) -> Node {
        let control = ud::Peer { port: Port::CONTROL, endpoint: ENDPOINT };
        let home = ud::RoleEndpoints { endpoint: ENDPOINT, control };
        let budget = Budget { burst: how.burst, ..Budget::default() };
        let config = Config { home, pmtu: Pmtu::B4096, budget };
        let mut node = MemNode::compiling(config, store, (how.compiler)());
        let peer = |port: Port| Update::Peer {
            port: port.0,
            gid: Gid::default(),
            qpn: ENDPOINT.qpn,
            qkey: ENDPOINT.qkey,
        };
        let mut rows = Vec::new();
        let mut count = 0;
        let mut say = |update: Update| {
            update.emit(&mut rows);
            count += 1;
        };
        say(peer(Port::SWITCH));
        say(peer(Port::host(HOST.0)));
        for Range { base, len, offset } in self.ranges {
            say(Update::Range { base: VirtAddr(base), len, offset });
            let base = VirtAddr(base);
            say(Update::Protect { domain: DOMAIN, base, len, perm: Perm::Read, vma_log2: 64 });
        }
        let batch = Updates::request(1, count, &rows).expect("they fit");
        let message = Message { header: Header::request(RequestId(1), 0), body: Body::Update(batch) };
        let (mut frame, mut out) = (Vec::new(), Outbox::new());
        datagram(&message, &mut frame);
        node.handle(Instant::ZERO, Event::Frame { port: Port::CONTROL, bytes: &frame }, &mut out);
        assert_eq!(node.stats().updates, u64::from(count), "all of them were accepted");
        node
    }
}

/// Requests, with consecutive frames as in a link's memory.
#[derive(Default)]
struct Batch {
    queries: Vec<Query>,
    bytes: Vec<u8>,
    frames: Vec<(usize, usize)>,
}

fn datagram(message: &Message<'_>, out: &mut Vec<u8>) {
    let bth = Bth::new(Opcode::UdSendOnly, ENDPOINT.qpn, Psn::new(0));
    let ext = Extension::Deth(Deth { qkey: ENDPOINT.qkey, src_qp: Qpn::new(0x77) });
    Packet::emit_with(&bth, &ext, message.len(), out, |bytes| message.emit(bytes));
}
