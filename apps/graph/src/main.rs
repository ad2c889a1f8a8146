//! `farmem-graph`: the application as a command of its own; `farmem graph` is the same.

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
