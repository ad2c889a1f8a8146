//! A host proves its address although the first cookie is lost (PROTOCOL 8.74, 8.75).

use crate::forged::{Role, describe};
use farmem_client::UDP_PORT;
use farmem_client::host_parts::{api_client, join_host};
use farmem_control::AddressProof;
use farmem_control::api::JoinHost;
use farmem_link::{Link as _, UdpConfig, UdpLink, gid_of};
use std::net::{IpAddr, UdpSocket};

/// Bytes of the receive buffer that is asked for; the kernel may give more.
const BUFFER_BYTES: usize = 16 << 10;
/// Datagrams that fill it.
const DATAGRAMS: usize = 4096;

/// Foreign joins that name the host's address: more than a join has tries, of which each receives some frames.
const FOREIGN_JOINS: usize = 200;

/// Another holder of the rack's token names the host's address in joins of its own, so cookies of foreign claims
/// wait at the host. They do not use up the tries of the host, which joins.
#[test]
fn a_host_joins_although_foreign_cookies_arrive() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = describe(folder.path(), "foreign-cookies");
    let control = Role::control(&config);
    let address = config.hosts[0];
    let mut link = UdpLink::open(&UdpConfig::new(gid_of(address))).expect("the address is free");
    let mut foreign = api_client(&config).expect("it has the token");
    foreign.show_address(AddressProof::Pending);
    for number in 0..FOREIGN_JOINS {
        let refused = foreign.call(JoinHost::new(format!("foreign{number}"), address.to_string()));
        assert!(refused.is_err(), "the address is not proven");
    }
    let mut api = api_client(&config).expect("it has the token");
    let joined = join_host(&config, &mut api, &mut link, JoinHost::new("host".into(), address.to_string()));
    assert_eq!(joined.expect("it joins").home.gid.parse(), Ok::<IpAddr, _>(address));
    control.end();
}

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
