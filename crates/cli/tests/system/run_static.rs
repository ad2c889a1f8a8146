//! Tests of `farmem run` with static programs: the pager answers their system calls, because no library is in them.

use crate::process::{Dir, Running, farmem, run_command};
use crate::run::{MIB, assert_far, far, may_run, number, program, same, stats};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs one of `tests/programs`, linked statically, alone and with far memory, with the same result.
fn finds_the_same(local: u64, name: &str, arguments: &[&str]) -> Option<serde_json::Value> {
    if cfg!(not(target_arch = "x86_64")) {
        eprintln!("skipped: {name}: static programs have far memory on x86-64 only");
        return None;
    }
    if !may_run(name) {
        return None;
    }
    let dir = Dir::new(&format!("run-static-{name}-{}", arguments.join("-")));
    let binary = program(&dir, name, &["-static"]);
    Some(same(local, &[&[&*binary], arguments].concat()))
}

/// `mmap`, `munmap`, `mremap`, `madvise` and `mprotect`, each with its bytes and its signals, in forks' children too.
#[test]
fn static_programs_map_and_unmap() {
    let Some(stats) = finds_the_same(MIB, "static", &["mappings"]) else { return };
    assert_far(&stats);
    assert_eq!(number(&stats, "forks"), 6, "{stats}");
}

/// Eight threads map, move and unmap at once.
#[test]
fn static_programs_have_threads() {
    let Some(stats) = finds_the_same(MIB, "static", &["threads"]) else { return };
    assert_far(&stats);
    let Some(stats) = finds_the_same(6 * MIB, "threads", &[]) else { return };
    assert_far(&stats);
}

/// Children, their children, and a thread that writes meanwhile.
#[test]
fn static_programs_fork() {
    let Some(stats) = finds_the_same(MIB, "forks", &[]) else { return };
    assert_far(&stats);
    assert_eq!(number(&stats, "forks"), 3 + 9 + 27 + 50, "{stats}");
}

/// Random mappings, and unmappings of parts of them, beside a model.
#[test]
fn static_programs_map_at_random() {
    let Some(stats) = finds_the_same(MIB, "mappings", &[]) else { return };
    assert_far(&stats);
}

/// Unmapped ranges, refused advice, file mappings between far memory, and children that inherit all of it.
#[test]
fn static_programs_at_the_edges() {
    let Some(stats) = finds_the_same(MIB, "edges", &[]) else { return };
    assert_far(&stats);
}

/// A fork's child runs a static program, which has far memory of its own.
#[test]
fn static_programs_run_static_programs() {
    let Some(stats) = finds_the_same(MIB, "static", &["itself"]) else { return };
    assert_far(&stats);
    assert_eq!(number(&stats, "processes"), 3, "{stats}");
}

/// Rings and files with O_DIRECT are refused before the first far mapping as well: their buffers could be in it later.
#[test]
fn a_static_program_gets_no_ring_before_its_memory() {
    if cfg!(not(target_arch = "x86_64")) || !may_run("rings before far memory") {
        return;
    }
    let dir = Dir::new("run-static-before");
    let binary = program(&dir, "before_mappings", &["-static"]);
    let ended = run_command(far(MIB, &[&binary, &binary]));
    assert_eq!((&*ended.stdout, ended.code), ("ring 1, direct 22, set 22, 0 wrong\n", Some(0)), "{ended:?}");
    assert_far(&stats(&ended, MIB));
}

/// The break grows by 1 MiB at most, and allocators take mappings then.
#[test]
fn the_break_of_a_static_program_is_short() {
    if cfg!(not(target_arch = "x86_64")) || !may_run("the break") {
        return;
    }
    let dir = Dir::new("run-static-break");
    let ended = run_command(far(MIB, &[&program(&dir, "static", &["-static"]), "break"]));
    assert_eq!(
        (&*ended.stdout, ended.code),
        ("grown: 1, more: 1, 0 wrong\nblocks: 0 wrong\n", Some(0)),
        "{ended:?}"
    );
    assert_far(&stats(&ended, MIB));
}

/// A signal that ends the program is the command's exit code; refused calls leave the bytes.
#[test]
fn static_programs_end_as_others() {
    if cfg!(not(target_arch = "x86_64")) || !may_run("ends") {
        return;
    }
    let dir = Dir::new("run-static-ends");
    let binary = program(&dir, "static", &["-static"]);
    let ended = run_command(far(MIB, &[&binary, "ends"]));
    assert_eq!(ended.code, Some(128 + 11), "{ended:?}");
    let ended = run_command(far(MIB, &[&binary, "refused"]));
    assert_eq!((&*ended.stdout, ended.code), ("O_DIRECT: 1\nwiped: 1\n", Some(0)), "{ended:?}");
}

/// Go without cgo: 32 goroutines on a heap of eight times the local limit, with a collector that runs at every tenth of it.
#[test]
fn go_without_cgo() {
    let there = Command::new("go").arg("version").output();
    if !there.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: Go is not installed (scripts/setup)");
    }
    if cfg!(not(target_arch = "x86_64")) || !may_run("Go") {
        return;
    }
    let dir = Dir::new("run-static-go");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/heap.go");
    let binary = dir.path().join("heap");
    let mut build = Command::new("go");
    build.arg("build").arg("-o").arg(&binary).arg(source);
    build
        .env("CGO_ENABLED", "0")
        .env("GOTOOLCHAIN", "local")
        .env("GO111MODULE", "off")
        .current_dir(dir.path());
    assert!(build.status().expect("Go").success());
    let command = [binary.to_str().expect("ASCII"), "256", "32"];
    let alone = Command::new(command[0]).args(&command[1..]).env("GOGC", "10").output().expect("the program");
    let mut with_far = far(32 * MIB, &command);
    with_far.env("GOGC", "10");
    let ended = run_command(with_far);
    assert_eq!((ended.stdout.as_bytes(), ended.code), (&*alone.stdout, Some(0)), "{ended:?}");
    let stats = stats(&ended, 32 * MIB);
    assert_far(&stats);
    assert!(number(&stats, "stayed_local") < 64 * MIB, "{stats}");
}

/// Options that a static program cannot have are refused before it starts, by their names.
#[test]
fn options_that_a_static_program_cannot_have() {
    if cfg!(not(target_arch = "x86_64")) || !may_run("options") {
        return;
    }
    let dir = Dir::new("run-static-options");
    let binary = program(&dir, "static", &["-static"]);
    for option in ["--user-mode-only", "--no-filter"] {
        run_command(farmem(&["run", option, "--", &binary, "threads"]))
            .refuses(&["statically linked", option]);
    }
}

/// A fork beside a thread whose call on far memory has failed: the call ends when the thread waits elsewhere.
#[test]
fn a_fork_beside_a_refused_call() {
    finds_the_same(4 * MIB, "static_threads", &["waits"]);
}

/// A thread that runs without end after its call cannot be told from one in its call: the fork fails, and a line says why.
#[test]
fn a_fork_waits_for_a_second_at_most() {
    if cfg!(not(target_arch = "x86_64")) || !may_run("a fork that waits") {
        return;
    }
    let dir = Dir::new("run-static-spins");
    let ended = run_command(far(4 * MIB, &[&program(&dir, "static_threads", &["-static"]), "spins"]));
    assert_eq!((&*ended.stdout, ended.code), ("refused: 1, fork: -1\n", Some(0)), "{ended:?}");
    assert!(ended.stderr.contains("farmem: refused: a fork of process"), "{ended:?}");
}

/// The system refuses a change of rights: the child of a fork has the rights that the parent has.
#[test]
fn a_refused_change_of_rights() {
    finds_the_same(4 * MIB, "static_threads", &["rights"]);
}

/// A thread with a descriptor table of its own maps the first far memory.
#[test]
fn a_thread_with_its_own_descriptors() {
    finds_the_same(4 * MIB, "static_threads", &["descriptors"]);
}

/// A thread runs a program while others change mappings: the threads that end by it are not taken for threads that cannot be traced.
#[test]
fn programs_that_threads_run() {
    if cfg!(not(target_arch = "x86_64")) || !may_run("programs of threads") {
        return;
    }
    let dir = Dir::new("run-static-execs");
    let ended = run_command(far(MIB, &[&program(&dir, "static_threads", &["-static"]), "execs"]));
    assert_eq!((&*ended.stdout, ended.code), ("150 programs\n", Some(0)), "{ended:?}");
    assert!(!ended.stderr.contains("traced") && !ended.stderr.contains("stays local"), "{ended:?}");
    // A program may end before its first mapping is far.
    assert!(number(&stats(&ended, MIB), "processes") > 100, "{ended:?}");
}

/// Processes that are killed while they fork leave no child that is stopped for good.
#[test]
fn forks_of_killed_processes() {
    finds_the_same(MIB, "static_threads", &["killed"]);
}

/// A program without libc makes each call by itself.
#[test]
fn a_program_without_libc() {
    if cfg!(not(target_arch = "x86_64")) || !may_run("a program without libc") {
        return;
    }
    let dir = Dir::new("run-static-no-libc");
    let binary =
        program(&dir, "no_libc", &["-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector"]);
    let stats = same(MIB, &[&binary]);
    assert_far(&stats);
    assert_eq!(number(&stats, "forks"), 3, "{stats}");
}

/// True when a process has far memory at an address.
fn is_far(process: &str, address: &str) -> bool {
    let number = |hex: &str| u64::from_str_radix(hex.trim_start_matches("0x"), 16).expect("an address");
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).expect("a process");
    let line = maps.lines().find(|line| {
        let (start, rest) = line.split_once('-').expect("a mapping");
        let (end, _) = rest.split_once(' ').expect("a mapping");
        (number(start)..number(end)).contains(&number(address))
    });
    line.is_some_and(|line| line.contains("memfd:farmem"))
}

/// A debugger that comes later takes the pager's place: new mappings are local, a fork fails, and no page is lost. When the debugger leaves, all
/// is as before.
#[test]
fn a_debugger_that_comes_and_goes() {
    if cfg!(not(target_arch = "x86_64")) || !may_run("a debugger") {
        return;
    }
    let dir = Dir::new("run-static-debugger");
    let mut command = far(4 * MIB, &[&program(&dir, "static_threads", &["-static"]), "commands"]);
    command.stdin(Stdio::piped());
    let mut debugged = Running::start(command);
    let first = debugged.line();
    let (process, block) = first.trim().split_once(' ').expect("a number and an address");
    assert!(is_far(process, block), "{first}");
    let maps = |debugged: &mut Running| {
        debugged.say("m");
        let line = debugged.line();
        let (address, wrong) = line.trim().split_once(' ').expect("an address");
        assert_eq!(wrong, "0 wrong");
        is_far(process, address)
    };
    for _ in 0..2 {
        assert!(maps(&mut debugged));
        let mut command = Command::new(program(&dir, "debugger", &[]));
        command.arg(process).stdin(Stdio::piped());
        let mut debugger = Running::start(command);
        assert_eq!(debugger.line(), "attached to 1\n");
        debugged.say("u");
        assert_eq!(debugged.line(), "0 0 wrong\n");
        assert!(!maps(&mut debugged) && !maps(&mut debugged));
        debugged.say("f");
        assert_eq!(debugged.line(), "-1 0 wrong\n");
        debugger.say("");
        assert_eq!(debugger.line(), "detached\n");
        assert_eq!(debugger.ended().code, Some(0));
        assert!(maps(&mut debugged));
        debugged.say("f");
        assert_eq!(debugged.line(), "0 0 wrong\n");
    }
    debugged.say("end");
    let ended = debugged.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for (line, count) in [("new mappings local", 2), ("can be traced again", 2)] {
        assert_eq!(ended.stderr.matches(line).count(), count, "{ended:?}");
    }
}

/// Threads and children that begin while the pager is beside the program have the program's CPUs.
#[test]
fn threads_beside_the_pager_have_all_cpus() {
    if cfg!(not(target_arch = "x86_64")) || !may_run("the CPUs of threads") {
        return;
    }
    let dir = Dir::new("run-static-affinity");
    let binary = program(&dir, "static_threads", &["-static"]);
    let args = [
        "run",
        "--json",
        "--local",
        "4MiB",
        "--far",
        "1GiB",
        "--placement",
        "beside",
        "--",
        &binary,
        "affinity",
    ];
    let ended = run_command(farmem(&args));
    assert_eq!((&*ended.stdout, ended.code), ("0 wrong, 0 wrong\n", Some(0)), "{ended:?}");
    let stats = stats(&ended, 4 * MIB);
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1) {
        assert!(number(&stats, "faults_beside") > 0, "{stats}");
    }
}
