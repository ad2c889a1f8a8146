//! `pd3.transfer.far.N` and `pd3.transfer.copies`: records of 64 bytes from threads of a program to far
//! memory through a DPU process (PD3, appendix A, figure A.1b), and the number of copies that the DPU makes
//! (PD3 6.1).
//!
//! Each thread has a window of records in flight, which it writes and then reads again. The baseline has the
//! same threads with one client each, connected directly to the memory node. The difference in CPU time is
//! what the DPU offloads. The DPU, the switch and the memory node share the other CPU.

use super::{DOMAIN, DPU};
use crate::rates::cpu_time;
use crate::{NodeKind, Racks};
use crate::{Plan, Row, Sheet, rate_row, to_f64};
use farmem::dpu::api::{ApiOptions, ApiThread, Carried, MemoryApi, Pending, Region};
use farmem::{Client, Error, Op, Rack, RackConfig, Ticket, VirtAddr};
use farmem_link::affinity::allowed_cpus;
use farmem_link::pin_to_cpu;
use std::collections::VecDeque;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Bytes of a record.
const RECORD: usize = 64;
/// Records in flight per thread.
const WINDOW: usize = 32;
/// Consecutive records of a thread.
const RECORDS: u64 = 4096;
/// Numbers of requesting threads.
const THREADS: [u16; 2] = [1, 2];

/// The row ids.
#[cfg(test)]
pub(super) const IDS: [&str; 3] = ["pd3.transfer.far.1", "pd3.transfer.far.2", COPIES];
const COPIES: &str = "pd3.transfer.copies";

/// The result of a round: records per second, CPU time of the threads, and wrong records.
struct Round {
    rate: f64,
    cpu: Duration,
    wrong: u64,
}

/// One thread's path to far memory, with a window of records in flight.
trait RecordPath {
    /// Starts the write of record `n`, or its read.
    fn begin(&mut self, n: u64, write: Option<&[u8; RECORD]>) -> Result<(), Error>;

    /// Waits for the oldest operation in flight. Returns the bytes read.
    fn end(&mut self) -> Result<[u8; RECORD], Error>;
}

struct ByDpu<'a> {
    thread: ApiThread<'a>,
    region: Region,
    /// The start of this thread's records.
    base: u64,
    /// Operations in flight; true for reads.
    under_way: VecDeque<(Pending, bool)>,
}

impl RecordPath for ByDpu<'_> {
    fn begin(&mut self, n: u64, write: Option<&[u8; RECORD]>) -> Result<(), Error> {
        let at = self.base + n * RECORD as u64;
        let pending = match write {
            Some(record) => self.thread.write(self.region, at, record)?,
            None => self.thread.read(self.region, at, RECORD)?,
        };
        self.under_way.push_back((pending, write.is_none()));
        Ok(())
    }

    fn end(&mut self) -> Result<[u8; RECORD], Error> {
        let (pending, reads) = self.under_way.pop_front().expect("something is under way");
        let mut record = [0; RECORD];
        self.thread.wait(pending, if reads { &mut record } else { &mut [] })?;
        Ok(record)
    }
}

struct ByClient {
    client: Client,
    base: VirtAddr,
    under_way: VecDeque<Ticket>,
}

impl RecordPath for ByClient {
    fn begin(&mut self, n: u64, write: Option<&[u8; RECORD]>) -> Result<(), Error> {
        let addr = VirtAddr(self.base.0 + n * RECORD as u64);
        let mut buf = self.client.buffer(RECORD);
        let op = match write {
            Some(record) => {
                buf.copy_from_slice(record);
                Op::Write { addr, buf }
            }
            None => Op::Read { addr, buf },
        };
        self.under_way.push_back(self.client.submit(op)?);
        Ok(())
    }

    fn end(&mut self) -> Result<[u8; RECORD], Error> {
        let completed = self.client.wait(self.under_way.pop_front().expect("something is under way"))?;
        completed.result?;
        let record = *completed.buf.first_chunk().expect("a record's length");
        self.client.recycle(completed.buf);
        Ok(record)
    }
}

fn record(thread: u16, n: u64) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..8].copy_from_slice(&n.to_le_bytes());
    record[RECORD - 8..].copy_from_slice(&(n ^ u64::from(thread) << 48).to_le_bytes());
    record
}

/// Writes `each` records and reads them. Returns the wrong ones and the CPU time.
fn ask(way: &mut impl RecordPath, thread: u16, each: u64) -> Result<(u64, Duration), Error> {
    let (begun, mut wrong) = (cpu_time(), 0);
    for reads in [false, true] {
        for at in 0..each + WINDOW as u64 {
            if at >= WINDOW as u64 {
                let (n, came) = (at - WINDOW as u64, way.end()?);
                wrong += u64::from(reads && came != record(thread, n));
            }
            if at < each {
                way.begin(at, (!reads).then(|| record(thread, at)).as_ref())?;
            }
        }
    }
    Ok((wrong, cpu_time() - begun))
}

/// Runs `threads` requesting threads, each with its own path.
fn round<W: RecordPath>(
    threads: u16,
    each: u64,
    cpu: Option<usize>,
    way: impl Fn(u16) -> Result<W, Error> + Sync,
) -> Result<Round, Error> {
    let (way, begin) = (&way, &Barrier::new(usize::from(threads) + 1));
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let own = way(thread);
                    // A client binds its opening thread to the CPU of its rack.
                    let bound = cpu.map_or(Ok(()), pin_to_cpu).map_err(not_bound);
                    begin.wait();
                    bound?;
                    ask(&mut own?, thread, each)
                })
            })
            .collect();
        begin.wait();
        let start = Instant::now();
        let mut round = Round { rate: 0.0, cpu: Duration::ZERO, wrong: 0 };
        for thread in all {
            let (wrong, cpu) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            (round.wrong, round.cpu) = (round.wrong + wrong, round.cpu + cpu);
        }
        round.rate = to_f64(2 * u64::from(threads) * each) / start.elapsed().as_secs_f64();
        Ok(round)
    })
}

fn not_bound(source: std::io::Error) -> Error {
    Error::System { what: "the program has no CPU of its own".into(), source }
}

/// Measures what `plan` selects.
pub(super) fn measure<R: Racks>(plan: &Plan, racks: &mut R, sheet: &mut Sheet<'_>) -> Result<(), R::Failure> {
    if !plan.wants("pd3.transfer.far.") && !plan.wants(COPIES) {
        return Ok(());
    }
    sheet.begins("records to far memory by way of the DPU");
    let rack = racks.start_with(1, NodeKind::Offload, 64 << 20, DPU)?;
    let config = rack.as_ref().config().expect("a rack that runs has a description").clone();
    let quick = plan.quick;
    // A client binds its opening thread, and threads started by it, to a CPU, so the allowed CPUs are read
    // before. The program's CPU is the last one.
    let cpus = allowed_cpus().unwrap_or_default();
    let own = cpus.get(1..).and_then(<[usize]>::last).copied();
    let (rows, wrong) = crate::cpu::on_its_own(|| compare(&config, own, quick))?;
    sheet.add(rows);
    sheet.add_wrong(wrong);
    Ok(())
}

fn compare(config: &RackConfig, place: Option<usize>, quick: bool) -> Result<(Vec<Row>, u64), Error> {
    let (rounds, each) = if quick { (1, 512) } else { (5, RECORDS) };
    let mut client = Rack::running(config.clone()).client(DOMAIN)?;
    let most = THREADS.into_iter().max().unwrap_or(1);
    let api = MemoryApi::connect(&client, ApiOptions { threads: most, ..ApiOptions::default() })?;
    let region = api.allocate(&mut client, u64::from(most) * RECORDS * RECORD as u64)?;
    let own = client.allocate(region.vma.size)?;
    let base = |thread: u16| u64::from(thread) * RECORDS * RECORD as u64;
    let by_dpu = |thread| {
        let own = api.thread().ok_or(Error::QueueFull)?;
        Ok(ByDpu { thread: own, region, base: base(thread), under_way: VecDeque::new() })
    };
    let by_client = |thread| {
        let client = Rack::running(config.clone()).client(DOMAIN)?;
        Ok(ByClient { client, base: VirtAddr(own.base.0 + base(thread)), under_way: VecDeque::new() })
    };
    let (mut rows, mut wrong) = (Vec::new(), 0);
    for threads in THREADS {
        let (mut rates, mut beside) = (Vec::new(), Vec::new());
        let mut cpu = [Duration::ZERO; 2];
        for number in 0..=rounds {
            let both = [round(threads, each, place, by_dpu)?, round(threads, each, place, by_client)?];
            wrong += both.iter().map(|round| round.wrong).sum::<u64>();
            if number > 0 {
                rates.push(both[0].rate);
                beside.push(both[1].rate);
                cpu = [cpu[0] + both[0].cpu, cpu[1] + both[1].cpu];
            }
        }
        let n = 2 * rounds * u64::from(threads) * each;
        let [cpu, of_clients] = cpu.map(|cpu| cpu.as_secs_f64() * 1e9 / to_f64(n));
        let why =
            format!("beside a client in each thread, whose CPU time for a record is {of_clients:.0} ns");
        let row = rate_row(&format!("pd3.transfer.far.{threads}"), &mut rates, &mut beside, rounds);
        rows.push(Row { why: Some(why), ..row.with_cpu(Some(cpu)) });
    }
    let Carried { requests, moves, copies, .. } = api.carried()?;
    let why = format!(
        "of {requests} requests; their bytes were moved {moves} times between the memory that both share and where the DPU sends and receives, \
         which the paper's DMA engine does"
    );
    let each = to_f64(copies) / to_f64(requests.max(1));
    rows.push(Row { why: Some(why), ..Row::figure(COPIES, "copies", each, requests) });
    api.deallocate(&mut client, region)?;
    client.free(own.base)?;
    // Each request is moved once; more moves would be copies in disguise.
    Ok((rows, wrong + moves.abs_diff(requests)))
}
