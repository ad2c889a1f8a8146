//! The clock of all roles: monotonic time as an [`Instant`].
//!
//! The clock is the system's CLOCK_BOOTTIME, which continues while the machine is suspended, unlike
//! CLOCK_MONOTONIC. A suspended host must notice that its lease has expired (PROTOCOL 12.35), and a suspended
//! control plane may consider leases without renewals expired.
//!
//! For roles without leases, a suspension is the same as a long pause of their process: due timers fire once
//! and are set again. No clock of a virtual machine notices that the machine was stopped from outside.

use farmem_machine::{Duration, Instant};
use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time that the calling thread has used.
#[must_use]
pub fn cpu_time_of_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let [seconds, nanos] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    Duration::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// A monotonic clock that starts at [`Instant::ZERO`]. Copies agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Start of the clock, in nanoseconds since the machine booted.
    start: u64,
}

impl Clock {
    /// Creates a clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Self::boot_time_ns() }
    }

    /// Returns the time since the start, which saturates after 584 years.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(Self::boot_time_ns().saturating_sub(self.start))
    }

    /// Returns the time `span` from now.
    #[must_use]
    pub fn after(&self, span: Duration) -> Instant {
        self.now() + span
    }

    /// Returns the time from the machine's boot to `at` in nanoseconds, which is the same in all its
    /// processes.
    #[must_use]
    pub fn boot_time_at(&self, at: Instant) -> u64 {
        self.start.saturating_add(at.since(Instant::ZERO).as_nanos())
    }

    /// Returns the time since the machine booted in nanoseconds, including suspensions.
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

    /// A role may get the same time twice, but never an earlier one.
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
