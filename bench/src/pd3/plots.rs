//! The paper's figures from this machine's rows (PD3 8, and figures 2, 4 and 8). Figure 20 is missing: it
//! needs more application CPUs than exist.

use crate::Row;
use crate::drawing::{Labels, Points, bars, in_file, lines};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// The variants in the order of the paper's figures; the DPU variant has no name in ids.
const SYSTEMS: [(&str, &str); 7] = [
    ("sync", "sync"),
    ("lru", "LRU"),
    ("leap", "Leap"),
    ("batched", "batched"),
    ("async", "async"),
    ("", "PD3"),
    ("local", "local"),
];

/// Figures 10 to 13 (throughput) and 14 to 17 (latency): an application.
const APPLICATIONS: [(u32, &str, &str); 4] = [
    (10, "hash.uniform", "hash map, uniform"),
    (11, "hash.zipf", "hash map, zipf"),
    (12, "pages.uniform", "page server"),
    (13, "kv.uniform", "items asked for in RESP"),
];

/// A bar figure: file, caption, unit, and the rows, each with its group and name.
struct Bars {
    file: String,
    caption: String,
    unit: &'static str,
    of: Vec<(&'static str, String, &'static str)>,
}

/// A line figure: file, caption, varied parameter, measured value, and for each line its name and the id
/// parts around the parameter.
struct Line {
    file: &'static str,
    caption: &'static str,
    across: &'static str,
    up: &'static str,
    of: [(&'static str, &'static str, &'static str); 2],
}

const LINES: [Line; 6] = [
    Line {
        file: "pd3-2.svg",
        caption: "figure 2: throughput by what is here, READs one by one",
        across: "% of the items here",
        up: "throughput (1/s)",
        of: [("sync", "pd3.misses.", ""), ("", "", "")],
    },
    Line {
        file: "pd3-8.svg",
        caption: "figure 8: items taken out of the loading zone",
        across: "threads",
        up: "items (1/s)",
        of: [("loading zone", "pd3.zone.threads.", ""), ("", "", "")],
    },
    Line {
        file: "pd3-21.svg",
        caption: "figure 21: throughput by what is here",
        across: "% of the items here",
        up: "throughput (1/s)",
        of: [("PD3", "pd3.local.", ""), ("sync", "pd3.misses.", "")],
    },
    Line {
        file: "pd3-22.svg",
        caption: "figure 22: latency by what is here",
        across: "% of the items here",
        up: "latency (ns)",
        of: [("median", "pd3.local.", ".p50"), ("p99", "pd3.local.", ".p99")],
    },
    Line {
        file: "pd3-23.svg",
        caption: "figure 23: throughput by loading zone",
        across: "items of the zone",
        up: "throughput (1/s)",
        of: [("PD3", "pd3.zone.size.", ".throughput"), ("", "", "")],
    },
    Line {
        file: "pd3-24.svg",
        caption: "figure 24: latency by loading zone",
        across: "items of the zone",
        up: "latency (ns)",
        of: [("median", "pd3.zone.size.", ".p50"), ("p99", "pd3.zone.size.", ".p99")],
    },
];

/// Returns the bars for rows with a common prefix and these endings.
fn ladder(prefix: &str, names: &[&'static str]) -> Vec<(&'static str, String, &'static str)> {
    names.iter().map(|name| ("", format!("{prefix}{name}"), *name)).collect()
}

fn all_bars() -> Vec<Bars> {
    let mut all = vec![
        Bars {
            file: "pd3-4.svg".into(),
            caption: "figure 4: look-ups in the host view".into(),
            unit: "1/s",
            of: ladder(
                "pd3.hostview.",
                &["std", "hashbrown", "cuckoo", "huge", "batch", "simd", "delayed", "shards2"],
            ),
        },
        Bars {
            file: "pd3-19.svg".into(),
            caption: "figure 19: a key's way through the DPU, stage by stage".into(),
            unit: "ns",
            of: ladder("pd3.stages.", &["alone", "batched", "program", "zone", "view", "long"]),
        },
    ];
    for (number, id, name) in APPLICATIONS {
        let row = |way: &str, end: &str| match (way, end) {
            ("", "") => format!("pd3.e2e.{id}.throughput"),
            ("", end) => format!("pd3.e2e.{id}.{end}"),
            (way, "") => format!("pd3.e2e.{id}.{way}"),
            (way, end) => format!("pd3.e2e.{id}.{way}.{end}"),
        };
        all.push(Bars {
            file: format!("pd3-{number}.svg"),
            caption: format!("figure {number}: throughput, {name}"),
            unit: "1/s",
            of: SYSTEMS.map(|(way, system)| ("", row(way, ""), system)).to_vec(),
        });
        let latency = ["p50", "p99"].map(|end| SYSTEMS.map(|(way, system)| (end, row(way, end), system)));
        all.push(Bars {
            file: format!("pd3-{}.svg", number + 4),
            caption: format!("figure {}: latency, {name}", number + 4),
            unit: "ns",
            of: latency.concat(),
        });
    }
    let with = [("without", "no prefetching"), ("throughput", "PD3"), ("local", "local")];
    let of = ["hash", "pages", "kv"]
        .map(|app| with.map(|(row, name)| (app, format!("pd3.e2e.{app}.uniform.{row}"), name)));
    let caption = "figure 18: with and without prefetching".into();
    all.push(Bars { file: "pd3-18.svg".into(), caption, unit: "1/s", of: of.concat() });
    all
}

/// Draws the figures that have rows into files of `directory`, which is created.
pub(super) fn draw(directory: &Path, rows: &[Row]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let values: BTreeMap<&str, f64> =
        rows.iter().filter_map(|row| Some((&*row.id, row.value.filter(|value| *value > 0.0)?))).collect();
    for Bars { file, caption, unit, of } in &all_bars() {
        let mut groups: BTreeMap<&str, Vec<(&str, f64)>> = BTreeMap::new();
        for &(group, ref id, name) in of {
            if let Some(&value) = values.get(&**id) {
                groups.entry(group).or_default().push((name, value));
            }
        }
        if !groups.is_empty() {
            in_file(directory, file, &mut |area| bars(area, caption, unit, &groups))?;
        }
    }
    for Line { file, caption, across, up, of } in &LINES {
        let points = points(&values, of);
        if points.values().any(|[first, _]| first.is_some()) {
            let labels = Labels { caption, across, up };
            in_file(directory, file, &mut |area| lines(area, labels, of.map(|(name, ..)| name), &points))?;
        }
    }
    Ok(())
}

/// Returns the points of a figure with two lines. A line without a name has none.
fn points(values: &BTreeMap<&str, f64>, of: &[(&str, &str, &str); 2]) -> Points<2> {
    let mut points = Points::new();
    for (line, (name, before, behind)) in of.iter().enumerate() {
        for (id, value) in values {
            let varied = id.strip_prefix(before).and_then(|id| id.strip_suffix(behind)?.parse::<u64>().ok());
            if let Some(varied) = varied.filter(|_| !name.is_empty()) {
                points.entry(varied).or_insert([None; 2])[line] = Some(*value);
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
        let row = |id: &str, value: f64| Row::figure(id, "1/s", value, 1);
        let rows = [
            row("pd3.e2e.hash.uniform.sync", 1e5),
            row("pd3.e2e.hash.uniform.throughput", 2e6),
            row("pd3.e2e.hash.uniform.over_sync", 2e6),
            row("pd3.e2e.hash.uniform.leap.p99", 9e3),
            row("pd3.zone.size.512", 40.0),
            row("pd3.zone.size.512.p50", 100.0),
            row("pd3.zone.size.1024.p50", 90.0),
            row("pd3.zone.size.512.p99", 800.0),
            Row::absent("pd3.zone.size.2048.throughput", "1/s", "no memory"),
        ];
        let values: BTreeMap<&str, f64> =
            rows.iter().filter_map(|row| Some((&*row.id, row.value?))).collect();
        let latency = LINES.iter().find(|line| line.file == "pd3-24.svg").unwrap();
        let expected = BTreeMap::from([(512, [Some(100.0), Some(800.0)]), (1024, [Some(90.0), None])]);
        assert_eq!(points(&values, &latency.of), expected);
        let directory = tempfile::tempdir().unwrap();
        draw(directory.path(), &rows).unwrap();
        let files = fs::read_dir(directory.path()).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        assert_eq!(files, ["pd3-10.svg", "pd3-14.svg", "pd3-18.svg", "pd3-24.svg"]);
        let drawn = fs::read_to_string(directory.path().join("pd3-10.svg")).unwrap();
        assert!(drawn.contains("figure 10: throughput, hash map, uniform"), "{drawn}");
        assert!(drawn.contains("PD3") && drawn.contains("sync") && !drawn.contains("Leap"), "{drawn}");
        assert!(draw(&directory.path().join("pd3-10.svg"), &rows).is_err(), "that is a file");
    }

    /// Every row of a figure is a measured row.
    #[test]
    fn figures_are_of_rows_that_there_are() {
        let measured = super::super::ids();
        for (_, id, _) in all_bars().into_iter().flat_map(|bars| bars.of) {
            assert!(measured.contains(&id), "{id}");
        }
        for (name, before, behind) in LINES.iter().flat_map(|line| line.of) {
            let is_its = |id: &String| id.strip_prefix(before).is_some_and(|id| id.ends_with(behind));
            assert!(name.is_empty() || measured.iter().any(is_its), "{before}*{behind}");
        }
    }
}
