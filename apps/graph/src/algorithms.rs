//! Graph algorithms: SODA's five, and two that users expect.
//!
//! Each algorithm gives the same result for any number of threads. Fractions are added in an order that only
//! the graph determines. The exception is the counts of shortest paths in [`betweenness`]. These are
//! integers, so their order does not matter below 2^53; above, the last digits may differ.

mod betweenness;
mod bfs;
mod components;
mod pagerank;
mod radii;
mod sssp;
mod triangles;

pub use betweenness::betweenness;
pub use bfs::{Bfs, bfs};
pub use components::Components;
pub use pagerank::{DAMPING, PageRank};
pub use radii::{Radii, SAMPLE_MAX, radii, sample};
pub use sssp::{Sssp, UNREACHED, sssp};
pub use triangles::triangles;

use std::sync::atomic::AtomicU32;

/// The mark for no vertex and no level.
pub const NONE: u32 = u32::MAX;

/// A callback after each round, with the work done and the total. Returning false ends the algorithm.
pub type Watch<'a> = dyn FnMut(u64, u64) -> bool + 'a;

/// The reason why an algorithm cannot run on a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnsuitableGraph {
    /// The algorithm follows edges backwards.
    #[error("the graph has edges out of vertices only, and this needs those into them")]
    NoIncoming,
    /// The algorithm needs a symmetric graph.
    #[error("the edges of the graph have a direction, and this needs a symmetric graph")]
    Directed,
    /// The algorithm needs sorted edges.
    #[error("the edges of a vertex do not ascend, and this needs them to")]
    Unsorted,
    /// The start vertex does not exist.
    #[error("there is no vertex {vertex}: the graph has {vertices}, from 0 on")]
    Vertex {
        /// The requested vertex.
        vertex: u32,
        /// Number of vertices of the graph.
        vertices: u32,
    },
    /// More shortest paths than an `f64` can count.
    #[error("more than 2^1024 shortest paths lead from vertex {from} to vertex {to}: they cannot be counted")]
    Paths {
        /// The first vertex of the paths.
        from: u32,
        /// The smallest vertex with too many paths.
        to: u32,
    },
    /// The callback ended the algorithm.
    #[error("stopped before the end")]
    Stopped,
}

pub(crate) fn exists(vertex: u32, vertices: u32) -> Result<(), UnsuitableGraph> {
    if vertex < vertices { Ok(()) } else { Err(UnsuitableGraph::Vertex { vertex, vertices }) }
}

fn plain(numbers: Vec<AtomicU32>) -> Vec<u32> {
    numbers.into_iter().map(AtomicU32::into_inner).collect()
}
