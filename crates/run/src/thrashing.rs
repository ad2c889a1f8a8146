//! The time that a program thrashes, for a warning while it runs. Pure.
//!
//! Key type: [`ThrashingTimer`]. The page cache decides whether a program thrashes
//! ([`Refaults`](farmem_paging::Refaults)); this timer adds up how long.

use std::time::{Duration, Instant};

/// Time of thrashing after which the pager warns.
const WARN_AFTER: Duration = Duration::from_secs(5);
/// Maximum time that counts between two samples. A program that computes for long between two faults does not
/// thrash meanwhile.
const STEP_MAX: Duration = Duration::from_secs(1);

/// A sum of the times between samples in which the program thrashed.
#[derive(Debug, Default)]
pub(super) struct ThrashingTimer {
    /// Time and number of refaults of the latest sample.
    latest: Option<(Instant, u64)>,
    total: Duration,
    warned: bool,
}

impl ThrashingTimer {
    /// Records a sample: whether the program thrashes, and its refaults so far. Returns true once, when the
    /// total reaches [`WARN_AFTER`].
    pub(super) fn sample(&mut self, now: Instant, thrashes: bool, refaults: u64) -> bool {
        if let Some((before, count)) = self.latest.replace((now, refaults))
            && thrashes
            && refaults > count
        {
            self.total += now.duration_since(before).min(STEP_MAX);
        }
        let warns = !self.warned && self.total >= WARN_AFTER;
        self.warned |= warns;
        warns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the samples that warned. A sample is a state, and the refaults since the sample before.
    fn warnings(samples: impl IntoIterator<Item = (bool, u64)>, step: Duration) -> Vec<usize> {
        let (mut timer, mut now, mut refaults) = (ThrashingTimer::default(), Instant::now(), 0);
        let mut warned = Vec::new();
        for (n, (thrashes, more)) in samples.into_iter().enumerate() {
            now += step;
            refaults += more;
            if timer.sample(now, thrashes, refaults) {
                warned.push(n);
            }
        }
        warned
    }

    const HALF: Duration = Duration::from_millis(500);

    /// The first sample begins the time, so the eleventh ends five seconds. No second warning follows.
    #[test]
    fn one_warning_after_five_seconds() {
        assert_eq!(warnings((0..100).map(|_| (true, 9)), HALF), [10]);
    }

    /// Time counts only while the program thrashes and pages come again; pauses do not reset the total.
    #[test]
    fn only_time_with_refaults_counts() {
        assert_eq!(warnings((0..100).map(|_| (false, 9)), HALF), Vec::<usize>::new());
        assert_eq!(warnings((0..100).map(|_| (true, 0)), HALF), Vec::<usize>::new());
        assert_eq!(warnings((0..100).map(|n| (n % 2 == 0, 9)), HALF), [20]);
    }

    /// A minute between two faults counts as a second.
    #[test]
    fn long_computations_do_not_count() {
        assert_eq!(warnings((0..9).map(|_| (true, 1)), Duration::from_secs(60)), [5]);
    }
}
