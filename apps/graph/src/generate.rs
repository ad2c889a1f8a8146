//! Graph generators: Kronecker (R-MAT) as in GAPBS and Graph500, and uniform.

use crate::{Edges, Shape};
use farmem::Rng;

/// The probability of each quarter of the matrix but the last, in per cent: A, B and C of GAPBS and Graph500.
const QUARTERS: [u32; 3] = [57, 19, 19];
/// Log2 of the largest generated vertex count.
pub const SCALE_MAX: u32 = 31;
/// Largest weight of generated edges; the smallest is 1 (GAPBS).
pub const WEIGHT_MAX: u32 = 255;

/// The edge-to-vertex ratios of SODA's graphs (table II): twitter7, friendster and moliere_2016.
pub const RATIOS: [u64; 3] = [35, 55, 221];

/// The distribution of edges.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Kind {
    /// Few vertices have most of the edges, as in networks of people and pages.
    Kronecker,
    /// Every pair of vertices is equally likely.
    Uniform,
}

/// Generates a graph of 2^`scale` vertices with `ratio` times as many edges, deterministic for a seed. Loops
/// and parallel edges may occur. The vertices of a Kronecker graph are renumbered, so that the number does
/// not reveal the degree.
///
/// # Panics
/// Panics when `scale` is above [`SCALE_MAX`].
#[must_use]
pub fn generate(kind: Kind, scale: u32, ratio: u64, seed: u64, weighted: bool) -> Edges {
    assert!(scale <= SCALE_MAX, "vertices have 32 bits");
    let (vertices, mut rng) = (1_u32 << scale, Rng::from_number(seed));
    let count = ratio << scale;
    let names = match kind {
        Kind::Kronecker => shuffled(vertices, &mut rng),
        Kind::Uniform => Vec::new(),
    };
    let mut edge = |_| match kind {
        Kind::Kronecker => {
            let (from, to) = quarter(scale, &mut rng);
            (names[from as usize], names[to as usize])
        }
        Kind::Uniform => (rng.below(vertices), rng.below(vertices)),
    };
    let list = (0..count).map(&mut edge).collect();
    let weights = weighted.then(|| (0..count).map(|_| rng.below(WEIGHT_MAX) + 1).collect());
    Edges { vertices, list, weights }
}

/// Returns the peak local memory, in bytes, for generating and building such a graph.
#[must_use]
pub fn memory(scale: u32, ratio: u64, weighted: bool, shape: Shape) -> u64 {
    // Vertex names, and two arrays of offsets.
    const VERTEX: u64 = 4 + 2 * 8;
    // Edges under sorting, in one or both directions, and the arrays of both directions.
    let edge = 12 * (1 + u64::from(shape.symmetric)) + 8 * (1 + u64::from(weighted));
    ratio.saturating_mul(edge).saturating_add(VERTEX).saturating_mul(1 << scale)
}

/// Draws an entry of the matrix: a quarter, a quarter of that, and so on.
fn quarter(scale: u32, rng: &mut Rng) -> (u32, u32) {
    let [a, b, c] = QUARTERS;
    (0..scale).fold((0, 0), |(from, to), _| {
        let (row, column) = match rng.below(100) {
            chance if chance < a => (0, 0),
            chance if chance < a + b => (0, 1),
            chance if chance < a + b + c => (1, 0),
            _ => (1, 1),
        };
        (from << 1 | row, to << 1 | column)
    })
}

fn shuffled(count: u32, rng: &mut Rng) -> Vec<u32> {
    let mut names: Vec<u32> = (0..count).collect();
    for last in (1..count).rev() {
        names.swap(last as usize, rng.below(last + 1) as usize);
    }
    names
}
