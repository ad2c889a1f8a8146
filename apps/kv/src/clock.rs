//! The clock of commands.

/// A clock in milliseconds since 1970 that does not go back. After the start it follows the boot time,
/// whatever happens to the system's clock: a change that is logged later is executed later, also at the next
/// start.
#[derive(Debug)]
pub(crate) struct Clock {
    /// Nanoseconds from the boot of the machine to 1970, as the system's clock had it at the start.
    offset: i64,
}

impl Clock {
    /// Returns a clock that begins at the system's time, or at `least` if that is later.
    pub(crate) fn new(least: i64) -> Self {
        let wall = nanos(rustix::time::ClockId::Realtime).max(least.saturating_mul(NANOS_PER_MILLI));
        Self { offset: wall - nanos(rustix::time::ClockId::Boottime) }
    }

    pub(crate) fn now(&self) -> i64 {
        (nanos(rustix::time::ClockId::Boottime) + self.offset) / NANOS_PER_MILLI
    }
}

const NANOS_PER_MILLI: i64 = 1_000_000;

fn nanos(clock: rustix::time::ClockId) -> i64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Returns the system's time in milliseconds since 1970.
pub(crate) fn wall_clock() -> i64 {
    nanos(rustix::time::ClockId::Realtime) / NANOS_PER_MILLI
}
