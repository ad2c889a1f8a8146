//! Tests of invalid messages from a program to the pager of its `farmem run`, which trusts no message
//! (docs/security.md). Each case of `tests/programs/nonsense.c` talks to the pager past the preload library,
//! while a correct program runs in the same run.

use crate::process::{Dir, Ended, run_command};
use crate::run::{MIB, far, may_run, program, stats};
use std::process::{Command, Stdio};

/// Runs a case. A program that sorts more than the local memory follows with the same pager.
fn nonsense(case: &str) -> Option<Ended> {
    if !may_run(case) {
        return None;
    }
    let dir = Dir::new(&format!("run-nonsense-{}", case.replace(' ', "-")));
    let binary = program(&dir, "nonsense", &[]);
    let script = format!("{binary} {case}; echo $?; seq 40000 | sort -n -r -S 4M | tail -n 1");
    let run = far(MIB, &["sh", "-c", &script]);
    // The timeout ends a pager that waits for its program.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "120"]).arg(run.get_program()).args(run.get_args()).stdin(Stdio::null());
    let ended = run_command(command);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    assert!(ended.stdout.ends_with("\n1\n"), "the sort has its memory: {ended:?}");
    stats(&ended, MIB);
    Some(ended)
}

/// Thousands of calls with extreme numbers: sums that wrap around, mailbox pages, and addresses outside every
/// process.
#[test]
fn calls_that_make_no_sense_harm_the_caller_alone() {
    for seed in 1..=8 {
        let Some(ended) = nonsense(&format!("calls {seed}")) else { return };
        assert!(ended.stdout.starts_with("0\n"), "every call is answered: {ended:?}");
    }
}

/// A program may choose the numbers of its calls. The first number follows the last.
#[test]
fn calls_are_numbered_by_the_program() {
    let Some(ended) = nonsense("number") else { return };
    assert!(ended.stdout.starts_with("0\n"), "{ended:?}");
}

/// Greetings with files of zero or 2^62 bytes, at invalid addresses, for forks that did not happen, and with
/// a pipe in place of a userfaultfd.
#[test]
fn greetings_that_cannot_be_are_refused() {
    let Some(ended) = nonsense("greet") else { return };
    assert!(ended.stdout.starts_with("0\n"), "{ended:?}");
}

/// A program seals the file of its memory, so that no page can be evicted. The pager ends it with a reason,
/// and the limit holds.
#[test]
fn a_program_that_seals_its_memory_is_ended() {
    let Some(ended) = nonsense("seal") else { return };
    assert!(ended.stdout.starts_with("137\n"), "killed: {ended:?}");
    assert!(ended.stderr.contains("has spoilt the file of its far memory"), "{ended:?}");
}

/// A program repeatedly removes the flag that makes the pager's reads of the common userfaultfd nonblocking.
/// The pager still serves other programs.
#[test]
fn a_pager_does_not_wait_for_a_blocking_userfaultfd() {
    let Some(ended) = nonsense("wait") else { return };
    assert!(ended.stdout.starts_with("0\n"), "{ended:?}");
}
