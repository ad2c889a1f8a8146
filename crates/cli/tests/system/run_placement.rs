//! Tests of `farmem run --placement`: the pager on the CPU of the faulting thread, and elsewhere.

use crate::process::{Dir, Ended, farmem, run_command};
use crate::run::{MIB, PYTHON, assert_far, far, may_run, number, program, same, stats};
use serde_json::Value;
use std::thread::available_parallelism;

/// Runs a command with far memory in this placement.
fn placed(how: &str, local: u64, command: &[&str]) -> (Ended, Value) {
    let text = local.to_string();
    let mut args = vec!["run", "--json", "--local", &text, "--far", "1GiB", "--placement", how, "--"];
    args.extend_from_slice(command);
    let ended = run_command(farmem(&args));
    let counts = stats(&ended, local);
    (ended, counts)
}

/// A program has the same result in each placement, and the statistics count the faults that were served on its
/// CPU: none where the kernel places the pager.
#[test]
fn the_result_is_the_same_in_each_placement() {
    if !may_run("placement") {
        return;
    }
    let dir = Dir::new("run-placement");
    let rounds = program(&dir, "rounds", &[]);
    for how in ["free", "auto", "beside"] {
        let (ended, counts) = placed(how, 4 * MIB, &[&rounds, "16", "4"]);
        assert_eq!((ended.stdout.as_str(), ended.code), ("0 wrong\n", Some(0)), "{how}: {ended:?}");
        assert_far(&counts);
        let beside = number(&counts, "faults_beside");
        assert!(beside <= number(&counts, "faults"), "{how}: {counts}");
        match how {
            "free" => assert_eq!(beside, 0, "{counts}"),
            "beside" if available_parallelism().is_ok_and(|cpus| cpus.get() > 1) => {
                assert!(beside > 0, "{counts}");
            }
            _ => {}
        }
    }
}

/// The affinity of a program never changes: the program, its threads and its children have the CPUs that it was
/// started with, or that it chose, while the pager is beside it.
#[test]
fn the_programs_affinity_never_changes() {
    if !may_run("affinity") {
        return;
    }
    let text = "
import os, subprocess, sys, threading
mine = os.sched_getaffinity(0)
block = bytearray(16 << 20)
seen = set()
def look():
    seen.add(frozenset(os.sched_getaffinity(0)))
def touch():
    for round in range(3):
        for at in range(0, len(block), 4096):
            block[at] = (block[at] + 1) % 256
        look()
touch()
thread = threading.Thread(target=look)
thread.start()
thread.join()
child = subprocess.run([sys.executable, '-c', 'import os; print(sorted(os.sched_getaffinity(0)))'], capture_output=True, text=True)
print(seen == {frozenset(mine)}, child.stdout == str(sorted(mine)) + '\\n')
os.sched_setaffinity(0, {min(mine)})
seen.clear()
touch()
print(seen == {frozenset({min(mine)})}, sum(block[::4096]) == 6 * 4096)
";
    for how in ["auto", "beside"] {
        let (ended, counts) = placed(how, 4 * MIB, &[PYTHON, "-c", text]);
        assert_eq!((ended.stdout.as_str(), ended.code), ("True True\nTrue True\n", Some(0)), "{ended:?}");
        assert_far(&counts);
    }
}

/// Where the run has one CPU, the pager does not move.
#[test]
fn one_cpu_leaves_no_choice() {
    if !may_run("one CPU") {
        return;
    }
    let dir = Dir::new("run-one-cpu");
    let rounds = program(&dir, "rounds", &[]);
    let mut command = far(4 * MIB, &[&rounds, "16", "2"]);
    let cpu = rustix::thread::sched_getcpu().to_string();
    let mut bound = std::process::Command::new("taskset");
    bound.args(["-c", &cpu]).arg(command.get_program()).args(command.get_args());
    bound.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command = bound;
    let ended = run_command(command);
    assert_eq!((ended.stdout.as_str(), ended.code), ("0 wrong\n", Some(0)), "{ended:?}");
    assert_eq!(number(&stats(&ended, 4 * MIB), "faults_beside"), 0);
}

/// A program with threads has the same result beside the pager.
#[test]
fn threads_run_beside_the_pager() {
    if !may_run("threads beside the pager") {
        return;
    }
    let dir = Dir::new("run-beside-threads");
    let threads = program(&dir, "threads", &[]);
    let natively = same(MIB, &[&threads]);
    assert_far(&natively);
    let (ended, counts) = placed("beside", MIB, &[&threads]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_far(&counts);
}
