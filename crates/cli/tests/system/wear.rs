//! Tests of resources and their release: `farmem status`, `farmem free`, `farmem leave`, and clients that die
//! (PROTOCOL 8.60 to 8.63).

use crate::process::{Running, eventually, farmem, run, signal};
use crate::rack::Description;
use crate::run::may_run;
use farmem::{ClientOptions, Error, VirtAddr};
use serde_json::{Value, json};
use std::process::Stdio;

/// Adds a host that joins through the API, has a session and 64 KiB, and falls silent.
fn stranger(description: &Description, name: &str) {
    let ask = |request: &str, body: Value| {
        let (status, answer) = description.ask("POST", &format!("/v1/{request}"), &body.to_string());
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let gid = description.address(200);
    let host = description.join("join_host", gid, &json!({"name": name, "gid": gid}));
    let domain = ask("create_domain", json!({"name": name}));
    ask("open_session", json!({"host": host["host"], "domain": domain["domain"]}));
    ask("allocate", json!({"domain": domain["domain"], "size": 65_536}));
}

fn names(rows: &Value) -> Vec<&str> {
    rows.as_array().expect("rows").iter().map(|row| row["name"].as_str().expect("a name")).collect()
}

/// An idle program keeps its lease for a long time, because its library renews it. Silent hosts are removed
/// one after the other, with their domains and their memory. The program's memory is unchanged. At its end,
/// only its durable allocations stay.
#[test]
fn silent_hosts_are_removed_and_idle_ones_stay() {
    let leases = "lease_ms = 200\nhost_lease_ms = 1000";
    let description = Description::new("wear", "udp").with_lease(leases);
    let (mut up, file) = (description.up(), description.file());
    let status = || run(&["status", "--rack", &file, "--json"]).json();
    let mut waiting = description.client("waiting");
    let base = waiting.allocate(4096).unwrap().base;
    waiting.write(base, b"still here").unwrap();
    let mut other = description.rack().client_with("waiting", ClientOptions::durable()).unwrap();
    let kept = other.allocate(4096).unwrap().base;
    drop(other);
    for round in 0..3 {
        let name = format!("stranger-{round}");
        stranger(&description, &name);
        assert!(names(&status()["domains"]).contains(&&*name));
        eventually("it goes with what it had", || names(&status()["domains"]) == ["waiting"]);
    }
    let mut bytes = [0; 10];
    waiting.read(base, &mut bytes).unwrap();
    assert_eq!(&bytes, b"still here");
    let seen = status();
    let (host, domain) = (&seen["hosts"][0], &seen["domains"][0]);
    assert!(host["host"].as_u64().unwrap() >= 256, "it does not cache: {host}");
    assert!((1..=1125).contains(&host["lease_left_ms"].as_u64().unwrap()), "{host}");
    assert_eq!((&domain["bytes"], &domain["durable_bytes"]), (&8192.into(), &4096.into()), "{domain}");
    assert_eq!(domain["idle_left_ms"], Value::Null);
    drop(waiting);
    eventually("what does not stay goes", || status()["vmas"].as_array().unwrap().len() == 1);
    let seen = status();
    assert_eq!((&seen["vmas"][0]["base"], &seen["hosts"]), (&kept.0.into(), &json!([])));
    let text = run(&["status", "--rack", &file]).stdout;
    assert!(text.contains("waiting") && text.contains("durable") && text.contains("stays"), "{text}");
    assert!(up.is_whole());
    up.stop();
}

/// Used resources are refused by name, and unused ones need a confirmation. A program that loses memory to
/// the command gets an error, and never other bytes.
#[test]
fn resources_in_use_are_not_freed_without_force() {
    let description = Description::new("wear-free", "udp");
    let (up, file) = (description.up(), description.file());
    let mut owner = description.rack().client_with("shop", ClientOptions::durable()).unwrap();
    let mut vmas: Vec<VirtAddr> = Vec::new();
    for _ in 0..3 {
        vmas.push(owner.allocate(8192).unwrap().base);
    }
    let ids: Vec<u64> = {
        let seen = run(&["status", "--rack", &file, "--json"]).json();
        seen["vmas"].as_array().unwrap().iter().map(|vma| vma["id"].as_u64().unwrap()).collect()
    };
    let free = |more: &[&str]| run(&[&["free", "--rack", &file, "shop"], more].concat());
    free(&["--yes"]).refuses(&["domain shop is in use: 1 hosts use it", "--force"]);
    free(&["--force"]).refuses(&["3 allocations of 24 576 bytes would be lost", "nothing was done", "--yes"]);
    free(&["--allocation", "99999", "--force", "--yes"]).refuses(&["no allocation 99999", "farmem status"]);
    run(&["free", "--rack", &file, "nobody", "--yes"]).refuses(&["no domain \"nobody\""]);
    let one = free(&["--allocation", &ids[0].to_string(), "--force", "--yes", "--json"]).json();
    assert_eq!((&one["allocations"], &one["bytes"]), (&1.into(), &8192.into()));
    let mut bytes = [7; 8];
    let refused = owner.read(vmas[0], &mut bytes).expect_err("it is freed");
    assert!(!matches!(refused, Error::Unreachable { .. }), "{refused}");
    owner.read(vmas[1], &mut bytes).unwrap();
    let leave = |more: &[&str]| run(&[&["leave", "--rack", &file], more].concat());
    let (host, _) = owner.life();
    let host = host.to_string();
    leave(&[&host, "--yes"]).refuses(&["is in use: it has sessions in 1 domains"]);
    leave(&["nobody", "--yes"]).refuses(&["no host or memory node \"nobody\""]);
    assert_eq!(leave(&[&host, "--force", "--yes", "--json"]).json()["domains"], 1);
    owner.read(vmas[1], &mut bytes).expect_err("its host is fenced");
    let rest = free(&["--yes"]);
    assert!(rest.code == Some(0) && rest.stdout.contains("2 allocations of 16 384 bytes freed"), "{rest:?}");
    assert_eq!(run(&["status", "--rack", &file, "--json"]).json()["vmas"], json!([]));
    drop(owner);
    up.stop();
}

/// A memory node that holds bytes is not removed: the command names the one that moves them. After that, the
/// command says what keeps the node. The node leaves once no allocation has addresses there; a node without any
/// leaves at once.
#[test]
fn a_memory_node_leaves_once_it_is_empty() {
    let description = Description::new("wear-node", "udp").with_nodes(3);
    let (up, file) = (description.up(), description.file());
    let mut owner = description.rack().client("shop").unwrap();
    let vma = owner.allocate(8192).unwrap();
    owner.write(vma.base, b"stays").unwrap();
    let on = run(&["migrate", "--rack", &file, "--json"]).json();
    let holder = on["allocations"][0]["node_name"].as_str().expect("it is somewhere").to_owned();
    let mut others = ["node1", "node2", "node3"].into_iter().filter(|name| *name != holder);
    let (empty, other) = (others.next().unwrap(), others.next().unwrap());
    let leave = |node: &str| run(&["leave", "--rack", &file, node, "--yes", "--json"]);
    assert_eq!(leave(empty).json()["name"], empty);
    let holds = format!("memory node {holder} has 8 192 bytes allocated");
    leave(&holder).refuses(&[&holds, "farmem migrate --rack", "--base ADDRESS --node NODE"]);
    let base = format!("{:#x}", vma.base.0);
    let moved = run(&["migrate", "--rack", &file, "--base", &base, "--node", other, "--json"]).json();
    assert_eq!(moved["bytes"], 8192);
    let moved = format!("memory node {holder} has no bytes any more, and 1 allocations");
    let named = format!("of domain shop at {base}");
    let keep = "keep its role running until the allocations are freed";
    leave(&holder).refuses(&[&moved, &named, keep, "farmem free --rack", "farmem status --rack"]);
    let mut bytes = [0; 5];
    owner.read(vma.base, &mut bytes).unwrap();
    assert_eq!(&bytes, b"stays");
    owner.free(vma.base).unwrap();
    assert_eq!(leave(&holder).json()["name"], holder.as_str());
    leave(&holder).refuses(&["no host or memory node", "farmem status"]);
    run(&["free", "--rack", &file, other, "--yes"])
        .refuses(&["is a memory node and no domain", "farmem leave"]);
    drop(owner);
    up.stop();
}

/// The pager of a run stands still for longer than its host's lease, like a suspended machine, and the rack
/// removes the host with its memory. When the pager continues, an access of the program to far memory is a
/// SIGBUS. The command prints the reason and the permitted pause, does not wait, and reads no other bytes.
#[test]
fn a_host_that_stood_still_too_long_is_reported() {
    if !may_run("wear-still") {
        return;
    }
    let description =
        Description::new("wear-still", "udp").with_lease("lease_ms = 500\nhost_lease_ms = 3000");
    let (up, file) = (description.up(), description.file());
    let script = "import sys\ndata = bytearray(8 << 20)\nfor at in range(0, len(data), 4096): data[at] = 1\n\
                  print('made', flush=True)\nsys.stdin.readline()\nprint(sum(data[::4096]))";
    let mut command =
        farmem(&["run", "--rack", &file, "--local", "1MiB", "--", "/usr/bin/python3", "-c", script]);
    command.stdin(Stdio::piped());
    let mut program = Running::start(command);
    let said = program.line();
    assert!(said == "made\n", "{said:?}: {:?}", program.ended());
    signal(program.pid(), "STOP");
    let status = || run(&["status", "--rack", &file, "--json"]).json();
    eventually("what it had is taken back", || {
        let seen = status();
        seen["hosts"] == json!([]) && seen["vmas"] == json!([])
    });
    signal(program.pid(), "CONT");
    program.say("");
    let ended = program.ended();
    assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{ended:?}");
    for word in ["was fenced", "host_lease_ms"] {
        assert!(ended.stderr.contains(word), "{word} in {ended:?}");
    }
    up.stop();
}
