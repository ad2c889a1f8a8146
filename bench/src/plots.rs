//! The figures of all benchmarks, after those of the papers, drawn from the rows of one run.
//!
//! A function for each benchmark returns its figures; [`draw`] writes those that have points. Figure 20 of PD3
//! is missing, because it needs more CPUs for the application than a benchmark machine has.

use crate::Row;
use crate::drawing::{Groups, Labels, Line, bars, in_file, lines};
use crate::pulse::Crossings;
use crate::soda::{App, System};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// A figure, with the points that the run has for it.
pub(crate) struct Figure {
    file: String,
    caption: String,
    /// The measured value, with its unit.
    up: String,
    form: Form,
}

enum Form {
    /// Lines over a varied parameter.
    Lines { across: &'static str, lines: Vec<Line> },
    /// Bars by group.
    Bars(Groups),
}

/// Writes the figures that have points into files of `directory`, which is created.
pub(crate) fn draw(directory: &Path, figures: &[Figure]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for Figure { file, caption, up, form } in figures {
        match form {
            Form::Lines { across, lines: all } if all.iter().any(|line| !line.points.is_empty()) => {
                in_file(directory, file, &mut |area| lines(area, Labels { caption, across, up }, all))?;
            }
            Form::Bars(groups) if !groups.is_empty() => {
                in_file(directory, file, &mut |area| bars(area, caption, up, groups))?;
            }
            Form::Lines { .. } | Form::Bars(_) => {}
        }
    }
    Ok(())
}

fn value(row: &Row) -> Option<f64> {
    row.value
}

/// Returns the baseline of a row that has a value, too.
fn baseline(row: &Row) -> Option<f64> {
    row.value.and(row.baseline)
}

/// Returns the line of the rows whose ids have a number between `before` and `behind`.
fn line(
    rows: &[Row],
    name: &str,
    (before, behind): (&str, &str),
    figure: impl Fn(&Row) -> Option<f64>,
) -> Line {
    let number = |row: &Row| row.id.strip_prefix(before)?.strip_suffix(behind)?.parse().ok();
    let points = rows.iter().filter_map(|row| Some((number(row)?, figure(row)?))).collect();
    Line { name: name.to_owned(), points }
}

/// A bar: its group, the id of its row, and its name.
type Bar = (String, String, String);

/// Returns the groups of the bars whose rows have a figure above zero.
fn groups(rows: &[Row], bars: impl IntoIterator<Item = Bar>, figure: impl Fn(&Row) -> Option<f64>) -> Groups {
    let figures: BTreeMap<&str, f64> =
        rows.iter().filter_map(|row| Some((&*row.id, figure(row).filter(|figure| *figure > 0.0)?))).collect();
    let mut groups = Groups::new();
    for (group, id, name) in bars {
        if let Some(&figure) = figures.get(&*id) {
            groups.entry(group).or_default().push((name, figure));
        }
    }
    groups
}

/// Returns figures 5 to 10 of Fat-B+Tree: the index compared with the path that it replaces.
pub(crate) fn fat(rows: &[Row]) -> Vec<Figure> {
    const THROUGHPUT: (&str, &str) = ("throughput", "1/s");
    const BOTH: [(&str, &str); 2] = [("latency", "ns"), THROUGHPUT];
    let figure = |file: String, caption: String, prefix: &str, across, (told, unit): (&str, &str)| {
        let (before, behind) = (format!("fat.{prefix}."), format!(".{told}"));
        let around = (before.as_str(), behind.as_str());
        let lines =
            vec![line(rows, "with the index", around, value), line(rows, "without", around, baseline)];
        Figure { file, caption, up: format!("{told} ({unit})"), form: Form::Lines { across, lines } }
    };
    let of_look_ups = [
        (5, "scale", "e2e.scale", "keys"),
        (6, "variation", "e2e.drift", "% of look-ups that are others"),
        (7, "skew", "e2e.zipf", "skew, in hundredths"),
        (8, "loaded nodes", "e2e.nodes", "nodes of a set"),
        (9, "loaded layers", "e2e.layers", "sets"),
    ];
    let of_servers = [
        ("10a", "figure 10 (a): four servers, by scale", "server.scale", "keys"),
        ("10b", "figure 10 (b): by clients, measured", "server.clients", "clients"),
        ("10b-played", "figure 10 (b): by clients, in virtual time", "server.sim.clients", "clients"),
        ("10c", "figure 10 (c): by reads", "server.mixed", "reads of a hundred operations"),
        ("10d", "figure 10 (d): by skew", "server.zipf", "skew, in hundredths"),
    ];
    let look_ups = of_look_ups.into_iter().flat_map(|(number, by, prefix, across)| {
        BOTH.map(|told| {
            let caption = format!("figure {number}: {} by {by}", told.0);
            figure(format!("fat-{number}-{}.svg", told.0), caption, prefix, across, told)
        })
    });
    let servers = of_servers.into_iter().map(|(number, caption, prefix, across)| {
        figure(format!("fat-{number}.svg"), caption.into(), prefix, across, THROUGHPUT)
    });
    look_ups.chain(servers).collect()
}

/// Returns requests per second of `farmem kv`, redis-server and memcached: a figure with all data local, one
/// with most of it far.
pub(crate) fn kv(rows: &[Row]) -> Vec<Figure> {
    let figure = |(end, file, caption): (&str, &str, &str)| {
        let name = |row: &Row| Some(row.id.strip_prefix("kv.")?.strip_suffix(end)?.to_owned());
        let named = || rows.iter().filter_map(|row| Some((row.id.clone(), name(row)?)));
        let theirs = |name: &str| if name.starts_with("memcached.") { "memcached" } else { "redis-server" };
        let ours = named().map(|(id, name)| ("farmem kv".to_owned(), id, name));
        let mut all = groups(rows, ours, value);
        all.extend(groups(rows, named().map(|(id, name)| (theirs(&name).into(), id, name)), baseline));
        Figure {
            file: file.into(),
            caption: caption.into(),
            up: "requests (1/s)".into(),
            form: Form::Bars(all),
        }
    };
    let all = [
        (".local", "kv-local.svg", "all data in local memory"),
        (".far", "kv-far.svg", "a twentieth of the data in local memory"),
    ];
    all.map(figure).into()
}

/// Returns figures 2 (b), 2 (c) and 7 of PULSE: operations that cross memory nodes by the size of a piece, the
/// distribution of their crossings, and the systems by application.
pub(crate) fn pulse(rows: &[Row], crossings: &[Crossings]) -> Vec<Figure> {
    let mut of_structures: Vec<Line> = Vec::new();
    for of in crossings {
        if of_structures.last().is_none_or(|line| line.name != of.structure) {
            of_structures.push(Line { name: of.structure.into(), points: BTreeMap::new() });
        }
        let line = of_structures.last_mut().expect("one was added");
        line.points.insert(of.bytes.ilog2().into(), of.share(1));
    }
    let most = crossings.iter().map(Crossings::most).max().unwrap_or(1);
    let distribution = crossings.iter().map(|of| Line {
        name: format!("{} {}", of.structure, of.granularity),
        points: (0..=most).map(|at| (at, 1.0 - of.share(at + 1))).collect(),
    });
    let mut all = vec![
        Figure {
            file: "pulse-crossing.svg".into(),
            caption: "operations that cross memory nodes".into(),
            up: "share of operations".into(),
            form: Form::Lines { across: "bytes of a piece, as a power of two", lines: of_structures },
        },
        Figure {
            file: "pulse-crossings.svg".into(),
            caption: "crossings of an operation".into(),
            up: "share of operations with at most so many".into(),
            form: Form::Lines { across: "crossings", lines: distribution.collect() },
        },
    ];
    for (told, unit) in [("latency", "ns"), ("throughput", "1/s")] {
        let end = format!(".{told}");
        let bar = |row: &Row| {
            let (group, system) =
                row.id.strip_prefix("pulse.systems.")?.strip_suffix(&end)?.rsplit_once('.')?;
            Some((group.to_owned(), row.id.clone(), system.to_owned()))
        };
        all.push(Figure {
            file: format!("pulse-{told}.svg"),
            caption: format!("{told} ({unit}), by application, memory nodes and system"),
            up: unit.into(),
            form: Form::Bars(groups(rows, rows.iter().filter_map(bar), value)),
        });
    }
    all
}

/// Returns figures 4 to 11 of SODA.
pub(crate) fn soda(rows: &[Row]) -> Vec<Figure> {
    const INTRA: &str = "soda.link.intra.";
    const NET: &str = "soda.link.net.";
    let mut all = Vec::new();
    for (told, unit) in [("bandwidth", "bytes/s"), ("latency", "ns")] {
        let of = |name, before, way: &str| {
            let Line { name, points } = line(rows, name, (before, &format!("{way}.{told}")), value);
            let powers = points.into_iter().filter_map(|(bytes, y)| Some((bytes.checked_ilog2()?.into(), y)));
            Line { name, points: powers.collect() }
        };
        let ways = [("SEND", ".send"), ("WRITE", ".write"), ("a window's pages", ".pages")];
        let intra = ways.map(|(name, way)| of(name, INTRA, way)).into();
        let net = vec![of("host and DPU", INTRA, ".send"), of("memory node", NET, "")];
        for (number, caption, lines) in [
            (4, "figure 4: between host and DPU", intra),
            (5, "figure 5: between host and DPU, and from the memory node", net),
        ] {
            all.push(Figure {
                file: format!("soda-{number}-{told}.svg"),
                caption: caption.into(),
                up: format!("{told} ({unit})"),
                form: Form::Lines { across: "bytes of a request, as a power of two", lines },
            });
        }
    }
    all.extend(soda_bars().into_iter().map(|(file, caption, up, bars)| {
        // Hits are drawn as a share of all requests.
        let figure = |row: &Row| if row.id.ends_with(".hits") { row.ratio } else { row.value };
        let form = Form::Bars(groups(rows, bars, figure));
        Figure { file: format!("soda-{file}.svg"), caption: caption.into(), up: up.into(), form }
    }));
    all
}

/// Returns the bar figures of SODA: the file's part, the caption, the measured value, and the bars.
fn soda_bars() -> [(&'static str, &'static str, &'static str, Vec<Bar>); 7] {
    use System::{Adaptive, Disk, Dpu, Dynamic, Process, ProcessAdaptive, ProcessStatic, Server, Static};
    let names = |systems: &[System]| systems.iter().map(|system| system.name()).collect::<Vec<_>>();
    let of_apps = |apps: &[App], group: &str, ways: &[&str], id: &dyn Fn(&str, &str) -> String| {
        let bar =
            |app: &App, way: &&str| (group.to_owned(), id(app.name(), way), format!("{} {way}", app.name()));
        apps.iter().flat_map(|app| ways.iter().map(move |way| bar(app, way))).collect::<Vec<_>>()
    };
    let runs = |systems: &[System]| {
        let of = |graph| {
            of_apps(&App::ALL, graph, &names(systems), &|app, way| format!("soda.run.{graph}.{app}.{way}"))
        };
        ["r35", "r55", "r221"].into_iter().flat_map(of).collect()
    };
    let shared = |told: &str| {
        let systems = names(&[Server, ProcessStatic, ProcessAdaptive]);
        of_apps(&App::ALL, "", &systems, &|app, way| format!("soda.share.2.{app}.{way}.{told}"))
    };
    let counted = |systems: &[System], told: &[&str]| {
        let each = ["r55", "r221"].into_iter().flat_map(|graph| told.iter().map(move |told| (graph, told)));
        let of = |(graph, told): (&str, &&str)| {
            of_apps(&App::COUNTED, &format!("{graph} {told}"), &names(systems), &|app, way| {
                format!("soda.traffic.{graph}.{app}.{way}.{told}")
            })
        };
        each.flat_map(of).collect()
    };
    let steps = ["base", "aggregation", "async", "threads", "slow4", "static", "dynamic", "all"];
    let step = |app: &str, step: &str| format!("soda.step.{app}.{step}");
    let beside = "figure 8: beside a breadth-first search";
    [
        ("6", "figure 6: a disk and a memory node", "ns", runs(&[Disk, Server])),
        (
            "7",
            "figure 7: without a DPU, and by way of one",
            "ns",
            runs(&[Server, Dpu, Adaptive, Process, ProcessAdaptive]),
        ),
        ("8-bytes", beside, "bytes", shared("bytes")),
        ("8-time", beside, "ns", shared("time")),
        (
            "9",
            "figure 9: what moves, and what of it in the background",
            "bytes",
            counted(&[Server, Static, Dynamic], &["bytes", "background"]),
        ),
        (
            "10",
            "figure 10: requests that the dynamic cache had",
            "part of all",
            counted(&[Dynamic], &["hits"]),
        ),
        ("11", "figure 11: one optimisation each", "ns", of_apps(&App::ALL, "", &steps, &step)),
    ]
}

/// The id of the rows of a line on both sides of the varied parameter, after the line's name.
type PrefetchLine = (&'static str, &'static str, &'static str);

/// The line figures of PD3: file, caption, varied parameter, measured value, and lines.
const PREFETCH_LINES: [(u32, &str, &str, &str, &[PrefetchLine]); 6] = [
    (
        2,
        "throughput by what is here, READs one by one",
        "% of the items here",
        "throughput (1/s)",
        &[("sync", "pd3.misses.", "")],
    ),
    (
        8,
        "items taken out of the loading zone",
        "threads",
        "items (1/s)",
        &[("loading zone", "pd3.zone.threads.", "")],
    ),
    (
        21,
        "throughput by what is here",
        "% of the items here",
        "throughput (1/s)",
        &[("PD3", "pd3.local.", ""), ("sync", "pd3.misses.", "")],
    ),
    (
        22,
        "latency by what is here",
        "% of the items here",
        "latency (ns)",
        &[("median", "pd3.local.", ".p50"), ("p99", "pd3.local.", ".p99")],
    ),
    (
        23,
        "throughput by loading zone",
        "items of the zone",
        "throughput (1/s)",
        &[("PD3", "pd3.zone.size.", ".throughput")],
    ),
    (
        24,
        "latency by loading zone",
        "items of the zone",
        "latency (ns)",
        &[("median", "pd3.zone.size.", ".p50"), ("p99", "pd3.zone.size.", ".p99")],
    ),
];

/// Returns the figures of PD3 8, and figures 2, 4 and 8.
pub(crate) fn pd3(rows: &[Row]) -> Vec<Figure> {
    let file = |number: u32| format!("pd3-{number}.svg");
    let bars = pd3_bars().into_iter().map(|(number, caption, unit, bars)| Figure {
        file: file(number),
        caption: format!("figure {number}: {caption}"),
        up: unit.into(),
        form: Form::Bars(groups(rows, bars, value)),
    });
    let lines = PREFETCH_LINES.into_iter().map(|(number, caption, across, up, of)| {
        let lines = of.iter().map(|(name, before, behind)| line(rows, name, (before, behind), value));
        Figure {
            file: file(number),
            caption: format!("figure {number}: {caption}"),
            up: up.into(),
            form: Form::Lines { across, lines: lines.collect() },
        }
    });
    bars.chain(lines).collect()
}

/// Returns the bar figures of PD3: number, caption, unit, and bars.
fn pd3_bars() -> Vec<(u32, String, &'static str, Vec<Bar>)> {
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
    let ladder = |prefix: &str, names: &[&str]| {
        let bar = |name: &&str| (String::new(), format!("{prefix}{name}"), (*name).to_owned());
        names.iter().map(bar).collect::<Vec<_>>()
    };
    let host_view = ["std", "hashbrown", "cuckoo", "huge", "batch", "simd", "delayed", "shards2"];
    let stages = ["alone", "batched", "program", "zone", "view", "long"];
    let mut all = vec![
        (4, "look-ups in the host view".to_owned(), "1/s", ladder("pd3.hostview.", &host_view)),
        (19, "a key's way through the DPU, stage by stage".into(), "ns", ladder("pd3.stages.", &stages)),
    ];
    for (number, id, name) in APPLICATIONS {
        let bar = |end: &str, way: &str, system: &str| {
            let parts = [way, if way.is_empty() && end.is_empty() { "throughput" } else { end }];
            let row = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
            (end.to_owned(), format!("pd3.e2e.{id}.{row}"), system.to_owned())
        };
        let bars = |end: &'static str| SYSTEMS.map(|(way, system)| bar(end, way, system));
        all.push((number, format!("throughput, {name}"), "1/s", bars("").to_vec()));
        all.push((number + 4, format!("latency, {name}"), "ns", [bars("p50"), bars("p99")].concat()));
    }
    let with = [("without", "no prefetching"), ("throughput", "PD3"), ("local", "local")];
    let of = ["hash", "pages", "kv"].map(|app| {
        with.map(|(row, name)| (app.to_owned(), format!("pd3.e2e.{app}.uniform.{row}"), name.to_owned()))
    });
    all.push((18, "with and without prefetching".into(), "1/s", of.concat()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pulse::Counted;

    fn row(id: &str, value: f64) -> Row {
        Row::figure(id, "ns", value, 1)
    }

    /// Draws the figures, and returns the sorted names of the files and the text of the one with this name.
    fn drawn(figures: &[Figure], name: &str) -> (Vec<String>, String) {
        let directory = tempfile::tempdir().unwrap();
        draw(directory.path(), figures).unwrap();
        let files = fs::read_dir(directory.path()).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        let file = directory.path().join(name);
        assert!(draw(&file, figures).is_err(), "a file is no directory");
        (files, fs::read_to_string(file).unwrap())
    }

    fn points<'f>(figures: &'f [Figure], file: &str) -> Vec<&'f BTreeMap<u64, f64>> {
        let figure = figures.iter().find(|figure| figure.file == file).unwrap();
        let Form::Lines { lines, .. } = &figure.form else { panic!("{file} has lines") };
        lines.iter().map(|line| &line.points).collect()
    }

    /// Lines contain their own rows in the order of the varied parameter, with their baselines. A row without
    /// a value has no baseline, and a figure without rows no file.
    #[test]
    fn lines_have_their_rows_and_baselines() {
        let beside = |id: &str, value: f64| row(id, value).beside(Some(2.0 * value));
        let figures = fat(&[
            beside("fat.e2e.scale.10000000.latency", 30.0),
            beside("fat.e2e.scale.1000000.latency", 20.0),
            beside("fat.e2e.scale.1000000.latency.over_direct", 7.0),
            beside("fat.e2e.scale.1000000.throughput", 5.0),
            beside("fat.server.sim.clients.4.throughput", 5.0),
            Row::absent("fat.server.scale.5.throughput", "1/s", "no memory").beside(Some(3.0)),
        ]);
        assert_eq!(figures.len(), 15);
        let with = BTreeMap::from([(1_000_000, 20.0), (10_000_000, 30.0)]);
        let without = BTreeMap::from([(1_000_000, 40.0), (10_000_000, 60.0)]);
        assert_eq!(points(&figures, "fat-5-latency.svg"), [&with, &without]);
        let (files, text) = drawn(&figures, "fat-5-latency.svg");
        assert_eq!(files, ["fat-10b-played.svg", "fat-5-latency.svg", "fat-5-throughput.svg"]);
        assert!(text.contains("figure 5: latency by scale") && text.contains("with the index"), "{text}");
    }

    /// Each place of the data has a figure, with a bar for each server of each of its rows.
    #[test]
    fn servers_have_bars() {
        let beside = |id: &str, ours, theirs| row(id, ours).beside(Some(theirs));
        let figures = kv(&[
            beside("kv.get.p1.far", 100.0, 90.0),
            beside("kv.memcached.set.p16.far", 300.0, 400.0),
            beside("kv.connections", 10_000.0, 10_000.0),
        ]);
        let (files, text) = drawn(&figures, "kv-far.svg");
        assert_eq!(files, ["kv-far.svg"]);
        let named = ["farmem kv get.p1", "redis-server get.p1", "farmem kv memcached.set.p16"];
        assert!(named.iter().all(|name| text.contains(name)), "{text}");
        assert!(text.contains("memcached memcached.set.p16") && !text.contains("connections"));
    }

    /// Sizes are drawn as powers of two, and unmeasured rows are left out.
    #[test]
    fn sizes_are_powers_of_two() {
        let figures = soda(&[
            row("soda.link.intra.4096.send.latency", 4e3),
            row("soda.link.intra.65536.send.latency", 9e3),
            row("soda.link.intra.65536.write.latency", 8e3),
            row("soda.link.net.65536.latency", 2e4),
            row("soda.run.r55.bfs.disk", 5e7),
            row("soda.run.r55.bfs.disk.over_local", 5e7),
            row("soda.traffic.r55.bfs.dpu.dynamic.hits", 61.0).beside(Some(100.0)),
            Row::absent("soda.step.bfs.base", "ns", "skipped: no faults"),
        ]);
        let (send, net) = (BTreeMap::from([(12, 4e3), (16, 9e3)]), BTreeMap::from([(16, 2e4)]));
        assert_eq!(points(&figures, "soda-5-latency.svg"), [&send, &net]);
        let (files, text) = drawn(&figures, "soda-6.svg");
        assert_eq!(files, ["soda-10.svg", "soda-4-latency.svg", "soda-5-latency.svg", "soda-6.svg"]);
        assert!(text.contains("figure 6") && text.contains("bfs disk") && !text.contains("server"), "{text}");
    }

    /// Bars and lines of PD3 contain their own rows; a row with another ending belongs to no figure.
    #[test]
    fn prefetching_has_bars_and_lines() {
        let figures = pd3(&[
            row("pd3.e2e.hash.uniform.sync", 1e5),
            row("pd3.e2e.hash.uniform.throughput", 2e6),
            row("pd3.e2e.hash.uniform.over_sync", 2e6),
            row("pd3.e2e.hash.uniform.leap.p99", 9e3),
            row("pd3.zone.size.512", 40.0),
            row("pd3.zone.size.512.p50", 100.0),
            row("pd3.zone.size.1024.p50", 90.0),
            row("pd3.zone.size.512.p99", 800.0),
            Row::absent("pd3.zone.size.2048.throughput", "1/s", "no memory"),
        ]);
        let (median, slow) = (BTreeMap::from([(512, 100.0), (1024, 90.0)]), BTreeMap::from([(512, 800.0)]));
        assert_eq!(points(&figures, "pd3-24.svg"), [&median, &slow]);
        let (files, text) = drawn(&figures, "pd3-10.svg");
        assert_eq!(files, ["pd3-10.svg", "pd3-14.svg", "pd3-18.svg", "pd3-24.svg"]);
        assert!(text.contains("figure 10: throughput, hash map, uniform"), "{text}");
        assert!(text.contains("PD3") && text.contains("sync") && !text.contains("Leap"), "{text}");
    }

    /// Every bar and line of a PD3 figure is a measured row.
    #[test]
    fn prefetching_figures_have_measured_rows() {
        let measured = crate::pd3::ids();
        for (_, id, _) in pd3_bars().into_iter().flat_map(|(.., bars)| bars) {
            assert!(measured.contains(&id), "{id}");
        }
        for (_, before, behind) in PREFETCH_LINES.iter().flat_map(|(.., lines)| *lines) {
            let is_its = |id: &String| id.strip_prefix(before).is_some_and(|id| id.ends_with(behind));
            assert!(measured.iter().any(is_its), "{before}*{behind}");
        }
    }

    /// Shares of operations and of crossings have a line for each structure, or for each size of a piece.
    #[test]
    fn crossings_have_lines() {
        let of = |bytes, crossings: &[u64]| {
            let operations = crossings.len() as u64;
            let (iterations, requests, host_packets, packets) = (0, 0, 0, 0);
            let crossings = crossings.to_vec();
            let counted = Counted { operations, iterations, requests, host_packets, packets, crossings };
            Crossings { structure: "tree", granularity: "4k", bytes, counted }
        };
        let figures = pulse(
            &[row("pulse.systems.web.a.n1.rpc.latency", 3e3)],
            &[of(4 << 10, &[0, 1, 2, 2]), of(64 << 10, &[0, 0, 0, 1])],
        );
        assert_eq!(points(&figures, "pulse-crossing.svg"), [&BTreeMap::from([(12, 0.75), (16, 0.25)])]);
        let [small, large] = points(&figures, "pulse-crossings.svg")[..] else { panic!("two sizes") };
        assert_eq!(*small, BTreeMap::from([(0, 0.25), (1, 0.5), (2, 1.0)]));
        assert_eq!(*large, BTreeMap::from([(0, 0.75), (1, 1.0), (2, 1.0)]));
        let (files, text) = drawn(&figures, "pulse-latency.svg");
        assert_eq!(files, ["pulse-crossing.svg", "pulse-crossings.svg", "pulse-latency.svg"]);
        assert!(text.contains("web.a.n1 rpc"), "{text}");
    }
}
