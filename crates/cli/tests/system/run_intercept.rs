//! Tests of `farmem run --intercept syscalls` with dynamically linked programs: they have no preload library, and the pager answers
//! their system calls.

use crate::process::{Dir, farmem, run_command};
use crate::run::{MIB, assert_far, far_with, may_run, number, program, same_with, stats};

/// Runs one of `tests/programs` alone and with far memory by its system calls, with the same result.
fn finds_the_same(local: u64, threshold: &str, name: &str, arguments: &[&str]) -> Option<serde_json::Value> {
    if cfg!(not(target_arch = "x86_64")) {
        eprintln!("skipped: {name}: --intercept syscalls is for x86-64");
        return None;
    }
    if !may_run(name) {
        return None;
    }
    let dir = Dir::new(&format!("run-intercept-{name}-{threshold}"));
    let binary = program(&dir, name, &[]);
    let options = ["--intercept", "syscalls", "--threshold", threshold];
    let stats = same_with((local, &options), &[&[&*binary], arguments].concat(), |_| {});
    assert_far(&stats);
    assert_eq!(number(&stats, "calls"), 0, "the library is in the program: {stats}");
    Some(stats)
}

/// Calls of libc's functions for memory, in the program, in its threads and in forks' children.
#[test]
fn programs_map_and_unmap_without_the_library() {
    let Some(stats) = finds_the_same(MIB, "128KiB", "static", &["mappings"]) else { return };
    assert_eq!(number(&stats, "forks"), 6, "{stats}");
    finds_the_same(MIB, "128KiB", "edges", &[]);
    finds_the_same(MIB, "128KiB", "mappings", &[]);
}

/// The dynamic linker's memory is far, too, with the first thread's number and its record of restartable sequences. The kernel
/// writes to both in a fork's child, before the child can have far memory.
#[test]
fn programs_fork_without_the_library() {
    let Some(stats) = finds_the_same(MIB, "4KiB", "forks", &[]) else { return };
    assert_eq!(number(&stats, "forks"), 3 + 9 + 27 + 50, "{stats}");
}

/// Threads on stacks that the program maps itself, as those of SBCL: they end, and fork, although their stacks are far.
#[test]
fn threads_on_far_stacks_end_and_fork() {
    let Some(stats) = finds_the_same(MIB, "128KiB", "own_stacks", &[]) else { return };
    assert_eq!(number(&stats, "forks"), 48, "{stats}");
}

/// A program that another one starts has far memory in the same way.
#[test]
fn started_programs_have_no_library_either() {
    let Some(stats) = finds_the_same(MIB, "128KiB", "static", &["itself"]) else { return };
    assert_eq!(number(&stats, "processes"), 3, "{stats}");
}

/// Options that exclude far memory by system calls are refused before the start, by their names. A static program can load no
/// library.
#[test]
fn options_that_exclude_interception_of_system_calls() {
    if cfg!(not(target_arch = "x86_64")) || !may_run("options") {
        return;
    }
    for option in ["--user-mode-only", "--no-filter"] {
        run_command(farmem(&["run", "--intercept", "syscalls", option, "--", "true"])).refuses(&[
            "--intercept syscalls",
            option,
            "leave out",
        ]);
    }
    let dir = Dir::new("run-intercept-options");
    let binary = program(&dir, "static", &["-static"]);
    run_command(farmem(&["run", "--intercept", "libc", "--", &binary, "threads"]))
        .refuses(&["statically linked", "leave out --intercept"]);
    let ended = run_command(far_with(MIB, &["--intercept", "libc"], &["true"]));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    stats(&ended, MIB);
}
