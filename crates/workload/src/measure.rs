//! Runs tasks and measures each kind of operation.

use crate::{Load, Progress, Row, stop};
use farmem::{Client, Error, Task, TaskStats};
use hdrhistogram::Histogram;
use std::time::Instant;

/// Longest distinguished latency, in nanoseconds: a minute.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

struct Kind {
    row: Row,
    latency: Histogram<u64>,
}

/// Runs `tasks` as `load` says. `kind` names the kind of a task; each kind gets a row, in order of first
/// appearance. Also returns the elapsed seconds. No further task begins when the process is asked to stop.
///
/// # Errors
/// The errors of [`Client::run_tasks`].
pub fn measure<T: Task>(
    client: &mut Client,
    tasks: impl Iterator<Item = T>,
    load: &Load,
    what: &'static str,
    kind: impl Fn(&T) -> &'static str,
) -> Result<(Vec<Row>, f64), Error> {
    let mut kinds: Vec<Kind> = Vec::new();
    let mut progress = Progress::new(what);
    let mut done = 0;
    let started = Instant::now();
    let tasks = tasks.take_while(|_| !stop::asked());
    client.run_tasks(tasks, load.in_flight, &load.policy.policy(), |task, stats| {
        count(&mut kinds, kind(&task), &stats);
        done += 1;
        if done % 64 == 0 {
            progress.set(done, load.operations);
        }
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let rows = kinds.into_iter().map(|kind| Row {
        latency_p50_ns: kind.latency.value_at_quantile(0.5),
        latency_p99_ns: kind.latency.value_at_quantile(0.99),
        ..kind.row
    });
    Ok((rows.collect(), seconds))
}

fn count(kinds: &mut Vec<Kind>, name: &'static str, stats: &TaskStats) {
    let place = kinds.iter().position(|kind| kind.row.operation == name).unwrap_or_else(|| {
        let latency =
            Histogram::new_with_max(LATENCY_MAX_NS, 3).expect("a minute with three digits is in range");
        kinds.push(Kind { row: Row { operation: name, ..Row::default() }, latency });
        kinds.len() - 1
    });
    let Kind { row, latency } = &mut kinds[place];
    row.operations += 1;
    row.round_trips += stats.round_trips;
    row.requests += stats.requests;
    row.iterations += stats.iterations;
    row.offloaded += stats.offloaded;
    row.at_host += stats.at_host;
    latency.saturating_record(u64::try_from(stats.latency.as_nanos()).unwrap_or(u64::MAX));
}
