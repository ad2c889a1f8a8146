//! Rates of counted and uncounted nodes; and the visits that a selection saves.

use super::{Hits, RATE_ONE, Rates, visits_saved};
use crate::{Child, Range, SetNode, TreeNode, TreeSection, TreeView, accesses_left, fat_root, select_layers};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farmem_wire::VirtAddr;
use proptest::prelude::*;
use std::vec;

fn child(addr: u64, level: u8) -> Child {
    Child { addr: VirtAddr(addr), level }
}

/// Returns a section of two ranges; the second leads to a node of a set with three children, the last of
/// which is a leaf's parent too.
fn section() -> TreeSection {
    let ranges = vec![
        Range { first: 0, last: 99, child: child(0x100, 2) },
        Range { first: 100, last: u64::MAX, child: child(0x200, 2) },
    ];
    let children = vec![child(0x300, 1), child(0x400, 1), child(0x500, 1)];
    let node = SetNode { addr: VirtAddr(0x200), pivots: vec![200, 300], children };
    TreeSection { root: VirtAddr(0x600), programs: vec![], ranges, sets: vec![vec![node]] }
}

#[test]
fn rates_are_averaged_and_divided() {
    let mut rates = Rates::default();
    assert!(rates.is_empty() && rates.whole() > RATE_ONE);
    let nothing = rates
        .of_children(90, &[(VirtAddr(0x100), 0, 9), (VirtAddr(0x200), 10, 19), (VirtAddr(0x300), 20, 29)]);
    assert_eq!(nothing, [30; 3], "nothing is known: an even part each");
    rates.take(&section(), &[10, 30, 5, 5, 20]);
    assert_eq!(rates.whole(), 40 * RATE_ONE);
    let of = |rates: &Rates, own: u64, children: &[(u64, u64, u64)]| -> Vec<u64> {
        let children: Vec<_> =
            children.iter().map(|&(at, first, last)| (VirtAddr(at), first, last)).collect();
        rates.of_children(own * RATE_ONE, &children).iter().map(|rate| rate / RATE_ONE).collect()
    };
    // The root: one node that the ranges lead past, and one below it.
    assert_eq!(of(&rates, 40, &[(0x700, 0, u64::MAX)]), [40]);
    assert_eq!(of(&rates, 40, &[(0x100, 0, 99), (0x200, 100, u64::MAX)]), [10, 30]);
    assert_eq!(of(&rates, 30, &[(0x300, 100, 199), (0x400, 200, 299), (0x500, 300, u64::MAX)]), [5, 5, 20]);
    // Two of four were counted; the others share the rest of their parent's rate.
    assert_eq!(
        of(&rates, 31, &[(0x300, 100, 199), (0x900, 200, 220), (0x910, 221, 299), (0x500, 300, 400)]),
        [5, 3, 3, 20]
    );
    assert_eq!(
        of(&rates, 10, &[(0x300, 100, 199), (0x900, 200, 220), (0x500, 300, 400)]),
        [5, 0, 20],
        "nothing is left"
    );
    rates.take(&section(), &[0; 5]);
    assert_eq!(rates.whole(), 40 * RATE_ONE, "an epoch without look-ups says nothing");
    rates.take(&section(), &[20, 0, 0, 0, 0]);
    assert_eq!(
        of(&rates, 40, &[(0x100, 0, 99), (0x200, 100, u64::MAX)]),
        [15, 15],
        "half is the newest epoch's"
    );
    // Nodes without a pointer from the tables are forgotten.
    let ranges = section().ranges[..1].iter().map(|range| Range { last: u64::MAX, ..*range }).collect();
    rates.take(&TreeSection { ranges, sets: vec![], ..section() }, &[7]);
    assert_eq!(of(&rates, 8, &[(0x300, 100, 199), (0x400, 200, 299)]), [4, 4]);
}

#[test]
fn hits_are_by_layer() {
    let hits = Hits::of(&section(), &[10, 30, 5, 5, 20]);
    assert_eq!(hits, Hits { queries: 40, sets: vec![30] });
}

/// A node that came to be below an old section is visited, though no range leads to it.
#[test]
fn what_is_new_is_not_saved() {
    let node = |level, pivots: &[u64], children: &[u64], accesses| TreeNode {
        level,
        pivots: pivots.to_vec(),
        children: children.iter().map(|&at| VirtAddr(at)).collect(),
        accesses,
    };
    let nodes = |split: bool| {
        let mut nodes = BTreeMap::from([(VirtAddr(0x100), node(1, &[50], &[0x1000, 0x1100], 10))]);
        if split {
            nodes.insert(VirtAddr(0x200), node(1, &[150], &[0x1200, 0x1300], 20));
            nodes.insert(VirtAddr(0x300), node(1, &[], &[0x1400], 30));
            nodes.insert(VirtAddr(0x600), node(2, &[100, 200], &[0x100, 0x200, 0x300], 60));
        } else {
            nodes.insert(VirtAddr(0x200), node(1, &[150], &[0x1200, 0x1300], 50));
            nodes.insert(VirtAddr(0x600), node(2, &[100], &[0x100, 0x200], 60));
        }
        TreeView::new(VirtAddr(0x600), nodes).unwrap()
    };
    let old = nodes(false);
    let ranges = fat_root(&old, 10);
    let section = TreeSection { root: VirtAddr(0x600), programs: vec![], ranges, sets: vec![] };
    assert_eq!(section.ranges.len(), 4);
    assert_eq!(visits_saved(&old, &section), (120, 120));
    assert_eq!(visits_saved(&nodes(true), &section), (90, 120), "all but the new node's 30");
}

proptest! {
    /// For the tree of the selection, saved and remaining accesses add up.
    #[test]
    fn what_is_saved_is_not_left(count in 1..4_000_u64, ranges in 1..200_usize, sets in 0..4_usize, nodes in 1..100_usize) {
        let tree = TreeView::bulk_loaded((0..count).map(|n| (3 * n, n * n % 17)), 5).unwrap();
        let ranges = fat_root(&tree, ranges);
        let sets = select_layers(&tree, &ranges, sets, nodes);
        let left = accesses_left(&tree, &ranges, &sets);
        let section = TreeSection { root: tree.root().unwrap(), programs: vec![], ranges, sets };
        let (saved, all) = visits_saved(&tree, &section);
        prop_assert_eq!(saved, all - left);
        // A view of a part of the tree gives the same result for that part.
        let part: BTreeMap<_, _> = tree.nodes().filter(|(_, node)| node.level > 1).map(|(at, node)| (at, node.clone())).collect();
        if !part.is_empty() {
            let part = TreeView::partial(section.root, part).unwrap();
            let above = tree.nodes().filter(|(_, node)| node.level > 1).map(|(_, node)| node.accesses).sum::<u64>();
            prop_assert_eq!(visits_saved(&part, &section).1, above);
        }
    }
}
