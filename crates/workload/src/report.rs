//! The output of a command: a table for people and one JSON object for programs, from one struct. This is the
//! only module that writes to stdout.

use crate::{Failure, Load, STOPPED, stop};
use farmem::Client;
use serde::Serialize;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// The totals of one kind of operation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Row {
    /// The kind's name.
    pub operation: &'static str,
    /// Number of operations.
    pub operations: u64,
    /// Sequential round trips.
    pub round_trips: u64,
    /// Requests: READs, WRITEs, atomics, and those of traversals.
    pub requests: u64,
    /// Iterations of traversals, at any site.
    pub iterations: u64,
    /// Number of traversals at the memory nodes.
    pub offloaded: u64,
    /// Number of traversals at the host.
    pub at_host: u64,
    /// Median latency, in nanoseconds.
    pub latency_p50_ns: u64,
    /// 99th percentile of the latency, in nanoseconds.
    pub latency_p99_ns: u64,
}

/// The report of a workload.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The application.
    pub application: &'static str,
    /// A one-line description of the workload.
    pub workload: String,
    /// Memory nodes of the rack.
    pub memory_nodes: usize,
    /// The transport of frames.
    pub transport: &'static str,
    /// The profile of the links.
    pub link: String,
    /// The site of traversals.
    pub policy: &'static str,
    /// Operations in flight at once.
    pub in_flight: usize,
    /// Total number of operations.
    pub operations: u64,
    /// True when the run was stopped by Ctrl-C before its end.
    pub stopped: bool,
    /// Elapsed seconds.
    pub seconds: f64,
    /// Operations per second.
    pub operations_per_second: f64,
    /// Packets that this host sent and received.
    pub packets: u64,
    /// One row per kind of operation.
    pub rows: Vec<Row>,
    /// True when every answer was checked.
    pub checked: bool,
    /// Number of wrong answers.
    pub wrong_answers: u64,
    /// A one-line remark.
    pub remark: String,
}

impl Report {
    /// Creates the report of `rows`, which took `seconds` on the rack of `client`.
    #[must_use]
    pub fn new(
        application: &'static str,
        client: &Client,
        transport: &'static str,
        load: &Load,
        (rows, seconds): (Vec<Row>, f64),
    ) -> Self {
        let operations: u64 = rows.iter().map(|row| row.operations).sum();
        Self {
            application,
            workload: String::new(),
            memory_nodes: client.nodes().len(),
            transport,
            link: client.link_profile().to_string(),
            policy: load.policy.name(),
            in_flight: load.in_flight,
            operations,
            stopped: stop::asked() && operations < load.operations,
            seconds,
            operations_per_second: to_f64(operations) / seconds,
            packets: 0,
            rows,
            checked: load.check,
            wrong_answers: 0,
            remark: String::new(),
        }
    }

    /// Returns the text lines.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}: {}\n{} memory nodes, transport {}, link {}, traversals {}, {} operations under way at once\n",
            self.application,
            self.workload,
            self.memory_nodes,
            self.transport,
            self.link,
            self.policy,
            self.in_flight
        );
        text += &format!(
            "{:<16} {:>10} {:>11} {:>9} {:>10} {:>10} {:>10}\n",
            "operation", "operations", "round trips", "requests", "iterations", "p50", "p99"
        );
        for row in &self.rows {
            let each = |total: u64| to_f64(total) / to_f64(row.operations);
            text += &format!(
                "{:<16} {:>10} {:>11.2} {:>9.2} {:>10.2} {:>7.1} us {:>7.1} us\n",
                row.operation,
                row.operations,
                each(row.round_trips),
                each(row.requests),
                each(row.iterations),
                to_f64(row.latency_p50_ns) / 1e3,
                to_f64(row.latency_p99_ns) / 1e3,
            );
        }
        text += &format!(
            "{} operations in {:.2} s: {:.0} /s",
            self.operations, self.seconds, self.operations_per_second
        );
        text += &format!("; {:.2} packets each", to_f64(self.packets) / to_f64(self.operations));
        if !self.remark.is_empty() {
            text += &format!("; {}", self.remark);
        }
        if self.stopped {
            text += "; stopped before its end";
        }
        text += match (self.checked, self.wrong_answers) {
            (false, _) => "\nanswers were not checked\n".into(),
            (true, 0) => "\nevery answer was right\n".into(),
            (true, wrong) => format!("\n{wrong} ANSWERS WERE WRONG\n"),
        }
        .as_str();
        text
    }
}

/// The result that a command prints at its end.
pub trait Outcome: Serialize {
    /// Returns the text lines.
    fn text(&self) -> String;

    /// Returns the number of wrong answers.
    fn wrong_answers(&self) -> u64;

    /// Returns true when the command was stopped early.
    fn stopped(&self) -> bool {
        false
    }
}

impl Outcome for Report {
    fn text(&self) -> String {
        Self::text(self)
    }

    fn wrong_answers(&self) -> u64 {
        self.wrong_answers
    }

    fn stopped(&self) -> bool {
        self.stopped
    }
}

/// Prints the result of a command and returns its exit code: 0 for success, 1 for a wrong answer, 2 for a
/// usage or environment error, [`STOPPED`] after a stop request.
#[must_use]
pub fn finish(result: &Result<impl Outcome, Failure>, json: bool) -> ExitCode {
    match result {
        Ok(outcome) => {
            let text = if json {
                serde_json::to_string(outcome).expect("an outcome has only strings for keys") + "\n"
            } else {
                outcome.text()
            };
            let mut out = io::stdout().lock();
            let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            // A reader that closed its pipe is fine.
            if let Err(error) = written.or_else(closed) {
                let _reader_is_gone =
                    writeln!(io::stderr().lock(), "farmem: standard output cannot be written to: {error}");
                return ExitCode::from(2);
            }
            match outcome.wrong_answers() {
                0 if outcome.stopped() => ExitCode::from(STOPPED),
                wrong => ExitCode::from(u8::from(wrong > 0)),
            }
        }
        Err(Failure { message, remedy }) => {
            let mut err = io::stderr().lock();
            let _reader_is_gone = writeln!(err, "farmem: {message}");
            if !remedy.is_empty() {
                let _reader_is_gone = writeln!(err, "        {remedy}");
            }
            ExitCode::from(if stop::asked() { STOPPED } else { 2 })
        }
    }
}

fn closed(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) }
}

/// Converts a count to a float for display.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts and times for people, far below 2^52")]
pub const fn to_f64(n: u64) -> f64 {
    n as f64
}
