//! Tests of rejected commands: the exit code 2, a message that names the fault, and a remedy.

use crate::process::{Dir, Running, farmem, give_away, run, run_command, without_rights};
use crate::rack::Description;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

/// The rules have a table in `crates/farmem/tests/config.rs`. This test covers their output.
#[test]
fn a_wrong_description_is_named_with_its_line() {
    let description = Description::new("wrong", "udp");
    let right = description.text();
    let cases = [
        ("transport = \"udp\"", "transport = \"tcp\"", "line 2: ", "expected `udp` or `shm`"),
        ("[switch]", "[swich]", "line 9: ", "unknown field `swich`"),
        ("memory = \"16 MiB\"", "memory = \"16 bytes\"", "line 17: ", "expected a multiple of 4096"),
        ("name = \"node2\"", "name = \"node1\"", "line 19: ", "a name of its own"),
        ("count = 10", "count = 0", "line 13: ", "expected 1 to 4096"),
    ];
    for (good, bad, line, expected) in cases {
        let text = right.replacen(good, bad, 1);
        assert_ne!(text, right, "{good}");
        let file = description.dir().file("rack.toml", &text);
        for args in [&["up", &file][..], &["demo", "--rack", &file], &["role", "switch", "--rack", &file]] {
            run(args).refuses(&[&format!("farmem: {file}: {line}"), expected, "`farmem up --example`"]);
        }
    }
    assert_eq!(description.dir().names(), ["rack.toml"], "nothing was started");
}

#[test]
fn a_description_that_cannot_be_read_is_named() {
    let dir = Dir::new("unreadable");
    let missing = dir.path().join("rack.toml").display().to_string();
    for args in
        [&["up", &missing][..], &["demo", "--rack", &missing], &["role", "control", "--rack", &missing]]
    {
        run(args).refuses(&[&missing, "No such file", "`farmem up --example`"]);
    }
    run(&["up", "/"]).refuses(&["farmem: /: cannot be read", "`farmem up --example`"]);
    let file = dir.file("rack.toml", "");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o0)).unwrap();
    if let Some(up) = without_rights(farmem(&["up", &file]), "a rack.toml without permission to read it") {
        run_command(up).refuses(&[&file, "Permission denied"]);
    }
}

/// A described rack that does not run.
#[test]
fn a_rack_that_does_not_run_is_named() {
    for transport in ["udp", "shm"] {
        let description = Description::new("off", transport);
        let file = description.file();
        run(&["demo", "--limit", "10", "--rack", &file]).refuses(&["farmem: ", "farmem up"]);
        run(&["role", "switch", "--rack", &file]).refuses(&[
            "state/token",
            "`farmem up` starts a rack of one machine, `systemctl start farmem@control`",
        ]);
        assert_eq!(description.dir().names(), ["rack.toml"]);
        if transport == "udp" {
            fs::create_dir(description.dir().path().join("state")).unwrap();
            description.dir().file("state/token", "it ran once");
            let silent = "no control plane answers at unix:".to_owned();
            run(&["demo", "--limit", "10", "--rack", &file]).refuses(&[
                &silent,
                "`farmem up` starts a rack of one machine, `systemctl start farmem@control`",
            ]);
        }
        drop(fs::remove_dir_all(description.rings()));
    }
}

#[test]
fn an_unknown_node_is_named_with_those_there_are() {
    let description = Description::new("unknown", "udp");
    let file = description.file();
    run(&["role", "node", "--node", "node9", "--rack", &file]).refuses(&[
        &file,
        "no memory node \"node9\"",
        "its nodes are: node1, node2",
    ]);
    let without = run(&["role", "node", "--rack", &file]);
    assert_eq!(without.code, Some(2));
    assert!(without.stderr.contains("--node"), "{without:?}");
}

/// A wrong token is reported as such, not as another rack.
#[test]
fn a_wrong_token_is_refused() {
    let description = Description::new("token", "udp");
    let up = description.up();
    let token = description.token();
    description.dir().file("state/token", "guessed");
    run(&["demo", "--limit", "10", "--rack", &description.file()])
        .refuses(&["token is missing or wrong", "Bearer"]);
    description.dir().file("state/token", &token);
    assert_eq!(up.stop().code, Some(0));
}

/// Missing resources of the machine: an address, a CPU, a writable directory, enough memory.
#[test]
fn a_missing_feature_of_the_machine_is_named() {
    let description = Description::new("lacks", "udp");
    let cases = [
        (
            description.address(2).to_string(),
            "192.0.2.77",
            &["192.0.2.77", "not an address of this machine"][..],
        ),
        (
            "state = \"state\"".into(),
            "state = \"rack.toml/state\"",
            &["rack.toml/state", "choose another in rack.toml"],
        ),
        ("16 MiB".into(), "100000 TiB", &["node1", "memory"]),
    ];
    for (good, bad, expected) in cases {
        let text = description.text().replace(&good, bad);
        assert_ne!(text, description.text());
        run(&["up", &description.dir().file("rack.toml", &text)]).refuses(expected);
    }
    let far_cpu = Description::new("cpu", "udp").with("cpu = 1000");
    run(&["up", &far_cpu.file()]).refuses(&["rack.toml", "cpu = 1000", "placement = \"free\""]);
}

/// Missing rights of an unprivileged user: a write into the state directory, and a port below 1024.
#[test]
fn a_missing_permission_is_named() {
    let description = Description::new("readonly", "udp");
    let state = description.dir().path().join("state");
    fs::create_dir(&state).unwrap();
    give_away(&state);
    fs::set_permissions(&state, fs::Permissions::from_mode(0o500)).unwrap();
    if let Some(up) = without_rights(farmem(&["up", &description.file()]), "a state that may not be written")
    {
        run_command(up).refuses(&["state", "ermission", "choose another state directory"]);
    }
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();

    let free_from = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    if free_from.trim().parse::<u16>().is_ok_and(|port| port <= 80) {
        return eprintln!("SKIPPED: a port that may not be used: here everybody may use all");
    }
    let description = Description::new("port-80", "udp");
    give_away(description.dir().path());
    let text = description.text().replace(":7471\"", ":80\"");
    let file = description.dir().file("rack.toml", &text);
    let listen = format!("listen on {}:80", description.address(1));
    if let Some(up) = without_rights(farmem(&["up", &file]), "a port that may not be used") {
        run_command(up).refuses(&[&listen, "choose a port of 1024 or above"]);
    }
}

/// An unprivileged user has smaller limits than root (SO_RCVBUFFORCE is refused), and can still run a rack.
#[test]
fn a_user_without_rights_has_a_rack() {
    let description = Description::new("user", "udp");
    give_away(description.dir().path());
    let file = description.file();
    let Some(up) = without_rights(farmem(&["up", &file, "--json"]), "a rack of a user without rights") else {
        return;
    };
    let mut up = Running::start(up);
    assert!(!up.line().is_empty(), "{:?}", up.ended());
    let mut client = description.client("user");
    let vma = client.allocate(4096).unwrap();
    client.write(vma.base, b"a user's").unwrap();
    drop(client);
    crate::process::signal(up.pid(), "INT");
    assert_eq!(up.ended().code, Some(0));
}

/// A closed output pipe causes no panic and no other exit code.
#[test]
fn a_closed_pipe_is_fine() {
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let cases: [(&[&str], i32); 8] = [
        (&["--help"], 0),
        (&["up", "--help"], 0),
        (&["up", "--example"], 0),
        (&["doctor"], 0),
        (&["doctor", "--json"], 0),
        (&["sim", "rc", "--operations", "100", "--seeds", "1"], 0),
        (&["up", "/no/such/rack.toml"], 2),
        (&["fly"], 2),
    ];
    for (args, code) in cases {
        let status = farmem(args).stdout(closed()).stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{args:?}, stdout closed");
        let status = farmem(args).stdout(closed()).stderr(closed()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{args:?}, both closed");
    }
    let demo = farmem(&["demo", "--limit", "20"]).stdout(closed()).stderr(closed()).status().unwrap();
    assert_eq!(demo.code(), Some(0));
}

/// A rack whose output reader is gone continues until it is stopped.
#[test]
fn a_rack_nobody_listens_to_serves_on() {
    let description = Description::new("deaf", "udp");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = farmem(&["up", &description.file()]);
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut rack = command.spawn().unwrap();
    crate::process::eventually("the rack serves", || {
        farmem(&["demo", "--limit", "5", "--rack", &description.file()]).output().unwrap().status.success()
    });
    crate::process::signal(rack.id(), "INT");
    assert_eq!(rack.wait().unwrap().code(), Some(0));
}

/// Kept out of the message: `Running` reads pipes to their end, so that a role with an open pipe would block
/// the test.
#[test]
fn roles_keep_no_pipe_of_their_supervisor_open() {
    let description = Description::new("pipes", "udp");
    let mut rack = Running::start(farmem(&["up", &description.file(), "--json"]));
    assert!(!rack.line().is_empty());
    crate::process::signal(rack.pid(), "KILL");
    let ended = rack.ended();
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", ""));
}
