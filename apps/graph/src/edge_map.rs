//! Ligra's two primitives: a function over the outgoing edges of a vertex set, and one over the vertices of a
//! set.
//!
//! Key items: [`edge_map`], [`EdgeFn`], [`vertex_map`]. Both run on the caller's `rayon` pool. The direction
//! depends only on the graph and the set, so it is the same for any number of threads. So is the result of a
//! round, if the function's updates commute (minimum, union).

use crate::subset::{WORD, is_set};
use crate::{Graph, Store, VertexSubset};
use rayon::prelude::*;

/// The function applied at an edge.
pub trait EdgeFn: Sync {
    /// Follows the edge from its source, concurrently with other edges to the same target. Returns true when
    /// the target belongs to the next set.
    fn push(&self, source: u32, target: u32, weight: u32) -> bool;

    /// Examines the edge from its target, which no other thread changes meanwhile. Returns true when the
    /// target belongs to the next set.
    fn pull(&self, source: u32, target: u32, weight: u32) -> bool {
        self.push(source, target, weight)
    }

    /// Returns true while this target may still change. When it returns false, the target's other edges are
    /// skipped.
    fn wants(&self, _target: u32) -> bool {
        true
    }
}

/// The end from which edges are examined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the sources, which are few.
    Push,
    /// From all targets, because sources are many.
    Pull,
}

/// The order in which all vertices are visited. The result does not depend on it, but the cost does when only
/// a part of the graph is local. A round that begins where the previous one ended hits local pages. A round
/// that restarts at the first vertex of a larger graph misses all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// From the first vertex on.
    Ascending,
    /// From the last vertex back.
    Descending,
}

impl Order {
    /// Returns the order of a round, counted from 0: rounds alternate.
    #[must_use]
    pub const fn of_round(round: u64) -> Self {
        if round.is_multiple_of(2) { Self::Ascending } else { Self::Descending }
    }
}

/// A set is pulled when its vertices and edges exceed this fraction of all edges (Ligra 4.2).
pub const PULL_ABOVE: u64 = 20;

/// Calls `function` at the outgoing edges of the vertices of `set`, from the cheaper end. Returns the targets
/// for which it returned true.
pub fn edge_map<S: Store>(graph: &Graph<S>, set: &VertexSubset, function: &impl EdgeFn) -> VertexSubset {
    edge_map_in(graph, set, Order::Ascending, function)
}

/// Works as [`edge_map`]; pulled targets are visited in this order.
pub fn edge_map_in<S: Store>(
    graph: &Graph<S>,
    set: &VertexSubset,
    order: Order,
    function: &impl EdgeFn,
) -> VertexSubset {
    edge_map_by(graph, set, (direction(graph, set), order), function)
}

/// Returns the end from which [`edge_map`] examines the edges of `set`.
#[must_use]
pub fn direction<S: Store>(graph: &Graph<S>, set: &VertexSubset) -> Direction {
    let most = graph.edges() / PULL_ABOVE;
    if graph.incoming().is_none() || set.is_empty() {
        return Direction::Push;
    }
    if set.len() as u64 > most {
        return Direction::Pull;
    }
    let edges: u64 = set.par_iter().map(|vertex| graph.out().degree(vertex)).sum();
    if set.len() as u64 + edges > most { Direction::Pull } else { Direction::Push }
}

/// Works as [`edge_map_in`], from the given end.
///
/// # Panics
/// Panics when the set belongs to another graph, or when edges are to be pulled and the graph has no incoming
/// ones.
pub fn edge_map_by<S: Store>(
    graph: &Graph<S>,
    set: &VertexSubset,
    (direction, order): (Direction, Order),
    function: &impl EdgeFn,
) -> VertexSubset {
    assert_eq!(graph.vertices(), set.vertices(), "a set of this graph's vertices");
    match direction {
        Direction::Push => push(graph, set, function),
        Direction::Pull => pull(graph, set, order, function),
    }
}

fn push<S: Store>(graph: &Graph<S>, set: &VertexSubset, function: &impl EdgeFn) -> VertexSubset {
    let next = set.par_iter().fold(Vec::new, |mut next, source| {
        let edges = graph.out().weighted(source);
        next.extend(edges.filter_map(|(target, weight)| {
            (function.wants(target) && function.push(source, target, weight)).then_some(target)
        }));
        next
    });
    let next = next.reduce(Vec::new, |mut first, mut second| {
        first.append(&mut second);
        first
    });
    VertexSubset::of(graph.vertices(), next)
}

fn pull<S: Store>(
    graph: &Graph<S>,
    set: &VertexSubset,
    order: Order,
    function: &impl EdgeFn,
) -> VertexSubset {
    let incoming = graph.incoming().expect("edges into vertices, to be pulled");
    let sources = set.bits();
    let mut next = vec![0_u64; sources.len()];
    // One thread owns each word of bits.
    let of_word = |(at, word): (usize, &mut u64)| {
        for bit in 0..WORD {
            let Some(target) = vertex(at * WORD + bit, graph.vertices()) else { break };
            if function.wants(target) && pull_at(incoming.weighted(target), &sources, target, function) {
                *word |= 1 << bit;
            }
        }
    };
    let words = next.par_iter_mut().enumerate();
    match order {
        Order::Ascending => words.for_each(of_word),
        Order::Descending => words.rev().for_each(of_word),
    }
    VertexSubset::of_bits(graph.vertices(), next)
}

fn pull_at(
    edges: impl Iterator<Item = (u32, u32)>,
    sources: &[u64],
    target: u32,
    function: &impl EdgeFn,
) -> bool {
    let mut wanted = false;
    for (source, weight) in edges {
        if is_set(sources, source) {
            wanted |= function.pull(source, target, weight);
            if !function.wants(target) {
                break;
            }
        }
    }
    wanted
}

fn vertex(at: usize, vertices: u32) -> Option<u32> {
    u32::try_from(at).ok().filter(|&vertex| vertex < vertices)
}

/// Calls `function` at the vertices of `set`. Returns those for which it returned true.
pub fn vertex_map(set: &VertexSubset, function: impl Fn(u32) -> bool + Sync) -> VertexSubset {
    set.keep(function)
}

/// Works as [`vertex_map`], for functions without a result.
pub fn for_each_vertex(set: &VertexSubset, function: impl Fn(u32) + Sync + Send) {
    set.par_iter().for_each(function);
}

/// Returns `of` for all of `count` vertices.
pub(crate) fn of_all<T: Send>(count: u32, of: impl Fn(u32) -> T + Send + Sync) -> Vec<T> {
    (0..count).into_par_iter().with_min_len(64).map(of).collect()
}

/// Returns the first results of `of` for all of `count` vertices, and the sum of the second ones. Blocks of
/// vertices are visited in this order; the sum is added in a fixed order, for any number of threads.
pub(crate) fn of_all_and_sum(
    count: u32,
    order: Order,
    of: impl Fn(u32) -> (f64, f64) + Sync,
) -> (Vec<f64>, f64) {
    // Small enough that pages are visited in order, in either direction.
    const BLOCK: usize = 64;
    let mut all = vec![0.0; count as usize];
    let blocks = all.par_chunks_mut(BLOCK).zip((0..count).into_par_iter().step_by(BLOCK));
    let of_block = |(block, first): (&mut [f64], u32)| -> f64 {
        let each = block.iter_mut().zip(first..).map(|(place, vertex)| {
            let (value, part) = of(vertex);
            *place = value;
            part
        });
        each.sum()
    };
    let sums: Vec<f64> = match order {
        Order::Ascending => blocks.map(of_block).collect(),
        Order::Descending => {
            let mut sums: Vec<f64> = blocks.rev().map(of_block).collect();
            sums.reverse();
            sums
        }
    };
    (all, sums.into_iter().sum())
}

/// Returns ascending neighbours without duplicates and without `vertex` itself.
pub(crate) fn simple<T: crate::Array<Item = u32>>(neighbours: T, vertex: u32) -> impl Iterator<Item = u32> {
    let mut before = None;
    neighbours.iter().filter(move |&other| before.replace(other) != Some(other) && other != vertex)
}
