//! Command line arguments and their help texts. Each help text is the doc comment of its argument.

mod eta;
mod index;
mod manage;
mod object;
mod rack;
mod trace;

use crate::logging::LogLevel;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use farmem::LinkProfile;
use farmem_sim::Plan;
use farmem_workload::bytes;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use index::{Index, IndexDrop, IndexLive, IndexLoad, IndexPlan, IndexServe, Switches};
pub(crate) use manage::{Free, Leave, Status};
pub(crate) use object::{Object, ObjectClose, ObjectOpen, ObjectSave, ObjectStatus};
pub(crate) use rack::{Join, Migrate};
pub(crate) use trace::{Trace, TraceInfo, TraceRecord, TraceReplay};

/// Far memory for a rack of ordinary Linux machines.
#[derive(Debug, Parser)]
#[command(name = "farmem", version = farmem::BUILD, about, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// How long to wait for a rack's control plane, switch and memory nodes while they do not answer, as 500ms, 60s or 5m [default: `patience` in rack.toml, else 60s].
    #[arg(long, global = true, value_name = "DURATION", value_parser = farmem::config::parse_patience)]
    pub(crate) wait_for_rack: Option<Duration>,
}

/// Command of `farmem`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the roles of a rack as processes on this machine and print their addresses.
    Up(Up),
    /// Show what farmem does in six short acts on this machine, with every answer checked.
    Tour(Tour),
    /// Look up every word of a dictionary in far memory, by READs and by traversals, and run three
    /// applications.
    Demo(Demo),
    /// Run an unmodified program whose large mappings and heap are in far memory.
    Run(Run),
    /// Run a web service whose users and 8 KiB objects are in far memory: a chained hash table, with YCSB A,
    /// B or C.
    Webservice(farmem_webservice::Args),
    /// Run a table store whose index and values are in far memory: a B+tree with values of 240 bytes, with
    /// YCSB E.
    Tablestore(farmem_tablestore::Args),
    /// Run a key-value store with one table that workers on many hosts share by loads and stores.
    Nativekvs(farmem_nativekvs::Args),
    /// Run an ordered key-value store whose index is in switches: values of up to 64 KiB, with YCSB A to F.
    Orderedkv(farmem_orderedkv::Args),
    /// Serve Redis and memcached clients. The data may exceed this machine's memory, because only a bounded
    /// part is in local memory (docs/kv.md).
    Kv(Box<farmem_kv::Args>),
    /// Query sensor data in far memory: sum, mean, minimum and maximum of windows of 1 s to 8 s.
    Timeseries(farmem_timeseries::Args),
    /// Run graph applications on graphs in far memory, and generate and convert graph files.
    #[command(subcommand)]
    Graph(farmem_graph::Command),
    /// Measure farmem's operations, each with its raw operation in the same run.
    Bench {
        /// Benchmark to run.
        #[command(subcommand)]
        bench: Bench,
    },
    /// Print the join file for another machine: the address, the token and the certificate of the rack's
    /// authority (docs/operate.md).
    Join(Join),
    /// Show the memory of each node of a running rack, or move memory to another node while programs use it.
    Migrate(Migrate),
    /// Show the hosts and domains of a running rack, their memory, and the remaining time of their leases.
    Status(Status),
    /// Free the memory of a domain: allocations, and objects that no program has open.
    Free(Free),
    /// Remove a host from a running rack, with its sessions and connections.
    Leave(Leave),
    /// Manage objects with files: a memory node loads its own files into far memory and saves them
    /// (docs/objects.md).
    #[command(subcommand)]
    Object(Object),
    /// Compile an iterator in C or C++ to a traversal program (docs/iterators.md).
    Compile(Compile),
    /// Manage a B+tree index in switches (Fat-B+Tree) and its ordered stores: plan, agent, statistics and
    /// services.
    #[command(subcommand)]
    Index(Index),
    /// Show the abilities of this machine, and the remedy for each missing one.
    Doctor(Doctor),
    /// Simulate roles with faults, reproducible from a seed.
    Sim(Sim),
    /// Record the memory accesses of a program, and replay them on simulated racks.
    #[command(subcommand)]
    Trace(Trace),
    /// Write man pages, one for each command, into a directory.
    Manual {
        /// Directory for the pages; the command creates a missing directory.
        directory: PathBuf,
    },
    /// Print a script that completes farmem's commands and options in a shell.
    Completions {
        /// Shell to complete in.
        shell: clap_complete::Shell,
    },
    /// Hold resources that must stay open when `farmem run` dies (started by `farmem run`).
    #[command(hide = true)]
    Guard(Guard),
    /// Run one role of a rack until SIGTERM, for racks on several machines (docs/operate.md).
    Role(Role),
    /// Run a memory node with native code in place of known programs (started by `farmem bench pulse`).
    #[command(hide = true, name = NATIVE_ROLE)]
    NativeRole(NativeRole),
    /// Make system calls (started by `farmem bench mind`).
    #[command(hide = true, name = farmem_bench::mind::CALLS)]
    Calls,
    /// Access memory under a limit (started by `farmem bench mind`).
    #[command(hide = true, name = farmem_bench::mind::SQUEEZED)]
    ZramProbe {
        /// Number of pages.
        pages: usize,
        /// Number of accesses to each page.
        rounds: usize,
    },
    /// Use memory (started by `farmem bench run`).
    #[command(hide = true, name = farmem_bench::run::WORK)]
    Work {
        /// Kind of work.
        name: String,
        /// Memory to use, in bytes.
        bytes: usize,
        /// CPU to run on [default: any].
        cpu: Option<usize>,
    },
    /// Run a graph application under a memory limit (started by `farmem bench soda`).
    #[command(hide = true, name = farmem_bench::soda::ALONE)]
    SodaAlone(SodaAlone),
}

/// Name of the command of a memory node that runs native code.
pub(crate) const NATIVE_ROLE: &str = "native-role";

/// Example of a rack.toml. `farmem up --example` prints it.
pub(crate) const EXAMPLE: &str = include_str!("example-rack.toml");

/// Arguments of `farmem up`.
#[derive(Debug, Args)]
#[command(
    after_help = "farmem up --example > rack.toml   writes the description of a rack with four memory nodes on this machine.\n\
                        Ctrl-C stops the rack.\n\
                        The command restarts a role that dies, and reports the losses on standard error, with --json also on standard output.\n\
                        The restarts wait 200, 400, 800 and 1600 ms. At the fifth death in a row, the role is given up. A death after 10 s of service\n\
                        begins a new row. The other roles continue, requests to the given-up role fail, and the exit code is 1."
)]
pub(crate) struct Up {
    /// Description of the rack.
    #[arg(required_unless_present = "example")]
    pub(crate) rack: Option<PathBuf>,
    /// Print an example of a rack description, then end.
    #[arg(long)]
    pub(crate) example: bool,
    /// Print the addresses of the roles as one JSON object, and each later event of a role as another.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `farmem tour`.
#[derive(Debug, Args)]
pub(crate) struct Tour {
    /// Print one JSON object at the end.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `farmem demo`.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Print the table as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// File of words to load, one per line [default: Debian's wamerican-insane, or a generated list without
    /// it].
    #[arg(long, value_name = "FILE")]
    pub(crate) words: Option<PathBuf>,
    /// Load only the first N words [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Use this running rack [default: start a rack for the demo].
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: Option<PathBuf>,
}

/// Parses an address in decimal or, with `0x`, in hexadecimal.
fn address(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "write it as 0x100000000000, or in decimal".to_owned())
}

/// Arguments of the guard of a run.
#[derive(Debug, clap::Args)]
pub(crate) struct Guard {
    /// Running rack from which the guard removes everything of the run.
    #[arg(long, value_name = "RACK.TOML", requires = "domain")]
    pub(crate) rack: Option<PathBuf>,
    /// Protection domain of the run.
    #[arg(long, value_name = "NAME", requires = "rack")]
    pub(crate) domain: Option<String>,
    /// Socket of the run, which the guard removes.
    #[arg(long, value_name = "FILE")]
    pub(crate) remove: Option<PathBuf>,
}

/// Arguments of `farmem run`.
#[derive(Debug, Args)]
#[command(after_help = "farmem run --local 64MiB --stats -- python3 program.py\n\
                        The exit code and the output are the program's own. Statistics go to standard error.")]
pub(crate) struct Run {
    /// Maximum local memory for pages of far memory, in bytes, at least 256 KiB. All processes of the program
    /// share it.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = bytes)]
    pub(crate) local: u64,
    /// Use this running rack [default: start a rack for the run].
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: Option<PathBuf>,
    /// Share named memory (`shm_open`) with all runs that have the same name, on any host of the rack; needs
    /// --rack.
    #[arg(long, value_name = "NAME", requires = "rack")]
    pub(crate) share: Option<String>,
    /// Part of --local that only shared memory may use, in bytes; needs --share [default: half of --local].
    #[arg(long, value_name = "SIZE", requires = "share", value_parser = bytes)]
    pub(crate) share_local: Option<u64>,
    /// Far memory of the rack that the run starts, in bytes; not with --rack. The rack takes memory from this
    /// machine only as the program uses it.
    #[arg(long, value_name = "SIZE", default_value = "8GiB", value_parser = bytes, conflicts_with = "rack")]
    pub(crate) far: u64,
    /// Minimum length of an anonymous mapping in far memory, in bytes. Shorter mappings stay in local memory.
    #[arg(long, value_name = "SIZE", default_value = "128KiB", value_parser = bytes)]
    pub(crate) threshold: u64,
    /// Maximum number of pages that a stream of faults fetches at a time; 1 fetches each page alone.
    #[arg(long, value_name = "PAGES", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) ahead: u64,
    /// Serve only page faults of user code, where the system permits no others. System calls on far memory
    /// then fail with EFAULT. Few programs work in this mode, and Python does not start.
    #[arg(long)]
    pub(crate) user_mode_only: bool,
    /// CPU on which page faults are served.
    #[arg(long, value_enum, default_value = "auto", value_name = "HOW")]
    pub(crate) placement: Placement,
    /// Calls by which the program's mappings become far.
    #[arg(long, value_enum, default_value = "auto", value_name = "HOW")]
    pub(crate) intercept: Intercept,
    /// Run without the filter of system calls. System calls that bypass libc can then lose bytes of far
    /// memory. As an ordinary user, only an unfiltered program can start setuid programs.
    #[arg(long)]
    pub(crate) no_filter: bool,
    /// Print the numbers of fetched, evicted and written-back pages to standard error when the program has
    /// ended.
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print the statistics as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Program to run, and its arguments.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Placement of the pager of `farmem run`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Placement {
    /// The CPU of the faulting thread, where that is faster.
    Auto,
    /// The kernel's choice.
    Free,
    /// The CPU of the faulting thread.
    Beside,
}

/// Calls that `farmem run` intercepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Intercept {
    /// `libc` for programs that are linked with glibc, else `syscalls`.
    Auto,
    /// Functions of glibc, by a preload library.
    Libc,
    /// System calls of all the program's processes, by a filter and ptrace; for programs that map memory past libc
    /// (SBCL).
    Syscalls,
}

/// Benchmark of `farmem bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Measure READ, WRITE, atomics and traversals over every transport, each with a raw exchange of the same
    /// size, mode and path.
    Net(BenchLinked),
    /// Measure traversal offload, and compare it with a page cache, READs, native code at the memory node,
    /// and the limits of this machine.
    Pulse(BenchDrawn),
    /// Measure coherent far memory: page faults, changes of a page's state, and scaling.
    Mind(BenchLinked),
    /// Measure the in-network index of a B-link tree (Fat-B+Tree), and compare it with READs and traversals
    /// from the root.
    Fat(BenchDrawn),
    /// Measure graphs in far memory with a DPU (SODA) and without, and compare them with local memory, a disk
    /// and zram.
    Soda(BenchDrawn),
    /// Measure `farmem kv`, with all data and with a twentieth of the data in local memory, and compare it
    /// with redis-server.
    Kv(BenchKv),
    /// Measure parts of preventive prefetching (PD3), the host view and the loading zone, and compare them
    /// with general-purpose sets and rings.
    Pd3(BenchPd3),
    /// Measure unmodified programs under `farmem run`, and compare them with the same programs alone, on a
    /// swap file, and on zram.
    Run(BenchRows),
}

/// Arguments of `farmem bench pulse`, `fat` and `soda`.
#[derive(Debug, Args)]
pub(crate) struct BenchDrawn {
    /// Rows to measure.
    #[command(flatten)]
    pub(crate) rows: BenchRows,
    /// Draw figures as SVG files into this directory [default: draw none].
    #[arg(long, value_name = "DIR")]
    pub(crate) plots: Option<PathBuf>,
    /// Links of the benchmark's racks.
    #[command(flatten)]
    pub(crate) links: BenchLinks,
}

/// Arguments of `farmem soda-alone`.
#[derive(Debug, Args)]
pub(crate) struct SodaAlone {
    /// File of the graph.
    pub(crate) file: PathBuf,
    /// Graph application.
    pub(crate) app: String,
    /// Kind of memory of the graph.
    pub(crate) system: String,
    /// Rounds of pagerank.
    pub(crate) rounds: u64,
    /// Start vertices, separated by commas.
    pub(crate) sources: String,
}

/// Arguments of `farmem bench net` and `mind`.
#[derive(Debug, Args)]
pub(crate) struct BenchLinked {
    /// Rows to measure.
    #[command(flatten)]
    pub(crate) rows: BenchRows,
    /// Links of the benchmark's racks.
    #[command(flatten)]
    pub(crate) links: BenchLinks,
}

/// Arguments of `farmem bench pd3`.
#[derive(Debug, Args)]
pub(crate) struct BenchPd3 {
    /// Rows to measure.
    #[command(flatten)]
    pub(crate) rows: BenchRows,
    /// Number of keys in the host view [default: 100,000,000; fewer with --quick]. All sets together need 64
    /// bytes per key.
    #[arg(long, value_name = "N")]
    pub(crate) keys: Option<usize>,
    /// Draw the paper's figures as SVG files into this directory [default: draw none].
    #[arg(long, value_name = "DIR")]
    pub(crate) plots: Option<PathBuf>,
}

/// Arguments of `farmem bench kv`.
#[derive(Debug, Args)]
pub(crate) struct BenchKv {
    /// Rows to measure.
    #[command(flatten)]
    pub(crate) rows: BenchRows,
    /// Draw figures as SVG files into this directory [default: draw none].
    #[arg(long, value_name = "DIR")]
    pub(crate) plots: Option<PathBuf>,
}

/// Arguments of `farmem bench run`, which other benchmarks include.
#[derive(Debug, Args)]
pub(crate) struct BenchRows {
    /// Print one JSON object instead of the table; progress and notes go to stderr.
    #[arg(long)]
    pub(crate) json: bool,
    /// Use less data, fewer systems and fewer repetitions: ends within 20 s.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Measure only rows whose ids begin with PREFIX, such as pulse.e2e, mind.fault, fat.e2e, soda.run or
    /// run.over4. Commas separate several prefixes [default: all rows].
    #[arg(long, value_name = "PREFIX")]
    pub(crate) only: Option<String>,
}

/// Arguments for the links of a benchmark's racks.
#[derive(Debug, Args)]
pub(crate) struct BenchLinks {
    /// Network that the racks' links emulate: none, a name such as 100g-2us, or values such as
    /// rate=25Gbit/s,delay=5us,burst=64KiB,loss=0.1%.
    #[arg(long, value_name = "PROFILE", default_value = "none")]
    pub(crate) link: LinkProfile,
}

/// Arguments of `farmem compile`.
#[derive(Debug, Args)]
pub(crate) struct Compile {
    /// C or C++ source file, or a BPF object file that clang compiled.
    pub(crate) file: PathBuf,
    /// Name of the iterator; required when the file has several.
    #[arg(long, value_name = "NAME")]
    pub(crate) iterator: Option<String>,
    /// Search this folder for headers, too. The C headers of the system are always found.
    #[arg(short = 'I', long, value_name = "FOLDER")]
    pub(crate) include: Vec<PathBuf>,
    /// Define a macro; without a value, as 1.
    #[arg(short = 'D', long, value_name = "NAME[=VALUE]")]
    pub(crate) define: Vec<String>,
    /// Print the cost of the program instead of the program.
    #[arg(long)]
    pub(crate) explain: bool,
    /// Write the program to this file: as text when the name ends in .pulse, otherwise in the encoding of the
    /// wire format [default: print it].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print the program and its cost as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Offload when the logic takes at most this share of the load time: a fraction such as 3/4, or a
    /// decimal, at most 1.
    #[arg(long, value_name = "ETA", default_value = "3/4", value_parser = eta::parse_eta)]
    pub(crate) eta: farmem_compiler::Eta,
    /// Time of the accelerator for an instruction, in picoseconds.
    #[arg(long, value_name = "PS", default_value_t = 4_000)]
    pub(crate) instruction_ps: u64,
    /// Time of the accelerator for a load of one line, in picoseconds.
    #[arg(long, value_name = "PS", default_value_t = 132_000)]
    pub(crate) load_ps: u64,
    /// Time of the accelerator for each further line of a load, in picoseconds.
    #[arg(long, value_name = "PS", default_value_t = 4_000)]
    pub(crate) line_ps: u64,
}

/// Arguments of `farmem doctor`.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Also check the roles of this rack, and the effects of its description.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: Option<PathBuf>,
    /// Print the findings as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `farmem role`.
#[derive(Debug, Args)]
pub(crate) struct Role {
    /// Role to run: control, switch, node with --node, index with --index, or dpu.
    #[arg(value_enum)]
    pub(crate) role: RoleName,
    /// Name of the memory node.
    #[arg(long, required_if_eq("role", "node"))]
    pub(crate) node: Option<String>,
    /// Name of the index switch.
    #[arg(long, required_if_eq("role", "index"))]
    pub(crate) index: Option<String>,
    /// Description of the rack.
    #[arg(long)]
    pub(crate) rack: PathBuf,
    /// End when standard input ends, as `farmem up` requires of its roles. Otherwise, only SIGTERM or Ctrl-C
    /// ends the role.
    #[arg(long)]
    pub(crate) until_input_ends: bool,
    /// Write log lines of this level and above to standard error [default: FARMEM_LOG, else info; for a role
    /// of `farmem up`, off].
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub(crate) log: Option<LogLevel>,
}

/// Arguments of `farmem native-role`.
#[derive(Debug, Args)]
pub(crate) struct NativeRole {
    /// Number of traversals with interleaved hops.
    #[arg(long, value_name = "N")]
    pub(crate) workspaces: usize,
    /// Additional time of each iteration, in nanoseconds.
    #[arg(long, value_name = "NS")]
    pub(crate) stretch_ns: u64,
    /// Role to run.
    #[command(flatten)]
    pub(crate) role: Role,
}

/// Role that runs as a separate process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum RoleName {
    /// Control plane.
    Control,
    /// Switch.
    Switch,
    /// Memory node.
    Node,
    /// Index switch.
    Index,
    /// DPU of this host, through which the windows of its processes access far memory.
    Dpu,
}

/// Arguments of `farmem sim`.
#[derive(Debug, Args)]
pub(crate) struct Sim {
    /// Kind of simulation.
    #[arg(value_enum)]
    pub(crate) run: SimRun,
    /// Number of operations that the programs make, in all simulations together. The report counts every
    /// completed operation, so it counts more: with `rack`, also control plane calls and the final read of
    /// all memory.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) operations: u64,
    /// Number of simulations, each with its own seed.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) seeds: u64,
    /// First seed. With --seeds 1, the run repeats exactly this simulation.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Plan of network and machine faults.
    #[arg(long, default_value = "storm", value_parser = PossibleValuesParser::new(Plan::names()))]
    pub(crate) plan: String,
    /// Racks of `explore`: gate, all, or a number.
    #[arg(long, default_value = "gate", value_name = "RACKS")]
    pub(crate) config: String,
    /// With `explore`, remove this guard of the protocol, and run the smallest rack that shows its purpose
    /// [default: remove none].
    #[arg(long, value_name = "GUARD", value_parser = PossibleValuesParser::new(farmem_sim::explore::Guard::ALL.map(|(_, name)| name)))]
    pub(crate) without: Option<String>,
    /// Print the report as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Kind of simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum SimRun {
    /// One reliable connection.
    Rc,
    /// Datagram requests with retransmission and deduplication.
    Ud,
    /// Whole rack.
    Rack,
    /// Hosts that share pages.
    Pages,
    /// Page cache of one program, with a memory that fails.
    Paging,
    /// Prefetches of a DPU for a host, with clients, and a mirror and a memory node that fail.
    Pd3,
    /// Every reachable state of the coherence protocol in small racks; without seeds and plans.
    Explore,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    /// Help texts contain no rustdoc links, because a reader of `--help` cannot follow them.
    #[test]
    fn no_help_has_links_to_items() {
        fn look(command: &mut clap::Command) -> usize {
            let help = command.render_long_help().to_string();
            for link in ["[`", "`]", "::"] {
                assert!(!help.contains(link), "{link:?} is in the help of {}: {help}", command.get_name());
            }
            1 + command.get_subcommands_mut().map(look).sum::<usize>()
        }
        assert!(look(&mut Cli::command()) > 40, "all commands were looked at");
    }
}
