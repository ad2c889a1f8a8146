//! `pd3.shortest.*`: a key known to the DPU is fetched by the DPU itself (DPU, memory node, DPU, host),
//! compared with the path through the host: the DPU sends the key to the host, and the host requests it
//! through the DPU (DPU, host, DPU, memory node, DPU, host; PD3 6.2).
//!
//! Both paths send the same READs of the hash map's slots from the same client of the DPU's thread, and end
//! in the same loading zone, from which the host's thread takes the item. The rings are those of the memory
//! API. The host's thread has its own CPU; the DPU's thread shares the other with the switch and the memory
//! node.

use super::DOMAIN;
use crate::{NodeKind, Racks};
use crate::{Plan, Row, Samples, Sheet, rate_row, to_f64};
use farmem::prefetch::{Change, Placing, SharedZone, Zone, ZoneReader, ZoneSize};
use farmem::{Client, Error, FlatMap, Rack, RackConfig, Ticket};
use farmem_link::affinity::allowed_cpus;
use farmem_link::dpu::{SubmissionSender, Submissions, make_submissions};
use farmem_link::{OpenError, OutsideWaker, WakeAt, pin_to_cpu};
use farmem_machine::Duration as Span;
use farmem_prefetch::loading_zone::Finding;
use farmem_wire::pd3::{Id, Request};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// Keys fetched for a latency, one after the other.
const ALONE: u64 = 4_000;
const MANY: u64 = 40_000;
/// Keys in flight when a rate is measured.
const DEPTH: u64 = 128;
/// Items of the map.
const ITEMS: u64 = 100_000;
/// Bytes of the rings between the host and the DPU.
const RING: usize = 1 << 16;
/// Bound on the sleep between two polls of the host's ring.
const REST: Span = Span::from_millis(1);
/// Rounds of both paths.
const ROUNDS: u64 = 5;

const ZONE: ZoneSize = ZoneSize { items: 4096, data: 4096 };
const LATENCY: &str = "pd3.shortest.latency";
const RATE: &str = "pd3.shortest.rate";

/// The row ids.
#[cfg(test)]
pub(super) const IDS: [&str; 2] = [LATENCY, RATE];

/// The path of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KeyPath {
    Direct,
    ByHost,
}

fn key(n: u64) -> [u8; 8] {
    // Keys are read in pseudo-random order.
    (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % ITEMS).to_le_bytes()
}

fn value(key: [u8; 8]) -> [u8; 8] {
    (u64::from_le_bytes(key) ^ 0x5044_3303).to_le_bytes()
}

/// Creates a ring from one thread to the other; its reader polls.
fn ring() -> Result<(SubmissionSender, Submissions), OpenError> {
    let file = make_submissions(RING)?;
    let unheard =
        OutsideWaker::open(&WakeAt::Datagram { address: IpAddr::V4(Ipv4Addr::new(127, 77, 1, 3)) })?;
    Ok((SubmissionSender::of(&file, RING, unheard)?, Submissions::of(&file, RING)?))
}

/// The panic message for broken rings.
const WHOLE: &str = "both ends are this program's";

fn told(sender: &SubmissionSender, n: u64) {
    let id = Id::new(u16::try_from(n % u64::from(farmem_wire::pd3::IDS)).expect("14 bits"));
    let (key, mut record) = (key(n), Vec::with_capacity(16));
    Request::Prefetch { id, key: &key }.emit(&mut record);
    while !sender.push(&record).expect(WHOLE) {
        yield_now();
    }
}

/// Passes the received keys to `each`, and frees their room.
fn heard(ring: &mut Submissions, mut each: impl FnMut([u8; 8])) {
    let mut buf = [0; 32];
    while let Some(len) = ring.pop(&mut buf).expect(WHOLE) {
        match Request::take(&buf[..len]) {
            Ok((Request::Prefetch { key, .. }, [])) => each(key.try_into().expect("a key's length")),
            other => unreachable!("{WHOLE}: {other:?}"),
        }
    }
    ring.release();
}

/// The state shared by both threads.
struct Shared {
    /// Number of keys that the host has taken.
    taken: AtomicU64,
    /// True when either thread has ended.
    over: AtomicBool,
    /// The time at which the DPU knew the latest key, in nanoseconds since `begin`.
    known: AtomicU64,
    begin: Instant,
}

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Marks the end of a thread on drop, also on a panic.
struct Over<'s>(&'s Shared);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
    }
}

/// The DPU's thread: a client, and the zone.
struct Dpu<'m> {
    client: Client,
    map: &'m FlatMap,
    zone: SharedZone,
    under_way: BTreeMap<Ticket, [u8; 8]>,
    items: u64,
}

impl Dpu<'_> {
    fn fetch(&mut self, key: [u8; 8]) -> Result<(), Error> {
        let buf = self.client.buffer(0);
        let ticket = self.client.submit(self.map.read_op(&key, buf))?;
        self.under_way.insert(ticket, key);
        Ok(())
    }

    /// Puts received items into the zone. Returns false when there were none.
    fn place(&mut self) -> Result<bool, Error> {
        let mut came = false;
        while let Some(completed) = self.client.poll()? {
            let Some(key) = self.under_way.remove(&completed.ticket) else { continue };
            completed.result?;
            let found = self.map.found(&key, &completed.buf);
            let value = found.map_or(&[][..], |found| found.value);
            self.items += 1;
            let placing = Placing { item: self.items, key: &key, stamp: Change(1), value, lines: None };
            while !self.zone.put(&placing, &mut |_, _| {}) {
                self.zone.clean(&mut |_, _| {});
            }
            self.client.recycle(completed.buf);
            came = true;
        }
        if came {
            self.zone.publish();
        }
        Ok(came)
    }

    /// Fetches `count` keys, `depth` at a time, by one path.
    fn serve(
        &mut self,
        way: KeyPath,
        (to_host, from_host): (&SubmissionSender, &mut Submissions),
        shared: &Shared,
        (count, depth): (u64, u64),
    ) -> Result<(), Error> {
        let mut next = 0;
        while !shared.over.load(Ordering::Acquire) && shared.taken.load(Ordering::Acquire) < count {
            let room = (shared.taken.load(Ordering::Acquire) + depth).min(count);
            let mut worked = next < room;
            while next < room {
                shared.known.store(shared.now(), Ordering::Release);
                match way {
                    KeyPath::Direct => self.fetch(key(next))?,
                    KeyPath::ByHost => told(to_host, next),
                }
                next += 1;
            }
            let mut asked = Vec::new();
            heard(from_host, |key| asked.push(key));
            worked |= !asked.is_empty();
            for key in asked {
                self.fetch(key)?;
            }
            if self.place()? || worked {
                continue;
            }
            // A thread that waits for roles on this CPU sleeps until a packet comes; with repeated yields it
            // would keep the CPU for whole slices.
            if self.under_way.is_empty() {
                std::hint::spin_loop();
            } else {
                self.client.rest(REST)?;
            }
        }
        Ok(())
    }
}

/// Runs the host's thread: forwards keys and takes each item in turn. Returns the number of wrong items.
fn host(
    reader: &ZoneReader,
    (to_dpu, from_dpu): (&SubmissionSender, &mut Submissions),
    shared: &Shared,
    count: u64,
    times: &mut Samples,
) -> u64 {
    let (mut reader, mut into, mut wrong, mut passed) = (reader.for_thread(Finding::Index), Vec::new(), 0, 0);
    for n in 0..count {
        let wanted = key(n);
        while reader.check_and_return(&wanted, |_| true, &mut into).is_none() {
            heard(from_dpu, |_| {
                told(to_dpu, passed);
                passed += 1;
            });
            if shared.over.load(Ordering::Acquire) {
                return wrong + count - n;
            }
            std::hint::spin_loop();
        }
        times.record(Duration::from_nanos(shared.now().saturating_sub(shared.known.load(Ordering::Acquire))));
        wrong += u64::from(into != value(wanted));
        shared.taken.store(n + 1, Ordering::Release);
    }
    wrong
}

/// The rack and the map.
struct Bench {
    config: RackConfig,
    map: FlatMap,
    cpus: Vec<usize>,
    wrong: u64,
}

impl Bench {
    /// Runs `count` keys by one path, `depth` at a time. Records each time and returns keys per second.
    fn round(&mut self, way: KeyPath, (count, depth): (u64, u64), times: &mut Samples) -> Result<f64, Error> {
        let (to_host, mut from_dpu) = ring()?;
        let (to_dpu, mut from_host) = ring()?;
        let (zone, reader) = SharedZone::make(ZONE)?;
        let shared = Shared {
            taken: AtomicU64::new(0),
            over: AtomicBool::new(false),
            known: AtomicU64::new(0),
            begin: Instant::now(),
        };
        let (config, map, cpus) = (&self.config, &self.map, &self.cpus);
        let shared = &shared;
        let (wrong, seconds) = std::thread::scope(|threads| {
            let dpu = threads.spawn(move || {
                let _over = Over(shared);
                let client = Rack::running(config.clone()).client(DOMAIN)?;
                if let [first, ..] = cpus[..] {
                    let _stays_where_it_is = pin_to_cpu(first);
                }
                let mut dpu = Dpu { client, map, zone, under_way: BTreeMap::new(), items: 0 };
                let began = Instant::now();
                dpu.serve(way, (&to_host, &mut from_host), shared, (count, depth))?;
                Ok::<_, Error>(began.elapsed().as_secs_f64())
            });
            if let [_, .., last] = cpus[..] {
                let _stays_where_it_is = pin_to_cpu(last);
            }
            let wrong = {
                // A host that panics must not leave the DPU waiting.
                let _over = Over(shared);
                host(&reader, (&to_dpu, &mut from_dpu), shared, count, times)
            };
            let seconds = dpu.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok::<_, Error>((wrong, seconds))
        })?;
        self.wrong += wrong;
        Ok(to_f64(count) / seconds)
    }

    fn rows(&mut self, quick: bool) -> Result<Vec<Row>, Error> {
        let (rounds, part) = if quick { (1, 20) } else { (ROUNDS, 1) };
        let mut times = [Samples::new(), Samples::new()];
        let mut rates = [Vec::new(), Vec::new()];
        for round in 0..=rounds {
            for (at, way) in [KeyPath::Direct, KeyPath::ByHost].into_iter().enumerate() {
                let mut alone = Samples::new();
                self.round(way, (ALONE / part, 1), &mut alone)?;
                let rate = self.round(way, (MANY / part, DEPTH), &mut Samples::new())?;
                if round > 0 {
                    times[at].add(&alone);
                    rates[at].push(rate);
                }
            }
        }
        let [direct, by_host] = &times;
        let why = "from when the DPU knows a key until the host has its item; beside the way by the host";
        let latency = Row { why: Some(why.into()), ..direct.row(LATENCY, Some(by_host)) };
        let [mut direct, mut by_host] = rates;
        let why = format!("{DEPTH} keys under way; beside the way by the host");
        let rate = Row { why: Some(why), ..rate_row(RATE, &mut direct, &mut by_host, rounds) };
        Ok(vec![latency, rate])
    }
}

/// Measures what `plan` selects.
pub(super) fn measure<R: Racks>(plan: &Plan, racks: &mut R, sheet: &mut Sheet<'_>) -> Result<(), R::Failure> {
    if !plan.wants("pd3.shortest.") {
        return Ok(());
    }
    sheet.begins("the shortest way of a key");
    let rack = racks.start(1, NodeKind::Offload, 64 << 20)?;
    let config = rack.as_ref().config().expect("a rack that runs has a description").clone();
    let quick = plan.quick;
    // A client binds its opening thread, and threads started by it, to a CPU, so the allowed CPUs are read
    // before.
    let cpus = allowed_cpus().unwrap_or_default();
    let (rows, wrong) = crate::cpu::on_its_own(|| {
        let mut client = Rack::running(config.clone()).client(DOMAIN)?;
        let map = FlatMap::create(&mut client, ITEMS, 8, [0x5044, 0x3304])?;
        let values: Vec<[u8; 8]> = (0..ITEMS).map(|n| value(n.to_le_bytes())).collect();
        map.load(&mut client, 1, (0..ITEMS).zip(&values).map(|(n, value)| (n.to_le_bytes(), &value[..])))?;
        let mut bench = Bench { config, map, cpus, wrong: 0 };
        let rows = bench.rows(quick)?;
        Ok::<_, Error>((rows, bench.wrong))
    })?;
    sheet.add(rows);
    sheet.add_wrong(wrong);
    Ok(())
}
