//! What a hop costs at a memory node, beside what it costs in the engine alone, on one core.
//!
//! `cargo run --release -p farmem-io --example node_hops -- [--gib N] [--rounds N]`
//!
//! Chains of 64 nodes lie scattered in a store far larger than the caches. Traversals that sum a chain come in bursts, as a driver
//! hands them over: all frames, then one wake-up. Counted is CPU time of the node's thread from the first frame to the last answer,
//! parsing and answering included, over all hops. Beside it the engine's executor does the same sums without a node. Rounds take
//! turns; medians are reported, and ratios are of the same round. Answers are checked outside of the clock.
#![expect(clippy::print_stdout, reason = "a report for people")]
#![expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a 64-bit machine")]

use farmem_engine::yardstick::{Row, cpu_time};
use farmem_engine::{Compiled, Executor, Jit, Range, Ranges, Visit};
use farmem_io::{Compiler, MappedStore};
use farmem_machine::{Action, Event, Instant, Machine as _, Outbox, Port};
use farmem_memnode::{Budget, Config, MemNode, Note, Store as _, WORKSPACES};
use farmem_transport::{PeerChange, ud};
use farmem_traversal::Program;
use farmem_wire::message::{Traverse, Update, Updates};
use farmem_wire::{
    Body, Bth, Deth, Domain, Extension, Gid, Header, HostId, Message, Opcode, Packet, Perm, Pmtu, Psn, Qkey,
    Qpn, RequestId, Status, VirtAddr,
};
use std::io;
use std::time::Duration;

const CHAIN: u64 = 64;
const NODE_LEN: u64 = 64;
const BASE: u64 = 1 << 40;
const HOST: HostId = HostId(3);
const DOMAIN: Domain = Domain(7);
const ENDPOINT: ud::Endpoint = ud::Endpoint { qpn: Qpn::new(0x500), qkey: Qkey(0x5eed_0001) };
/// Traversals in one measurement.
const SUMS: usize = 2048;

/// Where the nodes of all chains lie: a bijection that looks like chance.
#[derive(Clone, Copy)]
struct Layout {
    bits: u32,
}

impl Layout {
    const fn nodes(self) -> u64 {
        1 << self.bits
    }

    const fn place(self, number: u64) -> u64 {
        let (mask, half) = (self.nodes() - 1, self.bits / 2);
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
        let mixed = (mixed ^ mixed >> half).wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask;
        (mixed ^ mixed >> half) * NODE_LEN
    }

    fn fill(self, store: &mut MappedStore) {
        for number in 0..self.nodes() {
            let last = number % CHAIN == CHAIN - 1;
            let next = if last { 0 } else { BASE + self.place(number + 1) };
            let mut node = [0; 16];
            node[..8].copy_from_slice(&number.to_le_bytes());
            node[8..].copy_from_slice(&next.to_le_bytes());
            store.write(self.place(number), &node);
        }
    }

    fn head(self, chain: u64) -> VirtAddr {
        VirtAddr(BASE + self.place(chain * CHAIN))
    }
}

/// The numbers of a chain's nodes, added up.
const fn sum(chain: u64) -> u64 {
    chain * CHAIN * CHAIN + CHAIN * (CHAIN - 1) / 2
}

/// Chains to sum, drawn anew each round.
struct Draw(u64);

impl Draw {
    fn chains(&mut self, of: u64) -> Vec<u64> {
        let mut next = || {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            self.0 >> 24
        };
        (0..SUMS).map(|_| next() % of).collect()
    }
}

/// The engine alone: as many visits at once as a burst has.
fn executor(
    store: &MappedStore,
    layout: Layout,
    compiled: &Compiled,
    chains: &[u64],
    burst: usize,
) -> Duration {
    let range = Range { base: BASE, len: store.len(), offset: 0 };
    let ranges = Ranges::new(&[range]).expect("one range");
    let mut states: Vec<_> = chains.iter().map(|&chain| (layout.head(chain), [0; 16])).collect();
    let executor = Executor::new(WORKSPACES);
    let bytes = store.window(0, u32::try_from(store.len()).expect("a store of less than 4 GiB"));
    let start = cpu_time();
    for states in states.chunks_mut(burst) {
        let visits = states.iter_mut().map(|(cur_ptr, scratch)| Visit {
            program: compiled,
            ranges: &ranges,
            cur_ptr,
            scratch,
            limit: 4096,
        });
        executor.run(bytes, visits, |_, outcome| assert_eq!(u64::from(outcome.iterations), CHAIN));
    }
    let time = cpu_time() - start;
    for ((_, scratch), chain) in states.iter().zip(chains) {
        assert_eq!(scratch[..8], sum(*chain).to_le_bytes());
    }
    time
}

type Node = MemNode<MappedStore, Compiler>;

fn datagram(message: &Message<'_>) -> Vec<u8> {
    let bth = Bth::new(Opcode::UdSendOnly, ENDPOINT.qpn, Psn::new(0));
    let ext = Extension::Deth(Deth { qkey: ENDPOINT.qkey, src_qp: Qpn::new(0x77) });
    let mut frame = Vec::new();
    Packet::emit_with(&bth, &ext, message.len(), &mut frame, |bytes| message.emit(bytes));
    frame
}

/// A node over the store, with the switch, a host and its leave to read everything.
fn node(store: MappedStore, compiler: Compiler, workspaces: usize) -> Node {
    let control = ud::Peer { port: Port::CONTROL, endpoint: ENDPOINT };
    let len = store.len();
    let home = ud::Home { endpoint: ENDPOINT, control };
    let config = Config { home, pmtu: Pmtu::B4096, budget: Budget { workspaces, ..Budget::default() } };
    let mut node = MemNode::compiling(config, store, compiler);
    let peer = |port: Port| Update::Peer {
        port: port.0,
        gid: Gid::default(),
        qpn: ENDPOINT.qpn,
        qkey: ENDPOINT.qkey,
    };
    let updates = [
        peer(Port::SWITCH),
        peer(Port::host(HOST.0)),
        Update::Range { base: VirtAddr(BASE), len, offset: 0 },
        Update::Protect { domain: DOMAIN, base: VirtAddr(BASE), len, perm: Perm::Read, vma_log2: 64 },
    ];
    let mut rows = Vec::new();
    updates.iter().for_each(|update| update.emit(&mut rows));
    let batch = Updates::request(1, updates.len() as u16, &rows).expect("they fit");
    let message = Message { header: Header::request(RequestId(1), 0), body: Body::Update(batch) };
    let mut out = Outbox::new();
    node.handle(Instant::ZERO, Event::Frame { port: Port::CONTROL, bytes: &datagram(&message) }, &mut out);
    assert_eq!(node.stats().updates, updates.len() as u64);
    node
}

/// The node: bursts of frames, a wake-up behind each.
fn serve(node: &mut Node, layout: Layout, program: &Program, chains: &[u64], burst: usize) -> Duration {
    let request = |(n, chain): (u32, &u64)| {
        let id = RequestId::new(HOST, 1, n);
        let header = Header { domain: DOMAIN, origin: HOST, ..Header::request(id, 1) };
        let traverse = Traverse {
            program: program.hash(),
            cur_ptr: layout.head(*chain),
            iterations: 0,
            limit: 4096,
            scratch: &[0; 16],
            code: program.encoded(),
        };
        datagram(&Message { header, body: Body::Traverse(traverse) })
    };
    let frames: Vec<_> = (0..).zip(chains).map(request).collect();
    let mut out: Outbox<PeerChange, Note> = Outbox::new();
    let start = cpu_time();
    for frames in frames.chunks(burst) {
        for frame in frames {
            node.handle(Instant::ZERO, Event::Frame { port: Port::SWITCH, bytes: frame }, &mut out);
        }
        while node.next_wake().is_some() {
            node.handle(Instant::ZERO, Event::Wake, &mut out);
        }
    }
    let time = cpu_time() - start;
    let mut answered = 0;
    out.drain(|action| {
        let Action::Send { frame, .. } = action else { return };
        let message = Message::parse(Packet::parse(frame).expect("a packet").payload).expect("a message");
        let Body::Traverse(traverse) = message.body else { panic!("a traversal's answer") };
        let number = message.header.request.0 as u32 as usize;
        assert_eq!(
            (message.header.status, &traverse.scratch[..8]),
            (Status::Ok, &sum(chains[number]).to_le_bytes()[..])
        );
        answered += 1;
    });
    assert_eq!(answered, chains.len(), "every traversal is answered");
    time
}

fn options() -> (f64, usize) {
    let (mut gib, mut rounds) = (1.0, 7);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|n| n.parse::<f64>().ok());
        match arg.as_str() {
            "--gib" => gib = number().unwrap_or(gib),
            "--rounds" => rounds = number().map_or(rounds, |n| n as usize),
            _ => {}
        }
    }
    (gib, rounds)
}

fn main() -> io::Result<()> {
    let (gib, rounds) = options();
    let len = 1_u64 << ((gib * f64::from(1 << 30)) as u64).max(1 << 20).ilog2();
    let layout = Layout { bits: (len / NODE_LEN).ilog2() };
    let program =
        Program::assemble(include_str!("../../../testdata/programs/list_sum.pulse")).expect("assembles");
    let compiled = Jit::new(1).expect("a compiler").compile(&program).expect("compiles");
    let filled = || {
        let mut store = MappedStore::new(len)?;
        layout.fill(&mut store);
        io::Result::Ok(store)
    };
    let alone = filled()?;
    let mut nodes = [
        ("node.jit", node(filled()?, Compiler::jit(), WORKSPACES)),
        ("node.jit.one_workspace", node(filled()?, Compiler::jit(), 1)),
        ("node.interpreter", node(filled()?, Compiler::interpreter(), WORKSPACES)),
    ];
    let mut draw = Draw(0x5eed);
    let mut rows: Vec<Row> = Vec::new();
    for round in 0..=rounds {
        let mut say = |name: String, time: Duration| {
            let rate = SUMS as f64 * CHAIN as f64 / time.as_secs_f64() / 1e6;
            match rows.iter_mut().find(|row| row.name == name) {
                // The first round warms up.
                None => rows.push(Row { name, millions_per_s: Vec::new() }),
                Some(row) if round > 0 => row.millions_per_s.push(rate),
                Some(_) => {}
            }
        };
        for burst in [1, 8, 32, 256] {
            let chains = draw.chains(layout.nodes() / CHAIN);
            say(format!("executor.burst{burst}"), executor(&alone, layout, &compiled, &chains, burst));
            for (name, node) in &mut nodes {
                say(format!("{name}.burst{burst}"), serve(node, layout, &program, &chains, burst));
            }
        }
    }
    println!("{:40} {:>9} {:>9} {:>12}", "", "M hops/s", "ns/hop", "of executor");
    for row in &rows {
        let burst = row.name.rsplit('.').next().expect("a name ends in its burst");
        let raw =
            rows.iter().find(|raw| raw.name == format!("executor.{burst}")).expect("each burst has one");
        println!("{:40} {:9.2} {:9.1} {:12.2}", row.name, row.p50(), 1e3 / row.p50(), row.times(raw));
    }
    Ok(())
}
