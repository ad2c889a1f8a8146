//! `farmem bench net`: verbs and traversals over every transport, each beside the raw exchange of the same sizes, waiting mode and path.
//!
//! Roles run as threads of this process, so that the raw exchange's servers can stand in exactly their places. Only the roles on
//! the path under test are alive while it is measured. Rounds of both are interleaved.

mod embedded;
mod operations;
mod rates;
mod remote;
mod roles;

use crate::args::BenchNet;
use crate::output;
use crate::{End, Failure, progress};
use farmem::{Transport, Waiting};
use farmem_bench::{Machine, Results, Row};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Rounds of baseline and operation in turn.
    rounds: u32,
    /// Operations of one round.
    per_round: u32,
}

/// The waiting modes, with what their ids end in.
const MODES: [(Waiting, &str); 2] = [(Waiting::Block, ""), (Waiting::Spin, ".spin")];

pub(crate) fn run(args: &BenchNet) -> Result<End, Failure> {
    let effort = if args.quick {
        Effort { rounds: 5, per_round: 200 }
    } else {
        Effort { rounds: 25, per_round: 1000 }
    };
    // Before anything is bound to one CPU: a bound thread counts one.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut machine = Machine::begin();
    let bar = progress::bar("bench net (transports)", 5);
    let mut rows = embedded::measure(effort)?;
    bar.inc(1);
    for transport in [Transport::Shm, Transport::Udp] {
        for (waiting, suffix) in MODES {
            rows.extend(one_mode(transport, waiting, suffix, cpus, effort)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    machine.end();
    output::print(&Results { bench: "net", machine, rows }, args.json);
    Ok(End::Fine)
}

fn one_mode(
    transport: Transport,
    waiting: Waiting,
    suffix: &str,
    cpus: usize,
    effort: Effort,
) -> Result<Vec<Row>, Failure> {
    if waiting == Waiting::Spin && cpus < 2 {
        let why = "two spinning parties need two CPUs";
        let ids = operations::ALL.iter().map(|op| remote::id(transport, *op, suffix));
        return Ok(ids.map(|id| Row::absent(id, "ns", why)).collect());
    }
    remote::measure(transport, waiting, suffix, effort)
}
