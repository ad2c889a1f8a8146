//! Tests of the log lines of a role (`--log`, FARMEM_LOG).

use crate::process::{Running, eventually, farmem, run, signal};
use crate::rack::{Description, text};
use farmem::ClientOptions;
use serde_json::json;
use std::process::Stdio;

fn role(description: &Description, role: &[&str], log: &[&str]) -> Running {
    let file = description.file();
    let mut args = vec!["role"];
    args.extend_from_slice(role);
    args.extend_from_slice(&["--rack", &file]);
    args.extend_from_slice(log);
    let mut command = farmem(&args);
    command.stdin(Stdio::null()).env("FARMEM_LOG", "off");
    let mut running = Running::start(command);
    assert_eq!(running.line(), "ready\n");
    running
}

fn ended(running: &mut Running) -> Vec<String> {
    signal(running.pid(), "TERM");
    let ended = running.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.stderr.lines().map(str::to_owned).collect()
}

/// A control plane, a switch and a memory node start. A host joins, a request is refused, and the host
/// leaves. Each event is a line of its role, with its level, in this order. A name with a line break adds no
/// line. A role with the level `off` writes nothing.
#[test]
fn a_role_says_who_joins_is_refused_and_leaves() {
    let description = Description::new("logging", "udp").with_nodes(1);
    let mut control = role(&description, &["control"], &["--log", "info"]);
    let mut switch = role(&description, &["switch"], &["--log", "info"]);
    let mut node = role(&description, &["node", "--node", "node1"], &[]);
    let gid = description.address(200);
    let joined = description.join("join_host", gid, &json!({"name": "client", "gid": gid}));
    assert_eq!(joined["host"].as_u64(), Some(1), "{joined}");
    let (status, refused) = description.ask("POST", "/v1/leave", r#"{"port":77}"#);
    assert_eq!((status, text(&refused["code"]).as_str()), (404, "not_found"));
    let forged = format!(r#"{{"name":"a\nWARN b","gid":"{gid}"}}"#);
    let (status, _) = description.ask("POST", "/v1/join_host", &forged);
    assert_eq!(status, 400);
    let (status, _) = description.ask("POST", "/v1/leave", &format!(r#"{{"port":{}}}"#, 0x1_0001));
    assert_eq!(status, 200);

    let lines = ended(&mut control);
    let wanted = [
        (" INFO ", "control plane: it serves"),
        (" INFO ", "control plane: the switch joined at"),
        (" INFO ", "control plane: memory node node1 joined as node 1"),
        (" INFO ", "control plane: host client joined as host 1, generation 1"),
        (" WARN ", "control plane: leave was refused (NotFound): no member has port 77"),
        (" WARN ", "control plane: join_host was refused (BadRequest)"),
        (" INFO ", "control plane: client left"),
    ];
    let mut left = lines.iter();
    for (level, text) in wanted {
        let found = left.any(|line| line.contains(level) && line.contains(text));
        assert!(found, "{level} {text}: {lines:#?}");
    }
    assert!(!lines.iter().any(|line| line.starts_with("WARN b")), "{lines:#?}");
    let lines = ended(&mut switch);
    assert!(lines[0].contains("the switch: it has joined, and serves"), "{lines:#?}");
    assert!(lines.last().unwrap().contains("the switch: it ends"), "{lines:#?}");
    assert_eq!(ended(&mut node), Vec::<String>::new(), "FARMEM_LOG says off");
}

/// A memory node with two domains' memory dies, while no program uses it; then it joins again, empty. The control plane says at `warn` which node, how many bytes and whose;
/// `farmem status` has the node down with what it held, then up with what is lost, and counts both.
#[test]
fn a_loss_is_seen_by_the_operator() {
    let description = Description::new("loss", "udp").with_nodes(1);
    let mut control = role(&description, &["control"], &["--log", "warn"]);
    let _switch = role(&description, &["switch"], &[]);
    let node = role(&description, &["node", "--node", "node1"], &[]);
    for (domain, size) in [("shop", 4096), ("web", 8192)] {
        let mut client = description.rack().client_with(domain, ClientOptions::durable()).unwrap();
        let vma = client.allocate(size).unwrap();
        client.write(vma.base, b"here").unwrap();
    }
    let status = || run(&["status", "--rack", &description.file(), "--json"]).json();
    let row = || status()["nodes"][0].clone();
    assert_eq!((&row()["answers"], &row()["lost"]), (&json!(true), &json!(0)));
    assert_eq!(status()["losses"]["nodes_silent"], 0);
    signal(node.pid(), "KILL");
    drop(node);
    eventually("it is missed", || row()["answers"] == json!(false));
    let text = run(&["status", "--rack", &description.file()]).stdout;
    assert!(text.lines().any(|line| line.contains("1 node1") && line.contains("down")), "{text}");
    let _node = role(&description, &["node", "--node", "node1"], &[]);
    eventually("it answers", || row()["answers"] == json!(true));
    assert_eq!(row()["lost"], 12_288);
    let lost = json!({"nodes_silent": 1, "nodes_emptied": 1, "bytes_lost": 12_288});
    assert_eq!(status()["losses"], lost);
    let domains = status()["domains"].clone();
    let of =
        |name: &str| domains.as_array().unwrap().iter().find(|d| d["name"] == name).unwrap()["lost"].clone();
    assert_eq!((of("shop"), of("web")), (json!(4096), json!(8192)));
    let lines = ended(&mut control);
    let mut left = lines.iter();
    for text in [
        "memory node node1 does not answer: 12288 bytes of domains shop, web are unreachable",
        "memory node node1 joined again with empty memory: 12288 bytes of domains shop, web are lost",
    ] {
        let found = left.any(|line| line.contains(" WARN ") && line.contains(text));
        assert!(found, "{text}: {lines:#?}");
    }
}

/// The expiry of a silent host and of its only domain is a line each at the level `info`. At `warn`, there
/// are none.
#[test]
fn lapses_are_said() {
    let racks = ["info", "warn"].map(|level| {
        let description = Description::new("lapses", "udp")
            .with_nodes(1)
            .with_lease("lease_ms = 500\nhost_lease_ms = 1000");
        let control = role(&description, &["control"], &["--log", level]);
        let switch = role(&description, &["switch"], &[]);
        (description, control, switch)
    });
    for (description, ..) in &racks {
        let ask = |name: &str, body: serde_json::Value| {
            let (status, answer) = description.ask("POST", &format!("/v1/{name}"), &body.to_string());
            assert_eq!(status, 200, "{answer}");
            answer
        };
        let gid = description.address(200);
        let host =
            description.join("join_host", gid, &json!({"name": "silent", "gid": gid, "caches": false}));
        let domain = ask("create_domain", json!({"name": "silent"}));
        ask("open_session", json!({"host": host["host"], "domain": domain["domain"]}));
    }
    let [informed, warned] = racks.map(|(description, mut control, switch)| {
        eventually("host and domain are gone", || {
            let (_, usage) = description.ask("POST", "/v1/usage", "{}");
            usage["hosts"] == json!([]) && usage["domains"] == json!([])
        });
        let lines = ended(&mut control);
        drop(switch);
        lines
    });
    let mut left = informed.iter();
    for (begin, end) in [
        ("control plane: silent", " did not renew its lease: it is fenced"),
        ("control plane: domain ", "it is gone"),
    ] {
        let found = left.any(|line| line.contains(" INFO ") && line.contains(begin) && line.ends_with(end));
        assert!(found, "{begin}..{end}: {informed:#?}");
    }
    assert!(!warned.iter().any(|line| line.contains("is fenced") || line.contains("is gone")), "{warned:#?}");
}

/// An invalid level of the option or the variable is rejected with the list of levels.
#[test]
fn a_level_that_is_none_is_refused() {
    let description = Description::new("logging-level", "udp");
    let mut command = farmem(&["role", "control", "--rack", &description.file()]);
    command.env("FARMEM_LOG", "loud");
    crate::process::run_command(command).refuses(&["FARMEM_LOG", "loud", "info"]);
    let said = run(&["role", "control", "--rack", &description.file(), "--log", "loud"]);
    assert_eq!(said.code, Some(2), "{said:?}");
}
