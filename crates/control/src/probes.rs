//! Probes of idle roles (PROTOCOL 8.73). Without them, a node that dies while nothing changes would go unnoticed.
//!
//! A probe repeats the role's last batch, which the role answers from memory (PROTOCOL 5.9); the log gets no line. If the probe is not answered,
//! or the control plane has sent no batch since it started, it sends a harmless batch and treats it like any other.

mod rounds;

use alloc::vec::Vec;
use farmem_machine::Instant;

/// The last batch sent to a role, and the time of the next probe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Probe {
    /// The number of the batch; 0: none since the control plane started.
    seq: u64,
    count: u16,
    bytes: Vec<u8>,
    due: Instant,
    unanswered: u32,
}

impl Probe {
    pub(crate) const fn due(&self) -> Instant {
        self.due
    }
}

impl Probe {
    const fn new(due: Instant) -> Self {
        Self { seq: 0, count: 0, bytes: Vec::new(), due, unanswered: 0 }
    }
}
