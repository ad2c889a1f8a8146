//! The tree of records: against a `BTreeMap` with several programs at once, in round trips, beside writers
//! that act between any two verbs of another, after programs that ended at each verb, and entered through the
//! switch.

use farmem_client::{Client, Error, Policy, Rack};
use farmem_structures::blink_tree::{Extent, publish};
use farmem_structures::heap::{Clock, Heap, HeapOptions};
use farmem_structures::{Layout, RecordTree};
use farmem_testkit::{Hooked, ended};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest value that a look-up copies over the embedded rack's path MTU: eight lines.
const COMES_ALONG: usize = 8 * 248 - 24;

/// A program with a heap and its tree open.
struct Host {
    client: Client,
    heap: Heap,
    tree: RecordTree,
}

impl Host {
    fn get(&mut self, key: u64) -> Option<Vec<u8>> {
        self.tree.get(&mut self.client, &mut self.heap, key).unwrap()
    }

    fn insert(&mut self, key: u64, value: &[u8]) -> bool {
        self.tree.insert(&mut self.client, &mut self.heap, key, value).unwrap()
    }

    fn remove(&mut self, key: u64) -> bool {
        self.tree.remove(&mut self.client, &mut self.heap, key).unwrap()
    }

    fn all(&mut self) -> BTreeMap<u64, Vec<u8>> {
        let all = self.tree.scan(&mut self.client, &mut self.heap, .., usize::MAX).unwrap();
        assert!(all.is_sorted_by(|(a, _), (b, _)| a < b), "each key once, in order");
        all.into_iter().collect()
    }
}

/// Creates programs that share one tree. Their clock stands still: no lease renewal disturbs the counts.
fn hosts(nodes: u16, count: usize) -> Vec<Host> {
    let rack = Rack::embedded_with(nodes, 64 << 20).unwrap();
    let host = |n: usize| {
        let options = HeapOptions { clock: Clock::new(|| Duration::ZERO), ..HeapOptions::default() };
        let mut client = rack.client("tree").unwrap();
        let (mut heap, tree);
        if n == 0 {
            heap = Heap::create(&mut client, "heap", options).unwrap();
            tree = RecordTree::create(&mut client, &mut heap, "tree", Layout::Partitioned).unwrap();
        } else {
            heap = Heap::open(&mut client, "heap", options).unwrap();
            tree = RecordTree::open(&mut client, &mut heap, "tree", Layout::Partitioned).unwrap();
        }
        Host { client, heap, tree }
    };
    (0..count).map(host).collect()
}

fn value(len: usize, byte: u8) -> Vec<u8> {
    vec![byte; len]
}

#[derive(Clone, Debug)]
enum Act {
    Insert(usize, u64, usize, u8),
    Remove(usize, u64),
    Look(usize, u64),
}

fn key() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..120_u64, 1 => any::<u64>(), 1 => u64::MAX - 3..=u64::MAX]
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 1..=300_usize, 3 => 300..=COMES_ALONG + 1, 1 => COMES_ALONG..=128 << 10]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        5 => (0..3_usize, key(), len(), any::<u8>()).prop_map(|(host, k, len, byte)| Act::Insert(host, k, len, byte)),
        3 => (0..3_usize, key()).prop_map(|(host, k)| Act::Remove(host, k)),
        3 => (0..3_usize, key()).prop_map(|(host, k)| Act::Look(host, k)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Each program finds what three programs store and remove, also after a bulk load and through the
    /// switch's index.
    #[test]
    fn the_tree_is_a_map(
        nodes in 1..4_u16,
        policy in prop_oneof![Just(Policy::Offload), Just(Policy::Host), Just(Policy::default())],
        loaded in btree_map(key(), (len(), any::<u8>()), 0..60),
        fill in 2..=14_usize,
        published: bool,
        acts in vec(act(), 1..120),
    ) {
        let mut hosts = hosts(nodes, 3);
        let mut model: BTreeMap<u64, Vec<u8>> =
            loaded.into_iter().map(|(key, (len, byte))| (key, value(len, byte))).collect();
        let Host { client, heap, tree } = &mut hosts[0];
        tree.load(client, heap, model.iter().map(|(&key, value)| (key, value)), fill).unwrap();
        if published {
            let section = tree.section(client, Extent::default()).unwrap();
            publish(client, &[section]).unwrap();
        }
        hosts.iter_mut().for_each(|host| host.tree.set_policy(policy));
        for act in acts {
            match act {
                Act::Insert(host, k, len, byte) => {
                    prop_assert_eq!(hosts[host].insert(k, &value(len, byte)), model.insert(k, value(len, byte)).is_some());
                }
                Act::Remove(host, k) => prop_assert_eq!(hosts[host].remove(k), model.remove(&k).is_some()),
                Act::Look(host, k) => {
                    let Host { client, heap, tree } = &mut hosts[host];
                    prop_assert_eq!(tree.get(client, heap, k).unwrap(), model.get(&k).cloned());
                    let some = tree.scan(client, heap, k.., 5).unwrap();
                    let expected = model.range(k..).take(5).map(|(k, v)| (*k, v.clone()));
                    prop_assert_eq!(some, expected.collect::<Vec<_>>());
                }
            }
        }
        for host in &mut hosts {
            prop_assert_eq!(&host.all(), &model);
            for (key, value) in &model {
                prop_assert_eq!(host.get(*key), Some(value.clone()));
            }
        }
    }
}

/// A writer of a tree ends at each of its verbs in turn. Readers find every key, and the next writer does not
/// wait.
#[test]
fn a_trees_writer_that_died_stops_nobody() {
    let mut ends = 0;
    for verbs in 0.. {
        let mut hosts = hosts(2, 2);
        // 14 keys fill the root: the next one splits it.
        (0..14).for_each(|k| assert!(!hosts[1].insert(k * 2, &value(300, 1))));
        let mut left = verbs;
        let mut before = || {
            left -= 1;
            if left < 0 { Err(ended()) } else { Ok(()) }
        };
        let Host { mut client, mut heap, mut tree } = hosts.remove(0);
        let done = tree.insert(&mut Hooked::new(&mut client, &mut before), &mut heap, 7, &value(300, 2));
        drop((client, heap, tree));
        let two = &mut hosts[0];
        (0..14).for_each(|k| assert_eq!(two.get(k * 2), Some(value(300, 1)), "after {verbs}"));
        let there = two.insert(7, &value(300, 3));
        assert!(there || done.is_err(), "what was answered is there");
        let all = two.all();
        assert_eq!(all.len(), 15, "each once, after {verbs}");
        assert_eq!(all.get(&7), Some(&value(300, 3)));
        ends += 1;
        if done.is_ok() {
            break;
        }
    }
    assert!(ends > 5, "the writer has more verbs than {ends}");
}

/// Between any two verbs of a writer, another program finds the stable keys, and each value whole.
#[test]
fn a_reader_beside_a_writer_finds_what_stands_still() {
    let mut hosts = hosts(2, 2);
    let [writer, reader] = hosts.as_mut_slice() else { unreachable!() };
    (0..90).for_each(|k| assert!(!writer.insert(k, &value(10, 1))));
    let mut looks = 0;
    let mut before = || {
        looks += 1;
        let still = (0..90).filter(|k| k % 3 == 0);
        still
            .skip(looks % 4)
            .step_by(4)
            .for_each(|k| assert_eq!(reader.get(k), Some(value(10, 1)), "key {k}"));
        for k in (1..90).step_by(3).skip(looks % 5).step_by(5) {
            if let Some(value) = reader.get(k) {
                assert!(value.iter().all(|byte| *byte == value[0]), "of one write");
            }
        }
        if looks % 50 == 0 {
            let all = reader.all();
            assert!((0..90).step_by(3).all(|k| all.get(&k) == Some(&value(10, 1))));
        }
        Ok(())
    };
    let Host { client, heap, tree } = writer;
    let mut memory = Hooked::new(client, &mut before);
    for round in 2..5 {
        for k in (1..90).step_by(3) {
            tree.insert(&mut memory, heap, k, &value(usize::from(round) * 400, round)).unwrap();
            tree.insert(&mut memory, heap, 90 + k * u64::from(round), &value(20, round)).unwrap();
            tree.remove(&mut memory, heap, k + 1).unwrap();
        }
    }
    assert!(looks > 500, "{looks} looks");
}

/// A look-up takes one round trip if the traversal copies the value, one more otherwise. A change costs the
/// record's write and the tree's.
#[test]
fn round_trips() {
    let mut hosts = hosts(2, 1);
    let Host { client, heap, tree } = &mut hosts[0];
    tree.set_policy(Policy::Offload);
    // Enough keys that no leaf is sparse, and none is full.
    (100..108).for_each(|key| _ = tree.insert(client, heap, key, b"stays").unwrap());
    let mut nothing = || Ok(());
    for (key, (len, gets)) in
        [(1, 1), (300, 1), (1000, 1), (COMES_ALONG, 1), (COMES_ALONG + 1, 2), (128 << 10, 2)]
            .into_iter()
            .enumerate()
    {
        let key = key as u64;
        // Free blocks of this size are at hand on either node, and the nodes know the programs.
        for _ in 0..2 {
            tree.insert(client, heap, key, &value(len, 1)).unwrap();
            tree.get(client, heap, key).unwrap();
            tree.remove(client, heap, key).unwrap();
        }
        (0..4).for_each(|_| heap.reclaim(client).unwrap());
        let mut memory = Hooked::new(client, &mut nothing);
        let mut trips = |act: &mut dyn FnMut(&mut Hooked<'_>)| {
            let before = memory.trips;
            act(&mut memory);
            memory.trips - before
        };
        let put = trips(&mut |memory| assert!(!tree.insert(memory, heap, key, &value(len, 2)).unwrap()));
        assert_eq!(put, 2, "the record of {len} bytes, and its word");
        let get = trips(&mut |memory| assert_eq!(tree.get(memory, heap, key).unwrap(), Some(value(len, 2))));
        assert_eq!(get, gets, "a value of {len} bytes");
        let missing = trips(&mut |memory| assert_eq!(tree.get(memory, heap, key + 1000).unwrap(), None));
        assert_eq!(missing, 1);
        let replaced = trips(&mut |memory| assert!(tree.insert(memory, heap, key, &value(len, 3)).unwrap()));
        assert_eq!(replaced, 3, "and a look at the old one's header");
        let removed = trips(&mut |memory| assert!(tree.remove(memory, heap, key).unwrap()));
        assert_eq!(removed, 2, "the word, and a look at the header");
    }
}

/// Look-ups in flight together bring their values, too. Longer or missing values return without.
#[test]
fn many_under_way() {
    let mut hosts = hosts(2, 1);
    let Host { client, heap, tree } = &mut hosts[0];
    let len = |key: u8| if key == 7 { COMES_ALONG + 1 } else { 100 * usize::from(key) + 1 };
    (0..16).for_each(|key| _ = tree.insert(client, heap, key.into(), &value(len(key), key)).unwrap());
    heap.pin(client).unwrap();
    let tickets: Vec<_> =
        (0..20_u8).map(|key| client.submit(tree.get_op(key.into(), vec![9; 3])).unwrap()).collect();
    for (key, ticket) in (0..).zip(tickets) {
        let brought = RecordTree::fetched(&client.wait(ticket).unwrap());
        let expected = (key < 16 && key != 7).then(|| value(len(key), key));
        assert_eq!(brought, expected, "key {key}");
    }
    heap.unpin();
}

/// Fat-B+Tree II: a look-up that the switch starts further down visits fewer nodes, and brings its value in
/// the same request.
#[test]
fn a_published_tree_is_entered_further_down() {
    let mut hosts = hosts(2, 2);
    let Host { client, heap, tree } = &mut hosts[0];
    let pairs = (0..7 * 343_u32).map(|n| (3 * u64::from(n), n.to_le_bytes().repeat(60)));
    tree.load(client, heap, pairs, 7).unwrap();
    let section = tree.section(client, Extent::default()).unwrap();
    hosts[1].tree.set_policy(Policy::Offload);
    let visits = |host: &mut Host| {
        let before = host.client.tally();
        for n in (0..2_400_u32).step_by(23) {
            assert_eq!(host.get(3 * u64::from(n)), Some(n.to_le_bytes().repeat(60)));
            assert_eq!(host.get(3 * u64::from(n) + 1), None);
        }
        let after = host.client.tally();
        assert_eq!(after.requests - before.requests, 210, "one each");
        after.iterations - before.iterations
    };
    // Both memory nodes learn the program.
    (0..2_400).step_by(97).for_each(|n| _ = hosts[1].get(3 * n));
    // The root, two levels and the leaf; and for every second one a value of 240 bytes in two lines.
    assert_eq!(visits(&mut hosts[1]), 210 * 4 + 105 * 2);
    publish(&mut hosts[0].client, &[section]).unwrap();
    assert_eq!(visits(&mut hosts[1]), 210 + 105 * 2, "the leaf, and the value");
}

/// Keys that do not ascend, invalid values and taken names fail. A destroyed tree frees its memory.
#[test]
fn what_is_refused() {
    let mut hosts = hosts(2, 1);
    let Host { client, heap, tree } = &mut hosts[0];
    let error = tree.load(client, heap, [(3, [1]), (3, [1])].into_iter(), 14).unwrap_err();
    assert!(matches!(error, Error::Key { key: 3, .. }), "{error}");
    assert_eq!(tree.get(client, heap, 3).unwrap(), None);
    assert!(matches!(tree.insert(client, heap, 3, b""), Err(Error::Empty { .. })));
    assert!(matches!(tree.insert(client, heap, 3, &value(200 << 10, 1)), Err(Error::TooLong { .. })));
    tree.load(client, heap, [(0, [7]), (u64::MAX, [8])].into_iter(), 14).unwrap();
    assert!(matches!(tree.load(client, heap, [(4, [7])].into_iter(), 14), Err(Error::Broken { .. })));
    assert_eq!(tree.get(client, heap, u64::MAX).unwrap(), Some(vec![8]));
    let exists = RecordTree::create(client, heap, "tree", Layout::Partitioned).unwrap_err();
    assert!(matches!(exists, Error::Exists { .. }), "{exists}");
    assert!(matches!(
        RecordTree::open(client, heap, "tere", Layout::Partitioned),
        Err(Error::Missing { .. })
    ));
    // A stray write replaces the word of a key by one that is no record's.
    let address = tree.tree().address();
    let mut words = farmem_structures::BLinkTree::open(client, address, Layout::Partitioned).unwrap();
    words.insert(client, 0, 31).unwrap();
    assert!(tree.get(client, heap, 0).is_err());
    words.insert(client, 0, address.0).unwrap();
    assert!(matches!(tree.get(client, heap, 0), Err(Error::Broken { .. })));
    words.remove(client, 0).unwrap();
    let Host { mut client, mut heap, tree } = hosts.remove(0);
    tree.destroy(&mut client, &mut heap).unwrap();
    assert!(matches!(
        RecordTree::open(&mut client, &mut heap, "tree", Layout::Partitioned),
        Err(Error::Missing { .. })
    ));
    heap.destroy(&mut client).unwrap();
    assert!(client.overview().unwrap().vmas.is_empty(), "nothing is left in the rack");
}
