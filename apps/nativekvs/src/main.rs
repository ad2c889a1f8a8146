//! `farmem-nativekvs`: the store as a command, which also serves as its own worker.

use clap::Parser as _;
use farmem_nativekvs::{Args, ENTRIES, run};
use farmem_workload::finish;
use std::process::ExitCode;

/// A key-value store whose one table is shared by workers on many hosts, by loads and stores (MIND's Native-KVS).
#[derive(Debug, clap::Parser)]
#[command(name = "farmem-nativekvs", version, about)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    if let Some(ended) = farmem::worker::begin(ENTRIES) {
        return ended;
    }
    let Command { args } = Command::parse();
    finish(&run(&args), args.json)
}
