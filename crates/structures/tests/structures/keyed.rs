//! Keyed READs of a B-link tree through the switch of a rack in one process: results compared with a plain
//! map, READs counted, and errors.

use farmem_client::api::PermName;
use farmem_client::{Client, Error, FarMemory, NodeId, Rack, Rng, Through, Verb, VirtAddr};
use farmem_index::blink::{NODE_LEN, Node};
use farmem_index::{Child, Range, TreeSection};
use farmem_structures::blink_tree::{Extent, publish, withdraw};
use farmem_structures::heap::{Heap, HeapOptions};
use farmem_structures::{BLinkTree, Layout, RecordTree};
use std::collections::BTreeMap;

const SEED: u64 = 4791;

/// Creates a tree on one node with this many keys: 0, 3, 6 and so on, and the last key. Opens a connection
/// through the switch with the tree's root.
fn scene(rack: &Rack, keys: u64) -> (Client, BLinkTree, Through, BTreeMap<u64, u64>) {
    let mut client = rack.client("keys").unwrap();
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    let mut model: BTreeMap<u64, u64> = (0..keys).map(|n| (3 * n, n)).collect();
    model.insert(u64::MAX, 7);
    tree.load(&mut client, model.iter().map(|(&key, &value)| (key, value)), 7).unwrap();
    let over = client.open_through(NodeId(1), Some(tree.tree().root)).unwrap();
    (client, tree, over, model)
}

/// Returns the value and the number of READs of a look-up: each READ is a packet.
fn get(client: &mut Client, tree: &BLinkTree, over: Through, key: u64) -> (Option<u64>, u64) {
    let before = client.packets().0;
    let value = tree.get_through(client, over, key).unwrap();
    (value, client.packets().0 - before)
}

/// PROTOCOL 15.5: with all inner nodes in the tables each look-up is one READ; with none of them it is one
/// per level. The results are the same.
#[test]
fn a_look_up_is_one_read_where_the_switch_knows_the_way() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let (mut client, tree, over, model) = scene(&rack, 3_000);
    let levels = {
        let mut bytes = [0; NODE_LEN];
        client.read(tree.tree().root, &mut bytes).unwrap();
        u64::from(Node::parse(&bytes).unwrap().level) + 1
    };
    assert_eq!(levels, 5, "3,001 keys, 7 a node");
    let keys = || (0..9_000).step_by(7).chain([1, u64::MAX - 1, u64::MAX]);
    for key in keys() {
        assert_eq!(get(&mut client, &tree, over, key), (model.get(&key).copied(), levels), "key {key}");
    }
    let section = tree.section(&mut client, Extent::default()).unwrap();
    publish(&mut client, &[section]).unwrap();
    for key in keys() {
        assert_eq!(get(&mut client, &tree, over, key), (model.get(&key).copied(), 1), "key {key}");
    }
    withdraw(&mut client, tree.tree().root).unwrap();
    assert_eq!(get(&mut client, &tree, over, 9), (Some(3), levels));
}

/// Returns the node that a keyed READ brings.
fn node_of(client: &mut Client, over: Through, key: u64) -> Node {
    let mut bytes = [0; NODE_LEN];
    client.keyed_read(over, key, &mut bytes).unwrap();
    Node::parse(&bytes).unwrap()
}

/// PROTOCOL 15.10, 13.15: the tree splits and merges, and the published section grows old, is republished
/// with other extents, and is withdrawn. Each look-up still matches a map.
#[test]
fn a_tree_that_changes_is_found_whatever_the_switch_knows() {
    for (round, entries) in [(0, 14), (1, 8), (2, 4)] {
        let rack = Rack::embedded_with(1, 64 << 20).unwrap();
        let mut client = rack.client("keys").unwrap();
        let mut tree = BLinkTree::create_with(&mut client, Layout::Partitioned, entries).unwrap();
        let over = client.open_through(NodeId(1), Some(tree.tree().root)).unwrap();
        let (mut model, mut rng) = (BTreeMap::new(), Rng::from_number(SEED + round));
        let (mut few, mut many, mut published, mut contended) = (0, 0, 0, 0);
        for step in 0..3_000_u64 {
            let near = u64::from(rng.below(700));
            let key = if rng.chance(1, 20) { u64::MAX - near % 3 } else { near };
            let growing = step % 1_000 < 600;
            if rng.chance(if growing { 8 } else { 2 }, 10) {
                assert_eq!(tree.insert(&mut client, key, step).unwrap(), model.insert(key, step));
            } else {
                assert_eq!(tree.remove(&mut client, key).unwrap(), model.remove(&key));
            }
            let asked = u64::from(rng.below(720));
            let (value, reads) = get(&mut client, &tree, over, asked);
            assert_eq!(value, model.get(&asked).copied(), "key {asked} at step {step}");
            if reads == 1 {
                few += 1
            } else {
                many += 1
            }
            match rng.below(200) {
                0 | 1 => {
                    let (ranges, sets) = (1 + rng.below(40) as usize, rng.below(4) as usize);
                    let extent = Extent { ranges, sets, nodes: 50 };
                    match tree.section(&mut client, extent) {
                        Ok(section) => {
                            publish(&mut client, &[section]).unwrap();
                            published += 1;
                        }
                        // Removals left an inner node that no plain tree has: the previous section stays.
                        Err(Error::Contended { .. }) => contended += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                2 => withdraw(&mut client, tree.tree().root).unwrap(),
                _ => {}
            }
        }
        assert!(few > 30 && many > 100, "{few} look-ups were one READ, {many} more");
        assert!(published > 5, "{published} times something was published, {contended} times not");
    }
}

/// PROTOCOL 15.5: the first and last keys, an empty tree, a tree of one key.
#[test]
fn empty_trees_and_the_last_keys_have_their_answers() {
    let rack = Rack::embedded_with(1, 16 << 20).unwrap();
    let mut client = rack.client("keys").unwrap();
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    let over = client.open_through(NodeId(1), Some(tree.tree().root)).unwrap();
    for publishes in [false, true] {
        if publishes {
            let section = tree.section(&mut client, Extent::default()).unwrap();
            publish(&mut client, &[section]).unwrap();
        }
        for key in [0, 1, u64::MAX] {
            assert_eq!(get(&mut client, &tree, over, key), (None, 1));
        }
    }
    for key in [0, u64::MAX] {
        tree.insert(&mut client, key, !key).unwrap();
        assert_eq!(get(&mut client, &tree, over, key), (Some(!key), 1));
    }
    tree.remove(&mut client, 0).unwrap();
    assert_eq!(get(&mut client, &tree, over, 0), (None, 1));
}

/// PROTOCOL 15.2, 11.14: READs of many packets, WRITEs and atomics of the same connection work as before, in
/// order with keyed READs among them.
#[test]
fn ordinary_verbs_go_through_untouched() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let (mut client, tree, over, _) = scene(&rack, 500);
    let section = tree.section(&mut client, Extent::default()).unwrap();
    publish(&mut client, &[section]).unwrap();
    let vma = client.allocate(1 << 20).unwrap();
    let data: Vec<u8> = (0..300_001_u32).map(|n| (n * 7 % 251) as u8).collect();
    let word = VirtAddr(vma.base.0 + (1 << 20) - 8);
    let mut memory = client.through(over);
    memory.write(VirtAddr(vma.base.0 + 5), &data).unwrap();
    let mut back = vec![0; data.len()];
    memory.read(VirtAddr(vma.base.0 + 5), &mut back).unwrap();
    assert!(back == data);
    for n in 0..10 {
        assert_eq!(memory.fetch_add(word, 3).unwrap(), 3 * n);
    }
    assert_eq!(memory.compare_swap(word, 30, 9).unwrap(), 30);
    let mut direct = vec![0; data.len()];
    client.read(VirtAddr(vma.base.0 + 5), &mut direct).unwrap();
    assert!(direct == data, "the same bytes by another way");
    // In parallel: a keyed READ, a WRITE that waits for it, and a READ of the written bytes.
    let (leaf, key) = (node_of(&mut client, over, 300), 300);
    assert_eq!((leaf.level, leaf.value(key)), (0, Some(100)));
    let tickets: Vec<_> = (0..40)
        .flat_map(|n: u8| {
            let addr = vma.base;
            [
                Verb::KeyedRead { key: u64::from(n) * 30, buf: vec![0; NODE_LEN] },
                Verb::Write { addr, buf: vec![n; 5_000] },
                Verb::Read { addr, buf: vec![0xee; 5_000] },
            ]
        })
        .map(|work| client.submit_through(over, work).unwrap())
        .collect();
    for (at, ticket) in (0_u64..).zip(tickets) {
        let completed = client.wait(ticket).unwrap();
        completed.result.unwrap();
        match at % 3 {
            0 => {
                let leaf = Node::parse(&completed.buf.try_into().unwrap()).unwrap();
                assert_eq!(leaf.value(at * 10), Some(at * 10 / 3));
            }
            2 => assert_eq!(completed.buf, [u8::try_from(at / 3).unwrap(); 5_000]),
            _ => {}
        }
    }
}

/// PROTOCOL 15.4 to 15.6: each wrong keyed READ returns the matching error, and the connection keeps working.
#[test]
fn wrong_keyed_reads_are_named() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let (mut client, tree, over, _) = scene(&rack, 500);
    let check = |client: &mut Client, expected: &str, result: Result<(), Error>| {
        let error = result.unwrap_err();
        assert!(error.to_string().contains(expected), "{error} does not say {expected:?}");
        assert!(!error.remedy().is_empty(), "{error}");
        assert_eq!(tree.get_through(client, over, 300).unwrap(), Some(100));
    };
    let result = client.keyed_read(over, 7, &mut []);
    check(&mut client, "at least one", result);
    let result = client.keyed_read(over, 7, &mut [0; 4097]);
    check(&mut client, "4097 bytes are more than the 4096", result);
    // The host role does not check. The memory node in turn refuses what a card could send as well, and
    // flushes what follows.
    let bare = client.open_through(NodeId(1), None).unwrap();
    let result = client.keyed_read(bare, 7, &mut [0; 256]);
    check(&mut client, "opened without a root", result);
    // The root is on node 1: a connection to node 2 finds nothing.
    let elsewhere = client.open_through(NodeId(2), Some(tree.tree().root)).unwrap();
    let result = client.keyed_read(elsewhere, 7, &mut [0; 256]);
    check(&mut client, "not at the node of its connection", result);
    assert_eq!(tree.get_through(&mut client, elsewhere, 300).unwrap(), Some(100), "but read past it");
    // A domain without read access to the tree learns nothing of it, whatever root it names.
    let mut stranger = rack.client("other").unwrap();
    let theirs = stranger.open_through(NodeId(1), Some(tree.tree().root)).unwrap();
    for key in [0, 300, u64::MAX] {
        let refused = stranger.keyed_read(theirs, key, &mut [0; 256]).unwrap_err();
        assert!(matches!(refused, Error::Key { .. }), "{refused}");
    }
    client.grant(VirtAddr(tree.tree().root.0 & !0xfff), 4096, "other", PermName::Read).unwrap();
    let mut bytes = [0; 256];
    stranger.keyed_read(theirs, 300, &mut bytes).unwrap();
    assert_eq!(Node::parse(&bytes).unwrap().tag, tree.tree().tag);
    // A node without such a number, an invalid root, and a closed connection.
    assert!(matches!(client.open_through(NodeId(9), None), Err(Error::Refused(_))));
    assert!(matches!(client.open_through(NodeId(1), Some(VirtAddr(8))), Err(Error::Refused(_))));
    client.close_through(bare).unwrap();
    let closed = client.read_through(bare, tree.tree().root, &mut bytes).unwrap_err();
    assert!(closed.to_string().contains("closed"), "{closed}");
    assert!(matches!(client.close_through(bare), Err(Error::Missing { .. })));
}

/// A hostile publisher: tables of its own domain that lead to others' memory, to no memory, past the end of
/// its own, and in circles, bring nothing that a READ would not.
#[test]
fn tables_that_lie_bring_nothing_of_others() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let (victim, secret) = {
        let mut victim = rack.client("victim").unwrap();
        let secret = victim.allocate(4096).unwrap().base;
        victim.write(secret, &[0x5e; 4096]).unwrap();
        (victim, secret)
    };
    let mut client = rack.client("liar").unwrap();
    let own = client.allocate(4096).unwrap().base;
    client.write(own, &[1; 4096]).unwrap();
    let over = client.open_through(NodeId(1), Some(own)).unwrap();
    // Where the node has no memory, the root remains.
    for (to, reads, one_more) in [
        (secret, false, false),
        (VirtAddr(secret.0 + 0xf00), false, false),
        (VirtAddr(!0xff), true, true),
        (VirtAddr(0x100), true, true),
        (VirtAddr(own.0 + 0xf00), true, false),
        (own, true, true),
    ] {
        let child = Child { addr: to, level: 3 };
        let ranges = vec![Range { first: 0, last: u64::MAX, child }];
        let section = TreeSection { root: own, programs: Vec::new(), ranges, sets: Vec::new() };
        publish(&mut client, &[section]).unwrap();
        let mut bytes = [0xee; 256];
        let result = client.keyed_read(over, 7, &mut bytes);
        assert_eq!(result.is_ok(), reads, "{to}: {result:?}");
        assert!(bytes == [1; 256] || bytes == [0xee; 256], "a byte of another program arrived");
        // One byte past the end of the memory.
        let past = client.keyed_read(over, 7, &mut [0; 257]);
        assert_eq!(past.is_ok(), one_more, "{to}");
    }
    drop(victim);
}

/// PROTOCOL 15.5, 11.14: a part of the tree moves to another node while its tables stand. The switch no
/// longer uses the moved nodes, and the look-up reads them at their new place.
#[test]
fn a_tree_whose_nodes_move_is_found() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let (mut client, tree, over, model) = scene(&rack, 2_000);
    let section = tree.section(&mut client, Extent::default()).unwrap();
    publish(&mut client, &[section]).unwrap();
    let leaf = {
        let mut at = tree.tree().root;
        loop {
            let mut bytes = [0; NODE_LEN];
            client.read(at, &mut bytes).unwrap();
            let node = Node::parse(&bytes).unwrap();
            if node.level == 0 {
                break at;
            }
            at = VirtAddr(node.entries.last().unwrap().1);
        }
    };
    let base = VirtAddr(leaf.0 & !0xffff);
    client.migrate(base, 1 << 16, NodeId(2)).unwrap();
    for (&key, &value) in model.iter().step_by(3) {
        assert_eq!(tree.get_through(&mut client, over, key).unwrap(), Some(value), "key {key}");
    }
}

/// Values that are records take one READ more.
#[test]
fn records_take_one_read_more() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let mut client = rack.client("records").unwrap();
    let mut heap = Heap::create(&mut client, "heap", HeapOptions::default()).unwrap();
    let mut tree = RecordTree::create(&mut client, &mut heap, "tree", Layout::Partitioned).unwrap();
    let value = |n: u64| vec![n.to_le_bytes()[0]; 1_000];
    tree.load(&mut client, &mut heap, (0..1_000_u32).map(|n| (u64::from(n), value(n.into()))), 7).unwrap();
    let over = client.open_through(NodeId(1), Some(tree.root())).unwrap();
    let section = tree.section(&mut client, Extent::default()).unwrap();
    publish(&mut client, &[section]).unwrap();
    assert_eq!(tree.get_through(&mut client, &mut heap, over, 5).unwrap(), Some(value(5)));
    for n in (0..1_000).step_by(37) {
        let before = client.packets().0;
        assert_eq!(tree.get_through(&mut client, &mut heap, over, n).unwrap(), Some(value(n)));
        assert_eq!(client.packets().0 - before, 2, "the leaf and the record of {n}");
    }
    assert_eq!(tree.get_through(&mut client, &mut heap, over, 1_000).unwrap(), None);
}
