//! Tests of faults under `farmem up`: one fault has its documented cost, and the rack survives (PROTOCOL
//! 8.48, 9.21).

use crate::process::{eventually, farmem, run, signal};
use crate::rack::{Description, Up, text};
use farmem::{Client, Error, NodeId};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Kills a role with SIGKILL, and returns its process id.
pub(crate) fn kill(up: &Up<'_>, role: &str) -> u32 {
    let (_, pid) = up.roles().into_iter().find(|(name, _)| name == role).expect("it is a role");
    signal(pid, "KILL");
    pid
}

/// Returns the next line of `farmem up --json`. The line is empty after the end.
fn event(up: &mut Up<'_>) -> Value {
    let line = up.supervisor().line();
    assert!(!line.is_empty(), "farmem up ended: {:?}", up.supervisor().ended());
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

/// Kills a role and waits until it serves again as another process. Returns the report of the death.
pub(crate) fn died_and_serves(up: &mut Up<'_>, role: &str) -> Value {
    let pid = kill(up, role);
    serves_again(up, role, pid)
}

/// Waits until a killed role serves again as another process. Returns the report of the death.
pub(crate) fn serves_again(up: &mut Up<'_>, role: &str, pid: u32) -> Value {
    let died = event(up);
    assert_eq!((&died["event"], text(&died["role"]).as_str()), (&json!("died"), role), "{died}");
    assert_eq!(died["how"], "killed by SIGKILL", "{died}");
    assert!(died["again_in_ms"].as_u64().is_some_and(|ms| ms >= 200), "{died}");
    let serves = event(up);
    assert_eq!((&serves["event"], text(&serves["role"]).as_str()), (&json!("serves"), role), "{serves}");
    let next = u32::try_from(serves["pid"].as_u64().expect("a process")).expect("a number");
    assert_ne!(next, pid);
    up.replace(role, next);
    died
}

/// Writes and reads back over any path that the client finds.
fn works(client: &mut Client, node: u16) {
    let vma = client.allocate_on(4096, NodeId(node)).unwrap();
    client.write(vma.base, b"works").unwrap();
    let mut bytes = [0; 5];
    client.read(vma.base, &mut bytes).unwrap();
    assert_eq!(&bytes, b"works");
    client.free(vma.base).unwrap();
}

/// After the death of the control plane, written data can be read, another process serves, its state is
/// complete, and changes work.
#[test]
fn a_control_plane_that_dies_is_started_again() {
    for transport in ["udp", "shm"] {
        let description = Description::new("dies-control", transport);
        let mut up = description.up();
        let mut client = description.client("worker");
        let vma = client.allocate_on(4096, NodeId(1)).unwrap();
        client.write(vma.base, b"kept").unwrap();
        let before = description.overview();
        let died = died_and_serves(&mut up, "control");
        assert!(text(&died["text"]).contains("changes and joins wait, and nothing is lost"), "{died}");
        let mut bytes = [0; 4];
        client.read(vma.base, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept");
        let after = description.overview();
        assert_eq!((&after["vmas"], &after["domains"]), (&before["vmas"], &before["domains"]));
        works(&mut description.client("later"), 2);
        assert!(up.is_whole());
        drop(client);
        let ended = up.stop();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(
            ended.stderr.contains("control ended: killed by SIGKILL; it is started again in"),
            "{ended:?}"
        );
    }
}

/// During the death of the switch, READs continue. Traversals and changes continue after its restart.
#[test]
fn a_switch_that_dies_is_started_again() {
    for transport in ["udp", "shm"] {
        let description = Description::new("dies-switch", transport);
        let mut up = description.up();
        let mut client = description.client("worker");
        let vma = client.allocate_on(4096, NodeId(1)).unwrap();
        client.write(vma.base, b"kept").unwrap();
        let died = died_and_serves(&mut up, "switch");
        assert!(text(&died["text"]).contains("a new epoch begins; nothing is lost"), "{died}");
        let mut bytes = [0; 4];
        client.read(vma.base, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept");
        works(&mut client, 2);
        drop(client);
        assert_eq!(up.stop().code, Some(0));
    }
}

/// The death of a memory node reports the amount of lost memory. Memory on the other node stays readable, and
/// the node serves again.
#[test]
fn a_memory_node_that_dies_is_started_again() {
    for transport in ["udp", "shm"] {
        let description = Description::new("dies-node", transport);
        let mut up = description.up();
        let mut client = description.client("worker");
        let kept = client.allocate_on(4096, NodeId(2)).unwrap();
        client.write(kept.base, b"kept").unwrap();
        for size in [4096, 8192] {
            client.allocate_on(size, NodeId(1)).unwrap();
        }
        let died = died_and_serves(&mut up, "node node1");
        assert_eq!(died["lost"], json!({"allocations": 2, "bytes": 12288}), "{died}");
        assert!(text(&died["text"]).contains("ITS MEMORY IS LOST: 12288 bytes of 2 allocations"), "{died}");
        let mut bytes = [0; 4];
        client.read(kept.base, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept");
        drop(client);
        works(&mut description.client("later"), 1);
        assert_eq!(up.stop().code, Some(0));
    }
}

/// A memory node is stopped. A program that starts meanwhile works with the other node. Only operations on
/// the stopped node fail, with an error that names it, until the node continues.
#[test]
fn a_node_that_stands_still_keeps_no_program_out() {
    for transport in ["udp", "shm"] {
        let description = Description::new("stands-still", transport);
        let up = description.up();
        let mut early = description.client("worker");
        let there = early.allocate_on(4096, NodeId(1)).unwrap();
        let (_, pid) = up.roles().into_iter().find(|(name, _)| name == "node node1").expect("it is a role");
        signal(pid, "STOP");
        let mut late = description.client("worker");
        works(&mut late, 2);
        let error = late.read(there.base, &mut [0; 4]).unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("node1"), "{error}");
        works(&mut late, 2);
        signal(pid, "CONT");
        eventually("the node is used again", || late.read(there.base, &mut [0; 4]).is_ok());
        drop((early, late));
        assert_eq!(up.stop().code, Some(0));
    }
}

/// A command that begins while the rack is down waits for it, says so, and does its work when the rack is up; with `--wait-for-rack 0s` it fails at once.
#[test]
fn commands_wait_for_the_rack() {
    let description = Description::new("waits", "udp").with("patience = \"60s\"");
    assert_eq!(description.up().stop().code, Some(0));
    let file = description.file();
    run(&["status", "--rack", &file, "--wait-for-rack", "0s"]).refuses(&["no control plane answers"]);
    let mut command = farmem(&["status", "--rack", &file, "--json"]);
    command.stderr(Stdio::piped()).stdout(Stdio::piped());
    let mut waiting = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(waiting.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("farmem: waiting for the rack, for up to "), "{line}");
    let up = description.up();
    let ended = waiting.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stdout).contains("node1"), "{ended:?}");
    assert_eq!(up.stop().code, Some(0));
}

/// A memory node whose address another program takes cannot restart, and is given up with a report. The other
/// roles continue, and the rack ends with 1.
#[test]
fn a_role_that_cannot_start_again_is_given_up() {
    let description = Description::new("given-up", "udp");
    let mut up = description.up();
    let mut client = description.client("worker");
    let kept = client.allocate_on(4096, NodeId(2)).unwrap();
    client.write(kept.base, b"kept").unwrap();
    kill(&up, "node node1");
    let mut taken = None;
    eventually("the address is free", || {
        taken = UdpSocket::bind((description.address(11), farmem::UDP_PORT)).ok();
        taken.is_some()
    });
    let mut waits = Vec::new();
    let given_up = loop {
        let event = event(&mut up);
        match text(&event["event"]).as_str() {
            "died" => waits.push(event["again_in_ms"].as_u64().expect("a number")),
            "serves" => panic!("its address was taken: {event}"),
            _ => break event,
        }
    };
    assert_eq!(waits, [200, 400, 800, 1600], "and the fifth death is the last");
    assert_eq!((&given_up["event"], &given_up["role"]), (&json!("given_up"), &json!("node node1")));
    assert_eq!(given_up["how"], "exit code 2", "{given_up}");
    let mut bytes = [0; 4];
    client.read(kept.base, &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
    works(&mut client, 2);
    drop((client, taken));
    let ended = up.stop();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("died 5 times in a row and is given up"), "{ended:?}");
    assert!(ended.stderr.contains("another instance is running on"), "the reason stands there: {ended:?}");
}

/// A role that dies repeatedly after its start is given up.
#[test]
fn a_role_that_dies_again_and_again_is_given_up() {
    let description = Description::new("again", "udp");
    let mut up = description.up();
    for _ in 0..4 {
        died_and_serves(&mut up, "switch");
    }
    kill(&up, "switch");
    let given_up = event(&mut up);
    assert_eq!(given_up["event"], "given_up", "{given_up}");
    let said = text(&given_up["text"]);
    assert!(said.contains("fail until the rack is started again"), "{said}");
    assert!(!said.contains("nothing is lost"), "a rack that is started again has lost its memory: {said}");
    assert_eq!(description.overview()["vmas"], json!([]), "the others serve");
    assert_eq!(up.stop().code, Some(1));
}

/// Small file system of a fixed size for a rack's state. `None`, with a note, when the user may not mount
/// one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, bytes: u32) -> Option<Self> {
        fs::create_dir_all(at).expect("the directory is ours");
        let size = format!("size={bytes},mode=0700");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output();
        if mount.is_ok_and(|mount| mount.status.success()) {
            return Some(Self(at.to_owned()));
        }
        eprintln!("SKIPPED: a full disk: this user may not mount a file system");
        None
    }

    /// Fills the file system completely.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("ballast")).expect("a file takes no space");
        let (block, byte) = (vec![1; 64 << 10], [1; 512]);
        while file.write_all(&block).is_ok() {}
        while file.write_all(&byte).is_ok() {}
    }

    /// Frees this number of bytes, or up to a page less.
    fn free(&self, bytes: u64) {
        let file = fs::File::options().write(true).open(self.0.join("ballast")).expect("it is there");
        let len = file.metadata().expect("it is ours").len();
        file.set_len(len.next_multiple_of(4096) - bytes).expect("a file that gets shorter takes no space");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy unmount, because the rack of a failed test may still use the file system.
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

/// The file system of the control plane's log is full. Changes are refused with `storage`, the file and a
/// remedy. Allocated memory stays readable and writable, overviews work, and all roles serve. With free space
/// again, the same process accepts changes. After a restart, exactly the acknowledged changes are there.
#[test]
fn a_full_disk_costs_changes_and_nothing_else() {
    let description = Description::new("full", "udp");
    let state = description.dir().path().join("state");
    let Some(disk) = SmallDisk::mount(&state, 8 << 20) else { return };
    let mut up = description.up();
    let mut client = description.client("worker");
    let vma = client.allocate(4096).unwrap();
    disk.fill();
    let mut made = Vec::new();
    let create =
        |name: &str| description.ask("POST", "/v1/create_domain", &json!({ "name": name }).to_string());
    // The file has some space of its own.
    let refused = loop {
        let name = format!("d{}", made.len());
        match create(&name) {
            (200, _) => made.push(name),
            refused => break refused,
        }
        assert!(made.len() < 20_000, "a disk of 8 MiB takes this much?");
    };
    assert_eq!((refused.0, &refused.1["code"]), (500, &json!("storage")), "{refused:?}");
    let message = text(&refused.1["message"]);
    assert!(message.contains("state/control.redb") && message.contains(" bytes free"), "{message}");
    assert!(message.ends_with("nothing was changed"), "{message}");
    assert!(text(&refused.1["remedy"]).contains("make room on the file system"), "{refused:?}");
    let mut bytes = [0; 7];
    client.write(vma.base, b"written").unwrap();
    client.read(vma.base, &mut bytes).unwrap();
    assert_eq!(&bytes, b"written");
    assert!(client.allocate(4096).is_err());
    let names = |overview: &Value| -> Vec<String> {
        let domains = overview["domains"].as_array().expect("a list").clone();
        domains.iter().map(|domain| text(&domain[1])).filter(|name| name != "worker").collect()
    };
    assert_eq!(names(&description.overview()), made);
    assert!(up.is_whole());

    // A control plane that starts on the full file system serves too.
    died_and_serves(&mut up, "control");
    assert_eq!(names(&description.overview()), made);
    let refused = create("still-full");
    assert_eq!((refused.0, &refused.1["code"]), (500, &json!("storage")), "{refused:?}");

    // The space in the remedy is enough for more than one line.
    let remedy = text(&refused.1["remedy"]);
    let asked = remedy.split(' ').find_map(|word| word.parse().ok()).expect("a number of bytes");
    assert!(asked < 1 << 20, "{remedy}");
    disk.free(asked);
    eventually("changes are taken again", || create("roomy").0 == 200);
    made.push("roomy".into());
    for number in 0..200 {
        let name = format!("more{number}");
        let answer = create(&name);
        assert_eq!(answer.0, 200, "{answer:?}");
        made.push(name);
    }
    let more = client.allocate(4096).unwrap();
    client.write(more.base, b"more").unwrap();
    assert!(up.is_whole(), "the same processes");
    drop(client);
    let ended = up.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("it refuses changes and serves everything else"), "{ended:?}");
    assert!(ended.stderr.contains("again: it takes changes"), "{ended:?}");
    let again = description.up();
    assert_eq!(names(&description.overview()), made);
    assert_eq!(again.stop().code, Some(0));
}
