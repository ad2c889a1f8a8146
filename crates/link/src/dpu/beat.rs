//! Detection of a DPU that does not serve, by its heartbeat (PROTOCOL 17.11). This module is pure.

use farmem_machine::{Duration, Instant};

/// Returns the longest silence of a DPU with pending requests: seven eighths of a lease. In the last eighth
/// the DPU is killed and the control plane fences its host, so that its processes continue within the lease.
#[must_use]
pub fn silence_max(lease: Duration) -> Duration {
    Duration::from_nanos(lease.as_nanos() - lease.as_nanos() / 8)
}

/// The last observed heartbeat of a DPU, and the time since it changed.
#[derive(Clone, Copy, Debug)]
pub struct BeatMonitor {
    beat: u64,
    since: Instant,
    silence_max: Duration,
}

impl BeatMonitor {
    /// Creates a monitor for a DPU with this lease, whose first observation is now.
    #[must_use]
    pub fn new(lease: Duration, beat: u64, now: Instant) -> Self {
        Self { beat, since: now, silence_max: silence_max(lease) }
    }

    /// Records an observation of the heartbeat. Returns true if the DPU has pending requests and has been
    /// silent for too long.
    pub fn is_over(&mut self, beat: u64, is_asked: bool, now: Instant) -> bool {
        if beat != self.beat || !is_asked {
            (self.beat, self.since) = (beat, now);
            return false;
        }
        now.since(self.since) >= self.silence_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interval of a waiting window's checks, in milliseconds.
    const LOOK: u64 = 20;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    /// A DPU with a lease of 10 s beats until the fifth second, and then hangs. A process that checks every
    /// 20 ms detects that in time: one second of the lease remains to kill and fence the DPU (PROTOCOL
    /// 17.11).
    #[test]
    fn a_dpu_that_hangs_is_found_within_the_lease() {
        let (lease, hangs) = (10_000, 5_000);
        let mut pulse = BeatMonitor::new(Duration::from_millis(lease), 0, at(0));
        let over = (0..).step_by(20).find(|&now| pulse.is_over(now.min(hangs) / LOOK, true, at(now)));
        let found = over.unwrap() - hangs;
        assert!((lease * 3 / 4..=lease - 1_000).contains(&found), "after {found} ms");
    }

    /// A DPU that beats, however rarely, does not count as silent. Nor does one without pending requests: the
    /// measurement restarts with the next request.
    #[test]
    fn a_dpu_that_beats_or_is_not_asked_serves() {
        let mut pulse = BeatMonitor::new(Duration::from_millis(800), 0, at(0));
        assert!((1..100).all(|beat| !pulse.is_over(beat, true, at(beat * 699))));
        let idle = 99 * 699 + 100_000;
        assert!(!pulse.is_over(99, false, at(idle)));
        assert!(!pulse.is_over(99, true, at(idle + 699)));
        assert!(pulse.is_over(99, true, at(idle + 700)));
    }
}
