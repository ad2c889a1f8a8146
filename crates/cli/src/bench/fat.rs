//! `farmem bench fat`: its racks are those of `farmem bench pulse`.

use super::Screen;
use super::pulse::OwnRacks;
use crate::args::BenchLinked;
use crate::{End, Failure};
use farmem_bench::fat::run as measure;

pub(crate) fn run(args: &BenchLinked) -> Result<End, Failure> {
    let BenchLinked { rows, links } = args;
    let plan = rows.plan();
    let screen = Screen::begin("fat", rows.json, links.link);
    let outcome = measure(&plan, &mut OwnRacks(links.link), |told| screen.hear(told))?;
    screen.end(&plan.only, outcome)
}
