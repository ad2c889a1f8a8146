//! The whole benchmark: its parts and their extents.

use super::apps::{TableStore, TimeSeries, WebService};
use super::compare::{Budget, Fleet, Scenario, systems};
use super::lookups::Lookups;
use super::{batch, coupled, node, scatter};
use crate::{Plan, Racks, Sheet};
use std::time::Duration;

/// Slowdown of an iteration, load and logic, on the wimpy processor.
///
/// PULSE replaces the server's cores by Cortex-A72 cores of a BlueField-2 (PULSE 6) and does not state their
/// speed. A core at 2.5 GHz, with half as many instructions per cycle and slower memory, is about three times
/// slower than a server's core.
const WIMPY_TIMES: u32 = 3;
/// The time of a hop of one traversal at a time, when the node's own figure is not measured.
const HOP: Duration = Duration::from_nanos(150);

impl Plan {
    fn node(&self) -> node::Budget {
        match self.quick {
            true => node::Budget { store: 1 << 27, rounds: 2 },
            false => node::Budget { store: 1 << 32, rounds: 9 },
        }
    }

    fn scatter(&self) -> scatter::Budget {
        match self.quick {
            true => scatter::Budget { records: 6_000, operations: 200 },
            false => scatter::Budget { records: 200_000, operations: 5_000 },
        }
    }

    fn batch(&self) -> batch::Budget {
        let (rounds, slice) = if self.quick { (2, 50) } else { (9, 300) };
        batch::Budget { quick: self.quick, rounds, slice: Duration::from_millis(slice) }
    }

    fn compare(&self) -> Budget {
        let (rounds, slice, warm_max) = if self.quick { (2, 20, 200) } else { (9, 150, 5_000) };
        let millis = Duration::from_millis;
        Budget { depth: DEPTH, rounds, slice: millis(slice), warm_max: millis(warm_max) }
    }
}

/// Operations in flight when throughput is measured: as many as a memory node interleaves.
const DEPTH: usize = farmem_memnode::WORKSPACES;

/// Measures what `plan` selects. Returns the crossings for the figures.
///
/// # Errors
/// An error when a rack does not start, or far memory does not answer.
pub(crate) fn measure<R: Racks>(
    plan: &Plan,
    racks: &mut R,
    sheet: &mut Sheet<'_>,
) -> Result<Vec<scatter::Crossings>, R::Failure> {
    let mut crossings = Vec::new();
    let mut hop = HOP;
    if plan.wants("pulse.node.") {
        sheet.begins("a node's core");
        let rows = node::measure(plan.node());
        hop = node::hop(&rows).unwrap_or(HOP);
        sheet.add(rows);
    }
    if plan.wants("pulse.sim.coupled.") {
        sheet.begins("the accelerator's model");
        sheet.add(coupled::measure());
    }
    if plan.wants("pulse.scatter.") {
        crossings = scatter::measure(plan.scatter(), &mut |what| sheet.begins(what))?;
        sheet.add(crossings.iter().flat_map(scatter::Crossings::rows));
    }
    if scatter::SUBJECTS.iter().any(|(name, _)| plan.wants(&format!("pulse.distributed.{name}."))) {
        sheet.begins("packets and round trips");
        sheet.add(scatter::costs(plan.scatter())?);
    }
    if plan.wants("pulse.batch.") {
        sheet.begins("look-ups in batches");
        sheet.add(batch::measure(plan.batch(), racks)?);
    }
    applications(plan, racks, sheet, hop * (WIMPY_TIMES - 1))?;
    Ok(crossings)
}

/// Measures the applications on one, two and four memory nodes.
fn applications<R: Racks>(
    plan: &Plan,
    racks: &mut R,
    sheet: &mut Sheet<'_>,
    stretch: Duration,
) -> Result<(), R::Failure> {
    let sizes = if plan.quick { QUICK } else { FULL };
    let web = WebService { records: sizes.users, in_flight: DEPTH };
    let table = TableStore { records: sizes.records, operations: sizes.operations };
    let (series, lookups) = (TimeSeries::new(sizes.points), Lookups::new(plan.quick));
    for nodes in NODES.iter().copied().filter(|&nodes| !plan.quick || nodes < 4) {
        let mut fleet = Fleet::new(racks, sheet, nodes);
        one(plan, &mut fleet, nodes, stretch, &web)?;
        one(plan, &mut fleet, nodes, stretch, &table)?;
        one(plan, &mut fleet, nodes, stretch, &series)?;
        one(plan, &mut fleet, nodes, stretch, &lookups)?;
    }
    Ok(())
}

/// The data sizes of the applications.
struct Sizes {
    users: u64,
    records: u64,
    /// Operations of the table store: a twentieth of them are inserts, for which there is room.
    operations: u64,
    points: u64,
}

/// Tens of megabytes each: a quarter of that as page cache exceeds a processor's caches by far.
const FULL: Sizes = Sizes { users: 194_560, records: 100_000, operations: 400_000, points: 1_000_000 };
const QUICK: Sizes = Sizes { users: 12_160, records: 5_000, operations: 40_000, points: 50_000 };

/// Memory nodes of the started racks, as in PULSE's figure 7.
const NODES: [u8; 3] = [1, 2, 4];

/// Measures the selected rows of one application.
fn one<R: Racks, S: Scenario>(
    plan: &Plan,
    fleet: &mut Fleet<'_, '_, R>,
    nodes: u8,
    stretch: Duration,
    scenario: &S,
) -> Result<(), R::Failure> {
    let name = scenario.name();
    let wanted = |mix: &str, system: &str| {
        let e2e = nodes == 1 && ["cache25", "pulse"].contains(&system);
        let distributed = nodes > 1 && ["pulse_acc", "pulse"].contains(&system);
        plan.wants(&format!("pulse.systems.{name}.{mix}.n{nodes}."))
            || (e2e && plan.wants(&format!("pulse.e2e.{name}.")))
            || (distributed && plan.wants(&format!("pulse.distributed.{name}.{mix}.n{nodes}.")))
    };
    // A short run measures only the mix that represents the application.
    let mixes = if plan.quick { &scenario.mixes()[..1] } else { scenario.mixes() };
    let mut systems = systems(nodes, plan.quick, stretch);
    systems.retain(|system| mixes.iter().any(|mix| wanted(mix, system.name)));
    if systems.is_empty() {
        return Ok(());
    }
    let mix = |mix: &str| mixes.contains(&mix) && systems.iter().any(|system| wanted(mix, system.name));
    fleet.compare(scenario, &systems, plan.compare(), mix)
}
