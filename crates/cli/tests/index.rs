//! Tests of `farmem index plan`: report, exit code, and rejections with a remedy.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn plan(args: &[&str]) -> Output {
    let farmem = env!("CARGO_BIN_EXE_farmem");
    Command::new(farmem).args(["index", "plan"]).args(args).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// Returns the report of a plan, and its exit code.
fn account(args: &[&str]) -> (Value, Option<i32>) {
    let ended = plan(&[args, &["--json"]].concat());
    assert_eq!(text(&ended.stderr), "");
    (serde_json::from_slice(&ended.stdout).expect("JSON"), ended.status.code())
}

/// Writes a key file. Each file belongs to one test.
fn file(name: &str, content: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).expect("written");
    path
}

/// A fat root and a set fit twelve stages. The sums of the report equal those of the tree.
#[test]
fn an_index_that_fits() {
    let (account, code) =
        account(&["--records", "100000", "--operations", "10000", "--ranges", "100", "--nodes", "500"]);
    assert_eq!((code, &account["fits"]), (Some(0), &true.into()));
    assert_eq!(
        account["tree"],
        serde_json::json!({ "keys": 100_000, "levels": 4, "inner_nodes": 447, "accesses": 10_000 })
    );
    let stages = account["stages"].as_array().expect("a list");
    let places: Vec<(u64, u64)> = stages
        .iter()
        .map(|stage| (stage["switch"].as_u64().unwrap(), stage["stage"].as_u64().unwrap()))
        .collect();
    assert_eq!(places, (1..=12).map(|stage| (1, stage)).collect::<Vec<_>>());
    assert_eq!(stages[4]["entries"], account["root"]["ranges"]);
    // The tree has four inner levels and the leaf. The index answers some of them.
    assert_eq!(account["reads_without"], 5.0);
    let with = account["reads_with"].as_f64().unwrap();
    assert!((1.0..3.0).contains(&with), "{with}");
}

/// The fat root and the set hold a small tree entirely, so that only the leaf remains of a look-up.
#[test]
fn an_index_of_all_nodes_leaves_the_leaf() {
    for keys in ["zipfian", "uniform"] {
        let (account, _) =
            account(&["--records", "30000", "--operations", "1000", "--ranges", "128", "--keys", keys]);
        assert_eq!(account["reads_with"], 1.0);
        assert_eq!(account["sets"][0]["share"], 1.0);
    }
}

/// An index that does not fit ends with 1 and a remedy. With the remedy, the index fits.
#[test]
fn an_index_that_does_not_fit() {
    let small = ["--records", "200000", "--operations", "10000", "--sets", "2", "--ranges", "20"];
    let ended = plan(&small);
    let said = text(&ended.stdout);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("18 stages are needed, 12 are there: fewer --sets, or more --switches"), "{said}");
    assert!(said.ends_with("It does not fit.\n"), "{said}");
    let (fitting, code) = account(&[&small[..], &["--switches", "2"]].concat());
    assert_eq!((code, &fitting["excess"]), (Some(0), &serde_json::json!([])));
    assert_eq!((&fitting["stages"][12]["switch"], &fitting["stages"][12]["stage"]), (&2.into(), &1.into()));

    let (account, code) = account(&["--records", "200000", "--operations", "50000", "--sram-blocks", "3"]);
    assert_eq!(code, Some(1));
    let excess = account["excess"].to_string();
    assert!(excess.contains("stage 12 needs too much SRAM: fewer --nodes"), "{excess}");
    assert_eq!(
        (&account["stages"][11]["fits"], &account["stages"][5]["fits"]),
        (&false.into(), &true.into())
    );
}

/// Default results omit an entry of each range table.
#[test]
fn default_results_take_fewer_entries() {
    let entries = |more: &[&str]| -> Vec<u64> {
        let (account, _) =
            account(&[&["--records", "50000", "--operations", "100", "--ranges", "300"], more].concat());
        let stages = account["stages"].as_array().expect("a list").iter();
        stages.take(4).map(|stage| stage["entries"].as_u64().unwrap()).collect()
    };
    let (all, less) = (entries(&[]), entries(&["--default-results"]));
    assert_eq!(all[0], less[0] + 1);
    assert!(all[1] > less[1], "{all:?} {less:?}");
}

/// A key file may be in any order and in both number formats. Accesses of equal keys add up, and the largest
/// key works.
#[test]
fn keys_from_a_file() {
    let lines = format!("0x10 3\n\n{}\n5\n 16 4 \n0 0\n", u64::MAX);
    let path = file("index_keys.txt", &lines);
    let (account, code) = account(&["--keys-file", path.to_str().unwrap(), "--fill", "1"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        account["tree"],
        serde_json::json!({ "keys": 4, "levels": 1, "inner_nodes": 1, "accesses": 9 })
    );
    assert_eq!((&account["root"]["ranges"], &account["sets"]), (&4.into(), &serde_json::json!([])));
}

/// Requested sets without nodes are omitted, and the report says so.
#[test]
fn sets_without_nodes_are_left_out() {
    let args =
        ["--records", "5000", "--operations", "10", "--ranges", "20", "--sets", "4", "--switches", "3"];
    let ended = plan(&args);
    let said = text(&ended.stdout);
    assert_eq!(ended.status.code(), Some(0), "{said}");
    assert!(said.contains("\nsets 3 to 4: left out, no inner nodes are below the one before\n"), "{said}");
    assert_eq!(account(&args).0["sets"].as_array().map(Vec::len), Some(2));
}

/// Trees without keys and with one key have a leaf, to which one range leads.
#[test]
fn the_smallest_trees() {
    for records in ["0", "1"] {
        let (account, code) = account(&["--records", records, "--dense"]);
        assert_eq!(
            (code, &account["root"]["ranges"], &account["tree"]["levels"]),
            (Some(0), &1.into(), &0.into())
        );
    }
}

#[test]
fn an_invalid_plan_is_refused() {
    let wrong = file("index_wrong.txt", "1\n2\nthree\n");
    let wrong = wrong.to_str().unwrap();
    let cases: [(&[&str], &[&str]); 6] = [
        (&["--keys-file", wrong], &["line 3 is no key: three", "decimal or 0x..."]),
        (&["--keys-file", "/nowhere/keys"], &["/nowhere/keys", "No such file"]),
        (&["--keys-file", wrong, "--records", "7"], &["cannot be used with"]),
        (&["--ranges", "1025"], &["1025", "1..=1024"]),
        (&["--nodes", "0"], &["1..=4096"]),
        (&["--fill", "16"], &["1..=15"]),
    ];
    for (args, words) in cases {
        let ended = plan(args);
        let said = text(&ended.stderr);
        assert_eq!((ended.status.code(), text(&ended.stdout).as_str()), (Some(2), ""), "{args:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{args:?} does not say {word}: {said}");
        }
    }
    let help = text(&plan(&["--help"]).stdout);
    for flag in [
        "--records",
        "--keys-file",
        "--ranges",
        "--nodes",
        "--sets",
        "--stages",
        "--default-results",
        "exit code 1",
    ] {
        assert!(help.contains(flag), "--help does not say {flag}:\n{help}");
    }
}

/// A FatTree of k = 4 (Fat-B+Tree IV-A): the report covers the fullest switch of each tier. All parts
/// together save visits that one switch has no room for.
#[test]
fn an_index_in_a_fat_tree() {
    let tree = ["--records", "1000000", "--operations", "10000", "--ranges", "600", "--nodes", "500"];
    let (one, _) = account(&tree);
    let (account, code) = account(&[&tree[..], &["--pods", "4", "--sets", "2"]].concat());
    assert_eq!((code, &account["fits"], &account["servers"]), (Some(0), &true.into(), &16.into()));
    let tiers: Vec<(&str, u64, u64)> = account["tiers"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|tier| {
            let stages = tier["stages"].as_array().expect("a list").len() as u64;
            (tier["tier"].as_str().unwrap(), tier["switches"].as_u64().unwrap(), stages)
        })
        .collect();
    assert_eq!(
        tiers.iter().map(|(tier, switches, _)| (*tier, *switches)).collect::<Vec<_>>(),
        [("core", 1), ("aggregation", 4), ("edge", 8)]
    );
    // A fat root, and at most two sets.
    assert!(tiers[0].2 == 6 && tiers[1].2 == 12 && tiers[2].2 <= 12, "{tiers:?}");
    let most = |tier: usize| account["tiers"][tier]["nodes_most"].as_u64().unwrap();
    assert!(most(0) == 0 && (1..=1_000).contains(&most(1)) && (1..=1_000).contains(&most(2)), "{account}");
    let with = |account: &Value| account["reads_with"].as_f64().unwrap();
    assert!(with(&account) < with(&one), "{} READs, {} with one switch", with(&account), with(&one));

    let ended =
        plan(&["--records", "200000", "--ranges", "20", "--stages", "6", "--pods", "2", "--sets", "2"]);
    let said = text(&ended.stdout);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("aggregation: 12 stages are needed, 6 are there: fewer --sets"), "{said}");
    let ended = plan(&["--pods", "64", "--edges", "64"]);
    assert_eq!(ended.status.code(), Some(2));
    assert!(text(&ended.stderr).contains("8192 servers are more than the 1024"), "{}", text(&ended.stderr));
}
