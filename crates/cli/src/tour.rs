//! `farmem tour`: what farmem does, in six short acts on this machine. Each act checks its answers, and says
//! in one sentence what it showed and what that cost.

mod graph;
mod index;
mod pointers;
mod program;
mod server;
mod sharing;

use crate::args::Tour;
use crate::outcome::{End, Failure};
use crate::output;
use crate::progress;
use crate::rack_file::{RackFile, Shape};
use crate::supervisor::Supervisor;
use farmem::{LinkProfile, Placement, Prefetch, RackConfig, Transport, Waiting};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Number of memory nodes of the rack.
const NODES: u8 = 4;
/// Memory of each memory node, in bytes.
const NODE_MEMORY: u64 = 256 << 20;

/// Result of an act.
#[derive(Debug, Serialize)]
struct ActOutcome {
    /// Figures of the act, in one line.
    figures: String,
    /// Sentence that says what was shown and what it cost.
    sentence: String,
    wrong_answers: u64,
}

/// Act as it is printed.
#[derive(Debug, Serialize)]
struct Act {
    title: &'static str,
    /// Result; absent when the environment does not allow the act.
    #[serde(flatten)]
    shown: Option<ActOutcome>,
    /// Reason why there is no result.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct TourReport {
    acts: Vec<Act>,
    wrong_answers: u64,
    seconds: f64,
}

type Play = fn(&RackConfig) -> Result<ActOutcome, Failure>;

/// Acts in their order.
const ACTS: [(&str, Play); 6] = [
    ("An unmodified program with four times its local memory", program::play),
    ("A chain of pointers, by READs and by traversals", pointers::play),
    ("Two processes that share memory", sharing::play),
    ("A look-up and a range through the index in the switch", index::play),
    ("A graph in far memory, with a DPU beside the host", graph::play),
    ("A key-value server with ten times its local memory", server::play),
];

pub(crate) fn run(args: &Tour) -> Result<End, Failure> {
    let start = Instant::now();
    let bar = progress::stages("a rack of four memory nodes starts");
    bar.enable_steady_tick(Duration::from_millis(100));
    let shape = Shape {
        nodes: NODES,
        memory: NODE_MEMORY,
        transport: Transport::Udp,
        waiting: Waiting::Block,
        placement: Placement::SameCpu,
        prefetch: Prefetch::Auto,
        link: LinkProfile::NONE,
    };
    let file = RackFile::new("tour", shape)?;
    let rack = Supervisor::start(file.config().clone())?;
    let write = |text: &str| {
        if !args.json {
            bar.suspend(|| output::write_out(text));
        }
    };
    write(&format!(
        "A rack of {NODES} memory nodes, a switch and a control plane runs on this machine, over UDP.\n"
    ));
    let mut acts = Vec::new();
    for (number, (title, play)) in (1..).zip(ACTS) {
        bar.set_message(format!("{number} of {}: {title}", ACTS.len()));
        let begin = Instant::now();
        let played = play(file.config());
        let seconds = begin.elapsed().as_secs_f64();
        let act = match played {
            Ok(shown) => Act { title, shown: Some(shown), why: None, seconds },
            Err(failure) => Act { title, shown: None, why: Some(failure.to_string()), seconds },
        };
        write(&text(number, &act));
        acts.push(act);
    }
    bar.finish_and_clear();
    drop(rack); // the processes end before their directory goes
    let wrong_answers = acts.iter().filter_map(|act| Some(act.shown.as_ref()?.wrong_answers)).sum();
    let missing = acts.iter().filter(|act| act.shown.is_none()).count();
    let seconds = start.elapsed().as_secs_f64();
    let verdict = match wrong_answers {
        0 => "every answer was right".to_owned(),
        n => format!("{} ANSWERS WERE WRONG", output::count(n)),
    };
    write(&format!("\n{verdict}; {seconds:.1} s in all\n"));
    if args.json {
        output::print_json(&TourReport { acts, wrong_answers, seconds });
    }
    if missing > 0 {
        let message = format!("{missing} of {} acts could not be shown", ACTS.len());
        return Err(Failure::environment(message, "see `farmem doctor` for what this machine allows"));
    }
    Ok(if wrong_answers == 0 { End::Fine } else { End::Violation })
}

fn text(number: usize, act: &Act) -> String {
    let lines = match (&act.shown, &act.why) {
        (Some(shown), _) => format!("   {}\n   {}", shown.figures, shown.sentence),
        (None, why) => format!("   not shown: {}", why.as_deref().unwrap_or_default()),
    };
    format!("\n{number}. {} ({:.1} s)\n{lines}\n", act.title, act.seconds)
}

/// Returns how many times as large `one` is as `other`.
fn times(one: f64, other: f64) -> String {
    format!("{:.1} times", one / other)
}

#[expect(clippy::cast_precision_loss, reason = "counts and times for people, far below 2^52")]
const fn to_f64(n: u64) -> f64 {
    n as f64
}
