//! The one clock: monotonic time as the [`Instant`] that roles are given.
//!
//! The clock is the system's CLOCK_BOOTTIME, which runs on while the machine is suspended, where CLOCK_MONOTONIC stands still: a host that was suspended
//! must not believe that its lease still runs (PROTOCOL 12.35), and a control plane that was is right to take leases for ended of which it heard nothing.
//! All roles have this one. To those without leases a suspend is what a long stop of their process has always been: timers that are due at once, of
//! which each repeats once and is then set anew. No clock of a virtual machine sees that the machine itself was stopped from outside.

use farmem_machine::{Duration, Instant};
use rustix::time::{ClockId, clock_gettime};

/// CPU time that the calling thread has had so far.
#[must_use]
pub fn cpu_time_of_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let [seconds, nanos] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    Duration::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// A monotonic clock that starts at [`Instant::ZERO`]. Copies agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Since the machine was booted, in nanoseconds.
    start: u64,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Self::boot_time_ns() }
    }

    /// The time since the start. Saturates after 584 years.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(Self::boot_time_ns().saturating_sub(self.start))
    }

    /// The moment `span` from now.
    #[must_use]
    pub fn after(&self, span: Duration) -> Instant {
        self.now() + span
    }

    /// Nanoseconds from the machine's boot to this moment: what all its processes agree about.
    #[must_use]
    pub fn boot_time_at(&self, at: Instant) -> u64 {
        self.start.saturating_add(at.since(Instant::ZERO).as_nanos())
    }

    /// Nanoseconds since the machine was booted, with the time it was suspended.
    #[must_use]
    pub fn boot_time_ns() -> u64 {
        const SECOND: u64 = 1_000_000_000;
        let time = clock_gettime(ClockId::Boottime);
        let part = |number: i64| u64::try_from(number).unwrap_or(0);
        part(time.tv_sec).saturating_mul(SECOND).saturating_add(part(time.tv_nsec))
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

    /// The clock includes time spent suspended: its reading lies between two readings of CLOCK_BOOTTIME.
    #[test]
    fn it_runs_while_the_machine_is_suspended() {
        let clock = Clock::start();
        let boot_time = || {
            let time = clock_gettime(ClockId::Boottime);
            u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).expect("after the boot")
        };
        for _ in 0..1000 {
            let before = boot_time();
            let now = clock.boot_time_at(clock.now());
            assert!((before..=boot_time()).contains(&now));
        }
    }
}
