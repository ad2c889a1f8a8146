//! How fast one core traverses: hops per second beside the line-read limit of the same core in the same run.
//!
//! `cargo run --release -p farmem-engine --example hops -- [--gib N] [--rounds N] [--only TEXT] [--json]`
//!
//! Everything is counted against CPU time of the thread. Rounds of all variants take turns, so that what disturbs one disturbs all;
//! medians are reported. Queries are made and answers checked outside of the clock.
#![expect(clippy::print_stdout, reason = "a report for people and scripts")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a 64-bit machine, and counts that fit"
)]

mod lines;
mod lookups;
mod memory;
mod tables;

use lookups::{Lookups, Way};
use memory::{NTA, T0, T2, Table};
use serde_json::{Map, json};
use std::io;
use std::time::Duration;
use tables::{Btree, Hash};

/// SplitMix64.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    #[inline(always)]
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ z >> 31) * end as u128) >> 64) as usize
    }
}

/// What one measurement did, and in what time.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) units: u64,
    pub(crate) time: Duration,
}

/// A variant: its name, and its rates so far, in millions a second.
struct Variant<'a> {
    name: String,
    measure: Box<dyn FnMut(&mut Chance) -> Measured + 'a>,
    rates: Vec<f64>,
}

impl<'a> Variant<'a> {
    fn new(name: impl Into<String>, measure: impl FnMut(&mut Chance) -> Measured + 'a) -> Self {
        Self { name: name.into(), measure: Box::new(measure), rates: Vec::new() }
    }

    fn median(&self) -> f64 {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }
}

struct Options {
    gib: Option<f64>,
    rounds: usize,
    json: bool,
    /// Variants whose name does not contain it are left out.
    only: String,
}

fn options() -> Options {
    let mut options = Options { gib: None, rounds: 9, json: false, only: String::new() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|n| n.parse::<f64>().ok());
        match arg.as_str() {
            "--json" => options.json = true,
            "--gib" => options.gib = number(),
            "--only" => options.only = args.next().unwrap_or_default(),
            "--rounds" => options.rounds = number().map_or(1, |n| n as usize).max(1),
            // What `cargo bench` and `cargo test` add.
            _ => {}
        }
    }
    options
}

/// A power of two: what was asked for, else 4 GiB, but never more than half of what is free.
fn table_len(gib: Option<f64>) -> usize {
    let wanted = (gib.unwrap_or(4.0) * f64::from(1 << 30)) as u64;
    let free = memory::kernel_says("/proc/meminfo", "MemAvailable:").unwrap_or(u64::MAX);
    1 << wanted.min(free / 2).max(1 << 18).ilog2()
}

fn main() -> io::Result<()> {
    let options = options();
    let len = table_len(options.gib);
    let mut table = Table::new(len)?;
    let mut report = Report { json: options.json, lines: Map::new() };
    report.say("table.gib", len as f64 / f64::from(1 << 30));
    report.say("load.before", load());
    hash(&mut table, &options, &mut report);
    let huge = memory::kernel_says("/proc/self/smaps_rollup", "AnonHugePages:").unwrap_or(0);
    report.say("table.huge_share", huge as f64 / len as f64);
    btree(&mut table, &options, &mut report);
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
            println!("{name:36} {number:9.2}");
        }
        self.lines.insert(name.to_owned(), json!(number));
    }

    fn rates(&mut self, variants: &[Variant<'_>]) {
        for variant in variants {
            self.say(&variant.name, variant.median());
        }
    }
}

fn rate(variants: &[Variant<'_>], name: &str) -> f64 {
    variants.iter().find(|v| v.name == name).map_or(f64::NAN, Variant::median)
}

fn hash(table: &mut Table, options: &Options, report: &mut Report) {
    let hash = Hash::fill(table);
    let lookups = Lookups::hash(table, &hash);
    let mut variants = limits(table);
    variants.extend(lookups.variants("hash.hops", &Way::HASH));
    measure(&mut variants, options);
    report.rates(&variants);
    let best =
        variants.iter().filter(|v| v.name.starts_with("lines")).map(Variant::median).fold(0.0, f64::max);
    let hops = rate(&variants, "hash.hops");
    report.say("lines.best", best);
    report.say("hash.hops / lines.best", hops / best);
    report.say("hash.hops / lines.loads", hops / rate(&variants, "lines.loads"));
    report.say("hash.hops / one_at_a_time", hops / rate(&variants, "hash.hops.one_at_a_time"));
    report.say("hash.hops / interpreter", hops / rate(&variants, "hash.hops.interpreter"));
}

fn btree(table: &mut Table, options: &Options, report: &mut Report) {
    let btree = Btree::fill(table);
    report.say("btree.keys_millions", btree.keys() as f64 / 1e6);
    report.say("btree.depth", btree.depth() as f64);
    let lookups = Lookups::btree(table, &btree);
    let mut variants: Vec<_> = lookups.variants("btree.lookups", &Way::BTREE).collect();
    measure(&mut variants, options);
    report.rates(&variants);
    let best = rate(&variants, "btree.lookups");
    report.say("btree.lookups / one_at_a_time", best / rate(&variants, "btree.lookups.one_at_a_time"));
    report.say("btree.lookups / interpreter", best / rate(&variants, "btree.lookups.interpreter"));
}

fn limits(table: &Table) -> Vec<Variant<'_>> {
    let mut variants = vec![
        Variant::new("lines.dependent", |chance| lines::dependent(table, chance)),
        Variant::new("lines.loads", |chance| lines::loads(table, chance)),
    ];
    for distance in [16, 32, 64] {
        variants.push(Variant::new(format!("lines.prefetch.t0.{distance}"), move |chance| {
            lines::prefetched::<T0>(table, chance, distance)
        }));
        variants.push(Variant::new(format!("lines.prefetch.nta.{distance}"), move |chance| {
            lines::prefetched::<NTA>(table, chance, distance)
        }));
        variants.push(Variant::new(format!("lines.prefetch.t2.{distance}"), move |chance| {
            lines::prefetched::<T2>(table, chance, distance)
        }));
    }
    variants
}

fn measure(variants: &mut Vec<Variant<'_>>, options: &Options) {
    variants.retain(|variant| variant.name.contains(&options.only));
    let mut chance = Chance(0x5eed);
    for round in 0..=options.rounds {
        for variant in variants.iter_mut() {
            let Measured { units, time } = (variant.measure)(&mut chance);
            // The first round warms up.
            if round > 0 {
                variant.rates.push(units as f64 / time.as_secs_f64() / 1e6);
            }
        }
    }
}

/// The load average of the last minute: what else this machine does.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(f64::NAN)
}
