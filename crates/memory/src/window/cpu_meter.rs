//! CPU time of the thread that serves a window, by purpose.

use super::options::CpuApart;
use farmem_link::cpu_time_of_thread;
use farmem_machine::Duration;

/// Counts, where that is asked for.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// CPU time of the thread when it began.
    begun: Option<Duration>,
    moving: Duration,
}

impl Meter {
    pub(super) fn new(is_wanted: bool) -> Self {
        Self { begun: is_wanted.then(cpu_time_of_thread), moving: Duration::ZERO }
    }

    /// Data begins to move.
    pub(super) fn begin(&self) -> Option<Duration> {
        self.begun.map(|_| cpu_time_of_thread())
    }

    /// Data has moved, since [`Meter::begin`].
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
