//! `farmem-timeseries`: the application as a separate command, equivalent to `farmem timeseries`.

use clap::Parser as _;
use farmem_timeseries::{Args, run};
use farmem_workload::finish;
use std::process::ExitCode;

/// Windows over sensor data in far memory.
#[derive(Debug, clap::Parser)]
#[command(name = "farmem-timeseries", version, about)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    let Command { args } = Command::parse();
    finish(&run(&args), args.plan.json)
}
