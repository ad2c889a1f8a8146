//! `farmem kv` as a process beside a rack of processes.

use crate::process::{Dir, Running, eventually, farmem, signal};
use crate::rack::Description;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};

/// Bytes of local memory that the server is given.
const LOCAL: usize = 64 << 20;

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
}
