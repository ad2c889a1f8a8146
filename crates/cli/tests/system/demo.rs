//! Tests of `farmem demo`: a rack of processes over UDP, with exact counts.

use crate::process::{Dir, Running, eventually, farmem, processes_with, run, run_command, signal};
use crate::rack::Description;
use farmem::hash_table::{HashTable, Key, Spread, Step};
use farmem::{ClientOptions, Rack, VirtAddr};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const WORDS: usize = 3000;

fn word(number: usize) -> String {
    format!("word{number}")
}

/// Returns the number of chain nodes that all look-ups visit together, from a table of the same words in an
/// embedded rack.
fn nodes_visited(spread: Spread) -> u64 {
    let mut client = Rack::embedded_with(4, 16 << 20).unwrap().client("model").unwrap();
    let (entries, key) = (WORDS as u64, |n| Key::of(word(n).as_bytes()));
    let mut table = HashTable::create(&mut client, entries, entries / 4, spread).unwrap();
    table.load(&mut client, (0..WORDS).map(|n| (key(n), [0; 40])), &mut |_, _| {}).unwrap();
    let mut visited = 0;
    for n in 0..WORDS {
        let mut addr: VirtAddr = table.bucket(key(n));
        let mut node = [0; farmem::hash_table::NODE_LEN];
        loop {
            client.read(addr, &mut node).unwrap();
            visited += 1;
            match HashTable::step(key(n), &node) {
                Step::Next(next) => addr = next,
                Step::Found(_) => break,
                Step::Missing => panic!("word {n} was loaded"),
            }
        }
    }
    visited
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Both methods find every word, wherever its chain lies. A READ is one request, one node and two packets. A
/// traversal is one round trip for any number of nodes, and shares its packets with at most a full batch.
/// Only retransmissions increase the packet counts.
#[test]
fn the_counts_are_exact() {
    let dir = Dir::new("demo");
    let words: Vec<String> = (0..WORDS + 50).map(word).collect();
    let file = dir.file("words", &(words.join("\n\n") + "\n" + &words[..100].join("\n")));
    let shown = run(&["demo", "--json", "--words", &file, "--limit", &WORDS.to_string()]).json();
    assert_eq!(shown["words"], WORDS, "each word once, empty lines are none");
    assert_eq!((&shown["wrong_answers"], &shown["nodes"]), (&0.into(), &4.into()));
    assert_eq!((&shown["source"], &shown["transport"]), (&file.as_str().into(), &"udp".into()));
    let rows = shown["rows"].as_array().unwrap();
    let kinds: Vec<_> =
        rows.iter().map(|r| (r["chains"].as_str().unwrap(), r["method"].as_str().unwrap())).collect();
    assert_eq!(
        kinds,
        [
            ("partitioned", "READs"),
            ("partitioned", "traversals"),
            ("scattered", "READs"),
            ("scattered", "traversals")
        ]
    );
    for (row, spread) in
        rows.iter().zip([Spread::Partitioned, Spread::Partitioned, Spread::Scattered, Spread::Scattered])
    {
        let (lookups, visited) = (WORDS as u64, nodes_visited(spread));
        let by_reads = row["method"] == "READs";
        assert_eq!(number(&row["lookups"]), lookups);
        assert_eq!(number(&row["requests"]), if by_reads { visited } else { lookups }, "{row}");
        let together = if by_reads { 1 } else { u64::from(ClientOptions::default().pairs_max.get()) };
        assert!(number(&row["packets"]) >= 2 * number(&row["requests"]).div_ceil(together), "{row}");
        let per_lookup = visited as f64 / lookups as f64;
        assert_eq!(row["nodes_visited_per_lookup"], per_lookup, "{row}");
        assert_eq!(row["round_trips_per_lookup"], if by_reads { per_lookup } else { 1.0 }, "{row}");
        assert!(number(&row["latency_p50_ns"]) <= number(&row["latency_p99_ns"]), "{row}");
    }
}

/// The three applications follow on the same rack, and the demo checks all their answers.
#[test]
fn the_applications_are_shown() {
    let shown = run(&["demo", "--json", "--limit", "300"]).json();
    let applications = shown["applications"].as_array().unwrap();
    let names: Vec<_> = applications.iter().map(|report| report["application"].as_str().unwrap()).collect();
    assert_eq!(names, ["webservice", "tablestore", "timeseries"]);
    for report in applications {
        assert_eq!((&report["checked"], &report["wrong_answers"]), (&true.into(), &0.into()), "{report}");
        assert_eq!((&report["operations"], &report["transport"]), (&100.into(), &"udp".into()));
    }
}

/// Without a dictionary, the words are generated, and a note says so.
#[test]
fn the_words_have_a_source() {
    let ended = run(&["demo", "--json", "--limit", "200"]);
    let shown = ended.json();
    let dictionary = "/usr/share/dict/american-english-insane";
    if Path::new(dictionary).exists() {
        assert_eq!(shown["source"], dictionary);
    } else {
        assert_eq!(shown["source"], "a generated list");
        assert!(ended.stderr.contains("make setup"), "{ended:?}");
    }
    assert_eq!((&shown["words"], &shown["wrong_answers"]), (&200.into(), &0.into()));
}

/// The text output is a table with the verdict below it.
#[test]
fn the_table_is_for_people() {
    let ended = run(&["demo", "--limit", "50"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for words in [
        "50 words from",
        "on 4 memory nodes, transport udp",
        "scattered, traversals",
        "every answer was right",
    ] {
        assert!(ended.stdout.contains(words), "{words:?} is not in {}", ended.stdout);
    }
}

#[test]
fn words_that_cannot_be_had_are_refused() {
    let dir = Dir::new("words");
    let (empty, blank) = (dir.file("empty", ""), dir.file("blank", "\n\n\n"));
    run(&["demo", "--words", "/no/such/words"])
        .refuses(&["cannot read /no/such/words", "name a file with one word per line"]);
    run(&["demo", "--words", "/"]).refuses(&["cannot read /", "one word per line"]);
    for file in [empty, blank] {
        run(&["demo", "--words", &file]).refuses(&[
            &file,
            "holds no word",
            "name a file with one word per line",
        ]);
    }
    for limit in ["0", "-1", "many"] {
        assert_eq!(run(&["demo", &format!("--limit={limit}")]).code, Some(2), "{limit}");
    }
    run_command({
        let mut command = farmem(&["demo", "--limit", "1"]);
        command.env("TMPDIR", "/no/such/directory");
        command
    })
    .refuses(&["cannot make /no/such/directory/", "TMPDIR"]);
}

/// On a running rack, the demo works the same and removes its tables.
fn on_a_running_rack(transport: &'static str) {
    let description = Description::new("demo-rack", transport).with_nodes(3);
    let mut up = description.up();
    let file = description.file();
    for _ in 0..2 {
        let shown = run(&["demo", "--json", "--limit", "300", "--rack", &file]).json();
        assert_eq!((&shown["wrong_answers"], &shown["nodes"]), (&0.into(), &3.into()));
        assert_eq!(shown["transport"], transport);
        assert_eq!(shown["rows"][3]["round_trips_per_lookup"], 1.0);
    }
    assert_eq!(description.overview()["vmas"], Value::Array(vec![]), "its tables are freed");
    assert!(up.is_whole());
    assert_eq!(up.stop().code, Some(0));
}

#[test]
fn on_a_running_rack_over_udp() {
    on_a_running_rack("udp");
}

#[test]
fn on_a_running_rack_over_shared_memory() {
    on_a_running_rack("shm");
}

/// A rack that is too small for the table refuses it, and keeps no part of it.
#[test]
fn a_rack_too_small_keeps_nothing() {
    let description = Description::new("demo-small", "udp");
    let up = description.up();
    let mut client = description.client("neighbour");
    let fill = client.allocate_on(16 << 20, farmem::NodeId(2)).unwrap();
    run(&["demo", "--limit", "300", "--rack", &description.file()])
        .refuses(&["of 1 nodes asked, none has that", "ask for less"]);
    let overview = description.overview();
    let vmas = overview["vmas"].as_array().unwrap();
    assert_eq!(vmas.len(), 1, "{vmas:?}");
    assert_eq!(vmas[0]["base"], fill.base.0);
    assert_eq!(up.stop().code, Some(0));
}

/// Ctrl-C during the demo leaves no process and no file.
#[test]
fn an_interrupted_demonstration_leaves_nothing() {
    let dir = Dir::new("interrupted");
    let mut command = farmem(&["demo"]);
    command.env("TMPDIR", dir.path());
    let mut demo = Running::start(command);
    let marker = dir.path().to_str().unwrap().to_owned();
    eventually("the four memory nodes serve", || processes_with(&marker).len() == 6);
    signal(demo.pid(), "INT");
    assert_eq!(demo.ended().code, Some(130));
    eventually("the roles end", || processes_with(&marker).is_empty());
    assert_eq!(dir.names(), [""; 0]);
}

/// The next demo removes the remains of a killed one. Anything else stays: directories of a running process,
/// and names of another form.
#[test]
fn leftovers_of_a_killed_demo_are_removed() {
    let mut running = Running::start(farmem(&["demo"]));
    let name = format!("farmem-demo-{}", running.pid());
    let left = std::env::temp_dir().join(&name);
    eventually("its nodes serve", || processes_with(&name).len() == 6);
    assert!(left.is_dir(), "{left:?}");
    let others = [format!("{name}x"), format!("farmem-demo-{}", std::process::id())];
    let others = others.map(|name| PathBuf::from("/dev/shm").join(name));
    others.iter().for_each(|path| fs::create_dir(path).unwrap());
    running.kill();
    // The roles end by themselves a moment later.
    eventually("it is removed", || {
        run(&["demo", "--limit", "10"]);
        !left.exists()
    });
    assert!(others.iter().all(|path| path.is_dir()), "{others:?}");
    others.iter().for_each(|path| fs::remove_dir(path).unwrap());
}

/// When another process owns CPU 0, the rack stays on its permitted CPU.
#[test]
fn a_cpu_set_without_cpu_0_is_respected() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let mut command = std::process::Command::new("taskset");
    command.args([
        "-c",
        &(cpus - 1).to_string(),
        env!("CARGO_BIN_EXE_farmem"),
        "demo",
        "--limit",
        "20",
        "--json",
    ]);
    if cpus == 1 || std::process::Command::new("taskset").arg("--version").output().is_err() {
        eprintln!("SKIPPED: CPU sets: needs two CPUs and taskset (Debian: util-linux)");
        return;
    }
    assert_eq!(run_command(command).json()["wrong_answers"], 0);
}
