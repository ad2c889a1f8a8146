//! Radii: the distance of each vertex to the farthest one, estimated by searches from up to 64 vertices at
//! once (Ligra 5.3).

use super::{NONE, UnsuitableGraph, Watch, exists, plain};
use crate::edge_map::of_all;
use crate::{EdgeFn, Graph, Order, Store, VertexSubset, edge_map_in, for_each_vertex, vertex_map};
use farmem::Rng;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Bound on the parallel searches: one bit each.
pub const SAMPLE_MAX: usize = 64;

/// The result of the searches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Radii {
    /// For each vertex, the distance to the farthest source that reaches it; [`NONE`] where none does.
    pub radii: Vec<u32>,
    /// Number of vertices that a source reaches.
    pub reached: u64,
}

struct Step<'a> {
    visited: &'a [AtomicU64],
    next: &'a [AtomicU64],
    radii: &'a [AtomicU32],
    round: u32,
}

impl EdgeFn for Step<'_> {
    fn push(&self, source: u32, target: u32, _: u32) -> bool {
        let came = self.visited[source as usize].load(Relaxed);
        if came & !self.visited[target as usize].load(Relaxed) == 0 {
            return false;
        }
        self.next[target as usize].fetch_or(came, Relaxed);
        self.radii[target as usize].swap(self.round, Relaxed) != self.round
    }
}

/// Searches from all of `sources` at once.
///
/// # Errors
/// [`UnsuitableGraph::Vertex`] and [`UnsuitableGraph::Stopped`].
///
/// Panics when there are more than [`SAMPLE_MAX`] sources.
/// When there are more than [`SAMPLE_MAX`] sources.
pub fn radii<S: Store>(
    graph: &Graph<S>,
    sources: &[u32],
    watch: &mut Watch<'_>,
) -> Result<Radii, UnsuitableGraph> {
    assert!(sources.len() <= SAMPLE_MAX, "a bit for each source");
    let vertices = graph.vertices();
    sources.iter().try_for_each(|&source| exists(source, vertices))?;
    let visited = of_all(vertices, |_| AtomicU64::new(0));
    let radii = of_all(vertices, |_| AtomicU32::new(NONE));
    for (bit, &source) in sources.iter().enumerate() {
        visited[source as usize].fetch_or(1 << bit, Relaxed);
        radii[source as usize].store(0, Relaxed);
    }
    let next = of_all(vertices, |vertex| AtomicU64::new(visited[vertex as usize].load(Relaxed)));
    let mut set = VertexSubset::of(vertices, sources.to_vec());
    let mut round = 0;
    while !set.is_empty() {
        round += 1;
        if !watch(round.into(), vertices.into()) {
            return Err(UnsuitableGraph::Stopped);
        }
        let step = Step { visited: &visited, next: &next, radii: &radii, round };
        set = edge_map_in(graph, &set, Order::of_round(round.into()), &step);
        for_each_vertex(&set, |vertex| {
            visited[vertex as usize].store(next[vertex as usize].load(Relaxed), Relaxed);
        });
    }
    let radii = plain(radii);
    let reached = vertex_map(&VertexSubset::all(vertices), |vertex| radii[vertex as usize] != NONE);
    Ok(Radii { radii, reached: reached.len() as u64 })
}

/// Draws per sampled vertex, before the rest are taken in order.
const DRAWS: usize = 100;

/// Draws up to `count` distinct vertices with outgoing edges from a seed; fewer only if there are not enough.
#[must_use]
pub fn sample<S: Store>(graph: &Graph<S>, count: usize, seed: u64) -> Vec<u32> {
    let (vertices, mut rng) = (graph.vertices(), Rng::from_number(seed));
    let mut sample = Vec::new();
    let drawn = (0..count * DRAWS).filter(|_| vertices > 0).map(|_| rng.below(vertices.max(1)));
    for vertex in drawn.chain(0..vertices) {
        if sample.len() == count {
            break;
        }
        if graph.out().degree(vertex) > 0 && !sample.contains(&vertex) {
            sample.push(vertex);
        }
    }
    sample
}
