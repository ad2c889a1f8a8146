//! The paper's figures 4 to 11 from this machine's rows (SODA IV, VI).

use super::system::System;
use super::work::App;
use crate::Row;
use crate::drawing::{Labels, Points, bars, in_file, lines};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// A line figure over the request size: file, caption, measured value with its unit, and for each line its
/// name and the id parts around the bytes.
type Sizes = (&'static str, &'static str, &'static str, [(&'static str, &'static str, &'static str); 3]);

const INTRA: &str = "soda.link.intra.";
const NET: &str = "soda.link.net.";

const SIZES: [Sizes; 4] = [
    (
        "soda-4-bandwidth.svg",
        "figure 4: between host and DPU",
        "bandwidth (bytes/s)",
        [
            ("SEND", INTRA, ".send.bandwidth"),
            ("WRITE", INTRA, ".write.bandwidth"),
            ("a window's pages", INTRA, ".pages.bandwidth"),
        ],
    ),
    (
        "soda-4-latency.svg",
        "figure 4: between host and DPU",
        "latency (ns)",
        [
            ("SEND", INTRA, ".send.latency"),
            ("WRITE", INTRA, ".write.latency"),
            ("a window's pages", INTRA, ".pages.latency"),
        ],
    ),
    (
        "soda-5-bandwidth.svg",
        "figure 5: between host and DPU, and from the memory node",
        "bandwidth (bytes/s)",
        [("host and DPU", INTRA, ".send.bandwidth"), ("memory node", NET, ".bandwidth"), ("", "", "")],
    ),
    (
        "soda-5-latency.svg",
        "figure 5: between host and DPU, and from the memory node",
        "latency (ns)",
        [("host and DPU", INTRA, ".send.latency"), ("memory node", NET, ".latency"), ("", "", "")],
    ),
];

/// A bar figure: file, caption, measured value with its unit, and the rows, each with its group and name.
struct Bars {
    file: &'static str,
    caption: &'static str,
    up: &'static str,
    rows: Vec<(String, String, String)>,
}

/// Returns rows of all applications, in the order of the figure.
fn of_apps(
    apps: &[App],
    group: &str,
    ways: &[&str],
    id: impl Fn(&str, &str) -> String,
) -> Vec<(String, String, String)> {
    let row =
        |app: &App, way: &&str| (group.to_owned(), id(app.name(), way), format!("{} {way}", app.name()));
    apps.iter().flat_map(|app| ways.iter().map(move |way| row(app, way))).collect()
}

fn all_bars() -> Vec<Bars> {
    let names = |systems: &[System]| systems.iter().map(|system| system.name()).collect::<Vec<_>>();
    let runs = |systems: &[System]| {
        let names = names(systems);
        let of = |graph: &&str| {
            of_apps(&App::ALL, graph, &names, |app, way| format!("soda.run.{graph}.{app}.{way}"))
        };
        ["r35", "r55", "r221"].iter().flat_map(of).collect()
    };
    let shared = |what: &str| {
        let names = names(&[System::Server, System::ProcessStatic, System::ProcessAdaptive]);
        of_apps(&App::ALL, "", &names, |app, way| format!("soda.share.2.{app}.{way}.{what}"))
    };
    let counted = |systems: &[System], whats: &[&str]| {
        let names = names(systems);
        let graphs = ["r55", "r221"].iter();
        let each = graphs.flat_map(|graph| whats.iter().map(move |what| (graph, what)));
        let of = |(graph, what): (&&str, &&str)| {
            let group = format!("{graph} {what}");
            of_apps(&App::COUNTED, &group, &names, |app, way| {
                format!("soda.traffic.{graph}.{app}.{way}.{what}")
            })
        };
        each.flat_map(of).collect()
    };
    let steps = ["base", "aggregation", "async", "threads", "slow4", "static", "dynamic", "all"];
    let bars = |file, caption, up, rows| Bars { file, caption, up, rows };
    vec![
        bars("soda-6.svg", "figure 6: a disk and a memory node", "ns", runs(&[System::Disk, System::Server])),
        bars(
            "soda-7.svg",
            "figure 7: without a DPU, and by way of one",
            "ns",
            runs(&[System::Server, System::Dpu, System::Adaptive, System::Process, System::ProcessAdaptive]),
        ),
        bars("soda-8-bytes.svg", "figure 8: beside a breadth-first search", "bytes", shared("bytes")),
        bars("soda-8-time.svg", "figure 8: beside a breadth-first search", "ns", shared("time")),
        bars(
            "soda-9.svg",
            "figure 9: what moves, and what of it in the background",
            "bytes",
            counted(&[System::Server, System::Static, System::Dynamic], &["bytes", "background"]),
        ),
        bars(
            "soda-10.svg",
            "figure 10: requests that the dynamic cache had",
            "part of all",
            counted(&[System::Dynamic], &["hits"]),
        ),
        bars(
            "soda-11.svg",
            "figure 11: one optimisation each",
            "ns",
            of_apps(&App::ALL, "", &steps, |app, step| format!("soda.step.{app}.{step}")),
        ),
    ]
}

/// Draws the figures that have rows into files of `directory`, which is created.
pub(super) fn draw(directory: &Path, rows: &[Row]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    // Hits are drawn as a share of all requests.
    let figure = |row: &Row| if row.id.ends_with(".hits") { row.ratio } else { row.value };
    let values: BTreeMap<&str, f64> =
        rows.iter().filter_map(|row| Some((&*row.id, figure(row).filter(|value| *value > 0.0)?))).collect();
    for Bars { file, caption, up, rows } in &all_bars() {
        let mut groups: BTreeMap<&str, Vec<(&str, f64)>> = BTreeMap::new();
        for (group, id, name) in rows {
            if let Some(&value) = values.get(&**id) {
                groups.entry(group).or_default().push((name.as_str(), value));
            }
        }
        if !groups.is_empty() {
            in_file(directory, file, &mut |area| bars(area, caption, up, &groups))?;
        }
    }
    for &(file, caption, up, ref of) in &SIZES {
        let points = points(&values, of);
        if !points.is_empty() {
            let labels = Labels { caption, across: "bytes of a request, as a power of two", up };
            in_file(directory, file, &mut |area| lines(area, labels, of.map(|(name, ..)| name), &points))?;
        }
    }
    Ok(())
}

/// Returns the points of a line figure, by the log2 of the bytes. A line without a name has none.
fn points(values: &BTreeMap<&str, f64>, of: &[(&str, &str, &str); 3]) -> Points<3> {
    let mut points = Points::new();
    for (line, (_, before, behind)) in of.iter().enumerate().filter(|(_, (name, ..))| !name.is_empty()) {
        for (id, value) in values {
            let bytes = id.strip_prefix(before).and_then(|id| id.strip_suffix(behind)?.parse::<u64>().ok());
            if let Some(power) = bytes.and_then(u64::checked_ilog2) {
                points.entry(power.into()).or_insert([None; 3])[line] = Some(*value);
            }
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each figure contains its own rows. A figure without rows has no file, and unmeasured rows are left
    /// out.
    #[test]
    fn figures_are_of_their_rows() {
        let row = |id: &str, value: f64| Row::figure(id, "ns", value, 1);
        let rows = [
            row("soda.link.intra.4096.send.latency", 4e3),
            row("soda.link.intra.65536.send.latency", 9e3),
            row("soda.link.intra.65536.write.latency", 8e3),
            row("soda.link.net.65536.latency", 2e4),
            row("soda.run.r55.bfs.disk", 5e7),
            row("soda.run.r55.bfs.disk.over_local", 5e7),
            row("soda.traffic.r55.bfs.dpu.dynamic.hits", 61.0).beside(Some(100.0)),
            Row::absent("soda.step.bfs.base", "ns", "skipped: no faults"),
        ];
        let values: BTreeMap<&str, f64> =
            rows.iter().filter_map(|row| Some((&*row.id, row.value?))).collect();
        let expected = BTreeMap::from([(12, [Some(4e3), None, None]), (16, [Some(9e3), Some(2e4), None])]);
        assert_eq!(points(&values, &SIZES[3].3), expected);
        let directory = tempfile::tempdir().unwrap();
        draw(directory.path(), &rows).unwrap();
        let files = fs::read_dir(directory.path()).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        assert_eq!(files, ["soda-10.svg", "soda-4-latency.svg", "soda-5-latency.svg", "soda-6.svg"]);
        let drawn = fs::read_to_string(directory.path().join("soda-6.svg")).unwrap();
        assert!(
            drawn.contains("figure 6") && drawn.contains("bfs disk") && !drawn.contains("server"),
            "{drawn}"
        );
        assert!(draw(&directory.path().join("soda-6.svg"), &rows).is_err(), "that is a file");
    }
}
