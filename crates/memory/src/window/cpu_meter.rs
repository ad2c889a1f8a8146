//! CPU time of the thread that serves a window, by purpose.

use super::options::CpuApart;
use farmem_link::cpu_time_of_thread;
use farmem_machine::Duration;

/// A meter of CPU time, which measures only if requested.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// CPU time of the thread at the start; `None` if the meter does not measure.
    begun: Option<Duration>,
    moving: Duration,
}

impl Meter {
    pub(super) fn new(is_wanted: bool) -> Self {
        Self { begun: is_wanted.then(cpu_time_of_thread), moving: Duration::ZERO }
    }

    /// Begins to count CPU time for moving data.
    pub(super) fn begin(&self) -> Option<Duration> {
        self.begun.map(|_| cpu_time_of_thread())
    }

    /// Ends the count that [`Meter::begin`] began.
    pub(super) fn end(&mut self, begun: Option<Duration>) {
        if let Some(begun) = begun {
            self.moving = self.moving + cpu_time_of_thread() - begun;
        }
    }

    pub(super) fn apart(&self) -> Option<CpuApart> {
        let all = cpu_time_of_thread() - self.begun?;
        Some(CpuApart { moving: self.moving, faults: all - self.moving })
    }
}
