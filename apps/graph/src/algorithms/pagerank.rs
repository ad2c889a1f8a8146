//! PageRank.

use super::Unsuited;
use crate::edge_map::{Order, of_all_and_sum};
use crate::{Adjacency, Array as _, Graph, Store};

/// The part of a rank that is passed on along edges (the rest is divided evenly).
pub const DAMPING: f64 = 0.85;

/// Ranks that are being computed, a round at a time. Together they are 1: what a vertex without edges out of it has is divided evenly among
/// all (as NetworkX has it; Ligra lets it vanish).
#[derive(Clone, PartialEq, Debug)]
pub struct PageRank {
    ranks: Vec<f64>,
    moved: f64,
    rounds: u64,
}

impl PageRank {
    /// The same rank for all of so many vertices, before the first round.
    #[must_use]
    pub fn new(vertices: u32) -> Self {
        let ranks = vec![1.0 / f64::from(vertices.max(1)); vertices as usize];
        Self { ranks, moved: f64::INFINITY, rounds: 0 }
    }

    /// Goes on with what [`PageRank::ranks`] and [`PageRank::moved`] were after so many rounds.
    #[must_use]
    pub const fn resumed(ranks: Vec<f64>, moved: f64, rounds: u64) -> Self {
        Self { ranks, moved, rounds }
    }

    /// The rank of each vertex.
    #[must_use]
    pub fn ranks(&self) -> &[f64] {
        &self.ranks
    }

    /// How far all ranks moved in the last round, together; infinite before the first.
    #[must_use]
    pub const fn moved(&self) -> f64 {
        self.moved
    }

    /// Rounds so far.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.rounds
    }

    /// A round.
    ///
    /// # Errors
    /// [`Unsuited::NoIncoming`]: ranks are pulled.
    ///
    /// # Panics
    /// When the graph has not as many vertices as there are ranks.
    pub fn round<S: Store>(&mut self, graph: &Graph<S>) -> Result<(), Unsuited> {
        let vertices = graph.vertices();
        assert_eq!(vertices as usize, self.ranks.len(), "a rank for each vertex");
        let incoming = graph.incoming().ok_or(Unsuited::NoIncoming)?;
        let (ranks, order) = (&self.ranks, Order::of_round(self.rounds));
        let (passed, idle) = of_all_and_sum(vertices, order, |vertex| match graph.out().degree(vertex) {
            0 => (0.0, ranks[vertex as usize]),
            degree => (ranks[vertex as usize] / as_f64(degree), 0.0),
        });
        self.pull(incoming, idle, |source| passed[source as usize]);
        Ok(())
    }

    /// As [`PageRank::round`], to the bit, with what a vertex passes on divided at each edge, as Ligra does it: for each edge the vertex that it comes from is looked up
    /// in the graph, whose array of vertices is far memory too (SODA V: what static caching is for).
    ///
    /// # Errors
    /// As [`PageRank::round`].
    ///
    /// # Panics
    /// As [`PageRank::round`].
    pub fn round_by_edge<S: Store>(&mut self, graph: &Graph<S>) -> Result<(), Unsuited> {
        let vertices = graph.vertices();
        assert_eq!(vertices as usize, self.ranks.len(), "a rank for each vertex");
        let incoming = graph.incoming().ok_or(Unsuited::NoIncoming)?;
        let (ranks, order) = (self.ranks.clone(), Order::of_round(self.rounds));
        let (_, idle) = of_all_and_sum(vertices, order, |vertex| {
            (0.0, if graph.out().degree(vertex) == 0 { ranks[vertex as usize] } else { 0.0 })
        });
        // A vertex at the begin of an edge has one.
        self.pull(incoming, idle, |source| ranks[source as usize] / as_f64(graph.out().degree(source)));
        Ok(())
    }

    /// What comes along the edges into each vertex, and what those without edges divide.
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
