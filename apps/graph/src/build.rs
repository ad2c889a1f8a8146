//! Graphs in local memory, built from edges.
//!
//! Key types: [`Edges`], a list from a file or a generator; [`Csr`], the arrays.

use crate::csr::{Malformed, VERTICES_MAX};
use crate::{Adjacency, Graph, Local};
use rayon::prelude::*;

/// A list of edges, in any order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Edges {
    /// Number of vertices; all ends are smaller.
    pub vertices: u32,
    /// Source and target of each edge.
    pub list: Vec<(u32, u32)>,
    /// The weight of each edge; `None` for an unweighted graph.
    pub weights: Option<Vec<u32>>,
}

/// Options for building a graph.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Shape {
    /// Adds each edge in both directions; loops stay single. An edge that exists in both directions is then
    /// doubled, unless the graph is made simple.
    pub symmetric: bool,
    /// Keeps the lightest of parallel edges, and drops loops.
    pub simple: bool,
}

/// Edges in one direction, as arrays.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Rows {
    /// The start of each vertex's edges, and the end of the last.
    pub offsets: Vec<u64>,
    /// Targets of edges, ascending for each vertex.
    pub targets: Vec<u32>,
    /// The weights of the edges.
    pub weights: Option<Vec<u32>>,
}

/// A graph's arrays in local memory.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Csr {
    /// Outgoing edges.
    pub out: Rows,
    /// Incoming edges; `None` if the graph is symmetric or no algorithm needs them.
    pub incoming: Option<Rows>,
    /// True when each edge exists in both directions.
    pub symmetric: bool,
}

impl Rows {
    /// Returns a checked view as part of a graph.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn adjacency(&self) -> Result<Adjacency<Local<'_>>, Malformed> {
        Adjacency::new(self.offsets.as_slice(), self.targets.as_slice(), self.weights.as_deref())
    }
}

impl Csr {
    /// Returns the checked graph.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn graph(&self) -> Result<Graph<Local<'_>>, Malformed> {
        let out = self.out.adjacency()?;
        if self.symmetric {
            return Ok(Graph::symmetric(out));
        }
        Graph::directed(out, self.incoming.as_ref().map(Rows::adjacency).transpose()?)
    }

    /// Returns the number of vertices.
    #[must_use]
    pub const fn vertices(&self) -> u64 {
        (self.out.offsets.len() as u64).saturating_sub(1)
    }
}

impl Edges {
    /// Builds the arrays of these edges, including the incoming edges when the graph is not symmetric.
    ///
    /// # Errors
    /// [`Malformed::Target`] for an edge to a nonexistent vertex, [`Malformed::Weights`].
    pub fn build(self, shape: Shape) -> Result<Csr, Malformed> {
        let Self { vertices, list, weights } = self;
        if let Some(edge) = list.iter().position(|&(from, to)| from.max(to) >= vertices) {
            let (from, to) = list[edge];
            return Err(Malformed::Target { edge, target: from.max(to), vertices: vertices as usize });
        }
        if let Some(weights) = &weights
            && weights.len() != list.len()
        {
            return Err(Malformed::Weights { weights: weights.len(), edges: list.len() });
        }
        let weighted = weights.is_some();
        let weights = weights.into_iter().flatten().chain(std::iter::repeat(1));
        let ends = if shape.symmetric { 2 } else { 1 };
        let mut edges: Vec<(u32, u32, u32)> = Vec::with_capacity(list.len() * ends);
        edges.extend(list.into_iter().zip(weights).map(|((from, to), weight)| (from, to, weight)));
        if shape.symmetric {
            for at in 0..edges.len() {
                let (from, to, weight) = edges[at];
                if from != to {
                    edges.push((to, from, weight));
                }
            }
        }
        edges.par_sort_unstable();
        if shape.simple {
            edges.dedup_by_key(|edge| (edge.0, edge.1)); // keeps the first, the lightest
            edges.retain(|edge| edge.0 != edge.1);
        }
        let out = rows(vertices, &edges, weighted);
        let incoming = (!shape.symmetric).then(|| {
            edges.par_iter_mut().for_each(|edge| *edge = (edge.1, edge.0, edge.2));
            edges.par_sort_unstable();
            rows(vertices, &edges, weighted)
        });
        Ok(Csr { out, incoming, symmetric: shape.symmetric })
    }
}

fn rows(vertices: u32, edges: &[(u32, u32, u32)], weighted: bool) -> Rows {
    debug_assert!(u64::from(vertices) <= VERTICES_MAX);
    let mut offsets = vec![0_u64; vertices as usize + 1];
    for &(from, ..) in edges {
        offsets[from as usize + 1] += 1;
    }
    let mut sum = 0;
    for offset in &mut offsets {
        sum += *offset;
        *offset = sum;
    }
    let targets = edges.iter().map(|edge| edge.1).collect();
    let weights = weighted.then(|| edges.iter().map(|edge| edge.2).collect());
    Rows { offsets, targets, weights }
}
