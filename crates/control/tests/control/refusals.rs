//! Refusals: a bad request gets a code for programs, and for people the wrong value and a remedy.

use crate::rack::{Rack, config, grant, text};
use farmem_control::api::*;
use farmem_control::{Bounds, Config};
use farmem_machine::{Duration, Port};

const MIB: u64 = 1 << 20;

fn join_node(name: &str, gid: &str, capacity: u64) -> Request {
    JoinNode::new(name.into(), gid.into(), capacity).into()
}

fn join_host(name: &str, gid: &str) -> Request {
    JoinHost::new(name.into(), gid.into()).into()
}

/// Lists each bad request, the code, and the value that the message must name. Among them: another domain's
/// vma is not freed or granted (PROTOCOL 8.12).
#[test]
fn every_refusal_names_what_was_wrong() {
    let mut rack = Rack::new(60);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    rack.join_host(1);
    let (owner, other) = (rack.domain("owner"), rack.domain("other"));
    let vma = rack.allocate(owner, 8192);
    let inside = vma.base + 4096;
    let long = "x".repeat(65);
    use ErrorCode as E;
    let cases: Vec<(Request, E, String)> = vec![
        (join_node("", "127.0.0.9", MIB), E::BadRequest, "\"\"".into()),
        (join_node("a b", "127.0.0.9", MIB), E::BadRequest, "a b".into()),
        (join_host(&long, "127.0.0.9"), E::BadRequest, "xxx".into()),
        (CreateDomain { name: "ä".into() }.into(), E::BadRequest, "domain".into()),
        (join_node("n9", "127.0.0", MIB), E::BadRequest, "127.0.0".into()),
        (join_node("n9", "127.0.0.9:4791", MIB), E::BadRequest, "127.0.0.9:4791".into()),
        (join_host("h9", "0.0.0.0"), E::BadRequest, "0.0.0.0".into()),
        (join_host("h9", "224.0.0.1"), E::BadRequest, "224.0.0.1".into()),
        (join_host("h9", "::ffff:0.0.0.0"), E::BadRequest, "::ffff:0.0.0.0".into()),
        (join_host("h9", "ff02::1"), E::BadRequest, "ff02::1".into()),
        (join_node("n9", "127.0.0.9", 0), E::BadRequest, "0 bytes".into()),
        (join_node("n9", "127.0.0.9", 5000), E::BadRequest, "5000".into()),
        (join_node("n9", "127.0.0.9", 1 << 47), E::OutOfMemory, (1u64 << 47).to_string()),
        (join_node("n9", "127.0.0.9", (1 << 63) + 4096), E::OutOfMemory, ((1u64 << 63) + 4096).to_string()),
        (join_node("n9", &text(101), MIB), E::Conflict, Port::host(1).0.to_string()),
        (join_host("h9", &text(1)), E::Conflict, "port 0".into()),
        (join_host("h9", "::ffff:127.0.0.2"), E::Conflict, "port 1".into()),
        (JoinSwitch { gid: text(11) }.into(), E::Conflict, Port::node(1).0.to_string()),
        (join_host("n1", "127.0.0.9"), E::Conflict, "n1".into()),
        (join_node("h1", "127.0.0.9", MIB), E::Conflict, "h1".into()),
        (join_node("n1", &text(11), 2 * MIB), E::Conflict, (2 * MIB).to_string()),
        (join_node("n1", &text(11), 4096), E::Conflict, "8192".into()),
        (Leave::new(0).into(), E::BadRequest, "port 0".into()),
        (Leave::new(1).into(), E::BadRequest, "port 1".into()),
        (Leave::new(77).into(), E::NotFound, "77".into()),
        (Leave::new(Port::node(9).0).into(), E::NotFound, Port::node(9).0.to_string()),
        (Leave::new(u32::MAX).into(), E::NotFound, u32::MAX.to_string()),
        (OpenSession { host: 9, domain: owner }.into(), E::NotFound, "host 9".into()),
        (OpenSession { host: 1, domain: 99 }.into(), E::NotFound, "domain 99".into()),
        (Connect::new(1, 9, owner).into(), E::NotFound, "node 9".into()),
        (Connect::new(1, u16::MAX, owner).into(), E::NotFound, "node 65535".into()),
        (Disconnect { host: 1, qpn: 4711 }.into(), E::NotFound, "4711".into()),
        (
            Allocate { domain: 99, size: 1, node: None, durable: false }.into(),
            E::NotFound,
            "domain 99".into(),
        ),
        (
            Allocate { domain: owner, size: 0, node: None, durable: false }.into(),
            E::BadRequest,
            "size is 0".into(),
        ),
        (
            Allocate { domain: owner, size: MIB + 1, node: None, durable: false }.into(),
            E::OutOfMemory,
            (2 * MIB).to_string(),
        ),
        (
            Allocate { domain: owner, size: u64::MAX, node: None, durable: false }.into(),
            E::OutOfMemory,
            format!("an allocation of {} bytes is longer than the addresses of a rack", u64::MAX),
        ),
        (
            Allocate { domain: owner, size: 1, node: Some(9), durable: false }.into(),
            E::NotFound,
            "node 9".into(),
        ),
        (Free { domain: owner, base: 0, id: 1 }.into(), E::NotFound, "0x0".into()),
        (Free { domain: owner, base: inside, id: vma.id }.into(), E::BadRequest, format!("{:#x}", vma.base)),
        (Free { domain: other, base: vma.base, id: vma.id }.into(), E::NotOwner, format!("domain {other}")),
        (
            Grant { domain: other, base: vma.base, len: 1, to: other, perm: PermName::Read }.into(),
            E::NotOwner,
            format!("domain {other}"),
        ),
        (grant(&vma, 0, 0, other, PermName::Read).into(), E::BadRequest, "0 bytes".into()),
        (grant(&vma, 4096, 4097, other, PermName::Read).into(), E::BadRequest, "4097".into()),
        (grant(&vma, 1, u64::MAX, other, PermName::Read).into(), E::BadRequest, u64::MAX.to_string()),
        (grant(&vma, 8192, 1, other, PermName::Read).into(), E::NotFound, format!("{:#x}", vma.base + 8192)),
        (grant(&vma, 0, 1, owner, PermName::Read).into(), E::BadRequest, format!("domain {owner}")),
        (grant(&vma, 0, 1, 99, PermName::Read).into(), E::NotFound, "domain 99".into()),
    ];
    let rows = rack.control.compact();
    for (request, code, named) in cases {
        let error = rack.refused(request.clone());
        assert_eq!(error.code, code, "{request:?}: {error:?}");
        assert!(error.message.contains(&named), "{request:?}: {:?} does not name {named:?}", error.message);
    }
    assert_eq!(rack.control.compact(), rows, "a refusal changes nothing");
}

/// Every bound of the control plane's own tables is refused by name, and holds also for changes in flight.
#[test]
fn every_bound_is_a_refusal() {
    let mut config = config();
    let bounds = &mut config.bounds;
    (bounds.nodes_max, bounds.hosts_max, bounds.domains_max) = (1, 1, 2);
    (bounds.vmas_max, bounds.grants_max, bounds.sessions_max, bounds.connections_max) = (2, 3, 1, 1);
    let mut rack = Rack::with(61, config);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    rack.join_host(1);
    let (owner, other) = (rack.domain("owner"), rack.domain("other"));
    let vma = rack.allocate(owner, 8192);
    rack.call(grant(&vma, 0, 1024, other, PermName::Read)).unwrap();
    rack.call(grant(&vma, 2048, 1024, other, PermName::Read)).unwrap();
    let twice = [
        Request::from(Allocate { domain: owner, size: 1, node: None, durable: false }),
        OpenSession { host: 1, domain: owner }.into(),
        Connect::new(1, 1, owner).into(),
        grant(&vma, 4096, 1024, other, PermName::Read).into(),
    ];
    let first = twice.clone().map(|request| rack.ask(request));
    let second = [
        twice[0].clone(),
        OpenSession { host: 1, domain: other }.into(),
        twice[2].clone(),
        grant(&vma, 6144, 1024, other, PermName::Read).into(),
    ]
    .map(|request| rack.ask(request));
    for (first, second) in first.into_iter().zip(second) {
        rack.wait(first).unwrap();
        let error = rack.wait(second).unwrap_err();
        assert_eq!(error.code, ErrorCode::TableFull, "{error:?}");
    }
    rack.settle();
    for request in [
        join_node("n2", "127.0.0.9", MIB),
        join_host("h2", "127.0.0.9"),
        CreateDomain { name: "third".into() }.into(),
    ] {
        assert_eq!(rack.refused(request).code, ErrorCode::TableFull);
    }
    // A request that gives memory back is not refused for lack of room.
    rack.call(grant(&vma, 0, 8192, other, PermName::None)).unwrap();
    rack.check_log();
}

/// Too many requests at once: the newest is refused, the others are answered.
#[test]
fn the_queue_of_requests_has_an_end() {
    let mut config = config();
    config.bounds.pending_max = 4;
    let mut rack = Rack::with(62, config);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let domain = rack.domain("web");
    let vma = rack.allocate(domain, 4096);
    let other = rack.domain("other");
    let tickets: Vec<u64> = (0..6)
        .map(|i| {
            let perm = if i % 2 == 0 { PermName::Read } else { PermName::ReadWrite };
            rack.ask(grant(&vma, 0, 1024, other, perm))
        })
        .collect();
    for late in &tickets[4..] {
        assert_eq!(rack.answer(*late).unwrap().as_ref().unwrap_err().code, ErrorCode::Unavailable);
    }
    for ticket in &tickets[..4] {
        assert_eq!(rack.wait(*ticket), Ok(Response::Done {}));
    }
}

/// A host that has used up the generations of its number goes on under another one, and the first is unused:
/// no incarnation of it comes twice.
#[test]
fn the_last_generation_is_the_last() {
    let mut rack = Rack::new(63);
    for generation in 1..=u16::MAX {
        let ticket = rack.ask(join_host("h1", "127.0.0.9"));
        let answer = rack.answer(ticket);
        assert!(matches!(answer, Some(Ok(Response::HostJoined(joined))) if joined.generation == generation));
    }
    let next = |rack: &mut Rack, name, gid| match rack.call(join_host(name, gid)) {
        Ok(Response::HostJoined(joined)) => (joined.host, joined.generation),
        other => panic!("{other:?}"),
    };
    assert_eq!(next(&mut rack, "h1", "127.0.0.9"), (2, 1));
    assert_eq!(next(&mut rack, "h2", "127.0.0.10"), (3, 1));
    let hosts = rack.call(Overview {}).unwrap().hosts;
    assert_eq!(hosts.iter().map(|host| host.host).collect::<Vec<_>>(), [2, 3]);
}

/// A client with the token rejoins again and again, until the generations of all numbers are used up (the
/// rack has one). No other host gets in then, or for an hour after it has gone. Then its number goes to
/// another host, from the first generation on, and nodes are told of that before they are told of the host. A
/// restart of the control plane restarts the hour.
#[test]
fn generations_begin_anew_after_a_rest() {
    let bounds = Bounds { hosts_max: 1, ..Bounds::default() };
    let host_lease = Some(Duration::from_secs(60));
    let mut rack = Rack::with(65, Config { bounds, host_lease, ..config() });
    let wear_out = |rack: &mut Rack, generations: core::ops::RangeInclusive<u16>| {
        for generation in generations {
            let ticket = rack.ask(join_host("thief", "127.0.0.9"));
            let answer = rack.wait(ticket);
            assert!(matches!(answer, Ok(Response::HostJoined(joined)) if joined.generation == generation));
        }
    };
    wear_out(&mut rack, 1..=u16::MAX);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    rack.call(Leave::new(Port::host(1).0)).unwrap();
    let (hour, other) = (Duration::from_secs(3600), || join_host("other", "127.0.0.10"));
    rack.pass(Duration::from_secs(3000));
    assert_eq!(rack.refused(other()).code, ErrorCode::TableFull);
    rack.restart();
    rack.pass(Duration::from_secs(3000));
    assert_eq!(rack.refused(other()).code, ErrorCode::TableFull);
    rack.pass(Duration::from_secs(700));
    let joined = match rack.call(other()) {
        Ok(Response::HostJoined(joined)) => joined,
        answer => panic!("{answer:?}"),
    };
    assert_eq!((joined.host, joined.generation), (1, 1));
    let node = &rack.peers[&Port::node(1)];
    assert_eq!(node.anew, [1]);
    assert!(node.tables.peers.contains_key(&Port::host(1).0));
    rack.check_log();
    // A number with generations left has no rest and needs none.
    rack.call(Leave::new(Port::host(1).0)).unwrap();
    wear_out(&mut rack, 2..=3);
    assert_eq!(rack.peers[&Port::node(1)].anew, [1]);
    rack.pass(hour);
    rack.check_log();
}

/// Requests and answers read back from JSON as they were, and the bytes are these.
#[test]
fn the_api_travels_as_json() {
    let request: Request = serde_json::from_str(r#"{"op":"allocate","domain":1,"size":4096}"#).unwrap();
    assert_eq!(request, Allocate { domain: 1, size: 4096, node: None, durable: false }.into());
    assert!(
        serde_json::from_str::<Request>(r#"{"op":"allocate","domain":1,"size":4096,"sizee":1}"#).is_err()
    );
    let renew = Request::from(Renew { host: 1, generation: 2, flushed: 3, qkey: 4 });
    let vma = Response::from(VmaInfo { id: 1, base: 2, size: 3, node: 4, domain: 5 });
    let told = [
        (serde_json::to_string(&request), r#"{"op":"allocate","domain":1,"size":4096}"#),
        (serde_json::to_string(&renew), r#"{"op":"renew","host":1,"generation":2,"flushed":3,"qkey":4}"#),
        (serde_json::to_string(&Request::from(Overview {})), r#"{"op":"overview"}"#),
        (serde_json::to_string(&vma), r#"{"is":"vma","id":1,"base":2,"size":3,"node":4,"domain":5}"#),
        (serde_json::to_string(&Response::from(Returned { value: -12 })), r#"{"is":"returned","value":-12}"#),
        (serde_json::to_string(&Response::Done {}), r#"{"is":"done"}"#),
    ];
    for (json, expected) in told {
        assert_eq!(json.unwrap(), expected);
    }
    let mut rack = Rack::new(64);
    rack.join_switch().unwrap();
    rack.join_node(1, MIB);
    let overview = Response::from(rack.call(Overview {}).unwrap());
    let text = serde_json::to_string(&overview).unwrap();
    assert_eq!(serde_json::from_str::<Response>(&text).unwrap(), overview);
}
