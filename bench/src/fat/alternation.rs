//! Rounds in which paths to a tree's values alternate, and the measurements of each path.

use super::store::{LookupPath, Store};
use crate::{CpuMeter, Samples, to_f64};
use farmem::Error;
use farmem_index::TreeSection;
use std::time::{Duration, Instant};

/// The time budget of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Rounds of all paths, after one that warms up.
    pub(super) rounds: u32,
    /// The time of one measurement of a path in a round.
    pub(super) slice: Duration,
}

/// Look-ups in flight in the parallel throughput measurement.
const DEPTH: usize = 32;
/// The measurements of a path.
#[derive(Default)]
pub(super) struct Figures {
    pub(super) latency: Samples,
    /// Look-ups per second by round, one at a time.
    pub(super) alone: Vec<f64>,
    /// Packets of each look-up sent one at a time: a READ is one.
    pub(super) reads: Vec<u64>,
    /// Look-ups per second with [`DEPTH`] in flight, for paths that support it.
    pub(super) many: Vec<f64>,
    pub(super) round_trips: u64,
    /// Nodes and lines that memory nodes visited.
    pub(super) visits: u64,
}

/// A tree on a rack, and the meter of the rack's processes.
pub(super) struct Bench {
    pub(super) store: Store,
    pub(super) cpu: CpuMeter,
}

impl Bench {
    /// Measures all of `paths` in alternating rounds.
    pub(super) fn compare(
        &mut self,
        paths: &[LookupPath],
        section: &TreeSection,
        draw: &[u64],
        effort: Budget,
        with_many: bool,
    ) -> Result<Vec<Figures>, Error> {
        let mut all: Vec<Figures> = paths.iter().map(|_| Figures::default()).collect();
        let mut numbers = draw.iter().copied().cycle();
        for round in 0..=effort.rounds {
            for (path, figures) in paths.iter().zip(&mut all) {
                match path {
                    LookupPath::Index | LookupPath::Keyed => self.store.publish_section(section)?,
                    LookupPath::Root | LookupPath::Relayed | LookupPath::Direct | LookupPath::Through => {
                        self.store.withdraw()?
                    }
                }
                // The first round warms up: nodes learn programs, the heap's lease begins.
                let mut unused = Figures::default();
                let figures = if round == 0 { &mut unused } else { figures };
                self.alone(*path, &mut numbers, effort.slice, figures)?;
                if with_many && matches!(path, LookupPath::Index | LookupPath::Root) {
                    self.many(&mut numbers, effort.slice, figures)?;
                }
            }
        }
        self.store.withdraw()?;
        Ok(all)
    }

    fn alone(
        &mut self,
        path: LookupPath,
        numbers: &mut impl Iterator<Item = u64>,
        slice: Duration,
        figures: &mut Figures,
    ) -> Result<(), Error> {
        let (mut busy, mut count) = (Duration::ZERO, 0);
        let before = self.store.client().tally();
        let cpu = self.cpu.begin();
        while busy < slice {
            let number = numbers.next().expect("a cycle has no end");
            let sent = self.store.client().packets().0;
            let begin = Instant::now();
            self.store.get(number, path)?;
            let took = begin.elapsed();
            figures.reads.push(self.store.client().packets().0 - sent);
            figures.latency.record(took);
            busy += took;
            count += 1;
        }
        figures.latency.spent(cpu.end(), count);
        figures.alone.push(to_f64(count) / busy.as_secs_f64());
        let after = self.store.client().tally();
        figures.round_trips += after.requests - before.requests;
        figures.visits += after.iterations - before.iterations;
        Ok(())
    }

    fn many(
        &mut self,
        numbers: &mut impl Iterator<Item = u64>,
        slice: Duration,
        figures: &mut Figures,
    ) -> Result<(), Error> {
        let begin = Instant::now();
        let count = self.store.get_many(numbers.take_while(|_| begin.elapsed() < slice), DEPTH)?;
        figures.many.push(to_f64(count) / begin.elapsed().as_secs_f64());
        Ok(())
    }
}
