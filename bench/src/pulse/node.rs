//! `pulse.node.*`: the traversal rate of one core of a memory node, from request frame to reply frame,
//! compared with the line-read rate of the same core and with sequential traversals.
//!
//! A store in huge pages is filled with a structure whose nodes lie in pseudo-random places, and a node over
//! the store receives requests as from a link. The baselines are the line-read limit, the same store read
//! without computation; the limit with the instructions of a hop after each line; and look-ups in a table
//! that fits the nearest caches, where only instructions count.

mod instructions;
pub(crate) mod lines;
mod lookups;
mod structures;

use crate::Row;
use crate::rates::{Chance, Measured, Rates, Variant, cpu_time, measure as in_turns};
use farmem_link::{Compiler, MappedStore};
use lookups::{How, Lookups};
use std::io;
use std::time::Duration;
use structures::{Btree, Hash};

/// The extent of the measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Bytes of the store, a power of two.
    pub(super) store: u64,
    /// Rounds of all variants.
    pub(super) rounds: usize,
}

/// Bytes of the store that fits into caches.
const SMALL: u64 = 1 << 18;
/// Nodes per chain.
const CHAIN: u64 = 128;
/// The first nodes of a chain that `hash.hops` looks for: 2.5 hops per request. `hash.long` looks for any,
/// 64.5 hops per request.
const SHORT: u64 = 4;

/// One request at a time, each after the previous reply.
const ALONE: How = How { at_once: 1, ..How::FEW };
/// Half of the concurrent look-ups in each datagram.
const BATCHED: How = How { pairs: 32, ..How::USUAL };
const INTERPRETED: How = How { compiler: Compiler::interpreter, ..How::FEW };

/// A row: its id, its variant, and the baseline variant. `lines` is the fastest of [`lines::limits`].
type Figure = (&'static str, &'static str, Option<&'static str>);

const LINES: &str = "lines";
const HASH: [Figure; 10] = [
    ("pulse.node.lines", LINES, None),
    ("pulse.node.lines.with_hops", "with_hops", Some(LINES)),
    ("pulse.node.hash.hops", "hash", Some(LINES)),
    ("pulse.node.hash.long", "long", Some(LINES)),
    ("pulse.node.hash.unburst", "unburst", Some("hash")),
    ("pulse.node.hash.cached", "cached", Some(LINES)),
    ("pulse.node.hash.batched", "batched", Some(LINES)),
    ("pulse.node.hash.batched_cached", "batched_cached", Some(LINES)),
    ("pulse.node.hash.one_at_a_time", "one", Some("hash")),
    ("pulse.node.hash.interpreter", "interpreter", Some("hash")),
];
const BTREE: [Figure; 5] = [
    ("pulse.node.btree.lookups", "btree", Some("one")),
    ("pulse.node.btree.rank", "rank", Some("one")),
    ("pulse.node.btree.batched", "batched", Some("one")),
    ("pulse.node.btree.one_at_a_time", "one", None),
    ("pulse.node.btree.interpreter", "interpreter", Some("btree")),
];
/// The parameters of the cost model (PULSE 4.1), in picoseconds: an instruction, the load of one line, each
/// further line of a load.
const CORE: [&str; 3] = ["pulse.node.core.instruction", "pulse.node.core.load", "pulse.node.core.line"];
/// The row of a hop of one traversal at a time.
const ONE: &str = HASH[8].0;

/// Returns the rows; all absent when there is no memory for the store.
pub(super) fn measure(effort: Budget) -> Vec<Row> {
    on_stores(effort).unwrap_or_else(|error| {
        let why = format!("there is no memory for a store of {} bytes: {error}", effort.store);
        let hash = HASH.iter().map(|figure| (figure.0, "1/s"));
        let core = CORE.iter().map(|id| (*id, "ps"));
        let btree = BTREE.iter().map(|figure| (figure.0, "1/s"));
        hash.chain(core).chain(btree).map(|(id, unit)| Row::absent(id, unit, &*why)).collect()
    })
}

/// Returns the time of a hop of one traversal at a time.
pub(super) fn hop(rows: &[Row]) -> Option<Duration> {
    let per_second = rows.iter().find(|row| row.id == ONE)?.value?;
    Some(Duration::from_secs_f64(1.0 / per_second))
}

/// The stores that variants use in turn. A variant that starts a node over a store returns it.
struct Subject {
    large: Option<MappedStore>,
    small: Option<MappedStore>,
}

impl Subject {
    fn new(len: u64) -> io::Result<Self> {
        Ok(Self { large: Some(MappedStore::new(len)?), small: Some(MappedStore::new(SMALL)?) })
    }

    fn store(&self) -> &MappedStore {
        self.large.as_ref().expect("it was given back")
    }
}

fn on_stores(effort: Budget) -> io::Result<Vec<Row>> {
    let mut subject = Subject::new(effort.store)?;
    let mut rows = hash(&mut subject, effort.rounds);
    // A fresh store: the system keeps the pages of a used store in place.
    subject = Subject::new(effort.store)?;
    rows.extend(btree(&mut subject, effort.rounds));
    Ok(rows)
}

fn way<'a>(name: &'static str, lookups: &'a Lookups<'_>, how: How) -> Variant<'a, Subject> {
    Variant::new(name, move |subject, chance| lookups.measure(how, subject, chance))
}

fn hash(subject: &mut Subject, rounds: usize) -> Vec<Row> {
    let large = Hash::fill(subject.large.as_mut().expect("new"), CHAIN);
    let small = Hash::fill(subject.small.as_mut().expect("new"), CHAIN);
    let short = Lookups::hash(&large, SHORT);
    let long = Lookups::hash(&large, CHAIN);
    let cached = Lookups::hash(&small, SHORT).in_small();
    let more = vec![
        Variant::new("with_hops", lines::with_hops),
        way("hash", &short, How::USUAL),
        way("long", &long, How::FEW),
        way("unburst", &short, How { burst: 1, ..How::USUAL }),
        way("cached", &cached, How::USUAL),
        way("batched", &short, BATCHED),
        way("batched_cached", &cached, BATCHED),
        way("one", &short, ALONE),
        way("interpreter", &short, INTERPRETED),
        Variant::new("instruction", instructions::instructions),
        Variant::new("load", lines::dependent::<1>),
        Variant::new("load.4", lines::dependent::<4>),
    ];
    let ways = lines::limits(Subject::store).into_iter().chain(more).collect();
    let mut rates = in_turns(subject, ways, rounds);
    rates.push(lines::limit(&rates, LINES));
    let mut rows: Vec<_> = HASH.iter().map(|figure| row(*figure, &rates)).collect();
    let ps = |name| 1e6 / of(&rates, name).p50();
    let (load, four) = (ps("load"), ps("load.4"));
    let times = [ps("instruction"), load, (four - load) / 3.0];
    rows.extend(CORE.iter().zip(times).map(|(id, ps)| Row::figure(*id, "ps", ps, rounds as u64)));
    rows
}

fn btree(subject: &mut Subject, rounds: usize) -> Vec<Row> {
    let tree = Btree::fill(subject.large.as_mut().expect("new"));
    let (halving, rank) = (Lookups::btree(&tree), Lookups::btree_rank(&tree));
    let ways = vec![
        way("btree", &halving, How::USUAL),
        way("rank", &rank, How::USUAL),
        way("batched", &rank, BATCHED),
        way("one", &halving, ALONE),
        way("interpreter", &halving, INTERPRETED),
    ];
    let rates = in_turns(subject, ways, rounds);
    BTREE.iter().map(|figure| row(*figure, &rates)).collect()
}

fn of<'a>(rates: &'a [Rates], name: &str) -> &'a Rates {
    rates.iter().find(|rates| rates.name == name).expect("every way is measured")
}

/// Returns a variant's row. Its ratio is that of the same rounds, so it may differ from the quotient of the
/// two medians.
fn row((id, way, baseline): Figure, rates: &[Rates]) -> Row {
    let per_second = |rates: &Rates| rates.p50() * 1e6;
    let way = of(rates, way);
    let baseline = baseline.map(|name| of(rates, name));
    let slowest = way.millions_per_s.iter().copied().fold(f64::INFINITY, f64::min) * 1e6;
    Row {
        baseline: baseline.map(per_second),
        ratio: baseline.map(|baseline| way.times(baseline)),
        p50: Some(per_second(way)),
        p99: Some(slowest),
        // Rates are by CPU time of the one thread.
        cpu: Some(1e9 / per_second(way)),
        ..Row::figure(id, "1/s", per_second(way), way.millions_per_s.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> Vec<&'static str> {
        HASH.iter().map(|figure| figure.0).chain(CORE).chain(BTREE.iter().map(|figure| figure.0)).collect()
    }

    /// On a store that fits any cache, every figure has a value, an id and a baseline. A wrong answer would
    /// panic.
    #[test]
    fn every_figure_is_there() {
        let rows = measure(Budget { store: 1 << 18, rounds: 1 });
        assert_eq!(rows.iter().map(|row| &*row.id).collect::<Vec<_>>(), ids());
        for row in &rows {
            assert!(row.value.is_some_and(f64::is_finite) && row.why.is_none(), "{row:?}");
            let figure = HASH.iter().chain(&BTREE).find(|figure| figure.0 == row.id);
            assert_eq!(row.ratio.is_some(), figure.is_some_and(|figure| figure.2.is_some()), "{row:?}");
        }
        assert!(hop(&rows).is_some_and(|hop| hop < Duration::from_millis(1)));
    }

    /// Lack of memory gives rows with a reason, not a failure.
    #[test]
    fn without_memory_it_says_why() {
        let rows = measure(Budget { store: 1 << 60, rounds: 1 });
        assert_eq!(rows.iter().map(|row| &*row.id).collect::<Vec<_>>(), ids());
        assert!(rows.iter().all(|row| row.value.is_none() && row.why.is_some()));
        assert_eq!(hop(&rows), None);
    }
}
