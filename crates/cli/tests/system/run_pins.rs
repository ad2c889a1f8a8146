//! `farmem run`: memory that is written to while it moves, and memory that the system writes to past its mappings. No write is lost.

use crate::process::{Dir, run_command};
use crate::run::{MIB, assert_far, far, may_run, program, same, stats};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Stdio;

/// Threads add to words of memory that another moves, within far memory and out of it: no increment is lost.
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

/// A process of the run, or a thread of the same process, has the system write up to 128 pages at once into memory of which an eighth is here,
/// every page that the system said it wrote is there.
#[test]
fn the_system_writes_into_another_process() {
    if !may_run("pins") {
        return;
    }
    let dir = Dir::new("run-pins");
    let binary = program(&dir, "pins", &[]);
    for how in ["process", "thread"] {
        assert_far(&same(MIB / 2, &[&binary, how]));
    }
}

/// Files opened with O_DIRECT by other programs, inherited or received in a message: no device writes past the system's cache.
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

/// Of Linux on this machine.
#[cfg(target_arch = "x86_64")]
const O_DIRECT: i32 = 0o40000;
#[cfg(not(target_arch = "x86_64"))]
const O_DIRECT: i32 = 0o200000;
