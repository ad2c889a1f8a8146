//! Tests of keyed READs on racks of processes, over UDP and over shared memory. The switch's process leads
//! them, dies, and loads the image again.

use crate::faults::died_and_serves;
use crate::process::eventually;
use crate::rack::Description;
use farmem::blink_tree::{Extent, publish};
use farmem::{BLinkTree, Client, FarMemory as _, Layout, NodeId, Through, VirtAddr};

const KEYS: u32 = 7 * 343;

/// Returns the number of packets that the look-up of a key sends, after a check of its result.
fn reads(client: &mut Client, tree: &BLinkTree, over: Through, key: u64) -> u64 {
    let before = client.packets().0;
    assert_eq!(tree.get_through(client, over, 2 * key).unwrap(), Some(key), "key {key}");
    client.packets().0 - before
}

fn on_a_rack(transport: &'static str) {
    let description = Description::new("keyed", transport).with_nodes(1);
    let mut up = description.up();
    let mut client = description.client("shop");
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    tree.load(&mut client, (0..KEYS).map(|n| (2 * u64::from(n), u64::from(n))), 7).unwrap();
    let name = client.name_of_node_at(tree.tree().root).unwrap();
    let node = NodeId(client.nodes().iter().find(|node| node.name == name).unwrap().node);
    let over = client.open_through(node, Some(tree.tree().root)).unwrap();
    assert_eq!(reads(&mut client, &tree, over, 1_000), 4, "a READ for each level");
    let section = tree.section(&mut client, Extent::default()).unwrap();
    publish(&mut client, &[section]).unwrap();
    for key in (0..KEYS).step_by(29) {
        assert_eq!(reads(&mut client, &tree, over, key.into()), 1, "one READ, of the leaf");
    }
    // Ordinary verbs on the same connection.
    let vma = client.allocate_on(1 << 17, node).unwrap();
    let data: Vec<u8> = (0..100_001_u32).map(|n| (n % 251) as u8).collect();
    let mut memory = client.through(over);
    memory.write(vma.base, &data).unwrap();
    let mut back = vec![0; data.len()];
    memory.read(vma.base, &mut back).unwrap();
    assert!(back == data, "by the switch there and back");
    let word = VirtAddr(vma.base.0 + (1 << 17) - 8);
    assert_eq!((memory.fetch_add(word, 5).unwrap(), memory.fetch_add(word, 5).unwrap()), (0, 5));

    // The switch dies and restarts. Both ends keep the connection, and the published image returns.
    died_and_serves(&mut up, "switch");
    assert!((1..=64).contains(&reads(&mut client, &tree, over, 1_001)), "the answer is the same");
    eventually("the index is loaded again", || reads(&mut client, &tree, over, 1_002) == 1);
    // A restarted memory node has lost the tree, and reports it.
    died_and_serves(&mut up, &format!("node {name}"));
    let broken = tree.get_through(&mut client, over, 8).unwrap_err();
    assert!(broken.to_string().contains("the memory node with key 0x8"), "the connection is gone: {broken}");
    // The next look-up sets up a new connection.
    let lost = tree.get_through(&mut client, over, 8).unwrap_err();
    assert!(lost.to_string().contains("lost"), "{lost}");
    assert_eq!(up.stop().code, Some(0));
}

#[test]
fn a_key_is_read_over_udp() {
    on_a_rack("udp");
}

#[test]
fn a_key_is_read_over_shared_memory() {
    on_a_rack("shm");
}
