//! Shortest paths by weight from one source (Bellman-Ford, Ligra 5.6).

use super::{UnsuitableGraph, Watch, exists};
use crate::edge_map::of_all;
use crate::{EdgeFn, Graph, Order, Store, VertexSubset, edge_map_in, for_each_vertex, vertex_map};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The distance of an unreached vertex.
pub const UNREACHED: u64 = u64::MAX;

/// The result of a search.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sssp {
    /// The weight of the lightest path to each vertex, or [`UNREACHED`].
    pub distances: Vec<u64>,
    /// Number of reached vertices, including the source.
    pub reached: u64,
    /// Number of rounds.
    pub rounds: u64,
}

struct Relax<'a> {
    /// The distances at the beginning of the round.
    before: &'a [AtomicU64],
    distances: &'a [AtomicU64],
}

impl EdgeFn for Relax<'_> {
    fn push(&self, source: u32, target: u32, weight: u32) -> bool {
        // A path has fewer than 2^32 edges of less than 2^32 each, so the sum cannot overflow.
        let distance = self.before[source as usize].load(Relaxed) + u64::from(weight);
        self.distances[target as usize].fetch_min(distance, Relaxed) > distance
    }
}

/// Finds paths from `source` along outgoing edges.
///
/// # Errors
/// [`UnsuitableGraph::Vertex`] and [`UnsuitableGraph::Stopped`].
pub fn sssp<S: Store>(graph: &Graph<S>, source: u32, watch: &mut Watch<'_>) -> Result<Sssp, UnsuitableGraph> {
    let vertices = graph.vertices();
    exists(source, vertices)?;
    let unreached = || of_all(vertices, |_| AtomicU64::new(UNREACHED));
    let (before, distances) = (unreached(), unreached());
    before[source as usize].store(0, Relaxed);
    distances[source as usize].store(0, Relaxed);
    let mut set = VertexSubset::of(vertices, vec![source]);
    let mut rounds = 0;
    while !set.is_empty() {
        rounds += 1;
        if !watch(rounds, vertices.into()) {
            return Err(UnsuitableGraph::Stopped);
        }
        let relax = Relax { before: &before, distances: &distances };
        set = edge_map_in(graph, &set, Order::of_round(rounds), &relax);
        for_each_vertex(&set, |vertex| {
            before[vertex as usize].store(distances[vertex as usize].load(Relaxed), Relaxed);
        });
    }
    let distances: Vec<u64> = distances.into_iter().map(AtomicU64::into_inner).collect();
    let reached = vertex_map(&VertexSubset::all(vertices), |vertex| distances[vertex as usize] != UNREACHED);
    Ok(Sssp { distances, reached: reached.len() as u64, rounds })
}
