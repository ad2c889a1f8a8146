//! `farmem bench net`: verbs and traversals over every transport, each compared with a raw exchange of the
//! same sizes, waiting mode and path.
//!
//! Roles run as threads of this process, so that the servers of the raw exchange can replace them exactly.
//! During a measurement, only the roles on the measured path run. Rounds of both kinds alternate.

mod embedded;
mod operations;
mod rates;
mod remote;
mod roles;

use super::Screen;
use crate::args::BenchNet;
use crate::{End, Failure};
use farmem::{LinkProfile, Transport, Waiting};
use farmem_bench::{Outcome, Progress, Row};

/// Amount of measurements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Number of rounds of the baseline and the operation, in turn.
    rounds: u32,
    /// Number of operations per round.
    per_round: u32,
}

/// Waiting modes, with the suffixes of their ids.
const MODES: [(Waiting, &str); 2] = [(Waiting::Block, ""), (Waiting::Spin, ".spin")];

pub(crate) fn run(args: &BenchNet) -> Result<End, Failure> {
    let effort = if args.quick {
        Budget { rounds: 5, per_round: 200 }
    } else {
        Budget { rounds: 25, per_round: 1000 }
    };
    // Count the CPUs before any thread is bound: a bound thread counts one CPU.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let screen = Screen::begin("net", args.json, args.links.link);
    let mut outcome = Outcome::default();
    let mut add = |rows: Vec<Row>| {
        rows.iter().for_each(|row| screen.hear(Progress::Measured(row)));
        outcome.rows.extend(rows);
    };
    screen.hear(Progress::Begins("embedded"));
    add(embedded::measure(effort)?);
    for transport in [Transport::Shm, Transport::Udp] {
        for (waiting, suffix) in MODES {
            screen.hear(Progress::Begins(&format!("{}{suffix}", transport.name())));
            add(one_mode(transport, waiting, suffix, cpus, effort, args.links.link)?);
        }
    }
    screen.end("", outcome)
}

fn one_mode(
    transport: Transport,
    waiting: Waiting,
    suffix: &str,
    cpus: usize,
    effort: Budget,
    link: LinkProfile,
) -> Result<Vec<Row>, Failure> {
    if waiting == Waiting::Spin && cpus < 2 {
        let why = "two spinning parties need two CPUs";
        let ids = operations::ALL.iter().map(|op| remote::id(transport, *op, suffix));
        return Ok(ids.map(|id| Row::absent(id, "ns", why)).collect());
    }
    remote::measure(transport, waiting, suffix, effort, link)
}
