//! Random commands here and at memcached, over plain sockets; then tests of this server alone.
//!
//! Each reply is compared byte for byte, with these exceptions. Numbers of changes (`cas`) need only be equal or
//! different at the same times. Times left may differ by a second. Of `l` and `me` only the form is compared.
//! memcached runs with `-o no_modern`: its newer way of ordering items sometimes holds an item and then writes a
//! number to a new place. The reply then has other spaces after the number. Requests are sent one at a time for the
//! same reason. Left out is `ma` with `T` on a number that becomes longer, where memcached 1.6.18 loses the time.

use crate::common::{Reply, Service, free_port};
use farmem::Rng;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The number of commands; `FARMEM_KV_COMMANDS` sets more.
const COMMANDS: usize = 20_000;

struct Memcached {
    child: Child,
    address: SocketAddr,
}

impl Memcached {
    fn start() -> Option<Self> {
        let port = free_port();
        let said = Command::new("memcached")
            .args([
                "-u",
                "root",
                "-l",
                "127.0.0.1",
                "-p",
                &port.to_string(),
                "-m",
                "64",
                "-t",
                "1",
                "-o",
                "no_modern",
            ])
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = said else {
            eprintln!("skipped: memcached absent (scripts/setup installs it)");
            return None;
        };
        let server = Self { child, address: SocketAddr::from(([127, 0, 0, 1], port)) };
        for _ in 0..600 {
            if TcpStream::connect(server.address).is_ok() {
                return Some(server);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("memcached does not listen");
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _it_may_be_gone = self.child.kill();
        let _it_may_be_gone = self.child.wait();
    }
}

/// A client that reads lines.
pub(crate) struct Line {
    stream: TcpStream,
    have: Vec<u8>,
}

impl Line {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { stream, have: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Returns the next line with its end; an empty one if the server closes.
    pub(crate) fn line(&mut self) -> Vec<u8> {
        loop {
            if let Some(end) = self.have.iter().position(|&byte| byte == b'\n') {
                return self.have.drain(..=end).collect();
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(len @ 1..) => self.have.extend_from_slice(&chunk[..len]),
                Ok(0) => return Vec::new(),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Vec::new(),
                other => panic!("{other:?}"),
            }
        }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        while self.have.len() < len {
            let mut chunk = [0; 65_536];
            let read = self.stream.read(&mut chunk).unwrap();
            assert!(read > 0, "the rest of a value comes");
            self.have.extend_from_slice(&chunk[..read]);
        }
        self.have.drain(..len).collect()
    }

    /// Sends a request, and `mn` behind it. Returns all lines and blocks that arrive before the reply to `mn`.
    fn asks(&mut self, request: &[u8]) -> Vec<Vec<u8>> {
        self.send(&[request, b"mn\r\n"].concat());
        let mut said = Vec::new();
        loop {
            let line = self.line();
            if line == b"MN\r\n" || line.is_empty() {
                return said;
            }
            let words: Vec<&[u8]> = line.trim_ascii_end().split(|&byte| byte == b' ').collect();
            let len = match words.as_slice() {
                [b"VALUE", _, _, len, ..] | [b"VA", len, ..] => {
                    std::str::from_utf8(len).unwrap().parse::<usize>().ok()
                }
                _ => None,
            };
            said.push(line.clone());
            said.extend(len.map(|len| self.bytes(len + 2)));
        }
    }

    pub(crate) fn says(&mut self, request: &str) -> String {
        let said = self.asks(request.as_bytes());
        String::from_utf8_lossy(&said.concat()).into_owned()
    }
}

/// Forms of requests. `k` is a key, `v` a value with its length in front, `n` a value that is a number, `x`
/// an exptime, `f` flags, `c` the number of the last change that was returned for some key, `d` a delta. `|`
/// is a line end.
const TEMPLATES: &[&str] = &[
    "set k f x v",
    "set k f x n",
    "set k f x n",
    "set k f 0 v noreply",
    "add k f x v",
    "add k f x n",
    "replace k f x v",
    "append k f x v",
    "prepend k f x v",
    "append k f x n",
    "cas k f x c v",
    "cas k f x c n",
    "cas k f x c n noreply",
    "get k",
    "get k k k",
    "gets k",
    "gets k k",
    "gat x k",
    "gats x k k",
    "touch k x",
    "touch k x noreply",
    "incr k d",
    "incr k d",
    "decr k d",
    "decr k d",
    "incr k d noreply",
    "incr k abc",
    "decr k -1",
    "incr k",
    "delete k",
    "delete k noreply",
    "delete k 0",
    "delete k 5",
    "delete",
    "set k f x",
    "set k abc 0 3",
    "set k 1 0 -1",
    "get",
    "gat abc k",
    "touch k abc",
    "verbosity 1",
    "verbosity",
    "verbosity abc",
    "nosuch k",
    "a",
    "flush_all abc",
    "mg k",
    "mg k v",
    "mg k s v t f c h k O123",
    "mg k k q",
    "mg k t c Tx",
    "mg k T100 t",
    "mg k l",
    "mg k N100 v t c",
    "mg k N100 k O7 h",
    "mg k R1000 t v",
    "mg k s s",
    "mg k !",
    "mg k u h",
    "mg k h",
    "mg",
    "mg k Tabc",
    "mg k O1234567890123456789012345678901234567890",
    "me k",
    "ms k v",
    "ms k v c k O9",
    "ms k n c",
    "ms k v Tx Ff",
    "ms k v ME",
    "ms k v MA c",
    "ms k v MP",
    "ms k v MR q",
    "ms k v MS q k",
    "ms k v MZ",
    "ms k v Cc c",
    "ms k v Cc I c",
    "ms k v Cc MA",
    "ms k v Cabc",
    "ms k v S1 s1",
    "ms k",
    "ms k abc",
    "md k",
    "md k q",
    "md k k O1",
    "md k Cc",
    "md k I T30",
    "md k I",
    "md k I Cc",
    "md k x",
    "ma k",
    "ma k v c t",
    "ma k Dd v",
    "ma k Dd MD v c",
    "ma k N0 J13 v",
    "ma k N90 Jd v t c",
    "ma k MZ",
    "ma k Dabc",
    "ma k q v",
    "ma k Cc v c",
    "ma k k O1",
    "mg Zm9v b v",
    "ms Zm9v v b k",
    "md Zm9v b k",
    "mg * b v",
    "stats nosuch thing",
];

fn value(rng: &mut Rng) -> Vec<u8> {
    match rng.below(8) {
        0 => Vec::new(),
        1 => b"a\r\nb\0c\r\n".to_vec(),
        2 => vec![b'x'; rng.below(3_000) as usize],
        _ => format!("value{}", rng.below(100)).into_bytes(),
    }
}

fn number(rng: &mut Rng) -> Vec<u8> {
    match rng.below(12) {
        0 => b"18446744073709551615".to_vec(),
        1 => b"5 ".to_vec(),
        2 => b" 7".to_vec(),
        3 => b"99".to_vec(),
        4 => b"10 apples".to_vec(),
        5 => b"-5".to_vec(),
        6 => b"00012".to_vec(),
        7 => b"184467440737095516160".to_vec(),
        _ => rng.below(1_000).to_string().into_bytes(),
    }
}

/// Returns a request for each server: their numbers of changes differ.
fn request(rng: &mut Rng, told: &[(u64, u64)]) -> [Vec<u8>; 2] {
    let template = TEMPLATES[rng.below(u32::try_from(TEMPLATES.len()).unwrap()) as usize];
    let mut both: [Vec<u8>; 2] = Default::default();
    let mut block = None;
    let add =
        |both: &mut [Vec<u8>; 2], text: &[u8]| both.iter_mut().for_each(|one| one.extend_from_slice(text));
    for (at, word) in template.split(' ').enumerate() {
        if at > 0 {
            add(&mut both, b" ");
        }
        let (prefix, kind) = match word.as_bytes() {
            // A flag with a value, except for words that stand for themselves.
            [first @ (b'T' | b'F' | b'C' | b'D' | b'J'), kind @ (b'x' | b'f' | b'c' | b'd')] => {
                (Some(*first), *kind)
            }
            [one] => (None, *one),
            _ => (None, 0),
        };
        // In meta commands `k`, `v`, `f` and `c` behind the key are flags.
        let meta = template.starts_with('m') && !template.starts_with("mg *");
        let is_flag = meta && prefix.is_none() && at >= if template.starts_with("ms") { 3 } else { 2 };
        add(&mut both, prefix.as_slice());
        match kind {
            _ if is_flag => add(&mut both, word.as_bytes()),
            b'k' => add(&mut both, format!("key{}", rng.below(12)).as_bytes()),
            b'f' => add(&mut both, rng.below(70_000).to_string().as_bytes()),
            b'x' => add(
                &mut both,
                [&b"0"[..], b"100", b"5000", b"0", b"-1", b"4000000000"][rng.below(6) as usize],
            ),
            b'd' => add(
                &mut both,
                [&b"1"[..], b"9", b"90", b"1000", b"18446744073709551615"][rng.below(5) as usize],
            ),
            b'c' => {
                let (ours, theirs) = match told.len() {
                    0 => (0, 0),
                    len => told[len - 1 - rng.below(u32::try_from(len.min(6)).unwrap()) as usize],
                };
                both[0].extend(ours.to_string().bytes());
                both[1].extend(theirs.to_string().bytes());
            }
            b'v' | b'n' => {
                let data = if kind == b'v' { value(rng) } else { number(rng) };
                add(&mut both, data.len().to_string().as_bytes());
                block = Some(data);
            }
            _ => add(&mut both, word.as_bytes()),
        }
    }
    // `cas` has its length in front of the number.
    if template.starts_with("cas") {
        for one in &mut both {
            let text = String::from_utf8(one.clone()).unwrap();
            let mut words: Vec<&str> = text.split(' ').collect();
            words.swap(4, 5);
            *one = words.join(" ").into_bytes();
        }
    }
    add(&mut both, b"\r\n");
    if let Some(data) = block {
        add(&mut both, &data);
        add(&mut both, b"\r\n");
    }
    both
}

/// The known pairs of our numbers and memcached's.
#[derive(Default)]
struct Numbers {
    known: BTreeMap<u64, u64>,
    back: BTreeMap<u64, u64>,
    told: Vec<(u64, u64)>,
}

impl Numbers {
    fn are_the_same(&mut self, ours: u64, theirs: u64) -> bool {
        if ours == 0 || theirs == 0 {
            return ours == theirs;
        }
        self.told.push((ours, theirs));
        *self.known.entry(ours).or_insert(theirs) == theirs
            && *self.back.entry(theirs).or_insert(ours) == ours
    }
}

/// Returns whether two lines agree.
fn mean_the_same(numbers: &mut Numbers, ours: &[u8], theirs: &[u8]) -> bool {
    if ours == theirs && !ours.starts_with(b"VALUE") && !ours.windows(2).any(|pair| pair == b" c") {
        return true;
    }
    let (Ok(ours), Ok(theirs)) = (std::str::from_utf8(ours), std::str::from_utf8(theirs)) else {
        return false;
    };
    if ours.starts_with("ME ") {
        return theirs.starts_with("ME ") && ours.split(' ').nth(1) == theirs.split(' ').nth(1);
    }
    let (one, other): (Vec<&str>, Vec<&str>) =
        (ours.split_ascii_whitespace().collect(), theirs.split_ascii_whitespace().collect());
    let with_cas = ours.starts_with("VALUE") && one.len() == 5;
    one.len() == other.len()
        && one.iter().zip(&other).enumerate().all(|(at, (one, other))| {
            let number = |text: &str| text.parse::<u64>().ok();
            let both = |letter: char| {
                let (one, other) = (one.strip_prefix(letter)?, other.strip_prefix(letter)?);
                Some((number(one)?, number(other)?))
            };
            if with_cas && at == 4 {
                return numbers.are_the_same(number(one).unwrap(), number(other).unwrap_or(0));
            }
            match (both('c'), both('t'), both('l')) {
                (Some((one, other)), ..) => numbers.are_the_same(one, other),
                (_, Some((one, other)), _) => one.abs_diff(other) <= 2,
                (.., Some(_)) => true,
                _ => one == other,
            }
        })
}

fn run(service: &Service, theirs: &Memcached, seed: u64, count: usize) {
    let mut clients = [Line::connect(service.memcached.unwrap()), Line::connect(theirs.address)];
    let mut rng = Rng::from_number(seed);
    let mut numbers = Numbers::default();
    for at in 0..count {
        let requests = request(&mut rng, &numbers.told);
        let said = [0, 1].map(|one: usize| clients[one].asks(&requests[one]));
        let shown = || String::from_utf8_lossy(&requests[0][..requests[0].len().min(200)]).into_owned();
        let same = said[0].len() == said[1].len()
            && said[0].iter().zip(&said[1]).all(|(ours, theirs)| mean_the_same(&mut numbers, ours, theirs));
        let texts = said.each_ref().map(|said| String::from_utf8_lossy(&said.concat()).into_owned());
        assert!(
            same,
            "seed {seed}, command {at}, {:?}: {:?}, and memcached {:?}",
            shown(),
            texts[0],
            texts[1]
        );
    }
    assert!(numbers.known.len() > count / 20, "numbers were told");
}

fn served(more: &[&str]) -> Service {
    Service::start(&[&["--far", "64MiB", "--local", "64MiB", "--memcached-port", "0"], more].concat())
}

/// With all data local, and with more of the same commands.
#[test]
fn replies_are_those_of_memcached() {
    let Some(theirs) = Memcached::start() else { return };
    let service = served(&[]);
    let count = std::env::var("FARMEM_KV_COMMANDS")
        .map_or(COMMANDS, |text| text.parse().expect("a number of commands"));
    run(&service, &theirs, 21, count);
    service.end();
}

/// Both protocols have the same keys: each reads what the other writes, and a write by either aborts a
/// transaction that watches the key.
#[test]
fn one_store_for_both_protocols() {
    let service = served(&[]);
    let (mut redis, mut client) = (service.client(), Line::connect(service.memcached.unwrap()));
    assert_eq!(client.says("set a 7 0 5\r\nhello\r\n"), "STORED\r\n");
    assert_eq!(redis.says("GET a"), Reply::bulk("hello"));
    assert_eq!(redis.says("TYPE a").text(), "string");
    assert_eq!(redis.says("APPEND a !"), Reply::Integer(6));
    assert_eq!(
        client.says("get a\r\n"),
        "VALUE a 0 6\r\nhello!\r\nEND\r\n",
        "a string of Redis has no flags"
    );
    let [one, other] = ["x", "y"].map(|value| {
        redis.says(&format!("SET a {value}"));
        client.says("gets a\r\n")
    });
    assert_ne!(
        one.split(' ').nth(4).unwrap(),
        other.split(' ').nth(4).unwrap(),
        "its number follows from its bytes"
    );
    assert_eq!(redis.says("RPUSH list 1"), Reply::Integer(1));
    assert!(client.says("get list\r\n").starts_with("SERVER_ERROR WRONGTYPE"));
    assert_eq!(client.says("add list 0 0 1\r\nx\r\n"), "NOT_STORED\r\n");
    assert_eq!(client.says("set b 5 0 1\r\nx\r\n"), "STORED\r\n");
    assert_eq!(redis.says("COPY b c"), Reply::Integer(1));
    assert_eq!(client.says("get c\r\n"), "VALUE c 5 1\r\nx\r\nEND\r\n");
    assert_eq!(redis.says("WATCH b"), Reply::ok());
    assert_eq!(client.says("incr n 1\r\n"), "NOT_FOUND\r\n");
    assert_eq!(client.says("set b 5 0 1\r\ny\r\n"), "STORED\r\n");
    redis.says("MULTI");
    redis.says("GET b");
    assert_eq!(redis.says("EXEC"), Reply::Null);
    assert_eq!(redis.says("EXPIRE b 100"), Reply::Integer(1));
    assert_eq!(client.says("mg b t f\r\n"), "HD t100 f5\r\n");
    assert!(redis.says("FARMEM.ITEM a b c").text().starts_with("ERR unknown command"));
    assert_eq!(client.says("flush_all\r\n"), "OK\r\n");
    assert_eq!(redis.says("DBSIZE"), Reply::Integer(0));
    service.end();
}

/// `CLIENT LIST` shows the last command of a memcached client, by its name in the table of commands, and the sizes of
/// its buffers. Regression: such a client had `cmd=NULL` for ever, and was idle since it connected.
#[test]
fn client_list_shows_memcached_clients() {
    let service = served(&[]);
    let (mut redis, mut client) = (service.client(), Line::connect(service.memcached.unwrap()));
    for (request, command) in [("set a 0 0 1\r\nx\r\n", "set"), ("get a\r\n", "get"), ("delete a\r\n", "del")]
    {
        client.says(request);
        let list = redis.says("CLIENT LIST").text();
        let line = list.lines().find(|line| !line.contains("cmd=client|list")).unwrap();
        assert!(line.contains(&format!(" cmd={command} ")), "{line}");
    }
    service.end();
}

/// Bytes that are not requests: binary requests, lines without end, blocks that are too long or of a wrong
/// length, a browser. Other clients go on meanwhile.
#[test]
fn hostile_clients_of_memcached() {
    let service = served(&[]);
    let address = service.memcached.unwrap();
    let all = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let _ended_already =
            stream.write_all(bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
        let mut said = Vec::new();
        let _reset = stream.read_to_end(&mut said);
        said
    };
    let mut binary = [0; 24];
    (binary[0], binary[1]) = (0x80, 0x0b);
    binary[12..16].copy_from_slice(b"abcd");
    let said = all(&binary);
    assert_eq!((&said[..2], &said[6..8], &said[12..16]), (&[0x81, 0x0b][..], &[0, 0x81][..], &b"abcd"[..]));
    assert!(String::from_utf8_lossy(&said[24..]).contains("binary protocol is not here"));
    assert_eq!(all(&[b'x'; 5_000]), b"CLIENT_ERROR line too long\r\n");
    assert_eq!(all(b"GET / HTTP/1.1\r\nset page 0 0 1\r\nx\r\n"), b"ERROR\r\n");
    assert_eq!(
        all(b"set k 0 0 3\r\nabcdef\r\nversion\r\n"),
        b"CLIENT_ERROR bad data chunk\r\nERROR\r\nVERSION 1.6.18\r\n"
    );
    let mut client = Line::connect(address);
    assert_eq!(client.says("set k 0 0 1\r\nx\r\n"), "STORED\r\n");
    // The block is skipped as it arrives, and its content is not taken for a request.
    let long = [&b"set k 0 0 16000000\r\n"[..], &vec![b'x'; 16_000_000], b"\r\n"].concat();
    assert_eq!(client.asks(&long).concat(), b"SERVER_ERROR object too large for cache\r\n");
    assert_eq!(client.says("get k\r\n"), "END\r\n");
    let key = "k".repeat(251);
    assert_eq!(client.says(&format!("get {key}\r\n")), "CLIENT_ERROR bad command line format\r\n");
    assert!(
        client
            .says("lru_crawler crawl all\r\n")
            .starts_with("CLIENT_ERROR this command is about memcached's own memory")
    );
    let stats = client.says("stats\r\n");
    assert!(stats.contains("STAT curr_items 0\r\n") && stats.contains("STAT get_misses 1\r\n"), "{stats}");
    service.end();
}

/// A client logs in as at memcached: by a `set`.
#[test]
fn a_client_of_memcached_says_who_it_is() {
    let service = served(&["--requirepass", "open sesame"]);
    let mut client = Line::connect(service.memcached.unwrap());
    client.send(b"get a\r\n");
    assert_eq!(client.line(), b"CLIENT_ERROR unauthenticated\r\n");
    client.send(b"set k 0 0 13\r\ndefault wrong\r\n");
    assert_eq!(client.line(), b"CLIENT_ERROR authentication failure\r\n");
    client.send(b"set k 0 0 19\r\ndefault open sesame\r\n");
    assert_eq!(client.line(), b"STORED\r\n");
    assert_eq!(client.says("get k\r\n"), "END\r\n");
    service.end();
}

/// Items outlive the process with flags, expiry times and marks. Numbers that were returned are used for no
/// other change.
#[test]
fn items_outlive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["--dir", dir.path().to_str().unwrap(), "--appendonly"];
    let service = served(&words);
    let mut client = Line::connect(service.memcached.unwrap());
    assert_eq!(
        client
            .says("set a 7 0 1\r\nx\r\nset b 8 1000 2\r\n10\r\nset c 1 0 1\r\nx\r\n")
            .matches("STORED")
            .count(),
        3
    );
    let told = client.says("gets a\r\n");
    assert_eq!(
        client.says("incr b 5\r\nmd a I\r\ntouch c 500\r\nappend c 0 0 1\r\ny\r\n"),
        "15\r\nHD\r\nTOUCHED\r\nSTORED\r\n"
    );
    let mut redis = service.client();
    redis.says("SAVE");
    assert_eq!(client.says("delete c\r\nprepend b 0 0 1\r\n1\r\n"), "DELETED\r\nSTORED\r\n");
    service.end();
    let service = served(&words);
    let mut client = Line::connect(service.memcached.unwrap());
    assert_eq!(client.says("mg a v f\r\n"), "VA 1 f7 X W\r\nx\r\n");
    assert_eq!(client.says("mg b v f\r\nget c\r\n"), "VA 3 f8\r\n115\r\nEND\r\n");
    assert!(client.says("mg b t\r\n").starts_with("HD t9") || client.says("mg b t\r\n") == "HD t1000\r\n");
    assert_eq!(client.says("set a 7 0 1\r\nx\r\n"), "STORED\r\n");
    assert_ne!(client.says("gets a\r\n"), told);
    service.end();
}
