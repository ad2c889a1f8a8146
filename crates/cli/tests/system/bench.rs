//! Tests of `farmem bench`: the form of the output, and correct answers of all measured operations. The tests
//! check no times.

use crate::process::{Running, eventually, farmem, processes_with, run, run_command};
use procfs_core::FromRead as _;
use procfs_core::process::Stat;
use serde_json::Value;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

/// Fields of a row. Some of them are numbers or null.
const FIELDS: [&str; 9] = ["id", "value", "unit", "baseline", "ratio", "p50", "p99", "cpu", "n"];

/// Checks the form of `farmem bench NAME --json`, and returns the row ids.
fn ids(report: &Value, bench: &str) -> Vec<String> {
    assert_eq!(report["bench"], bench);
    assert!(report["link"].is_string(), "{}", report["link"]);
    assert_eq!(report["link_late"].is_null(), report["link"] == "none", "{report}");
    assert!(report["machine"]["cpus"].as_u64() >= Some(1), "{}", report["machine"]);
    let rows = report["rows"].as_array().expect("a list");
    for row in rows {
        let fields = row.as_object().expect("an object");
        assert!(FIELDS.iter().all(|field| fields.contains_key(*field)), "{row}");
        assert!(fields.keys().all(|field| FIELDS.contains(&field.as_str()) || field == "why"), "{row}");
        for field in ["value", "baseline", "ratio", "p50", "p99", "cpu"] {
            assert!(
                row[field].is_null() || row[field].as_f64() > Some(0.0) || row[field] == 0.0,
                "{field}: {row}"
            );
        }
        assert!(row["value"].is_f64() || row["why"].is_string(), "a figure, or why there is none: {row}");
        assert_eq!(row["ratio"].is_f64(), row["value"].is_f64() && row["baseline"].is_f64(), "{row}");
        assert!(row["id"].as_str().is_some_and(|id| id.starts_with(&format!("{bench}."))), "{row}");
    }
    let ids: Vec<String> = rows.iter().filter_map(|row| Some(row["id"].as_str()?.to_owned())).collect();
    let mut distinct = ids.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), ids.len(), "each id once: {ids:?}");
    ids
}

/// Look-ups through a page cache, by READs, by native code and by traversals, on racks of processes. The
/// benchmark checks every answer, and a wrong one ends it with 1.
#[test]
fn pulse_compares_systems_on_racks_of_processes() {
    let ids = ids(
        &run(&["bench", "pulse", "--quick", "--json", "--only", "pulse.systems.lookups"]).json(),
        "pulse",
    );
    for system in ["cache25", "reads", "rpc", "pulse"] {
        for what in ["latency", "throughput", "throughput.alone"] {
            let id = format!("pulse.systems.lookups.zipfian.n1.{system}.{what}");
            assert!(ids.contains(&id), "{id} is not in {ids:?}");
        }
    }
    assert!(ids.iter().any(|id| id.starts_with("pulse.systems.lookups.zipfian.n2.pulse_acc.")));
    assert!(ids.iter().all(|id| id.starts_with("pulse.systems.lookups.")), "nothing else was asked for");
}

/// Look-ups by the switch's index, by traversals from the root and by READs on one rack of processes. The
/// benchmark checks every value. With the index, a look-up is one round trip.
#[test]
fn fat_compares_ways_to_a_key() {
    let report = run(&["bench", "fat", "--quick", "--json"]).json();
    let ids = ids(&report, "fat");
    for id in [
        "fat.encode.uniform.entries",
        "fat.encode.build",
        "fat.union.packets",
        "fat.e2e.scale.20000.latency",
        "fat.e2e.scale.20000.latency.over_direct",
        "fat.e2e.scale.20000.in_flight32.over_root",
        "fat.e2e.layers.0.latency",
        "fat.e2e.nodes.3900.throughput",
        "fat.e2e.zipf.90.latency",
        "fat.keyed.20000.relayed.latency",
        "fat.keyed.20000.relayed.throughput",
        "fat.keyed.20000.relayed.round_trips.p99",
        "fat.load.time",
        "fat.load.p99",
        "fat.ranges.10.accesses",
        "fat.server.lazy.50.followed.visits",
        "fat.server.clients.2.throughput",
        "fat.server.mixed.50.visits",
        "fat.server.sim.clients.16.throughput",
    ] {
        assert!(ids.iter().any(|known| known == id), "{id} is not in {ids:?}");
    }
    let rows = report["rows"].as_array().expect("a list");
    let value = |id: &str| rows.iter().find(|row| row["id"] == id).and_then(|row| row["value"].as_f64());
    for id in ["fat.e2e.scale.20000.round_trips", "fat.union.round_trips"] {
        assert_eq!(value(id), Some(1.0), "{id}");
    }
}

/// Graph applications in every system that this machine supports. The benchmark compares every answer with
/// that of local memory, and a wrong one ends it with 1. An unsupported system prints a reason. A forwarding
/// DPU moves the same bytes as the window alone.
#[test]
fn soda_compares_systems_on_graphs() {
    let report = run(&["bench", "soda", "--quick", "--json", "--only", "soda.run.r35.bfs"]).json();
    let found = ids(&report, "soda");
    for system in ["local", "disk", "zram", "server", "dpu", "dpu.dynamic", "dpu.adaptive"] {
        let row = format!("soda.run.r35.bfs.{system}");
        let row =
            report["rows"].as_array().and_then(|rows| rows.iter().find(|found| found["id"] == row.as_str()));
        let row = row.unwrap_or_else(|| panic!("{system} is not in {found:?}"));
        let skipped = row["why"].as_str().is_some_and(|why| why.starts_with("skipped: "));
        assert!(row["value"].is_f64() || skipped, "{row}");
    }
    // Times and CPU times of one graph come from one run. The graph is placed once, because the node has room
    // for one.
    let both = "soda.run.r221.bfs.,soda.host_cpu.r221.bfs.";
    let found = ids(&run(&["bench", "soda", "--quick", "--json", "--only", both]).json(), "soda");
    assert!(found.iter().any(|id| id.starts_with("soda.host_cpu.r221.bfs")), "{found:?}");
    for (only, some) in [
        ("soda.link.intra", "soda.link.intra.65536.pages.bandwidth"),
        ("soda.step.bfs", "soda.step.bfs.async"),
        ("soda.share.2.bfs", "soda.share.2.bfs.process.static.bytes"),
        ("soda.fail.fallback.stop", "soda.fail.fallback.stop"),
        ("soda.file.", "soda.file.save"),
    ] {
        let found = ids(&run(&["bench", "soda", "--quick", "--json", "--only", only]).json(), "soda");
        let skipped = found.iter().all(|id| some.starts_with(id));
        assert!(skipped || found.iter().any(|id| id == some), "{some}: {found:?}");
    }
    let report = run(&["bench", "soda", "--quick", "--json", "--only", "soda.traffic.r221.radii"]).json();
    let found = ids(&report, "soda");
    let value = |id: &str| {
        let row = report["rows"]
            .as_array()?
            .iter()
            .find(|row| row["id"] == format!("soda.traffic.r221.radii.{id}"))?;
        row["value"].as_f64()
    };
    if let Some(bytes) = value("server.bytes") {
        assert_eq!(
            (value("dpu.bytes"), value("dpu.hits"), value("dpu.background")),
            (Some(bytes), Some(0.0), Some(0.0))
        );
        assert!(value("dpu.dynamic.hits") > Some(0.0), "{found:?}");
    }
    let alone = run(&["soda-alone", "absent.fmg", "sort", "disk", "1", "0"]);
    alone.refuses(&["no application is called \"sort\""]);
}

/// The hash map's program with a driver in a thread of the benchmark, and with the driver in the rack's DPU
/// process. The benchmark checks every answer of both, and a wrong one ends it with 1.
#[test]
fn pd3_prefetches_by_a_process_of_its_own() {
    let only = "pd3.path.hash.process.,pd3.e2e.hash.uniform.process.";
    let report = run(&["bench", "pd3", "--quick", "--json", "--only", only]).json();
    let path = ["ns_per_key", "wall"].map(|row| format!("pd3.path.hash.process.{row}"));
    let program =
        ["throughput", "host_cpu", "missed"].map(|row| format!("pd3.e2e.hash.uniform.process.{row}"));
    assert_eq!(ids(&report, "pd3"), [&path[..], &program].concat());
    let rows = report["rows"].as_array().expect("a list");
    assert!(rows.iter().all(|row| row["value"].is_f64()), "{rows:?}");
}

/// Racks of processes whose links emulate a network. The output contains the profile and its CPU time, and
/// every answer is right.
#[test]
fn figures_say_what_the_links_stand_for() {
    let only = ["bench", "pulse", "--quick", "--only", "pulse.batch."];
    let paced = run(&[&only[..], &["--json", "--link", "rate=25Gbit/s,delay=20us"]].concat()).json();
    assert_eq!(paced["link"], "rate=25Gbit/s,delay=20us");
    assert_eq!(ids(&paced, "pulse"), ["pulse.batch.lookups"]);
    assert!(paced["link_late"].as_f64() > Some(0.0), "{paced}");
    assert!(paced["rows"][0]["cpu"].as_f64() > Some(0.0), "{paced}");
    let shown = run(&[&only[..], &["--link", "100g-2us"]].concat());
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(shown.stdout.lines().next().is_some_and(|line| line.ends_with(", link 100g-2us")), "{shown:?}");
    assert!(shown.stdout.contains("not held back by the link's profile"), "{shown:?}");
    assert!(shown.stdout.contains("later than the link's profile wants, on average"), "{shown:?}");
}

/// An invalid profile is rejected by name before any measurement.
#[test]
fn a_link_that_cannot_be_is_refused() {
    for (link, words) in [
        ("fast", ["no link profile is called \"fast\"", "100g-2us"]),
        ("rate=0bit/s", ["rate=0bit/s", "1Mbit/s to 10Tbit/s"]),
        ("delay=1s", ["delay=1s", "0us to 10ms"]),
    ] {
        let ended = run(&["bench", "net", "--quick", "--link", link]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{ended:?}");
        for word in words {
            assert!(ended.stderr.contains(word), "{word:?} is not in {ended:?}");
        }
    }
}

/// An unknown row name and an unwritable plot directory are rejected before any measurement.
#[test]
fn a_benchmark_that_measures_nothing_is_refused() {
    for bench in ["pulse", "mind", "fat"] {
        run(&["bench", bench, "--quick", "--json", "--only", "pulse.e2e.nothing"])
            .refuses(&["no row's id begins with \"pulse.e2e.nothing\"", "docs/results/"]);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let place = file.path().to_str().unwrap();
    let refused = run(&["bench", "pulse", "--quick", "--only", "pulse.sim", "--plots", place]);
    refused.refuses(&["cannot draw into", "--plots"]);
}

/// The quick run of all parts has the rows that the documentation names.
#[test]
fn pulse_measures_all_of_its_parts() {
    let ids = ids(&run(&["bench", "pulse", "--quick", "--json"]).json(), "pulse");
    let documented = include_str!("../../../../docs/results/pulse.md");
    for id in [
        "pulse.node.hash.hops",
        "pulse.node.btree.lookups",
        "pulse.e2e.webservice.latency",
        "pulse.e2e.webservice.throughput",
        "pulse.e2e.webservice.throughput.over_overlapped",
        "pulse.e2e.webservice.own_time",
        "pulse.e2e.tablestore.latency",
        "pulse.e2e.tablestore.throughput",
        "pulse.e2e.timeseries.latency",
        "pulse.e2e.timeseries.throughput",
        "pulse.e2e.lookups.latency",
        "pulse.e2e.lookups.throughput",
        "pulse.distributed.chains.scattered.n2.packets",
        "pulse.distributed.lookups.zipfian.n2.latency",
    ] {
        assert!(ids.iter().any(|have| have == id), "{id} is not in {ids:?}");
        assert!(documented.contains(&format!("`{id}`")), "{id} is not in docs/results/");
    }
    for part in ["pulse.scatter.", "pulse.sim.coupled.", "pulse.systems."] {
        assert!(ids.iter().any(|id| id.starts_with(part)), "nothing of {part} in {ids:?}");
        assert!(documented.contains(&format!("`{part}")), "{part} is not in docs/results/");
    }
}

/// A far page at each place of program and pager. Each place has its rows or a reason, and every read word is
/// right.
#[test]
fn run_measures_a_far_page_in_each_place() {
    let ids = ids(&run(&["bench", "run", "--quick", "--json", "--only", "run.fault"]).json(), "run");
    let documented = include_str!("../../../../docs/results/run.md");
    let places = ["free", "one", "apart"].map(|place| format!("run.fault.{place}"));
    let expected: Vec<String> =
        places.into_iter().flat_map(|id| [id.clone(), format!("{id}.signal")]).collect();
    assert_eq!(ids, expected);
    for id in ids {
        assert!(documented.contains(&format!("`{id}`")), "{id} is not in docs/results/");
    }
}

/// One row for each placement and number of threads. Every program has the right result.
#[test]
fn run_measures_each_placement() {
    let ids = ids(&run(&["bench", "run", "--quick", "--json", "--only", "run.place"]).json(), "run");
    let expected: Vec<String> = [1, 2, 4]
        .into_iter()
        .flat_map(|threads| ["auto", "free", "one", "apart"].map(|at| format!("run.place.{at}.{threads}")))
        .collect();
    assert_eq!(ids, expected);
}

/// Parts without a rack: counts and the model, with figures.
#[test]
fn pulse_draws_what_it_counts() {
    let directory = std::env::temp_dir().join(format!("farmem-plots-{}", std::process::id()));
    let plots = directory.to_str().expect("a temporary directory has a name");
    let ended = run(&["bench", "pulse", "--quick", "--json", "--only", "pulse.scatter.", "--plots", plots]);
    assert_eq!(ids(&ended.json(), "pulse").len(), 20);
    for name in ["pulse-crossing.svg", "pulse-crossings.svg"] {
        let drawn = fs::read_to_string(directory.join(name)).expect("it was drawn");
        assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"), "{name}");
    }
    fs::remove_dir_all(&directory).expect("it is ours");
}

/// The table shows the same rows as the JSON object.
#[test]
fn the_model_is_a_table_for_people() {
    let ended = run(&["bench", "pulse", "--quick", "--only", "pulse.sim.coupled.m1"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for words in ["bench pulse: ", "pulse.sim.coupled.m1n4.throughput", "ratio: value / baseline"] {
        assert!(ended.stdout.contains(words), "{words:?} is not in {}", ended.stdout);
    }
    assert_eq!(ended.stdout.matches("pulse.sim.coupled.").count(), 8);
}

/// Rows are printed one by one, long before a long run ends.
#[test]
fn rows_come_one_by_one() {
    let mut running = Running::start(farmem(&["bench", "mind", "--only", "mind.scaling.random."]));
    let first = running.line();
    assert!(first.starts_with("bench mind: ") && first.trim_end().ends_with(", link none"), "{first}");
    assert!(running.line().starts_with("| id "));
    assert!(running.line().starts_with("| ---"));
    assert!(running.line().starts_with("| mind.scaling.random.read0.shared0 "));
    running.kill();
    let ended = running.ended();
    assert_eq!(ended.code, None, "it had not come to its end: {ended:?}");
}

/// The key-value server, redis-server and memcached. The benchmark checks every reply, once with all data in
/// local memory and once with most of it in far memory. The far READs of each row show the difference. A
/// missing server prints a reason in its first row.
#[test]
fn kv_compares_servers() {
    let report = run(&["bench", "kv", "--quick", "--json"]).json();
    let found = ids(&report, "kv");
    let rows = report["rows"].as_array().expect("a list");
    let why = |id: &str| {
        let row = rows.iter().find(|row| row["id"] == id).unwrap_or_else(|| panic!("{id}: {found:?}"));
        (row["value"].as_f64(), row["why"].as_str().unwrap_or_default().to_owned())
    };
    for (name, kinds) in [("kv", &["get", "set", "mset"][..]), ("kv.memcached", &["get", "set"])] {
        for place in ["local", "far"] {
            let (first, said) = why(&format!("{name}.get.p1.{place}"));
            if first.is_none() {
                eprintln!("skipped: {said}");
                continue;
            }
            for (kind, ahead) in kinds.iter().flat_map(|kind| [(kind, 1), (kind, 16)]) {
                let (value, said) = why(&format!("{name}.{kind}.p{ahead}.{place}"));
                assert!(value > Some(0.0) && said.contains("% of the data"), "{said}");
                // A set operation reads no earlier value.
                let reads = !said.contains(" 0.00 far READs an operation");
                assert!(
                    *kind != "get" || reads == (place == "far"),
                    "{name}.{kind}.p{ahead}.{place}: {said}"
                );
            }
        }
    }
    assert!(why("kv.ahead.get.p16").0 > Some(0.0));
    let (value, said) = why("kv.connections");
    assert!(value == Some(10_000.0) || said.contains("ulimit") || value.is_none(), "{value:?}: {said}");
    let only = run(&["bench", "kv", "--quick", "--json", "--only", "kv.set.p16.far"]).json();
    assert!(ids(&only, "kv").iter().all(|id| id == "kv.set.p16.far"), "nothing else was asked for");
}

/// The quick run of all coherence rows. Each kind of row is measured or has a reason, and the documentation
/// names each kind.
#[test]
fn mind_measures_all_of_its_parts() {
    let ids = ids(&run(&["bench", "mind", "--quick", "--json"]).json(), "mind");
    let documented = include_str!("../../../../docs/results/mind.md");
    for kind in [
        "mind.fault.shm",
        "mind.fault.udp",
        "mind.fault.shm.signal",
        "mind.fault.udp.signal",
        "mind.fault.shm.apart",
        "mind.fault.udp.apart",
        "mind.fault.zram",
        "mind.filter.",
        "mind.transition.",
        "mind.scaling.nativekvs.",
        "mind.scaling.blades.",
        "mind.scaling.threads.",
        "mind.scaling.random.",
        "mind.directory.slots.",
        "mind.directory.false.",
        "mind.directory.entries.",
        "mind.directory.jain.",
    ] {
        assert!(documented.contains(&format!("`{kind}")), "{kind} is not in docs/results/");
        let refused = kind == "mind.transition." && !ids.iter().any(|id| id.starts_with("mind.packets."));
        assert!(refused || ids.iter().any(|id| id.starts_with(kind)), "nothing of {kind} in {ids:?}");
    }
}

/// A page that is read back from zram was swapped out by a memory limit where this machine permits one,
/// otherwise on request. The row states the way or the missing feature.
#[test]
fn a_swap_in_says_how_its_page_was_out() {
    let report = run(&["bench", "mind", "--quick", "--json", "--only", "mind.fault.zram"]).json();
    assert_eq!(ids(&report, "mind"), ["mind.fault.zram"]);
    let row = &report["rows"][0];
    let why = row["why"].as_str().expect("it says how");
    if row["value"].is_null() {
        return eprintln!("skipped: {why}");
    }
    let by_limit = why.contains("that the limit of a memory cgroup put out (v");
    assert!(by_limit != why.contains("put out on request, "), "{why}");
    assert!(by_limit || why.contains("(under no limit: "), "{why}");
    assert!(row["n"].as_u64() >= Some(2048), "half of the pages were out: {row}");
}

/// The process under the limit takes no memory before it is told to. It reports the times of those accesses
/// that found their page swapped out. Without a limit there are none.
#[test]
fn a_limited_process_waits_for_its_command() {
    let squeezed = |said: &str| {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        writer.write_all(said.as_bytes()).expect("there is room");
        drop(writer);
        let mut command = farmem(&["squeezed", "8", "2"]);
        command.stdin(reader);
        run_command(command)
    };
    let untold = squeezed("");
    assert_eq!((untold.code, untold.stdout.as_str()), (Some(0), ""), "{untold:?}");
    let told = squeezed("begin\n");
    assert_eq!((told.code, told.stdout.as_str()), (Some(0), "end\n"), "{told:?}");
    assert!(!run(&["--help"]).stdout.contains("squeezed"), "the hidden command is not listed");
}

/// Swap devices and cgroups that a benchmark created. The names come from the keeper processes, which wait to
/// remove them.
fn made_by(pid: u32) -> Vec<PathBuf> {
    let is_child = |other: &u32| {
        Stat::from_file(format!("/proc/{other}/stat")).is_ok_and(|stat| u32::try_from(stat.ppid) == Ok(pid))
    };
    let named = |keeper: u32| {
        let line = fs::read(format!("/proc/{keeper}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        let last = line.trim_end_matches('\0').rsplit('\0').next().unwrap_or_default().to_owned();
        if last.starts_with('/') { last.into() } else { format!("/sys/block/zram{last}").into() }
    };
    processes_with("while read -r _").into_iter().filter(is_child).map(named).collect()
}

/// A benchmark that is killed leaves no cgroup and no swap device.
#[test]
fn a_killed_benchmark_leaves_no_swap() {
    let mut running = Running::start(farmem(&["bench", "mind", "--only", "mind.fault.zram"]));
    let mut made = Vec::new();
    eventually("it has made both, or ends", || {
        made = made_by(running.pid());
        made.len() == 2 || !running.is_alive()
    });
    running.kill();
    if made.len() < 2 {
        return eprintln!("skipped: this machine allows no zram device, or no memory cgroup");
    }
    let group = format!("farmem-bench-{}", running.pid());
    assert!(made.iter().any(|path| path.ends_with(&group)), "{made:?}");
    eventually("both are gone", || !made.iter().any(|path| path.exists()));
}

/// Only requested rows are measured. The counts of the switch's entries need no page fault.
#[test]
fn mind_counts_entries_alone() {
    let ids = ids(
        &run(&["bench", "mind", "--quick", "--json", "--only", "mind.directory.entries.arrays"]).json(),
        "mind",
    );
    let expected = [16, 32, 64, 128].map(|vmas| format!("mind.directory.entries.arrays.{vmas}"));
    assert_eq!(ids, expected);
}
