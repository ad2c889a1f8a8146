//! Helpers of the server's tests: a server in a thread, a client that speaks RESP, a redis-server.

use clap::Parser as _;
use farmem_kv::{Args, Kv, Stop};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

/// A server in a thread of its own.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    /// The address of the memcached port, if there is one.
    pub(crate) memcached: Option<SocketAddr>,
    /// The address of the TLS port, if there is one.
    pub(crate) tls: Option<SocketAddr>,
    /// The address of the memcached port over TLS, if there is one.
    pub(crate) memcached_tls: Option<SocketAddr>,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts a server with the arguments of `farmem kv`, on a port that the system chooses.
    pub(crate) fn start(words: &[&str]) -> Self {
        let words: Vec<String> =
            ["kv", "--port", "0"].iter().chain(words).map(|word| (*word).to_owned()).collect();
        let (tell, told) = channel();
        let thread = std::thread::spawn(move || {
            let kv = Kv::start(&Line::parse_from(words).args).unwrap();
            let memcached = (kv.memcached_address().unwrap(), kv.memcached_tls_address().unwrap());
            let addresses = (kv.address().unwrap(), memcached, kv.tls_address().unwrap());
            tell.send((addresses, kv.stopper())).unwrap();
            kv.serve().unwrap();
        });
        let ((address, (memcached, memcached_tls), tls), stop) = told.recv().unwrap();
        Self { address, memcached, tls, memcached_tls, stop, thread: Some(thread) }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Stops the server, and waits for its end.
    pub(crate) fn end(mut self) {
        self.stop.stop();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A reply.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Reply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Self>),
    /// Kinds of RESP3: the kind and a text, or the kind and elements.
    Other(u8, String),
    Many(u8, Vec<Self>),
}

impl Reply {
    pub(crate) fn bulk(text: &str) -> Self {
        Self::Bulk(text.as_bytes().to_vec())
    }

    pub(crate) fn count(count: usize) -> Self {
        Self::Integer(i64::try_from(count).unwrap())
    }

    pub(crate) fn ok() -> Self {
        Self::Simple("OK".into())
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Simple(text) | Self::Error(text) => text.clone(),
            other => format!("{other:?}"),
        }
    }
}

/// A client.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    have: Vec<u8>,
    at: usize,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).unwrap())
    }

    /// Connects from another address of this machine.
    pub(crate) fn connect_from(from: [u8; 4], to: SocketAddr) -> Self {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from((from, 0))).unwrap();
        connect(&socket, &to).unwrap();
        Self::over(TcpStream::from(socket))
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream, have: Vec::new(), at: 0 }
    }

    pub(crate) fn send(&mut self, args: &[&[u8]]) {
        self.stream.write_all(&request(args)).unwrap();
    }

    /// Sends a request of words without spaces, and waits for its reply.
    pub(crate) fn says(&mut self, line: &str) -> Reply {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.asks(&args)
    }

    pub(crate) fn asks(&mut self, args: &[&[u8]]) -> Reply {
        self.send(args);
        self.reply().expect("the server answers")
    }

    /// Returns the next reply; `None` if the server closes.
    pub(crate) fn reply(&mut self) -> Option<Reply> {
        let line = self.line()?;
        let (kind, rest) = (line[0], String::from_utf8(line[1..].to_vec()).unwrap());
        let number = || rest.parse::<i64>().unwrap();
        let len = || usize::try_from(number()).ok();
        Some(match kind {
            b'+' => Reply::Simple(rest),
            b'-' => Reply::Error(rest),
            b':' => Reply::Integer(number()),
            b'_' => Reply::Null,
            b'$' => match len() {
                None => Reply::Null,
                Some(len) => Reply::Bulk(self.bytes(len)?),
            },
            b'*' => match len() {
                None => Reply::Null,
                Some(len) => Reply::Array((0..len).map(|_| self.reply()).collect::<Option<_>>()?),
            },
            b'%' => Reply::Many(kind, (0..2 * len()?).map(|_| self.reply()).collect::<Option<_>>()?),
            b'~' | b'>' => Reply::Many(kind, (0..len()?).map(|_| self.reply()).collect::<Option<_>>()?),
            b'=' => {
                let bytes = self.bytes(len()?)?;
                Reply::Other(kind, String::from_utf8(bytes).unwrap())
            }
            b',' | b'#' | b'(' => Reply::Other(kind, rest),
            other => panic!("a reply begins with {:?}", char::from(other)),
        })
    }

    /// Returns whether a reply begins to arrive within some time.
    pub(crate) fn has_reply(&mut self, within: Duration) -> bool {
        if self.at < self.have.len() {
            return true;
        }
        self.stream.set_read_timeout(Some(within)).unwrap();
        let mut first = [0];
        let arrived = self.stream.peek(&mut first).is_ok();
        self.stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        arrived
    }

    fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.have[self.at..].windows(2).position(|pair| pair == b"\r\n") {
                let line = self.have[self.at..self.at + end].to_vec();
                self.at += end + 2;
                return Some(line);
            }
            self.more()?;
        }
    }

    fn bytes(&mut self, len: usize) -> Option<Vec<u8>> {
        while self.have.len() < self.at + len + 2 {
            self.more()?;
        }
        let bytes = self.have[self.at..self.at + len].to_vec();
        self.at += len + 2;
        Some(bytes)
    }

    fn more(&mut self) -> Option<()> {
        self.have.drain(..self.at);
        self.at = 0;
        let mut chunk = vec![0; 64 << 10];
        match self.stream.read(&mut chunk) {
            Ok(0) => None,
            Ok(len) => {
                self.have.extend_from_slice(&chunk[..len]);
                Some(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("no reply: {error}"),
        }
    }
}

/// Returns a request as a client sends it.
pub(crate) fn request(args: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend(format!("${}\r\n", arg.len()).bytes());
        bytes.extend_from_slice(arg);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// Returns a port that is free now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A redis-server. Where it is not installed, the start returns `None` and prints a line.
pub(crate) struct RedisServer {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl RedisServer {
    pub(crate) fn start() -> Option<Self> {
        let port = free_port();
        let child = Command::new("redis-server")
            // Redis sorts texts by their bytes with this locale.
            .env("LC_ALL", "C")
            .args([
                "--port",
                &port.to_string(),
                "--save",
                "",
                "--appendonly",
                "no",
                "--enable-debug-command",
                "yes",
            ])
            .stdout(Stdio::null())
            .spawn();
        let Ok(child) = child else {
            eprintln!("skipped: redis-server absent (scripts/setup installs it)");
            return None;
        };
        let server = Self { child, address: SocketAddr::from(([127, 0, 0, 1], port)) };
        server.wait();
        Some(server)
    }

    fn wait(&self) {
        for _ in 0..600 {
            if TcpStream::connect(self.address).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("redis-server does not listen");
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _it_may_be_gone = self.child.kill();
        let _it_may_be_gone = self.child.wait();
    }
}

/// The server as a separate process, for tests of signals and limits.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
}

impl Process {
    pub(crate) fn start(words: &[&str]) -> Self {
        Self::start_with(words, &[])
    }

    /// Starts a process with more variables in its environment.
    pub(crate) fn start_with(words: &[&str], variables: &[(&str, &str)]) -> Self {
        let port = free_port();
        let child = Command::new(env!("CARGO_BIN_EXE_farmem-kv"))
            .args(["--port", &port.to_string()])
            .args(words)
            .envs(variables.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut process = Self { child, address: SocketAddr::from(([127, 0, 0, 1], port)) };
        for _ in 0..1200 {
            if TcpStream::connect(process.address).is_ok() {
                return process;
            }
            if let Some(status) = process.child.try_wait().unwrap() {
                panic!("the server ended with {status}: {}", process.said());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the server does not listen");
    }

    /// Returns the standard error, after the process has ended.
    pub(crate) fn said(&mut self) -> String {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
