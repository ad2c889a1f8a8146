//! Graph files that networkx, scipy, polars and pyarrow wrote, where `scripts/setup` installed them.

use farmem_graph::load::read;
use farmem_graph::{Csr, Edges, Shape};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const VERTICES: u32 = 40;
const DIRECTED: Shape = Shape { symmetric: false, simple: false };

/// Returns the edges of `written_by_others.py`, in order.
fn edges() -> BTreeSet<(u32, u32)> {
    let targets = |n: u32| [(n * n + 3 * n + 1) % VERTICES, (7 * n + 5) % VERTICES];
    (0..VERTICES).flat_map(|from| targets(from).map(|to| (from, to))).collect()
}

fn graph(weighted: bool, shape: Shape) -> Csr {
    let list: Vec<(u32, u32)> = edges().into_iter().collect();
    let weights = weighted.then(|| list.iter().map(|(from, to)| (from + to) % 7 + 1).collect());
    Edges { vertices: VERTICES, list, weights }.build(shape).unwrap()
}

/// Each library's file is the same graph. Text in another encoding is refused with a command that converts it.
#[test]
fn files_of_other_libraries() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    let mut python = Command::new(here.join("../../.venv/bin/python"));
    let written = python.arg(here.join("tests/written_by_others.py")).arg(dir.path()).status();
    match written.map(|status| status.code()) {
        Ok(Some(0)) => {}
        Ok(Some(3)) | Err(_) => {
            return eprintln!("skipped: networkx, scipy, polars or pyarrow absent in .venv (scripts/setup)");
        }
        other => panic!("{other:?}"),
    }
    let read = |name: &str, shape| read(&dir.path().join(name), shape, &mut |_, _| true);
    let symmetric = Shape { symmetric: true, ..DIRECTED };
    let simple = Shape { simple: true, ..symmetric };
    for (name, weighted, shape, expected) in [
        ("networkx.txt", false, DIRECTED, DIRECTED),
        ("networkx-weighted.txt", true, DIRECTED, DIRECTED),
        ("bom.txt", false, DIRECTED, DIRECTED),
        ("scipy-pattern.mtx", false, DIRECTED, DIRECTED),
        ("scipy-integer.mtx", true, DIRECTED, DIRECTED),
        ("scipy-real.mtx", true, DIRECTED, DIRECTED),
        ("networkx.txt", false, simple, simple),
        // The file itself says that it has one half of the edges.
        ("scipy-symmetric.mtx", false, Shape { simple: true, ..DIRECTED }, simple),
        ("polars-brotli.parquet", true, DIRECTED, DIRECTED),
        ("polars-lz4.parquet", true, DIRECTED, DIRECTED),
        ("pyarrow-brotli.parquet", true, DIRECTED, DIRECTED),
        ("pyarrow-lz4.parquet", true, DIRECTED, DIRECTED),
    ] {
        let found = read(name, shape).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert_eq!(found, graph(weighted, expected), "{name}");
    }
    let refused = read("utf-16.txt", DIRECTED).unwrap_err().to_string();
    assert_eq!(
        refused,
        "the file is UTF-16 text, expected UTF-8: convert it first: iconv -f UTF-16 -t UTF-8"
    );
}
