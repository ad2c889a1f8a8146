use super::*;

fn play(plan: &str, seeds: u64, operations: u64) -> Report {
    let plan = Plan::named(plan).expect("a plan of that name");
    campaign(&Campaign { operations, seeds, first_seed: 1, plan }, &mut |_| {})
}

fn fine(report: &Report) {
    let failures: Vec<_> = report.failures.iter().map(|failure| (failure.seed, &failure.why)).collect();
    assert!(failures.is_empty(), "{}: {failures:?}", report.campaign.plan.name);
    assert!(report.total.operations >= report.campaign.operations);
}

fn reached(report: &Report, mark: &str) -> bool {
    report.total.notes.keys().any(|note| note.contains(mark))
}

/// Every load sees the latest store, and everything ends, under every network plan.
#[test]
fn loads_see_the_latest_store() {
    for plan in ["calm", "storm", "partition"] {
        let report = play(plan, 8, 240_000);
        fine(&report);
        let marks = [
            "Upgrading",
            "MtoMRecall",
            "AwaitDone",
            "Downgrading",
            "Deferred",
            "Busy",
            "PageWritten(Yes)",
            "control.migrated",
            "PageArrived",
        ];
        for mark in marks {
            assert!(reached(&report, mark), "{plan}: {mark}");
        }
        assert_eq!(report.total.crashes, 0);
    }
}

/// Hosts, switch, memory node and control plane crash and restart: every loss is reported.
#[test]
fn nothing_is_lost_in_silence() {
    let report = play("havoc", 6, 900_000);
    fine(&report);
    assert!(report.total.crashes > 40, "{} crashes", report.total.crashes);
    let marks = [
        "LeaseEnded",
        "Resetting",
        "Flush",
        "crash.control",
        "crash.switch",
        "crash.node",
        "crash.host",
        "accepted",
        "control.migrated",
        "control.GivenUp",
        "PushedAgain",
        "Fault, Full",
        "Passing",
        "PageTooEarly",
    ];
    for mark in marks {
        assert!(reached(&report, mark), "{mark}");
    }
}

/// A seed always gives the same world.
#[test]
fn a_world_is_repeatable() {
    let digest = |seeds| play("havoc", seeds, 60_000).total.digest;
    assert_eq!(digest(2), digest(2));
    assert_ne!(digest(2), digest(3));
}
