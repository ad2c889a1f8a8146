//! `pd3.transfer.host_dpu.*`: requests that write records of 64 bytes, from threads of a program to its DPU
//! (PD3, appendix A, figure A.1a).
//!
//! All threads write into one lock-free ring. The baseline is the single-producer ring of a window, shared
//! behind a lock. The DPU's end copies out and parses each request, as a DPU does. The cost of a record at
//! the program is its threads' CPU time.

use crate::rates::cpu_time;
use crate::{Plan, Row, Sheet, rate_row, to_f64};
use farmem_link::dpu::{
    PairSize, ProcessEnd, Requests, SubmissionSender, Submissions, make_pair, make_submissions,
};
use farmem_link::{OpenError, OutsideWaker, WakeAt};
use farmem_wire::pd3::{IDS, Id, RegionRange, Request};
use std::hint::spin_loop;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// Bytes of a record.
const RECORD: u32 = 64;
/// Bytes of a ring.
const RING: usize = 1 << 20;
/// Requests per round.
const REQUESTS: u64 = 1 << 20;
const REQUESTS_QUICK: u64 = 1 << 14;

/// Polls of an empty ring before the thread yields.
const SPINS: u32 = 256;

/// The row ids.
#[cfg(test)]
pub(super) const IDS_OF_ROWS: [&str; 2] = ["pd3.transfer.host_dpu.1", "pd3.transfer.host_dpu.2"];

/// Returns a waker for an address without a listener: a polling DPU is not woken.
fn unheard_waker() -> Result<OutsideWaker, OpenError> {
    OutsideWaker::open(&WakeAt::Datagram { address: IpAddr::V4(Ipv4Addr::new(127, 77, 1, 2)) })
}

/// Hands a request over. Returns false when there is no room.
type Push = dyn Fn(&[u8]) -> bool + Sync;
/// Copies out the next request and returns its length. Returns `None` when there is no more, and then frees
/// the room of the earlier ones.
type Pop = dyn FnMut(&mut [u8]) -> Option<usize>;

/// One transfer mechanism.
struct Mechanism {
    push: Box<Push>,
    pop: Box<Pop>,
}

const WHOLE: &str = "both ends are this program's";

fn without_a_lock() -> Result<Mechanism, OpenError> {
    let file = make_submissions(RING)?;
    let sender = SubmissionSender::of(&file, RING, unheard_waker()?)?;
    let mut end = Submissions::of(&file, RING)?;
    Ok(Mechanism {
        push: Box::new(move |record| sender.push(record).expect(WHOLE)),
        pop: Box::new(move |buf| {
            let popped = end.pop(buf).expect(WHOLE);
            if popped.is_none() {
                end.release();
            }
            popped
        }),
    })
}

fn behind_a_lock() -> Result<Mechanism, OpenError> {
    let size = PairSize { requests: RING, answers: 1 << 12, registered: 0 };
    let file = make_pair(size)?;
    let process = Mutex::new(ProcessEnd::of(&file, size, unheard_waker()?)?);
    let (mut end, _answers) = Requests::of(&file, size)?;
    Ok(Mechanism {
        push: Box::new(move |record| {
            let mut process = process.lock().unwrap_or_else(PoisonError::into_inner);
            let has_room = process.push(record).expect(WHOLE);
            process.publish();
            has_room
        }),
        pop: Box::new(move |buf| {
            let popped = end.pop(buf).expect(WHOLE);
            if popped.is_none() {
                end.release();
            }
            popped
        }),
    })
}

/// The result of a round: requests per second, CPU time of the requesting threads, and wrong requests.
struct Round {
    rate: f64,
    cpu: Duration,
    wrong: u64,
}

impl Mechanism {
    /// Runs writers of `each` requests, and reads all on the calling thread.
    fn round(&mut self, threads: u64, each: u64) -> Round {
        let Self { push, pop } = self;
        let (push, begin) = (&**push, Barrier::new(usize::try_from(threads).expect("few") + 1));
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..threads)
                .map(|thread| {
                    let begin = &begin;
                    scope.spawn(move || write(push, thread, each, begin))
                })
                .collect();
            begin.wait();
            let start = Instant::now();
            let (mut buf, mut left, mut sum) = ([0; 128], threads * each, 0_u64);
            let (mut wrong, mut idle) = (0, 0_u32);
            while left > 0 {
                let Some(len) = pop(&mut buf) else {
                    // Writers may be idle for lack of a CPU: yield now and then.
                    idle += 1;
                    if idle % SPINS == 0 {
                        yield_now()
                    } else {
                        spin_loop()
                    }
                    continue;
                };
                match Request::take(&buf[..len]) {
                    Ok((Request::Write { id, data, .. }, [])) if data[..2] == id.get().to_le_bytes() => {
                        sum += u64::from(id.get());
                    }
                    _ => wrong += 1,
                }
                left -= 1;
            }
            let time = start.elapsed();
            let cpu = writers.into_iter().map(|writer| writer.join().expect("it writes")).sum();
            let right: u64 = threads * (0..each).map(|n| n % u64::from(IDS)).sum::<u64>();
            Round {
                rate: to_f64(threads * each) / time.as_secs_f64(),
                cpu,
                wrong: wrong + u64::from(sum != right),
            }
        })
    }
}

/// Writes requests. Returns the CPU time.
fn write(push: &Push, thread: u64, each: u64, begin: &Barrier) -> Duration {
    let (mut data, mut record) = ([0; RECORD as usize], Vec::new());
    begin.wait();
    let start = cpu_time();
    for n in 0..each {
        let id = Id::new(u16::try_from(n % u64::from(IDS)).expect("14 bits"));
        data[..2].copy_from_slice(&id.get().to_le_bytes());
        let offset = u32::try_from(n % 1024).expect("small") * RECORD;
        let place = RegionRange { region: u16::try_from(thread).expect("few"), offset, size: RECORD };
        record.clear();
        Request::Write { id, place, data: &data }.emit(&mut record);
        while !push(&record) {
            yield_now();
        }
    }
    cpu_time() - start
}

/// Measures the selected rows.
pub(super) fn measure(plan: &Plan, sheet: &mut Sheet<'_>) {
    let (rounds, requests) = if plan.quick { (2, REQUESTS_QUICK) } else { (9, REQUESTS) };
    for threads in [1, 2] {
        let id = format!("pd3.transfer.host_dpu.{threads}");
        if !plan.wants(&id) {
            continue;
        }
        sheet.begins(&format!("requests of {threads} threads"));
        let (mut ours, mut locked) = match (without_a_lock(), behind_a_lock()) {
            (Ok(ours), Ok(locked)) => (ours, locked),
            (Err(error), _) | (_, Err(error)) => {
                sheet.add([Row::absent(id, "1/s", error.to_string())]);
                continue;
            }
        };
        let (mut rates, mut beside, mut cpu) = (Vec::new(), Vec::new(), Duration::ZERO);
        for round in 0..=rounds {
            let (one, other) =
                (ours.round(threads, requests / threads), locked.round(threads, requests / threads));
            sheet.add_wrong(one.wrong + other.wrong);
            if round > 0 {
                rates.push(one.rate);
                beside.push(other.rate);
                cpu += one.cpu;
            }
        }
        let cpu = cpu.as_secs_f64() * 1e9 / to_f64(rounds * requests);
        let why = "beside one ring of one producer, behind a lock; cpu: of the threads that ask".to_owned();
        let row = rate_row(&id, &mut rates, &mut beside, rounds).with_cpu(Some(cpu));
        sheet.add([Row { why: Some(why), ..row }]);
    }
}
