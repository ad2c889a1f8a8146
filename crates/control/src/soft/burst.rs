//! Pacing of the Loads of an image (PROTOCOL 13.8).

use farmem_machine::{Duration, Instant};

/// The Loads of one [`SOFT_PACE`].
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Burst {
    /// Loads of this burst that may still be sent.
    pub(super) left: u32,
    /// When the next burst may begin, or none before the first Load.
    pub(super) next: Option<Instant>,
    /// True if there is something to send then.
    pub(super) waits: bool,
}

impl Burst {
    /// Returns true if a Load may be sent now, and counts it. A burst that waited and begins late has the
    /// Loads of the missed paces, up to a window: a busy machine wakes the control plane late, and the image
    /// should be active in time.
    pub(super) fn takes(&mut self, now: Instant) -> bool {
        if self.next.is_none_or(|next| next <= now) {
            let waited = self.next.filter(|_| self.waits);
            let missed = waited.map_or(0, |next| now.since(next).as_nanos() / SOFT_PACE.as_nanos());
            let paces = u32::try_from(missed).unwrap_or(u32::MAX).saturating_add(1);
            let left = SOFT_BURST.saturating_mul(paces).min(SOFT_WINDOW);
            *self = Self { left, next: Some(now + SOFT_PACE), waits: false };
        }
        let takes = self.left > 0;
        self.left = self.left.saturating_sub(1);
        self.waits |= !takes;
        takes
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.next.filter(|_| self.waits)
    }
}

/// Loads in flight at once, beyond the first byte that the switch misses.
pub const SOFT_WINDOW: u32 = 32;

/// Maximum number of Loads sent in [`SOFT_PACE`]: a request that reaches the switch at the same time waits
/// for this many.
pub const SOFT_BURST: u32 = 4;

/// Time from one burst of Loads to the next.
pub const SOFT_PACE: Duration = Duration::from_micros(400);
