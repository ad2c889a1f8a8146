//! Options of a client, and the settings of its host role that follow from them.

use farmem_control::api::Endpoint;
use farmem_host::Config as HostConfig;
use farmem_machine::{Duration, Port};
use farmem_transport::ud;
use farmem_wire::message::PAIRS_MAX;
use farmem_wire::{HostId, Pmtu, Qkey, Qpn};
use std::num::NonZero;

/// The options of a client other than its domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientOptions {
    /// Maximum number of times that the switch forwards one request to a memory node before the request
    /// returns to this host.
    ///
    /// The value 1 returns every crossing between memory nodes to the host, which continues the traversal.
    /// This variant without the switch's help is PULSE-ACC in PULSE 6.1. Results are the same; only the path differs.
    pub hops_max: NonZero<u8>,
    /// Maximum number of traversals per datagram, among those submitted without a wait in between (PROTOCOL
    /// 11.13). The value 1 sends each traversal in its own datagram. Results are the same. A rack within this
    /// process has no datagrams to save, so each traversal is sent alone.
    pub pairs_max: NonZero<u16>,
    /// Maximum number of connections to each memory node. A first connection has 128 packets in flight, so
    /// eight READs of 64 KiB. If more requests are pending, further connections are set up for READs
    /// (PROTOCOL 11.16). More connections help if the path to the nodes has a long delay.
    ///
    /// With more than one connection, READs that share no byte are not ordered among themselves. A program
    /// that reads a flag, and then the data that the flag guards, must wait for the flag first.
    pub connections: NonZero<u16>,
    /// True if the client's allocations stay when their domain has no user, for data that outlives programs.
    /// Otherwise they are freed one minute after the last client of the domain left or died (PROTOCOL 8.62).
    pub durable: bool,
    /// Longest time that the client waits for roles and networks that do not answer; `None`: as in the rack's
    /// description (`patience`). A short time suits a program that must serve others meanwhile. A call of the
    /// control plane takes no longer, but at least 100 ms. An operation fails after this time, but not before
    /// 4 s of silence.
    pub patience: Option<std::time::Duration>,
}

impl ClientOptions {
    /// Returns the default options with durable allocations.
    #[must_use]
    pub fn durable() -> Self {
        Self { durable: true, ..Self::default() }
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            hops_max: const { NonZero::new(64).expect("64 is not zero") },
            pairs_max: const { NonZero::new(PAIRS_MAX).expect("a batch has pairs") },
            connections: NonZero::<u16>::MIN,
            durable: false,
            patience: None,
        }
    }
}

/// Silence after which a client considers a peer dead. A process on a busy machine may wait for a second
/// until it runs.
pub const SILENCE_MAX: Duration = Duration::from_secs(4);

/// Silence after which a client considers the switch dead, for a request through the switch. A switch has no
/// replacement while it restarts: `farmem up` waits at most 1.6 s before the restart, and then the switch
/// receives its tables.
pub(crate) const REQUEST_SILENCE_MAX: Duration = Duration::from_secs(10);

/// Returns the settings of a host that has joined as `host` in this `generation`, with the switch at `home`.
#[must_use]
pub fn host_settings(
    host: u16,
    generation: u16,
    home: &Endpoint,
    pmtu: Pmtu,
    options: ClientOptions,
) -> HostConfig {
    let usual = HostConfig::new(HostId(host), generation, endpoint(home));
    let patience = options.patience.map(machine);
    let silence = patience.map_or(REQUEST_SILENCE_MAX, |patience| patience.max(SILENCE_MAX));
    let request_retries_max = ud::retries_in(silence, usual.request_timeout);
    let patience = patience.unwrap_or(usual.patience);
    let (hops_max, pairs_max) = (options.hops_max.get(), options.pairs_max.get());
    let connections_each = usize::from(options.connections.get());
    HostConfig { pmtu, hops_max, pairs_max, connections_each, request_retries_max, patience, ..usual }
}

/// Converts a duration to the roles' type.
pub(crate) fn machine(span: std::time::Duration) -> Duration {
    Duration::from_nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

/// Returns the number of retransmissions in `silence` with one per `timeout`.
pub(crate) fn retries_in(silence: Duration, timeout: Duration) -> u32 {
    u32::try_from(silence.as_nanos() / timeout.as_nanos()).unwrap_or(u32::MAX)
}

/// Returns the endpoint of an API answer.
#[must_use]
pub fn endpoint(text: &Endpoint) -> ud::Endpoint {
    ud::Endpoint { qpn: Qpn::new(text.qpn), qkey: Qkey(text.qkey) }
}

/// Returns a role's endpoints after its join.
#[must_use]
pub fn home_of(home: &Endpoint, control: &Endpoint) -> ud::RoleEndpoints {
    ud::RoleEndpoints {
        endpoint: endpoint(home),
        control: ud::Peer { port: Port(control.port), endpoint: endpoint(control) },
    }
}

/// Returns a memory node's settings after its join.
pub(crate) fn node_settings(home: &Endpoint, control: &Endpoint, pmtu: Pmtu) -> farmem_memnode::Config {
    farmem_memnode::Config { home: home_of(home, control), pmtu, budget: farmem_memnode::Budget::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_machine::Instant;
    use farmem_wire::RequestId;

    /// A silent switch is given up after its timeout, and not after eight times as long, although the
    /// interval of retransmissions grows (PROTOCOL 5.2).
    #[test]
    fn a_silent_switch_is_given_up_when_its_time_is_over() {
        let home = Endpoint { port: 1, gid: "127.0.0.2".into(), qpn: 16, qkey: 7 };
        let settings = host_settings(1, 1, &home, Pmtu::B1024, ClientOptions::default());
        let (timeout, retries_max) = (settings.request_timeout, settings.request_retries_max);
        let mut asked = ud::Requester::new(1, timeout, retries_max);
        let request = RequestId::new(HostId(1), 1, 1);
        assert_eq!(asked.start(Instant::ZERO, request, ()), Ok(()));
        let mut now = Instant::ZERO;
        while asked.on_wake(now, |_, ()| {}).is_none() {
            now = asked.next_wake().expect("a timer runs");
        }
        let silence = now.since(Instant::ZERO);
        assert!(
            silence >= REQUEST_SILENCE_MAX && silence < REQUEST_SILENCE_MAX + timeout.times(8),
            "{silence:?}"
        );
    }
}
