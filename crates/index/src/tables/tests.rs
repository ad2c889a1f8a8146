//! Sections: a published section gives the tables of a switch, and invalid bytes do not.

use super::{IndexTables, SectionError, TABLE_BYTES_PER_BYTE, TREE_BYTES, TreeSection, TreeTables};
use crate::{
    Child, NodeSet, NodeSetError, RANGES_DEFAULT, Range, RangeError, RangeTables, SetNode, TreeView,
    fat_root, select_layers,
};
use alloc::vec::Vec;
use farmem_wire::{Domain, ProgramHash, VirtAddr};
use proptest::prelude::*;
use std::vec;

const PROGRAM: ProgramHash = ProgramHash([6; 16]);
const OWNER: Domain = Domain(4);

/// Builds the tables of these sections.
fn tables_of<'a>(sections: impl IntoIterator<Item = &'a [u8]>) -> Result<IndexTables, SectionError> {
    let mut tables = IndexTables::default();
    // The second word is the root.
    let id = |section: &[u8]| section.get(8..16).map_or(0, |id| u64::from_be_bytes(id.try_into().unwrap()));
    let mut put = |section| tables.put(OWNER, id(section), TreeTables::parse(section)?);
    sections.into_iter().try_for_each(&mut put).map(|()| tables)
}

/// Returns a tree of the keys 0, 3, 6 and so on, with its section.
fn published(keys: u64, ranges: usize, sets: usize, nodes: usize) -> (TreeView, TreeSection) {
    let tree = TreeView::bulk_loaded((0..keys).map(|n| (3 * n, 1 + n % 7)), 5).unwrap();
    let (root, _) = tree.nodes().max_by_key(|(_, node)| node.level).unwrap();
    let ranges = fat_root(&tree, ranges);
    let mut sets = select_layers(&tree, &ranges, sets, nodes);
    sets.iter_mut().for_each(|set| set.sort_unstable_by_key(|node| node.addr));
    let section = TreeSection { root, programs: vec![ProgramHash([8; 16]), PROGRAM], ranges, sets };
    (tree, section)
}

/// Returns the node of a plain descent from the root on this level.
fn descended(tree: &TreeView, root: VirtAddr, key: u64, level: u8) -> VirtAddr {
    let mut at = root;
    while let Some(node) = tree.node(at).filter(|node| node.level > level) {
        at = node.children[node.pivots.partition_point(|&pivot| pivot <= key)];
    }
    at
}

fn start(tables: &IndexTables, domain: Domain, at: VirtAddr, pad: &[u8]) -> Option<VirtAddr> {
    tables.start(domain, at, PROGRAM, pad).map(|descent| descent.at)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_traversal_begins_where_a_descent_comes_by(
        count in 1..3_000_u64, ranges in 1..300_usize, sets in 0..4_usize, nodes in 0..200_usize, keys in prop::collection::vec(any::<u64>(), 1..20)
    ) {
        let (tree, section) = published(count, ranges, sets, nodes);
        let bytes = section.emit();
        let tables = tables_of([bytes.as_slice()]).unwrap();
        let of_tree = TreeTables::parse(&bytes).unwrap();
        let most = TABLE_BYTES_PER_BYTE * bytes.len() + TREE_BYTES;
        prop_assert!((bytes.len()..=most).contains(&of_tree.memory()), "{} of {most}", of_tree.memory());
        prop_assert!(tables.memory() > of_tree.memory() && tables.memory() <= most);
        let mut read = of_tree.section();
        prop_assert_eq!(&read.programs, &[PROGRAM, ProgramHash([8; 16])]);
        read.programs.reverse();
        prop_assert_eq!(&read, &section);
        for key in keys.into_iter().flat_map(|key| [key, key % (3 * count + 3), 0, u64::MAX]) {
            let deepest = of_tree.deepest(key);
            prop_assert_eq!(descended(&tree, section.root, key, deepest.level), deepest.addr);
            prop_assert_eq!(start(&tables, OWNER, section.root, &key.to_le_bytes()), Some(deepest.addr));
        }
    }

    /// PROTOCOL 15.5, 16.13: compares with a plain descent: the deepest acceptable node that the tables have
    /// on its path. The result is the same if several switches have one set each, whatever the others have.
    #[test]
    fn a_key_leads_to_the_deepest_node_that_may_be_taken(
        count in 1..3_000_u64, ranges in 1..300_usize, sets in 0..4_usize, nodes in 0..200_usize, keys in prop::collection::vec(any::<u64>(), 1..20), parity in any::<bool>()
    ) {
        let (tree, section) = published(count, ranges, sets, nodes);
        let tables = tables_of([section.emit().as_slice()]).unwrap();
        let of_tree = TreeTables::parse(&section.emit()).unwrap();
        // A switch with only the ranges, and one for each set behind a range that covers all keys.
        let whole = |child| vec![Range { first: 0, last: u64::MAX, child }];
        let alone = |sets: Vec<Vec<SetNode>>, ranges| TreeSection { ranges, sets, ..section.clone() };
        let first = alone(Vec::new(), section.ranges.clone());
        let elsewhere = Child { addr: section.root, level: 9 };
        let behind = section.sets.iter().map(|set| alone(vec![set.clone()], whole(elsewhere)));
        let chain: Vec<IndexTables> =
            [first].into_iter().chain(behind).map(|one| tables_of([one.emit().as_slice()]).unwrap()).collect();
        for key in keys.into_iter().flat_map(|key| [key, key % (3 * count + 3), 0, u64::MAX]) {
            let deepest = of_tree.deepest(key);
            let lead = |may: &dyn Fn(VirtAddr) -> bool| {
                tables.lead(OWNER, section.root, key, may).map(|descent| descent.at)
            };
            prop_assert_eq!(lead(&|_| true), Some(deepest.addr));
            prop_assert_eq!(lead(&|_| false), None);
            prop_assert_eq!(tables.lead(Domain(5), section.root, key, |_| true).map(|d| d.at), None);
            // A node of a set is no root, whatever its tree.
            let inside = section.sets.iter().flatten().find(|node| node.addr != section.root);
            prop_assert_eq!(inside.and_then(|node| tables.lead(OWNER, node.addr, key, |_| true)), None);
            let may = |at: VirtAddr| (at.0 / 256).is_multiple_of(2) == parity;
            let known = |at: VirtAddr| {
                section.ranges.iter().any(|range| range.child.addr == at)
                    || section.sets.iter().flatten().any(|node| node.children.iter().any(|child| child.addr == at))
            };
            let top = section.ranges.iter().rfind(|range| range.first <= key).expect("the first one begins at 0").child;
            let way = (deepest.level..=top.level).map(|level| descended(&tree, section.root, key, level));
            prop_assert_eq!(lead(&may), way.into_iter().find(|&at| may(at) && known(at)));
            let mut at = section.root;
            for switch in &chain {
                let led = switch.lead(OWNER, at, key, |_| true);
                at = led.or_else(|| switch.lead_on(OWNER, at, key, |_| true)).map_or(at, |descent| descent.at);
            }
            prop_assert_eq!(at, deepest.addr);
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
        prop_assert!(TreeTables::parse(shorter).is_err(), "{} of {} bytes", shorter.len(), whole);
        let _ = tables_of([other.as_slice()]);
    }
}

#[test]
fn only_named_programs_at_a_root_begin_further_down() {
    let (_, section) = published(3_000, RANGES_DEFAULT, 1, 100);
    let tables = tables_of([section.emit().as_slice()]).unwrap();
    let pad = 77_u64.to_le_bytes();
    assert!(start(&tables, OWNER, section.root, &pad).is_some_and(|at| at != section.root));
    assert_eq!(tables.start(OWNER, section.root, ProgramHash([10; 16]), &pad), None);
    let below = section.ranges[1].child.addr;
    assert_eq!(tables.start(OWNER, below, PROGRAM, &pad), None);
    // Zeros at the end of a pad may be omitted.
    assert_eq!(
        tables.start(OWNER, section.root, PROGRAM, &[]),
        tables.start(OWNER, section.root, PROGRAM, &[0; 8])
    );
    assert_eq!(
        tables.start(OWNER, section.root, PROGRAM, &pad[..1]),
        tables.start(OWNER, section.root, PROGRAM, &pad)
    );
}

/// A repeated storing request finds its record where it was executed: it must not be led elsewhere.
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
    let elsewhere =
        IndexTables::default().put(OWNER, section.root.0 + 0x100, TreeTables::parse(&bytes).unwrap());
    assert_eq!(elsewhere, Err(SectionError::Root(section.root)));
    let other = TreeSection { root: VirtAddr(section.root.0 + 0x1000), ..section };
    let sections: Vec<Vec<u8>> = vec![bytes, other.emit()];
    assert_eq!(tables_of(sections.iter().map(Vec::as_slice)).map(|tables| tables.len()), Ok(2));
}

/// A domain that publishes a tree in another's memory leads only its own traversals there.
#[test]
fn a_tree_is_for_the_domain_that_published_it() {
    let (_, section) = published(3_000, 20, 1, 100);
    let other = Domain(5);
    let whole = [Range { first: 0, last: u64::MAX, child: section.ranges[0].child }];
    let theirs = TreeSection { ranges: whole.to_vec(), sets: Vec::new(), ..section.clone() };
    let mut tables = tables_of([section.emit().as_slice()]).unwrap();
    let start = |tables: &IndexTables, domain| start(tables, domain, section.root, &[0xff; 8]);
    let mine = start(&tables, OWNER);
    assert_eq!((mine.is_some(), start(&tables, other)), (true, None));
    tables.put(other, section.root.0, TreeTables::parse(&theirs.emit()).unwrap()).unwrap();
    assert_eq!(start(&tables, OWNER), mine);
    assert_eq!(start(&tables, other), Some(section.ranges[0].child.addr));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Each branch counts exactly the keys whose plain descent takes it.
    #[test]
    fn branches_count_the_descents_that_took_them(
        count in 1..3_000_u64, ranges in 1..100_usize, sets in 0..4_usize, nodes in 1..100_usize, keys in prop::collection::vec(any::<u64>(), 0..200)
    ) {
        let (tree, section) = published(count, ranges, sets, nodes);
        let bytes = section.emit();
        let mut tables = tables_of([bytes.as_slice()]).unwrap();
        let mut plain: std::collections::BTreeMap<(VirtAddr, VirtAddr), u32> = std::collections::BTreeMap::new();
        let keys: Vec<u64> = keys.into_iter().map(|key| key % (3 * count + 3)).collect();
        for &key in &keys {
            let descent = tables.start(OWNER, section.root, PROGRAM, &key.to_le_bytes()).unwrap();
            tables.count(&descent);
            let top = section.ranges[section.ranges.partition_point(|range| range.last < key)].child;
            *plain.entry((top.addr, top.addr)).or_default() += 1;
            for level in 0..top.level {
                let child = descended(&tree, section.root, key, level);
                *plain.entry((descended(&tree, section.root, key, level + 1), child)).or_default() += 1;
            }
        }
        let of_tree = tables.tables(OWNER, section.root).unwrap();
        let counters: Vec<u32> = of_tree.counters(0).collect();
        prop_assert_eq!(of_tree.edition(), super::edition(&bytes));
        prop_assert_eq!(counters.len(), section.branches().count());
        for (branch, &counter) in section.branches().zip(&counters) {
            let times = plain.get(&(branch.from, branch.child.addr)).copied().unwrap_or_default();
            prop_assert_eq!(counter, times, "{:?}", branch);
        }
        let all: u32 = section.branches().zip(&counters).filter(|(branch, _)| branch.set.is_none()).map(|(_, &n)| n).sum();
        prop_assert_eq!(all as usize, keys.len());
        prop_assert!(tables.tables(Domain(9), section.root).is_none());
    }
}

/// Counters wrap: their reader computes differences.
#[test]
fn a_counter_goes_on_behind_its_largest_number() {
    let (_, section) = published(10, 1, 0, 0);
    let mut tables = tables_of([section.emit().as_slice()]).unwrap();
    tables.trees[0].set_counter(0, u32::MAX);
    let descent = tables.start(OWNER, section.root, PROGRAM, &[]).unwrap();
    tables.count(&descent);
    assert_eq!(tables.tables(OWNER, section.root).unwrap().counters(0).collect::<Vec<_>>(), [0]);
}

/// Looks a key up in the tables of a pipeline, one after the other: a plain model of [`TreeTables`].
fn by_pipeline(ranges: &RangeTables, sets: &[NodeSet], key: u64) -> Child {
    sets.iter().fold(ranges.find(key), |at, set| set.step(at.addr, key).unwrap_or(at))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Sets of an invalid tree: nodes that lead anywhere, also to nodes of other sets, to themselves and to
    /// those of an earlier set.
    #[test]
    fn a_walk_is_a_pipeline(
        firsts in prop::collection::btree_set(0..5_000_u64, 0..40),
        sets in prop::collection::vec(
            prop::collection::btree_map(1..60_u64, (prop::collection::btree_set(0..5_000_u64, 0..16), any::<u64>()), 0..40), 0..=8
        ),
        keys in prop::collection::vec(0..5_200_u64, 1..60),
    ) {
        let child = |n: u64| Child { addr: VirtAddr(0x100 * (1 + n % 60)), level: (n % 5) as u8 };
        let firsts: Vec<u64> = std::iter::once(0).chain(firsts.into_iter().filter(|&first| first > 0)).collect();
        let lasts = firsts.iter().skip(1).map(|first| first - 1).chain([u64::MAX]);
        let ranges: Vec<Range> =
            firsts.iter().zip(lasts).map(|(&first, last)| Range { first, last, child: child(first) }).collect();
        let set = |nodes: std::collections::BTreeMap<u64, (std::collections::BTreeSet<u64>, u64)>| {
            let node = |(at, (pivots, salt)): (u64, (std::collections::BTreeSet<u64>, u64))| SetNode {
                addr: child(at - 1).addr,
                children: (0..=pivots.len() as u64).map(|n| child((salt >> 8) + 7 * n)).collect(),
                pivots: pivots.into_iter().collect(),
            };
            nodes.into_iter().map(node).collect::<Vec<_>>()
        };
        let sets: Vec<Vec<SetNode>> = sets.into_iter().map(set).collect();
        let section = TreeSection { root: VirtAddr(0x100), programs: vec![PROGRAM], ranges: ranges.clone(), sets: sets.clone() };
        let mut tables = tables_of([section.emit().as_slice()]).unwrap();
        let ranges = RangeTables::new(&ranges).unwrap();
        let sets: Vec<NodeSet> = sets.into_iter().map(|set| NodeSet::new(set).unwrap()).collect();
        // Twice, because counting resolves links.
        for _ in 0..2 {
            for &key in &keys {
                let descent = tables.start(OWNER, section.root, PROGRAM, &key.to_le_bytes()).unwrap();
                let plain = by_pipeline(&ranges, &sets, key);
                prop_assert_eq!(descent.at, plain.addr);
                prop_assert_eq!(tables.tables(OWNER, section.root).unwrap().deepest(key), plain);
                tables.count(&descent);
            }
        }
        // Descents together end where each ends alone.
        let pads: Vec<[u8; 8]> = keys.iter().map(|key| key.to_le_bytes()).collect();
        let mut together = Vec::new();
        let tree = tables.tree(OWNER, section.root, PROGRAM).unwrap();
        tables.descend(tree, pads.iter().map(|pad| &pad[..]), &mut together);
        let alone: Vec<_> =
            pads.iter().filter_map(|pad| tables.start(OWNER, section.root, PROGRAM, pad)).collect();
        prop_assert_eq!(together, alone);
    }
}

/// PROTOCOL 13.13, rule by rule: each changed word breaks one.
#[test]
fn what_is_no_section_is_refused_by_name() {
    let stores = ProgramHash([7; 16]);
    let name = u64::from_be_bytes([6; 8]);
    // Version, root, counts; a name; two ranges; a set of two nodes with two children and one.
    let good =
        [1, 0x100, 1, 2, 1, name, name, 0, 0x200, 500, 0x301, 2, 0x200, 2, 70, 0x400, 0x500, 0x300, 1, 0x600];
    let parsed = |words: &[u64]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        TreeTables::parse(&bytes).map(|tables| tables.deepest(600).addr.0)
    };
    assert_eq!(parsed(&good), Ok(0x600));
    let with = |changes: &[(usize, u64)]| {
        let mut words = good;
        changes.iter().for_each(|&(at, word)| words[at] = word);
        parsed(&words).expect_err("no section")
    };
    let many = SectionError::TooMany;
    assert_eq!(with(&[(0, 2)]), SectionError::Form);
    assert_eq!(with(&[(1, 0x180)]), SectionError::Address(0x180));
    assert_eq!(with(&[(2, 65)]), many("programs", 65));
    assert_eq!(with(&[(3, 1025)]), many("ranges", 1025));
    assert_eq!(with(&[(4, 9)]), many("node sets", 9));
    assert_eq!(
        with(&[(5, u64::from_be_bytes([7; 8])), (6, u64::from_be_bytes([7; 8]))]),
        SectionError::Stores(stores)
    );
    assert_eq!(with(&[(7, 1)]), SectionError::Ranges(RangeError::Gap { at: 0 }));
    assert_eq!(with(&[(8, 7)]), SectionError::Address(0));
    assert_eq!(with(&[(9, 0)]), SectionError::Ranges(RangeError::Inverted { at: 0 }));
    assert_eq!(with(&[(11, 4097)]), many("nodes of a set", 4097));
    assert_eq!(with(&[(12, 0)]), SectionError::Address(0));
    assert_eq!(with(&[(13, 17)]), many("children of a node", 17));
    let none = NodeSetError::Children { addr: VirtAddr(0x200), children: 0, pivots: 0 };
    assert_eq!(with(&[(13, 0)]), SectionError::Nodes(none));
    assert_eq!(
        with(&[(13, 3), (15, 70)]),
        SectionError::Nodes(NodeSetError::Pivots { addr: VirtAddr(0x200) })
    );
    assert_eq!(with(&[(17, 0x200)]), SectionError::Nodes(NodeSetError::Twice { addr: VirtAddr(0x200) }));
    assert_eq!(with(&[(17, 0x100)]), SectionError::Order(VirtAddr(0x100)));
    assert_eq!(parsed(&good[..19]), Err(SectionError::Form), "cut off");
    assert_eq!(parsed(&[&good[..], &[0]].concat()), Err(SectionError::Form), "too long");
    assert_eq!(parsed(&[1, 0x100, 0, 0, 0]), Err(SectionError::Ranges(RangeError::Empty)));
}
