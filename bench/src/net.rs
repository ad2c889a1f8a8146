//! `farmem bench net`: verbs and traversals over every transport, each compared with a raw exchange of the
//! same sizes, waiting mode and path.
//!
//! Roles run as threads of this process, so that the servers of the raw exchange can replace them exactly.
//! During a measurement, only the roles on the measured path run. Rounds of both kinds alternate.

mod embedded;
mod exchange;
mod operations;
mod rates;
mod remote;

use crate::{Plan, Racks, Row, Sheet};
use farmem::{Transport, Waiting};

/// Amount of measurements.
#[derive(Clone, Copy, Debug)]
struct Budget {
    /// Number of rounds of the baseline and the operation, in turn.
    rounds: u32,
    /// Number of operations per round.
    per_round: u32,
}

/// Waiting modes, with the suffixes of their ids.
const MODES: [(Waiting, &str); 2] = [(Waiting::Block, ""), (Waiting::Spin, ".spin")];

/// Measures what `plan` selects.
pub(crate) fn measure<R: Racks>(plan: &Plan, racks: &mut R, sheet: &mut Sheet<'_>) -> Result<(), R::Failure> {
    let effort = match plan.quick {
        true => Budget { rounds: 5, per_round: 200 },
        false => Budget { rounds: 25, per_round: 1000 },
    };
    // Count the CPUs before any thread is bound: a bound thread counts one CPU.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if plan.wants("net.embedded.") {
        sheet.begins("embedded");
        sheet.add(embedded::measure(effort)?);
    }
    for transport in [Transport::Shm, Transport::Udp] {
        if !plan.wants(&format!("net.{}.", transport.name())) {
            continue;
        }
        for (waiting, suffix) in MODES {
            sheet.begins(&format!("{}{suffix}", transport.name()));
            if waiting == Waiting::Spin && cpus < 2 {
                let why = "two spinning parties need two CPUs";
                let ids = operations::ALL.iter().map(|op| remote::id(transport, *op, suffix));
                sheet.add(ids.map(|id| Row::absent(id, "ns", why)));
            } else {
                sheet.add(remote::measure(racks, transport, waiting, suffix, effort)?);
            }
        }
    }
    Ok(())
}
