//! The hash table against `BTreeMap`; a reader between any two writes of a writer; the table's lock.

use farmem_client::task::carry_out;
use farmem_client::{Error, Op, Policy, Rack};
use farmem_structures::hash_table::{HashTable, Key, Spread, VALUE_LEN, Value};
use farmem_testkit::ObservedMemory;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn key(number: u64) -> Key {
    Key::of(&number.to_le_bytes())
}

/// Returns a value whose bytes all carry its number, so that a torn value is detected.
fn value(number: u8) -> Value {
    [number; VALUE_LEN]
}

#[derive(Clone, Debug)]
enum Act {
    Insert(u64, u8),
    Update(u64, u8),
    Remove(u64),
    Reclaim,
    Find(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let key = || 0..60_u64;
    prop_oneof![
        6 => (key(), any::<u8>()).prop_map(|(k, v)| Act::Insert(k, v)),
        2 => (key(), any::<u8>()).prop_map(|(k, v)| Act::Update(k, v)),
        5 => key().prop_map(Act::Remove),
        1 => Just(Act::Reclaim),
        3 => key().prop_map(Act::Find),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_table_is_a_map(
        nodes in prop_oneof![Just(1_u16), Just(2), Just(3)],
        spread in prop_oneof![Just(Spread::Partitioned), Just(Spread::Scattered)],
        policy in prop_oneof![Just(Policy::Offload), Just(Policy::Host), Just(Policy::default())],
        loaded in 0..40_u64,
        acts in vec(act(), 1..120),
    ) {
        let mut client = Rack::embedded_with(nodes, 16 << 20).unwrap().client("map").unwrap();
        let mut table = HashTable::create(&mut client, 40, 4, spread).unwrap();
        table.set_policy(policy);
        table.load(&mut client, (0..loaded).map(|n| (key(n), value(7))), &mut |_, _| {}).unwrap();
        let mut model: BTreeMap<u64, Value> = (0..loaded).map(|n| (n, value(7))).collect();
        for act in acts {
            match act {
                Act::Insert(k, v) => {
                    table.insert(&mut client, key(k), &value(v)).unwrap();
                    model.insert(k, value(v));
                }
                Act::Update(k, v) => {
                    let there = table.update(&mut client, key(k), &value(v)).unwrap();
                    let old = model.get_mut(&k).map(|old| *old = value(v));
                    prop_assert_eq!(there, old.is_some());
                }
                Act::Remove(k) => prop_assert_eq!(table.remove(&mut client, key(k)).unwrap(), model.remove(&k)),
                Act::Reclaim => table.reclaim(),
                Act::Find(k) => prop_assert_eq!(table.find(&mut client, key(k)).unwrap(), model.get(&k).copied()),
            }
        }
        for k in 0..60 {
            prop_assert_eq!(table.find(&mut client, key(k)).unwrap(), model.get(&k).copied());
            prop_assert_eq!(table.find_by_reads(&mut client, key(k)).unwrap(), model.get(&k).copied());
        }
        table.destroy(&mut client).unwrap();
    }
}

/// Before and after each write of the writer, another client finds every stable key with its value.
#[test]
fn a_reader_beside_a_writer_finds_what_stands_still() {
    for spread in [Spread::Partitioned, Spread::Scattered] {
        let rack = Rack::embedded_with(2, 16 << 20).unwrap();
        let (mut writer, mut reader) = (rack.client("beside").unwrap(), rack.client("beside").unwrap());
        let mut table = HashTable::create(&mut writer, 64, 2, spread).unwrap();
        table.load(&mut writer, (0..12).map(|n| (key(n), value(1))), &mut |_, _| {}).unwrap();
        let stays: Vec<u64> = (0..12).filter(|n| n % 3 == 0).collect();
        // The look-ups are operations, so the reader needs no handle of the table.
        let ops: Vec<Op> = (0..40).map(|n| table.find_op(key(n), Vec::new())).collect();
        let mut find = |n: u64| -> Option<Value> {
            let op = ops[usize::try_from(n).unwrap()].clone();
            HashTable::found(&carry_out(&mut reader, op, &Policy::Offload))
        };
        let mut looked = 0;
        let mut look = || {
            for &n in &stays {
                assert_eq!(find(n), Some(value(1)), "key {n} stands still");
            }
            for n in 0..40 {
                if let Some(found) = find(n) {
                    assert!(found.iter().all(|&byte| byte == found[0]), "half a value: {found:?}");
                }
            }
            looked += 1;
        };
        let mut memory = ObservedMemory::new(&mut writer, &mut look);
        for n in (0..12).filter(|n| n % 3 != 0) {
            table.update(&mut memory, key(n), &value(2)).unwrap();
        }
        for n in 12..30 {
            table.insert(&mut memory, key(n), &value(3)).unwrap();
        }
        for n in (0..30).filter(|n| *n >= 12 || n % 3 != 0) {
            assert!(table.remove(&mut memory, key(n)).unwrap().is_some());
        }
        for n in 30..40 {
            table.insert(&mut memory, key(n), &value(4)).unwrap();
        }
        assert!(looked > 100, "{looked} looks beside the writer");
    }
}

/// A table that was filled and emptied loads like a new one; a table with keys refuses to load.
#[test]
fn an_emptied_table_is_loaded() {
    for spread in [Spread::Partitioned, Spread::Scattered] {
        let mut client = Rack::embedded_with(2, 16 << 20).unwrap().client("emptied").unwrap();
        let mut table = HashTable::create(&mut client, 64, 2, spread).unwrap();
        for n in 0..9 {
            table.insert(&mut client, key(n), &value(1)).unwrap();
        }
        let refused = table.load(&mut client, [(key(50), value(1))].into_iter(), &mut |_, _| {}).unwrap_err();
        assert!(matches!(refused, Error::Broken { what: "an empty hash table", .. }), "{refused}");
        for n in 0..9 {
            assert_eq!(table.remove(&mut client, key(n)).unwrap(), Some(value(1)));
        }
        // Nodes return in a different order than they were allocated.
        table.reclaim();
        table.load(&mut client, (20..50).map(|n| (key(n), value(2))), &mut |_, _| {}).unwrap();
        for n in 0..60 {
            let expected = (20..50).contains(&n).then(|| value(2));
            assert_eq!(table.find(&mut client, key(n)).unwrap(), expected, "key {n}, {spread:?}");
        }
    }
}

/// A load that finds no room leaves the table empty, and the next load finds all of the room.
#[test]
fn a_load_without_room_leaves_an_empty_table() {
    for spread in [Spread::Partitioned, Spread::Scattered] {
        let mut client = Rack::embedded_with(2, 16 << 20).unwrap().client("full").unwrap();
        let mut table = HashTable::create(&mut client, 64, 2, spread).unwrap();
        for _ in 0..2 {
            let many = (0..100_000).map(|n| (key(n), value(1)));
            let refused = table.load(&mut client, many, &mut |_, _| {}).unwrap_err();
            assert!(matches!(refused, Error::Full { .. }), "{refused}");
            assert_eq!(table.find(&mut client, key(3)).unwrap(), None);
        }
        table.load(&mut client, (20..50).map(|n| (key(n), value(2))), &mut |_, _| {}).unwrap();
        for n in 0..60 {
            let expected = (20..50).contains(&n).then(|| value(2));
            assert_eq!(table.find(&mut client, key(n)).unwrap(), expected, "key {n}, {spread:?}");
        }
    }
}

/// Only one writer holds the lock; a writer whose lock was broken gets an error.
#[test]
fn the_lock_is_one_writers() {
    let mut client = Rack::embedded_with(2, 16 << 20).unwrap().client("lock").unwrap();
    let mut table = HashTable::create(&mut client, 10, 1, Spread::Partitioned).unwrap();
    assert_eq!(table.lock().version(&mut client).unwrap(), 0);
    assert!(table.lock().try_lock(&mut client).unwrap());
    for n in 0..10 {
        table.insert(&mut client, key(n), &value(1)).unwrap();
    }
    assert_eq!(table.lock().version(&mut client).unwrap(), 1, "no node lies on the lock word");
    assert!(table.lock().break_lock(&mut client, 1).unwrap());
    assert!(!table.lock().unlock(&mut client).unwrap());
    assert_eq!(table.find(&mut client, key(3)).unwrap(), Some(value(1)));
}
