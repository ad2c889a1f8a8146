//! `farmem sim`: a campaign of simulated worlds, reproducible from its seed.
//!
//! Additional exit codes show how a world failed: 3 unsafe, 4 stuck, 5 a role crashed.

use crate::args::{Sim, SimRun};
use crate::outcome::{End, Failure};
use crate::{explore, output, progress};
use farmem_sim::{Campaign, Plan, Report, Verdict, pages, paging, pair, pd3, rack};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Instant;

#[derive(Serialize)]
struct Played {
    run: &'static str,
    plan: &'static str,
    verdict: &'static str,
    /// Value of `--operations`.
    asked_for: u64,
    /// Number of completed operations ([`counted`]).
    operations: u64,
    seeds: u64,
    first_seed: u64,
    packets: u64,
    lost: u64,
    duplicated: u64,
    reordered: u64,
    flipped: u64,
    dropped_by_icrc: u64,
    retransmissions: u64,
    naks: u64,
    crashes: u64,
    digest: String,
    seconds: f64,
    notes: BTreeMap<String, u64>,
    failures: Vec<Failed>,
}

#[derive(Serialize)]
struct Failed {
    seed: u64,
    verdict: &'static str,
    why: String,
    reproduce: String,
    trace: Vec<String>,
}

impl output::Report for Played {
    fn text(&self) -> String {
        let line = |what: &str, n: u64| vec![what.to_owned(), output::count(n)];
        let rows = [
            line("operations asked for", self.asked_for),
            line(counted(self.run), self.operations),
            line("worlds", self.seeds),
            line("packets", self.packets),
            line("  lost", self.lost),
            line("  duplicated", self.duplicated),
            line("  reordered", self.reordered),
            line("  with flipped bits", self.flipped),
            line("  dropped for their ICRC", self.dropped_by_icrc),
            line("retransmissions", self.retransmissions),
            line("NAKs and refusals", self.naks),
            line("crashes and restarts", self.crashes),
        ];
        let mut text = format!(
            "sim {}, plan {}: {}\n{}digest {}, {:.1} s\n",
            self.run,
            self.plan,
            self.verdict,
            output::table(&["what", "count"], &rows),
            self.digest,
            self.seconds
        );
        for failed in &self.failures {
            text += &format!(
                "\nseed {} is {}: {}\n  {}\n",
                failed.seed, failed.verdict, failed.why, failed.reproduce
            );
            for event in &failed.trace {
                text += &format!("    {event}\n");
            }
        }
        text
    }
}

pub(crate) fn run(args: &Sim) -> Result<End, Failure> {
    let play: fn(&Campaign, &mut dyn FnMut(u64)) -> Report = match args.run {
        SimRun::Rc => pair::rc_campaign,
        SimRun::Ud => pair::ud_campaign,
        SimRun::Rack => rack::campaign,
        SimRun::Pages => pages::campaign,
        SimRun::Paging => paging::campaign,
        SimRun::Pd3 => pd3::campaign,
        SimRun::Explore => return explore::run(args),
    };
    let plan = Plan::named(&args.plan).expect("the parser takes names of plans only");
    // Only worlds of racks have memory nodes of several speeds, and hosts with keys.
    let other = plan.without_roles().filter(|_| !matches!(args.run, SimRun::Rack));
    if let Some(other) = other {
        let (plan, other) = (plan.name, other.name);
        output::note(&format!("farmem: in these worlds plan {plan} is plan {other}, world by world"));
    }
    let campaign = Campaign { operations: args.operations, seeds: args.seeds, first_seed: args.seed, plan };
    let bar = progress::bar("worlds", args.seeds);
    let begin = Instant::now();
    let mut advance = |seeds: u64| bar.set_position(seeds);
    let report = play(&campaign, &mut advance);
    bar.finish_and_clear();
    let end = match report.verdict {
        Verdict::Fine => End::Fine,
        Verdict::Unsafe => End::Unsafe,
        Verdict::Stuck => End::Stuck,
        Verdict::Crash => End::Crash,
    };
    output::print(&played(report, begin.elapsed().as_secs_f64()), args.json);
    Ok(end)
}

fn played(report: Report, seconds: f64) -> Played {
    let Report { run, campaign, verdict, total, failures } = report;
    let failed = |f: farmem_sim::Failure| Failed {
        seed: f.seed,
        verdict: name(f.verdict),
        why: f.why,
        reproduce: f.reproduce,
        trace: f.trace,
    };
    Played {
        run,
        plan: campaign.plan.name,
        verdict: name(verdict),
        asked_for: campaign.operations,
        operations: total.operations,
        seeds: campaign.seeds,
        first_seed: campaign.first_seed,
        packets: total.network.sent,
        lost: total.network.lost + total.network.cut,
        duplicated: total.network.duplicated,
        reordered: total.network.reordered,
        flipped: total.network.flipped,
        dropped_by_icrc: total.network.icrc_dropped,
        retransmissions: total.retransmissions,
        naks: total.naks,
        crashes: total.crashes,
        digest: format!("{:016x}", total.digest),
        seconds,
        notes: total.notes,
        failures: failures.into_iter().map(failed).collect(),
    }
}

/// Describes which completed operations are counted. A rack counts more than the requested ones.
fn counted(run: &str) -> &'static str {
    match run {
        "rack" => "  ended, with calls of the control plane and the reading of all memory at the end",
        _ => "  ended, with what a world does at its end",
    }
}

const fn name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Fine => "fine",
        Verdict::Unsafe => "unsafe",
        Verdict::Stuck => "stuck",
        Verdict::Crash => "crash",
    }
}
