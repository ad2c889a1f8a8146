//! Page-state changes between two processes, as on real hosts: this one and a worker (MIND 7.2).
//!
//! The processes take turns by words in far memory and poll rarely, so that the waiting process leaves the
//! CPU to the measured one.

use super::fault::REGION;
use super::transition::NAMES;
use super::{DOMAIN, PAGE, Samples, VMA_LEN};
use crate::Row;
use crate::touch::scattered;
use farmem::window::Memory;
use farmem::worker::Entry;
use farmem::{Error, Rack, RackConfig, ShareOptions, SharedSpace, Transport, VirtAddr};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The entries of this program as the benchmark's worker.
pub const ENTRIES: &[(&str, Entry)] = &[("touch pages", work)];

/// Touched pages of an allocation, one in each region.
const TOUCHED: usize = 64;
const _: () = assert!(VMA_LEN == (TOUCHED * REGION * PAGE) as u64);
/// The polling interval of the waiting process.
const LOOK_EVERY: Duration = Duration::from_micros(500);
/// Bytes between the words of the board: in separate regions, however regions merge.
const APART: u64 = 2 << 20;

/// A change: whether the worker makes it, whether it is a store, and its row.
type Step = (bool, bool, Option<usize>);

/// The changes in the order of a page's states.
const STEPS: [Step; 6] = [
    (false, false, Some(0)),
    (true, false, Some(1)),
    (false, true, Some(2)),
    (true, false, Some(3)),
    (false, true, None),
    (true, true, Some(4)),
];

/// Measures with a worker, on untouched allocations.
pub(super) fn measure(config: &RackConfig, rounds: usize) -> Result<Vec<Row>, Error> {
    let space = SharedSpace::join(&Rack::running(config.clone()), DOMAIN, ShareOptions::new(64 << 20))?;
    let board = space.allocate(4 * APART)?;
    let told = space.allocate((rounds * STEPS.len() * TOUCHED * size_of::<u64>()) as u64)?;
    let fresh = (0..rounds).map(|_| space.allocate(VMA_LEN)).collect::<Result<Vec<_>, _>>()?;
    let mut orders = vec![board.base.0, told.base.0];
    orders.extend(fresh.iter().map(|vma| vma.base.0));
    let worker = space.spawn("touch pages", &orders)?;
    let table = Table { space: &space, board: board.base, is_worker: false };
    let mut times: [Samples; 5] = std::array::from_fn(|_| Samples::new());
    for (round, vma) in fresh.iter().enumerate() {
        table.round(round, space.memory(vma), &mut |step, _, time| {
            if let Some(row) = STEPS[step].2 {
                times[row].record(time);
            }
        });
    }
    worker.join()?;
    let said = space.memory(&told);
    for (step, &(by_worker, _, row)) in STEPS.iter().enumerate() {
        let Some(row) = row.filter(|_| by_worker) else { continue };
        for (round, page) in (0..rounds).flat_map(|round| (0..TOUCHED).map(move |page| (round, page))) {
            let nanos = said.word(place(round, step, page)).load(Ordering::Acquire);
            times[row].record(Duration::from_nanos(nanos));
        }
    }
    Ok(rows(&times, config.transport))
}

fn rows(times: &[Samples; 5], transport: Transport) -> Vec<Row> {
    let base = times[0].quantile(0.5);
    let row = |(name, times): (&str, &Samples)| {
        let id = format!("mind.transition.{name}.{}.processes", transport.name());
        times.row(&id, None).beside(Some(base))
    };
    NAMES.into_iter().zip(times).map(row).collect()
}

/// Runs the worker's part.
fn work(space: &SharedSpace, orders: &[u64]) -> Result<u64, Error> {
    let [board, told, fresh @ ..] = orders else {
        return Err(Error::Broken { addr: VirtAddr(0), what: "a worker's orders" });
    };
    let table = Table { space, board: VirtAddr(*board), is_worker: true };
    let told = space.attach(VirtAddr(*told))?;
    let mut all = Vec::new();
    for (round, &base) in fresh.iter().enumerate() {
        let vma = space.attach(VirtAddr(base))?;
        table.round(round, space.memory(&vma), &mut |step, page, time| {
            all.push((place(round, step, page), u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)));
        });
    }
    let memory = space.memory(&told);
    for (place, nanos) in all {
        memory.word(place).store(nanos, Ordering::Release);
    }
    Ok(0)
}

/// Returns the position of a time among the worker's results.
const fn place(round: usize, step: usize, page: usize) -> usize {
    ((round * STEPS.len() + step) * TOUCHED + page) * size_of::<u64>()
}

/// One of the two processes, with the turn-taking board.
struct Table<'a> {
    space: &'a SharedSpace,
    board: VirtAddr,
    is_worker: bool,
}

impl Table<'_> {
    /// Takes the pages of `memory` through all changes. `each` receives the step, the page and the time of
    /// each change made here.
    fn round(&self, round: usize, memory: Memory<'_>, each: &mut dyn FnMut(usize, usize, Duration)) {
        for (step, &(by_worker, stores, _)) in STEPS.iter().enumerate() {
            let turn = (round * STEPS.len() + step) as u64;
            if by_worker != self.is_worker {
                continue;
            }
            // The other process has finished all earlier changes: it counts them in its own word.
            self.wait_for(turn);
            for page in 0..TOUCHED {
                let at = scattered(page, TOUCHED) * REGION * PAGE;
                let begin = Instant::now();
                if stores {
                    memory.write(at, &[1])
                } else {
                    memory.read(at, &mut [0])
                }
                each(step, page, begin.elapsed());
            }
            self.word(self.is_worker).store(turn + 1, Ordering::Release);
        }
    }

    fn wait_for(&self, turn: u64) {
        while turn > 0 && self.word(!self.is_worker).load(Ordering::Acquire) < turn {
            sleep(LOOK_EVERY);
        }
    }

    fn word(&self, of_worker: bool) -> &std::sync::atomic::AtomicU64 {
        self.space.word(VirtAddr(self.board.0 + u64::from(of_worker) * APART))
    }
}
