//! A thief of the control plane's keys sends in its name while the control plane is down (PROTOCOL 5.11,
//! 9.18). The node believes the forged batch, because nothing distinguishes it. The control plane's next
//! batch then has the thief's number, and the node stops with the reason. After a restart the node receives
//! everything anew, and control plane, switch and node agree.

use farmem_api::ControlStore;
use farmem_client::serve::{self, Stop};
use farmem_client::{Error, NodeId, Rack, RackConfig, UDP_PORT, VirtAddr};
use farmem_link::gid_of;
use farmem_machine::{Action, Halt, Outbox, Port};
use farmem_transport::ud::{self, Endpoint, Peer};
use farmem_wire::icrc::{self, Route};
use farmem_wire::message::{Update, Updates};
use farmem_wire::{
    Body, Domain, Header, HostId, Message, Packet, Perm, Psn, Qkey, Qpn, RequestId, Status, VirtAddr as Va,
};
use serde_json::Value;
use std::iter;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Number of the subnet that the next test tries. Tests of one process run beside each other.
static NEXT: AtomicU8 = AtomicU8::new(0);

/// Bound on every wait in this file.
const PATIENCE: Duration = Duration::from_secs(60);

/// A role in its own thread.
pub(crate) struct Role {
    stop: Stop,
    thread: JoinHandle<Result<(), Error>>,
}

impl Role {
    /// Starts the role and waits until it serves.
    fn start(
        config: &RackConfig,
        serve: impl for<'a> FnOnce(&'a RackConfig, serve::Serving<'a>) -> Result<(), Error> + Send + 'static,
    ) -> Self {
        let (config, stop) = (config.clone(), Stop::new());
        let (say, begun) = mpsc::channel();
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || {
                let mut begun = || say.send(()).expect("the test waits");
                serve(&config, serve::Serving::new(&stop, &mut begun))
            }
        });
        match begun.recv_timeout(PATIENCE) {
            Ok(()) => Self { stop, thread },
            Err(_) => panic!("it does not serve: {:?}", thread.join()),
        }
    }

    pub(crate) fn control(config: &RackConfig) -> Self {
        Self::start(config, |config, serving| serve::control(config, serving))
    }

    fn node(config: &RackConfig) -> Self {
        Self::start(config, |config, serving| serve::node(config, &config.nodes[0], serving))
    }

    pub(crate) fn end(self) {
        self.stop.set();
        self.thread.join().expect("no panic").expect("it ends in peace");
    }

    /// Waits until the role ends by itself with an error.
    fn ended(self) -> Error {
        let (say, ended) = mpsc::channel();
        std::thread::spawn(move || drop(say.send(self.thread.join().expect("no panic"))));
        ended.recv_timeout(PATIENCE).expect("it ends by itself").expect_err("it has a reason")
    }
}

/// The secrets that a thief reads from the log.
struct Stolen {
    control: Endpoint,
    node: Endpoint,
    generation: u16,
    /// The number of node 1's next batch.
    next: u64,
}

impl Stolen {
    fn from(state: &Path) -> Self {
        let (_, records) = ControlStore::open(state).expect("the control plane is down");
        let lines: Vec<Value> =
            records.iter().map(|record| serde_json::to_value(record).expect("a line is JSON")).collect();
        let mut joins = lines.iter().filter_map(|line| line.pointer("/Began/what/JoinNode"));
        let join = joins.next().expect("the node has joined");
        assert!(joins.next().is_none(), "once");
        let is_node = |line: &&Value| line.pointer("/Answered/role") == Some(&serde_json::json!({"Node": 1}));
        let answered = lines.iter().filter(is_node).count() as u64;
        assert!(answered > 0, "the node has its tables: {lines:?}");
        let home = lines.iter().find_map(|line| line.get("Home")).expect("the control plane's own");
        Self { control: endpoint(home), node: endpoint(&join["home"]), generation: 1, next: answered + 1 }
    }
}

fn endpoint(key: &Value) -> Endpoint {
    let number = |name: &str| u32::try_from(key[name].as_u64().expect("a number")).expect("32 bits");
    Endpoint { qpn: Qpn::new(number("qpn")), qkey: Qkey(number("qkey")) }
}

/// Sends a batch to node 1 in the control plane's name, from its address and the thief's port.
fn send(config: &RackConfig, stolen: &Stolen, update: Update, thief: &UdpSocket) {
    let (from, to) = (config.control.address, config.nodes[0].address);
    let src_port = thief.local_addr().expect("it is bound").port();
    let mut bytes = Vec::new();
    update.emit(&mut bytes);
    let updates = Updates::request(stolen.next, 1, &bytes).expect("one update");
    let low = u32::try_from(stolen.next).expect("few batches");
    let header = Header::request(RequestId::new(HostId(0), stolen.generation, low), 0);
    let peer = Peer { port: Port::node(1), endpoint: stolen.node };
    let mut out: Outbox<(), ()> = Outbox::new();
    ud::send(
        &mut out,
        peer,
        stolen.control.qpn,
        Psn::new(0),
        &Message { header, body: Body::Update(updates) },
    );
    out.drain(|action| {
        let Action::Send { frame, .. } = action else { panic!("one frame") };
        let mut packet = frame.to_vec();
        let route = Route { src: gid_of(from), dst: gid_of(to), src_port, ip_id: 0 };
        icrc::seal(&route, &mut packet, 0);
        thief.send_to(&packet, (to, UDP_PORT)).expect("sent");
    });
}

/// Sends a batch from the control plane's address and port. Returns the node's reply.
fn forge(config: &RackConfig, stolen: &Stolen, update: Update) -> (Status, u64) {
    let thief = UdpSocket::bind((config.control.address, UDP_PORT)).expect("the control plane is down");
    thief.set_read_timeout(Some(PATIENCE)).expect("a socket");
    send(config, stolen, update, &thief);
    let mut answer = [0; 4096];
    loop {
        let len = thief.recv(&mut answer).expect("the node answers");
        let packet = Packet::parse(&answer[..len - icrc::LEN]).expect("a frame");
        let Ok(Message { header, body: Body::Update(updates) }) = Message::parse(packet.payload) else {
            continue;
        };
        return (header.status, updates.seq);
    }
}

/// Describes a rack over UDP, whose name and loopback subnet no other test has.
pub(crate) fn describe(folder: &Path, name: &str) -> RackConfig {
    let [_, _, b, c] = std::process::id().to_be_bytes();
    let numbers = iter::repeat_with(|| NEXT.fetch_add(1, Ordering::Relaxed)).take(256);
    let mut nets = numbers.map(|n| format!("127.{}.{}", 128 + b % 64, c ^ n));
    let is_free = |net: &String| UdpSocket::bind((format!("{net}.1"), UDP_PORT)).is_ok();
    let net = nets.find(|net| !net.ends_with(".0") && is_free(net)).expect("a free subnet");
    let text = format!(
        "name = \"{name}-{}\"\ntransport = \"udp\"\nwaiting = \"block\"\nplacement = \"free\"\npatience = \"4s\"\n\
         [control]\naddress = \"{net}.1\"\nstate = \"state\"\n\
         [switch]\naddress = \"{net}.2\"\n[hosts]\nfirst = \"{net}.200\"\ncount = 20\n\
         [[node]]\nname = \"one\"\naddress = \"{net}.11\"\nmemory = \"16 MiB\"\n",
        std::process::id()
    );
    let file = folder.join("rack.toml");
    std::fs::write(&file, text).expect("written");
    RackConfig::load(&file).expect("a description")
}

#[test]
fn a_node_that_a_thief_of_the_keys_has_told_something_stops_and_is_whole_when_it_joins_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = describe(folder.path(), "forged");
    let control = Role::control(&config);
    let switch = Role::start(&config, |config, serving| serve::switch(config, serving));
    let node = Role::node(&config);
    let rack = Rack::open(&config.file).expect("a rack");
    let mut client = rack.client("owner").expect("a client");
    let vma = client.allocate_on(8192, NodeId(1)).expect("room");
    client.write(vma.base, b"before").expect("written");

    control.end();
    let stolen = Stolen::from(&config.control.state);
    let mut bytes = [0; 6];
    // Another process of that machine cannot use port 4791 while the control plane runs. Its batch is ignored
    // even with every key (PROTOCOL 1.6): the same number with other bytes would stop the node.
    let stray = UdpSocket::bind((config.control.address, 0)).expect("any port");
    send(&config, &stolen, Update::Clear { base: Va(vma.base.0), len: 4096 }, &stray);
    client.read(vma.base, &mut bytes).expect("it is there");
    assert_eq!(&bytes, b"before", "nothing was cleared");
    let takes_away = Update::Protect {
        domain: Domain(1),
        base: Va(vma.base.0),
        len: 4096,
        perm: Perm::None,
        vma_log2: 64,
    };
    assert_eq!(
        forge(&config, &stolen, takes_away),
        (Status::Ok, stolen.next),
        "the forgery is not detectable"
    );
    let asked = client.region_read(vma.base, &mut bytes);
    assert!(matches!(asked, Err(Error::NotMapped { .. })), "it is believed: {asked:?}");

    let control = Role::control(&config);
    let refused = client.allocate_on(4096, NodeId(1));
    let Error::Halted { role, halt } = node.ended() else { panic!("it stops because of the batch") };
    assert_eq!((role.as_str(), halt), ("memory node one", Halt::BatchChanged { seq: stolen.next }));
    assert!(
        matches!(refused, Err(Error::Refused(_))),
        "a node that has stopped answers nothing: {refused:?}"
    );

    let node = Role::node(&config);
    let mut client = rack.client("owner").expect("a client");
    let lost = client.read(vma.base, &mut bytes).expect_err("the node has lost its memory (PROTOCOL 8.44)");
    assert!(
        matches!(lost, Error::MemoryLost { .. }),
        "what was taken away is there again, and lost: {lost:?}"
    );
    client.accept_lost(vma.base, vma.size).expect("accepted");
    client.read(vma.base, &mut bytes).expect("it is there");
    assert_eq!(bytes, [0; 6], "accepted as zeros (PROTOCOL 7.44)");
    let new = client.allocate_on(4096, NodeId(1)).expect("control plane and node agree");
    for base in [vma.base, new.base, VirtAddr(vma.base.0 + 4096)] {
        client.write(base, b"after!").expect("written");
        client.region_read(base, &mut bytes).expect("over the switch, too");
        assert_eq!(&bytes, b"after!");
    }
    client.free(vma.base).expect("freed");
    drop(client);
    [node, switch, control].into_iter().for_each(Role::end);
}
