//! Campaigns: many seeds of one world under one plan, and their results.

use crate::network::Counters;
use crate::{Digest, Plan};
use farmem_machine::Duration;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A campaign: `operations` in all, spread over `seeds` worlds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Campaign {
    /// Number of operations in all worlds together.
    pub operations: u64,
    /// Number of worlds.
    pub seeds: u64,
    /// The first world's seed; the others follow it.
    pub first_seed: u64,
    /// The faults.
    pub plan: Plan,
}

/// The result of a world. Ordered: later is worse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Verdict {
    /// Every check held.
    #[default]
    Fine,
    /// No safety violation, but an operation did not end although the network had healed.
    Stuck,
    /// A safety violation: a wrong byte, a lost or doubled operation, a wrong refusal or a missing one.
    Unsafe,
    /// A role panicked.
    Crash,
}

/// The outcome of one world.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The verdict.
    pub verdict: Verdict,
    /// The failure; empty if fine.
    pub why: String,
    /// Operations that ended.
    pub operations: u64,
    /// Network counters.
    pub network: Counters,
    /// Request packets that were sent again.
    pub retransmissions: u64,
    /// Negative acknowledgements and refusals.
    pub naks: u64,
    /// Crashes and restarts of roles.
    pub crashes: u64,
    /// Number of occurrences of each note.
    pub notes: BTreeMap<String, u64>,
    /// Elapsed virtual time.
    pub time: Duration,
    /// A hash of every event.
    pub digest: u64,
    /// The last events, if a trace was requested.
    pub trace: Vec<String>,
}

/// A failed world, shrunk to the shortest prefix of its operations that still fails.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The world's seed.
    pub seed: u64,
    /// The verdict.
    pub verdict: Verdict,
    /// The failure.
    pub why: String,
    /// A command line that reproduces the failure.
    pub reproduce: String,
    /// The last events of the shrunk run.
    pub trace: Vec<String>,
}

/// The result of a campaign.
#[derive(Clone, Debug)]
pub struct Report {
    /// The kind of world.
    pub run: &'static str,
    /// The campaign.
    pub campaign: Campaign,
    /// The worst verdict.
    pub verdict: Verdict,
    /// Sums over all worlds. The digest covers all digests, in order.
    pub total: Outcome,
    /// The failed worlds, at most [`FAILURES_MAX`]; then the campaign stops.
    pub failures: Vec<Failure>,
}

/// Number of failed worlds after which a campaign stops: more of them add no information.
pub const FAILURES_MAX: usize = 3;

/// A kind of world: runs one seed with `operations` operations. The same arguments give the same outcome;
/// fewer operations are a prefix of more.
pub(crate) type World = fn(seed: u64, operations: u64, plan: Plan, trace: bool) -> Outcome;

/// Runs `campaign` on worlds of one kind. Calls `progress` after each seed with the number of seeds done.
pub(crate) fn run(
    name: &'static str,
    campaign: &Campaign,
    world: World,
    progress: &mut dyn FnMut(u64),
) -> Report {
    let mut report = Report {
        run: name,
        campaign: *campaign,
        verdict: Verdict::Fine,
        total: Outcome::default(),
        failures: Vec::new(),
    };
    let mut digest = Digest::default();
    for index in 0..campaign.seeds {
        let seed = campaign.first_seed.wrapping_add(index);
        let operations = share(campaign, index);
        let outcome = guarded(world, seed, operations, campaign.plan, false);
        digest.number(outcome.digest);
        report.verdict = report.verdict.max(outcome.verdict);
        if outcome.verdict != Verdict::Fine {
            report.failures.push(shrink(name, world, seed, operations, campaign.plan, &outcome));
        }
        report.total.add(outcome);
        progress(index + 1);
        if report.failures.len() >= FAILURES_MAX {
            break;
        }
    }
    report.total.digest = digest.get();
    report
}

/// Returns the operations of world `index`: an even share, with the remainder spread over the first worlds.
const fn share(campaign: &Campaign, index: u64) -> u64 {
    let (even, rest) = (campaign.operations / campaign.seeds, campaign.operations % campaign.seeds);
    if index < rest { even + 1 } else { even }
}

/// Runs a world and turns a panic into the verdict `Crash`.
fn guarded(world: World, seed: u64, operations: u64, plan: Plan, trace: bool) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| world(seed, operations, plan, trace))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let why = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words");
        Outcome { verdict: Verdict::Crash, why: why.to_owned(), ..Outcome::default() }
    })
}

/// Finds a short prefix that still fails, by halving. A world that only fails as a whole stays whole.
fn shrink(
    name: &'static str,
    world: World,
    seed: u64,
    operations: u64,
    plan: Plan,
    found: &Outcome,
) -> Failure {
    let fails = |n| guarded(world, seed, n, plan, false).verdict == found.verdict;
    let (mut good, mut bad) = (0, operations);
    while good + 1 < bad {
        let middle = good + (bad - good) / 2;
        if fails(middle) { bad = middle } else { good = middle }
    }
    let shortest = guarded(world, seed, bad, plan, true);
    Failure {
        seed,
        verdict: shortest.verdict,
        why: shortest.why,
        reproduce: format!(
            "farmem sim {name} --seed {seed} --seeds 1 --operations {bad} --plan {}",
            plan.name
        ),
        trace: shortest.trace,
    }
}

impl Outcome {
    fn add(&mut self, other: Self) {
        self.verdict = self.verdict.max(other.verdict);
        self.operations += other.operations;
        self.network.add(&other.network);
        self.retransmissions += other.retransmissions;
        self.naks += other.naks;
        self.crashes += other.crashes;
        self.time = self.time + other.time;
        for (note, n) in other.notes {
            *self.notes.entry(note).or_default() += n;
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (t, n) = (&self.total, &self.total.network);
        writeln!(f, "{} under plan {}: {:?}", self.run, self.campaign.plan.name, self.verdict)?;
        writeln!(
            f,
            "  {} operations, {} seeds, digest {:016x}",
            t.operations, self.campaign.seeds, t.digest
        )?;
        writeln!(
            f,
            "  {} frames sent, {} delivered, {} lost, {} cut off",
            n.sent, n.delivered, n.lost, n.cut
        )?;
        writeln!(f, "  {} doubled, {} overtaken, {} damaged", n.duplicated, n.reordered, n.flipped)?;
        writeln!(f, "  {} dropped for their ICRC, {} damaged and accepted", n.icrc_dropped, n.undetected)?;
        writeln!(f, "  {} sent again, {} refused, {} crashes", t.retransmissions, t.naks, t.crashes)?;
        for failure in &self.failures {
            writeln!(f, "  seed {}: {:?}: {}", failure.seed, failure.verdict, failure.why)?;
            writeln!(f, "    {}", failure.reproduce)?;
            for line in &failure.trace {
                writeln!(f, "      {line}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Campaign, Outcome, Verdict, run};
    use crate::Plan;

    const CAMPAIGN: Campaign = Campaign { operations: 25, seeds: 10, first_seed: 100, plan: Plan::CALM };

    fn fails_from_seven(seed: u64, operations: u64, _: Plan, _: bool) -> Outcome {
        let verdict = if seed == 3 && operations >= 7 { Verdict::Unsafe } else { Verdict::Fine };
        Outcome { verdict, operations, digest: seed, ..Outcome::default() }
    }

    fn panics(_: u64, operations: u64, _: Plan, _: bool) -> Outcome {
        assert!(operations < 3, "a third operation");
        Outcome { operations, ..Outcome::default() }
    }

    /// 25 operations over 10 seeds: every operation runs, none twice.
    #[test]
    fn operations_are_shared_out_whole() {
        let mut seen = 0;
        let report = run("none", &CAMPAIGN, fails_from_seven, &mut |done| seen = done);
        assert_eq!((report.verdict, report.total.operations, seen), (Verdict::Fine, 25, 10));
    }

    /// Seed 3 fails from its seventh operation on: the report must give one line that reproduces it.
    #[test]
    fn a_failure_is_shrunk_to_its_shortest_prefix() {
        let campaign = Campaign { operations: 100, seeds: 1, first_seed: 3, plan: Plan::STORM };
        let report = run("none", &campaign, fails_from_seven, &mut |_| {});
        assert_eq!(report.verdict, Verdict::Unsafe);
        assert_eq!(report.failures.len(), 1);
        let line = "farmem sim none --seed 3 --seeds 1 --operations 7 --plan storm";
        assert_eq!(report.failures[0].reproduce, line);
    }

    /// A panic of a role has a verdict of its own, with the panic's message.
    #[test]
    fn a_panic_is_a_crash() {
        let report = run("none", &Campaign { operations: 9, seeds: 1, ..CAMPAIGN }, panics, &mut |_| {});
        assert_eq!(report.verdict, Verdict::Crash);
        assert_eq!(report.failures[0].why, "a third operation");
        assert!(report.failures[0].reproduce.contains("--operations 3 "));
    }
}
