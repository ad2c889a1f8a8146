//! `pulse.engine.*`: how fast one core traverses, beside how fast it reads lines and how fast it traverses one by one.

use crate::Row;
use farmem_engine::yardstick::{self, Table, btree_lookups, hash_hops, line_limit};
use std::io;
use std::time::Duration;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Bytes of the table, a power of two.
    pub(super) table: u64,
    /// Rounds of all ways in turn.
    pub(super) rounds: usize,
}

/// Ways of the engine that are reported.
const HASH: &str = "hash.hops";
const BTREE: &str = "btree.lookups";
const WAYS: [&str; 3] = ["", ".one_at_a_time", ".interpreter"];
/// The way in which each read waits for the one before.
const DEPENDENT: &str = "lines.dependent";

const IDS: [&str; 8] = [
    "pulse.engine.hash.hops",
    "pulse.engine.hash.interleaving",
    "pulse.engine.hash.one_at_a_time",
    "pulse.engine.hash.interpreter",
    "pulse.engine.lines",
    "pulse.engine.btree.lookups",
    "pulse.engine.btree.one_at_a_time",
    "pulse.engine.btree.interpreter",
];

/// The rows; all of them absent when there is no memory for the table.
pub(super) fn measure(effort: Effort) -> Vec<Row> {
    let len = usize::try_from(effort.table).unwrap_or(usize::MAX);
    match Table::new(len) {
        Ok(table) => on_table(table, effort.rounds),
        Err(error) => absent(effort.table, &error),
    }
}

/// The time of a hop of one traversal at a time.
pub(super) fn hop(rows: &[Row]) -> Option<Duration> {
    let per_second = rows.iter().find(|row| row.id == IDS[2])?.value?;
    Some(Duration::from_secs_f64(1.0 / per_second))
}

fn absent(bytes: u64, error: &io::Error) -> Vec<Row> {
    let why = format!("there is no memory for a table of {bytes} bytes: {error}");
    IDS.map(|id| Row::absent(id, "1/s", &*why)).into()
}

fn on_table(mut table: Table, rounds: usize) -> Vec<Row> {
    let wanted = |name: &str| {
        name.starts_with("lines.")
            || WAYS.iter().any(|way| name == [HASH, way].concat() || name == [BTREE, way].concat())
    };
    let hash = hash_hops(&mut table, rounds, wanted);
    let (_, _, btree) = btree_lookups(&mut table, rounds, wanted);
    let of = |rows: &[yardstick::Row], name: &str, way: &str| {
        yardstick::row(rows, &[name, way].concat()).cloned().expect("what is wanted is measured")
    };
    let [hops, one, interpreted] = WAYS.map(|way| of(&hash, HASH, way));
    let [lookups, tree_one, tree_interpreted] = WAYS.map(|way| of(&btree, BTREE, way));
    let limit = line_limit(&hash).expect("lines are read in some way").clone();
    let dependent = of(&hash, DEPENDENT, "");
    let rows = [
        (&hops, Some(&limit)),
        (&hops, Some(&one)),
        (&one, Some(&dependent)),
        (&interpreted, Some(&hops)),
        (&limit, None),
        (&lookups, Some(&tree_one)),
        (&tree_one, None),
        (&tree_interpreted, Some(&lookups)),
    ];
    IDS.into_iter().zip(rows).map(|(id, (way, baseline))| row(id, way, baseline)).collect()
}

/// A way's row. Its ratio is that of the same rounds, so it is not always the quotient of the two medians.
fn row(id: &str, way: &yardstick::Row, baseline: Option<&yardstick::Row>) -> Row {
    let per_second = |row: &yardstick::Row| row.p50() * 1e6;
    let slowest = way.millions_per_s.iter().copied().fold(f64::INFINITY, f64::min) * 1e6;
    Row {
        baseline: baseline.map(per_second),
        ratio: baseline.map(|baseline| way.times(baseline)),
        p50: Some(per_second(way)),
        p99: Some(slowest),
        ..Row::figure(id, "1/s", per_second(way), way.millions_per_s.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a table that fits any cache every figure is there, under its id and with what it is compared with.
    #[test]
    fn every_figure_is_there() {
        let rows = measure(Effort { table: 1 << 18, rounds: 1 });
        assert_eq!(rows.iter().map(|row| &*row.id).collect::<Vec<_>>(), IDS);
        for row in &rows {
            assert!(row.value.is_some_and(|rate| rate > 0.0) && row.why.is_none(), "{row:?}");
            let alone = ["pulse.engine.lines", "pulse.engine.btree.one_at_a_time"].contains(&&*row.id);
            assert_eq!(row.ratio.is_none(), alone, "{row:?}");
        }
        assert!(hop(&rows).is_some_and(|hop| hop < Duration::from_millis(1)));
    }

    /// No memory is a reason, not an end.
    #[test]
    fn without_memory_it_says_why() {
        let rows = measure(Effort { table: 1 << 60, rounds: 1 });
        assert_eq!(rows.len(), IDS.len());
        assert!(rows.iter().all(|row| row.value.is_none() && row.why.is_some()));
        assert_eq!(hop(&rows), None);
    }
}
