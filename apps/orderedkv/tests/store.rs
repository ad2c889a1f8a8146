//! The store on a rack in this process: against a `BTreeMap`, with several programs, and YCSB's workloads
//! with every answer checked.

use farmem::{Client, Rack};
use farmem_orderedkv::{
    Access, KEY_LEN_MAX, KeyKind, Mix, Settings, Store, StoreError, VALUE_LEN_MAX, serve,
};
use farmem_workload::{Keys, Load, RunAt};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn rack(nodes: u16) -> Rack {
    Rack::embedded_with(nodes, 256 << 20).unwrap()
}

fn texts(client: &mut Client) -> Store {
    Store::create(client, "texts", KeyKind::Text, Access::Write).unwrap()
}

#[derive(Clone, Debug)]
enum Act {
    Set(Vec<u8>, usize),
    Remove(Vec<u8>),
    Get(Vec<u8>),
    Range(Option<Vec<u8>>, Option<Vec<u8>>, usize),
}

/// Many keys share eight or sixteen bytes, some are prefixes of others, and some contain zeros.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let end = prop_oneof![Just(vec![]), vec(prop_oneof![Just(0), Just(1), Just(b'a'), any::<u8>()], 0..5)];
    (prop_oneof![Just(""), Just("customer"), Just("customer/account"), Just("custom")], end)
        .prop_map(|(begin, end)| [begin.as_bytes(), &end].concat())
}

fn act() -> impl Strategy<Value = Act> {
    let bound = || prop_oneof![1 => Just(None), 3 => key().prop_map(Some)];
    prop_oneof![
        5 => (key(), 0..600_usize).prop_map(|(key, len)| Act::Set(key, len)),
        2 => key().prop_map(Act::Remove),
        2 => key().prop_map(Act::Get),
        2 => (bound(), bound(), 0..40_usize).prop_map(|(a, b, most)| Act::Range(a, b, most)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Texts with any common prefixes, in byte order, also for a program that opens the store later and knows
    /// no layer.
    #[test]
    fn the_store_is_a_map(acts in vec(act(), 1..80)) {
        let rack = rack(2);
        let (mut client, mut other) = (rack.client("map").unwrap(), rack.client("map").unwrap());
        let mut store = texts(&mut client);
        let mut model = BTreeMap::<Vec<u8>, Vec<u8>>::new();
        for (n, act) in acts.into_iter().enumerate() {
            match act {
                Act::Set(key, len) => {
                    let value = vec![u8::try_from(n % 251).unwrap(); len];
                    prop_assert_eq!(store.set(&mut client, &key, &value).unwrap(), model.insert(key, value).is_some());
                }
                Act::Remove(key) => {
                    prop_assert_eq!(store.remove(&mut client, &key).unwrap(), model.remove(&key).is_some());
                }
                Act::Get(key) => prop_assert_eq!(store.get(&mut client, &key).unwrap(), model.get(&key).cloned()),
                Act::Range(first, last, most) => {
                    let found = store.range(&mut client, first.as_deref(), last.as_deref(), most).unwrap();
                    let within = |key: &Vec<u8>| first.as_ref().is_none_or(|first| first <= key)
                        && last.as_ref().is_none_or(|last| key <= last);
                    let expected: Vec<_> = model.iter().filter(|(key, _)| within(key)).take(most)
                        .map(|(key, value)| (key.clone(), value.clone())).collect();
                    prop_assert_eq!(found, expected);
                }
            }
        }
        let mut reader = Store::open(&mut other, "texts", None, Access::Read).unwrap();
        prop_assert_eq!(reader.kind(), KeyKind::Text);
        for (key, value) in &model {
            let found = reader.get(&mut other, key).unwrap();
            prop_assert_eq!(found.as_ref(), Some(value));
        }
        let all: BTreeMap<_, _> = reader.range(&mut other, None, None, usize::MAX).unwrap().into_iter().collect();
        prop_assert_eq!(&all, &model);
        reader.close(&mut other).unwrap();
        // Named memory stays while a program has it open.
        drop(other);
        store.destroy(&mut client).unwrap();
        prop_assert_eq!(client.overview().unwrap().vmas.len(), 0, "nothing stays behind");
    }
}

/// A look-up of a text that shares sixteen bytes with others is one request once the program knows the
/// layers; so is each look-up of a number.
#[test]
fn a_look_up_begins_at_the_deepest_layer() {
    let mut client = rack(1).client("layers").unwrap();
    let mut store = texts(&mut client);
    let keys: Vec<String> = (0..200).map(|n| format!("customer/account/{n:06}")).collect();
    keys.iter().for_each(|key| assert!(!store.set(&mut client, key.as_bytes(), b"value").unwrap()));
    assert_eq!(store.trees().map(|(at, _)| at).max(), Some(2));
    let requests = |store: &mut Store, client: &mut Client, key: &str| {
        let before = client.tally().requests;
        assert_eq!(store.get(client, key.as_bytes()).unwrap().as_deref(), Some(&b"value"[..]));
        client.tally().requests - before
    };
    assert_eq!(requests(&mut store, &mut client, &keys[77]), 1);
    store.close(&mut client).unwrap();
    let mut again = texts(&mut client);
    assert_eq!(requests(&mut again, &mut client, &keys[78]), 3, "two layers are come to know");
    assert_eq!(requests(&mut again, &mut client, &keys[79]), 1);
    let mut numbers = Store::create(&mut client, "numbers", KeyKind::I64, Access::Write).unwrap();
    (-50..50).for_each(|n| assert!(!numbers.set(&mut client, n.to_string().as_bytes(), b"value").unwrap()));
    assert_eq!(requests(&mut numbers, &mut client, "-17"), 1);
    let found = numbers.range(&mut client, Some(b"-3"), Some(b"2"), 10).unwrap();
    let found: Vec<String> = found.into_iter().map(|(key, _)| String::from_utf8(key).unwrap()).collect();
    assert_eq!(found, ["-3", "-2", "-1", "0", "1", "2"]);
    assert_eq!(numbers.range(&mut client, Some(b"2"), Some(b"-3"), 10).unwrap(), [], "l > r has no keys");
}

/// A store of texts has one writer; numbers have several. Refusals state the reason.
#[test]
fn what_is_refused() {
    let rack = rack(1);
    let (mut one, mut two) = (rack.client("refused").unwrap(), rack.client("refused").unwrap());
    let missing = Store::open(&mut one, "none", None, Access::Read).unwrap_err().to_string();
    assert!(missing.contains("\"none\""), "{missing}");
    let mut store = texts(&mut one);
    let locked = Store::create(&mut two, "texts", KeyKind::Text, Access::Write).unwrap_err();
    assert!(matches!(locked, StoreError::Locked(_)) && locked.remedy().contains("--take-over"));
    assert!(locked.to_string().contains("at host 1 ("), "{locked}");
    let kind = Store::create(&mut two, "texts", KeyKind::U64, Access::Write).unwrap_err().to_string();
    assert!(kind.contains("text of up to 512 bytes"), "{kind}");
    let mut reader = Store::open(&mut two, "texts", None, Access::Read).unwrap();
    assert!(matches!(reader.set(&mut two, b"key", b"value"), Err(StoreError::ReadOnly)));
    let long = vec![b'x'; KEY_LEN_MAX];
    store.set(&mut one, &long, &vec![7; VALUE_LEN_MAX]).unwrap();
    assert_eq!(reader.get(&mut two, &long).unwrap(), Some(vec![7; VALUE_LEN_MAX]));
    assert!(matches!(store.set(&mut one, &[b'x'; KEY_LEN_MAX + 1], b""), Err(StoreError::Key(_))));
    assert!(matches!(
        store.set(&mut one, b"key", &vec![7; VALUE_LEN_MAX + 1]),
        Err(StoreError::Value(65_537))
    ));
    // The writer hangs: the next program learns what to do, and does it. The old writer's later write fails
    // and does not count.
    let write = |client: &mut Client, access| Store::create(client, "texts", KeyKind::Text, access);
    assert!(matches!(write(&mut two, Access::Write), Err(StoreError::Locked(_))));
    let mut next = write(&mut two, Access::TakeOver).unwrap();
    assert!(next.set(&mut two, &long, b"").unwrap());
    store.set(&mut one, &long, b"late").unwrap_err();
    store.set(&mut one, b"late", b"").unwrap_err();
    assert_eq!(next.get(&mut two, &long).unwrap(), Some(Vec::new()), "a value may be empty");
    assert_eq!(next.get(&mut two, b"late").unwrap(), None);
    drop((store, one));
    next.close(&mut two).unwrap();
    // A dropped store has released its lock, and no host is removed from the rack for a free lock.
    let mut three = rack.client("refused").unwrap();
    drop(write(&mut three, Access::TakeOver).unwrap());
    write(&mut two, Access::TakeOver).unwrap().close(&mut two).unwrap();
    let mut one = three;
    let mut numbers = Store::create(&mut one, "numbers", KeyKind::U64, Access::Write).unwrap();
    let mut others = Store::create(&mut two, "numbers", KeyKind::U64, Access::Write).unwrap();
    for n in 0..200_u32 {
        let (store, client) = if n % 2 == 0 { (&mut numbers, &mut one) } else { (&mut others, &mut two) };
        store.set(client, n.to_string().as_bytes(), b"").unwrap();
    }
    assert_eq!(others.range(&mut two, None, None, 1_000).unwrap().len(), 200);
}

/// A program that cannot open a store of texts, because its heap is open too often, leaves the writer's lock
/// unchanged.
#[test]
fn what_cannot_be_opened_is_not_locked() {
    let rack = rack(1);
    let mut client = rack.client("full").unwrap();
    texts(&mut client).close(&mut client).unwrap();
    let open = |client: &mut Client, access| Store::open(client, "texts", None, access);
    let mut readers = Vec::new();
    let refused = loop {
        match open(&mut client, Access::Read) {
            Ok(reader) => readers.push(reader),
            Err(error) => break error,
        }
    };
    assert_eq!(readers.len(), 64, "{refused}");
    let refused = open(&mut client, Access::Write).unwrap_err();
    assert!(matches!(refused, StoreError::Far(farmem::Error::Full { .. })), "{refused}");
    readers.pop().unwrap().close(&mut client).unwrap();
    let writer = open(&mut client, Access::Write).unwrap();
    readers.pop().unwrap().close(&mut client).unwrap();
    // A program that finds the store locked leaves no membership in the heap.
    for _ in 0..3 {
        assert!(matches!(open(&mut client, Access::Write), Err(StoreError::Locked(_))));
    }
    writer.close(&mut client).unwrap();
}

/// A workload creates its own store: other stores of the domain stay unchanged, whatever their names.
#[test]
fn a_workload_leaves_other_stores_alone() {
    let mut client = rack(1).client("kept").unwrap();
    let mut kept = Store::create(&mut client, "orderedkv", KeyKind::U64, Access::Write).unwrap();
    kept.set(&mut client, b"7", b"seven").unwrap();
    let settings = Settings { records: 200, ..SETTINGS };
    let report = serve(&mut client, "here", &settings, &load(RunAt::Offload)).unwrap();
    assert_eq!(report.wrong_answers, 0);
    assert_eq!(kept.get(&mut client, b"7").unwrap().as_deref(), Some(&b"seven"[..]));
    kept.destroy(&mut client).unwrap();
    assert_eq!(client.overview().unwrap().vmas.len(), 0, "nothing stays behind");
}

const SETTINGS: Settings = Settings {
    records: 2_000,
    mix: Mix::A,
    value_len: 1_000,
    mixed: false,
    keys: Keys::Zipfian,
    index: true,
};

fn load(policy: RunAt) -> Load {
    Load { operations: 1_500, in_flight: 16, policy, seed: 5, check: true }
}

/// Every answer of each workload is right, with the index and without, at every site, with values of 1 byte
/// to 64 KiB; nothing is left behind.
#[test]
fn every_workload_is_right() {
    for (mix, policy, index, value_len) in [
        (Mix::A, RunAt::Offload, true, 1_000),
        (Mix::B, RunAt::Offload, false, 1),
        (Mix::C, RunAt::Host, false, 3_000),
        (Mix::D, RunAt::Offload, true, 200),
        (Mix::E, RunAt::Offload, true, 4_000),
        (Mix::F, RunAt::Auto, true, 65_536),
    ] {
        let mut client = rack(3).client("ycsb").unwrap();
        let records = if value_len > 10_000 { 300 } else { SETTINGS.records };
        let settings = Settings { mix, value_len, mixed: value_len > 1_000, index, records, ..SETTINGS };
        let report = serve(&mut client, "here", &settings, &load(policy)).unwrap();
        assert_eq!((report.wrong_answers, report.operations), (0, 1_500), "{mix:?}");
        let of =
            |name: &str| report.rows.iter().find(|row| row.operation == name).map_or(0, |row| row.operations);
        let (reads, others) = match mix {
            Mix::A => (of("read"), of("update")),
            Mix::B => (of("read"), of("update")),
            Mix::C => (of("read"), 0),
            Mix::D => (of("read"), of("insert")),
            Mix::E => (of("scan"), of("insert")),
            Mix::F => (of("read"), of("read-modify-write")),
        };
        assert_eq!(reads + others, 1_500, "{mix:?}: {:?}", report.rows);
        assert_eq!(others == 0, mix == Mix::C);
        assert_eq!(client.overview().unwrap().vmas.len(), 0, "nothing stays behind");
    }
}

/// With the index a look-up visits fewer nodes; it is one request in any case.
#[test]
fn the_index_saves_visits() {
    let visits = |index: bool| {
        let mut client = rack(1).client("visits").unwrap();
        let settings = Settings { mix: Mix::C, value_len: 100, index, ..SETTINGS };
        let report = serve(&mut client, "here", &settings, &load(RunAt::Offload)).unwrap();
        let [read] = report.rows.as_slice() else { panic!("{:?}", report.rows) };
        assert!(read.requests <= read.operations + 16, "one request each, once the node knows the program");
        read.iterations
    };
    // 200 leaves of ten keys, two levels above; and the value.
    assert_eq!((visits(true), visits(false)), (2 * 1_500, 5 * 1_500));
}
