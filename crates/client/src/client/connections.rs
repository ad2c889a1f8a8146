//! Parameters and state of the connections of a client.

use crate::host_settings::{SILENCE_MAX, retries_in};
use farmem_host::Op;
use farmem_machine::Duration;
use farmem_transport::rc;
use farmem_wire::{NodeId, Pmtu, Qpn, VirtAddr};

/// Number of remaining request ids at which a client joins again. Pending traversals take more ids: one for
/// each continuation.
pub(super) const IDS_RESERVE: u32 = 1 << 24;

/// Returns true for operations that go through the switch with a request id of their own.
pub(super) const fn takes_id(op: &Op) -> bool {
    matches!(op, Op::RegionRead { .. } | Op::RegionWrite { .. } | Op::Traverse { .. })
}

/// Timeouts and limits of a client's connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnParams {
    pub(super) timeout: Duration,
    pub(super) retries_max: u32,
    pub(super) window_psns: u32,
    pub(super) depth: u32,
    pub(super) queue_max: usize,
}

impl Default for ConnParams {
    fn default() -> Self {
        Self::patient(SILENCE_MAX)
    }
}

impl ConnParams {
    /// Returns the parameters of connections whose node may be silent for `silence`.
    pub(super) fn patient(silence: Duration) -> Self {
        let timeout = Duration::from_millis(67); // 4.096 us * 2^14, the usual local ACK timeout
        Self {
            timeout,
            retries_max: retries_in(silence, timeout),
            window_psns: 128,
            depth: rc::RESPONDER_DEPTH,
            queue_max: 4096,
        }
    }
}

/// State of one connection through the switch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) node: NodeId,
    pub(super) root: Option<VirtAddr>,
    pub(super) pmtu: Pmtu,
    /// The host's queue pair.
    pub(super) qpn: Qpn,
}
