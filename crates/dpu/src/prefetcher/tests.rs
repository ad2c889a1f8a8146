//! The rules of PD3's tables 1 and 2, a test for each row, and the additions to them; then random events
//! against the invariants.

use super::*;
use crate::parse::Access;
use crate::view::{KeySecret, KeySet};
use alloc::vec;
use proptest::prelude::{Strategy, prop_oneof, proptest};

const SECRET: KeySecret = KeySecret([1, 2]);

/// A prefetcher and the position of its last request.
struct Dpu {
    prefetcher: Prefetcher<KeySet>,
    position: u64,
}

impl Dpu {
    fn new() -> Self {
        Self::with(Config::DEFAULT)
    }

    fn with(config: Config) -> Self {
        Self { prefetcher: Prefetcher::new(config, KeySet::new(100), Change(0)), position: 0 }
    }

    /// Feeds requests. Returns the fetched keys, message by message.
    fn see(&mut self, requests: &[(Op, u64)]) -> Vec<(u64, Vec<u64>)> {
        self.position += 1;
        self.see_at(Position(self.position), requests)
    }

    fn see_at(&mut self, position: Position, requests: &[(Op, u64)]) -> Vec<(u64, Vec<u64>)> {
        let mut accesses = Accesses::new(SECRET);
        for &(op, key) in requests {
            assert!(accesses.push(Access { key: &key.to_le_bytes(), op }, position));
        }
        let mut out = Vec::new();
        self.prefetcher.accesses(&accesses, &mut out);
        self.prefetcher.check();
        out.iter().map(fetches).collect()
    }

    fn fetched(&mut self, op: u64, each: &[Fetched]) -> Vec<Action> {
        let mut out = Vec::new();
        self.prefetcher.fetched(op, each, &mut out);
        self.prefetcher.check();
        out
    }

    fn flush(&mut self, key: u64, seen: u64) {
        let mut out = Vec::new();
        self.prefetcher.host_writes(9, &[KeyId(key)], Copy::Dropped, Position(seen), &mut out);
        assert_eq!(out, [Action::Pass { ticket: 9 }]);
    }

    fn wasted(&self, cause: Waste) -> u64 {
        self.prefetcher.account().wasted_by(cause)
    }

    fn missed(&self, cause: Miss) -> u64 {
        self.prefetcher.account().missed_by(cause)
    }
}

fn fetches(action: &Action) -> (u64, Vec<u64>) {
    let Action::Fetch { op, keys } = action else { panic!("{action:?} is no fetch") };
    (*op, keys.iter().map(|key| u64::from_le_bytes(key.try_into().unwrap())).collect())
}

const fn item(version: u64) -> Fetched {
    Fetched::Item { version: Change(version) }
}

use Op::{Delete, Read, Write};

/// Table 1, row 1. A client writes an item blindly: the host holds it then, and a later read fetches nothing.
#[test]
fn addition_by_writes_from_clients() {
    let mut dpu = Dpu::new();
    assert_eq!(dpu.see(&[(Write, 1), (Read, 1), (Read, 2)]), [(0, vec![2])]);
    assert_eq!(dpu.see(&[(Read, 1)]), []);
    assert_eq!(dpu.prefetcher.stats().held, 2);
}

/// Table 1, row 2. The host reads an item itself and holds it from then on.
#[test]
fn addition_by_reads_from_memory() {
    let mut dpu = Dpu::new();
    dpu.prefetcher.host_asks(KeyId(1));
    assert_eq!(dpu.see(&[(Read, 1)]), [], "the host is getting it");
    dpu.prefetcher.host_reads(KeyId(1), true);
    assert_eq!(dpu.see(&[(Read, 1)]), []);
    // An item that far memory does not have is not held afterwards.
    dpu.prefetcher.host_asks(KeyId(2));
    dpu.prefetcher.host_reads(KeyId(2), false);
    assert_eq!(dpu.see(&[(Read, 2)]), [(0, vec![2])]);
}

/// Table 1, row 3. The host creates an item by itself: the DPU does not know, fetches, and far memory has
/// nothing. Nothing is placed.
#[test]
fn addition_generated_by_the_host() {
    let mut dpu = Dpu::new();
    assert_eq!(dpu.see(&[(Read, 1)]), [(0, vec![1])]);
    assert_eq!(dpu.fetched(0, &[Fetched::Absent]), []);
    assert_eq!((dpu.wasted(Waste::Absent), dpu.prefetcher.view().len()), (1, 0));
}

/// Table 1, row 4. A client deletes an item: the item is fetched, because a delete needs it; then the host
/// does not hold it. A read right behind the delete fetches nothing; a read after the removal fetches again.
#[test]
fn deletion_by_deletes_from_clients() {
    let mut dpu = Dpu::new();
    dpu.see(&[(Write, 1)]);
    assert_eq!(dpu.see(&[(Delete, 1), (Delete, 2), (Read, 2)]), [(0, vec![2])]);
    assert_eq!(dpu.prefetcher.view().len(), 0);
    dpu.fetched(0, &[item(1)]);
    assert_eq!(dpu.prefetcher.view().len(), 0, "what is deleted is not held");
    dpu.flush(1, 2);
    assert_eq!(dpu.see(&[(Read, 1)]), [(1, vec![1])]);
}

/// Table 1, row 5. The host flushes an evicted item: it does not hold the item any more, and a read fetches
/// it.
#[test]
fn deletion_by_flushes_to_memory() {
    let mut dpu = Dpu::new();
    dpu.see(&[(Write, 1)]);
    dpu.flush(1, 1);
    assert_eq!(dpu.see(&[(Read, 1)]), [(0, vec![1])]);
}

/// Table 1, row 6. The host drops a clean item silently: a read does not fetch it, the host reads it itself,
/// once, and the cause is known. If the host reports the drop, a read fetches the item.
#[test]
fn deletion_dropped_by_the_host() {
    let mut dpu = Dpu::new();
    dpu.prefetcher.host_reads(KeyId(1), true);
    dpu.prefetcher.host_reads(KeyId(2), true);
    dpu.prefetcher.host_drops(&[KeyId(2)], Position(0));
    assert_eq!(dpu.see(&[(Read, 1), (Read, 2)]), [(0, vec![2])]);
    dpu.prefetcher.host_asks(KeyId(1));
    assert_eq!(dpu.missed(Miss::Dropped), 1);
    dpu.prefetcher.host_reads(KeyId(1), true);
    assert_eq!(dpu.see(&[(Read, 1)]), []);
}

/// Table 2, row 1. The key is added before the host can take the item: a flush that the host sends right
/// after that removes it.
#[test]
fn add_is_before_the_item_reaches_the_host() {
    let mut dpu = Dpu::new();
    dpu.see(&[(Read, 1)]);
    let mut out = Vec::new();
    dpu.prefetcher.fetched(0, &[item(5)], &mut out);
    assert_eq!(out, [Action::Place { op: 0, at: 0, item: 0, stamp: Change(5) }]);
    assert_eq!(dpu.prefetcher.view().len(), 1, "before the driver acts");
    dpu.prefetcher.cleaned(0, true);
    dpu.flush(1, 1);
    assert_eq!(dpu.see(&[(Read, 1)]), [(1, vec![1])]);
}

/// Table 2, row 2. The key is removed when the request is taken from the ring, and the change is sent before
/// a later fetch.
#[test]
fn del_is_after_the_request_is_taken_and_stays_in_order() {
    let mut dpu = Dpu::new();
    dpu.see(&[(Write, 1)]);
    let (mut out, mut accesses) = (Vec::new(), Accesses::new(SECRET));
    dpu.prefetcher.host_writes(4, &[KeyId(1)], Copy::Dropped, Position(1), &mut out);
    accesses.push(Access { key: &1_u64.to_le_bytes(), op: Read }, Position(2));
    dpu.prefetcher.accesses(&accesses, &mut out);
    assert_eq!(out[0], Action::Pass { ticket: 4 });
    assert_eq!(fetches(&out[1]), (0, vec![1]));
}

/// A key in flight is sent only once, for any number of requests (PD3 6.1), and not once it is held.
#[test]
fn no_fetch_is_sent_twice() {
    let mut dpu = Dpu::new();
    assert_eq!(dpu.see(&[(Read, 1), (Read, 1), (Read, 2)]), [(0, vec![1, 2])]);
    assert_eq!(dpu.see(&[(Read, 2), (Read, 1)]), []);
    dpu.fetched(0, &[item(1), item(1)]);
    assert_eq!(dpu.see(&[(Read, 2), (Read, 1)]), []);
    assert_eq!((dpu.prefetcher.stats().shared, dpu.prefetcher.stats().held), (3, 2));
}

/// A flush overtakes a fetch: the arriving item is not placed. A read behind the flush fetches again,
/// although the older message is still in flight.
#[test]
fn what_was_overtaken_is_not_placed() {
    let mut dpu = Dpu::new();
    assert_eq!(dpu.see(&[(Read, 1)]), [(0, vec![1])]);
    dpu.flush(1, 0);
    assert_eq!(dpu.see(&[(Read, 1)]), [(1, vec![1])]);
    assert_eq!(dpu.fetched(0, &[item(3)]), []);
    assert_eq!(dpu.wasted(Waste::Overtaken), 1);
    assert_eq!(dpu.fetched(1, &[item(4)]).len(), 1);
}

/// The stamp is the later of the version and the acknowledgement watermark at the time of sending.
#[test]
fn a_stamp_is_never_later_than_what_was_acknowledged() {
    let mut dpu = Dpu::new();
    dpu.prefetcher.acknowledged(Change(1));
    dpu.prefetcher.acknowledged(Change(3));
    dpu.see(&[(Read, 1), (Read, 2)]);
    dpu.prefetcher.acknowledged(Change(2));
    let placed = dpu.fetched(0, &[item(0), item(7)]);
    let stamps = placed.iter().map(|action| match action {
        Action::Place { stamp, .. } => stamp.0,
        other => panic!("{other:?}"),
    });
    assert_eq!(stamps.collect::<Vec<_>>(), [1, 7]);
}

/// The host reads a key in flight: it is late, and the arriving item is not placed.
#[test]
fn a_late_item_is_not_placed() {
    let mut dpu = Dpu::new();
    dpu.see(&[(Read, 1)]);
    dpu.prefetcher.host_asks(KeyId(1));
    assert_eq!(dpu.fetched(0, &[item(1)]), []);
    dpu.prefetcher.host_reads(KeyId(1), true);
    assert_eq!(dpu.prefetcher.account().late, 1);
    assert_eq!(dpu.missed(Miss::Late), 1);
}

/// A copy of a request arrives after the host has executed it: nothing is fetched for it. An item that
/// arrives after the execution of its request is late.
#[test]
fn what_is_over_brings_nothing() {
    let mut dpu = Dpu::new();
    dpu.prefetcher.executed(Position(1));
    assert_eq!(dpu.see(&[(Read, 1)]), []);
    assert_eq!(dpu.see(&[(Read, 2)]), [(0, vec![2])]);
    dpu.prefetcher.executed(Position(2));
    assert_eq!(dpu.fetched(0, &[item(1)]), []);
    assert_eq!(dpu.prefetcher.account().late, 1);
}

/// A write and a flush cross. If the host evicts and then executes the write, it holds the item. If it
/// executes the write and then evicts, it does not. The order in which the DPU sees them does not matter.
#[test]
fn a_write_and_a_flush_that_cross_are_told_apart() {
    for (seen, held) in [(10, true), (11, false)] {
        let mut late = Dpu { position: 10, ..Dpu::new() };
        late.flush(1, seen);
        late.see(&[(Write, 1)]);
        assert_eq!(late.prefetcher.view().len() == 1, held, "the write is at 11, the host was at {seen}");
        let mut early = Dpu { position: 10, ..Dpu::new() };
        early.see(&[(Write, 1)]);
        early.flush(1, seen);
        assert_eq!(early.prefetcher.view().len() == 1, held);
    }
}

/// The host drops an item that a later request deletes: a read behind that request fetches nothing. A read
/// behind a drop that follows the request does.
#[test]
fn a_drop_before_a_delete_brings_nothing_back() {
    let mut dpu = Dpu::new();
    dpu.see(&[(Write, 7)]);
    assert_eq!(dpu.see(&[(Delete, 7)]), [], "the host has it");
    // The host has not executed the delete yet.
    dpu.prefetcher.host_drops(&[KeyId(7)], Position(1));
    assert_eq!(dpu.see(&[(Read, 7)]), []);
    dpu.prefetcher.host_drops(&[KeyId(7)], Position(2));
    assert_eq!(dpu.see(&[(Read, 7)]), [(0, vec![7])]);
}

/// The zone is full: the host does not hold the item and reads it itself; a later request fetches it again.
#[test]
fn a_full_zone_is_as_if_nothing_had_come() {
    let mut dpu = Dpu::new();
    dpu.see(&[(Read, 1)]);
    dpu.fetched(0, &[item(1)]);
    dpu.prefetcher.zone_full(0);
    dpu.prefetcher.check();
    assert_eq!(dpu.wasted(Waste::Full), 1);
    dpu.prefetcher.host_asks(KeyId(1));
    assert_eq!(dpu.missed(Miss::Full), 1);
    dpu.prefetcher.host_reads(KeyId(1), false);
    assert_eq!(dpu.see(&[(Read, 1)]), [(1, vec![1])]);
}

/// Far memory does not answer: the host reads the item itself, and a later request fetches it again.
#[test]
fn a_message_that_fails_is_as_if_it_had_not_been_sent() {
    let mut dpu = Dpu::new();
    dpu.see(&[(Read, 1), (Read, 2)]);
    dpu.prefetcher.failed(0);
    dpu.prefetcher.check();
    assert_eq!((dpu.wasted(Waste::Failed), dpu.prefetcher.is_quiet()), (2, true));
    dpu.prefetcher.host_asks(KeyId(2));
    assert_eq!(dpu.missed(Miss::Failed), 1);
    assert_eq!(dpu.see(&[(Read, 1), (Read, 2)]), [(1, vec![1])], "2 is on its way to the host");
}

/// The host restarts and holds nothing, so everything is fetched. Items of the old host in flight or in the
/// zone are not placed.
#[test]
fn a_host_that_starts_again_has_nothing() {
    let mut dpu = Dpu::new();
    dpu.see(&[(Write, 1), (Read, 2), (Read, 3)]);
    dpu.fetched(0, &[item(1), item(1)]);
    dpu.see(&[(Read, 4)]);
    dpu.prefetcher.host_restarted(Change(100));
    dpu.prefetcher.check();
    assert_eq!(dpu.see(&[(Read, 1), (Read, 2), (Read, 4)]), [(2, vec![1, 2, 4])]);
    assert_eq!(dpu.fetched(1, &[item(1)]), []);
    assert_eq!(dpu.wasted(Waste::Restarted), 3);
    let placed = dpu.fetched(2, &[Fetched::Absent, item(1), Fetched::Failed]);
    assert_eq!(placed, [Action::Place { op: 2, at: 1, item: 2, stamp: Change(100) }]);
}

/// The DPU restarts and its host does not: the view is empty, so each item that the host holds is fetched
/// once.
#[test]
fn a_dpu_that_starts_again_fetches_each_held_item_once() {
    let mut dpu = Dpu::new();
    let mut fetched = 0;
    for _ in 0..5 {
        for (op, keys) in dpu.see(&[(Read, 1), (Read, 2)]) {
            fetched += keys.len();
            dpu.fetched(op, &[item(1), item(1)]);
        }
    }
    assert_eq!(fetched, 2);
    dpu.prefetcher.cleaned(0, false);
    dpu.prefetcher.cleaned(1, false);
    assert_eq!(dpu.see(&[(Read, 1), (Read, 2)]), [], "not taken, so the host had them");
    assert_eq!(dpu.wasted(Waste::Unread), 2);
}

/// Packets were lost: the request was not seen, and the host reads the item itself.
#[test]
fn what_was_not_seen_is_a_false_negative_with_a_cause() {
    let mut dpu = Dpu::new();
    dpu.prefetcher.host_asks(KeyId(1));
    dpu.prefetcher.host_reads(KeyId(1), true);
    dpu.prefetcher.host_reads(KeyId(2), true);
    assert_eq!(dpu.missed(Miss::Unseen), 2, "known when it asks, or when it gets");
}

/// Limits: keys in flight, and keys and bytes of a message.
#[test]
fn bounds_hold() {
    let config = Config {
        batch_keys_max: NonZeroU32::new(3).unwrap(),
        batch_bytes_max: 16,
        flying_keys_max: 5,
        ..Config::DEFAULT
    };
    let mut dpu = Dpu::with(config);
    let sent = dpu.see(&[1, 2, 3, 4, 5, 6].map(|key| (Read, key)));
    assert_eq!(sent, [(0, vec![1, 2]), (1, vec![3, 4]), (2, vec![5])]);
    dpu.prefetcher.host_asks(KeyId(6));
    assert_eq!((dpu.missed(Miss::Bounded), dpu.prefetcher.stats().bounded), (1, 1));
    dpu.prefetcher.failed(1);
    assert_eq!(dpu.see(&[(Read, 7)]), [(3, vec![7])]);
}

/// A host that does not keep taken items: an item in the zone is not fetched again, and is once it left.
#[test]
fn a_host_that_keeps_nothing_gets_each_item_again() {
    let mut dpu = Dpu::with(Config { keeps: false, ..Config::DEFAULT });
    dpu.see(&[(Read, 1)]);
    dpu.fetched(0, &[item(1)]);
    assert_eq!(dpu.see(&[(Read, 1)]), []);
    dpu.prefetcher.cleaned(0, true);
    assert_eq!(dpu.see(&[(Read, 1)]), [(1, vec![1])]);
}

/// A full view: items are fetched although the host holds them, and that is counted.
#[test]
fn a_full_view_fetches_more() {
    let view = KeySet::new(1);
    let mut dpu = Dpu { prefetcher: Prefetcher::new(Config::DEFAULT, view, Change(0)), position: 0 };
    dpu.see(&[(Write, 1), (Write, 2)]);
    assert_eq!(dpu.prefetcher.stats().view_full, 1);
    assert_eq!(dpu.see(&[(Read, 1), (Read, 2)]), [(0, vec![2])]);
}

#[derive(Clone, Debug)]
enum Step {
    See(Vec<(Op, u64)>),
    Asks(u64),
    Reads(u64, bool),
    Flushes(u64, Copy),
    Drops(u64),
    Ends(u8, Vec<u8>),
    Cleans(u8, bool),
    Full,
    Executed,
    Restarts,
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0_u64..12;
    let op = prop_oneof![4 => proptest::strategy::Just(Read), 1 => proptest::strategy::Just(Write),
        1 => proptest::strategy::Just(Delete)];
    let copy = prop_oneof![proptest::strategy::Just(Copy::Dropped), proptest::strategy::Just(Copy::Retained)];
    prop_oneof![
        8 => proptest::collection::vec((op, key()), 0..12).prop_map(Step::See),
        2 => key().prop_map(Step::Asks),
        2 => (key(), proptest::bool::ANY).prop_map(|(key, found)| Step::Reads(key, found)),
        3 => (key(), copy).prop_map(|(key, copy)| Step::Flushes(key, copy)),
        1 => key().prop_map(Step::Drops),
        6 => (proptest::num::u8::ANY, proptest::collection::vec(0_u8..4, 40)).prop_map(|(op, each)| Step::Ends(op, each)),
        4 => (proptest::num::u8::ANY, proptest::bool::ANY).prop_map(|(item, used)| Step::Cleans(item, used)),
        1 => proptest::strategy::Just(Step::Full),
        2 => proptest::strategy::Just(Step::Executed),
        1 => proptest::strategy::Just(Step::Restarts),
    ]
}

proptest! {
    /// For random events in random order the invariants hold, a key in flight is wanted once, and each action
    /// is consistent.
    #[test]
    fn anything_may_happen(steps in proptest::collection::vec(step(), 0..80), keeps in proptest::bool::ANY) {
        let config = Config {
            batch_keys_max: NonZeroU32::new(4).unwrap(),
            flying_keys_max: 9,
            recent_keys: NonZeroU32::new(8).unwrap(),
            keeps,
            ..Config::DEFAULT
        };
        let mut dpu = Dpu::with(config);
        let (mut flying, mut items): (Vec<(u64, usize)>, Vec<u64>) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::See(requests) => {
                    let sent = dpu.see(&requests);
                    flying.extend(sent.into_iter().map(|(op, keys)| (op, keys.len())));
                }
                Step::Asks(key) => dpu.prefetcher.host_asks(KeyId(key)),
                Step::Reads(key, found) => dpu.prefetcher.host_reads(KeyId(key), found),
                Step::Flushes(key, copy) => {
                    let mut out = Vec::new();
                    let seen = Position(dpu.position / 2);
                    dpu.prefetcher.host_writes(1, &[KeyId(key)], copy, seen, &mut out);
                    assert_eq!(out.len(), 1);
                }
                Step::Drops(key) => dpu.prefetcher.host_drops(&[KeyId(key)], Position(dpu.position / 2)),
                Step::Ends(which, each) if !flying.is_empty() => {
                    let (op, keys) = flying.swap_remove(usize::from(which) % flying.len());
                    let each: Vec<_> = each.iter().take(keys).map(|what| match what {
                        0 => Fetched::Absent,
                        1 => Fetched::Failed,
                        version => item(u64::from(*version)),
                    }).collect();
                    for action in dpu.fetched(op, &each) {
                        let Action::Place { item, at, .. } = action else { panic!("{action:?}") };
                        assert!(usize::try_from(at).unwrap() < keys);
                        items.push(item);
                    }
                }
                Step::Cleans(which, used) if !items.is_empty() => {
                    dpu.prefetcher.cleaned(items.swap_remove(usize::from(which) % items.len()), used);
                }
                Step::Full => if let Some(item) = items.pop() { dpu.prefetcher.zone_full(item) },
                Step::Executed => dpu.prefetcher.executed(Position(dpu.position / 3)),
                Step::Restarts => {
                    dpu.prefetcher.host_restarted(Change(0));
                    items.clear();
                }
                Step::Ends(..) | Step::Cleans(..) => {}
            }
            dpu.prefetcher.check();
        }
    }
}
