//! `fat.ranges.*`: a range of 100 keys in 1, 2, 5 and 10 parallel sub-ranges, through the index and by
//! descents from the root (Fat-B+Tree IV-C). Both use traversals through the switch, in the same batches.

use super::alternation::Budget;
use crate::{Row, Samples, to_f64};
use farmem::blink_tree::{Extent, Separators, publish};
use farmem::{BLinkTree, Client, Error, Layout, Policy, Rack, Rng};
use std::time::{Duration, Instant};

/// Keys per range (Fat-B+Tree IV-C).
const RANGE: u64 = 100;
/// Sub-ranges.
const PARTS: [usize; 4] = [1, 2, 5, 10];
/// Ranges over which visits are counted.
const COUNTED: u64 = 200;
/// Bytes of far memory per key, including its share of the nodes.
pub(super) const KEY_BYTES: u64 = 32;
const SEED: u64 = 29;

/// The cost of a number of sub-ranges by one path.
#[derive(Default)]
struct Figures {
    latency: Samples,
    visits: u64,
    ranges: u64,
}

/// A tree of numbers with its separators.
struct Ranges {
    client: Client,
    tree: BLinkTree,
    keys: u64,
    separators: Separators,
    rng: Rng,
    wrong: u64,
}

impl Ranges {
    /// Queries a random range in `n` sub-ranges.
    fn ask(&mut self, n: usize) -> Result<(), Error> {
        let Self { client, tree, keys, separators, rng, wrong } = self;
        let first = rng.next_u64() % (*keys - RANGE);
        let mut query = tree.range(first..first + RANGE).parallel_at(n, separators)?;
        let found = query.next(tree, client, usize::MAX)?;
        *wrong += u64::from(!found.into_iter().eq((first..first + RANGE).map(|key| (key, !key))));
        Ok(())
    }

    fn measure(&mut self, n: usize, slice: Duration, figures: &mut Figures) -> Result<(), Error> {
        let begin = Instant::now();
        let before = self.client.tally().iterations;
        while begin.elapsed() < slice || figures.ranges < COUNTED {
            let asked = Instant::now();
            self.ask(n)?;
            figures.latency.record(asked.elapsed());
            figures.ranges += 1;
        }
        figures.visits += self.client.tally().iterations - before;
        Ok(())
    }
}

/// Returns the rows of a tree of `keys` numbers, and the number of wrong answers.
pub(super) fn measure(rack: &Rack, keys: u64, effort: Budget) -> Result<(Vec<Row>, u64), Error> {
    let mut client = rack.client("bench-fat")?;
    let mut tree = BLinkTree::create(&mut client, Layout::Partitioned)?;
    let numbers = 0..usize::try_from(keys).expect("fewer than memory has");
    tree.load(&mut client, numbers.map(|n| (n as u64, !(n as u64))), 14)?;
    tree.set_policy(Policy::Offload);
    let section = tree.section(&mut client, Extent::default())?;
    let separators = Separators::published(&section);
    let rng = Rng::from_number(SEED);
    let mut ranges = Ranges { client, tree, keys, separators, rng, wrong: 0 };
    let mut all: Vec<[Figures; 2]> = PARTS.iter().map(|_| Default::default()).collect();
    for round in 0..=effort.rounds {
        for way in 0..2 {
            match way {
                0 => _ = publish(&mut ranges.client, std::slice::from_ref(&section))?,
                _ => ranges.client.clear_soft_state(Vec::new())?,
            }
            for (&n, figures) in PARTS.iter().zip(&mut all) {
                // The first round warms up.
                let mut unused = Figures::default();
                ranges.measure(n, effort.slice, if round == 0 { &mut unused } else { &mut figures[way] })?;
            }
        }
    }
    let visits = |figures: &Figures| to_f64(figures.visits) / to_f64(figures.ranges);
    let alone = visits(&all[0][0]);
    let mut rows = Vec::new();
    for (n, [index, root]) in PARTS.iter().zip(&all) {
        let id = |what: &str| format!("fat.ranges.{n}.{what}");
        let accesses = Row::figure(id("accesses"), "per range", visits(index), index.ranges);
        rows.push(accesses.beside(Some(visits(root))));
        rows.push(index.latency.row(&id("latency"), Some(&root.latency)));
        if *n > 1 {
            let more = Row::figure(id("accesses.over_one"), "per range", visits(index), index.ranges);
            rows.push(more.beside(Some(alone)));
            rows.push(index.latency.row(&id("latency.over_one"), Some(&all[0][0].latency)));
        }
    }
    Ok((rows, ranges.wrong))
}
