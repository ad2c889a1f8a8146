//! `pd3.e2e.*` and `pd3.path.*`: applications with a hundredth of their items here, whose clients' requests a DPU sees before they are carried out (PD3 8.2 and 8.3).
//!
//! Two applications, with requests of PROTOCOL 19.14: the hash map (keys and values of eight bytes) and the page server (4 KiB). Each answers the same requests in five ways: all items
//! local; with READs one by one; with the READs of a piece of requests together; with those of several pieces under way; and with what the DPU put into the loading zone. The
//! application's thread has a CPU of its own; DPU, switch and memory nodes share the other.
//!
//! On so few CPUs the other one is full before the application's is. So the DPU's requests come at a pace: the fastest of a ladder at which at most [`MISSED_MAX`] of the
//! look-ups find nothing. `.throughput` is that pace; `.host_cpu` is what a request costs the application's thread at it, beside all items local at the same pace.
//!
//! Every answer is checked.

mod here;
mod program;
mod requests;
mod sizes;
mod stages;
mod store;

use crate::cpu::on_its_own;
use crate::pulse::{NodeKind, Racks};
use crate::rates::cpu_time;
use crate::samples::median;
use crate::{Plan, Row, Samples, Sheet, to_f64};
use farmem::prefetch::tap::tap;
use farmem::prefetch::{
    Beside, Change, Config, Driver, FLOORS, HostKeys, KeySecret, KeysConfig, SharedZone, Taker, ZoneSize,
};
use farmem::{Client, Error, Rack, RackConfig, Ticket};
use farmem_io::affinity::allowed_cpus;
use farmem_io::pin_to_cpu;
use here::Here;
use program::{Parts, Program};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::yield_now;
use std::time::{Duration, Instant};
use store::Far;
pub(super) use store::Kind;

const DOMAIN: &str = "pd3";
const SECRET: KeySecret = KeySecret([0x5044_3303, 4791]);
/// Pieces between the arrival of a piece and its turn: the queue in which requests wait.
const LEAD: usize = 16;
/// Pieces whose READs are under way at once where several are.
const DEPTH: usize = 8;
/// Look-ups that find nothing, in a thousand, at most.
const MISSED_MAX: u64 = 10;
/// Part of the requests of a round that are answered without prefetching: they wait for far memory one by one.
const WITHOUT_PART: usize = 8;
/// Steps of the ladder of paces, from slow to fast, and how much shorter the time between two pieces is in each.
const STEPS: u32 = 8;
const STEP: f64 = 0.8;
/// The first pace: so many times what the path takes for each key.
const FIRST: f64 = 4.0;

/// Which items are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Draw {
    Uniform,
    Zipf,
}

impl Draw {
    const ALL: [Self; 2] = [Self::Uniform, Self::Zipf];

    const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
        }
    }
}

/// The rows.
#[cfg(test)]
pub(super) fn ids() -> Vec<String> {
    let mut ids = Vec::new();
    for kind in Kind::ALL {
        let path = format!("pd3.path.{}", kind.name());
        ids.extend([format!("{path}.ns_per_key"), format!("{path}.wall")]);
        for draw in Draw::ALL {
            let id = format!("pd3.e2e.{}.{}", kind.name(), draw.name());
            ids.extend(ROWS.iter().map(|row| format!("{id}.{row}")));
        }
        if kind == Kind::Hash {
            ids.extend(stages::ids());
            ids.extend(sizes::ids());
        }
    }
    ids
}

#[cfg(test)]
const ROWS: [&str; 13] = [
    "local",
    "sync",
    "batched",
    "async",
    "throughput",
    "without",
    "over_sync",
    "over_batched",
    "host_cpu",
    "p50",
    "p99",
    "missed",
    "wasted",
];

/// How large it is.
#[derive(Clone, Copy, Debug)]
struct Size {
    kind: Kind,
    items: u64,
    /// Items that are here.
    here: usize,
    /// Requests of a piece.
    piece: usize,
    /// Pieces of a measurement.
    pieces: usize,
    zone: ZoneSize,
    /// What is here is there from the beginning; else as requests bring it.
    filled: bool,
}

impl Size {
    fn of(kind: Kind, quick: bool) -> Self {
        let items = match (kind, quick) {
            (Kind::Hash | Kind::Kv, false) => 4_000_000,
            (Kind::Hash | Kind::Kv, true) => 40_000,
            (Kind::Pages, false) => 64 << 10,
            (Kind::Pages, true) => 4 << 10,
        };
        let hundredth = usize::try_from(items / 100).expect("few");
        let (piece, zone) = match kind {
            Kind::Hash | Kind::Kv => (64, ZoneSize { items: 4096, data: 4096 }),
            Kind::Pages => (8, ZoneSize { items: 256, data: 1 << 20 }),
        };
        let pieces = if quick { 100 } else { 64_000 / piece };
        // The zone is of the hundredth, as far as that is larger.
        let of_zone = match kind {
            Kind::Hash | Kind::Kv => zone.items * 96 / 16,
            Kind::Pages => zone.items,
        };
        let here = hundredth.saturating_sub(of_zone).max(hundredth / 2);
        Self { kind, items, here, piece, pieces, zone, filled: false }
    }

    /// Bytes of a piece.
    const fn piece_len(&self) -> usize {
        self.piece * self.kind.request_len()
    }

    const fn requests(&self) -> u64 {
        (self.piece * self.pieces) as u64
    }
}

/// Measures what `plan` says on racks of `racks`.
pub(super) fn measure<R: Racks>(plan: &Plan, racks: &mut R, sheet: &mut Sheet<'_>) -> Result<(), R::Failure> {
    let cpus = allowed_cpus().unwrap_or_default();
    for kind in Kind::ALL {
        let (e2e, path) = (format!("pd3.e2e.{}.", kind.name()), format!("pd3.path.{}.", kind.name()));
        let of_hash = kind == Kind::Hash && (sizes::are_wanted(plan) || stages::are_wanted(plan));
        if !plan.wants(&e2e) && !plan.wants(&path) && !of_hash {
            continue;
        }
        sheet.begins(&format!("load of {}", kind.name()));
        let size = Size::of(kind, plan.quick);
        let rack = racks.start(1, NodeKind::Offload, kind.memory(size.items))?;
        let config = rack.as_ref().config().expect("a rack that runs has a description").clone();
        // Clients bind the thread that opens them to a CPU.
        let (rows, wrong) = on_its_own(|| Bench::new(config, size, cpus.clone())?.rows(plan))?;
        sheet.add(rows);
        sheet.add_wrong(wrong);
    }
    Ok(())
}

/// READs of a piece that are under way, with their keys.
type Reads<'p> = Vec<(Ticket, &'p [u8])>;

/// What all threads know.
struct Ground {
    config: RackConfig,
    size: Size,
    far: Far,
    cpus: Vec<usize>,
}

struct Bench {
    ground: Ground,
    client: Client,
    wrong: u64,
}

/// What a way of answering took.
#[derive(Clone, Debug)]
struct Taken {
    wall: Duration,
    /// Of the application's thread.
    cpu: Duration,
    missed: u64,
    requests: u64,
    /// What requests took, each as long as the others of its piece.
    each: Samples,
}

/// What came of it with a DPU.
struct Ahead {
    /// The time between two pieces: the shortest at which nearly all was there.
    pace: Duration,
    /// What was taken at it.
    taken: Vec<Taken>,
    /// What was taken, as fast as it went, when the application did not hand its requests over: PD3 without prefetching.
    without: Taken,
    /// Items that were fetched for nothing.
    wasted: u64,
}

impl Taken {
    fn rate(&self) -> f64 {
        to_f64(self.requests) / self.wall.as_secs_f64()
    }

    fn cpu_ns(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e9 / to_f64(self.requests)
    }
}

impl Ground {
    fn client(&self) -> Result<Client, Error> {
        Rack::running(self.config.clone()).client(DOMAIN)
    }

    /// The application's CPU: the last one. Opening a client may have bound the thread to another.
    fn to_own_cpu(&self) {
        if let [_, .., last] = self.cpus[..] {
            let _stays_where_it_is = pin_to_cpu(last);
        }
    }

    /// The CPU of all others.
    fn to_other_cpu(&self) {
        if let [first, ..] = self.cpus[..] {
            let _stays_where_it_is = pin_to_cpu(first);
        }
    }

    /// A driver over the far store and a zone, and the application's ends.
    fn driver(&self) -> Result<(Driver<HostKeys, Far, SharedZone>, Parts), Error> {
        let (tap, watch) = tap(4 << 20, SECRET);
        let beside = Beside::new(tap.clone(), SECRET, FLOORS, Change(1));
        let (zone, reader) = SharedZone::make(self.size.zone)?;
        let view = HostKeys::new(KeysConfig::new(2 * self.size.here + self.size.zone.items))?;
        let client = self.client()?;
        let parts = (watch, &beside, Change(1));
        let driver = Driver::new(Config::DEFAULT, view, parts, client, self.far.clone(), zone);
        Ok((driver, Parts { tap, beside, reader }))
    }
}

impl Bench {
    fn new(config: RackConfig, size: Size, cpus: Vec<usize>) -> Result<Self, Error> {
        let mut client = Rack::running(config.clone()).client(DOMAIN)?;
        let far = Far::load(&mut client, size.kind, size.items)?;
        Ok(Self { ground: Ground { config, size, far, cpus }, client, wrong: 0 })
    }

    fn rows(mut self, plan: &Plan) -> Result<(Vec<Row>, u64), Error> {
        let kind = self.ground.size.kind.name();
        let mut rows = Vec::new();
        let (own, wall) = self.path()?;
        let n = self.ground.size.requests();
        let why = "CPU time of the DPU's thread";
        rows.push(Row {
            why: Some(why.into()),
            ..Row::figure(format!("pd3.path.{kind}.ns_per_key"), "ns", own, n).beside(Some(170.0))
        });
        let why = "with the memory node's part, on the same CPU";
        rows.push(Row {
            why: Some(why.into()),
            ..Row::figure(format!("pd3.path.{kind}.wall"), "ns", wall, n)
        });
        self.ground.to_own_cpu();
        for draw in Draw::ALL {
            let id = format!("pd3.e2e.{kind}.{}", draw.name());
            if plan.wants(&format!("{id}.")) {
                rows.extend(self.compare(&id, draw, wall, if plan.quick { 1 } else { 3 })?);
            }
        }
        if kind == Kind::Hash.name() {
            if stages::are_wanted(plan) {
                rows.extend(stages::measure(&mut self)?);
            }
            self.ground.to_own_cpu();
            if sizes::are_wanted(plan) {
                rows.extend(sizes::measure(&mut self, plan, wall)?);
            }
        }
        Ok((rows, self.wrong))
    }

    /// What the DPU's path takes for each key, without an application: CPU time of its thread, and time that passes, in nanoseconds.
    fn path(&mut self) -> Result<(f64, f64), Error> {
        self.ground.to_other_cpu();
        let (driver, parts) = self.ground.driver()?;
        let mut taker = Taker::new(&parts.reader, &parts.beside);
        let take = |key: &[u8], into: &mut Vec<u8>| taker.take(key, into).is_some();
        let path = stages::path(&self.ground.size, driver, (&parts.tap, &parts.beside), take)?;
        self.wrong += path.wrong;
        Ok((path.own, path.wall))
    }

    /// All ways on the same requests, in rounds.
    fn compare(&mut self, id: &str, draw: Draw, path: f64, rounds: u64) -> Result<Vec<Row>, Error> {
        let requests: Vec<Vec<u8>> =
            (0..=rounds).map(|round| self.ground.size.draw(draw, 100 + round)).collect();
        let mut all = Here::all(self.ground.size.kind, self.ground.size.items);
        let mut caches = [(); 3].map(|()| Here::some(self.ground.size.kind, self.ground.size.here));
        let mut taken: [Vec<Taken>; 5] = Default::default();
        for (round, requests) in requests.iter().enumerate() {
            let [sync, batched, pipelined] = &mut caches;
            let ways = [
                self.local(&mut all, requests, None),
                self.sync(sync, requests)?,
                self.read_together(batched, requests, 1)?,
                self.read_together(pipelined, requests, DEPTH)?,
            ];
            if round > 0 {
                taken.iter_mut().zip(ways).for_each(|(taken, way)| taken.push(way));
            }
        }
        let Ahead { pace, taken: ahead, without, wasted } = self.ahead(path, &requests)?;
        let at_pace: Vec<Taken> =
            requests[1..].iter().map(|requests| self.local(&mut all, requests, Some(pace))).collect();
        let middle = |taken: &[Taken], what: fn(&Taken) -> f64| {
            median(&mut taken.iter().map(what).collect::<Vec<_>>())
        };
        let n = self.ground.size.requests() * rounds;
        let rate = |row: &str, of: &[Taken], beside: Option<f64>| {
            let value = middle(of, Taken::rate);
            let row = Row::figure(format!("{id}.{row}"), "1/s", value, n).beside(beside);
            row.with_cpu(Some(middle(of, Taken::cpu_ns)))
        };
        let [local, sync, batched, pipelined, _] = &taken;
        let local_rate = Some(middle(local, Taken::rate));
        let nanos = to_f64(u64::try_from(pace.as_nanos()).unwrap_or(u64::MAX))
            / to_f64(self.ground.size.piece as u64);
        let here = format!(
            "{} items here, a zone of {} items and {} bytes, of {} items; a request each {nanos:.0} ns, {} wait",
            self.ground.size.here,
            self.ground.size.zone.items,
            self.ground.size.zone.data,
            self.ground.size.items,
            LEAD * self.ground.size.piece
        );
        let missed: u64 = ahead.iter().map(|taken| taken.missed).sum();
        let each = |taken: &[Taken]| {
            let mut all = Samples::new();
            taken.iter().for_each(|taken| all.add(&taken.each));
            all
        };
        let (each_ahead, each_sync) = (each(&ahead), each(sync));
        let times = |row: &str, quantile| {
            let why = "of a piece's requests, divided by their number; beside READs one by one".to_owned();
            let value = each_ahead.quantile(quantile);
            let row =
                Row::figure(format!("{id}.{row}"), "ns", value, n).beside(Some(each_sync.quantile(quantile)));
            Row { why: Some(why), ..row }
        };
        let throughput = rate("throughput", &ahead, local_rate);
        let cpu = middle(&ahead, Taken::cpu_ns);
        Ok(vec![
            rate("local", local, None),
            rate("sync", sync, local_rate),
            rate("batched", batched, local_rate),
            rate("async", pipelined, local_rate),
            Row { why: Some(here), ..throughput },
            rate("without", &[without], local_rate),
            rate("over_sync", &ahead, Some(middle(sync, Taken::rate))),
            rate("over_batched", &ahead, Some(middle(batched, Taken::rate))),
            Row::figure(format!("{id}.host_cpu"), "ns", cpu, n)
                .with_cpu(Some(cpu))
                .beside(Some(middle(&at_pace, Taken::cpu_ns))),
            times("p50", 0.5),
            times("p99", 0.99),
            Row::figure(format!("{id}.missed"), "requests", to_f64(missed), n),
            Row::figure(format!("{id}.wasted"), "items", to_f64(wasted), n),
        ])
    }

    /// All items are local.
    fn local(&mut self, here: &mut Here, requests: &[u8], pace: Option<Duration>) -> Taken {
        let mut answer = Vec::new();
        let (kind, piece) = (self.ground.size.kind, self.ground.size.piece_len());
        let mut wrong = 0;
        let taken = paced(kind, requests.chunks(piece), pace, |piece| {
            for key in kind.keys_in(piece) {
                let found = here.get(kind.item(key), &mut answer);
                wrong += u64::from(!found || !kind.is_right(key, &answer));
            }
            Ok::<u64, Error>(0)
        });
        self.wrong += wrong;
        taken.unwrap_or_else(|_| unreachable!("nothing here fails"))
    }

    /// READs one by one.
    fn sync(&mut self, here: &mut Here, requests: &[u8]) -> Result<Taken, Error> {
        let mut answer = Vec::new();
        let (kind, piece) = (self.ground.size.kind, self.ground.size.piece_len());
        let (far, client, mut wrong) = (&self.ground.far, &mut self.client, 0);
        let taken = paced(kind, requests.chunks(piece), None, |piece| {
            let mut missed = 0;
            for key in kind.keys_in(piece) {
                if !here.get(kind.item(key), &mut answer) {
                    missed += 1;
                    far.get(client, key, &mut answer)?;
                    let _evicted = here.put(kind.item(key), &answer);
                }
                wrong += u64::from(!kind.is_right(key, &answer));
            }
            Ok(missed)
        });
        self.wrong += wrong;
        taken
    }

    /// The READs of `depth` pieces are under way together.
    fn read_together(&mut self, here: &mut Here, requests: &[u8], depth: usize) -> Result<Taken, Error> {
        let mut answer = Vec::new();
        let (kind, piece) = (self.ground.size.kind, self.ground.size.piece_len());
        let (far, client, mut wrong) = (&self.ground.far, &mut self.client, 0);
        let mut under_way: VecDeque<Reads<'_>> = VecDeque::new();
        let mut finish = |client: &mut Client, here: &mut Here, reads: Reads<'_>| {
            for (ticket, key) in reads {
                let completed = client.wait(ticket)?;
                far.answer(key, &completed, &mut answer)?;
                client.recycle(completed.buf);
                wrong += u64::from(!kind.is_right(key, &answer));
                let _evicted = here.put(kind.item(key), &answer);
            }
            Ok::<(), Error>(())
        };
        let (begin, cpu, mut missed) = (Instant::now(), cpu_time(), 0);
        for piece in requests.chunks(piece) {
            let mut reads = Vec::new();
            let mut local = Vec::new();
            for key in kind.keys_in(piece) {
                if here.get(kind.item(key), &mut local) {
                    continue;
                }
                let buf = client.buffer(0);
                reads.push((client.submit(far.read_op(key, buf))?, key));
            }
            missed += reads.len() as u64;
            under_way.push_back(reads);
            if under_way.len() >= depth
                && let Some(oldest) = under_way.pop_front()
            {
                finish(client, here, oldest)?;
            }
        }
        for oldest in under_way {
            finish(client, here, oldest)?;
        }
        let taken = Taken {
            wall: begin.elapsed(),
            cpu: cpu_time() - cpu,
            missed,
            requests: self.ground.size.requests(),
            each: Samples::new(),
        };
        self.wrong += wrong;
        Ok(taken)
    }

    /// With a DPU.
    fn ahead(&mut self, path: f64, requests: &[Vec<u8>]) -> Result<Ahead, Error> {
        let stop = AtomicBool::new(false);
        let (give, take) = std::sync::mpsc::channel();
        let ground = &self.ground;
        let (outcome, wrong, wasted) = std::thread::scope(|threads| {
            let stop = &stop;
            let dpu = threads.spawn(move || {
                ground.to_other_cpu();
                let (mut driver, parts) = ground.driver()?;
                let _it_waits = give.send(parts);
                while !stop.load(Ordering::Relaxed) {
                    if !driver.turn()? {
                        yield_now();
                    }
                }
                driver.settle()?;
                Ok::<u64, Error>(driver.prefetcher().account().wasted)
            });
            let outcome = take.recv().ok().map(|parts| ground.at_a_pace(&parts, path, requests));
            stop.store(true, Ordering::Relaxed);
            let wasted = dpu.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            let (outcome, wrong) = outcome.expect("a driver that began gave its parts")?;
            Ok::<_, Error>((outcome, wrong, wasted))
        })?;
        self.wrong += wrong;
        Ok(Ahead { wasted, ..outcome })
    }
}

impl Ground {
    fn at_a_pace(&self, parts: &Parts, path: f64, requests: &[Vec<u8>]) -> Result<(Ahead, u64), Error> {
        let mut client = self.client()?;
        self.to_own_cpu();
        let mut program = Program {
            kind: self.size.kind,
            here: Here::some(self.size.kind, self.size.here),
            far: &self.far,
            client: &mut client,
            taker: Taker::new(&parts.reader, &parts.beside),
            connection: self.size.kind.connection(&parts.tap),
            parts,
            hands_over: true,
            dropped: Vec::new(),
            answer: Vec::new(),
            wrong: 0,
        };
        let (warm, rounds) = requests.split_first().expect("a round that warms up");
        let mut pace =
            Duration::from_nanos(1).mul_f64((path * FIRST * to_f64(self.size.piece as u64)).max(1.0));
        if self.size.filled {
            program.fill(self.size.items, self.size.here);
        }
        program.run(warm, self.size.piece, pace)?;
        let mut best = pace;
        for _ in 0..STEPS {
            let taken = program.run(warm, self.size.piece, pace)?;
            if taken.missed * 1000 > taken.requests * MISSED_MAX {
                break;
            }
            best = pace;
            pace = pace.mul_f64(STEP);
        }
        let taken = rounds.iter().map(|requests| program.run(requests, self.size.piece, best));
        let taken = taken.collect::<Result<Vec<_>, _>>()?;
        program.hands_over = false;
        let part = warm.len() / WITHOUT_PART / self.size.piece_len() * self.size.piece_len();
        let without = program.run(&warm[..part], self.size.piece, Duration::ZERO)?;
        Ok((Ahead { pace: best, taken, without, wasted: 0 }, program.wrong))
    }
}

/// Pieces one after the other, or each at its time; `carry_out` says how many look-ups found nothing. CPU time is that of the pieces.
fn paced<'p, E>(
    kind: Kind,
    pieces: impl Iterator<Item = &'p [u8]>,
    pace: Option<Duration>,
    mut carry_out: impl FnMut(&'p [u8]) -> Result<u64, E>,
) -> Result<Taken, E> {
    let (begin, mut cpu) = (Instant::now(), Duration::ZERO);
    let (mut missed, mut requests, mut each) = (0, 0, Samples::new());
    for (at, piece) in (0_u64..).zip(pieces) {
        if let Some(pace) = pace {
            wait_until(begin + pace.mul_f64(to_f64(at)));
        }
        let (from, its_begin) = (cpu_time(), Instant::now());
        missed += carry_out(piece)?;
        let count = kind.keys_in(piece).count();
        each.record(its_begin.elapsed() / u32::try_from(count).unwrap_or(u32::MAX).max(1));
        cpu += cpu_time() - from;
        requests += count as u64;
    }
    Ok(Taken { wall: begin.elapsed(), cpu, missed, requests, each })
}

/// Waits with the CPU kept busy, as a thread that polls its network does.
fn wait_until(at: Instant) {
    while Instant::now() < at {
        std::hint::spin_loop();
    }
}
