//! Emulation of a DPU whose cores are slower than this machine's.

use farmem_link::{Clock, cpu_time_of_thread};
use farmem_machine::{Duration, Instant};

/// The governor of a thread whose work takes `factor` times as long.
#[derive(Debug)]
pub(super) struct Slow {
    clock: Clock,
    factor: f64,
    /// CPU time of the thread at the end of the last delay.
    had: Duration,
}

impl Slow {
    /// Creates a governor of the calling thread.
    pub(super) fn new(factor: f64) -> Self {
        Self { clock: Clock::start(), factor, had: cpu_time_of_thread() }
    }

    /// Delays the thread for its work since the last call.
    pub(super) fn down(&mut self) {
        let clock = self.clock;
        self.down_by(cpu_time_of_thread, || clock.now());
    }

    /// Delays the thread as [`Slow::down`] does, with these sources of the thread's CPU time and of the time.
    fn down_by(&mut self, had: impl Fn() -> Duration, now: impl Fn() -> Instant) {
        if self.factor <= 1.0 {
            return;
        }
        let took = had() - self.had;
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "nanoseconds of a turn"
        )]
        let more = (took.as_nanos() as f64 * (self.factor - 1.0)) as u64;
        let until = now() + Duration::from_nanos(more);
        while now() < until {
            std::hint::spin_loop();
        }
        self.had = had();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Returns the CPU time that a thread burns in each of three turns, with `work` microseconds of work per turn.
    /// Each look at the time costs a microsecond of CPU time.
    fn burnt(factor: f64, work: u64) -> [u64; 3] {
        let (time, cpu) = (Cell::new(0), Cell::new(0));
        let mut slow = Slow { clock: Clock::start(), factor, had: Duration::ZERO };
        [(); 3].map(|()| {
            cpu.set(cpu.get() + work);
            // The thread slept while others had the CPU; that is not its work.
            time.set(time.get() + 10 * work);
            let before = cpu.get();
            let now = || {
                time.set(time.get() + 1);
                cpu.set(cpu.get() + 1);
                Instant::ZERO + Duration::from_micros(time.get())
            };
            slow.down_by(|| Duration::from_micros(cpu.get()), now);
            cpu.get() - before
        })
    }

    /// A factor of 4 adds three times the work in every turn: the delay itself does not count as work of the next
    /// turn. One look begins the delay, so each turn burns one microsecond more.
    #[test]
    fn a_slow_thread_burns_the_time_of_its_cores() {
        assert_eq!(burnt(4.0, 100), [301; 3]);
        assert_eq!(burnt(1.5, 100), [51; 3]);
        assert_eq!(burnt(1.0, 100), [0; 3]);
        assert_eq!(burnt(4.0, 0), [2; 3], "two looks");
    }
}
