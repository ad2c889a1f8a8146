//! Tests of the fast set against the pure one, with arbitrary keys.

use super::*;
use farmem_dpu::view::KeySet;
use proptest::prelude::{
    Just, ProptestConfig, Strategy, TestCaseError, prop_assert_eq, prop_oneof, proptest,
};
use std::num::NonZeroUsize;

/// Returns every method that this CPU supports.
fn lookups() -> impl Iterator<Item = Lookup> {
    let orders = [Order::OneByOne, Order::Both, Order::Delayed, Order::InBetween];
    let compares = Compare::ALL.into_iter().filter(|compare| compare.is_there());
    compares.flat_map(move |compare| orders.map(|order| Lookup { order, compare }))
}

/// Returns keys as a hostile client chooses them: by number, by multiples of powers of two, with equal low or high
/// halves, with few bits, all ones, and nothing.
fn pattern(kind: usize, n: u64) -> KeyId {
    KeyId(match kind {
        0 => n,
        1 => n << 20,
        2 => n.reverse_bits(),
        3 => n << 32 | 0xffff_ffff,
        4 => n.wrapping_mul(64),
        5 => u64::MAX - n,
        6 => 1 << (n % 64) | 1 << (n / 64 % 64),
        _ => n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
    })
}
const PATTERNS: usize = 8;

fn keys(kind: usize, count: u64) -> Vec<KeyId> {
    (0..count).map(|n| pattern(kind, n)).collect()
}

#[derive(Clone, Debug)]
enum Act {
    Insert(KeyId),
    Remove(KeyId),
    Look(Vec<KeyId>),
    Clear,
}

/// Returns few different keys, so that they repeat.
fn key() -> impl Strategy<Value = KeyId> {
    (0..PATTERNS, 0..120_u64).prop_map(|(kind, n)| pattern(kind, n))
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        20 => key().prop_map(Act::Insert),
        8 => key().prop_map(Act::Remove),
        8 => proptest::collection::vec(key(), 0..300).prop_map(Act::Look),
        1 => Just(Act::Clear),
    ]
}

/// Applies an operation to both sets, and compares the results.
fn agree(fast: &mut impl HostView, pure: &mut KeySet, act: &Act) -> Result<(), TestCaseError> {
    match act {
        Act::Insert(key) => prop_assert_eq!(fast.insert(*key), pure.insert(*key)),
        Act::Remove(key) => prop_assert_eq!(fast.remove(*key), pure.remove(*key)),
        Act::Look(keys) => {
            // The buffer starts with the wrong answers.
            let (mut ours, mut theirs) = (vec![true; keys.len()], vec![false; keys.len()]);
            fast.contains(keys, &mut ours);
            pure.contains(keys, &mut theirs);
            prop_assert_eq!(ours, theirs);
        }
        Act::Clear => {
            fast.clear();
            pure.clear();
        }
    }
    prop_assert_eq!((fast.len(), fast.is_empty()), (pure.len(), pure.is_empty()));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The fast set answers as the pure set after any inserts, removals, look-ups and clears, with any method. Both
    /// are full at the same time.
    #[test]
    fn the_fast_set_agrees_with_the_pure_one(acts in proptest::collection::vec(act(), 1..200), keys_max in 1..400_usize, seed in 0..u64::MAX) {
        let ways: Vec<Lookup> = lookups().collect();
        let mut fast = HostKeys::with(KeysConfig::new(keys_max), &mut Rng::from_number(seed)).unwrap();
        let mut pure = KeySet::new(keys_max);
        for (act, way) in acts.iter().zip(ways.iter().cycle()) {
            fast.look_up_by(*way).unwrap();
            agree(&mut fast, &mut pure, act)?;
        }
    }

    /// Several shards answer as the pure set, too.
    #[test]
    fn shards_agree_with_the_pure_set(acts in proptest::collection::vec(act(), 1..120), keys_max in 1..400_usize, shards in 1..5_usize, seed in 0..u64::MAX) {
        let config = KeysConfig::new(keys_max);
        let shards = NonZeroUsize::new(shards).unwrap();
        let mut fast = KeyShards::with(shards, config, &mut Rng::from_number(seed)).unwrap();
        let mut pure = KeySet::new(keys_max);
        for act in &acts {
            agree(&mut fast, &mut pure, act)?;
        }
    }
}

/// A set is filled with each pattern to 95 % of its slots. Every key finds room, and exactly these keys are found
/// with every method. One more key is refused and changes nothing. After the removal of every other key, as many new
/// ones find room.
#[test]
fn all_patterns_fill_a_set() {
    const KEYS: u64 = 30_000;
    let config = KeysConfig::new(usize::try_from(KEYS).unwrap());
    for kind in [0, 1, 2, 3, 4, 5, 7] {
        let mut set = HostKeys::with(config, &mut Rng::from_number(kind as u64)).unwrap();
        let load = set.keys_max * 100 / (set.table.buckets().len() * SLOTS);
        assert_eq!(load, 94, "two buckets more, else 95 %");
        let held = keys(kind, KEYS);
        assert_eq!(set.insert_all(&held), 0, "pattern {kind}");
        assert!(!set.insert(pattern(kind, KEYS)), "one more than it may hold");
        let others: Vec<KeyId> = (KEYS..2 * KEYS).map(|n| pattern(kind, n)).collect();
        for way in lookups() {
            set.look_up_by(way).unwrap();
            let mut found = vec![false; held.len()];
            set.contains(&held, &mut found);
            assert!(found.iter().all(|found| *found), "pattern {kind} by {way:?}");
            set.contains(&others, &mut found);
            assert!(found.iter().all(|found| !*found), "pattern {kind} by {way:?}");
        }
        let (even, odd): (Vec<_>, Vec<_>) = held.into_iter().enumerate().partition(|(n, _)| n % 2 == 0);
        assert!(even.iter().all(|(_, key)| set.remove(*key)));
        let new: Vec<KeyId> = others.into_iter().take(even.len()).collect();
        assert_eq!(set.insert_all(&new), 0, "pattern {kind}");
        let mut found = vec![false; odd.len()];
        set.contains(&odd.iter().map(|(_, key)| *key).collect::<Vec<_>>(), &mut found);
        assert!(found.iter().all(|found| *found), "pattern {kind}: a key was lost in a move");
        assert_eq!(set.len(), set.keys_max);
    }
}

/// With more keys than slots, each insert that succeeded is found, each refused key is absent, and no earlier key is
/// lost.
#[test]
fn a_set_without_room_refuses_and_loses_nothing() {
    let mut set = HostKeys::with(KeysConfig::new(5000), &mut Rng::from_number(1)).unwrap();
    set.keys_max = usize::MAX;
    let keys = keys(7, 2 * 5000);
    let taken: Vec<bool> = keys.iter().map(|key| set.insert(*key)).collect();
    let slots = set.table.buckets().len() * SLOTS;
    let count = taken.iter().filter(|taken| **taken).count();
    assert_eq!(set.len(), count);
    assert!((slots * 98 / 100..=slots + 1).contains(&count), "{count} of {slots}");
    let mut found = vec![false; keys.len()];
    set.contains(&keys, &mut found);
    assert_eq!(found, taken);
}

/// Two sets have different hash functions: keys that share a bucket in one do not in the other.
#[test]
fn each_set_has_its_own_seed() {
    let set = |seed| HostKeys::with(KeysConfig::new(100_000), &mut Rng::from_number(seed)).unwrap();
    let (one, other) = (set(1), set(2));
    let keys = keys(0, 500_000);
    let crowded: Vec<u64> =
        keys.iter().map(|key| key.0).filter(|&key| one.homes(key)[0] == one.homes(0)[0]).collect();
    assert!(crowded.len() > 10, "{}", crowded.len());
    let also = crowded.iter().filter(|&&key| other.homes(key)[0] == other.homes(0)[0]).count();
    assert!(also <= 3, "{also} of {} share a bucket in both", crowded.len());
    let twice = crowded.iter().filter(|&&key| key != 0 && one.homes(key)[1] == one.homes(0)[1]).count();
    assert!(twice <= 1, "the second function is another one: {twice}");
}

/// Invalid settings are refused by name: too high a load, too many keys or shards, and instructions that the CPU
/// lacks.
#[test]
fn invalid_settings_are_refused() {
    let config = KeysConfig::new(10);
    for (config, word) in [
        (KeysConfig { load_percent: 96, ..config }, "96 %"),
        (KeysConfig { load_percent: 0, ..config }, "0 %"),
        (KeysConfig { keys_max: KEYS_MAX + 1, ..config }, "4294967297"),
    ] {
        let text = HostKeys::new(config).unwrap_err().to_string();
        assert!(text.contains(word), "{text}");
        let text = KeyShards::new(NonZeroUsize::new(2).unwrap(), config).unwrap_err().to_string();
        assert!(text.contains(word), "{text}");
    }
    let many = NonZeroUsize::new(257).unwrap();
    assert!(KeyShards::new(many, config).unwrap_err().to_string().contains("at most 256"));
    let mut set = HostKeys::new(config).unwrap();
    for compare in Compare::ALL {
        let done = set.look_up_by(Lookup { order: Order::Delayed, compare });
        assert_eq!(done.is_ok(), compare.is_there(), "{compare:?}");
    }
}
