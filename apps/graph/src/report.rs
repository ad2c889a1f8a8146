//! What `farmem graph` prints: lines for people and one JSON object for programs, from one struct.

use crate::algorithms::{NONE, UNREACHED};
use farmem::window::WindowStats;
use farmem_workload::Outcome;
use serde::Serialize;
use std::io;

/// What came of the command.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Said {
    /// An algorithm ran.
    Ran(Box<Ran>),
    /// A file was written.
    Wrote(Wrote),
}

/// A file that was written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Wrote {
    /// Its name.
    pub file: String,
    /// Vertices.
    pub vertices: u64,
    /// Edges; those that stand at both ends count twice.
    pub edges: u64,
    /// Whether each edge stands at both ends.
    pub symmetric: bool,
    /// Whether edges have weights.
    pub weighted: bool,
    /// Bytes of the file.
    pub bytes: u64,
}

/// An algorithm that ran.
#[derive(Clone, Debug, Serialize)]
pub struct Ran {
    /// Its name.
    pub algorithm: &'static str,
    /// The graph.
    pub file: String,
    /// Vertices.
    pub vertices: u64,
    /// Edges; those that stand at both ends count twice.
    pub edges: u64,
    /// Whether each edge stands at both ends.
    pub symmetric: bool,
    /// Whether edges have weights.
    pub weighted: bool,
    /// Memory nodes of the rack.
    pub memory_nodes: usize,
    /// Of these, how many have some of the graph.
    pub graph_nodes: usize,
    /// How frames travel.
    pub transport: &'static str,
    /// The network that the links stand for.
    pub link: String,
    /// Threads that ran it.
    pub threads: usize,
    /// Bytes of the arrays in far memory.
    pub far_bytes: u64,
    /// Bytes of them that may be here at once.
    pub local_limit: u64,
    /// Seconds it took to put them there.
    pub load_seconds: f64,
    /// Seconds the algorithm took.
    pub seconds: f64,
    /// What came over the network for it.
    pub traffic: Traffic,
    /// The round after which a checkpoint was made that it went on from.
    pub resumed_from: Option<u64>,
    /// What was found, in short.
    pub answer: Answer,
    /// CRC-32 of what was found of all vertices: equal for equal answers.
    pub sum: u32,
    /// Whether it was compared with a run in local memory.
    pub checked: bool,
    /// 1 when that answered otherwise.
    pub wrong_answers: u64,
    /// Whether it was asked to stop (Ctrl-C), and ended early.
    pub stopped: bool,
    /// Whether it ended, and the comparison with local memory was asked to stop: nothing is known of that.
    pub check_stopped: bool,
    /// What was found of each vertex.
    #[serde(skip)]
    pub values: Values,
}

/// What came over the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Traffic {
    /// Pages that a thread waited for.
    pub missing: u64,
    /// READs.
    pub fetches: u64,
    /// Bytes they brought.
    pub bytes_fetched: u64,
    /// Pages that were fetched before a thread waited for them, and used.
    pub ahead_used: u64,
    /// Those that went unused.
    pub ahead_wasted: u64,
    /// Pages that had to go.
    pub evictions: u64,
    /// The most bytes that were here at once.
    pub bytes_here_max: u64,
    /// What the DPU did, where pages went by way of one; the one beside the host counts for all its processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dpu: Option<DpuTraffic>,
    /// The DPU beside this host was fenced on the way, and the rest came straight from the memory nodes.
    pub dpu_fenced: bool,
}

/// What a DPU asked of far memory, and what it had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct DpuTraffic {
    /// Bytes that programs asked it for.
    pub asked: u64,
    /// Bytes it asked of far memory while a program waited.
    pub on_demand: u64,
    /// Bytes it asked of far memory before.
    pub background: u64,
    /// Requests.
    pub reads: u64,
    /// Of those, what its cache table had.
    pub hits: u64,
    /// Of those, what static caching had.
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

/// What was found, in short.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// PageRank.
    Pagerank {
        /// Rounds, with those before a checkpoint.
        rounds: u64,
        /// The vertices with the largest ranks.
        top: Vec<(u32, f64)>,
    },
    /// Breadth-first search.
    Bfs {
        /// Where it began.
        source: u32,
        /// Vertices that paths lead to.
        reached: u64,
        /// Edges to the farthest.
        depth: u32,
    },
    /// Radii.
    Radii {
        /// Vertices that were searched from.
        sources: usize,
        /// Vertices that paths lead to.
        reached: u64,
        /// The largest radius.
        largest: u32,
    },
    /// Betweenness.
    Bc {
        /// Vertices whose paths were counted.
        sources: usize,
        /// The vertices that most lead through.
        top: Vec<(u32, f64)>,
    },
    /// Components.
    Components {
        /// How many there are.
        components: u64,
        /// Vertices of the largest.
        largest: u64,
        /// Rounds, with those before a checkpoint.
        rounds: u64,
    },
    /// Lightest paths.
    Sssp {
        /// Where they begin.
        source: u32,
        /// Vertices that they lead to.
        reached: u64,
        /// The weight of the heaviest of them.
        farthest: u64,
        /// Rounds.
        rounds: u64,
    },
    /// Triangles.
    Triangles {
        /// How many.
        triangles: u64,
    },
}

/// What was found of each vertex.
#[derive(Clone, PartialEq, Debug)]
pub enum Values {
    /// Nothing.
    None,
    /// A level, radius or label.
    Short(Vec<u32>),
    /// A level and a parent.
    Pairs(Vec<u32>, Vec<u32>),
    /// A distance.
    Long(Vec<u64>),
    /// A rank, or a part of paths.
    Real(Vec<f64>),
}

impl Values {
    /// Equal for equal values.
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

    /// Writes a line for each vertex: its number, and what was found, `-` where nothing was.
    ///
    /// # Errors
    /// What `out` says.
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

/// What an algorithm found.
pub(crate) struct Found {
    pub(crate) answer: Answer,
    pub(crate) values: Values,
    pub(crate) resumed_from: Option<u64>,
    pub(crate) stopped: bool,
}

impl Found {
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

impl Said {
    /// The lines that people read.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Wrote(Wrote { file, vertices, edges, bytes, .. }) => {
                format!("{file}: {vertices} vertices, {edges} edges, {bytes} bytes\n")
            }
            Self::Ran(ran) => ran.text(),
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

impl Ran {
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

impl Outcome for Said {
    fn text(&self) -> String {
        Self::text(self)
    }

    fn wrong_answers(&self) -> u64 {
        match self {
            Self::Ran(ran) => ran.wrong_answers,
            Self::Wrote(_) => 0,
        }
    }

    fn stopped(&self) -> bool {
        matches!(self, Self::Ran(ran) if ran.stopped || ran.check_stopped)
    }
}
