//! The time of commands.

/// Milliseconds since 1970 that do not go back: from the start of the server on they go as time does, whatever becomes of the system's clock. A change that is logged later is
/// carried out later, also at the next start.
#[derive(Debug)]
pub(crate) struct Clock {
    /// What the system's clock said when time was `from`.
    wall: i64,
    from: i64,
}

impl Clock {
    /// A clock that begins at the system's time, or at `least` where that is later.
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

/// Milliseconds since 1970.
pub(crate) fn wall_clock() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}
