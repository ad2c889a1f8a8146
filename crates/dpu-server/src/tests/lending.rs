//! Tests of reads whose bytes stay in the link's slots, as loans, until another thread writes them to their
//! destination (PROTOCOL 17.20).
//!
//! The client of these tests has no link. The tests therefore pass the loans of a link to the landing after the
//! client's read, with other bytes, to see which bytes are written.

use super::super::answering::lock;
use super::super::carrier::{AskEnded, Carrier, Failed};
use super::super::complete::Stage;
use super::super::dpu_client::Terms;
use super::super::read_delivery::ReadDelivery;
use super::{Bench, Mailbox, Notice, PAGE, Question, Registered, USUAL, memory_file, span, with_bench};
use farmem_client::{Lender, Loan, PayloadSink as _};
use farmem_link::dpu::Bell;
use farmem_paging::Cause;
use farmem_wire::Rkey;
use farmem_wire::soda::{Dest, Ended, Request, Span};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEN: usize = PAGE as usize;

/// The slots of a link, a page each, at most `most` of them lent at once. Slot `n` has 100 + `n` in all bytes.
#[derive(Debug)]
struct Slots {
    all: Vec<Arc<Box<[u8]>>>,
    most: usize,
}

impl Slots {
    fn new(most: usize) -> Self {
        Self { all: (100..116).map(|byte| Arc::new(vec![byte; LEN].into())).collect(), most }
    }

    fn lent(&self) -> usize {
        self.all.iter().filter(|slot| Arc::strong_count(slot) > 1).count()
    }

    /// Passes slot `n` to a landing in two halves, as two receives would.
    fn bring(&self, n: usize, landed: &ReadDelivery) {
        let (first, second) = self.all[n].split_at(LEN / 2);
        landed.put_from(0, &[first], self);
        let (second, last) = second.split_at(LEN / 4);
        landed.put_from(LEN as u64 / 2, &[second, last], self);
    }
}

impl Lender for Slots {
    fn lend(&self, bytes: &[u8]) -> Option<Loan> {
        let loan = self.all.iter().find_map(|slot| Loan::of(slot, bytes))?;
        (self.lent() <= self.most).then_some(loan)
    }
}

/// Runs a test with a process without cached pages. Two threads complete its reads of any length.
fn with_stage(story: impl FnOnce(&mut Bench, &mut Carrier<'_>, &File)) {
    with_bench(|bench, carrier| {
        bench.stage = Some(Stage::begin(2, 1.0, || {}).unwrap());
        bench.dpu_client.set_terms(Terms { staged: Some(1), ..USUAL });
        // Pages of a granted allocation are never cached.
        bench.dpu_client.regions.get_mut(&2).unwrap().granted = false;
        let memory = memory_file(16 * LEN);
        let registered = Registered::of(memory.try_clone().unwrap().into(), 1 << 20).unwrap();
        assert!(bench.dpu_client.register(2, registered));
        story(bench, carrier, &memory);
    });
}

/// Returns a read of page `n` to its place in registered memory.
fn read(n: u64) -> Request<'static> {
    let at = n * u64::from(PAGE);
    Request::Read { span: span(2, at, PAGE), dest: Dest::Write { addr: at, rkey: Rkey(2) } }
}

/// Returns the byte that fills a page of memory.
fn byte_of(memory: &File, n: u64) -> u8 {
    let mut page = vec![0; LEN];
    memory.read_exact_at(&mut page, n * u64::from(PAGE)).unwrap();
    assert!(page.iter().all(|byte| *byte == page[0]), "page {n} is of one piece");
    page[0]
}

/// Sends requests and lets far memory answer all of them. The process gets no answer yet.
fn fetch(bench: &mut Bench, carrier: &mut Carrier<'_>, requests: &[Request<'_>]) -> Vec<AskEnded> {
    bench.send(requests);
    assert_eq!(bench.dpu_client.take_requests(carrier, 16) as usize, requests.len());
    while let Some(completed) = carrier.client.next_completed().unwrap() {
        assert!(carrier.took(completed).is_none());
    }
    let ended: Vec<_> = std::iter::from_fn(|| carrier.next_ended()).collect();
    assert_eq!(ended.len(), requests.len());
    ended
}

/// Returns the landing of the read of page `n`.
fn landing(bench: &Bench, n: u64) -> Arc<ReadDelivery> {
    let is_it = |(of, _): &(Span, Arc<ReadDelivery>)| of.offset == n * u64::from(PAGE);
    bench.dpu_client.landings().into_iter().find(is_it).unwrap().1
}

fn answer(bench: &mut Bench, carrier: &mut Carrier<'_>, ended: impl IntoIterator<Item = AskEnded>) {
    for ended in ended {
        bench.dpu_client.answer(carrier, ended, bench.stage.as_mut());
    }
}

/// A single read is not passed to the stage, because the hand-over would delay it: its page is written as it arrives.
/// The last three of four reads at once are passed on with the slots that hold their bytes. Their pages are written
/// later, one call per page, and their slots are then free. The DPU copies no byte in either case. Before the fix,
/// each page that was passed on went through a buffer.
#[test]
fn reads_are_passed_on_if_several_are_pending() {
    with_stage(|bench, carrier, memory| {
        let slots = Slots::new(16);
        let (mut passed, mut calls) = (0, 0);
        for (asked, others) in [(0..1, 0), (1..5, 3), (5..6, 0)] {
            let requests: Vec<_> = asked.clone().map(read).collect();
            let ended = fetch(bench, carrier, &requests);
            for n in asked.clone() {
                slots.bring(usize::try_from(n).unwrap(), &landing(bench, n));
            }
            assert_eq!(slots.lent(), others, "of {asked:?}");
            let first = asked.start;
            assert_eq!(u64::from(byte_of(memory, first)), 100 + first, "put as it came");
            assert!(asked.clone().skip(1).all(|n| u64::from(byte_of(memory, n)) == n), "not put yet");
            answer(bench, carrier, ended);
            bench.serve(carrier);
            let answers = bench.answers();
            assert!(answers.len() == requests.len() && answers.iter().all(|it| it.2 == Ended::Done));
            assert!(asked.clone().all(|n| u64::from(byte_of(memory, n)) == 100 + n));
            let carried = bench.dpu_client.carried();
            assert_eq!((carried.passed, carried.copies), (passed + others as u64, 0), "of {asked:?}");
            // One call per page for the client's read; two more for the halves of the first page, one for a lent page.
            let by_call = 3 + 2 * others as u64;
            assert_eq!((carried.calls, slots.lent()), (calls + by_call, 0), "of {asked:?}");
            (passed, calls) = (carried.passed, carried.calls);
        }
    });
}

/// A read fails when half of its page is in a lent slot. The receiving thread answers, the slot is free again, and
/// the half page is never written.
#[test]
fn a_failed_read_writes_no_loan() {
    with_stage(|bench, carrier, memory| {
        let slots = Slots::new(16);
        for (n, cause, how) in [(1, Cause::Failed, Ended::Failed), (3, Cause::Lost, Ended::Lost)] {
            let mut ended = fetch(bench, carrier, &[read(n - 1), read(n)]);
            let half = &slots.all[0][..LEN / 2];
            landing(bench, n).put_from(0, &[half], &slots);
            assert_eq!(slots.lent(), 1);
            ended[1].result = Err(Failed { cause, error: None });
            answer(bench, carrier, ended);
            assert_eq!(slots.lent(), 0);
            assert!(bench.dpu_client.is_idle(), "no other thread has anything of it");
            bench.dpu_client.publish();
            let answers: Vec<_> = bench.answers().into_iter().map(|(.., ended, _)| ended).collect();
            assert_eq!(answers, [Ended::Done, how]);
        }
        bench.stage = None;
        assert_eq!([1, 3].map(|n| byte_of(memory, n)), [1, 3]);
        assert_eq!(bench.dpu_client.carried().passed, 0);
    });
}

/// The maximum number of slots is lent, or the bytes cannot be lent. Then the landing writes its loans and after them
/// the new bytes, so the latest bytes stay. A landing without loans is answered by the receiving thread.
#[test]
fn bytes_without_a_loan_are_written_at_once() {
    with_stage(|bench, carrier, memory| {
        let slots = Slots::new(1);
        let ended = fetch(bench, carrier, &[read(0), read(1), read(2)]);
        let bring = |n: usize, landed: &ReadDelivery| landed.put_from(0, &[&slots.all[n]], &slots);
        bring(4, &landing(bench, 1));
        assert_eq!((slots.lent(), byte_of(memory, 1)), (1, 1), "kept");
        bring(5, &landing(bench, 2));
        assert_eq!((slots.lent(), byte_of(memory, 2)), (1, 105), "put: one is out");
        bring(6, &landing(bench, 1));
        assert_eq!((slots.lent(), byte_of(memory, 1)), (0, 106), "put behind what was kept");
        bring(7, &landing(bench, 1));
        landing(bench, 1).put_from(0, &[&[9; LEN]], &slots);
        assert_eq!((slots.lent(), byte_of(memory, 1)), (0, 9), "no bytes of a slot");
        answer(bench, carrier, ended);
        assert!(bench.dpu_client.is_idle(), "all were there");
        bench.dpu_client.publish();
        assert!(bench.answers().iter().all(|it| it.2 == Ended::Done));
        let carried = bench.dpu_client.carried();
        assert_eq!((carried.requests, carried.passed, carried.copies), (3, 0, 0));
    });
}

/// A process closes a region while another thread has a read of it and is blocked. Until that thread has written the
/// bytes, answered and freed the slot, the process is not idle, which its farewell waits for (PROTOCOL 17.17). The
/// region stays open until then. Afterwards no thread writes to the process's memory.
#[test]
fn a_region_closes_after_its_loans() {
    with_stage(|bench, carrier, _| {
        let slots = Slots::new(16);
        let dest = Dest::Write { addr: 0, rkey: Rkey(1) };
        let behind = Request::Read { span: span(2, u64::from(PAGE), PAGE), dest };
        let mut ended = fetch(bench, carrier, &[read(0), behind]);
        let second = ended.pop().unwrap();
        answer(bench, carrier, ended);
        let landed = landing(bench, 1);
        slots.bring(8, &landed);
        let (to, came) = std::sync::mpsc::channel();
        let mailbox = Mailbox { to, bell: Arc::new(Bell::new().unwrap()) };
        // Threads that write behind the rings, or answer, wait for this lock.
        let line = lock(landed.answering());
        answer(bench, carrier, [second]);
        bench.dpu_client.close(2, mailbox.reply(Question { session: 7, number: 1 }));
        assert!(!bench.dpu_client.is_idle() && came.try_recv().is_err() && slots.lent() == 1);
        let mut page = vec![0; LEN];
        bench.process.take(0, &mut page);
        assert_eq!(page, [1; LEN]);
        drop(line);
        bench.serve(carrier);
        assert!(bench.dpu_client.is_idle() && slots.lent() == 0);
        assert!(matches!(came.try_recv().unwrap().1, Notice::Done(true)));
        bench.process.take(0, &mut page);
        assert_eq!((page, bench.answers().len()), (vec![108; LEN], 2));
    });
}

/// The stage ends, as it does with its DPU. All reads that were passed on are complete then, and loans of unfinished
/// reads are dropped.
#[test]
fn an_ending_stage_completes_its_reads() {
    with_stage(|bench, carrier, memory| {
        let slots = Slots::new(16);
        let mut ended = fetch(bench, carrier, &(0..16).map(read).collect::<Vec<_>>());
        for n in 0..16 {
            slots.bring(n, &landing(bench, n as u64));
        }
        assert_eq!(slots.lent(), 15);
        let last = ended.pop().unwrap();
        answer(bench, carrier, ended);
        bench.stage = None;
        assert_eq!(slots.lent(), 1, "of the read that has not ended");
        assert!((0..15).all(|n| u64::from(byte_of(memory, n)) == 100 + n));
        assert_eq!(bench.answers().len(), 15);
        drop(last);
        assert_eq!(byte_of(memory, 15), 15);
    });
}

/// A thread of the stage panics (here: in the waker). The domain's thread panics at its next check, because its
/// processes would otherwise wait for answers that never come.
#[test]
fn a_panic_of_a_stage_thread_ends_the_domain_thread() {
    with_stage(|bench, carrier, _| {
        let slots = Slots::new(16);
        bench.stage = Some(Stage::begin(1, 1.0, || panic!("of this test")).unwrap());
        bench.stage.as_ref().unwrap().await_it(true);
        let ended = fetch(bench, carrier, &[read(0), read(1)]);
        slots.bring(1, &landing(bench, 1));
        answer(bench, carrier, ended);
        let stage = bench.stage.take().unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        let looks = catch_unwind(AssertUnwindSafe(|| {
            while Instant::now() < until {
                drop(stage.take());
            }
        }));
        assert!(looks.is_err(), "it goes on for half a minute");
        assert!(catch_unwind(AssertUnwindSafe(|| drop(stage))).is_err(), "and it ends so");
    });
}
