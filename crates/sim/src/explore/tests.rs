use super::*;

/// Explores the smaller racks of the gate in full; `farmem sim explore` does the others.
#[test]
fn small_racks_keep_every_promise() {
    for number in [13, 19] {
        let report = explore(CONFIGS[number - 1], &mut |_| {});
        assert_eq!((report.verdict, report.finding), (Verdict::Fine, None), "configuration {number}");
        assert!(report.states > 40_000, "configuration {number} has {} states", report.states);
        assert!(report.transitions > 2 * report.states, "the states hang together");
    }
}

/// A search is deterministic and respects its limit.
#[test]
fn a_walk_is_repeatable_and_bounded() {
    let config = Config { states_max: 5_000, ..CONFIGS[0] };
    let walk = || explore(config, &mut |_| {});
    let first = walk();
    assert_eq!(first.verdict, Verdict::TooMany);
    assert!((5_000..50_000).contains(&first.states), "{} states", first.states);
    assert_eq!(first, walk());
}

/// With empty budgets there is one state. With one request per host and no faults there are few, and rest is
/// reached from all.
#[test]
fn what_cannot_happen_does_not() {
    let base = CONFIGS[18];
    let idle =
        Remaining { requests: [Budget::of(0); 3], splits: Budget::of(0), merges: Budget::of(0), ..base.left };
    let report = explore(Config { left: idle, ..base }, &mut |_| {});
    assert_eq!((report.states, report.transitions, report.depth), (1, 0, 0));
}

#[test]
fn every_guard_has_a_name() {
    for (guard, name) in Guard::ALL {
        assert_eq!(Guard::named(name), Some(guard));
        assert!(without(guard).without.any_missing());
    }
    assert_eq!(Guard::named("luck"), None);
    for (config, number) in CONFIGS.iter().zip(1..) {
        assert_eq!(config.number, number, "configurations are found by their number");
    }
}
