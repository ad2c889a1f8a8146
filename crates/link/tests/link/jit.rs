//! Three memory nodes are equivalent: one that compiles programs, one that interprets them, and one that does
//! the latter first. For the same input frames, all send identical frames, and leave identical bytes in
//! memory.

#[path = "../../../traversal/tests/generator/mod.rs"]
mod generator;

use farmem_link::{Compiler, MappedStore};
use farmem_machine::{Action, Event, Instant, Machine as _, Outbox, Port};
use farmem_memnode::{Budget, Config, DropReason, MemNode, Note, Out, Store as _};
use farmem_transport::ud;
use farmem_traversal::Program;
use farmem_wire::message::{Traverse, Update, Updates};
use farmem_wire::{
    Body, Bth, Deth, Domain, Extension, Gid, Header, HostId, Message, Opcode, Packet, Perm, Pmtu, Psn, Qkey,
    Qpn, RequestId, Status, VirtAddr,
};
use generator::{memory, program, storing_program};
use proptest::prelude::*;

const BASE: u64 = 0x1000_0000;
/// Size of the store in bytes: two ranges of half of it each, with a gap of addresses between them.
const LEN: u64 = 0x2000;
const GAP: u64 = 0x1000;
const DOMAIN: Domain = Domain(7);
const HOST: HostId = HostId(3);

const HOME: ud::RoleEndpoints = ud::RoleEndpoints {
    endpoint: ud::Endpoint { qpn: Qpn::new(0x500), qkey: Qkey(0x5eed_0001) },
    control: ud::Peer {
        port: Port::CONTROL,
        endpoint: ud::Endpoint { qpn: Qpn::new(0x600), qkey: Qkey(0x5eed_0002) },
    },
};

/// Frames sent, in order, and notes.
type Heard = (Vec<(Port, Vec<u8>)>, Vec<Note>);

struct Node {
    role: MemNode<MappedStore, Compiler>,
    out: Outbox<Out, Note>,
}

impl Node {
    /// Creates a node with two ranges. The domain may write the first and half of the second, and read all.
    fn new(compiler: Compiler, bytes: &[u8]) -> Self {
        let mut store = MappedStore::new(LEN).expect("two pages of memory");
        store.write(0, bytes);
        let config = Config { home: HOME, pmtu: Pmtu::B4096, budget: Budget::default() };
        let mut node = Self { role: MemNode::compiling(config, store, compiler), out: Outbox::new() };
        let (half, second) = (LEN / 2, VirtAddr(BASE + LEN / 2 + GAP));
        let protect = |base, len, perm| Update::Protect { domain: DOMAIN, base, len, perm, vma_log2: 64 };
        let updates = [
            peer(Port::SWITCH, 1),
            peer(Port::host(HOST.0), 2),
            Update::Range { base: VirtAddr(BASE), len: half, offset: half },
            Update::Range { base: second, len: half, offset: 0 },
            protect(VirtAddr(BASE), half, Perm::ReadWrite),
            protect(second, half, Perm::Read),
            protect(second, half / 2, Perm::ReadWrite),
        ];
        let mut rows = Vec::new();
        updates.iter().for_each(|update| update.emit(&mut rows));
        let batch = Updates::request(1, updates.len().try_into().expect("few"), &rows).expect("they fit");
        node.hear(
            Port::CONTROL,
            &Message { header: Header::request(RequestId(1), 0), body: Body::Update(batch) },
        );
        let (sent, _) = node.run();
        assert_eq!(status(&sent[0].1), Status::Ok);
        node
    }

    fn hear(&mut self, port: Port, message: &Message<'_>) {
        let frame = datagram(message);
        self.role.handle(Instant::ZERO, Event::Frame { port, bytes: &frame }, &mut self.out);
    }

    /// Wakes the node while it has a wake-up.
    fn run(&mut self) -> Heard {
        while self.role.next_wake().is_some() {
            self.role.handle(Instant::ZERO, Event::Wake, &mut self.out);
            self.role.check();
        }
        let (mut sent, mut notes) = (Vec::new(), Vec::new());
        self.out.drain(|action| match action {
            Action::Send { port, frame } => sent.push((port, frame.to_vec())),
            Action::Note(note) => notes.push(note),
            Action::Local(_) => {}
        });
        (sent, notes)
    }
}

fn peer(port: Port, number: u32) -> Update {
    let octet = u8::try_from(number).expect("small");
    Update::Peer {
        port: port.0,
        gid: Gid::from_v4([10, 0, 0, octet]),
        qpn: Qpn::new(0x1000 + number),
        qkey: Qkey(number),
    }
}

fn datagram(message: &Message<'_>) -> Vec<u8> {
    let to = HOME.endpoint;
    let bth = Bth::new(Opcode::UdSendOnly, to.qpn, Psn::new(0));
    let ext = Extension::Deth(Deth { qkey: to.qkey, src_qp: Qpn::new(0x77) });
    let mut frame = Vec::new();
    Packet::emit_with(&bth, &ext, message.len(), &mut frame, |bytes| message.emit(bytes));
    frame
}

fn status(frame: &[u8]) -> Status {
    let packet = Packet::parse(frame).expect("a node sends packets");
    Message::parse(packet.payload).expect("with messages").header.status
}

/// Returns true if the byte at this offset from the base is in one of the node's ranges.
fn is_here(start: u64) -> bool {
    let half = LEN / 2;
    start < half || (half + GAP..LEN + GAP).contains(&start)
}

/// One request: its program, start, limit, and whether it contains the code.
#[derive(Clone, Debug)]
struct Request {
    program: usize,
    start: u64,
    limit: u32,
    hops: u8,
    with_code: bool,
}

fn request() -> impl Strategy<Value = Request> {
    (any::<usize>(), 0..LEN + 2 * GAP, 0..40_u32, 0..2_u8, prop::bool::weighted(0.8)).prop_map(
        |(program, start, limit, hops, with_code)| Request { program, start, limit, hops, with_code },
    )
}

/// Returns memory with pointers: about every third word is an address in or next to this node's ranges.
fn linked() -> impl Strategy<Value = Vec<u8>> {
    let len = usize::try_from(LEN).expect("small");
    (memory(len), proptest::collection::vec(prop::option::weighted(0.4, 0..LEN + GAP), len / 8)).prop_map(
        |(mut bytes, links)| {
            for (word, link) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(links) {
                if let Some(link) = link {
                    *word = (BASE + link / 8 * 8).to_le_bytes();
                }
            }
            bytes
        },
    )
}

/// Passes the same burst to all nodes, and returns the reactions of each.
fn all_hear(
    nodes: &mut [Node; 3],
    programs: &[Program],
    pads: &[u8],
    requests: &[Request],
    first: u32,
) -> Heard {
    for (n, request) in (first..).zip(requests) {
        let program = &programs[request.program % programs.len()];
        let traverse = Traverse {
            program: program.hash(),
            cur_ptr: VirtAddr(BASE + request.start),
            iterations: 0,
            limit: request.limit,
            scratch: &pads[..program.scratch_len()],
            code: if request.with_code { program.encoded() } else { &[] },
        };
        let id = RequestId::new(HOST, 1, n);
        let header = Header { domain: DOMAIN, origin: HOST, ..Header::request(id, request.hops) };
        for node in &mut *nodes {
            node.hear(Port::SWITCH, &Message { header, body: Body::Traverse(traverse) });
        }
    }
    let [compiled, tiered, interpreted] = nodes.each_mut().map(Node::run);
    assert_eq!((&compiled, &tiered), (&interpreted, &interpreted));
    compiled
}

fn same_bytes(nodes: &[Node; 3]) {
    let [compiled, tiered, interpreted] = nodes.each_ref().map(|node| {
        let mut bytes = Vec::new();
        node.role.store().read(0, u32::try_from(LEN).expect("small"), &mut bytes);
        bytes
    });
    assert_eq!((&compiled, &tiered), (&interpreted, &interpreted));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    /// All nodes agree for random programs, including storing ones, on random memory, in bursts larger than
    /// the number of workspaces.
    #[test]
    fn compiled_and_interpreted_nodes_answer_alike(
        programs in proptest::collection::vec(prop_oneof![3 => program(), 1 => storing_program()], 1..6),
        bytes in linked(),
        pads in memory(farmem_traversal::SCRATCH_LEN_MAX),
        bursts in proptest::collection::vec(proptest::collection::vec(request(), 1..60), 1..4),
    ) {
        let mut nodes = [Compiler::jit_at_once(), Compiler::jit(), Compiler::interpreter()].map(|compiler| Node::new(compiler, &bytes));
        let mut first = 0;
        for burst in &bursts {
            let (sent, notes) = all_hear(&mut nodes, &programs, &pads, burst, first);
            let stays_away = |request: &&Request| {
                programs[request.program % programs.len()].stores() && !is_here(request.start)
            };
            let away = burst.iter().filter(stays_away).count();
            let dropped = notes.iter().filter(|note| **note == Note::Dropped(DropReason::NotHere)).count();
            prop_assert_eq!(dropped, away, "what stores begins where its bytes are (PROTOCOL 7.36)");
            prop_assert_eq!(sent.len() + dropped, burst.len(), "each other one is answered or goes on");
            prop_assert!(!notes.contains(&Note::ProgramInterpreted), "every program compiles");
            same_bytes(&nodes);
            first += u32::try_from(burst.len()).expect("few");
        }
    }
}

/// More traversals than there are workspaces walk a list in one burst. This test ensures that the case which
/// the property tries at random does occur.
#[test]
fn a_list_is_summed_alike() {
    let program =
        Program::assemble(include_str!("../../../../testdata/programs/list_sum.pulse")).expect("assembles");
    let mut bytes = vec![0; usize::try_from(LEN).expect("small")];
    let half = bytes.len() / 2;
    for (word, place) in bytes.as_chunks_mut::<8>().0.iter_mut().zip((0..half as u64).cycle().step_by(8)) {
        // Every word is an address of the first range, so that every node has a next one.
        *word = (BASE + place * 40 % (LEN / 2 - 512) / 8 * 8).to_le_bytes();
    }
    let mut nodes = [Compiler::jit_at_once(), Compiler::jit(), Compiler::interpreter()]
        .map(|compiler| Node::new(compiler, &bytes));
    let request = |n: u64| Request { program: 0, start: n * 8, limit: 1000, hops: 1, with_code: true };
    let requests: Vec<_> = (0..100).map(request).collect();
    let (sent, notes) = all_hear(&mut nodes, &[program], &[0; 256], &requests, 0);
    assert_eq!(sent.len(), 100);
    assert_eq!(notes.iter().filter(|note| **note == Note::ProgramLearned).count(), 1, "compiled once");
    let stats = nodes[0].role.stats();
    assert!(stats.iterations > 10_000, "{stats:?}");
}
