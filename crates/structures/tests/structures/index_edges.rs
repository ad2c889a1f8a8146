//! The edge cases of a tree whose index is in the switch: the table in docs/index.md, row by row.

use farmem_client::{Client, Error, NodeId, Rack};
use farmem_structures::blink_tree::{Cursor, Extent, publish, withdraw};
use farmem_structures::heap::{Clock, Heap, HeapOptions, RECORD_LEN_MAX};
use farmem_structures::{BLinkTree, Layout, RecordTree};
use std::time::Duration;

fn rack() -> Rack {
    Rack::embedded_with(2, 64 << 20).unwrap()
}

/// Creates a tree of this many keys 0, 3, 6 and so on, each with a third of itself as its value, and
/// publishes as much of it as fits.
fn tree_of(client: &mut Client, keys: u32, extent: Extent) -> BLinkTree {
    let mut tree = BLinkTree::create(client, Layout::Partitioned).unwrap();
    tree.load(client, (0..keys).map(|n| (3 * u64::from(n), u64::from(n))), 7).unwrap();
    // The memory nodes learn the programs.
    (0..keys).step_by(37).for_each(|n| _ = tree.get(client, 3 * u64::from(n)).unwrap());
    let section = tree.section(client, extent).unwrap();
    publish(client, &[section]).unwrap();
    tree
}

/// Returns the requests and visits of some work.
fn took(client: &mut Client, work: impl FnOnce(&mut Client)) -> (u64, u64) {
    let before = client.tally();
    work(client);
    let after = client.tally();
    (after.requests - before.requests, after.iterations - before.iterations)
}

/// Look-ups of keys outside the tables begin where the tables end; each still takes one round trip.
#[test]
fn a_tree_that_is_larger_than_the_tables() {
    const KEYS: u64 = 7 * 343;
    let mut client = rack().client("edges").unwrap();
    let extent = Extent { ranges: 3, sets: 2, nodes: 4 };
    let tree = tree_of(&mut client, 7 * 343, extent);
    let all = |client: &mut Client, tree: &BLinkTree| {
        took(client, |client| {
            for n in 0..KEYS {
                assert_eq!(tree.get(client, 3 * n).unwrap(), Some(n));
                assert_eq!(tree.get(client, 3 * n + 1).unwrap(), None);
            }
        })
    };
    let indexed = all(&mut client, &tree);
    withdraw(&mut client, tree.tree().root).unwrap();
    let plain = all(&mut client, &tree);
    assert_eq!((indexed.0, plain), (2 * KEYS, (2 * KEYS, 2 * KEYS * 4)));
    // The root's seven children do not fit into three ranges. One set has the root, the next four of its
    // children.
    assert_eq!(indexed.1, 2 * (KEYS * 3 - KEYS * 4 / 7));
}

/// An empty tree is a leaf, published as one range that leads to it. Inserted keys are found without
/// publishing again.
#[test]
fn an_empty_tree_and_one_key() {
    let mut client = rack().client("edges").unwrap();
    let mut tree = tree_of(&mut client, 0, Extent::default());
    assert_eq!(tree.get(&mut client, 5).unwrap(), None, "the memory node learns the program");
    assert_eq!(took(&mut client, |client| assert_eq!(tree.get(client, 5).unwrap(), None)), (1, 1));
    assert_eq!(tree.scan(&mut client, .., 9).unwrap(), []);
    assert_eq!(tree.remove(&mut client, 5).unwrap(), None);
    assert_eq!(tree.insert(&mut client, 5, 50).unwrap(), None);
    assert_eq!(took(&mut client, |client| assert_eq!(tree.get(client, 5).unwrap(), Some(50))), (1, 1));
    assert_eq!(tree.scan(&mut client, .., 9).unwrap(), [(5, 50)]);
    // Published with its one key, the section is the same. The section stays valid when the tree gains
    // levels.
    let section = tree.section(&mut client, Extent::default()).unwrap();
    assert_eq!(
        (section.ranges.len(), section.ranges[0].child.addr, section.sets.len()),
        (1, section.root, 0)
    );
    publish(&mut client, &[section]).unwrap();
    for key in 0..500 {
        assert_eq!(tree.insert(&mut client, key, 10 * key).unwrap(), (key == 5).then_some(50));
    }
    for key in 0..500 {
        assert_eq!(tree.get(&mut client, key).unwrap(), Some(10 * key));
    }
}

/// A tree that lost most of its keys is low again; a look-up through the index is still one visit.
#[test]
fn a_tree_that_shrank() {
    const KEYS: u64 = 20_000;
    let mut client = rack().client("edges").unwrap();
    let mut tree = tree_of(&mut client, 20_000, Extent::default());
    withdraw(&mut client, tree.tree().root).unwrap();
    let visits = |client: &mut Client, tree: &BLinkTree| {
        let (requests, visits) = took(client, |client| {
            for n in (0..KEYS).step_by(2_000) {
                assert_eq!(tree.get(client, 3 * n).unwrap(), Some(n));
            }
        });
        assert_eq!(requests, 10);
        visits / requests
    };
    let high = visits(&mut client, &tree);
    for n in (0..KEYS).filter(|n| n % 2_000 != 0) {
        assert_eq!(tree.remove(&mut client, 3 * n).unwrap(), Some(n));
    }
    assert_eq!(tree.scan(&mut client, .., 99).unwrap().len(), 10);
    let section = tree.section(&mut client, Extent::default()).unwrap();
    let shrunk = visits(&mut client, &tree);
    publish(&mut client, std::slice::from_ref(&section)).unwrap();
    let indexed = visits(&mut client, &tree);
    assert!(high == 6 && shrunk <= 3 && indexed == 1, "{high} {shrunk} {indexed}");
}

/// The smallest and the largest key work like any other: alone, together, and at the ends of a tree with an
/// index.
#[test]
fn the_first_and_the_last_key() {
    let mut client = rack().client("edges").unwrap();
    let mut tree = tree_of(&mut client, 0, Extent::default());
    for keys in [&[0][..], &[u64::MAX], &[0, u64::MAX]] {
        for &key in keys {
            assert_eq!(tree.insert(&mut client, key, !key).unwrap(), None);
            assert_eq!(tree.get(&mut client, key).unwrap(), Some(!key));
        }
        let all: Vec<(u64, u64)> = keys.iter().map(|&key| (key, !key)).collect();
        assert_eq!(tree.scan(&mut client, .., 9).unwrap(), all);
        assert_eq!(tree.scan(&mut client, keys[0]..=keys[0], 9).unwrap(), all[..1]);
        for &key in keys {
            assert_eq!(tree.remove(&mut client, key).unwrap(), Some(!key));
        }
    }
    for key in (0..2_000).chain(u64::MAX - 2_000..=u64::MAX) {
        assert_eq!(tree.insert(&mut client, key, !key).unwrap(), None);
    }
    let section = tree.section(&mut client, Extent::default()).unwrap();
    publish(&mut client, &[section]).unwrap();
    for key in [0, 1, u64::MAX - 1, u64::MAX] {
        let found = took(&mut client, |client| assert_eq!(tree.get(client, key).unwrap(), Some(!key)));
        assert_eq!(found, (1, 1), "{key} begins at its leaf");
    }
    let ends = tree.scan(&mut client, u64::MAX - 1.., 9).unwrap();
    assert_eq!(ends, [(u64::MAX - 1, 1), (u64::MAX, 0)]);
}

/// A range whose first key exceeds its last has no keys and costs no request.
#[test]
fn a_range_from_behind() {
    let mut client = rack().client("edges").unwrap();
    let tree = tree_of(&mut client, 400, Extent::default());
    #[expect(clippy::reversed_empty_ranges, reason = "it is what is tried")]
    let nothing = took(&mut client, |client| {
        assert_eq!(tree.scan(client, 300..=200, 9).unwrap(), []);
        assert_eq!(tree.scan(client, 300..300, 9).unwrap(), []);
        assert_eq!(tree.scan(client, ..0, 9).unwrap(), []);
        let mut cursor = Cursor::new(300..=200);
        assert!(cursor.is_at_end() && cursor.next(&tree, client, 9).unwrap().is_empty());
    });
    assert_eq!(nothing, (0, 0));
}

/// A value too long for a datagram takes one more READ. A value too long for a record is refused before
/// anything is sent.
#[test]
fn values_up_to_the_limit_and_over_it() {
    // On one memory node every value lies with its leaf.
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let mut client = rack.client("edges").unwrap();
    // The clock stands still: no lease renewal disturbs the counts.
    let options = HeapOptions { clock: Clock::new(|| Duration::ZERO), ..HeapOptions::default() };
    let mut heap = Heap::create(&mut client, "heap", options).unwrap();
    let mut tree = RecordTree::create(&mut client, &mut heap, "tree", Layout::Partitioned).unwrap();
    let lens = [1, 1_960, 1_961, 64 << 10, RECORD_LEN_MAX];
    for (key, len) in (0_u8..).zip(lens) {
        assert!(!tree.insert(&mut client, &mut heap, key.into(), &vec![key; len]).unwrap());
    }
    let section = tree.section(&mut client, Extent::default()).unwrap();
    publish(&mut client, &[section]).unwrap();
    (0..2).for_each(|key| _ = tree.get(&mut client, &mut heap, key).unwrap());
    let frames = lens.iter().zip(0_u8..).map(|(&len, key)| {
        let before = rack.frames().unwrap();
        let found = tree.get(&mut client, &mut heap, key.into()).unwrap();
        assert_eq!(found, Some(vec![key; len]));
        rack.frames().unwrap() - before
    });
    let frames: Vec<u64> = frames.collect();
    // Host, switch, node, and the reply to the host; a READ takes at least two more.
    assert_eq!(frames[..2], [3, 3]);
    assert!(frames[2..].iter().all(|&frames| frames > 3), "{frames:?}");
    let before = rack.frames().unwrap();
    for value in [&[][..], &vec![1; RECORD_LEN_MAX + 1]] {
        let error = tree.insert(&mut client, &mut heap, 9, value).unwrap_err();
        assert!(matches!(error, Error::Empty { .. } | Error::TooLong { .. }), "{error}");
    }
    assert_eq!(rack.frames().unwrap(), before, "nothing is sent of what is refused");
    assert_eq!(tree.get(&mut client, &mut heap, 9).unwrap(), None);
}

/// A restarted memory node has lost its part of the tree. A look-up that the switch leads there fails with an
/// error, and none reports a missing key. Look-ups of the other node's keys succeed.
#[test]
fn a_server_that_died() {
    const KEYS: u64 = 400;
    let rack = rack();
    let mut client = rack.client("edges").unwrap();
    let tree = tree_of(&mut client, 400, Extent::default());
    rack.restart_node(NodeId(1)).unwrap();
    let (mut found, mut lost) = (0, 0);
    for n in 0..KEYS {
        match tree.get(&mut client, 3 * n) {
            Ok(value) => {
                assert_eq!(value, Some(n), "no key is missing in silence");
                found += 1;
            }
            Err(Error::MemoryLost { .. }) => lost += 1,
            Err(error) => panic!("{error}"),
        }
    }
    // Each node has half of the leaves; a look-up begins at its leaf.
    assert_eq!(found + lost, KEYS);
    assert!(found >= KEYS / 2 - 7 && lost >= KEYS / 2 - 7, "{found} found, {lost} lost");
}
