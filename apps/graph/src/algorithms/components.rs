//! Connected components, regardless of edge direction.

use super::{UnsuitableGraph, plain};
use crate::edge_map::of_all;
use crate::{EdgeFn, Graph, Order, Store, VertexSubset, edge_map_in, for_each_vertex, vertex_map};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Label propagation, one round at a time: each vertex takes the smallest label among its neighbours. The
/// final label is the smallest vertex of the component.
#[derive(Clone, Debug)]
pub struct Components {
    labels: Vec<u32>,
    set: VertexSubset,
    rounds: u64,
}

struct Step<'a> {
    /// The labels at the beginning of the round.
    before: &'a [u32],
    labels: &'a [AtomicU32],
}

impl EdgeFn for Step<'_> {
    fn push(&self, source: u32, target: u32, _: u32) -> bool {
        let label = self.before[source as usize];
        self.labels[target as usize].fetch_min(label, Relaxed) > label
    }
}

impl Components {
    /// Creates the initial state: each vertex is its own component.
    #[must_use]
    pub fn new(vertices: u32) -> Self {
        Self { labels: (0..vertices).collect(), set: VertexSubset::all(vertices), rounds: 0 }
    }

    /// Resumes from the earlier [`Components::labels`] and [`Components::changed`] after `rounds` rounds.
    ///
    /// # Panics
    /// Panics when the labels do not match the vertices.
    #[must_use]
    pub fn resumed(labels: Vec<u32>, changed: VertexSubset, rounds: u64) -> Self {
        assert_eq!(labels.len(), changed.vertices() as usize, "a label for each vertex");
        Self { labels, set: changed, rounds }
    }

    /// Returns the label of each vertex.
    #[must_use]
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// Returns the vertices whose label changed in the last round.
    #[must_use]
    pub const fn changed(&self) -> &VertexSubset {
        &self.set
    }

    /// Returns the number of rounds so far.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Runs a round. The computation is complete when [`Components::changed`] is empty afterwards.
    ///
    /// # Errors
    /// [`UnsuitableGraph::NoIncoming`].
    ///
    /// # Panics
    /// Panics when the number of vertices differs from the number of labels.
    pub fn round<S: Store>(&mut self, graph: &Graph<S>) -> Result<(), UnsuitableGraph> {
        assert_eq!(graph.vertices() as usize, self.labels.len(), "a label for each vertex");
        let backwards = graph.reversed().ok_or(UnsuitableGraph::NoIncoming)?;
        let labels = of_all(graph.vertices(), |vertex| AtomicU32::new(self.labels[vertex as usize]));
        let step = Step { before: &self.labels, labels: &labels };
        // A round begins with the edges with which the previous one ended.
        let order = Order::of_round(self.rounds);
        let next = match order {
            _ if graph.is_symmetric() => edge_map_in(graph, &self.set, order, &step),
            Order::Ascending => {
                let next = edge_map_in(graph, &self.set, order, &step);
                next.union(&edge_map_in(&backwards, &self.set, order, &step))
            }
            Order::Descending => {
                let next = edge_map_in(&backwards, &self.set, order, &step);
                next.union(&edge_map_in(graph, &self.set, order, &step))
            }
        };
        (self.labels, self.set) = (plain(labels), next);
        self.rounds += 1;
        Ok(())
    }

    /// Returns the number of components and the size of the largest. Both are right once the computation is
    /// complete.
    #[must_use]
    pub fn sizes(&self) -> (u64, u64) {
        let all = VertexSubset::all(self.set.vertices());
        let label = |vertex: u32| self.labels[vertex as usize];
        // One vertex of each component has its own number as its label: the smallest.
        let components = vertex_map(&all, |vertex| label(vertex) == vertex);
        let sizes = of_all(all.vertices(), |_| AtomicU32::new(0));
        for_each_vertex(&all, |vertex| _ = sizes[label(vertex) as usize].fetch_add(1, Relaxed));
        (components.len() as u64, plain(sizes).into_iter().max().unwrap_or(0).into())
    }
}
