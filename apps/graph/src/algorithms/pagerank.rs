//! PageRank.

use super::UnsuitableGraph;
use crate::edge_map::{Order, of_all_and_sum};
use crate::{Adjacency, Array as _, Graph, Store};

/// The share of a rank that is passed on along edges; the rest is divided evenly.
pub const DAMPING: f64 = 0.85;

/// Ranks under computation, one round at a time. Their sum is 1. The rank of a vertex without outgoing edges
/// is divided evenly among all (as in NetworkX; Ligra drops it).
#[derive(Clone, PartialEq, Debug)]
pub struct PageRank {
    ranks: Vec<f64>,
    moved: f64,
    rounds: u64,
}

impl PageRank {
    /// Creates equal ranks for all vertices, before the first round.
    #[must_use]
    pub fn new(vertices: u32) -> Self {
        let ranks = vec![1.0 / f64::from(vertices.max(1)); vertices as usize];
        Self { ranks, moved: f64::INFINITY, rounds: 0 }
    }

    /// Resumes from the earlier [`PageRank::ranks`] and [`PageRank::moved`] after `rounds` rounds.
    #[must_use]
    pub const fn resumed(ranks: Vec<f64>, moved: f64, rounds: u64) -> Self {
        Self { ranks, moved, rounds }
    }

    /// Returns the rank of each vertex.
    #[must_use]
    pub fn ranks(&self) -> &[f64] {
        &self.ranks
    }

    /// Returns the sum of the absolute rank changes in the last round; infinite before the first round.
    #[must_use]
    pub const fn moved(&self) -> f64 {
        self.moved
    }

    /// Returns the number of rounds so far.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Runs a round.
    ///
    /// # Errors
    /// [`UnsuitableGraph::NoIncoming`], because ranks are pulled.
    ///
    /// # Panics
    /// Panics when the number of vertices differs from the number of ranks.
    pub fn round<S: Store>(&mut self, graph: &Graph<S>) -> Result<(), UnsuitableGraph> {
        let vertices = graph.vertices();
        assert_eq!(vertices as usize, self.ranks.len(), "a rank for each vertex");
        let incoming = graph.incoming().ok_or(UnsuitableGraph::NoIncoming)?;
        let (ranks, order) = (&self.ranks, Order::of_round(self.rounds));
        let (passed, idle) = of_all_and_sum(vertices, order, |vertex| match graph.out().degree(vertex) {
            0 => (0.0, ranks[vertex as usize]),
            degree => (ranks[vertex as usize] / as_f64(degree), 0.0),
        });
        self.pull(incoming, idle, |source| passed[source as usize]);
        Ok(())
    }

    /// Works as [`PageRank::round`], with bit-identical results, but divides each vertex's rank at every
    /// edge, like Ligra. For each edge the source vertex is looked up in the graph, whose vertex array is far
    /// memory too (SODA V: the case for static caching).
    ///
    /// # Errors
    /// As [`PageRank::round`].
    ///
    /// # Panics
    /// As [`PageRank::round`].
    pub fn round_by_edge<S: Store>(&mut self, graph: &Graph<S>) -> Result<(), UnsuitableGraph> {
        let vertices = graph.vertices();
        assert_eq!(vertices as usize, self.ranks.len(), "a rank for each vertex");
        let incoming = graph.incoming().ok_or(UnsuitableGraph::NoIncoming)?;
        let (ranks, order) = (self.ranks.clone(), Order::of_round(self.rounds));
        let (_, idle) = of_all_and_sum(vertices, order, |vertex| {
            (0.0, if graph.out().degree(vertex) == 0 { ranks[vertex as usize] } else { 0.0 })
        });
        // The source of an edge has an outgoing edge.
        self.pull(incoming, idle, |source| ranks[source as usize] / as_f64(graph.out().degree(source)));
        Ok(())
    }

    /// Pulls ranks along the incoming edges of each vertex; `idle` is the rank of vertices without edges.
    fn pull<S: Store>(&mut self, incoming: &Adjacency<S>, idle: f64, passed: impl Fn(u32) -> f64 + Sync) {
        let (vertices, ranks) = (incoming.vertices(), &self.ranks);
        let each = (1.0 - DAMPING + DAMPING * idle) / f64::from(vertices.max(1));
        let (next, moved) = of_all_and_sum(vertices, Order::of_round(self.rounds), |vertex| {
            let sum: f64 = incoming.neighbours(vertex).iter().map(&passed).sum();
            let rank = each + DAMPING * sum;
            (rank, (rank - ranks[vertex as usize]).abs())
        });
        (self.ranks, self.moved) = (next, moved);
        self.rounds += 1;
    }
}

#[expect(clippy::cast_precision_loss, reason = "a number of edges, far below 2^52")]
const fn as_f64(degree: u64) -> f64 {
    degree as f64
}
