//! The arguments of `farmem index`.

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use farmem_index::{ADDR_BITS, Budget, PIVOTS, RANGES_DEFAULT, RANGES_MAX, SET_NODES_MAX, SETS_MAX};
use farmem_orderedkv::KeyKind;
use farmem_orderedkv::load::{Column, Format, KeyType};
use farmem_workload::Keys;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// `farmem index`
#[derive(Debug, Subcommand)]
pub(crate) enum Index {
    /// Say what an index costs a switch, stage by stage, and whether it fits: exit code 1 when it does not.
    Plan(IndexPlan),
    /// Publish a B-link tree to the switch, or to the index switches of a FatTree, and follow its look-ups: every epoch counters and tree are read, nodes selected, and what saves more is
    /// published. Ctrl-C withdraws the tree.
    Agent(IndexLive),
    /// Show what a published tree answers: look-ups by layer, entries in use, and how much a selection for just these look-ups would save.
    Top(IndexLive),
    /// Fill an ordered store from a CSV or Parquet file.
    Load(IndexLoad),
    /// Serve an ordered store to clients that speak RESP2, such as redis-cli, until Ctrl-C.
    Serve(IndexServe),
    /// Free an ordered store with all its keys, and its name.
    Drop(IndexDrop),
}

/// `farmem index load`
#[derive(Debug, Args)]
#[command(
    after_help = "farmem index load orders.csv --rack rack.toml --domain shop --store orders --key id --key-type u64 --value total\n\
                        farmem index load events.parquet --rack rack.toml --domain shop --store events --key at --key-type timestamp\n\
                        All rows are looked at before the first is written. Numbers in ascending order go into an empty store together; anything else key by\n\
                        key, and a load that was stopped goes on behind its last note, of every 1,024 rows, when the command is given again."
)]
pub(crate) struct IndexLoad {
    /// The file. A name that ends in .csv, .tsv, .txt, .parquet or .pq says what it is.
    pub(crate) file: PathBuf,
    /// The rack's description.
    #[arg(long)]
    pub(crate) rack: PathBuf,
    /// The protection domain of the store.
    #[arg(long)]
    pub(crate) domain: String,
    /// The store's name; it is made when there is none.
    #[arg(long)]
    pub(crate) store: String,
    /// The column of the keys, by name or by number from 1 on [default: the first].
    #[arg(long, value_name = "COLUMN")]
    pub(crate) key: Option<Column>,
    /// What the keys are [default: string].
    #[arg(long, value_enum)]
    pub(crate) key_type: Option<KeyType>,
    /// The column of the values [default: the values are the rows' numbers].
    #[arg(long, value_name = "COLUMN")]
    pub(crate) value: Option<Column>,
    /// What the file is, where its name does not say so.
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// The first line of a CSV file has no names.
    #[arg(long)]
    pub(crate) no_header: bool,
    /// What is between two fields of a CSV file: one character, or tab.
    #[arg(long, value_name = "CHARACTER", default_value = ",", value_parser = delimiter)]
    pub(crate) delimiter: u8,
    /// Write to a store of texts in place of a writer that has ended or hangs: its host is taken out of the rack first.
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A field's end, as people write it.
fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        &[byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => Ok(byte),
        _ => Err("write one ASCII character, such as ; or tab".to_owned()),
    }
}

/// `farmem index serve`
#[derive(Debug, Args)]
#[command(
    after_help = "farmem index serve --rack rack.toml --domain shop --store orders --listen 127.0.0.1:6379 &\n\
                        redis-cli set apple 1\n\
                        redis-cli range apple + limit 10\n\
                        Keys are in order. RANGE first last [LIMIT n] and KEYRANGE are its own; - is before all keys and + behind them. There are no options to SET,\n\
                        and no keys that end by themselves. Whoever reaches the port may read and write."
)]
pub(crate) struct IndexServe {
    /// The rack's description.
    #[arg(long)]
    pub(crate) rack: PathBuf,
    /// The protection domain of the store.
    #[arg(long)]
    pub(crate) domain: String,
    /// The store's name; it is made when there is none.
    #[arg(long)]
    pub(crate) store: String,
    /// What its keys are.
    #[arg(long, value_enum, default_value_t = KeyKind::Text)]
    pub(crate) keys: KeyKind,
    /// Where to listen; port 0 takes any.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6379")]
    pub(crate) listen: SocketAddr,
    /// Serve a store of texts in place of a writer that has ended or hangs: its host is taken out of the rack first.
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Print one JSON object when it listens.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `farmem index drop`
#[derive(Debug, Args)]
#[command(after_help = "farmem index drop orders --rack rack.toml --domain shop --yes\n\
                        A store that any program has open is not dropped. Of one that lost memory with a memory node the name goes, so that it can be made anew;\n\
                        what cannot be found of it any more stays allocated to the domain, and that is said.")]
pub(crate) struct IndexDrop {
    /// The store's name.
    pub(crate) store: String,
    /// The rack's description.
    #[arg(long)]
    pub(crate) rack: PathBuf,
    /// The protection domain of the store.
    #[arg(long)]
    pub(crate) domain: String,
    /// Do it: nothing of the store comes back.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Also where a writer of texts has ended or hangs: its host is taken out of the rack first.
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `farmem index agent`, `farmem index top`
#[derive(Debug, Args)]
#[command(after_help = "farmem index agent --rack rack.toml --domain shop --root 0x100000000000\n\
                        farmem index top --rack rack.toml --domain shop --root orders --once --json\n\
                        What an agent published goes when it ends. A tree has one agent.")]
pub(crate) struct IndexLive {
    /// The rack's description.
    #[arg(long)]
    pub(crate) rack: PathBuf,
    /// The protection domain of the tree and of its look-ups.
    #[arg(long)]
    pub(crate) domain: String,
    /// Where the tree is: its address, as 0x... or decimal, or the name of named memory of the domain whose first eight bytes are
    /// the address, little-endian.
    #[arg(long, value_name = "ADDR|NAME")]
    pub(crate) root: String,
    /// Time from one look to the next: a number and ms or s.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = span)]
    pub(crate) epoch: Duration,
    /// Ranges of the fat root at most.
    #[arg(long, value_name = "N", default_value_t = RANGES_DEFAULT, value_parser = RangedU64ValueParser::<usize>::new().range(1..=RANGES_MAX as u64))]
    pub(crate) ranges: usize,
    /// Node sets at most; in a FatTree of each switch below the core [default: 3; in a FatTree 2].
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(0..=SETS_MAX as u64))]
    pub(crate) sets: Option<usize>,
    /// Nodes of a set at most.
    #[arg(long, value_name = "N", default_value_t = 3_600, value_parser = RangedU64ValueParser::<usize>::new().range(1..=SET_NODES_MAX as u64))]
    pub(crate) nodes: usize,
    /// Which switches [default: the rack's FatTree where it has a core switch, else the rack's switch].
    #[arg(long, value_enum)]
    pub(crate) at: Option<Switches>,
    /// One epoch, and its report.
    #[arg(long)]
    pub(crate) once: bool,
    /// Print one JSON object an epoch.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Switches that a tree is published at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Switches {
    /// The rack's switch.
    RackSwitch,
    /// The index switches of the FatTree behind it.
    FatTree,
}

/// A time, as people write it.
fn span(text: &str) -> Result<Duration, String> {
    let parsed = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => number.parse().ok().map(Duration::from_millis),
        (_, Some(number)) => number.parse().ok().map(Duration::from_secs),
        _ => None,
    };
    let fits = |span: &Duration| (EPOCH_MIN..=EPOCH_MAX).contains(span);
    parsed.filter(fits).ok_or_else(|| "write 10ms to 3600s, as 500ms or 2s".to_owned())
}

/// The shortest and the longest epoch of an index agent.
const EPOCH_MIN: Duration = Duration::from_millis(10);
const EPOCH_MAX: Duration = Duration::from_secs(3_600);

/// `farmem index plan`
#[derive(Debug, Args)]
#[command(
    after_help = "farmem index plan --records 2000000 --ranges 600 --nodes 3600 --sets 3 --switches 2\n\
                        farmem index plan --records 20000000 --ranges 600 --nodes 3600 --sets 2 --pods 4\n\
                        The tree is the one that a bulk load makes. The budget is a pipeline of a Tofino 1, as its compiler knows it; other tables of the\n\
                        switch are not counted. A fat root takes six stages, and so does a set."
)]
pub(crate) struct IndexPlan {
    /// Keys of the tree: the hashes of this many record numbers, as YCSB has them.
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = RangedU64ValueParser::<u64>::new().range(..=20_000_000))]
    pub(crate) records: u64,
    /// The record numbers themselves are the keys, from 0 on.
    #[arg(long)]
    pub(crate) dense: bool,
    /// Keys of the tree instead: one a line, decimal or 0x..., behind it its accesses if they are known (else 1).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["records", "dense", "keys", "operations", "seed"])]
    pub(crate) keys_file: Option<PathBuf>,
    /// How often each key is wanted.
    #[arg(long, value_enum, default_value_t = Keys::Zipfian)]
    pub(crate) keys: Keys,
    /// Look-ups that accesses are counted of.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = RangedU64ValueParser::<u64>::new().range(1..=1_000_000_000))]
    pub(crate) operations: u64,
    /// One seed gives one sequence of look-ups.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Keys of a leaf.
    #[arg(long, value_name = "N", default_value_t = PIVOTS, value_parser = RangedU64ValueParser::<usize>::new().range(1..=15))]
    pub(crate) fill: usize,
    /// Ranges of the fat root at most.
    #[arg(long, value_name = "N", default_value_t = RANGES_DEFAULT, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub(crate) ranges: usize,
    /// Nodes of a set at most.
    #[arg(long, value_name = "N", default_value_t = SET_NODES_MAX, value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub(crate) nodes: usize,
    /// Sets behind the fat root.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(..=64))]
    pub(crate) sets: usize,
    /// Leave an entry out of each range table and have the entry that leads to the table say what it said.
    #[arg(long)]
    pub(crate) default_results: bool,
    /// Switches on the way, which share the parts out; each has whole ones.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub(crate) switches: usize,
    /// A FatTree of so many pods instead: a core switch has the fat root, and each switch below it its --sets (the paper's: 2) of what lies at its servers.
    #[arg(long, value_name = "N", conflicts_with = "switches", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) pods: Option<u16>,
    /// Edge switches of a pod.
    #[arg(long, value_name = "N", requires = "pods", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) edges: u16,
    /// Servers at an edge switch.
    #[arg(long, value_name = "N", requires = "pods", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) servers: u16,
    /// Stages of a switch.
    #[arg(long, value_name = "N", default_value_t = Budget::TOFINO.stages, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub(crate) stages: usize,
    /// Blocks of TCAM of a stage, of 512 words of 44 bits.
    #[arg(long, value_name = "N", default_value_t = Budget::TOFINO.tcam.blocks, value_parser = clap::value_parser!(u64).range(..=1 << 20))]
    pub(crate) tcam_blocks: u64,
    /// Blocks of SRAM of a stage, of 1024 words of 128 bits.
    #[arg(long, value_name = "N", default_value_t = Budget::TOFINO.sram.blocks, value_parser = clap::value_parser!(u64).range(..=1 << 20))]
    pub(crate) sram_blocks: u64,
    /// Bits of an address of far memory as the switch keeps it.
    #[arg(long, value_name = "BITS", default_value_t = ADDR_BITS, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) addr_bits: u32,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}
