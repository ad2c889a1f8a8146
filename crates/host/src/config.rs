//! How a host is set up.

use farmem_machine::Duration;
use farmem_transport::ud;
use farmem_wire::{HostId, Pmtu};

/// Limits and times of a host.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The host's number.
    pub id: HostId,
    /// Number of the host's current start; part of its request ids.
    pub generation: u16,
    /// The host's own UD endpoint, which receives answers.
    pub home: ud::Endpoint,
    /// Path MTU of the host's datagrams: the host sends no longer request.
    pub pmtu: Pmtu,
    /// Maximum number of outstanding UD requests.
    pub requests_max: usize,
    /// Time without an answer after which a UD request is sent again. Must be more than zero.
    pub request_timeout: Duration,
    /// Maximum number of retransmissions of a UD request.
    pub request_retries_max: u32,
    /// Maximum number of times a request is routed to a memory node before it comes back.
    pub hops_max: u8,
    /// Maximum number of connections, and of sessions.
    pub connections_max: usize,
    /// Number of request ids per generation (PROTOCOL 5.1, 11.8).
    pub ids_max: u32,
    /// Connections of a domain to a memory node. Those beyond the first carry READs under high load (PROTOCOL
    /// 11.16).
    pub connections_each: usize,
    /// Maximum number of traversals that share one datagram (PROTOCOL 11.13). With 1, each traversal leaves
    /// alone and at once.
    pub pairs_max: u16,
    /// How long operations wait for a connection that cannot be set up, which is tried again and again
    /// meanwhile. With zero, they fail at once.
    pub patience: Duration,
}

impl Config {
    /// Returns the default limits, for links that carry the largest datagrams (loopback, shared memory, jumbo
    /// frames).
    #[must_use]
    pub const fn new(id: HostId, generation: u16, home: ud::Endpoint) -> Self {
        Self {
            id,
            generation,
            home,
            pmtu: Pmtu::B4096,
            requests_max: 1024,
            request_timeout: Duration::from_millis(40),
            request_retries_max: 7,
            hops_max: 64,
            connections_max: 1024,
            ids_max: u32::MAX,
            connections_each: 1,
            pairs_max: 1,
            patience: Duration::from_nanos(0),
        }
    }
}
