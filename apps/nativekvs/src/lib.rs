//! Native-KVS (MIND 7): a key-value store with one hash table in far memory, shared by workers on many hosts
//! by loads and stores. No worker owns any part of the table; locks are words in far memory.
//!
//! Key function: [`run`]. It allocates the table, starts the workers as processes of this program, each a
//! separate host of the rack, and checks their work. Every value read must be whole, and at the end the table
//! must hold exactly the updates made.

mod table;
mod work;

pub use table::{RECORD_LEN, ReadResult, Table, VALUE_WORDS};
pub use work::{ENTRIES, WORKERS_MAX, WorkerReport};

use farmem::worker::Worker;
use farmem::{Rack, RackConfig, ShareOptions, SharedSpace, Vma};
pub use farmem_workload::Mix;
use farmem_workload::ycsb::hash;
use farmem_workload::{Failure, to_f64};
use serde::Serialize;
use std::path::PathBuf;
use work::{Board, Orders};

/// The command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The running rack. Workers are other processes, so the rack cannot be inside this process.
    #[arg(long, value_name = "RACK.TOML")]
    pub rack: PathBuf,
    /// Number of workers, each a process and a host of its own.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=WORKERS_MAX))]
    pub workers: u64,
    /// YCSB workload: A has half updates, B 5 %, C none.
    #[arg(long, value_enum, ignore_case = true, default_value_t = Mix::A)]
    pub workload: Mix,
    /// Number of records, 1 KiB each.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..1 << 32))]
    pub records: u64,
    /// Total number of operations, divided among the workers.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: u64,
    /// Local memory of each worker for far-memory pages, as a size such as 64MiB.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = farmem_workload::bytes)]
    pub local: u64,
    /// The seed of the operations; equal seeds give equal sequences.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    pub json: bool,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The profile of the rack's links.
    pub link: String,
    /// Number of workers.
    pub workers: u64,
    /// Total number of operations.
    pub operations: u64,
    /// Seconds of the slowest worker.
    pub seconds: f64,
    /// Operations per second.
    pub operations_per_second: f64,
    /// Number of updates.
    pub updates: u64,
    /// Pages fetched by the workers.
    pub fetches: u64,
    /// Pages invalidated by other workers.
    pub invalidations: u64,
    /// Invalidations without a request for the page itself: it shared a region with a requested page.
    pub false_invalidations: u64,
    /// Wrong answers, plus missing and surplus updates at the end.
    pub wrong_answers: u64,
}

/// Runs the store on the rack.
///
/// # Errors
/// [`Failure`] when the rack does not exist, this process may not share memory, or a worker fails.
pub fn run(args: &Args) -> Result<Outcome, Failure> {
    let config = RackConfig::load(&args.rack)?;
    let space = SharedSpace::join(&Rack::running(config), "nativekvs", ShareOptions::new(args.local))?;
    Ok(serve(&space, args, |orders| space.spawn("serve", orders))?)
}

/// Works as [`run`], in an existing space, with workers that `spawn` starts with the entry `serve`.
///
/// # Errors
/// An error when the rack has no room, or a worker fails.
pub fn serve(
    space: &SharedSpace,
    args: &Args,
    mut spawn: impl FnMut(&[u64]) -> Result<Worker, farmem::Error>,
) -> Result<Outcome, farmem::Error> {
    let board = space.allocate(Board::LEN)?;
    let table = space.allocate(Table::bytes(args.records));
    let outcome = table.and_then(|table| {
        let outcome = work(space, args, (&board, &table), &mut spawn);
        let freed = space.free(table.base);
        outcome.and_then(|outcome| freed.map(|()| outcome))
    });
    let freed = space.free(board.base);
    outcome.and_then(|outcome| freed.map(|()| outcome))
}

fn work(
    space: &SharedSpace,
    args: &Args,
    (board, table): (&Vma, &Vma),
    spawn: &mut dyn FnMut(&[u64]) -> Result<Worker, farmem::Error>,
) -> Result<Outcome, farmem::Error> {
    let mut workers = Vec::new();
    for worker in 0..args.workers {
        // The first workers take the remainder.
        let operations = args.operations / args.workers + u64::from(worker < args.operations % args.workers);
        let orders = Orders {
            board: board.base,
            table: table.base,
            worker,
            workers: args.workers,
            records: args.records,
            operations,
            workload: args.workload.workload(),
            seed: args.seed,
        };
        let begun = spawn(&orders.numbers());
        if begun.is_err() {
            // The others would wait for the failed worker.
            workers.iter_mut().for_each(|worker: &mut Worker| drop(worker.kill()));
        }
        workers.push(begun?);
    }
    Worker::join_all(workers)?;
    let board = Board::new(space.memory(board));
    let did: Vec<WorkerReport> = (0..args.workers).map(|worker| board.did(worker)).collect();
    let judged = judge(args, &did, &Table::new(space.memory(table)));
    Ok(Outcome { link: space.link_profile().to_string(), ..judged })
}

/// Combines the workers' reports and checks them against the table.
fn judge(args: &Args, did: &[WorkerReport], table: &Table<'_>) -> Outcome {
    let sum = |of: fn(&WorkerReport) -> u64| did.iter().map(of).sum::<u64>();
    let updates = sum(|did| did.updates);
    let (mut in_table, mut wrong) = (0, sum(|did| did.wrong));
    for record in 0..args.records {
        match table.read(hash(record)) {
            ReadResult::Value(count) => in_table += count,
            ReadResult::Nothing | ReadResult::Torn => wrong += 1,
        }
    }
    wrong += updates.abs_diff(in_table);
    let seconds = to_f64(did.iter().map(|did| did.nanos).max().unwrap_or(0)) / 1e9;
    Outcome {
        link: String::new(),
        workers: args.workers,
        operations: args.operations,
        seconds,
        operations_per_second: to_f64(args.operations) / seconds,
        updates,
        fetches: sum(|did| did.fetches),
        invalidations: sum(|did| did.invalidations),
        false_invalidations: sum(|did| did.false_invalidations),
        wrong_answers: wrong,
    }
}

impl farmem_workload::Outcome for Outcome {
    fn text(&self) -> String {
        let Self { workers, operations, seconds, operations_per_second, updates, .. } = self;
        let Self { fetches, invalidations, false_invalidations, wrong_answers, link, .. } = self;
        let answers = if *wrong_answers == 0 {
            "every answer was right, and the table holds every update".to_owned()
        } else {
            format!("{wrong_answers} ANSWERS WERE WRONG")
        };
        format!(
            "native-kvs: {workers} workers, link {link}, {operations} operations in {seconds:.2} s: {operations_per_second:.0} /s; {updates} updates, \
             {fetches} pages fetched, {invalidations} given up, {false_invalidations} of them for another of their region\n{answers}\n"
        )
    }

    fn wrong_answers(&self) -> u64 {
        self.wrong_answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    /// The bound on records is that of the other applications: the table's length does not overflow.
    #[test]
    fn records_have_a_bound() {
        let parse = |records: &str| {
            <Command as clap::Parser>::try_parse_from(["x", "--rack", "r", "--records", records])
        };
        let most = parse("4294967295").unwrap().args.records;
        assert!(Table::bytes(most) > 1 << 42);
        for wrong in ["0", "4294967296", "18446744073709551615"] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("1..4294967296"), "{error}");
        }
    }
}
