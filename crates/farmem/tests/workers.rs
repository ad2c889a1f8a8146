//! Workers that another command begins, as ssh does on another host, and what is said of one that never begins.
//!
//! A worker is its program again, whose main function looks for it first: so this test is such a program, without the usual harness. It
//! runs the tests whose names hold the word that it is given, or all.

#[path = "shared/rig.rs"]
#[expect(dead_code, reason = "racks are needed here, and none of the programs on them")]
mod rig;
mod signals;

use farmem::worker::{Entry, begin};
use farmem::{Error, Rack, RackConfig, ShareOptions, SharedSpace, VirtAddr};
use rig::TestRack;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering;

type Test = fn(&SharedSpace);

const ENTRIES: &[(&str, Entry)] = &[("add, and say who", add), ("refuse", refuse)];
const TESTS: &[(&str, Test)] = &[
    ("a_shell_in_between_changes_nothing", a_shell_in_between_changes_nothing),
    ("a_command_that_cannot_be_started_is_named", a_command_that_cannot_be_started_is_named),
    ("who_ends_without_an_answer_is_told_of", who_ends_without_an_answer_is_told_of),
    ("only_its_answer_is_listened_to", only_its_answer_is_listened_to),
];
/// What a shell would split, expand, or take for the end of a command.
const ODD: &str = "a rack's *; $HOME";
/// What ssh does with `HOST COMMAND...`, on the host that it is on: the words are joined again, for a shell that begins in another directory.
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

/// The rack's description under a name that is hard to pass on, and counted from here.
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

/// Adds to a word, and answers what was there; the next word becomes the worker's host.
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

/// This program, on a host that is reached through a shell.
fn over_there() -> Command {
    let mut command = shell(SSH);
    command.args(["ssh", "far"]).arg(format!("'{}'", std::env::current_exe().unwrap().display()));
    command
}

/// Its entry and the way to the rack's description come through as they are, whatever letters they have.
fn a_shell_in_between_changes_nothing(space: &SharedSpace) {
    let vma = space.allocate(4096).unwrap();
    space.word(vma.base).store(5, Ordering::Release);
    let worker = space.spawn_by(over_there(), "add, and say who", &[vma.base.0, 37]).unwrap();
    assert_eq!(worker.join().unwrap(), 5);
    assert_eq!(space.word(vma.base).load(Ordering::Acquire), 42);
    let host = space.word(VirtAddr(vma.base.0 + 8)).load(Ordering::Acquire);
    assert_ne!(host, u64::from(space.host()), "it was a host of its own");
    assert_ne!(host, 0);
    // Without a shell it is the same.
    let worker = space.spawn("add, and say who", &[vma.base.0, u64::MAX]).unwrap();
    assert_eq!(worker.join().unwrap(), 42);
    assert_eq!(space.word(vma.base).load(Ordering::Acquire), 41);
}

fn a_command_that_cannot_be_started_is_named(space: &SharedSpace) {
    let refused = space.spawn_by(Command::new("/no/such/ssh"), "refuse", &[]).unwrap_err();
    let Error::System { what, source } = &refused else { panic!("{refused:?}") };
    assert_eq!(what, "cannot start worker \"refuse\" by \"/no/such/ssh\"");
    assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
}

/// What a command ends with that starts but reaches nobody, or is killed, or whose worker fails.
fn who_ends_without_an_answer_is_told_of(space: &SharedSpace) {
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

/// What else stands on its standard output is passed over, text or not; and it does not read what this program is given.
fn only_its_answer_is_listened_to(space: &SharedSpace) {
    let script = r"printf 'farmem-worker answers\n\377\376\n'; read line && exit 3; echo farmem-worker answers 7; echo bye";
    assert_eq!(space.spawn_by(shell(script), "refuse", &[]).unwrap().join().unwrap(), 7);
}
