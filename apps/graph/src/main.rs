//! `farmem-graph`: the application as a separate command, equivalent to `farmem graph`.

use clap::Parser as _;
use farmem_graph::{Command, run};
use farmem_workload::finish;
use std::process::ExitCode;

/// Algorithms on graphs whose arrays are in far memory.
#[derive(Debug, clap::Parser)]
#[command(name = "farmem-graph", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let Arguments { command } = Arguments::parse();
    finish(&run(&command), command.json())
}
