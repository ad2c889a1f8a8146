//! Drifting look-ups: `fat.drift.recovery` counts the epochs until an agent follows them, and
//! `fat.e2e.drift.*` measures an index that does not follow (Fat-B+Tree V-B, figure 6).

use super::store::{LookupPath, Popularity, Store};
use crate::{Row, to_f64};
use farmem::blink_tree::Extent;
use farmem::{Error, Layout, Rack, VirtAddr};
use farmem_index::{RANGES_DEFAULT, TreeNode, TreeSection, TreeView, accesses_left, fat_root, select_layers};
use std::collections::BTreeMap;

/// Look-ups per epoch.
const EPOCH: usize = 10_000;
/// Epochs until an agent has settled, and the bound for following a drift.
const EPOCHS: usize = 10;
/// The required saving, relative to the best selection.
const SHARE: f64 = 0.95;
/// Entries per node, as [`Store`] loads them.
const FILL: usize = 14;
/// Tables too small for the tree, so that their contents matter: a tenth of the nodes above leaves of 2
/// million keys.
pub(super) const TABLES: Extent = Extent { ranges: 300, sets: 2, nodes: 1_000 };

/// Returns the selection of an agent that has seen these look-ups for some epochs. The section is withdrawn
/// and can be published.
pub(super) fn selected(
    store: &mut Store,
    extent: Extent,
    draw: &[u64],
    quick: bool,
) -> Result<TreeSection, Error> {
    let mut agent = store.agent(extent)?;
    let mut numbers = draw.iter().copied().cycle();
    store.step(&mut agent)?;
    for _ in 0..if quick { 4 } else { EPOCHS } {
        numbers.by_ref().take(EPOCH).try_for_each(|n| store.get(n, LookupPath::Index))?;
        store.step(&mut agent)?;
    }
    let section = agent.section().cloned().expect("an agent has published something");
    store.withdraw()?;
    Ok(section)
}

/// Counts the epochs until an agent's tables again save 0.95 of the visits of inner nodes that the best
/// selection with foreknowledge saves, on a rack in this process.
pub(super) fn recovery(keys: u64) -> Result<[Row; 2], Error> {
    // Too few for the tree: a quarter of the nodes above leaves.
    let nodes = usize::try_from(keys / (4 * (FILL * FILL) as u64)).expect("fewer than memory has");
    let extent = Extent { ranges: (nodes / 2).min(RANGES_DEFAULT), sets: 2, nodes };
    let rack = Rack::embedded_with(1, (keys * super::store::KEY_BYTES).next_power_of_two().max(64 << 20))?;
    let mut store = Store::load(&rack, keys, Layout::Partitioned)?;
    let mut agent = store.agent(extent)?;
    store.step(&mut agent)?;
    let mut shares = Vec::new();
    for changed in [0, 100] {
        let popularity = Popularity { changed, ..Popularity::usual(keys) };
        let draw = popularity.draw();
        let best = saved_by_best(keys, &draw, extent);
        let mut numbers = draw.iter().copied().cycle();
        shares.clear();
        for _ in 0..2 * EPOCHS {
            let before = store.client().tally().iterations;
            numbers.by_ref().take(EPOCH).try_for_each(|n| store.get(n, LookupPath::Index))?;
            let visits = store.client().tally().iterations - before;
            shares.push(saved(keys, visits) / best);
            store.step(&mut agent)?;
        }
    }
    assert_eq!(store.wrong, 0, "every key has its value");
    // From this epoch on, the share stays above the bound.
    let epochs = shares.iter().rposition(|&share| share < SHARE).map_or(0, |last| last + 1);
    let n = (shares.len() * EPOCH) as u64;
    Ok([
        Row::figure("fat.drift.recovery", "epochs", to_f64(epochs as u64), n)
            .beside(Some(to_f64(EPOCHS as u64))),
        Row::figure("fat.drift.first", "of the best", shares[0], EPOCH as u64),
    ])
}

/// Returns the levels of inner nodes of a tree that [`Store`] loads.
fn inner_levels(keys: u64) -> u64 {
    let mut nodes = keys.div_ceil(FILL as u64);
    let mut levels = 0;
    while nodes > 1 {
        nodes = nodes.div_ceil(FILL as u64);
        levels += 1;
    }
    levels
}

/// Returns the share of the visits of inner nodes that an epoch with this many visits in total has saved.
fn saved(keys: u64, visits: u64) -> f64 {
    // The leaf, and the lines of the value after the header.
    let others = 1 + super::store::value_lines();
    let inner = to_f64(visits) / EPOCH as f64 - to_f64(others);
    1.0 - inner / to_f64(inner_levels(keys))
}

/// Returns the saving of the best selection for these look-ups, on the same tree as a plain list of nodes.
fn saved_by_best(keys: u64, draw: &[u64], extent: Extent) -> f64 {
    let mut accesses =
        vec![0_u64; usize::try_from(keys.div_ceil(FILL as u64)).expect("fewer than memory has")];
    draw.iter().for_each(|n| accesses[usize::try_from(n / FILL as u64).expect("a leaf")] += 1);
    let mut next = 0;
    let mut place = || {
        next += 256;
        VirtAddr(next)
    };
    // For each node of a level: its first record, its address and its accesses.
    let mut level: Vec<(u64, VirtAddr, u64)> =
        (0..).step_by(FILL).zip(accesses).map(|(first, accesses)| (first, place(), accesses)).collect();
    let (mut nodes, mut height) = (BTreeMap::new(), 0);
    while level.len() > 1 {
        height += 1;
        let above = level.chunks(FILL).map(|below| {
            let (addr, accesses) = (place(), below.iter().map(|child| child.2).sum());
            let pivots = below[1..].iter().map(|child| child.0).collect();
            let children = below.iter().map(|child| child.1).collect();
            nodes.insert(addr, TreeNode { level: height, pivots, children, accesses });
            (below[0].0, addr, accesses)
        });
        level = above.collect();
    }
    let view = TreeView::new(level[0].1, nodes).expect("a tree");
    let ranges = fat_root(&view, extent.ranges);
    let sets = select_layers(&view, &ranges, extent.sets, extent.nodes);
    let all: u64 = view.nodes().map(|(_, node)| node.accesses).sum();
    1.0 - to_f64(accesses_left(&view, &ranges, &sets)) / to_f64(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All look-ups change at once: the index saves less at first, and 0.95 of the best within ten epochs.
    #[test]
    fn an_agent_follows_within_ten_epochs() {
        let [epochs, first] = recovery(20_000).unwrap();
        let (epochs, first) = (epochs.value.unwrap(), first.value.unwrap());
        assert!(first < SHARE, "the look-ups are others: {first}, {epochs} epochs");
        assert!((1.0..=10.0).contains(&epochs), "{epochs} epochs");
    }

    /// 20,000 keys have 1,429 leaves, 103 nodes above them, 8, and the root.
    #[test]
    fn levels_are_those_of_the_tree() {
        assert_eq!([1, 14, 15, 196, 197, 20_000].map(inner_levels), [0, 0, 1, 1, 2, 3]);
    }
}
