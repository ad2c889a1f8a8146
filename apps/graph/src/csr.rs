//! Graphs as compressed sparse rows: the start of each vertex's edges, and their targets.
//!
//! Key types: [`Adjacency`], the edges in one direction, checked when opened; [`Graph`], outgoing edges and,
//! where needed, incoming ones.

use crate::{Array, Store};

/// Bound on the vertices of a graph: vertex numbers have 32 bits, and one is reserved.
pub const VERTICES_MAX: u64 = u32::MAX as u64;

/// The reason why arrays form no graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// The offsets are empty; even a graph without vertices has one.
    #[error("there is no offset: a graph of n vertices has n + 1")]
    NoOffsets,
    /// More vertices than 32 bits can number.
    #[error("{0} vertices: a graph has {VERTICES_MAX} at most")]
    Vertices(u64),
    /// The first offset is not 0.
    #[error("offset 0 is {0}, expected 0")]
    First(u64),
    /// An offset is smaller than the one before it.
    #[error("offset {index} is {value}, less than the one before it, {before}: offsets ascend")]
    Descends {
        /// The offset's index.
        index: usize,
        /// The offset.
        value: u64,
        /// The previous offset.
        before: u64,
    },
    /// The last offset is not the number of edges.
    #[error("offset {index}, the last, is {value}, but there are {edges} edges")]
    Last {
        /// The offset's index.
        index: usize,
        /// The offset.
        value: u64,
        /// Number of edges.
        edges: usize,
    },
    /// An edge leads to a nonexistent vertex.
    #[error("edge {edge} leads to vertex {target}, but there are only {vertices} vertices, from 0 on")]
    Target {
        /// The edge's index.
        edge: usize,
        /// The edge's target.
        target: u32,
        /// Number of vertices.
        vertices: usize,
    },
    /// The number of weights differs from the number of edges.
    #[error("{weights} weights for {edges} edges")]
    Weights {
        /// Number of weights.
        weights: usize,
        /// Number of edges.
        edges: usize,
    },
    /// Incoming and outgoing edges do not match.
    #[error("{out} edges out of vertices, but {incoming} into them, or vertices or weights differ")]
    Incoming {
        /// Number of outgoing edges.
        out: usize,
        /// Number of incoming edges.
        incoming: usize,
    },
}

/// Edges grouped by the vertex at one end.
#[derive(Clone, Copy, Debug)]
pub struct Adjacency<S: Store> {
    offsets: S::Offsets,
    targets: S::Targets,
    weights: Option<S::Targets>,
    sorted: bool,
}

impl<S: Store> Adjacency<S> {
    /// Opens arrays in which the edges of vertex `v` are those from `offsets[v]` to `offsets[v + 1]`. Reads
    /// and checks everything once.
    ///
    /// # Errors
    /// [`Malformed`] with the position of the first error.
    pub fn new(
        offsets: S::Offsets,
        targets: S::Targets,
        weights: Option<S::Targets>,
    ) -> Result<Self, Malformed> {
        let mut check = Check::new(offsets.len() as u64, targets.len())?;
        offsets.iter().try_for_each(|offset| check.offset(offset))?;
        check.last_offset()?;
        let mut sorted = true;
        let vertices = offsets.len() - 1;
        for vertex in 0..vertices {
            let mut before = 0;
            let range = place(offsets.at(vertex))..place(offsets.at(vertex + 1));
            for target in targets.part(range).iter() {
                check.target(target)?;
                sorted &= before <= target;
                before = target;
            }
        }
        Self::checked(offsets, targets, weights, sorted)
    }

    /// Opens arrays that were checked when they were written, without reading them. Using malformed arrays
    /// panics.
    ///
    /// # Errors
    /// [`Malformed`] when the lengths are wrong.
    pub fn checked(
        offsets: S::Offsets,
        targets: S::Targets,
        weights: Option<S::Targets>,
        sorted: bool,
    ) -> Result<Self, Malformed> {
        Check::new(offsets.len() as u64, targets.len())?;
        if let Some(weights) = weights
            && weights.len() != targets.len()
        {
            return Err(Malformed::Weights { weights: weights.len(), edges: targets.len() });
        }
        Ok(Self { offsets, targets, weights, sorted })
    }

    /// Returns the number of vertices.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "checked when it was opened")]
    pub fn vertices(&self) -> u32 {
        (self.offsets.len() - 1) as u32
    }

    /// Returns the number of edges.
    #[must_use]
    pub fn edges(&self) -> u64 {
        self.targets.len() as u64
    }

    /// Returns true when edges have weights; otherwise each weighs 1.
    #[must_use]
    pub const fn is_weighted(&self) -> bool {
        self.weights.is_some()
    }

    /// Returns true when every vertex's edges ascend by target.
    #[must_use]
    pub const fn is_sorted(&self) -> bool {
        self.sorted
    }

    /// Returns the number of edges of `vertex`.
    #[must_use]
    #[inline]
    pub fn degree(&self, vertex: u32) -> u64 {
        self.offsets.at(vertex as usize + 1) - self.offsets.at(vertex as usize)
    }

    /// Returns the targets of the edges of `vertex`.
    #[must_use]
    #[inline]
    pub fn neighbours(&self, vertex: u32) -> S::Targets {
        self.targets.part(self.range(vertex))
    }

    /// Returns the targets of the edges of `vertex`, with their weights.
    #[inline]
    pub fn weighted(&self, vertex: u32) -> impl Iterator<Item = (u32, u32)> + use<S> {
        let range = self.range(vertex);
        let (targets, weights) = (self.targets.part(range.clone()), self.weights.map(|all| all.part(range)));
        (0..targets.len()).map(move |at| (targets.at(at), weights.map_or(1, |weights| weights.at(at))))
    }

    #[inline]
    fn range(&self, vertex: u32) -> std::ops::Range<usize> {
        place(self.offsets.at(vertex as usize))..place(self.offsets.at(vertex as usize + 1))
    }
}

/// Converts an offset; memory of this machine has an address for it.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "farmem needs addresses of 64 bits")]
const fn place(offset: u64) -> usize {
    offset as usize
}

/// A checker of a graph's arrays that receives them in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check {
    vertices: usize,
    edges: usize,
    next: usize,
    before: u64,
    targets: usize,
}

impl Check {
    /// Creates a checker for this many offsets and targets.
    pub(crate) fn new(offsets: u64, edges: usize) -> Result<Self, Malformed> {
        let vertices = offsets.checked_sub(1).ok_or(Malformed::NoOffsets)?;
        let few = usize::try_from(vertices).ok().filter(|_| vertices <= VERTICES_MAX);
        let vertices = few.ok_or(Malformed::Vertices(vertices))?;
        Ok(Self { vertices, edges, next: 0, before: 0, targets: 0 })
    }

    pub(crate) fn offset(&mut self, value: u64) -> Result<(), Malformed> {
        let (index, before) = (self.next, self.before);
        if index == 0 && value != 0 {
            return Err(Malformed::First(value));
        }
        if value < before {
            return Err(Malformed::Descends { index, value, before });
        }
        if value > self.edges as u64 {
            return Err(Malformed::Last { index, value, edges: self.edges });
        }
        (self.next, self.before) = (index + 1, value);
        Ok(())
    }

    pub(crate) const fn last_offset(&self) -> Result<(), Malformed> {
        if self.before == self.edges as u64 {
            return Ok(());
        }
        Err(Malformed::Last { index: self.vertices, value: self.before, edges: self.edges })
    }

    pub(crate) const fn target(&mut self, target: u32) -> Result<(), Malformed> {
        if target as usize >= self.vertices {
            return Err(Malformed::Target { edge: self.targets, target, vertices: self.vertices });
        }
        self.targets += 1;
        Ok(())
    }
}

/// A graph: its outgoing edges, and its incoming edges where an algorithm follows edges backwards.
#[derive(Clone, Copy, Debug)]
pub struct Graph<S: Store> {
    out: Adjacency<S>,
    incoming: Option<Adjacency<S>>,
    symmetric: bool,
}

impl<S: Store> Graph<S> {
    /// Creates a directed graph. Without `incoming` nothing can be pulled.
    ///
    /// # Errors
    /// [`Malformed`] when the numbers of incoming and outgoing edges differ.
    pub fn directed(out: Adjacency<S>, incoming: Option<Adjacency<S>>) -> Result<Self, Malformed> {
        if let Some(incoming) = incoming
            && (incoming.vertices() != out.vertices()
                || incoming.edges() != out.edges()
                || incoming.is_weighted() != out.is_weighted())
        {
            return Err(Malformed::Incoming { out: out.targets.len(), incoming: incoming.targets.len() });
        }
        Ok(Self { out, incoming, symmetric: false })
    }

    /// Creates a graph in which each edge exists in both directions.
    pub const fn symmetric(edges: Adjacency<S>) -> Self {
        Self { out: edges, incoming: Some(edges), symmetric: true }
    }

    /// Returns the number of vertices.
    #[must_use]
    pub fn vertices(&self) -> u32 {
        self.out.vertices()
    }

    /// Returns the number of edges; each edge of a symmetric graph counts twice.
    #[must_use]
    pub fn edges(&self) -> u64 {
        self.out.edges()
    }

    /// Returns the outgoing edges.
    #[must_use]
    pub const fn out(&self) -> &Adjacency<S> {
        &self.out
    }

    /// Returns the incoming edges; `None` for a directed graph without them.
    #[must_use]
    pub const fn incoming(&self) -> Option<&Adjacency<S>> {
        self.incoming.as_ref()
    }

    /// Returns true when each edge exists in both directions.
    #[must_use]
    pub const fn is_symmetric(&self) -> bool {
        self.symmetric
    }

    /// Returns the graph with all edges reversed; `None` without incoming edges.
    #[must_use]
    pub fn reversed(&self) -> Option<Self> {
        let incoming = self.incoming?;
        Some(Self { out: incoming, incoming: Some(self.out), symmetric: self.symmetric })
    }
}
