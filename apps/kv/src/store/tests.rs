//! Tests of the store against plain maps, with so little local memory that most data are far.

use super::item::Head;
use super::{CHUNK, Far, Kind, NewExpiry, Store, Value};
use crate::failure::Failure;
use farmem::{NodeId, Rack, Rng};
use std::collections::BTreeMap;

mod shrink;
mod withheld;

/// Bytes of the store's local memory, which is the least.
const LOCAL: usize = 10 * CHUNK;

fn store(rack: &Rack) -> Store {
    let mut store = Store::new(Far::new(rack.client("kv").unwrap()), LOCAL, (1, 2), 7);
    store.settle();
    store
}

/// Returns a value that names its key and its version, of random length: a few bytes, a record, or several
/// chunks.
fn value(rng: &mut Rng, key: u32, version: usize) -> Vec<u8> {
    let len = match rng.below(40) {
        0 => 3 * CHUNK / 2 + rng.below(1_000) as usize,
        1..10 => rng.below(40_000) as usize,
        _ => rng.below(300) as usize,
    };
    let mut value = format!("{key}:{version}:").into_bytes();
    value.resize(value.len() + len, b'.');
    value
}

/// Strings come, grow and go. Each read returns the last value, wherever it is by then, and nothing stays in
/// the end.
#[test]
fn strings_beside_a_map() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let (mut store, mut model, mut rng) =
        (store(&rack), BTreeMap::<Vec<u8>, Vec<u8>>::new(), Rng::from_number(3));
    for step in 0..12_000 {
        let number = rng.below(400);
        let key = format!("key:{number}").into_bytes();
        match rng.below(10) {
            0..4 => {
                let value = value(&mut rng, number, step);
                store.set(0, &key, &value, NewExpiry::Never).unwrap();
                model.insert(key, value);
            }
            4 => assert_eq!(store.remove(0, &key), model.remove(&key).is_some()),
            _ => {
                assert_eq!(store.string(0, &key).unwrap(), model.get(&key).map(Vec::as_slice), "step {step}")
            }
        }
        store.settle();
        if step % 64 == 0 {
            store.tidy().unwrap();
        }
        // Reading ahead makes no difference, also when the keys change after it.
        if step % 32 == 0 {
            store.forget_ahead(true);
            for _ in 0..24 {
                store.want(0, format!("key:{}", rng.below(400)).as_bytes());
            }
            store.fetch_wanted();
        }
    }
    assert_eq!(store.len(0), model.len());
    let (here, far) = (store.log_ref().here_bytes(), store.log_ref().far_len());
    assert!(here <= LOCAL && far > 4, "{here} bytes here, {far} chunks far");
    assert!(
        store.stats.compacted > 0 && store.stats.fetched > 500 && store.stats.cache_hits > 50,
        "{:?}",
        store.stats
    );
    for (key, value) in &model {
        assert_eq!(store.string(0, key).unwrap(), Some(value.as_slice()));
    }
    store.clear(0);
    while store.is_reclaiming() {
        store.settle();
    }
    assert_eq!((store.len(0), store.log_ref().live(), store.live_bytes()), (0, 0, 0));
}

/// Values that are wanted together come in one round trip. A value that was read ahead is not returned after
/// its key has changed.
#[test]
fn wanted_values_share_a_round_trip() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let mut store = store(&rack);
    let (value, key) =
        (|number: u32| vec![number.to_le_bytes()[0]; 9_000], |number: u32| number.to_le_bytes());
    for number in 0..1_000 {
        store.set(0, &key(number), &value(number), NewExpiry::Never).unwrap();
        store.settle();
    }
    let counts = |store: &Store| (store.log_ref().far_ref().reads, store.log_ref().far_ref().rounds);
    let before = counts(&store);
    for number in 0..30 {
        assert!(store.want(0, &key(number)) || number > 25);
    }
    store.fetch_wanted();
    assert_eq!(counts(&store), (before.0 + 30, before.1 + 1));
    store.set(0, &key(3), b"changed", NewExpiry::Never).unwrap();
    assert!(store.remove(0, &key(4)));
    for number in 0..30 {
        let wanted = match number {
            3 => Some(b"changed".to_vec()),
            4 => None,
            _ => Some(value(number)),
        };
        assert_eq!(store.string(0, &key(number)).unwrap(), wanted.as_deref(), "{number}");
    }
    assert_eq!(counts(&store), (before.0 + 30, before.1 + 1), "nothing is read twice");
    store.forget_ahead(true);
    let (_, keys) = store.scan(0, 0, usize::MAX, None).unwrap();
    let (reads, rounds) = counts(&store);
    assert_eq!(keys.len(), 999);
    // Some thirty at once, because more bytes do not fit.
    assert!(reads > before.0 + 500 && rounds < before.1 + 50, "{reads} {rounds} {before:?}");
}

/// Far memory fills up in the middle of a command with many keys: the command has changed all of them or
/// none, also if keys come twice.
#[test]
fn several_strings_are_set_or_none() {
    let rack = Rack::embedded_with(1, 16 << 20).unwrap();
    let (mut store, mut rng) = (store(&rack), Rng::from_number(8));
    let mut model = BTreeMap::<Vec<u8>, Vec<u8>>::new();
    let (mut done, mut refused, mut in_the_middle) = (0, 0, 0);
    for step in 0..400_usize {
        let numbers: Vec<u32> = (0..1 + rng.below(24)).map(|_| rng.below(200)).collect();
        let pairs: Vec<(Vec<u8>, Vec<u8>)> = numbers
            .iter()
            .map(|&number| {
                let len = [10, 3_000, 60_000, 300_000][rng.below(4) as usize] * 3 / 2;
                let mut value = format!("{number}:{step}:").into_bytes();
                value.resize(len, b'.');
                (format!("key:{number}").into_bytes(), value)
            })
            .collect();
        let pairs: Vec<(&[u8], &[u8])> = pairs.iter().map(|(key, value)| (&**key, &**value)).collect();
        let live = store.log_ref().live();
        match store.set_all(0, &pairs) {
            Ok(()) => {
                model.extend(pairs.iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
                done += 1;
            }
            Err(failure) => {
                assert!(failure.reply().starts_with("OOM "), "{}", failure.reply());
                assert_eq!(store.log_ref().live(), live, "what was appended is forgotten");
                refused += 1;
                in_the_middle += u32::from(failure.reply().contains("far memory takes no more"));
            }
        }
        for (key, _) in &pairs {
            assert!(store.string(0, key).unwrap() == model.get(*key).map(Vec::as_slice), "step {step}");
        }
        assert_eq!(store.len(0), model.len());
        store.settle();
        for _ in 0..rng.below(30) {
            let key = format!("key:{}", rng.below(200)).into_bytes();
            assert_eq!(store.remove(0, &key), model.remove(&key).is_some());
        }
        store.settle();
    }
    assert!(
        done > 50 && refused > 50 && in_the_middle > 10,
        "{done} done, {refused} refused, {in_the_middle}"
    );
    for (key, value) in &model {
        assert_eq!(store.string(0, key).unwrap(), Some(value.as_slice()));
    }
}

/// A far record that is overwritten is known to be dead, and its neighbour is not before it is deleted.
#[test]
fn dead_far_records_are_known() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let mut store = store(&rack);
    let key = |number: u32| number.to_le_bytes();
    for number in 0..10_000_u32 {
        store.set(0, &key(number), &[b'v'; 1_000], NewExpiry::Never).unwrap();
        store.settle();
    }
    let [one, other] = [3, 4].map(|number| store.spot_of(0, &key(number)).unwrap());
    let may_be_wanted =
        |store: &Store| [one, other].map(|spot| store.log_ref().may_be_wanted(spot.chunk, spot.offset));
    assert!(store.would_wait(0, &key(3)) && store.would_wait(0, &key(4)));
    assert_eq!(may_be_wanted(&store), [true, true]);
    store.set(0, &key(3), b"new", NewExpiry::Never).unwrap();
    assert_eq!(may_be_wanted(&store), [false, true]);
    assert!(store.remove(0, &key(4)));
    assert_eq!(may_be_wanted(&store), [false, false]);
}

/// Far memory that was full has room again: half of it is live, the rest is overwritten as fast as possible,
/// and each write succeeds.
#[test]
fn dead_records_make_room() {
    let rack = Rack::embedded_with(1, 32 << 20).unwrap();
    let (mut store, mut rng) = (store(&rack), Rng::from_number(13));
    let value = |number: u32, step: u32| {
        let mut value = format!("{number}:{step}:").into_bytes();
        value.resize(1_000, b'v');
        value
    };
    let mut last = vec![0; 14_000];
    for step in 0..150_000_u32 {
        let number = if step < 14_000 { step } else { rng.below(14_000) };
        store.set(0, &number.to_le_bytes(), &value(number, step), NewExpiry::Never).unwrap();
        last[number as usize] = step;
        if step % 1_000 == 0 {
            store.settle();
        }
    }
    assert!(store.stats.compacted > 100, "{:?}", store.stats);
    for (number, &step) in (0_u32..).zip(&last) {
        assert!(store.string(0, &number.to_le_bytes()).unwrap() == Some(value(number, step).as_slice()));
    }
}

/// Full local memory has room again when keys are deleted. Collections in use leave it meanwhile.
#[test]
fn a_full_index_has_room_again() {
    let rack = Rack::embedded_with(1, 64 << 20).unwrap();
    let mut store = store(&rack);
    for number in 0..40_u32 {
        store
            .change(0, &[&b"hash"[..], &number.to_le_bytes()].concat(), Kind::Hash, true, |value| {
                let Value::Hash(hash) = value else { panic!("a hash was asked for") };
                ((), hash.insert(b"f"[..].into(), vec![b'v'; 20_000].into()).is_none())
            })
            .unwrap();
        store.settle();
    }
    let mut keys = 0_u32;
    let failure = loop {
        if let Err(failure) = store.set(0, &keys.to_le_bytes(), b"", NewExpiry::Never) {
            break failure;
        }
        keys += 1;
        store.settle();
    };
    assert!(
        failure.reply().starts_with("OOM local memory is full") && keys > 10_000,
        "{keys}: {}",
        failure.reply()
    );
    (0..keys).for_each(|number| assert!(store.remove(0, &number.to_le_bytes())));
    store.settle();
    store.set(0, b"again", b"there is room", NewExpiry::Never).unwrap();
    for number in 0..40_u32 {
        let value = store.collection(0, &[&b"hash"[..], &number.to_le_bytes()].concat(), Some(Kind::Hash));
        assert_eq!(value.unwrap().unwrap().len(), 1);
        store.settle();
    }
}

/// Collections leave local memory and are loaded again: each has its elements.
#[test]
fn collections_beside_maps() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let (mut store, mut model, mut rng) =
        (store(&rack), BTreeMap::<u32, BTreeMap<u32, usize>>::new(), Rng::from_number(4));
    for step in 0..30_000 {
        let (number, field) = (rng.below(300), rng.below(60));
        let (key, name) =
            (number.to_string().into_bytes(), format!("field:{field}:{}", "x".repeat(50)).into_bytes());
        if rng.below(4) > 0 {
            store
                .change(3, &key, Kind::Hash, true, |value| {
                    let Value::Hash(hash) = value else { panic!("a hash was asked for") };
                    hash.insert(name.into(), step.to_string().into_bytes().into());
                    ((), true)
                })
                .unwrap();
            model.entry(number).or_default().insert(field, step);
        } else {
            let has = store.collection(3, &key, Some(Kind::Hash)).unwrap().and_then(|value| match value {
                Value::Hash(hash) => {
                    hash.get(name.as_slice()).map(|text| String::from_utf8(text.to_vec()).unwrap())
                }
                _ => None,
            });
            let wanted = model.get(&number).and_then(|fields| fields.get(&field)).map(usize::to_string);
            assert_eq!(has, wanted, "step {step}");
        }
        store.settle();
    }
    assert!(store.live_bytes() < LOCAL, "{}", store.live_bytes());
    assert!(matches!(store.string(3, b"1"), Err(Failure::WrongType)));
    for (number, fields) in &model {
        let value = store.collection(3, number.to_string().as_bytes(), None).unwrap().unwrap();
        assert_eq!(value.len(), fields.len());
    }
}

/// A memory node is lost. Reads of its keys report that each time, and never "no such key". Other keys are as
/// before, and a key that is written again is whole.
#[test]
fn keys_of_a_lost_node_say_so() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let mut store = store(&rack);
    let value = |number: u32| format!("{number}:").repeat(2_000).into_bytes();
    for number in 0..4_000_u32 {
        store.set(0, &number.to_le_bytes(), &value(number), NewExpiry::Never).unwrap();
        store.settle();
    }
    rack.restart_node(NodeId(1)).unwrap();
    let (mut lost, mut right) = (Vec::new(), 0);
    for number in 0..4_000_u32 {
        match store.string(0, &number.to_le_bytes()) {
            Ok(Some(found)) => {
                assert_eq!(found, value(number));
                right += 1;
            }
            Ok(None) => panic!("{number} is there"),
            Err(failure) => {
                assert!(failure.reply().starts_with("FARMEMORY "), "{}", failure.reply());
                lost.push(number);
            }
        }
    }
    assert!(!lost.is_empty() && right > 0, "{} lost, {right} right", lost.len());
    let number = lost[0];
    assert!(store.string(0, &number.to_le_bytes()).is_err(), "it is told again");
    store.set(0, &number.to_le_bytes(), b"anew", NewExpiry::Never).unwrap();
    assert_eq!(store.string(0, &number.to_le_bytes()).unwrap(), Some(&b"anew"[..]));
    assert!(store.remove(0, &lost[1].to_le_bytes()));
    assert_eq!(store.string(0, &lost[1].to_le_bytes()).unwrap(), None);
    // A scan returns all other keys, and the lost ones can be dropped at once.
    let (_, keys) = store.scan(0, 0, usize::MAX, None).unwrap();
    assert_eq!(keys.len(), 4_000 - lost.len() + 1);
    assert_eq!((store.drop_lost(), store.len(0)), (lost.len() - 2, 4_000 - lost.len() + 1));
    assert!(keys.iter().all(|key| store.string(0, key).unwrap().is_some()));
}

/// A picture has each key as of its beginning, although keys change meanwhile.
#[test]
fn a_picture_is_of_one_moment() {
    let rack = Rack::embedded_with(2, 64 << 20).unwrap();
    let (mut store, mut rng) = (store(&rack), Rng::from_number(5));
    let mut model = BTreeMap::<Vec<u8>, Vec<u8>>::new();
    for round in 0..3_usize {
        for number in 0..1_500_u32 {
            let (key, value) = (format!("{round}:{number}").into_bytes(), value(&mut rng, number, round));
            store.set(1, &key, &value, NewExpiry::Never).unwrap();
            model.insert(key, value);
            store.settle();
        }
        store.begin_picture();
        let (moment, mut taken) = (model.clone(), BTreeMap::new());
        loop {
            let (bytes, last) = store.go_on_with_picture(50_000).unwrap();
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let key = super::picture::parse(&mut rest).unwrap();
                assert!(taken.insert(key.key.to_vec(), key.value.to_vec()).is_none(), "no key comes twice");
            }
            if last {
                break;
            }
            for _ in 0..20 {
                let number = rng.below(1_500);
                let key = format!("{}:{number}", rng.below(4)).into_bytes();
                if rng.below(3) == 0 {
                    assert_eq!(store.remove(1, &key), model.remove(&key).is_some());
                } else {
                    store.set(1, &key, b"changed", NewExpiry::Never).unwrap();
                    model.insert(key, b"changed".to_vec());
                }
            }
            store.settle();
        }
        assert!(taken == moment, "round {round}");
        assert_eq!(store.keys_taken(), moment.len() as u64);
    }
}

/// A key that expires is gone at its time, and not before.
#[test]
fn keys_end() {
    let rack = Rack::embedded_with(1, 32 << 20).unwrap();
    let mut store = store(&rack);
    store.set_now(1_000);
    for number in 0..100_i64 {
        store.set(0, &number.to_le_bytes(), b"value", NewExpiry::At(1_000 + number)).unwrap();
    }
    store.set_now(1_050);
    let there =
        (0..100_i64).filter(|number| store.string(0, &number.to_le_bytes()).unwrap().is_some()).count();
    assert_eq!((there, store.len(0)), (49, 49), "51 to 99");
    store.set_now(2_000);
    while store.len(0) > 0 {
        store.expire_slice();
    }
    assert_eq!(store.stats.expired, 100);
}

/// No number of a change is used twice over a restart, even if the item with the last one is gone.
#[test]
fn no_number_is_told_twice() {
    let rack = Rack::embedded_with(2, 32 << 20).unwrap();
    let mut before = store(&rack);
    before.set_now(1_000_000);
    let [kept, gone] = [before.next_cas(), before.next_cas()];
    before.set_now(1_000_005);
    let late = before.next_cas();
    assert!(kept < gone && gone < late && late >= 1_000_005_000, "{late}");
    // The snapshot has the first item alone.
    let rack = Rack::embedded_with(2, 32 << 20).unwrap();
    let mut after = store(&rack);
    after.set_now(1_000_006);
    let head = Head { cas: kept, ..Head::default() };
    after.set_item(0, b"k", head, b"v", NewExpiry::Never).unwrap();
    assert!(after.next_cas() > late);
}

/// With more data than the limit, the policy's keys are evicted, and no others.
#[test]
fn too_much_data_goes_by_the_policy() {
    let rack = Rack::embedded_with(2, 32 << 20).unwrap();
    let mut store = store(&rack);
    store.memory.data_max = 4 << 20;
    store.memory.policy = super::Policy::VolatileTtl;
    let mut gone = Vec::new();
    let mut refused = 0;
    for number in 0..9_000_u32 {
        let ends =
            if number % 2 == 0 { NewExpiry::At(i64::from(number) + 1_000_000) } else { NewExpiry::Never };
        match store.evict(&mut |db, key| {
            gone.push((db, key.to_vec()));
            Ok(())
        }) {
            Ok(()) => store.set(0, &number.to_le_bytes(), &[b'v'; 1_000], ends).unwrap(),
            Err(failure) => {
                assert!(failure.reply().starts_with("OOM "));
                refused += 1;
            }
        }
        store.settle();
    }
    assert!(!gone.is_empty() && gone.iter().all(|(_, key)| key[0] % 2 == 0), "only what ends goes");
    assert!(refused > 0, "what does not end stays");
    assert!(store.data_bytes() <= (4 << 20) + 4_096, "{}", store.data_bytes());
}
