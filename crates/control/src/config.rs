//! The configuration of the control plane.

use crate::bounds::Bounds;
use crate::keys::Secret;
use alloc::string::String;
use alloc::vec::Vec;
use farmem_machine::Duration;
use farmem_wire::{Gid, Pmtu};

/// Default time for which a host may use cached pages after its last renewal. A host on a busy machine renews three times in it, and waits for a CPU for
/// seconds at worst. Others wait for the pages of a dead host for this time and an eighth more.
pub const LEASE: Duration = Duration::from_secs(10);

/// Default time for which a host's resources, and a domain without users, stay: six leases, so that a host which lost its pages because it stood still may
/// continue.
pub const HOST_LEASE: Duration = Duration::from_secs(60);

/// The configuration of the control plane.
#[derive(Clone, Debug)]
pub struct Config {
    /// The control plane's address.
    pub gid: Gid,
    /// The first address of far memory; a multiple of [`PAGE`](crate::PAGE), not 0, below [`VA_END`](crate::VA_END).
    pub va_base: u64,
    /// The path MTU of the connections it sets up.
    pub pmtu: Pmtu,
    /// Time without an answer after which a batch of updates is sent again; doubles up to 8 times.
    pub timeout: Duration,
    /// Number of retransmissions of a batch before no change waits for the role any more. They continue at 8 times `timeout`.
    pub retries_max: u32,
    /// Time for which a host that caches pages may continue without contact.
    pub lease: Duration,
    /// Time for which a host without contact, and a domain without sessions and connections, stay; at least `lease`. `None`: for ever, as in a rack that ends
    /// with its only program.
    pub host_lease: Option<Duration>,
    /// Time between two listings of the directory; after each, regions are split and merged.
    pub epoch: Duration,
    /// The limits.
    pub bounds: Bounds,
    /// The secret of the keys of hosts, nodes, switches and domains. `None`: every caller may do everything, as in a rack inside one process.
    pub secret: Option<Secret>,
    /// The secret of the cookies that prove addresses, drawn anew at each start. `None`: addresses are not proven, as in a rack whose links are rings.
    pub address_secret: Option<Secret>,
    /// The control plane's build of farmem, if reported (PROTOCOL 8.71).
    pub build: Option<String>,
    /// Time after which an idle role is probed. `None`: idle roles are not probed.
    pub probe: Option<Duration>,
    /// The names of the memory nodes that the rack is described with. A node of this list gets its place in
    /// it, from 1 on, as its number.
    pub node_names: Vec<String>,
}

impl Config {
    /// Returns the default configuration of a rack whose control plane is at `gid`.
    #[must_use]
    pub fn new(gid: Gid) -> Self {
        Self {
            gid,
            va_base: 0x1000_0000_0000,
            pmtu: Pmtu::B1024,
            timeout: Duration::from_millis(50),
            retries_max: 10,
            lease: LEASE,
            host_lease: Some(HOST_LEASE),
            epoch: crate::splitting::EPOCH,
            bounds: Bounds::default(),
            secret: None,
            address_secret: None,
            build: None,
            probe: None,
            node_names: Vec::new(),
        }
    }
}
