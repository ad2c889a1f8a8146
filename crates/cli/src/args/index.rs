//! Arguments of `farmem index`.

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use farmem_index::{ADDR_BITS, Budget, PIVOTS, RANGES_DEFAULT, RANGES_MAX, SET_NODES_MAX, SETS_MAX};
use farmem_orderedkv::KeyType;
use farmem_orderedkv::load::{Column, Format};
use farmem_workload::Keys;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Commands of `farmem index`.
#[derive(Debug, Subcommand)]
pub(crate) enum Index {
    /// Print the cost of an index for a switch, stage by stage, and whether it fits; exit code 1 when it does
    /// not fit.
    Plan(IndexPlan),
    /// Publish a B-link tree to the switch, or to the index switches of a FatTree, until Ctrl-C. Each epoch,
    /// the agent reads the counters and the tree, selects nodes, and publishes a selection that saves more
    /// visits.
    Agent(IndexLive),
    /// Show the statistics of a published tree: look-ups by layer, entries in use, and the visits that the
    /// best selection would save.
    Top(IndexLive),
    /// Load a CSV or Parquet file into an ordered store.
    Load(IndexLoad),
    /// Serve an ordered store to clients of Redis, such as redis-cli, until Ctrl-C.
    Serve(IndexServe),
    /// Free an ordered store, with all its keys and its name.
    Drop(IndexDrop),
}

/// Arguments of `farmem index load`.
#[derive(Debug, Args)]
#[command(
    after_help = "farmem index load orders.csv --rack rack.toml --domain shop --store orders --key id --key-type u64 --value total\n\
                        farmem index load events.parquet --rack rack.toml --domain shop --store events --key at --key-type timestamp\n\
                        The command checks all rows before it writes the first. An empty store takes ascending numbers in bulk; all other keys are inserted\n\
                        one by one. A repeated command continues a stopped load after its last checkpoint, of which there is one every 1,024 rows."
)]
pub(crate) struct IndexLoad {
    /// File to load. Names that end in .csv, .tsv, .txt, .parquet or .pq imply the format.
    pub(crate) file: PathBuf,
    /// Description of the rack.
    #[arg(long)]
    pub(crate) rack: PathBuf,
    /// Protection domain of the store.
    #[arg(long)]
    pub(crate) domain: String,
    /// Name of the store; the command creates a missing store.
    #[arg(long)]
    pub(crate) store: String,
    /// Column of the keys, by name or by number, from 1 [default: the first].
    #[arg(long, value_name = "COLUMN")]
    pub(crate) key: Option<Column>,
    /// Type of the keys.
    #[arg(long, value_enum, default_value_t = KeyType::Text)]
    pub(crate) key_type: KeyType,
    /// Column of the values [default: the values are the row numbers].
    #[arg(long, value_name = "COLUMN")]
    pub(crate) value: Option<Column>,
    /// Format of the file [default: implied by its name].
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// Read the first line of a CSV file as data. Otherwise, it holds the column names.
    #[arg(long)]
    pub(crate) no_header: bool,
    /// Value of a row of a Parquet file whose value is null.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) null: String,
    /// Separator of the fields of a CSV file: one character, or tab.
    #[arg(long, value_name = "CHARACTER", default_value = ",", value_parser = delimiter)]
    pub(crate) delimiter: u8,
    /// Replace a writer of a text store that has ended or hangs. The command first removes the writer's host
    /// from the rack.
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses the separator of fields.
fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        &[byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => Ok(byte),
        _ => Err("write one ASCII character, such as ; or tab".to_owned()),
    }
}

/// Arguments of `farmem index serve`.
#[derive(Debug, Args)]
#[command(
    after_help = "farmem index serve --rack rack.toml --domain shop --store orders --listen 127.0.0.1:6379 &\n\
                        redis-cli set apple 1\n\
                        redis-cli range apple + limit 10\n\
                        Keys are in order. RANGE first last [LIMIT n] and KEYRANGE are additional commands; - is before all keys and + after them, and ( in front\n\
                        of a key excludes it. SET has no options, and keys do not expire. Every client that can reach the port can read and write."
)]
pub(crate) struct IndexServe {
    /// Description of the rack.
    #[arg(long)]
    pub(crate) rack: PathBuf,
    /// Protection domain of the store.
    #[arg(long)]
    pub(crate) domain: String,
    /// Name of the store.
    #[arg(long)]
    pub(crate) store: String,
    /// Create the store if it is missing.
    #[arg(long)]
    pub(crate) create: bool,
    /// Type of the store's keys.
    #[arg(long, visible_alias = "keys", value_enum, default_value_t = KeyType::Text)]
    pub(crate) key_type: KeyType,
    /// Address to listen on; port 0 selects a free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6379")]
    pub(crate) listen: SocketAddr,
    /// Replace a writer of a text store that has ended or hangs. The command first removes the writer's host
    /// from the rack.
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Print one JSON object once the server listens.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `farmem index drop`.
#[derive(Debug, Args)]
#[command(after_help = "farmem index drop orders --rack rack.toml --domain shop --yes\n\
                        A store that a program has open cannot be dropped. For a store that lost memory with a memory node, the name is removed, so that the\n\
                        store can be created again. Memory of it that can no longer be found stays allocated to the domain, and the command reports it.")]
pub(crate) struct IndexDrop {
    /// Name of the store.
    pub(crate) store: String,
    /// Description of the rack.
    #[arg(long)]
    pub(crate) rack: PathBuf,
    /// Protection domain of the store.
    #[arg(long)]
    pub(crate) domain: String,
    /// Confirm the removal; a dropped store cannot be restored.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Also drop a text store whose writer has ended or hangs. The command first removes the writer's host
    /// from the rack.
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `farmem index agent` and `farmem index top`.
#[derive(Debug, Args)]
#[command(after_help = "farmem index agent --rack rack.toml --domain shop --root 0x100000000000\n\
                        farmem index top --rack rack.toml --domain shop --root orders --once --json\n\
                        When an agent ends, it withdraws the published tree. A tree has only one agent.")]
pub(crate) struct IndexLive {
    /// Description of the rack.
    #[arg(long)]
    pub(crate) rack: PathBuf,
    /// Protection domain of the tree and of its look-ups.
    #[arg(long)]
    pub(crate) domain: String,
    /// Address of the tree, as 0x... or decimal. A name selects named memory of the domain, whose first eight
    /// bytes hold the address in little-endian order.
    #[arg(long, value_name = "ADDR|NAME")]
    pub(crate) root: String,
    /// Time between two epochs: a number with ms or s.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = span)]
    pub(crate) epoch: Duration,
    /// Maximum number of ranges of the fat root.
    #[arg(long, value_name = "N", default_value_t = RANGES_DEFAULT, value_parser = RangedU64ValueParser::<usize>::new().range(1..=RANGES_MAX as u64))]
    pub(crate) ranges: usize,
    /// Maximum number of node sets; in a FatTree, per switch below the core [default: 3; in a FatTree 2].
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(0..=SETS_MAX as u64))]
    pub(crate) sets: Option<usize>,
    /// Maximum number of nodes per set.
    #[arg(long, value_name = "N", default_value_t = 3_600, value_parser = RangedU64ValueParser::<usize>::new().range(1..=SET_NODES_MAX as u64))]
    pub(crate) nodes: usize,
    /// Switches that hold the index [default: the rack's FatTree if it has a core switch, otherwise the
    /// rack's switch].
    #[arg(long, value_enum)]
    pub(crate) at: Option<Switches>,
    /// Run one epoch, print its report, and end.
    #[arg(long)]
    pub(crate) once: bool,
    /// Print one JSON object per epoch.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Switches that hold the index of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Switches {
    /// The rack's switch.
    RackSwitch,
    /// Index switches of the FatTree behind the rack's switch.
    FatTree,
}

/// Parses a time with its unit.
fn span(text: &str) -> Result<Duration, String> {
    let parsed = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => number.parse().ok().map(Duration::from_millis),
        (_, Some(number)) => number.parse().ok().map(Duration::from_secs),
        _ => None,
    };
    let fits = |span: &Duration| (EPOCH_MIN..=EPOCH_MAX).contains(span);
    parsed.filter(fits).ok_or_else(|| "write 10ms to 3600s, as 500ms or 2s".to_owned())
}

/// Shortest epoch of an index agent. `EPOCH_MAX` is the longest.
const EPOCH_MIN: Duration = Duration::from_millis(10);
const EPOCH_MAX: Duration = Duration::from_secs(3_600);

/// Arguments of `farmem index plan`.
#[derive(Debug, Args)]
#[command(
    after_help = "farmem index plan --records 2000000 --ranges 600 --nodes 3600 --sets 3 --switches 2\n\
                        farmem index plan --records 20000000 --ranges 600 --nodes 3600 --sets 2 --pods 4\n\
                        The tree is the result of a bulk load. The default budget is a pipeline of a Tofino 1, as its compiler counts it, without other tables of the\n\
                        switch. A fat root takes six stages, and so does each set."
)]
pub(crate) struct IndexPlan {
    /// Number of records. The keys of the tree are the hashes of the record numbers, as in YCSB.
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = RangedU64ValueParser::<u64>::new().range(..=20_000_000))]
    pub(crate) records: u64,
    /// Use the record numbers, from 0, as keys, instead of their hashes.
    #[arg(long)]
    pub(crate) dense: bool,
    /// File of keys to use instead, one per line, as decimal or 0x... A key's number of accesses may follow
    /// it (otherwise 1).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["records", "dense", "keys", "operations", "seed"])]
    pub(crate) keys_file: Option<PathBuf>,
    /// Distribution of the accesses to the keys.
    #[arg(long, value_enum, default_value_t = Keys::Zipfian)]
    pub(crate) keys: Keys,
    /// Number of look-ups that make up the accesses.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = RangedU64ValueParser::<u64>::new().range(1..=1_000_000_000))]
    pub(crate) operations: u64,
    /// Seed of the look-ups; the same seed produces the same look-ups.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Number of keys per leaf.
    #[arg(long, value_name = "N", default_value_t = PIVOTS, value_parser = RangedU64ValueParser::<usize>::new().range(1..=15))]
    pub(crate) fill: usize,
    /// Maximum number of ranges of the fat root.
    #[arg(long, value_name = "N", default_value_t = RANGES_DEFAULT, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub(crate) ranges: usize,
    /// Maximum number of nodes per set.
    #[arg(long, value_name = "N", default_value_t = SET_NODES_MAX, value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub(crate) nodes: usize,
    /// Number of sets after the fat root.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(..=64))]
    pub(crate) sets: usize,
    /// Omit one entry of each range table, and put its result into the entry that leads to the table.
    #[arg(long)]
    pub(crate) default_results: bool,
    /// Number of switches on the path, which divide the parts among them; no part is split.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub(crate) switches: usize,
    /// Plan for a FatTree with this number of pods. A core switch has the fat root, and each switch below it
    /// --sets sets (2 in the paper) of the nodes at its servers.
    #[arg(long, value_name = "N", conflicts_with = "switches", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) pods: Option<u16>,
    /// Number of edge switches per pod.
    #[arg(long, value_name = "N", requires = "pods", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) edges: u16,
    /// Number of servers per edge switch.
    #[arg(long, value_name = "N", requires = "pods", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) servers: u16,
    /// Number of stages per switch.
    #[arg(long, value_name = "N", default_value_t = Budget::TOFINO.stages, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub(crate) stages: usize,
    /// Number of TCAM blocks per stage, of 512 words of 44 bits.
    #[arg(long, value_name = "N", default_value_t = Budget::TOFINO.tcam.blocks, value_parser = clap::value_parser!(u64).range(..=1 << 20))]
    pub(crate) tcam_blocks: u64,
    /// Number of SRAM blocks per stage, of 1024 words of 128 bits.
    #[arg(long, value_name = "N", default_value_t = Budget::TOFINO.sram.blocks, value_parser = clap::value_parser!(u64).range(..=1 << 20))]
    pub(crate) sram_blocks: u64,
    /// Number of bits per far-memory address in the switch.
    #[arg(long, value_name = "BITS", default_value_t = ADDR_BITS, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) addr_bits: u32,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
