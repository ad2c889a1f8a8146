//! Tests of the applications as commands, on a rack of processes: correct answers, exact counts, and no
//! remains.

use crate::process::{Dir, Running, eventually, farmem, run, signal};
use crate::rack::Description;
use serde_json::Value;

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Runs an application twice on one rack and returns the second report, when every memory node knows the
/// programs.
fn on_a_rack(test: &str, arguments: &[&str]) -> Value {
    let description = Description::new(test, "udp");
    let mut up = description.up();
    let file = description.file();
    let arguments = [arguments, &["--json", "--in-flight", "8", "--rack", &file]].concat();
    run(&arguments).json();
    let report = run(&arguments).json();
    assert_eq!((&report["wrong_answers"], &report["checked"]), (&0.into(), &true.into()), "{report}");
    assert_eq!((&report["memory_nodes"], &report["transport"]), (&2.into(), &"udp".into()));
    let of_rows: u64 = report["rows"].as_array().unwrap().iter().map(|row| number(&row["operations"])).sum();
    assert_eq!(of_rows, number(&report["operations"]));
    assert_eq!(description.overview()["vmas"], Value::Array(vec![]), "its memory is freed");
    assert!(up.is_whole());
    assert_eq!(up.stop().code, Some(0));
    report
}

/// Maximum number of additional requests, because each client must learn once that a memory node knows a
/// program.
const FIRST_REQUESTS: u64 = 8;

#[test]
fn the_web_service_takes_two_round_trips() {
    let report = on_a_rack(
        "webservice",
        &["webservice", "--records", "190", "--operations", "400", "--workload", "A", "--policy", "offload"],
    );
    for row in report["rows"].as_array().unwrap() {
        let (n, trips) = (number(&row["operations"]), number(&row["round_trips"]));
        assert!((2 * n..=2 * n + FIRST_REQUESTS).contains(&trips), "{row}");
        assert_eq!((number(&row["offloaded"]), number(&row["at_host"])), (n, 0));
        assert!(number(&row["iterations"]) > 20 * n, "{row}");
    }
}

/// The table is the same wherever traversals run. At the host, each node costs a round trip.
#[test]
fn the_table_store_scans_beside_inserts() {
    let arguments = ["tablestore", "--records", "2000", "--operations", "300", "--policy"];
    let offloaded = on_a_rack("tablestore", &[&arguments[..], &["offload"]].concat());
    let at_host = on_a_rack("tablestore-host", &[&arguments[..], &["host"]].concat());
    let of = |report: &Value, name: &str, what: &str| {
        let rows = report["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["operation"] == name).unwrap_or_else(|| panic!("{report}"));
        number(&row[what])
    };
    for name in ["scan", "insert"] {
        assert_eq!(
            of(&offloaded, name, "operations"),
            of(&at_host, name, "operations"),
            "one seed, one sequence"
        );
        assert_eq!(of(&offloaded, name, "at_host"), 0);
        assert_eq!(of(&at_host, name, "offloaded"), 0);
        assert!(of(&at_host, name, "round_trips") > of(&offloaded, name, "round_trips"));
    }
    // A scan takes up to eight requests along the leaves, and one more round trip for the last values.
    let scans = of(&offloaded, "scan", "operations");
    assert!(of(&offloaded, "scan", "round_trips") <= 9 * scans + FIRST_REQUESTS);
}

#[test]
fn a_window_is_one_round_trip() {
    let dir = Dir::new("timeseries-data");
    let mut text = String::from("utc,volt\n");
    for n in 0..3000 {
        text += &format!("{}.{:02},{}.5\n", 1000 + n / 100, n % 100, 230 + n % 7);
    }
    let file = dir.file("points.csv", &text);
    let data = ["timeseries", "--data", &file, "--time", "utc", "--value", "volt", "--value-decimals", "1"];
    let report =
        on_a_rack("timeseries", &[&data[..], &["--operations", "500", "--policy", "offload"]].concat());
    assert!(report["workload"].as_str().unwrap().contains("3000 points of points.csv"), "{report}");
    let trips: u64 = report["rows"].as_array().unwrap().iter().map(|row| number(&row["round_trips"])).sum();
    assert!((500..=500 + FIRST_REQUESTS).contains(&trips), "{report}");
}

/// Without a rack, each application starts one in its own process, and prints a table.
#[test]
fn the_tables_are_for_people() {
    for (arguments, words) in [
        (&["webservice", "--records", "95", "--operations", "50"][..], "YCSB C on 95 users"),
        (&["tablestore", "--records", "500", "--operations", "50"], "YCSB E on 500 records"),
        (&["timeseries", "--records", "2000", "--operations", "50"], "sum, mean, min and max"),
    ] {
        let ended = run(arguments);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        for words in [words, "4 memory nodes, transport in this process", "every answer was right"] {
            assert!(ended.stdout.contains(words), "{words:?} is not in {}", ended.stdout);
        }
    }
}

#[test]
fn impossible_arguments_are_refused() {
    run(&["webservice", "--rack", "/no/such/rack.toml"]).refuses(&["/no/such/rack.toml"]);
    run(&["timeseries", "--data", "/no/such/points.csv"])
        .refuses(&["/no/such/points.csv", "name another file"]);
    run(&["timeseries", "--data", "/etc/hostname"]).refuses(&["neither .csv nor .parquet"]);
    for wrong in [
        &["webservice", "--workload", "E"][..],
        &["webservice", "--records", "0"],
        &["tablestore", "--in-flight", "0"],
        &["timeseries", "--policy", "nowhere"],
    ] {
        assert_eq!(run(wrong).code, Some(2), "{wrong:?}");
    }
}

/// Ctrl-C during the load or the measurement frees the memory and prints the measurements so far.
#[test]
fn an_interrupted_application_leaves_nothing() {
    let description = Description::new("apps-interrupted", "udp");
    let mut up = description.up();
    let file = description.file();
    for application in ["webservice", "tablestore", "timeseries"] {
        // The number of operations exceeds every time limit. The table store has memory for each operation.
        let arguments = [application, "--records", "2000", "--operations", "20000", "--in-flight", "1"];
        let arguments = [&arguments[..], &["--policy", "host", "--rack", &file]].concat();
        let mut running = Running::start(farmem(&arguments));
        eventually("it has memory", || description.overview()["vmas"] != Value::Array(vec![]));
        signal(running.pid(), "INT");
        let ended = running.ended();
        assert_eq!(ended.code, Some(130), "{ended:?}");
        assert!(
            ended.stdout.contains("stopped before its end")
                || ended.stderr.contains("what was loaded is freed"),
            "{ended:?}"
        );
        assert_eq!(description.overview()["vmas"], Value::Array(vec![]), "{application} freed its memory");
    }
    assert!(up.is_whole());
    assert_eq!(up.stop().code, Some(0));
}

/// The maximum of --in-flight works. A scan at the host has a hundred more operations, so the client takes
/// fewer, and the rest wait.
#[test]
fn as_many_under_way_as_can_be_told() {
    let description = Description::new("apps-many", "udp");
    let up = description.up();
    let file = description.file();
    for arguments in [
        ["timeseries", "--policy", "offload", "--operations", "20000", "--records", "3000"],
        ["tablestore", "--policy", "host", "--operations", "5000", "--records", "3000"],
    ] {
        let report =
            run(&[&arguments[..], &["--in-flight", "4096", "--json", "--rack", &file]].concat()).json();
        assert_eq!(
            (&report["wrong_answers"], report["operations"].to_string().as_str()),
            (&0.into(), arguments[4])
        );
    }
    assert_eq!(up.stop().code, Some(0));
}
