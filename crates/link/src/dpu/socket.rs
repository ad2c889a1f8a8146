//! The socket between a process and its DPU: a message at a time, with a file where one goes along.

use crate::{OpenError, private_directory};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, shutdown, socket_with,
};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal, test_kill_process};
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of a message, at most.
pub const MESSAGE_MAX: usize = 1 << 16;
/// Processes that may wait to come in.
const BACKLOG: i32 = 128;
/// How long a message may take: both ends are of one machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where processes come to a DPU.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// The DPU made the directory.
    is_new: bool,
}

/// The process at the other end of a socket.
#[derive(Debug)]
pub struct Other {
    process: OwnedFd,
}

impl Other {
    /// Ends it, and waits until it is no more, for `most`: from then on it writes nothing.
    ///
    /// # Errors
    /// When the system does not allow that, or it takes longer.
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

/// One end of the socket of a process and its DPU.
#[derive(Debug)]
pub struct DpuSocket {
    socket: OwnedFd,
}

impl Listener {
    /// Listens at `path`, in a directory of this user alone, which is made when it is not there.
    ///
    /// # Errors
    /// [`OpenError::InUse`] when another DPU listens there; [`OpenError::Setting`] for a path that a socket cannot have; what the directory is refused for.
    pub fn bind(path: &Path) -> Result<Self, OpenError> {
        let doing = || format!("listen at {}", path.display());
        let system = |e: Errno| OpenError::System { doing: doing(), source: e.into() };
        let address = address(path)?;
        let directory = path.parent().unwrap_or_else(|| Path::new("."));
        let is_new = !directory.exists();
        private_directory(directory)?;
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
        Ok(Self { socket, path: path.into(), is_new })
    }

    /// Lets a process in, if one waits: one of this user; others are sent away.
    ///
    /// # Errors
    /// When the system has no more descriptors, or memory.
    pub fn accept(&self) -> io::Result<Option<DpuSocket>> {
        loop {
            let socket = match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return Ok(None),
                // The connection is gone already.
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(e) => return Err(e.into()),
            };
            if socket_peercred(&socket).is_ok_and(|peer| peer.uid == rustix::process::geteuid()) {
                return Ok(Some(DpuSocket::of(socket)?));
            }
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
        // One that is gone already is as good.
        let _ = fs::remove_file(&self.path);
        if let Some(directory) = self.path.parent().filter(|_| self.is_new) {
            // One with something else in it stays.
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

    /// Comes to the DPU that listens at `path`.
    ///
    /// # Errors
    /// [`OpenError::System`] with what the system says when none does; [`OpenError::Setting`] for a path that a socket cannot have.
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

    /// The process at the other end, for one that may have to be ended.
    ///
    /// # Errors
    /// When it is gone, or the system does not say which it is, or it is this one.
    pub fn other(&self) -> io::Result<Other> {
        let pid = socket_peercred(&self.socket)?.pid;
        if pid == rustix::process::getpid() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        // Allowed now, allowed later. A process that listens is there as long as its socket is open: the number is no other's.
        test_kill_process(pid)?;
        if self.is_open() { Ok(Other { process }) } else { Err(io::ErrorKind::NotConnected.into()) }
    }

    /// How long this end waits for the other from now on, at least a millisecond.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_patience(&self, most: farmem_machine::Duration) -> io::Result<()> {
        let most = Duration::from_nanos(most.as_nanos()).max(Duration::from_millis(1));
        set_socket_timeout(&self.socket, Timeout::Recv, Some(most))?;
        Ok(())
    }

    /// Says something.
    ///
    /// # Errors
    /// When the other end is gone or does not listen, or the message is too long.
    pub fn say(&self, message: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.send(message, file, SendFlags::NOSIGNAL)
    }

    /// As [`DpuSocket::say`], without waiting for room.
    ///
    /// # Errors
    /// As [`DpuSocket::say`], and when the other end did not hear what was said before.
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

    /// Says nothing more: the other end hears that, and this end still hears whether the other is there.
    pub fn fall_silent(&self) {
        // One whose other end is gone says nothing more anyway.
        let _gone = shutdown(&self.socket, Shutdown::Write);
    }

    /// Hears what is said next, and takes the file that came along. `None` when the other end is gone. Waits for some seconds.
    ///
    /// # Errors
    /// When nothing is said in that time, or what is said was cut.
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

    /// True when the other end has said something that was not heard yet, or is gone: [`DpuSocket::hear`] does not wait then.
    #[must_use]
    pub fn is_speaking(&self) -> bool {
        ready(&[self.as_fd()], Duration::ZERO).is_ok_and(|ready| ready[0])
    }

    /// True while the other end is there.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let mut one = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        rustix::io::retry_on_intr(|| poll(&mut one, Some(&now))).is_ok() && !one[0].revents().intersects(gone)
    }
}

/// Ends a wait of [`ready`], from any thread.
#[derive(Debug)]
pub struct Bell {
    event: OwnedFd,
}

impl Bell {
    /// A bell that was not rung.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self { event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// Rings: it can be read until it is heard.
    pub fn ring(&self) {
        // A write adds to the counter. A full counter means that the bell was rung already.
        let _full = rustix::io::write(&self.event, &1_u64.to_le_bytes());
    }

    /// Takes what was rung; what is rung afterwards can be read again.
    pub fn hear(&self) {
        // One that was not rung has nothing to take.
        let _quiet = rustix::io::read(&self.event, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Waits until something can be read of some of these, at most so long; says of which.
///
/// # Errors
/// When the system cannot wait.
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
