//! `rack.toml`: the roles of a rack, where they are, and how they wait.
//!
//! Raw text becomes a checked [`RackConfig`] or an error with file, line and what was expected. Nothing else reads the file.

use crate::Error;
use bytesize::ByteSize;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// How frames travel between the roles. Always as written: asking for one never gives another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// RoCEv2 over UDP port 4791.
    Udp,
    /// Shared-memory rings between processes of one machine.
    Shm,
}

impl Transport {
    /// As written in `rack.toml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Shm => "shm",
        }
    }
}

/// How a role waits for frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Waiting {
    /// Sleep in the kernel.
    #[default]
    Block,
    /// Keep a CPU busy for the lowest latency.
    Spin,
}

/// Where roles and clients run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// All on the CPU named by `cpu`: handing work over on one CPU costs a third of waking another.
    #[default]
    SameCpu,
    /// Wherever the kernel puts them.
    Free,
}

/// A checked description of a rack.
#[derive(Clone, Debug)]
pub struct RackConfig {
    /// The rack's name; part of the names of its shared-memory files.
    pub name: String,
    /// How frames travel.
    pub transport: Transport,
    /// How roles and clients wait.
    pub waiting: Waiting,
    /// Where they run.
    pub placement: Placement,
    /// The CPU of [`Placement::SameCpu`].
    pub cpu: usize,
    /// The control plane.
    pub control: ControlConfig,
    /// The switch's address.
    pub switch: IpAddr,
    /// The memory nodes.
    pub nodes: Vec<NodeConfig>,
    /// Addresses that clients on this machine may take, first to last.
    pub hosts: Vec<IpAddr>,
    /// The file it was read from.
    pub file: PathBuf,
}

/// The control plane's part of `rack.toml`.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// Where its frames come from.
    pub address: IpAddr,
    /// Where its HTTP API listens.
    pub http: SocketAddr,
    /// The directory of its store and token.
    pub state: PathBuf,
}

/// A memory node's part of `rack.toml`.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// Bytes of memory it gives to the rack.
    pub memory: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRack {
    name: String,
    transport: Transport,
    #[serde(default)]
    waiting: Waiting,
    #[serde(default)]
    placement: Placement,
    #[serde(default)]
    cpu: usize,
    control: RawControl,
    switch: RawSwitch,
    node: Vec<RawNode>,
    hosts: RawHosts,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawControl {
    address: IpAddr,
    http: SocketAddr,
    state: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSwitch {
    address: IpAddr,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    name: String,
    address: IpAddr,
    memory: ByteSize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHosts {
    first: IpAddr,
    count: u32,
}

/// Most addresses a rack sets aside for clients.
const HOSTS_MAX: u32 = 4096;

/// Granularity of a node's memory, in bytes.
const MEMORY_UNIT: u64 = 4096;

impl RackConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`Error::Config`] with the line and what was expected; [`Error::System`] when it cannot be read.
    pub fn load(file: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(file)
            .map_err(|source| Error::System { what: format!("cannot read {}", file.display()), source })?;
        Self::parse(&text, file)
    }

    /// Checks a text as if it had been read from `file`.
    ///
    /// # Errors
    /// [`Error::Config`] with the line and what was expected.
    pub fn parse(text: &str, file: &Path) -> Result<Self, Error> {
        let fault = |message: String| Error::Config { file: file.to_owned(), message };
        let raw: RawRack = toml::from_str(text).map_err(|e| fault(located(text, &e)))?;
        let fault_at =
            |needle: &str, message: String| fault(format!("line {}: {message}", line_of(text, needle)));

        if !is_name(&raw.name) {
            return Err(fault_at(
                "name",
                format!("rack name {:?}: expected 1 to 64 of A-Z a-z 0-9 . _ -", raw.name),
            ));
        }
        if raw.node.is_empty() {
            return Err(fault("expected at least one [[node]]".into()));
        }
        let mut names = BTreeSet::new();
        let mut addresses = BTreeSet::from([raw.control.address]);
        let mut take = |what: &str, address: IpAddr| {
            if addresses.insert(address) {
                return Ok(());
            }
            let text_form = address.to_string();
            Err(fault_at(
                &text_form,
                format!("{what} has the address {address}, which is taken: each role needs its own"),
            ))
        };
        take("the switch", raw.switch.address)?;
        for node in &raw.node {
            if !is_name(&node.name) || !names.insert(node.name.as_str()) {
                let expected = "expected a name of its own, 1 to 64 of A-Z a-z 0-9 . _ -";
                return Err(fault_at(&node.name, format!("node name {:?}: {expected}", node.name)));
            }
            take(&format!("node {:?}", node.name), node.address)?;
            let memory = node.memory.as_u64();
            if memory == 0 || memory % MEMORY_UNIT != 0 {
                let expected = "expected a multiple of 4096 bytes, at least 4096";
                return Err(fault_at(
                    "memory",
                    format!("node {:?} has memory {memory}: {expected}", node.name),
                ));
            }
        }
        let hosts = host_addresses(&raw.hosts).map_err(|message| fault_at("[hosts]", message))?;
        if let Some(taken) = hosts.iter().find(|a| addresses.contains(a)) {
            return Err(fault_at(
                "[hosts]",
                format!("the clients' addresses include {taken}, which a role has"),
            ));
        }
        let directory = file.parent().unwrap_or_else(|| Path::new("."));
        Ok(Self {
            name: raw.name,
            transport: raw.transport,
            waiting: raw.waiting,
            placement: raw.placement,
            cpu: raw.cpu,
            control: ControlConfig {
                address: raw.control.address,
                http: raw.control.http,
                state: directory.join(raw.control.state),
            },
            switch: raw.switch.address,
            nodes: raw
                .node
                .into_iter()
                .map(|n| NodeConfig { name: n.name, address: n.address, memory: n.memory.as_u64() })
                .collect(),
            hosts,
            file: file.to_owned(),
        })
    }

    /// Where the control plane's token is kept: who can read it can use the API.
    #[must_use]
    pub fn token_file(&self) -> PathBuf {
        self.control.state.join("token")
    }

    /// The directory of the rack's shared-memory rings.
    #[must_use]
    pub fn rings(&self) -> PathBuf {
        PathBuf::from(format!("/dev/shm/farmem-{}", self.name))
    }
}

fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn host_addresses(raw: &RawHosts) -> Result<Vec<IpAddr>, String> {
    if raw.count == 0 || raw.count > HOSTS_MAX {
        return Err(format!("count is {}, expected 1 to {HOSTS_MAX}", raw.count));
    }
    (0..raw.count)
        .map(|n| match raw.first {
            IpAddr::V4(a) => u32::from(a).checked_add(n).map(|bits| IpAddr::V4(bits.into())),
            IpAddr::V6(a) => u128::from(a).checked_add(n.into()).map(|bits| IpAddr::V6(bits.into())),
        })
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| format!("{} and {} more leave the address space", raw.first, raw.count))
}

/// The TOML reader's complaint with a line number in front and its own picture of the place behind.
fn located(text: &str, error: &toml::de::Error) -> String {
    let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    format!("line {line}: {}", error.message())
}

/// The first line that holds `needle`, from 1.
fn line_of(text: &str, needle: &str) -> usize {
    text.lines().position(|line| line.contains(needle)).map_or(1, |at| at + 1)
}
