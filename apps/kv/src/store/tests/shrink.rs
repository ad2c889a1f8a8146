//! Tests of memory that is freed when keys are removed (by flushes, by expiry, one by one), and of the length of the
//! slices.

use super::super::reclaim;
use super::{LOCAL, store};
use crate::store::{Kind, NewExpiry, Store, Value};
use farmem::{Rack, Rng};
use std::collections::BTreeMap;

fn key(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

/// Strings and collections of several databases are read, written and flushed at random, and compared with plain
/// maps, while slices of flushed data are freed. Every read agrees with the maps, and no memory stays at the end.
#[test]
fn flushed_databases_beside_maps() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let (mut store, mut rng) = (store(&rack), Rng::from_number(21));
    let mut model = [BTreeMap::<u32, Vec<u8>>::new(), BTreeMap::new()];
    let mut hashes = [BTreeMap::<u32, usize>::new(), BTreeMap::new()];
    for step in 0..60_000_u32 {
        let (db, number) = (u8::from(rng.below(4) == 0), rng.below(3_000));
        let (strings, hashes) = (&mut model[usize::from(db)], &mut hashes[usize::from(db)]);
        match rng.below(4_000) {
            0 => {
                store.clear(db);
                strings.clear();
                hashes.clear();
                assert_eq!(store.len(db), 0);
            }
            1..1_200 => {
                let mut value = format!("{number}:{step}").into_bytes();
                value.resize(100 + rng.below(3_000) as usize, b'.');
                store.set(db, &key(number), &value, NewExpiry::Never).unwrap();
                strings.insert(number, value);
            }
            1_200..1_300 => {
                let name = [&b"hash:"[..], &key(number % 50)].concat();
                let change = |value: &mut Value| {
                    let Value::Hash(hash) = value else { panic!("a hash was asked for") };
                    hash.insert(key(step)[..].into(), vec![b'v'; 500].into());
                    ((), true)
                };
                store.change(db, &name, Kind::Hash, true, change).unwrap();
                *hashes.entry(number % 50).or_default() += 1;
            }
            1_300..1_400 => {
                let name = [&b"hash:"[..], &key(number % 50)].concat();
                let len = store.collection(db, &name, Some(Kind::Hash)).unwrap().map(Value::len);
                assert_eq!(len, hashes.get(&(number % 50)).copied(), "step {step}");
            }
            _ => {
                let has = store.string(db, &key(number)).unwrap();
                assert!(has == strings.get(&number).map(Vec::as_slice), "step {step}");
            }
        }
        if step % 8 == 0 {
            store.settle();
        }
        if step % 64 == 0 {
            store.tidy().unwrap();
        }
    }
    assert!(store.stats.cache_hits > 50 && store.stats.compacted > 10, "{:?}", store.stats);
    [0, 1].into_iter().for_each(|db| store.clear(db));
    while store.is_reclaiming() {
        store.settle();
    }
    assert_eq!((store.log_ref().live(), store.log_ref().far_len(), store.live_bytes()), (0, 0, 0));
    assert_eq!(store.index_bytes(), super::store(&rack).index_bytes());
}

/// A flush of many keys takes as many turns as it has slices, and no slice frees more than its bound. Between them
/// the database accepts new keys, and another database is unchanged.
#[test]
fn a_flush_is_freed_in_slices() {
    const KEYS: u32 = 12_000;
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let mut store = store(&rack);
    for number in 0..KEYS {
        store.set(0, &key(number), &[b'v'; 100], NewExpiry::At(1 << 50)).unwrap();
        store.settle();
    }
    store.set(1, b"other", b"stays", NewExpiry::Never).unwrap();
    let of_one = store.log_ref().live() / (KEYS as usize);
    store.clear(0);
    let (mut turns, mut before) = (0_u32, store.log_ref().live());
    while store.is_reclaiming() {
        store.set(0, b"new", &turns.to_le_bytes(), NewExpiry::Never).unwrap();
        store.settle();
        let live = store.log_ref().live();
        assert!(before - live <= (reclaim::SLICE_ENTRIES + 2) * of_one * 9 / 8, "{before} {live}");
        assert_eq!(store.string(0, b"new").unwrap(), Some(&turns.to_le_bytes()[..]));
        (turns, before) = (turns + 1, live);
    }
    assert!(turns as usize >= KEYS as usize / reclaim::SLICE_ENTRIES, "{turns} turns");
    assert_eq!((store.len(0), store.string(1, b"other").unwrap()), (1, Some(&b"stays"[..])));
}

/// A key takes some 30 bytes of the index, and one that expires some 60. Expired keys are removed in slices without a
/// command, and the bytes of the index are freed, to the last one.
#[test]
fn keys_that_expired_give_their_bytes_back() {
    const KEYS: u32 = 20_000;
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let mut store = store(&rack);
    let empty = store.index_bytes();
    let of_one = |store: &Store| (store.index_bytes() - empty) as f64 / f64::from(KEYS);
    for number in 0..KEYS {
        store.set(0, &key(number), b"v", NewExpiry::Never).unwrap();
        store.settle();
    }
    let without = of_one(&store);
    (0..KEYS).for_each(|number| assert!(store.set_end(0, &key(number), Some(1_000)).unwrap()));
    let with = of_one(&store);
    assert!((24.0..40.0).contains(&without) && (48.0..80.0).contains(&with), "{without} {with}");
    store.set_now(1_000);
    let mut slices = 0;
    while store.len(0) > 0 {
        let before = store.len(0);
        store.expire_slice();
        assert!(before - store.len(0) <= 512, "a slice removed {}", before - store.len(0));
        slices += 1;
        assert!(slices < 1_000, "{} keys stay", store.len(0));
    }
    assert!(slices >= KEYS / 512, "{slices} slices");
    assert_eq!((store.index_bytes(), store.stats.expired), (empty, u64::from(KEYS)));
}

/// Expiry times count: if local memory is full a key gets none, and it gets one again after keys were removed. A
/// write after a flush has room at once.
#[test]
fn times_of_expiry_do_not_exceed_the_limit() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let mut store = store(&rack);
    let mut keys = 0;
    while store.set(0, &key(keys), b"", NewExpiry::Never).is_ok() {
        keys += 1;
        store.settle();
    }
    let full = store.index_bytes();
    for number in 0..keys {
        let refused = store.set_end(0, &key(number), Some(1 << 50)).unwrap_err();
        assert!(refused.reply().starts_with("OOM local memory is full"), "{}", refused.reply());
    }
    let refused = store.set(0, &key(0), b"", NewExpiry::At(1 << 50)).unwrap_err();
    assert!(refused.reply().starts_with("OOM "), "{}", refused.reply());
    assert!(store.index_bytes() == full && full < LOCAL, "{full}");
    // Keys go one by one.
    (0..keys / 2).for_each(|number| assert!(store.remove(0, &key(number))));
    store.settle();
    assert!(store.set_end(0, &key(keys - 1), Some(1 << 50)).unwrap());
    while store.set(0, &key(keys), b"", NewExpiry::At(1 << 50)).is_ok() {
        keys += 1;
        store.settle();
    }
    store.clear(0);
    store.set(0, b"new", b"there is room", NewExpiry::At(1 << 50)).unwrap();
}

/// Many small collections are used, then all but one go: their places go too, and the one that stays is found.
#[test]
fn places_of_collections_go_with_them() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let mut store = store(&rack);
    for number in 0..4_000_u32 {
        let change = |value: &mut Value| {
            let Value::Hash(hash) = value else { panic!("a hash was asked for") };
            hash.insert(b"field"[..].into(), key(number)[..].into());
            ((), true)
        };
        store.change(0, &key(number), Kind::Hash, true, change).unwrap();
    }
    let places = store.live.capacity();
    assert!(places >= 4_000, "{places}");
    (0..3_999).for_each(|number| assert!(store.remove(0, &key(number))));
    store.settle();
    assert!(store.live.capacity() < 10, "{}", store.live.capacity());
    let Some(Value::Hash(hash)) = store.collection(0, &key(3_999), Some(Kind::Hash)).unwrap() else {
        panic!("the hash is there")
    };
    assert_eq!(hash.get(&b"field"[..]).map(|text| &**text), Some(&key(3_999)[..]));
}
