//! Tests of the API's access control from outside: a join file, an impostor on the port, unencrypted HTTP,
//! and users without rights to each other.

use crate::process::{Ended, Running, eventually, farmem, run, run_command, signal};
use crate::rack::{Description, HTTP_PORT};
use crate::run::{PYTHON, may_run};
use farmem::{Rack, ShareOptions, SharedSpace};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Returns a description of the same rack for a machine that joins with a join file, and the path of this
/// file. No other user can read the file.
fn elsewhere(description: &Description, join: &str) -> (String, String) {
    let path = description.dir().file("join", join);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let text = description.text().replace("state = \"state\"", "state = \"elsewhere\"\njoin = \"join\"");
    (description.dir().file("elsewhere.toml", &text), path)
}

fn finding(file: &str, name: &str) -> Option<Value> {
    let report = run(&["doctor", "--json", "--rack", file]).report();
    report["findings"].as_array().unwrap().iter().find(|finding| finding["name"] == name).cloned()
}

/// A machine joins over TLS with the output of `farmem join`. When an impostor takes the port of a stopped
/// control plane, the machine reports it, and sends the impostor nothing. The same holds for a join file of
/// another rack. A join file that is damaged, or readable for others, is rejected before any connection.
#[test]
fn a_machine_joins_by_its_file() {
    let description = Description::new("join", "udp");
    run(&["join", "--rack", &description.file()]).refuses(&["state/token", "farmem up"]);
    let up = description.up();
    let printed = run(&["join", "--rack", &description.file()]);
    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""));
    let token = description.token();
    assert!(printed.stdout.contains(&token) && printed.stdout.contains("BEGIN CERTIFICATE"));
    let (file, join) = elsewhere(&description, &printed.stdout);
    assert_eq!(run(&["demo", "--limit", "50", "--rack", &file, "--json"]).json()["wrong_answers"], 0);
    let api = finding(&file, "API of the control plane").unwrap();
    let here = format!("https://{}:{HTTP_PORT}", description.address(1));
    assert!(api["state"] == "ok" && api["detail"].as_str().unwrap().contains(&here), "{api}");

    for (text, mode, why) in [
        (printed.stdout.replace("MII", "MIJ"), 0o600, "which this machine joins the rack with"),
        (printed.stdout.replace("sha256 = \"", "sha256 = \"0"), 0o600, "damaged on its way"),
        (printed.stdout.replace(&format!(":{HTTP_PORT}"), ":7472"), 0o600, "rack.toml has listen"),
        (printed.stdout.clone(), 0o644, "chmod 600"),
        (String::new(), 0o600, "missing field"),
    ] {
        fs::write(&join, text).unwrap();
        fs::set_permissions(&join, fs::Permissions::from_mode(mode)).unwrap();
        run(&["demo", "--limit", "50", "--rack", &file]).refuses(&[why, "farmem join --rack"]);
        let api = finding(&file, "API of the control plane").unwrap();
        assert_eq!(api["state"], "missing", "{api}");
        assert!(api["detail"].as_str().unwrap().contains(why), "{api}");
    }
    fs::remove_file(&join).unwrap();
    run(&["demo", "--limit", "50", "--rack", &file]).refuses(&["/join", "farmem join --rack"]);
    assert_eq!(up.stop().code, Some(0));

    elsewhere(&description, &printed.stdout);
    let thief = TcpListener::bind((description.address(1), HTTP_PORT)).unwrap();
    let watching = thread::spawn(move || {
        let (mut stream, _) = thief.accept().unwrap();
        let mut heard = vec![0; 1 << 16];
        let len = stream.read(&mut heard).unwrap();
        heard.truncate(len);
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"));
        heard
    });
    run(&["demo", "--limit", "50", "--rack", &file]).refuses(&[
        "is not this rack's control plane",
        "not shown the token",
        "find the process that has that port",
    ]);
    let heard = watching.join().unwrap();
    assert!(
        !heard.is_empty() && !heard.windows(8).any(|part| token.as_bytes().windows(8).any(|of| of == part))
    );
}

/// A rack with the operator's own certificate authority: three PEM files, named under `[control]`. Another
/// machine joins over TLS with the output of `farmem join`, which contains this authority. farmem creates no
/// authority. A key that does not match the certificate is rejected with both file names before the start.
#[test]
fn the_operator_s_own_authority_serves() {
    let description = Description::new("own-ca", "udp");
    let dir = description.dir();
    let authority = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "an operator");
    let ca = params.self_signed(&authority).unwrap();
    let issuer = rcgen::Issuer::new(params, authority);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new([description.address(1).to_string()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    dir.file("own-ca.pem", &ca.pem());
    dir.file("own.pem", &certificate.pem());
    let keep = |key: &rcgen::KeyPair| {
        let path = dir.file("own.key", &key.serialize_pem());
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    };
    let lines = "state = \"state\"\nca = \"own-ca.pem\"\ncertificate = \"own.pem\"\nkey = \"own.key\"";
    let file = dir.file("rack.toml", &description.text().replace("state = \"state\"", lines));
    keep(&rcgen::KeyPair::generate().unwrap());
    run(&["up", &file]).refuses(&["own.pem", "own.key"]);
    keep(&key);
    let up = description.up();
    let printed = run(&["join", "--rack", &file]);
    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""));
    assert!(printed.stdout.contains(ca.pem().trim()), "{}", printed.stdout);
    assert!(!dir.path().join("state/ca.pem").exists(), "farmem's own");
    let (file, _) = elsewhere(&description, &printed.stdout);
    assert_eq!(run(&["demo", "--limit", "50", "--rack", &file, "--json"]).json()["wrong_answers"], 0);
    let api = finding(&file, "API of the control plane").unwrap();
    assert!(api["state"] == "ok" && api["detail"].as_str().unwrap().contains("https://"), "{api}");
    assert_eq!(up.stop().code, Some(0));
}

/// Returns the connections of other machines to the API's port, by source port.
fn connected(description: &Description) -> Vec<String> {
    const ESTABLISHED: &str = "01";
    let [a, b, c, d] = description.address(1).octets();
    let local = format!("{d:02X}{c:02X}{b:02X}{a:02X}:{HTTP_PORT:04X}");
    let table = fs::read_to_string("/proc/net/tcp").expect("there is a /proc");
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours = rows.filter(|row| row.get(1) == Some(&local.as_str()) && row.get(3) == Some(&ESTABLISHED));
    ours.map(|row| row[2].to_owned()).collect()
}

/// An idle host that shares memory from another machine only renews its lease, three times per lease. Each
/// renewal has its own connection, because the control plane accepts only a limited number of them.
#[test]
fn a_host_that_shares_and_idles_holds_no_connection() {
    if !may_run("a host that shares and idles") {
        return;
    }
    let description = Description::new("idles", "udp").with_lease("lease_ms = 3000");
    let up = description.up();
    let (file, _) = elsewhere(&description, &run(&["join", "--rack", &description.file()]).stdout);
    let seen_by_hand = TcpStream::connect((description.address(1), HTTP_PORT)).unwrap();
    eventually("a connection is seen", || connected(&description).len() == 1);
    drop(seen_by_hand);
    let rack = Rack::open(&file).unwrap();
    let space = SharedSpace::join(&rack, "idles", ShareOptions::new(1 << 20)).unwrap();
    let (mut ports, mut was_none) = (BTreeSet::new(), false);
    eventually("renewals come by connections of their own, and there is none in between", || {
        let now = connected(&description);
        was_none |= now.is_empty() && ports.len() > 1;
        ports.extend(now);
        was_none && ports.len() > 3
    });
    assert_eq!(space.failure(), None);
    drop(space);
    assert_eq!(up.stop().code, Some(0));
}

/// The API is unencrypted only by configuration on loopback, and the start and the doctor report it. On
/// another address, the configuration is rejected.
#[test]
fn the_api_in_clear_is_said() {
    let description = Description::new("clear", "udp");
    let plain = format!("http = \"{}:7480\"", description.address(1));
    let text = description.text().replace("state = \"state\"", &format!("{plain}\nstate = \"state\""));
    let file = description.dir().file("rack.toml", &text);
    assert_eq!(finding(&description.dir().file("other.toml", &description.text()), "API in clear"), None);
    let mut up = Running::start(farmem(&["up", &file, "--json"]));
    let listening: Value = serde_json::from_str(&up.line()).unwrap();
    let shown = format!("http://{}:7480/v1", description.address(1));
    assert_eq!(listening["api"][2], shown.as_str());
    let finding = finding(&file, "API in clear").expect("it is said");
    assert!(
        finding["state"] == "degraded" && finding["remedy"].as_str().unwrap().contains("take `http` out")
    );
    signal(up.pid(), "INT");
    let ended = up.ended();
    assert_eq!(ended.code, Some(0));
    assert!(ended.stderr.contains("WARNING") && ended.stderr.contains("in clear"), "{}", ended.stderr);
    let abroad = text.replace(&plain, "http = \"10.71.0.1:7480\"");
    let file = description.dir().file("abroad.toml", &abroad);
    run(&["up", &file]).refuses(&[
        "http is \"10.71.0.1:7480\"",
        "expected a loopback address",
        "farmem join",
    ]);
}

/// Two users have the rack's token and a key file each. The second user can neither use nor remove the first
/// one's host and domain. The operator can. A program of the first user opens the domain again by name.
#[test]
fn another_user_of_the_rack_is_a_stranger() {
    let description = Description::new("strangers", "udp");
    let up = description.up();
    let mut client = description.client("mine");
    let vma = client.allocate(4096).unwrap();
    client.write(vma.base, b"secret").unwrap();
    let mut second = description.client("mine");
    let mut bytes = [0; 6];
    second.read(vma.base, &mut bytes).unwrap();
    assert_eq!(&bytes, b"secret", "the same user's");

    let overview = description.overview();
    let host = overview["hosts"][0]["host"].as_u64().unwrap();
    let (domain, id) = (overview["domains"][0][0].clone(), overview["vmas"][0]["id"].clone());
    let requests = [
        ("free", json!({"domain": domain, "base": vma.base.0, "id": id})),
        ("grant", json!({"domain": domain, "base": vma.base.0, "len": 4096, "to": domain, "perm": "read"})),
        ("leave", json!({"port": 0x10000 + host})),
        ("leave", json!({"port": 0x1001})),
        ("open_session", json!({"host": host, "domain": domain})),
        ("connect", json!({"host": host, "node": 1, "domain": domain})),
        ("migrate", json!({"base": vma.base.0, "len": 4096, "node": 2})),
        ("join_node", json!({"name": "node1", "gid": description.address(99).to_string(), "capacity": 4096})),
        ("join_switch", json!({"gid": description.address(99).to_string()})),
        ("create_domain", json!({"name": "mine"})),
        ("list_objects", json!({})),
    ];
    for (name, body) in &requests {
        for keys in ["", "Farmem-Keys: 0123456789abcdef0123456789abcdef\r\n"] {
            let (token, body) = (description.token(), body.to_string());
            let head = format!("Host: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n{keys}");
            let len = body.len();
            let answer = description.http(
                format!("POST /v1/{name} HTTP/1.1\r\n{head}Content-Length: {len}\r\n\r\n{body}").as_bytes(),
            );
            assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("not_owner"), "{name}: {answer}");
        }
    }
    let token = description.token();
    let bad = format!(
        "POST /v1/overview HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nFarmem-Keys: abc\r\n\r\n"
    );
    let answer = description.http(bad.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("text that is no key"), "{answer}");
    second.read(vma.base, &mut bytes).unwrap();
    assert_eq!(&bytes, b"secret", "nothing has changed");

    // A program of the other user. The demo uses a domain by its own name, which the first user created.
    let file = description.file();
    let demo = |keys: &str| {
        let mut demo = farmem(&["demo", "--limit", "50", "--rack", &file]);
        demo.env("FARMEM_KEYS", description.dir().path().join(keys));
        run_command(demo)
    };
    assert_eq!(demo("first.keys").code, Some(0));
    assert_eq!(demo("first.keys").code, Some(0), "the same user again");
    demo("second.keys").refuses(&["create_domain requires the key of domain", "key file"]);
    for keys in ["state/keys", "first.keys"] {
        let mode = fs::metadata(description.dir().path().join(keys)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{keys}");
    }

    let (status, _) = description.ask("POST", "/v1/free", &requests[0].1.to_string());
    assert_eq!(status, 200, "the operator");
    drop((client, second));
    assert_eq!(up.stop().code, Some(0));
}

/// Program that holds connections over TLS, each of which has shown the token. An evicted one is opened again
/// after a second. The program ends with its input, and prints the number of connections that it opened.
const CROWD: &str = "\
import socket, ssl, sys, threading
host, port, token, ca, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
context = ssl.create_default_context(cafile=ca)
request = f'GET /v1/overview HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer {token}\\r\\n\\r\\n'.encode()
ended, shown, opened = threading.Event(), threading.Semaphore(0), []
def hold():
    is_first = True
    while not ended.is_set():
        try:
            with context.wrap_socket(socket.create_connection((host, port), 60), server_hostname=host) as stream:
                stream.sendall(request)
                if stream.recv(12) == b'HTTP/1.1 200':
                    opened.append(1)
                    if is_first:
                        is_first = False
                        shown.release()
                    while stream.recv(65536):
                        pass
        except OSError:
            pass
        ended.wait(1)
for _ in range(count):
    threading.Thread(target=hold, daemon=True).start()
for _ in range(count):
    shown.acquire()
print('ready', flush=True)
sys.stdin.readline()
ended.set()
print(len(opened))
";

/// A holder of the rack's token has 300 connections over TLS, and opens each again when it is evicted. All of 20
/// runs that start meanwhile are let in: ten from another machine, over TLS and from the same address, and ten
/// over the Unix socket.
#[test]
fn a_crowd_keeps_no_run_out() {
    if !may_run("crowd") {
        return;
    }
    const CROWD_LEN: usize = 300;
    const RUNS: usize = 20;
    let description = Description::new("crowd", "udp");
    let up = description.up();
    let printed = run(&["join", "--rack", &description.file()]).stdout;
    let certificate = printed.split("-----").nth(2).expect("a certificate is in the file");
    let certificate = format!("-----BEGIN CERTIFICATE-----{certificate}-----END CERTIFICATE-----\n");
    let ca = description.dir().file("crowd-ca.pem", &certificate);
    let (remote, _) = elsewhere(&description, &printed);
    let mut crowd = std::process::Command::new(PYTHON);
    crowd.args(["-c", CROWD, &description.address(1).to_string(), &HTTP_PORT.to_string()]);
    crowd.args([&description.token(), &ca, &CROWD_LEN.to_string()]);
    crowd.stdin(std::process::Stdio::piped());
    let mut crowd = Running::start(crowd);
    let said = crowd.line();
    assert!(said == "ready\n", "{said:?}: {:?}", crowd.ended());
    let next = AtomicUsize::new(0);
    let start = || {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let file = if number.is_multiple_of(2) { remote.clone() } else { description.file() };
        (number < RUNS).then(|| run(&["run", "--rack", &file, "--local", "1MiB", "--", "/bin/true"]))
    };
    let ends: Vec<Ended> = thread::scope(|scope| {
        let starts_runs = || std::iter::from_fn(start).collect::<Vec<_>>();
        let workers: Vec<_> = (0..4).map(|_| scope.spawn(starts_runs)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let kept_out: Vec<&Ended> = ends.iter().filter(|ended| ended.code != Some(0)).collect();
    assert!(ends.len() == RUNS && kept_out.is_empty(), "{} of {RUNS}: {kept_out:?}", kept_out.len());
    crowd.say("");
    let opened: usize = crowd.ended().stdout.trim().parse().expect("a number");
    assert!(opened >= CROWD_LEN, "{opened}");
    assert_eq!(up.stop().code, Some(0));
}

/// A killed role joins again with the key that it stored. A role without its key is refused with a reason,
/// and joins with the operator's token.
#[test]
fn a_role_joins_again_with_its_key() {
    let description = Description::new("rejoin", "udp");
    let role = |args: &[&str]| {
        let mut role = Running::start(farmem(&[&["role"], args, &["--rack", &description.file()]].concat()));
        assert_eq!(role.line(), "ready\n", "{args:?}: {}", role.said());
        role
    };
    let _control = role(&["control"]);
    let _switch = role(&["switch"]);
    let operator = description.dir().path().join("state/operator");
    let token = fs::read_to_string(&operator).unwrap();
    fs::remove_file(&operator).unwrap();
    role(&["node", "--node", "node1"]).kill();
    role(&["node", "--node", "node1"]).kill();
    let keys = description.dir().path().join("state/keys");
    fs::remove_file(&keys).unwrap();
    run(&["role", "node", "--node", "node1", "--rack", &description.file()])
        .refuses(&["join_node requires the key of node node1", "the file `operator`"]);
    fs::write(&operator, token).unwrap();
    role(&["node", "--node", "node1"]).kill();
    eventually("the key is kept again", || keys.exists());
}
