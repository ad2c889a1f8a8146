//! Tests of `farmem up`: a rack from its first line to its last, and its remains.

use crate::process::{Dir, Running, eventually, farmem, processes_with, run, signal};
use crate::rack::{Description, HTTP_PORT, text};
use farmem::{Error, NodeId, api};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::process::Command;

const TRANSPORTS: [&str; 2] = ["udp", "shm"];

/// The rack prints all addresses, answers its API as documented, and ends at Ctrl-C without remains.
#[test]
fn a_rack_from_start_to_end() {
    for transport in TRANSPORTS {
        let description = Description::new("life", transport).with_nodes(3);
        let mut up = description.up();
        let listening = up.listening().clone();
        assert_eq!(listening["transport"], transport);
        let socket = description.dir().path().join("state/api.sock");
        let tls = format!("https://{}:{HTTP_PORT}/v1", description.address(1));
        assert_eq!(listening["api"], json!([format!("unix:{}", socket.display()), tls]));
        assert_eq!(listening["token_file"], format!("{}/state/token", description.dir().path().display()));
        let roles = listening["roles"].as_array().unwrap();
        let places: Vec<_> = roles.iter().map(|r| (text(&r["role"]), text(&r["address"]))).collect();
        let place = |role: &str, last| (role.to_owned(), description.address(last).to_string());
        assert_eq!(
            places,
            [
                place("control", 1),
                place("switch", 2),
                place("node node1", 11),
                place("node node2", 12),
                place("node node3", 13)
            ]
        );
        let overview = description.overview();
        assert_eq!(overview["switch"], true);
        let names: Vec<_> = overview["nodes"].as_array().unwrap().iter().map(|n| text(&n["name"])).collect();
        assert_eq!(names, ["node1", "node2", "node3"]);
        assert!(up.is_whole());
        assert_eq!(description.rings().exists(), transport == "shm");
        let ended = up.stop();
        assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(0), "", ""));
    }
}

/// Without `--json`, the output is a table. SIGTERM ends the rack like Ctrl-C.
#[test]
fn people_get_a_table() {
    let description = Description::new("table", "udp");
    let mut rack = Running::start(farmem(&["up", &description.file()]));
    let lines: Vec<String> =
        std::iter::from_fn(|| Some(rack.line())).take_while(|l| !l.starts_with("Ctrl-C")).collect();
    let table = lines.concat();
    for words in [
        "is up, transport udp",
        "| role ",
        "| node node2 ",
        &format!("https://{}", description.address(1)),
        "state/api.sock",
        "token  ",
    ] {
        assert!(table.contains(words), "{words:?} is not in {table}");
    }
    signal(rack.pid(), "TERM");
    let ended = rack.ended();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}

/// Ctrl-C ends the command also before the rack serves: while the description is an empty FIFO, and while
/// many nodes start. No started process remains.
#[test]
fn ctrl_c_ends_a_start() {
    let dir = Dir::new("fifo");
    let fifo = dir.path().join("rack.toml");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let reading = Running::start(farmem(&["up", &fifo.display().to_string()]));
    let many = Description::new("many", "udp").with_nodes(80);
    let starting = Running::start(farmem(&["up", &many.file()]));
    eventually("roles are started", || processes_with(&many.file()).len() > 3);
    for mut rack in [reading, starting] {
        eventually("it listens to signals", || catches_interrupts(rack.pid()));
        signal(rack.pid(), "INT");
        let ended = rack.ended();
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(130), ""), "{ended:?}");
    }
    eventually("no role is left", || processes_with(&many.file()).is_empty());
}

/// Returns true when the process has a handler of SIGINT, which is signal 2.
fn catches_interrupts(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
    u64::from_str_radix(mask, 16).unwrap() & 2 == 2
}

/// The API over HTTP: health without a token, everything else with the token, and each refusal with a code, a
/// message and a remedy.
#[test]
fn the_http_api() {
    let description = Description::new("http", "udp");
    let up = description.up();
    let health = description.http(b"GET /v1/health HTTP/1.1\r\nHost: rack\r\nConnection: close\r\n\r\n");
    assert!(health.starts_with("HTTP/1.1 200 OK\r\n") && health.ends_with("\r\n\r\nok\n"), "{health}");
    let bare = description.http(b"GET /v1/overview HTTP/1.1\r\nHost: rack\r\nConnection: close\r\n\r\n");
    assert!(bare.starts_with("HTTP/1.1 401"), "{bare}");
    assert!(bare.contains("\"unauthorized\"") && bare.contains("Authorization: Bearer"), "{bare}");

    let (status, domain) = description.ask("POST", "/v1/create_domain", r#"{"name": "by-hand"}"#);
    assert_eq!((status, &domain["is"]), (200, &json!("domain")));
    let domain = domain["domain"].as_u64().unwrap();
    let (status, vma) =
        description.ask("POST", "/v1/allocate", &json!({"domain": domain, "size": 5000}).to_string());
    assert_eq!((status, &vma["size"]), (200, &json!(8192)), "{vma}");
    assert_eq!(description.overview()["vmas"][0]["base"], vma["base"]);
    let free = json!({"domain": domain, "base": vma["base"], "id": vma["id"]}).to_string();
    let without_id = json!({"domain": domain, "base": vma["base"]}).to_string();
    let refused = description.ask("POST", "/v1/free", &without_id);
    assert_eq!((refused.0, &refused.1["code"]), (400, &json!("bad_request")), "{}", refused.1);
    assert!(refused.1["message"].to_string().contains("id"), "{}", refused.1);
    assert_eq!(description.ask("POST", "/v1/free", &free).0, 200);

    let stranger = json!({"domain": domain + 1000, "size": 4096}).to_string();
    let refusals = [
        ("POST", "/v1/free", free.as_str(), 404, "not_found"),
        ("POST", "/v1/allocate", &stranger, 404, "not_found"),
        ("POST", "/v1/allocate", "{", 400, "bad_request"),
        ("POST", "/v1/allocate", r#"{"domain": 1}"#, 400, "bad_request"),
        ("POST", "/v1/allocate", r#"{"domain": 1, "size": 0}"#, 400, "bad_request"),
        ("POST", "/v1/create_domain", r#"{"name": "no name"}"#, 400, "bad_request"),
        ("POST", "/v1/join_node", r#"{"name": "x", "gid": "nowhere", "capacity": 4096}"#, 400, "bad_request"),
        ("POST", "/v1/leave", r#"{"port": 999999}"#, 404, "not_found"),
        ("POST", "/v1/fly", "{}", 404, "unknown_request"),
        ("GET", "/v1/allocate", "", 404, "unknown_request"),
        ("DELETE", "/v1/overview", "", 404, "unknown_request"),
        ("GET", "/", "", 404, "unknown_request"),
    ];
    for (method, path, body, status, code) in refusals {
        let (found, answer) = description.ask(method, path, body);
        assert_eq!((found, &answer["code"]), (status, &json!(code)), "{method} {path} {body}: {answer}");
        assert!(!text(&answer["message"]).is_empty() && !text(&answer["remedy"]).is_empty(), "{answer}");
    }
    assert_eq!(up.stop().code, Some(0));
}

/// A killed supervisor cannot stop its roles, which notice the death by themselves. The next rack takes the
/// same addresses and rings.
#[test]
fn no_role_outlives_its_supervisor() {
    for transport in TRANSPORTS {
        let description = Description::new("orphans", transport);
        let mut up = description.up();
        signal(up.supervisor().pid(), "KILL");
        up.supervisor().ended();
        up.await_roles_gone();
        let again = description.up();
        let mut client = description.client("again");
        let vma = client.allocate(64).unwrap();
        client.write(vma.base, b"works").unwrap();
        drop(client);
        assert_eq!(again.stop().code, Some(0));
    }
}

/// A second start of the same rack, and racks that share one resource with it, fail with the name of this
/// resource. The first rack continues.
#[test]
fn a_second_instance_is_refused() {
    for transport in TRANSPORTS {
        let first = Description::new("first", transport);
        let mut up = first.up();
        let mut client = first.client("worker");
        let vma = client.allocate(4096).unwrap();
        client.write(vma.base, b"mine").unwrap();

        let whole = run(&["up", &first.file()]);
        whole.refuses(&["another instance is running on", "control ended", "the line above says why"]);
        assert!(whole.stderr.contains(&first.address(1).to_string()), "{whole:?}");

        let state = first.dir().path().join("state").display().to_string();
        let first_http = format!("{}:{HTTP_PORT}", first.address(1));
        for (own, shared, named) in [
            ("listen = \"OWN1:7471\"", format!("listen = \"{first_http}\""), first_http.clone()),
            ("state = \"state\"", format!("state = \"{state}\""), format!("{state}/control.redb")),
            (
                "address = \"OWN2\"",
                format!("address = \"{}\"", first.address(2)),
                first.address(2).to_string(),
            ),
            (
                "address = \"OWN12\"",
                format!("address = \"{}\"", first.address(12)),
                first.address(12).to_string(),
            ),
        ] {
            let second = Description::new("second", transport);
            let own = own
                .replace("OWN12", &second.address(12).to_string())
                .replace("OWN1", &second.address(1).to_string())
                .replace("OWN2", &second.address(2).to_string());
            let same_rings = first.text().lines().next().unwrap().to_owned();
            let text = second.text().replace(&own, &shared);
            assert_ne!(text, second.text(), "{own}");
            let text = format!("{same_rings}\n{}", text.split_once('\n').unwrap().1);
            let ended = run(&["up", &second.dir().file("rack.toml", &text)]);
            ended.refuses(&["another instance is running on", &named]);
            assert!(!second.rings().exists());
        }

        let mut bytes = [0; 4];
        client.read(vma.base, &mut bytes).unwrap();
        assert_eq!(&bytes, b"mine");
        let mut other = first.client("other");
        let vma = other.allocate(4096).unwrap();
        other.write(vma.base, b"too").unwrap();
        assert!(up.is_whole());
        drop((client, other));
        assert_eq!(up.stop().code, Some(0));
    }
}

/// When another program holds the address of a role or the API's port, the rack does not start, names the
/// address, and stops its started roles.
#[test]
fn a_taken_address_is_named() {
    for last in [1, 2, 11] {
        let description = Description::new("taken", "udp");
        let _taken = UdpSocket::bind((description.address(last), farmem::UDP_PORT)).unwrap();
        let address = format!("{}:{}", description.address(last), farmem::UDP_PORT);
        let ended = run(&["up", &description.file()]);
        ended.refuses(&["another instance is running on", &address, "choose another address"]);
        let free = [1, 2, 11, 12].into_iter().filter(|&other| other != last);
        for other in free {
            assert!(
                UdpSocket::bind((description.address(other), farmem::UDP_PORT)).is_ok(),
                "{other} is held"
            );
        }
    }
    for transport in TRANSPORTS {
        let description = Description::new("port", transport);
        let _taken = TcpListener::bind((description.address(1), HTTP_PORT)).unwrap();
        let address = format!("{}:{HTTP_PORT}", description.address(1));
        run(&["up", &description.file()]).refuses(&["another instance is running on", &address]);
        assert!(!description.rings().exists(), "its rings are removed");
    }
}

/// A restarted rack knows its domains and allocations. The contents are gone, as the documentation of a
/// node's join states, and work with the same access rights continues.
#[test]
fn control_state_survives() {
    for transport in TRANSPORTS {
        let description = Description::new("state", transport);
        let lists = |overview: &Value| (overview["domains"].clone(), overview["vmas"].clone());
        let first = description.up();
        let mut client = description.client("keeper");
        let kept = client.allocate_on(8192, NodeId(2)).unwrap();
        let freed = client.allocate_on(8192, NodeId(2)).unwrap();
        client.write(kept.base, b"not kept").unwrap();
        client.free(freed.base).unwrap();
        client.grant(kept.base, 4096, "reader", api::PermName::Read).unwrap();
        let before = lists(&description.overview());
        assert_eq!(before.1.as_array().unwrap().len(), 1);
        let token = description.token();
        drop(client);
        assert_eq!(first.stop().code, Some(0));

        let second = description.up();
        assert_eq!(description.token(), token);
        assert_eq!(lists(&description.overview()), before);
        let mut client = description.client("keeper");
        let mut bytes = [1; 8];
        let lost = client.read(kept.base, &mut bytes).unwrap_err();
        assert!(matches!(lost, Error::MemoryLost { .. }), "a memory node starts with empty memory: {lost:?}");
        client.accept_lost(kept.base, kept.size).unwrap();
        client.read(kept.base, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 8]);
        client.write(kept.base, b"again").unwrap();
        assert!(matches!(client.read(freed.base, &mut bytes), Err(Error::NotMapped { .. })));
        let mut reader = description.client("reader");
        reader.read(kept.base, &mut bytes[..5]).unwrap();
        assert_eq!(&bytes[..5], b"again", "the grant is kept");
        assert!(matches!(reader.write(kept.base, b"no"), Err(Error::NoPermission { .. })));
        assert_eq!(lists(&description.overview()), before, "the same domains, by number and name");
        drop((client, reader));
        assert_eq!(second.stop().code, Some(0));
    }
}

/// A damaged log is reported and not repaired by guesses.
#[test]
fn a_damaged_log_is_named() {
    let description = Description::new("damaged", "udp");
    assert_eq!(description.up().stop().code, Some(0));
    let log = description.dir().path().join("state/control.redb");
    std::fs::write(&log, vec![7; 10_000]).unwrap();
    run(&["up", &description.file()]).refuses(&[
        log.to_str().unwrap(),
        "is not a control plane's log",
        "remove it",
    ]);
}

/// The example describes a rack that starts, with other addresses only because these may be in use.
#[test]
fn the_example_is_a_rack() {
    let example = run(&["up", "--example"]);
    assert_eq!(example.code, Some(0));
    let description = Description::new("example", "udp");
    let [_, b, c, _] = Ipv4Addr::octets(&description.address(0));
    let text = example
        .stdout
        .replace("127.71.0.", &format!("127.{b}.{c}."))
        .replace("127.71.1.1", &format!("127.{b}.{c}.100"))
        .replace("127.0.0.1:7471", &format!("127.{b}.{c}.1:7471"))
        .replace("count = 200", "count = 20");
    let file = description.dir().file("rack.toml", &text);
    let mut rack = Running::start(farmem(&["up", &file, "--json"]));
    let listening: Value = serde_json::from_str(&rack.line()).expect("it is up");
    assert_eq!(listening["roles"].as_array().unwrap().len(), 6);
    assert_eq!(run(&["demo", "--limit", "50", "--rack", &file, "--json"]).json()["wrong_answers"], 0);
    signal(rack.pid(), "INT");
    assert_eq!(rack.ended().code, Some(0));
}
