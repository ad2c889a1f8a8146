//! A rack: in this process, or running in others.

use crate::config::RackConfig;
use crate::embedded::World;
use crate::link::{WithLink, api_client, join_host, place, require_running, with_link};
use crate::path::{InProcess, OverLink};
use crate::renewals::Renewal;
use crate::{Client, Error};
use farmem_control::api::{
    ApiError, Endpoint, ErrorCode, HostJoined, IndexJoined, JoinHost, JoinIndex, JoinNode, JoinSwitch,
    NodeJoined, Overview, SwitchJoined, Tier,
};
use farmem_control::{Config as ControlConfig, INDEX_MAX};
use farmem_host::{Config as HostConfig, Host};
use farmem_link::{Clock, Compiler, Driver, Link, MappedStore, OpenError};
use farmem_machine::{Duration, Port, Rng};
use farmem_memnode::MemNode;
use farmem_switch::{Budgets, Switch};
use farmem_transport::ud;
use farmem_wire::message::PAIRS_MAX;
use farmem_wire::{HostId, NodeId, Pmtu, Qkey, Qpn};
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZero;
use std::path::Path as FilePath;
use std::rc::Rc;

/// A rack to make clients of.
pub struct Rack(Kind);

enum Kind {
    Embedded(Rc<RefCell<World>>),
    Running(Box<RackConfig>),
}

impl core::fmt::Debug for Rack {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match &self.0 {
            Kind::Embedded(_) => f.write_str("Rack(embedded)"),
            Kind::Running(config) => write!(f, "Rack({}, {})", config.name, config.transport.name()),
        }
    }
}

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

/// Memory nodes of [`Rack::embedded`].
const NODES: u16 = 4;
/// Bytes of each.
const NODE_MEMORY: u64 = 256 << 20;
/// Path MTU in a rack of one process, where no link bounds it.
const EMBEDDED_PMTU: Pmtu = Pmtu::B4096;

impl Rack {
    /// A rack in this process: four memory nodes of 256 MiB, a switch and a control plane. No sockets, no privileges.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no memory for it.
    pub fn embedded() -> Result<Self, Error> {
        Self::embedded_with(NODES, NODE_MEMORY)
    }

    /// A rack in this process with `nodes` memory nodes of `memory` bytes each.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no memory for it; [`Error::Refused`] when `memory` is not a multiple of 4096.
    pub fn embedded_with(nodes: u16, memory: u64) -> Result<Self, Error> {
        let seed =
            farmem_link::os_seed().map_err(|source| system("no random numbers from the system", source))?;
        let world = embedded_world(nodes, memory, Rng::from_seed(seed))?;
        Ok(Self(Kind::Embedded(Rc::new(RefCell::new(world)))))
    }

    /// A rack in this process with a FatTree of index switches (Fat-B+Tree IV-A): a core, `pods` aggregation switches, below each of these `edges` edge switches,
    /// and below each of these a memory node of `memory` bytes. They are called `core`, `pod1`, `edge1`, `node1` and so on.
    ///
    /// # Errors
    /// As [`Rack::embedded_with`]; [`Error::Refused`] too when it is more than a rack has.
    pub fn embedded_fat_tree(pods: u16, edges: u16, memory: u64) -> Result<Self, Error> {
        let switches = 1 + u32::from(pods) * (1 + u32::from(edges));
        if pods == 0 || edges == 0 || switches > u32::from(INDEX_MAX) {
            let message = format!("{pods} pods of {edges} edge switches are {switches} index switches");
            let remedy =
                format!("at least one pod of one edge switch, and at most {INDEX_MAX} with the core");
            return Err(Error::Refused(ApiError { code: ErrorCode::BadRequest, message, remedy }));
        }
        let rack = Self::embedded_with(pods * edges, memory)?;
        if let Kind::Embedded(world) = &rack.0 {
            start_fat_tree(&mut world.borrow_mut(), pods, edges)?;
        }
        Ok(rack)
    }

    /// Ends a memory node of a rack in this process, and starts it again, as a machine does that loses its power: what it held is lost. To try
    /// what a program does then.
    ///
    /// # Errors
    /// [`Error::Refused`] when there is no such node; [`Error::Api`] of a rack of processes, whose roles are started again by `farmem up`;
    /// [`Error::System`] when the system has no memory for it.
    pub fn restart_node(&self, node: NodeId) -> Result<(), Error> {
        let Kind::Embedded(world) = &self.0 else {
            return Err(Error::Api { message: "this rack's memory nodes are processes of their own".into() });
        };
        let mut world = world.borrow_mut();
        let nodes = world.call(Overview {})?.nodes;
        let known = nodes.into_iter().find(|known| known.node == node.0).ok_or_else(|| {
            Error::Refused(ApiError {
                code: ErrorCode::NotFound,
                message: format!("there is no node {}", node.0),
                remedy: "see `Client::nodes` for the nodes there are".into(),
            })
        })?;
        world.remove_node(node.0);
        start_node(&mut world, known.name, known.gid, known.capacity)
    }

    /// Frames that the roles of a rack in this process have sent each other so far, the control plane's included. `None` of a rack of
    /// processes, of which no process sees all frames.
    #[must_use]
    pub fn frames(&self) -> Option<u64> {
        match &self.0 {
            Kind::Embedded(world) => Some(world.borrow().frames()),
            Kind::Running(_) => None,
        }
    }

    /// A rack that runs in other processes, as `farmem up` started it from this `rack.toml`.
    ///
    /// # Errors
    /// [`Error::Config`] when the file is wrong.
    pub fn open(file: impl AsRef<FilePath>) -> Result<Self, Error> {
        Ok(Self::running(RackConfig::load(file.as_ref())?))
    }

    /// A rack that runs in other processes, by its checked description.
    #[must_use]
    pub fn running(config: RackConfig) -> Self {
        Self(Kind::Running(Box::new(config)))
    }

    /// Its description, when it runs in other processes.
    pub fn config(&self) -> Option<&RackConfig> {
        match &self.0 {
            Kind::Embedded(_) => None,
            Kind::Running(config) => Some(config),
        }
    }

    /// A client in the protection domain called `domain`, which is made when it does not exist.
    ///
    /// On a running rack with [`Placement::SameCpu`](crate::Placement::SameCpu) it binds the calling thread to that CPU.
    ///
    /// # Errors
    /// [`Error`] when the rack does not answer, or [`Error::Full`] when all addresses for clients are in use.
    pub fn client(&self, domain: &str) -> Result<Client, Error> {
        self.client_with(domain, ClientOptions::default())
    }

    /// As [`Rack::client`], with options.
    ///
    /// # Errors
    /// As [`Rack::client`].
    pub fn client_with(&self, domain: &str, options: ClientOptions) -> Result<Client, Error> {
        match &self.0 {
            Kind::Embedded(world) => embedded_client(world, domain, options),
            Kind::Running(config) => running_client(config, domain, options),
        }
    }
}

/// The roles of a rack in this process, but for its hosts.
pub(crate) fn embedded_world(nodes: u16, memory: u64, rng: Rng) -> Result<World, Error> {
    // Nothing in here has an address; these only fill the API's fields.
    let address = |number: u16| IpAddr::V4(Ipv4Addr::from(0x7f00_0000 + u32::from(number)));
    let usual = ControlConfig::new(farmem_link::gid_of(address(1)));
    // The rack ends with its only process; and its time jumps from timer to timer, past every lease.
    let control = ControlConfig { pmtu: EMBEDDED_PMTU, host_lease: None, ..usual };
    let mut world = World::new(control, rng);
    let SwitchJoined { home, control, .. } = world.call(JoinSwitch { gid: address(2).to_string() })?;
    world.add_switch(Switch::new(home_of(&home, &control), Budgets::default()));
    for number in 0..nodes {
        let (name, gid) = (format!("node{}", number + 1), address(16 + number).to_string());
        start_node(&mut world, name, gid, memory)?;
    }
    Ok(world)
}

/// The switches of a FatTree join.
fn start_fat_tree(world: &mut World, pods: u16, edges: u16) -> Result<(), Error> {
    let names =
        |of: &str, from: u16, count: u16| (from..=from + count - 1).map(|n| format!("{of}{n}")).collect();
    let core = [("core".to_owned(), Tier::Core, names("pod", 1, pods))];
    let pod = |n: u16| (format!("pod{n}"), Tier::Aggregation, names("edge", 1 + (n - 1) * edges, edges));
    let edge = |n: u16| (format!("edge{n}"), Tier::Edge, names("node", n, 1));
    let switches = core.into_iter().chain((1..=pods).map(pod)).chain((1..=pods * edges).map(edge));
    for ((name, tier, below), number) in switches.zip(1_u32..) {
        // As of the other roles: nothing has an address in here.
        let gid = Ipv4Addr::from(0x7ff0_0000 + number).to_string();
        let IndexJoined { index, home, control, .. } = world.call(JoinIndex { name, gid, tier, below })?;
        world.add_index(index, Switch::new(home_of(&home, &control), Budgets::default()));
    }
    Ok(())
}

/// A memory node joins.
pub(crate) fn start_node(world: &mut World, name: String, gid: String, memory: u64) -> Result<(), Error> {
    let NodeJoined { node, home, control, .. } = world.call(JoinNode::new(name, gid, memory))?;
    let store = MappedStore::new(memory).map_err(|source| system("no memory for a memory node", source))?;
    let settings = node_settings(&home, &control, EMBEDDED_PMTU);
    // The thread that asks for a page would wait until the system has cleared a huge one.
    let store = store.populated_ahead();
    world.add_node(node, MemNode::compiling(settings, store, Compiler::jit()));
    Ok(())
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

/// Time in which a call of the control plane may be answered in any case.
const API_TIME_MIN: std::time::Duration = std::time::Duration::from_millis(100);

/// A span of time as roles count it.
pub(crate) fn machine(span: std::time::Duration) -> Duration {
    Duration::from_nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

/// How often something is sent again in `silence` when that happens every `timeout`.
pub(crate) fn retries_in(silence: Duration, timeout: Duration) -> u32 {
    u32::try_from(silence.as_nanos() / timeout.as_nanos()).unwrap_or(u32::MAX)
}

fn embedded_client(
    world: &Rc<RefCell<World>>,
    domain: &str,
    options: ClientOptions,
) -> Result<Client, Error> {
    embedded_client_of(world, domain, options, |settings| settings)
}

/// As [`embedded_client`], of a host whose settings are changed.
pub(crate) fn embedded_client_of(
    world: &Rc<RefCell<World>>,
    domain: &str,
    options: ClientOptions,
    change: impl FnOnce(HostConfig) -> HostConfig,
) -> Result<Client, Error> {
    let number = world.borrow_mut().next_client();
    let (name, gid) =
        (format!("client{number}"), IpAddr::V4(Ipv4Addr::from(0x7f01_0000 + number)).to_string());
    let HostJoined { host, generation, home, nodes, cards, .. } =
        world.borrow_mut().call(JoinHost::new(name, gid))?;
    let settings = host_settings(host, generation, &home, EMBEDDED_PMTU, options);
    let settings = change(HostConfig { pairs_max: 1, ..settings });
    world.borrow_mut().add_host(host, Host::new(settings));
    let path = Box::new(InProcess::new(Rc::clone(world), host));
    let mut client = Client::attach(path, (host, generation), domain, (nodes, cards))?;
    client.allocates_durably(options.durable);
    Ok(client)
}

fn running_client(config: &RackConfig, domain: &str, options: ClientOptions) -> Result<Client, Error> {
    place(config)?;
    require_running(config)?;
    for &address in &config.hosts {
        match with_link(config, address, Attach { config, address, domain, options }) {
            Err(Error::Open(OpenError::InUse { .. })) => {}
            other => return other,
        }
    }
    let (file, count) = (config.file.display(), config.hosts.len());
    Err(Error::Full { what: format!("the list of client addresses, {count} by [hosts] of {file},") })
}

/// Joins and attaches over an open link.
struct Attach<'a> {
    config: &'a RackConfig,
    address: IpAddr,
    domain: &'a str,
    options: ClientOptions,
}

impl WithLink for Attach<'_> {
    type Output = Client;

    fn with<L: Link + 'static>(self, mut link: L) -> Result<Client, Error> {
        let mut api = api_client(self.config)?;
        let gid_text = self.address.to_string();
        // An address that joins again is the same host started again, with the next generation.
        let name = format!("host-{gid_text}").replace(':', "-");
        let request = JoinHost { caches: Some(false), ..JoinHost::new(name, gid_text) };
        let joined = join_host(self.config, &mut api, &mut link, request)?;
        let HostJoined { host, generation, home, nodes, cards, .. } = joined;
        let patience = self.options.patience.unwrap_or(self.config.patience);
        let options = ClientOptions { patience: Some(patience), ..self.options };
        let settings = host_settings(host, generation, &home, self.config.pmtu, options);
        let role = Host::new(settings);
        let aside = api_client(self.config)?.patient(std::time::Duration::ZERO);
        let api = Rc::new(RefCell::new(api));
        let path = OverLink::new(Driver::new(role, link, Clock::start()), Rc::clone(&api), aside);
        let mut client = Client::attach(Box::new(path), (host, generation), self.domain, (nodes, cards))?;
        client.allocates_durably(self.options.durable);
        client.waits_for_nodes(patience);
        if let Some(patience) = self.options.patience {
            *api.borrow_mut() = api_client(self.config)?.impatient(patience.max(API_TIME_MIN));
        }
        client.stays_by(Renewal::begin(self.config, (host, generation))?);
        client.set_dpu(self.config.dpu.clone());
        Ok(client)
    }
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

fn system(what: &str, source: std::io::Error) -> Error {
    Error::System { what: what.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_machine::Instant;
    use farmem_wire::RequestId;

    /// A FatTree without pods or edges, or of more switches than a rack has, is refused before anything is made of it.
    #[test]
    fn a_fat_tree_has_a_size() {
        for (pods, edges) in [(0, 0), (0, 2), (2, 0), (u16::MAX, 0), (u16::MAX, u16::MAX), (16, 15)] {
            let refused = Rack::embedded_fat_tree(pods, edges, 1 << 20).unwrap_err();
            assert_eq!(refused.code(), Some(ErrorCode::BadRequest), "{pods} pods of {edges}: {refused}");
        }
        assert!(Rack::embedded_fat_tree(1, 1, 1 << 20).is_ok());
    }

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
