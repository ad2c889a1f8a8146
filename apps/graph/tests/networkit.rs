//! Every algorithm compared with NetworKit's independent implementation, which `scripts/setup` installs.

use farmem_graph::algorithms::{
    Components, NONE, PageRank, UNREACHED, betweenness, bfs, radii, sample, sssp, triangles,
};
use farmem_graph::generate::{Kind, generate};
use farmem_graph::{Csr, Shape};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Size of a sample: all vertices with outgoing edges, so that betweenness is complete.
const SAMPLE: usize = 64;
const SEED: u64 = 7;

/// A line of NetworKit's results: one value per vertex, `None` for none.
type Found = BTreeMap<String, Vec<Option<f64>>>;

/// Runs NetworKit; returns `None`, with the reason on stderr, where it is absent.
fn networkit(csr: &Csr, source: u32, sample: &[u32]) -> Option<Found> {
    let graph = csr.graph().unwrap();
    let mut edges = String::new();
    for vertex in 0..graph.vertices() {
        for (target, weight) in graph.out().weighted(vertex) {
            writeln!(edges, "{vertex} {target} {weight}").unwrap();
        }
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let installed = here.join("../../.venv/bin/python");
    let python = if installed.exists() { installed } else { "python3".into() };
    let mut command = Command::new(python);
    command.arg(here.join("tests/by_networkit.py"));
    command.args([graph.vertices(), source].iter().chain(sample).map(u32::to_string));
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: python3 absent");
        return None;
    };
    // A process that ends without reading reports the reason by its exit code.
    let _closed = child.stdin.take().unwrap().write_all(edges.as_bytes());
    let output = child.wait_with_output().unwrap();
    if output.status.code() == Some(3) {
        eprintln!("skipped: NetworKit absent");
        return None;
    }
    assert!(output.status.success(), "{:?}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap().to_owned();
        (name, words.map(|word| (word != "-").then(|| word.parse().unwrap())).collect())
    });
    Some(lines.collect())
}

fn whole<T: Copy + PartialEq>(values: &[T], none: T, number: impl Fn(T) -> f64) -> Vec<Option<f64>> {
    values.iter().map(|&value| (value != none).then(|| number(value))).collect()
}

/// NetworKit sums fractions in a different order and iterates ranks to a fixed point.
fn close(ours: &[f64], theirs: &[Option<f64>]) -> bool {
    let near = |(a, b): (&f64, &Option<f64>)| b.is_some_and(|b| (a - b).abs() <= 1e-9 * b.abs().max(1e-3));
    ours.len() == theirs.len() && ours.iter().zip(theirs).all(near)
}

/// Directed and symmetric graphs of 64 and 512 vertices, Kronecker and uniform, with weights. Levels,
/// distances, radii, components and triangles are equal. Ranks and, with all vertices in the sample,
/// betweenness agree to nine digits.
/// ranks and, where all vertices are in the sample, betweenness the same to nine digits.
#[test]
fn networkit_finds_the_same() {
    for (kind, scale, ratio, symmetric) in [
        (Kind::Kronecker, 6, 4, false),
        (Kind::Kronecker, 6, 3, true),
        (Kind::Uniform, 6, 2, false),
        (Kind::Kronecker, 9, 8, false),
        (Kind::Uniform, 9, 3, true),
    ] {
        let of = format!("{kind:?} {scale} {ratio} {symmetric}");
        let csr = generate(kind, scale, ratio, SEED, true).build(Shape { symmetric, simple: true }).unwrap();
        let graph = csr.graph().unwrap();
        let sources = sample(&graph, SAMPLE, SEED);
        let source = sources[0];
        let Some(theirs) = networkit(&csr, source, &sources) else { return };
        let on = &mut |_, _| true;
        let levels = bfs(&graph, source, on).unwrap().levels;
        assert_eq!(whole(&levels, NONE, f64::from), theirs["bfs"], "{of}");
        let distances = sssp(&graph, source, on).unwrap().distances;
        #[expect(clippy::cast_precision_loss, reason = "paths of 512 vertices weigh little")]
        let distances = whole(&distances, UNREACHED, |far| far as f64);
        assert_eq!(distances, theirs["sssp"], "{of}");
        let found = radii(&graph, &sources, on).unwrap().radii;
        assert_eq!(whole(&found, NONE, f64::from), theirs["radii"], "{of}");
        let mut components = Components::new(graph.vertices());
        while !components.changed().is_empty() {
            components.round(&graph).unwrap();
        }
        assert_eq!(whole(components.labels(), NONE, f64::from), theirs["components"], "{of}");
        let mut ranks = PageRank::new(graph.vertices());
        (0..200).for_each(|_| ranks.round(&graph).unwrap());
        assert!(close(ranks.ranks(), &theirs["pagerank"]), "{of}: {:?} {theirs:?}", ranks.ranks());
        if graph.vertices() as usize <= SAMPLE {
            let sums = betweenness(&graph, &sources, on).unwrap();
            assert!(close(&sums, &theirs["bc"]), "{of}: {sums:?} {:?}", theirs["bc"]);
        }
        if symmetric {
            #[expect(clippy::cast_precision_loss, reason = "few triangles")]
            let count = triangles(&graph, on).unwrap() as f64;
            assert_eq!(theirs["triangles"], [Some(count)], "{of}");
        }
    }
}
