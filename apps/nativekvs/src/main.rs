//! `farmem-nativekvs`: the store as a command; it is its own worker as well.

use clap::Parser as _;
use farmem_nativekvs::{Args, ENTRIES, run};
use std::io::{self, Write as _};
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
    match run(&args) {
        Ok(outcome) => {
            let text = if args.json {
                serde_json::to_string(&outcome).expect("an outcome has only strings for keys") + "\n"
            } else {
                outcome.text()
            };
            // A reader that closed its pipe is fine.
            let _nobody_reads = io::stdout().write_all(text.as_bytes());
            ExitCode::from(u8::from(outcome.wrong_answers > 0))
        }
        Err(failure) => {
            let _nobody_reads =
                writeln!(io::stderr(), "farmem: {}\n        {}", failure.message, failure.remedy);
            ExitCode::from(2)
        }
    }
}
