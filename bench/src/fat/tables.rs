//! `fat.encode.*`: the range tables of a fat root of 600 ranges over three kinds of keys: entries of the
//! fullest stage compared with the paper's bound, and the encoding time (Fat-B+Tree III-B, algorithm 1).

use crate::{Row, Samples, to_f64};
use farmem_index::{Child, RANGES_DEFAULT, Range, RangeTables};
use farmem_machine::Rng;
use farmem_wire::VirtAddr;
use std::collections::BTreeSet;

const SEED: u64 = 600;

/// Returns the starts of the ranges.
fn starts(kind: &str) -> BTreeSet<u64> {
    let count = RANGES_DEFAULT;
    let mut rng = Rng::from_number(SEED);
    let mut starts = BTreeSet::from([0]);
    while starts.len() < count {
        let n = starts.len() as u64;
        starts.insert(match kind {
            // Random keys.
            "uniform" => rng.next_u64(),
            // Sequential keys.
            "dense" => n * 24,
            // Ten tables, each with its own key prefix.
            _ => (n % 10) << 48 | rng.next_u64() >> 40,
        });
    }
    starts
}

fn ranges(kind: &str) -> Vec<Range> {
    let starts: Vec<u64> = starts(kind).into_iter().collect();
    let ends = starts.iter().skip(1).map(|next| next - 1).chain([u64::MAX]);
    let child = |n: u64| Child { addr: VirtAddr(256 * (n + 1)), level: 1 };
    starts
        .iter()
        .zip(ends)
        .zip(0..)
        .map(|((&first, last), n)| Range { first, last, child: child(n) })
        .collect()
}

/// Returns the rows, with the time of `times` encodings.
pub(super) fn measure(times: u32) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut build = Samples::new();
    for kind in ["uniform", "dense", "clustered"] {
        let ranges = ranges(kind);
        let made = || RangeTables::new(&ranges).expect("ranges that follow each other are a fat root");
        let tables = made().with_default_results();
        let fullest = tables.stages().iter().map(|stage| stage.entries).max().unwrap_or(0);
        let id = format!("fat.encode.{kind}.entries");
        let bound = 2 * ranges.len() as u64;
        rows.push(
            Row::figure(id, "entries", to_f64(fullest as u64), ranges.len() as u64)
                .beside(Some(to_f64(bound))),
        );
        for _ in 0..times {
            build
                .time(|| {
                    std::hint::black_box(made());
                    Ok::<(), core::convert::Infallible>(())
                })
                .unwrap_or_else(|never| match never {});
        }
    }
    rows.push(build.row("fat.encode.build", None));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The encoding is deterministic: the entries of the fullest stage match the published defaults.
    #[test]
    fn the_entries_of_each_kind() {
        let rows = measure(1);
        let of = |kind: &str| {
            let id = format!("fat.encode.{kind}.entries");
            rows.iter().find(|row| row.id == id).and_then(|row| row.value)
        };
        assert_eq!([of("uniform"), of("dense"), of("clustered")], [Some(1198.0), Some(599.0), Some(966.0)]);
    }
}
