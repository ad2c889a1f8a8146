//! `farmem run` under programs whose `malloc` is another library's, and programs that set LD_PRELOAD for others.

use crate::process::{Dir, run_command};
use crate::run::{MIB, assert_far, far, may_run, number, program, stats};
use std::path::Path;

/// Where Debian has the libraries.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
const RIGHT: &str = "0 wrong, 0 in a thread\na child: 0\nby sbrk: 0 wrong\n";

/// Runs `tests/programs/allocators.c` with another library's allocator, which it is linked with or has preloaded. Each block is right,
/// whichever of the library's functions allocates and frees it; blocks are far, and so is memory by `sbrk`.
fn allocates(library: &str) {
    if !may_run(library) {
        return;
    }
    let path = format!("{LIBRARIES}/{library}");
    if !Path::new(&path).exists() {
        return eprintln!("skipped: {library}: it is not installed (scripts/setup)");
    }
    let dir = Dir::new(&format!("run-allocators-{library}"));
    let local = 2 * MIB;
    let linked = program(&dir, "allocators", &["-Wl,--no-as-needed", &path]);
    let ended = run_command(far(local, &[&linked]));
    assert_eq!((ended.stdout.as_str(), ended.code), (RIGHT, Some(0)), "{ended:?}");
    assert_far(&stats(&ended, local));

    let plain = program(&dir, "allocators", &[]);
    let preload = format!("LD_PRELOAD={path}");
    let ended = run_command(far(local, &["env", &preload, &plain]));
    assert_eq!((ended.stdout.as_str(), ended.code), (RIGHT, Some(0)), "{ended:?}");
    assert_far(&stats(&ended, local));

    let mut command = far(local, &[&plain]);
    command.env("LD_PRELOAD", &path);
    let ended = run_command(command);
    assert_eq!((ended.stdout.as_str(), ended.code), (RIGHT, Some(0)), "{ended:?}");
    assert_far(&stats(&ended, local));
}

#[test]
fn jemalloc() {
    allocates("libjemalloc.so.2");
}

#[test]
fn mimalloc() {
    allocates("libmimalloc.so.2");
}

#[test]
fn tcmalloc() {
    allocates("libtcmalloc_minimal.so.4");
}

/// With libc's `malloc`, the memory that the program gets by `sbrk` is far as well.
#[test]
fn memory_by_sbrk_is_far() {
    if !may_run("sbrk") {
        return;
    }
    let dir = Dir::new("run-sbrk");
    let ended = run_command(far(2 * MIB, &[&program(&dir, "allocators", &[])]));
    assert_eq!((ended.stdout.as_str(), ended.code), (RIGHT, Some(0)), "{ended:?}");
    assert_far(&stats(&ended, 2 * MIB));
}

/// Programs that are started with LD_PRELOAD emptied, removed or set to something else have far memory: `env`, a shell, and a program that
/// starts another by `execve` and by `posix_spawn`.
#[test]
fn programs_keep_the_library_in_ld_preload() {
    if !may_run("LD_PRELOAD") {
        return;
    }
    let dir = Dir::new("run-preload");
    let binary = program(&dir, "allocators", &[]);
    let python = format!(
        "import os, subprocess; e = dict(os.environ, LD_PRELOAD=''); subprocess.run(['{binary}'], env=e, check=True); \
         p = os.posix_spawn('{binary}', ['x'], e); os.waitpid(p, 0)"
    );
    let shell =
        format!("LD_PRELOAD= {binary} && env -u LD_PRELOAD {binary} && env LD_PRELOAD=libm.so.6 {binary}");
    for (command, programs) in [(vec!["sh", "-c", &shell], 3), (vec![crate::run::PYTHON, "-c", &python], 2)] {
        let ended = run_command(far(2 * MIB, &command));
        assert_eq!((ended.stdout, ended.code), (RIGHT.repeat(programs), Some(0)), "{}", ended.stderr);
        let line = ended.stderr.lines().last().unwrap_or_default();
        let stats: serde_json::Value = serde_json::from_str(line).expect("statistics");
        // Each has one child of its own.
        assert!(number(&stats, "processes") > 2 * programs as u64, "{stats}");
        assert_far(&stats);
    }
}
