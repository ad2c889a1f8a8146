//! The algorithms: SODA's five, and two that users expect.
//!
//! Each answers the same for any number of threads. Numbers with a fraction are added in an order that only the graph gives, except the counts of
//! shortest paths in [`betweenness`]: these are whole, so their order does not matter below 2^53, and above it the last digits may differ.

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

/// No vertex, and no level.
pub const NONE: u32 = u32::MAX;

/// Asked after each round, with what is done and of how much; false ends the algorithm.
pub type Watch<'a> = dyn FnMut(u64, u64) -> bool + 'a;

/// Why an algorithm cannot work on a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unsuited {
    /// It follows edges backwards.
    #[error("the graph has edges out of vertices only, and this needs those into them")]
    NoIncoming,
    /// It wants edges that stand at both ends.
    #[error("the edges of the graph have a direction, and this needs a symmetric graph")]
    Directed,
    /// It wants edges in order.
    #[error("the edges of a vertex do not ascend, and this needs them to")]
    Unsorted,
    /// There is no such vertex.
    #[error("there is no vertex {vertex}: the graph has {vertices}, from 0 on")]
    Vertex {
        /// Which.
        vertex: u32,
        /// Vertices.
        vertices: u32,
    },
    /// It counts shortest paths, and there are more than a number of this form can say.
    #[error("more than 2^1024 shortest paths lead from vertex {from} to vertex {to}: they cannot be counted")]
    Paths {
        /// Where they begin.
        from: u32,
        /// The least vertex that so many lead to.
        to: u32,
    },
    /// It was asked to end early.
    #[error("stopped before the end")]
    Stopped,
}

pub(crate) fn exists(vertex: u32, vertices: u32) -> Result<(), Unsuited> {
    if vertex < vertices { Ok(()) } else { Err(Unsuited::Vertex { vertex, vertices }) }
}

fn plain(numbers: Vec<AtomicU32>) -> Vec<u32> {
    numbers.into_iter().map(AtomicU32::into_inner).collect()
}
