//! A shared space's host role at work: faults, recalls and evictions, one at a time.
//!
//! Key type: [`Pager`]. It sleeps nowhere and knows no thread: who may use it when, and who sleeps where, is the
//! [`Desk`](super::desk::Desk)'s to say. Another thread renews the lease over HTTP, so that nobody here waits for that.
//!
//! Of the frames that the local limit allows a few are kept free, by evicting what was used longest ago after each turn: a fault then
//! finds one at once, and an eviction is nobody's wait.

use super::ShareStats;
use super::desk::{Ask, lock};
use super::frames::Frames;
use super::lease::say;
use farmem_client::Error;
use farmem_client::own::SILENCE_MAX;
use farmem_host::agent::Outcome;
use farmem_host::caching::{CacheAsk, CacheDone, CacheNote, CachingHost, Came};
use farmem_io::pages::Mapped;
use farmem_io::{Driver, Link, Wait};
use farmem_machine::{Duration, Instant};
use farmem_paging::{Ahead, ReadAhead};
use farmem_wire::VirtAddr;
use farmem_wire::message::{Access, PAGE_LEN, Page};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration as StdDuration;

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

/// Time between two looks of a pager that has lost its rack.
const LOOK_EVERY: StdDuration = StdDuration::from_millis(20);
/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_millis(20);
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
    /// The role's timer for what gets no answer is at least half of this. No sleep is longer than that: what another thread asks for during a
    /// sleep may set a timer, which the one who sleeps must not miss.
    pub(super) timeout: Duration,
    pub(super) frames_max: usize,
    pub(super) ahead: Ahead,
    pub(super) resting_eighths: usize,
}

/// What the role noted, counted where its notes are heard.
#[derive(Default)]
struct Notes {
    /// What came of the last fault: [`ASKED`], [`FULL`] or [`OTHER`].
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

/// What is to follow a [`Pager::turn`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Another turn, at once.
    Look,
    /// A sleep at the link, of so long at most.
    Sleep(Duration),
    /// The link is of no use any more: a wait for somebody who wants something.
    Wait(StdDuration),
    /// Nothing: it was told to end, and everything is written back or cannot be.
    End {
        /// It is written back.
        all_written: bool,
    },
}

/// The pager.
pub(super) struct Pager<W: Mapped, L: Link> {
    driver: Driver<CachingHost<Frames<W>>, L>,
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
        tell: Sender<Told>,
        failed: Arc<Mutex<Option<String>>>,
    ) -> Self {
        let notes = Arc::new(Notes::default());
        let heard = Arc::clone(&notes);
        driver.watch_notes(move |note| heard.hear(note));
        let ahead = (policy.ahead != Ahead::None).then(|| policy.ahead.policy(AHEAD_MAX));
        Self {
            driver,
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

    /// Where what is asked goes, to be done by [`Pager::begin`] or [`Pager::turn`].
    pub(super) const fn asks(&mut self) -> &mut VecDeque<Ask> {
        &mut self.asks
    }

    /// Does what is asked as far as somebody waits for it; what is to be sent is in `parcel`. The rest is the next turn's, which comes with the
    /// answer at the latest.
    pub(super) fn begin(&mut self, parcel: &mut L::Parcel) {
        self.do_asked();
        if !self.dead {
            self.driver.flush_into(parcel);
        }
    }

    fn do_asked(&mut self) {
        while let Some(ask) = self.asks.pop_front() {
            self.ask(ask);
        }
    }

    /// Does what is asked.
    fn work(&mut self) {
        self.do_asked();
        // What somebody waits for is on its way before anything else is done.
        self.flush();
        let now = self.driver.clock().now();
        self.frames_mut().heal(now);
        if self.dead {
            return self.end_flushes();
        }
        self.admit_waiting();
        self.make_room();
        self.write_back(now);
        self.flush();
        self.tell();
        self.settle_waits(now);
    }

    /// Takes what came over the link, and does what is asked. What arrived is installed when this returns.
    pub(super) fn turn(&mut self) -> Next {
        if !self.dead {
            let Self { driver, told, .. } = self;
            let turned = driver.turn(Wait::No, &mut |done, _| told.push(done));
            if let Err(error) = turned {
                self.fail(format!("the link to the rack failed: {error}"));
            }
        }
        self.work();
        if self.ending && self.flushes.is_empty() {
            let agent = self.driver.machine().agent();
            let all_sent = agent.writing().next().is_none() && self.frames().written().next().is_none();
            return Next::End { all_written: !self.dead && all_sent };
        }
        if self.dead {
            return Next::Wait(LOOK_EVERY);
        }
        let most = SLEEP_MAX.min(Duration::from_nanos(self.policy.timeout.as_nanos() / 2));
        self.driver.may_sleep(most).map_or(Next::Look, Next::Sleep)
    }

    fn flush(&mut self) {
        if !self.dead
            && let Err(error) = self.driver.flush()
        {
            self.fail(format!("the link to the rack failed: {error}"));
        }
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
                CacheDone::LeaseEnded => {
                    self.stats.lapses += 1;
                    // Whatever the watcher took is taken over before there is another lease.
                    self.driver.machine_mut().pages_mut().absorb();
                    Told::LeaseEnded
                }
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
    fn settle_waits(&mut self, now: Instant) {
        let settled = self.frames_mut().take_settled();
        if settled.is_empty() {
            return self.frames_mut().give_back(settled);
        }
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
        say(&format!("nothing can be had any more, and every touch ends in SIGBUS: {why}"));
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
            false_invalidations: self.driver.machine().needless(),
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
