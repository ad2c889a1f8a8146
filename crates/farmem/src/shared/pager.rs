//! The thread that owns a shared space's host role: faults, recalls and evictions, one at a time.
//!
//! Key types: [`Pager`], the loop; [`Inbox`], what other threads ask of it. One thread reads faults and puts them into the inbox, another
//! one renews the lease over HTTP, so that neither waits for the other; this one waits for nothing but the link.
//!
//! Of the frames that the local limit allows a few are kept free, by evicting what was used longest ago after each turn: a fault then
//! finds one at once, and an eviction is nobody's wait.

use super::ShareStats;
use super::frames::Frames;
use crate::Error;
use crate::rack::SILENCE_MAX;
use crate::window::Ahead;
use farmem_host::agent::Outcome;
use farmem_host::caching::{CacheAsk, CacheDone, CacheNote, CachingHost, Came};
use farmem_io::pages::{Groups, Mapped, ReadAhead, Streams};
use farmem_io::{Driver, Link, Wait, Waker};
use farmem_machine::{Duration, Instant};
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration as StdDuration;

/// What other threads want of the pager.
pub(super) enum Ask {
    /// A thread of the program waits for the page.
    Fault(Page, Access),
    /// What is cached may be used until then.
    Lease(Instant),
    /// The control plane's order to give everything up.
    GiveUp(u64),
    /// Nothing can be had any more, for this reason.
    Fail(String),
    /// Everything written so far is to be at the memory nodes; then an answer.
    WriteBack(Sender<Result<(), Error>>),
    /// How much was done.
    Stats(Sender<ShareStats>),
    /// The program is done: write everything back and end.
    End,
}

/// What the pager tells the thread that asks the control plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    /// An order was obeyed.
    Flushed(u64),
    /// A page's request gets no answer.
    Stuck(Page),
    /// The lease ended before there was another.
    LeaseEnded,
}

/// Where other threads put what they want. Bounded by them: a thread waits for its fault, or for its answer.
#[derive(Default)]
pub(super) struct Inbox {
    asks: Mutex<VecDeque<Ask>>,
    came: Condvar,
    /// Somebody sleeps here, and not at the link.
    sleeps: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Inbox {
    pub(super) fn set_waker(&self, waker: Waker) {
        *lock(&self.waker) = Some(waker);
    }

    /// Puts them all in, and has the pager look.
    pub(super) fn put(&self, asks: impl IntoIterator<Item = Ask>) {
        lock(&self.asks).extend(asks);
        // A call of the system that is nearly never needed.
        if self.sleeps.load(Ordering::SeqCst) {
            self.came.notify_one();
        }
        if let Some(waker) = &*lock(&self.waker) {
            waker.wake();
        }
    }

    fn take(&self, into: &mut VecDeque<Ask>) {
        into.append(&mut lock(&self.asks));
    }

    /// As [`Inbox::take`], once there is something, or after a moment.
    fn wait(&self, into: &mut VecDeque<Ask>) {
        self.sleeps.store(true, Ordering::SeqCst);
        let asks = lock(&self.asks);
        let waited = self.came.wait_timeout_while(asks, LOOK_EVERY, |asks| asks.is_empty());
        into.append(&mut waited.unwrap_or_else(PoisonError::into_inner).0);
    }
}

/// Nothing that is locked here is left half done by a panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time between two looks of a pager that has nothing to do.
const LOOK_EVERY: StdDuration = StdDuration::from_millis(20);
const TURN_MAX: Duration = Duration::from_millis(20);
/// Frames kept free for faults to come, at most; and at most a sixteenth of all.
const RESERVE_MAX: usize = 64;
/// Pages that may not go now, and are passed over in one turn.
const PASSED_OVER_MAX: usize = 16;
/// Pages fetched beside one that somebody waits for, at most.
const AHEAD_MAX: u64 = 64;
/// Write-backs that a flush has under way at once.
const FLUSHING_MAX: usize = 256;

/// How a pager works.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    pub(super) frames_max: usize,
    pub(super) ahead: Ahead,
    pub(super) resting_eighths: usize,
}

/// What the role noted, counted where its notes are heard.
#[derive(Default)]
struct Notes {
    /// What came of the last fault: 1 and the position in [`OUTCOMES`].
    fault: AtomicU64,
    retries: AtomicU64,
    busy: AtomicU64,
    put_off: AtomicU64,
}

const ASKED: u64 = 1;
const FULL: u64 = 2;
const OTHER: u64 = 3;

impl Notes {
    fn hear(&self, note: CacheNote) {
        let counted = match note {
            CacheNote::Page(Came::Fault, outcome) => {
                let outcome = match outcome {
                    Outcome::Done => ASKED,
                    Outcome::Full => FULL,
                    _ => OTHER,
                };
                return self.fault.store(outcome, Ordering::Relaxed);
            }
            CacheNote::Page(Came::Retry | Came::RetryWriteBack, Outcome::Done) => &self.retries,
            CacheNote::Page(Came::Refusal, Outcome::Busy) => &self.busy,
            CacheNote::PutOff => &self.put_off,
            _ => return,
        };
        counted.fetch_add(1, Ordering::Relaxed);
    }
}

/// A flush under way.
struct WritingBack {
    left: VecDeque<Page>,
    under_way: Vec<Page>,
    /// When it got on last.
    since: Instant,
    done: Option<Sender<Result<(), Error>>>,
}

/// The loop.
pub(super) struct Pager<W: Mapped, L: Link> {
    driver: Driver<CachingHost<Frames<W>>, L>,
    inbox: Arc<Inbox>,
    tell: Sender<Told>,
    told: Vec<CacheDone>,
    policy: Policy,
    ahead: Option<Box<dyn ReadAhead>>,
    notes: Arc<Notes>,
    asks: VecDeque<Ask>,
    /// Faults for which there was no frame, or no room for one more request.
    waiting: VecDeque<(Page, Access)>,
    /// Since when threads wait for a page; bounded as the requests are.
    since: BTreeMap<Page, Instant>,
    flushes: VecDeque<WritingBack>,
    stats: ShareStats,
    failed: Arc<Mutex<Option<String>>>,
    dead: bool,
    ending: bool,
}

impl<W: Mapped, L: Link> Pager<W, L> {
    /// A pager of a host that has joined.
    pub(super) fn new(
        mut driver: Driver<CachingHost<Frames<W>>, L>,
        policy: Policy,
        inbox: Arc<Inbox>,
        tell: Sender<Told>,
        failed: Arc<Mutex<Option<String>>>,
    ) -> Self {
        let notes = Arc::new(Notes::default());
        let heard = Arc::clone(&notes);
        driver.watch_notes(move |note| heard.hear(note));
        let ahead: Option<Box<dyn ReadAhead>> = match policy.ahead {
            Ahead::None => None,
            Ahead::Group(pages) => Some(Box::new(Groups { pages: pages.min(AHEAD_MAX) })),
            Ahead::Stream(pages) => Some(Box::new(Streams::new(pages.min(AHEAD_MAX)))),
        };
        Self {
            driver,
            inbox,
            tell,
            told: Vec::new(),
            policy,
            ahead,
            notes,
            asks: VecDeque::new(),
            waiting: VecDeque::new(),
            since: BTreeMap::new(),
            flushes: VecDeque::new(),
            stats: ShareStats::default(),
            failed,
            dead: false,
            ending: false,
        }
    }

    /// Serves until it is told to end, and everything is written back or cannot be; true when it was.
    pub(super) fn run(mut self) -> bool {
        while !(self.ending && self.flushes.is_empty()) {
            if self.dead {
                self.inbox.wait(&mut self.asks);
            } else {
                self.inbox.take(&mut self.asks);
            }
            while let Some(ask) = self.asks.pop_front() {
                self.ask(ask);
            }
            let now = self.driver.clock().now();
            self.frames_mut().heal(now);
            if self.dead {
                self.end_flushes();
                continue;
            }
            self.admit_waiting();
            self.make_room();
            self.write_back(now);
            if !(self.ending && self.flushes.is_empty()) {
                self.turn();
            }
        }
        let agent = self.driver.machine().agent();
        !self.dead && agent.writing().next().is_none() && self.frames().written().next().is_none()
    }

    /// One turn of the link. What arrived is installed when this returns.
    fn turn(&mut self) {
        let Self { driver, told, .. } = self;
        let turned = driver.turn(Wait::AtMost(TURN_MAX), &mut |done, _| told.push(done));
        if let Err(error) = turned {
            self.fail(format!("the link to the rack failed: {error}"));
        }
        self.tell();
        self.settle_waits();
    }

    fn submit(&mut self, ask: CacheAsk) {
        let Self { driver, told, .. } = self;
        driver.submit(ask, &mut |done, _| told.push(done));
    }

    fn frames(&self) -> &Frames<W> {
        self.driver.machine().pages()
    }

    fn frames_mut(&mut self) -> &mut Frames<W> {
        self.driver.machine_mut().pages_mut()
    }

    fn tell(&mut self) {
        for done in self.told.drain(..) {
            let told = match done {
                CacheDone::Flushed { order } => Told::Flushed(order),
                CacheDone::Stuck { page } => Told::Stuck(page),
                CacheDone::LeaseEnded => Told::LeaseEnded,
                CacheDone::Host(_) => continue, // nothing was submitted
            };
            // It has ended when the space ends.
            let _ended = self.tell.send(told);
        }
    }

    fn ask(&mut self, ask: Ask) {
        match ask {
            Ask::Fault(page, access) => {
                self.stats.faults += 1;
                self.fault(page, access);
            }
            Ask::Lease(_) | Ask::GiveUp(_) if self.dead => {}
            Ask::Lease(until) => self.submit(CacheAsk::Lease { until }),
            Ask::GiveUp(order) => self.submit(CacheAsk::Flush { order }),
            Ask::Fail(why) => self.fail(why),
            Ask::WriteBack(done) => self.begin_flush(Some(done)),
            Ask::Stats(answer) => {
                // Who asked may be gone.
                let _gone = answer.send(self.stats());
            }
            Ask::End => {
                self.begin_flush(None);
                self.ending = true;
            }
        }
    }

    fn fault(&mut self, page: Page, access: Access) {
        self.frames_mut().wanted(page);
        if self.dead {
            return self.frames_mut().refuse(page);
        }
        let missing = !self.frames().has(page);
        if missing && self.is_full() {
            self.make_room();
            if self.is_full() {
                return self.waiting.push_back((page, access));
            }
        }
        self.submit(CacheAsk::Fault(page, access));
        match self.notes.fault.load(Ordering::Relaxed) {
            FULL => self.waiting.push_back((page, access)),
            ASKED => {
                let now = self.driver.clock().now();
                self.since.insert(page, now);
                if missing {
                    self.fetch_ahead(page);
                }
            }
            _ => {}
        }
    }

    fn is_full(&self) -> bool {
        self.driver.machine().agent().frames() >= self.policy.frames_max
    }

    /// Asks for what will be wanted soon, as far as there are frames that nobody else needs.
    fn fetch_ahead(&mut self, page: Page) {
        let Some(ahead) = &mut self.ahead else { return };
        let span = self.driver.machine().pages().span();
        let proposed = ahead.propose(page.number() - span.start);
        let (start, end) = (span.start + proposed.start, (span.start + proposed.end).min(span.end));
        for number in start..end {
            let next = Page::of(VirtAddr(number * PAGE_LEN as u64));
            if self.free() <= 1 {
                return;
            }
            if next == page || self.frames().has(next) {
                continue;
            }
            self.submit(CacheAsk::Fault(next, Access::Shared));
            if self.notes.fault.load(Ordering::Relaxed) == ASKED {
                self.frames_mut().asked_ahead(next);
                self.stats.ahead += 1;
            }
        }
    }

    /// Faults that had to wait have their turn, as many as there are frames for.
    fn admit_waiting(&mut self) {
        for _ in 0..self.waiting.len() {
            if self.is_full() {
                return;
            }
            let Some((page, access)) = self.waiting.pop_front() else { return };
            self.fault(page, access);
        }
    }

    fn free(&self) -> usize {
        self.policy.frames_max - self.driver.machine().agent().frames()
    }

    /// Evicts until the reserve is free, or will be when what is on its way has arrived.
    fn make_room(&mut self) {
        let reserve = (self.policy.frames_max / 16).clamp(1, RESERVE_MAX);
        let mut passed_over = 0;
        while self.free() + self.frames().going() < reserve.max(self.waiting.len()) {
            let Some(page) = self.frames().victim() else { break };
            self.evict(page);
            if self.frames().victim() == Some(page) {
                // It is asked for to be written, or too much is on its way.
                self.frames_mut().touch(page);
                passed_over += 1;
                if passed_over == PASSED_OVER_MAX {
                    break;
                }
            } else {
                self.stats.evictions += 1;
            }
        }
        let eighths = self.policy.resting_eighths;
        self.frames_mut().rest(eighths);
    }

    fn begin_flush(&mut self, done: Option<Sender<Result<(), Error>>>) {
        let left = self.frames().written().collect();
        let under_way = self.driver.machine().agent().writing().map(|(page, _)| page).collect();
        let since = self.driver.clock().now();
        self.flushes.push_back(WritingBack { left, under_way, since, done });
    }

    /// Goes on with the first flush.
    fn write_back(&mut self, now: Instant) {
        let Some(mut flush) = self.flushes.pop_front() else { return };
        let before = flush.under_way.len();
        let writing: BTreeSet<Page> = self.driver.machine().agent().writing().map(|(page, _)| page).collect();
        flush.under_way.retain(|page| writing.contains(page));
        let mut got_on = flush.under_way.len() < before;
        while flush.under_way.len() < FLUSHING_MAX
            && let Some(page) = flush.left.pop_front()
        {
            if !self.frames().is_written(page) {
                flush.under_way.extend(writing.get(&page));
                continue;
            }
            self.evict(page);
            if self.frames().is_written(page) {
                // Too much is on its way.
                flush.left.push_front(page);
                break;
            }
            got_on = true;
            flush.under_way.push(page);
        }
        if flush.under_way.is_empty() && flush.left.is_empty() {
            return flush.answer(Ok(()));
        }
        if got_on {
            flush.since = now;
        }
        if now.since(flush.since) >= SILENCE_MAX {
            let pages = flush.under_way.len() + flush.left.len();
            let what = format!("the memory nodes, to which {pages} pages are to be written");
            return flush.answer(Err(Error::Unreachable { what }));
        }
        self.flushes.push_front(flush);
    }

    fn evict(&mut self, page: Page) {
        self.frames_mut().evicting(true);
        self.submit(CacheAsk::Evict(page));
        self.frames_mut().evicting(false);
    }

    fn end_flushes(&mut self) {
        for flush in std::mem::take(&mut self.flushes) {
            flush.answer(Err(Error::Unreachable { what: "the rack, which this space has lost".into() }));
        }
    }

    /// Counts how long threads waited for what is here now.
    fn settle_waits(&mut self) {
        let settled = self.frames_mut().take_settled();
        if settled.is_empty() {
            return self.frames_mut().give_back(settled);
        }
        let now = self.driver.clock().now();
        for page in &settled {
            if let Some(since) = self.since.remove(page) {
                self.stats.waited_ns += now.since(since).as_nanos();
            }
        }
        self.frames_mut().give_back(settled);
    }

    /// From here on nothing can be had: no page may be used any more, since others may write them.
    fn fail(&mut self, why: String) {
        if std::mem::replace(&mut self.dead, true) {
            return;
        }
        lock(&self.failed).get_or_insert(why);
        self.frames_mut().give_all_up();
        let waiting = std::mem::take(&mut self.waiting).into_iter().map(|(page, _)| page);
        let pages: Vec<Page> =
            waiting.chain(self.driver.machine().agent().requests().map(|(page, _)| page)).collect();
        for page in pages {
            self.frames_mut().refuse(page);
        }
        self.since.clear();
    }

    fn stats(&self) -> ShareStats {
        let (tally, page) = (self.frames().tally(), PAGE_LEN as u64);
        let counters = self.driver.link().counters();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ShareStats {
            fetches: tally.fetches,
            upgrades: tally.upgrades,
            rested: tally.rested,
            invalidations: tally.invalidations,
            write_backs: tally.write_backs,
            bytes_fetched: tally.fetches * page,
            bytes_written_back: tally.write_backs * page,
            bytes_here_max: tally.frames_max * page,
            lost: tally.poisoned,
            retries: count(&self.notes.retries),
            busy: count(&self.notes.busy),
            packets_out: counters.frames_out,
            packets_in: counters.frames_in,
            ..self.stats
        }
    }
}

impl WritingBack {
    fn answer(self, result: Result<(), Error>) {
        if let Some(done) = self.done {
            // Who asked may be gone.
            let _gone = done.send(result);
        }
    }
}
