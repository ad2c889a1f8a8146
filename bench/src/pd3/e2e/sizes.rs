//! `pd3.misses.P`, `pd3.local.P` and `pd3.zone.size.N`: the hash map with P percent of its items local and
//! READs one by one (PD3, figure 2), with a DPU and P percent local (figures 21 and 22), and with a DPU and
//! loading zones of several sizes (figures 23 and 24). The rows give requests per second at the fastest pace
//! at which nearly all items were ready, and the time of a request at that pace.

use super::local_items::LocalItems;
use super::store::Kind;
use super::{Bench, DpuResults, Draw, LEAD, Size, VariantCosts, rate, times};
use crate::samples::median;
use crate::{Plan, Row, to_f64};
use farmem::Error;

/// Percentages of local items.
const HERE: [usize; 4] = [50, 25, 10, 1];
/// Percentages of local items beside a DPU.
const LOCAL: [usize; 4] = [1, 5, 10, 25];
/// Items of the zones.
const ZONES: [usize; 4] = [512, 1024, 2048, 4096];
/// Fraction of the usual requests: these wait for far memory one by one.
const PART: usize = 8;

/// Returns the row ids.
#[cfg(test)]
pub(super) fn ids() -> Vec<String> {
    let below = |id: &str, rows: &[&str]| rows.iter().map(|row| format!("{id}{row}")).collect::<Vec<_>>();
    let misses = HERE.iter().map(|percent| format!("pd3.misses.{percent}"));
    let locals =
        LOCAL.iter().flat_map(|percent| below(&format!("pd3.local.{percent}"), &["", ".p50", ".p99"]));
    let of_zone = ["", ".throughput", ".p50", ".p99"];
    let zones = ZONES.iter().flat_map(|items| below(&format!("pd3.zone.size.{items}"), &of_zone));
    misses.chain(locals).chain(zones).collect()
}

/// Returns true when any of the rows is selected.
pub(super) fn are_wanted(plan: &Plan) -> bool {
    ["pd3.misses.", "pd3.local.", "pd3.zone.size."].into_iter().any(|rows| plan.wants(rows))
}

/// Measures the selected rows, after all other measurements of this bench. `path` is the time per key on its
/// path.
pub(super) fn measure(bench: &mut Bench, plan: &Plan, path: f64) -> Result<(), Error> {
    if plan.wants("pd3.misses.") {
        bench.begins("misses");
        let rows = misses(bench)?;
        bench.found(rows);
    }
    if plan.wants("pd3.local.") {
        locals(bench, path)?;
    }
    if plan.wants("pd3.zone.size.") {
        zones(bench, path)?;
    }
    Ok(())
}

/// Returns the requests per second with all items local.
fn all_local(bench: &mut Bench, requests: &[u8]) -> f64 {
    let mut all = LocalItems::all(Kind::Hash, bench.ground.size.items);
    let mut rates = [(); 3].map(|()| bench.local(&mut all, requests, None).rate());
    median(&mut rates)
}

fn locals(bench: &mut Bench, path: f64) -> Result<(), Error> {
    let before = bench.ground.size;
    let requests: Vec<Vec<u8>> = (0..3).map(|seed| before.draw(Draw::Uniform, 400 + seed)).collect();
    let local = all_local(bench, &requests[0]);
    let by_reads = by_reads(bench, &requests[0])?;
    for percent in LOCAL {
        bench.begins(&format!("{percent} % here"));
        let here = usize::try_from(before.items).expect("they fit memory") * percent / 100;
        bench.ground.size = Size { here, filled: true, ..before };
        let DpuResults { taken, wasted, .. } = bench.ahead(path, &requests)?;
        let missed: u64 = taken.iter().map(|taken| taken.missed).sum();
        let all: u64 = taken.iter().map(|taken| taken.requests).sum();
        let why = format!(
            "{here} items here; {missed} look-ups found nothing, {wasted} items were fetched for nothing"
        );
        let id = format!("pd3.local.{percent}");
        let mut rows = vec![Row { why: Some(why), ..rate(&id, &taken, all).beside(Some(local)) }];
        rows.extend(times(&id, &taken, std::slice::from_ref(&by_reads), all));
        bench.found(rows);
    }
    bench.ground.size = before;
    Ok(())
}

fn misses(bench: &mut Bench) -> Result<Vec<Row>, Error> {
    let size = bench.ground.size;
    let all_requests = bench.ground.size.draw(Draw::Uniform, 200);
    let requests = &all_requests[..all_requests.len() / PART];
    let local = all_local(bench, &all_requests);
    let mut rows = Vec::new();
    for percent in HERE {
        let count = usize::try_from(size.items).expect("they fit memory") * percent / 100;
        let mut here = LocalItems::some(Kind::Hash, count);
        let mut value = [0; 8];
        for item in (0..size.items).step_by(100 / percent) {
            Kind::fill(item, &mut value);
            let _evicted = here.put(item, &value);
        }
        let taken = bench.sync(&mut here, None, requests)?;
        let share = 100.0 * to_f64(taken.missed) / to_f64(taken.requests);
        let why = format!("{share:.0} % of the look-ups found nothing here");
        let row = Row::figure(format!("pd3.misses.{percent}"), "1/s", taken.rate(), taken.requests);
        rows.push(Row { why: Some(why), ..row.with_cpu(Some(taken.cpu_ns())).beside(Some(local)) });
    }
    Ok(rows)
}

/// Measures READs one by one with a hundredth local.
fn by_reads(bench: &mut Bench, requests: &[u8]) -> Result<VariantCosts, Error> {
    let mut here = LocalItems::some(Kind::Hash, bench.ground.size.here);
    let part = requests.len() / PART / bench.ground.size.piece_len() * bench.ground.size.piece_len();
    bench.sync(&mut here, None, &requests[..part])
}

fn zones(bench: &mut Bench, path: f64) -> Result<(), Error> {
    let before = bench.ground.size;
    let requests: Vec<Vec<u8>> = (0..2).map(|seed| before.draw(Draw::Uniform, 300 + seed)).collect();
    let local = all_local(bench, &requests[0]);
    let by_reads = by_reads(bench, &requests[0])?;
    for items in ZONES {
        bench.begins(&format!("a zone of {items} items"));
        bench.ground.size.zone.items = items;
        let DpuResults { taken, wasted, .. } = bench.ahead(path, &requests)?;
        let sum = |what: fn(&VariantCosts) -> u64| taken.iter().map(what).sum::<u64>();
        let (missed, all) = (sum(|taken| taken.missed), sum(|taken| taken.requests));
        let waiting = LEAD * before.piece;
        let why = format!("{waiting} requests wait; {wasted} items were fetched for nothing in all");
        let share = 100.0 * to_f64(missed) / to_f64(all);
        let id = format!("pd3.zone.size.{items}");
        let mut rows = vec![
            Row { why: Some(why), ..Row::figure(&*id, "% missed", share, all) },
            rate(&format!("{id}.throughput"), &taken, all).beside(Some(local)),
        ];
        rows.extend(times(&id, &taken, std::slice::from_ref(&by_reads), all));
        bench.found(rows);
    }
    bench.ground.size = before;
    Ok(())
}
