//! `farmem bench fat`: the in-network index of a B-link tree (Fat-B+Tree V), compared with the look-up paths
//! that it replaces.
//!
//! One run measures all paths on one tree of one rack, alternating in short rounds. The paths
//! ([`LookupPath`]) are look-ups that the switch starts further down, look-ups by a traversal from the root,
//! and READs from the root to the value. The READs go through the switch (*relayed*, the index's path) or
//! straight to the node (*direct*). Keyed READs are compared with READs from the root over the same reliable
//! connection through the switch. Every value is checked. Counts of round trips and packets come from racks
//! in this process, the tables' entries from the tables.

mod alternation;
mod baselines;
mod drift;
mod e2e;
mod fabric;
mod keyed;
mod load;
mod ranges;
mod server;
mod store;
mod tables;
mod union;

pub use fabric::count_fabric;
pub use server::{Lazy, lazy};
pub use store::LookupPath;
pub use union::{Counts, count};

use crate::{NodeKind, Plan, Racks, Row, Sheet};
use farmem::blink_tree::Extent;
use std::time::Duration;

impl Plan {
    fn effort(&self) -> alternation::Budget {
        let (rounds, slice) = if self.quick { (2, 20) } else { (9, 150) };
        alternation::Budget { rounds, slice: Duration::from_millis(slice) }
    }

    /// Returns the key counts of the trees of `fat.e2e.scale` (figure 5). The first tree also serves all
    /// other measurements. Each key takes 1.3 KB of a memory node, and as much of this machine.
    const fn scales(&self) -> &'static [u64] {
        if self.quick {
            &[20_000]
        } else {
            &[2_000_000, 1_000_000, 3_000_000, 5_000_000, 7_000_000, 10_000_000]
        }
    }

    /// Returns the key count of the largest scattered tree.
    const fn many(&self) -> u64 {
        if self.quick { 20_000 } else { 10_000_000 }
    }

    /// Returns the key counts and mixes of `fat.server` (figure 10).
    const fn server(&self) -> server::Sizes {
        if self.quick {
            server::Sizes { scales: &[20_000], mixes: &[50, 100] }
        } else {
            let scales = &[1_000_000, 2_000_000, 5_000_000, 10_000_000];
            server::Sizes { scales, mixes: &[50, 60, 70, 80, 90, 95, 100] }
        }
    }
}

/// Measures what `plan` selects.
///
/// # Errors
/// An error when a rack does not start or far memory does not answer. A tree that exceeds this machine's
/// memory is a row that says so.
pub(crate) fn measure<R: Racks>(plan: &Plan, racks: &mut R, sheet: &mut Sheet<'_>) -> Result<(), R::Failure> {
    if plan.wants("fat.encode.") {
        sheet.begins("range tables");
        sheet.add(tables::measure(if plan.quick { 5 } else { 50 }));
    }
    if plan.wants("fat.union.") {
        sheet.begins("packets and round trips");
        let keys = if plan.quick { 5_000 } else { 1_000_000 };
        sheet.add(union::measure(keys, "fat.union")?);
        sheet.add(baselines::counted(keys)?);
        let timed = ["fat.union.latency", "fat.union.in_flight32", "fat.union.sherman", "fat.union.netcache"];
        if timed.into_iter().any(|row| plan.wants(row)) {
            e2e::over_nodes(plan, racks, (keys, "fat.union"), true, sheet)?;
        }
        let (keys, group) = (plan.many(), format!("fat.union.{}", plan.many()));
        if plan.wants(&format!("{group}.")) {
            sheet.begins(&format!("packets and round trips of {keys} keys"));
            sheet.add(union::measure(keys, &group)?);
        }
        if ["latency", "in_flight32"].iter().any(|row| plan.wants(&format!("{group}.{row}"))) {
            e2e::over_nodes(plan, racks, (keys, &group), false, sheet)?;
        }
    }
    if plan.wants("fat.drift.recovery") {
        sheet.begins("epochs until the index has followed");
        sheet.add(drift::recovery(if plan.quick { 20_000 } else { 500_000 })?);
    }
    if plan.wants("fat.fabric.") {
        sheet.begins("a FatTree of index switches");
        let small = Extent { ranges: 100, nodes: 150, ..Extent::FAT_TREE };
        let (keys, extent) = if plan.quick { (100_000, small) } else { (10_000_000, Extent::FAT_TREE) };
        sheet.add(fabric::measure(keys, extent)?);
    }
    for (at, &keys) in plan.scales().iter().enumerate() {
        let all = at == 0;
        let wanted = plan.wants(&format!("fat.e2e.scale.{keys}."))
            || all
                && (plan.wants("fat.e2e.layers.") || plan.wants("fat.e2e.nodes.") || plan.wants("fat.load."))
            || all && (plan.wants("fat.e2e.zipf.") || plan.wants("fat.e2e.drift."))
            || keyed::is_for(plan, keys) && plan.wants(&format!("fat.keyed.{keys}."));
        if wanted {
            e2e::measure(plan, racks, keys, all, sheet)?;
        }
    }
    ranges_and_servers(plan, racks, sheet)?;
    Ok(())
}

/// Measures range queries and the client-server mode.
fn ranges_and_servers<R: Racks>(plan: &Plan, racks: &mut R, sheet: &mut Sheet<'_>) -> Result<(), R::Failure> {
    if plan.wants("fat.ranges.") {
        let keys = if plan.quick { 20_000 } else { 2_000_000 };
        sheet.begins("ranges in sub-ranges");
        let rack = racks.start(1, NodeKind::Offload, (keys * ranges::KEY_BYTES).next_power_of_two())?;
        let (rows, wrong) = ranges::measure(rack.as_ref(), keys, plan.effort())?;
        sheet.add(rows);
        sheet.add_wrong(wrong);
    }
    if plan.wants("fat.server.lazy.") {
        sheet.begins("an index that grows old");
        sheet.add(server::lazy_rows(plan.quick)?);
    }
    if plan.wants("fat.server.sim.") {
        let (keys, operations) = if plan.quick { (20_000, 2_000) } else { (1_000_000, 20_000) };
        server::played(keys, operations, sheet)?;
    }
    let wants = |id: &str| plan.wants(id);
    let sizes = plan.server();
    for (at, &keys) in sizes.scales.iter().enumerate() {
        let others = ["clients.", "mixed.", "zipf."].map(|part| format!("fat.server.{part}"));
        let wanted = plan.wants(&format!("fat.server.scale.{keys}"))
            || at == 0 && others.iter().any(|part| plan.wants(part));
        if wanted {
            let needed = keys * server::KEY_BYTES;
            if let Some(free) = e2e::free_memory().filter(|free| *free < needed + needed / 4) {
                let why = format!("{keys} keys need {} MiB, and {} MiB are free", needed >> 20, free >> 20);
                sheet.add([Row::absent(format!("fat.server.scale.{keys}.throughput"), "1/s", why)]);
                continue;
            }
            sheet.begins(&format!("{} servers and {keys} keys: load", server::SERVERS));
            let memory = (needed / u64::from(server::SERVERS)).next_power_of_two() * 2;
            let rack = racks.start(server::SERVERS, NodeKind::Offload, memory.max(64 << 20))?;
            server::measure(rack.as_ref(), keys, at == 0, &sizes, plan.effort(), &wants, sheet)?;
        }
    }
    Ok(())
}
