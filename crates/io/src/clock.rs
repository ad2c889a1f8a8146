//! The one clock: monotonic time as the [`Instant`] that roles are given.

use farmem_machine::{Duration, Instant};

/// A monotonic clock that starts at [`Instant::ZERO`]. Copies agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: std::time::Instant,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one clock")]
    pub fn start() -> Self {
        Self { start: std::time::Instant::now() }
    }

    /// The time since the start. Saturates after 584 years.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The moment `span` from now.
    #[must_use]
    pub fn after(&self, span: Duration) -> Instant {
        self.now() + span
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A role may be handed the same moment twice, never an earlier one.
    #[test]
    fn it_never_goes_back() {
        let clock = Clock::start();
        let mut last = Instant::ZERO;
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }
}
