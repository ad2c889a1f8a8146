//! Mixed work on one rack, round after round, a role killed in each: nothing of it stays, and no byte is wrong without a word (issue 16, *wear*).
//!
//! The gate plays two rounds. `scripts/soak` plays as many as fit the minutes that it is given, and writes what it counted.

use crate::faults::died_and_serves;
use crate::process::{Dir, Running, eventually, farmem, run, run_command};
use crate::rack::{Description, Up};
use crate::run::may_run;
use farmem::{Client, ClientOptions, Error, NodeId, PAGE_LEN, Rng, VirtAddr};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use std::{env, fs};

/// Bytes of each block that a client keeps across the death of a role.
const BLOCK: usize = 16 * PAGE_LEN;
/// How much larger a role may be after the last round than after the second.
const GROWTH_MAX: u64 = 32 << 20;

/// What is counted.
#[derive(Default)]
struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

/// A rack and what is done on it.
struct Soak<'a> {
    description: &'a Description,
    up: Up<'a>,
    dir: Dir,
    file: String,
    runs: bool,
    rng: Rng,
    counts: Counts,
}

impl Soak<'_> {
    fn round(&mut self, round: u64) {
        self.applications();
        self.programs();
        self.a_server_that_is_killed();
        self.a_host_that_is_never_heard_of_again(round);
        self.a_role_that_dies(round);
        self.counts.count("rounds");
    }

    /// Traversals, scans of an index, windows of a series, a graph: each holds its answers against its own.
    fn applications(&mut self) {
        let graph = self.dir.path().join("soak.fmg").display().to_string();
        if !fs::exists(&graph).unwrap() {
            let words = ["graph", "generate", "kronecker", &graph, "--scale", "9", "--symmetrize"];
            assert_eq!(run(&words).code, Some(0));
        }
        for words in [
            &["webservice", "--records", "95", "--operations", "100", "--workload", "A"][..],
            &["tablestore", "--records", "300", "--operations", "50"],
            &["timeseries", "--records", "1000", "--operations", "50"],
            &["orderedkv", "--records", "300", "--operations", "100"],
            &["graph", "bfs", &graph, "--check"],
        ] {
            let report = run(&[words, &["--json", "--rack", &self.file]].concat()).json();
            assert_eq!(report["wrong_answers"], 0, "{report}");
            self.counts.count("applications");
        }
    }

    /// Programs on far memory, alone and on shared memory.
    fn programs(&mut self) {
        if !self.runs {
            return;
        }
        let lines: Vec<String> = (0..20_000).map(|_| format!("{:08x}", self.rng.next_u32())).collect();
        let text = self.dir.file("lines", &(lines.join("\n") + "\n"));
        let mut sorted = lines;
        sorted.sort_unstable();
        for share in [&[][..], &["--share", "soak"]] {
            let words = [&["run", "--rack", &self.file, "--local", "1MiB"], share, &["--", "sort", &text]];
            let mut command = farmem(&words.concat());
            command.env("LC_ALL", "C");
            let ended = run_command(command);
            assert_eq!(ended.code, Some(0), "{ended:?}");
            assert!(
                ended.stdout.lines().eq(sorted.iter().map(String::as_str)),
                "sorted as beside far memory"
            );
            self.counts.count("programs");
        }
    }

    /// A server of Redis's protocol that keeps nothing on the disk: what it had in far memory goes with it.
    fn a_server_that_is_killed(&mut self) {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let words = ["kv", "--rack", &self.file, "--port", &port.to_string(), "--local", "67108864"];
        let mut server = Running::start(farmem(&words));
        let mut stream = None;
        eventually("the server listens", || {
            stream = TcpStream::connect(("127.0.0.1", port)).ok();
            stream.is_some()
        });
        let mut stream = BufReader::new(stream.unwrap());
        let mut ask = |words: &[&str]| {
            let mut request = format!("*{}\r\n", words.len());
            words.iter().for_each(|word| request += &format!("${}\r\n{word}\r\n", word.len()));
            stream.get_mut().write_all(request.as_bytes()).unwrap();
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        };
        for key in 0..50 {
            assert_eq!(ask(&["SET", &format!("key:{key}"), &"v".repeat(40_000)]), "+OK");
        }
        assert_eq!(ask(&["STRLEN", "key:17"]), ":40000");
        server.kill();
        self.counts.count("servers killed");
    }

    /// It joins by hand, takes memory that does not stay, and is gone.
    fn a_host_that_is_never_heard_of_again(&mut self, round: u64) {
        let ask = |name: &str, body: Value| {
            let (status, answer) = self.description.ask("POST", &format!("/v1/{name}"), &body.to_string());
            assert_eq!(status, 200, "{answer}");
            answer
        };
        let gid = self.description.address(200).to_string();
        let host = ask("join_host", json!({"name": format!("gone-{round}"), "gid": gid, "caches": false}));
        let domain = ask("create_domain", json!({"name": format!("gone-{round}")}));
        ask("open_session", json!({"host": host["host"], "domain": domain["domain"]}));
        ask("allocate", json!({"domain": domain["domain"], "size": 65_536}));
        eventually("its address is free again", || self.usage()["hosts"].as_array().unwrap().is_empty());
        self.counts.count("hosts gone");
    }

    /// A client has blocks on both nodes, and one moves between them; a role dies. What is read afterwards is what was written, or it is said to be lost.
    fn a_role_that_dies(&mut self, round: u64) {
        let options = ClientOptions { durable: round % 2 == 1, ..ClientOptions::default() };
        let mut client = self.description.rack().client_with(&format!("blocks-{round}"), options).unwrap();
        let blocks: Vec<(VirtAddr, Vec<u8>)> =
            [1, 2, 1].map(|node| write_block(&mut client, node, &mut self.rng)).into();
        let moving = format!("{:#x}", blocks[2].0.0);
        let moved = run(&["migrate", "--rack", &self.file, "--base", &moving, "--node", "2", "--json"]);
        assert_eq!(moved.json()["bytes"], BLOCK as u64);
        self.counts.count("migrations");
        let role = ["switch", "node node1", "control", "node node2"][usize::try_from(round % 4).unwrap()];
        died_and_serves(&mut self.up, role);
        self.counts.count("roles killed");
        let at = [Some("node node1"), Some("node node2"), Some("node node2")];
        for ((base, bytes), node) in blocks.iter().zip(at) {
            let mut read = vec![0; BLOCK];
            let mut result = client.read(*base, &mut read);
            if matches!(result, Err(Error::Unreachable { .. })) {
                result = client.read(*base, &mut read); // its connection went with the node, and this is another
            }
            match result {
                Ok(()) => assert!(read == *bytes, "round {round}: wrong bytes without a word at {base:?}"),
                Err(Error::MemoryLost { .. }) if node == Some(role) => self.counts.count("losses said"),
                Err(error) => panic!("round {round}, {role} died: {error}"),
            }
        }
        for (base, _) in blocks {
            client.free(base).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
    }

    fn usage(&self) -> Value {
        let (status, usage) = self.description.ask("POST", "/v1/usage", "{}");
        assert_eq!(status, 200, "{usage}");
        usage
    }

    /// Nothing is left of anything: hosts, domains, processes, memory.
    fn nothing_is_left(&mut self) {
        eventually("everything went with its user", || {
            let usage = self.usage();
            ["hosts", "domains", "vmas", "processes"].iter().all(|what| usage[what] == json!([]))
        });
        let overview = self.description.overview();
        let allocated = |node: &Value| node["allocated"] == 0;
        assert!(overview["nodes"].as_array().unwrap().iter().all(allocated), "{overview}");
        assert!(self.up.is_whole());
    }

    /// Resident bytes and open descriptors of each role that is still the same process.
    fn sizes(&self) -> BTreeMap<(String, u32), (u64, u64)> {
        let size = |pid: u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
            let resident =
                status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
            let kib: u64 = resident.trim().trim_end_matches(" kB").parse().expect("a number");
            (kib << 10, fs::read_dir(format!("/proc/{pid}/fd")).expect("it is ours").count() as u64)
        };
        self.up.roles().into_iter().map(|(role, pid)| ((role, pid), size(pid))).collect()
    }

    fn has_not_grown(&self, before: &BTreeMap<(String, u32), (u64, u64)>) {
        for (role, (resident, descriptors)) in self.sizes() {
            let Some(&(resident_before, descriptors_before)) = before.get(&role) else { continue };
            assert!(
                resident <= resident_before + GROWTH_MAX,
                "{role:?}: {resident_before} to {resident} bytes"
            );
            // A connection of the API that was just closed may be one more.
            assert!(
                descriptors <= descriptors_before + 2,
                "{role:?}: {descriptors_before} to {descriptors} descriptors"
            );
        }
    }
}

fn write_block(client: &mut Client, node: u16, rng: &mut Rng) -> (VirtAddr, Vec<u8>) {
    let base = client.allocate_on(BLOCK as u64, NodeId(node)).unwrap().base;
    let bytes: Vec<u8> = (0..BLOCK / 4).flat_map(|_| rng.next_u32().to_le_bytes()).collect();
    client.write(base, &bytes).unwrap();
    (base, bytes)
}

/// Rounds of mixed work, as long as `goes_on` says so; answers what was counted.
fn soak(test: &str, mut goes_on: impl FnMut(u64, &Counts) -> bool) -> Value {
    let leases = "lease_ms = 500\nhost_lease_ms = 2000";
    let description = Description::new(test, "udp").with_lease(leases);
    let (up, file) = (description.up(), description.file());
    let (dir, rng) = (Dir::new(test), Rng::from_number(16));
    let (runs, counts) = (may_run(test), Counts::default());
    let mut soak = Soak { description: &description, up, dir, file, runs, rng, counts };
    let mut before = BTreeMap::new();
    let mut round = 0;
    while goes_on(round, &soak.counts) {
        soak.round(round);
        round += 1;
        if round == 2 {
            before = soak.sizes();
        }
    }
    soak.nothing_is_left();
    soak.has_not_grown(&before);
    let Soak { up, counts, .. } = soak;
    let ended = up.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    json!(counts.0)
}

/// Two rounds: runs, sharing, traversals, an index, a graph, a server that is killed, a host that is gone, a migration; the switch dies in one, a node in the other.
#[test]
fn mixed_work_leaves_nothing() {
    let counts = soak("soak", |round, _| round < 2);
    assert_eq!(
        (&counts["rounds"], &counts["roles killed"], &counts["losses said"]),
        (&2.into(), &2.into(), &1.into())
    );
}

/// As many rounds as fit the minutes of FARMEM_SOAK_MINUTES; what was counted goes into the file of FARMEM_SOAK_REPORT.
#[test]
#[ignore = "it takes as long as it is told; run by scripts/soak"]
fn mixed_work_for_as_long_as_one_likes() {
    let minutes: u64 = env::var("FARMEM_SOAK_MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let (begun, length) = (Instant::now(), Duration::from_secs(60 * minutes));
    let counts = soak("soak-long", |round, counts| {
        eprintln!("soak: {} s, round {round}, {:?}", begun.elapsed().as_secs(), counts.0);
        begun.elapsed() < length
    });
    if let Some(report) = env::var_os("FARMEM_SOAK_REPORT") {
        fs::write(report, format!("{counts}\n")).expect("the report's file can be written");
    }
}
