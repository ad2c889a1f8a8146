//! Temporary rack of a demo or a benchmark: free addresses, and a state directory that is removed at the end
//! or at an interrupt.

use crate::outcome::Failure;
use crate::output;
use crate::sweep::sweep;
use farmem::{LinkProfile, Placement, Prefetch, RackConfig, Transport, Waiting};
use std::fs::{self, DirBuilder};
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

/// Properties of a temporary rack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Number of memory nodes.
    pub(crate) nodes: u8,
    /// Memory of each memory node, in bytes.
    pub(crate) memory: u64,
    /// Transport of frames.
    pub(crate) transport: Transport,
    /// Waiting mode of the roles.
    pub(crate) waiting: Waiting,
    /// Placement of the roles on CPUs.
    pub(crate) placement: Placement,
    /// Prefetch mode. Only a rack that runs traversals needs to measure it.
    pub(crate) prefetch: Prefetch,
    /// Network that the links emulate.
    pub(crate) link: LinkProfile,
}

/// Temporary directory with a `rack.toml`.
pub(crate) struct RackFile {
    directory: PathBuf,
    config: RackConfig,
}

impl RackFile {
    /// Finds free addresses and writes the file. Removes the remains of killed commands of this kind first.
    pub(crate) fn new(what: &str, shape: Shape) -> Result<Self, Failure> {
        Self::with(what, shape, "")
    }

    /// Creates a file as [`RackFile::new`] does, with the lines of `more` at its end.
    pub(crate) fn with(what: &str, shape: Shape, more: &str) -> Result<Self, Failure> {
        sweep(what);
        let subnet = free_subnet()?;
        let (name, directory) = own_directory(what)?;
        let text = describe(&name, shape, subnet) + more;
        let file = directory.join("rack.toml");
        let config = RackConfig::parse(&text, &file)?;
        go_when_interrupted([directory.clone(), config.rings()]);
        let rack = Self { directory, config };
        fs::write(&file, &text).map_err(|e| {
            Failure::environment(format!("cannot write {}: {e}", file.display()), "is the disk full?")
        })?;
        Ok(rack)
    }

    /// Returns the checked description of the rack.
    pub(crate) const fn config(&self) -> &RackConfig {
        &self.config
    }
}

impl Drop for RackFile {
    fn drop(&mut self) {
        remove(&self.directory);
        temporary().retain(|path| *path != self.directory && *path != self.config.rings());
    }
}

fn remove(directory: &Path) {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            output::note(&format!("farmem: cannot remove {}: {error}", directory.display()));
        }
        _ => {}
    }
}

/// Temporary directories to remove at an interrupt.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn temporary() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Exit code of an interrupted command, as in shells.
const INTERRUPTED: i32 = 130;

/// Registers the directories for removal at Ctrl-C. The roles need no signal, because they end when the pipes
/// to this process close.
fn go_when_interrupted(directories: [PathBuf; 2]) {
    static HANDLER: Once = Once::new();
    temporary().extend(directories);
    HANDLER.call_once(|| {
        let set = farmem_workload::on_interrupt(|| {
            temporary().drain(..).for_each(|directory| remove(&directory));
            #[expect(clippy::exit, reason = "the main thread is in the middle of something")]
            std::process::exit(INTERRUPTED);
        });
        if let Err(error) = set {
            output::note(&format!(
                "farmem: Ctrl-C will leave files in {}: {error}",
                std::env::temp_dir().display()
            ));
        }
    });
}

/// Creates a new directory for this user only. Other users cannot put a rack's state there, or read its
/// token.
fn own_directory(what: &str) -> Result<(String, PathBuf), Failure> {
    let id = std::process::id();
    let mut number = 0;
    loop {
        // A killed process with the same id may have left its directory.
        let name = if number == 0 { format!("{what}-{id}") } else { format!("{what}-{id}-{number}") };
        let directory = std::env::temp_dir().join(format!("farmem-{name}"));
        match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => return Ok((name, directory)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && number < LEFT_BEHIND_MAX => number += 1,
            Err(e) => {
                let message = format!("cannot make {}: {e}", directory.display());
                return Err(Failure::environment(message, "set TMPDIR to a writable directory"));
            }
        }
    }
}

/// Maximum number of leftover directories of one name.
const LEFT_BEHIND_MAX: u32 = 100;

fn describe(name: &str, shape: Shape, [_, b, c, _]: [u8; 4]) -> String {
    let Shape { nodes, memory, transport, waiting, placement, prefetch, link } = shape;
    let prefetch = match prefetch {
        Prefetch::Auto => "auto",
        Prefetch::Bursts => "bursts",
        Prefetch::OneByOne => "one-by-one",
    };
    let transport = transport.name();
    let waiting = match waiting {
        Waiting::Block => "block",
        Waiting::Spin => "spin",
    };
    let placement = match placement {
        Placement::SameCpu => "same-cpu",
        Placement::Free => "free",
    };
    // No role of such a rack is started again.
    let mut text = format!(
        "name = \"{name}\"\ntransport = \"{transport}\"\nwaiting = \"{waiting}\"\nplacement = \"{placement}\"\nlink = \"{link}\"\npatience = \"4s\"\n\
         [control]\naddress = \"127.{b}.{c}.1\"\nstate = \"state\"\n\
         [switch]\naddress = \"127.{b}.{c}.2\"\n\
         [hosts]\nfirst = \"127.{b}.{c}.200\"\ncount = 50\n"
    );
    for n in 1..=nodes {
        let last = 10 + n;
        text += &format!(
            "[[node]]\nname = \"node{n}\"\naddress = \"127.{b}.{c}.{last}\"\nmemory = \"{memory} B\"\nprefetch = \"{prefetch}\"\n"
        );
    }
    text
}

/// Finds a loopback subnet 127.b.c.0/24 in which the address of the first role is free.
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
