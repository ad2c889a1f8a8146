//! Tests of `farmem run` with forks of programs that gave up root or other resources, and with forks in
//! signal handlers. The programs limit their waits, so that a child that hangs is a failure.

use crate::process::{Dir, farmem, is_root, run_command};
use crate::rack::Description;
use crate::run::{MIB, assert_far, far, may_run, number, program, same, stats};
use serde_json::Value;
use std::path::Path;

/// A daemon drops root and forks. Its children have its memory and allocate, although they may not open a
/// userfaultfd: they use the pager's device. A program that starts after the drop has far memory too.
#[test]
fn a_daemon_that_drops_root_and_forks() {
    if !may_run("a daemon") {
        return;
    }
    if !is_root() || !Path::new("/dev/userfaultfd").exists() {
        return eprintln!("skipped: a daemon: there is no root to drop, or no /dev/userfaultfd");
    }
    let dir = Dir::new("run-daemon");
    let binary = program(&dir, "daemon", &[]);
    for (how, programs) in [("alone", 1), ("thread", 1), ("exec", 2)] {
        let stats = same(MIB, &[&binary, how]);
        assert_far(&stats);
        assert_eq!(number(&stats, "forks"), 40 + 10);
        assert_eq!(number(&stats, "processes"), programs + 40 + 10);
    }
}

/// A handler that interrupts malloc and free forks. The child allocates in the handler, or continues the
/// interrupted call, and so does the parent. (Without far memory, glibc ends this program, because its heap
/// does not support this.)
#[test]
fn a_handler_that_interrupts_malloc_and_forks() {
    if !may_run("handlers") {
        return;
    }
    let dir = Dir::new("run-handlers");
    let binary = program(&dir, "handlers", &[]);
    for how in ["alone", "thread"] {
        let ended = run_command(far(MIB, &[&binary, how]));
        assert_eq!((ended.stdout.as_str(), ended.code), ("150 forks, 0 wrong\n", Some(0)), "{ended:?}");
        assert_eq!(number(&stats(&ended, MIB), "forks"), 1 + 150);
    }
}

/// The program's own filter refuses calls that a child needs for its far memory and for its own end. The
/// child still ends, with the reason.
#[test]
fn a_child_without_far_memory_ends_under_any_filter() {
    if !may_run("a filter against forks") {
        return;
    }
    let dir = Dir::new("run-denied");
    let ended = run_command(far(MIB, &[&program(&dir, "tight", &[]), "denied"]));
    let expected = "exited 1, killed 0, status 137\nwaited: 0\n";
    assert_eq!((ended.stdout.as_str(), ended.code), (expected, Some(0)), "{ended:?}");
    assert!(ended.stderr.contains("the child of a fork cannot have its far memory"), "{ended:?}");
    stats(&ended, MIB);
}

/// The program forks and prints under a filter that ends it at a call for random numbers. Without far memory,
/// it makes no such call.
#[test]
fn forks_under_a_filter_without_random_numbers() {
    finds_the_same("strict", 2 * ROUNDS);
}

/// Fewer and fewer descriptor numbers are free, and finally none. The children have their memory and all open
/// files.
#[test]
fn forks_without_a_descriptor_left() {
    finds_the_same("full", 5 * 2 * ROUNDS);
    finds_the_same("full-with-a-pipe", 5 * 2 * ROUNDS + 3);
}

/// Like the test above, with a child that needs one more descriptor for the file of its shared memory.
#[test]
fn forks_without_a_descriptor_left_and_with_shared_memory() {
    if !may_run("no descriptor for shared memory") {
        return;
    }
    let description = Description::new("run-tight-shared", "udp");
    let up = description.up();
    let dir = Dir::new("run-tight-shared-program");
    let (binary, file) = (program(&dir, "tight", &[]), description.file());
    let args = ["--local", "2MiB", "--rack", &file, "--share", "tight", "--", &binary, "full-with-a-pipe"];
    let ended = run_command(farmem(&[&["run", "--json"], &args[..]].concat()));
    let mut expected = "10 children, and here right\n".repeat(5) + &"a child reads a pipe: 0\n".repeat(3);
    expected.push_str("another descriptor: Too many open files\n");
    assert_eq!((ended.stdout, ended.code), (expected, Some(0)), "{}", ended.stderr);
    up.stop();
}

/// The program enters another network namespace and forks. There it executes another program, which has far
/// memory and forks.
#[test]
fn forks_in_another_network_namespace() {
    if !is_root() {
        return eprintln!("skipped: another network namespace: only root may make one");
    }
    let stats = finds_the_same("network", 4 * ROUNDS);
    assert!(stats.is_none_or(|stats| number(&stats, "processes") == 2 + 4 * ROUNDS));
}

/// Another user opens hundreds of silent connections to the pager. The children of a program keep their far
/// memory.
#[test]
fn another_user_does_not_push_children_out() {
    if !may_run("another user") {
        return;
    }
    if !is_root() {
        return eprintln!("skipped: another user: only root may start programs as one");
    }
    let flood = "import glob, os, socket, time\n\
                 os.setgid(65533); os.setuid(65533)\n\
                 end = time.time() + 60\n\
                 while time.time() < end and os.getppid() != 1:\n\
                 \x20   names = [l.split()[-1] for l in open('/proc/net/unix') if 'farmem-run-' in l]\n\
                 \x20   sockets = []\n\
                 \x20   for name in names * 300:\n\
                 \x20       s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.setblocking(False)\n\
                 \x20       try: s.connect('\\0' + name[1:] if name[0] == '@' else name)\n\
                 \x20       except OSError: pass\n\
                 \x20       sockets.append(s)\n";
    let mut strangers = std::process::Command::new("python3").args(["-c", flood]).spawn().expect("it starts");
    let script = "x=$(seq 100000); n=0; i=0; while [ $i -lt 300 ]; do (exit 0) || n=$((n+1)); i=$((i+1)); done; echo $n";
    let ended = run_command(far(MIB, &["sh", "-c", script]));
    strangers.kill().expect("it runs");
    strangers.wait().expect("it ends");
    assert_eq!((ended.stdout.as_str(), ended.code), ("0\n", Some(0)), "{ended:?}");
    assert!(number(&stats(&ended, MIB), "forks") >= 300);
}

/// `_Fork` calls no fork handlers, and its children have their memory.
#[test]
fn forks_past_the_handlers() {
    finds_the_same("plain", 2 * ROUNDS);
}

/// An access of a child to memory with `madvise(MADV_DONTFORK)` is a SIGSEGV until MADV_DOFORK, through libc
/// and past it.
#[test]
fn memory_that_children_do_not_have() {
    for case in ["kept", "kept-past-libc"] {
        finds_the_same(case, 2 * ROUNDS + 4 + 2 + 1 + 2 + 2 + 1);
    }
}

/// Number of children in `tests/programs/tight.c`, which fork once each.
const ROUNDS: u64 = 10;

/// Runs one case of `tests/programs/tight.c` alone and with far memory, with the same result. The run must
/// report this number of forks.
fn finds_the_same(case: &str, forks: u64) -> Option<Value> {
    if !may_run(case) {
        return None;
    }
    let dir = Dir::new(&format!("run-tight-{case}"));
    let stats = same(MIB, &[&program(&dir, "tight", &[]), case]);
    assert_far(&stats);
    assert_eq!(number(&stats, "forks"), forks, "{stats}");
    Some(stats)
}
