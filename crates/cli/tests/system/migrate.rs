//! Tests of `farmem migrate` on a rack of processes, while programs use the moving memory.

use crate::process::run;
use crate::rack::Description;
use farmem::{Client, NodeId, Op, Program, VirtAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, ScopedJoinHandle};

const PAGE: u64 = 4096;
/// Number of used pages.
const PAGES: u64 = 16;
/// Number of moves of all pages to the other node and back.
const ROUNDS: u32 = 6;

/// Program that adds to the first word of each node of a chain of {value, next}, and counts the nodes.
const LIST_ADD: &str = include_str!("../../../../testdata/programs/list_add.pulse");

fn at(base: VirtAddr, offset: u64) -> VirtAddr {
    VirtAddr(base.0 + offset)
}

fn word(client: &mut Client, addr: VirtAddr) -> u64 {
    let mut word = [0; 8];
    client.read(addr, &mut word).unwrap();
    u64::from_le_bytes(word)
}

/// State that the programs and their test share.
#[derive(Default)]
struct Signals {
    /// Number of programs that have started their work.
    begun: AtomicU32,
    stop: AtomicBool,
}

impl Signals {
    fn goes_on(&self, done: u64) -> bool {
        if done == 1 {
            self.begun.fetch_add(1, Ordering::Relaxed);
        }
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Guard that stops the programs, also after a failure of the test.
struct Stopping<'a>(&'a Signals);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

/// Adds to counters on all pages, with many operations in flight, and reads constant bytes, until `signals` says
/// stop. Returns the number of additions.
fn add(description: &Description, base: VirtAddr, signals: &Signals) -> u64 {
    let mut client = description.client("d");
    let mut rounds = 0;
    while signals.goes_on(rounds) {
        let tickets: Vec<_> = (0..PAGES)
            .map(|page| client.submit(Op::FetchAdd { addr: at(base, page * PAGE), add: 1 + page }).unwrap())
            .collect();
        let mut mark = vec![0; 6000];
        client.read(at(base, 3 * PAGE + 3000), &mut mark).unwrap();
        assert!(mark[..1096].iter().all(|&byte| byte == 0xab), "it crosses from page to page");
        for ticket in tickets {
            client.wait(ticket).unwrap().result.unwrap();
        }
        rounds += 1;
    }
    rounds
}

/// Traverses all pages until `signals` says stop. Returns the number of traversals.
fn walk(description: &Description, base: VirtAddr, signals: &Signals) -> u64 {
    let mut client = description.client("d");
    let program = Program::assemble(LIST_ADD).unwrap();
    let add_one = [1u64, 0].map(u64::to_le_bytes);
    let mut walks = 0;
    while signals.goes_on(walks) {
        let end = client.traverse(&program, at(base, 64), add_one.concat(), 1000).unwrap();
        assert_eq!((end.end.returned, end.end.iterations), (true, 16));
        walks += 1;
    }
    walks
}

/// Counters and a chain share pages, which move back and forth between two nodes. Two programs use them by
/// verbs, one by traversals that store. Every addition counts once, and every traversal counts every node
/// once.
fn programs_go_on(transport: &'static str) {
    let description = Description::new("migrate", transport);
    let mut up = description.up();
    let mut client = description.client("d");
    let vma = client.allocate_on(PAGES * PAGE, NodeId(1)).unwrap();
    let base = vma.base;
    for page in 0..PAGES {
        let next = if page + 1 == PAGES { 0 } else { base.0 + (page + 1) * PAGE + 64 };
        client.write(at(base, page * PAGE + 64), &[0u64.to_le_bytes(), next.to_le_bytes()].concat()).unwrap();
    }
    client.write(at(base, 3 * PAGE + 3000), &[0xab; 1096]).unwrap();
    let signals = Signals::default();
    let (file, first) = (description.file(), format!("{:#x}", base.0));
    let (added, walks) = thread::scope(|scope| {
        let adders = [(); 2].map(|()| scope.spawn(|| add(&description, base, &signals)));
        let walker = scope.spawn(|| walk(&description, base, &signals));
        let stopping = Stopping(&signals);
        let failed = || walker.is_finished() || adders.iter().any(ScopedJoinHandle::is_finished);
        while signals.begun.load(Ordering::Relaxed) < 3 && !failed() {
            thread::yield_now();
        }
        for round in 0..ROUNDS {
            for to in ["2", "1"] {
                // Every second round moves a part first, so that traversals and reads cross between the
                // nodes.
                let len = (PAGES / 4 * PAGE).to_string();
                if round % 2 == 1 {
                    let args = ["migrate", "--rack", &file, "--base", &first, "--len", &len, "--node", to];
                    assert_eq!(run(&args).code, Some(0));
                }
                let ended = run(&["migrate", "--rack", &file, "--base", &first, "--node", to, "--json"]);
                let bytes = ended.json()["bytes"].as_u64();
                assert_eq!(bytes, Some(PAGES * PAGE), "{}", ended.stderr);
            }
        }
        drop(stopping);
        (adders.map(|adder| adder.join().unwrap()).iter().sum::<u64>(), walker.join().unwrap())
    });
    assert!(added > 0 && walks > 0, "{added} {walks}");
    for page in 0..PAGES {
        assert_eq!(word(&mut client, at(base, page * PAGE)), added * (1 + page), "page {page}");
        assert_eq!(word(&mut client, at(base, page * PAGE + 64)), walks, "page {page}");
    }
    assert!(up.is_whole(), "all roles are alive");
    assert_eq!(up.stop().stderr, "", "and had nothing to say");
}

#[test]
fn programs_go_on_over_udp() {
    programs_go_on("udp");
}

#[test]
fn programs_go_on_over_shared_memory() {
    programs_go_on("shm");
}

/// The command shows the places of memory before and after, and rejects invalid targets.
#[test]
fn migrate_lists_where_memory_is() {
    let description = Description::new("where", "shm");
    let up = description.up();
    let mut client = description.client("mine");
    let vma = client.allocate_on(8 * PAGE, NodeId(1)).unwrap();
    let file = description.file();
    let place = format!("{:#x}", vma.base.0 + 2 * PAGE);
    let ended = run(&["migrate", "--rack", &file, "--base", &place, "--len", "8KiB", "--node", "node2"]);
    assert!(ended.stdout.contains(&place) && ended.code == Some(0), "{}{}", ended.stdout, ended.stderr);
    let there = run(&["migrate", "--rack", &file, "--json"]).json();
    let allocation = &there["allocations"][0];
    assert_eq!(allocation["domain"], "mine");
    let moved = serde_json::json!([{"base": place, "bytes": 2 * PAGE, "node": 2, "node_name": "node2"}]);
    assert_eq!(allocation["moved"], moved);
    assert_eq!(there["nodes"][1]["allocated"], 2 * PAGE);
    assert!(run(&["migrate", "--rack", &file]).stdout.contains(&place));
    run(&["migrate", "--rack", &file, "--base", &place, "--len", "8KiB", "--node", "7"])
        .refuses(&["there is no memory node \"7\"", "node1, node2"]);
    run(&["migrate", "--rack", &file, "--base", &place, "--len", "4KiB", "--node", "1"])
        .refuses(&["moved together"]);
    run(&["migrate", "--rack", &file, "--base", &place, "--len", "100", "--node", "1"])
        .refuses(&["whole pages"]);
    run(&["migrate", "--rack", &file, "--base", "0x10", "--node", "1"]).refuses(&["no vma holds 0x10"]);
    assert_eq!(run(&["migrate", "--rack", &file, "--base", &place]).code, Some(2), "where to?");
    up.stop();
}
