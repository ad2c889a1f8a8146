//! Tests of `farmem kv` as a process, with a rack of processes.

use crate::process::{Dir, Running, eventually, farmem, run, signal};
use crate::rack::Description;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

/// Local memory of the server, in bytes.
const LOCAL: usize = 64 << 20;

/// A killed server leaves its far memory, and the next server of its directory takes it over. After any
/// number of starts, the rack has room and the data are complete.
#[test]
fn a_restart_takes_the_far_memory_of_the_one_before() {
    let description = Description::new("kv-restart", "udp").with_nodes(4);
    let mut up = description.up();
    let (file, dir) = (description.file(), Dir::new("kv-restart-data"));
    let path = dir.path().to_str().unwrap().to_owned();
    for round in 0..5_usize {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (port_text, local) = (port.to_string(), LOCAL.to_string());
        let words =
            ["kv", "--rack", &file, "--port", &port_text, "--local", &local, "--dir", &path, "--appendonly"];
        let mut server = Running::start(farmem(&words));
        let mut stream = None;
        eventually("the server listens", || {
            stream = TcpStream::connect(("127.0.0.1", port)).ok();
            stream.is_some()
        });
        let mut client = Client(BufReader::new(stream.unwrap()));
        if round == 0 {
            for number in 0..500 {
                client.sends(&["SET", &format!("key:{number}"), &"v".repeat(100_000)]);
                assert_eq!(client.line(), "+OK");
            }
        }
        client.sends(&["STRLEN", &format!("key:{}", 31 * round)]);
        assert_eq!(client.line(), ":100000");
        client.sends(&["DBSIZE"]);
        assert_eq!(client.line(), ":500", "round {round}");
        if round % 2 == 0 {
            server.kill();
        } else {
            signal(server.pid(), "TERM");
            assert_eq!(server.ended().code, Some(0));
        }
    }
    assert!(up.is_whole());
    up.stop();
}

/// Returns the largest and the current resident memory of the process, in bytes.
fn resident(pid: u32) -> [usize; 2] {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    ["VmHWM:", "RssAnon:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    })
}

/// The server's limit covers all resident memory at every moment: index, tail, read cache, used collections,
/// buffers of clients and the append log. The server receives several times as many bytes, as strings and as
/// hashes. Its peak is at most 2 % over the limit, and its own count equals the system's.
#[test]
fn resident_memory_stays_within_the_limit() {
    const KEYS: usize = 150_000;
    const MOST: usize = LOCAL + LOCAL / 50;
    let description = Description::new("kv-resident", "udp").with_nodes(16);
    let mut up = description.up();
    let (file, dir) = (description.file(), Dir::new("kv-resident-data"));
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (port_text, local) = (port.to_string(), LOCAL.to_string());
    let path = dir.path().to_str().unwrap();
    let words = ["kv", "--rack", &file, "--port", &port_text, "--local", &local];
    let more = ["--dir", path, "--appendonly", "--appendfsync", "no"];
    let mut server = Running::start(farmem(&[&words[..], &more].concat()));
    let connect = || TcpStream::connect(("127.0.0.1", port)).map(|stream| Client(BufReader::new(stream)));
    let mut client = None;
    eventually("the server listens", || {
        client = connect().ok();
        client.is_some()
    });
    let mut client = client.unwrap();
    let pid = server.pid();
    let mut peaks = Vec::new();
    let mut ends = |phase: &str, client: &mut Client| {
        let [most, own] = resident(pid);
        let info = client.info("memory");
        let used = info["local_used"];
        peaks
            .push(format!("{phase}: {:.4} of the limit, says {used}, has {own}", most as f64 / LOCAL as f64));
        eprintln!("{}", peaks.last().unwrap());
        assert!(most <= MOST, "{most} bytes were resident, {LOCAL} may be: {peaks:#?}");
        assert!(used <= MOST, "{used}: {peaks:#?}");
        assert_eq!(info["local_full"], 0, "{peaks:#?}");
    };

    let value = "v".repeat(1_000);
    client.pipelined(KEYS, "+OK", |number| vec!["SET".into(), format!("key:{number}"), value.clone()]);
    assert!(client.info("memory")["far_used"] > LOCAL, "most of it is far");
    ends("strings", &mut client);

    client.pipelined(20_000, "$1000", |number| vec!["GET".into(), format!("key:{}", number * 7919 % KEYS)]);
    // READs are in flight while commands execute, so that few commands wait.
    let far = client.info("farmem");
    assert!(far["far_waited"] < far["far_reads"] / 2 && far["ahead_used"] > 10_000, "{far:?}");
    // With several clients, the server issues READs for some clients one turn ahead, while commands of others
    // still wait for execution.
    let asks = |first: usize| {
        let key = |number: usize| format!("key:{}", (first + number * 7919) % KEYS);
        connect().unwrap().pipelined(5_000, "$1000", |number| vec!["GET".into(), key(number)]);
    };
    std::thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || asks(31 * number));
        }
    });
    let far = client.info("farmem");
    assert!(far["ahead_early"] > 1_000 && far["ahead_early"] <= far["ahead_wanted"], "{far:?}");
    ends("far strings", &mut client);

    client.pipelined(5_000, ":10", |number| {
        let fields = (0..10).flat_map(|field| [format!("field:{field}"), "f".repeat(50)]);
        [String::from("HSET"), format!("hash:{number}")].into_iter().chain(fields).collect()
    });
    ends("hashes", &mut client);

    signal(server.pid(), "TERM");
    assert_eq!(server.ended().code, Some(0));
    assert!(up.is_whole());
    up.stop();
}

/// Keys with a time to live take two entries of the index each, and give all of it back: when they expire, when clients delete them, and
/// when their database is flushed. The limit holds meanwhile, and writes have room again.
#[test]
fn memory_of_keys_that_expire_comes_back() {
    const KEYS: usize = 250_000;
    const MOST: usize = LOCAL + LOCAL / 50;
    let description = Description::new("kv-expire", "udp").with_nodes(16);
    let mut up = description.up();
    let file = description.file();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (port_text, local) = (port.to_string(), LOCAL.to_string());
    let mut server =
        Running::start(farmem(&["kv", "--rack", &file, "--port", &port_text, "--local", &local]));
    let mut client = None;
    eventually("the server listens", || {
        client = TcpStream::connect(("127.0.0.1", port)).ok().map(|stream| Client(BufReader::new(stream)));
        client.is_some()
    });
    let (mut client, pid) = (client.unwrap(), server.pid());
    let first = client.info("memory");
    let key = |number: usize| format!("key:{number}");
    let ends = |phase: &str, client: &mut Client| {
        eventually("all keys go, and their memory", || {
            let info = client.info("memory");
            info["local_index"] < 64 << 10 && info["local_other"] < first["local_other"] + LOCAL / 10
        });
        let (info, [most, own]) = (client.info("memory"), resident(pid));
        eprintln!("{phase}: {most} bytes at most, {own} own, {info:?}");
        client.sends(&["DBSIZE"]);
        assert_eq!(client.line(), ":0");
        client.sends(&["SET", "a", "1"]);
        assert_eq!(client.line(), "+OK", "{phase}");
        client.sends(&["DEL", "a"]);
        assert_eq!(client.line(), ":1");
        assert!(most <= MOST, "{phase}: {most} bytes were resident, {LOCAL} may be");
    };
    let value = "v".repeat(100);
    client.pipelined(KEYS, "+OK", |number| {
        vec!["SET".into(), key(number), value.clone(), "PX".into(), "20000".into()]
    });
    ends("expired", &mut client);

    client.pipelined(KEYS, "+OK", |number| vec!["SET".into(), key(number), value.clone()]);
    client.pipelined(KEYS, ":1", |number| vec!["EXPIRE".into(), key(number), "10000".into()]);
    let index = client.info("memory")["local_index"];
    assert!((48 * KEYS..70 * KEYS).contains(&index), "{index}");
    client.pipelined(KEYS, ":1", |number| vec!["DEL".into(), key(number)]);
    ends("deleted", &mut client);

    client.pipelined(KEYS, "+OK", |number| {
        vec!["SET".into(), key(number), value.clone(), "PX".into(), "20000".into()]
    });
    client.sends(&["FLUSHALL"]);
    assert_eq!(client.line(), "+OK");
    let turns = client.info("stats")["eventloop_cycles"];
    ends("flushed", &mut client);
    assert!(client.info("stats")["eventloop_cycles"] - turns > KEYS / 1024, "a turn frees 1,024 keys");

    signal(server.pid(), "TERM");
    assert_eq!(server.ended().code, Some(0));
    assert!(up.is_whole());
    up.stop();
}

/// A memory node stands still, and later dies. A command waits for the node once; after that its keys answer `FARMEMORY` at once, and all
/// others are served, while new data go elsewhere. The operator reads of it on standard error, and counters have it.
#[test]
fn a_silent_or_dead_node_is_reported_and_the_rest_is_served() {
    const KEYS: usize = 40_000;
    const STEP: usize = 400;
    let description = Description::new("kv-silent", "udp").with_nodes(16);
    let up = description.up();
    let file = description.file();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (port_text, local) = (port.to_string(), LOCAL.to_string());
    let mut server =
        Running::start(farmem(&["kv", "--rack", &file, "--port", &port_text, "--local", &local]));
    let mut client = None;
    eventually("the server listens", || {
        client = TcpStream::connect(("127.0.0.1", port)).ok().map(|stream| Client(BufReader::new(stream)));
        client.is_some()
    });
    let mut client = client.unwrap();
    let value = "v".repeat(2_000);
    client.pipelined(KEYS, "+OK", |number| vec!["SET".into(), format!("key:{number}"), value.clone()]);
    let far = client.info("farmem");
    assert_eq!((far["far_errors"], far["far_silent_bytes"], far["far_lost_bytes"]), (0, 0, 0));
    let nodes: Vec<u32> =
        up.roles().into_iter().filter(|(role, _)| role.starts_with("node")).map(|(_, pid)| pid).collect();
    // Each key is read once: the server caches what it reads again.
    let mut first = 0;
    let mut reads = |client: &mut Client| {
        let (mut whole, mut refused) = (0, 0);
        first += 1;
        for number in (first..KEYS).step_by(STEP) {
            client.sends(&["GET", &format!("key:{number}")]);
            let line = client.line();
            if line.starts_with("-FARMEMORY ") {
                refused += 1;
            } else {
                assert_eq!(line, "$2000");
                client.rest(2_000);
                whole += 1;
            }
        }
        (whole, refused)
    };
    let silent = nodes.iter().find(|&&node| {
        signal(node, "STOP");
        let is_used = reads(&mut client).1 > 0;
        if !is_used {
            signal(node, "CONT");
        }
        is_used
    });
    let &silent = silent.expect("a node has some of the keys");
    let errors = client.info("farmem")["far_errors"];
    assert!(client.info("farmem")["far_silent_bytes"] > 0);
    let (whole, refused) = reads(&mut client);
    assert!(whole > 0 && refused > 0, "{whole} {refused}");
    // Probes may fail meanwhile, but no command asks the node again.
    assert!(client.info("farmem")["far_errors"] - errors < refused, "each read waits for the node");
    client.pipelined(500, "+OK", |number| vec!["SET".into(), format!("new:{number}"), value.clone()]);

    signal(silent, "CONT");
    eventually("the node answers again", || client.info("farmem")["far_silent_bytes"] == 0);
    assert_eq!(reads(&mut client).1, 0);

    signal(silent, "KILL");
    eventually("the loss is noticed without a client", || client.info("farmem")["far_lost_bytes"] > 0);
    let (whole, refused) = reads(&mut client);
    assert!(whole > 0 && refused > 0, "{whole} {refused}");
    signal(server.pid(), "TERM");
    let said = server.ended().stderr;
    for line in
        ["far memory do not answer: no answer from", "of far memory answer again", "far memory are lost: "]
    {
        assert!(said.contains(line), "{line}: {said}");
    }
}

/// A server with 40,000 keys starts again with too little local memory: it is refused with a size. With that
/// size it starts, has all keys, and takes new data.
#[test]
fn a_refused_local_memory_names_a_size_that_suffices() {
    const KEYS: usize = 40_000;
    let description = Description::new("kv-little", "udp").with_nodes(16);
    let up = description.up();
    let (file, dir) = (description.file(), Dir::new("kv-little-data"));
    let path = dir.path().to_str().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let port_text = port.to_string();
    let words = |local: &str| {
        let words = ["kv", "--rack", &file, "--port", &port_text, "--dir", path, "--appendonly", "--local"];
        words.iter().copied().chain([local]).map(str::to_owned).collect::<Vec<String>>()
    };
    let start = |local: &str| {
        let server = Running::start(farmem(&words(local).iter().map(String::as_str).collect::<Vec<_>>()));
        let mut client = None;
        eventually("the server listens", || {
            client =
                TcpStream::connect(("127.0.0.1", port)).ok().map(|stream| Client(BufReader::new(stream)));
            client.is_some()
        });
        (server, client.unwrap())
    };
    let (mut server, mut client) = start("64MiB");
    let value = "v".repeat(1_000);
    client.pipelined(KEYS, "+OK", |number| vec!["SET".into(), format!("key:{number}"), value.clone()]);
    signal(server.pid(), "TERM");
    assert_eq!(server.ended().code, Some(0));
    let words = words("16MiB");
    let refused = run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    refused.refuses(&["--local 16777216 is too little", "the index of 40000 keys"]);
    let size = refused.stderr.split("give it ").nth(1).and_then(|text| text.split(" at least").next());
    let size = size.expect("it names a size");
    let (mut server, mut client) = start(size);
    assert_eq!(client.info("memory")["local_full"], 0, "{size}");
    client.pipelined(KEYS, "$1000", |number| vec!["GET".into(), format!("key:{number}")]);
    client.pipelined(2_000, "+OK", |number| vec!["SET".into(), format!("new:{number}"), value.clone()]);
    signal(server.pid(), "TERM");
    assert_eq!(server.ended().code, Some(0));
    up.stop();
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn sends(&mut self, words: &[&str]) {
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request += &format!("${}\r\n{word}\r\n", word.len()));
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Sends many requests, some before earlier replies have arrived. Each reply must begin with `expected`.
    fn pipelined(&mut self, count: usize, expected: &str, request: impl Fn(usize) -> Vec<String>) {
        const TOGETHER: usize = 50;
        for first in (0..count).step_by(TOGETHER) {
            let some = first..(first + TOGETHER).min(count);
            for number in some.clone() {
                self.sends(&request(number).iter().map(String::as_str).collect::<Vec<_>>());
            }
            for _ in some {
                let line = self.line();
                assert!(line.starts_with(expected), "{line}");
                if let Some(len) = line.strip_prefix('$') {
                    self.rest(len.parse().unwrap());
                }
            }
        }
    }

    fn rest(&mut self, len: usize) {
        self.0.read_exact(&mut vec![0; len + 2]).unwrap();
    }

    /// Returns the numbers of a section of `INFO`.
    fn info(&mut self, section: &str) -> BTreeMap<String, usize> {
        self.sends(&["INFO", section]);
        let len: usize = self.line()[1..].parse().unwrap();
        let mut text = vec![0; len + 2];
        self.0.read_exact(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        pairs.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
    }
}
