//! Addresses of members, as requests name them.

use crate::api::ApiError;
use crate::bounds::NAME_LEN_MAX;
use crate::errors::bad;
use alloc::format;
use alloc::string::String;
use core::net::IpAddr;
use farmem_wire::Gid;

/// Returns the address in a text. An address of no machine, or of several, is refused.
pub(crate) fn parse_gid(text: &str) -> Result<[u8; 16], ApiError> {
    let shown: String = text.chars().take(NAME_LEN_MAX).collect();
    let remedy = "give the IPv4 or IPv6 address others reach it at, without a port: 127.0.0.11, fd00::11";
    let Ok(ip) = text.parse::<IpAddr>() else {
        return Err(bad(format!("{shown:?} is no address"), remedy));
    };
    let gid = match ip {
        IpAddr::V4(v4) => Gid::from_v4(v4.octets()),
        IpAddr::V6(v6) => Gid(v6.octets()),
    };
    let v4 = gid.as_v4().map(core::net::Ipv4Addr::from);
    if ip.is_unspecified()
        || ip.is_multicast()
        || v4.is_some_and(|v4| v4.is_unspecified() || v4.is_broadcast() || v4.is_multicast())
    {
        return Err(bad(format!("{shown} is not the address of one machine"), remedy));
    }
    Ok(gid.0)
}
