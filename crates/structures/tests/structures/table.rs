//! The table of records: against plain maps with several programs, in round trips, beside writers between any
//! two of their verbs, and after programs that ended at each verb.

use farmem_client::{Client, Error, FarMemory, Policy, Rack};
use farmem_structures::heap::{Clock, Heap, HeapOptions};
use farmem_structures::table::{BYTES_MAX, Table, WHOLE_MAX};
use farmem_structures::{Layout, RecordTree};
use farmem_testkit::{Hooked, ended};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

/// A program: a client with a heap open, and a table in it.
struct Host {
    client: Client,
    heap: Heap,
    table: Table,
}

impl Host {
    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.table.get(&mut self.client, &mut self.heap, key).unwrap()
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        self.table.insert(&mut self.client, &mut self.heap, key, value).unwrap()
    }

    fn remove(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.table.remove(&mut self.client, &mut self.heap, key).unwrap()
    }

    fn all(&mut self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut all = BTreeMap::new();
        let mut iter = self.table.iter();
        while let Some(pairs) = iter.next(&mut self.client, &mut self.heap).unwrap() {
            for (key, value) in pairs {
                assert!(all.insert(key, value).is_none(), "each key once");
            }
        }
        all
    }
}

/// Creates programs that share one table with the fewest possible buckets: 32 per memory node.
fn hosts(nodes: u16, memory: u64, count: usize) -> Vec<Host> {
    let rack = Rack::embedded_with(nodes, memory).unwrap();
    let host = |n: usize| {
        let mut client = rack.client("table").unwrap();
        let (mut heap, table);
        if n == 0 {
            heap = Heap::create(&mut client, "heap", HeapOptions::default()).unwrap();
            table = Table::create(&mut client, &mut heap, "table", 1).unwrap();
        } else {
            heap = Heap::open(&mut client, "heap", HeapOptions::default()).unwrap();
            table = Table::open(&mut client, &mut heap, "table").unwrap();
        }
        Host { client, heap, table }
    };
    (0..count).map(host).collect()
}

/// Returns one of 300 keys for 32 buckets: chains of ten.
fn key(number: u16) -> Vec<u8> {
    let len = if number.is_multiple_of(7) { 1000 } else { 2 };
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

fn value(len: usize, byte: u8) -> Vec<u8> {
    vec![byte; len]
}

#[derive(Clone, Debug)]
enum Act {
    Insert(usize, u16, usize, u8),
    Remove(usize, u16),
    Get(usize, u16),
}

fn act() -> impl Strategy<Value = Act> {
    let len = || prop_oneof![6 => 1..=WHOLE_MAX, 3 => WHOLE_MAX..3000, 1 => 3000..=BYTES_MAX];
    let key = || prop_oneof![Just(0..20_u16), Just(0..300)].prop_flat_map(|keys| keys);
    prop_oneof![
        5 => (0..3_usize, key(), len(), any::<u8>()).prop_map(|(host, k, len, byte)| Act::Insert(host, k, len, byte)),
        2 => (0..3_usize, key()).prop_map(|(host, k)| Act::Remove(host, k)),
        2 => (0..3_usize, key()).prop_map(|(host, k)| Act::Get(host, k)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Each program finds what three programs store and remove.
    #[test]
    fn the_table_is_a_map(
        nodes in 1..4_u16,
        policy in prop_oneof![Just(Policy::Offload), Just(Policy::Host), Just(Policy::default())],
        acts in vec(act(), 1..200),
    ) {
        let mut hosts = hosts(nodes, 64 << 20, 3);
        hosts.iter_mut().for_each(|host| host.table.set_policy(policy));
        let mut model = BTreeMap::new();
        for act in acts {
            match act {
                Act::Insert(host, k, len, byte) => {
                    let old = hosts[host].insert(&key(k), &value(len, byte));
                    prop_assert_eq!(old, model.insert(key(k), value(len, byte)));
                }
                Act::Remove(host, k) => prop_assert_eq!(hosts[host].remove(&key(k)), model.remove(&key(k))),
                Act::Get(host, k) => prop_assert_eq!(hosts[host].get(&key(k)), model.get(&key(k)).cloned()),
            }
        }
        for host in &mut hosts {
            prop_assert_eq!(&host.all(), &model);
            for k in 0..300 {
                prop_assert_eq!(host.get(&key(k)), model.get(&key(k)).cloned());
            }
        }
    }
}

/// A look-up takes one round trip, whether the key exists or not, if the traversal copies key and value; one
/// more otherwise.
#[test]
fn round_trips() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let mut client = rack.client("trips").unwrap();
    // The clock stands still: no renewal disturbs the counts.
    let options = HeapOptions { clock: Clock::new(|| Duration::ZERO), ..HeapOptions::default() };
    let mut heap = Heap::create(&mut client, "heap", options).unwrap();
    let table = Table::create(&mut client, &mut heap, "table", 1 << 16).unwrap();
    let mut nothing = || Ok(());
    for (n, (len, gets)) in
        [(1, 1), (WHOLE_MAX - 4, 1), (WHOLE_MAX, 1), (1900, 1), (5000, 2), (BYTES_MAX, 2)].iter().enumerate()
    {
        let number = u32::try_from(n).unwrap();
        // The key existed before, so free blocks are at hand.
        table.insert(&mut client, &mut heap, &number.to_le_bytes(), &value(*len, 1)).unwrap();
        table.remove(&mut client, &mut heap, &number.to_le_bytes()).unwrap();
        for _ in 0..4 {
            heap.reclaim(&mut client).unwrap();
        }
        let mut memory = Hooked::new(&mut client, &mut nothing);
        let mut trips = |act: &mut dyn FnMut(&mut Hooked<'_>)| {
            let before = memory.trips;
            act(&mut memory);
            memory.trips - before
        };
        let key = number.to_le_bytes();
        let insert = trips(&mut |memory| {
            assert!(table.insert(memory, &mut heap, &key, &value(*len, 2)).unwrap().is_none())
        });
        assert_eq!(insert, 3, "look, write, swap: a value of {len}");
        let get = trips(&mut |memory| {
            assert_eq!(table.get(memory, &mut heap, &key).unwrap(), Some(value(*len, 2)))
        });
        assert_eq!(get, *gets, "a value of {len}");
        let missing =
            trips(&mut |memory| assert_eq!(table.get(memory, &mut heap, b"missing").unwrap(), None));
        assert_eq!(missing, 1);
        let remove = trips(&mut |memory| assert!(table.remove(memory, &mut heap, &key).unwrap().is_some()));
        assert_eq!(remove, gets + 1, "look, swap; marks come later, many together");
    }
}

/// Between any two verbs of a writer, another program finds the stable keys, and each change whole.
#[test]
fn a_reader_beside_a_writer_finds_what_stands_still() {
    let mut hosts = hosts(2, 64 << 20, 2);
    let [writer, reader] = hosts.as_mut_slice() else { unreachable!() };
    for k in 0..120 {
        writer.insert(&key(k), &value(10, 1));
    }
    let mut looks = 0;
    let mut before = || {
        looks += 1;
        for k in (0..120).filter(|k| k % 3 == 0).skip(looks % 4).step_by(4) {
            assert_eq!(reader.get(&key(k)), Some(value(10, 1)), "key {k} stands still");
        }
        for k in (1..120).step_by(3).skip(looks % 5).step_by(5) {
            if let Some(value) = reader.get(&key(k)) {
                assert!(value.iter().all(|byte| *byte == value[0]));
            }
        }
        if looks % 50 == 0 {
            let all = reader.all();
            assert!((0..120).step_by(3).all(|k| all.get(&key(k)) == Some(&value(10, 1))));
        }
        Ok(())
    };
    let Host { client, heap, table } = writer;
    let mut memory = Hooked::new(client, &mut before);
    for round in 2..5 {
        for k in (1..120).filter(|k| k % 3 != 0) {
            match (usize::from(k) + usize::from(round)) % 4 {
                0 => drop(table.remove(&mut memory, heap, &key(k)).unwrap()),
                n => drop(table.insert(&mut memory, heap, &key(k), &value(n * n * 150, round)).unwrap()),
            }
        }
    }
    assert!(looks > 500, "{looks} looks beside the writer");
}

/// Two programs change one bucket: with any action of the second between any two verbs of the first, both
/// changes persist.
#[test]
fn writers_at_once_lose_nothing() {
    let acts: [fn(&mut Host, &[u8]); 3] = [
        |host, key| drop(host.insert(key, &value(3, 9))),
        |host, key| drop(host.insert(key, &value(700, 9))),
        |host, key| drop(host.remove(key)),
    ];
    for (other, act) in acts.iter().enumerate() {
        for verb in 0..9 {
            let mut hosts = hosts(1, 64 << 20, 2);
            let [one, two] = hosts.as_mut_slice() else { unreachable!() };
            // All in chains of several: nodes before a changed one are created again.
            let mut model = BTreeMap::new();
            for k in 0..100 {
                one.insert(&key(k), &value(5, 1));
                model.insert(key(k), value(5, 1));
            }
            for k in 0..40 {
                let mut left = verb;
                let mut before = || {
                    left -= 1;
                    if left == -1 {
                        // The neighbours, and the key itself.
                        (40..60).for_each(|k| act(two, &key(k)));
                        act(two, &key(k));
                    }
                    Ok(())
                };
                let Host { client, heap, table } = one;
                let mut memory = Hooked::new(client, &mut before);
                table.insert(&mut memory, heap, &key(k), &value(300, 2)).unwrap();
                let ran = left < 0;
                for k in (40..60).filter(|_| ran) {
                    match other {
                        2 => drop(model.remove(&key(k))),
                        n => drop(model.insert(key(k), value([3, 700][n], 9))),
                    }
                }
                // The other program's change of the same key came before or after.
                let now = one.get(&key(k));
                let theirs = [Some(value(3, 9)), Some(value(700, 9)), None][other].clone();
                assert!(now == Some(value(300, 2)) || ran && now == theirs, "key {k} at {verb}");
                match now {
                    Some(now) => drop(model.insert(key(k), now)),
                    None => drop(model.remove(&key(k))),
                }
            }
            assert_eq!(two.all(), model, "at verb {verb}");
        }
    }
}

/// A writer ends at each of its verbs in turn: the table is whole, with the change or without, and the next
/// writer does not wait.
#[test]
fn a_writer_that_died_leaves_a_whole_table() {
    for verbs in 0..9 {
        for inserts in [true, false] {
            let mut hosts = hosts(1, 64 << 20, 2);
            let mut model: BTreeMap<_, _> = (0..100).map(|k| (key(k), value(5, 1))).collect();
            let [one, two] = hosts.as_mut_slice() else { unreachable!() };
            for (key, value) in &model {
                two.insert(key, value);
            }
            let mut left = verbs;
            let mut before = || {
                left -= 1;
                if left < 0 { Err(ended()) } else { Ok(()) }
            };
            let Host { client, heap, table } = one;
            let mut memory = Hooked::new(client, &mut before);
            let done = if inserts {
                table.insert(&mut memory, heap, &key(8), &value(600, 2)).is_ok()
            } else {
                table.remove(&mut memory, heap, &key(8)).is_ok()
            };
            let after = if inserts { Some(value(600, 2)) } else { None };
            let now = two.get(&key(8));
            assert!(now == after || !done && now == Some(value(5, 1)), "after {verbs} verbs");
            match now {
                Some(now) => drop(model.insert(key(8), now)),
                None => drop(model.remove(&key(8))),
            }
            for k in 0..120 {
                model.insert(key(k), value(9, 3));
                two.insert(&key(k), &value(9, 3));
            }
            assert_eq!(two.all(), model);
        }
    }
}

/// Keys that are replaced repeatedly take no more room, on either of two hosts.
#[test]
fn what_is_replaced_is_used_again() {
    let mut hosts = hosts(1, 64 << 20, 2);
    let allocated =
        |client: &mut Client| client.overview().unwrap().vmas.iter().map(|vma| vma.size).sum::<u64>();
    let round = |hosts: &mut Vec<Host>, n: usize| {
        for k in 0..50 {
            let len = 100 + (n * 37 + usize::from(k) * 91) % 4000;
            let [one, two] = hosts.as_mut_slice() else { unreachable!() };
            let (writer, other) =
                if (n + usize::from(k)).is_multiple_of(3) { (one, two) } else { (two, one) };
            writer.insert(&key(k), &value(len, 7));
            // The other program is active too, and holds nothing.
            other.heap.reclaim(&mut other.client).unwrap();
        }
    };
    (0..10).for_each(|n| round(&mut hosts, n));
    let settled = allocated(&mut hosts[0].client);
    (10..60).for_each(|n| round(&mut hosts, n));
    let grown = allocated(&mut hosts[0].client);
    assert!(grown <= 2 * settled, "{settled} bytes after 10 rounds, {grown} after 60");
}

/// Invalid keys and values; names; a destroyed table frees its memory.
#[test]
fn what_is_refused() {
    let mut hosts = hosts(2, 64 << 20, 2);
    let Host { client, heap, table } = &mut hosts[0];
    let told = |result: Result<Option<Vec<u8>>, Error>| result.unwrap_err().to_string();
    assert_eq!(told(table.get(client, heap, b"")), "a key has no bytes, and needs at least one");
    assert_eq!(told(table.insert(client, heap, b"k", b"")), "a value has no bytes, and needs at least one");
    assert!(told(table.insert(client, heap, &value(BYTES_MAX + 1, 1), b"v")).contains("65536"));
    assert!(told(table.insert(client, heap, b"k", &value(BYTES_MAX + 1, 1))).contains("65536"));
    let longest = value(BYTES_MAX, 4);
    assert_eq!(table.insert(client, heap, &longest, &longest).unwrap(), None);
    assert_eq!(table.get(client, heap, &longest).unwrap(), Some(longest.clone()));
    let exists = Table::create(client, heap, "table", 100).unwrap_err();
    assert!(matches!(exists, Error::Exists { .. }), "{exists}");
    assert!(matches!(Table::open(client, heap, "tabel"), Err(Error::Missing { .. })));
    assert!(matches!(
        RecordTree::open(client, heap, "table", Layout::Partitioned),
        Err(Error::Broken { .. })
    ));
    for k in 0..100 {
        table.insert(client, heap, &key(k), &value(2000, 1)).unwrap();
    }
    let Host { mut client, mut heap, table } = hosts.remove(0);
    table.destroy(&mut client, &mut heap).unwrap();
    assert!(matches!(Table::open(&mut client, &mut heap, "table"), Err(Error::Missing { .. })));
    let again = Table::create(&mut client, &mut heap, "table", 100).unwrap();
    assert_eq!(again.get(&mut client, &mut heap, &longest).unwrap(), None);

    // All structures, and then the heap: nothing is left in the rack.
    let mut tree = RecordTree::create(&mut client, &mut heap, "tree", Layout::Partitioned).unwrap();
    for k in 0..100 {
        tree.insert(&mut client, &mut heap, k, &value(500, 1)).unwrap();
    }
    tree.destroy(&mut client, &mut heap).unwrap();
    again.destroy(&mut client, &mut heap).unwrap();
    let Host { client: mut other, heap: left, .. } = hosts.remove(0);
    left.close(&mut other).unwrap();
    drop(other);
    heap.destroy(&mut client).unwrap();
    assert!(client.overview().unwrap().vmas.is_empty());
    assert!(client.nodes().len() == 2 && FarMemory::scratch_len_max(&client) > 1000);
}
