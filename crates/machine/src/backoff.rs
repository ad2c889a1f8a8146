//! Waits between tries: each is twice as long as the previous one, up to a bound.

use crate::{Duration, Rng};

/// The waits of a retransmission timer or of a retry.
///
/// ```
/// use farmem_machine::{Backoff, Duration};
///
/// let backoff = Backoff::new(Duration::from_millis(2), 3);
/// let waits = [0, 1, 2, 3, 4].map(|tries| backoff.after(tries).as_nanos() / 1_000_000);
/// assert_eq!(waits, [2, 4, 8, 16, 16]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    first: Duration,
    doublings_max: u32,
}

impl Backoff {
    /// Returns waits that begin with `first` and double at most `doublings_max` times.
    ///
    /// # Panics
    /// If `doublings_max` is 64 or more.
    #[must_use]
    pub const fn new(first: Duration, doublings_max: u32) -> Self {
        assert!(doublings_max < u64::BITS);
        Self { first, doublings_max }
    }

    /// Returns the wait after this number of tries.
    #[must_use]
    pub const fn after(self, tries: u32) -> Duration {
        let doublings = if tries < self.doublings_max { tries } else { self.doublings_max };
        self.first.times(1 << doublings)
    }

    /// Returns a random time between half of [`Backoff::after`] and one and a half times as much, so that
    /// parties that wait for one thing do not collide again.
    pub fn jittered_after(self, tries: u32, rng: &mut Rng) -> Duration {
        let nanos = self.after(tries).as_nanos();
        let spread = u32::try_from(nanos).unwrap_or(u32::MAX).max(1);
        Duration::from_nanos(nanos / 2 + u64::from(rng.below(spread)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits double up to the bound and then stay; a long wait saturates.
    #[test]
    fn waits_double_up_to_a_bound() {
        let backoff = Backoff::new(Duration::from_nanos(10), 2);
        assert_eq!([0, 1, 2, 3, u32::MAX].map(|tries| backoff.after(tries).as_nanos()), [10, 20, 40, 40, 40]);
        let long = Backoff::new(Duration::from_secs(1 << 34), 63);
        assert_eq!(long.after(u32::MAX).as_nanos(), u64::MAX);
    }

    /// Random waits lie between half of the wait and one and a half times the wait, and reach both halves.
    #[test]
    fn random_waits_lie_around_the_wait() {
        let (backoff, mut rng) = (Backoff::new(Duration::from_nanos(1_000), 6), Rng::from_number(3));
        let waits: [u64; 200] = [(); 200].map(|()| backoff.jittered_after(1, &mut rng).as_nanos());
        assert!(waits.iter().all(|wait| (1_000..3_000).contains(wait)), "{waits:?}");
        assert!(waits.iter().any(|wait| *wait < 1_500) && waits.iter().any(|wait| *wait > 2_500));
    }
}
