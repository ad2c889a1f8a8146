//! Room for one more key: a slot of one of its buckets, made free by moving others to their other bucket.
//!
//! The search goes by breadth, so few keys move, and none moves before a way to a free slot is known: a key is never out of the set, and when there is no way nothing
//! has changed. It looks at [`STEPS_MAX`] buckets at most.

use super::hash::Hashes;
use super::table::{EMPTY, Table};
use farmem_link::huge::prefetch;

/// Buckets that are looked at for one key.
pub(super) const STEPS_MAX: usize = 1024;
/// Words of the marks of buckets that were seen.
const SEEN_WORDS: usize = 128;
/// No step led to this one.
const NO_STEP: usize = usize::MAX;

/// A bucket that the search has come to.
#[derive(Clone, Copy, Debug)]
struct Step {
    bucket: usize,
    /// The step whose bucket has a key that could move here, and its slot.
    from: usize,
    slot: usize,
}

/// The search, with what it keeps for the next one.
#[derive(Debug)]
pub(super) struct Search {
    steps: Vec<Step>,
    /// By some bits of a bucket's number: one that was seen is not looked at again, so no key is moved twice. That two buckets share a mark costs a way, no more.
    seen: [u64; SEEN_WORDS],
}

impl Default for Search {
    fn default() -> Self {
        Self { steps: Vec::new(), seen: [0; SEEN_WORDS] }
    }
}

impl Search {
    /// Makes a slot free in one of the buckets `homes`. `None`, and nothing changed, when there is no way.
    pub(super) fn make_room(
        &mut self,
        table: &mut Table,
        hashes: &Hashes,
        homes: [usize; 2],
    ) -> Option<(usize, usize)> {
        // Most keys find room at once, and rather in the first bucket: that one is looked at first.
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

    /// Notes a bucket, unless it was seen or there are enough.
    fn reach(&mut self, step: Step) {
        let (word, bit) = (step.bucket / 64 % SEEN_WORDS, 1 << (step.bucket % 64));
        if self.steps.len() < STEPS_MAX && self.seen[word] & bit == 0 {
            self.seen[word] |= bit;
            self.steps.push(step);
        }
    }

    /// Moves the key of a step's slot into a free one, the key that could move there into its slot, and so on; says which slot is free in the end.
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

/// The other bucket of a key that stands in `bucket`.
fn other_home(key: u64, bucket: usize, hashes: &Hashes, buckets: usize) -> usize {
    let first = hashes.first(key, buckets);
    if first == bucket { hashes.second(key, buckets) } else { first }
}
