//! `farmem-tablestore`: the application as a separate command, equivalent to `farmem tablestore`.

use clap::Parser as _;
use farmem_tablestore::{Args, run};
use farmem_workload::finish;
use std::process::ExitCode;

/// A table whose index and values are in far memory.
#[derive(Debug, clap::Parser)]
#[command(name = "farmem-tablestore", version, about)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    let Command { args } = Command::parse();
    finish(&run(&args), args.plan.json)
}
