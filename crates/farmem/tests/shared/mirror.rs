//! A DPU process observes what clients send to a program (PD3 5.1; PROTOCOL 19.19). The DPU reads the packets
//! of the loopback interface; the program needs no privilege. The DPU listens only where the rack's
//! description permits. When a mirror fails, prefetching from the program's own reports continues.

use super::ahead::map_of;
use super::dpu::{DPU, client, rack};
use super::dpu_hostile::{ask, guest};
use super::rig::{DOMAIN, TestRack};
use crate::map_program::{SECRET, await_it, options, record};
use farmem::api::ErrorCode;
use farmem::prefetch::parse::records::Request;
use farmem::prefetch::tap::ParserKind;
use farmem::prefetch::{AtDpu, Change, MIRROR_FRAMES, MirrorConfig, Prefetched, Taker};
use farmem::{Client, Error};
use farmem_link::OpenError;
use farmem_link::dpu::{DpuSocket, make_submissions};
use farmem_link::mirror::{FRAMES_MAX, Mirror};
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::thread;

/// Serves a program's port: reads what clients send.
fn serves() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || io::copy(&mut stream, &mut io::sink()));
        }
    });
    server
}

fn packets(server: SocketAddr) -> MirrorConfig {
    MirrorConfig { interface: "lo".into(), server, client: None, frames: MIRROR_FRAMES }
}

/// Returns whether this user may mirror at all, and prints the reason if not. The roles run as the same user.
fn may_mirror(server: SocketAddr) -> bool {
    match Mirror::open(&packets(server)) {
        Err(refused @ OpenError::NotPermitted { .. }) => {
            eprintln!("skipped: {refused}");
            false
        }
        opened => opened.is_ok(),
    }
}

/// Starts a rack whose DPU may mirror these.
fn rack_with(transport: &str, mirror: &[String]) -> TestRack {
    rack(transport, &format!("{DPU}mirror = {mirror:?}\n"))
}

fn come(client: &mut Client) -> AtDpu {
    let map = map_of(client);
    AtDpu::connect(client, &map.form(), (SECRET, Change(1)), options()).unwrap()
}

fn reads(keys: impl IntoIterator<Item = u64>) -> Vec<u8> {
    keys.into_iter().flat_map(|key| record(Request::Read, &key.to_le_bytes(), &[])).collect()
}

/// Waits until the DPU has seen this many reads and has fetched what it wants.
fn settled(dpu: &AtDpu, reads: u64) -> Prefetched {
    let mut last = Prefetched::default();
    await_it("the DPU has seen and fetched all", || {
        last = dpu.prefetched().unwrap();
        last.stats.reads >= reads && last.flying == 0
    });
    last
}

fn takes(taker: &mut Taker, keys: impl IntoIterator<Item = u64>) {
    let mut into = Vec::new();
    for key in keys {
        assert!(taker.take(&key.to_le_bytes(), &mut into).is_some(), "key {key}");
        assert_eq!(into, (key + 1).to_le_bytes());
    }
}

/// Returns the DPU's refusal with its reason.
fn refusal(mirrored: Result<(), Error>) -> (ErrorCode, String) {
    match mirrored {
        Err(Error::Refused(refused)) => (refused.code, format!("{}; {}", refused.message, refused.remedy)),
        went => panic!("{went:?}"),
    }
}

/// Returns the number of mirroring threads of the DPU.
fn mirroring(rack: &TestRack) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{}/task", rack.pid("dpu"))).unwrap();
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("dpu mirror")).count()
}

/// Clients send requests to the program, which hands nothing over. All items are in its zone, none was
/// fetched in vain, and its client sends no packet. A client that sends garbage loses only its own
/// connection. Another connection that the program hands over is prefetched as well. When the program goes,
/// nothing listens any more.
#[test]
fn what_clients_send_is_seen_without_the_program_s_doing() {
    let server = serves();
    if !may_mirror(server) {
        return;
    }
    for transport in ["shm", "udp"] {
        let rack = rack_with(transport, &[format!("lo {server}")]);
        let mut client = client(&rack, DOMAIN);
        let dpu = come(&mut client);
        let (tap, mut taker) = (dpu.tap(), dpu.taker());
        let own = tap.connection_of(ParserKind::HashMap).unwrap();
        let before = client.packets();
        // A connection from before the mirror: the start of a request is unknown.
        let mut early = TcpStream::connect(server).unwrap();
        dpu.mirror(&packets(server), ParserKind::HashMap).unwrap();
        assert_eq!(mirroring(&rack), 1);
        early.write_all(&reads(0..3)).unwrap();
        let mut both = [(); 2].map(|()| TcpStream::connect(server).unwrap());
        let mut many = 0;
        for round in 0..5 {
            for (connection, first) in both.iter_mut().zip([0, 50]) {
                let keys = first + 10 * round..first + 10 * (round + 1);
                let bytes = reads(keys.clone());
                let (one, other) = bytes.split_at(bytes.len() / 3);
                connection.write_all(one).unwrap();
                connection.write_all(other).unwrap();
                many += 10;
                settled(&dpu, many);
                takes(&mut taker, keys);
            }
        }
        let mut nonsense = TcpStream::connect(server).unwrap();
        nonsense.write_all(&[0xff; 100]).unwrap();
        own.received(&reads(100..110));
        many += 10;
        settled(&dpu, many);
        takes(&mut taker, 100..110);
        await_it("nonsense is seen", || dpu.prefetched().unwrap().seen.broken == 1);
        let Prefetched { account, stats, seen, mirror, .. } = dpu.prefetched().unwrap();
        let counts = (account.wanted, account.used, account.late, account.wasted, account.missed());
        assert_eq!(counts, (many, many, 0, 0, 0), "{account:?}");
        assert_eq!((stats.reads, seen.lost_bytes, tap.unseen()), (many, 0, (0, 0)));
        let failures = (mirror.lost_packets, mirror.gaps, mirror.failed);
        assert_eq!((mirror.connections, failures), (3, (0, 0, 0)), "{mirror:?}");
        assert!(mirror.passed_over > 0 && mirror.packets >= 14, "{mirror:?}");
        assert_eq!(client.packets(), before, "the program reads nothing");
        drop(dpu);
        await_it("nothing listens for it", || mirroring(&rack) == 0);
    }
}

/// A program asks for others' packets: another port, another address, all addresses, another interface, and
/// any at all where the description permits none. Each request is refused, and the error says what to do. A
/// permitted but impossible mirror also fails and costs the program none of its quota. The program has one
/// mirror, and is prefetched for all the while.
#[test]
fn what_may_not_be_mirrored_is_refused() {
    let server = serves();
    let rack = rack_with("shm", &[format!("lo {server}"), format!("no-such-link {server}")]);
    let mut client = client(&rack, DOMAIN);
    let dpu = come(&mut client);
    let good = packets(server);
    let other = |server: &str| server.parse::<SocketAddr>().unwrap();
    for wrong in [
        MirrorConfig { server: SocketAddr::new(server.ip(), server.port() ^ 1), ..good.clone() },
        MirrorConfig { server: SocketAddr::new([127, 0, 0, 2].into(), server.port()), ..good.clone() },
        MirrorConfig { server: SocketAddr::new([0, 0, 0, 0].into(), server.port()), ..good.clone() },
        MirrorConfig { server: other("[::1]:80"), ..good.clone() },
        MirrorConfig { interface: "eth0".into(), ..good.clone() },
        MirrorConfig { interface: "lo\0".into(), ..good.clone() },
        MirrorConfig { interface: String::new(), ..good.clone() },
    ] {
        let (code, said) = refusal(dpu.mirror(&wrong, ParserKind::HashMap));
        assert_eq!(code, ErrorCode::NotOwner, "{said}");
        assert!(said.contains(&wrong.server.to_string()) && said.contains("mirror of [dpu]"), "{said}");
    }
    for (wrong, why) in [
        (MirrorConfig { frames: 0, ..good.clone() }, "frames"),
        (MirrorConfig { frames: usize::MAX, ..good.clone() }, "frames"),
        (MirrorConfig { client: Some(other("[fd08::1]:1")), ..good.clone() }, "one family"),
    ] {
        let (code, said) = refusal(dpu.mirror(&wrong, ParserKind::HashMap));
        assert!(code == ErrorCode::BadRequest && said.contains(why), "{said}");
    }
    // So many attempts that they would exceed the machine's memory if they were charged.
    let nowhere = MirrorConfig { interface: "no-such-link".into(), frames: FRAMES_MAX, ..good.clone() };
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib: u64 = memory.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap();
    for _ in 0..=(kib << 10) / nowhere.bytes() {
        let (_, said) = refusal(dpu.mirror(&nowhere, ParserKind::HashMap));
        assert!(said.contains("no-such-link") && said.contains("ip link"), "{said}");
    }
    if may_mirror(server) {
        dpu.mirror(&good, ParserKind::HashMap).unwrap();
        dpu.mirror(&good, ParserKind::HashMap).unwrap();
        let of_one = MirrorConfig { client: Some(other("127.0.0.1:1")), ..good };
        let (code, said) = refusal(dpu.mirror(&of_one, ParserKind::HashMap));
        assert!(code == ErrorCode::Conflict && said.contains("one mirror"), "{said}");
        assert_eq!(mirroring(&rack), 1);
    }
    dpu.tap().connection_of(ParserKind::HashMap).unwrap().received(&reads(0..10));
    settled(&dpu, 10);
    takes(&mut dpu.taker(), 0..10);
    let plain = super::dpu::rack("shm", DPU);
    let mut client = self::client(&plain, DOMAIN);
    let (code, _) = refusal(come(&mut client).mirror(&packets(server), ParserKind::HashMap));
    assert_eq!(code, ErrorCode::NotOwner);
}

/// A DPU without CAP_NET_RAW cannot mirror: the error says so, and the program continues without.
#[test]
fn a_dpu_without_the_privilege_says_so() {
    let server = serves();
    let mut rack = TestRack::start_with("shm", 2, &format!("{DPU}mirror = [\"lo {server}\"]\n"));
    rack.begin("dpu without privileges");
    let mut client = client(&rack, DOMAIN);
    let dpu = come(&mut client);
    let (_, said) = refusal(dpu.mirror(&packets(server), ParserKind::HashMap));
    assert!(said.contains("CAP_NET_RAW") && said.contains("by a tap"), "{said}");
    dpu.tap().connection_of(ParserKind::HashMap).unwrap().received(&reads(0..10));
    settled(&dpu, 10);
    takes(&mut dpu.taker(), 0..10);
}

/// The DPU dies and another starts. A program that reconnects has its mirror again, and new clients are seen.
/// A DPU that may no longer mirror refuses the program, which then connects without a mirror.
#[test]
fn a_dpu_that_is_started_again_mirrors_again() {
    let server = serves();
    if !may_mirror(server) {
        return;
    }
    let mut rack = rack_with("shm", &[format!("lo {server}")]);
    let mut client = client(&rack, DOMAIN);
    let mut dpu = come(&mut client);
    dpu.mirror(&packets(server), ParserKind::HashMap).unwrap();
    for life in 0..2 {
        if life > 0 {
            rack.kill("dpu");
            rack.begin("dpu");
            dpu = dpu.again(&client).unwrap();
        }
        let mut connection = TcpStream::connect(server).unwrap();
        connection.write_all(&reads(0..10)).unwrap();
        settled(&dpu, 10);
        takes(&mut dpu.taker(), 0..10);
        let mirror = dpu.prefetched().unwrap().mirror;
        assert_eq!((mirror.connections, mirror.failed), (1, 0), "life {life}: {mirror:?}");
    }
    rack.kill("dpu");
    let text = std::fs::read_to_string(&rack.config.file).unwrap();
    std::fs::write(&rack.config.file, text.replace("mirror =", "# mirror =")).unwrap();
    rack.begin("dpu");
    let (code, _) = refusal(dpu.again(&client).map(drop));
    assert_eq!(code, ErrorCode::NotOwner);
    dpu.forget_mirror();
    let next = dpu.again(&client).unwrap();
    next.tap().connection_of(ParserKind::HashMap).unwrap().received(&reads(0..10));
    settled(&next, 10);
    takes(&mut next.taker(), 0..10);
}

/// A pair of interfaces that are up, by the name of one; removed on drop.
struct Pair(String);

impl Pair {
    /// Creates a pair; `None`, with a printed reason, where this process may not.
    fn new() -> Option<Self> {
        let name = format!("fm{}a", std::process::id());
        let other = format!("fm{}b", std::process::id());
        let made = ip(&format!("link add {name} type veth peer name {other}"));
        if let Err(why) = made {
            eprintln!("skipped: no interfaces: {why}");
            return None;
        }
        let pair = Self(name);
        for end in [&pair.0, &other] {
            ip(&format!("link set {end} up")).unwrap();
        }
        Some(pair)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _gone = ip(&format!("link del {}", self.0));
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("no command ip (package iproute2): {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Returns the bytes that the DPU has promised to its processes, from its refusal of an excessive request.
fn promised(asks: &DpuSocket) -> u64 {
    let file = make_submissions(1 << 16).unwrap();
    let said = ask(asks, &format!(r#"{{"register":{{"rkey":2,"most":{}}}}}"#, u64::MAX), Some(file.as_fd()));
    let bytes = said.split("for this process and ").nth(1).and_then(|said| said.split(' ').next());
    bytes.and_then(|bytes| bytes.parse().ok()).unwrap_or_else(|| panic!("{said}"))
}

/// The interface of a mirror goes. The loss is counted, prefetching from the program's reports continues, and
/// the program may request another mirror. The memory promised for the ended mirror is released at once,
/// without a request. Previously it stayed unavailable until the program asked again or went.
#[test]
fn a_mirror_whose_interface_goes_costs_itself_only() {
    let server = serves();
    if !may_mirror(server) {
        return;
    }
    let Some(pair) = Pair::new() else { return };
    let rack = rack_with("shm", &[format!("{} {server}", pair.0), format!("lo {server}")]);
    let mut client = client(&rack, DOMAIN);
    let dpu = come(&mut client);
    let of_pair = MirrorConfig { interface: pair.0.clone(), ..packets(server) };
    let other = guest(&rack, &client);
    let before = promised(&other);
    dpu.mirror(&of_pair, ParserKind::HashMap).unwrap();
    let with_one = promised(&other);
    assert!(with_one > before + of_pair.bytes(), "{with_one} bytes, {before} before");
    drop(pair);
    await_it("that is counted", || dpu.prefetched().unwrap().mirror.failed == 1);
    await_it("and its thread ends", || mirroring(&rack) == 0);
    await_it("what it was promised is given back", || promised(&other) == before);
    assert!(dpu.is_served());
    dpu.tap().connection_of(ParserKind::HashMap).unwrap().received(&reads(0..10));
    settled(&dpu, 10);
    takes(&mut dpu.taker(), 0..10);
    let (_, said) = refusal(dpu.mirror(&of_pair, ParserKind::HashMap));
    assert!(said.contains(&of_pair.interface), "{said}");
    assert_eq!(promised(&other), before, "one that cannot be is promised nothing");
    dpu.mirror(&packets(server), ParserKind::HashMap).unwrap();
    assert_eq!(promised(&other), with_one);
    let mut connection = TcpStream::connect(server).unwrap();
    connection.write_all(&reads(10..20)).unwrap();
    settled(&dpu, 20);
    takes(&mut dpu.taker(), 10..20);
    let mirror = dpu.prefetched().unwrap().mirror;
    assert_eq!((mirror.connections, mirror.failed), (1, 1), "{mirror:?}");
}
