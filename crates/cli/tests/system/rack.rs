//! Rack that `farmem up` runs for a test.

use crate::frames::Stranger;
use crate::process::{Dir, Ended, Running, eventually, farmem, runs, signal};
use farmem::{Client, Rack};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, process};

/// Description of a rack, with its own directory, name and loopback subnet.
pub(crate) struct Description {
    dir: Dir,
    subnet: [u8; 2],
    _claim: UdpSocket,
    name: String,
    transport: &'static str,
    nodes: u8,
    hosts: u32,
    more: &'static str,
    lease: &'static str,
    /// True when the memory nodes have file directories.
    files: bool,
    /// Index switches: the name, the tier, and the names of the switches below.
    index: Vec<[String; 3]>,
}

impl Description {
    /// Returns a rack of two memory nodes of 16 MiB, with ten client addresses.
    pub(crate) fn new(test: &str, transport: &'static str) -> Self {
        let (subnet, claim) = free_subnet();
        let [b, c] = subnet;
        let name = format!("test-{b}-{c}-{}", process::id());
        Self {
            dir: Dir::new(test),
            subnet,
            _claim: claim,
            name,
            transport,
            nodes: 2,
            hosts: 10,
            more: "",
            lease: "",
            files: false,
            index: Vec::new(),
        }
    }

    pub(crate) fn with_nodes(self, nodes: u8) -> Self {
        Self { nodes, ..self }
    }

    pub(crate) fn with_hosts(self, hosts: u32) -> Self {
        Self { hosts, ..self }
    }

    /// Adds lines to the head of the file.
    pub(crate) fn with(self, more: &'static str) -> Self {
        Self { more, ..self }
    }

    /// Adds a line to the control plane's section of the file.
    pub(crate) fn with_lease(self, lease: &'static str) -> Self {
        Self { lease, ..self }
    }

    /// Gives each memory node a file directory with the node's name, beside the description.
    pub(crate) fn with_files(self) -> Self {
        for n in 1..=self.nodes {
            fs::create_dir(self.dir.path().join(format!("node{n}"))).expect("a new directory");
        }
        Self { files: true, ..self }
    }

    /// Adds a FatTree of `pods` pods with two edge switches each, and a memory node at each edge switch.
    pub(crate) fn with_fat_tree(self, pods: u8) -> Self {
        let switch = |name: String, tier: &str, below: String| [name, tier.to_owned(), below];
        let pod = |n: u8| {
            switch(format!("pod{n}"), "aggregation", format!("\"edge{}\", \"edge{}\"", 2 * n - 1, 2 * n))
        };
        let edge = |n: u8| switch(format!("edge{n}"), "edge", format!("\"node{n}\""));
        let names: Vec<String> = (1..=pods).map(|n| format!("\"pod{n}\"")).collect();
        let core = switch("core".to_owned(), "core", names.join(", "));
        let edges = 2 * pods;
        let index = [core].into_iter().chain((1..=pods).map(pod)).chain((1..=edges).map(edge)).collect();
        Self { nodes: edges, index, ..self }
    }

    /// Returns the address that ends with `last`.
    pub(crate) fn address(&self, last: u8) -> Ipv4Addr {
        let [b, c] = self.subnet;
        Ipv4Addr::new(127, b, c, last)
    }

    pub(crate) fn text(&self) -> String {
        let Self { name, transport, more, hosts, lease, .. } = self;
        // What is dead in a test stays dead, unless the test is about patience.
        let more = match *more {
            more if more.contains("patience") => more.to_owned(),
            "" => PATIENCE.to_owned(),
            more => format!("{PATIENCE}\n{more}"),
        };
        let [control, switch, host] = [1, 2, 100].map(|last| self.address(last));
        let mut text = format!(
            "name = \"{name}\"\ntransport = \"{transport}\"\n{more}\n\
             [control]\naddress = \"{control}\"\nlisten = \"{control}:{HTTP_PORT}\"\nstate = \"state\"\n{lease}\n\
             [switch]\naddress = \"{switch}\"\n\
             [hosts]\nfirst = \"{host}\"\ncount = {hosts}\n"
        );
        for n in 1..=self.nodes {
            let address = self.address(10 + n);
            text += &format!("[[node]]\nname = \"node{n}\"\naddress = \"{address}\"\nmemory = \"16 MiB\"\n");
            if self.files {
                text += &format!("files = \"node{n}\"\n");
            }
        }
        for ([name, tier, below], n) in self.index.iter().zip(30..) {
            let address = self.address(n);
            text += &format!(
                "[[index-switch]]\nname = \"{name}\"\naddress = \"{address}\"\ntier = \"{tier}\"\nbelow = [{below}]\n"
            );
        }
        text
    }

    /// Returns the path of the file. The file is written once, because roles may be reading it.
    pub(crate) fn file(&self) -> String {
        let path = self.dir.path().join("rack.toml");
        if path.exists() { path.display().to_string() } else { self.dir.file("rack.toml", &self.text()) }
    }

    pub(crate) fn dir(&self) -> &Dir {
        &self.dir
    }

    pub(crate) fn rings(&self) -> PathBuf {
        PathBuf::from(format!("/dev/shm/farmem-{}", self.name))
    }

    /// Starts the rack and waits until it serves.
    pub(crate) fn up(&self) -> Up<'_> {
        let file = self.file();
        let mut supervisor = Running::start(farmem(&["up", &file, "--json"]));
        let line = supervisor.line();
        if line.is_empty() {
            panic!("the rack did not come up: {:?}", supervisor.ended());
        }
        let listening = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        Up { description: self, supervisor, listening }
    }

    pub(crate) fn client(&self, domain: &str) -> Client {
        self.rack().client(domain).unwrap_or_else(|e| panic!("{e}\n{}", e.remedy()))
    }

    pub(crate) fn rack(&self) -> Rack {
        Rack::open(self.dir.path().join("rack.toml")).expect("the description is right")
    }

    pub(crate) fn token(&self) -> String {
        fs::read_to_string(self.dir.path().join("state/token")).expect("the rack has a token")
    }

    pub(crate) fn operator(&self) -> String {
        fs::read_to_string(self.dir.path().join("state/operator")).expect("the rack has an operator")
    }

    /// Opens a connection to the API.
    pub(crate) fn api(&self) -> UnixStream {
        UnixStream::connect(self.dir.path().join("state/api.sock")).expect("the API listens")
    }

    /// Sends bytes to the HTTP API and returns the whole answer. A connection that ends without an answer
    /// fails the test with the system's error, which distinguishes a closed connection from a dead server.
    pub(crate) fn http(&self, request: &[u8]) -> String {
        let mut stream = self.api();
        // The server may refuse before it has read the whole request.
        let sent = stream.write_all(request);
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        assert!(!answer.is_empty(), "no answer: sending ended with {sent:?}, reading with {read:?}");
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Sends a request with the operator's token, and returns the status and the body.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        self.ask_with(method, path, "", body)
    }

    /// Sends a request with further header lines, each with its line end.
    pub(crate) fn ask_with(&self, method: &str, path: &str, more: &str, body: &str) -> (u16, Value) {
        let (token, len) = (self.operator(), body.len());
        let answer = self.http(
            format!(
                "{method} {path} HTTP/1.1\r\nHost: rack\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
                 {more}Content-Length: {len}\r\n\r\n{body}"
            )
            .as_bytes(),
        );
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP: {answer:?}"));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok());
        (status.expect("a status"), serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {body}")))
    }

    /// Joins with an address of the rack's network. A socket there receives the cookie that proves the address
    /// (PROTOCOL 8.74).
    pub(crate) fn join(&self, name: &str, address: Ipv4Addr, body: &Value) -> Value {
        self.join_at(&Stranger::new(address, farmem::UDP_PORT), name, "", body)
    }

    /// Joins with the address of a socket, and with further header lines.
    pub(crate) fn join_at(&self, at: &Stranger, name: &str, more: &str, body: &Value) -> Value {
        let (path, body) = (format!("/v1/{name}"), body.to_string());
        let ask =
            |proof: &str| self.ask_with("POST", &path, &format!("Farmem-Address: {proof}\r\n{more}"), &body);
        let (status, answer) = ask("pending");
        if status == 200 {
            return answer;
        }
        assert_eq!((status, text(&answer["code"]).as_str()), (428, "unproven"), "{name}: {answer}");
        let (status, answer) = ask(&cookie_in(&at.receive()));
        assert_eq!(status, 200, "{name}: {answer}");
        answer
    }

    pub(crate) fn overview(&self) -> Value {
        let (status, body) = self.ask("GET", "/v1/overview", "");
        assert_eq!(status, 200, "{body}");
        body
    }
}

/// How long programs of a test wait for roles that are dead.
const PATIENCE: &str = "patience = \"4s\"";

/// Port of the API on the control plane's address, for TLS.
pub(crate) const HTTP_PORT: u16 = 7471;

/// Running rack, which [`Up::stop`] ends with Ctrl-C. A dropped rack is killed.
pub(crate) struct Up<'a> {
    description: &'a Description,
    supervisor: Running,
    listening: Value,
}

impl Up<'_> {
    /// Returns the report of the started rack.
    pub(crate) fn listening(&self) -> &Value {
        &self.listening
    }

    /// Returns the names and process ids of the roles.
    pub(crate) fn roles(&self) -> Vec<(String, u32)> {
        let roles = self.listening["roles"].as_array().expect("a list");
        let role = |r: &Value| {
            (text(&r["role"]), u32::try_from(r["pid"].as_u64().expect("a number")).expect("a pid"))
        };
        roles.iter().map(role).collect()
    }

    /// Records the new process of a role.
    pub(crate) fn replace(&mut self, role: &str, pid: u32) {
        let roles = self.listening["roles"].as_array_mut().expect("a list");
        roles.iter_mut().filter(|known| known["role"] == role).for_each(|known| known["pid"] = pid.into());
    }

    pub(crate) fn supervisor(&mut self) -> &mut Running {
        &mut self.supervisor
    }

    /// Returns true when every process of the rack runs.
    pub(crate) fn is_whole(&mut self) -> bool {
        self.supervisor.is_alive() && self.roles().iter().all(|&(_, pid)| runs(pid))
    }

    /// Sends Ctrl-C like a terminal, and waits until the rack has ended without remains.
    pub(crate) fn stop(mut self) -> Ended {
        signal(self.supervisor.pid(), "INT");
        let ended = self.supervisor.ended();
        self.assert_gone();
        ended
    }

    /// Checks that no process remains, that the addresses are free, and that the rings are removed.
    pub(crate) fn assert_gone(&self) {
        for (role, pid) in self.roles() {
            assert!(!runs(pid), "{role} outlived its supervisor");
        }
        // A DPU has a path instead of an address.
        let roles = self.listening["roles"].as_array().expect("a list");
        for role in roles.iter().filter(|role| role["role"] != "dpu") {
            let address: Ipv4Addr = text(&role["address"]).parse().expect("an address");
            assert!(UdpSocket::bind((address, farmem::UDP_PORT)).is_ok(), "{address} is still held");
        }
        assert!(!self.description.rings().exists(), "its rings are still there");
    }

    /// Waits until every role has ended by itself.
    pub(crate) fn await_roles_gone(&self) {
        eventually("the roles end", || self.roles().iter().all(|&(_, pid)| !runs(pid)));
    }
}

impl Drop for Up<'_> {
    /// Stops all processes also after a failed test, and prints the rack's output, which shows why a role
    /// died.
    fn drop(&mut self) {
        self.supervisor.kill();
        if std::thread::panicking() {
            eprintln!("the rack said: {}", self.supervisor.said());
        }
        if !std::thread::panicking() {
            self.await_roles_gone();
        }
        drop(fs::remove_dir_all(self.description.rings()));
    }
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

/// Returns the cookie in a packet as text: it stands behind BTH, DETH and the header of the message.
pub(crate) fn cookie_in(packet: &[u8]) -> String {
    assert_eq!((packet[0], packet.len()), (0x64, 12 + 8 + 24 + 16 + 4), "a UD SEND with a cookie");
    packet[44..60].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a loopback subnet 127.b.c.0/24 that no other test and no `farmem demo` uses. The socket reserves
/// the subnet.
fn free_subnet() -> ([u8; 2], UdpSocket) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..64 * 256 {
        let number = process::id() * 31 + NEXT.fetch_add(1, Ordering::Relaxed);
        let [_, _, high, low] = number.to_be_bytes();
        let subnet = [128 + high % 64, low];
        if let Ok(claim) = UdpSocket::bind((Ipv4Addr::new(127, subnet[0], subnet[1], 254), farmem::UDP_PORT))
        {
            return (subnet, claim);
        }
    }
    panic!("no free loopback subnet");
}
