//! The command line of `farmem graph`.

use crate::Shape;
use crate::generate::{Kind, SCALE_MAX};
use std::path::PathBuf;

/// Algorithms on graphs whose arrays are in far memory, and files of graphs.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Rank vertices by the ranks of the vertices with edges to them (PageRank).
    Pagerank(PageRankArgs),
    /// Search breadth first from a vertex.
    Bfs(SourceArgs),
    /// Estimate the distance from each vertex to the farthest one, by searches from up to 64 vertices.
    Radii(SampleArgs),
    /// Compute betweenness: the share of shortest paths from some vertices that lead through each vertex.
    Bc(SampleArgs),
    /// Find the connected components, regardless of edge direction.
    Components(ComponentsArgs),
    /// Find the lightest paths from a vertex.
    Sssp(SourceArgs),
    /// Count the triangles of a symmetric graph.
    Triangles(RunArgs),
    /// Read a graph and write it in farmem's own format (.fmg), which loads without local memory for the
    /// graph.
    Convert(ConvertArgs),
    /// Generate a graph from a seed.
    Generate(GenerateArgs),
}

/// Options of every algorithm.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// The graph: .fmg, .mtx, .parquet, .sg, .wsg, or an edge list.
    #[arg(required_unless_present = "object")]
    pub file: Option<PathBuf>,
    /// Use a graph that a memory node has loaded from its own .fmg file (farmem object open --domain graph),
    /// instead of a local file.
    #[arg(long, value_name = "NAME", requires = "rack", conflicts_with_all = ["file", "symmetrize", "fixed"])]
    pub object: Option<String>,
    /// Use the object's arrays unchecked. By default they are checked first, which transfers all of them over
    /// the network once.
    #[arg(long, requires = "object")]
    pub trust: bool,
    /// The part of the graph that may be in local memory at once: a percentage such as 33%, or a size such as
    /// 64MiB.
    #[arg(long, value_name = "PART|SIZE", default_value = "33%", value_parser = part)]
    pub local: Part,
    /// Use this running rack. By default the command starts a rack inside its own process.
    #[arg(long, value_name = "RACK.TOML")]
    pub rack: Option<PathBuf>,
    /// Read pages through a DPU: one inside this process (own), or the one beside this host that the rack's
    /// description names in its section `dpu` (beside). By default pages come straight from the memory nodes.
    #[arg(long, value_name = "WHICH", value_enum)]
    pub dpu: Option<Dpu>,
    /// Let the DPU cache the start offsets of each vertex's edges statically.
    #[arg(long = "static", requires = "dpu")]
    pub fixed: bool,
    /// Number of threads [default: one per CPU]. The result does not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub threads: Option<usize>,
    /// Add each edge in both directions.
    #[arg(long)]
    pub symmetrize: bool,
    /// Write the result of each vertex to this file, one line per vertex.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Repeat the computation in local memory and compare the results.
    #[arg(long)]
    pub check: bool,
    /// Print one JSON object instead of text lines.
    #[arg(long)]
    pub json: bool,
}

/// The DPU through which a graph's pages come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Dpu {
    /// A DPU in this process.
    Own,
    /// The DPU process beside this host.
    Beside,
}

/// `farmem graph pagerank`
#[derive(Clone, Debug, clap::Args)]
pub struct PageRankArgs {
    /// Options of every algorithm.
    #[command(flatten)]
    pub run: RunArgs,
    /// Largest number of rounds, including those before a checkpoint.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub rounds: u64,
    /// Stop when the total movement of all ranks in a round is below this value.
    #[arg(long, value_name = "X", default_value_t = 1e-6, value_parser = tolerance)]
    pub tolerance: f64,
    /// Resume from this file if it exists, write it after each round, and remove it at the end.
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
}

/// `farmem graph components`
#[derive(Clone, Debug, clap::Args)]
pub struct ComponentsArgs {
    /// Options of every algorithm.
    #[command(flatten)]
    pub run: RunArgs,
    /// Resume from this file if it exists, write it after each round, and remove it at the end.
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
}

/// `farmem graph bfs` and `sssp`
#[derive(Clone, Debug, clap::Args)]
pub struct SourceArgs {
    /// Options of every algorithm.
    #[command(flatten)]
    pub run: RunArgs,
    /// The start vertex.
    #[arg(long, value_name = "VERTEX", default_value_t = 0)]
    pub source: u32,
}

/// `farmem graph radii` and `bc`
#[derive(Clone, Debug, clap::Args)]
pub struct SampleArgs {
    /// Options of every algorithm.
    #[command(flatten)]
    pub run: RunArgs,
    /// Number of start vertices, drawn from those with outgoing edges.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub sample: usize,
    /// The seed of the random start vertices; equal seeds give equal vertices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// `farmem graph convert`
#[derive(Clone, Debug, clap::Args)]
pub struct ConvertArgs {
    /// The graph to read.
    pub from: PathBuf,
    /// The output options.
    #[command(flatten)]
    pub write: WriteArgs,
}

/// The output options of `convert` and `generate`.
#[derive(Clone, Debug, clap::Args)]
pub struct WriteArgs {
    /// The file to write: .fmg.
    #[arg(value_parser = own_file)]
    pub to: PathBuf,
    /// Add each edge in both directions.
    #[arg(long)]
    pub symmetrize: bool,
    /// Drop loops, and all but the lightest of parallel edges.
    #[arg(long)]
    pub simple: bool,
    /// Print one JSON object instead of a text line.
    #[arg(long)]
    pub json: bool,
}

/// `farmem graph generate`
#[derive(Clone, Debug, clap::Args)]
pub struct GenerateArgs {
    /// The distribution of edges.
    #[arg(value_enum)]
    pub kind: Kind,
    /// The output options.
    #[command(flatten)]
    pub write: WriteArgs,
    /// Generate 2^N vertices.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(0..=i64::from(SCALE_MAX)))]
    pub scale: u32,
    /// Edges per vertex; SODA's graphs have 35, 55 and 221.
    #[arg(long, value_name = "N", default_value_t = 35, value_parser = clap::value_parser!(u64).range(0..=1 << 16))]
    pub ratio: u64,
    /// The seed of the random edges; equal seeds give equal graphs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Give each edge a random weight of 1 to 255.
    #[arg(long)]
    pub weighted: bool,
}

impl Command {
    /// Returns true when the command prints one JSON object.
    #[must_use]
    pub const fn json(&self) -> bool {
        match self {
            Self::Pagerank(args) => args.run.json,
            Self::Components(args) => args.run.json,
            Self::Bfs(args) | Self::Sssp(args) => args.run.json,
            Self::Radii(args) | Self::Bc(args) => args.run.json,
            Self::Triangles(args) => args.json,
            Self::Convert(args) => args.write.json,
            Self::Generate(args) => args.write.json,
        }
    }
}

impl WriteArgs {
    pub(crate) const fn shape(&self) -> Shape {
        Shape { symmetric: self.symmetrize, simple: self.simple }
    }
}

impl RunArgs {
    pub(crate) const fn shape(&self) -> Shape {
        Shape { symmetric: self.symmetrize, simple: false }
    }
}

/// The part of a graph that may be local.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// A percentage.
    Percent(u64),
    /// A number of bytes.
    Bytes(u64),
}

/// Smallest local limit of a window.
const LOCAL_MIN: u64 = 64 << 10;

impl Part {
    /// Returns the local limit for an image of `len` bytes: at least a window's minimum.
    #[must_use]
    pub const fn of(self, len: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => {
                let part = len / 100 * percent + len % 100 * percent / 100;
                if part < LOCAL_MIN { LOCAL_MIN } else { part }
            }
        }
    }
}

/// Parses a percentage or a size, for clap.
///
/// # Errors
/// The accepted format.
pub fn part(text: &str) -> Result<Part, String> {
    let Some(number) = text.strip_suffix('%') else {
        return farmem_workload::bytes(text).map(Part::Bytes).map_err(|error| format!("{error}, or as 33%"));
    };
    let percent = number.trim().parse().ok().filter(|percent| (1..=100).contains(percent));
    percent.map(Part::Percent).ok_or_else(|| "a part is 1% to 100%".into())
}

fn tolerance(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "it is a number, 0 or more".into())
}

fn own_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.extension().is_some_and(|ending| ending == "fmg") {
        Ok(path)
    } else {
        Err("its name ends in .fmg".into())
    }
}
