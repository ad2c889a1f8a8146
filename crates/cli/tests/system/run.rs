//! Tests of `farmem run`: unmodified programs print the same and end the same as without it, with a small
//! part of their memory in local memory.

use crate::process::{Dir, Ended, Running, eventually, farmem, processes_with, run_command, runs, signal};
use crate::rack::Description;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

pub(crate) const MIB: u64 = 1 << 20;

/// Runs a program alone and then with `local` bytes of local memory. All visible results must be equal.
pub(crate) fn same(local: u64, command: &[&str]) -> Value {
    same_with((local, &[]), command, |_| {})
}

/// Does the same with further options of `farmem run`, and a change of both commands.
pub(crate) fn same_with(
    (local, options): (u64, &[&str]),
    command: &[&str],
    set_up: impl Fn(&mut Command),
) -> Value {
    let mut alone = Command::new(command[0]);
    alone.args(&command[1..]).stdin(Stdio::null());
    set_up(&mut alone);
    let alone = run_command(alone);
    let mut far = far_with(local, options, command);
    set_up(&mut far);
    let far = run_command(far);
    assert_eq!((&alone.stdout, alone.code.or(Some(-1))), (&far.stdout, far.code), "{far:?}");
    stats(&far, local)
}

pub(crate) fn far(local: u64, command: &[&str]) -> Command {
    far_with(local, &[], command)
}

/// Runs a program with far memory and further options.
pub(crate) fn far_with(local: u64, options: &[&str], command: &[&str]) -> Command {
    let local = local.to_string();
    let run = ["run", "--json", "--local", &local, "--far", "1GiB"];
    farmem(&[&run, options, &["--"], command].concat())
}

/// Returns the statistics from the last line of the standard error, and checks the local limit.
pub(crate) fn stats(ended: &Ended, local: u64) -> Value {
    let line = ended.stderr.lines().last().unwrap_or_else(|| panic!("statistics: {ended:?}"));
    let stats: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {ended:?}"));
    assert_eq!(stats["local_limit"], local);
    assert!(number(&stats, "largest_local_bytes") <= local, "{stats}");
    stats
}

pub(crate) fn number(stats: &Value, what: &str) -> u64 {
    stats[what].as_u64().unwrap_or_else(|| panic!("{what} in {stats}"))
}

/// Checks that the program used more memory than the local limit.
pub(crate) fn assert_far(stats: &Value) {
    assert!(number(stats, "evictions") > 0 && number(stats, "bytes_fetched") > 0, "{stats}");
}

/// Returns false, with a note, when this user may not serve the page faults of system calls.
pub(crate) fn may_run(test: &str) -> bool {
    static WHY: OnceLock<Option<String>> = OnceLock::new();
    let why = WHY.get_or_init(|| {
        let ended = run_command(farmem(&["run", "--", "true"]));
        (ended.code == Some(2) && ended.stderr.contains("userfaultfd")).then_some(ended.stderr)
    });
    if let Some(why) = why {
        eprintln!("skipped: {test}: {}", why.lines().next().unwrap_or_default());
    }
    why.is_none()
}

/// Returns false, with a note, when a program that the test runs is not installed.
fn has(test: &str, program: &str) -> bool {
    let there = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let there = there.is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("skipped: {test}: {program} is not installed (scripts/setup)");
    }
    there
}

pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// Returns false, with a note, when Python has no NumPy.
pub(crate) fn has_numpy(test: &str) -> bool {
    let there = Command::new(PYTHON).args(["-c", "import numpy"]).output().is_ok_and(|o| o.status.success());
    if !there {
        eprintln!("skipped: {test}: {PYTHON} has no NumPy (scripts/setup)");
    }
    there
}

/// Compiles one of `tests/programs`.
pub(crate) fn program(dir: &Dir, name: &str, flags: &[&str]) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let binary = dir.path().join(name);
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-pthread"]).args(flags).arg("-o").arg(&binary).arg(source);
    assert!(cc.status().expect("there is a C compiler").success());
    binary.to_str().expect("ASCII").to_owned()
}

#[test]
fn a_program_with_threads() {
    if !may_run("threads") {
        return;
    }
    let dir = Dir::new("run-threads");
    assert_far(&same(6 * MIB, &[&program(&dir, "threads", &[])]));
}

/// Children, their children, and a thread that writes meanwhile. Each process sees the memory at the time of
/// its fork.
#[test]
fn a_program_that_forks() {
    if !may_run("forks") {
        return;
    }
    let dir = Dir::new("run-forks");
    let stats = same(MIB, &[&program(&dir, "forks", &[])]);
    assert_far(&stats);
    assert_eq!(number(&stats, "forks"), 3 + 9 + 27 + 50);
    assert_eq!(number(&stats, "processes"), 1 + number(&stats, "forks"));
}

/// Children that end while their bytes still wait for a write-back to a removed place.
#[test]
fn a_shell_and_its_children() {
    if !may_run("a shell") {
        return;
    }
    let script = r#"
        lines=$(seq 1 8000)
        for i in 1 2 3 4 5 6 7 8 9 10; do
            (more="$lines$i"; more=${more//1/one}; echo ${#more})
            lines="$lines $i"
            echo "$lines" | cksum
        done"#;
    let stats = same(256 << 10, &["bash", "-c", script]);
    assert_far(&stats);
    assert!(number(&stats, "forks") >= 20, "{stats}");
}

#[test]
fn a_program_that_maps_and_unmaps_at_random() {
    if !may_run("mappings") {
        return;
    }
    let dir = Dir::new("run-mappings");
    assert_far(&same(MIB, &[&program(&dir, "mappings", &[])]));
}

/// Unmapped ranges, refused advice, file mappings between far memory, and children that inherit all of it.
#[test]
fn a_program_at_the_edges_of_its_memory() {
    if !may_run("edges") {
        return;
    }
    let dir = Dir::new("run-edges");
    assert_far(&same(MIB, &[&program(&dir, "edges", &[])]));
}

/// A thread whose stack is in far memory starts programs as usual. A child that the thread forks has no
/// stack, and reports this at its end.
#[test]
fn a_program_whose_stack_is_far() {
    if !may_run("stack") {
        return;
    }
    let dir = Dir::new("run-stack");
    let ended = run_command(far(MIB, &[&program(&dir, "stack", &[])]));
    assert_eq!((&*ended.stdout, ended.code), ("program 300\nfork b\n", Some(0)), "{ended:?}");
    assert!(ended.stderr.contains("whose stack is in far memory"), "{ended:?}");
}

/// Signal handlers on a stack in far memory, SIGSEGV in the right place, and an end by a signal.
#[test]
fn a_program_with_signals() {
    if !may_run("signals") {
        return;
    }
    let dir = Dir::new("run-signals");
    let binary = program(&dir, "signals", &[]);
    let ended = run_command(far(MIB, &[&binary]));
    assert_eq!(ended.stdout, "0 wrong\nmapped: 0\nread-only: 1\nunmapped: 1\n", "{ended:?}");
    assert_eq!(ended.code, Some(128 + 12), "SIGUSR2, as shells say it");
    assert_far(&stats(&ended, MIB));
}

/// Arrays of four times the local limit.
#[test]
fn numpy() {
    if !may_run("numpy") || !has_numpy("numpy") {
        return;
    }
    let text = "import numpy as np, hashlib\n\
                n = 4 << 17\n\
                a = np.arange(n, dtype=np.float64)\n\
                b = a[::-1].copy()\n\
                c = a + b * 3\n\
                c[::7] *= 2\n\
                a -= c\n\
                print(hashlib.sha256(a.tobytes()).hexdigest(), c.sum(), np.sort(b)[n // 3])\n";
    let stats = same(MIB, &[PYTHON, "-c", text]);
    assert_far(&stats);
    assert!(number(&stats, "far_bytes") >= 4 * MIB, "{stats}");
}

/// Freed large blocks are reused: 500 allocations and frees do not cause 500 mappings and faults.
#[test]
fn large_blocks_are_used_again() {
    if !may_run("large blocks") {
        return;
    }
    let dir = Dir::new("run-blocks");
    let stats = same(32 * MIB, &[&program(&dir, "blocks", &[])]);
    // 1500 blocks are allocated and freed. Without reuse, each needs a call to map it and one to unmap it.
    assert!(number(&stats, "calls") < 1000, "{stats}");
}

/// Returns the memory of a process's memory files with this name, as the system counts it.
pub(crate) fn bytes_taken(pid: u32, name: &str) -> u64 {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let name = PathBuf::from(format!("/memfd:{name} (deleted)"));
    let links =
        files.flatten().map(|file| file.path()).filter(|link| fs::read_link(link).is_ok_and(|to| to == name));
    links.filter_map(|link| fs::metadata(link).ok()).map(|file| file.blocks() * 512).sum()
}

/// Returns the maximum of this memory while the process runs.
pub(crate) fn most_taken(running: &mut Running, name: &str) -> u64 {
    let (pid, mut most) = (running.pid(), 0);
    while running.is_alive() {
        most = most.max(bytes_taken(pid, name));
    }
    most
}

/// While a program runs, its far-memory files take no more than the limit by the system's count, within 2 %.
#[test]
fn the_limit_holds_by_the_system_s_count() {
    if !may_run("the system's count") {
        return;
    }
    let dir = Dir::new("run-count");
    let local = 6 * MIB;
    let mut running = Running::start(far(local, &[&program(&dir, "threads", &[])]));
    let most = most_taken(&mut running, "farmem");
    let ended = running.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_far(&stats(&ended, local));
    // The pool, an eighth of the limit, is permanently in the pager's own memory. A file has 36 KiB of
    // mailboxes and doorbells.
    let (pool, mailboxes) = (local / 8, 36 << 10);
    assert!(most + pool <= (local + mailboxes) * 102 / 100, "{most}");
    assert!(most >= local / 2, "{most}: it was looked at while there was something");
}

/// Where the system serves only page faults of user code, programs still run. A system call on a page that is
/// not in local memory fails, and the output says so.
#[test]
fn faults_of_user_code_only() {
    if !may_run("user mode") {
        return;
    }
    let dir = Dir::new("run-user-mode");
    let threads = program(&dir, "threads", &[]);
    let alone = run_command(Command::new(&threads));
    let run = |binary: &str| {
        run_command(farmem(&[
            "run",
            "--user-mode-only",
            "--json",
            "--local",
            "6MiB",
            "--far",
            "1GiB",
            "--",
            binary,
        ]))
    };
    let ended = run(&threads);
    assert_eq!((&ended.stdout, ended.code), (&alone.stdout, Some(0)), "{ended:?}");
    assert!(ended.stderr.contains("user code only"), "{ended:?}");
    assert_far(&stats(&ended, 6 * MIB));
    let kernel = program(&dir, "kernel", &["-D_GNU_SOURCE"]);
    assert_eq!(run(&kernel).stdout, "untouched: EFAULT\ntouched: read\n0 7\n");
    let ended = run_command(far(6 * MIB, &[&kernel]));
    assert_eq!(ended.stdout, "untouched: read\ntouched: read\n0 7\n");
}

/// A downward pass over memory is fetched in runs, like an upward pass. Nearly all of the 2048 pages are far
/// in each pass.
#[test]
fn streams_go_either_way() {
    if !may_run("streams") {
        return;
    }
    let dir = Dir::new("run-streams");
    let binary = program(&dir, "streams", &[]);
    let fetches = |way: &str| number(&same(MIB, &[&binary, way]), "fetches");
    let (none, up, down) = (fetches("none"), fetches("up"), fetches("down"));
    assert!(none < 100, "{none}");
    // Four passes, with runs of up to 16 adjacent pages. Upward, each run has two fetches: the page that a
    // thread waits for, and the other pages while the thread works.
    for (way, fetches, most) in [("up", up, 2 * 4 * 128), ("down", down, 4 * 192)] {
        assert!((4 * 112..most).contains(&(fetches - none)), "{way}: {fetches} with {none}");
    }
}

#[test]
fn sqlite_in_memory() {
    if !may_run("sqlite") || !has("sqlite", "sqlite3") {
        return;
    }
    let sql = "create table t(a integer primary key, b text, c integer);\
               with recursive n(i) as (select 1 union all select i+1 from n where i < 20000)\
               insert into t select i, printf('%0100d', i * 7919 % 20000), i % 97 from n;\
               create index x on t(b);\
               select count(*), sum(c), sum(length(b)) from t;\
               select a from t where b > '0' order by b limit 5;\
               update t set c = c + 1 where a % 3 = 0; delete from t where a % 5 = 0;\
               select c, count(*) from t group by c order by 2 desc, 1 limit 5;";
    assert_far(&same(2 * MIB, &["sqlite3", ":memory:", sql]));
}

#[test]
fn sort_of_a_file() {
    if !may_run("sort") {
        return;
    }
    let dir = Dir::new("run-sort");
    let lines: String =
        (0_u64..150_000).map(|n| format!("{:016x}\n", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    let file = dir.file("lines", &lines);
    assert_far(&same(2 * MIB, &["sort", "-S", "16M", &file]));
}

/// A server saves in the background while it receives writes. The dump is complete.
#[test]
fn redis_with_a_background_save() {
    if !may_run("redis") || !has("redis", "redis-server") || !has("redis", "redis-benchmark") {
        return;
    }
    let dir = Dir::new("run-redis");
    let script = "cd $1; redis-server --port 0 --unixsocket $1/s --save '' --dbfilename d.rdb > log &\n\
                  ask() { redis-cli -s $1/s \"$@\"; }\n\
                  until redis-cli -s $1/s ping > /dev/null 2>&1; do kill -0 $! || exit 1; done\n\
                  load() { redis-benchmark -s $1/s -t set -d 1024 -r 5000 -n $2 -c 4 -q > /dev/null; }\n\
                  load $1 8000; redis-cli -s $1/s bgsave > /dev/null; load $1 3000\n\
                  while redis-cli -s $1/s info persistence | grep -q rdb_bgsave_in_progress:1; do :; done\n\
                  redis-cli -s $1/s info persistence | grep -o 'last_bgsave_status:ok'\n\
                  redis-check-rdb d.rdb | grep -o 'RDB looks OK'\n\
                  redis-cli -s $1/s shutdown nosave; wait $!; echo ended $?\n";
    let path = dir.path().to_str().expect("ASCII");
    let ended = run_command(far(3 * MIB, &["sh", "-c", script, "sh", path]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines: Vec<&str> = ended.stdout.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines, ["last_bgsave_status:ok", "RDB looks OK", "ended 0"], "{ended:?}");
    let stats = stats(&ended, 3 * MIB);
    assert_far(&stats);
    assert!(number(&stats, "forks") > 0, "{stats}");
}

/// A program executes another, which executes a third. Each has its own far memory.
#[test]
fn programs_that_run_each_other() {
    if !may_run("exec") {
        return;
    }
    let chain = "x=$(head -c 300000 /dev/zero | tr '\\0' a); exec sh -c 'y=$(seq 40000); exec sort -n -S 4M /dev/fd/3 3<<EOF\n\
                 3\n1\n2\nEOF'";
    let stats = same(MIB, &["sh", "-c", chain]);
    assert!(number(&stats, "processes") > 3, "{stats}");
}

#[test]
fn the_exit_code_is_the_program_s() {
    if !may_run("exit codes") {
        return;
    }
    for code in [0, 1, 77, 255] {
        let ended = run_command(farmem(&["run", "--", "sh", "-c", &format!("echo $$ >&2; exit {code}")]));
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert_eq!(ended.stdout, "");
    }
    let killed = run_command(farmem(&["run", "--", "sh", "-c", "kill -KILL $$"]));
    assert_eq!(killed.code, Some(128 + 9));
}

/// Signals of a terminal or an init process reach the program.
#[test]
fn signals_are_passed_on() {
    if !may_run("signals passed on") {
        return;
    }
    let script = "trap 'echo told; exit 5' TERM; echo ready; while :; do sleep 0.01; done";
    let mut running = Running::start(farmem(&["run", "--", "sh", "-c", script]));
    assert_eq!(running.line(), "ready\n");
    signal(running.pid(), "TERM");
    let ended = running.ended();
    assert_eq!((ended.stdout.as_str(), ended.code), ("told\n", Some(5)), "{ended:?}");
}

/// An access to an unserved page would read zeros. Therefore all processes of the program end with the pager,
/// also a grandchild in another session.
#[test]
fn programs_end_with_their_pager() {
    if !may_run("a pager that is killed") {
        return;
    }
    let dir = Dir::new("run-killed");
    let mark = dir.path().to_str().expect("ASCII").to_owned();
    let script = "setsid sh -c 'echo up; while :; do sleep 0.01; done' $1 & while :; do sleep 0.01; done";
    let mut running = Running::start(farmem(&["run", "--", "sh", "-c", script, "sh", &mark]));
    assert_eq!(running.line(), "up\n");
    let processes: Vec<u32> = processes_with(&mark).into_iter().filter(|&pid| pid != running.pid()).collect();
    assert!(processes.len() >= 2, "{processes:?}");
    assert_eq!(sockets_of(running.pid()), 1);
    signal(running.pid(), "KILL");
    let ended = running.ended();
    eventually("the programs end", || processes.iter().all(|&pid| !runs(pid)));
    eventually("its socket is gone", || sockets_of(running.pid()) == 0);
    let said = format!("`farmem run` (process {}) ended before its program", running.pid());
    assert!(ended.stderr.contains(&said), "{ended:?}");
}

/// Returns the number of the pager's socket files, each in its own directory.
pub(crate) fn sockets_of(pager: u32) -> usize {
    let prefix = format!("farmem-run-{pager}-");
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let entries = own.into_iter().chain([std::env::temp_dir()]).filter_map(|base| fs::read_dir(base).ok());
    let directories =
        entries.flatten().flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    directories.filter(|entry| entry.path().join("pager").exists()).count()
}

/// The memory nodes do not answer while a program writes its last pages. The sent bytes are still counted.
#[test]
fn bytes_are_counted_when_they_are_sent() {
    if !may_run("bytes without a waiting thread") {
        return;
    }
    let dir = Dir::new("run-ends");
    let binary = program(&dir, "ends", &[]);
    let rack = Description::new("run-ends-rack", "shm");
    let _up = rack.up();
    let mut running = Running::start(far_on(&rack, &[&binary]));
    assert_eq!(running.line(), "written\n");
    let nodes = Stopped::of(&rack, "--node");
    assert_eq!(nodes.0.len(), 2);
    signal(running.pid(), "USR1");
    eventually("the program ends", || processes_with(&binary) == [running.pid()]);
    drop(nodes);
    let ended = running.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let stats = stats(&ended, MIB);
    // No page was fetched again, so that each evicted page was evicted once.
    assert_eq!((number(&stats, "fetches"), number(&stats, "faults_near")), (0, 0), "{stats}");
    assert_eq!(number(&stats, "bytes_written_back"), 4096 * number(&stats, "evictions"), "{stats}");
}

/// All roles of the rack are stopped under a program. The program gets a SIGBUS instead of wrong bytes, and
/// the command prints the reason.
#[test]
fn a_rack_that_is_gone_is_no_zeros() {
    if !may_run("a rack that is gone") {
        return;
    }
    let dir = Dir::new("run-rack-gone");
    let binary = program(&dir, "reader", &[]);
    let rack = Description::new("run-rack-gone-rack", "shm");
    let _up = rack.up();
    let mut running = Running::start(far_on(&rack, &[&binary]));
    assert_eq!(running.line(), "written\n");
    let nodes = Stopped::of(&rack, "--node");
    assert_eq!(nodes.0.len(), 2);
    signal(running.pid(), "USR1");
    let ended = running.ended();
    assert_eq!(ended.stdout, "", "it read on: {ended:?}");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("answer"), "{ended:?}");
}

/// The switch is stopped, and the program needs more memory than is allocated. The reported reason is the
/// switch, not a full rack.
#[test]
fn a_switch_that_is_gone_is_no_full_rack() {
    if !may_run("a switch that is gone") {
        return;
    }
    let text = "import signal\n\
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n\
                print('up', flush=True)\n\
                signal.sigwait([signal.SIGUSR1])\n\
                blocks = [bytearray(b'x') * (4 << 20) for _ in range(64)]\n\
                print('done')\n";
    let rack = Description::new("run-switch-gone-rack", "shm");
    let _up = rack.up();
    let mut running = Running::start(far_on(&rack, &[PYTHON, "-c", text]));
    assert_eq!(running.line(), "up\n");
    let switches = Stopped::of(&rack, "switch");
    assert_eq!(switches.0.len(), 1);
    signal(running.pid(), "USR1");
    let ended = running.ended();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("switch"), "{ended:?}");
}

/// Like [`far`], on a running rack.
fn far_on(rack: &Description, command: &[&str]) -> Command {
    let (local, file) = (MIB.to_string(), rack.file());
    let mut args = vec!["run", "--json", "--local", &local, "--rack", &file, "--"];
    args.extend_from_slice(command);
    farmem(&args)
}

/// Roles of a rack that are stopped until the value is dropped.
struct Stopped(Vec<u32>);

impl Stopped {
    fn of(rack: &Description, word: &str) -> Self {
        let roles: Vec<u32> =
            processes_with(&rack.file()).into_iter().filter(|&pid| is_role(pid, word)).collect();
        roles.iter().for_each(|&pid| signal(pid, "STOP"));
        Self(roles)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.iter().for_each(|&pid| signal(pid, "CONT"));
    }
}

fn is_role(pid: u32, word: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).split('\0').any(|argument| argument == word)
}

/// A program that would run without far memory, or not at all, is not started.
#[test]
fn programs_that_cannot_be_served_are_refused() {
    let dir = Dir::new("run-refused");
    let text = dir.file("text", "no program\n");
    run_command(farmem(&["run", "--", &text])).refuses(&["ELF"]);
    run_command(farmem(&["run", "--", "no-such-program"])).refuses(&["no-such-program"]);
    let script = dir.file("script", "#!/no/such/interpreter\n");
    run_command(farmem(&["run", "--", &script])).refuses(&["/no/such/interpreter"]);
    let mut lost = farmem(&["run", "--", "true"]);
    lost.env("FARMEM_PRELOAD", "/no/such/library");
    run_command(lost).refuses(&["FARMEM_PRELOAD", "/no/such/library"]);
    run_command(farmem(&["run", "--local", "4KiB", "--", "true"]))
        .refuses(&["local limit", "256 KiB at least"]);
    let typed = run_command(farmem(&["run", "--local", "99999999999999999999TiB", "--", "true"]));
    assert!(typed.code == Some(2) && typed.stderr.contains("'99999999999999999999TiB'"), "{typed:?}");
    run_command(farmem(&["run", "--far", "0", "--", "true"])).refuses(&["--far 0"]);
    let mut split = farmem(&["run", "--", "true"]);
    split.env("FARMEM_PRELOAD", dir.file("a library", ""));
    run_command(split).refuses(&["a library", "spaces and colons", "FARMEM_PRELOAD"]);
}

/// On a given rack, the allocations of the run are freed afterwards.
#[test]
fn on_a_rack_that_runs() {
    if !may_run("a rack that runs") {
        return;
    }
    let description = Description::new("run-rack", "udp");
    let up = description.up();
    let file = description.file();
    let local = MIB.to_string();
    let script = "y=$(seq 100000); echo \"$y\" | tail -1";
    let ended =
        run_command(farmem(&["run", "--json", "--local", &local, "--rack", &file, "--", "sh", "-c", script]));
    assert_eq!((ended.stdout.as_str(), ended.code), ("100000\n", Some(0)), "{ended:?}");
    assert!(number(&stats(&ended, MIB), "far_bytes") > 0, "{ended:?}");
    let (_, overview) = description.ask("GET", "/v1/overview", "");
    assert_eq!(overview["vmas"], serde_json::json!([]), "nothing is allocated: {overview}");

    // A killed run leaves nothing either.
    let script = "y=$(seq 1000000); echo up; while :; do sleep 0.01; done";
    let mut running =
        Running::start(farmem(&["run", "--local", &local, "--rack", &file, "--", "sh", "-c", script]));
    assert_eq!(running.line(), "up\n");
    let vmas = || description.ask("GET", "/v1/overview", "").1["vmas"].clone();
    assert_ne!(vmas(), serde_json::json!([]));
    running.kill();
    eventually("its far memory is free", || vmas() == serde_json::json!([]));
    up.stop();
}
