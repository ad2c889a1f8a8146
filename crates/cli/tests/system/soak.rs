//! Mixed work on one rack, round after round, with one killed role per round. Nothing of the work remains,
//! and every wrong byte is reported as lost.
//!
//! After each round, everything used must be gone: hosts, domains, processes, memory, children of commands,
//! sockets and files. No process of the rack may have grown. CI runs three rounds. `scripts/soak` runs as
//! many rounds as fit the given minutes, prints its progress, and writes the counts to a file.

use crate::faults::died_and_serves;
use crate::process::{Dir, Ended, Running, eventually, farmem, processes_with, run_command};
use crate::rack::{Description, Up};
use crate::run::{PYTHON, may_run};
use farmem::{Client, ClientOptions, Error, NodeId, PAGE_LEN, Rng, VirtAddr};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, process};

mod server;

/// Length of each block that a client keeps across the death of a role, in bytes.
const BLOCK: usize = 16 * PAGE_LEN;
/// Maximum growth of a process since it was warm, in bytes, for processes with others' memory and for the
/// test process. `TABLES_GROWTH_MAX` is for processes that only have tables.
const GROWTH_MAX: u64 = 32 << 20;
const TABLES_GROWTH_MAX: u64 = 4 << 20;
/// Maximum number of additional descriptors and threads: for an API connection that has just closed, or a
/// compiler that has just started.
const MORE_MAX: u64 = 2;
/// Maximum length of the control plane's state, in bytes. The log is compacted, and the number of a user's
/// keys is limited.
const STATE_MAX: u64 = 16 << 20;
/// Number of rounds in which the same two roles take turns at dying. The other roles live long enough to show
/// their leaks.
const BLOCK_ROUNDS: u64 = 24;
/// Number of rounds after which each of the four roles has lived for one block of rounds.
const ROUNDS_ENOUGH: u64 = 4 + 2 * BLOCK_ROUNDS;
/// Length of the named memory that two programs share, in bytes.
const SHARED: usize = 64 << 10;

/// Program that fills 4 MiB with random bytes and prints their hash. The program reads all bytes repeatedly
/// until a file exists, and prints the hash again.
const HOLDER: &str = "\
import hashlib, os, sys
memory = bytearray(4 << 20)
for at in range(0, len(memory), 65536):
    memory[at:at + 65536] = os.urandom(65536)
made = hashlib.sha256(memory).hexdigest()
print('made', made, flush=True)
now = made
while now == made and not os.path.exists(sys.argv[1]):
    now = hashlib.sha256(memory).hexdigest()
print(hashlib.sha256(memory).hexdigest() if now == made else now)
";

/// Program that creates named memory, and checks the changes of another program.
const WRITER: &str = "\
import sys
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = resource_tracker.unregister = lambda *_: None
memory = shared_memory.SharedMemory(sys.argv[1], create=True, size=65536)
memory.buf[:] = bytes(at * 7 % 251 for at in range(65536))
print('made', flush=True)
sys.stdin.readline()
print(memory.buf[0], memory.buf[65535])
memory.close()
memory.unlink()
";
/// Program that reads the whole shared memory, and changes its first and last byte.
const READER: &str = "\
import sys
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = resource_tracker.unregister = lambda *_: None
memory = shared_memory.SharedMemory(sys.argv[1])
print(sum(memory.buf[:65536]))
memory.buf[0] = 200
memory.buf[65535] = 201
memory.close()
";

/// Counts of the soak.
#[derive(Default)]
struct Counts(BTreeMap<&'static str, u64>);

impl Counts {
    fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    fn largest(&mut self, what: &'static str, number: u64) {
        let known = self.0.entry(what).or_default();
        *known = number.max(*known);
    }
}

/// Resources of a process. Pages of its executable are not among them: a path of code that runs for the first
/// time is no leak.
#[derive(Clone, Copy)]
struct Size {
    resident: u64,
    descriptors: u64,
    threads: u64,
}

impl Size {
    fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let field = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel says it");
            line.trim().trim_end_matches(" kB").parse().expect("a number")
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("it is ours").count() as u64;
        let resident = (field("RssAnon:") + field("RssShmem:")) << 10;
        Self { resident, descriptors, threads: field("Threads:") }
    }
}

/// Watched process: the number of rounds, its resources when it was warm, and its resources now.
struct Watched {
    rounds: u64,
    warm: Size,
    now: Size,
}

/// Extent of the checks on processes.
#[derive(Clone, Copy)]
struct Form {
    /// Number of rounds after which a process is warm, and must not grow any more.
    warm: u64,
    /// True when the test process is watched too, because no other test runs in it.
    clients: bool,
}

/// Rack, and the work on it.
struct Soak<'a> {
    description: &'a Description,
    up: Up<'a>,
    dir: Dir,
    file: String,
    runs: bool,
    form: Form,
    rng: Rng,
    counts: Counts,
    watched: BTreeMap<(String, u32), Watched>,
    /// Longest watch of each role, in rounds.
    longest: BTreeMap<String, u64>,
}

impl Soak<'_> {
    fn round(&mut self, round: u64) {
        self.applications();
        self.programs();
        self.programs_that_share(round);
        self.a_role_that_dies(round);
        self.a_server_that_is_killed();
        self.a_host_that_is_never_heard_of_again(round);
        self.nothing_is_left();
        self.no_process_has_grown();
        self.counts.count("rounds");
    }

    /// Returns a command whose sockets and files lie in this test's own directory.
    fn farmem(&self, words: &[&str]) -> Command {
        let mut command = farmem(words);
        command.env("TMPDIR", self.dir.path());
        command
    }

    fn run(&self, words: &[&str]) -> Ended {
        run_command(self.farmem(words))
    }

    /// Runs traversals, index scans, time series windows and a graph. Each application checks its own
    /// answers.
    fn applications(&mut self) {
        let graph = self.dir.path().join("soak.fmg").display().to_string();
        if !fs::exists(&graph).unwrap() {
            let words = ["graph", "generate", "kronecker", &graph, "--scale", "9", "--symmetrize"];
            assert_eq!(self.run(&words).code, Some(0));
        }
        for words in [
            &["webservice", "--records", "95", "--operations", "100", "--workload", "A"][..],
            &["tablestore", "--records", "300", "--operations", "50"],
            &["timeseries", "--records", "1000", "--operations", "50"],
            &["orderedkv", "--records", "300", "--operations", "100"],
            &["graph", "bfs", &graph, "--check"],
        ] {
            let report = self.run(&[words, &["--json", "--rack", &self.file]].concat()).json();
            assert_eq!(report["wrong_answers"], 0, "{report}");
            self.counts.count("applications");
        }
    }

    /// Runs programs on far memory, alone and on shared memory.
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
            let mut command = self.farmem(&words.concat());
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

    /// Runs two programs on two hosts with the same named memory. Each finds the other's writes.
    fn programs_that_share(&mut self, round: u64) {
        if !self.runs {
            return;
        }
        let name = format!("soak-{round}");
        let share = |script: &str| {
            let words =
                ["run", "--rack", &self.file, "--local", "2MiB", "--share", "soak", "--", PYTHON, "-c"];
            // The last word identifies the processes of this test.
            let mut command = self.farmem(&[&words[..], &[script, &name, &self.dir_text()]].concat());
            command.stdin(Stdio::piped());
            command
        };
        let mut writer = Running::start(share(WRITER));
        assert_eq!(writer.line(), "made\n", "{:?}", writer.said());
        let read = run_command(share(READER));
        let sum: usize = (0..SHARED).map(|at| at * 7 % 251).sum();
        assert_eq!((read.code, read.stdout.trim()), (Some(0), &*sum.to_string()), "{read:?}");
        writer.say("");
        let ended = writer.ended();
        assert_eq!((ended.code, ended.stdout.trim()), (Some(0), "200 201"), "{ended:?}");
        self.counts.count("programs that share");
    }

    /// Adds a host that joins through the API, allocates temporary memory, and falls silent.
    fn a_host_that_is_never_heard_of_again(&mut self, round: u64) {
        let ask = |name: &str, body: Value| {
            let (status, answer) = self.description.ask("POST", &format!("/v1/{name}"), &body.to_string());
            assert_eq!(status, 200, "{answer}");
            answer
        };
        let gid = self.description.address(200);
        let join = json!({"name": format!("gone-{round}"), "gid": gid, "caches": false});
        let host = self.description.join("join_host", gid, &join);
        let domain = ask("create_domain", json!({"name": format!("gone-{round}")}));
        ask("open_session", json!({"host": host["host"], "domain": domain["domain"]}));
        ask("allocate", json!({"domain": domain["domain"], "size": 65_536}));
        eventually("its address is free again", || self.usage()["hosts"].as_array().unwrap().is_empty());
        self.counts.count("hosts gone");
    }

    fn dir_text(&self) -> String {
        self.dir.path().display().to_string()
    }

    /// Starts a program on far memory that runs while a role dies. Returns it with the hash of its bytes, or
    /// `None` where programs may not run.
    fn holder(&self) -> Option<(Running, String)> {
        if !self.runs {
            return None;
        }
        let until = self.dir.path().join("until").display().to_string();
        let words = ["run", "--rack", &self.file, "--local", "1MiB", "--", PYTHON, "-c", HOLDER, &until];
        let mut holder = Running::start(self.farmem(&words));
        let line = holder.line();
        let Some(made) = line.strip_prefix("made ") else { panic!("{line:?}: {:?}", holder.ended()) };
        let made = made.to_owned();
        Some((holder, made))
    }

    /// Checks that the program's bytes are complete, or that the program ended with a report of the loss with
    /// its node. Other bytes must never appear.
    fn holder_ends(&mut self, (mut holder, made): (Running, String), (round, role): (u64, &str)) {
        self.dir.file("until", "");
        let ended = holder.ended();
        fs::remove_file(self.dir.path().join("until")).expect("it is ours");
        if ended.code == Some(0) {
            assert_eq!(ended.stdout, made, "round {round}, {role} died: other bytes: {ended:?}");
            self.counts.count("programs at work that went on");
            return;
        }
        assert!(role.starts_with("node "), "round {round}: {role} has no memory, and died: {ended:?}");
        assert_eq!(
            (ended.code, ended.stdout.as_str()),
            (Some(2), ""),
            "round {round}, {role} died: {ended:?}"
        );
        assert!(ended.stderr.contains("are lost"), "round {round}, {role} died: {ended:?}");
        self.counts.count("programs at work that were told their loss");
    }

    /// Returns the bytes of a node: the certainly used ones, and all.
    fn bytes_at(&self, node: u64) -> (u64, u64) {
        let (overview, usage) = (self.description.overview(), self.usage());
        let used = |vma: &&Value| {
            let domains = usage["domains"].as_array().expect("a list");
            domains.iter().any(|domain| domain["domain"] == vma["domain"] && domain["hosts"] != json!([]))
        };
        let list = |what: &str| overview[what].as_array().expect("a list");
        let sum =
            |rows: &[&Value]| rows.iter().map(|row| row["size"].as_u64().expect("a number")).sum::<u64>();
        let here: Vec<&Value> = list("vmas").iter().filter(|vma| vma["node"] == node).filter(used).collect();
        let is_moved = |part: &&Value, (to, from): (bool, bool)| {
            let base = part["base"].as_u64().expect("a number");
            let is_within = |vma: &Value| {
                let [start, len] = ["base", "size"].map(|what| vma[what].as_u64().expect("a number"));
                base >= start && base - start < len
            };
            let home = list("vmas").iter().find(|vma| is_within(vma)).expect("it is of an allocation");
            ((part["node"] == node) == to) && ((home["node"] == node) == from)
        };
        let moved = |way| list("moved").iter().filter(|part| is_moved(part, way)).collect::<Vec<_>>();
        let allocated = list("nodes").iter().find(|row| row["node"] == node).expect("it has joined");
        let least = sum(&here) + sum(&moved((true, false))) - sum(&moved((false, true)));
        (least, allocated["allocated"].as_u64().expect("a number"))
    }

    /// Kills a role while a client has blocks on both nodes, one block moves, and a program runs. Later reads
    /// must return the written bytes, or an error about their loss. The report of a lost node must state the
    /// amount.
    fn a_role_that_dies(&mut self, round: u64) {
        let options = ClientOptions { durable: round % 2 == 1, ..ClientOptions::default() };
        let mut client = self.description.rack().client_with(&format!("blocks-{round}"), options).unwrap();
        let blocks: Vec<(VirtAddr, Vec<u8>)> =
            [1, 2, 1].map(|node| write_block(&mut client, node, &mut self.rng)).into();
        let moving = format!("{:#x}", blocks[2].0.0);
        let moved = self.run(&["migrate", "--rack", &self.file, "--base", &moving, "--node", "2", "--json"]);
        assert_eq!(moved.json()["bytes"], BLOCK as u64);
        self.counts.count("migrations");
        let role = victim(round);
        let holder = self.holder();
        let node = role.strip_prefix("node node").map(|number| number.parse().expect("a number"));
        let bytes = node.map(|node| self.bytes_at(node));
        let died = died_and_serves(&mut self.up, role);
        self.counts.count("roles killed");
        match bytes {
            None => assert_eq!(died["lost"], Value::Null, "round {round}: {died}"),
            Some((least, most)) => {
                let [allocations, bytes] = ["allocations", "bytes"].map(|what| died["lost"][what].as_u64());
                let is_right = bytes.is_some_and(|bytes| (least..=most).contains(&bytes));
                assert!(is_right && least > 0, "round {round}: {least} to {most} bytes: {died}");
                assert!(allocations.is_some_and(|count| count > 0), "round {round}: {died}");
            }
        }
        if let Some(holder) = holder {
            self.holder_ends(holder, (round, role));
        }
        let at = [Some("node node1"), Some("node node2"), Some("node node2")];
        for ((base, bytes), node) in blocks.iter().zip(at) {
            let mut read = vec![0; BLOCK];
            let mut result = client.read(*base, &mut read);
            if matches!(result, Err(Error::Unreachable { .. })) {
                result = client.read(*base, &mut read); // its connection went with the node, and this is another
            }
            match result {
                Ok(()) => {
                    assert!(read == *bytes, "round {round}: wrong bytes without a word at {base:?}");
                    assert!(node != Some(role), "round {round}: {role} had it, and died");
                }
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

    /// Checks that nothing remains: no hosts, domains, processes, memory, commands, children or sockets. The
    /// state must not exceed its limit.
    fn nothing_is_left(&mut self) {
        eventually("everything went with its user", || {
            let usage = self.usage();
            ["hosts", "domains", "vmas", "processes"].iter().all(|what| usage[what] == json!([]))
        });
        let overview = self.description.overview();
        let allocated = |node: &Value| node["allocated"] == 0;
        assert!(overview["nodes"].as_array().unwrap().iter().all(allocated), "{overview}");
        assert_eq!(overview["moved"], json!([]), "{overview}");
        assert_eq!(overview["directory"]["used"], 0, "regions of unallocated memory: {overview}");
        assert!(self.up.is_whole());
        let mut known: Vec<u32> = self.up.roles().into_iter().map(|(_, pid)| pid).collect();
        known.push(self.up.supervisor().pid());
        eventually("no process of a command is left", || {
            processes_with(&self.file).iter().all(|pid| known.contains(pid))
        });
        eventually("nothing that a command started is left", || processes_with(&self.dir_text()).is_empty());
        let expected: &[&str] = if self.runs { &["lines", "soak.fmg"] } else { &["soak.fmg"] };
        let names = || {
            let mut names = self.dir.names();
            names.sort_unstable();
            names
        };
        eventually("no socket or file of a command is left", || names() == expected);
        let state = fs::read_dir(self.description.dir().path().join("state")).expect("it is ours").flatten();
        let bytes: u64 = state.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum();
        assert!(bytes <= STATE_MAX, "the control plane's state has {bytes} bytes");
    }

    /// Compares the resources of each process of the rack, and of the test process, with those when it was
    /// warm.
    fn no_process_has_grown(&mut self) {
        let mut all = self.up.roles();
        all.push(("supervisor".into(), self.up.supervisor().pid()));
        if self.form.clients {
            all.push(("clients".into(), process::id()));
        }
        self.watched.retain(|process, _| all.contains(process));
        for (role, pid) in all {
            let now = Size::of(pid);
            let watched =
                self.watched.entry((role.clone(), pid)).or_insert(Watched { rounds: 0, warm: now, now });
            watched.rounds += 1;
            watched.now = now;
            if watched.rounds <= self.form.warm {
                watched.warm = now;
                continue;
            }
            let Watched { warm, rounds, .. } = *watched;
            let has_tables_alone = ["control", "switch", "supervisor"].contains(&&*role);
            let growth_max = if has_tables_alone { TABLES_GROWTH_MAX } else { GROWTH_MAX };
            let rows = [
                ("bytes", warm.resident, now.resident, growth_max),
                ("descriptors", warm.descriptors, now.descriptors, MORE_MAX),
                ("threads", warm.threads, now.threads, MORE_MAX),
            ];
            for (what, before, after, most) in rows {
                assert!(
                    after <= before + most,
                    "{role} ({pid}) has grown from {before} to {after} {what} in {rounds} rounds"
                );
            }
            let longest = self.longest.entry(role).or_default();
            *longest = rounds.max(*longest);
        }
    }

    /// Returns the counts as an object.
    fn report(&self, ended: bool) -> Value {
        let size = |((role, _), watched): (&(String, u32), &Watched)| {
            let Watched { rounds, warm, now } = watched;
            let row = json!({
                "rounds": rounds,
                "resident_bytes": [warm.resident, now.resident],
                "descriptors": [warm.descriptors, now.descriptors],
                "threads": [warm.threads, now.threads],
            });
            (role.clone(), row)
        };
        let processes: serde_json::Map<String, Value> = self.watched.iter().map(size).collect();
        let mut report = json!(self.counts.0);
        report["ended"] = ended.into();
        report["processes"] = processes.into();
        report["longest_watched_rounds"] = json!(self.longest);
        report["programs_skipped"] = (!self.runs).into();
        report
    }
}

/// Returns the role that dies in a round: each of the four first, then two of them in turn for many rounds,
/// then the other two.
fn victim(round: u64) -> &'static str {
    const FIRST: [&str; 4] = ["switch", "node node1", "control", "node node2"];
    const TURNS: [[&str; 2]; 2] = [["node node1", "node node2"], ["switch", "control"]];
    let at = |number: u64, count: u64| usize::try_from(number % count).expect("a small number");
    match round.checked_sub(4) {
        None => FIRST[at(round, 4)],
        Some(later) => TURNS[at(later / BLOCK_ROUNDS, 2)][at(later, 2)],
    }
}

fn write_block(client: &mut Client, node: u16, rng: &mut Rng) -> (VirtAddr, Vec<u8>) {
    let base = client.allocate_on(BLOCK as u64, NodeId(node)).unwrap().base;
    let bytes: Vec<u8> = (0..BLOCK / 4).flat_map(|_| rng.next_u32().to_le_bytes()).collect();
    client.write(base, &bytes).unwrap();
    (base, bytes)
}

/// Runs rounds of mixed work while `goes_on` returns true for the counts so far. Returns all counts.
fn soak(test: &str, leases: &'static str, form: Form, mut goes_on: impl FnMut(u64, &Value) -> bool) -> Value {
    let description = Description::new(test, "udp").with_lease(leases);
    let (up, file) = (description.up(), description.file());
    let (dir, rng) = (Dir::new(test), Rng::from_number(16));
    let (runs, counts) = (may_run(test), Counts::default());
    let (watched, longest) = (BTreeMap::new(), BTreeMap::new());
    let mut soak =
        Soak { description: &description, up, dir, file, runs, form, rng, counts, watched, longest };
    let mut round = 0;
    while goes_on(round, &soak.report(false)) {
        soak.round(round);
        round += 1;
    }
    let report = soak.report(true);
    let ended = soak.up.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    report
}

/// Three rounds of runs, sharing, traversals, an index, a graph, a killed server, a silent host and a
/// migration. The switch dies in the first round, a node in the second, and the control plane in the third.
/// Each surviving role is checked again once it is warm.
#[test]
fn mixed_work_leaves_nothing() {
    let form = Form { warm: 1, clients: false };
    let report = soak("soak", "lease_ms = 500\nhost_lease_ms = 2000", form, |round, _| round < 3);
    let counted = ["rounds", "roles killed", "losses said"].map(|what| &report[what]);
    assert_eq!(counted, [&json!(3), &json!(3), &json!(1)], "{report}");
    let number = |what: &str| report[what].as_u64().unwrap_or_default();
    let at_work = ["programs at work that went on", "programs at work that were told their loss"].map(number);
    let is_right = at_work[0] >= 2 && at_work.iter().sum::<u64>() == 3;
    assert!(is_right || report["programs_skipped"] == true, "{report}");
    for (role, rounds) in
        [("control", 2), ("switch", 3), ("node node1", 2), ("node node2", 3), ("supervisor", 3)]
    {
        assert_eq!(report["longest_watched_rounds"][role], rounds, "{role}: {report}");
    }
}

/// As many rounds as fit the minutes of FARMEM_SOAK_MINUTES. The progress is printed before each round, and
/// written to the file of FARMEM_SOAK_REPORT. Leases are longer than in CI, because the test is about wear,
/// also on a machine that is busy for seconds.
#[test]
#[ignore = "it takes as long as it is told; run by scripts/soak"]
fn mixed_work_for_as_long_as_one_likes() {
    let minutes: u64 = env::var("FARMEM_SOAK_MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let (begun, length) = (Instant::now(), Duration::from_secs(60 * minutes));
    let file = env::var_os("FARMEM_SOAK_REPORT");
    let write = |report: &Value| {
        if let Some(file) = &file {
            fs::write(file, format!("{report}\n")).expect("the report's file can be written");
        }
    };
    let (form, leases) = (Form { warm: 2, clients: true }, "lease_ms = 5000\nhost_lease_ms = 10000");
    let mut report = soak("soak-long", leases, form, |round, report| {
        eprintln!("soak: {} of {} s, round {round}: {report}", begun.elapsed().as_secs(), length.as_secs());
        write(report);
        begun.elapsed() < length
    });
    let number = |what: &str| report[what].as_u64().unwrap_or_default();
    let rounds = number("rounds");
    assert!(rounds > 0, "nothing was played: {report}");
    assert_eq!(number("roles killed"), rounds, "{report}");
    let programs = ["programs", "programs that share"].map(number);
    assert!(!programs.contains(&0) || report["programs_skipped"] == true, "{report}");
    assert_eq!(number("cycles of a server"), rounds * server::CYCLES, "{report}");
    assert!(number("longest stall of a server in ms") <= server::STALL_MS_MAX, "{report}");
    // Each role lived long enough to show its leaks, or the report names those that did not.
    let watched = |role: &&str| report["longest_watched_rounds"][role].as_u64().unwrap_or_default();
    let short: Vec<&str> = ["switch", "control", "node node1", "node node2"]
        .into_iter()
        .filter(|role| watched(role) < BLOCK_ROUNDS)
        .collect();
    assert!(rounds < ROUNDS_ENOUGH || short.is_empty(), "{short:?}: {report}");
    let mut said =
        format!("{rounds} rounds: nothing stayed, no process grew, no byte was wrong without a word");
    if !short.is_empty() {
        said += &format!("; too short for growth of {}", short.join(", "));
    }
    if report["programs_skipped"] == true {
        said += "; without programs under farmem run, which this user may not start";
    }
    report["said"] = said.into();
    write(&report);
    eprintln!("soak: {} s: {report}", begun.elapsed().as_secs());
}
