//! Tests of `farmem sim`: reproducible from its seed, and rejected when there is nothing to simulate.

use crate::process::run;
use serde_json::Value;

fn play(what: &str, seed: &str, plan: &str) -> Value {
    run(&["sim", what, "--operations", "2000", "--seeds", "5", "--seed", seed, "--plan", plan, "--json"])
        .json()
}

#[test]
fn the_same_seed_is_the_same_world() {
    for what in ["rc", "ud"] {
        let report = play(what, "1", "storm");
        assert_eq!(
            (&report["run"], &report["plan"], &report["verdict"]),
            (&what.into(), &"storm".into(), &"fine".into())
        );
        assert!(report["operations"].as_u64() >= Some(2000), "all were played: {report}");
        assert_eq!((&report["seeds"], &report["failures"]), (&5.into(), &Value::Array(vec![])));
        assert!(
            report["lost"].as_u64() > Some(0) && report["retransmissions"].as_u64() > Some(0),
            "a storm loses frames: {report}"
        );
        let digest = report["digest"].as_str().unwrap();
        assert_eq!(digest.len(), 16);
        assert_eq!(play(what, "1", "storm")["digest"], digest, "{what}: the same again");
        assert_ne!(play(what, "2", "storm")["digest"], digest, "{what}: another world");
    }
}

/// A plan about roles that a world lacks is another plan there, and the command says so.
#[test]
fn a_plan_that_is_another_one_is_told() {
    for what in ["rc", "ud", "pages", "paging", "pd3"] {
        assert_eq!(play(what, "1", "slow")["digest"], play(what, "1", "loss")["digest"]);
        let ended = run(&["sim", what, "--operations", "100", "--seeds", "1", "--plan", "slow"]);
        assert_eq!(ended.stderr, "farmem: in these worlds plan slow is plan loss, world by world\n");
    }
    assert_ne!(play("rack", "1", "slow")["digest"], play("rack", "1", "loss")["digest"]);
    let rack = run(&["sim", "rack", "--operations", "100", "--seeds", "1", "--plan", "rogue"]);
    assert_eq!(rack.stderr, "");
}

#[test]
fn the_report_is_a_table_for_people() {
    let ended = run(&["sim", "rc", "--operations", "500", "--seeds", "2"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for words in ["sim rc, plan storm: fine", "| operations ", "digest "] {
        assert!(ended.stdout.contains(words), "{words:?} is not in {}", ended.stdout);
    }
}

#[test]
fn an_impossible_simulation_is_refused() {
    let unknown = run(&["sim", "rc", "--plan", "sunshine"]);
    assert_eq!(unknown.code, Some(2));
    for words in ["'sunshine'", "possible values: calm", "storm", "havoc"] {
        assert!(unknown.stderr.contains(words), "{words:?} is not in {}", unknown.stderr);
    }
    for args in [["--operations", "0"], ["--seeds", "0"], ["--seed", "-1"]] {
        assert_eq!(run(&[&["sim", "rc"][..], &args].concat()).code, Some(2), "{args:?}");
    }
}

/// The smallest rack of the gate, explored in full. With a guard removed, the explorer finds a violation and
/// ends with its own exit code.
#[test]
fn the_explorer_says_what_it_walked_and_what_it_found() {
    let report = run(&["sim", "explore", "--config", "19", "--json"]).json();
    assert_eq!((&report["verdict"], &report["configurations"][0]["number"]), (&"fine".into(), &19.into()));
    assert!(report["states"].as_u64() > Some(40_000), "{report}");
    let found = run(&["sim", "explore", "--without", "floors"]);
    assert_eq!(found.code, Some(3), "unsafe");
    assert!(
        found.stdout.contains("configuration 0 is unsafe") && found.stdout.contains("recall p0"),
        "{}",
        found.stdout
    );
    for (wrong, remedy) in [(["--config", "99"], "a number up to"), (["--without", "luck"], "floors")] {
        let refused = run(&["sim", "explore", wrong[0], wrong[1]]);
        assert_eq!(refused.code, Some(2));
        assert!(refused.stderr.contains(remedy), "{}", refused.stderr);
    }
}

/// A rack counts calls and the final read of all memory in addition to the requested operations. The report
/// has both counts, and explains the second.
#[test]
fn a_rack_counts_more_than_was_asked_for() {
    let report = play("rack", "1", "calm");
    assert_eq!(report["asked_for"], 2000, "{report}");
    assert!(report["operations"].as_u64() > Some(2000), "{report}");
    let table = run(&["sim", "rack", "--operations", "50", "--seeds", "1"]).stdout;
    assert!(table.contains("operations asked for") && table.contains("reading of all memory"), "{table}");
}

#[test]
fn hosts_share_pages_in_a_storm() {
    let report = play("pages", "1", "storm");
    assert_eq!(report["verdict"], "fine");
    assert!(report["retransmissions"].as_u64() > Some(0), "{report}");
}
