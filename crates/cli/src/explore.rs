//! `farmem sim explore`: every state of small racks, with every possible event of the coherence protocol.

use crate::args::Sim;
use crate::outcome::{End, Failure};
use crate::output;
use crate::progress;
use farmem_sim::explore::{self, CONFIGS, Config, GATE, Guard, Report, Verdict};
use serde::Serialize;
use std::time::Instant;

#[derive(Serialize)]
struct Explored {
    verdict: &'static str,
    states: u64,
    transitions: u64,
    seconds: f64,
    configurations: Vec<Walked>,
}

#[derive(Serialize)]
struct Walked {
    number: u8,
    rack: String,
    may_happen: String,
    states: u64,
    transitions: u64,
    depth: u32,
    rest_steps: usize,
    seconds: f64,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    trace: Vec<String>,
}

impl output::Report for Explored {
    fn text(&self) -> String {
        let row = |walked: &Walked| {
            vec![
                walked.number.to_string(),
                walked.rack.clone(),
                walked.may_happen.clone(),
                output::count(walked.states),
                output::count(walked.transitions),
                walked.depth.to_string(),
                format!("{:.1}", walked.seconds),
                walked.verdict.to_owned(),
            ]
        };
        let rows: Vec<_> = self.configurations.iter().map(row).collect();
        let heads = ["#", "rack", "what may happen", "states", "transitions", "depth", "seconds", "verdict"];
        let mut text = format!(
            "{}{} states, {} transitions, {:.1} s: {}\n",
            output::table(&heads, &rows),
            output::count(self.states),
            output::count(self.transitions),
            self.seconds,
            self.verdict
        );
        for walked in &self.configurations {
            if let Some(why) = &walked.why {
                text += &format!("\nconfiguration {} is {}: {why}\n", walked.number, walked.verdict);
                for line in &walked.trace {
                    text += &format!("    {line}\n");
                }
            }
        }
        text
    }
}

/// Runs the command.
pub(crate) fn run(args: &Sim) -> Result<End, Failure> {
    let mut configurations = Vec::new();
    let mut worst = Verdict::Fine;
    let begin = Instant::now();
    for config in chosen(args)? {
        let bar = progress::spinner("states");
        let begin = Instant::now();
        let report = explore::explore(config, &mut |states| bar.set_position(states));
        bar.finish_and_clear();
        if worst == Verdict::Fine {
            worst = report.verdict;
        }
        configurations.push(walked(report, begin.elapsed().as_secs_f64()));
    }
    let explored = Explored {
        verdict: worst.name(),
        states: configurations.iter().map(|walked| walked.states).sum(),
        transitions: configurations.iter().map(|walked| walked.transitions).sum(),
        seconds: begin.elapsed().as_secs_f64(),
        configurations,
    };
    output::print(&explored, args.json);
    Ok(match worst {
        Verdict::Fine | Verdict::TooMany => End::Fine,
        Verdict::Unsafe => End::Unsafe,
        Verdict::Stuck => End::Stuck,
    })
}

fn chosen(args: &Sim) -> Result<Vec<Config>, Failure> {
    if let Some(name) = &args.without {
        let guard = Guard::named(name).expect("the parser takes names of guards only");
        return Ok(vec![explore::without(guard)]);
    }
    let known = |number: u8| CONFIGS.iter().find(|config| config.number == number).copied();
    let number = args.config.parse::<u8>().ok().and_then(known);
    match (args.config.as_str(), number) {
        ("gate", _) => Ok(GATE.into_iter().filter_map(known).collect()),
        ("all", _) => Ok(CONFIGS.to_vec()),
        (_, Some(config)) => Ok(vec![config]),
        (name, None) => Err(Failure::environment(
            format!("there is no configuration {name:?}"),
            format!("choose gate, all, or a number up to {}", CONFIGS.len()),
        )),
    }
}

fn walked(report: Report, seconds: f64) -> Walked {
    let Report { config, verdict, states, transitions, depth, rest_steps, finding } = report;
    let (why, trace) = finding.map_or((None, Vec::new()), |finding| (Some(finding.what), finding.trace));
    Walked {
        number: config.number,
        rack: format!("{} hosts, {}", config.hosts, pages(&config)),
        may_happen: config.describe(),
        states,
        transitions,
        depth,
        rest_steps,
        seconds,
        verdict: verdict.name(),
        why,
        trace,
    }
}

const fn pages(config: &Config) -> &'static str {
    match (config.pages, config.apart) {
        (1, _) => "1 page",
        (_, false) => "2 pages",
        (_, true) => "2 pages apart",
    }
}
