//! Requests per second of `farmem kv`, redis-server and memcached in one run, as bars: a figure with all data
//! local, one with most of it far.

use crate::Row;
use crate::drawing::{bars, in_file};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// The end of a row's id, the file, and the caption.
const FIGURES: [(&str, &str, &str); 2] = [
    (".local", "kv-local.svg", "all data in local memory"),
    (".far", "kv-far.svg", "a twentieth of the data in local memory"),
];

/// Draws the figures that have rows into files of `directory`, which is created.
pub(super) fn draw(directory: &Path, rows: &[Row]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for (end, file, caption) in FIGURES {
        let mut groups: BTreeMap<&str, Vec<(&str, f64)>> = BTreeMap::new();
        for row in rows {
            let Some(name) = row.id.strip_prefix("kv.").and_then(|id| id.strip_suffix(end)) else { continue };
            let theirs = if name.starts_with("memcached.") { "memcached" } else { "redis-server" };
            for (system, rate) in [("farmem kv", row.value), (theirs, row.baseline)] {
                if let Some(rate) = rate.filter(|rate| *rate > 0.0) {
                    groups.entry(system).or_default().push((name, rate));
                }
            }
        }
        if !groups.is_empty() {
            in_file(directory, file, &mut |area| bars(area, caption, "requests (1/s)", &groups))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A figure has a bar for each server of each of its rows, and no file without rows.
    #[test]
    fn each_place_has_a_figure() {
        let row = |id: &str, ours, theirs| Row::figure(id, "1/s", ours, 1).beside(Some(theirs));
        let rows = [
            row("kv.get.p1.far", 100.0, 90.0),
            row("kv.memcached.set.p16.far", 300.0, 400.0),
            row("kv.connections", 10_000.0, 10_000.0),
        ];
        let directory = tempfile::tempdir().unwrap();
        draw(directory.path(), &rows).unwrap();
        let figure = fs::read_to_string(directory.path().join("kv-far.svg")).unwrap();
        let named = ["farmem kv get.p1", "redis-server get.p1", "farmem kv memcached.set.p16"];
        assert!(named.iter().all(|name| figure.contains(name)), "{figure}");
        assert!(figure.contains("memcached memcached.set.p16") && !figure.contains("connections"));
        assert!(!directory.path().join("kv-local.svg").exists());
    }
}
