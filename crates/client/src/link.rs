//! The link and control plane of a rack, as described in rack.toml: for roles, clients and other hosts that
//! join.

use crate::answers::wrong_answer;
use crate::config::{Placement, RackConfig, Transport, Waiting};
use crate::error::Error;
use farmem_api::{ApiCallError, ApiClient};
use farmem_control::api::{Call, CreateDomain, ErrorCode, HostJoined, JoinHost, Overview, Request, Response};
use farmem_control::{AddressClaim, AddressProof};
use farmem_link::{
    Clock, Link, OpenError, PacedLink, ShmConfig, ShmLink, UdpConfig, UdpLink, Wait, os_seed, pin_to_cpu,
};
use farmem_machine::{Duration, Port};
use farmem_wire::message::{Cookie, CookieMessage, GSI_QKEY, GSI_QPN};
use farmem_wire::{Extension, Packet};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::sync::Once;

/// The build of farmem: its version, and a hash of the sources of all crates of a rack's processes. Processes
/// of different builds cannot share a rack.
pub const BUILD: &str = env!("FARMEM_BUILD");

/// An action that is generic over the rack's type of link.
pub trait WithLink {
    /// The result.
    type Output;
    /// Runs the action.
    ///
    /// # Errors
    /// The errors of the implementer.
    fn with<L: Link + Send + 'static>(self, link: L) -> Result<Self::Output, Error>;
}

/// Opens the rack's type of link at `address` and passes it to `then`. The link has its own type, unless the
/// rack has a link profile.
///
/// # Errors
/// [`Error::Open`] if the address is in use or is not an address of this machine; otherwise the errors of
/// `then`.
pub fn with_link<W: WithLink>(config: &RackConfig, address: IpAddr, then: W) -> Result<W::Output, Error> {
    let (gid, waiting) = (farmem_link::gid_of(address), link_waiting(config));
    match config.transport {
        Transport::Udp => {
            let (any_source_port, cards) = (config.cards.is_some(), config.cards);
            let solve_unknown_ip_id = cards.is_some_and(|cards| cards.unknown_ip_id);
            let usual = UdpConfig::new(gid);
            let link = UdpLink::open(&UdpConfig { waiting, any_source_port, solve_unknown_ip_id, ..usual })?;
            advise(&link);
            if config.link.is_none() { then.with(link) } else { then.with(paced(config, link)?) }
        }
        Transport::Shm => {
            let link = ShmLink::open(&ShmConfig { waiting, ..ShmConfig::new(config.rings(), gid) })?;
            if config.link.is_none() { then.with(link) } else { then.with(paced(config, link)?) }
        }
    }
}

fn paced<L: Link>(config: &RackConfig, link: L) -> Result<PacedLink<L>, Error> {
    let waiting = link_waiting(config);
    let opened = os_seed().and_then(|seed| PacedLink::new(link, waiting, config.link, seed));
    opened.map_err(|source| Error::System { what: "cannot pace the link".into(), source })
}

/// Prints the advice for larger socket buffers, once per process: all its sockets have the same limit.
fn advise(link: &UdpLink) {
    static SAID: Once = Once::new();
    if let Some(advice) = link.buffers().advice() {
        // A closed stderr is no fault.
        SAID.call_once(|| drop(writeln!(io::stderr(), "farmem: {advice}")));
    }
}

/// Binds the calling thread to the CPU on which the rack's description places roles.
///
/// # Errors
/// [`Error::Config`] if this process may not use that CPU.
pub fn place(config: &RackConfig) -> Result<(), Error> {
    match config.placement {
        Placement::Free => Ok(()),
        Placement::SameCpu => match config.cpu {
            Some(cpu) => pin_to_cpu(cpu).map_err(|e| {
                let expected = "expected a CPU that this process may use, or placement = \"free\"";
                let message = format!("cannot run on cpu = {cpu}: {e}; {expected}");
                Error::Config { file: config.file.clone(), message }
            }),
            None => pin_to_first_cpu()
                .map_err(|source| Error::System { what: "cannot stay on one CPU".into(), source }),
        },
    }
}

/// Binds the calling thread to the first CPU that this process may use. This CPU is the same for all
/// processes with the same affinity; CPU 0 may belong to another program.
fn pin_to_first_cpu() -> io::Result<()> {
    let cpus = farmem_link::affinity::allowed_cpus()?;
    cpus.first().map_or(Ok(()), |&cpu| pin_to_cpu(cpu))
}

/// Creates a client of the rack's API, with the rack's patience. On the control plane's machine the client
/// uses a Unix socket; on another machine, TLS and the join file.
///
/// # Errors
/// [`Error::Api`] if the token cannot be read, [`Error::Join`] with the fault of a join file.
pub fn api_client(config: &RackConfig) -> Result<ApiClient, Error> {
    let (door, token) = config.api_door()?;
    let client = ApiClient::new(door, &token).with_keys(&config.key_file()).of_build(BUILD);
    Ok(client.with_patience(config.patience))
}

/// Creates a client for operators as [`api_client`] does. If the file `operator` of the state directory is
/// present, the client uses its token. Roles use this client to join, and commands use it for requests about
/// the whole rack.
///
/// # Errors
/// The errors of [`api_client`].
pub fn operator_client(config: &RackConfig) -> Result<ApiClient, Error> {
    let (door, token) = config.api_door()?;
    let operator = std::fs::read_to_string(config.operator_file()).unwrap_or_default();
    let token = if operator.trim().is_empty() { token.as_str() } else { operator.trim() };
    let client = ApiClient::new(door, token).with_keys(&config.key_file()).of_build(BUILD);
    Ok(client.with_patience(config.patience))
}

/// Joins over an open link, as `join` does, with the name and address of a host that may have joined before.
/// If the host belongs to another user, the address counts as in use.
///
/// # Errors
/// [`Error::Open`] if the address is in use, or the control plane's error.
pub fn join_host<L: Link>(
    config: &RackConfig,
    api: &mut ApiClient,
    link: &mut L,
    request: JoinHost,
) -> Result<HostJoined, Error> {
    let name = request.name.clone();
    match join(config, api, link, request) {
        Err(error) if error.code() == Some(ErrorCode::NotOwner) => {
            Err(OpenError::InUse { address: name }.into())
        }
        joined => joined,
    }
}

/// Successive times to wait for a cookie. If a datagram is lost, one of them passes in vain; the joining
/// member then requests another cookie.
const COOKIE_WAITS: [Duration; 6] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(2),
    Duration::from_secs(2),
];

/// Joins over an open link. The join proves that this member receives datagrams at the address in the
/// request. The control plane sends a cookie there, and the next request contains the cookie (PROTOCOL 8.75).
///
/// # Errors
/// The control plane's error, or the link's.
pub(crate) fn join<L: Link, C: Call + Clone>(
    config: &RackConfig,
    api: &mut ApiClient,
    link: &mut L,
    request: C,
) -> Result<C::Answer, Error> {
    let asked: Request = request.clone().into();
    let tag = AddressClaim::of(&asked).map(|claim| claim.tag());
    let mut waits = COOKIE_WAITS.into_iter();
    let mut proof = AddressProof::Pending;
    let answer = loop {
        api.show_address(proof);
        match (api.call(request.clone()), waits.next()) {
            (Err(ApiCallError::Refused(error)), Some(wait)) if error.code == ErrorCode::Unproven => {
                let cookie = await_cookie(link, config.control.address, tag, wait);
                let failed = |source| Error::System { what: "the link to the rack failed".into(), source };
                proof = cookie.map_err(failed)?.map_or(AddressProof::Pending, AddressProof::Cookie);
            }
            (answer, _) => break answer,
        }
    };
    api.show_address(AddressProof::Unsupported);
    Ok(answer?)
}

/// Receives frames until a cookie of the control plane for the claim with this tag arrives, at most for `wait`.
/// Other holders of the rack's token can have it send cookies of other claims here.
fn await_cookie<L: Link>(
    link: &mut L,
    control: IpAddr,
    tag: Option<u64>,
    wait: Duration,
) -> io::Result<Option<Cookie>> {
    link.set_peer(Port::CONTROL, Some(farmem_link::gid_of(control)))?;
    let clock = Clock::start();
    let until = clock.after(wait);
    let mut found = None;
    while found.is_none() {
        let left = until.since(clock.now());
        if left == Duration::ZERO {
            break;
        }
        link.receive(Wait::AtMost(left), &mut |port, frame| {
            let message = cookie_in(frame).filter(|_| port == Port::CONTROL);
            let own = message.filter(|message| Some(message.tag) == tag);
            found = found.or_else(|| own.map(|message| message.cookie));
        })?;
    }
    link.set_peer(Port::CONTROL, None)?;
    Ok(found)
}

/// Returns the cookie in a frame to a member that has no queue pair yet.
fn cookie_in(frame: &[u8]) -> Option<CookieMessage> {
    let packet = Packet::parse(frame).ok()?;
    let Extension::Deth(deth) = packet.ext else { return None };
    let fits = packet.bth.dest_qp == GSI_QPN && deth.qkey == GSI_QKEY;
    CookieMessage::parse(packet.payload).ok().filter(|_| fits)
}

/// Returns the number of the domain called `name`, for grants. Creates the domain if it does not exist; its
/// owner may be another user.
///
/// # Errors
/// The errors of the control plane.
pub fn number_of_domain(
    name: &str,
    mut call: impl FnMut(Request) -> Result<Response, Error>,
) -> Result<u32, Error> {
    match call(CreateDomain { name: name.into() }.into()) {
        Ok(Response::Domain(made)) => Ok(made.domain),
        Ok(_) => Err(wrong_answer("create_domain")),
        Err(error) if error.code() == Some(ErrorCode::NotOwner) => match call(Overview {}.into())? {
            Response::Overview(seen) => seen
                .domains
                .into_iter()
                .find(|(_, known)| known == name)
                .map(|(domain, _)| domain)
                .ok_or(error),
            _ => Err(wrong_answer("overview")),
        },
        Err(error) => Err(error),
    }
}

/// Checks that the rings of a rack over shared memory exist. Otherwise opening a link would create them, and
/// no role would remove them.
///
/// # Errors
/// [`Error::Api`] if the rack uses rings and does not run.
pub fn require_running(config: &RackConfig) -> Result<(), Error> {
    if config.transport != Transport::Shm || config.rings().exists() {
        return Ok(());
    }
    let (name, rings) = (&config.name, config.rings());
    Err(Error::Api { message: format!("rack {name:?} does not run: {} does not exist", rings.display()) })
}

/// Returns the link's way to wait. A link that delays frames needs precise wake-ups.
fn link_waiting(config: &RackConfig) -> farmem_link::Waiting {
    match config.waiting {
        Waiting::Block if config.link.is_none() => farmem_link::Waiting::Block,
        Waiting::Block => farmem_link::Waiting::Precise,
        Waiting::Spin => farmem_link::Waiting::Spin,
    }
}
