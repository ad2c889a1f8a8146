//! `pulse.batch.lookups`: look-ups per second of one host with many in flight, when those to one node share
//! datagrams, compared with one datagram each (PROTOCOL 11.13). Both clients use one table, alternating, and
//! every answer is checked.

use super::compare::{NODE_MEMORY, Scenario as _};
use super::contender::App as _;
use super::lookups::Lookups;
use crate::{CpuMeter, CpuTime, NodeKind, Racks, Row, rate_row, to_f64};
use farmem::{Client, ClientOptions, Error, Policy, Rack};
use std::iter::from_fn;
use std::num::NonZero;
use std::time::{Duration, Instant};

/// The time budget of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    pub(super) quick: bool,
    /// Rounds of both variants, after one that warms up.
    pub(super) rounds: u32,
    /// The time of a variant in a round.
    pub(super) slice: Duration,
}

/// Look-ups in flight: several full batches.
const DEPTH: usize = 256;
const DOMAIN: &str = "bench";
/// Uniformly drawn keys.
const MIX: &str = "uniform";

/// Returns the row.
pub(super) fn measure<R: Racks>(effort: Budget, racks: &mut R) -> Result<Vec<Row>, R::Failure> {
    let rack = racks.start(1, NodeKind::Offload, NODE_MEMORY)?;
    let meter = CpuMeter::with(racks.processes(&rack));
    Ok(vec![compare(effort, rack.as_ref(), &meter)?])
}

fn compare(effort: Budget, rack: &Rack, meter: &CpuMeter) -> Result<Row, Error> {
    let usual = ClientOptions::default();
    let alone = ClientOptions { pairs_max: NonZero::<u16>::MIN, ..usual };
    let mut clients = [rack.client_with(DOMAIN, usual)?, rack.client_with(DOMAIN, alone)?];
    let mut finder = Lookups::short(effort.quick).lay(MIX, true, &mut clients[0])?;
    let mut rates = [Vec::new(), Vec::new()];
    let mut spent = [CpuTime::default(); 2];
    for round in 0..=effort.rounds {
        for (at, (client, rates)) in clients.iter_mut().zip(&mut rates).enumerate() {
            let cpu = meter.begin();
            let (rate, count) = rate(client, &mut finder, effort.slice)?;
            if round > 0 {
                rates.push(rate);
                spent[at].add(cpu.end(), count);
            }
        }
    }
    let wrong = finder.wrong();
    finder.destroy(&mut clients[0])?;
    assert_eq!(wrong, 0, "every key is found with its value");
    let [together, alone] = &mut rates;
    let row = rate_row("pulse.batch.lookups", together, alone, effort.rounds.into());
    Ok(row.with_cpu(spent[0].per_operation()))
}

/// Measures look-ups per second for `slice`. Returns the rate and the count.
fn rate(
    client: &mut Client,
    finder: &mut super::lookups::Finder,
    slice: Duration,
) -> Result<(f64, u64), Error> {
    let (begin, mut count) = (Instant::now(), 0);
    let cell = std::cell::RefCell::new(finder);
    let tasks = from_fn(|| (begin.elapsed() < slice).then(|| cell.borrow_mut().next()));
    let done = |task, _| {
        count += 1;
        cell.borrow_mut().ended(task);
    };
    client.run_tasks(tasks, DEPTH, &Policy::Offload, done)?;
    Ok((to_f64(count) / begin.elapsed().as_secs_f64(), count))
}
