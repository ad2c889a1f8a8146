//! The work on a graph: SODA's five applications (SODA V, table I).

use farmem_graph::algorithms::{Components, PageRank, UnsuitableGraph, betweenness, bfs, radii};
use farmem_graph::{Graph, Store, Values};

/// An application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum App {
    /// Breadth-first search.
    Bfs,
    /// `PageRank` with a number of rounds.
    Pagerank,
    /// `PageRank` with the contribution divided at each edge, as Ligra does: the paper's variant.
    PagerankByEdge,
    /// Radii, from up to 64 vertices at once.
    Radii,
    /// Betweenness of the shortest paths from one vertex.
    Bc,
    /// Connected components.
    Components,
}

impl App {
    /// The applications whose bytes are counted.
    pub const COUNTED: [Self; 6] =
        [Self::Bfs, Self::Pagerank, Self::PagerankByEdge, Self::Radii, Self::Bc, Self::Components];

    /// The applications whose times are measured, in this order.
    pub const ALL: [Self; 5] = [Self::Bfs, Self::Pagerank, Self::Radii, Self::Bc, Self::Components];

    /// Returns the application's part of ids.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bfs => "bfs",
            Self::Pagerank => "pagerank",
            Self::PagerankByEdge => "pagerank_by_edge",
            Self::Radii => "radii",
            Self::Bc => "bc",
            Self::Components => "components",
        }
    }
}

/// An application and its start values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Work {
    pub(super) app: App,
    /// Rounds of [`App::Pagerank`].
    pub(super) rounds: u64,
    /// Start vertices: the first one, or all for radii.
    pub(super) sources: Vec<u32>,
}

impl Work {
    /// Returns the result of each vertex.
    pub(super) fn run<S: Store>(&self, graph: &Graph<S>) -> Result<Values, UnsuitableGraph> {
        let on = &mut |_, _| true;
        let first = &self.sources[..self.sources.len().min(1)];
        match self.app {
            App::Bfs => {
                let found = bfs(graph, first.first().copied().unwrap_or(0), on)?;
                Ok(Values::Pairs(found.levels, found.parents))
            }
            App::Pagerank => {
                let mut ranks = PageRank::new(graph.vertices());
                (0..self.rounds).try_for_each(|_| ranks.round(graph))?;
                Ok(Values::Real(ranks.ranks().to_vec()))
            }
            App::PagerankByEdge => {
                let mut ranks = PageRank::new(graph.vertices());
                (0..self.rounds).try_for_each(|_| ranks.round_by_edge(graph))?;
                Ok(Values::Real(ranks.ranks().to_vec()))
            }
            App::Radii => radii(graph, &self.sources, on).map(|found| Values::Short(found.radii)),
            App::Bc => betweenness(graph, first, on).map(Values::Real),
            App::Components => {
                let mut components = Components::new(graph.vertices());
                while !components.changed().is_empty() {
                    components.round(graph)?;
                }
                Ok(Values::Short(components.labels().to_vec()))
            }
        }
    }
}
