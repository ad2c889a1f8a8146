//! The rows of `soda.link`: the capacity of the link between host and DPU, and of the network, by request
//! size (SODA IV-A, figures 4 and 5).
//!
//! *intra*: a process sends requests, and a polling thread in place of a DPU answers each. Answers come by
//! SEND (bytes in the ring), by WRITE (bytes in memory after the rings), or to pages (bytes in a window's
//! file, by a system call). *net*: a client reads from a memory node.

use super::far::node_memory;
use crate::{NodeKind, Racks};
use crate::{Plan, Row, Samples, Sheet, to_f64};
use farmem::{Client, Error, Op, VirtAddr};
use farmem_link::dpu::{Answers, PairSize, ProcessEnd, Registered, Requests, make_pair};
use farmem_link::{OpenError, OutsideWaker, WakeAt};
use farmem_machine::Duration as Span;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a request.
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Requests in flight when bandwidth is measured.
const DEPTH: usize = 8;
/// Bytes moved for a figure.
const MOVED: usize = 64 << 20;
/// Bytes moved for a figure in a short run.
const MOVED_QUICK: usize = 4 << 20;

/// The way of answering a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Send,
    Write,
    Pages,
}

impl By {
    const ALL: [Self; 3] = [Self::Send, Self::Write, Self::Pages];

    const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Pages => "pages",
        }
    }
}

/// The result of moving some bytes.
struct Transfer {
    latency: Samples,
    /// Bytes per second.
    bandwidth: f64,
}

/// Measures the rows that `plan` selects.
pub(super) fn rows<R: Racks>(plan: &Plan, racks: &mut R, sheet: &mut Sheet<'_>) -> Result<(), R::Failure> {
    let moved = if plan.quick { MOVED_QUICK } else { MOVED };
    if plan.wants("soda.link.intra.") {
        for size in SIZES {
            intra(size, moved, sheet).map_err(Error::from)?;
        }
    }
    if plan.wants("soda.link.net.") {
        let bytes = (SIZES[SIZES.len() - 1] * DEPTH) as u64;
        let rack = racks.start_with(1, NodeKind::Offload, node_memory(bytes), "")?;
        let mut client = rack.as_ref().client("soda")?;
        let vma = client.allocate(bytes)?;
        client.write(vma.base, &vec![1; SIZES[SIZES.len() - 1] * DEPTH])?;
        for size in SIZES {
            sheet.begins(&format!("READs of {} KiB", size >> 10));
            let carried = net(&mut client, vma.base, size, moved)?;
            sheet.add(carried.rows(&format!("soda.link.net.{size}"), None));
        }
    }
    Ok(())
}

impl Transfer {
    fn rows(&self, id: &str, beside: Option<&Self>) -> [Row; 2] {
        let mb = |carried: &Self| carried.bandwidth / 1e6;
        let n = self.latency.len();
        [
            self.latency.row(&format!("{id}.latency"), beside.map(|beside| &beside.latency)),
            Row::figure(format!("{id}.bandwidth"), "MB/s", mb(self), n).beside(beside.map(mb)),
        ]
    }
}

/// Measures each way, compared with SEND, the paper's.
fn intra(size: usize, moved: usize, sheet: &mut Sheet<'_>) -> Result<(), OpenError> {
    let mut send = None;
    for by in By::ALL {
        sheet.begins(&format!("{} KiB by {}", size >> 10, by.name()));
        let carried = LinkEnds::open(size)?.carry(by, size, moved);
        sheet.add(carried.rows(&format!("soda.link.intra.{size}.{}", by.name()), send.as_ref()));
        send = send.or(Some(carried));
    }
    Ok(())
}

/// Both ends of a link, and a file in place of a window's.
struct LinkEnds {
    process: ProcessEnd,
    requests: Requests,
    answers: Answers,
    pages: Registered,
}

impl LinkEnds {
    fn open(size: usize) -> Result<Self, OpenError> {
        let pair = PairSize {
            requests: 1 << 16,
            answers: (2 * DEPTH * size).next_power_of_two(),
            registered: DEPTH * size,
        };
        let file = make_pair(pair)?;
        // The DPU's end polls and is never woken.
        let unheard = WakeAt::Datagram { address: IpAddr::V4(Ipv4Addr::LOCALHOST) };
        let process = ProcessEnd::of(&file, pair, OutsideWaker::open(&unheard)?)?;
        let (requests, answers) = Requests::of(&file, pair)?;
        Ok(Self { process, requests, answers, pages: pages(DEPTH * size)? })
    }

    /// Moves bytes: one request at a time for a latency, several for a rate.
    fn carry(self, by: By, size: usize, moved: usize) -> Transfer {
        let Self { mut process, mut requests, mut answers, pages } = self;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| answer(by, size, &stop, &mut requests, &mut answers, &pages));
            let mut buf = vec![0; size + 64];
            let mut latency = Samples::new();
            for round in 0..(moved / size / 4).clamp(8, 4096) {
                let begin = Instant::now();
                ask(&mut process, round % DEPTH);
                take(by, size, &mut process, &mut buf);
                latency.record(begin.elapsed());
            }
            let (begin, count) = (Instant::now(), (moved / size).max(DEPTH));
            (0..DEPTH).for_each(|place| ask(&mut process, place));
            for round in 0..count {
                take(by, size, &mut process, &mut buf);
                if round + DEPTH < count {
                    ask(&mut process, round % DEPTH);
                }
            }
            let bandwidth = to_f64((count * size) as u64) / begin.elapsed().as_secs_f64();
            stop.store(true, Ordering::Release);
            Transfer { latency, bandwidth }
        })
    }
}

/// Creates a file of this many resident bytes: a fresh page would cost the same for every writer.
fn pages(len: usize) -> Result<Registered, OpenError> {
    let made = || -> rustix::io::Result<OwnedFd> {
        let file = memfd_create("farmem-bench", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok(file)
    };
    let file =
        made().map_err(|e| OpenError::System { doing: "make a memory file".into(), source: e.into() })?;
    let pages = Registered::of(file, u64::MAX)?;
    assert!(pages.put(0, &[&vec![1; len]]), "a file of our own");
    Ok(pages)
}

fn ask(process: &mut ProcessEnd, place: usize) {
    let record = (place as u64).to_le_bytes();
    assert!(process.push(&record).expect("an end of our own"), "there is room");
    process.publish();
}

fn take(by: By, size: usize, process: &mut ProcessEnd, buf: &mut [u8]) {
    let len = loop {
        match process.pop(buf).expect("an end of our own") {
            Some(len) => break len,
            None => process.wait(1, Span::from_millis(20)),
        }
    };
    // Bytes in memory after the rings are copied once more, to their place of use.
    if by == By::Write {
        let place = u64::from_le_bytes(*buf[..len].first_chunk().expect("a number"));
        let place = usize::try_from(place).expect("a place");
        process.take(place * size, &mut buf[..size]);
    }
}

/// Runs the DPU's end: answers requests.
fn answer(
    by: By,
    size: usize,
    stop: &AtomicBool,
    requests: &mut Requests,
    answers: &mut Answers,
    pages: &Registered,
) {
    let (bytes, mut buf) = (vec![7; size], vec![0; 64]);
    let mut waiting: VecDeque<[u8; 8]> = VecDeque::new();
    while !stop.load(Ordering::Acquire) {
        while let Ok(Some(len)) = requests.pop(&mut buf) {
            waiting.push_back(*buf[..len].first_chunk().expect("a number"));
        }
        requests.release();
        let Some(place) = waiting.pop_front() else {
            thread::yield_now();
            continue;
        };
        let addr = u64::from_le_bytes(place) * size as u64;
        let record: &[u8] = match by {
            By::Send => &bytes,
            By::Write if answers.put(addr, &bytes) => &place,
            By::Pages if pages.put(addr, &[&bytes]) => &place,
            By::Write | By::Pages => unreachable!("there is room"),
        };
        // The process frees room when it has taken everything.
        while !answers.push(record).expect("an end of our own") && !stop.load(Ordering::Acquire) {
            answers.publish();
            thread::yield_now();
        }
        answers.publish();
    }
}

fn net(client: &mut Client, base: VirtAddr, size: usize, moved: usize) -> Result<Transfer, Error> {
    let mut latency = Samples::new();
    let mut buf = vec![0; size];
    for _ in 0..(moved / size / 4).clamp(8, 4096) {
        latency.time(|| client.read(base, &mut buf))?;
    }
    let (begin, count) = (Instant::now(), (moved / size).max(DEPTH));
    let read = |client: &mut Client, place: usize| {
        let buf = client.buffer(size);
        client.submit(Op::Read { addr: VirtAddr(base.0 + (place * size) as u64), buf }).map(drop)
    };
    (0..DEPTH).try_for_each(|place| read(client, place))?;
    for round in 0..count {
        let ended = client.next_completed()?.expect("some are under way");
        ended.result?;
        client.recycle(ended.buf);
        if round + DEPTH < count {
            read(client, round % DEPTH)?;
        }
    }
    let time: Duration = begin.elapsed();
    Ok(Transfer { latency, bandwidth: to_f64((count * size) as u64) / time.as_secs_f64() })
}
