//! `kv.*`: `farmem kv` beside redis-server (issue 15; PD3 figures 13 and 17 have Garnet in the same place).
//!
//! Both servers are processes bound to one CPU; the load is one thread of this process, bound to another. It has `CONNECTIONS` connections, sends so many
//! requests ahead on each as the row's id says, and checks every reply. Pairs of slices are interleaved; a row has the medians. `.local` has all data here, `.far` a
//! twentieth of the data's bytes as `--local`, index and process included.

use crate::{CpuMeter, CpuTime, Outcome, Plan, Progress, Row, Sheet, to_f64};
use farmem::Rng;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Connections of the load.
const CONNECTIONS: usize = 16;
/// Bytes of a value.
const VALUE_LEN: usize = 1_000;
/// Keys of one `MSET`.
const MSET_KEYS: usize = 10;
/// The CPU of the servers, and that of the load.
const SERVER_CPU: &str = "0";
const LOAD_CPU: usize = 1;
const SEED: u64 = 15;
/// Connections of `kv.connections`.
const MANY: usize = 10_000;

/// How much is measured.
struct Sizes {
    keys: u32,
    pairs: usize,
    slice: Duration,
}

/// A kind of request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Get,
    Set,
    Mset,
}

impl Kind {
    const ALL: [(&'static str, Self); 3] = [("get", Self::Get), ("set", Self::Set), ("mset", Self::Mset)];
}

/// A server under load.
struct Subject {
    child: Child,
    connections: Vec<TcpStream>,
    address: SocketAddr,
    rng: Rng,
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _it_may_have_ended = self.child.wait();
    }
}

fn key(number: u32) -> String {
    format!("key:{number:012}")
}

fn value(number: u32) -> Vec<u8> {
    let mut value = format!("{number:012}").into_bytes();
    value.resize(VALUE_LEN, b'v');
    value
}

fn word(into: &mut Vec<u8>, word: &[u8]) {
    into.extend(format!("${}\r\n", word.len()).bytes());
    into.extend_from_slice(word);
    into.extend(b"\r\n");
}

/// Appends a request on some key, and the reply that is right.
fn ask(kind: Kind, rng: &mut Rng, keys: u32, request: &mut Vec<u8>, reply: &mut Vec<u8>) {
    let number = rng.below(keys);
    match kind {
        Kind::Get => {
            request.extend(b"*2\r\n");
            word(request, b"GET");
            word(request, key(number).as_bytes());
            word(reply, &value(number));
        }
        Kind::Set => {
            request.extend(b"*3\r\n");
            word(request, b"SET");
            word(request, key(number).as_bytes());
            word(request, &value(number));
            reply.extend(b"+OK\r\n");
        }
        Kind::Mset => {
            request.extend(format!("*{}\r\n", 1 + 2 * MSET_KEYS).bytes());
            word(request, b"MSET");
            for _ in 0..MSET_KEYS {
                let number = rng.below(keys);
                word(request, key(number).as_bytes());
                word(request, &value(number));
            }
            reply.extend(b"+OK\r\n");
        }
    }
}

/// What a slice did.
#[derive(Clone, Copy, Default)]
struct Did {
    operations: u64,
    wrong: u64,
    seconds: f64,
    cpu: Option<Duration>,
}

impl Subject {
    fn start(program: &str, args: &[String], port: u16) -> Result<Self, String> {
        let said = |error: io::Error| format!("{program}: {error}");
        let mut command = Command::new("taskset");
        command.args(["-c", SERVER_CPU, program]).args(args).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("taskset: {error} (util-linux)"))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = child.try_wait().map_err(said)? {
                return Err(format!("{program} ended with {status}"));
            }
            if begin.elapsed() > Duration::from_secs(60) {
                return Err(format!("{program} does not listen"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let connect = || {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        let connections = (0..CONNECTIONS).map(|_| connect()).collect::<io::Result<_>>().map_err(said)?;
        Ok(Self { child, connections, address, rng: Rng::from_number(SEED) })
    }

    /// Puts all keys in.
    fn fill(&mut self, keys: u32) -> io::Result<()> {
        const TOGETHER: u32 = 64;
        let stream = &mut self.connections[0];
        for first in (0..keys).step_by(TOGETHER as usize) {
            let mut request = Vec::new();
            let last = (first + TOGETHER).min(keys);
            for number in first..last {
                request.extend(b"*3\r\n");
                word(&mut request, b"SET");
                word(&mut request, key(number).as_bytes());
                word(&mut request, &value(number));
            }
            stream.write_all(&request)?;
            let mut reply = vec![0; 5 * (last - first) as usize];
            stream.read_exact(&mut reply)?;
            if reply != b"+OK\r\n".repeat((last - first) as usize) {
                return Err(io::Error::other(
                    String::from_utf8_lossy(&reply[..reply.len().min(200)]).into_owned(),
                ));
            }
        }
        Ok(())
    }

    /// Asks on all connections for so long, `ahead` requests on each at once.
    fn load(&mut self, kind: Kind, ahead: usize, keys: u32, slice: Duration) -> io::Result<Did> {
        let mut did = Did::default();
        let meter = CpuMeter::of(self.child.id());
        let span = meter.begin();
        let begin = Instant::now();
        let mut wanted = vec![Vec::new(); self.connections.len()];
        let (mut request, mut reply) = (Vec::new(), Vec::new());
        while begin.elapsed() < slice {
            for (stream, wanted) in self.connections.iter_mut().zip(&mut wanted) {
                request.clear();
                wanted.clear();
                (0..ahead).for_each(|_| ask(kind, &mut self.rng, keys, &mut request, wanted));
                stream.write_all(&request)?;
            }
            for (stream, wanted) in self.connections.iter_mut().zip(&wanted) {
                reply.resize(wanted.len(), 0);
                stream.read_exact(&mut reply)?;
                did.operations += ahead as u64;
                did.wrong += u64::from(reply != *wanted);
            }
        }
        did.seconds = begin.elapsed().as_secs_f64();
        did.cpu = span.end();
        Ok(did)
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn redis() -> Result<Subject, String> {
    let port = free_port().map_err(|error| error.to_string())?;
    let args = ["--port", &port.to_string(), "--save", "", "--appendonly", "no", "--maxclients", "10100"]
        .map(str::to_owned);
    Subject::start("redis-server", &args, port)
}

fn ours(local: u64, far: u64) -> Result<Subject, String> {
    let port = free_port().map_err(|error| error.to_string())?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let args = ["kv", "--port", &port.to_string(), "--local", &local.to_string(), "--far", &far.to_string()]
        .map(str::to_owned);
    Subject::start(&own.to_string_lossy(), &args, port)
}

/// Measures.
///
/// # Errors
/// What the system says when no load can be made.
pub fn run(plan: &Plan, tell: &mut dyn FnMut(Progress<'_>)) -> io::Result<Outcome> {
    let mut sheet = Sheet::new(&plan.only, tell);
    let sizes = if plan.quick {
        Sizes { keys: 20_000, pairs: 2, slice: Duration::from_millis(100) }
    } else {
        Sizes { keys: 400_000, pairs: 5, slice: Duration::from_millis(400) }
    };
    let data = u64::from(sizes.keys) * (VALUE_LEN as u64 + 16);
    let allowed = farmem_io::affinity::allowed_cpus()?;
    if allowed.contains(&LOAD_CPU) {
        farmem_io::pin_to_cpu(LOAD_CPU)?;
    }
    // What is far is a twentieth of the data, but not less than a process takes.
    for (where_to, local) in [("local", 4 * data + (256 << 20)), ("far", (data / 20).max(20 << 20))] {
        sheet.begins(&format!("{} keys of {VALUE_LEN} B, {} MiB of local memory", sizes.keys, local >> 20));
        let pair = redis().and_then(|redis| Ok([ours(local, 4 * data + (256 << 20))?, redis]));
        match pair {
            Ok(mut pair) => rows(&mut sheet, &sizes, where_to, &mut pair)?,
            Err(why) => sheet.add([Row::absent(format!("kv.get.p1.{where_to}"), "1/s", why)]),
        }
    }
    sheet.begins("many connections");
    let many = redis().and_then(|redis| Ok([ours(256 << 20, 256 << 20)?, redis]));
    match many {
        Ok(pair) => sheet.add([connections(&pair)]),
        Err(why) => sheet.add([Row::absent("kv.connections", "connections", why)]),
    }
    Ok(sheet.end())
}

fn rows(sheet: &mut Sheet<'_>, sizes: &Sizes, where_to: &str, pair: &mut [Subject; 2]) -> io::Result<()> {
    pair.iter_mut().try_for_each(|subject| subject.fill(sizes.keys))?;
    for (name, kind) in Kind::ALL {
        for ahead in [1, 16] {
            let mut rates = [Vec::new(), Vec::new()];
            let (mut cpu, mut operations) = ([CpuTime::default(), CpuTime::default()], 0);
            for _ in 0..sizes.pairs {
                for (number, subject) in pair.iter_mut().enumerate() {
                    let did = subject.load(kind, ahead, sizes.keys, sizes.slice)?;
                    rates[number].push(to_f64(did.operations) / did.seconds);
                    cpu[number].add(did.cpu, did.operations);
                    operations += did.operations;
                    sheet.add_wrong(did.wrong);
                }
            }
            let [ours, theirs] = rates.map(median);
            let row = Row::figure(format!("kv.{name}.p{ahead}.{where_to}"), "1/s", ours, operations);
            let row = row.beside(Some(theirs)).with_cpu(cpu[0].per_operation());
            let why = cpu[1]
                .per_operation()
                .map(|nanos| format!("CPU time of redis-server: {nanos:.0} ns an operation"));
            sheet.add([Row { why, ..row }]);
        }
    }
    Ok(())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// How many of [`MANY`] connections are answered while all are open, by each.
fn connections(pair: &[Subject; 2]) -> Row {
    let answered = pair.each_ref().map(|subject| {
        let open = (0..MANY).map_while(|_| TcpStream::connect(subject.address).ok()).collect::<Vec<_>>();
        let asked =
            open.into_iter().map_while(|mut stream| stream.write_all(b"PING\r\n").ok().map(|()| stream));
        let mut said = [0; 7];
        let all: Vec<TcpStream> = asked.collect();
        all.iter()
            .filter(|stream| (&mut &**stream).read_exact(&mut said).is_ok() && said == *b"+PONG\r\n")
            .count()
    });
    let [ours, theirs] = answered.map(|count| to_f64(count as u64));
    let few =
        (ours < MANY as f64).then(|| format!("of {MANY}: this process has no more descriptors (ulimit -n)"));
    Row { why: few, ..Row::figure("kv.connections", "connections", ours, MANY as u64).beside(Some(theirs)) }
}
