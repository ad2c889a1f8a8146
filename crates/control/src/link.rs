//! The retransmission timers of batches (PROTOCOL 8.21).

mod batches;
mod questions;

use farmem_machine::Instant;
use farmem_wire::RequestId;

/// The retransmission timer of the head of a role's queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryTimer {
    request: RequestId,
    /// Number of retransmissions.
    resent: u32,
    due: Instant,
}

impl RetryTimer {
    pub(crate) fn due(&self) -> Instant {
        self.due
    }
}
