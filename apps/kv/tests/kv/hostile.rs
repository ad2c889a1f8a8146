//! Clients that are hostile or broken: many connections, half a request, the longest values, replies without
//! end.

use crate::common::{Client, Process, Reply, Service, request};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

fn info(client: &mut Client, section: &str, name: &str) -> usize {
    let info = client.says(&format!("INFO {section}")).text();
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name}: {info}")).trim().parse().unwrap()
}

/// Ten thousand simultaneous clients are served, and one more is refused with the reason. The clients leave no trace.
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

/// Clients begin a request and do not end it. The server keeps their bytes, at most a quarter of local memory
/// together, and other clients are served.
#[test]
fn half_a_request() {
    let service = Service::start(&["--far", "64MiB", "--local", "64MiB"]);
    let mut beside = service.client();
    // The announced bytes take nothing yet.
    let mut halves: Vec<Client> = (0..100).map(|_| service.client()).collect();
    for half in &mut halves {
        half.stream.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$8000000\r\n").unwrap();
    }
    assert_eq!(beside.says("SET b 1"), Reply::ok());
    assert!(info(&mut beside, "clients", "buffer_bytes") < 1 << 20);
    let mut refused = 0;
    for half in &mut halves {
        half.stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
        // A client that is refused gets an error here.
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

/// A value of 512 MiB, the longest of Redis, is written, lies in far memory, and is read byte for byte. One
/// byte more is refused.
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

/// Short requests whose replies would be longer than memory are refused, in every form. A transaction still
/// makes its changes.
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

/// A collection grows to its bound and no further, with any command. A full collection can be read, popped and
/// trimmed, also after a restart.
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
    // The bytes of existing fields count, too.
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

/// Clients ask for much and read nothing, or queue transactions without end. All buffers together have a
/// bound, and other clients write meanwhile.
#[test]
fn buffers_of_all_clients_are_bounded() {
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
            // A client that is disconnected gets an error here.
            let _cut_off = client.stream.write_all(&request(&[b"MULTI"]));
            let _cut_off = client.stream.write_all(&request(&[b"SET", b"queued", &value]));
        }
        assert!(info(&mut beside, "clients", "buffer_bytes") <= bound);
        assert_eq!(beside.says("SET beside 1"), Reply::ok());
    }
    assert!(info(&mut beside, "clients", "clients_cut_off") > 0);
    service.end();
}

/// A request arrives while the client's replies exceed their bound: the server executes it when the client has read
/// them. The replies are larger than what the sockets' buffers take, so the server has to pause, and has seen the
/// last request before it resumes.
#[test]
fn a_request_behind_large_replies_is_executed() {
    const LEN: usize = 100_000;
    const GETS: usize = 100;
    let service = Service::start(&["--far", "64MiB", "--local", "16MiB", "--memcached-port", "0"]);
    let value = vec![b'v'; LEN];
    assert_eq!(service.client().asks(&[b"SET", b"large", &value]), Reply::ok());
    let one = [format!("${LEN}\r\n").as_bytes(), &value, b"\r\n"].concat();
    let of_redis = (service.address, request(&[b"GET", b"large"]), &b"PING\r\n"[..], &b"+PONG\r\n"[..], one);
    let one = [format!("VALUE large 0 {LEN}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat();
    let memcached = service.memcached.unwrap();
    let of_memcached = (memcached, b"get large\r\n".to_vec(), &b"verbosity 1\r\n"[..], &b"OK\r\n"[..], one);
    for (address, get, last, last_reply, one) in [of_redis, of_memcached] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(&get.repeat(GETS)).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        stream.write_all(last).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let mut replies = vec![0; GETS * one.len() + last_reply.len()];
        stream.read_exact(&mut replies).expect("all replies arrive");
        assert!(replies.chunks(one.len()).take(GETS).all(|reply| reply == one), "other replies");
        assert!(replies.ends_with(last_reply), "no reply to the last request");
    }
    service.end();
}

/// The server's notes about clients have a bound: names, watched keys, and refusals.
#[test]
fn notes_about_clients_are_bounded() {
    let service = Service::start(&["--far", "64MiB", "--local", "64MiB"]);
    let (mut client, mut beside) = (service.client(), service.client());
    let long = vec![b'n'; 1 << 20];
    assert!(client.asks(&[b"CLIENT", b"SETNAME", &long]).text().contains("at most 512 bytes"));
    assert!(client.asks(&[b"HELLO", b"3", b"SETNAME", &long]).text().contains("at most 512 bytes"));
    assert_eq!(client.asks(&[b"CLIENT", b"SETNAME", &long[..512]]), Reply::ok());

    assert_eq!(beside.says("ACL SETUSER few on nopass ~* +ping"), Reply::ok());
    assert_eq!(client.says("AUTH few any"), Reply::ok());
    assert!(client.asks(&[b"CONFIG", &long]).text().len() < 300);
    let noted = format!("{:?}", beside.says("ACL LOG"));
    assert!(noted.len() < 20_000, "{} bytes", noted.len());

    let mut watches = service.client();
    let mut watched = 0;
    loop {
        let keys: Vec<String> = (0..20_000).map(|number| (watched + number).to_string()).collect();
        let words: Vec<&[u8]> =
            std::iter::once(&b"WATCH"[..]).chain(keys.iter().map(String::as_bytes)).collect();
        watches.send(&words);
        if watches.reply().is_none() {
            break;
        }
        watched += keys.len();
        assert!(watched < 1_000_000, "there is no end of it");
        let bytes = info(&mut beside, "clients", "buffer_bytes");
        // The last request may have disconnected the client.
        assert!(
            bytes <= 17 << 20 && (watched > 100_000 || bytes >= 100 * watched),
            "{watched} keys: {bytes}"
        );
    }
    assert!(watched >= 100_000, "{watched}");
    assert_eq!(info(&mut beside, "clients", "clients_cut_off"), 1);
    assert_eq!(beside.says("SET 1 1"), Reply::ok());
    service.end();
}

/// In a request of very many short words the positions count, which take more than the words.
#[test]
fn many_short_words_count() {
    let service = Service::start(&["--far", "64MiB", "--local", "64MiB"]);
    let mut beside = service.client();
    let mut client = service.client();
    client.stream.write_all(b"*2000000\r\n$4\r\nMGET\r\n").unwrap();
    client.stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    let some = b"$1\r\nk\r\n".repeat(1_000);
    let mut most = 0;
    for number in 0..1_000 {
        // A client that is refused gets an error here.
        if client.stream.write_all(&some).is_err() {
            break;
        }
        if number % 50 == 49 {
            most = most.max(info(&mut beside, "clients", "buffer_bytes"));
        }
    }
    // The list of words doubles.
    assert!(most > 4 << 20 && most <= 24 << 20, "{most}");
    // A client that still sends when the server closes may get a reset in place of the reply.
    let reply = client.reply();
    assert!(reply.is_none_or(|reply| reply.text().contains("no room for more of this request")));
    assert_eq!(beside.says("SET k 1"), Reply::ok());
    service.end();
}

/// Starts a server with 16 MiB of local memory, and a client.
fn narrow() -> (Service, Client) {
    let service = Service::start(&["--far", "512MiB", "--local", "16MiB"]);
    let client = service.client();
    (service, client)
}

/// Sends all requests in one piece, and a request for the used memory behind them: before the server has
/// another turn.
fn used_behind(client: &mut Client, requests: &[Vec<u8>]) -> (Vec<Reply>, usize) {
    let bytes = [requests.concat(), request(&[b"INFO", b"memory"])].concat();
    client.stream.write_all(&bytes).unwrap();
    let replies = requests.iter().map(|_| client.reply().unwrap()).collect();
    let info = client.reply().unwrap().text();
    let used = info.lines().find_map(|line| line.strip_prefix("local_used:")).unwrap();
    (replies, used.trim().parse().unwrap())
}

/// One turn requests collections that together are many times as large as local memory, with many commands and with
/// one. Used collections leave before others come, and a combined result has a bound.
#[test]
fn collections_do_not_all_come_at_once() {
    const LIMIT: usize = (16 << 20) * 102 / 100;
    let (service, mut client) = narrow();
    for number in 0..40 {
        for part in 0..7_u32 {
            let members: Vec<Vec<u8>> = (0..5_u32)
                .map(|member| {
                    [&(number * 100 + part * 5 + member).to_le_bytes()[..], &[b'm'; 90_000]].concat()
                })
                .collect();
            let key = format!("set:{number}");
            let words: Vec<&[u8]> =
                [&b"SADD"[..], key.as_bytes()].into_iter().chain(members.iter().map(Vec::as_slice)).collect();
            assert_eq!(client.asks(&words), Reply::Integer(5));
        }
    }
    let cards: Vec<Vec<u8>> =
        (0..40).map(|number| request(&[b"SCARD", format!("set:{number}").as_bytes()])).collect();
    let (replies, used) = used_behind(&mut client, &cards);
    assert!(replies.iter().all(|reply| *reply == Reply::Integer(35)), "{replies:?}");
    assert!(used <= LIMIT, "{used}");
    let keys: Vec<String> = (0..40).map(|number| format!("set:{number}")).collect();
    for words in [&["SUNION"][..], &["SUNIONSTORE", "all"], &["ZUNION", "40"], &["ZUNIONSTORE", "all", "40"]]
    {
        let words: Vec<&[u8]> =
            words.iter().map(|word| word.as_bytes()).chain(keys.iter().map(String::as_bytes)).collect();
        let (replies, used) = used_behind(&mut client, &[request(&words)]);
        assert!(replies[0].text().starts_with("OOM the result would take"), "{:?}", replies[0]);
        assert!(used <= LIMIT, "{used}");
    }
    assert_eq!(client.says("EXISTS all"), Reply::Integer(0));
    assert_eq!(client.says("SINTERCARD 2 set:0 set:1"), Reply::Integer(0));
    service.end();
}

/// With the longest keys a scan returns as many as there is room for, with any `COUNT`, and each key exactly once.
#[test]
fn long_keys_are_scanned_in_parts() {
    let (service, mut client) = narrow();
    let key = |number: u32| [&number.to_le_bytes()[..], &[b'k'; 60_000]].concat();
    (0..500).for_each(|number| assert_eq!(client.asks(&[b"SET", &key(number), b"v"]), Reply::ok()));
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        let Reply::Array(said) = client.says(&format!("SCAN {cursor} COUNT 10000")) else {
            panic!("an array")
        };
        let [next, Reply::Array(some)] = &said[..] else { panic!("a cursor and keys") };
        assert!(some.len() < 100, "{}", some.len());
        found.extend(some.iter().map(|key| match key {
            Reply::Bulk(key) => u32::from_le_bytes(*key.first_chunk().unwrap()),
            other => panic!("{other:?}"),
        }));
        cursor = next.text();
        if cursor == "0" {
            break;
        }
    }
    found.sort_unstable();
    assert_eq!(found, (0..500).collect::<Vec<_>>());
    assert!(client.says("KEYS *").text().starts_with("ERR there are too many such keys"));
    service.end();
}

/// During a snapshot one command deletes keys with many times as many bytes as local memory. The snapshot
/// does not load them all: it is given up and made again, and the keys go.
#[test]
fn a_snapshot_does_not_bring_everything_here() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let service = Service::start(&["--far", "256MiB", "--local", "16MiB", "--dir", path, "--save", ""]);
    let mut client = service.client();
    let names: Vec<String> = (0..800).map(|number| format!("key:{number}")).collect();
    for name in &names {
        assert_eq!(client.asks(&[b"SET", name.as_bytes(), &[b'v'; 100_000]]), Reply::ok());
    }
    let some: Vec<&[u8]> =
        std::iter::once(&b"DEL"[..]).chain(names[..700].iter().map(String::as_bytes)).collect();
    let (replies, used) = used_behind(&mut client, &[request(&[b"BGSAVE"]), request(&some)]);
    assert_eq!(replies[1], Reply::Integer(700), "{:?}", replies[0]);
    assert!(used <= (16 << 20) * 102 / 100, "{used}");
    let status = |client: &mut Client| client.says("INFO persistence").text();
    let gave_up = (0..400).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        status(&mut client).contains("rdb_last_bgsave_status:err")
    });
    assert!(gave_up);
    assert_eq!(client.says("SAVE"), Reply::ok());
    assert_eq!(client.says("DBSIZE"), Reply::Integer(100));
    service.end();
    let service = Service::start(&["--far", "256MiB", "--local", "16MiB", "--dir", path, "--save", ""]);
    assert_eq!(service.client().says("DBSIZE"), Reply::Integer(100));
    service.end();
}
