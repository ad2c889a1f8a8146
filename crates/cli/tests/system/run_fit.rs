//! Tests of `farmem run` with a program that fits the local limit, one that does not fit, and one that
//! thrashes.

use crate::process::{Dir, eventually, farmem, run_command, signal};
use crate::run::{MIB, PYTHON, assert_far, far, may_run, number, program, same, stats};
use std::cell::Cell;
use std::fs::File;
use std::process::Stdio;

/// A program that cycles through four times the local limit gets one line with a limit at which it fetches
/// less than a quarter. A program that fits gets none.
#[test]
fn a_program_that_thrashes_is_told_what_would_serve() {
    if !may_run("thrashing") {
        return;
    }
    let dir = Dir::new("run-thrashing");
    let rounds = program(&dir, "rounds", &[]);
    let run = |local: u64| {
        let ended = run_command(far(local, &[&rounds, "16", "8"]));
        assert_eq!((ended.stdout.as_str(), ended.code), ("0 wrong\n", Some(0)), "{ended:?}");
        let told: Vec<String> =
            ended.stderr.lines().filter(|line| line.contains("thrashed")).map(str::to_owned).collect();
        (told, stats(&ended, local))
    };
    let (told, before) = run(4 * MIB);
    let wanted = number(&before, "local_wanted");
    // 16 MiB besides the pool, an eighth of the limit.
    assert!((17 * MIB..=22 * MIB).contains(&wanted), "{before}");
    assert!(number(&before, "refaults") > 7 * 4096 * 3 / 4, "{before}");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains(&format!("`--local {}MiB`", wanted / MIB)), "{told:?}");
    let (told, after) = run(wanted);
    assert_eq!(told, Vec::<String>::new());
    assert!(after["local_wanted"].is_null(), "{after}");
    assert!(number(&after, "faults_near") < 7 * 4096 / 4, "nor do they fault at pages of the pool: {after}");
    assert!(number(&after, "bytes_fetched") * 4 <= number(&before, "bytes_fetched"), "{before} {after}");
}

/// A program that thrashes on and on is told so while it runs, once, with the limit that the last line of a shorter
/// run names.
#[test]
fn a_program_that_thrashes_is_told_while_it_runs() {
    if !may_run("thrashing on and on") {
        return;
    }
    let dir = Dir::new("run-thrashing-on");
    let rounds = program(&dir, "rounds", &[]);
    let (log, rounds_max) = (dir.path().join("log"), u32::MAX.to_string());
    let mut command = far(4 * MIB, &[&rounds, "16", &rounds_max]);
    command.stdout(Stdio::null()).stderr(File::create(&log).expect("the directory is writable"));
    let mut child = command.spawn().expect("the command starts");
    let read = || std::fs::read_to_string(&log).expect("the log is there");
    eventually("the line on thrashing", || read().contains("thrashes"));
    // The pager passes the signal on to the program, and ends with it.
    signal(child.id(), "TERM");
    let ended = child.wait().expect("it is our child");
    let (text, said) = (read(), "farmem: the program thrashes: ");
    assert_eq!((text.matches(said).count(), ended.code()), (1, Some(128 + 15)), "{text}");
    let line = text.lines().find(|line| line.starts_with(said)).expect("counted above");
    let wanted = line.split("`--local ").nth(1).and_then(|rest| rest.split("MiB` would keep").next());
    let wanted: u64 = wanted.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{text}"));
    assert!((17..=22).contains(&wanted), "{text}");
}

/// The size that the refusal of a smaller `--local` names suffices: also for an interpreter.
#[test]
fn the_smallest_local_limit_suffices() {
    if !may_run("the smallest local limit") {
        return;
    }
    let dir = Dir::new("run-smallest");
    run_command(farmem(&["run", "--local", "255KiB", "--", "true"])).refuses(&["256 KiB at least"]);
    assert_far(&same(256 << 10, &[&program(&dir, "rounds", &[]), "4", "2"]));
    assert_far(&same(256 << 10, &[PYTHON, "-c", "print(sum(bytearray(range(256)) * 4096))"]));
}

/// A block of 4096 pages that fits. After a few scattered faults, the system serves the block alone; a
/// sequential pass arrives in runs. No page is far. With fewer frames than needed, the program has the same
/// result.
#[test]
fn memory_that_fits_costs_few_faults() {
    if !may_run("memory that fits") {
        return;
    }
    let dir = Dir::new("run-fits");
    let rounds = program(&dir, "rounds", &[]);
    let run = |local: u64, how: &[&str]| {
        let ended = run_command(far(local, &[&[&rounds, "16", "2"], how].concat()));
        assert_eq!((ended.stdout.as_str(), ended.code), ("0 wrong\n", Some(0)), "{ended:?}");
        stats(&ended, local)
    };
    let fits = |how: &[&str]| {
        let fits = run(32 * MIB, how);
        assert!(number(&fits, "faults_zero") < 200, "{fits}");
        for count in ["faults_far", "faults_near", "taken_over", "fetches", "evictions", "far_bytes"] {
            assert_eq!(number(&fits, count), 0, "{count} of {fits}");
        }
        // Memory that the system serves alone is counted as a whole block.
        assert!(number(&fits, "largest_local_bytes") >= 16 * MIB, "{fits}");
        number(&fits, "plain")
    };
    assert!(fits(&["here and there"]) >= 4096);
    assert_eq!(fits(&[]), 0);
    let over = run(8 * MIB, &["here and there"]);
    assert!(number(&over, "evictions") > 0 && number(&over, "bytes_fetched") > 0, "{over}");
}

/// Threads access memory that fits, while further memory exceeds the limit. No byte is lost when the system
/// serves memory alone or the pager takes it over, at any limit.
#[test]
fn memory_is_taken_over_under_threads() {
    if !may_run("taking over") {
        return;
    }
    let dir = Dir::new("run-pressure");
    let pressure = program(&dir, "pressure", &[]);
    for local in [4, 12, 20] {
        let stats = same(local * MIB, &[&pressure]);
        assert!(number(&stats, "plain") > 0 && number(&stats, "taken_over") > 0, "{local}: {stats}");
        assert!(number(&stats, "evictions") > 0, "{local}: {stats}");
    }
    let stats = same(256 * MIB, &[&pressure]);
    assert_eq!(number(&stats, "evictions"), 0, "{stats}");
}

/// Memory operations of programs have the same results on memory that fits: forks, moves, protection,
/// mappings over it, and calls past libc.
#[test]
fn programs_that_fit_find_the_same() {
    if !may_run("programs that fit") {
        return;
    }
    let dir = Dir::new("run-fit-same");
    let plain = Cell::new(0);
    let fits = |command: &[&str]| {
        let stats = same(512 * MIB, command);
        assert_eq!(number(&stats, "evictions"), 0, "{command:?}: {stats}");
        plain.set(plain.get() + u64::from(number(&stats, "plain") > 0));
    };
    for name in ["forks", "mappings", "edges", "threads", "moves"] {
        fits(&[&program(&dir, name, &[])]);
    }
    let past_libc = program(&dir, "past_libc", &[]);
    for case in ["dropped", "replaced", "unmapped", "refused", "protected", "moved", "interrupted", "racing"]
    {
        fits(&[&past_libc, case]);
    }
    assert!(plain.get() > 0, "some of them touch their memory here and there");
}
