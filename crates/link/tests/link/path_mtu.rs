//! Forged ICMP messages "fragmentation needed" (IPv4) and "packet too big" (IPv6) between two machines that
//! exchange pages. With one packet to a host, an attacker could otherwise cut its paths for ten minutes.
//!
//! Links use the MTU of their own device, and ignore messages of the network (PROTOCOL 2.14). Their packets
//! keep the identification, which the ICRC covers (PROTOCOL 2.9).

use farmem_link::{Link as _, UdpConfig, UdpLink, Wait, gid_of};
use farmem_machine::{Duration, Port};
use farmem_testkit::Namespaces;
use farmem_wire::{Gid, UDP_PORT};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};

/// The machine that sends pages, the one that receives them, and a third party behind that.
const NAMES: [&str; 3] = ["a", "b", "c"];
const A: [&str; 2] = ["10.9.0.1", "fd09::1"];
const B: [&str; 2] = ["10.9.0.2", "fd09::2"];
const C: [&str; 2] = ["10.9.1.2", "fd09:1::2"];
/// The MTUs that the third party claims, and the kernel's resulting ones.
const CLAIMED: [u16; 2] = [552, 1280];
/// Length of a frame with a page and the headers before it.
const FRAME: usize = 4096 + 16;
const PEER: Port = Port(7);
/// Maximum number of waits of 20 ms for a page, and of claims until the kernel believes one.
const WAITS_MAX: usize = 500;
const CLAIMS_MAX: usize = 1000;

fn joined(test: &str) -> Option<Namespaces> {
    let all = Namespaces::new(test, &NAMES)?;
    for (from, to, net) in [("a", "b", 0), ("c", "b", 1)] {
        all.ip(
            from,
            &format!("link add eth0 mtu 4200 type veth peer name eth{net} mtu 4200 netns {}", all.full(to)),
        );
    }
    // Segments are split before they leave, so a capture shows the packets of a wire.
    all.ip("a", "link set eth0 gso_max_segs 1");
    let v6 = |net| if net == 0 { "fd09:".to_owned() } else { format!("fd09:{net}:") };
    for (name, device, net, host) in
        [("a", "eth0", 0, 1), ("b", "eth0", 0, 2), ("b", "eth1", 1, 1), ("c", "eth0", 1, 2)]
    {
        all.ip(name, &format!("link set {device} up"));
        all.ip(name, &format!("address add 10.9.{net}.{host}/24 dev {device}"));
        all.ip(name, &format!("address add {}:{host}/64 dev {device} nodad", v6(net)));
    }
    for setting in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
        all.sysctl("b", setting);
    }
    for (name, net, gateway) in [("a", 0, 2), ("c", 1, 1)] {
        all.ip(name, &format!("route add default via 10.9.{net}.{gateway}"));
        all.ip(name, &format!("-6 route add default via {}:{gateway}", v6(net)));
    }
    Some(all)
}

fn gid(address: &str) -> Gid {
    gid_of(address.parse().expect("an address"))
}

/// Opens a link of `own` with the peer `other`, in a namespace.
fn link(all: &Namespaces, name: &str, own: &'static str, other: &'static str) -> UdpLink {
    all.within(name, move || {
        let mut link = UdpLink::open(&UdpConfig::new(gid(own))).expect("it opens");
        link.set_peer(PEER, Some(gid(other))).expect("it is reached alike");
        link
    })
}

/// Sends `count` pages in one run, and receives frames until all have arrived, or none arrives for a long
/// time.
fn exchange(from: &mut UdpLink, to: &mut UdpLink, count: usize) -> Vec<Vec<u8>> {
    for n in 0..count {
        let mut frame = vec![0x5a; FRAME];
        frame[..8].copy_from_slice(&(n as u64).to_be_bytes());
        from.send(PEER, &frame);
    }
    from.flush().expect("the link works");
    let (mut came, mut waits) = (Vec::new(), 0);
    while came.len() < count && waits < WAITS_MAX && from.counters().lost() == 0 {
        waits += 1;
        let patience = Wait::AtMost(Duration::from_millis(20));
        to.receive(patience, &mut |_, frame| came.push(frame.to_vec())).expect("the link works");
    }
    came
}

/// Sends the third party's claim that a datagram from A to B was too long for a path.
fn claim(all: &Namespaces, v6: bool) {
    let version = usize::from(v6);
    all.within("c", move || {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let octets = |text| match address(text) {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let udp = [UDP_PORT.to_be_bytes(), UDP_PORT.to_be_bytes(), 4140_u16.to_be_bytes(), [0, 0]].concat();
        let mtu = CLAIMED[version].to_be_bytes();
        let mut message = if v6 {
            let header = [&[0x60, 0, 0, 0, 0x10, 0x2c, 17, 64][..], &octets(A[1]), &octets(B[1])].concat();
            [&[2, 0, 0, 0, 0, 0, mtu[0], mtu[1]][..], &header, &udp].concat()
        } else {
            let header =
                [&[0x45, 0, 0x10, 0x40, 0, 0, 0x40, 0, 64, 17, 0, 0][..], &octets(A[0]), &octets(B[0])]
                    .concat();
            [&[3, 4, 0, 0, 0, 0, mtu[0], mtu[1]][..], &header, &udp].concat()
        };
        if !v6 {
            // The kernel computes the checksum only for ICMPv6.
            let words = message.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
            let sum: u32 = words.sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            let checksum = !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded");
            message[2..4].copy_from_slice(&checksum.to_be_bytes());
        }
        let (domain, protocol) =
            if v6 { (Domain::IPV6, Protocol::ICMPV6) } else { (Domain::IPV4, Protocol::ICMPV4) };
        let socket = Socket::new(domain, Type::RAW, Some(protocol)).expect("a raw socket");
        let to = SockAddr::from(SocketAddr::new(address(A[version]), 0));
        assert_eq!(socket.send_to(&message, &to).expect("sent"), message.len());
    });
}

/// Sends the claim until A's kernel believes it.
fn convince(all: &Namespaces, version: usize) {
    let mut claims = 0;
    while !is_believed(all, version) {
        assert!(claims < CLAIMS_MAX, "the news do not arrive: the test proves nothing");
        claims += 1;
        claim(all, version == 1);
    }
}

/// Returns true if A's kernel believes the third party.
fn is_believed(all: &Namespaces, version: usize) -> bool {
    let family = ["-4", "-6"][version];
    all.ip("a", &format!("{family} route get {}", B[version])).contains(&format!("mtu {}", CLAIMED[version]))
}

fn pages_pass_whatever_a_third_party_says(test: &str, v6: bool) {
    let Some(all) = joined(test) else { return };
    let version = usize::from(v6);
    let mut a = link(&all, "a", A[version], B[version]);
    let mut b = link(&all, "b", B[version], A[version]);
    assert_eq!(exchange(&mut a, &mut b, 3).len(), 3, "{:?} {:?}", a.counters(), b.counters());
    assert!(!C[version].is_empty() && !is_believed(&all, version));

    convince(&all, version);
    for count in [1, 8, 40] {
        let came = exchange(&mut a, &mut b, count);
        assert_eq!(came.len(), count, "{:?} {:?} {:?}", a.last_refusal(), a.counters(), b.counters());
        assert!(came.iter().all(|frame| frame.len() == FRAME));
    }
    assert_eq!((a.counters().lost(), b.counters().lost()), (0, 0));
    assert!(is_believed(&all, version), "the kernel still believes it; the link does not ask");
}

/// PROTOCOL 2.14, over IPv4.
#[test]
fn a_forged_icmp_does_not_cut_a_path() {
    pages_pass_whatever_a_third_party_says("icmp", false);
}

/// PROTOCOL 2.14, over IPv6.
#[test]
fn a_forged_icmpv6_does_not_cut_a_path() {
    pages_pass_whatever_a_third_party_says("icmpv6", true);
}

/// PROTOCOL 2.9: every packet has don't-fragment, no IP options, and the identification for which its ICRC
/// was computed. This is 0 in a single packet, and k in the k-th segment of a run. The same holds while the
/// kernel believes in a shorter path.
#[test]
fn the_identification_on_the_wire_is_the_place_in_the_run() {
    let Some(all) = joined("ident") else { return };
    let mut capture = all.within("b", || {
        let socket =
            Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(0x0008))).expect("a packet socket");
        socket.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a socket");
        socket
    });
    let (mut a, mut b) = (link(&all, "a", A[0], B[0]), link(&all, "b", B[0], A[0]));
    let mut expected = Vec::new();
    for believed in [false, true] {
        if believed {
            convince(&all, 0);
        }
        for count in [1_u16, 5, 12] {
            assert_eq!(exchange(&mut a, &mut b, count.into()).len(), usize::from(count));
            expected.extend(0..count);
        }
    }
    let mut seen = Vec::new();
    let mut packet = [0; 5000];
    while seen.len() < expected.len() {
        let len = capture.read(&mut packet).expect("all that was sent is seen");
        let (header, from) = (&packet[..20], &packet[12..16]);
        if from != [10, 9, 0, 1] || header[9] != 17 || len < 28 {
            continue;
        }
        assert_eq!(
            (header[0], header[6], header[7]),
            (0x45, 0x40, 0),
            "no options, don't fragment, no fragment"
        );
        seen.push(u16::from_be_bytes([header[4], header[5]]));
    }
    assert_eq!(seen, expected);
}
