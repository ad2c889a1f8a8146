//! The server over TCP: refusals, bounds, and the promises of transactions.

use crate::common::{Client, Reply, Service, request};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// Starts a server with little of everything.
fn small() -> Service {
    Service::start(&["--far", "64MiB", "--local", "64MiB"])
}

/// Sends bytes, and returns all that the server sends until it closes.
fn says(service: &Service, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(service.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The server may close before it has read everything.
    let _ended_already = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut said = Vec::new();
    let _reset = stream.read_to_end(&mut said);
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn malformed_requests_end_their_connection() {
    let service = small();
    let mut beside = service.client();
    for (bytes, said) in [
        (&b"*x\r\n"[..], "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*1\r\n*1\r\n", "-ERR Protocol error: expected '$', got '*'\r\n"),
        (b"*1\r\n$-5\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        (b"SET a 'b\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"),
        (
            b"PING\r\n*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n*0\r\n\r\nQUIT\r\nPING\r\n",
            "+PONG\r\n$2\r\nhi\r\n+OK\r\n",
        ),
        (b"*2\r\n$3\r\nGET\r\n", ""),
    ] {
        assert_eq!(says(&service, bytes), said, "{bytes:?}");
    }
    let deep = "*1\r\n".repeat(100_000);
    assert_eq!(says(&service, deep.as_bytes()), "-ERR Protocol error: expected '$', got '*'\r\n");
    assert!(
        says(&service, b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$536870912\r\n")
            .contains("invalid bulk length: a word has at most 8388608 bytes")
    );
    for byte in request(&[b"SET", b"slow", b"1"]) {
        beside.stream.write_all(&[byte]).unwrap();
    }
    assert_eq!(beside.reply(), Some(Reply::ok()));
    assert_eq!(beside.says("GET slow"), Reply::bulk("1"));
    service.end();
}

#[test]
fn a_watched_key_that_changed_ends_the_transaction() {
    let service = small();
    let (mut one, mut other) = (service.client(), service.client());
    for (changes, result) in [
        ("SET a 1", Reply::Null),
        ("GET a", Reply::Array(vec![Reply::ok()])),
        ("DEL a", Reply::Null),
        ("FLUSHALL", Reply::Array(vec![Reply::ok()])),
    ] {
        assert_eq!(one.says("WATCH a b"), Reply::ok());
        other.says(changes);
        assert_eq!(one.says("MULTI"), Reply::ok());
        assert_eq!(one.says("SET c 2"), Reply::Simple("QUEUED".into()));
        assert_eq!(one.says("EXEC"), result, "{changes}");
    }
    // A key that expires meanwhile has changed, even if no client has read it.
    assert_eq!(other.says("DEBUG SET-ACTIVE-EXPIRE 0"), Reply::ok());
    assert_eq!(other.says("SET a 1 PX 10"), Reply::ok());
    for line in ["WATCH a", "MULTI", "SET c 2"] {
        assert!(!matches!(one.says(line), Reply::Error(_)));
    }
    other.says("DEBUG SLEEP 0.05");
    assert_eq!(one.says("EXEC"), Reply::Null);
    assert_eq!(one.says("MULTI"), Reply::ok());
    assert!(matches!(one.says("SET a"), Reply::Error(_)));
    assert!(one.says("EXEC").text().starts_with("EXECABORT"));
    service.end();
}

#[test]
fn unsupported_commands_say_why() {
    let service = small();
    let mut client = service.client();
    assert!(client.says("EVAL return 0").text().contains("runs no scripts"));
    assert!(client.says("SUBSCRIBE a").text().contains("no publish and subscribe"));
    assert!(client.says("BGSAVE").text().contains("start the server with --dir"));
    let hello = client.says("HELLO 3");
    assert!(matches!(&hello, Reply::Many(b'%', fields) if fields.contains(&Reply::Integer(3))), "{hello:?}");
    client.says("ZADD z 1.5 a");
    assert_eq!(client.says("ZSCORE z a"), Reply::Other(b',', "1.5".into()));
    assert_eq!(client.says("GET nothing"), Reply::Null);
    assert!(matches!(client.says("INFO memory"), Reply::Other(b'=', _)));
    service.end();
}

/// Clients that have not logged in may only do that, with short requests.
#[test]
fn a_password_is_asked_for() {
    let service = Service::start(&["--far", "64MiB", "--local", "64MiB", "--requirepass", "open sesame"]);
    let mut client = service.client();
    assert_eq!(client.says("GET a").text(), "NOAUTH Authentication required.");
    assert!(client.says("AUTH wrong").text().starts_with("WRONGPASS"));
    assert!(says(&service, b"*2\r\n$3\r\nGET\r\n$20000\r\n").contains("unauthenticated bulk length"));
    assert_eq!(client.asks(&[b"AUTH", b"default", b"open sesame"]), Reply::ok());
    assert_eq!(client.says("GET a"), Reply::Null);
    service.end();
}

/// A client sends requests and never reads. The server keeps at most the bound for it, serves others, and disconnects
/// it in the end.
#[test]
fn a_client_that_never_reads_is_cut_off() {
    let service = small();
    let (mut silent, mut beside) = (service.client(), service.client());
    beside.asks(&[b"SET", b"large", &vec![b'x'; 1 << 20]]);
    let apart = beside.says("CONFIG SET client-output-buffer-limit normal\u{20}4mb\u{20}1mb\u{20}0");
    assert!(apart.text().starts_with("ERR"), "{apart:?}");
    assert_eq!(
        beside.asks(&[b"CONFIG", b"SET", b"client-output-buffer-limit", b"normal 4mb 128kb 1"]),
        Reply::ok()
    );
    silent.stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    let asks = request(&[b"GET", b"large"]).repeat(64);
    let _cut_off_meanwhile = silent.stream.write_all(&asks);
    let mut cut_off = String::new();
    for _ in 0..600 {
        cut_off = beside.says("INFO clients").text();
        if cut_off.contains("clients_cut_off:1") {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(cut_off.contains("clients_cut_off:1"), "{cut_off}");
    let buffers: usize =
        cut_off.lines().find_map(|line| line.strip_prefix("buffer_bytes:")).unwrap().trim().parse().unwrap();
    assert!(buffers < 16 << 20, "{buffers}");
    service.end();
}

/// Clients send all their requests and close their side, with one thread and with several. The requests
/// before the end are executed, and the replies arrive whole.
#[test]
fn requests_before_a_half_close_are_executed() {
    for threads in ["1", "2"] {
        half_closes(threads);
    }
}

fn half_closes(threads: &str) {
    const REQUESTS: usize = 20;
    let service = Service::start(&["--far", "64MiB", "--local", "64MiB", "--io-threads", threads]);
    let mut beside = service.client();
    let value = vec![b'v'; 100_000];
    assert_eq!(beside.asks(&[b"SET", b"k", &value]), Reply::ok());
    let mut clients: Vec<_> = (0..12).map(|_| service.client()).collect();
    // While the server sleeps, all clients send.
    beside.send(&[b"DEBUG", b"SLEEP", b"0.2"]);
    for client in &mut clients {
        client.stream.write_all(&request(&[b"GET", b"k"]).repeat(REQUESTS)).unwrap();
        client.stream.shutdown(Shutdown::Write).unwrap();
    }
    assert_eq!(beside.reply(), Some(Reply::ok()));
    for client in &mut clients {
        let replies = std::iter::from_fn(|| client.reply()).inspect(|reply| {
            assert!(matches!(reply, Reply::Bulk(bytes) if *bytes == value));
        });
        assert_eq!(replies.count(), REQUESTS);
    }
    let info = beside.says("INFO stats").text();
    assert_eq!(info.contains("io_threaded_reads_processed:0\r"), threads == "1", "{info}");

    // As with `printf ... | nc -N`: the end arrives with the last request, or in the middle of one, alone or
    // among others. A wait for a key ends.
    for (sent, said) in [
        ("PING\r\n".repeat(10_000), "+PONG\r\n".repeat(10_000)),
        ("SET a 1\r\nINCR a\r\nGET a\r\n".to_owned(), "+OK\r\n:2\r\n$1\r\n2\r\n".to_owned()),
        ("PING\r\n*2\r\n$4\r\nECHO\r\n$2\r\nh".to_owned(), "+PONG\r\n".to_owned()),
        ("PING\r\nPIN".to_owned(), "+PONG\r\n".to_owned()),
        ("PING\r\nBLPOP nothing 0\r\n".to_owned(), "+PONG\r\n".to_owned()),
        (
            "MULTI\r\nPING\r\nEXEC\r\nQUIT\r\nPING\r\n".to_owned(),
            "+OK\r\n+QUEUED\r\n*1\r\n+PONG\r\n+OK\r\n".to_owned(),
        ),
    ] {
        assert!(says(&service, sent.as_bytes()) == said, "{}", &sent[..sent.len().min(60)]);
        // All of them connect at once.
        beside.send(&[b"DEBUG", b"SLEEP", b"0.1"]);
        let mut many: Vec<TcpStream> =
            (0..10).map(|_| TcpStream::connect(service.address).unwrap()).collect();
        for stream in &mut many {
            stream.write_all(sent.as_bytes()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        }
        assert_eq!(beside.reply(), Some(Reply::ok()));
        for stream in &mut many {
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut all = String::new();
            stream.read_to_string(&mut all).unwrap();
            assert_eq!(
                all.len(),
                said.len(),
                "{}: {}",
                &sent[..sent.len().min(60)],
                &all[..all.len().min(60)]
            );
        }
    }
    service.end();
}

/// Clients that have sent half a request, and one that reads no replies: the server waits for them without
/// polling.
#[test]
fn half_a_request_costs_nothing() {
    let service = Service::start(&["--far", "64MiB", "--local", "64MiB", "--memcached-port", "0"]);
    let mut beside = service.client();
    assert_eq!(beside.asks(&[b"SET", b"k", &vec![b'v'; 200_000]]), Reply::ok());
    let begins: [(bool, Vec<u8>); 4] = [
        (false, b"*2\r\n$3\r\nGET\r\n$1\r\n".to_vec()),
        (false, b"PING\r\nPIN".to_vec()),
        (false, [&request(&[b"GET", b"k"]).repeat(100)[..], b"GET "].concat()),
        (true, b"set k 0 0 10\r\nab".to_vec()),
    ];
    let held: Vec<TcpStream> = begins
        .iter()
        .map(|(is_memcached, bytes)| {
            let address = if *is_memcached { service.memcached.unwrap() } else { service.address };
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(bytes).unwrap();
            stream
        })
        .collect();
    let cycles = |client: &mut Client| {
        let info = client.says("INFO stats").text();
        let line = info.lines().find_map(|line| line.strip_prefix("eventloop_cycles:")).unwrap();
        line.trim().parse::<usize>().unwrap()
    };
    // The server has looked at all of them.
    beside.says("DEBUG SLEEP 0.2");
    let least = (0..5)
        .map(|_| {
            let before = cycles(&mut beside);
            std::thread::sleep(Duration::from_millis(200));
            cycles(&mut beside) - before
        })
        .min()
        .unwrap();
    // The clock ticks ten times a second.
    assert!(least < 50, "it looked {least} times what there is to do, and there was nothing");
    drop(held);
    service.end();
}

/// Returns a number of `INFO stats`.
fn count(client: &mut Client, name: &str) -> usize {
    let info = client.says("INFO stats").text();
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().parse().unwrap()
}

/// Waits until this many passwords were checked or delayed, and returns whether all were checked. The client is at
/// another address, so its own password is checked.
fn are_put_off(service: &Service, passwords: usize) -> Client {
    let mut beside = Client::connect_from([127, 0, 0, 2], service.address);
    assert_eq!(beside.says("AUTH right"), Reply::ok());
    // Each is checked, or delayed, as soon as it arrives.
    while count(&mut beside, "acl_access_denied_auth") + count(&mut beside, "acl_delayed_auth") < passwords {}
    assert!(count(&mut beside, "acl_access_denied_auth") < passwords, "all of them were looked at");
    beside
}

/// Passwords are guessed on one connection and on twenty new ones of the same address: none is checked while the
/// earlier ones count. A client at another address logs in meanwhile, and the right password of the address is
/// accepted after the delay.
#[test]
fn guesses_of_a_password_are_held_up() {
    const MORE: usize = 20;
    let service = Service::start(&["--far", "64MiB", "--local", "64MiB", "--requirepass", "right"]);
    let mut guesses = service.client();
    let mut all: Vec<u8> =
        (0..8).flat_map(|number| request(&[b"AUTH", format!("wrong{number}").as_bytes()])).collect();
    all.extend(request(&[b"RESET"]));
    all.extend(request(&[b"HELLO", b"2", b"AUTH", b"default", b"right"]));
    all.extend(request(&[b"GET", b"a"]));
    guesses.stream.write_all(&all).unwrap();
    // From the fourth on each guess closes the address, the seventh for two seconds.
    (0..7).for_each(|_| assert!(guesses.reply().unwrap().text().starts_with("WRONGPASS")));
    let mut many: Vec<_> = (0..MORE).map(|_| service.client()).collect();
    many.iter_mut().for_each(|client| client.send(&[b"AUTH", b"wrong"]));
    let mut beside = are_put_off(&service, 7 + MORE);
    assert_eq!(beside.says("SET a b"), Reply::ok());
    // Delayed passwords of clients that are gone are not checked later.
    drop(many);
    assert!(guesses.reply().unwrap().text().starts_with("WRONGPASS"));
    assert_eq!(guesses.reply(), Some(Reply::Simple("RESET".into())));
    assert!(matches!(guesses.reply(), Some(Reply::Array(_))));
    assert_eq!(guesses.reply(), Some(Reply::bulk("b")));
    service.end();
}

/// At the memcached port a new connection gains nothing, too, and a right password that was delayed is
/// accepted in the end.
#[test]
fn guesses_by_way_of_memcached_count_too() {
    const MORE: usize = 10;
    let words = ["--far", "64MiB", "--local", "64MiB", "--requirepass", "right", "--memcached-port", "0"];
    let service = Service::start(&words);
    let connect = || TcpStream::connect(service.memcached.unwrap()).unwrap();
    let log_in = |stream: &mut TcpStream, password: &str| {
        let said = format!("set any 0 0 {}\r\ndefault {password}\r\n", password.len() + 8);
        stream.write_all(said.as_bytes()).unwrap();
    };
    let reply = |stream: &TcpStream| {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line
    };
    let mut guesses = connect();
    for _ in 0..7 {
        log_in(&mut guesses, "wrong");
        assert_eq!(reply(&guesses), "CLIENT_ERROR authentication failure\r\n");
    }
    let mut many: Vec<_> = (0..MORE).map(|_| connect()).collect();
    many.iter_mut().for_each(|stream| log_in(stream, "wrong"));
    are_put_off(&service, 7 + MORE);
    drop(many);
    let mut right = connect();
    log_in(&mut right, "right");
    assert_eq!(reply(&right), "STORED\r\n");
    service.end();
}

/// With several I/O threads and many clients, each gets its own replies in order, in pieces or together, also large
/// ones.
#[test]
fn several_threads_read_and_write() {
    let service = Service::start(&["--far", "64MiB", "--local", "128MiB", "--io-threads", "4"]);
    let mut beside = service.client();
    let mut clients: Vec<_> = (0..100).map(|_| service.client()).collect();
    for round in 0..5 {
        // While the server sleeps, all clients send.
        beside.send(&[b"DEBUG", b"SLEEP", b"0.2"]);
        for (number, client) in clients.iter_mut().enumerate() {
            let (key, value) =
                (format!("key:{number}"), format!("{number}.{round};").repeat(1 + number * round * 20));
            let pipeline: Vec<u8> = [
                request(&[b"SET", key.as_bytes(), value.as_bytes()]),
                request(&[b"GET", key.as_bytes()]).repeat(3),
                request(&[b"INCR", b"count"]),
            ]
            .concat();
            let (first, rest) = pipeline.split_at(pipeline.len() - 7);
            client.stream.write_all(first).unwrap();
            client.stream.write_all(rest).unwrap();
        }
        assert_eq!(beside.reply(), Some(Reply::ok()));
        for (number, client) in clients.iter_mut().enumerate() {
            let value = format!("{number}.{round};").repeat(1 + number * round * 20);
            assert_eq!(client.reply(), Some(Reply::ok()));
            for _ in 0..3 {
                assert!(client.reply() == Some(Reply::bulk(&value)), "client {number}, round {round}");
            }
            assert!(matches!(client.reply(), Some(Reply::Integer(_))));
        }
    }
    assert_eq!(beside.says("GET count"), Reply::bulk("500"));
    let info = beside.says("INFO stats").text();
    let count = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse::<usize>().unwrap()
    };
    assert_eq!(count("io_threads:"), 4);
    assert!(
        count("io_threaded_reads_processed:") >= 400 && count("io_threaded_writes_processed:") >= 400,
        "{info}"
    );
    drop(clients);
    service.end();
}

/// Values of up to 8 MiB pass through 64 MiB of local memory, 160 MiB in all, and each comes back whole.
#[test]
fn more_data_than_local_memory() {
    let service = Service::start(&["--far", "512MiB", "--local", "64MiB"]);
    let mut client = service.client();
    let value = |number: usize| {
        let len = if number.is_multiple_of(50) { (4 << 20) + number } else { 10_000 + number };
        format!("{number};").into_bytes().into_iter().cycle().take(len).collect::<Vec<u8>>()
    };
    for number in 0..1_200_usize {
        assert_eq!(client.asks(&[b"SET", format!("key:{number}").as_bytes(), &value(number)]), Reply::ok());
    }
    for number in (0..1_200_usize).rev() {
        let found = client.asks(&[b"GET", format!("key:{number}").as_bytes()]);
        assert!(
            found == Reply::Bulk(value(number)),
            "key:{number}: {}",
            &found.text()[..40.min(found.text().len())]
        );
    }
    let info = client.says("INFO").text();
    let line = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse::<usize>().unwrap()
    };
    assert!(line("local_used:") <= (64 << 20) * 102 / 100, "{info}");
    assert!(line("far_used:") > 50 << 20 && line("values_fetched:") > 500, "{info}");
    // All keys in their order.
    let (mut cursor, mut keys) = ("0".to_owned(), Vec::new());
    loop {
        let Reply::Array(said) = client.says(&format!("SCAN {cursor} COUNT 100")) else { panic!("an array") };
        let [next, Reply::Array(some)] = &said[..] else { panic!("a cursor and keys") };
        keys.extend(some.iter().map(Reply::text));
        cursor = next.text();
        if cursor == "0" {
            break;
        }
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 1_200);
    service.end();
}
