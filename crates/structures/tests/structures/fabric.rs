//! A tree in the switches of a FatTree of k = 4 (Fat-B+Tree IV-A): a core, four pods of an aggregation switch
//! and two edges, a memory node at each edge. The results are compared with a plain map, and frames and
//! visits are counted: by traversals alone and in batches, by keyed READs, and with an agent that follows the
//! look-ups.

use farmem_client::{Client, Policy, Rack, Rng, VirtAddr};
use farmem_structures::blink_tree::{
    Extent, IndexAgent, IndexWatch, KeyedServers, Separators, Target, publish_fabric, withdraw_fabric,
};
use farmem_structures::{BLinkTree, Layout};
use std::collections::BTreeMap;

const PODS: u16 = 4;
const EDGES: u16 = 2;
const SWITCHES: usize = 13;
const SERVERS: u64 = 8;
const SEED: u64 = 4791;
/// Keys per leaf and children per inner node.
const FILL: usize = 7;
/// Six levels including the leaves, as even as possible: 7 to the 5th leaves would be one more.
const KEYS: u64 = 7 * 2_401;
/// Room for all inner nodes of the tree.
const EXTENT: Extent = Extent { ranges: 400, sets: 2, nodes: 400 };

/// Creates a tree of the keys 0, 2, 4 and so on, each with half of itself as its value.
fn scene() -> (Rack, Client, BLinkTree) {
    let rack = Rack::embedded_fat_tree(PODS, EDGES, 8 << 20).unwrap();
    let mut client = rack.client("fabric").unwrap();
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    let numbers = 0..usize::try_from(KEYS).unwrap();
    tree.load(&mut client, numbers.map(|n| (2 * n as u64, n as u64)), FILL).unwrap();
    tree.set_policy(Policy::Offload);
    // The memory nodes learn the program.
    (0..KEYS).step_by(97).for_each(|n| _ = tree.get(&mut client, 2 * n).unwrap());
    (rack, client, tree)
}

fn published(client: &mut Client, tree: &BLinkTree) -> farmem_index::TreeSection {
    let overview = client.overview().unwrap();
    let mut parts = tree.fabric_sections(client, &overview, EXTENT).unwrap();
    assert_eq!(parts.len(), SWITCHES, "each switch has its part");
    publish_fabric(client, &parts).unwrap();
    parts.pop().expect("the core's").1
}

/// PROTOCOL 16.10 to 16.14: a keyed READ goes up to the core and down by its pod and its edge, four switches
/// in all. With all inner nodes in them, the READ brings the leaf. The READ takes seven frames: host, rack's
/// switch, core, pod, edge, node, and the reply by the rack's switch. Without the index switches there are
/// four frames per level.
#[test]
fn keyed_reads_are_led_by_first_intermediate_and_last_switch() {
    let (rack, mut client, mut tree) = scene();
    let levels = u64::from(tree.height(&mut client).unwrap());
    let top = published(&mut client, &tree);
    let servers = KeyedServers::open(&mut client, &tree, &top).unwrap();
    let get = |client: &mut Client, tree: &BLinkTree, key: u64| {
        let before = (client.packets().0, rack.frames().unwrap());
        let value = servers.get(tree, client, key).unwrap();
        (value, client.packets().0 - before.0, rack.frames().unwrap() - before.1)
    };
    let keys = || (0..2 * KEYS).step_by(131);
    let (mut one, mut all) = (0, 0);
    for key in keys() {
        let (value, reads, frames) = get(&mut client, &tree, key);
        assert_eq!(value, (key % 2 == 0).then_some(key / 2), "key {key}");
        assert!((1..=levels).contains(&reads), "{reads} READs of key {key}");
        if reads == 1 {
            assert_eq!(frames, 7, "by four switches, and the answer by one");
            one += 1;
        }
        all += 1;
    }
    // A node above a border of two servers is in no switch below the core.
    assert!(one * 10 >= all * 9, "{one} of {all} look-ups were one READ");

    // The tree changes and the switches' sections grow old: the results still match the map.
    let mut model: BTreeMap<u64, u64> = (0..KEYS).map(|n| (2 * n, n)).collect();
    let mut rng = Rng::from_number(SEED);
    let most = u32::try_from(2 * KEYS).unwrap();
    for step in 0..3_000 {
        let key = u64::from(rng.below(most));
        if rng.chance(2, 3) {
            assert_eq!(tree.insert(&mut client, key, step).unwrap(), model.insert(key, step));
        } else {
            assert_eq!(tree.remove(&mut client, key).unwrap(), model.remove(&key));
        }
        let asked = u64::from(rng.below(most));
        assert_eq!(
            servers.get(&tree, &mut client, asked).unwrap(),
            model.get(&asked).copied(),
            "key {asked}"
        );
    }
    // Withdrawn: every READ begins at the root, on one memory node. The connections to the others are refused
    // there, and the results are the same.
    withdraw_fabric(&mut client, tree.tree().root).unwrap();
    for key in keys().step_by(7) {
        assert_eq!(servers.get(&tree, &mut client, key).unwrap(), model.get(&key).copied(), "key {key}");
    }
    servers.close(&mut client).unwrap();
}

/// PROTOCOL 16.6, 16.7: parallel sub-ranges share datagrams. The datagrams go up, split at the core, and
/// reach each server further down. The pairs are the same as without.
#[test]
fn look_ups_that_share_a_datagram_are_led() {
    let (_rack, mut client, tree) = scene();
    let visits = |client: &mut Client, separators: &Separators| {
        let (mut rng, before) = (Rng::from_number(SEED), client.tally());
        for _ in 0..60 {
            // Ranges over the keys of all servers, so that a batch has pairs for several.
            let first = u64::from(rng.below(u32::try_from(KEYS / 4).unwrap()));
            let last = first + 2 * KEYS / SERVERS * 3;
            let mut query = tree.range(first..=last).parallel_at(24, separators).unwrap();
            let mut found = Vec::new();
            while !query.is_at_end() {
                found.extend(query.next(&tree, client, 500).unwrap());
            }
            let expected: Vec<(u64, u64)> =
                (first.div_ceil(2)..=last / 2).filter(|n| *n < KEYS).map(|n| (2 * n, n)).collect();
            assert_eq!(found, expected, "{first} to {last}");
        }
        client.tally().iterations - before.iterations
    };
    let overview = client.overview().unwrap();
    let parts = tree.fabric_sections(&mut client, &overview, EXTENT).unwrap();
    let separators = Separators::published(&parts.last().unwrap().1);
    let from_the_root = visits(&mut client, &separators);
    publish_fabric(&mut client, &parts).unwrap();
    let led = visits(&mut client, &separators);
    // The inner nodes of each descent are saved.
    assert!(led < from_the_root && from_the_root - led > 60 * 24 * 2, "{led} visits for {from_the_root}");
}

/// An agent at index switches sees the counters of each switch, and moves frequently visited nodes into
/// tables too small for the tree. A watch sees the same.
#[test]
fn an_agent_follows_the_look_ups_in_all_tiers() {
    let (_rack, mut client, tree) = scene();
    // The fat root has room for the nodes above the borders of servers, which no switch below the core has.
    let extent = Extent { ranges: 55, sets: 2, nodes: 12 };
    let open = |client: &mut Client| BLinkTree::open(client, tree.address(), Layout::Partitioned).unwrap();
    let mut agent = IndexAgent::at(open(&mut client), extent, Target::FatTree).unwrap();
    let mut watch = IndexWatch::at(open(&mut client), extent, Target::FatTree).unwrap();
    let first = agent.step(&mut client).unwrap();
    assert!(first.published && first.switches.len() == SWITCHES, "{first:?}");
    let names: Vec<&str> = first.layers.iter().map(|layer| layer.name.as_str()).collect();
    assert!(
        names.starts_with(&["fat root", "aggregation set 1"]) && names.contains(&"edge set 1"),
        "{names:?}"
    );
    assert!(first.layers.iter().all(|layer| layer.entries <= 55.max(12 * layer.switches)), "{first:?}");
    // Look-ups of a few leaves on each server.
    let mut visits = Vec::new();
    for epoch in 0..8_u64 {
        let (mut rng, before) = (Rng::from_number(SEED + epoch), client.tally().iterations);
        for _ in 0..2_000 {
            let server = u64::from(rng.below(8)) * (KEYS / SERVERS);
            let key = server + 700 + u64::from(rng.below(60));
            assert_eq!(tree.get(&mut client, 2 * key).unwrap(), Some(key));
        }
        visits.push(client.tally().iterations - before);
        if epoch == 0 {
            watch.look(&mut client).unwrap();
        }
        let stepped = agent.step(&mut client).unwrap();
        assert!(stepped.hits.queries == 2_000, "each look-up once, at the core: {stepped:?}");
    }
    let (first, last) = (visits[0], visits[7]);
    assert!(last < first && last <= 2_000 * 3 / 2, "visits of 2,000 look-ups, epoch by epoch: {visits:?}");
    let seen = watch.look(&mut client).unwrap();
    assert!(seen.of_best() > 0.95 && seen.layers.len() > 2, "{seen:?}");
    agent.withdraw(&mut client).unwrap();
    let before = client.tally().iterations;
    tree.get(&mut client, 1_400).unwrap();
    assert_eq!(
        client.tally().iterations - before,
        u64::from(tree.height(&mut client).unwrap()),
        "from the root"
    );
}

/// A rack without a core switch is reported as such.
#[test]
fn a_rack_without_a_core_has_no_fat_tree() {
    let rack = Rack::embedded_with(1, 8 << 20).unwrap();
    let mut client = rack.client("fabric").unwrap();
    let tree = BLinkTree::create(&mut client, Layout::Partitioned).unwrap();
    assert_ne!(tree.tree().root, VirtAddr::NULL);
    let mut agent = IndexAgent::at(tree, EXTENT, Target::FatTree).unwrap();
    let error = agent.step(&mut client).unwrap_err().to_string();
    assert!(error.contains("core switch"), "{error}");
}
