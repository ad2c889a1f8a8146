//! `farmem bench kv`: the server of this command, compared with redis-server.

use super::Screen;
use super::pulse::{OwnRacks, look_at_plots};
use crate::args::BenchKv;
use crate::{End, Failure};
use farmem::{LinkProfile, Rack};
use farmem_bench::kv::run as measure;
use farmem_bench::pulse::{NodeKind, Racks as _};

pub(crate) fn run(args: &BenchKv) -> Result<End, Failure> {
    let BenchKv { rows, plots } = args;
    look_at_plots(plots.as_deref())?;
    let plan = rows.plan();
    let screen = Screen::begin("kv", rows.json, LinkProfile::NONE);
    let mut start = |memory| match OwnRacks::over_udp(LinkProfile::NONE).start(1, NodeKind::Offload, memory) {
        Ok(rack) => Ok(Box::new(rack) as Box<dyn AsRef<Rack>>),
        Err(Failure::Farmem(error)) => Err(error.to_string()),
        Err(Failure::Environment { message, remedy }) => Err(format!("{message}: {remedy}")),
    };
    let outcome = measure(&plan, plots.as_deref(), &mut start, &mut |told| screen.hear(told));
    let outcome = outcome.map_err(|error| {
        Failure::environment(
            format!("cannot produce the load or draw a figure: {error}"),
            "see `farmem doctor` for what this machine allows",
        )
    })?;
    screen.end(&plan.only, outcome)
}
