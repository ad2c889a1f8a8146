//! Conversion between IP addresses, their text and the GIDs that RoCE carries.

use farmem_wire::Gid;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns the GID of an IP address.
#[must_use]
pub fn gid_of(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(v4) => Gid::from_v4(v4.octets()),
        IpAddr::V6(v6) => Gid(v6.octets()),
    }
}

/// Returns the IP address of a GID.
#[must_use]
pub fn ip_of(gid: Gid) -> IpAddr {
    match gid.as_v4() {
        Some(octets) => IpAddr::V4(Ipv4Addr::from(octets)),
        None => IpAddr::V6(Ipv6Addr::from(gid.0)),
    }
}

/// Parses a GID from an IP address such as `127.0.0.11` or an IPv6 address. Returns `None` for other text.
#[must_use]
pub fn parse_gid(text: &str) -> Option<Gid> {
    text.parse().ok().map(gid_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both spellings of an IPv4 address are the same GID, and every GID survives the conversion to an
    /// address and back.
    #[test]
    fn an_address_and_its_gid_are_one() {
        let v4 = parse_gid("127.0.0.11").unwrap();
        assert_eq!(parse_gid("::ffff:127.0.0.11"), Some(v4));
        assert_eq!(ip_of(v4).to_string(), "127.0.0.11");
        let v6 = parse_gid("fd00::1").unwrap();
        assert_eq!(ip_of(v6).to_string(), "fd00::1");
        assert_eq!([v4, v6].map(|gid| gid_of(ip_of(gid))), [v4, v6]);
        assert_eq!(parse_gid("localhost"), None);
    }
}
