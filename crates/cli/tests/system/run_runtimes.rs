//! Tests of `farmem run` with runtimes that place their heaps themselves: Go with libc, SBCL, ZGC. The programs
//! are those of `farmem bench run`.

use crate::process::{Dir, Ended, run_command};
use crate::run::{MIB, assert_far, far_with, may_run, number, stats};
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

/// Bytes of the blocks that most programs keep in use.
const LIVE: u64 = 64 * MIB;

fn source(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../bench/src/run/managed").join(name);
    path.to_str().expect("ASCII").to_owned()
}

/// Returns false, with a note, when a tool is missing or fails.
fn built(test: &str, tool: &mut Command) -> bool {
    let built = tool.output().is_ok_and(|ended| ended.status.success());
    if !built {
        eprintln!("skipped: {test}: {tool:?} fails, or is not installed (scripts/setup)");
    }
    built
}

/// Runs a program natively and under `farmem run`. Returns the second end, after a check that the answers agree.
fn with_same_answer(dir: &Dir, (local, options): (u64, &[&str]), live: u64, command: &[&str]) -> Ended {
    let begin = dir.file("begin", "begin\n");
    let live = live.to_string();
    let command = [command, &[live.as_str()]].concat();
    let mut alone = Command::new(command[0]);
    alone.args(&command[1..]).stdin(File::open(&begin).expect("written above"));
    let alone = run_command(alone);
    let mut run = far_with(local, options, &command);
    run.stdin(File::open(&begin).expect("written above"));
    let ended = run_command(run);
    let answer = |ended: &Ended| ended.stdout.split_whitespace().nth(1).map(str::to_owned);
    assert_eq!((answer(&ended), ended.code), (answer(&alone), Some(0)), "{ended:?}");
    assert!(answer(&alone).is_some(), "{alone:?}");
    ended
}

/// A heap of Go with libc is far. Go tries addresses of its choice before it takes any.
#[test]
fn a_heap_of_go_with_libc_is_far() {
    if !may_run("Go") {
        return;
    }
    let dir = Dir::new("run-go");
    let binary = dir.path().join("heap");
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&binary).args([source("heap.go"), source("cgo.go")]);
    go.env("CGO_ENABLED", "1").env("GO111MODULE", "off").env("GOTOOLCHAIN", "local");
    if !built("Go", &mut go) {
        return;
    }
    let ended = with_same_answer(&dir, (8 * MIB, &[]), LIVE, &[binary.to_str().expect("ASCII")]);
    let stats = stats(&ended, 8 * MIB);
    assert_far(&stats);
    assert!(number(&stats["mapped_local"], "chosen_address") < MIB, "{stats}");
    assert!(number(&stats, "stayed_local") < 16 * MIB, "{stats}");
}

/// Dynamically linked Go without cgo loads no libc, so the pager answers its system calls, and its heap is far.
#[test]
fn a_heap_of_go_without_libc_is_far() {
    if cfg!(not(target_arch = "x86_64")) || !may_run("Go without libc") {
        return;
    }
    let dir = Dir::new("run-go-pie");
    let binary = dir.path().join("heap");
    let mut go = Command::new("go");
    go.args(["build", "-buildmode=pie", "-o"]).arg(&binary).arg(source("heap.go"));
    go.env("CGO_ENABLED", "0").env("GO111MODULE", "off").env("GOTOOLCHAIN", "local");
    if !built("Go without libc", &mut go) {
        return;
    }
    let ended = with_same_answer(&dir, (8 * MIB, &[]), LIVE, &[binary.to_str().expect("ASCII")]);
    let stats = stats(&ended, 8 * MIB);
    assert_far(&stats);
    assert!(number(&stats, "calls_past_libc") > 0, "{stats}");
    assert!(number(&stats, "resident_bytes") < 48 * MIB, "{stats}");
}

/// SBCL maps its heap by raw system calls, at an address of its choice. With `--intercept syscalls` the heap is far: it is four
/// times as large as the local limit.
#[test]
fn a_heap_of_sbcl_is_far_by_system_calls() {
    if cfg!(not(target_arch = "x86_64"))
        || !may_run("SBCL")
        || !built("SBCL", Command::new("sbcl").arg("--version"))
    {
        return;
    }
    let dir = Dir::new("run-sbcl-far");
    let program = source("heap.lisp");
    let sbcl = ["sbcl", "--dynamic-space-size", "1500MB", "--script", &program];
    let ended = with_same_answer(&dir, (32 * MIB, &["--intercept", "syscalls"]), 128 * MIB, &sbcl);
    let stats = stats(&ended, 32 * MIB);
    assert_far(&stats);
    assert!(number(&stats, "resident_bytes") < 96 * MIB, "{stats}");
}

/// SBCL maps its heap by raw system calls, so the heap stays local without an option. The output says so, with the
/// reason and the option.
#[test]
fn a_heap_of_sbcl_is_reported_as_local() {
    if !may_run("SBCL") || !built("SBCL", Command::new("sbcl").arg("--version")) {
        return;
    }
    let dir = Dir::new("run-sbcl");
    let program = source("heap.lisp");
    let sbcl = ["sbcl", "--dynamic-space-size", "1500MB", "--script", &program];
    // Long enough for several samples of the memory.
    let ended = with_same_answer(&dir, (8 * MIB, &[]), 512 * MIB, &sbcl);
    let said = "outside far memory, which --local does not limit. Most that it mapped there: by system calls past libc. `--intercept syscalls` makes such memory far";
    assert_eq!(ended.stderr.matches(said).count(), 1, "{ended:?}");
    assert!(number(&stats(&ended, 8 * MIB), "stayed_local") > 64 * MIB, "{ended:?}");
}

/// ZGC maps a file in memory at several addresses, so its heap stays local. The output says so, with the reason.
#[test]
fn a_heap_of_zgc_is_reported_as_local() {
    if !may_run("ZGC's heap") {
        return;
    }
    let dir = Dir::new("run-zgc");
    let path = dir.path().to_str().expect("ASCII").to_owned();
    if !built("ZGC's heap", Command::new("javac").args(["-d", &path, &source("Heap.java")]))
        || !built("ZGC's heap", Command::new("java").args(["-XX:+UseZGC", "-version"]))
    {
        return;
    }
    let java = [
        "java",
        "-XX:+UseZGC",
        "-Xms128m",
        "-Xmx256m",
        "-XX:+AlwaysPreTouch",
        "-XX:-UsePerfData",
        "-cp",
        &path,
        "Heap",
    ];
    let ended = with_same_answer(&dir, (8 * MIB, &[]), LIVE, &java);
    let said = "outside far memory, which --local does not limit. Most that it mapped there: shared mappings of memory, as ZGC's heap is. With -XX:+UseG1GC a JVM's heap is far";
    assert_eq!(ended.stderr.matches(said).count(), 1, "{ended:?}");
    let stats = stats(&ended, 8 * MIB);
    assert!(number(&stats, "stayed_local") > 128 * MIB, "{stats}");
    assert!(number(&stats["mapped_local"], "shared") > 128 * MIB, "{stats}");
}
