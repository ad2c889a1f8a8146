//! The exact cost of look-ups through the in-network index, on a tree scattered over four memory nodes.

use farmem::blink_tree::Extent;
use farmem_bench::fat::{count, count_fabric, lazy};

/// A look-up is one round trip, with the index and without; the index saves visits and packets (Fat-B+Tree
/// II, PULSE 5).
#[test]
fn the_index_saves_visits_and_packets() {
    let [index, root] = count(20_000).unwrap();
    assert_eq!((index.round_trips, root.round_trips), (2_000, 2_000));
    // The leaf and five lines of value; from the root, three more levels.
    assert_eq!((index.visits, root.visits), (6 * 2_000, 9 * 2_000));
    assert!(2 * index.packets <= root.packets, "{index:?} {root:?}");
}

/// An index older than its tree costs extra steps to the right, is never wrong, and is still shorter than the
/// path from the root. The agent's next epoch renews it (Fat-B+Tree IV-B). Every look-up is checked, also
/// during the changes.
#[test]
fn an_old_index_costs_steps_and_no_answer() {
    for (reads, operations) in [(50, 4_000), (95, 4_000)] {
        let lazy = lazy(3_000, operations, reads).unwrap();
        let changes = lazy.changes.0 + lazy.changes.1;
        let expected = operations * u64::from(100 - reads) / 100;
        assert!((expected * 8 / 10..expected * 12 / 10).contains(&changes), "{lazy:?}");
        assert_eq!(lazy.during.0 + changes, operations);
        assert!(lazy.changes.1 > 0 && lazy.old > lazy.followed, "splits moved keys to the right: {lazy:?}");
        assert!(lazy.followed < lazy.old && lazy.old < lazy.root, "{lazy:?}");
        // All inner nodes are in the tables again: a look-up visits its leaf, except for keys merged since.
        assert!(lazy.followed <= lazy.look_ups * 11 / 10, "{lazy:?}");
        assert!(
            lazy.during.1 >= lazy.during.0 && lazy.during.1 * lazy.look_ups < lazy.root * lazy.during.0,
            "{lazy:?}"
        );
    }
}

/// Through a FatTree a look-up is one round trip of six packets: up to the core, down by pod and edge to its
/// node, and the reply. Two sets each at pod and edge save visits for which one switch's tables have no room.
#[test]
fn a_fat_tree_saves_the_visits_that_one_switch_has_no_room_for() {
    let [fabric, alone, root] =
        count_fabric(100_000, Extent { ranges: 100, nodes: 150, ..Extent::FAT_TREE }).unwrap();
    assert_eq!([fabric, alone, root].map(|counts| counts.round_trips), [2_000; 3]);
    assert!(fabric.visits < alone.visits && alone.visits < root.visits, "{fabric:?} {alone:?} {root:?}");
    assert!(fabric.visits <= 2_000 * 11 / 10, "nearly all begin at their leaf: {fabric:?}");
    // Three nodes above leaves are at the border of two servers, where a look-up may take two more packets.
    assert!((6 * 2_000..6 * 2_000 + 100).contains(&fabric.packets), "{fabric:?}");
}
