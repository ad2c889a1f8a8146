//! Native-KVS on real processes: one worker, and two that share its table (MIND 7.1).

use super::DOMAIN;
use crate::{CpuMeter, CpuTime, Row, Sheet};
use farmem::{Error, Rack, RackConfig, ShareOptions, SharedSpace, Transport};
use farmem_nativekvs::{Args, Mix, Outcome, serve};

/// Local bytes at each worker's host: the whole table fits, so that the measurement shows sharing.
const LOCAL: u64 = 64 << 20;

/// Measures all mixes, first with one worker and then with two.
pub(super) fn measure(config: &RackConfig, quick: bool, sheet: &mut Sheet<'_>) -> Result<(), Error> {
    let space = SharedSpace::join(&Rack::running(config.clone()), DOMAIN, ShareOptions::new(LOCAL))?;
    for (workload, name) in [(Mix::A, "a"), (Mix::C, "c")] {
        let mut one: Option<f64> = None;
        for workers in [1, 2] {
            let args = Args {
                rack: config.file.clone(),
                workers,
                workload,
                records: if quick { 1000 } else { 10_000 },
                operations: operations(workload, quick),
                local: LOCAL,
                seed: 1,
                json: false,
            };
            // The workers, which have ended by then, and the roles; loading the table counts too.
            let all = CpuMeter::own().and_children();
            let cpu = all.begin();
            let outcome = serve(&space, &args, |orders| space.spawn("serve", orders))?;
            let mut spent = CpuTime::default();
            spent.add(cpu.end(), outcome.operations);
            sheet.add_wrong(outcome.wrong_answers);
            let row = row(config.transport, name, &outcome).with_cpu(spent.per_operation());
            sheet.add([row.beside(one)]);
            one = one.or(Some(outcome.operations_per_second));
        }
    }
    Ok(())
}

/// Returns enough operations for a run of seconds: where workers write, pages move between them.
const fn operations(workload: Mix, quick: bool) -> u64 {
    match (workload, quick) {
        (_, true) => 50_000,
        (Mix::A, false) => 300_000,
        (_, false) => 1_000_000,
    }
}

fn row(transport: Transport, name: &str, outcome: &Outcome) -> Row {
    let Outcome { workers, operations, operations_per_second, fetches, invalidations, .. } = *outcome;
    let falsely = outcome.false_invalidations;
    let id = format!("mind.scaling.nativekvs.{name}.{}.{workers}", transport.name());
    let why = format!(
        "{fetches} pages fetched, {invalidations} given up to the other, {falsely} of them falsely; {} wrong answers",
        outcome.wrong_answers
    );
    Row { why: Some(why), ..Row::figure(id, "1/s", operations_per_second, operations) }
}
