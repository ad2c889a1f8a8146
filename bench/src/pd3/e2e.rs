//! `pd3.e2e.*` and `pd3.path.*`: applications with a hundredth of their items here, whose clients' requests a DPU sees before they are carried out (PD3 8.2 and 8.3).
//!
//! Two applications, with requests of PROTOCOL 19.14: the hash map (keys and values of eight bytes) and the page server (4 KiB). Each answers the same requests in seven ways: all items
//! local; with READs one by one; the same with an LRU in the place of sets, and the index of all records here beside it; the same with Leap's prefetching; with the READs of a piece of requests
//! together; with those of several pieces under way; and with what the DPU put into the loading zone. The application's thread has a CPU of its own; DPU, switch and memory nodes share the other.
//! The DPU is a thread of the bench there; of the hash map's uniform requests it is the process of the rack, too (`process`).
//!
//! On so few CPUs the other one is full before the application's is. So the DPU's requests come at a pace: the fastest of a ladder at which at most [`MISSED_MAX`] of the
//! look-ups find nothing. `.throughput` is that pace; `.host_cpu` is what a request costs the application's thread at it, beside all items local at the same pace.
//!
//! Every answer is checked.

mod here;
mod process;
mod program;
mod requests;
mod sizes;
mod stages;
mod store;
mod ways;

use super::{DOMAIN, DPU};
use crate::cpu::CpuMeter;
use crate::pulse::{NodeKind, Racks};
use crate::samples::median;
use crate::{Plan, Row, Samples, Sheet, to_f64};
use farmem::prefetch::tap::tap;
use farmem::prefetch::{
    Beside, Change, Config, Driver, FLOORS, HostKeys, KeySecret, KeysConfig, SharedZone, Taker, ZoneSize,
};
use farmem::{Client, Error, Rack, RackConfig};
use farmem_io::affinity::allowed_cpus;
use farmem_io::pin_to_cpu;
use here::Here;
use program::{Parts, Program};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::yield_now;
use std::time::Duration;
use store::Far;
pub(super) use store::Kind;

const SECRET: KeySecret = KeySecret([0x5044_3303, 4791]);
/// Pieces between the arrival of a piece and its turn: the queue in which requests wait.
const LEAD: usize = 16;
/// Pieces whose READs are under way at once where several are.
const DEPTH: usize = 8;
/// Look-ups that find nothing, in a thousand, at most.
const MISSED_MAX: u64 = 10;
/// Part of the requests of a round that are answered without prefetching: they wait for far memory one by one.
const WITHOUT_PART: usize = 8;
/// Steps of the ladder of paces at most, from slow to fast, and how much shorter the time between two pieces is in each: it ends where too many look-ups find nothing.
const STEPS: u32 = 32;
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
        ids.extend(["ns_per_key", "wall", "copies"].map(|row| format!("{path}.{row}")));
        if kind == Kind::Pages {
            ids.push(format!("{path}.memcpy"));
        }
        if kind == Kind::Hash {
            ids.extend(process::PATH.map(str::to_owned));
        }
        for draw in Draw::ALL {
            let id = format!("pd3.e2e.{}.{}", kind.name(), draw.name());
            ids.extend(WAYS.iter().map(|way| format!("{id}.{way}")));
            ids.extend(ROWS.iter().map(|row| format!("{id}.{row}")));
            ids.extend(WAYS.iter().flat_map(|way| ["p50", "p99"].map(|row| format!("{id}.{way}.{row}"))));
            if process::is_measured(kind, draw) {
                ids.extend(process::ROWS.map(str::to_owned));
            }
        }
        if kind == Kind::Hash {
            ids.extend(stages::ids());
            ids.extend(sizes::ids());
        }
    }
    ids
}

/// The ways without a DPU.
pub(super) const WAYS: [&str; 6] = ["local", "sync", "lru", "leap", "batched", "async"];

#[cfg(test)]
const ROWS: [&str; 9] =
    ["throughput", "without", "over_sync", "over_batched", "host_cpu", "p50", "p99", "missed", "wasted"];

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
        let more = if kind == Kind::Hash { DPU } else { "" };
        let rack = racks.start_with(1, NodeKind::Offload, kind.memory(size.items), more)?;
        // Where roles are threads of this process, so is the DPU.
        let dpu = racks.role(&rack, "dpu").map_or_else(CpuMeter::own, CpuMeter::of);
        let config = rack.as_ref().config().expect("a rack that runs has a description").clone();
        let (say, said) = channel();
        let cpus = cpus.clone();
        // Clients bind the thread that opens them to a CPU.
        let wrong = std::thread::scope(|threads| {
            let bench = threads.spawn(move || Bench::new(config, size, (cpus, dpu), say)?.measure(plan));
            // Until the bench has ended, and with it the last sender.
            for told in said {
                match told {
                    Told::Begins(what) => sheet.begins(&what),
                    Told::Rows(rows) => sheet.add(rows),
                }
            }
            bench.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        sheet.add_wrong(wrong);
    }
    Ok(())
}

/// What a bench says while it runs.
enum Told {
    Begins(String),
    Rows(Vec<Row>),
}

/// What all threads know.
struct Ground {
    config: RackConfig,
    size: Size,
    far: Far,
    cpus: Vec<usize>,
    /// The process that prefetches, where one does.
    dpu: CpuMeter,
}

struct Bench {
    ground: Ground,
    client: Client,
    wrong: u64,
    say: Sender<Told>,
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
        let driver = Driver::new(Config::DEFAULT, view, parts, client, self.far.clone(), zone)?;
        let taker = Taker::new(&reader, &beside);
        Ok((driver, Parts { tap, beside, taker }))
    }
}

impl Bench {
    fn new(
        config: RackConfig,
        size: Size,
        (cpus, dpu): (Vec<usize>, CpuMeter),
        say: Sender<Told>,
    ) -> Result<Self, Error> {
        let mut client = Rack::running(config.clone()).client(DOMAIN)?;
        let far = Far::load(&mut client, size.kind, size.items)?;
        Ok(Self { ground: Ground { config, size, far, cpus, dpu }, client, wrong: 0, say })
    }

    /// Says what is measured now.
    fn begins(&self, what: &str) {
        // Whoever listened has panicked, and the bench ends with it.
        let _gone = self.say.send(Told::Begins(format!("{}: {what}", self.ground.size.kind.name())));
    }

    fn found(&self, rows: Vec<Row>) {
        let _gone = self.say.send(Told::Rows(rows));
    }

    /// Measures what is wanted; how many answers were wrong.
    fn measure(mut self, plan: &Plan) -> Result<u64, Error> {
        let kind = self.ground.size.kind.name();
        self.begins("the path of a key");
        let path = self.path()?;
        let stages::Path { own, wall, copies, .. } = path;
        let n = self.ground.size.requests();
        let row = |id: &str, unit, value, why: &str| {
            let row = Row::figure(format!("pd3.path.{kind}.{id}"), unit, value, n);
            Row { why: Some(why.into()), ..row }
        };
        self.found(vec![
            row("ns_per_key", "ns", own, "CPU time of the DPU's thread").beside(Some(170.0)),
            row("wall", "ns", wall, "with the memory node's part, on the same CPU"),
            row("copies", "copies", copies, "of an item, between the buffer in which it came and the zone"),
        ]);
        if self.ground.size.kind == Kind::Pages {
            let why = "of one plain copy of a page, from 1 MiB to another: it is moved from the ring to a buffer, and to the zone";
            self.found(vec![row("memcpy", "ns", stages::copy_of_page(), why)]);
        }
        self.ground.to_own_cpu();
        if self.ground.size.kind == Kind::Hash {
            let rows = process::path(&mut self, &path)?;
            self.found(rows);
        }
        for draw in Draw::ALL {
            let id = format!("pd3.e2e.{kind}.{}", draw.name());
            if plan.wants(&format!("{id}.")) {
                self.begins(draw.name());
                let rows = self.compare(&id, draw, wall, if plan.quick { 1 } else { 3 })?;
                self.found(rows);
            }
        }
        if kind == Kind::Hash.name() {
            if stages::are_wanted(plan) {
                self.begins("stages");
                let rows = stages::measure(&mut self)?;
                self.found(rows);
            }
            self.ground.to_own_cpu();
            sizes::measure(&mut self, plan, wall)?;
        }
        Ok(self.wrong)
    }

    /// What the DPU's path takes for each key, without an application: CPU time of its thread, and time that passes, in nanoseconds.
    fn path(&mut self) -> Result<stages::Path, Error> {
        self.ground.to_other_cpu();
        let (driver, Parts { tap, beside, mut taker }) = self.ground.driver()?;
        let take = |key: &[u8], into: &mut Vec<u8>| taker.take(key, into).is_some();
        let path = stages::path(&self.ground.size, driver, (&tap, &beside), take)?;
        self.wrong += path.wrong;
        Ok(path)
    }

    /// All ways on the same requests, in rounds.
    fn compare(&mut self, id: &str, draw: Draw, path: f64, rounds: u64) -> Result<Vec<Row>, Error> {
        let requests: Vec<Vec<u8>> =
            (0..=rounds).map(|round| self.ground.size.draw(draw, 100 + round)).collect();
        let Size { kind, items, here, .. } = self.ground.size;
        let mut all = Here::all(kind, items);
        let mut caches = [(); 4].map(|()| Here::some(kind, here));
        // A hundredth, as the others have with the zone.
        let hundredth = usize::try_from(items / 100).expect("few");
        let mut latest = Here::latest(hundredth);
        let index = self.ground.far.index(&mut self.client)?;
        let mut taken: [Vec<Taken>; WAYS.len()] = Default::default();
        let mut read_ahead = 0;
        for (round, requests) in requests.iter().enumerate() {
            let [sync, leap, batched, pipelined] = &mut caches;
            let ways = [
                self.local(&mut all, requests, None),
                self.sync(sync, None, requests)?,
                self.sync(&mut latest, Some(&index), requests)?,
                self.leap(leap, requests, &mut read_ahead)?,
                self.read_together(batched, requests, 1)?,
                self.read_together(pipelined, requests, DEPTH)?,
            ];
            if round > 0 {
                taken.iter_mut().zip(ways).for_each(|(taken, way)| taken.push(way));
            }
        }
        let ahead = self.ahead(path, &requests)?;
        let at_pace: Vec<Taken> =
            requests[1..].iter().map(|requests| self.local(&mut all, requests, Some(ahead.pace))).collect();
        let n = self.ground.size.requests() * rounds;
        let missed = |way: usize| taken[way].iter().map(|taken| taken.missed).sum::<u64>();
        let mut rows = rows_of_ways(id, &taken, n);
        rows[2].why = Some(format!(
            "{} look-ups found nothing among {hundredth} items; the index has {} bytes beside",
            missed(2),
            index.bytes()
        ));
        rows[3].why =
            Some(format!("{} look-ups found nothing; {read_ahead} places were read ahead in all", missed(3)));
        rows.extend(self.rows_of_dpu(id, &taken, &ahead, &at_pace));
        for (way, of) in WAYS.iter().zip(&taken) {
            rows.extend(times(&format!("{id}.{way}"), of, &taken[1], n));
        }
        if process::is_measured(kind, draw) {
            rows.extend(process::measure(self, path, &requests, &ahead)?);
        }
        Ok(rows)
    }

    /// The rows of what a DPU sees ahead, beside the ways without one, and beside all items local at its pace.
    fn rows_of_dpu(
        &self,
        id: &str,
        [local, sync, _, _, batched, _]: &[Vec<Taken>; WAYS.len()],
        Ahead { pace, taken, without, wasted }: &Ahead,
        at_pace: &[Taken],
    ) -> Vec<Row> {
        let size = &self.ground.size;
        let n = size.requests() * taken.len() as u64;
        let nanos = to_f64(u64::try_from(pace.as_nanos()).unwrap_or(u64::MAX)) / to_f64(size.piece as u64);
        let here = format!(
            "{} items here, a zone of {} items and {} bytes, of {} items; a request each {nanos:.0} ns, {} wait",
            size.here,
            size.zone.items,
            size.zone.data,
            size.items,
            LEAD * size.piece
        );
        let missed: u64 = taken.iter().map(|taken| taken.missed).sum();
        let cpu = middle(taken, Taken::cpu_ns);
        let beside = |row: &str, of: &[Taken], beside: &[Taken]| {
            rate(&format!("{id}.{row}"), of, n).beside(Some(middle(beside, Taken::rate)))
        };
        let [p50, p99] = times(id, taken, sync, n);
        vec![
            Row { why: Some(here), ..beside("throughput", taken, local) },
            beside("without", std::slice::from_ref(without), local),
            beside("over_sync", taken, sync),
            beside("over_batched", taken, batched),
            Row::figure(format!("{id}.host_cpu"), "ns", cpu, n)
                .with_cpu(Some(cpu))
                .beside(Some(middle(at_pace, Taken::cpu_ns))),
            p50,
            p99,
            Row::figure(format!("{id}.missed"), "requests", to_f64(missed), n),
            Row::figure(format!("{id}.wasted"), "items", to_f64(*wasted), n),
        ]
    }

    /// With a DPU.
    fn ahead(&mut self, path: f64, requests: &[Vec<u8>]) -> Result<Ahead, Error> {
        let stop = AtomicBool::new(false);
        let (give, take) = channel();
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
            let outcome = take.recv().ok().map(|parts| ground.at_a_pace(parts, path, requests));
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
    /// The program beside a DPU, whichever that is: at which pace nearly all was there, what came of it, and how many answers were wrong.
    fn at_a_pace(&self, parts: Parts, path: f64, requests: &[Vec<u8>]) -> Result<(Ahead, u64), Error> {
        let mut client = self.client()?;
        self.to_own_cpu();
        let mut program = Program {
            kind: self.size.kind,
            here: Here::some(self.size.kind, self.size.here),
            far: &self.far,
            client: &mut client,
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

/// The middle of some rounds.
fn middle(taken: &[Taken], what: fn(&Taken) -> f64) -> f64 {
    median(&mut taken.iter().map(what).collect::<Vec<_>>())
}

/// The row of a rate, with what a request costs the application's thread.
fn rate(id: &str, of: &[Taken], n: u64) -> Row {
    Row::figure(id, "1/s", middle(of, Taken::rate), n).with_cpu(Some(middle(of, Taken::cpu_ns)))
}

/// The rows of rates without a DPU, beside all items local.
fn rows_of_ways(id: &str, taken: &[Vec<Taken>; WAYS.len()], n: u64) -> Vec<Row> {
    let local = middle(&taken[0], Taken::rate);
    let row = |(at, (way, of)): (usize, (&&str, &Vec<Taken>))| {
        rate(&format!("{id}.{way}"), of, n).beside((at > 0).then_some(local))
    };
    WAYS.iter().zip(taken).enumerate().map(row).collect()
}

/// What requests took in some rounds.
fn each(taken: &[Taken]) -> Samples {
    let mut all = Samples::new();
    taken.iter().for_each(|taken| all.add(&taken.each));
    all
}

/// The rows of what a request takes, beside other ones.
fn times(id: &str, of: &[Taken], beside: &[Taken], n: u64) -> [Row; 2] {
    let (of, beside) = (each(of), each(beside));
    [("p50", 0.5), ("p99", 0.99)].map(|(row, quantile)| {
        let why = "of a piece's requests, divided by their number; beside READs one by one".to_owned();
        let row = Row::figure(format!("{id}.{row}"), "ns", of.quantile(quantile), n);
        Row { why: Some(why), ..row.beside(Some(beside.quantile(quantile))) }
    })
}

/// Look-ups that found nothing, and places that were read ahead, of 400 pages that are asked for in turn and by chance with Leap's prefetching.
#[cfg(test)]
pub(super) fn by_leap(config: RackConfig) -> Result<[(u64, u64); 2], Error> {
    let size = Size { items: 1000, here: 100, pieces: 50, ..Size::of(Kind::Pages, true) };
    let (say, _nobody) = channel();
    let mut bench = Bench::new(config, size, (Vec::new(), CpuMeter::own()), say)?;
    let mut all = [(0, 0); 2];
    for (counts, requests) in all.iter_mut().zip([size.ask(300..700), size.draw(Draw::Uniform, 1)]) {
        let mut here = Here::some(Kind::Pages, size.here);
        counts.0 = bench.leap(&mut here, &requests, &mut counts.1)?.missed;
    }
    assert_eq!(bench.wrong, 0);
    Ok(all)
}
