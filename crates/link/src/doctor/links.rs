//! Path probes from one machine: the largest datagram that the system sends to an address, and whether a port
//! refuses it.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

/// Maximum time to wait for a refusal.
const REFUSAL_TIME_MAX: Duration = Duration::from_millis(200);

/// Returns the length of the largest IP packet that the system sends to an address. This is the MTU of the
/// outgoing link, or a smaller learned path MTU.
///
/// # Errors
/// The system's error, for example if there is no route.
pub fn path_mtu(to: IpAddr) -> io::Result<usize> {
    let socket = connected(to, 9)?;
    let (level, name) =
        if to.is_ipv4() { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    let mut mtu: libc::c_int = 0;
    let mut len = libc::socklen_t::try_from(size_of::<libc::c_int>()).expect("4 bytes");
    let descriptor = socket.as_raw_fd();
    // SAFETY: both pointers lead to a number, and the socket is open.
    let result = unsafe { libc::getsockopt(descriptor, level, name, (&raw mut mtu).cast(), &raw mut len) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    usize::try_from(mtu).map_err(io::Error::other)
}

/// Returns true if the machine at an address reports that a UDP port is closed. Returns false if no report
/// arrives: a role listens, or a firewall drops packets.
///
/// # Errors
/// The system's error, for example if there is no route.
pub fn is_refused(to: IpAddr, port: u16) -> io::Result<bool> {
    let socket = connected(to, port)?;
    socket.set_read_timeout(Some(REFUSAL_TIME_MAX))?;
    // A datagram of one byte is too short for a packet, so a role counts and drops it.
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

/// Returns the number of bytes of memory that the system can give to programs without reclaiming used memory;
/// `None` if unknown.
#[must_use]
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loopback accepts packets of any size. A port is refused while it is closed, and not while a socket is
    /// bound to it.
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
