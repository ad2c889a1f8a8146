//! `farmem bench soda`, with the racks of `farmem bench pulse`.

use super::Screen;
use super::pulse::{OwnRacks, look_at_plots};
use crate::args::{BenchDrawn, SodaAlone};
use crate::{End, Failure};
use farmem_bench::soda::run as measure;

pub(crate) fn run(args: &BenchDrawn) -> Result<End, Failure> {
    let BenchDrawn { rows, links, plots } = args;
    look_at_plots(plots.as_deref())?;
    let plan = rows.plan();
    let screen = Screen::begin("soda", rows.json, links.link);
    let outcome =
        measure(&plan, plots.as_deref(), &mut OwnRacks::over_udp(links.link), |told| screen.hear(told))?;
    screen.end(&plan.only, outcome)
}

/// Runs `farmem soda-alone`, the benchmark process under a memory limit.
pub(crate) fn alone(args: &SodaAlone) -> Result<End, Failure> {
    let SodaAlone { file, app, system, rounds, sources } = args;
    let ended = farmem_bench::soda::alone(file, app, system, *rounds, sources);
    ended.map(|()| End::Fine).map_err(|e| {
        Failure::environment(format!("the benchmark process under a memory limit failed: {e}"), "")
    })
}
