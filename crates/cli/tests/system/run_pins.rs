//! Tests of `farmem run` with memory that moves during writes, and with memory that the system writes past
//! its mappings. No write is lost.

use crate::process::{Dir, Running, eventually, farmem, run_command, runs, signal};
use crate::run::{MIB, assert_far, far, may_run, number, program, same, stats};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Stdio;

/// Threads add to words of memory that another thread moves, within far memory and out of it. No increment is
/// lost.
#[test]
fn memory_that_moves_while_threads_write() {
    if !may_run("moves") {
        return;
    }
    let dir = Dir::new("run-moves");
    let binary = program(&dir, "moves", &[]);
    for local in [MIB / 2, 8 * MIB] {
        let ended = run_command(far(local, &[&binary]));
        let expected = "between two places: 0 lost\nout: 0 lost\n";
        assert_eq!((ended.stdout.as_str(), ended.code), (expected, Some(0)), "{ended:?}");
        stats(&ended, local);
    }
}

/// Another process of the run, or a thread of the same process, has the system write up to 128 pages at once.
/// An eighth of this memory is local. Every page that the system reported as written contains the bytes.
#[test]
fn the_system_writes_into_another_process() {
    if !may_run("pins") {
        return;
    }
    let dir = Dir::new("run-pins");
    let binary = program(&dir, "pins", &[]);
    for how in ["process", "thread", "sharer", "to-sharer"] {
        assert_far(&same(MIB / 2, &[&binary, how]));
    }
}

/// A child with its parent's address space (`clone` with CLONE_VM) keeps every byte after the parent's end,
/// also when it executes another program with its own far memory.
#[test]
fn an_address_space_outlives_its_first_process() {
    if !may_run("shared address spaces") {
        return;
    }
    let dir = Dir::new("run-sharer");
    let binary = program(&dir, "sharer", &[]);
    for (how, processes) in [("ends", 2), ("execs", 3)] {
        let ended = run_command(far(MIB / 2, &[&binary, how]));
        assert_eq!((ended.stdout.as_str(), ended.code), ("0 wrong\n", Some(0)), "{how}: {ended:?}");
        let stats = stats(&ended, MIB / 2);
        assert_far(&stats);
        assert_eq!(number(&stats, "processes"), processes, "{how}: {stats}");
    }
}

/// A process with the address space of another process ends with the pager, like that process. Otherwise it
/// would read zeros.
#[test]
fn an_address_space_ends_with_its_pager() {
    if !may_run("shared address spaces") {
        return;
    }
    let dir = Dir::new("run-sharer-killed");
    let binary = program(&dir, "sharer", &[]);
    let mut running = Running::start(farmem(&["run", "--local", "512KiB", "--", &binary, "waits"]));
    let child: u32 = running.line().trim().parse().expect("its number");
    assert!(runs(child));
    signal(running.pid(), "KILL");
    running.ended();
    eventually("the child ends", || !runs(child));
}

/// Writes through `/proc/self/mem` go to one page at a time, under the system's lock of the mappings: none is lost. At a page that is not here
/// the system answers EIO.
#[test]
fn writes_through_proc_self_mem() {
    if !may_run("/proc/self/mem") {
        return;
    }
    let dir = Dir::new("run-proc-mem");
    let ended = run_command(far(MIB / 2, &[&program(&dir, "proc_mem", &[])]));
    assert_eq!((ended.stdout.as_str(), ended.code), ("0 lost\n", Some(0)), "{ended:?}");
    assert_far(&stats(&ended, MIB / 2));
}

/// Files that other programs opened with O_DIRECT, inherited or received in a message. No device writes past
/// the system's page cache.
#[test]
fn files_that_come_with_o_direct() {
    if !may_run("O_DIRECT") {
        return;
    }
    const LEN: usize = 2 << 20;
    let dir = Dir::new("run-handed");
    let binary = program(&dir, "handed", &[]);
    let path = dir.path().join("bytes");
    let bytes: Vec<u8> = (0..LEN).map(|i| (i * 7 + (i >> 12)).to_le_bytes()[0]).collect();
    std::fs::write(&path, bytes).expect("the temporary directory is writable");
    let direct = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(&path);
    let Ok(direct) = direct else {
        return eprintln!("skipped: O_DIRECT: the temporary directory's file system has none");
    };
    let mut command = far(MIB, &[&binary, path.to_str().expect("ASCII")]);
    command.stdin(Stdio::from(direct));
    let ended = run_command(command);
    let expected =
        "inherited: direct 0, 2097152 bytes, 0 wrong\nin a message: direct 0, 2097152 bytes, 0 wrong\n";
    assert_eq!((ended.stdout.as_str(), ended.code), (expected, Some(0)), "{ended:?}");
    stats(&ended, MIB);
}

/// Value of Linux on this architecture.
#[cfg(target_arch = "x86_64")]
const O_DIRECT: i32 = 0o40000;
#[cfg(not(target_arch = "x86_64"))]
const O_DIRECT: i32 = 0o200000;
