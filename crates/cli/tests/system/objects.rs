//! Tests of objects with files on a rack of processes, by the command and by programs. A killed and restarted
//! node has the file's bytes again, or reports that written changes are lost (PROTOCOL 20.9, 20.14, 20.17).

use crate::incarnation::Roles;
use crate::process::{Ended, eventually, run};
use crate::rack::Description;
use farmem::api::{FileStage, OpenMode};
use farmem::{Client, Error, OpenNamed, VirtAddr};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// Length of an object: neither whole pages nor whole parts.
const LEN: usize = (3 << 20) + 4097;

fn bytes(seed: u8) -> Vec<u8> {
    (0_u64..).take(LEN).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0] ^ seed | 1).collect()
}

struct Bench {
    roles: Roles,
    rack: String,
}

impl Bench {
    fn new(test: &str, transport: &'static str) -> Self {
        let roles = Roles::of(Description::new(test, transport).with_files());
        let rack = roles.description.file();
        Self { roles, rack }
    }

    /// Returns a path in the file directory of the first node.
    fn path(&self, file: &str) -> PathBuf {
        self.roles.description.dir().path().join("node1").join(file)
    }

    fn put(&self, file: &str, bytes: &[u8]) {
        fs::write(self.path(file), bytes).unwrap();
    }

    fn object(&self, args: &[&str]) -> Ended {
        run(&[&["object", args[0], "--rack", &self.rack], &args[1..]].concat())
    }

    fn open(&self, file: &str) -> Ended {
        self.object(&["open", "--node", "node1", file, "--json"])
    }

    /// Returns the `farmem object status` of one object, and the exit code.
    fn status(&self, name: &str) -> (Value, Option<i32>) {
        let ended = self.object(&["status", name, "--json"]);
        let json: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended:?}"));
        let [row] = &json["objects"].as_array().unwrap()[..] else { panic!("one object: {json}") };
        (row.clone(), ended.code)
    }

    fn stage(&self, name: &str) -> String {
        self.status(name).0["file"]["stage"].as_str().unwrap().to_owned()
    }

    fn client(&self) -> Client {
        self.roles.description.client("graph")
    }
}

/// Returns all bytes of an object, or `None` when they are lost. A restarted node has no connections, so the
/// first READ may time out.
fn read(client: &mut Client, named: &OpenNamed) -> Option<Vec<u8>> {
    let mut all = vec![0; LEN];
    for (at, part) in (0..).step_by(1 << 16).zip(all.chunks_mut(1 << 16)) {
        match client.read(VirtAddr(named.vma().base.0 + at), part) {
            Ok(()) => {}
            Err(Error::MemoryLost { .. } | Error::Unreachable { .. }) if at == 0 => return None,
            Err(error) => panic!("{error} at {at}"),
        }
    }
    Some(all)
}

/// Reads until the bytes are available. Until then, each read must report them as lost.
fn read_when_there(client: &mut Client, named: &OpenNamed) -> Vec<u8> {
    let mut all = None;
    eventually("the node has loaded the object again", || {
        all = read(client, named);
        all.is_some()
    });
    all.unwrap()
}

/// A memory node loads a file at the command's request, and a client reads it. After its restart, the node
/// loads the file again without any command.
#[test]
fn a_node_that_is_killed_loads_its_files_again() {
    for transport in ["udp", "shm"] {
        let mut bench = Bench::new(&format!("objects-again-{transport}"), transport);
        fs::create_dir(bench.path("graphs")).unwrap();
        bench.put("graphs/own", &bytes(1));
        let opened = bench.open("graphs/own").json();
        let row = &opened["objects"][0];
        assert_eq!(
            (&row["name"], &row["node"], &row["domain"]),
            (&"own".into(), &"node1".into(), &"graph".into())
        );
        assert_eq!((&row["bytes"], &row["file"]["stage"]), (&LEN.into(), &"loaded".into()));
        let mut client = bench.client();
        let named = client.open_named_as("own", OpenMode::Read).unwrap();
        assert!(read(&mut client, &named).unwrap() == bytes(1));
        assert!(matches!(client.write(named.vma().base, &[1; 8]), Err(Error::NoPermission { .. })));
        for _ in 0..2 {
            bench.roles.restart_node(1);
            assert!(read_when_there(&mut client, &named) == bytes(1));
        }
        assert_eq!(bench.status("own").1, Some(0));
        // A second open has no effect.
        assert_eq!(bench.open("graphs/own").json()["objects"][0]["file"]["stage"], "loaded");
        // The file changed while the node was down, so that the node does not load it in place of the bytes
        // that programs have read.
        bench.roles.kill_node(1);
        bench.put("graphs/own", &bytes(2));
        bench.roles.start_node(1);
        eventually("the change is found", || bench.stage("own") == "failed");
        let (row, code) = bench.status("own");
        assert_eq!(code, Some(1));
        assert!(row["file"]["error"].as_str().unwrap().contains("changed"), "{row}");
        assert_eq!(read(&mut client, &named), None);
        named.close().unwrap();
        bench.open("graphs/own").json();
        let named = client.open_named_as("own", OpenMode::Read).unwrap();
        assert!(read(&mut client, &named).unwrap() == bytes(2));
    }
}

/// Saved changes return after a restart. Unsaved changes are lost, until the owner accepts the file's bytes.
#[test]
fn saved_bytes_come_back_and_unsaved_bytes_are_lost() {
    let mut bench = Bench::new("objects-saved", "udp");
    bench.put("own", &bytes(1));
    bench.open("own").json();
    let mut client = bench.client();
    let mut named = client.open_named_as("own", OpenMode::Read).unwrap();
    client.write_file(&mut named).unwrap();
    let new = bytes(9);
    for (at, part) in (0..).step_by(1 << 16).zip(new.chunks(1 << 16)) {
        client.write(VirtAddr(named.vma().base.0 + at), part).unwrap();
    }
    assert_eq!(bench.stage("own"), "writing");
    assert_eq!(bench.status("own").0["file"]["unsaved"], true);
    assert!(fs::read(bench.path("own")).unwrap() == bytes(1), "not before it is saved");
    client.save_file(&mut named).unwrap();
    assert_eq!(client.wait_for_file(&named, &mut |_| true).unwrap().stage, FileStage::Loaded);
    assert!(fs::read(bench.path("own")).unwrap() == new);
    bench.roles.restart_node(1);
    assert!(read_when_there(&mut client, &named) == new);

    // Another change of one word is closed without a save.
    client.write_file(&mut named).unwrap();
    client.write(named.vma().base, &[3; 8]).unwrap();
    named.close().unwrap();
    bench.object(&["close", "own"]).refuses(&["not saved", "--discard"]);
    bench.roles.restart_node(1);
    eventually("the loss is known", || bench.stage("own") == "lost");
    assert_eq!(bench.status("own").1, Some(1));
    let named = client.open_named_as("own", OpenMode::Read).unwrap();
    assert_eq!(read(&mut client, &named), None, "neither zeros nor what the file has");
    named.close().unwrap();
    bench.open("own").refuses(&["lost", "accept"]);
    assert_eq!(bench.stage("own"), "lost");
    bench.object(&["open", "--node", "node1", "own", "--accept"]);
    assert_eq!(bench.stage("own"), "loaded");
    let mut named = client.open_named_as("own", OpenMode::Read).unwrap();
    assert!(read(&mut client, &named).unwrap() == new);

    // The command saves while no program has the object open.
    client.write_file(&mut named).unwrap();
    client.write(named.vma().base, &[4; 8]).unwrap();
    named.close().unwrap();
    let saved = bench.object(&["save", "own", "--json"]).json();
    assert_eq!(saved["objects"][0]["file"]["stage"], "loaded");
    assert_eq!(fs::read(bench.path("own")).unwrap()[..8], [4; 8]);
    assert_eq!(bench.object(&["close", "own"]).code, Some(0));
    assert_eq!(bench.object(&["status", "--json"]).json()["objects"].as_array().unwrap().len(), 0);
    assert!(bench.path("own").exists(), "the file stays");
}

/// Paths outside the directory and paths that are no files are rejected with the reason (PROTOCOL 20.1,
/// 20.2). A missing name causes no wait.
#[test]
fn an_invalid_file_is_refused() {
    let bench = Bench::new("objects-refused", "udp");
    let outside = bench.roles.description.dir().file("secret", "secret");
    bench.put("empty", b"");
    fs::create_dir(bench.path("sub")).unwrap();
    symlink(&outside, bench.path("link")).unwrap();
    symlink("..", bench.path("up")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, bench.path("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    let cases = [
        ("none", "is not there"),
        ("../secret", "no name"),
        (&outside, "no name"),
        ("sub", "no regular file"),
        ("link", "no regular file"),
        ("up/secret", "no regular file"),
        ("fifo", "no regular file"),
        ("empty", "is empty"),
    ];
    for (file, why) in cases {
        bench.open(file).refuses(&[why, file]);
    }
    bench.object(&["open", "--node", "node9", "own"]).refuses(&["node9"]);
    assert_eq!(bench.object(&["status", "--json"]).json()["objects"].as_array().unwrap().len(), 0);
    bench.object(&["status", "own"]).refuses(&["own"]);
    // A rack without file directories reports that.
    let without = Roles::of(Description::new("objects-without", "udp"));
    let rack = without.description.file();
    run(&["object", "open", "--rack", &rack, "--node", "node1", "own"])
        .refuses(&["no directory of files", "rack.toml"]);
}

/// A full file system fails the save, and keeps the old file and all changes.
#[test]
fn a_save_that_fails_leaves_the_file() {
    let bench = Bench::new("objects-denied", "udp");
    fs::create_dir(bench.path("sub")).unwrap();
    bench.put("sub/own", &bytes(1));
    bench.open("sub/own").json();
    let mut client = bench.client();
    let mut named = client.open_named_as("own", OpenMode::Read).unwrap();
    client.write_file(&mut named).unwrap();
    client.write(named.vma().base, &[3; 8]).unwrap();
    // The directory is gone, with the file.
    fs::rename(bench.path("sub"), bench.path("other")).unwrap();
    client.save_file(&mut named).unwrap();
    let refused = client.wait_for_file(&named, &mut |_| true).unwrap_err().to_string();
    assert!(refused.contains("not saved") && refused.contains("sub/own"), "{refused}");
    assert_eq!(bench.stage("own"), "unsaved");
    assert!(fs::read(bench.path("other/own")).unwrap() == bytes(1));
    fs::rename(bench.path("other"), bench.path("sub")).unwrap();
    client.save_file(&mut named).unwrap();
    client.wait_for_file(&named, &mut |_| true).unwrap();
    assert_eq!(fs::read(bench.path("sub/own")).unwrap()[..8], [3; 8]);
}

/// An algorithm on a graph that its node has loaded returns the same result as on the file, before and after
/// the node's restart. A truncated or malformed file is rejected with the position of the fault.
#[test]
fn a_graph_runs_where_its_node_has_loaded_it() {
    let mut bench = Bench::new("objects-graph", "udp");
    let path = bench.path("own.fmg").display().to_string();
    let generate =
        ["graph", "generate", "kronecker", &path, "--scale", "11", "--ratio", "34", "--weighted", "--json"];
    run(&generate).json();
    bench.open("own.fmg").json();
    let rack = bench.rack.clone();
    let on_object = |name: &str, more: &[&str]| {
        let arguments = ["graph", "pagerank", "--rack", &rack, "--object", name, "--local", "15%", "--json"];
        run(&[&arguments[..], more].concat())
    };
    let on_file = run(&["graph", "pagerank", &path, "--json"]).json();
    for more in [&["--check"][..], &["--trust"], &[]] {
        let said = on_object("own.fmg", more).json();
        let told = (&said["file"], &said["wrong_answers"], &said["sum"], &said["graph_nodes"]);
        assert_eq!(told, (&"own.fmg".into(), &0.into(), &on_file["sum"], &1.into()), "{said}");
        assert_eq!(said["answer"], on_file["answer"]);
    }
    bench.roles.restart_node(1);
    eventually("it is loaded again", || bench.stage("own.fmg") == "loaded");
    assert_eq!(on_object("own.fmg", &[]).json()["sum"], on_file["sum"]);
    assert_eq!(bench.status("own.fmg").0["hosts"], 0, "closed, and still there");
    on_object("none", &[]).refuses(&["none"]);
    let without = run(&["graph", "pagerank", "--object", "own.fmg"]);
    assert!(without.code == Some(2) && without.stderr.contains("--rack"), "{without:?}");

    let whole = fs::read(bench.path("own.fmg")).unwrap();
    bench.put("short.fmg", &whole[..whole.len() - 5]);
    let mut broken = whole.clone();
    // An edge to a missing vertex.
    let targets = 40 + 2049 * 8;
    broken[targets + 400..targets + 404].copy_from_slice(&u32::MAX.to_le_bytes());
    bench.put("broken.fmg", &broken);
    bench.put("text.fmg", b"0 1\n1 2\n2 3\n3 4\n4 5\n5 6\n6 7\n7 8\n8 9\n9 10\n10 11\n");
    let byte = format!("byte {}", targets + 400);
    for (name, words) in [
        ("short.fmg", ["byte 16", "do not make the"]),
        ("broken.fmg", [&byte, "4294967295"]),
        ("text.fmg", ["byte 0", "FARMGRAF"]),
    ] {
        bench.open(name).json();
        on_object(name, &[]).refuses(&words);
    }
}
