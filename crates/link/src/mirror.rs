//! A copy of the packets that clients send to a program, captured on an interface of this machine (PD3 5.1):
//! AF_PACKET with a ring in shared memory (TPACKET_V2) and a filter on the five-tuple.
//!
//! Key types: [`Mirror`]; [`Copied`], a packet of a TCP connection. The kernel copies a packet into the ring
//! without delaying or changing it. If the ring is full, a packet is not copied, but counted
//! ([`Mirror::lost`]).
//!
//! Packets for other machines are ignored. The filter drops those that a link delivers to all listeners.
//! Connections that this machine only forwards are recognized by their first packet.
//!
//! The mirror does not reassemble connections ([`farmem_dpu::reassembly`]). Outgoing packets, the content of
//! TLS and IP fragments (which TCP does not use) are not supported.

use crate::OpenError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Length in bytes of a frame of the ring. Segmentation offload makes packets of up to 64 KiB, which follow a
/// header.
const FRAME: usize = 128 << 10;
/// Default number of frames of a ring: 8 MiB.
pub const FRAMES: usize = 64;
/// Maximum number of frames: 512 MiB.
pub const FRAMES_MAX: usize = 4096;
/// The socket option that omits outgoing packets: on the loopback interface each packet would appear twice
/// (linux/if_packet.h; the `libc` crate does not define it).
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const TCP: u32 = 6;

/// The packets to copy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MirrorConfig {
    /// The interface's name, as in the output of `ip link`.
    pub interface: String,
    /// Destination of the clients' packets: address and port of the program. The unspecified address stands
    /// for all of this machine's addresses of its family.
    pub server: SocketAddr,
    /// The client whose packets are copied; `None` for all clients.
    pub client: Option<SocketAddr>,
    /// Number of frames of the ring, 1 to [`FRAMES_MAX`], of 128 KiB each.
    pub frames: usize,
}

impl MirrorConfig {
    /// Checks that the configuration is valid on some machine.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for an invalid ring, or addresses of two families.
    pub fn check(&self) -> Result<(), OpenError> {
        let Self { server, client, frames, .. } = self;
        if (1..=FRAMES_MAX).contains(frames)
            && client.is_none_or(|client| client.is_ipv4() == server.is_ipv4())
        {
            return Ok(());
        }
        Err(OpenError::Setting {
            setting: "a mirror",
            value: format!("{self:?}"),
            remedy: format!("choose 1 to {FRAMES_MAX} frames, and addresses of one family"),
        })
    }

    /// Returns the size of the ring in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        (self.frames as u64).saturating_mul(FRAME as u64)
    }
}

/// A packet of a connection, from client to program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copied<'a> {
    /// The sender.
    pub client: SocketAddr,
    /// The sequence number of the first byte (RFC 9293 3.1).
    pub seq: u32,
    /// True if the packet begins the connection.
    pub syn: bool,
    /// True if the packet ends the connection.
    pub ends: bool,
    /// The payload.
    pub bytes: &'a [u8],
}

/// A ring into which the kernel copies packets.
#[derive(Debug)]
pub struct Mirror {
    socket: OwnedFd,
    ring: NonNull<u8>,
    frames: usize,
    next: usize,
    lost: u64,
    /// The interface's index, if the server's address is unspecified.
    any: Option<u32>,
}

// SAFETY: this value owns the ring's mapping, and every access takes `&mut self`.
unsafe impl Send for Mirror {}

impl Mirror {
    /// Starts to copy packets.
    ///
    /// # Errors
    /// [`OpenError::NotPermitted`] without CAP_NET_RAW, [`OpenError::Setting`] for an interface that does not
    /// exist or an invalid ring, [`OpenError::System`].
    pub fn open(config: &MirrorConfig) -> Result<Self, OpenError> {
        let MirrorConfig { interface, server, client, frames } = config;
        let doing = || format!("mirror packets of {interface}");
        config.check()?;
        let name = CString::new(interface.as_str()).unwrap_or_default();
        // SAFETY: the name is a NUL-terminated string that outlives the call.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            let remedy = "name an interface that `ip link` shows".into();
            return Err(OpenError::Setting {
                setting: "interface of a mirror",
                value: interface.clone(),
                remedy,
            });
        }
        let system = |source: io::Error| {
            match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenError::NotPermitted {
                doing: doing(),
                remedy: "grant CAP_NET_RAW: run the program as root or `setcap cap_net_raw+ep` its file, or pass the bytes by a tap".into(),
            },
            _ => OpenError::System { doing: doing(), source },
        }
        };
        let socket = socket().map_err(system)?;
        // All options are set before the bind, because no packet arrives until then.
        let mut code = filter(*server, *client);
        let program = libc::sock_fprog {
            len: u16::try_from(code.len()).expect("a few instructions"),
            filter: code.as_mut_ptr(),
        };
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        let blocks = u32::try_from(*frames).expect("a bounded number");
        let frame = u32::try_from(FRAME).expect("a frame's length");
        let ring = libc::tpacket_req {
            tp_block_size: frame,
            tp_block_nr: blocks,
            tp_frame_size: frame,
            tp_frame_nr: blocks,
        };
        set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program).map_err(system)?;
        set(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1_i32).map_err(system)?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version).map_err(system)?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &ring).map_err(system)?;
        let len = frames * FRAME;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice replaces no existing one.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, socket.as_raw_fd(), 0) };
        let start =
            NonNull::new(start.cast::<u8>()).filter(|start| start.as_ptr().cast() != libc::MAP_FAILED);
        let start = start.ok_or_else(|| system(io::Error::last_os_error()))?;
        let any = server.ip().is_unspecified().then_some(index);
        let mirror = Self { socket, ring: start, frames: *frames, next: 0, lost: 0, any };
        mirror.bind(index, server.is_ipv4()).map_err(system)?;
        // An interface that is down delivers no packets.
        mirror.failure().map_err(system)?;
        Ok(mirror)
    }

    fn bind(&self, index: u32, is_v4: bool) -> io::Result<()> {
        // SAFETY: a zeroed sockaddr_ll is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let protocol = if is_v4 { libc::ETH_P_IP } else { libc::ETH_P_IPV6 };
        address.sll_family = u16::try_from(libc::AF_PACKET).expect("a family's number");
        address.sll_protocol = u16::try_from(protocol).expect("an ethernet type").to_be();
        address.sll_ifindex = i32::try_from(index).map_err(|_| io::ErrorKind::InvalidInput)?;
        let len = socket_len::<libc::sockaddr_ll>();
        // SAFETY: the address has the stated length, and outlives the call.
        let done = unsafe { libc::bind(self.socket.as_raw_fd(), (&raw const address).cast(), len) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Passes all arrived packets of the connections to `each`, in order. Returns the number of arrived
    /// packets, including those of no connection.
    pub fn turn(&mut self, each: &mut dyn FnMut(Copied<'_>)) -> usize {
        for seen in 0..self.frames {
            // SAFETY: `next` is less than the number of frames, so the frame is within the ring.
            let frame = unsafe { self.ring.add(self.next * FRAME) };
            // SAFETY: a frame begins with its aligned status word. The kernel may write it at any moment, so
            // it is read as an atomic.
            let status = unsafe { AtomicU32::from_ptr(frame.as_ptr().cast()) };
            if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
                return seen;
            }
            // SAFETY: the header continues after the status, and the kernel does not access the frame until
            // the status is returned.
            let header = unsafe { frame.cast::<libc::tpacket2_hdr>().read() };
            let (from, len) = (usize::from(header.tp_net), header.tp_snaplen as usize);
            if from + len <= FRAME {
                // SAFETY: the start lies within the frame, by the condition above.
                let start = unsafe { frame.add(from) };
                // SAFETY: the bytes lie within the frame, which the kernel does not access, as above.
                let bytes = unsafe { slice::from_raw_parts(start.as_ptr(), len) };
                if let Some((copied, to)) = parse(bytes)
                    && (!copied.syn || self.any.is_none_or(|interface| is_here(to, interface)))
                {
                    each(copied);
                }
            }
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % self.frames;
        }
        self.frames
    }

    /// Returns the number of packets that were not copied because the ring was full.
    ///
    /// # Errors
    /// The system's error.
    pub fn lost(&mut self) -> io::Result<u64> {
        // SAFETY: zeroed counts are valid.
        let mut stats: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut len = socket_len::<libc::tpacket_stats>();
        // SAFETY: the counts have the stated length, and both arguments outlive the call.
        let done = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut len,
            )
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        // The kernel counts since the last call.
        self.lost += u64::from(stats.tp_drops);
        Ok(self.lost)
    }

    /// Waits until a packet has arrived, at most for `most`.
    ///
    /// # Errors
    /// The system's error. If the interface went down or was removed, that is an error too, because otherwise
    /// each wait would end at once.
    pub fn wait(&self, most: Duration) -> io::Result<()> {
        let most = Timespec::try_from(most).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut polled, Some(&most)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if polled[0].revents().contains(PollFlags::ERR) { self.failure() } else { Ok(()) }
    }

    /// Returns the interface's pending error, if there is one.
    fn failure(&self) -> io::Result<()> {
        Ok(socket_error(&self.socket)??)
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `open` mapped; nothing borrows from it, because every access takes
        // `&mut self`.
        let _ = unsafe { libc::munmap(self.ring.as_ptr().cast(), self.frames * FRAME) };
    }
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the system call takes only numbers.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

fn socket_len<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).expect("a few bytes")
}

fn set<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value has the stated length, and outlives the call; so do the instructions of a filter, at
    // the caller.
    let done = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, ptr::from_ref(value).cast(), socket_len::<T>())
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns true if packets to this address are for this machine, and not forwarded. The mirror calls this
/// function for each connection, because addresses change. If the kernel cannot answer, the connection is
/// ignored.
fn is_here(address: IpAddr, interface: u32) -> bool {
    let at = match address {
        IpAddr::V4(address) => (address, 0).into(),
        // A link-local address belongs to the link of the interface.
        IpAddr::V6(address) => SocketAddrV6::new(address, 0, 0, interface).into(),
    };
    UdpSocket::bind::<SocketAddr>(at).is_ok()
}

/// Offset of the packet type, which tells whom the packet is for (linux/filter.h).
const KIND: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
/// Load of a half word behind the IPv4 header, whose length is in the index register.
const LOAD_HALF_BEHIND: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
const LOAD_HEADER_LEN: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// Returns the filter that accepts packets of these connections in this direction (classic BPF, starting at
/// the network header).
fn filter(server: SocketAddr, client: Option<SocketAddr>) -> Vec<libc::sock_filter> {
    /// A load instruction, its offset, and the value that the load must have.
    type Step = (u32, u32, u32);
    let port = |address: SocketAddr| u32::from(address.port());
    let mut steps: Vec<Step> = Vec::new();
    let words = |from: u32, address: IpAddr| -> Vec<Step> {
        let bytes = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let (chunks, _) = bytes.as_chunks::<4>();
        (from..).step_by(4).zip(chunks).map(|(at, word)| (LOAD_WORD, at, u32::from_be_bytes(*word))).collect()
    };
    let is_v4 = server.is_ipv4();
    let (protocol, source, dest) = if is_v4 { (9, 12, 16) } else { (6, 8, 24) };
    // The system ignores packets for other machines, so a server here does not get them.
    steps.extend([(LOAD_WORD, KIND, libc::PACKET_HOST.into()), (LOAD_BYTE, protocol, TCP)]);
    if !server.ip().is_unspecified() {
        steps.extend(words(dest, server.ip()));
    }
    let (load, at) = if is_v4 { (LOAD_HALF_BEHIND, 0) } else { (LOAD_HALF, 40) };
    steps.push((load, at + 2, port(server)));
    if let Some(client) = client {
        steps.extend(words(source, client.ip()));
        steps.push((load, at, port(client)));
    }
    let mut code: Vec<(u32, u32)> = Vec::new();
    if is_v4 {
        // The packet must not be a fragment; then the length of the IP header locates the TCP header.
        code.extend([(LOAD_HALF, 6), (ANY_BIT, 0x1fff), (LOAD_HEADER_LEN, 0)]);
    }
    for (load, at, value) in steps {
        code.extend([(load, at), (EQUAL, value)]);
    }
    code.extend([(RETURN, u32::MAX), (RETURN, 0)]);
    let drop = code.len() - 1;
    let each = code.iter().enumerate().map(|(at, &(op, k))| {
        let far = u8::try_from(drop - at).unwrap_or(0).saturating_sub(1);
        let (jt, jf) = match op {
            EQUAL => (0, far),
            ANY_BIT => (far, 0),
            _ => (0, 0),
        };
        libc::sock_filter { code: u16::try_from(op).expect("an operation's code"), jt, jf, k }
    });
    each.collect()
}

/// Parses a packet of a TCP connection, starting at its IP header. Returns also its destination address.
/// `None` if the packet is not TCP, or its headers are truncated.
fn parse(packet: &[u8]) -> Option<(Copied<'_>, IpAddr)> {
    let (source, to, segment) = match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet[0] & 15) * 4;
            let source = Ipv4Addr::from(*packet.get(12..)?.first_chunk::<4>()?);
            let to = Ipv4Addr::from(*packet.get(16..)?.first_chunk::<4>()?);
            // The length is 0 if it exceeds 16 bits, as in the largest packets of segmentation offload.
            let total = usize::from(u16::from_be_bytes(*packet.get(2..)?.first_chunk()?));
            let end = if total == 0 { packet.len() } else { total.min(packet.len()) };
            let is_tcp = u32::from(*packet.get(9)?) == TCP && header >= 20;
            (IpAddr::V4(source), IpAddr::V4(to), is_tcp.then(|| packet.get(header..end))??)
        }
        6 => {
            let source = Ipv6Addr::from(*packet.get(8..)?.first_chunk::<16>()?);
            let to = Ipv6Addr::from(*packet.get(24..)?.first_chunk::<16>()?);
            let payload = usize::from(u16::from_be_bytes(*packet.get(4..)?.first_chunk()?));
            let end = if payload == 0 { packet.len() } else { (40 + payload).min(packet.len()) };
            let is_tcp = u32::from(*packet.get(6)?) == TCP;
            (IpAddr::V6(source), IpAddr::V6(to), is_tcp.then(|| packet.get(40..end))??)
        }
        _ => return None,
    };
    let port = u16::from_be_bytes(*segment.first_chunk()?);
    let seq = u32::from_be_bytes(*segment.get(4..)?.first_chunk()?);
    let (offset, flags) = (usize::from(segment.get(12)? >> 4) * 4, *segment.get(13)?);
    let bytes = segment.get(offset..).filter(|_| offset >= 20)?;
    let (fin, syn, rst) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
    Some((Copied { client: SocketAddr::new(source, port), seq, syn, ends: fin || rst, bytes }, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet_v4(flags: u8, bytes: &[u8]) -> Vec<u8> {
        let total = u16::try_from(40 + bytes.len()).unwrap().to_be_bytes();
        let ip = [0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let tcp = [0x30, 0x39, 0, 80, 0, 0, 1, 2, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0];
        [&ip[..], &tcp, bytes].concat()
    }

    /// A configuration with an invalid ring or invalid addresses is refused before a mirror is opened.
    #[test]
    fn what_cannot_be_is_refused() {
        let (interface, server) = (String::from("lo"), "10.0.0.2:80".parse().unwrap());
        let good = MirrorConfig { interface, server, client: None, frames: FRAMES };
        assert_eq!((good.bytes(), good.check().is_ok()), (8 << 20, true));
        let v6 = Some("[fd08::1]:1".parse().unwrap());
        for (bad, why) in [
            (MirrorConfig { frames: 0, ..good.clone() }, "frames"),
            (MirrorConfig { frames: FRAMES_MAX + 1, ..good.clone() }, "frames"),
            (MirrorConfig { frames: usize::MAX, ..good.clone() }, "frames"),
            (MirrorConfig { client: v6, ..good }, "one family"),
        ] {
            assert!(bad.check().unwrap_err().to_string().contains(why), "{bad:?}");
            assert!(bad.frames != usize::MAX || bad.bytes() == u64::MAX);
        }
    }

    /// A packet has a sender, a sequence number, and bytes without padding. A truncated packet, or one that
    /// is not TCP, is none.
    #[test]
    fn packets_are_taken_apart() {
        let packet = [packet_v4(2, b"abc"), vec![0; 6]].concat();
        let client = "10.0.0.1:12345".parse().unwrap();
        let copied = Copied { client, seq: 258, syn: true, ends: false, bytes: b"abc" };
        assert_eq!(parse(&packet), Some((copied, [10, 0, 0, 2].into())));
        assert!([1, 4].into_iter().all(|flags| parse(&packet_v4(flags, b"")).unwrap().0.ends));
        for cut in 0..40 {
            assert_eq!(parse(&packet[..cut]), None, "{cut} bytes");
        }
        let mut v6 = vec![0x60, 0, 0, 0, 0, 23, 6, 64];
        v6.extend([[1; 16], [2; 16]].concat());
        v6.extend(&packet_v4(0, b"xyz")[20..]);
        let (copied, to) = parse(&v6).unwrap();
        assert_eq!((copied.bytes, copied.client.port(), to), (&b"xyz"[..], 12345, [2; 16].into()));
        assert_eq!(parse(&[0x70; 60]), None);
    }
}
