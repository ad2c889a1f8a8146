//! Options of a client, and the settings of its host role that follow from them.

use farmem_control::api::Endpoint;
use farmem_host::Config as HostConfig;
use farmem_machine::{Duration, Port};
use farmem_transport::ud;
use farmem_wire::message::PAIRS_MAX;
use farmem_wire::{HostId, Pmtu, Qkey, Qpn};
use std::num::NonZero;

/// Options of a client beside its domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientOptions {
    /// Times the switch may hand one of its requests to a memory node before the request comes back here.
    ///
    /// 1 makes every crossing from one memory node to the next come back to the host, which sends the traversal on: PULSE-ACC,
    /// the variant without the switch's help that the paper compares with (PULSE 6.1). Results are the same; only the way differs.
    pub hops_max: NonZero<u8>,
    /// Traversals that share one datagram at most, of those that are submitted without waiting in between (PROTOCOL 11.13). 1 sends each in
    /// one of its own. Results are the same. A rack in this process has no datagrams to save: there each goes alone.
    pub pairs_max: NonZero<u16>,
    /// Connections to each memory node at most. Those beyond the first are set up, and carry READs, where more requests are under way than one connection carries: 128 packets, so eight READs of 64 KiB (PROTOCOL
    /// 11.16). More are worth it where the way to the nodes takes long. With more than one, READs that have no byte in common have no order among themselves: a program that reads a mark and then what it
    /// stands for waits for the mark before asking for the other.
    pub connections: NonZero<u16>,
    /// Its allocations stay when its domain has no user any more: for data that outlives the programs that use it. Otherwise they are freed then, a
    /// minute after the last client of the domain left or died (PROTOCOL 8.62).
    pub durable: bool,
    /// How long it waits for roles and networks that do not answer; none: as long as the rack's description says (`patience`). A short time is for a program that has others to
    /// serve meanwhile: a call of the control plane takes no longer (and is given 100 ms at least), and an operation fails after 4 s of silence if the time is shorter.
    pub patience: Option<std::time::Duration>,
}

impl ClientOptions {
    /// As usual, but that what the client allocates stays until it is freed.
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

/// Silence after which a client takes a peer for gone. A process of a busy machine may have to wait for a second until it runs.
pub const SILENCE_MAX: Duration = Duration::from_secs(4);

/// Silence after which a client takes the switch for gone, for a request by way of it. The switch has no other in its place while it starts again: `farmem up` waits for 1.6 s at most before it does, and then come its tables.
pub(crate) const REQUEST_SILENCE_MAX: Duration = Duration::from_secs(10);

/// The settings of a host that has joined as `host` in this `generation`, with the switch at `home`.
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

/// A span of time as roles count it.
pub(crate) fn machine(span: std::time::Duration) -> Duration {
    Duration::from_nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

/// How often something is sent again in `silence` when that happens every `timeout`.
pub(crate) fn retries_in(silence: Duration, timeout: Duration) -> u32 {
    u32::try_from(silence.as_nanos() / timeout.as_nanos()).unwrap_or(u32::MAX)
}

/// The endpoint of an API answer.
#[must_use]
pub fn endpoint(text: &Endpoint) -> ud::Endpoint {
    ud::Endpoint { qpn: Qpn::new(text.qpn), qkey: Qkey(text.qkey) }
}

/// A role's endpoints after its join.
#[must_use]
pub fn home_of(home: &Endpoint, control: &Endpoint) -> ud::RoleEndpoints {
    ud::RoleEndpoints {
        endpoint: endpoint(home),
        control: ud::Peer { port: Port(control.port), endpoint: endpoint(control) },
    }
}

/// A memory node's settings after its join.
pub(crate) fn node_settings(home: &Endpoint, control: &Endpoint, pmtu: Pmtu) -> farmem_memnode::Config {
    farmem_memnode::Config { home: home_of(home, control), pmtu, budget: farmem_memnode::Budget::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_machine::Instant;
    use farmem_wire::RequestId;

    /// A switch that says nothing is given up when it is said to be, and not after eight times as long: what goes by the switch is asked for again ever more
    /// rarely (PROTOCOL 5.2).
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
