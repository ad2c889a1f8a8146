//! `pulse.sim.coupled.*`: m logic and n memory pipelines compared with as many cores, in the model of PULSE's
//! accelerator: the shape of its table 4. The picosecond counts are the same on every machine.

use super::accelerator::{Account, Costs, Design, Job};
use crate::{Row, to_f64};
use farmem::{Program, VirtAddr, hash_table};
use farmem_traversal::{Accelerator, State};
use std::convert::Infallible;

/// Look-ups per run; enough that the edges do not matter.
const JOBS: u64 = 240;
/// Iterations of a look-up, as in WebService (PULSE 6, table 3).
const ITERATIONS: u64 = 48;
/// Time between arrivals when each look-up has the accelerator for itself.
const APART_PS: u64 = 1_000_000_000;
/// Translation, protection and load (PULSE 6.2, figure 10).
const LOAD_PS: u64 = 132_000;
/// A signal of the scheduler (PULSE 6.2, figure 10).
const DISPATCH_PS: u64 = 5_100;
/// Ratio of load time to logic time (PULSE 6.2: about 1/16).
const LOAD_PER_LOGIC: u64 = 16;
/// Bound on the cores, and on the pipelines of each kind.
const PIPELINES_MAX: usize = 4;

/// Returns the rows: for each design, its throughput with all look-ups present at once, and the latency of a
/// lone one. A disaggregated design is compared with as many cores as it has memory pipelines.
pub(super) fn measure() -> Vec<Row> {
    let cores: Vec<_> = (1..=PIPELINES_MAX).map(|cores| figures(Design::Coupled { cores })).collect();
    let mut rows = Vec::new();
    for (n, of_cores) in (1..).zip(&cores) {
        rows.extend(pair(&format!("cores{n}"), *of_cores, None));
    }
    for logic in 1..=PIPELINES_MAX {
        for (memory, of_cores) in (1..).zip(&cores) {
            let design = Design::Disaggregated { logic, memory };
            rows.extend(pair(&format!("m{logic}n{memory}"), figures(design), Some(*of_cores)));
        }
    }
    rows
}

fn pair(design: &str, (rate, latency): (f64, f64), baseline: Option<(f64, f64)>) -> [Row; 2] {
    let id = |what: &str| format!("pulse.sim.coupled.{design}.{what}");
    [
        Row::figure(id("throughput"), "1/s", rate, JOBS).beside(baseline.map(|b| b.0)),
        Row::figure(id("latency"), "ns", latency, JOBS).beside(baseline.map(|b| b.1)),
    ]
}

/// Returns look-ups per second, and the nanoseconds of one.
fn figures(design: Design) -> (f64, f64) {
    let flooded = run(design, 0);
    let alone = run(design, APART_PS);
    (flooded.jobs_per_s(), to_f64(alone.latency_ps()) / 1e3)
}

fn run(design: Design, apart_ps: u64) -> Account<Infallible> {
    let program = Program::assemble(hash_table::FIND_PROGRAM).expect("the structures' tests assemble it");
    let instruction_ps = LOAD_PS / LOAD_PER_LOGIC / u64::from(program.longest_path());
    let pipelines = Accelerator { instruction_ps, load_ps: LOAD_PS, line_ps: 0 };
    let job = |n: u64| {
        // Separate chains: look-up n goes from the first node of chain n to its last.
        let mut scratch = vec![0; program.scratch_len()];
        scratch[..8].copy_from_slice(&ITERATIONS.to_le_bytes());
        let state = State { cur_ptr: node(n, 1), scratch };
        Job { arrives_ps: n * apart_ps, program: program.clone(), state, limit: u32::MAX }
    };
    let account = design.run(
        &Costs { pipelines, dispatch_ps: DISPATCH_PS },
        (0..JOBS).map(job).collect(),
        &mut |addr: VirtAddr, window: &mut [u8]| {
            // A node's key is its number in its chain; it links to the next node.
            window.fill(0);
            let (chain, number) = (addr.0 >> 32, addr.0 >> 6 & 0x3ff_ffff);
            window[..8].copy_from_slice(&number.to_le_bytes());
            window[16..24].copy_from_slice(&node(chain, number + 1).0.to_le_bytes());
            Ok(())
        },
    );
    let found =
        account.ended.iter().filter(|ended| u64::from(ended.outcome.iterations) == ITERATIONS).count();
    assert_eq!(found as u64, JOBS, "every look-up finds its key at the end of its chain");
    account
}

/// Returns the address of a node: 64 bytes each, a chain every 4 GiB.
const fn node(chain: u64, number: u64) -> VirtAddr {
    VirtAddr(chain << 32 | number << 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(rows: &[Row], id: &str) -> f64 {
        rows.iter().find(|row| row.id == id).and_then(|row| row.value).unwrap()
    }

    /// The shape of PULSE's table 4: one logic pipeline and four memory pipelines match four cores, at a
    /// latency a few percent higher. More logic pipelines bring nothing.
    #[test]
    fn the_shape_of_table_4() {
        let rows = measure();
        assert_eq!(rows.len(), 2 * (4 + 16));
        let rate = |design: &str| value(&rows, &format!("pulse.sim.coupled.{design}.throughput"));
        assert!((0.97..1.1).contains(&(rate("m1n4") / rate("cores4"))));
        assert!((0.97..1.03).contains(&(rate("m4n4") / rate("m1n4"))));
        assert!((3.8..4.1).contains(&(rate("m1n4") / rate("m1n1"))));
        let slower =
            value(&rows, "pulse.sim.coupled.m1n4.latency") / value(&rows, "pulse.sim.coupled.cores4.latency");
        assert!((1.01..1.1).contains(&slower), "{slower}");
    }
}
