//! A sorted set: members in order of their scores, and of their bytes where scores are equal.
//!
//! Key type: [`Ranked`]. Members lie in runs of some hundred. The lengths of the runs lead to a rank, and a
//! change moves one run at most.

use indexmap::IndexMap;
use std::cmp::Ordering;

/// The bytes of a member, a field or an element.
pub(crate) type Text = Box<[u8]>;

/// Members of a run at most. A longer run is split.
const RUN_MAX: usize = 256;

/// Members with scores.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Ranked {
    scores: IndexMap<Text, f64>,
    runs: Vec<Vec<(f64, Text)>>,
}

fn order(a: (f64, &[u8]), b: (f64, &[u8])) -> Ordering {
    // Scores are numbers, because commands refuse NaN.
    a.0.partial_cmp(&b.0).unwrap_or(Ordering::Equal).then_with(|| a.1.cmp(b.1))
}

impl Ranked {
    pub(crate) fn len(&self) -> usize {
        self.scores.len()
    }

    pub(crate) fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).copied()
    }

    /// Returns the member of this number, in no order: for random members.
    pub(crate) fn nth(&self, number: usize) -> Option<(&[u8], f64)> {
        self.scores.get_index(number).map(|(member, score)| (&**member, *score))
    }

    /// Sets a member's score, and returns its old one.
    pub(crate) fn insert(&mut self, score: f64, member: &[u8]) -> Option<f64> {
        let before = match self.scores.get_mut(member) {
            Some(known) => Some(std::mem::replace(known, score)),
            None => self.scores.insert(member.into(), score),
        };
        if let Some(before) = before {
            if before == score {
                return Some(before);
            }
            self.take_out(before, member);
        }
        self.put_in(score, member);
        before
    }

    /// Inserts a member in order.
    pub(crate) fn put(&mut self, score: f64, member: &[u8]) {
        self.insert(score, member);
    }

    /// Removes a member, and returns whether it was there.
    pub(crate) fn forget(&mut self, member: &[u8]) {
        self.remove(member);
    }

    pub(crate) fn remove(&mut self, member: &[u8]) -> Option<f64> {
        let score = self.scores.swap_remove(member)?;
        self.take_out(score, member);
        Some(score)
    }

    /// Returns the members in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (f64, &[u8])> {
        self.runs.iter().flatten().map(|(score, member)| (*score, &**member))
    }

    /// Returns up to `len` members in order from `rank` on.
    pub(crate) fn range(&self, rank: usize, len: usize) -> Vec<(f64, &[u8])> {
        let mut skip = rank;
        let mut found = Vec::new();
        for run in &self.runs {
            if skip >= run.len() {
                skip -= run.len();
                continue;
            }
            let wanted = run[skip..].iter().take(len - found.len());
            found.extend(wanted.map(|(score, member)| (*score, &**member)));
            skip = 0;
            if found.len() == len {
                break;
            }
        }
        found
    }

    /// Returns the rank of a member.
    pub(crate) fn rank(&self, member: &[u8]) -> Option<usize> {
        let score = self.score(member)?;
        Some(self.count_while(|at| order(at, (score, member)) == Ordering::Less))
    }

    /// Returns how many members satisfy `is`; those come before all others.
    pub(crate) fn count_while(&self, is: impl Fn((f64, &[u8])) -> bool) -> usize {
        let run =
            self.runs.partition_point(|run| run.last().is_some_and(|(score, member)| is((*score, member))));
        let before: usize = self.runs[..run].iter().map(Vec::len).sum();
        let within =
            self.runs.get(run).map_or(0, |run| run.partition_point(|(score, member)| is((*score, member))));
        before + within
    }

    fn run_of(&self, score: f64, member: &[u8]) -> usize {
        let at = self.runs.partition_point(|run| {
            run.last().is_some_and(|(last, name)| order((*last, name), (score, member)) == Ordering::Less)
        });
        at.min(self.runs.len().saturating_sub(1))
    }

    fn put_in(&mut self, score: f64, member: &[u8]) {
        if self.runs.is_empty() {
            self.runs.push(Vec::new());
        }
        let number = self.run_of(score, member);
        let run = &mut self.runs[number];
        let at =
            run.partition_point(|(other, name)| order((*other, name), (score, member)) == Ordering::Less);
        run.insert(at, (score, member.into()));
        if run.len() > RUN_MAX {
            let second = run.split_off(RUN_MAX / 2);
            self.runs.insert(number + 1, second);
        }
    }

    fn take_out(&mut self, score: f64, member: &[u8]) {
        let number = self.run_of(score, member);
        let run = &mut self.runs[number];
        let at =
            run.partition_point(|(other, name)| order((*other, name), (score, member)) == Ordering::Less);
        let (_, removed) = run.remove(at);
        assert_eq!(&*removed, member, "scores and runs have the same members");
        if run.is_empty() {
            self.runs.remove(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
        /// Order, ranks, ranges and counts are those of a map that is sorted anew each time.
        #[test]
        fn members_are_sorted(steps in proptest::collection::vec((0_u16..700, -3_i32..40, 0_u8..5), 1..2_000)) {
            let (mut ranked, mut model) = (Ranked::default(), BTreeMap::<Vec<u8>, f64>::new());
            for (member, score, step) in steps {
                let (member, score) = (member.to_string().into_bytes(), f64::from(score) / 2.0);
                if step == 0 {
                    prop_assert_eq!(ranked.remove(&member), model.remove(&member));
                } else {
                    prop_assert_eq!(ranked.insert(score, &member), model.insert(member.clone(), score));
                }
            }
            let mut sorted: Vec<(f64, &[u8])> = model.iter().map(|(member, score)| (*score, &**member)).collect();
            sorted.sort_by(|a, b| order(*a, *b));
            prop_assert_eq!(ranked.iter().collect::<Vec<_>>(), sorted.clone());
            for rank in (0..sorted.len()).step_by(17) {
                prop_assert_eq!(ranked.rank(sorted[rank].1), Some(rank));
                prop_assert_eq!(&ranked.range(rank, 20)[..], &sorted[rank..(rank + 20).min(sorted.len())]);
            }
            let below = |bound: f64| sorted.iter().filter(|(score, _)| *score < bound).count();
            for bound in [-9.0, 0.0, 3.5, 99.0] {
                prop_assert_eq!(ranked.count_while(|(score, _)| score < bound), below(bound));
            }
        }
    }
}
