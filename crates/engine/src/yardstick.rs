//! How fast one core traverses, beside how fast the same core reads lines: what benchmarks of the engine have in common.
//!
//! A [`Table`] of huge pages is filled with a structure, each of its nodes at a place that looks like chance. [`hash_hops`] and
//! [`btree_lookups`] run lookups in it in all the ways there are: interleaved as the engine does it, with other numbers of workspaces and
//! other hints, one at a time, interpreted. Beside the hash table stands the line-read limit: the same lines read with nothing to
//! compute, in the ways a core can read them.
//!
//! Everything is counted against CPU time of the calling thread, so that what others of this machine take does not count; their traffic
//! to memory still slows every way down. So rounds of all ways take turns, and a ratio is that of two ways in the same round. Queries
//! are made and answers checked outside of the clock.
#![expect(clippy::cast_possible_truncation, reason = "offsets in a table that is mapped")]

mod instructions;
mod lines;
mod lookups;
mod structures;
mod table;

use lookups::{Lookups, Way};
use std::time::Duration;
use structures::{Btree, Hash};
use table::{NTA, T0, T2};
pub use table::{Table, cpu_time};

/// One way, and how fast it was in each round, in millions of hops, lookups or lines a second.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// `hash.hops`, `btree.lookups` or `lines`, and behind it the way; the engine's own way has nothing behind it.
    pub name: String,
    /// Rates by round.
    pub millions_per_s: Vec<f64>,
}

impl Row {
    /// The middle of the rounds.
    #[must_use]
    pub fn p50(&self) -> f64 {
        middle(self.millions_per_s.clone())
    }

    /// How many times as fast as `other`: the middle of what the rounds say, each of both ways under the same load.
    #[must_use]
    pub fn times(&self, other: &Self) -> f64 {
        let pairs = self.millions_per_s.iter().zip(&other.millions_per_s);
        middle(pairs.map(|(ours, theirs)| ours / theirs).collect())
    }
}

/// The middle of some numbers; not a number when there are none.
fn middle(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The fastest of the ways to read lines: the limit.
#[must_use]
pub fn line_limit(rows: &[Row]) -> Option<&Row> {
    rows.iter().filter(|row| row.name.starts_with("lines.")).max_by(|a, b| a.p50().total_cmp(&b.p50()))
}

/// The times that PULSE's model asks for (PULSE 4.1), in nanoseconds, of one traversal at a time on this core: an instruction, the load
/// of one line, and each further line of a load. From the rows of [`hash_hops`].
#[must_use]
pub fn times_ns(rows: &[Row]) -> Option<[f64; 3]> {
    let each = |name| Some(1e3 / row(rows, name)?.p50());
    let load = each("lines.dependent")?;
    Some([each("instructions")?, load, (each("lines.dependent.4")? - load) / 3.0])
}

/// The row of this name.
#[must_use]
pub fn row<'a>(rows: &'a [Row], name: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.name == name)
}

/// Fills `table` with chains of four nodes of 64 bytes and looks keys up that are there: `hash.hops` and its ways, hops; `lines.` and
/// its ways, lines (`lines.dependent.4`: four side by side); `instructions`, of a compiled program. Ways whose name `wanted` refuses are left out.
///
/// # Panics
/// When an answer is wrong.
pub fn hash_hops(table: &mut Table, rounds: usize, wanted: impl Fn(&str) -> bool) -> Vec<Row> {
    let hash = Hash::fill(table);
    let lookups = Lookups::hash(table, &hash);
    let mut variants = limits(table);
    let compiled = instructions::btree_find();
    let instructions = move |chance: &mut Chance| instructions::instructions(&compiled, chance);
    variants.push(Variant::new("instructions", instructions));
    variants.extend(lookups.variants("hash.hops", &Way::HASH));
    measure(variants, rounds, wanted)
}

/// Fills `table` with a B+tree of 15 keys and 16 children in nodes of 256 bytes and looks keys up that are there: `btree.lookups` and
/// its ways, lookups; `btree.lookups.rank` by the program that has RANK in the place of halvings. Answers how many keys there are and on
/// how many levels, too. Ways whose name `wanted` refuses are left out.
///
/// # Panics
/// When an answer is wrong.
pub fn btree_lookups(
    table: &mut Table,
    rounds: usize,
    wanted: impl Fn(&str) -> bool,
) -> (u64, usize, Vec<Row>) {
    let btree = Btree::fill(table);
    let (lookups, ranked) = (Lookups::btree(table, &btree), Lookups::btree_rank(table, &btree));
    let mut variants: Vec<_> = lookups.variants("btree.lookups", &Way::BTREE).collect();
    variants.extend(ranked.variants("btree.lookups.rank", &Way::RANK));
    let rows = measure(variants, rounds, wanted);
    (btree.keys(), btree.depth(), rows)
}

/// SplitMix64.
struct Chance(u64);

impl Chance {
    #[inline(always)]
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ z >> 31) * end as u128) >> 64) as usize
    }
}

/// What one measurement did, and in what time.
#[derive(Clone, Copy)]
struct Measured {
    units: u64,
    time: Duration,
}

/// A way under its name, to be measured once a round.
struct Variant<'a> {
    name: String,
    measure: Box<dyn FnMut(&mut Chance) -> Measured + 'a>,
}

impl<'a> Variant<'a> {
    fn new(name: impl Into<String>, measure: impl FnMut(&mut Chance) -> Measured + 'a) -> Self {
        Self { name: name.into(), measure: Box::new(measure) }
    }
}

fn limits(table: &Table) -> Vec<Variant<'_>> {
    let mut variants = vec![
        Variant::new("lines.dependent", |chance| lines::dependent::<1>(table, chance)),
        Variant::new("lines.dependent.4", |chance| lines::dependent::<4>(table, chance)),
        Variant::new("lines.loads", |chance| lines::loads(table, chance)),
    ];
    for distance in [16, 32, 64] {
        let mut way = |hint: &str, measure: fn(&Table, &mut Chance, usize) -> Measured| {
            let name = format!("lines.prefetch.{hint}.{distance}");
            variants.push(Variant::new(name, move |chance| measure(table, chance, distance)));
        };
        way("t0", lines::prefetched::<T0>);
        way("nta", lines::prefetched::<NTA>);
        way("t2", lines::prefetched::<T2>);
    }
    variants
}

fn measure(mut variants: Vec<Variant<'_>>, rounds: usize, wanted: impl Fn(&str) -> bool) -> Vec<Row> {
    variants.retain(|variant| wanted(&variant.name));
    let row = |variant: &Variant<'_>| Row { name: variant.name.clone(), millions_per_s: Vec::new() };
    let mut rows: Vec<_> = variants.iter().map(row).collect();
    let mut chance = Chance(0x5eed);
    for round in 0..=rounds {
        for (variant, row) in variants.iter_mut().zip(&mut rows) {
            let Measured { units, time } = (variant.measure)(&mut chance);
            // The first round warms up.
            if round > 0 {
                row.millions_per_s.push(units as f64 / time.as_secs_f64() / 1e6);
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests;
