//! `farmem doctor`: the abilities of this machine, and the remedy for each missing one.

use crate::args::Doctor;
use crate::outcome::{End, Failure};
use crate::output::{self, Report};
use farmem::RackConfig;
use farmem::doctor::{Finding, Support, examine};
use serde::Serialize;
use std::time::Duration;

#[derive(Serialize)]
struct Findings {
    findings: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    name: String,
    state: &'static str,
    detail: String,
    remedy: String,
}

impl Report for Findings {
    fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.findings {
            text += &format!("{:9} {:24} {}\n", line.state, line.name, line.detail);
            if !line.remedy.is_empty() {
                text += &format!("{:35}remedy: {}\n", "", line.remedy);
            }
        }
        text
    }
}

/// Runs the command. Degraded and missing abilities are facts about a machine, and end the command with 0. A role
/// of the rack that is missing, dead or unreachable ends it with 1.
pub(crate) fn run(args: &Doctor) -> Result<End, Failure> {
    let mut findings: Vec<Line> = examine().into_iter().map(line).collect();
    let mut end = End::Fine;
    if let Some(file) = &args.rack {
        // What does not answer now is what the command is asked for.
        let rack = RackConfig { patience: Duration::ZERO, ..RackConfig::load(file)? };
        let of_roles = [rack.examine_roles(), rack.examine_links(), rack.examine_service()].concat();
        if of_roles.iter().any(|finding| finding.state == Support::Missing) {
            end = End::Violation;
        }
        findings.extend(of_roles.into_iter().map(line));
        findings.push(line(cards(&rack)));
        findings.extend(rack.examine_mirrors().into_iter().map(line));
        findings.extend(plain(&rack).map(line));
    }
    output::print(&Findings { findings }, args.json);
    Ok(end)
}

/// Returns the features that a rack loses because network cards are among its peers.
fn cards(rack: &RackConfig) -> Finding {
    let name = "cards of the rack".into();
    match rack.cards_cost() {
        None => {
            let detail = "none: packets count from port 4791 and with a whole ICRC only".into();
            Finding { name, state: Support::Ok, detail, remedy: String::new() }
        }
        Some((cost, remedy)) => {
            Finding { name, state: Support::Degraded, detail: cost.into(), remedy: remedy.into() }
        }
    }
}

/// Returns a finding when the API is served without encryption.
fn plain(rack: &RackConfig) -> Option<Finding> {
    rack.plain_cost().map(|(detail, remedy)| Finding {
        name: "API in clear".into(),
        state: Support::Degraded,
        detail,
        remedy: remedy.into(),
    })
}

fn line(finding: Finding) -> Line {
    let state = match finding.state {
        Support::Ok => "ok",
        Support::Degraded => "degraded",
        Support::Missing => "missing",
    };
    Line { name: finding.name, state, detail: finding.detail, remedy: finding.remedy }
}
