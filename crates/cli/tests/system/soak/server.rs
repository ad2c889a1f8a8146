//! The key-value server of a round: large pipelines, keys that expire, and FLUSHALL, again and again.

use super::Soak;
use crate::process::{Running, eventually};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

/// Number of cycles in a round.
pub(super) const CYCLES: u64 = 3;
/// Maximum time without a reply to the PING of a second client, in milliseconds. Processes of all roles share
/// the CPUs of the test.
pub(super) const STALL_MS_MAX: u64 = 2_000;
/// Number of keys of a cycle. The second half of them expires.
const KEYS: usize = 24_000;
/// Maximum number of bytes that an empty server has in use.
const EMPTY_MAX: u64 = 8 << 20;

/// A connection to the server.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(port: u16) -> Self {
        let mut stream = None;
        eventually("the server listens", || {
            stream = TcpStream::connect(("127.0.0.1", port)).ok();
            stream.is_some()
        });
        Self(BufReader::new(stream.unwrap()))
    }

    /// Returns the replies to requests that all leave before the first reply is read.
    fn pipeline(&mut self, requests: &[Vec<&str>]) -> Vec<Vec<u8>> {
        let mut bytes = Vec::new();
        for words in requests {
            bytes.extend(format!("*{}\r\n", words.len()).bytes());
            words.iter().for_each(|word| bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes()));
        }
        let mut to = self.0.get_ref().try_clone().unwrap();
        let writer = thread::spawn(move || to.write_all(&bytes).unwrap());
        let replies = requests.iter().map(|_| self.reply()).collect();
        writer.join().unwrap();
        replies
    }

    fn reply(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).unwrap();
        line.truncate(line.len() - 2);
        let Some(len) = line.strip_prefix(b"$") else { return line };
        let len: usize = std::str::from_utf8(len).unwrap().parse().expect("the value is there");
        let mut value = vec![0; len + 2];
        self.0.read_exact(&mut value).unwrap();
        value.truncate(len);
        value
    }

    fn ask(&mut self, words: &[&str]) -> Vec<u8> {
        self.pipeline(&[words.to_vec()]).remove(0)
    }

    /// Returns the bytes that the server uses, as it reports them.
    fn memory(&mut self) -> u64 {
        let text = String::from_utf8(self.ask(&["INFO", "memory"])).unwrap();
        let used = text.lines().find_map(|line| line.strip_prefix("used_memory:"));
        used.expect("the server reports it").parse().expect("a number")
    }
}

impl Soak<'_> {
    /// Runs a Redis server without a disk, and kills it. Its far memory is freed with it. Each cycle leaves its
    /// memory as the first one did.
    pub(super) fn a_server_that_is_killed(&mut self) {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let words = ["kv", "--rack", &self.file, "--port", &port.to_string(), "--local", "67108864"];
        let mut server = Running::start(self.farmem(&words));
        let mut client = Client::new(port);
        let ended = AtomicBool::new(false);
        let stall = thread::scope(|scope| {
            let stalls = scope.spawn(|| longest_stall(port, &ended));
            for _ in 0..CYCLES {
                cycle(&mut client);
                self.counts.count("cycles of a server");
            }
            ended.store(true, Ordering::Relaxed);
            stalls.join().unwrap()
        });
        self.counts.largest("longest stall of a server in ms", stall);
        let value = "v".repeat(40_000);
        assert_eq!(client.ask(&["SET", "key", &value]), b"+OK");
        assert_eq!(client.ask(&["STRLEN", "key"]), b":40000");
        server.kill();
        self.counts.count("servers killed");
    }
}

/// Returns the longest time that a PING took, in milliseconds, until `ended` is set.
fn longest_stall(port: u16, ended: &AtomicBool) -> u64 {
    let mut client = Client::new(port);
    let mut longest = 0;
    while !ended.load(Ordering::Relaxed) {
        let begun = Instant::now();
        assert_eq!(client.ask(&["PING"]), b"+PONG");
        longest = longest.max(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        thread::sleep(std::time::Duration::from_millis(5));
    }
    longest
}

/// Writes keys, half of which expire, in one pipeline; reads large values in another; and removes everything.
/// The server frees the memory of removed keys in slices, so this waits until few bytes are in use.
fn cycle(client: &mut Client) {
    let (value, large) = ("v".repeat(1_000), "w".repeat(600_000));
    let names: Vec<String> = (0..KEYS).map(|number| format!("key:{number}")).collect();
    let set = |(number, name)| match number < KEYS / 2 {
        true => vec!["SET", name, &*value],
        false => vec!["SET", name, &*value, "PX", "500"],
    };
    let requests: Vec<Vec<&str>> = names.iter().map(String::as_str).enumerate().map(set).collect();
    for reply in client.pipeline(&requests) {
        assert_eq!(reply, b"+OK");
    }
    let kept = format!(":{}", KEYS / 2);
    eventually("half of the keys expired", || client.ask(&["DBSIZE"]) == kept.as_bytes());
    assert_eq!(client.ask(&["SET", "large", &large]), b"+OK");
    let gets: Vec<Vec<&str>> = (0..60).map(|_| vec!["GET", "large"]).collect();
    for reply in client.pipeline(&gets) {
        assert!(reply == large.as_bytes(), "wrong bytes without a word");
    }
    for reply in client.pipeline(&names[..KEYS / 2].iter().map(|name| vec!["GET", name]).collect::<Vec<_>>())
    {
        assert!(reply == value.as_bytes(), "wrong bytes without a word");
    }
    assert_eq!(client.ask(&["FLUSHALL"]), b"+OK");
    assert_eq!(client.ask(&["DBSIZE"]), b":0");
    eventually("the server has freed the memory of a cycle", || client.memory() <= EMPTY_MAX);
}
