//! A real graph: Debian's packages and their dependencies, an excerpt of required and important ones.

use farmem_graph::algorithms::{Components, NONE, PageRank, bfs};
use farmem_graph::load::{read, read_edge_list};
use farmem_graph::{Csr, Shape};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn excerpt() -> Csr {
    let path = repository().join("testdata/graphs/debian.txt");
    read(&path, Shape::default(), &mut |_, _| true).unwrap()
}

/// The script turns the index into the committed graph; every edge is a dependency in the index.
#[test]
fn the_script_makes_the_graph_of_an_index() {
    let index = File::open(repository().join("testdata/graphs/debian-index.txt")).unwrap();
    let mut script = Command::new(repository().join("scripts/package-graph"));
    let output = script.arg("-").stdin(Stdio::from(index)).stderr(Stdio::inherit()).output().unwrap();
    if output.status.code() == Some(3) {
        eprintln!("skipped: python3 absent");
        return;
    }
    assert!(output.status.success());
    let made = read_edge_list(output.stdout.as_slice()).unwrap().build(Shape::default()).unwrap();
    assert_eq!(made, excerpt());
}

/// The most depended-on package has the highest rank, and its installation needs few others.
#[test]
fn most_depends_on_libc() {
    let csr = excerpt();
    let graph = csr.graph().unwrap();
    let incoming = graph.incoming().unwrap();
    let libc = (0..graph.vertices()).max_by_key(|&vertex| incoming.degree(vertex)).unwrap();
    let mut ranks = PageRank::new(graph.vertices());
    (0..50).for_each(|_| ranks.round(&graph).unwrap());
    let above = ranks.ranks().iter().filter(|&&rank| rank > ranks.ranks()[libc as usize]).count();
    assert!(above < 5, "{above} packages rank above the one that most depend on");
    let needed = bfs(&graph, libc, &mut |_, _| true).unwrap();
    assert_eq!(needed.reached, needed.levels.iter().filter(|&&level| level != NONE).count() as u64);
    assert!(needed.reached < u64::from(graph.vertices()) / 4, "{} are needed for it", needed.reached);
    let mut components = Components::new(graph.vertices());
    while !components.changed().is_empty() {
        components.round(&graph).unwrap();
    }
    assert!(components.sizes().1 > u64::from(graph.vertices()) * 9 / 10, "nearly all are connected");
}
