//! Exact execution counts of atomics while memory moves, connections break and nodes stop answering: once
//! after success, at most once if unknown, never if the host says so (PROTOCOL 9.5, 11.11).
//!
//! Each FETCH_ADD adds another power of eight, so a word shows how often each was executed. In addition READs
//! and WRITEs span two nodes, so that one node's refusal and another node's broken connection coincide; each
//! READ finds earlier writes, wherever the bytes have moved (PROTOCOL 11.12).

use farmem_control::PAGE;
use farmem_control::api::{Allocate, Call, CreateDomain, Migrate, OpenSession};
use farmem_host::{Done, Failure, HostRequest, Op};
use farmem_machine::{Duration, Rng};
use farmem_sim::{Layout, Plan, RoleId, World};
use farmem_transport::rc;
use farmem_wire::{Domain, VirtAddr};
use std::collections::BTreeMap;

/// Number of pages of the allocation; they move one by one.
const PAGES: u64 = 4;
/// Number of additions that one word has digits for.
const DIGITS: u32 = 21;
/// Number of counter words in each page.
const WORDS: u64 = 60;
/// Maximum number of concurrent operations.
const OPEN_MAX: usize = 24;
const HOST: u16 = 1;

#[derive(Clone, Copy, Debug)]
enum Operation {
    /// Adds the digit to the word.
    Add { word: u64, digit: u32 },
    /// Spans the edge between two pages.
    Both { edge: u64, writes: bool },
    /// Reads a word at the end.
    Look { word: u64 },
}

/// The number of times that an addition may have executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Made {
    Once,
    Never,
    AtMostOnce,
}

struct Bench {
    world: World,
    rng: Rng,
    domain: u32,
    base: u64,
    open: BTreeMap<u64, Operation>,
    tickets: u64,
    /// The ended additions, by word and digit.
    made: BTreeMap<u64, Vec<Option<Made>>>,
    seen: BTreeMap<u64, u64>,
    migrating: Option<u64>,
    /// The node that is cut off in one or both directions.
    cut: Option<u16>,
    counts: [u64; 3],
    both: [u64; 2],
    /// The WRITEs to each edge by ticket, which is also their value, and whether each succeeded.
    written: BTreeMap<u64, BTreeMap<u64, bool>>,
    /// Successful READs of edges, by ticket, with their results.
    found: BTreeMap<u64, (u64, Vec<u8>)>,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let mut world = World::new(Layout::small(), Plan::CALM, seed, 0);
        world.bring_up();
        let mut bench = Self {
            world,
            rng: Rng::from_number(seed),
            domain: 0,
            base: 0,
            open: BTreeMap::new(),
            tickets: 0,
            made: BTreeMap::new(),
            seen: BTreeMap::new(),
            migrating: None,
            cut: None,
            counts: [0; 3],
            both: [0; 2],
            written: BTreeMap::new(),
            found: BTreeMap::new(),
        };
        let domain = bench.call(CreateDomain { name: "d".into() }).domain;
        let vma = bench.call(Allocate { domain, size: PAGES * PAGE, node: Some(1), durable: false });
        (bench.domain, bench.base) = (domain, vma.base);
        bench.call(OpenSession { host: HOST, domain });
        bench
    }

    fn call<C: Call>(&mut self, call: C) -> C::Answer {
        self.world.call(RoleId::Host(HOST), call).expect("granted")
    }

    fn addr(&self, word: u64) -> VirtAddr {
        VirtAddr(self.base + word / WORDS * PAGE + 64 + word % WORDS * 8)
    }

    fn submit(&mut self, op: Op, what: Operation) {
        self.tickets += 1;
        self.open.insert(self.tickets, what);
        let ask = HostRequest::Submit { ticket: self.tickets, domain: Domain(self.domain), op };
        assert!(self.world.tell_host(HOST, ask), "the host is up");
    }

    fn begin(&mut self) {
        if self.rng.chance(1, 4) {
            // No other operation uses the edges of the pages.
            let edge = 1 + u64::from(self.rng.below(3));
            let addr = VirtAddr(self.base + edge * PAGE - 32);
            let writes = self.rng.chance(1, 2);
            let buf = (self.tickets + 1).to_le_bytes().repeat(8);
            let op = if writes { Op::Write { addr, buf } } else { Op::Read { addr, buf } };
            if writes {
                self.written.entry(edge).or_default().insert(self.tickets + 1, false);
            }
            return self.submit(op, Operation::Both { edge, writes });
        }
        let words = u32::try_from(PAGES * WORDS).expect("few");
        let word = u64::from(self.rng.below(words));
        let made = self.made.entry(word).or_default();
        let digit = u32::try_from(made.len()).expect("few");
        if digit < DIGITS {
            made.push(None);
            let op = Op::FetchAdd { addr: self.addr(word), add: 1 << (3 * digit) };
            self.submit(op, Operation::Add { word, digit });
        }
    }

    /// Moves a page from time to time, or cuts a node off for so long that its connections break.
    fn disturb(&mut self) {
        self.hear_of_move();
        if self.migrating.is_none() && self.rng.chance(1, 40) {
            let base = self.base + u64::from(self.rng.below(u32::try_from(PAGES).expect("few"))) * PAGE;
            let node = 1 + u16::try_from(self.rng.below(3)).expect("few");
            let request = Migrate { domain: Some(self.domain), base, len: PAGE, node };
            self.migrating = Some(self.world.ask(RoleId::Host(2), request));
        }
        if self.cut.is_none() && self.rng.chance(1, 150) {
            // A node's answers are lost more often than its requests: then it has executed them.
            let node = 1 + u16::try_from(self.rng.below(3)).expect("few");
            self.cut = Some(node);
            let (node, host) = (RoleId::Node(node).gid(), RoleId::Host(HOST).gid());
            self.world.network_mut().cut(node, host);
            if self.rng.chance(1, 4) {
                self.world.network_mut().cut(host, node);
            }
            // Sometimes no connection to the node can be set up for a while either.
            if self.rng.chance(1, 3) {
                self.world.network_mut().cut(RoleId::Control.gid(), node);
            }
        } else if self.rng.chance(1, 100) {
            self.restore();
        }
    }

    fn restore(&mut self) {
        if let Some(node) = self.cut.take() {
            let (node, host) = (RoleId::Node(node).gid(), RoleId::Host(HOST).gid());
            self.world.network_mut().restore(node, host);
            self.world.network_mut().restore(host, node);
            self.world.network_mut().restore(RoleId::Control.gid(), node);
        }
    }

    fn step(&mut self) {
        if !self.world.step() {
            assert!(self.open.is_empty(), "nothing happens, and {:?} did not end", self.open);
        }
        while let Some((_, done)) = self.world.take_done() {
            self.ended(&done);
        }
    }

    fn ended(&mut self, done: &Done) {
        match self.open.remove(&done.ticket).expect("an operation ends once") {
            Operation::Add { word, digit } => {
                let made = match done.result {
                    Ok(_) => Made::Once,
                    Err(Failure::QueueFull | Failure::Unreachable { .. }) => Made::Never,
                    Err(Failure::Connection(rc::Failure::RemoteAccess)) => Made::Never,
                    Err(Failure::Connection(
                        rc::Failure::Flushed | rc::Failure::RetriesExceeded | rc::Failure::RnrRetriesExceeded,
                    )) => Made::AtMostOnce,
                    other => panic!("an atomic ended as {other:?}"),
                };
                self.counts[made as usize] += 1;
                self.made.get_mut(&word).expect("it was begun")[digit as usize] = Some(made);
            }
            Operation::Both { edge, writes } => {
                self.both[usize::from(done.result.is_err())] += 1;
                if done.result.is_ok() && writes {
                    self.written.get_mut(&edge).expect("it was begun").insert(done.ticket, true);
                } else if done.result.is_ok() {
                    self.found.insert(done.ticket, (edge, done.buf.clone()));
                }
            }
            Operation::Look { word } => {
                if done.result.is_ok() {
                    let bytes: [u8; 8] = done.buf.as_slice().try_into().expect("a word");
                    self.seen.insert(word, u64::from_le_bytes(bytes));
                }
            }
        }
    }

    /// Moves a page to a node.
    fn go(&mut self, base: u64, node: u16) {
        self.call(Migrate { domain: Some(self.domain), base, len: PAGE, node });
    }

    /// Runs until everything has ended.
    fn rest(&mut self) {
        while !self.open.is_empty() {
            self.step();
        }
    }

    fn run(mut self, operations: u64) -> Self {
        while self.tickets < operations {
            if self.open.len() < OPEN_MAX {
                self.begin();
            }
            self.disturb();
            self.step();
        }
        self.restore();
        while !self.open.is_empty() || self.migrating.is_some() {
            self.hear_of_move();
            self.step();
        }
        let words: Vec<u64> = self.made.keys().copied().collect();
        while self.seen.len() < words.len() {
            for &word in words.iter().filter(|word| !self.seen.contains_key(word)).collect::<Vec<_>>() {
                let op = Op::Read { addr: self.addr(word), buf: vec![0; 8] };
                self.submit(op, Operation::Look { word });
            }
            let until = self.world.now() + Duration::from_millis(5);
            self.world.alarm(until);
            while !self.open.is_empty() || self.world.now() < until {
                self.step();
            }
        }
        self
    }

    fn hear_of_move(&mut self) {
        if let Some(ticket) = self.migrating
            && self.world.take_reply(ticket).is_some()
        {
            self.migrating = None;
        }
    }

    /// Asserts that no READ finds an older write than the last one before it, or a later write unless that
    /// write's outcome is unknown.
    fn judge_order(&self, seed: u64) {
        let none = BTreeMap::new();
        for (&read, (edge, bytes)) in &self.found {
            let written = self.written.get(edge).unwrap_or(&none);
            let last = written.range(..read).rev().find(|(_, well)| **well).map_or(0, |(&write, _)| write);
            for word in bytes.chunks_exact(8) {
                let word = u64::from_le_bytes(word.try_into().expect("a word"));
                let is_write = word == 0 || written.contains_key(&word);
                let later_and_well = word > read && written[&word];
                assert!(
                    is_write && word >= last && !later_and_well,
                    "seed {seed}: READ {read} of edge {edge} found {word}, and {last} was written"
                );
            }
        }
    }

    fn judge(&self, seed: u64) {
        self.judge_order(seed);
        for (&word, made) in &self.made {
            let value = self.seen[&word];
            for (digit, made) in made.iter().enumerate() {
                let times = value >> (3 * digit) & 7;
                let right = match made.expect("all have ended") {
                    Made::Once => times == 1,
                    Made::Never => times == 0,
                    Made::AtMostOnce => times <= 1,
                };
                assert!(
                    right,
                    "seed {seed}, word {word}, addition {digit}: {made:?}, and was made {times} times"
                );
            }
            assert_eq!(value >> (3 * made.len()), 0, "seed {seed}, word {word}");
        }
    }
}

/// One node refuses its segment of a READ, because the page has moved, and the host follows it. The other
/// node has executed an atomic, and none of its answers arrives: its connection breaks by itself. The refusal
/// does not concern the atomic, which is not repeated (PROTOCOL 11.11).
#[test]
fn a_refusal_at_one_node_says_nothing_of_another() {
    let mut bench = Bench::new(1);
    let edge = bench.base + PAGE;
    bench.go(edge, 2);
    let add = |bench: &mut Bench, word: u64, digit: u32| {
        bench.made.entry(word).or_default().push(None);
        bench.submit(
            Op::FetchAdd { addr: bench.addr(word), add: 1 << (3 * digit) },
            Operation::Add { word, digit },
        );
    };
    // The host learns the location of the second page.
    add(&mut bench, WORDS, 0);
    bench.rest();
    bench.go(bench.base, 3);
    bench.cut = Some(2);
    bench.world.network_mut().cut(RoleId::Node(2).gid(), RoleId::Host(HOST).gid());
    bench.submit(
        Op::Read { addr: VirtAddr(edge - 32), buf: vec![0; 64] },
        Operation::Both { edge: 1, writes: false },
    );
    add(&mut bench, WORDS, 1);
    add(&mut bench, 0, 0);
    bench.rest();
    assert_eq!(
        (bench.counts, bench.both),
        ([2, 0, 1], [0, 1]),
        "one of them is not known, and the READ is told so"
    );
    let bench = bench.run(0);
    bench.judge(1);
    assert_eq!(bench.seen[&WORDS], 0o11, "it was executed, once");
    let notes = bench.world.journal().notes();
    assert!(
        notes["host.Rc(Broken(RemoteAccess))"] >= 2 && notes["host.Rc(Broken(RetriesExceeded))"] == 1,
        "{notes:?}"
    );
}

const SEEDS: u64 = 60;

#[test]
fn each_atomic_is_executed_as_often_as_its_end_says() {
    let (mut counts, mut both) = ([0; 3], [0; 2]);
    let mut notes: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 0..SEEDS {
        let bench = Bench::new(seed).run(1500);
        bench.judge(seed);
        (0..3).for_each(|at| counts[at] += bench.counts[at]);
        (0..2).for_each(|at| both[at] += bench.both[at]);
        for (note, count) in bench.world.journal().notes() {
            *notes.entry(note.clone()).or_default() += count;
        }
    }
    let [once, _, open] = counts;
    assert!(once > 10_000 && open > 100 && both[0] > 1000, "{counts:?} {both:?}");
    for wanted in ["host.Followed", "host.Rc(Broken(RetriesExceeded))", "host.Rc(Broken(RemoteAccess))"] {
        assert!(notes.keys().any(|note| note.contains(wanted)), "no world reaches {wanted}: {notes:?}");
    }
}
