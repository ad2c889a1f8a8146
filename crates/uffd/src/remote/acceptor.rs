//! Where a pager waits: for processes that come in, for their faults and their ends, and for what else it is told to watch.
//!
//! Key types: [`Acceptor`], [`Accepted`]. Processes come over a socket whose name is the system's alone (it vanishes with the pager), and
//! say a token that only invited processes know. Those in other network namespaces, where it has no such name, find a second one by its
//! path.

use super::super::SharedMapping;
use super::super::looking::{LOOK_NS_MAX, Looking};
use super::Remote;
use super::call::{HELLO_WORDS, Hello, PATH_MAX, SPANS_MAX, WELCOME_WORDS, device_request};
use farmem_link::{Clock, OpenError};
use farmem_preload_abi::userfaultfd::device;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    recvmsg, send, sendmsg, socket_with,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::cell::RefCell;
use std::fs::{self, File, Permissions};
use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A source of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// A process comes in: [`Acceptor::receive`].
    Connections,
    /// The process of this number faulted.
    Faults(u32),
    /// The process of this number ended.
    Ended(u32),
    /// Something else of the caller's.
    Other(u32),
}

/// Something of it happened.
pub type Event = Watch;

/// Waits for many processes at once.
#[derive(Debug)]
pub struct Acceptor {
    epoll: OwnedFd,
    listener: OwnedFd,
    name: String,
    /// A second socket by a path; `None` where no file may be made.
    by_path: Option<Door>,
    token: u128,
    /// For processes that may not open a userfaultfd themselves; `None` where this one may not open it.
    device: Option<File>,
    /// Connected, and not heard to the end of their greeting; the oldest first.
    visitors: RefCell<Vec<OwnedFd>>,
    looking: Looking,
    clock: Clock,
}

/// A process that came in, and waits for an answer.
#[derive(Debug)]
pub struct Accepted {
    /// The process's greeting.
    pub hello: Hello,
    /// Its far memory.
    pub remote: Remote,
    /// Its number.
    pub pid: u32,
    /// Readable when it has ended.
    pub ended: OwnedFd,
    socket: OwnedFd,
}

/// A socket that is a file, which goes with it.
#[derive(Debug)]
struct Door {
    listener: OwnedFd,
    path: PathBuf,
}

impl Drop for Door {
    fn drop(&mut self) {
        // One that is gone already is as good.
        let _ = fs::remove_file(&self.path);
    }
}

/// Processes that may wait to come in.
const BACKLOG: i32 = 128;
/// Events of one wait.
const EVENTS_MAX: usize = 64;
/// Processes that may be connected and have said nothing.
const VISITORS_MAX: usize = 64;
/// Time a process has to take what it is told.
const GREETING_TIME_MAX: Duration = Duration::from_secs(2);

impl Acceptor {
    /// Opens one; `token` is what invited processes say.
    ///
    /// # Errors
    /// [`OpenError::System`] when the system has no socket left.
    pub fn open(token: u128) -> Result<Self, OpenError> {
        let system = |e: Errno| OpenError::System { doing: "wait for processes".into(), source: e.into() };
        // Not the token: the names of sockets are no secret.
        let name = format!("farmem-run-{}-{:08x}", std::process::id(), hidden(token));
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(system)?;
        let listener = listener(&address).map_err(system)?;
        let by_path = door(std::env::temp_dir().join(&name));
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let acceptor = Self {
            epoll,
            listener,
            name,
            by_path,
            token,
            device: device().ok(),
            visitors: RefCell::default(),
            looking: Looking::new(),
            clock: Clock::start(),
        };
        acceptor.watch(&acceptor.listener, Watch::Connections).map_err(system)?;
        if let Some(door) = &acceptor.by_path {
            acceptor.watch(&door.listener, Watch::Connections).map_err(system)?;
        }
        Ok(acceptor)
    }

    /// The socket for those in other network namespaces: a file, to be removed after a pager that was killed.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.by_path.as_ref().map(|door| door.path.as_path())
    }

    /// The name of the socket and the token, by which a process comes in.
    #[must_use]
    pub fn invitation(&self) -> String {
        format!("{}:{:032x}", self.name, self.token)
    }

    /// From now on `watch` is reported when `what` is readable.
    ///
    /// # Errors
    /// The system's error.
    pub fn watch(&self, what: impl AsFd, watch: Watch) -> Result<(), Errno> {
        epoll::add(&self.epoll, what, epoll::EventData::new_u64(watch.number()), epoll::EventFlags::IN)
    }

    /// Not any more.
    pub fn forget(&self, what: impl AsFd) {
        // One that was not watched is forgotten already.
        let _ = epoll::delete(&self.epoll, what);
    }

    /// Fills `events` with what happened; waits so long for the first, or for ever. Before it sleeps it looks for a while, as long as that is worth it: a
    /// program that faults far often does so again before this thread would sleep, and a CPU that sleeps is four times as far away.
    ///
    /// # Errors
    /// When the system takes no more calls.
    pub fn events(&self, patience: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        events.clear();
        if patience.is_none() && self.looking.is_worth_it() {
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

    /// Lets an invited process in that has sent its greeting; `None` when there is none. This waits for no process: one that is connected and silent,
    /// as any user's may be, holds none up, and makes room when too many do so.
    #[must_use]
    pub fn receive(&self) -> Option<Accepted> {
        let mut visitors = self.visitors.borrow_mut();
        // Connections beyond that are accepted at the next look, which follows at once.
        for socket in std::iter::from_fn(|| self.connection()).take(2 * VISITORS_MAX) {
            if visitors.len() == VISITORS_MAX {
                // A connection that has sent something is read below.
                let silent = visitors.iter().position(|visitor| !is_readable(visitor));
                drop(visitors.remove(silent.unwrap_or(0)));
            }
            visitors.push(socket);
        }
        let mut at = 0;
        while at < visitors.len() {
            if !is_readable(&visitors[at]) {
                at += 1;
                continue;
            }
            match hear(&visitors[at]) {
                Some((words, _)) if words == device_request(self.token) => {
                    // Its next message is read at the next look: one that asks on and on holds no other up.
                    match self.lend_device(&visitors[at]) {
                        Ok(()) => at += 1,
                        Err(_) => drop(visitors.remove(at)),
                    }
                }
                said => {
                    let socket = visitors.remove(at);
                    self.forget(&socket);
                    if let Some(accepted) = said.and_then(|said| self.accept(socket, said)) {
                        return Some(accepted);
                    }
                }
            }
        }
        None
    }

    /// The next one that came.
    fn connection(&self) -> Option<OwnedFd> {
        let by_path = || accept_with(&self.by_path.as_ref()?.listener, CLOEXEC).ok();
        let socket = accept_with(&self.listener, CLOEXEC).ok().or_else(by_path)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(GREETING_TIME_MAX)).ok()?;
        set_socket_timeout(&socket, Timeout::Send, Some(GREETING_TIME_MAX)).ok()?;
        self.watch(&socket, Watch::Connections).ok()?;
        Some(socket)
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

/// True when a read of it would not wait.
pub fn is_readable(what: impl AsFd) -> bool {
    let mut one = [PollFd::new(&what, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::io::retry_on_intr(|| poll(&mut one, Some(&now))).is_ok_and(|count| count > 0)
}

/// Ends a process, as [`Accepted::ended`] names it. One that has ended needs no signal.
pub fn kill(process: impl AsFd) {
    let _ended = pidfd_send_signal(process, Signal::KILL);
}

/// A listening socket whose accept does not wait: there is another beside it.
fn listener(address: &SocketAddrUnix) -> Result<OwnedFd, Errno> {
    let flags = CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&listener, address)?;
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// A socket that every user may connect to, as programs may have given up their rights; the token tells the invited ones. `None` for a path that no invitation can name.
fn door(path: PathBuf) -> Option<Door> {
    path.to_str().filter(|path| !path.contains(':') && path.len() < PATH_MAX)?;
    let listener = listener(&SocketAddrUnix::new(&path).ok()?).ok()?;
    let door = Door { listener, path };
    fs::set_permissions(&door.path, Permissions::from_mode(0o666)).ok()?;
    Some(door)
}

const CLOEXEC: SocketFlags = SocketFlags::CLOEXEC;

fn number_of(pid: Pid) -> u32 {
    u32::try_from(pid.as_raw_nonzero().get()).expect("processes have positive numbers")
}

/// A number that does not help to guess the token, and which differs when it does.
const fn hidden(token: u128) -> u32 {
    let [a, b, c, d, ..] = token.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// A greeting, and the descriptors that come with it.
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
    /// Lets it go on, with what it is to map: address, bytes and protection of each span, and what it shares with others.
    ///
    /// # Errors
    /// When it does not listen any more.
    pub fn welcome(&self, spans: &[[u64; 3]], shared: Option<&SharedMapping>) -> io::Result<()> {
        self.say(0, spans.len() as u64, shared)?;
        for some in spans.chunks(SPANS_MAX) {
            let bytes: Vec<u8> = some.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
            send(&self.socket, &bytes, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    /// Sends it away; it says so, and why by the system's number of an error.
    pub fn refuse(&self, errno: u64) {
        // One that does not listen goes by itself.
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
