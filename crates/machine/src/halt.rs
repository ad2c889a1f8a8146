//! The reason why a role stops by itself.

use core::fmt;

/// The reason why a role has stopped for good: its state is no longer trustworthy. Its driver ends and
/// reports it. `Display` has the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Halt {
    /// Two batches of table updates had the same number and different bytes, both with the control plane's
    /// keys (PROTOCOL 5.11).
    BatchChanged {
        /// Number of the batch.
        seq: u64,
    },
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BatchChanged { seq } => write!(
                f,
                "batch {seq} of table updates arrived twice with different bytes, so the tables may differ from the control \
                 plane's and the role has stopped. Either another sender has the control plane's keys, or the control plane \
                 runs on an old copy of its state"
            ),
        }
    }
}
