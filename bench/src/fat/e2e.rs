//! `fat.e2e.*`: one client's look-ups by each path, alternating, over trees of several sizes and with
//! different parts of the tree in the switch (Fat-B+Tree V-B, figures 5 to 9).

use super::alternation::{Bench, Budget, Figures};
use super::store::{KEY_BYTES, LookupPath, Popularity, Store};
use super::{baselines, drift, keyed, load, union};
use crate::{CpuMeter, NodeKind, Plan, Racks, Row, Sheet, rate_row, to_f64};
use farmem::blink_tree::Extent;
use farmem::{Error, Layout};
use farmem_index::TreeSection;

/// All paths, the index first: while a section is published, every look-up from the root begins further down.
const PATHS: [LookupPath; 4] = [LookupPath::Index, LookupPath::Root, LookupPath::Relayed, LookupPath::Direct];

/// Measures a tree of `keys` keys: everything if `all`, else only the effect of its size.
pub(super) fn measure<R: Racks>(
    plan: &Plan,
    racks: &mut R,
    keys: u64,
    all: bool,
    sheet: &mut Sheet<'_>,
) -> Result<(), R::Failure> {
    let needed = keys * KEY_BYTES;
    let id = format!("fat.e2e.scale.{keys}.latency");
    if let Some(free) = free_memory().filter(|free| *free < needed + needed / 4) {
        let why = format!("{keys} keys need {} MiB, and {} MiB are free", needed >> 20, free >> 20);
        sheet.add([Row::absent(id, "ns", why)]);
        return Ok(());
    }
    sheet.begins(&format!("a tree of {keys} keys: load"));
    let rack = racks.start(1, NodeKind::Offload, needed.next_power_of_two())?;
    let cpu = CpuMeter::with(racks.processes(&rack));
    let mut bench = Bench { store: Store::load(rack.as_ref(), keys, Layout::Partitioned)?, cpu };
    let effort = plan.effort();
    let draw = Popularity::usual(keys).draw();
    if plan.wants(&format!("fat.e2e.scale.{keys}.")) {
        sheet.begins(&format!("a tree of {keys} keys"));
        let section = bench.store.section(Extent::default())?;
        let figures = bench.compare(&PATHS, &section, &draw, effort, true)?;
        sheet.add(rows_of_scale(&format!("fat.e2e.scale.{keys}"), &figures));
    }
    if plan.wants(&format!("fat.keyed.{keys}.")) && keyed::is_for(plan, keys) {
        sheet.begins(&format!("keyed READs of a tree of {keys} keys"));
        sheet.add(keyed::measure(&mut bench, keys, &draw, effort)?);
    }
    if all {
        let usual = Extent::default();
        let mut extents: Vec<(String, Extent)> = Vec::new();
        extents.extend((0..=3).map(|sets| (format!("fat.e2e.layers.{sets}"), Extent { sets, ..usual })));
        let nodes = if plan.quick { &[300, 3900][..] } else { &[300, 900, 1500, 2100, 2700, 3300, 3900] };
        extents
            .extend(nodes.iter().map(|&nodes| (format!("fat.e2e.nodes.{nodes}"), Extent { nodes, ..usual })));
        for (id, extent) in extents.into_iter().filter(|(id, _)| plan.wants(id)) {
            let section = bench.store.section(extent)?;
            beside_relayed(&mut bench, plan, &id, &section, &draw, effort, sheet)?;
        }
        for skew in [90, 95, 99] {
            let id = format!("fat.e2e.zipf.{skew}");
            if plan.wants(&id) {
                let draw = Popularity { skew, ..Popularity::usual(keys) }.draw();
                let section = bench.store.section(usual)?;
                beside_relayed(&mut bench, plan, &id, &section, &draw, effort, sheet)?;
            }
        }
        if plan.wants("fat.e2e.drift.") {
            sheet.begins("look-ups that the index is selected from");
            let section = drift::selected(&mut bench.store, drift::TABLES, &draw, plan.quick)?;
            for changed in [0, 25, 50, 75, 100] {
                let draw = Popularity { changed, ..Popularity::usual(keys) }.draw();
                let id = format!("fat.e2e.drift.{changed}");
                beside_relayed(&mut bench, plan, &id, &section, &draw, effort, sheet)?;
            }
        }
        if plan.wants("fat.load.") {
            sheet.begins("the index is loaded while look-ups run");
            sheet.add(load::measure(&mut bench.store, rack.as_ref(), &draw, plan.quick)?);
        }
    }
    sheet.add_wrong(bench.store.wrong);
    Ok(())
}

/// Measures the latency of the index against traversals from the root, on a tree of `keys` keys scattered
/// over four memory nodes. The ids begin with `group`. With `caches`, caches of as many bytes are measured as
/// well.
pub(super) fn over_nodes<R: Racks>(
    plan: &Plan,
    racks: &mut R,
    (keys, group): (u64, &str),
    caches: bool,
    sheet: &mut Sheet<'_>,
) -> Result<(), R::Failure> {
    sheet.begins(&format!("a tree of {keys} keys on {} memory nodes", union::NODES));
    let rack = racks.start(union::NODES, NodeKind::Offload, union::memory_of(keys))?;
    let cpu = CpuMeter::with(racks.processes(&rack));
    let mut bench = Bench { store: Store::load(rack.as_ref(), keys, union::PIECES)?, cpu };
    let draw = Popularity::usual(keys).draw();
    let section = bench.store.section(Extent::default())?;
    let figures =
        bench.compare(&[LookupPath::Index, LookupPath::Root], &section, &draw, plan.effort(), true)?;
    let [index, root] = figures.as_slice() else { unreachable!("two paths were measured") };
    let n = index.latency.len();
    sheet.add([
        index.latency.row(&format!("{group}.latency"), Some(&root.latency)),
        rate_row(&format!("{group}.in_flight32"), &mut index.many.clone(), &mut root.many.clone(), n),
    ]);
    for changed in [0, 100].into_iter().filter(|_| caches) {
        sheet.begins("caches of as many bytes beside the index");
        sheet.add(baselines::measure(&mut bench.store, keys, changed, plan)?);
    }
    sheet.add_wrong(bench.store.wrong);
    Ok(())
}

/// Compares the index and relayed READs with this section in the switch.
fn beside_relayed(
    bench: &mut Bench,
    plan: &Plan,
    id: &str,
    section: &TreeSection,
    draw: &[u64],
    effort: Budget,
    sheet: &mut Sheet<'_>,
) -> Result<(), Error> {
    if !plan.wants(id) {
        return Ok(());
    }
    sheet.begins(id);
    let figures = bench.compare(&[LookupPath::Index, LookupPath::Relayed], section, draw, effort, false)?;
    let [index, relayed] = figures.as_slice() else { unreachable!("two paths were measured") };
    sheet.add(rows_beside(id, index, relayed));
    Ok(())
}

/// Returns the rows of figures 6 to 9: the index against READs on the same path.
fn rows_beside(id: &str, index: &Figures, relayed: &Figures) -> [Row; 4] {
    let n = index.latency.len();
    let of = |what: &str| format!("{id}.{what}");
    let p99 = |figures: &Figures| figures.latency.quantile(0.99);
    let visits = |figures: &Figures| to_f64(figures.visits) / to_f64(figures.latency.len());
    [
        index.latency.row(&of("latency"), Some(&relayed.latency)),
        Row::figure(of("p99"), "ns", p99(index), n).beside(Some(p99(relayed))),
        rate_row(&of("throughput"), &mut index.alone.clone(), &mut relayed.alone.clone(), n),
        Row::figure(of("visits"), "per operation", visits(index), n),
    ]
}

/// Returns the rows of figure 5, and more.
fn rows_of_scale(id: &str, figures: &[Figures]) -> Vec<Row> {
    let [index, root, relayed, direct] = figures else { unreachable!("four paths were measured") };
    let n = index.latency.len();
    let of = |what: &str| format!("{id}.{what}");
    let latency = |what: &str, baseline: &Figures| index.latency.row(&of(what), Some(&baseline.latency));
    let rate = |what: &str, ours: &[f64], theirs: &[f64]| {
        rate_row(&of(what), &mut ours.to_vec(), &mut theirs.to_vec(), n)
    };
    let p99 = |figures: &Figures| figures.latency.quantile(0.99);
    vec![
        latency("latency", relayed),
        Row::figure(of("p99"), "ns", p99(index), n).beside(Some(p99(relayed))),
        rate("throughput", &index.alone, &relayed.alone),
        Row::figure(of("round_trips"), "per operation", to_f64(index.round_trips) / to_f64(n), n),
        latency("latency.over_direct", direct),
        rate("throughput.over_direct", &index.alone, &direct.alone),
        latency("latency.over_root", root),
        rate("in_flight32.over_root", &index.many, &root.many),
    ]
}

/// Returns the free memory of this machine in bytes.
pub(super) fn free_memory() -> Option<u64> {
    use procfs_core::FromRead as _;
    let info = procfs_core::Meminfo::from_file("/proc/meminfo").ok()?;
    info.mem_available
}
