//! Figures as SVG without embedded fonts: the share of operations that cross memory nodes by granularity and
//! its distribution (PULSE figure 2), and a comparison of the systems (figure 7).

use super::scatter::{GRANULARITIES, Line};
use crate::drawing::{self, Area, Drawn, FONT, colour};
use crate::{Row, to_f64};
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// Draws the available figures into files of `directory`, which is created.
pub(super) fn draw(directory: &Path, lines: &[Line], rows: &[Row]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let in_file =
        |name: &str, draw: &mut dyn FnMut(&Area<'_>) -> Drawn| drawing::in_file(directory, name, draw);
    if !lines.is_empty() {
        in_file("pulse-crossing.svg", &mut |area| crossing(area, lines))?;
        in_file("pulse-crossings.svg", &mut |area| distribution(area, lines))?;
    }
    for (name, unit) in [("latency", "ns"), ("throughput", "1/s")] {
        let systems = of_systems(rows, name);
        if !systems.is_empty() {
            // Figure 7: a group of bars for each application.
            let caption = format!("{name} ({unit}), by application, memory nodes and system");
            in_file(&format!("pulse-{name}.svg"), &mut |area| drawing::bars(area, &caption, unit, &systems))?;
        }
    }
    Ok(())
}

/// Draws figure 2 (b): the share of operations that cross, by granularity.
fn crossing(area: &Area<'_>, lines: &[Line]) -> Drawn {
    let last = GRANULARITIES.len() - 1;
    let mut chart = ChartBuilder::on(area)
        .caption("operations that cross memory nodes", FONT)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0..last, 0.0..1.0)?;
    let granularity =
        |at: &usize| GRANULARITIES.get(*at).map_or_else(String::new, |(name, _)| (*name).into());
    chart
        .configure_mesh()
        .x_desc("bytes of a piece")
        .y_desc("share of operations")
        .x_labels(GRANULARITIES.len())
        .x_label_formatter(&granularity)
        .draw()?;
    for (n, (structure, of)) in by_structure(lines).into_iter().enumerate() {
        let share = |line: &&Line| to_f64(line.counted.crossed(1)) / to_f64(line.counted.operations);
        let points: Vec<_> = of.iter().map(share).enumerate().collect();
        chart
            .draw_series(LineSeries::new(points, &colour(n)))?
            .label(structure)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour(n)));
    }
    chart.configure_series_labels().border_style(BLACK).draw()?;
    Ok(())
}

/// Draws figure 2 (c): the share of operations with at most a number of crossings.
fn distribution(area: &Area<'_>, lines: &[Line]) -> Drawn {
    let most =
        lines.iter().filter_map(|line| line.counted.crossings.last()).max().copied().unwrap_or(1).max(1);
    let mut chart = ChartBuilder::on(area)
        .caption("crossings of an operation", FONT)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0..most, 0.0..1.0)?;
    chart.configure_mesh().x_desc("crossings").y_desc("share of operations with at most so many").draw()?;
    for (n, line) in lines.iter().enumerate() {
        let total = to_f64(line.counted.operations);
        let points = (0..=most).map(|at| (at, 1.0 - to_f64(line.counted.crossed(at + 1)) / total));
        chart
            .draw_series(LineSeries::new(points, &colour(n % GRANULARITIES.len())))?
            .label(format!("{} {}", line.structure, line.granularity))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour(n % GRANULARITIES.len())));
    }
    chart.configure_series_labels().border_style(BLACK).position(SeriesLabelPosition::LowerRight).draw()?;
    Ok(())
}

fn by_structure(lines: &[Line]) -> BTreeMap<&'static str, Vec<&Line>> {
    let mut structures: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in lines {
        structures.entry(line.structure).or_default().push(line);
    }
    structures
}

/// Groups the systems and their figures by application, mix and nodes.
fn of_systems<'r>(rows: &'r [Row], what: &str) -> BTreeMap<&'r str, Vec<(&'r str, f64)>> {
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for row in rows {
        let parts =
            row.id.strip_prefix("pulse.systems.").and_then(|id| id.strip_suffix(what)?.strip_suffix('.'));
        let parts = parts.and_then(|id| id.rsplit_once('.'));
        if let (Some((group, system)), Some(value)) = (parts, row.value) {
            groups.entry(group).or_default().push((system, value));
        }
    }
    groups
}
