//! Hosts whose queue pairs a RoCE card numbers (PROTOCOL section 14).

use crate::rack::{Rack, text};
use farmem_control::api::*;
use farmem_machine::Port;

const MIB: u64 = 1 << 20;

fn by_card(host: u16, domain: u32, qpn: u32, first_psn: u32) -> Connect {
    Connect { qpn: Some(qpn), first_psn: Some(first_psn), ..Connect::new(host, 1, domain) }
}

/// A card's numbers are taken as they are, told to the node, and unique at their host alone: two hosts with the same card firmware have
/// the same ones. What is not brought is drawn. The log leads to the same state (PROTOCOL 14.1).
#[test]
fn a_card_brings_its_own_queue_pairs() {
    let mut rack = Rack::new(71);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let domain = rack.domain("web");
    for (host, qpn) in [(1, 17), (2, 18)] {
        let (name, gid) = (format!("card{host}"), text(100 + host));
        let join = JoinHost { qpn: Some(qpn), qkey: Some(0x1111_1111), ..JoinHost::new(name, gid) };
        let joined = rack.call(join).unwrap();
        assert_eq!((joined.host, joined.home.qpn, joined.home.qkey), (host.into(), qpn, 0x1111_1111));
    }
    // The number that host 1 has for datagrams is one of host 2's for a connection.
    for (host, qpn, psn) in [(1, 2, 0), (1, 0xff_fffe, 0xff_ffff), (1, 18, 7), (2, 2, 0), (2, 17, 9)] {
        let told = rack.call(by_card(host, domain, qpn, psn)).unwrap();
        assert_eq!((told.qpn, told.first_psn), (qpn, psn));
        let row = rack.tables(Port::node(1)).queue_pairs[&told.peer_qpn];
        assert_eq!(row, (qpn, Port::host(host).0, psn, told.rkey, domain));
        assert!(told.peer_qpn >= 16);
    }
    let drawn = rack.call(Connect { first_psn: Some(5), ..Connect::new(1, 1, domain) }).unwrap();
    assert!(drawn.first_psn == 5 && ![2, 17, 18].contains(&drawn.qpn));
    // Each is taken down by host and number; the other host's stays.
    rack.call(Disconnect { host: 1, qpn: 2 }).unwrap();
    assert_eq!(rack.refused(Disconnect { host: 1, qpn: 2 }).code, ErrorCode::NotFound);
    assert_eq!(rack.tables(Port::node(1)).queue_pairs.len(), 5);
    rack.call(by_card(1, domain, 2, 1)).unwrap();
    rack.call(Disconnect { host: 2, qpn: 2 }).unwrap();
    rack.check_tables(Port::node(1));
    rack.check_log();
}

/// Numbers that no card gives, and those that the host has in use, are refused with what may be given (PROTOCOL 14.2, 14.4).
#[test]
fn numbers_that_cannot_be_are_refused() {
    let mut rack = Rack::new(72);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let domain = rack.domain("web");
    let join = |qpn, qkey| JoinHost { qpn, qkey, ..JoinHost::new("card".into(), text(101)) };
    let wrong = [
        (Some(1), Some(5), "qpn is 1"),
        (Some(0xff_ffff), Some(5), "qpn is 16777215"),
        (Some(1 << 24), Some(5), "qpn is 16777216"),
        (Some(17), Some(0), "qkey is 0"),
        (Some(17), Some(1 << 31), "qkey is 2147483648"),
        (Some(17), None, "qkey is not"),
        (None, Some(5), "qpn is not"),
    ];
    for (qpn, qkey, named) in wrong {
        let error = rack.refused(join(qpn, qkey));
        assert_eq!(error.code, ErrorCode::BadRequest, "{error:?}");
        assert!(error.message.contains(named) && error.remedy.contains("give"), "{error:?}");
    }
    rack.call(join(Some(17), Some(5))).unwrap();
    rack.call(by_card(1, domain, 18, 0)).unwrap();
    let wrong = [
        (0, 0, ErrorCode::BadRequest, "qpn is 0"),
        (1, 0, ErrorCode::BadRequest, "qpn is 1"),
        (0xff_ffff, 0, ErrorCode::BadRequest, "qpn is 16777215"),
        (u32::MAX, 0, ErrorCode::BadRequest, "qpn is 4294967295"),
        (19, 1 << 24, ErrorCode::BadRequest, "first_psn is 16777216"),
        (17, 0, ErrorCode::Conflict, "UD queue pair"),
        (18, 0, ErrorCode::Conflict, "queue pair 18"),
    ];
    for (qpn, psn, code, named) in wrong {
        let error = rack.refused(by_card(1, domain, qpn, psn));
        assert_eq!(error.code, code, "{error:?}");
        assert!(error.message.contains(named) && error.remedy.contains("give"), "{error:?}");
    }
    assert_eq!(rack.tables(Port::node(1)).queue_pairs.len(), 1);
    // Asked for twice at the same moment: one of the two gets it.
    let pair = [20, 20].map(|qpn| rack.ask(by_card(1, domain, qpn, 0)));
    let got = pair.map(|ticket| rack.wait(ticket));
    assert_eq!(got.iter().filter(|answer| answer.is_ok()).count(), 1, "{got:?}");
    rack.check_log();
}

/// No Q_Key of a rack has the top bit: no card could send to it (PROTOCOL 14.4).
#[test]
fn every_queue_key_can_be_sent_by_a_card() {
    let mut rack = Rack::new(73);
    rack.join_host(1);
    let mut keys = Vec::new();
    let joined = rack.join_switch().unwrap();
    keys.extend([joined.home.qkey, joined.control.qkey]);
    for n in 1..=40 {
        let domain = rack.domain(&format!("d{n}"));
        keys.push(rack.call(OpenSession { host: 1, domain }).unwrap().switch.qkey);
    }
    for _ in 0..20 {
        let join = JoinHost::new("h2".into(), text(102));
        keys.push(rack.call(join).unwrap().home.qkey);
    }
    assert!(keys.iter().all(|&key| key != 0 && key < 1 << 31), "{keys:x?}");
    // Drawn: so many are not all in the lower half by chance, and no two are alike.
    assert!(keys.iter().any(|&key| key >= 1 << 30));
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 62);
}
