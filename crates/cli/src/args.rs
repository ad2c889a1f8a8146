//! The command line, as typed. Help texts are here, on the flags they explain.

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

pub(crate) use index::{Index, IndexDrop, IndexLive, IndexLoad, IndexPlan, IndexServe, Switches};
pub(crate) use manage::{Free, Leave, Status};
pub(crate) use object::{Object, ObjectClose, ObjectOpen, ObjectSave, ObjectStatus};
pub(crate) use rack::{Join, Migrate};
pub(crate) use trace::{Trace, TraceInfo, TraceRecord, TraceReplay};

/// Far memory for a rack of ordinary Linux machines.
#[derive(Debug, Parser)]
#[command(name = "farmem", version = farmem::BUILD, about, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the roles of a rack as processes and print where they listen.
    Up(Up),
    /// Look every word of a dictionary in far memory up, by READs and by traversals, and run the three applications.
    Demo(Demo),
    /// Run a program whose large mappings and heap live in far memory. It is not modified, and knows nothing of it.
    Run(Run),
    /// A web service whose users and their objects are in far memory: chained hash table, 8 KiB objects, YCSB A, B or C.
    Webservice(farmem_webservice::Args),
    /// A table whose index and values are in far memory: B+tree, values of 240 bytes, YCSB E.
    Tablestore(farmem_tablestore::Args),
    /// Run a key-value store whose one table is shared by workers on many hosts, by loads and stores.
    Nativekvs(farmem_nativekvs::Args),
    /// An ordered key-value store whose index switches hold: values of up to 64 KiB, YCSB A to F.
    Orderedkv(farmem_orderedkv::Args),
    /// Serve Redis clients, from data that may be larger than this machine's memory: a bounded part is here, the rest far (docs/kv.md).
    Kv(Box<farmem_kv::Args>),
    /// Windows of 1 s to 8 s over sensor data in far memory: sum, mean, min and max.
    Timeseries(farmem_timeseries::Args),
    /// Rank, search, connect and count in graphs whose arrays are in far memory; make and convert files of graphs.
    #[command(subcommand)]
    Graph(farmem_graph::Command),
    /// Measure, beside the raw operation in the same run.
    Bench {
        /// What to measure.
        #[command(subcommand)]
        bench: Bench,
    },
    /// Print what another machine joins a rack with: address, token and the certificate of its authority, in one file (docs/operate.md).
    Join(Join),
    /// Say which node has what of a running rack's memory, and move memory to another node while programs use it.
    Migrate(Migrate),
    /// Say who has what of a running rack: hosts and domains, their memory, and the time that is left to each.
    Status(Status),
    /// Free what a domain has: allocations, and objects that no program has open.
    Free(Free),
    /// Take a host out of a running rack, with its sessions and connections.
    Leave(Leave),
    /// Objects by file: a memory node loads files of its own into far memory, and saves them (docs/objects.md).
    #[command(subcommand)]
    Object(Object),
    /// Compile an iterator, in C or C++, to a traversal program (docs/iterators.md).
    Compile(Compile),
    /// The index of a B+tree that switches hold (Fat-B+Tree): what it costs, who keeps it, what it answers; ordered stores over it.
    #[command(subcommand)]
    Index(Index),
    /// Say what this machine can and cannot do, and the remedy for each.
    Doctor(Doctor),
    /// Play roles in a simulated world with faults, repeatable from a seed.
    Sim(Sim),
    /// Record what a program does with its memory, for replays over simulated racks.
    #[command(subcommand)]
    Trace(Trace),
    /// Write man pages, one for each command, into a directory.
    Manual {
        /// Directory for the pages; created if absent.
        directory: PathBuf,
    },
    /// Print a script that completes farmem's commands and options in a shell.
    Completions {
        /// The shell to complete in.
        shell: clap_complete::Shell,
    },
    /// Hold what must not close when `farmem run` dies (started by it).
    #[command(hide = true)]
    Guard(Guard),
    /// Serve as one role of a rack, until SIGTERM: for racks of several machines (docs/operate.md).
    Role(Role),
    /// Make system calls (started by `farmem bench mind`).
    #[command(hide = true, name = farmem_bench::mind::CALLS)]
    Calls,
    /// Touch memory under a limit (started by `farmem bench mind`).
    #[command(hide = true, name = farmem_bench::mind::SQUEEZED)]
    ZramProbe {
        /// Pages of the memory.
        pages: usize,
        /// Times that each is touched.
        rounds: usize,
    },
    /// Work with memory (started by `farmem bench run`).
    #[command(hide = true, name = farmem_bench::run::WORK)]
    Work {
        /// The kind of work.
        name: String,
        /// Bytes of memory.
        bytes: usize,
        /// The CPU to run on.
        cpu: Option<usize>,
    },
    /// Run an application on a graph under a limit (started by `farmem bench soda`).
    #[command(hide = true, name = farmem_bench::soda::ALONE)]
    SodaAlone(SodaAlone),
}

/// An example of a rack.toml; `farmem up --example` prints it.
pub(crate) const EXAMPLE: &str = include_str!("example-rack.toml");

/// `farmem up`
#[derive(Debug, Args)]
#[command(
    after_help = "farmem up --example > rack.toml   writes a rack of four memory nodes on this machine.\n\
                        Ctrl-C stops the rack.\n\
                        A role that dies is started again; standard error says what was lost, with --json also a line on standard output.\n\
                        It waits 200, 400, 800 and 1600 ms after its first four deaths in a row, and is given up at the fifth; a death after 10 s of serving\n\
                        begins a new row. The others go on, what needs the one given up fails, and the exit code is 1."
)]
pub(crate) struct Up {
    /// The rack's description.
    #[arg(required_unless_present = "example")]
    pub(crate) rack: Option<PathBuf>,
    /// Print an example description and end.
    #[arg(long)]
    pub(crate) example: bool,
    /// Print where the roles listen as one JSON object, and what becomes of them later as one each.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `farmem demo`
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Print the table as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Words to load, one a line [default: Debian's wamerican-insane, or a generated list when it is absent].
    #[arg(long, value_name = "FILE")]
    pub(crate) words: Option<PathBuf>,
    /// Load only the first N words.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Use this running rack instead of starting one.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: Option<PathBuf>,
}

/// An address, as people write it.
fn address(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "write it as 0x100000000000, or in decimal".to_owned())
}

/// What the guard of a run is told.
#[derive(Debug, clap::Args)]
pub(crate) struct Guard {
    /// The running rack on which nothing of the run is to be left.
    #[arg(long, value_name = "RACK.TOML", requires = "domain")]
    pub(crate) rack: Option<PathBuf>,
    /// The run's domain.
    #[arg(long, value_name = "NAME", requires = "rack")]
    pub(crate) domain: Option<String>,
    /// The run's socket, of which nothing is to be left either.
    #[arg(long, value_name = "FILE")]
    pub(crate) remove: Option<PathBuf>,
}

/// `farmem run`
#[derive(Debug, Args)]
#[command(after_help = "farmem run --local 64MiB --stats -- python3 program.py\n\
                        Exit code and output are the program's own; statistics go to standard error.")]
pub(crate) struct Run {
    /// Bytes of far memory that may be here at once, of all the program's processes together; at least 256 KiB.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = bytes)]
    pub(crate) local: u64,
    /// Use this running rack instead of starting one.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: Option<PathBuf>,
    /// Share named memory (`shm_open`) with all runs that share by this name, on whatever hosts of the rack; needs --rack.
    #[arg(long, value_name = "NAME", requires = "rack")]
    pub(crate) share: Option<String>,
    /// Bytes of the local limit that are for shared memory, and for nothing else; needs --share [default: half of it].
    #[arg(long, value_name = "SIZE", requires = "share", value_parser = bytes)]
    pub(crate) share_local: Option<u64>,
    /// Far memory of the rack that is started when none is named; not with --rack. It is taken from this machine as it is used.
    #[arg(long, value_name = "SIZE", default_value = "8GiB", value_parser = bytes, conflicts_with = "rack")]
    pub(crate) far: u64,
    /// Anonymous mappings of fewer bytes stay local.
    #[arg(long, value_name = "SIZE", default_value = "128KiB", value_parser = bytes)]
    pub(crate) threshold: u64,
    /// Pages fetched at most for a stream of faults; 1 fetches each page alone.
    #[arg(long, value_name = "PAGES", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) ahead: u64,
    /// Serve faults of user code only, where the system allows no more: system calls on far memory fail with EFAULT. Few programs bear that;
    /// Python cannot even start.
    #[arg(long)]
    pub(crate) user_mode_only: bool,
    /// No filter of system calls: those that pass libc by can lose bytes of far memory. An ordinary user's program can then start setuid programs.
    #[arg(long)]
    pub(crate) no_filter: bool,
    /// When the program has ended, print what was fetched, evicted and written back to standard error.
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print the statistics as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// READ, WRITE, atomics and traversals over every transport, beside a raw exchange of the same size, mode and path.
    Net(BenchNet),
    /// Traversal offload beside a page cache, READs, native code at the memory node, and the limits of this machine.
    Pulse(BenchDrawn),
    /// Coherent far memory: faults, changes of a page's state, and how they scale.
    Mind(BenchLinked),
    /// The in-network index of a B-link tree (Fat-B+Tree), beside READs and traversals from the root.
    Fat(BenchDrawn),
    /// Graphs in far memory by way of a DPU (SODA) and without, beside local memory, a disk and zram.
    Soda(BenchDrawn),
    /// `farmem kv`, all data here and a twentieth of it here, beside redis-server.
    Kv(BenchKv),
    /// Parts of preventive prefetching (PD3): the host view and the loading zone, beside general-purpose sets and rings.
    Pd3(BenchPd3),
    /// Unmodified programs under `farmem run`, beside the same programs alone, on a swap file, and on zram.
    Run(BenchRows),
}

/// `farmem bench net`
#[derive(Debug, Args)]
pub(crate) struct BenchNet {
    /// Print one JSON object instead of the table; progress and notes go to stderr.
    #[arg(long)]
    pub(crate) json: bool,
    /// Fewer repetitions: ends within 20 s.
    #[arg(long)]
    pub(crate) quick: bool,
    /// What its racks' links are.
    #[command(flatten)]
    pub(crate) links: BenchLinks,
}

/// `farmem bench pulse`, `fat` and `soda`
#[derive(Debug, Args)]
pub(crate) struct BenchDrawn {
    /// What is measured.
    #[command(flatten)]
    pub(crate) rows: BenchRows,
    /// Draw figures into this directory, as SVG.
    #[arg(long, value_name = "DIR")]
    pub(crate) plots: Option<PathBuf>,
    /// What its racks' links are.
    #[command(flatten)]
    pub(crate) links: BenchLinks,
}

/// `farmem soda-alone`
#[derive(Debug, Args)]
pub(crate) struct SodaAlone {
    /// The graph.
    pub(crate) file: PathBuf,
    /// The application.
    pub(crate) app: String,
    /// Where its memory is.
    pub(crate) system: String,
    /// Rounds of pagerank.
    pub(crate) rounds: u64,
    /// Vertices to begin at, with commas between them.
    pub(crate) sources: String,
}

/// `farmem bench mind`
#[derive(Debug, Args)]
pub(crate) struct BenchLinked {
    /// What is measured.
    #[command(flatten)]
    pub(crate) rows: BenchRows,
    /// What its racks' links are.
    #[command(flatten)]
    pub(crate) links: BenchLinks,
}

/// `farmem bench pd3`
#[derive(Debug, Args)]
pub(crate) struct BenchPd3 {
    /// What is measured.
    #[command(flatten)]
    pub(crate) rows: BenchRows,
    /// Keys in the host view; 100,000,000 unless `--quick` is given. All sets together need 64 bytes for each.
    #[arg(long, value_name = "N")]
    pub(crate) keys: Option<usize>,
    /// Draw the paper's figures into this directory, as SVG.
    #[arg(long, value_name = "DIR")]
    pub(crate) plots: Option<PathBuf>,
}

/// `farmem bench kv`
#[derive(Debug, Args)]
pub(crate) struct BenchKv {
    /// What is measured.
    #[command(flatten)]
    pub(crate) rows: BenchRows,
    /// Draw figures into this directory, as SVG.
    #[arg(long, value_name = "DIR")]
    pub(crate) plots: Option<PathBuf>,
}

/// `farmem bench run`, and what it shares with others
#[derive(Debug, Args)]
pub(crate) struct BenchRows {
    /// Print one JSON object instead of the table; progress and notes go to stderr.
    #[arg(long)]
    pub(crate) json: bool,
    /// Less data or memory, and fewer systems and repetitions: ends within 20 s.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Measure only rows whose ids begin with PREFIX, such as pulse.e2e, mind.fault, fat.e2e, soda.run or run.over4; several with commas between them.
    #[arg(long, value_name = "PREFIX")]
    pub(crate) only: Option<String>,
}

impl BenchRows {
    /// What is to be measured.
    pub(crate) fn plan(&self) -> farmem_bench::Plan {
        farmem_bench::Plan { quick: self.quick, only: self.only.clone().unwrap_or_default() }
    }
}

/// The links of a benchmark's racks
#[derive(Debug, Args)]
pub(crate) struct BenchLinks {
    /// The network that the racks' links stand for: none, a name as 100g-2us, or values as rate=25Gbit/s,delay=5us,burst=64KiB,loss=0.1%.
    #[arg(long, value_name = "PROFILE", default_value = "none")]
    pub(crate) link: LinkProfile,
}

/// `farmem compile`
#[derive(Debug, Args)]
pub(crate) struct Compile {
    /// A C or C++ source, or a BPF object that clang made of one.
    pub(crate) file: PathBuf,
    /// Which iterator, when the file has several.
    #[arg(long, value_name = "NAME")]
    pub(crate) iterator: Option<String>,
    /// Look for headers in this folder, too. The system's headers of C are found without.
    #[arg(short = 'I', long, value_name = "FOLDER")]
    pub(crate) include: Vec<PathBuf>,
    /// Define a macro.
    #[arg(short = 'D', long, value_name = "NAME[=VALUE]")]
    pub(crate) define: Vec<String>,
    /// Account for its cost instead of printing the program.
    #[arg(long)]
    pub(crate) explain: bool,
    /// Write the program to this file: as text when its name ends in .pulse, else the bytes that travel.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print program and account as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Offload when the logic takes at most this share of the load: a fraction as 3/4, or a decimal, at most 1.
    #[arg(long, value_name = "ETA", default_value = "3/4", value_parser = crate::compile::parse_eta)]
    pub(crate) eta: farmem_compiler::Eta,
    /// The accelerator's time for an instruction, in picoseconds.
    #[arg(long, value_name = "PS", default_value_t = 4_000)]
    pub(crate) instruction_ps: u64,
    /// Its time for a load of one line, in picoseconds.
    #[arg(long, value_name = "PS", default_value_t = 132_000)]
    pub(crate) load_ps: u64,
    /// Its time for each further line, in picoseconds.
    #[arg(long, value_name = "PS", default_value_t = 4_000)]
    pub(crate) line_ps: u64,
}

/// `farmem doctor`
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Look also at the roles of this rack, and at what its description costs.
    #[arg(long, value_name = "RACK.TOML")]
    pub(crate) rack: Option<PathBuf>,
    /// Print the findings as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `farmem role`
#[derive(Debug, Args)]
pub(crate) struct Role {
    /// Which role: control, switch, node with `--node`, index with `--index`, or dpu.
    #[arg(value_enum)]
    pub(crate) role: RoleName,
    /// The memory node's name.
    #[arg(long, required_if_eq("role", "node"))]
    pub(crate) node: Option<String>,
    /// The name of the switch of the index.
    #[arg(long, required_if_eq("role", "index"))]
    pub(crate) index: Option<String>,
    /// The rack's description.
    #[arg(long)]
    pub(crate) rack: PathBuf,
    /// End when standard input ends, as `farmem up` wants it of the roles that it starts; without it, at SIGTERM or Ctrl-C alone.
    #[arg(long)]
    pub(crate) until_input_ends: bool,
    /// Write what happens to the role to standard error, from this level on [default: FARMEM_LOG, else info; for a role of `farmem up`, off].
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub(crate) log: Option<LogLevel>,
    /// What a memory node runs traversals with.
    #[command(flatten)]
    pub(crate) runs: NodeRuns,
}

/// What a memory node runs traversals with: farmem's engine, or something to compare it with.
#[derive(Clone, Copy, Default, Debug, Args)]
pub(crate) struct NodeRuns {
    /// Native code in the place of known programs.
    #[arg(long, requires = "workspaces")]
    pub(crate) native: bool,
    /// Traversals whose hops are interleaved, with --native.
    #[arg(long, value_name = "N", requires = "native")]
    pub(crate) workspaces: Option<usize>,
    /// What each iteration takes longer than it needs, in nanoseconds, with --native.
    #[arg(long, value_name = "NS", requires = "native", default_value_t = 0)]
    pub(crate) stretch_ns: u64,
}

impl NodeRuns {
    /// As they are typed.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let Self { native, workspaces, stretch_ns } = *self;
        let mut arguments = Vec::new();
        if native {
            arguments.extend(["--native".to_owned(), format!("--stretch-ns={stretch_ns}")]);
            arguments.extend(workspaces.map(|count| format!("--workspaces={count}")));
        }
        arguments
    }
}

/// The roles that run as processes of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum RoleName {
    /// The control plane.
    Control,
    /// The switch.
    Switch,
    /// A memory node.
    Node,
    /// A switch of the index.
    Index,
    /// The DPU beside this host: the way of its processes' windows to far memory.
    Dpu,
}

/// `farmem sim`
#[derive(Debug, Args)]
pub(crate) struct Sim {
    /// What to play.
    #[arg(value_enum)]
    pub(crate) run: SimRun,
    /// Operations that the programs are to make, in all worlds together. The report counts those that ended and what a world does besides,
    /// so it counts more: of `rack`, calls of the control plane and the reading of all memory at the end.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) operations: u64,
    /// Worlds to play them in.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) seeds: u64,
    /// The first seed; with `--seeds 1` exactly this world is played again.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// What goes wrong, of network and machines.
    #[arg(long, default_value = "storm", value_parser = PossibleValuesParser::new(Plan::names()))]
    pub(crate) plan: String,
    /// Of `explore`: which racks: `gate`, `all`, or a number.
    #[arg(long, default_value = "gate", value_name = "RACKS")]
    pub(crate) config: String,
    /// Of `explore`: the smallest rack that shows what this guard of the protocol is for, without it.
    #[arg(long, value_name = "GUARD", value_parser = PossibleValuesParser::new(farmem_sim::explore::Guard::ALL.map(|(_, name)| name)))]
    pub(crate) without: Option<String>,
    /// Print the report as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What the simulator plays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum SimRun {
    /// One reliable connection.
    Rc,
    /// Datagram requests with retransmission and de-duplication.
    Ud,
    /// A whole rack.
    Rack,
    /// Hosts that share pages.
    Pages,
    /// The page cache of one program beside a memory that fails.
    Paging,
    /// What a DPU prefetches for a host, with clients, a mirror and a memory node that fail.
    Pd3,
    /// Every state that the coherence protocol can reach in small racks; neither seeds nor plans.
    Explore,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    /// Who reads a command's help follows no link to an item: what rustdoc alone makes one of stands in none.
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
