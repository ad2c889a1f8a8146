//! Reflection: a holder of the rack's token names the address of a bystander, so that the rack sends there
//! what the attacker asks for (PROTOCOL 8.74).

use crate::frames::{Stranger, frame, message, reth};
use crate::rack::Description;
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::time::Duration;

/// Bytes that a bystander may receive for each byte of the attacker.
const AMPLIFICATION_MAX: usize = 3;
/// Bytes of one READ, the most that a memory node serves.
const READ_LEN: u32 = 1 << 20;
/// Joins with each kind of request, and spoofed requests.
const ROUNDS: u32 = 20;

/// The attacker. It sees nothing of what the bystander receives.
struct Attacker<'a> {
    rack: &'a Description,
    bystander: &'a Stranger,
    /// Bytes that the attacker sent.
    sent: usize,
    /// Bytes that the bystander received.
    received: usize,
}

impl Attacker<'_> {
    /// Asks with a guessed cookie, or without one. Returns the answer to a request that succeeded.
    fn ask(&mut self, name: &str, proof: &str, body: &Value) -> Option<Value> {
        let (more, body) = (format!("Farmem-Address: {proof}\r\n"), body.to_string());
        self.sent += more.len() + body.len();
        let (status, answer) = self.rack.ask_with("POST", &format!("/v1/{name}"), &more, &body);
        (status == 200).then_some(answer)
    }

    /// Sends a frame from the bystander's address, as a sender does that forges source addresses.
    fn spoof(&mut self, to: Ipv4Addr, frame: &[u8]) {
        self.sent += frame.len();
        self.bystander.send_sealed(to, frame);
    }

    /// Has a memory node send as much as it can, by READs and by datagrams.
    fn flood(&mut self, host: &Value) {
        let number = |value: &Value| u32::try_from(value.as_u64().unwrap_or(99)).expect("32 bits");
        let domain =
            self.ask("create_domain", "pending", &json!({"name": "flood"})).expect("a domain")["domain"]
                .clone();
        let vma = json!({"domain": domain, "size": READ_LEN, "node": 1});
        let base =
            self.ask("allocate", "pending", &vma).expect("memory")["base"].as_u64().expect("an address");
        let session =
            self.ask("open_session", "pending", &json!({"host": host, "domain": domain})).unwrap_or_default();
        let to = json!({"host": host, "node": 1, "domain": domain});
        let to = self.ask("connect", "pending", &to).unwrap_or_default();
        let (qpn, psn, rkey) = (number(&to["peer_qpn"]), number(&to["first_psn"]), number(&to["rkey"]));
        let (switch, node) = (self.rack.address(2), self.rack.address(11));
        for round in 0..ROUNDS {
            let read = [&base.to_be_bytes()[..], &4060_u32.to_be_bytes()].concat();
            let key = (number(&session["switch"]["qpn"]), number(&session["switch"]["qkey"]));
            self.spoof(switch, &message(key, 1, false, 0, u64::from(round), 0, &read));
            // A READ takes one PSN for each packet of its answer, of 1 KiB.
            self.spoof(node, &frame(0x0c, qpn, psn + 1024 * round, &reth(base, rkey, READ_LEN), &[]));
            self.received += self.bystander.drain(Duration::from_millis(20));
        }
    }
}

/// Joins of each kind name a bystander's address, with cookies that the attacker guesses. None succeeds, and
/// the bystander receives at most three times what the attacker sent: a datagram for each join, and nothing
/// for spoofed requests. The bystander itself, which receives the cookie, may join.
#[test]
fn a_bystander_receives_no_more_than_the_attacker_sends() {
    let rack = Description::new("reflection", "udp");
    let up = rack.up();
    let bystander = Stranger::new(rack.address(200), farmem::UDP_PORT);
    let gid = bystander.address();
    let mut attacker = Attacker { rack: &rack, bystander: &bystander, sent: 0, received: 0 };
    let joins = [
        ("join_host", json!({"name": "victim", "gid": gid})),
        ("join_host", json!({"name": "victim", "gid": gid, "qpn": 17, "qkey": 0x1111})),
        ("join_node", json!({"name": "victim", "gid": gid, "capacity": 1 << 20})),
        ("join_index", json!({"name": "victim", "gid": gid, "tier": "edge", "below": ["node1"]})),
        ("join_switch", json!({"gid": gid})),
    ];
    let mut host = json!(1);
    for round in 0..ROUNDS {
        for (name, body) in &joins {
            for proof in ["pending", &format!("{round:032x}")] {
                let joined = attacker.ask(name, proof, body);
                host = joined.map_or(host, |joined| joined["host"].clone());
            }
        }
    }
    attacker.flood(&host);
    let (sent, received) = (attacker.sent, attacker.received + bystander.drain(Duration::from_secs(1)));
    assert!(received <= AMPLIFICATION_MAX * sent, "{received} bytes for {sent}: {} times", received / sent);
    let seen = rack.overview();
    assert_eq!((&seen["hosts"], seen["nodes"].as_array().map(Vec::len)), (&json!([]), Some(2)), "{seen}");
    eprintln!("{received} bytes received for {sent} bytes sent");

    let joined = rack.join_at(&bystander, "join_host", "", &json!({"name": "victim", "gid": gid}));
    assert_eq!(joined["home"]["gid"], json!(gid));
    drop(up);
}
