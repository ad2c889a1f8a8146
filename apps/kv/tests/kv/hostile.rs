//! Clients that mean harm, or know no better: many connections, half a request, values as long as may be, replies without an end.

use crate::common::{Client, Process, Reply, Service, request};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

fn info(client: &mut Client, section: &str, name: &str) -> usize {
    let info = client.says(&format!("INFO {section}")).text();
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name}: {info}")).trim().parse().unwrap()
}

/// Ten thousand clients at once, each answered; one more is told why not; and they go without a trace.
#[test]
fn ten_thousand_connections() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const CLIENTS: usize = 10_000;
    let limit = getrlimit(Resource::Nofile);
    let wanted = CLIENTS as u64 + 200;
    if limit.maximum.is_some_and(|most| most < wanted) {
        eprintln!(
            "skipped: 10,000 connections: this user may have {:?} descriptors (ulimit -Hn)",
            limit.maximum
        );
        return;
    }
    setrlimit(
        Resource::Nofile,
        Rlimit { current: Some(limit.current.unwrap_or(wanted).max(wanted)), ..limit },
    )
    .unwrap();
    let process = Process::start(&["--far", "64MiB", "--local", "256MiB"]);
    let mut clients: Vec<TcpStream> =
        (0..CLIENTS - 1).map(|_| TcpStream::connect(process.address).unwrap()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.write_all(&request(&[b"SET", number.to_string().as_bytes(), b"here"])).unwrap();
    }
    let mut reply = [0; 5];
    for client in &mut clients {
        client.read_exact(&mut reply).unwrap();
        assert_eq!(reply, *b"+OK\r\n");
    }
    let mut last = Client::connect(process.address);
    assert_eq!(last.says("DBSIZE"), Reply::count(CLIENTS - 1));
    assert_eq!(info(&mut last, "clients", "connected_clients"), CLIENTS);
    let mut refused = Client::connect(process.address);
    assert_eq!(refused.reply(), Some(Reply::Error("ERR max number of clients reached".into())));
    assert_eq!(refused.reply(), None);
    drop(clients);
    let gone = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        info(&mut last, "clients", "connected_clients") == 1
    });
    assert!(gone, "those that closed are counted still");
    assert!(info(&mut last, "clients", "buffer_bytes") < 1 << 20);
    process.kill();
}

/// Clients that begin a request and do not end it: what is kept for them is what they sent, and all together a quarter of local memory; others go on.
#[test]
fn half_a_request() {
    let service = Service::start(&["--far", "64MiB", "--local", "64MiB"]);
    let mut beside = service.client();
    // What they say that they will send takes nothing yet.
    let mut halves: Vec<Client> = (0..100).map(|_| service.client()).collect();
    for half in &mut halves {
        half.stream.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$8000000\r\n").unwrap();
    }
    assert_eq!(beside.says("SET b 1"), Reply::ok());
    assert!(info(&mut beside, "clients", "buffer_bytes") < 1 << 20);
    let mut refused = 0;
    for half in &mut halves {
        half.stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        // One that is refused has no reader.
        let _refused = half.stream.write_all(&[b'x'; 1 << 20]);
        assert_eq!(beside.says("GET b"), Reply::bulk("1"));
        let bytes = info(&mut beside, "clients", "buffer_bytes");
        assert!(bytes <= 17 << 20, "{bytes}");
    }
    for half in halves.iter_mut().skip(50) {
        let said = half.reply().map(|reply| reply.text());
        refused += usize::from(said.is_some_and(|said| said.contains("no room for more of this request")));
    }
    assert!(refused > 0, "some are told that there is no room");
    drop(halves);
    let mut whole = service.client();
    assert_eq!(whole.asks(&[b"SET", b"large", &vec![b'x'; 4 << 20]]), Reply::ok(), "and room comes back");
    assert_eq!(beside.says("STRLEN large"), Reply::Integer(4 << 20));
    assert_eq!(beside.says("EXISTS a"), Reply::Integer(0), "no half was carried out");
    service.end();
}

/// A value of 512 MiB, the longest that Redis has: it comes, lies in far memory, and goes, byte for byte; one byte more is refused.
#[test]
fn a_value_of_512_mib() {
    const LEN: usize = 512 << 20;
    let service = Service::start(&["--far", "1GiB", "--local", "4GiB", "--nodes", "1"]);
    let mut client = service.client();
    let value: Vec<u8> = (0..LEN / 8).flat_map(|number| number.to_le_bytes()).collect();
    let head = format!("*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n${LEN}\r\n");
    client.stream.write_all(head.as_bytes()).unwrap();
    client.stream.write_all(&value).unwrap();
    client.stream.write_all(b"\r\n").unwrap();
    assert_eq!(client.reply(), Some(Reply::ok()));
    assert_eq!(client.says("STRLEN large"), Reply::count(LEN));
    client.send(&[b"GET", b"large"]);
    let mut reply = vec![0; format!("${LEN}\r\n").len() + LEN + 2];
    client.stream.read_exact(&mut reply).unwrap();
    assert!(reply.starts_with(format!("${LEN}\r\n").as_bytes()) && reply.ends_with(b"\r\n"));
    assert!(reply[reply.len() - 2 - LEN..reply.len() - 2] == value, "not what was sent");
    assert_eq!(client.says("GETRANGE large 536870904 -1"), Reply::Bulk(value[LEN - 8..].to_vec()));
    assert!(client.asks(&[b"APPEND", b"large", b"x"]).text().contains("exceeds maximum allowed size"));
    let mut other = service.client();
    other.stream.write_all(format!("*2\r\n$3\r\nGET\r\n${}\r\n", LEN + 1).as_bytes()).unwrap();
    assert!(other.reply().unwrap().text().contains("invalid bulk length"));
    assert_eq!(client.says("DEL large"), Reply::Integer(1));
    service.end();
}

/// Short requests whose replies would be longer than memory: refused, whatever asks, and what a transaction changes is changed.
#[test]
fn replies_without_end() {
    let service = Service::start(&["--far", "256MiB", "--local", "64MiB"]);
    let (mut client, mut beside) = (service.client(), service.client());
    let large = vec![b'x'; 4 << 20];
    assert_eq!(client.asks(&[b"SET", b"large", &large]), Reply::ok());
    assert_eq!(client.asks(&[b"SADD", b"set", &large[..1 << 20]]), Reply::Integer(1));
    let keys = [&[&b"MGET"[..]][..], &[&b"large"[..]; 1_000]].concat();
    assert!(
        client
            .asks(&keys)
            .text()
            .starts_with("ERR there is no room for the reply: one may have 16777216 bytes")
    );
    for line in ["SRANDMEMBER set -1000000", "SRANDMEMBER set -1048576"] {
        assert!(client.says(line).text().starts_with("ERR there is no room for the reply"), "{line}");
    }
    client.says("MULTI");
    client.says("INCR counter");
    (0..50).for_each(|_| drop(client.says("GET large")));
    client.says("INCR counter");
    assert!(client.says("EXEC").text().starts_with("ERR there is no room for the reply"));
    assert_eq!(beside.says("GET counter"), Reply::bulk("2"), "the whole transaction was carried out");
    assert_eq!(beside.says("GET large"), Reply::Bulk(large));
    let used = info(&mut beside, "memory", "local_used");
    assert!(used <= (64 << 20) * 102 / 100, "{used}");
    service.end();
}

/// A collection grows to its bound and no further, whatever adds to it: it can be read, popped and trimmed always, also behind a restart with the same settings.
#[test]
fn a_collection_that_may_be_written_may_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let words = ["--dir", path, "--appendonly", "--local", "16MiB", "--far", "64MiB"];
    let process = Process::start(&words);
    let mut client = Client::connect(process.address);
    let element = vec![b'e'; 100_000];
    let mut pushed = 0;
    let refused = loop {
        match client.asks(&[b"RPUSH", b"list", &element]) {
            Reply::Integer(_) => pushed += 1,
            other => break other.text(),
        }
        assert!(pushed < 1_000);
    };
    assert!(refused.starts_with("OOM the collection of this key would take"), "{refused}");
    assert!((35..45).contains(&pushed), "{pushed}");
    for add in [&b"HSET"[..], b"HSET", b"ZADD", b"SADD"] {
        let key = [add, b"-key"].concat();
        let refused = (0..200_u32).find_map(|number| {
            let (score, member) = (number.to_string(), [number.to_string().as_bytes(), &element].concat());
            let words: &[&[u8]] = match add {
                b"SADD" => &[add, &key, &member],
                b"ZADD" => &[add, &key, score.as_bytes(), &member],
                _ => &[add, &key, score.as_bytes(), &member],
            };
            match client.asks(words) {
                Reply::Integer(_) => None,
                other => Some(other.text()),
            }
        });
        assert!(refused.unwrap().starts_with("OOM the collection"));
    }
    assert_eq!(client.says("RPUSH one x"), Reply::Integer(1));
    // Fields that are there already may be set, and their bytes count.
    for field in 0..200 {
        assert_eq!(client.says(&format!("HSET short {field} v")), Reply::Integer(1));
    }
    let set = (0..200).take_while(|field| {
        client.asks(&[b"HSET", b"short", field.to_string().as_bytes(), &element]) == Reply::Integer(0)
    });
    assert!((30..45).contains(&set.count()));
    client.asks(&[b"SET", b"ballast", &vec![b'b'; 1 << 20]]);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(client.says("LLEN list"), Reply::Integer(pushed));
    assert_eq!(client.says("LMOVE one list LEFT LEFT").text(), "x", "what is short fits still");
    assert_eq!(client.says("LPOP list").text(), "x");
    assert!(client.says("LPOP list") == Reply::Bulk(element.clone()));
    process.kill();
    let process = Process::start(&words);
    let mut client = Client::connect(process.address);
    assert_eq!(client.says("LLEN list"), Reply::Integer(pushed - 1));
    assert_eq!(client.says("LTRIM list 0 3"), Reply::ok());
    assert_eq!(client.says("HSTRLEN short 7"), Reply::Integer(100_000));
    assert!(info(&mut client, "memory", "local_used") <= (16 << 20) * 102 / 100);
    process.kill();
}

/// Clients that ask for much and read nothing, and transactions that are put together without an end: what is kept for all has a bound, and others write meanwhile.
#[test]
fn what_is_kept_for_clients_has_a_bound() {
    let service = Service::start(&["--far", "64MiB", "--local", "64MiB"]);
    let mut beside = service.client();
    assert_eq!(beside.asks(&[b"SET", b"k", &vec![b'k'; 1 << 20]]), Reply::ok());
    let mut silent: Vec<Client> = (0..100).map(|_| service.client()).collect();
    silent.iter_mut().for_each(|client| client.send(&[b"MGET", b"k", b"k", b"k", b"k", b"k"]));
    let bound = (16 << 20) + (2 << 20);
    for number in 0..50 {
        assert_eq!(beside.says(&format!("SET beside {number}")), Reply::ok());
        assert!(info(&mut beside, "clients", "buffer_bytes") <= bound);
    }
    drop(silent);
    let mut queues: Vec<Client> = (0..6).map(|_| service.client()).collect();
    let value = vec![b'q'; 1 << 20];
    for _ in 0..20 {
        for client in &mut queues {
            // One that was cut off has no reader.
            let _cut_off = client.stream.write_all(&request(&[b"MULTI"]));
            let _cut_off = client.stream.write_all(&request(&[b"SET", b"queued", &value]));
        }
        assert!(info(&mut beside, "clients", "buffer_bytes") <= bound);
        assert_eq!(beside.says("SET beside 1"), Reply::ok());
    }
    assert!(info(&mut beside, "clients", "clients_cut_off") > 0);
    service.end();
}
