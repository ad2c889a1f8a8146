//! PageRank on a graph in far memory, with a third of the graph local: straight to a memory node, and through a
//! DPU that keeps the values of the vertices.

use super::{ActOutcome, to_f64};
use crate::outcome::Failure;
use farmem::RackConfig;
use farmem_bench::soda::{App, Counts, System, count};

/// Log2 of the vertices of the graph.
const SCALE: u32 = 10;
/// Edges of a vertex, on average.
const RATIO: u64 = 55;

pub(super) fn play(_: &RackConfig) -> Result<ActOutcome, Failure> {
    let (alone, wrong_alone) = counted(System::Server)?;
    let (with, wrong_with) = counted(System::Static)?;
    let mib = |bytes: u64| format!("{:.2} MiB", to_f64(bytes) / to_f64(1 << 20));
    Ok(ActOutcome {
        figures: format!(
            "without a DPU: {} from the memory node; with one: {}, {} of it ahead of the program",
            mib(alone.bytes),
            mib(with.bytes),
            mib(with.background)
        ),
        sentence: format!(
            "The DPU answered {:.0} % of the requests from its own memory and saved {:.0} % of the traffic, for a copy of the vertices.",
            100.0 * to_f64(with.hits) / to_f64(with.reads),
            100.0 * (1.0 - to_f64(with.bytes) / to_f64(alone.bytes))
        ),
        wrong_answers: wrong_alone + wrong_with,
    })
}

fn counted(system: System) -> Result<(Counts, u64), Failure> {
    let ([first, _], wrong) =
        count(SCALE, RATIO, App::PagerankByEdge, system)?.expect("a system with a window");
    Ok((first, wrong))
}
