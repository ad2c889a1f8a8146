//! Reads whose bytes stay in the link's slots, lent, until another thread has put them where they go (PROTOCOL 17.20). The client of these tests has no link, so what its link would lend comes once more before a read is answered, as
//! what is asked for again does: with other bytes, to see which are put.

use super::super::answering::lock;
use super::super::carrier::{AskEnded, Carrier, Failed};
use super::super::complete::Stage;
use super::super::dpu_client::Terms;
use super::super::landed::Landed;
use super::{Bench, Mailbox, Notice, PAGE, Question, Registered, USUAL, memory_file, span, with_bench};
use farmem_client::{Landing as _, Lender, Loan};
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

/// Slots of a link, a page each, of which so many are lent at once. The n-th has 100 and n in all its bytes.
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

    /// The n-th slot comes to a landing: its halves one after the other, as two receives would bring them.
    fn bring(&self, n: usize, landed: &Landed) {
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

/// A process whose DPU has two threads that complete reads of any length, with nothing cached, and the memory that it registered.
fn with_stage(story: impl FnOnce(&mut Bench, &mut Carrier<'_>, &File)) {
    with_bench(|bench, carrier| {
        bench.stage = Some(Stage::begin(2, 1.0, || {}).unwrap());
        bench.dpu_client.set_terms(Terms { staged: Some(1), ..USUAL });
        // Granted memory is never cached.
        bench.dpu_client.regions.get_mut(&2).unwrap().granted = false;
        let memory = memory_file(16 * LEN);
        let registered = Registered::of(memory.try_clone().unwrap().into(), 1 << 20).unwrap();
        assert!(bench.dpu_client.register(2, registered));
        story(bench, carrier, &memory);
    });
}

/// A read of a page to where it has its place in registered memory.
fn read(n: u64) -> Request<'static> {
    let at = n * u64::from(PAGE);
    Request::Read { span: span(2, at, PAGE), dest: Dest::Write { addr: at, rkey: Rkey(2) } }
}

/// The byte that fills a page of memory.
fn byte_of(memory: &File, n: u64) -> u8 {
    let mut page = vec![0; LEN];
    memory.read_exact_at(&mut page, n * u64::from(PAGE)).unwrap();
    assert!(page.iter().all(|byte| *byte == page[0]), "page {n} is of one piece");
    page[0]
}

/// Asks, and lets far memory answer all of it; nothing is said to the process yet.
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

/// Where a read of the n-th page goes.
fn landing(bench: &Bench, n: u64) -> Arc<Landed> {
    let is_it = |(of, _): &(Span, Arc<Landed>)| of.offset == n * u64::from(PAGE);
    bench.dpu_client.landings().into_iter().find(is_it).unwrap().1
}

fn answer(bench: &mut Bench, carrier: &mut Carrier<'_>, ended: impl IntoIterator<Item = AskEnded>) {
    for ended in ended {
        bench.dpu_client.answer(carrier, ended, bench.stage.as_mut());
    }
}

/// A DPU has threads that complete requests. A read that comes alone is not passed on to them, which would only hold it up: its page is put where it goes as it comes. Of four that come at once those behind the first are passed on, with
/// the slots that their bytes came in: nothing of them is put before, all of a page by one call, and its slot is given back. No byte is copied by the DPU in either way. Before, each page that was passed on went by a buffer.
#[test]
fn requests_are_passed_on_where_many_are_under_way() {
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
            // As it came first, and then by halves; or all that was lent at once.
            let by_call = 3 + 2 * others as u64;
            assert_eq!((carried.calls, slots.lent()), (calls + by_call, 0), "of {asked:?}");
            (passed, calls) = (carried.passed, carried.calls);
        }
    });
}

/// A read fails, or is lost, when half of its page has come, into a slot that is lent. The process is told by the thread that receives, the slot is given back, and that half is put neither before nor after that.
#[test]
fn a_read_that_failed_puts_nothing_that_was_lent() {
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

/// As much is lent as may be, or the bytes that come cannot be lent. Then the landing puts it, and before it what it has kept of that read, so the bytes that came last are the ones that stay. When it has kept nothing, the read is answered
/// by the thread that receives.
#[test]
fn what_cannot_be_lent_is_put_at_once() {
    with_stage(|bench, carrier, memory| {
        let slots = Slots::new(1);
        let ended = fetch(bench, carrier, &[read(0), read(1), read(2)]);
        let bring = |n: usize, landed: &Landed| landed.put_from(0, &[&slots.all[n]], &slots);
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

/// A process closes a region while another thread has a read of it, and cannot go on. Until that thread has put the bytes, answered and given the slot back, the process is not idle, which is what its farewell waits for (PROTOCOL 17.17),
/// and its region stays open; from then on no thread writes to its memory.
#[test]
fn a_region_is_closed_behind_what_is_lent() {
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
        // Threads that put bytes behind the rings, or answer, wait for this.
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

/// The stage ends, as it does with its DPU: what was passed on is done then, and what had come of reads that have not ended is put nowhere.
#[test]
fn a_stage_that_ends_has_put_what_was_passed_on() {
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

/// A thread that completes requests panics: the thread that serves the domain panics, too, when it next looks, instead of serving on beside processes that are never answered. (The panic here is in the waker.)
#[test]
fn a_thread_that_panicked_is_not_served_beside() {
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
