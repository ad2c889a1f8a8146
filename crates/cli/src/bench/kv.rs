//! `farmem bench kv`: this command's server beside redis-server.

use super::Screen;
use crate::args::BenchRows;
use crate::{End, Failure};
use farmem::LinkProfile;
use farmem_bench::kv::run as measure;

pub(crate) fn run(args: &BenchRows) -> Result<End, Failure> {
    let plan = args.plan();
    let screen = Screen::begin("kv", args.json, LinkProfile::NONE);
    let outcome = measure(&plan, &mut |told| screen.hear(told));
    let outcome = outcome.map_err(|error| {
        Failure::environment(
            format!("no load could be made: {error}"),
            "see `farmem doctor` for what this machine allows",
        )
    })?;
    screen.end(&plan.only, outcome)
}
