//! READs of a memory node while a domain sends it 200 new programs per second, and the compiler is busy with
//! the first of them.

use super::*;
use farmem_machine::{Action, Event, Instant, Machine as _, Outbox, Port};
use farmem_memnode::{Budget, Config, MemNode, Note, Store as _, VecStore};
use farmem_transport::ud;
use farmem_wire::message::{Kind, Traverse, Update, Updates};
use farmem_wire::{
    Body, Bth, Deth, Domain, Extension, Gid, Header, HostId, Message, Opcode, Packet, Perm, Pmtu, Psn, Qkey,
    Qpn, RequestId, Reth, Rkey, Status,
};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

const BASE: VirtAddr = VirtAddr(0x1000_0000);
const LEN: u32 = 0x1000;
const WORD: &[u8] = b"far word";
const DOMAIN: Domain = Domain(7);
const HOST: HostId = HostId(3);
const NODE_QPN: Qpn = Qpn::new(0x100);
const RKEY: Rkey = Rkey(0x5eed);
const ENDPOINT: ud::Endpoint = ud::Endpoint { qpn: Qpn::new(0x500), qkey: Qkey(0x5eed_0001) };
/// Number of programs in one second.
const PROGRAMS: u32 = 200;
/// Number of requests per program, each with `LIMIT` iterations: enough to compile the program, and more than
/// the node executes in a turn.
const AT_ONCE: u32 = 8;
const LIMIT: u32 = 2 * HOT;
/// Time after which a waiting test counts as stuck.
const STUCK: Duration = Duration::from_secs(60);

/// A [`Compiler`] whose programs the test can inspect.
struct Watched(Compiler, Sender<Arc<Tier>>);

impl Compile for Watched {
    type Logic = Running;

    fn compile(&mut self, program: &Program) -> Running {
        let running = self.0.compile(program);
        if let Form::Tiered(tier) = &running.0 {
            self.1.send(Arc::clone(tier)).expect("the test listens");
        }
        running
    }
}

/// A node that a loop drives: one frame, then one turn.
struct Node {
    role: MemNode<VecStore, Watched>,
    out: Outbox<farmem_memnode::Out, Note>,
    now: Instant,
    psn: u32,
}

impl Node {
    fn new(compiler: Watched) -> Self {
        let control = ud::Peer { port: Port::CONTROL, endpoint: ENDPOINT };
        let home = ud::RoleEndpoints { endpoint: ENDPOINT, control };
        let config = Config { home, pmtu: Pmtu::B1024, budget: Budget::default() };
        let mut store = VecStore::new(LEN as usize);
        store.write(0, WORD);
        let role = MemNode::compiling(config, store, compiler);
        let mut node = Self { role, out: Outbox::new(), now: Instant::ZERO, psn: 0 };
        let (domain, len) = (DOMAIN, u64::from(LEN));
        let peer = |port: Port| Update::Peer {
            port: port.0,
            gid: Gid::default(),
            qpn: ENDPOINT.qpn,
            qkey: ENDPOINT.qkey,
        };
        let updates = [
            peer(Port::SWITCH),
            peer(Port::host(HOST.0)),
            Update::Range { base: BASE, len, offset: 0 },
            Update::Protect { domain, base: BASE, len, perm: Perm::Read, vma_log2: 64 },
            Update::QueuePair {
                qpn: NODE_QPN,
                peer_qpn: Qpn::new(0x900),
                peer_port: Port::host(HOST.0).0,
                expected_psn: Psn::new(0),
                rkey: RKEY,
                domain,
                pmtu: Pmtu::B1024,
            },
        ];
        let mut rows = Vec::new();
        updates.iter().for_each(|update| update.emit(&mut rows));
        let batch = Updates::request(1, 5, &rows).expect("they fit");
        let header = Header::request(RequestId(1), 0);
        node.hear(Port::CONTROL, &datagram(&Message { header, body: Body::Update(batch) }));
        assert_eq!(node.took().1, [Note::Updated]);
        node
    }

    fn hear(&mut self, port: Port, bytes: &[u8]) {
        self.role.handle(self.now, Event::Frame { port, bytes }, &mut self.out);
    }

    /// Returns frames sent and notes made since the last call.
    fn took(&mut self) -> (Vec<Vec<u8>>, Vec<Note>) {
        let (mut sent, mut notes) = (Vec::new(), Vec::new());
        self.out.drain(|action| match action {
            Action::Send { frame, .. } => sent.push(frame.to_vec()),
            Action::Note(note) => notes.push(note),
            Action::Local(_) => {}
        });
        (sent, notes)
    }

    /// Sends a READ of a word, and checks that the same turn answers it.
    fn read(&mut self) {
        let bth = Bth { ack_req: true, ..Bth::new(Opcode::ReadRequest, NODE_QPN, Psn::new(self.psn)) };
        let ext = Extension::Reth(Reth { va: BASE, rkey: RKEY, dma_len: 8 });
        let mut frame = Vec::new();
        Packet { bth, ext, payload: &[] }.emit(&mut frame);
        self.psn += 1;
        self.hear(Port::host(HOST.0), &frame);
        let (sent, notes) = self.took();
        let [answer] = &sent[..] else { panic!("one answer, not {sent:?}: {notes:?}") };
        let packet = Packet::parse(answer).expect("a packet");
        assert_eq!((packet.bth.opcode, packet.payload), (Opcode::ReadResponseOnly, WORD));
    }

    /// Runs a new program in a loop, with a READ between each two turns of the node. Returns the number of
    /// READs.
    fn program(&mut self, number: u32) -> u32 {
        self.now = Instant::from_nanos(u64::from(number) * 1_000_000_000 / u64::from(PROGRAMS));
        let text = format!(".window 8\n.scratch 8\n mov r2, {number}\n st8 scratch[0], r2\n next r1");
        let program = Program::assemble(&text).expect("it assembles");
        let traverse = Traverse {
            program: program.hash(),
            cur_ptr: BASE,
            iterations: 0,
            limit: LIMIT,
            scratch: &[0; 8],
            code: program.encoded(),
        };
        for nth in 0..AT_ONCE {
            let id = RequestId::new(HOST, 1, number * AT_ONCE + nth);
            let header = Header { domain: DOMAIN, origin: HOST, ..Header::request(id, 4) };
            self.hear(Port::SWITCH, &datagram(&Message { header, body: Body::Traverse(traverse) }));
        }
        let (_, mut notes) = self.took();
        assert!(notes.contains(&Note::ProgramLearned), "{notes:?}");
        let mut reads = 0;
        while self.role.next_wake().is_some() {
            self.read();
            reads += 1;
            self.role.handle(self.now, Event::Wake, &mut self.out);
            self.role.check();
            notes = self.took().1;
        }
        assert_eq!(notes.last(), Some(&Note::Answered(Kind::Traverse, Status::IterationLimit)));
        reads
    }
}

fn datagram(message: &Message<'_>) -> Vec<u8> {
    let bth = Bth::new(Opcode::UdSendOnly, ENDPOINT.qpn, Psn::new(0));
    let ext = Extension::Deth(Deth { qkey: ENDPOINT.qkey, src_qp: Qpn::new(0x77) });
    let mut frame = Vec::new();
    Packet::emit_with(&bth, &ext, message.len(), &mut frame, |bytes| message.emit(bytes));
    frame
}

/// A domain sends a node 200 new programs in a second. Each runs long enough to be compiled, but the compiler
/// does not finish the first. Between each two turns of the node's loop there is a READ. All READs are
/// answered, and so are all traversals, interpreted; the loop never waits for the compiler. When the compiler
/// continues, the queued programs are compiled.
#[test]
fn no_read_waits_for_the_compiler() {
    let compiler = Compiler::jit();
    let Backend::Machine { jit, .. } = &compiler.0 else { panic!("this machine has a compiler") };
    let jit = Arc::clone(jit);
    let busy = jit.lock().expect("no other thread has it");
    let ((tiers, learned), (said, heard)) = (channel(), channel());
    let node = thread::spawn(move || {
        let mut node = Node::new(Watched(compiler, tiers));
        (1..=PROGRAMS).for_each(|number| said.send(node.program(number)).expect("the test listens"));
        node
    });
    let mut reads = 0;
    for number in 1..=PROGRAMS {
        let more = heard.recv_timeout(STUCK);
        reads += more.unwrap_or_else(|why| panic!("program {number}: {why}, after {reads} READs"));
    }
    let node = node.join().expect("the node goes on");
    let tiers: Vec<_> = learned.try_iter().collect();
    assert_eq!(tiers.len(), PROGRAMS as usize);
    assert!(reads >= 3 * PROGRAMS, "some between each two programs: {reads}");
    assert!(tiers.iter().all(|tier| tier.code.get().is_none()), "interpreted, all of them");
    let asked = tiers.iter().filter(|tier| tier.iterations.load(Relaxed) == HOT).count();
    assert!(asked >= WAITING_MAX, "as many as may wait for the compiler: {asked}");
    drop(busy);
    while tiers.iter().filter(|tier| tier.code.get().is_some()).count() < asked {
        thread::yield_now();
    }
    drop(node);
}
