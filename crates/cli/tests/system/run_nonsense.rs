//! What a program may say to the pager of its `farmem run`, which believes none of it (docs/security.md). Each case is one of
//! `tests/programs/nonsense.c`, which talks to the pager past the preload library; beside it in the same run is a program that does as it should.

use crate::process::{Dir, Ended, run_command};
use crate::run::{MIB, far, may_run, program, stats};
use std::process::{Command, Stdio};

/// Runs a case, and behind it, with the same pager, a program that sorts more than there is local memory.
fn nonsense(case: &str) -> Option<Ended> {
    if !may_run(case) {
        return None;
    }
    let dir = Dir::new(&format!("run-nonsense-{}", case.replace(' ', "-")));
    let binary = program(&dir, "nonsense", &[]);
    let script = format!("{binary} {case}; echo $?; seq 40000 | sort -n -r -S 4M | tail -n 1");
    let run = far(MIB, &["sh", "-c", &script]);
    // A pager that waits for its program would be waited for here.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "120"]).arg(run.get_program()).args(run.get_args()).stdin(Stdio::null());
    let ended = run_command(command);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    assert!(ended.stdout.ends_with("\n1\n"), "the sort has its memory: {ended:?}");
    stats(&ended, MIB);
    Some(ended)
}

/// Thousands of calls of numbers at the edges of what there is: sums that wrap around, pages of the mailboxes, places of no process.
#[test]
fn calls_that_make_no_sense_harm_the_caller_alone() {
    for seed in 1..=8 {
        let Some(ended) = nonsense(&format!("calls {seed}")) else { return };
        assert!(ended.stdout.starts_with("0\n"), "every call is answered: {ended:?}");
    }
}

/// The number of a call is the program's to choose: behind the last one comes the first.
#[test]
fn calls_are_numbered_by_the_program() {
    let Some(ended) = nonsense("number") else { return };
    assert!(ended.stdout.starts_with("0\n"), "{ended:?}");
}

/// Greetings with files of no length or of 2^62 bytes, at addresses where they cannot be, for forks that nobody made, with a pipe in the place of a
/// userfaultfd.
#[test]
fn greetings_that_cannot_be_are_refused() {
    let Some(ended) = nonsense("greet") else { return };
    assert!(ended.stdout.starts_with("0\n"), "{ended:?}");
}

/// A program seals the file of its memory, so that no page can be taken from it any more. It is ended, with the reason; the limit holds.
#[test]
fn who_seals_its_memory_is_ended() {
    let Some(ended) = nonsense("seal") else { return };
    assert!(ended.stdout.starts_with("137\n"), "killed: {ended:?}");
    assert!(ended.stderr.contains("has spoilt the file of its far memory"), "{ended:?}");
}

/// A program takes the flag away by which its pager does not wait in a read of the userfaultfd that both have, again and again. Others are served while and after.
#[test]
fn who_has_its_pager_wait_is_not_waited_for() {
    let Some(ended) = nonsense("wait") else { return };
    assert!(ended.stdout.starts_with("0\n"), "{ended:?}");
}
