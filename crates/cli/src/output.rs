//! Output of commands. One struct produces a table, or one JSON object. Notes go to standard error. A reader
//! that closed its pipe causes no error. Only this module writes to standard output.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::{self, Write as _};
use std::sync::OnceLock;

/// Report with a text form and a JSON form.
pub(crate) trait Report: Serialize {
    /// Returns the table and the lines around it.
    fn text(&self) -> String;
}

/// Prints a report as text or as JSON.
pub(crate) fn print<R: Report>(report: &R, json: bool) {
    if json { print_json(report) } else { write_out(&report.text()) }
}

/// Prints a report as JSON.
pub(crate) fn print_json<S: Serialize>(report: &S) {
    write_out(&(serde_json::to_string(report).expect("a report has only strings for keys") + "\n"));
}

/// Writes text to standard output.
pub(crate) fn write_out(text: &str) {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader closed the pipe, so that nothing can be reported.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _the_first = NOT_WRITTEN.set(error);
        }
        _ => {}
    }
}

/// Returns the error of a failed write to standard output. The command then ends with 2, because the report
/// is lost.
pub(crate) fn not_written() -> Option<&'static io::Error> {
    NOT_WRITTEN.get()
}

static NOT_WRITTEN: OnceLock<io::Error> = OnceLock::new();

/// Writes a line to standard error. Unlike `eprintln!`, the function does not panic after the reader has
/// closed the pipe.
pub(crate) fn note(line: &str) {
    if writeln!(io::stderr().lock(), "{line}").is_err() {
        // The reader closed the pipe, so that nothing can be reported.
    }
}

/// Returns a table with a heading. All columns after the first are right-aligned.
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

/// Formats a time in the most readable unit.
pub(crate) fn time(nanos: f64) -> String {
    match nanos {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{:.2} us", n / 1e3),
        n if n < 1e9 => format!("{:.2} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

/// Formats a rate in the most readable unit.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        r if r < 1e3 => format!("{r:.1} /s"),
        r if r < 1e6 => format!("{:.1} k/s", r / 1e3),
        r => format!("{:.2} M/s", r / 1e6),
    }
}

/// Formats a count with separated thousands.
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
