//! The yardstick on tables that fit any cache: that every way is there, does its lookups, and gets right answers.

use super::*;

/// Every way is measured once a round, and each lookup in it is checked while it is; a table of 256 KiB has chains and three levels.
#[test]
fn every_way_gets_right_answers() {
    let mut table = Table::new(1 << 18).unwrap();
    let hash = hash_hops(&mut table, 1, |_| true);
    let (keys, depth, btree) = btree_lookups(&mut table, 1, |_| true);
    assert_eq!((keys, depth), (13_440, 4));
    for row in hash.iter().chain(&btree) {
        assert!(row.millions_per_s.len() == 1 && row.p50() > 0.0, "{row:?}");
    }
    for name in ["hash.hops", "hash.hops.one_at_a_time", "hash.hops.interpreter", "lines.dependent"] {
        assert!(row(&hash, name).is_some(), "{name}");
    }
    assert!(row(&btree, "btree.lookups.one_at_a_time").is_some());
    assert!(times_ns(&hash).is_some_and(|times| times.iter().all(|time| time.is_finite())));
    assert!(line_limit(&hash).is_some() && line_limit(&btree).is_none());
}

/// Only what is wanted is measured.
#[test]
fn ways_can_be_chosen() {
    let mut table = Table::new(1 << 18).unwrap();
    let rows = hash_hops(&mut table, 2, |name| name == "hash.hops");
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].millions_per_s.len(), 2);
}

/// A ratio is taken round by round: one that the machine disturbed changes both sides, and the middle does not see it.
#[test]
fn ratios_are_of_the_same_round() {
    let row = |rates: [f64; 3]| Row { name: String::new(), millions_per_s: rates.to_vec() };
    let (fast, slow) = (row([40.0, 4.0, 42.0]), row([10.0, 1.0, 10.0]));
    assert_eq!((fast.times(&slow), fast.p50(), slow.p50()), (4.0, 40.0, 10.0));
    assert!(row([1.0; 3]).times(&Row { name: String::new(), millions_per_s: vec![] }).is_nan());
}
