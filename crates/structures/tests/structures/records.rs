//! Scans that return records against `BTreeMap`, over racks of 1 and 3 memory nodes, in pads of traversals
//! and by READs, at the memory and at the host.

use farmem_client::{Client, Policy, Rack, VirtAddr};
use farmem_structures::Layout;
use farmem_structures::btree::{BTree, Bring, RECORD_ROOM};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Returns the record of a key: words derived from the key, none of them zero throughout.
fn record(key: u64, len: usize) -> Vec<u8> {
    (0..len / 8).flat_map(|n| (key ^ (n as u64 + 1) << 32 | 1).to_le_bytes()).collect()
}

/// Creates a tree of `keys` with their records, alternating between the memory nodes, with gaps of `apart`
/// bytes.
fn tree(
    client: &mut Client,
    keys: impl Iterator<Item = u64> + Clone,
    len: usize,
    apart: usize,
    layout: Layout,
) -> BTree {
    let nodes: Vec<_> = client.nodes().iter().map(|node| farmem_client::NodeId(node.node)).collect();
    let size = (keys.clone().count() * (len + apart) + RECORD_ROOM) as u64;
    let rooms: Vec<_> =
        nodes.into_iter().map(|node| client.allocate_on(size, node).unwrap().base.0).collect();
    let mut tree = BTree::create(client, layout).unwrap();
    for (n, key) in keys.enumerate() {
        let place = VirtAddr(rooms[n % rooms.len()] + (n * (len + apart)) as u64);
        client.write(place, &record(key, len)).unwrap();
        tree.insert(client, key, place.0).unwrap();
    }
    tree
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// For any length, range and method, a scan brings the first records of the range, each whole and in
    /// order.
    #[test]
    fn scans_bring_what_is_there(
        keys in btree_set(prop_oneof![0..400_u64, any::<u64>().prop_map(|k| k.min(u64::MAX - 1))], 1..160),
        words in 1..=32_usize,
        (apart, shift) in (prop_oneof![Just(0_usize), Just(8)], prop_oneof![Just(0), Just(59), Just(63)]),
        ranges in vec((0..420_u64, 0..420_u64, 0..300_usize), 1..6),
        nodes in prop_oneof![Just(1_u16), Just(3)],
        layout in prop_oneof![Just(Layout::Partitioned), Just(Layout::Scattered { granularity: 4096 })],
    ) {
        let mut client = Rack::embedded_with(nodes, 16 << 20).unwrap().client("records").unwrap();
        let len = 8 * words;
        // A permutation that leaves neighbours scattered, partly adjacent, or all adjacent.
        let mut mixed: Vec<u64> = keys.iter().copied().collect();
        mixed.sort_by_key(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift);
        let tree = tree(&mut client, mixed.into_iter(), len, apart, layout);
        let model: BTreeMap<u64, Vec<u8>> = keys.iter().map(|&key| (key, record(key, len))).collect();
        for (bring, policy) in [
            (Bring::Traversals, Policy::Offload),
            (Bring::Reads, Policy::Offload),
            (Bring::Traversals, Policy::Host),
            (Bring::Reads, Policy::Host),
        ] {
            let records = tree.records(&client, len, bring).unwrap();
            for &(from, to, most) in ranges.iter().chain(&[(0, u64::MAX, usize::MAX)]) {
                let expected: Vec<(u64, Vec<u8>)> =
                    model.iter().filter(|(key, _)| (from..to).contains(*key)).take(most).map(|(k, r)| (*k, r.clone())).collect();
                let scan = records.read(&mut client, from..to, most, &policy).unwrap();
                let got: Vec<(u64, Vec<u8>)> = scan.iter().map(|(key, bytes)| (key, bytes.to_vec())).collect();
                prop_assert_eq!(&got, &expected, "{:?} {:?} {}..{}", bring, policy, from, to);
            }
        }
    }
}

/// More pairs than one pad holds: the search for the next pairs runs while the records of the first are in
/// flight.
#[test]
fn a_long_scan_takes_a_round_trip_for_each_pad_of_pairs() {
    let mut client = Rack::embedded_with(1, 16 << 20).unwrap().client("long").unwrap();
    let tree = tree(&mut client, 0..1000, 64, 8, Layout::Partitioned);
    let records = tree.records(&client, 64, Bring::Traversals).unwrap();
    records.read(&mut client, .., 1, &Policy::Offload).unwrap();
    let before = client.tally();
    let scan = records.read(&mut client, .., usize::MAX, &Policy::Offload).unwrap();
    assert!(scan.iter().enumerate().all(|(n, (key, bytes))| key == n as u64 && bytes == record(key, 64)));
    assert_eq!(scan.pairs().len(), 1000);
    // 248 pairs per pad, which leaves no room for records; 49 records per pad with their pairs; the last
    // eight come with their pairs.
    let pairs = 1000_u64.div_ceil(248);
    let pads = 4 * 248_u64.div_ceil(49);
    assert_eq!(client.tally().requests - before.requests, pairs + pads);
}
