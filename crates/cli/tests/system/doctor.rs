//! `farmem doctor`: every finding says how it stands; what does not stand well says what to do.

use crate::process::run;
use crate::rack::{Description, text};
use serde_json::Value;
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

/// A rack that runs is seen, by its addresses and by its rings.
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

/// What a killed rack left is named, with the command that removes it.
#[test]
fn what_was_left_behind_is_named() {
    let rings = PathBuf::from(format!("/dev/shm/farmem-left-by-test-{}", process::id()));
    fs::create_dir(&rings).unwrap();
    let left = finding(&format!("rings in {}", rings.display()));
    fs::remove_dir(&rings).unwrap();
    assert_eq!(left["state"], "degraded");
    assert!(text(&left["remedy"]).contains(&format!("rm -r {}", rings.display())), "{left}");
}
