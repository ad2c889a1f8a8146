//! Printing: a table for people and one JSON object for programs, from the same struct; notes beside them. A reader that closed
//! its pipe is fine. The only place that writes to stdout.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::{self, Write as _};
use std::sync::OnceLock;

/// Something that is printed either way.
pub(crate) trait Report: Serialize {
    /// The table and the lines around it.
    fn text(&self) -> String;
}

/// Prints a report.
pub(crate) fn print<R: Report>(report: &R, json: bool) {
    if json { print_json(report) } else { write_out(&report.text()) }
}

/// Prints a report for programs.
pub(crate) fn print_json<S: Serialize>(report: &S) {
    write_out(&(serde_json::to_string(report).expect("a report has only strings for keys") + "\n"));
}

/// Writes text to stdout.
pub(crate) fn write_out(text: &str) {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader is gone; there is no one to tell.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _the_first = NOT_WRITTEN.set(error);
        }
        _ => {}
    }
}

/// Why something was not written to stdout. A report that nobody has is no success: the command ends with 2 for it.
pub(crate) fn not_written() -> Option<&'static io::Error> {
    NOT_WRITTEN.get()
}

static NOT_WRITTEN: OnceLock<io::Error> = OnceLock::new();

/// Writes a line to stderr, where `eprintln!` would panic once its reader is gone.
pub(crate) fn note(line: &str) {
    if writeln!(io::stderr().lock(), "{line}").is_err() {
        // The reader is gone; there is no one to tell.
    }
}

/// A table with a heading; columns after the first are right-aligned.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(heading.iter().map(Cell::new).collect::<Vec<_>>());
    for row in rows {
        let cells = row.iter().enumerate().map(|(n, text)| {
            let alignment = if n == 0 { CellAlignment::Left } else { CellAlignment::Right };
            Cell::new(text).set_alignment(alignment)
        });
        table.add_row(cells.collect::<Vec<_>>());
    }
    format!("{table}\n")
}

/// A time in the unit that reads best.
pub(crate) fn time(nanos: f64) -> String {
    match nanos {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{:.2} us", n / 1e3),
        n if n < 1e9 => format!("{:.2} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

/// A rate in the unit that reads best.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        r if r < 1e3 => format!("{r:.1} /s"),
        r if r < 1e6 => format!("{:.1} k/s", r / 1e3),
        r => format!("{:.2} M/s", r / 1e6),
    }
}

/// A count with thousands apart.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}
