//! Threads of a DPU whose cores are slower than this machine's.

use farmem_link::{Clock, cpu_time_of_thread};
use farmem_machine::{Duration, Instant};

/// A thread of a DPU, whose cores are slower than a host's: what it did takes `factor` times as long.
#[derive(Debug)]
pub(super) struct Slow {
    clock: Clock,
    factor: f64,
    /// CPU time of the thread when it was slowed down last.
    had: Duration,
}

impl Slow {
    /// A governor of the calling thread.
    pub(super) fn new(factor: f64) -> Self {
        Self { clock: Clock::start(), factor, had: cpu_time_of_thread() }
    }

    /// Makes up for what was done since.
    pub(super) fn down(&mut self) {
        let clock = self.clock;
        self.down_by(cpu_time_of_thread, || clock.now());
    }

    /// As [`Slow::down`], by what these say: CPU time that the thread has had, and the time.
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

    /// A thread that looks at the time has a microsecond less of it: CPU time that it burns for `factor`, where it did `work` microseconds of work in each of three turns.
    fn burnt(factor: f64, work: u64) -> [u64; 3] {
        let (time, cpu) = (Cell::new(0), Cell::new(0));
        let mut slow = Slow { clock: Clock::start(), factor, had: Duration::ZERO };
        [(); 3].map(|()| {
            cpu.set(cpu.get() + work);
            // The thread slept, and others had the CPU: that is no work of its.
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

    /// Four times as slow is three times the work more, in every turn: what was burnt to be slow is no work of the next turn. One look more than that is the one that begins.
    #[test]
    fn a_slow_thread_burns_what_its_cores_would_take() {
        assert_eq!(burnt(4.0, 100), [301; 3]);
        assert_eq!(burnt(1.5, 100), [51; 3]);
        assert_eq!(burnt(1.0, 100), [0; 3]);
        assert_eq!(burnt(4.0, 0), [2; 3], "two looks");
    }
}
