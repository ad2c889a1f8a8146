//! `farmem bench`: the list of benchmarks, and their output while they run. The format of results is in
//! farmem-bench.

mod fat;
mod kv;
mod mind;
mod net;
mod pd3;
mod pulse;
mod run;
mod soda;

pub(crate) use fat::run as fat;
pub(crate) use kv::run as kv;
pub(crate) use mind::run as mind;
pub(crate) use mind::{calls, squeezed};
pub(crate) use net::run as net;
pub(crate) use pd3::run as pd3;
pub(crate) use pulse::run as pulse;
pub(crate) use run::{run as runs, work};
pub(crate) use soda::{alone as soda_alone, run as soda};

use crate::output;
use crate::{End, Failure, progress};
use farmem::LinkProfile;
use farmem_bench::{Machine, Outcome, Progress, Results, Row, link_late};
use indicatif::ProgressBar;

/// Output of a benchmark: a table that grows row by row, or one JSON object at the end. The current
/// measurement is shown on stderr.
struct Screen {
    bench: &'static str,
    machine: Machine,
    link: LinkProfile,
    json: bool,
    bar: ProgressBar,
}

impl Screen {
    fn begin(bench: &'static str, json: bool, link: LinkProfile) -> Self {
        let screen = Self { bench, machine: Machine::begin(), link, json, bar: progress::stages(bench) };
        let (on, heading) = (&screen.machine, line(&HEADING) + &line(&RULE));
        screen.write(&format!("bench {bench}: {on}, link {link}\n{heading}"));
        screen
    }

    fn hear(&self, told: Progress<'_>) {
        match told {
            Progress::Begins(what) => {
                self.bar.set_message(format!("bench {}: {what}", self.bench));
                self.bar.tick();
            }
            Progress::Measured(row) => self.write(&line(&cells(row))),
        }
    }

    /// Prints the notes below the rows, or all rows as JSON. Wrong answers in `wrong` make the end a
    /// violation. Without rows, the error names `only`, which is mistyped or excluded by `--quick`.
    fn end(mut self, only: &str, Outcome { rows, wrong }: Outcome) -> Result<End, Failure> {
        if rows.is_empty() {
            self.bar.finish_and_clear();
            let what = format!("nothing was measured: no row's id begins with {only:?}");
            let remedy =
                "docs/results/ lists the ids, such as pulse.node.hash.hops; with --quick there are fewer";
            return Err(Failure::environment(what, remedy));
        }
        let load = self.machine.end();
        let mut text = format!(
            "value: median; ratio: value / baseline, both from this run; cpu: of all threads at work, for an operation; {load}\n"
        );
        if !self.link.is_none() {
            text += "baselines that have no rack in them are not held back by the link's profile\n";
        }
        let link_late = link_late();
        if let Some(late) = link_late {
            let late = output::time(late);
            text += &format!(
                "frames of this process left {late} later than the link's profile wants, on average\n"
            );
        }
        for row in &rows {
            match (&row.why, row.value) {
                (Some(why), None) => text += &format!("{} was not measured: {why}\n", row.id),
                (Some(why), Some(_)) => text += &format!("{}: {why}\n", row.id),
                (None, _) => {}
            }
        }
        self.write(&text);
        self.bar.finish_and_clear();
        if self.json {
            let link = self.link.to_string();
            output::print_json(&Results { bench: self.bench, machine: self.machine, link, link_late, rows });
        }
        if wrong > 0 {
            output::note(&format!("farmem: {} answers were wrong", output::count(wrong)));
            return Ok(End::Violation);
        }
        Ok(End::Fine)
    }

    /// Writes a part of the table, without disturbing the status line on stderr.
    fn write(&self, text: &str) {
        if !self.json {
            self.bar.suspend(|| output::write_out(text));
        }
    }
}

const HEADING: [&str; COLUMNS] = ["id", "value", "baseline", "ratio", "p99", "cpu", "n"];
const RULE: [&str; COLUMNS] = ["---"; COLUMNS];
const COLUMNS: usize = 7;
/// Width of each column. Rows are printed before the widest one is known, and a wider cell shifts the
/// following cells.
const WIDTHS: [usize; COLUMNS] = [60, 16, 16, 8, 10, 9, 11];

fn line<S: AsRef<str>>(cells: &[S; COLUMNS]) -> String {
    let mut text = String::from("|");
    for (n, (cell, width)) in cells.iter().zip(WIDTHS).enumerate() {
        let cell = cell.as_ref();
        text += &if n == 0 { format!(" {cell:<width$} |") } else { format!(" {cell:>width$} |") };
    }
    text + "\n"
}

fn cells(row: &Row) -> [String; COLUMNS] {
    let show = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |f| in_unit(f, row.unit));
    [
        row.id.clone(),
        show(row.value),
        show(row.baseline),
        row.ratio.map_or_else(|| "-".to_owned(), |r| format!("{r:.2}")),
        show(row.p99),
        row.cpu.map_or_else(|| "-".to_owned(), output::time),
        output::count(row.n),
    ]
}

fn in_unit(figure: f64, unit: &str) -> String {
    match unit {
        "ns" => output::time(figure),
        "1/s" => output::rate(figure),
        _ => format!("{figure:.2} {unit}"),
    }
}
