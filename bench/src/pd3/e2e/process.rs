//! `pd3.path.hash.process.*` and `pd3.e2e.hash.uniform.process.*`: the hash map's program with its driver in
//! a DPU process (PROTOCOL 19.15), compared with the same program, items and requests on the same rack, whose
//! driver is a thread of this process.
//!
//! The process is the rack's, `farmem role dpu`. It runs on the shared CPU, as the thread does.

use super::program::Parts;
use super::store::{FIRST, Kind};
use super::{Bench, DpuResults, Draw, LEAD, SECRET, SharedState, VariantCosts, middle, rate, stages};
use crate::{Row, to_f64};
use farmem::prefetch::{AtDpu, AtDpuOptions, Change, Position};
use farmem::{Client, Error};
use std::collections::BTreeSet;
use std::hint::spin_loop;
use std::time::{Duration, Instant};

/// The row ids of a key's path.
pub(super) const PATH: [&str; 2] = ["pd3.path.hash.process.ns_per_key", "pd3.path.hash.process.wall"];
/// The row ids of the application.
pub(super) const ROWS: [&str; 3] = [
    "pd3.e2e.hash.uniform.process.throughput",
    "pd3.e2e.hash.uniform.process.host_cpu",
    "pd3.e2e.hash.uniform.process.missed",
];

/// Bound on the wait for an item, after which the item counts as missing.
const PATIENCE: Duration = Duration::from_millis(100);

/// Returns true for the requests that have rows.
pub(super) fn is_measured(kind: Kind, draw: Draw) -> bool {
    (kind, draw) == (Kind::Hash, Draw::Uniform)
}

impl SharedState {
    /// Connects to the DPU with a fresh program, with as much room as the thread has.
    fn at_dpu(&self, client: &Client) -> Result<AtDpu, Error> {
        let keys = 2 * self.size.here + self.size.zone.items;
        let options = AtDpuOptions { zone: self.size.zone, tap: 4 << 20, ..AtDpuOptions::new(keys as u64) };
        AtDpu::connect(client, &self.far.form(), (SECRET, Change(FIRST)), options)
    }
}

/// Measures the path of a key through the process, compared with the thread.
pub(super) fn path(bench: &mut Bench, thread: &stages::Path) -> Result<Vec<Row>, Error> {
    let SharedState { size, dpu: meter, .. } = &bench.ground;
    let dpu = bench.ground.at_dpu(&bench.client)?;
    let (tap, beside, mut taker) = (dpu.tap(), dpu.beside(), dpu.taker());
    let (kind, connection) = (size.kind, size.kind.connection(&tap));
    let bytes = size.draw(Draw::Uniform, 7);
    let (mut into, mut wall, mut taken, mut late) = (Vec::new(), Duration::ZERO, 0_u64, 0_u64);
    let cpu = meter.begin();
    for pieces in bytes.chunks(size.piece_len() * LEAD / 2) {
        // A key that occurs in two requests is fetched and taken once.
        let mut known = BTreeSet::new();
        let wanted: Vec<&[u8]> = kind.keys_in(pieces).filter(|key| known.insert(*key)).collect();
        let (begin, mut last) = (Instant::now(), Position::UNKNOWN);
        for piece in pieces.chunks(size.piece_len()) {
            last = connection.received(piece);
        }
        for &key in &wanted {
            let mut there = taker.take(key, &mut into).is_some();
            while !there && begin.elapsed() < PATIENCE {
                spin_loop();
                there = taker.take(key, &mut into).is_some();
            }
            (taken, late) = (taken + u64::from(there), late + u64::from(!there));
            bench.wrong += u64::from(there && !kind.is_right(key, &into));
        }
        wall += begin.elapsed();
        // The program keeps nothing: the next request for an item fetches it again.
        beside.drops_all(wanted);
        tap.executed(last);
    }
    // The system accounts a thread's CPU time when it sleeps; the DPU's thread has answered and sleeps.
    serves(&dpu)?;
    let cpu = cpu.end().ok_or_else(gone)?;
    let each = |time: Duration| time.as_secs_f64() * 1e9 / to_f64(taken.max(1));
    let row = |id: &str, value, thread, why: String| {
        let row = Row::figure(id, "ns", value, taken).beside(Some(thread));
        Row { why: Some(why), ..row }
    };
    let of_process = format!("CPU time of the DPU's process; {late} items did not come within {PATIENCE:?}");
    let passes =
        "from when a queue's half is handed over until a thread on the other CPU has taken all of it";
    Ok(vec![
        row(PATH[0], each(cpu), thread.own, of_process),
        row(PATH[1], each(wall), thread.wall, passes.to_owned()),
    ])
}

/// Measures the application at the pace at which nearly all items are ready by the process, compared with the
/// thread.
pub(super) fn measure(
    bench: &mut Bench,
    path: f64,
    requests: &[Vec<u8>],
    thread: &DpuResults,
) -> Result<Vec<Row>, Error> {
    bench.begins("uniform by the process");
    let dpu = bench.ground.at_dpu(&bench.client)?;
    let parts = Parts { tap: dpu.tap(), beside: dpu.beside(), taker: dpu.taker() };
    let (DpuResults { taken, .. }, wrong) = bench.ground.at_a_pace(parts, path, requests)?;
    bench.wrong += wrong;
    let wasted = serves(&dpu)?;
    let sum = |all: &[VariantCosts], what: fn(&VariantCosts) -> u64| all.iter().map(what).sum::<u64>();
    let missed = |all: &[VariantCosts]| sum(all, |taken| taken.missed);
    let n = sum(&taken, |taken| taken.requests);
    let (cpu, of_thread) =
        (middle(&taken, VariantCosts::cpu_ns), middle(&thread.taken, VariantCosts::cpu_ns));
    let beside = || Some("beside the DPU that is a thread, each at its own pace".to_owned());
    let why = format!(
        "{} by the thread; {wasted} items were fetched for nothing, {} by the thread",
        missed(&thread.taken),
        thread.wasted
    );
    let throughput = rate(ROWS[0], &taken, n).beside(Some(middle(&thread.taken, VariantCosts::rate)));
    let host_cpu = Row::figure(ROWS[1], "ns", cpu, n).with_cpu(Some(cpu)).beside(Some(of_thread));
    let missed = Row::figure(ROWS[2], "requests", to_f64(missed(&taken)), n);
    Ok(vec![
        Row { why: beside(), ..throughput },
        Row { why: beside(), ..host_cpu },
        Row { why: Some(why), ..missed },
    ])
}

/// Returns the items that the process fetched in vain. Fails when the process no longer serves, because then
/// the rows would be wrong.
fn serves(dpu: &AtDpu) -> Result<u64, Error> {
    let wasted = dpu.prefetched()?.account.wasted;
    if dpu.is_served() { Ok(wasted) } else { Err(gone()) }
}

fn gone() -> Error {
    Error::Unreachable { what: "the DPU's process, which is measured".into() }
}
