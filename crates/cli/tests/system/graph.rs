//! Tests of graph commands on a rack of processes: the same answers as in local memory, no remains, and
//! results that survive Ctrl-C.

use crate::incarnation::Roles;
use crate::process::{Dir, Running, eventually, farmem, run, signal};
use crate::rack::Description;
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;

/// Generates a graph of 2,048 vertices in the directory of `description`.
fn generated(description: &Description, flags: &[&str]) -> String {
    let path = description.dir().path().join("g.fmg").display().to_string();
    let arguments = ["graph", "generate", "kronecker", &path, "--scale", "11", "--ratio", "35", "--json"];
    let said = run(&[&arguments[..], flags].concat()).json();
    assert_eq!((&said["vertices"], &said["file"]), (&2048.into(), &path.as_str().into()));
    path
}

#[test]
fn every_algorithm_runs_over_a_rack_and_leaves_nothing() {
    let description = Description::new("graph", "udp");
    let path = generated(&description, &["--symmetrize", "--weighted"]);
    let mut up = description.up();
    let file = description.file();
    for algorithm in ["pagerank", "bfs", "radii", "bc", "components", "sssp", "triangles"] {
        let arguments = ["graph", algorithm, &path, "--rack", &file, "--local", "15%", "--check", "--json"];
        let said = run(&arguments).json();
        let told = (&said["algorithm"], &said["checked"], &said["wrong_answers"], &said["transport"]);
        assert_eq!(told, (&algorithm.into(), &true.into(), &0.into(), &"udp".into()), "{said}");
        let count = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{said}"));
        assert!(count(&said["traffic"]["bytes_here_max"]) <= count(&said["local_limit"]), "{said}");
        assert!(count(&said["traffic"]["bytes_fetched"]) > 0, "{said}");
        assert_eq!(description.overview()["vmas"], Value::Array(vec![]), "its memory is freed");
    }
    run(&["graph", "bfs", &path, "--rack", &file, "--source", "2048"]).refuses(&["there is no vertex 2048"]);
    assert_eq!(description.overview()["vmas"], Value::Array(vec![]), "also when it was refused");
    assert!(up.is_whole());
    assert_eq!(up.stop().code, Some(0));
}

/// The memory nodes are killed while an algorithm runs. The command ends with 2 and names the reason and the
/// node.
#[test]
fn a_node_that_dies_is_named() {
    let mut roles = Roles::of(Description::new("graph-dies", "udp"));
    let path = generated(&roles.description, &[]);
    let saved = roles.description.dir().path().join("checkpoint");
    let (checkpoint, file) = (saved.display().to_string(), roles.description.file());
    let arguments = ["graph", "pagerank", &path, "--rack", &file, "--tolerance", "0", "--rounds", "1000000"];
    let more = ["--local", "64KiB", "--checkpoint", &checkpoint];
    let mut running = Running::start(farmem(&with(&arguments, &more)));
    eventually("a round is over", || saved.exists());
    [1, 2].into_iter().for_each(|node| roles.kill_node(node));
    let ended = running.ended();
    ended.refuses(&["memory node node"]);
}

/// With `--output /dev/stdout > file`, the results and the report are in the same file, in this order.
#[test]
fn an_output_that_is_standard_output_goes_on_there() {
    let dir = Dir::new("graph-stdout");
    let graph = dir.file("g.txt", "0 1 # an edge\n1 2\n");
    let path = dir.path().join("found");
    let file = File::create(&path).unwrap();
    let before = file.metadata().unwrap().ino();
    let mut command = farmem(&["graph", "bfs", &graph, "--output", "/dev/stdout"]);
    assert!(command.stdout(file).status().unwrap().success());
    let found = fs::read_to_string(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().ino(), before);
    let mut lines = found.lines();
    let three: Vec<&str> = lines.by_ref().take(3).collect();
    assert!(three.iter().all(|line| line.starts_with(char::is_numeric)), "{found}");
    assert!(lines.next().is_some(), "the report is behind them: {found}");
}

/// Ctrl-C during the comparison keeps the answer, reports no difference, and keeps the checkpoint.
#[test]
fn an_interrupted_check_is_no_difference() {
    let description = Description::new("graph-check", "udp");
    let path = generated(&description, &[]);
    let at = |name: &str| description.dir().path().join(name);
    let (found, saved) = (at("found"), at("checkpoint"));
    let (output, checkpoint) = (found.display().to_string(), saved.display().to_string());
    let mut up = description.up();
    let file = description.file();
    let arguments =
        ["graph", "pagerank", &path, "--rack", &file, "--tolerance", "0", "--rounds", "1500", "--json"];
    let more = ["--check", "--output", &output, "--checkpoint", &checkpoint];
    let mut running = Running::start(farmem(&with(&arguments, &more)));
    eventually("the answer is written", || found.exists());
    signal(running.pid(), "INT");
    let ended = running.ended();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    let said: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended:?}"));
    let told = (&said["stopped"], &said["check_stopped"], &said["checked"], &said["wrong_answers"]);
    assert_eq!(told, (&false.into(), &true.into(), &false.into(), &0.into()), "{said}");
    assert_eq!(said["answer"]["rounds"], 1500);
    assert!(saved.exists(), "the check may be wanted again");
    assert_eq!(description.overview()["vmas"], Value::Array(vec![]), "its memory is freed");
    assert!(up.is_whole());
    assert_eq!(up.stop().code, Some(0));
}

fn with<'a>(arguments: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [arguments, more].concat()
}

/// Ctrl-C during a long run frees the memory and keeps the checkpoint and earlier answers. The next run
/// resumes, and its result is bit-identical to an uninterrupted run.
#[test]
fn an_interrupted_run_is_resumed() {
    let description = Description::new("graph-resumed", "udp");
    let path = generated(&description, &[]);
    let at = |name: &str| description.dir().path().join(name);
    let (found, saved) = (at("found"), at("checkpoint"));
    let (output, checkpoint) = (found.display().to_string(), saved.display().to_string());
    fs::write(&found, "of an earlier run").unwrap();
    let mut up = description.up();
    let file = description.file();
    let arguments = ["graph", "pagerank", &path, "--rack", &file, "--tolerance", "0", "--json", "--rounds"];
    let mut running = Running::start(farmem(&with(
        &arguments,
        &["1000000", "--checkpoint", &checkpoint, "--output", &output],
    )));
    eventually("a round is kept", || saved.exists());
    signal(running.pid(), "INT");
    let ended = running.ended();
    assert_eq!(ended.code, Some(130), "{ended:?}");
    let said: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended:?}"));
    assert_eq!((&said["stopped"], &said["resumed_from"]), (&true.into(), &Value::Null));
    assert_eq!(description.overview()["vmas"], Value::Array(vec![]), "its memory is freed");
    let left = fs::read_to_string(&found).unwrap();
    assert_eq!(left, "of an earlier run", "an unfinished answer takes the place of none");
    let before = said["answer"]["rounds"].as_u64().unwrap();
    let rounds = (before + 2).to_string();
    let resumed = run(&with(&arguments, &[&rounds, "--checkpoint", &checkpoint])).json();
    assert_eq!((&resumed["resumed_from"], &resumed["stopped"]), (&before.into(), &false.into()));
    assert!(!saved.exists(), "the answer is there");
    let whole = run(&with(&arguments, &[&rounds])).json();
    assert_eq!((&resumed["sum"], &resumed["answer"]), (&whole["sum"], &whole["answer"]));
    assert!(up.is_whole());
    assert_eq!(up.stop().code, Some(0));
}
