//! A worker's task: its share of the load, then its share of the operations, in parallel with all others.
//!
//! The workers' messages to each other and to their starter are in far memory too, in the [`Board`].

use crate::table::{ReadResult, Table};
use farmem::window::Memory;
use farmem::worker::Entry;
use farmem::{Error, SharedSpace, VirtAddr, Vma};
use farmem_workload::ycsb::{Operation, Workload, hash};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The entries of a worker.
pub const ENTRIES: &[(&str, Entry)] = &[("serve", serve)];

/// Bound on the workers: the board has a page for each, and a caching host has a number below 256.
pub const WORKERS_MAX: u64 = 48;
const PAGE: usize = farmem::PAGE_LEN;
/// Synchronisation points of all workers; each has a page of the board.
const MEETINGS: usize = 3;

/// Configuration of a worker, passed to its process as eight numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orders {
    pub(crate) board: VirtAddr,
    pub(crate) table: VirtAddr,
    pub(crate) worker: u64,
    pub(crate) workers: u64,
    pub(crate) records: u64,
    pub(crate) operations: u64,
    pub(crate) workload: Workload,
    pub(crate) seed: u64,
}

impl Orders {
    pub(crate) fn numbers(&self) -> [u64; 8] {
        let workload = match self.workload {
            Workload::A => 0,
            Workload::B => 1,
            Workload::C => 2,
            // Workers support the first three.
            Workload::D | Workload::E | Workload::F => 3,
        };
        let Self { board, table, worker, workers, records, operations, seed, .. } = *self;
        [board.0, table.0, worker, workers, records, operations, workload, seed]
    }

    fn of(numbers: &[u64]) -> Option<Self> {
        let &[board, table, worker, workers, records, operations, workload, seed] = numbers else {
            return None;
        };
        let workload =
            [Workload::A, Workload::B, Workload::C].get(usize::try_from(workload).ok()?).copied()?;
        let (board, table) = (VirtAddr(board), VirtAddr(table));
        Some(Self { board, table, worker, workers, records, operations, workload, seed })
    }
}

/// The board in far memory: which worker has reached which point, and each worker's report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Board<'m>(Memory<'m>);

/// A worker's report.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WorkerReport {
    /// Nanoseconds of the operations.
    pub nanos: u64,
    /// Number of updates.
    pub updates: u64,
    /// Number of wrong answers.
    pub wrong: u64,
    /// Pages fetched.
    pub fetches: u64,
    /// Pages invalidated by others.
    pub invalidations: u64,
    /// Invalidations without a request for the page itself.
    pub false_invalidations: u64,
}

impl<'m> Board<'m> {
    pub(crate) const LEN: u64 = (WORKERS_MAX + MEETINGS as u64) * PAGE as u64;

    pub(crate) const fn new(memory: Memory<'m>) -> Self {
        Self(memory)
    }

    /// Waits until all workers have reached the point.
    fn meet(&self, point: usize, workers: u64) {
        let came: &AtomicU64 = self.0.word(point * PAGE);
        came.fetch_add(1, Ordering::AcqRel);
        while came.load(Ordering::Acquire) < workers {
            std::thread::yield_now();
        }
    }

    fn words(&self, worker: u64) -> [&'m AtomicU64; 6] {
        let at = (usize::try_from(worker).expect("few") + MEETINGS) * PAGE;
        [0, 8, 16, 24, 32, 40].map(|offset| self.0.word(at + offset))
    }

    fn say(&self, worker: u64, did: WorkerReport) {
        let WorkerReport { nanos, updates, wrong, fetches, invalidations, false_invalidations } = did;
        let said = [nanos, updates, wrong, fetches, invalidations, false_invalidations];
        for (word, number) in self.words(worker).into_iter().zip(said) {
            word.store(number, Ordering::Release);
        }
    }

    pub(crate) fn did(&self, worker: u64) -> WorkerReport {
        let [nanos, updates, wrong, fetches, invalidations, false_invalidations] =
            self.words(worker).map(|word| word.load(Ordering::Acquire));
        WorkerReport { nanos, updates, wrong, fetches, invalidations, false_invalidations }
    }
}

fn serve(space: &SharedSpace, numbers: &[u64]) -> Result<u64, Error> {
    let Some(orders) = Orders::of(numbers) else {
        return Err(Error::Broken { addr: VirtAddr(0), what: "a worker's orders" });
    };
    let (board, table): (Vma, Vma) = (space.attach(orders.board)?, space.attach(orders.table)?);
    let (board, table) = (Board::new(space.memory(&board)), Table::new(space.memory(&table)));
    let Orders { worker, workers, records, .. } = orders;
    let mut did = WorkerReport::default();
    for record in (worker..records).step_by(usize::try_from(workers).unwrap_or(1)) {
        did.wrong += u64::from(!table.insert(hash(record)));
    }
    board.meet(0, workers);
    // Each worker fetches the whole table before the measurement: from then on, pages move only because other
    // workers wrote them.
    for record in 0..records {
        did.wrong += u64::from(table.read(hash(record)) != ReadResult::Value(0));
    }
    board.meet(1, workers);
    let before = space.stats();
    let begin = Instant::now();
    for operation in orders.workload.operations(records, orders.operations, orders.seed ^ (worker << 32)) {
        let key = operation.key();
        if let Operation::Update { .. } = operation {
            let done = table.update(key);
            did.updates += u64::from(done);
            did.wrong += u64::from(!done);
        } else {
            did.wrong += u64::from(!matches!(table.read(key), ReadResult::Value(_)));
        }
    }
    did.nanos = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let after = space.stats();
    did.fetches = after.fetches - before.fetches;
    did.invalidations = after.invalidations - before.invalidations;
    did.false_invalidations = after.false_invalidations - before.false_invalidations;
    board.say(worker, did);
    board.meet(2, workers);
    Ok(did.wrong)
}
