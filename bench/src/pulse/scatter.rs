//! `pulse.scatter.*` and the counts of `pulse.distributed.*`: the crossings of traversals when memory is
//! allocated in smaller and larger pieces (PULSE 2.1, figure 2), and the cost of a crossing with and without
//! the switch's forwarding. Exact, on a rack in this process.

use super::counts::{Counted, Fixture, Subject};
use crate::{Row, to_f64};
use farmem::hash_table::Spread;
use farmem::{Error, Layout};

/// The extent of the counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Keys and points.
    pub(super) records: u64,
    /// Operations.
    pub(super) operations: u64,
}

/// Memory nodes, as in figure 2.
const NODES: u16 = 4;
/// Bytes of each memory node.
const MEMORY: u64 = 256 << 20;
/// Pieces from a page to more than all data. PULSE's 2 MiB and 1 GiB relate to its gigabytes like the upper
/// sizes to these megabytes.
pub(super) const GRANULARITIES: [(&str, u64); 5] =
    [("4k", 4 << 10), ("64k", 64 << 10), ("256k", 256 << 10), ("1m", 1 << 20), ("4m", 4 << 20)];

/// The crossings of a structure's operations when its memory is scattered in pieces of one size.
#[derive(Clone, Debug)]
pub(crate) struct Crossings {
    pub(crate) structure: &'static str,
    /// The name of the pieces' size in ids.
    pub(crate) granularity: &'static str,
    /// Bytes of a piece.
    pub(crate) bytes: u64,
    pub(crate) counted: Counted,
}

/// Counts crossings for each structure and granularity.
pub(super) fn measure(effort: Budget, progress: &mut dyn FnMut(&str)) -> Result<Vec<Crossings>, Error> {
    type Make = fn(Layout) -> Subject;
    let structures: [(&str, Make); 2] = [("tree", Subject::Tree), ("series", Subject::Series)];
    let mut all = Vec::new();
    for (structure, subject) in structures {
        for (granularity, bytes) in GRANULARITIES {
            progress(&format!("crossings: {structure}, pieces of {granularity}"));
            let layout = Layout::Scattered { granularity: bytes };
            let mut bed = Fixture::new(subject(layout), NODES, MEMORY, effort.records)?;
            let counted = bed.count(effort.operations, true)?;
            all.push(Crossings { structure, granularity, bytes, counted });
        }
    }
    Ok(all)
}

impl Crossings {
    /// Returns the share of operations with at least `times` crossings.
    pub(crate) fn share(&self, times: u64) -> f64 {
        to_f64(self.counted.crossed(times)) / to_f64(self.counted.operations)
    }

    /// Returns the most crossings of an operation, at least 1.
    pub(crate) fn most(&self) -> u64 {
        self.counted.crossings.last().copied().unwrap_or(1).max(1)
    }

    /// Returns the share of operations that cross at all, and the distribution of their crossings.
    pub(super) fn rows(&self) -> [Row; 2] {
        let Self { structure, granularity, counted, .. } = self;
        let id = |what: &str| format!("pulse.scatter.{structure}.{granularity}.{what}");
        let n = counted.operations;
        let of = |q: f64| Some(quantile(&counted.crossings, q));
        let mean = to_f64(counted.crossings.iter().sum()) / to_f64(n);
        [
            Row::figure(id("crossing"), "of operations", self.share(1), n),
            Row { p50: of(0.5), p99: of(0.99), ..Row::figure(id("crossings"), "per operation", mean, n) },
        ]
    }
}

fn quantile(ascending: &[u64], q: f64) -> f64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in a list of a few thousand"
    )]
    let at = (to_f64(ascending.len() as u64) * q) as usize;
    ascending.get(at.min(ascending.len().saturating_sub(1))).copied().map_or(f64::NAN, to_f64)
}

/// Counts the cost of each kind of operation on two and four memory nodes, compared with PULSE-ACC: the
/// quantities of the tests' golden table, on other data.
pub(super) fn costs(effort: Budget) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for (name, subject) in SUBJECTS {
        for nodes in [2, NODES] {
            let mut bed = Fixture::new(subject, nodes, MEMORY, effort.records)?;
            let [ours, acc] = [bed.count(effort.operations, false)?, bed.count(effort.operations, true)?];
            let row = |what: &str, of: fn(&Counted) -> u64| {
                let each = |counted: &Counted| to_f64(of(counted)) / to_f64(counted.operations);
                let id = format!("pulse.distributed.{name}.n{nodes}.{what}");
                Row::figure(id, "per operation", each(&ours), ours.operations).beside(Some(each(&acc)))
            };
            rows.push(row("round_trips", |counted| counted.requests));
            rows.push(row("packets", |counted| counted.packets));
        }
    }
    Ok(rows)
}

/// Pieces that scatter the structures over all memory nodes.
const PIECES: Layout = Layout::Scattered { granularity: 4 << 10 };

/// The structures whose operations are counted.
pub const SUBJECTS: [(&str, Subject); 5] = [
    ("chains.partitioned", Subject::Chains(Spread::Partitioned)),
    ("chains.scattered", Subject::Chains(Spread::Scattered)),
    ("tree.scattered", Subject::Tree(PIECES)),
    ("series.scattered", Subject::Series(PIECES)),
    ("series.partitioned", Subject::Series(Layout::Partitioned)),
];
