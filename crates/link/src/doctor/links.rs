//! Path probes from one machine: the largest datagram that the system sends to an address, and whether a port refuses it.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

/// How long a refusal may take.
const REFUSAL_TIME_MAX: Duration = Duration::from_millis(200);

/// The largest IP packet that the system sends to an address: the MTU of the link that leads there, or of a narrower one that it has heard of.
///
/// # Errors
/// The system's error, for example when there is no route.
pub fn path_mtu(to: IpAddr) -> io::Result<usize> {
    let socket = connected(to, 9)?;
    let (level, name) =
        if to.is_ipv4() { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    let mut mtu: libc::c_int = 0;
    let mut len = libc::socklen_t::try_from(size_of::<libc::c_int>()).expect("4 bytes");
    let descriptor = socket.as_raw_fd();
    // SAFETY: room for a number and for its length, of a socket that is open.
    let result = unsafe { libc::getsockopt(descriptor, level, name, (&raw mut mtu).cast(), &raw mut len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    usize::try_from(mtu).map_err(io::Error::other)
}

/// Whether the machine at an address says that nothing listens at a UDP port there. `false` also where it says nothing at all: a role listens,
/// or a firewall drops what is sent.
///
/// # Errors
/// The system's error, for example when there is no route.
pub fn is_refused(to: IpAddr, port: u16) -> io::Result<bool> {
    let socket = connected(to, port)?;
    socket.set_read_timeout(Some(REFUSAL_TIME_MAX))?;
    // Too short for a packet: a role counts it and drops it.
    socket.send(&[0])?;
    match socket.recv(&mut [0; 1]) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        _ => Ok(false),
    }
}

fn connected(to: IpAddr, port: u16) -> io::Result<UdpSocket> {
    let any: IpAddr = if to.is_ipv4() { [0, 0, 0, 0].into() } else { [0_u16; 8].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect((to, port))?;
    Ok(socket)
}

/// Bytes of memory that the system could give to programs without taking it from others; `None` where it does not say.
#[must_use]
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loopback takes packets of any size; a port is refused when it is closed, and not while a socket has it.
    #[test]
    fn loopback_is_seen_as_it_is() {
        let loopback: IpAddr = [127, 0, 0, 1].into();
        assert!(path_mtu(loopback).expect("there is a way") >= 1280);
        let open = UdpSocket::bind((loopback, 0)).expect("a port");
        let port = open.local_addr().expect("it has one").port();
        assert!(!is_refused(loopback, port).expect("there is a way"));
        drop(open);
        assert!(is_refused(loopback, port).expect("there is a way"));
        assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
