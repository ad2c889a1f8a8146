use super::*;
use alloc::vec::Vec;
use proptest::prelude::*;

fn table(entries: &[(u64, u8, u16)]) -> Translation {
    let mut table = Translation::new(entries.len());
    for &(base, size_log2, node) in entries {
        table.insert(VirtAddr(base), size_log2, NodeId(node)).expect("a good entry within budget");
    }
    table.assert_invariants();
    table
}

fn owner(table: &Translation, addr: u64) -> Option<u16> {
    table.lookup(VirtAddr(addr)).map(|node| node.0)
}

/// Four nodes own a terabyte each: one entry per node; addresses beside are unmapped.
#[test]
fn one_entry_per_node_translates_its_whole_range() {
    let table = table(&[(1 << 40, 40, 0), (2 << 40, 40, 1), (3 << 40, 40, 2), (4 << 40, 40, 3)]);
    assert_eq!(owner(&table, (1 << 40) - 1), None);
    assert_eq!(owner(&table, 1 << 40), Some(0));
    assert_eq!(owner(&table, (2 << 40) - 1), Some(0));
    assert_eq!(owner(&table, 2 << 40), Some(1));
    assert_eq!(owner(&table, (5 << 40) - 1), Some(3));
    assert_eq!(owner(&table, 5 << 40), None);
    assert_eq!(table.usage(), Usage { used: 4, budget: 4 });
}

/// PROTOCOL 6.20: a page of node 0 migrated to node 7, and one byte of it to node 8: the longest prefix wins
/// (MIND 4.1, outliers).
#[test]
fn an_outlier_wins_over_the_range_it_lies_in() {
    let mut table = table(&[(1 << 40, 40, 0), ((1 << 40) + 0x3000, 12, 7), ((1 << 40) + 0x3800, 0, 8)]);
    assert_eq!(owner(&table, (1 << 40) + 0x2fff), Some(0));
    assert_eq!(owner(&table, (1 << 40) + 0x3000), Some(7));
    assert_eq!(owner(&table, (1 << 40) + 0x3800), Some(8));
    assert_eq!(owner(&table, (1 << 40) + 0x3801), Some(7));
    assert_eq!(owner(&table, (1 << 40) + 0x4000), Some(0));
    table.remove(VirtAddr((1 << 40) + 0x3000), 12).expect("an aligned prefix");
    assert_eq!(owner(&table, (1 << 40) + 0x3000), Some(0), "it went home");
    assert_eq!(owner(&table, (1 << 40) + 0x3800), Some(8));
}

#[test]
fn the_ends_of_the_address_space_translate_too() {
    let table = table(&[(0, 63, 1), (1 << 63, 63, 2), (u64::MAX, 0, 3)]);
    assert_eq!(owner(&table, 0), Some(1));
    assert_eq!(owner(&table, (1 << 63) - 1), Some(1));
    assert_eq!(owner(&table, 1 << 63), Some(2));
    assert_eq!(owner(&table, u64::MAX - 1), Some(2));
    assert_eq!(owner(&table, u64::MAX), Some(3));
}

/// Inserting the same prefix again moves it to another node without a further entry, also if the table is
/// full.
#[test]
fn the_same_prefix_again_replaces() {
    let mut table = table(&[(0x1000, 12, 1)]);
    assert_eq!(table.insert(VirtAddr(0x1000), 12, NodeId(2)), Ok(()));
    assert_eq!(owner(&table, 0x1000), Some(2));
    assert_eq!(table.insert(VirtAddr(0x1000), 11, NodeId(3)), Err(TableError::Full));
    assert_eq!(owner(&table, 0x1000), Some(2));
    table.assert_invariants();
}

#[test]
fn a_prefix_that_is_none_is_refused() {
    let mut table = table(&[(0x1000, 12, 1)]);
    let before = table.clone();
    for (base, size_log2) in [(0x1800, 12), (1, 1), (0, 64), (0, 255), (u64::MAX, 63)] {
        assert_eq!(table.insert(VirtAddr(base), size_log2, NodeId(2)), Err(TableError::Malformed));
        assert_eq!(table.remove(VirtAddr(base), size_log2), Err(TableError::Malformed));
    }
    assert_eq!(table, before);
}

#[test]
fn what_is_not_there_is_already_gone() {
    let mut table = table(&[(0x1000, 12, 1)]);
    let before = table.clone();
    assert_eq!(table.remove(VirtAddr(0x1000), 11), Ok(()));
    assert_eq!(table.remove(VirtAddr(0x2000), 12), Ok(()));
    assert_eq!(table, before);
}

proptest! {
    /// After any history of inserts and removes the table answers as a plain list searched for the smallest
    /// prefix.
    #[test]
    fn lookups_answer_as_a_plain_list_does(
        changes in prop::collection::vec((0u64..256, 0u8..=8, prop::option::of(0u16..8)), 1..60),
        budget in 1usize..12,
        high in any::<bool>(),
    ) {
        let origin = if high { u64::MAX - 255 } else { 0 };
        let mut table = Translation::new(budget);
        let mut model: Vec<(u64, u8, u16)> = Vec::new();
        for (addr, size_log2, node) in changes {
            let base = origin + (addr >> size_log2 << size_log2);
            let at = model.iter().position(|&(b, s, _)| (b, s) == (base, size_log2));
            match node {
                Some(node) => {
                    let fits = at.is_some() || model.len() < budget;
                    let expected = if fits { Ok(()) } else { Err(TableError::Full) };
                    prop_assert_eq!(table.insert(VirtAddr(base), size_log2, NodeId(node)), expected);
                    match at {
                        Some(at) => model[at].2 = node,
                        None if fits => model.push((base, size_log2, node)),
                        None => {}
                    }
                }
                None => {
                    prop_assert_eq!(table.remove(VirtAddr(base), size_log2), Ok(()));
                    at.map(|at| model.swap_remove(at));
                }
            }
            table.assert_invariants();
        }
        for addr in origin..=origin + 255 {
            let holds = |&&(base, size_log2, _): &&(u64, u8, u16)| addr >> size_log2 == base >> size_log2;
            let longest = model.iter().filter(holds).min_by_key(|&&(_, size_log2, _)| size_log2);
            prop_assert_eq!(owner(&table, addr), longest.map(|&(_, _, node)| node));
        }
        prop_assert_eq!(table.iter().count(), model.len());
    }
}
