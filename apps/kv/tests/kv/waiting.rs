//! Tests of clients that wait for a key: their order, the values that they get, and other ends of a wait.

use crate::common::{Client, Process, Reply, Service, request};
use std::io::Write as _;

fn small() -> Service {
    Service::start(&["--far", "64MiB", "--local", "64MiB"])
}

fn bulks(texts: &[&str]) -> Reply {
    Reply::Array(texts.iter().map(|text| Reply::bulk(text)).collect())
}

/// Waits until this many clients wait.
pub(crate) fn until_waiting(client: &mut Client, count: usize) {
    for _ in 0..2_000 {
        if client.says("INFO clients").text().contains(&format!("blocked_clients:{count}\r")) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("{count} clients do not wait");
}

/// The first client is served first, between two commands of one pipeline. Later ones get the rest, and an element
/// that one client moves serves another.
#[test]
fn waiting_clients_are_served_in_order() {
    let service = small();
    let mut pusher = service.client();
    let mut waiting: Vec<Client> = (0..3).map(|_| service.client()).collect();
    for (number, client) in waiting.iter_mut().enumerate() {
        client.send(&[b"BLPOP", b"other", b"list", b"0"]);
        until_waiting(&mut pusher, number + 1);
    }
    // The last command finds what two clients have left.
    let pipeline = [request(&[b"RPUSH", b"list", b"a", b"b"]), request(&[b"LLEN", b"list"])].concat();
    pusher.stream.write_all(&pipeline).unwrap();
    assert_eq!((pusher.reply(), pusher.reply()), (Some(Reply::Integer(2)), Some(Reply::Integer(0))));
    assert_eq!(waiting[0].reply(), Some(bulks(&["list", "a"])));
    assert_eq!(waiting[1].reply(), Some(bulks(&["list", "b"])));
    until_waiting(&mut pusher, 1);
    // In a transaction all commands come first.
    for line in ["MULTI", "LPUSH list 1", "LPUSH list 2", "EXEC"] {
        pusher.says(line);
    }
    assert_eq!(waiting[2].reply(), Some(bulks(&["list", "2"])));
    // From list to list.
    waiting[0].send(&[b"BLMOVE", b"from", b"to", b"LEFT", b"RIGHT", b"0"]);
    until_waiting(&mut pusher, 1);
    waiting[1].send(&[b"BRPOP", b"to", b"0"]);
    until_waiting(&mut pusher, 2);
    pusher.says("RPUSH from x");
    assert_eq!(waiting[0].reply(), Some(Reply::bulk("x")));
    assert_eq!(waiting[1].reply(), Some(bulks(&["to", "x"])));
    assert_eq!(pusher.says("EXISTS from to"), Reply::Integer(0));
    service.end();
}

/// A client that waits for several keys gets the one that became ready first, in any order of its request.
#[test]
fn the_key_that_became_ready_first_is_served() {
    let service = small();
    let (mut client, mut pusher) = (service.client(), service.client());
    for (line, found) in [
        ("BLPOP t1 t2 0", bulks(&["t2", "b"])),
        ("BLMPOP 0 2 t1 t2 LEFT COUNT 2", Reply::Array(vec![Reply::bulk("t2"), bulks(&["b"])])),
    ] {
        client.send(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        until_waiting(&mut pusher, 1);
        for line in ["MULTI", "RPUSH t2 b", "RPUSH t1 a", "EXEC"] {
            pusher.says(line);
        }
        assert_eq!(client.reply(), Some(found), "{line}");
        assert_eq!(pusher.says("LPOP t1"), Reply::bulk("a"));
    }
    service.end();
}

/// Each blocking command with something there, with nothing, in a transaction, and with a key of another
/// kind.
#[test]
fn each_command_that_waits() {
    let service = small();
    let (mut client, mut beside) = (service.client(), service.client());
    for (make, line, found) in [
        ("RPUSH k a b", "BLPOP none k 0", bulks(&["k", "a"])),
        ("RPUSH k a b", "BRPOP k 0", bulks(&["k", "b"])),
        ("RPUSH k a", "BRPOPLPUSH k to 0", Reply::bulk("a")),
        (
            "RPUSH k a b c",
            "BLMPOP 0 2 none k RIGHT COUNT 2",
            Reply::Array(vec![Reply::bulk("k"), bulks(&["c", "b"])]),
        ),
        ("ZADD k 1 a 2 b", "BZPOPMIN k 0", bulks(&["k", "a", "1"])),
        ("ZADD k 1 a 2 b", "BZPOPMAX none k 0", bulks(&["k", "b", "2"])),
        (
            "ZADD k 1 a 2 b",
            "BZMPOP 0 1 k MIN COUNT 5",
            Reply::Array(vec![Reply::bulk("k"), Reply::Array(vec![bulks(&["a", "1"]), bulks(&["b", "2"])])]),
        ),
    ] {
        beside.says("FLUSHALL");
        beside.says(make);
        assert_eq!(client.says(line), found, "{line}: at once");
        beside.says("FLUSHALL");
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        client.send(&words);
        until_waiting(&mut beside, 1);
        beside.says("SET k string");
        beside.says("DEL k");
        beside.says(make);
        assert_eq!(client.reply(), Some(found), "{line}: when it is made");
        beside.says("FLUSHALL");
        let timed = line.replace(" 0", " 0.01");
        assert_eq!(client.says(&timed), Reply::Null, "{timed}: in vain");
        client.says("MULTI");
        client.says(line);
        assert_eq!(client.says("EXEC"), Reply::Array(vec![Reply::Null]), "{line}: in a transaction");
        beside.says("SET k string");
        assert!(client.says(line).text().starts_with("WRONGTYPE"), "{line}");
    }
    assert_eq!(client.says("BLPOP k x").text(), "ERR timeout is not a float or out of range");
    assert_eq!(client.says("BLPOP k -1").text(), "ERR timeout is negative");
    service.end();
}

/// `CLIENT UNBLOCK` ends a wait, and so does the end of the connection. Requests behind it are executed then.
#[test]
fn waiting_ends() {
    let service = small();
    let (mut client, mut beside) = (service.client(), service.client());
    let Reply::Integer(id) = client.says("CLIENT ID") else { panic!("a number") };
    for (how, said) in [
        ("TIMEOUT", Reply::Null),
        ("ERROR", Reply::Error("UNBLOCKED client unblocked via CLIENT UNBLOCK".into())),
    ] {
        let pipeline = [request(&[b"BLPOP", b"k", b"0"]), request(&[b"ECHO", b"behind"])].concat();
        client.stream.write_all(&pipeline).unwrap();
        until_waiting(&mut beside, 1);
        assert_eq!(beside.says(&format!("CLIENT UNBLOCK {id} {how}")), Reply::Integer(1));
        assert_eq!(client.reply(), Some(said));
        assert_eq!(client.reply(), Some(Reply::bulk("behind")));
        assert_eq!(beside.says(&format!("CLIENT UNBLOCK {id}")), Reply::Integer(0));
    }
    client.send(&[b"BLPOP", b"k", b"0"]);
    until_waiting(&mut beside, 1);
    drop(client);
    until_waiting(&mut beside, 0);
    assert_eq!(beside.says("RPUSH k a"), Reply::Integer(1));
    assert_eq!(beside.says("LLEN k"), Reply::Integer(1), "nobody took it");
    service.end();
}

/// A user loses a right while its client waits: the client gets nothing, and the next client is served.
#[test]
fn rights_end_while_a_client_waits() {
    let service = small();
    let (mut admin, mut user, mut other) = (service.client(), service.client(), service.client());
    assert_eq!(admin.says("ACL SETUSER u on >p ~* +@all"), Reply::ok());
    assert_eq!(user.says("AUTH u p"), Reply::ok());
    user.send(&[b"BLPOP", b"k", b"0"]);
    until_waiting(&mut admin, 1);
    other.send(&[b"BLPOP", b"k", b"0"]);
    until_waiting(&mut admin, 2);
    assert_eq!(admin.says("ACL SETUSER u -blpop"), Reply::ok());
    assert_eq!(admin.says("RPUSH k a"), Reply::Integer(1));
    assert!(user.reply().unwrap().text().starts_with("NOPERM"), "it may not any more");
    assert_eq!(other.reply(), Some(bulks(&["k", "a"])));
    service.end();
}

/// A reply that is too long is not cut for a client that has waited, either: the client gets an error, and
/// its next request is answered.
#[test]
fn a_reply_that_is_too_long_is_not_cut() {
    let service = small();
    let (mut client, mut pusher) = (service.client(), service.client());
    assert_eq!(
        pusher.asks(&[b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 1000000 0 0"]),
        Reply::ok()
    );
    client.send(&[b"BLMPOP", b"0", b"1", b"list", b"LEFT", b"COUNT", b"3"]);
    until_waiting(&mut pusher, 1);
    let element = vec![b'e'; 500_000];
    assert_eq!(pusher.asks(&[b"RPUSH", b"list", &element, &element, &element]), Reply::Integer(3));
    let said = client.reply().unwrap().text();
    assert!(said.starts_with("ERR there is no room for the reply"), "{said}");
    assert_eq!(client.says("ECHO behind"), Reply::bulk("behind"));
    assert_eq!(client.says("EXISTS list"), Reply::Integer(0), "what it changes is changed");
    service.end();
}

/// Keys of a blocking request count among the client's bytes. A write of all of them serves each client once.
#[test]
fn many_keys_that_are_waited_for_count() {
    const KEYS: usize = 10_000;
    let service = small();
    let (mut client, mut beside) = (service.client(), service.client());
    let buffers = |client: &mut Client| {
        let info = client.says("INFO clients").text();
        let line = info.lines().find_map(|line| line.strip_prefix("buffer_bytes:"));
        line.unwrap().parse::<usize>().unwrap()
    };
    let before = buffers(&mut beside);
    let keys: Vec<String> = (0..KEYS).map(|number| format!("key:{number}")).collect();
    let words: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    client.send(&[&[&b"BLPOP"[..]], &words[..], &[b"0"]].concat());
    until_waiting(&mut beside, 1);
    let taken = buffers(&mut beside) - before;
    assert!(taken > KEYS * 128, "{taken}");
    // None of them is a list before the last one.
    let pairs: Vec<&[u8]> = words.iter().flat_map(|key| [*key, &b"v"[..]]).collect();
    assert_eq!(beside.asks(&[&[&b"MSET"[..]], &pairs[..]].concat()), Reply::ok());
    until_waiting(&mut beside, 1);
    for line in ["MULTI", "DEL key:9999", "RPUSH key:9999 a b", "EXEC"] {
        beside.says(line);
    }
    assert_eq!(client.reply(), Some(bulks(&["key:9999", "a"])));
    assert_eq!(beside.says("LRANGE key:9999 0 -1"), bulks(&["b"]));
    assert!(buffers(&mut beside) < before + KEYS * 64);
    service.end();
}

/// A flush aborts the transactions that watch an existing key, and no others; its keys are removed at once. An
/// exchange of databases serves the clients that wait for a key of the other one, and aborts transactions, too.
#[test]
fn flushes_and_exchanges_are_noticed() {
    let service = small();
    let (mut client, mut other) = (service.client(), service.client());
    let swapped = Reply::Array(vec![Reply::ok()]);
    for (change, watched, aborts) in [
        ("FLUSHALL", "there", true),
        ("FLUSHDB", "there", true),
        ("FLUSHALL", "missing", false),
        ("SWAPDB 0 1", "there", true),
        ("SWAPDB 0 1", "missing", false),
    ] {
        assert_eq!(other.says("SET there 1"), Reply::ok());
        assert_eq!(client.says(&format!("WATCH {watched}")), Reply::ok());
        assert_eq!(other.says(change), Reply::ok());
        assert_eq!(other.says("EXISTS there"), Reply::Integer(0), "{change}");
        assert_eq!(client.says("MULTI"), Reply::ok());
        assert_eq!(client.says("SET result 1").text(), "QUEUED");
        let expected = if aborts { Reply::Null } else { swapped.clone() };
        assert_eq!(client.says("EXEC"), expected, "{change}, {watched}");
        assert_eq!(other.says("FLUSHALL"), Reply::ok());
        assert_eq!(other.says("DBSIZE"), Reply::Integer(0));
    }
    client.send(&[b"BLPOP", b"list", b"0"]);
    until_waiting(&mut other, 1);
    assert_eq!(other.says("SELECT 1"), Reply::ok());
    assert_eq!(other.says("RPUSH list there"), Reply::Integer(1));
    assert_eq!(other.says("SWAPDB 0 1"), Reply::ok());
    assert_eq!(client.reply(), Some(bulks(&["list", "there"])));
    service.end();
}

/// The log has each element that a waiting client took, in order: a restart finds the same data.
#[test]
fn pops_of_waiting_clients_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let words =
        ["--far", "64MiB", "--dir", dir.path().to_str().unwrap(), "--appendonly", "--appendfsync", "always"];
    let process = Process::start(&words);
    let (mut client, mut pusher) = (Client::connect(process.address), Client::connect(process.address));
    client.send(&[b"BLMOVE", b"from", b"to", b"RIGHT", b"LEFT", b"0"]);
    until_waiting(&mut pusher, 1);
    pusher.says("RPUSH from a b");
    assert_eq!(client.reply(), Some(Reply::bulk("b")));
    assert_eq!(client.says("BLPOP to from 0"), bulks(&["to", "b"]));
    assert_eq!(client.says("ZADD z 1 a 2 b 3 c"), Reply::Integer(3));
    client.says("ZMPOP 1 z MAX COUNT 2");
    // The log entries are short, however long the member is.
    let long = "m".repeat(100_000);
    client.says(&format!("ZADD y 1 {long} 2 b 3 {long}{long}"));
    let logged = |client: &mut Client| {
        let info = client.says("INFO persistence").text();
        let line = info.lines().find_map(|line| line.strip_prefix("aof_current_size:"));
        line.unwrap().parse::<usize>().unwrap()
    };
    let before = logged(&mut client);
    assert!(before > 300_000, "{before}");
    for (line, len) in [("BZPOPMIN y 0", 100_000), ("BZPOPMAX y 0", 200_000)] {
        let Reply::Array(popped) = client.says(line) else { panic!("a member") };
        assert_eq!(popped[1].text().len(), len);
    }
    let added = logged(&mut client) - before;
    assert!((1..1_000).contains(&added), "{added}");
    process.kill();
    let process = Process::start(&words);
    let mut client = Client::connect(process.address);
    assert_eq!(client.says("LRANGE from 0 -1"), bulks(&["a"]));
    assert_eq!(client.says("EXISTS to"), Reply::Integer(0));
    assert_eq!(client.says("ZRANGE z 0 -1"), bulks(&["a"]));
    assert_eq!(client.says("ZRANGE y 0 -1"), bulks(&["b"]));
    process.kill();
}

/// Slow commands are kept, without passwords.
#[test]
fn slow_commands_and_common_subsequences() {
    let service = small();
    let mut client = service.client();
    assert_eq!(client.says("SLOWLOG GET"), Reply::Array(vec![]));
    client.says("DEBUG SLEEP 0.02");
    assert_eq!(client.says("CONFIG SET slowlog-log-slower-than 0"), Reply::ok());
    client.says("AUTH default secret");
    assert_eq!(client.says("CONFIG SET slowlog-log-slower-than -1"), Reply::ok());
    let Reply::Array(entries) = client.says("SLOWLOG GET 10") else { panic!("entries") };
    assert_eq!(entries.len(), 2 + usize::from(entries.len() > 2));
    let shown = format!("{entries:?}");
    assert!(shown.contains(&format!("{:?}", Reply::bulk("SLEEP"))), "{shown}");
    assert!(!shown.contains(&format!("{:?}", Reply::bulk("secret"))), "{shown}");
    assert_eq!(client.says("SLOWLOG RESET"), Reply::ok());
    assert_eq!(client.says("SLOWLOG LEN"), Reply::Integer(0));
    client.says("MSET a ohmytext b mynewtext");
    assert_eq!(client.says("LCS a b"), Reply::bulk("mytext"));
    assert_eq!(client.says("LCS a b LEN"), Reply::Integer(6));
    let Reply::Array(said) = client.says("LCS a b IDX MINMATCHLEN 4 WITHMATCHLEN") else {
        panic!("an array")
    };
    assert_eq!(said[3], Reply::Integer(6));
    assert!(client.says("LCS a b LEN IDX").text().starts_with("ERR If you want both"));
    service.end();
}
