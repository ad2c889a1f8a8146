//! `farmem-webservice`: the application as a separate command, equivalent to `farmem webservice`.

use clap::Parser as _;
use farmem_webservice::{Args, run};
use farmem_workload::finish;
use std::process::ExitCode;

/// A web service whose users and their objects are in far memory.
#[derive(Debug, clap::Parser)]
#[command(name = "farmem-webservice", version, about)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    let Command { args } = Command::parse();
    finish(&run(&args), args.plan.json)
}
