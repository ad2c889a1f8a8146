//! `farmem run`: forks of programs that gave up root or left themselves little else, and forks in signal handlers. The programs bound their
//! waits: a child that hangs is a failure, not a wait.

use crate::process::{Dir, farmem, is_root, run_command};
use crate::rack::Description;
use crate::run::{MIB, assert_far, far, may_run, number, program, same, stats};
use serde_json::Value;
use std::path::Path;

/// A daemon drops root and forks. Its children have its memory and allocate, though they may not open a userfaultfd: they have it by the
/// pager's device. So has a program that is started when root was dropped.
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

/// A handler that interrupts malloc and free forks. The child allocates in the handler, or goes on with what was interrupted; so does the parent.
/// (Without far memory glibc ends this program: its heap is not made for that.)
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

/// A filter of the program's own refuses what a child needs for its far memory, and what the child would end itself by: it ends all the same, and
/// says why.
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

/// The program forks and prints under a filter that ends it when it asks for random numbers, which it does not do without far memory.
#[test]
fn forks_under_a_filter_without_random_numbers() {
    finds_the_same("strict", 2 * ROUNDS);
}

/// There are fewer and fewer numbers left for descriptors, and then none, not even for a moment: the children have their memory, and what was open is
/// open in them.
#[test]
fn forks_without_a_descriptor_left() {
    finds_the_same("full", 5 * 2 * ROUNDS);
    finds_the_same("full-with-a-pipe", 5 * 2 * ROUNDS + 3);
}

/// As above where a child needs one more: the file of the memory that it shares.
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

/// The program goes to another network namespace and forks, and becomes another program there, which has far memory and forks.
#[test]
fn forks_in_another_network_namespace() {
    if !is_root() {
        return eprintln!("skipped: another network namespace: only root may make one");
    }
    let stats = finds_the_same("network", 4 * ROUNDS);
    assert!(stats.is_none_or(|stats| number(&stats, "processes") == 2 + 4 * ROUNDS));
}

/// Another user opens hundreds of connections to the pager and says nothing. The children of a program keep their far memory.
#[test]
fn another_user_does_not_push_children_out() {
    if !may_run("another user") {
        return;
    }
    if !is_root() {
        return eprintln!("skipped: another user: only root may start programs as one");
    }
    let flood = "import glob, os, socket, time\n\
                 os.setgid(65534); os.setuid(65534)\n\
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

/// `_Fork` calls no handlers of a program's, and its children have their memory.
#[test]
fn forks_past_the_handlers() {
    finds_the_same("plain", 2 * ROUNDS);
}

/// What `madvise(MADV_DONTFORK)` keeps from children is a SIGSEGV there until MADV_DOFORK; by libc, and past it.
#[test]
fn memory_that_children_do_not_have() {
    for case in ["kept", "kept-past-libc"] {
        finds_the_same(case, 2 * ROUNDS + 4 + 2 + 1 + 2 + 2 + 1);
    }
}

/// Of `tests/programs/tight.c`: children that fork once each.
const ROUNDS: u64 = 10;

/// Runs one case of `tests/programs/tight.c` alone and with far memory: it finds the same. So many forks had far memory.
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
