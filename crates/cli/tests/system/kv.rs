//! `farmem kv` as a process beside a rack of processes: what it takes of this machine's memory.

use crate::process::{Dir, Running, eventually, farmem, signal};
use crate::rack::Description;
use procfs_core::FromRead as _;
use procfs_core::process::Status;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

/// Bytes that the server is given, and how many times as much data there is.
const LOCAL: usize = 64 << 20;
const TIMES: usize = 2;
const VALUE_LEN: usize = 1_000;

fn resident(pid: u32) -> usize {
    let status = Status::from_file(format!("/proc/{pid}/status")).unwrap();
    usize::try_from(status.vmrss.unwrap()).unwrap() << 10
}

/// Twice as much data as the server is given, in strings and hashes, written, read and changed: what is resident of its process stays within 2 % of what it was given,
/// index, read cache and buffers of a hundred connections with it; and each value is what it was.
#[test]
fn resident_memory_stays_within_the_limit() {
    let description = Description::new("kv", "udp").with_nodes(12);
    let mut up = description.up();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (file, port_text, local) = (description.file(), port.to_string(), LOCAL.to_string());
    let mut server = Running::start(farmem(&[
        "kv", "--rack", &file, "--port", &port_text, "--local", &local, "--save", "",
    ]));
    let mut stream = None;
    eventually("the server listens", || {
        stream = TcpStream::connect(("127.0.0.1", port)).ok();
        stream.is_some()
    });
    let mut client = Client(BufReader::new(stream.unwrap()));
    let _beside: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();

    let keys = LOCAL * TIMES / VALUE_LEN;
    let value = |number: usize, round: usize| {
        let mut value = format!("{number}:{round}:");
        value.extend(std::iter::repeat_n('v', VALUE_LEN - value.len()));
        value
    };
    let (mut most, mut looks) = (0, 0);
    for round in 0..2 {
        for first in (0..keys).step_by(64) {
            let numbers = first..keys.min(first + 64);
            for number in numbers.clone() {
                if number % 8 == 0 {
                    client.sends(&["HSET", &format!("hash:{number}"), "field", &value(number, round)]);
                } else {
                    client.sends(&["SET", &format!("key:{number}"), &value(number, round)]);
                }
            }
            numbers.for_each(|number| {
                let wanted = if number % 8 > 0 { "+OK" } else { [":1", ":0"][round] };
                assert_eq!(client.line(), wanted);
            });
            (most, looks) = (most.max(resident(server.pid())), looks + 1);
        }
        // Those that were written first are far; some are asked for twice, and go to the read cache.
        for number in (0..keys / 4).chain(0..keys / 8) {
            if number % 8 == 0 {
                client.sends(&["HGET", &format!("hash:{number}"), "field"]);
            } else {
                client.sends(&["GET", &format!("key:{number}")]);
            }
            assert_eq!(client.bulk(), value(number, round));
            if number % 64 == 0 {
                (most, looks) = (most.max(resident(server.pid())), looks + 1);
            }
        }
    }
    client.sends(&["INFO"]);
    let info = client.bulk();
    let number = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.parse::<usize>().unwrap()
    };
    assert!(looks > 1_000, "{looks} looks");
    assert!(most <= LOCAL * 102 / 100, "{most} of {LOCAL} bytes were resident:\n{info}");
    assert!(most >= LOCAL / 2, "{most} of {LOCAL} bytes were resident: it uses what it is given");
    assert!(number("far_used:") >= LOCAL, "{info}");
    assert!(number("local_read_cache:") > 0 && number("local_index:") > 24 * keys, "{info}");
    signal(server.pid(), "TERM");
    assert_eq!(server.ended().code, Some(0));
    assert!(up.is_whole());
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

    fn bulk(&mut self) -> String {
        let len: usize = self.line().strip_prefix('$').expect("bytes").parse().unwrap();
        let mut bytes = vec![0; len + 2];
        self.0.read_exact(&mut bytes).unwrap();
        bytes.truncate(len);
        String::from_utf8(bytes).unwrap()
    }
}

/// A server that is killed leaves its far memory behind, and the next one of its directory takes it: however often it starts, the rack has room, and the data are there.
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
