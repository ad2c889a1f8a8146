//! Ligra's two calls: a function over the edges out of a set of vertices, and one over the vertices of a set.
//!
//! Key items: [`edge_map`], [`EdgeFn`], [`vertex_map`]. They run on the threads of the caller's `rayon` pool. Which direction is taken depends on
//! the graph and the set alone, so it is the same for any number of threads; what comes of a round is too, where a function's
//! updates have no order (the least of, the union of).

use crate::subset::{WORD, is_set};
use crate::{Graph, Store, VertexSubset};
use rayon::prelude::*;

/// What is done at an edge.
pub trait EdgeFn: Sync {
    /// The edge is followed from its source, beside others to the same target. True when the target belongs to the next set.
    fn push(&self, source: u32, target: u32, weight: u32) -> bool;

    /// The edge is looked at from its target, which no other thread changes meanwhile. True when the target belongs to the next set.
    fn pull(&self, source: u32, target: u32, weight: u32) -> bool {
        self.push(source, target, weight)
    }

    /// Whether anything may still be done at this target. Once it is not, the target's other edges are left out.
    fn wants(&self, _target: u32) -> bool {
        true
    }
}

/// From which end edges are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the sources: few of them.
    Push,
    /// From all targets: many sources.
    Pull,
}

/// In which order all vertices are looked at: what comes of it is the same, and what it costs is not where a part of the graph is here. A round that begins where the one before ended finds what
/// that one brought; one that begins anew at the first vertex finds, of a graph that is larger, nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// From the first vertex on.
    Ascending,
    /// From the last one back.
    Descending,
}

impl Order {
    /// Of a round, from 0 on: they take turns.
    #[must_use]
    pub const fn of_round(round: u64) -> Self {
        if round.is_multiple_of(2) { Self::Ascending } else { Self::Descending }
    }
}

/// A set whose vertices and edges are more than this part of all edges is pulled (Ligra 4.2).
pub const PULL_ABOVE: u64 = 20;

/// Calls `function` at the edges out of the vertices of `set`, from the end that is cheaper. The answer is the targets of which it said true.
pub fn edge_map<S: Store>(graph: &Graph<S>, set: &VertexSubset, function: &impl EdgeFn) -> VertexSubset {
    edge_map_in(graph, set, Order::Ascending, function)
}

/// As [`edge_map`]; where edges are pulled, targets are looked at in this order.
pub fn edge_map_in<S: Store>(
    graph: &Graph<S>,
    set: &VertexSubset,
    order: Order,
    function: &impl EdgeFn,
) -> VertexSubset {
    edge_map_by(graph, set, (direction(graph, set), order), function)
}

/// The end from which [`edge_map`] looks at the edges of `set`.
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

/// As [`edge_map_in`], from the end that the caller says.
///
/// # Panics
/// When the set is of another graph, or edges are to be pulled and the graph has none into vertices.
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
    // A word of bits is one thread's.
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

/// Calls `function` at the vertices of `set`; the answer is those of which it said true.
pub fn vertex_map(set: &VertexSubset, function: impl Fn(u32) -> bool + Sync) -> VertexSubset {
    set.keep(function)
}

/// As [`vertex_map`], where nobody wants to know which vertices are kept.
pub fn for_each_vertex(set: &VertexSubset, function: impl Fn(u32) + Sync + Send) {
    set.par_iter().for_each(function);
}

/// For all of `count` vertices, what `of` says of each.
pub(crate) fn of_all<T: Send>(count: u32, of: impl Fn(u32) -> T + Send + Sync) -> Vec<T> {
    (0..count).into_par_iter().with_min_len(64).map(of).collect()
}

/// For all of `count` vertices the first of what `of` says of each, and the sum of the second; blocks of vertices are looked at in this order, and all is added up in the same one, whatever
/// the number of threads.
pub(crate) fn of_all_and_sum(
    count: u32,
    order: Order,
    of: impl Fn(u32) -> (f64, f64) + Sync,
) -> (Vec<f64>, f64) {
    // Small enough that pages come in order, whichever that is.
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

/// Neighbours that ascend, each once, without `vertex` itself.
pub(crate) fn simple<T: crate::Array<Item = u32>>(neighbours: T, vertex: u32) -> impl Iterator<Item = u32> {
    let mut before = None;
    neighbours.iter().filter(move |&other| before.replace(other) != Some(other) && other != vertex)
}
