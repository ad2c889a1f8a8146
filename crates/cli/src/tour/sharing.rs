//! Two processes, each a host of its own, read and write one hash table by plain loads and stores.

use super::{ActOutcome, to_f64};
use crate::outcome::Failure;
use crate::output;
use farmem::RackConfig;
use farmem_nativekvs::{Args, Mix};

pub(super) fn play(config: &RackConfig) -> Result<ActOutcome, Failure> {
    let args = Args {
        rack: config.file.clone(),
        workers: 2,
        workload: Mix::A,
        records: 2_000,
        operations: 20_000,
        local: 16 << 20,
        seed: 1,
        json: false,
    };
    let outcome = farmem_nativekvs::run(&args)?;
    let each = to_f64(outcome.fetches) / to_f64(outcome.operations);
    Ok(ActOutcome {
        figures: format!(
            "{} operations, {} of them updates, at {}; {} pages moved between the processes",
            output::count(outcome.operations),
            output::count(outcome.updates),
            output::rate(outcome.operations_per_second),
            output::count(outcome.invalidations),
        ),
        sentence: format!(
            "Each process saw every update of the other at once and whole, for {each:.2} page fetches an operation."
        ),
        wrong_answers: outcome.wrong_answers,
    })
}
