//! `kv.*`: `farmem kv` compared with redis-server and memcached (PD3 figures 13 and 17 use Garnet).
//!
//! All servers are processes bound to one CPU. The load is one thread of this process, bound to another CPU.
//! The load has `CONNECTIONS` connections, pipelines as many requests on each as the row's id says, and checks
//! every reply. Slices of both servers alternate, and each server goes first equally often; a row has the
//! medians.
//!
//! `.local` keeps all data in local memory. `.far` has a twentieth of the data's bytes as `--local`,
//! including index and process, but at least what those need. Each row states the size and the number of far
//! READs.

mod load;

use crate::{CpuMeter, CpuTime, Plan, Row, Sheet, to_f64};
use farmem::{Rack, Rng};
use load::{Batch, Kind, Protocol, VALUE_LEN};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Connections of the load.
const CONNECTIONS: usize = 16;
const SEED: u64 = 15;
/// Connections of `kv.connections`, and other descriptors.
const MANY: usize = 10_000;
const DESCRIPTORS: u64 = 100;
/// Bound on the wait for a reply, or for a server's start.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bound on the wait for one of many connections, or for its reply. The first that takes longer is the last.
const PATIENCE_OF_MANY: Duration = Duration::from_secs(10);
/// Bytes of a key.
const KEY_LEN: u64 = 16;
/// Bytes of the index per key, including free entries.
const INDEX_BYTES: u64 = 34;
/// A server's memory besides index and tail: the process, and its connections' buffers.
const PROCESS_BYTES: u64 = 14 << 20;
/// The smallest valid `--local`.
const LOCAL_MIN: u64 = 16 << 20;

/// The extent of the measurement.
struct Sizes {
    keys: u32,
    pairs: usize,
    slice: Duration,
}

impl Sizes {
    /// Returns the bytes of all keys and values.
    fn data(&self) -> u64 {
        u64::from(self.keys) * (VALUE_LEN as u64 + KEY_LEN)
    }

    /// Returns the `--local` that keeps all data local.
    fn all_local(&self) -> u64 {
        2 * self.data() + (256 << 20)
    }

    /// Returns the `--local` for a twentieth of the data, but at least what index and process take.
    fn mostly_far(&self) -> u64 {
        (self.data() / 20).max(u64::from(self.keys) * INDEX_BYTES + PROCESS_BYTES).max(LOCAL_MIN)
    }
}

/// Pipelined requests per connection.
const AHEAD: [usize; 2] = [1, 16];
const KINDS: [(&str, Kind); 3] = [("get", Kind::Get), ("set", Kind::Set), ("mset", Kind::Mset)];

/// A server under load.
struct LoadedServer {
    child: Child,
    connections: Vec<TcpStream>,
    address: SocketAddr,
    /// The address of a query for far READs, if the server has any.
    counts: Option<SocketAddr>,
    protocol: Protocol,
    rng: Rng,
}

impl Drop for LoadedServer {
    fn drop(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _it_may_have_ended = self.child.wait();
    }
}

/// The result of a slice.
#[derive(Clone, Copy, Default)]
struct SliceResult {
    operations: u64,
    wrong: u64,
    seconds: f64,
    cpu: Option<Duration>,
    far_reads: u64,
}

/// CPUs of the servers and of the load, as far as there are two.
#[derive(Clone, Copy)]
struct Cpus {
    servers: usize,
    load: Option<usize>,
}

impl LoadedServer {
    fn start(
        cpus: Cpus,
        program: &str,
        args: &[&str],
        port: u16,
        protocol: Protocol,
    ) -> Result<Self, String> {
        let said = |error: io::Error| format!("{program}: {error}");
        let mut command = Command::new("taskset");
        command.args(["-c", &cpus.servers.to_string(), program]).args(args);
        // The server's output is read after its end, and is a few lines.
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("taskset: {error} (util-linux)"))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let rng = Rng::from_number(SEED);
        let mut subject = Self { child, connections: Vec::new(), address, counts: None, protocol, rng };
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = subject.child.try_wait().map_err(said)? {
                let mut why = String::new();
                if let Some(mut stderr) = subject.child.stderr.take() {
                    let _what_there_is = stderr.read_to_string(&mut why);
                }
                let why = why.lines().last().unwrap_or("is it installed (scripts/setup)?").to_owned();
                return Err(format!("{program} ended with {status}: {why}"));
            }
            if begin.elapsed() > PATIENCE {
                return Err(format!("{program} does not listen"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        for _ in 0..CONNECTIONS {
            let stream = TcpStream::connect(address).map_err(said)?;
            stream.set_nodelay(true).map_err(said)?;
            // A hanging server ends the run.
            stream.set_read_timeout(Some(PATIENCE)).map_err(said)?;
            stream.set_write_timeout(Some(PATIENCE)).map_err(said)?;
            subject.connections.push(stream);
        }
        Ok(subject)
    }

    fn fill(&mut self, keys: u32) -> io::Result<()> {
        load::fill(&mut self.connections[0], self.protocol, keys)
    }

    /// Overwrites as many random values as there are keys. Far memory and its log then have their final size,
    /// and rows show the steady state.
    fn write_over(&mut self, keys: u32) -> io::Result<()> {
        load::write_over(&mut self.connections[0], self.protocol, keys, &mut self.rng)
    }

    /// Sends requests on all connections for the slice, `ahead` pipelined on each.
    fn load(&mut self, kind: Kind, ahead: usize, keys: u32, slice: Duration) -> io::Result<SliceResult> {
        let mut did = SliceResult::default();
        let mut batches = vec![Batch::new(kind, self.protocol, ahead); self.connections.len()];
        let before = self.far_reads()?;
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
        did.far_reads = self.far_reads()? - before;
        Ok(did)
    }

    /// Returns the READs of far memory so far; 0 for a server without far memory.
    fn far_reads(&self) -> io::Result<u64> {
        let Some(address) = self.counts else { return Ok(0) };
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"INFO farmem\r\nQUIT\r\n")?;
        let mut said = String::new();
        stream.read_to_string(&mut said)?;
        let count = said.lines().find_map(|line| line.strip_prefix("far_reads:")?.parse().ok());
        count.ok_or_else(|| io::Error::other("INFO has no far_reads"))
    }
}

/// Returns distinct ports that are free now.
fn free_ports<const N: usize>() -> Result<[u16; N], String> {
    let mut ports = [0; N];
    let mut held = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| error.to_string())?;
        *port = listener.local_addr().map_err(|error| error.to_string())?.port();
        held.push(listener);
    }
    Ok(ports)
}

fn redis(cpus: Cpus) -> Result<LoadedServer, String> {
    let [port] = free_ports()?;
    let port_text = port.to_string();
    let args = ["--port", &port_text, "--save", "", "--appendonly", "no", "--maxclients", "10100"];
    LoadedServer::start(cpus, "redis-server", &args, port, Protocol::Redis)
}

fn memcached(cpus: Cpus, sizes: &Sizes) -> Result<LoadedServer, String> {
    let [port] = free_ports()?;
    let (port_text, megabytes) = (port.to_string(), (((2 * sizes.data()) >> 20) + 64).to_string());
    let args = ["-u", "root", "-l", "127.0.0.1", "-p", &port_text, "-t", "1", "-m", &megabytes];
    LoadedServer::start(cpus, "memcached", &args, port, Protocol::Memcached)
}

fn ours(
    cpus: Cpus,
    (local, far): (u64, u64),
    protocol: Protocol,
    more: &[&str],
) -> Result<LoadedServer, String> {
    let ports: [u16; 2] = free_ports()?;
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
    ];
    let port = ports[usize::from(protocol == Protocol::Memcached)];
    let args = [&args[..], more].concat();
    let mut subject = LoadedServer::start(cpus, &own.to_string_lossy(), &args, port, protocol)?;
    subject.counts = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, ports[0])));
    Ok(subject)
}

/// Starts two servers on one rack: one with read-ahead and one without.
fn ahead_or_not(cpus: Cpus, local: u64, rack: &Rack) -> Result<[LoadedServer; 2], String> {
    let file = rack.config().map(|config| config.file.to_string_lossy().into_owned());
    let file = file.ok_or("a rack of processes has a description")?;
    let begun = |domain, more: &[&str]| {
        ours(cpus, (local, 0), Protocol::Redis, &[&["--rack", &file, "--domain", domain], more].concat())
    };
    Ok([begun("ahead", &[])?, begun("not-ahead", &["--no-read-ahead"])?])
}

/// Measures what `plan` selects. `start` starts a rack of processes, with one memory node of this many bytes,
/// that runs until it is dropped.
///
/// # Errors
/// The system's error when no load can be generated.
pub(crate) fn measure(
    plan: &Plan,
    start: &mut dyn FnMut(u64) -> Result<Box<dyn AsRef<Rack>>, String>,
    sheet: &mut Sheet<'_>,
) -> io::Result<()> {
    let sizes = if plan.quick {
        Sizes { keys: 40_000, pairs: 2, slice: Duration::from_millis(100) }
    } else {
        Sizes { keys: 1_000_000, pairs: 5, slice: Duration::from_millis(400) }
    };
    let allowed = farmem_link::affinity::allowed_cpus()?;
    let cpus = Cpus { servers: allowed.first().copied().unwrap_or(0), load: allowed.get(1).copied() };
    if let Some(cpu) = cpus.load {
        farmem_link::pin_to_cpu(cpu)?;
    }
    for (where_to, local) in [("local", sizes.all_local()), ("far", sizes.mostly_far())] {
        let mut size = format!(
            "{} keys of {VALUE_LEN} B ({} MiB), {} MiB of local memory ({:.1} % of the data)",
            sizes.keys,
            sizes.data() >> 20,
            local >> 20,
            100.0 * to_f64(local) / to_f64(sizes.data())
        );
        if cpus.load.is_none() {
            size += ", the load on the same CPU";
        }
        let pair = |protocol| {
            let theirs = match protocol {
                Protocol::Redis => redis(cpus)?,
                Protocol::Memcached => memcached(cpus, &sizes)?,
            };
            Ok::<_, String>([ours(cpus, (local, sizes.all_local()), protocol, &[])?, theirs])
        };
        for (name, protocol, kinds) in
            [("kv", Protocol::Redis, &KINDS[..]), ("kv.memcached", Protocol::Memcached, &KINDS[..2])]
        {
            let id = |kind: &str, ahead: usize| format!("{name}.{kind}.p{ahead}.{where_to}");
            let rows_of =
                kinds.iter().flat_map(|&(name, kind)| AHEAD.map(|ahead| (id(name, ahead), kind, ahead)));
            let wanted: Vec<_> = rows_of.filter(|(id, ..)| plan.has(id)).collect();
            let Some((first, ..)) = wanted.first() else { continue };
            sheet.begins(&format!("{name}: {size}"));
            match pair(protocol) {
                Ok(mut pair) => rows(sheet, &sizes, &size, &wanted, &mut pair),
                Err(why) => sheet.add([Row::absent(first.clone(), "1/s", why)]),
            }
        }
    }
    let ahead = "kv.ahead.get.p16";
    if plan.has(ahead) {
        // Beside a rack of processes a server counts all of its memory, code and client included.
        let local = 2 * sizes.mostly_far();
        let size = format!("{} MiB of local memory for {} MiB of data", local >> 20, sizes.data() >> 20);
        sheet.begins("with and without reading ahead");
        // In a rack in this process a READ is a call, and early requests gain nothing.
        match start((2 * sizes.all_local()).next_multiple_of(1 << 20))
            .and_then(|rack| Ok((ahead_or_not(cpus, local, (*rack).as_ref())?, rack)))
        {
            Ok((mut pair, _rack)) => {
                rows(sheet, &sizes, &size, &[(ahead.to_owned(), Kind::Get, 16)], &mut pair);
            }
            Err(why) => sheet.add([Row::absent(ahead, "1/s", why)]),
        }
    }
    if plan.has("kv.connections") {
        sheet.begins("many connections");
        let limit = raise_descriptors();
        let many = redis(cpus)
            .and_then(|redis| Ok([ours(cpus, (256 << 20, 256 << 20), Protocol::Redis, &[])?, redis]));
        match many {
            Ok(pair) => sheet.add([connections(&pair, limit)]),
            Err(why) => sheet.add([Row::absent("kv.connections", "connections", why)]),
        }
    }
    Ok(())
}

/// Returns the rows of a pair of servers. After a failed row no more follow, because a late reply would be
/// taken for the reply to another request.
fn rows(
    sheet: &mut Sheet<'_>,
    sizes: &Sizes,
    size: &str,
    wanted: &[(String, Kind, usize)],
    pair: &mut [LoadedServer; 2],
) {
    let filled = pair.iter_mut().try_for_each(|subject| {
        subject.fill(sizes.keys)?;
        subject.write_over(sizes.keys)
    });
    for (id, kind, ahead) in wanted {
        sheet.begins(id);
        let measured = match &filled {
            Ok(()) => row(sheet, sizes, (id, size), (*kind, *ahead), pair).map_err(|error| error.to_string()),
            Err(error) => Err(format!("a server cannot be filled: {error}")),
        };
        match measured {
            Ok(row) => sheet.add([row]),
            Err(why) => return sheet.add([Row::absent(id.clone(), "1/s", why)]),
        }
    }
}

fn row(
    sheet: &mut Sheet<'_>,
    sizes: &Sizes,
    (id, size): (&str, &str),
    (kind, ahead): (Kind, usize),
    pair: &mut [LoadedServer; 2],
) -> io::Result<Row> {
    let mut rates = [Vec::new(), Vec::new()];
    let (mut cpu, mut operations) = ([CpuTime::default(), CpuTime::default()], [0, 0]);
    let mut far_reads = 0;
    for turn in 0..sizes.pairs {
        for place in 0..2 {
            // The first server finds the machine as the other one left it, so the order alternates.
            let number = (turn + place) % 2;
            let did = pair[number].load(kind, ahead, sizes.keys, sizes.slice)?;
            rates[number].push(to_f64(did.operations) / did.seconds);
            cpu[number].add(did.cpu, did.operations);
            operations[number] += did.operations;
            far_reads += if number == 0 { did.far_reads } else { 0 };
            sheet.add_wrong(did.wrong);
        }
    }
    let [ours, theirs] = rates.map(median);
    let row = Row::figure(id, "1/s", ours, operations.iter().sum());
    let row = row.beside(Some(theirs)).with_cpu(cpu[0].per_operation());
    let theirs = cpu[1].per_operation();
    let theirs = theirs
        .map_or_else(String::new, |nanos| format!("; the other's CPU time: {nanos:.0} ns an operation"));
    let far = to_f64(far_reads) / to_f64(operations[0].max(1));
    Ok(Row { why: Some(format!("{size}; {far:.2} far READs an operation{theirs}")), ..row })
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    f64::midpoint(rates[(rates.len() - 1) / 2], rates[rates.len() / 2])
}

/// Raises this process's descriptor limit as far as `kv.connections` needs and the system permits. Returns
/// the limit.
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

/// Counts how many of [`MANY`] connections each server answers while all are open.
fn connections(pair: &[LoadedServer; 2], limit: u64) -> Row {
    let answered = pair.each_ref().map(|subject| {
        let connect = |_| TcpStream::connect_timeout(&subject.address, PATIENCE_OF_MANY).ok();
        let mut open: Vec<TcpStream> = (0..MANY).map_while(connect).collect();
        let opened = open.len();
        let mut answered = 0;
        // A closed connection is not counted, and a silent one ends the count: waiting for thousands would
        // take too long.
        open.retain_mut(|stream| asks(stream).is_ok());
        for stream in &mut open {
            match hears(stream) {
                Ok(is_right) => answered += u64::from(is_right),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
                Err(_) => {}
            }
        }
        (opened, answered)
    });
    let [(opened, ours), (_, theirs)] = answered;
    let few = (ours < MANY as u64).then(|| {
        format!("of {MANY}: {opened} were opened; this process may have {limit} descriptors (ulimit -n)")
    });
    let row = Row::figure("kv.connections", "connections", to_f64(ours), MANY as u64);
    Row { why: few, ..row.beside(Some(to_f64(theirs))) }
}

fn asks(stream: &mut TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE_OF_MANY))?;
    stream.write_all(b"PING\r\n")
}

fn hears(stream: &mut TcpStream) -> io::Result<bool> {
    let mut said = [0; 7];
    stream.read_exact(&mut said)?;
    Ok(said == *b"+PONG\r\n")
}
