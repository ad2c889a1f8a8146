//! `farmem doctor`: what this machine can and cannot do, and the remedy for each.

use crate::args::Doctor;
use crate::output::{self, Report};
use crate::{End, Failure};
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

/// Degraded and missing abilities are facts about a machine, not failures of the command: it ends with 0.
pub(crate) fn run(args: &Doctor) -> Result<End, Failure> {
    let findings = examine().into_iter().map(line).collect();
    output::print(&Findings { findings }, args.json);
    Ok(End::Fine)
}

fn line(finding: Finding) -> Line {
    let state = match finding.state {
        Support::Ok => "ok",
        Support::Degraded => "degraded",
        Support::Missing => "missing",
    };
    Line { name: finding.name, state, detail: finding.detail, remedy: finding.remedy }
}
