//! Look-ups in a tree while its tables are published, withdrawn and counted, both roles restart and the
//! network loses packets (PROTOCOL 13.14 to 13.18): each gets the right answer with one request, wherever the
//! switch starts it.

use farmem_control::api::{
    Allocate, Base64, CreateDomain, ErrorCode, OpenSession, SoftClear, SoftCounted, SoftCounts, SoftLoad,
    SoftLoaded, SoftSection,
};
use farmem_host::{Answer, Done, HostRequest, Op};
use farmem_index::blink::Node;
use farmem_index::{Hits, Range, SECTION_KIND, TreeSection, edition, fat_root, select_layers};
use farmem_machine::{Duration, Rng};
use farmem_sim::{Layout, Plan, RoleId, World};
use farmem_traversal::Program;
use farmem_wire::{Domain, VirtAddr};
use std::collections::{BTreeMap, BTreeSet};

use crate::small_tree::{KEYS, tree, view};

const HOST: u16 = 1;
const DOMAIN: u32 = 1;
/// Maximum number of concurrent look-ups.
const OPEN_MAX: usize = 6;

/// Descends by the keys of inner nodes; at the leaf returns the key's value, or nothing.
const GET: &str = "
.window 256
.scratch 24
.def KEY    0
.def STATUS 8
.def VALUE  16
    ld8 r2, scratch[KEY]
    ld8 r3, window[0]
    mov r7, r3
    shr r7, 57
    and r7, 15
    mov r8, r3
    shr r8, 52
    and r8, 31
    jeq r8, 0, leaf
    rank8 r9, window[32], 14, r2
    jle r9, r7, child
    mov r9, r7
child:
    shl r9, 3
    ld8 r5, window[r9 + 136]
    next r5
leaf:
    match8 r9, window[32], 14, r2
    jge r9, r7, missing
    shl r9, 3
    ld8 r5, window[r9 + 144]
    st8 scratch[VALUE], r5
    st8 scratch[STATUS], 1
    ret
missing:
    st8 scratch[STATUS], 2
    ret
";

struct Bench {
    world: World,
    rng: Rng,
    program: Program,
    nodes: Vec<(VirtAddr, Node)>,
    /// The published sections, by edition.
    sections: BTreeMap<u64, TreeSection>,
    /// The key of each look-up in progress.
    open: BTreeMap<u64, u64>,
    tickets: u64,
    loads: BTreeSet<u64>,
    counts: BTreeSet<u64>,
    /// Number of look-ups by their number of iterations.
    iterations: BTreeMap<u32, u64>,
    loaded: u64,
    counted: Vec<SoftCounted>,
    refused: Vec<ErrorCode>,
}

impl Bench {
    fn new(plan: Plan, seed: u64) -> Self {
        let layout = Layout { nodes: 2, hosts: 1, ..Layout::small() };
        let mut world = World::new(layout, plan, seed, 0);
        world.bring_up();
        let host = RoleId::Host(HOST);
        let domain = world.call(host, CreateDomain { name: "index".into() }).expect("it answers").domain;
        assert_eq!(domain, DOMAIN);
        world.call(host, OpenSession { host: HOST, domain }).expect("the switch answers");
        let vma = world
            .call(host, Allocate { domain, size: 1 << 16, node: Some(1), durable: false })
            .expect("there is room");
        let (program, nodes) = (Program::assemble(GET).expect("a program"), tree(vma.base));
        let mut bench = Self {
            world,
            rng: Rng::from_number(seed ^ 0x1d),
            program,
            nodes,
            sections: BTreeMap::new(),
            open: BTreeMap::new(),
            tickets: 0,
            loads: BTreeSet::new(),
            counts: BTreeSet::new(),
            iterations: BTreeMap::new(),
            loaded: 0,
            counted: Vec::new(),
            refused: Vec::new(),
        };
        for (addr, node) in bench.nodes.clone() {
            bench.submit(Op::RegionWrite { addr, buf: node.emit().to_vec() });
            bench.rest();
        }
        // The memory node learns the program.
        bench.traverse(0);
        bench.rest();
        bench
    }

    fn submit(&mut self, op: Op) -> u64 {
        self.tickets += 1;
        let ask = HostRequest::Submit { ticket: self.tickets, domain: Domain(DOMAIN), op };
        assert!(self.world.tell_host(HOST, ask), "the host is up");
        self.open.insert(self.tickets, u64::MAX);
        self.tickets
    }

    fn look_up(&mut self) {
        // Mostly keys that exist, often the same few.
        let most = if self.rng.chance(1, 2) { 60 } else { 3 * 256 + 5 };
        let key = u64::from(self.rng.below(most));
        let ticket = self.traverse(key);
        self.open.insert(ticket, key);
    }

    fn traverse(&mut self, key: u64) -> u64 {
        let scratch = [key, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        let (program, cur_ptr) = (self.program.clone(), self.nodes[0].0);
        self.submit(Op::Traverse { program, cur_ptr, scratch, limit: 16 })
    }

    fn ended(&mut self, done: &Done) {
        let key = self.open.remove(&done.ticket).expect("an operation ends once");
        if key == u64::MAX {
            assert!(done.result.is_ok(), "{done:?}");
            return;
        }
        let Ok(Answer::Traversed(end)) = &done.result else { panic!("{key} was not answered: {done:?}") };
        assert!(end.returned && end.requests == 1, "one request: {end:?}");
        let word = |at: usize| u64::from_le_bytes(done.buf[at..at + 8].try_into().expect("a word"));
        let is_there = key.is_multiple_of(3) && key < 3 * KEYS;
        let found = (word(8), word(16));
        assert_eq!(found, if is_there { (1, key + 1) } else { (2, 0) }, "key {key}");
        *self.iterations.entry(end.iterations).or_default() += 1;
    }

    fn step(&mut self) -> bool {
        let moved = self.world.step();
        self.world.check();
        while let Some((_, done)) = self.world.take_done() {
            self.ended(&done);
        }
        self.hear();
        moved
    }

    /// Handles the control plane's answers.
    fn hear(&mut self) {
        for ticket in self.loads.clone() {
            if let Some(answer) = self.world.take_reply(ticket) {
                self.loads.remove(&ticket);
                self.loaded += u64::from(answer.is_ok());
                self.refused.extend(answer.err().map(|error| error.code));
            }
        }
        for ticket in self.counts.clone() {
            if let Some(answer) = self.world.take_reply(ticket) {
                self.counts.remove(&ticket);
                match answer {
                    Ok(answer) => self.take_counts(answer.try_into().expect("its answer")),
                    Err(error) => self.refused.push(error.code),
                }
            }
        }
    }

    /// Checks counters: they belong to one published section and one load of it, and each branch was taken at
    /// most as often as its parent.
    fn take_counts(&mut self, counted: SoftCounted) {
        let section = self.sections.get(&counted.edition).expect("it was published");
        let counts: Vec<u32> = counted
            .counts
            .0
            .chunks(4)
            .map(|word| u32::from_be_bytes(word.try_into().expect("a counter")))
            .collect();
        assert_eq!(counts.len(), section.branches().count());
        let hits = Hits::of(section, &counts);
        assert!(hits.sets.iter().all(|&set| set <= hits.queries), "{hits:?}");
        self.counted.push(counted);
    }

    fn rest(&mut self) {
        while !self.open.is_empty() {
            assert!(self.step(), "nothing happens, and {:?} did not end", self.open);
        }
    }

    /// Publishes a selection of some accesses.
    fn publish(&mut self) {
        let view = view(&self.nodes, &mut self.rng);
        let ranges: Vec<Range> = fat_root(&view, 1 + self.rng.below(30) as usize);
        let sets = select_layers(&view, &ranges, self.rng.below(4) as usize, 1 + self.rng.below(8) as usize);
        let section =
            TreeSection { root: self.nodes[0].0, programs: vec![self.program.hash()], ranges, sets };
        let bytes = section.emit();
        self.sections.insert(edition(&bytes), section);
        let sections = vec![SoftSection { kind: SECTION_KIND, id: self.nodes[0].0.0, bytes: Base64(bytes) }];
        let load = SoftLoad { host: HOST, domain: DOMAIN, sections, switch: None };
        self.loads.insert(self.world.ask(RoleId::Control, load));
    }

    fn read_counts(&mut self) {
        let counts = SoftCounts { domain: DOMAIN, kind: SECTION_KIND, id: self.nodes[0].0.0, switch: None };
        self.counts.insert(self.world.ask(RoleId::Control, counts));
    }

    fn heal(&mut self) {
        self.world.end_faults();
        let mut steps = 0..400_000;
        while self.step() {
            assert!(steps.next().is_some(), "the rack comes to rest");
        }
        let open = (self.open.len(), self.loads.len(), self.counts.len());
        assert_eq!(open, (0, 0, 0), "every request is answered");
    }
}

fn world(plan: Plan, seed: u64, crashes: bool) -> Bench {
    let mut bench = Bench::new(plan, seed);
    for _ in 0..600 {
        if bench.open.len() < OPEN_MAX && bench.rng.chance(2, 3) {
            bench.look_up();
        }
        match bench.rng.below(100) {
            0..=2 => bench.publish(),
            3..=5 => bench.read_counts(),
            6 => {
                let clear = SoftClear { domain: DOMAIN, sections: Vec::new(), switch: None };
                bench.loads.insert(bench.world.ask(RoleId::Control, clear));
            }
            7 if crashes => {
                let role = if bench.rng.chance(1, 2) { RoleId::Switch } else { RoleId::Control };
                let down = Duration::from_micros(u64::from(bench.rng.below(2_000)));
                bench.world.crash_for(role, down);
            }
            _ => {}
        }
        for _ in 0..bench.rng.below(12) {
            bench.step();
        }
    }
    bench.heal();
    bench
}

#[test]
fn look_ups_are_answered_while_images_load() {
    let (mut iterations, mut loaded, mut counted) = (BTreeMap::new(), 0, 0);
    for plan in [Plan::CALM, Plan::LOSS, Plan::DUPLICATE, Plan::REORDER, Plan::STORM] {
        for seed in 0..8 {
            let bench = world(plan, seed, false);
            bench.iterations.iter().for_each(|(n, times)| *iterations.entry(*n).or_insert(0) += times);
            (loaded, counted) = (loaded + bench.loaded, counted + bench.counted.len());
            let allowed = [ErrorCode::Conflict, ErrorCode::NotFound, ErrorCode::Unavailable];
            assert!(bench.refused.iter().all(|code| allowed.contains(code)), "{:?}", bench.refused);
        }
    }
    assert_eq!(
        iterations.keys().copied().collect::<Vec<_>>(),
        [1, 2, 3, 4],
        "from the leaf to the root: {iterations:?}"
    );
    assert!(
        loaded > 200 && counted > 200,
        "{loaded} images became active, {counted} times they were counted"
    );
}

#[test]
fn look_ups_are_answered_whoever_starts_again() {
    let mut iterations = BTreeSet::new();
    for plan in [Plan::CALM, Plan::REORDER, Plan::STORM] {
        for seed in 0..12 {
            let mut bench = world(plan, seed, true);
            iterations.extend(bench.iterations.keys().copied());
            // A section published then becomes active, counts from zero, and counts new look-ups.
            bench.publish();
            bench.heal();
            bench.read_counts();
            bench.heal();
            let before = bench.counted.pop().expect("the image is active");
            let section = bench.sections[&before.edition].clone();
            (0..50).for_each(|_| {
                bench.look_up();
                bench.rest();
            });
            bench.read_counts();
            bench.heal();
            let after = bench.counted.pop().expect("the image is active");
            assert_eq!((after.epoch, after.life, after.edition), (before.epoch, before.life, before.edition));
            let queries = |counted: &SoftCounted| {
                let words =
                    counted.counts.0.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap()));
                Hits::of(&section, &words.collect::<Vec<_>>()).queries
            };
            assert_eq!(queries(&after) - queries(&before), 50, "each look-up once");
        }
    }
    assert_eq!(iterations.len(), 4);
}

/// PROTOCOL 13.18: counters of two images are never combined, even if another image becomes active while they
/// are read.
#[test]
fn counters_are_of_one_image() {
    let mut bench = Bench::new(Plan::CALM, 3);
    // So many ranges that their counters take several parts.
    let root = bench.nodes[0].0;
    let child = farmem_index::Child { addr: root, level: 3 };
    let mut epochs = BTreeSet::new();
    for round in 0..20_u64 {
        let first = |n: u64| if n == 0 { 0 } else { n + round };
        let last = |n: u64| if n == 999 { u64::MAX } else { first(n + 1) - 1 };
        let ranges = (0..1_000).map(|n| Range { first: first(n), last: last(n), child }).collect();
        let section = TreeSection { root, programs: vec![bench.program.hash()], ranges, sets: vec![] };
        let bytes = section.emit();
        bench.sections.insert(edition(&bytes), section);
        let sections = vec![SoftSection { kind: SECTION_KIND, id: root.0, bytes: Base64(bytes) }];
        let load = SoftLoad { host: HOST, domain: DOMAIN, sections, switch: None };
        let ticket = bench.world.ask(RoleId::Control, load);
        // Counters are read while the image is loading, and when it becomes active.
        let mut loaded = None;
        while loaded.is_none() {
            if bench.counts.is_empty() {
                bench.read_counts();
            }
            bench.look_up();
            for _ in 0..3 {
                bench.step();
            }
            loaded = bench.world.take_reply(ticket);
        }
        let loaded: SoftLoaded =
            loaded.unwrap().expect("the image is active").try_into().expect("its answer");
        epochs.insert(loaded.epoch);
        bench.heal();
    }
    let read: BTreeSet<u64> = bench.counted.iter().map(|counted| counted.epoch).collect();
    assert_eq!(epochs.len(), 20);
    assert!(read.is_subset(&epochs) && read.len() > 5, "{read:?} of {epochs:?}");
}
