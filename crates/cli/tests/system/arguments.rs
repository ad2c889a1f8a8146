//! Tests of the command line: help that names every flag, and rejection of unknown arguments.

use crate::process::{Dir, Running, farmem, is_root, run};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

/// Commands, with the words that their help must contain.
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

/// `farmem run ls` lacks the `--`, so that farmem would parse the program's arguments. The error shows the
/// right command line.
#[test]
fn a_run_without_two_dashes_gets_a_hint() {
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

/// A report that cannot be written ends with 2 and an error. A reader that closed the pipe causes no error.
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
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("there is one");
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

/// When the system starts no more threads for a user, the command prints one line and ends with 2.
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

/// With a slightly larger limit, a later thread fails. In each case the command succeeds or prints that line,
/// without a panic or a hang.
#[test]
fn every_failed_thread_start_is_reported() {
    if !is_root() {
        return eprintln!("skipped: a limit of processes: only root may become the users that have it");
    }
    let dir = Dir::new("nproc");
    let graph = dir.path().join("small.fmg").display().to_string();
    assert_eq!(
        run(&["graph", "generate", "kronecker", &graph, "--scale", "4", "--symmetrize"]).code,
        Some(0)
    );
    for path in [dir.path(), graph.as_ref()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    let cases: [&[&str]; 4] = [
        &["demo", "--limit", "10"],
        &["run", "--", "true"],
        &["graph", "bfs", &graph],
        &["webservice", "--records", "95", "--operations", "10"],
    ];
    let limits = 1..=8_usize;
    // Each command has its own user, because the system counts threads per user.
    let limited = |number: usize, limit: usize, args: &[&str]| {
        let mut command = std::process::Command::new("setpriv");
        let (user, limit) = ((4750 + number).to_string(), format!("--nproc={limit}:{limit}"));
        command.args(["--reuid", &user, "--clear-groups", "prlimit", &limit, env!("CARGO_BIN_EXE_farmem")]);
        command.args(args).current_dir("/").stdin(std::process::Stdio::null());
        Running::start(command)
    };
    if limited(0, 1, &["--version"]).ended().code != Some(0) {
        return eprintln!("skipped: a limit of processes: another user may not run the command where it is");
    }
    let mut said = [0, 0];
    for (number, args) in cases.iter().enumerate() {
        let running: Vec<(usize, Running)> =
            limits.clone().map(|limit| (limit, limited(100 * number + limit, limit, args))).collect();
        for (limit, mut running) in running {
            let ended = running.ended();
            let why = format!("{args:?} with {limit} threads: {ended:?}");
            assert!(!ended.stderr.contains("panicked"), "{why}");
            match ended.code {
                Some(0) => said[0] += 1,
                Some(2) => {
                    let is_told = ended.stderr.lines().any(|line| line.starts_with("farmem: "));
                    assert!(is_told, "{why}");
                    said[1] += 1;
                }
                _ => panic!("{why}"),
            }
        }
    }
    assert!(
        said[0] > 0 && said[1] >= cases.len(),
        "some have enough, and with one thread none has: {said:?}"
    );
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
    let version = run(&["--version"]).stdout;
    let build = version.trim_end().strip_prefix(concat!("farmem ", env!("CARGO_PKG_VERSION"), "+"));
    assert!(build.is_some_and(|hash| u64::from_str_radix(hash, 16).is_ok()), "{version:?}");
}

#[test]
fn unknown_arguments_are_refused() {
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
