//! `farmem bench kv`: this command's server beside redis-server.

use super::Screen;
use super::pulse::look_at_plots;
use crate::args::BenchKv;
use crate::{End, Failure};
use farmem::LinkProfile;
use farmem_bench::kv::run as measure;

pub(crate) fn run(args: &BenchKv) -> Result<End, Failure> {
    let BenchKv { rows, plots } = args;
    look_at_plots(plots.as_deref())?;
    let plan = rows.plan();
    let screen = Screen::begin("kv", rows.json, LinkProfile::NONE);
    let outcome = measure(&plan, plots.as_deref(), &mut |told| screen.hear(told));
    let outcome = outcome.map_err(|error| {
        Failure::environment(
            format!("no load could be made, or no figure drawn: {error}"),
            "see `farmem doctor` for what this machine allows",
        )
    })?;
    screen.end(&plan.only, outcome)
}
