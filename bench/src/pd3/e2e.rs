//! `pd3.e2e.*` and `pd3.path.*`: applications with a hundredth of their items local, whose clients' requests
//! a DPU sees before they are executed (PD3 8.2 and 8.3).
//!
//! Two applications take requests of PROTOCOL 19.14: the hash map (keys and values of eight bytes) and the
//! page server (4 KiB). Each answers the same requests in seven variants: all items local; READs one by one;
//! the same with an LRU in place of sets, and the index of all records local; the same with Leap's
//! prefetching; the READs of a piece of requests together; those of several pieces in flight; and items that
//! the DPU put into the loading zone. The application's thread has its own CPU; DPU, switch and memory nodes
//! share the other. The DPU is a thread of the bench; for the hash map's uniform requests it is also the
//! rack's process (`process`).
//!
//! A wake-up across CPUs costs more than a READ on some machines. Each variant without a DPU therefore runs in
//! two placements, with its thread on its own CPU and on the CPU of the roles. The faster one is measured, and
//! its rows name it.
//!
//! On so few CPUs the shared one saturates before the application's. The DPU's requests therefore arrive at a
//! pace: the fastest of a ladder at which at most [`MISSED_MAX`] of the look-ups find nothing. `.throughput`
//! is that pace. `.host_cpu` is the CPU time of a request in the application's thread at that pace, compared
//! with all items local.
//!
//! Every answer is checked.

mod costs;
mod local_items;
mod locked_zone;
mod placement;
mod process;
mod program;
mod requests;
mod sizes;
mod stages;
mod store;
mod variants;

use super::{DOMAIN, DPU};
use crate::cpu::CpuMeter;
use crate::{NodeKind, Racks};
use crate::{Plan, Row, Sheet, to_f64};
use costs::{VariantCosts, middle, rate, rows_of_variants, times};
use farmem::prefetch::tap::tap;
use farmem::prefetch::{
    Change, Config, Driver, FLOORS, HostKeys, KeySecret, KeysConfig, Reporter, SharedZone, Taker, ZoneSize,
};
use farmem::{Client, Error, Rack, RackConfig};
use farmem_link::affinity::allowed_cpus;
use farmem_link::pin_to_cpu;
use local_items::LocalItems;
use placement::{Baselines, Placement};
use program::{Parts, Program};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::yield_now;
use std::time::Duration;
use store::Far;
pub(super) use store::Kind;

const SECRET: KeySecret = KeySecret([0x5044_3303, 4791]);
/// Pieces between the arrival of a piece and its execution: the request queue.
const LEAD: usize = 16;
/// Pieces whose READs are in flight at once in the asynchronous variant.
const DEPTH: usize = 8;
/// Bound on the look-ups that find nothing, per thousand.
const MISSED_MAX: u64 = 10;
/// Fraction of a round's requests answered without prefetching, one by one from far memory.
const WITHOUT_PART: usize = 8;
/// Bound on the steps of the pace ladder, from slow to fast, and the factor between two steps. The ladder
/// ends where too many look-ups find nothing.
const STEPS: u32 = 32;
const STEP: f64 = 0.8;
/// The first pace, as a multiple of the path's time per key.
const FIRST: f64 = 4.0;

/// The distribution of requested items.
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

/// Returns the row ids.
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
            ids.extend(Variant::ALL.map(|variant| format!("{id}.{}", variant.name())));
            ids.extend(ROWS.iter().map(|row| format!("{id}.{row}")));
            let times = |variant: Variant| ["p50", "p99"].map(|row| format!("{id}.{}.{row}", variant.name()));
            ids.extend(Variant::ALL.into_iter().flat_map(times));
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

/// A variant without a DPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Variant {
    Local,
    Sync,
    Lru,
    Leap,
    Batched,
    Async,
}

impl Variant {
    pub(super) const ALL: [Self; 6] =
        [Self::Local, Self::Sync, Self::Lru, Self::Leap, Self::Batched, Self::Async];

    const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Sync => "sync",
            Self::Lru => "lru",
            Self::Leap => "leap",
            Self::Batched => "batched",
            Self::Async => "async",
        }
    }
}

/// A value for each variant.
type PerVariant<T> = [T; Variant::ALL.len()];

#[cfg(test)]
const ROWS: [&str; 10] = [
    "throughput",
    "without",
    "over_sync",
    "over_batched",
    "over_async",
    "host_cpu",
    "p50",
    "p99",
    "missed",
    "wasted",
];

/// The dimensions of a benchmark.
#[derive(Clone, Copy, Debug)]
struct Size {
    kind: Kind,
    items: u64,
    /// Local items.
    here: usize,
    /// Requests per piece.
    piece: usize,
    /// Pieces per measurement.
    pieces: usize,
    zone: ZoneSize,
    /// True when local items are present from the start; otherwise requests bring them.
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
        // The zone counts as part of the hundredth, as far as the hundredth is larger.
        let of_zone = match kind {
            Kind::Hash | Kind::Kv => zone.items * 96 / 16,
            Kind::Pages => zone.items,
        };
        let here = hundredth.saturating_sub(of_zone).max(hundredth / 2);
        Self { kind, items, here, piece, pieces, zone, filled: false }
    }

    /// Returns the bytes of a piece.
    const fn piece_len(&self) -> usize {
        self.piece * self.kind.request_len()
    }

    const fn requests(&self) -> u64 {
        (self.piece * self.pieces) as u64
    }
}

/// Measures what `plan` selects, on racks of `racks`.
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
        // Opening a client binds the calling thread to a CPU, so the bench has its own thread.
        let wrong = std::thread::scope(|threads| {
            let bench = threads.spawn(move || Bench::new(config, size, (cpus, dpu), say)?.measure(plan));
            // Until the bench has ended and dropped the last sender.
            for told in said {
                match told {
                    BenchProgress::Begins(what) => sheet.begins(&what),
                    BenchProgress::Rows(rows) => sheet.add(rows),
                }
            }
            bench.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        sheet.add_wrong(wrong);
    }
    Ok(())
}

/// A progress report of the bench.
enum BenchProgress {
    Begins(String),
    Rows(Vec<Row>),
}

/// The state shared by all threads.
struct SharedState {
    config: RackConfig,
    size: Size,
    far: Far,
    cpus: Vec<usize>,
    /// The CPU meter of the prefetching process, where there is one.
    dpu: CpuMeter,
}

struct Bench {
    ground: SharedState,
    client: Client,
    wrong: u64,
    say: Sender<BenchProgress>,
}

/// The results with a DPU.
struct DpuResults {
    /// The shortest time between two pieces at which nearly all items were ready.
    pace: Duration,
    /// The costs at that pace.
    taken: Vec<VariantCosts>,
    /// The costs at full speed when the application does not report its requests: PD3 without prefetching.
    without: VariantCosts,
    /// Items fetched in vain.
    wasted: u64,
}

impl SharedState {
    fn client(&self) -> Result<Client, Error> {
        Rack::running(self.config.clone()).client(DOMAIN)
    }

    /// Moves this thread to the application's CPU, the last one. Opening a client may have bound it to
    /// another.
    fn to_own_cpu(&self) {
        if let [_, .., last] = self.cpus[..] {
            let _stays_where_it_is = pin_to_cpu(last);
        }
    }

    /// Moves this thread to the CPU of all other threads.
    fn to_other_cpu(&self) {
        if let [first, ..] = self.cpus[..] {
            let _stays_where_it_is = pin_to_cpu(first);
        }
    }

    /// Creates a driver over the far store and a zone, with the application's ends.
    fn driver(&self) -> Result<(Driver<HostKeys, Far, SharedZone>, Parts), Error> {
        let (tap, watch) = tap(4 << 20, SECRET);
        let beside = Reporter::new(tap.clone(), SECRET, FLOORS, Change(1));
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
        say: Sender<BenchProgress>,
    ) -> Result<Self, Error> {
        let mut client = Rack::running(config.clone()).client(DOMAIN)?;
        let far = Far::load(&mut client, size.kind, size.items)?;
        Ok(Self { ground: SharedState { config, size, far, cpus, dpu }, client, wrong: 0, say })
    }

    /// Reports what is being measured.
    fn begins(&self, what: &str) {
        // A receiver that is gone has panicked, and the bench ends with it.
        let _gone = self.say.send(BenchProgress::Begins(format!("{}: {what}", self.ground.size.kind.name())));
    }

    fn found(&self, rows: Vec<Row>) {
        let _gone = self.say.send(BenchProgress::Rows(rows));
    }

    /// Measures what is selected. Returns the number of wrong answers.
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

    /// Measures the DPU's path per key, without an application: CPU time of its thread, and elapsed time, in
    /// nanoseconds.
    fn path(&mut self) -> Result<stages::Path, Error> {
        self.ground.to_other_cpu();
        let (driver, Parts { tap, beside, mut taker }) = self.ground.driver()?;
        let take = |key: &[u8], into: &mut Vec<u8>| taker.take(key, into).is_some();
        let path = stages::path(&self.ground.size, driver, (&tap, &beside), take)?;
        self.wrong += path.wrong;
        Ok(path)
    }

    /// Measures all variants on the same requests, in rounds.
    fn compare(&mut self, id: &str, draw: Draw, path: f64, rounds: u64) -> Result<Vec<Row>, Error> {
        let requests: Vec<Vec<u8>> =
            (0..=rounds).map(|round| self.ground.size.draw(draw, 100 + round)).collect();
        let Size { kind, items, here, .. } = self.ground.size;
        // A hundredth, as the others have including the zone.
        let hundredth = usize::try_from(items / 100).expect("few");
        let mut baselines = Baselines {
            all: LocalItems::all(kind, items),
            caches: [(); 4].map(|()| LocalItems::some(kind, here)),
            latest: LocalItems::latest(hundredth),
            index: self.ground.far.index(&mut self.client)?,
            read_ahead: 0,
        };
        let (warm, measured) = requests.split_first().expect("a round that warms up");
        let mut taken: PerVariant<Vec<VariantCosts>> = Default::default();
        let mut placements = [Placement::Apart; Variant::ALL.len()];
        for (variant, placement) in Variant::ALL.into_iter().zip(&mut placements) {
            *placement = self.faster_placement(&mut baselines, variant, warm)?;
        }
        for requests in measured {
            for ((variant, taken), &placement) in Variant::ALL.into_iter().zip(&mut taken).zip(&placements) {
                self.ground.place(placement);
                taken.push(self.baseline(&mut baselines, variant, requests)?);
            }
        }
        self.ground.place(Placement::Apart);
        let ahead = self.ahead(path, &requests)?;
        let Baselines { mut all, index, read_ahead, .. } = baselines;
        let at_pace: Vec<VariantCosts> =
            measured.iter().map(|requests| self.local(&mut all, requests, Some(ahead.pace))).collect();
        let n = self.ground.size.requests() * rounds;
        let mut rows = rows_of_variants(id, &taken, n);
        for ((row, variant), placement) in rows.iter_mut().zip(Variant::ALL).zip(placements) {
            let missed: u64 = taken[variant as usize].iter().map(|taken| taken.missed).sum();
            let remark = match variant {
                Variant::Lru => format!(
                    "; {missed} look-ups found nothing among {hundredth} items; the index has {} bytes beside",
                    index.bytes()
                ),
                Variant::Leap => {
                    format!("; {missed} look-ups found nothing; {read_ahead} places were read ahead in all")
                }
                _ => String::new(),
            };
            row.why = Some(placement.text().to_owned() + &remark);
        }
        rows.extend(self.rows_of_dpu(id, (&taken, placements), &ahead, &at_pace));
        for (variant, of) in Variant::ALL.into_iter().zip(&taken) {
            rows.extend(times(&format!("{id}.{}", variant.name()), of, &taken[Variant::Sync as usize], n));
        }
        if process::is_measured(kind, draw) {
            rows.extend(process::measure(self, path, &requests, &ahead)?);
        }
        Ok(rows)
    }

    /// Returns the rows of the DPU variant, compared with the variants without a DPU, and with all items
    /// local at its pace.
    fn rows_of_dpu(
        &self,
        id: &str,
        (baselines, placements): (&PerVariant<Vec<VariantCosts>>, PerVariant<Placement>),
        DpuResults { pace, taken, without, wasted }: &DpuResults,
        at_pace: &[VariantCosts],
    ) -> Vec<Row> {
        let costs = |variant: Variant| &baselines[variant as usize];
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
        let cpu = middle(taken, VariantCosts::cpu_ns);
        let beside = |row: &str, of: &[VariantCosts], beside: &[VariantCosts]| {
            rate(&format!("{id}.{row}"), of, n).beside(Some(middle(beside, VariantCosts::rate)))
        };
        let over = |row: &str, variant: Variant| Row {
            why: Some(format!("the baseline {}", placements[variant as usize].text())),
            ..beside(row, taken, costs(variant))
        };
        let [p50, p99] = times(id, taken, costs(Variant::Sync), n);
        vec![
            Row { why: Some(here), ..beside("throughput", taken, costs(Variant::Local)) },
            beside("without", std::slice::from_ref(without), costs(Variant::Local)),
            over("over_sync", Variant::Sync),
            over("over_batched", Variant::Batched),
            over("over_async", Variant::Async),
            Row::figure(format!("{id}.host_cpu"), "ns", cpu, n)
                .with_cpu(Some(cpu))
                .beside(Some(middle(at_pace, VariantCosts::cpu_ns))),
            p50,
            p99,
            Row::figure(format!("{id}.missed"), "requests", to_f64(missed), n),
            Row::figure(format!("{id}.wasted"), "items", to_f64(*wasted), n),
        ]
    }

    /// Measures with a DPU.
    fn ahead(&mut self, path: f64, requests: &[Vec<u8>]) -> Result<DpuResults, Error> {
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
        Ok(DpuResults { wasted, ..outcome })
    }
}

impl SharedState {
    /// Runs the program beside any DPU. Returns the pace at which nearly all items were ready, the results,
    /// and the number of wrong answers.
    fn at_a_pace(&self, parts: Parts, path: f64, requests: &[Vec<u8>]) -> Result<(DpuResults, u64), Error> {
        let mut client = self.client()?;
        self.to_own_cpu();
        let mut program = Program {
            kind: self.size.kind,
            here: LocalItems::some(self.size.kind, self.size.here),
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
        Ok((DpuResults { pace: best, taken, without, wasted: 0 }, program.wrong))
    }
}

/// Counts failed look-ups and pages read ahead, of 400 pages requested in order and at random with Leap's
/// prefetching.
#[cfg(test)]
pub(super) fn by_leap(config: RackConfig) -> Result<[(u64, u64); 2], Error> {
    let size = Size { items: 1000, here: 100, pieces: 50, ..Size::of(Kind::Pages, true) };
    let (say, _nobody) = channel();
    let mut bench = Bench::new(config, size, (Vec::new(), CpuMeter::own()), say)?;
    let mut all = [(0, 0); 2];
    for (counts, requests) in all.iter_mut().zip([size.ask(300..700), size.draw(Draw::Uniform, 1)]) {
        let mut here = LocalItems::some(Kind::Pages, size.here);
        counts.0 = bench.leap(&mut here, &requests, &mut counts.1)?.missed;
    }
    assert_eq!(bench.wrong, 0);
    Ok(all)
}
