//! Unix sockets of the API: the server's in the state directory, and the connector of the HTTP library's
//! client.
//!
//! A path in a socket's address has at most 107 bytes. For a longer path, this module opens the directory
//! first, and uses a short path through its descriptor.

use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::Error;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

/// Maximum length of a path in a socket's address, in bytes.
const PATH_MAX: usize = 107;

/// Listens at `path`, and removes the socket of an earlier server. The caller must hold the state directory,
/// so that no other server runs.
pub(super) fn listen(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    within_reach(path, |near| UnixListener::bind(near))
}

/// Connects to the server of the owner of `path`'s directory, or of root. Nothing is sent to another user's
/// server. If the server is suspended and its queue is full, the call waits at most `most`.
fn connect(path: &Path, most: Option<Duration>) -> io::Result<UnixStream> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, most)?;
    within_reach(path, |near| {
        let address = SocketAddrUnix::new(near)?;
        Ok(retry_on_intr(|| rustix::net::connect(&socket, &address))?)
    })?;
    let stream = UnixStream::from(socket);
    let owner = fs::metadata(path.parent().unwrap_or_else(|| Path::new(".")))?.uid();
    let server = socket_peercred(&stream)?.uid.as_raw();
    if server == owner || server == 0 {
        return Ok(stream);
    }
    let why = format!("user {server} serves it, but its directory belongs to user {owner}");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Calls `act` with a path that fits a socket's address.
fn within_reach<T>(path: &Path, act: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return act(path) };
    if path.as_os_str().len() <= PATH_MAX {
        return act(path);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened: OwnedFd = rustix::fs::open(directory, flags, Mode::empty())?;
    act(&Path::new(&format!("/proc/self/fd/{}", opened.as_raw_fd())).join(name))
}

/// A connector of the HTTP library's client over one Unix socket, which ignores the address of a request.
#[derive(Debug)]
pub(super) struct UnixConnector(pub(super) PathBuf);

impl Connector for UnixConnector {
    type Out = UnixTransport;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<()>,
    ) -> Result<Option<UnixTransport>, Error> {
        let buffers =
            LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        let stream =
            connect(&self.0, most(details.timeout)).map_err(|error| timed(error, details.timeout))?;
        Ok(Some(UnixTransport { stream, buffers }))
    }
}

#[derive(Debug)]
pub(super) struct UnixTransport {
    stream: UnixStream,
    buffers: LazyBuffers,
}

/// Converts the error of a wait that timed out.
fn timed(error: io::Error, timeout: NextTimeout) -> Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout(timeout.reason),
        _ => error.into(),
    }
}

fn most(timeout: NextTimeout) -> Option<Duration> {
    timeout.not_zero().map(|most| *most)
}

impl Transport for UnixTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.set_write_timeout(most(timeout))?;
        let output = &self.buffers.output()[..amount];
        self.stream.write_all(output).map_err(|e| timed(e, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.set_read_timeout(most(timeout))?;
        let input = self.buffers.input_append_buf();
        let amount = loop {
            match self.stream.read(input) {
                // A signal interrupted the read; the library's limit of the whole request continues.
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => break read.map_err(|e| timed(e, timeout))?,
            }
        };
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    /// Returns true if an idle connection is open: there is nothing to read, not even its end.
    fn is_open(&mut self) -> bool {
        let probe = |stream: &UnixStream| -> io::Result<bool> {
            stream.set_nonblocking(true)?;
            let idle = matches!((&*stream).read(&mut [0]), Err(e) if e.kind() == io::ErrorKind::WouldBlock);
            stream.set_nonblocking(false)?;
            Ok(idle)
        };
        probe(&self.stream).unwrap_or(false)
    }
}
