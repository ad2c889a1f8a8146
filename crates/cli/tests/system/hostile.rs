//! Tests of a rack under attack: random bytes, false fields and well-formed malicious packets at every
//! socket, while a correct program works.
//!
//! The malicious packets have the right ICRC and the addresses of other roles. They contain keys that the
//! control plane gave to a program of another domain. No packet may end a role, or change a byte of the
//! correct program.

use crate::frames::{Chance, Stranger, atomic, frame, message, reth};
use crate::process::eventually;
use crate::rack::{Description, Up};
use farmem::{Client, NodeId, Program, VirtAddr};
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;

/// Rounds of a correct program's work, each with [`DATAGRAMS`] malicious datagrams, few enough to fill no
/// socket buffer.
const ROUNDS: u64 = 300;
const DATAGRAMS: usize = 150;
/// Number of memory nodes of the rack.
const NODES: usize = 3;

/// Correct program, and the expected content of its memory.
struct Honest {
    client: Client,
    program: Program,
    /// List over all nodes.
    list: Vec<VirtAddr>,
    bases: Vec<VirtAddr>,
    model: Vec<Vec<u8>>,
    counter: u64,
}

const LEN: usize = 8192;

fn node(number: usize) -> NodeId {
    NodeId(u16::try_from(number).unwrap())
}

impl Honest {
    fn new(description: &Description, nodes: usize) -> Self {
        let mut client = description.client("honest");
        let program =
            Program::assemble(include_str!("../../../../testdata/programs/list_sum.pulse")).unwrap();
        let mut on_each =
            || (1..=nodes).map(|n| client.allocate_on(LEN as u64, node(n)).unwrap().base).collect();
        let (list, bases): (Vec<VirtAddr>, Vec<VirtAddr>) = (on_each(), on_each());
        for (n, &at) in list.iter().enumerate() {
            let next = list.get(n + 1).map_or(0, |next| next.0);
            client.write(at, &[(n as u64 + 1).to_le_bytes(), next.to_le_bytes()].concat()).unwrap();
        }
        let model = vec![vec![0; LEN]; bases.len()];
        Self { client, program, list, bases, model, counter: 0 }
    }

    /// Performs one operation of each kind.
    fn work(&mut self, chance: &mut Chance) {
        let n = chance.below(self.bases.len());
        let (start, len) = (64 + chance.below(LEN - 64 - 3000), 1 + chance.below(3000));
        let data = chance.bytes(len);
        self.client.write(VirtAddr(self.bases[n].0 + start as u64), &data).unwrap();
        self.model[n][start..start + len].copy_from_slice(&data);
        let mut back = vec![0; len];
        self.client.read(VirtAddr(self.bases[n].0 + start as u64), &mut back).unwrap();
        assert!(back == data);
        assert_eq!(self.client.fetch_add(self.bases[0], 1).unwrap(), self.counter);
        self.counter += 1;
        let walked = self
            .client
            .traverse(&self.program, self.list[0], vec![0; self.program.scratch_len()], 100)
            .unwrap();
        assert_eq!(
            (walked.end.returned, walked.end.iterations),
            (true, u32::try_from(self.list.len()).unwrap())
        );
    }

    /// Checks that the program's memory contains exactly its own writes.
    fn check(&mut self) {
        self.model[0][..8].copy_from_slice(&self.counter.to_le_bytes());
        for (base, model) in self.bases.iter().zip(&self.model) {
            let mut bytes = vec![0; LEN];
            self.client.read(*base, &mut bytes).unwrap();
            assert!(bytes == *model, "memory at {base} changed");
        }
    }
}

/// Connection of the attacker to a memory node.
struct Reach {
    at: Ipv4Addr,
    own_qpn: u32,
    qpn: u32,
    first_psn: u32,
    rkey: u32,
}

/// Keys of a program in another domain. The control plane gives such keys to every program with the token.
struct Keys {
    host: u16,
    domain: u32,
    own: u64,
    victim: u64,
    victim_domain: u32,
    switch: (u32, u32),
    switch_at: Ipv4Addr,
    /// Connections to the nodes, by node.
    nodes: Vec<Reach>,
    program: Vec<u8>,
    program_hash: [u8; 16],
}

impl Keys {
    fn obtain(description: &Description, own: &Stranger, honest: &Honest) -> Self {
        let ask = |name: &str, body: Value| ask(description, name, &body);
        let domain = ask("create_domain", json!({"name": "hostile"}))["domain"].clone();
        let join = json!({"name": "stranger", "gid": own.address()});
        let host = description.join_at(own, "join_host", "", &join)["host"].clone();
        let session = ask("open_session", json!({"host": host, "domain": domain}));
        let own = number(&ask("allocate", json!({"domain": domain, "size": 4096, "node": 1}))["base"]);
        let domains = description.overview()["domains"].clone();
        let named = |row: &&Value| row[1] == "honest";
        Self {
            host: u16::try_from(number(&host)).unwrap(),
            domain: small(&domain),
            own,
            victim: honest.bases[0].0,
            victim_domain: small(&domains.as_array().unwrap().iter().find(named).unwrap()[0]),
            switch: (small(&session["switch"]["qpn"]), small(&session["switch"]["qkey"])),
            switch_at: description.address(2),
            nodes: Vec::new(),
            program: honest.program.encoded().to_vec(),
            program_hash: honest.program.hash().0,
        }
    }

    /// Creates new connections. A connection that carried malicious packets is unusable.
    fn connect(&mut self, description: &Description, nodes: usize) {
        let Self { host, domain, .. } = *self;
        for old in self.nodes.drain(..) {
            ask(description, "disconnect", &json!({"host": host, "qpn": old.own_qpn}));
        }
        self.nodes.extend((1..=nodes).map(|node| {
            let c = ask(description, "connect", &json!({"host": host, "node": node, "domain": domain}));
            let at = c["node"]["gid"].as_str().unwrap().parse().unwrap();
            let [own_qpn, qpn, first_psn, rkey] =
                ["qpn", "peer_qpn", "first_psn", "rkey"].map(|name| small(&c[name]));
            Reach { at, own_qpn, qpn, first_psn, rkey }
        }));
    }

    /// Returns a request over the attacker's own connection, with foreign addresses and invalid lengths.
    fn verb(&self, chance: &mut Chance, node: usize) -> Vec<u8> {
        let Reach { qpn, first_psn, rkey, .. } = self.nodes[node];
        let addr =
            *chance.pick(&[self.own, self.victim, self.victim + 64, 0, u64::MAX - 3, self.victim + 8190]);
        let len = *chance.pick(&[0, 1, 64, 4096, 8192, 1 << 20, 1 << 31, u32::MAX]);
        let rkey = *chance.pick(&[rkey, rkey, rkey ^ 1, 0]);
        let opcode = *chance.pick(&[0x06, 0x07, 0x08, 0x0a, 0x0c, 0x13, 0x14, 0x04, 0x0d, 0x11, 0x12]);
        let payload_len = *chance.pick(&[0_u16, 1, 64, 1024, 4096]);
        let payload = chance.bytes(payload_len.into());
        let psn = first_psn.wrapping_add(*chance.pick(&[0, 0, 0, 1, 2, 1 << 22, 0xff_fff0]));
        let word = addr & !7;
        match opcode {
            0x06 | 0x0a => frame(opcode, qpn, psn, &reth(addr, rkey, payload_len.into()), &payload),
            0x0c => frame(opcode, qpn, psn, &reth(addr, rkey, len), &[]),
            0x13 | 0x14 => frame(opcode, qpn, psn, &atomic(word, rkey, chance.next(), 0), &[]),
            0x0d => frame(opcode, qpn, psn, &[0x1f, 0, 0, 1], &payload),
            0x11 => frame(opcode, qpn, psn, &[*chance.pick(&[0x1f, 0x60, 0x62, 0x20]), 0, 0, 1], &[]),
            0x12 => frame(opcode, qpn, psn, &[0x1f, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9], &[]),
            _ => frame(opcode, qpn, psn, &[], &payload),
        }
    }

    /// Returns a message over the attacker's own session that claims the victim's domain and origin.
    fn message(&self, chance: &mut Chance, to: (u32, u32)) -> Vec<u8> {
        let addr = *chance.pick(&[self.own, self.victim, self.victim, 0, u64::MAX, self.victim + 8190]);
        let len = *chance.pick(&[0_u32, 8, 64, 4000, u32::MAX]);
        let kind = *chance.pick(&[0x01, 0x02, 0x02, 0x10, 0x10, 0x20, 0x77]);
        let mut body = addr.to_be_bytes().to_vec();
        match kind {
            0x01 => body.extend(len.to_be_bytes()),
            0x02 => {
                let len = len.min(64);
                body.extend(len.to_be_bytes());
                body.extend(chance.bytes(usize::try_from(len).unwrap()));
            }
            0x10 => {
                let code: &[u8] = if chance.below(2) == 0 { &self.program } else { &[] };
                let pad = *chance.pick(&[0_u16, 16, 256]);
                body = self.program_hash.to_vec();
                body.extend(addr.to_be_bytes());
                body.extend([0; 4]);
                body.extend(1000_u32.to_be_bytes());
                body.extend(pad.to_be_bytes());
                body.extend(u16::try_from(code.len()).unwrap().to_be_bytes());
                body.extend([0; 4]);
                body.extend(vec![0; usize::from(pad)]);
                body.extend_from_slice(code);
            }
            _ => {
                let len = chance.below(200);
                body = chance.bytes(len);
            }
        }
        let (domain, origin) =
            (*chance.pick(&[0, self.domain, self.victim_domain]), *chance.pick(&[0, self.host, 1]));
        let request = (u64::from(self.host) << 48) | chance.next() >> 32;
        let mut whole = message(to, kind, chance.below(4) == 0, domain, request, origin, &body);
        if chance.below(3) == 0 {
            let at = chance.below(whole.len());
            whole[at] ^= 1 << chance.below(8);
        }
        whole
    }
}

/// Sends one malicious datagram: random bytes, random bytes with an ICRC, or a well-formed packet.
fn throw(chance: &mut Chance, strangers: &[Stranger], targets: &[Ipv4Addr], keys: &Keys) {
    let (stranger, at) = (chance.pick(strangers), *chance.pick(targets));
    let len = chance.below(1500);
    match chance.below(6) {
        0 => stranger.send(at, &chance.bytes(len)),
        1 => stranger.send_sealed(at, &chance.bytes(len.max(12))),
        2 => {
            let (opcode, qpn, psn) = (chance.bytes(1)[0] % 0x68, chance.word(), chance.word());
            let rest = chance.bytes(len & !3);
            stranger.send_sealed(at, &frame(opcode, qpn, psn, &rest, &[]));
        }
        3 | 4 => {
            // With the attacker's own keys and address, these packets reach the role.
            let node = chance.below(keys.nodes.len());
            strangers[0].send_sealed(keys.nodes[node].at, &keys.verb(chance, node));
        }
        _ => {
            let known = [keys.switch, (0, keys.switch.1), (chance.word(), 0), keys.switch];
            let to = *chance.pick(&known);
            let message = keys.message(chance, to);
            let from = if chance.below(2) == 0 { &strangers[0] } else { stranger };
            // With the session's keys, the message goes to the switch, where they are valid.
            from.send_sealed(if to == keys.switch { keys.switch_at } else { at }, &message);
        }
    }
}

/// Sends a request to the control plane, which must succeed.
fn ask(description: &Description, name: &str, body: &Value) -> Value {
    let (status, answer) = description.ask("POST", &format!("/v1/{name}"), &body.to_string());
    assert_eq!(status, 200, "{name}: {answer}");
    answer
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn small(value: &Value) -> u32 {
    u32::try_from(number(value)).unwrap()
}

#[test]
fn datagrams_of_strangers_harm_nobody() {
    let description = Description::new("hostile", "udp").with_nodes(3).with_hosts(2);
    let mut up = description.up();
    let mut honest = Honest::new(&description, NODES);
    let own = Stranger::new(description.address(200), farmem::UDP_PORT);
    let mut keys = Keys::obtain(&description, &own, &honest);
    let roles = [1, 2, 11, 12, 13].map(|last| description.address(last));
    let targets = [&roles[..], &[description.address(100)]].concat();
    // One attacker has its own address. The others share the address of a role or the client, so that the
    // kernel sends from it.
    let strangers: Vec<Stranger> =
        std::iter::once(own).chain(targets.iter().map(|&address| Stranger::new(address, 0))).collect();

    // The attacker can read its own memory, which proves that its packets are accepted.
    keys.connect(&description, NODES);
    let Reach { at, qpn, first_psn, rkey, .. } = keys.nodes[0];
    strangers[0].send_sealed(at, &frame(0x0c, qpn, first_psn, &reth(keys.own, rkey, 8), &[]));
    let answer = strangers[0].receive();
    assert_eq!((answer[0], answer.len()), (0x10, 12 + 4 + 8 + 4), "READ response only, with 8 bytes");
    strangers[0].send_sealed(at, &frame(0x0c, qpn, first_psn + 1, &reth(keys.victim, rkey, 8), &[]));
    let answer = strangers[0].receive();
    assert_eq!(
        (answer[0], answer[12]),
        (0x11, 0x62),
        "NAK, remote access error: the memory is another domain's"
    );

    let mut chance = Chance(0x5eed_0fab_adda);
    for round in 0..ROUNDS {
        if round % 5 == 0 {
            keys.connect(&description, NODES);
        }
        for _ in 0..DATAGRAMS {
            throw(&mut chance, &strangers, &targets, &keys);
        }
        honest.work(&mut chance);
    }
    honest.check();
    assert_whole(&description, &mut up);
    drop(honest);
    let ended = up.stop();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "no role had a reason to speak");
}

/// Checks that all roles run, and that each serves a new program.
fn assert_whole(description: &Description, up: &mut Up<'_>) {
    assert!(up.is_whole());
    let mut client = description.client("later");
    for node in client.nodes().to_vec() {
        let vma = client.allocate_on(64, NodeId(node.node)).unwrap();
        client.write(vma.base, b"fresh").unwrap();
        let mut bytes = [0; 5];
        client.region_read(vma.base, &mut bytes).unwrap();
        assert_eq!(&bytes, b"fresh");
        client.free(vma.base).unwrap();
    }
}

/// Random bytes at the HTTP port, silent connections that never end, and almost valid requests.
#[test]
fn nonsense_over_http_harms_nobody() {
    let description = Description::new("http-nonsense", "udp");
    let mut up = description.up();
    let mut honest = Honest::new(&description, 2);
    let mut chance = Chance(0xbad_c0de);
    let connect = || description.api();
    let silent: Vec<UnixStream> = (0..50)
        .map(|n| {
            let mut stream = connect();
            stream.write_all(&b"POST /v1/allocate HTTP/1.1\r\nHost: x\r\n"[..n % 38]).unwrap();
            stream
        })
        .collect();
    let token = description.token();
    let post = |name: &str, body: &[u8]| {
        let head = format!(
            "POST /v1/{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        description.http(&[head.as_bytes(), body].concat())
    };
    for round in 0..40 {
        let len = 1 + chance.below(2000);
        let nonsense = chance.bytes(len);
        // The answer to bytes that are no HTTP is unspecified, as long as the server continues.
        description.http(&[&nonsense, &b"\r\n\r\n"[..]].concat());
        for (name, body) in [
            ("allocate", nonsense.clone()),
            ("allocate", b"[".repeat(60_000)),
            ("grant", br#"{"domain":1,"base":18446744073709551615,"len":18446744073709551615,"to":1,"perm":"read"}"#.to_vec()),
            ("allocate", br#"{"domain":4294967295,"size":18446744073709551615}"#.to_vec()),
            ("join_node", br#"{"name":"x","gid":"127.0.0.1","capacity":18446744073709551615}"#.to_vec()),
            ("create_domain", format!(r#"{{"name":"{}"}}"#, "x".repeat(60_000)).into_bytes()),
            ("leave", br#"{"port":0}"#.to_vec()),
            ("\u{1}%00", b"{}".to_vec()),
        ] {
            let answer = post(name, &body);
            let status: u16 = answer.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("{answer:?}"));
            assert!((400..500).contains(&status) || status == 507, "round {round}, {name}: {answer}");
        }
        honest.work(&mut chance);
        let vma = honest.client.allocate(4096).unwrap();
        honest.client.free(vma.base).unwrap();
    }
    honest.check();
    drop(silent);
    assert_whole(&description, &mut up);
    drop(honest);
    eventually("the API answers", || description.overview()["switch"] == true);
    assert_eq!(up.stop().code, Some(0));
}
