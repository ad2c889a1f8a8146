//! Rate limit of resets requested by a host: each reset takes a region from all hosts that use it (PROTOCOL
//! 12.33).
//!
//! None of this is in the log: after a restart every host has its full allowance.

use crate::api::{ApiError, ErrorCode};
use crate::errors::error;
use alloc::collections::BTreeMap;
use alloc::format;
use farmem_machine::{Bucket, Duration, Instant, Rate};

/// Allowance of resets for a host: 64 at once, for the threads that wait when a switch or a node was away,
/// and one every 50 ms after that.
pub const RECOVERS: Rate = Rate { at_once: 64, every: Duration::from_millis(50) };

/// Recent requests of hosts. Only hosts that cache pages make any, which are few.
#[derive(Debug, Default)]
pub(super) struct Recovers(BTreeMap<u16, Bucket>);

impl Recovers {
    /// Counts a request of the host.
    ///
    /// # Errors
    ///
    /// `unavailable` if it made too many; then nothing is counted.
    pub(super) fn admit(&mut self, host: u16, now: Instant) -> Result<(), ApiError> {
        if self.0.entry(host).or_default().take(now, RECOVERS) {
            return Ok(());
        }
        let Rate { at_once, every } = RECOVERS;
        let message = format!(
            "host {host} has had {at_once} regions reset recently, and may have one more every {} ms",
            every.as_nanos() / 1_000_000
        );
        Err(error(ErrorCode::Unavailable, message, "ask again later, and only for pages that get no answer"))
    }
}
