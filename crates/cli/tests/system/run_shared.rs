//! Tests of `farmem run --share`: unmodified programs share named memory with programs on other hosts of a
//! rack, by loads and stores.
//!
//! Each command has its own address of the rack, and is a host for it. The shared pages travel through the
//! switch and the memory nodes, although all run on one machine.

use crate::process::{Dir, Ended, Running, farmem, processes_with, run_command, signal};
use crate::rack::Description;
use crate::run::{PYTHON, has_numpy, may_run, most_taken, number, program};
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Rack, and the program of `tests/programs/shared.c`.
struct Rig {
    description: Description,
    dir: Dir,
    program: String,
}

impl Rig {
    /// Returns `None`, with a note, when this user may not serve page faults.
    fn new(test: &str) -> Option<Self> {
        if !may_run(test) {
            return None;
        }
        let dir = Dir::new(test);
        let program = program(&dir, "shared", &["-D_GNU_SOURCE"]);
        let description = Description::new(test, "udp").with_lease("lease_ms = 2000");
        Some(Self { description, dir, program })
    }

    /// Returns a command that shares as `table`, with `local` bytes of local memory.
    fn command(&self, local: u64, command: &[&str]) -> Command {
        let file = self.description.file();
        let (all, local) = ((local + 24 * MIB).to_string(), local.to_string());
        let mut args = vec!["run", "--json", "--rack", &file, "--share", "table"];
        args.extend(["--local", &all, "--share-local", &local, "--"]);
        args.extend_from_slice(command);
        farmem(&args)
    }

    /// Runs the program to its end.
    fn run(&self, args: &[&str]) -> Ended {
        run_command(self.command(MIB, &self.line(args)))
    }

    /// Starts the program, and waits for its first line.
    fn start(&self, args: &[&str], line: &str) -> Running {
        self.start_with(MIB, &self.line(args), line)
    }

    fn start_with(&self, local: u64, command: &[&str], line: &str) -> Running {
        let mut command = self.command(local, command);
        command.stdin(Stdio::piped());
        let mut running = Running::start(command);
        let said = running.line();
        assert!(said == line, "{said:?} is not {line:?}: {:?}", running.ended());
        running
    }

    fn line<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        [&[self.program.as_str()], args].concat()
    }

    /// Returns the allocations of the rack.
    fn vmas(&self) -> Value {
        self.description.ask("GET", "/v1/overview", "").1["vmas"].clone()
    }

    fn nothing_is_left(&self) {
        assert_eq!(self.vmas(), serde_json::json!([]));
    }
}

/// Returns the output of a successful program, and the statistics of shared pages.
fn good(ended: &Ended) -> (&str, Value) {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    (&ended.stdout, shared(ended))
}

fn shared(ended: &Ended) -> Value {
    let line = ended.stderr.lines().rfind(|line| line.starts_with('{'));
    let stats: Value = serde_json::from_str(line.unwrap_or_else(|| panic!("statistics: {ended:?}")))
        .unwrap_or_else(|e| panic!("{e}: {ended:?}"));
    let shared = stats["shared"].clone();
    assert!(number(&shared, "largest_local_bytes") <= number(&shared, "local_limit"), "{stats}");
    shared
}

/// Two hosts, and the children of a third, add concurrently to the same words: with atomics, and under a lock
/// of atomics.
#[test]
fn atomics_and_locks_hold_between_hosts() {
    let Some(rig) = Rig::new("shared-atomics") else { return };
    let up = rig.description.up();
    let mut made = rig.start(&["make", "/counters"], "made\n");
    let both: Vec<Running> =
        (0..2).map(|_| Running::start(rig.command(MIB, &rig.line(&["count", "/counters", "300"])))).collect();
    for mut one in both {
        good(&one.ended());
    }
    let (_, forked) = good(&rig.run(&["forks", "/counters", "100"]));
    assert!(number(&forked, "fetches") > 0, "{forked}");
    made.say("");
    let ended = made.ended();
    let (said, stats) = good(&ended);
    let times = 2 * 300 + 4 * 100;
    assert_eq!(said, format!("{} {times}\n", 64 * times));
    // The host had read all pages. With the first written page of a region, the host lost the other pages.
    let (gone, falsely) = (number(&stats, "invalidations"), number(&stats, "false_invalidations"));
    assert!(0 < falsely && falsely < gone, "{stats}");
    let line = rig.line(&["unlink", "/counters"]);
    let args =
        ["run", "--stats", "--rack", &rig.description.file(), "--share", "table", "--local", "24MiB", "--"];
    let ended = run_command(farmem(&[&args[..], &line].concat()));
    assert!(ended.code == Some(0) && ended.stderr.contains("false ones"), "{ended:?}");
    rig.nothing_is_left();
    up.stop();
}

/// Impossible operations fail like the system's calls, or print a reason. No object becomes local memory by
/// mistake.
#[test]
fn a_mapping_that_cannot_be_shared_is_an_error() {
    let Some(rig) = Rig::new("shared-errors") else { return };
    let up = rig.description.up();
    let mut made = rig.start(&["make", "/one"], "made\n");
    let ended = rig.run(&["probe", "/one"]);
    let (said, _) = good(&ended);
    let expected = "open what is not there: ENOENT\nunlink what is not there: ENOENT\nmake what is there: EEXIST\n\
                    a name with a slash: EINVAL\na long name: ENAMETOOLONG\nshrink: EINVAL\n\
                    grow beyond its memory: EINVAL\nmore than there is: ENOSPC\nprivate: EOPNOTSUPP\n\
                    elsewhere: EOPNOTSUPP\nmore than its memory: EINVAL\nwrite: EPERM\nwrite where it is read: EACCES\n\
                    mapped twice at one address: 1\nwrite past the mappings: EOPNOTSUPP\nup to there: 1\n\
                    read after one was unmapped: 1\nunmap: no error\n\
                    protect what is unmapped: ENOMEM\n";
    assert_eq!(said, expected);
    for why in ["private mapping", "another address", "more bytes", "process_vm_writev"] {
        assert!(ended.stderr.contains(why), "{why}: {ended:?}");
    }
    made.say("");
    good(&made.ended());
    good(&rig.run(&["unlink", "/one"]));
    let twice = rig.run(&["unlink", "/one"]);
    assert_eq!((twice.stdout.as_str(), twice.code), ("shm_unlink: No such file or directory\n", Some(1)));
    rig.nothing_is_left();
    up.stop();
    let none = run_command(farmem(&["run", "--share", "x", "--", "true"]));
    assert_eq!(none.code, Some(2), "an own rack has no other host to share with: {none:?}");
}

/// A removed name is gone at once, and its memory with its last user: first a user that maps it, then one
/// that received it by fork and exec.
#[test]
fn unlinked_memory_lasts_as_long_as_its_users() {
    let Some(rig) = Rig::new("shared-unlink") else { return };
    let up = rig.description.up();
    let mut made = rig.start(&["make", "/gone"], "made\n");
    let mut touching = rig.start(&["touch", "/gone"], "mapped\n");
    good(&rig.run(&["unlink", "/gone"]));
    let ended = rig.run(&["sum", "/gone"]);
    assert_eq!((ended.stdout.as_str(), ended.code), ("shm_open: No such file or directory\n", Some(1)));
    made.say("");
    good(&made.ended());
    assert_eq!(rig.vmas().as_array().map(Vec::len), Some(1));
    touching.say("");
    good(&touching.ended());
    rig.nothing_is_left();
    // The descriptor of a removed object is passed on through an exec.
    let ended = rig.run(&["pass", "/passed"]);
    let (said, _) = good(&ended);
    assert_eq!(said, "passed: 77\n");
    rig.nothing_is_left();
    up.stop();
}

/// An object of 2 MiB with 256 KiB of local memory on either host. The local memory stays within this limit,
/// by the pager's count and by the system's.
#[test]
fn the_limit_holds_for_shared_memory() {
    let Some(rig) = Rig::new("shared-limit") else { return };
    let up = rig.description.up();
    let (local, len) = (256 * KIB, (2 * MIB).to_string());
    let mut filling = Running::start(rig.command(local, &rig.line(&["large", "/large", &len, "5"])));
    let most = most_taken(&mut filling, "farmem-shared");
    assert!((local / 2..=local).contains(&most), "{most}");
    let filled = filling.ended();
    let (_, stats) = good(&filled);
    assert!(number(&stats, "evictions") >= 448 && number(&stats, "bytes_written_back") >= MIB, "{stats}");
    let summed = run_command(rig.command(local, &rig.line(&["sum", "/large"])));
    let (said, stats) = good(&summed);
    assert_eq!(said, format!("{len} {}\n", 5 * 2 * MIB));
    assert!(number(&stats, "evictions") >= 448 && number(&stats, "lost") == 0, "{stats}");
    good(&rig.run(&["unlink", "/large"]));
    rig.nothing_is_left();
    up.stop();
}

/// With Python's own module, one host creates an array, and another finds and changes it. The first host sees
/// the change.
#[test]
fn python_shares_arrays() {
    let Some(rig) = Rig::new("shared-python") else { return };
    if !has_numpy("shared-python") {
        return;
    }
    const SCRIPT: &str = "import sys, numpy as np\n\
        from multiprocessing import shared_memory, resource_tracker\n\
        make = sys.argv[1] == 'make'\n\
        s = shared_memory.SharedMemory('array', create=make, size=(1 << 19) if make else 0)\n\
        a = np.ndarray((1 << 16,), dtype=np.float64, buffer=s.buf)\n\
        if make:\n\
        \x20   a[:] = np.arange(1 << 16)\n\
        \x20   print('made', flush=True)\n\
        \x20   sys.stdin.readline()\n\
        \x20   print(a[0], a[-1], a.sum())\n\
        else:\n\
        \x20   resource_tracker.unregister(s._name, 'shared_memory')\n\
        \x20   print(len(s.buf), a.sum())\n\
        \x20   a[::-1] *= 2\n\
        del a\n\
        s.close()\n\
        if make: s.unlink()\n";
    let script = rig.dir.file("array.py", SCRIPT);
    let up = rig.description.up();
    let mut made = rig.start_with(MIB, &[PYTHON, &script, "make"], "made\n");
    let used = run_command(rig.command(MIB, &[PYTHON, &script, "use"]));
    assert_eq!(good(&used).0, "524288 2147450880.0\n");
    made.say("");
    assert_eq!(good(&made.ended()).0, "0.0 131070.0 4294901760.0\n");
    rig.nothing_is_left();
    up.stop();
}

/// A host dies with pages that only it had written. An access to one is a SIGBUS, and never the earlier
/// bytes. The command prints the reason and ends with 2, as after every loss.
#[test]
fn pages_that_died_are_not_read() {
    let Some(rig) = Rig::new("shared-died") else { return };
    let up = rig.description.up();
    let mut made = rig.start(&["make", "/lost"], "made\n");
    let mut filled = rig.start(&["fill", "/lost", "9"], "filled\n");
    filled.kill();
    let ended = rig.run(&["sum", "/lost"]);
    assert_eq!((ended.stdout.as_str(), ended.code), ("", Some(2)), "{ended:?}");
    assert!(ended.stderr.contains("shared pages are lost"), "{ended:?}");
    assert!(number(&shared(&ended), "lost") > 0, "{ended:?}");
    // The pages without later writes are there.
    made.kill();
    up.stop();
}

/// The rack dies under programs that share, without a supervisor to restart it. Accesses are a SIGBUS with
/// the reason, and the exit code is 2.
#[test]
fn a_dead_rack_is_no_old_bytes() {
    let Some(rig) = Rig::new("shared-rack-gone") else { return };
    let mut up = rig.description.up();
    let mut made = rig.start(&["make", "/kept"], "made\n");
    let mut touching = rig.start(&["touch", "/kept"], "mapped\n");
    let roles = processes_with(&rig.description.file());
    let roles: Vec<u32> = roles.into_iter().filter(|&pid| is_role(pid)).collect();
    assert_eq!(roles.len(), 4, "control plane, switch and two nodes: {roles:?}");
    up.supervisor().kill();
    roles.iter().for_each(|&pid| signal(pid, "KILL"));
    touching.say("");
    let ended = touching.ended();
    assert_eq!((ended.stdout.as_str(), ended.code), ("", Some(2)), "{ended:?}");
    assert!(ended.stderr.contains("rack"), "{ended:?}");
    made.kill();
    drop(up);
}

/// Only the switch is stopped, and the control plane still grants leases. A thread that needs a page gets a
/// SIGBUS with the reason once the rack's patience is over, instead of an endless wait.
#[test]
fn a_dead_switch_ends_the_wait() {
    let Some(rig) = Rig::new("shared-switch-gone") else { return };
    let up = rig.description.up();
    let mut made = rig.start(&["make", "/kept"], "made\n");
    let mut touching = rig.start(&["touch", "/kept"], "mapped\n");
    let is_switch = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("\0role\0switch\0")
    };
    let switch = processes_with(&rig.description.file()).into_iter().find(is_switch).expect("it runs");
    signal(switch, "STOP");
    touching.say("");
    let ended = touching.ended();
    signal(switch, "CONT");
    assert_eq!((ended.stdout.as_str(), ended.code), ("", Some(2)), "{ended:?}");
    assert!(ended.stderr.contains("no answer from the switch for 4 s"), "{ended:?}");
    made.kill();
    drop(up);
}

fn is_role(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).contains("\0role\0")
}

/// Without `--share`, named memory is local to the host, as usual.
#[test]
fn without_it_names_are_local() {
    if !may_run("local names") {
        return;
    }
    let dir = Dir::new("run-local-names");
    let binary = program(&dir, "shared", &["-D_GNU_SOURCE"]);
    let name = format!("/farmem-test-{}", std::process::id());
    let mut command = farmem(&["run", "--local", "1MiB", "--", &binary, "make", &name]);
    command.stdin(Stdio::piped());
    let mut made = Running::start(command);
    assert_eq!(made.line(), "made\n");
    let file = format!("/dev/shm{name}");
    assert!(fs::metadata(&file).is_ok(), "{file}");
    let mut unlink = Command::new(&binary);
    unlink.args(["unlink", &name]).stdin(Stdio::null());
    let unlinked = run_command(unlink);
    assert_eq!(unlinked.code, Some(0), "found by a program of its own: {unlinked:?}");
    assert!(fs::metadata(&file).is_err(), "{file}");
    made.say("");
    assert_eq!(made.ended().stdout, "0 0\n");
}
