//! Test of `farmem tour`: a rack of processes, and each act on it.

use crate::process::run;
use serde_json::Value;

/// All acts are shown, and every answer is right. An act that this machine does not allow gives its reason, and
/// the command ends with 2.
#[test]
fn six_acts_are_shown() {
    let ended = run(&["tour", "--json"]);
    let shown: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{ended:?}"));
    assert_eq!(shown["wrong_answers"], 0, "{shown}");
    let acts = shown["acts"].as_array().expect("a list");
    assert_eq!(acts.len(), 6, "{shown}");
    let missing: Vec<&Value> = acts.iter().filter(|act| act["why"].is_string()).collect();
    for act in acts {
        let is_complete = ["figures", "sentence"].iter().all(|field| act[field].is_string());
        assert_ne!(is_complete, act["why"].is_string(), "{act}");
    }
    if !missing.is_empty() {
        eprintln!("skipped: {missing:?}");
        assert_eq!(ended.code, Some(2));
        return assert!(ended.stderr.contains("could not be shown"), "{ended:?}");
    }
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let figures = |act: usize| acts[act]["figures"].as_str().expect("figures").to_owned();
    assert!(figures(1).contains("traversals: 1.00 round trips"), "{}", figures(1));
    assert!(figures(3).contains("through the index: 1.0;"), "{}", figures(3));
}
