//! Tests of one process at a DPU, without threads: its requests, and the answers to invalid ones.

mod closing;
mod completed;
mod copies;
mod lending;

use super::carrier::{Carrier, Extent, Memory};
use super::complete::Stage;
use super::dpu_client::{DpuClient, RegionAt, Terms};
use super::intra::Intra;
use super::mailbox::{Mailbox, Notice, Question};
use super::messages::Carried;
use super::threads::head_of;
use farmem_client::{Client, Rack};
use farmem_dpu::{Asker, Caching, Config, Evidence, TableConfig};
use farmem_link::dpu::{
    Bell, PairSize, ProcessEnd, Registered, Requests, SubmissionSender, Submissions, make_pair,
    make_submissions,
};
use farmem_link::{OutsideWaker, WakeAt};
use farmem_machine::{Duration, Rng};
use farmem_wire::pd3::{self, Head};
use farmem_wire::soda::{Answer, Dest, Ended, Request, Span};
use farmem_wire::{Rkey, VirtAddr};
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: u32 = 4096;
const BYTES: u64 = 16 * PAGE as u64;
const SIZE: PairSize = PairSize { requests: 1 << 16, answers: 1 << 16, registered: 1 << 16 };

/// A process with a region 1 that it writes, and a region 2 of another object that it reads.
struct Bench {
    process: ProcessEnd,
    dpu_client: DpuClient,
    stage: Option<Stage>,
    gone: Arc<AtomicBool>,
}

fn number(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

fn memory() -> Arc<Memory> {
    let table = TableConfig { slots: number(4), entry_pages: 4 };
    Memory::new(
        Config { page_len: number(PAGE), table, ..Config::new(Caching::Dynamic) },
        Rng::from_number(1),
    )
}

const USUAL: Terms = Terms { blocking: false, intra: None, staged: None, patience: Duration::from_secs(10) };

fn bench(carrier: &mut Carrier<'_>) -> Bench {
    bench_of(carrier, Asker(7), SIZE)
}

/// Creates a process whose regions are objects of their own.
fn bench_of(carrier: &mut Carrier<'_>, asker: Asker, size: PairSize) -> Bench {
    let file = make_pair(size).unwrap();
    let no_listener = WakeAt::Datagram { address: IpAddr::V4(Ipv4Addr::new(127, 77, 2, 1)) };
    let process = ProcessEnd::of(&file, size, OutsideWaker::open(&no_listener).unwrap()).unwrap();
    let gone: Arc<AtomicBool> = Arc::default();
    let mut dpu_client = DpuClient::new(asker, Requests::of(&file, size).unwrap(), Arc::clone(&gone), USUAL);
    for (region, writer) in [(1, Some(asker)), (2, None)] {
        let object = 2 * asker.0 + u32::from(region);
        let vma = carrier.client.allocate(BYTES).unwrap();
        let numbered: Vec<u8> = (0..BYTES).map(|at| u8::try_from(at / u64::from(PAGE)).unwrap()).collect();
        carrier.client.write(vma.base, &numbered).unwrap();
        let extent = Extent { base: VirtAddr(vma.base.0), bytes: BYTES };
        carrier.memory().open(object, extent, writer, Box::new(Evidence));
        dpu_client.regions.insert(region, RegionAt { object, bytes: BYTES, granted: true });
    }
    Bench { process, dpu_client, stage: None, gone }
}

impl Bench {
    /// Sends requests, lets the DPU execute all of them, and returns the answers.
    fn ask(
        &mut self,
        carrier: &mut Carrier<'_>,
        requests: &[Request<'_>],
    ) -> Vec<(Span, bool, Ended, Vec<u8>)> {
        self.send(requests);
        self.serve(carrier);
        self.answers()
    }

    /// Sends requests.
    fn send(&mut self, requests: &[Request<'_>]) {
        for request in requests {
            let mut record = Vec::new();
            request.emit(&mut record);
            assert!(self.process.push(&record).unwrap());
        }
        self.process.publish();
    }

    /// Returns the answers of the DPU.
    fn answers(&mut self) -> Vec<(Span, bool, Ended, Vec<u8>)> {
        let mut answers = Vec::new();
        let mut buf = vec![0; 1 << 16];
        while let Some(len) = self.process.pop(&mut buf).unwrap() {
            let Answer { span, write, ended, data } = Answer::parse(&buf[..len]).unwrap();
            answers.push((span, write, ended, data.to_vec()));
        }
        answers
    }

    fn serve(&mut self, carrier: &mut Carrier<'_>) {
        loop {
            let taken = self.dpu_client.take_requests(carrier, 8);
            let completed = carrier.client.next_completed().unwrap();
            let is_done = taken == 0 && completed.is_none();
            completed.into_iter().for_each(|completed| assert!(carrier.took(completed).is_none()));
            while let Some(ended) = carrier.next_ended() {
                assert!(self.dpu_client.waits_for(ended.ticket));
                self.dpu_client.answer(carrier, ended, self.stage.as_mut());
            }
            while let Some(completed) = self.stage.as_ref().and_then(Stage::take) {
                assert_eq!(completed.asker, self.dpu_client.asker());
                carrier.client.recycle(completed.buf);
                self.dpu_client.completed(completed.bytes);
            }
            if is_done && (self.stage.is_none() || self.dpu_client.is_idle()) {
                break;
            }
        }
        self.dpu_client.publish();
    }
}

fn span(region: u16, offset: u64, size: u32) -> Span {
    Span { region, offset, size }
}

fn with_bench(story: impl FnOnce(&mut Bench, &mut Carrier<'_>)) {
    let rack = Rack::embedded_with(1, 1 << 20).unwrap();
    let mut client: Client = rack.client("dpu").unwrap();
    let mut carrier = Carrier::new(&mut client, memory(), None);
    let mut bench = bench(&mut carrier);
    story(&mut bench, &mut carrier);
}

/// Reads by SEND and by WRITE return the same bytes, and a later read sees a write (PROTOCOL 17.7 to 17.9).
#[test]
fn a_process_gets_its_reads_and_writes() {
    with_bench(|bench, carrier| {
        let by_write = Dest::Write { addr: 512, rkey: Rkey(1) };
        let asked = [
            Request::Read { span: span(2, u64::from(PAGE) * 3 + 8, 100), dest: Dest::Send },
            Request::Read { span: span(2, u64::from(PAGE) * 4, PAGE), dest: by_write },
        ];
        let answers = bench.ask(carrier, &asked);
        assert!(
            answers.contains(&(span(2, u64::from(PAGE) * 3 + 8, 100), false, Ended::Done, vec![3; 100])),
            "{answers:?}"
        );
        assert!(
            answers.contains(&(span(2, u64::from(PAGE) * 4, PAGE), false, Ended::Done, vec![])),
            "{answers:?}"
        );
        let mut bytes = vec![0; PAGE as usize];
        bench.process.take(512, &mut bytes);
        assert_eq!(bytes, vec![4; PAGE as usize]);
        let write = Request::Write { span: span(1, 10, 5), data: b"hello" };
        assert_eq!(bench.ask(carrier, &[write]), [(span(1, 10, 5), true, Ended::Done, vec![])]);
        let again = Request::Read { span: span(1, 9, 7), dest: Dest::Send };
        assert_eq!(
            bench.ask(carrier, &[again]),
            [(span(1, 9, 7), false, Ended::Done, b"\0hello\0".to_vec())]
        );
        assert!(!bench.gone.load(Ordering::Acquire));
    });
}

/// A request is refused if it leaves a region or a page, writes a read-only region, or names an unknown region or
/// unregistered memory. The process may continue.
#[test]
fn requests_outside_a_region_are_refused() {
    with_bench(|bench, carrier| {
        let page = u64::from(PAGE);
        let reads = [
            span(3, 0, 8),
            span(2, BYTES, 8),
            span(2, BYTES - 4, 8),
            span(2, page - 4, 8),
            span(2, (1 << 48) - 1, 8),
        ];
        for wrong in reads {
            let read = Request::Read { span: wrong, dest: Dest::Send };
            assert_eq!(bench.ask(carrier, &[read]), [(wrong, false, Ended::Refused, vec![])]);
        }
        for addr in [1 << 16, (1 << 16) - 8, 4, u64::MAX] {
            let right = span(2, 0, 16);
            let read = Request::Read { span: right, dest: Dest::Write { addr, rkey: Rkey(1) } };
            assert_eq!(bench.ask(carrier, &[read]), [(right, false, Ended::Refused, vec![])], "{addr}");
        }
        for wrong in [span(2, 0, 4), span(9, 0, 4), span(1, page - 2, 4)] {
            let write = Request::Write { span: wrong, data: b"evil" };
            assert_eq!(bench.ask(carrier, &[write]), [(wrong, true, Ended::Refused, vec![])]);
        }
        assert!(!bench.gone.load(Ordering::Acquire));
        let read = Request::Read { span: span(2, 0, 4), dest: Dest::Send };
        assert_eq!(bench.ask(carrier, &[read]), [(span(2, 0, 4), false, Ended::Done, vec![0; 4])]);
    });
}

/// Pages of a process are read into registered memory and written back from there. Unknown keys, and bytes beyond the
/// registered memory, are refused.
#[test]
fn pages_go_from_and_to_registered_memory() {
    with_bench(|bench, carrier| {
        let memory = memory_file(2 * PAGE as usize);
        assert!(
            bench
                .dpu_client
                .register(2, Registered::of(memory.try_clone().unwrap().into(), 1 << 20).unwrap())
        );
        for rkey in [0, 1, 2] {
            let again = Registered::of(memory.try_clone().unwrap().into(), 1 << 20).unwrap();
            assert!(!bench.dpu_client.register(rkey, again), "key {rkey}");
        }
        let page = u64::from(PAGE);
        let read = |addr, rkey| Request::Read {
            span: span(2, 5 * page, PAGE),
            dest: Dest::Write { addr, rkey: Rkey(rkey) },
        };
        let write = |addr, rkey| Request::WriteFrom { span: span(1, 0, PAGE), addr, rkey: Rkey(rkey) };
        let read_ended = |ended| [(span(2, 5 * page, PAGE), false, ended, vec![])];
        let write_ended = |ended| [(span(1, 0, PAGE), true, ended, vec![])];
        let beyond = memory.metadata().unwrap().len() - page + 1;
        for (addr, rkey) in [(0, 3), (beyond, 2), (u64::MAX, 2)] {
            assert_eq!(bench.ask(carrier, &[read(addr, rkey)]), read_ended(Ended::Refused), "{addr} {rkey}");
            assert_eq!(
                bench.ask(carrier, &[write(addr, rkey)]),
                write_ended(Ended::Refused),
                "{addr} {rkey}"
            );
        }
        assert_eq!(bench.ask(carrier, &[read(page, 2)]), read_ended(Ended::Done));
        assert_eq!(bench.ask(carrier, &[write(page, 2)]), write_ended(Ended::Done));
        let back = Request::Read { span: span(1, 8, 4), dest: Dest::Send };
        assert_eq!(bench.ask(carrier, &[back]), [(span(1, 8, 4), false, Ended::Done, vec![5; 4])]);
        let readers = Request::WriteFrom { span: span(2, 0, PAGE), addr: 0, rkey: Rkey(2) };
        assert_eq!(
            bench.ask(carrier, &[readers]),
            [(span(2, 0, PAGE), true, Ended::Refused, vec![])],
            "it is open for reading"
        );
        assert!(!bench.gone.load(Ordering::Acquire));
    });
}

/// Two threads complete the reads that a third receives. Pages go to registered memory and behind the rings, from far
/// memory and from the cache. Each read gets one answer, and a read without room is refused. A region closes after
/// its pending reads, and the end of the stage waits for all of them.
#[test]
fn requests_are_completed_by_other_threads() {
    with_bench(|bench, carrier| {
        bench.stage = Some(Stage::begin(2, 1.0, || {}).unwrap());
        bench.dpu_client.set_terms(Terms { staged: Some(1), ..USUAL });
        let (memory, page) = (memory_file(16 * PAGE as usize), u64::from(PAGE));
        assert!(
            bench
                .dpu_client
                .register(2, Registered::of(memory.try_clone().unwrap().into(), 1 << 20).unwrap())
        );
        let read = |at: u64, addr, rkey| Request::Read {
            span: span(2, at * page, PAGE),
            dest: Dest::Write { addr, rkey: Rkey(rkey) },
        };
        let end = memory.metadata().unwrap().len();
        for round in 0..3 {
            let pages = (0..16).map(|at| read(at, at * page, 2));
            let asked: Vec<_> = pages.chain([read(3, 8, 1), read(4, end, 2), read(5, 0, 9)]).collect();
            let mut answers = bench.ask(carrier, &asked);
            answers.sort_by_key(|(span, _, ended, _)| (*ended as u8, span.offset));
            let ended: Vec<_> =
                answers.iter().map(|(span, _, ended, _)| (span.offset / page, *ended)).collect();
            let done = (0..16).chain([3]).map(|at| (at, Ended::Done));
            let mut expected: Vec<_> = done.chain([(4, Ended::Refused), (5, Ended::Refused)]).collect();
            expected.sort_by_key(|(at, ended)| (*ended as u8, *at));
            assert_eq!(ended, expected, "round {round}");
            let mut bytes = vec![0; 16 * PAGE as usize];
            memory.read_exact_at(&mut bytes, 0).unwrap();
            assert!(
                bytes.chunks(PAGE as usize).zip(0..).all(|(page, at)| page.iter().all(|&byte| byte == at))
            );
            let mut behind = vec![0; PAGE as usize];
            bench.process.take(8, &mut behind);
            assert_eq!(behind, vec![3; PAGE as usize]);
        }
        assert!(carrier.memory().stats().hits > 0, "some were in the cache");
        let (to, came) = std::sync::mpsc::channel();
        let mailbox = Mailbox { to, bell: Arc::new(Bell::new().unwrap()) };
        bench.send(&[read(1, 0, 2), read(2, page, 2)]);
        assert_eq!(bench.dpu_client.take_requests(carrier, 8), 2);
        while bench.dpu_client.waits_for_carrier() {
            let completed = carrier.client.next_completed().unwrap();
            completed.into_iter().for_each(|completed| assert!(carrier.took(completed).is_none()));
            while let Some(ended) = carrier.next_ended() {
                bench.dpu_client.answer(carrier, ended, bench.stage.as_mut());
            }
        }
        bench.dpu_client.close(2, mailbox.reply(Question { session: 7, number: 1 }));
        assert!(came.try_recv().is_err() && !bench.dpu_client.is_idle() && bench.dpu_client.awaits_stage());
        bench.serve(carrier);
        assert!(matches!(came.try_recv().unwrap().1, Notice::Done(true)));
        assert_eq!(bench.answers().len(), 2);
    });
}

/// Creates a memory file like that of a window.
fn memory_file(len: usize) -> std::fs::File {
    let ends = make_pair(PairSize { registered: len, ..SIZE }).unwrap();
    ends.into()
}

/// With blocking forwarding, a further request waits in the ring until earlier ones are answered. A batch is taken
/// together.
#[test]
fn blocking_forwarding_takes_a_batch_at_a_time() {
    with_bench(|bench, carrier| {
        bench.dpu_client.set_terms(Terms { blocking: true, ..USUAL });
        for at in 0..3 {
            let mut record = Vec::new();
            let dest = Dest::Write { addr: 0, rkey: Rkey(1) };
            Request::Read { span: span(2, at * u64::from(PAGE), 8), dest }.emit(&mut record);
            assert!(bench.process.push(&record).unwrap());
        }
        bench.process.publish();
        assert_eq!(bench.dpu_client.take_requests(carrier, 2), 2);
        assert_eq!(bench.dpu_client.take_requests(carrier, 2), 0, "two are under way");
        assert!(bench.dpu_client.may_sleep(), "what is in the ring waits");
        bench.serve(carrier);
        assert!(bench.dpu_client.is_idle());
        bench.dpu_client.set_terms(USUAL);
    });
}

/// Over a link of one megabyte per second, the answer with a page takes at least as long as the link needs for the
/// page.
#[test]
fn a_link_with_a_profile_holds_answers_back() {
    with_bench(|bench, carrier| {
        let intra = Intra::new("rate=8Mbit/s".parse().unwrap()).map(Arc::new);
        bench.dpu_client.set_terms(Terms { intra, ..USUAL });
        let begun = carrier.memory().now();
        let read = Request::Read { span: span(2, 0, PAGE), dest: Dest::Send };
        let mut answers = bench.ask(carrier, &[read]);
        let mut turns = 0;
        while answers.is_empty() {
            assert!(bench.dpu_client.holds(), "it is on the link");
            answers = bench.ask(carrier, &[]);
            turns += 1;
        }
        assert_eq!(answers, [(span(2, 0, PAGE), false, Ended::Done, vec![0; PAGE as usize])]);
        let least = Duration::from_nanos(u64::from(PAGE) * 1000);
        assert!(turns > 0 && carrier.memory().now().since(begun) >= least);
        assert!(!bench.dpu_client.holds());
    });
}

/// A process requests a page by SEND, and its ring of answers is smaller than the answer. The read is refused, and
/// later answers that fit are sent. Before the fix, the answer waited for ever and blocked all later ones (PROTOCOL
/// 17.8).
#[test]
fn an_answer_that_never_fits_its_ring_is_refused() {
    with_bench(|_, carrier| {
        let mut small = bench_of(carrier, Asker(9), PairSize { answers: 1 << 12, ..SIZE });
        let most = (1 << 12) - 8 - u32::try_from(Answer::record_len(0)).unwrap();
        for (size, ended) in [(PAGE, Ended::Refused), (most + 1, Ended::Refused), (most, Ended::Done)] {
            let read = Request::Read { span: span(2, 0, size), dest: Dest::Send };
            let bytes = if ended == Ended::Done { vec![0; size as usize] } else { Vec::new() };
            assert_eq!(small.ask(carrier, &[read]), [(span(2, 0, size), false, ended, bytes)], "{size}");
        }
        let by_write = Request::Read { span: span(2, 0, PAGE), dest: Dest::Write { addr: 0, rkey: Rkey(1) } };
        assert_eq!(small.ask(carrier, &[by_write]), [(span(2, 0, PAGE), false, Ended::Done, vec![])]);
        assert!(small.dpu_client.is_idle() && !small.gone.load(Ordering::Acquire));
    });
}

/// A process sends many requests over a link that carries a page in 33 ms. Requests on the link count as pending, so
/// the bound holds (PROTOCOL 17.18).
#[test]
fn requests_on_a_link_are_bounded() {
    with_bench(|bench, carrier| {
        let read = Request::Read { span: span(2, 0, PAGE), dest: Dest::Send };
        let mut taken = 0;
        for _ in 0..4 {
            bench.dpu_client.set_terms(USUAL);
            bench.send(&[read; 400]);
            taken += bench.dpu_client.take_requests(carrier, 1024);
            let intra = Intra::new("rate=1Mbit/s".parse().unwrap()).map(Arc::new);
            bench.dpu_client.set_terms(Terms { intra, ..USUAL });
            while let Some(completed) = carrier.client.next_completed().unwrap() {
                assert!(carrier.took(completed).is_none());
            }
            while let Some(ended) = carrier.next_ended() {
                bench.dpu_client.answer(carrier, ended, None);
            }
            let held = bench.dpu_client.held();
            assert!(held <= 1024 * Answer::record_len(PAGE as usize), "{held} bytes of {taken} answers");
        }
        assert!((1024..1600).contains(&taken), "{taken}: the others wait in the ring");
        assert!(bench.dpu_client.is_idle() && bench.dpu_client.holds());
    });
}

/// A process requests pages by SEND and takes no answer. The DPU disconnects it when its ring has been full for too
/// long. Another process is served meanwhile (PROTOCOL 17.18).
#[test]
fn a_process_that_takes_no_answers_is_disconnected() {
    with_bench(|bench, carrier| {
        let mut other = bench_of(carrier, Asker(9), SIZE);
        bench.dpu_client.set_terms(Terms { patience: Duration::ZERO, ..USUAL });
        let read = Request::Read { span: span(2, 0, PAGE), dest: Dest::Send };
        let fit = SIZE.answers / (8 + Answer::record_len(PAGE as usize)).next_multiple_of(8);
        bench.send(&vec![read; fit]);
        bench.serve(carrier);
        assert!(!bench.gone.load(Ordering::Acquire), "all of them have room");
        bench.send(&[read; 2]);
        while !bench.gone.load(Ordering::Acquire) {
            bench.serve(carrier);
            let page = (span(2, 0, PAGE), false, Ended::Done, vec![0; PAGE as usize]);
            assert_eq!(other.ask(carrier, &[read]), [page]);
        }
        assert!(bench.dpu_client.held() <= 2 * Answer::record_len(PAGE as usize));
        assert!(!other.gone.load(Ordering::Acquire));
    });
}

/// The DPU disconnects a process for an invalid record, and executes none of its requests (PROTOCOL 17.10).
#[test]
fn an_invalid_record_disconnects_the_process() {
    for nonsense in [
        &b""[..],
        b"\0\0\0\x09",
        b"\0\0\0\x01\0\x01",
        &[0xff; 64],
        b"\0\0\0\x02\0\x01\0\0\0\0\0\0\0\0\0\x10four",
    ] {
        with_bench(|bench, carrier| {
            assert!(bench.process.push(nonsense).unwrap());
            let write = Request::Write { span: span(1, 0, 4), data: b"late" };
            assert_eq!(bench.ask(carrier, &[write]), [], "{nonsense:?}");
            assert!(bench.gone.load(Ordering::Acquire), "{nonsense:?}");
            assert!(bench.dpu_client.is_idle());
        });
    }
}

/// Pages of an allocation that the domain does not own are never cached: each is read from its node (PROTOCOL 17.14).
#[test]
fn granted_pages_are_not_cached() {
    with_bench(|bench, carrier| {
        bench.dpu_client.regions.get_mut(&2).unwrap().granted = false;
        for _ in 0..2 {
            for at in (0..BYTES).step_by(PAGE as usize) {
                let read = Request::Read { span: span(2, at, PAGE), dest: Dest::Send };
                assert_eq!(bench.ask(carrier, &[read]).len(), 1);
            }
        }
        let stats = carrier.memory().stats();
        assert_eq!((stats.on_demand, stats.background, stats.hits), (2 * BYTES, 0, 0));
    });
}

/// Length of the threads' ring in these tests.
const RING: usize = 1 << 13;

/// Runs a test with a process that has a ring of threads.
fn with_threads(story: impl FnOnce(&mut Bench, &mut Carrier<'_>, &SubmissionSender)) {
    with_bench(|bench, carrier| {
        let file = make_submissions(RING).unwrap();
        let no_listener = WakeAt::Datagram { address: IpAddr::V4(Ipv4Addr::new(127, 77, 2, 1)) };
        let sender = SubmissionSender::of(&file, RING, OutsideWaker::open(&no_listener).unwrap()).unwrap();
        assert!(bench.dpu_client.hear_threads(Submissions::of(&file, RING).unwrap()));
        assert!(!bench.dpu_client.hear_threads(Submissions::of(&file, RING).unwrap()), "one is enough");
        story(bench, carrier, &sender);
    });
}

/// Returns a record of the threads' ring: the address of the answer slot, and a request.
fn record(at: u64, request: pd3::Request<'_>) -> Vec<u8> {
    let mut record = at.to_be_bytes().to_vec();
    request.emit(&mut record);
    record
}

fn place(region: u16, offset: u32, size: u32) -> pd3::RegionRange {
    pd3::RegionRange { region, offset, size }
}

/// Answers for threads go to their answer slots: a read sees an earlier write. A request outside a page of an open
/// region, and a prefetch, are refused (PROTOCOL 18.24 to 18.26).
#[test]
fn threads_get_answers_in_their_slots() {
    with_threads(|bench, carrier, sender| {
        let id = pd3::Id::new;
        let head = |bench: &Bench, at: usize| head_of(bench.process.word(at)).map(Result::unwrap);
        let write = pd3::Request::Write { id: id(1), place: place(1, 4093, 3), data: b"new" };
        let read = |n, place| pd3::Request::Read { id: id(n), place };
        assert!(sender.push(&record(0, write)).unwrap());
        bench.serve(carrier);
        for (n, (at, wanted)) in (2..).zip([(512, place(1, 4090, 6)), (1024, place(2, 8192, 4096))]) {
            assert!(sender.push(&record(at, read(n, wanted))).unwrap());
        }
        let refused = [place(3, 0, 1), place(1, 65_536, 1), place(1, 65_535, 2), place(2, 4000, 200)];
        for (n, wanted) in (10..).zip(refused) {
            assert!(sender.push(&record(u64::from(n) * 1024, read(n, wanted))).unwrap());
        }
        let read_only = pd3::Request::Write { id: id(20), place: place(2, 0, 1), data: b"x" };
        assert!(sender.push(&record(20 * 1024, read_only)).unwrap());
        let prefetch = pd3::Request::Prefetch { id: id(21), key: b"k" };
        assert!(sender.push(&record(21 * 1024, prefetch)).unwrap());
        bench.serve(carrier);
        assert_eq!(head(bench, 0), Some(Head::Written { id: id(1), size: 3 }));
        assert_eq!(head(bench, 512), Some(Head::Read { id: id(2), size: 6 }));
        assert_eq!(head(bench, 1024), Some(Head::Read { id: id(3), size: 4096 }));
        let (mut few, mut page) = ([0; 6], [0; 4096]);
        bench.process.take(520, &mut few);
        bench.process.take(1032, &mut page);
        assert_eq!((few, page), (*b"\0\0\0new", [2; 4096]));
        for n in [10, 11, 12, 13, 20, 21] {
            let failed = Head::Failed { id: id(n), why: Ended::Refused };
            assert_eq!(head(bench, usize::from(n) * 1024), Some(failed), "request {n}");
        }
        // The bytes of each request are moved once, also those of the refused write.
        assert_eq!(bench.dpu_client.carried(), Carried { requests: 9, moves: 4, ..Carried::NOTHING });
        assert!(bench.dpu_client.is_idle() && !bench.gone.load(Ordering::Acquire));
    });
}

/// The DPU disconnects a process for an invalid record, or for an answer slot without room. No later request is
/// executed, and no byte elsewhere is written (PROTOCOL 18.7, 18.24).
#[test]
fn an_invalid_thread_record_disconnects_the_process() {
    let read = |size| pd3::Request::Read { id: pd3::Id::new(7), place: place(1, 0, size) };
    let end = SIZE.registered as u64;
    let mut cut = record(0, read(4));
    cut.pop();
    let records = [
        vec![],
        vec![0; 7],
        vec![0xff; 40],
        cut,
        [record(0, read(4)), vec![0]].concat(),
        record(4, read(4)),
        record(end - 8, read(1)),
        record(end - 4096, read(4096)),
        record(u64::MAX - 7, read(1)),
    ];
    for nonsense in records {
        with_threads(|bench, carrier, sender| {
            assert!(sender.push(&nonsense).unwrap());
            let late = pd3::Request::Write { id: pd3::Id::new(8), place: place(1, 0, 4), data: b"late" };
            assert!(sender.push(&record(64, late)).unwrap());
            bench.serve(carrier);
            assert!(bench.gone.load(Ordering::Acquire), "{nonsense:?}");
            assert_eq!((bench.process.word(64), bench.process.word(SIZE.registered - 8)), (0, 0));
            assert!(bench.dpu_client.is_idle());
        });
    }
}

/// A full ring refuses records, and accepts more when the DPU has read it. No record is lost.
#[test]
fn a_full_ring_accepts_records_later() {
    with_threads(|bench, carrier, sender| {
        let mut sent = 0;
        for round in 0..3 {
            let data = [round; 512];
            loop {
                let id = pd3::Id::new(sent);
                let at = u32::from(sent % 8) * 512;
                let write = pd3::Request::Write { id, place: place(1, at, 512), data: &data };
                if !sender.push(&record(u64::from(sent % 1024) * 8, write)).unwrap() {
                    break;
                }
                sent += 1;
            }
            bench.serve(carrier);
        }
        assert!(sent > 30);
        assert_eq!(
            bench.dpu_client.carried(),
            Carried { requests: sent.into(), moves: sent.into(), ..Carried::NOTHING }
        );
        for n in 0..sent {
            let head = head_of(bench.process.word(usize::from(n) * 8)).unwrap().unwrap();
            assert_eq!(head, Head::Written { id: pd3::Id::new(n), size: 512 });
        }
    });
}
