//! Arguments of `farmem trace`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Commands of `farmem trace`.
#[derive(Debug, Subcommand)]
pub(crate) enum Trace {
    /// Run a program under valgrind, and write its page accesses to a file. The program runs about fifty
    /// times slower.
    Record(TraceRecord),
    /// Print the contents of a trace.
    Info(TraceInfo),
    /// Replay traces on simulated racks with the latencies of MIND's paper.
    Replay(TraceReplay),
}

/// Arguments of `farmem trace record`.
#[derive(Debug, Args)]
#[command(after_help = "farmem trace record -o sort.trace -- sort big.txt")]
pub(crate) struct TraceRecord {
    /// File to write the trace to.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Print a summary of the trace as one JSON object, after the program's own output.
    #[arg(long)]
    pub(crate) json: bool,
    /// Program to run, and its arguments.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// Arguments of `farmem trace replay`.
#[derive(Debug, Args)]
#[command(after_help = "farmem trace replay sort.trace --hosts 1,2,4,8 --system mind,gam\n\
                        Systems: mind, mind-pso, mind-pso+, gam, swap (one host only). Performance is relative to the first replay of each file.")]
pub(crate) struct TraceReplay {
    /// Files of the traces.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Numbers of hosts, separated by commas, with one replay each.
    #[arg(long, default_value = "1,2,4,8", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) hosts: Vec<u16>,
    /// Systems to simulate, separated by commas [default: all].
    #[arg(long, value_delimiter = ',', value_name = "SYSTEM")]
    pub(crate) system: Vec<String>,
    /// Number of threads that run at once on each host. The threads of the trace are assigned to the hosts in
    /// turn.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) threads: u16,
    /// Local memory of a host, in pages [default: a quarter of the trace's pages].
    #[arg(long, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) local_pages: Option<usize>,
    /// Number of slots of the directory [default: 30,000 per 2 GiB of pages, and one per block of 2 MiB].
    #[arg(long, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000_000))]
    pub(crate) slots: Option<usize>,
    /// Epoch of bounded splitting, in microseconds [default: 100,000].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) epoch_us: Option<u64>,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `farmem trace info`.
#[derive(Debug, Args)]
pub(crate) struct TraceInfo {
    /// File of the trace.
    pub(crate) file: PathBuf,
    /// Print the contents as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
