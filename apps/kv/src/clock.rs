//! The clock of commands.

/// A clock in milliseconds since 1970 that does not go back. After the start it follows the boot time,
/// whatever happens to the system's clock: a change that is logged later is executed later, also at the next
/// start.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The system's time when the boot time was `from`.
    wall: i64,
    from: i64,
}

impl Clock {
    /// Returns a clock that begins at the system's time, or at `least` if that is later.
    pub(crate) fn new(least: i64) -> Self {
        Self { wall: wall_clock().max(least), from: since_boot() }
    }

    pub(crate) fn now(&self) -> i64 {
        self.wall + since_boot() - self.from
    }
}

fn since_boot() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

/// Returns the system's time in milliseconds since 1970.
pub(crate) fn wall_clock() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}
