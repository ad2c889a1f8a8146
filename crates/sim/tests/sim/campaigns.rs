//! The campaigns at the size for CI. `farmem sim` runs them at any other.

use farmem_sim::{Campaign, Plan, Report, Verdict, coverage, pair, rack};

fn fine(report: &Report) {
    assert_eq!(report.verdict, Verdict::Fine, "{report}");
    assert!(report.total.operations >= report.campaign.operations, "{report}");
    assert_eq!(report.total.network.undetected, 0, "{report}");
}

/// Reliable connections in a storm, across the PSN wrap: no wrong byte, no lost or doubled operation.
#[test]
fn rc_in_a_storm() {
    let campaign = Campaign { operations: 60_000, seeds: 120, first_seed: 0, plan: Plan::STORM };
    let report = pair::rc_campaign(&campaign, &mut |_| {});
    fine(&report);
    let (network, notes) = (&report.total.network, &report.total.notes);
    assert!(network.lost > 5_000 && network.duplicated > 5_000 && network.reordered > 5_000, "{report}");
    assert!(network.icrc_dropped > 1_000 && notes["rc.DuplicateAtomic"] > 1_000, "{report}");
}

/// Datagram requests in a storm: each write executes once.
#[test]
fn ud_in_a_storm() {
    let campaign = Campaign { operations: 60_000, seeds: 120, first_seed: 0, plan: Plan::STORM };
    let report = pair::ud_campaign(&campaign, &mut |_| {});
    fine(&report);
    assert!(report.total.notes["ud.AnsweredAgain"] > 1_000, "{report}");
}

/// Pairs under every other plan.
#[test]
fn pairs_under_every_plan() {
    for plan in Plan::ALL {
        let campaign = Campaign { operations: 5_000, seeds: 20, first_seed: 1_000, plan };
        fine(&pair::rc_campaign(&campaign, &mut |_| {}));
        fine(&pair::ud_campaign(&campaign, &mut |_| {}));
    }
}

/// Whole racks under every plan, including crashes: memory equals the model, and every note is reached. No
/// packet ends a role (PROTOCOL 9.18): a panic would be the verdict `Crash`. Packet faults change no result
/// (PROTOCOL 9.1), and one-way links are survived (PROTOCOL 9.4). So are restarts of memory nodes (PROTOCOL
/// 9.7), the switch (PROTOCOL 9.9, 9.10), the control plane (PROTOCOL 9.12), and hosts (PROTOCOL 9.14, 9.15).
#[test]
fn racks_under_every_plan_reach_every_note() {
    let (reports, missing) = coverage::run(20, &mut |_| {});
    reports.iter().for_each(fine);
    assert!(coverage::all_fine(&reports));
    assert_eq!(missing, Vec::<&str>::new(), "no seed reached these");
}

/// Equal seeds give equal digests, in a rack as in a pair.
#[test]
fn the_same_seeds_give_the_same_digest() {
    for plan in [Plan::STORM, Plan::CRASH, Plan::ROGUE] {
        let campaign = Campaign { operations: 2_000, seeds: 4, first_seed: 77, plan };
        let [one, again] = [(); 2].map(|()| rack::campaign(&campaign, &mut |_| {}).total.digest);
        assert_eq!(one, again, "{}", plan.name);
        let other = rack::campaign(&Campaign { first_seed: 78, ..campaign }, &mut |_| {});
        assert_ne!(one, other.total.digest);
    }
}

/// Worlds that failed once, each with its lesson. They stay fine.
#[test]
fn seeds_that_failed_once() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/seeds/rack.txt");
    let text = std::fs::read_to_string(folder).expect("testdata/seeds/rack.txt");
    let mut count = 0;
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [run, plan, seed, operations] = words[..] else { panic!("run, plan, seed, operations: {line}") };
        let plan = Plan::named(plan).unwrap_or_else(|| panic!("a plan: {line}"));
        let (first_seed, operations) = (seed.parse().expect("a seed"), operations.parse().expect("a number"));
        let campaign = Campaign { operations, seeds: 1, first_seed, plan };
        let report = match run {
            "rc" => pair::rc_campaign(&campaign, &mut |_| {}),
            "ud" => pair::ud_campaign(&campaign, &mut |_| {}),
            "rack" => rack::campaign(&campaign, &mut |_| {}),
            other => panic!("rc, ud or rack: {other}"),
        };
        fine(&report);
        count += 1;
    }
    assert!(count > 0);
}

/// A million operations, as in `farmem sim rack --plan crash --operations 1000000`.
#[test]
#[ignore = "it takes minutes: run it by its name"]
fn a_million_operations_on_nodes_that_come_back_without_their_memory() {
    let campaign = Campaign { operations: 1_000_000, seeds: 100, first_seed: 1, plan: Plan::CRASH };
    let report = rack::campaign(&campaign, &mut |_| {});
    eprintln!("{report}\ntold that it is lost: {}", report.total.notes["rack.ToldLost"]);
    fine(&report);
}

/// Nodes crash and restart without their memory. Every access to it fails as lost until its owner accepts the
/// loss; none reads a zero before (PROTOCOL 7.43, 9.19).
#[test]
fn nodes_come_back_without_their_memory() {
    let campaign = Campaign { operations: 60_000, seeds: 20, first_seed: 4_000, plan: Plan::CRASH };
    let report = rack::campaign(&campaign, &mut |_| {});
    fine(&report);
    assert!(report.total.crashes > 100 && report.total.notes["rack.ToldLost"] > 500, "{report}");
}
