//! The paper's figures 5 to 10 from this machine's rows: the index against the path that it replaces, over
//! the varied parameter (Fat-B+Tree V).

use crate::Row;
use crate::drawing::{Area, Drawn, Labels, Points, in_file, lines};
use std::fs;
use std::io;
use std::path::Path;

/// A figure: its file, the paper's caption, its rows, the varied parameter, and the measured value.
struct Figure {
    file: &'static str,
    caption: &'static str,
    rows: &'static str,
    varied: &'static str,
    told: &'static str,
    unit: &'static str,
}

const LATENCY: (&str, &str) = ("latency", "ns");
const THROUGHPUT: (&str, &str) = ("throughput", "1/s");

const fn figure(
    file: &'static str,
    caption: &'static str,
    rows: &'static str,
    varied: &'static str,
    (told, unit): (&'static str, &'static str),
) -> Figure {
    Figure { file, caption, rows, varied, told, unit }
}

const FIGURES: [Figure; 15] = [
    figure("fat-5-latency.svg", "figure 5: latency by scale", "fat.e2e.scale.", "keys", LATENCY),
    figure("fat-5-throughput.svg", "figure 5: throughput by scale", "fat.e2e.scale.", "keys", THROUGHPUT),
    figure(
        "fat-6-latency.svg",
        "figure 6: latency by variation",
        "fat.e2e.drift.",
        "% of look-ups that are others",
        LATENCY,
    ),
    figure(
        "fat-6-throughput.svg",
        "figure 6: throughput by variation",
        "fat.e2e.drift.",
        "% of look-ups that are others",
        THROUGHPUT,
    ),
    figure("fat-7-latency.svg", "figure 7: latency by skew", "fat.e2e.zipf.", "skew, in hundredths", LATENCY),
    figure(
        "fat-7-throughput.svg",
        "figure 7: throughput by skew",
        "fat.e2e.zipf.",
        "skew, in hundredths",
        THROUGHPUT,
    ),
    figure(
        "fat-8-latency.svg",
        "figure 8: latency by loaded nodes",
        "fat.e2e.nodes.",
        "nodes of a set",
        LATENCY,
    ),
    figure(
        "fat-8-throughput.svg",
        "figure 8: throughput by loaded nodes",
        "fat.e2e.nodes.",
        "nodes of a set",
        THROUGHPUT,
    ),
    figure("fat-9-latency.svg", "figure 9: latency by loaded layers", "fat.e2e.layers.", "sets", LATENCY),
    figure(
        "fat-9-throughput.svg",
        "figure 9: throughput by loaded layers",
        "fat.e2e.layers.",
        "sets",
        THROUGHPUT,
    ),
    figure("fat-10a.svg", "figure 10 (a): four servers, by scale", "fat.server.scale.", "keys", THROUGHPUT),
    figure(
        "fat-10b.svg",
        "figure 10 (b): by clients, measured",
        "fat.server.clients.",
        "clients",
        THROUGHPUT,
    ),
    figure(
        "fat-10b-played.svg",
        "figure 10 (b): by clients, in virtual time",
        "fat.server.sim.clients.",
        "clients",
        THROUGHPUT,
    ),
    figure(
        "fat-10c.svg",
        "figure 10 (c): by reads",
        "fat.server.mixed.",
        "reads of a hundred operations",
        THROUGHPUT,
    ),
    figure("fat-10d.svg", "figure 10 (d): by skew", "fat.server.zipf.", "skew, in hundredths", THROUGHPUT),
];

/// Draws the figures that have rows into files of `directory`, which is created.
pub(super) fn draw(directory: &Path, rows: &[Row]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for figure in &FIGURES {
        let points = figure.points(rows);
        if !points.is_empty() {
            in_file(directory, figure.file, &mut |area| figure.draw(area, &points))?;
        }
    }
    Ok(())
}

impl Figure {
    /// Returns the points: with the index, and the baseline.
    fn points(&self, rows: &[Row]) -> Points<2> {
        let point = |row: &Row| {
            let varied = row.id.strip_prefix(self.rows)?.strip_suffix(self.told)?.strip_suffix('.')?;
            let both = [row.value, row.baseline];
            Some((varied.parse().ok()?, both)).filter(|_| row.value.is_some())
        };
        rows.iter().filter_map(point).collect()
    }

    fn draw(&self, area: &Area<'_>, points: &Points<2>) -> Drawn {
        let up = format!("{} ({})", self.told, self.unit);
        let labels = Labels { caption: self.caption, across: self.varied, up: &up };
        lines(area, labels, ["with the index", "without"], points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Each figure contains its own rows in the order of the varied parameter; a figure without rows has no
    /// file.
    #[test]
    fn figures_are_of_their_rows() {
        let row = |id: &str, value: f64| Row::figure(id, "ns", value, 1).beside(Some(2.0 * value));
        let rows = [
            row("fat.e2e.scale.10000000.latency", 30.0),
            row("fat.e2e.scale.1000000.latency", 20.0),
            row("fat.e2e.scale.1000000.latency.over_direct", 7.0),
            row("fat.e2e.scale.1000000.throughput", 5.0),
            row("fat.server.sim.clients.4.throughput", 5.0),
            Row::absent("fat.server.scale.5.throughput", "1/s", "no memory"),
        ];
        let points = FIGURES[0].points(&rows);
        assert_eq!(
            points,
            BTreeMap::from([(1_000_000, [Some(20.0), Some(40.0)]), (10_000_000, [Some(30.0), Some(60.0)])])
        );
        let directory = tempfile::tempdir().unwrap();
        draw(directory.path(), &rows).unwrap();
        let mut files: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        assert_eq!(files, ["fat-10b-played.svg", "fat-5-latency.svg", "fat-5-throughput.svg"]);
        let drawn = fs::read_to_string(directory.path().join("fat-5-latency.svg")).unwrap();
        assert!(drawn.contains("figure 5: latency by scale") && drawn.contains("with the index"), "{drawn}");
        // No file where one cannot be created.
        assert!(draw(&directory.path().join("fat-5-latency.svg"), &rows).is_err());
    }
}
