//! `farmem graph`: what it can be told.

use crate::Shape;
use crate::generate::{Kind, SCALE_MAX};
use std::path::PathBuf;

/// Algorithms on graphs whose arrays are in far memory, and files of graphs.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Rank vertices by the ranks of those with edges to them.
    Pagerank(PageRankArgs),
    /// Search breadth first from a vertex.
    Bfs(SourceArgs),
    /// Estimate how far the farthest vertex is from each, by searches from up to 64 vertices.
    Radii(SampleArgs),
    /// Sum up which part of the shortest paths from some vertices leads through each.
    Bc(SampleArgs),
    /// Find which vertices are connected, whatever the direction of edges.
    Components(ComponentsArgs),
    /// Find the lightest paths from a vertex.
    Sssp(SourceArgs),
    /// Count the triangles of a symmetric graph.
    Triangles(RunArgs),
    /// Read a graph and write it in farmem's own form (.fmg), which loads without local memory for it.
    Convert(ConvertArgs),
    /// Make a graph from a seed.
    Generate(GenerateArgs),
}

/// What every algorithm can be told.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// The graph: .fmg, .mtx, .parquet, .sg, .wsg, or a list of edges.
    #[arg(required_unless_present = "object")]
    pub file: Option<PathBuf>,
    /// The graph that a memory node has loaded from a .fmg file of its own (farmem object open --domain graph), in the place of a file.
    #[arg(long, value_name = "NAME", requires = "rack", conflicts_with_all = ["file", "symmetrize", "fixed"])]
    pub object: Option<String>,
    /// Take the object's arrays as they are. Without this they are checked before, for which all of them come over the network once.
    #[arg(long, requires = "object")]
    pub trust: bool,
    /// How much of it may be here at once: a part, as 33%, or a size.
    #[arg(long, value_name = "PART|SIZE", default_value = "33%", value_parser = part)]
    pub local: Part,
    /// Use this running rack instead of one inside this process.
    #[arg(long, value_name = "RACK.TOML")]
    pub rack: Option<PathBuf>,
    /// Go by way of a DPU, straight to the memory nodes without this: one inside this process, or the one beside this host, which the rack's description names in its part `dpu`.
    #[arg(long, value_name = "WHICH", value_enum)]
    pub dpu: Option<Dpu>,
    /// Have the DPU cache statically where the edges of each vertex begin.
    #[arg(long = "static", requires = "dpu")]
    pub fixed: bool,
    /// Threads [default: as many as CPUs]. They do not change the answer.
    #[arg(long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub threads: Option<usize>,
    /// Put each edge at both of its ends.
    #[arg(long)]
    pub symmetrize: bool,
    /// Write what was found of each vertex, a line each.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Do it once more in local memory, and compare.
    #[arg(long)]
    pub check: bool,
    /// Print one JSON object instead of the lines.
    #[arg(long)]
    pub json: bool,
}

/// Which DPU a graph's pages go by way of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Dpu {
    /// One in this process.
    Own,
    /// The process beside this host.
    Beside,
}

/// `farmem graph pagerank`
#[derive(Clone, Debug, clap::Args)]
pub struct PageRankArgs {
    /// What every algorithm can be told.
    #[command(flatten)]
    pub run: RunArgs,
    /// Rounds at most, in all.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub rounds: u64,
    /// End when all ranks together moved by less in a round.
    #[arg(long, value_name = "X", default_value_t = 1e-6, value_parser = tolerance)]
    pub tolerance: f64,
    /// Go on from this file if it is there; write to it after each round; remove it in the end.
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
}

/// `farmem graph components`
#[derive(Clone, Debug, clap::Args)]
pub struct ComponentsArgs {
    /// What every algorithm can be told.
    #[command(flatten)]
    pub run: RunArgs,
    /// Go on from this file if it is there; write to it after each round; remove it in the end.
    #[arg(long, value_name = "FILE")]
    pub checkpoint: Option<PathBuf>,
}

/// `farmem graph bfs` and `sssp`
#[derive(Clone, Debug, clap::Args)]
pub struct SourceArgs {
    /// What every algorithm can be told.
    #[command(flatten)]
    pub run: RunArgs,
    /// The vertex to begin at.
    #[arg(long, value_name = "VERTEX", default_value_t = 0)]
    pub source: u32,
}

/// `farmem graph radii` and `bc`
#[derive(Clone, Debug, clap::Args)]
pub struct SampleArgs {
    /// What every algorithm can be told.
    #[command(flatten)]
    pub run: RunArgs,
    /// Vertices to begin at, of those that have edges out of them.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub sample: usize,
    /// One seed gives the same vertices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// `farmem graph convert`
#[derive(Clone, Debug, clap::Args)]
pub struct ConvertArgs {
    /// The graph.
    pub from: PathBuf,
    /// What is written.
    #[command(flatten)]
    pub write: WriteArgs,
}

/// The file that `convert` and `generate` write.
#[derive(Clone, Debug, clap::Args)]
pub struct WriteArgs {
    /// The file to write: .fmg.
    #[arg(value_parser = own_file)]
    pub to: PathBuf,
    /// Put each edge at both of its ends.
    #[arg(long)]
    pub symmetrize: bool,
    /// Leave out loops, and all but the lightest of edges with the same ends.
    #[arg(long)]
    pub simple: bool,
    /// Print one JSON object instead of the line.
    #[arg(long)]
    pub json: bool,
}

/// `farmem graph generate`
#[derive(Clone, Debug, clap::Args)]
pub struct GenerateArgs {
    /// How edges are distributed.
    #[arg(value_enum)]
    pub kind: Kind,
    /// What is written.
    #[command(flatten)]
    pub write: WriteArgs,
    /// The graph has 2^N vertices.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(0..=i64::from(SCALE_MAX)))]
    pub scale: u32,
    /// Edges for each vertex; SODA's graphs have 35, 55 and 221.
    #[arg(long, value_name = "N", default_value_t = 35, value_parser = clap::value_parser!(u64).range(0..=1 << 16))]
    pub ratio: u64,
    /// One seed gives one graph.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Give each edge a weight of 1 to 255.
    #[arg(long)]
    pub weighted: bool,
}

impl Command {
    /// Whether one JSON object is printed.
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

/// How much of a graph may be here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Of each hundred bytes so many.
    Percent(u64),
    /// So many bytes.
    Bytes(u64),
}

/// The least that a window can have here.
const LOCAL_MIN: u64 = 64 << 10;

impl Part {
    /// Bytes, of an image of `len` bytes: at least what a window needs.
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

/// A part or a size, for clap.
///
/// # Errors
/// How to write one.
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
