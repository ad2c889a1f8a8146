//! The roles of a rack as they run in processes or threads: open the link, join, serve until told to stop.
//!
//! `farmem up` starts one process for each; a benchmark may start threads. Each function returns when `stop` is set, or
//! with the error that kept it from serving.

use crate::client::{gid, wrong_answer};
use crate::config::{NodeConfig, RackConfig, Transport};
use crate::rack::{home_of, link_waiting, node_settings};
use crate::{Error, Placement};
use farmem_control::api::{Endpoint, Request, Response};
use farmem_control::{Config as ControlSettings, Control};
use farmem_io::{
    ApiClient, ApiServer, Clock, ControlStore, Driver, Link, MappedStore, ShmConfig, ShmLink, UdpConfig,
    UdpLink, os_seed, run, run_control,
};
pub use farmem_io::{Stop, pin_to_cpu};
use farmem_machine::{Machine, Port, Rng};
use farmem_memnode::MemNode;
use farmem_switch::{Budgets, Switch};
use farmem_transport::PeerChange;
use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Something to do with whatever link the rack uses.
pub(crate) trait WithLink {
    /// What comes of it.
    type Output;
    /// Does it.
    fn with<L: Link + 'static>(self, link: L) -> Result<Self::Output, Error>;
}

/// Opens the rack's kind of link at `address` and hands it over.
pub(crate) fn with_link<W: WithLink>(
    config: &RackConfig,
    address: IpAddr,
    then: W,
) -> Result<W::Output, Error> {
    let (gid, waiting) = (farmem_io::gid_of(address), link_waiting(config.waiting));
    match config.transport {
        Transport::Udp => then.with(UdpLink::open(&UdpConfig { waiting, ..UdpConfig::new(gid) })?),
        Transport::Shm => {
            then.with(ShmLink::open(&ShmConfig { waiting, ..ShmConfig::new(config.rings(), gid) })?)
        }
    }
}

/// Puts the calling thread where the rack's description wants its roles.
pub(crate) fn place(config: &RackConfig) -> Result<(), Error> {
    match config.placement {
        Placement::SameCpu => pin_to_cpu(config.cpu)
            .map_err(|source| Error::System { what: format!("cannot run on CPU {}", config.cpu), source }),
        Placement::Free => Ok(()),
    }
}

/// A client of the rack's HTTP API, with the token from its state directory.
pub(crate) fn api_client(config: &RackConfig) -> Result<ApiClient, Error> {
    let file = config.token_file();
    let token = fs::read_to_string(&file).map_err(|source| Error::System {
        what: format!("cannot read the rack's token {}", file.display()),
        source,
    })?;
    Ok(ApiClient::new(&format!("http://{}", config.control.http), token.trim()))
}

/// Serves as the control plane: its HTTP API, its log in the state directory, its updates over the rack's link.
///
/// # Errors
/// [`Error`] when its address, port or state is taken, its log is damaged, or link or disk fail.
pub fn control(config: &RackConfig, stop: &Stop) -> Result<(), Error> {
    struct Serve<'a>(&'a RackConfig, &'a Stop);
    impl WithLink for Serve<'_> {
        type Output = ();
        fn with<L: Link + 'static>(self, link: L) -> Result<(), Error> {
            let Self(config, stop) = self;
            let state = &config.control.state;
            let (mut store, records) = ControlStore::open(state)?;
            let token = keep_token(&config.token_file())?;
            let seed =
                os_seed().map_err(|source| Error::System { what: "no random numbers".into(), source })?;
            let settings = ControlSettings::new(farmem_io::gid_of(config.control.address));
            let role = Control::restore(settings, Rng::from_seed(seed), records).map_err(|e| Error::Config {
                file: state.clone(),
                message: format!("{e}; the log is damaged: restore the directory from a copy, or remove it to begin anew"),
            })?;
            let failed =
                |source| Error::System { what: "the control plane cannot keep its log".into(), source };
            let shortest = role.compact();
            if store.len() > COMPACT_RATIO * shortest.len() as u64 {
                store.rewrite(&shortest).map_err(failed)?;
            }
            let waker = link
                .waker()
                .map_err(|source| Error::System { what: "no waker for the link".into(), source })?;
            let (server, calls) = ApiServer::start(config.control.http, &token, waker)?;
            let mut driver = Driver::new(role, link, Clock::start());
            let result = run_control(&mut driver, &calls, store, stop).map_err(failed);
            drop(server);
            result
        }
    }
    with_link(config, config.control.address, Serve(config, stop))
}

/// A log this many times as long as it could be is written anew at a start.
const COMPACT_RATIO: u64 = 4;

/// The rack's token: the one kept there, or a new one that only this user can read.
fn keep_token(file: &Path) -> Result<String, Error> {
    let cannot =
        |doing: &str, source| Error::System { what: format!("cannot {doing} {}", file.display()), source };
    match fs::read_to_string(file) {
        Ok(token) if !token.trim().is_empty() => return Ok(token.trim().to_owned()),
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(cannot("read", e)),
    }
    let seed = os_seed().map_err(|e| cannot("draw a token for", e))?;
    let token: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut options = fs::OpenOptions::new();
    let mut opened = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(file)
        .map_err(|e| cannot("write", e))?;
    opened.write_all(token.as_bytes()).map_err(|e| cannot("write", e))?;
    Ok(token)
}

/// What the control plane of a running rack sees.
///
/// # Errors
/// [`Error`] when it does not answer.
pub fn overview(config: &RackConfig) -> Result<Response, Error> {
    Ok(api_client(config)?.ask(&Request::Overview)?)
}

/// Serves as the switch.
///
/// # Errors
/// [`Error`] when its address is taken, the control plane does not let it join, or the link fails.
pub fn switch(config: &RackConfig, stop: &Stop) -> Result<(), Error> {
    struct Serve<'a>(&'a RackConfig, &'a Stop);
    impl WithLink for Serve<'_> {
        type Output = ();
        fn with<L: Link + 'static>(self, link: L) -> Result<(), Error> {
            let Self(config, stop) = self;
            let mut api = api_client(config)?;
            let Response::Joined { home, control } =
                api.ask(&Request::JoinSwitch { gid: config.switch.to_string() })?
            else {
                return Err(wrong_answer("join_switch"));
            };
            let role = Switch::new(home_of(&home, &control), Budgets::default());
            serve(role, link, &control, stop)
        }
    }
    place(config)?;
    with_link(config, config.switch, Serve(config, stop))
}

/// Serves as memory node `node`.
///
/// # Errors
/// [`Error`] when its address is taken, there is no memory, the control plane does not let it join, or the link fails.
pub fn node(config: &RackConfig, node: &NodeConfig, stop: &Stop) -> Result<(), Error> {
    struct Serve<'a>(&'a RackConfig, &'a NodeConfig, &'a Stop);
    impl WithLink for Serve<'_> {
        type Output = ();
        fn with<L: Link + 'static>(self, link: L) -> Result<(), Error> {
            let Self(config, node, stop) = self;
            let what = || format!("no {} bytes of memory for node {}", node.memory, node.name);
            let store =
                MappedStore::new(node.memory).map_err(|source| Error::System { what: what(), source })?;
            let mut api = api_client(config)?;
            let (name, gid) = (node.name.clone(), node.address.to_string());
            let join = api.ask(&Request::JoinNode { name, gid, capacity: node.memory })?;
            let Response::NodeJoined { home, control, .. } = join else {
                return Err(wrong_answer("join_node"));
            };
            serve(MemNode::new(node_settings(&home, &control), store), link, &control, stop)
        }
    }
    place(config)?;
    with_link(config, node.address, Serve(config, node, stop))
}

fn serve<M, L>(role: M, mut link: L, control: &Endpoint, stop: &Stop) -> Result<(), Error>
where
    M: Machine<Out = PeerChange>,
    L: Link,
{
    let lost = |source| Error::System { what: "the link of this role failed".into(), source };
    link.set_peer(Port(control.port), Some(gid(&control.gid)?)).map_err(lost)?;
    let mut driver = Driver::new(role, link, Clock::start());
    run(&mut driver, stop, &mut |change: PeerChange, link: &mut L| {
        // A peer this link cannot reach stays without an address: what is sent to it is counted as lost, and its requests time out.
        drop(link.set_peer(change.port, change.gid));
    })
    .map_err(lost)
}
