//! Tests of `farmem run` and system calls that bypass libc. Each call has its usual effect on far memory, or
//! is refused without effect. Processes without far memory keep all their rights.

use crate::process::{Dir, Ended, farmem, run_command};
use crate::rack::Description;
use crate::run::{may_run, number, program, same};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Command;

const MIB: u64 = 1 << 20;
/// Output of `opens` in a process with far memory that runs as root.
const NOT_OPENED: &str = "openat: 0\nfcntl: -22\na ring: 0\nopenat2: 0\nby 32 bits: 0\nuser: 0\n";

/// Runs one case of `tests/programs/past_libc.c` alone and with far memory, with the same result. The case
/// must make calls that bypass libc.
fn finds_the_same(case: &str) {
    if !may_run(case) {
        return;
    }
    let dir = Dir::new(&format!("run-past-{case}"));
    let stats = same(MIB, &[&program(&dir, "past_libc", &[]), case]);
    assert!(number(&stats, "calls_past_libc") > 0, "{stats}");
    assert!(number(&stats, "evictions") > 0, "{stats}");
}

fn with_far(command: &[&str]) -> Ended {
    let ended = run_command(farmem(&[&["run", "--local", "1MiB", "--far", "1GiB", "--"], command].concat()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended
}

/// `madvise(MADV_DONTNEED)` and `process_madvise`: discarded pages are zeros, and refused calls keep the
/// bytes.
#[test]
fn advice_past_libc() {
    finds_the_same("dropped");
}

/// `mmap(MAP_FIXED)` over far memory, then `munmap` by libc: no new mapping contains old bytes.
#[test]
fn a_mapping_past_libc() {
    finds_the_same("replaced");
}

/// `munmap`: an access is a SIGSEGV, also in a child, and no new mapping contains old bytes.
#[test]
fn an_unmapping_past_libc() {
    finds_the_same("unmapped");
}

/// A mapping that the system refuses keeps the earlier bytes.
#[test]
fn a_mapping_past_libc_that_is_refused() {
    finds_the_same("refused");
}

/// `mprotect` and `pkey_mprotect`: a child has the same access rights as its parent.
#[test]
fn rights_past_libc() {
    finds_the_same("protected");
}

/// `mremap` and `remap_file_pages`: the bytes are at the returned address.
#[test]
fn moves_past_libc() {
    finds_the_same("moved");
}

/// Threads with blocked signals, handlers that interrupt `malloc`, and a child of `vfork`.
#[test]
fn calls_past_libc_wherever_a_thread_is() {
    finds_the_same("interrupted");
}

/// A program with its own filter and SIGSYS handler receives its own traps, and its calls are still filtered.
#[test]
fn a_program_with_a_filter_of_its_own() {
    finds_the_same("filtered");
}

/// Threads that constantly bypass libc while their process forks.
#[test]
fn calls_past_libc_beside_forks() {
    finds_the_same("racing");
}

/// A process whose first thread has ended is identified by its other threads.
#[test]
fn calls_past_libc_without_the_first_thread() {
    finds_the_same("headless");
}

/// Files that bypass the system's page cache, by every call that opens them. No write of a device is lost,
/// because no such file opens.
#[test]
fn no_page_is_lost_to_a_device() {
    if !may_run("direct") {
        return;
    }
    let dir = Dir::new("run-past-direct");
    let binary = program(&dir, "past_libc", &[]);
    // Not in /tmp: memory file systems do not open files past the page cache.
    let file = concat!(env!("CARGO_TARGET_TMPDIR"), "/past-libc-direct");
    assert!(number(&same(MIB, &[&binary, "direct", file]), "calls_past_libc") > 0);
    assert_eq!(with_far(&[&binary, "ring"]).stdout, "a ring: not wrong\n");
    assert_eq!(with_far(&[&binary, "opens"]).stdout, NOT_OPENED);
}

/// `process_vm_writev` past libc, by the process itself and by one without far memory, is refused without
/// effect, because pages could be evicted during the system's writes.
#[test]
fn writes_past_the_mappings_are_refused() {
    if !may_run("writes") {
        return;
    }
    let dir = Dir::new("run-past-writes");
    let ended = with_far(&[&program(&dir, "past_libc", &[]), "writes"]);
    assert_eq!(ended.stdout, "itself: -38\nanother: -38\n0 wrong\n");
}

/// Calls that pin pages for a device, or for a read that ends later, are refused for a process with far
/// memory. Other calls are not refused.
#[test]
fn calls_that_pin_pages_are_refused() {
    if !may_run("devices") {
        return;
    }
    let dir = Dir::new("run-past-devices");
    let ended = with_far(&[&program(&dir, "past_libc", &[]), "devices"]);
    let expected = "AF_ALG: -97\nAF_XDP: -97\nby libc: -1 97\nSG_IO: -1\nNVMe: -1\nverbs: -1\nVFIO: -1\nanother request: -9\n";
    assert_eq!(ended.stdout, expected);
}

/// A static program, a program with an empty environment, and a setuid program have no far memory, and keep
/// all their rights.
#[test]
fn processes_without_far_memory_are_let_go_on() {
    if !may_run("without far memory") {
        return;
    }
    let dir = Dir::new("run-past-without");
    let dynamic = program(&dir, "past_libc", &[]);
    let alone = run_command(shell(&format!("{dynamic} opens"))).stdout;
    assert!(alone.starts_with("openat: 1\nfcntl: 0\n") && alone.ends_with("user: 0\n"), "{alone}");
    assert_eq!(with_far(&["sh", "-c", &format!("env -i {dynamic} opens")]).stdout, alone);

    let fixed = dir.path().join("fixed").to_str().expect("ASCII").to_owned();
    fs::rename(program(&dir, "past_libc", &["-static"]), &fixed).unwrap();
    assert_eq!(with_far(&["sh", "-c", &format!("{fixed} opens")]).stdout, alone);
    let dropped = run_command(shell(&format!("{fixed} dropped"))).stdout;
    assert_eq!(with_far(&["sh", "-c", &format!("{fixed} dropped")]).stdout, dropped);

    // Owned by an unprivileged user. A change of the owner removes setuid, so it comes first.
    chown(&fixed, Some(65534), None).unwrap();
    fs::set_permissions(&fixed, Permissions::from_mode(0o4755)).unwrap();
    let ended = with_far(&["sh", "-c", &format!("{fixed} opens")]);
    assert_eq!(ended.stdout, alone.replace("user: 0", "user: 65534"), "{ended:?}");
}

/// A run inside a run: the system permits only one listener, and the output names the uncovered cases.
/// `--no-filter` prints the same.
#[test]
fn a_run_without_a_filter_says_so() {
    if !may_run("no filter") {
        return;
    }
    let ended = with_far(&[env!("CARGO_BIN_EXE_farmem"), "run", "--far", "256MiB", "--", "echo", "inner"]);
    assert_eq!(ended.stdout, "inner\n");
    assert!(ended.stderr.contains("no filter (another program"), "{ended:?}");
    let ended = run_command(farmem(&["run", "--far", "256MiB", "--no-filter", "--", "echo", "inner"]));
    assert!(
        ended.stderr.contains("no filter (--no-filter)") && ended.stderr.contains("pass libc by"),
        "{ended:?}"
    );
    assert!(!with_far(&["true"]).stderr.contains("filter"));
}

/// Calls past libc on named memory are refused or have no effect.
#[test]
fn shared_memory_past_libc() {
    if !may_run("shared memory past libc") {
        return;
    }
    let description = Description::new("run-past-shared", "udp");
    let _up = description.up();
    let dir = Dir::new("run-past-shared-program");
    let binary = program(&dir, "past_libc", &[]);
    let file = description.file();
    let args =
        ["run", "--json", "--local", "8MiB", "--rack", &file, "--share", "past", "--", &binary, "shared"];
    let ended = run_command(farmem(&args));
    let expected = "munmap: -22\nmmap: -22\nmprotect: -22\nmremap: -22\nmadvise: 0\nto remove: -22\n\
                    0 wrong\na child writes: 0\n";
    assert_eq!((ended.stdout.as_str(), ended.code), (expected, Some(0)), "{ended:?}");
}

fn shell(line: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", line]);
    command
}
