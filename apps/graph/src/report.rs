//! The output of `farmem graph`: text lines and one JSON object, from one struct.

use crate::algorithms::{NONE, UNREACHED};
use farmem::window::WindowStats;
use farmem_workload::Outcome;
use serde::Serialize;
use std::io;

/// The result of the command.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum CommandReport {
    /// An algorithm ran.
    Run(Box<RunReport>),
    /// A file was written.
    File(FileReport),
}

/// A written file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FileReport {
    /// The file's name.
    pub file: String,
    /// Number of vertices.
    pub vertices: u64,
    /// Number of edges; edges in both directions count twice.
    pub edges: u64,
    /// True when each edge exists in both directions.
    pub symmetric: bool,
    /// True when edges have weights.
    pub weighted: bool,
    /// Bytes of the file.
    pub bytes: u64,
}

/// A run of an algorithm.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// The graph's file.
    pub file: String,
    /// Number of vertices.
    pub vertices: u64,
    /// Number of edges; edges in both directions count twice.
    pub edges: u64,
    /// True when each edge exists in both directions.
    pub symmetric: bool,
    /// True when edges have weights.
    pub weighted: bool,
    /// Memory nodes of the rack.
    pub memory_nodes: usize,
    /// Number of these memory nodes that hold a part of the graph.
    pub graph_nodes: usize,
    /// The transport of frames.
    pub transport: &'static str,
    /// The profile of the links.
    pub link: String,
    /// Number of threads.
    pub threads: usize,
    /// Bytes of the arrays in far memory.
    pub far_bytes: u64,
    /// Bound on their local bytes.
    pub local_limit: u64,
    /// Seconds to load the arrays into far memory.
    pub load_seconds: f64,
    /// Seconds of the algorithm.
    pub seconds: f64,
    /// Network traffic of the algorithm.
    pub traffic: Traffic,
    /// The round of the checkpoint from which the run resumed.
    pub resumed_from: Option<u64>,
    /// A summary of the result.
    pub answer: Answer,
    /// CRC-32 of the results of all vertices: equal for equal results.
    pub sum: u32,
    /// True when the result was compared with a run in local memory.
    pub checked: bool,
    /// 1 when the comparison found a difference.
    pub wrong_answers: u64,
    /// True when the run was stopped by Ctrl-C before its end.
    pub stopped: bool,
    /// True when the run ended but the comparison was stopped, so its outcome is unknown.
    pub check_stopped: bool,
    /// The result of each vertex.
    #[serde(skip)]
    pub values: Values,
}

/// The network traffic of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Traffic {
    /// Pages for which a thread waited.
    pub missing: u64,
    /// Number of READs.
    pub fetches: u64,
    /// Bytes read.
    pub bytes_fetched: u64,
    /// Prefetched pages that were used.
    pub ahead_used: u64,
    /// Prefetched pages that were never used.
    pub ahead_wasted: u64,
    /// Evicted pages.
    pub evictions: u64,
    /// Largest number of local bytes.
    pub bytes_here_max: u64,
    /// The DPU's counters, if pages came through one. The DPU beside the host counts for all its processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dpu: Option<DpuTraffic>,
    /// True when the DPU beside this host was fenced during the run, and the rest came straight from the
    /// memory nodes.
    pub dpu_fenced: bool,
}

/// The traffic and hits of a DPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct DpuTraffic {
    /// Bytes that programs requested.
    pub asked: u64,
    /// Bytes requested from far memory while a program waited.
    pub on_demand: u64,
    /// Bytes prefetched from far memory.
    pub background: u64,
    /// Number of requests.
    pub reads: u64,
    /// Requests that hit the cache table.
    pub hits: u64,
    /// Requests that hit static memory.
    pub fixed: u64,
}

impl Traffic {
    pub(crate) fn of(stats: &WindowStats) -> Self {
        Self {
            missing: stats.missing,
            fetches: stats.fetches,
            bytes_fetched: stats.bytes_fetched,
            ahead_used: stats.ahead.used,
            ahead_wasted: stats.ahead.wasted,
            evictions: stats.evictions,
            bytes_here_max: stats.bytes_here_max,
            dpu: stats.dpu.map(|dpu| DpuTraffic {
                asked: dpu.asked,
                on_demand: dpu.on_demand,
                background: dpu.background,
                reads: dpu.reads,
                hits: dpu.hits,
                fixed: dpu.fixed,
            }),
            dpu_fenced: stats.dpu_fenced,
        }
    }
}

/// A summary of the result.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// PageRank.
    Pagerank {
        /// Rounds, including those before a checkpoint.
        rounds: u64,
        /// The vertices with the largest ranks.
        top: Vec<(u32, f64)>,
    },
    /// Breadth-first search.
    Bfs {
        /// The start vertex.
        source: u32,
        /// Number of reached vertices.
        reached: u64,
        /// Distance of the farthest vertex, in edges.
        depth: u32,
    },
    /// Radii.
    Radii {
        /// Number of start vertices.
        sources: usize,
        /// Number of reached vertices.
        reached: u64,
        /// The largest radius.
        largest: u32,
    },
    /// Betweenness.
    Bc {
        /// Number of start vertices.
        sources: usize,
        /// The vertices with the largest shares.
        top: Vec<(u32, f64)>,
    },
    /// Components.
    Components {
        /// Number of components.
        components: u64,
        /// Size of the largest component.
        largest: u64,
        /// Rounds, including those before a checkpoint.
        rounds: u64,
    },
    /// Lightest paths.
    Sssp {
        /// The start vertex.
        source: u32,
        /// Number of reached vertices.
        reached: u64,
        /// The largest distance.
        farthest: u64,
        /// Number of rounds.
        rounds: u64,
    },
    /// Triangles.
    Triangles {
        /// Number of triangles.
        triangles: u64,
    },
}

/// The result of each vertex.
#[derive(Clone, PartialEq, Debug)]
pub enum Values {
    /// No per-vertex result.
    None,
    /// A level, radius or label.
    Short(Vec<u32>),
    /// A level and a parent.
    Pairs(Vec<u32>, Vec<u32>),
    /// A distance.
    Long(Vec<u64>),
    /// A rank, or a share of paths.
    Real(Vec<f64>),
}

impl Values {
    /// Returns a checksum: equal for equal values.
    #[must_use]
    pub fn sum(&self) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        match self {
            Self::None => {}
            Self::Short(all) => all.iter().for_each(|value| sum.update(&value.to_le_bytes())),
            Self::Pairs(all, others) => {
                all.iter().chain(others).for_each(|value| sum.update(&value.to_le_bytes()));
            }
            Self::Long(all) => all.iter().for_each(|value| sum.update(&value.to_le_bytes())),
            Self::Real(all) => all.iter().for_each(|value| sum.update(&value.to_le_bytes())),
        }
        sum.finalize()
    }

    /// Writes a line for each vertex: its number and its result, `-` for none.
    ///
    /// # Errors
    /// The errors of `out`.
    pub fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let short = |value: u32| if value == NONE { "-".to_owned() } else { value.to_string() };
        match self {
            Self::None => Ok(()),
            Self::Short(all) => all
                .iter()
                .enumerate()
                .try_for_each(|(vertex, &value)| writeln!(out, "{vertex} {}", short(value))),
            Self::Pairs(all, others) => {
                let pairs = all.iter().zip(others).enumerate();
                { pairs }
                    .try_for_each(|(vertex, (&a, &b))| writeln!(out, "{vertex} {} {}", short(a), short(b)))
            }
            Self::Long(all) => all.iter().enumerate().try_for_each(|(vertex, &value)| {
                if value == UNREACHED {
                    writeln!(out, "{vertex} -")
                } else {
                    writeln!(out, "{vertex} {value}")
                }
            }),
            Self::Real(all) => {
                all.iter().enumerate().try_for_each(|(vertex, value)| writeln!(out, "{vertex} {value:e}"))
            }
        }
    }
}

/// The result of an algorithm.
pub(crate) struct RunResult {
    pub(crate) answer: Answer,
    pub(crate) values: Values,
    pub(crate) resumed_from: Option<u64>,
    pub(crate) stopped: bool,
}

impl RunResult {
    pub(crate) const fn new(answer: Answer, values: Values) -> Self {
        Self { answer, values, resumed_from: None, stopped: false }
    }
}

impl Answer {
    fn text(&self) -> String {
        let named = |top: &[(u32, f64)]| {
            let each: Vec<String> =
                top.iter().map(|(vertex, value)| format!("{vertex} ({value:.6})")).collect();
            each.join(", ")
        };
        match self {
            Self::Pagerank { rounds, top } => format!("{rounds} rounds; the highest ranks: {}", named(top)),
            Self::Bfs { source, reached, depth } => {
                format!("{reached} vertices reached from {source}, the farthest by {depth} edges")
            }
            Self::Radii { sources, reached, largest } => {
                format!("{reached} vertices reached from {sources}; the largest radius is {largest}")
            }
            Self::Bc { sources, top } => {
                format!("paths from {sources} vertices; most lead through {}", named(top))
            }
            Self::Components { components, largest, rounds } => {
                format!("{components} components, the largest of {largest} vertices; {rounds} rounds")
            }
            Self::Sssp { source, reached, farthest, rounds } => {
                format!(
                    "{reached} vertices reached from {source}, the farthest by {farthest}; {rounds} rounds"
                )
            }
            Self::Triangles { triangles } => format!("{triangles} triangles"),
        }
    }
}

impl CommandReport {
    /// Returns the text lines.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::File(FileReport { file, vertices, edges, bytes, .. }) => {
                format!("{file}: {vertices} vertices, {edges} edges, {bytes} bytes\n")
            }
            Self::Run(ran) => ran.text(),
        }
    }
}

impl DpuTraffic {
    fn text(&self) -> String {
        let Self { on_demand, background, reads, hits, fixed, .. } = *self;
        format!(
            "by way of a DPU: {reads} requests, {hits} in its cache, {fixed} in its static cache; {on_demand} bytes on demand, {background} before\n"
        )
    }
}

impl RunReport {
    fn text(&self) -> String {
        let traffic = &self.traffic;
        let resumed =
            self.resumed_from.map_or_else(String::new, |rounds| format!(" (resumed after round {rounds})"));
        let judged = match (self.stopped, self.checked, self.wrong_answers) {
            (true, ..) => "stopped before its end\n",
            _ if self.check_stopped => {
                "the answer is whole; stopped before it was compared with local memory\n"
            }
            (false, false, _) => "",
            (false, true, 0) => "the same as in local memory\n",
            (false, true, _) => "THE ANSWER DIFFERS FROM THAT IN LOCAL MEMORY\n",
        };
        let mut by_dpu = traffic.dpu.as_ref().map_or_else(String::new, DpuTraffic::text);
        if traffic.dpu_fenced {
            by_dpu += "the DPU was fenced on the way; the rest came straight from the memory nodes\n";
        }
        format!(
            "{}: {} vertices, {} edges of {}\n{} memory nodes ({} with some of the graph), transport {}, link {}; {} bytes far, {} of them here at most, {} threads\n\
             {}{resumed}\n\
             {:.2} s, and {:.2} s to load; {} pages waited for, {} READs, {} bytes fetched, {} pages evicted; sum {:08x}\n{by_dpu}{judged}",
            self.algorithm,
            self.vertices,
            self.edges,
            self.file,
            self.memory_nodes,
            self.graph_nodes,
            self.transport,
            self.link,
            self.far_bytes,
            self.local_limit,
            self.threads,
            self.answer.text(),
            self.seconds,
            self.load_seconds,
            traffic.missing,
            traffic.fetches,
            traffic.bytes_fetched,
            traffic.evictions,
            self.sum,
        )
    }
}

impl Outcome for CommandReport {
    fn text(&self) -> String {
        Self::text(self)
    }

    fn wrong_answers(&self) -> u64 {
        match self {
            Self::Run(ran) => ran.wrong_answers,
            Self::File(_) => 0,
        }
    }

    fn stopped(&self) -> bool {
        matches!(self, Self::Run(ran) if ran.stopped || ran.check_stopped)
    }
}
