//! Triangles: sets of three vertices, all connected to each other.

use super::{UnsuitableGraph, Watch};
use crate::edge_map::simple;
use crate::{Graph, Store};
use rayon::prelude::*;

/// Vertices between two checks of the callback.
const BLOCK: u32 = 1 << 14;

/// Counts each triangle once. Loops and parallel edges do not add triangles.
///
/// # Errors
/// [`UnsuitableGraph::Directed`], [`UnsuitableGraph::Unsorted`] and [`UnsuitableGraph::Stopped`].
pub fn triangles<S: Store>(graph: &Graph<S>, watch: &mut Watch<'_>) -> Result<u64, UnsuitableGraph> {
    if !graph.is_symmetric() {
        return Err(UnsuitableGraph::Directed);
    }
    if !graph.out().is_sorted() {
        return Err(UnsuitableGraph::Unsorted);
    }
    let vertices = graph.vertices();
    let mut count = 0;
    for first in (0..vertices).step_by(BLOCK as usize) {
        if !watch(first.into(), vertices.into()) {
            return Err(UnsuitableGraph::Stopped);
        }
        let block = first..vertices.min(first.saturating_add(BLOCK));
        count += block.into_par_iter().map(|vertex| at(graph, vertex)).sum::<u64>();
    }
    Ok(count)
}

/// Counts the triangles in which `vertex` is the largest.
fn at<S: Store>(graph: &Graph<S>, vertex: u32) -> u64 {
    let smaller: Vec<u32> =
        simple(graph.out().neighbours(vertex), vertex).take_while(|&other| other < vertex).collect();
    smaller.iter().map(|&middle| common(&smaller, graph, middle)).sum()
}

/// Counts the common elements of an ascending list and the neighbours of `middle` that are below `middle`.
fn common<S: Store>(list: &[u32], graph: &Graph<S>, middle: u32) -> u64 {
    let mut list = list.iter().copied().peekable();
    let neighbours = simple(graph.out().neighbours(middle), middle).take_while(|&other| other < middle);
    let shared = neighbours.filter(|&other| {
        while list.next_if(|&mine| mine < other).is_some() {}
        list.peek() == Some(&other)
    });
    shared.count() as u64
}
