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
    /// Time of thrashing since the latest warning.
    total: Duration,
    /// Frames that the latest warning named.
    named: u64,
}

impl ThrashingTimer {
    /// Records a sample: whether the program thrashes, its refaults so far, and the frames that would help, if any. Returns
    /// true when the total reaches [`WARN_AFTER`], and again when it does and half as many frames more would help than the
    /// latest warning named: the memory of a program may grow.
    pub(super) fn sample(
        &mut self,
        now: Instant,
        thrashes: bool,
        refaults: u64,
        frames_wanted: Option<u64>,
    ) -> bool {
        if let Some((before, count)) = self.latest.replace((now, refaults))
            && thrashes
            && refaults > count
        {
            self.total += now.duration_since(before).min(STEP_MAX);
        }
        let Some(frames) = frames_wanted.filter(|&frames| frames > self.named + self.named / 2) else {
            return false;
        };
        if !thrashes || self.total < WARN_AFTER {
            return false;
        }
        (self.total, self.named) = (Duration::ZERO, frames);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the samples that warned. A sample is a state, and the refaults since the sample before; `frames` returns
    /// the frames that would help at each.
    fn warnings_with(
        samples: impl IntoIterator<Item = (bool, u64)>,
        step: Duration,
        frames: impl Fn(usize) -> Option<u64>,
    ) -> Vec<usize> {
        let (mut timer, mut now, mut refaults) = (ThrashingTimer::default(), Instant::now(), 0);
        let mut warned = Vec::new();
        for (n, (thrashes, more)) in samples.into_iter().enumerate() {
            now += step;
            refaults += more;
            if timer.sample(now, thrashes, refaults, frames(n)) {
                warned.push(n);
            }
        }
        warned
    }

    fn warnings(samples: impl IntoIterator<Item = (bool, u64)>, step: Duration) -> Vec<usize> {
        warnings_with(samples, step, |_| Some(100))
    }

    const HALF: Duration = Duration::from_millis(500);

    /// The first sample begins the time, so the eleventh ends five seconds. No second warning follows.
    #[test]
    fn one_warning_after_five_seconds() {
        assert_eq!(warnings((0..100).map(|_| (true, 9)), HALF), [10]);
    }

    /// The frames that would help grow by 1 % of the first number per sample: a warning follows at each half more.
    #[test]
    fn growth_is_warned_of() {
        let samples = || (0..160).map(|_| (true, 9));
        let grows = |n: usize| Some(100 + n as u64);
        // 110, then above 165 and above 249.
        assert_eq!(warnings_with(samples(), HALF, grows), [10, 66, 150]);
        // In two seconds they double, but a warning takes five.
        assert_eq!(warnings_with((0..40).map(|_| (true, 9)), HALF, |n| Some(1 << (n / 4))), [10, 20, 30]);
    }

    /// While no number of frames would help, no warning is used up.
    #[test]
    fn a_late_remedy_is_named() {
        assert_eq!(warnings_with((0..100).map(|_| (true, 9)), HALF, |n| (n > 50).then_some(9)), [51]);
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
