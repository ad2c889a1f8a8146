//! The cost of an index, counted by hand.

use super::*;
use crate::{RANGES_DEFAULT, Range, RangeTables, SET_NODES_MAX, TreeView, fat_root, select_layers};
use alloc::vec;
use proptest::prelude::*;

/// Returns a tree of `keys` keys, spread over the key space, uniformly accessed.
fn tree(keys: u64) -> TreeView {
    let step = u64::MAX / keys;
    TreeView::bulk_loaded((0..keys).map(|n| (n * step, 1)), 15).expect("they ascend")
}

fn index(tree: &TreeView, ranges: usize, layers: usize, nodes: usize) -> (RangeTables, Vec<NodeSet>) {
    let root = fat_root(tree, ranges);
    let sets = select_layers(tree, &root, layers, nodes);
    (RangeTables::new(&root).unwrap(), sets.into_iter().map(|set| NodeSet::new(set).unwrap()).collect())
}

/// A full set of full nodes: 4 tables of pivots a stage, an entry per word of 112 bits; 65,536 children in
/// words of 119.
#[test]
fn a_full_set_fits_six_stages() {
    let tree = tree(16 * 16 * 16 * 16 * 15);
    let (_, sets) = index(&tree, 256, 2, SET_NODES_MAX);
    assert_eq!((sets[0].len(), sets[1].len()), (256, 4096));
    let plan = Plan::new(None, &sets[1..], Budget::TOFINO, 1, ADDR_BITS);
    let used: Vec<(usize, usize, usize, u64, u64)> = plan
        .stages()
        .iter()
        .map(|used| {
            (used.exact_tables, used.ternary_tables, used.entries, used.tcam_blocks, used.sram_blocks)
        })
        .collect();
    assert_eq!(
        used,
        [
            (4, 0, 4 * 4096, 0, 16),
            (4, 4, 4 * 4096 + 16, 4, 16),
            (4, 4, 4 * 4096 + 16, 4, 16),
            (3, 4, 3 * 4096 + 16, 4, 12),
            (0, 3, 12, 3, 0),
            (1, 0, 65_536, 0, 64 + 16)
        ]
    );
    assert!(plan.fits());
    // With addresses of 64 bits children take two words: 128 blocks, and 16 of counters, of 80. Pivots just
    // fit.
    let wide = Plan::new(None, &sets[1..], Budget::TOFINO, 1, 64);
    assert_eq!(wide.excess(), [Excess::Sram { stage: 5 }]);
    assert_eq!(wide.stages()[5].sram_blocks, 128 + 16);
    assert_eq!(wide.stages()[0].sram_blocks, 16);
}

/// The paper's deployment: fat root of 600 ranges and a set behind it in a switch of 12 stages.
#[test]
fn a_fat_root_and_a_set_fit_a_switch() {
    let tree = tree(2_000_000);
    let (root, sets) = index(&tree, RANGES_DEFAULT, 2, 3600);
    let plan = Plan::new(Some(&root), &sets[..1], Budget::TOFINO, 1, ADDR_BITS);
    assert_eq!((plan.stages().len(), plan.room(), plan.excess()), (12, 12, vec![]));
    let entries: Vec<usize> = plan.stages()[..6].iter().map(|used| used.entries).collect();
    let counts = root.stages().map(|count| count.entries);
    assert_eq!(entries, [counts[0], counts[1], counts[2], counts[3], root.children().len(), 0]);
    assert_eq!(plan.stages()[5].step, Step::Free);
    // Another set needs another switch.
    let more = |switches| Plan::new(Some(&root), &sets, Budget::TOFINO, switches, ADDR_BITS);
    assert_eq!(more(1).excess(), [Excess::Stages { need: 18, have: 12 }]);
    assert!(more(2).fits());
    // A part is not divided: 11 stages have room for one part, 5 for none.
    let few = |stages| Plan::new(Some(&root), &[], Budget { stages, ..Budget::TOFINO }, 3, ADDR_BITS).room();
    assert_eq!([11, 5, 0].map(few), [18, 0, 0]);
}

/// Each limit is found where it is passed.
#[test]
fn what_is_too_much_is_named() {
    let (root, sets) = index(&tree(2_000_000), RANGES_DEFAULT, 1, 3600);
    let excess = |budget| Plan::new(Some(&root), &sets, budget, 1, ADDR_BITS).excess();
    let tofino = Budget::TOFINO;
    let stage =
        |stages: &[usize], of: fn(usize) -> Excess| stages.iter().map(|&stage| of(stage)).collect::<Vec<_>>();
    assert_eq!(excess(Budget { tables: 7, ..tofino }), stage(&[7, 8], |stage| Excess::Tables { stage }));
    assert_eq!(
        excess(Budget { ternary_tables: 3, ..tofino }),
        stage(&[7, 8, 9], |stage| Excess::TernaryTables { stage })
    );
    let sram = Memory { blocks: 3, ..tofino.sram };
    assert_eq!(excess(Budget { sram, ..tofino }), stage(&[6, 7, 8, 11], |stage| Excess::Sram { stage }));
    let tcam = Memory { blocks: 3, ..tofino.tcam };
    assert!(excess(Budget { tcam, ..tofino }).contains(&Excess::Tcam { stage: 7 }));
}

/// The largest fat root that algorithm 1 can produce fits into the switch. Default results reduce its TCAM blocks
/// to less than half (33 to 14).
#[test]
fn the_worst_fat_root_fits() {
    let child = crate::Child { addr: farmem_wire::VirtAddr(1), level: 1 };
    let firsts: Vec<u64> = [0].into_iter().chain((1..1024).map(|n| n << 49 | 0x8000_8000_8000)).collect();
    let lasts = firsts[1..].iter().map(|first| first - 1).chain([u64::MAX]);
    let ranges: Vec<Range> =
        firsts.iter().zip(lasts).map(|(&first, last)| Range { first, last, child }).collect();
    let tables = RangeTables::new(&ranges).unwrap();
    let plan = |tables: &RangeTables| Plan::new(Some(tables), &[], Budget::TOFINO, 1, ADDR_BITS);
    let blocks = |tables: &RangeTables| -> Vec<u64> {
        plan(tables).stages()[..4].iter().map(|used| used.tcam_blocks).collect()
    };
    assert!(plan(&tables).fits());
    let with = blocks(&tables.clone().with_default_results());
    // The range to 0x7fff takes 1 word, that from 0x8001 4, the table between them 1. In the first stage all
    // take 1 except the last range; in the last stage all do.
    assert_eq!(blocks(&tables), [5, 12, 12, 4]);
    assert_eq!(with, [4, 4, 4, 2]);
}

#[test]
fn numbers_take_bits() {
    assert_eq!([0, 1, 2, 3, 4, 5, 1023, 1024, 1025].map(number_bits), [0, 0, 1, 2, 2, 3, 10, 10, 11]);
}

proptest! {
    /// For any budget: a plan, and no index fits into no memory.
    #[test]
    fn no_budget_breaks_it(
        stages in any::<usize>(), tables in 0..20_usize, blocks in any::<u64>(), words in any::<u64>(), word_bits in any::<u32>(),
        switches in any::<usize>(), addr_bits in any::<u32>(),
    ) {
        let memory = Memory { blocks, words, word_bits };
        let budget = Budget { stages, tables, ternary_tables: tables, tcam: memory, sram: memory };
        let (root, sets) = index(&tree(5_000), 40, 1, 30);
        let plan = Plan::new(Some(&root), &sets, budget, switches, addr_bits);
        prop_assert_eq!(plan.stages().len(), 12);
        prop_assert!(plan.fits() || !plan.excess().is_empty());
        prop_assert!(memory.bits() > 0 || !plan.fits(), "nothing fits into no memory");
    }
}
