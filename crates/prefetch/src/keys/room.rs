//! Room for one more key: a slot of one of its buckets, freed by moving other keys to their other bucket.
//!
//! The search is breadth-first, so few keys move. No key moves before a path to a free slot is known: a key is never
//! absent from the set, and without a path nothing has changed. The search visits at most [`STEPS_MAX`] buckets.

use super::hash::Hashes;
use super::table::{EMPTY, Table};
use farmem_link::huge::prefetch;

/// Maximum number of buckets visited for one key.
pub(super) const STEPS_MAX: usize = 1024;
/// Words of the marks of visited buckets.
const SEEN_WORDS: usize = 128;
/// The predecessor of the first steps.
const NO_STEP: usize = usize::MAX;

/// A bucket that the search has reached.
#[derive(Clone, Copy, Debug)]
struct Step {
    bucket: usize,
    /// The step whose bucket has a key that could move here, and the slot of that key.
    from: usize,
    slot: usize,
}

/// The search, with its memory for the next one.
#[derive(Debug)]
pub(super) struct Search {
    steps: Vec<Step>,
    /// Marks by some bits of a bucket's number: a marked bucket is not visited again, so no key moves twice. Two
    /// buckets with one mark only cost a path.
    seen: [u64; SEEN_WORDS],
}

impl Default for Search {
    fn default() -> Self {
        Self { steps: Vec::new(), seen: [0; SEEN_WORDS] }
    }
}

impl Search {
    /// Frees a slot in one of the buckets `homes`. Returns `None`, with nothing changed, if there is no path.
    pub(super) fn make_room(
        &mut self,
        table: &mut Table,
        hashes: &Hashes,
        homes: [usize; 2],
    ) -> Option<(usize, usize)> {
        // Most keys find room at once, the first bucket first.
        for home in homes {
            if let Some(slot) = table.slot_of(home, EMPTY) {
                return Some((home, slot));
            }
        }
        self.steps.clear();
        self.seen.fill(0);
        for bucket in homes {
            self.reach(Step { bucket, from: NO_STEP, slot: 0 });
        }
        let mut next = 0;
        while let Some(&Step { bucket, .. }) = self.steps.get(next) {
            let keys = table.buckets()[bucket].0;
            let others = keys.map(|key| other_home(key, bucket, hashes, table.buckets().len()));
            others.iter().for_each(|&other| prefetch(table.line(other)));
            for (slot, &other) in others.iter().enumerate() {
                if let Some(free) = table.slot_of(other, EMPTY) {
                    return Some(self.shift(table, (next, slot), (other, free)));
                }
                self.reach(Step { bucket: other, from: next, slot });
            }
            next += 1;
        }
        None
    }

    /// Records a bucket, unless it was visited or the limit is reached.
    fn reach(&mut self, step: Step) {
        let (word, bit) = (step.bucket / 64 % SEEN_WORDS, 1 << (step.bucket % 64));
        if self.steps.len() < STEPS_MAX && self.seen[word] & bit == 0 {
            self.seen[word] |= bit;
            self.steps.push(step);
        }
    }

    /// Moves the key of a step's slot into a free one, the key that could move there into its slot, and so on.
    /// Returns the slot that is free at the end.
    fn shift(&self, table: &mut Table, from: (usize, usize), mut free: (usize, usize)) -> (usize, usize) {
        let (mut step, mut slot) = from;
        loop {
            let Step { bucket, from, slot: before } = self.steps[step];
            let key = table.buckets()[bucket].0[slot];
            table.set(free.0, free.1, key);
            free = (bucket, slot);
            if from == NO_STEP {
                return free;
            }
            (step, slot) = (from, before);
        }
    }
}

/// Returns the other bucket of a key in `bucket`.
fn other_home(key: u64, bucket: usize, hashes: &Hashes, buckets: usize) -> usize {
    let first = hashes.first(key, buckets);
    if first == bucket { hashes.second(key, buckets) } else { first }
}
