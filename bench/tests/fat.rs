//! What the in-network index takes, exactly, on a tree that is scattered over four memory nodes.

use farmem::blink_tree::Extent;
use farmem_bench::fat::{count, count_fabric, lazy};

/// A look-up is one round trip, with the index and without; with it there are fewer visits and fewer packets (Fat-B+Tree II, PULSE 5).
#[test]
fn the_index_saves_visits_and_packets() {
    let [index, root] = count(20_000).unwrap();
    assert_eq!((index.round_trips, root.round_trips), (2_000, 2_000));
    // The leaf and five lines of value; from the root, three levels more.
    assert_eq!((index.visits, root.visits), (6 * 2_000, 9 * 2_000));
    assert!(2 * index.packets <= root.packets, "{index:?} {root:?}");
}

/// An index that is older than its tree is longer by steps to the right, never wrong, and still shorter than the way from the root; the agent's next epoch has it new
/// (Fat-B+Tree IV-B). Every look-up is checked, during the changes too.
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
        // All inner nodes are in the tables again: a look-up is its leaf, but for keys that were merged since.
        assert!(lazy.followed <= lazy.look_ups * 11 / 10, "{lazy:?}");
        assert!(
            lazy.during.1 >= lazy.during.0 && lazy.during.1 * lazy.look_ups < lazy.root * lazy.during.0,
            "{lazy:?}"
        );
    }
}

/// By way of a FatTree a look-up is one round trip of six packets: up to the core, down by pod and edge to its node, and the answer. Two sets each of pod and edge
/// save visits that one switch's tables have no room for.
#[test]
fn a_fat_tree_saves_the_visits_that_one_switch_has_no_room_for() {
    let [fabric, alone, root] =
        count_fabric(100_000, Extent { ranges: 100, nodes: 150, ..Extent::FAT_TREE }).unwrap();
    assert_eq!([fabric, alone, root].map(|counts| counts.round_trips), [2_000; 3]);
    assert!(fabric.visits < alone.visits && alone.visits < root.visits, "{fabric:?} {alone:?} {root:?}");
    assert!(fabric.visits <= 2_000 * 11 / 10, "nearly all begin at their leaf: {fabric:?}");
    // Three nodes above leaves are at the border of two servers: from there it may be two packets more.
    assert!((6 * 2_000..6 * 2_000 + 100).contains(&fabric.packets), "{fabric:?}");
}
