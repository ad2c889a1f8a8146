//! A rack of one's own for a demonstration or a benchmark: free addresses, a state directory that goes when it is done.

use crate::Failure;
use farmem::{Placement, RackConfig, Transport, Waiting};
use std::fs;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};

/// What a temporary rack is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Memory nodes.
    pub(crate) nodes: u8,
    /// Bytes of memory of each.
    pub(crate) memory: u64,
    /// How frames travel.
    pub(crate) transport: Transport,
    /// How roles wait.
    pub(crate) waiting: Waiting,
    /// Where they run.
    pub(crate) placement: Placement,
}

/// A temporary directory with a `rack.toml` in it.
pub(crate) struct RackFile {
    directory: PathBuf,
    config: RackConfig,
}

impl RackFile {
    /// Finds free addresses and writes the file.
    pub(crate) fn new(what: &str, shape: Shape) -> Result<Self, Failure> {
        let id = std::process::id();
        let name = format!("{what}-{id}");
        let directory = std::env::temp_dir().join(format!("farmem-{name}"));
        fs::create_dir_all(&directory).map_err(|e| {
            Failure::environment(
                format!("cannot make {}: {e}", directory.display()),
                "set TMPDIR to a writable directory",
            )
        })?;
        let text = describe(&name, shape, free_subnet()?, free_port()?);
        let file = directory.join("rack.toml");
        fs::write(&file, &text).map_err(|e| {
            Failure::environment(format!("cannot write {}: {e}", file.display()), "is the disk full?")
        })?;
        let config = RackConfig::parse(&text, &file)?;
        Ok(Self { directory, config })
    }

    /// The checked description.
    pub(crate) const fn config(&self) -> &RackConfig {
        &self.config
    }
}

impl Drop for RackFile {
    fn drop(&mut self) {
        remove(&self.directory);
    }
}

fn remove(directory: &Path) {
    if let Err(error) = fs::remove_dir_all(directory) {
        eprintln!("farmem: cannot remove {}: {error}", directory.display());
    }
}

fn describe(name: &str, shape: Shape, [_, b, c, _]: [u8; 4], http: u16) -> String {
    let Shape { nodes, memory, transport, waiting, placement } = shape;
    let transport = transport.name();
    let waiting = match waiting {
        Waiting::Block => "block",
        Waiting::Spin => "spin",
    };
    let placement = match placement {
        Placement::SameCpu => "same-cpu",
        Placement::Free => "free",
    };
    let mut text = format!(
        "name = \"{name}\"\ntransport = \"{transport}\"\nwaiting = \"{waiting}\"\nplacement = \"{placement}\"\n\
         [control]\naddress = \"127.{b}.{c}.1\"\nhttp = \"127.0.0.1:{http}\"\nstate = \"state\"\n\
         [switch]\naddress = \"127.{b}.{c}.2\"\n\
         [hosts]\nfirst = \"127.{b}.{c}.200\"\ncount = 50\n"
    );
    for n in 1..=nodes {
        let last = 10 + n;
        text += &format!(
            "[[node]]\nname = \"node{n}\"\naddress = \"127.{b}.{c}.{last}\"\nmemory = \"{memory} B\"\n"
        );
    }
    text
}

/// A loopback subnet 127.b.c.0/24 in which nobody holds the first role's address.
fn free_subnet() -> Result<[u8; 4], Failure> {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    for attempt in 0..=u8::MAX {
        let subnet = [127, 72 + (high % 32), low.wrapping_add(attempt), 0];
        let first = Ipv4Addr::new(subnet[0], subnet[1], subnet[2], 1);
        if UdpSocket::bind((first, farmem::UDP_PORT)).is_ok() {
            return Ok(subnet);
        }
    }
    let remedy = "stop the other racks, or see `farmem doctor`: is UDP port 4791 usable on 127.0.0.0/8?";
    Err(Failure::environment("no free loopback addresses for a rack", remedy))
}

fn free_port() -> Result<u16, Failure> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|l| l.local_addr()).map(|a| a.port()).map_err(|e| {
        Failure::environment(format!("no free TCP port on 127.0.0.1: {e}"), "close something that listens")
    })
}
