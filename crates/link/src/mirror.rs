//! A copy of the packets that clients send to a program, as an interface of this machine sees them (PD3 5.1): AF_PACKET with a ring in shared memory (TPACKET_V2) and a filter on the five-tuple.
//!
//! Key types: [`Mirror`]; [`Copied`], a packet of a TCP connection. The kernel copies a packet into the ring without delaying or changing it. A packet that the ring has
//! no room for is not copied, and counted ([`Mirror::lost`]).
//!
//! Packets for other machines are ignored: the filter drops those that a link hands to all listeners, and connections that this machine only forwards are recognized by their first packet.
//!
//! The mirror does not put connections together ([`farmem_dpu::reassembly`]), see packets that leave the machine or what TLS hides, or follow IP fragments, of which TCP has none.

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

/// Bytes of a frame of the ring: packets come as large as segmentation offload makes them, up to 64 KiB, behind a header.
const FRAME: usize = 128 << 10;
/// Frames of a ring: 8 MiB.
pub const FRAMES: usize = 64;
/// Frames at most: 512 MiB.
pub const FRAMES_MAX: usize = 4096;
/// The socket option that leaves out what this machine sends: on the loopback interface each packet would come twice (linux/if_packet.h; libc has not got it).
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const TCP: u32 = 6;

/// Which packets are copied.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MirrorConfig {
    /// The interface's name, as `ip link` has it.
    pub interface: String,
    /// Where clients send to: address and port of the program. The unspecified address is any of this machine's of its family.
    pub server: SocketAddr,
    /// Only packets of this client; of all where it is `None`.
    pub client: Option<SocketAddr>,
    /// Frames of the ring, 1 to [`FRAMES_MAX`], of 128 KiB each.
    pub frames: usize,
}

impl MirrorConfig {
    /// Whether there can be such a mirror, wherever it is opened.
    ///
    /// # Errors
    /// [`OpenError::Setting`] for a ring that cannot be, or addresses of two families.
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

    /// Bytes of the ring.
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
    /// The number of its first byte (RFC 9293 3.1).
    pub seq: u32,
    /// The packet begins the connection.
    pub syn: bool,
    /// The connection has ended, with it or before it.
    pub ends: bool,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// A ring that the kernel copies packets into.
#[derive(Debug)]
pub struct Mirror {
    socket: OwnedFd,
    ring: NonNull<u8>,
    frames: usize,
    next: usize,
    lost: u64,
    /// Where the server's address is any of this machine's: the interface's number.
    any: Option<u32>,
}

// SAFETY: the ring is this value's own mapping, and all that touches it takes `&mut self`.
unsafe impl Send for Mirror {}

impl Mirror {
    /// Begins to copy.
    ///
    /// # Errors
    /// [`OpenError::NotPermitted`] without CAP_NET_RAW, [`OpenError::Setting`] for an interface that is not there or a ring that cannot be, [`OpenError::System`].
    pub fn open(config: &MirrorConfig) -> Result<Self, OpenError> {
        let MirrorConfig { interface, server, client, frames } = config;
        let doing = || format!("mirror packets of {interface}");
        config.check()?;
        let name = CString::new(interface.as_str()).unwrap_or_default();
        // SAFETY: the name is a string with its NUL that outlives the call.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            let remedy = "name one that `ip link` shows".into();
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
                remedy: "it needs CAP_NET_RAW: run it as root or `setcap cap_net_raw+ep` its file, or hand the bytes over by a tap".into(),
            },
            _ => OpenError::System { doing: doing(), source },
        }
        };
        let socket = socket().map_err(system)?;
        // All is set before it is bound: until then nothing comes.
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
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces none of ours.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, socket.as_raw_fd(), 0) };
        let start =
            NonNull::new(start.cast::<u8>()).filter(|start| start.as_ptr().cast() != libc::MAP_FAILED);
        let start = start.ok_or_else(|| system(io::Error::last_os_error()))?;
        let any = server.ip().is_unspecified().then_some(index);
        let mirror = Self { socket, ring: start, frames: *frames, next: 0, lost: 0, any };
        mirror.bind(index, server.is_ipv4()).map_err(system)?;
        // An interface that is down delivers nothing.
        mirror.failure().map_err(system)?;
        Ok(mirror)
    }

    fn bind(&self, index: u32, is_v4: bool) -> io::Result<()> {
        // SAFETY: a sockaddr_ll of zeros is one.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let protocol = if is_v4 { libc::ETH_P_IP } else { libc::ETH_P_IPV6 };
        address.sll_family = u16::try_from(libc::AF_PACKET).expect("a family's number");
        address.sll_protocol = u16::try_from(protocol).expect("an ethernet type").to_be();
        address.sll_ifindex = i32::try_from(index).map_err(|_| io::ErrorKind::InvalidInput)?;
        let len = socket_len::<libc::sockaddr_ll>();
        // SAFETY: the address is as long as is said, and outlives the call.
        let done = unsafe { libc::bind(self.socket.as_raw_fd(), (&raw const address).cast(), len) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Shows the packets that came to `each`, in their order; says how many there were, those that are no packets of the connections included.
    pub fn turn(&mut self, each: &mut dyn FnMut(Copied<'_>)) -> usize {
        for seen in 0..self.frames {
            // SAFETY: a frame of the ring; the next one is within its frames.
            let frame = unsafe { self.ring.add(self.next * FRAME) };
            // SAFETY: a frame begins with its status, aligned as frames are; the kernel writes it at any moment, so it is read as an atomic.
            let status = unsafe { AtomicU32::from_ptr(frame.as_ptr().cast()) };
            if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
                return seen;
            }
            // SAFETY: behind its status a frame has the rest of its header, and until the status is given back the kernel leaves the frame alone.
            let header = unsafe { frame.cast::<libc::tpacket2_hdr>().read() };
            let (from, len) = (usize::from(header.tp_net), header.tp_snaplen as usize);
            if from + len <= FRAME {
                // SAFETY: it lies in the frame, by the condition above.
                let start = unsafe { frame.add(from) };
                // SAFETY: the bytes lie in the frame, and the kernel leaves it alone, as above.
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

    /// Packets so far that the ring had no room for.
    ///
    /// # Errors
    /// The system's error.
    pub fn lost(&mut self) -> io::Result<u64> {
        // SAFETY: counts of zero are counts.
        let mut stats: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut len = socket_len::<libc::tpacket_stats>();
        // SAFETY: the counts are as long as is said, and both outlive the call.
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
        // The kernel counts from the last look.
        self.lost += u64::from(stats.tp_drops);
        Ok(self.lost)
    }

    /// Waits until a packet has come, at most `most`.
    ///
    /// # Errors
    /// The system's error. If the interface went down or was removed, that is an error too, because otherwise each wait would end at once.
    pub fn wait(&self, most: Duration) -> io::Result<()> {
        let most = Timespec::try_from(most).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut polled, Some(&most)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if polled[0].revents().contains(PollFlags::ERR) { self.failure() } else { Ok(()) }
    }

    /// The interface's pending error, if there is one.
    fn failure(&self) -> io::Result<()> {
        Ok(socket_error(&self.socket)??)
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `open` mapped; nothing borrows from it, since all that does takes `&mut self`.
        let _ = unsafe { libc::munmap(self.ring.as_ptr().cast(), self.frames * FRAME) };
    }
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: a system call that takes numbers.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was made a moment ago, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

fn socket_len<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).expect("a few bytes")
}

fn set<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value is as long as is said, and outlives the call; what a filter points to does so at the caller.
    let done = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, ptr::from_ref(value).cast(), socket_len::<T>())
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether packets to this address are for this machine and not forwarded. The mirror asks for each connection, because addresses come and go. If the kernel cannot answer, the connection is not seen.
fn is_here(address: IpAddr, interface: u32) -> bool {
    let at = match address {
        IpAddr::V4(address) => (address, 0).into(),
        // Which of the links an address is of that each has.
        IpAddr::V6(address) => SocketAddrV6::new(address, 0, 0, interface).into(),
    };
    UdpSocket::bind::<SocketAddr>(at).is_ok()
}

/// Whom the link says that a packet is for (linux/filter.h).
const KIND: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();
const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
/// A half word behind the IPv4 header, whose length is in the index register.
const LOAD_HALF_BEHIND: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
const LOAD_HEADER_LEN: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// The program that takes packets of these connections, in this direction (classic BPF, from the network header on).
fn filter(server: SocketAddr, client: Option<SocketAddr>) -> Vec<libc::sock_filter> {
    /// The word that a step loads, and the value it must have.
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
    // The system passes over what is for other machines, and so does a server on this one.
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
        // Not a fragment; and where TCP's header begins.
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

/// The packet of a TCP connection, from its IP header on, and the address that it was sent to; `None` when it is none, or cut before its bytes.
fn parse(packet: &[u8]) -> Option<(Copied<'_>, IpAddr)> {
    let (source, to, segment) = match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet[0] & 15) * 4;
            let source = Ipv4Addr::from(*packet.get(12..)?.first_chunk::<4>()?);
            let to = Ipv4Addr::from(*packet.get(16..)?.first_chunk::<4>()?);
            // 0 where it does not fit: the largest of segmentation offload.
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

    /// Settings are checked before a mirror is opened: a ring and addresses that cannot be are refused.
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

    /// A packet has a sender, a number and bytes without padding. A truncated packet, or one that is not TCP, is none.
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
