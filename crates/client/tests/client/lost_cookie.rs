//! A host proves its address although the first cookie is lost (PROTOCOL 8.74, 8.75).

use crate::forged::{Role, describe};
use farmem_client::UDP_PORT;
use farmem_client::host_parts::{api_client, join_host};
use farmem_control::api::JoinHost;
use farmem_link::{Link as _, UdpConfig, UdpLink, gid_of};
use std::net::{IpAddr, UdpSocket};

/// Bytes of the receive buffer that is asked for; the kernel may give more.
const BUFFER_BYTES: usize = 16 << 10;
/// Datagrams that fill it.
const DATAGRAMS: usize = 4096;

/// The receive buffer of the host is full when the control plane sends the first cookie, so the kernel drops
/// the cookie. The host asks again, and joins.
#[test]
fn a_host_joins_although_its_first_cookie_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = describe(folder.path(), "lost-cookie");
    let control = Role::control(&config);
    let address = config.hosts[0];
    let mut link =
        UdpLink::open(&UdpConfig { buffer_bytes: BUFFER_BYTES, ..UdpConfig::new(gid_of(address)) })
            .expect("the address is free");
    let stranger = UdpSocket::bind((config.hosts[1], 0)).expect("the address is free");
    for _ in 0..DATAGRAMS {
        stranger.send_to(&[0x55; 1024], (address, UDP_PORT)).expect("sent");
    }
    let mut api = api_client(&config).expect("it has the token");
    let joined = join_host(&config, &mut api, &mut link, JoinHost::new("host".into(), address.to_string()));
    let joined = joined.expect("it joins");
    assert_eq!(joined.home.gid.parse(), Ok::<IpAddr, _>(address));
    let dropped = DATAGRAMS as u64 - link.counters().foreign_port;
    assert!(dropped > 0, "the buffer was not full");
    control.end();
}
