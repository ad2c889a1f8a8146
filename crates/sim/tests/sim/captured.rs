//! Writing requests, captured on their path to the switch and replayed after memory node and switch have both
//! restarted: neither role knows that they were executed, and none executes again (PROTOCOL 6.27). The host's
//! own requests execute once.

use farmem_control::PAGE;
use farmem_control::api::{AcceptLost, Allocate, Call, CreateDomain, OpenSession};
use farmem_host::{Done, HostRequest, Op};
use farmem_machine::Duration;
use farmem_sim::{Layout, Plan, RoleId, World};
use farmem_traversal::Program;
use farmem_wire::{Domain, VirtAddr};

const HOST: RoleId = RoleId::Host(1);
const NODE: RoleId = RoleId::Node(1);
/// Longer than any delay of the network.
const MOMENT: Duration = Duration::from_millis(20);

struct Bench {
    world: World,
    domain: u32,
    base: u64,
    ticket: u64,
    /// Frames from the host to the switch since the last clear.
    captured: Vec<Vec<u8>>,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let layout = Layout { pairs_max: 8, ..Layout::small() };
        let mut world = World::new(layout, Plan::CALM, seed, 0);
        world.bring_up();
        let mut bench = Self { world, domain: 0, base: 0, ticket: 0, captured: vec![] };
        let domain = bench.call(CreateDomain { name: "d".into() }).domain;
        let vma = bench.call(Allocate { domain, size: PAGE, node: Some(1), durable: false });
        (bench.domain, bench.base) = (domain, vma.base);
        bench.call(OpenSession { host: 1, domain });
        bench
    }

    fn call<C: Call>(&mut self, call: C) -> C::Answer {
        self.world.call(HOST, call).expect("granted")
    }

    fn step(&mut self) {
        assert!(self.world.step(), "something happens");
        self.listen();
    }

    /// The attacker records the frames in flight.
    fn listen(&mut self) {
        let (from, to) = (HOST.gid(), RoleId::Switch.gid());
        for (_, in_flight) in self.world.network().on_the_way() {
            let frame = in_flight.frame();
            if (in_flight.from, in_flight.to) == (from, to) && self.captured.iter().all(|had| had != frame) {
                self.captured.push(frame.to_vec());
            }
        }
    }

    /// Runs operations concurrently to their ends.
    fn run(&mut self, ops: Vec<Op>) -> Vec<Done> {
        let count = ops.len();
        for op in ops {
            self.ticket += 1;
            let (ticket, domain) = (self.ticket, Domain(self.domain));
            assert!(self.world.tell_host(1, HostRequest::Submit { ticket, domain, op }), "the host is up");
            self.listen();
        }
        let mut done = Vec::new();
        while done.len() < count {
            self.step();
            done.extend(std::iter::from_fn(|| self.world.take_done()).map(|(_, done)| done));
        }
        assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
        done
    }

    /// Stores the number, in as many words as needed: by region writes, traversals, or traversals that share
    /// a datagram.
    fn store(&mut self, form: RequestForm, number: u64) {
        let addr = |word: u64| VirtAddr(self.base + 64 * word);
        let program = Program::assemble(
            ".stores\n .window 8\n .scratch 8\n ld8 r2, scratch[0]\n st8 window[0], r2\n ret\n",
        );
        let program = program.expect("it assembles");
        let traverse = |word: u64| {
            let scratch = number.to_le_bytes().to_vec();
            Op::Traverse { program: program.clone(), cur_ptr: addr(word), scratch, limit: 4 }
        };
        let ops = match form {
            RequestForm::Write => vec![Op::RegionWrite { addr: addr(0), buf: number.to_le_bytes().to_vec() }],
            RequestForm::Traversal => vec![traverse(0)],
            RequestForm::Batch => (0..3).map(traverse).collect(),
        };
        self.run(ops);
    }

    fn words(&mut self) -> [u64; 3] {
        let word = |word: u64| Op::RegionRead { addr: VirtAddr(self.base + 64 * word), buf: vec![0; 8] };
        let ops = (0..3).map(word).collect();
        let mut done = self.run(ops);
        done.sort_by_key(|done| done.ticket);
        [0, 1, 2].map(|word: usize| u64::from_le_bytes(done[word].buf[..].try_into().expect("a word")))
    }

    /// Crashes and restarts a machine.
    fn restart(&mut self, role_id: RoleId) {
        self.world.crash(role_id);
        self.world.start(role_id);
        while !self.world.is_up(role_id) {
            assert!(self.world.step(), "it starts");
        }
    }

    /// The attacker replays all of them in the host's name.
    fn replay(&mut self, captured: &[Vec<u8>]) {
        for frame in captured {
            let (now, from, to) = (self.world.now(), HOST.gid(), RoleId::Switch.gid());
            self.world.network_mut().send(now, from, to, frame);
        }
        let end = self.world.now() + MOMENT;
        self.world.alarm(end);
        while self.world.now() < end {
            assert!(self.world.step(), "a moment passes");
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RequestForm {
    Write,
    Traversal,
    Batch,
}

/// The host stores 1 and gets an answer; an attacker keeps copies of its frames. Node and switch restart, in
/// either order, and the owner accepts the loss: zeros. The attacker's copies change nothing, before and
/// after the host has stored 2.
#[test]
fn captured_requests_are_not_executed_after_node_and_switch_have_started_again() {
    for form in [RequestForm::Write, RequestForm::Traversal, RequestForm::Batch] {
        for restarts in [[NODE, RoleId::Switch], [RoleId::Switch, NODE]] {
            let mut bench = Bench::new(7);
            bench.captured.clear();
            bench.store(form, 1);
            let captured = std::mem::take(&mut bench.captured);
            assert!(!captured.is_empty(), "{form:?}");
            let count = if form == RequestForm::Batch { 3 } else { 1 };
            let stored = |number: u64| [0, 1, 2].map(|word| if word < count { number } else { 0 });
            assert_eq!(bench.words(), stored(1), "{form:?}");
            restarts.iter().for_each(|&role_id| bench.restart(role_id));
            let (domain, base) = (bench.domain, bench.base);
            bench.call(AcceptLost { domain, base, len: PAGE });
            assert_eq!(bench.words(), [0; 3], "{form:?}: the node has started again");
            bench.replay(&captured);
            assert_eq!(bench.words(), [0; 3], "{form:?}, {restarts:?}: a thief's copy was executed");
            bench.store(form, 2);
            bench.replay(&captured);
            assert_eq!(bench.words(), stored(2), "{form:?}, {restarts:?}");
        }
    }
}

/// Only the switch restarts, while an executed request waits for its answer, which is lost. The host
/// retransmits with the new incarnation number under the same id, and gets the answer that the node
/// remembers. A counter shows that the traversal executed once.
#[test]
fn what_was_executed_in_an_earlier_life_is_not_executed_in_the_next() {
    let text = ".stores\n .window 8\n ld8 r2, window[0]\n add r2, 1\n st8 window[0], r2\n ret\n";
    let program = Program::assemble(text).expect("it assembles");
    let mut bench = Bench::new(8);
    let add = |bench: &Bench| Op::Traverse {
        program: program.clone(),
        cur_ptr: VirtAddr(bench.base),
        scratch: vec![],
        limit: 4,
    };
    let once = add(&bench);
    bench.run(vec![once]);
    assert_eq!(bench.words(), [1, 0, 0]);
    let (node, host) = (NODE.gid(), HOST.gid());
    bench.world.network_mut().cut(node, host);
    let (op, domain) = (add(&bench), Domain(bench.domain));
    bench.ticket += 1;
    let ticket = bench.ticket;
    assert!(bench.world.tell_host(1, HostRequest::Submit { ticket, domain, op }), "the host is up");
    let word = |bench: &Bench| {
        let store = bench.world.store(1).expect("the node is up");
        let mut bytes = Vec::new();
        let offset = bench.base - bench.world.node_base(1).expect("it has joined");
        farmem_memnode::Store::read(store, offset, 8, &mut bytes);
        u64::from_le_bytes(bytes.try_into().expect("a word"))
    };
    while word(&bench) < 2 {
        bench.step();
    }
    bench.restart(RoleId::Switch);
    bench.world.network_mut().restore(node, host);
    while bench.world.take_done().is_none() {
        bench.step();
    }
    assert_eq!(bench.words(), [2, 0, 0], "it was executed once");
    let notes = bench.world.journal().notes();
    let refused = notes.iter().filter(|(note, _)| note.contains("OtherLife")).map(|(_, count)| count);
    assert!(refused.sum::<u64>() >= 2, "each life of the switch was shown first: {notes:?}");
}
