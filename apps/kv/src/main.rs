//! The command `farmem-kv`; `farmem kv` is the same.

use clap::Parser as _;
use farmem_kv::{Args, run};
use std::io::Write as _;
use std::process::ExitCode;

/// A server for Redis clients whose data may be larger than memory.
#[derive(Debug, clap::Parser)]
#[command(name = "farmem-kv", version, about)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    let Command { args } = Command::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _stderr_may_be_closed =
                writeln!(std::io::stderr(), "farmem: {} {}", failure.message, failure.remedy);
            ExitCode::from(2)
        }
    }
}
