//! Packets between addresses of 127.71/16, with separate addresses per test: valid, corrupt, foreign, in
//! runs, too long.

mod lending;

use super::*;
use crate::ip_of;
use std::net::UdpSocket;

const PORT_A: Port = Port(10);
const PORT_B: Port = Port(20);

/// Returns the address 127.71.`test`.`n`.
fn gid(test: u8, n: u8) -> Gid {
    Gid::from_v4([127, 71, test, n])
}

fn open(gid: Gid) -> UdpLink {
    UdpLink::open(&UdpConfig::new(gid)).unwrap()
}

/// Returns two links that are peers, with settings adapted by `change`.
fn pair_with(test: u8, change: impl Fn(UdpConfig) -> UdpConfig) -> (UdpLink, UdpLink) {
    let open = |n| UdpLink::open(&change(UdpConfig::new(gid(test, n)))).unwrap();
    let (mut a, mut b) = (open(1), open(2));
    a.set_peer(PORT_B, Some(gid(test, 2))).unwrap();
    b.set_peer(PORT_A, Some(gid(test, 1))).unwrap();
    (a, b)
}

fn pair(test: u8) -> (UdpLink, UdpLink) {
    pair_with(test, |config| config)
}

fn frame(n: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0x55; len];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    bytes
}

/// Receives until `count` frames have arrived. Loopback delivers before the send returns, so no wait is in
/// vain.
fn gather(link: &mut UdpLink, count: usize) -> Vec<(Port, Vec<u8>)> {
    let mut got = Vec::new();
    while got.len() < count {
        let patience = Wait::AtMost(Duration::from_secs(60));
        let handed = link.receive(patience, &mut |port, bytes| got.push((port, bytes.to_vec()))).unwrap();
        assert!(handed > 0, "{} of {count} frames: {:?}", got.len(), link.counters());
    }
    got
}

/// Returns all waiting frames.
fn drain(link: &mut UdpLink) -> Vec<(Port, Vec<u8>)> {
    let mut got = Vec::new();
    while !matches!(
        link.take(libc::MSG_DONTWAIT, &mut |run| {
            got.extend(run.frames.iter().map(|frame| (run.port, frame.to_vec())));
        })
        .unwrap(),
        Received::Nothing
    ) {}
    got
}

/// Returns a plain socket that can send anything.
fn stranger(gid: Gid) -> UdpSocket {
    UdpSocket::bind((ip_of(gid), UDP_PORT)).unwrap()
}

/// Returns `frame` with the ICRC for the path from `src` to `dst`.
fn sealed(src: Gid, dst: Gid, ip_id: u16, frame: &[u8]) -> Vec<u8> {
    let mut packet = frame.to_vec();
    icrc::seal(&Route { src, dst, src_port: UDP_PORT, ip_id }, &mut packet, 0);
    packet
}

/// Frames of every length arrive in both directions, with and without runs, sleeping and polling.
#[test]
fn frames_go_both_ways() {
    let settings =
        [(Waiting::Block, true), (Waiting::Block, false), (Waiting::Spin, true), (Waiting::Spin, false)];
    for (test, (waiting, segmentation)) in (1..).zip(settings) {
        let (mut a, mut b) = pair_with(test, |config| UdpConfig { waiting, segmentation, ..config });
        for (n, len) in (0..).zip([12, 13, 64, 4096, FRAME_MAX]) {
            a.send(PORT_B, &frame(n, len));
            a.flush().unwrap();
            assert_eq!(gather(&mut b, 1), [(PORT_A, frame(n, len))]);
            b.send(PORT_A, &frame(n, len));
            b.flush().unwrap();
            assert_eq!(gather(&mut a, 1), [(PORT_B, frame(n, len))]);
        }
        assert_eq!((a.counters().lost(), a.counters().frames_in, a.counters().frames_out), (0, 5, 5));
        assert_eq!(a.counters().bytes_in, b.counters().bytes_out);
    }
}

/// Batches of mixed lengths and peers are sent, with and without runs, to receivers with and without support
/// for runs. Every frame arrives once, in order, with the right ICRC for the identification of its place in
/// the run.
#[test]
fn batches_arrive_whole_whatever_either_end_can_do() {
    let cases = [(true, true), (true, false), (false, true), (false, false)];
    for (test, (sends_runs, takes_runs)) in (10..).zip(cases) {
        let config = |n, segmentation| UdpConfig { segmentation, ..UdpConfig::new(gid(test, n)) };
        let mut a = UdpLink::open(&config(1, sends_runs)).unwrap();
        let mut b = UdpLink::open(&config(2, takes_runs)).unwrap();
        let mut c = UdpLink::open(&config(3, takes_runs)).unwrap();
        a.set_peer(PORT_B, Some(gid(test, 2))).unwrap();
        a.set_peer(Port(30), Some(gid(test, 3))).unwrap();
        b.set_peer(PORT_A, Some(gid(test, 1))).unwrap();
        let lens = [64, 64, 64, 40, 64, 4096, 4096, 4096, 4096, 12, 12, 2000, 64];
        let mut to_b = Vec::new();
        for n in 0..200 {
            let len = lens[n as usize % lens.len()];
            a.send(PORT_B, &frame(n, len));
            to_b.push((PORT_A, frame(n, len)));
            if n % 50 == 49 {
                a.send(Port(30), &frame(n, 100));
            }
        }
        a.flush().unwrap();
        assert_eq!(gather(&mut b, 200), to_b);
        let to_c: Vec<_> = [49, 99, 149, 199].map(|n| (Port::UNKNOWN, frame(n, 100))).into();
        assert_eq!(gather(&mut c, 4), to_c);
        let lost = [&a, &b, &c].map(|link| link.counters().lost());
        assert_eq!(lost, [0; 3], "runs sent: {sends_runs}, taken: {takes_runs}");
    }
}

/// Two links exchange frames over IPv6.
#[test]
fn frames_go_over_ipv6() {
    let here = Gid(std::net::Ipv6Addr::LOCALHOST.octets());
    let Ok(mut link) = UdpLink::open(&UdpConfig::new(here)) else {
        eprintln!("skipped: no IPv6 loopback, or [::1]:4791 is in use");
        return;
    };
    link.set_peer(PORT_A, Some(here)).unwrap();
    for n in 0..10 {
        link.send(PORT_A, &frame(n, 1024));
    }
    link.flush().unwrap();
    let wanted: Vec<_> = (0..10).map(|n| (PORT_A, frame(n, 1024))).collect();
    assert_eq!(gather(&mut link, 10), wanted);
    assert_eq!(link.counters().bad_icrc, 0);
    let text = link.set_peer(PORT_B, Some(gid(0, 1))).unwrap_err().to_string();
    assert!(text.contains("::1 cannot reach 127.71.0.1: one is IPv4, the other IPv6"), "{text}");
}

/// A switch on the path corrupts a packet, and a stranger sends invalid ones. Each is dropped and counted
/// separately, and valid packets around them arrive.
#[test]
fn bad_packets_are_counted_and_dropped() {
    let mut b = open(gid(20, 2));
    b.set_peer(PORT_A, Some(gid(20, 1))).unwrap();
    let a = stranger(gid(20, 1));
    let to_b = (ip_of(gid(20, 2)), UDP_PORT);
    let good = sealed(gid(20, 1), gid(20, 2), 0, &frame(1, 64));
    let mut flipped = good.clone();
    flipped[30] ^= 4;
    let too_long = sealed(gid(20, 1), gid(20, 2), 0, &frame(2, FRAME_MAX + 1));
    for packet in [&good[..], &flipped, &good[..good.len() - 1], &[1, 2, 3], &too_long, &good] {
        a.send_to(packet, to_b).unwrap();
    }
    assert_eq!(drain(&mut b), [(PORT_A, frame(1, 64)), (PORT_A, frame(1, 64))]);
    let counters = b.counters();
    assert_eq!((counters.short, counters.long, counters.bad_icrc), (1, 1, 2), "{counters:?}");
}

/// A Soft-RoCE card chooses any identification for its packets. A link accepts them only if it is configured
/// to solve for the identification.
#[test]
fn an_unpredictable_identification_is_solved_for_when_asked() {
    for (test, must_solve) in [(21, true), (22, false)] {
        let config = UdpConfig { solve_unknown_ip_id: must_solve, ..UdpConfig::new(gid(test, 2)) };
        let mut b = UdpLink::open(&config).unwrap();
        let a = stranger(gid(test, 1));
        for n in 0..4_u16 {
            let ip_id = [0, 63, 64, 0xbeef][usize::from(n)];
            let packet = sealed(gid(test, 1), gid(test, 2), ip_id, &frame(u32::from(n), 64));
            a.send_to(&packet, (ip_of(gid(test, 2)), UDP_PORT)).unwrap();
        }
        let taken: Vec<u32> =
            drain(&mut b).iter().map(|(_, f)| u32::from_be_bytes(f[..4].try_into().unwrap())).collect();
        let wanted: &[u32] = if must_solve { &[0, 1, 2, 3] } else { &[0, 1] };
        assert_eq!((taken, b.counters().bad_icrc), (wanted.to_vec(), 4 - wanted.len() as u64));
    }
}

/// A node answers a host whose port it does not know: the frame arrives from no known port. After `set_peer`,
/// it arrives from its port; then the port moves.
#[test]
fn a_source_is_the_port_that_is_there_now() {
    let mut b = open(gid(23, 2));
    let mut a = open(gid(23, 1));
    a.set_peer(PORT_B, Some(gid(23, 2))).unwrap();
    let mut from = |known: Option<(Port, Option<Gid>)>| {
        if let Some((port, gid)) = known {
            b.set_peer(port, gid).unwrap();
        }
        a.send(PORT_B, &frame(0, 64));
        a.flush().unwrap();
        gather(&mut b, 1)[0].0
    };
    assert_eq!(from(None), Port::UNKNOWN);
    assert_eq!(from(Some((PORT_A, Some(gid(23, 1))))), PORT_A);
    assert_eq!(from(Some((Port(11), Some(gid(23, 1))))), Port(11));
    assert_eq!(from(Some((Port(11), None))), PORT_A);
    assert_eq!(from(Some((PORT_A, Some(gid(23, 9))))), Port::UNKNOWN);
    assert_eq!(b.counters().unknown_source, 2);
}

/// Frames that cannot be sent are counted, each kind separately, and the link continues.
#[test]
fn what_cannot_be_sent_is_counted() {
    let (mut a, mut b) = pair(24);
    a.set_peer(Port(40), Some(Gid::from_v4([255, 255, 255, 255]))).unwrap();
    a.send(Port(99), &frame(0, 64));
    a.send(PORT_B, &frame(0, FRAME_MAX + 1));
    a.send(PORT_B, &frame(0, bth::LEN - 1));
    a.send(Port(40), &frame(0, 64));
    a.send(PORT_B, &frame(1, 64));
    a.flush().unwrap();
    let counters = a.counters();
    assert_eq!((counters.no_address, counters.long, counters.short, counters.send_refused), (1, 1, 1, 1));
    assert!(a.last_refusal().is_some(), "broadcast needs a permission that is not asked for");
    assert_eq!(gather(&mut b, 1), [(PORT_A, frame(1, 64))]);
}

/// More frames than a batch holds leave in several batches, without a flush.
#[test]
fn a_full_batch_leaves_by_itself() {
    let (mut a, mut b) = pair(25);
    for n in 0..150 {
        a.send(PORT_B, &frame(n, 4096));
    }
    assert!(a.counters().frames_out > 0);
    a.flush().unwrap();
    assert_eq!(gather(&mut b, 150).len(), 150);
}

/// A second instance, another machine's address, and a wildcard are refused, each with a remedy.
#[test]
fn what_cannot_be_opened_says_why_and_what_to_do() {
    let refusal = |gid| UdpLink::open(&UdpConfig::new(gid)).unwrap_err().to_string();
    let first = open(gid(26, 1));
    let text = refusal(gid(26, 1));
    assert_eq!(text, "another instance is running on 127.71.26.1:4791; stop it or choose another address");
    drop(first);
    open(gid(26, 1));
    let text = refusal(Gid::from_v4([192, 0, 2, 1]));
    assert!(text.starts_with("192.0.2.1 is not an address of this machine; choose"), "{text}");
    let text = refusal(Gid::from_v4([0, 0, 0, 0]));
    assert!(text.starts_with("address cannot be 0.0.0.0; the ICRC covers the address"), "{text}");
}

/// If the kernel grants less than requested, the link reports that with the remedy.
#[test]
fn buffers_that_are_too_small_are_admitted() {
    let buffers = Buffers { asked: 4 << 20, receive: 212_992, send: 4 << 20 };
    let advice = buffers.advice().unwrap();
    assert!(
        advice.contains("got 212992 to receive") && advice.contains("net.core.rmem_max=4194304"),
        "{advice}"
    );
    assert_eq!(Buffers { receive: 4 << 20, ..buffers }.advice(), None);
    let given = open(gid(27, 1)).buffers();
    assert!(given.asked == BUFFER_BYTES && given.receive > 0 && given.send > 0);
}

/// A waker ends a wait without end, even if the call came before the wait; nothing is counted.
#[test]
fn a_waker_ends_the_wait() {
    for (test, waiting) in [(28, Waiting::Block), (29, Waiting::Spin), (80, Waiting::Precise)] {
        let mut a = UdpLink::open(&UdpConfig { waiting, ..UdpConfig::new(gid(test, 1)) }).unwrap();
        let waker = a.waker().unwrap();
        let for_ever = Wait::AtMost(Duration::from_secs(1_000_000));
        waker.wake();
        assert_eq!(a.receive(for_ever, &mut |_, _| ()).unwrap(), 0);
        let other = std::thread::spawn(move || waker.wake());
        assert_eq!(a.receive(for_ever, &mut |_, _| ()).unwrap(), 0);
        other.join().unwrap();
        assert_eq!(a.counters(), LinkCounters::default());
    }
}

/// A sleeper ends its sleep when a frame arrives, which is then available without another wait, and when a
/// waker calls.
#[test]
fn a_sleeper_waits_beside_its_link() {
    for (test, waiting) in [(32, Waiting::Block), (33, Waiting::Spin), (81, Waiting::Precise)] {
        let mut a = UdpLink::open(&UdpConfig { waiting, ..UdpConfig::new(gid(test, 1)) }).unwrap();
        let mut b = open(gid(test, 2));
        b.set_peer(Port::SWITCH, Some(gid(test, 1))).unwrap();
        let (mut sleeper, waker) = (a.sleeper().unwrap(), a.waker().unwrap());
        let for_ever = Duration::from_secs(1_000_000);
        let mut came = 0;
        while came == 0 {
            if a.may_sleep() {
                b.send(Port::SWITCH, &frame(1, 40));
                b.flush().unwrap();
                sleeper.sleep(for_ever).unwrap();
            }
            came += a.receive(Wait::No, &mut |_, _| ()).unwrap();
        }
        assert_eq!(came, 1);
        while a.receive(Wait::No, &mut |_, _| ()).unwrap() > 0 {}
        let other = std::thread::spawn(move || waker.wake());
        sleeper.sleep(for_ever).unwrap();
        other.join().unwrap();
    }
}

/// A wait without any event ends by itself.
#[test]
fn a_wait_ends_in_time() {
    for (test, waiting) in [(30, Waiting::Block), (31, Waiting::Spin), (82, Waiting::Precise)] {
        let mut a = UdpLink::open(&UdpConfig { waiting, ..UdpConfig::new(gid(test, 1)) }).unwrap();
        for wait in [Wait::No, Wait::AtMost(Duration::ZERO), Wait::AtMost(Duration::from_micros(50))] {
            assert_eq!(a.receive(wait, &mut |_, _| ()).unwrap(), 0);
        }
    }
}

/// A parcel leaves, and is counted, when it is sent, or when its owner requests the next; meanwhile the link
/// works independently.
#[test]
fn a_parcel_leaves_when_it_is_handed_over() {
    let (mut a, mut b) = pair(19);
    let mut parcel = UdpParcel::default();
    a.send(PORT_B, &frame(1, 64));
    a.flush_into(&mut parcel);
    a.flush().unwrap();
    assert_eq!(drain(&mut b), []);
    a.send(PORT_B, &frame(2, 64));
    a.flush().unwrap();
    assert_eq!(gather(&mut b, 1), [(PORT_A, frame(2, 64))], "the link's own frames do not wait for it");
    parcel.hand_over();
    assert_eq!(gather(&mut b, 1), [(PORT_A, frame(1, 64))]);
    parcel.hand_over();
    assert_eq!(drain(&mut b), [], "once");
    a.send(PORT_B, &frame(3, 64));
    a.flush_into(&mut parcel);
    assert_eq!(a.counters().frames_out, 2, "the second parcel is still there");
    a.flush_into(&mut parcel);
    assert_eq!(gather(&mut b, 1), [(PORT_A, frame(3, 64))]);
    assert_eq!((a.counters().frames_out, a.counters().bytes_out, a.counters().lost()), (3, 3 * 64, 0));
}

/// PROTOCOL 1.6: any process of a machine can send from its address, but not from the port of its role's
/// socket. A packet of another process is not the role's, even with a correct ICRC. The link drops and counts
/// it. The role's own packets around it arrive.
#[test]
fn what_comes_from_another_source_port_is_dropped_and_counted() {
    let (mut a, mut b) = pair(34);
    let stray = UdpSocket::bind((ip_of(gid(34, 1)), 0)).unwrap();
    let from = stray.local_addr().unwrap().port();
    let route = Route { src: gid(34, 1), dst: gid(34, 2), src_port: from, ip_id: 0 };
    let mut packet = frame(9, 64);
    icrc::seal(&route, &mut packet, 0);
    for n in 0..3 {
        a.send(PORT_B, &frame(n, 64));
        a.flush().unwrap();
        stray.send_to(&packet, (ip_of(gid(34, 2)), UDP_PORT)).unwrap();
    }
    assert_eq!(drain(&mut b), [0, 1, 2].map(|n| (PORT_A, frame(n, 64))));
    assert_eq!((b.counters().foreign_port, b.counters().frames_in, b.counters().unknown_source), (3, 3, 0));
    assert_eq!(b.counters().lost(), 0, "it was not meant for us");
}

/// PROTOCOL 1.6: no other process can bind the role's own port, neither at its address nor at all addresses,
/// with any socket options.
#[test]
fn the_source_port_of_a_role_cannot_be_shared() {
    use socket2::{Domain, Protocol, SockAddr, Socket, Type};
    let _role = open(gid(35, 1));
    for address in [ip_of(gid(35, 1)), std::net::IpAddr::from([0, 0, 0, 0])] {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.set_reuse_port(true).unwrap();
        let refused = socket.bind(&SockAddr::from(std::net::SocketAddr::new(address, UDP_PORT))).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }
}

/// PROTOCOL 1.7: cards choose their source port, and a link configured for cards accepts any.
#[test]
fn a_card_sends_from_any_port() {
    let config = UdpConfig { any_source_port: true, ..UdpConfig::new(gid(36, 2)) };
    let mut b = UdpLink::open(&config).unwrap();
    b.set_peer(PORT_A, Some(gid(36, 1))).unwrap();
    let card = UdpSocket::bind((ip_of(gid(36, 1)), 0)).unwrap();
    let src_port = card.local_addr().unwrap().port();
    let mut packet = frame(9, 64);
    icrc::seal(&Route { src: gid(36, 1), dst: gid(36, 2), src_port, ip_id: 0 }, &mut packet, 0);
    card.send_to(&packet, (ip_of(gid(36, 2)), UDP_PORT)).unwrap();
    assert_eq!(drain(&mut b), [(PORT_A, frame(9, 64))]);
    assert_eq!(b.counters().foreign_port, 0);
}

/// Returns the number of datagrams of one system call, and the senders of the frames in them.
fn take_once(link: &mut UdpLink) -> (usize, Vec<Port>) {
    let Some(datagrams) = lock(&link.inbound).receive(&link.socket, libc::MSG_DONTWAIT).unwrap() else {
        return (0, Vec::new());
    };
    // The datagram is kept for the link, which checks it.
    lock(&link.inbound).keep_again();
    let mut from = Vec::new();
    link.take(libc::MSG_DONTWAIT, &mut |run| from.extend(run.frames.iter().map(|_| run.port))).unwrap();
    (datagrams, from)
}

/// Three peers have a connection each to one link. Their packets wait for the same slots. One system call
/// receives packets of all three, in order of arrival, and never more than there are slots. The packets that
/// a peer sends at once are one message: a batch of requests is one datagram, delivered by one call.
#[test]
fn all_connections_of_a_link_take_from_one_receive_queue() {
    const REQUESTS: usize = 12;
    let mut queue = open(gid(60, 1));
    let mut peers: Vec<UdpLink> = (2..5).map(|n| open(gid(60, n))).collect();
    for (n, peer) in (2..).zip(&mut peers) {
        queue.set_peer(Port(n), Some(gid(60, u8::try_from(n).unwrap()))).unwrap();
        peer.set_peer(PORT_A, Some(gid(60, 1))).unwrap();
        (0..REQUESTS).for_each(|request| peer.send(PORT_A, &frame(u32::try_from(request).unwrap(), 28)));
        peer.flush().unwrap();
    }
    let (datagrams, from) = take_once(&mut queue);
    assert_eq!(datagrams, peers.len(), "a batch is one message");
    let in_order: Vec<Port> = (2..5).flat_map(|n| [Port(n); REQUESTS]).collect();
    assert_eq!(from, in_order, "one call took them all");
    // The peers send in turn, more packets than there are slots.
    for turn in 0..inbound::SLOTS {
        for peer in &mut peers {
            peer.send(PORT_A, &frame(u32::try_from(turn).unwrap(), 28));
            peer.flush().unwrap();
        }
    }
    let mut taken = Vec::new();
    while let (datagrams @ 1.., from) = take_once(&mut queue) {
        assert!(datagrams <= inbound::SLOTS && datagrams == from.len(), "{datagrams}");
        taken.extend(from);
    }
    let in_turn: Vec<Port> = (0..inbound::SLOTS).flat_map(|_| [Port(2), Port(3), Port(4)]).collect();
    assert_eq!(taken, in_turn);
    assert_eq!(queue.counters().lost(), 0);
}

/// The answers of two READs of 64 KiB, in packets of 4 KiB, arrive from one peer, and then a packet of
/// another. The datagrams of one call are delivered together, in order, peer by peer. So the receiver can
/// place the bytes of each READ by one call (PROTOCOL 17.20), and not by sixteen.
#[test]
fn what_comes_together_is_handed_over_together() {
    const PACKETS: u32 = 32;
    /// Number of datagrams for 131,584 bytes, with 65,507 bytes each.
    const DATAGRAMS: usize = 3;
    let (mut a, mut b) = pair(61);
    let mut c = open(gid(61, 3));
    c.set_peer(PORT_B, Some(gid(61, 2))).unwrap();
    b.set_peer(Port(30), Some(gid(61, 3))).unwrap();
    (0..PACKETS).for_each(|n| a.send(PORT_B, &frame(n, 4096 + 16)));
    a.flush().unwrap();
    c.send(PORT_B, &frame(99, 64));
    c.flush().unwrap();
    let patience = Wait::AtMost(Duration::from_secs(60));
    let (mut runs, mut taken): (Vec<(Port, Vec<u32>)>, _) = (Vec::new(), 0);
    while taken < PACKETS as usize + 1 {
        let handed = b.receive_runs(patience, &mut |run| {
            let numbers = run.frames.iter().map(|frame| u32::from_be_bytes(frame[..4].try_into().unwrap()));
            runs.push((run.port, numbers.collect()));
        });
        taken += handed.unwrap();
    }
    let of = |from: Port| runs.iter().filter(move |(port, _)| *port == from).flat_map(|(_, numbers)| numbers);
    assert!(of(PORT_A).copied().eq(0..PACKETS), "{runs:?}");
    assert!(of(Port(30)).eq(&[99]), "{runs:?}");
    // Frames of one datagram arrive by one call, for any number of calls.
    if a.outbound.segments() && b.socket.coalesce() {
        assert!(runs.len() <= DATAGRAMS + 1, "{runs:?}");
    } else {
        eprintln!("skipped: this kernel does not put packets together, so each may be handed over alone");
    }
    // No run exceeds the maximum.
    let many = u32::try_from(2 * RUN_MAX).unwrap() + 1;
    (0..many).for_each(|n| a.send(PORT_B, &frame(n, 64)));
    a.flush().unwrap();
    let mut lens = Vec::new();
    while lens.iter().sum::<usize>() < many as usize {
        b.receive_runs(patience, &mut |run| lens.push(run.frames.len())).unwrap();
    }
    assert!(lens.iter().all(|len| *len <= RUN_MAX), "{lens:?}");
    assert_eq!((a.counters().lost(), b.counters().lost()), (0, 0));
}
