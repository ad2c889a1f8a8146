//! Breadth-first search.

use super::{NONE, UnsuitableGraph, Watch, exists, plain};
use crate::edge_map::of_all;
use crate::{EdgeFn, Graph, Order, Store, VertexSubset, edge_map_in, for_each_vertex};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A tree of shortest paths by number of edges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bfs {
    /// Edges from the source; [`NONE`] for unreached vertices.
    pub levels: Vec<u32>,
    /// The predecessor of each vertex on a shortest path: the source's is itself, and [`NONE`] marks
    /// unreached vertices. In a sorted graph it is the smallest possible predecessor.
    pub parents: Vec<u32>,
    /// Number of reached vertices, including the source.
    pub reached: u64,
}

struct Step<'a> {
    levels: &'a [AtomicU32],
    parents: &'a [AtomicU32],
    level: u32,
}

impl EdgeFn for Step<'_> {
    fn push(&self, source: u32, target: u32, _: u32) -> bool {
        self.parents[target as usize].fetch_min(source, Relaxed) == NONE
    }

    fn pull(&self, source: u32, target: u32, _: u32) -> bool {
        self.parents[target as usize].store(source, Relaxed);
        // The first edge suffices: the others are skipped.
        self.levels[target as usize].store(self.level, Relaxed);
        true
    }

    fn wants(&self, target: u32) -> bool {
        self.levels[target as usize].load(Relaxed) == NONE
    }
}

/// Searches from `source` along outgoing edges.
///
/// # Errors
/// [`UnsuitableGraph::Vertex`] and [`UnsuitableGraph::Stopped`].
pub fn bfs<S: Store>(graph: &Graph<S>, source: u32, watch: &mut Watch<'_>) -> Result<Bfs, UnsuitableGraph> {
    let vertices = graph.vertices();
    exists(source, vertices)?;
    let levels = of_all(vertices, |_| AtomicU32::new(NONE));
    let parents = of_all(vertices, |_| AtomicU32::new(NONE));
    levels[source as usize].store(0, Relaxed);
    parents[source as usize].store(source, Relaxed);
    let mut set = VertexSubset::of(vertices, vec![source]);
    let (mut reached, mut level) = (0, 0);
    while !set.is_empty() {
        reached += set.len() as u64;
        if !watch(reached, vertices.into()) {
            return Err(UnsuitableGraph::Stopped);
        }
        level += 1;
        let step = Step { levels: &levels, parents: &parents, level };
        set = edge_map_in(graph, &set, Order::of_round(level.into()), &step);
        for_each_vertex(&set, |vertex| levels[vertex as usize].store(level, Relaxed));
    }
    Ok(Bfs { levels: plain(levels), parents: plain(parents), reached })
}
