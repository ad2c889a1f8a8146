//! A rack's link and control plane, as its description has them: for all that join it, roles, clients and hosts of their own.

use crate::answers::wrong_answer;
use crate::config::{Placement, RackConfig, Transport, Waiting};
use crate::error::Error;
use farmem_api::{ApiCallError, ApiClient};
use farmem_control::AddressProof;
use farmem_control::api::{Call, CreateDomain, ErrorCode, HostJoined, JoinHost, Overview, Request, Response};
use farmem_link::{
    Clock, Link, OpenError, PacedLink, ShmConfig, ShmLink, UdpConfig, UdpLink, Wait, os_seed, pin_to_cpu,
};
use farmem_machine::{Duration, Port};
use farmem_wire::message::{Cookie, CookieMessage, GSI_QKEY, GSI_QPN};
use farmem_wire::{Extension, Packet};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::sync::Once;

/// The build of farmem: its version, and a hash of the sources of all crates that a rack's processes consist of. Processes of different builds
/// cannot share a rack.
pub const BUILD: &str = env!("FARMEM_BUILD");

/// Something to do with whatever link the rack uses.
pub trait WithLink {
    /// The result.
    type Output;
    /// Does it.
    ///
    /// # Errors
    /// Errors of the implementer.
    fn with<L: Link + Send + 'static>(self, link: L) -> Result<Self::Output, Error>;
}

/// Opens the rack's kind of link at `address` and hands it over: as it is, of the link's own type, unless the rack has a profile.
///
/// # Errors
/// [`Error::Open`] when the address is taken, or is not this machine's; else what `then` says.
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

/// Says what is to be done for larger socket buffers, once in a process: they are as small for all its sockets.
fn advise(link: &UdpLink) {
    static SAID: Once = Once::new();
    if let Some(advice) = link.buffers().advice() {
        // stderr may be closed.
        SAID.call_once(|| drop(writeln!(io::stderr(), "farmem: {advice}")));
    }
}

/// Puts the calling thread where the rack's description wants its roles.
///
/// # Errors
/// [`Error::Config`] when this process may not use that CPU.
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

/// The first CPU that this process may use is the same for all that are started alike: CPU 0 may be another program's.
fn pin_to_first_cpu() -> io::Result<()> {
    let cpus = farmem_link::affinity::allowed_cpus()?;
    cpus.first().map_or(Ok(()), |&cpu| pin_to_cpu(cpu))
}

/// A client of the rack's API, with the rack's patience: by its Unix socket on the control plane's machine, by TLS and what is in the join file on another.
///
/// # Errors
/// [`Error::Api`] when the token cannot be read, [`Error::Join`] with what is wrong with a join file.
pub fn api_client(config: &RackConfig) -> Result<ApiClient, Error> {
    let (door, token) = config.api_door()?;
    let client = ApiClient::new(door, &token).with_keys(&config.key_file()).of_build(BUILD);
    Ok(client.patient(config.patience))
}

/// As [`api_client`], for operators: with the operator's token where this machine has it, in the file `operator` of the state directory. Roles join so, and
/// commands about the whole rack ask so.
///
/// # Errors
/// As [`api_client`].
pub fn operator_client(config: &RackConfig) -> Result<ApiClient, Error> {
    let (door, token) = config.api_door()?;
    let operator = std::fs::read_to_string(config.operator_file()).unwrap_or_default();
    let token = if operator.trim().is_empty() { token.as_str() } else { operator.trim() };
    let client = ApiClient::new(door, token).with_keys(&config.key_file()).of_build(BUILD);
    Ok(client.patient(config.patience))
}

/// Joins over an open link, as `join` does, with the name and address of a host that may have been there before. One that is another user's is taken, as an
/// address is that another process has.
///
/// # Errors
/// [`Error::Open`] when it is taken, or what the control plane says.
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

/// Waits for a cookie, one after the other. A lost datagram costs one of them; the joining member then asks for another.
const COOKIE_WAITS: [Duration; 6] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(2),
    Duration::from_secs(2),
];

/// Joins over an open link, which proves that this member receives datagrams at the address that the request names: the control plane sends a cookie there, and
/// the next request shows it (PROTOCOL 8.75).
///
/// # Errors
/// The control plane's error, or that of the link.
pub(crate) fn join<L: Link, C: Call + Clone>(
    config: &RackConfig,
    api: &mut ApiClient,
    link: &mut L,
    request: C,
) -> Result<C::Answer, Error> {
    let mut waits = COOKIE_WAITS.into_iter();
    let mut proof = AddressProof::Pending;
    let answer = loop {
        api.show_address(proof);
        match (api.call(request.clone()), waits.next()) {
            (Err(ApiCallError::Refused(error)), Some(wait)) if error.code == ErrorCode::Unproven => {
                let cookie = await_cookie(link, config.control.address, wait);
                let failed = |source| Error::System { what: "the link to the rack failed".into(), source };
                proof = cookie.map_err(failed)?.map_or(AddressProof::Pending, AddressProof::Cookie);
            }
            (answer, _) => break answer,
        }
    };
    api.show_address(AddressProof::Unsupported);
    Ok(answer?)
}

/// Receives frames until a cookie of the control plane arrives, for `wait` at most.
fn await_cookie<L: Link>(link: &mut L, control: IpAddr, wait: Duration) -> io::Result<Option<Cookie>> {
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
            found = found.or_else(|| cookie_in(frame).filter(|_| port == Port::CONTROL));
        })?;
    }
    link.set_peer(Port::CONTROL, None)?;
    Ok(found)
}

/// Returns the cookie in a frame to a member that has no queue pair yet.
fn cookie_in(frame: &[u8]) -> Option<Cookie> {
    let packet = Packet::parse(frame).ok()?;
    let Extension::Deth(deth) = packet.ext else { return None };
    let fits = packet.bth.dest_qp == GSI_QPN && deth.qkey == GSI_QKEY;
    CookieMessage::parse(packet.payload).ok().filter(|_| fits).map(|message| message.cookie)
}

/// The number of the domain of this name, for granting to it. It is made when there is none; its owner may be another user.
///
/// # Errors
/// Errors of the control plane.
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

/// Refuses a rack over rings that are not there: opening a link would make them, and no role would remove them.
///
/// # Errors
/// [`Error::Api`] when the rack is over rings, and does not run.
pub fn require_running(config: &RackConfig) -> Result<(), Error> {
    if config.transport != Transport::Shm || config.rings().exists() {
        return Ok(());
    }
    let (name, rings) = (&config.name, config.rings());
    Err(Error::Api { message: format!("rack {name:?} does not run: {} is not there", rings.display()) })
}

/// One that holds frames back wakes for them in time.
fn link_waiting(config: &RackConfig) -> farmem_link::Waiting {
    match config.waiting {
        Waiting::Block if config.link.is_none() => farmem_link::Waiting::Block,
        Waiting::Block => farmem_link::Waiting::Precise,
        Waiting::Spin => farmem_link::Waiting::Spin,
    }
}
