//! How often something may be done: a burst, and behind it one each span of time (a token bucket).

use crate::{Duration, Instant};

/// A bound of what may be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// So often at once.
    pub at_once: u64,
    /// And once more each such span.
    pub every: Duration,
}

/// What was done of late. The one that was made last, or did nothing for long, has the whole burst before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Bucket {
    /// When the whole burst may be done again.
    full: Instant,
}

impl Bucket {
    /// One that nothing was done of.
    pub const NEW: Self = Self { full: Instant::ZERO };

    /// Counts one more; false, and nothing is counted, when that is too often.
    pub fn take(&mut self, now: Instant, rate: Rate) -> bool {
        let full = self.full.max(now) + rate.every;
        let may = full.since(now) <= rate.every.times(rate.at_once);
        if may {
            self.full = full;
        }
        may
    }

    /// True when it is as one that nothing was done of.
    #[must_use]
    pub fn is_full(&self, now: Instant) -> bool {
        self.full <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The burst, then one each span; a long silence brings back the burst and no more.
    #[test]
    fn a_burst_then_one_each_span() {
        let rate = Rate { at_once: 128, every: Duration::from_millis(1) };
        let mut bucket = Bucket::NEW;
        let mut takes = |millis: u64| {
            let now = Instant::from_nanos(millis * 1_000_000);
            (0..1000).filter(|_| bucket.take(now, rate)).count()
        };
        assert_eq!([5, 5, 6, 16, 100_000].map(&mut takes), [128, 0, 1, 10, 128]);
        assert!(!bucket.is_full(Instant::from_nanos(100_000_000_001)));
        assert!(bucket.is_full(Instant::from_nanos(100_128_000_000)));
    }
}
