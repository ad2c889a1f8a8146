//! A graph in local memory, made from edges.
//!
//! Key types: [`Edges`], a list as a file or a generator gives it; [`Csr`], the arrays.

use crate::csr::{Malformed, VERTICES_MAX};
use crate::{Adjacency, Graph, Local};
use rayon::prelude::*;

/// Edges, in any order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Edges {
    /// Vertices; all ends are below.
    pub vertices: u32,
    /// From where to where.
    pub list: Vec<(u32, u32)>,
    /// Of each its weight; none has one when this is `None`.
    pub weights: Option<Vec<u32>>,
}

/// What is made of edges.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Shape {
    /// Puts each edge at both of its ends; loops stay one edge. What stands at both already stands there twice then, unless it is made simple.
    pub symmetric: bool,
    /// Keeps one of edges with the same ends, the lightest, and no loops.
    pub simple: bool,
}

/// Edges in one direction, as arrays.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Rows {
    /// Where each vertex's edges begin, and where the last one's end.
    pub offsets: Vec<u64>,
    /// Where edges lead, ascending for each vertex.
    pub targets: Vec<u32>,
    /// Their weights.
    pub weights: Option<Vec<u32>>,
}

/// A graph's arrays in local memory.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Csr {
    /// Edges out of vertices.
    pub out: Rows,
    /// Edges into them, unless the graph is symmetric or nobody wants them.
    pub incoming: Option<Rows>,
    /// Whether each edge stands at both of its ends.
    pub symmetric: bool,
}

impl Rows {
    /// As a part of a graph, checked.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn adjacency(&self) -> Result<Adjacency<Local<'_>>, Malformed> {
        Adjacency::new(self.offsets.as_slice(), self.targets.as_slice(), self.weights.as_deref())
    }
}

impl Csr {
    /// The graph, checked.
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

    /// Vertices.
    #[must_use]
    pub const fn vertices(&self) -> u64 {
        (self.out.offsets.len() as u64).saturating_sub(1)
    }
}

impl Edges {
    /// The arrays of these edges; with the edges into vertices when the graph is not symmetric.
    ///
    /// # Errors
    /// [`Malformed::Target`] for an edge that leaves the vertices, [`Malformed::Weights`].
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
