//! The command line itself: help that names every flag, and the refusal of what it does not know.

use crate::process::{farmem, is_root, run};

/// (command, words its help must have)
const COMMANDS: &[(&[&str], &[&str])] = &[
    (&[], &["up", "demo", "bench", "doctor", "sim", "--version"]),
    (&["up"], &["[RACK]", "--example", "--json", "Ctrl-C"]),
    (&["demo"], &["--json", "--words <FILE>", "--limit <N>", "--rack <RACK.TOML>"]),
    (&["bench"], &["net"]),
    (&["bench", "net"], &["--json", "--quick", "--link <PROFILE>", "100g-2us"]),
    (&["bench", "pulse"], &["--link <PROFILE>"]),
    (&["bench", "mind"], &["--link <PROFILE>"]),
    (&["bench", "fat"], &["--link <PROFILE>", "--only <PREFIX>"]),
    (&["doctor"], &["--json"]),
    (&["sim"], &["rc", "ud", "rack", "--operations", "--seeds", "--seed ", "--plan", "--json"]),
    (
        &["sim"],
        &[
            "possible values: calm, loss, ",
            "havoc",
            "possible values: floors, ",
            "passing-page",
            "it counts more",
        ],
    ),
    (&["migrate"], &["needs --node", "needs --base"]),
    (&["run"], &["at least 256 KiB", "needs --rack", "needs --share", "not with --rack"]),
];

/// `farmem run ls`: without `--` the program's arguments would be farmem's. It says what to write instead.
#[test]
fn who_forgets_the_two_dashes_is_told() {
    for (args, tip) in [
        (&["run", "ls"][..], "farmem run -- ls"),
        (&["run", "--local", "1MiB", "ls", "-l"], "farmem run --local 1MiB -- ls -l"),
    ] {
        let ended = run(args);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{ended:?}");
        assert!(ended.stderr.contains(tip), "{args:?}: {}", ended.stderr);
    }
    for args in [&["run", "--nothing", "ls"][..], &["up", "--example", "a", "b"]] {
        assert!(!run(args).stderr.contains("stand behind"), "{args:?}");
    }
}

/// A report that could not be written is no success: the command says so and ends with 2. A reader that has gone is fine.
#[test]
fn a_full_standard_output_is_said() {
    let object = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/iterators/list_find.o");
    for args in [
        &["--help"][..],
        &["--version"],
        &["up", "--example"],
        &["compile", object],
        &["compile", object, "--json"],
        &["doctor", "--json"],
        &["index", "plan", "--json"],
        &["sim", "rc", "--seeds", "1", "--operations", "1000", "--json"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("there is one");
        let ended = farmem(args).stdout(full).output().expect("it starts");
        let told = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{args:?}: {told}");
        assert!(told.contains("standard output cannot be written to: No space left"), "{args:?}: {told}");
        let (reader, gone) = std::io::pipe().expect("a pipe");
        drop(reader);
        let ended = farmem(args).stdout(gone).output().expect("it starts");
        assert_eq!(ended.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}

/// Where the system starts no more threads for a user, a command says so, in a line, and ends with 2.
#[test]
fn no_more_threads_is_said() {
    if !is_root() {
        return eprintln!("skipped: a limit of processes: only root may become the user that has it");
    }
    let limited = |args: &[&str]| {
        let mut command = std::process::Command::new("setpriv");
        command.args([
            "--reuid",
            "4749",
            "--clear-groups",
            "prlimit",
            "--nproc=1:1",
            env!("CARGO_BIN_EXE_farmem"),
        ]);
        command.args(args).output().expect("util-linux is there")
    };
    if !limited(&["--version"]).status.success() {
        return eprintln!("skipped: a limit of processes: another user may not run the command where it is");
    }
    for args in
        [&["bench", "run", "--quick"][..], &["bench", "mind", "--quick"], &["demo"], &["run", "--", "true"]]
    {
        let ended = limited(args);
        let told = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{args:?}: {told}");
        assert!(told.contains("the system starts no more threads for this user"), "{args:?}: {told}");
        assert!(!told.contains("panicked"), "{args:?}: {told}");
    }
    assert!(limited(&["index", "plan"]).status.success(), "it needs none");
}

#[test]
fn help_names_every_flag() {
    for (command, words) in COMMANDS {
        let ended = run(&[*command, &["--help"]].concat());
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{command:?}");
        for word in *words {
            assert!(
                ended.stdout.contains(word),
                "{command:?} --help does not say {word:?}:\n{}",
                ended.stdout
            );
        }
    }
    let help = run(&["--help"]).stdout;
    assert!(
        !help.lines().any(|line| line.trim_start().starts_with("guard ")),
        "what only other commands call is hidden"
    );
    assert_eq!(run(&["--version"]).stdout, format!("farmem {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn what_is_unknown_is_refused() {
    let cases: [(&[&str], &str); 12] = [
        (&[], "Usage"),
        (&["fly"], "unrecognized subcommand 'fly'"),
        (&["--fly"], "unexpected argument '--fly'"),
        (&["up"], "<RACK>"),
        (&["up", "a.toml", "b.toml"], "unexpected argument 'b.toml'"),
        (&["demo", "--word", "x"], "--words"),
        (&["demo", "--limit", "0"], "--limit"),
        (&["doctor", "now"], "unexpected argument 'now'"),
        (&["bench"], "Usage"),
        (&["bench", "disk"], "disk"),
        (&["sim"], "<RUN>"),
        (&["sim", "chess"], "possible values: rc, ud, rack"),
    ];
    for (args, word) in cases {
        let ended = run(args);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{args:?}");
        assert!(ended.stderr.contains(word), "{args:?} does not say {word:?}:\n{}", ended.stderr);
    }
}
