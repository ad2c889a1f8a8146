//! What `farmem trace` can be told.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// `farmem trace`
#[derive(Debug, Subcommand)]
pub(crate) enum Trace {
    /// Run a program under valgrind and write the pages it visits to a file. Fifty times slower than the program alone.
    Record(TraceRecord),
    /// Say what is in a trace.
    Info(TraceInfo),
    /// Play traces over simulated racks with the latencies of MIND's paper.
    Replay(TraceReplay),
}

/// `farmem trace record`
#[derive(Debug, Args)]
#[command(after_help = "farmem trace record -o sort.trace -- sort big.txt")]
pub(crate) struct TraceRecord {
    /// Where to write it.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Print what was recorded as one JSON object, after what the program prints.
    #[arg(long)]
    pub(crate) json: bool,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// `farmem trace replay`
#[derive(Debug, Args)]
#[command(after_help = "farmem trace replay sort.trace --hosts 1,2,4,8 --system mind,gam\n\
                        Systems: mind, mind-pso, mind-pso+, gam, swap (one host only). Performance is beside the first replay of each file.")]
pub(crate) struct TraceReplay {
    /// The traces.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Hosts, one replay for each number.
    #[arg(long, default_value = "1,2,4,8", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) hosts: Vec<u16>,
    /// Systems, all when none is named.
    #[arg(long, value_delimiter = ',', value_name = "SYSTEM")]
    pub(crate) system: Vec<String>,
    /// Threads that run at once on each host; the trace's are dealt to them in turn.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) threads: u16,
    /// Pages of a host's memory; a quarter of the trace's when not given.
    #[arg(long, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub(crate) local_pages: Option<usize>,
    /// Slots of the directory; 30,000 for 2 GiB of pages, and one for each block of 2 MiB, when not given.
    #[arg(long, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000_000))]
    pub(crate) slots: Option<usize>,
    /// The epoch of bounded splitting in microseconds; 100,000 when not given.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) epoch_us: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `farmem trace info`
#[derive(Debug, Args)]
pub(crate) struct TraceInfo {
    /// The trace.
    pub(crate) file: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
