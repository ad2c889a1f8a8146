//! The service over TCP: requests and replies to the byte, errors, many clients, and Redis's own clients
//! where installed.

use farmem::Rack;
use farmem_orderedkv::{Access, KeyKind, Server, Stop, Store};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

/// A service on a rack of its own.
struct Service {
    address: SocketAddr,
    stop: Stop,
    thread: Option<JoinHandle<u64>>,
}

impl Service {
    fn start(kind: KeyKind) -> Self {
        let server = Server::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let (address, stop) = (server.address().unwrap(), server.stopper());
        let (ready, is_ready) = channel();
        let thread = thread::spawn(move || {
            let mut client = Rack::embedded_with(2, 256 << 20).unwrap().client("service").unwrap();
            let mut store = Store::create(&mut client, "store", kind, Access::Write).unwrap();
            ready.send(()).unwrap();
            let served = server.serve(&mut store, &mut client, &mut |said| panic!("{said}")).unwrap();
            store.destroy(&mut client).unwrap();
            assert_eq!(client.overview().unwrap().vmas.len(), 0, "nothing stays behind");
            served
        });
        is_ready.recv().unwrap();
        Self { address, stop, thread: Some(thread) }
    }

    /// Returns the service's whole output for these bytes, until the connection ends.
    fn says(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        // If the service ends the connection first, the rest has no reader.
        let _ended_already = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
        let mut said = Vec::new();
        let _reset = stream.read_to_end(&mut said);
        said
    }

    /// Stops the service. Returns the number of requests served.
    fn end(mut self) -> u64 {
        self.stop.stop();
        self.thread.take().unwrap().join().unwrap()
    }
}

#[test]
fn requests_and_replies() {
    let service = Service::start(KeyKind::Text);
    let says = |request: &str| String::from_utf8(service.says(request.as_bytes())).unwrap();
    assert_eq!(
        says("PING\r\n*1\r\n$4\r\nping\r\n*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n"),
        "+PONG\r\n+PONG\r\n$2\r\nhi\r\n"
    );
    assert_eq!(says("*3\r\n$3\r\nSET\r\n$5\r\napple\r\n$4\r\na\r\nb\r\n"), "+OK\r\n", "any bytes");
    assert_eq!(
        says("get apple\r\nGET pear\r\nexists apple pear apple\r\nstrlen apple\r\n"),
        "$4\r\na\r\nb\r\n$-1\r\n:2\r\n:4\r\n"
    );
    assert_eq!(
        says("MSET pear 2 plum 3 fig 4\r\nMGET plum x fig\r\n"),
        "+OK\r\n*3\r\n$1\r\n3\r\n$-1\r\n$1\r\n4\r\n"
    );
    assert_eq!(says("KEYRANGE - +\r\n"), "*4\r\n$5\r\napple\r\n$3\r\nfig\r\n$4\r\npear\r\n$4\r\nplum\r\n");
    assert_eq!(says("RANGE b pear limit 2\r\n"), "*4\r\n$3\r\nfig\r\n$1\r\n4\r\n$4\r\npear\r\n$1\r\n2\r\n");
    assert_eq!(says("RANGE plum fig\r\nRANGE + -\r\n"), "*0\r\n*0\r\n", "l > r has no keys");
    for (range, keys) in [
        ("(apple +", &["fig", "pear", "plum"][..]),
        ("(apple (plum", &["fig", "pear"]),
        ("(apple (plum LIMIT 1", &["fig"]),
        ("(b (pea", &["fig"]),
        ("(fig (fig", &[]),
        ("(fig fig", &[]),
        ("fig (fig", &[]),
        ("(plum +", &[]),
        ("- (apple", &[]),
        ("- ([", &[]),
    ] {
        let replies: String = keys.iter().map(|key| format!("${}\r\n{key}\r\n", key.len())).collect();
        let expected = format!("*{}\r\n{replies}", keys.len());
        assert_eq!(says(&format!("KEYRANGE {range}\r\n")), expected, "{range}");
    }
    assert_eq!(
        says("SET - 1\r\nRANGE [- [-\r\nDEL - fig nothing\r\n"),
        "+OK\r\n*2\r\n$1\r\n-\r\n$1\r\n1\r\n:2\r\n"
    );
    assert!(says("INFO\r\n").contains("keys:text of up to 512 bytes\r\n"));
    assert_eq!(says("COMMAND DOCS\r\nQUIT\r\nPING\r\n"), "*0\r\n+OK\r\n", "nothing is read behind QUIT");
    for (request, words) in [
        ("FLUSHALL\r\n", "-ERR unknown command \"FLUSHALL\"; there are GET SET"),
        ("GET\r\n", "-ERR wrong arguments; GET key\r\n"),
        ("SET a b EX 10\r\n", "-ERR wrong arguments; SET key value"),
        ("MSET a b c\r\n", "-ERR wrong arguments; MSET"),
        ("RANGE - + LIMIT 0\r\n", "-ERR wrong arguments; RANGE first last [LIMIT n] with n of 1 to 10000"),
    ] {
        let said = says(request);
        assert!(said.starts_with(words) && said.ends_with("\r\n"), "{request}: {said}");
    }
    let long = format!("*2\r\n$3\r\nGET\r\n$600\r\n{}\r\nPING\r\n", "k".repeat(600));
    assert_eq!(says(&long), "-ERR a key of 600 bytes: keys have at most 512\r\n+PONG\r\n", "and it goes on");
    assert_eq!(service.end(), 36);
}

/// `HELLO` selects the protocol version of its own reply and of all later ones of its connection.
#[test]
fn a_client_selects_the_protocol() {
    let service = Service::start(KeyKind::Text);
    let says = |request: &str| String::from_utf8(service.says(request.as_bytes())).unwrap();
    let reply = |head: &str, proto: u8, id: u64| {
        let version = env!("CARGO_PKG_VERSION");
        let texts = |pairs: &[&str]| -> String {
            pairs.iter().map(|text| format!("${}\r\n{text}\r\n", text.len())).collect()
        };
        let (first, last) = (
            texts(&["server", "farmem", "version", version]),
            texts(&["mode", "standalone", "role", "master", "modules"]),
        );
        let number = |name: &str, n: u64| format!("{}:{n}\r\n", texts(&[name]));
        format!("{head}{first}{}{}{last}*0\r\n", number("proto", proto.into()), number("id", id))
    };
    assert_eq!(says("GET a\r\nHELLO 3\r\nGET a\r\n"), format!("$-1\r\n{}_\r\n", reply("%7\r\n", 3, 1)));
    assert_eq!(
        says("HELLO\r\nGET a\r\n"),
        format!("{}$-1\r\n", reply("*14\r\n", 2, 2)),
        "each connection begins anew"
    );
    assert_eq!(
        says("hello 3 setname x\r\nHELLO 2\r\nGET a\r\n"),
        format!("{}{}$-1\r\n", reply("%7\r\n", 3, 3), reply("*14\r\n", 2, 3))
    );
    for (request, words) in [
        ("HELLO 4\r\n", "-NOPROTO "),
        ("HELLO x\r\n", "-NOPROTO "),
        ("HELLO 3 AUTH default secret\r\n", "-ERR this service has no users and passwords"),
        ("HELLO 3 SETNAME\r\n", "-ERR wrong arguments; HELLO [2|3 [SETNAME name]]"),
    ] {
        let said = says(&format!("{request}GET a\r\n"));
        assert!(said.starts_with(words) && said.ends_with("\r\n$-1\r\n"), "{request}: {said}");
    }
    service.end();
}

/// Pages of one key end: each begins behind the last key of the one before, also of numbers in other forms.
#[test]
fn pages_of_one_advance() {
    let service = Service::start(KeyKind::I64);
    let says = |request: &str| String::from_utf8(service.says(request.as_bytes())).unwrap();
    assert_eq!(says("MSET -5 a 7 b 70 c\r\n"), "+OK\r\n");
    let (mut from, mut keys) = ("-".to_owned(), Vec::new());
    while keys.len() < 9 {
        let page = says(&format!("KEYRANGE {from} + LIMIT 1\r\n"));
        let Some(key) = page.lines().nth(2) else { break };
        keys.push(key.to_owned());
        from = format!("({key}");
    }
    assert_eq!(keys, ["-5", "7", "70"]);
    assert_eq!(says("KEYRANGE (+007 +\r\n"), "*1\r\n$2\r\n70\r\n");
    assert_eq!(says("KEYRANGE - (+070\r\n"), "*2\r\n$2\r\n-5\r\n$1\r\n7\r\n");
    assert!(says("KEYRANGE (x +\r\n").starts_with("-ERR \"x\" is no key of this store"));
    service.end();
}

/// Invalid bytes end their connection with an error reply, however they arrive; other connections continue.
#[test]
fn hostile_bytes_end_their_connection() {
    let service = Service::start(KeyKind::U64);
    let mut beside = TcpStream::connect(service.address).unwrap();
    let nested = "*1\r\n".repeat(200_000);
    for (bytes, words) in [
        ("*x\r\n", "invalid multibulk length"),
        ("*+1\r\n", "invalid multibulk length"),
        ("*10000000000\r\n", "invalid multibulk length"),
        ("*00000000001\r\n", "invalid multibulk length"),
        ("*999999999\r\n", "at most 1024 words"),
        ("*1\r\n$99999999\r\n", "at most 66048 bytes"),
        ("*1\r\n:5\r\n", "expected '$', got ':'"),
        (&nested, "expected '$', got '*'"),
        ("*1\r\n$1\r\nabc\r\n", "longer than it says"),
        ("*1\rx$1\r\n", "invalid multibulk length"),
        ("get 'apple\r\n", "unbalanced quotes"),
        (&"x".repeat(5_000), "too big inline request"),
        (&"a ".repeat(1_500), "at most 1024 words"),
    ] {
        let bytes = if bytes.starts_with("a ") { format!("{bytes}\n") } else { bytes.to_owned() };
        let said = String::from_utf8(service.says(bytes.as_bytes())).unwrap();
        assert!(said.starts_with("-ERR Protocol error: ") && said.contains(words), "{words}: {said}");
    }
    let many = format!("*20\r\n{}", format!("$65000\r\n{}\r\n", "v".repeat(65_000)).repeat(20));
    assert!(String::from_utf8_lossy(&service.says(many.as_bytes())).contains("at most 1048576 bytes"));
    assert_eq!(service.says(b"*2\r\n$3\r\nGET\r\n"), b"", "half a request is none");
    // One byte at a time.
    for byte in b"*2\r\n$3\r\nGET\r\n$2\r\n17\r\nSET 17 x\r\n" {
        beside.write_all(&[*byte]).unwrap();
    }
    let mut said = [0; 10];
    beside.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"$-1\r\n+OK\r\n");
    assert!(
        String::from_utf8(service.says(b"GET pear\r\n"))
            .unwrap()
            .contains("\"pear\" is no key of this store")
    );
    service.end();
}

/// Sixteen clients write and read their own keys with pipelined requests.
#[test]
fn clients_beside_each_other() {
    let service = Service::start(KeyKind::Text);
    let address = service.address;
    let clients: Vec<_> = (0..16)
        .map(|client| {
            thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                let (mut requests, mut expected) = (Vec::new(), Vec::new());
                for n in 0..60 {
                    requests.extend(
                        format!("SET common/{client:02}/{n:03} {n}\r\nGET common/{client:02}/{n:03}\r\n")
                            .bytes(),
                    );
                    let text = n.to_string();
                    expected.extend(format!("+OK\r\n${}\r\n{text}\r\n", text.len()).bytes());
                }
                stream.write_all(&requests).unwrap();
                let mut said = vec![0; expected.len()];
                stream.read_exact(&mut said).unwrap();
                assert_eq!(String::from_utf8(said).unwrap(), String::from_utf8(expected).unwrap());
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    let all = String::from_utf8(service.says(b"KEYRANGE common/07/ common/08/\r\n")).unwrap();
    assert!(
        all.starts_with("*60\r\n$13\r\ncommon/07/000\r\n") && all.ends_with("common/07/059\r\n"),
        "{all}"
    );
    assert_eq!(service.end(), 16 * 120 + 1);
}

/// A busy client does not keep the service from ending: its requests so far are answered, then its connection
/// ends.
#[test]
fn a_busy_client_does_not_keep_it_from_ending() {
    let service = Service::start(KeyKind::Text);
    let mut stream = TcpStream::connect(service.address).unwrap();
    let (busy, is_busy) = channel();
    let client = thread::spawn(move || {
        let mut said = [0; 7];
        let mut answered = 0_u64;
        while stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut said).is_ok() {
            assert_eq!(&said, b"+PONG\r\n");
            answered += 1;
            if answered == 3 {
                busy.send(()).unwrap();
            }
        }
        answered
    });
    is_busy.recv().unwrap();
    let served = service.end();
    assert_eq!(client.join().unwrap(), served, "each request that was read was answered");
}

/// Redis's own clients, where installed.
#[test]
fn redis_clients_are_served() {
    if Command::new("redis-cli").arg("--version").output().is_err() {
        eprintln!("skipped: redis-cli absent (scripts/setup installs redis-tools)");
        return;
    }
    let service = Service::start(KeyKind::Text);
    let port = service.address.port().to_string();
    let cli = |args: &[&str]| {
        let output = Command::new("redis-cli").args(["-p", &port]).args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(cli(&["set", "farmem:words:zebra", "striped"]), "OK\n");
    assert_eq!(cli(&["set", "farmem:words:ant", "small"]), "OK\n");
    assert_eq!(cli(&["get", "farmem:words:zebra"]), "striped\n");
    assert_eq!(
        cli(&["range", "farmem:words:", "+", "limit", "10"]),
        "farmem:words:ant\nsmall\nfarmem:words:zebra\nstriped\n"
    );
    assert_eq!(cli(&["del", "farmem:words:ant"]), "1\n");
    assert_eq!(cli(&["exists", "farmem:words:ant"]), "0\n");
    // 1,000 requests of each kind on random keys of sixteen bytes, eight clients, four requests pipelined.
    let output = Command::new("redis-benchmark")
        .args([
            "-p",
            &port,
            "-t",
            "set,get,mset",
            "-n",
            "1000",
            "-c",
            "8",
            "-P",
            "4",
            "-r",
            "500",
            "-d",
            "900",
            "-q",
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).replace('\r', "\n");
    for kind in ["SET: ", "GET: ", "MSET (10 keys): "] {
        assert!(
            said.lines().any(|line| line.starts_with(kind) && line.contains("requests per second")),
            "{said}"
        );
    }
    assert!(!said.contains("ERR wrong") && output.status.success(), "{said}");
    let keys = cli(&["keyrange", "key:", "key;"]);
    let keys: Vec<&str> = keys.lines().collect();
    assert!(keys.len() > 300 && keys.len() <= 500 && keys.is_sorted(), "{} keys", keys.len());
    service.end();
}

/// redis-py, as its users have it, with both protocol versions.
#[test]
fn redis_py() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = here.join("../../.venv/bin/python");
    let has = Command::new(&python).args(["-c", "import redis"]).status();
    if !has.is_ok_and(|status| status.success()) {
        eprintln!("skipped: redis-py absent in .venv (scripts/setup installs it)");
        return;
    }
    let service = Service::start(KeyKind::Text);
    let port = service.address.port().to_string();
    let output = Command::new(python).arg(here.join("tests/redis_py.py")).arg(port).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.trim(), "all as expected", "{}", String::from_utf8_lossy(&output.stderr));
    service.end();
}
