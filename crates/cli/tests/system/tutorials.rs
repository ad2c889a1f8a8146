//! The tutorials of docs/tutorials, run as a reader runs them.
//!
//! A page is one shell session. A block `sh` runs; a block with a file name (`python words.py`) is written to that file; each line of a block
//! `output` must stand in what the page's `sh` blocks before it printed.

use crate::pages::blocks;
use crate::process::Dir;
use crate::rack::Description;
use crate::run::may_run;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

/// Longest time that a page may take, in seconds.
const PAGE_SECONDS_MAX: u32 = 240;

#[test]
fn first_far_program() {
    if !may_run("docs/tutorials/first-far-program.md") {
        return;
    }
    play("first-far-program", include_str!("../../../../docs/tutorials/first-far-program.md"));
}

#[test]
fn first_rack() {
    if !may_run("docs/tutorials/first-rack.md") {
        return;
    }
    play("first-rack", include_str!("../../../../docs/tutorials/first-rack.md"));
}

#[test]
fn first_traversal() {
    if Command::new("clang-19").arg("--version").output().is_err() {
        skip("docs/tutorials/first-traversal.md: clang absent");
        return;
    }
    play("first-traversal", include_str!("../../../../docs/tutorials/first-traversal.md"));
}

#[test]
fn first_graph() {
    play("first-graph", include_str!("../../../../docs/tutorials/first-graph.md"));
}

#[test]
fn kv_larger_than_memory() {
    if Command::new("redis-benchmark").arg("--version").output().is_err() {
        skip("docs/tutorials/kv-larger-than-memory.md: redis-benchmark absent");
        return;
    }
    play("kv-larger-than-memory", include_str!("../../../../docs/tutorials/kv-larger-than-memory.md"));
}

fn skip(what: &str) {
    writeln!(std::io::stderr(), "skipped: {what}").expect("standard error is open");
}

/// Runs the blocks of a page in one shell and compares what they print.
fn play(name: &str, page: &str) {
    let dir = Dir::new(name);
    let description = Description::new(name, "udp");
    let [_, b, c, _] = Ipv4Addr::octets(&description.address(0));
    let move_rack = format!(
        "s/127\\.71\\.0\\./127.{b}.{c}./; s/127\\.71\\.1\\.1/127.{b}.{c}.100/; s/count = 200/count = 20/"
    );
    let mut script = String::from("set -eu\nexport PATH=\"$FARMEM_DIR:$PATH\"\n");
    let mut expected: Vec<(usize, String)> = Vec::new();
    let mut steps = 0;
    for block in blocks(page) {
        match block.info.split_once(' ') {
            Some((_, file)) => fs::write(dir.path().join(file), &block.text).expect("a writable directory"),
            None if block.info == "sh" => {
                steps += 1;
                writeln!(script, "{{\n{}}} > step-{steps} 2>&1", block.text).expect("memory");
                // The example rack has fixed addresses; tests run beside each other.
                writeln!(script, "[ ! -e rack.toml ] || sed -i '{move_rack}' rack.toml").expect("memory");
            }
            None if block.info == "output" => {
                expected.extend(block.text.lines().map(|line| (steps, line.to_owned())));
            }
            None => {} // Rust is a documentation test of crates/farmem.
        }
    }
    assert!(steps > 0, "{name} has commands");
    // Servers that the page has stopped may still be about to end.
    script.push_str("wait\n");
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_farmem"));
    // `timeout` leads a process group of its own. If the test is killed, `timeout` ends the group.
    let shell = Command::new("setpriv")
        .args(["--pdeathsig", "TERM", "timeout", "--kill-after=5", &PAGE_SECONDS_MAX.to_string()])
        .args(["bash", "-c", &script])
        .current_dir(dir.path())
        .env("FARMEM_DIR", binary.parent().expect("a directory"))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("setpriv (package util-linux) starts");
    let group = Pid::from_child(&shell);
    let output = shell.wait_with_output().expect("bash ends");
    // A page that failed leaves the servers that it started in the background.
    let left = kill_process_group(group, Signal::KILL).is_ok();
    assert!(!left || !output.status.success(), "{name}: the page leaves processes behind");
    let printed: Vec<String> = (1..=steps)
        .map(|step| fs::read_to_string(dir.path().join(format!("step-{step}"))).unwrap_or_default())
        .collect();
    assert!(
        output.status.success(),
        "{name}: {}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr),
        printed.concat()
    );
    for (step, line) in expected {
        let found = printed[..step].iter().any(|text| text.lines().any(|is| matches(is, &line)));
        assert!(found, "{name}: {line:?} is not in what the commands printed:\n{}", printed.concat());
    }
}

/// True when `line` contains `expected`, spaces apart.
fn matches(line: &str, expected: &str) -> bool {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    words(line).contains(&words(expected))
}

/// docs/commands.md has a row for each command of `farmem --help`.
#[test]
fn every_command_has_a_row() {
    let page = include_str!("../../../../docs/commands.md");
    let help = crate::process::run(&["--help"]).stdout;
    let listed = help.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next());
    let commands: Vec<&str> = listed
        .expect("the help lists the commands")
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next())
        .filter(|command| *command != "help")
        .collect();
    assert!(commands.len() > 10, "{commands:?}");
    for command in commands {
        assert!(
            page.contains(&format!("| `farmem {command}` |")),
            "docs/commands.md has no row for {command}"
        );
    }
}
