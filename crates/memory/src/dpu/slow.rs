//! Threads of a DPU whose cores are slower than this machine's.

use farmem_io::{Clock, cpu_time_of_thread};
use farmem_machine::Duration;

/// A thread of a DPU, whose cores are slower than a host's: what it did takes `factor` times as long.
#[derive(Debug)]
pub(super) struct Slow {
    clock: Clock,
    factor: f64,
    /// What the thread had had when it was slowed down last.
    had: Duration,
}

impl Slow {
    /// Of the thread that calls.
    pub(super) fn new(factor: f64) -> Self {
        Self { clock: Clock::start(), factor, had: cpu_time_of_thread() }
    }

    /// Makes up for what was done since.
    pub(super) fn down(&mut self) {
        if self.factor <= 1.0 {
            return;
        }
        let took = cpu_time_of_thread() - self.had;
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "nanoseconds of a turn"
        )]
        let more = (took.as_nanos() as f64 * (self.factor - 1.0)) as u64;
        let until = self.clock.now() + Duration::from_nanos(more);
        while self.clock.now() < until {
            std::hint::spin_loop();
        }
        self.had = cpu_time_of_thread();
    }
}
