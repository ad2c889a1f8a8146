//! Algorithm 1 of Fat-B+Tree as printed: each table looks up the range of each of its 2^16 values, starting
//! from the first range. O(2^16 n + n^2). [`super::encode`] is the production code; a test checks that both
//! give the same tables.

use super::encode::{Shape, Stage, number_of};
use super::{Entry, Next};
use alloc::vec;
use alloc::vec::Vec;

/// Builds the tables, as [`super::encode::encode`].
pub(super) fn encode(lasts: &[u64], shape: Shape) -> Vec<Stage> {
    let mut construction = Construction { lasts, shape, stages: vec![Stage::default(); shape.stages] };
    construction.construct(0, 0);
    construction.stages
}

struct Construction<'a> {
    lasts: &'a [u64],
    shape: Shape,
    stages: Vec<Stage>,
}

impl Construction<'_> {
    /// Builds the table of `stage` whose first key is `base` (Construct_1 to Construct_4), as the next of its
    /// stage; returns its number.
    fn construct(&mut self, stage: usize, base: u64) -> u16 {
        let mut r = 0;
        let mut next_tab = Vec::with_capacity(usize::from(self.shape.piece_max()) + 1);
        for i in 0..=self.shape.piece_max() {
            let first = base | u64::from(i) << self.shape.shift(stage);
            let last = self.shape.slot_last(first, stage);
            // The range ends before these keys begin.
            while self.lasts[r] < first {
                r += 1;
            }
            let inside = last <= self.lasts[r];
            next_tab.push(if inside {
                Next::Range(number_of(r))
            } else {
                Next::Table(self.construct(stage + 1, first))
            });
        }
        self.generate(stage, &next_tab)
    }

    /// Merges neighbours with the same result into one entry (Generate_1 to Generate_4).
    fn generate(&mut self, stage: usize, next_tab: &[Next]) -> u16 {
        let stage = &mut self.stages[stage];
        let table = stage.next_table();
        let mut at = 0;
        for run in next_tab.chunk_by(|a, b| a == b) {
            let (first, last) = (number_of(at), number_of(at + run.len() - 1));
            stage.push(Entry { table, first, last, next: run[0] });
            at += run.len();
        }
        stage.close_table();
        table
    }
}
