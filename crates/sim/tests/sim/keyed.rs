//! Keyed READs, and the ordinary verbs of the same connection, through a switch (PROTOCOL 15). Meanwhile tree
//! tables are published and withdrawn, roles restart, and the network loses, duplicates and reorders packets.
//! A plain model checks that every returned byte was there.

use farmem_control::api::{
    AcceptLost, Allocate, Base64, Connect, ConnectionInfo, CreateDomain, Disconnect, ErrorCode, OpenSession,
    SoftClear, SoftLoad, SoftSection,
};
use farmem_host::{Answer, Done, Failure, HostRequest, Op};
use farmem_index::blink::{NODE_LEN, Node};
use farmem_index::{Child, Range, SECTION_KIND, TreeSection, fat_root, select_layers};
use farmem_machine::{Duration, Rng};
use farmem_sim::{Layout, Plan, RoleId, World};
use farmem_transport::rc::{self, Work};
use farmem_wire::{Domain, Qpn, VirtAddr};
use std::collections::{BTreeMap, BTreeSet};

use crate::small_tree::{KEYS, tree, view};

const HOST: u16 = 1;
const DOMAIN: u32 = 1;
/// Maximum number of concurrent operations.
const OPEN_MAX: usize = 8;
/// Number of bytes beside the tree for ordinary verbs; a word for additions follows them.
const BESIDE: usize = 448;

/// An open operation.
#[derive(Clone, Debug)]
enum Operation {
    /// During setup, through no connection.
    SetUp,
    /// A key's node, by the key.
    Keyed(u64),
    /// The node at an address, on the path to a key.
    Node(u64, VirtAddr),
    /// These expected bytes, from this offset on.
    Read(usize, Vec<u8>),
    Write(usize, Vec<u8>),
    /// The expected value of the word.
    Add(u64),
    /// All bytes beside the tree.
    All,
}

/// The memory beside the tree, after the posted verbs.
struct PlainConnection {
    bytes: Vec<u8>,
    word: u64,
    /// After a failure: the other possible values of each byte, and the number of additions that may not have
    /// executed.
    maybe: Option<(Vec<BTreeSet<u8>>, u64)>,
}

/// A rack with a tree whose nodes a host reads by key, and the expected state.
struct Bench {
    world: World,
    rng: Rng,
    root: VirtAddr,
    nodes: BTreeMap<VirtAddr, Node>,
    /// Plain memory in addition to the tree.
    beside_at: VirtAddr,
    beside: PlainConnection,
    /// The host's queue pair, if the connection is open.
    over: Option<Qpn>,
    /// The ticket of a pending connect or disconnect; true for a connect.
    asked_connection: Option<(u64, bool)>,
    open: BTreeMap<u64, Operation>,
    tickets: u64,
    loads: BTreeSet<u64>,
    loaded: u64,
    /// Number of answered look-ups, by the number of READs.
    found: BTreeMap<u32, u64>,
    reads: BTreeMap<u64, u32>,
    failed: BTreeMap<String, u64>,
    connects: u32,
    /// True if the memory node lost its memory: nothing may succeed.
    lost: bool,
    /// Number of index switches; the first is the core.
    index: u16,
}

impl Bench {
    fn new(plan: Plan, seed: u64) -> Self {
        Self::behind(0, plan, seed)
    }

    /// Returns a rack behind a FatTree of `pods` pods of two edge switches.
    fn behind(pods: u16, plan: Plan, seed: u64) -> Self {
        let layout = Layout { nodes: 2, hosts: 1, pods, edges: 2, ..Layout::small() };
        let mut world = World::new(layout, plan, seed, 0);
        world.bring_up();
        let host = RoleId::Host(HOST);
        let domain = world.call(host, CreateDomain { name: "index".into() }).expect("it answers").domain;
        assert_eq!(domain, DOMAIN);
        world.call(host, OpenSession { host: HOST, domain }).expect("the switch answers");
        let mut vma = |size| {
            world.call(host, Allocate { domain, size, node: Some(1), durable: false }).expect("there is room")
        };
        let (of_tree, beside) = (vma(1 << 16), vma(4096));
        let nodes = tree(of_tree.base);
        let (root, nodes) = (nodes[0].0, nodes.into_iter().collect());
        let mut bench = Self {
            world,
            rng: Rng::from_number(seed ^ 0x1d),
            root,
            nodes,
            beside_at: VirtAddr(beside.base),
            beside: PlainConnection { bytes: vec![0; BESIDE], word: 0, maybe: None },
            over: None,
            asked_connection: None,
            open: BTreeMap::new(),
            tickets: 0,
            loads: BTreeSet::new(),
            loaded: 0,
            found: BTreeMap::new(),
            reads: BTreeMap::new(),
            failed: BTreeMap::new(),
            connects: 0,
            lost: false,
            index: layout.index_switches(),
        };
        bench.write_tree();
        bench
    }

    fn write_tree(&mut self) {
        for (addr, node) in self.nodes.clone() {
            self.submit(Operation::SetUp, Op::RegionWrite { addr, buf: node.emit().to_vec() });
            self.rest();
        }
    }

    fn submit(&mut self, asked: Operation, op: Op) {
        self.tickets += 1;
        let ask = HostRequest::Submit { ticket: self.tickets, domain: Domain(DOMAIN), op };
        assert!(self.world.tell_host(HOST, ask), "the host is up");
        self.open.insert(self.tickets, asked);
    }

    /// Posts a verb over the connection.
    fn post(&mut self, asked: Operation, work: Work) {
        let over = self.over.expect("there is a connection");
        self.submit(asked, Op::Through { over, work });
    }

    fn look_up(&mut self) {
        let most = if self.rng.chance(1, 2) { 60 } else { 3 * 256 + 5 };
        let key = if self.rng.chance(1, 20) { u64::MAX } else { u64::from(self.rng.below(most)) };
        self.post(Operation::Keyed(key), Work::KeyedRead { key, buf: vec![0xee; NODE_LEN] });
        self.reads.insert(self.tickets, 1);
    }

    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(u32::try_from(bound).expect("a small one")) as usize
    }

    /// Posts a verb beside the tree, whose result the model predicts.
    fn ordinary(&mut self) {
        if self.beside.maybe.is_some() {
            let is_open = |asked: &Operation| !matches!(asked, Operation::Keyed(_) | Operation::Node(..));
            if !self.open.values().any(is_open) {
                let (addr, buf) = (self.beside_at, vec![0; BESIDE + 8]);
                self.post(Operation::All, Work::Read { addr, buf });
            }
            return;
        }
        let at = self.below(BESIDE);
        let len = 1 + self.below(BESIDE - at);
        let addr = VirtAddr(self.beside_at.0 + at as u64);
        match self.rng.below(4) {
            0 => {
                let addr = VirtAddr(self.beside_at.0 + BESIDE as u64);
                self.post(Operation::Add(self.beside.word), Work::FetchAdd { addr, add: 1 });
                self.beside.word += 1;
            }
            1 | 2 => {
                let expected = self.beside.bytes[at..at + len].to_vec();
                self.post(Operation::Read(at, expected), Work::Read { addr, buf: vec![0xee; len] });
            }
            _ => {
                let byte = self.rng.next_u32().to_le_bytes()[0];
                let before = self.beside.bytes[at..at + len].to_vec();
                self.beside.bytes[at..at + len].fill(byte);
                self.post(Operation::Write(at, before), Work::Write { addr, buf: vec![byte; len] });
            }
        }
    }

    fn ended(&mut self, done: Done) {
        let asked = self.open.remove(&done.ticket).expect("an operation ends once");
        let reads = self.reads.remove(&done.ticket).unwrap_or_default();
        let old = match done.result {
            Ok(Answer::Done { old }) => old,
            Ok(other) => panic!("a verb does not answer {other:?}"),
            Err(failure) => return self.went_wrong(asked, failure, &done.buf),
        };
        match asked {
            Operation::SetUp => {}
            Operation::Keyed(key) => {
                assert!(!self.lost, "bytes that were lost came");
                let whole = |node: &&Node| node.emit()[..] == done.buf[..];
                let node = self.nodes.values().find(whole).expect("a node of the tree, to the byte");
                assert!((node.first..=node.last).contains(&key), "{key} is not below {node:?}");
                let node = node.clone();
                self.go_on(key, &node, reads);
            }
            Operation::Node(key, at) => {
                assert!(!self.lost, "bytes that were lost came");
                assert_eq!(done.buf, self.nodes[&at].emit(), "the node at {at}");
                let node = self.nodes[&at].clone();
                self.go_on(key, &node, reads);
            }
            Operation::Read(at, expected) => {
                assert_eq!(done.buf, expected, "{} bytes at {at}", expected.len())
            }
            Operation::Write(..) => {}
            Operation::Add(before) => assert_eq!(old, before),
            Operation::All => self.agree(&done.buf),
        }
    }

    /// Continues a look-up from a node.
    fn go_on(&mut self, key: u64, node: &Node, reads: u32) {
        if node.level == 0 {
            let is_there = key.is_multiple_of(3) && key < 3 * KEYS;
            assert_eq!(node.value(key), is_there.then(|| key + 1), "key {key}");
            *self.found.entry(reads).or_default() += 1;
            return;
        }
        let below = node.entries.partition_point(|(first, _)| *first <= key) - 1;
        let addr = VirtAddr(node.entries[below].1);
        if self.over.is_some() {
            self.post(Operation::Node(key, addr), Work::Read { addr, buf: vec![0xee; NODE_LEN] });
            self.reads.insert(self.tickets, reads + 1);
        }
    }

    /// Handles a broken connection: computes the possible contents of memory.
    fn went_wrong(&mut self, asked: Operation, failure: Failure, buf: &[u8]) {
        *self.failed.entry(format!("{failure:?}")).or_default() += 1;
        let allowed = matches!(failure, Failure::Connection(_) | Failure::NotConnected { .. });
        assert!(allowed, "{asked:?}: {failure:?}");
        if self.beside.maybe.is_none()
            && matches!(asked, Operation::Write(..) | Operation::Add(_) | Operation::Read(..))
        {
            let sure = self.beside.bytes.iter().map(|&byte| BTreeSet::from([byte]));
            self.beside.maybe = Some((sure.collect(), 0));
        }
        match (&mut self.beside.maybe, asked) {
            (Some((bytes, _)), Operation::Write(at, before)) => {
                for (place, byte) in bytes[at..].iter_mut().zip(before) {
                    place.extend([byte, buf.first().copied().unwrap_or(byte)]);
                }
            }
            (Some((_, adds)), Operation::Add(_)) => *adds += 1,
            _ => {}
        }
    }

    /// Checks the contents after a failure against the model, which then takes them as its state.
    fn agree(&mut self, all: &[u8]) {
        let Some((maybe, adds)) = self.beside.maybe.take() else { return };
        for (at, (byte, may)) in all.iter().zip(&maybe).enumerate() {
            assert!(may.contains(byte), "byte {at} is {byte}, and may be {may:?}");
        }
        let word = u64::from_le_bytes(all[BESIDE..].try_into().expect("a word"));
        assert!((self.beside.word - adds..=self.beside.word).contains(&word), "{word}, {adds} open");
        self.beside = PlainConnection { bytes: all[..BESIDE].to_vec(), word, maybe: None };
    }

    /// Ensures that a working connection exists; the old one is taken down first.
    fn see_to_connection(&mut self) {
        let is_open = |qpn| self.world.host_machine(HOST).is_some_and(|host| host.is_open(qpn));
        if self.asked_connection.is_some() || self.over.is_some_and(is_open) {
            return;
        }
        let host = RoleId::Host(HOST);
        let (ticket, up) = match self.over {
            Some(qpn) => {
                self.world.tell_host(HOST, HostRequest::Close { qpn });
                (self.world.ask(host, Disconnect { host: HOST, qpn: qpn.get() }), false)
            }
            None => {
                let direct = Connect::new(HOST, 1, DOMAIN);
                let root = Some(self.root.0);
                (self.world.ask(host, Connect { through: true, root, ..direct }), true)
            }
        };
        self.asked_connection = Some((ticket, up));
    }

    fn step(&mut self) -> bool {
        let moved = self.world.step();
        self.world.check();
        while let Some((_, done)) = self.world.take_done() {
            self.ended(done);
        }
        for ticket in self.loads.clone() {
            if let Some(answer) = self.world.take_reply(ticket) {
                self.loads.remove(&ticket);
                self.loaded += u64::from(answer.is_ok());
                let code = answer.err().map(|error| error.code);
                let allowed = [ErrorCode::Conflict, ErrorCode::NotFound, ErrorCode::Unavailable];
                assert!(code.is_none_or(|code| allowed.contains(&code)), "{code:?}");
            }
        }
        if let Some((ticket, up)) = self.asked_connection
            && let Some(answer) = self.world.take_reply(ticket)
        {
            self.asked_connection = None;
            match answer {
                Ok(answer) if up => {
                    let info: ConnectionInfo = answer.try_into().expect("its answer");
                    self.over = Some(Qpn::new(info.qpn));
                    self.connects += 1;
                }
                // The connection was taken down, or went with its node.
                Ok(_) => self.over = None,
                Err(error) if error.code == ErrorCode::NotFound => self.over = None,
                Err(error) => assert_eq!(error.code, ErrorCode::Unavailable, "{error:?}"),
            }
        }
        moved
    }

    fn rest(&mut self) {
        while !self.open.is_empty() {
            assert!(self.step(), "nothing happens, and {:?} did not end", self.open);
        }
    }

    /// Publishes a selection of some accesses.
    fn publish(&mut self) {
        let mut nodes: Vec<_> = self.nodes.clone().into_iter().collect();
        // The root first.
        nodes.sort_by_key(|(at, _)| *at != self.root);
        let view = view(&nodes, &mut self.rng);
        // To any of the switches: each has tables of another moment.
        let switch =
            Some(u16::try_from(self.below(usize::from(self.index) + 1)).expect("few")).filter(|n| *n > 0);
        // Switches below the core have no fat root.
        let ranges_max = if switch.is_some_and(|switch| switch > 1) { 1 } else { 30 };
        let mut ranges: Vec<Range> = fat_root(&view, 1 + self.below(ranges_max));
        let sets = select_layers(&view, &ranges, self.rng.below(4) as usize, 1 + self.rng.below(8) as usize);
        if ranges_max == 1 {
            ranges = vec![Range { first: 0, last: u64::MAX, child: Child { addr: self.root, level: 3 } }];
        }
        let section = TreeSection { root: self.root, programs: Vec::new(), ranges, sets };
        let bytes = Base64(section.emit());
        let sections = vec![SoftSection { kind: SECTION_KIND, id: self.root.0, bytes }];
        let load = SoftLoad { host: HOST, domain: DOMAIN, sections, switch };
        self.loads.insert(self.world.ask(RoleId::Control, load));
    }

    fn work(&mut self, turns: u32, crashes: &[RoleId]) {
        for _ in 0..turns {
            self.see_to_connection();
            if self.over.is_some() && self.open.len() < OPEN_MAX {
                if self.rng.chance(2, 3) {
                    self.look_up();
                } else {
                    self.ordinary();
                }
            }
            match self.rng.below(100) {
                0..=3 => self.publish(),
                4 => {
                    let switch = Some(self.index).filter(|n| *n > 0 && self.rng.chance(1, 2));
                    let clear = SoftClear { domain: DOMAIN, sections: Vec::new(), switch };
                    self.loads.insert(self.world.ask(RoleId::Control, clear));
                }
                5 if !crashes.is_empty() => {
                    let role = crashes[self.below(crashes.len())];
                    let down = Duration::from_micros(u64::from(self.rng.below(4_000)));
                    self.world.crash_for(role, down);
                }
                _ => {}
            }
            for _ in 0..self.rng.below(12) {
                self.step();
            }
        }
        self.heal();
    }

    fn heal(&mut self) {
        self.world.end_faults();
        let mut steps = 0..400_000;
        while self.step() {
            assert!(steps.next().is_some(), "the rack comes to rest");
        }
        assert_eq!((self.open.len(), self.loads.len()), (0, 0), "every request is answered");
    }

    /// Checks that look-ups and verbs succeed in a healed rack.
    fn works(&mut self) {
        for _ in 0..3 {
            self.see_to_connection();
            self.heal();
        }
        let (before, failed) = (self.found.values().sum::<u64>(), self.failed.clone());
        for _ in 0..40 {
            self.look_up();
            self.ordinary();
            self.rest();
        }
        assert_eq!(self.failed, failed);
        assert_eq!(self.found.values().sum::<u64>() - before, 40);
    }
}

/// Sums of the notes of worlds, by the beginning of the note.
#[derive(Default)]
struct Counts(BTreeMap<String, u64>);

impl Counts {
    fn add(&mut self, bench: &Bench) {
        for (note, count) in bench.world.journal().notes() {
            *self.0.entry(note.clone()).or_default() += count;
        }
    }

    fn count(&self, mark: &str) -> u64 {
        self.0.iter().filter(|(note, _)| note.contains(mark)).map(|(_, count)| count).sum()
    }
}

#[test]
fn every_byte_is_right_while_images_load() {
    let (mut found, mut seen, mut loaded) = (BTreeMap::new(), Counts::default(), 0);
    for plan in [Plan::CALM, Plan::LOSS, Plan::DUPLICATE, Plan::REORDER, Plan::STORM] {
        for seed in 0..10 {
            let mut bench = Bench::new(plan, seed);
            bench.work(600, &[]);
            bench.works();
            bench.found.iter().for_each(|(n, times)| *found.entry(*n).or_insert(0) += times);
            loaded += bench.loaded;
            seen.add(&bench);
        }
    }
    assert_eq!(
        found.keys().copied().collect::<Vec<_>>(),
        [1, 2, 3, 4],
        "from the leaf to the root: {found:?}"
    );
    assert!(loaded > 300, "{loaded} images became active");
    for mark in ["switch.Keyed", "switch.Relayed", "Connection(DuplicateElsewhere"] {
        assert!(seen.count(mark) > 0, "{mark} in none of {:?}", seen.0);
    }
}

#[test]
fn every_byte_is_right_whichever_role_starts_again() {
    let (mut connects, mut failed) = (0, BTreeMap::new());
    for plan in [Plan::CALM, Plan::REORDER, Plan::STORM] {
        for seed in 0..12 {
            let mut bench = Bench::new(plan, seed);
            bench.work(600, &[RoleId::Switch, RoleId::Control]);
            bench.works();
            connects += bench.connects;
            bench.failed.iter().for_each(|(why, times)| *failed.entry(why.clone()).or_insert(0) += times);
        }
    }
    assert!(connects > 36, "some connections broke: {connects}, {failed:?}");
}

/// PROTOCOL 16.10 to 16.14: a path through a core, a pod and its edges, each with tables of another moment,
/// while these load and restart. Ordinary verbs of the same connection go straight, and overtake.
#[test]
fn every_byte_is_right_by_way_of_a_fat_tree() {
    let (mut found, mut seen) = (BTreeMap::new(), Counts::default());
    let crashes: Vec<RoleId> = (1..=4).map(RoleId::Index).collect();
    for plan in [Plan::CALM, Plan::LOSS, Plan::DUPLICATE, Plan::REORDER, Plan::STORM] {
        for seed in 0..8 {
            let mut bench = Bench::behind(1, plan, seed);
            bench.work(600, if seed < 4 { &[] } else { &crashes });
            bench.works();
            bench.found.iter().for_each(|(n, times)| *found.entry(*n).or_insert(0) += times);
            seen.add(&bench);
        }
    }
    assert_eq!(
        found.keys().copied().collect::<Vec<_>>(),
        [1, 2, 3, 4],
        "from the leaf to the root: {found:?}"
    );
    for mark in ["switch.KeyedUp", "index.KeyedDown", "index.KeyedOut", "index.KeyedBack"] {
        assert!(seen.count(mark) > 20, "{mark} in few of {:?}", seen.0);
    }
}

/// PROTOCOL 7.43, 8.6: a restarted node has lost its memory. Until its owner accepts the loss, no READ
/// returns anything, by key or by address; then a new connection works.
#[test]
fn nothing_comes_of_a_node_that_lost_its_bytes() {
    for seed in 0..12 {
        let mut bench = Bench::new(Plan::REORDER, seed);
        bench.work(150, &[]);
        let good = bench.found.values().sum::<u64>();
        assert!(good > 0);
        bench.world.crash_for(RoleId::Node(1), Duration::from_micros(500));
        bench.lost = true;
        bench.beside.maybe = Some((vec![BTreeSet::new(); BESIDE], 0));
        let mut tried = 0;
        while tried < 20 {
            bench.see_to_connection();
            if bench.over.is_some() && bench.asked_connection.is_none() && bench.open.is_empty() {
                bench.look_up();
                tried += 1;
            }
            if bench.rng.chance(1, 30) {
                bench.publish();
            }
            assert!(bench.step() || bench.open.is_empty());
        }
        bench.heal();
        assert_eq!(bench.found.values().sum::<u64>(), good, "nothing was found");
        assert!(bench.failed.contains_key(&format!("{:?}", Failure::Connection(rc::Failure::RemoteAccess))));
        for (base, len) in [(bench.root.0 & !0xffff, 1 << 16), (bench.beside_at.0, 4096)] {
            let accept = AcceptLost { domain: DOMAIN, base, len };
            bench.world.call(RoleId::Host(HOST), accept).expect("its owner accepts it");
        }
        bench.lost = false;
        bench.beside = PlainConnection { bytes: vec![0; BESIDE], word: 0, maybe: None };
        bench.write_tree();
        bench.works();
    }
}
