//! `fat.keyed.*`: the paper's own comparison over RDMA (Fat-B+Tree III-D, V-B): a keyed READ and the rest of
//! its path, against READs from the root, over one reliable connection through the switch. Path of all rows:
//! relayed.

use super::alternation::{Bench, Budget, Figures};
use super::store::LookupPath;
use crate::{Plan, Row, rate_row, to_f64};
use farmem::Error;
use farmem::blink_tree::Extent;

/// Keys of the measured tree.
const KEYS: u64 = 1_000_000;

/// Returns true for the tree on which keyed READs are measured.
pub(super) const fn is_for(plan: &Plan, keys: u64) -> bool {
    plan.quick || keys == KEYS
}

/// Measures both paths, alternating, on one tree.
pub(super) fn measure(bench: &mut Bench, keys: u64, draw: &[u64], effort: Budget) -> Result<Vec<Row>, Error> {
    let paths = [LookupPath::Keyed, LookupPath::Through];
    let section = bench.store.section(Extent::default())?;
    let figures = bench.compare(&paths, &section, draw, effort, false)?;
    let [keyed, through] = figures.as_slice() else { unreachable!("two paths were measured") };
    let of = |what: &str| format!("fat.keyed.{keys}.relayed.{what}");
    let n = keyed.latency.len();
    let p99 = |figures: &Figures| figures.latency.quantile(0.99);
    let mut rows = vec![
        keyed.latency.row(&of("latency"), Some(&through.latency)),
        Row::figure(of("p99"), "ns", p99(keyed), n).beside(Some(p99(through))),
        rate_row(&of("throughput"), &mut keyed.alone.clone(), &mut through.alone.clone(), n),
        Row::figure(of("round_trips"), "per operation", mean(&keyed.reads), n)
            .beside(Some(mean(&through.reads))),
    ];
    for (what, share) in [("p50", 0.50), ("p90", 0.90), ("p99", 0.99), ("most", 1.0)] {
        let at = |figures: &Figures| quantile(&figures.reads, share);
        let row = Row::figure(of(&format!("round_trips.{what}")), "per operation", at(keyed), n);
        rows.push(row.beside(Some(at(through))));
    }
    Ok(rows)
}

fn mean(reads: &[u64]) -> f64 {
    to_f64(reads.iter().sum::<u64>()) / to_f64(reads.len() as u64)
}

/// Returns the smallest number that this share of the numbers does not exceed.
fn quantile(reads: &[u64], share: f64) -> f64 {
    let mut sorted = reads.to_vec();
    sorted.sort_unstable();
    let below =
        sorted.iter().zip(1..).find(|(_, rank)| f64::from(*rank) >= share * to_f64(sorted.len() as u64));
    to_f64(below.map_or(0, |(reads, _)| *reads))
}
