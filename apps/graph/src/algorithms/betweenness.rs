//! Betweenness centrality (Brandes): the share of shortest paths from some sources that lead through each
//! vertex.

use super::{NONE, UnsuitableGraph, Watch, exists};
use crate::edge_map::of_all;
use crate::{
    Array as _, EdgeFn, Graph, Order, Store, VertexSubset, edge_map_in, for_each_vertex, vertex_map,
};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

struct Count<'a> {
    levels: &'a [AtomicU32],
    /// Path counts, as bits of doubles.
    paths: &'a [AtomicU64],
}

impl Count<'_> {
    fn paths(&self, vertex: u32) -> f64 {
        f64::from_bits(self.paths[vertex as usize].load(Relaxed))
    }
}

impl EdgeFn for Count<'_> {
    fn push(&self, source: u32, target: u32, _: u32) -> bool {
        let more = self.paths(source);
        let add = |paths| Some((f64::from_bits(paths) + more).to_bits());
        let before = self.paths[target as usize].fetch_update(Relaxed, Relaxed, add);
        before == Ok(0)
    }

    fn pull(&self, source: u32, target: u32, _: u32) -> bool {
        let before = self.paths(target);
        self.paths[target as usize].store((before + self.paths(source)).to_bits(), Relaxed);
        before == 0.0
    }

    fn wants(&self, target: u32) -> bool {
        self.levels[target as usize].load(Relaxed) == NONE
    }
}

/// Returns for each vertex the share of shortest paths that lead through it and end elsewhere, summed over
/// all paths from `sources`. With all vertices as sources the result is exact. Paths of a symmetric graph
/// count in both directions. Parallel edges count as separate paths.
///
/// # Errors
/// [`UnsuitableGraph::Vertex`], [`UnsuitableGraph::Paths`] and [`UnsuitableGraph::Stopped`].
pub fn betweenness<S: Store>(
    graph: &Graph<S>,
    sources: &[u32],
    watch: &mut Watch<'_>,
) -> Result<Vec<f64>, UnsuitableGraph> {
    let vertices = graph.vertices();
    let mut sums = vec![0.0; vertices as usize];
    for (done, &source) in (0_u64..).zip(sources) {
        exists(source, vertices)?;
        let go_on = &mut || watch(done, sources.len() as u64);
        for (sum, dependency) in sums.iter_mut().zip(dependencies(graph, source, go_on)?) {
            *sum += dependency;
        }
    }
    Ok(sums)
}

/// Returns the contribution of paths from one source to each vertex.
fn dependencies<S: Store>(
    graph: &Graph<S>,
    source: u32,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Vec<f64>, UnsuitableGraph> {
    let vertices = graph.vertices();
    let levels = of_all(vertices, |_| AtomicU32::new(NONE));
    let paths = of_all(vertices, |_| AtomicU64::new(0));
    levels[source as usize].store(0, Relaxed);
    paths[source as usize].store(1_f64.to_bits(), Relaxed);
    let count = Count { levels: &levels, paths: &paths };
    let mut sets = Vec::new();
    let mut set = VertexSubset::of(vertices, vec![source]);
    let mut level = 0;
    while !set.is_empty() {
        if !go_on() {
            return Err(UnsuitableGraph::Stopped);
        }
        level += 1;
        let next = edge_map_in(graph, &set, Order::of_round(level.into()), &count);
        for_each_vertex(&next, |vertex| levels[vertex as usize].store(level, Relaxed));
        let beyond = vertex_map(&next, |vertex| count.paths(vertex).is_infinite());
        if let Some(&to) = beyond.list().first() {
            return Err(UnsuitableGraph::Paths { from: source, to });
        }
        sets.push(std::mem::replace(&mut set, next));
    }
    let dependencies = of_all(vertices, |_| AtomicU64::new(0));
    let dependency = |vertex: u32| f64::from_bits(dependencies[vertex as usize].load(Relaxed));
    // One thread handles each vertex, in the order of its edges.
    let levelled: Vec<_> = (1..).zip(&sets).collect();
    for &(level, set) in levelled.iter().rev() {
        if !go_on() {
            return Err(UnsuitableGraph::Stopped);
        }
        for_each_vertex(set, |vertex| {
            let below = graph.out().neighbours(vertex).iter();
            let below = below.filter(|&next| levels[next as usize].load(Relaxed) == level);
            // The quotient of path counts is at most 1 and exact enough for any counts; a quotient with only
            // one count may not be.
            let paths = count.paths(vertex);
            let sum: f64 = below.map(|next| paths / count.paths(next) * (1.0 + dependency(next))).sum();
            dependencies[vertex as usize].store(sum.to_bits(), Relaxed);
        });
    }
    dependencies[source as usize].store(0, Relaxed);
    Ok(dependencies.into_iter().map(|bits| f64::from_bits(bits.into_inner())).collect())
}
