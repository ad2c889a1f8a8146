//! `farmem demo`: a dictionary in far memory, with every word looked up by READs and by traversals. Three
//! applications then run on the same rack. The demo checks every answer.

mod dictionary;
mod sweep;

use crate::apps;
use crate::args::Demo;
use crate::outcome::{End, Failure};
use crate::output::{self, Report};
use crate::progress;
use crate::rack_file::{RackFile, Shape};
use crate::supervisor::Supervisor;
pub(crate) use dictionary::Words;
use farmem::hash_table::{HashTable, Spread};
use farmem::{Client, Placement, Rack, RackConfig, Transport, Waiting};
use farmem_workload::Report as Application;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Instant;
use sweep::{Method, Tally, sweep};

/// Number of memory nodes of the rack that the demo starts.
const NODES: u8 = 4;
/// Memory of each memory node, in bytes.
const NODE_MEMORY: u64 = 256 << 20;
/// Average number of words in the chain of a bucket.
const CHAIN_LEN: u64 = 4;
/// Number of look-ups in flight in a throughput measurement.
const DEPTH: usize = 32;
/// Number of look-ups in a latency measurement, one at a time.
const LATENCY_SAMPLES: usize = 20_000;

#[derive(Serialize)]
struct DemoReport {
    words: u64,
    source: String,
    nodes: usize,
    transport: &'static str,
    link: String,
    buckets: u64,
    rows: Vec<MethodRow>,
    applications: Vec<Application>,
    wrong_answers: u64,
    seconds: f64,
}

/// Figures of one method on one table.
#[derive(Serialize)]
pub(crate) struct MethodRow {
    chains: &'static str,
    method: &'static str,
    lookups: u64,
    requests: u64,
    packets: u64,
    pub(crate) round_trips_per_lookup: f64,
    pub(crate) nodes_visited_per_lookup: f64,
    pub(crate) latency_p50_ns: u64,
    latency_p99_ns: u64,
    lookups_per_second: f64,
    /// Throughput relative to the READs on the same table.
    ratio: f64,
}

impl Report for DemoReport {
    fn text(&self) -> String {
        let heading = [
            "chains, method",
            "look-ups",
            "requests",
            "packets",
            "round trips",
            "p50",
            "p99",
            "look-ups/s",
            "ratio",
        ];
        let row = |r: &MethodRow| {
            vec![
                format!("{}, {}", r.chains, r.method),
                output::count(r.lookups),
                output::count(r.requests),
                output::count(r.packets),
                format!("{:.2}", r.round_trips_per_lookup),
                output::time(to_f64(r.latency_p50_ns)),
                output::time(to_f64(r.latency_p99_ns)),
                output::rate(r.lookups_per_second),
                format!("{:.2}", r.ratio),
            ]
        };
        let rows: Vec<_> = self.rows.iter().map(row).collect();
        let applications: String =
            self.applications.iter().map(|application| format!("\n{}", application.text())).collect();
        let verdict = match self.wrong_answers {
            0 => "every answer was right".to_owned(),
            n => format!("{} ANSWERS WERE WRONG", output::count(n)),
        };
        format!(
            "{} words from {} in {} buckets on {} memory nodes, transport {}, link {}\n{}\
             packets: sent and received by this host; round trips: per look-up, seen by this host; p50, p99: one look-up at a time;\n\
             look-ups/s: {DEPTH} at a time; ratio: look-ups/s beside the READs of the same table.\n{applications}\n{verdict}; {:.1} s in all\n",
            output::count(self.words),
            self.source,
            output::count(self.buckets),
            self.nodes,
            self.transport,
            self.link,
            output::table(&heading, &rows),
            self.seconds,
        )
    }
}

pub(crate) fn run(args: &Demo) -> Result<End, Failure> {
    let start = Instant::now();
    let words = Words::read(args.words.as_deref(), args.limit)?;
    let shown = match &args.rack {
        Some(file) => on_rack(RackConfig::load(file)?, words, start)?,
        None => {
            let shape = Shape {
                nodes: NODES,
                memory: NODE_MEMORY,
                transport: Transport::Udp,
                waiting: Waiting::Block,
                placement: Placement::SameCpu,
                prefetch: farmem::Prefetch::Auto,
                link: farmem::LinkProfile::NONE,
            };
            let file = RackFile::new("demo", shape)?;
            let rack = Supervisor::start(file.config().clone())?;
            output::note(&format!(
                "a rack of {NODES} memory nodes, a switch and a control plane is up, over UDP on this machine"
            ));
            let shown = on_rack(file.config().clone(), words, start)?;
            drop(rack); // the processes end before their directory goes
            shown
        }
    };
    output::print(&shown, args.json);
    Ok(if shown.wrong_answers == 0 { End::Fine } else { End::Violation })
}

fn on_rack(config: RackConfig, words: Words, start: Instant) -> Result<DemoReport, Failure> {
    let transport = config.transport.name();
    let mut client = Rack::running(config).client("demo")?;
    let mut rows = Vec::new();
    let (mut wrong, mut buckets) = (0, 0);
    for spread in [Spread::Partitioned, Spread::Scattered] {
        let entries = words.len() as u64;
        let mut table = HashTable::create(&mut client, entries, entries / CHAIN_LEN, spread)?;
        buckets = table.buckets();
        let worked = on_table(&mut client, &mut table, &words, spread, &mut rows);
        // The demo destroys the table also after an error, because another program may continue to use the
        // rack.
        let destroyed = table.destroy(&mut client);
        wrong += worked?;
        destroyed?;
    }
    let applications = apps::all(&mut client, transport, words.len() as u64)?;
    wrong += applications.iter().map(|application| application.wrong_answers).sum::<u64>();
    Ok(DemoReport {
        words: words.len() as u64,
        source: words.source().to_owned(),
        nodes: client.nodes().len(),
        transport,
        link: client.link_profile().to_string(),
        buckets,
        rows,
        applications,
        wrong_answers: wrong,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Loads the table and looks up all words by both methods. Returns the number of wrong answers.
pub(crate) fn on_table(
    client: &mut Client,
    table: &mut HashTable,
    words: &Words,
    spread: Spread,
    rows: &mut Vec<MethodRow>,
) -> Result<u64, Failure> {
    let bar = progress::bar(load_title(spread), 0);
    table.load(client, words.entries(), &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    let (mut wrong, mut reads_per_second) = (0, 0.0);
    for method in [Method::Reads, Method::Traversals] {
        let (row, wrong_here) = measure(client, table, words, spread, method, &mut reads_per_second)?;
        wrong += wrong_here;
        rows.push(row);
    }
    Ok(wrong)
}

fn measure(
    client: &mut Client,
    table: &HashTable,
    words: &Words,
    spread: Spread,
    method: Method,
    reads_per_second: &mut f64,
) -> Result<(MethodRow, u64), Failure> {
    let mut latency =
        Histogram::<u64>::new_with_max(60_000_000_000, 3).expect("a minute with three digits is in range");
    let bar = progress::bar(sweep_title(spread, method), words.len() as u64);
    let sample = words.every(words.len().div_ceil(LATENCY_SAMPLES));
    let single = sweep(client, table, words, sample, method, 1, Some(&mut latency), &mut |_| {})?;
    let before = client.packets();
    let begin = Instant::now();
    let tally =
        sweep(client, table, words, words.every(1), method, DEPTH, None, &mut |n| bar.set_position(n))?;
    let seconds = begin.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let after = client.packets();
    let per_second = to_f64(tally.lookups) / seconds;
    if method == Method::Reads {
        *reads_per_second = per_second;
    }
    let Tally { lookups, requests, visited, wrong } = tally;
    let row = MethodRow {
        chains: chains(spread),
        method: method.name(),
        lookups,
        requests,
        packets: after.0 - before.0 + after.1 - before.1,
        round_trips_per_lookup: to_f64(requests) / to_f64(lookups),
        nodes_visited_per_lookup: to_f64(visited) / to_f64(lookups),
        latency_p50_ns: latency.value_at_quantile(0.5),
        latency_p99_ns: latency.value_at_quantile(0.99),
        lookups_per_second: per_second,
        ratio: per_second / *reads_per_second,
    };
    Ok((row, wrong + single.wrong))
}

const fn chains(spread: Spread) -> &'static str {
    match spread {
        Spread::Partitioned => "partitioned",
        Spread::Scattered => "scattered",
    }
}

const fn load_title(spread: Spread) -> &'static str {
    match spread {
        Spread::Partitioned => "load, partitioned (bytes)",
        Spread::Scattered => "load, scattered (bytes)",
    }
}

const fn sweep_title(spread: Spread, method: Method) -> &'static str {
    match (spread, method) {
        (Spread::Partitioned, Method::Reads) => "READs, partitioned",
        (Spread::Partitioned, Method::Traversals) => "traversals, partitioned",
        (Spread::Scattered, Method::Reads) => "READs, scattered",
        (Spread::Scattered, Method::Traversals) => "traversals, scattered",
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts and times for people, far below 2^52")]
fn to_f64(n: u64) -> f64 {
    n as f64
}
