//! Tests of `farmem trace` with a program under valgrind. Skipped, with a note, without valgrind.

use crate::process::run;
use std::fs;
use std::process::Command;

fn valgrind_is_missing() -> bool {
    let missing = Command::new("valgrind").arg("--version").output().is_err();
    if missing {
        eprintln!("SKIPPED: valgrind is not installed (apt-get install valgrind)");
    }
    missing
}

#[test]
fn a_program_is_recorded_and_told_again() {
    if valgrind_is_missing() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("true.trace");
    let file = file.to_str().unwrap();
    let recorded = run(&["trace", "record", "--output", file, "--json", "--", "true"]).json();
    let told = run(&["trace", "info", file, "--json"]).json();
    assert_eq!(recorded, told);
    assert_eq!(told["command"][0], "true");
    assert_eq!((&told["threads"], &told["shared_pages"]), (&1.into(), &0.into()));
    assert!(told["instructions"].as_u64() > Some(10_000), "even true has a loader: {told}");
    assert!(told["visits"].as_u64() > told["pages"].as_u64() && told["writes"].as_u64() > Some(0), "{told}");
}

#[test]
fn a_program_that_fails_keeps_its_trace() {
    if valgrind_is_missing() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("false.trace");
    let file = file.to_str().unwrap();
    let ended = run(&["trace", "record", "--output", file, "--", "false"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("ended with exit status: 1"), "{ended:?}");
    assert!(run(&["trace", "info", file, "--json"]).json()["visits"].as_u64() > Some(0));
}

#[test]
fn an_invalid_program_or_trace_is_refused() {
    if valgrind_is_missing() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("some.trace");
    let name = file.to_str().unwrap();
    run(&["trace", "record", "--output", name, "--", "/no/such/program"]).refuses(&["/no/such/program"]);
    run(&["trace", "record", "--output", "/no/such/folder/file", "--", "true"])
        .refuses(&["/no/such/folder/file"]);
    run(&["trace", "info", "/no/such.trace"]).refuses(&["/no/such.trace"]);
    fs::write(&file, "hello").unwrap();
    run(&["trace", "info", name]).refuses(&["some.trace", "no trace"]);
    run(&["trace", "replay", name, "--system", "mind,swap", "--hosts", "2,4"]).refuses(&["swap", "one host"]);
}
