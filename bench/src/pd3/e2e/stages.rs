//! `pd3.stages.*`: the saving of each optimisation on a key's path through the DPU, one after the other (PD3,
//! figure 19). Also the path itself, on which `pd3.path.*` are based.

use super::super::DOMAIN;
use super::locked_zone::LockedZone;
use super::store::{Far, Kind};
use super::{Bench, Draw, LEAD, SECRET, Size};
use crate::rates::cpu_time;
use crate::{Row, to_f64};
use farmem::prefetch::tap::{Tap, tap};
use farmem::prefetch::{
    Change, Config, Driver, FLOORS, HostKeys, HostView, KeySet, KeysConfig, Position, Reporter, SharedZone,
    Taker, Zone,
};
use farmem::{Client, Completed, Error, LookUp, LookedUp, Op, Rack};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// The stages; each includes all earlier ones.
const STAGES: [(&str, &str); 6] = [
    ("alone", "a message and a READ for each key, a zone behind a lock, a plain set of keys"),
    ("batched", "messages of 32 keys, a READ for each"),
    ("program", "one traversal for a message: a verified program finds the records at the memory node"),
    ("zone", "the loading zone without a lock"),
    ("view", "the host view that is asked for many keys at once"),
    (
        "long",
        "messages of 64 keys: half as many frames, and a memory node that overlaps half as many traversals",
    ),
];

/// Returns the row ids.
#[cfg(test)]
pub(super) fn ids() -> Vec<String> {
    STAGES.iter().map(|(name, _)| format!("pd3.stages.{name}")).collect()
}

/// Returns true when any of the rows is selected.
pub(super) fn are_wanted(plan: &crate::Plan) -> bool {
    plan.wants("pd3.stages.")
}

/// The cost of a key on its path, in nanoseconds: CPU time of the DPU's thread, and elapsed time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) own: f64,
    pub(super) wall: f64,
    /// Copies of an item's bytes between its arrival and the zone.
    pub(super) copies: f64,
    pub(super) wrong: u64,
}

/// Sends requests to a driver, half a queue at a time, and takes what it fetched.
pub(super) fn path<V: HostView, L: LookUp, Z: Zone>(
    size: &Size,
    mut driver: Driver<V, L, Z>,
    (tap, beside): (&Tap, &Reporter),
    mut take: impl FnMut(&[u8], &mut Vec<u8>) -> bool,
) -> Result<Path, Error> {
    let (kind, connection) = (size.kind, size.kind.connection(tap));
    let bytes = size.draw(Draw::Uniform, 7);
    let (mut into, mut own, mut wall, mut wrong) = (Vec::new(), Duration::ZERO, Duration::ZERO, 0);
    for pieces in bytes.chunks(size.piece_len() * LEAD / 2) {
        let mut last = Position::UNKNOWN;
        for piece in pieces.chunks(size.piece_len()) {
            last = connection.received(piece);
        }
        let (cpu, begin) = (cpu_time(), Instant::now());
        driver.settle()?;
        own += cpu_time() - cpu;
        wall += begin.elapsed();
        for key in kind.keys_in(pieces) {
            wrong += u64::from(take(key, &mut into) && !kind.is_right(key, &into));
        }
        // The program keeps nothing: the next request for an item fetches it again.
        beside.drops_all(kind.keys_in(pieces));
        tap.executed(last);
    }
    let used = driver.prefetcher().account().used.max(1);
    let each = |time: Duration| time.as_secs_f64() * 1e9 / to_f64(used);
    let copies = to_f64(driver.copied()) / to_f64(used);
    Ok(Path { own: each(own), wall: each(wall), copies, wrong })
}

/// Returns the time of copying a page, in nanoseconds, the fastest of some rounds, between buffers as large
/// as the ring and the zone.
pub(super) fn copy_of_page() -> f64 {
    const ROUNDS: usize = 20;
    let len = Kind::Pages.value_len();
    let (from, mut to) = (vec![7_u8; 1 << 20], vec![9_u8; 1 << 20]);
    let pages = u32::try_from(from.len() / len).expect("a few hundred");
    let mut round = || {
        let begin = Instant::now();
        for (to, from) in to.chunks_exact_mut(len).zip(from.chunks_exact(len)) {
            to.copy_from_slice(black_box(from));
        }
        black_box(&mut to);
        begin.elapsed() / pages
    };
    let fastest = (0..ROUNDS).map(|_| round()).min().unwrap_or_default();
    fastest.as_secs_f64() * 1e9
}

/// A structure whose keys are looked up by one READ each.
struct ByReads(Far);

impl LookUp for ByReads {
    fn begin(&mut self, client: &mut Client) -> Result<(), Error> {
        self.0.begin(client)
    }

    fn op(&self, key: &[u8], scratch: Vec<u8>) -> Option<Op> {
        self.0.op(key, scratch)
    }

    fn place(&self, key: &[u8]) -> Option<usize> {
        self.0.place(key)
    }

    fn looked_up(&self, at: usize, key: &[u8], completed: &Completed, into: &mut Vec<u8>) -> LookedUp {
        self.0.looked_up(at, key, completed, into)
    }

    fn end(&mut self, client: &mut Client) -> Result<(), Error> {
        self.0.end(client)
    }
}

/// Creates a driver of one stage and measures the path through it.
fn stage<V: HostView, L: LookUp>(
    bench: &Bench,
    (batch, shared): (NonZeroU32, bool),
    view: V,
    far: L,
) -> Result<Path, Error> {
    let size = &bench.ground.size;
    let (tap, watch) = tap(4 << 20, SECRET);
    let beside = Reporter::new(tap.clone(), SECRET, FLOORS, Change(1));
    let client = Rack::running(bench.ground.config.clone()).client(DOMAIN)?;
    // Opening the client binds its thread.
    bench.ground.to_other_cpu();
    let config = Config { batch_keys_max: batch, ..Config::DEFAULT };
    let parts = (watch, &beside, Change(1));
    if shared {
        let (zone, reader) = SharedZone::make(size.zone)?;
        let driver = Driver::new(config, view, parts, client, far, zone)?;
        let mut taker = Taker::new(&reader, &beside);
        return path(size, driver, (&tap, &beside), |key, into| taker.take(key, into).is_some());
    }
    let zone = LockedZone::new(size.zone.items);
    let driver = Driver::new(config, view, parts, client, far, zone.clone())?;
    path(size, driver, (&tap, &beside), |key, into| {
        let item = zone.take(key, |stamp| beside.good(key, stamp));
        item.is_some_and(|item| {
            into.clear();
            into.extend_from_slice(&item);
            true
        })
    })
}

/// Measures all stages.
pub(super) fn measure(bench: &mut Bench) -> Result<Vec<Row>, Error> {
    let keys_max = 2 * bench.ground.size.here + bench.ground.size.zone.items;
    let (one, many) = (NonZeroU32::MIN, Config::DEFAULT.batch_keys_max);
    let more = many.saturating_add(many.get());
    let fast = || HostKeys::new(KeysConfig::new(keys_max));
    let (plain, far) = (|| KeySet::new(keys_max), || bench.ground.far.clone());
    let paths = [
        stage(bench, (one, false), plain(), ByReads(far()))?,
        stage(bench, (many, false), plain(), ByReads(far()))?,
        stage(bench, (many, false), plain(), far())?,
        stage(bench, (many, true), plain(), far())?,
        stage(bench, (many, true), fast()?, far())?,
        stage(bench, (more, true), fast()?, far())?,
    ];
    debug_assert_eq!(bench.ground.size.kind, Kind::Hash);
    let n = bench.ground.size.requests();
    bench.wrong += paths.iter().map(|path| path.wrong).sum::<u64>();
    let row = |(name, what): (&str, &str), path: &Path| {
        let row = Row::figure(format!("pd3.stages.{name}"), "ns", path.own, n).with_cpu(Some(path.own));
        let why = format!("{what}; {:.0} ns pass, with the memory node's part on the same CPU", path.wall);
        Row { why: Some(why), ..row.beside(Some(paths[0].own)) }
    };
    Ok(STAGES.into_iter().zip(&paths).map(|(stage, path)| row(stage, path)).collect())
}
