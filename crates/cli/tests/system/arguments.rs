//! The command line itself: help that names every flag, and the refusal of what it does not know.

use crate::process::run;

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
        !help.lines().any(|line| line.trim_start().starts_with("role ")),
        "what only the supervisor calls is hidden"
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
