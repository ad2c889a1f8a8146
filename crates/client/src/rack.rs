//! A rack within this process, or of running processes.

use crate::client::Client;
use crate::config::RackConfig;
use crate::embedded::World;
use crate::error::Error;
use crate::host_settings::{ClientOptions, home_of, host_settings, node_settings};
use crate::link::{WithLink, api_client, join_host, place, require_running, with_link};
use crate::path::{InProcess, OverLink};
use crate::renewals::Renewal;
use farmem_control::api::{
    ApiError, ErrorCode, HostJoined, IndexJoined, JoinHost, JoinIndex, JoinNode, JoinSwitch, NodeJoined,
    Overview, SwitchJoined, Tier,
};
use farmem_control::{Config as ControlConfig, INDEX_MAX};
use farmem_host::{Config as HostConfig, Host};
use farmem_link::{Clock, Compiler, Driver, Link, MappedStore, OpenError};
use farmem_machine::Rng;
use farmem_memnode::MemNode;
use farmem_switch::{Budgets, Switch};
use farmem_wire::{NodeId, Pmtu};
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path as FilePath;
use std::rc::Rc;

/// A rack. Its main use is to create clients.
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

/// Number of memory nodes of [`Rack::embedded`].
const NODES: u16 = 4;

/// Memory of each of these nodes, in bytes.
const NODE_MEMORY: u64 = 256 << 20;

/// Path MTU of a rack within one process, where no link limits it.
const EMBEDDED_PMTU: Pmtu = Pmtu::B4096;

impl Rack {
    /// Creates a rack within this process: four memory nodes of 256 MiB, a switch and a control plane. The
    /// rack needs no sockets and no privileges.
    ///
    /// # Errors
    /// [`Error::System`] if the system has too little memory.
    pub fn embedded() -> Result<Self, Error> {
        Self::embedded_with(NODES, NODE_MEMORY)
    }

    /// Creates a rack within this process, with `nodes` memory nodes of `memory` bytes each.
    ///
    /// # Errors
    /// [`Error::System`] if the system has too little memory; [`Error::Refused`] if `memory` is not a
    /// multiple of 4096.
    pub fn embedded_with(nodes: u16, memory: u64) -> Result<Self, Error> {
        let seed =
            farmem_link::os_seed().map_err(|source| system("no random numbers from the system", source))?;
        let world = embedded_world(nodes, memory, Rng::from_seed(seed))?;
        Ok(Self(Kind::Embedded(Rc::new(RefCell::new(world)))))
    }

    /// Creates a rack within this process, with a FatTree of index switches (Fat-B+Tree IV-A). The core
    /// switch has `pods` aggregation switches below it. Each of these has `edges` edge switches, and each
    /// edge switch one memory node of `memory` bytes. Their names are `core`, `pod1`, `edge1`, `node1` and so
    /// on.
    ///
    /// # Errors
    /// The errors of [`Rack::embedded_with`], and [`Error::Refused`] if the FatTree exceeds the limits of a
    /// rack.
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

    /// Restarts a memory node of a rack within this process. Its bytes are lost, as after a power failure.
    /// Use this method to test how a program handles lost memory.
    ///
    /// # Errors
    /// [`Error::Refused`] if the node does not exist. [`Error::Api`] for a rack of processes, whose roles
    /// `farmem up` restarts. [`Error::System`] if the system has too little memory.
    pub fn restart_node(&self, node: NodeId) -> Result<(), Error> {
        let Kind::Embedded(world) = &self.0 else {
            return Err(Error::Api { message: "this rack's memory nodes are separate processes".into() });
        };
        let mut world = world.borrow_mut();
        let nodes = world.call(Overview {})?.nodes;
        let known = nodes.into_iter().find(|known| known.node == node.0).ok_or_else(|| {
            Error::Refused(ApiError {
                code: ErrorCode::NotFound,
                message: format!("there is no node {}", node.0),
                remedy: "see `Client::nodes` for the existing nodes".into(),
            })
        })?;
        world.remove_node(node.0);
        start_node(&mut world, known.name, known.gid, known.capacity)
    }

    /// Returns the number of frames that all roles of a rack within this process have sent. `None` for a
    /// running rack, whose frames no single process sees.
    #[must_use]
    pub fn frames(&self) -> Option<u64> {
        match &self.0 {
            Kind::Embedded(world) => Some(world.borrow().frames()),
            Kind::Running(_) => None,
        }
    }

    /// Opens the running rack that `file`, a `rack.toml`, describes.
    ///
    /// # Errors
    /// [`Error::Config`] if the file is invalid.
    pub fn open(file: impl AsRef<FilePath>) -> Result<Self, Error> {
        Ok(Self::running(RackConfig::load(file.as_ref())?))
    }

    /// Creates a handle of a running rack from a checked description.
    #[must_use]
    pub fn running(config: RackConfig) -> Self {
        Self(Kind::Running(Box::new(config)))
    }

    /// Returns the description of a running rack; `None` for a rack within this process.
    pub fn config(&self) -> Option<&RackConfig> {
        match &self.0 {
            Kind::Embedded(_) => None,
            Kind::Running(config) => Some(config),
        }
    }

    /// Creates a client in the protection domain `domain`; creates the domain if necessary.
    ///
    /// On a running rack with [`Placement::SameCpu`](crate::Placement::SameCpu), this method binds the
    /// calling thread to that CPU.
    ///
    /// # Errors
    /// [`Error`] if the rack does not answer, or [`Error::Full`] if all addresses for clients are in use.
    pub fn client(&self, domain: &str) -> Result<Client, Error> {
        self.client_with(domain, ClientOptions::default())
    }

    /// Creates a client as [`Rack::client`] does, with options.
    ///
    /// # Errors
    /// The errors of [`Rack::client`].
    pub fn client_with(&self, domain: &str, options: ClientOptions) -> Result<Client, Error> {
        match &self.0 {
            Kind::Embedded(world) => embedded_client(world, domain, options),
            Kind::Running(config) => running_client(config, domain, options),
        }
    }
}

/// Creates the roles of a rack within this process, except its hosts.
pub(crate) fn embedded_world(nodes: u16, memory: u64, rng: Rng) -> Result<World, Error> {
    // Roles in one process have no addresses; these only fill the API's fields.
    let address = |number: u16| IpAddr::V4(Ipv4Addr::from(0x7f00_0000 + u32::from(number)));
    let usual = ControlConfig::new(farmem_link::gid_of(address(1)));
    // The rack ends with its only process, and its clock jumps from timer to timer, past every lease.
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

/// Joins the switches of a FatTree.
fn start_fat_tree(world: &mut World, pods: u16, edges: u16) -> Result<(), Error> {
    let names =
        |of: &str, from: u16, count: u16| (from..=from + count - 1).map(|n| format!("{of}{n}")).collect();
    let core = [("core".to_owned(), Tier::Core, names("pod", 1, pods))];
    let pod = |n: u16| (format!("pod{n}"), Tier::Aggregation, names("edge", 1 + (n - 1) * edges, edges));
    let edge = |n: u16| (format!("edge{n}"), Tier::Edge, names("node", n, 1));
    let switches = core.into_iter().chain((1..=pods).map(pod)).chain((1..=pods * edges).map(edge));
    for ((name, tier, below), number) in switches.zip(1_u32..) {
        // The address only fills the API's field, as for the other roles.
        let gid = Ipv4Addr::from(0x7ff0_0000 + number).to_string();
        let IndexJoined { index, home, control, .. } = world.call(JoinIndex { name, gid, tier, below })?;
        world.add_index(index, Switch::new(home_of(&home, &control), Budgets::default()));
    }
    Ok(())
}

/// Joins a memory node.
pub(crate) fn start_node(world: &mut World, name: String, gid: String, memory: u64) -> Result<(), Error> {
    let NodeJoined { node, home, control, .. } = world.call(JoinNode::new(name, gid, memory))?;
    let store = MappedStore::new(memory).map_err(|source| system("no memory for a memory node", source))?;
    let settings = node_settings(&home, &control, EMBEDDED_PMTU);
    // Otherwise the thread that touches a page would wait until the system has cleared a huge page.
    let store = store.populated_ahead();
    world.add_node(node, MemNode::compiling(settings, store, Compiler::jit()));
    Ok(())
}

/// Shortest time that a call of the control plane is given for its answer.
const API_TIME_MIN: std::time::Duration = std::time::Duration::from_millis(100);

fn embedded_client(
    world: &Rc<RefCell<World>>,
    domain: &str,
    options: ClientOptions,
) -> Result<Client, Error> {
    embedded_client_of(world, domain, options, |settings| settings)
}

/// Creates a client as [`embedded_client`] does, after `change` has adapted the host's settings.
pub(crate) fn embedded_client_of(
    world: &Rc<RefCell<World>>,
    domain: &str,
    options: ClientOptions,
    change: impl FnOnce(HostConfig) -> HostConfig,
) -> Result<Client, Error> {
    let number = world.borrow_mut().next_client();
    let (name, gid) =
        (format!("client{number}"), IpAddr::V4(Ipv4Addr::from(0x7f01_0000 + number)).to_string());
    let joined = world.borrow_mut().call(JoinHost::new(name, gid))?;
    let HostJoined { host, generation, ref home, .. } = joined;
    let settings = host_settings(host, generation, home, EMBEDDED_PMTU, options);
    let settings = change(HostConfig { pairs_max: 1, ..settings });
    world.borrow_mut().add_host(host, Host::new(settings));
    let path = Box::new(InProcess::new(Rc::clone(world), host));
    let mut client = Client::attach(path, domain, joined)?;
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

/// The join and attachment of a client over an open link.
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
        // A second join of an address restarts the same host with the next generation.
        let name = format!("host-{gid_text}").replace(':', "-");
        let request = JoinHost { caches: Some(false), ..JoinHost::new(name, gid_text) };
        let joined = join_host(self.config, &mut api, &mut link, request)?;
        let HostJoined { host, generation, ref home, .. } = joined;
        let patience = self.options.patience.unwrap_or(self.config.patience);
        let options = ClientOptions { patience: Some(patience), ..self.options };
        let settings = host_settings(host, generation, home, self.config.pmtu, options);
        let role = Host::new(settings);
        let aside = api_client(self.config)?.with_patience(std::time::Duration::ZERO);
        let api = Rc::new(RefCell::new(api));
        let path = OverLink::new(Driver::new(role, link, Clock::start()), Rc::clone(&api), aside);
        let mut client = Client::attach(Box::new(path), self.domain, joined)?;
        client.allocates_durably(self.options.durable);
        client.waits_for_nodes(patience);
        if let Some(patience) = self.options.patience {
            *api.borrow_mut() = api_client(self.config)?.with_timeout(patience.max(API_TIME_MIN));
        }
        client.stays_by(Renewal::begin(self.config, host, generation)?);
        client.set_dpu(self.config.dpu.clone());
        Ok(client)
    }
}

fn system(what: &str, source: std::io::Error) -> Error {
    Error::System { what: what.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A FatTree without pods or edges, or with more switches than a rack allows, is refused before any part
    /// is created.
    #[test]
    fn a_fat_tree_has_a_size() {
        for (pods, edges) in [(0, 0), (0, 2), (2, 0), (u16::MAX, 0), (u16::MAX, u16::MAX), (16, 15)] {
            let refused = Rack::embedded_fat_tree(pods, edges, 1 << 20).unwrap_err();
            assert_eq!(refused.code(), Some(ErrorCode::BadRequest), "{pods} pods of {edges}: {refused}");
        }
        assert!(Rack::embedded_fat_tree(1, 1, 1 << 20).is_ok());
    }
}
