//! The raw operation that benchmarks compare with: datagrams without a protocol, on the same kind of socket, with the same way of
//! waiting, over the same path.
//!
//! A [`RawSocket`] sends and receives bytes that no code looks at. [`RawSocket::serve`] plays the part that a role has on a path: it sends each
//! datagram on to the next address, or back. [`RawSocket::stream`] sends bursts for credits, for rates. [`faults()`] are page faults for
//! which nothing is fetched, [`Swapped`] pages that come back from swap, [`MappedFile`] those of a file.

mod faults;
mod file;
mod swap;

pub use farmem_link::Waiting;
use farmem_link::{Clock, Link as _, OpenError, ShmConfig, ShmLink, Stop, Wait, gid_of};
use farmem_machine::Port;
use farmem_wire::message::PAGE_LEN;
pub use faults::{Server, faults};
pub use file::MappedFile;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::ptr;
use std::time::Duration;
pub use swap::{Swapped, cpu_time_of_children, major_faults};

/// Longest datagram: a page and the headers before it.
const DATAGRAM_MAX: usize = PAGE_LEN + 64;
/// Datagrams of one burst at most.
pub const BURST_MAX: usize = 32;
/// Time after which a server that hears nothing looks at its stop flag.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Looks at the socket before a spinning one begins to yield the CPU after each look; as the UDP link does.
const SPINS_BEFORE_YIELD: u32 = 512;

/// Where a server sends what it receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Onward {
    /// Back to the sender.
    Back,
    /// On to this address.
    To(SocketAddr),
}

/// A socket for raw exchanges.
#[derive(Debug)]
pub struct RawSocket {
    socket: UdpSocket,
    waiting: Waiting,
    buffer: Vec<u8>,
    clock: Clock,
    /// Another thread ran when this one spun and yielded last.
    is_crowded: bool,
}

impl RawSocket {
    /// Binds a socket at `ip`, at a port of the kernel's choice. Like a link's it is never connected.
    ///
    /// # Errors
    /// [`OpenError::System`].
    pub fn open(ip: IpAddr, waiting: Waiting) -> Result<Self, OpenError> {
        let cannot = || OpenError::system(format!("open a raw socket at {ip}"));
        let socket = UdpSocket::bind((ip, 0)).map_err(cannot())?;
        // As a link's socket: its own identifications, nothing fragmented, room for a burst.
        let reference = socket2::SockRef::from(&socket);
        reference.set_recv_buffer_size(BUFFER_BYTES).map_err(cannot())?;
        reference.set_send_buffer_size(BUFFER_BYTES).map_err(cannot())?;
        if ip.is_ipv4() {
            forbid_fragments(&socket).map_err(cannot())?;
        }
        match waiting {
            Waiting::Block | Waiting::Precise => {
                socket.set_read_timeout(Some(LOOK_EVERY)).map_err(cannot())?
            }
            Waiting::Spin => socket.set_nonblocking(true).map_err(cannot())?,
        }
        Ok(Self { socket, waiting, buffer: vec![0; DATAGRAM_MAX], clock: Clock::start(), is_crowded: false })
    }

    /// Returns the address that the server listens on.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends `len` bytes to `to` and waits for one datagram, from wherever. False when none came for a while: it was lost.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn exchange(&mut self, to: SocketAddr, len: usize) -> io::Result<bool> {
        self.socket.send_to(&self.buffer[..len], to)?;
        Ok(self.receive()?.is_some())
    }

    /// Serves until `stop`: each datagram goes onward, with `len` bytes.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn serve(&mut self, onward: Onward, len: usize, stop: &Stop) -> io::Result<()> {
        while !stop.is_set() {
            let Some((_, from)) = self.receive()? else { continue };
            let to = match onward {
                Onward::Back => from,
                Onward::To(next) => next,
            };
            self.socket.send_to(&self.buffer[..len], to)?;
        }
        Ok(())
    }

    /// Serves until `stop`: each datagram is a credit, answered with a burst of `burst` datagrams of `len` bytes.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn stream(&mut self, burst: usize, len: usize, stop: &Stop) -> io::Result<()> {
        while !stop.is_set() {
            let Some((_, from)) = self.receive()? else { continue };
            self.send_burst(from, burst, len)?;
        }
        Ok(())
    }

    /// Receives at least `count` datagrams from a [`RawSocket::stream`] at `from`, two credits of `burst` ahead. Answers how many came;
    /// fewer when some were lost.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn drain(&mut self, from: SocketAddr, burst: usize, count: usize) -> io::Result<usize> {
        let (mut credits, mut received) = (2, 0);
        self.socket.send_to(&[0], from)?;
        self.socket.send_to(&[0], from)?;
        while received < count {
            let came = self.receive_burst()?;
            if came == 0 {
                break;
            }
            received += came;
            while received + burst >= credits * burst {
                self.socket.send_to(&[0], from)?;
                credits += 1;
            }
        }
        // Datagrams of the last credits must not be counted with the next measurement.
        while received < credits * burst {
            match self.receive_burst()? {
                0 => break,
                came => received += came,
            }
        }
        Ok(received)
    }

    /// Pauses or yields between two polls of a spinning socket, as the UDP link does.
    fn rest(&mut self, looks: u32) {
        if self.is_crowded || looks >= SPINS_BEFORE_YIELD {
            self.is_crowded = Waiting::yields(&self.clock);
        } else {
            std::hint::spin_loop();
        }
    }

    fn receive(&mut self) -> io::Result<Option<(usize, SocketAddr)>> {
        let mut looks = 0;
        loop {
            match self.socket.recv_from(&mut self.buffer) {
                Ok(got) => return Ok(Some(got)),
                Err(e) if is_empty(&e) && self.waiting != Waiting::Spin => return Ok(None),
                Err(e) if is_empty(&e) => {
                    looks += 1;
                    if looks >= SPINS_MAX {
                        return Ok(None);
                    }
                    self.rest(looks);
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn send_burst(&self, to: SocketAddr, burst: usize, len: usize) -> io::Result<()> {
        let to = socket2::SockAddr::from(to);
        let mut bytes = libc::iovec { iov_base: self.buffer.as_ptr().cast_mut().cast(), iov_len: len };
        let mut messages = [empty_message(); BURST_MAX];
        for message in messages.iter_mut().take(burst) {
            message.msg_hdr.msg_name = to.as_ptr().cast_mut().cast();
            message.msg_hdr.msg_namelen = to.len();
            message.msg_hdr.msg_iov = &raw mut bytes;
            message.msg_hdr.msg_iovlen = 1;
        }
        let count = libc::c_uint::try_from(burst.min(BURST_MAX)).unwrap_or(0);
        // SAFETY: `count` messages are filled in; each points to the address and the bytes, which outlive the call and are only read.
        let sent = unsafe { libc::sendmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), count, 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn receive_burst(&mut self) -> io::Result<usize> {
        let mut looks = 0;
        loop {
            let mut bytes =
                libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: self.buffer.len() };
            let mut messages = [empty_message(); BURST_MAX];
            for message in &mut messages {
                // All into one buffer: no code looks at the bytes, but the kernel must copy them.
                message.msg_hdr.msg_iov = &raw mut bytes;
                message.msg_hdr.msg_iovlen = 1;
            }
            let count = libc::c_uint::try_from(BURST_MAX).unwrap_or(0);
            let socket = self.socket.as_raw_fd();
            // SAFETY: every message points to the one buffer, which outlives the call; the timeout is absent.
            let got = unsafe {
                libc::recvmmsg(socket, messages.as_mut_ptr(), count, libc::MSG_WAITFORONE, ptr::null_mut())
            };
            if let Ok(got) = usize::try_from(got) {
                return Ok(got);
            }
            let error = io::Error::last_os_error();
            match is_empty(&error) {
                true if self.waiting != Waiting::Spin || looks >= SPINS_MAX => return Ok(0),
                true => {
                    looks += 1;
                    self.rest(looks);
                }
                false => return Err(error),
            }
        }
    }
}

/// Raw exchanges over shared-memory rings: frames without a protocol and without an ICRC.
#[derive(Debug)]
pub struct RawRing {
    link: ShmLink,
    frame: Vec<u8>,
}

/// The one peer of a raw ring.
const RING_PEER: Port = Port::SWITCH;

impl RawRing {
    /// Opens the ring of `own` in `dir`, to `peer`; frames come from every peer that has a ring to `own`.
    ///
    /// # Errors
    /// [`OpenError`], as a shared-memory link.
    pub fn open(dir: &Path, own: IpAddr, peer: IpAddr, waiting: Waiting) -> Result<Self, OpenError> {
        let config = ShmConfig { waiting, icrc: false, ..ShmConfig::new(dir.to_owned(), gid_of(own)) };
        let mut link = ShmLink::open(&config)?;
        link.set_peer(RING_PEER, Some(gid_of(peer))).map_err(OpenError::system("open a raw ring"))?;
        Ok(Self { link, frame: vec![0; DATAGRAM_MAX] })
    }

    /// Sends `len` bytes and waits for one frame back. False when none came for a while.
    ///
    /// # Errors
    /// When the link no longer works.
    pub fn exchange(&mut self, len: usize) -> io::Result<bool> {
        self.link.send(RING_PEER, &self.frame[..len]);
        self.link.flush()?;
        let mut turns = 0;
        while self.link.receive(Wait::AtMost(RING_WAIT), &mut |_, _| {})? == 0 {
            turns += 1;
            if turns == RING_TURNS_MAX {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Serves until `stop`: for each frame one of `len` bytes goes to the peer.
    ///
    /// # Errors
    /// When the link no longer works.
    pub fn serve(&mut self, len: usize, stop: &Stop) -> io::Result<()> {
        while !stop.is_set() {
            let came = self.link.receive(Wait::AtMost(RING_WAIT), &mut |_, _| {})?;
            for _ in 0..came {
                self.link.send(RING_PEER, &self.frame[..len]);
            }
            self.link.flush()?;
        }
        Ok(())
    }
}

/// One wait for a frame, and how many of them before a frame counts as lost.
const RING_WAIT: farmem_machine::Duration = farmem_machine::Duration::from_millis(20);
const RING_TURNS_MAX: u32 = 50;

/// Looks after which a spinning receiver gives a datagram up: some hundred milliseconds.
const SPINS_MAX: u32 = 500_000;

/// Kernel buffer asked for in each direction, as a link asks for.
const BUFFER_BYTES: usize = 4 << 20;

fn forbid_fragments(socket: &UdpSocket) -> io::Result<()> {
    let value = libc::IP_PMTUDISC_PROBE;
    let len = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    let fd = socket.as_raw_fd();
    // SAFETY: the option's value is the one integer given, which outlives the call, with its length.
    let done = unsafe {
        libc::setsockopt(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, (&raw const value).cast(), len)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn is_empty(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

const fn empty_message() -> libc::mmsghdr {
    libc::mmsghdr {
        msg_hdr: libc::msghdr {
            msg_name: ptr::null_mut(),
            msg_namelen: 0,
            msg_iov: ptr::null_mut(),
            msg_iovlen: 0,
            msg_control: ptr::null_mut(),
            msg_controllen: 0,
            msg_flags: 0,
        },
        msg_len: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::thread;

    const IP: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 71, 200, 1));

    /// A triangle of bare relays brings every datagram back, and a stream answers every credit.
    #[test]
    fn relays_and_streams_bring_all() {
        let stop = Stop::new();
        let mut pinger = RawSocket::open(IP, Waiting::Block).unwrap();
        let home = pinger.address().unwrap();
        let mut node = RawSocket::open(IP, Waiting::Block).unwrap();
        let mut switch = RawSocket::open(IP, Waiting::Block).unwrap();
        let mut source = RawSocket::open(IP, Waiting::Block).unwrap();
        let (node_at, switch_at, source_at) =
            (node.address().unwrap(), switch.address().unwrap(), source.address().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| node.serve(Onward::To(home), 100, &stop).unwrap());
            scope.spawn(|| switch.serve(Onward::To(node_at), 100, &stop).unwrap());
            scope.spawn(|| source.stream(8, 1000, &stop).unwrap());
            for _ in 0..100 {
                assert!(pinger.exchange(switch_at, 64).unwrap());
            }
            let received = pinger.drain(source_at, 8, 400).unwrap();
            assert!(received >= 400 && received.is_multiple_of(8), "{received}");
            stop.set();
        });
    }
}
