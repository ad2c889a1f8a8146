//! The switch entries that allocations take, and the balance of allocations: match-action entries against
//! vmas, and Jain's index (MIND 7.2, figure 7 centre and right).
//!
//! A rack with eight memory nodes receives allocations of drawn sizes. The control plane's results go into
//! the switch's own tables.

use super::DOMAIN;
use crate::{Row, to_f64};
use farmem::{Error, Rack, RackConfig, Rng, Vma, serve};
use farmem_sim::replay::Tables;

/// Memory nodes, as in the paper.
pub(super) const NODES: u8 = 8;

/// A sequence of allocations. The paper's programs come in two kinds: some large arrays, and very many
/// objects.
pub(super) struct Sequence {
    name: &'static str,
    count: u64,
    /// Log2 of the smallest and the largest size.
    sizes: (u32, u32),
    paper: &'static str,
}

/// Both kinds.
pub(super) const SEQUENCES: [Sequence; 2] = [
    Sequence { name: "arrays", count: 128, sizes: (22, 26), paper: "TF and GC" },
    Sequence { name: "objects", count: 1024, sizes: (12, 20), paper: "M_A and M_C" },
];

/// Counts of entries while a sequence grows: one per doubling.
const DOUBLINGS: u32 = 4;

/// Returns the rows of one sequence, on a serving rack of its own.
pub(super) fn measure(sequence: &Sequence, config: &RackConfig) -> Result<Vec<Row>, Error> {
    let &Sequence { name, count, sizes: (smallest, largest), paper } = sequence;
    let mut client = Rack::running(config.clone()).client(DOMAIN)?;
    let nodes = serve::overview(config)?.nodes;
    let all: Vec<_> = nodes.iter().map(|node| (node.node, node.base, node.capacity)).collect();
    let mut tables = Tables::new(&all);
    let (mut chance, mut rows, mut vmas) = (Rng::from_number(1), Vec::new(), Vec::<Vma>::new());
    for allocated in 1..=count {
        let size = 1_u64 << (smallest + chance.below(largest - smallest + 1));
        let vma = client.allocate(size - u64::from(chance.below(4096)))?;
        let fits = tables.allocate(1, vma.base.0, vma.size);
        assert!(fits, "far fewer entries than there is room for");
        vmas.push(vma);
        if (0..DOUBLINGS).any(|n| count >> n == allocated) {
            rows.push(entries(name, paper, &tables, &vmas));
        }
    }
    let balance_ppm = serve::overview(config)?.balance_ppm;
    rows.push(balance(name, paper, f64::from(balance_ppm) / 1e6, &vmas, all[0].2));
    Ok(rows)
}

/// Returns the entries of both tables, compared with those of a table of 2 MiB pages.
fn entries(name: &str, paper: &str, tables: &Tables, vmas: &[Vma]) -> Row {
    let pages = |log2: u32| {
        let mut pages: Vec<u64> =
            vmas.iter().flat_map(|vma| vma.base.0 >> log2..=(vma.base.0 + vma.size - 1) >> log2).collect();
        pages.sort_unstable();
        pages.dedup();
        pages.len()
    };
    let bytes: u64 = vmas.iter().map(|vma| vma.size).sum();
    let id = format!("mind.directory.entries.{name}.{}", vmas.len());
    let (small, huge) = (pages(12), pages(30));
    let why = format!(
        "{paper} in the paper; {} MiB; a table of pages: {small} of 4 KiB, {huge} of 1 GiB; baseline: of 2 MiB",
        bytes >> 20
    );
    let row = Row::figure(id, "entries", count(tables.entries()), 1).beside(Some(count(pages(21))));
    Row { why: Some(why), ..row }
}

/// Returns Jain's index of the bytes on the nodes, compared with round-robin placement.
fn balance(name: &str, paper: &str, index: f64, vmas: &[Vma], capacity: u64) -> Row {
    let (mut in_turn, mut one_by_one) = ([0_u64; NODES as usize], [0_u64; NODES as usize]);
    let mut filling = 0;
    for (n, vma) in vmas.iter().enumerate() {
        in_turn[n % usize::from(NODES)] += vma.size;
        if one_by_one[filling] + vma.size > capacity {
            filling += 1;
        }
        one_by_one[filling] += vma.size;
    }
    let why = format!(
        "{paper} in the paper; 1 when all nodes have the same; baseline: each vma on the next node; one node after the other filled: {:.2}",
        jain(&one_by_one)
    );
    let row = Row::figure(format!("mind.directory.jain.{name}"), "index", index, vmas.len() as u64);
    Row { why: Some(why), ..row.beside(Some(jain(&in_turn))) }
}

/// Returns Jain's index: the square of the sum over the sum of the squares, divided by the count.
fn jain(bytes: &[u64]) -> f64 {
    let sum: f64 = bytes.iter().map(|&bytes| to_f64(bytes)).sum();
    let squares: f64 = bytes.iter().map(|&bytes| to_f64(bytes) * to_f64(bytes)).sum();
    sum * sum / (squares * to_f64(bytes.len() as u64))
}

fn count(n: usize) -> f64 {
    to_f64(n as u64)
}

#[cfg(test)]
mod tests {
    use super::jain;

    #[test]
    fn the_index_is_one_when_all_have_the_same() {
        assert!((jain(&[7, 7, 7, 7]) - 1.0).abs() < 1e-12);
        assert!((jain(&[9, 0, 0]) - 1.0 / 3.0).abs() < 1e-12);
    }
}
