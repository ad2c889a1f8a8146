//! What a command prints: a table for people and one JSON object for programs, from one struct. The only place that writes to stdout.

use crate::{Failure, Load, STOPPED, stop};
use farmem::Client;
use serde::Serialize;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// What one kind of operation took, in all.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Row {
    /// Its name.
    pub operation: &'static str,
    /// How many there were.
    pub operations: u64,
    /// Round trips one after the other.
    pub round_trips: u64,
    /// Requests: READs, WRITEs, atomics, and those of traversals.
    pub requests: u64,
    /// Iterations of traversals, wherever they ran.
    pub iterations: u64,
    /// Traversals that ran at the memory nodes.
    pub offloaded: u64,
    /// Traversals that ran at the host.
    pub at_host: u64,
    /// The median time of one, in nanoseconds.
    pub latency_p50_ns: u64,
    /// The time that 99 % took at most, in nanoseconds.
    pub latency_p99_ns: u64,
}

/// What came of a workload.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The application.
    pub application: &'static str,
    /// What it was asked to do, in a line.
    pub workload: String,
    /// Memory nodes of the rack.
    pub memory_nodes: usize,
    /// How frames travel.
    pub transport: &'static str,
    /// The network that the links stand for.
    pub link: String,
    /// Where traversals run.
    pub policy: &'static str,
    /// Operations under way at once.
    pub in_flight: usize,
    /// Operations in all.
    pub operations: u64,
    /// Whether it was asked to stop (Ctrl-C), and ended before all were carried out.
    pub stopped: bool,
    /// How long they took.
    pub seconds: f64,
    /// Operations a second.
    pub operations_per_second: f64,
    /// Packets that this host sent and received for them.
    pub packets: u64,
    /// By kind of operation.
    pub rows: Vec<Row>,
    /// Whether every answer was checked.
    pub checked: bool,
    /// How many were wrong.
    pub wrong_answers: u64,
    /// What else is worth saying, in a line.
    pub remark: String,
}

impl Report {
    /// The report of `rows`, which took `seconds` on the rack of `client`.
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

    /// The lines that people read.
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

/// What a command prints in the end.
pub trait Outcome: Serialize {
    /// The lines that people read.
    fn text(&self) -> String;

    /// Answers that were wrong.
    fn wrong_answers(&self) -> u64;

    /// Whether it was asked to stop, and ended early.
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

/// Prints what came of a command and answers its exit code: 0 fine, 1 an answer was wrong, 2 usage or environment, [`STOPPED`]
/// when it was asked to stop.
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

/// A count for people.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "counts and times for people, far below 2^52")]
pub const fn to_f64(n: u64) -> f64 {
    n as f64
}
