//! A rack of one's own for a demonstration or a benchmark: free addresses, a state directory that goes when it is done or
//! interrupted.

use crate::sweep::sweep;
use crate::{Failure, output};
use farmem::{LinkProfile, Placement, Prefetch, RackConfig, Transport, Waiting};
use std::fs::{self, DirBuilder};
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

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
    /// Found out where traversals run; a rack that runs none need not.
    pub(crate) prefetch: Prefetch,
    /// The network that its links stand for.
    pub(crate) link: LinkProfile,
}

/// A temporary directory with a `rack.toml` in it.
pub(crate) struct RackFile {
    directory: PathBuf,
    config: RackConfig,
}

impl RackFile {
    /// Finds free addresses and writes the file. What killed commands of this kind have left is removed first.
    pub(crate) fn new(what: &str, shape: Shape) -> Result<Self, Failure> {
        Self::with(what, shape, "")
    }

    /// As [`RackFile::new`], with more lines at the end.
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

    /// The checked description.
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

/// Directories that an interrupted command would leave behind.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn temporary() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The exit code of a command that was interrupted, as shells have it.
const INTERRUPTED: i32 = 130;

/// From now on Ctrl-C removes these directories. The roles need no word: they end with the pipes to this process.
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

/// A new directory for this user alone: no other user can put a rack's state there, or read its token.
fn own_directory(what: &str) -> Result<(String, PathBuf), Failure> {
    let id = std::process::id();
    let mut number = 0;
    loop {
        // An earlier process of this number may have been killed and left its directory.
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

/// Directories of one name that may have been left behind.
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
    let mut text = format!(
        "name = \"{name}\"\ntransport = \"{transport}\"\nwaiting = \"{waiting}\"\nplacement = \"{placement}\"\nlink = \"{link}\"\n\
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

/// A loopback subnet 127.b.c.0/24 in which the first role's address is free.
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
