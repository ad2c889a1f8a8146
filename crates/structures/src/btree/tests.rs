use super::*;
use farmem_client::{Client, Rack};

/// Creates a tree of even keys that is full from root to leaves: three levels.
fn full(client: &mut Client) -> (BTree, Vec<(u64, u64)>) {
    let pairs: Vec<(u64, u64)> = (0..15 * 16 * 16).map(|n| (n * 2, n)).collect();
    let mut tree = BTree::create(client, Layout::Scattered { granularity: 4096 }).unwrap();
    tree.load(client, pairs.iter().copied(), KEYS_MAX).unwrap();
    (tree, pairs)
}

/// One insert splits every level of a full tree. Between any two of its writes, a fresh reader sees every
/// existing key once and in order. The new key appears with one write and stays.
#[test]
fn a_fresh_reader_beside_a_split_sees_every_key() {
    for key in [1, 2001, 3841, 5761, 7679, 9001] {
        let rack = Rack::embedded_with(2, 16 << 20).unwrap();
        let (mut client, mut reader) = (rack.client("split").unwrap(), rack.client("split").unwrap());
        let (mut tree, pairs) = full(&mut client);
        let mut path = tree.descend(&mut client, key).unwrap();
        assert_eq!(path.len(), 3);
        let (addr, mut leaf) = path.pop().unwrap();
        let ordered = leaf.rank(key) == leaf.keys.len();
        leaf.insert(key, 7);
        let writes = tree.writes(&mut client, path, (addr, leaf), ordered).unwrap();
        let mut with_key = pairs.clone();
        with_key.insert(pairs.partition_point(|pair| pair.0 < key), (key, 7));
        let mut there = false;
        for (addr, node) in writes {
            client.write(addr, &node.emit()).unwrap();
            let now = tree.scan(&mut reader, .., usize::MAX).unwrap();
            assert!(!there || now.len() == with_key.len(), "it stays");
            there = now.len() == with_key.len();
            assert_eq!(&now, if there { &with_key } else { &pairs }, "at {addr}");
            for (key, value) in pairs.iter().step_by(7) {
                assert_eq!(tree.find(&mut reader, *key).unwrap(), Some(*value), "at {addr}");
            }
        }
        assert!(there);
    }
}

/// Ascending inserts fill their leaves: no node on the left edge is halved.
#[test]
fn keys_in_order_fill_their_leaves() {
    let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("order").unwrap();
    let mut tree = BTree::create(&mut client, Layout::Partitioned).unwrap();
    for key in 0..1500 {
        tree.insert(&mut client, key, key).unwrap();
    }
    let (_, mut leaf) = tree.leaf_of(&mut client, 0).unwrap();
    let mut leaves = 1;
    while leaf.link != 0 {
        assert_eq!(leaf.keys.len(), KEYS_MAX);
        leaf = tree.read_node(&mut client, VirtAddr(leaf.link)).unwrap();
        leaves += 1;
    }
    assert_eq!(leaves, 1500 / KEYS_MAX);
}

/// A leaf with overwritten bytes is reported with its address and not followed.
#[test]
fn what_is_no_node_is_reported() {
    let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("broken").unwrap();
    let (mut tree, _) = full(&mut client);
    let (leaf, _) = tree.leaf_of(&mut client, 100).unwrap();
    client.write(leaf, &[9; NODE_LEN]).unwrap();
    let error = tree.insert(&mut client, 101, 0).unwrap_err();
    assert!(matches!(error, Error::Broken { addr, .. } if addr == leaf), "{error}");
}
