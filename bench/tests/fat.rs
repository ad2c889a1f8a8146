//! What the in-network index takes, exactly, on a tree that is scattered over four memory nodes.

use farmem_bench::fat::count;

/// A look-up is one round trip, with the index and without; with it there are fewer visits and fewer packets (Fat-B+Tree II, PULSE 5).
#[test]
fn the_index_saves_visits_and_packets() {
    let [index, root] = count(20_000).unwrap();
    assert_eq!((index.round_trips, root.round_trips), (2_000, 2_000));
    // The leaf and five lines of value; from the root, three levels more.
    assert_eq!((index.visits, root.visits), (6 * 2_000, 9 * 2_000));
    assert!(2 * index.packets <= root.packets, "{index:?} {root:?}");
}
