//! Sections: what is published is what a switch knows, and nothing else is a section.

use super::{IndexTables, SectionError, TreeSection, TreeTables};
use crate::{RANGES_DEFAULT, TreeView, fat_root, select_layers};
use alloc::vec::Vec;
use farmem_wire::{ProgramHash, VirtAddr};
use proptest::prelude::*;
use std::vec;

const PROGRAM: ProgramHash = ProgramHash([6; 16]);

/// The tables of these sections.
fn tables_of<'a>(sections: impl IntoIterator<Item = &'a [u8]>) -> Result<IndexTables, SectionError> {
    let mut tables = IndexTables::default();
    sections.into_iter().try_for_each(|section| tables.add(section)).map(|()| tables)
}

/// A tree of the keys 0, 3, 6 and so on, its root, and what is published of it.
fn published(keys: u64, ranges: usize, sets: usize, nodes: usize) -> (TreeView, TreeSection) {
    let tree = TreeView::bulk_loaded((0..keys).map(|n| (3 * n, 1 + n % 7)), 5).unwrap();
    let (root, _) = tree.nodes().max_by_key(|(_, node)| node.level).unwrap();
    let ranges = fat_root(&tree, ranges);
    let sets = select_layers(&tree, &ranges, sets, nodes);
    let section = TreeSection { root, programs: vec![ProgramHash([8; 16]), PROGRAM], ranges, sets };
    (tree, section)
}

/// The node that a plain descent from the root is at on this level.
fn descended(tree: &TreeView, root: VirtAddr, key: u64, level: u8) -> VirtAddr {
    let mut at = root;
    while let Some(node) = tree.node(at).filter(|node| node.level > level) {
        at = node.children[node.pivots.partition_point(|&pivot| pivot <= key)];
    }
    at
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_traversal_begins_where_a_descent_comes_by(
        count in 1..3_000_u64, ranges in 1..300_usize, sets in 0..4_usize, nodes in 0..200_usize, keys in prop::collection::vec(any::<u64>(), 1..20)
    ) {
        let (tree, section) = published(count, ranges, sets, nodes);
        let bytes = section.emit();
        prop_assert_eq!(TreeSection::parse(&bytes), Ok(section.clone()));
        let tables = tables_of([bytes.as_slice()]).unwrap();
        let of_tree = TreeTables::new(section.clone()).unwrap();
        for key in keys.into_iter().flat_map(|key| [key, key % (3 * count + 3), 0, u64::MAX]) {
            let deepest = of_tree.deepest(key);
            prop_assert_eq!(descended(&tree, section.root, key, deepest.level), deepest.addr);
            prop_assert_eq!(tables.start(section.root, PROGRAM, &key.to_le_bytes()), Some(deepest.addr));
        }
    }

    #[test]
    fn any_bytes_are_a_section_or_refused(
        cut in 0..4_000_usize, place in any::<prop::sample::Index>(), byte in any::<u8>(), other in prop::collection::vec(any::<u8>(), 0..200)
    ) {
        let (_, section) = published(400, 20, 2, 30);
        let mut bytes = section.emit();
        let whole = bytes.len();
        *place.get_mut(&mut bytes) = byte;
        let _ = tables_of([bytes.as_slice()]);
        let shorter = &section.emit()[..cut.min(whole - 1)];
        prop_assert!(TreeSection::parse(shorter).is_err(), "{} of {} bytes", shorter.len(), whole);
        let _ = tables_of([other.as_slice()]);
    }
}

#[test]
fn only_named_programs_at_a_root_begin_further_down() {
    let (_, section) = published(3_000, RANGES_DEFAULT, 1, 100);
    let tables = tables_of([section.emit().as_slice()]).unwrap();
    let pad = 77_u64.to_le_bytes();
    assert!(tables.start(section.root, PROGRAM, &pad).is_some_and(|at| at != section.root));
    assert_eq!(tables.start(section.root, ProgramHash([10; 16]), &pad), None);
    let below = section.ranges[1].child.addr;
    assert_eq!(tables.start(below, PROGRAM, &pad), None);
    // Zeros at the end of a pad need not be sent.
    assert_eq!(tables.start(section.root, PROGRAM, &[]), tables.start(section.root, PROGRAM, &[0; 8]));
    assert_eq!(tables.start(section.root, PROGRAM, &pad[..1]), tables.start(section.root, PROGRAM, &pad));
}

/// A request that stores and comes again finds what it did where it was: it must not be led elsewhere.
#[test]
fn programs_that_store_begin_at_the_root() {
    let (_, mut section) = published(10, 1, 0, 0);
    let stores = ProgramHash([7; 16]);
    section.programs.push(stores);
    assert_eq!(tables_of([section.emit().as_slice()]), Err(SectionError::Stores(stores)));
}

#[test]
fn two_trees_have_two_roots() {
    let (_, section) = published(10, 1, 0, 0);
    let bytes = section.emit();
    let twice = tables_of([bytes.as_slice(), bytes.as_slice()]);
    assert_eq!(twice, Err(SectionError::Root(section.root)));
    let other = TreeSection { root: VirtAddr(section.root.0 + 0x1000), ..section };
    let sections: Vec<Vec<u8>> = vec![bytes, other.emit()];
    assert_eq!(tables_of(sections.iter().map(Vec::as_slice)).map(|tables| tables.len()), Ok(2));
}
