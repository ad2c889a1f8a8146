//! The waiting point of a pager: for new processes, their faults and their ends, and for other descriptors.
//!
//! Key types: [`Acceptor`], [`Accepted`]. A process connects to a socket file that no other user reaches
//! ([`SocketFile`]), and sends a token that only invited processes know. A process that gave up the pager's user does
//! not reach the file either: a second socket has an abstract name. Any user may connect to that one, so connections
//! of one user make room for those of others.

use super::super::SharedMapping;
use super::super::looking::{LOOK_NS_MAX, Looking};
use super::Remote;
use super::call::{HELLO_WORDS, Hello, SPANS_MAX, WELCOME_WORDS, device_request};
use super::socket_file::{PREFIX, SocketFile, listener};
use farmem_link::{Clock, OpenError};
use farmem_preload_abi::userfaultfd::device;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, accept_with, recvmsg, send, sendmsg,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// A source of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// A process connects, or sends its greeting: [`Acceptor::receive`].
    Connections,
    /// The process with this number faulted.
    Faults(u32),
    /// The process with this number ended.
    Ended(u32),
    /// Another descriptor of the caller.
    Other(u32),
}

/// An event of a source.
pub type Event = Watch;

/// The waiting point for many processes.
#[derive(Debug)]
pub struct Acceptor {
    epoll: OwnedFd,
    listener: OwnedFd,
    name: String,
    /// The socket file; `None` if none can be made.
    by_path: Option<SocketFile>,
    token: u128,
    /// The device for processes that may not open a userfaultfd themselves; `None` if this process may not open it.
    device: Option<File>,
    /// Connected processes without a complete greeting, the oldest first.
    pending_peers: RefCell<Vec<PendingPeer>>,
    looking: Looking,
    polls: bool,
    clock: Clock,
}

/// A process that has sent its greeting, and waits for an answer.
#[derive(Debug)]
pub struct Accepted {
    /// The process's greeting.
    pub hello: Hello,
    /// The process's far memory.
    pub remote: Remote,
    /// The process's number.
    pub pid: u32,
    /// Readable when the process has ended.
    pub ended: OwnedFd,
    socket: OwnedFd,
}

/// A connected process without a complete greeting.
#[derive(Debug)]
struct PendingPeer {
    socket: OwnedFd,
    /// The user that connected, from the kernel.
    user: u32,
}

/// Maximum number of events of one wait.
const EVENTS_MAX: usize = 64;
/// Maximum number of connected processes without a greeting.
const PENDING_PEERS_MAX: usize = 64;
/// Maximum time that a process has to receive its answer.
const GREETING_TIME_MAX: Duration = Duration::from_secs(2);

impl Acceptor {
    /// Opens an acceptor; `token` is the secret of invited processes.
    ///
    /// # Errors
    /// [`OpenError::System`] if the system has no socket left.
    pub fn open(token: u128) -> Result<Self, OpenError> {
        let system = |e: Errno| OpenError::System { doing: "wait for processes".into(), source: e.into() };
        // Not the token itself: names of sockets are not secret.
        let name = format!("{PREFIX}{}-{:08x}", std::process::id(), hidden(token));
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(system)?;
        let listener = listener(&address).map_err(system)?;
        let by_path = SocketFile::open(&name);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let acceptor = Self {
            epoll,
            listener,
            name,
            by_path,
            token,
            device: device().ok(),
            pending_peers: RefCell::default(),
            looking: Looking::new(),
            polls: true,
            clock: Clock::start(),
        };
        acceptor.watch(&acceptor.listener, Watch::Connections).map_err(system)?;
        if let Some(file) = &acceptor.by_path {
            acceptor.watch(&file.listener, Watch::Connections).map_err(system)?;
        }
        Ok(acceptor)
    }

    /// Returns the socket file, which must be removed after a pager was killed ([`remove`](super::remove)).
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.by_path.as_ref().map(|file| file.path.as_path())
    }

    /// Returns the socket's name and the token, for invited processes.
    #[must_use]
    pub fn invitation(&self) -> String {
        format!("{}:{:032x}", self.name, self.token)
    }

    /// Reports `watch` from now on when `what` is readable.
    ///
    /// # Errors
    /// The system's error.
    pub fn watch(&self, what: impl AsFd, watch: Watch) -> Result<(), Errno> {
        epoll::add(&self.epoll, what, epoll::EventData::new_u64(watch.number()), epoll::EventFlags::IN)
    }

    /// Ends the reports for a descriptor.
    pub fn forget(&self, what: impl AsFd) {
        // An unwatched descriptor needs no removal.
        let _ = epoll::delete(&self.epoll, what);
    }

    /// Sets whether [`events`](Self::events) polls before it sleeps. If the faulting threads share this thread's CPU,
    /// polling is useless.
    pub const fn let_poll(&mut self, polls: bool) {
        self.polls = polls;
    }

    /// Fills `events`. Waits at most `patience` for the first event, or without limit.
    ///
    /// Before it sleeps, it polls for a while, as long as polling pays: a program with frequent faults faults again
    /// before this thread would sleep, and a sleeping CPU takes four times as long to react.
    ///
    /// # Errors
    /// The system's error if a call fails.
    pub fn events(&self, patience: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        events.clear();
        if self.polls && patience != Some(Duration::ZERO) && self.looking.is_worth_it() {
            let until = self.clock.now().as_nanos() + LOOK_NS_MAX;
            while events.is_empty() && self.clock.now().as_nanos() < until {
                self.wait(Some(Duration::ZERO), events)?;
            }
            self.looking.ended(!events.is_empty());
            if !events.is_empty() {
                return Ok(());
            }
        }
        self.wait(patience, events)
    }

    fn wait(&self, patience: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        events.clear();
        let none = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut room = [none; EVENTS_MAX];
        let patience = patience.map(|time| Timespec::try_from(time).expect("a time of people"));
        let count = match epoll::wait(&self.epoll, &mut room[..], patience.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(e) => return Err(e.into()),
        };
        events.extend(room[..count].iter().map(|event| {
            let data = event.data;
            Watch::of(data.u64())
        }));
        Ok(())
    }

    /// Accepts an invited process that has sent its greeting; `None` if there is none.
    ///
    /// This call waits for no process. A connected and silent process, of any user, delays no other, and loses its
    /// place if there are too many.
    #[must_use]
    pub fn receive(&self) -> Option<Accepted> {
        let mut pending_peers = self.pending_peers.borrow_mut();
        // Further connections are accepted at the next call, which follows at once.
        for peer in std::iter::from_fn(|| self.connection()).take(2 * PENDING_PEERS_MAX) {
            if pending_peers.len() == PENDING_PEERS_MAX {
                let room = makes_room(&pending_peers);
                drop(pending_peers.remove(room));
            }
            pending_peers.push(peer);
        }
        let mut at = 0;
        while at < pending_peers.len() {
            if !is_readable(&pending_peers[at].socket) {
                at += 1;
                continue;
            }
            match hear(&pending_peers[at].socket) {
                Some((words, _)) if words == device_request(self.token) => {
                    // Its next message is read at the next call, so a process that asks repeatedly delays no other.
                    match self.lend_device(&pending_peers[at].socket) {
                        Ok(()) => at += 1,
                        Err(_) => drop(pending_peers.remove(at)),
                    }
                }
                said => {
                    let PendingPeer { socket, .. } = pending_peers.remove(at);
                    self.forget(&socket);
                    if let Some(accepted) = said.and_then(|said| self.accept(socket, said)) {
                        return Some(accepted);
                    }
                }
            }
        }
        None
    }

    /// Accepts the next connection.
    fn connection(&self) -> Option<PendingPeer> {
        let by_name = || accept_with(&self.listener, CLOEXEC).ok();
        let by_path = self.by_path.as_ref().and_then(|file| accept_with(&file.listener, CLOEXEC).ok());
        let socket = by_path.or_else(by_name)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(GREETING_TIME_MAX)).ok()?;
        set_socket_timeout(&socket, Timeout::Send, Some(GREETING_TIME_MAX)).ok()?;
        self.watch(&socket, Watch::Connections).ok()?;
        let user = socket_peercred(&socket).ok()?.uid.as_raw();
        Some(PendingPeer { socket, user })
    }

    fn lend_device(&self, socket: &OwnedFd) -> io::Result<()> {
        let device = self.device.as_ref().map(AsFd::as_fd);
        let refused = u64::from(Errno::PERM.raw_os_error().unsigned_abs());
        answer(socket, [if device.is_some() { 0 } else { refused }, 0, 0, 0], device)
    }

    fn accept(&self, socket: OwnedFd, (words, [uffd, file]): Greeting) -> Option<Accepted> {
        let hello = Hello::of(words).filter(|hello| hello.token == self.token)?;
        let (uffd, file) = (uffd?, file?);
        let pid = socket_peercred(&socket).ok()?.pid;
        let ended = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let remote = Remote::new(uffd, file, &hello)?;
        let pid = number_of(pid);
        Some(Accepted { hello, remote, pid, ended, socket })
    }
}

/// Returns true if a read would not block.
pub fn is_readable(what: impl AsFd) -> bool {
    let mut one = [PollFd::new(&what, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::io::retry_on_intr(|| poll(&mut one, Some(&now))).is_ok_and(|count| count > 0)
}

/// Kills a process by its pidfd ([`Accepted::ended`]). A process that has ended ignores the signal.
pub fn kill(process: impl AsFd) {
    let _ended = pidfd_send_signal(process, Signal::KILL);
}

/// Returns the connection that must make room: the oldest silent one of the user with most connections, so that no
/// user displaces another.
fn makes_room(pending_peers: &[PendingPeer]) -> usize {
    let count = |user| pending_peers.iter().filter(|peer| peer.user == user).count();
    let user = pending_peers.iter().map(|peer| peer.user).max_by_key(|&user| count(user));
    let its = || pending_peers.iter().enumerate().filter(|(_, peer)| Some(peer.user) == user);
    let silent = its().find(|(_, peer)| !is_readable(&peer.socket));
    silent.or_else(|| its().next()).map_or(0, |(at, _)| at)
}

const CLOEXEC: SocketFlags = SocketFlags::CLOEXEC;

fn number_of(pid: Pid) -> u32 {
    u32::try_from(pid.as_raw_nonzero().get()).expect("processes have positive numbers")
}

/// Returns a number that depends on the token but does not help to guess it.
const fn hidden(token: u128) -> u32 {
    let [a, b, c, d, ..] = token.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// A greeting, and its descriptors.
type Greeting = ([u64; HELLO_WORDS], [Option<OwnedFd>; 2]);

fn hear(socket: &OwnedFd) -> Option<Greeting> {
    let mut bytes = [0; HELLO_WORDS * 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?;
    let mut descriptors = ancillary.drain().flat_map(|part| match part {
        RecvAncillaryMessage::ScmRights(rights) => rights.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let descriptors = [descriptors.next(), descriptors.next()];
    if message.bytes != HELLO_WORDS * 8 {
        return None;
    }
    let (words, _) = bytes.as_chunks::<8>();
    Some((std::array::from_fn(|n| u64::from_le_bytes(words[n])), descriptors))
}

fn answer(socket: &OwnedFd, words: [u64; WELCOME_WORDS], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut bytes = [0; WELCOME_WORDS * 8];
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let rights = SendAncillaryMessage::ScmRights(file.as_slice());
    assert!(file.is_none() || ancillary.push(rights), "there is room for one");
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

impl Accepted {
    /// Accepts the process. Sends the address, length and protection of each span that it must map, and the shared
    /// memory.
    ///
    /// # Errors
    /// The system's error if the process does not receive the answer.
    pub fn welcome(&self, spans: &[[u64; 3]], shared: Option<&SharedMapping>) -> io::Result<()> {
        self.say(0, spans.len() as u64, shared)?;
        for some in spans.chunks(SPANS_MAX) {
            let bytes: Vec<u8> = some.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
            send(&self.socket, &bytes, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    /// Refuses the process, which reports the error number `errno`.
    pub fn refuse(&self, errno: u64) {
        // A process that does not receive the answer ends by itself.
        let _ = self.say(errno, 0, None);
    }

    fn say(&self, status: u64, count: u64, shared: Option<&SharedMapping>) -> io::Result<()> {
        let (base, len) = shared.map_or((0, 0), |shared_mapping| {
            let (base, len) = shared_mapping.span();
            (base.0, len)
        });
        answer(&self.socket, [status, count, base, len], shared.map(SharedMapping::file))
    }
}

impl Watch {
    const fn number(self) -> u64 {
        let (kind, number) = match self {
            Self::Connections => (0, 0),
            Self::Faults(n) => (1, n),
            Self::Ended(n) => (2, n),
            Self::Other(n) => (3, n),
        };
        (kind << 32) | number as u64
    }

    fn of(number: u64) -> Self {
        let low = u32::try_from(number & u64::from(u32::MAX)).expect("masked");
        match number >> 32 {
            0 => Self::Connections,
            1 => Self::Faults(low),
            2 => Self::Ended(low),
            3 => Self::Other(low),
            other => unreachable!("{other} was not watched"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, send, socketpair};

    /// Connections of one user displace each other, the oldest silent one first, and none of another user.
    #[test]
    fn no_user_displaces_others() {
        let pair = || {
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, CLOEXEC, None).expect("a pair of sockets")
        };
        let (mut pending_peers, mut others) = (Vec::new(), Vec::new());
        for user in [7, 7, 1000, 1000, 1000] {
            let (socket, other) = pair();
            pending_peers.push(PendingPeer { socket, user });
            others.push(other);
        }
        send(&others[2], b"words", SendFlags::empty()).unwrap();
        assert_eq!(makes_room(&pending_peers), 3);
        for (other, n) in others.iter().zip(0..) {
            let _ = send(other, &[n], SendFlags::empty());
        }
        assert_eq!(makes_room(&pending_peers), 2, "all have said something");
        pending_peers.truncate(3);
        assert_eq!(makes_room(&pending_peers), 0);
    }
}
