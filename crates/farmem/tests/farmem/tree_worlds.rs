//! The B-link tree in simulated worlds. Four clients on two hosts change and read one tree. Meanwhile the
//! network loses, duplicates, delays and corrupts packets, the switch's index is loaded repeatedly, and
//! switch, control plane and memory nodes restart (Fat-B+Tree IV-B; PROTOCOL 13.14, 13.15).
//!
//! Each key has one client that changes it, so the valid results of a look-up are known exactly: the last
//! change that ended before the look-up, a concurrent change, or one with an unknown outcome. No look-up
//! finds an older value than an earlier look-up did. A scan is checked key by key, and has each key once.
//!
//! Clients are threads that run one at a time, in an order that the seed decides. Each runs until it waits
//! for the rack; then time passes in the world.

mod known;

use farmem::api::{
    Allocate, Base64, CreateDomain, OpenSession, Overview, Request, Response, SoftLoad, SoftSection,
};
use farmem::blink_tree::{Extent, soft_section};
use farmem::{
    Answer, BLinkTree, Dispatched, Error, FarMemory, Layout as TreeLayout, NodeId, Op, Policy, Program, Site,
    VirtAddr, Vma, api::NodeInfo, forward_far_memory,
};
use farmem_host::{Done, HostRequest};
use farmem_index::SECTION_KIND;
use farmem_machine::{Duration, Rng};
use farmem_sim::{Layout, Plan, RoleId, World};
use farmem_wire::message::Traverse;
use farmem_wire::{Domain, Pmtu};
use known::Model;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

const CLIENTS: u64 = 4;
/// Clients 0 and 2 are on host 1, the others on host 2.
const HOSTS: u16 = 2;
const KEYS: u32 = 400;
/// Memory nodes; in a FatTree at least one at each edge.
const NODES: u16 = 4;

/// A client's request to the stage.
enum Ask {
    Op(Op),
    Call(Request),
    /// The client has ended.
    End,
}

enum Reply {
    Begin,
    Done(Done),
    Answered(Result<Response, Error>),
}

/// A client's far memory in the world.
struct InWorld {
    client: u64,
    ask: Sender<(u64, Ask)>,
    reply: Receiver<Reply>,
    nodes: Vec<NodeInfo>,
    /// Names of the index switches.
    index: Vec<String>,
    domain: u32,
    scratch_max: usize,
}

impl InWorld {
    fn wait(&mut self, ask: Ask) -> Reply {
        self.ask.send((self.client, ask)).expect("the world outlives its clients");
        self.reply.recv().expect("the world outlives its clients")
    }

    fn op(&mut self, op: Op) -> Result<(Answer, Vec<u8>), Error> {
        match self.wait(Ask::Op(op)) {
            Reply::Done(Done { result, buf, .. }) => match result {
                Ok(answer) => Ok((answer, buf)),
                Err(failure) => Err(Error::Unreachable { what: format!("{failure:?}") }),
            },
            _ => panic!("an operation ends as one"),
        }
    }

    fn call(&mut self, request: impl Into<Request>) -> Result<Response, Error> {
        match self.wait(Ask::Call(request.into())) {
            Reply::Answered(answer) => answer,
            _ => panic!("a call is answered"),
        }
    }

    /// Returns true when the rack has index switches.
    fn has_fabric(&self) -> bool {
        !self.index.is_empty()
    }

    /// Loads the tree's present sections into the index switches. Returns the number of successful loads.
    fn load_fabric(&mut self, tree: &BLinkTree, extent: Extent) -> u64 {
        let Ok(Response::Overview(overview)) = self.call(Overview {}) else { return 0 };
        let Ok(parts) = tree.fabric_sections(self, &overview, extent) else { return 0 };
        let (host, domain) = (host_of(self.client), self.domain);
        let load = |(switch, part)| {
            let (sections, switch) = (vec![soft_section(&part)], Some(switch));
            u64::from(self.call(SoftLoad { host, domain, sections, switch }).is_ok())
        };
        parts.into_iter().map(load).sum()
    }

    /// Allocates on this memory node, or on any.
    fn allocate_anywhere(&mut self, size: u64, node: Option<u16>) -> Result<Vma, Error> {
        let domain = self.domain;
        match self.call(Allocate { domain, size, node, durable: false })? {
            Response::Vma(vma) => {
                Ok(Vma { base: VirtAddr(vma.base), size: vma.size, node: NodeId(vma.node) })
            }
            other => panic!("memory is asked for, and the answer is {other:?}"),
        }
    }

    fn old(&mut self, op: Op) -> Result<u64, Error> {
        match self.op(op)?.0 {
            Answer::Done { old } => Ok(old),
            other => panic!("an atomic does not answer {other:?}"),
        }
    }
}

impl FarMemory for InWorld {
    fn read(&mut self, addr: VirtAddr, into: &mut [u8]) -> Result<(), Error> {
        let (_, buf) = self.op(Op::Read { addr, buf: vec![0; into.len()] })?;
        into.copy_from_slice(&buf);
        Ok(())
    }

    fn write(&mut self, addr: VirtAddr, data: &[u8]) -> Result<(), Error> {
        self.op(Op::Write { addr, buf: data.to_vec() }).map(|_| ())
    }

    fn compare_swap(&mut self, addr: VirtAddr, compare: u64, swap: u64) -> Result<u64, Error> {
        self.old(Op::CompareSwap { addr, compare, swap })
    }

    fn fetch_add(&mut self, addr: VirtAddr, add: u64) -> Result<u64, Error> {
        self.old(Op::FetchAdd { addr, add })
    }

    fn dispatch(
        &mut self,
        program: &Program,
        start: VirtAddr,
        scratch: Vec<u8>,
        limit: u32,
        policy: &Policy,
    ) -> Result<Dispatched, Error> {
        let longest = program.scratch_len().max(program.encoded().len());
        if matches!(policy, Policy::Host) || longest > self.scratch_max {
            return AtHost { world: self }.dispatch(program, start, scratch, limit, policy);
        }
        let op = Op::Traverse { program: program.clone(), cur_ptr: start, scratch, limit };
        match self.op(op)? {
            (Answer::Traversed(end), scratch) => Ok(Dispatched { site: Site::MemoryNodes, end, scratch }),
            (other, _) => panic!("a traversal does not answer {other:?}"),
        }
    }

    fn allocate(&mut self, size: u64) -> Result<Vma, Error> {
        self.allocate_anywhere(size, None)
    }

    fn allocate_on(&mut self, size: u64, node: NodeId) -> Result<Vma, Error> {
        self.allocate_anywhere(size, Some(node.0))
    }

    fn free(&mut self, base: VirtAddr) -> Result<(), Error> {
        panic!("no tree ends in these worlds, and {base:?} is not freed")
    }

    fn nodes(&self) -> &[NodeInfo] {
        &self.nodes
    }

    fn scratch_len_max(&self) -> usize {
        self.scratch_max
    }
}

/// A client's far memory with every traversal at the host.
struct AtHost<'a> {
    world: &'a mut InWorld,
}

impl FarMemory for AtHost<'_> {
    forward_far_memory!(world: read, write, compare_swap, fetch_add, allocate, allocate_on, free, nodes);
}

/// Runs one client to its end.
fn live(mut memory: InWorld, mut tree: BLinkTree, model: &Mutex<Model>, seed: u64, steps: u64) {
    let client = memory.client;
    let mut rng = Rng::from_number(seed.wrapping_mul(31) + client);
    let with = |act: &mut dyn FnMut(&mut Model)| act(&mut model.lock().expect("one thread runs at a time"));
    let now = || model.lock().expect("one thread runs at a time").tick();
    for step in 0..steps {
        let any = u64::from(rng.below(KEYS));
        let own = any / CLIENTS * CLIENTS + client;
        // Waves: the tree alternately grows and shrinks.
        let inserts = if step / 150 % 2 == 0 { 5 } else { 2 };
        match rng.below(12) {
            0..7 => {
                let value = rng.chance(inserts, 7).then(|| client << 56 | (step + 1) << 16 | own);
                let (mut number, mut before) = (0, None);
                with(&mut |model| {
                    before = model.known(own);
                    number = model.begin(own, value);
                });
                let done = match value {
                    Some(value) => tree.insert(&mut memory, own, value),
                    None => tree.remove(&mut memory, own),
                };
                with(&mut |model| match &done {
                    Ok(old) => {
                        assert!(
                            before.is_none_or(|before| before == *old),
                            "key {own}: {old:?}, and there was {before:?}"
                        );
                        let ended = model.tick();
                        model.changes.get_mut(&own).expect("it began")[number].ended = Some(ended);
                    }
                    Err(_) => model.failed += 1,
                });
            }
            7..10 => {
                let begun = now();
                let found = tree.get(&mut memory, any);
                with(&mut |model| match found {
                    Ok(found) => model.check(any, begun, found),
                    Err(_) => model.failed += 1,
                });
            }
            10 => {
                let (begun, last) = (now(), any + u64::from(rng.below(60)));
                let found = tree.scan(&mut memory, any..=last, usize::MAX);
                with(&mut |model| match &found {
                    Ok(pairs) => {
                        assert!(
                            pairs.is_sorted_by(|(a, _), (b, _)| a < b),
                            "each key once, in order: {pairs:?}"
                        );
                        let pairs: BTreeMap<u64, u64> = pairs.iter().copied().collect();
                        assert!(
                            pairs.range(..any).next().is_none() && pairs.range(last + 1..).next().is_none()
                        );
                        (any..=last).for_each(|key| model.check(key, begun, pairs.get(&key).copied()));
                    }
                    Err(_) => model.failed += 1,
                });
            }
            _ if client == 0 && !memory.has_fabric() => {
                let extent =
                    Extent { ranges: 1 + rng.below(40) as usize, sets: rng.below(3) as usize, nodes: 20 };
                if let Ok(section) = tree.section(&mut memory, extent) {
                    let section = SoftSection {
                        kind: SECTION_KIND,
                        id: tree.tree().root.0,
                        bytes: Base64(section.emit()),
                    };
                    let loaded = memory.call(SoftLoad {
                        host: host_of(client),
                        domain: memory.domain,
                        sections: vec![section],
                        switch: None,
                    });
                    with(&mut |model| model.loads += u64::from(loaded.is_ok()));
                }
            }
            _ if client == 0 => {
                let (ranges, nodes) = (1 + rng.below(20) as usize, 1 + rng.below(12) as usize);
                let loads = memory.load_fabric(&tree, Extent { ranges, sets: 2, nodes });
                with(&mut |model| model.loads += loads);
            }
            _ => {}
        }
    }
    with(&mut |model| model.again += tree.places().again);
    memory.ask.send((client, Ask::End)).expect("the world outlives its clients");
}

/// The world and the clients that wait in it.
struct Stage {
    world: World,
    rng: Rng,
    domain: u32,
    asks: Receiver<(u64, Ask)>,
    replies: Vec<Sender<Reply>>,
    tickets: u64,
    /// Operations and calls in flight: the client of each ticket.
    ops: BTreeMap<u64, u64>,
    calls: BTreeMap<u64, u64>,
    alive: u64,
}

const fn host_of(client: u64) -> u16 {
    if client.is_multiple_of(2) { 1 } else { 2 }
}

impl Stage {
    /// Resumes a client until it waits again.
    fn resume(&mut self, client: u64, reply: Reply) {
        self.replies[usize::try_from(client).expect("few")].send(reply).expect("it waits");
        // A client that panics sends no more; its thread's end has the reason.
        let Ok((client, ask)) = self.asks.recv() else { panic!("a client failed") };
        match ask {
            Ask::End => self.alive -= 1,
            Ask::Call(request) => {
                let ticket = self.world.ask(RoleId::Host(host_of(client)), request);
                self.calls.insert(ticket, client);
            }
            Ask::Op(op) => {
                self.tickets += 1;
                self.ops.insert(self.tickets, client);
                let domain = Domain(self.domain);
                let request = HostRequest::Submit { ticket: self.tickets, domain, op };
                assert!(self.world.tell_host(host_of(client), request), "hosts do not crash here");
            }
        }
    }

    /// Lets time pass until all clients have ended; all but the first begin when the tree exists.
    /// Occasionally one of `crashing` restarts.
    fn play(&mut self, crashing: &[RoleId], made: &Mutex<Option<VirtAddr>>) {
        let odds = 8_000 * u32::try_from(crashing.len().max(1)).expect("a few roles");
        self.resume(0, Reply::Begin);
        let mut waiting = 1..CLIENTS;
        while self.alive > 0 {
            if made.lock().is_ok_and(|made| made.is_some())
                && let Some(client) = waiting.next()
            {
                self.resume(client, Reply::Begin);
                continue;
            }
            if let Some((_, done)) = self.world.take_done() {
                let client = self.ops.remove(&done.ticket).expect("it was asked for");
                self.resume(client, Reply::Done(done));
                continue;
            }
            let answered: Vec<u64> = self.calls.keys().copied().collect();
            let answered =
                answered.into_iter().find_map(|ticket| Some((ticket, self.world.take_reply(ticket)?)));
            if let Some((ticket, answer)) = answered {
                let client = self.calls.remove(&ticket).expect("it was found there");
                let answer = answer.map_err(|error| Error::Unreachable { what: format!("{error:?}") });
                self.resume(client, Reply::Answered(answer));
                continue;
            }
            if let Some(&role) = crashing.get(self.rng.below(odds) as usize)
                && self.world.is_up(role)
            {
                let down = Duration::from_micros(u64::from(self.rng.below(3_000)));
                self.world.crash_for(role, down);
            }
            assert!(self.world.step(), "clients wait, and nothing is under way");
        }
    }
}

/// Retries `act` until it succeeds: a lost request is repeated.
fn until<T>(mut act: impl FnMut() -> Result<T, Error>) -> T {
    (0..100).find_map(|_| act().ok()).expect("a faulty network lets one request in a hundred through")
}

/// The totals of a world.
#[derive(Default, Debug)]
struct Totals {
    operations: u64,
    look_ups: u64,
    failed: u64,
    loads: u64,
    /// Nodes that were placed where another node had been.
    again: u64,
    /// Look-ups that the switch started further down.
    indexed: u64,
    /// Look-ups sent up to the core, look-ups that an edge sent to their node, and look-ups that a switch on
    /// the way returned.
    up: u64,
    out: u64,
    back: u64,
    crashes: u64,
}

fn world(plan: Plan, pods: u16, seed: u64, steps: u64, crashing: &[RoleId]) -> Totals {
    let pmtu = if seed.is_multiple_of(2) { Pmtu::B1024 } else { Pmtu::B4096 };
    let mut world = World::new(
        Layout { hosts: HOSTS, nodes: NODES.max(2 * pods), pmtu, pods, edges: 2, ..Layout::small() },
        plan,
        seed,
        0,
    );
    world.bring_up();
    let one = RoleId::Host(1);
    let domain = world.call(one, CreateDomain { name: "tree".into() }).expect("granted").domain;
    for host in 1..=HOSTS {
        world.call(RoleId::Host(host), OpenSession { host, domain }).expect("granted");
    }
    let overview = world.call(one, Overview {}).expect("granted");
    let index: Vec<String> = overview.index.into_iter().map(|info| info.name).collect();
    let nodes = overview.nodes;
    let (ask, asks) = channel();
    let mut replies = Vec::new();
    let mut memories = Vec::new();
    for client in 0..CLIENTS {
        let (reply, replied) = channel();
        replies.push(reply);
        let scratch_max = Traverse::room(pmtu);
        memories.push(InWorld {
            client,
            ask: ask.clone(),
            reply: replied,
            nodes: nodes.clone(),
            index: index.clone(),
            domain,
            scratch_max,
        });
    }
    drop(ask);
    let rng = Rng::from_number(seed ^ 0xb71);
    let (ops, calls) = (BTreeMap::new(), BTreeMap::new());
    let mut stage = Stage { world, rng, domain, asks, replies, tickets: 0, ops, calls, alive: CLIENTS };
    let model = Arc::new(Mutex::new(Model::default()));
    // In a FatTree, data is partitioned by key over the servers. Keys of an unpartitioned tree are found too,
    // through the rack's switch.
    let partitioned = pods > 0 && !seed.is_multiple_of(4);
    let layout =
        if partitioned { TreeLayout::Partitioned } else { TreeLayout::Scattered { granularity: 4096 } };
    let entries = if seed.is_multiple_of(3) { 14 } else { 4 };
    thread::scope(|scope| {
        let mut threads = Vec::new();
        let made = Arc::new(Mutex::new(None));
        for mut memory in memories {
            let (model, made) = (Arc::clone(&model), Arc::clone(&made));
            let life = move || {
                // The first client creates the tree; the others open it.
                assert!(matches!(memory.reply.recv(), Ok(Reply::Begin)));
                let known = *made.lock().expect("one thread runs at a time");
                let tree = match known {
                    None => {
                        let tree = until(|| BLinkTree::create_with(&mut memory, layout, entries));
                        *made.lock().expect("one thread runs at a time") = Some(tree.address());
                        tree
                    }
                    Some(address) => until(|| BLinkTree::open(&mut memory, address, layout)),
                };
                live(memory, tree, &model, seed, steps);
            };
            threads.push(scope.spawn(life));
        }
        stage.play(crashing, &made);
        threads.into_iter().for_each(|thread| thread.join().expect("a client's life is right"));
    });
    let model = model.lock().expect("all threads have ended");
    let notes = stage.world.journal().notes();
    let count = |mark: &str| notes.iter().filter(|(note, _)| note.starts_with(mark)).map(|(_, n)| n).sum();
    Totals {
        operations: CLIENTS * steps,
        look_ups: model.look_ups,
        failed: model.failed,
        loads: model.loads,
        again: model.again,
        indexed: count("switch.Indexed"),
        up: count("switch.RoutedUp"),
        out: count("index.RoutedOut"),
        back: count("index.RoutedBack"),
        crashes: stage.world.crashes(),
    }
}

impl Totals {
    fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.look_ups += other.look_ups;
        self.failed += other.failed;
        self.loads += other.loads;
        self.again += other.again;
        self.indexed += other.indexed;
        self.up += other.up;
        self.out += other.out;
        self.back += other.back;
        self.crashes += other.crashes;
    }
}

/// Runs worlds of each plan, with this many steps per client.
fn worlds(plans: &[Plan], seeds: u64, steps: u64, crashing: &[RoleId]) -> Totals {
    all_worlds(plans, 0, (seeds, steps), crashing)
}

/// Runs worlds with a FatTree of this many pods, of two edge switches each.
fn all_worlds(plans: &[Plan], pods: u16, (seeds, steps): (u64, u64), crashing: &[RoleId]) -> Totals {
    let mut totals = Totals::default();
    for plan in plans {
        for seed in 0..seeds {
            totals.add(&world(*plan, pods, seed, steps, crashing));
        }
    }
    totals
}

const NETWORKS: [Plan; 5] = [Plan::CALM, Plan::LOSS, Plan::REORDER, Plan::FLIP, Plan::STORM];

/// No key is lost, reappears or is old, under all network faults, with an index of any age.
#[test]
fn every_look_up_is_right_whatever_the_network_does() {
    let totals = worlds(&NETWORKS, 4, 300, &[]);
    assert!(totals.look_ups > 50_000 && totals.indexed > 5_000 && totals.loads > 200, "{totals:?}");
    assert!(totals.again > 200, "places are used again: {totals:?}");
    assert_eq!(totals.failed, 0, "requests are repeated until they are answered: {totals:?}");
}

/// Look-ups stay right while the switch, which is then empty, and the control plane restart.
#[test]
fn every_look_up_is_right_whoever_starts_again() {
    let totals = worlds(&[Plan::CALM, Plan::STORM], 5, 300, &[RoleId::Switch, RoleId::Control]);
    assert!(totals.look_ups > 20_000 && totals.indexed > 1_500 && totals.crashes > 10, "{totals:?}");
}

/// A core, two pods of an aggregation switch and two edges, a server at each edge (Fat-B+Tree IV-A). Each
/// index switch has its part, of a different age than the others', and is loaded repeatedly.
#[test]
fn every_look_up_is_right_by_way_of_a_fat_tree() {
    let totals = all_worlds(&NETWORKS, 2, (4, 300), &[]);
    assert!(
        totals.look_ups > 50_000 && totals.up > 5_000 && totals.out > 4_000 && totals.loads > 500,
        "{totals:?}"
    );
    assert_eq!(totals.failed, 0, "requests are repeated until they are answered: {totals:?}");
}

/// k = 4 in full, as in the paper: thirteen switches, a core, four pods of an aggregation switch and two
/// edges, and eight servers.
#[test]
fn every_look_up_is_right_by_way_of_thirteen_switches() {
    let index: Vec<RoleId> = (1..=13).map(RoleId::Index).collect();
    let mut totals = all_worlds(&[Plan::CALM, Plan::STORM], 4, (2, 300), &[]);
    totals.add(&all_worlds(&[Plan::CALM, Plan::STORM], 4, (2, 300), &index));
    assert_eq!(totals.failed, 0, "requests are repeated until they are answered: {totals:?}");
    assert!(
        totals.look_ups > 15_000 && totals.up > 2_000 && totals.out > 1_500 && totals.loads > 150,
        "{totals:?}"
    );
}

/// Look-ups stay right while any of these switches, the rack's switch and the control plane restart (PROTOCOL
/// 16.8: lost parts come again, and traversals work without them).
#[test]
fn every_look_up_is_right_whichever_switch_of_a_fat_tree_starts_again() {
    let index: Vec<RoleId> = (1..=7).map(RoleId::Index).collect();
    let all = [&index[..], &[RoleId::Switch, RoleId::Control]].concat();
    let mut totals = all_worlds(&[Plan::CALM, Plan::STORM], 2, (5, 300), &index);
    assert_eq!(totals.failed, 0, "a switch of the index takes nothing with it: {totals:?}");
    totals.add(&all_worlds(&[Plan::CALM, Plan::STORM], 2, (5, 300), &all));
    assert!(totals.up > 5_000 && totals.out > 4_000 && totals.back > 3 && totals.crashes > 20, "{totals:?}");
}

/// A restarted memory node has lost its nodes. Accesses fail with an error and never report a missing key.
#[test]
fn a_lost_node_is_told() {
    let totals = worlds(&[Plan::CALM], 6, 300, &[RoleId::Node(2)]);
    assert!(totals.crashes > 3 && totals.failed > 100 && totals.look_ups > 1_000, "{totals:?}");
}

/// Ten million operations: `cargo test --workspace --test tree_worlds -- --ignored --nocapture`.
#[test]
#[ignore = "takes a quarter of an hour"]
#[expect(clippy::print_stdout, reason = "what it counted is asked for")]
fn ten_million_operations() {
    let mut totals = worlds(&NETWORKS, 125, 2_000, &[]);
    totals.add(&all_worlds(
        &NETWORKS,
        2,
        (25, 2_000),
        &[RoleId::Index(1), RoleId::Index(3), RoleId::Index(6)],
    ));
    totals.add(&worlds(&NETWORKS, 125, 2_000, &[RoleId::Switch, RoleId::Control]));
    assert!(totals.operations >= 10_000_000, "{totals:?}");
    println!("{totals:?}");
}
