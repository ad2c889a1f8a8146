//! Measurement of rates: pages per second with many pages in flight, compared with bursts of raw datagrams of
//! a page's size.

use super::Budget;
use super::exchange::{RAW_FAILED, RawConfig, StopGuard, system};
use crate::{CpuMeter, CpuTime, Row, rate_row, to_f64};
use farmem::serve::Stop;
use farmem::{Client, Error, Op, Transport, VirtAddr};
use std::thread::scope;
use std::time::Instant;

/// Number of pages in flight: the limit of an RC connection for READs.
const DEPTH: usize = 16;
/// Length of a page, in bytes.
const PAGE: usize = farmem::PAGE_LEN;
/// Length of a page's datagram: BTH, AETH, page and ICRC.
const DATAGRAM: usize = 12 + 4 + PAGE + 4;
/// Number of pages per round, for each operation in the round of a round-trip measurement.
const PAGES_PER_OPERATION: u32 = 10;

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

/// Measures READ and WRITE rates, over UDP also the raw rate. Each raw datagram passes the kernel alone,
/// although one call sends many. A link sends and receives runs of datagrams as one, so its rate may be
/// higher.
pub(super) fn measure(
    raw: &RawConfig<'_>,
    client: &mut Client,
    base: VirtAddr,
    effort: Budget,
) -> Result<Vec<Row>, Error> {
    let pages = effort.per_round * PAGES_PER_OPERATION;
    let (mut reads, mut writes, mut datagrams) = (Vec::new(), Vec::new(), Vec::new());
    let (mut reads_spent, mut writes_spent) = (CpuTime::default(), CpuTime::default());
    // All parties are threads of this process.
    let own = CpuMeter::own();
    let stop = Stop::new();
    let (mut sink, mut source) = (raw.socket()?, raw.socket()?);
    let source_at = source.address().map_err(system("a raw socket has no address"))?;
    scope(|threads| {
        let _ends = StopGuard(&stop);
        raw.serve(threads, move |stop| source.stream(DEPTH, DATAGRAM, stop), &stop);
        for _ in 0..effort.rounds {
            if raw.transport == Transport::Udp {
                let begin = Instant::now();
                let came = sink.drain(source_at, DEPTH, pages as usize).map_err(system(RAW_FAILED))?;
                datagrams.push(to_f64(came as u64) / begin.elapsed().as_secs_f64());
            }
            for (direction, rates, spent) in [
                (Direction::Read, &mut reads, &mut reads_spent),
                (Direction::Write, &mut writes, &mut writes_spent),
            ] {
                let cpu = own.begin();
                rates.push(pages_per_second(client, base, pages, direction)?);
                spent.add(cpu.end(), pages.into());
            }
        }
        Ok::<(), Error>(())
    })?;
    let n = u64::from(pages) * u64::from(effort.rounds);
    let row = |name: &str, rounds: &mut [f64], baseline: &mut [f64]| {
        rate_row(&format!("net.{}.{name}.rate", raw.transport.name()), rounds, baseline, n)
    };
    Ok(vec![
        row("read4k", &mut reads, &mut datagrams).with_cpu(reads_spent.per_operation()),
        row("write4k", &mut writes, &mut datagrams).with_cpu(writes_spent.per_operation()),
    ])
}

fn pages_per_second(
    client: &mut Client,
    base: VirtAddr,
    pages: u32,
    direction: Direction,
) -> Result<f64, Error> {
    let begin = Instant::now();
    let (mut submitted, mut ended, mut under_way) = (0, 0, 0);
    while ended < pages {
        while submitted < pages && under_way < DEPTH {
            let buf = client.buffer(PAGE);
            client.submit(match direction {
                Direction::Read => Op::Read { addr: base, buf },
                Direction::Write => Op::Write { addr: base, buf },
            })?;
            submitted += 1;
            under_way += 1;
        }
        let Some(completed) = client.next_completed()? else { continue };
        completed.result?;
        client.recycle(completed.buf);
        under_way -= 1;
        ended += 1;
        // Completed operations are collected before the next submissions, so that requests leave in batches.
        while let Some(completed) = client.poll_ended() {
            completed.result?;
            client.recycle(completed.buf);
            under_way -= 1;
            ended += 1;
        }
    }
    Ok(f64::from(pages) / begin.elapsed().as_secs_f64())
}
