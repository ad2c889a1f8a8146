//! `farmem-orderedkv`: the application's workloads as a separate command, equivalent to `farmem orderedkv`.
//! `farmem index serve` is the service.

use clap::Parser as _;
use farmem_orderedkv::{Args, run};
use farmem_workload::finish;
use std::process::ExitCode;

/// An ordered key-value service in far memory: YCSB's workloads A to F.
#[derive(Debug, clap::Parser)]
#[command(name = "farmem-orderedkv", version, about)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    let Command { args } = Command::parse();
    finish(&run(&args), args.plan.json)
}
