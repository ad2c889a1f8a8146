//! A rate limit: a burst, then one action per time span (a token bucket).

use crate::{Duration, Instant};

/// The limit of a token bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Size of the burst.
    pub at_once: u64,
    /// Time for one further action.
    pub every: Duration,
}

/// The recent use of a limit. A new or long unused bucket allows the whole burst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Bucket {
    /// The time at which the whole burst is available again.
    full: Instant,
}

impl Bucket {
    /// An unused bucket.
    pub const NEW: Self = Self { full: Instant::ZERO };

    /// Counts one action; returns false, and counts nothing, if the limit is exceeded.
    pub fn take(&mut self, now: Instant, rate: Rate) -> bool {
        let full = self.full.max(now) + rate.every;
        let may = full.since(now) <= rate.every.times(rate.at_once);
        if may {
            self.full = full;
        }
        may
    }

    /// Returns true if the whole burst is available.
    #[must_use]
    pub fn is_full(&self, now: Instant) -> bool {
        self.full <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The burst, then one per span; a long silence restores the burst and no more.
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
