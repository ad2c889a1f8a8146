//! Random histories: many requests in flight at once, frames lost, doubled and late, roles cut off and
//! restarted, tables full, and crashes of the control plane between any two actions. In the end every caller
//! was answered once, the log leads to the state of the control plane, and every role knows exactly what it
//! must.

use crate::rack::peer::{Budget, QueuePairRow};
use crate::rack::{Answer, Faults, Rack, restored, text};
use farmem_control::api::*;
use farmem_control::{Config, Control, PAGE, STALL_RETRY};
use farmem_machine::{Duration, Machine, Port, Rng};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const NODES: u8 = 3;
const HOSTS: u8 = 3;
const DOMAINS: u32 = 3;
/// The domain whose processes make memory system calls.
const PROGRAMS: u32 = DOMAINS + 1;
/// The first address of far memory.
const FIRST: u64 = 0x1000_0000_0000;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    JoinSwitch,
    JoinNode(u8),
    JoinHost(u8),
    LeaveNode(u8),
    LeaveHost(u8),
    Session {
        host: u8,
        domain: u32,
    },
    Connect {
        host: u8,
        node: u8,
        domain: u32,
        /// A number assigned by a card.
        own: Option<u32>,
    },
    Disconnect(usize),
    Renew {
        host: u8,
        generation: u16,
        flushed: bool,
    },
    Recover(u8),
    Allocate {
        domain: u32,
        pages: u64,
        node: Option<u8>,
    },
    Free(usize),
    /// Accepts this many lost pages of a vma, from this page on.
    Accept {
        vma: usize,
        page: u64,
        pages: u64,
    },
    Grant {
        vma: usize,
        from: u64,
        blocks: u64,
        to: u32,
        perm: PermName,
    },
    Start {
        heap: u64,
    },
    Exit(usize),
    Map {
        process: usize,
        page: u64,
        pages: u64,
        fixed: bool,
    },
    Unmap {
        process: usize,
        page: u64,
        pages: u64,
    },
    Turn {
        process: usize,
        page: u64,
        pages: u64,
        prot: u32,
    },
    /// Moves a part of a vma: this many pages from this page on.
    Migrate {
        vma: usize,
        page: u64,
        log2: u32,
        node: u8,
    },
    /// A node pushes what is to move, or delays it.
    Push(u8, bool),
    /// Time passes, in milliseconds.
    Pass(u64),
    /// A port is cut off, or reached again.
    Cut(u8, bool),
    /// Sets how much room a role has.
    Room(u8, Option<usize>),
    /// The disk of the log is full, or has room.
    Fill(bool),
    /// The control plane crashes after this many more actions.
    Die(usize),
    Restart,
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let (node, host, domain) = (1..=NODES, 1..=HOSTS, 1..=DOMAINS);
    let perm = prop::sample::select(vec![PermName::None, PermName::Read, PermName::ReadWrite]);
    prop_oneof![
        2 => Just(Step::JoinSwitch),
        2 => node.clone().prop_map(Step::JoinNode),
        2 => host.clone().prop_map(Step::JoinHost),
        1 => node.clone().prop_map(Step::LeaveNode),
        1 => host.clone().prop_map(Step::LeaveHost),
        4 => (host.clone(), domain.clone()).prop_map(|(host, domain)| Step::Session { host, domain }),
        4 => (host, node.clone(), domain.clone(), prop::option::of(15u32..19)).prop_map(|(host, node, domain, own)| Step::Connect { host, node, domain, own }),
        2 => any::<usize>().prop_map(Step::Disconnect),
        6 => (1..=HOSTS, 1u16..4, any::<bool>()).prop_map(|(host, generation, flushed)| Step::Renew { host, generation, flushed }),
        1 => (1..=HOSTS).prop_map(Step::Recover),
        8 => (domain.clone(), 1u64..9, prop::option::weighted(0.3, node)).prop_map(|(domain, pages, node)| Step::Allocate { domain, pages, node }),
        6 => any::<usize>().prop_map(Step::Free),
        3 => (any::<usize>(), 0u64..8, 1u64..4).prop_map(|(vma, page, pages)| Step::Accept { vma, page, pages }),
        8 => (any::<usize>(), 0u64..16, 1u64..16, domain, perm).prop_map(|(vma, from, blocks, to, perm)| Step::Grant { vma, from, blocks, to, perm }),
        2 => (0u64..3).prop_map(|heap| Step::Start { heap }),
        1 => any::<usize>().prop_map(Step::Exit),
        6 => (any::<usize>(), 0u64..64, 1u64..6, any::<bool>()).prop_map(|(process, page, pages, fixed)| Step::Map { process, page, pages, fixed }),
        4 => (any::<usize>(), 0u64..64, 1u64..6).prop_map(|(process, page, pages)| Step::Unmap { process, page, pages }),
        3 => (any::<usize>(), 0u64..64, 1u64..6, 0u32..4).prop_map(|(process, page, pages, prot)| Step::Turn { process, page, pages, prot }),
        8 => (any::<usize>(), 0u64..16, 0u32..3, 1..=NODES).prop_map(|(vma, page, log2, node)| Step::Migrate { vma, page, log2, node }),
        1 => (1..=NODES, any::<bool>()).prop_map(|(node, ends)| Step::Push(node, ends)),
        7 => (0u64..400).prop_map(Step::Pass),
        1 => (2_000u64..3_000).prop_map(Step::Pass),
        2 => (0..=NODES, any::<bool>()).prop_map(|(role, cut)| Step::Cut(role, cut)),
        1 => (0..=NODES, prop::option::of(0usize..60)).prop_map(|(role, room)| Step::Room(role, room)),
        2 => any::<bool>().prop_map(Step::Fill),
        1 => (1usize..40).prop_map(Step::Die),
        1 => Just(Step::Restart),
    ]
}

pub(crate) fn faults() -> impl Strategy<Value = Faults> {
    let lossy = (0u32..40, 0u32..40, 0u32..120_000).prop_map(|(lose, double, delay_us)| Faults {
        lose,
        double,
        delay_us,
    });
    prop_oneof![1 => Just(Faults::default()), 3 => lossy]
}

fn role(number: u8) -> Port {
    if number == 0 { Port::SWITCH } else { Port::node(u16::from(number)) }
}

/// State that the caller derives from the answers alone.
#[derive(Default)]
pub(crate) struct Caller {
    vmas: BTreeMap<u64, VmaInfo>,
    /// Host, and its queue pair.
    connections: BTreeSet<(u16, u32)>,
    processes: Vec<u32>,
    /// A free was left to end by itself.
    unsure: bool,
    /// Number of answers read.
    heard: usize,
}

impl Caller {
    fn process(&self, index: usize) -> Option<u32> {
        self.processes.get(index % self.processes.len().max(1)).copied()
    }

    fn vma(&self, index: usize) -> Option<&VmaInfo> {
        self.vmas.values().nth(index % self.vmas.len().max(1))
    }

    /// Reads the new answers, in the order in which they came.
    fn listen(&mut self, rack: &Rack) {
        for &ticket in &rack.answered[self.heard..] {
            self.hear(rack.request(ticket), rack.answer(ticket).expect("it was answered"));
        }
        self.heard = rack.answered.len();
    }

    fn hear(&mut self, request: &Request, answer: &Answer) {
        match (request, answer) {
            (_, Ok(Response::Vma(vma))) => {
                assert_eq!(self.vmas.insert(vma.base, vma.clone()), None, "{vma:?} is handed out twice");
            }
            (Request::Free(Free { base, .. }), Ok(_)) => {
                self.vmas.remove(base);
            }
            // The vma may be freed or not: the caller has to look.
            (Request::Free(Free { base, .. }), Err(error))
                if error.message == "cut off" || error.message.ends_with("if its roles accept it then") =>
            {
                self.vmas.remove(base);
                self.unsure = true;
            }
            (_, Ok(Response::Process(started))) => self.processes.push(started.process),
            (Request::Connect(call), Ok(Response::Connection(made))) => {
                self.connections.insert((call.host, made.qpn));
            }
            (_, Err(error)) => {
                assert!(!error.message.is_empty() && !error.remedy.is_empty());
                assert!(error.code != ErrorCode::Storage || error.message.contains("disk is full"));
            }
            (_, Ok(_)) => {}
        }
    }
}

fn play(rack: &mut Rack, caller: &Caller, step: Step) {
    let port = |host: u8| Port::host(u16::from(host)).0;
    let request: Request = match step {
        Step::JoinSwitch => JoinSwitch { gid: text(2) }.into(),
        Step::JoinNode(node) => join_node(node).into(),
        Step::JoinHost(host) => JoinHost::new(format!("h{host}"), text(100 + host)).into(),
        Step::LeaveNode(node) => Leave::new(role(node).0).into(),
        Step::LeaveHost(host) => Leave::new(port(host)).into(),
        Step::Session { host, domain } => OpenSession { host: host.into(), domain }.into(),
        Step::Connect { host, node, domain, own } => {
            let through = domain % 2 == 0;
            Connect { qpn: own, through, ..Connect::new(host.into(), node.into(), domain) }.into()
        }
        Step::Disconnect(index) => {
            let nth = index % caller.connections.len().max(1);
            let Some(&(host, qpn)) = caller.connections.iter().nth(nth) else { return };
            Disconnect { host, qpn }.into()
        }
        Step::Renew { host, generation, flushed } => {
            let (host, flushed) = (u16::from(host), if flushed { u64::MAX } else { 0 });
            let qkey = rack.qkeys.get(&host).copied().unwrap_or(0);
            Renew { host, generation, flushed, qkey }.into()
        }
        Step::Recover(host) => Recover { host: host.into(), page: FIRST }.into(),
        Step::Allocate { domain, pages, node } => {
            Allocate { domain, size: pages * PAGE, node: node.map(u16::from), durable: false }.into()
        }
        Step::Free(index) => {
            let Some(vma) = caller.vma(index) else { return };
            Free { domain: vma.domain, base: vma.base, id: vma.id }.into()
        }
        Step::Accept { vma, page, pages } => {
            let Some(vma) = caller.vma(vma) else { return };
            let from = page * PAGE % vma.size;
            let len = (pages * PAGE).min(vma.size - from);
            AcceptLost { domain: vma.domain, base: vma.base + from, len }.into()
        }
        Step::Grant { vma, from, blocks, to, perm } => {
            let Some(vma) = caller.vma(vma) else { return };
            let from = from * 1024 % vma.size;
            let len = (blocks * 1024).min(vma.size - from);
            Grant { domain: vma.domain, base: vma.base + from, len, to, perm }.into()
        }
        Step::Migrate { vma, page, log2, node } => {
            let size = PAGE << log2;
            let base = match caller.vma(vma) {
                Some(vma) => vma.base + page * PAGE % vma.size,
                None => FIRST + page * PAGE,
            };
            Migrate { domain: None, base: base / size * size, len: size, node: node.into() }.into()
        }
        Step::Fill(full) => {
            rack.disk.iter().for_each(|disk| disk.fill(full));
            return;
        }
        Step::Push(node, ends) => {
            if let Some(peer) = rack.peers.get_mut(&role(node)) {
                peer.left_to_push = if ends { Some(0) } else { Some(5) };
            }
            return;
        }
        Step::Start { heap } => ProcessStart { domain: PROGRAMS, heap: heap * PAGE }.into(),
        Step::Exit(index) => {
            let Some(process) = caller.process(index) else { return };
            ProcessExit { process }.into()
        }
        Step::Map { process, page, pages, fixed } => {
            let Some(process) = caller.process(process) else { return };
            let (addr, flags) = if fixed { (FIRST + page * PAGE, 0x32) } else { (0, 0x22) };
            Mmap { process, addr, len: pages * PAGE, prot: 3, flags }.into()
        }
        Step::Unmap { process, page, pages } => {
            let Some(process) = caller.process(process) else { return };
            Munmap { process, addr: FIRST + page * PAGE, len: pages * PAGE }.into()
        }
        Step::Turn { process, page, pages, prot } => {
            let Some(process) = caller.process(process) else { return };
            Mprotect { process, addr: FIRST + page * PAGE, len: pages * PAGE, prot }.into()
        }
        Step::Pass(millis) => return rack.pass(Duration::from_millis(millis)),
        Step::Cut(number, true) => {
            rack.cut.insert(role(number));
            return;
        }
        Step::Cut(number, false) => {
            rack.cut.remove(&role(number));
            return;
        }
        Step::Room(number, room) => return give_room(rack, role(number), room),
        Step::Die(actions) => return rack.crash_in = Some(actions),
        Step::Restart => return rack.restart(),
    };
    rack.ask(request);
}

fn join_node(node: u8) -> JoinNode {
    JoinNode::new(format!("n{node}"), text(10 + node), 24 * PAGE)
}

fn give_room(rack: &mut Rack, port: Port, room: Option<usize>) {
    let Some(peer) = rack.peers.get_mut(&port) else { return };
    peer.budget = room.map_or_else(Budget::default, |room| Budget {
        perms: 4 * room,
        peers: 2 + room / 8,
        sessions: room / 8,
        queue_pairs: room / 8,
        outliers: room / 8,
        ..Budget::default()
    });
}

/// Heals the world: every role can be reached and has room, no frame is lost, and a role without a process
/// restarts.
fn heal(rack: &mut Rack) {
    rack.faults = Faults::default();
    rack.cut.clear();
    rack.crash_in = None;
    rack.disk.iter().for_each(|disk| disk.fill(false));
    let ports: Vec<Port> = rack.peers.keys().copied().collect();
    ports.into_iter().for_each(|port| give_room(rack, port, None));
    rack.pass(STALL_RETRY);
    rack.settle();
    for number in 0..=NODES {
        let join = if number == 0 { JoinSwitch { gid: text(2) }.into() } else { join_node(number).into() };
        if !in_step(rack, number) {
            rack.call::<Request>(join).expect("a healed rack takes every role back");
        }
    }
    rack.settle();
    // No host renews its lease: changes that take rights away wait until the leases have ended, and are
    // forgotten.
    for _ in 0..LEASES_MAX {
        if rack.open().is_empty() {
            return;
        }
        rack.pass(farmem_control::LEASE);
        rack.settle();
    }
}

/// Returns true if the role's process is the one that the control plane knows, and knows what it must.
fn in_step(rack: &Rack, number: u8) -> bool {
    let rows: Vec<serde_json::Value> =
        rack.control.compact().iter().map(|row| serde_json::to_value(row).unwrap()).collect();
    let queue = rows.iter().filter_map(|row| row.get("Queue")).find(|queue| match number {
        0 => queue["role"] == "Switch",
        _ => rows
            .iter()
            .filter_map(|row| row.get("Node"))
            .any(|node| node["row"]["name"] == format!("n{number}") && queue["role"]["Node"] == node["node"]),
    });
    queue.is_some_and(|queue| {
        let idle = queue["queue"]["batches"].as_array().is_some_and(Vec::is_empty);
        queue["queue"]["reach"] == "Ready" && idle
    })
}

/// Leases that end one after the other when hosts depend on each other's. There are few hosts.
const LEASES_MAX: u64 = 8;

fn history(faults: Faults, steps: &[Step], seed: u64) -> (Rack, Caller) {
    history_of(crate::rack::config(), faults, steps, seed)
}

/// Plays a history in a rack with this configuration.
pub(crate) fn history_of(config: Config, faults: Faults, steps: &[Step], seed: u64) -> (Rack, Caller) {
    let mut rack = Rack::with(seed, Config { retries_max: 4, ..config });
    // Without a log of its own the control plane has its lines kept by its driver.
    if !seed.is_multiple_of(4) {
        rack.lend_disk();
    }
    let mut caller = Caller::default();
    for domain in 1..=PROGRAMS {
        rack.domain(&format!("d{domain}"));
    }
    rack.join_switch().unwrap();
    rack.call(join_node(1)).unwrap();
    rack.call(join_node(2)).unwrap();
    rack.join_host(1);
    rack.faults = faults;
    for &step in steps {
        play(&mut rack, &caller, step);
        caller.listen(&rack);
    }
    heal(&mut rack);
    caller.listen(&rack);
    assert_eq!(rack.open(), Vec::<u64>::new(), "every request has its answer");
    (rack, caller)
}

/// Checks that all usable memory at a node has what was written to it, or the node knows that it is lost: no
/// host reads zeros in silence.
fn check_lost(rack: &mut Rack) -> Result<(), TestCaseError> {
    let RackOverview { nodes, vmas, moved, .. } = rack.call(Overview {}).unwrap();
    for vma in vmas {
        for page in vma.base / PAGE..(vma.base + vma.size) / PAGE {
            let piece = moved.iter().find(|piece| (page * PAGE).wrapping_sub(piece.base) < piece.size);
            let node = piece.map_or(vma.node, |piece| piece.node);
            let port = nodes.iter().find(|info| info.node == node).expect("its node is there").port;
            let peer = &rack.peers[&Port(port)];
            if peer.may(vma.domain, page * PAGE) == farmem_wire::Perm::None {
                continue; // not mapped
            }
            let (kept, lost) = (peer.kept.contains(&page), peer.lost.contains(&page));
            prop_assert!(kept != lost, "page {:#x} at {:?}: kept {}, lost {}", page, peer.port, kept, lost);
        }
    }
    Ok(())
}

fn check_end(rack: &mut Rack, caller: &Caller) -> Result<(), TestCaseError> {
    check_lost(rack)?;
    rack.check_log();
    let ports: Vec<Port> = rack.peers.keys().copied().collect();
    let RackOverview { nodes, vmas, .. } = rack.call(Overview {}).unwrap();
    for port in ports {
        if port == Port::SWITCH || nodes.iter().any(|node| node.port == port.0) {
            rack.check_tables(port);
        }
    }
    for (port, peer) in &rack.peers {
        prop_assert!(peer.tables.vacated.is_empty(), "{:?} waits for a migration", port);
    }
    let allocated: u64 = nodes.iter().map(|node| node.allocated).sum();
    prop_assert_eq!(allocated, vmas.iter().map(|vma| vma.size).sum::<u64>());
    // The caller has everything it was told it has. It can have more only if the answer was cut off.
    let there: BTreeMap<u64, VmaInfo> =
        vmas.into_iter().filter(|vma| vma.domain != PROGRAMS).map(|vma| (vma.base, vma)).collect();
    for (base, vma) in &caller.vmas {
        prop_assert_eq!(there.get(base), Some(vma), "a vma is lost");
    }
    prop_assert!(
        rack.restarts > 0 || caller.unsure || there.len() == caller.vmas.len(),
        "a vma without a request"
    );
    Ok(())
}

/// Checks that the connections in the rows are those the nodes have, with the same numbers, and that the
/// switch has those that go through it.
fn check_connections(rack: &Rack) -> Result<(), TestCaseError> {
    let mut expected: BTreeMap<Port, BTreeMap<u32, QueuePairRow>> = BTreeMap::new();
    let mut relayed = BTreeMap::new();
    for row in rack.control.compact() {
        let row = serde_json::to_value(&row).unwrap();
        let Some(row) = row.get("Connection") else { continue };
        let number = |field: &str| u32::try_from(row[field].as_u64().unwrap()).unwrap();
        let half = |field: &str| u16::try_from(number(field)).unwrap();
        let through = row.get("through").map(|through| {
            let of = |field: &str| u32::try_from(through[field].as_u64().unwrap()).unwrap();
            relayed.insert(of("to_node"), (of("to_host"), half("host"), half("node"), number("rkey")));
            (of("to_host"), Port::SWITCH.0)
        });
        let (peer_qpn, peer_port) = through.unwrap_or_else(|| (number("qpn"), Port::host(half("host")).0));
        let told = (peer_qpn, peer_port, number("first_psn"), number("rkey"), number("domain"));
        expected.entry(Port::node(half("node"))).or_default().insert(number("peer_qpn"), told);
    }
    for (port, peer) in rack.peers.iter().filter(|(port, _)| rack.known.contains(port)) {
        let has = peer
            .tables
            .connections
            .iter()
            .map(|(&to_node, of)| (to_node, (of.to_host.get(), of.host.0, of.node.0, of.rkey.0)));
        let expects = if *port == Port::SWITCH { core::mem::take(&mut relayed) } else { BTreeMap::new() };
        prop_assert_eq!(has.collect::<BTreeMap<_, _>>(), expects, "{:?}", port);
        prop_assert_eq!(&peer.tables.queue_pairs, &expected.remove(port).unwrap_or_default(), "{:?}", port);
    }
    prop_assert!(expected.is_empty());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn everybody_agrees_in_the_end(faults in faults(), steps in prop::collection::vec(step(), 1..90), seed in any::<u64>()) {
        let (mut rack, caller) = history(faults, &steps, seed);
        check_connections(&rack)?;
        check_end(&mut rack, &caller)?;
    }

    /// The log cut off after any line is the log of a rack: it reads back, is consistent, and can be
    /// continued.
    #[test]
    fn every_prefix_of_a_log_is_a_state(faults in faults(), steps in prop::collection::vec(step(), 1..60), seed in any::<u64>()) {
        let (rack, _) = history(faults, &steps, seed);
        for len in 0..=rack.log.len() {
            let control = restored(&rack.config, seed, &rack.log[..len]);
            let rows = control.compact();
            let again = Control::restore(rack.config.clone(), Rng::from_number(seed), rows.clone()).unwrap();
            again.check();
            prop_assert_eq!(again.compact(), rows);
        }
    }

    /// Equal seeds and steps give equal logs, to the byte.
    #[test]
    fn the_same_seed_gives_the_same_log(faults in faults(), steps in prop::collection::vec(step(), 1..40), seed in any::<u64>()) {
        let (one, _) = history(faults, &steps, seed);
        let (two, _) = history(faults, &steps, seed);
        prop_assert_eq!(one.log, two.log);
        prop_assert_eq!(one.trace, two.trace);
    }
}

/// The histories reach every note of the control plane: a mark that no history reaches is a case that no test
/// covers. (A role is gone only when its tables are too small for what they held before; `failures.rs` covers
/// that.)
#[test]
fn every_note_is_reached() {
    use farmem_control::{DropReason, Note, Role};
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let steps = prop::collection::vec(step(), 60..90).new_tree(&mut runner).unwrap().current();
        let (rack, _) = history(Faults { lose: 20, double: 20, delay_us: 60_000 }, &steps, seed);
        let name = |note: &Note| match note {
            Note::Dropped(DropReason::Stale) => "stale",
            Note::Dropped(
                DropReason::Endpoint | DropReason::Port | DropReason::Kind | DropReason::Malformed,
            ) => "dropped",
            Note::Retransmitted(_) => "retransmitted",
            Note::Silent(Role::Switch) => "silent switch",
            Note::Silent(Role::Node(_)) => "silent node",
            // These histories have no index switches. Those of sim do.
            Note::Silent(Role::Index(_)) => "silent index switch",
            Note::Back(_) => "back",
            Note::Refused(..) => "refused",
            Note::MustRejoin(_) => "gone",
            Note::TakenBack => "taken back",
            Note::BegunAnew => "begun anew",
            Note::Waits => "waits",
            Note::Fenced(_) => "fenced",
            Note::Swept => "swept",
            Note::ResetEnded => "reset",
            Note::Listed => "listed",
            Note::Advanced => "advanced",
            Note::GivenUp => "given up",
            Note::Dropped(DropReason::NotKept) => "not kept",
            Note::Stalled => "stalled",
            Note::KeepsAgain => "keeps again",
            // The image tests in sim cover images, beside a real switch.
            Note::SoftRefused => "image refused",
            // Only `storage.rs` has a log of this length.
            Note::Shortened => "shortened",
            // `files.rs` and worlds of sim cover this.
            Note::FileEnded => "file ended",
            // `addresses.rs` covers this.
            Note::Unproven(_) => "unproven",
            // `wear.rs` covers this.
            Note::DomainGone(_) | Note::Lapsed(_) | Note::Reclaimed => "gone by itself",
        };
        seen.extend(rack.notes.iter().map(name));
    }
    for wanted in [
        "stale",
        "retransmitted",
        "silent switch",
        "silent node",
        "back",
        "refused",
        "taken back",
        "begun anew",
        "waits",
        "swept",
        "fenced",
        "listed",
        "advanced",
        "given up",
        "not kept",
        "stalled",
        "keeps again",
    ] {
        assert!(seen.contains(wanted), "no history reaches {wanted}: {seen:?}");
    }
}
