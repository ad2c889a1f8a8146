//! The socket between a process and its DPU, which carries messages, each optionally with a file descriptor.

use crate::{OpenError, private_directory, private_file};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, shutdown, socket_with,
};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};
use std::fs::{self, File, TryLockError};
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum length of a message in bytes.
pub const MESSAGE_MAX: usize = 1 << 16;
/// Maximum number of processes that wait for acceptance.
const BACKLOG: i32 = 128;
/// Maximum duration of a send or receive; both ends are on one machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum length of a process number with the end of its line.
const PID_LEN_MAX: u64 = 11;

/// The listening socket of a DPU.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// True if the DPU created the directory.
    is_new: bool,
    /// The locked file beside the socket. Two DPUs that start together must not take each other's socket and journal.
    _lock: File,
}

/// The process at the other end of a socket.
#[derive(Debug)]
pub struct Other {
    process: OwnedFd,
}

impl Other {
    /// Kills the process, and waits at most `most` until it has ended. From then on it writes nothing.
    ///
    /// # Errors
    /// The system's error if it does not permit the kill, or `TimedOut`.
    pub fn end(&self, most: farmem_machine::Duration) -> io::Result<()> {
        match pidfd_send_signal(&self.process, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(e) => return Err(e.into()),
        }
        match ready(&[self.process.as_fd()], Duration::from_nanos(most.as_nanos()))?[..] {
            [true] => Ok(()),
            _ => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// One end of the socket between a process and its DPU.
#[derive(Debug)]
pub struct DpuSocket {
    socket: OwnedFd,
}

impl Listener {
    /// Listens at `path`, in a directory that only this user can access. Creates the directory if necessary.
    ///
    /// # Errors
    /// [`OpenError::InUse`] with the process number if another DPU has this socket; [`OpenError::Setting`] if the path is
    /// invalid for a socket; the error of the check of the directory or the lock file.
    pub fn bind(path: &Path) -> Result<Self, OpenError> {
        let doing = || format!("listen at {}", path.display());
        let system = |e: Errno| OpenError::System { doing: doing(), source: e.into() };
        let address = address(path)?;
        let directory = path.parent().unwrap_or_else(|| Path::new("."));
        let is_new = !directory.exists();
        private_directory(directory)?;
        let lock = lock(path)?;
        // A DPU of an older build has no lock.
        if DpuSocket::connect(path).is_ok() {
            return Err(OpenError::InUse { address: path.display().to_string() });
        }
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(OpenError::System { doing: doing(), source: e });
            }
            _ => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(system)?;
        bind(&socket, &address).map_err(system)?;
        listen(&socket, BACKLOG).map_err(system)?;
        Ok(Self { socket, path: path.into(), is_new, _lock: lock })
    }

    /// Accepts a waiting process of this user, if there is one. Connections of other users are closed.
    ///
    /// # Errors
    /// The system's error if it has no free file descriptors or memory.
    pub fn accept(&self) -> io::Result<Option<DpuSocket>> {
        loop {
            let socket = match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return Ok(None),
                // The connection is already closed.
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(e) => return Err(e.into()),
            };
            if socket_peercred(&socket).is_ok_and(|peer| peer.uid == rustix::process::geteuid()) {
                return Ok(Some(DpuSocket::of(socket)?));
            }
        }
    }
}

fn lock_path(socket: &Path) -> PathBuf {
    PathBuf::from(format!("{}.lock", socket.display()))
}

/// Locks the file beside a DPU's socket for as long as it is open, and writes this process's number into it.
fn lock(socket: &Path) -> Result<File, OpenError> {
    let path = lock_path(socket);
    let failed = |source| OpenError::System { doing: format!("lock {}", path.display()), source };
    loop {
        let mut file = private_file(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                // The holder writes its number after it has locked the file.
                let mut holder = String::new();
                let read = (&file).take(PID_LEN_MAX).read_to_string(&mut holder);
                let known = read.is_ok() && !holder.is_empty();
                let holder = if known { format!("process {}", holder.trim()) } else { "another".into() };
                return Err(OpenError::InUse { address: format!("{} ({holder})", socket.display()) });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // A DPU that ended between the two calls has removed the file.
        let is_named =
            fs::metadata(&path).is_ok_and(|named| file.metadata().is_ok_and(|own| own.ino() == named.ino()));
        if is_named {
            file.set_len(0).map_err(failed)?;
            writeln!(file, "{}", std::process::id()).map_err(failed)?;
            return Ok(file);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // An absent file is no fault.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(lock_path(&self.path));
        if let Some(directory) = self.path.parent().filter(|_| self.is_new) {
            // A directory that contains other files stays.
            let _ = fs::remove_dir(directory);
        }
    }
}

impl AsFd for DpuSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl DpuSocket {
    fn of(socket: OwnedFd) -> Result<Self, Errno> {
        for which in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, which, Some(PATIENCE))?;
        }
        Ok(Self { socket })
    }

    /// Connects to the DPU that listens at `path`.
    ///
    /// # Errors
    /// [`OpenError::System`] if no DPU listens there; [`OpenError::Setting`] if the path is invalid for a
    /// socket.
    pub fn connect(path: &Path) -> Result<Self, OpenError> {
        let address = address(path)?;
        let connected = || {
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
            connect(&socket, &address)?;
            Self::of(socket)
        };
        connected().map_err(|e: Errno| OpenError::System {
            doing: format!("reach a DPU at {}", path.display()),
            source: e.into(),
        })
    }

    /// Returns the process at the other end, for a caller that may have to kill it.
    ///
    /// # Errors
    /// An error if the process is gone or unknown, or is this process.
    pub fn other(&self) -> io::Result<Other> {
        let pid = socket_peercred(&self.socket)?.pid;
        if pid == rustix::process::getpid() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        // A kill that is permitted now stays permitted. The listening process exists as long as its socket is
        // open, so its id is not reused.
        test_kill_process(pid)?;
        if self.is_open() { Ok(Other { process }) } else { Err(io::ErrorKind::NotConnected.into()) }
    }

    /// Sets the longest time that this end waits for the other end, at least one millisecond.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_patience(&self, most: farmem_machine::Duration) -> io::Result<()> {
        let most = Duration::from_nanos(most.as_nanos()).max(Duration::from_millis(1));
        set_socket_timeout(&self.socket, Timeout::Recv, Some(most))?;
        Ok(())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// An error if the other end is gone or does not receive, or if the message is too long.
    pub fn say(&self, message: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.send(message, file, SendFlags::NOSIGNAL)
    }

    /// Sends a message as [`DpuSocket::say`] does, without waiting for buffer space.
    ///
    /// # Errors
    /// The errors of [`DpuSocket::say`], and an error if the other end has not received earlier messages.
    pub fn say_now(&self, message: &[u8]) -> io::Result<()> {
        self.send(message, None, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send(&self, message: &[u8], file: Option<BorrowedFd<'_>>, flags: SendFlags) -> io::Result<()> {
        if message.len() > MESSAGE_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let rights = SendAncillaryMessage::ScmRights(file.as_slice());
        assert!(file.is_none() || ancillary.push(rights), "there is room for one");
        sendmsg(&self.socket, &[IoSlice::new(message)], &mut ancillary, flags)?;
        Ok(())
    }

    /// Shuts down sending: the other end notices that, and this end still notices whether the other end is
    /// present.
    pub fn fall_silent(&self) {
        // If the other end is gone, there is nothing to shut down.
        let _gone = shutdown(&self.socket, Shutdown::Write);
    }

    /// Receives the next message, with its file if there is one. Returns `None` if the other end is gone.
    /// Waits for some seconds.
    ///
    /// # Errors
    /// An error if no message arrives in that time, or if the message was truncated.
    pub fn hear(&self) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
        let mut bytes = vec![0; MESSAGE_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let heard = rustix::io::retry_on_intr(|| {
            recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        });
        let heard = match heard {
            Ok(heard) => heard,
            Err(Errno::CONNRESET) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let file = ancillary.drain().find_map(|part| match part {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        if heard.bytes == 0 {
            return Ok(None);
        }
        bytes.truncate(heard.bytes);
        Ok(Some((bytes, file)))
    }

    /// Returns true if a message is available or the other end is gone: [`DpuSocket::hear`] does not wait
    /// then.
    #[must_use]
    pub fn is_speaking(&self) -> bool {
        ready(&[self.as_fd()], Duration::ZERO).is_ok_and(|ready| ready[0])
    }

    /// Returns true while the other end is present.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let mut one = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        rustix::io::retry_on_intr(|| poll(&mut one, Some(&now))).is_ok() && !one[0].revents().intersects(gone)
    }
}

/// A wake-up for a wait in [`ready`], from any thread.
#[derive(Debug)]
pub struct Bell {
    event: OwnedFd,
}

impl Bell {
    /// Creates a wake-up that is not set.
    ///
    /// # Errors
    /// The system's error if it has no free file descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self { event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Sets the wake-up: it is readable until [`Bell::hear`].
    pub fn ring(&self) {
        // A write adds to the counter. If the counter is full, the wake-up is already set.
        let _full = rustix::io::write(&self.event, &1_u64.to_le_bytes());
    }

    /// Clears the wake-up; a later [`Bell::ring`] sets it again.
    pub fn hear(&self) {
        // A wake-up that is not set has nothing to read.
        let _quiet = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Waits until some of these descriptors are readable, at most for `most`. Returns for each whether it is
/// readable.
///
/// # Errors
/// The system's error.
pub fn ready(all: &[BorrowedFd<'_>], most: Duration) -> io::Result<Vec<bool>> {
    let mut polled: Vec<PollFd<'_>> =
        all.iter().map(|one| PollFd::new(one, PollFlags::IN | PollFlags::RDHUP)).collect();
    let most = Timespec::try_from(most).map_err(|_| io::ErrorKind::InvalidInput)?;
    match poll(&mut polled, Some(&most)) {
        Ok(_) | Err(Errno::INTR) => Ok(polled.iter().map(|one| !one.revents().is_empty()).collect()),
        Err(e) => Err(e.into()),
    }
}

fn address(path: &Path) -> Result<SocketAddrUnix, OpenError> {
    SocketAddrUnix::new(path).map_err(|_| OpenError::Setting {
        setting: "the DPU's socket",
        value: path.display().to_string(),
        remedy: "a socket's path has at most 107 bytes".into(),
    })
}
