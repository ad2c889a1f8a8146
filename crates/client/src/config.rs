//! `rack.toml`: the roles of a rack, their addresses, and their way to wait.
//!
//! The parser turns the text into a checked [`RackConfig`], or into an error with file, line and expected
//! value. No other code reads the file.

mod addresses;
mod doors;
mod dpu;
mod page;
mod patience;
mod raw;
mod reach;
mod roles;
mod terms;
pub use doors::{IdentityFiles, Join};
pub use dpu::{DpuMirror, DpuSection};
pub use patience::{PATIENCE, parse_patience, set_patience};
pub use terms::{CardsConfig, DpuCaching, DpuForward, Execution, Placement, Prefetch, Transport, Waiting};

use crate::config::addresses::TakenAddresses;
use crate::config::page::{Page, folder};
use crate::config::raw::{RawIndex, RawRack};
use crate::error::Error;
use crate::host_settings::{SILENCE_MAX, machine};
use farmem_control::api::Tier;
use farmem_link::LinkProfile;
use farmem_machine::Duration;
use farmem_wire::Pmtu;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// A checked description of a rack.
#[derive(Clone, Debug)]
pub struct RackConfig {
    /// Name of the rack; part of the names of its shared-memory files.
    pub name: String,
    /// The transport of frames.
    pub transport: Transport,
    /// The way in which roles and clients wait.
    pub waiting: Waiting,
    /// Placement of roles and clients on CPUs.
    pub placement: Placement,
    /// The CPU of [`Placement::SameCpu`]; if absent, the first CPU that a process may use.
    pub cpu: Option<usize>,
    /// Path MTU of connections and datagrams. The default is the largest one if no Ethernet can be on the
    /// path (rings, or loopback addresses only). Otherwise the default fits a link of 1500 bytes.
    pub pmtu: Pmtu,
    /// The link profile of every role and client, for frames that it sends. The default is none, except for a
    /// rack with cards.
    pub link: LinkProfile,
    /// Longest time that programs, commands and roles wait for the control plane, the switch, memory nodes
    /// and networks that do not answer.
    pub patience: std::time::Duration,
    /// Settings for RoCE cards or Soft-RoCE among the peers; `None` for a rack without.
    pub cards: Option<CardsConfig>,
    /// The control plane.
    pub control: ControlConfig,
    /// The switch.
    pub switch: SwitchConfig,
    /// The memory nodes.
    pub nodes: Vec<NodeConfig>,
    /// The switches of a FatTree that hold parts of an index; empty if the rack has no FatTree.
    pub index: Vec<IndexConfig>,
    /// The DPU of each host; `None` for a rack without DPUs.
    pub dpu: Option<DpuSection>,
    /// Addresses that clients on this machine may use, from first to last.
    pub hosts: Vec<IpAddr>,
    /// The file from which the description was read.
    pub file: PathBuf,
}

/// The control plane's part of `rack.toml`.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// Source address of the control plane's frames.
    pub address: IpAddr,
    /// Address at which the API serves other machines by TLS. `None`: the API serves only this machine, by a
    /// Unix socket in the state directory.
    pub listen: Option<SocketAddr>,
    /// A loopback address at which the API serves plain HTTP; the default is none.
    pub http: Option<SocketAddr>,
    /// Directory of store, token, socket and certificates; on another machine, of the files with which it
    /// joins.
    pub state: PathBuf,
    /// The file with which this machine joins. The default applies to machines other than the control
    /// plane's: a file in the state directory.
    pub join: Option<PathBuf>,
    /// Certificates of an authority other than the rack's own.
    pub identity: Option<IdentityFiles>,
    /// The lease of a host that caches pages: the longest time between two renewals, in whole milliseconds.
    pub lease: Duration,
    /// The longest silence of a host, or of a domain without users, in whole milliseconds. After this time
    /// its resources are reclaimed. The value is at least a lease.
    pub host_lease: Duration,
    /// Maximum number of bytes that one domain may allocate; `None`: the memory of the nodes is the limit.
    pub domain_memory: Option<u64>,
    /// Interval between two rounds of bounded splitting (MIND 5), in whole milliseconds.
    pub epoch: Duration,
}

/// The switch's part of `rack.toml`.
#[derive(Clone, Copy, Debug)]
pub struct SwitchConfig {
    /// Address of the switch.
    pub address: IpAddr,
    /// Number of slots of the directory: regions of which hosts may cache pages at the same time.
    pub slots: usize,
}

/// The part of a switch of the index in `rack.toml`; PROTOCOL section 16 describes the relation of these
/// switches.
#[derive(Clone, Debug)]
pub struct IndexConfig {
    /// Name of the switch.
    pub name: String,
    /// Address of the switch.
    pub address: IpAddr,
    /// Tier of the switch in the FatTree.
    pub tier: Tier,
    /// Names of the index switches or memory nodes below this switch.
    pub below: Vec<String>,
}

/// A memory node's part of `rack.toml`.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Name of the node.
    pub name: String,
    /// Address of the node.
    pub address: IpAddr,
    /// Memory that the node contributes to the rack, in bytes.
    pub memory: u64,
    /// The way in which the node executes programs.
    pub compile: Execution,
    /// The way in which the node prefetches cache lines.
    pub prefetch: Prefetch,
    /// Directory of the files that objects may be created from (PROTOCOL 20.1); `None`: the node has no
    /// files.
    pub files: Option<PathBuf>,
}

/// Default link profile of a rack with cards. A long READ is answered at the rate of a slow card's wire, not
/// faster than the receiver accepts it (PROTOCOL 14.11).
const CARDS_LINK: &str = "rate=10Gbit/s,burst=64KiB";

/// Range of a lease. A shorter lease expires whenever a busy machine delays a host; a longer one keeps the
/// pages of a dead host for too long.
const LEASES_MS: RangeInclusive<u64> = 100..=600_000;

/// Range of an epoch. The directory is listed once per epoch; in a longer epoch, regions are split too late
/// to help.
const EPOCHS_MS: RangeInclusive<u64> = 1..=60_000;

impl RackConfig {
    /// Reads and checks a file. Paths in the result stay valid if the process changes its working directory,
    /// because a host calls its control plane until it ends (PROTOCOL 8.61).
    ///
    /// # Errors
    /// [`Error::Config`] with the line and the expected value, or with the reason why the file cannot be
    /// read.
    pub fn load(file: &Path) -> Result<Self, Error> {
        let unreadable = |e| Error::Config { file: file.to_owned(), message: format!("cannot be read: {e}") };
        let text = std::fs::read_to_string(file).map_err(unreadable)?;
        let there = std::path::absolute(file).map_err(unreadable)?;
        let rack = Self::parse_beside(&text, file, folder(&there))?;
        Ok(Self { file: there, ..rack })
    }

    /// Checks a text as if it were the content of `file`.
    ///
    /// # Errors
    /// [`Error::Config`] with the line and the expected value.
    pub fn parse(text: &str, file: &Path) -> Result<Self, Error> {
        Self::parse_beside(text, file, folder(file))
    }

    /// Parses a text whose paths are relative to `beside`.
    fn parse_beside(text: &str, file: &Path, beside: &Path) -> Result<Self, Error> {
        let page = Page { text, file, beside };
        let raw: RawRack = toml::from_str(text)
            .map_err(|e| page.fault(&e.span().unwrap_or_default(), e.message().to_owned()))?;
        page.check_name("the rack", &raw.name)?;
        if raw.node.as_ref().is_empty() {
            return Err(page.fault(&raw.node.span(), "expected at least one [[node]]".into()));
        }
        let mut taken = TakenAddresses::default();
        let lease = page.time("lease_ms", raw.control.lease_ms.as_ref(), LEASES_MS, farmem_control::LEASE)?;
        let control = ControlConfig {
            address: taken.take(&page, "the control plane", &raw.control.address)?,
            listen: raw.control.listen.as_ref().map(|raw| page.tls_listening(raw)).transpose()?,
            http: raw.control.http.as_ref().map(|raw| page.plain_listening(raw)).transpose()?,
            state: page.directory("state", &raw.control.state)?,
            join: raw.control.join.as_ref().map(|raw| page.directory("join", raw)).transpose()?,
            identity: page.identity(&raw.control)?,
            lease,
            host_lease: page.host_lease(raw.control.host_lease_ms.as_ref(), lease)?,
            domain_memory: raw
                .control
                .domain_memory
                .as_ref()
                .map(|raw| page.bytes("domain_memory", raw))
                .transpose()?,
            epoch: page.time(
                "epoch_ms",
                raw.control.epoch_ms.as_ref(),
                EPOCHS_MS,
                farmem_control::splitting::EPOCH,
            )?,
        };
        let switch = SwitchConfig {
            address: taken.take(&page, "the switch", &raw.switch.address)?,
            slots: page.slots(raw.switch.slots.as_ref())?,
        };
        let mut names = BTreeSet::new();
        let mut nodes = Vec::with_capacity(raw.node.as_ref().len());
        for node in raw.node.as_ref() {
            page.check_name("a node", &node.name)?;
            let name = node.name.as_ref();
            if !names.insert(name.clone()) {
                let message = format!("another node is called {name:?}: expected a name of its own");
                return Err(page.fault(&node.name.span(), message));
            }
            let address = taken.take(&page, &format!("node {name:?}"), &node.address)?;
            let memory = page.memory(name, &node.memory)?;
            let (compile, prefetch) = (node.compile, node.prefetch);
            let files = node.files.as_ref().map(|raw| page.directory("files", raw)).transpose()?;
            nodes.push(NodeConfig { name: name.clone(), address, memory, compile, prefetch, files });
        }
        let index = page.index(&raw.index, &mut names, &mut taken)?;
        let hosts = taken.hosts(&page, &raw.hosts)?;
        let link = match &raw.link {
            Some(link) => page.link(link)?,
            None if raw.cards.is_some() => CARDS_LINK.parse().expect("it is a profile"),
            None => LinkProfile::NONE,
        };
        let is_here = raw.transport == Transport::Shm || taken.all().chain(&hosts).all(IpAddr::is_loopback);
        let dpu = raw.dpu.as_ref().map(|dpu| page.dpu(raw.name.as_ref(), dpu, control.lease));
        let dpu = dpu.transpose()?;
        let cards = raw.cards.as_ref().map(|cards| page.cards(cards, &raw, switch.address)).transpose()?;
        let patience = match (patience::of_process(), &raw.patience) {
            (Some(patience), _) => patience,
            (None, Some(written)) => parse_patience(written.as_ref()).map_err(|expected| {
                page.fault(&written.span(), format!("patience is {:?}: {expected}", written.as_ref()))
            })?,
            (None, None) => PATIENCE,
        };
        let RawRack { name, transport, waiting, placement, cpu, pmtu, .. } = raw;
        let pmtu = match pmtu {
            Some(written) => page.pmtu(&written)?,
            None if is_here => Pmtu::B4096,
            None => Pmtu::B1024,
        };
        let (name, file) = (name.into_inner(), file.to_owned());
        let mut rack = Self {
            name,
            transport,
            waiting,
            placement,
            cpu,
            pmtu,
            link,
            patience,
            cards,
            control,
            switch,
            nodes,
            index,
            dpu,
            hosts,
            file,
        };
        if let Some(dpu) = rack.dpu.take() {
            let (credentials, patience) = (rack.credentials(), rack.silence_max());
            rack.dpu = Some(DpuSection { credentials, patience, ..dpu });
        }
        Ok(rack)
    }

    /// Returns the silence of the rack after which a host gives up: `patience`, and at least the time that
    /// consecutive packet losses may take.
    #[must_use]
    pub fn silence_max(&self) -> Duration {
        machine(self.patience).max(SILENCE_MAX)
    }

    /// Returns the checks that this rack omits because cards are among its peers, and the remedy.
    #[must_use]
    pub fn cards_cost(&self) -> Option<(&'static str, &'static str)> {
        self.cards.map(|CardsConfig { unknown_ip_id }| {
            if unknown_ip_id {
                (
                    "packets are taken from any UDP port, so any process on a peer's machine may speak for that peer; and with any IPv4 \
                     identification, so one of 65536 damaged packets passes the ICRC, and if cards send UDP \
                     checksum 0 only the Ethernet FCS of each link is left to catch it",
                    "give the rack IPv6 addresses, which have no identification, and remove unknown_ip_id from rack.toml",
                )
            } else {
                (
                    "packets are taken from any UDP port, so any process on a peer's machine may speak for that peer",
                    "remove [cards] from rack.toml when the rack has no RoCE card any more",
                )
            }
        })
    }

    /// Returns the directory of the rack's shared-memory rings.
    #[must_use]
    pub fn rings(&self) -> PathBuf {
        PathBuf::from(format!("/dev/shm/farmem-{}", self.name))
    }
}

impl Page<'_> {
    /// Checks the switches of the index. Below each switch are nodes, or index switches of a lower tier, and
    /// none of these is below another switch.
    fn index(
        &self,
        raw: &[RawIndex],
        names: &mut BTreeSet<String>,
        taken: &mut TakenAddresses,
    ) -> Result<Vec<IndexConfig>, Error> {
        let tiers: Vec<(&String, Tier)> =
            raw.iter().map(|switch| (switch.name.as_ref(), switch.tier)).collect();
        let nodes = names.clone();
        let mut below_another = BTreeSet::new();
        let mut index = Vec::with_capacity(raw.len());
        for RawIndex { name, address, tier, below } in raw {
            self.check_name("a switch of the index", name)?;
            let fault = |at: &Spanned<String>, what: &str| {
                Err(self
                    .fault(&at.span(), format!("index-switch {:?}: {:?} {what}", name.as_ref(), at.as_ref())))
            };
            if !names.insert(name.as_ref().clone()) {
                return fault(name, "is the name of another one, or of a node: expected a name of its own");
            }
            if *tier == Tier::Core && index.iter().any(|other: &IndexConfig| other.tier == Tier::Core) {
                return fault(name, "is a second core: expected one core that leads to all servers");
            }
            if below.as_ref().is_empty() {
                let message =
                    format!("index-switch {:?} has nothing below it: expected names", name.as_ref());
                return Err(self.fault(&below.span(), message));
            }
            for lower in below.as_ref() {
                let is_lower = tiers.iter().any(|(name, of)| *name == lower.as_ref() && of > tier);
                if !is_lower && !nodes.contains(lower.as_ref()) {
                    return fault(lower, "is below it: expected a node, or an index-switch of a lower tier");
                }
                if !below_another.insert(lower.as_ref().clone()) {
                    return fault(lower, "is below it: expected each name below one switch");
                }
            }
            let address = taken.take(self, &format!("index-switch {:?}", name.as_ref()), address)?;
            let below = below.as_ref().iter().map(|name| name.as_ref().clone()).collect();
            index.push(IndexConfig { name: name.as_ref().clone(), address, tier: *tier, below });
        }
        Ok(index)
    }
}
