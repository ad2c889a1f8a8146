//! Workers started by another command, as ssh does on another host, and the error for a worker that never
//! begins.
//!
//! A worker is its program again: the program's main function checks for a worker first. This test is such a
//! program, without the usual harness. It runs the tests whose names contain the given word, or all.

#[path = "shared/rig.rs"]
#[expect(dead_code, reason = "racks are needed here, and none of the programs on them")]
mod rig;

use farmem::worker::{Entry, begin};
use farmem::{Error, Rack, RackConfig, ShareOptions, SharedSpace, VirtAddr};
use rig::TestRack;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering;

type Test = fn(&SharedSpace);

const ENTRIES: &[(&str, Entry)] = &[("add, and report the process", add), ("refuse", refuse)];
const TESTS: &[(&str, Test)] = &[
    ("a_shell_in_between_changes_nothing", a_shell_in_between_changes_nothing),
    ("a_command_that_cannot_be_started_is_named", a_command_that_cannot_be_started_is_named),
    ("a_worker_that_ends_without_an_answer_is_reported", a_worker_that_ends_without_an_answer_is_reported),
    ("only_its_answer_is_listened_to", only_its_answer_is_listened_to),
];
/// A name that a shell would split, expand, or take for the end of a command.
const ODD: &str = "a rack's *; $HOME";
/// The effect of ssh on `HOST COMMAND...`, on the host itself: the words are joined again for a shell that
/// begins in another directory.
const SSH: &str = r#"host=$1; shift; echo "welcome to $host"; cd /; exec sh -c "$*""#;

fn main() -> ExitCode {
    if let Some(ended) = begin(ENTRIES) {
        return ended;
    }
    if rig::be(&[]) {
        return ExitCode::SUCCESS;
    }
    let rack = TestRack::start("shm", 1);
    let Some(space) = space(&rack) else { return ExitCode::SUCCESS };
    let wanted = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    for (name, test) in TESTS.iter().filter(|(name, _)| name.contains(&wanted)) {
        test(&space);
        eprintln!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

/// Joins with the rack's description under a difficult name, relative to the current directory.
fn space(rack: &TestRack) -> Option<SharedSpace> {
    let file = format!("{ODD}.toml");
    symlink(&rack.config.file, rack.config.file.with_file_name(&file)).unwrap();
    std::env::set_current_dir(rack.config.file.parent().unwrap()).unwrap();
    let config = RackConfig::load(Path::new(&file)).unwrap();
    match SharedSpace::join(&Rack::running(config), rig::DOMAIN, ShareOptions::new(4 << 20)) {
        Err(Error::Open(refused)) => {
            eprintln!("skipped: {refused}");
            None
        }
        other => Some(other.unwrap()),
    }
}

/// Adds to a word and returns its previous value; the next word receives the worker's host.
fn add(space: &SharedSpace, args: &[u64]) -> Result<u64, Error> {
    let &[at, more] = args else { panic!("a word and a number") };
    space.word(VirtAddr(at + 8)).store(space.host().into(), Ordering::Relaxed);
    Ok(space.word(VirtAddr(at)).fetch_add(more, Ordering::AcqRel))
}

fn refuse(_: &SharedSpace, _: &[u64]) -> Result<u64, Error> {
    Err(Error::Broken { addr: VirtAddr(16), what: "what was looked for" })
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// Returns a command that starts this program on a host reached through a shell.
fn over_there() -> Command {
    let mut command = shell(SSH);
    command.args(["ssh", "far"]).arg(format!("'{}'", std::env::current_exe().unwrap().display()));
    command
}

/// The entry name and the description's path arrive unchanged, with all special characters.
fn a_shell_in_between_changes_nothing(space: &SharedSpace) {
    let vma = space.allocate(4096).unwrap();
    space.word(vma.base).store(5, Ordering::Release);
    let worker = space.spawn_by(over_there(), "add, and report the process", &[vma.base.0, 37]).unwrap();
    assert_eq!(worker.join().unwrap(), 5);
    assert_eq!(space.word(vma.base).load(Ordering::Acquire), 42);
    let host = space.word(VirtAddr(vma.base.0 + 8)).load(Ordering::Acquire);
    assert_ne!(host, u64::from(space.host()), "it was a host of its own");
    assert_ne!(host, 0);
    // Without a shell the result is the same.
    let worker = space.spawn("add, and report the process", &[vma.base.0, u64::MAX]).unwrap();
    assert_eq!(worker.join().unwrap(), 42);
    assert_eq!(space.word(vma.base).load(Ordering::Acquire), 41);
}

fn a_command_that_cannot_be_started_is_named(space: &SharedSpace) {
    let refused = space.spawn_by(Command::new("/no/such/ssh"), "refuse", &[]).unwrap_err();
    let Error::System { what, source } = &refused else { panic!("{refused:?}") };
    assert_eq!(what, "cannot start worker \"refuse\" by \"/no/such/ssh\"");
    assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
}

/// The errors for a command that starts but reaches no host, is killed, or has a failing worker.
fn a_worker_that_ends_without_an_answer_is_reported(space: &SharedSpace) {
    let told = |command: Command, entry: &str, args: &[u64]| {
        let worker = space.spawn_by(command, entry, args).unwrap();
        let refused = worker.join().unwrap_err();
        assert!(matches!(refused, Error::Unreachable { .. }), "{refused:?}");
        let text = refused.to_string();
        assert!(text.contains(&format!("worker {entry:?}")), "{text}");
        text
    };
    assert!(told(shell("exit 255"), "refuse", &[]).contains("exit status: 255"), "as ssh says it");
    assert!(told(shell("kill -9 $$"), "refuse", &[]).contains("signal: 9"));
    assert!(told(shell("echo welcome"), "refuse", &[]).contains("exit status: 0"));
    assert!(told(over_there(), "refuse", &[]).contains("exit status: 2"));
    assert!(told(over_there(), "of another program", &[]).contains("exit status: 2"));
}

/// Other output on the worker's standard output is ignored, text or not, and the worker does not read this
/// program's input.
fn only_its_answer_is_listened_to(space: &SharedSpace) {
    let script = r"printf 'farmem-worker answers\n\377\376\n'; read line && exit 3; echo farmem-worker answers 7; echo bye";
    assert_eq!(space.spawn_by(shell(script), "refuse", &[]).unwrap().join().unwrap(), 7);
}
