//! `farmem bench run`: programs under `farmem run`, compared with the same programs without it.

use super::Screen;
use crate::args::BenchRows;
use crate::{End, Failure};
use farmem::LinkProfile;
use farmem_bench::run::run as measure;

pub(crate) fn run(args: &BenchRows) -> Result<End, Failure> {
    let plan = args.plan();
    // The racks run in the pager's process, without links.
    let screen = Screen::begin("run", args.json, LinkProfile::NONE);
    let outcome = measure(&plan, &mut |told| screen.hear(told));
    screen.end(&plan.only, outcome)
}

/// Runs `farmem work`, the program of the benchmark.
pub(crate) fn work(name: &str, bytes: usize, cpu: Option<usize>) -> Result<End, Failure> {
    let ended = farmem_bench::run::work(name, bytes, cpu);
    ended
        .map(|()| End::Fine)
        .map_err(|e| Failure::environment(format!("the benchmark's program failed: {e}"), ""))
}
