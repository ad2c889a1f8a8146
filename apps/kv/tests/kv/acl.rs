//! Tests of users: their rights and their authentication.

use crate::common::{Client, Process, RedisServer, Reply, Service};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;

fn small(more: &[&str]) -> Service {
    Service::start(&[&["--far", "64MiB", "--local", "64MiB", "--memcached-port", "0"], more].concat())
}

/// Rules, requests of a user with these rules, and the replies: those of redis-server if it is installed.
#[test]
fn users_may_do_what_their_rules_say() {
    let service = small(&[]);
    let redis = RedisServer::start();
    let mut ours = service.client();
    let mut theirs = redis.as_ref().map(|redis| Client::connect(redis.address));
    let mut both = |line: &str| {
        let said = ours.says(line);
        if let Some(theirs) = &mut theirs {
            assert_eq!(said, theirs.says(line), "{line}, and redis-server");
        }
        said
    };
    assert_eq!(
        both("ACL SETUSER bob on >pw ~k* %W~w* +@read -@dangerous +config|get +multi +exec +append"),
        Reply::ok()
    );
    for line in [
        "ACL WHOAMI",
        "ACL USERS",
        "ACL SETUSER bob +nosuch",
        "ACL SETUSER bob xx",
        "ACL SETUSER bob #12",
        "ACL SETUSER bob -config|sett",
        "ACL SETUSER bob +config|sett",
        "ACL SETUSER bob -nosuch",
        "ACL SETUSER bob -@nosuch",
        "ACL SETUSER bob +select|",
        "ACL SETUSER bob +config|get|x",
        "ACL SETUSER bob -select|0",
        "ACL DRYRUN bob config get a",
        "ACL DRYRUN bob exists w",
        "ACL DRYRUN bob strlen w",
        "ACL DRYRUN bob exists x",
        "ACL DRYRUN bob get a",
        "ACL DRYRUN bob get k",
        "ACL DRYRUN bob set k 1",
        "ACL DRYRUN bob config set a b",
        "ACL DRYRUN nobody get k",
        "ACL GETUSER nobody",
        "ACL DELUSER default",
        "ACL DELUSER nobody",
        "ACL CAT nosuch",
        "AUTH bob wrong",
        "AUTH nobody pw",
        "AUTH bob pw",
        "SET k 1",
        "GET a",
        "GET k",
        "MGET k a",
        "APPEND k 1",
        "APPEND w 1",
        "CONFIG SET a b",
        "KEYS *",
        "ACL WHOAMI",
        "MULTI",
        "DEL k",
        "EXEC",
        "AUTH default x",
        "RESET",
        "ACL WHOAMI",
    ] {
        both(line);
    }
    assert!(ours.says("ACL SETUSER").text().contains("wrong number of arguments"));
    let Reply::Array(log) = ours.says("ACL LOG") else { panic!("entries") };
    assert_eq!(log.len(), 8, "what is the same is one entry");
    let texts = |reply: &Reply| match reply {
        Reply::Array(fields) => fields.iter().map(Reply::text).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        texts(&log[0])[2..10],
        ["reason", "command", "context", "multi", "object", "del", "username", "bob"]
    );
    assert!(log.iter().any(|entry| texts(entry)[2..4] == ["reason", "auth"]), "{log:?}");
    assert_eq!(ours.says("ACL LOG RESET"), Reply::ok());
    assert_eq!(ours.says("ACL LOG"), Reply::Array(vec![]));
    assert_eq!(ours.says("ACL GENPASS").text().len(), 64);
    assert_eq!(ours.says("ACL GENPASS 5").text().len(), 2);
    assert!(ours.says("ACL SETUSER x >secret (~a)").text().contains("selectors are not supported"));
    service.end();
}

/// A user's rules apply from the next request on; a deleted user is disconnected; the same rules apply at memcached's
/// port.
#[test]
fn rules_are_in_force_at_once() {
    let service = small(&[]);
    let (mut admin, mut user) = (service.client(), service.client());
    assert_eq!(admin.says("ACL SETUSER u on >p ~* +@all"), Reply::ok());
    assert_eq!(user.says("AUTH u p"), Reply::ok());
    assert_eq!(user.says("SET k 1"), Reply::ok());
    assert_eq!(user.says("MULTI"), Reply::ok());
    assert_eq!(user.says("SET k 2").text(), "QUEUED");
    assert_eq!(admin.says("ACL SETUSER u -set"), Reply::ok());
    let Reply::Array(said) = user.says("EXEC") else { panic!("a reply for each") };
    assert!(said[0].text().starts_with("NOPERM"), "{said:?}");
    assert_eq!(user.says("GET k"), Reply::bulk("1"));
    assert!(admin.says("CLIENT LIST").text().contains("user=u"));
    assert_eq!(admin.says("ACL DELUSER u"), Reply::Integer(1));
    user.send(&[b"GET", b"k"]);
    assert_eq!(user.reply(), None, "it is cut off");
    assert_eq!(admin.says("CONFIG SET requirepass new"), Reply::ok());
    assert_eq!(service.client().says("PING").text(), "NOAUTH Authentication required.");
    assert_eq!(admin.says("PING").text(), "PONG", "who is in stays in");
    assert_eq!(
        admin.says("CONFIG GET requirepass"),
        Reply::Array(vec![Reply::bulk("requirepass"), Reply::bulk("(set)")])
    );
    assert_eq!(admin.says("ACL SETUSER mc on >p ~m* +get"), Reply::ok());
    let mut memcached = TcpStream::connect(service.memcached.unwrap()).unwrap();
    memcached.write_all(b"set a 0 0 4\r\nmc p\r\nget m\r\nget k\r\nset m 0 0 1\r\nx\r\nquit\r\n").unwrap();
    let mut said = String::new();
    memcached.read_to_string(&mut said).unwrap();
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said[..2], ["STORED", "END"]);
    assert!(said[2].starts_with("SERVER_ERROR NOPERM this user has no permissions to access"), "{said:?}");
    assert!(
        said[3].starts_with("SERVER_ERROR NOPERM this user has no permissions to run the 'set'"),
        "{said:?}"
    );
    service.end();
}

/// A file of users is read at the start and by `ACL LOAD`, completely or not at all. `ACL SAVE` writes a file that
/// only this user can read.
#[test]
fn users_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("users");
    let path = file.to_str().unwrap();
    std::fs::write(&file, "# mine\nuser default off\n\nuser a on >pa ~* &* +@all\n").unwrap();
    let service = small(&["--aclfile", path]);
    let mut client = service.client();
    assert_eq!(client.says("PING").text(), "NOAUTH Authentication required.");
    assert_eq!(client.says("AUTH a pa"), Reply::ok());
    assert_eq!(client.says("ACL SETUSER b on >pb ~b* +@read"), Reply::ok());
    assert_eq!(client.says("ACL SAVE"), Reply::ok());
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(written.contains("user b on #") && !written.contains("pb"), "{written}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::write(&file, format!("{written}user c on +nosuch\nnonsense\n")).unwrap();
    let said = client.says("ACL LOAD").text();
    assert!(said.contains(":4: '+nosuch'") && said.contains(":5: should begin"), "{said}");
    assert_eq!(client.says("ACL USERS"), Reply::Array(["a", "b", "default"].map(Reply::bulk).into()));
    std::fs::write(&file, "user a on >pa ~* &* +@all\n").unwrap();
    assert_eq!(client.says("ACL LOAD"), Reply::ok());
    assert_eq!(client.says("ACL USERS"), Reply::Array(["a", "default"].map(Reply::bulk).into()));
    service.end();
}

/// A password in a file, or in the environment, is not visible in the list of processes.
#[test]
fn a_password_is_not_among_the_words_of_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "from a file\nnot this\n").unwrap();
    let process = Process::start(&["--far", "64MiB", "--requirepass-file", file.to_str().unwrap()]);
    let mut client = Client::connect(process.address);
    assert!(client.asks(&[b"AUTH", b"not this"]).text().starts_with("WRONGPASS"));
    assert_eq!(client.asks(&[b"AUTH", b"from a file"]), Reply::ok());
    let words = std::fs::read(format!("/proc/{}/cmdline", process.child.id())).unwrap();
    assert!(!String::from_utf8_lossy(&words).contains("from a file"));
    process.kill();
    let process = Process::start_with(&["--far", "64MiB"], &[("FARMEM_KV_PASSWORD", "of the air")]);
    let mut client = Client::connect(process.address);
    assert_eq!(client.says("GET a").text(), "NOAUTH Authentication required.");
    assert_eq!(client.asks(&[b"AUTH", b"of the air"]), Reply::ok());
    process.kill();
}
