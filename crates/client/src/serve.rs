//! The roles of a rack as processes or threads: open the link, join, serve until a stop.
//!
//! `farmem up` starts one process per role; a benchmark may start threads. Each function returns when its
//! [`Stop`] is set, or with the error that ended the service.

pub use farmem_link::{Stop, pin_to_cpu};
pub use farmem_memnode::{Compile, Logic};

use crate::answers::gid;
use crate::config::{Execution, IndexConfig, NodeConfig, Prefetch, RackConfig, Transport};
use crate::error::Error;
use crate::host_settings::{home_of, node_settings};
use crate::link::{BUILD, WithLink, api_client, join, operator_client, place, with_link};
use farmem_api::{ApiServer, ApiTokens, ControlStore, run_control};
use farmem_control::api::{
    Endpoint, IndexJoined, JoinIndex, JoinNode, JoinSwitch, ListObjects, NodeJoined, ObjectListed, Overview,
    RackOverview, SwitchJoined,
};
use farmem_control::keys::Secret;
use farmem_control::{Bounds, Config as ControlSettings, Control, Note as ControlNote};
use farmem_link::events::{EventSource, Level};
use farmem_link::{
    Calibrated, Clock, Compiler, Driver, Link, MappedStore, NodeFiles, OpenError, calibrate, events, os_seed,
    private_file, private_state, run, run_node,
};
use farmem_machine::{Duration, Port, Rng};
use farmem_memnode::{BURST, Budget, Config as NodeSettings, MemNode, Out as NodeOut, WORKSPACES};
use farmem_switch::{Budgets, Switch};
use farmem_transport::PeerChange;
use std::fs;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::net::IpAddr;
use std::num::NonZero;
use std::path::Path;

/// The stop flag of a service, and a callback for its start. A [`Stop`] alone suffices.
pub struct Serving<'a> {
    stop: &'a Stop,
    begun: Option<&'a mut dyn FnMut()>,
}

impl<'a> Serving<'a> {
    /// Creates the options of a service that ends when `stop` is set. `begun` is called once the role has its
    /// address, has joined, and answers.
    pub fn new(stop: &'a Stop, begun: &'a mut dyn FnMut()) -> Self {
        Self { stop, begun: Some(begun) }
    }

    /// Returns the flag that ends the service.
    #[must_use]
    pub const fn stop(&self) -> &'a Stop {
        self.stop
    }

    /// Reports that the service has begun; only the first call has an effect.
    pub fn begun(&mut self) {
        if let Some(begun) = self.begun.take() {
            begun();
        }
    }
}

impl<'a> From<&'a Stop> for Serving<'a> {
    fn from(stop: &'a Stop) -> Self {
        Self { stop, begun: None }
    }
}

impl core::fmt::Debug for Serving<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Serving").field("stop", self.stop).finish_non_exhaustive()
    }
}

/// Runs the control plane: its HTTP API, its log in the state directory, and its updates over the rack's
/// link.
///
/// # Errors
/// [`Error`] if the address, port or state is in use, the log is damaged, or link or disk fail.
pub fn control<'a>(config: &'a RackConfig, serving: impl Into<Serving<'a>>) -> Result<(), Error> {
    struct Serve<'a>(&'a RackConfig, Serving<'a>);
    impl WithLink for Serve<'_> {
        type Output = ();
        fn with<L: Link + 'static>(self, link: L) -> Result<(), Error> {
            let Self(config, mut serving) = self;
            let state = &config.control.state;
            let (store, records) = ControlStore::open(state)?;
            let [rack, operator, secret] =
                [config.token_file(), config.operator_file(), config.secret_file()]
                    .map(|file| keep_token(&file));
            let tokens = ApiTokens { rack: rack?.into(), operator: Some(operator?.into()) };
            let secret = Some(Secret::new(secret?.as_bytes()));
            let seed =
                || os_seed().map_err(|source| Error::System { what: "no random numbers".into(), source });
            // Rings belong to one machine, so their addresses need no proof.
            let proves = config.transport == Transport::Udp;
            let address_secret = if proves { Some(Secret::new(&seed()?)) } else { None };
            let usual = ControlSettings::new(farmem_link::gid_of(config.control.address));
            let (lease, epoch) = (config.control.lease, config.control.epoch);
            let host_lease = Some(config.control.host_lease);
            let domain_memory_max = config.control.domain_memory.unwrap_or(u64::MAX);
            let settings = ControlSettings {
                pmtu: config.pmtu,
                lease,
                host_lease,
                epoch,
                secret,
                address_secret,
                build: Some(BUILD.into()),
                bounds: Bounds { domain_memory_max, ..Bounds::default() },
                probe: Some(PROBE),
                node_names: config.nodes.iter().map(|node| node.name.clone()).collect(),
                ..usual
            };
            let role = Control::restore(settings, Rng::from_seed(seed()?), records).map_err(|e| Error::Config {
                file: state.clone(),
                message: format!("{e}; the log is damaged: restore the directory from a backup, without its file `secret` (then all keys are issued again), or remove it for a new rack"),
            })?;
            let role = role.with_log(Box::new(store));
            let waker = link
                .waker()
                .map_err(|source| Error::System { what: "no waker for the link".into(), source })?;
            let (server, calls) = ApiServer::start(config.api_doors()?, tokens, waker)?;
            let mut driver = Driver::new(role, link, Clock::start());
            let log = state.display().to_string();
            let mut told = events::of_notes("control plane");
            driver.watch_notes(move |role, note| {
                say_of_log(note, &log);
                told(role, note);
            });
            events::tell(Level::INFO, format_args!("control plane: it serves"));
            serving.begun();
            let lost = |source| Error::System { what: "the link of the control plane failed".into(), source };
            let result = run_control(&mut driver, &calls, serving.stop).map_err(lost);
            drop(server);
            result
        }
    }
    if let Some((cost, remedy)) = config.cards_cost() {
        // A closed stderr is no fault.
        drop(writeln!(io::stderr(), "farmem: cards are peers of this rack: {cost}; {remedy}"));
    }
    if let Some((cost, remedy)) = config.plain_cost() {
        // A closed stderr is no fault.
        drop(writeln!(io::stderr(), "farmem: WARNING: {cost}; {remedy}"));
    }
    with_link(config, config.control.address, Serve(config, serving.into()))
}

/// Silence after which the control plane sends a probe to a role.
const PROBE: Duration = Duration::from_secs(2);

/// Prints that the control plane refuses changes, and that it accepts them again. The API reports this only
/// to a client that asks.
fn say_of_log(note: ControlNote, state: &str) {
    let line = match note {
        ControlNote::Stalled => format!(
            "the control plane cannot keep its log in {state}: it refuses changes and serves everything else; is the disk full?"
        ),
        ControlNote::KeepsAgain => {
            format!("the control plane keeps its log in {state} again: it takes changes")
        }
        _ => return,
    };
    // A closed stderr is no fault.
    drop(writeln!(io::stderr(), "farmem: {line}"));
}

/// Creates the rack's state directory, for this user alone.
///
/// # Errors
/// [`Error::Config`] if the directory cannot be created, [`Error::Open`] if other users can access its
/// content.
pub fn make_state(config: &RackConfig) -> Result<(), Error> {
    let state = &config.control.state;
    match private_state(state) {
        Err(OpenError::System { source, .. }) => {
            let shown = state.display();
            let message =
                format!("cannot make the state directory {shown}: {source}; choose another in rack.toml");
            Err(Error::Config { file: config.file.clone(), message })
        }
        made => Ok(made.map(drop)?),
    }
}

/// Returns the token or secret in `file`, or creates one that only this user can read.
fn keep_token(file: &Path) -> Result<String, Error> {
    let cannot =
        |doing: &str, source| Error::System { what: format!("cannot {doing} {}", file.display()), source };
    let (mut opened, mut kept) = (private_file(file)?, String::new());
    opened.read_to_string(&mut kept).map_err(|e| cannot("read", e))?;
    let kept = kept.trim();
    if kept.len() >= TOKEN_MIN {
        return Ok(kept.to_owned());
    }
    if !kept.is_empty() {
        let message = format!(
            "has {} characters, but fewer than {TOKEN_MIN} can be guessed: restore it from a backup, or remove it for a new one",
            kept.len()
        );
        return Err(Error::Config { file: file.to_owned(), message });
    }
    opened.rewind().map_err(|e| cannot("write", e))?;
    let seed = os_seed().map_err(|e| cannot("generate a token for", e))?;
    let token: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
    // The token must be on disk before its first use, so that it is the same after a power failure.
    let written = opened
        .set_len(0)
        .and_then(|()| opened.write_all(token.as_bytes()))
        .and_then(|()| opened.sync_all())
        .and_then(|()| File::open(file.parent().unwrap_or(file))?.sync_all());
    written.map_err(|e| cannot("write", e))?;
    Ok(token)
}

/// Minimum length of a token or secret that the operator wrote.
const TOKEN_MIN: usize = 32;

/// Removes the directory of a rack's shared-memory rings if no process holds an endpoint in it.
///
/// # Errors
/// `ResourceBusy` if a process holds one; otherwise the system's error. If the directory contains other
/// files, these files and the directory stay.
pub fn remove_unused_rings(rings: &Path) -> io::Result<()> {
    farmem_link::shm::remove_dir(rings)
}

/// Removes the shared-memory rings of a rack whose roles have ended, even if clients still hold endpoints. A
/// rack over UDP has no rings.
///
/// # Errors
/// `ResourceBusy` if a role of another rack with this name uses the rings; otherwise the system's error.
pub fn remove_rings(config: &RackConfig) -> io::Result<()> {
    let rings = config.rings();
    if config.transport == Transport::Udp || !rings.exists() {
        return Ok(());
    }
    let of_client = |name: &String| {
        let is = |&host: &IpAddr| format!("{:?}", farmem_link::gid_of(host)) == *name;
        config.hosts.iter().any(is)
    };
    match farmem_link::shm::live_endpoints(&rings).iter().find(|name| !of_client(name)) {
        None => fs::remove_dir_all(&rings),
        Some(role) => {
            let text = format!("{} is in use by {role}", rings.display());
            Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
        }
    }
}

/// Returns the control plane's view of a running rack.
///
/// # Errors
/// [`Error`] if the control plane does not answer.
pub fn overview(config: &RackConfig) -> Result<RackOverview, Error> {
    Ok(api_client(config)?.call(Overview {})?)
}

/// Returns the named objects of all domains of a running rack.
///
/// # Errors
/// [`Error`] if the control plane does not answer.
pub fn objects(config: &RackConfig) -> Result<Vec<ObjectListed>, Error> {
    Ok(operator_client(config)?.call(ListObjects { domain: None })?.objects)
}

/// Runs the switch.
///
/// # Errors
/// [`Error`] if the address is in use, the control plane refuses the join, or the link fails.
pub fn switch<'a>(config: &'a RackConfig, serving: impl Into<Serving<'a>>) -> Result<(), Error> {
    struct Serve<'a>(&'a RackConfig, Serving<'a>);
    impl WithLink for Serve<'_> {
        type Output = ();
        fn with<L: Link + 'static>(self, mut link: L) -> Result<(), Error> {
            let Self(config, serving) = self;
            let request = JoinSwitch { gid: config.switch.address.to_string() };
            let joined = join(config, &mut operator_client(config)?, &mut link, request)?;
            let SwitchJoined { home, control, .. } = joined;
            let budgets = Budgets { directory_slots: config.switch.slots, ..Budgets::default() };
            let role = Switch::new(home_of(&home, &control), budgets).in_life(draw_life()?);
            serve("the switch", role, link, &control, serving, drive_switch)
        }
    }
    place(config)?;
    with_link(config, config.switch.address, Serve(config, serving.into()))
}

/// Draws the number of this life of the switch at random, so that it differs from all earlier ones without
/// knowledge of them (PROTOCOL 6.27).
fn draw_life() -> Result<NonZero<u32>, Error> {
    let seed = os_seed().map_err(|source| Error::System { what: "no random numbers".into(), source })?;
    Ok(NonZero::new(Rng::from_seed(seed).next_u32()).unwrap_or(NonZero::<u32>::MIN))
}

/// Runs an index switch: the same role as the rack's switch, with other tables (PROTOCOL 16.1).
///
/// # Errors
/// The errors of [`switch`].
pub fn index_switch<'a>(
    config: &'a RackConfig,
    switch: &'a IndexConfig,
    serving: impl Into<Serving<'a>>,
) -> Result<(), Error> {
    struct Serve<'a>(&'a RackConfig, &'a IndexConfig, Serving<'a>);
    impl WithLink for Serve<'_> {
        type Output = ();
        fn with<L: Link + 'static>(self, mut link: L) -> Result<(), Error> {
            let Self(config, IndexConfig { name, address, tier, below }, serving) = self;
            let request =
                JoinIndex { name: name.clone(), gid: address.to_string(), tier: *tier, below: below.clone() };
            let joined = join(config, &mut operator_client(config)?, &mut link, request)?;
            let IndexJoined { home, control, .. } = joined;
            let role = Switch::new(home_of(&home, &control), Budgets::default());
            serve(&format!("index switch {name}"), role, link, &control, serving, drive_switch)
        }
    }
    place(config)?;
    with_link(config, switch.address, Serve(config, switch, serving.into()))
}

/// Runs memory node `node`.
///
/// # Errors
/// [`Error`] if the address is in use, memory is insufficient, the control plane refuses the join, or the
/// link fails.
pub fn node<'a>(
    config: &'a RackConfig,
    node: &'a NodeConfig,
    serving: impl Into<Serving<'a>>,
) -> Result<(), Error> {
    let compile = match node.compile {
        Execution::Jit => Compiler::jit(),
        Execution::Interpreter => Compiler::interpreter(),
    };
    node_running(config, node, Runner { compile, workspaces: WORKSPACES }, serving)
}

/// The way in which a memory node executes traversals.
#[derive(Clone, Copy, Debug)]
pub struct Runner<C> {
    /// The compiler of programs.
    pub compile: C,
    /// Number of traversals whose hops are interleaved, at least one.
    pub workspaces: usize,
}

/// Runs a memory node as [`node`] does, with another runner, for comparisons.
///
/// # Errors
/// The errors of [`node`].
pub fn node_running<'a, C: Compile + 'static>(
    config: &'a RackConfig,
    node: &'a NodeConfig,
    runner: Runner<C>,
    serving: impl Into<Serving<'a>>,
) -> Result<(), Error> {
    struct Serve<'a, C>(&'a RackConfig, &'a NodeConfig, Runner<C>, Serving<'a>);
    impl<C: Compile + 'static> WithLink for Serve<'_, C> {
        type Output = ();
        fn with<L: Link + 'static>(self, mut link: L) -> Result<(), Error> {
            let Self(config, node, mut runner, serving) = self;
            let what = || format!("no {} bytes of memory for node {}", node.memory, node.name);
            let store =
                MappedStore::new(node.memory).map_err(|source| Error::System { what: what(), source })?;
            let (store, burst) = match node.prefetch {
                Prefetch::Bursts => (store, BURST),
                Prefetch::OneByOne => (store, 1),
                Prefetch::Auto => {
                    let (store, calibrated) = calibrate(store, &mut runner.compile);
                    say_unusual(&node.name, calibrated);
                    (store, calibrated.burst)
                }
            };
            let files = node.files.as_deref().map(|directory| {
                let waker = link.waker();
                let waker =
                    waker.map_err(|source| Error::System { what: "no waker for the link".into(), source })?;
                Ok::<_, Error>(NodeFiles::open(directory, waker)?)
            });
            let files = files.transpose()?;
            let request = JoinNode::new(node.name.clone(), node.address.to_string(), node.memory);
            let joined = join(config, &mut operator_client(config)?, &mut link, request)?;
            let NodeJoined { home, control, .. } = joined;
            let usual = node_settings(&home, &control, config.pmtu);
            let budget = Budget { workspaces: runner.workspaces, burst, ..usual.budget };
            let role = MemNode::compiling(NodeSettings { budget, ..usual }, store, runner.compile);
            let name = format!("memory node {}", node.name);
            match files {
                Some(files) => serve(&name, role.with_files(), link, &control, serving, |driver, stop| {
                    run_node(driver, &files, stop)
                }),
                None => serve(&name, role, link, &control, serving, |driver, stop| {
                    run(driver, stop, &mut |out: NodeOut, link: &mut L| match out {
                        NodeOut::Peer(change) => set_peer(change, link),
                        NodeOut::File(ask) => unreachable!("a node without files asks for {ask:?}"),
                    })
                }),
            }
        }
    }
    place(config)?;
    with_link(config, node.address, Serve(config, node, runner, serving.into()))
}

/// Prints that a node prefetches lines in another way than most nodes do.
fn say_unusual(node: &str, calibrated: Calibrated) {
    let Calibrated { burst, one_by_one } = calibrated;
    if let Some(times) = one_by_one.filter(|_| burst == 1) {
        let why = format!("on this processor this is {times:.2} times as fast as bursts");
        // A closed stderr is no fault.
        drop(writeln!(io::stderr(), "farmem: memory node {node} prefetches lines one by one: {why}"));
    }
}

/// Sets the address of a peer. A peer that this link cannot reach stays without an address: frames to it
/// count as lost, and its requests time out.
fn set_peer<L: Link>(PeerChange { port, gid }: PeerChange, link: &mut L) {
    drop(link.set_peer(port, gid));
}

fn drive_switch<L: Link>(driver: &mut Driver<Switch, L>, stop: &Stop) -> io::Result<()> {
    run(driver, stop, &mut |change: PeerChange, link: &mut L| set_peer(change, link))
}

fn serve<M, L: Link>(
    name: &str,
    role: M,
    mut link: L,
    control: &Endpoint,
    mut serving: Serving<'_>,
    drive: impl FnOnce(&mut Driver<M, L>, &Stop) -> io::Result<()>,
) -> Result<(), Error>
where
    M: EventSource + 'static,
{
    let lost = |source| Error::System { what: "the link of this role failed".into(), source };
    link.set_peer(Port(control.port), Some(gid(&control.gid)?)).map_err(lost)?;
    let mut driver = Driver::new(role, link, Clock::start());
    driver.watch_notes(events::of_notes(name));
    events::tell(Level::INFO, format_args!("{name}: it has joined, and serves"));
    serving.begun();
    drive(&mut driver, serving.stop).map_err(lost)?;
    events::tell(Level::INFO, format_args!("{name}: it ends"));
    let halted = driver.machine().halted();
    halted.map_or(Ok(()), |halt| Err(Error::Halted { role: name.to_owned(), halt }))
}
