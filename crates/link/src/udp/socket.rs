//! The socket: opened as the ICRC requires, with errors that contain remedies.

use super::sockaddr::SockAddr;
use crate::timers::wake_precisely;
use crate::{OpenError, ip_of};
use farmem_machine::Duration;
use farmem_wire::{Gid, UDP_PORT};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Default size in bytes of each of the kernel's buffers to request.
pub const BUFFER_BYTES: usize = 4 << 20;

/// Sizes of the socket buffers that the kernel granted, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffers {
    /// Requested size, in each direction.
    pub asked: usize,
    /// Size for received packets.
    pub receive: usize,
    /// Size for outgoing packets.
    pub send: usize,
}

impl Buffers {
    /// Returns advice if the kernel granted less than requested.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        let Self { asked, receive, send } = *self;
        (receive.min(send) < asked).then(|| {
            format!(
                "asked for socket buffers of {asked} bytes, got {receive} to receive and {send} to send: packets may be lost under \
                 load; as root: sysctl -w net.core.rmem_max={asked} net.core.wmem_max={asked}"
            )
        })
    }
}

/// A bound, unconnected UDP socket.
#[derive(Debug)]
pub(crate) struct Socket {
    socket: socket2::Socket,
    buffers: Buffers,
    /// Timeout of a blocking receive in milliseconds, as last set in the kernel.
    patience_ms: AtomicU64,
}

impl Socket {
    pub(crate) fn open(gid: Gid, buffer_bytes: usize) -> Result<Self, OpenError> {
        let ip = ip_of(gid);
        let address = SocketAddr::new(ip, UDP_PORT);
        if ip.is_unspecified() || ip.is_multicast() {
            let remedy = "the ICRC covers the address, so it must be one address of this machine".into();
            return Err(OpenError::Setting { setting: "address", value: ip.to_string(), remedy });
        }
        let refused = |e| refusal(address, e);
        let domain = Domain::for_address(address);
        let socket = socket2::Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).map_err(refused)?;
        let fd = socket.as_raw_fd();
        match ip {
            IpAddr::V4(_) => {
                set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE).map_err(refused)?;
            }
            IpAddr::V6(_) => {
                socket.set_only_v6(true).map_err(refused)?;
                set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)
                    .map_err(refused)?;
                // Soft-RoCE sends a UDP checksum of zero, which IPv6 drops unless this option is set.
                set(fd, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1).map_err(refused)?;
            }
        }
        let buffers = ask_for_buffers(&socket, buffer_bytes).map_err(refused)?;
        socket.bind(&address.into()).map_err(refused)?;
        Ok(Self { socket, buffers, patience_ms: AtomicU64::new(0) })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(crate) const fn buffers(&self) -> Buffers {
        self.buffers
    }

    /// Enables consecutive packets as one buffer; returns false if the kernel does not support it.
    pub(crate) fn coalesce(&self) -> bool {
        set(self.fd(), libc::IPPROTO_UDP, libc::UDP_GRO, 1).is_ok()
    }

    /// Sets the longest wait of a blocking receive to `most`, at least one millisecond. The value is rounded
    /// down to a power of two, so that the system call is necessary only when the magnitude changes. A caller
    /// that wants to wait longer waits again.
    pub(crate) fn set_patience(&self, most: Duration) -> io::Result<()> {
        let ms = 1 << (most.as_nanos() / 1_000_000).clamp(1, PATIENCE_MS_MAX).ilog2();
        if ms != self.patience_ms.load(Ordering::Relaxed) {
            self.socket.set_read_timeout(Some(std::time::Duration::from_millis(ms)))?;
            self.patience_ms.store(ms, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits until a packet is available, at most for `most`, with the system's finest timers; may return
    /// early.
    pub(crate) fn await_packet(&self, most: Duration) -> io::Result<()> {
        wake_precisely();
        let nanos = most.as_nanos();
        let span = Timespec {
            tv_sec: i64::try_from(nanos / 1_000_000_000).expect("at most 2^34 seconds"),
            tv_nsec: i64::try_from(nanos % 1_000_000_000).expect("less than a second"),
        };
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&span)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends an empty datagram. If the system refuses, so many packets are queued that no thread sleeps.
    pub(crate) fn send_empty(&self, to: &SockAddr) {
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: no bytes are read for length 0; the address outlives the call and has the length given.
        let _ = unsafe { libc::sendto(self.fd(), std::ptr::null(), 0, flags, to.as_ptr(), to.len()) };
    }
}

/// A socket option that the `libc` crate does not define: linux/udp.h.
const UDP_NO_CHECK6_RX: libc::c_int = 102;

/// Longest wait of a blocking receive before the driver checks its state.
const PATIENCE_MS_MAX: u64 = 1024;

/// Length in bytes of an option that is an int.
const INT_LEN: libc::socklen_t = 4;
const _: () = assert!(size_of::<libc::c_int>() == 4);

fn set(fd: RawFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: `value` is an int that outlives the call, as these options require, and its size is given.
    let done = unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), INT_LEN) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Requests buffers beyond the system's limit, which a privileged process may do, and otherwise within it.
fn ask_for_buffers(socket: &socket2::Socket, asked: usize) -> io::Result<Buffers> {
    let fd = socket.as_raw_fd();
    let value = libc::c_int::try_from(asked).unwrap_or(libc::c_int::MAX);
    if set(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, value).is_err() {
        socket.set_recv_buffer_size(asked)?;
    }
    if set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, value).is_err() {
        socket.set_send_buffer_size(asked)?;
    }
    // The kernel doubles a requested size, to account for its own overhead.
    Ok(Buffers { asked, receive: socket.recv_buffer_size()? / 2, send: socket.send_buffer_size()? / 2 })
}

fn refusal(address: SocketAddr, e: io::Error) -> OpenError {
    match e.raw_os_error() {
        Some(libc::EADDRINUSE) => OpenError::InUse { address: address.to_string() },
        Some(libc::EADDRNOTAVAIL) => OpenError::NotHere { address: address.ip().to_string() },
        Some(libc::EACCES | libc::EPERM) => OpenError::NotPermitted {
            doing: format!("open a UDP socket on {address}"),
            remedy: "let the sandbox or security module of this process allow it".into(),
        },
        _ => OpenError::System { doing: format!("open a UDP socket on {address}"), source: e },
    }
}
