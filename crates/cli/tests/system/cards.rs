//! Tests of a RoCE card as a host of a running rack: its numbers over the API, and packets with its own ports
//! and identifications (PROTOCOL 14.1, 14.6, 14.8, 14.9). Two sockets emulate the card. `make interop` uses
//! Soft-RoCE.

use crate::frames::{Stranger, atomic, frame, reth};
use crate::process::run;
use crate::rack::{Description, text};
use serde_json::{Value, json};

const CARD: u8 = 150;

fn number(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))).expect("32 bits")
}

/// Sends a request that must succeed, and returns the answer.
fn asked(rack: &Description, name: &str, body: &Value) -> Value {
    let (status, answer) = rack.ask("POST", &format!("/v1/{name}"), &body.to_string());
    assert_eq!(status, 200, "{name} {body}: {answer}");
    answer
}

/// Returns the opcode, the destination queue pair, the PSN and the bytes after the BTH of a received packet.
fn taken_apart(packet: &[u8]) -> (u8, u32, u32, &[u8]) {
    let word = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().expect("four bytes")) & 0xff_ffff;
    (packet[0], word(4), word(8), &packet[12..packet.len() - 4])
}

/// WRITE, READ and FETCH_ADD of a card with queue pairs 17 and 18, across the wrap of its PSNs. The card
/// sends from its own port, counts identifications, and receives answers at port 4791. Without
/// `unknown_ip_id`, such packets are dropped, and packets with identification 0 are accepted.
#[test]
fn a_card_is_a_host() {
    let cases = [("[cards]\nunknown_ip_id = true", true), ("[cards]", false)];
    for (cards, solves) in cases {
        let rack = Description::new("cards", "udp").with(cards);
        let up = rack.up();
        let (card, node) = (rack.address(CARD), rack.address(11));
        let (out, at) = (Stranger::new(card, 0), Stranger::new(card, farmem::UDP_PORT));
        let joined = rack.join_at(
            &at,
            "join_host",
            "",
            &json!({"name": "card", "gid": card, "qpn": 17, "qkey": 0x1111}),
        );
        assert_eq!((&joined["home"]["qpn"], &joined["home"]["qkey"]), (&json!(17), &json!(0x1111)));
        let domain = asked(&rack, "create_domain", &json!({"name": "cards"}))["domain"].clone();
        let vma = asked(&rack, "allocate", &json!({"domain": domain, "size": 4096, "node": 1}));
        let base = vma["base"].as_u64().expect("an address");
        let connect =
            json!({"host": joined["host"], "node": 1, "domain": domain, "qpn": 18, "first_psn": 0xff_fffe});
        let told = asked(&rack, "connect", &connect);
        assert_eq!((&told["qpn"], &told["first_psn"]), (&json!(18), &json!(0xff_fffe)));
        assert_eq!(
            told["limits"],
            json!({"read_len_max": 1 << 20, "write_len_max": 1_u64 << 31, "depth": 16, "timeout": 14, "retries": 6, "rnr_retries": 7})
        );
        let (status, again) = rack.ask("POST", "/v1/connect", &connect.to_string());
        assert_eq!((status, &again["code"]), (409, &json!("conflict")), "{again}");
        let (peer, rkey) = (number(&told["peer_qpn"]), number(&told["rkey"]));
        let requests = [
            frame(0x0a, peer, 0xff_fffe, &reth(base, rkey, 8), &5_u64.to_le_bytes()),
            frame(0x0c, peer, 0xff_ffff, &reth(base, rkey, 8), &[]),
            frame(0x14, peer, 0, &atomic(base, rkey, 3, 0), &[]),
            frame(0x0c, peer, 1, &reth(base, rkey, 8), &[]),
        ];
        let mut answers = Vec::new();
        for (request, ip_id) in requests.iter().zip([4711_u16, 64, 0xffff, 9999]) {
            out.send_identified(node, request, ip_id);
            if !solves {
                // The request was not executed. With the next request, it is executed once.
                out.send_sealed(node, request);
            }
            answers.push(at.receive());
        }
        let taken: Vec<_> = answers.iter().map(|packet| taken_apart(packet)).collect();
        let heads: Vec<_> = taken.iter().map(|&(opcode, qpn, psn, _)| (opcode, qpn, psn)).collect();
        assert_eq!(heads, [(0x11, 18, 0xff_fffe), (0x10, 18, 0xff_ffff), (0x12, 18, 0), (0x10, 18, 1)]);
        assert_eq!(taken[1].3[4..], 5_u64.to_le_bytes());
        assert_eq!(taken[2].3[4..], 5_u64.to_be_bytes());
        assert_eq!(taken[3].3[4..], 8_u64.to_le_bytes());
        let said = up.stop().stderr;
        assert!(said.contains("cards are peers of this rack"), "{said}");
        assert_eq!(said.contains("ICRC"), solves, "{said}");
    }
}

/// A rack with cards has a finding about missing features. A rack without cards has none (PROTOCOL 14.10).
#[test]
fn the_doctor_says_what_cards_cost() {
    for (head, state, says) in [
        ("", "ok", "none"),
        ("[cards]", "degraded", "any UDP port"),
        ("[cards]\nunknown_ip_id = true", "degraded", "ICRC"),
    ] {
        let rack = Description::new("cards-doctor", "udp").with(head);
        let report = run(&["doctor", "--json", "--rack", &rack.file()]).report();
        let all = report["findings"].as_array().expect("a list");
        let finding = all.iter().find(|finding| finding["name"] == "cards of the rack").expect("it is there");
        assert_eq!(finding["state"], state, "{finding}");
        assert!(text(&finding["detail"]).contains(says), "{finding}");
        assert_eq!(finding["remedy"] == "", state == "ok", "{finding}");
    }
}
