//! How fast one core traverses: hops per second beside the line-read limit of the same core in the same run.
//!
//! `cargo run --release -p farmem-engine --example hops -- [--gib N] [--rounds N] [--only TEXT] [--json]`
//!
//! Rates are medians of the rounds, in millions a second; see [`farmem_engine::yardstick`].
#![expect(clippy::print_stdout, reason = "a report for people and scripts")]
#![expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a 64-bit machine")]

use farmem_engine::yardstick::{Row, Table, btree_lookups, hash_hops, line_limit, row, times_ns};
use serde_json::{Map, json};
use std::io;

struct Options {
    gib: f64,
    rounds: usize,
    json: bool,
    /// Ways whose name does not contain it are left out.
    only: String,
}

fn options() -> Options {
    let mut options = Options { gib: 4.0, rounds: 9, json: false, only: String::new() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|n| n.parse::<f64>().ok());
        match arg.as_str() {
            "--json" => options.json = true,
            "--gib" => options.gib = number().unwrap_or(options.gib),
            "--only" => options.only = args.next().unwrap_or_default(),
            "--rounds" => options.rounds = number().map_or(1, |n| n as usize).max(1),
            // What `cargo bench` and `cargo test` add.
            _ => {}
        }
    }
    options
}

fn main() -> io::Result<()> {
    let options = options();
    let wanted = |name: &str| name.contains(&options.only);
    let len = 1 << ((options.gib * f64::from(1 << 30)) as u64).max(1 << 18).ilog2();
    let mut table = Table::new(len)?;
    let mut report = Report { json: options.json, lines: Map::new() };
    report.say("table.gib", len as f64 / f64::from(1 << 30));
    report.say("load.before", load());

    let rows = hash_hops(&mut table, options.rounds, wanted);
    report.say("table.huge_share", table.huge_share());
    report.rates(&rows);
    if let (Some(hops), Some(limit)) = (row(&rows, "hash.hops"), line_limit(&rows)) {
        report.say("lines.best", limit.p50());
        report.say("hash.hops / lines.best", hops.times(limit));
    }
    if let Some([instruction, load, line]) = times_ns(&rows) {
        report.say("core.instruction_ns", instruction);
        report.say("core.load_ns", load);
        report.say("core.further_line_ns", line);
    }
    report.ratios(&rows, "hash.hops", &["lines.loads", "hash.hops.one_at_a_time", "hash.hops.interpreter"]);

    let (keys, depth, rows) = btree_lookups(&mut table, options.rounds, wanted);
    report.say("btree.keys_millions", keys as f64 / 1e6);
    report.say("btree.depth", depth as f64);
    report.rates(&rows);
    report.ratios(&rows, "btree.lookups", &["btree.lookups.one_at_a_time", "btree.lookups.interpreter"]);
    report.say("load.after", load());
    if options.json {
        println!("{:#}", serde_json::Value::Object(report.lines));
    }
    Ok(())
}

/// What is found out, in order: printed line by line, or as JSON in the end.
struct Report {
    json: bool,
    lines: Map<String, serde_json::Value>,
}

impl Report {
    fn say(&mut self, name: &str, number: f64) {
        if !self.json {
            println!("{name:44} {number:9.2}");
        }
        self.lines.insert(name.to_owned(), json!(number));
    }

    fn rates(&mut self, rows: &[Row]) {
        for row in rows {
            self.say(&row.name, row.p50());
        }
    }

    fn ratios(&mut self, rows: &[Row], ours: &str, others: &[&str]) {
        for other in others {
            if let (Some(ours), Some(theirs)) = (row(rows, ours), row(rows, other)) {
                self.say(&format!("{} / {other}", ours.name), ours.times(theirs));
            }
        }
    }
}

/// The load average of the last minute: what else this machine does.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(f64::NAN)
}
