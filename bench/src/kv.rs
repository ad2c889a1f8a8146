//! `kv.*`: `farmem kv` beside redis-server and memcached (issue 15; PD3 figures 13 and 17 have Garnet in the same place).
//!
//! All servers are processes bound to one CPU; the load is one thread of this process, bound to another. It has `CONNECTIONS` connections, sends so many
//! requests ahead on each as the row's id says, and checks every reply. Pairs of slices are interleaved; a row has the medians. `.local` has all data here, `.far` a
//! twentieth of the data's bytes as `--local`, index and process included; where that is less than they take, as much as they take, and the row says so.

mod load;

use crate::{CpuMeter, CpuTime, Outcome, Plan, Progress, Row, Sheet, to_f64};
use farmem::Rng;
use load::{Batch, Kind, Speaks, VALUE_LEN};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Connections of the load.
const CONNECTIONS: usize = 16;
/// The CPU of the servers, and that of the load.
const SERVER_CPU: &str = "0";
const LOAD_CPU: usize = 1;
const SEED: u64 = 15;
/// Connections of `kv.connections`, and descriptors beside them.
const MANY: usize = 10_000;
const DESCRIPTORS: u64 = 100;
/// Bytes of a key.
const KEY_LEN: u64 = 16;
/// Bytes of the index that a key takes, those that are free included.
const INDEX_BYTES: u64 = 34;
/// What a server takes beside index and tail: the process, and buffers of its connections.
const PROCESS_BYTES: u64 = 20 << 20;

/// How much is measured.
struct Sizes {
    keys: u32,
    pairs: usize,
    slice: Duration,
}

impl Sizes {
    /// Bytes of all keys and values.
    fn data(&self) -> u64 {
        u64::from(self.keys) * (VALUE_LEN as u64 + KEY_LEN)
    }

    /// Local memory with all data here.
    fn all_local(&self) -> u64 {
        2 * self.data() + (256 << 20)
    }

    /// Local memory with a twentieth of the data here, but not less than index and process take.
    fn mostly_far(&self) -> u64 {
        (self.data() / 20).max(u64::from(self.keys) * INDEX_BYTES + PROCESS_BYTES)
    }
}

const KINDS: [(&str, Kind); 3] = [("get", Kind::Get), ("set", Kind::Set), ("mset", Kind::Mset)];

/// A server under load.
struct Subject {
    child: Child,
    connections: Vec<TcpStream>,
    address: SocketAddr,
    speaks: Speaks,
    rng: Rng,
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _it_may_have_ended = self.child.wait();
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
    fn start(program: &str, args: &[String], port: u16, speaks: Speaks) -> Result<Self, String> {
        let said = |error: io::Error| format!("{program}: {error}");
        let mut command = Command::new("taskset");
        command.args(["-c", SERVER_CPU, program]).args(args).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| format!("taskset: {error} (util-linux)"))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut subject =
            Self { child, connections: Vec::new(), address, speaks, rng: Rng::from_number(SEED) };
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = subject.child.try_wait().map_err(said)? {
                return Err(format!("{program} ended with {status}; is it installed (scripts/setup)?"));
            }
            if begin.elapsed() > Duration::from_secs(60) {
                return Err(format!("{program} does not listen"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        for _ in 0..CONNECTIONS {
            let stream = TcpStream::connect(address).map_err(said)?;
            stream.set_nodelay(true).map_err(said)?;
            // A server that stands still ends the run.
            stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(said)?;
            stream.set_write_timeout(Some(Duration::from_secs(60))).map_err(said)?;
            subject.connections.push(stream);
        }
        Ok(subject)
    }

    fn fill(&mut self, keys: u32) -> io::Result<()> {
        load::fill(&mut self.connections[0], self.speaks, keys)
    }

    /// Asks on all connections for so long, `ahead` requests on each at once.
    fn load(&mut self, kind: Kind, ahead: usize, keys: u32, slice: Duration) -> io::Result<Did> {
        let mut did = Did::default();
        let mut batches = vec![Batch::new(kind, self.speaks, ahead); self.connections.len()];
        let meter = CpuMeter::of(self.child.id());
        let span = meter.begin();
        let begin = Instant::now();
        while begin.elapsed() < slice {
            for (stream, batch) in self.connections.iter_mut().zip(&mut batches) {
                batch.send(stream, || load::any(&mut self.rng, keys))?;
            }
            for (stream, batch) in self.connections.iter_mut().zip(&mut batches) {
                did.wrong += u64::from(!batch.receive(stream)?);
                did.operations += ahead as u64;
            }
        }
        did.seconds = begin.elapsed().as_secs_f64();
        did.cpu = span.end();
        Ok(did)
    }
}

fn free_port() -> Result<u16, String> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    bound.map(|address| address.port()).map_err(|error| error.to_string())
}

fn redis() -> Result<Subject, String> {
    let port = free_port()?;
    let args = ["--port", &port.to_string(), "--save", "", "--appendonly", "no", "--maxclients", "10100"]
        .map(str::to_owned);
    Subject::start("redis-server", &args, port, Speaks::Redis)
}

fn memcached(sizes: &Sizes) -> Result<Subject, String> {
    let port = free_port()?;
    let megabytes = ((2 * sizes.data()) >> 20) + 64;
    let args = [
        "-u",
        "root",
        "-l",
        "127.0.0.1",
        "-p",
        &port.to_string(),
        "-t",
        "1",
        "-c",
        "10100",
        "-m",
        &megabytes.to_string(),
    ]
    .map(str::to_owned);
    Subject::start("memcached", &args, port, Speaks::Memcached)
}

fn ours(local: u64, far: u64, speaks: Speaks) -> Result<Subject, String> {
    let ports = [free_port()?, free_port()?];
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let far = far.next_multiple_of(1 << 20);
    let args = [
        "kv",
        "--port",
        &ports[0].to_string(),
        "--memcached-port",
        &ports[1].to_string(),
        "--local",
        &local.to_string(),
        "--far",
        &far.to_string(),
        "--maxclients",
        "10100",
    ]
    .map(str::to_owned);
    Subject::start(&own.to_string_lossy(), &args, ports[usize::from(speaks == Speaks::Memcached)], speaks)
}

/// Measures.
///
/// # Errors
/// What the system says when no load can be made.
pub fn run(plan: &Plan, tell: &mut dyn FnMut(Progress<'_>)) -> io::Result<Outcome> {
    let mut sheet = Sheet::new(&plan.only, tell);
    let sizes = if plan.quick {
        Sizes { keys: 40_000, pairs: 2, slice: Duration::from_millis(100) }
    } else {
        Sizes { keys: 1_000_000, pairs: 5, slice: Duration::from_millis(400) }
    };
    let allowed = farmem_io::affinity::allowed_cpus()?;
    if allowed.contains(&LOAD_CPU) {
        farmem_io::pin_to_cpu(LOAD_CPU)?;
    }
    for (where_to, local) in [("local", sizes.all_local()), ("far", sizes.mostly_far())] {
        let size = format!(
            "{} keys of {VALUE_LEN} B ({} MiB), {} MiB of local memory",
            sizes.keys,
            sizes.data() >> 20,
            local >> 20
        );
        let pair = |speaks| {
            let theirs = match speaks {
                Speaks::Redis => redis()?,
                Speaks::Memcached => memcached(&sizes)?,
            };
            Ok::<_, String>([ours(local, sizes.all_local(), speaks)?, theirs])
        };
        for (name, speaks, kinds) in
            [("kv", Speaks::Redis, &KINDS[..]), ("kv.memcached", Speaks::Memcached, &KINDS[..2])]
        {
            sheet.begins(&format!("{name}: {size}"));
            match pair(speaks) {
                Ok(mut pair) => rows(&mut sheet, &sizes, (name, where_to, &size), kinds, &mut pair),
                Err(why) => sheet.add([Row::absent(format!("{name}.get.p1.{where_to}"), "1/s", why)]),
            }
        }
    }
    sheet.begins("many connections");
    let limit = raise_descriptors();
    let many = redis().and_then(|redis| Ok([ours(256 << 20, 256 << 20, Speaks::Redis)?, redis]));
    match many {
        Ok(pair) => sheet.add([connections(&pair, limit)]),
        Err(why) => sheet.add([Row::absent("kv.connections", "connections", why)]),
    }
    Ok(sheet.end())
}

/// The rows of a pair of servers. After one that cannot be measured come no more: what a server has said late would be taken for replies to other requests.
fn rows(
    sheet: &mut Sheet<'_>,
    sizes: &Sizes,
    (prefix, where_to, size): (&str, &str, &str),
    kinds: &[(&str, Kind)],
    pair: &mut [Subject; 2],
) {
    let filled = pair.iter_mut().try_for_each(|subject| subject.fill(sizes.keys));
    if let Err(error) = filled {
        let why = format!("a server cannot be filled: {error}");
        return sheet.add([Row::absent(format!("{prefix}.get.p1.{where_to}"), "1/s", why)]);
    }
    for &(name, kind) in kinds {
        for ahead in [1, 16] {
            let id = format!("{prefix}.{name}.p{ahead}.{where_to}");
            match row(sheet, sizes, (id.clone(), size), (kind, ahead), pair) {
                Ok(row) => sheet.add([row]),
                Err(error) => return sheet.add([Row::absent(id, "1/s", error.to_string())]),
            }
        }
    }
}

fn row(
    sheet: &mut Sheet<'_>,
    sizes: &Sizes,
    (id, size): (String, &str),
    (kind, ahead): (Kind, usize),
    pair: &mut [Subject; 2],
) -> io::Result<Row> {
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
    let row = Row::figure(id, "1/s", ours, operations);
    let row = row.beside(Some(theirs)).with_cpu(cpu[0].per_operation());
    let theirs = cpu[1].per_operation();
    let theirs = theirs
        .map_or_else(String::new, |nanos| format!("; the other's CPU time: {nanos:.0} ns an operation"));
    Ok(Row { why: Some(format!("{size}{theirs}")), ..row })
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// Raises the bound of this process on descriptors as far as `kv.connections` needs and may; the bound then.
fn raise_descriptors() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = MANY as u64 + DESCRIPTORS;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let most = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if current.is_none_or(|current| current >= wanted) {
        return wanted;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum }) {
        Ok(()) => most,
        Err(_) => current.unwrap_or(most),
    }
}

/// How many of [`MANY`] connections are answered while all are open, by each.
fn connections(pair: &[Subject; 2], limit: u64) -> Row {
    let answered = pair.each_ref().map(|subject| {
        let open = (0..MANY).map_while(|_| TcpStream::connect(subject.address).ok()).collect::<Vec<_>>();
        let asked = open.into_iter().map_while(|mut stream| {
            let _it_waits_for_ever = stream.set_read_timeout(Some(Duration::from_secs(60)));
            stream.write_all(b"PING\r\n").ok().map(|()| stream)
        });
        let mut said = [0; 7];
        let all: Vec<TcpStream> = asked.collect();
        all.iter()
            .filter(|stream| (&mut &**stream).read_exact(&mut said).is_ok() && said == *b"+PONG\r\n")
            .count()
    });
    let [ours, theirs] = answered.map(|count| to_f64(count as u64));
    let few = (ours < MANY as f64)
        .then(|| format!("of {MANY}: this process may have {limit} descriptors (ulimit -n)"));
    Row { why: few, ..Row::figure("kv.connections", "connections", ours, MANY as u64).beside(Some(theirs)) }
}
