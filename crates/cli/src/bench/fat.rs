//! `farmem bench fat`, with the racks of `farmem bench pulse`.

use super::Screen;
use super::pulse::{OwnRacks, look_at_plots};
use crate::args::BenchDrawn;
use crate::{End, Failure};
use farmem_bench::fat::run as measure;

pub(crate) fn run(args: &BenchDrawn) -> Result<End, Failure> {
    let BenchDrawn { rows, links, plots } = args;
    look_at_plots(plots.as_deref())?;
    let plan = rows.plan();
    let screen = Screen::begin("fat", rows.json, links.link);
    let outcome =
        measure(&plan, plots.as_deref(), &mut OwnRacks::over_udp(links.link), |told| screen.hear(told))?;
    screen.end(&plan.only, outcome)
}
