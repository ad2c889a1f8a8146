//! `farmem doctor`: the abilities of this machine, and the remedy for each missing one.

use crate::args::Doctor;
use crate::output::{self, Report};
use crate::{End, Failure};
use farmem::RackConfig;
use farmem::doctor::{Finding, Support, examine};
use serde::Serialize;

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

/// Runs the command. Degraded and missing abilities are facts about a machine, not failures of the command,
/// which ends with 0.
pub(crate) fn run(args: &Doctor) -> Result<End, Failure> {
    let mut findings: Vec<Line> = examine().into_iter().map(line).collect();
    if let Some(file) = &args.rack {
        let rack = RackConfig::load(file)?;
        findings.extend(rack.examine_roles().into_iter().map(line));
        findings.extend(rack.examine_links().into_iter().map(line));
        findings.extend(rack.examine_service().into_iter().map(line));
        findings.push(line(cards(&rack)));
        findings.extend(rack.examine_mirrors().into_iter().map(line));
        findings.extend(plain(&rack).map(line));
    }
    output::print(&Findings { findings }, args.json);
    Ok(End::Fine)
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
