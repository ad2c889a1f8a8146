//! Tests of a mirror on an interface between two machines (network namespaces joined by a veth pair): the mirror sees
//! clients' requests without the server's help.

use farmem_dpu::parse::resp::Resp;
use farmem_dpu::view::KeySecret;
use farmem_prefetch::MirrorConfig;
use farmem_prefetch::mirror::{MirrorStats, MirrorTap};
use farmem_prefetch::tap::{Watch, tap};
use farmem_testkit::Namespaces;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const SECRET: KeySecret = KeySecret([3, 4]);
const PORT: u16 = 7000;
/// Maximum number of waits, of 10 ms each.
const WAITS_MAX: u32 = 500;

fn joined(test: &str) -> Option<Namespaces> {
    let all = Namespaces::new(test, &["client", "server"])?;
    all.ip("client", &format!("link add eth0 type veth peer name eth0 netns {}", all.full("server")));
    for (name, host) in [("client", 1), ("server", 2)] {
        // Addresses are usable at once.
        all.sysctl(name, "net.ipv6.conf.all.accept_dad=0");
        all.ip(name, "link set eth0 up");
        all.ip(name, &format!("address add 10.8.0.{host}/24 dev eth0"));
        all.ip(name, &format!("address add fd08::{host}/64 dev eth0 nodad"));
    }
    Some(all)
}

/// Creates a client and a server as [`joined`] does; the server's machine forwards packets to a third one.
fn routed(test: &str) -> Option<Namespaces> {
    let all = Namespaces::new(test, &["client", "server", "far"])?;
    let links = [("client", "eth0", "server", "eth0", 8), ("server", "eth1", "far", "eth0", 9)];
    for (one, link, other, of_other, net) in links {
        all.ip(one, &format!("link add {link} type veth peer name {of_other} netns {}", all.full(other)));
        for (name, link) in [(one, link), (other, of_other)] {
            let host = match name {
                "client" => 1,
                "server" => 2,
                _ => 3,
            };
            all.sysctl(name, "net.ipv6.conf.all.accept_dad=0");
            all.ip(name, &format!("link set {link} up"));
            all.ip(name, &format!("address add 10.{net}.0.{host}/24 dev {link}"));
            all.ip(name, &format!("address add fd0{net}::{host}/64 dev {link} nodad"));
        }
    }
    for (name, net) in [("client", 8), ("far", 9)] {
        all.ip(name, &format!("route add default via 10.{net}.0.2"));
        all.ip(name, &format!("-6 route add default via fd0{net}::2"));
    }
    all.sysctl("server", "net.ipv4.ip_forward=1");
    all.sysctl("server", "net.ipv6.conf.all.forwarding=1");
    Some(all)
}

fn config(server: SocketAddr, frames: usize) -> MirrorConfig {
    MirrorConfig { interface: "eth0".into(), server, client: None, frames }
}

fn request(key: &str) -> Vec<u8> {
    format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()).into_bytes()
}

/// Runs a server that reads all bytes, until `stop` is set.
fn serve(address: SocketAddr, stop: &AtomicBool) {
    let listener = TcpListener::bind(address).expect("it binds");
    listener.set_nonblocking(true).expect("it is a socket");
    let mut open: Vec<TcpStream> = Vec::new();
    let mut buf = vec![0; 1 << 16];
    while !stop.load(Ordering::Acquire) {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).expect("it is a socket");
            open.push(stream);
        }
        open.retain_mut(|stream| !matches!(stream.read(&mut buf), Ok(0)));
        thread::sleep(Duration::from_millis(1));
    }
}

/// Starts a server in its namespace: a thread has the namespace of the thread that starts it.
fn begin_server(all: &Namespaces, name: &str, address: SocketAddr, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let stop = Arc::clone(stop);
    all.within(name, move || thread::spawn(move || serve(address, &stop)))
}

/// Connects to a server that may not listen yet.
fn connect(server: SocketAddr) -> TcpStream {
    let connected = (0..WAITS_MAX).find_map(|_| {
        thread::sleep(Duration::from_millis(10));
        TcpStream::connect(server).ok()
    });
    connected.expect("it listens")
}

/// An order to a mirror in its namespace.
enum Order {
    /// Run until this number of keys was seen in all, or time is over.
    Until(usize),
    /// Run for this time.
    While(Duration),
}

/// A running mirror, which answers each order with all keys so far, in order.
struct Mirrored {
    orders: Sender<Order>,
    seen: Receiver<(Vec<String>, MirrorStats)>,
}

impl Mirrored {
    fn begin(all: &Namespaces, config: MirrorConfig) -> Self {
        let ((orders, given), (say, seen)) = (channel(), channel());
        all.within("server", move || {
            let (tap, watch) = tap(1 << 20, SECRET);
            let mirror = MirrorTap::open(&config, tap, || Box::new(Resp::new())).expect("root may");
            // The socket belongs to this namespace, wherever it is used.
            thread::spawn(move || run(mirror, watch, &given, &say));
        });
        Self { orders, seen }
    }

    fn ask(&self, order: Order) -> (Vec<String>, MirrorStats) {
        self.orders.send(order).expect("the mirror runs");
        self.seen.recv().expect("the mirror runs")
    }
}

fn run(
    mut mirror: MirrorTap,
    mut watch: Watch,
    orders: &Receiver<Order>,
    say: &Sender<(Vec<String>, MirrorStats)>,
) {
    let mut keys = Vec::new();
    while let Ok(order) = orders.recv() {
        let waits = match order {
            Order::Until(_) => WAITS_MAX,
            Order::While(time) => u32::try_from(time.as_millis() / 10).expect("a while"),
        };
        for _ in 0..waits {
            while mirror.turn().expect("its socket is there") {}
            let drained = watch.drain(&mut |accesses, _| {
                keys.extend(accesses.iter().map(|one| String::from_utf8_lossy(one.key).into_owned()));
            });
            drained.unwrap();
            if matches!(order, Order::Until(count) if keys.len() >= count) {
                break;
            }
            mirror.wait(Duration::from_millis(10)).expect("its socket is there");
        }
        if say.send((keys.clone(), mirror.stats())).is_err() {
            return;
        }
    }
}

/// Clients send requests in pieces that end anywhere, over IPv4 and IPv6. The mirror sees each key of each connection
/// once and in order, and nothing of another port.
#[test]
fn a_mirror_sees_clients_requests() {
    const EACH: usize = 60;
    // More than all packets of the three connections, so that none is lost even if the mirror is late.
    const FRAMES: usize = 1024;
    for host in ["10.8.0.2", "fd08::2"] {
        let Some(all) = joined("mirror") else { return };
        let server = SocketAddr::new(host.parse().expect("an address"), PORT);
        let other = SocketAddr::new(server.ip(), PORT + 1);
        let stop: Arc<AtomicBool> = Arc::default();
        let servers: Vec<_> =
            [server, other].into_iter().map(|address| begin_server(&all, "server", address, &stop)).collect();
        let mirrored = Mirrored::begin(&all, config(server, FRAMES));
        let sent = 3 * EACH;
        // The mirror runs while they send.
        mirrored.orders.send(Order::Until(sent)).expect("the mirror runs");
        all.within("client", move || {
            let mut connections: Vec<TcpStream> = (0..3).map(|_| connect(server)).collect();
            let mut unseen = connect(other);
            unseen.write_all(&request("of another port")).expect("it reads");
            for n in 0..EACH {
                for (at, connection) in connections.iter_mut().enumerate() {
                    let bytes = request(&format!("c{at}-{n:03}"));
                    let (first, second) = bytes.split_at(n % bytes.len());
                    connection.write_all(first).expect("it reads");
                    connection.write_all(second).expect("it reads");
                }
            }
            // The connection is open until all was seen.
            thread::sleep(Duration::from_millis(50));
        });
        let (keys, stats) = mirrored.seen.recv().expect("the mirror runs");
        assert_eq!(
            (keys.len(), stats.connections, stats.lost_packets, stats.gaps),
            (sent, 3, 0, 0),
            "{stats:?}"
        );
        for at in 0..3 {
            let of_one: Vec<&String> =
                keys.iter().filter(|key| key.starts_with(&format!("c{at}-"))).collect();
            let expected: Vec<String> = (0..EACH).map(|n| format!("c{at}-{n:03}")).collect();
            assert!(of_one.iter().copied().eq(&expected), "{host}: connection {at}");
        }
        stop.store(true, Ordering::Release);
        servers.into_iter().for_each(|server| server.join().expect("it serves"));
    }
}

/// A mirror that runs too late loses packets, and counts them. The connection with a gap is cut off or skips the gap,
/// and the next one is seen whole.
#[test]
fn lost_packets_are_counted() {
    let Some(all) = joined("mirror-loss") else { return };
    let server = SocketAddr::new([10, 8, 0, 2].into(), PORT);
    let stop: Arc<AtomicBool> = Arc::default();
    let serving = begin_server(&all, "server", server, &stop);
    let mirrored = Mirrored::begin(&all, config(server, 4));
    all.within("client", move || {
        let mut connection = connect(server);
        connection.set_nodelay(true).expect("it is a socket");
        for n in 0..300 {
            connection.write_all(&request(&format!("lost{n}"))).expect("it reads");
            thread::sleep(Duration::from_micros(100));
        }
    });
    let (keys, stats) = mirrored.ask(Order::While(Duration::from_millis(200)));
    assert!(stats.lost_packets > 0 && keys.len() < 300, "{stats:?}, {} keys", keys.len());
    let before = keys.len();
    let (orders, seen) = (mirrored.orders, mirrored.seen);
    orders.send(Order::Until(before + 20)).expect("the mirror runs");
    all.within("client", move || {
        let mut connection = connect(server);
        for n in 0..20 {
            connection.write_all(&request(&format!("later{n}"))).expect("it reads");
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(Duration::from_millis(50));
    });
    let (keys, stats) = seen.recv().expect("the mirror runs");
    let later: Vec<&String> = keys.iter().filter(|key| key.starts_with("later")).collect();
    let expected: Vec<String> = (0..20).map(|n| format!("later{n}")).collect();
    assert!(later.iter().copied().eq(&expected), "{stats:?}: {later:?}");
    stop.store(true, Ordering::Release);
    serving.join().expect("it serves");
}

/// Packets for other machines reach the server's interface: with another machine's link address, and of connections
/// that the server forwards as a router. The mirror sees none of them, and all packets for the server. Before the
/// fix, the unspecified address matched every machine, so a DPU saw requests to others (PROTOCOL 19.19).
#[test]
fn packets_for_other_machines_are_not_seen() {
    let Some(all) = routed("mirror-others") else { return };
    let stop: Arc<AtomicBool> = Arc::default();
    let mut servers = Vec::new();
    for (own, far, any) in [("10.8.0.2", "10.9.0.3", "0.0.0.0"), ("fd08::2", "fd09::3", "::")] {
        let at = |host: &str| SocketAddr::new(host.parse().expect("an address"), PORT);
        let (own, far, any) = (at(own), at(far), at(any));
        servers.push(begin_server(&all, "server", own, &stop));
        servers.push(begin_server(&all, "far", far, &stop));
        let mirrored = Mirrored::begin(&all, config(any, 64));
        // The client uses another machine's link address for the server, so no packet is answered.
        let (ip, ask) = (own.ip(), Order::While(Duration::from_millis(200)));
        all.ip("client", &format!("neighbor replace {ip} lladdr 02:00:00:00:00:77 dev eth0 nud permanent"));
        all.within("client", move || {
            TcpStream::connect_timeout(&own, Duration::from_millis(100)).expect_err("no process hears it");
        });
        assert_eq!(mirrored.ask(ask), (Vec::new(), MirrorStats::default()), "of a link that all hear");
        all.ip("client", &format!("neighbor del {ip} dev eth0"));
        mirrored.orders.send(Order::Until(20)).expect("the mirror runs");
        all.within("client", move || {
            let mut both = [(far, "far"), (own, "own")].map(|(at, name)| (connect(at), name));
            for n in 0..20 {
                for (connection, name) in &mut both {
                    connection.write_all(&request(&format!("{name}{n}"))).expect("it reads");
                    thread::sleep(Duration::from_millis(1));
                }
            }
            // The connection is open until all was seen.
            thread::sleep(Duration::from_millis(50));
        });
        let (keys, stats) = mirrored.seen.recv().expect("the mirror runs");
        assert_eq!(keys, (0..20).map(|n| format!("own{n}")).collect::<Vec<_>>(), "{any}");
        let counts = (stats.connections, stats.lost_packets, stats.gaps);
        assert!(counts == (1, 0, 0) && stats.passed_over >= 19, "{any}: {stats:?}");
    }
    stop.store(true, Ordering::Release);
    servers.into_iter().for_each(|server| server.join().expect("it serves"));
}

/// The interface goes down while it is mirrored: the mirror returns and counts an error, instead of waits that end at
/// once. An interface that is down cannot be mirrored.
#[test]
fn an_interface_that_goes_down_is_reported() {
    let Some(all) = joined("mirror-down") else { return };
    let server = SocketAddr::new([10, 8, 0, 2].into(), PORT);
    let open = || {
        all.within("server", move || {
            MirrorTap::open(&config(server, 4), tap(1, SECRET).0, || Box::new(Resp::new()))
        })
    };
    let mut mirror = open().expect("root may");
    mirror.wait(Duration::from_millis(1)).expect("it is up");
    all.ip("server", "link set eth0 down");
    let failed = (0..WAITS_MAX).find_map(|_| mirror.wait(Duration::from_millis(10)).err());
    assert!(failed.expect("it is down").to_string().contains("down"));
    assert_eq!(mirror.stats(), MirrorStats { failed: 1, ..MirrorStats::default() });
    assert!(open().unwrap_err().to_string().contains("down"));
}

/// An absent interface, and invalid settings, are refused with a message.
#[test]
fn invalid_mirrors_are_refused() {
    let server = SocketAddr::new([10, 8, 0, 2].into(), PORT);
    let open = |config: &MirrorConfig| {
        MirrorTap::open(config, tap(1, SECRET).0, || Box::new(Resp::new())).map(drop).unwrap_err().to_string()
    };
    let nowhere = MirrorConfig { interface: "no-such-link".into(), ..config(server, 1) };
    assert!(open(&nowhere).contains("no-such-link"));
    assert!(open(&config(server, 0)).contains("frames"));
    let client = Some("[fd08::1]:1".parse().expect("an address"));
    assert!(open(&MirrorConfig { client, ..config(server, 1) }).contains("one family"));
}
