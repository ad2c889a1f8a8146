//! Tests of `farmem doctor`: every finding has a state, and every bad state has a remedy.

use crate::faults::died_and_serves;
use crate::frames::Stranger;
use crate::process::{eventually, run, signal};
use crate::rack::{Description, text};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::{fs, process};

fn findings() -> Vec<Value> {
    let report = run(&["doctor", "--json"]).json();
    report["findings"].as_array().unwrap().clone()
}

fn finding(name: &str) -> Value {
    let all = findings();
    let found: Vec<_> = all.iter().filter(|f| f["name"] == name).collect();
    assert_eq!(found.len(), 1, "{name} in {all:?}");
    found[0].clone()
}

#[test]
fn everything_is_looked_at_once() {
    let names = [
        "privileges",
        "CPUs",
        "UDP port 4791",
        "socket buffers",
        "/dev/shm",
        "huge pages",
        "userfaultfd",
        "XDP",
        "RDMA devices",
        "running roles",
    ];
    for name in names {
        let finding = finding(name);
        assert!(!text(&finding["detail"]).is_empty(), "{finding}");
    }
    for finding in findings() {
        let state = text(&finding["state"]);
        assert!(["ok", "degraded", "missing"].contains(&state.as_str()), "{finding}");
        assert!(state != "ok" || finding["remedy"] == "", "{finding}");
    }
    let table = run(&["doctor"]);
    assert_eq!(table.code, Some(0));
    for name in names {
        assert!(
            table.stdout.lines().any(|line| line.get(10..).is_some_and(|l| l.starts_with(name))),
            "{name} in {}",
            table.stdout
        );
    }
}

/// A running rack is reported, by its addresses and by its rings.
#[test]
fn a_running_rack_is_seen() {
    let udp = Description::new("seen", "udp");
    let up = udp.up();
    let (port, running) = (finding("UDP port 4791"), text(&finding("running roles")["detail"]));
    assert_eq!((&port["state"], text(&port["detail"]).contains("free")), (&"ok".into(), false), "{port}");
    for last in [1, 2, 11, 12] {
        assert!(running.contains(&udp.address(last).to_string()), "{running}");
    }
    assert_eq!(up.stop().code, Some(0));
    let shm = Description::new("seen", "shm");
    let up = shm.up();
    let rings = finding(&format!("rings in {}", shm.rings().display()));
    assert_eq!((&rings["state"], &rings["detail"]), (&"ok".into(), &"in use".into()));
    assert_eq!(up.stop().code, Some(0));
}

/// The roles of a rack, including index switches, are listed by name while none runs, while all run, and
/// after the end. The test covers UDP and rings.
#[test]
fn the_roles_of_a_rack_are_listed() {
    for transport in ["udp", "shm"] {
        let rack = Description::new("doctor-roles", transport).with_fat_tree(2);
        let roles = || -> Vec<(String, String, String)> {
            let report = run(&["doctor", "--json", "--rack", &rack.file()]).report();
            let all = report["findings"].as_array().unwrap().clone();
            let of = |kind: &str| {
                let its = all.iter().filter(move |f| text(&f["name"]).starts_with(kind)).cloned();
                its.collect::<Vec<Value>>()
            };
            let found = ["control plane", "switch", "memory node ", "index switch "].map(of).concat();
            let row = |f: &Value| (text(&f["name"]), text(&f["state"]), text(&f["detail"]));
            found.iter().map(row).collect()
        };
        let before = roles();
        let names: Vec<&str> = before.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "control plane",
                "switch",
                "memory node node1",
                "memory node node2",
                "memory node node3",
                "memory node node4",
                "index switch core",
                "index switch pod1",
                "index switch pod2",
                "index switch edge1",
                "index switch edge2",
                "index switch edge3",
                "index switch edge4",
            ]
        );
        let count = |roles: &[(String, String, String)], state: &str, says: &str| {
            roles.iter().filter(|(_, is, detail)| is == state && detail.ends_with(says)).count()
        };
        assert_eq!(count(&before, "ok", "does not run, and no role does"), 13, "{before:?}");
        assert!(before[6].2.contains(", core, leads to pod1, pod2:"), "{before:?}");
        let up = rack.up();
        let all = roles();
        assert_eq!(count(&all, "ok", ": runs"), 13, "{all:?}");
        assert_eq!(up.stop().code, Some(0));
        assert_eq!(count(&roles(), "ok", "does not run, and no role does"), 13);
    }
}

/// A rack with only one running role: the others are reported as missing.
#[test]
fn a_role_that_does_not_run_is_named() {
    let rack = Description::new("doctor-part", "udp").with_fat_tree(2);
    let _core = std::net::UdpSocket::bind((rack.address(30), 4791)).expect("the address is free");
    let report = run(&["doctor", "--json", "--rack", &rack.file()]).report();
    let all = report["findings"].as_array().unwrap();
    let state = |name: &str| all.iter().find(|f| f["name"] == name).expect("it is listed")["state"].clone();
    assert_eq!(state("index switch core"), "ok");
    for name in ["control plane", "switch", "memory node node4", "index switch edge4"] {
        assert_eq!(state(name), "missing", "{name}");
    }
}

/// Remains of a killed rack are reported, with the command that removes them.
#[test]
fn leftovers_are_named() {
    let rings = PathBuf::from(format!("/dev/shm/farmem-left-by-test-{}", process::id()));
    fs::create_dir(&rings).unwrap();
    let left = finding(&format!("rings in {}", rings.display()));
    fs::remove_dir(&rings).unwrap();
    assert_eq!(left["state"], "degraded");
    assert!(text(&left["remedy"]).contains(&format!("rm -r {}", rings.display())), "{left}");
}

/// The checks of a rack: the path to each role, the control plane's answer to the token, and bytes of each
/// node. A `pmtu` above a link's MTU and a wrong token are reported by name.
#[test]
fn a_rack_is_tried() {
    let rack = Description::new("doctor-tried", "udp");
    let file = rack.file();
    let look = |file: &str| -> Vec<Value> {
        run(&["doctor", "--json", "--rack", file]).report()["findings"].as_array().expect("a list").clone()
    };
    let of = |all: &[Value], name: &str| -> (String, String, String) {
        let found: Vec<_> = all.iter().filter(|f| f["name"] == name).collect();
        assert_eq!(found.len(), 1, "{name} in {all:?}");
        (text(&found[0]["state"]), text(&found[0]["detail"]), text(&found[0]["remedy"]))
    };
    let (state, detail, remedy) = of(&look(&file), "API of the control plane");
    assert_eq!(state, "missing", "{detail}");
    assert!(remedy.contains("let TCP port") && detail.contains("token"), "{detail}: {remedy}");
    let up = rack.up();
    let all = look(&file);
    for name in [
        "API of the control plane",
        "memory for the nodes",
        "memory of node1",
        "bytes of node1",
        "bytes of node2",
        "bytes by way of the switch",
        "MTU to switch",
    ] {
        assert_eq!(of(&all, name).0, "ok", "{name} in {all:?}");
    }
    assert_eq!(
        rack.ask("GET", "/v1/overview", "").1["vmas"],
        serde_json::json!([]),
        "what was allocated is free"
    );
    // More memory than this machine has, and another amount than the running rack's node started with.
    let other = rack.text().replacen("16 MiB", "100000 TiB", 1);
    let all = look(&rack.dir().file("other.toml", &other));
    let (state, detail, remedy) = of(&all, "memory for the nodes");
    assert_eq!(state, "degraded", "{detail}");
    assert!(
        detail.contains("are to give 104857600016 MiB") && remedy.contains("less `memory` in rack.toml"),
        "{detail}: {remedy}"
    );
    let (state, detail, remedy) = of(&all, "memory of node1");
    assert_eq!(state, "degraded", "{detail}");
    assert!(detail.contains("gives 16 MiB, and 104857600000 MiB in rack.toml"), "{detail}");
    assert!(remedy.contains("started from another description"), "{remedy}");
    assert_eq!(of(&all, "memory of node2").0, "ok");
    // A description of this rack with another token.
    let token = rack.dir().path().join("state/token");
    let right = fs::read_to_string(&token).expect("the token");
    fs::write(&token, "0".repeat(right.trim().len())).expect("written");
    let (state, detail, remedy) = of(&look(&file), "API of the control plane");
    assert_eq!(state, "missing", "{detail}");
    assert!(detail.contains("refuses this token") && remedy.contains("copy the token"), "{detail}: {remedy}");
    fs::write(&token, right).expect("written");
    assert_eq!(up.stop().code, Some(0));
    let (state, detail, _) = of(&look(&file), "API of the control plane");
    assert!(state == "missing" && detail.contains("no control plane answers"), "{state}: {detail}");
}

/// A rack is well, and the command ends with 0. A memory node stands still, then the switch: it ends with 1, and names them.
#[test]
fn a_role_that_is_dead_is_a_violation() {
    let rack = Description::new("doctor-dead", "udp");
    let up = rack.up();
    let look = || run(&["doctor", "--json", "--rack", &rack.file()]);
    look().json();
    for (role, finding, says) in [
        ("node node2", "memory of node2", "does not answer"),
        ("switch", "API of the control plane", "the switch does not answer"),
    ] {
        let (_, pid) = up.roles().into_iter().find(|(name, _)| name == role).expect("it is a role");
        signal(pid, "STOP");
        eventually("the control plane has noticed", || {
            let report = look().violation();
            let found = report["findings"].as_array().unwrap();
            found.iter().any(|f| f["name"] == finding && text(&f["detail"]).contains(says))
        });
        signal(pid, "CONT");
        eventually("all is well again", || look().code == Some(0));
    }
    assert_eq!(up.stop().code, Some(0));
}

/// A host with another build joins. `farmem doctor --rack` names the host and its build. Members with this
/// build are healthy, also after a restart of the control plane. A name that no build has is refused
/// (PROTOCOL 8.71).
#[test]
fn members_of_another_build_are_named() {
    let rack = Description::new("doctor-builds", "udp");
    let (mut up, file) = (rack.up(), rack.file());
    let builds = || -> (String, String, String) {
        let report = run(&["doctor", "--json", "--rack", &file]).report();
        let found = report["findings"].as_array().expect("a list");
        let found = found.iter().find(|f| f["name"] == "builds of the rack").expect("it is looked at");
        (text(&found["state"]), text(&found["detail"]), text(&found["remedy"]))
    };
    let own = builds();
    assert!(own.0 == "ok" && own.1.contains(": 4 members"), "{own:?}");
    died_and_serves(&mut up, "control");
    assert_eq!(builds(), own, "it is in the log");
    let host = Stranger::new(rack.address(200), farmem::UDP_PORT);
    let body = json!({"name": "old", "gid": host.address(), "caches": false});
    let build = "Farmem-Build: of yesterday\r\n";
    let (status, answer) = rack.ask_with("POST", "/v1/join_host", build, &body.to_string());
    assert!(status == 400 && answer["message"].to_string().contains("Farmem-Build"), "{answer}");
    rack.join_at(&host, "join_host", "Farmem-Build: 0.0.9+old\r\n", &body);
    let (state, detail, remedy) = builds();
    assert_eq!(state, "missing", "{detail}");
    assert!(detail.contains("of other builds are 0.0.9+old: host old"), "{detail}");
    assert!(remedy.contains("one build of farmem on all machines"), "{remedy}");
    assert_eq!(up.stop().code, Some(0));
}

/// The interface that a DPU may mirror is checked by name. A missing interface is reported for every user. A
/// description without one has no such finding.
#[test]
fn an_interface_that_cannot_be_mirrored_is_reported() {
    let with = |dpu: &'static str| {
        let rack = Description::new("doctor-mirror", "udp").with(dpu);
        let report = run(&["doctor", "--json", "--rack", &rack.file()]).report();
        let all = report["findings"].as_array().expect("a list").clone();
        all.into_iter().filter(|f| text(&f["name"]).starts_with("mirror ")).collect::<Vec<Value>>()
    };
    assert_eq!(with("[dpu]\nsocket = \"dpu/socket\"\n"), Vec::<Value>::new());
    let found = with(
        "[dpu]\nsocket = \"dpu/socket\"\nmirror = [\"no-such-link 127.0.0.1:80\", \"lo 127.0.0.1:80\"]\n",
    );
    let names: Vec<String> = found.iter().map(|f| text(&f["name"])).collect();
    assert_eq!(names, ["mirror no-such-link 127.0.0.1:80", "mirror lo 127.0.0.1:80"]);
    assert!(
        found[0]["state"] == "missing" && text(&found[0]["detail"]).contains("no-such-link"),
        "{found:?}"
    );
    let (state, detail) = (text(&found[1]["state"]), text(&found[1]["detail"]));
    assert!(state == "ok" || state == "missing" && detail.contains("CAP_NET_RAW"), "{found:?}");
}

/// A link with an MTU below the rack's packets is reported with its name, the difference and the right value.
#[test]
fn a_pmtu_above_the_links_mtu_is_said() {
    let inside = |script: &str| {
        let mut command = process::Command::new("unshare");
        command.args(["-n", "sh", "-ec", script, "sh", env!("CARGO_BIN_EXE_farmem")]);
        command.output().expect("util-linux is there")
    };
    if !crate::process::is_root() || !inside("ip link set lo up mtu 1500").status.success() {
        return eprintln!("skipped: a link's MTU: only root may make a network of its own, with iproute2");
    }
    let rack = Description::new("doctor-mtu", "udp").with("pmtu = 4096");
    let script = format!("ip link set lo up mtu 1500; exec \"$1\" doctor --json --rack {}", rack.file());
    let ended = inside(&script);
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended:?}"));
    let all = report["findings"].as_array().expect("a list");
    let found = all.iter().find(|f| f["name"] == "MTU to switch").expect("it is looked at");
    assert_eq!(found["state"], "missing", "{found}");
    let (detail, remedy) = (text(&found["detail"]), text(&found["remedy"]));
    assert!(detail.contains("1500") && detail.contains("pmtu = 4096"), "{detail}");
    assert!(remedy.contains("`pmtu = 1024` in rack.toml"), "{remedy}");
}
