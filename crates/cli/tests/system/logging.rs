//! Tests of the log lines of a role (`--log`, FARMEM_LOG).

use crate::process::{Running, eventually, farmem, signal};
use crate::rack::{Description, text};
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
    let join = format!(r#"{{"name":"client","gid":"{gid}"}}"#);
    let (status, joined) = description.ask("POST", "/v1/join_host", &join);
    assert_eq!((status, joined["host"].as_u64()), (200, Some(1)), "{joined}");
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
        (" WARN ", "control plane: leave was refused (NotFound): nobody has port 77"),
        (" WARN ", "control plane: join_host was refused (BadRequest)"),
        (" INFO ", "control plane: port 65537 left"),
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
        let gid = description.address(200).to_string();
        let host = ask("join_host", json!({"name": "silent", "gid": gid, "caches": false}));
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
        ("control plane: host ", " was not heard of: it is taken out"),
        ("control plane: domain ", "it is gone"),
    ] {
        let found = left.any(|line| line.contains(" INFO ") && line.contains(begin) && line.ends_with(end));
        assert!(found, "{begin}..{end}: {informed:#?}");
    }
    assert!(!warned.iter().any(|line| line.contains("taken out") || line.contains("is gone")), "{warned:#?}");
}

/// An invalid level of the option or the variable is rejected with the list of levels.
#[test]
fn a_level_that_is_none_is_refused() {
    let description = Description::new("logging-level", "udp");
    let mut command = farmem(&["role", "control", "--rack", &description.file()]);
    command.env("FARMEM_LOG", "loud");
    crate::process::run_command(command).refuses(&["FARMEM_LOG", "loud", "info"]);
    let said = crate::process::run(&["role", "control", "--rack", &description.file(), "--log", "loud"]);
    assert_eq!(said.code, Some(2), "{said:?}");
}
