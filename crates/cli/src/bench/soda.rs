//! `farmem bench soda`: its racks are those of `farmem bench pulse`.

use super::Screen;
use super::pulse::OwnRacks;
use crate::args::{BenchLinked, SodaAlone};
use crate::{End, Failure};
use farmem_bench::soda::run as measure;

pub(crate) fn run(args: &BenchLinked) -> Result<End, Failure> {
    let BenchLinked { rows, links } = args;
    let plan = rows.plan();
    let screen = Screen::begin("soda", rows.json, links.link);
    let outcome = measure(&plan, &mut OwnRacks::over_udp(links.link), |told| screen.hear(told))?;
    screen.end(&plan.only, outcome)
}

/// `farmem soda-alone`: the process of the benchmark that is under a limit.
pub(crate) fn alone(args: &SodaAlone) -> Result<End, Failure> {
    let SodaAlone { file, app, system, rounds, sources } = args;
    let ended = farmem_bench::soda::alone(file, app, system, *rounds, sources);
    ended.map(|()| End::Fine).map_err(|e| Failure::environment(format!("under a limit: {e}"), ""))
}
