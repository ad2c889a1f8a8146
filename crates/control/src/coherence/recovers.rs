//! How often a host may have regions reset: each reset takes a region from all hosts that use it (PROTOCOL 12.33).
//!
//! None of this is in the log: after a restart every host may ask as often as one that never did.

use crate::api::{ApiError, ErrorCode};
use crate::errors::error;
use alloc::collections::BTreeMap;
use alloc::format;
use farmem_machine::{Bucket, Duration, Instant, Rate};

/// Resets that a host may ask for: 64 at once, for what its program's threads wait for when a switch or a node was away, and behind those one
/// each 50 ms.
pub const RECOVERS: Rate = Rate { at_once: 64, every: Duration::from_millis(50) };

/// What hosts asked for of late. Only those that cache pages ask, which are few.
#[derive(Debug, Default)]
pub(super) struct Recovers(BTreeMap<u16, Bucket>);

impl Recovers {
    /// Counts a request of the host.
    ///
    /// # Errors
    /// `unavailable` when it asked too often; then nothing is counted.
    pub(super) fn admit(&mut self, host: u16, now: Instant) -> Result<(), ApiError> {
        if self.0.entry(host).or_default().take(now, RECOVERS) {
            return Ok(());
        }
        let Rate { at_once, every } = RECOVERS;
        let message = format!(
            "host {host} had {at_once} regions reset of late, and may have one each {} ms",
            every.as_nanos() / 1_000_000
        );
        Err(error(ErrorCode::Unavailable, message, "ask again later, and only for pages that get no answer"))
    }
}
